/* ledger_world.c - see ledger_world.h. */
#include "ledger_world.h"

#include "ledger/migrate.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* In memory where there is such a place: these tests sync and truncate thousands of times. */
void world_folder(char out[64])
{
    (void)snprintf(out, 64, "%s/tollgate-test-XXXXXX",
                   access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    CHECK(mkdtemp(out) != NULL);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
    (void)st;
    (void)type;
    (void)f;
    return remove(path);
}

void world_remove(const char *dir)
{
    CHECK(nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
}

struct env *world_env(void)
{
    struct err e = {0};
    struct env *env = os_env_new(NULL, &e);

    CHECK(env != NULL);
    return env;
}

struct uuid world_uuid(uint64_t n)
{
    struct uuid u = {{0}};

    memcpy(u.b, &n, sizeof(n));
    u.b[15] = 0x77;
    return u;
}

struct record world_open(uint64_t request)
{
    return (struct record){.type = RECORD_OPEN,
                           .open = {.request = world_uuid(request),
                                    .occurred_us = 1800000000000000 + request,
                                    .tenant_id = 3,
                                    .project_id = 4,
                                    .key_id = 5,
                                    .price_id = 6,
                                    .endpoint = ENDPOINT_CHAT,
                                    .model_id = 7,
                                    .tier_requested = TIER_STANDARD,
                                    .tier_served = TIER_STANDARD,
                                    .hold_nusd = 900,
                                    .prompt_bound = 1000,
                                    .output_bound = 512}};
}

struct record world_dispatch(uint64_t request, uint64_t event)
{
    return (struct record){.type = RECORD_DISPATCH,
                           .dispatch = {.request = world_uuid(request),
                                        .event = world_uuid(event),
                                        .at_us = 1800000000000100 + event,
                                        .attempt = 1,
                                        .route_reason = ROUTE_BEST,
                                        .worker_id = 9,
                                        .worker_epoch = 77,
                                        .cached_predicted = 32,
                                        .worker_url = STR("http://127.0.0.1:9000")}};
}

struct record world_progress(uint64_t event, int32_t output)
{
    return (struct record){.type = RECORD_PROGRESS,
                           .progress = {.event = world_uuid(event),
                                        .at_us = 1800000000000200,
                                        .prompt = 100,
                                        .cached = 64,
                                        .output = output}};
}

struct record world_close(uint64_t request, uint64_t event)
{
    struct record r = {.type = RECORD_CLOSE};

    r.close = (struct entry){.occurred_us = 1800000000000000 + request,
                             .event = world_uuid(event),
                             .request = world_uuid(request),
                             .tenant_id = 3,
                             .project_id = 4,
                             .key_id = 5,
                             .worker_id = 9,
                             .price_id = 6,
                             .attempt = 1,
                             .endpoint = ENDPOINT_CHAT,
                             .model_id = 7,
                             .tier_requested = TIER_STANDARD,
                             .tier_served = TIER_STANDARD,
                             .kind = KIND_USAGE,
                             .usage_state = USAGE_MEASURED,
                             .outcome = OUTCOME_DONE,
                             .http_status = 200,
                             .finish = FINISH_STOP,
                             .route_reason = ROUTE_BEST,
                             .tok = {36, 64, 0, 0, 10, 0},
                             .cached_predicted = 32,
                             .cost_pusd = 36000001 + (int64_t)event,
                             .list_pusd = 90000001,
                             .hold_nusd = 900000,
                             .gpu_us = 1234,
                             .ttft_us = 100,
                             .dur_us = 1000};
    return r;
}

struct record world_void(uint64_t request)
{
    return (struct record){.type = RECORD_VOID, .voided = {.request = world_uuid(request)}};
}

struct journal *world_journal(struct env *env, const char *dir, uint64_t segment_records)
{
    struct err e = {0};
    struct journal_options o = {
        .dir = dir, .gateway_id = 1, .segment_bytes = segment_records * JOURNAL_RECORD_BYTES};
    struct journal *j = journal_open(env, NULL, &o, 0, &e);

    if (j == NULL) {
        fprintf(stderr, "%s\n", e.text);
    }
    CHECK(j != NULL);
    return j;
}

void world_write(struct journal *j, struct journal_port *p, struct env *env, const struct record *r)
{
    uint64_t ticket = journal_put(p, r);
    int i;

    CHECK(ticket > 0);
    for (i = 0; i < 100 && journal_durable(p) < ticket; i++) {
        (void)journal_step(j, env);
    }
    CHECK(journal_durable(p) >= ticket);
}

bool world_has_pg(void)
{
    if (getenv("TOLLGATE_TEST_PG") != NULL) {
        return true;
    }
    printf("skipped: TOLLGATE_TEST_PG is not set (tests/pg.sh start DIR prints its value)\n");
    return false;
}

struct pg *world_pg(const char *conninfo)
{
    struct err e = {0};
    struct pg *p = pg_open(str_c(conninfo), "test", &e);

    if (p == NULL) {
        fprintf(stderr, "%s: %s\n", conninfo, e.text);
    }
    CHECK(p != NULL);
    return p;
}

static void admin_exec(const struct world_db *db, const char *fmt)
{
    char sql[160];
    struct err e = {0};
    struct pg *p = world_pg(db->admin);

    (void)snprintf(sql, sizeof(sql), fmt, db->name);
    if (!pg_exec(p, sql, NULL, 0, &e)) {
        fprintf(stderr, "%s: %s\n", sql, e.text);
        CHECK(false);
    }
    pg_close(p);
}

void world_db_make(struct world_db *db, bool bare)
{
    struct err e = {0};
    struct migrate_report report;
    struct pg *p;

    (void)str_copy(str_c(getenv("TOLLGATE_TEST_PG")), db->admin, sizeof(db->admin));
    (void)snprintf(db->name, sizeof(db->name), "t_%d_%u", (int)getpid(), (unsigned)rand());
    admin_exec(db, "CREATE DATABASE %s");
    (void)snprintf(db->conninfo, sizeof(db->conninfo), "%.400s dbname=%s", db->admin, db->name);
    if (bare) {
        return;
    }
    p = world_pg(db->conninfo);
    if (!migrate_run(p, SOURCE_DIR "/sql", &report, NULL, NULL, &e) ||
        !migrate_partitions(p, 8, &e)) {
        fprintf(stderr, "%s\n", e.text);
        CHECK(false);
    }
    pg_close(p);
}

void world_db_drop(struct world_db *db)
{
    admin_exec(db, "DROP DATABASE %s WITH (FORCE)");
}

/* The last word of a conninfo wins. */
void world_db_as(const struct world_db *db, const char *user, char out[512])
{
    (void)snprintf(out, 512, "%.440s user=%.60s", db->conninfo, user);
}

int64_t world_number(struct pg *p, const char *sql)
{
    struct err e = {0};
    struct pg_rows *r = pg_query(p, sql, NULL, 0, &e);
    int64_t v;

    if (r == NULL) {
        fail_msg("%s: %s", sql, e.text);
        return 0;
    }
    v = pg_i64(r, 0, 0);
    pg_rows_free(r);
    return v;
}

enum err_code world_refused(struct pg *p, const char *sql)
{
    struct err e = {0};

    if (pg_exec(p, sql, NULL, 0, &e)) {
        fail_msg("was not refused: %s", sql);
    }
    return e.code;
}
