/* test_ring.c - a ring is full at its bound, and two threads see every item once, in order. */
#include "worker/ring.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define ITEMS 200000

struct item {
    uint64_t number, twice;
};

static void full_at_its_bound_and_empty_after(void **state)
{
    struct ring r;
    struct item in = {0}, out;

    (void)state;
    ring_init(&r, sizeof(struct item), 20);
    assert_int_equal(r.cap, 32);
    assert_true(ring_is_empty(&r));
    for (uint64_t i = 0; i < 32; i++) {
        in.number = i;
        assert_true(ring_push(&r, &in));
    }
    assert_false(ring_push(&r, &in));
    for (uint64_t i = 0; i < 32; i++) {
        assert_true(ring_pop(&r, &out));
        assert_int_equal(out.number, i);
    }
    assert_false(ring_pop(&r, &out));
    ring_fini(&r);
}

static void *push_all(void *arg)
{
    struct ring *r = arg;

    for (uint64_t i = 0; i < ITEMS;) {
        struct item it = {.number = i, .twice = 2 * i};

        if (ring_push(r, &it)) {
            i++;
        } else {
            sched_yield();
        }
    }
    return NULL;
}

static void two_threads_see_every_item_in_order(void **state)
{
    struct ring r;
    pthread_t pusher;
    struct item it;

    (void)state;
    ring_init(&r, sizeof(struct item), 64);
    assert_int_equal(pthread_create(&pusher, NULL, push_all, &r), 0);
    for (uint64_t i = 0; i < ITEMS;) {
        if (ring_pop(&r, &it)) {
            assert_int_equal(it.number, i);
            assert_int_equal(it.twice, 2 * i);
            i++;
        } else {
            sched_yield();
        }
    }
    pthread_join(pusher, NULL);
    assert_true(ring_is_empty(&r));
    ring_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_at_its_bound_and_empty_after),
        cmocka_unit_test(two_threads_see_every_item_in_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
