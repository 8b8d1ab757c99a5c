/* test_recover.c - wherever a journal is cut, nothing durable is lost and nothing is invented. */
#include "ledger_world.h"

#include "ledger/recover.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define SEGMENT "%s/%010d-%020d.journal"

static void write_file(const char *dir, int epoch, int first, const uint8_t *p, size_t n)
{
    char path[160];
    int fd;

    (void)snprintf(path, sizeof(path), SEGMENT, dir, epoch, first);
    fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, p, n), n);
    close(fd);
}

/* Six requests in every shape, interleaved as loops do. */
#define SCRIPT_RECORDS 20
static void script(struct record out[SCRIPT_RECORDS])
{
    const struct record r[SCRIPT_RECORDS] = {
        world_open(1),        world_dispatch(1, 1), world_open(2),         world_open(3),
        world_dispatch(2, 2), world_progress(1, 7), world_close(1, 1),     world_void(3),
        world_open(4),        world_dispatch(4, 4), world_progress(4, 5),  world_progress(2, 9),
        world_close(2, 2),    world_open(5),        world_dispatch(5, 5),  world_progress(4, 11),
        world_close(4, 4),    world_open(6),        world_dispatch(6, 60), world_close(6, 60),
    };

    memcpy(out, r, sizeof(r));
}

static size_t encode(const struct record *r, size_t n, int32_t epoch, uint8_t *out)
{
    int64_t seq = 0;
    size_t i;

    for (i = 0; i < n; i++) {
        seq += r[i].type == RECORD_CLOSE ? 1 : 0;
        record_encode(&r[i], i + 1, epoch, r[i].type == RECORD_CLOSE ? seq : 0,
                      out + i * JOURNAL_RECORD_BYTES);
    }
    return n * JOURNAL_RECORD_BYTES;
}

/* The naive model: attempts with a DISPATCH and no CLOSE among the first n records. */
static size_t orphans_expected(const struct record *r, size_t n, struct uuid out[SCRIPT_RECORDS])
{
    size_t count = 0;
    size_t i;
    size_t k;

    for (i = 0; i < n; i++) {
        bool closed = r[i].type != RECORD_DISPATCH;

        for (k = i + 1; k < n && !closed; k++) {
            closed = r[k].type == RECORD_CLOSE && uuid_eq(r[k].close.event, r[i].dispatch.event);
        }
        if (!closed) {
            out[count++] = r[i].dispatch.event;
        }
    }
    return count;
}

static void assert_recovered(struct env *env, const char *dir, const struct record *r, size_t n)
{
    struct uuid expected[SCRIPT_RECORDS];
    size_t count = orphans_expected(r, n, expected);
    struct recovered out;
    struct err e = {0};
    size_t i;

    if (!recover_read(env, dir, 2, &out, &e)) {
        fail_msg("%zu records: %s", n, e.text);
    }
    assert_int_equal(out.records, n);
    assert_int_equal(out.n_orphans, count);
    for (i = 0; i < count; i++) {
        assert_true(uuid_eq(out.orphans[i].dispatch.r.dispatch.event, expected[i]));
        assert_int_equal(out.orphans[i].open.r.type, RECORD_OPEN);
        assert_true(
            str_eq(out.orphans[i].dispatch.r.dispatch.worker_url, STR("http://127.0.0.1:9000")));
    }
    recover_free(&out);
}

static void cut_at_every_byte_keeps_every_whole_record(void **state)
{
    static uint8_t bytes[SCRIPT_RECORDS * JOURNAL_RECORD_BYTES];
    struct record r[SCRIPT_RECORDS];
    struct env *env = world_env();
    char dir[64];
    size_t total;
    size_t cut;

    (void)state;
    world_folder(dir);
    script(r);
    total = encode(r, SCRIPT_RECORDS, 1, bytes);
    for (cut = 0; cut <= total; cut++) {
        write_file(dir, 1, 1, bytes, cut);
        assert_recovered(env, dir, r, cut / JOURNAL_RECORD_BYTES);
    }
    os_env_free(env);
    world_remove(dir);
}

