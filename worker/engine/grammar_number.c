/* grammar_number.c - numbers: any, or between two bounds, digit by digit and exactly. */
#include "worker/engine/grammar_build.h"

/* ---- decimals ---- */

static void decimal_digit(struct decimal *out, char c, bool *fits)
{
    if (out->n == 0 && c == '0') {
        return;
    }
    if (out->n < (int32_t)sizeof(out->digits) - 1) {
        out->digits[out->n++] = c;
    } else {
        *fits = *fits && c == '0';
    }
}

/* The exponent of a literal; far ones are cut, they do not fit anyway. */
static int32_t exponent_of(struct str s)
{
    bool negative = s.n > 0 && s.p[0] == '-';
    int32_t e = 0;

    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] >= '0' && s.p[i] <= '9' && e < 100000) {
            e = e * 10 + (s.p[i] - '0');
        }
    }
    return negative ? -e : e;
}

bool decimal_parse(struct str text, struct decimal *out)
{
    bool point = false, fits = true;
    size_t i = 0;

    memset(out, 0, sizeof(*out));
    if (text.n > 0 && text.p[0] == '-') {
        out->negative = true;
        i++;
    }
    for (; i < text.n && (text.p[i] | 0x20) != 'e'; i++) {
        if (text.p[i] == '.') {
            point = true;
            continue;
        }
        decimal_digit(out, text.p[i], &fits);
        /* Zeros before the first digit move the point when they are behind it. */
        if (point) {
            out->point -= out->n == 0;
        } else {
            out->point += out->n > 0;
        }
    }
    if (i < text.n) {
        out->point += exponent_of(str_of(text.p + i + 1, text.n - i - 1));
    }
    while (out->n > 0 && out->digits[out->n - 1] == '0') {
        out->n--;
    }
    if (out->n == 0) {
        out->negative = false;
        out->point = 0;
    }
    return fits && out->point <= GRAMMAR_DIGITS_MAX && out->n - out->point <= GRAMMAR_DIGITS_MAX;
}

static int magnitude_cmp(const struct decimal *a, const struct decimal *b)
{
    if (a->n == 0 || b->n == 0) {
        return (a->n > 0) - (b->n > 0);
    }
    if (a->point != b->point) {
        return a->point < b->point ? -1 : 1;
    }
    return str_cmp(str_of(a->digits, (size_t)a->n), str_of(b->digits, (size_t)b->n));
}

int decimal_cmp(const struct decimal *a, const struct decimal *b)
{
    int c = magnitude_cmp(a, b);

    if (a->negative != b->negative) {
        return a->negative ? -1 : 1;
    }
    return a->negative ? -c : c;
}

bool decimal_is_integer(const struct decimal *a)
{
    return a->n <= a->point;
}

/* Digit i of the whole part, or of the fraction; both end in endless zeros at the other side. */
static char whole_digit(const struct decimal *a, int32_t i)
{
    return i < a->n ? a->digits[i] : '0';
}

static char fraction_digit(const struct decimal *a, int32_t i)
{
    int32_t at = a->point + i;

    return at >= 0 && at < a->n ? a->digits[at] : '0';
}

static int32_t whole_length(const struct decimal *a)
{
    return a->point > 0 ? a->point : 0;
}

static int32_t fraction_length(const struct decimal *a)
{
    return a->n > a->point ? a->n - a->point : 0;
}

/* ---- digits compared with one bound ---- */

enum order { LESS = 0, EQUAL, GREATER }; /* what was read beside the bound's digits so far */

static enum order order_next(enum order o, char digit, char bound)
{
    return o != EQUAL ? o : digit < bound ? LESS : digit > bound ? GREATER : EQUAL;
}

/* The order once the whole part, of `digits` digits without leading zeros, is over. */
static enum order order_whole(enum order o, int32_t digits, const struct decimal *bound)
{
    int32_t want = whole_length(bound);

    return digits < want ? LESS : digits > want ? GREATER : o;
}

/* ... and once the number is, after `digits` digits of the fraction. */
static enum order order_end(enum order o, int32_t digits, const struct decimal *bound)
{
    return o == EQUAL && digits < fraction_length(bound) ? LESS : o;
}

