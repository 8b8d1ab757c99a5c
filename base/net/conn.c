/* conn.c - one server connection: socket, optional TLS, the two byte queues, deadlines, and its
 * end.
 *
 * Knows no HTTP. Input is read here and handed to the protocol; output is staged, encrypted and
 * written here. conn_turn is the one place in which a connection moves on or dies. */
#include "base/net/conn.h"

#include <errno.h>

/* What the plain scratch holds at most: one read cannot decrypt to more than it, and a few records
 * that a handshake kept back. */
#define CONN_PLAIN_BYTES ((size_t)64 << 10)
/* TLS headers, tags and a frame that was already being packed when the out queue filled. */
#define CONN_OUT_SLACK ((size_t)64 << 10)

static const struct str h2_preface = {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24};

static void conn_ready(void *ctx, unsigned events);
static void conn_turn(struct env_task *t);
static void conn_timer_fired(struct env_timer *t);

static void conn_set_state(struct conn *c, enum conn_state to)
{
    static const bool legal[CONN_STATE_COUNT][CONN_STATE_COUNT] = {
        [CONN_HANDSHAKE] = {[CONN_OPEN] = true, [CONN_CLOSING] = true},
        [CONN_OPEN] = {[CONN_CLOSING] = true},
        [CONN_CLOSING] = {[CONN_LINGER] = true},
    };

    CHECK(legal[c->state][to]);
    c->state = to;
}

void conn_log(struct conn *c, enum log_level level, const char *event, const char *text)
{
    struct http_server *s = c->server;

    if (s->log != NULL) {
        log_event(s->log, level, env_wall_us(s->env), event, "%s", text);
    }
}

void conn_mark(struct conn *c)
{
    env_defer(c->server->env, &c->task);
}

void conn_end(struct conn *c, enum http_close why)
{
    if (c->ending == 0) {
        c->ending = why;
    }
    conn_mark(c);
}

void conn_end_abruptly(struct conn *c, enum http_close why)
{
    c->abrupt = true;
    conn_end(c, why);
}

/* ---- deadlines ---- */

/* One timer for all: it fires at the earliest deadline it knew of; later ones are found then. */
static void conn_timer_at(struct conn *c, uint64_t at_us)
{
    if (!env_timer_is_armed(&c->timer) || at_us < c->timer.due_us) {
        env_timer_arm(c->server->env, &c->timer, at_us);
    }
}

void conn_due_set(struct conn *c, enum conn_due which, uint64_t at_us)
{
    c->due_us[which] = at_us;
    conn_timer_at(c, at_us);
}

void conn_due_clear(struct conn *c, enum conn_due which)
{
    c->due_us[which] = 0;
}

static void conn_expired(struct conn *c, enum conn_due which)
{
    c->due_us[which] = 0;
    if (which == DUE_LINGER || which == DUE_WRITE || c->state != CONN_OPEN || c->protocol == NULL) {
        conn_end_abruptly(c, HTTP_CLOSE_LIMIT);
    } else {
        c->protocol->expired(c, which);
    }
    if (which != DUE_LINGER && which != DUE_IDLE && which != DUE_REFUSE) {
        c->server->stats.limit_closes++;
    }
}

static void conn_timer_fired(struct env_timer *t)
{
    struct conn *c = CONTAINER_OF(t, struct conn, timer);
    uint64_t now = conn_now(c);

    for (int i = 0; i < DUE_COUNT; i++) {
        if (c->due_us[i] != 0 && c->due_us[i] <= now) {
            conn_expired(c, (enum conn_due)i);
        }
    }
    for (int i = 0; i < DUE_COUNT; i++) {
        if (c->due_us[i] != 0) {
            conn_timer_at(c, c->due_us[i]);
        }
    }
    conn_mark(c);
}

/* ---- birth ---- */

void conn_accepted(struct listener *l, struct env_sock *sock, const struct env_addr *peer)
{
    struct http_server *s = l->server;
    struct conn *c = mem_try(1, sizeof(*c));

    if (c != NULL && l->tls != NULL) {
        c->tls = tls_accept(l->tls);
    }
    if (c == NULL || (l->tls != NULL && c->tls == NULL)) {
        mem_free(c);
        env_close(s->env, sock);
        return;
    }
    c->server = s;
    c->sock = sock;
    c->peer = *peer;
    c->secure = l->tls != NULL;
    c->allowed = l->allowed;
    c->state = CONN_HANDSHAKE;
    if (c->tls != NULL) {
        tls_set_protocols(c->tls, (l->allowed & HTTP_H1) != 0, (l->allowed & HTTP_H2) != 0);
    }
    list_init(&c->streams);
    list_init(&c->over);
    list_init(&c->drained);
    buf_init(&c->in, s->limits.header_bytes_max + 3 * CONN_PLAIN_BYTES);
    buf_init(&c->out, s->limits.write_buffer_max + CONN_OUT_SLACK);
    c->task.run = conn_turn;
    c->timer.fire = conn_timer_fired;
    list_push_back(&s->conns, &c->node);
    s->stats.accepted++;
    s->stats.connections++;
    conn_due_set(c, DUE_HANDSHAKE, conn_now(c) + s->limits.handshake_us);
    c->watched = ENV_READ;
    env_watch(s->env, sock, ENV_READ, conn_ready, c);
}

