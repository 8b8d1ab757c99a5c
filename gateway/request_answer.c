/* request_answer.c - what the client hears: heads, chunks, the tail after the row is durable,
 * errors. */
#include "gateway/request.h"

#include <inttypes.h>
#include <stdio.h>

#define ANSWER_FIELDS_MAX 16
#define GATHERED_NODES_MAX 4000000 /* JSON values: 170 a token with 20 top_logprobs */

struct answer_head {
    struct http_field f[ANSWER_FIELDS_MAX];
    size_t n;
    char text[8][32];
    unsigned texts;
};

static void head_add(struct answer_head *h, struct str name, struct str value)
{
    CHECK(h->n < ANSWER_FIELDS_MAX);
    h->f[h->n++] = (struct http_field){name, value};
}

/* Room for one number's text, kept until the head is sent. */
static char *head_text(struct answer_head *h)
{
    CHECK(h->texts < ARRAY_LEN(h->text));
    return h->text[h->texts++];
}

static void head_number(struct answer_head *h, struct str name, int64_t v)
{
    head_add(h, name, str_of_u64(v > 0 ? (uint64_t)v : 0, head_text(h)));
}

/* "12ms", "1.5s", "6m0s": durations as OpenAI writes them. */
static void head_duration(struct answer_head *h, struct str name, int64_t ms)
{
    char *t = head_text(h);
    size_t n;

    if (ms < 1000) {
        n = str_of_u64(ms > 0 ? (uint64_t)ms : 0, t).n;
        memcpy(t + n, "ms", 3);
    } else if (ms < 60000) {
        snprintf(t, sizeof(h->text[0]), "%" PRId64 ".%03" PRId64 "s", ms / 1000, ms % 1000);
    } else {
        snprintf(t, sizeof(h->text[0]), "%" PRId64 "m%" PRId64 "s", ms / 60000, ms / 1000 % 60);
    }
    head_add(h, name, str_c(t));
}

static void head_limits(struct request *r, struct answer_head *h)
{
    struct quota_view v;

    quota_view(r->loop->gw->quota, r->tenant, r->key, env_now_us(r->loop->env), &v);
    if (v.requests_limit >= 0) {
        head_number(h, STR("x-ratelimit-limit-requests"), v.requests_limit);
        head_number(h, STR("x-ratelimit-remaining-requests"), v.requests_remaining);
        head_duration(h, STR("x-ratelimit-reset-requests"), v.requests_reset_ms);
    }
    if (v.tokens_limit >= 0) {
        head_number(h, STR("x-ratelimit-limit-tokens"), v.tokens_limit);
        head_number(h, STR("x-ratelimit-remaining-tokens"), v.tokens_remaining);
        head_duration(h, STR("x-ratelimit-reset-tokens"), v.tokens_reset_ms);
    }
}

static void head_common(struct request *r, struct answer_head *h)
{
    h->n = 0;
    h->texts = 0;
    head_add(h, STR("x-request-id"), str_c(r->id_text));
    head_add(h, STR("openai-version"), STR("2020-10-01"));
    head_number(h, STR("openai-processing-ms"),
                (int64_t)((env_now_us(r->loop->env) - r->begun_us) / 1000));
    head_limits(r, h);
}

void request_answer_begin(struct request *r)
{
    struct answer_head h;

    head_common(r, &h);
    head_add(&h, STR("content-type"), STR("text/event-stream; charset=utf-8"));
    head_add(&h, STR("cache-control"), STR("no-cache"));
    head_add(&h, STR("x-accel-buffering"), STR("no"));
    http_stream_respond(r->stream, 200, h.f, h.n, -1);
    r->responded = true;
    request_forget_prompt(r); /* no retry from here on, and a stream may stay open for long */
    atomic_fetch_add_explicit(&r->loop->metrics.streams, 1, memory_order_relaxed);
}

void request_answer_chunk(struct request *r, const struct usage_chunk *c)
{
    struct openai_delta d = c->delta;

    if (r->stream == NULL) {
        return;
    }
    if (!r->responded) {
        request_answer_begin(r);
    }
    buf_reset(&r->out);
    if (!r->role_sent && r->endpoint == ENDPOINT_CHAT) {
        struct openai_delta role = {.role = STR("assistant"), .text = STR(""), .has_text = true};

        openai_render_chunk(&r->answer, &role, FINISH_NONE, &r->out);
    }
    r->role_sent = true;
    d.role = (struct str){NULL, 0};
    openai_render_chunk(&r->answer, &d, FINISH_NONE, &r->out);
    http_stream_write(r->stream, buf_view(&r->out).p, r->out.len);
    if (!r->paused &&
        http_stream_buffered(r->stream) > (size_t)r->loop->gw->config.stream_buffer_high) {
        r->paused = true;
        proxy_pause(&r->attempt);
    }
}

