/* server.c - listeners, the accept loop, draining and the counts of one HTTP server. */
#include "base/net/conn.h"

#define SERVER_STREAMS_KEPT 512      /* at rest in the pool */
#define SERVER_ACCEPTS_PER_TURN 32   /* then the open connections have their turn */
#define SERVER_ACCEPT_RETRY_US 50000 /* out of descriptors: look again */
#define SERVER_GOAWAY_GAP_US 1000000 /* between the two GOAWAYs: a round trip and more */
#define SERVER_SCRATCH_PLAIN ((size_t)64 << 10)
#define SERVER_SCRATCH_WIRE ((size_t)1 << 20)

static void listener_watch(struct listener *l);

/* ---- life ---- */

static void server_resume_accepting(struct http_server *s)
{
    LIST_EACH(n, &s->listeners)
    {
        struct listener *l = CONTAINER_OF(n, struct listener, node);

        if (!l->watching && l->sock != NULL) {
            listener_watch(l);
        }
    }
}

static void server_task(struct env_task *t)
{
    struct http_server *s = CONTAINER_OF(t, struct http_server, task);

    if (s->draining && list_is_empty(&s->conns) && s->drained != NULL) {
        void (*drained)(void *ctx) = s->drained;

        s->drained = NULL;
        drained(s->drained_ctx); /* may free the server */
        return;
    }
    if (s->stats.connections < s->limits.connections_max) {
        server_resume_accepting(s);
    }
}

static void server_accept_again(struct env_timer *t)
{
    server_resume_accepting(CONTAINER_OF(t, struct http_server, accept_timer));
}

static void server_last_goaway(struct env_timer *t)
{
    struct http_server *s = CONTAINER_OF(t, struct http_server, drain_timer);

    LIST_EACH(n, &s->conns)
    {
        struct conn *c = CONTAINER_OF(n, struct conn, node);

        if (c->state == CONN_OPEN) {
            c->protocol->drain(c, true);
            conn_mark(c);
        }
    }
}

struct http_server *http_server_new(struct env *env, struct log *log, const struct http_app *app,
                                    const struct http_limits *limits)
{
    struct http_server *s = mem_new(sizeof(*s));

    CHECK(limits->streams_max > 0 && limits->request_window > 0 && limits->connections_max > 0);
    s->env = env;
    s->log = log;
    s->app = *app;
    s->limits = *limits;
    s->h2 = h2_shared_new();
    list_init(&s->listeners);
    list_init(&s->conns);
    pool_init(&s->streams, sizeof(struct http_stream), SERVER_STREAMS_KEPT);
    buf_init(&s->plain, SERVER_SCRATCH_PLAIN);
    buf_init(&s->stage, CONN_STAGE_BYTES);
    buf_init(&s->wire, SERVER_SCRATCH_WIRE);
    s->accept_timer.fire = server_accept_again;
    s->drain_timer.fire = server_last_goaway;
    s->task.run = server_task;
    return s;
}

static void listener_close(struct listener *l)
{
    if (l->sock != NULL) {
        env_close(l->server->env, l->sock);
        l->sock = NULL;
        l->watching = false;
    }
}

void http_server_free(struct http_server *s)
{
    struct list *n;

    if (s == NULL) {
        return;
    }
    while ((n = list_pop_front(&s->listeners)) != NULL) {
        struct listener *l = CONTAINER_OF(n, struct listener, node);

        listener_close(l);
        mem_free(l);
    }
    while (!list_is_empty(&s->conns)) {
        conn_free(CONTAINER_OF(s->conns.next, struct conn, node), HTTP_CLOSE_SHUTDOWN);
    }
    env_timer_disarm(s->env, &s->accept_timer);
    env_timer_disarm(s->env, &s->drain_timer);
    env_task_drop(&s->task);
    h2_shared_free(s->h2);
    buf_fini(&s->plain);
    buf_fini(&s->stage);
    buf_fini(&s->wire);
    pool_fini(&s->streams);
    mem_free(s);
}

/* ---- accepting ---- */

static void listener_rest(struct listener *l)
{
    l->watching = false;
    env_watch(l->server->env, l->sock, 0, NULL, NULL);
}

static void listener_ready(void *ctx, unsigned events)
{
    struct listener *l = ctx;
    struct http_server *s = l->server;
    struct env_addr peer;

    (void)events;
    for (int i = 0; i < SERVER_ACCEPTS_PER_TURN; i++) {
        struct env_sock *sock;

        if (s->stats.connections >= s->limits.connections_max) {
            listener_rest(l); /* server_task looks again when one is gone */
            return;
        }
        sock = env_accept(s->env, l->sock, &peer);
        if (sock == NULL && i == 0) {
            /* Readable, yet nothing to be had: most likely no descriptor is left. A watched
             * listener would spin now. */
            listener_rest(l);
            env_timer_arm(s->env, &s->accept_timer, env_now_us(s->env) + SERVER_ACCEPT_RETRY_US);
        }
        if (sock == NULL) {
            return;
        }
        conn_accepted(l, sock, &peer);
    }
}

static void listener_watch(struct listener *l)
{
    l->watching = true;
    env_watch(l->server->env, l->sock, ENV_READ, listener_ready, l);
}

void http_server_listen(struct http_server *s, struct env_sock *listener, struct tls_context *tls,
                        enum http_protocols allowed)
{
    struct listener *l = mem_new(sizeof(*l));

    CHECK((allowed & HTTP_H1_H2) != 0 && !s->draining);
    l->server = s;
    l->sock = listener;
    l->tls = tls;
    l->allowed = allowed;
    list_push_back(&s->listeners, &l->node);
    listener_watch(l);
}

void http_server_set_tls(struct http_server *s, struct tls_context *tls)
{
    LIST_EACH(n, &s->listeners)
    {
        struct listener *l = CONTAINER_OF(n, struct listener, node);

        l->tls = l->tls != NULL ? tls : NULL;
    }
}

void server_conn_gone(struct http_server *s)
{
    env_defer(s->env, &s->task);
}

/* ---- draining ---- */

void http_server_drain(struct http_server *s, void (*drained)(void *ctx), void *ctx)
{
    s->drained = drained;
    s->drained_ctx = ctx;
    if (s->draining) {
        return;
    }
    s->draining = true;
    LIST_EACH(n, &s->listeners)
    {
        listener_close(CONTAINER_OF(n, struct listener, node));
    }
    LIST_EACH(n, &s->conns)
    {
        struct conn *c = CONTAINER_OF(n, struct conn, node);

        if (c->state == CONN_HANDSHAKE) {
            conn_end_abruptly(c, HTTP_CLOSE_SHUTDOWN); /* nothing was asked yet */
        } else if (c->state == CONN_OPEN) {
            c->protocol->drain(c, false);
            conn_mark(c);
        }
    }
    env_timer_arm(s->env, &s->drain_timer, env_now_us(s->env) + SERVER_GOAWAY_GAP_US);
    env_defer(s->env, &s->task);
}

void http_server_stats(const struct http_server *s, struct http_server_stats *out)
{
    *out = s->stats;
}
