/* sched.h - which sequences get rows in the next step: one token budget, decodes first (spec.h adds
 * drafts to them), then prefill chunks, then whoever waits and fits.
 *
 * Private to worker/engine. Order: rank (the class; one better once aged), then deadline, then
 * arrival. Preemption takes the youngest arrival of the lowest rank, never one of a better rank
 * than the beneficiary's: the oldest of the best rank always gets on, so every request ends. Batch
 * requests also make way, for places and for blocks, when an online one waits. */
#ifndef WORKER_ENGINE_SCHED_H
#define WORKER_ENGINE_SCHED_H

#include "worker/engine/seq.h"
#include "worker/engine/spec_pool.h"

#define SCHED_RANKS (ENGINE_BATCH + 1)
#define SCHED_PREFILL_ROWS_MIN 16 /* beside decodes, however slow a step is */

/* One sequence's share of a step. */
struct sched_share {
    struct seq *seq;
    uint32_t rows;   /* drafts included */
    uint32_t drafts; /* the last of the rows */
};

struct sched {
    struct blocks *blocks;            /* borrowed */
    struct spec_pool *drafts;         /* borrowed; NULL: no draft model */
    struct list waiting[SCHED_RANKS]; /* in order; preempted ones are back in their place */
    struct list running;              /* in order */
    uint32_t n_waiting, n_running;
    uint32_t sequences_max;
    uint64_t aging_us;       /* 0: never */
    uint64_t now_us, due_us; /* due: nobody ages or expires before */
    struct seq *group_last;  /* the newest of the newest group while it lives, or NULL */
    uint64_t preemptions;
    struct sched_share *share; /* owned; [sequences_max], of the step at hand */
    uint32_t n_share;
};

void sched_init(struct sched *c, struct blocks *b, struct spec_pool *drafts,
                const struct engine_options *o);
void sched_fini(struct sched *c); /* both lists are empty */
/* A new one; joins the group that came just before it. */
void sched_add(struct sched *c, struct seq *s);
/* Out of its list and its group, blocks given back, SEQ_ENDED. */
void sched_end(struct sched *c, struct seq *s, enum engine_finish why);
/* Ages who has waited long; calls expired (which ends it) for each that was not started in time. */
void sched_tick(struct sched *c, uint64_t now_us, void (*expired)(void *ctx, struct seq *s),
                void *ctx);
/* Begins a plan: one row for each decode, with a block for its newest token. */
void sched_plan_decodes(struct sched *c);
/* True when rows that drafts leave would find a use. */
bool sched_has_prefill(const struct sched *c);
/* Ends it with chunks of at most `rows` rows; admitted: for each that begins to run. */
void sched_plan_prefill(struct sched *c, uint32_t rows, void (*admitted)(void *ctx, struct seq *s),
                        void *ctx);
/* One of the group started: the others no longer expire in the queue. */
void sched_group_begun(struct sched *c, uint64_t group);
/* The whole prompt of s has KV in the index: its siblings need not wait any longer. */
void sched_prompt_computed(struct seq *s);

#endif
