/* client.h - an HTTP/1.1 client on one loop: a bounded pool of kept-alive connections an origin.
 *
 * Requests are whole (head and body in memory); answers stream. Strict: CL + TE, obs-fold, bare CR
 * or LF, 1xx floods end the connection; a connection is pooled again only when its answer ended
 * exactly. Callbacks never run inside http_call_start. A call ends in exactly one of on_end and
 * on_fail, unless cancelled: then neither comes. */
#ifndef BASE_NET_CLIENT_H
#define BASE_NET_CLIENT_H

#include "base/buf.h"
#include "base/env.h"
#include "base/net/http.h"
#include "base/net/tls.h"

struct http_client; /* one a loop */
struct http_origin; /* one place to send to; owned by the client */
struct http_call;

enum http_fail {
    HTTP_FAIL_CONNECT = 1, /* no connection: nothing was sent */
    HTTP_FAIL_SEND,        /* lost while sending, or a kept connection was stale and no byte of an
                            * answer came: the peer may or may not have read the request */
    HTTP_FAIL_HEAD,        /* sent whole, closed or broken before an answer's head was complete */
    HTTP_FAIL_BODY,        /* cut inside the body (shorter than its length, no last chunk) */
    HTTP_FAIL_PROTOCOL,    /* the answer is not HTTP; or, with sent false, a target or field of ours
                            * would have split the request */
    HTTP_FAIL_TIMEOUT,     /* connect, first byte or idle timer */
    HTTP_FAIL_LOCAL, /* no descriptor, port or memory of ours for a connection: nothing was sent,
                      * nothing was learned of the peer */
    HTTP_FAIL_BUSY,  /* all connections in use, and 1,024 calls waiting already or this one has
                      * waited for connect_us */
};

struct http_origin_options {
    struct env_addr addr;
    struct str host;          /* for the Host field, "127.0.0.1:9001"; copied */
    struct tls_context *tls;  /* borrowed; NULL: clear */
    uint32_t connections_max; /* 1,024 */
    uint32_t idle_max;        /* kept alive; 64 */
    uint64_t connect_us;   /* until connected (TLS too); also the wait for a free connection; 2 s */
    uint64_t head_us;      /* request sent to answer head; 0: none */
    uint64_t body_idle_us; /* between body bytes; 0: none */
    uint64_t keep_us;      /* idle life of a kept connection; 30 s */
};

struct http_call_request {
    enum http_method method;
    struct str target;               /* "/v1/chat/completions" */
    const struct http_field *fields; /* beyond Host and Content-Length, which are ours */
    size_t n_fields;
    struct str body;
    struct buf *taken; /* instead of body: its content is taken over, it is left empty; or NULL */
};

struct http_call_events {
    /* fields live until this call returns */
    void (*on_head)(void *user, unsigned status, const struct http_fields *fields);
    void (*on_body)(void *user, const void *p, size_t n);
    void (*on_end)(void *user);
    void (*on_fail)(void *user, enum http_fail why, bool sent); /* sent: any request byte left us */
};

struct http_client *http_client_new(struct env *env);
void http_client_free(
    struct http_client *c); /* cancels all calls; never from a callback of a call */
struct http_origin *http_origin_new(struct http_client *c, const struct http_origin_options *o);
void http_origin_close(struct http_origin *o); /* cancels its calls */
uint32_t http_origin_connections(const struct http_origin *o);

/* Everything in `r` is copied, but `taken`. */
struct http_call *http_call_start(struct http_origin *o, const struct http_call_request *r,
                                  const struct http_call_events *ev, void *user);
/* Stops reading (and so the peer) until resumed: back-pressure. Idle timers rest while paused. */
void http_call_pause(struct http_call *c);
void http_call_resume(struct http_call *c);
/* Ends the call now, closing its connection; no callback follows. Never after on_end/on_fail. */
void http_call_cancel(struct http_call *c);

#endif
