/* test_route.c - algorithm R, pinned by choices computed by hand, and by what must not matter. */
#include "gateway/route/route.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define ROOT 0x1234567890abcdefu

/* An idle worker at 8,192 tokens/s (a power of two: hand-computed ties are exact) that holds
 * nothing. */
static struct route_candidate idle(int32_t worker_id)
{
    return (struct route_candidate){.slot = (unsigned)worker_id,
                                    .worker_id = worker_id,
                                    .rate = 8192,
                                    .kv_usage = -1,
                                    .waiting = -1,
                                    .index_trusted = true};
}

static struct route_choice pick(const struct route_candidate *c, unsigned n, double prompt_tokens)
{
    struct route_choice out;

    route_pick(c, n, prompt_tokens, ROOT, &out);
    assert_true(out.index < n);
    return out;
}

static void one_worker_is_the_only_one(void **state)
{
    struct route_candidate c = idle(5);
    struct route_choice out = pick(&c, 1, 4096);

    (void)state;
    assert_int_equal(out.reason, ROUTE_ONLY_ONE);
    assert_true(out.predicted_ttft_s == 0.5 && out.predicted_cached == 0);
}

/* u = 1000 and 4000, u_min = 1000: work is 1000 + 3 x 300 = 1900 and 4000 + 3 x 3300 = 13900. */
static void the_holder_of_the_prefix_wins(void **state)
{
    struct route_candidate c[2] = {idle(1), idle(2)};
    struct route_choice out;

    (void)state;
    c[1].match_tokens = 3000;
    out = pick(c, 2, 4000);
    assert_int_equal(out.index, 1);
    assert_int_equal(out.reason, ROUTE_BEST);
    assert_true(out.predicted_cached == 3000);
    assert_true(out.predicted_ttft_s == 1000.0 / 8192);
}

/* The holder (work 1900 + q) against the idle one (13900): it keeps the prompt up to q = 12000. */
static void a_queue_of_avoidable_recompute_moves_a_session(void **state)
{
    static const struct {
        double queued;
        unsigned want;
    } cases[] = {{0, 0}, {11999, 0}, {12001, 1}, {1e9, 1}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct route_candidate c[2] = {idle(1), idle(2)};

        c[0].match_tokens = 3000;
        c[0].queued_tokens = cases[i].queued;
        assert_int_equal(pick(c, 2, 4000).index, cases[i].want);
    }
}

/* The holder's context c against mean c/2: load = 1 + 20 x 0.3 c / (c/2 + 2000). 1900 x load passes
 * 13900 between c = 4400 (13843) and c = 4500 (13971). */
static void context_in_flight_is_load(void **state)
{
    struct route_candidate c[2] = {idle(1), idle(2)};

    (void)state;
    c[0].match_tokens = 3000;
    c[0].context_tokens = 4400;
    assert_int_equal(pick(c, 2, 4000).index, 0);
    c[0].context_tokens = 4500;
    assert_int_equal(pick(c, 2, 4000).index, 1);
}

/* One request (0.7 x 1 / 1.5 = 0.4667) weighs as much as 14,000 tokens of context (0.3 x 14000 /
 * 9000). */
static void a_request_weighs_as_much_as_14000_tokens_of_context(void **state)
{
    struct route_candidate c[2] = {idle(1), idle(2)};

    (void)state;
    c[0].in_flight = 1;
    c[1].context_tokens = 13900;
    assert_int_equal(pick(c, 2, 1000).index, 1);
    c[1].context_tokens = 14100;
    assert_int_equal(pick(c, 2, 1000).index, 0);
}

static void a_slow_worker_gets_less(void **state)
{
    struct route_candidate c[2] = {idle(1), idle(2)};

    (void)state;
    c[0].rate = 4096;
    assert_int_equal(pick(c, 2, 1000).index, 1);
    c[0].match_tokens =
        600; /* work 400 + 3 x 120 = 760 at half speed, against 1000 + 3 x 720 = 3160 */
    assert_int_equal(pick(c, 2, 1000).index, 0);
    c[0].match_tokens = 0;
    c[0].rate = 0; /* unknown: 8,000, slower than 8,192 by a little */
    assert_int_equal(pick(c, 2, 1000).index, 1);
    assert_int_equal(pick(c, 2, 1000).reason, ROUTE_BEST);
}

/* Work 1900 at load 15 (two in flight of mean one) equals work 28500 at load 1. */
static void equal_scores_go_to_fewer_in_flight(void **state)
{
    struct route_candidate c[2] = {idle(1), idle(2)};
    struct route_choice out;

    (void)state;
    c[0].in_flight = 2;
    c[1].queued_tokens = 26600;
    out = pick(c, 2, 1000);
    assert_int_equal(out.reason, ROUTE_TIE_FEWER);
    assert_int_equal(out.index, 1);
    c[1].queued_tokens = 26599;
    assert_int_equal(pick(c, 2, 1000).reason, ROUTE_BEST);
}

