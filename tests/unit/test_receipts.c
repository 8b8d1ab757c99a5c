/* test_receipts.c - the last RECEIPTS_MAX events are known, older ones are not, none twice. */
#include "worker/receipts.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct uuid numbered(uint32_t n)
{
    struct uuid u = {{1}};

    memcpy(u.b + 4, &n, sizeof(n));
    return u;
}

static void the_last_ones_are_known_and_none_twice(void **state)
{
    struct receipts *r = receipts_new(7);
    uint32_t total = 2 * RECEIPTS_MAX + 10;

    (void)state;
    for (uint32_t i = 0; i < total; i++) {
        struct receipt *one = receipts_add(r, numbered(i));

        assert_non_null(one);
        assert_int_equal(one->state, RECEIPT_QUEUED);
        one->completion = i;
        assert_null(receipts_add(r, numbered(i)));
    }
    assert_null(receipts_find(r, numbered(0)));
    assert_null(receipts_find(r, numbered(total - RECEIPTS_MAX - 1)));
    for (uint32_t i = total - RECEIPTS_MAX; i < total; i++) {
        assert_int_equal(receipts_find(r, numbered(i))->completion, i);
    }
    assert_non_null(receipts_add(r, numbered(0))); /* forgotten, so new */
    receipts_free(r);
}

static void states_have_names_and_an_end(void **state)
{
    struct receipt r = {.state = RECEIPT_RUNNING};

    (void)state;
    assert_true(receipt_is_live(&r));
    r.state = RECEIPT_ABORTED;
    assert_false(receipt_is_live(&r));
    assert_string_equal(receipt_state_name(r.state), "aborted");
    assert_string_equal(receipt_state_name(RECEIPT_QUEUED), "queued");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_ones_are_known_and_none_twice),
        cmocka_unit_test(states_have_names_and_an_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
