/* test_migrate.c - the schema is made once, never rewritten, and guards itself. */
#include "ledger_world.h"

#include "ledger/migrate.h"

#include <stdio.h>
#include <stdlib.h>

static struct world_db db;

static void write_migration(const char *dir, const char *name, const char *sql)
{
    char path[160];
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "wbe");
    CHECK(f != NULL && fputs(sql, f) >= 0);
    fclose(f);
}

static void each_file_runs_once_and_never_changes(void **state)
{
    struct world_db bare;
    struct migrate_report report;
    struct err e = {0};
    struct pg *p;
    char dir[64];

    (void)state;
    world_folder(dir);
    world_db_make(&bare, true);
    p = world_pg(bare.conninfo);
    write_migration(dir, "0001_a.sql", "CREATE TABLE a (x int); INSERT INTO a VALUES (1);");
    write_migration(dir, "0002_b.sql", "INSERT INTO a VALUES (2);");
    assert_true(migrate_run(p, dir, &report, NULL, NULL, &e));
    assert_int_equal(report.applied, 2);
    assert_true(migrate_run(p, dir, &report, NULL, NULL, &e));
    assert_int_equal(report.applied, 0);
    assert_int_equal(report.present, 2);
    assert_string_equal(report.last, "0002_b.sql");
    assert_int_equal(world_number(p, "SELECT sum(x) FROM a"), 3);
    write_migration(dir, "0001_a.sql", "CREATE TABLE a (x int); INSERT INTO a VALUES (7);");
    assert_false(migrate_run(p, dir, &report, NULL, NULL, &e));
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_non_null(strstr(e.text, "0001_a.sql"));
    pg_close(p);
    world_db_drop(&bare);
    world_remove(dir);
}

static void a_failing_file_leaves_nothing(void **state)
{
    struct world_db bare;
    struct migrate_report report;
    struct err e = {0};
    struct pg *p;
    char dir[64];

    (void)state;
    world_folder(dir);
    world_db_make(&bare, true);
    p = world_pg(bare.conninfo);
    write_migration(dir, "0001_a.sql", "CREATE TABLE a (x int); SELECT 1/0;");
    assert_false(migrate_run(p, dir, &report, NULL, NULL, &e));
    assert_non_null(strstr(e.text, "division by zero"));
    assert_int_equal(world_number(p, "SELECT count(*) FROM pg_class WHERE relname = 'a'"), 0);
    write_migration(dir, "0001_a.sql", "CREATE TABLE a (x int);");
    err_clear(&e);
    assert_true(migrate_run(p, dir, &report, NULL, NULL, &e));
    write_migration(dir, "0001_twin.sql", "SELECT 1;");
    assert_false(migrate_run(p, dir, &report, NULL, NULL, &e));
    assert_int_equal(e.code, ERR_INPUT);
    pg_close(p);
    world_db_drop(&bare);
    world_remove(dir);
}

/* Who set the cluster up made the roles and gave the database to the owner; that is all it needs.
 */
static void the_owner_alone_can_migrate_its_database(void **state)
{
    struct world_db own;
    struct migrate_report report;
    struct err e = {0};
    char conninfo[512];
    char sql[160];
    struct pg *p;

    (void)state;
    world_db_make(&own, true);
    p = world_pg(own.conninfo);
    (void)snprintf(sql, sizeof(sql), "ALTER DATABASE %s OWNER TO tollgate_owner", own.name);
    assert_true(pg_exec(p, sql, NULL, 0, &e));
    pg_close(p);
    world_db_as(&own, "tollgate_owner", conninfo);
    p = world_pg(conninfo);
    if (!migrate_run(p, SOURCE_DIR "/sql", &report, NULL, NULL, &e) ||
        !migrate_partitions(p, 8, &e)) {
        fail_msg("%s", e.text);
    }
    pg_close(p);
    world_db_as(&own, "tollgate_reader", conninfo);
    p = world_pg(conninfo);
    assert_int_equal(world_number(p, "SELECT count(*) FROM usage_event"), 0);
    pg_close(p);
    world_db_drop(&own);
}

static void everything_belongs_to_the_owner(void **state)
{
    struct pg *p = world_pg(db.conninfo);

    (void)state;
    assert_int_equal(world_number(p, "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid "
                                     "= c.relnamespace WHERE n.nspname = 'public' AND relkind IN "
                                     "('r', 'p', 'S') AND pg_get_userbyid(relowner) <> "
                                     "'tollgate_owner'"),
                     0);
    pg_close(p);
}

static void no_money_or_token_column_is_a_float(void **state)
{
    struct pg *p = world_pg(db.conninfo);

    (void)state;
    assert_int_equal(world_number(p, "SELECT count(*) FROM information_schema.columns WHERE "
                                     "table_schema = 'public' AND data_type IN ('real', 'double "
                                     "precision')"),
                     0);
    pg_close(p);
}

