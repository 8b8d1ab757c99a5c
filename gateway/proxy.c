/* proxy.c - one attempt at one worker. Owns the call, the event reader and the load it charged. */
#include "gateway/proxy.h"

#include "base/net/os.h"
#include "gateway/gateway.h"

#include <stdio.h>

#define PROXY_EVENT_BYTES_MAX (1u << 20) /* one event; engines send up to 100 KB in one */
#define PROXY_SCRATCH_BYTES_MAX (16u << 20)
#define PROXY_ERROR_BODY_MAX (64u << 10) /* an error's text is not worth more */
#define PROXY_FIELDS_MAX 10

static void attempt_close(struct attempt *a)
{
    worker_release(&a->charge);
    sse_fini(&a->sse);
    buf_fini(&a->body);
    arena_fini(&a->scratch);
    a->ended = true;
    a->call = NULL;
}

static void attempt_fail(struct attempt *a, struct proxy_failure *f)
{
    const struct proxy_events *ev = a->events;
    struct worker *w = a->worker;

    if (a->ended) {
        return;
    }
    if (a->call != NULL) {
        http_call_cancel(a->call);
    }
    if (!f->client_fault && f->kind != PROXY_BUSY) {
        atomic_fetch_add_explicit(&w->errors, 1, memory_order_relaxed);
    }
    attempt_close(a);
    ev->failed(a->user, f);
}

static void attempt_fail_kind(struct attempt *a, enum proxy_failure_kind kind, bool reached)
{
    struct proxy_failure f = {.kind = kind, .reached = reached};

    if (a->status == 200 && !a->stream) {
        f.text_bytes = usage_part_bytes(a->endpoint, buf_view(&a->body));
    }
    if (kind == PROXY_BUSY) {
        api_error_unavailable(&f.error, 1000,
                              "The gateway is at its limit of connections to "
                              "the workers of this model.");
    } else {
        api_error_upstream(&f.error);
    }
    attempt_fail(a, &f);
}

static void attempt_done(struct attempt *a)
{
    if (a->ended) {
        return;
    }
    if (a->call != NULL) {
        http_call_cancel(a->call);
    }
    attempt_close(a);
    a->events->done(a->user);
}

/* An error that came inside a 200: before content it is an answer, after it the stream is cut. */
static void attempt_inband(struct attempt *a, const struct api_error *e)
{
    struct proxy_failure f = {.kind = a->content_seen ? PROXY_CUT : PROXY_STATUS,
                              .error = *e,
                              .reached = true,
                              .refused = !a->content_seen};

    f.client_fault = !a->content_seen && e->status >= 400 && e->status < 500 && e->status != 429;
    attempt_fail(a, &f);
}

static bool attempt_event(void *ctx, const char *event, struct str data)
{
    struct attempt *a = ctx;
    struct usage_chunk c;

    (void)event;
    if (str_eq(data, STR("[DONE]"))) {
        if (a->finish_seen) {
            attempt_done(a);
        } else {
            attempt_fail_kind(a, PROXY_CUT, true);
        }
        return false;
    }
    arena_reset(&a->loop->events);
    if (!usage_read_chunk(&a->calls, &a->loop->events, a->endpoint, data, &c)) {
        attempt_fail_kind(a, PROXY_BROKEN, true);
        return false;
    }
    if (c.is_error) {
        attempt_inband(a, &c.error);
        return false;
    }
    a->content_seen = a->content_seen || c.has_content;
    a->finish_seen = a->finish_seen || c.finish != FINISH_NONE;
    a->events->chunk(a->user, &c);
    return !a->ended;
}

static void proxy_on_head(void *user, unsigned status, const struct http_fields *fields)
{
    struct attempt *a = user;
    struct str type = http_field(fields, STR("content-type"));
    struct str epoch = http_field(fields, STR("x-tollgate-worker-epoch"));
    uint64_t v;

    a->status = status;
    str_copy(http_field(fields, STR("retry-after")), a->retry_after, sizeof(a->retry_after));
    if (epoch.p != NULL && str_u64(epoch, &v)) {
        atomic_store_explicit(&a->worker->epoch, v, memory_order_relaxed);
    }
    if (status != 200) {
        buf_fini(&a->body);
        buf_init(&a->body, PROXY_ERROR_BODY_MAX);
    } else if (a->stream && !str_starts(type, STR("text/event-stream"))) {
        a->stream = false; /* an engine that answered whole: read as such, mostly an error */
    }
}

