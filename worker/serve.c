/* serve.c - the life of the server: streams in, the model when it comes, the first forwards, the
 * end. */
#include "worker/job.h"

#include <stdio.h>

#define OUT_BYTES_MAX                                                                              \
    ((size_t)128 << 20)       /* one answer as JSON; the server's own bound is lower               \
                               */
#define DRAIN_FLUSH_US 500000 /* after the limit: for the last error events to leave */
#define WARM_ROUNDS 2

void serve_set_state(struct serve *s, enum serve_state to)
{
    static const bool legal[SERVE_STATE_COUNT][SERVE_STATE_COUNT] = {
        [SERVE_LOADING] = {[SERVE_WARMING] = true, [SERVE_DRAINING] = true},
        [SERVE_WARMING] = {[SERVE_READY] = true, [SERVE_DRAINING] = true},
        [SERVE_READY] = {[SERVE_DRAINING] = true},
    };

    CHECK(legal[s->state][to]);
    s->state = to;
}

/* Round 0: a chunk of prefill, then a decode alone. Round 1: decodes together. What a backend makes
 * at first use (pages, tables, kernels) is then made before anyone waits for it. */
static void warm_round(struct serve *s)
{
    struct serve_warm *w = &s->warm;
    bool alone = w->round == 0;
    uint32_t n = alone ? 1 : (uint32_t)u64_min(s->plan.engine.sequences_max, SERVE_WARM_MAX);
    uint32_t room = s->plan.max_model_len > 2 ? s->plan.max_model_len - 2 : 1;

    w->left = n;
    for (uint32_t i = 0; i < n; i++) {
        w->request[i] = (struct engine_request){
            .ticket = i + 1,
            .ids = w->ids,
            .n_ids = alone ? (uint32_t)u64_min(u64_min(room, SERVE_WARM_TOKENS_MAX),
                                               s->plan.engine.step_tokens)
                           : 1 + i % room,
            .max_tokens = s->plan.max_model_len > 2 ? 2 : 1,
            .sample = {.top_p = 1, .repetition_penalty = 1},
            .salt = s->own_key,
            .class = ENGINE_INTERACTIVE,
            .ignore_eos = true,
        };
        engine_thread_submit(s->engine, &w->request[i]);
    }
}

static void warm_news(struct serve *s, const struct engine_event *ev)
{
    if (ev->kind != ENGINE_END || --s->warm.left > 0) {
        return;
    }
    if (++s->warm.round < WARM_ROUNDS) {
        warm_round(s);
        return;
    }
    engine_thread_stats(s->engine, &s->warm.stats);
    if (s->state == SERVE_WARMING) {
        serve_set_state(s, SERVE_READY);
        s->ready(s->ready_ctx);
    }
}

static void on_news(void *ctx)
{
    struct serve *s = ctx;
    struct engine_news n;

    while (engine_thread_next(s->engine, &n)) {
        if (n.kind != ENGINE_NEWS_EVENT) {
            kv_events_change(s->kv, n.u.chunk, n.kind == ENGINE_NEWS_STORED);
        } else if (n.u.event.ticket <= SERVE_WARM_MAX) { /* others have a generation above */
            warm_news(s, &n.u.event);
        } else {
            job_news(s, &n.u.event);
        }
    }
    engine_thread_drained(s->engine);
    control_kv_changed(s);
}

static void on_head(void *ctx, struct http_stream *st, const struct http_head *h)
{
    struct serve *s = ctx;

    if (!control_head(s, st, h)) {
        api_head(s, st, h);
    }
}

static struct job *job_of_stream(struct http_stream *st)
{
    struct exchange *x = http_stream_user(st);

    return x != NULL && x->kind == EXCHANGE_JOB ? x->job : NULL;
}

static void on_body(void *ctx, struct http_stream *st, const void *p, size_t n)
{
    struct job *j = job_of_stream(st);

    (void)ctx;
    if (j != NULL) {
        api_body(j, p, n);
    } else {
        http_stream_credit(st, n);
    }
}

