/* stream.c - one request and its answer: what the application calls, and what h1 and h2 share.
 *
 * A call of the application changes the stream, tells the protocol and marks the connection; it
 * never calls back. Calls on a stream that is over (its on_close still to come) do nothing. */
#include "base/net/conn.h"

static void stream_timer_fired(struct env_timer *t);

static void stream_set_state(struct http_stream *s, enum stream_state to)
{
    static const bool legal[STREAM_STATE_COUNT][STREAM_STATE_COUNT] = {
        [STREAM_HEAD] = {[STREAM_ANSWER] = true, [STREAM_CUT] = true},
        [STREAM_ANSWER] = {[STREAM_ENDED] = true, [STREAM_CUT] = true},
        [STREAM_ENDED] = {[STREAM_SENT] = true, [STREAM_CUT] = true},
    };

    CHECK(legal[s->state][to]);
    s->state = to;
}

static bool stream_is_over(const struct http_stream *s)
{
    return s->state == STREAM_SENT || s->state == STREAM_CUT;
}

static struct http_server *stream_server(const struct http_stream *s)
{
    return s->conn->server;
}

/* ---- life ---- */

struct http_stream *stream_new(struct conn *c)
{
    struct http_stream *s = pool_try(&c->server->streams);
    const struct http_limits *lim = &c->server->limits;

    if (s == NULL) {
        return NULL;
    }
    s->conn = c;
    s->state = STREAM_HEAD;
    s->length_left = -1;
    s->wire_open = true;
    list_init(&s->drain);
    arena_init(&s->arena, STREAM_ARENA_BYTES);
    buf_init(&s->out, lim->stream_buffer_max);
    s->timer.fire = stream_timer_fired;
    list_push_back(&c->streams, &s->node);
    c->n_streams++;
    c->server->stats.streams++;
    conn_due_clear(c, DUE_IDLE);
    return s;
}

/* Out of the open list; on_close comes in this turn, or when the socket has all. */
static void stream_over(struct http_stream *s)
{
    struct conn *c = s->conn;

    list_remove(&s->drain);
    list_remove(&s->node);
    list_push_back(&c->over, &s->node);
    c->n_streams--;
    c->n_over++;
    env_timer_disarm(c->server->env, &s->timer);
    c->server->stats.buffered_bytes -= s->out.len;
    buf_release(&s->out);
    conn_mark(c);
}

void stream_sent(struct http_stream *s)
{
    CHECK(s->out.len == 0);
    stream_set_state(s, STREAM_SENT);
    s->why = HTTP_CLOSE_DONE;
    stream_over(s);
}

void stream_cut(struct http_stream *s, enum http_close why)
{
    if (stream_is_over(s)) {
        return;
    }
    stream_set_state(s, STREAM_CUT);
    s->why = why;
    if (s->wire_open) {
        s->conn->protocol->cut(s);
    }
    stream_over(s);
}

void stream_free(struct http_stream *s)
{
    struct conn *c = s->conn;
    const struct http_app *app = &c->server->app;

    CHECK(stream_is_over(s));
    app->on_close(app->ctx, s, s->why);
    if (s->wire_open) {
        c->protocol->forget(s);
    }
    list_remove(&s->node);
    c->n_over--;
    c->server->stats.streams--;
    arena_fini(&s->arena);
    buf_fini(&s->out);
    mem_free(s->head_memory);
    pool_give(&c->server->streams, s);
}

/* ---- stalls ---- */

static bool body_is_due(const struct http_stream *s)
{
    return !s->body_ended && s->state < STREAM_ENDED &&
           s->uncredited < stream_server(s)->limits.request_window &&
           (!s->head.expect_continue || s->continue_sent);
}

/* Arms the timer for the nearer of the two stalls; a timer that is armed already fires early enough
 * and looks again. */
static void stream_watch_stalls(struct http_stream *s)
{
    const struct http_limits *lim = &stream_server(s)->limits;
    uint64_t at = UINT64_MAX;

    if (env_timer_is_armed(&s->timer) || stream_is_over(s)) {
        return;
    }
    if (body_is_due(s)) {
        at = s->body_since_us + lim->body_stall_us;
    }
    if (s->out.len != 0) {
        at = u64_min(at, s->write_since_us + lim->write_stall_us);
    }
    if (at != UINT64_MAX) {
        env_timer_arm(stream_server(s)->env, &s->timer, at);
    }
}

