/* chunkset.h - how many blocks hold each chunk hash: a bounded multiset of u64. Open addressing,
 * no tombstones. Private to cache/blocks.c. All memory at init. One thread. */
#ifndef CACHE_CHUNKSET_H
#define CACHE_CHUNKSET_H

#include "base/base.h"

struct chunkset_slot {
    uint64_t chunk;
    uint64_t count; /* 0: free */
};

struct chunkset {
    struct chunkset_slot *slots; /* owned; power of two, at most half full */
    size_t mask;
    uint64_t seed;
};

void chunkset_init(struct chunkset *s, size_t chunks_max, uint64_t seed);
void chunkset_fini(struct chunkset *s);
bool chunkset_add(struct chunkset *s, uint64_t chunk);  /* true: it was not there */
bool chunkset_drop(struct chunkset *s, uint64_t chunk); /* true: that was the last; must be there */
uint64_t chunkset_count(const struct chunkset *s, uint64_t chunk);
uint64_t chunkset_sum(const struct chunkset *s); /* of all counts; walks the table */
void chunkset_each(const struct chunkset *s, void (*each)(void *ctx, uint64_t chunk), void *ctx);

#endif
