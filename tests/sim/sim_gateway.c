/* sim_gateway.c - the gateway's process in the simulator: started, stepped, killed, stopped.
 *
 * Does what gateway/main.c does, in its order, with one loop and without threads: the journal and
 * the shipper are stepped by timers. Where main reads Postgres for its first configuration, a
 * snapshot is made from the store's model and put where control reads it. */
#include "sim_world.h"

#include "gateway/admit/auth.h"
#include "ledger/snapshot_impl.h"

#include <stdio.h>
#include <stdlib.h>

#define RESTART_MAX_US 3000000
#define DYING_ROUNDS_MAX 1000 /* that a recovery takes to fail, some questions at a time */
#define DRAIN_US 4000000

/* ---- configuration ---- */

static void config_fill(struct world_sim *w, struct gateway *gw)
{
    struct gateway_config *c = &gw->config;
    struct err e = {.code = ERR_NONE};

    CHECK(gateway_config_load(NULL, c, &gw->arena, &e));
    c->loops = 1;
    c->journal_dir = STR(WORLD_DIR);
    c->journal_segment_bytes = (int64_t)w->plan.segment_records * JOURNAL_RECORD_BYTES;
    c->whohas_bytes = 1 << 20;
    c->drain_us = DRAIN_US;
    c->keepalive_us = 2000000;
    c->head_hold_us = 700000;
    c->connect_us = 1000000;
    c->ttft_us = 15000000;
    c->stall_us = 8000000;
    c->connections_per_worker_max = 6;
    c->stream_buffer_high = 4096;
    gw->secrets = (struct secrets){STR("deployment-secret"), STR("pepper"), STR(WORLD_WORKER_KEY),
                                   STR("admin")};
    gw->n_loops = 1;
    gw->log = w->log;
}

static int compare_keys(const void *a, const void *b)
{
    return memcmp(((const struct snap_key *)a)->hmac, ((const struct snap_key *)b)->hmac,
                  SHA256_BYTES);
}

struct sums {
    int64_t spent_nusd, suspense_nusd;
};

static struct sums sums_of(const struct store_sim *s, int32_t period, int32_t tenant_id,
                           int32_t key_id)
{
    struct sums sum = {0};
    int64_t pusd = 0;

    for (size_t i = 0; i < s->n; i++) {
        const struct entry *e = &s->rows[i];

        if (quota_period(e->occurred_us) == period && e->tenant_id == tenant_id &&
            (key_id == 0 || e->key_id == key_id)) {
            pusd += e->cost_pusd;
            sum.suspense_nusd += store_suspense(e);
        }
    }
    sum.spent_nusd = money_nusd_ceil(money_of(pusd));
    return sum;
}

static struct price price_of(int32_t id, int16_t model, int64_t in, int64_t out)
{
    return (struct price){.price_id = id,
                          .model_id = model,
                          .tier = TIER_STANDARD,
                          .ctx_band = INT32_MAX,
                          .in_pusd = in,
                          .cached_pusd = in / 10,
                          .cw_5m_pusd = in,
                          .cw_1h_pusd = in,
                          .out_pusd = out,
                          .reasoning_pusd = out,
                          .list_in_pusd = in,
                          .list_out_pusd = out,
                          .valid_from_us = 1};
}

static void snapshot_tenants(struct world_sim *w, struct snapshot *s)
{
    bool over = s->made_wall_us >= SIM_MONTH_END_US;

    s->n_tenants = WORLD_TENANTS;
    s->tenants = arena_array(&s->arena, WORLD_TENANTS, sizeof(*s->tenants));
    s->n_keys = WORLD_KEYS;
    s->keys = arena_array(&s->arena, WORLD_KEYS, sizeof(*s->keys));
    for (int32_t i = 0; i < WORLD_TENANTS; i++) {
        struct sums sum = sums_of(&w->store, s->spent_period, i + 1, 0);

        s->tenants[i] =
            (struct snap_tenant){.tenant_id = i + 1,
                                 .name = STR("tenant"),
                                 .scope_salt = STR("5a17"),
                                 .timezone = STR("UTC"),
                                 .limits = w->tenant_limits[i],
                                 .spent_nusd = sum.spent_nusd,
                                 .suspense_nusd = sum.suspense_nusd,
                                 .month_from_us = over ? SIM_MONTH_END_US : SIM_MONTH_BEGIN_US,
                                 .month_until_us = over ? SIM_NEXT_MONTH_END_US : SIM_MONTH_END_US};
    }
    for (int32_t i = 0; i < WORLD_KEYS; i++) {
        struct sums sum = sums_of(&w->store, s->spent_period, 1 + i / 2, 100 + i);

        s->keys[i] = (struct snap_key){.key_id = 100 + i,
                                       .tenant_id = 1 + i / 2,
                                       .project_id = 1,
                                       .user_id = 1,
                                       .limits = w->key_limits[i],
                                       .spent_nusd = sum.spent_nusd,
                                       .suspense_nusd = sum.suspense_nusd,
                                       .name = STR("key"),
                                       .redacted = STR("tg_a...z")};
        memcpy(s->keys[i].hmac, w->key_hmac[i], SHA256_BYTES);
    }
    qsort(s->keys, WORLD_KEYS, sizeof(*s->keys), compare_keys);
}

