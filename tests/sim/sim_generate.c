/* sim_generate.c - a worker's answer, token by token, and what may go wrong with it. */
#include "sim_worker_impl.h"

#include <stdio.h>

#define TOKENS_MAX 300 /* of most answers */
#define TOKENS_LONG_MAX 2500
#define ROGUE_PERMILLE 15

int worker_token(const struct world_sim *w, uint32_t attempt, uint32_t i, char out[64])
{
    static const char *const tails[] = {"", "\xc3\xa9", " ", "\n\"", "\\"};

    return snprintf(out, 64, "[%u.%u.%u]%s", w->attempts[attempt].ask, attempt, i,
                    tails[(i * 7 + attempt) % ARRAY_LEN(tails)]);
}

static struct sim_attempt *attempt_of(const struct worker_conn *c)
{
    return c->attempt > 0 ? &c->k->w->attempts[c->attempt - 1] : NULL;
}

void attempt_end(struct worker_conn *c, const char *state)
{
    struct sim_attempt *a = attempt_of(c);

    if (a != NULL && a->running) {
        a->running = false;
        a->state = state;
        a->ended_us = worker_now(c->k);
        sim_trace(c->k->w->sim, "%s attempt %u ends: %s, %u tokens", c->k->name, c->attempt - 1,
                  state, a->generated);
    }
}

/* ---- events ---- */

static void chunks_end(struct worker_conn *c)
{
    buf_c(&c->out, "0\r\n\r\n");
}

static void usage_write(const struct sim_attempt *a, struct buf *b)
{
    buf_printf(b,
               "\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%u,\"total_tokens\":%lld,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%lld}}",
               (long long)a->prompt, a->generated, (long long)a->prompt + a->generated,
               (long long)a->cached);
}

/* Tokens from .. to - 1 as one event; reason NULL: not the end. */
static void event_write(struct worker_conn *c, uint32_t from, uint32_t to, const char *reason)
{
    const struct sim_attempt *a = attempt_of(c);
    struct buf text, b;
    char token[64];

    buf_init(&text, 1u << 20);
    buf_init(&b, 2u << 20);
    for (uint32_t i = from; i < to; i++) {
        buf_append(&text, token, (size_t)worker_token(c->k->w, c->attempt - 1, i, token));
    }
    buf_printf(&b, "data: {\"id\":\"x\",\"object\":\"%s\",\"choices\":[{\"index\":0,%s",
               c->chat ? "chat.completion.chunk" : "text_completion",
               c->chat ? "\"delta\":{\"content\":" : "\"text\":");
    json_write_string(&b, buf_view(&text));
    buf_printf(&b, "%s,\"finish_reason\":%s%s%s}]", c->chat ? "}" : "", reason != NULL ? "\"" : "",
               reason != NULL ? reason : "null", reason != NULL ? "\"" : "");
    if (c->usage_each) {
        buf_byte(&b, ',');
        usage_write(a, &b);
    }
    buf_c(&b, "}\n\n");
    worker_chunk(c, buf_view(&b));
    buf_fini(&text);
    buf_fini(&b);
}

static void usage_event(struct worker_conn *c)
{
    struct buf b;

    buf_init(&b, 4096);
    buf_c(&b, "data: {\"id\":\"x\",\"choices\":[],");
    usage_write(attempt_of(c), &b);
    buf_c(&b, "}\n\n");
    worker_chunk(c, buf_view(&b));
    buf_fini(&b);
}

static const char *reason_of(const struct sim_attempt *a, int64_t max_tokens)
{
    return max_tokens >= 0 && a->goal >= max_tokens ? "length" : "stop";
}

