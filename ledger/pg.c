/* pg.c - libpq behind deadlines: every send and every wait is a poll with an end.
 *
 * The connection is non-blocking inside, so a server that stops answering (not only one that
 * closes) costs PG_WAIT_MS and then the connection is given up. */
#include "ledger/pg.h"

#include <errno.h>
#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define PG_CONNECT_MS 3000
#define PG_STATEMENT_TIMEOUT "10000"
#define PG_WAIT_MS 12000         /* above the server's own statement_timeout */
#define PG_SCRIPT_WAIT_MS 600000 /* a migration may build an index */
#define PG_SLICE_MS 50
#define PG_PARAMS_MAX 64

struct pg {
    PGconn *c;
    bool broken;
    char sqlstate[6];
    struct buf scratch; /* NUL-terminated copies of parameters */
};

struct pg_rows {
    PGresult *r;
};

/* Waits in slices and counts down those in which nothing came: left_ms is the silence that remains,
 * over all waits of one answer. false: none remains. No clock is read. */
static bool socket_wait(struct pg *p, short events, int *left_ms)
{
    struct pollfd f = {.fd = PQsocket(p->c), .events = events};
    int slice;
    int rc;

    while (*left_ms > 0) {
        slice = *left_ms < PG_SLICE_MS ? *left_ms : PG_SLICE_MS;
        rc = poll(&f, 1, slice);
        if (rc > 0) {
            return true;
        }
        if (rc == 0) {
            *left_ms -= slice;
        } else if (errno != EINTR) {
            return false;
        }
    }
    return false;
}

static bool broken_set(struct pg *p, struct err *e, const char *what)
{
    const char *text = p->c != NULL ? PQerrorMessage(p->c) : "";
    struct str line = str_c(text);
    struct str rest;

    p->broken = true;
    (void)str_cut(line, '\n', &line, &rest);
    return err_set(e, ERR_UNAVAILABLE, "Postgres %s: " STR_FMT, what, STR_ARG(line));
}

static bool connect_finish(struct pg *p, struct err *e)
{
    int left_ms = PG_CONNECT_MS;
    PostgresPollingStatusType s = PGRES_POLLING_WRITING;

    while (s != PGRES_POLLING_OK) {
        if (s == PGRES_POLLING_FAILED) {
            return broken_set(p, e, "refused");
        }
        if (!socket_wait(p, s == PGRES_POLLING_READING ? POLLIN : POLLOUT, &left_ms)) {
            return broken_set(p, e, "did not answer in 3 s");
        }
        s = PQconnectPoll(p->c);
    }
    return PQsetnonblocking(p->c, 1) == 0 || broken_set(p, e, "connection");
}

static void notice_ignore(void *ctx, const char *message)
{
    (void)ctx;
    (void)message;
}

struct pg *pg_open(struct str conninfo, const char *application, struct err *e)
{
    char *z = mem_new(conninfo.n + 1);
    const char *const keys[] = {"dbname",
                                "application_name",
                                "client_encoding",
                                "connect_timeout",
                                "tcp_user_timeout",
                                "keepalives_idle",
                                "keepalives_interval",
                                "keepalives_count",
                                NULL};
    const char *const values[] = {z, application, "UTF8", "3", "5000", "5", "2", "3", NULL};
    struct pg *p = mem_new(sizeof(*p));

    buf_init(&p->scratch, (size_t)16 << 20);
    if (conninfo.n > 0) {
        memcpy(z, conninfo.p, conninfo.n);
    }
    p->c = PQconnectStartParams(keys, values, 1);
    mem_free(z);
    if (p->c == NULL || PQstatus(p->c) == CONNECTION_BAD) {
        (void)broken_set(p, e, "connection");
        pg_close(p);
        return NULL;
    }
    (void)PQsetNoticeProcessor(p->c, notice_ignore, NULL);
    if (!connect_finish(p, e) ||
        !pg_exec(p,
                 "SET statement_timeout = " PG_STATEMENT_TIMEOUT
                 "; SET timezone = 'UTC'; SET datestyle = 'ISO'; SET bytea_output = 'hex'",
                 NULL, -1, e)) {
        pg_close(p);
        return NULL;
    }
    return p;
}

void pg_close(struct pg *p)
{
    if (p == NULL) {
        return;
    }
    if (p->c != NULL) {
        PQfinish(p->c);
    }
    buf_fini(&p->scratch);
    mem_free(p);
}

bool pg_is_broken(const struct pg *p)
{
    return p->broken || PQstatus(p->c) != CONNECTION_OK;
}

const char *pg_sqlstate(const struct pg *p)
{
    return p->sqlstate;
}

static bool flush_all(struct pg *p, int *left_ms, struct err *e)
{
    int rc;

    while ((rc = PQflush(p->c)) > 0) {
        /* The server may be waiting for us to read before it reads. */
        if (!socket_wait(p, POLLIN | POLLOUT, left_ms)) {
            return broken_set(p, e, "does not take our data");
        }
        if (PQconsumeInput(p->c) == 0) {
            return broken_set(p, e, "connection lost");
        }
    }
    return rc == 0 || broken_set(p, e, "connection lost");
}

