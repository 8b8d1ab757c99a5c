/* test_kv_events.c - a reader that applies the lines always ends with the set that is held. */
#include "worker/kv_events.h"

#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define HASHES 700

/* A gateway: applies lines, demands dense seqs and that every line changes something as it says. */
struct reader {
    bool has[HASHES];
    uint64_t seq;
    unsigned lines, pages_left;
};

static void apply(struct reader *r, const struct json *list, bool held)
{
    for (const struct json *h = list->child; h != NULL; h = h->next) {
        uint64_t v = strtoull(h->text.p, NULL, 16);

        assert_int_equal(h->text.n, 16);
        assert_true(v < HASHES);
        assert_int_equal(r->has[v], !held);
        r->has[v] = held;
    }
}

static void read_line(void *ctx, struct str line)
{
    struct reader *r = ctx;
    struct arena a;
    struct err e = {0};
    struct json *v, *snapshot;
    int64_t seq;

    arena_init(&a, 4 << 20);
    assert_int_equal(line.p[line.n - 1], '\n');
    v = json_parse(&a, str_of(line.p, line.n - 1), &json_limits_api, &e);
    assert_non_null(v);
    assert_true(json_i64(json_get(v, STR("seq")), &seq));
    snapshot = json_get(v, STR("snapshot"));
    if (snapshot != NULL) {
        int64_t page, pages;

        assert_true(json_i64(json_get(v, STR("page")), &page));
        assert_true(json_i64(json_get(v, STR("pages")), &pages));
        if (page == 0) {
            memset(r->has, 0, sizeof(r->has));
            r->pages_left = (unsigned)pages;
        }
        r->pages_left--;
        r->seq = (uint64_t)seq;
        apply(r, snapshot, true);
    } else {
        assert_int_equal(seq, r->seq + 1);
        r->seq = (uint64_t)seq;
        apply(r, json_get(v, STR("stored")), true);
        apply(r, json_get(v, STR("removed")), false);
    }
    r->lines++;
    arena_fini(&a);
}

static void count_line(void *ctx, struct str line)
{
    (void)line;
    (*(unsigned *)ctx)++;
}

static void readers_follow_the_set(void **state)
{
    struct kv_events *k = kv_events_new(STR("p"), STR("77"));
    static struct reader r, late;
    static bool held[HASHES];
    uint32_t rng = 5;

    (void)state;
    for (int round = 0; round < 400; round++) {
        for (int i = 0; i < 60; i++) {
            rng = rng * 1664525u + 1013904223u;
            uint32_t h = (rng >> 10) % HASHES;

            held[h] = (rng >> 28) % 2;
            kv_events_change(k, h, held[h]);
        }
        kv_events_flush(k, false, read_line, &r);
        assert_false(kv_events_is_due(k));
        assert_memory_equal(r.has, held, sizeof(held));
        if (round % 50 == 0) { /* a newcomer, with changes pending */
            kv_events_change(k, 3, !held[3]);
            kv_events_snapshot(k, read_line, &late);
            assert_memory_equal(late.has, held, sizeof(held));
            assert_int_equal(late.seq, r.seq);
            assert_int_equal(late.pages_left, 0);
            kv_events_change(k, 3, held[3]);
        }
    }
    kv_events_free(k);
}

static void what_came_and_went_is_not_told(void **state)
{
    struct kv_events *k = kv_events_new(STR("p"), STR("77"));
    unsigned n = 0;

    (void)state;
    kv_events_change(k, 1, true);
    kv_events_change(k, 1, false);
    kv_events_flush(k, false, count_line, &n);
    assert_int_equal(n, 0);
    assert_int_equal(kv_events_count(k), 0);
    kv_events_flush(k, true, count_line, &n); /* a heartbeat has a seq of its own */
    assert_int_equal(n, 1);
    assert_int_equal(kv_events_seq(k), 1);
    kv_events_free(k);
}

static void resume_gives_what_was_missed_or_asks_for_a_snapshot(void **state)
{
    struct kv_events *k = kv_events_new(STR("p"), STR("77"));
    static struct reader r;
    unsigned n = 0;

    (void)state;
    for (unsigned i = 0; i < KV_EVENTS_KEPT + 10; i++) {
        kv_events_change(k, i % HASHES, i / HASHES % 2 == 0);
        kv_events_flush(k, false, i < 3000 ? read_line : count_line, i < 3000 ? (void *)&r : &n);
    }
    assert_int_equal(r.seq, 3000);
    assert_true(kv_events_resume(k, STR("77:3000"), read_line, &r));
    assert_int_equal(r.seq, KV_EVENTS_KEPT + 10);
    n = 0;
    assert_true(kv_events_resume(k, STR("77:4106"), count_line, &n));
    assert_int_equal(n, 0);
    assert_true(kv_events_resume(k, STR("77:10"), count_line, &n));
    assert_int_equal(n, KV_EVENTS_KEPT);
    assert_false(kv_events_resume(k, STR("77:9"), count_line, &n));
    assert_false(kv_events_resume(k, STR("77:4107"), count_line, &n));
    assert_false(kv_events_resume(k, STR("78:4106"), count_line, &n));
    assert_false(kv_events_resume(k, STR("77"), count_line, &n));
    assert_false(kv_events_resume(k, STR("77:x"), count_line, &n));
    assert_int_equal(n, KV_EVENTS_KEPT);
    kv_events_free(k);
}

static void big_sets_come_in_pages_and_big_changes_in_lines(void **state)
{
    struct kv_events *k = kv_events_new(STR("p"), STR("77"));
    unsigned lines = 0, pages = 0;

    (void)state;
    for (uint64_t i = 0; i < KV_EVENTS_PAGE * 2 + 1; i++) {
        kv_events_change(k, i * 0x9E3779B97F4A7C15ull, true);
    }
    kv_events_flush(k, false, count_line, &lines);
    assert_int_equal(lines, KV_EVENTS_PAGE * 2 / KV_EVENTS_LINE + 1);
    kv_events_snapshot(k, count_line, &pages);
    assert_int_equal(pages, 3);
    kv_events_free(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readers_follow_the_set),
        cmocka_unit_test(what_came_and_went_is_not_told),
        cmocka_unit_test(resume_gives_what_was_missed_or_asks_for_a_snapshot),
        cmocka_unit_test(big_sets_come_in_pages_and_big_changes_in_lines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
