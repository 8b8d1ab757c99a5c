/* test_pool.c - every thread works once a run, barriers separate phases, late helpers narrow it;
 * how many threads a control group leaves. */
#include "worker/cpu/pool.h"

#include "worker/backend.h"
#include "worker/cpu/quota.h"

#include <setjmp.h>
#include <stdarg.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
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

static void write_file(const char *root, const char *name, const char *text)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_true(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void make_folder(const char *root, const char *name)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", root, name);
    assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
}

/* A group of depth two in a file tree of its own: own quota, the parent's, or version 1's. */
static void quota_of_any_group_above_bounds_the_threads(void **state)
{
    static const struct {
        const char *own, *parent, *v1_quota;
        unsigned want;
    } table[] = {
        {"max 100000\n", "max 100000\n", NULL, 8},
        {"150000 100000\n", "max 100000\n", NULL, 2},
        {"200000 100000\n", "max 100000\n", NULL, 2},
        {"max 100000\n", "300000 100000\n", NULL, 3},
        {"10000 100000\n", "max 100000\n", NULL, 1},
        {"9900000 100000\n", "max 100000\n", NULL, 8},
        {"nonsense\n", "max 100000\n", NULL, 8},
        {"400000 100000\n", "500000 100000\n", NULL, 4},
        {"max 100000\n", "max 100000\n", "250000\n", 3},
        {"max 100000\n", "max 100000\n", "-1\n", 8},
    };
    char root[] = "/tmp/test_pool.XXXXXX", membership[64], remove[128];

    (void)state;
    assert_non_null(mkdtemp(root));
    make_folder(root, "a");
    make_folder(root, "a/b");
    make_folder(root, "cpu");
    write_file(root, "membership", "0::/a/b\n");
    write_file(root, "cpu/cpu.cfs_period_us", "100000\n");
    snprintf(membership, sizeof(membership), "%s/membership", root);
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        write_file(root, "a/b/cpu.max", table[i].own);
        write_file(root, "a/cpu.max", table[i].parent);
        write_file(root, "cpu/cpu.cfs_quota_us",
                   table[i].v1_quota != NULL ? table[i].v1_quota : "-1\n");
        assert_int_equal(quota_limit(8, root, membership), table[i].want);
    }
    assert_int_equal(quota_limit(8, "/nonexistent", "/nonexistent"), 8);
    snprintf(remove, sizeof(remove), "rm -r %s", root);
    assert_int_equal(system(remove), 0);
}

static void memory_of_any_group_above_bounds_the_pool(void **state)
{
    char root[] = "/tmp/test_pool.XXXXXX", membership[64], remove[128];

    (void)state;
    assert_non_null(mkdtemp(root));
    make_folder(root, "a");
    make_folder(root, "a/b");
    write_file(root, "membership", "0::/a/b\n");
    snprintf(membership, sizeof(membership), "%s/membership", root);
    assert_int_equal(quota_memory(1000, root, membership), 1000);
    write_file(root, "a/b/memory.max", "max\n");
    assert_int_equal(quota_memory(1000, root, membership), 1000);
    write_file(root, "a/memory.max", "700\n");
    assert_int_equal(quota_memory(1000, root, membership), 700);
    write_file(root, "a/b/memory.max", "600\n");
    assert_int_equal(quota_memory(1000, root, membership), 600);
    assert_int_equal(quota_memory(500, root, membership), 500);
    make_folder(root, "memory"); /* version 1, as containers see it */
    write_file(root, "memory/memory.limit_in_bytes", "400\n");
    assert_int_equal(quota_memory(1000, root, "/nonexistent"), 400);
    snprintf(remove, sizeof(remove), "rm -r %s", root);
    assert_int_equal(system(remove), 0);
}

static void affinity_bounds_the_threads(void **state)
{
    cpu_set_t all, one;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    assert_in_range(backend_default_threads(), 1, CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (int i = 0; CPU_COUNT(&one) == 0; i++) {
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &one);
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(backend_default_threads(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barriers_separate_phases_for_any_number_of_threads),
        cmocka_unit_test(helpers_that_fell_asleep_wake_for_the_next_run),
        cmocka_unit_test(late_helpers_narrow_the_pool_and_a_rest_widens_it),
        cmocka_unit_test(quota_of_any_group_above_bounds_the_threads),
        cmocka_unit_test(memory_of_any_group_above_bounds_the_pool),
        cmocka_unit_test(affinity_bounds_the_threads),
        cmocka_unit_test(unused_pools_end_and_too_many_threads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
