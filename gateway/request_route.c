/* request_route.c - an admitted request finds a worker: candidates, algorithm R, DISPATCH, retry.
 */
#include "gateway/request.h"

#define ROUTE_UNTRUSTED_PERMILLE                                                                   \
    500                            /* an index wrong about half of the prompts' tokens is no help */
#define RETRY_BACKOFF_MAX_US 50000 /* full jitter before another worker is tried */
#define ENGINE_BODY_EXTRA 256      /* what an engine's body says beside the client's, about */
#define WHOLE_OUTPUT_DEFAULT 4096  /* a whole answer of a foreign engine without max_tokens */

static bool worker_lists(const struct world_worker *w, int16_t model_id)
{
    for (uint32_t i = 0; i < w->n_models; i++) {
        if (w->models[i] == model_id) {
            return true;
        }
    }
    return false;
}

/* Workers that may take it, the unprobed ones only when no probed one is up. */
static unsigned candidates(const struct request *r, const struct worker *list[ROUTE_WORKERS_MAX])
{
    unsigned n = 0;

    for (int want = WORKER_UP; want >= WORKER_UNKNOWN && n == 0; want--) {
        for (unsigned i = 0; i < r->world->n_workers; i++) {
            const struct world_worker *w = &r->world->worker[i];

            if (!w->draining && (r->tried & (1ULL << w->w->slot)) == 0 &&
                atomic_load(&w->w->health) == want && worker_lists(w, r->model->model_id)) {
                list[n++] = w->w;
            }
        }
    }
    return n;
}

static double milli(uint32_t v)
{
    return (double)v / 1000.0;
}

static double fleet_rate(const struct worker *const *list, unsigned n)
{
    double v[ROUTE_WORKERS_MAX];
    unsigned k = 0;

    for (unsigned i = 0; i < n; i++) {
        double rate = milli(atomic_load_explicit(&list[i]->rate_milli, memory_order_relaxed));

        if (rate > 0) {
            unsigned j = k++;

            while (j > 0 && v[j - 1] > rate) {
                v[j] = v[j - 1];
                j--;
            }
            v[j] = rate;
        }
    }
    return k == 0 ? 0 : v[k / 2];
}

static void candidate_fill(const struct request *r, const struct worker *w, uint64_t held_bytes,
                           double fleet, struct route_candidate *c)
{
    uint32_t bpt = atomic_load_explicit(&w->bytes_per_token_milli, memory_order_relaxed);
    int kv = atomic_load_explicit(&w->kv_permille, memory_order_relaxed);

    (void)r;
    *c = (struct route_candidate){
        .slot = w->slot,
        .worker_id = w->worker_id,
        .match_tokens = (double)held_bytes / (bpt > 0 ? milli(bpt) : ROUTE_BYTES_PER_TOKEN_DEFAULT),
        .queued_tokens = (double)atomic_load_explicit(&w->queued_tokens, memory_order_relaxed),
        .in_flight = (double)atomic_load_explicit(&w->in_flight, memory_order_relaxed),
        .context_tokens = (double)atomic_load_explicit(&w->context_tokens, memory_order_relaxed),
        .rate = route_rate_used(milli(atomic_load_explicit(&w->rate_milli, memory_order_relaxed)),
                                fleet),
        .kv_usage = kv < 0 ? -1 : (double)kv / 1000.0,
        .waiting = (double)atomic_load_explicit(&w->waiting, memory_order_relaxed),
        .index_trusted =
            atomic_load_explicit(&w->off_permille, memory_order_relaxed) < ROUTE_UNTRUSTED_PERMILLE,
    };
}

static bool journal_dispatch(struct request *r, const struct worker *w)
{
    struct record rec = {.type = RECORD_DISPATCH};

    if (!request_voids_put(r)) { /* those of earlier attempts come before this one */
        return false;
    }
    rec.dispatch.request = r->request_id;
    rec.dispatch.event = r->attempt.event;
    rec.dispatch.at_us = env_wall_us(r->loop->env);
    rec.dispatch.attempt = (int16_t)r->attempts;
    rec.dispatch.route_reason = (int16_t)r->attempt.reason;
    rec.dispatch.worker_id = w->worker_id;
    rec.dispatch.worker_epoch = atomic_load_explicit(&w->epoch, memory_order_relaxed);
    rec.dispatch.cached_predicted = (int32_t)r->attempt.predicted_cached;
    rec.dispatch.worker_url = str_c(w->url);
    return journal_put(r->loop->port, &rec) != 0;
}

static void attempt_event_id(struct request *r)
{
    uint8_t random[16];

    if (r->attempts == 1) {
        r->attempt.event = r->request_id;
        return;
    }
    env_random(r->loop->env, random, sizeof(random));
    r->attempt.event = uuid_v7(env_wall_us(r->loop->env) / 1000, random);
}

/* Nobody (else) can take it: the client gets what the last attempt said, or a 503. */
static void no_worker(struct request *r)
{
    struct api_error e = r->error;

    atomic_fetch_add_explicit(&r->loop->metrics.no_worker, 1, memory_order_relaxed);
    if (e.status == 0) {
        api_error_unavailable(&e, 1000, "No worker for this model is available now.");
    }
    request_fail(r, &e);
}

