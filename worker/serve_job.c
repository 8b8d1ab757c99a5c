/* serve_job.c - the life of a job and of its choices: two tables of states, the engine's news, the
 * receipt, the end. */
#include "worker/job.h"

void job_set_state(struct job *j, enum job_state to)
{
    static const bool legal[JOB_STATE_COUNT][JOB_STATE_COUNT] = {
        [JOB_BODY] = {[JOB_PREPARING] = true, [JOB_DONE] = true},
        [JOB_PREPARING] = {[JOB_WAITING] = true, [JOB_LEAVING] = true, [JOB_DONE] = true},
        [JOB_LEAVING] = {[JOB_DONE] = true},
        [JOB_WAITING] = {[JOB_RUNNING] = true, [JOB_CLOSING] = true},
        [JOB_RUNNING] = {[JOB_CLOSING] = true},
        [JOB_CLOSING] = {[JOB_DONE] = true},
    };

    CHECK(legal[j->state][to]);
    j->state = to;
}

void choice_set_state(struct choice *c, enum choice_state to)
{
    static const bool legal[CHOICE_STATE_COUNT][CHOICE_STATE_COUNT] = {
        [CHOICE_WAITING] =
            {[CHOICE_RUNNING] = true, [CHOICE_ANSWERED] = true, [CHOICE_ENDED] = true},
        [CHOICE_RUNNING] = {[CHOICE_ANSWERED] = true, [CHOICE_ENDED] = true},
        [CHOICE_ANSWERED] = {[CHOICE_ENDED] = true},
    };

    CHECK(legal[c->state][to]);
    c->state = to;
}

struct job *job_new(struct serve *s, struct http_stream *st, enum job_kind kind)
{
    struct exchange *x = arena_alloc(http_stream_arena(st), sizeof(*x));
    struct job *j = mem_try(1, sizeof(*j));

    if (x == NULL || j == NULL) {
        mem_free(j);
        return NULL;
    }
    j->serve = s;
    j->stream = st;
    j->state = JOB_BODY;
    j->kind = kind;
    j->n = 1;
    j->unsent.fire = answer_unread;
    arena_init(&j->arena, JOB_ARENA_BYTES_MAX);
    buf_init(&j->body, JOB_BODY_BYTES_MAX);
    buf_init(&j->answer, JOB_ANSWER_BYTES_MAX);
    list_push_back(&s->jobs, &j->node);
    x->kind = EXCHANGE_JOB;
    x->job = j;
    http_stream_set_user(st, x);
    return j;
}

/* What the text of an answer may grow to: U+FFFD for each byte of each token. */
static size_t text_bytes_max(const struct job *j)
{
    return ((size_t)j->request.max_tokens + 1) * (j->serve->token_bytes_max + 3) * 3;
}

bool job_choices(struct job *j)
{
    j->choice = mem_try(j->n, sizeof(*j->choice));
    if (j->choice == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < j->n; i++) {
        struct choice *c = &j->choice[i];

        c->job = j;
        c->state = CHOICE_WAITING;
        c->index = i;
        c->request = j->request;
        c->request.sample.choice = i;
        detok_init(&c->detok, j->stops, j->n_stops);
        buf_init(&c->text, text_bytes_max(j) + DETOK_STOP_BYTES_MAX + j->echo_text.n);
        buf_init(&c->tokens, ((size_t)j->request.max_tokens + 1) * sizeof(struct job_token));
        for (size_t k = 0; k < JOB_LOGPROB_LISTS; k++) {
            buf_init(&c->logprobs[k], JOB_ANSWER_BYTES_MAX);
        }
        tools_init(c, text_bytes_max(j) + DETOK_STOP_BYTES_MAX);
    }
    j->unanswered = j->unended = j->n;
    return true;
}

void job_drop_tree(struct job *j)
{
    buf_fini(&j->body);
    arena_fini(&j->arena);
    j->root = NULL;
    j->tools = NULL;
    memset(j->field, 0, sizeof(j->field));
}

void job_forget_body(struct job *j)
{
    j->serve->body_bytes -= j->body_counted;
    j->body_counted = 0;
    if (j->root != NULL || j->body.len > 0) { /* a lane dropped them, or kept what is needed */
        job_drop_tree(j);
    }
}

