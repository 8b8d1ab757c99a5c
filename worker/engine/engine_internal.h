/* engine_internal.h - what engine.c (life) and engine_step.c (the step) share. Private to both. */
#ifndef WORKER_ENGINE_ENGINE_INTERNAL_H
#define WORKER_ENGINE_ENGINE_INTERNAL_H

#include "base/map.h"
#include "worker/engine/cost.h"
#include "worker/engine/pick.h"
#include "worker/engine/sched.h"
#include "worker/engine/spec.h"

struct engine {
    const struct model *model; /* borrowed */
    struct backend *backend;   /* borrowed */
    struct engine_options o;
    struct blocks *blocks; /* owned */
    struct sched sched;
    struct spec *spec;    /* owned; NULL: no speculation */
    struct cost cost;     /* of a step; learned only with a clock */
    struct list ended;    /* SEQ_ENDED, END event due */
    struct map by_ticket; /* of all others; the keys are their requests' */
    uint64_t arrivals;
    uint32_t aborts; /* live sequences with abort set, at most */
    struct engine_stats totals;
    struct pick pick;
    /* The batch of the step at hand. */
    int32_t *ids;                       /* owned; [step_tokens] */
    uint32_t *q_start, *q_len, *kv_len; /* owned; [sequences_max] */
    const uint32_t **table;             /* owned; [sequences_max] */
    uint32_t wanted_max;                /* sequences_max and at most SPEC_ROWS_MAX drafts */
    uint32_t *want;                     /* owned; [wanted_max] */
    float *logits;                      /* owned; [wanted_max][vocab] */
};

static inline struct str engine_ticket(const uint64_t *ticket)
{
    return str_of((const char *)ticket, sizeof(*ticket));
}

static inline uint64_t engine_now(const struct engine *g)
{
    return g->o.clock_us != NULL ? g->o.clock_us(g->o.clock_ctx) : 0;
}

#endif
