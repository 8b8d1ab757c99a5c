/* price.h - immutable price versions and what tokens cost under one. Integers only.
 *
 * A price is pico-USD per token and class. A version never changes; a new one is published beside
 * it. cost = sum of tokens x price; nothing rounds here. */
#ifndef LEDGER_PRICE_H
#define LEDGER_PRICE_H

#include "base/money.h"

enum tier { TIER_STANDARD = 1, TIER_PRIORITY = 2, TIER_FLEX = 3, TIER_BATCH = 4 }; /* sql: tier */

struct price {
    int32_t price_id;
    int16_t model_id;
    int16_t tier;     /* enum tier */
    int32_t ctx_band; /* prompts of up to this many tokens; INT32_MAX: all */
    int64_t in_pusd, cached_pusd, cw_5m_pusd, cw_1h_pusd, out_pusd, reasoning_pusd;
    int64_t list_in_pusd, list_out_pusd; /* standard tier, no cache discount */
    uint64_t valid_from_us;
};

/* Disjoint classes, each >= 0: their sum is what the engine read and wrote. */
struct tokens {
    int32_t in_uncached, in_cached, cw_5m, cw_1h, out, reasoning;
};

struct money price_cost(const struct price *p, const struct tokens *t);
struct money price_list_cost(const struct price *p, const struct tokens *t);
/* Upper bound: every prompt token at the dearest input class, every output token at the dearest. */
struct money price_bound(const struct price *p, int64_t prompt_tokens, int64_t output_tokens);
int32_t tokens_prompt(const struct tokens *t);
int32_t tokens_output(const struct tokens *t);

#endif
