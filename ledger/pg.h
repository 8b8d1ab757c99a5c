/* pg.h - the one door to libpq: a connection, parameters as text, COPY. Blocking; only the store's
 * and the shipper's thread and tollctl call it. Every wait is bounded (connect 3 s,
 * statement_timeout, tcp_user_timeout), so a stuck server costs seconds, never a thread. */
#ifndef LEDGER_PG_H
#define LEDGER_PG_H

#include "base/buf.h"
#include "base/err.h"

struct pg;
struct pg_rows; /* a result; borrowed strings live until pg_rows_free */

struct pg *pg_open(struct str conninfo, const char *application,
                   struct err *e); /* ERR_UNAVAILABLE */
void pg_close(struct pg *p);
bool pg_is_broken(const struct pg *p); /* close and open anew */
/* A round trip that must end soon: a server that is stopped is found out in PG_PING_MS, not by the
 * statement that somebody waits for. false: the connection is broken. */
#define PG_PING_MS 2000
MUST_USE bool pg_ping(struct pg *p, struct err *e);
/* One statement with text parameters (NULL .p = SQL NULL). NULL with a story; SQLSTATE class 23 is
 * ERR_CONFLICT, class 22 ERR_INPUT, connection loss ERR_UNAVAILABLE. */
struct pg_rows *pg_query(struct pg *p, const char *sql, const struct str *params, int n,
                         struct err *e);
MUST_USE bool pg_exec(struct pg *p, const char *sql, const struct str *params, int n,
                      struct err *e);
MUST_USE bool pg_script(struct pg *p, struct str sql,
                        struct err *e); /* several statements, no parameters */
void pg_rollback(
    struct pg *p); /* whatever is open is undone; a broken connection did that itself */
void pg_rows_free(struct pg_rows *r);
int pg_row_count(const struct pg_rows *r);
struct str pg_value(const struct pg_rows *r, int row, int column); /* SQL NULL: {NULL, 0} */
int64_t pg_i64(const struct pg_rows *r, int row, int column);      /* NULL: 0; CHECKs the shape */
/* COPY ... FROM STDIN (FORMAT binary or text): begin, data pieces, end. */
MUST_USE bool pg_copy_begin(struct pg *p, const char *sql, struct err *e);
MUST_USE bool pg_copy_data(struct pg *p, const void *d, size_t n, struct err *e);
MUST_USE bool pg_copy_end(struct pg *p, struct err *e);
/* LISTEN: true when a notification came since the last call (reads what is there, never waits). */
bool pg_notified(struct pg *p);
/* Of the last statement; "": it did not fail, or not in the server. A rollback leaves it. */
const char *pg_sqlstate(const struct pg *p);

#endif
