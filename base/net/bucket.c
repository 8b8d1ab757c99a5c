/* bucket.c - the token bucket of the server's guards. Pure. */
#include "base/net/conn.h"

#define MICRO 1000000u

void bucket_init(struct bucket *b, uint32_t burst, uint32_t per_s, uint64_t now_us)
{
    *b = (struct bucket){
        .level = (uint64_t)burst * MICRO, .at_us = now_us, .burst = burst, .per_s = per_s};
}

static void bucket_fill(struct bucket *b, uint64_t micro)
{
    b->level = u64_min(b->level + micro, (uint64_t)b->burst * MICRO);
}

bool bucket_take(struct bucket *b, uint32_t tokens, uint64_t now_us)
{
    uint64_t cost = (uint64_t)tokens * MICRO;

    if (now_us > b->at_us) {
        /* tokens a second are micro-tokens a microsecond; an hour refills any bucket */
        bucket_fill(b, u64_min(now_us - b->at_us, (uint64_t)3600 * MICRO) * b->per_s);
        b->at_us = now_us;
    }
    if (b->level < cost) {
        b->level = 0;
        return false;
    }
    b->level -= cost;
    return true;
}

void bucket_refund(struct bucket *b, uint32_t tokens)
{
    bucket_fill(b, (uint64_t)tokens * MICRO);
}