struct snapshot *gateway_snapshot(struct world_sim *w)
{
    struct snapshot *s = snapshot_new();
    int16_t *models = arena_array(&s->arena, 3, sizeof(*models));

    s->version = w->lives;
    s->made_wall_us = w->sim->wall_us + w->sim->now_us;
    s->spent_period = quota_period(s->made_wall_us);
    s->spent_gateway = 1;
    for (unsigned i = 0; i < w->store.n_epochs; i++) {
        if (w->store.epochs[i].last_seq > 0 && w->store.epochs[i].epoch > s->spent_epoch) {
            s->spent_epoch = w->store.epochs[i].epoch;
            s->spent_seq = w->store.epochs[i].last_seq;
        }
    }
    snapshot_tenants(w, s);
    s->n_models = 3;
    s->models = arena_array(&s->arena, 3, sizeof(*s->models));
    s->models[0] = (struct snap_model){.model_id = 2, .name = STR("m-big"), .context = 8192};
    s->models[1] = (struct snap_model){.model_id = 3, .name = STR("m-free")};
    s->models[2] = (struct snap_model){
        .model_id = 1, .name = STR("m-small"), .context = 32768, .output_max = 4000};
    s->n_prices = 2;
    s->prices = arena_array(&s->arena, 2, sizeof(*s->prices));
    s->prices[0] = price_of(51, 1, 150000, 600001);
    s->prices[1] = price_of(52, 2, 2500003, 10000000);
    for (int16_t i = 0; i < 3; i++) {
        models[i] = (int16_t)(i + 1);
    }
    s->n_workers = w->plan.workers;
    s->workers = arena_array(&s->arena, s->n_workers, sizeof(*s->workers));
    for (unsigned i = 0; i < s->n_workers; i++) {
        s->workers[i] = (struct snap_worker){.worker_id = w->workers[i].worker_id,
                                             .url = str_c(w->workers[i].url),
                                             .engine = (int16_t)w->workers[i].engine,
                                             .models = models,
                                             .n_models = 3,
                                             .draining = w->workers[i].draining,
                                             .removed = w->workers[i].unlisted};
    }
    return s;
}

/* ---- starting ---- */

static void say_record(struct world_sim *w, const struct record_stored *rec)
{
    static const char *const names[] = {"?",     "OPEN", "DISPATCH",  "PROGRESS",
                                        "CLOSE", "VOID", "CHECKPOINT"};
    const struct record *r = &rec->r;
    struct uuid request = r->open.request, event = r->dispatch.event;

    if (r->type == RECORD_OPEN || r->type == RECORD_PROGRESS) {
        event = r->type == RECORD_OPEN ? (struct uuid){{0}} : r->progress.event;
    } else if (r->type == RECORD_CLOSE) {
        request = r->close.request;
        event = r->close.event;
    }
    sim_trace(w->sim, "journal %d-%llu %s request ..%02x%02x event ..%02x%02x outcome %d",
              rec->epoch, (unsigned long long)rec->lsn, names[r->type], request.b[14],
              request.b[15], event.b[14], event.b[15],
              r->type == RECORD_CLOSE ? r->close.outcome : 0);
}

/* Which attempts the journal knows nothing of: their DISPATCH was in memory when the process died.
 */
