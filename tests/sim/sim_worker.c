/* sim_worker.c - workers as the contracts describe them: ours and a foreign engine.
 *
 * Ours knows each event, counts tokens as it computes them, says the cumulative count in every
 * chunk when asked to, and answers /abort/{event}. A foreign one streams text and says a usage at
 * the end, if at all. Both stop when their client is gone. `trouble` makes requests go wrong. */
#include "sim_world.h"

#include <errno.h>
#include <stdio.h>

#define WORKER_READ_BYTES 8192
#define KV_BEAT_US 1000000
#define TOKENS_MAX 300 /* of most answers */
#define TOKENS_LONG_MAX 2500
#define ROGUE_PERMILLE 15

enum fate {
    FATE_WELL = 1,
    FATE_503,
    FATE_429,
    FATE_400,
    FATE_500,
    FATE_CUT_EARLY, /* closes before a head */
    FATE_CUT,       /* closes in mid-stream */
    FATE_RESET,
    FATE_HANG,        /* says nothing more */
    FATE_ERROR_EARLY, /* an error inside the 200 */
    FATE_ERROR_LATE,
    FATE_GARBAGE,   /* an event that is not JSON */
    FATE_NO_FINISH, /* a clean end without a reason */
    FATE_NO_DONE,   /* a reason, then the end without [DONE] */
};

struct worker_conn {
    struct list node;
    struct worker_sim *k;
    struct env_sock *sock;
    struct http_in in;
    struct buf out;
    struct env_timer timer;
    uint32_t attempt; /* + 1; 0: none */
    enum fate fate;
    uint32_t fate_at; /* tokens */
    bool stream, chat, usage_each, kv, closing, sent_role, finish_with_text;
};

static void conn_watch(struct worker_conn *c);
static void conn_digest(struct worker_conn *c);

static uint64_t now(const struct worker_sim *k)
{
    return k->w->sim->now_us;
}

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

static void attempt_end(struct worker_conn *c, const char *state)
{
    struct sim_attempt *a = attempt_of(c);

    if (a != NULL && a->running) {
        a->running = false;
        a->state = state;
        a->ended_us = now(c->k);
        sim_trace(c->k->w->sim, "%s attempt %u ends: %s, %u tokens", c->k->name, c->attempt - 1,
                  state, a->generated);
    }
}

/* The one end of a connection. */
static void conn_free(struct worker_conn *c, bool reset)
{
    attempt_end(c, "aborted");
    env_timer_disarm(&c->k->host.env, &c->timer);
    if (reset) {
        sim_sock_reset(c->sock);
    } else {
        env_close(&c->k->host.env, c->sock);
    }
    list_remove(&c->node);
    http_in_fini(&c->in);
    buf_fini(&c->out);
    mem_free(c);
}

/* ---- answers ---- */

static void answer(struct worker_conn *c, unsigned status, const char *type, const char *extra,
                   struct str body)
{
    buf_printf(&c->out,
               "HTTP/1.1 %u x\r\ncontent-type: %s\r\nx-tollgate-worker-epoch: "
               "%llu\r\n%scontent-length: %zu\r\n\r\n",
               status, type, (unsigned long long)c->k->epoch, extra, body.n);
    buf_str(&c->out, body);
}

static void answer_json(struct worker_conn *c, unsigned status, const char *extra, const char *body)
{
    answer(c, status, "application/json", extra, str_c(body));
}

