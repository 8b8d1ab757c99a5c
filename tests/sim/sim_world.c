/* sim_world.c - one seed's run: the plan, the operator who makes trouble, the way to quiet. */
#include "sim_world.h"

#include "gateway/admit/auth.h"

#include <stdio.h>

#define TROUBLE_MAX_US 25000000
#define OPERATOR_US 1200000    /* between two of its deeds, about */
#define QUIET_MAX_US 400000000 /* after the trouble: all must have ended by then */
#define SETTLE_US 3000000      /* idle for so long is quiet */
#define ASKS_PER_CLIENT_MAX 7
#define TURNS_MAX 20000000
#define DRAIN_GRACE_US 12000000 /* of drain_us, lingering connections and settling */

/* ---- the plan ---- */

static int64_t draw_budget(struct sim_rng *r)
{
    return (int64_t)sim_range(r, 4, sim_chance(r, 500) ? 30 : 600) *
           100000000; /* 0.0004 to 0.06 USD */
}

static void draw_limits(struct world_sim *w)
{
    static const struct quota_limits none = {QUOTA_NONE, QUOTA_NONE, QUOTA_NONE, QUOTA_NONE,
                                             QUOTA_NONE};
    struct sim_rng *r = &w->rng;

    for (unsigned i = 0; i < WORLD_TENANTS; i++) {
        w->tenant_limits[i] = none;
    }
    for (unsigned i = 0; i < WORLD_KEYS; i++) {
        w->key_limits[i] = none;
    }
    w->tenant_limits[1].budget_month_pusd = draw_budget(r);
    if (sim_chance(r, 500)) {
        w->key_limits[2].budget_month_pusd = draw_budget(r);
    }
    w->key_limits[4].budget_month_pusd = draw_budget(r);
    w->tenant_limits[2].requests_per_min = (int64_t)sim_range(r, 2, 60);
    w->tenant_limits[2].concurrent = (int64_t)sim_range(r, 1, 4);
    w->key_limits[5].input_tokens_per_min = (int64_t)sim_range(r, 500, 50000);
    w->key_limits[5].output_tokens_per_min = (int64_t)sim_range(r, 500, 5000);
}

static void draw_faults(struct world_sim *w)
{
    struct sim_rng *r = &w->rng;
    struct sim_faults *f = &w->sim->faults;

    f->split = (unsigned)sim_below(r, 600);
    f->short_write = (unsigned)sim_below(r, 500);
    f->again = (unsigned)sim_below(r, 100);
    f->late = (unsigned)sim_below(r, 300);
    f->stall = (unsigned)sim_below(r, 10);
    f->file_short = (unsigned)sim_below(r, 200);
    if (sim_chance(r, 500)) {
        f->reset = (unsigned)sim_below(r, 3);
        f->refuse = (unsigned)sim_below(r, 60);
        f->blackhole = (unsigned)sim_below(r, 30);
        f->accept = (unsigned)sim_below(r, 100);
    }
}

static void draw_plan(struct world_sim *w)
{
    struct sim_rng *r = &w->rng;
    struct plan *p = &w->plan;
    bool calm =
        sim_chance(r, 150); /* some runs without any trouble: the plain path must work too */

    p->clients = (unsigned)sim_range(r, 1, WORLD_CLIENTS_MAX);
    p->workers = (unsigned)sim_range(r, 1, WORLD_WORKERS_MAX);
    p->segment_records = (uint32_t)sim_range(r, 3, sim_chance(r, 600) ? 12 : 400);
    p->trouble_until_us = w->sim->now_us + sim_range(r, 2000000, TROUBLE_MAX_US);
    p->drain = sim_chance(r, 400);
    if (sim_chance(r, 200)) { /* the month ends while requests run */
        w->sim->wall_us = SIM_MONTH_END_US - sim_below(r, TROUBLE_MAX_US);
    }
    if (calm) {
        return;
    }
    draw_faults(w);
    p->kills = sim_chance(r, 700) ? (unsigned)sim_range(r, 1, 5) : 0;
    p->worker_kills = sim_chance(r, 500) ? (unsigned)sim_range(r, 1, 4) : 0;
    p->store_outages = sim_chance(r, 400) ? 2 : 0;
    p->disk_fulls = sim_chance(r, 150) ? 1 : 0;
    p->reloads = sim_chance(r, 400) ? 4 : 0;
    p->gentle =
        w->sim->faults.reset + w->sim->faults.refuse == 0 && p->worker_kills + p->reloads == 0;
    w->store.trouble = sim_chance(r, 500) ? (unsigned)sim_below(r, 300) : 0;
    for (unsigned i = 0; i < p->workers; i++) {
        w->workers[i].trouble = sim_chance(r, 700) ? (unsigned)sim_below(r, 400) : 0;
    }
}