static void count_window(struct world_sim *w)
{
    struct err e = {.code = ERR_NONE};
    struct journal_reader *r = journal_reader_open(&w->gateway_host.env, WORLD_DIR, &e);
    struct record_stored *rec = mem_new(sizeof(*rec));
    bool *known = mem_new(WORLD_ATTEMPTS_MAX);
    enum journal_read got;

    while (r != NULL &&
           ((got = journal_read(r, rec, &e)) == JOURNAL_READ_RECORD || got == JOURNAL_READ_TORN)) {
        const struct uuid *event = rec->r.type == RECORD_DISPATCH ? &rec->r.dispatch.event
                                   : rec->r.type == RECORD_CLOSE  ? &rec->r.close.event
                                                                  : NULL;

        if (got == JOURNAL_READ_RECORD) {
            say_record(w, rec);
        }
        for (uint32_t i = 0; got == JOURNAL_READ_RECORD && event != NULL && i < w->n_attempts;
             i++) {
            known[i] |= uuid_eq(w->attempts[i].event, *event);
        }
    }
    journal_reader_close(r);
    for (uint32_t i = 0; i < w->n_attempts; i++) {
        struct sim_attempt *a = &w->attempts[i];

        if (w->lives > 0 && !known[i] && !a->lost && !uuid_is_zero(a->event) &&
            store_row_of_event(&w->store, a->event) == NULL) {
            a->lost = true;
            w->window.attempts++;
            w->window.tokens += a->generated;
            sim_trace(w->sim, "attempt %u is lost with the kill: %u tokens", i, a->generated);
            if (w->died_us - u64_min(a->began_us, w->died_us) > 1000000 &&
                w->plan.disk_fulls == 0 && !w->options.fsync_fails) {
                sim_fail(w->sim, "attempt %u: its DISPATCH was not on the disk after a second", i);
            }
        }
    }
    mem_free(known);
    mem_free(rec);
}

/* What main reads from Postgres, where control looks when there is none. While the store is away a
 * restarted gateway has the file that an earlier life left. */
static bool put_snapshot(struct world_sim *w, struct err *e)
{
    struct snapshot *s;
    bool ok;

    if (w->options.stale_snapshot && w->lives > 0 && w->store.down) {
        return true;
    }
    s = gateway_snapshot(w);
    ok = snapshot_save(s, &w->gateway_host.env, WORLD_DIR "/snapshot", e);
    snapshot_unref(s);
    return ok;
}

static bool open_files(struct world_sim *w, struct err *e)
{
    struct gateway *gw = w->gw;
    struct env *env = &w->gateway_host.env;
    struct journal_options jo = {.dir = WORLD_DIR,
                                 .gateway_id = 1,
                                 .segment_bytes = (uint64_t)gw->config.journal_segment_bytes};
    struct ship_options so = {.dir = WORLD_DIR, .gateway_id = 1};
    struct ship_store store = store_as_ship_store(&w->store);

    gw->journal = journal_open(env, gw->log, &jo, w->control.world->snap->spent_epoch + 1, e);
    if (gw->journal == NULL) {
        return false;
    }
    if (!recover_read(env, WORLD_DIR, journal_epoch(gw->journal), &w->recovered, e)) {
        if (e->code == ERR_CORRUPT) {
            sim_fail(w->sim, "the journal is corrupt: %s", e->text);
        }
        return false;
    }
    count_window(w);
    gw->ship = ship_new(env, gw->log, gw->journal, &so, &store);
    journal_keep_after(gw->journal, w->control.world->snap->spent_epoch,
                       w->control.world->snap->spent_seq);
    w->control.port = journal_port_new(gw->journal, env, NULL, NULL);
    return true;
}

/* Budgets may stand past their limit from the start (suspense); from here on they only fill up. */
static void note_seeds(struct world_sim *w)
{
    struct quota_scope_state s;

    for (int32_t i = 0; i < WORLD_TENANTS; i++) {
        (void)quota_state(w->gw->quota, i + 1, 0, &s);
        w->tenant_seed_nusd[i] = s.spent_nusd;
    }
    for (int32_t i = 0; i < WORLD_KEYS; i++) {
        (void)quota_state(w->gw->quota, 1 + i / 2, 100 + i, &s);
        w->key_seed_nusd[i] = s.spent_nusd;
    }
}

static void recovered_now(struct control *c)
{
    struct world_sim *w = CONTAINER_OF(c, struct world_sim, control);
    struct env_addr addr = sim_addr(0, SIM_PORT_GATEWAY);
    struct err e = {.code = ERR_NONE};
    struct env_sock *sock;

    recover_free(&w->recovered);
    w->recovering = false;
    if (w->gateway_host.dead) {
        return;
    }
    sock = env_listen(&w->gateway_host.env, &addr, false, &e);
    CHECK(sock != NULL);
    http_server_listen(w->gw->loop[0]->server, sock, NULL, HTTP_H1_H2);
    atomic_store(&w->gw->ready, true);
    w->up = true;
    note_seeds(w);
    sim_trace(w->sim, "gateway up, life %u", w->lives);
}

