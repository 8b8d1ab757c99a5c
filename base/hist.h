/* hist.h - a histogram of microseconds in fixed log-linear buckets, safe to add from any thread.
 *
 * Buckets: 0 to 7 us exactly, then 8 per power of two to 2^40 us (12 days); the last one takes the
 * rest too. A percentile is at most 12.5 % above the true one. Counters are relaxed atomics; all
 * zero is an empty histogram. */
#ifndef BASE_HIST_H
#define BASE_HIST_H

#include "base/base.h"
#include <stdatomic.h>

#define HIST_BUCKETS 304

struct hist {
    _Atomic uint64_t count, sum_us;
    _Atomic uint64_t bucket[HIST_BUCKETS];
};

void hist_add(struct hist *h, uint64_t us);
uint64_t hist_count(const struct hist *h);
uint64_t hist_sum_us(const struct hist *h);
/* Largest value of the bucket that holds the p-th per mille (0..1000); 0 when empty. */
uint64_t hist_permille_us(const struct hist *h, unsigned permille);
/* Samples in the buckets whose largest value is <= us: for Prometheus' le series. The last bucket
 * has no end and is only in hist_count (le="+Inf"). */
uint64_t hist_le(const struct hist *h, uint64_t us);

#endif
