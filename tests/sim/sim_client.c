/* sim_client.c - clients: what they ask and how they behave. sim_hear.c says what they heard.
 *
 * A client asks one thing after another, on one connection while that is open. It may leave early,
 * read slowly, shut its side, send nonsense. What it heard goes into its struct ask. */
#include "sim_world.h"

#include <errno.h>
#include <stdio.h>

#define CLIENT_READ_BYTES 4096
#define THINK_US 3000000
#define SLOW_PAUSE_US 1500000
#define H2_LOOK_US 20000     /* how often a client takes what came on its stream */
#define GIVE_UP_US 900000000 /* nothing takes that long: the checkers then say that it hangs */
#define NO_SERVER_RETRY_US 400000

static void begin_next(struct client *c);

static uint64_t now(const struct client *c)
{
    return c->w->sim->now_us;
}

/* ---- the end of an ask ---- */

static void drop_connection(struct client *c, bool reset)
{
    if (c->sock == NULL) {
        return;
    }
    if (reset) {
        sim_sock_reset(c->sock);
    } else {
        env_close(&c->host.env, c->sock);
    }
    c->sock = NULL;
    http_in_fini(&c->in);
    buf_fini(&c->out);
    http_in_init(&c->in, true);
    buf_init(&c->out, 1u << 20);
}

/* The one end of an ask. */
static void ask_end(struct client *c, enum ask_end end)
{
    struct ask *a = c->ask;

    a->end = end;
    a->ended_us = now(c);
    sim_trace(c->w->sim, "%s ask %u ends: %d status %u %s%s, %u tokens", c->name, a->id, end,
              a->status, a->finish, a->code, a->tokens);
    env_timer_disarm(&c->host.env, &c->leave_timer);
    env_timer_disarm(&c->host.env, &c->resume_timer);
    env_timer_disarm(&c->host.env, &c->h2_timer);
    c->ask = NULL;
    if (c->asks_left > 0) {
        env_timer_arm(&c->host.env, &c->timer, now(c) + sim_below(&c->rng, THINK_US));
    } else {
        drop_connection(c, false);
        env_timer_disarm(&c->host.env, &c->timer);
    }
}

static bool is_stream(const struct client *c)
{
    return str_starts(http_in_field(&c->in, "content-type"), STR("text/event-stream"));
}

static void note_head(struct client *c)
{
    struct ask *a = c->ask;

    if (a->status == 0 && c->in.status >= 200) {
        a->status = c->in.status;
        str_copy(http_in_field(&c->in, "x-request-id"), a->request_id, sizeof(a->request_id));
    }
}

static void input_reset(struct client *c)
{
    http_in_fini(&c->in);
    http_in_init(&c->in, true);
    buf_reset(&c->out);
}

/* The connection is over before the answer was. */
static void lost(struct client *c, bool by_us)
{
    struct ask *a = c->ask;
    bool killed = c->link != NULL ? c->h2_closed == H2_KILLED
                                  : c->sock != NULL && sim_sock_was_killed(c->sock);

    note_head(c);
    a->excused = killed || c->gateway_lives != c->w->lives || !c->w->up || c->w->drained;
    if (a->status == 200 && is_stream(c)) {
        (void)hear_stream(c, false);
    }
    if (c->link != NULL) {
        h2_leave(c->link, c);
        input_reset(c);
    } else {
        drop_connection(c, by_us && sim_chance(&c->rng, 500));
    }
    ask_end(c, by_us || a->half_close       ? ASK_LEFT
               : a->got_bytes || a->excused ? ASK_CUT
                                            : ASK_NO_CONNECTION);
}

static void answered(struct client *c)
{
    enum ask_end end = is_stream(c) && c->ask->status == 200 ? hear_stream(c, true) : hear_whole(c);
    bool close = str_ieq(http_in_field(&c->in, "connection"), STR("close"));

    if (c->link != NULL) {
        input_reset(c);
    } else {
        http_in_next(&c->in);
    }
    if (close || c->ask->half_close) {
        drop_connection(c, false);
    }
    ask_end(c, end);
}

