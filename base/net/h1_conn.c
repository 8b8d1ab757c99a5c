/* h1_conn.c - the server's side of HTTP/1.1: one request at a time, pipelined ones in order.
 *
 * The parser (h1.c) decides what a request is; a refused one gets its status and the connection
 * ends: after a framing error nothing behind it can be trusted (request smuggling). */
#include "base/net/conn.h"
#include "base/net/h1.h"

/* Bytes of one chunk of an answer at most: large enough that its framing costs nothing. */
#define H1_CHUNK_BYTES 65536
/* An answer's head: the application's fields, which are few; more is our bug and is cut. */
#define H1_HEAD_BYTES_MAX ((size_t)256 << 10)

struct h1_conn {
    struct http_stream *stream; /* the request being answered; NULL between two */
    struct h1_scan scan;
    struct h1_chunked chunked;
    uint64_t body_left; /* H1_LENGTH */
    enum h1_framing framing;
    unsigned minor;
    bool keep_alive; /* another request may follow this answer */
    bool answer_chunked;
    unsigned refusal; /* status of the answer when the stream is cut before its own; 0: none */
    struct buf head;  /* heads and interim answers not staged yet */
};

static bool h1_open(struct conn *c)
{
    struct h1_conn *h = mem_try(1, sizeof(*h));

    c->impl = h;
    if (h == NULL) {
        return false;
    }
    buf_init(&h->head, H1_HEAD_BYTES_MAX);
    return true;
}

static void h1_close(struct conn *c)
{
    struct h1_conn *h = c->impl;

    buf_fini(&h->head);
    mem_free(h);
    c->impl = NULL;
}

/* ---- refusals ---- */

static const char *status_text(unsigned status)
{
    static const struct {
        unsigned status;
        const char *text;
    } known[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Failed"},
        {422, "Unprocessable"},
        {429, "Too Many Requests"},
        {431, "Fields Too Large"},
        {500, "Internal Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Unavailable"},
        {504, "Gateway Timeout"},
        {505, "Version Not Supported"},
    };

    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (known[i].status == status) {
            return known[i].text;
        }
    }
    return ""; /* the phrase may be empty (RFC 9112 section 4) */
}

/* Our own answer, for requests that never became a stream or lost theirs. Then the end. */
static void h1_refuse(struct conn *c, unsigned status, enum http_close why)
{
    struct h1_conn *h = c->impl;
    const char *text = status_text(status);

    buf_printf(&h->head,
               "HTTP/1.1 %u %s\r\ncontent-type: text/plain\r\ncontent-length: %zu\r\n"
               "connection: close\r\n\r\n%s\n",
               status, text, strlen(text) + 1, text);
    conn_end(c, why);
}

static void h1_broken(struct conn *c, const struct h1_fault *fault)
{
    struct h1_conn *h = c->impl;

    c->server->stats.protocol_errors++;
    conn_log(c, LOG_DEBUG, "h1_refused", fault->reason);
    if (h->stream != NULL) {
        h->refusal = fault->status;
        stream_cut(h->stream, HTTP_CLOSE_PEER);
    } else {
        h1_refuse(c, fault->status, HTTP_CLOSE_PEER);
    }
}

/* ---- input ---- */

static void h1_begin(struct conn *c, const struct h1_request *r, const struct arena *memory)
{
    struct h1_conn *h = c->impl;
    struct http_stream *s = stream_new(c);

    if (s == NULL) {
        struct arena gone = *memory;

        arena_fini(&gone);
        conn_end_abruptly(c, HTTP_CLOSE_LIMIT);
        return;
    }
    s->arena = *memory;
    s->head = r->head;
    h->stream = s;
    h->framing = r->framing;
    h->body_left = r->framing == H1_LENGTH ? (uint64_t)r->head.content_length : 0;
    h->minor = r->minor;
    h->keep_alive = r->keep_alive;
    h->refusal = 0;
    if (r->framing == H1_CHUNKED) {
        struct h1_limits lim = {c->server->limits.header_bytes_max,
                                c->server->limits.header_count_max};

        h1_chunked_init(&h->chunked, &lim);
    }
    stream_begin(s);
}

