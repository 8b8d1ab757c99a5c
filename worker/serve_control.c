/* serve_control.c - all that is no generation: models, health, metrics, receipts, aborts, kv
 * events.
 *
 * /health, /ready and /metrics are open; the rest needs the worker key when one is
 * configured, and what is the gateway's alone (/events, /abort, /kv_events) exists only then. */
#include "worker/job.h"

static bool needs_key(struct serve *s, struct http_stream *st, const struct http_head *h, bool ours)
{
    struct api_error x = {0};

    if (s->o.worker_key.n == 0 && ours) {
        api_refuse(&x, 403, NULL, NULL, "This path needs a worker started with --worker-key-file.");
    } else if (s->o.worker_key.n > 0 && !serve_is_trusted(s, h)) {
        api_refuse(&x, 401, "invalid_api_key", NULL, "The worker key is missing or wrong.");
    } else {
        return false;
    }
    api_send_error(s, st, &x);
    return true;
}

static void write_model(struct json_writer *w, const struct serve *s, struct str name)
{
    jw_object(w);
    jw_kstr(w, "id", name);
    jw_kc(w, "object", "model");
    jw_ku64(w, "created", s->started_s);
    jw_kc(w, "owned_by", "tollgate");
    if (!str_eq(name, s->o.names[0])) {
        jw_kstr(w, "root", s->o.names[0]); /* another name of the same model */
    }
    jw_ku64(w, "max_model_len", s->plan.max_model_len);
    jw_end_object(w);
}

static void send_models(struct serve *s, struct http_stream *st)
{
    struct json_writer w;

    buf_reset(&s->out);
    jw_init(&w, &s->out);
    jw_object(&w);
    jw_kc(&w, "object", "list");
    jw_key(&w, STR("data"));
    jw_array(&w);
    for (uint32_t i = 0; i < s->o.n_names; i++) {
        write_model(&w, s, s->o.names[i]);
    }
    jw_end_array(&w);
    jw_end_object(&w);
    api_send_json(s, st, 200, buf_view(&s->out));
}

static void send_model(struct serve *s, struct http_stream *st, struct str id)
{
    struct api_error x = {0};
    struct json_writer w;

    uint32_t i = 0;

    while (i < s->o.n_names && !str_eq(id, s->o.names[i])) {
        i++;
    }
    if (i == s->o.n_names) {
        api_refuse(&x, 404, "model_not_found", "model", "This worker serves `" STR_FMT "` only.",
                   STR_ARG(s->o.names[0]));
        api_send_error(s, st, &x);
        return;
    }
    buf_reset(&s->out);
    jw_init(&w, &s->out);
    write_model(&w, s, s->o.names[i]);
    api_send_json(s, st, 200, buf_view(&s->out));
}

/* /health: the process answers, so nobody need restart it. /ready, which gateways probe: it may be
 * sent requests, so not while it loads and not once it drains. */
static void send_health(struct serve *s, struct http_stream *st, bool live)
{
    static const struct str bodies[] = {
        [SERVE_LOADING] = STR("{\"status\":\"loading\"}"),
        [SERVE_WARMING] = STR("{\"status\":\"warming\"}"),
        [SERVE_READY] = STR("{\"status\":\"ok\"}"),
        [SERVE_DRAINING] = STR("{\"status\":\"draining\"}"),
    };

    api_send_json(s, st, live || s->state == SERVE_READY ? 200 : 503, bodies[s->state]);
}

static uint32_t subscribers(const struct serve *s)
{
    uint32_t n = 0;

    for (size_t i = 0; i < SERVE_SUBSCRIBERS_MAX; i++) {
        n += s->subscriber[i] != NULL;
    }
    return n;
}

