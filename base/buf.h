/* buf.h - growable bytes, owned by the struct that contains it; always with a maximum.
 *
 *   p[0 .. off) consumed   p[off .. off+len) content   p[off+len .. cap) free
 *
 * A write that would pass `max`, or finds no memory, sets `failed` and changes nothing more: the
 * writer checks once at the end. buf_reset clears it. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include "base/str.h"

struct buf {
    uint8_t *p;  /* owned; NULL until the first write */
    size_t off;  /* consumed bytes at the front */
    size_t len;  /* content bytes */
    size_t cap;  /* allocated bytes; at most max + max / 4 + 64 */
    size_t max;  /* bound of len */
    bool failed; /* sticky */
};

void buf_init(struct buf *b, size_t bytes_max);
void buf_fini(struct buf *b);    /* frees; the struct may be inited again */
void buf_reset(struct buf *b);   /* empties, keeps memory, clears failed */
void buf_release(struct buf *b); /* empties and gives the memory back */
/* Makes n content bytes (n > 0) and `spare` more fit behind the content; false sets failed. */
bool buf_room(struct buf *b, size_t n, size_t spare);
void buf_c(struct buf *b, const char *z);
void buf_u64(struct buf *b, uint64_t v); /* decimal */
void buf_i64(struct buf *b, int64_t v);  /* decimal */
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Room for n more bytes at the end, or NULL (and failed). Then buf_commit(actual <= n). */
uint8_t *buf_reserve(struct buf *b, size_t n);
void buf_commit(struct buf *b, size_t n);
void buf_consume(struct buf *b, size_t n); /* drops n bytes from the front, n <= len */
void buf_truncate(struct buf *b, size_t len);

/* n bytes fit as it is: the way of nearly every write. */
static inline bool buf_fits(const struct buf *b, size_t n)
{
    return b->p != NULL && !b->failed && n <= b->cap - b->off - b->len && n <= b->max - b->len;
}

static inline void buf_append(struct buf *b, const void *p, size_t n)
{
    if (n != 0 && (buf_fits(b, n) || buf_room(b, n, 0))) {
        memcpy(b->p + b->off + b->len, p, n);
        b->len += n;
    }
}

static inline void buf_str(struct buf *b, struct str s)
{
    buf_append(b, s.p, s.n);
}

static inline void buf_byte(struct buf *b, uint8_t c)
{
    if (buf_fits(b, 1) || buf_room(b, 1, 0)) {
        b->p[b->off + b->len++] = c;
    }
}

static inline struct str buf_view(const struct buf *b)
{
    return (struct str){b->p != NULL ? (const char *)b->p + b->off : "", b->len};
}

#endif
