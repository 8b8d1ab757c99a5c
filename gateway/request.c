/* request.c - one request's states and its one end; the public listener's callbacks. */
#include "gateway/request.h"

#include "gateway/admit/auth.h"

#include <stdio.h>

#define REQUEST_ARENA_BYTES_MAX (512ULL << 20) /* tree, prefix: it grows only with the body */
#define REQUEST_PATH_MAX 512
#define REQUEST_BODY_USUAL (32u << 10) /* a body up to here is announced and kept in one piece */

void request_set_state(struct request *r, enum request_state to)
{
    static const bool legal[REQ_STATE_COUNT][REQ_STATE_COUNT] = {
        [REQ_HEADERS] = {[REQ_BODY] = true, [REQ_DONE] = true},
        [REQ_BODY] = {[REQ_ADMITTING] = true, [REQ_DONE] = true},
        [REQ_ADMITTING] = {[REQ_QUEUED] = true, [REQ_DONE] = true},
        /* No worker was to be had: its OPEN is voided. */
        [REQ_QUEUED] = {[REQ_DISPATCHED] = true, [REQ_DONE] = true},
        /* Back to the queue: a retry, only before the first client byte. */
        [REQ_DISPATCHED] =
            {[REQ_STREAMING] = true, [REQ_QUEUED] = true, [REQ_SETTLING] = true, [REQ_DONE] = true},
        [REQ_STREAMING] = {[REQ_SETTLING] = true},
        [REQ_SETTLING] = {[REQ_DONE] = true, [REQ_QUEUED] = true},
    };

    CHECK(legal[r->state][to]);
    r->state = to;
}

static void request_free(struct env_task *t)
{
    struct request *r = CONTAINER_OF(t, struct request, free_task);

    list_remove(&r->node);
    for (unsigned i = 0; i < ARRAY_LEN(r->gathered.logprobs); i++) {
        buf_fini(&r->gathered.logprobs[i]);
    }
    buf_fini(&r->gathered.text);
    request_gathered_calls_free(&r->gathered);
    buf_fini(&r->body);
    buf_fini(&r->out);
    buf_fini(&r->tail);
    arena_fini(&r->arena);
    world_unref(r->world);
    pool_give(&r->loop->request_pool, r);
}

void request_body_release(struct request *r)
{
    r->loop->body_bytes -= r->body_charged;
    r->body_charged = 0;
    if (r->decoder != NULL) {
        decoder_free(r->decoder);
        r->decoder = NULL;
    }
}

void request_forget_prompt(struct request *r)
{
    request_body_release(r);
    buf_release(&r->body);
    arena_fini(&r->arena);
    r->api.root = NULL;
    r->api.model = r->api.prompt = r->api.cache_key = r->api.user = (struct str){NULL, 0};
    r->prefix.seq = NULL;
    r->prefix.end = NULL;
    r->prefix.span = NULL;
    r->prefix.count = r->prefix.spans = 0;
}

/* Over, and its VOIDs are in the ring: until they are, its memory holds them. */
static void request_gone(struct env_timer *t)
{
    struct request *r = CONTAINER_OF(t, struct request, linger);
    struct loop *l = r->loop;

    if (!request_voids_put(r)) {
        r->linger.fire = request_gone;
        env_timer_arm(l->env, t, env_now_us(l->env) + REQUEST_RING_FULL_US);
        return;
    }
    CHECK(l->n_requests > 0);
    l->n_requests--;
    atomic_store_explicit(&l->live, l->n_requests, memory_order_relaxed);
    r->free_task.run = request_free;
    env_defer(l->env, &r->free_task);
    loop_request_gone(l);
}

/* The one end. Undoes every count; the memory rests until the turn is over, so that callers up the
 * stack may still look. */
void request_end(struct request *r, enum request_end_reason why)
{
    struct loop *l = r->loop;

    request_set_state(r, REQ_DONE);
    env_timer_disarm(l->env, &r->timer);
    env_timer_disarm(l->env, &r->linger);
    proxy_cancel(&r->attempt);
    receipt_drop(&r->receipt);
    quota_drop(l->gw->quota, &r->hold, env_now_us(l->env));
    request_body_release(r);
    list_remove(&r->settle_node);
    if (r->stream != NULL) {
        http_stream_set_user(r->stream, NULL);
        r->stream = NULL;
    }
    if (why == REQ_END_CLIENT_GONE) {
        atomic_fetch_add_explicit(&l->metrics.client_aborts, 1, memory_order_relaxed);
    }
    hist_add(&l->metrics.total, env_now_us(l->env) - r->begun_us);
    request_gone(&r->linger);
}