/* ---- the operator ---- */

static void make_trouble(struct world_sim *w)
{
    struct sim_rng *r = &w->rng;
    struct plan *p = &w->plan;
    struct worker_sim *k = &w->workers[sim_below(r, p->workers)];

    w->sim->faults.file_full = 0;
    switch (sim_below(r, 8)) {
    case 0:
    case 7:
        if (p->kills > 0 && w->gw != NULL && !w->gateway_host.dead) {
            p->kills--;
            if (sim_chance(r, 500)) { /* in the middle of a file operation, soon */
                w->gateway_host.kill_at_file_op = (uint32_t)sim_range(r, 1, 12);
                w->gateway_host.kill_loses_power = sim_chance(r, 600);
            } else {
                gateway_kill(w, sim_chance(r, 500));
            }
        }
        return;
    case 1:
        if (k->listener == NULL) {
            worker_up(k);
        } else if (p->worker_kills > 0) {
            p->worker_kills--;
            worker_down(k);
        }
        return;
    case 2:
        w->store.down = !w->store.down && p->store_outages > 0 && p->store_outages-- > 0;
        return;
    case 3:
        k->sick = !k->sick && sim_chance(r, 300);
        return;
    case 4:
        if (p->disk_fulls > 0) {
            w->sim->faults.file_full = (unsigned)sim_range(r, 10, 900);
        }
        return;
    case 5:
        if (p->reloads > 0) {
            p->reloads--;
            k->draining = sim_chance(r, 400);
            k->unlisted = !k->draining && sim_chance(r, 400);
            gateway_reload(w);
        }
        return;
    default:
        w->sim->faults.file_sync = w->options.fsync_fails ? (unsigned)sim_below(r, 20) : 0;
        return;
    }
}

/* From here on nothing goes wrong any more: what is under way must come to its end. */
static void end_trouble(struct world_sim *w)
{
    sim_trace(w->sim, "the trouble ends");
    memset(&w->sim->faults, 0, sizeof(w->sim->faults));
    w->gateway_host.kill_at_file_op = 0;
    w->store.down = false;
    w->store.trouble = 0;
    for (unsigned i = 0; i < w->plan.workers; i++) {
        w->workers[i].sick = false;
        w->workers[i].trouble = 0;
        w->workers[i].draining = w->workers[i].unlisted = false;
        worker_up(&w->workers[i]);
    }
    for (uint32_t i = 0; i < w->n_asks; i++) {
        w->asks[i].slow = false; /* nobody's reading keeps us from the end */
    }
    gateway_reload(w);
    w->quiet = true;
}

static void operator_fire(struct env_timer *t)
{
    struct world_sim *w = CONTAINER_OF(t, struct world_sim, operator_timer);

    if (w->sim->now_us >= w->plan.trouble_until_us) {
        end_trouble(w);
        return;
    }
    make_trouble(w);
    sim_arm(w->sim, NULL, t, w->sim->now_us + sim_range(&w->rng, 1000, OPERATOR_US));
}

/* ---- the gateway's threads ---- */

static void journal_fire(struct env_timer *t)
{
    struct world_sim *w = CONTAINER_OF(t, struct world_sim, journal_timer);
    struct env *env = &w->gateway_host.env;
    bool more;

    if (w->gateway_host.dead) {
        return;
    }
    more = journal_step(w->gw->journal, env);
    if (!w->gateway_host.dead && journal_is_failed(w->gw->journal)) {
        sim_trace(w->sim, "the journal failed: the process exits");
        gateway_kill(w, false);
    }
    if (!w->gateway_host.dead) {
        env_timer_arm(env, t,
                      env_now_us(env) +
                          (more
                               ? sim_below(&w->rng, 300)
                               : sim_range(&w->rng, 200, sim_chance(&w->rng, 200) ? 15000 : 2000)));
    }
}

