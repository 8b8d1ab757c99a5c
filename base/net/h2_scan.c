/* h2_scan.c - from frame header to frame header. */
#include "base/net/h2_scan.h"

/* Types of RFC 9113 section 6, and the one flag that matters here. */
enum { DATA = 0, HEADERS = 1, RST_STREAM = 3, GOAWAY = 7, CONTINUATION = 9, END_STREAM = 1 };

void h2_scan_init(struct h2_scan *s)
{
    *s = (struct h2_scan){.skip = H2_PREFACE_BYTES};
}

static bool is_control(const uint8_t head[H2_FRAME_HEAD], uint32_t length)
{
    switch (head[3]) {
    case DATA:
        return length == 0 && (head[4] & END_STREAM) == 0;
    case HEADERS:
    case CONTINUATION: /* nghttp2 takes eight of them, then fails */
    case RST_STREAM:   /* has a bucket of its own */
    case GOAWAY:       /* its repetition is harmless and ends the session soon */
        return false;
    default:
        return true;
    }
}

uint32_t h2_scan_feed(struct h2_scan *s, const uint8_t *p, size_t n)
{
    uint32_t control = 0;
    size_t at = 0;

    while (at < n) {
        size_t take =
            s->skip != 0 ? size_min(s->skip, n - at) : size_min(H2_FRAME_HEAD - s->have, n - at);

        if (s->skip != 0) {
            s->skip -= (uint32_t)take;
            at += take;
            continue;
        }
        memcpy(s->head + s->have, p + at, take);
        s->have += (uint32_t)take;
        at += take;
        if (s->have == H2_FRAME_HEAD) {
            s->skip = (uint32_t)s->head[0] << 16 | (uint32_t)s->head[1] << 8 | s->head[2];
            s->have = 0;
            control += is_control(s->head, s->skip);
        }
    }
    return control;
}
