/* route_rate.c - how fast a worker prefills, learned from what it did. */
#include "gateway/route/route.h"

#define RATE_TOKENS_MIN 256 /* below, the first byte measures the wire and the step, not prefill */
#define RATE_SAMPLES_MIN 8
#define RATE_NEAR_LOW 0.6   /* within this of the fleet's median a worker is like the others */
#define RATE_NEAR_HIGH 1.67

void route_rate_add(struct route_rate *r, double tokens, double seconds)
{
    if (!(tokens >= RATE_TOKENS_MIN) || !(seconds > 0)) {
        return;
    }
    r->sample[r->count % ROUTE_RATE_SAMPLES] = (float)(tokens / seconds);
    /* The counter wraps after 4 thousand million samples: it then restarts full, not empty. */
    r->count = r->count == UINT32_MAX ? ROUTE_RATE_SAMPLES : r->count + 1;
}

double route_rate_median(const struct route_rate *r)
{
    float v[ROUTE_RATE_SAMPLES];
    uint32_t n = r->count < ROUTE_RATE_SAMPLES ? r->count : ROUTE_RATE_SAMPLES;

    if (n < RATE_SAMPLES_MIN) {
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) { /* insertion sort: 64 at most */
        uint32_t j = i;

        for (; j > 0 && v[j - 1] > r->sample[i]; j--) {
            v[j] = v[j - 1];
        }
        v[j] = r->sample[i];
    }
    return n % 2 == 1 ? (double)v[n / 2] : ((double)v[n / 2 - 1] + (double)v[n / 2]) / 2;
}

double route_rate_used(double own, double fleet)
{
    if (!(fleet > 0)) {
        return own > 0 ? own : ROUTE_RATE_DEFAULT;
    }
    if (!(own > 0) || (own >= RATE_NEAR_LOW * fleet && own <= RATE_NEAR_HIGH * fleet)) {
        return fleet;
    }
    return own;
}