/* The next result; NULL without a story: no more. */
static bool result_next(struct pg *p, int *left_ms, PGresult **out, struct err *e)
{
    *out = NULL;
    if (!flush_all(p, left_ms, e)) {
        return false;
    }
    while (PQisBusy(p->c)) {
        if (!socket_wait(p, POLLIN, left_ms)) {
            return broken_set(p, e, "did not answer in time");
        }
        if (PQconsumeInput(p->c) == 0) {
            return broken_set(p, e, "connection lost");
        }
    }
    *out = PQgetResult(p->c);
    return true;
}

static enum err_code code_of(const char *sqlstate)
{
    if (strncmp(sqlstate, "23", 2) == 0) {
        return ERR_CONFLICT;
    }
    if (strncmp(sqlstate, "22", 2) == 0 || strncmp(sqlstate, "P0", 2) == 0) {
        return ERR_INPUT;
    }
    return strncmp(sqlstate, "08", 2) == 0 || strncmp(sqlstate, "57P", 3) == 0 ||
                   strncmp(sqlstate, "53", 2) == 0
               ? ERR_UNAVAILABLE
               : ERR_IO;
}

static bool result_check(struct pg *p, const PGresult *r, struct err *e)
{
    ExecStatusType s = PQresultStatus(r);
    const char *state;

    if (s == PGRES_TUPLES_OK || s == PGRES_COMMAND_OK || s == PGRES_COPY_IN ||
        s == PGRES_EMPTY_QUERY) {
        return true;
    }
    state = PQresultErrorField(r, PG_DIAG_SQLSTATE);
    (void)str_copy(str_c(state != NULL ? state : "08006"), p->sqlstate, sizeof(p->sqlstate));
    if (PQstatus(p->c) != CONNECTION_OK) {
        p->broken = true;
    }
    state = PQresultErrorField(r, PG_DIAG_MESSAGE_PRIMARY);
    return err_set(e, code_of(p->sqlstate), "Postgres: %s (%s)",
                   state != NULL ? state : "connection lost", p->sqlstate);
}

/* All results of what was sent; keeps the last good one with rows. A COPY IN stops the loop. */
static PGresult *results_take(struct pg *p, int wait_ms, struct err *e)
{
    PGresult *keep = NULL;
    PGresult *r;
    bool ok = true;

    for (;;) {
        if (!result_next(p, &wait_ms, &r, e)) {
            PQclear(keep);
            return NULL;
        }
        if (r == NULL) {
            break;
        }
        ok = result_check(p, r, e) && ok;
        PQclear(keep);
        keep = r;
        if (PQresultStatus(r) == PGRES_COPY_IN) {
            break;
        }
    }
    if (!ok || keep == NULL) {
        PQclear(keep);
        (void)err_set(e, ERR_UNAVAILABLE, "Postgres: connection lost");
        return NULL;
    }
    return keep;
}

/* Where each parameter's copy begins in scratch; then pointers, since the buffer may have moved.
 * A NUL would end the parameter early: another name than the one that was given. */
static bool params_copy(struct pg *p, const struct str *params, int n, const char **out,
                        struct err *e)
{
    size_t at[PG_PARAMS_MAX];
    int i;

    CHECK(n <= PG_PARAMS_MAX);
    buf_reset(&p->scratch);
    for (i = 0; i < n; i++) {
        if (params[i].n != 0 && memchr(params[i].p, '\0', params[i].n) != NULL) {
            return err_set(e, ERR_INPUT, "a text holds a NUL character");
        }
        at[i] = p->scratch.len;
        buf_str(&p->scratch, params[i].p != NULL ? params[i] : STR(""));
        buf_byte(&p->scratch, 0);
    }
    for (i = 0; i < n && !p->scratch.failed; i++) {
        out[i] = params[i].p != NULL ? (const char *)p->scratch.p + p->scratch.off + at[i] : NULL;
    }
    return !p->scratch.failed ||
           err_set(e, ERR_LIMIT, "the parameters of a statement exceed 16 MiB");
}

/* n < 0: the simple protocol (several statements, no parameters). */
static PGresult *run(struct pg *p, const char *sql, const struct str *params, int n, int wait_ms,
                     struct err *e)
{
    const char *values[PG_PARAMS_MAX];
    int sent;

    p->sqlstate[0] = '\0';
    if (p->broken) {
        (void)err_set(e, ERR_UNAVAILABLE, "the connection to Postgres is lost");
        return NULL;
    }
    if (n >= 0 && !params_copy(p, params, n, values, e)) {
        return NULL;
    }
    sent = n < 0 ? PQsendQuery(p->c, sql)
                 : PQsendQueryParams(p->c, sql, n, NULL, values, NULL, NULL, 0);
    if (sent == 0) {
        (void)broken_set(p, e, "connection lost");
        return NULL;
    }
    return results_take(p, wait_ms, e);
}

