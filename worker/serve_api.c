/* serve_api.c - requests with a body up to the submit: who asks, the body, the refusals. */
#include "worker/job.h"

#include "base/hash.h"

#include <stdio.h>

#define DEADLINE_MS_MAX 86400000u /* a day */

void api_send_json(struct serve *s, struct http_stream *st, unsigned status, struct str json)
{
    const struct http_field fields[] = {
        {STR("content-type"), STR("application/json")},
        {STR("x-tollgate-worker-epoch"), str_c(s->epoch)},
        {STR("retry-after"), STR("1")},
    };

    http_stream_respond(st, status, fields, status == 503 ? 3 : 2, (int64_t)json.n);
    http_stream_write(st, json.p, json.n);
    http_stream_end(st);
}

void api_write_error(struct json_writer *w, const struct api_error *x)
{
    jw_object(w);
    jw_key(w, STR("error"));
    jw_object(w);
    jw_kc(w, "message", x->message);
    jw_kc(w, "type", x->type);
    jw_kc(w, "param", x->param);
    jw_kc(w, "code", x->code);
    jw_end_object(w);
    jw_end_object(w);
}

void api_send_error(struct serve *s, struct http_stream *st, const struct api_error *x)
{
    struct json_writer w;

    buf_reset(&s->out);
    jw_init(&w, &s->out);
    api_write_error(&w, x);
    api_send_json(s, st, x->status, buf_view(&s->out));
}

/* What is answered holds nothing of its request, however slowly the answer is read. */
static void forget_body(struct job *j)
{
    j->serve->body_bytes -= j->body.len;
    buf_fini(&j->body);
    arena_fini(&j->arena);
    j->root = NULL;
    j->tools = NULL;
}

/* A refusal of a job that the engine does not have. */
static void refuse_job(struct job *j, const struct api_error *x)
{
    api_send_error(j->serve, j->stream, x);
    forget_body(j);
    job_set_state(j, JOB_DONE);
}

bool serve_is_trusted(const struct serve *s, const struct http_head *h)
{
    struct str scheme, token, given = http_field(&h->fields, STR("authorization"));

    if (s->o.worker_key.n == 0 || !str_cut(given, ' ', &scheme, &token)) {
        return false;
    }
    token = str_trim(token);
    return str_ieq(scheme, STR("bearer")) && token.n == s->o.worker_key.n &&
           hash_equal(token.p, s->o.worker_key.p, token.n);
}

bool api_is_serving(const struct serve *s, struct api_error *x)
{
    if (s->state == SERVE_DRAINING) {
        return api_refuse(x, 503, "server_is_overloaded", NULL, "This worker is shutting down.");
    }
    return s->state == SERVE_READY ||
           api_refuse(x, 503, "server_is_loading", NULL,
                      "This worker is loading its model. GET /ready says when it serves.");
}

static bool check_head(struct serve *s, const struct http_head *h, struct api_error *x)
{
    struct str encoding = http_field(&h->fields, STR("content-encoding"));

    if (h->method != HTTP_POST) {
        return api_refuse(x, 405, NULL, NULL, "This path takes POST.");
    }
    if (s->o.worker_key.n > 0 && !serve_is_trusted(s, h)) {
        return api_refuse(x, 401, "invalid_api_key", NULL, "The worker key is missing or wrong.");
    }
    if (!api_is_serving(s, x)) {
        return false;
    }
    if (encoding.n > 0 && !str_ieq(encoding, STR("identity"))) {
        return api_refuse(x, 415, NULL, NULL, "The body must come without content-encoding.");
    }
    if (h->content_length > (int64_t)JOB_BODY_BYTES_MAX) {
        return api_refuse(x, 413, "request_too_large", NULL, "The body is larger than %u bytes.",
                          JOB_BODY_BYTES_MAX);
    }
    return true;
}

