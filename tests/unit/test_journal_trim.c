/* test_journal_trim.c - a segment goes when nobody needs it, never before, and oldest first. */
#include "ledger_world.h"

#include <stdio.h>

struct folder {
    struct env *env;
    char dir[64];
    struct journal *j;
    struct journal_port *p;
};

static void folder_open(struct folder *f, uint64_t segment_records)
{
    f->j = world_journal(f->env, f->dir, segment_records);
    f->p = journal_port_new(f->j, f->env, NULL, NULL);
}

static void folder_make(struct folder *f, uint64_t segment_records)
{
    f->env = world_env();
    world_folder(f->dir);
    folder_open(f, segment_records);
}

static void folder_end(struct folder *f)
{
    journal_close(f->j);
    os_env_free(f->env);
    world_remove(f->dir);
}

static void put(struct folder *f, struct record r)
{
    world_write(f->j, f->p, f->env, &r);
}

/* OPEN, DISPATCH, CLOSE: three records. */
static void whole_request(struct folder *f, uint64_t n)
{
    put(f, world_open(n));
    put(f, world_dispatch(n, n));
    put(f, world_close(n, n));
}

static void count_segment(void *ctx, const char *name)
{
    size_t *n = ctx;

    *n += strstr(name, ".journal") != NULL ? 1 : 0;
}

static size_t segments(struct folder *f)
{
    size_t n = 0;

    assert_int_equal(f->env->ops->dir_list(f->env, f->dir, count_segment, &n), 0);
    return n;
}

/* Epoch and lsn of the oldest record that is left. */
static void oldest(struct folder *f, int32_t *epoch, uint64_t *lsn)
{
    struct err e = {0};
    struct journal_reader *r = journal_reader_open(f->env, f->dir, &e);
    struct record_stored s;

    assert_int_equal(journal_read(r, &s, &e), JOURNAL_READ_RECORD);
    *epoch = s.epoch;
    *lsn = s.lsn;
    journal_reader_close(r);
}

static void shipped_segments_go_and_others_stay(void **state)
{
    struct folder f;
    uint64_t i;
    int32_t epoch;
    uint64_t lsn;

    (void)state;
    folder_make(&f, 6); /* two requests each */
    for (i = 1; i <= 20; i++) {
        whole_request(&f, i);
    }
    assert_int_equal(segments(&f), 10);
    journal_trim(f.j, f.env, 1, 0);
    assert_int_equal(segments(&f), 10);
    journal_trim(f.j, f.env, 1, 7);
    assert_int_equal(segments(&f), 7);
    oldest(&f, &epoch, &lsn);
    assert_int_equal(lsn, 19);
    journal_trim(f.j, f.env, 1, 20);
    assert_int_equal(segments(&f), 1);
    folder_end(&f);
}

static void a_running_request_keeps_its_open_and_all_after_it(void **state)
{
    struct folder f;
    uint64_t i;

    (void)state;
    folder_make(&f, 6);
    put(&f, world_open(100));
    put(&f, world_dispatch(100, 100));
    for (i = 1; i <= 10; i++) {
        whole_request(&f, i);
    }
    assert_int_equal(segments(&f), 6);
    journal_trim(f.j, f.env, 1, 10);
    assert_int_equal(segments(&f), 6);
    put(&f, world_close(100, 100));
    journal_trim(f.j, f.env, 1, 11);
    assert_int_equal(segments(&f), 1);
    folder_end(&f);
}

static void a_void_request_keeps_nothing(void **state)
{
    struct folder f;
    uint64_t i;

    (void)state;
    folder_make(&f, 6);
    put(&f, world_open(100));
    put(&f, world_void(100));
    for (i = 1; i <= 10; i++) {
        whole_request(&f, i);
    }
    journal_trim(f.j, f.env, 1, 10);
    assert_int_equal(segments(&f), 1);
    folder_end(&f);
}

