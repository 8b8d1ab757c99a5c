/* ship_pg.c - a batch into Postgres, in one transaction:
 *
 *   BEGIN; the cursor's row, locked; COPY usage_event; add to usage_15m; cursor; COMMIT
 *
 * Two faults heal (ship_heal.c); everything else is the caller's next try. */
#include "ledger/ship_impl.h"

#include "ledger/ship_batch.h"

#include <stdio.h>
#include <time.h>

#define REASON_LATE 1  /* sql: reason_code */
#define COMMIT_TRIES 3 /* as it is; with partitions; without duplicates */
#define CLOSED_MAX 100000

struct ship_pg {
    char *conninfo; /* owned */
    struct log *log;
    struct env *env;
    struct pg *pg;         /* NULL: not connected */
    struct booked *booked; /* [SHIP_ROWS_MAX] */
};

struct ship_pg *ship_pg_new(struct str conninfo, struct log *log, struct env *env)
{
    struct ship_pg *s = mem_new(sizeof(*s));

    s->conninfo = mem_new(conninfo.n + 1);
    if (conninfo.n > 0) {
        memcpy(s->conninfo, conninfo.p, conninfo.n);
    }
    s->log = log;
    s->env = env;
    s->booked = mem_new(SHIP_ROWS_MAX * sizeof(*s->booked));
    return s;
}

void ship_pg_free(struct ship_pg *s)
{
    if (s == NULL) {
        return;
    }
    pg_close(s->pg);
    mem_free(s->conninfo);
    mem_free(s->booked);
    mem_free(s);
}

static bool connect(struct ship_pg *s, struct err *e)
{
    if (s->pg != NULL && pg_is_broken(s->pg)) {
        pg_close(s->pg);
        s->pg = NULL;
    }
    if (s->pg == NULL) {
        s->pg = pg_open(str_c(s->conninfo), "tollgate-shipper", e);
    }
    return s->pg != NULL;
}

static bool cursor_get(void *ctx, int32_t gateway_id, int32_t epoch, int64_t *last_seq,
                       struct err *e)
{
    struct ship_pg *s = ctx;
    char sql[160];
    struct pg_rows *r;

    *last_seq = 0;
    if (!connect(s, e)) {
        return false;
    }
    (void)snprintf(sql, sizeof(sql),
                   "SELECT last_seq FROM ingest_cursor WHERE gateway_id = %d AND gw_epoch = %d",
                   gateway_id, epoch);
    r = pg_query(s->pg, sql, NULL, 0, e);
    if (r == NULL) {
        return false;
    }
    if (pg_row_count(r) > 0) {
        *last_seq = pg_i64(r, 0, 0);
    }
    pg_rows_free(r);
    return true;
}

static bool row_find(void *ctx, const struct entry *row, bool *in, struct err *e)
{
    struct ship_pg *s = ctx;
    char event[UUID_TEXT_BYTES + 1];
    char at[24];
    struct str params[2];
    struct pg_rows *r;

    if (!connect(s, e)) {
        return false;
    }
    uuid_text(row->event, event);
    (void)snprintf(at, sizeof(at), "%llu", (unsigned long long)row->occurred_us);
    params[0] = str_c(at);
    params[1] = str_c(event);
    r = pg_query(s->pg,
                 "SELECT FROM usage_event WHERE occurred_at = timestamptz 'epoch' + $1::bigint * "
                 "interval '1 microsecond' AND event_id = $2::uuid",
                 params, 2, e);
    if (r == NULL) {
        return false;
    }
    *in = pg_row_count(r) > 0;
    pg_rows_free(r);
    return true;
}

/* ---- which month ---- */

static int32_t period_of(uint64_t us)
{
    time_t t = (time_t)(us / 1000000);
    struct tm tm;

    CHECK(gmtime_r(&t, &tm) != NULL);
    return (tm.tm_year + 1900) * 100 + tm.tm_mon + 1;
}

static void book_late(struct booked *b, const struct pg_rows *closed, int32_t now_period)
{
    int i;
    int64_t tenant;

    for (i = 0; i < pg_row_count(closed); i++) {
        tenant = pg_i64(closed, i, 1);
        if (pg_i64(closed, i, 0) == b->period && (tenant == 0 || tenant == b->row->tenant_id)) {
            b->period = now_period;
            b->kind = KIND_CORRECTION;
            b->reason_code = REASON_LATE;
            return;
        }
    }
}

/* A row of a closed month goes into the current one. Only months before the current can be closed,
 * so the usual batch asks nothing. */
static bool rows_book(struct ship_pg *s, size_t n, struct err *e)
{
    int32_t now_period = period_of(env_wall_us(s->env));
    int32_t least = INT32_MAX;
    char sql[160];
    struct pg_rows *closed;
    size_t i;

    for (i = 0; i < n; i++) {
        struct booked *b = &s->booked[i];

        b->period = period_of(b->row->occurred_us);
        b->kind = b->row->kind;
        b->reason_code = b->row->reason_code;
        least = b->period < least ? b->period : least;
    }
    if (least >= now_period) {
        return true;
    }
    (void)snprintf(sql, sizeof(sql),
                   "SELECT period, COALESCE(tenant_id, 0) FROM billing_period WHERE state = "
                   "'closed' AND period >= %d LIMIT %d",
                   least, CLOSED_MAX);
    closed = pg_query(s->pg, sql, NULL, 0, e);
    if (closed == NULL) {
        return false;
    }
    for (i = 0; pg_row_count(closed) > 0 && i < n; i++) {
        book_late(&s->booked[i], closed, now_period);
    }
    pg_rows_free(closed);
    return true;
}