void job_free(struct job *j)
{
    job_forget_body(j);
    env_timer_disarm(j->serve->env, &j->unsent);
    list_remove(&j->node);
    for (uint32_t i = 0; j->choice != NULL && i < j->n; i++) {
        detok_fini(&j->choice[i].detok);
        buf_fini(&j->choice[i].text);
        buf_fini(&j->choice[i].tokens);
        for (size_t k = 0; k < JOB_LOGPROB_LISTS; k++) {
            buf_fini(&j->choice[i].logprobs[k]);
        }
        tools_fini(&j->choice[i]);
    }
    mem_free(j->choice);
    prompt_fini(&j->prompt);
    grammar_release(j->grammar);
    buf_fini(&j->body);
    buf_fini(&j->answer);
    arena_fini(&j->arena);
    mem_free(j);
}

void choice_abort(struct choice *c)
{
    if (!c->abort_sent && c->state != CHOICE_ENDED) {
        c->abort_sent = true;
        engine_thread_abort(c->job->serve->engine, c->ticket);
    }
}

void job_abort(struct job *j)
{
    for (uint32_t i = 0; j->choice != NULL && i < j->n; i++) {
        choice_abort(&j->choice[i]);
    }
}

void job_lost_stream(struct job *j)
{
    j->stream = NULL;
    env_timer_disarm(j->serve->env, &j->unsent);
    if (j->state == JOB_BODY) {
        job_set_state(j, JOB_DONE);
    } else if (j->state == JOB_PREPARING) {
        submit_leave(j);
        return;
    } else if (j->state == JOB_WAITING || j->state == JOB_RUNNING) {
        job_set_state(j, JOB_CLOSING);
        job_abort(j);
    }
    if (j->state == JOB_DONE) {
        job_free(j);
    }
}

uint32_t job_completion_tokens(const struct job *j)
{
    uint32_t sum = 0;

    for (uint32_t i = 0; j->choice != NULL && i < j->n; i++) {
        sum += j->choice[i].completion_tokens;
    }
    return sum;
}

/* The places of a job are held until its last choice ended, so the first one stands for it. */
struct job *serve_live_event(struct serve *s, struct uuid event)
{
    struct receipt *r = receipts_find(s->receipts, event);
    struct choice *c = r != NULL && r->ticket != 0 ? s->by_ticket[r->ticket & 0xFFFF] : NULL;

    return c != NULL && c->ticket == r->ticket ? c->job : NULL;
}

/* Brings the receipt up to date; one that is final stays as it is. */
static void note_receipt(struct job *j, enum receipt_state state)
{
    struct receipt *r = uuid_is_zero(j->event) ? NULL : receipts_find(j->serve->receipts, j->event);

    if (r != NULL && receipt_is_live(r)) {
        r->state = state;
        r->prompt = j->prompt_tokens;
        r->cached = j->cached_tokens;
        r->completion = job_completion_tokens(j);
    }
}

/* What became of the whole: an answer that is not there is worse than one that was cut. */
static enum receipt_state state_of_all(const struct job *j)
{
    bool cut = false, lost = false;

    for (uint32_t i = 0; i < j->n; i++) {
        const struct choice *c = &j->choice[i];

        cut = cut || c->finish == ENGINE_LENGTH;
        lost = lost || (c->finish != ENGINE_LENGTH && c->finish != ENGINE_STOP);
    }
    if (lost) {
        return j->started                              ? RECEIPT_ABORTED
               : j->choice[0].finish == ENGINE_ABORTED ? RECEIPT_ABORTED
                                                       : RECEIPT_REFUSED;
    }
    return cut ? RECEIPT_LENGTH : RECEIPT_STOP;
}

void job_note_answered(struct job *j)
{
    note_receipt(j, state_of_all(j));
}

static void on_started(struct choice *c, const struct engine_event *ev)
{
    struct job *j = c->job;
    struct metrics *m = &j->serve->metrics;

    m->queries += ev->prompt_tokens;
    m->hits += ev->cached_tokens;
    if (c->state != CHOICE_ANSWERED) { /* else it is over, and this was on its way */
        choice_set_state(c, CHOICE_RUNNING);
    }
    if (!j->started) { /* the prompt of n choices is one prompt */
        j->started = true;
        j->cached_tokens = ev->cached_tokens;
        m->prompt_tokens += ev->prompt_tokens;
        m->cached_tokens += ev->cached_tokens;
        hist_add(&m->queue, env_now_us(j->serve->env) - j->submitted_us);
    }
    note_receipt(j, RECEIPT_RUNNING);
    if (j->state == JOB_WAITING) {
        job_set_state(j, JOB_RUNNING);
    }
}