static void chunk(struct worker_conn *c, struct str data)
{
    buf_printf(&c->out, "%zx\r\n", data.n);
    buf_str(&c->out, data);
    buf_c(&c->out, "\r\n");
}

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
    chunk(c, buf_view(&b));
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
    chunk(c, buf_view(&b));
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
    answer(c, 200, "application/json", "", buf_view(&b));
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
        chunk(c, STR("data: [DONE]\n\n"));
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
        conn_free(c, true);
        return true;
    case FATE_HANG:
        attempt_end(c, "aborted"); /* what it computed so far is all it ever computes */
        return true;
    case FATE_ERROR_LATE:
        attempt_end(c, "aborted");
        if (c->stream) {
            chunk(c, STR("data: {\"error\":{\"message\":\"out of "
                         "memory\",\"type\":\"server_error\",\"code\":500}}\n\n"));
            chunks_end(c);
        } else {
            answer_json(c, 500, "", "{\"error\":{\"message\":\"out of memory\"}}");
        }
        return true;
    case FATE_GARBAGE:
        attempt_end(c, "aborted");
        chunk(c, STR("data: {\"choices\":[{]\n\n"));
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
            conn_digest(c);
        } else {
            conn_watch(c);
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
            chunk(c, STR("data: "
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
        conn_digest(c);
        return;
    }
    if (c->stream) {
        event_write(c, from, a->generated, NULL);
    }
    env_timer_arm(&k->host.env, t, now(k) + sim_range(&k->rng, k->token_us / 2, k->token_us * 2));
    conn_watch(c);
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
        answer_json(c, 503, sim_chance(&c->k->rng, 500) ? "retry-after: 2\r\n" : "",
                    "{\"error\":{\"message\":\"busy\"}}");
        return true;
    case FATE_429:
        answer_json(c, 429, "retry-after: 1\r\n", "{\"error\":{\"message\":\"queue full\"}}");
        return true;
    case FATE_400:
        answer_json(c, 400, "",
                    "{\"error\":{\"message\":\"bad\",\"type\":\"BadRequestError\",\"code\":400}}");
        return true;
    case FATE_500:
        answer_json(c, 500, "", "oops");
        return true;
    case FATE_CUT_EARLY:
        conn_close_after(c);
        return true;
    case FATE_ERROR_EARLY:
        if (c->stream) {
            buf_c(&c->out, "HTTP/1.1 200 OK\r\ncontent-type: "
                           "text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
            chunk(c, STR("data: {\"error\":{\"message\":\"cuda "
                         "error\",\"type\":\"server_error\",\"code\":500}}\n\n"));
            chunks_end(c);
        } else {
            answer_json(c, 200, "", "{\"error\":{\"message\":\"cuda error\",\"code\":500}}");
        }
        return true;
    default:
        return false;
    }
}

/* A generation request, whole. */
static void take_request(struct worker_conn *c, bool chat)
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
                              .began_us = now(k)};
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
            answer_json(c, 503, "", "{\"error\":{\"message\":\"aborted\"}}");
        }
        attempt_end(c, "refused");
        c->attempt = 0;
        http_in_next(&c->in);
        return;
    }
    a->state = reason_of(a, max_tokens);
    c->timer.fire = generate_fire;
    env_timer_arm(&k->host.env, &c->timer, now(k) + sim_range(&k->rng, 100, k->prefill_us));
}

/* ---- the other endpoints ---- */

static struct worker_conn *conn_of_attempt(struct worker_sim *k, uint32_t attempt)
{
    LIST_EACH(it, &k->conns)
    {
        struct worker_conn *c = CONTAINER_OF(it, struct worker_conn, node);

        if (c->attempt == attempt + 1) {
            return c;
        }
    }
    return NULL;
}

static void take_receipt(struct worker_conn *c, struct str event, bool abort)
{
    struct worker_sim *k = c->k;
    struct world_sim *w = k->w;
    struct uuid u;
    char body[160];

    if (!str_eq(http_in_field(&c->in, "authorization"), STR("Bearer " WORLD_WORKER_KEY)) ||
        !uuid_parse(event, &u)) {
        sim_fail(w->sim, "%s: a bad receipt request", k->name);
        return;
    }
    for (uint32_t i = 0; i < w->n_attempts; i++) {
        struct sim_attempt *a = &w->attempts[i];
        struct worker_conn *runs;

        if (a->worker != k->index || a->forgotten || !uuid_eq(a->event, u)) {
            continue;
        }
        runs = conn_of_attempt(k, i);
        if (abort && runs != NULL && a->running) {
            attempt_end(runs, "aborted");
            env_timer_disarm(&k->host.env, &runs->timer);
            conn_close_after(runs);
            conn_watch(runs);
        }
        sim_trace(w->sim, "%s receipt of attempt %u: %s %u", k->name, i, a->state, a->generated);
        snprintf(body, sizeof(body),
                 "{\"state\":\"%s\",\"prompt\":%lld,\"cached\":%lld,\"completion\":%u}", a->state,
                 (long long)a->prompt, (long long)a->cached, a->generated);
        answer_json(c, 200, "", body);
        return;
    }
    if (abort) {
        k->tombs[k->n_tombs % ARRAY_LEN(k->tombs)] = u;
        k->n_tombs += k->n_tombs < ARRAY_LEN(k->tombs) ? 1 : 0;
    }
    sim_trace(w->sim, "%s receipt of an event that it does not know", k->name);
    answer_json(c, 404, "", "{\"error\":{\"message\":\"unknown event\"}}");
}

