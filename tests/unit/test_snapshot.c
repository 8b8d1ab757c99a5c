/* test_snapshot.c - what admission reads is what Postgres has, also after a night in a file. */
#include "ledger_world.h"

#include "ledger/config.h"
#include "ledger/migrate.h"
#include "ledger/ship.h"
#include "ledger/snapshot.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static struct world_db db;

static void exec(struct pg *p, const char *sql)
{
    struct err e = {0};

    if (!pg_exec(p, sql, NULL, -1, &e)) {
        fail_msg("%s: %s", sql, e.text);
    }
}

static uint64_t db_now_us(struct pg *p)
{
    return (uint64_t)world_number(p, "SELECT (extract(epoch FROM now()) * 1000000)::bigint");
}

static struct snapshot *load(struct pg *p)
{
    struct err e = {0};
    struct snapshot *s = snapshot_from_pg(p, 1, db_now_us(p), NULL, &e);

    if (s == NULL) {
        fail_msg("%s", e.text);
    }
    return s;
}

/* Two tenants, three keys, two models, two workers, prices in bands. */
static void fill(struct pg *p)
{
    exec(p, "INSERT INTO tenant (name, timezone) VALUES ('acme', 'UTC'), ('kiwi', "
            "'Pacific/Auckland');"
            "INSERT INTO project (tenant_id, name) VALUES (1, 'default'), (2, 'default');"
            "INSERT INTO api_key (tenant_id, project_id, name, redacted, hmac, revoked_at) VALUES "
            "(1, 1, 'k1', 'tg_a', sha256('a'), NULL), (1, 1, '', 'tg_b', sha256('b'), now()), "
            "(2, 2, 'k3', 'tg_c', sha256('c'), NULL);"
            "INSERT INTO quota (scope_kind, scope_id, dim, limit_value) VALUES (1, 1, 5, 5000), "
            "(1, 1, 1, 60), (3, 3, 4, 0);"
            "INSERT INTO model (name, context) VALUES ('zeta', 4096), ('alpha', 0);"
            "INSERT INTO worker (url, engine) VALUES ('http://a:1', 1), ('http://b:2', 2);"
            "INSERT INTO worker_model VALUES (1, 1), (1, 2), (2, 2);");
    exec(p, "INSERT INTO price_version (model_id, tier, ctx_band, valid_from, in_pusd, "
            "cached_pusd, cw_5m_pusd, cw_1h_pusd, out_pusd, reasoning_pusd, list_in_pusd, "
            "list_out_pusd, sha256) SELECT 1, 1, b, f, v, v, v, v, v, v, v, v, sha256('') FROM "
            "(VALUES (1000, timestamptz '2020-01-01Z', 1), (2147483647, '2020-01-01Z', 2), "
            "(2147483647, '2024-01-01Z', 3), (2147483647, '2100-01-01Z', 4)) x(b, f, v)");
    exec(p, "INSERT INTO usage_15m (bucket, gateway_id, tenant_id, project_id, key_id, user_id, "
            "tagset_id, period, model_id, tier_served, kind, n, tok_in_uncached, tok_in_cached, "
            "tok_cw_5m, tok_cw_1h, tok_out, tok_reasoning, cost_pusd, list_pusd, budget_nusd, "
            "gpu_us) SELECT b, 1, t, 1, k, 0, 0, 202601, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 1000, 1000, "
            "v, 0 FROM (VALUES (date_trunc('month', now()), 1, 1, 10), (date_trunc('month', "
            "now()) + interval '15 minutes', 1, 2, 7), (date_trunc('month', now()) - interval '15 "
            "minutes', 1, 1, 100), (date_trunc('month', now()) - interval '15 minutes', 2, 3, 5)) "
            "x(b, t, k, v)");
    exec(p, "INSERT INTO hold_suspense (request_id, tenant_id, project_id, key_id, gateway_id, "
            "gw_epoch, hold_nusd, since, cleared_at) VALUES (gen_random_uuid(), 1, 1, 1, 1, 1, 30, "
            "now(), NULL), (gen_random_uuid(), 1, 1, 1, 1, 1, 40, now(), now()), "
            "(gen_random_uuid(), 1, 1, 1, 1, 1, 50, now() - interval '40 days', NULL)");
    exec(p, "INSERT INTO ingest_cursor VALUES (1, 4, 99), (1, 5, 12), (2, 9, 1)");
}

