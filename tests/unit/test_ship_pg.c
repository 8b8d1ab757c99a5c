/* test_ship_pg.c - the journal's rows in a real Postgres: equal, once, summed, soon. */
#include "ledger_world.h"

#include "ledger/migrate.h"
#include "ledger/ship.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static struct world_db db;

struct line {
    struct env *env;
    char dir[64];
    char conninfo[512];
    struct journal *j;
    struct journal_port *port;
    struct ship *s;
    struct pg *pg;
    int32_t gateway_id;
};

static void line_begin(struct line *l)
{
    struct err e = {0};
    struct journal_options o = {.segment_bytes = 100 * JOURNAL_RECORD_BYTES};
    struct ship_options so;

    o.dir = l->dir;
    o.gateway_id = l->gateway_id;
    l->j = journal_open(l->env, NULL, &o, 0, &e);
    CHECK(l->j != NULL);
    l->port = journal_port_new(l->j, l->env, NULL, NULL);
    so = (struct ship_options){
        .conninfo = str_c(l->conninfo), .dir = l->dir, .gateway_id = l->gateway_id};
    l->s = ship_new(l->env, NULL, l->j, &so, NULL);
}

static void line_make(struct line *l, int32_t gateway_id)
{
    memset(l, 0, sizeof(*l));
    l->gateway_id = gateway_id;
    l->env = world_env();
    world_folder(l->dir);
    world_db_as(&db, "tollgate_gateway", l->conninfo);
    l->pg = world_pg(db.conninfo);
    line_begin(l);
}

static void line_pause(struct line *l)
{
    ship_free(l->s);
    journal_close(l->j);
}

static void line_end(struct line *l)
{
    line_pause(l);
    pg_close(l->pg);
    os_env_free(l->env);
    world_remove(l->dir);
}

static uint64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* A row that a partition of today takes; all events of the file differ. */
static struct record row_of(const struct line *l, uint64_t n)
{
    struct record r = world_close(n, n);

    r.close.event.b[14] = r.close.request.b[14] = (uint8_t)l->gateway_id;
    r.close.occurred_us = now_us();
    return r;
}

static void put(struct line *l, struct record r)
{
    world_write(l->j, l->port, l->env, &r);
}

static void ship_all(struct line *l)
{
    int i;

    for (i = 0; i < 200; i++) {
        uint64_t wait = ship_step(l->s, l->env);

        if (ship_is_caught_up(l->s)) {
            return;
        }
        os_turn(l->env, wait);
    }
    fail_msg("not caught up");
}

static int64_t rows(struct line *l, const char *what)
{
    char sql[400];

    (void)snprintf(sql, sizeof(sql),
                   "SELECT COALESCE(%s, 0) FROM usage_event WHERE gateway_id = %d", what,
                   l->gateway_id);
    return world_number(l->pg, sql);
}

/* The report's lines that must be zero. */
static void assert_ledger_is_sound(struct line *l)
{
    assert_int_equal(rows(l, "count(*) - count(DISTINCT event_id)"), 0);
    assert_int_equal(
        world_number(l->pg, "SELECT count(*) FROM (SELECT gateway_id, gw_epoch, count(*) AS n, "
                            "max(gw_seq) AS m, min(gw_seq) AS f FROM usage_event GROUP BY 1, 2) r "
                            "FULL JOIN ingest_cursor c USING (gateway_id, gw_epoch) WHERE r.n IS "
                            "DISTINCT FROM r.m OR r.f <> 1 OR c.last_seq <> COALESCE(r.n, 0)"),
        0);
    assert_int_equal(
        world_number(
            l->pg,
            "SELECT count(*) FROM (SELECT date_bin('15 minutes', occurred_at, '2000-01-01Z') AS b, "
            "gateway_id, tenant_id, project_id, key_id, user_id, tagset_id, period, model_id, "
            "tier_served, kind, count(*) AS n, sum(tok_in_uncached) AS a, sum(tok_in_cached) AS "
            "bb, sum(tok_cw_5m) AS c5, sum(tok_cw_1h) AS c1, sum(tok_out) AS o, "
            "sum(tok_reasoning) AS r, sum(cost_pusd) AS c, sum(list_pusd) AS l, "
            "sum((cost_pusd + 999) / 1000) AS nusd, sum(gpu_us) AS g FROM usage_event GROUP BY "
            "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11) e FULL JOIN usage_15m u ON u.bucket = e.b AND "
            "u.gateway_id = e.gateway_id AND u.tenant_id = e.tenant_id AND u.project_id = "
            "e.project_id AND u.key_id = e.key_id AND u.user_id = e.user_id AND u.tagset_id = "
            "e.tagset_id AND u.period = e.period AND u.model_id = e.model_id AND u.tier_served = "
            "e.tier_served AND u.kind = e.kind WHERE (e.n, e.a, e.bb, e.c5, e.c1, e.o, e.r, e.c, "
            "e.l, e.nusd, e.g) IS DISTINCT FROM (u.n, u.tok_in_uncached, u.tok_in_cached, "
            "u.tok_cw_5m, u.tok_cw_1h, u.tok_out, u.tok_reasoning, u.cost_pusd, u.list_pusd, "
            "u.budget_nusd, u.gpu_us) OR u.cost <> u.cost_pusd"),
        0);
}