/* Pinned: gateways of different builds must send one conversation to the same place. */
static void idle_equals_go_by_rendezvous_on_the_root(void **state)
{
    static const int32_t want[] = {6, 6, 8, 3, 1, 5, 5, 1, 7, 4, 8, 3};
    struct route_candidate c[8];
    struct route_choice out;

    (void)state;
    for (int i = 0; i < 8; i++) {
        c[i] = idle(i + 1);
    }
    for (uint64_t root = 0; root < ARRAY_LEN(want); root++) {
        route_pick(c, 8, 500, root, &out);
        assert_int_equal(out.reason, ROUTE_TIE_RENDEZVOUS);
        assert_int_equal(c[out.index].worker_id, want[root]);
    }
}

static void rendezvous_spreads_and_moves_only_what_it_must(void **state)
{
    struct route_candidate c[ROUTE_WORKERS_MAX];
    unsigned hits[ROUTE_WORKERS_MAX] = {0};

    (void)state;
    for (int i = 0; i < ROUTE_WORKERS_MAX; i++) {
        c[i] = idle(i + 100);
    }
    for (uint64_t root = 0; root < 6400; root++) {
        struct route_choice all, fewer;

        route_pick(c, ROUTE_WORKERS_MAX, 500, root * 0x9e3779b97f4a7c15, &all);
        route_pick(c, ROUTE_WORKERS_MAX - 1, 500, root * 0x9e3779b97f4a7c15, &fewer);
        hits[all.index]++;
        assert_true(all.index == fewer.index || all.index == ROUTE_WORKERS_MAX - 1);
    }
    for (int i = 0; i < ROUTE_WORKERS_MAX; i++) {
        assert_in_range(hits[i], 50, 160);
    }
}

static void a_full_worker_is_left_alone_unless_all_are(void **state)
{
    static const struct {
        double kv, waiting;
        bool dropped;
    } cases[] = {
        {0.90, 5.5, true}, {0.95, 6, true},   {0.95, 5, false}, {0.89, 100, false},
        {-1, 100, false},  {0.99, -1, false}, {1, 0, false},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct route_candidate c[2] = {idle(1), idle(2)};

        c[0].match_tokens = 4000;
        c[0].kv_usage = cases[i].kv;
        c[0].waiting = cases[i].waiting;
        assert_int_equal(pick(c, 2, 4000).index, cases[i].dropped ? 1 : 0);
        assert_int_equal(pick(c, 2, 4000).reason, cases[i].dropped ? ROUTE_ONLY_ONE : ROUTE_BEST);
        c[1].kv_usage = 0.99;
        c[1].waiting = 50;
        assert_int_equal(pick(c, 2, 4000).index, 0);
    }
}

static void an_untrusted_index_counts_for_nothing(void **state)
{
    struct route_candidate c[2] = {idle(1), idle(2)};
    struct route_choice out;

    (void)state;
    c[0].match_tokens = 4000;
    c[0].index_trusted = false;
    c[1].match_tokens = 10;
    assert_int_equal(pick(c, 2, 4000).index, 1);
    c[1].in_flight = 9;
    out = pick(c, 2, 4000);
    assert_int_equal(out.index, 0);
    assert_int_equal(out.reason, ROUTE_LOAD_ONLY);
    assert_true(out.predicted_cached == 0);
}

/* A match is never more than the prompt, and at least one token is always computed. */
static void a_match_is_cut_to_the_prompt(void **state)
{
    struct route_candidate c[2] = {idle(1), idle(2)};
    struct route_choice out;

    (void)state;
    c[0].match_tokens = 1e9;
    c[1].match_tokens = -5;
    out = pick(c, 2, 1000);
    assert_int_equal(out.index, 0);
    assert_true(out.predicted_cached == 1000);
    assert_true(out.predicted_ttft_s == 1.0 / 8192);
    out = pick(c, 1, 0);
    assert_true(out.predicted_ttft_s > 0);
}

