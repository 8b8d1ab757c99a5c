/* sched.h - which sequences get rows in the next step: one token budget, decodes first, then
 * prefill chunks, then whoever waits and fits.
 *
 * Private to worker/engine. Order everywhere: class, then arrival. Preemption takes the last one in
 * that order, so the first always gets on and every request ends. A batch request that runs also
 * makes way, one a step, when no place is left for an online one. */
#ifndef WORKER_ENGINE_SCHED_H
#define WORKER_ENGINE_SCHED_H

#include "worker/engine/seq.h"

#define SCHED_CLASSES (ENGINE_BATCH + 1)

/* One sequence's share of a step. */
struct sched_share {
    struct seq *seq;
    uint32_t rows; /* 1 for a decode */
};

struct sched {
    struct blocks *blocks;              /* borrowed */
    struct list waiting[SCHED_CLASSES]; /* by arrival; preempted ones are back in their place */
    struct list running;                /* by class, then arrival */
    uint32_t n_waiting, n_running;
    uint32_t sequences_max, step_tokens;
    uint64_t preemptions;
    struct sched_share *share; /* owned; [sequences_max], of the step at hand */
    uint32_t n_share;
};

void sched_init(struct sched *c, struct blocks *b, uint32_t sequences_max, uint32_t step_tokens);
void sched_fini(struct sched *c); /* both lists are empty */
void sched_add(struct sched *c, struct seq *s);
/* Out of its list, blocks given back, SEQ_ENDED. */
void sched_end(struct sched *c, struct seq *s, enum engine_finish why);
/* Fills share[]; calls admitted for each sequence that begins to run. */
void sched_plan(struct sched *c, void (*admitted)(void *ctx, struct seq *s), void *ctx);

#endif