struct pg_rows *pg_query(struct pg *p, const char *sql, const struct str *params, int n,
                         struct err *e)
{
    PGresult *r = run(p, sql, params, n, PG_WAIT_MS, e);
    struct pg_rows *rows;

    if (r == NULL) {
        return NULL;
    }
    rows = mem_new(sizeof(*rows));
    rows->r = r;
    return rows;
}

bool pg_exec(struct pg *p, const char *sql, const struct str *params, int n, struct err *e)
{
    PGresult *r = run(p, sql, params, n, PG_WAIT_MS, e);

    PQclear(r);
    return r != NULL;
}

bool pg_ping(struct pg *p, struct err *e)
{
    PGresult *r = run(p, "SELECT", NULL, -1, PG_PING_MS, e);

    PQclear(r);
    return r != NULL;
}

bool pg_script(struct pg *p, struct str sql, struct err *e)
{
    char *z = mem_try(sql.n + 1, 1);
    PGresult *r;

    if (z == NULL) {
        return err_set(e, ERR_NO_MEMORY, "no memory for a script of %zu bytes", sql.n);
    }
    memcpy(z, sql.p, sql.n);
    r = run(p, z, NULL, -1, PG_SCRIPT_WAIT_MS, e);
    mem_free(z);
    PQclear(r);
    return r != NULL;
}

void pg_rollback(struct pg *p)
{
    struct err ignored = {0};
    char kept[sizeof(p->sqlstate)];

    if (!pg_is_broken(p) && PQtransactionStatus(p->c) != PQTRANS_IDLE) {
        memcpy(kept, p->sqlstate, sizeof(kept));
        PQclear(run(p, "ROLLBACK", NULL, 0, PG_WAIT_MS, &ignored));
        memcpy(p->sqlstate, kept, sizeof(kept));
    }
}

void pg_rows_free(struct pg_rows *r)
{
    if (r != NULL) {
        PQclear(r->r);
        mem_free(r);
    }
}

int pg_row_count(const struct pg_rows *r)
{
    return PQntuples(r->r);
}

struct str pg_value(const struct pg_rows *r, int row, int column)
{
    CHECK(row >= 0 && row < PQntuples(r->r) && column >= 0 && column < PQnfields(r->r));
    if (PQgetisnull(r->r, row, column)) {
        return (struct str){NULL, 0};
    }
    return str_of(PQgetvalue(r->r, row, column), (size_t)PQgetlength(r->r, row, column));
}

int64_t pg_i64(const struct pg_rows *r, int row, int column)
{
    struct str s = pg_value(r, row, column);
    int64_t v = 0;

    if (s.p == NULL) {
        return 0;
    }
    CHECK(str_i64(s, &v));
    return v;
}

bool pg_copy_begin(struct pg *p, const char *sql, struct err *e)
{
    PGresult *r = run(p, sql, NULL, 0, PG_WAIT_MS, e);
    bool ok = r != NULL && PQresultStatus(r) == PGRES_COPY_IN;

    PQclear(r);
    return ok || err_set(e, ERR_IO, "Postgres did not begin a COPY");
}

bool pg_copy_data(struct pg *p, const void *d, size_t n, struct err *e)
{
    int left_ms = PG_WAIT_MS;
    int rc;

    CHECK(n <= INT32_MAX);
    /* 0: its buffer is full. */
    while ((rc = PQputCopyData(p->c, d, (int)n)) == 0) {
        if (!socket_wait(p, POLLIN | POLLOUT, &left_ms)) {
            return broken_set(p, e, "does not take our data");
        }
        if (PQconsumeInput(p->c) == 0) {
            return broken_set(p, e, "connection lost");
        }
    }
    return rc > 0 || broken_set(p, e, "connection lost");
}

bool pg_copy_end(struct pg *p, struct err *e)
{
    int left_ms = PG_WAIT_MS;
    PGresult *r;
    int rc;

    while ((rc = PQputCopyEnd(p->c, NULL)) == 0) {
        if (!socket_wait(p, POLLIN | POLLOUT, &left_ms)) {
            return broken_set(p, e, "does not take our data");
        }
        if (PQconsumeInput(p->c) == 0) {
            return broken_set(p, e, "connection lost");
        }
    }
    if (rc < 0) {
        return broken_set(p, e, "connection lost");
    }
    r = results_take(p, PG_WAIT_MS, e);
    PQclear(r);
    return r != NULL;
}

bool pg_notified(struct pg *p)
{
    bool any = false;
    PGnotify *n;

    if (PQconsumeInput(p->c) == 0) {
        p->broken = true;
        return false;
    }
    while ((n = PQnotifies(p->c)) != NULL) {
        any = true;
        PQfreemem(n);
    }
    return any;
}