static uint64_t next(uint64_t *s)
{
    uint64_t z = *s += 0x9e3779b97f4a7c15;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

/* Few values each, so that ties and gates are common. */
static struct route_candidate random_candidate(uint64_t *s, int32_t worker_id)
{
    struct route_candidate c = idle(worker_id);

    c.match_tokens = (double)(next(s) % 3 * 1000);
    c.queued_tokens = (double)(next(s) % 2 * 500);
    c.in_flight = (double)(next(s) % 3);
    c.context_tokens = (double)(next(s) % 2 * 3000);
    c.rate = (double)(next(s) % 3 * 4096);
    c.kv_usage = next(s) % 3 == 0 ? 0.95 : 0.5;
    c.waiting = (double)(next(s) % 8);
    c.index_trusted = next(s) % 4 != 0;
    return c;
}

static void the_order_of_the_list_does_not_matter(void **state)
{
    uint64_t s = 42;
    unsigned reasons[ROUTE_BATCH + 1] = {0};

    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct route_candidate c[10];
        unsigned n = 1 + (unsigned)(next(&s) % 10);
        struct route_choice first, again;
        int32_t chosen;

        for (unsigned i = 0; i < n; i++) {
            c[i] = random_candidate(&s, (int32_t)i + 1);
        }
        route_pick(c, n, 2500, (uint64_t)round, &first);
        chosen = c[first.index].worker_id;
        reasons[first.reason]++;
        for (unsigned i = n - 1; i > 0; i--) { /* Fisher-Yates */
            unsigned j = (unsigned)(next(&s) % (i + 1));
            struct route_candidate t = c[i];

            c[i] = c[j];
            c[j] = t;
        }
        route_pick(c, n, 2500, (uint64_t)round, &again);
        assert_int_equal(c[again.index].worker_id, chosen);
        assert_int_equal(again.reason, first.reason);
        assert_true(again.predicted_ttft_s == first.predicted_ttft_s);
        assert_true(again.predicted_cached == first.predicted_cached);
    }
    assert_true(reasons[ROUTE_BEST] > 100 && reasons[ROUTE_ONLY_ONE] > 100 &&
                reasons[ROUTE_LOAD_ONLY] > 100);
    assert_true(reasons[ROUTE_TIE_RENDEZVOUS] > 100);
}

/* Who is gated counts in no mean and no minimum: without it the answer is the same. */
static void a_gated_worker_changes_nothing(void **state)
{
    uint64_t s = 7;

    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct route_candidate c[8], left[8];
        struct route_choice with, without;
        unsigned n = 0;

        for (unsigned i = 0; i < ARRAY_LEN(c); i++) {
            c[i] = random_candidate(&s, (int32_t)i + 1);
            if (!(c[i].kv_usage >= 0.9 && c[i].waiting > 5)) {
                left[n++] = c[i];
            }
        }
        if (n > 0) {
            route_pick(c, ARRAY_LEN(c), 2500, 1, &with);
            route_pick(left, n, 2500, 1, &without);
            assert_int_equal(c[with.index].worker_id, left[without.index].worker_id);
            assert_int_equal(with.reason, without.reason);
        }
    }
}

static void a_rate_is_the_median_of_the_last_64_long_samples(void **state)
{
    struct route_rate r = {0};

    (void)state;
    route_rate_add(&r, 255, 1); /* too short */
    route_rate_add(&r, 1000, 0);
    assert_int_equal(r.count, 0);
    for (int i = 1; i <= 7; i++) {
        route_rate_add(&r, 1000 * i, 1);
    }
    assert_true(route_rate_median(&r) == 0);
    route_rate_add(&r, 256, 0.001); /* 256,000: an outlier */
    assert_true(route_rate_median(&r) == 4500);
    route_rate_add(&r, 500, 1);
    assert_true(route_rate_median(&r) == 4000);
    for (int i = 0; i < ROUTE_RATE_SAMPLES; i++) {
        route_rate_add(&r, 600, 2);
    }
    assert_true(route_rate_median(&r) == 300); /* the old ones are forgotten */
}

static void a_rate_near_the_fleets_is_the_fleets(void **state)
{
    static const struct {
        double own, fleet, want;
    } cases[] = {
        {0, 0, 8000},     {0, 5000, 5000},    {5000, 0, 5000},    {600, 1000, 1000},
        {599, 1000, 599}, {1670, 1000, 1000}, {1671, 1000, 1671}, {1000, 1000, 1000},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        double got = route_rate_used(cases[i].own, cases[i].fleet);

        if (got != cases[i].want) {
            fail_msg("own %g fleet %g: %g, not %g", cases[i].own, cases[i].fleet, got,
                     cases[i].want);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_worker_is_the_only_one),
        cmocka_unit_test(the_holder_of_the_prefix_wins),
        cmocka_unit_test(a_queue_of_avoidable_recompute_moves_a_session),
        cmocka_unit_test(context_in_flight_is_load),
        cmocka_unit_test(a_request_weighs_as_much_as_14000_tokens_of_context),
        cmocka_unit_test(a_slow_worker_gets_less),
        cmocka_unit_test(equal_scores_go_to_fewer_in_flight),
        cmocka_unit_test(idle_equals_go_by_rendezvous_on_the_root),
        cmocka_unit_test(rendezvous_spreads_and_moves_only_what_it_must),
        cmocka_unit_test(a_full_worker_is_left_alone_unless_all_are),
        cmocka_unit_test(an_untrusted_index_counts_for_nothing),
        cmocka_unit_test(a_match_is_cut_to_the_prompt),
        cmocka_unit_test(the_order_of_the_list_does_not_matter),
        cmocka_unit_test(a_gated_worker_changes_nothing),
        cmocka_unit_test(a_rate_is_the_median_of_the_last_64_long_samples),
        cmocka_unit_test(a_rate_near_the_fleets_is_the_fleets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