static void proxy_on_body(void *user, const void *p, size_t n)
{
    struct attempt *a = user;

    if (a->status == 200) {
        worker_first_byte(&a->charge, env_now_us(a->loop->env));
    }
    if (a->status != 200 || !a->stream) {
        buf_append(&a->body, p, n);
        if (a->body.failed && a->status == 200) {
            attempt_fail_kind(a, PROXY_BROKEN, true);
        }
        return;
    }
    a->in_feed = true;
    if (!sse_feed(&a->sse, p, n, attempt_event, a) && !a->ended) {
        attempt_fail_kind(a, PROXY_BROKEN, true);
    }
    a->in_feed = false;
}

static void attempt_error_answer(struct attempt *a)
{
    struct proxy_failure f = {.kind = PROXY_STATUS, .reached = true, .refused = true};

    usage_read_error(a->status, str_c(a->retry_after), buf_view(&a->body), a->context, &f.error);
    f.client_fault = f.error.status >= 400 && f.error.status < 500 && f.error.status != 429;
    a->call = NULL;
    attempt_fail(a, &f);
}

static void proxy_on_end(void *user)
{
    struct attempt *a = user;
    struct usage_whole w;
    struct proxy_failure f = {.kind = PROXY_BROKEN, .reached = true};

    a->call = NULL;
    if (a->status != 200) {
        attempt_error_answer(a);
        return;
    }
    if (a->stream) {
        if (a->finish_seen) {
            attempt_done(a);
        } else {
            attempt_fail_kind(a, PROXY_CUT, true);
        }
        return;
    }
    arena_fini(&a->scratch);
    arena_init_cached(&a->scratch, PROXY_SCRATCH_BYTES_MAX + 4 * a->body.len, &a->loop->blocks);
    if (!usage_read_whole(&a->calls, &a->scratch, a->endpoint, buf_view(&a->body), &w, &f.error)) {
        if (!w.is_error) { /* a 200 that breaks off was produced all the same: never done again */
            attempt_fail_kind(a, PROXY_BROKEN, true);
            return;
        }
        f.refused = true;
        f.client_fault = f.error.status >= 400 && f.error.status < 500 && f.error.status != 429;
        attempt_fail(a, &f);
        return;
    }
    a->content_seen = a->finish_seen = true;
    a->events->whole(a->user, &w); /* borrows from scratch and body: closed after */
    if (!a->ended) {
        attempt_close(a);
    }
}

static void proxy_on_fail(void *user, enum http_fail why, bool sent)
{
    struct attempt *a = user;

    a->call = NULL;
    if (a->status == 200 && a->stream && a->finish_seen) {
        attempt_done(a); /* the answer was complete; only its epilogue is missing */
        return;
    }
    switch (why) {
    case HTTP_FAIL_CONNECT:
        atomic_store(&a->worker->health, WORKER_DOWN); /* the control loop's probe lifts it */
        attempt_fail_kind(a, PROXY_CONNECT, false);
        return;
    case HTTP_FAIL_LOCAL:
    case HTTP_FAIL_BUSY:
        attempt_fail_kind(a, PROXY_BUSY, false);
        return;
    case HTTP_FAIL_TIMEOUT:
        attempt_fail_kind(a, sent ? PROXY_TIMEOUT : PROXY_CONNECT, sent);
        return;
    case HTTP_FAIL_SEND:
    case HTTP_FAIL_HEAD:
    case HTTP_FAIL_BODY:
        if (a->status != 0 && a->status != 200) {
            attempt_error_answer(a);
        } else {
            attempt_fail_kind(a, PROXY_CUT, sent);
        }
        return;
    case HTTP_FAIL_PROTOCOL:
        attempt_fail_kind(a, PROXY_BROKEN, sent);
        return;
    }
    CHECK(false);
}

