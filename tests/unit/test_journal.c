/* test_journal.c - what is durable can be read, what cannot be written stops admission, what cannot
 * be synced stops the process. */
#include "ledger_world.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

/* ---- an env whose disk refuses when told to ---- */

static struct faults {
    const struct env_ops *real;
    int allocate, sync, write; /* errno to answer, 0: works */
} faults;

static int faulty_allocate(struct env *e, struct env_file *f, uint64_t bytes)
{
    return faults.allocate != 0 ? -faults.allocate : faults.real->file_allocate(e, f, bytes);
}

static int faulty_sync(struct env *e, struct env_file *f)
{
    return faults.sync != 0 ? -faults.sync : faults.real->file_sync(e, f);
}

static ssize_t faulty_pwrite(struct env *e, struct env_file *f, const void *p, size_t n,
                             uint64_t offset)
{
    return faults.write != 0 ? -faults.write : faults.real->file_pwrite(e, f, p, n, offset);
}

static struct env *faulty_env(void)
{
    static struct env_ops ops;
    struct env *env = world_env();

    faults = (struct faults){.real = env->ops};
    ops = *env->ops;
    ops.file_allocate = faulty_allocate;
    ops.file_sync = faulty_sync;
    ops.file_pwrite = faulty_pwrite;
    env->ops = &ops;
    return env;
}

/* ---- records ---- */

static struct record sample(int type, uint64_t n)
{
    switch (type) {
    case RECORD_OPEN:
        return world_open(n);
    case RECORD_DISPATCH:
        return world_dispatch(n, n);
    case RECORD_PROGRESS:
        return world_progress(n, 256);
    case RECORD_CLOSE:
        return world_close(n, n);
    case RECORD_VOID:
        return (struct record){.type = RECORD_VOID,
                               .voided = {.request = world_uuid(n), .event = world_uuid(n + 1)}};
    default:
        return (struct record){.type = RECORD_CHECKPOINT,
                               .checkpoint = {1, (int32_t)n, 202601, 1234567, 89}};
    }
}

static void every_type_comes_back_as_it_went(void **state)
{
    uint8_t bytes[JOURNAL_RECORD_BYTES];
    uint8_t again[JOURNAL_RECORD_BYTES];
    struct record_stored s;
    int type;

    (void)state;
    for (type = RECORD_OPEN; type <= RECORD_CHECKPOINT; type++) {
        struct record r = sample(type, 42);

        record_encode(&r, 17, 5, type == RECORD_CLOSE ? 11 : 0, bytes);
        assert_true(record_decode(bytes, &s));
        assert_int_equal(s.lsn, 17);
        assert_int_equal(s.epoch, 5);
        assert_int_equal(s.r.type, type);
        record_encode(&s.r, 17, 5, type == RECORD_CLOSE ? 11 : 0, again);
        assert_memory_equal(bytes, again, sizeof(bytes));
    }
}

static void a_close_keeps_every_column(void **state)
{
    uint8_t bytes[JOURNAL_RECORD_BYTES];
    struct record r = world_close(1, 2);
    struct record_stored s;
    const struct entry *c = &s.r.close;

    (void)state;
    r.close.gateway_id = 12;
    r.close.worker_epoch = UINT64_MAX;
    r.close.worker_seq = -5;
    r.close.reason_code = 1;
    r.close.degraded = true;
    r.close.corrects = world_uuid(99);
    r.close.batch_id = 1LL << 40;
    r.close.batch_line = 7;
    r.close.client_idem_hash = 0xfedcba9876543210u;
    r.close.queue_us = 1;
    r.close.accepted_draft = 3;
    record_encode(&r, 1, 1, 1, bytes);
    assert_true(record_decode(bytes, &s));
    assert_int_equal(c->gateway_id, 12);
    assert_int_equal(c->gw_seq, 1);
    assert_int_equal(c->gw_epoch, 1);
    r.close.gw_seq = 1;
    r.close.gw_epoch = 1;
    assert_int_equal(c->worker_epoch, UINT64_MAX);
    assert_int_equal(c->client_idem_hash, 0xfedcba9876543210u);
    assert_true(c->degraded);
    assert_true(uuid_eq(c->corrects, world_uuid(99)));
    assert_memory_equal(&c->tok, &r.close.tok, sizeof(c->tok));
    assert_int_equal(c->cost_pusd, r.close.cost_pusd);
    assert_int_equal(c->batch_id, 1LL << 40);
    assert_int_equal(c->accepted_draft, 3);
}

