/* chunkset.c - a multiset of chunk hashes. Deletion moves later entries of the run back, so a table
 * that lives for months never fills up with marks of what was. */
#include "cache/chunkset.h"

void chunkset_init(struct chunkset *s, size_t chunks_max, uint64_t seed)
{
    size_t cap = 16;

    while (cap < chunks_max * 2) {
        cap *= 2;
    }
    s->slots = mem_new(cap * sizeof(*s->slots));
    s->mask = cap - 1;
    s->seed = seed;
}

void chunkset_fini(struct chunkset *s)
{
    mem_free(s->slots);
    s->slots = NULL;
}

/* Where the chunk would like to be. Chunk hashes are seeded; this keeps chosen ones apart too. */
static size_t home(const struct chunkset *s, uint64_t chunk)
{
    uint64_t h = (chunk ^ s->seed) * 0x9E3779B97F4A7C15ULL;

    return (size_t)(h ^ h >> 32) & s->mask;
}

static size_t slot_of(const struct chunkset *s, uint64_t chunk)
{
    size_t i = home(s, chunk);

    while (s->slots[i].count != 0 && s->slots[i].chunk != chunk) {
        i = (i + 1) & s->mask;
    }
    return i;
}

bool chunkset_add(struct chunkset *s, uint64_t chunk)
{
    struct chunkset_slot *slot = &s->slots[slot_of(s, chunk)];

    slot->chunk = chunk;
    return slot->count++ == 0;
}

bool chunkset_drop(struct chunkset *s, uint64_t chunk)
{
    size_t hole = slot_of(s, chunk);

    CHECK(s->slots[hole].count > 0);
    if (--s->slots[hole].count > 0) {
        return false;
    }
    for (size_t i = (hole + 1) & s->mask; s->slots[i].count != 0; i = (i + 1) & s->mask) {
        /* An entry may fill the hole unless its home lies after the hole, on the way to it. */
        if (((i - home(s, s->slots[i].chunk)) & s->mask) >= ((i - hole) & s->mask)) {
            s->slots[hole] = s->slots[i];
            s->slots[i].count = 0;
            hole = i;
        }
    }
    return true;
}

uint64_t chunkset_count(const struct chunkset *s, uint64_t chunk)
{
    return s->slots[slot_of(s, chunk)].count;
}

uint64_t chunkset_sum(const struct chunkset *s)
{
    uint64_t sum = 0;

    for (size_t i = 0; i <= s->mask; i++) {
        sum += s->slots[i].count;
    }
    return sum;
}

void chunkset_each(const struct chunkset *s, void (*each)(void *ctx, uint64_t chunk), void *ctx)
{
    for (size_t i = 0; i <= s->mask; i++) {
        if (s->slots[i].count != 0) {
            each(ctx, s->slots[i].chunk);
        }
    }
}