static void ship_fire(struct env_timer *t)
{
    struct world_sim *w = CONTAINER_OF(t, struct world_sim, ship_timer);
    struct env *env = &w->gateway_host.env;
    uint64_t wait;

    if (w->gateway_host.dead) {
        return;
    }
    wait = ship_step(w->gw->ship, env);
    if (!w->gateway_host.dead) {
        (void)store_step(w->control.store, env); /* without a Postgres: it only finds none */
        env_timer_arm(env, t, env_now_us(env) + wait + sim_below(&w->rng, 5000));
    }
}

static void restart_fire(struct env_timer *t)
{
    struct world_sim *w = CONTAINER_OF(t, struct world_sim, restart_timer);

    sim_host_revive(&w->gateway_host);
    (void)gateway_start(w);
}

/* ---- running ---- */

static void turn(struct world_sim *w)
{
    if (!sim_turn(w->sim)) {
        sim_fail(w->sim, "nothing will ever happen again");
        return;
    }
    if (w->gateway_host.dead && w->gw != NULL) {
        gateway_bury(w);
    }
    check_turn(w);
}

static bool all_done(const struct world_sim *w)
{
    for (unsigned i = 0; i < w->plan.clients; i++) {
        if (!client_is_done(&w->clients[i])) {
            return false;
        }
    }
    return w->quiet && gateway_is_idle(w);
}

/* Until nothing is under way, and some time more: late answers and cancelled attempts end too. */
static void run_to_quiet(struct world_sim *w)
{
    uint64_t until = w->plan.trouble_until_us + QUIET_MAX_US, idle_since = 0;

    while (!w->sim->failed) {
        turn(w);
        if (!all_done(w)) {
            idle_since = 0;
        } else if (idle_since == 0) {
            idle_since = w->sim->now_us;
        } else if (w->sim->now_us - idle_since > SETTLE_US) {
            return;
        }
        if (w->sim->now_us > until || w->sim->turns > TURNS_MAX) {
            sim_fail(w->sim, "no quiet: gateway %s, %llu requests, %s", w->up ? "up" : "down",
                     (unsigned long long)(w->gw != NULL && w->gw->loop[0] != NULL
                                              ? w->gw->loop[0]->n_requests
                                              : 0),
                     w->gw != NULL && w->gw->ship != NULL && ship_is_caught_up(w->gw->ship)
                         ? "shipped"
                         : "not shipped");
        }
    }
}

static void loop_is_drained(struct loop *l)
{
    struct world_sim *w = CONTAINER_OF(l->gw->control, struct world_sim, control);

    sim_trace(w->sim, "drained");
    w->drained = true;
}

/* Somebody who reads slowly may keep his connection past the time; main then stops all the same. */
static bool only_slow_readers_left(const struct world_sim *w)
{
    for (unsigned i = 0; i < w->plan.clients; i++) {
        const struct client *c = &w->clients[i];

        if (c->ask != NULL && !c->ask->slow && c->link == NULL) { /* a window may be small */
            return false;
        }
    }
    return w->gw->loop[0]->n_requests == 0 && ship_is_caught_up(w->gw->ship);
}

static void ask_all_once(struct world_sim *w)
{
    uint64_t until;

    for (unsigned i = 0; i < w->plan.clients && w->n_asks + WORLD_CLIENTS_MAX < WORLD_ASKS_MAX;
         i++) {
        w->clients[i].asks_left = 1;
        env_timer_arm(&w->clients[i].host.env, &w->clients[i].timer,
                      w->sim->now_us + sim_below(&w->rng, 200000));
    }
    until = w->sim->now_us + sim_below(&w->rng, 1500000);
    while (w->sim->now_us < until && !w->sim->failed) {
        turn(w);
    }
}

