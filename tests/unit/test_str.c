/* test_str.c - comparing, cutting, numbers, hex and the table of well-formed UTF-8. */
#include "base/str.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

static void comparing_is_bytewise_and_shorter_comes_first(void **state)
{
    (void)state;
    assert_true(str_eq(STR(""), str_c(NULL)));
    assert_true(str_ieq(STR("Content-Type"), STR("content-tYPE")));
    assert_false(str_ieq(STR("a["), STR("A{"))); /* 0x20 apart, but no letters */
    assert_false(str_ieq(STR("a"), STR("ab")));
    assert_true(str_cmp(STR("ab"), STR("abc")) < 0);
    assert_true(str_cmp(STR("\xff"), STR("a")) > 0);
    assert_true(str_cmp(str_c(NULL), STR("")) == 0);
}

static void starts_ends_and_find_take_the_empty_needle(void **state)
{
    (void)state;
    assert_true(str_starts(STR("tg_abc"), STR("tg_")));
    assert_false(str_starts(STR("tg"), STR("tg_")));
    assert_true(str_ends(STR("a.gguf"), STR(".gguf")));
    assert_true(str_ends(str_c(NULL), str_c(NULL)));
    assert_int_equal(str_find(STR("aab"), STR("ab")), 1);
    assert_int_equal(str_find(STR("aab"), STR("")), 0);
    assert_true(str_find(STR("a"), STR("aa")) == SIZE_MAX);
    assert_true(str_find(STR("abc"), STR("x")) == SIZE_MAX);
}

static void trim_takes_spaces_and_tabs_only(void **state)
{
    (void)state;
    assert_true(str_eq(str_trim(STR(" \t a b\t ")), STR("a b")));
    assert_true(str_eq(str_trim(STR("\r\n")), STR("\r\n")));
    assert_int_equal(str_trim(STR(" \t ")).n, 0);
}

static void cut_splits_at_the_first_separator(void **state)
{
    struct str head, rest;

    (void)state;
    assert_true(str_cut(STR("a=b=c"), '=', &head, &rest));
    assert_true(str_eq(head, STR("a")) && str_eq(rest, STR("b=c")));
    assert_true(str_cut(STR("a="), '=', &head, &rest));
    assert_true(str_eq(head, STR("a")) && rest.n == 0);
    assert_false(str_cut(STR("abc"), '=', &head, &rest));
    assert_true(str_eq(head, STR("abc")) && rest.n == 0);
    assert_false(str_cut(str_c(NULL), '=', &head, &rest));
}

static void integers_are_whole_slices_in_range(void **state)
{
    static const struct {
        const char *text;
        bool is_u64, is_i64;
        uint64_t u;
        int64_t i;
    } cases[] = {
        {"0", true, true, 0, 0},
        {"007", true, true, 7, 7},
        {"18446744073709551615", true, false, UINT64_MAX, 0},
        {"18446744073709551616", false, false, 0, 0},
        {"99999999999999999999", false, false, 0, 0},
        {"9223372036854775807", true, true, INT64_MAX, INT64_MAX},
        {"9223372036854775808", true, false, 9223372036854775808u, 0},
        {"-9223372036854775808", false, true, 0, INT64_MIN},
        {"-9223372036854775809", false, false, 0, 0},
        {"-0", false, true, 0, 0},
        {"", false, false, 0, 0},
        {"-", false, false, 0, 0},
        {"--1", false, false, 0, 0},
        {"+1", false, false, 0, 0},
        {" 1", false, false, 0, 0},
        {"1 ", false, false, 0, 0},
        {"0x1", false, false, 0, 0},
        {"1.0", false, false, 0, 0},
    };

    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
        uint64_t u = 0;
        int64_t i = 0;

        if (str_u64(str_c(cases[k].text), &u) != cases[k].is_u64 || u != cases[k].u ||
            str_i64(str_c(cases[k].text), &i) != cases[k].is_i64 || i != cases[k].i) {
            fail_msg("'%s' gave %llu and %lld", cases[k].text, (unsigned long long)u, (long long)i);
        }
    }
}

static void hex_round_trips_and_refuses_other_lengths(void **state)
{
    const uint8_t bytes[3] = {0x00, 0xa5, 0xff};
    uint8_t back[3];
    char text[7];

    (void)state;
    str_hex(bytes, sizeof(bytes), text);
    assert_string_equal(text, "00a5ff");
    assert_true(str_unhex(STR("00A5fF"), back, 3));
    assert_memory_equal(back, bytes, 3);
    assert_false(str_unhex(STR("00a5f"), back, 3));
    assert_false(str_unhex(STR("00a5ff0"), back, 3));
    assert_false(str_unhex(STR("00a5fg"), back, 3));
    assert_false(str_unhex(STR("00a5"), back, 3));
}

static void copy_cuts_and_terminates(void **state)
{
    char out[4];

    (void)state;
    assert_string_equal(str_copy(STR("abcdef"), out, sizeof(out)), "abc");
    assert_string_equal(str_copy(str_c(NULL), out, sizeof(out)), "");
    assert_string_equal(str_copy(STR("abc"), out, 1), "");
}

