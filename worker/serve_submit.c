/* serve_submit.c - from a whole body to the engine: prepared on a lane, submitted on the loop.
 *
 * What takes time (parsing, compiling a format, tokenizing) is done beside the loop, for streams
 * would wait for it: a megabyte that is one word takes most of a second. On the lane a job is read
 * and written by it alone; of the server only what never changes once the model is there (model,
 * plan, vocabulary, shape, names). Short bodies have a lane of their own, so that they never wait
 * for a long one. */
#include "worker/job.h"

#include <stdio.h>

#define SHORT_BODY_BYTES (64u << 10) /* all of it tokenized: some 20 ms at worst */
/* Of the thread for long bodies: they wait rather than the threads that compute. */
#define LONG_LANE_NICENESS 5

static bool keep_str(struct arena *a, struct str *s)
{
    *s = s->n > 0 ? arena_str(a, *s) : STR("");
    return s->p != NULL;
}

/* The prompt is ids by now. What the answer still reads of the body is copied, and the body and its
 * tree go: they may be a hundred times as large and would stay for as long as the answer takes. */
static bool drop_body(struct job *j, struct api_error *x)
{
    struct sample_params *p = &j->request.sample;
    struct arena kept;
    bool ok;

    arena_init(&kept, JOB_ARENA_BYTES_MAX);
    ok = keep_str(&kept, &j->echo_text);
    for (uint32_t i = 0; i < j->n_stops; i++) {
        ok = ok && keep_str(&kept, &j->stops[i]);
    }
    if (ok && p->n_bias > 0) {
        struct sample_bias *bias = arena_array(&kept, p->n_bias, sizeof(*bias));

        ok = bias != NULL;
        if (ok) {
            memcpy(bias, p->bias, p->n_bias * sizeof(*bias));
            p->bias = bias;
        }
    }
    if (!ok) {
        arena_fini(&kept);
        return api_refuse(x, 503, NULL, NULL, "There is no memory for this request now.");
    }
    job_drop_tree(j);
    j->arena = kept;
    return true;
}

/* What is longer than any prompt that fits, in any spelling, is not parsed. */
static bool check_size(const struct job *j, struct api_error *x)
{
    const struct serve *s = j->serve;
    uint64_t most = (uint64_t)s->plan.max_model_len * s->token_bytes_max * JOB_ESCAPE_BYTES +
                    JOB_BODY_SLACK_BYTES;

    return j->body.len <= most ||
           api_refuse(x, 400, "context_length_exceeded",
                      j->kind == JOB_CHAT ? "messages" : "prompt",
                      "This model's maximum context length is %u tokens. The body of %zu bytes is "
                      "larger than any request that fits (%llu bytes).",
                      s->plan.max_model_len, j->body.len, (unsigned long long)most);
}

static bool parse_body(struct job *j, struct api_error *x)
{
    struct err e = {0};

    j->root = json_parse(&j->arena, buf_view(&j->body), &json_limits_api, &e);
    if (j->root == NULL) {
        return api_refuse(x, 400, "invalid_json", NULL, "The body is not valid JSON: %s.", e.text);
    }
    if (j->root->type != JSON_OBJECT) {
        return api_refuse(x, 400, "invalid_json", NULL, "The body must be a JSON object.");
    }
    params_pick(j);
    return true;
}

static bool is_gone(struct job *j)
{
    return atomic_load_explicit(&j->gone, memory_order_relaxed);
}

/* What is refused or answered already gives its memory back here too: a tree of a million values
 * takes its time. */
void submit_prepare(struct job *j)
{
    struct api_error *x = &j->refusal;
    bool ok = !is_gone(j) && parse_body(j, x) && !is_gone(j);

    if (ok && j->is_text) {
        ok = text_answer(j, x);
        prompt_fini(&j->prompt);
    } else if (ok) {
        ok = params_parse(j, x) && !is_gone(j) && prompt_build(j, x) && answer_fits(j, x) &&
             drop_body(j, x);
    }
    if (!ok || j->is_text) {
        job_drop_tree(j);
    }
}

static void prepare(struct lane_task *t)
{
    submit_prepare(CONTAINER_OF(t, struct job, task));
}

/* NULL: it has none, or so many came since that it was forgotten. Texts have none: the engine
 * computes nothing for them. */
static struct receipt *receipt_of(const struct job *j)
{
    return j->is_text || uuid_is_zero(j->event) ? NULL
                                                : receipts_find(j->serve->receipts, j->event);
}

