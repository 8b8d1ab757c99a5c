/* engine.h - continuous batching: three verbs a step (schedule, forward, post-process).
 *
 * The engine is a step function over memory and an injected clock; worker/serve runs it on a thread
 * of its own and talks through two bounded queues (requests and aborts in, events out).
 *
 * Limits: sequences_max running, waiting_max queued (refused beyond), step_tokens rows a step:
 * decodes (with their drafts) first, then prefill chunks, so many rows that running decodes keep
 * tpot_target_us. Order: class, then deadline, then arrival; who waits longer than aging_us counts
 * as one class better. A request is admitted only if its whole prompt and answer bound can ever fit
 * the pool, and when what it has so far fits now. Preemption: the youngest of the lowest class not
 * above the beneficiary's gives its blocks back and is recomputed; its output is unchanged
 * (sampling is keyed by seed, choice and position). The first in order always gets on. A request
 * that was not started at its queue_deadline_us ends EXPIRED. Abort works in every state.
 * Speculation: drafted tokens are verified as rows of one step; a draft counts iff it is the token
 * that the target itself draws, so the answer is the same with and without.
 * blocks: free + referenced + cached_idle = total after each step. */
#ifndef WORKER_ENGINE_ENGINE_H
#define WORKER_ENGINE_ENGINE_H

#include "base/hash.h"
#include "base/uuid.h"
#include "cache/blocks.h"
#include "worker/backend.h"
#include "worker/engine/grammar.h"
#include "worker/engine/sample.h"

#define ENGINE_DRAFT_TOKENS_MAX 32 /* a sequence and step: hardly any chain holds longer */

enum engine_class { ENGINE_INTERACTIVE = 1, ENGINE_STANDARD, ENGINE_BATCH };

/* One request. Made by serve, owned by the engine from engine_submit until its END event, then by
 * serve again, which frees it. */
struct engine_request {
    uint64_t ticket;   /* serve's own number, in every event */
    struct uuid event; /* zero when the caller sent none */
    int32_t *ids;      /* [n_ids] prompt; owned by serve's arena, stable until END */
    uint32_t n_ids;
    uint32_t max_tokens; /* answer bound, >= 1 (serve clamps to the context) */
    struct sample_params sample;
    struct prefix_key salt; /* scope of cache hits */
    enum engine_class class;
    const int32_t *stop_ids; /* tokens that end the answer (not part of the text) */
    uint32_t n_stop_ids;
    bool ignore_eos;
    uint32_t min_tokens;        /* neither EOS nor a stop id is drawn before so many tokens */
    struct grammar *grammar;    /* NULL: free text. Retained by serve until END */
    bool no_speculation;        /* asked for by the caller */
    uint64_t deadline_us;       /* on the engine's clock, first token wanted by; 0: none */
    uint64_t queue_deadline_us; /* not started by then: END EXPIRED; 0: none */
    /* One of n answers to a prompt: the others of a group (same non-zero number, submitted one
     * after another) wait until the first has its prompt computed, and hit its blocks. */
    uint64_t group;
    /* chunk hashes by prompt position: chunk_token[i] = index of the token it is bound to */
    const uint64_t *chunks;
    const uint32_t *chunk_token;
    uint32_t n_chunks;
    void *private_seq; /* the engine's */
};

enum engine_finish {
    ENGINE_STOP = 1, /* EOS, a stop id, or the grammar can only end here */
    ENGINE_LENGTH,
    ENGINE_ABORTED,
    ENGINE_REFUSED, /* can never fit */
    ENGINE_EXPIRED, /* waited past its queue deadline */
};

struct engine_event {
    enum { ENGINE_STARTED = 1, ENGINE_TOKEN, ENGINE_END } kind;
    uint64_t ticket;
    uint32_t prompt_tokens, cached_tokens; /* STARTED: prefill is scheduled, the hit is known */
    uint32_t completion_tokens;            /* so far, this token included */
    struct sample_result token;            /* TOKEN */
    enum engine_finish finish;             /* END */
};

struct engine_options {
    uint32_t kv_blocks;
    uint32_t sequences_max; /* running at once */
    uint32_t waiting_max;
    uint32_t step_tokens; /* rows of one forward */
    uint64_t seed;        /* of block hashes; secret */
    /* What KV bytes depend on beside ids and salt: dtype, policy and the model's digest. Part of
     * the root of every chain of blocks. */
    struct hash128 root;
    uint64_t (*clock_us)(void *ctx); /* monotonic; NULL: no deadlines, no aging, no adaptation */
    void *clock_ctx;
    uint64_t tpot_target_us; /* 0: chunks take the whole step */
    uint64_t aging_us;       /* 0: never */
    /* Most tokens drafted a sequence and step, <= ENGINE_DRAFT_TOKENS_MAX; 0: no speculation. */
    uint32_t draft_tokens;
    bool prompt_lookup;              /* drafts from n-grams of prompt and answer */
    const struct model *draft_model; /* borrowed, same tokenizer (checked by the caller); or NULL */
    struct backend *draft_backend;   /* borrowed; takes step_tokens rows a forward */
    uint32_t draft_blocks;           /* of the draft's own KV pool; too few only cost drafts */
};

struct engine_stats { /* read by serve after each step, copied whole */
    uint32_t running, waiting;
    struct blocks_count blocks;
    uint64_t steps, prefill_tokens, decode_tokens, cached_tokens, preemptions;
    uint64_t drafted, accepted; /* tokens: by prompt lookup and the draft model together */
    uint64_t expired;
};

struct engine;
/* model and backend are borrowed; events.* are called from engine_step's thread. */
struct engine *engine_new(const struct model *m, struct backend *b, const struct engine_options *o,
                          struct blocks_events chunk_events, struct err *e);
void engine_free(struct engine *g);
/* false: the waiting queue is full (serve answers 503). Validates lengths: too long -> END REFUSED.
 */
MUST_USE bool engine_submit(struct engine *g, struct engine_request *r);
void engine_abort(struct engine *g, uint64_t ticket); /* END ABORTED follows, unless it ended */
/* One step; emits through `emit` (engine_abort may be called from there). Returns true while
 * requests are left. */
bool engine_step(struct engine *g, void (*emit)(void *ctx, const struct engine_event *), void *ctx);
void engine_stats(const struct engine *g, struct engine_stats *out);
/* For tests: blocks_check after each step. */
const struct blocks *engine_blocks(const struct engine *g);

#endif