static void a_row_has_every_column_of_its_close(void **state)
{
    struct line l;
    struct record r;

    (void)state;
    line_make(&l, 11);
    r = row_of(&l, 1);
    r.close.worker_epoch = 1ULL << 40;
    r.close.batch_id = 77;
    r.close.batch_line = 3;
    r.close.client_idem_hash = UINT64_MAX;
    r.close.corrects = world_uuid(5);
    r.close.degraded = true;
    r.close.tok = (struct tokens){1, 2, 3, 4, 5, 6};
    put(&l, r);
    r = row_of(&l, 2);
    r.close.cached_predicted = TOKENS_NO_PREDICTION;
    r.close.ttft_us = 0;
    put(&l, r);
    ship_all(&l);
    assert_int_equal(rows(&l, "count(*)"), 2);
    assert_int_equal(rows(&l, "count(*) FILTER (WHERE worker_epoch = 1099511627776 AND batch_id = "
                              "77 AND batch_line = 3 AND client_idem_hash = -1 AND "
                              "corrects_event_id IS NOT NULL AND degraded AND tok_in_uncached = "
                              "1 AND tok_in_cached = 2 AND tok_cw_5m = 3 AND tok_cw_1h = 4 AND "
                              "tok_out = 5 AND tok_reasoning = 6 AND ttft_us = 100)"),
                     1);
    assert_int_equal(rows(&l, "count(*) FILTER (WHERE tok_in_cached_predicted IS NULL AND ttft_us "
                              "IS NULL AND batch_id IS NULL AND batch_line IS NULL AND "
                              "client_idem_hash IS NULL AND corrects_event_id IS NULL)"),
                     1);
    assert_int_equal(rows(&l, "count(*) FILTER (WHERE abs(extract(epoch FROM recorded_at - "
                              "occurred_at)) < 60 AND period = to_char(occurred_at, "
                              "'YYYYMM')::int)"),
                     2);
    assert_ledger_is_sound(&l);
    line_end(&l);
}

static void sums_equal_rows_over_many_groups(void **state)
{
    struct line l;
    struct record r;
    uint64_t i;

    (void)state;
    line_make(&l, 12);
    for (i = 1; i <= 3000; i++) {
        r = row_of(&l, i);
        r.close.occurred_us -= (i % 5) * 60000000;
        r.close.tenant_id = (int32_t)(i % 7);
        r.close.key_id = (int32_t)(i % 13);
        r.close.tier_served = (int16_t)(i % 4 + 1);
        r.close.cost_pusd = (int64_t)(i * 7919 % 1000003);
        CHECK(journal_put(l.port, &r) > 0);
        if (i % 700 == 0) {
            (void)journal_step(l.j, l.env);
            (void)ship_step(l.s, l.env);
        }
    }
    while (journal_step(l.j, l.env)) {
    }
    ship_all(&l);
    assert_int_equal(rows(&l, "count(*)"), 3000);
    assert_ledger_is_sound(&l);
    line_end(&l);
}

static void huge_sums_do_not_overflow(void **state)
{
    struct line l;
    struct record r;
    uint64_t i;

    (void)state;
    line_make(&l, 13);
    for (i = 1; i <= 5; i++) {
        r = row_of(&l, i);
        r.close.cost_pusd = INT64_MAX - 999;
        put(&l, r);
    }
    ship_all(&l);
    assert_int_equal(world_number(l.pg, "SELECT count(*) FROM usage_15m WHERE gateway_id = 13 AND "
                                        "cost_pusd = 5 * (9223372036854775807::numeric - 999)"),
                     1);
    line_end(&l);
}