static bool is_new(const struct job *j, struct api_error *x)
{
    return receipt_of(j) == NULL ||
           api_refuse(x, 409, NULL, "x-tollgate-event", "This event was sent before.");
}

/* Before it is prepared, so that whoever asks finds it, and a second one of its name finds it
 * first. */
static bool add_receipt(const struct job *j, struct api_error *x)
{
    return j->is_text || uuid_is_zero(j->event) ||
           receipts_add(j->serve->receipts, j->event) != NULL ||
           api_refuse(x, 503, NULL, NULL, "There is no memory for this request now.");
}

/* A place for each choice, or none at all. Those that are being prepared have one each. */
static bool take_places(struct job *j, struct api_error *x)
{
    struct serve *s = j->serve;
    uint32_t place = 0;

    if (j->n > s->live_max) {
        return api_refuse(x, 400, NULL, "n", "'n' is %u, but this worker has %u places in all.",
                          j->n, s->live_max);
    }
    if (s->live + s->preparing + j->n > s->live_max) {
        s->metrics.refused++;
        return api_refuse(x, 503, "server_is_overloaded", NULL,
                          "All %u places for requests are taken. Try again in a moment.",
                          s->live_max);
    }
    if (!job_choices(j)) {
        return api_refuse(x, 503, NULL, NULL, "There is no memory for this request now.");
    }
    for (uint32_t i = 0; i < j->n; i++) {
        while (s->by_ticket[place] != NULL) {
            place++;
        }
        s->by_ticket[place] = &j->choice[i];
        j->choice[i].ticket = ++s->generation << 16 | place;
    }
    s->live += j->n;
    return true;
}

static void name_answer(struct job *j)
{
    uint8_t random[12];
    char hex[25];

    env_random(j->serve->env, random, sizeof(random));
    str_hex(random, sizeof(random), hex);
    snprintf(j->id, sizeof(j->id), "%s-%s", j->kind == JOB_CHAT ? "chatcmpl" : "cmpl", hex);
    j->created_s = env_wall_us(j->serve->env) / 1000000;
}

/* When the answer has to begin, and until when it may wait: what the gateway said, else the
 * operator's bound. Both count from the head: a body that came slowly is no excuse. */
static void set_deadlines(struct job *j)
{
    uint64_t wait_us = j->serve->o.queue_us;

    if (j->deadline_ms > 0) {
        j->request.deadline_us = j->arrived_us + j->deadline_ms * 1000;
        wait_us = wait_us > 0 ? u64_min(wait_us, j->deadline_ms * 1000) : j->deadline_ms * 1000;
    }
    j->request.queue_deadline_us = wait_us > 0 ? j->arrived_us + wait_us : 0;
}

/* Whose cached blocks it may hit: its scope's, by the gateway's key. Without a worker key all that
 * come are one scope, the operator's own. With one, a request that names no scope could be any
 * tenant's, so it shares with nobody (its own choices excepted). */
static struct prefix_key salt_of(const struct job *j)
{
    struct prefix_key alone;

    if (j->has_key) {
        return j->key;
    }
    if (j->serve->o.worker_key.n == 0) {
        return j->serve->own_key;
    }
    env_random(j->serve->env, &alone, sizeof(alone));
    return alone;
}

static void submit(struct job *j)
{
    struct serve *s = j->serve;
    struct receipt *r = receipt_of(j);
    uint64_t group = j->n > 1 ? ++s->groups : 0;

    if (r != NULL) {
        r->ticket = j->choice[0].ticket;
        r->prompt = j->prompt_tokens;
    }
    job_set_state(j, JOB_WAITING);
    for (uint32_t i = 0; i < j->n; i++) {
        struct engine_request *q = &j->choice[i].request;

        q->ticket = j->choice[i].ticket;
        q->group = group;
        engine_thread_submit(s->engine, q);
    }
}

/* What a choice copies is final before it is made. */
static bool begin_answer(struct job *j, struct api_error *x)
{
    name_answer(j);
    set_deadlines(j);
    j->request.salt = salt_of(j);
    if (j->draw_seed) { /* told (x-tollgate-seed), so one that any client's JSON carries */
        j->request.sample.seed = env_random_u64(j->serve->env) >> JOB_SEED_SHIFT;
    }
    return take_places(j, x);
}

/* It was prepared, or could not be, and gets no answer. */
static void refuse_prepared(struct job *j)
{
    struct receipt *r = receipt_of(j);

    if (r != NULL) {
        r->state = RECEIPT_REFUSED;
    }
    api_refuse_job(j, &j->refusal);
}