/* Members of a logprobs object that are lists over tokens; each is gathered on its own. */
static const struct str logprob_lists[2][4] = {
    {STR("content"), STR("refusal"), {NULL, 0}, {NULL, 0}},
    {STR("tokens"), STR("token_logprobs"), STR("top_logprobs"), STR("text_offset")},
};

static const struct str *logprob_names(const struct request *r)
{
    return logprob_lists[r->endpoint == ENDPOINT_CHAT ? 0 : 1];
}

static size_t delta_bytes(const struct json *v)
{
    return v != NULL && v->type == JSON_STRING ? v->text.n : 0;
}

static void gather_call(struct request *r, const struct json *delta)
{
    const struct json *function = json_get(delta, STR("function"));
    const struct json *id = json_get(delta, STR("id"));
    const struct json *name = json_get(function, STR("name"));
    const struct json *arguments = json_get(function, STR("arguments"));
    struct gathered *g = &r->gathered;
    struct gathered_call *c;
    int64_t index;

    /* usage has given every call an index below the bound. */
    if (!json_i64(json_get(delta, STR("index")), &index) || index < 0 || index >= USAGE_CALLS_MAX) {
        return;
    }
    if (g->call == NULL) {
        g->call = mem_new(USAGE_CALLS_MAX * sizeof(*g->call));
    }
    while (g->calls <= (uint32_t)index) {
        c = &g->call[g->calls++];
        buf_init(&c->id, g->text.max);
        buf_init(&c->name, g->text.max);
        buf_init(&c->arguments, g->text.max);
    }
    c = &g->call[index];
    g->call_bytes += delta_bytes(id) + delta_bytes(name) + delta_bytes(arguments);
    if (g->call_bytes > g->text.max) { /* all calls together have the bound of one text */
        g->text.failed = true;
        return;
    }
    if (id != NULL && id->type == JSON_STRING && c->id.len == 0) {
        buf_str(&c->id, id->text);
    }
    if (name != NULL && name->type == JSON_STRING) {
        buf_str(&c->name, name->text);
    }
    if (arguments != NULL && arguments->type == JSON_STRING) {
        buf_str(&c->arguments, arguments->text);
    }
}

static void gather_calls(struct request *r, const struct json *deltas)
{
    if (deltas == NULL || deltas->type != JSON_ARRAY) {
        return;
    }
    for (const struct json *d = deltas->child; d != NULL; d = d->next) {
        gather_call(r, d);
    }
}

void request_gathered_calls_free(struct gathered *g)
{
    for (uint32_t i = 0; i < g->calls; i++) {
        buf_fini(&g->call[i].id);
        buf_fini(&g->call[i].name);
        buf_fini(&g->call[i].arguments);
    }
    mem_free(g->call);
    g->call = NULL;
    g->calls = 0;
}

void request_gather_chunk(struct request *r, const struct usage_chunk *c)
{
    const struct str *names = logprob_names(r);

    buf_str(&r->gathered.text, c->delta.text);
    gather_calls(r, c->delta.tool_calls);
    if (c->delta.logprobs == NULL || c->delta.logprobs->type != JSON_OBJECT) {
        return;
    }
    r->gathered.has_logprobs = true;
    for (unsigned i = 0; i < 4 && names[i].p != NULL; i++) {
        const struct json *list = json_get(c->delta.logprobs, names[i]);

        if (list == NULL || list->type != JSON_ARRAY) {
            continue;
        }
        for (const struct json *v = list->child; v != NULL; v = v->next) {
            if (r->gathered.logprobs[i].len > 0) {
                buf_byte(&r->gathered.logprobs[i], ',');
            }
            json_write(&r->gathered.logprobs[i], v, JSON_ORDER_DOCUMENT);
        }
    }
}

static void gathered_calls(const struct gathered *g, struct buf *out)
{
    buf_c(out, ",\"tool_calls\":[");
    for (uint32_t i = 0; i < g->calls; i++) {
        const struct gathered_call *c = &g->call[i];

        buf_c(out, i > 0 ? ",{\"id\":" : "{\"id\":");
        json_write_string(out, buf_view(&c->id));
        buf_c(out, ",\"type\":\"function\",\"function\":{\"name\":");
        json_write_string(out, buf_view(&c->name));
        buf_c(out, ",\"arguments\":");
        json_write_string(out, buf_view(&c->arguments));
        buf_c(out, "}}");
    }
    buf_byte(out, ']');
}

