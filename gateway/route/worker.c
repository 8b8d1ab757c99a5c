/* worker.c - the fleet's slots, worlds, and what a request owes a worker. */
#include "gateway/route/fleet.h"

#include "base/net/os.h"

#include <stdio.h>
#include <stdlib.h>

#define RESOLVE_RETRY_US 2000000
#define FLEET_HEAD_US 5000000  /* heartbeats of the events come every second */
#define LEARN_BYTES_MIN 1024   /* a short prompt's tokens are mostly its template's */
#define RATE_EVERY 8           /* samples between two medians of a full window: each sorts it */
#define LEARN_SLACK_TOKENS 128 /* a block of 32, a chunk of about 64, a template */
#define LEARN_WEIGHT 8         /* a new sample moves the learned bytes per token by an eighth */

struct world *world_ref(struct world *w)
{
    atomic_fetch_add(&w->refs, 1);
    return w;
}

void world_unref(struct world *w)
{
    if (atomic_fetch_sub(&w->refs, 1) != 1) {
        return;
    }
    for (unsigned i = 0; i < w->n_workers; i++) {
        struct fleet_worker *fw = CONTAINER_OF(w->worker[i].w, struct fleet_worker, w);

        atomic_fetch_sub(&fw->refs, 1);
    }
    snapshot_unref(w->snap);
    mem_free(w);
}

bool world_serves(const struct world *w, int16_t model_id)
{
    for (unsigned i = 0; i < w->n_workers; i++) {
        for (uint32_t k = 0; k < w->worker[i].n_models; k++) {
            if (w->worker[i].models[k] == model_id) {
                return true;
            }
        }
    }
    return false;
}

struct fleet *fleet_new(struct env *env, struct log *log, struct http_client *client,
                        struct whohas *index, struct str worker_key)
{
    struct fleet *f = mem_new(sizeof(*f));

    f->env = env;
    f->log = log;
    f->client = client;
    f->index = index;
    f->worker_key = worker_key;
    return f;
}

static void slot_stop(struct fleet_worker *fw)
{
    fleet_probe_stop(fw);
    fleet_events_stop(fw);
    if (fw->resolving) {
        fw->fleet->env->ops->resolve_drop(fw->fleet->env, &fw->dns);
        fw->resolving = false;
    }
    if (fw->origin != NULL) {
        http_origin_close(fw->origin);
        fw->origin = NULL;
    }
    atomic_store(&fw->w.health, WORKER_DOWN);
    whohas_reset_worker(fw->fleet->index, fw->w.slot, false);
}

void fleet_free(struct fleet *f)
{
    for (unsigned i = 0; i < ROUTE_WORKERS_MAX; i++) {
        struct fleet_worker *fw = f->slot[i];

        if (fw == NULL) {
            continue;
        }
        if (fw->used) {
            slot_stop(fw);
        }
        buf_fini(&fw->gauge_body);
        buf_fini(&fw->line);
        pthread_mutex_destroy(&fw->rate_lock);
        mem_free(fw);
    }
    mem_free(f);
}

static void begin(struct fleet_worker *fw)
{
    struct http_origin_options o = {
        .addr = fw->w.addr,
        .host = str_c(fw->w.host),
        .connections_max = 8, /* a probe, a gauge, the events, and their successors */
        .idle_max = 4,
        .connect_us = 2000000,
        .head_us = FLEET_HEAD_US,
        .body_idle_us = FLEET_HEAD_US,
        .keep_us = 20000000,
    };

    fw->origin = http_origin_new(fw->fleet->client, &o);
    fw->resolved = true;
    fleet_probe_start(fw);
    if (fw->w.engine == ENGINE_TOLLGATE) {
        fleet_events_start(fw);
    }
}

/* "http://host[:port]" split into the Host field, name and port. */
static bool url_split(struct str url, struct str *host, struct str *name, uint16_t *port)
{
    struct str p = {0};
    uint64_t v = 80;

    if (!str_starts(url, STR("http://"))) {
        return false;
    }
    *host = str_of(url.p + 7, url.n - 7);
    if (host->n == 0 || host->n >= 96 || memchr(host->p, '/', host->n) != NULL ||
        memchr(host->p, '@', host->n) != NULL) {
        return false;
    }
    *name = *host;
    for (size_t i = host->n; i > 0; i--) {
        if (host->p[i - 1] == ']') {
            break;
        }
        if (host->p[i - 1] == ':') {
            *name = str_of(host->p, i - 1);
            p = str_of(host->p + i, host->n - i);
            break;
        }
    }
    if (p.p != NULL && (!str_u64(p, &v) || v == 0 || v > 65535)) {
        return false;
    }
    *port = (uint16_t)v;
    return name->n > 0;
}

static void resolve(struct fleet_worker *fw);