static void assert_filled(const struct snapshot *s)
{
    uint8_t hmac[SHA256_BYTES];
    const struct snap_key *k;
    const struct snap_tenant *t = snapshot_tenant(s, 1);
    const struct snap_model *m = snapshot_model(s, STR("zeta"));

    assert_true(str_eq(t->name, STR("acme")));
    assert_int_equal(t->scope_salt.n, 64);
    assert_int_equal(t->limits.budget_month_pusd, 5000);
    assert_int_equal(t->limits.requests_per_min, 60);
    assert_int_equal(t->limits.concurrent, QUOTA_NONE);
    assert_int_equal(t->spent_nusd, 17);
    assert_int_equal(t->suspense_nusd, 30);
    assert_null(snapshot_tenant(s, 3));
    hash_sha256("a", 1, hmac);
    k = snapshot_key(s, hmac);
    assert_true(str_eq(k->name, STR("k1")));
    assert_int_equal(k->tenant_id, 1);
    assert_int_equal(k->spent_nusd, 10);
    assert_int_equal(k->suspense_nusd, 30);
    assert_false(k->revoked);
    hash_sha256("b", 1, hmac);
    assert_true(snapshot_key(s, hmac)->revoked);
    hash_sha256("c", 1, hmac);
    assert_int_equal(snapshot_key(s, hmac)->limits.concurrent, 0);
    hash_sha256("d", 1, hmac);
    assert_null(snapshot_key(s, hmac));
    assert_int_equal(m->context, 4096);
    assert_ptr_equal(snapshot_model_id(s, m->model_id), m);
    assert_null(snapshot_model(s, STR("zet")));
    assert_int_equal(s->n_workers, 2);
    assert_int_equal(snapshot_worker(s, 1)->n_models, 2);
    assert_int_equal(snapshot_worker(s, 2)->models[0], 2);
    assert_int_equal(snapshot_worker(s, 2)->engine, ENGINE_OPENAI);
    assert_null(snapshot_worker(s, 3));
    assert_int_equal(s->spent_epoch, 5);
    assert_int_equal(s->spent_seq, 12);
}

/* As the gateway's own role. */
static struct pg *gateway_pg(void)
{
    char conninfo[512];

    world_db_as(&db, "tollgate_gateway", conninfo);
    return world_pg(conninfo);
}

static void the_snapshot_is_what_postgres_has(void **state)
{
    struct pg *p = gateway_pg();
    struct snapshot *s = load(p);
    const struct snap_tenant *kiwi = snapshot_tenant(s, 2);
    struct err e = {0};

    (void)state;
    assert_filled(s);
    assert_int_equal(s->version, snapshot_pg_version(p, &e));
    /* Auckland's month begins half a day before UTC's: its spent reaches back over that edge,
     * unless the test runs in the hours in which Auckland has the next month already. */
    assert_true(kiwi->month_from_us < kiwi->month_until_us);
    assert_int_equal(kiwi->month_from_us % 900000000, 0);
    if (kiwi->month_from_us < snapshot_tenant(s, 1)->month_from_us) {
        assert_int_equal(kiwi->spent_nusd, 5);
    }
    snapshot_unref(s);
    pg_close(p);
}

static void a_price_is_the_newest_of_the_smallest_band(void **state)
{
    struct pg *p = gateway_pg();
    struct snapshot *s = load(p);
    const uint64_t y2019 = 1546300800000000;
    const uint64_t y2022 = 1640995200000000;
    const uint64_t y2026 = 1767225600000000;

    (void)state;
    assert_null(snapshot_price(s, 1, TIER_STANDARD, 5, y2019));
    assert_int_equal(snapshot_price(s, 1, TIER_STANDARD, 5, y2022)->in_pusd, 1);
    assert_int_equal(snapshot_price(s, 1, TIER_STANDARD, 1000, y2022)->in_pusd, 1);
    assert_int_equal(snapshot_price(s, 1, TIER_STANDARD, 1001, y2022)->in_pusd, 2);
    assert_int_equal(snapshot_price(s, 1, TIER_STANDARD, 1001, y2026)->in_pusd, 3);
    assert_int_equal(snapshot_price(s, 1, TIER_STANDARD, 1LL << 40, y2026)->in_pusd, 3);
    assert_null(snapshot_price(s, 1, TIER_FLEX, 5, y2026));
    assert_null(snapshot_price(s, 2, TIER_STANDARD, 5, y2026));
    assert_int_equal(snapshot_price_id(s, 4)->in_pusd, 4);
    assert_null(snapshot_price_id(s, 5));
    snapshot_unref(s);
    pg_close(p);
}

