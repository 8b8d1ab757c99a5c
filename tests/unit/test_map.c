/* test_map.c - the map against a plain array, its bound, its order, and missing memory. */
#include "base/map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

static bool memory_refused;

void *__real_mem_try(size_t count, size_t bytes);
void *__wrap_mem_try(size_t count, size_t bytes);
void *__wrap_mem_try(size_t count, size_t bytes)
{
    return memory_refused ? NULL : __real_mem_try(count, bytes);
}

static int values[4096];     /* value of key i is &values[i] */
static char names[4096][24]; /* "k" and any size_t */

static struct str key(size_t i)
{
    snprintf(names[i], sizeof(names[i]), "k%zu", i);
    return str_c(names[i]);
}

static void put_get_replace_delete(void **state)
{
    struct map m;
    char other[] = "a";
    struct str k;
    size_t it = 0;

    (void)state;
    map_init(&m, 1, 10);
    assert_null(map_get(&m, STR("a")));
    assert_null(map_del(&m, STR("a")));
    assert_true(map_put(&m, STR("a"), &values[0]));
    assert_true(map_put(&m, str_c(NULL), &values[1])); /* the empty key is a key */
    assert_ptr_equal(map_get(&m, STR("a")), &values[0]);
    assert_ptr_equal(map_get(&m, STR("")), &values[1]);
    assert_true(map_put(&m, str_of(other, 1), &values[2]));
    assert_int_equal(m.count, 2);
    assert_ptr_equal(map_next(&m, &it, &k), &values[2]);
    assert_ptr_equal(k.p, other); /* the key pointer is the new one */
    assert_ptr_equal(map_del(&m, STR("a")), &values[2]);
    assert_null(map_get(&m, STR("a")));
    assert_int_equal(m.count, 1);
    map_fini(&m);
}

static void the_bound_refuses_new_keys_only(void **state)
{
    struct map m;

    (void)state;
    map_init(&m, 1, 100);
    for (size_t i = 0; i < 100; i++) {
        assert_true(map_put(&m, key(i), &values[i]));
    }
    assert_false(map_put(&m, key(100), &values[100]));
    assert_null(map_get(&m, key(100)));
    assert_true(map_put(&m, key(5), &values[6]));
    assert_ptr_equal(map_del(&m, key(7)), &values[7]);
    assert_true(map_put(&m, key(100), &values[100]));
    assert_int_equal(m.count, 100);
    map_fini(&m);
    map_init(&m, 1, 0);
    assert_false(map_put(&m, key(0), &values[0]));
    map_fini(&m);
}

static void random_steps_agree_with_a_plain_array(void **state)
{
    enum { KEYS = 200 };

    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        bool held[KEYS] = {false};
        size_t count = 0;
        uint32_t random = (uint32_t)seed + 1;
        struct map m;

        map_init(&m, seed, KEYS);
        for (int step = 0; step < 5000; step++) {
            size_t i;

            random = random * 1664525 + 1013904223;
            i = (random >> 8) % KEYS;
            if ((random >> 28) < 8) {
                assert_true(map_put(&m, key(i), &values[i]));
                count += held[i] ? 0 : 1;
                held[i] = true;
            } else {
                assert_ptr_equal(map_del(&m, key(i)), held[i] ? &values[i] : NULL);
                count -= held[i] ? 1 : 0;
                held[i] = false;
            }
            assert_int_equal(m.count, count);
            assert_true(m.order_len <= m.cap);
        }
        for (size_t i = 0; i < KEYS; i++) {
            assert_ptr_equal(map_get(&m, key(i)), held[i] ? &values[i] : NULL);
        }
        map_fini(&m);
    }
}

static void iteration_follows_insertion_through_growth_and_deletion(void **state)
{
    struct map m;
    size_t it = 0, expected = 0;
    struct str k;
    int *v;

    (void)state;
    map_init(&m, 99, 4096);
    for (size_t i = 0; i < 4096; i++) {
        assert_true(map_put(&m, key(i), &values[i]));
        if (i % 3 == 1) {
            assert_non_null(map_del(&m, key(i)));
        }
    }
    while ((v = map_next(&m, &it, &k)) != NULL) {
        expected += expected % 3 == 1 ? 1 : 0;
        assert_ptr_equal(v, &values[expected]);
        assert_ptr_equal(k.p, names[expected]);
        expected++;
    }
    assert_int_equal(expected, 4096);
    map_fini(&m);
}

static void the_current_entry_may_be_deleted_while_iterating(void **state)
{
    struct map m;
    size_t it = 0, seen = 0;
    struct str k;
    int *v;

    (void)state;
    map_init(&m, 3, 1000);
    for (size_t i = 0; i < 1000; i++) {
        assert_true(map_put(&m, key(i), &values[i]));
    }
    while ((v = map_next(&m, &it, &k)) != NULL) {
        assert_ptr_equal(v, &values[seen]);
        if (seen % 10 != 0) {
            assert_ptr_equal(map_del(&m, k), v);
        }
        seen++;
    }
    assert_int_equal(seen, 1000);
    assert_int_equal(m.count, 100);
    for (size_t i = 0; i < 1000; i++) {
        assert_ptr_equal(map_get(&m, key(i)), i % 10 == 0 ? &values[i] : NULL);
    }
    map_fini(&m);
}

static void churn_at_a_small_size_stays_small(void **state)
{
    struct map m;

    (void)state;
    map_init(&m, 3, 4096);
    assert_true(map_put(&m, key(4095), &values[4095])); /* pins the front of the order */
    for (size_t i = 0; i < 4000; i++) {
        assert_true(map_put(&m, key(i), &values[i]));
        if (i >= 3) {
            assert_ptr_equal(map_del(&m, key(i - 3)), &values[i - 3]);
        }
    }
    assert_int_equal(m.count, 4);
    assert_int_equal(m.cap, 8);
    map_fini(&m);
}

static void missing_memory_refuses_and_keeps_what_is_there(void **state)
{
    struct map m;
    size_t held = 0;

    (void)state;
    map_init(&m, 3, 100);
    memory_refused = true;
    assert_false(map_put(&m, key(0), &values[0]));
    memory_refused = false;
    assert_true(map_put(&m, key(held), &values[held]));
    held++;
    memory_refused = true;
    while (map_put(&m, key(held), &values[held])) {
        held++;
    }
    assert_in_range(held, 2, 8);
    for (size_t i = 0; i < held; i++) {
        assert_ptr_equal(map_get(&m, key(i)), &values[i]);
    }
    memory_refused = false;
    assert_true(map_put(&m, key(held), &values[held]));
    map_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(put_get_replace_delete),
        cmocka_unit_test(the_bound_refuses_new_keys_only),
        cmocka_unit_test(random_steps_agree_with_a_plain_array),
        cmocka_unit_test(iteration_follows_insertion_through_growth_and_deletion),
        cmocka_unit_test(the_current_entry_may_be_deleted_while_iterating),
        cmocka_unit_test(churn_at_a_small_size_stays_small),
        cmocka_unit_test(missing_memory_refuses_and_keeps_what_is_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
