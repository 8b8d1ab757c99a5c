/* h2_block.h - private to h2: one header block as it arrives, its bounds, and the head made of it.
 *
 * No nghttp2 in here. Checks what nghttp2 1.52 lets pass: userinfo in :authority, a Host that
 * differs, fragments and bytes outside ASCII in :path. */
#ifndef BASE_NET_H2_BLOCK_H
#define BASE_NET_H2_BLOCK_H

#include "base/net/conn.h"

enum h2_verdict {
    H2_BLOCK_FINE = 1,
    H2_BLOCK_LARGE,     /* over a bound: an answer of 431, the rest is not kept */
    H2_BLOCK_BOMB,      /* far over it: reset now, and held against the peer */
    H2_BLOCK_MALFORMED, /* reset, as for what nghttp2 itself refuses */
    H2_BLOCK_REFUSED,   /* well-formed but not for us: answer `status` */
    H2_BLOCK_NO_MEMORY,
};

/* Records of {name bytes, value bytes, name, value}; memory only while a block is under way. */
struct h2_block {
    struct buf records;    /* owned */
    uint32_t count, bytes; /* of this message, trailers included; bytes: sum of name + value + 32 */
    bool large;
    unsigned status; /* with H2_BLOCK_REFUSED */
};

void h2_block_begin(struct h2_block *b, const struct http_limits *lim, uint32_t count,
                    uint32_t bytes);
/* keep: false for trailers, which are counted and dropped. */
enum h2_verdict h2_block_add(struct h2_block *b, const struct http_limits *lim, struct str name,
                             struct str value, bool keep);
/* Fills s->head and s->head_memory. end_stream: no body follows. */
enum h2_verdict h2_block_head(struct h2_block *b, bool end_stream, struct http_stream *s);
void h2_block_end(struct h2_block *b);

#endif