/* Each text stands alone in a heap block of its size, so that a read past it is seen. */
static size_t valid_prefix(const char *p, size_t n)
{
    char *copy = malloc(n != 0 ? n : 1);
    size_t valid;

    assert_non_null(copy);
    memcpy(copy, p, n);
    valid = str_utf8_valid(str_of(copy, n));
    free(copy);
    return valid;
}

static void utf8_table_of_edges(void **state)
{
    static const struct {
        const char *bytes;
        size_t valid;
    } cases[] = {
        {"", 0},
        {"plain ASCII that passes eight bytes", 35},
        {"\x7f", 1},
        {"\x80", 0}, /* continuation alone */
        {"\xbf", 0},
        {"\xc0\x80", 0}, /* overlong NUL */
        {"\xc1\xbf", 0}, /* overlong 7F */
        {"\xc2\x80", 2}, /* U+0080 */
        {"\xdf\xbf", 2}, /* U+07FF */
        {"\xc2", 0},     /* cut short */
        {"\xc2\x41", 0},
        {"\xc2\xc0", 0},
        {"\xe0\x9f\xbf", 0}, /* overlong U+07FF */
        {"\xe0\xa0\x80", 3}, /* U+0800 */
        {"\xed\x9f\xbf", 3}, /* U+D7FF */
        {"\xed\xa0\x80", 0}, /* U+D800, surrogate */
        {"\xed\xbf\xbf", 0}, /* U+DFFF */
        {"\xee\x80\x80", 3}, /* U+E000 */
        {"\xef\xbf\xbf", 3}, /* U+FFFF */
        {"\xe2\x82", 0},
        {"\xe2\x82\x41", 0},
        {"\xf0\x8f\xbf\xbf", 0}, /* overlong U+FFFF */
        {"\xf0\x90\x80\x80", 4}, /* U+10000 */
        {"\xf4\x8f\xbf\xbf", 4}, /* U+10FFFF */
        {"\xf4\x90\x80\x80", 0}, /* past Unicode */
        {"\xf5\x80\x80\x80", 0},
        {"\xff", 0},
        {"\xfe", 0},
        {"\xf0\x9f\x98", 0},
        {"\xf0\x9f\x98\x41", 0},
        {"ab\xc3\xa9zz\xc3", 6}, /* prefix before the cut */
        {"12345678\xff"
         "90",
         8},
        {"1234567\xe2\x82\xac"
         "12345678\xf0\x9f\x98\x80"
         "1",
         23},
    };

    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
        size_t valid = valid_prefix(cases[k].bytes, strlen(cases[k].bytes));

        if (valid != cases[k].valid) {
            fail_msg("case %zu: %zu bytes valid, expected %zu", k, valid, cases[k].valid);
        }
    }
}

static void utf8_takes_every_scalar_value_and_nothing_else(void **state)
{
    (void)state;
    for (uint32_t c = 0x800; c < 0x120000; c += 61) {
        bool wide = c >= 0x10000;
        bool expected = (c < 0xd800 || c > 0xdfff) && c <= 0x10ffff;
        char p[4] = {(char)(0xf0 | c >> 18), (char)(0x80 | (c >> 12 & 63)),
                     (char)(0x80 | (c >> 6 & 63)), (char)(0x80 | (c & 63))};
        size_t n = wide ? 4 : 3;

        if (!wide) {
            p[0] = (char)(0xe0 | c >> 12);
            p[1] = p[2];
            p[2] = p[3];
        }
        if (str_utf8_valid(str_of(p, n)) != (expected ? n : 0)) {
            fail_msg("U+%04X", c);
        }
    }
}

static void numbers_are_written_in_decimal(void **state)
{
    static const struct {
        uint64_t v;
        const char *text;
    } cases[] = {{0, "0"},
                 {9, "9"},
                 {10, "10"},
                 {99, "99"},
                 {100, "100"},
                 {1234567890, "1234567890"},
                 {UINT64_MAX, "18446744073709551615"}};
    char to[STR_U64_BYTES];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct str s = str_of_u64(cases[i].v, to);

        assert_string_equal(to, cases[i].text);
        assert_int_equal(s.n, strlen(cases[i].text));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_written_in_decimal),
        cmocka_unit_test(comparing_is_bytewise_and_shorter_comes_first),
        cmocka_unit_test(starts_ends_and_find_take_the_empty_needle),
        cmocka_unit_test(trim_takes_spaces_and_tabs_only),
        cmocka_unit_test(cut_splits_at_the_first_separator),
        cmocka_unit_test(integers_are_whole_slices_in_range),
        cmocka_unit_test(hex_round_trips_and_refuses_other_lengths),
        cmocka_unit_test(copy_cuts_and_terminates),
        cmocka_unit_test(utf8_table_of_edges),
        cmocka_unit_test(utf8_takes_every_scalar_value_and_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
