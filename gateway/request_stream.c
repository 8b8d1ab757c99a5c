/* request_stream.c - what comes back from a worker: pieces, the end, failures; limits while it
 * runs. */
#include "gateway/request.h"

#define STREAM_EXTEND_TOKENS 512 /* a step of the hold */
/* Asked for this far before the hold is used up: one read (32 KiB) of an engine's events, which are
 * 128 bytes and more each, may still come before the answer. */
#define STREAM_EXTEND_AHEAD 256
#define STREAM_PROGRESS_TOKENS 256 /* a PROGRESS record at least this often, or each second */
#define STREAM_PROGRESS_US 1000000
#define WAITS_AGAIN_US 50000 /* as long as the back-off between two attempts may be */

/* Output tokens so far, by the worker's cumulative count where it gives one. */
static int64_t output_so_far(const struct request *r)
{
    if (r->said.present && (request_is_ours(r) || r->said.completion > 0)) {
        return r->said.completion;
    }
    return r->content_events;
}

static void begin_streaming(struct request *r)
{
    if (r->state == REQ_STREAMING) {
        return;
    }
    request_set_state(r, REQ_STREAMING);
    r->first_us = env_now_us(r->loop->env);
    env_timer_disarm(r->loop->env, &r->timer);
    hist_add(&r->loop->metrics.ttft, r->first_us - r->begun_us);
}

/* Our worker's first count is exact: what the bound took too much goes back at once. At the
 * uncached price, and the bill is bound by this count from now on: settled <= held whatever comes
 * later. */
static void trim(struct request *r)
{
    struct money worst;

    if (!request_is_ours(r) || r->trimmed || r->said.prompt <= 0 ||
        r->said.prompt > r->prompt_bound || r->extending) {
        return;
    }
    r->trimmed = true;
    r->prompt_bound = r->said.prompt;
    worst = price_bound(r->price, r->prompt_bound, r->out_held);
    quota_trim(r->loop->gw->quota, &r->hold, r->said.prompt, money_nusd_ceil(worst),
               env_now_us(r->loop->env));
}

/* As said, else as routing estimated it: a row made of PROGRESS alone has a prompt too. */
static int32_t prompt_so_far(const struct request *r)
{
    int64_t n =
        r->said.present && r->said.prompt > 0 ? r->said.prompt : (int64_t)r->prompt_tokens + 1;

    return (int32_t)(n < r->prompt_bound ? n : r->prompt_bound);
}

static void progress(struct request *r, int64_t output)
{
    uint64_t now = env_now_us(r->loop->env);
    struct record rec = {.type = RECORD_PROGRESS};

    if (output - r->last_progress_tokens < STREAM_PROGRESS_TOKENS &&
        now - r->last_progress_us < STREAM_PROGRESS_US) {
        return;
    }
    r->last_progress_us = now;
    r->last_progress_tokens = output;
    rec.progress.event = r->attempt.event;
    rec.progress.at_us = env_wall_us(r->loop->env);
    rec.progress.prompt = prompt_so_far(r);
    rec.progress.cached = r->said.present ? (int32_t)r->said.cached : 0;
    rec.progress.output = (int32_t)output;
    rec.progress.output_held = (int32_t)(r->out_held < INT32_MAX ? r->out_held : INT32_MAX);
    (void)journal_put(r->loop->port,
                      &rec); /* a full ring loses a PROGRESS only: CLOSE still comes */
}

static void extend_ahead(struct request *r, int64_t output)
{
    int64_t more = r->out_limit - r->out_held;

    if (more <= 0 || r->extending || r->extend_refused ||
        output + STREAM_EXTEND_AHEAD < r->out_held) {
        return;
    }
    request_extend(r, more < STREAM_EXTEND_TOKENS ? more : STREAM_EXTEND_TOKENS, false);
}

/* The hold is used up and will not grow: the answer ends here with `length`. */
static void cut_at_hold(struct request *r)
{
    r->cut_by_us = true;
    r->finish = FINISH_LENGTH;
    atomic_fetch_add_explicit(&r->loop->metrics.clamped, 1, memory_order_relaxed);
    proxy_cancel(&r->attempt);
    request_count(r, OUTCOME_CLAMPED);
}

static void deliver(struct request *r, const struct usage_chunk *c)
{
    if (r->api.stream) {
        request_answer_chunk(r, c);
    } else {
        request_gather_chunk(r, c);
    }
}

