/* h2.c - the server's side of HTTP/2: an nghttp2 session and the guards that it lacks.
 *
 * The one file that knows nghttp2. Its 1.52 has no timers, no cap on its outbound queue and no
 * account of the resets that a peer makes it send (CVE-2025-8671); those guards are here. Two rules
 * of that version shape the code: on_stream_close answers 0 and submits nothing (CVE-2023-35945),
 * and a session is ended after the feed loop, never inside a callback.
 * Guarded by tests/unit/test_server_h2.c, one case a row of the attack table. */
#include "base/net/h2_block.h"
#include "base/net/h2_scan.h"

#include <nghttp2/nghttp2.h>

#define H2_FEED_BYTES 2048       /* fed between two looks at the guards */
#define H2_QUEUE_MAX 5000        /* frames waiting in nghttp2: a peer that asks and does not read */
#define H2_CONN_WINDOW (1 << 20) /* credited as data comes: streams are bounded one by one */
#define H2_BOMB_TOKENS 20        /* a header bomb costs 2 ms to decode: ten of them end it */
#define H2_REAL_DATA_BYTES 64    /* DATA of this size earns its window updates back */
/* An upload that is answered early is discarded for so long before it is reset: clients that see
 * answer and reset in one read lose the answer (curl 7.88: "Error in the HTTP/2 framing layer"). */
#define H2_REFUSE_US 1000000
#define H2_REFUSE_MAX 128 /* of them; more are reset at once */
/* nghttp2's own limiter reads the clock and cannot be told apart from ours: out of the way. */
#define H2_LIBRARY_RESETS 1000000000u

struct h2_shared {
    nghttp2_session_callbacks *callbacks;
    nghttp2_option *options;
};

/* A stream whose answer has left and whose upload goes on. */
struct refused {
    int32_t id;
    uint64_t due_us;
};

struct h2_conn {
    nghttp2_session *session; /* owned */
    struct h2_block block;    /* the header block under way */
    int32_t block_id;         /* its stream, while its end is due; 0: none */
    struct bucket resets;
    struct bucket control;
    struct h2_scan scan;
    struct buf refused; /* struct refused, oldest first */
    bool calm;          /* a bucket ran dry: the session ends after this feed */
    bool terminated;    /* our GOAWAY with the end of it is queued */
    bool greeted;       /* the peer's first SETTINGS came */
};

static struct h2_conn *h2_of(struct conn *c)
{
    return c->impl;
}

static struct http_stream *h2_stream(struct conn *c, int32_t id)
{
    return nghttp2_session_get_stream_user_data(h2_of(c)->session, id);
}

/* ---- guards ---- */

static void h2_count_reset(struct conn *c, uint32_t tokens)
{
    if (!bucket_take(&h2_of(c)->resets, tokens, conn_now(c))) {
        h2_of(c)->calm = true;
    }
}

static void h2_count_control(struct conn *c, uint32_t frames)
{
    if (frames != 0 && !bucket_take(&h2_of(c)->control, frames, conn_now(c))) {
        h2_of(c)->calm = true;
    }
}

static void h2_terminate(struct conn *c, uint32_t code, enum http_close why)
{
    struct h2_conn *h = h2_of(c);

    if (!h->terminated) {
        h->terminated = true;
        (void)nghttp2_session_terminate_session(h->session, code);
    }
    conn_end(c, why);
}

/* After each feed, outside all callbacks. */
static void h2_guard(struct conn *c)
{
    struct h2_conn *h = h2_of(c);

    if (h->calm && !h->terminated) {
        c->server->stats.limit_closes++;
        conn_log(c, LOG_INFO, "h2_calm", "a peer's resets or control frames passed their rate");
        h2_terminate(c, NGHTTP2_ENHANCE_YOUR_CALM, HTTP_CLOSE_LIMIT);
    }
    if (nghttp2_session_get_outbound_queue_size(h->session) > H2_QUEUE_MAX) {
        c->server->stats.limit_closes++;
        conn_end_abruptly(c, HTTP_CLOSE_LIMIT);
    }
}

/* ---- frames in ---- */

static int h2_on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    struct conn *c = user;
    const struct http_stream *s = h2_stream(c, frame->hd.stream_id);

    (void)session;
    h2_block_begin(&h2_of(c)->block, &c->server->limits, s != NULL ? s->header_count : 0,
                   s != NULL ? s->header_bytes : 0);
    h2_of(c)->block_id = frame->hd.stream_id;
    conn_due_set(c, DUE_HEADER, conn_now(c) + c->server->limits.header_us);
    return 0;
}