static void one_flipped_bit_anywhere_is_refused(void **state)
{
    uint8_t bytes[JOURNAL_RECORD_BYTES];
    struct record r = world_dispatch(1, 2);
    struct record_stored s;
    size_t i;

    (void)state;
    record_encode(&r, 9, 2, 0, bytes);
    for (i = 0; i < sizeof(bytes) * 8; i++) {
        bytes[i / 8] ^= (uint8_t)(1u << (i % 8));
        assert_false(record_decode(bytes, &s));
        bytes[i / 8] ^= (uint8_t)(1u << (i % 8));
    }
    assert_true(record_decode(bytes, &s));
}

/* ---- the writer ---- */

/* Reads all; asserts that lsn and gw_seq are dense from 1 in each epoch. */
static size_t read_dense(struct env *env, const char *dir, int64_t *last_seq)
{
    struct err e = {0};
    struct journal_reader *r = journal_reader_open(env, dir, &e);
    struct record_stored s;
    enum journal_read got;
    uint64_t lsn = 0;
    int64_t seq = 0;
    int32_t epoch = 0;
    size_t n = 0;

    assert_non_null(r);
    while ((got = journal_read(r, &s, &e)) == JOURNAL_READ_RECORD) {
        if (s.epoch != epoch) {
            assert_true(s.epoch > epoch);
            epoch = s.epoch;
            lsn = 0;
            seq = 0;
        }
        assert_int_equal(s.lsn, ++lsn);
        if (s.r.type == RECORD_CLOSE) {
            assert_int_equal(s.r.close.gw_seq, ++seq);
            assert_int_equal(s.r.close.gateway_id, 1);
        }
        n++;
    }
    if (got != JOURNAL_READ_END) {
        fail_msg("%d %s", got, e.text);
    }
    journal_reader_close(r);
    if (last_seq != NULL) {
        *last_seq = seq;
    }
    return n;
}

static void durable_moves_with_the_sync_not_with_the_put(void **state)
{
    struct env *env = world_env();
    struct journal *j;
    struct journal_port *p;
    struct record r = world_open(1);
    char dir[64];

    (void)state;
    world_folder(dir);
    j = world_journal(env, dir, 100);
    p = journal_port_new(j, env, NULL, NULL);
    assert_int_equal(journal_put(p, &r), 1);
    assert_int_equal(journal_put(p, &r), 2);
    assert_int_equal(journal_durable(p), 0);
    assert_int_equal(journal_durable_lsn(j), 0);
    while (journal_step(j, env)) {
    }
    assert_int_equal(journal_durable(p), 2);
    assert_int_equal(journal_durable_lsn(j), 2);
    journal_close(j);
    os_env_free(env);
    world_remove(dir);
}

static void numbers_are_dense_over_ports_segments_and_lives(void **state)
{
    struct env *env = world_env();
    struct journal *j;
    struct journal_port *p[3];
    char dir[64];
    int64_t seq;
    int life;
    uint64_t i;

    (void)state;
    world_folder(dir);
    for (life = 1; life <= 3; life++) {
        j = world_journal(env, dir, 7);
        assert_int_equal(journal_epoch(j), life);
        for (i = 0; i < 3; i++) {
            p[i] = journal_port_new(j, env, NULL, NULL);
        }
        for (i = 0; i < 100; i++) {
            struct record r = sample((int)(i % 6) + 1, i);

            assert_true(journal_put(p[i % 3], &r) > 0);
            if (i % 5 == 0) {
                (void)journal_step(j, env);
            }
        }
        journal_close(j);
    }
    assert_int_equal(read_dense(env, dir, &seq), 300);
    assert_int_equal(seq, 17);
    os_env_free(env);
    world_remove(dir);
}

