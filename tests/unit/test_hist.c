/* test_hist.c - percentiles against the sorted samples, edges, and adding from threads. */
#include "base/hist.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>

static void empty_answers_zero(void **state)
{
    static struct hist h;

    (void)state;
    assert_int_equal(hist_count(&h), 0);
    assert_int_equal(hist_permille_us(&h, 990), 0);
    assert_int_equal(hist_le(&h, UINT64_MAX), 0);
}

static void each_value_lies_in_a_bucket_at_most_an_eighth_too_high(void **state)
{
    (void)state;
    for (uint64_t v = 0; v < (uint64_t)15 << 36; v = v < 100 ? v + 1 : v + v / 17) {
        struct hist h = {0};
        uint64_t edge;

        hist_add(&h, v);
        edge = hist_permille_us(&h, 500);
        if (edge < v || edge - v > v / 8) {
            fail_msg("%llu reads as %llu", (unsigned long long)v, (unsigned long long)edge);
        }
        assert_int_equal(hist_le(&h, edge), 1);
        assert_int_equal(edge > 0 ? hist_le(&h, edge - 1) : 0, 0);
        assert_true(hist_sum_us(&h) == v);
    }
}

static void the_last_bucket_takes_the_rest(void **state)
{
    struct hist h = {0};

    (void)state;
    hist_add(&h, UINT64_MAX);
    hist_add(&h, (uint64_t)1 << 60);
    assert_true(hist_permille_us(&h, 1000) == ((uint64_t)1 << 40) - 1);
    assert_int_equal(hist_count(&h), 2);
    assert_int_equal(hist_le(&h, UINT64_MAX), 0); /* only le="+Inf" holds them */
}

static int by_size(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void percentiles_follow_the_sorted_samples(void **state)
{
    enum { N = 1993 };
    static const unsigned permilles[] = {1, 500, 900, 950, 990, 999, 1000};
    static uint64_t samples[N];
    static struct hist h;
    uint64_t random = 1;

    (void)state;
    for (size_t i = 0; i < N; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        samples[i] = random >> (34 + (random >> 3) % 20);
        hist_add(&h, samples[i]);
    }
    qsort(samples, N, sizeof(samples[0]), by_size);
    for (size_t k = 0; k < ARRAY_LEN(permilles); k++) {
        uint64_t truth = samples[(N * permilles[k] + 999) / 1000 - 1];
        uint64_t read = hist_permille_us(&h, permilles[k]);

        if (read < truth || read - truth > truth / 8) {
            fail_msg("p%u: %llu for %llu", permilles[k], (unsigned long long)read,
                     (unsigned long long)truth);
        }
    }
    assert_true(hist_permille_us(&h, 0) >= samples[0]); /* p0 is the least sample */
}

static void le_counts_whole_buckets_and_never_falls(void **state)
{
    static struct hist h;
    uint64_t before = 0;

    (void)state;
    for (uint64_t v = 0; v < 5000; v++) {
        hist_add(&h, v);
    }
    for (uint64_t us = 0; us < 6000; us += 7) {
        uint64_t le = hist_le(&h, us);

        assert_true(le >= before && le <= us + 1);
        before = le;
    }
    assert_int_equal(hist_le(&h, 7), 8);
    assert_int_equal(hist_le(&h, 10000), 5000);
}

static struct hist shared;

static void *add_thousands(void *arg)
{
    for (uint64_t i = 0; i < 20000; i++) {
        hist_add(&shared, i);
    }
    return arg;
}

static void no_sample_is_lost_between_threads(void **state)
{
    pthread_t threads[4];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, add_thousands, NULL), 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(hist_count(&shared), 80000);
    assert_int_equal(hist_le(&shared, 1 << 20), 80000);
    assert_true(hist_sum_us(&shared) == (uint64_t)4 * 20000 * 19999 / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_answers_zero),
        cmocka_unit_test(each_value_lies_in_a_bucket_at_most_an_eighth_too_high),
        cmocka_unit_test(the_last_bucket_takes_the_rest),
        cmocka_unit_test(percentiles_follow_the_sorted_samples),
        cmocka_unit_test(le_counts_whole_buckets_and_never_falls),
        cmocka_unit_test(no_sample_is_lost_between_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