static void stream_timer_fired(struct env_timer *t)
{
    struct http_stream *s = CONTAINER_OF(t, struct http_stream, timer);
    const struct http_limits *lim = &stream_server(s)->limits;
    uint64_t now = conn_now(s->conn);
    bool body = body_is_due(s) && now - s->body_since_us >= lim->body_stall_us;
    bool write = s->out.len != 0 && now - s->write_since_us >= lim->write_stall_us;

    if (!body && !write) {
        stream_watch_stalls(s);
        return;
    }
    stream_server(s)->stats.limit_closes++;
    conn_log(s->conn, LOG_DEBUG, "stream_stalled", body ? "request body" : "answer");
    stream_cut(s, HTTP_CLOSE_LIMIT);
}

/* ---- from the protocol ---- */

void stream_begin(struct http_stream *s)
{
    struct http_server *server = stream_server(s);

    server->stats.requests++;
    s->head.secure = s->conn->secure;
    s->body_ended = !s->head.body;
    s->body_since_us = conn_now(s->conn);
    s->no_body = s->head.method == HTTP_HEAD;
    server->app.on_head(server->app.ctx, s, &s->head);
    stream_watch_stalls(s);
}

void stream_body(struct http_stream *s, const void *p, size_t n)
{
    struct http_server *server = stream_server(s);

    if (s->state >= STREAM_ENDED) { /* nobody listens: what comes is dropped */
        s->conn->protocol->credit(s, n);
        return;
    }
    s->uncredited += n;
    s->body_progress += n;
    if (s->body_progress >= CONN_PROGRESS_BYTES) {
        s->body_progress = 0;
        s->body_since_us = conn_now(s->conn);
    }
    server->app.on_body(server->app.ctx, s, p, n);
}

void stream_body_end(struct http_stream *s)
{
    struct http_server *server = stream_server(s);

    if (s->body_ended) {
        return;
    }
    s->body_ended = true;
    if (s->state < STREAM_ENDED) {
        server->app.on_body_end(server->app.ctx, s);
    }
}

void stream_took(struct http_stream *s, size_t n)
{
    struct http_server *server = stream_server(s);

    buf_consume(&s->out, n);
    server->stats.buffered_bytes -= n;
    s->write_progress += n;
    if (s->write_progress >= CONN_PROGRESS_BYTES || s->out.len == 0) {
        s->write_progress = 0;
        s->write_since_us = conn_now(s->conn);
    }
    if (s->out.len == 0 && s->out.cap > STREAM_KEEP_BYTES) {
        buf_release(&s->out);
    }
    if (s->above_high && s->out.len <= server->limits.stream_buffer_high / 2) {
        s->above_high = false;
        if (s->state == STREAM_ANSWER) {
            list_push_back(&s->conn->drained, &s->drain);
            conn_mark(s->conn);
        }
    }
}

static bool bytes_break_a_head(struct str s)
{
    return memchr(s.p, '\r', s.n) != NULL || memchr(s.p, '\n', s.n) != NULL ||
           memchr(s.p, '\0', s.n) != NULL;
}

bool stream_field_is_ours(struct http_stream *s, const struct http_field *f)
{
    static const struct str ours[] = {
        {"connection", 10}, {"transfer-encoding", 17}, {"content-length", 14}, {"keep-alive", 10},
        {"upgrade", 7},     {"proxy-connection", 16},
    };

    for (size_t i = 0; i < ARRAY_LEN(ours); i++) {
        if (str_eq(f->name, ours[i])) {
            return true;
        }
    }
    if (f->name.n == 0 || bytes_break_a_head(f->name) ||
        (f->value.n != 0 && bytes_break_a_head(f->value))) {
        conn_log(s->conn, LOG_ERROR, "answer_field_dropped", "a field would have split the head");
        return true;
    }
    return false;
}

/* ---- from the application ---- */