/* A preallocated segment: after the cut there are zeros, not the end of the file. */
static void zeros_after_every_byte_keep_every_whole_record(void **state)
{
    static uint8_t bytes[(SCRIPT_RECORDS + 4) * JOURNAL_RECORD_BYTES];
    static uint8_t cut_bytes[sizeof(bytes)];
    struct record r[SCRIPT_RECORDS];
    struct env *env = world_env();
    struct record_stored s;
    char dir[64];
    size_t total;
    size_t cut;
    size_t whole;

    (void)state;
    world_folder(dir);
    script(r);
    total = encode(r, SCRIPT_RECORDS, 1, bytes);
    for (cut = 0; cut <= total; cut++) {
        memset(cut_bytes, 0, sizeof(cut_bytes));
        memcpy(cut_bytes, bytes, cut);
        whole = cut / JOURNAL_RECORD_BYTES;
        /* The last bytes of a checksum may happen to be zeros already. */
        if (record_decode(cut_bytes + whole * JOURNAL_RECORD_BYTES, &s)) {
            whole++;
        }
        write_file(dir, 1, 1, cut_bytes, sizeof(cut_bytes));
        assert_recovered(env, dir, r, whole);
    }
    os_env_free(env);
    world_remove(dir);
}

/* One page of the last group did not reach the disk; what follows it was never promised. */
static void a_hole_in_the_last_group_ends_the_journal(void **state)
{
    struct env *env = world_env();
    struct journal_port *p;
    struct journal *j;
    struct record r[SCRIPT_RECORDS];
    struct recovered out;
    struct err e = {0};
    char dir[64];
    char path[160];
    uint8_t junk[JOURNAL_RECORD_BYTES] = {0};
    int fd;
    size_t i;

    (void)state;
    world_folder(dir);
    script(r);
    j = world_journal(env, dir, 100);
    p = journal_port_new(j, env, NULL, NULL);
    for (i = 0; i < 10; i++) {
        world_write(j, p, env, &r[i]);
    }
    for (; i < SCRIPT_RECORDS; i++) { /* one group of ten */
        assert_true(journal_put(p, &r[i]) > 0);
    }
    journal_close(j);
    (void)snprintf(path, sizeof(path), SEGMENT, dir, 1, 1);
    fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, junk, sizeof(junk), 13 * JOURNAL_RECORD_BYTES), sizeof(junk));
    assert_true(recover_read(env, dir, 2, &out, &e));
    assert_int_equal(out.records, 13);
    assert_true(out.torn);
    recover_free(&out);
    /* The same hole below a later group's start is damage: those records were durable. */
    assert_int_equal(pwrite(fd, junk, sizeof(junk), 4 * JOURNAL_RECORD_BYTES), sizeof(junk));
    assert_false(recover_read(env, dir, 2, &out, &e));
    assert_int_equal(e.code, ERR_CORRUPT);
    assert_non_null(strstr(e.text, "byte 1536"));
    close(fd);
    os_env_free(env);
    world_remove(dir);
}

static void a_missing_segment_is_damage(void **state)
{
    static uint8_t bytes[SCRIPT_RECORDS * JOURNAL_RECORD_BYTES];
    struct record r[SCRIPT_RECORDS];
    struct env *env = world_env();
    struct recovered out;
    struct err e = {0};
    char dir[64];

    (void)state;
    world_folder(dir);
    script(r);
    (void)encode(r, SCRIPT_RECORDS, 1, bytes);
    write_file(dir, 1, 1, bytes, 5 * JOURNAL_RECORD_BYTES);
    write_file(dir, 1, 11, bytes + 10 * JOURNAL_RECORD_BYTES, 5 * JOURNAL_RECORD_BYTES);
    assert_false(recover_read(env, dir, 2, &out, &e));
    assert_int_equal(e.code, ERR_CORRUPT);
    os_env_free(env);
    world_remove(dir);
}

/* ---- over several lives ---- */