/* ---- the socket ---- */

static void client_ready(void *ctx, unsigned events);

static void client_watch(struct client *c)
{
    unsigned events = (c->reading ? ENV_READ : 0) | (c->out.len > 0 ? ENV_WRITE : 0);

    if (c->sock != NULL) {
        env_watch(&c->host.env, c->sock, events, client_ready, c);
    }
}

static void send_some(struct client *c)
{
    struct str all = buf_view(&c->out);
    struct iovec v = {(void *)(uintptr_t)all.p,
                      size_min(all.n, (size_t)sim_range(&c->rng, 1, 2000))};
    ssize_t n = env_writev(&c->host.env, c->sock, &v, 1);

    if (n > 0) {
        buf_consume(&c->out, (size_t)n);
        if (c->out.len == 0 && c->ask != NULL && c->ask->half_close) {
            env_shutdown_write(&c->host.env, c->sock);
        }
    }
    /* A failed write: what the server said before is still to be read, then the loss. */
}

static void resume_fire(struct env_timer *t)
{
    struct client *c = CONTAINER_OF(t, struct client, resume_timer);

    c->reading = true;
    client_watch(c);
}

static void read_some(struct client *c)
{
    uint8_t bytes[CLIENT_READ_BYTES];
    struct ask *a = c->ask;
    ssize_t n = env_read(&c->host.env, c->sock, bytes, a != NULL && a->slow ? 200 : sizeof(bytes));

    if (n == -EAGAIN) {
        return;
    }
    if (a == NULL) { /* idle: an end, or bytes that nobody asked for */
        if (n > 0) {
            sim_fail(c->w->sim, "%s: %zd bytes without a request", c->name, n);
        }
        drop_connection(c, false);
        return;
    }
    if (n <= 0) {
        lost(c, false);
        return;
    }
    a->got_bytes = true;
    http_in_feed(&c->in, bytes, (size_t)n);
    if (c->in.at == HTTP_IN_BROKEN) {
        sim_fail(c->w->sim, "ask %u: the answer is not HTTP", a->id);
        lost(c, true);
        return;
    }
    if (c->in.at != HTTP_IN_HEAD) {
        note_head(c);
    }
    if (c->in.at == HTTP_IN_DONE) {
        answered(c);
    } else if (a->leave_after > 0 && c->in.body.len >= a->leave_after) {
        lost(c, true);
    } else if (a->slow && sim_chance(&c->rng, 200)) {
        c->reading = false;
        env_timer_arm(&c->host.env, &c->resume_timer, now(c) + sim_below(&c->rng, SLOW_PAUSE_US));
    }
}

static void client_ready(void *ctx, unsigned events)
{
    struct client *c = ctx;

    if ((events & ENV_WRITE) != 0 && c->out.len > 0) {
        send_some(c);
    }
    if ((events & ENV_READ) != 0 && c->sock != NULL) {
        read_some(c);
    }
    client_watch(c);
}

/* ---- asking ---- */

static void render_prompt(const struct ask *a, struct buf *b)
{
    buf_printf(b, "ask#%u ", a->id);
    for (unsigned i = 0; i < a->filler; i++) {
        buf_byte(b, (uint8_t)('a' + (i * 7 + i / 13) % 26));
    }
}

static void render_body(const struct ask *a, struct buf *b)
{
    static const char *const models[] = {"m-small", "m-big"};
    const char *model = a->kind == ASK_NO_MODEL     ? "m-none"
                        : a->kind == ASK_NOT_PRICED ? "m-free"
                                                    : models[a->id % 2];

    if (a->kind == ASK_BAD_JSON) {
        buf_c(b, "{\"model\":");
        return;
    }
    buf_printf(b, "{\"model\":\"%s\",\"stream\":%s", model, a->stream ? "true" : "false");
    if (a->max_tokens >= 0) {
        buf_printf(b, ",\"max_tokens\":%lld", (long long)a->max_tokens);
    }
    if (a->stream && a->include_usage) {
        buf_c(b, ",\"stream_options\":{\"include_usage\":true}");
    }
    buf_c(b, a->chat ? ",\"messages\":[{\"role\":\"user\",\"content\":\"" : ",\"prompt\":\"");
    render_prompt(a, b);
    buf_c(b, a->chat ? "\"}]}" : "\"}");
}

