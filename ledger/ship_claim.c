/* ship_claim.c - one process has a gateway id: an advisory lock while its connection lives, and its
 * epoch's row in ingest_cursor before its first row. */
#include "ledger/ship.h"

#include <stdio.h>

#define CLAIM_LOCK_CLASS                                                                           \
    7401 /* of advisory locks in this database; the object is the gateway id                       \
          */
/* A process that was killed just now still has its lock until the server has seen the connection
 * end. Below statement_timeout. */
#define CLAIM_WAIT "8s"
/* A host that vanished keeps it for 11 s, not for the system's hours. */
#define CLAIM_KEEPALIVE                                                                            \
    "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3"

bool ship_newest_epoch(struct pg *p, int32_t gateway_id, int32_t *epoch, struct err *e)
{
    char sql[120];
    struct pg_rows *r;

    (void)snprintf(sql, sizeof(sql),
                   "SELECT COALESCE(max(gw_epoch), 0) FROM ingest_cursor WHERE gateway_id = %d",
                   gateway_id);
    r = pg_query(p, sql, NULL, 0, e);
    if (r == NULL) {
        return false;
    }
    *epoch = (int32_t)pg_i64(r, 0, 0);
    pg_rows_free(r);
    return true;
}

bool ship_hold(struct pg *p, int32_t gateway_id, bool *held, struct err *e)
{
    char sql[120];
    struct pg_rows *r;

    (void)snprintf(sql, sizeof(sql), "SELECT pg_try_advisory_lock(%d, %d)::int", CLAIM_LOCK_CLASS,
                   gateway_id);
    r = pg_exec(p, CLAIM_KEEPALIVE, NULL, -1, e) ? pg_query(p, sql, NULL, 0, e) : NULL;
    if (r == NULL) {
        return false;
    }
    *held = pg_i64(r, 0, 0) == 1;
    pg_rows_free(r);
    return true;
}

static bool lock_wait(struct pg *p, int32_t gateway_id, struct err *e)
{
    struct err refused = {.code = ERR_NONE};
    char sql[300];
    bool locked;

    (void)snprintf(sql, sizeof(sql),
                   CLAIM_KEEPALIVE "; SET lock_timeout = '" CLAIM_WAIT
                                   "'; SELECT pg_advisory_lock(%d, %d)",
                   CLAIM_LOCK_CLASS, gateway_id);
    locked = pg_exec(p, sql, NULL, -1, &refused);
    if (!locked && strcmp(pg_sqlstate(p), "55P03") != 0) {
        *e = refused;
        return false;
    }
    return pg_exec(p, "RESET lock_timeout", NULL, 0, e) &&
           (locked ||
            err_set(e, ERR_CONFLICT,
                    "gateway_id %d is in use: another gateway runs with it now. Give each "
                    "gateway a gateway_id and a journal.dir of its own",
                    gateway_id));
}

static bool epoch_insert(struct pg *p, int32_t gateway_id, int32_t epoch, struct err *e)
{
    char sql[200];
    struct pg_rows *r;
    bool ours;

    (void)snprintf(sql, sizeof(sql),
                   "INSERT INTO ingest_cursor (gateway_id, gw_epoch, last_seq) VALUES (%d, %d, 0) "
                   "ON CONFLICT DO NOTHING RETURNING 1",
                   gateway_id, epoch);
    r = pg_query(p, sql, NULL, 0, e);
    if (r == NULL) {
        return false;
    }
    ours = pg_row_count(r) == 1;
    pg_rows_free(r);
    return ours ||
           err_set(e, ERR_CONFLICT,
                   "gateway_id %d is in use: another process has its epoch %d already. Give "
                   "each gateway a gateway_id and a journal.dir of its own; if the other one "
                   "has ended, start again",
                   gateway_id, epoch);
}

bool ship_claim(struct pg *p, int32_t gateway_id, int32_t epoch, struct err *e)
{
    return lock_wait(p, gateway_id, e) && epoch_insert(p, gateway_id, epoch, e);
}