/* The gateway's headers; only from who has the worker key. */
static bool read_headers(struct job *j, const struct http_head *h, struct api_error *x)
{
    struct str event = http_field(&h->fields, STR("x-tollgate-event"));
    struct str key = http_field(&h->fields, STR("x-tollgate-prefix-key"));
    struct str class = http_field(&h->fields, STR("x-tollgate-class"));
    struct str deadline = http_field(&h->fields, STR("x-tollgate-deadline-ms"));

    j->request.class = ENGINE_STANDARD;
    if (!j->trusted) {
        return true;
    }
    if (event.n > 0 && !uuid_parse(event, &j->event)) {
        return api_refuse(x, 400, NULL, "x-tollgate-event", "The event id is no UUID.");
    }
    j->has_key = key.n > 0;
    if (j->has_key && !prefix_key_parse(key, &j->key)) {
        return api_refuse(x, 400, NULL, "x-tollgate-prefix-key", "The prefix key is not 32 hex.");
    }
    j->request.class = str_eq(class, STR("interactive")) ? ENGINE_INTERACTIVE
                       : str_eq(class, STR("batch"))     ? ENGINE_BATCH
                                                         : ENGINE_STANDARD;
    if (deadline.n > 0 &&
        (!str_u64(deadline, &j->deadline_ms) || j->deadline_ms - 1 >= DEADLINE_MS_MAX)) {
        return api_refuse(x, 400, NULL, "x-tollgate-deadline-ms",
                          "The deadline is no number of milliseconds from 1 to %u.",
                          DEADLINE_MS_MAX);
    }
    j->usage_each = str_eq(http_field(&h->fields, STR("x-tollgate-usage")), STR("each"));
    return true;
}

static const struct {
    struct str path;
    enum job_kind kind;
} paths[] = {
    {STR("/v1/chat/completions"), JOB_CHAT},
    {STR("/v1/completions"), JOB_COMPLETION},
    {STR("/tokenize"), JOB_TOKENIZE},
    {STR("/detokenize"), JOB_DETOKENIZE},
};

void api_head(struct serve *s, struct http_stream *st, const struct http_head *h)
{
    struct api_error x = {0};
    struct job *j;
    size_t i = 0;

    while (i < ARRAY_LEN(paths) && !str_eq(h->path, paths[i].path)) {
        i++;
    }
    if (i == ARRAY_LEN(paths)) {
        api_refuse(&x, 404, NULL, NULL, "There is no such path here.");
        api_send_error(s, st, &x);
        return;
    }
    if (!check_head(s, h, &x)) {
        api_send_error(s, st, &x);
        return;
    }
    j = job_new(s, st, paths[i].kind);
    if (j == NULL) {
        api_refuse(&x, 503, "server_is_overloaded", NULL, "There is no memory for this request.");
        api_send_error(s, st, &x);
        return;
    }
    j->trusted = serve_is_trusted(s, h);
    if (!read_headers(j, h, &x)) {
        refuse_job(j, &x);
        return;
    }
    http_stream_continue(st);
}

void api_body(struct job *j, const void *p, size_t n)
{
    struct api_error x = {0};

    if (j->state == JOB_BODY) {
        if (j->serve->body_bytes + n > JOB_BODIES_BYTES_MAX) {
            api_refuse(&x, 503, "server_is_overloaded", NULL, "Too many bodies at once.");
        } else {
            buf_append(&j->body, p, n);
            j->serve->body_bytes += j->body.failed ? 0 : n;
        }
        if (j->body.failed) {
            api_refuse(&x, 413, "request_too_large", NULL, "The body is larger than %u bytes.",
                       JOB_BODY_BYTES_MAX);
        }
        if (x.status != 0) {
            refuse_job(j, &x);
        }
    }
    if (j->stream != NULL) {
        http_stream_credit(j->stream, n);
    }
}

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
    arena_fini(&j->arena);
    j->arena = kept;
    j->root = NULL;
    j->tools = NULL;
    j->serve->body_bytes -= j->body.len;
    buf_fini(&j->body);
    return true;
}