/* ---- the automaton ---- */

#define POSITIONS (2 * GRAMMAR_DIGITS_MAX + 4)

enum phase { PHASE_SIGN = 0, PHASE_MINUS, PHASE_ZERO, PHASE_WHOLE, PHASE_POINT, PHASE_FRACTION };

struct place {
    enum phase phase;
    bool minus;
    int32_t digits; /* of this phase, up to what still matters */
    enum order low, high;
};

/* Bounds of the magnitude on one side of zero. */
struct side {
    bool any, has_low, has_high, exclusive_low, exclusive_high;
    struct decimal low, high;
};

struct numbers {
    struct side side[2]; /* positive, negative */
    bool integer;
    struct place *places; /* owned; by state */
    uint32_t *of;         /* owned; [cells] state + 1 */
    uint32_t *next;       /* owned; [states][NUMBER_CLASSES] */
    uint32_t cap_next;
    struct dfa *d;
};

#define NUMBER_CLASSES 12u /* 0-9, minus, point */
#define CLASS_MINUS 10u
#define CLASS_POINT 11u
#define PLACE_CELLS (6u * 2u * POSITIONS * 9u)

static void sides_make(const struct number_bounds *n, struct side *positive, struct side *negative)
{
    static const struct decimal zero = {0};
    struct decimal min = n->min, max = n->max;
    bool below = n->has_min && n->min.negative, above = !n->has_max || !n->max.negative;

    *positive = (struct side){.any = above && (!n->has_max || n->max.n > 0 || !n->exclusive_max)};
    if (n->has_min && !below) {
        positive->has_low = true;
        positive->low = min;
        positive->exclusive_low = n->exclusive_min;
    }
    positive->has_high = n->has_max;
    positive->high = max;
    positive->exclusive_high = n->exclusive_max;
    /* Minus nothing is not written: zero is on the positive side. */
    *negative = (struct side){.any = !n->has_min || below, .has_low = true, .low = zero};
    negative->exclusive_low = true;
    if (!above) {
        max.negative = false;
        negative->low = max;
        negative->exclusive_low = n->exclusive_max;
    }
    min.negative = false;
    negative->has_high = n->has_min;
    negative->high = min;
    negative->exclusive_high = n->exclusive_min;
}

static bool side_holds(const struct side *s, enum order low, enum order high)
{
    return (!s->has_low || low == GREATER || (low == EQUAL && !s->exclusive_low)) &&
           (!s->has_high || high == LESS || (high == EQUAL && !s->exclusive_high));
}

static bool place_ends(const struct numbers *m, const struct place *p)
{
    const struct side *s = &m->side[p->minus];
    enum order low = p->low, high = p->high;

    if (p->phase == PHASE_ZERO || p->phase == PHASE_WHOLE) {
        int32_t digits = p->phase == PHASE_WHOLE ? p->digits : 0;

        low = order_end(order_whole(low, digits, &s->low), 0, &s->low);
        high = order_end(order_whole(high, digits, &s->high), 0, &s->high);
    } else if (p->phase == PHASE_FRACTION) {
        low = order_end(low, p->digits, &s->low);
        high = order_end(high, p->digits, &s->high);
    } else {
        return false;
    }
    return side_holds(s, low, high);
}

/* Another digit of the phase; digits past both bounds are alike. */
static void place_digit(const struct side *s, struct place *p, char c)
{
    bool whole = p->phase == PHASE_WHOLE;
    int32_t most, low = whole ? whole_length(&s->low) : fraction_length(&s->low);
    int32_t high = whole ? whole_length(&s->high) : fraction_length(&s->high);

    p->low = order_next(
        p->low, c, whole ? whole_digit(&s->low, p->digits) : fraction_digit(&s->low, p->digits));
    p->high = order_next(
        p->high, c, whole ? whole_digit(&s->high, p->digits) : fraction_digit(&s->high, p->digits));
    most = low > high ? low : high;
    most += whole;
    p->digits = p->digits < most ? p->digits + 1 : most;
}