static void a_day_without_a_partition_is_made(void **state)
{
    struct line l;
    struct record r;

    (void)state;
    line_make(&l, 14);
    r = row_of(&l, 1);
    r.close.occurred_us -= 40 * WORLD_DAY_US;
    put(&l, r);
    put(&l, row_of(&l, 2));
    ship_all(&l);
    assert_int_equal(rows(&l, "count(*)"), 2);
    assert_ledger_is_sound(&l);
    line_end(&l);
}

static void a_wrong_clock_between_two_rows_stops_nothing(void **state)
{
    struct line l;
    struct record r;

    (void)state;
    line_make(&l, 21);
    r = row_of(&l, 1);
    r.close.occurred_us = 1000000; /* 1970: a machine that had no time yet */
    put(&l, r);
    put(&l, row_of(&l, 2));
    ship_all(&l);
    assert_int_equal(rows(&l, "count(*)"), 2);
    assert_ledger_is_sound(&l);
    line_end(&l);
}

/* Another gateway with the same id took this epoch's numbers. */
static void the_cursor_of_another_process_swallows_no_row(void **state)
{
    struct line l;
    struct ship_stats stats;
    struct err e = {0};
    int i;

    (void)state;
    line_make(&l, 22);
    assert_true(pg_exec(l.pg, "INSERT INTO ingest_cursor VALUES (22, 1, 1)", NULL, 0, &e));
    put(&l, row_of(&l, 1));
    put(&l, row_of(&l, 2));
    for (i = 0; i < 3; i++) {
        assert_true(ship_step(l.s, l.env) > 0);
    }
    ship_stats(l.s, &stats);
    assert_int_equal(stats.failures, 3);
    assert_int_equal(rows(&l, "count(*)"), 0);
    assert_true(pg_exec(l.pg, "DELETE FROM ingest_cursor WHERE gateway_id = 22", NULL, 0, &e));
    line_end(&l);
}

/* Two processes that read the same newest epoch: the second one is told, before it makes a row. */
static void an_epoch_is_claimed_once_and_the_second_is_told_what_to_change(void **state)
{
    struct line l;
    struct err e = {0};
    struct pg *other;
    bool held = true;
    int32_t newest = -1;

    (void)state;
    line_make(&l, 23);
    assert_true(ship_newest_epoch(l.pg, 23, &newest, &e));
    assert_int_equal(newest, 0);
    assert_true(ship_claim(l.pg, 23, journal_epoch(l.j), &e));
    assert_false(ship_claim(l.pg, 23, journal_epoch(l.j), &e));
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_non_null(strstr(e.text, "gateway_id 23"));
    assert_non_null(strstr(e.text, "journal.dir"));
    err_clear(&e);
    assert_true(ship_newest_epoch(l.pg, 23, &newest, &e));
    assert_int_equal(newest, journal_epoch(l.j));
    other = world_pg(db.conninfo);
    assert_true(ship_hold(other, 23, &held, &e));
    assert_false(held);
    assert_false(ship_claim(other, 23, journal_epoch(l.j) + 1, &e)); /* another epoch, and yet */
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_non_null(strstr(e.text, "another gateway runs with it now"));
    err_clear(&e);
    assert_int_equal(world_number(other, "SELECT (current_setting('lock_timeout') = '0')::int"), 1);
    assert_true(ship_hold(other, 24, &held, &e));
    assert_true(held);
    pg_close(other);
    put(&l, row_of(&l, 1)); /* its own claim is in nobody's way */
    ship_all(&l);
    assert_int_equal(rows(&l, "count(*)"), 1);
    assert_ledger_is_sound(&l);
    line_end(&l);
}

static void a_row_of_a_closed_month_is_booked_in_this_one_as_a_correction(void **state)
{
    struct line l;
    struct record r;
    struct err e = {0};

    (void)state;
    line_make(&l, 15);
    assert_true(pg_exec(l.pg, "INSERT INTO tenant (name) VALUES ('closed') ON CONFLICT DO NOTHING",
                        NULL, 0, &e));
    assert_true(pg_exec(l.pg,
                        "INSERT INTO billing_period (period, state) VALUES (to_char(now() - "
                        "interval '60 days', 'YYYYMM')::int, 'closed')",
                        NULL, 0, &e));
    r = row_of(&l, 1);
    r.close.occurred_us -= 60 * WORLD_DAY_US;
    put(&l, r);
    ship_all(&l);
    assert_int_equal(rows(&l, "count(*) FILTER (WHERE kind = 2 AND reason_code = 1 AND period = "
                              "to_char(now() AT TIME ZONE 'UTC', 'YYYYMM')::int)"),
                     1);
    assert_ledger_is_sound(&l);
    line_end(&l);
}

