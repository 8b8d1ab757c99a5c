/* control_recover.c - the last life's orphans: attempts that were dispatched and never closed.
 *
 * Each worker is asked for its own count by event id (which also stops it); without an answer the
 * row is what PROGRESS said, state unknown, and its hold stays counted (suspense). Runs before the
 * public listeners open, so that budgets are right from the first request. */
#include "gateway/control.h"
#include "gateway/receipt.h"

#define RECOVER_PARALLEL 32
#define RECOVER_NAME_US 2000000 /* a worker's name is waited for this long */
#define RECOVER_RESOLVE_US 10000

struct ask {
    struct recovery *run;
    const struct orphan *orphan;
    struct http_origin *origin;
    struct receipt receipt;
    struct env_timer timer;
    uint64_t until_us; /* its worker's name is waited for no longer */
};

struct recovery {
    struct control *c;
    struct recovered *rec;
    void (*done)(struct control *);
    size_t next, running, measured, unknown;
    uint64_t ticket; /* of the last CLOSE */
    bool incomplete; /* an orphan waits for the next start, and so does its ring */
    struct ask ask[RECOVER_PARALLEL];
    struct env_task pump;
};

static int32_t clamp32(int64_t v, int64_t max)
{
    return (int32_t)(v < 0 ? 0 : v > max ? max : v);
}

static void write_close(struct recovery *run, const struct orphan *o, int64_t prompt,
                        int64_t cached, int64_t output, bool known)
{
    static const struct price unpriced = {0};
    struct control *c = run->c;
    const struct price *p = snapshot_price_id(c->world->snap, o->open.r.open.price_id);
    struct record rec = {.type = RECORD_CLOSE};
    int64_t in_max = o->open.r.open.prompt_bound;
    enum usage_state state = known ? USAGE_MEASURED : USAGE_UNKNOWN;

    if (o->open.r.type == 0) {
        in_max = INT32_MAX;
    }
    if (p == NULL) {
        p = &unpriced;
    }
    if (output == 0) {
        prompt = cached = 0; /* nothing was produced: it costs nothing */
    }
    recover_entry(o, clamp32(prompt, in_max), clamp32(cached, in_max), clamp32(output, INT32_MAX),
                  state, p, &rec.close);
    run->ticket = journal_put(c->port, &rec);
    if (run->ticket == 0) {
        run->incomplete = true;
        log_event(c->gw->log, LOG_ERROR, env_wall_us(c->env), "recover_ring_full",
                  "an orphan's row waits for the next start");
        return;
    }
    /* What it cost is spent; what nobody can say stays held as if it were. */
    if (known || o->open.r.type == 0) {
        quota_seed_row(c->gw->quota, &rec.close);
    } else {
        int64_t cost = money_nusd_ceil(money_of(rec.close.cost_pusd)),
                hold = o->open.r.open.hold_nusd;

        quota_seed_charge(c->gw->quota, rec.close.tenant_id, rec.close.key_id,
                          rec.close.occurred_us, cost > hold ? cost : hold);
    }
    run->measured += known;
    run->unknown += !known;
}

static void pump(struct env_task *t);

static void ask_end(struct ask *a, const struct receipt_count *count)
{
    struct recovery *run = a->run;
    const struct orphan *o = a->orphan;

    env_timer_disarm(run->c->env, &a->timer);
    a->orphan = NULL;
    run->running--;
    if (count != NULL) {
        write_close(run, o, count->prompt, count->cached, count->completion, true);
    } else {
        write_close(run, o, o->prompt < 0 ? 0 : o->prompt, o->cached < 0 ? 0 : o->cached,
                    o->output < 0 ? 0 : o->output, false);
    }
    env_defer(run->c->env, &run->pump);
}

static void on_receipt(struct receipt *r, const struct receipt_count *count)
{
    ask_end(CONTAINER_OF(r, struct ask, receipt), count);
}

static const struct world_worker *worker_of(const struct world *w, int32_t worker_id)
{
    for (unsigned i = 0; i < w->n_workers; i++) {
        if (w->worker[i].w->worker_id == worker_id) {
            return &w->worker[i];
        }
    }
    return NULL;
}

static void ask_send(struct ask *a, const struct worker *w)
{
    struct control *c = a->run->c;
    struct http_origin_options o = {
        .addr = w->addr, .host = str_c(w->host), .connections_max = 1, .connect_us = RECEIPT_US};

    a->origin = http_origin_new(c->client, &o);
    a->receipt.done = on_receipt;
    receipt_ask(&a->receipt, c->env, a->origin, c->gw->secrets.worker_key,
                a->orphan->dispatch.r.dispatch.event);
}

/* Names of workers may still be on their way from the resolver. */
static void ask_when_resolved(struct env_timer *t)
{
    struct ask *a = CONTAINER_OF(t, struct ask, timer);
    struct env *env = a->run->c->env;
    const struct world_worker *ww =
        worker_of(a->run->c->world, a->orphan->dispatch.r.dispatch.worker_id);

    if (ww == NULL || ww->w->engine != ENGINE_TOLLGATE ||
        (ww->w->addr.len == 0 && env_now_us(env) >= a->until_us)) {
        ask_end(a, NULL);
    } else if (ww->w->addr.len == 0) {
        env_timer_arm(env, t, env_now_us(env) + RECOVER_RESOLVE_US);
    } else {
        ask_send(a, ww->w);
    }
}

static void ask_start(struct ask *a, struct recovery *run, const struct orphan *o)
{
    a->run = run;
    a->orphan = o;
    run->running++;
    a->until_us = env_now_us(run->c->env) + RECOVER_NAME_US;
    a->timer.fire = ask_when_resolved;
    ask_when_resolved(&a->timer);
}

static void recovery_end(struct recovery *run)
{
    struct control *c = run->c;
    void (*done)(struct control *) = run->done;

    for (unsigned i = 0; i < RECOVER_PARALLEL; i++) {
        if (run->ask[i].origin != NULL) {
            http_origin_close(run->ask[i].origin);
        }
    }
    if (run->rec->n_orphans + run->rec->voids > 0) {
        log_event(
            c->gw->log, LOG_INFO, env_wall_us(c->env), "recovered",
            "%zu attempts were open: %zu measured by their worker, %zu unknown; %zu requests void",
            run->rec->n_orphans, run->measured, run->unknown, run->rec->voids);
    }
    if (!run->incomplete) {
        c->forget_rings = true;
        c->forget_ticket = run->ticket;
    }
    mem_free(run);
    done(c);
}

static void pump(struct env_task *t)
{
    struct recovery *run = CONTAINER_OF(t, struct recovery, pump);

    for (unsigned i = 0; i < RECOVER_PARALLEL && run->next < run->rec->n_orphans; i++) {
        struct ask *a = &run->ask[i];

        if (a->orphan != NULL) {
            continue;
        }
        if (a->origin != NULL) {
            http_origin_close(a->origin);
            a->origin = NULL;
        }
        ask_start(a, run, &run->rec->orphans[run->next++]);
    }
    if (run->running == 0 && run->next >= run->rec->n_orphans && !run->pump.queued) {
        recovery_end(run);
    }
}

void control_recover(struct control *c, struct recovered *rec, void (*done)(struct control *))
{
    struct recovery *run = mem_new(sizeof(*run));

    run->c = c;
    run->rec = rec;
    run->done = done;
    run->pump.run = pump;
    env_defer(c->env, &run->pump);
}
