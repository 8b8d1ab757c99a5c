/* fuzz_h1.c - any bytes as a request, an answer or a chunked body: nothing misbehaves, and no
 * answer depends on how the bytes were split.
 *
 * The first byte chooses the parser, the second the split. */
#include "base/buf.h"
#include "base/net/h1.h"

#define ARENA_BYTES ((size_t)1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct h1_limits limits = {4096, 20};

static void print_fields(struct buf *out, const struct http_fields *fields)
{
    for (uint32_t i = 0; i < fields->n; i++) {
        struct http_field f = fields->v[i];

        CHECK(f.name.n != 0);
        CHECK(memchr(f.value.p, '\r', f.value.n) == NULL &&
              memchr(f.value.p, '\n', f.value.n) == NULL);
        buf_printf(out, STR_FMT "=" STR_FMT ";", STR_ARG(f.name), STR_ARG(f.value));
    }
}

static enum h1_result parse_request(struct h1_scan *scan, struct str in, struct arena *a,
                                    struct buf *out)
{
    struct h1_request r;
    struct h1_fault f;
    enum h1_result got = h1_parse_request(scan, in, &limits, a, &r, &f);

    if (got == H1_BAD) {
        buf_printf(out, "%u %s", f.status, f.reason);
    } else if (got == H1_OK) {
        CHECK(r.bytes <= in.n && r.head.path.n != 0 && r.head.path.p[0] == '/');
        CHECK(r.framing != H1_LENGTH || r.head.content_length >= 0);
        CHECK(r.framing != H1_CHUNKED || r.head.content_length < 0);
        buf_printf(out, "%zu %d %d %lld " STR_FMT " " STR_FMT " " STR_FMT, r.bytes, r.framing,
                   r.keep_alive, (long long)r.head.content_length, STR_ARG(r.head.path),
                   STR_ARG(r.head.query), STR_ARG(r.head.host));
        print_fields(out, &r.head.fields);
    }
    return got;
}

static enum h1_result parse_response(struct h1_scan *scan, struct str in, struct arena *a,
                                     struct buf *out)
{
    struct h1_response r;
    struct h1_fault f;
    enum h1_result got = h1_parse_response(scan, in, &limits, HTTP_GET, a, &r, &f);

    if (got == H1_BAD) {
        buf_printf(out, "%s", f.reason);
    } else if (got == H1_OK) {
        CHECK(r.bytes <= in.n && r.status >= 100 && r.status <= 599);
        buf_printf(out, "%zu %u %d %d %lld ", r.bytes, r.status, r.framing, r.keep_alive,
                   (long long)r.content_length);
        print_fields(out, &r.fields);
    }
    return got;
}

static void run_head(struct str in, size_t step, bool request, struct buf *out)
{
    struct h1_scan scan = {0};
    struct arena a;
    enum h1_result got = H1_MORE;
    size_t n = 0;

    arena_init(&a, ARENA_BYTES);
    while (got == H1_MORE && n < in.n) {
        n = size_min(n + step, in.n);
        got = request ? parse_request(&scan, str_of(in.p, n), &a, out)
                      : parse_response(&scan, str_of(in.p, n), &a, out);
    }
    buf_printf(out, " %d", got);
    arena_fini(&a);
}

static void run_chunks(struct str in, size_t step, struct buf *out)
{
    struct h1_chunked d;
    struct h1_fault f;
    enum h1_result got = H1_MORE;
    size_t at = 0, used;
    struct str piece;

    h1_chunked_init(&d, &limits);
    while (got == H1_MORE && at < in.n) {
        size_t n = size_min(step, in.n - at);

        got = h1_chunked_next(&d, str_of(in.p + at, n), &used, &piece, &f);
        CHECK(used <= n && used != 0 && piece.n <= used);
        buf_str(out, piece);
        at += used;
    }
    buf_printf(out, " %d %zu", got, got == H1_OK ? at : 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str in;
    struct buf whole, split;

    if (size < 3) {
        return 0;
    }
    in = str_of(data + 2, size - 2);
    buf_init(&whole, 8 * size + 4096);
    buf_init(&split, 8 * size + 4096);
    if (data[0] % 3 == 2) {
        run_chunks(in, in.n, &whole);
        run_chunks(in, 1 + data[1] % 16, &split);
    } else {
        run_head(in, in.n, data[0] % 3 == 0, &whole);
        run_head(in, 1 + data[1] % 16, data[0] % 3 == 0, &split);
    }
    CHECK(!whole.failed && str_eq(buf_view(&whole), buf_view(&split)));
    buf_fini(&whole);
    buf_fini(&split);
    return 0;
}
