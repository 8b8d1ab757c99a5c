/* ctl_journal.c - tollctl without a gateway: journal files and migrations. */
#include "gateway/admin/ctl.h"

#include "base/net/os.h"
#include "ledger/migrate.h"
#include "ledger/ship.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define REPLAY_WAIT_MAX_US 2000000
#define REPLAY_FAILURES_MAX 5
#define MIGRATE_PARTITION_DAYS 8

static const char *type_name(enum record_type t)
{
    static const char *const names[] = {
        [RECORD_OPEN] = "OPEN",         [RECORD_DISPATCH] = "DISPATCH",
        [RECORD_PROGRESS] = "PROGRESS", [RECORD_CLOSE] = "CLOSE",
        [RECORD_VOID] = "VOID",         [RECORD_CHECKPOINT] = "CHECKPOINT"};

    return t >= RECORD_OPEN && t <= RECORD_CHECKPOINT ? names[t] : "?";
}

static void show_close(struct json_writer *w, const struct entry *c)
{
    char text[UUID_TEXT_BYTES + 1];

    uuid_text(c->event, text);
    jw_kc(w, "event", text);
    uuid_text(c->request, text);
    jw_kc(w, "request", text);
    jw_ki64(w, "gw_seq", c->gw_seq);
    jw_ki64(w, "attempt", c->attempt);
    jw_ki64(w, "tenant_id", c->tenant_id);
    jw_ki64(w, "key_id", c->key_id);
    jw_ki64(w, "worker_id", c->worker_id);
    jw_kc(w, "outcome", outcome_name((enum outcome)c->outcome));
    jw_kc(w, "usage_state", usage_state_name((enum usage_state)c->usage_state));
    jw_ki64(w, "tok_in_uncached", c->tok.in_uncached);
    jw_ki64(w, "tok_in_cached", c->tok.in_cached);
    jw_ki64(w, "tok_out", c->tok.out);
    jw_ki64(w, "cost_pusd", c->cost_pusd);
    jw_ki64(w, "hold_nusd", c->hold_nusd);
}

static void show_record(const struct record_stored *s, struct buf *line)
{
    struct json_writer w;
    char text[UUID_TEXT_BYTES + 1];
    const struct record *r = &s->r;

    buf_reset(line);
    jw_init(&w, line);
    jw_object(&w);
    jw_ki64(&w, "epoch", s->epoch);
    jw_ku64(&w, "lsn", s->lsn);
    jw_kc(&w, "type", type_name(r->type));
    switch (r->type) {
    case RECORD_OPEN:
        uuid_text(r->open.request, text);
        jw_kc(&w, "request", text);
        jw_ki64(&w, "tenant_id", r->open.tenant_id);
        jw_ki64(&w, "hold_nusd", r->open.hold_nusd);
        break;
    case RECORD_DISPATCH:
        uuid_text(r->dispatch.event, text);
        jw_kc(&w, "event", text);
        uuid_text(r->dispatch.request, text);
        jw_kc(&w, "request", text);
        jw_ki64(&w, "attempt", r->dispatch.attempt);
        jw_ki64(&w, "worker_id", r->dispatch.worker_id);
        jw_kc(&w, "reason", route_reason_name((enum route_reason)r->dispatch.route_reason));
        break;
    case RECORD_PROGRESS:
        uuid_text(r->progress.event, text);
        jw_kc(&w, "event", text);
        jw_ki64(&w, "output", r->progress.output);
        jw_ki64(&w, "output_held", r->progress.output_held);
        break;
    case RECORD_CLOSE:
        show_close(&w, &r->close);
        break;
    case RECORD_VOID:
        uuid_text(r->voided.request, text);
        jw_kc(&w, "request", text);
        uuid_text(r->voided.event, text);
        jw_kc(&w, "event", text);
        break;
    case RECORD_CHECKPOINT:
        jw_ki64(&w, "scope_kind", r->checkpoint.scope_kind);
        jw_ki64(&w, "scope_id", r->checkpoint.scope_id);
        jw_ki64(&w, "spent_nusd", r->checkpoint.spent_nusd);
        break;
    }
    jw_end_object(&w);
    printf(STR_FMT "\n", STR_ARG(buf_view(line)));
}

