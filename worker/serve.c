/* serve.c - the life of the server and of its jobs: streams in, engine news in, one table of
 * states. */
#include "worker/job.h"

#include <stdio.h>

#define OUT_BYTES_MAX                                                                              \
    ((size_t)128 << 20)       /* one answer as JSON; the server's own bound is lower               \
                               */
#define DRAIN_FLUSH_US 500000 /* after the limit: for the last error events to leave */

void job_set_state(struct job *j, enum job_state to)
{
    static const bool legal[JOB_STATE_COUNT][JOB_STATE_COUNT] = {
        [JOB_BODY] = {[JOB_WAITING] = true, [JOB_DONE] = true},
        [JOB_WAITING] = {[JOB_RUNNING] = true, [JOB_CLOSING] = true},
        [JOB_RUNNING] = {[JOB_CLOSING] = true},
        [JOB_CLOSING] = {[JOB_DONE] = true},
    };

    CHECK(legal[j->state][to]);
    j->state = to;
}

void job_free(struct job *j)
{
    j->serve->body_bytes -= j->body.len;
    list_remove(&j->node);
    prompt_fini(&j->prompt);
    if (j->ticket != 0) {
        detok_fini(&j->detok);
        buf_fini(&j->text);
        buf_fini(&j->tokens);
    }
    buf_fini(&j->body);
    arena_fini(&j->arena);
    mem_free(j);
}

void serve_abort_job(struct job *j)
{
    if (!j->abort_sent) {
        j->abort_sent = true;
        engine_thread_abort(j->serve->engine, j->ticket);
    }
}

static struct job *job_of_ticket(struct serve *s, uint64_t ticket)
{
    struct job *j = s->by_ticket[ticket & 0xFFFF];

    CHECK(j != NULL && j->ticket == ticket); /* the slot is held until END */
    return j;
}

struct job *serve_live_event(struct serve *s, struct uuid event)
{
    struct receipt *r = receipts_find(s->receipts, event);
    struct job *j = r != NULL ? s->by_ticket[r->ticket & 0xFFFF] : NULL;

    return j != NULL && j->ticket == r->ticket ? j : NULL;
}

/* Brings the receipt up to date; one that is final stays as it is. */
static void note_receipt(struct job *j, enum receipt_state state)
{
    struct receipt *r = uuid_is_zero(j->event) ? NULL : receipts_find(j->serve->receipts, j->event);

    if (r != NULL && receipt_is_live(r)) {
        r->state = state;
        r->prompt = j->prompt_tokens;
        r->cached = j->cached_tokens;
        r->completion = j->completion_tokens;
    }
}

static void on_started(struct job *j, const struct engine_event *ev)
{
    struct metrics *m = &j->serve->metrics;

    j->cached_tokens = ev->cached_tokens;
    m->prompt_tokens += ev->prompt_tokens;
    m->cached_tokens += ev->cached_tokens;
    hist_add(&m->queue, env_now_us(j->serve->env) - j->submitted_us);
    note_receipt(j, RECEIPT_RUNNING);
    if (j->state == JOB_WAITING) {
        job_set_state(j, JOB_RUNNING);
    }
}

static void time_token(struct job *j)
{
    struct metrics *m = &j->serve->metrics;
    uint64_t now = env_now_us(j->serve->env);

    if (j->first_token_us == 0) {
        j->first_token_us = now;
        hist_add(&m->ttft, now - j->submitted_us);
    } else {
        hist_add(&m->tpot, now - j->last_token_us);
    }
    j->last_token_us = now;
}

static void on_token(struct job *j, const struct engine_event *ev)
{
    if (j->detok.stopped) {
        return; /* computed beside the stop: nobody's */
    }
    j->completion_tokens = ev->completion_tokens;
    j->serve->metrics.generation_tokens++;
    time_token(j);
    note_receipt(j, RECEIPT_RUNNING);
    if (j->state == JOB_RUNNING) {
        answer_token(j, ev);
        if (j->detok.stopped) {
            note_receipt(j, RECEIPT_STOP);
        }
    }
}

static enum receipt_state end_state(const struct job *j, enum engine_finish why)
{
    static const enum receipt_state states[] = {
        [ENGINE_STOP] = RECEIPT_STOP,
        [ENGINE_LENGTH] = RECEIPT_LENGTH,
        [ENGINE_ABORTED] = RECEIPT_ABORTED,
        [ENGINE_REFUSED] = RECEIPT_REFUSED,
    };

    return j->detok.stopped ? RECEIPT_STOP : states[why];
}

static void count_end(struct metrics *m, enum receipt_state state, uint64_t took_us)
{
    m->finished_stop += state == RECEIPT_STOP;
    m->finished_length += state == RECEIPT_LENGTH;
    m->finished_abort += state == RECEIPT_ABORTED;
    m->refused += state == RECEIPT_REFUSED;
    if (state == RECEIPT_STOP || state == RECEIPT_LENGTH) {
        hist_add(&m->e2e, took_us);
    }
}

/* The client is still there and has no end of its answer yet. */
static void answer_at_end(struct job *j, enum engine_finish why)
{
    struct api_error x = {0};

    if (why == ENGINE_STOP || why == ENGINE_LENGTH) {
        answer_end(j, why);
        return;
    }
    if (why == ENGINE_REFUSED) {
        api_refuse(&x, 503, "server_is_overloaded", NULL, "There is no memory for this request.");
    } else {
        api_refuse(&x, 500, "aborted", NULL, "The request was aborted.");
    }
    answer_fail(j, &x);
}

