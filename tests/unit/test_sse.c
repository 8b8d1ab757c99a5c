/* test_sse.c - server-sent events: every stream whole and cut at every place gives the same events.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/net/sse.h"

struct stream {
    const char *name;
    const char *in;
    const char *events; /* "name=data;" each */
    bool clean;
};

static const struct stream streams[] = {
    {"one", "data: a\n\n", "=a;", true},
    {"without the space", "data:a\n\n", "=a;", true},
    {"only one space goes", "data:  a \n\n", "= a ;", true},
    {"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", "=a;=b;", true},
    {"CR", "data: a\r\rdata: b\r\r", "=a;=b;", true},
    {"mixed ends", "data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", "=a;=b;=c;", true},
    {"several data lines", "data: a\ndata: b\ndata\ndata: c\n\n", "=a\nb\n\nc;", true},
    {"empty data", "data:\n\n", "=;", true},
    {"data without a colon", "data\n\n", "=;", true},
    {"named", "event: ping\ndata: {}\n\ndata: x\n\n", "ping={};=x;", true},
    {"a name without data is no event", "event: ping\n\ndata: x\n\n", "=x;", true},
    {"the name is cut at 31", "event: abcdefghijklmnopqrstuvwxyzabcdefgh\ndata: x\n\n",
     "abcdefghijklmnopqrstuvwxyzabcde=x;", true},
    {"comments", ": keep-alive\n\n:\n\ndata: a\n: b\n\n", "=a;", true},
    {"id, retry and strangers", "id: 1\nretry: 5\nfoo: bar\ndata: a\nDATA: b\ndata : c\n\n", "=a;",
     true},
    {"colons in data", "data: a:b: c\n\n", "=a:b: c;", true},
    {"empty lines", "\n\n\r\n\rdata: a\n\n\n\n", "=a;", true},
    {"unterminated event", "data: a\n\ndata: b\n", "=a;", false},
    {"unterminated line", "data: a\n\ndat", "=a;", false},
    {"unterminated name", "data: a\n\nevent: b\n", "=a;", false},
    {"[DONE]", "data: {\"x\":1}\n\ndata: [DONE]\n\n", "={\"x\":1};=[DONE];", true},
};

struct seen {
    struct buf text;
    int left; /* events until each says stop; negative: never */
};

static bool note(void *ctx, const char *event, struct str data)
{
    struct seen *seen = ctx;

    buf_printf(&seen->text, "%s=" STR_FMT ";", event, STR_ARG(data));
    return seen->left < 0 || --seen->left > 0;
}

/* Feeds in three pieces, cut at a and b. */
static void stream_cut(const struct stream *c, size_t a, size_t b)
{
    struct seen seen = {.left = -1};
    struct sse_reader r;
    size_t n = strlen(c->in);

    buf_init(&seen.text, 4096);
    sse_init(&r, 1024);
    assert_true(sse_feed(&r, c->in, a, note, &seen));
    assert_true(sse_feed(&r, c->in + a, b - a, note, &seen));
    assert_true(sse_feed(&r, c->in + b, n - b, note, &seen));
    if (!str_eq(buf_view(&seen.text), str_c(c->events)) || sse_is_clean(&r) != c->clean) {
        fail_msg("%s cut at %zu and %zu: \"" STR_FMT "\", clean %d", c->name, a, b,
                 STR_ARG(buf_view(&seen.text)), sse_is_clean(&r));
    }
    sse_fini(&r);
    buf_fini(&seen.text);
}

static void events_are_the_same_for_every_split(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(streams); i++) {
        size_t n = strlen(streams[i].in);

        for (size_t a = 0; a <= n; a++) {
            for (size_t b = a; b <= n; b++) {
                stream_cut(&streams[i], a, b);
            }
        }
    }
}

static void events_are_the_same_byte_by_byte(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(streams); i++) {
        struct seen seen = {.left = -1};
        struct sse_reader r;

        buf_init(&seen.text, 4096);
        sse_init(&r, 1024);
        for (const char *p = streams[i].in; *p != '\0'; p++) {
            assert_true(sse_feed(&r, p, 1, note, &seen));
        }
        assert_true(str_eq(buf_view(&seen.text), str_c(streams[i].events)));
        sse_fini(&r);
        buf_fini(&seen.text);
    }
}

/* n bytes of data in lines of `line` bytes, fed in pieces. */
static bool fits(size_t bound, size_t n, size_t line, size_t piece)
{
    struct seen seen = {.left = -1};
    struct sse_reader r;
    struct buf in;
    bool ok = true;

    buf_init(&in, 1 << 20);
    buf_init(&seen.text, 1 << 20);
    sse_init(&r, bound);
    for (size_t done = 0; done < n; done += line) {
        buf_c(&in, "data: ");
        for (size_t i = 0; i < line; i++) {
            buf_byte(&in, 'x');
        }
        buf_c(&in, "\n");
    }
    buf_c(&in, "\n");
    for (size_t at = 0; ok && at < in.len; at += piece) {
        ok = sse_feed(&r, in.p + at, size_min(piece, in.len - at), note, &seen);
    }
    sse_fini(&r);
    buf_fini(&in);
    buf_fini(&seen.text);
    return ok;
}

static void an_event_past_its_bound_is_fatal(void **state)
{
    (void)state;
    assert_true(fits(1000, 1000, 1000, 4096));
    assert_false(fits(1000, 1001, 1001, 4096));
    assert_true(fits(1000, 900, 10, 7)); /* 90 lines and 89 line feeds */
    assert_false(fits(1000, 1000, 10, 7));
    assert_false(fits(1000, 5000, 5000, 7)); /* a line that never ends, in pieces */
}

static void the_reader_stops_when_told(void **state)
{
    struct seen seen = {.left = 2};
    struct sse_reader r;

    (void)state;
    buf_init(&seen.text, 4096);
    sse_init(&r, 1024);
    assert_false(sse_feed(&r, "data: a\n\ndata: b\n\ndata: c\n\n", 27, note, &seen));
    assert_true(str_eq(buf_view(&seen.text), STR("=a;=b;")));
    sse_fini(&r);
    buf_fini(&seen.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_the_same_for_every_split),
        cmocka_unit_test(events_are_the_same_byte_by_byte),
        cmocka_unit_test(an_event_past_its_bound_is_fatal),
        cmocka_unit_test(the_reader_stops_when_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
