/* base.c - the two ways memory is asked for, and the end of a failed CHECK. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void base_check_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, what);
    fflush(stderr);
    abort();
}

void *mem_new(size_t bytes)
{
    void *p = calloc(1, size_max(bytes, 1));

    if (p == NULL) {
        fprintf(stderr, "out of memory: %zu bytes\n", bytes);
        abort();
    }
    return p;
}

void *mem_try(size_t count, size_t bytes)
{
    size_t sum;

    if (__builtin_mul_overflow(count, bytes, &sum)) {
        return NULL;
    }
    return calloc(1, size_max(sum, 1));
}

void *mem_resize(void *p, size_t bytes)
{
    /* realloc(p, 0) may free p: one byte at least keeps "NULL leaves the old one" true. */
    return realloc(p, size_max(bytes, 1));
}

void mem_free(void *p)
{
    free(p);
}
