/* test_lane.c - tasks beside a loop: in order, within the bound, taken back, and an end at any
 * moment. Also under the thread sanitizer. */
#include "worker/lane.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/net/os.h"

#define TASKS 8

/* A door that the task at hand waits at. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t bell;
    bool open;
    uint32_t inside;
};

struct world;
struct item {
    struct lane_task task;
    struct world *w;
    uint32_t worked, told; /* counts; the lane's until it is told */
};

struct world {
    struct env *env;
    struct lane *lane;
    struct gate gate;
    struct item item[TASKS];
    uint32_t order[TASKS], n; /* as they were told */
    uint32_t wanted;          /* the loop stops there */
};

static void work(struct lane_task *t)
{
    struct item *i = CONTAINER_OF(t, struct item, task);
    struct gate *g = &i->w->gate;

    pthread_mutex_lock(&g->lock);
    g->inside++;
    pthread_cond_broadcast(&g->bell);
    while (!g->open) {
        pthread_cond_wait(&g->bell, &g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    i->worked++;
}

static void on_done(void *ctx, struct lane_task *t)
{
    struct world *w = ctx;
    struct item *i = CONTAINER_OF(t, struct item, task);

    i->told++;
    w->order[w->n++] = (uint32_t)(i - w->item);
    if (w->n == w->wanted) {
        os_stop(w->env);
    }
}

static void world_open(struct world *w, uint32_t tasks_max)
{
    struct err e = {0};

    memset(w, 0, sizeof(*w));
    pthread_mutex_init(&w->gate.lock, NULL);
    pthread_cond_init(&w->gate.bell, NULL);
    for (uint32_t i = 0; i < TASKS; i++) {
        w->item[i].w = w;
        w->item[i].task.work = work;
    }
    w->env = os_env_new(NULL, &e);
    assert_non_null(w->env);
    w->lane = lane_new(w->env, tasks_max, 1, on_done, w);
    assert_non_null(w->lane);
}

static void world_close(struct world *w)
{
    lane_free(w->lane);
    os_env_free(w->env);
    pthread_cond_destroy(&w->gate.bell);
    pthread_mutex_destroy(&w->gate.lock);
}

static bool push(struct world *w, uint32_t i)
{
    return lane_push(w->lane, &w->item[i].task);
}

static void wait_inside(struct world *w, uint32_t n)
{
    pthread_mutex_lock(&w->gate.lock);
    while (w->gate.inside < n) {
        pthread_cond_wait(&w->gate.bell, &w->gate.lock);
    }
    pthread_mutex_unlock(&w->gate.lock);
}

static void open_gate(struct world *w)
{
    pthread_mutex_lock(&w->gate.lock);
    w->gate.open = true;
    pthread_cond_broadcast(&w->gate.bell);
    pthread_mutex_unlock(&w->gate.lock);
}

static void *run_opener(void *w)
{
    open_gate(w);
    return NULL;
}

static void run_until(struct world *w, uint32_t told)
{
    w->wanted = told;
    os_run(w->env);
    assert_int_equal(w->n, told);
}

static void tasks_are_done_once_in_the_order_they_came(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, TASKS);
    open_gate(&w);
    for (uint32_t i = 0; i < TASKS; i++) {
        assert_true(push(&w, i));
    }
    run_until(&w, TASKS);
    for (uint32_t i = 0; i < TASKS; i++) {
        assert_int_equal(w.order[i], i);
        assert_int_equal(w.item[i].worked, 1);
    }
    world_close(&w);
}

static void a_lane_takes_no_more_than_its_bound(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, 2);
    assert_true(push(&w, 0));
    wait_inside(&w, 1); /* at hand: it does not count */
    assert_true(push(&w, 1) && push(&w, 2));
    assert_false(push(&w, 3));
    open_gate(&w);
    run_until(&w, 3);
    assert_int_equal(w.item[3].worked, 0);
    assert_true(push(&w, 3)); /* there is room again */
    run_until(&w, 4);
    world_close(&w);
}

static void a_task_that_waits_can_be_taken_back_and_one_at_hand_cannot(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, TASKS);
    assert_true(push(&w, 0));
    wait_inside(&w, 1);
    assert_true(push(&w, 1) && push(&w, 2));
    assert_false(lane_drop(w.lane, &w.item[0].task));
    assert_true(lane_drop(w.lane, &w.item[1].task));
    assert_false(lane_drop(w.lane, &w.item[1].task));
    open_gate(&w);
    run_until(&w, 2);
    assert_int_equal(w.order[0], 0);
    assert_int_equal(w.order[1], 2);
    assert_int_equal(w.item[1].worked + w.item[1].told, 0);
    world_close(&w);
}

static void an_end_waits_for_the_task_at_hand_and_leaves_the_others(void **state)
{
    struct world w;

    (void)state;
    for (uint32_t round = 0; round < 20; round++) { /* the opener races with the end */
        pthread_t opener;

        world_open(&w, TASKS);
        assert_true(push(&w, 0) && push(&w, 1));
        wait_inside(&w, 1);
        assert_int_equal(pthread_create(&opener, NULL, run_opener, &w), 0);
        lane_free(w.lane);
        w.lane = NULL;
        assert_int_equal(pthread_join(opener, NULL), 0);
        assert_int_equal(w.item[0].worked, 1);
        assert_int_equal(w.n, 0); /* nobody is told any more */
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_are_done_once_in_the_order_they_came),
        cmocka_unit_test(a_lane_takes_no_more_than_its_bound),
        cmocka_unit_test(a_task_that_waits_can_be_taken_back_and_one_at_hand_cannot),
        cmocka_unit_test(an_end_waits_for_the_task_at_hand_and_leaves_the_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
