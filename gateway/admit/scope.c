/* scope.c - judging and moving the counters of one scope. See scope.h. */
#include "gateway/admit/scope.h"

#define SCOPE_BUSY_RETRY_MS 1000 /* other holds end by the second, not by a clock we know */

int64_t scope_rate_limit(const struct quota_limits *l, enum scope_rate r)
{
    int64_t v = r == RATE_REQUESTS ? l->requests_per_min
                : r == RATE_INPUT  ? l->input_tokens_per_min
                                   : l->output_tokens_per_min;

    return v < 0 ? QUOTA_NONE : v < GCRA_LIMIT_MAX ? v : GCRA_LIMIT_MAX;
}

/* Cut down to whole nano-USD: counters are rounded up, so the ledger's sum stays under the limit.
 */
static int64_t budget_limit_nusd(const struct quota_limits *l)
{
    return l->budget_month_pusd < 0 ? SCOPE_NUSD_MAX : l->budget_month_pusd / 1000;
}

struct scope_budget scope_budget_of(const struct scope *s, int32_t month)
{
    const struct scope_budget *b = &s->budget[month & 1];

    return b->month == month ? *b : (struct scope_budget){.month = month};
}

/* NULL: that month's counter already serves a later one. */
static struct scope_budget *budget_open(struct scope *s, int32_t month)
{
    struct scope_budget *b = &s->budget[month & 1];

    if (b->month < month) {
        *b = (struct scope_budget){.month = month};
    }
    return b->month == month ? b : NULL;
}

static void worsen(struct quota_verdict *worst, const struct quota_verdict *v)
{
    static const uint8_t rank[] = {
        [QUOTA_GRANTED] = 0, [QUOTA_BUSY] = 1,      [QUOTA_RATE] = 2,
        [QUOTA_BUDGET] = 3,  [QUOTA_TOO_LARGE] = 4, [QUOTA_FULL] = 5,
    };

    if (rank[v->answer] > rank[worst->answer] ||
        (v->answer == worst->answer && v->retry_ms > worst->retry_ms)) {
        *worst = *v;
    }
}

static void judge_rate(const struct scope *s, enum scope_rate r, const struct quota_limits *l,
                       const struct scope_ask *a, struct quota_verdict *v)
{
    int64_t limit = scope_rate_limit(l, r);
    uint64_t wait_us;

    if (limit == QUOTA_NONE || a->cost[r] == 0) {
        return;
    }
    v->dim = (enum quota_dim)(QUOTA_REQUESTS + (int)r);
    v->limit = limit;
    if (a->cost[r] > limit) {
        v->answer = QUOTA_TOO_LARGE;
    } else if ((wait_us = gcra_wait_us(&s->rate[r], limit, a->cost[r], a->now_us)) > 0) {
        v->answer = QUOTA_RATE;
        v->retry_ms = (uint32_t)((wait_us + 999) / 1000);
    } else {
        return;
    }
    v->remaining = gcra_remaining(&s->rate[r], limit, a->now_us);
}

static void judge_concurrent(const struct scope *s, const struct quota_limits *l,
                             const struct scope_ask *a, struct quota_verdict *v)
{
    if (l->concurrent < 0 || a->slots == 0 || s->concurrent + a->slots <= l->concurrent) {
        return;
    }
    v->answer = a->slots > l->concurrent ? QUOTA_TOO_LARGE : QUOTA_BUSY;
    v->dim = QUOTA_CONCURRENT;
    v->limit = l->concurrent;
    v->retry_ms = v->answer == QUOTA_BUSY ? SCOPE_BUSY_RETRY_MS : 0;
}

static void judge_budget(const struct scope *s, const struct quota_limits *l,
                         const struct scope_ask *a, struct quota_verdict *v)
{
    struct scope_budget b = scope_budget_of(s, a->month);
    int64_t limit = budget_limit_nusd(l), unspent = limit - b.spent_nusd;
    int64_t free_nusd = unspent - b.held_nusd;

    if (a->nusd == 0 || a->nusd <= free_nusd) {
        return;
    }
    if (a->nusd > limit && limit > 0) {
        v->answer = QUOTA_TOO_LARGE;
    } else if (a->nusd > unspent) {
        v->answer = QUOTA_BUDGET; /* a budget of nothing is a spent one: no shorter prompt helps */
    } else {
        v->answer = QUOTA_BUSY;
        v->retry_ms = SCOPE_BUSY_RETRY_MS;
    }
    v->dim = QUOTA_BUDGET_MONTH;
    v->limit = l->budget_month_pusd < 0 ? INT64_MAX : l->budget_month_pusd;
    v->remaining = free_nusd <= 0 ? 0 : free_nusd > INT64_MAX / 1000 ? INT64_MAX : free_nusd * 1000;
}

void scope_judge(const struct scope *s, enum quota_scope which, const struct quota_limits *l,
                 const struct scope_ask *a, struct quota_verdict *worst)
{
    struct quota_verdict v;

    for (enum scope_rate r = RATE_REQUESTS; r < SCOPE_RATES; r++) {
        v = (struct quota_verdict){.answer = QUOTA_GRANTED, .scope = which};
        judge_rate(s, r, l, a, &v);
        worsen(worst, &v);
    }
    v = (struct quota_verdict){.answer = QUOTA_GRANTED, .scope = which};
    judge_concurrent(s, l, a, &v);
    worsen(worst, &v);
    v = (struct quota_verdict){.answer = QUOTA_GRANTED, .scope = which};
    judge_budget(s, l, a, &v);
    worsen(worst, &v);
}

void scope_take(struct scope *s, const struct quota_limits *l, const struct scope_ask *a,
                int64_t taken[2])
{
    struct scope_budget *b = budget_open(s, a->month);

    for (enum scope_rate r = RATE_REQUESTS; r < SCOPE_RATES; r++) {
        int64_t limit = scope_rate_limit(l, r);

        if (limit == QUOTA_NONE || a->cost[r] == 0) {
            continue;
        }
        gcra_take(&s->rate[r], limit, a->cost[r], a->now_us);
        if (r != RATE_REQUESTS) {
            taken[r - RATE_INPUT] += a->cost[r];
        }
    }
    s->concurrent += a->slots;
    CHECK(b != NULL);
    b->held_nusd += a->nusd;
    CHECK(a->nusd == 0 || b->spent_nusd + b->held_nusd <= budget_limit_nusd(l));
}

void scope_return(struct scope *s, enum scope_rate r, int64_t unused, int64_t *taken)
{
    int64_t back = unused < *taken ? unused : *taken;

    if (back > 0) {
        *taken -= back;
        gcra_return(&s->rate[r], back);
    }
}

void scope_settle(struct scope *s, int32_t month, int64_t held_nusd, int64_t spent_nusd)
{
    struct scope_budget *b = &s->budget[month & 1];

    CHECK(spent_nusd >= 0 && spent_nusd <= held_nusd);
    if (b->month != month) {
        return;
    }
    CHECK(b->held_nusd >= held_nusd);
    b->held_nusd -= held_nusd;
    b->spent_nusd += spent_nusd;
}

void scope_seed(struct scope *s, int32_t month, int64_t spent_nusd)
{
    struct scope_budget *b = budget_open(s, month);

    CHECK(spent_nusd >= 0);
    if (b != NULL) {
        b->spent_nusd = spent_nusd > SCOPE_NUSD_MAX - b->spent_nusd ? SCOPE_NUSD_MAX
                                                                    : b->spent_nusd + spent_nusd;
    }
}
