/* sim_http.h - HTTP/1.1 as clients and workers of the simulator read it. Written apart from
 * base/net/h1 on purpose: a mistake there must not look right here. */
#ifndef TESTS_SIM_HTTP_H
#define TESTS_SIM_HTTP_H

#include "base/buf.h"

enum http_in_at {
    HTTP_IN_HEAD = 1,
    HTTP_IN_LENGTH, /* `left` bytes of body to come */
    HTTP_IN_CHUNK_SIZE,
    HTTP_IN_CHUNK_DATA,
    HTTP_IN_CHUNK_END,
    HTTP_IN_TRAILER,
    HTTP_IN_DONE,  /* one whole message; http_in_next goes on with what is left */
    HTTP_IN_BROKEN /* not HTTP */
};

/* One direction of a connection: messages one after another. */
struct http_in {
    struct buf raw;  /* not yet understood */
    struct buf head; /* start line and fields, as they came */
    struct buf body; /* framing removed */
    uint64_t left;
    enum http_in_at at;
    bool is_answer; /* without framing fields its body ends with the connection */
    unsigned status;
};

void http_in_init(struct http_in *in, bool is_answer);
void http_in_fini(struct http_in *in);
void http_in_feed(struct http_in *in, const void *p, size_t n);
/* Forgets the message that is done and begins with what came after it. */
void http_in_next(struct http_in *in);
/* Value of a field, trimmed; {NULL, 0}: absent. Borrowed from head. */
struct str http_in_field(const struct http_in *in, const char *name);
/* Method and target of a request; false: no start line yet. */
bool http_in_start(const struct http_in *in, struct str *method, struct str *target);

#endif
