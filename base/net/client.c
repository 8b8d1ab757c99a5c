/* client.c - origins, their pools of connections, and the life of a call.
 *
 * Knows nothing of bytes on the wire but the request's head; client_conn.c reads and writes.
 * A call leaves through call_end, call_fail or http_call_cancel, once. */
#include "base/net/client_impl.h"

#define CONNECTIONS_MAX 1024
#define IDLE_MAX 64
#define CONNECT_US 2000000
#define KEEP_US 30000000
/* Beside the body: target, fields. */
#define REQUEST_HEAD_MAX ((size_t)256 << 10)
#define REQUEST_HEAD_USUAL 768
#define REQUEST_BODY_MAX ((size_t)1 << 30)

static void client_reap(struct env_task *t)
{
    struct http_client *c = CONTAINER_OF(t, struct http_client, reaper);
    struct list *n;

    while ((n = list_pop_front(&c->dead)) != NULL) {
        struct client_corpse *corpse = CONTAINER_OF(n, struct client_corpse, node);

        corpse->bury(corpse);
    }
}

void client_bury(struct http_client *c, struct client_corpse *corpse,
                 void (*bury)(struct client_corpse *))
{
    corpse->bury = bury;
    list_push_back(&c->dead, &corpse->node);
    env_defer(c->env, &c->reaper);
}

struct http_client *http_client_new(struct env *env)
{
    struct http_client *c = mem_new(sizeof(*c));

    c->env = env;
    c->reaper.run = client_reap;
    pool_init(&c->calls, sizeof(struct http_call), CLIENT_CALLS_KEPT);
    list_init(&c->origins);
    list_init(&c->dead);
    arena_init(&c->heads, 2 * CLIENT_HEAD_BYTES_MAX + H1_LINE_MAX);
    return c;
}

void http_client_free(struct http_client *c)
{
    if (c == NULL) {
        return;
    }
    LIST_EACH_SAFE(it, tmp, &c->origins)
    {
        http_origin_close(CONTAINER_OF(it, struct http_origin, node));
    }
    client_reap(&c->reaper);
    env_task_drop(&c->reaper);
    arena_fini(&c->heads);
    pool_fini(&c->calls);
    mem_free(c);
}

/* ---- origins ---- */

static uint32_t or_u32(uint32_t v, uint32_t fallback)
{
    return v != 0 ? v : fallback;
}

static uint64_t or_u64(uint64_t v, uint64_t fallback)
{
    return v != 0 ? v : fallback;
}

struct http_origin *http_origin_new(struct http_client *c, const struct http_origin_options *o)
{
    struct http_origin *origin = mem_new(sizeof(*origin));
    char *host = mem_new(o->host.n + 1);

    memcpy(host, o->host.p, o->host.n);
    origin->client = c;
    origin->options = *o;
    origin->options.host = str_of(host, o->host.n);
    origin->options.connections_max = or_u32(o->connections_max, CONNECTIONS_MAX);
    origin->options.idle_max = or_u32(o->idle_max, IDLE_MAX);
    origin->options.connect_us = or_u64(o->connect_us, CONNECT_US);
    origin->options.keep_us = or_u64(o->keep_us, KEEP_US);
    list_init(&origin->idle);
    list_init(&origin->busy);
    list_init(&origin->waiting);
    list_init(&origin->failing);
    list_push_back(&c->origins, &origin->node);
    return origin;
}

static void origin_bury(struct client_corpse *corpse)
{
    struct http_origin *o = CONTAINER_OF(corpse, struct http_origin, corpse);

    mem_free((char *)(uintptr_t)o->options.host.p);
    mem_free(o);
}

static void origin_cancel_list(struct list *calls)
{
    struct list *n;

    while ((n = calls->next) != calls) {
        http_call_cancel(CONTAINER_OF(n, struct http_call, node)); /* leaves the list */
    }
}

void http_origin_close(struct http_origin *o)
{
    struct list *n;

    o->closing = true; /* no waiting call gets a connection that is given back below */
    origin_cancel_list(&o->waiting);
    origin_cancel_list(&o->failing);
    while ((n = o->busy.next) != &o->busy) {
        http_call_cancel(CONTAINER_OF(n, struct client_conn, node)->call);
    }
    while ((n = o->idle.next) != &o->idle) {
        conn_close(CONTAINER_OF(n, struct client_conn, node));
    }
    CHECK(o->n_conns == 0 && o->n_idle == 0 && o->n_waiting == 0);
    list_remove(&o->node);
    client_bury(o->client, &o->corpse, origin_bury);
}