static void lives(struct env *env, const char *dir, const struct record *r, size_t n)
{
    struct journal *j = world_journal(env, dir, 4);
    struct journal_port *p = journal_port_new(j, env, NULL, NULL);
    size_t i;

    for (i = 0; i < n; i++) {
        world_write(j, p, env, &r[i]);
    }
    journal_close(j);
}

static void an_orphan_lives_until_a_later_life_closes_it(void **state)
{
    const struct record first[] = {world_open(1), world_dispatch(1, 1), world_progress(1, 256),
                                   world_open(2)};
    const struct record second[] = {world_open(3), world_dispatch(3, 3)};
    const struct record third[] = {world_close(1, 1), world_close(3, 3)};
    struct env *env = world_env();
    struct recovered out;
    struct err e = {0};
    char dir[64];

    (void)state;
    world_folder(dir);
    lives(env, dir, first, ARRAY_LEN(first));
    lives(env, dir, second, ARRAY_LEN(second));
    assert_true(recover_read(env, dir, 3, &out, &e));
    assert_int_equal(out.n_orphans, 2);
    assert_int_equal(out.orphans[0].prompt, 100);
    assert_int_equal(out.orphans[0].cached, 64);
    assert_int_equal(out.orphans[0].output, 256);
    assert_int_equal(out.orphans[1].output, -1);
    assert_int_equal(out.voids, 1);
    assert_int_equal(out.last_epoch, 2);
    assert_false(out.torn);
    recover_free(&out);
    lives(env, dir, third, ARRAY_LEN(third));
    assert_true(recover_read(env, dir, 4, &out, &e));
    assert_int_equal(out.n_orphans, 0);
    assert_int_equal(out.voids, 1);
    recover_free(&out);
    os_env_free(env);
    world_remove(dir);
}

static void a_second_attempt_is_an_orphan_with_the_requests_open(void **state)
{
    struct record r[] = {world_open(1), world_dispatch(1, 1), world_close(1, 1),
                         world_dispatch(1, 2)};
    struct env *env = world_env();
    struct recovered out;
    struct err e = {0};
    char dir[64];

    (void)state;
    world_folder(dir);
    r[2].close.outcome = OUTCOME_REFUSED_BY_WORKER;
    r[3].dispatch.attempt = 2;
    lives(env, dir, r, ARRAY_LEN(r));
    assert_true(recover_read(env, dir, 2, &out, &e));
    assert_int_equal(out.n_orphans, 1);
    assert_true(uuid_eq(out.orphans[0].dispatch.r.dispatch.event, world_uuid(2)));
    assert_int_equal(out.orphans[0].open.r.open.tenant_id, 3);
    recover_free(&out);
    os_env_free(env);
    world_remove(dir);
}

static struct record voided_attempt(uint64_t request, uint64_t event)
{
    struct record r = world_void(request);

    r.voided.event = world_uuid(event);
    return r;
}

static void a_voided_attempt_is_no_orphan_and_its_request_void(void **state)
{
    const struct record r[] = {world_open(1),         world_dispatch(1, 1), voided_attempt(1, 1),
                               world_open(2),         world_dispatch(2, 2), voided_attempt(2, 2),
                               world_dispatch(2, 22), world_open(3),        world_dispatch(3, 3),
                               voided_attempt(3, 33), world_open(4),        world_dispatch(4, 4),
                               voided_attempt(4, 4),  world_void(4)};
    struct env *env = world_env();
    struct recovered out;
    struct err e = {0};
    char dir[64];

    (void)state;
    world_folder(dir);
    lives(env, dir, r, ARRAY_LEN(r));
    assert_true(recover_read(env, dir, 2, &out, &e));
    assert_int_equal(out.voids, 1); /* of 1; 4 is void in the journal already */
    assert_int_equal(out.n_orphans, 2);
    assert_true(uuid_eq(out.orphans[0].dispatch.r.dispatch.event, world_uuid(22)));
    assert_int_equal(out.orphans[0].open.r.open.tenant_id, 3);
    /* The void of another event says nothing of this one. */
    assert_true(uuid_eq(out.orphans[1].dispatch.r.dispatch.event, world_uuid(3)));
    recover_free(&out);
    os_env_free(env);
    world_remove(dir);
}

