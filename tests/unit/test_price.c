/* test_price.c - cost is the sum of tokens x price, to the last pico-USD. */
#include "ledger/price.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const struct price dear = {.in_pusd = 1000000,
                                  .cached_pusd = 100000,
                                  .cw_5m_pusd = 1250000,
                                  .cw_1h_pusd = 2000000,
                                  .out_pusd = 2000000,
                                  .reasoning_pusd = 3000000,
                                  .list_in_pusd = 1000000,
                                  .list_out_pusd = 2000000};

static void each_class_has_its_price(void **state)
{
    static const struct {
        struct tokens t;
        int64_t cost, list;
    } cases[] = {
        {{0, 0, 0, 0, 0, 0}, 0, 0},
        {{1, 0, 0, 0, 0, 0}, 1000000, 1000000},
        {{0, 1, 0, 0, 0, 0}, 100000, 1000000},
        {{0, 0, 1, 0, 0, 0}, 1250000, 1000000},
        {{0, 0, 0, 1, 0, 0}, 2000000, 1000000},
        {{0, 0, 0, 0, 1, 0}, 2000000, 2000000},
        {{0, 0, 0, 0, 0, 1}, 3000000, 2000000},
        {{100, 900, 0, 0, 5, 0}, 200000000, 1010000000},
        {{INT32_MAX, 0, 0, 0, 0, 0}, 2147483647000000, 2147483647000000},
    };
    size_t i;

    (void)state;
    for (i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(price_cost(&dear, &cases[i].t).pusd, cases[i].cost);
        assert_int_equal(price_list_cost(&dear, &cases[i].t).pusd, cases[i].list);
    }
}

/* However the engine splits the tokens into classes, the hold covers them. */
static void bound_covers_every_split(void **state)
{
    uint32_t x = 12345;
    int i;

    (void)state;
    for (i = 0; i < 20000; i++) {
        struct tokens t;
        int32_t *v[] = {&t.in_uncached, &t.in_cached, &t.cw_5m, &t.cw_1h, &t.out, &t.reasoning};
        struct price p = dear;
        size_t k;

        for (k = 0; k < ARRAY_LEN(v); k++) {
            x = x * 1664525u + 1013904223u;
            *v[k] = (int32_t)(x >> 20);
        }
        x = x * 1664525u + 1013904223u;
        p.cached_pusd = x >> 8; /* also dearer than uncached */
        assert_true(price_cost(&p, &t).pusd <=
                    price_bound(&p, tokens_prompt(&t), tokens_output(&t)).pusd);
    }
}

static void prompt_and_output_are_sums_of_classes(void **state)
{
    struct tokens t = {1, 20, 300, 4000, 50000, 600000};

    (void)state;
    assert_int_equal(tokens_prompt(&t), 4321);
    assert_int_equal(tokens_output(&t), 650000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_class_has_its_price),
        cmocka_unit_test(bound_covers_every_split),
        cmocka_unit_test(prompt_and_output_are_sums_of_classes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
