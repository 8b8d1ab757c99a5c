/* hist.c - log-linear buckets.
 *
 *   bucket i < 8                     the value i itself
 *   bucket (e - 2) * 8 + m, e >= 3   [2^(e-3) * (8 + m), 2^(e-3) * (9 + m))   m = 0..7
 *
 * Readers see each counter whole, not all of them at one instant: a percentile is over the sum of
 * the buckets just read, so it never waits for a sample that is counted but not yet in a bucket. */
#include "base/hist.h"

#define HIST_SUB_BITS 3
#define HIST_SUB (1u << HIST_SUB_BITS)

static size_t bucket_of(uint64_t us)
{
    unsigned e;
    size_t i;

    if (us < HIST_SUB) {
        return (size_t)us;
    }
    e = 63 - (unsigned)__builtin_clzll(us);
    i = (size_t)(e - HIST_SUB_BITS + 1) * HIST_SUB + ((us >> (e - HIST_SUB_BITS)) & (HIST_SUB - 1));
    return size_min(i, HIST_BUCKETS - 1);
}

/* The largest value of bucket i (of the last one: the largest it would have if it ended). */
static uint64_t bucket_edge_us(size_t i)
{
    unsigned shift;

    if (i < HIST_SUB) {
        return i;
    }
    shift = (unsigned)(i / HIST_SUB) - 1;
    return ((uint64_t)(HIST_SUB + i % HIST_SUB + 1) << shift) - 1;
}

static uint64_t load(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void hist_add(struct hist *h, uint64_t us)
{
    atomic_fetch_add_explicit(&h->bucket[bucket_of(us)], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum_us, us, memory_order_relaxed);
}

uint64_t hist_count(const struct hist *h)
{
    return load(&h->count);
}

uint64_t hist_sum_us(const struct hist *h)
{
    return load(&h->sum_us);
}

uint64_t hist_permille_us(const struct hist *h, unsigned permille)
{
    uint64_t seen[HIST_BUCKETS], total = 0, rank, below = 0;
    size_t i;

    for (i = 0; i < HIST_BUCKETS; i++) {
        seen[i] = load(&h->bucket[i]);
        total += seen[i];
    }
    if (total == 0) {
        return 0;
    }
    CHECK(permille <= 1000);
    /* ceil(total * permille / 1000) without overflow, and at least the first sample. */
    rank = total / 1000 * permille + (total % 1000 * permille + 999) / 1000;
    rank = u64_max(rank, 1);
    for (i = 0; i < HIST_BUCKETS - 1; i++) {
        below += seen[i];
        if (below >= rank) {
            break;
        }
    }
    return bucket_edge_us(i);
}

uint64_t hist_le(const struct hist *h, uint64_t us)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < HIST_BUCKETS - 1 && bucket_edge_us(i) <= us; i++) {
        sum += load(&h->bucket[i]);
    }
    return sum;
}
