/* whohas.h - the gateway's index: which worker holds which chunk of which prefix.
 *
 * Flat open addressing over 32-byte entries, a seqlock per bucket of 4 entries: any loop may read
 * without a lock and sees a whole entry or none; writers (dispatches of all loops, the control
 * loop's events) take the bucket's sequence. Load <= 0.6, bounded in bytes; the coldest of a
 * sample is evicted.
 * Two sources: dispatch (what we sent where; on workers that publish events only for
 * WHOHAS_DISPATCH_TTL_US) and events (exact). A worker's generation makes restart, sequence
 * reversal or disconnect an O(1) invalidation; old entries are swept lazily.
 * Time is an argument. Guarded by tests/unit/test_whohas (also under the thread sanitizer). */
#ifndef CACHE_WHOHAS_H
#define CACHE_WHOHAS_H

#include "cache/prefix.h"

#define WHOHAS_WORKERS_MAX 64 /* bits of an entry */
#define WHOHAS_DISPATCH_TTL_US 5000000ULL

struct whohas; /* threads: all calls from any thread, but _new/_free */

struct whohas *
whohas_new(size_t bytes_max); /* 57 bytes a chunk: 64 MB hold 1.1 M; NULL: no memory */
void whohas_free(struct whohas *w);

/* What each worker holds of this chain: out_bytes[worker] = the end of the deepest chunk that it
 * holds, for workers whose bit is set in `mask`; the others' places are not touched. A worker that
 * holds a chunk holds all before it, even if events left a hole there (a chunk that no block could
 * carry). One hole in any 32 chunks does not matter; more may cost depth, never invent it. */
void whohas_match(const struct whohas *w, const struct prefix *p, uint64_t mask, uint64_t now_us,
                  uint64_t out_bytes[WHOHAS_WORKERS_MAX]);
/* A dispatch: worker will hold the whole chain. */
void whohas_dispatched(struct whohas *w, const struct prefix *p, unsigned worker, uint64_t now_us);
/* Events of one worker (single caller a worker). */
void whohas_stored(struct whohas *w, unsigned worker, const uint64_t *seq, size_t count);
void whohas_removed(struct whohas *w, unsigned worker, const uint64_t *seq, size_t count);
/* Forgets all that `worker` holds; `publishes` says if events follow (dispatch entries then age).
 */
void whohas_reset_worker(struct whohas *w, unsigned worker, bool publishes);

struct whohas_stats {
    uint64_t entries, capacity, bytes, evicted;
    uint64_t held[WHOHAS_WORKERS_MAX]; /* chunks by event */
};
void whohas_stats(const struct whohas *w, struct whohas_stats *out);
void whohas_check(const struct whohas *w); /* CHECKs every invariant; tests, while nobody writes */

#endif