void request_route(struct request *r)
{
    const struct worker *list[ROUTE_WORKERS_MAX];
    struct route_candidate cand[ROUTE_WORKERS_MAX];
    uint64_t held[WHOHAS_WORKERS_MAX] = {0}, mask = 0;
    struct route_choice choice;
    struct worker *w;
    unsigned n = candidates(r, list);
    double fleet, bpt;

    if (n == 0) {
        no_worker(r);
        return;
    }
    for (unsigned i = 0; i < n; i++) {
        mask |= 1ULL << list[i]->slot;
    }
    whohas_match(r->loop->gw->index, &r->prefix, mask, env_now_us(r->loop->env), held);
    fleet = fleet_rate(list, n);
    for (unsigned i = 0; i < n; i++) {
        candidate_fill(r, list[i], held[list[i]->slot], fleet, &cand[i]);
    }
    bpt = milli(atomic_load_explicit(&list[0]->bytes_per_token_milli, memory_order_relaxed));
    r->prompt_tokens = (double)r->prefix.bytes / (bpt > 0 ? bpt : ROUTE_BYTES_PER_TOKEN_DEFAULT);
    route_pick(cand, n, r->prompt_tokens, r->root, &choice);
    w = (struct worker *)list[choice.index];
    r->chosen = w;
    r->attempt.reason = r->attempts > 0 ? ROUTE_RETRY : choice.reason;
    r->attempt.predicted_cached = (int64_t)choice.predicted_cached;
    r->predicted_ttft_us = (uint64_t)(choice.predicted_ttft_s * 1e6);
    if (!r->api.stream && w->engine != ENGINE_TOLLGATE && r->out_limit > r->out_held &&
        !r->extend_refused) {
        int64_t want = r->out_limit == INT64_MAX ? WHOLE_OUTPUT_DEFAULT : r->out_limit;

        if (want > r->out_held) {
            request_extend(r, want - r->out_held,
                           true); /* a whole answer cannot be extended later */
            return;
        }
    }
    request_dispatch(r);
}

/* What the engine is told to stop at; -1: its own limit. */
static int64_t engine_max_tokens(const struct request *r, const struct worker *w)
{
    if (!r->api.stream && w->engine != ENGINE_TOLLGATE) {
        return r->out_held;
    }
    return r->out_limit == INT64_MAX ? -1 : r->out_limit;
}

void request_dispatch(struct request *r)
{
    struct loop *l = r->loop;
    struct worker *w = r->chosen;
    uint64_t now = env_now_us(l->env);
    double uncached = r->prompt_tokens - (double)r->attempt.predicted_cached;
    struct proxy_request req;
    struct api_error e = {0};

    CHECK(!r->responded && r->api.root != NULL);
    r->attempts++;
    r->tried |= 1ULL << w->slot;
    r->error.status = 0; /* what the last attempt said is told only when nobody else is tried */
    attempt_event_id(r);
    if (!journal_dispatch(r, w)) {
        r->attempts--;
        api_error_unavailable(&e, 1000, "The gateway is at its limit of waiting journal records.");
        request_fail(r, &e);
        return;
    }
    buf_reset(&r->out);
    (void)buf_reserve(&r->out, r->body.len + ENGINE_BODY_EXTRA); /* grown once; failure is sticky */
    openai_engine_body(&r->api, w->engine, r->model->name, engine_max_tokens(r, w), &r->out);
    worker_charge(w, &r->attempt.charge, uncached < 1 ? 1 : (int64_t)uncached,
                  (int64_t)r->prompt_tokens + 1, now);
    whohas_dispatched(l->gw->index, &r->prefix, w->slot, now);
    req = (struct proxy_request){
        .worker = w,
        .endpoint = r->endpoint,
        .stream = r->api.stream || w->engine == ENGINE_TOLLGATE,
        .body = &r->out,
        .event = r->attempt.event,
        .number = r->attempts,
        .k0 = r->k0,
        .context = r->model->context,
        .answer_bytes_max = (size_t)l->gw->config.answer_bytes_max,
    };
    r->dispatched_us = now;
    r->last_progress_us = now;
    r->last_progress_tokens = 0;
    request_set_state(r, REQ_DISPATCHED);
    if (!env_timer_is_armed(&r->timer)) {
        r->timer.fire = request_waits;
        env_timer_arm(l->env, &r->timer, now + (uint64_t)l->gw->config.head_hold_us);
    }
    proxy_start(&r->attempt, l, &req, &request_proxy_events, r);
}

static void retry_now(struct env_timer *t)
{
    request_route(CONTAINER_OF(t, struct request, linger));
}

bool request_may_retry(const struct request *r)
{
    return r->attempts <= (unsigned)r->loop->gw->config.retries && r->stream != NULL &&
           !r->responded && !r->loop->draining;
}

/* The state is QUEUED again; another worker is tried after a little jitter. */
void request_retry(struct request *r)
{
    atomic_fetch_add_explicit(&r->loop->metrics.retries, 1, memory_order_relaxed);
    r->said = (struct usage_count){0};
    r->content_events = 0;
    r->answer_bytes = 0;
    r->linger.fire = retry_now;
    env_timer_arm(r->loop->env, &r->linger,
                  env_now_us(r->loop->env) + env_random_u64(r->loop->env) % RETRY_BACKOFF_MAX_US);
}
