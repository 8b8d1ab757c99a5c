/* server_world.h - a server over the fake env and an application that writes down what it hears.
 *
 * Paths decide what it does: /hello answers 200 "hello"; /echo sends the body back; /deny answers
 * 401 before the body; /whole answers "got N" once the body has ended; all others wait for the
 * test. The diary: "head GET /hello;body 5;end;drain;close 1;" */
#ifndef TESTS_UNIT_SERVER_WORLD_H
#define TESTS_UNIT_SERVER_WORLD_H

#include "net_fake.h"
#include "base/net/server.h"

struct world {
    struct fake *fake;
    struct http_server *server;
    struct env_sock *peer;    /* the first connection */
    struct http_stream *last; /* newest stream, NULL once it has closed */
    struct buf diary;
    uint32_t heads, closes;
    uint32_t whys[8]; /* closes by reason */
    uint64_t body_bytes;
    bool hoard;        /* bodies are not credited */
    bool expect_early; /* /whole says 100 Continue from on_head */
};

/* limits NULL: the defaults. One connection is open and accepted. */
struct world *world_new(const struct http_limits *limits, enum http_protocols allowed);
/* Frees the server, checks that every stream had exactly one on_close. */
void world_free(struct world *w);
struct world *world_new_tls(struct tls_context *tls, enum http_protocols allowed);
struct env_sock *world_connect(struct world *w);
struct http_server_stats world_stats(const struct world *w);
/* The diary since the last call. */
void world_expect(struct world *w, const char *diary);

#endif
