/* money.h - integer pico-USD (1e-12 USD). No float ever touches money (invariant 3).
 *
 * A struct, so that it cannot be added to a token count by accident. A price is an integer number
 * of pico-USD per token, which is micro-USD per 1M tokens: cost = tokens x price, no rounding. */
#ifndef BASE_MONEY_H
#define BASE_MONEY_H

#include "base/err.h"
#include "base/buf.h"

#define MONEY_PUSD_PER_USD 1000000000000LL

struct money {
    int64_t pusd;
};

static inline struct money money_of(int64_t pusd)
{
    return (struct money){pusd};
}

/* Checked: an overflow is our bug (bounds are refused at the door), so it CHECKs. */
struct money money_add(struct money a, struct money b);
struct money money_sub(struct money a, struct money b);
struct money money_times(int64_t tokens, int64_t pusd_per_token);
/* Nano-USD rounded up: the unit of quota stores. */
int64_t money_nusd_ceil(struct money m);
/* "12.5" USD, at most 12 decimals, no sign, no exponent -> pico-USD; story on anything else. */
MUST_USE bool money_parse_usd(struct str s, struct money *out, struct err *e);
/* "0.15" USD per 1M tokens -> pico-USD per token; at most 6 decimals (else not an integer). */
MUST_USE bool money_parse_price(struct str s, int64_t *pusd_per_token, struct err *e);
/* "0.000001500000": 12 decimals, exact. */
void money_print_usd(struct buf *b, struct money m);
/* pico-USD per token as USD per 1M tokens, e.g. "0.15". */
void money_print_price(struct buf *b, int64_t pusd_per_token);

#endif