struct rows_seen {
    int n;
    int64_t cost;
};

static void row_seen(void *ctx, const struct entry *row)
{
    struct rows_seen *s = ctx;

    s->n++;
    s->cost += row->cost_pusd;
}

static void rows_after_a_watermark_are_told_once(void **state)
{
    const struct record r[] = {world_close(1, 1), world_open(2), world_close(2, 2),
                               world_close(3, 3)};
    struct env *env = world_env();
    struct rows_seen seen = {0};
    struct err e = {0};
    char dir[64];

    (void)state;
    world_folder(dir);
    lives(env, dir, r, ARRAY_LEN(r));
    lives(env, dir, r, ARRAY_LEN(r));
    assert_true(recover_rows(env, dir, 3, 1, 2, row_seen, &seen, &e));
    assert_int_equal(seen.n, 4);
    assert_int_equal(seen.cost, 4 * 36000001 + 3 + 1 + 2 + 3);
    seen = (struct rows_seen){0};
    assert_true(recover_rows(env, dir, 2, 0, 0, row_seen, &seen, &e));
    assert_int_equal(seen.n, 3);
    os_env_free(env);
    world_remove(dir);
}

/* ---- the row of an orphan ---- */

static struct orphan orphan_of(void)
{
    return (struct orphan){.open = {.r = world_open(1)}, .dispatch = {.r = world_dispatch(1, 1)}};
}

static void the_row_of_an_orphan_bills_what_is_known(void **state)
{
    static const struct price p = {.in_pusd = 100,
                                   .cached_pusd = 10,
                                   .out_pusd = 200,
                                   .list_in_pusd = 100,
                                   .list_out_pusd = 200};
    struct orphan o = orphan_of();
    struct entry row;

    (void)state;
    recover_entry(&o, 100, 64, 10, USAGE_MEASURED, &p, &row);
    assert_int_equal(row.outcome, OUTCOME_GATEWAY_RESTART);
    assert_int_equal(row.usage_state, USAGE_MEASURED);
    assert_int_equal(row.tok.in_uncached, 36);
    assert_int_equal(row.tok.in_cached, 64);
    assert_int_equal(row.cost_pusd, 3600 + 640 + 2000);
    assert_int_equal(row.list_pusd, 12000);
    assert_int_equal(row.occurred_us, 1800000000000001);
    assert_int_equal(row.tenant_id, 3);
    assert_int_equal(row.worker_epoch, 77);
    assert_int_equal(row.hold_nusd, 900);
}

static void an_orphan_that_gave_nothing_costs_nothing(void **state)
{
    static const struct price p = {.in_pusd = 100, .out_pusd = 200};
    struct orphan o = orphan_of();
    struct entry row;

    (void)state;
    recover_entry(&o, 100, 0, 0, USAGE_UNKNOWN, &p, &row);
    assert_int_equal(row.cost_pusd, 0);
    assert_int_equal(tokens_prompt(&row.tok), 0);
    assert_int_equal(row.usage_state, USAGE_UNKNOWN);
}

static void a_prompt_above_its_bound_is_billed_at_the_bound(void **state)
{
    static const struct price p = {.in_pusd = 1, .out_pusd = 1};
    struct orphan o = orphan_of();
    struct entry row;

    (void)state;
    recover_entry(&o, 5000, 2000, 3, USAGE_MEASURED, &p, &row);
    assert_int_equal(tokens_prompt(&row.tok), 1000);
    assert_int_equal(row.usage_state, USAGE_CLAMPED);
    assert_int_equal(row.tok.in_uncached, 0);
}

