/* gateway.h - everything one gateway process owns, and what its loops share.
 *
 * main builds one struct gateway and passes it down. Loops share exactly: the world (immutable,
 * swapped), whohas, the workers' atomics, the quota store, the ports to the journal, the log ring.
 * All else belongs to one loop. See gateway/README.md for who calls whom. */
#ifndef GATEWAY_GATEWAY_H
#define GATEWAY_GATEWAY_H

#include "base/hist.h"
#include "base/log.h"
#include "base/net/os.h"
#include "base/net/server.h"
#include "base/pool.h"
#include "gateway/admit/quota.h"
#include "gateway/config.h"
#include "gateway/route/worker.h"
#include "ledger/journal.h"
#include "ledger/ship.h"

#include <pthread.h>

#define GATEWAY_LOOPS_MAX 16

struct secrets { /* from 0600 files, in the config's arena; never logged */
    struct str deployment, pepper, worker_key, admin_key;
};

/* Counters of one loop; summed at scrape. Relaxed atomics, one writer. */
struct loop_metrics {
    _Atomic uint64_t requests, refused_auth, refused_quota, refused_input, no_worker, retries, cut,
        client_aborts, streams, tokens_in, tokens_cached, tokens_out, clamped;
    struct hist ttft, total, durable_wait;
    struct hist tpot;
};

#define LOOP_K0_ENTRIES 64 /* power of two: tenants x models that are busy at once */

/* A prefix key costs two HMACs; it depends on tenant and model alone while a world lasts. */
struct k0_entry {
    int64_t tenant_id;
    int16_t model_id;
    bool set;
    struct prefix_key k0;
};

struct loop {
    struct gateway *gw;
    unsigned index;
    struct env *env;
    struct http_server *server;
    struct http_client *client;
    struct tls_context *tls;                       /* owned; NULL when no TLS listener */
    struct http_origin *origin[ROUTE_WORKERS_MAX]; /* by worker slot; made when first used */
    int32_t origin_worker[ROUTE_WORKERS_MAX];      /* whose slot that was */
    struct world *world;                           /* current; one reference */
    _Atomic(struct world *) pending;               /* put there by control; taken by the loop */
    struct env_wake *wake;                         /* rung by control (world, stop) */
    atomic_bool stop_asked;
    struct journal_port *port;
    struct list requests; /* every live request */
    struct list settling; /* those that wait for a ticket, in ticket order */
    uint64_t n_requests;  /* live; also published for metrics */
    _Atomic uint64_t live;
    uint64_t body_bytes;       /* held for bodies: bounded by bodies_bytes_max / loops */
    struct arena_cache blocks; /* of the requests' arenas */
    struct pool request_pool;
    struct k0_entry k0[LOOP_K0_ENTRIES]; /* of this world; emptied with it */
    struct arena events;                 /* the tree of the event at hand; reset at the next one */
    struct loop_metrics metrics;
    bool draining, server_drained, drained_told;
    struct env_timer drain_timer;
    void (*drained)(struct loop *); /* set by main or the simulator */
    pthread_t thread;
};

struct control; /* gateway/control.c: its loop, admin server, fleet, store */

struct gateway {
    struct gateway_config config;
    struct arena arena;
    struct secrets secrets;
    struct log *log;
    struct resolver *resolver;
    struct whohas *index;
    struct quota *quota;
    struct journal *journal;
    struct ship *ship;
    struct loop *loop[GATEWAY_LOOPS_MAX];
    unsigned n_loops;
    struct control *control;
    atomic_bool ready; /* a world was swapped in */
    atomic_bool draining;
    uint64_t started_wall_us;
};

/* A loop over any env (the simulator's too): server, client, journal port. world may be NULL. */
struct loop *loop_new(struct gateway *gw, unsigned index, struct env *env, struct world *world,
                      struct err *e);
void loop_free(struct loop *l);
/* Hands a new world to a loop (any thread): takes one reference. */
void loop_offer_world(struct loop *l, struct world *w);
void loop_drain(
    struct loop *l); /* on the loop's thread: refuse new work, finish streams up to drain_us */
/* The origin (connection pool) for a worker on this loop. */
struct http_origin *loop_origin(struct loop *l, const struct worker *w);

#endif
