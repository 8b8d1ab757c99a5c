/* spec_lookup.c - drafts from the text itself: what followed the newest tokens when they last came.
 */
#include "worker/engine/spec.h"

#define GRAM_MAX 3

/* How many of the newest tokens (up to GRAM_MAX) also stand right before position `at`. */
static uint32_t common(const int32_t *ids, uint32_t n, uint32_t at)
{
    uint32_t k = 0;

    while (k < GRAM_MAX && k < at && ids[at - 1 - k] == ids[n - 1 - k]) {
        k++;
    }
    return k;
}

uint32_t spec_lookup(const int32_t *ids, uint32_t n, uint32_t most, int32_t *out)
{
    uint32_t best = 0, best_at = 0, found;
    uint32_t first = n > SPEC_WINDOW ? n - SPEC_WINDOW : 1;

    for (uint32_t at = n - 1; at >= first && at > 0 && best < GRAM_MAX; at--) {
        uint32_t k;

        if (ids[at - 1] != ids[n - 1]) {
            continue;
        }
        k = common(ids, n, at);
        if (k > best) { /* of equals the most recent counts */
            best = k;
            best_at = at;
        }
    }
    if (best == 0) {
        return 0;
    }
    /* A loop shorter than `most` goes round again. */
    for (found = 0; found < most; found++) {
        uint32_t from = best_at + found;

        out[found] = from < n ? ids[from] : out[from - n];
    }
    return found;
}