static size_t orphans_now(struct env *env, const char *dir, int32_t epoch, struct uuid *tenant_open)
{
    struct recovered rec;
    struct err e = {.code = ERR_NONE};
    size_t n;

    assert_true(recover_read(env, dir, epoch, &rec, &e));
    n = rec.n_orphans;
    if (n == 1) {
        *tenant_open = rec.orphans[0].open.r.open.request;
    }
    recover_free(&rec);
    return n;
}

/* A kill between put and write: the ring's file names the attempt; once a segment does, it is one.
 */
static void an_attempt_put_and_not_written_is_an_orphan(void **state)
{
    char dir[64];
    struct env *env = world_env();
    struct journal *j;
    struct journal_port *p;
    struct record open = world_open(7), dispatch = world_dispatch(7, 7), close = world_close(7, 7);
    struct uuid request = {{0}};
    int32_t epoch;

    (void)state;
    world_folder(dir);
    j = world_journal(env, dir, 64);
    p = journal_port_new(j, env, NULL, NULL);
    epoch = journal_epoch(j) + 1;
    assert_int_equal(orphans_now(env, dir, epoch, &request), 0);
    assert_int_not_equal(journal_put(p, &open), 0);
    assert_int_equal(orphans_now(env, dir, epoch, &request), 0);
    assert_int_not_equal(journal_put(p, &dispatch), 0);
    assert_int_equal(orphans_now(env, dir, epoch, &request), 1);
    assert_true(uuid_eq(request, open.open.request));
    while (journal_step(j, env)) {
    }
    assert_int_equal(orphans_now(env, dir, epoch, &request), 1);
    world_write(j, p, env, &close);
    assert_int_equal(orphans_now(env, dir, epoch, &request), 0);
    journal_close(j);
    assert_int_equal(orphans_now(env, dir, epoch, &request), 0);
    os_env_free(env);
    world_remove(dir);
}

/* A worker that went on after its gateway died counts more than was held for the tenant. */
static void a_row_of_an_orphan_bills_no_more_than_was_held(void **state)
{
    const struct price p = {0};
    struct orphan o = {.prompt = 100, .cached = 64, .output = 256};
    struct entry e;

    (void)state;
    o.open.r = world_open(1);
    o.dispatch.r = world_dispatch(1, 1);
    recover_entry(&o, 100, 64, 500, USAGE_MEASURED, &p, &e);
    assert_int_equal(e.tok.out, 500);
    assert_int_equal(e.usage_state, USAGE_MEASURED);
    recover_entry(&o, 100, 64, 1540, USAGE_MEASURED, &p, &e);
    assert_int_equal(e.tok.out, 512); /* OPEN's bound */
    assert_int_equal(e.usage_state, USAGE_CLAMPED);
    o.output_held = 1024; /* a PROGRESS after an extend */
    recover_entry(&o, 100, 64, 1540, USAGE_MEASURED, &p, &e);
    assert_int_equal(e.tok.out, 1024);
    o.output = 1100; /* it was on its way to the client */
    recover_entry(&o, 100, 64, 1540, USAGE_MEASURED, &p, &e);
    assert_int_equal(e.tok.out, 1100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_of_an_orphan_bills_no_more_than_was_held),
        cmocka_unit_test(cut_at_every_byte_keeps_every_whole_record),
        cmocka_unit_test(zeros_after_every_byte_keep_every_whole_record),
        cmocka_unit_test(a_hole_in_the_last_group_ends_the_journal),
        cmocka_unit_test(a_missing_segment_is_damage),
        cmocka_unit_test(an_orphan_lives_until_a_later_life_closes_it),
        cmocka_unit_test(a_second_attempt_is_an_orphan_with_the_requests_open),
        cmocka_unit_test(a_voided_attempt_is_no_orphan_and_its_request_void),
        cmocka_unit_test(rows_after_a_watermark_are_told_once),
        cmocka_unit_test(the_row_of_an_orphan_bills_what_is_known),
        cmocka_unit_test(an_orphan_that_gave_nothing_costs_nothing),
        cmocka_unit_test(an_attempt_put_and_not_written_is_an_orphan),
        cmocka_unit_test(a_prompt_above_its_bound_is_billed_at_the_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
