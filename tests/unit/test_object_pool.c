/* test_object_pool.c - objects of one size: zeroed, handed out again, and no more at rest than
 * said. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/pool.h"

#define BYTES 200
#define KEEP 8

static void objects_come_zeroed_also_the_second_time(void **state)
{
    struct pool p;

    (void)state;
    pool_init(&p, BYTES, KEEP);
    for (int round = 0; round < 3; round++) {
        uint8_t *o = pool_take(&p);

        for (size_t i = 0; i < BYTES; i++) {
            assert_int_equal(o[i], 0);
        }
        memset(o, 0xaa, BYTES);
        pool_give(&p, o);
    }
    pool_fini(&p);
}

static void no_more_rest_than_the_bound(void **state)
{
    void *out[3 * KEEP];
    struct pool p;

    (void)state;
    pool_init(&p, BYTES, KEEP);
    for (size_t i = 0; i < ARRAY_LEN(out); i++) {
        out[i] = pool_take(&p);
    }
    for (size_t i = 0; i < ARRAY_LEN(out); i++) {
        pool_give(&p, out[i]);
        assert_true(p.count <= p.keep_max && p.keep_max <= KEEP);
    }
    pool_give(&p, NULL);
    pool_fini(&p);
    assert_int_equal(p.count, 0);
    assert_null(p.kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(objects_come_zeroed_also_the_second_time),
        cmocka_unit_test(no_more_rest_than_the_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
