/* blocks.h - the worker's KV block table: who uses a block, which are cached, which chunk hashes
 * end in them. Knows token ids and hashes; never where the KV bytes lie.
 *
 * A block holds BLOCK_TOKENS tokens. A block is free, referenced (refs > 0), or cached-idle (in the
 * index, refs 0, in the LRU). free + referenced + cached_idle == total after every call.
 * A hit needs equal token ids, equal parent block and equal salt (the hash only finds the place:
 * XXH3-128 chain, secret seed). Lookup pins (refs + 1) in the same call. A block enters the index
 * only by blocks_publish, after its step finished. LRU by leaf: a parent is never evicted before
 * its cached children. Guarded by tests/unit/test_blocks. One thread (the engine's). */
#ifndef CACHE_BLOCKS_H
#define CACHE_BLOCKS_H

#include "base/base.h"
#include "base/err.h"
#include "base/hash.h"
#include "cache/prefix.h"

#define BLOCK_TOKENS 32
#define BLOCK_CHUNKS_MAX 16 /* chunk hashes bound to one block; 32 tokens seldom cover more */
#define BLOCK_NONE UINT32_MAX

struct blocks; /* opaque; all memory allocated at _new */

/* Receives what the set of chunk hashes gained or lost (reference counted per hash). */
struct blocks_events {
    void (*stored)(void *ctx, uint64_t chunk);
    void (*removed)(void *ctx, uint64_t chunk);
    void *ctx;
};

/* root: what KV bytes depend on beside ids and salt (dtype, policy, model): the parent of every
 * first block, so that no hash of one root equals one of another. */
struct blocks *blocks_new(uint32_t total, uint64_t seed, struct hash128 root,
                          struct blocks_events events);
void blocks_free(struct blocks *b);

/* Longest cached prefix of ids under salt: fills table[] (capacity (n_ids + 31) / 32), pins each,
 * returns the number of whole blocks. Capped so that at least one token of ids stays uncached. */
uint32_t blocks_match(struct blocks *b, struct prefix_key salt, const int32_t *ids, uint32_t n_ids,
                      uint32_t *table);
/* A fresh block with refs 1 (evicts the coldest idle leaf if none is free); BLOCK_NONE: all in use.
 */
uint32_t blocks_take(struct blocks *b);
/* Enters a full block after its step. parent: block before it in the sequence or BLOCK_NONE.
 * If an equal block is cached already, nothing is entered and the caller keeps its own copy. */
void blocks_publish(struct blocks *b, struct prefix_key salt, uint32_t block, uint32_t parent,
                    const int32_t ids[BLOCK_TOKENS], const uint64_t *chunks, uint32_t n_chunks);
/* refs - 1; release in reverse order of the sequence so that tails go first. */
void blocks_release(struct blocks *b, uint32_t block);
void blocks_clear(struct blocks *b); /* drops all cached-idle blocks (events: removed) */

struct blocks_count {
    uint32_t total, free, referenced, cached_idle;
    uint64_t hits, lookups; /* in blocks */
};
struct blocks_count blocks_count(const struct blocks *b);
/* Blocks that blocks_take could still give: free + cached_idle. */
uint32_t blocks_available(const struct blocks *b);
/* Of a published block; zero of any other. Equal hashes mean equal KV bytes, whoever computed them.
 */
struct hash128 blocks_hash(const struct blocks *b, uint32_t block);
/* All chunk hashes now held, for a snapshot: calls each once. */
void blocks_each_chunk(const struct blocks *b, void (*each)(void *ctx, uint64_t chunk), void *ctx);
void blocks_check(const struct blocks *b); /* CHECKs every invariant; tests and debug builds */

#endif
