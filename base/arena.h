/* arena.h - memory of one request: allocated piece by piece, dropped whole. Not thread-safe.
 *
 * Unused memory is poisoned under the address sanitizer. Allocation returns NULL once the sum
 * would pass bytes_max. Blocks grow 4 KiB, 8 KiB ... 256 KiB; larger pieces get their own block.
 * Pieces are zeroed when they are handed out, so blocks need no clearing. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/str.h"

struct arena_block;

#define ARENA_CACHE_SIZES 4 /* blocks of 4, 8, 16 and 32 KiB */

/* Small blocks kept for the next arenas of one thread: an arena that lives as short as a request
 * then costs no malloc. Bounded; zero at first; ended by arena_cache_fini. */
struct arena_cache {
    struct arena_block *kept[ARENA_CACHE_SIZES]; /* owned chains, by size */
    unsigned count[ARENA_CACHE_SIZES];
};

struct arena {
    struct arena_block *head;  /* owned chain, newest first */
    size_t used;               /* bytes handed out, each piece rounded up to 16 */
    size_t max;                /* bound of used */
    struct arena_cache *cache; /* borrowed; NULL: none */
};

void arena_init(struct arena *a, size_t bytes_max);
/* The cache outlives the arena. */
void arena_init_cached(struct arena *a, size_t bytes_max, struct arena_cache *cache);
void arena_cache_fini(struct arena_cache *cache);
void arena_fini(struct arena *a);
/* Drops everything but keeps the first block: for memory that is used again and again. */
void arena_reset(struct arena *a);
/* Zeroed, aligned to 16; NULL past the bound. */
void *arena_alloc(struct arena *a, size_t n);
/* The same with bytes as they come: for those that write every byte before they read it. */
void *arena_alloc_dirty(struct arena *a, size_t n);
void *arena_array(struct arena *a, size_t count, size_t size); /* NULL on overflow too */
/* A copy with a NUL after it; {NULL, 0} past the bound. */
struct str arena_str(struct arena *a, struct str s);

#endif