/* Everything but the last step, which comes when recovery is over. */
bool gateway_start(struct world_sim *w)
{
    struct env *env = &w->gateway_host.env;
    struct err e = {.code = ERR_NONE};
    struct gateway *gw = mem_new(sizeof(*gw));

    w->gw = gw;
    memset(&w->control, 0, sizeof(w->control));
    arena_init(&gw->arena, 4u << 20);
    config_fill(w, gw);
    gw->started_wall_us = env_wall_us(env);
    gw->index = whohas_new((size_t)gw->config.whohas_bytes);
    gw->quota = quota_new();
    gw->control = &w->control;
    if (!put_snapshot(w, &e) || !control_start(&w->control, gw, env, &e) || !open_files(w, &e) ||
        !control_seed(&w->control, WORLD_DIR, &e) ||
        (gw->loop[0] = loop_new(gw, 0, env, w->control.world, &e)) == NULL) {
        sim_trace(w->sim, "gateway does not start: %s", e.text);
        if (w->sim->faults.file_full + w->sim->faults.file_sync == 0 && !w->gateway_host.dead) {
            sim_fail(w->sim, "gateway does not start: %s", e.text);
        }
        if (!w->gateway_host.dead) {
            gateway_kill(w, false);
        }
        return false;
    }
    sim_trace(w->sim, "gateway starts, epoch %d: %zu orphans, %zu voids",
              journal_epoch(gw->journal), w->recovered.n_orphans, w->recovered.voids);
    w->lives++;
    w->recovering = true;
    control_recover(&w->control, &w->recovered, recovered_now);
    env_timer_arm(env, &w->journal_timer, env_now_us(env) + 1000);
    env_timer_arm(env, &w->ship_timer, env_now_us(env) + 2000);
    return true;
}

/* ---- ends ---- */

void gateway_kill(struct world_sim *w, bool power)
{
    sim_host_kill(&w->gateway_host, power);
}

static void free_all(struct world_sim *w)
{
    struct gateway *gw = w->gw;
    struct sim_host *h = &w->gateway_host;

    env_timer_disarm(&h->env, &w->journal_timer);
    env_timer_disarm(&h->env, &w->ship_timer);
    if (gw->loop[0] != NULL) {
        loop_free(gw->loop[0]);
        gw->loop[0] = NULL;
    }
    sim_host_run_tasks(h); /* requests that ended within loop_free: their memory rests a turn */
    if (w->control.env != NULL) {
        control_free(&w->control);
    }
    sim_host_run_tasks(h);
    recover_free(&w->recovered);
    ship_free(gw->ship);
    journal_close(gw->journal);
    quota_free(gw->quota);
    whohas_free(gw->index);
    arena_fini(&gw->arena);
    mem_free(gw);
    w->gw = NULL;
    if (h->n_timers + h->n_wakes + h->n_files + h->n_lookups + sim_net_count(h) > 0 ||
        !list_is_empty(&h->tasks)) {
        sim_fail(w->sim,
                 "a freed gateway leaves %u timers, %u wakes, %u files, %u look-ups, %u sockets",
                 h->n_timers, h->n_wakes, h->n_files, h->n_lookups, sim_net_count(h));
    }
}

void gateway_bury(struct world_sim *w)
{
    CHECK(w->gateway_host.dead && w->gw != NULL);
    w->up = false;
    w->died_us = w->sim->now_us;
    for (int i = 0; i < DYING_ROUNDS_MAX && w->recovering;
         i++) { /* its questions fail; then the run frees itself */
        sim_net_tell_lost(&w->gateway_host);
        sim_host_fire_timers(&w->gateway_host);
    }
    CHECK(!w->recovering);
    free_all(w);
    env_timer_arm(&w->workers[0].host.env, &w->restart_timer,
                  w->sim->now_us + sim_range(&w->rng, 1000, RESTART_MAX_US));
}

/* What control does when Postgres tells of a change. */
void gateway_reload(struct world_sim *w)
{
    struct control *c = &w->control;
    struct snapshot *s;
    struct world *old = c->world;

    if (w->gw == NULL || w->gateway_host.dead) {
        return;
    }
    s = gateway_snapshot(w);
    c->world = fleet_world(c->fleet, s);
    snapshot_unref(s);
    world_unref(old);
    loop_offer_world(w->gw->loop[0], c->world);
    sim_trace(w->sim, "reload: %u workers", c->world->n_workers);
}

void gateway_stop(struct world_sim *w)
{
    w->up = false;
    free_all(w);
}

bool gateway_is_idle(const struct world_sim *w)
{
    const struct loop *l = w->gw != NULL ? w->gw->loop[0] : NULL;

    return l != NULL && w->up && l->n_requests == 0 && ship_is_caught_up(w->gw->ship);
}
