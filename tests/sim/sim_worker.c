/* sim_worker.c - workers as the contracts describe them: ours and a foreign engine.
 *
 * Ours knows each event, counts tokens as it computes them, says the cumulative count in every
 * chunk when asked to, and answers /abort/{event}. A foreign one streams text and says a usage at
 * the end, if at all. Both stop when their client is gone. `trouble` makes requests go wrong. */
#include "sim_worker_impl.h"

#include <errno.h>
#include <stdio.h>

#define WORKER_READ_BYTES 8192
#define KV_BEAT_US 1000000

/* The one end of a connection. */
void worker_conn_free(struct worker_conn *c, bool reset)
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

void worker_answer(struct worker_conn *c, unsigned status, const char *type, const char *extra,
                   struct str body)
{
    buf_printf(&c->out,
               "HTTP/1.1 %u x\r\ncontent-type: %s\r\nx-tollgate-worker-epoch: "
               "%llu\r\n%scontent-length: %zu\r\n\r\n",
               status, type, (unsigned long long)c->k->epoch, extra, body.n);
    buf_str(&c->out, body);
}

void worker_answer_json(struct worker_conn *c, unsigned status, const char *extra, const char *body)
{
    worker_answer(c, status, "application/json", extra, str_c(body));
}

void worker_chunk(struct worker_conn *c, struct str data)
{
    buf_printf(&c->out, "%zx\r\n", data.n);
    buf_str(&c->out, data);
    buf_c(&c->out, "\r\n");
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
            runs->closing = true;
            worker_conn_watch(runs);
        }
        sim_trace(w->sim, "%s receipt of attempt %u: %s %u", k->name, i, a->state, a->generated);
        snprintf(body, sizeof(body),
                 "{\"state\":\"%s\",\"prompt\":%lld,\"cached\":%lld,\"completion\":%u}", a->state,
                 (long long)a->prompt, (long long)a->cached, a->generated);
        worker_answer_json(c, 200, "", body);
        return;
    }
    if (abort) {
        k->tombs[k->n_tombs % ARRAY_LEN(k->tombs)] = u;
        k->n_tombs += k->n_tombs < ARRAY_LEN(k->tombs) ? 1 : 0;
    }
    sim_trace(w->sim, "%s receipt of an event that it does not know", k->name);
    worker_answer_json(c, 404, "", "{\"error\":{\"message\":\"unknown event\"}}");
}

static void kv_line(struct worker_conn *c, const char *line)
{
    worker_chunk(c, str_c(line));
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
    env_timer_arm(&k->host.env, t, worker_now(k) + KV_BEAT_US);
    worker_conn_watch(c);
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
    env_timer_arm(&c->k->host.env, &c->timer, worker_now(c->k) + KV_BEAT_US);
}

static void take_metrics(struct worker_conn *c)
{
    char body[200];

    snprintf(body, sizeof(body),
             "# x\nvllm:kv_cache_usage_perc{a=\"b\"} 0.%llu\nvllm:num_requests_waiting "
             "0\nvllm:num_requests_running 1\n",
             (unsigned long long)sim_below(&c->k->rng, 90));
    worker_answer(c, 200, "text/plain", "", str_c(body));
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
    if (str_eq(target, STR("/health")) || str_eq(target, STR("/ready"))) {
        worker_answer_json(c, c->k->sick ? 503 : 200, "", "{}");
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
void worker_conn_digest(struct worker_conn *c)
{
    while (c->in.at == HTTP_IN_DONE && c->attempt == 0 && !c->kv && !c->closing) {
        dispatch(c);
    }
    if (c->in.at == HTTP_IN_BROKEN) {
        sim_fail(c->k->w->sim, "%s got what is not HTTP", c->k->name);
        c->closing = true;
    }
    worker_conn_watch(c);
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
            worker_conn_free(c, false);
            return;
        }
    }
    if (c->closing && c->out.len == 0) {
        worker_conn_free(c, false);
        return;
    }
    if ((events & ENV_READ) != 0) {
        n = env_read(&c->k->host.env, c->sock, bytes, sizeof(bytes));
        if (n == 0 || (n < 0 && n != -EAGAIN)) {
            worker_conn_free(c, false); /* the client is gone: generation stops */
            return;
        }
        if (n > 0) {
            http_in_feed(&c->in, bytes, (size_t)n);
            worker_conn_digest(c);
            return;
        }
    }
    worker_conn_watch(c);
}

void worker_conn_watch(struct worker_conn *c)
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
    worker_conn_watch(c);
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
        worker_conn_free(CONTAINER_OF(k->conns.next, struct worker_conn, node),
                         sim_chance(&k->rng, 500));
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