static void what_was_held_for_an_unknown_cost_goes_to_suspense(void **state)
{
    struct line l;
    struct record r;

    (void)state;
    line_make(&l, 19);
    r = row_of(&l, 1);
    r.close.usage_state = USAGE_UNKNOWN;
    r.close.hold_nusd = 500;
    r.close.cost_pusd = 100001; /* 101 nUSD */
    put(&l, r);
    put(&l, row_of(&l, 2));
    ship_all(&l);
    assert_int_equal(world_number(l.pg, "SELECT count(*) FROM hold_suspense WHERE gateway_id = 19"),
                     1);
    assert_int_equal(world_number(l.pg, "SELECT hold_nusd FROM hold_suspense WHERE gateway_id = "
                                        "19 AND cleared_at IS NULL AND tenant_id = 3 AND key_id = "
                                        "5"),
                     399);
    line_end(&l);
}

static void an_event_closed_twice_is_booked_once(void **state)
{
    struct line l;
    struct record r;

    (void)state;
    line_make(&l, 16);
    r = row_of(&l, 1);
    put(&l, r);
    ship_all(&l);
    put(&l, row_of(&l, 2));
    put(&l, r);
    put(&l, r);
    put(&l, row_of(&l, 3));
    ship_all(&l);
    assert_int_equal(rows(&l, "count(*)"), 3);
    assert_int_equal(world_number(l.pg, "SELECT last_seq FROM ingest_cursor WHERE gateway_id = 16"),
                     5);
    assert_int_equal(world_number(l.pg, "SELECT sum(n)::bigint FROM usage_15m WHERE gateway_id = "
                                        "16"),
                     3);
    /* The gap in gw_seq stays to be seen; the next test's books must not have it. */
    line_end(&l);
}

/* Backends killed at any instant, as a stopping Postgres does. */
static void killed_backends_lose_nothing_and_repeat_nothing(void **state)
{
    struct line l;
    struct record r;
    struct err e = {0};
    uint64_t i;

    (void)state;
    line_make(&l, 17);
    for (i = 1; i <= 2000; i++) {
        r = row_of(&l, i);
        CHECK(journal_put(l.port, &r) > 0);
        if (i % 50 == 0) {
            (void)journal_step(l.j, l.env);
            (void)ship_step(l.s, l.env);
        }
        if (i % 170 == 0) {
            assert_true(pg_exec(l.pg,
                                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
                                "application_name = 'tollgate-shipper'",
                                NULL, 0, &e));
        }
        if (i % 500 == 0) {
            line_pause(&l);
            line_begin(&l);
        }
    }
    while (journal_step(l.j, l.env)) {
    }
    ship_all(&l);
    assert_int_equal(rows(&l, "count(*)"), 2000);
    assert_int_equal(world_number(l.pg, "SELECT sum(last_seq)::bigint FROM ingest_cursor WHERE "
                                        "gateway_id = 17"),
                     2000);
    line_end(&l);
}

/* An operator replays a folder while its gateway ships it: the second to commit is told and yields.
 */
static void two_shippers_of_one_folder_book_each_row_once(void **state)
{
    struct line l;
    struct ship_options o = {.gateway_id = 20};
    struct ship_stats stats;
    struct ship *other;
    uint64_t i;

    (void)state;
    line_make(&l, 20);
    put(&l, row_of(&l, 1));
    put(&l, row_of(&l, 2));
    ship_all(&l);
    put(&l, row_of(&l, 3));
    put(&l, row_of(&l, 4));
    o.conninfo = str_c(l.conninfo);
    o.dir = l.dir;
    other = ship_new(l.env, NULL, NULL, &o, NULL);
    for (i = 0; i < 50 && !ship_is_caught_up(other); i++) {
        (void)ship_step(other, l.env);
    }
    ship_free(other);
    assert_int_equal(rows(&l, "count(*)"), 4);
    ship_all(&l);
    ship_stats(l.s, &stats);
    assert_true(stats.failures > 0);
    assert_int_equal(stats.rows, 2);
    assert_int_equal(rows(&l, "count(*)"), 4);
    put(&l, row_of(&l, 5));
    ship_all(&l);
    assert_int_equal(rows(&l, "count(*)"), 5);
    assert_int_equal(rows(&l, "max(gw_seq)"), 5);
    line_end(&l);
}

