/* base.h - the words every other file uses: CHECK, MUST_USE, sizes, memory that must be there.
 *
 * Pure: no sockets, no clock, no HTTP, no model words. */
#ifndef BASE_BASE_H
#define BASE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, first) __attribute__((format(printf, fmt, first)))
#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))

/* An assertion of our own: alive in release, prints what failed, then aborts. Never for input. */
#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (__builtin_expect(!(x), 0)) {                                                           \
            base_check_failed(#x, __FILE__, __LINE__);                                             \
        }                                                                                          \
    } while (0)
_Noreturn void base_check_failed(const char *what, const char *file, int line);

/* Memory for sizes that we choose: dies with a message when there is none. Zeroed. End: mem_free. */
void *mem_new(size_t bytes);
/* Memory for sizes that input chooses: NULL when there is none or count * bytes overflows. Zeroed. */
void *mem_try(size_t count, size_t bytes);
/* Resizes a block of mem_new/mem_try; NULL leaves the old one. New bytes are not zeroed. */
void *mem_resize(void *p, size_t bytes);
void mem_free(void *p); /* NULL is fine */

static inline size_t size_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t size_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

static inline uint64_t u64_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t u64_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
