/* test_ship.c - every row reaches the store once and in order, whatever its commits answer. */
#include "ledger_world.h"

#include "ledger/ship.h"

#include <stdlib.h>

#define EPOCHS_MAX 16
#define ROWS_MAX 4096

/* A model of Postgres: rows by epoch, and answers that lie. */
struct model {
    int64_t last[EPOCHS_MAX];
    struct uuid rows[ROWS_MAX];
    size_t n;
    int32_t newest; /* epochs come in order */
    uint32_t seed;
    int refuse;    /* percent of commits that do nothing and fail */
    int ambiguous; /* percent that succeed and answer no */
    bool away;
    int commits, cursors;
};

static int dice(struct model *m)
{
    m->seed = m->seed * 1664525u + 1013904223u;
    return (int)((m->seed >> 16) % 100);
}

static bool model_cursor(void *ctx, int32_t gateway_id, int32_t epoch, int64_t *last, struct err *e)
{
    struct model *m = ctx;

    assert_int_equal(gateway_id, 1);
    m->cursors++;
    *last = m->last[epoch];
    return !m->away || err_set(e, ERR_UNAVAILABLE, "away");
}

static bool model_commit(void *ctx, int32_t gateway_id, int32_t epoch, int64_t last_seq,
                         const struct entry *rows, size_t n, struct err *e)
{
    struct model *m = ctx;
    int roll = dice(m);
    size_t i;

    (void)gateway_id;
    m->commits++;
    if (m->away || roll < m->refuse) {
        return err_set(e, ERR_UNAVAILABLE, "refused");
    }
    assert_int_equal(m->last[epoch], last_seq);
    assert_true(epoch >= m->newest);
    m->newest = epoch;
    for (i = 0; i < n; i++) {
        assert_int_equal(rows[i].gw_seq, last_seq + 1 + (int64_t)i);
        assert_int_equal(rows[i].gw_epoch, epoch);
        m->rows[m->n++] = rows[i].event;
    }
    m->last[epoch] += (int64_t)n;
    return roll >= m->refuse + m->ambiguous || err_set(e, ERR_UNAVAILABLE, "connection lost");
}

static bool model_has(void *ctx, const struct entry *row, bool *in, struct err *e)
{
    const struct model *m = ctx;
    size_t i;

    *in = false;
    for (i = 0; i < m->n; i++) {
        *in = *in || uuid_eq(m->rows[i], row->event);
    }
    return !m->away || err_set(e, ERR_UNAVAILABLE, "away");
}

struct world {
    struct env *env;
    char dir[64];
    struct journal *j;
    struct journal_port *p;
    struct ship *s;
    struct model m;
};

static void life_begin(struct world *w)
{
    struct ship_options o = {.dir = w->dir, .gateway_id = 1};
    struct ship_store store = {&w->m, model_cursor, model_commit, model_has};

    w->j = world_journal(w->env, w->dir, 16);
    w->p = journal_port_new(w->j, w->env, NULL, NULL);
    w->s = ship_new(w->env, NULL, w->j, &o, &store);
}

static void life_end(struct world *w)
{
    ship_free(w->s);
    journal_close(w->j);
}

static void world_begin(struct world *w)
{
    memset(w, 0, sizeof(*w));
    w->env = world_env();
    world_folder(w->dir);
    life_begin(w);
}

static void world_end(struct world *w)
{
    life_end(w);
    os_env_free(w->env);
    world_remove(w->dir);
}

static void row(struct world *w, uint64_t n)
{
    struct record o = world_open(n);
    struct record d = world_dispatch(n, n);
    struct record c = world_close(n, n);

    c.close.occurred_us = env_wall_us(w->env); /* young */
    CHECK(journal_put(w->p, &o) > 0 && journal_put(w->p, &d) > 0 && journal_put(w->p, &c) > 0);
    while (journal_step(w->j, w->env)) {
    }
}

static void ship_until_done(struct world *w)
{
    int i;

    for (i = 0; i < 1000; i++) {
        (void)ship_step(w->s, w->env);
        if (ship_is_caught_up(w->s)) {
            return;
        }
    }
    fail_msg("not caught up after 1000 steps");
}

static void assert_rows(const struct world *w, uint64_t n)
{
    uint64_t i;

    assert_int_equal(w->m.n, n);
    for (i = 0; i < n; i++) {
        assert_true(uuid_eq(w->m.rows[i], world_uuid(i + 1)));
    }
}