/* An answer that needs no request object: health, models, refusals before the body. */
static void answer_json(struct loop *l, struct http_stream *s, unsigned status,
                        const struct http_field *extra, size_t n_extra, struct str body)
{
    struct http_field f[12];
    char id[UUID_TEXT_BYTES + 1];
    uint8_t random[16];
    size_t n = 0;

    CHECK(n_extra <= 6);
    env_random(l->env, random, sizeof(random));
    uuid_text(uuid_v7(env_wall_us(l->env) / 1000, random), id);
    f[n++] = (struct http_field){STR("content-type"), STR("application/json")};
    f[n++] = (struct http_field){STR("x-request-id"), str_c(id)};
    f[n++] = (struct http_field){STR("openai-version"), STR("2020-10-01")};
    for (size_t i = 0; i < n_extra; i++) {
        f[n++] = extra[i];
    }
    http_stream_respond(s, status, f, n, (int64_t)body.n);
    http_stream_write(s, body.p, body.n);
    http_stream_end(s);
}

static void answer_error(struct loop *l, struct http_stream *s, const struct api_error *e)
{
    struct http_field f[5];
    struct api_error_text text;
    struct buf b;
    size_t n = api_error_fields(e, &text, f);

    if (e->status == 401) {
        f[n++] = (struct http_field){STR("www-authenticate"), STR("Bearer")};
    }
    buf_init(&b, 64 << 10);
    api_error_body(e, &b);
    answer_json(l, s, e->status, f, n, buf_view(&b));
    buf_fini(&b);
}

static void answer_auth(struct loop *l, struct http_stream *s, enum auth_answer why)
{
    struct api_error e = {0};

    atomic_fetch_add_explicit(&l->metrics.refused_auth, 1, memory_order_relaxed);
    if (why == AUTH_DISABLED) {
        api_error_set(&e, 403, "invalid_request_error", "tenant_disabled", NULL,
                      "This tenant is disabled. Ask the operator.");
    } else {
        api_error_bad_key(&e);
    }
    answer_error(l, s, &e);
}

/* "//v1//chat/completions/" and "/v1/v1/models" are what clients with odd base URLs send. */
static struct str path_normal(struct str p, char out[REQUEST_PATH_MAX])
{
    size_t n = 0;
    struct str s;

    for (size_t i = 0; i < p.n && n < REQUEST_PATH_MAX; i++) {
        if (p.p[i] == '/' && n > 0 && out[n - 1] == '/') {
            continue;
        }
        out[n++] = p.p[i];
    }
    while (n > 1 && out[n - 1] == '/') {
        n--;
    }
    s = str_of(out, n);
    if (str_starts(s, STR("/v1/v1/"))) {
        s = str_of(out + 3, n - 3);
    }
    return s;
}

static enum auth_answer stream_auth(struct loop *l, const struct http_head *h,
                                    const struct snap_key **key)
{
    return auth_check(l->world->snap, l->gw->secrets.pepper, auth_key_of(&h->fields), key);
}

static bool model_is_offered(const struct world *w, const struct snap_model *m, uint64_t wall_us)
{
    return world_serves(w, m->model_id) &&
           snapshot_price(w->snap, m->model_id, TIER_STANDARD, 0, wall_us) != NULL;
}

static void answer_models(struct loop *l, struct http_stream *s, struct str id)
{
    const struct snapshot *snap = l->world->snap;
    const struct snap_model **list = mem_new(sizeof(*list) * (snap->n_models + 1));
    uint64_t wall = env_wall_us(l->env);
    struct api_error e = {0};
    struct buf b;
    size_t n = 0;

    buf_init(&b, 16 << 20);
    for (uint32_t i = 0; i < snap->n_models; i++) {
        if (model_is_offered(l->world, &snap->models[i], wall) &&
            (id.p == NULL || str_eq(id, snap->models[i].name))) {
            list[n++] = &snap->models[i];
        }
    }
    if (id.p == NULL) {
        openai_render_models(list, n, &b);
    } else if (n == 1) {
        openai_render_model(list[0], &b);
    }
    if (id.p != NULL && n != 1) {
        api_error_no_model(&e, id);
        answer_error(l, s, &e);
    } else {
        answer_json(l, s, 200, NULL, 0, buf_view(&b));
    }
    buf_fini(&b);
    mem_free(list);
}

