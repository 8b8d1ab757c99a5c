/* control.c - where the world comes from and how it reaches the loops. */
#include "gateway/control.h"

#include "ledger/migrate.h"

#include <stdio.h>

#define CONTROL_TICK_US 100000  /* NOTIFY is looked for this often */
#define CONTROL_POLL_US 1000000 /* and the version is polled, should a NOTIFY be lost */
#define CONTROL_SAVE_US                                                                            \
    60000000 /* the file follows the cursor, so that the journal can be trimmed */
#define CONTROL_PG_BACKOFF_MIN_US 250000
#define CONTROL_PG_BACKOFF_MAX_US 2000000
#define CONTROL_PARTITIONS_US 3600000000ULL
#define CONTROL_PARTITION_DAYS 8 /* made ahead; no DEFAULT partition exists */

static void say(struct control *c, enum log_level level, const char *event, const struct err *e)
{
    log_event(c->gw->log, level, env_wall_us(c->env), event, "%s", e->text);
}

static void pg_lost(struct control *c, const struct err *e)
{
    if (c->pg != NULL) {
        pg_close(c->pg);
        c->pg = NULL;
    }
    if (!c->pg_said_down) {
        say(c, LOG_WARN, "postgres_down", e);
        c->pg_said_down = true;
    }
    c->pg_backoff_us = c->pg_backoff_us == 0
                           ? CONTROL_PG_BACKOFF_MIN_US
                           : u64_min(c->pg_backoff_us * 2, CONTROL_PG_BACKOFF_MAX_US);
    c->pg_retry_us = env_now_us(c->env) + c->pg_backoff_us;
}

struct pg *control_pg(struct control *c, struct err *e)
{
    if (c->pg != NULL && !pg_is_broken(c->pg)) {
        return c->pg;
    }
    if (c->pg != NULL) {
        pg_close(c->pg);
        c->pg = NULL;
    }
    if (c->gw->config.pg_conninfo.n == 0) {
        err_set(e, ERR_UNAVAILABLE, "postgres.conninfo is not set");
        return NULL;
    }
    c->pg = pg_open(c->gw->config.pg_conninfo, "tollgate-control", e);
    if (c->pg == NULL) {
        return NULL;
    }
    if (!pg_exec(c->pg, "LISTEN tollgate_config", NULL, 0, e)) {
        pg_close(c->pg);
        c->pg = NULL;
        return NULL;
    }
    if (c->pg_said_down) {
        log_event(c->gw->log, LOG_INFO, env_wall_us(c->env), "postgres_up",
                  "Postgres answers again");
    }
    c->pg_said_down = false;
    c->pg_backoff_us = 0;
    return c->pg;
}

static void take_snapshot(struct control *c, struct snapshot *s)
{
    struct world *w = fleet_world(c->fleet, s);

    snapshot_unref(s);
    if (c->world != NULL) {
        world_unref(c->world);
    }
    c->world = w;
    for (unsigned i = 0; i < c->gw->n_loops; i++) {
        if (c->gw->loop[i] != NULL) {
            loop_offer_world(c->gw->loop[i], w);
        }
    }
}

bool control_reload(struct control *c, struct err *e)
{
    struct pg *p = control_pg(c, e);
    struct snapshot *s;
    struct err file = {.code = ERR_NONE};

    if (p == NULL) {
        return false;
    }
    s = snapshot_from_pg(p, (int32_t)c->gw->config.gateway_id, env_wall_us(c->env), e);
    if (s == NULL) {
        return false;
    }
    c->from_file = false;
    if (c->gw->journal != NULL && !snapshot_save(s, c->env, c->snapshot_path, &file)) {
        say(c, LOG_WARN, "snapshot_not_saved", &file);
    } else if (c->gw->journal != NULL) { /* before the folder is locked nothing is written there */
        journal_keep_after(c->gw->journal, s->spent_epoch, s->spent_seq);
    }
    c->save_us = env_now_us(c->env) + CONTROL_SAVE_US;
    take_snapshot(c, s);
    return true;
}

static bool version_moved(struct control *c, struct err *e)
{
    uint64_t v = snapshot_pg_version(c->pg, e);

    return v != 0 && v != c->world->snap->version;
}

