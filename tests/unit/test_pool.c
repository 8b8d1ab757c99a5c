/* test_pool.c - every thread works once a run, barriers separate phases, late helpers narrow it. */
#include "worker/cpu/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>
#include <cmocka.h>

#define RUNS 2000u
#define PHASES 8u
#define THREADS_MOST 8u

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void work_until(uint64_t deadline_ns) /* busy: what a slow share looks like */
{
    while (now_ns() < deadline_ns) {
    }
}

struct phases {
    struct pool *pool;
    unsigned value[PHASES + 1][THREADS_MOST]; /* plain memory: only the barrier orders it */
    _Atomic unsigned wrong;
};

/* Phase i of every thread adds up what all wrote in phase i - 1. */
static void sum_up(void *context, unsigned id, unsigned width)
{
    struct phases *p = context;

    p->value[0][id] = id + 1;
    for (unsigned i = 1; i <= PHASES; i++) {
        unsigned sum = 0;
        pool_barrier(p->pool, id);
        for (unsigned t = 0; t < width; t++) {
            sum += p->value[i - 1][t];
        }
        p->value[i][id] = i == PHASES ? sum : id + i + 1;
        unsigned want = width * (width + 1) / 2 + width * (i - 1);
        if (sum != want) {
            atomic_fetch_add(&p->wrong, 1);
        }
    }
}

static void barriers_separate_phases_for_any_number_of_threads(void **state)
{
    (void)state;
    for (unsigned threads = 1; threads <= THREADS_MOST; threads = threads * 2) {
        struct err e = {0};
        struct phases p = {.pool = pool_new(threads, &e)};
        assert_non_null(p.pool);
        for (unsigned i = 0; i < RUNS / threads; i++) {
            memset(p.value, 0, sizeof(p.value));
            pool_run(p.pool, sum_up, &p);
            for (unsigned t = 0; t < THREADS_MOST; t++) { /* the others did not run */
                assert_int_equal(p.value[0][t] != 0, p.value[PHASES][t] != 0);
            }
            assert_true(p.value[PHASES][0] != 0);
        }
        assert_int_equal(p.wrong, 0);
        pool_free(p.pool);
    }
}

static void helpers_that_fell_asleep_wake_for_the_next_run(void **state)
{
    struct err e = {0};
    struct phases p = {.pool = pool_new(3, &e)};

    (void)state;
    assert_non_null(p.pool);
    for (unsigned i = 0; i < 20; i++) {
        work_until(now_ns() + 1000000); /* far past spinning and yielding */
        pool_run(p.pool, sum_up, &p);
        assert_int_equal(p.wrong, 0);
    }
    pool_free(p.pool);
}

static void helper_is_late(void *context, unsigned id, unsigned width)
{
    (void)width;
    if (id != 0) {
        work_until(now_ns() + 2000000);
    }
    pool_barrier(context, id);
}

static void nothing(void *context, unsigned id, unsigned width)
{
    (void)context;
    (void)id;
    (void)width;
}

static void late_helpers_narrow_the_pool_and_a_rest_widens_it(void **state)
{
    struct err e = {0};
    struct pool *p = pool_new(2, &e);
    unsigned runs = 0;
    uint64_t begin;

    (void)state;
    assert_non_null(p);
    for (; pool_width(p) == 2 && runs < 1000; runs++) {
        pool_run(p, helper_is_late, p);
    }
    assert_int_equal(pool_width(p), 1);
    for (begin = now_ns(); pool_width(p) == 1 && now_ns() - begin < 5000000000u;) {
        pool_run(p, nothing, NULL);
    }
    assert_int_equal(pool_width(p), 2);
    pool_free(p);
}

static void unused_pools_end_and_too_many_threads_are_refused(void **state)
{
    struct err e = {0};

    (void)state;
    pool_free(pool_new(4, &e));
    pool_free(NULL);
    assert_null(pool_new(POOL_THREADS_MAX + 1, &e));
    assert_int_equal(e.code, ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barriers_separate_phases_for_any_number_of_threads),
        cmocka_unit_test(helpers_that_fell_asleep_wake_for_the_next_run),
        cmocka_unit_test(late_helpers_narrow_the_pool_and_a_rest_widens_it),
        cmocka_unit_test(unused_pools_end_and_too_many_threads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
