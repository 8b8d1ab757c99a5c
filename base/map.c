/* map.c - linear probing; deletion shifts back instead of leaving tombstones.
 *
 *   slots [cap]   {key, value, hash, place} or value NULL: free
 *   order [cap]   slot of each entry in order of insertion, or ORDER_HOLE where one was deleted
 *
 * order[slots[i].place] == i for every used slot: whoever moves a slot tells order. */
#include "base/map.h"

#include "base/hash.h"

#define MAP_CAP_MIN 8
#define MAP_ENTRIES_MAX ((size_t)1 << 30) /* slot indexes are 32 bits */
#define ORDER_HOLE UINT32_MAX

struct map_slot {
    struct str key; /* borrowed */
    void *value;    /* borrowed; NULL: free */
    uint32_t hash;
    uint32_t place; /* index into order */
};

void map_init(struct map *m, uint64_t seed, size_t entries_max)
{
    CHECK(entries_max <= MAP_ENTRIES_MAX);
    *m = (struct map){.max = entries_max, .seed = seed};
}

void map_fini(struct map *m)
{
    mem_free(m->slots);
    mem_free(m->order);
    *m = (struct map){.max = m->max, .seed = m->seed};
}

/* The slot that holds key, or the free one where it would go. Needs a free slot somewhere. */
static size_t map_find(const struct map *m, struct str key, uint32_t hash)
{
    size_t mask = m->cap - 1;
    size_t i = hash & mask;

    while (m->slots[i].value != NULL &&
           (m->slots[i].hash != hash || !str_eq(m->slots[i].key, key))) {
        i = (i + 1) & mask;
    }
    return i;
}

static uint32_t map_hash(const struct map *m, struct str key)
{
    return (uint32_t)hash_xxh3(key.p, key.n, m->seed);
}

void *map_get(const struct map *m, struct str key)
{
    if (m->count == 0) {
        return NULL;
    }
    return m->slots[map_find(m, key, map_hash(m, key))].value;
}

/* Squeezes the holes out of order. */
static void map_compact_order(struct map *m)
{
    size_t to = 0;

    for (size_t from = 0; from < m->order_len; from++) {
        uint32_t i = m->order[from];

        if (i != ORDER_HOLE) {
            m->slots[i].place = (uint32_t)to;
            m->order[to++] = i;
        }
    }
    m->order_len = to;
}

static void map_place(struct map *m, size_t i, struct map_slot entry)
{
    entry.place = (uint32_t)m->order_len;
    m->slots[i] = entry;
    m->order[m->order_len++] = (uint32_t)i;
}

static bool map_grow(struct map *m)
{
    struct map bigger = *m;

    bigger.cap = m->cap == 0 ? MAP_CAP_MIN : 2 * m->cap;
    bigger.order_len = 0;
    bigger.slots = mem_try(bigger.cap, sizeof(*bigger.slots));
    bigger.order = mem_try(bigger.cap, sizeof(*bigger.order));
    if (bigger.slots == NULL || bigger.order == NULL) {
        mem_free(bigger.slots);
        mem_free(bigger.order);
        return false;
    }
    for (size_t from = 0; from < m->order_len; from++) {
        if (m->order[from] != ORDER_HOLE) {
            struct map_slot entry = m->slots[m->order[from]];

            map_place(&bigger, map_find(&bigger, entry.key, entry.hash), entry);
        }
    }
    mem_free(m->slots);
    mem_free(m->order);
    *m = bigger;
    return true;
}

bool map_put(struct map *m, struct str key, void *value)
{
    uint32_t hash = map_hash(m, key);
    size_t i;

    CHECK(value != NULL);
    if (m->cap != 0) {
        i = map_find(m, key, hash);
        if (m->slots[i].value != NULL) {
            m->slots[i].key = key; /* the old key may die with the old value */
            m->slots[i].value = value;
            return true;
        }
    }
    if (m->count >= m->max) {
        return false;
    }
    if (m->count >= m->cap / 4 * 3 && !map_grow(m)) {
        return false;
    }
    if (m->order_len == m->cap) {
        map_compact_order(m); /* frees a quarter at least: count < 3/4 cap */
    }
    map_place(m, map_find(m, key, hash),
              (struct map_slot){.key = key, .value = value, .hash = hash});
    m->count++;
    return true;
}

/* Closes the gap at `hole`: pulls back each following entry whose home lies at or before it. */
static void map_shift_back(struct map *m, size_t hole)
{
    size_t mask = m->cap - 1;

    for (size_t i = (hole + 1) & mask; m->slots[i].value != NULL; i = (i + 1) & mask) {
        size_t home = m->slots[i].hash & mask;

        if (((i - home) & mask) >= ((i - hole) & mask)) {
            m->slots[hole] = m->slots[i];
            m->order[m->slots[hole].place] = (uint32_t)hole;
            hole = i;
        }
    }
    m->slots[hole] = (struct map_slot){.value = NULL};
}

void *map_del(struct map *m, struct str key)
{
    void *old;
    size_t i;

    if (m->count == 0) {
        return NULL;
    }
    i = map_find(m, key, map_hash(m, key));
    old = m->slots[i].value;
    if (old == NULL) {
        return NULL;
    }
    m->order[m->slots[i].place] = ORDER_HOLE;
    while (m->order_len > 0 && m->order[m->order_len - 1] == ORDER_HOLE) {
        m->order_len--;
    }
    map_shift_back(m, i);
    m->count--;
    return old;
}

void *map_next(const struct map *m, size_t *it, struct str *key)
{
    while (*it < m->order_len) {
        uint32_t i = m->order[(*it)++];

        if (i != ORDER_HOLE) {
            if (key != NULL) {
                *key = m->slots[i].key;
            }
            return m->slots[i].value;
        }
    }
    return NULL;
}