static void time_token(struct choice *c)
{
    struct metrics *m = &c->job->serve->metrics;
    uint64_t now = env_now_us(c->job->serve->env);

    if (c->first_token_us == 0) {
        c->first_token_us = now;
        hist_add(&m->ttft, now - c->job->submitted_us);
    } else {
        hist_add(&m->tpot, now - c->last_token_us);
    }
    c->last_token_us = now;
}

static void on_token(struct choice *c, const struct engine_event *ev)
{
    struct job *j = c->job;

    if (c->state == CHOICE_ANSWERED) {
        return; /* computed beside the stop: nobody's */
    }
    c->completion_tokens = ev->completion_tokens;
    j->serve->metrics.generation_tokens++;
    time_token(c);
    note_receipt(j, RECEIPT_RUNNING);
    if (j->state == JOB_RUNNING) {
        answer_token(c, ev);
    }
}

static void count_end(struct job *j, enum receipt_state state)
{
    struct metrics *m = &j->serve->metrics;

    m->finished_stop += state == RECEIPT_STOP;
    m->finished_length += state == RECEIPT_LENGTH;
    m->finished_abort += state == RECEIPT_ABORTED;
    m->refused += state == RECEIPT_REFUSED;
    if (state == RECEIPT_STOP || state == RECEIPT_LENGTH) {
        hist_add(&m->e2e, env_now_us(j->serve->env) - j->submitted_us);
    }
}

/* The client is still there and has no end of this answer yet. */
static void answer_at_end(struct choice *c, enum engine_finish why)
{
    struct job *j = c->job;
    struct api_error x = {0};

    switch (why) {
    case ENGINE_STOP:
    case ENGINE_LENGTH:
        answer_end(c, why);
        return;
    case ENGINE_REFUSED:
        api_refuse(&x, 503, "server_is_overloaded", NULL, "There is no memory for this request.");
        break;
    case ENGINE_EXPIRED:
        api_refuse(&x, 503, "queue_deadline_exceeded", NULL,
                   "The request waited %llu ms and was not started by its deadline. Try again in a "
                   "moment.",
                   (unsigned long long)((env_now_us(j->serve->env) - j->submitted_us) / 1000));
        break;
    case ENGINE_ABORTED:
        api_refuse(&x, 500, "aborted", NULL, "The request was aborted.");
        break;
    }
    answer_fail(j, &x);
    job_abort(j);
}

static void free_places(struct job *j)
{
    for (uint32_t i = 0; i < j->n; i++) {
        j->serve->by_ticket[j->choice[i].ticket & 0xFFFF] = NULL;
    }
    j->serve->live -= j->n;
}

static void end_job(struct job *j)
{
    enum receipt_state state = state_of_all(j);

    note_receipt(j, state);
    count_end(j, state);
    control_answer_waiters(j, state);
    free_places(j);
    job_set_state(j, JOB_DONE);
    if (j->stream == NULL) {
        job_free(j);
    }
}

static void on_end(struct choice *c, const struct engine_event *ev)
{
    struct job *j = c->job;

    j->serve->metrics.expired += ev->finish == ENGINE_EXPIRED;
    if (c->state != CHOICE_ANSWERED) {
        c->finish = ev->finish;
        if (j->state == JOB_WAITING || j->state == JOB_RUNNING) {
            answer_at_end(c, ev->finish);
        }
    }
    choice_set_state(c, CHOICE_ENDED);
    if (--j->unended == 0) {
        end_job(j);
    }
}

void job_news(struct serve *s, const struct engine_event *ev)
{
    struct choice *c = s->by_ticket[ev->ticket & 0xFFFF];

    CHECK(c != NULL && c->ticket == ev->ticket); /* the place is held until END */
    switch (ev->kind) {
    case ENGINE_STARTED:
        on_started(c, ev);
        break;
    case ENGINE_TOKEN:
        on_token(c, ev);
        break;
    case ENGINE_END:
        on_end(c, ev);
        break;
    }
}
