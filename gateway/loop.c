/* loop.c - one event loop of the gateway: what it owns, how a new world and a drain reach it. */
#include "base/hash.h"
#include "gateway/gateway.h"
#include "gateway/request.h"

#define LOOP_REQUESTS_KEPT 256           /* at rest in the pool */
#define LOOP_EVENT_BYTES_MAX (16u << 20) /* an event of 1 MiB, as a tree */

static void loop_take_world(struct loop *l)
{
    struct world *w = atomic_exchange(&l->pending, NULL);

    if (w == NULL) {
        return;
    }
    if (l->world != NULL) {
        world_unref(l->world);
    }
    l->world = w;
    hash_wipe(l->k0, sizeof(l->k0));
}

/* Drained: no connection is left and every row is on the disk. Told once. */
void loop_request_gone(struct loop *l)
{
    if (!l->server_drained || l->n_requests > 0 || l->drained_told) {
        return;
    }
    l->drained_told = true;
    env_timer_disarm(l->env, &l->drain_timer);
    if (l->drained != NULL) {
        l->drained(l);
    }
}

static void loop_drained(void *ctx)
{
    struct loop *l = ctx;

    l->server_drained = true;
    loop_request_gone(l);
}

static void loop_drain_tick(struct env_timer *t)
{
    struct loop *l = CONTAINER_OF(t, struct loop, drain_timer);

    request_cut_all(l);
}

void loop_drain(struct loop *l)
{
    if (l->draining) {
        return;
    }
    l->draining = true;
    l->drain_timer.fire = loop_drain_tick;
    env_timer_arm(l->env, &l->drain_timer, env_now_us(l->env) + (uint64_t)l->gw->config.drain_us);
    http_server_drain(l->server, loop_drained, l);
}

static void loop_rung(void *ctx)
{
    struct loop *l = ctx;

    loop_take_world(l);
    if (atomic_load(&l->stop_asked)) {
        loop_drain(l);
    }
}

static void loop_journal_rung(void *ctx)
{
    struct loop *l = ctx;

    request_durable(l, journal_durable(l->port));
}

struct loop *loop_new(struct gateway *gw, unsigned index, struct env *env, struct world *world,
                      struct err *e)
{
    struct loop *l = mem_new(sizeof(*l));
    struct http_limits limits;
    struct http_app app;

    l->gw = gw;
    l->index = index;
    l->env = env;
    arena_init(&l->events, LOOP_EVENT_BYTES_MAX);
    list_init(&l->requests);
    list_init(&l->settling);
    pool_init(&l->request_pool, sizeof(struct request), LOOP_REQUESTS_KEPT);
    gateway_http_limits(&gw->config, &limits);
    request_app(l, &app);
    l->server = http_server_new(env, gw->log, &app, &limits);
    l->client = http_client_new(env);
    l->wake = env->ops->wake_new(env, loop_rung, l);
    l->port = journal_port_new(gw->journal, env, loop_journal_rung, l);
    if (l->server == NULL || l->client == NULL || l->wake == NULL || l->port == NULL) {
        err_set(e, ERR_NO_MEMORY, "loop %u: no memory or descriptors", index);
        loop_free(l);
        return NULL;
    }
    if (world != NULL) {
        l->world = world_ref(world);
    }
    return l;
}

void loop_free(struct loop *l)
{
    loop_take_world(l);
    if (l->server != NULL) {
        http_server_free(l->server);
    }
    request_drop_all(l);
    if (l->client != NULL) {
        http_client_free(l->client);
    }
    if (l->world != NULL) {
        world_unref(l->world);
    }
    env_timer_disarm(l->env, &l->drain_timer);
    if (l->wake != NULL) {
        l->env->ops->wake_free(l->env, l->wake);
    }
    if (l->tls != NULL) {
        tls_context_free(l->tls);
    }
    arena_fini(&l->events);
    arena_cache_fini(&l->blocks);
    pool_fini(&l->request_pool);
    mem_free(l);
}

void loop_offer_world(struct loop *l, struct world *w)
{
    struct world *old = atomic_exchange(&l->pending, world_ref(w));

    if (old != NULL) {
        world_unref(old);
    }
    env_wake_signal(l->env, l->wake);
}

struct http_origin *loop_origin(struct loop *l, const struct worker *w)
{
    const struct gateway_config *c = &l->gw->config;
    struct http_origin_options o;

    if (l->origin[w->slot] != NULL && l->origin_worker[w->slot] == w->worker_id) {
        return l->origin[w->slot];
    }
    if (l->origin[w->slot] != NULL) {
        http_origin_close(
            l->origin[w->slot]); /* the slot has a new tenant; the old one is long gone */
    }
    o = (struct http_origin_options){
        .addr = w->addr,
        .host = str_c(w->host),
        .connections_max = (uint32_t)c->connections_per_worker_max,
        .idle_max = (uint32_t)c->connections_per_worker_max, /* a burst must not reconnect */
        .connect_us = (uint64_t)c->connect_us,
        .head_us = (uint64_t)c->ttft_us,
        .body_idle_us = (uint64_t)c->stall_us,
        .keep_us = 20 * 1000000ULL,
    };
    l->origin[w->slot] = http_origin_new(l->client, &o);
    l->origin_worker[w->slot] = w->worker_id;
    return l->origin[w->slot];
}