#define EVENT_ROW                                                                                  \
    "INSERT INTO usage_event (occurred_at, event_id, request_id, gw_seq, worker_epoch, "           \
    "worker_seq, cost_pusd, list_pusd, gpu_us, gateway_id, gw_epoch, period, tenant_id, "          \
    "project_id, key_id, user_id, tagset_id, worker_id, price_id, tok_in_uncached, "               \
    "tok_in_cached, tok_cw_5m, tok_cw_1h, tok_out, tok_reasoning, tok_accepted_draft, queue_us, "  \
    "dur_us, attempt, endpoint, model_id, tier_requested, tier_served, kind, usage_state, "        \
    "outcome, http_status, finish_reason, route_reason, reason_code, degraded) VALUES (now(), "    \
    "gen_random_uuid(), gen_random_uuid(), 1, 0, 0, 0, 0, 0, 1, 1, 202601, 1, 1, 1, 0, 0, 1, 1, "
#define EVENT_END ", 0, 0, 0, 1, 1, 1, 1, 1, %d, 1, 1, 200, 1, 1, 0, false)"

static void the_ledger_only_grows(void **state)
{
    struct pg *p = world_pg(db.conninfo); /* even for a superuser */
    struct err e = {0};
    char sql[1500];
    char part[64];
    struct pg_rows *r;

    (void)state;
    (void)snprintf(sql, sizeof(sql), EVENT_ROW "1, 0, 0, 0, 1, 0" EVENT_END, 1);
    assert_true(pg_exec(p, sql, NULL, 0, &e));
    world_refused(p, "UPDATE usage_event SET cost_pusd = 0");
    world_refused(p, "DELETE FROM usage_event");
    world_refused(p, "TRUNCATE usage_event");
    r = pg_query(p, "SELECT tableoid::regclass FROM usage_event LIMIT 1", NULL, 0, &e);
    (void)str_copy(pg_value(r, 0, 0), part, sizeof(part));
    pg_rows_free(r);
    (void)snprintf(sql, sizeof(sql), "TRUNCATE %s", part);
    world_refused(p, sql);
    (void)snprintf(sql, sizeof(sql), "UPDATE %s SET cost_pusd = 0", part);
    world_refused(p, sql);
    assert_int_equal(world_number(p, "SELECT count(*) FROM usage_event"), 1);
    pg_close(p);
}

static void a_usage_row_has_no_negative_class(void **state)
{
    struct pg *p = world_pg(db.conninfo);
    struct err e = {0};
    char sql[1500];

    (void)state;
    (void)snprintf(sql, sizeof(sql), EVENT_ROW "1, -1, 0, 0, 1, 0" EVENT_END, 1);
    assert_int_equal(world_refused(p, sql), ERR_CONFLICT);
    (void)snprintf(sql, sizeof(sql), EVENT_ROW "1, -1, 0, 0, 1, 0" EVENT_END, 2); /* a correction */
    assert_true(pg_exec(p, sql, NULL, 0, &e));
    pg_close(p);
}

static void roles_may_what_they_need(void **state)
{
    char conninfo[512];
    struct err e = {0};
    struct pg *p;

    (void)state;
    world_db_as(&db, "tollgate_reader", conninfo);
    p = world_pg(conninfo);
    (void)world_number(p, "SELECT count(*) FROM usage_event");
    (void)world_number(p, "SELECT count(*) FROM usage_15m");
    (void)world_number(p, "SELECT count(tenant_id) FROM tenant");
    (void)world_number(p, "SELECT count(redacted) FROM api_key");
    world_refused(p, "SELECT hmac FROM api_key");
    world_refused(p, "INSERT INTO tenant (name) VALUES ('x')");
    world_refused(p, "SELECT tollgate_make_partitions('2026-01-01', '2026-01-01')");
    /* The owner's triggers on a table of one's own would write the audit. */
    assert_true(pg_exec(p, "CREATE TEMP TABLE mine (LIKE quota)", NULL, 0, &e));
    world_refused(p, "CREATE TRIGGER t AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION "
                     "tollgate_quota_audit()");
    world_refused(p, "CREATE TRIGGER t AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION "
                     "tollgate_config_bump()");
    pg_close(p);
    world_db_as(&db, "tollgate_gateway", conninfo);
    p = world_pg(conninfo);
    assert_int_equal(world_number(p, "SELECT tollgate_make_partitions('2031-03-01', '2031-03-03')"),
                     3);
    assert_int_equal(world_number(p, "SELECT tollgate_make_partitions('2031-03-01', '2031-03-04')"),
                     1);
    assert_true(pg_exec(p, "SELECT hmac FROM api_key", NULL, 0, &e));
    world_refused(p, "UPDATE usage_event SET cost_pusd = 0");
    world_refused(p, "CREATE TABLE mine (x int)");
    world_refused(p, "DELETE FROM admin_audit");
    world_refused(p, "DELETE FROM usage_event");
    world_refused(p, "TRUNCATE usage_event");
    world_refused(p, "TRUNCATE ingest_cursor");
    world_refused(p, "DELETE FROM usage_15m");
    world_refused(p, "UPDATE billing_period SET state = 'open'");
    world_refused(p, "SELECT tollgate_make_partitions('2031-01-01', '2041-01-01')");
    pg_close(p);
}

