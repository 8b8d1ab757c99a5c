/* serve_logprobs.c - "logprobs" in the two OpenAI shapes.
 *
 * A control token (the end of the answer) is counted like any other: it has its spelling as token
 * and no bytes, for it is not part of the text. */
#include "worker/job.h"

#include <math.h>

#define LEAST_LOGPROB (-9999.0) /* JSON has no infinity */
#define TEXT_MAX 512

static double clamp(float logprob)
{
    return logprob > -9999.0f ? (double)logprob : LEAST_LOGPROB;
}

static struct str spelling(const struct choice *c, int32_t id)
{
    return tokenizer_bytes(c->job->serve->model->tokenizer, id, true);
}

static void write_entry(struct json_writer *w, const struct choice *c, int32_t id, float logprob)
{
    struct str bytes = tokenizer_bytes(c->job->serve->model->tokenizer, id, false);

    jw_kstr(w, "token", spelling(c, id)); /* bytes that are no UTF-8 become U+FFFD */
    jw_key(w, STR("logprob"));
    jw_f64(w, clamp(logprob));
    jw_key(w, STR("bytes"));
    jw_array(w);
    for (size_t i = 0; i < bytes.n; i++) {
        jw_u64(w, (uint8_t)bytes.p[i]);
    }
    jw_end_array(w);
}

static void write_chat(struct json_writer *w, struct choice *c, const struct job_token *t, size_t n)
{
    jw_object(w);
    jw_key(w, STR("content"));
    jw_array(w);
    for (size_t i = 0; i < n; i++) {
        jw_object(w);
        write_entry(w, c, t[i].r.id, t[i].r.logprob);
        jw_key(w, STR("top_logprobs"));
        jw_array(w);
        for (uint32_t k = 0; k < t[i].r.top_count; k++) {
            jw_object(w);
            write_entry(w, c, t[i].r.top[k].id, t[i].r.top[k].logprob);
            jw_end_object(w);
        }
        jw_end_array(w);
        jw_end_object(w);
    }
    jw_end_array(w);
    jw_knull(w, "refusal");
    jw_end_object(w);
}

/* Two tokens may look alike once their bytes are made UTF-8; an object has a key once. */
static bool key_was_written(const struct choice *c, const struct sample_result *r, uint32_t k)
{
    struct str mine = spelling(c, r->top[k].id);
    bool whole = str_utf8_valid(mine) == mine.n;

    for (uint32_t i = 0; i < k; i++) {
        struct str other = spelling(c, r->top[i].id);

        if (str_eq(mine, other) || (!whole && str_utf8_valid(other) != other.n)) {
            return true;
        }
    }
    return false;
}

static void write_top(struct json_writer *w, const struct choice *c, const struct sample_result *r)
{
    jw_object(w);
    for (uint32_t k = 0; k < r->top_count; k++) {
        if (!key_was_written(c, r, k)) {
            jw_key(w, spelling(c, r->top[k].id));
            jw_f64(w, clamp(r->top[k].logprob));
        }
    }
    jw_end_object(w);
}

static uint64_t characters(struct str s)
{
    uint64_t n = 0;

    for (size_t i = 0; i < s.n; i++) {
        n += ((uint8_t)s.p[i] & 0xC0) != 0x80;
    }
    return n;
}

static void write_completion(struct json_writer *w, struct choice *c, const struct job_token *t,
                             size_t n)
{
    jw_object(w);
    jw_key(w, STR("tokens"));
    jw_array(w);
    for (size_t i = 0; i < n; i++) {
        jw_str(w, spelling(c, t[i].r.id));
    }
    jw_end_array(w);
    jw_key(w, STR("token_logprobs"));
    jw_array(w);
    for (size_t i = 0; i < n; i++) {
        jw_f64(w, clamp(t[i].r.logprob));
    }
    jw_end_array(w);
    jw_key(w, STR("top_logprobs"));
    jw_array(w);
    for (size_t i = 0; i < n; i++) {
        write_top(w, c, &t[i].r);
    }
    jw_end_array(w);
    jw_key(w, STR("text_offset"));
    jw_array(w);
    for (size_t i = 0; i < n; i++) {
        jw_u64(w, c->shown_chars);
        c->shown_chars +=
            characters(tokenizer_bytes(c->job->serve->model->tokenizer, t[i].r.id, false));
    }
    jw_end_array(w);
    jw_end_object(w);
}

void logprobs_write(struct json_writer *w, struct choice *c, bool stopped)
{
    const struct job_token *t = (const struct job_token *)(const void *)buf_view(&c->tokens).p;
    size_t n = c->tokens.len / sizeof(*t);

    while (stopped && n > 0 && t[n - 1].start >= c->shown_bytes) {
        n--;
    }
    if (!c->request.sample.logprobs) {
        jw_null(w);
    } else if (c->job->kind == JOB_CHAT) {
        write_chat(w, c, t, n);
    } else {
        write_completion(w, c, t, n);
    }
    buf_reset(&c->tokens);
}
