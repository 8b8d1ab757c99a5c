/* metrics.h - the worker's counters and what GET /metrics makes of them (Prometheus text).
 *
 * Names are vLLM's where vLLM has one, so that dashboards and gateways read both; what is ours
 * alone begins with tollgate_worker_. One thread (the serving loop). */
#ifndef WORKER_METRICS_H
#define WORKER_METRICS_H

#include "base/buf.h"
#include "base/hist.h"
#include "worker/engine/engine.h"

struct metrics {
    struct hist ttft, tpot, queue, e2e;                       /* microseconds */
    uint64_t prompt_tokens, cached_tokens, generation_tokens; /* of requests that started */
    uint64_t queries, hits; /* prompt tokens looked up and found cached, of every choice */
    uint64_t finished_stop, finished_length, finished_abort, refused;
    uint64_t expired;    /* waited past their deadline */
    uint64_t unread;     /* streams cut because their client did not read */
    uint64_t kv_resyncs; /* snapshots sent on /kv_events */
};

struct metrics_state {
    struct str model;
    const struct model *weights; /* for bytes and FLOPs moved */
    struct engine_stats engine;
    uint32_t subscribers, preparing;
    uint64_t chunks_held, body_bytes;
};

void metrics_write(struct buf *out, const struct metrics *m, const struct metrics_state *s);

#endif