static void a_file_brings_the_same_snapshot_back(void **state)
{
    struct pg *p = gateway_pg();
    struct snapshot *s = load(p);
    struct env *env = world_env();
    struct snapshot *again;
    struct err e = {0};
    struct stat st;
    char dir[64];
    char path[96];

    (void)state;
    world_folder(dir);
    (void)snprintf(path, sizeof(path), "%s/snapshot", dir);
    assert_true(snapshot_save(s, env, path, &e));
    assert_true(snapshot_save(s, env, path, &e));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    again = snapshot_load(env, path, &e);
    assert_non_null(again);
    assert_filled(again);
    assert_int_equal(again->version, s->version);
    assert_int_equal(again->n_prices, s->n_prices);
    assert_memory_equal(again->prices, s->prices, s->n_prices * sizeof(*s->prices));
    snapshot_unref(again);
    snapshot_unref(s);
    os_env_free(env);
    pg_close(p);
    world_remove(dir);
}

static void a_damaged_file_is_refused_wherever_the_damage_is(void **state)
{
    struct pg *p = gateway_pg();
    struct snapshot *s = load(p);
    struct env *env = world_env();
    struct err e = {0};
    struct stat st;
    char dir[64];
    char path[96];
    uint8_t c;
    off_t i;
    int fd;

    (void)state;
    world_folder(dir);
    (void)snprintf(path, sizeof(path), "%s/snapshot", dir);
    assert_true(snapshot_save(s, env, path, &e));
    fd = open(path, O_RDWR);
    assert_int_equal(fstat(fd, &st), 0);
    for (i = 0; i < st.st_size; i++) {
        assert_int_equal(pread(fd, &c, 1, i), 1);
        c ^= 0x10;
        assert_int_equal(pwrite(fd, &c, 1, i), 1);
        err_clear(&e);
        assert_null(snapshot_load(env, path, &e));
        assert_int_equal(e.code, ERR_CORRUPT);
        c ^= 0x10;
        assert_int_equal(pwrite(fd, &c, 1, i), 1);
    }
    for (i = st.st_size - 1; i > 0; i -= 37) {
        assert_int_equal(ftruncate(fd, i), 0);
        err_clear(&e);
        assert_null(snapshot_load(env, path, &e));
    }
    close(fd);
    snapshot_unref(s);
    os_env_free(env);
    pg_close(p);
    world_remove(dir);
}

/* Spent and cursor are of one instant: while rows come, spent always equals the rows up to it. */
static void spent_and_cursor_are_of_one_instant(void **state)
{
    struct world_db own;
    struct env *env = world_env();
    struct ship_options o = {.gateway_id = 1};
    struct journal *j;
    struct journal_port *port;
    struct ship *ship;
    struct snapshot *s;
    struct pg *p;
    char dir[64];
    uint64_t i;

    (void)state;
    world_folder(dir);
    world_db_make(&own, false);
    p = world_pg(own.conninfo);
    exec(p, "INSERT INTO tenant (name) VALUES ('a'), ('b'), ('c')");
    j = world_journal(env, dir, 1000);
    port = journal_port_new(j, env, NULL, NULL);
    o.conninfo = str_c(own.conninfo);
    o.dir = dir;
    ship = ship_new(env, NULL, j, &o, NULL);
    for (i = 1; i <= 100; i++) {
        struct record r = world_close(i, i);

        r.close.occurred_us = db_now_us(p);
        r.close.cost_pusd = 1001; /* 2 nUSD, rounded up */
        world_write(j, port, env, &r);
        if (i % 9 == 0) {
            (void)ship_step(ship, env);
            s = load(p);
            assert_int_equal(snapshot_tenant(s, 3)->spent_nusd, 2 * s->spent_seq);
            assert_int_equal(s->spent_seq, i);
            snapshot_unref(s);
        }
    }
    ship_free(ship);
    journal_close(j);
    pg_close(p);
    os_env_free(env);
    world_db_drop(&own);
    world_remove(dir);
}

static struct snapshot *load_after(struct pg *p, const struct snapshot *known)
{
    struct err e = {0};
    struct snapshot *s = snapshot_from_pg(p, 1, db_now_us(p), known, &e);

    if (s == NULL) {
        fail_msg("%s", e.text);
    }
    return s;
}

#define ROLLUP_ROW(tenant, key, nusd)                                                              \
    "INSERT INTO usage_15m (bucket, gateway_id, tenant_id, project_id, key_id, user_id, "          \
    "tagset_id, period, model_id, tier_served, kind, n, tok_in_uncached, tok_in_cached, "          \
    "tok_cw_5m, tok_cw_1h, tok_out, tok_reasoning, cost_pusd, list_pusd, budget_nusd, gpu_us) "    \
    "VALUES (date_trunc('month', now()) + interval '30 minutes', 1, " tenant ", 1, " key           \
    ", 0, 0, 202601, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 1000, 1000, " nusd ", 0)"

