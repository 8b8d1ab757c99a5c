/* test_uuid.c - layout, order by time, and what is no identifier. */
#include "base/uuid.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* RFC 9562, appendix A.6. */
static void layout_is_that_of_the_rfc_example(void **state)
{
    const uint8_t random16[16] = {0,    0,    0,    0,    0,    0,    0x0c, 0xc3,
                                  0x18, 0xc4, 0xdc, 0x0c, 0x0c, 0x07, 0x39, 0x8f};
    char text[UUID_TEXT_BYTES + 1];

    (void)state;
    uuid_text(uuid_v7(0x017f22e279b0, random16), text);
    assert_string_equal(text, "017f22e2-79b0-7cc3-98c4-dc0c0c07398f");
}

static void version_and_variant_hold_for_any_random(void **state)
{
    (void)state;
    for (int fill = 0; fill < 256; fill++) {
        uint8_t random16[16];
        struct uuid u;

        memset(random16, fill, sizeof(random16));
        u = uuid_v7(UINT64_MAX, random16);
        assert_int_equal(u.b[6] >> 4, 7);
        assert_int_equal(u.b[8] >> 6, 2);
        assert_false(uuid_is_zero(u));
    }
}

static void bytes_and_text_are_ordered_by_time(void **state)
{
    static const uint64_t times_ms[] = {
        0, 1, 255, 256, 65535, 65536, 1767225600000, 1767225600001, ((uint64_t)1 << 48) - 1};
    struct uuid before = {{0}};
    char text_before[UUID_TEXT_BYTES + 1] = "";

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(times_ms); i++) {
        char text[UUID_TEXT_BYTES + 1];
        uint8_t random16[16];
        struct uuid u;

        memset(random16, 0xff - (int)i, sizeof(random16)); /* random falls while time rises */
        u = uuid_v7(times_ms[i], random16);
        uuid_text(u, text);
        assert_true(memcmp(before.b, u.b, sizeof(u.b)) < 0);
        assert_true(strcmp(text_before, text) < 0);
        before = u;
        memcpy(text_before, text, sizeof(text));
    }
}

static void random_bits_tell_two_of_one_millisecond_apart(void **state)
{
    (void)state;
    for (size_t i = 6; i < 16; i++) {
        uint8_t random16[16] = {0};
        struct uuid zero = uuid_v7(5, random16);

        random16[i] = 1;
        assert_false(uuid_eq(zero, uuid_v7(5, random16)));
    }
}

static void text_parses_back_in_either_case(void **state)
{
    struct uuid u, v;
    char text[UUID_TEXT_BYTES + 1];

    (void)state;
    assert_true(uuid_parse(STR("017F22E2-79B0-7CC3-98C4-DC0C0C07398F"), &u));
    uuid_text(u, text);
    assert_string_equal(text, "017f22e2-79b0-7cc3-98c4-dc0c0c07398f");
    assert_true(uuid_parse(str_c(text), &v));
    assert_true(uuid_eq(u, v));
}

static void other_texts_are_refused_and_change_nothing(void **state)
{
    static const char *const texts[] = {
        "",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398ff",
        "017f22e279b07cc398c4dc0c0c07398f",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398g",
        "017f22e2079b0-7cc3-98c4-dc0c0c07398f",
        "017f22e2-79b0-7cc3-98c40dc0c0c07398f",
        "{17f22e2-79b0-7cc3-98c4-dc0c0c07398}",
        "-17f22e2-79b0-7cc3-98c4-dc0c0c07398f",
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct uuid u = {{0}};

        if (uuid_parse(str_c(texts[i]), &u) || !uuid_is_zero(u)) {
            fail_msg("'%s' was taken", texts[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_is_that_of_the_rfc_example),
        cmocka_unit_test(version_and_variant_hold_for_any_random),
        cmocka_unit_test(bytes_and_text_are_ordered_by_time),
        cmocka_unit_test(random_bits_tell_two_of_one_millisecond_apart),
        cmocka_unit_test(text_parses_back_in_either_case),
        cmocka_unit_test(other_texts_are_refused_and_change_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