static void whole_answer(struct worker_conn *c, const char *reason)
{
    const struct sim_attempt *a = attempt_of(c);
    struct buf text, b;
    char token[64];

    buf_init(&text, 4u << 20);
    buf_init(&b, 8u << 20);
    for (uint32_t i = 0; i < a->generated; i++) {
        buf_append(&text, token, (size_t)worker_token(c->k->w, c->attempt - 1, i, token));
    }
    buf_c(&b, c->chat ? "{\"id\":\"x\",\"choices\":[{\"index\":0,\"message\":{\"role\":"
                        "\"assistant\",\"content\":"
                      : "{\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":");
    json_write_string(&b, buf_view(&text));
    buf_printf(&b, "%s,\"finish_reason\":\"%s\"}],", c->chat ? "}" : "", reason);
    usage_write(a, &b);
    buf_byte(&b, '}');
    worker_answer(c, 200, "application/json", "", buf_view(&b));
    buf_fini(&text);
    buf_fini(&b);
}
/* ---- generation ---- */

static void conn_close_after(struct worker_conn *c)
{
    c->closing = true;
}

static void finish_well(struct worker_conn *c, uint32_t from)
{
    struct sim_attempt *a = attempt_of(c);
    const char *reason = a->state; /* drawn when it began */

    a->finished = c->fate != FATE_NO_FINISH;

    if (!c->stream) {
        a->finished = true;
        whole_answer(c, reason);
        return;
    }
    if (from < a->generated && !c->finish_with_text) {
        event_write(c, from, a->generated, NULL);
        from = a->generated;
    }
    if (c->fate != FATE_NO_FINISH) {
        event_write(c, from, a->generated, reason);
    }
    if (c->k->engine != ENGINE_TOLLGATE && sim_chance(&c->k->rng, 800)) {
        usage_event(c);
    }
    if (c->fate != FATE_NO_DONE && c->fate != FATE_NO_FINISH) {
        worker_chunk(c, STR("data: [DONE]\n\n"));
    }
    chunks_end(c);
}

/* What went wrong, at its token. true: generation goes no further. */
static bool fate_strikes(struct worker_conn *c)
{
    const struct sim_attempt *a = attempt_of(c);

    if (a->generated < c->fate_at) {
        return false;
    }
    switch (c->fate) {
    case FATE_CUT:
        attempt_end(c, "aborted");
        conn_close_after(c);
        return true;
    case FATE_RESET:
        attempt_end(c, "aborted");
        worker_conn_free(c, true);
        return true;
    case FATE_HANG:
        attempt_end(c, "aborted"); /* what it computed so far is all it ever computes */
        return true;
    case FATE_ERROR_LATE:
        attempt_end(c, "aborted");
        if (c->stream) {
            worker_chunk(c, STR("data: {\"error\":{\"message\":\"out of "
                                "memory\",\"type\":\"server_error\",\"code\":500}}\n\n"));
            chunks_end(c);
        } else {
            worker_answer_json(c, 500, "", "{\"error\":{\"message\":\"out of memory\"}}");
        }
        return true;
    case FATE_GARBAGE:
        attempt_end(c, "aborted");
        worker_chunk(c, STR("data: {\"choices\":[{]\n\n"));
        chunks_end(c);
        return true;
    default:
        return false;
    }
}

static void generate_fire(struct env_timer *t)
{
    struct worker_conn *c = CONTAINER_OF(t, struct worker_conn, timer);
    struct worker_sim *k = c->k;
    struct sim_attempt *a = attempt_of(c);
    enum fate fate = c->fate;
    uint32_t from = a->generated,
             step = (uint32_t)sim_range(&k->rng, 1, sim_chance(&k->rng, 200) ? 8 : 1);

    if (fate_strikes(c)) {
        if (fate == FATE_RESET) {
            return; /* c is gone */
        }
        if (fate == FATE_ERROR_LATE && !c->stream) { /* a whole answer: the connection goes on */
            c->attempt = 0;
            http_in_next(&c->in);
            worker_conn_digest(c);
        } else {
            worker_conn_watch(c);
        }
        return;
    }
    if (c->stream && !c->sent_role) {
        c->sent_role = true;
        buf_printf(&c->out,
                   "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-tollgate-worker-epoch: "
                   "%llu\r\ntransfer-encoding: chunked\r\n\r\n",
                   (unsigned long long)k->epoch);
        if (c->chat && sim_chance(&k->rng, 500)) {
            worker_chunk(c, STR("data: "
                                "{\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"role\":"
                                "\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n"));
        }
    }
    a->generated = a->generated + step < a->goal ? a->generated + step : a->goal;
    if (a->generated == a->goal) {
        const char *reason = a->state;

        finish_well(c, from);
        attempt_end(c, reason);
        c->attempt = 0;
        if (c->fate == FATE_NO_FINISH || c->fate == FATE_NO_DONE) {
            conn_close_after(c);
        }
        if (c->in.at == HTTP_IN_DONE) {
            http_in_next(&c->in);
        }
        worker_conn_digest(c);
        return;
    }
    if (c->stream) {
        event_write(c, from, a->generated, NULL);
    }
    env_timer_arm(&k->host.env, t,
                  worker_now(k) + sim_range(&k->rng, k->token_us / 2, k->token_us * 2));
    worker_conn_watch(c);
}

static enum fate draw_fate(struct worker_sim *k)
{
    static const enum fate fates[] = {
        FATE_503,        FATE_503,     FATE_429,       FATE_400,    FATE_500,  FATE_CUT_EARLY,
        FATE_CUT,        FATE_CUT,     FATE_RESET,     FATE_RESET,  FATE_HANG, FATE_ERROR_EARLY,
        FATE_ERROR_LATE, FATE_GARBAGE, FATE_NO_FINISH, FATE_NO_DONE};

    return sim_chance(&k->rng, k->trouble) ? fates[sim_below(&k->rng, ARRAY_LEN(fates))]
                                           : FATE_WELL;
}

static uint32_t ask_of_prompt(struct str p)
{
    struct str head, rest;
    uint64_t id;

    return str_starts(p, STR("ask#")) && str_cut(str_of(p.p + 4, p.n - 4), ' ', &head, &rest) &&
                   str_u64(head, &id)
               ? (uint32_t)id
               : 0;
}

static void read_body(struct worker_conn *c, struct sim_attempt *a, int64_t *max_tokens)
{
    struct arena arena;
    struct err e = {.code = ERR_NONE};
    const struct json *root, *v, *messages;

    arena_init(&arena, 16u << 20);
    root = json_parse(&arena, buf_view(&c->in.body), &json_limits_api, &e);
    v = json_get(root, STR("stream"));
    c->stream = v != NULL && v->type == JSON_TRUE;
    if (!json_i64(json_get(root, STR("max_tokens")), max_tokens)) {
        *max_tokens = -1;
    }
    messages = json_get(root, STR("messages"));
    v = messages != NULL && messages->type == JSON_ARRAY ? json_get(messages->child, STR("content"))
                                                         : json_get(root, STR("prompt"));
    if (root == NULL || v == NULL || v->type != JSON_STRING) {
        sim_fail(c->k->w->sim, "%s got a body that it cannot read: %s", c->k->name, e.text);
    } else {
        a->ask = ask_of_prompt(v->text);
        a->prompt = (int64_t)v->text.n / 4 + 10;
    }
    arena_fini(&arena);
}

static bool is_tombed(struct worker_sim *k, struct uuid event)
{
    for (unsigned i = 0; i < k->n_tombs; i++) {
        if (uuid_eq(k->tombs[i], event)) {
            return true;
        }
    }
    return false;
}

static void read_headers(struct worker_conn *c, struct sim_attempt *a)
{
    struct world_sim *w = c->k->w;
    struct str auth = http_in_field(&c->in, "authorization"),
               event = http_in_field(&c->in, "x-tollgate-event");
    uint64_t number = 0;

    if (c->k->engine != ENGINE_TOLLGATE) {
        if (auth.p != NULL || event.p != NULL ||
            http_in_field(&c->in, "x-tollgate-prefix-key").p != NULL) {
            sim_fail(w->sim, "%s is foreign and got what only our workers may see", c->k->name);
        }
        a->number = 1;
        return;
    }
    c->usage_each = str_eq(http_in_field(&c->in, "x-tollgate-usage"), STR("each"));
    if (!str_eq(auth, STR("Bearer " WORLD_WORKER_KEY)) || !uuid_parse(event, &a->event) ||
        !str_u64(http_in_field(&c->in, "x-tollgate-attempt"), &number) || number < 1 ||
        !c->usage_each) {
        sim_fail(w->sim, "%s got a request without its headers", c->k->name);
    }
    a->number = number;
    for (uint32_t i = 0; i + 1 < w->n_attempts; i++) {
        if (uuid_eq(w->attempts[i].event, a->event)) {
            sim_fail(w->sim, "attempts %u and %u have one event", i, w->n_attempts - 1);
        }
    }
}

static bool answer_fate(struct worker_conn *c)
{
    switch (c->fate) {
    case FATE_503:
        worker_answer_json(c, 503, sim_chance(&c->k->rng, 500) ? "retry-after: 2\r\n" : "",
                           "{\"error\":{\"message\":\"busy\"}}");
        return true;
    case FATE_429:
        worker_answer_json(c, 429, "retry-after: 1\r\n",
                           "{\"error\":{\"message\":\"queue full\"}}");
        return true;
    case FATE_400:
        worker_answer_json(
            c, 400, "",
            "{\"error\":{\"message\":\"bad\",\"type\":\"BadRequestError\",\"code\":400}}");
        return true;
    case FATE_500:
        worker_answer_json(c, 500, "", "oops");
        return true;
    case FATE_CUT_EARLY:
        conn_close_after(c);
        return true;
    case FATE_ERROR_EARLY:
        if (c->stream) {
            buf_c(&c->out, "HTTP/1.1 200 OK\r\ncontent-type: "
                           "text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
            worker_chunk(c, STR("data: {\"error\":{\"message\":\"cuda "
                                "error\",\"type\":\"server_error\",\"code\":500}}\n\n"));
            chunks_end(c);
        } else {
            worker_answer_json(c, 200, "", "{\"error\":{\"message\":\"cuda error\",\"code\":500}}");
        }
        return true;
    default:
        return false;
    }
}

/* A generation request, whole. */
void take_request(struct worker_conn *c, bool chat)
{
    struct worker_sim *k = c->k;
    struct world_sim *w = k->w;
    struct sim_attempt *a = &w->attempts[w->n_attempts];
    int64_t max_tokens;
    uint64_t want = sim_range(&k->rng, 1, sim_chance(&k->rng, 250) ? TOKENS_LONG_MAX : TOKENS_MAX);

    CHECK(w->n_attempts < WORLD_ATTEMPTS_MAX);
    c->attempt = ++w->n_attempts;
    *a = (struct sim_attempt){.worker = k->index,
                              .epoch = k->epoch,
                              .running = true,
                              .state = "running",
                              .began_us = worker_now(k)};
    c->chat = chat;
    c->sent_role = false;
    read_headers(c, a);
    read_body(c, a, &max_tokens);
    a->cached = (int64_t)sim_below(&k->rng, (uint64_t)a->prompt + 1);
    a->goal =
        max_tokens >= 0 && want > (uint64_t)max_tokens ? (uint32_t)max_tokens : (uint32_t)want;
    if (k->trouble > 0 && sim_chance(&k->rng, ROGUE_PERMILLE)) {
        a->rogue = true;
        a->prompt *= 20;
        a->goal += (uint32_t)sim_below(&k->rng, 100);
    }
    c->fate = draw_fate(k);
    c->fate_at = (uint32_t)sim_below(&k->rng, a->goal + 1);
    c->finish_with_text = sim_chance(&k->rng, 200);
    sim_trace(w->sim, "%s attempt %u: ask %u number %llu goal %u fate %d at %u", k->name,
              c->attempt - 1, a->ask, (unsigned long long)a->number, a->goal, c->fate, c->fate_at);
    if ((k->engine == ENGINE_TOLLGATE && is_tombed(k, a->event)) || answer_fate(c)) {
        if (c->out.len == 0 && !c->closing) {
            worker_answer_json(c, 503, "", "{\"error\":{\"message\":\"aborted\"}}");
        }
        attempt_end(c, "refused");
        c->attempt = 0;
        http_in_next(&c->in);
        return;
    }
    a->state = reason_of(a, max_tokens);
    c->timer.fire = generate_fire;
    env_timer_arm(&k->host.env, &c->timer, worker_now(k) + sim_range(&k->rng, 100, k->prefill_us));
}