/* The attempt's worker never saw it: another one is tried, and its recovery needs the OPEN. */
static void a_voided_attempt_keeps_its_requests_open(void **state)
{
    struct folder f;
    struct record voided = world_void(100);
    uint64_t i;

    (void)state;
    folder_make(&f, 6);
    voided.voided.event = world_uuid(100);
    put(&f, world_open(100));
    put(&f, world_dispatch(100, 100));
    put(&f, voided);
    for (i = 1; i <= 10; i++) {
        whole_request(&f, i);
    }
    journal_trim(f.j, f.env, 1, 10);
    assert_int_equal(segments(&f), 6);
    put(&f, world_void(100)); /* no other one came */
    journal_trim(f.j, f.env, 1, 10);
    assert_int_equal(segments(&f), 1);
    folder_end(&f);
}

/* After a failed attempt another may come, and its recovery needs the OPEN. */
static void a_request_between_two_attempts_keeps_its_open(void **state)
{
    struct folder f;
    struct record failed = world_close(100, 100);
    uint64_t i;

    (void)state;
    folder_make(&f, 6);
    failed.close.outcome = OUTCOME_WORKER_ERROR;
    put(&f, world_open(100));
    put(&f, world_dispatch(100, 100));
    put(&f, failed);
    for (i = 1; i <= 10; i++) {
        whole_request(&f, i);
    }
    journal_trim(f.j, f.env, 1, 11);
    assert_int_equal(segments(&f), 6);
    put(&f, world_dispatch(100, 101));
    put(&f, world_close(100, 101));
    journal_trim(f.j, f.env, 1, 12);
    assert_int_equal(segments(&f), 1);
    folder_end(&f);
}

/* What an older life left without DISPATCH is void; what it dispatched waits for its CLOSE. */
static void older_lives_go_when_their_orphans_are_closed(void **state)
{
    struct folder f;
    int32_t epoch;
    uint64_t lsn;

    (void)state;
    folder_make(&f, 6);
    put(&f, world_open(1));
    put(&f, world_open(2));
    put(&f, world_dispatch(2, 2));
    journal_close(f.j);
    folder_open(&f, 6);
    put(&f, world_open(3));
    journal_trim(f.j, f.env, 2, 0);
    oldest(&f, &epoch, &lsn);
    assert_int_equal(epoch, 1);
    put(&f, world_close(2, 2));
    journal_trim(f.j, f.env, 2, 1);
    oldest(&f, &epoch, &lsn);
    assert_int_equal(epoch, 2);
    folder_end(&f);
}

/* A ring that came back after a loss of power, alone, would be taken for unknown attempts. */
static void a_killed_life_keeps_its_segments_until_its_rings_are_gone(void **state)
{
    struct folder f;
    struct env_file *ring;
    char path[128];
    uint64_t i;

    (void)state;
    folder_make(&f, 6);
    for (i = 1; i <= 6; i++) {
        whole_request(&f, i);
    }
    journal_close(f.j);
    snprintf(path, sizeof(path), "%s/port-0000000001-00.ring", f.dir);
    assert_int_equal(f.env->ops->file_open(f.env, path, ENV_OPEN_TRUNCATE, &ring), 0);
    f.env->ops->file_close(f.env, ring);
    folder_open(&f, 6);
    whole_request(&f, 7);
    journal_trim(f.j, f.env, 2, 1);
    assert_int_equal(segments(&f), 4);
    journal_forget_rings(f.env, f.dir, 2);
    journal_trim(f.j, f.env, 2, 1);
    assert_int_equal(segments(&f), 1);
    folder_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped_segments_go_and_others_stay),
        cmocka_unit_test(a_running_request_keeps_its_open_and_all_after_it),
        cmocka_unit_test(a_void_request_keeps_nothing),
        cmocka_unit_test(a_voided_attempt_keeps_its_requests_open),
        cmocka_unit_test(a_request_between_two_attempts_keeps_its_open),
        cmocka_unit_test(older_lives_go_when_their_orphans_are_closed),
        cmocka_unit_test(a_killed_life_keeps_its_segments_until_its_rings_are_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