static int h2_on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                        size_t name_n, const uint8_t *value, size_t value_n, uint8_t flags,
                        void *user)
{
    struct conn *c = user;
    bool request = frame->headers.cat == NGHTTP2_HCAT_REQUEST;
    enum h2_verdict v;

    (void)session;
    (void)flags;
    v = h2_block_add(&h2_of(c)->block, &c->server->limits, str_of(name, name_n),
                     str_of(value, value_n), request);
    if (v == H2_BLOCK_BOMB) {
        h2_count_reset(c, H2_BOMB_TOKENS);
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    if (v == H2_BLOCK_LARGE && !request) { /* trailers: too late for an answer of our own */
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    return 0;
}

/* Fields that nghttp2 would drop in silence (control characters, bad names): the request goes. */
static int h2_on_invalid_header(nghttp2_session *session, const nghttp2_frame *frame,
                                const uint8_t *name, size_t name_n, const uint8_t *value,
                                size_t value_n, uint8_t flags, void *user)
{
    (void)session;
    (void)frame;
    (void)name;
    (void)name_n;
    (void)value;
    (void)value_n;
    (void)flags;
    (void)user;
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

/* An answer without a stream of ours: the application never hears of it. */
static void h2_answer_bare(struct conn *c, int32_t id, unsigned status)
{
    char text[4] = {(char)('0' + status / 100), (char)('0' + status / 10 % 10),
                    (char)('0' + status % 10), '\0'};
    nghttp2_nv nv[] = {
        {(uint8_t *)(uintptr_t) ":status", (uint8_t *)text, 7, 3, NGHTTP2_NV_FLAG_NONE},
        {(uint8_t *)(uintptr_t) "content-length", (uint8_t *)(uintptr_t) "0", 14, 1,
         NGHTTP2_NV_FLAG_NONE},
    };

    c->server->stats.protocol_errors++;
    h2_count_reset(c, 1);
    (void)nghttp2_submit_response(h2_of(c)->session, id, nv, ARRAY_LEN(nv), NULL);
}

static void h2_reset(struct conn *c, int32_t id, uint32_t code)
{
    (void)nghttp2_submit_rst_stream(h2_of(c)->session, NGHTTP2_FLAG_NONE, id, code);
}

/* Takes back a stream that the application never saw. */
static void h2_unmake(struct http_stream *s)
{
    struct conn *c = s->conn;

    list_remove(&s->node);
    c->n_streams--;
    c->server->stats.streams--;
    mem_free(s->head_memory);
    mem_free(s);
}

static void h2_begin(struct conn *c, const nghttp2_frame *frame)
{
    static const nghttp2_extpri fair = {.urgency = NGHTTP2_EXTPRI_DEFAULT_URGENCY, .inc = 1};
    struct h2_conn *h = h2_of(c);
    int32_t id = frame->hd.stream_id;
    struct http_stream *s;
    enum h2_verdict v;

    if (h->block.large) {
        h2_answer_bare(c, id, 431);
        return;
    }
    s = stream_new(c);
    if (s == NULL) {
        h2_reset(c, id, NGHTTP2_REFUSED_STREAM);
        return;
    }
    v = h2_block_head(&h->block, (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0, s);
    if (v != H2_BLOCK_FINE) {
        h2_unmake(s);
        if (v == H2_BLOCK_REFUSED) {
            h2_answer_bare(c, id, h->block.status);
        } else {
            h2_reset(c, id,
                     v == H2_BLOCK_MALFORMED ? NGHTTP2_PROTOCOL_ERROR : NGHTTP2_REFUSED_STREAM);
        }
        return;
    }
    s->id = id;
    s->header_count = h->block.count;
    s->header_bytes = h->block.bytes;
    (void)nghttp2_session_set_stream_user_data(h->session, id, s);
    /* Round robin among equals, whatever the peer asks: no stream waits for another to end. */
    (void)nghttp2_session_change_extpri_stream_priority(h->session, id, &fair, 1);
    stream_begin(s);
}

static void h2_block_over(struct conn *c)
{
    h2_of(c)->block_id = 0;
    conn_due_clear(c, DUE_HEADER);
}

static void h2_headers_done(struct conn *c, const nghttp2_frame *frame)
{
    struct http_stream *s;

    h2_block_over(c);
    if (frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
        h2_begin(c, frame);
    } else if ((s = h2_stream(c, frame->hd.stream_id)) != NULL) {
        s->header_count = h2_of(c)->block.count;
        s->header_bytes = h2_of(c)->block.bytes;
        stream_body_end(s); /* trailers end the stream, or nghttp2 refused them */
    }
    h2_block_end(&h2_of(c)->block);
}

static void h2_data_done(struct conn *c, const nghttp2_frame *frame)
{
    bool end = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    struct http_stream *s = h2_stream(c, frame->hd.stream_id);

    if (!end && frame->hd.length != 0 && frame->hd.length == frame->data.padlen) {
        h2_count_control(c, 1); /* all padding; h2_scan counts the empty ones */
    }
    if (end && s != NULL) {
        stream_body_end(s);
    }
}

static int h2_on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    struct conn *c = user;
    struct h2_conn *h = h2_of(c);

    (void)session;
    switch (frame->hd.type) {
    case NGHTTP2_HEADERS:
        h2_headers_done(c, frame);
        break;
    case NGHTTP2_DATA:
        h2_data_done(c, frame);
        break;
    case NGHTTP2_RST_STREAM:
        h2_count_reset(c, 1);
        break;
    case NGHTTP2_SETTINGS:
        if ((frame->hd.flags & NGHTTP2_FLAG_ACK) != 0) {
            conn_due_clear(c, DUE_SETTINGS);
        } else if (!h->greeted) {
            h->greeted = true;
            conn_due_clear(c, DUE_HANDSHAKE);
        }
        break;
    default:
        break;
    }
    return 0;
}

/* The connection's window is credited at once, a stream's as the application credits it: a stream
 * that nobody reads holds its own window and no more. */
static int h2_on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *p,
                      size_t n, void *user)
{
    struct conn *c = user;
    struct http_stream *s = h2_stream(c, id);

    (void)flags;
    (void)nghttp2_session_consume_connection(session, n);
    if (s != NULL) {
        stream_body(s, p, n);
    } else {
        (void)nghttp2_session_consume_stream(session, id, n);
    }
    return 0;
}

/* Answers 0 and submits nothing, whatever happens. */
static int h2_on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *user)
{
    struct conn *c = user;
    struct http_stream *s = h2_stream(c, id);

    (void)session;
    (void)code;
    if (id == h2_of(c)->block_id) {
        h2_block_over(c); /* a refused block has no other end: nghttp2 does not tell of it */
    }
    if (s != NULL) {
        s->wire_open = false;
        stream_cut(s, HTTP_CLOSE_PEER); /* nothing if its answer was sent whole */
    }
    return 0;
}

/* ---- frames out ---- */

static ssize_t h2_read_answer(nghttp2_session *session, int32_t id, uint8_t *to, size_t room,
                              uint32_t *flags, nghttp2_data_source *source, void *user)
{
    struct conn *c = user;
    struct http_stream *s = h2_stream(c, id);
    size_t n;

    (void)session;
    (void)to;
    (void)source;
    if (s == NULL || s->state == STREAM_CUT) {
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    n = size_min(room, s->out.len);
    if (n == s->out.len && s->state == STREAM_ENDED) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    } else if (n == 0) {
        return NGHTTP2_ERR_DEFERRED; /* http_stream_write resumes it */
    }
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    return (ssize_t)n;
}

static int h2_send_answer(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *head,
                          size_t n, nghttp2_data_source *source, void *user)
{
    struct conn *c = user;
    struct http_stream *s = h2_stream(c, frame->hd.stream_id);

    (void)session;
    (void)source;
    if (s == NULL || s->state == STREAM_CUT || s->out.len < n) {
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    if (!conn_has_room(c)) {
        return NGHTTP2_ERR_WOULDBLOCK;
    }
    conn_stage(c, head, 9); /* we never pad */
    conn_stage(c, buf_view(&s->out).p, n);
    stream_took(s, n);
    if (n >= H2_REAL_DATA_BYTES) {
        bucket_refund(&h2_of(c)->control, 2); /* one update of the stream, one of the connection */
    }
    return 0;
}

/* Resets the uploads whose time is up (RFC 9113 section 8.1: NO_ERROR); arms for the next. */
static void h2_refuse_due(struct conn *c, uint64_t now)
{
    struct h2_conn *h = h2_of(c);
    struct refused r;

    while (h->refused.len != 0) {
        memcpy(&r, buf_view(&h->refused).p, sizeof(r));
        if (r.due_us > now) {
            conn_due_set(c, DUE_REFUSE, r.due_us);
            return;
        }
        buf_consume(&h->refused, sizeof(r));
        if (nghttp2_session_get_stream_remote_close(h->session, r.id) == 0) {
            h2_reset(c, r.id, NGHTTP2_NO_ERROR);
        }
    }
    buf_release(&h->refused);
}

static void h2_refuse_upload(struct conn *c, int32_t id)
{
    struct h2_conn *h = h2_of(c);
    struct refused r = {.id = id, .due_us = conn_now(c) + H2_REFUSE_US};

    if (h->refused.len < H2_REFUSE_MAX * sizeof(r)) {
        buf_append(&h->refused, &r, sizeof(r));
        if (c->due_us[DUE_REFUSE] == 0) {
            conn_due_set(c, DUE_REFUSE, r.due_us);
        }
    } else {
        h2_reset(c, id, NGHTTP2_NO_ERROR);
    }
}

/* The answer has left, maybe before the upload came. */
static void h2_answer_sent(struct conn *c, int32_t id)
{
    struct http_stream *s = h2_stream(c, id);

    if (nghttp2_session_get_stream_remote_close(h2_of(c)->session, id) == 0) {
        h2_refuse_upload(c, id);
    }
    if (s != NULL && s->state == STREAM_ENDED) {
        bucket_refund(&h2_of(c)->resets, 1); /* honest work pays for honest cancels */
        stream_sent(s);
    }
}

static int h2_on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    struct conn *c = user;
    const struct http_stream *s;

    (void)session;
    switch (frame->hd.type) {
    case NGHTTP2_RST_STREAM:
        s = h2_stream(c, frame->hd.stream_id);
        if (frame->rst_stream.error_code != NGHTTP2_NO_ERROR && (s == NULL || !s->reset_is_ours)) {
            c->server->stats.protocol_errors++;
            h2_count_reset(c, 1);
        }
        break;
    case NGHTTP2_GOAWAY:
        c->server->stats.protocol_errors += frame->goaway.error_code != NGHTTP2_NO_ERROR;
        break;
    case NGHTTP2_HEADERS:
    case NGHTTP2_DATA:
        if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
            h2_answer_sent(c, frame->hd.stream_id);
        }
        break;
    default:
        break;
    }
    return 0;
}

