/* worker.h - the fleet: which workers there are, how they are, what they hold. Owned by the control
 * loop; the counters inside are shared with the loops (atomics) and have one owner a request.
 *
 * A worker keeps its slot (0..63, its bit in whohas) while it is listed. The control loop probes
 * GET /health every 500 ms, reads /metrics' waiting and KV usage every 250 ms from our workers, and
 * keeps one GET /kv_events open to each of ours (resume by epoch:seq, snapshot on a gap), feeding
 * whohas. Loops see a `struct world`: snapshot and worker slots, immutable, swapped together. */
#ifndef GATEWAY_ROUTE_WORKER_H
#define GATEWAY_ROUTE_WORKER_H

#include "base/log.h"
#include "base/net/client.h"
#include "cache/whohas.h"
#include "gateway/route/route.h"
#include "ledger/snapshot.h"

#include <stdatomic.h>

enum worker_health { WORKER_UNKNOWN = 0, WORKER_UP = 1, WORKER_DOWN = 2 };

struct worker { /* stable memory while any world names it */
    unsigned slot;
    int32_t worker_id;
    enum engine_kind engine;
    char url[128]; /* "http://127.0.0.1:9001", no trailing slash */
    char host[96]; /* for the Host field */
    struct env_addr addr;
    atomic_int health; /* enum worker_health, by the control loop; a loop may set DOWN on connect
                          failure */
    _Atomic uint64_t epoch; /* x-tollgate-worker-epoch last seen; 0 unknown */
    atomic_int kv_permille; /* -1 unknown */
    atomic_int waiting;     /* -1 unknown */
    atomic_int running;
    atomic_bool publishes; /* kv_events are flowing */
    /* load, by the requests that are there (worker_charge / worker_first_byte / worker_release) */
    atomic_llong in_flight, queued_tokens, context_tokens;
    /* learned; short lock inside worker.c */
    _Atomic uint32_t rate_milli;            /* median tokens/s x 1000; 0: too few */
    _Atomic uint32_t bytes_per_token_milli; /* learned from usage; 0: unknown */
    atomic_int off_permille; /* moving share of prompt tokens that the index mispredicts */
    _Atomic uint64_t requests, errors, cached_predicted, cached_actual, prompt_tokens,
        prediction_error;
};

struct world_worker {
    struct worker *w;
    bool draining;
    const int16_t *models;
    uint32_t n_models;
};

struct world {
    atomic_uint refs;
    struct snapshot *snap; /* one reference held */
    struct world_worker worker[ROUTE_WORKERS_MAX];
    unsigned n_workers;
};
struct world *world_ref(struct world *w);
void world_unref(struct world *w);
bool world_serves(const struct world *w,
                  int16_t model_id); /* some worker lists it (healthy or not) */

struct fleet;
/* env: the control loop's. worker_key: what our workers trust. whohas borrowed. */
struct fleet *fleet_new(struct env *env, struct log *log, struct http_client *client,
                        struct whohas *index, struct str worker_key);
void fleet_free(struct fleet *f); /* after every world is gone */
/* Brings the fleet in line with a snapshot (takes its own reference) and returns a new world with
 * one reference for the caller. More than 64 workers: the rest are ignored, said in the log. */
struct world *fleet_world(struct fleet *f, struct snapshot *s);
/* Called by the control loop's owner after a health change, if set: a nudge, not a new world. */
double fleet_rate_median(const struct fleet *f); /* tokens/s over workers with samples; 0: none */

/* What one request owes one worker. */
struct worker_charge {
    struct worker *w; /* NULL: nothing charged */
    int64_t queued, context;
    uint64_t at_us;
    int64_t queue_ahead; /* queued_tokens at dispatch, own included */
};
void worker_charge(struct worker *w, struct worker_charge *c, int64_t uncached, int64_t prompt,
                   uint64_t now_us);
void worker_first_byte(struct worker_charge *c, uint64_t now_us); /* releases q, learns the rate */
void worker_release(struct worker_charge *c);                     /* the one end: n and c */
/* usage known: learns bytes per token, prediction error. */
void worker_learn(struct worker *w, uint64_t prompt_bytes, int64_t prompt_tokens, int64_t cached,
                  int64_t predicted);

#endif