/* ---- the transaction ---- */

/* Several statements in one round trip; the last one's row is the cursor. */
static bool cursor_lock(struct ship_pg *s, int32_t gateway_id, int32_t epoch, int64_t expected,
                        struct err *e)
{
    char sql[400];
    struct pg_rows *r;
    int64_t at;

    (void)snprintf(sql, sizeof(sql),
                   "BEGIN; INSERT INTO ingest_cursor (gateway_id, gw_epoch, last_seq) VALUES (%d, "
                   "%d, 0) ON CONFLICT DO NOTHING; SELECT last_seq FROM ingest_cursor WHERE "
                   "gateway_id = %d AND gw_epoch = %d FOR UPDATE",
                   gateway_id, epoch, gateway_id, epoch);
    r = pg_query(s->pg, sql, NULL, -1, e);
    if (r == NULL) {
        return false;
    }
    at = pg_i64(r, 0, 0);
    pg_rows_free(r);
    return at == expected ||
           err_set(e, ERR_CONFLICT,
                   "the cursor of gateway %d, epoch %d is at %lld, not %lld: does another process "
                   "use this gateway id?",
                   gateway_id, epoch, (long long)at, (long long)expected);
}

/* What was held for a request whose cost nobody knows goes on counting. Rare: after a restart. */
static bool suspense_add(struct ship_pg *s, size_t n, struct err *e)
{
    static const char sql[] =
        "INSERT INTO hold_suspense (request_id, tenant_id, project_id, key_id, gateway_id, "
        "gw_epoch, hold_nusd, since, reason) SELECT u.request_id, u.tenant_id, u.project_id, "
        "u.key_id, u.gateway_id, u.gw_epoch, GREATEST(u.hold_nusd - (u.cost_pusd + 999) / 1000, "
        "0), u.occurred_at, 'unknown' FROM " SHIP_ROWS_OF_KEYS " ON CONFLICT DO NOTHING";
    struct buf at;
    struct buf events;
    struct str params[2];
    bool ok = true;

    if (ship_keys(s->booked, n, true, &at, &events) > 0) {
        params[0] = buf_view(&at);
        params[1] = buf_view(&events);
        ok = pg_exec(s->pg, sql, params, 2, e);
    }
    buf_fini(&at);
    buf_fini(&events);
    return ok;
}

static bool cursor_move(struct ship_pg *s, int32_t gateway_id, int32_t epoch, int64_t to,
                        struct err *e)
{
    char sql[240];

    (void)snprintf(sql, sizeof(sql),
                   "UPDATE ingest_cursor SET last_seq = %lld, changed_at = now() WHERE gateway_id "
                   "= %d AND gw_epoch = %d; COMMIT",
                   (long long)to, gateway_id, epoch);
    return pg_exec(s->pg, sql, NULL, -1, e);
}

static bool transaction(struct ship_pg *s, int32_t gateway_id, int32_t epoch, int64_t last_seq,
                        size_t n, struct err *e)
{
    bool ok = cursor_lock(s, gateway_id, epoch, last_seq, e) && rows_book(s, n, e) &&
              ship_copy(s->pg, s->booked, n, e) &&
              ship_rollup(s->pg, gateway_id, s->booked, n, e) && suspense_add(s, n, e) &&
              cursor_move(s, gateway_id, epoch, last_seq + (int64_t)n, e);

    if (!ok) {
        pg_rollback(s->pg);
    }
    return ok;
}

/* ---- the store ---- */

static bool batch_commit(void *ctx, int32_t gateway_id, int32_t epoch, int64_t last_seq,
                         const struct entry *rows, size_t n, struct err *e)
{
    struct ship_pg *s = ctx;
    size_t i;
    int try;

    CHECK(n > 0 && n <= SHIP_ROWS_MAX && rows[0].gw_seq == last_seq + 1);
    if (!connect(s, e)) {
        return false;
    }
    for (i = 0; i < n; i++) {
        s->booked[i] = (struct booked){.row = &rows[i]};
    }
    for (try = 0; try < COMMIT_TRIES; try++) {
        if (transaction(s, gateway_id, epoch, last_seq, n, e)) {
            return true;
        }
        if (!ship_heal(s->pg, s->log, env_wall_us(s->env), s->booked, n, e)) {
            return false;
        }
    }
    return err_set(e, ERR_CONFLICT, "a batch of gateway %d, epoch %d was refused %d times",
                   gateway_id, epoch, COMMIT_TRIES);
}

struct ship_store ship_pg_store(struct ship_pg *s)
{
    return (struct ship_store){
        .ctx = s, .cursor = cursor_get, .commit = batch_commit, .has = row_find};
}
