/* h1_chunk.c - chunked bodies of HTTP/1.1: one state a position in the framing, data passed through
 * as slices of the input. */
#include "base/net/h1_impl.h"

/* 15 digits hold 2^60 - 1; more would be a way to pad or to overflow. */
#define CHUNK_DIGITS_MAX 15
/* Extensions are dropped, so they only cost us: one line's, and one body's (as CVE-2023-39326). */
#define EXTENSION_LINE_MAX 1024
#define EXTENSION_BYTES_MAX 16384

enum chunk_state {
    CHUNK_SIZE = 1,  /* hex digits */
    CHUNK_EXTENSION, /* behind ';' */
    CHUNK_SIZE_LF,   /* CR seen */
    CHUNK_DATA,      /* `left` bytes */
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER, /* a trailer line, or the empty line, begins */
    CHUNK_TRAILER_NAME,
    CHUNK_TRAILER_VALUE,
    CHUNK_TRAILER_LF,
    CHUNK_END_LF, /* CR of the empty line seen */
    CHUNK_DONE,
};

void h1_chunked_init(struct h1_chunked *d, const struct h1_limits *lim)
{
    *d = (struct h1_chunked){.state = CHUNK_SIZE, .limits = *lim};
}

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static enum h1_result chunk_size_byte(struct h1_chunked *d, uint8_t c, struct h1_fault *f)
{
    int digit = hex_digit(c);

    if (digit >= 0) {
        d->left = d->left * 16 + (unsigned)digit;
        return ++d->line_bytes <= CHUNK_DIGITS_MAX ? H1_MORE
                                                   : h1_bad(f, 400, "chunk size too long");
    }
    if (d->line_bytes == 0) {
        return h1_bad(f, 400, "chunk without a size");
    }
    if (c != '\r' && c != ';') {
        return h1_bad(f, 400, "bad chunk size");
    }
    d->line_bytes = 0;
    d->state = c == ';' ? CHUNK_EXTENSION : CHUNK_SIZE_LF;
    return H1_MORE;
}

static enum h1_result chunk_extension_byte(struct h1_chunked *d, uint8_t c, struct h1_fault *f)
{
    if (c == '\r') {
        d->state = CHUNK_SIZE_LF;
        return H1_MORE;
    }
    if (!h1_is_text(c)) {
        return h1_bad(f, 400, "control character in a chunk extension");
    }
    d->line_bytes++;
    d->extension_bytes++;
    if (d->line_bytes > EXTENSION_LINE_MAX || d->extension_bytes > EXTENSION_BYTES_MAX) {
        return h1_bad(f, 400, "chunk extensions too large");
    }
    return H1_MORE;
}

/* The name is complete. Framing must not change behind the body. */
static enum h1_result chunk_trailer_named(struct h1_chunked *d, struct h1_fault *f)
{
    struct str name = str_of(d->name, d->name_n);

    if (name.n == 0) {
        return h1_bad(f, 400, "bad trailer name");
    }
    if (str_ieq(name, STR("content-length")) || str_ieq(name, STR("transfer-encoding")) ||
        str_ieq(name, STR("host"))) {
        return h1_bad(f, 400, "framing field in the trailers");
    }
    d->state = CHUNK_TRAILER_VALUE;
    return H1_MORE;
}

static enum h1_result chunk_trailer_byte(struct h1_chunked *d, uint8_t c, struct h1_fault *f)
{
    if (++d->trailer_bytes > d->limits.header_bytes_max) {
        return h1_bad(f, 431, "trailers too large");
    }
    if (d->state == CHUNK_TRAILER_VALUE) {
        if (c == '\r') {
            d->state = CHUNK_TRAILER_LF;
        } else if (!h1_is_text(c)) {
            return h1_bad(f, 400, "control character in a trailer");
        }
        return H1_MORE;
    }
    if (c == ':') {
        return chunk_trailer_named(d, f);
    }
    if (!h1_is_tchar(c)) {
        return h1_bad(f, 400, "bad trailer name");
    }
    if (d->name_n < sizeof(d->name)) {
        d->name[d->name_n++] = (char)c;
    }
    return H1_MORE;
}

