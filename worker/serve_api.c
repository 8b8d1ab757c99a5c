/* serve_api.c - requests with a body until it is there: who asks, the refusals, the bytes. */
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

/* A refusal of a job that neither a lane nor the engine has. */
void api_refuse_job(struct job *j, const struct api_error *x)
{
    api_send_error(j->serve, j->stream, x);
    job_forget_body(j);
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
    j->arrived_us = env_now_us(s->env);
    if (!read_headers(j, h, &x)) {
        api_refuse_job(j, &x);
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
            if (!j->body.failed) {
                j->body_counted += n;
                j->serve->body_bytes += n;
            }
        }
        if (j->body.failed) {
            api_refuse(&x, 413, "request_too_large", NULL, "The body is larger than %u bytes.",
                       JOB_BODY_BYTES_MAX);
        }
        if (x.status != 0) {
            api_refuse_job(j, &x);
        }
    }
    if (j->stream != NULL) {
        http_stream_credit(j->stream, n);
    }
}