/* One character on; false: it may not follow. */
static bool place_next(const struct numbers *m, struct place *p, uint32_t class)
{
    const struct side *s = &m->side[p->minus];

    if (class == CLASS_MINUS) {
        bool is = p->phase == PHASE_SIGN && m->side[1].any;

        p->minus = true;
        p->phase = PHASE_MINUS;
        return is;
    }
    if (class == CLASS_POINT) {
        int32_t digits = p->phase == PHASE_WHOLE ? p->digits : 0;
        bool is = !m->integer && (p->phase == PHASE_ZERO || p->phase == PHASE_WHOLE);

        p->low = order_whole(p->low, digits, &s->low);
        p->high = order_whole(p->high, digits, &s->high);
        p->phase = PHASE_POINT;
        p->digits = 0;
        return is;
    }
    if (p->phase == PHASE_SIGN || p->phase == PHASE_MINUS) {
        bool is = p->phase == PHASE_MINUS || m->side[0].any;

        p->phase = class == 0 ? PHASE_ZERO : PHASE_WHOLE;
        p->low = p->high = EQUAL;
        p->digits = 0;
        if (class != 0) {
            place_digit(s, p, (char)('0' + class));
        }
        return is;
    }
    if (p->phase == PHASE_ZERO) {
        return false;
    }
    if (p->phase == PHASE_POINT) {
        p->phase = PHASE_FRACTION;
    }
    place_digit(s, p, (char)('0' + class));
    return true;
}

static uint32_t place_state(struct numbers *m, struct place p)
{
    uint32_t cell = ((uint32_t)p.phase * 2 + p.minus) * POSITIONS + (uint32_t)p.digits;

    cell = cell * 9 + (uint32_t)p.low * 3 + (uint32_t)p.high;
    CHECK(cell < PLACE_CELLS);
    if (m->of[cell] == 0) {
        m->places[m->d->n_states] = p;
        m->of[cell] = ++m->d->n_states;
    }
    return m->of[cell] - 1;
}

static bool numbers_alloc(struct builder *b, struct numbers *m)
{
    static const uint32_t los[] = {0,   '-', '.', '/', '0', '1', '2', '3',
                                   '4', '5', '6', '7', '8', '9', ':'};
    static const uint32_t classes[] = {
        NUMBER_CLASSES, CLASS_MINUS, CLASS_POINT, NUMBER_CLASSES, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9,
        NUMBER_CLASSES};

    m->d = arena_alloc(&b->arena, sizeof(*m->d));
    m->places = mem_try(PLACE_CELLS, sizeof(*m->places));
    m->of = mem_try(PLACE_CELLS, sizeof(*m->of));
    if (m->d == NULL || m->places == NULL || m->of == NULL) {
        return false;
    }
    m->d->n_classes = NUMBER_CLASSES;
    m->d->n_ranges = ARRAY_LEN(los);
    m->d->range_lo = arena_array(&b->arena, ARRAY_LEN(los), sizeof(*m->d->range_lo));
    m->d->range_class = arena_array(&b->arena, ARRAY_LEN(los), sizeof(*m->d->range_class));
    if (m->d->range_lo == NULL || m->d->range_class == NULL) {
        return false;
    }
    memcpy(m->d->range_lo, los, sizeof(los));
    memcpy(m->d->range_class, classes, sizeof(classes));
    return true;
}

static bool numbers_run(struct builder *b, struct numbers *m)
{
    struct dfa *d = m->d;

    d->len_max = 2 * GRAMMAR_DIGITS_MAX + 2;
    (void)place_state(m, (struct place){.phase = PHASE_SIGN});
    for (uint32_t s = 0; s < d->n_states; s++) {
        for (uint32_t c = 0; c < NUMBER_CLASSES; c++) {
            struct place p = m->places[s];
            uint32_t at = s * NUMBER_CLASSES + c;

            if (!builder_room(b, &m->next, &m->cap_next, at, PLACE_CELLS * NUMBER_CLASSES,
                              sizeof(*m->next), "states")) {
                return false;
            }
            m->next[at] = place_next(m, &p, c) ? place_state(m, p) : DFA_DEAD;
        }
    }
    d->next = arena_array(&b->arena, d->n_states, NUMBER_CLASSES * sizeof(*d->next));
    d->accept = arena_array(&b->arena, d->n_states, sizeof(*d->accept));
    if (d->next == NULL || d->accept == NULL) {
        return false;
    }
    memcpy(d->next, m->next, (size_t)d->n_states * NUMBER_CLASSES * sizeof(*d->next));
    for (uint32_t s = 0; s < d->n_states; s++) {
        d->accept[s] = place_ends(m, &m->places[s]);
    }
    return true;
}