static void on_chunk(void *user, const struct usage_chunk *c)
{
    struct request *r = user;
    int64_t output;

    if (c->usage.present) {
        r->said = c->usage;
    }
    if (!c->has_content && c->finish == FINISH_NONE) {
        return; /* a role or a usage alone: nothing the client must hear yet */
    }
    begin_streaming(r);
    trim(r);
    if (c->has_content) {
        r->content_events++;
        r->answer_bytes += c->delta.text.n;
    }
    output = output_so_far(r);
    if (output > r->out_held && r->out_held < r->out_limit) {
        cut_at_hold(r); /* this piece is past what is paid for: it stays here */
        return;
    }
    if (c->has_content) {
        deliver(r, c);
    }
    if (c->finish != FINISH_NONE) {
        r->finish = c->finish;
        return;
    }
    progress(r, output);
    if (output >= r->out_held && r->out_held < r->out_limit && r->extend_refused) {
        cut_at_hold(r);
        return;
    }
    extend_ahead(r, output);
}

static void on_done(void *user)
{
    struct request *r = user;

    if (r->state == REQ_DISPATCHED) {
        begin_streaming(r);
    }
    request_settle(r, OUTCOME_DONE);
}

static void on_whole(void *user, const struct usage_whole *w)
{
    struct request *r = user;
    struct usage_chunk piece = {.has_content = true};

    begin_streaming(r);
    if (r->api.stream && usage_whole_delta(&r->attempt.scratch, r->endpoint, w, &piece.delta)) {
        request_answer_chunk(r, &piece);
    } else if (r->api.stream) {
        api_error_upstream(&r->error);
        r->broken = true;
    }
    r->said = w->usage;
    r->finish = w->finish;
    r->whole = w->choice;
    r->answer_bytes = w->text_bytes;
    r->content_events = w->text_bytes > 0 ? 1 : 0;
    request_settle(r, OUTCOME_DONE);
    r->whole = NULL;
}

/* Before content: another worker may be tried if nothing was produced; else the client is told. */
static void failed_early(struct request *r, const struct proxy_failure *f)
{
    bool nothing = !f->reached || (f->refused && !(request_is_ours(r) && r->said.completion > 0));

    r->error = f->error;
    if (!request_is_ours(r)) { /* ours is asked for its count */
        r->answer_bytes = f->text_bytes;
    }
    if (!f->reached) {
        request_void_attempt(r);
        request_set_state(r, REQ_QUEUED);
        if (request_may_retry(r)) {
            request_retry(r);
        } else {
            request_fail(r, &f->error);
        }
        return;
    }
    r->after = nothing && !f->client_fault && request_may_retry(r) ? AFTER_RETRY : AFTER_ANSWER;
    if (nothing) {
        request_settle(r, OUTCOME_REFUSED_BY_WORKER);
    } else {
        /* Only the worker's own count can say that nothing was produced; then another one is tried.
         */
        request_count(r, f->kind == PROXY_TIMEOUT ? OUTCOME_TIMEOUT : OUTCOME_WORKER_ERROR);
    }
}

static void on_failed(void *user, const struct proxy_failure *f)
{
    struct request *r = user;

    if (r->state == REQ_DISPATCHED) {
        failed_early(r, f);
        return;
    }
    atomic_fetch_add_explicit(&r->loop->metrics.cut, 1, memory_order_relaxed);
    r->error = f->error;
    r->broken = true;
    request_count(r, f->kind == PROXY_TIMEOUT ? OUTCOME_TIMEOUT : OUTCOME_WORKER_ERROR);
}

const struct proxy_events request_proxy_events = {on_chunk, on_done, on_whole, on_failed};

/* Some time without a first token: the head goes out, then comments keep the line alive. */
void request_waits(struct env_timer *t)
{
    struct request *r = CONTAINER_OF(t, struct request, timer);
    const struct gateway_config *c = &r->loop->gw->config;

    if (r->stream == NULL || !r->api.stream || r->state >= REQ_STREAMING) {
        return;
    }
    if (!r->responded && r->state != REQ_DISPATCHED) {
        /* Between two attempts: the head would end the retries, and take the prompt they need. */
        env_timer_arm(r->loop->env, t, env_now_us(r->loop->env) + WAITS_AGAIN_US);
        return;
    }
    if (!r->responded) {
        request_answer_begin(r);
    }
    http_stream_write(r->stream, ": ping\n", 7);
    env_timer_arm(r->loop->env, &r->timer, env_now_us(r->loop->env) + (uint64_t)c->keepalive_us);
}
