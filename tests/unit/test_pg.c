/* test_pg.c - the door to libpq: parameters, COPY, failures with a class, and no wait without an
 * end. */
#include "ledger_world.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static struct world_db db;

static void parameters_are_bytes_and_null_is_null(void **state)
{
    struct pg *p = world_pg(db.conninfo);
    struct err e = {0};
    const struct str params[] = {STR("o'brien; --"), {NULL, 0}, STR(""), STR("-7")};
    struct pg_rows *r = pg_query(p, "SELECT $1::text, $2::text, $3::text, $4::int", params, 4, &e);

    (void)state;
    assert_non_null(r);
    assert_int_equal(pg_row_count(r), 1);
    assert_true(str_eq(pg_value(r, 0, 0), params[0]));
    assert_null(pg_value(r, 0, 1).p);
    assert_int_equal(pg_i64(r, 0, 1), 0);
    assert_non_null(pg_value(r, 0, 2).p);
    assert_int_equal(pg_value(r, 0, 2).n, 0);
    assert_int_equal(pg_i64(r, 0, 3), -7);
    pg_rows_free(r);
    pg_close(p);
}

static void a_copy_is_in_when_its_end_says_so(void **state)
{
    struct pg *p = world_pg(db.conninfo);
    struct err e = {0};
    int i;

    (void)state;
    assert_true(pg_script(p, STR("CREATE TABLE c (x int); CREATE TABLE d (x int)"), &e));
    assert_true(pg_copy_begin(p, "COPY c FROM STDIN", &e));
    for (i = 0; i < 200000; i++) { /* far more than a socket buffer */
        assert_true(pg_copy_data(p, "12345\n", 6, &e));
    }
    assert_true(pg_copy_end(p, &e));
    assert_int_equal(world_number(p, "SELECT count(*) FROM c"), 200000);
    assert_true(pg_copy_begin(p, "COPY d FROM STDIN", &e));
    assert_true(pg_copy_data(p, "1\nx\n", 4, &e));
    assert_false(pg_copy_end(p, &e));
    assert_int_equal(e.code, ERR_INPUT);
    assert_int_equal(world_number(p, "SELECT count(*) FROM d"), 0);
    pg_close(p);
}

static void a_lost_connection_is_said_and_stays_lost(void **state)
{
    struct pg *p = world_pg(db.conninfo);
    struct pg *other = world_pg(db.conninfo);
    struct err e = {0};
    char sql[80];

    (void)state;
    (void)snprintf(sql, sizeof(sql), "SELECT pg_terminate_backend(%lld)",
                   (long long)world_number(p, "SELECT pg_backend_pid()"));
    assert_true(pg_exec(other, sql, NULL, 0, &e));
    assert_false(pg_exec(p, "SELECT 1", NULL, 0, &e));
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    assert_true(pg_is_broken(p));
    err_clear(&e);
    assert_false(pg_exec(p, "SELECT 1", NULL, 0, &e));
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    pg_close(p);
    pg_close(other);
}

static void a_server_that_never_speaks_is_given_up(void **state)
{
    struct env *env = world_env();
    struct env_addr a;
    struct err e = {0};
    struct env_sock *l;
    char text[ENV_ADDR_TEXT_MAX];
    char conninfo[160];

    (void)state;
    assert_true(os_addr_parse(STR("127.0.0.1:0"), &a, &e));
    l = env_listen(env, &a, false, &e);
    assert_non_null(l);
    assert_true(env->ops->local_addr(env, l, &a));
    os_addr_text(&a, text);
    (void)snprintf(conninfo, sizeof(conninfo), "host=127.0.0.1 port=%s user=x dbname=x",
                   strrchr(text, ':') + 1);
    assert_null(pg_open(str_c(conninfo), "test", &e));
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    assert_non_null(strstr(e.text, "did not answer"));
    env_close(env, l);
    os_env_free(env);
}

/* The backend is stopped, not gone: its socket is fine and nothing comes. */
static void a_server_that_stops_speaking_is_found_out_by_a_ping(void **state)
{
    struct pg *p = world_pg(db.conninfo);
    pid_t backend = (pid_t)world_number(p, "SELECT pg_backend_pid()");
    struct err e = {0};

    (void)state;
    assert_true(pg_ping(p, &e));
    if (kill(backend, SIGSTOP) != 0) {
        skip(); /* another user's process */
    }
    assert_false(pg_ping(p, &e));
    assert_int_equal(kill(backend, SIGCONT), 0);
    assert_int_equal(e.code, ERR_UNAVAILABLE);
    assert_non_null(strstr(e.text, "did not answer"));
    assert_true(pg_is_broken(p));
    pg_close(p);
}

static void a_rollback_without_a_transaction_is_fine(void **state)
{
    struct pg *p = world_pg(db.conninfo);
    struct err e = {0};

    (void)state;
    pg_rollback(p);
    assert_true(pg_script(p, STR("BEGIN; CREATE TABLE gone (x int)"), &e));
    assert_false(pg_exec(p, "SELECT 1/0", NULL, 0, &e));
    pg_rollback(p);
    assert_int_equal(world_number(p, "SELECT count(*) FROM pg_class WHERE relname = 'gone'"), 0);
    pg_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_bytes_and_null_is_null),
        cmocka_unit_test(a_copy_is_in_when_its_end_says_so),
        cmocka_unit_test(a_lost_connection_is_said_and_stays_lost),
        cmocka_unit_test(a_server_that_never_speaks_is_given_up),
        cmocka_unit_test(a_server_that_stops_speaking_is_found_out_by_a_ping),
        cmocka_unit_test(a_rollback_without_a_transaction_is_fine),
    };
    int failed;

    if (!world_has_pg()) {
        return WORLD_SKIP;
    }
    world_db_make(&db, true);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    world_db_drop(&db);
    return failed;
}