static void send_metrics(struct serve *s, struct http_stream *st)
{
    struct metrics_state m = {.model = s->o.names[0],
                              .weights = s->model,
                              .subscribers = subscribers(s),
                              .preparing = s->preparing + s->texts,
                              .chunks_held = kv_events_count(s->kv),
                              .body_bytes = s->body_bytes};
    const struct http_field type = {STR("content-type"),
                                    STR("text/plain; version=0.0.4; charset=utf-8")};

    engine_thread_stats(s->engine, &m.engine);
    m.engine.steps -= s->warm.stats.steps; /* the warm-up was nobody's */
    m.engine.prefill_tokens -= s->warm.stats.prefill_tokens;
    m.engine.decode_tokens -= s->warm.stats.decode_tokens;
    buf_reset(&s->out);
    metrics_write(&s->out, &s->metrics, &m);
    http_stream_respond(st, 200, &type, 1, (int64_t)s->out.len);
    http_stream_write(st, buf_view(&s->out).p, s->out.len);
    http_stream_end(st);
}

static void send_receipt(struct serve *s, struct http_stream *st, const struct receipt *r)
{
    char text[UUID_TEXT_BYTES + 1];
    struct json_writer w;

    uuid_text(r->event, text);
    buf_reset(&s->out);
    jw_init(&w, &s->out);
    jw_object(&w);
    jw_kc(&w, "event", text);
    jw_kc(&w, "state", receipt_state_name(r->state));
    jw_kbool(&w, "ended", !receipt_is_live(r));
    jw_ku64(&w, "prompt", r->prompt);
    jw_ku64(&w, "cached", r->cached);
    jw_ku64(&w, "completion", r->completion);
    jw_end_object(&w);
    api_send_json(s, st, 200, buf_view(&s->out));
}

/* The receipt of the event that ends the path, or a 404 on its way. */
static struct receipt *receipt_of_path(struct serve *s, struct http_stream *st, struct str id)
{
    struct api_error x = {0};
    struct receipt *r = NULL;
    struct uuid event;

    if (uuid_parse(id, &event)) {
        r = receipts_find(s->receipts, event);
    }
    if (r == NULL) {
        api_refuse(&x, 404, "event_not_found", NULL, "No such event is known here.");
        api_send_error(s, st, &x);
    }
    return r;
}

/* One that the engine does not have yet ends here, with a receipt. */
static void abort_preparing(struct serve *s, struct str id)
{
    struct api_error x = {0};
    struct uuid event;
    struct job *j = uuid_parse(id, &event) ? submit_find(s, event) : NULL;

    if (j != NULL) {
        api_refuse(&x, 500, "aborted", NULL, "The request was aborted.");
        api_send_error(s, j->stream, &x);
        submit_leave(j);
    }
}

/* A live request answers when its END comes, within one step; the count is then the final one. */
static void abort_event(struct serve *s, struct http_stream *st, struct str id)
{
    struct receipt *r;
    struct exchange *x;
    struct job *j;

    abort_preparing(s, id);
    r = receipt_of_path(s, st, id);
    j = r != NULL ? serve_live_event(s, r->event) : NULL;
    if (r == NULL) {
        return;
    }
    if (j == NULL) {
        send_receipt(s, st, r);
        return;
    }
    job_abort(j);
    x = arena_alloc(http_stream_arena(st), sizeof(*x));
    if (x == NULL || j->n_waiters == JOB_WAITERS_MAX) {
        send_receipt(s, st, r);
        return;
    }
    x->kind = EXCHANGE_WAITER;
    x->job = j;
    http_stream_set_user(st, x);
    j->waiters[j->n_waiters++] = st;
}

void control_answer_waiters(struct job *j, enum receipt_state state)
{
    struct receipt r = {.event = j->event,
                        .state = state,
                        .prompt = j->prompt_tokens,
                        .cached = j->cached_tokens,
                        .completion = job_completion_tokens(j)};

    for (uint32_t i = 0; i < j->n_waiters; i++) {
        http_stream_set_user(j->waiters[i], NULL);
        send_receipt(j->serve, j->waiters[i], &r);
    }
    j->n_waiters = 0;
}

static void write_line(void *ctx, struct str line)
{
    http_stream_write(ctx, line.p, line.n);
}

static struct str query_value(struct str query, struct str name)
{
    struct str pair, key, value;

    while (query.n > 0) {
        if (!str_cut(query, '&', &pair, &query)) {
            query = STR("");
        }
        if (str_cut(pair, '=', &key, &value) && str_eq(key, name)) {
            return value;
        }
    }
    return STR("");
}

