/* test_journal_ports.c - many loops, one writer, one shipper's reader; built for the thread
 * sanitizer. */
#include "ledger_world.h"

#include <pthread.h>
#include <stdatomic.h>

#define PRODUCERS 4
#define RECORDS 20000 /* each: more than two rings full */

struct producer {
    struct journal *j;
    struct journal_port *port;
    uint64_t id, refused, rings;
    struct env *env;
};

struct crowd {
    struct journal *j;
    atomic_bool stop;
};

static void rung(void *ctx)
{
    struct producer *p = ctx;

    p->rings++;
}

/* Waits for its own last record as a request does: by the doorbell on its own loop. */
static void *produce(void *ctx)
{
    struct producer *p = ctx;
    uint64_t i;
    uint64_t ticket = 0;
    struct record r;

    for (i = 1; i <= RECORDS; i++) {
        r = world_close(p->id * 1000000 + i, p->id * 1000000 + i);
        while ((ticket = journal_put(p->port, &r)) == 0) {
            p->refused++;
            os_turn(p->env, 1000);
        }
        CHECK(ticket == i);
    }
    while (journal_durable(p->port) < ticket) {
        os_turn(p->env, 100000);
    }
    return NULL;
}

static void writer_rung(void *ctx)
{
    (void)ctx;
}

static void *write_all(void *ctx)
{
    struct crowd *c = ctx;
    struct env *env = world_env();
    struct env_wake *w = env->ops->wake_new(env, writer_rung, NULL);

    journal_set_doorbell(c->j, env, w);
    atomic_store(&c->stop, false);
    while (!atomic_load(&c->stop)) {
        if (!journal_step(c->j, env)) {
            os_turn(env, 20000);
        }
    }
    env->ops->wake_free(env, w);
    os_env_free(env);
    return NULL;
}

/* The last event of each producer only grows by one: order within a port is kept. */
static uint64_t follow(struct journal *j, struct env *env, const char *dir)
{
    struct err e = {0};
    struct journal_reader *r = journal_reader_open(env, dir, &e);
    uint64_t last[PRODUCERS] = {0};
    struct record_stored s;
    uint64_t n = 0;
    uint64_t event;
    enum journal_read got;

    while (n < (uint64_t)PRODUCERS * RECORDS) {
        journal_reader_bound(r, journal_epoch(j), journal_durable_lsn(j));
        got = journal_read(r, &s, &e);
        if (got == JOURNAL_READ_END) {
            os_turn(env, 1000);
            continue;
        }
        if (got != JOURNAL_READ_RECORD) {
            fail_msg("%s", e.text);
        }
        memcpy(&event, s.r.close.event.b, sizeof(event));
        assert_int_equal(event % 1000000, ++last[event / 1000000]);
        assert_int_equal(s.r.close.gw_seq, ++n);
    }
    journal_reader_close(r);
    return n;
}

static void every_record_of_every_loop_is_durable_once_and_in_order(void **state)
{
    struct env *env = world_env();
    struct producer producers[PRODUCERS];
    struct crowd crowd = {0};
    struct journal_stats stats;
    pthread_t threads[PRODUCERS];
    pthread_t writer;
    char dir[64];
    uint64_t i;

    (void)state;
    world_folder(dir);
    crowd.j = world_journal(env, dir, 30000);
    /* The writer's thread is up, its doorbell set, before anyone puts. */
    atomic_store(&crowd.stop, true);
    for (i = 0; i < PRODUCERS; i++) {
        producers[i] = (struct producer){.j = crowd.j, .id = i, .env = world_env()};
        producers[i].port = journal_port_new(crowd.j, producers[i].env, rung, &producers[i]);
    }
    CHECK(pthread_create(&writer, NULL, write_all, &crowd) == 0);
    while (atomic_load(&crowd.stop)) {
        os_turn(env, 100);
    }
    for (i = 0; i < PRODUCERS; i++) {
        CHECK(pthread_create(&threads[i], NULL, produce, &producers[i]) == 0);
    }
    assert_int_equal(follow(crowd.j, env, dir), PRODUCERS * RECORDS);
    for (i = 0; i < PRODUCERS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        assert_true(producers[i].rings > 0);
    }
    atomic_store(&crowd.stop, true);
    CHECK(pthread_join(writer, NULL) == 0);
    journal_set_doorbell(crowd.j, NULL, NULL);
    journal_stats(crowd.j, &stats);
    assert_int_equal(stats.rows, PRODUCERS * RECORDS);
    assert_true(stats.groups < stats.records);
    journal_close(crowd.j);
    for (i = 0; i < PRODUCERS; i++) {
        os_env_free(producers[i].env);
    }
    os_env_free(env);
    world_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_record_of_every_loop_is_durable_once_and_in_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