static void conn_open(struct conn *c, const struct protocol *p)
{
    c->protocol = p;
    conn_set_state(c, CONN_OPEN);
    if (!p->open(c)) {
        c->protocol = NULL;
        conn_end_abruptly(c, HTTP_CLOSE_LIMIT);
    }
}

/* Clear text: h2 by prior knowledge, told by its preface (RFC 9113 section 3.3). */
static void conn_sniff(struct conn *c, struct str seen)
{
    size_t n = size_min(seen.n, h2_preface.n);
    bool maybe = (c->allowed & HTTP_H2) != 0 && memcmp(seen.p, h2_preface.p, n) == 0;

    if (maybe && n < h2_preface.n) {
        return; /* not enough yet */
    }
    if (maybe) {
        conn_open(c, &h2_server_protocol);
    } else if ((c->allowed & HTTP_H1) != 0) {
        conn_open(c, &h1_server_protocol);
    } else {
        c->server->stats.protocol_errors++;
        conn_end_abruptly(c, HTTP_CLOSE_LIMIT);
    }
}

/* ---- output ---- */

static void conn_wrote(struct conn *c, size_t n)
{
    c->written += n;
    if (c->written - c->write_mark >= CONN_PROGRESS_BYTES || c->written == c->queued) {
        c->write_mark = c->written;
        conn_due_clear(c, DUE_WRITE);
    }
    if (c->written != c->queued && c->due_us[DUE_WRITE] == 0) {
        conn_due_set(c, DUE_WRITE, conn_now(c) + c->server->limits.write_stall_us);
    }
}

/* One write; returns what the socket took. */
static size_t conn_write(struct conn *c, struct str bytes)
{
    struct iovec v = {.iov_base = (void *)(uintptr_t)bytes.p, .iov_len = bytes.n};
    ssize_t n = env_writev(c->server->env, c->sock, &v, 1);

    if (n >= 0) {
        return (size_t)n;
    }
    if (n != -EAGAIN) {
        conn_end_abruptly(c, HTTP_CLOSE_PEER);
    }
    return 0;
}

static void conn_write_out(struct conn *c)
{
    size_t n;

    if (c->out.len == 0 || c->abrupt) {
        return;
    }
    n = conn_write(c, buf_view(&c->out));
    buf_consume(&c->out, n);
    conn_wrote(c, n);
    if (c->out.len == 0) {
        buf_release(&c->out); /* a quiet connection holds no buffer */
    }
}

/* Bytes for the socket: at once when nothing waits, else behind what does. */
static void conn_queue(struct conn *c, struct str bytes)
{
    size_t n = 0;

    if (bytes.n == 0 || c->abrupt) {
        return;
    }
    c->queued += bytes.n;
    if (c->out.len == 0) {
        n = conn_write(c, bytes);
    }
    buf_append(&c->out, bytes.p + n, bytes.n - n);
    conn_wrote(c, n);
    if (c->out.failed) {
        conn_end_abruptly(c, HTTP_CLOSE_LIMIT);
    }
}

static void conn_queue_wire(struct conn *c)
{
    struct buf *wire = &c->server->wire;

    conn_queue(c, buf_view(wire));
    buf_reset(wire);
}

void conn_stage_end(struct conn *c)
{
    struct buf *stage = &c->server->stage;

    if (stage->len != 0 && c->tls == NULL) {
        conn_queue(c, buf_view(stage));
    } else if (stage->len != 0) {
        if (!tls_write(c->tls, buf_view(stage).p, stage->len, &c->server->wire)) {
            conn_end_abruptly(c, HTTP_CLOSE_PEER);
        }
        conn_queue_wire(c);
    }
    buf_reset(stage);
}

void conn_stage(struct conn *c, const void *p, size_t n)
{
    struct buf *stage = &c->server->stage;

    while (n != 0) {
        size_t take = size_min(n, stage->max - stage->len);

        buf_append(stage, p, take);
        p = (const uint8_t *)p + take;
        n -= take;
        if (stage->len == stage->max) {
            conn_stage_end(c);
        }
    }
}

bool conn_has_room(const struct conn *c)
{
    return !c->abrupt && c->out.len < c->server->limits.write_buffer_max;
}

/* ---- input ---- */