/* An answer's head that nghttp2 will not send (larger than 64 KiB): without it the stream would
 * hang. */
static int h2_on_frame_not_send(nghttp2_session *session, const nghttp2_frame *frame, int code,
                                void *user)
{
    struct conn *c = user;
    struct http_stream *s;

    (void)session;
    if (frame->hd.type == NGHTTP2_HEADERS && (s = h2_stream(c, frame->hd.stream_id)) != NULL) {
        conn_log(c, LOG_ERROR, "h2_answer_not_sent", nghttp2_strerror(code));
        s->reset_is_ours = true;
        stream_cut(s, HTTP_CLOSE_LIMIT);
    }
    return 0;
}

/* ---- what all sessions share ---- */

struct h2_shared *h2_shared_new(void)
{
    struct h2_shared *s = mem_new(sizeof(*s));

    CHECK(nghttp2_session_callbacks_new(&s->callbacks) == 0);
    CHECK(nghttp2_option_new(&s->options) == 0);
    nghttp2_session_callbacks_set_on_begin_headers_callback(s->callbacks, h2_on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(s->callbacks, h2_on_header);
    nghttp2_session_callbacks_set_on_invalid_header_callback(s->callbacks, h2_on_invalid_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(s->callbacks, h2_on_frame_recv);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(s->callbacks, h2_on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(s->callbacks, h2_on_stream_close);
    nghttp2_session_callbacks_set_on_frame_send_callback(s->callbacks, h2_on_frame_send);
    nghttp2_session_callbacks_set_on_frame_not_send_callback(s->callbacks, h2_on_frame_not_send);
    nghttp2_session_callbacks_set_send_data_callback(s->callbacks, h2_send_answer);
    nghttp2_option_set_no_auto_window_update(s->options, 1);
    nghttp2_option_set_no_closed_streams(s->options, 1);
    nghttp2_option_set_stream_reset_rate_limit(s->options, H2_LIBRARY_RESETS, H2_LIBRARY_RESETS);
    return s;
}

void h2_shared_free(struct h2_shared *s)
{
    nghttp2_session_callbacks_del(s->callbacks);
    nghttp2_option_del(s->options);
    mem_free(s);
}

/* ---- the protocol's side of a connection ---- */

static bool h2_open(struct conn *c)
{
    const struct http_limits *lim = &c->server->limits;
    nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, lim->streams_max},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, lim->request_window},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, lim->header_bytes_max},
        {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
    };
    struct h2_conn *h = mem_try(1, sizeof(*h));
    uint64_t now = conn_now(c);