static void answer_open(struct loop *l, struct http_stream *s, struct str path)
{
    bool ready = l->world != NULL && !l->draining;

    if (str_eq(path, STR("/ready")) && !ready) {
        answer_json(l, s, 503, NULL, 0, STR("{\"status\":\"not ready\"}"));
        return;
    }
    answer_json(l, s, 200, NULL, 0, STR("{\"status\":\"ok\"}"));
}

static void answer_not_found(struct loop *l, struct http_stream *s, struct str path)
{
    struct api_error e = {0};

    api_error_set(&e, 404, "invalid_request_error", "unknown_url", NULL,
                  "Unknown request URL: " STR_FMT
                  ". See /v1/models, /v1/chat/completions, /v1/completions.",
                  (int)size_min(path.n, 200), path.p);
    answer_error(l, s, &e);
}

static void answer_method(struct loop *l, struct http_stream *s, const char *allow)
{
    struct api_error e = {0};
    struct http_field f = {STR("allow"), str_c(allow)};
    struct buf b;

    api_error_set(&e, 405, "invalid_request_error", "method_not_allowed", NULL,
                  "This URL takes %s only.", allow);
    buf_init(&b, 4096);
    api_error_body(&e, &b);
    answer_json(l, s, 405, &f, 1, buf_view(&b));
    buf_fini(&b);
}

static void answer_preflight(struct http_stream *s)
{
    static const struct http_field f[] = {
        {STR("access-control-allow-origin"), STR("*")},
        {STR("access-control-allow-methods"), STR("GET, POST, OPTIONS")},
        {STR("access-control-allow-headers"), STR("*, authorization, content-type, x-api-key")},
        {STR("access-control-max-age"), STR("600")},
    };

    http_stream_respond(s, 204, f, ARRAY_LEN(f), 0);
    http_stream_end(s);
}

static struct request *request_new(struct loop *l, struct http_stream *s, enum endpoint ep,
                                   const struct snap_key *key)
{
    struct request *r = pool_take(&l->request_pool);
    uint8_t random[16];

    r->loop = l;
    r->stream = s;
    r->state = REQ_HEADERS;
    r->endpoint = ep;
    r->world = world_ref(l->world);
    r->key = key;
    r->tenant = snapshot_tenant(l->world->snap, key->tenant_id);
    r->begun_us = env_now_us(l->env);
    r->begun_wall_us = env_wall_us(l->env);
    env_random(l->env, random, sizeof(random));
    r->request_id = uuid_v7(r->begun_wall_us / 1000, random);
    uuid_text(r->request_id, r->id_text);
    buf_init(&r->body, (size_t)l->gw->config.body_bytes_max);
    buf_init(&r->out, 64u << 20);
    buf_init(&r->tail, (size_t)l->gw->config.answer_bytes_max + (4u << 20));
    buf_init(&r->gathered.text, (size_t)l->gw->config.answer_bytes_max);
    for (unsigned i = 0; i < ARRAY_LEN(r->gathered.logprobs); i++) {
        buf_init(&r->gathered.logprobs[i], (size_t)l->gw->config.answer_bytes_max);
    }
    arena_init_cached(&r->arena, REQUEST_ARENA_BYTES_MAX, &l->blocks);
    list_init(&r->node);
    list_init(&r->settle_node);
    list_push_back(&l->requests, &r->node);
    l->n_requests++;
    atomic_store_explicit(&l->live, l->n_requests, memory_order_relaxed);
    atomic_fetch_add_explicit(&l->metrics.requests, 1, memory_order_relaxed);
    http_stream_set_user(s, r);
    return r;
}

/* What the bodies of one loop's requests may hold together. */
static uint64_t bodies_max(const struct loop *l)
{
    return (uint64_t)l->gw->config.bodies_bytes_max / l->gw->n_loops;
}

