/* test_detok.c - text from token bytes: every split gives the same, stops are never shown. */
#include "worker/engine/detok.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

struct sample {
    const char *bytes;
    size_t n;
    struct str stops[3];
    uint32_t n_stops;
    const char *want;
    bool stopped;
};

#define BYTES(z) z, sizeof(z) - 1

static const struct sample samples[] = {
    {BYTES("hello world"), {{0}}, 0, "hello world", false},
    {BYTES("one STOP two"), {STR("STOP")}, 1, "one ", true},
    {BYTES("one STO"), {STR("STOP")}, 1, "one STO", false},
    {BYTES("aaab"), {STR("aab")}, 1, "a", true},
    {BYTES("ababac"), {STR("abac")}, 1, "ab", true},
    /* "bc" is complete before "abcd" could be. */
    {BYTES("xabcd"), {STR("abcd"), STR("bc")}, 2, "xa", true},
    /* Both end at the same byte: the longer counts. */
    {BYTES("xabc"), {STR("bc"), STR("abc")}, 2, "x", true},
    {BYTES("abcabd"), {STR("abcabc"), STR("zz")}, 2, "abcabd", false},
    {BYTES("gr\xC3\xBC\xC3\x9F dich \xF0\x9F\x98\x80!"),
     {STR("!")},
     1,
     "gr\xC3\xBC\xC3\x9F dich \xF0\x9F\x98\x80",
     true},
    {BYTES("\xF0\x9F\x98\x80 ok"), {STR("\xF0\x9F\x98\x80")}, 1, "", true},
    {BYTES("cut \xF0\x9F\x98"), {{0}}, 0, "cut \xEF\xBF\xBD", false},
    {BYTES("bad \xFF\x80z"), {{0}}, 0, "bad \xEF\xBF\xBD\xEF\xBF\xBDz", false},
    {BYTES("\xE2\x82"
           "A\xC0\xAF"),
     {{0}},
     0,
     "\xEF\xBF\xBD"
     "A\xEF\xBF\xBD\xEF\xBF\xBD",
     false},
    {BYTES("\xED\xA0\x80"), {{0}}, 0, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", false},
    {BYTES("\xF4\x90\x80\x80"),
     {{0}},
     0,
     "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD",
     false},
    {BYTES("end \xF0\x9F"), {STR("\xEF\xBF\xBD")}, 1, "end ", true},
    {BYTES("nul \0 in"), {STR("in")}, 1, "nul ", true},
};

static void check_utf8(struct buf *shown)
{
    struct str s = buf_view(shown);

    assert_int_equal(str_utf8_valid(s), s.n); /* whole characters at every moment */
}

/* Feeds bytes[0..n) in pieces that end where bit i of `cuts` is set (after byte i). */
static void run(const struct sample *s, uint64_t cuts)
{
    struct detok d;
    struct buf out;
    size_t at = 0;
    bool stopped = false;

    buf_init(&out, 4096);
    detok_init(&d, s->stops, s->n_stops);
    for (size_t i = 0; i < s->n && !stopped; i++) {
        if (i + 1 == s->n || (cuts >> i & 1)) {
            stopped = detok_feed(&d, str_of(s->bytes + at, i + 1 - at), &out);
            at = i + 1;
            check_utf8(&out);
        }
    }
    detok_finish(&d, &out);
    check_utf8(&out);
    if (s->stops[0].n > 0 && memchr(s->bytes, 0, s->n) != NULL) {
        assert_int_equal(out.len, 6);
    } else {
        assert_int_equal(out.len, strlen(s->want));
        assert_memory_equal(buf_view(&out).p, s->want, out.len);
    }
    assert_int_equal(d.stopped, s->stopped);
    detok_fini(&d);
    buf_fini(&out);
}

static void every_split_gives_the_same_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
        uint64_t all = (uint64_t)1 << (samples[i].n - 1);

        /* Every way to cut up to 2^12; beyond that each single cut, none, and all. */
        for (uint64_t cuts = 0; cuts < all && cuts < 1 << 12; cuts++) {
            run(&samples[i], cuts);
        }
        for (size_t k = 0; k < samples[i].n; k++) {
            run(&samples[i], (uint64_t)1 << k);
        }
        run(&samples[i], UINT64_MAX);
    }
}