/* Headers to our worker only (contracts: trusted with the worker key, never sent elsewhere). */
struct proxy_head {
    struct http_field f[PROXY_FIELDS_MAX];
    size_t n;
    char event[UUID_TEXT_BYTES + 1], number[STR_U64_BYTES], k0[33], auth[512];
};

static void proxy_head_build(struct proxy_head *h, const struct proxy_request *r,
                             struct str worker_key)
{
    h->n = 0;
    h->f[h->n++] = (struct http_field){STR("content-type"), STR("application/json")};
    h->f[h->n++] = (struct http_field){STR("accept"), r->stream ? STR("text/event-stream")
                                                                : STR("application/json")};
    if (r->worker->engine != ENGINE_TOLLGATE) {
        return;
    }
    uuid_text(r->event, h->event);
    (void)str_of_u64(r->number, h->number);
    prefix_key_text(r->k0, h->k0);
    snprintf(h->auth, sizeof(h->auth), "Bearer " STR_FMT, STR_ARG(worker_key));
    h->f[h->n++] = (struct http_field){STR("authorization"), str_c(h->auth)};
    h->f[h->n++] = (struct http_field){STR("x-tollgate-event"), str_c(h->event)};
    h->f[h->n++] = (struct http_field){STR("x-tollgate-attempt"), str_c(h->number)};
    h->f[h->n++] = (struct http_field){STR("x-tollgate-prefix-key"), str_c(h->k0)};
    h->f[h->n++] = (struct http_field){STR("x-tollgate-class"), STR("standard")};
    h->f[h->n++] = (struct http_field){STR("x-tollgate-usage"), STR("each")};
    CHECK(h->n <= PROXY_FIELDS_MAX);
}

void proxy_start(struct attempt *a, struct loop *l, const struct proxy_request *r,
                 const struct proxy_events *ev, void *user)
{
    static const struct http_call_events events = {proxy_on_head, proxy_on_body, proxy_on_end,
                                                   proxy_on_fail};
    struct proxy_head head;
    struct http_call_request req;

    a->loop = l;
    a->worker = r->worker;
    a->event = r->event;
    a->number = r->number;
    a->endpoint = r->endpoint;
    a->stream = r->stream;
    a->status = 0;
    a->retry_after[0] = '\0';
    a->ended = a->finish_seen = a->content_seen = a->in_feed = false;
    a->context = r->context;
    a->events = ev;
    a->user = user;
    usage_calls_init(&a->calls, r->event);
    sse_init(&a->sse, PROXY_EVENT_BYTES_MAX);
    buf_init(&a->body, r->answer_bytes_max);
    arena_init_cached(&a->scratch, PROXY_SCRATCH_BYTES_MAX, &l->blocks);
    proxy_head_build(&head, r, l->gw->secrets.worker_key);
    req = (struct http_call_request){
        .method = HTTP_POST,
        .target =
            r->endpoint == ENDPOINT_CHAT ? STR("/v1/chat/completions") : STR("/v1/completions"),
        .fields = head.f,
        .n_fields = head.n,
        .taken = r->body,
    };
    atomic_fetch_add_explicit(&r->worker->requests, 1, memory_order_relaxed);
    a->call = http_call_start(loop_origin(l, r->worker), &req, &events, a);
    hash_wipe(head.auth, sizeof(head.auth));
}

void proxy_pause(struct attempt *a)
{
    if (!a->ended && a->call != NULL) {
        http_call_pause(a->call);
    }
}

void proxy_resume(struct attempt *a)
{
    if (!a->ended && a->call != NULL) {
        http_call_resume(a->call);
    }
}

void proxy_cancel(struct attempt *a)
{
    if (a->events == NULL || a->ended) {
        return;
    }
    if (a->call != NULL) {
        http_call_cancel(a->call);
    }
    attempt_close(a);
}