static void respond_lines(struct serve *s, struct http_stream *st)
{
    const struct http_field fields[] = {
        {STR("content-type"), STR("application/x-ndjson")},
        {STR("cache-control"), STR("no-cache")},
        {STR("x-tollgate-worker-epoch"), str_c(s->epoch)},
    };

    http_stream_respond(st, 200, fields, ARRAY_LEN(fields), -1);
}

static uint32_t free_place(const struct serve *s)
{
    uint32_t i = 0;

    while (i < SERVE_SUBSCRIBERS_MAX && s->subscriber[i] != NULL) {
        i++;
    }
    return i;
}

static void subscribe(struct serve *s, struct http_stream *st, const struct http_head *h)
{
    struct exchange *x = arena_alloc(http_stream_arena(st), sizeof(*x));
    struct str from = query_value(h->query, STR("from"));
    uint32_t place = free_place(s);
    struct api_error e = {0};

    if (h->method == HTTP_HEAD || str_eq(query_value(h->query, STR("snapshot")), STR("1"))) {
        respond_lines(s, st);
        kv_events_snapshot(s->kv, write_line, st);
        http_stream_end(st);
        return;
    }
    if (place == SERVE_SUBSCRIBERS_MAX || x == NULL || s->state == SERVE_DRAINING) {
        api_refuse(&e, 503, "server_is_overloaded", NULL, "All %d places are taken.",
                   SERVE_SUBSCRIBERS_MAX);
        api_send_error(s, st, &e);
        return;
    }
    x->kind = EXCHANGE_SUBSCRIBER;
    x->slot = place;
    http_stream_set_user(st, x);
    s->subscriber[place] = st;
    respond_lines(s, st);
    if (!kv_events_resume(s->kv, from, write_line, st)) {
        s->metrics.kv_resyncs++;
        kv_events_snapshot(s->kv, write_line, st);
    }
}

static void write_to_all(void *ctx, struct str line)
{
    struct serve *s = ctx;
    /* A reader that just came has a whole snapshot before it: cut for that, it would come again and
     * never get through. */
    size_t most = SERVE_SUBSCRIBER_BUFFER + kv_events_count(s->kv) * KV_EVENTS_HASH_BYTES;

    for (size_t i = 0; i < SERVE_SUBSCRIBERS_MAX; i++) {
        struct http_stream *st = s->subscriber[i];

        if (st == NULL) {
            continue;
        }
        if (http_stream_buffered(st) + line.n > most) {
            s->subscriber[i] = NULL;
            http_stream_set_user(st, NULL);
            http_stream_abort(st);
        } else {
            http_stream_write(st, line.p, line.n);
        }
    }
}

static void flush(struct serve *s, bool heartbeat)
{
    uint64_t before = kv_events_seq(s->kv);

    kv_events_flush(s->kv, heartbeat, write_to_all, s);
    if (kv_events_seq(s->kv) != before) {
        s->kv_last_us = env_now_us(s->env);
    }
}

static void on_flush(struct env_timer *t)
{
    flush(CONTAINER_OF(t, struct serve, kv_flush), false);
}

static void on_heartbeat(struct env_timer *t)
{
    struct serve *s = CONTAINER_OF(t, struct serve, kv_heartbeat);
    uint64_t due = s->kv_last_us + KV_EVENTS_HEARTBEAT_US;

    if (env_now_us(s->env) >= due) {
        flush(s, true);
        due = s->kv_last_us + KV_EVENTS_HEARTBEAT_US;
    }
    env_timer_arm(s->env, t, due);
}

void control_kv_start(struct serve *s)
{
    s->kv_flush.fire = on_flush;
    s->kv_heartbeat.fire = on_heartbeat;
    s->kv_last_us = env_now_us(s->env);
    env_timer_arm(s->env, &s->kv_heartbeat, s->kv_last_us + KV_EVENTS_HEARTBEAT_US);
}

void control_kv_changed(struct serve *s)
{
    if (kv_events_is_due(s->kv) && !env_timer_is_armed(&s->kv_flush)) {
        env_timer_arm(s->env, &s->kv_flush, env_now_us(s->env) + KV_EVENTS_COALESCE_US);
    }
}