/* Bytes taken; 0: the head is not whole. */
static size_t h1_head(struct conn *c, struct str in)
{
    struct h1_conn *h = c->impl;
    const struct http_limits *lim = &c->server->limits;
    struct h1_limits bounds = {lim->header_bytes_max, lim->header_count_max};
    struct h1_request request = {0};
    struct h1_fault fault = {0};
    struct arena memory;
    enum h1_result result;

    arena_init(&memory, STREAM_ARENA_BYTES);
    result = h1_parse_request(&h->scan, in, &bounds, &memory, &request, &fault);
    if (result == H1_OK) {
        h->scan = (struct h1_scan){0};
        conn_due_clear(c, DUE_HEADER);
        h1_begin(c, &request, &memory);
        return request.bytes;
    }
    arena_fini(&memory);
    if (result == H1_BAD) {
        h1_broken(c, &fault);
    } else if (c->due_us[DUE_HEADER] == 0) { /* the first byte starts the clock */
        conn_due_clear(c, DUE_HANDSHAKE);
        conn_due_clear(c, DUE_IDLE);
        conn_due_set(c, DUE_HEADER, conn_now(c) + lim->header_us);
    }
    return 0;
}

/* Bytes of body that the application has room for. */
static size_t h1_body_room(const struct conn *c, const struct http_stream *s)
{
    uint64_t window = c->server->limits.request_window;

    return s->uncredited < window ? (size_t)(window - s->uncredited) : 0;
}

static size_t h1_body_length(struct h1_conn *h, struct str in)
{
    struct http_stream *s = h->stream;
    size_t n = (size_t)u64_min(h->body_left, in.n);

    h->body_left -= n;
    if (n != 0) {
        stream_body(s, in.p, n);
    }
    /* The callback may have cut it. */
    if (h->stream == s && h->body_left == 0) {
        stream_body_end(s);
    }
    return n;
}

static size_t h1_body_chunked(struct conn *c, struct str in)
{
    struct h1_conn *h = c->impl;
    struct http_stream *s = h->stream;
    struct h1_fault fault = {0};
    struct str data = {NULL, 0};
    size_t used = 0;
    enum h1_result result = h1_chunked_next(&h->chunked, in, &used, &data, &fault);

    if (result == H1_BAD) {
        h1_broken(c, &fault);
        return used;
    }
    if (data.n != 0) {
        stream_body(s, data.p, data.n);
    }
    if (h->stream == s && result == H1_OK) {
        stream_body_end(s);
    }
    return used;
}

static size_t h1_input(struct conn *c, const uint8_t *p, size_t n)
{
    struct h1_conn *h = c->impl;
    size_t at = 0, used;

    do {
        struct str in = str_of(p + at, n - at);

        used = 0;
        if (h->stream == NULL && in.n != 0) {
            conn_due_clear(c, DUE_HANDSHAKE);
            used = h1_head(c, in);
        } else if (h->stream != NULL && !h->stream->body_ended) {
            in.n = size_min(in.n, h1_body_room(c, h->stream));
            if (h->framing == H1_LENGTH) {
                used = h1_body_length(h, in);
            } else if (in.n != 0) {
                used = h1_body_chunked(c, in);
            }
        }
        at += used;
    } while (used != 0 && c->ending == 0);
    return c->ending == 0 ? at : n;
}

static bool h1_wants_input(const struct conn *c)
{
    const struct h1_conn *h = c->impl;
    const struct http_limits *lim = &c->server->limits;

    if (h->stream != NULL && !h->stream->body_ended) {
        return h1_body_room(c, h->stream) != 0;
    }
    /* Also while an answer is under way: that is how we hear that the client has gone. */
    return c->in.len <= (size_t)lim->header_bytes_max + H1_LINE_MAX;
}

/* ---- output ---- */

static void h1_answer_done(struct conn *c)
{
    struct h1_conn *h = c->impl;
    struct http_stream *s = h->stream;
    bool more = h->keep_alive && !s->close_after && s->body_ended && !c->server->draining;

    h->stream = NULL;
    s->wire_open = false;
    stream_sent(s);
    if (!more) {
        conn_end(c, HTTP_CLOSE_DONE);
        return;
    }
    h->scan = (struct h1_scan){0};
    conn_mark(c); /* a pipelined request may wait in c->in */
}

static void h1_flush_body(struct conn *c, struct http_stream *s)
{
    struct h1_conn *h = c->impl;
    char head[H1_CHUNK_HEAD_MAX];

    while (s->out.len != 0 && conn_has_room(c)) {
        size_t n = size_min(s->out.len, H1_CHUNK_BYTES);

        if (h->answer_chunked) {
            conn_stage(c, head, h1_chunk_head(n, head));
        }
        conn_stage(c, buf_view(&s->out).p, n);
        if (h->answer_chunked) {
            conn_stage(c, "\r\n", 2);
        }
        stream_took(s, n);
    }
}