static void rows_arrive_in_order(void **state)
{
    struct world w;
    struct ship_stats stats;
    uint64_t i;

    (void)state;
    world_begin(&w);
    for (i = 1; i <= 50; i++) {
        row(&w, i);
        if (i % 7 == 0) {
            ship_until_done(&w);
        }
    }
    ship_until_done(&w);
    assert_rows(&w, 50);
    ship_stats(w.s, &stats);
    assert_int_equal(stats.rows, 50);
    assert_int_equal(stats.behind_rows, 0);
    assert_true(stats.up);
    world_end(&w);
}

static void commits_that_lie_lose_nothing_and_repeat_nothing(void **state)
{
    struct world w;
    uint32_t seed;
    uint64_t i;

    (void)state;
    for (seed = 1; seed <= 30; seed++) {
        world_begin(&w);
        w.m.seed = seed;
        w.m.refuse = 30;
        w.m.ambiguous = 30;
        for (i = 1; i <= 60; i++) {
            row(&w, i);
            (void)ship_step(w.s, w.env);
            if (i % 20 == 0) { /* killed between two steps, and at any answer */
                life_end(&w);
                life_begin(&w);
            }
        }
        w.m.refuse = 0;
        ship_until_done(&w);
        assert_rows(&w, 60);
        world_end(&w);
    }
}

static void older_lives_are_shipped_first(void **state)
{
    struct world w;
    uint64_t i;

    (void)state;
    world_begin(&w);
    w.m.away = true;
    for (i = 1; i <= 30; i++) {
        row(&w, i);
        (void)ship_step(w.s, w.env);
        if (i % 10 == 0) {
            life_end(&w);
            life_begin(&w);
        }
    }
    w.m.away = false;
    ship_until_done(&w);
    assert_rows(&w, 30);
    assert_int_equal(w.m.newest, 3);
    world_end(&w);
}

static void it_asks_less_often_while_the_store_is_away(void **state)
{
    static const uint64_t waits[] = {100000, 200000, 400000, 800000, 1600000, 2000000, 2000000};
    struct world w;
    struct ship_stats stats;
    size_t i;

    (void)state;
    world_begin(&w);
    w.m.away = true;
    row(&w, 1);
    for (i = 0; i < ARRAY_LEN(waits); i++) {
        assert_int_equal(ship_step(w.s, w.env), waits[i]);
    }
    ship_stats(w.s, &stats);
    assert_false(stats.up);
    assert_int_equal(stats.failures, ARRAY_LEN(waits));
    assert_int_equal(stats.behind_rows, 1);
    w.m.away = false;
    ship_until_done(&w);
    assert_true(ship_step(w.s, w.env) <= 100000);
    row(&w, 2);
    w.m.away = true;
    assert_int_equal(ship_step(w.s, w.env), 100000);
    w.m.away = false;
    ship_until_done(&w);
    assert_rows(&w, 2);
    world_end(&w);
}

static void a_store_that_went_back_gets_its_rows_again(void **state)
{
    struct world w;
    uint64_t i;

    (void)state;
    world_begin(&w);
    for (i = 1; i <= 4; i++) {
        row(&w, i);
    }
    ship_until_done(&w);
    w.m.last[1] = 2; /* restored from a backup */
    w.m.n = 2;
    w.m.away = true;
    row(&w, 5);
    (void)ship_step(w.s, w.env);
    w.m.away = false;
    ship_until_done(&w);
    assert_rows(&w, 5);
    world_end(&w);
}

static void a_store_that_went_back_before_this_life_gets_older_lives_too(void **state)
{
    struct world w;
    struct record o = world_open(100);
    struct record d = world_dispatch(100, 100);
    uint64_t i;

    (void)state;
    world_begin(&w);
    world_write(w.j, w.p, w.env, &o); /* never over: its segment stays */
    world_write(w.j, w.p, w.env, &d);
    for (i = 1; i <= 3; i++) {
        row(&w, i);
    }
    ship_until_done(&w);
    life_end(&w);
    life_begin(&w);
    for (i = 4; i <= 6; i++) {
        row(&w, i);
    }
    ship_until_done(&w);
    assert_rows(&w, 6);
    w.m.last[1] = 1; /* restored from a backup */
    w.m.last[2] = 0;
    w.m.newest = 1;
    w.m.n = 1;
    w.m.away = true;
    row(&w, 7);
    (void)ship_step(w.s, w.env);
    w.m.away = false;
    ship_until_done(&w);
    assert_rows(&w, 7);
    world_end(&w);
}