/* Finance's own lines over rows that cost tokens x price and lie within their hold. */
static void the_reconciliation_of_honest_rows_is_zero(void **state)
{
    struct world_db own;
    struct line l;
    struct err e = {0};
    char reader[512];
    struct pg *p;
    uint64_t i;

    (void)state;
    line_make(&l, 1);
    line_pause(&l);
    pg_close(l.pg);
    world_db_make(&own, false);
    world_db_as(&own, "tollgate_gateway", l.conninfo);
    l.pg = world_pg(own.conninfo);
    assert_true(pg_exec(l.pg,
                        "INSERT INTO model (name) VALUES ('m'); INSERT INTO price_version "
                        "(model_id, tier, in_pusd, cached_pusd, cw_5m_pusd, cw_1h_pusd, out_pusd, "
                        "reasoning_pusd, list_in_pusd, list_out_pusd, sha256) VALUES (1, 1, 1000, "
                        "100, 1, 1, 2000, 1, 1000, 2000, sha256(''))",
                        NULL, -1, &e));
    line_begin(&l);
    for (i = 1; i <= 30; i++) {
        struct record r = row_of(&l, i);

        r.close.price_id = 1;
        r.close.tok = (struct tokens){(int32_t)i, 5, 0, 0, 7, 0};
        r.close.cost_pusd = (int64_t)i * 1000 + 500 + 14000;
        put(&l, r);
    }
    ship_all(&l);
    world_db_as(&own, "tollgate_reader", reader);
    p = world_pg(reader);
    assert_int_equal(world_number(p, "SELECT count(*) FROM finance.mart_reconciliation WHERE "
                                     "difference <> 0"),
                     0);
    assert_int_equal(world_number(p, "SELECT count(*) FROM finance.mart_reconciliation"), 7);
    assert_int_equal(world_number(p, "SELECT count(*) FROM finance.mart_chargeback_monthly WHERE "
                                     "requests = 30 AND cost_usd = 0.0000009"),
                     1);
    pg_close(p);
    line_end(&l);
    world_db_drop(&own);
}

static void a_row_is_in_postgres_within_a_quarter_of_a_second(void **state)
{
    struct line l;
    uint64_t began;
    uint64_t worst = 0;
    uint64_t n;
    int i;

    (void)state;
    line_make(&l, 18);
    put(&l, row_of(&l, 1));
    ship_all(&l);
    for (i = 2; i < 12; i++) {
        uint64_t wait = ship_step(l.s, l.env); /* idle: the longest the thread would sleep */

        put(&l, row_of(&l, (uint64_t)i));
        began = now_us();
        os_turn(l.env, wait);
        n = 0;
        while (rows(&l, "count(*)") < i && n++ < 100) {
            (void)ship_step(l.s, l.env);
        }
        worst = u64_max(worst, now_us() - began);
    }
    if (worst >= 250000) {
        fail_msg("%llu us", (unsigned long long)worst);
    }
    line_end(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_has_every_column_of_its_close),
        cmocka_unit_test(sums_equal_rows_over_many_groups),
        cmocka_unit_test(huge_sums_do_not_overflow),
        cmocka_unit_test(a_day_without_a_partition_is_made),
        cmocka_unit_test(a_wrong_clock_between_two_rows_stops_nothing),
        cmocka_unit_test(the_cursor_of_another_process_swallows_no_row),
        cmocka_unit_test(an_epoch_is_claimed_once_and_the_second_is_told_what_to_change),
        cmocka_unit_test(a_row_of_a_closed_month_is_booked_in_this_one_as_a_correction),
        cmocka_unit_test(what_was_held_for_an_unknown_cost_goes_to_suspense),
        cmocka_unit_test(an_event_closed_twice_is_booked_once),
        cmocka_unit_test(killed_backends_lose_nothing_and_repeat_nothing),
        cmocka_unit_test(two_shippers_of_one_folder_book_each_row_once),
        cmocka_unit_test(the_reconciliation_of_honest_rows_is_zero),
        cmocka_unit_test(a_row_is_in_postgres_within_a_quarter_of_a_second),
    };
    int failed;

    if (!world_has_pg()) {
        return WORLD_SKIP;
    }
    world_db_make(&db, false);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    world_db_drop(&db);
    return failed;
}