/* What was gathered, as an engine's choice. */
static void gathered_choice(struct request *r, struct buf *out)
{
    const struct str *names = logprob_names(r);
    bool chat = r->endpoint == ENDPOINT_CHAT;

    buf_c(out, chat ? "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
                    : "{\"index\":0,\"text\":");
    if (r->gathered.calls > 0 && r->gathered.text.len == 0) {
        buf_c(out, "null");
    } else {
        json_write_string(out, buf_view(&r->gathered.text));
    }
    if (chat && r->gathered.calls > 0) {
        gathered_calls(&r->gathered, out);
    }
    buf_c(out, chat ? "},\"logprobs\":" : ",\"logprobs\":");
    if (!r->gathered.has_logprobs) {
        buf_c(out, "null}");
        return;
    }
    buf_byte(out, '{');
    for (unsigned i = 0; i < 4 && names[i].p != NULL; i++) {
        bool null = chat && i == 1 && r->gathered.logprobs[i].len == 0; /* refusal */

        buf_printf(out, "%s\"" STR_FMT "\":%s", i > 0 ? "," : "", STR_ARG(names[i]),
                   null ? "null" : "[");
        buf_str(out, buf_view(&r->gathered.logprobs[i]));
        buf_c(out, null ? "" : "]");
    }
    buf_c(out, "}}");
}

static void client_usage(const struct request *r, struct openai_usage *u)
{
    u->prompt = tokens_prompt(&r->billed);
    u->cached = r->billed.in_cached;
    u->completion = tokens_output(&r->billed);
    u->reasoning = r->billed.reasoning;
}

static bool gathered_is_whole(const struct request *r)
{
    bool whole = !r->gathered.text.failed;

    for (unsigned i = 0; i < ARRAY_LEN(r->gathered.logprobs); i++) {
        whole = whole && !r->gathered.logprobs[i].failed;
    }
    for (uint32_t i = 0; i < r->gathered.calls; i++) {
        const struct gathered_call *c = &r->gathered.call[i];

        whole = whole && !c->id.failed && !c->name.failed && !c->arguments.failed;
    }
    return whole;
}

/* false: larger than our bounds, so that a part of it is missing. */
static bool tail_whole(struct request *r, const struct openai_usage *u)
{
    static const struct json_limits limits = {64, GATHERED_NODES_MAX};
    struct err e = {.code = ERR_NONE};
    const struct json *choice = r->whole;

    if (choice == NULL) {
        buf_reset(&r->out);
        gathered_choice(r, &r->out);
        if (gathered_is_whole(r) && !r->out.failed) {
            choice = json_parse(&r->arena, buf_view(&r->out), &limits, &e);
        }
    }
    if (choice != NULL) {
        openai_render_whole(&r->answer, choice, r->finish, u, &r->tail);
    }
    return choice != NULL && !r->tail.failed;
}

static void tail_stream(struct request *r, const struct openai_usage *u)
{
    static const struct openai_delta none = {.has_text = false};

    if (!r->role_sent && r->endpoint == ENDPOINT_CHAT) {
        struct openai_delta role = {.role = STR("assistant"), .text = STR(""), .has_text = true};

        openai_render_chunk(&r->answer, &role, FINISH_NONE, &r->tail);
    }
    openai_render_chunk(&r->answer, &none, r->finish, &r->tail);
    if (r->api.include_usage) {
        openai_render_usage_chunk(&r->answer, u, &r->tail);
    }
    openai_render_done(&r->tail);
}

void request_answer_tail(struct request *r)
{
    struct openai_usage u;

    buf_reset(&r->tail);
    if (r->broken || r->finish == FINISH_NONE) {
        return; /* an error is told instead */
    }
    client_usage(r, &u);
    if (r->api.stream) {
        tail_stream(r, &u);
    } else if (!tail_whole(r, &u)) {
        api_error_upstream(&r->error);
        r->broken = true;
    }
}

void request_answer_send(struct request *r)
{
    struct answer_head h;

    if (r->stream == NULL) {
        return;
    }
    if (!r->responded && r->api.stream) {
        request_answer_begin(r);
    } else if (!r->responded) {
        head_common(r, &h);
        head_add(&h, STR("content-type"), STR("application/json"));
        http_stream_respond(r->stream, 200, h.f, h.n, (int64_t)r->tail.len);
        r->responded = true;
    }
    http_stream_write(r->stream, buf_view(&r->tail).p, r->tail.len);
    http_stream_end(r->stream);
}

void request_answer_error(struct request *r, const struct api_error *e)
{
    struct answer_head h;
    struct http_field extra[4];
    struct api_error_text text;
    size_t n_extra;

    if (r->stream == NULL) {
        return;
    }
    buf_reset(&r->out);
    if (r->responded) {
        openai_render_error_event(e, &r->out);
        http_stream_write(r->stream, buf_view(&r->out).p, r->out.len);
        http_stream_end(r->stream);
        return;
    }
    head_common(r, &h);
    head_add(&h, STR("content-type"), STR("application/json"));
    n_extra = api_error_fields(e, &text, extra);
    for (size_t i = 0; i < n_extra; i++) {
        head_add(&h, extra[i].name, extra[i].value);
    }
    api_error_body(e, &r->out);
    http_stream_respond(r->stream, e->status, h.f, h.n, (int64_t)r->out.len);
    r->responded = true;
    http_stream_write(r->stream, buf_view(&r->out).p, r->out.len);
    http_stream_end(r->stream);
}
