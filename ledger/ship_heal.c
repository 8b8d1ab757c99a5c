/* ship_heal.c - the two refusals of a batch that heal: a day without a partition is made, and rows
 * that are in the table already (an attempt closed twice) are left out and said. */
#include "ledger/ship_batch.h"

#include "base/map.h"
#include "ledger/ship.h"

#include <stdio.h>
#include <time.h>

size_t ship_keys(const struct booked *b, size_t n, bool unknown_only, struct buf *at,
                 struct buf *events)
{
    char text[UUID_TEXT_BYTES + 1];
    size_t count = 0;
    size_t i;

    buf_init(at, (size_t)SHIP_ROWS_MAX * 40);
    buf_init(events, (size_t)SHIP_ROWS_MAX * 40);
    for (i = 0; i < n; i++) {
        if (unknown_only && (b[i].row->usage_state != USAGE_UNKNOWN || b[i].skip)) {
            continue;
        }
        uuid_text(b[i].row->event, text);
        buf_printf(at, "%s%llu", count == 0 ? "{" : ",", (unsigned long long)b[i].row->occurred_us);
        buf_printf(events, "%s%s", count == 0 ? "{" : ",", text);
        count++;
    }
    buf_c(at, "}");
    buf_c(events, "}");
    return count;
}

static void day_text(uint64_t us, char out[16])
{
    time_t t = (time_t)(us / 1000000);
    struct tm tm;

    CHECK(gmtime_r(&t, &tm) != NULL);
    CHECK(strftime(out, 16, "%Y-%m-%d", &tm) > 0);
}

/* One day at a time, since a wrong clock may put years between two rows of a batch. false without a
 * story: no day lacked its partition, so that the refusal is of another kind. */
static bool partitions_make(struct pg *p, struct log *log, uint64_t wall_us, const struct booked *b,
                            size_t n, struct err *e)
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
        day_text(b[i].row->occurred_us, day);
        if (strcmp(day, last) != 0) {
            buf_printf(&days, "%s%s", days.len > 1 ? "," : "", day);
            memcpy(last, day, sizeof(last));
        }
    }
    buf_c(&days, "}");
    param = buf_view(&days);
    r = pg_query(p,
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
        log_event(log, LOG_WARN, wall_us, "ship_partitions",
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
static bool duplicates_skip(struct pg *p, struct log *log, uint64_t wall_us, struct booked *b,
                            size_t n, struct err *e)
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
        struct str key = str_of(b[i].row->event.b, sizeof(b[i].row->event.b));

        if (map_get(&by_event, key) != NULL) {
            b[i].skip = true;
            skipped++;
        } else {
            CHECK(map_put(&by_event, key, &b[i]));
        }
    }
    (void)ship_keys(b, n, false, &at, &events);
    params[0] = buf_view(&at);
    params[1] = buf_view(&events);
    r = pg_query(p, "SELECT u.event_id FROM " SHIP_ROWS_OF_KEYS, params, 2, e);
    for (i = 0; r != NULL && i < (size_t)pg_row_count(r); i++) {
        skip_event(&by_event, pg_value(r, (int)i, 0), &skipped);
    }
    if (r != NULL) {
        log_event(log, LOG_ERROR, wall_us, "ship_duplicates",
                  "%zu rows were in usage_event already and are not booked again", skipped);
    }
    pg_rows_free(r);
    buf_fini(&at);
    buf_fini(&events);
    map_fini(&by_event);
    return r != NULL;
}

bool ship_heal(struct pg *p, struct log *log, uint64_t wall_us, struct booked *b, size_t n,
               struct err *e)
{
    struct err second = {0};
    bool ok = false;

    if (pg_is_broken(p)) {
        return false;
    }
    /* By code: the text comes in the server's language. 23514 is a refused row, of which a missing
     * partition is one kind. */
    if (strcmp(pg_sqlstate(p), "23514") == 0) {
        ok = partitions_make(p, log, wall_us, b, n, &second);
    } else if (strcmp(pg_sqlstate(p), "23505") == 0) {
        ok = duplicates_skip(p, log, wall_us, b, n, &second);
    }
    if (ok || second.code != ERR_NONE) {
        *e = second;
    }
    return ok;
}