/* The lane is through with it. */
static void prepared(struct job *j)
{
    struct serve *s = j->serve;

    if (j->is_text) {
        s->texts--;
        s->long_texts -= j->is_long;
    } else {
        s->preparing--;
    }
    job_forget_body(j);
    if (j->state == JOB_LEAVING) {
        job_set_state(j, JOB_DONE);
        if (j->stream == NULL) {
            job_free(j);
        }
    } else if (j->refusal.status != 0) {
        refuse_prepared(j);
    } else if (j->is_text) {
        api_send_json(s, j->stream, 200, buf_view(&j->answer));
        buf_fini(&j->answer);
        job_set_state(j, JOB_DONE);
    } else if (begin_answer(j, &j->refusal)) {
        submit(j);
    } else {
        refuse_prepared(j);
    }
}

static void on_prepared(void *ctx, struct lane_task *t)
{
    (void)ctx;
    prepared(CONTAINER_OF(t, struct job, task));
}

/* Before what is dear. Each that is being prepared holds the place of its first choice. */
static bool has_room(const struct job *j, struct api_error *x)
{
    struct serve *s = j->serve;
    uint32_t taken = s->live + s->preparing, most = s->live_max;

    if (j->is_text) {
        taken = j->is_long ? s->long_texts : s->texts;
        most = j->is_long ? SERVE_LONG_TEXTS_MAX : SERVE_TEXTS_MAX;
    }
    if (taken < most) {
        return true;
    }
    s->metrics.refused++;
    return api_refuse(x, 503, "server_is_overloaded", NULL,
                      "All %u places for %s are taken. Try again in a moment.", most,
                      !j->is_text  ? "requests"
                      : j->is_long ? "long texts"
                                   : "texts");
}

void submit_body(struct job *j)
{
    struct serve *s = j->serve;
    struct api_error x = {0};
    bool ok;

    j->is_long = j->body.len > SHORT_BODY_BYTES;
    j->is_text = j->kind == JOB_TOKENIZE || j->kind == JOB_DETOKENIZE;
    if (!check_size(j, &x) || !is_new(j, &x) || !has_room(j, &x) || !add_receipt(j, &x)) {
        api_refuse_job(j, &x);
        return;
    }
    if (j->is_text) {
        s->texts++;
        s->long_texts += j->is_long;
    } else {
        s->preparing++;
    }
    j->submitted_us = env_now_us(s->env);
    j->task.work = prepare;
    j->lane = s->lane[j->is_long ? 1 : 0];
    job_set_state(j, JOB_PREPARING);
    ok = lane_push(j->lane, &j->task);
    CHECK(ok); /* has_room bounds both */
}

/* Nobody waits for a job that is being prepared: what it was is an aborted event. Its tokens are
 * the lane's to know, and nobody's any more. */
void submit_leave(struct job *j)
{
    struct receipt *r = receipt_of(j);

    if (r != NULL) {
        r->state = RECEIPT_ABORTED;
    }
    j->serve->metrics.finished_abort += !j->is_text;
    job_set_state(j, JOB_LEAVING);
    atomic_store_explicit(&j->gone, true, memory_order_relaxed);
    if (lane_drop(j->lane, &j->task)) {
        prepared(j);
    }
}

struct job *submit_find(struct serve *s, struct uuid event)
{
    LIST_EACH(it, &s->jobs)
    {
        struct job *j = CONTAINER_OF(it, struct job, node);

        if (j->state == JOB_PREPARING && !j->is_text && !uuid_is_zero(event) &&
            uuid_eq(j->event, event)) {
            return j;
        }
    }
    return NULL;
}

bool submit_start(struct serve *s, struct err *e)
{
    static const int niceness[SERVE_LANES] = {0, LONG_LANE_NICENESS};

    for (size_t i = 0; i < SERVE_LANES; i++) {
        s->lane[i] = lane_new(s->env, s->live_max + SERVE_TEXTS_MAX + SERVE_LONG_TEXTS_MAX,
                              niceness[i], on_prepared, s);
        if (s->lane[i] == NULL) {
            return err_set(e, ERR_NO_MEMORY, "no thread could be started");
        }
    }
    return true;
}

void submit_stop(struct serve *s)
{
    for (size_t i = 0; i < SERVE_LANES; i++) {
        lane_free(s->lane[i]);
        s->lane[i] = NULL;
    }
}
