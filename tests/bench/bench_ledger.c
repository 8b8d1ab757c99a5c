/* bench_ledger.c - records a second into the journal, rows a second from there into Postgres.
 *
 *   TOLLGATE_TEST_PG="$(tests/pg.sh start DIR)" bench_ledger [folder] [rows]
 *
 * Journal: producers put without waiting, one writer syncs groups (a disk folder, not memory: give
 * one). Shipping: cursor, COPY, 15-minute sums, COMMIT for each 5,000 rows, against one bare binary
 * COPY of the same rows into a table without index or partition, in the same run. */
#include "../unit/ledger_world.h"

#include "ledger/ship.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define PRODUCERS 2
#define JOURNAL_RECORDS 400000 /* each producer */
#define COPY_FILE "/tmp/tollgate-bench-rows.bin"

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct producer {
    struct journal_port *port;
    uint64_t id;
};

static void *produce(void *ctx)
{
    struct producer *p = ctx;
    struct record r = world_close(p->id, p->id);
    int i;

    for (i = 0; i < JOURNAL_RECORDS; i++) {
        while (journal_put(p->port, &r) == 0) {
            usleep(200);
        }
    }
    return NULL;
}

static void bench_journal(const char *dir)
{
    struct env *env = world_env();
    struct journal_options o = {.dir = dir, .gateway_id = 1};
    struct err e = {0};
    struct journal *j = journal_open(env, NULL, &o, 0, &e);
    struct producer p[PRODUCERS];
    pthread_t t[PRODUCERS];
    struct journal_stats s;
    double began;
    double took;
    uint64_t i;

    CHECK(j != NULL);
    for (i = 0; i < PRODUCERS; i++) {
        p[i] = (struct producer){journal_port_new(j, env, NULL, NULL), i};
    }
    began = now_s();
    for (i = 0; i < PRODUCERS; i++) {
        CHECK(pthread_create(&t[i], NULL, produce, &p[i]) == 0);
    }
    while (journal_durable_lsn(j) < (uint64_t)PRODUCERS * JOURNAL_RECORDS) {
        if (!journal_step(j, env)) {
            usleep(50);
        }
    }
    took = now_s() - began;
    for (i = 0; i < PRODUCERS; i++) {
        CHECK(pthread_join(t[i], NULL) == 0);
    }
    journal_stats(j, &s);
    printf("journal: %.0f records/s durable, %.0f MB/s, %.0f records a sync, %.2f ms a sync (%s)\n",
           (double)s.records / took, (double)s.bytes / took / 1e6,
           (double)s.records / (double)s.groups, (double)s.syncs_us_total / (double)s.groups / 1000,
           dir);
    journal_close(j);
    os_env_free(env);
}

static void journal_fill(struct env *env, const char *dir, int rows)
{
    struct journal_options o = {.dir = dir, .gateway_id = 1};
    struct err e = {0};
    struct journal *j = journal_open(env, NULL, &o, 0, &e);
    struct journal_port *p;
    uint64_t wall = (uint64_t)time(NULL) * 1000000;
    int i;

    CHECK(j != NULL);
    p = journal_port_new(j, env, NULL, NULL);
    for (i = 1; i <= rows; i++) {
        struct record r[] = {world_open((uint64_t)i), world_dispatch((uint64_t)i, (uint64_t)i),
                             world_close((uint64_t)i, (uint64_t)i)};
        uint8_t random[16];
        size_t k;

        env_random(env, random, sizeof(random));
        r[2].close.event = uuid_v7(wall / 1000 + (uint64_t)i / 10, random);
        r[2].close.request = r[2].close.event;
        r[2].close.occurred_us = wall + (uint64_t)i * 100;
        r[2].close.tenant_id = i % 50;
        r[2].close.key_id = i % 200;
        r[2].close.model_id = (int16_t)(i % 5);
        for (k = 0; k < 3; k++) {
            while (journal_put(p, &r[k]) == 0) {
                (void)journal_step(j, env);
            }
        }
    }
    journal_close(j);
}

static double ship_rate(struct env *env, const struct world_db *db, const char *dir, int rows)
{
    struct ship_options o = {.dir = dir, .gateway_id = 1};
    char conninfo[512];
    struct ship *s;
    double began;
    double took;

    world_db_as(db, "tollgate_gateway", conninfo);
    o.conninfo = str_c(conninfo);
    s = ship_new(env, NULL, NULL, &o, NULL);
    began = now_s();
    while (!ship_is_caught_up(s)) {
        (void)ship_step(s, env);
    }
    took = now_s() - began;
    ship_free(s);
    return (double)rows / took;
}

static void exec(struct pg *p, const char *sql)
{
    struct err e = {0};

    if (!pg_script(p, str_c(sql), &e)) {
        fprintf(stderr, "%s: %s\n", sql, e.text);
        exit(1);
    }
}

/* The same rows as the server writes them to a file, sent from memory. */
static double bare_rate(struct pg *p, int rows)
{
    struct err e = {0};
    FILE *f;
    uint8_t *all;
    size_t n;
    size_t at;
    double began;
    double took;

    exec(p, "CREATE TABLE bare (LIKE usage_event)");
    exec(p, "COPY (SELECT * FROM usage_event) TO '" COPY_FILE "' (FORMAT binary)");
    f = fopen(COPY_FILE, "rbe");
    CHECK(f != NULL && fseek(f, 0, SEEK_END) == 0);
    n = (size_t)ftell(f);
    rewind(f);
    all = mem_new(n);
    CHECK(fread(all, 1, n, f) == n);
    fclose(f);
    (void)unlink(COPY_FILE);
    began = now_s();
    CHECK(pg_copy_begin(p, "COPY bare FROM STDIN (FORMAT binary)", &e));
    for (at = 0; at < n; at += 65536) {
        CHECK(pg_copy_data(p, all + at, size_min(65536, n - at), &e));
    }
    CHECK(pg_copy_end(p, &e));
    took = now_s() - began;
    mem_free(all);
    return (double)rows / took;
}

static void bench_ship(const char *dir, int rows)
{
    struct env *env = world_env();
    struct world_db db;
    struct pg *p;
    double ship;
    double bare;

    world_db_make(&db, false);
    journal_fill(env, dir, rows);
    ship = ship_rate(env, &db, dir, rows);
    p = world_pg(db.conninfo);
    CHECK(world_number(p, "SELECT count(*) FROM usage_event") == rows);
    bare = bare_rate(p, rows);
    printf("ship: %.0f rows/s with sums and cursor; bare COPY %.0f rows/s; ratio %.2f\n", ship,
           bare, ship / bare);
    pg_close(p);
    world_db_drop(&db);
    os_env_free(env);
}

int main(int argc, char **argv)
{
    char dir[64];
    char sub[2][160];

    if (argc > 1) {
        (void)snprintf(dir, sizeof(dir), "%s/tollgate-bench-XXXXXX", argv[1]);
        CHECK(mkdtemp(dir) != NULL);
    } else {
        world_folder(dir);
    }
    (void)snprintf(sub[0], sizeof(sub[0]), "%s/append", dir);
    (void)snprintf(sub[1], sizeof(sub[1]), "%s/ship", dir);
    bench_journal(sub[0]);
    if (world_has_pg()) {
        bench_ship(sub[1], argc > 2 ? atoi(argv[2]) : 200000);
    }
    world_remove(dir);
    return 0;
}