uint32_t http_origin_connections(const struct http_origin *o)
{
    return o->n_conns;
}

/* ---- calls ---- */

static void call_bury(struct client_corpse *corpse)
{
    struct http_call *call = CONTAINER_OF(corpse, struct http_call, corpse);

    buf_fini(&call->request);
    buf_fini(&call->body);
    pool_give(&call->origin->client->calls, call);
}

/* The one way out of the live states: undoes what the call holds, tells nobody. */
static void call_leave(struct http_call *call)
{
    struct http_origin *o = call->origin;

    CHECK(call->state != CALL_ENDED);
    if (call->state == CALL_WAITING && call->failed == 0) {
        o->n_waiting--;
    }
    list_remove(&call->node);
    env_timer_disarm(o->client->env, &call->wait);
    env_task_drop(&call->failing);
    call->state = CALL_ENDED;
    client_bury(o->client, &call->corpse, call_bury);
}

/* Takes the connection off the call: kept when it may carry another one, closed otherwise. */
static void call_give_back(struct http_call *call, bool reuse)
{
    struct client_conn *conn = call->conn;

    if (conn == NULL) {
        return;
    }
    call->conn = NULL;
    conn->call = NULL;
    if (reuse && !call->origin->closing && call->origin->n_idle < call->origin->options.idle_max) {
        conn_keep(conn);
    } else {
        conn_close(conn);
    }
    origin_serve(call->origin);
}

void call_end(struct http_call *call, bool reuse)
{
    call_leave(call);
    call_give_back(call, reuse);
    call->ev.on_end(call->user);
}

void call_fail(struct http_call *call, enum http_fail why)
{
    call_leave(call);
    call_give_back(call, false);
    call->ev.on_fail(call->user, why, call->sent);
}

void http_call_cancel(struct http_call *call)
{
    call_leave(call);
    call_give_back(call, false);
}

void http_call_pause(struct http_call *call)
{
    CHECK(call->state != CALL_ENDED);
    if (!call->paused) {
        call->paused = true;
        if (call->conn != NULL) {
            conn_pause(call->conn);
        }
    }
}

void http_call_resume(struct http_call *call)
{
    CHECK(call->state != CALL_ENDED);
    if (call->paused) {
        call->paused = false;
        if (call->conn != NULL) {
            conn_resume(call->conn);
        }
    }
}

static void call_failing_run(struct env_task *t)
{
    struct http_call *call = CONTAINER_OF(t, struct http_call, failing);

    call_fail(call, call->failed);
}

/* Fails a call that has no connection, from the loop instead of from the caller's frame. */
static void call_fail_soon(struct http_call *call, enum http_fail why)
{
    struct http_origin *o = call->origin;

    call->failed = why;
    call->failing.run = call_failing_run;
    list_push_back(&o->failing, &call->node);
    env_defer(o->client->env, &call->failing);
}

static void call_wait_fire(struct env_timer *t)
{
    call_fail(CONTAINER_OF(t, struct http_call, wait), HTTP_FAIL_BUSY);
}

/* A kept connection that still lives, or a new one. NULL: none to be had. */
static struct client_conn *origin_conn(struct http_origin *o, struct err *e)
{
    while (!list_is_empty(&o->idle)) {
        struct client_conn *conn = CONTAINER_OF(o->idle.next, struct client_conn, node);

        if (!conn_is_stale(conn)) {
            return conn;
        }
        conn_close(conn);
    }
    return conn_open(o, e);
}

static bool origin_has_room(const struct http_origin *o)
{
    return !list_is_empty(&o->idle) || o->n_conns < o->options.connections_max;
}