struct tally {
    uint64_t records, rows, torn;
    int64_t cost_pusd, last_seq;
    int32_t epochs, epoch;
    bool dense;
};

static void count(struct tally *t, const struct record_stored *s)
{
    if (s->epoch != t->epoch) {
        t->epoch = s->epoch;
        t->epochs++;
        t->last_seq = 0;
    }
    t->records++;
    if (s->r.type == RECORD_CLOSE) {
        t->rows++;
        t->cost_pusd += s->r.close.cost_pusd;
        t->dense = t->dense && s->r.close.gw_seq == t->last_seq + 1;
        t->last_seq = s->r.close.gw_seq;
    }
}

/* verify and show: one pass over every record. */
static int read_all(struct ctl *c, struct env *env, const char *dir, bool show)
{
    struct err e = {.code = ERR_NONE};
    struct record_stored *s = mem_new(sizeof(*s));
    struct journal_reader *r = journal_reader_open(env, dir, &e);
    struct tally t = {.dense = true};
    enum journal_read got = JOURNAL_READ_END;
    struct buf line;

    buf_init(&line, 64 << 10);
    while (r != NULL &&
           ((got = journal_read(r, s, &e)) == JOURNAL_READ_RECORD || got == JOURNAL_READ_TORN)) {
        if (got == JOURNAL_READ_TORN) {
            t.torn++;
            continue;
        }
        count(&t, s);
        if (show) {
            show_record(s, &line);
        }
    }
    if (r != NULL) {
        journal_reader_close(r);
    }
    buf_fini(&line);
    mem_free(s);
    if (r == NULL || got == JOURNAL_READ_CORRUPT) {
        fprintf(stderr, "tollctl: %s\n", e.text);
        return CTL_REFUSED;
    }
    if (t.records == 0) {
        fprintf(stderr,
                "tollctl: no record of a journal is in %s; the folder is journal.dir of the "
                "gateway's configuration\n",
                dir);
        return CTL_REFUSED;
    }
    if (!show) {
        printf(c->json ? "{\"records\":%" PRIu64 ",\"rows\":%" PRIu64
                         ",\"epochs\":%d,\"torn_tails\":%" PRIu64 ",\"cost_pusd\":%" PRId64
                         ",\"rows_dense\":%s}\n"
                       : "records     %" PRIu64 "\nrows        %" PRIu64
                         "\nepochs      %d\ntorn tails  %" PRIu64 "\ncost (pUSD) %" PRId64
                         "\nrows dense  %s\n",
               t.records, t.rows, t.epochs, t.torn, t.cost_pusd,
               c->json ? (t.dense ? "true" : "false")
                       : (t.dense ? "yes" : "from a trimmed start, or with a gap"));
    }
    return CTL_DONE;
}