static void a_reader_sees_what_is_durable_and_no_more(void **state)
{
    struct env *env = world_env();
    struct journal *j;
    struct journal_port *p;
    struct journal_reader *r;
    struct record_stored s;
    struct err e = {0};
    char dir[64];
    uint64_t i;

    (void)state;
    world_folder(dir);
    j = world_journal(env, dir, 4);
    p = journal_port_new(j, env, NULL, NULL);
    r = journal_reader_open(env, dir, &e);
    for (i = 0; i < 30; i++) {
        struct record rec = world_close(i, i);

        journal_reader_bound(r, journal_epoch(j), journal_durable_lsn(j));
        assert_int_equal(journal_read(r, &s, &e), JOURNAL_READ_END);
        world_write(j, p, env, &rec);
        assert_int_equal(journal_read(r, &s, &e), JOURNAL_READ_END);
        journal_reader_bound(r, journal_epoch(j), journal_durable_lsn(j));
        assert_int_equal(journal_read(r, &s, &e), JOURNAL_READ_RECORD);
        assert_int_equal(s.r.close.gw_seq, i + 1);
    }
    journal_reader_seek(r, 1, 18);
    assert_int_equal(journal_read(r, &s, &e), JOURNAL_READ_RECORD);
    assert_int_equal(s.lsn, 18);
    journal_reader_close(r);
    journal_close(j);
    os_env_free(env);
    world_remove(dir);
}

static void a_full_port_refuses_and_writes_nothing(void **state)
{
    struct env *env = world_env();
    struct journal *j;
    struct journal_port *p;
    struct record r = world_open(1);
    char dir[64];
    int i;

    (void)state;
    world_folder(dir);
    j = world_journal(env, dir, 20000);
    p = journal_port_new(j, env, NULL, NULL);
    for (i = 1; i <= JOURNAL_PORT_RECORDS; i++) {
        assert_int_equal(journal_put(p, &r), i);
    }
    assert_int_equal(journal_put(p, &r), 0);
    while (journal_step(j, env)) {
    }
    assert_int_equal(journal_put(p, &r), JOURNAL_PORT_RECORDS + 1);
    journal_close(j);
    assert_int_equal(read_dense(env, dir, NULL), JOURNAL_PORT_RECORDS + 1);
    os_env_free(env);
    world_remove(dir);
}

static void two_gateways_cannot_share_a_folder(void **state)
{
    struct env *env = world_env();
    struct journal_options o = {.gateway_id = 2, .segment_bytes = 3840};
    struct err e = {0};
    struct journal *j;
    char dir[64];

    (void)state;
    world_folder(dir);
    o.dir = dir;
    j = world_journal(env, dir, 10);
    assert_null(journal_open(env, NULL, &o, 0, &e));
    assert_int_equal(e.code, ERR_CONFLICT);
    journal_close(j);
    err_clear(&e);
    j = journal_open(env, NULL, &o, 0, &e);
    assert_non_null(j);
    journal_close(j);
    os_env_free(env);
    world_remove(dir);
}

static void the_cursor_in_postgres_may_demand_a_later_epoch(void **state)
{
    struct env *env = world_env();
    struct journal_options o = {.gateway_id = 1, .segment_bytes = 3840};
    struct err e = {0};
    struct journal *j;
    char dir[64];

    (void)state;
    world_folder(dir);
    o.dir = dir;
    j = journal_open(env, NULL, &o, 12, &e);
    assert_int_equal(journal_epoch(j), 12);
    journal_close(j);
    os_env_free(env);
    world_remove(dir);
}

static void an_old_life_gives_back_its_empty_space(void **state)
{
    struct env *env = world_env();
    struct record r = world_open(1);
    struct journal *j;
    struct journal_port *p;
    char dir[64];
    char path[160];
    struct stat st;

    (void)state;
    world_folder(dir);
    /* Killed: the segment keeps its preallocated tail. */
    j = world_journal(env, dir, 1000);
    p = journal_port_new(j, env, NULL, NULL);
    world_write(j, p, env, &r);
    (void)snprintf(path, sizeof(path), "%s/0000000001-00000000000000000001.journal", dir);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 1000 * JOURNAL_RECORD_BYTES);
    journal_close(j);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, JOURNAL_RECORD_BYTES);
    /* A life without a record leaves no file, however often it is tried. */
    journal_close(world_journal(env, dir, 1000));
    journal_close(world_journal(env, dir, 1000));
    assert_int_equal(read_dense(env, dir, NULL), 1);
    os_env_free(env);
    world_remove(dir);
}

/* ---- when the disk says no ---- */

