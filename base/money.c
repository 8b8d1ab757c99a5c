/* money.c - checked integer arithmetic, and the decimal forms at the edges. No float. */
#include "base/money.h"

#define MONEY_USD_DECIMALS 12
#define MONEY_PRICE_DECIMALS 6
#define MONEY_PUSD_PER_NUSD 1000

struct money money_add(struct money a, struct money b)
{
    struct money sum;

    CHECK(!__builtin_add_overflow(a.pusd, b.pusd, &sum.pusd));
    return sum;
}

struct money money_sub(struct money a, struct money b)
{
    struct money rest;

    CHECK(!__builtin_sub_overflow(a.pusd, b.pusd, &rest.pusd));
    return rest;
}

struct money money_times(int64_t tokens, int64_t pusd_per_token)
{
    struct money cost;

    CHECK(!__builtin_mul_overflow(tokens, pusd_per_token, &cost.pusd));
    return cost;
}

int64_t money_nusd_ceil(struct money m)
{
    /* Division cuts towards zero, which is up already when m is negative. */
    return m.pusd / MONEY_PUSD_PER_NUSD + (m.pusd % MONEY_PUSD_PER_NUSD > 0 ? 1 : 0);
}

/* v * 10 + digit; false when it does not fit. */
static bool push_digit(int64_t *v, int digit)
{
    return !__builtin_mul_overflow(*v, 10, v) && !__builtin_add_overflow(*v, digit, v);
}

static bool is_digits(struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9') {
            return false;
        }
    }
    return s.n > 0;
}

/* digits["."digits] with at most `decimals` of them behind the point -> the integer in units of
 * 10^-decimals. `what` names the amount in the story. */
static bool parse_decimal(struct str s, const char *what, size_t decimals, int64_t *out,
                          struct err *e)
{
    struct str whole, fraction;
    bool has_point = str_cut(s, '.', &whole, &fraction);
    int shown = (int)size_min(s.n, 64);
    int64_t v = 0;
    bool fits = true;

    if (!is_digits(whole) || (has_point && !is_digits(fraction))) {
        return err_set(e, ERR_INPUT, "%s '%.*s' is not a plain decimal number such as 12.5", what,
                       shown, s.p != NULL ? s.p : "");
    }
    if (fraction.n > decimals) {
        return err_set(e, ERR_INPUT, "%s '%.*s' has more than %zu decimals", what, shown, s.p,
                       decimals);
    }
    for (size_t i = 0; i < whole.n && fits; i++) {
        fits = push_digit(&v, whole.p[i] - '0');
    }
    for (size_t i = 0; i < decimals && fits; i++) {
        fits = push_digit(&v, i < fraction.n ? fraction.p[i] - '0' : 0);
    }
    if (!fits) {
        return err_set(e, ERR_INPUT, "%s '%.*s' is too large", what, shown, s.p);
    }
    *out = v;
    return true;
}

bool money_parse_usd(struct str s, struct money *out, struct err *e)
{
    return parse_decimal(s, "amount", MONEY_USD_DECIMALS, &out->pusd, e);
}

bool money_parse_price(struct str s, int64_t *pusd_per_token, struct err *e)
{
    /* 10^-6 USD per 10^6 tokens is 10^-12 USD per token: the same integer. */
    return parse_decimal(s, "price", MONEY_PRICE_DECIMALS, pusd_per_token, e);
}

/* Writes v * 10^-decimals with every decimal; returns the length. `out` holds sign, 20 digits,
 * point. */
static size_t format_decimal(int64_t v, unsigned decimals, char out[24])
{
    uint64_t magnitude = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    char reversed[24];
    size_t n = 0;

    for (unsigned i = 0; i <= decimals || magnitude != 0; i++) {
        if (i == decimals) {
            reversed[n++] = '.';
        }
        reversed[n++] = (char)('0' + magnitude % 10);
        magnitude /= 10;
    }
    if (v < 0) {
        reversed[n++] = '-';
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = reversed[n - 1 - i];
    }
    return n;
}

void money_print_usd(struct buf *b, struct money m)
{
    char text[24];

    buf_append(b, text, format_decimal(m.pusd, MONEY_USD_DECIMALS, text));
}

void money_print_price(struct buf *b, int64_t pusd_per_token)
{
    char text[24];
    size_t n = format_decimal(pusd_per_token, MONEY_PRICE_DECIMALS, text);

    while (text[n - 1] == '0') { /* stops at the point at the latest */
        n--;
    }
    if (text[n - 1] == '.') {
        n--;
    }
    buf_append(b, text, n);
}