void control_end_subscribers(struct serve *s)
{
    for (size_t i = 0; i < SERVE_SUBSCRIBERS_MAX; i++) {
        if (s->subscriber[i] != NULL) {
            http_stream_set_user(s->subscriber[i], NULL);
            http_stream_end(s->subscriber[i]);
            s->subscriber[i] = NULL;
        }
    }
}

void control_stream_closed(struct serve *s, struct http_stream *st, struct exchange *x)
{
    struct job *j = x->job;

    if (x->kind == EXCHANGE_SUBSCRIBER) {
        s->subscriber[x->slot] = NULL;
        return;
    }
    for (uint32_t i = 0; i < j->n_waiters; i++) {
        if (j->waiters[i] == st) {
            j->waiters[i] = j->waiters[--j->n_waiters];
            return;
        }
    }
}

/* What each path is and who may ask. */
enum route {
    ROUTE_NONE = 0,
    ROUTE_HEALTH,
    ROUTE_READY,
    ROUTE_METRICS,
    ROUTE_MODELS,
    ROUTE_MODEL, /* the rest of the path is its argument */
    ROUTE_EVENT, /* likewise */
    ROUTE_ABORT, /* likewise */
    ROUTE_KV_EVENTS,
};

static const struct {
    struct str path; /* ends in '/': a prefix */
    enum http_method method;
    enum route route;
    bool open, ours;
} routes[] = {
    {STR("/health"), HTTP_GET, ROUTE_HEALTH, true, false},
    {STR("/ready"), HTTP_GET, ROUTE_READY, true, false},
    {STR("/metrics"), HTTP_GET, ROUTE_METRICS, true, false},
    {STR("/v1/models"), HTTP_GET, ROUTE_MODELS, false, false},
    {STR("/v1/models/"), HTTP_GET, ROUTE_MODEL, false, false},
    {STR("/events/"), HTTP_GET, ROUTE_EVENT, false, true},
    {STR("/abort/"), HTTP_POST, ROUTE_ABORT, false, true},
    {STR("/kv_events"), HTTP_GET, ROUTE_KV_EVENTS, false, true},
};

static void run_route(struct serve *s, struct http_stream *st, const struct http_head *h,
                      enum route route, struct str rest)
{
    struct api_error x = {0};
    struct receipt *r;

    /* Loading, or draining before it ever served. */
    if (route != ROUTE_HEALTH && route != ROUTE_READY && s->engine == NULL &&
        !api_is_serving(s, &x)) {
        api_send_error(s, st, &x);
        return;
    }
    switch (route) {
    case ROUTE_HEALTH:
    case ROUTE_READY:
        send_health(s, st, route == ROUTE_HEALTH);
        break;
    case ROUTE_METRICS:
        send_metrics(s, st);
        break;
    case ROUTE_MODELS:
        send_models(s, st);
        break;
    case ROUTE_MODEL:
        send_model(s, st, rest);
        break;
    case ROUTE_EVENT:
        r = receipt_of_path(s, st, rest);
        if (r != NULL) {
            send_receipt(s, st, r);
        }
        break;
    case ROUTE_ABORT:
        abort_event(s, st, rest);
        break;
    case ROUTE_KV_EVENTS:
        subscribe(s, st, h);
        break;
    case ROUTE_NONE:
        break;
    }
}

bool control_head(struct serve *s, struct http_stream *st, const struct http_head *h)
{
    struct api_error x = {0};

    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        bool prefix = routes[i].path.p[routes[i].path.n - 1] == '/';
        enum http_method m = h->method == HTTP_HEAD ? HTTP_GET : h->method;

        if (prefix ? !str_starts(h->path, routes[i].path) : !str_eq(h->path, routes[i].path)) {
            continue;
        }
        if (m != routes[i].method) {
            api_refuse(&x, 405, NULL, NULL, "This path takes %s.",
                       routes[i].method == HTTP_GET ? "GET" : "POST");
            api_send_error(s, st, &x);
        } else if (routes[i].open || !needs_key(s, st, h, routes[i].ours)) {
            run_route(s, st, h, routes[i].route,
                      str_of(h->path.p + routes[i].path.n, h->path.n - routes[i].path.n));
        }
        return true;
    }
    return false;
}