static void a_full_disk_stops_admission_and_not_what_runs(void **state)
{
    struct env *env = faulty_env();
    struct journal *j;
    struct journal_port *p;
    struct record r = world_close(1, 1);
    char dir[64];
    int i;

    (void)state;
    world_folder(dir);
    j = world_journal(env, dir, 10);
    p = journal_port_new(j, env, NULL, NULL);
    world_write(j, p, env, &r);
    assert_true(journal_admits(j));
    faults.allocate = ENOSPC;
    for (i = 0; i < 10; i++) { /* into the spare */
        world_write(j, p, env, &r);
    }
    assert_false(journal_step(j, env));
    assert_false(journal_admits(j));
    assert_false(journal_is_failed(j));
    for (i = 0; i < 9; i++) { /* the reserve */
        world_write(j, p, env, &r);
    }
    /* Past it: kept in the ring, not lost, not said to be durable. */
    assert_int_equal(journal_put(p, &r), 21);
    for (i = 0; i < 5; i++) {
        (void)journal_step(j, env);
    }
    assert_int_equal(journal_durable(p), 20);
    assert_false(journal_admits(j));
    faults.allocate = 0;
    for (i = 0; i < 100 && journal_durable(p) < 21; i++) {
        os_turn(env, 10000);
        (void)journal_step(j, env);
    }
    assert_int_equal(journal_durable(p), 21);
    (void)journal_step(j, env);
    assert_true(journal_admits(j));
    journal_close(j);
    assert_int_equal(read_dense(env, dir, NULL), 21);
    os_env_free(env);
    world_remove(dir);
}

static void a_write_without_space_is_tried_again(void **state)
{
    struct env *env = faulty_env();
    struct journal *j;
    struct journal_port *p;
    struct record r = world_close(1, 1);
    char dir[64];

    (void)state;
    world_folder(dir);
    j = world_journal(env, dir, 10);
    p = journal_port_new(j, env, NULL, NULL);
    world_write(j, p, env, &r);
    faults.write = ENOSPC;
    assert_true(journal_put(p, &r) > 0);
    assert_false(journal_step(j, env));
    assert_false(journal_admits(j));
    assert_int_equal(journal_durable(p), 1);
    faults.write = 0;
    assert_true(journal_step(j, env));
    assert_true(journal_admits(j));
    assert_int_equal(journal_durable(p), 2);
    journal_close(j);
    assert_int_equal(read_dense(env, dir, NULL), 2);
    os_env_free(env);
    world_remove(dir);
}

static void a_failed_sync_is_the_end(void **state)
{
    struct env *env = faulty_env();
    struct journal *j;
    struct journal_port *p;
    struct record r = world_close(1, 1);
    char dir[64];

    (void)state;
    world_folder(dir);
    j = world_journal(env, dir, 10);
    p = journal_port_new(j, env, NULL, NULL);
    world_write(j, p, env, &r);
    assert_true(journal_put(p, &r) > 0);
    faults.sync = EIO;
    assert_false(journal_step(j, env));
    assert_true(journal_is_failed(j));
    assert_false(journal_admits(j));
    assert_int_equal(journal_durable(p), 1);
    /* It works again, and is not believed. */
    faults.sync = 0;
    assert_false(journal_step(j, env));
    assert_int_equal(journal_durable(p), 1);
    journal_close(j);
    os_env_free(env);
    world_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_comes_back_as_it_went),
        cmocka_unit_test(a_close_keeps_every_column),
        cmocka_unit_test(one_flipped_bit_anywhere_is_refused),
        cmocka_unit_test(durable_moves_with_the_sync_not_with_the_put),
        cmocka_unit_test(numbers_are_dense_over_ports_segments_and_lives),
        cmocka_unit_test(a_reader_sees_what_is_durable_and_no_more),
        cmocka_unit_test(a_full_port_refuses_and_writes_nothing),
        cmocka_unit_test(two_gateways_cannot_share_a_folder),
        cmocka_unit_test(the_cursor_in_postgres_may_demand_a_later_epoch),
        cmocka_unit_test(an_old_life_gives_back_its_empty_space),
        cmocka_unit_test(a_full_disk_stops_admission_and_not_what_runs),
        cmocka_unit_test(a_write_without_space_is_tried_again),
        cmocka_unit_test(a_failed_sync_is_the_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
