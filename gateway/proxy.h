/* proxy.h - one attempt at one worker: the engine's request goes out, its answer comes back as
 * normal pieces. Knows workers and HTTP; never money, never the client's connection.
 *
 * An attempt ends in exactly one of done, whole and failed, unless proxy_cancel ends it. Our worker
 * is always asked for a stream (a whole answer is gathered by the request), so that its cumulative
 * usage bounds the bill while it runs. */
#ifndef GATEWAY_PROXY_H
#define GATEWAY_PROXY_H

#include "base/net/sse.h"
#include "base/uuid.h"
#include "gateway/route/usage.h"
#include "gateway/route/worker.h"

struct loop;

enum proxy_failure_kind {
    PROXY_CONNECT = 1, /* nothing was sent: the worker never saw it */
    PROXY_STATUS,      /* an answer that is an error (status or in-band before content) */
    PROXY_CUT,         /* connection lost or ended too early */
    PROXY_BROKEN,      /* not an answer that we can read */
    PROXY_TIMEOUT,
    PROXY_BUSY, /* our own bound: the pool's, descriptors, ports; not the worker's fault */
};

struct proxy_failure {
    enum proxy_failure_kind kind;
    struct api_error error; /* for the client */
    bool reached;           /* the worker may have seen the request */
    bool refused;      /* it answered that it did not do it (429, 503, 4xx): nothing was produced */
    bool client_fault; /* 4xx: never retried, never the worker's fault */
    uint64_t text_bytes; /* of a whole answer that broke off: what came of its text */
};

struct proxy_events {
    void (*chunk)(void *user, const struct usage_chunk *c); /* false content-free ones too */
    void (*done)(void *user);                               /* the stream ended rightly */
    void (*whole)(void *user, const struct usage_whole *w);
    void (*failed)(void *user, const struct proxy_failure *f);
};

struct attempt {
    struct loop *loop;
    struct worker *worker; /* NULL: none at work */
    struct worker_charge charge;
    struct http_call *call; /* NULL: ended */
    struct uuid event;
    unsigned number; /* 1.. */
    enum endpoint endpoint;
    bool stream;     /* asked of the engine as a stream */
    unsigned status; /* 0: no head yet */
    char retry_after[24];
    struct sse_reader sse;
    struct buf body;          /* whole answers and errors */
    struct arena scratch;     /* one chunk's tree */
    struct usage_calls calls; /* tool calls told apart across chunks */
    bool ended, finish_seen, content_seen, in_feed;
    int64_t context;
    enum route_reason reason;
    int64_t predicted_cached;
    const struct proxy_events *events;
    void *user;
};

struct proxy_request {
    struct worker *worker;
    enum endpoint endpoint;
    bool stream;
    struct buf *body; /* engine's JSON; taken over, left empty */
    struct uuid event;
    unsigned number;
    struct prefix_key k0;
    int64_t context;
    size_t answer_bytes_max;
};
/* Callbacks come later, never inside. */
void proxy_start(struct attempt *a, struct loop *l, const struct proxy_request *r,
                 const struct proxy_events *ev, void *user);
void proxy_pause(struct attempt *a);
void proxy_resume(struct attempt *a);
/* Ends it now: closes the connection (engines stop on that); no callback follows. Idempotent. */
void proxy_cancel(struct attempt *a);

#endif