void origin_serve(struct http_origin *o)
{
    while (!o->closing && !list_is_empty(&o->waiting) && origin_has_room(o)) {
        struct http_call *call = CONTAINER_OF(list_pop_front(&o->waiting), struct http_call, node);
        struct err e = {.code = ERR_NONE};
        struct client_conn *conn = origin_conn(o, &e);

        env_timer_disarm(o->client->env, &call->wait);
        o->n_waiting--;
        if (conn == NULL) {
            call_fail_soon(call, e.code == ERR_LIMIT ? HTTP_FAIL_LOCAL : HTTP_FAIL_CONNECT);
        } else {
            conn_carry(conn, call);
        }
    }
}

/* Field content that would end its line early must never reach a peer. */
static bool is_line_safe(struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = (uint8_t)s.p[i];

        if ((c < 0x20 && c != '\t') || c == 0x7f) {
            return false;
        }
    }
    return true;
}

static size_t body_bytes(const struct http_call_request *r)
{
    return r->taken != NULL ? r->taken->len : r->body.n;
}

static bool is_request_safe(const struct http_call_request *r)
{
    bool safe = is_line_safe(r->target) && r->target.n != 0 &&
                memchr(r->target.p, ' ', r->target.n) == NULL && r->method != HTTP_OTHER &&
                body_bytes(r) <= REQUEST_BODY_MAX;

    for (size_t i = 0; i < r->n_fields; i++) {
        struct str name = r->fields[i].name;

        safe = safe && name.n != 0 && is_line_safe(name) && memchr(name.p, ' ', name.n) == NULL &&
               memchr(name.p, ':', name.n) == NULL && is_line_safe(r->fields[i].value);
    }
    return safe;
}

static void request_write(struct buf *b, struct str host, const struct http_call_request *r)
{
    size_t body = body_bytes(r);
    bool length =
        body != 0 || r->method == HTTP_POST || r->method == HTTP_PUT || r->method == HTTP_PATCH;

    /* In one piece from the start: it would be moved at every doubling. */
    (void)buf_reserve(b, r->body.n + REQUEST_HEAD_USUAL);
    buf_str(b, http_method_name(r->method));
    buf_byte(b, ' ');
    buf_str(b, r->target);
    buf_c(b, " HTTP/1.1\r\nhost: ");
    buf_str(b, host);
    buf_c(b, "\r\n");
    for (size_t i = 0; i < r->n_fields; i++) {
        buf_str(b, r->fields[i].name);
        buf_c(b, ": ");
        buf_str(b, r->fields[i].value);
        buf_c(b, "\r\n");
    }
    if (length) {
        buf_c(b, "content-length: ");
        buf_u64(b, body);
        buf_c(b, "\r\n");
    }
    buf_c(b, "\r\n");
    buf_str(b, r->body);
}

static void call_take_body(struct http_call *call, struct buf *taken)
{
    if (taken != NULL) {
        call->body = *taken;
        buf_init(taken, taken->max);
        call->request.failed = call->request.failed || call->body.failed;
    }
}

struct http_call *http_call_start(struct http_origin *o, const struct http_call_request *r,
                                  const struct http_call_events *ev, void *user)
{
    struct http_call *call = pool_take(&o->client->calls);
    bool safe = is_request_safe(r);

    CHECK(!o->closing);
    call->origin = o;
    call->state = CALL_WAITING;
    call->method = r->method;
    call->ev = *ev;
    call->user = user;
    call->wait.fire = call_wait_fire;
    list_init(&call->node);
    buf_init(&call->request, safe ? r->body.n + REQUEST_HEAD_MAX : 0);
    buf_init(&call->body, 0);
    CHECK(r->taken == NULL || r->body.n == 0);
    if (safe) {
        request_write(&call->request, o->options.host, r);
    }
    call_take_body(call, r->taken);
    if (!safe || call->request.failed) {
        call_fail_soon(call, safe ? HTTP_FAIL_BUSY : HTTP_FAIL_PROTOCOL);
        return call;
    }
    if (o->n_waiting >= CLIENT_WAITING_MAX) {
        call_fail_soon(call, HTTP_FAIL_BUSY);
        return call;
    }
    list_push_back(&o->waiting, &call->node);
    o->n_waiting++;
    origin_serve(o);
    if (call->state == CALL_WAITING && call->failed == 0) {
        struct env *env = o->client->env;

        env_timer_arm(env, &call->wait, env_now_us(env) + o->options.connect_us);
    }
    return call;
}
