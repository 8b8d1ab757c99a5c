/* test_cost.c - the cost of a step: learned from steps, kept while they all look alike. */
#include "worker/engine/cost.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void a_line_is_learned_from_steps_of_two_sizes(void **state)
{
    struct cost c = {0};

    (void)state;
    for (int i = 0; i < 20; i++) {
        uint32_t rows = i % 4 == 0 ? 100 : 4;

        cost_learn(&c, rows, 500 + 7 * rows);
    }
    assert_true(fabs(c.a - 500) < 1 && fabs(c.b - 7) < 0.1);
    assert_in_range(cost_rows(&c, 1200), 99, 100);
    assert_int_equal(cost_rows(&c, 400), 0);
}

static void a_row_is_taken_for_a_whole_step_until_sizes_differ(void **state)
{
    struct cost c = {0};

    (void)state;
    assert_int_equal(cost_rows(&c, 1), UINT32_MAX); /* nothing known */
    for (int i = 0; i < 10; i++) {
        cost_learn(&c, 1, 300);
    }
    assert_int_equal(cost_rows(&c, 1000), 3);
}

static void the_slope_outlives_steps_that_are_all_alike(void **state)
{
    struct cost c = {0};

    (void)state;
    for (int i = 0; i < 20; i++) {
        cost_learn(&c, 1 + (uint32_t)i % 2 * 63, 100 + 5 * (1 + (uint32_t)i % 2 * 63));
    }
    for (int i = 0; i < 2000; i++) {
        cost_learn(&c, 1, 105);
    }
    assert_true(fabs(c.b - 5) < 0.1 && fabs(c.a - 100) < 1);
}

static void neither_part_of_a_cost_is_negative(void **state)
{
    struct cost c = {0};

    (void)state;
    for (int i = 0; i < 50; i++) { /* noise that falls with rows, then a steep one */
        cost_learn(&c, 1 + (uint32_t)i % 9,
                   i < 25 ? 100 - (uint64_t)i % 9 * 10 : (uint64_t)(i % 9) * 99);
        assert_true(c.a >= 0 && c.b >= 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_learned_from_steps_of_two_sizes),
        cmocka_unit_test(a_row_is_taken_for_a_whole_step_until_sizes_differ),
        cmocka_unit_test(the_slope_outlives_steps_that_are_all_alike),
        cmocka_unit_test(neither_part_of_a_cost_is_negative),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