static void on_body_end(void *ctx, struct http_stream *st)
{
    struct job *j = job_of_stream(st);

    (void)ctx;
    if (j != NULL && j->state == JOB_BODY) { /* also while draining: the head was taken */
        submit_body(j);
    }
}

static void on_drain(void *ctx, struct http_stream *st)
{
    struct job *j = job_of_stream(st);

    (void)ctx;
    if (j != NULL) {
        answer_drained(j);
    }
}

static void on_close(void *ctx, struct http_stream *st, enum http_close why)
{
    struct exchange *x = http_stream_user(st);

    (void)why;
    if (x == NULL) {
        return;
    }
    if (x->kind == EXCHANGE_JOB) {
        job_lost_stream(x->job);
    } else {
        control_stream_closed(ctx, st, x);
    }
}

static size_t longest_token(const struct tokenizer *t)
{
    size_t longest = 1;

    for (uint32_t i = 0; i < tokenizer_count(t); i++) {
        longest = size_max(longest, tokenizer_bytes(t, (int32_t)i, true).n);
    }
    return longest;
}

struct serve *serve_new(struct env *env, struct log *log, struct env_sock *listener,
                        const struct serve_options *o)
{
    struct serve *s = mem_new(sizeof(*s));
    struct http_app app = {.ctx = s,
                           .on_head = on_head,
                           .on_body = on_body,
                           .on_body_end = on_body_end,
                           .on_drain = on_drain,
                           .on_close = on_close};
    struct http_limits limits = http_limits_default;
    uint8_t random[16];
    char publisher[UUID_TEXT_BYTES + 1];

    s->env = env;
    s->log = log;
    s->o = *o;
    s->state = SERVE_LOADING;
    /* Decimal, 16 digits, new at each start: microseconds of the wall clock. */
    snprintf(s->epoch, sizeof(s->epoch), "%llu", (unsigned long long)env_wall_us(env));
    env_random(env, random, sizeof(random));
    uuid_text(uuid_v7(env_wall_us(env) / 1000, random), publisher);
    env_random(env, &s->own_key, sizeof(s->own_key));
    s->started_s = env_wall_us(env) / 1000000;
    list_init(&s->jobs);
    buf_init(&s->out, OUT_BYTES_MAX);
    s->receipts = receipts_new(env_random_u64(env));
    s->kv = kv_events_new(str_c(publisher), str_c(s->epoch));
    s->server = http_server_new(env, log, &app, &limits);
    http_server_listen(s->server, listener, NULL, HTTP_H1_H2);
    return s;
}

static struct str bytes_of_token(void *ctx, int32_t id)
{
    return tokenizer_bytes(ctx, id, false);
}

/* Tokens that end an answer: the model's own and those of the chat family. */
static uint32_t end_tokens(const struct serve *s, int32_t out[3])
{
    const struct tokenizer *t = s->model->tokenizer;
    const struct chat_tool_format *f = s->shape.format;
    int32_t id =
        s->plan.family != CHAT_NONE ? tokenizer_find(t, chat_end_token(s->plan.family)) : -1;
    uint32_t n = 0;

    if (s->model->eos >= 0) {
        out[n++] = s->model->eos;
    }
    if (id >= 0 && id != s->model->eos) {
        out[n++] = id;
    }
    id = f != NULL && f->end_token.n > 0 ? tokenizer_find(t, f->end_token) : -1;
    if (id >= 0 && id != s->model->eos) {
        out[n++] = id;
    }
    return n;
}