/* A drain in the middle of work: it ends in time, with every row shipped. */
static void run_drain(struct world_sim *w)
{
    struct loop *l = w->gw->loop[0];
    uint64_t until;

    ask_all_once(w);
    sim_trace(w->sim, "drain");
    l->drained = loop_is_drained;
    loop_drain(l);
    until = w->sim->now_us + (uint64_t)w->gw->config.drain_us + DRAIN_GRACE_US;
    while (!w->sim->failed && w->sim->now_us < until &&
           (!w->drained || !ship_is_caught_up(w->gw->ship))) {
        turn(w);
    }
    if (!w->drained && !only_slow_readers_left(w)) {
        sim_fail(w->sim, "a drain does not end: %llu requests", (unsigned long long)l->n_requests);
    }
    w->drained = true;
    for (until = w->sim->now_us + SETTLE_US; w->sim->now_us < until && !w->sim->failed;) {
        turn(w); /* the shipper has the last rows, workers hear who left */
    }
}

void world_run(struct world_sim *w)
{
    run_to_quiet(w);
    if (!w->sim->failed && w->plan.drain) {
        run_drain(w);
    }
    if (!w->sim->failed) {
        check_idle(w);
    }
    if (w->gw != NULL) {
        if (w->recovering) {
            gateway_kill(w, false);
            gateway_bury(w);
            env_timer_disarm(&w->workers[0].host.env, &w->restart_timer);
        } else {
            gateway_stop(w);
        }
    }
    if (!w->sim->failed) {
        check_end(w);
    }
}

/* ---- life ---- */

static void mint_keys(struct world_sim *w)
{
    for (unsigned i = 0; i < WORLD_KEYS; i++) {
        struct auth_key k;

        auth_mint(&w->gateway_host.env, STR("pepper"), &k);
        memcpy(w->keys[i], k.text, sizeof(k.text));
        memcpy(w->key_hmac[i], k.hmac, SHA256_BYTES);
    }
}

struct world_sim *world_new(uint64_t seed, const struct world_options *o, struct log *log)
{
    struct world_sim *w = mem_new(sizeof(*w));

    w->options = *o;
    w->sim = sim_new(seed, o->verbose);
    w->rng.state = seed * 0x9e3779b97f4a7c15 + 77;
    w->log = log;
    sim_host_init(w->sim, &w->gateway_host, "gateway");
    w->gateway_host.jitter = true;
    store_init(&w->store, w);
    draw_limits(w);
    mint_keys(w);
    draw_plan(w);
    for (unsigned i = 0; i < w->plan.workers; i++) {
        unsigned trouble = w->workers[i].trouble;

        worker_start(w, i);
        w->workers[i].trouble = trouble;
    }
    for (unsigned i = 0; i < WORLD_LINKS; i++) {
        w->links[i] = h2_link_new(w, i);
    }
    for (unsigned i = 0; i < w->plan.clients; i++) {
        w->clients[i].link =
            sim_chance(&w->rng, 400) ? w->links[sim_below(&w->rng, WORLD_LINKS)] : NULL;
        client_start(w, i, (unsigned)sim_range(&w->rng, 1, ASKS_PER_CLIENT_MAX),
                     w->sim->now_us + sim_below(&w->rng, 3000000));
    }
    w->journal_timer.fire = journal_fire;
    w->ship_timer.fire = ship_fire;
    w->restart_timer.fire = restart_fire;
    w->operator_timer.fire = operator_fire;
    sim_arm(w->sim, NULL, &w->operator_timer, w->sim->now_us + 1000000);
    if (!gateway_start(w)) {
        gateway_bury(w);
    }
    return w;
}

void world_free(struct world_sim *w)
{
    if (env_timer_is_armed(&w->operator_timer)) {
        sim_disarm(w->sim, &w->operator_timer);
    }
    for (unsigned i = 0; i < w->plan.clients; i++) {
        client_stop(&w->clients[i]);
    }
    for (unsigned i = 0; i < WORLD_LINKS; i++) {
        h2_link_free(w->links[i]);
    }
    env_timer_disarm(&w->workers[0].host.env, &w->restart_timer);
    for (unsigned i = 0; i < w->plan.workers; i++) {
        worker_stop(&w->workers[i]);
    }
    sim_host_fini(&w->gateway_host);
    store_fini(&w->store);
    sim_free(w->sim);
    mem_free(w);
}