/* Two gateways with one id and folders of their own begin with the same epoch. */
static void the_cursor_of_another_process_swallows_no_row(void **state)
{
    struct world w;
    struct ship_stats stats;
    uint64_t i;

    (void)state;
    world_begin(&w);
    w.m.last[1] = 2; /* the other's two rows */
    w.m.rows[w.m.n++] = world_uuid(901);
    w.m.rows[w.m.n++] = world_uuid(902);
    for (i = 1; i <= 3; i++) {
        row(&w, i);
    }
    for (i = 0; i < 5; i++) {
        assert_true(ship_step(w.s, w.env) > 0);
    }
    ship_stats(w.s, &stats);
    assert_int_equal(stats.failures, 5); /* loud, and the rows wait */
    assert_false(stats.up);
    assert_int_equal(w.m.n, 2);
    world_end(&w);
}

static void the_cursor_of_another_process_swallows_no_row_of_an_older_life(void **state)
{
    struct world w;
    struct ship_stats stats;
    uint64_t i;

    (void)state;
    world_begin(&w);
    w.m.away = true;
    for (i = 1; i <= 3; i++) {
        row(&w, i);
    }
    life_end(&w);
    w.m.away = false;
    w.m.last[1] = 3; /* the other's */
    life_begin(&w);
    for (i = 0; i < 3; i++) {
        assert_true(ship_step(w.s, w.env) > 0);
    }
    ship_stats(w.s, &stats);
    assert_int_equal(stats.failures, 3);
    assert_int_equal(w.m.n, 0);
    world_end(&w);
}

static void another_process_that_commits_beside_us_swallows_no_row(void **state)
{
    struct world w;
    struct ship_stats stats;
    uint64_t i;

    (void)state;
    world_begin(&w);
    row(&w, 1);
    row(&w, 2);
    ship_until_done(&w);
    w.m.refuse = 100;
    row(&w, 3);
    (void)ship_step(w.s, w.env);
    w.m.refuse = 0;
    w.m.last[1] = 3; /* the other's third, while ours waits in the batch */
    for (i = 0; i < 3; i++) {
        assert_true(ship_step(w.s, w.env) > 0);
    }
    ship_stats(w.s, &stats);
    assert_false(stats.up);
    assert_int_equal(stats.failures, 4);
    assert_rows(&w, 2);
    world_end(&w);
}

static void shipping_gives_the_disk_back(void **state)
{
    struct world w;
    struct journal_stats stats;
    uint64_t i;

    (void)state;
    world_begin(&w);
    for (i = 1; i <= 200; i++) {
        row(&w, i);
    }
    ship_until_done(&w);
    (void)ship_step(w.s, w.env);
    journal_stats(w.j, &stats);
    assert_true(stats.unshipped_bytes <= 2 * 16 * JOURNAL_RECORD_BYTES);
    assert_rows(&w, 200);
    world_end(&w);
}

static void a_folder_is_replayed_offline(void **state)
{
    struct world w;
    struct ship_options o = {.gateway_id = 1};
    struct ship_store store;
    uint64_t i;

    (void)state;
    world_begin(&w);
    for (i = 1; i <= 20; i++) {
        row(&w, i);
    }
    life_end(&w);
    o.dir = w.dir;
    store = (struct ship_store){&w.m, model_cursor, model_commit, model_has};
    w.s = ship_new(w.env, NULL, NULL, &o, &store);
    ship_until_done(&w);
    assert_rows(&w, 20);
    ship_free(w.s);
    life_begin(&w);
    world_end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_arrive_in_order),
        cmocka_unit_test(commits_that_lie_lose_nothing_and_repeat_nothing),
        cmocka_unit_test(older_lives_are_shipped_first),
        cmocka_unit_test(it_asks_less_often_while_the_store_is_away),
        cmocka_unit_test(a_store_that_went_back_gets_its_rows_again),
        cmocka_unit_test(a_store_that_went_back_before_this_life_gets_older_lives_too),
        cmocka_unit_test(the_cursor_of_another_process_swallows_no_row),
        cmocka_unit_test(the_cursor_of_another_process_swallows_no_row_of_an_older_life),
        cmocka_unit_test(another_process_that_commits_beside_us_swallows_no_row),
        cmocka_unit_test(shipping_gives_the_disk_back),
        cmocka_unit_test(a_folder_is_replayed_offline),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
