/* ring.h - a bounded queue of fixed-size items between exactly two threads: one pushes, one pops.
 */
#ifndef WORKER_RING_H
#define WORKER_RING_H

#include "base/base.h"

#include <stdatomic.h>

struct ring {
    uint8_t *items;         /* owned; [cap][item_bytes] */
    size_t item_bytes, cap; /* cap is a power of two */
    _Atomic size_t head;    /* next to pop; written by the popping thread only */
    _Atomic size_t tail;    /* next to push; written by the pushing thread only */
};

static inline void ring_init(struct ring *r, size_t item_bytes, size_t items_min)
{
    memset(r, 0, sizeof(*r));
    r->item_bytes = item_bytes;
    for (r->cap = 16; r->cap < items_min; r->cap *= 2) {
    }
    r->items = mem_new(r->cap * item_bytes);
}

static inline void ring_fini(struct ring *r)
{
    mem_free(r->items);
}

/* false: full. */
MUST_USE static inline bool ring_push(struct ring *r, const void *item)
{
    size_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);

    if (tail - atomic_load_explicit(&r->head, memory_order_acquire) == r->cap) {
        return false;
    }
    memcpy(r->items + (tail & (r->cap - 1)) * r->item_bytes, item, r->item_bytes);
    atomic_store_explicit(&r->tail, tail + 1, memory_order_release);
    return true;
}

/* false: empty. */
MUST_USE static inline bool ring_pop(struct ring *r, void *item)
{
    size_t head = atomic_load_explicit(&r->head, memory_order_relaxed);

    if (head == atomic_load_explicit(&r->tail, memory_order_acquire)) {
        return false;
    }
    memcpy(item, r->items + (head & (r->cap - 1)) * r->item_bytes, r->item_bytes);
    atomic_store_explicit(&r->head, head + 1, memory_order_release);
    return true;
}

/* For the popping thread. */
static inline bool ring_is_empty(struct ring *r)
{
    return atomic_load_explicit(&r->head, memory_order_relaxed) ==
           atomic_load_explicit(&r->tail, memory_order_acquire);
}

#endif