/* A change of configuration must not cost a pass over the month: the role may not even read it. */
static void a_reload_takes_the_figures_over_and_sums_only_who_is_new(void **state)
{
    struct world_db own;
    char as_gateway[512];
    struct pg *owner, *p;
    struct snapshot *first, *second, *third;
    uint8_t hmac[SHA256_BYTES];

    (void)state;
    world_db_make(&own, false);
    owner = world_pg(own.conninfo);
    fill(owner);
    world_db_as(&own, "tollgate_gateway", as_gateway);
    p = world_pg(as_gateway);
    first = load_after(p, NULL);

    exec(owner, "REVOKE SELECT ON usage_15m, hold_suspense FROM tollgate_gateway");
    exec(owner, ROLLUP_ROW("1", "1", "1000"));
    exec(owner, "UPDATE ingest_cursor SET last_seq = 13 WHERE gateway_id = 1 AND gw_epoch = 5");
    exec(owner, "UPDATE quota SET limit_value = 6000 WHERE scope_kind = 1 AND dim = 5");
    second = load_after(p, first);
    assert_int_equal(snapshot_tenant(second, 1)->limits.budget_month_pusd, 6000);
    assert_int_equal(snapshot_tenant(second, 1)->spent_nusd, 17);
    assert_int_equal(snapshot_tenant(second, 1)->suspense_nusd, 30);
    hash_sha256("a", 1, hmac);
    assert_int_equal(snapshot_key(second, hmac)->spent_nusd, 10);
    assert_int_equal(second->spent_seq, 12); /* the figures' watermark, not today's cursor */

    exec(owner, "GRANT SELECT ON usage_15m, hold_suspense TO tollgate_gateway");
    exec(owner,
         "INSERT INTO tenant (name) VALUES ('late'); INSERT INTO project (tenant_id, name) "
         "VALUES (3, 'default'); INSERT INTO api_key (tenant_id, project_id, name, redacted, "
         "hmac) VALUES (3, 3, 'k4', 'tg_e', sha256('e')), (1, 1, 'k5', 'tg_f', sha256('f'))");
    exec(owner, ROLLUP_ROW("3", "4", "70"));
    exec(owner, ROLLUP_ROW("1", "5", "8"));
    third = load_after(p, second);
    assert_int_equal(snapshot_tenant(third, 3)->spent_nusd, 70);
    hash_sha256("e", 1, hmac);
    assert_int_equal(snapshot_key(third, hmac)->spent_nusd, 70);
    hash_sha256("f", 1, hmac);
    assert_int_equal(snapshot_key(third, hmac)->spent_nusd, 8);
    assert_int_equal(snapshot_tenant(third, 1)->spent_nusd, 17);
    snapshot_unref(third);
    third = load_after(p, NULL);
    assert_int_equal(snapshot_tenant(third, 1)->spent_nusd, 17 + 1000 + 8);
    assert_int_equal(third->spent_seq, 13);

    snapshot_unref(first);
    snapshot_unref(second);
    snapshot_unref(third);
    pg_close(p);
    pg_close(owner);
    world_db_drop(&own);
}

/* A claim stands in ingest_cursor before any row: rows of the epoch before it may not be in. */
static void a_claimed_epoch_without_rows_moves_no_watermark(void **state)
{
    struct pg *owner = world_pg(db.conninfo);
    struct pg *p = gateway_pg();
    struct snapshot *s;

    (void)state;
    exec(owner, "INSERT INTO ingest_cursor VALUES (1, 6, 0)");
    s = load(p);
    assert_int_equal(s->spent_epoch, 5);
    assert_int_equal(s->spent_seq, 12);
    exec(owner, "DELETE FROM ingest_cursor WHERE gateway_id = 1 AND gw_epoch = 6");
    snapshot_unref(s);
    pg_close(p);
    pg_close(owner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_snapshot_is_what_postgres_has),
        cmocka_unit_test(a_price_is_the_newest_of_the_smallest_band),
        cmocka_unit_test(a_file_brings_the_same_snapshot_back),
        cmocka_unit_test(a_damaged_file_is_refused_wherever_the_damage_is),
        cmocka_unit_test(spent_and_cursor_are_of_one_instant),
        cmocka_unit_test(a_reload_takes_the_figures_over_and_sums_only_who_is_new),
        cmocka_unit_test(a_claimed_epoch_without_rows_moves_no_watermark),
    };
    struct pg *p;
    int failed;

    if (!world_has_pg()) {
        return WORLD_SKIP;
    }
    world_db_make(&db, false);
    p = world_pg(db.conninfo);
    fill(p);
    pg_close(p);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    world_db_drop(&db);
    return failed;
}
