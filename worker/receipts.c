/* receipts.c - a ring and a map whose keys lie in the ring. */
#include "worker/receipts.h"

struct receipts {
    struct map index; /* event -> struct receipt */
    size_t next;      /* place of the next one; its old content is the oldest */
    struct receipt ring[RECEIPTS_MAX];
};

struct receipts *receipts_new(uint64_t seed)
{
    struct receipts *r = mem_new(sizeof(*r));

    map_init(&r->index, seed, RECEIPTS_MAX);
    return r;
}

void receipts_free(struct receipts *r)
{
    if (r != NULL) {
        map_fini(&r->index);
        mem_free(r);
    }
}

static struct str key_of(const struct uuid *u)
{
    return str_of(u->b, sizeof(u->b));
}

struct receipt *receipts_find(struct receipts *r, struct uuid event)
{
    return map_get(&r->index, key_of(&event));
}

struct receipt *receipts_add(struct receipts *r, struct uuid event)
{
    struct receipt *slot = &r->ring[r->next];

    if (receipts_find(r, event) != NULL) {
        return NULL;
    }
    if (slot->state != 0) {
        map_del(&r->index, key_of(&slot->event));
    }
    memset(slot, 0, sizeof(*slot));
    slot->event = event;
    if (!map_put(&r->index, key_of(&slot->event), slot)) {
        return NULL; /* no memory: as good as unknown */
    }
    slot->state = RECEIPT_QUEUED;
    r->next = (r->next + 1) % RECEIPTS_MAX;
    return slot;
}

const char *receipt_state_name(enum receipt_state s)
{
    static const char *const names[] = {
        [RECEIPT_QUEUED] = "queued", [RECEIPT_RUNNING] = "running", [RECEIPT_STOP] = "stop",
        [RECEIPT_LENGTH] = "length", [RECEIPT_ABORTED] = "aborted", [RECEIPT_REFUSED] = "refused",
    };

    return names[s];
}
