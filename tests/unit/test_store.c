/* test_store.c - jobs of the control loop: bounded, each ends once on its own loop, in order. */
#include "gateway/store.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define THREADED_JOBS 20000u

struct task {
    struct store_job job; /* first */
    struct bed *bed;
    unsigned number, ran, ended;
};

struct bed {
    struct env *control, *own;
    struct env_wake *wake;
    struct gateway *gw;
    struct store *store;
    unsigned ended; /* on the control loop: the next one's number */
    atomic_bool stop;
    pthread_t thread;
};

static bool task_run(struct store_job *j, struct store *s)
{
    (void)s;
    ((struct task *)(void *)j)->ran++;
    return false;
}

static void task_done(struct store_job *j)
{
    struct task *t = (struct task *)(void *)j;

    t->ended++;
    assert_int_equal(t->number, t->bed->ended);
    t->bed->ended++;
}

static void fresh(void *ctx, struct snapshot *s)
{
    (void)ctx;
    (void)s;
    fail_msg("nobody gives a snapshot here");
}

static void doorbell(void *ctx)
{
    (void)ctx;
}

static void bed_init(struct bed *b)
{
    struct err e = {.code = ERR_NONE};

    memset(b, 0, sizeof(*b));
    b->control = os_env_new(NULL, &e);
    b->own = os_env_new(NULL, &e);
    assert_true(b->control != NULL && b->own != NULL);
    b->gw = mem_new(sizeof(*b->gw));
    b->store = store_new(b->gw, b->control, "nowhere", fresh, NULL);
    b->wake = b->own->ops->wake_new(b->own, doorbell, NULL);
    store_set_doorbell(b->store, b->own, b->wake);
}

static void bed_fini(struct bed *b)
{
    store_free(b->store);
    b->own->ops->wake_free(b->own, b->wake);
    os_env_free(b->own);
    os_env_free(b->control);
    mem_free(b->gw);
}

static struct task task_of(struct bed *b, unsigned number)
{
    return (struct task){.job = {.run = task_run, .done = task_done}, .bed = b, .number = number};
}

static void a_job_runs_in_a_step_and_ends_on_the_control_loop(void **state)
{
    struct err e = {.code = ERR_NONE};
    struct bed b;
    struct task t;

    (void)state;
    bed_init(&b);
    t = task_of(&b, 0);
    assert_true(store_put(b.store, &t.job, &e));
    assert_int_equal(t.ran, 0);
    assert_int_equal(store_step(b.store, b.own), 0);
    assert_int_equal(t.ran, 1);
    assert_int_equal(t.ended, 0);
    os_turn(b.control, 0);
    assert_int_equal(t.ended, 1);
    assert_int_equal(t.job.e.code, ERR_NONE);
    assert_false(store_withdraw(&t.job)); /* too late */
    bed_fini(&b);
}

static void past_its_bound_the_queue_refuses_with_a_story(void **state)
{
    struct err e = {.code = ERR_NONE};
    struct task t[STORE_JOBS_MAX + 1];
    struct bed b;

    (void)state;
    bed_init(&b);
    for (unsigned i = 0; i < STORE_JOBS_MAX; i++) {
        t[i] = task_of(&b, i);
        assert_true(store_put(b.store, &t[i].job, &e));
    }
    t[STORE_JOBS_MAX] = task_of(&b, STORE_JOBS_MAX);
    assert_false(store_put(b.store, &t[STORE_JOBS_MAX].job, &e));
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    assert_non_null(strstr(e.text, "nothing was done"));
    (void)store_step(b.store, b.own);
    err_clear(&e);
    assert_false(store_put(b.store, &t[STORE_JOBS_MAX].job, &e)); /* ran, and not yet ended */
    os_turn(b.control, 0);
    err_clear(&e);
    assert_true(store_put(b.store, &t[STORE_JOBS_MAX].job, &e));
    bed_fini(&b);
    assert_int_equal(b.ended, STORE_JOBS_MAX + 1);
}

static void a_withdrawn_job_never_runs_and_still_ends(void **state)
{
    struct err e = {.code = ERR_NONE};
    struct bed b;
    struct task t;

    (void)state;
    bed_init(&b);
    t = task_of(&b, 0);
    assert_true(store_put(b.store, &t.job, &e));
    assert_true(store_withdraw(&t.job));
    (void)store_step(b.store, b.own);
    os_turn(b.control, 0);
    assert_int_equal(t.ran, 0);
    assert_int_equal(t.ended, 1);
    bed_fini(&b);
}

static void jobs_that_did_not_run_end_with_the_store(void **state)
{
    struct err e = {.code = ERR_NONE};
    struct task t[2];
    struct bed b;

    (void)state;
    bed_init(&b);
    for (unsigned i = 0; i < 2; i++) {
        t[i] = task_of(&b, i);
        assert_true(store_put(b.store, &t[i].job, &e));
    }
    (void)store_step(b.store, b.own);
    bed_fini(&b);
    assert_true(t[0].ran == 1 && t[0].ended == 1 && t[0].job.e.code == ERR_NONE);
    assert_true(t[1].ran == 0 && t[1].ended == 1 && t[1].job.e.code == ERR_UNAVAILABLE);
}

static void *stepper(void *arg)
{
    struct bed *b = arg;

    while (!atomic_load(&b->stop)) {
        os_turn(b->own, store_step(b->store, b->own));
    }
    return NULL;
}

/* Also under the thread sanitizer. */
static void two_threads_lose_no_job_and_keep_their_order(void **state)
{
    struct task *t = mem_new(THREADED_JOBS * sizeof(*t));
    struct bed b;
    unsigned put = 0;

    (void)state;
    bed_init(&b);
    assert_int_equal(pthread_create(&b.thread, NULL, stepper, &b), 0);
    while (b.ended < THREADED_JOBS) {
        struct err e = {.code = ERR_NONE};

        if (put < THREADED_JOBS) {
            t[put] = task_of(&b, put);
            if (store_put(b.store, &t[put].job, &e)) {
                put++;
                continue;
            }
        }
        os_turn(b.control, 1000000); /* its doorbell ends the wait */
    }
    atomic_store(&b.stop, true);
    env_wake_signal(b.own, b.wake);
    pthread_join(b.thread, NULL);
    for (unsigned i = 0; i < THREADED_JOBS; i++) {
        assert_true(t[i].ran == 1 && t[i].ended == 1);
    }
    bed_fini(&b);
    mem_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_runs_in_a_step_and_ends_on_the_control_loop),
        cmocka_unit_test(past_its_bound_the_queue_refuses_with_a_story),
        cmocka_unit_test(a_withdrawn_job_never_runs_and_still_ends),
        cmocka_unit_test(jobs_that_did_not_run_end_with_the_store),
        cmocka_unit_test(two_threads_lose_no_job_and_keep_their_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
