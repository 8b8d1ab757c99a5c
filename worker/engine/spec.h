/* spec.h - speculation: guesses of the next tokens that one step verifies as rows of their own.
 *
 * A draft counts iff it equals the token that the target itself draws there, with noise keyed by
 * (seed, choice, position): the answer is the same token for token, drafts or not. Two sources:
 * prompt lookup (what followed the newest n-gram when it last came) and a draft model with a
 * backend and a small KV pool of its own. Both are turned down by what was measured: the share of
 * drafts that came true (a mean per sequence and source, newest weigh most), and what a row costs
 * against what a step costs. Private to worker/engine. Guarded by tests/unit/test_engine_spec.c. */
#ifndef WORKER_ENGINE_SPEC_H
#define WORKER_ENGINE_SPEC_H

#include "worker/engine/cost.h"
#include "worker/engine/pick.h"
#include "worker/engine/sched.h"

/* Drafts of a step, all sequences together: each wants a row of logits (512 KB at 128k ids). */
#define SPEC_ROWS_MAX 64
#define SPEC_WINDOW 8192      /* tokens that prompt lookup looks back: some microseconds */
#define SPEC_CATCHUP_ROWS 256 /* rows that the draft model is behind, computed a step */

struct spec_job { /* one sequence that the draft model drafts for */
    struct seq *seq;
    uint32_t n;   /* drafts asked for */
    bool running; /* more drafts may follow */
};

struct spec {
    uint32_t draft_tokens, rows_max, sequences_max;
    bool lookup;
    const struct model *model; /* borrowed; NULL: no draft model */
    struct backend *backend;   /* borrowed */
    struct spec_pool pool;
    uint64_t (*clock_us)(void *ctx); /* NULL: costs are not measured */
    void *clock_ctx;
    double draft_us; /* a token of the draft model; 0: not known */
    uint64_t drafted, accepted;
    struct grammar_state *where; /* owned; [sequences_max] along drafts; [1] without a model */
    struct spec_job *jobs;       /* owned; [sequences_max] of the step at hand */
    uint32_t n_jobs;
    int32_t *ids;                              /* owned; [rows_max] */
    uint32_t *q_start, *q_len, *kv_len, *want; /* owned; [sequences_max] */
    const uint32_t **table;                    /* owned; [sequences_max] */
    uint32_t *job_of;                          /* owned; [sequences_max] of a round's sequences */
};

/* NULL when the options ask for no speculation (err is then clear) or with a story. */
struct spec *spec_new(const struct engine_options *o, const struct model *target, struct err *e);
void spec_free(struct spec *p);
void spec_begin(struct seq *s); /* a new sequence */
/* Adds drafts to the decodes that c has planned, at most `rows` in all: into ids[n_tokens ..] of
 * their sequences, and to their shares. logits [sequences_max][vocab] is scratch. */
void spec_plan(struct spec *p, struct pick *pick, struct sched *c, const struct cost *cost,
               uint32_t rows, float *logits);
/* s has taken its tokens: the first `matched` drafts came true; missed: the next one did not. After
 * each step that drafts may have been made for, also if none was verified. */
void spec_verified(struct spec *p, struct seq *s, uint32_t matched, bool missed);

/* What followed the newest 3, 2 or 1 of ids [n] when they last came: writes at most `most` ids. */
uint32_t spec_lookup(const int32_t *ids, uint32_t n, uint32_t most, int32_t *out);
/* Runs jobs[]: sets n_draft and writes ids of each. */
void spec_draft(struct spec *p, struct pick *pick, float *logits);

#endif
