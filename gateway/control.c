/* control.c - how a new world reaches the loops; the control loop's start, tick and end. */
#include "gateway/control.h"

#include <stdio.h>

#define CONTROL_TICK_US 100000 /* the log is drained this often */

/* A new snapshot, with its reference. */
static void take_snapshot(void *ctx, struct snapshot *s)
{
    struct control *c = ctx;
    struct world *w = fleet_world(c->fleet, s);

    if (c->world != NULL) {
        control_seed_new(c, c->world->snap, s);
        world_unref(c->world);
    }
    snapshot_unref(s);
    c->world = w;
    for (unsigned i = 0; i < c->gw->n_loops; i++) {
        if (c->gw->loop[i] != NULL) {
            loop_offer_world(c->gw->loop[i], w);
        }
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

    log_drain(c->gw->log);
    env_timer_arm(c->env, &c->tick, env_now_us(c->env) + CONTROL_TICK_US);
    forget_rings(c);
}

static bool first_world(struct control *c, struct err *e)
{
    char path[512];
    struct snapshot *s;
    int n = snprintf(path, sizeof(path), STR_FMT "/snapshot", STR_ARG(c->gw->config.journal_dir));

    if (n < 0 || (size_t)n >= sizeof(path)) {
        return err_set(e, ERR_INPUT, "journal.dir: the path is too long");
    }
    c->store = store_new(c->gw, c->env, path, take_snapshot, c);
    s = store_first(c->store, c->env, e);
    if (s != NULL) {
        take_snapshot(c, s);
    }
    return s != NULL;
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
    c->client = http_client_new(env);
    c->fleet = fleet_new(env, gw->log, c->client, gw->index, gw->secrets.worker_key);
    if (!first_world(c, e)) {
        return false;
    }
    c->tick.fire = control_tick;
    env_timer_arm(env, &c->tick, env_now_us(env) + CONTROL_TICK_US);
    return true;
}

void control_free(struct control *c)
{
    env_timer_disarm(c->env, &c->tick);
    store_free(c->store); /* first: it answers operators who still wait */
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
}
