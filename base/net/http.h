/* http.h - what h1, h2, server and client share: header fields, methods, limits, reasons. */
#ifndef BASE_NET_HTTP_H
#define BASE_NET_HTTP_H

#include "base/arena.h"
#include "base/err.h"

struct http_field {
    struct str name;  /* lower case */
    struct str value; /* trimmed; no CR, LF, NUL */
};

struct http_fields {
    struct http_field *v; /* arena of the message */
    uint32_t n;
};

/* First value of a field, or {NULL, 0}. name in lower case. */
struct str http_field(const struct http_fields *f, struct str name);
uint32_t http_field_count(const struct http_fields *f, struct str name);

enum http_method {
    HTTP_GET = 1,
    HTTP_HEAD,
    HTTP_POST,
    HTTP_PUT,
    HTTP_DELETE,
    HTTP_OPTIONS,
    HTTP_PATCH,
    HTTP_OTHER
};
struct str http_method_name(enum http_method m);
/* HTTP_OTHER when unknown; methods are case-sensitive. */
enum http_method http_method_named(struct str name);

/* A request's head, as the application sees it; lives until the stream's close callback. */
struct http_head {
    enum http_method method;
    struct str method_text;
    struct str path;  /* begins with '/', no query, as sent (not decoded) */
    struct str query; /* after '?', may be empty */
    struct str host;  /* :authority or Host */
    struct http_fields fields;
    int64_t content_length; /* -1: none given */
    bool body;              /* a body follows (maybe empty) */
    bool expect_continue;
    bool h2;
    bool secure; /* came over TLS */
};

/* Bounds of a server; each argued in reference order in configs/gateway.yaml. */
struct http_limits {
    uint32_t header_bytes_max; /* sum of name + value + 32; 32 KiB */
    uint32_t header_count_max; /* fields, cookie crumbs and trailers included; 100 */
    uint32_t streams_max;      /* concurrent h2 streams of a connection; 128 */
    uint32_t connections_max;  /* of this server (one loop); accepts stop above */
    uint32_t resets_burst;     /* RST_STREAM by peer, or by us for its fault; bucket; 200 */
    uint32_t resets_per_s;     /* refill; 20 */
    uint32_t
        control_burst; /* PING, SETTINGS, PRIORITY, empty DATA, unknown, WINDOW_UPDATE; 10,000 */
    uint32_t control_per_s;      /* 2,000 */
    uint32_t write_buffer_max;   /* of a connection: reading stops above; 256 KiB */
    uint32_t stream_buffer_high; /* of a stream: on_drain comes again below half; 64 KiB */
    uint32_t stream_buffer_max;  /* hard cap: the stream is aborted; 40 MiB (a whole answer) */
    uint32_t request_window;     /* h2 stream receive window; 64 KiB */
    uint64_t handshake_us;       /* TLS + preface; 10 s */
    uint64_t header_us;          /* first byte to whole head; 10 s */
    uint64_t body_stall_us;      /* no body byte while one is due; 30 s */
    uint64_t
        write_stall_us; /* no byte accepted by the peer (socket or window) while we wait; 60 s */
    uint64_t idle_us;   /* connection without a stream; 180 s */
    uint64_t settings_ack_us; /* 10 s */
};
extern const struct http_limits http_limits_default;

#endif