/* Gives the protocol what waits in `in` and then p; keeps what it does not take. */
static void conn_input(struct conn *c, const uint8_t *p, size_t n)
{
    size_t used;

    if (c->in.len != 0) {
        buf_append(&c->in, p, n);
        used = c->protocol->input(c, (const uint8_t *)buf_view(&c->in).p, c->in.len);
        buf_consume(&c->in, used);
        if (c->in.len == 0) {
            buf_release(&c->in);
        }
    } else if (n != 0) {
        used = c->protocol->input(c, p, n);
        buf_append(&c->in, p + used, n - used);
    }
    if (c->in.failed) {
        conn_end_abruptly(c, HTTP_CLOSE_LIMIT);
    }
}

static void conn_plaintext(struct conn *c, const uint8_t *p, size_t n)
{
    if (c->ending != 0 || n == 0) {
        return;
    }
    if (c->state == CONN_HANDSHAKE && c->tls == NULL) {
        buf_append(&c->in, p, n);
        conn_sniff(c, buf_view(&c->in));
        p += n;
        n = 0;
    }
    if (c->state == CONN_OPEN && c->ending == 0) {
        conn_input(c, p, n);
    }
}

static void conn_tls_failed(struct conn *c)
{
    c->server->stats.protocol_errors++;
    conn_log(c, LOG_DEBUG, "tls_failed", tls_failure(c->tls));
    conn_end(c, HTTP_CLOSE_PEER); /* with time for the peer to read the alert */
}

static void conn_ciphertext(struct conn *c, const void *p, size_t n)
{
    struct buf *plain = &c->server->plain;
    enum tls_state state;

    buf_reset(plain);
    state = tls_feed(c->tls, p, n, plain, &c->server->wire);
    conn_queue_wire(c); /* alerts too */
    if (c->state == CONN_HANDSHAKE && (state == TLS_OPEN || state == TLS_CLOSED)) {
        bool h2 = tls_is_h2(c->tls);

        conn_open(c, h2 ? &h2_server_protocol : &h1_server_protocol);
        if (!h2 && (c->allowed & HTTP_H1) == 0) {
            conn_end_abruptly(c, HTTP_CLOSE_LIMIT); /* a client without ALPN at an h2 listener */
        }
    }
    conn_plaintext(c, (const uint8_t *)buf_view(plain).p, plain->len);
    if (state == TLS_FAILED) {
        conn_tls_failed(c);
    } else if (state == TLS_CLOSED) {
        c->eof = true;
        conn_end(c, HTTP_CLOSE_PEER);
    }
}

static void conn_discard(struct conn *c, size_t n)
{
    c->lingered += n;
    if (c->lingered > CONN_LINGER_BYTES) {
        conn_end_abruptly(c, HTTP_CLOSE_LIMIT);
    }
}

/* One read. false: nothing more for now. */
static bool conn_read(struct conn *c)
{
    uint8_t bytes[CONN_READ_BYTES];
    ssize_t n = env_read(c->server->env, c->sock, bytes, sizeof(bytes));

    if (n == -EAGAIN) {
        return false;
    }
    if (n <= 0) {
        /* A client that shuts its side is taken as gone: to a server that waits for a model, a
         * half-closed client and a dead one look the same, and the dead one costs money. */
        c->eof = true;
        if (n < 0 || c->state != CONN_CLOSING) {
            conn_end_abruptly(c, HTTP_CLOSE_PEER);
        }
        return false;
    }
    if (c->state == CONN_CLOSING || c->state == CONN_LINGER || c->ending != 0) {
        conn_discard(c, (size_t)n);
    } else if (c->tls != NULL) {
        conn_ciphertext(c, bytes, (size_t)n);
    } else {
        conn_plaintext(c, bytes, (size_t)n);
    }
    return n == (ssize_t)sizeof(bytes);
}

static unsigned conn_events(const struct conn *c)
{
    const struct http_limits *lim = &c->server->limits;
    unsigned events = c->out.len != 0 ? ENV_WRITE : 0;
    bool read = !c->eof;

    if (c->state == CONN_OPEN && c->ending == 0) {
        read = read && c->out.len < lim->write_buffer_max && c->n_over < lim->streams_max &&
               c->protocol->wants_input(c);
    }
    return events | (read ? ENV_READ : 0);
}

static void conn_ready(void *ctx, unsigned events)
{
    struct conn *c = ctx;

    if ((events & ENV_WRITE) != 0) {
        conn_write_out(c);
    }
    if ((events & ENV_READ) != 0) {
        for (int i = 0; i < CONN_READS_PER_TURN; i++) {
            if (!conn_read(c) || (conn_events(c) & ENV_READ) == 0) {
                break;
            }
        }
    }
    conn_mark(c);
}

