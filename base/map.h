/* map.h - open-addressing table from a byte string to a pointer, bounded, seeded.
 *
 * Keys are borrowed: they must live as long as their entry. The seed comes from env, so that a
 * client cannot aim at one bucket. Iteration is in insertion order (same seed, same trace). */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include "base/str.h"

struct map_slot;

struct map {
    struct map_slot *slots; /* owned; power of two */
    uint32_t *order;        /* owned; insertion order, slot indexes */
    size_t cap, count, max;
    size_t order_len;
    uint64_t seed;
};

void map_init(struct map *m, uint64_t seed, size_t entries_max);
void map_fini(struct map *m);
void *map_get(const struct map *m, struct str key); /* NULL: absent */
/* Adds, or replaces value and key pointer of an equal key (its place in the order stays). false when
 * the bound is reached or there is no memory: nothing changed. value is not NULL. */
MUST_USE bool map_put(struct map *m, struct str key, void *value);
void *map_del(struct map *m, struct str key); /* the old value, or NULL */
/* it starts at 0; NULL at the end. No change of the map while iterating but map_del of the current.
 * A walk passes the places of deleted entries too (at most cap): it is not a queue. */
/* key may be NULL. */
void *map_next(const struct map *m, size_t *it, struct str *key);

#endif
