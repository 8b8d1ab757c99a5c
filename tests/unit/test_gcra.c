/* test_gcra.c - a rate's arithmetic: exact waits, whole bursts, nothing given twice. */
#include "gateway/admit/gcra.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void a_full_minute_may_come_at_once_and_no_more(void **state)
{
    struct gcra g = {0};

    (void)state;
    assert_int_equal(gcra_remaining(&g, 3, 5), 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(gcra_wait_us(&g, 3, 1, 5), 0);
        gcra_take(&g, 3, 1, 5);
    }
    assert_int_equal(gcra_remaining(&g, 3, 5), 0);
    assert_int_equal(gcra_wait_us(&g, 3, 1, 5), 20000000);
    assert_int_equal(gcra_wait_us(&g, 3, 3, 5), 60000000);
    assert_int_equal(gcra_full_us(&g, 3, 5), 60000000);
    assert_int_equal(gcra_wait_us(&g, 3, 1, 5 + 20000000), 0);
    assert_int_equal(gcra_wait_us(&g, 3, 1, 4 + 20000000), 1);
}

/* For many limits and costs: a microsecond before the end of the wait it does not fit, then it
 * does. */
static void the_wait_is_exact(void **state)
{
    static const int64_t limit[] = {1, 3, 7, 60, 200, 999, 1000003, 59999999, GCRA_LIMIT_MAX};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(limit); i++) {
        int64_t l = limit[i], cost = l / 3 + 1;
        struct gcra g = {0};
        uint64_t wait;

        gcra_take(&g, l, l, 100);
        wait = gcra_wait_us(&g, l, cost, 100);
        assert_true(wait > 0 && wait <= GCRA_MINUTE_US);
        assert_int_equal(gcra_wait_us(&g, l, cost, 100 + wait), 0);
        assert_int_equal(gcra_wait_us(&g, l, cost, 100 + wait - 1), 1);
        gcra_take(&g, l, cost, 100 + wait);
        assert_true(gcra_remaining(&g, l, 100 + wait) >= 0);
    }
}

static void what_comes_back_can_be_taken_again_once(void **state)
{
    struct gcra g = {0};

    (void)state;
    gcra_take(&g, 200, 150, 0);
    gcra_return(&g, 100);
    assert_int_equal(gcra_remaining(&g, 200, 0), 150);
    gcra_return(&g, 100); /* more than is owed: never above full */
    assert_int_equal(gcra_remaining(&g, 200, 0), 200);
    gcra_take(&g, 200, 200, 0);
    assert_int_equal(gcra_remaining(&g, 200, 0), 0);
    /* Half a minute drained 100 of 200; giving back 150 leaves full, not a credit. */
    gcra_return(&g, 150);
    assert_int_equal(gcra_remaining(&g, 200, 30000000), 200);
}

static void a_lowered_limit_is_paid_off_within_a_minute(void **state)
{
    struct gcra g = {0};

    (void)state;
    gcra_take(&g, 1000000, 1000000, 0);
    assert_int_equal(gcra_remaining(&g, 10, 0), 0);
    assert_int_equal(gcra_wait_us(&g, 10, 10, 0), 60000000);
    assert_int_equal(gcra_remaining(&g, 10, 60000000), 10);
}

static void a_clock_that_is_behind_gives_nothing(void **state)
{
    struct gcra g = {0};

    (void)state;
    gcra_take(&g, 60, 60, 1000000000);
    assert_int_equal(gcra_remaining(&g, 60, 10), 0);
    assert_int_equal(gcra_remaining(&g, 60, 1001000000), 1);
}

/* Over any stretch of time no more than limit + limit x elapsed gets through, whatever is asked. */
static void no_stretch_passes_more_than_its_share(void **state)
{
    uint64_t seed = 7, now = 0, through = 0;
    const int64_t limit = 977;
    struct gcra g = {0};

    (void)state;
    for (int i = 0; i < 200000; i++) {
        int64_t cost;

        seed = seed * 6364136223846793005u + 1442695040888963407u;
        now += (seed >> 33) % 400000;
        cost = (int64_t)((seed >> 20) % 120);
        if (gcra_wait_us(&g, limit, cost, now) == 0) {
            gcra_take(&g, limit, cost, now);
            through += (uint64_t)cost;
        }
        assert_true(through * GCRA_MINUTE_US <= (uint64_t)limit * (GCRA_MINUTE_US + now));
    }
    assert_true(through * GCRA_MINUTE_US * 10 > (uint64_t)limit * now * 9); /* and it is no brake */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_minute_may_come_at_once_and_no_more),
        cmocka_unit_test(the_wait_is_exact),
        cmocka_unit_test(what_comes_back_can_be_taken_again_once),
        cmocka_unit_test(a_lowered_limit_is_paid_off_within_a_minute),
        cmocka_unit_test(a_clock_that_is_behind_gives_nothing),
        cmocka_unit_test(no_stretch_passes_more_than_its_share),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
