/* price.c - what tokens cost under one immutable price version. Integers only; nothing rounds. */
#include "ledger/price.h"

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

struct money price_cost(const struct price *p, const struct tokens *t)
{
    struct money m = money_times(t->in_uncached, p->in_pusd);

    m = money_add(m, money_times(t->in_cached, p->cached_pusd));
    m = money_add(m, money_times(t->cw_5m, p->cw_5m_pusd));
    m = money_add(m, money_times(t->cw_1h, p->cw_1h_pusd));
    m = money_add(m, money_times(t->out, p->out_pusd));
    return money_add(m, money_times(t->reasoning, p->reasoning_pusd));
}

/* List: the standard tier without a cache discount, so that list - cost is what was saved. */
struct money price_list_cost(const struct price *p, const struct tokens *t)
{
    return money_add(money_times(tokens_prompt(t), p->list_in_pusd),
                     money_times(tokens_output(t), p->list_out_pusd));
}

struct money price_bound(const struct price *p, int64_t prompt_tokens, int64_t output_tokens)
{
    int64_t in = max64(max64(p->in_pusd, p->cached_pusd), max64(p->cw_5m_pusd, p->cw_1h_pusd));
    int64_t out = max64(p->out_pusd, p->reasoning_pusd);

    return money_add(money_times(prompt_tokens, in), money_times(output_tokens, out));
}

/* The sums of four and of two int32 could wrap only past what a row may hold: CHECKed. */
int32_t tokens_prompt(const struct tokens *t)
{
    int64_t n = (int64_t)t->in_uncached + t->in_cached + t->cw_5m + t->cw_1h;

    CHECK(n >= INT32_MIN && n <= INT32_MAX);
    return (int32_t)n;
}

int32_t tokens_output(const struct tokens *t)
{
    int64_t n = (int64_t)t->out + t->reasoning;

    CHECK(n >= INT32_MIN && n <= INT32_MAX);
    return (int32_t)n;
}