void http_stream_set_user(struct http_stream *s, void *user)
{
    s->user = user;
}

void *http_stream_user(const struct http_stream *s)
{
    return s->user;
}

const struct http_head *http_stream_head(const struct http_stream *s)
{
    return &s->head;
}

const struct env_addr *http_stream_peer(const struct http_stream *s)
{
    return &s->conn->peer;
}

struct arena *http_stream_arena(struct http_stream *s)
{
    return &s->arena;
}

size_t http_stream_buffered(const struct http_stream *s)
{
    return s->out.len;
}

void http_stream_credit(struct http_stream *s, size_t n)
{
    uint64_t window = stream_server(s)->limits.request_window;

    CHECK(n <= s->uncredited);
    if (s->uncredited >= window && s->uncredited - n < window) {
        s->body_since_us = conn_now(s->conn); /* due again from now on */
    }
    s->uncredited -= n;
    if (stream_is_over(s) || n == 0) {
        return;
    }
    s->conn->protocol->credit(s, n);
    stream_watch_stalls(s);
    conn_mark(s->conn);
}

void http_stream_continue(struct http_stream *s)
{
    if (s->state != STREAM_HEAD || !s->head.expect_continue || s->continue_sent || s->body_ended) {
        return;
    }
    s->continue_sent = true;
    s->body_since_us = conn_now(s->conn);
    s->conn->protocol->go_on(s);
    stream_watch_stalls(s);
    conn_mark(s->conn);
}

void http_stream_respond(struct http_stream *s, unsigned status, const struct http_field *fields,
                         size_t n_fields, int64_t length)
{
    CHECK(status >= 200 && status <= 999 && length >= -1);
    CHECK(s->status == 0);
    s->status = status;
    if (stream_is_over(s)) {
        return;
    }
    if (status == 204 || status == 304) {
        s->no_body = true;
        length = -1; /* neither has a length (RFC 9110 section 8.6) */
    }
    s->length_left = s->no_body ? -1 : length;
    stream_set_state(s, STREAM_ANSWER);
    s->conn->protocol->respond(s, fields, n_fields, length);
    conn_mark(s->conn);
}

void http_stream_write(struct http_stream *s, const void *p, size_t n)
{
    struct http_server *server = stream_server(s);

    if (stream_is_over(s) || n == 0) {
        return;
    }
    CHECK(s->state == STREAM_ANSWER);
    if (s->no_body) {
        return;
    }
    if (s->length_left >= 0 && n > (uint64_t)s->length_left) {
        /* More than announced would be read as the next answer. */
        conn_log(s->conn, LOG_ERROR, "answer_too_long", "an answer passed its own length");
        http_stream_abort(s);
        return;
    }
    if (s->out.len == 0) {
        s->write_since_us = conn_now(s->conn);
        s->write_progress = 0;
    }
    buf_append(&s->out, p, n);
    if (s->out.failed) {
        server->stats.limit_closes++;
        s->reset_is_ours = true;
        stream_cut(s, HTTP_CLOSE_LIMIT);
        return;
    }
    server->stats.buffered_bytes += n;
    s->length_left -= s->length_left >= 0 ? (int64_t)n : 0;
    s->above_high = s->above_high || s->out.len > server->limits.stream_buffer_high;
    s->conn->protocol->wrote(s);
    stream_watch_stalls(s);
    conn_mark(s->conn);
}

void http_stream_end(struct http_stream *s)
{
    if (stream_is_over(s) || s->state == STREAM_ENDED) {
        return;
    }
    CHECK(s->state == STREAM_ANSWER);
    if (s->length_left > 0) {
        conn_log(s->conn, LOG_ERROR, "answer_too_short", "an answer ended before its own length");
        http_stream_abort(s);
        return;
    }
    stream_set_state(s, STREAM_ENDED);
    list_remove(&s->drain);
    s->conn->protocol->wrote(s);
    conn_mark(s->conn);
}

void http_stream_abort(struct http_stream *s)
{
    s->reset_is_ours = true;
    stream_cut(s, HTTP_CLOSE_ABORT);
}

void http_stream_close_connection(struct http_stream *s)
{
    s->close_after = true;
}
