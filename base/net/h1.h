/* h1.h - strict HTTP/1.1 heads and chunked bodies (RFC 9112): bytes in, answers out; no sockets, no
 * clock. Server and client share it.
 *
 * Refused, each with the status a server should answer: bare CR or LF, NUL and other controls,
 * obs-fold, space before a colon, two Content-Length (equal ones too) or a list of them,
 * Content-Length beside Transfer-Encoding, codings other than one `chunked`, no Host or two or a
 * malformed one, absolute targets that contradict Host, fragments, CONNECT, `OPTIONS *`.
 * The answer never depends on how the bytes were split. Guarded by tests/unit/test_h1.c. */
#ifndef BASE_NET_H1_H
#define BASE_NET_H1_H

#include "base/net/http.h"

/* Bound of the request line: 8,000 bytes is what RFC 9112 section 3 recommends to support. */
#define H1_LINE_MAX 8192

enum h1_result {
    H1_MORE = 1, /* not whole yet: call again with the same bytes and more behind them */
    H1_OK,
    H1_BAD, /* see the fault; the connection must not be used for another message */
};

struct h1_fault {
    unsigned status;    /* what a server answers: 400, 414, 417, 431, 501, 505 */
    const char *reason; /* static text, for the log */
};

struct h1_limits {
    uint32_t header_bytes_max; /* field lines as sent; also the sum of name + value + 32 */
    uint32_t header_count_max;
};

/* Where the search for the end of a head stands. Zeroed at the start of each message. */
struct h1_scan {
    size_t at;    /* bytes seen */
    size_t first; /* bytes of the start line with its CRLF; 0: not whole yet */
    size_t line;  /* where the current line starts */
    uint32_t lines;
    bool started; /* a leading empty line was passed, or the start line has begun */
};

enum h1_framing {
    H1_NO_BODY = 1,
    H1_LENGTH,  /* content_length bytes, maybe 0 */
    H1_CHUNKED, /* struct h1_chunked decodes it */
    H1_CLOSE,   /* answers only: until the peer closes */
};

struct h1_request {
    struct http_head head; /* all but secure; slices live in the arena */
    enum h1_framing framing;
    bool keep_alive; /* false for HTTP/1.0: one answer, then close */
    unsigned minor;  /* 0 or 1 */
    size_t bytes;    /* of the input that the head took; the body follows */
};

struct h1_response {
    unsigned status; /* 100..599; 1xx: another head follows */
    struct http_fields fields;
    enum h1_framing framing;
    int64_t content_length; /* -1: none given. A HEAD answer may have one and no body */
    bool keep_alive;        /* another answer may follow on this connection */
    size_t bytes;
};

/* `in` begins at the message's first byte each time and only grows. One empty line before a
 * request line is skipped (RFC 9112 section 2.2). The head is copied into `a` (names in lower
 * case): about its size plus 32 bytes a field. */
enum h1_result h1_parse_request(struct h1_scan *scan, struct str in, const struct h1_limits *lim,
                                struct arena *a, struct h1_request *out, struct h1_fault *fault);
/* asked: the request's method (an answer to HEAD has no body). 101 is refused: we never upgrade. */
enum h1_result h1_parse_response(struct h1_scan *scan, struct str in, const struct h1_limits *lim,
                                 enum http_method asked, struct arena *a, struct h1_response *out,
                                 struct h1_fault *fault);

/* A chunked body being decoded. Extensions and trailers are checked, bounded and dropped. */
struct h1_chunked {
    uint64_t left;            /* data bytes of this chunk still to come */
    uint32_t line_bytes;      /* of the size line, extension or trailer being read */
    uint32_t extension_bytes; /* of the whole body */
    uint32_t trailer_bytes, trailers;
    uint8_t state;
    uint8_t name_n; /* bytes of `name` in use */
    char name[18];  /* start of a trailer's name: framing fields are refused there */
    struct h1_limits limits;
};

void h1_chunked_init(struct h1_chunked *d, const struct h1_limits *lim);
/* Takes *used <= in.n bytes and finds at most one slice of body data (borrowed from `in`, maybe
 * empty). H1_MORE: call again with what is left, or with the next bytes if all were used.
 * H1_OK: the body has ended; the bytes behind *used belong to the next message. */
enum h1_result h1_chunked_next(struct h1_chunked *d, struct str in, size_t *used, struct str *data,
                               struct h1_fault *fault);

/* Ready for the wire: "<hex>\r\n" into out; the caller adds the data and "\r\n". */
#define H1_CHUNK_HEAD_MAX 20
size_t h1_chunk_head(size_t data_bytes, char out[H1_CHUNK_HEAD_MAX]);

#endif
