/* arena.c - a chain of blocks; only the newest is cut from. */
#include "base/arena.h"

#if defined(__has_include)
#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#endif
#endif
#ifndef ASAN_POISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

#define ARENA_ALIGN 16
#define ARENA_BLOCK_MIN ((size_t)4 << 10)
#define ARENA_BLOCK_MAX ((size_t)256 << 10)
#define ARENA_CACHE_BLOCKS_MAX 128 /* of 4 and of 8 KiB; half of that at each size beyond */
/* Poisoned bytes behind each piece, so that a write past its end is seen. */
#ifdef __SANITIZE_ADDRESS__
#define ARENA_GAP 16
#else
#define ARENA_GAP 0
#endif

/* [header 32][size bytes: used | free and poisoned] */
struct arena_block {
    struct arena_block *next; /* owned */
    size_t size;              /* bytes behind the header */
    size_t used;              /* multiple of ARENA_ALIGN */
    size_t step;              /* bytes of the last block of the ladder, 0: none yet */
};
_Static_assert(sizeof(struct arena_block) % ARENA_ALIGN == 0, "pieces start aligned");

void arena_init(struct arena *a, size_t bytes_max)
{
    CHECK(bytes_max <= SIZE_MAX / 4);
    *a = (struct arena){.max = bytes_max};
}

void arena_init_cached(struct arena *a, size_t bytes_max, struct arena_cache *cache)
{
    arena_init(a, bytes_max);
    a->cache = cache;
}

static void block_free(struct arena_block *block)
{
    ASAN_UNPOISON_MEMORY_REGION(block + 1, block->size);
    mem_free(block);
}

/* Which of the cache's sizes this is: -1 none. */
static int cache_class(size_t size)
{
    for (int i = 0; i < ARENA_CACHE_SIZES; i++) {
        if (size == (ARENA_BLOCK_MIN << i) - sizeof(struct arena_block)) {
            return i;
        }
    }
    return -1;
}

/* 512 KiB, 1 MiB, 1 MiB, 1 MiB: about what one busy turn uses. */
static unsigned cache_room(int class)
{
    return class < 2 ? ARENA_CACHE_BLOCKS_MAX : ARENA_CACHE_BLOCKS_MAX >> (class - 1);
}

/* Empty and poisoned, as block_new gives it. */
static void block_clear(struct arena_block *block)
{
    ASAN_POISON_MEMORY_REGION(block + 1, block->size);
    block->used = 0;
}

static void block_drop(struct arena *a, struct arena_block *block)
{
    int class = a->cache != NULL ? cache_class(block->size) : -1;

    if (class < 0 || a->cache->count[class] == cache_room(class)) {
        block_free(block);
        return;
    }
    block_clear(block);
    block->next = a->cache->kept[class];
    a->cache->kept[class] = block;
    a->cache->count[class]++;
}

void arena_fini(struct arena *a)
{
    while (a->head != NULL) {
        struct arena_block *block = a->head;

        a->head = block->next;
        block_drop(a, block);
    }
    *a = (struct arena){.max = a->max, .cache = a->cache};
}

void arena_cache_fini(struct arena_cache *cache)
{
    for (size_t i = 0; i < ARRAY_LEN(cache->kept); i++) {
        while (cache->kept[i] != NULL) {
            struct arena_block *block = cache->kept[i];

            cache->kept[i] = block->next;
            block_free(block);
        }
    }
    *cache = (struct arena_cache){0};
}

/* The oldest block of the ladder is the last of the chain, unless a larger piece got its own before
 * it: that one is not worth keeping. */
void arena_reset(struct arena *a)
{
    struct arena_block *keep;

    while (a->head != NULL && a->head->next != NULL) {
        struct arena_block *block = a->head;

        a->head = block->next;
        block_drop(a, block);
    }
    keep = a->head;
    if (keep == NULL || keep->size != ARENA_BLOCK_MIN - sizeof(*keep)) {
        arena_fini(a);
        return;
    }
    block_clear(keep);
    a->used = 0;
}

static struct arena_block *cache_take(struct arena_cache *cache, size_t size)
{
    int class = cache != NULL ? cache_class(size) : -1;
    struct arena_block *block = class >= 0 ? cache->kept[class] : NULL;

    if (block != NULL) {
        cache->kept[class] = block->next;
        cache->count[class]--;
        block->next = NULL;
    }
    return block;
}

static struct arena_block *block_new(const struct arena *a, size_t size, size_t step)
{
    struct arena_block *block = cache_take(a->cache, size);

    if (block != NULL) {
        block->step = step;
        return block;
    }
    block = mem_resize(NULL, sizeof(*block) + size);
    if (block != NULL) {
        *block = (struct arena_block){.size = size, .step = step};
        ASAN_POISON_MEMORY_REGION(block + 1, size);
    }
    return block;
}

/* A block with room for `need` bytes. A piece larger than the next block of the ladder gets a
 * block of its own behind the head, so that the head's free room stays in use. */
static struct arena_block *arena_block_for(struct arena *a, size_t need)
{
    struct arena_block *head = a->head, *block;
    size_t last = head != NULL ? head->step : 0;
    size_t step = last == 0 ? ARENA_BLOCK_MIN : size_min(2 * last, ARENA_BLOCK_MAX);
    bool alone = need > step - sizeof(*block);

    if (head != NULL && need <= head->size - head->used) {
        return head;
    }
    block = alone ? block_new(a, need, last) : block_new(a, step - sizeof(*block), step);
    if (block == NULL) {
        return NULL;
    }
    if (alone && head != NULL) {
        block->next = head->next;
        head->next = block;
    } else {
        block->next = head;
        a->head = block;
    }
    return block;
}

void *arena_alloc_dirty(struct arena *a, size_t n)
{
    struct arena_block *block;
    size_t size;
    uint8_t *p;

    if (n > a->max) {
        return NULL;
    }
    size = (size_max(n, 1) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (size > a->max - a->used) {
        return NULL;
    }
    block = arena_block_for(a, size + ARENA_GAP);
    if (block == NULL) {
        return NULL;
    }
    p = (uint8_t *)(block + 1) + block->used;
    block->used += size + ARENA_GAP;
    a->used += size;
    ASAN_UNPOISON_MEMORY_REGION(p, n);
    return p;
}

void *arena_alloc(struct arena *a, size_t n)
{
    void *p = arena_alloc_dirty(a, n);

    return p != NULL ? memset(p, 0, n) : NULL;
}

void *arena_array(struct arena *a, size_t count, size_t size)
{
    size_t n;

    if (__builtin_mul_overflow(count, size, &n)) {
        return NULL;
    }
    return arena_alloc(a, n);
}

struct str arena_str(struct arena *a, struct str s)
{
    char *p = s.n < SIZE_MAX ? arena_alloc_dirty(a, s.n + 1) : NULL;

    if (p == NULL) {
        return (struct str){NULL, 0};
    }
    if (s.n != 0) {
        memcpy(p, s.p, s.n);
    }
    p[s.n] = '\0';
    return str_of(p, s.n);
}