    if (h == NULL) {
        return false;
    }
    if (nghttp2_session_server_new2(&h->session, c->server->h2->callbacks, c,
                                    c->server->h2->options) != 0) {
        mem_free(h);
        return false;
    }
    c->impl = h;
    bucket_init(&h->resets, lim->resets_burst, lim->resets_per_s, now);
    bucket_init(&h->control, lim->control_burst, lim->control_per_s, now);
    h2_scan_init(&h->scan);
    buf_init(&h->refused, H2_REFUSE_MAX * sizeof(struct refused));
    (void)nghttp2_submit_settings(h->session, NGHTTP2_FLAG_NONE, settings, ARRAY_LEN(settings));
    (void)nghttp2_session_set_local_window_size(
        h->session, NGHTTP2_FLAG_NONE, 0, (int32_t)size_max(H2_CONN_WINDOW, lim->request_window));
    conn_due_set(c, DUE_SETTINGS, now + lim->settings_ack_us);
    return true;
}

static void h2_close(struct conn *c)
{
    struct h2_conn *h = h2_of(c);

    nghttp2_session_del(h->session);
    h2_block_end(&h->block);
    buf_fini(&h->refused);
    mem_free(h);
    c->impl = NULL;
}

static size_t h2_input(struct conn *c, const uint8_t *p, size_t n)
{
    struct h2_conn *h = h2_of(c);
    size_t at = 0;

    while (at < n && c->ending == 0) {
        size_t feed = size_min(n - at, H2_FEED_BYTES);
        ssize_t got;

        h2_count_control(c, h2_scan_feed(&h->scan, p + at, feed));
        got = nghttp2_session_mem_recv(h->session, p + at, feed);
        if (got < 0) { /* bad magic, flooded, too many CONTINUATIONs, no memory: all the same */
            c->server->stats.protocol_errors++;
            conn_log(c, LOG_DEBUG, "h2_fatal", nghttp2_strerror((int)got));
            conn_end_abruptly(c, HTTP_CLOSE_LIMIT);
            return n;
        }
        at += (size_t)got;
        h2_guard(c);
    }
    return n;
}