/* Refused before a byte of body is kept: size, encoding, our own bounds. */
static bool body_is_acceptable(struct loop *l, const struct http_head *h, struct api_error *e)
{
    const struct gateway_config *c = &l->gw->config;

    if (h->content_length > c->body_bytes_max) {
        api_error_set(e, 413, "invalid_request_error", "request_too_large", NULL,
                      "The request body is %lld bytes; the limit is %lld.",
                      (long long)h->content_length, (long long)c->body_bytes_max);
    } else if (encoding_named(http_field(&h->fields, STR("content-encoding"))) ==
               ENCODING_UNKNOWN) {
        api_error_set(e, 415, "invalid_request_error", "unsupported_content_encoding", NULL,
                      "content-encoding must be gzip, zstd or identity.");
    } else if (l->draining ||
               l->n_requests >= u64_max((uint64_t)c->requests_max / l->gw->n_loops, 1) ||
               l->body_bytes >= bodies_max(l)) {
        api_error_unavailable(e, 1000,
                              l->draining ? "The gateway is shutting down."
                                          : "The gateway is at its limit of open requests.");
    } else if (!journal_admits(l->gw->journal)) {
        api_error_unavailable(e, 5000, "The gateway's journal cannot take new requests.");
    }
    return e->status == 0;
}

static void begin_inference(struct loop *l, struct http_stream *s, const struct http_head *h,
                            enum endpoint ep)
{
    const struct snap_key *key;
    enum auth_answer answer = stream_auth(l, h, &key);
    enum encoding enc;
    struct request *r;
    struct api_error e = {0};

    if (answer != AUTH_OK) {
        answer_auth(l, s, answer);
        return;
    }
    if (!body_is_acceptable(l, h, &e)) {
        answer_error(l, s, &e);
        return;
    }
    r = request_new(l, s, ep, key);
    enc = encoding_named(http_field(&h->fields, STR("content-encoding")));
    if (enc != ENCODING_IDENTITY) {
        r->decoder = decoder_new(enc);
    }
    request_set_state(r, REQ_BODY);
    http_stream_continue(s);
    if (!h->body) {
        request_admit(r); /* no body will come, so no end of one either: "not JSON" is the answer */
    }
}

static void on_head(void *ctx, struct http_stream *s, const struct http_head *h)
{
    struct loop *l = ctx;
    char normal[REQUEST_PATH_MAX];
    struct str path = path_normal(h->path, normal);
    const struct snap_key *key;
    enum auth_answer auth;
    bool chat = str_eq(path, STR("/v1/chat/completions")) || str_eq(path, STR("/chat/completions"));
    bool completions = str_eq(path, STR("/v1/completions"));
    bool models = str_eq(path, STR("/v1/models")) || str_starts(path, STR("/v1/models/"));
    struct api_error e = {0};

    if (h->method == HTTP_OPTIONS) {
        answer_preflight(s);
    } else if (str_eq(path, STR("/")) || str_eq(path, STR("/health")) ||
               str_eq(path, STR("/ready"))) {
        answer_open(l, s, path);
    } else if (!chat && !completions && !models) {
        answer_not_found(l, s, path);
    } else if (l->world == NULL) {
        api_error_unavailable(&e, 1000, "The gateway has no configuration yet.");
        answer_error(l, s, &e);
    } else if (models) {
        if (h->method != HTTP_GET && h->method != HTTP_HEAD) {
            answer_method(l, s, "GET");
        } else if ((auth = stream_auth(l, h, &key)) != AUTH_OK) {
            answer_auth(l, s, auth);
        } else {
            answer_models(l, s,
                          path.n > 11 ? str_of(path.p + 11, path.n - 11) : (struct str){NULL, 0});
        }
    } else if (h->method != HTTP_POST) {
        answer_method(l, s, "POST");
    } else {
        begin_inference(l, s, h, chat ? ENDPOINT_CHAT : ENDPOINT_COMPLETIONS);
    }
}

