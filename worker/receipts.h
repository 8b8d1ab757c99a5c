/* receipts.h - what became of each event: the true counts, for a gateway that lost its connection.
 *
 * A ring of the last RECEIPTS_MAX events, running or ended, and an index over it. Memory only: a
 * new process has a new epoch and knows nothing of the old one. */
#ifndef WORKER_RECEIPTS_H
#define WORKER_RECEIPTS_H

#include "base/map.h"
#include "base/uuid.h"

#define RECEIPTS_MAX 65536

enum receipt_state {
    RECEIPT_QUEUED = 1, /* no token computed */
    RECEIPT_RUNNING,
    RECEIPT_STOP,
    RECEIPT_LENGTH,
    RECEIPT_ABORTED,
    RECEIPT_REFUSED, /* nothing was computed for it */
};

struct receipt {
    struct uuid event;
    enum receipt_state state;
    uint32_t prompt, cached, completion; /* tokens; completion: what the answer was made of */
    uint64_t ticket;                     /* the caller's; of a live request */
};

struct receipts; /* owned by the caller */
struct receipts *receipts_new(uint64_t seed);
void receipts_free(struct receipts *r);
/* A new one, the oldest goes. NULL: the event is known already. The pointer is good until
 * RECEIPTS_MAX others came: look it up again instead of keeping it. */
struct receipt *receipts_add(struct receipts *r, struct uuid event);
struct receipt *receipts_find(struct receipts *r, struct uuid event); /* NULL: unknown */
const char *receipt_state_name(enum receipt_state s);
static inline bool receipt_is_live(const struct receipt *r)
{
    return r->state == RECEIPT_QUEUED || r->state == RECEIPT_RUNNING;
}

#endif