static void kv_line(struct worker_conn *c, const char *line)
{
    chunk(c, str_c(line));
}

static void kv_fire(struct env_timer *t)
{
    struct worker_conn *c = CONTAINER_OF(t, struct worker_conn, timer);
    struct worker_sim *k = c->k;
    char line[128];

    if (sim_chance(&k->rng, 500)) {
        k->kv_seq +=
            sim_chance(&k->rng, k->trouble / 10) ? 2 : 1; /* a gap: the reader starts over */
        snprintf(line, sizeof(line), "{\"seq\":%llu,\"stored\":[\"%016llx\"],\"removed\":[]}\n",
                 (unsigned long long)k->kv_seq, (unsigned long long)sim_rng_next(&k->rng));
    } else {
        snprintf(line, sizeof(line), "{\"seq\":%llu}\n", (unsigned long long)k->kv_seq);
    }
    kv_line(c, line);
    env_timer_arm(&k->host.env, t, now(k) + KV_BEAT_US);
    conn_watch(c);
}

static void take_kv(struct worker_conn *c)
{
    char line[160];

    c->kv = true;
    buf_c(&c->out, "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: "
                   "chunked\r\n\r\n");
    snprintf(line, sizeof(line),
             "{\"publisher\":\"%s\",\"epoch\":%llu,\"seq\":%llu,\"snapshot\":[\"%016llx\"]}\n",
             c->k->name, (unsigned long long)c->k->epoch, (unsigned long long)c->k->kv_seq,
             (unsigned long long)sim_rng_next(&c->k->rng));
    kv_line(c, line);
    c->timer.fire = kv_fire;
    env_timer_arm(&c->k->host.env, &c->timer, now(c->k) + KV_BEAT_US);
}

static void take_metrics(struct worker_conn *c)
{
    char body[200];

    snprintf(body, sizeof(body),
             "# x\nvllm:kv_cache_usage_perc{a=\"b\"} 0.%llu\nvllm:num_requests_waiting "
             "0\nvllm:num_requests_running 1\n",
             (unsigned long long)sim_below(&c->k->rng, 90));
    answer(c, 200, "text/plain", "", str_c(body));
}

static void dispatch(struct worker_conn *c)
{
    struct str method, target;

    if (!http_in_start(&c->in, &method, &target)) {
        sim_fail(c->k->w->sim, "%s got no request line", c->k->name);
        return;
    }
    if (str_eq(target, STR("/v1/chat/completions")) || str_eq(target, STR("/v1/completions"))) {
        take_request(c, str_eq(target, STR("/v1/chat/completions")));
        return;
    }
    if (str_eq(target, STR("/health"))) {
        answer_json(c, c->k->sick ? 503 : 200, "", "{}");
    } else if (str_eq(target, STR("/metrics"))) {
        take_metrics(c);
    } else if (str_starts(target, STR("/kv_events"))) {
        take_kv(c);
        return;
    } else if (str_starts(target, STR("/abort/")) || str_starts(target, STR("/events/"))) {
        bool abort = str_starts(target, STR("/abort/"));
        size_t skip = abort ? 7 : 8;

        take_receipt(c, str_of(target.p + skip, target.n - skip), abort);
    } else {
        sim_fail(c->k->w->sim, "%s got " STR_FMT, c->k->name, STR_ARG(target));
    }
    http_in_next(&c->in);
}

/* Whole requests, one at a time. */
static void conn_digest(struct worker_conn *c)
{
    while (c->in.at == HTTP_IN_DONE && c->attempt == 0 && !c->kv && !c->closing) {
        dispatch(c);
    }
    if (c->in.at == HTTP_IN_BROKEN) {
        sim_fail(c->k->w->sim, "%s got what is not HTTP", c->k->name);
        c->closing = true;
    }
    conn_watch(c);
}

