/* buf.c - growable bytes. One function makes room; every write goes through it. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>

#define BUF_CAP_MIN 64

void buf_init(struct buf *b, size_t bytes_max)
{
    CHECK(bytes_max <= SIZE_MAX / 4);
    *b = (struct buf){.max = bytes_max};
}

void buf_fini(struct buf *b)
{
    mem_free(b->p);
    *b = (struct buf){.max = b->max};
}

void buf_reset(struct buf *b)
{
    b->off = 0;
    b->len = 0;
    b->failed = false;
}

void buf_release(struct buf *b)
{
    buf_fini(b);
}

/* The most that is ever allocated. With a quarter more than max, a full buffer has consumed at
 * least len / 4 bytes before it must be moved: four bytes moved for each consumed one at most. */
static size_t buf_cap_max(const struct buf *b)
{
    return b->max + b->max / 4 + BUF_CAP_MIN;
}

static bool buf_grow(struct buf *b, size_t need)
{
    size_t cap = size_min(size_max(size_max(2 * b->cap, need), BUF_CAP_MIN), buf_cap_max(b));
    uint8_t *p;

    CHECK(need <= cap);
    p = mem_resize(b->p, cap);
    if (p == NULL) {
        return false;
    }
    b->p = p;
    b->cap = cap;
    return true;
}

bool buf_room(struct buf *b, size_t n, size_t spare)
{
    if (b->failed) {
        return false;
    }
    if (n > b->max - b->len) {
        b->failed = true;
        return false;
    }
    if (b->p != NULL && n + spare <= b->cap - b->off - b->len) {
        return true;
    }
    if (b->off > 0 && b->off >= b->len / 4) {
        memmove(b->p, b->p + b->off, b->len);
        b->off = 0;
        if (n + spare <= b->cap - b->len) {
            return true;
        }
    }
    if (!buf_grow(b, b->off + b->len + n + spare)) {
        b->failed = true;
        return false;
    }
    return true;
}

void buf_c(struct buf *b, const char *z)
{
    buf_append(b, z, strlen(z));
}

void buf_u64(struct buf *b, uint64_t v)
{
    char digits[20]; /* 2^64 - 1 has 20 */
    size_t at = sizeof(digits);

    do {
        digits[--at] = (char)('0' + v % 10);
        v /= 10;
    } while (v != 0);
    buf_append(b, digits + at, sizeof(digits) - at);
}

void buf_i64(struct buf *b, int64_t v)
{
    /* Sign and digits go in together, so that a full buffer never ends in a lone '-'. */
    char text[21];
    size_t at = sizeof(text);
    uint64_t magnitude = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;

    do {
        text[--at] = (char)('0' + magnitude % 10);
        magnitude /= 10;
    } while (magnitude != 0);
    if (v < 0) {
        text[--at] = '-';
    }
    buf_append(b, text + at, sizeof(text) - at);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    char *end = b->p != NULL ? (char *)b->p + b->off + b->len : NULL;
    size_t room = b->cap - b->off - b->len;
    va_list args;
    int n;

    if (b->failed) {
        return;
    }
    va_start(args, fmt);
    n = vsnprintf(end, room, fmt, args);
    va_end(args);
    if (n < 0) {
        b->failed = true;
        return;
    }
    if ((size_t)n >= room) { /* did not fit with its NUL: now the size is known */
        if (!buf_room(b, (size_t)n, 1)) {
            return;
        }
        va_start(args, fmt);
        n = vsnprintf((char *)b->p + b->off + b->len, (size_t)n + 1, fmt, args);
        va_end(args);
        CHECK(n >= 0);
    } else if (!buf_room(b, (size_t)n, 0)) {
        return;
    }
    b->len += (size_t)n;
}

uint8_t *buf_reserve(struct buf *b, size_t n)
{
    return buf_room(b, n, 0) ? b->p + b->off + b->len : NULL;
}

void buf_commit(struct buf *b, size_t n)
{
    CHECK(n <= b->cap - b->off - b->len && n <= b->max - b->len);
    b->len += n;
}

void buf_consume(struct buf *b, size_t n)
{
    CHECK(n <= b->len);
    b->len -= n;
    b->off = b->len != 0 ? b->off + n : 0;
}

void buf_truncate(struct buf *b, size_t len)
{
    CHECK(len <= b->len);
    b->len = len;
}
