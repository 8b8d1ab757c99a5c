/* gcra.h - one rate: at most `limit` tokens a minute, all of them at once if none were taken
 * lately.
 *
 * GCRA in integers. Kept as a debt rather than as a theoretical arrival time: a debt is tokens, so
 * it stays true when the limit changes between two calls. It drains by `limit` units a microsecond,
 * one token being GCRA_MINUTE_US units: exact, no division on the way in. Pure; the caller locks.
 */
#ifndef GATEWAY_ADMIT_GCRA_H
#define GATEWAY_ADMIT_GCRA_H

#include "base/base.h"

#define GCRA_MINUTE_US 60000000LL
/* 100 thousand million tokens a minute; times a minute it still fits 63 bits. Callers cut at it. */
#define GCRA_LIMIT_MAX 100000000000LL

struct gcra {           /* all zero: nothing was taken yet */
    int64_t debt_units; /* tokens x GCRA_MINUTE_US taken and not yet drained, at at_us */
    uint64_t at_us;     /* monotonic */
};

/* limit in 0..GCRA_LIMIT_MAX, cost in 0..limit everywhere below. */

/* 0: `cost` fits now. Else the microseconds until it does, if nobody else takes any: 1..a minute.
 */
uint64_t gcra_wait_us(const struct gcra *g, int64_t limit, int64_t cost, uint64_t now_us);
void gcra_take(struct gcra *g, int64_t limit, int64_t cost, uint64_t now_us);
/* Gives tokens back; never more than are owed. */
void gcra_return(struct gcra *g, int64_t tokens);
/* Whole tokens that fit now, 0..limit. */
int64_t gcra_remaining(const struct gcra *g, int64_t limit, uint64_t now_us);
/* Microseconds until all of limit is there again. */
uint64_t gcra_full_us(const struct gcra *g, int64_t limit, uint64_t now_us);

#endif