/* ---- sockets ---- */

static void conn_ready(void *ctx, unsigned events)
{
    struct worker_conn *c = ctx;
    uint8_t bytes[WORKER_READ_BYTES];
    ssize_t n;

    if ((events & ENV_WRITE) != 0 && c->out.len > 0) {
        struct iovec v = {c->out.p + c->out.off, c->out.len};

        n = env_writev(&c->k->host.env, c->sock, &v, 1);
        if (n > 0) {
            buf_consume(&c->out, (size_t)n);
        } else if (n < 0 && n != -EAGAIN) {
            conn_free(c, false);
            return;
        }
    }
    if (c->closing && c->out.len == 0) {
        conn_free(c, false);
        return;
    }
    if ((events & ENV_READ) != 0) {
        n = env_read(&c->k->host.env, c->sock, bytes, sizeof(bytes));
        if (n == 0 || (n < 0 && n != -EAGAIN)) {
            conn_free(c, false); /* the client is gone: generation stops */
            return;
        }
        if (n > 0) {
            http_in_feed(&c->in, bytes, (size_t)n);
            conn_digest(c);
            return;
        }
    }
    conn_watch(c);
}

static void conn_watch(struct worker_conn *c)
{
    env_watch(&c->k->host.env, c->sock, ENV_READ | (c->out.len > 0 || c->closing ? ENV_WRITE : 0),
              conn_ready, c);
}

static void listener_ready(void *ctx, unsigned events)
{
    struct worker_sim *k = ctx;
    struct env_sock *sock = env_accept(&k->host.env, k->listener, NULL);
    struct worker_conn *c;

    (void)events;
    if (sock == NULL) {
        return;
    }
    c = mem_new(sizeof(*c));
    c->k = k;
    c->sock = sock;
    http_in_init(&c->in, false);
    buf_init(&c->out, 16u << 20);
    list_push_back(&k->conns, &c->node);
    conn_watch(c);
}

/* ---- life ---- */

void worker_start(struct world_sim *w, unsigned i)
{
    struct worker_sim *k = &w->workers[i];

    k->w = w;
    k->index = i;
    k->worker_id = (int32_t)(11 + i);
    k->rng.state = sim_rng_next(&w->rng);
    k->engine = i > 0 && sim_chance(&k->rng, 300) ? ENGINE_OPENAI : ENGINE_TOLLGATE;
    k->token_us = sim_range(&k->rng, 500, 30000);
    k->prefill_us = sim_range(&k->rng, 1000, 400000);
    k->addr = sim_addr(20 + i, 9000);
    snprintf(k->url, sizeof(k->url), "http://10.0.0.%u:9000", 20 + i);
    snprintf(k->name, sizeof(k->name), "worker%u", i);
    list_init(&k->conns);
    sim_host_init(w->sim, &k->host, k->name);
    worker_up(k);
}

void worker_up(struct worker_sim *k)
{
    struct err e = {.code = ERR_NONE};

    if (k->listener != NULL) {
        return;
    }
    k->epoch = 1 + (sim_rng_next(&k->rng) >> 16);
    k->kv_seq = 0;
    k->n_tombs = 0;
    k->listener = env_listen(&k->host.env, &k->addr, false, &e);
    CHECK(k->listener != NULL);
    sim_trace(k->w->sim, "%s up, epoch %llu", k->name, (unsigned long long)k->epoch);
    env_watch(&k->host.env, k->listener, ENV_READ, listener_ready, k);
}

void worker_down(struct worker_sim *k)
{
    if (k->listener == NULL) {
        return;
    }
    sim_trace(k->w->sim, "%s down", k->name);
    while (!list_is_empty(&k->conns)) {
        conn_free(CONTAINER_OF(k->conns.next, struct worker_conn, node), sim_chance(&k->rng, 500));
    }
    env_close(&k->host.env, k->listener);
    k->listener = NULL;
    for (uint32_t i = 0; i < k->w->n_attempts; i++) {
        if (k->w->attempts[i].worker == k->index) {
            k->w->attempts[i].forgotten = true;
        }
    }
}

void worker_stop(struct worker_sim *k)
{
    worker_down(k);
    sim_host_fini(&k->host);
}
