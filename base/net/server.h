/* server.h - an HTTP server on one loop: listeners, connections (TLS or clear, h1 or h2), streams.
 *
 * The application sees streams only, the same for h1 and h2. Request bodies are delivered as they
 * come (framing removed, content-encoding untouched) and must be credited; answers are buffered by
 * the stream and drained as the peer's windows open. Every stream gets exactly one on_close.
 * Callbacks never run inside a call of the application into this module; they may call any
 * function below, http_stream_abort included.
 * Guarded by tests/unit/test_server*.c and tests/e2e. */
#ifndef BASE_NET_SERVER_H
#define BASE_NET_SERVER_H

#include "base/env.h"
#include "base/log.h"
#include "base/net/http.h"
#include "base/net/tls.h"

struct http_server;
struct http_stream;

enum http_close {
    HTTP_CLOSE_DONE = 1, /* the answer was ended by us and handed to the socket whole */
    HTTP_CLOSE_PEER,     /* client gone: reset, connection closed (half-closed too) or lost */
    HTTP_CLOSE_LIMIT,    /* a limit or timer of http_limits */
    HTTP_CLOSE_ABORT,    /* the application's http_stream_abort */
    HTTP_CLOSE_SHUTDOWN, /* the server was freed */
};

struct http_app {
    void *ctx;
    /* Head is complete. user starts NULL. Answering here already is fine (401 before the body). */
    void (*on_head)(void *ctx, struct http_stream *s, const struct http_head *head);
    /* Body bytes; the app owes http_stream_credit(s, n) once it has room again. */
    void (*on_body)(void *ctx, struct http_stream *s, const void *p, size_t n);
    void (*on_body_end)(void *ctx, struct http_stream *s);
    /* The stream's buffer fell below half of stream_buffer_high after it was above high. */
    void (*on_drain)(void *ctx, struct http_stream *s);
    /* The last call about s, which is gone after it. */
    void (*on_close)(void *ctx, struct http_stream *s, enum http_close why);
};

/* app and limits are copied; env, log borrowed. */
struct http_server *http_server_new(struct env *env, struct log *log, const struct http_app *app,
                                    const struct http_limits *limits);
/* Closes everything; on_close for each stream. Not from a callback other than drained. */
void http_server_free(struct http_server *s);

enum http_protocols { HTTP_H1 = 1, HTTP_H2 = 2, HTTP_H1_H2 = 3 };
/* Takes the socket (owned from now). tls NULL: clear; then a connection that begins with the h2
 * preface is h2c if allowed, else h1. With TLS, ALPN decides. */
void http_server_listen(struct http_server *s, struct env_sock *listener, struct tls_context *tls,
                        enum http_protocols allowed);
/* New handshakes of every TLS listener use `tls`; open connections go on. The old one may be freed.
 */
void http_server_set_tls(struct http_server *s, struct tls_context *tls);
/* Stops accepting, GOAWAY(2^31-1) then, 1 s later, GOAWAY(last); h1 answers say connection: close;
 * drained is called when no connection is left. */
void http_server_drain(struct http_server *s, void (*drained)(void *ctx), void *ctx);

struct http_server_stats {
    uint64_t connections, streams; /* open now */
    uint64_t accepted, requests;   /* ever */
    uint64_t limit_closes, protocol_errors;
    uint64_t buffered_bytes; /* in stream buffers now */
};
void http_server_stats(const struct http_server *s, struct http_server_stats *out);

void http_stream_set_user(struct http_stream *s, void *user);
void *http_stream_user(const struct http_stream *s);
const struct http_head *http_stream_head(const struct http_stream *s);
const struct env_addr *http_stream_peer(const struct http_stream *s); /* as accept said */
struct arena *http_stream_arena(struct http_stream *s); /* dropped after on_close; 256 KiB */
void http_stream_credit(struct http_stream *s, size_t n);
void http_stream_continue(struct http_stream *s); /* 100 Continue, once, if expected; after auth */
/* The answer's head, once. Fields are copied. "connection", "transfer-encoding" and
 * "content-length" are the server's: length >= 0 sets content-length, -1 means unknown (chunked or
 * h2 DATA). A second call is our bug. HEAD and 204/304 send no body whatever is written. */
void http_stream_respond(struct http_stream *s, unsigned status, const struct http_field *fields,
                         size_t n_fields, int64_t length);
void http_stream_write(struct http_stream *s, const void *p, size_t n); /* copied */
/* Answer bytes in the stream's own buffer: not yet in the connection's (write_buffer_max of all its
 * streams), and so not handed to the socket. */
size_t http_stream_buffered(const struct http_stream *s);
/* Ends the answer. If the request body is not complete, the rest is refused cleanly: h2 discards it
 * for a second with all credit kept up, then RST_STREAM(NO_ERROR); h1 lingering close. */
void http_stream_end(struct http_stream *s);
/* No clean end: h2 RST_STREAM(INTERNAL_ERROR), h1 close without the last chunk; what is still
 * buffered is dropped. on_close(ABORT) follows before the loop sleeps. */
void http_stream_abort(struct http_stream *s);
/* After the answer the h1 connection closes (smuggling shapes, refused uploads). */
void http_stream_close_connection(struct http_stream *s);

#endif
