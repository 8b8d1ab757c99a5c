/* sse.h - server-sent events (WHATWG): bytes in any split to events, and the writer's rule.
 *
 * The reader takes LF, CRLF and CR, with or without the space, ignores comments, id and retry. An
 * unterminated last event is dropped by sse_end's answer. Bound: one event's data. */
#ifndef BASE_NET_SSE_H
#define BASE_NET_SSE_H

#include "base/buf.h"

struct sse_reader {
    struct buf line; /* owned */
    struct buf data; /* owned */
    char event[32];  /* name, cut */
    bool cr;         /* last byte was CR */
    bool data_seen;
};

void sse_init(struct sse_reader *r, size_t event_bytes_max);
void sse_fini(struct sse_reader *r);
/* Calls each for every complete event with data; event is "" when the stream gave no name. false:
 * an event passed the bound (fatal), or each returned false (stop). */
MUST_USE bool sse_feed(struct sse_reader *r, const void *p, size_t n,
                       bool (*each)(void *ctx, const char *event, struct str data), void *ctx);
/* true when nothing half-read is left. */
bool sse_is_clean(const struct sse_reader *r);

#endif
