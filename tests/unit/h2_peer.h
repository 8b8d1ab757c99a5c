/* h2_peer.h - the other end of an h2 server, frame by frame and by hand: no HTTP/2 library. */
#ifndef TESTS_UNIT_H2_PEER_H
#define TESTS_UNIT_H2_PEER_H

#include "server_world.h"

#define SECOND 1000000u
#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

enum h2_type {
    DATA = 0,
    HEADERS,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    PUSH_PROMISE,
    PING,
    GOAWAY,
    WINDOW_UPDATE,
    CONTINUATION
};
enum h2_flag { END_STREAM = 1, ACK = 1, END_HEADERS = 4 };
enum h2_code {
    NO_ERROR = 0,
    PROTOCOL_ERROR = 1,
    INTERNAL_ERROR = 2,
    SETTINGS_TIMEOUT = 4,
    CANCEL = 8,
    CALM = 11
};

void frame(struct env_sock *s, uint8_t type, uint8_t flags, uint32_t id, const void *p, size_t n);
void u32_frame(struct env_sock *s, uint8_t type, uint32_t id, uint32_t v);
/* A literal field without indexing or Huffman; strings under 127 bytes. */
void field(struct buf *b, const char *name, const char *value);
void block_begin(struct buf *b, const char *method, const char *path);
/* Sends and frees the block. */
void block_send(struct env_sock *s, struct buf *b, uint32_t id, uint8_t flags);
void request(struct env_sock *s, uint32_t id, const char *method, const char *path, uint8_t flags);
void get(struct env_sock *s, uint32_t id, const char *path);

/* What the server wrote, frame by frame. */
struct seen {
    uint32_t count[16];
    uint32_t goaway_code; /* of the last one */
    uint32_t goaway_last;
    uint32_t rst_code, rst_id;
    uint32_t data_bytes, ends;
    char data[4096]; /* DATA payloads, joined */
};

/* Since the last look. Returns out. */
struct seen *look(struct env_sock *s, struct seen *out);
/* A connection past its greetings. */
struct world *h2_world(const struct http_limits *lim);
/* The connection ended with one GOAWAY of this code, and in the end for good. */
void assert_gone(struct world *w, uint32_t code);

#endif