static enum h1_result chunk_trailer_start(struct h1_chunked *d, uint8_t c, struct h1_fault *f)
{
    if (c == '\r') {
        d->state = CHUNK_END_LF;
        return H1_MORE;
    }
    if (d->trailers++ >= d->limits.header_count_max) {
        return h1_bad(f, 431, "too many trailers");
    }
    d->name_n = 0;
    d->state = CHUNK_TRAILER_NAME;
    return chunk_trailer_byte(d, c, f);
}

/* A byte that the framing fixes. */
static enum h1_result chunk_expect(struct h1_chunked *d, uint8_t c, uint8_t wanted,
                                   enum chunk_state next, struct h1_fault *f)
{
    if (c != wanted) {
        return h1_bad(f, 400,
                      wanted == '\n' ? "bare CR in the chunks" : "chunk longer than its size");
    }
    d->state = (uint8_t)next;
    return next == CHUNK_DONE ? H1_OK : H1_MORE;
}

/* Every state but DATA. H1_OK: that was the last byte of the body. */
static enum h1_result chunk_byte(struct h1_chunked *d, uint8_t c, struct h1_fault *f)
{
    switch ((enum chunk_state)d->state) {
    case CHUNK_SIZE:
        return chunk_size_byte(d, c, f);
    case CHUNK_EXTENSION:
        return chunk_extension_byte(d, c, f);
    case CHUNK_SIZE_LF:
        d->line_bytes = 0;
        return chunk_expect(d, c, '\n', d->left != 0 ? CHUNK_DATA : CHUNK_TRAILER, f);
    case CHUNK_DATA_CR:
        return chunk_expect(d, c, '\r', CHUNK_DATA_LF, f);
    case CHUNK_DATA_LF:
        return chunk_expect(d, c, '\n', CHUNK_SIZE, f);
    case CHUNK_TRAILER:
        return chunk_trailer_start(d, c, f);
    case CHUNK_TRAILER_NAME:
    case CHUNK_TRAILER_VALUE:
        return chunk_trailer_byte(d, c, f);
    case CHUNK_TRAILER_LF:
        return chunk_expect(d, c, '\n', CHUNK_TRAILER, f);
    case CHUNK_END_LF:
        return chunk_expect(d, c, '\n', CHUNK_DONE, f);
    case CHUNK_DATA:
    case CHUNK_DONE:
        break;
    }
    CHECK(false && "a chunk state without bytes of its own");
    return H1_BAD;
}

enum h1_result h1_chunked_next(struct h1_chunked *d, struct str in, size_t *used, struct str *data,
                               struct h1_fault *fault)
{
    *used = 0;
    *data = str_of(in.p, 0);
    CHECK(d->state != CHUNK_DONE);
    while (*used < in.n) {
        enum h1_result got;

        if (d->state == CHUNK_DATA) {
            *data = str_of(in.p + *used, (size_t)u64_min(d->left, in.n - *used));
            *used += data->n;
            d->left -= data->n;
            if (d->left == 0) {
                d->state = CHUNK_DATA_CR;
            }
            return H1_MORE;
        }
        got = chunk_byte(d, (uint8_t)in.p[(*used)++], fault);
        if (got != H1_MORE) {
            return got;
        }
    }
    return H1_MORE;
}

size_t h1_chunk_head(size_t data_bytes, char out[H1_CHUNK_HEAD_MAX])
{
    static const char digits[] = "0123456789abcdef";
    char text[16];
    size_t at = sizeof(text), n;

    do {
        text[--at] = digits[data_bytes % 16];
        data_bytes /= 16;
    } while (data_bytes != 0);
    n = sizeof(text) - at;
    memcpy(out, text + at, n);
    memcpy(out + n, "\r\n", 2);
    return n + 2;
}