bool serve_load(struct serve *s, const struct model *m, struct backend *b,
                const struct serve_plan *p, void (*ready)(void *ctx), void *ctx, struct err *e)
{
    struct engine_options g = p->engine;
    int32_t ends[3];
    uint32_t n_ends;

    CHECK(s->engine == NULL && g.sequences_max + g.waiting_max <= 0xFFFF);
    s->model = m;
    s->backend = b;
    s->plan = *p;
    s->ready = ready;
    s->ready_ctx = ctx;
    s->token_bytes_max = longest_token(m->tokenizer);
    s->live_max = g.sequences_max + g.waiting_max;
    tool_shape_init(&s->shape, p->family != CHAT_NONE ? chat_tool_format(p->family) : NULL,
                    m->tokenizer);
    n_ends = end_tokens(s, ends);
    s->vocab = grammar_vocab_new(m->vocab, bytes_of_token, m->tokenizer, ends, n_ends, e);
    if (s->vocab == NULL) {
        return false;
    }
    s->grammars = grammar_store_new(s->vocab);
    g.seed = env_random_u64(s->env);
    s->by_ticket = mem_new(s->live_max * sizeof(struct choice *));
    s->engine = engine_thread_new(m, b, &g, s->live_max + SERVE_WARM_MAX, s->env, on_news, s, e);
    if (s->engine == NULL) {
        return false;
    }
    if (!submit_start(s, e)) {
        return false;
    }
    control_kv_start(s);
    if (s->state == SERVE_LOADING) {
        serve_set_state(s, SERVE_WARMING);
        warm_round(s);
    }
    return true;
}

static void drained(struct serve *s)
{
    void (*done)(void *ctx) = s->drained;

    env_timer_disarm(s->env, &s->drain_limit);
    s->drained = NULL;
    if (done != NULL) {
        done(s->drained_ctx);
    }
}

static void on_drained(void *ctx)
{
    drained(ctx);
}

static void on_drain_over(struct env_timer *t)
{
    drained(CONTAINER_OF(t, struct serve, drain_limit));
}

static void on_drain_limit(struct env_timer *t)
{
    struct serve *s = CONTAINER_OF(t, struct serve, drain_limit);
    struct api_error x = {0};

    api_refuse(&x, 503, "server_shutdown", NULL, "This worker is shutting down.");
    LIST_EACH_SAFE(it, tmp, &s->jobs)
    {
        struct job *j = CONTAINER_OF(it, struct job, node);

        if (j->state == JOB_PREPARING) {
            api_send_error(s, j->stream, &x);
            submit_leave(j);
        } else if (j->state == JOB_WAITING || j->state == JOB_RUNNING) {
            answer_fail(j, &x);
            job_abort(j);
        }
    }
    t->fire = on_drain_over;
    env_timer_arm(s->env, t, env_now_us(s->env) + DRAIN_FLUSH_US);
}

void serve_drain(struct serve *s, uint64_t limit_us, void (*done)(void *ctx), void *ctx)
{
    if (s->state == SERVE_DRAINING) {
        return;
    }
    serve_set_state(s, SERVE_DRAINING);
    s->drained = done;
    s->drained_ctx = ctx;
    control_end_subscribers(s);
    s->drain_limit.fire = on_drain_limit;
    env_timer_arm(s->env, &s->drain_limit, env_now_us(s->env) + limit_us);
    http_server_drain(s->server, on_drained, s);
}

void serve_free(struct serve *s)
{
    if (s == NULL) {
        return;
    }
    env_timer_disarm(s->env, &s->kv_flush);
    env_timer_disarm(s->env, &s->kv_heartbeat);
    env_timer_disarm(s->env, &s->drain_limit);
    if (s->server != NULL) {
        http_server_free(s->server);
    }
    submit_stop(s);
    engine_thread_free(s->engine); /* before the requests that it names */
    while (!list_is_empty(&s->jobs)) {
        job_free(CONTAINER_OF(s->jobs.next, struct job, node));
    }
    kv_events_free(s->kv);
    receipts_free(s->receipts);
    grammar_store_free(s->grammars);
    grammar_vocab_free(s->vocab);
    mem_free(s->by_ticket);
    buf_fini(&s->out);
    mem_free(s);
}