static void make_partitions(struct control *c)
{
    struct err e = {.code = ERR_NONE};
    uint64_t now = env_now_us(c->env);

    if (now < c->partitions_us) {
        return;
    }
    c->partitions_us = now + CONTROL_PARTITIONS_US;
    if (!migrate_partitions(c->pg, CONTROL_PARTITION_DAYS, &e)) {
        c->partitions_us = now + 60000000;
        say(c, LOG_ERROR, "partitions_not_made", &e);
    }
}

/* The orphans of older lives have their rows on the disk: nobody needs those lives' rings again. */
static void forget_rings(struct control *c)
{
    char dir[480];

    if (!c->forget_rings || journal_durable(c->port) < c->forget_ticket) {
        return;
    }
    c->forget_rings = false;
    journal_forget_rings(c->env, str_copy(c->gw->config.journal_dir, dir, sizeof(dir)),
                         journal_epoch(c->gw->journal));
}

static void control_tick(struct env_timer *t)
{
    struct control *c = CONTAINER_OF(t, struct control, tick);
    struct err e = {.code = ERR_NONE};
    uint64_t now = env_now_us(c->env);

    log_drain(c->gw->log);
    env_timer_arm(c->env, &c->tick, now + CONTROL_TICK_US);
    forget_rings(c);
    if (now < c->pg_retry_us) {
        return;
    }
    if (control_pg(c, &e) == NULL) {
        pg_lost(c, &e);
        return;
    }
    make_partitions(c);
    if (!pg_notified(c->pg) && !c->from_file && now < c->poll_us) {
        return;
    }
    c->poll_us = now + CONTROL_POLL_US;
    if ((c->from_file || now >= c->save_us || version_moved(c, &e)) && !control_reload(c, &e)) {
        pg_lost(c, &e);
    } else if (e.code != ERR_NONE) {
        pg_lost(c, &e);
    }
}

static bool first_snapshot(struct control *c, struct err *e)
{
    struct err file = {.code = ERR_NONE};
    struct snapshot *s;

    if (control_reload(c, e)) {
        return true;
    }
    s = snapshot_load(c->env, c->snapshot_path, &file);
    if (s == NULL) { /* absent, damaged and unreadable ask for different things to be done */
        err_prefix(e, "no configuration: Postgres does not give one, and %s", file.text);
        return false;
    }
    say(c, LOG_WARN, "postgres_down", e);
    err_clear(e); /* told, and no failure: a later one must not hide behind it */
    log_event(c->gw->log, LOG_WARN, env_wall_us(c->env), "started_from_snapshot",
              "Postgres is away: starting from the snapshot file %s, version %llu. Rows wait in "
              "the journal.",
              c->snapshot_path, (unsigned long long)s->version);
    c->pg_said_down = true;
    c->from_file = true;
    take_snapshot(c, s);
    return true;
}

bool control_start(struct control *c, struct gateway *gw, struct env *env, struct err *e)
{
    char dir[480];
    int n;

    c->gw = gw;
    c->env = env;
    n = env->ops->dir_make(env, str_copy(gw->config.journal_dir, dir, sizeof(dir)));
    if (n < 0) {
        return err_errno(e, -n, "journal.dir %s", dir);
    }
    n = snprintf(c->snapshot_path, sizeof(c->snapshot_path), STR_FMT "/snapshot",
                 STR_ARG(gw->config.journal_dir));
    if (n < 0 || (size_t)n >= sizeof(c->snapshot_path)) {
        return err_set(e, ERR_INPUT, "journal.dir: the path is too long");
    }
    c->client = http_client_new(env);
    c->fleet = fleet_new(env, gw->log, c->client, gw->index, gw->secrets.worker_key);
    if (!first_snapshot(c, e)) {
        return false;
    }
    c->tick.fire = control_tick;
    env_timer_arm(env, &c->tick, env_now_us(env) + CONTROL_TICK_US);
    return true;
}

void control_free(struct control *c)
{
    env_timer_disarm(c->env, &c->tick);
    if (c->admin != NULL) {
        http_server_free(c->admin);
    }
    if (c->world != NULL) {
        world_unref(c->world);
    }
    if (c->fleet != NULL) {
        fleet_free(c->fleet); /* after the last world: worlds point at its workers */
    }
    if (c->client != NULL) {
        http_client_free(c->client);
    }
    if (c->pg != NULL) {
        pg_close(c->pg);
    }
}
