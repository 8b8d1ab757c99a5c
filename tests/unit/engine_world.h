/* engine_world.h - a world for tests of the engine: a hash instead of a model, an oracle that knows
 * neither batches nor blocks, and a clock that only forwards turn.
 *
 * A KV entry is a hash of the token and of the entry before it, read through the block table, and
 * logits are a hash of the last entry: a stale, shared or wrong block changes what follows. */
#ifndef TESTS_UNIT_ENGINE_WORLD_H
#define TESTS_UNIT_ENGINE_WORLD_H

#include "worker/engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define VOCAB 64
#define EOS 3
#define CONTEXT 400
#define REQUESTS_MAX 24
#define STEPS_MAX 20000
#define GRAMMARS 4

uint64_t mix(uint64_t a, uint64_t b);
uint32_t below(uint64_t *rng, uint32_t n);

struct entry {
    uint64_t hash;
    int32_t id;
};

/* What a hash model thinks. */
struct fake_model {
    bool loops;      /* most states go on to the next of twelve tokens: prompt lookup finds them */
    uint32_t astray; /* of 8 states, how many think otherwise than the same model with 0 */
    uint64_t other;  /* how otherwise */
};

struct fake {
    struct backend base;
    struct fake_model think;
    struct entry (*kv)[BLOCK_TOKENS]; /* [blocks] */
    uint32_t blocks, rows_seen_max;
    uint64_t *clock, us, us_row; /* a forward takes us + rows * us_row */
};

struct case_request {
    struct engine_request r;
    int32_t ids[CONTEXT];
    uint64_t chunks[CONTEXT];
    uint32_t chunk_token[CONTEXT];
    int32_t stop;
    int32_t want[CONTEXT], got[CONTEXT];
    uint64_t want_print[CONTEXT], got_print[CONTEXT]; /* of the whole sample_result */
    uint32_t n_want, n_got, arrives, aborts, cached;
    enum engine_finish want_finish, finish;
    bool started, submitted;
    uint32_t start; /* how many had started before */
    uint64_t token_us[CONTEXT];
};

struct world {
    struct fake fake, draft;
    struct model model;
    struct engine *g;
    uint64_t now_us;
    struct case_request q[REQUESTS_MAX];
    uint32_t n, live, starts;
    uint32_t held;     /* chunk hashes: stored minus removed */
    uint32_t abort_at; /* engine_abort from the event of this token; 0: never */
};

/* Of a fixed set, [0, GRAMMARS). */
struct grammar *world_grammar(uint32_t i);
/* The whole answer matches; the caller releases it. */
struct grammar *world_regex(const char *regex);
/* No clock, no speculation. */
struct engine_options options(uint32_t blocks, uint32_t sequences, uint32_t step);
/* With the world's clock. */
void with_clock(struct world *w, struct engine_options *o, uint64_t us, uint64_t us_row);
/* With a draft model, a hash as the target is. */
void with_draft(struct world *w, struct engine_options *o, uint32_t tokens, uint32_t astray);
/* An empty world; then its model may be changed and options made. */
void world_begin(struct world *w);
void world_open(struct world *w, struct engine_options o);
/* Both, with the plain model and plain options. */
void world_start(struct world *w, uint32_t blocks, uint32_t sequences, uint32_t step);
void world_close(struct world *w); /* may have live requests */
struct case_request *add(struct world *w, uint32_t n_ids, uint32_t max_tokens);
void submit(struct world *w, struct case_request *q);
/* Fills want: the whole request by itself; no block, no batch, no cache, no drafts. */
void oracle(struct world *w, struct case_request *q);
bool step(struct world *w); /* and checks the pool */
void run_dry(struct world *w);
/* Got what it wanted; if it was aborted or expired, the beginning of it. */
void check_answer(const struct case_request *q);

#endif