static bool h2_wants_input(const struct conn *c)
{
    (void)c;
    return true; /* flow control, not the socket, holds a peer back */
}

/* Moves frames out while there is room; false: the session is broken. */
static bool h2_pump(struct conn *c)
{
    const uint8_t *p = NULL;
    ssize_t n = 1;

    while (n > 0 && conn_has_room(c)) {
        n = nghttp2_session_mem_send(h2_of(c)->session, &p);
        conn_stage(c, p, n > 0 ? (size_t)n : 0);
    }
    conn_stage_end(c);
    return n >= 0;
}

static void h2_flush(struct conn *c)
{
    struct h2_conn *h = h2_of(c);
    bool terminated = h->terminated;

    if (!h2_pump(c)) {
        conn_end_abruptly(c, HTTP_CLOSE_LIMIT);
        return;
    }
    h2_guard(c); /* resets are counted as they leave */
    if (h->terminated && !terminated) {
        (void)h2_pump(c); /* the GOAWAY that says why */
    }
    if (nghttp2_session_want_read(h->session) == 0 && nghttp2_session_want_write(h->session) == 0) {
        conn_end(c, HTTP_CLOSE_PEER);
    }
}

static void h2_respond(struct http_stream *s, const struct http_field *fields, size_t n,
                       int64_t length)
{
    struct conn *c = s->conn;
    nghttp2_nv *nv = mem_try(n + 2, sizeof(*nv));
    nghttp2_data_provider body = {.read_callback = h2_read_answer};
    char status[4], text[24];
    size_t count = 0;

    if (nv == NULL) {
        stream_cut(s, HTTP_CLOSE_LIMIT);
        return;
    }
    nv[count++] = (nghttp2_nv){(uint8_t *)(uintptr_t) ":status", (uint8_t *)status, 7, 3, 0};
    status[0] = (char)('0' + s->status / 100);
    status[1] = (char)('0' + s->status / 10 % 10);
    status[2] = (char)('0' + s->status % 10);
    for (size_t i = 0; i < n; i++) {
        if (!stream_field_is_ours(s, &fields[i])) {
            nv[count++] = (nghttp2_nv){(uint8_t *)(uintptr_t)fields[i].name.p,
                                       (uint8_t *)(uintptr_t)fields[i].value.p, fields[i].name.n,
                                       fields[i].value.n, NGHTTP2_NV_FLAG_NONE};
        }
    }
    if (length >= 0) {
        struct buf digits = {.p = (uint8_t *)text, .cap = sizeof(text), .max = sizeof(text)};

        buf_i64(&digits, length);
        nv[count++] = (nghttp2_nv){(uint8_t *)(uintptr_t) "content-length", (uint8_t *)text, 14,
                                   digits.len, NGHTTP2_NV_FLAG_NONE};
    }
    if (nghttp2_submit_response(h2_of(c)->session, s->id, nv, count, &body) != 0) {
        stream_cut(s, HTTP_CLOSE_LIMIT);
    }
    mem_free(nv);
}