static void render_request(struct client *c)
{
    const struct ask *a = c->ask;
    struct buf body;

    buf_init(&body, 1u << 20);
    render_body(a, &body);
    buf_printf(&c->out,
               "POST /v1/%s HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer %s\r\ncontent-type: "
               "application/json\r\ncontent-length: %zu\r\n\r\n",
               a->chat ? "chat/completions" : "completions",
               a->kind == ASK_BAD_KEY ? "tg_wrong" : c->w->keys[a->key], body.len);
    buf_str(&c->out, buf_view(&body));
    buf_fini(&body);
}

static void leave_fire(struct env_timer *t)
{
    struct client *c = CONTAINER_OF(t, struct client, leave_timer);

    if (c->ask->leave_in_us == 0) {
        sim_fail(c->w->sim, "ask %u hangs: %u bytes of body, status %u", c->ask->id,
                 (unsigned)c->in.body.len, c->in.status);
    }
    lost(c, true);
}

/* Looks at its stream: what came is taken, a slow client takes it late, one that leaves resets it.
 */
static void h2_look(struct env_timer *t)
{
    struct client *c = CONTAINER_OF(t, struct client, h2_timer);
    struct ask *a = c->ask;
    uint64_t pause = a->slow && sim_chance(&c->rng, 100) ? sim_below(&c->rng, SLOW_PAUSE_US)
                                                         : sim_below(&c->rng, H2_LOOK_US);

    if (c->in.status != 0) {
        note_head(c);
    }
    if (c->h2_closed == H2_ENDED && c->in.status != 0) {
        answered(c);
    } else if (c->h2_closed != H2_OPEN) {
        lost(c, false);
    } else if (a->leave_after > 0 && c->in.body.len >= a->leave_after) {
        lost(c, true);
    } else {
        h2_read(c->link, c);
        if (c->ask == a && c->h2_closed == H2_OPEN) {
            env_timer_disarm(&c->host.env, t);
            env_timer_arm(&c->host.env, t, now(c) + 1 + pause);
        }
    }
}

static void h2_begin(struct client *c)
{
    struct ask *a = c->ask;
    struct buf body;

    buf_init(&body, 1u << 20);
    render_body(a, &body);
    if (sim_chance(&c->rng, 100)) {
        h2_hang_up(c->link, sim_chance(&c->rng, 500));
    }
    c->gateway_lives = c->w->lives;
    h2_ask(c->link, c, a->chat ? STR("/v1/chat/completions") : STR("/v1/completions"),
           a->kind == ASK_BAD_KEY ? STR("tg_wrong") : str_c(c->w->keys[a->key]), buf_view(&body));
    buf_fini(&body);
    if (!env_timer_is_armed(&c->h2_timer)) {
        env_timer_arm(&c->host.env, &c->h2_timer, now(c) + 1);
    }
}

static struct ask *ask_new(struct client *c)
{
    struct world_sim *w = c->w;
    struct ask *a = &w->asks[w->n_asks];
    struct sim_rng *r = &c->rng;
    uint64_t kind = sim_below(r, 100);

