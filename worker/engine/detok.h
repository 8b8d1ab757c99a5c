/* detok.h - from token bytes to text that may be shown: whole UTF-8 characters, before any stop
 * string.
 *
 * Pure, and blind to how the bytes are split: feeding them one by one or all at once gives the same
 * text. Held back: an unfinished character, and the longest end of the text that begins a stop
 * string. The stop that is complete first ends the text, before it; of two that end at the same
 * byte the longer one counts. Bytes that are no UTF-8 become U+FFFD, one for each maximal subpart.
 * Guarded by tests/unit/test_detok.c. */
#ifndef WORKER_ENGINE_DETOK_H
#define WORKER_ENGINE_DETOK_H

#include "base/buf.h"

#define DETOK_STOPS_MAX 16 /* OpenAI says 4; translated requests of other APIs bring more */
#define DETOK_STOP_BYTES_MAX 1024

struct detok {
    const struct str *stops; /* [n_stops] borrowed; none is empty */
    uint32_t n_stops;
    uint8_t partial[4]; /* an unfinished character */
    uint32_t partial_n;
    struct buf held; /* valid text not yet shown: the end of it may begin a stop */
    bool stopped;
};

void detok_init(struct detok *d, const struct str *stops, uint32_t n_stops);
void detok_fini(struct detok *d);
/* Appends what may be shown now. true: a stop string is complete; nothing more will come. Where
 * there is no memory for what is held back, out fails and stays failed: the answer has a hole. */
bool detok_feed(struct detok *d, struct str bytes, struct buf *out);
/* The answer ended otherwise: appends all that was held back. Nothing after a stop. */
void detok_finish(struct detok *d, struct buf *out);

#endif
