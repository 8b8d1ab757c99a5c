/* encoding.c - the one door to zlib and zstd: streaming decoders that cannot be made to grow. */
#include "base/net/encoding.h"

#include <zlib.h>
#include <zstd.h>

#define STEP_BYTES 16384
/* JSON compresses 5 to 20 fold; deflate can reach 1,032, zstd far more. */
#define RATIO_MAX 200
#define RATIO_FREE_BYTES ((uint64_t)1 << 20)
/* 8 MiB, what RFC 9659 lets an HTTP sender use; it bounds the decoder's memory. */
#define ZSTD_WINDOW_LOG 23
#define GZIP_WINDOW_BITS (15 + 16) /* gzip wrapper only, no raw or zlib streams */

struct decoder {
    enum encoding encoding;
    z_stream gzip;
    ZSTD_DStream *zstd; /* owned */
    uint64_t in_bytes, out_bytes;
    bool whole; /* the input so far ends with a member's (a frame's) end */
};

enum encoding encoding_named(struct str content_encoding)
{
    struct str name = str_trim(content_encoding);

    if (name.n == 0 || str_ieq(name, STR("identity"))) {
        return ENCODING_IDENTITY;
    }
    if (str_ieq(name, STR("gzip")) || str_ieq(name, STR("x-gzip"))) { /* RFC 9110 section 8.4.1.3 */
        return ENCODING_GZIP;
    }
    return str_ieq(name, STR("zstd")) ? ENCODING_ZSTD : ENCODING_UNKNOWN;
}

struct decoder *decoder_new(enum encoding e)
{
    struct decoder *d = mem_try(1, sizeof(*d));
    bool ok = false;

    CHECK(e == ENCODING_GZIP || e == ENCODING_ZSTD);
    if (d == NULL) {
        return NULL;
    }
    d->encoding = e;
    if (e == ENCODING_GZIP) {
        ok = inflateInit2(&d->gzip, GZIP_WINDOW_BITS) == Z_OK;
    } else {
        d->zstd = ZSTD_createDStream();
        ok = d->zstd != NULL &&
             !ZSTD_isError(ZSTD_DCtx_setParameter(d->zstd, ZSTD_d_windowLogMax, ZSTD_WINDOW_LOG));
    }
    if (!ok) {
        decoder_free(d);
        return NULL;
    }
    return d;
}

void decoder_free(struct decoder *d)
{
    if (d == NULL) {
        return;
    }
    if (d->encoding == ENCODING_GZIP) {
        inflateEnd(&d->gzip);
    }
    ZSTD_freeDStream(d->zstd);
    mem_free(d);
}

/* What one step did. */
struct step {
    size_t used, made;
    bool valid;
};

/* Behind a member another may begin (RFC 1952 section 2.2); anything else there is an error. */
static struct step gzip_step(struct decoder *d, const uint8_t *p, size_t n, uint8_t *out)
{
    size_t room = size_min(n, UINT32_MAX);
    int got;

    if (d->whole && inflateReset(&d->gzip) != Z_OK) {
        return (struct step){.valid = false};
    }
    d->gzip.next_in = (Bytef *)(uintptr_t)p;
    d->gzip.avail_in = (uInt)room;
    d->gzip.next_out = out;
    d->gzip.avail_out = STEP_BYTES;
    got = inflate(&d->gzip, Z_NO_FLUSH);
    d->whole = got == Z_STREAM_END;
    return (struct step){
        .used = room - d->gzip.avail_in,
        .made = STEP_BYTES - d->gzip.avail_out,
        .valid = got == Z_OK || got == Z_STREAM_END || got == Z_BUF_ERROR,
    };
}

static struct step zstd_step(struct decoder *d, const uint8_t *p, size_t n, uint8_t *out)
{
    ZSTD_inBuffer from = {p, n, 0};
    ZSTD_outBuffer to = {out, STEP_BYTES, 0};
    size_t got = ZSTD_decompressStream(d->zstd, &to, &from);

    d->whole = got == 0;
    return (struct step){.used = from.pos, .made = to.pos, .valid = !ZSTD_isError(got)};
}

static bool decoder_keep(struct decoder *d, const uint8_t *made, size_t n, struct buf *out,
                         struct err *e)
{
    d->out_bytes += n;
    if (d->out_bytes > RATIO_FREE_BYTES && d->out_bytes / RATIO_MAX > d->in_bytes) {
        return err_set(e, ERR_LIMIT, "the body expands more than %d-fold", RATIO_MAX);
    }
    if (n > out->max - out->len) {
        return err_set(e, ERR_LIMIT, "the decoded body is larger than %zu bytes", out->max);
    }
    buf_append(out, made, n);
    return !out->failed || err_set(e, ERR_NO_MEMORY, "no memory for the decoded body");
}

bool decoder_feed(struct decoder *d, const void *p, size_t n, struct buf *out, struct err *e)
{
    uint8_t made[STEP_BYTES];
    const uint8_t *at = p;
    struct step s;

    /* A full output slice may leave more inside the library although all input is used. */
    do {
        bool was_whole = d->whole;

        if (n == 0 && was_whole) {
            return true;
        }
        s = d->encoding == ENCODING_GZIP ? gzip_step(d, at, n, made) : zstd_step(d, at, n, made);
        if (!s.valid) {
            return err_set(e, ERR_INPUT, "the body is not valid %s",
                           d->encoding == ENCODING_GZIP ? "gzip" : "zstd");
        }
        d->in_bytes += s.used;
        at += s.used;
        n -= s.used;
        if (!decoder_keep(d, made, s.made, out, e)) {
            return false;
        }
    } while (s.made == STEP_BYTES || (n != 0 && (s.used != 0 || s.made != 0)));
    return n == 0 || err_set(e, ERR_INPUT, "the body cannot be decoded");
}

bool decoder_end(struct decoder *d, struct err *e)
{
    return d->whole || err_set(e, ERR_INPUT, "the compressed body is truncated");
}