/* ---- a turn ---- */

static void conn_say_drained(struct conn *c)
{
    struct list *n;

    while ((n = list_pop_front(&c->drained)) != NULL) {
        struct http_stream *s = CONTAINER_OF(n, struct http_stream, drain);
        const struct http_app *app = &c->server->app;

        app->on_drain(app->ctx, s);
    }
}

/* on_close for what is over. A sent stream waits until the socket has all of it. Streams that end
 * within these callbacks wait for the next turn: their resets are flushed first. */
static void conn_say_closed(struct conn *c)
{
    uint32_t n = c->n_over;
    struct list *at = c->over.next;

    for (; n != 0; n--) {
        struct http_stream *s = CONTAINER_OF(at, struct http_stream, node);

        at = at->next;
        if (s->state == STREAM_SENT && s->sent_at == 0) {
            s->sent_at = c->queued;
        }
        if (s->state == STREAM_CUT || c->written >= s->sent_at) {
            stream_free(s);
        }
    }
}

static void conn_cut_streams(struct conn *c, enum http_close why)
{
    while (!list_is_empty(&c->streams)) {
        stream_cut(CONTAINER_OF(c->streams.next, struct http_stream, node), why);
    }
}

/* CLOSING: the last bytes leave. Then our side is shut and the peer has CONN_LINGER_US to read
 * them: a close with unread input would make the kernel send a reset that overtakes our answer. */
static void conn_closing(struct conn *c)
{
    if (c->state == CONN_HANDSHAKE || c->state == CONN_OPEN) {
        conn_cut_streams(c, c->ending);
        conn_set_state(c, CONN_CLOSING);
        for (int i = 0; i < DUE_COUNT; i++) {
            if (i != DUE_WRITE) {
                conn_due_clear(c, (enum conn_due)i);
            }
        }
        if (c->tls != NULL && !c->cut) {
            tls_shutdown(c->tls, &c->server->wire);
            conn_queue_wire(c);
        }
    }
    if (c->state == CONN_CLOSING && c->out.len == 0 && !c->abrupt) {
        conn_set_state(c, CONN_LINGER);
        env_shutdown_write(c->server->env, c->sock);
        conn_due_set(c, DUE_LINGER, conn_now(c) + CONN_LINGER_US);
    }
}

static void conn_turn(struct env_task *t)
{
    struct conn *c = CONTAINER_OF(t, struct conn, task);
    unsigned events;

    /* What was read is offered whether or not more is wanted: a full `in` shrinks only so. */
    if (c->state == CONN_OPEN && c->ending == 0 && c->in.len != 0) {
        conn_input(c, NULL, 0);
    }
    conn_say_drained(c);
    /* First what waits, then what the room gained lets through: the other way round, a socket that
     * took all of `out` would leave nothing to wait for while streams still have bytes. */
    conn_write_out(c);
    if (c->state == CONN_OPEN && !c->abrupt) {
        c->protocol->flush(c);
    }
    if (c->ending != 0 && !c->abrupt) {
        conn_closing(c);
    }
    if (c->abrupt || (c->state == CONN_LINGER && c->eof)) {
        conn_free(c, c->ending);
        return;
    }
    conn_say_closed(c);
    if (c->state == CONN_OPEN && c->n_streams == 0 && c->due_us[DUE_IDLE] == 0 &&
        c->due_us[DUE_HEADER] == 0) {
        conn_due_set(c, DUE_IDLE, conn_now(c) + c->server->limits.idle_us);
    }
    events = conn_events(c);
    if (events != c->watched) {
        c->watched = events;
        env_watch(c->server->env, c->sock, events, conn_ready, c);
    }
}

/* ---- death ---- */

void conn_free(struct conn *c, enum http_close why)
{
    struct http_server *s = c->server;

    c->abrupt = true;
    conn_cut_streams(c, why);
    while (!list_is_empty(&c->over)) {
        struct http_stream *st = CONTAINER_OF(c->over.next, struct http_stream, node);

        if (st->state == STREAM_SENT) { /* some of its answer never left */
            bool left = st->sent_at != 0 && c->written >= st->sent_at;

            st->why = left ? HTTP_CLOSE_DONE : why == HTTP_CLOSE_DONE ? HTTP_CLOSE_PEER : why;
        }
        stream_free(st);
    }
    CHECK(c->n_streams == 0 && c->n_over == 0);
    if (c->protocol != NULL) {
        c->protocol->close(c);
    }
    env_timer_disarm(s->env, &c->timer);
    env_task_drop(&c->task);
    tls_session_free(c->tls);
    env_close(s->env, c->sock);
    buf_fini(&c->in);
    buf_fini(&c->out);
    list_remove(&c->node);
    s->stats.connections--;
    mem_free(c);
    server_conn_gone(s);
}
