/* detok.c - a UTF-8 filter, then a window over the text as wide as the longest stop string. */
#include "worker/engine/detok.h"

#define HELD_BYTES_MAX (DETOK_STOP_BYTES_MAX + 8)
static const uint8_t replacement[3] = {0xEF, 0xBF, 0xBD};

void detok_init(struct detok *d, const struct str *stops, uint32_t n_stops)
{
    CHECK(n_stops <= DETOK_STOPS_MAX);
    memset(d, 0, sizeof(*d));
    d->stops = stops;
    d->n_stops = n_stops;
    for (uint32_t i = 0; i < n_stops; i++) {
        CHECK(stops[i].n > 0 && stops[i].n <= DETOK_STOP_BYTES_MAX);
    }
    buf_init(&d->held, HELD_BYTES_MAX);
}

void detok_fini(struct detok *d)
{
    buf_fini(&d->held);
}

static bool could_begin(struct str text, struct str stop)
{
    return text.n < stop.n && memcmp(stop.p, text.p, text.n) == 0;
}

/* Shows all of held but the longest end that is a proper beginning of some stop. */
static void show(struct detok *d, struct buf *out)
{
    struct str held = buf_view(&d->held);
    size_t keep = 0;

    for (uint32_t i = 0; i < d->n_stops; i++) {
        for (size_t n = size_min(held.n, d->stops[i].n - 1); n > keep; n--) {
            if (could_begin(str_of(held.p + held.n - n, n), d->stops[i])) {
                keep = n;
            }
        }
    }
    buf_append(out, held.p, held.n - keep);
    buf_consume(&d->held, held.n - keep);
}

/* One byte of valid text. */
static void add_byte(struct detok *d, uint8_t c, struct buf *out)
{
    struct str held;
    size_t longest = 0;

    if (d->n_stops == 0) {
        buf_byte(out, c);
        return;
    }
    if (d->held.len == HELD_BYTES_MAX) {
        show(d, out);
    }
    buf_byte(&d->held, c);
    if (d->held.failed) { /* no memory: what is shown from here on would have a hole */
        out->failed = true;
        return;
    }
    held = buf_view(&d->held);
    for (uint32_t i = 0; i < d->n_stops; i++) {
        if (d->stops[i].n > longest && str_ends(held, d->stops[i])) {
            longest = d->stops[i].n;
        }
    }
    if (longest > 0) {
        buf_append(out, held.p, held.n - longest);
        buf_reset(&d->held);
        d->stopped = true;
    }
}

static void add_text(struct detok *d, const uint8_t *p, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n && !d->stopped; i++) {
        add_byte(d, p[i], out);
    }
}

/* Bytes that a character with this lead has; 0: no lead. */
static uint32_t lead_bytes(uint8_t c)
{
    return c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
}

/* Whether c may follow what partial holds (RFC 3629: no overlong form, no surrogate, no value past
 * U+10FFFF; all of these show in the second byte). */
static bool may_follow(const struct detok *d, uint8_t c)
{
    uint8_t low = 0x80, high = 0xBF;

    if (d->partial_n == 1) {
        low = d->partial[0] == 0xE0 ? 0xA0 : d->partial[0] == 0xF0 ? 0x90 : low;
        high = d->partial[0] == 0xED ? 0x9F : d->partial[0] == 0xF4 ? 0x8F : high;
    }
    return c >= low && c <= high;
}

static void replace_partial(struct detok *d, struct buf *out)
{
    if (d->partial_n > 0) {
        d->partial_n = 0;
        add_text(d, replacement, sizeof(replacement), out);
    }
}

bool detok_feed(struct detok *d, struct str bytes, struct buf *out)
{
    for (size_t i = 0; i < bytes.n && !d->stopped; i++) {
        uint8_t c = (uint8_t)bytes.p[i];

        if (d->partial_n > 0 && !may_follow(d, c)) {
            replace_partial(d, out);
        }
        if (d->partial_n == 0 && lead_bytes(c) == 0) {
            add_text(d, replacement, sizeof(replacement), out);
            continue;
        }
        d->partial[d->partial_n++] = c;
        if (d->partial_n == lead_bytes(d->partial[0])) {
            uint32_t n = d->partial_n;

            d->partial_n = 0;
            add_text(d, d->partial, n, out);
        }
    }
    if (!d->stopped) {
        show(d, out);
    }
    return d->stopped;
}

void detok_finish(struct detok *d, struct buf *out)
{
    if (d->stopped) {
        return;
    }
    replace_partial(d, out);
    out->failed = out->failed || d->held.failed;
    if (!d->stopped) { /* U+FFFD may be a stop string too */
        buf_str(out, buf_view(&d->held));
    }
    buf_reset(&d->held);
}