static void resolve_again(struct env_timer *t)
{
    resolve(CONTAINER_OF(t, struct fleet_worker, probe_timer));
}

/* Loops read the address only after they saw that the worker is not DOWN. */
static void resolved(struct env_dns *d, const struct env_addr *addr, struct err *e)
{
    struct fleet_worker *fw = CONTAINER_OF(d, struct fleet_worker, dns);
    struct env *env = fw->fleet->env;

    fw->resolving = false;
    if (addr == NULL) {
        log_event(fw->fleet->log, LOG_WARN, env_wall_us(env), "worker_unresolved",
                  "worker %d %s: %s", fw->w.worker_id, fw->w.url, e->text);
        fw->probe_timer.fire = resolve_again;
        env_timer_arm(env, &fw->probe_timer, env_now_us(env) + RESOLVE_RETRY_US);
        return;
    }
    fw->w.addr = *addr;
    atomic_store(&fw->w.health, WORKER_UNKNOWN);
    begin(fw);
}

static void resolve(struct fleet_worker *fw)
{
    struct str host, name;
    uint16_t port = 0;

    if (!url_split(str_c(fw->w.url), &host, &name, &port)) {
        log_event(fw->fleet->log, LOG_ERROR, env_wall_us(fw->fleet->env), "worker_bad_url",
                  "worker %d: %s is not http://host:port", fw->w.worker_id, fw->w.url);
        return;
    }
    str_copy(host, fw->w.host, sizeof(fw->w.host));
    fw->resolving = true;
    fw->dns.done = resolved;
    fw->fleet->env->ops->resolve(fw->fleet->env, name, port, &fw->dns);
}

static void slot_open(struct fleet *f, struct fleet_worker *fw, unsigned slot,
                      const struct snap_worker *s)
{
    memset(&fw->w, 0, sizeof(fw->w));
    memset(&fw->rate, 0, sizeof(fw->rate));
    fw->fleet = f;
    fw->used = true;
    fw->resolved = fw->synced = false;
    fw->failures = 0;
    fw->seq = 0;
    fw->epoch[0] = '\0';
    fw->lost_us = 0;
    fw->w.slot = slot;
    fw->w.worker_id = s->worker_id;
    fw->w.engine = (enum engine_kind)s->engine;
    str_copy(s->url, fw->w.url, sizeof(fw->w.url));
    atomic_store(&fw->w.kv_permille, -1);
    atomic_store(&fw->w.waiting, -1);
    atomic_store(&fw->w.health, WORKER_DOWN); /* until its address is known */
    whohas_reset_worker(f->index, slot, false);
    resolve(fw);
}

static struct fleet_worker *slot_of(struct fleet *f, const struct snap_worker *s)
{
    for (unsigned i = 0; i < ROUTE_WORKERS_MAX; i++) {
        struct fleet_worker *fw = f->slot[i];

        if (fw != NULL && fw->used && fw->w.worker_id == s->worker_id) {
            return fw;
        }
    }
    for (unsigned i = 0; i < ROUTE_WORKERS_MAX; i++) {
        struct fleet_worker *fw = f->slot[i];

        if (fw == NULL) {
            fw = f->slot[i] = mem_new(sizeof(*fw));
            pthread_mutex_init(&fw->rate_lock, NULL);
            buf_init(&fw->gauge_body, 1u << 20);
            buf_init(&fw->line, FLEET_LINE_BYTES_MAX);
        } else if (fw->used || atomic_load(&fw->refs) > 0) {
            continue;
        }
        slot_open(f, fw, i, s);
        return fw;
    }
    return NULL;
}

struct world *fleet_world(struct fleet *f, struct snapshot *s)
{
    struct world *w = mem_new(sizeof(*w));

