/* scope.h - the counters of one scope (a tenant or a key): three rates, requests in flight, and the
 * budgets of this month and the last. Private to gateway/admit.
 *
 * Pure; the tenant's lock is held by the caller. Judge all scopes first, then take from all: a
 * refusal has written nothing. Months are counted (year x 12 + month - 1), so that one parity bit
 * tells this month's counter from the last one's: a hold settles into the month that it was taken
 * in. */
#ifndef GATEWAY_ADMIT_SCOPE_H
#define GATEWAY_ADMIT_SCOPE_H

#include "gateway/admit/gcra.h"
#include "gateway/admit/quota.h"

enum scope_rate { RATE_REQUESTS, RATE_INPUT, RATE_OUTPUT, SCOPE_RATES };

/* Nano-USD: 4 thousand million USD a month stands for "no limit"; twice it still fits 63 bits. */
#define SCOPE_NUSD_MAX 4000000000000000000LL

struct scope_budget {
    int32_t month;
    int64_t spent_nusd,
        held_nusd; /* spent + held <= limit, unless the limit was lowered or seeded past */
};

struct scope {      /* all zero: never used */
    int32_t key_id; /* 0: free slot, or the tenant's own */
    int64_t concurrent;
    struct gcra rate[SCOPE_RATES];
    struct scope_budget budget[2]; /* by the month's last bit */
};

struct scope_ask {
    int64_t cost[SCOPE_RATES]; /* 0: not asked */
    int64_t slots;             /* of concurrency: 1, or 0 when it has one */
    int64_t nusd;
    int32_t month;
    uint64_t now_us;
};

/* Makes *worst worse if this scope refuses: of several refusals the most final one is told, of
 * rates the longest wait. */
void scope_judge(const struct scope *s, enum quota_scope which, const struct quota_limits *l,
                 const struct scope_ask *a, struct quota_verdict *worst);
/* Takes what was judged to fit. taken: input and output tokens that left a bucket, added. */
void scope_take(struct scope *s, const struct quota_limits *l, const struct scope_ask *a,
                int64_t taken[2]);
/* Tokens back into one bucket, at most what was taken of it. */
void scope_return(struct scope *s, enum scope_rate r, int64_t unused, int64_t *taken);
/* A hold shrinks by `held`; `spent` of it becomes a charge. A month that is gone is gone. */
void scope_settle(struct scope *s, int32_t month, int64_t held_nusd, int64_t spent_nusd);
void scope_seed(struct scope *s, int32_t month, int64_t spent_nusd);
/* Zeros when that month was never used. */
struct scope_budget scope_budget_of(const struct scope *s, int32_t month);
/* The limit of a rate as gcra takes it; QUOTA_NONE: none. */
int64_t scope_rate_limit(const struct quota_limits *l, enum scope_rate r);

#endif