/* A place for each choice, or none at all. */
static bool take_places(struct job *j, struct api_error *x)
{
    struct serve *s = j->serve;
    uint32_t place = 0;

    if (j->n > s->live_max) {
        return api_refuse(x, 400, NULL, "n", "'n' is %u, but this worker has %u places in all.",
                          j->n, s->live_max);
    }
    if (s->live + j->n > s->live_max) {
        s->metrics.refused++;
        return api_refuse(x, 503, "server_is_overloaded", NULL,
                          "All %u places for requests are taken. Try again in a moment.",
                          s->live_max);
    }
    if (!job_choices(j)) {
        return api_refuse(x, 503, NULL, NULL, "There is no memory for this request now.");
    }
    if (!uuid_is_zero(j->event) && receipts_add(s->receipts, j->event) == NULL) {
        return receipts_find(s->receipts, j->event) != NULL
                   ? api_refuse(x, 409, NULL, "x-tollgate-event", "This event was sent before.")
                   : api_refuse(x, 503, NULL, NULL, "There is no memory for this request now.");
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
 * operator's bound. */
static void set_deadlines(struct job *j)
{
    uint64_t wait_us = j->serve->o.queue_us;

    if (j->deadline_ms > 0) {
        j->request.deadline_us = j->submitted_us + j->deadline_ms * 1000;
        wait_us = wait_us > 0 ? u64_min(wait_us, j->deadline_ms * 1000) : j->deadline_ms * 1000;
    }
    j->request.queue_deadline_us = wait_us > 0 ? j->submitted_us + wait_us : 0;
}

static void submit(struct job *j)
{
    struct serve *s = j->serve;
    uint64_t group = j->n > 1 ? ++s->groups : 0;

    if (!uuid_is_zero(j->event)) {
        struct receipt *r = receipts_find(s->receipts, j->event);

        r->ticket = j->choice[0].ticket;
        r->prompt = j->prompt_tokens;
    }
    job_set_state(j, JOB_WAITING);
    for (uint32_t i = 0; i < j->n; i++) {
        struct engine_request *r = &j->choice[i].request;

        r->ticket = j->choice[i].ticket;
        r->group = group;
        engine_thread_submit(s->engine, r);
    }
}

/* What is longer than any prompt that fits, in any spelling, is not parsed: a megabyte costs the
 * loop some ten milliseconds, and streams wait for it. */
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

    if (!check_size(j, x)) {
        return false;
    }
    j->root = json_parse(&j->arena, buf_view(&j->body), &json_limits_api, &e);
    if (j->root == NULL) {
        return api_refuse(x, 400, "invalid_json", NULL, "The body is not valid JSON: %s.", e.text);
    }
    return j->root->type == JSON_OBJECT ||
           api_refuse(x, 400, "invalid_json", NULL, "The body must be a JSON object.");
}

/* Looked at before what is dear: a schema to compile, a prompt to tokenize. */
static bool has_room(const struct job *j, struct api_error *x)
{
    struct serve *s = j->serve;
    int64_t n = 1;

    if (!json_i64(json_get(j->root, STR("n")), &n) || n < 1) {
        n = 1; /* what is wrong with it is told later */
    }
    if (n > s->live_max || s->live + (uint64_t)n <= s->live_max) {
        return true;
    }
    s->metrics.refused++;
    return api_refuse(x, 503, "server_is_overloaded", NULL,
                      "All %u places for requests are taken. Try again in a moment.", s->live_max);
}

static bool begin_answer(struct job *j, struct api_error *x)
{
    if (!has_room(j, x) || !params_parse(j, x) || !prompt_build(j, x) || !drop_body(j, x)) {
        return false;
    }
    name_answer(j);
    j->submitted_us = env_now_us(j->serve->env);
    set_deadlines(j);
    return take_places(j, x);
}

void api_body_end(struct job *j)
{
    struct api_error x = {0};

    if (j->state != JOB_BODY) {
        return;
    }
    if (!parse_body(j, &x)) { /* also while draining: the head was taken */
        refuse_job(j, &x);
    } else if (j->kind == JOB_TOKENIZE || j->kind == JOB_DETOKENIZE) {
        if (text_answer(j, &x)) {
            forget_body(j);
            job_set_state(j, JOB_DONE);
        } else {
            refuse_job(j, &x);
        }
    } else if (begin_answer(j, &x)) {
        submit(j);
    } else {
        refuse_job(j, &x);
    }
}
