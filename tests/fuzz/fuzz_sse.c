/* fuzz_sse.c - any bytes as an event stream: the events are the same whole and split.
 *
 * The first byte chooses the split. */
#include "base/net/sse.h"

#define EVENT_MAX 512

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool note(void *ctx, const char *event, struct str data)
{
    struct buf *out = ctx;

    CHECK(data.n <= EVENT_MAX);
    buf_c(out, event);
    buf_byte(out, '=');
    buf_str(out, data);
    buf_byte(out, ';');
    return true;
}

static void run(struct str in, size_t step, struct buf *out)
{
    struct sse_reader r;
    bool ok = true;

    sse_init(&r, EVENT_MAX);
    for (size_t at = 0; ok && at < in.n; at += step) {
        ok = sse_feed(&r, in.p + at, size_min(step, in.n - at), note, out);
    }
    buf_printf(out, "%d %d", ok, ok && sse_is_clean(&r));
    sse_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf whole, split;
    struct str in;

    if (size < 2) {
        return 0;
    }
    in = str_of(data + 1, size - 1);
    buf_init(&whole, 40 * size + 64);
    buf_init(&split, 40 * size + 64);
    run(in, in.n, &whole);
    run(in, 1 + data[0] % 16, &split);
    CHECK(!whole.failed && str_eq(buf_view(&whole), buf_view(&split)));
    buf_fini(&whole);
    buf_fini(&split);
    return 0;
}
