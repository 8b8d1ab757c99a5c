/* ship.h - journal to Postgres, exactly once: BEGIN; cursor FOR UPDATE; COPY rows; rollup upsert;
 * cursor; COMMIT. The cursor (gateway, epoch -> last gw_seq) is in the same transaction as the
 * rows, so an ambiguous commit is resolved by reading it again. Catches up after any outage. */
#ifndef LEDGER_SHIP_H
#define LEDGER_SHIP_H

#include "ledger/journal.h"
#include "ledger/pg.h"

#define SHIP_ROWS_MAX 5000 /* a transaction */

struct ship;

struct ship_options {
    struct str conninfo; /* tollgate_gateway's; copied */
    const char *dir;
    int32_t gateway_id;
};

/* Where rows go: Postgres, or a model of it in the simulator. */
struct ship_store {
    void *ctx;
    /* Last shipped gw_seq of the epoch (0: none). */
    bool (*cursor)(void *ctx, int32_t gateway_id, int32_t epoch, int64_t *last_seq, struct err *e);
    /* All rows have gw_seq last_seq+1 .. last_seq+n. One transaction. */
    bool (*commit)(void *ctx, int32_t gateway_id, int32_t epoch, int64_t last_seq,
                   const struct entry *rows, size_t n, struct err *e);
    /* Whether this row is in. NULL: never asked. A cursor that moved without us is another
     * process's when our row is not there: then our numbers must not be skipped. */
    bool (*has)(void *ctx, const struct entry *row, bool *in, struct err *e);
};

/* The journal is borrowed (NULL: offline replay of a folder). store NULL: Postgres of options. */
struct ship *ship_new(struct env *env, struct log *log, struct journal *j,
                      const struct ship_options *o, const struct ship_store *store);
void ship_free(struct ship *s);
/* One transaction at most. Returns microseconds until it wants to be called again (0: at once). */
uint64_t ship_step(struct ship *s, struct env *env);
bool ship_is_caught_up(const struct ship *s);

struct ship_stats {
    uint64_t rows, transactions, failures;
    uint64_t behind_rows; /* durable rows not yet in Postgres */
    uint64_t last_ok_us;  /* env monotonic */
    bool up;
};
void ship_stats(const struct ship *s, struct ship_stats *out); /* any thread */

/* ---- who a gateway id belongs to (ship_claim.c), on the caller's connection.
 *
 * One process at a time has a gateway id: it holds an advisory lock while its connection lives.
 * A cursor's row is also the claim of its epoch: a process that starts while Postgres answers puts
 * it there before its first row. Without Postgres the shipper makes it with the first batch. */

/* The newest epoch that any process ever had; 0: none. */
MUST_USE bool ship_newest_epoch(struct pg *p, int32_t gateway_id, int32_t *epoch, struct err *e);
/* Takes the lock (waits some seconds for one that was just killed), then the epoch. ERR_CONFLICT:
 * another process has this gateway id, or this epoch of it; the story says what to change. */
MUST_USE bool ship_claim(struct pg *p, int32_t gateway_id, int32_t epoch, struct err *e);
/* Takes the lock on a new connection of the same process. held false: another one has it. */
MUST_USE bool ship_hold(struct pg *p, int32_t gateway_id, bool *held, struct err *e);

#endif