/* Ships what a folder holds, as the gateway would: exactly once, by the cursor. */
static int replay(struct ctl *c, struct env *env, const char *dir)
{
    const char *db = ctl_option(c, "database"), *id = ctl_option(c, "gateway-id");
    struct ship_options o = {
        .conninfo = str_c(db != NULL ? db : getenv("DATABASE_URL")), .dir = dir, .gateway_id = 1};
    struct ship *s;
    struct ship_stats st;
    uint64_t v;

    if (id != NULL && (!str_u64(str_c(id), &v) || v == 0 || v > 32767)) {
        fputs("tollctl: --gateway-id must be 1 to 32767\n", stderr);
        return CTL_USAGE;
    }
    o.gateway_id = id != NULL ? (int32_t)v : 1;
    if (o.conninfo.n == 0 || !ctl_no_more(c, 3)) {
        fputs("tollctl: journal replay needs --database CONNINFO (a role that may insert)\n",
              stderr);
        return CTL_USAGE;
    }
    s = ship_new(env, NULL, NULL, &o, NULL);
    if (s == NULL) {
        fprintf(stderr, "tollctl: cannot read %s\n", dir);
        return CTL_REFUSED;
    }
    do {
        uint64_t wait = ship_step(s, env);

        ship_stats(s, &st);
        if (wait > 0 && !ship_is_caught_up(s)) {
            os_turn(env, u64_min(wait, REPLAY_WAIT_MAX_US));
        }
    } while (!ship_is_caught_up(s) && st.failures < REPLAY_FAILURES_MAX);
    printf(c->json ? "{\"rows\":%" PRIu64 ",\"transactions\":%" PRIu64 "}\n"
                   : "%" PRIu64 " rows shipped in %" PRIu64 " transactions\n",
           st.rows, st.transactions);
    v = (uint64_t)ship_is_caught_up(s);
    ship_free(s);
    if (v == 0) {
        fputs("tollctl: the database refuses or is away; rows stay in the journal\n", stderr);
        return CTL_UNREACHABLE;
    }
    return CTL_DONE;
}

int ctl_journal(struct ctl *c)
{
    struct err e = {.code = ERR_NONE};
    const char *verb = ctl_word(c, 1), *dir = ctl_word(c, 2);
    struct env *env;
    int rc = CTL_USAGE;

    if (verb == NULL || dir == NULL) {
        fputs("usage: tollctl journal verify|show|replay DIR [--database CONNINFO] [--gateway-id "
              "N]\n",
              stderr);
        return CTL_USAGE;
    }
    env = os_env_new(NULL, &e);
    if (env == NULL) {
        fprintf(stderr, "tollctl: %s\n", e.text);
        return CTL_REFUSED;
    }
    if (strcmp(verb, "replay") == 0) {
        rc = replay(c, env, dir);
    } else if ((strcmp(verb, "verify") == 0 || strcmp(verb, "show") == 0) && ctl_no_more(c, 3)) {
        rc = read_all(c, env, dir, verb[0] == 's');
    } else {
        fprintf(stderr, "tollctl: journal %s: verify, show or replay\n", verb);
    }
    os_env_free(env);
    return rc;
}

static void told(void *ctx, const char *name, bool applied)
{
    const struct ctl *c = ctx;

    if (applied && !c->json) {
        printf("applied %s\n", name);
    }
}

int ctl_migrate(struct ctl *c)
{
    const char *db = ctl_option(c, "database"), *dir = ctl_option(c, "dir");
    struct err e = {.code = ERR_NONE};
    struct migrate_report r;
    struct pg *p;
    bool ok;

    db = db != NULL ? db : getenv("TOLLGATE_MIGRATE_URL");
    if (db == NULL || !ctl_no_more(c, 1)) {
        fputs("usage: tollctl migrate --database CONNINFO [--dir sql]   (a superuser, or "
              "tollgate_owner once it exists)\n",
              stderr);
        return CTL_USAGE;
    }
    p = pg_open(str_c(db), "tollctl", &e);
    if (p == NULL) {
        fprintf(stderr, "tollctl: %s\n", e.text);
        return CTL_UNREACHABLE;
    }
    ok = migrate_run(p, dir != NULL ? dir : "sql", &r, told, c, &e) &&
         migrate_partitions(p, MIGRATE_PARTITION_DAYS, &e);
    pg_close(p);
    if (!ok) {
        fprintf(stderr, "tollctl: %s\n", e.text);
        return CTL_REFUSED;
    }
    printf(c->json ? "{\"applied\":%d,\"present\":%d,\"last\":\"%s\"}\n"
                   : "%d applied, %d already there; schema is at %s\n",
           r.applied, r.present, r.last);
    return CTL_DONE;
}