    CHECK(w->n_asks < WORLD_ASKS_MAX);
    a->id = ++w->n_asks;
    a->key = (unsigned)sim_below(r, WORLD_KEYS);
    a->tenant = a->key / 2;
    a->kind = kind < 2   ? ASK_BAD_KEY
              : kind < 4 ? ASK_BAD_JSON
              : kind < 5 ? ASK_NO_MODEL
              : kind < 6 ? ASK_NOT_PRICED
                         : ASK_GOOD;
    a->stream = sim_chance(r, 700);
    a->chat = sim_chance(r, 800);
    a->include_usage = sim_chance(r, 600);
    a->max_tokens =
        sim_chance(r, 400) ? -1 : (int64_t)sim_range(r, 1, sim_chance(r, 400) ? 2500 : 200);
    a->filler = (unsigned)sim_below(r, sim_chance(r, 200) ? 20000 : 600);
    if (sim_chance(r, 150)) {
        a->leave_in_us = sim_range(r, 1, sim_chance(r, 500) ? 300000 : 6000000);
    } else if (sim_chance(r, 100)) {
        a->leave_after = (size_t)sim_range(r, 1, 4000);
    } else if (sim_chance(r, 40)) {
        a->half_close = true;
    }
    if (c->link != NULL) {
        a->half_close = false;
    }
    a->slow = sim_chance(r, 150);
    a->began_us = now(c);
    return a;
}

static void begin_next(struct client *c)
{
    struct err e = {.code = ERR_NONE};
    struct env_addr gateway = sim_addr(0, SIM_PORT_GATEWAY);

    if ((!c->w->up && !c->w->drained) ||
        (c->link != NULL && !h2_may_ask(c->link))) { /* a client that finds no server comes back:
                                                        that ask would tell nothing */
        env_timer_arm(&c->host.env, &c->timer,
                      now(c) + sim_range(&c->rng, 1000, NO_SERVER_RETRY_US));
        return;
    }
    c->asks_left--;
    c->ask = ask_new(c);
    sim_trace(c->w->sim, "%s asks %u: key %u kind %d %s%s max %lld leave %llu/%zu%s%s", c->name,
              c->ask->id, c->ask->key, c->ask->kind, c->ask->stream ? "stream" : "whole",
              c->ask->chat ? " chat" : "", (long long)c->ask->max_tokens,
              (unsigned long long)c->ask->leave_in_us, c->ask->leave_after,
              c->ask->half_close ? " half-close" : "", c->ask->slow ? " slow" : "");
    env_timer_arm(&c->host.env, &c->leave_timer,
                  now(c) + (c->ask->leave_in_us > 0 ? c->ask->leave_in_us : GIVE_UP_US));
    if (c->link != NULL) {
        h2_begin(c);
        return;
    }
    if (c->sock != NULL && sim_chance(&c->rng, 300)) {
        drop_connection(c, sim_chance(&c->rng, 300));
    }
    if (c->sock == NULL) {
        c->sock = env_connect(&c->host.env, &gateway, &e);
        c->gateway_lives = c->w->lives;
    }
    c->reading = true;
    render_request(c);
    client_watch(c);
}

static void think_fire(struct env_timer *t)
{
    begin_next(CONTAINER_OF(t, struct client, timer));
}

/* ---- life ---- */

void client_start(struct world_sim *w, unsigned i, unsigned asks, uint64_t at_us)
{
    struct client *c = &w->clients[i];

    c->w = w;
    c->asks_left = asks;
    c->rng.state = sim_rng_next(&w->rng);
    snprintf(c->name, sizeof(c->name), "client%u", i);
    sim_host_init(w->sim, &c->host, c->name);
    http_in_init(&c->in, true);
    buf_init(&c->out, 1u << 20);
    c->timer.fire = think_fire;
    c->leave_timer.fire = leave_fire;
    c->resume_timer.fire = resume_fire;
    c->h2_timer.fire = h2_look;
    if (asks > 0) {
        env_timer_arm(&c->host.env, &c->timer, at_us);
    }
}

bool client_is_done(const struct client *c)
{
    return c->asks_left == 0 && c->ask == NULL;
}

void client_stop(struct client *c)
{
    env_timer_disarm(&c->host.env, &c->timer);
    env_timer_disarm(&c->host.env, &c->leave_timer);
    env_timer_disarm(&c->host.env, &c->resume_timer);
    if (c->link != NULL) {
        h2_leave(c->link, c);
    }
    if (c->sock != NULL) {
        env_close(&c->host.env, c->sock);
        c->sock = NULL;
    }
    http_in_fini(&c->in);
    buf_fini(&c->out);
    sim_host_fini(&c->host);
}