    atomic_init(&w->refs, 1);
    w->snap = snapshot_ref(s);
    for (unsigned i = 0; i < ROUTE_WORKERS_MAX; i++) {
        if (f->slot[i] != NULL) {
            f->slot[i]->listed = false;
        }
    }
    for (uint32_t i = 0; i < s->n_workers; i++) {
        const struct snap_worker *sw = &s->workers[i];
        struct fleet_worker *fw = sw->removed ? NULL : slot_of(f, sw);

        if (sw->removed) {
            continue;
        }
        if (fw == NULL) {
            log_event(f->log, LOG_ERROR, env_wall_us(f->env), "workers_too_many",
                      "worker %d is ignored: at most %d", sw->worker_id, ROUTE_WORKERS_MAX);
            continue;
        }
        fw->listed = true;
        atomic_fetch_add(&fw->refs, 1);
        w->worker[w->n_workers++] =
            (struct world_worker){&fw->w, sw->draining, sw->models, sw->n_models};
    }
    for (unsigned i = 0; i < ROUTE_WORKERS_MAX; i++) {
        if (f->slot[i] != NULL && f->slot[i]->used && !f->slot[i]->listed) {
            slot_stop(f->slot[i]);
            f->slot[i]->used = false;
        }
    }
    return w;
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

double fleet_rate_median(const struct fleet *f)
{
    uint32_t v[ROUTE_WORKERS_MAX];
    unsigned n = 0;

    for (unsigned i = 0; i < ROUTE_WORKERS_MAX; i++) {
        uint32_t r =
            f->slot[i] != NULL && f->slot[i]->used ? atomic_load(&f->slot[i]->w.rate_milli) : 0;

        if (r > 0) {
            v[n++] = r;
        }
    }
    qsort(v, n, sizeof(v[0]), compare_u32);
    return n == 0 ? 0 : (double)v[n / 2] / 1000.0;
}

void worker_charge(struct worker *w, struct worker_charge *c, int64_t uncached, int64_t prompt,
                   uint64_t now_us)
{
    CHECK(c->w == NULL);
    *c = (struct worker_charge){.w = w, .queued = uncached, .context = prompt, .at_us = now_us};
    atomic_fetch_add(&w->in_flight, 1);
    atomic_fetch_add(&w->context_tokens, prompt);
    c->queue_ahead = atomic_fetch_add(&w->queued_tokens, uncached) + uncached;
}

void worker_first_byte(struct worker_charge *c, uint64_t now_us)
{
    struct fleet_worker *fw;
    double median = -1;

    if (c->w == NULL || c->queued == 0) {
        return;
    }
    atomic_fetch_sub(&c->w->queued_tokens, c->queued);
    c->queued = 0;
    fw = CONTAINER_OF(c->w, struct fleet_worker, w);
    pthread_mutex_lock(&fw->rate_lock);
    if (now_us > c->at_us) {
        route_rate_add(&fw->rate, (double)c->queue_ahead, (double)(now_us - c->at_us) / 1e6);
    }
    if (fw->rate.count < ROUTE_RATE_SAMPLES || fw->rate.count % RATE_EVERY == 0) {
        median = route_rate_median(&fw->rate);
    }
    pthread_mutex_unlock(&fw->rate_lock);
    if (median >= 0) {
        atomic_store_explicit(&c->w->rate_milli,
                              median > 4e6 ? 4000000000U : (uint32_t)(median * 1000.0),
                              memory_order_relaxed);
    }
}

void worker_release(struct worker_charge *c)
{
    if (c->w == NULL) {
        return;
    }
    if (c->queued > 0) {
        atomic_fetch_sub(&c->w->queued_tokens, c->queued);
    }
    atomic_fetch_sub(&c->w->context_tokens, c->context);
    atomic_fetch_sub(&c->w->in_flight, 1);
    *c = (struct worker_charge){0};
}

/* How wrong the index is about this worker: a moving share of the prompt. What a block, a chunk and
 * the template cost in precision is no error. */
static void learn_error(struct worker *w, int64_t off, int64_t prompt_tokens)
{
    int old = atomic_load_explicit(&w->off_permille, memory_order_relaxed);
    int64_t sample = off <= LEARN_SLACK_TOKENS ? 0
                     : off >= prompt_tokens    ? 1000
                                               : off * 1000 / prompt_tokens;

    atomic_store_explicit(&w->off_permille, old + ((int)sample - old) / LEARN_WEIGHT,
                          memory_order_relaxed);
}

void worker_learn(struct worker *w, uint64_t prompt_bytes, int64_t prompt_tokens, int64_t cached,
                  int64_t predicted)
{
    uint32_t old = atomic_load_explicit(&w->bytes_per_token_milli, memory_order_relaxed);
    double sample;
    int64_t off = cached > predicted ? cached - predicted : predicted - cached;

    if (prompt_tokens <= 0) {
        return;
    }
    sample = (double)prompt_bytes * 1000.0 / (double)prompt_tokens;
    if (prompt_bytes >= LEARN_BYTES_MIN && sample > 0 && sample < 1e6) {
        double next = old == 0 ? sample : (double)old + (sample - (double)old) / LEARN_WEIGHT;

        atomic_store_explicit(&w->bytes_per_token_milli, (uint32_t)next, memory_order_relaxed);
    }
    learn_error(w, off, prompt_tokens);
    atomic_fetch_add_explicit(&w->prompt_tokens, (uint64_t)prompt_tokens, memory_order_relaxed);
    atomic_fetch_add_explicit(&w->cached_actual, (uint64_t)cached, memory_order_relaxed);
    atomic_fetch_add_explicit(&w->cached_predicted, (uint64_t)(predicted > 0 ? predicted : 0),
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&w->prediction_error, (uint64_t)off, memory_order_relaxed);
}
