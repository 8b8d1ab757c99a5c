/* receipt.h - our worker's own count of one attempt: POST /abort/{event}, which also stops it.
 *
 * Asked by a request whose stream ended before its last word, and after a restart for what the last
 * life left open. One answer, later, unless dropped. */
#ifndef GATEWAY_RECEIPT_H
#define GATEWAY_RECEIPT_H

#include "base/buf.h"
#include "base/net/client.h"
#include "base/uuid.h"

#define RECEIPT_US 2000000 /* a living worker answers in a millisecond */
/* A worker that does not know the attempt may still have it in a socket that it has not read yet
 * (we died, or gave up, right after sending it): it is asked again for so long. */
#define RECEIPT_UNKNOWN_US 400000

struct receipt_count {
    int64_t prompt, cached, completion;
};

struct receipt {
    struct env *env;
    bool asking;                /* until done or dropped */
    struct http_origin *origin; /* borrowed */
    struct str worker_key;      /* borrowed */
    struct uuid event;
    uint64_t until_us;
    struct http_call *call; /* NULL: none under way */
    struct buf body;
    unsigned status;
    struct env_timer timer;
    /* count NULL: the worker does not say. Set by the owner. */
    void (*done)(struct receipt *r, const struct receipt_count *count);
};

/* The origin is one of our workers'; it and the key stay until the answer. */
void receipt_ask(struct receipt *r, struct env *env, struct http_origin *origin,
                 struct str worker_key, struct uuid event);
/* No answer will come. Idempotent; fine on a zeroed one. */
void receipt_drop(struct receipt *r);

#endif