static void h1_flush(struct conn *c)
{
    struct h1_conn *h = c->impl;
    struct http_stream *s = h->stream;

    if (h->head.len != 0) {
        conn_stage(c, buf_view(&h->head).p, h->head.len);
        buf_release(&h->head);
    }
    if (s != NULL) {
        h1_flush_body(c, s);
        if (s->state == STREAM_ENDED && s->out.len == 0) {
            if (h->answer_chunked) {
                conn_stage(c, "0\r\n\r\n", 5);
            }
            h1_answer_done(c);
        }
    }
    conn_stage_end(c);
}

static void h1_respond(struct http_stream *s, const struct http_field *fields, size_t n,
                       int64_t length)
{
    struct conn *c = s->conn;
    struct h1_conn *h = c->impl;
    struct buf *b = &h->head;

    h->answer_chunked = length < 0 && !s->no_body && h->minor >= 1;
    /* Without chunks or length the end of the connection is the end of the body. The rest of an
     * upload that is answered early is not waited for. */
    h->keep_alive = h->keep_alive && !s->close_after && !c->server->draining && s->body_ended &&
                    (length >= 0 || s->no_body || h->answer_chunked);
    buf_printf(b, "HTTP/1.1 %u %s\r\n", s->status, status_text(s->status));
    for (size_t i = 0; i < n; i++) {
        if (stream_field_is_ours(s, &fields[i])) {
            continue;
        }
        buf_str(b, fields[i].name);
        buf_c(b, ": ");
        buf_str(b, fields[i].value);
        buf_c(b, "\r\n");
    }
    if (length >= 0) {
        buf_printf(b, "content-length: %lld\r\n", (long long)length);
    } else if (h->answer_chunked) {
        buf_c(b, "transfer-encoding: chunked\r\n");
    }
    buf_c(b, h->keep_alive ? "\r\n" : "connection: close\r\n\r\n");
    if (b->failed) {
        conn_log(c, LOG_ERROR, "answer_head_too_large", "an answer's head passed its bound");
        conn_end_abruptly(c, HTTP_CLOSE_LIMIT);
    }
}

static void h1_go_on(struct http_stream *s)
{
    struct h1_conn *h = s->conn->impl;

    if (h->minor >= 1) {
        buf_c(&h->head, "HTTP/1.1 100 Continue\r\n\r\n");
    }
}

static void h1_nothing(struct http_stream *s)
{
    (void)s;
}

static void h1_credit(struct http_stream *s, size_t n)
{
    (void)s;
    (void)n;
}

/* The connection cannot outlive an answer that is cut: its framing is gone. (In clear text an
 * HTTP/1.0 client, which reads to the end of the connection, cannot tell.) */
static void h1_cut(struct http_stream *s)
{
    struct conn *c = s->conn;
    struct h1_conn *h = c->impl;
    unsigned refusal = h->refusal;

    h->stream = NULL;
    s->wire_open = false;
    c->cut = s->status != 0;
    if (refusal == 0 && s->why == HTTP_CLOSE_LIMIT) {
        refusal = 408;
    }
    if (s->status == 0 && refusal != 0) {
        h1_refuse(c, refusal, s->why);
    } else {
        conn_end(c, s->why);
    }
}

/* ---- ends ---- */

static void h1_drain(struct conn *c, bool last)
{
    const struct h1_conn *h = c->impl;

    (void)last;
    if (h->stream == NULL && c->in.len == 0) {
        conn_end(c, HTTP_CLOSE_SHUTDOWN);
    }
}

static void h1_expired(struct conn *c, enum conn_due which)
{
    const struct h1_conn *h = c->impl;

    if (which == DUE_HEADER) {
        h1_refuse(c, 408, HTTP_CLOSE_LIMIT);
    } else if (h->stream == NULL) {
        conn_end(c, HTTP_CLOSE_LIMIT);
    }
}

const struct protocol h1_server_protocol = {
    .open = h1_open,
    .input = h1_input,
    .wants_input = h1_wants_input,
    .flush = h1_flush,
    .respond = h1_respond,
    .go_on = h1_go_on,
    .wrote = h1_nothing,
    .credit = h1_credit,
    .cut = h1_cut,
    .forget = h1_nothing,
    .drain = h1_drain,
    .expired = h1_expired,
    .close = h1_close,
};