static void h2_go_on(struct http_stream *s)
{
    nghttp2_nv nv = {(uint8_t *)(uintptr_t) ":status", (uint8_t *)(uintptr_t) "100", 7, 3,
                     NGHTTP2_NV_FLAG_NONE};

    (void)nghttp2_submit_headers(h2_of(s->conn)->session, NGHTTP2_FLAG_NONE, s->id, NULL, &nv, 1,
                                 NULL);
}

static void h2_wrote(struct http_stream *s)
{
    if (s->wire_open) { /* an error means that nothing was deferred */
        (void)nghttp2_session_resume_data(h2_of(s->conn)->session, s->id);
    }
}

static void h2_credit(struct http_stream *s, size_t n)
{
    if (s->wire_open) {
        (void)nghttp2_session_consume_stream(h2_of(s->conn)->session, s->id, n);
    }
}

static void h2_cut(struct http_stream *s)
{
    if (s->conn->ending == 0) {
        h2_reset(s->conn, s->id,
                 s->why == HTTP_CLOSE_ABORT ? NGHTTP2_INTERNAL_ERROR : NGHTTP2_CANCEL);
    }
}

static void h2_forget(struct http_stream *s)
{
    (void)nghttp2_session_set_stream_user_data(h2_of(s->conn)->session, s->id, NULL);
}

static void h2_drain(struct conn *c, bool last)
{
    nghttp2_session *session = h2_of(c)->session;

    if (last) {
        (void)nghttp2_submit_goaway(session, NGHTTP2_FLAG_NONE,
                                    nghttp2_session_get_last_proc_stream_id(session),
                                    NGHTTP2_NO_ERROR, NULL, 0);
    } else {
        (void)nghttp2_submit_shutdown_notice(session);
    }
}

static void h2_expired(struct conn *c, enum conn_due which)
{
    if (which == DUE_REFUSE) {
        h2_refuse_due(c, conn_now(c));
    } else if (which == DUE_IDLE) {
        h2_terminate(c, NGHTTP2_NO_ERROR, HTTP_CLOSE_LIMIT);
    } else {
        h2_terminate(c,
                     which == DUE_SETTINGS ? NGHTTP2_SETTINGS_TIMEOUT : NGHTTP2_ENHANCE_YOUR_CALM,
                     HTTP_CLOSE_LIMIT);
    }
}

const struct protocol h2_server_protocol = {
    .open = h2_open,
    .input = h2_input,
    .wants_input = h2_wants_input,
    .flush = h2_flush,
    .respond = h2_respond,
    .go_on = h2_go_on,
    .wrote = h2_wrote,
    .credit = h2_credit,
    .cut = h2_cut,
    .forget = h2_forget,
    .drain = h2_drain,
    .expired = h2_expired,
    .close = h2_close,
};