static void only_what_could_begin_a_stop_is_held(void **state)
{
    struct str stop = STR("END");
    struct detok d;
    struct buf out;

    (void)state;
    buf_init(&out, 4096);
    detok_init(&d, &stop, 1);
    assert_false(detok_feed(&d, STR("the E"), &out));
    assert_int_equal(out.len, 4);
    assert_false(detok_feed(&d, STR("N"), &out));
    assert_int_equal(out.len, 4);
    assert_false(detok_feed(&d, STR("x"), &out));
    assert_int_equal(out.len, 7);
    detok_fini(&d);
    buf_fini(&out);
}

static void random_text_never_shows_a_stop_and_loses_nothing(void **state)
{
    uint32_t rng = 1;

    (void)state;
    for (int round = 0; round < 3000; round++) {
        char text[40];
        struct str stops[2];
        char s0[4], s1[4];
        struct sample one = {.bytes = text, .n = sizeof(text)};
        struct detok d;
        struct buf whole;

        for (size_t i = 0; i < sizeof(text); i++) {
            rng = rng * 1664525u + 1013904223u;
            text[i] = (char)('a' + (rng >> 24) % 2);
        }
        for (size_t i = 0; i < 4; i++) {
            rng = rng * 1664525u + 1013904223u;
            s0[i] = (char)('a' + (rng >> 20) % 2);
            s1[i] = (char)('a' + (rng >> 25) % 3);
        }
        stops[0] = str_of(s0, 4);
        stops[1] = str_of(s1, 1 + (size_t)(rng >> 28) % 4);
        /* By hand: the first end of any stop, the longest of those ending there. */
        size_t end = SIZE_MAX, len = 0;
        for (size_t e = 1; e <= sizeof(text) && end == SIZE_MAX; e++) {
            for (int k = 0; k < 2; k++) {
                if (str_ends(str_of(text, e), stops[k])) {
                    end = e;
                    len = size_max(len, stops[k].n);
                }
            }
        }
        buf_init(&whole, 4096);
        detok_init(&d, stops, 2);
        for (size_t i = 0, n; i < sizeof(text); i += n) {
            rng = rng * 1664525u + 1013904223u;
            n = size_min(1 + (rng >> 24) % 5, sizeof(text) - i);
            if (detok_feed(&d, str_of(text + i, n), &whole)) {
                break;
            }
        }
        detok_finish(&d, &whole);
        one.n = end == SIZE_MAX ? sizeof(text) : end - len;
        assert_int_equal(whole.len, one.n);
        assert_memory_equal(buf_view(&whole).p, text, one.n);
        detok_fini(&d);
        buf_fini(&whole);
    }
}

/* What is held back cannot grow: the text has a hole from there on, and says so. */
static void without_memory_the_text_fails_and_nothing_dies(void **state)
{
    static const struct str stops[] = {STR("abcdef")};

    (void)state;
    for (size_t room = 0; room < 5; room++) {
        struct detok d;
        struct buf shown;

        detok_init(&d, stops, 1);
        buf_init(&shown, 64);
        d.held.max = room;
        assert_false(detok_feed(&d, STR("abcde"), &shown));
        assert_true(shown.failed);
        buf_reset(&shown); /* a stream sends what it has and goes on */
        detok_finish(&d, &shown);
        assert_true(shown.failed);
        detok_fini(&d);
        buf_fini(&shown);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_gives_the_same_text),
        cmocka_unit_test(only_what_could_begin_a_stop_is_held),
        cmocka_unit_test(without_memory_the_text_fails_and_nothing_dies),
        cmocka_unit_test(random_text_never_shows_a_stop_and_loses_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
