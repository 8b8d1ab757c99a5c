/* test_money.c - decimal edges, exactness, and the end of a sum that does not fit. */
#include "base/money.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void usd_amounts_parse_exactly(void **state)
{
    static const struct {
        const char *text;
        int64_t pusd;
    } cases[] = {
        {"0", 0},
        {"12.5", 12500000000000},
        {"12", 12000000000000},
        {"0.000000000001", 1},
        {"1.000000000001", 1000000000001},
        {"0.100000000000", 100000000000},
        {"000001.5", 1500000000000},
        {"9223372.036854775807", INT64_MAX},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = {.code = ERR_NONE};
        struct money m = money_of(-1);

        if (!money_parse_usd(str_c(cases[i].text), &m, &e) || m.pusd != cases[i].pusd) {
            fail_msg("'%s' gave %lld (%s)", cases[i].text, (long long)m.pusd, e.text);
        }
    }
}

static void other_usd_texts_are_refused_with_a_story(void **state)
{
    static const struct {
        const char *text, *story;
    } cases[] = {
        {"0.0000000000001", "more than 12 decimals"},
        {"1.0000000000000", "more than 12 decimals"}, /* even where the 13th is zero */
        {"9223372.036854775808", "too large"},
        {"9223373", "too large"},
        {"99999999999999999999999999", "too large"},
        {"", "plain decimal"},
        {".", "plain decimal"},
        {".5", "plain decimal"},
        {"5.", "plain decimal"},
        {"-1", "plain decimal"},
        {"+1", "plain decimal"},
        {"1e3", "plain decimal"},
        {"1.5e3", "plain decimal"},
        {"1.2.3", "plain decimal"},
        {"1,5", "plain decimal"},
        {"1_000", "plain decimal"},
        {" 1", "plain decimal"},
        {"1 ", "plain decimal"},
        {"0x10", "plain decimal"},
        {"NaN", "plain decimal"},
        {"$5", "plain decimal"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = {.code = ERR_NONE};
        struct money m = money_of(77);

        if (money_parse_usd(str_c(cases[i].text), &m, &e) || m.pusd != 77 || e.code != ERR_INPUT ||
            strstr(e.text, cases[i].story) == NULL) {
            fail_msg("'%s' gave %lld (%s)", cases[i].text, (long long)m.pusd, e.text);
        }
    }
}

static void prices_are_pico_usd_a_token(void **state)
{
    struct err e = {.code = ERR_NONE};
    int64_t price = -1;

    (void)state;
    assert_true(money_parse_price(STR("0.15"), &price, &e));
    assert_int_equal(price, 150000);
    assert_true(money_parse_price(STR("0.000001"), &price, &e));
    assert_int_equal(price, 1);
    assert_true(money_parse_price(STR("9223372036854.775807"), &price, &e));
    assert_true(price == INT64_MAX);
    assert_false(money_parse_price(STR("0.0000001"), &price, &e));
    assert_non_null(strstr(e.text, "more than 6 decimals"));
    err_clear(&e);
    assert_false(money_parse_price(STR("9223372036854.775808"), &price, &e));
    assert_non_null(strstr(e.text, "too large"));
    assert_true(price == INT64_MAX);
}

static void assert_printed(struct money usd, const char *as_usd, int64_t price,
                           const char *as_price)
{
    struct buf b;

    buf_init(&b, 64);
    money_print_usd(&b, usd);
    buf_byte(&b, ' ');
    money_print_price(&b, price);
    buf_byte(&b, '\0');
    {
        char expected[64];

        snprintf(expected, sizeof(expected), "%s %s", as_usd, as_price);
        assert_string_equal((const char *)buf_view(&b).p, expected);
    }
    buf_fini(&b);
}

static void printing_is_exact(void **state)
{
    (void)state;
    assert_printed(money_of(1500000), "0.000001500000", 150000, "0.15");
    assert_printed(money_of(0), "0.000000000000", 0, "0");
    assert_printed(money_of(-1), "-0.000000000001", 1, "0.000001");
    assert_printed(money_of(MONEY_PUSD_PER_USD), "1.000000000000", 3000000, "3");
    assert_printed(money_of(INT64_MAX), "9223372.036854775807", 10000000, "10");
    assert_printed(money_of(INT64_MIN), "-9223372.036854775808", INT64_MIN,
                   "-9223372036854.775808");
}

static void printed_amounts_parse_back(void **state)
{
    int64_t v = 1;

    (void)state;
    for (int i = 0; i < 60; i++, v = v / 2 * 3 + i) {
        struct err e = {.code = ERR_NONE};
        struct buf b;
        struct money m;
        int64_t price;

        buf_init(&b, 64);
        money_print_usd(&b, money_of(v));
        assert_true(money_parse_usd(buf_view(&b), &m, &e));
        assert_true(m.pusd == v);
        buf_reset(&b);
        money_print_price(&b, v);
        assert_true(money_parse_price(buf_view(&b), &price, &e));
        assert_true(price == v);
        buf_fini(&b);
    }
}

static void nano_usd_rounds_up_to_the_next_whole(void **state)
{
    (void)state;
    assert_int_equal(money_nusd_ceil(money_of(0)), 0);
    assert_int_equal(money_nusd_ceil(money_of(1)), 1);
    assert_int_equal(money_nusd_ceil(money_of(1000)), 1);
    assert_int_equal(money_nusd_ceil(money_of(1001)), 2);
    assert_int_equal(money_nusd_ceil(money_of(-1)), 0);
    assert_int_equal(money_nusd_ceil(money_of(-1001)), -1);
    assert_true(money_nusd_ceil(money_of(INT64_MAX)) == INT64_MAX / 1000 + 1);
}

static void sums_up_to_the_edge_are_exact(void **state)
{
    (void)state;
    assert_true(money_add(money_of(INT64_MAX - 1), money_of(1)).pusd == INT64_MAX);
    assert_true(money_sub(money_of(INT64_MIN + 1), money_of(1)).pusd == INT64_MIN);
    assert_true(money_times(1000000, 150000).pusd == 150000000000);
    assert_true(money_times(INT64_MAX, 1).pusd == INT64_MAX);
}

static void add_past_the_edge(void)
{
    (void)money_add(money_of(INT64_MAX), money_of(1));
}

static void sub_past_the_edge(void)
{
    (void)money_sub(money_of(INT64_MIN), money_of(1));
}

static void times_past_the_edge(void)
{
    (void)money_times((int64_t)1 << 32, (int64_t)1 << 31);
}

static bool aborts(void (*f)(void))
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        close(STDERR_FILENO);
        f();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void overflow_ends_the_program_instead_of_wrapping(void **state)
{
    (void)state;
    assert_true(aborts(add_past_the_edge));
    assert_true(aborts(sub_past_the_edge));
    assert_true(aborts(times_past_the_edge));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usd_amounts_parse_exactly),
        cmocka_unit_test(other_usd_texts_are_refused_with_a_story),
        cmocka_unit_test(prices_are_pico_usd_a_token),
        cmocka_unit_test(printing_is_exact),
        cmocka_unit_test(printed_amounts_parse_back),
        cmocka_unit_test(nano_usd_rounds_up_to_the_next_whole),
        cmocka_unit_test(sums_up_to_the_edge_are_exact),
        cmocka_unit_test(overflow_ends_the_program_instead_of_wrapping),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