static void on_end(struct job *j, const struct engine_event *ev)
{
    struct serve *s = j->serve;
    enum receipt_state state = end_state(j, ev->finish);

    note_receipt(j, state);
    count_end(&s->metrics, state, env_now_us(s->env) - j->submitted_us);
    if (j->state != JOB_CLOSING) {
        answer_at_end(j, ev->finish);
    }
    control_answer_waiters(j, state);
    s->by_ticket[j->ticket & 0xFFFF] = NULL;
    s->live--;
    job_set_state(j, JOB_DONE);
    if (j->stream == NULL) {
        job_free(j);
    }
}

static void on_news(void *ctx)
{
    struct serve *s = ctx;
    struct engine_news n;

    while (engine_thread_next(s->engine, &n)) {
        if (n.kind != ENGINE_NEWS_EVENT) {
            kv_events_change(s->kv, n.u.chunk, n.kind == ENGINE_NEWS_STORED);
            continue;
        }
        struct job *j = job_of_ticket(s, n.u.event.ticket);

        if (n.u.event.kind == ENGINE_STARTED) {
            on_started(j, &n.u.event);
        } else if (n.u.event.kind == ENGINE_TOKEN) {
            on_token(j, &n.u.event);
        } else {
            on_end(j, &n.u.event);
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
    if (j != NULL) {
        api_body_end(j);
    }
}

static void on_drain(void *ctx, struct http_stream *st)
{
    (void)ctx; /* answers are bounded by max_tokens: nothing waits for room */
    (void)st;
}

static void job_lost_stream(struct job *j)
{
    j->stream = NULL;
    if (j->state == JOB_BODY) {
        job_set_state(j, JOB_DONE);
    } else if (j->state == JOB_WAITING || j->state == JOB_RUNNING) {
        job_set_state(j, JOB_CLOSING);
        serve_abort_job(j);
    }
    if (j->state == JOB_DONE) {
        job_free(j);
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

static void serve_init(struct serve *s)
{
    uint8_t random[16];
    char publisher[UUID_TEXT_BYTES + 1];

    /* Decimal, 16 digits, new at each start: microseconds of the wall clock. */
    snprintf(s->epoch, sizeof(s->epoch), "%llu", (unsigned long long)env_wall_us(s->env));
    env_random(s->env, random, sizeof(random));
    uuid_text(uuid_v7(env_wall_us(s->env) / 1000, random), publisher);
    env_random(s->env, &s->own_key, sizeof(s->own_key));
    s->started_s = env_wall_us(s->env) / 1000000;
    list_init(&s->jobs);
    buf_init(&s->out, OUT_BYTES_MAX);
    s->token_bytes_max = longest_token(s->model->tokenizer);
    s->live_max = s->o.sequences_max + s->o.waiting_max;
    s->by_ticket = mem_new(s->live_max * sizeof(struct job *));
    s->receipts = receipts_new(env_random_u64(s->env));
    s->kv = kv_events_new(str_c(publisher), str_c(s->epoch));
}

struct serve *serve_new(struct env *env, struct log *log, const struct model *m, struct backend *b,
                        struct env_sock *listener, const struct serve_options *o, struct err *e)
{
    struct serve *s = mem_new(sizeof(*s));
    struct http_app app = {.ctx = s,
                           .on_head = on_head,
                           .on_body = on_body,
                           .on_body_end = on_body_end,
                           .on_drain = on_drain,
                           .on_close = on_close};
    struct http_limits limits = http_limits_default;
    struct engine_options g = {.kv_blocks = o->kv_blocks,
                               .sequences_max = o->sequences_max,
                               .waiting_max = o->waiting_max,
                               .step_tokens = o->step_tokens};

    CHECK(o->sequences_max + o->waiting_max <= 0xFFFF);
    s->env = env;
    s->log = log;
    s->model = m;
    s->backend = b;
    s->o = *o;
    serve_init(s);
    g.seed = env_random_u64(env);
    s->engine = engine_thread_new(m, b, &g, s->live_max, env, on_news, s, e);
    if (s->engine == NULL) {
        serve_free(s);
        env_close(env, listener);
        return NULL;
    }
    s->server = http_server_new(env, log, &app, &limits);
    http_server_listen(s->server, listener, NULL, HTTP_H1_H2);
    control_kv_start(s);
    return s;
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

        if (j->state == JOB_WAITING || j->state == JOB_RUNNING) {
            answer_fail(j, &x);
            serve_abort_job(j);
        }
    }
    t->fire = on_drain_over;
    env_timer_arm(s->env, t, env_now_us(s->env) + DRAIN_FLUSH_US);
}

void serve_drain(struct serve *s, uint64_t limit_us, void (*done)(void *ctx), void *ctx)
{
    if (s->draining) {
        return;
    }
    s->draining = true;
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
    engine_thread_free(s->engine); /* before the requests that it names */
    while (!list_is_empty(&s->jobs)) {
        job_free(CONTAINER_OF(s->jobs.next, struct job, node));
    }
    kv_events_free(s->kv);
    receipts_free(s->receipts);
    mem_free(s->by_ticket);
    buf_fini(&s->out);
    mem_free(s);
}
