/* ship_pg.c - a batch into Postgres, in one transaction:
 *
 *   BEGIN; the cursor's row, locked; COPY usage_event; add to usage_15m; cursor; COMMIT
 *
 * Two faults heal here: a day without a partition is made, and rows that are in the table already
 * (an attempt closed twice) are left out and said. Everything else is the caller's next try. */
#include "ledger/ship_impl.h"

#include "base/map.h"
#include "ledger/ship_batch.h"

#include <stdio.h>
#include <time.h>

#define DAY_US 86400000000ULL
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

/* Keys of booked rows as two array parameters: microseconds, events. Returns how many. */
static size_t keys_list(const struct ship_pg *s, size_t n, bool unknown_only, struct buf *at,
                        struct buf *events)
{
    char text[UUID_TEXT_BYTES + 1];
    size_t count = 0;
    size_t i;

    buf_init(at, (size_t)SHIP_ROWS_MAX * 40);
    buf_init(events, (size_t)SHIP_ROWS_MAX * 40);
    for (i = 0; i < n; i++) {
        const struct booked *b = &s->booked[i];

        if (unknown_only && (b->row->usage_state != USAGE_UNKNOWN || b->skip)) {
            continue;
        }
        uuid_text(b->row->event, text);
        buf_printf(at, "%s%llu", count == 0 ? "{" : ",", (unsigned long long)b->row->occurred_us);
        buf_printf(events, "%s%s", count == 0 ? "{" : ",", text);
        count++;
    }
    buf_c(at, "}");
    buf_c(events, "}");
    return count;
}

/* By primary key: a range of days would scan other gateways' rows too. */
#define ROWS_OF_KEYS                                                                               \
    "unnest($1::bigint[], $2::uuid[]) AS d(us, id) JOIN usage_event u ON u.occurred_at = "         \
    "timestamptz 'epoch' + d.us * interval '1 microsecond' AND u.event_id = d.id"

/* What was held for a request whose cost nobody knows goes on counting. Rare: after a restart. */
static bool suspense_add(struct ship_pg *s, size_t n, struct err *e)
{
    static const char sql[] =
        "INSERT INTO hold_suspense (request_id, tenant_id, project_id, key_id, gateway_id, "
        "gw_epoch, hold_nusd, since, reason) SELECT u.request_id, u.tenant_id, u.project_id, "
        "u.key_id, u.gateway_id, u.gw_epoch, GREATEST(u.hold_nusd - (u.cost_pusd + 999) / 1000, "
        "0), u.occurred_at, 'unknown' FROM " ROWS_OF_KEYS " ON CONFLICT DO NOTHING";
    struct buf at;
    struct buf events;
    struct str params[2];
    bool ok = true;

    if (keys_list(s, n, true, &at, &events) > 0) {
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

/* ---- what heals ---- */

static void day_text(uint64_t us, char out[16])
{
    time_t t = (time_t)(us / 1000000);
    struct tm tm;

    CHECK(gmtime_r(&t, &tm) != NULL);
    CHECK(strftime(out, 16, "%Y-%m-%d", &tm) > 0);
}

/* One day at a time, since a wrong clock may put years between two rows of a batch. false without a
 * story: no day lacked its partition, so that the refusal is of another kind. */
static bool partitions_make(struct ship_pg *s, size_t n, struct err *e)
{
    struct buf days;
    struct str param;
    struct pg_rows *r;
    char day[16];
    char last[16] = "";
    int64_t made = 0;
    size_t i;

    buf_init(&days, (size_t)SHIP_ROWS_MAX * sizeof(day) + 2);
    buf_c(&days, "{");
    for (i = 0; i < n; i++) {
        day_text(s->booked[i].row->occurred_us, day);
        if (strcmp(day, last) != 0) {
            buf_printf(&days, "%s%s", days.len > 1 ? "," : "", day);
            memcpy(last, day, sizeof(last));
        }
    }
    buf_c(&days, "}");
    param = buf_view(&days);
    r = pg_query(s->pg,
                 "SELECT COALESCE(sum(tollgate_make_partitions(d, d)), 0) FROM (SELECT DISTINCT "
                 "unnest($1::date[]) AS d) x",
                 &param, 1, e);
    buf_fini(&days);
    if (r == NULL) {
        return false;
    }
    made = pg_i64(r, 0, 0);
    pg_rows_free(r);
    if (made > 0) {
        log_event(s->log, LOG_WARN, env_wall_us(s->env), "ship_partitions",
                  "%lld days up to %s had no partition: made", (long long)made, last);
    }
    return made > 0;
}

static void skip_event(struct map *by_event, struct str hex, size_t *n)
{
    struct uuid u;
    struct booked *b;

    CHECK(uuid_parse(hex, &u));
    b = map_get(by_event, str_of(u.b, sizeof(u.b)));
    if (b != NULL && !b->skip) {
        b->skip = true;
        (*n)++;
    }
}

/* Marks rows whose event is in the table, or earlier in the batch. */
static bool duplicates_skip(struct ship_pg *s, size_t n, struct err *e)
{
    struct map by_event;
    struct buf events;
    struct buf at;
    struct str params[2];
    struct pg_rows *r;
    size_t skipped = 0;
    size_t i;

    map_init(&by_event, 0, SHIP_ROWS_MAX);
    for (i = 0; i < n; i++) {
        struct booked *b = &s->booked[i];
        struct str key = str_of(b->row->event.b, sizeof(b->row->event.b));

        if (map_get(&by_event, key) != NULL) {
            b->skip = true;
            skipped++;
        } else {
            CHECK(map_put(&by_event, key, b));
        }
    }
    (void)keys_list(s, n, false, &at, &events);
    params[0] = buf_view(&at);
    params[1] = buf_view(&events);
    r = pg_query(s->pg, "SELECT u.event_id FROM " ROWS_OF_KEYS, params, 2, e);
    for (i = 0; r != NULL && i < (size_t)pg_row_count(r); i++) {
        skip_event(&by_event, pg_value(r, (int)i, 0), &skipped);
    }
    if (r != NULL) {
        log_event(s->log, LOG_ERROR, env_wall_us(s->env), "ship_duplicates",
                  "%zu rows were in usage_event already and are not booked again", skipped);
    }
    pg_rows_free(r);
    buf_fini(&at);
    buf_fini(&events);
    map_fini(&by_event);
    return r != NULL;
}

static bool heal(struct ship_pg *s, size_t n, struct err *e)
{
    struct err second = {0};
    bool ok = false;

    if (pg_is_broken(s->pg)) {
        return false;
    }
    /* By code: the text comes in the server's language. 23514 is a refused row, of which a missing
     * partition is one kind. */
    if (strcmp(pg_sqlstate(s->pg), "23514") == 0) {
        ok = partitions_make(s, n, &second);
    } else if (strcmp(pg_sqlstate(s->pg), "23505") == 0) {
        ok = duplicates_skip(s, n, &second);
    }
    if (ok || second.code != ERR_NONE) {
        *e = second;
    }
    return ok;
}

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
        if (!heal(s, n, e)) {
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
