/* serve_logprobs.c - "logprobs" in the two OpenAI shapes.
 *
 * A control token (the end of the answer) is counted like any other: it has its spelling as token
 * and no bytes, for it is not part of the text. Tokens become JSON as soon as their text is shown,
 * not all at the end of a whole answer: with all alternatives that are twenty megabytes, and
 * streams would wait. */
#include "worker/job.h"

#include <stdio.h>

#define LEAST_LOGPROB (-9999.0) /* JSON has no infinity */

/* A float: nine digits tell it from its neighbours. */
static void write_logprob(struct json_writer *w, float logprob)
{
    char text[32];
    int n = snprintf(text, sizeof(text), "%.9g",
                     logprob > (float)LEAST_LOGPROB ? (double)logprob : LEAST_LOGPROB);

    jw_raw(w, str_of(text, (size_t)n));
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
    write_logprob(w, logprob);
    jw_key(w, STR("bytes"));
    jw_array(w);
    for (size_t i = 0; i < bytes.n; i++) {
        jw_u64(w, (uint8_t)bytes.p[i]);
    }
    jw_end_array(w);
}

/* The lists that a choice collects, a buffer each. */
enum { CHAT_CONTENT_LIST = 0, TOKENS_LIST = 0, LOGPROBS_LIST, TOP_LIST, OFFSETS_LIST };

/* The next element of a list. */
static void next_of(struct json_writer *w, struct buf *list)
{
    if (list->len > 0) {
        buf_byte(list, ',');
    }
    jw_init(w, list);
}

static void put_chat(struct choice *c, const struct sample_result *r)
{
    struct json_writer w;

    next_of(&w, &c->logprobs[CHAT_CONTENT_LIST]);
    jw_object(&w);
    write_entry(&w, c, r->id, r->logprob);
    jw_key(&w, STR("top_logprobs"));
    jw_array(&w);
    for (uint32_t k = 0; k < r->top_count; k++) {
        jw_object(&w);
        write_entry(&w, c, r->top[k].id, r->top[k].logprob);
        jw_end_object(&w);
    }
    jw_end_array(&w);
    jw_end_object(&w);
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
            write_logprob(w, r->top[k].logprob);
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

static void put_completion(struct choice *c, const struct sample_result *r)
{
    struct json_writer w;

    next_of(&w, &c->logprobs[TOKENS_LIST]);
    jw_str(&w, spelling(c, r->id));
    next_of(&w, &c->logprobs[LOGPROBS_LIST]);
    write_logprob(&w, r->logprob);
    next_of(&w, &c->logprobs[TOP_LIST]);
    write_top(&w, c, r);
    next_of(&w, &c->logprobs[OFFSETS_LIST]);
    jw_u64(&w, c->shown_chars);
    c->shown_chars += characters(tokenizer_bytes(c->job->serve->model->tokenizer, r->id, false));
}

/* The first n of c->tokens become JSON. */
static void render(struct choice *c, size_t n)
{
    const struct job_token *t = (const struct job_token *)(const void *)buf_view(&c->tokens).p;

    for (size_t i = 0; i < n; i++) {
        if (c->job->kind == JOB_CHAT) {
            put_chat(c, &t[i].r);
        } else {
            put_completion(c, &t[i].r);
        }
    }
    buf_consume(&c->tokens, n * sizeof(*t));
}

/* How many of c->tokens begin within the text that was shown: no stop takes them back. */
static size_t settled(const struct choice *c)
{
    const struct job_token *t = (const struct job_token *)(const void *)buf_view(&c->tokens).p;
    size_t n = 0;

    while (n < c->tokens.len / sizeof(*t) && t[n].start < c->shown_bytes) {
        n++;
    }
    return n;
}

void logprobs_settle(struct choice *c)
{
    render(c, settled(c));
}

static void write_list(struct json_writer *w, const char *key, struct buf *list)
{
    jw_key(w, str_c(key));
    jw_array(w);
    if (list->len > 0) {
        jw_raw(w, buf_view(list));
    }
    jw_end_array(w);
    w->out->failed = w->out->failed || list->failed;
    buf_reset(list);
}

void logprobs_write(struct json_writer *w, struct choice *c, bool stopped)
{
    if (!c->request.sample.logprobs) {
        jw_null(w);
        return;
    }
    render(c, stopped ? settled(c) : c->tokens.len / sizeof(struct job_token));
    buf_reset(&c->tokens);
    jw_object(w);
    if (c->job->kind == JOB_CHAT) {
        write_list(w, "content", &c->logprobs[CHAT_CONTENT_LIST]);
        jw_knull(w, "refusal");
    } else {
        write_list(w, "tokens", &c->logprobs[TOKENS_LIST]);
        write_list(w, "token_logprobs", &c->logprobs[LOGPROBS_LIST]);
        write_list(w, "top_logprobs", &c->logprobs[TOP_LIST]);
        write_list(w, "text_offset", &c->logprobs[OFFSETS_LIST]);
    }
    jw_end_object(w);
}
