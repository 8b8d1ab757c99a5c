/* fleet.h - inside gateway/route: one listed worker as the control loop sees it. */
#ifndef GATEWAY_ROUTE_FLEET_H
#define GATEWAY_ROUTE_FLEET_H

#include "gateway/route/worker.h"

#include <pthread.h>

#define FLEET_EPOCH_TEXT_MAX 40
#define FLEET_LINE_BYTES_MAX (1u << 20) /* one line of /kv_events; snapshots come in pages */

struct fleet_worker {
    struct worker w; /* first member: a struct worker is found back from */
    struct fleet *fleet;
    atomic_uint refs;  /* worlds that name it */
    bool used, listed; /* a slot is reused when it is neither listed nor referenced */
    bool resolved;     /* addr is known */
    pthread_mutex_t rate_lock;
    struct route_rate rate;
    struct http_origin *origin;
    struct env_dns dns;
    bool resolving;
    struct env_timer probe_timer, gauge_timer, event_timer;
    struct http_call *probe, *gauge, *events;
    unsigned probe_status, gauge_status, events_status;
    struct buf gauge_body, line;
    unsigned failures; /* probes in a row */
    /* events */
    bool fresh; /* the next line must be a snapshot */
    bool synced;
    char epoch[FLEET_EPOCH_TEXT_MAX];
    uint64_t seq;
    uint64_t lost_us; /* since when the events are gone; 0: flowing or never */
};

struct fleet {
    struct env *env;
    struct log *log;
    struct http_client *client;
    struct whohas *index;
    struct str worker_key;
    struct fleet_worker *slot[ROUTE_WORKERS_MAX]; /* owned; never moved */
};

/* worker_probe.c: health and gauges */
void fleet_probe_start(struct fleet_worker *fw);
void fleet_probe_stop(struct fleet_worker *fw);
/* worker_events.c: GET /kv_events */
void fleet_events_start(struct fleet_worker *fw);
void fleet_events_stop(struct fleet_worker *fw);

#endif