static void partitions_reach_a_week_ahead_and_there_is_no_default(void **state)
{
    struct pg *p = world_pg(db.conninfo);

    (void)state;
    assert_true(world_number(p, "SELECT count(*) FROM generate_series(-1, 8) d WHERE "
                                "to_regclass('usage_event_' || to_char((now() AT TIME ZONE "
                                "'UTC')::date + d, 'YYYYMMDD')) IS NOT NULL") == 10);
    assert_int_equal(world_number(p, "SELECT count(*) FROM pg_partitioned_table WHERE partdefid "
                                     "<> 0"),
                     0);
    pg_close(p);
}

static void a_price_never_changes(void **state)
{
    struct pg *p = world_pg(db.conninfo);
    struct err e = {0};

    (void)state;
    assert_true(pg_exec(p, "INSERT INTO model (name) VALUES ('m')", NULL, 0, &e));
    assert_true(pg_exec(p,
                        "INSERT INTO price_version (model_id, tier, in_pusd, cached_pusd, "
                        "cw_5m_pusd, cw_1h_pusd, out_pusd, reasoning_pusd, list_in_pusd, "
                        "list_out_pusd, sha256) SELECT model_id, 1, 1, 2, 3, 4, 5, 6, 7, 8, "
                        "sha256('') FROM model",
                        NULL, 0, &e));
    assert_int_equal(world_number(p, "SELECT count(*) FROM price_version WHERE sha256 = "
                                     "sha256('')"),
                     0);
    world_refused(p, "UPDATE price_version SET in_pusd = 9");
    world_refused(p, "DELETE FROM price_version");
    world_refused(p, "TRUNCATE price_version CASCADE");
    pg_close(p);
}

static void a_change_of_configuration_is_told(void **state)
{
    struct pg *listener = world_pg(db.conninfo);
    struct pg *p = world_pg(db.conninfo);
    struct err e = {0};
    int64_t before = world_number(p, "SELECT version FROM config_version");
    int i;

    (void)state;
    assert_true(pg_exec(listener, "LISTEN tollgate_config", NULL, 0, &e));
    assert_false(pg_notified(listener));
    assert_true(pg_exec(p, "INSERT INTO tenant (name) VALUES ('told')", NULL, 0, &e));
    assert_true(world_number(p, "SELECT version FROM config_version") > before);
    for (i = 0; i < 1000 && !pg_notified(listener); i++) {
        assert_true(pg_exec(p, "SELECT pg_sleep(0.001)", NULL, 0, &e));
    }
    assert_true(i < 1000);
    pg_close(listener);
    pg_close(p);
}

static void a_failure_names_its_class(void **state)
{
    struct pg *p = world_pg(db.conninfo);
    struct err e = {0};

    (void)state;
    assert_int_equal(world_refused(p, "INSERT INTO tier VALUES (1, 'again')"), ERR_CONFLICT);
    assert_string_equal(pg_sqlstate(p), "23505");
    assert_int_equal(world_refused(p, "SELECT 1/0"), ERR_INPUT);
    assert_null(pg_open(STR("host=/nowhere port=1 user=x"), "test", &e));
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    assert_int_equal(world_number(p, "SELECT 42"), 42); /* and the connection lives */
    pg_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_file_runs_once_and_never_changes),
        cmocka_unit_test(a_failing_file_leaves_nothing),
        cmocka_unit_test(the_owner_alone_can_migrate_its_database),
        cmocka_unit_test(everything_belongs_to_the_owner),
        cmocka_unit_test(no_money_or_token_column_is_a_float),
        cmocka_unit_test(the_ledger_only_grows),
        cmocka_unit_test(a_usage_row_has_no_negative_class),
        cmocka_unit_test(roles_may_what_they_need),
        cmocka_unit_test(partitions_reach_a_week_ahead_and_there_is_no_default),
        cmocka_unit_test(a_price_never_changes),
        cmocka_unit_test(a_change_of_configuration_is_told),
        cmocka_unit_test(a_failure_names_its_class),
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