static void body_fail(struct request *r, enum err_code code)
{
    struct api_error e = {0};

    if (code == ERR_LIMIT || code == ERR_NO_MEMORY) {
        api_error_set(&e, 413, "invalid_request_error", "request_too_large", NULL,
                      "The request body is larger than the limit of %lld bytes.",
                      (long long)r->loop->gw->config.body_bytes_max);
    } else {
        api_error_set(&e, 400, "invalid_request_error", "invalid_encoding", NULL,
                      "The request body does not decode as its content-encoding says.");
    }
    request_fail(r, &e);
}

/* The request holds at least so many bytes of body. */
static void body_charge(struct request *r, size_t bytes)
{
    if (bytes > r->body_charged) {
        r->loop->body_bytes += bytes - r->body_charged;
        r->body_charged = bytes;
    }
}

static void on_body(void *ctx, struct http_stream *s, const void *p, size_t n)
{
    struct request *r = http_stream_user(s);
    struct err e = {.code = ERR_NONE};

    (void)ctx;
    http_stream_credit(s, n);
    if (r == NULL || r->state != REQ_BODY) {
        return; /* answered already: the rest is let through and dropped */
    }
    if (r->body.len == 0 &&
        r->decoder == NULL) { /* in one piece when its length is known and usual */
        int64_t announced = http_stream_head(s)->content_length;

        size_t room = announced > REQUEST_BODY_USUAL ? REQUEST_BODY_USUAL
                      : announced > 0                ? (size_t)announced
                                                     : 0;

        (void)buf_reserve(&r->body, size_max(n, room));
        body_charge(r, room); /* what was announced is held from its first byte on */
    }
    if (r->decoder == NULL) {
        buf_append(&r->body, p, n);
        if (r->body.failed) {
            body_fail(r, ERR_LIMIT);
            return;
        }
    } else if (!decoder_feed(r->decoder, p, n, &r->body, &e)) {
        body_fail(r, e.code);
        return;
    }
    body_charge(r, r->body.len);
    if (r->loop->body_bytes > bodies_max(r->loop)) {
        struct api_error full = {0};

        api_error_unavailable(&full, 1000, "The gateway is at its limit of open request bodies.");
        request_fail(r, &full);
    }
}

static void on_body_end(void *ctx, struct http_stream *s)
{
    struct request *r = http_stream_user(s);
    struct err e = {.code = ERR_NONE};

    (void)ctx;
    if (r == NULL || r->state != REQ_BODY) {
        return;
    }
    if (r->decoder != NULL && !decoder_end(r->decoder, &e)) {
        body_fail(r, e.code);
        return;
    }
    request_admit(r);
}

static void on_drain(void *ctx, struct http_stream *s)
{
    struct request *r = http_stream_user(s);

    (void)ctx;
    if (r != NULL && r->paused) {
        r->paused = false;
        if (!r->extending) {
            proxy_resume(&r->attempt);
        }
    }
}

static void on_close(void *ctx, struct http_stream *s, enum http_close why)
{
    struct request *r = http_stream_user(s);

    (void)ctx;
    (void)why;
    if (r == NULL) {
        return;
    }
    r->stream = NULL;
    request_client_gone(r);
}

void request_app(struct loop *l, struct http_app *out)
{
    *out = (struct http_app){l, on_head, on_body, on_body_end, on_drain, on_close};
}

void request_cut_all(struct loop *l)
{
    struct api_error e = {0};

    api_error_unavailable(&e, 1000, "The gateway is shutting down.");
    LIST_EACH_SAFE(it, tmp, &l->requests)
    {
        struct request *r = CONTAINER_OF(it, struct request, node);

        if (r->state == REQ_DISPATCHED || r->state == REQ_STREAMING) {
            r->error = e;
            r->broken = true;
            proxy_cancel(&r->attempt);
            request_count(r, OUTCOME_TIMEOUT);
        } else if (r->state < REQ_DISPATCHED) {
            request_fail(r, &e);
        }
    }
}

void request_drop_all(struct loop *l)
{
    LIST_EACH_SAFE(it, tmp, &l->requests)
    {
        struct request *r = CONTAINER_OF(it, struct request, node);

        env_timer_disarm(l->env, &r->timer);
        env_timer_disarm(l->env, &r->linger);
        proxy_cancel(&r->attempt);
        receipt_drop(&r->receipt);
        env_task_drop(&r->hold.task);
        env_task_drop(&r->free_task);
        request_body_release(r);
        request_free(&r->free_task);
    }
}