struct dfa *number_dfa(struct builder *b, const struct number_bounds *n)
{
    struct numbers m = {.integer = n->integer};
    bool ok;

    sides_make(n, &m.side[0], &m.side[1]);
    /* Long bounds have wide states: most of their time is memory. */
    ok = numbers_alloc(b, &m) && numbers_run(b, &m) &&
         builder_spend(b, (60 + 2 * (uint64_t)(n->min.n + n->max.n)) * m.d->n_states);
    if (!ok && b->err->code == ERR_NONE) {
        err_set(b->err, ERR_LIMIT, "the grammar needs too much memory");
    }
    mem_free(m.places);
    mem_free(m.of);
    mem_free(m.next);
    return ok ? m.d : NULL;
}

/* ---- any number ---- */

/* A node of digits that loops on itself, at most GRAMMAR_DIGITS_MAX of them. */
static uint32_t digits_node(struct builder *b, uint32_t span)
{
    uint32_t n = node_final(b);

    if (n == 0 || !guard_add(b, n, 0, GRAMMAR_DIGITS_MAX, NEED_NONE, 0) ||
        !edge_add(b, n, '0', '9', n)) {
        return 0;
    }
    b->nodes[n].n.op = GRAMMAR_OP_INC;
    b->nodes[n].n.span = span;
    return n;
}

/* After e: a sign and an exponent under 200, so that nothing overflows a double. */
static uint32_t exponent_node(struct builder *b)
{
    uint32_t e = node_new(b), sign = node_new(b), one = node_final(b), few = node_final(b);
    uint32_t two = node_final(b), last = node_final(b);
    bool ok = e != 0 && sign != 0 && one != 0 && few != 0 && two != 0 && last != 0;

    ok = ok && edge_add(b, e, '+', '+', sign) && edge_add(b, e, '-', '-', sign);
    for (int i = 0; i < 2 && ok; i++) {
        uint32_t at = i == 0 ? e : sign;

        ok = edge_add(b, at, '1', '1', one) && edge_add(b, at, '0', '0', few) &&
             edge_add(b, at, '2', '9', few);
    }
    ok = ok && edge_add(b, one, '0', '9', two) && edge_add(b, two, '0', '9', last) &&
         edge_add(b, few, '0', '9', last);
    return ok ? e : 0;
}

/* . and e after `node`. */
static bool real_tail(struct builder *b, uint32_t node, uint32_t point, uint32_t exponent)
{
    return edge_add(b, node, '.', '.', point) && edge_add(b, node, 'e', 'e', exponent) &&
           edge_add(b, node, 'E', 'E', exponent);
}

uint32_t number_any(struct builder *b, bool integer)
{
    uint32_t span = span_new(b, 0, GRAMMAR_DIGITS_MAX), whole = digits_node(b, span);
    uint32_t start = node_new(b), minus = node_new(b), zero = node_final(b);
    bool ok = span != 0 && whole != 0 && start != 0 && minus != 0 && zero != 0;

    for (int i = 0; i < 2 && ok; i++) {
        uint32_t at = i == 0 ? start : minus;

        ok = edge_add(b, at, '0', '0', zero) && edge_add(b, at, '1', '9', whole);
    }
    ok = ok && edge_add(b, start, '-', '-', minus);
    if (ok && !integer) {
        uint32_t fraction = digits_node(b, span), point = node_new(b), e = exponent_node(b);

        ok = fraction != 0 && point != 0 && e != 0 && real_tail(b, whole, point, e) &&
             real_tail(b, zero, point, e) && edge_add(b, point, '0', '9', fraction) &&
             edge_add(b, fraction, 'e', 'e', e) && edge_add(b, fraction, 'E', 'E', e);
        if (ok) {
            b->nodes[point].n.op = GRAMMAR_OP_SET;
        }
    }
    return ok ? start : 0;
}
