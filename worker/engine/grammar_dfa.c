/* grammar_dfa.c - automata over characters: both of two, only what leads on, how long, as nodes. */
#include <stdlib.h>

#include "worker/engine/grammar_regex.h"

#define PRODUCT_STATES_MAX (1u << 20) /* pairs that are looked at: 4 MB */

static bool no_memory(struct builder *b)
{
    if (b->err->code != ERR_NONE) { /* the work was at its end, and says so */
        return false;
    }
    return err_set(b->err, ERR_LIMIT, "the grammar needs too much memory");
}

uint32_t dfa_class(const struct dfa *d, uint32_t code_point)
{
    uint32_t lo = 0, hi = d->n_ranges;

    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;

        if (d->range_lo[mid] <= code_point) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return d->range_class[lo];
}

bool dfa_matches(const struct dfa *d, struct str text)
{
    uint32_t s = 0, chars = 0;

    while (text.n > 0) {
        uint32_t cp, c;
        size_t n = utf8_read(text, &cp);

        c = dfa_class(d, cp);
        s = c < d->n_classes ? d->next[(size_t)s * d->n_classes + c] : DFA_DEAD;
        if (s == DFA_DEAD) {
            return false;
        }
        text.p += n;
        text.n -= n;
        chars++;
    }
    return d->accept[s] && d->len_min <= chars && chars <= d->len_max;
}

static struct dfa *dfa_alloc(struct builder *b, uint32_t states, uint32_t classes)
{
    struct dfa *d = arena_alloc(&b->arena, sizeof(*d));
    size_t cells = (size_t)states * classes;

    if (d == NULL) {
        return NULL;
    }
    d->n_states = states;
    d->n_classes = classes;
    d->len_max = GRAMMAR_INF;
    d->next = arena_array(&b->arena, cells + 1, sizeof(*d->next));
    d->accept = arena_array(&b->arena, states, sizeof(*d->accept));
    if (d->next == NULL || d->accept == NULL) {
        return NULL;
    }
    memset(d->next, 0xff, cells * sizeof(*d->next));
    return d;
}

/* ---- both of two ---- */

/* Pairs of classes that some character is in, and the stretches of each. */
struct pairing {
    uint32_t *x, *y; /* [n] the classes of a pair */
    uint32_t n;
    uint32_t *range_lo, *range_class;
    uint32_t n_ranges;
};

static bool pairing_make(struct builder *b, const struct dfa *x, const struct dfa *y,
                         struct pairing *p)
{
    uint32_t cells = (x->n_classes + 1) * (y->n_classes + 1), i = 0, k = 0;
    uint32_t *of = arena_array(&b->arena, cells, sizeof(*of)); /* pair + 1 */

    memset(p, 0, sizeof(*p));
    p->x = arena_array(&b->arena, cells, sizeof(*p->x));
    p->y = arena_array(&b->arena, cells, sizeof(*p->y));
    p->range_lo = arena_array(&b->arena, x->n_ranges + y->n_ranges, sizeof(*p->range_lo));
    p->range_class = arena_array(&b->arena, x->n_ranges + y->n_ranges, sizeof(*p->range_class));
    if (of == NULL || p->x == NULL || p->y == NULL || p->range_lo == NULL ||
        p->range_class == NULL) {
        return no_memory(b);
    }
    while (i < x->n_ranges || k < y->n_ranges) {
        uint32_t at_x = i < x->n_ranges ? x->range_lo[i] : UINT32_MAX;
        uint32_t at_y = k < y->n_ranges ? y->range_lo[k] : UINT32_MAX;
        uint32_t cx, cy, cell;

        i += at_x <= at_y;
        k += at_y <= at_x;
        cx = x->range_class[i - 1];
        cy = y->range_class[k - 1];
        cell = cx * (y->n_classes + 1) + cy;
        if (of[cell] == 0 && cx < x->n_classes && cy < y->n_classes) {
            p->x[p->n] = cx;
            p->y[p->n] = cy;
            of[cell] = ++p->n;
        }
        p->range_lo[p->n_ranges] = at_x < at_y ? at_x : at_y;
        p->range_class[p->n_ranges++] = of[cell] != 0 ? of[cell] - 1 : UINT32_MAX;
    }
    for (i = 0; i < p->n_ranges; i++) {
        p->range_class[i] = p->range_class[i] == UINT32_MAX ? p->n : p->range_class[i];
    }
    return true;
}

/* Pairs of states get their number when they are first met. */
struct numbering {
    uint32_t *of;    /* [all] number + 1 */
    uint32_t *cells; /* [n] what is behind a number */
    uint32_t n, cap;
};

static bool number_of(struct builder *b, struct numbering *m, uint32_t cell, uint32_t *out)
{
    if (m->of[cell] == 0) {
        if (!builder_room(b, &m->cells, &m->cap, m->n, GRAMMAR_STATES_MAX, sizeof(*m->cells),
                          "states")) {
            return false;
        }
        m->cells[m->n++] = cell;
        m->of[cell] = m->n;
    }
    *out = m->of[cell] - 1;
    return true;
}

struct dfa *dfa_intersect(struct builder *b, const struct dfa *x, const struct dfa *y)
{
    uint64_t all = (uint64_t)x->n_states * y->n_states;
    struct numbering m = {0};
    struct pairing p;
    struct dfa *d = NULL;
    uint32_t ignored;
    bool ok;

    if (all > PRODUCT_STATES_MAX || !pairing_make(b, x, y, &p)) {
        (void)no_memory(b);
        return NULL;
    }
    m.of = mem_try(all, sizeof(*m.of));
    ok = m.of != NULL && number_of(b, &m, 0, &ignored);
    d = ok ? dfa_alloc(b, (uint32_t)u64_min(all, GRAMMAR_STATES_MAX), p.n) : NULL;
    ok = d != NULL;
    for (uint32_t s = 0; ok && s < m.n; s++) {
        uint32_t sx = m.cells[s] / y->n_states, sy = m.cells[s] % y->n_states;

        d->accept[s] = x->accept[sx] && y->accept[sy];
        ok = builder_spend(b, p.n + 2);
        for (uint32_t c = 0; ok && c < p.n; c++) {
            uint32_t tx = x->next[(size_t)sx * x->n_classes + p.x[c]];
            uint32_t ty = y->next[(size_t)sy * y->n_classes + p.y[c]];

            ok = tx == DFA_DEAD || ty == DFA_DEAD ||
                 number_of(b, &m, tx * y->n_states + ty, &d->next[(size_t)s * p.n + c]);
        }
    }
    if (ok) {
        d->n_states = m.n;
        d->n_ranges = p.n_ranges;
        d->range_lo = p.range_lo;
        d->range_class = p.range_class;
        d->len_min = x->len_min > y->len_min ? x->len_min : y->len_min;
        d->len_max = x->len_max < y->len_max ? x->len_max : y->len_max;
    } else {
        (void)no_memory(b);
    }
    mem_free(m.of);
    mem_free(m.cells);
    return ok ? d : NULL;
}

/* ---- backwards ---- */

/* Who leads to a state: from[first[s] .. first[s + 1]). */
struct reverse {
    uint32_t *first, *from;
};

static bool reverse_make(struct builder *b, const struct dfa *d, struct reverse *r)
{
    size_t cells = (size_t)d->n_states * d->n_classes;

    r->first = mem_try((size_t)d->n_states + 2, sizeof(*r->first));
    r->from = mem_try(cells + 1, sizeof(*r->from));
    if (r->first == NULL || r->from == NULL) {
        mem_free(r->first);
        mem_free(r->from);
        return no_memory(b);
    }
    for (size_t i = 0; i < cells; i++) {
        if (d->next[i] != DFA_DEAD) {
            r->first[d->next[i] + 2]++;
        }
    }
    for (uint32_t s = 2; s < d->n_states + 2; s++) {
        r->first[s] += r->first[s - 1];
    }
    for (size_t i = 0; i < cells; i++) {
        if (d->next[i] != DFA_DEAD) {
            r->from[r->first[d->next[i] + 1]++] = (uint32_t)(i / d->n_classes);
        }
    }
    return true;
}

static void reverse_free(struct reverse *r)
{
    mem_free(r->first);
    mem_free(r->from);
}

/* lo [n_states]: least number of characters to an end; INF: none is reached. */
static bool distances(struct builder *b, const struct dfa *d, uint32_t *lo)
{
    uint32_t *queue = arena_array(&b->arena, d->n_states, sizeof(*queue)), n = 0;
    struct reverse r;

    if (queue == NULL || !reverse_make(b, d, &r)) {
        return no_memory(b);
    }
    for (uint32_t s = 0; s < d->n_states; s++) {
        lo[s] = d->accept[s] ? 0 : GRAMMAR_INF;
        if (d->accept[s]) {
            queue[n++] = s;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = r.first[queue[i]]; k < r.first[queue[i] + 1]; k++) {
            if (lo[r.from[k]] == GRAMMAR_INF) {
                lo[r.from[k]] = lo[queue[i]] + 1;
                queue[n++] = r.from[k];
            }
        }
    }
    reverse_free(&r);
    return true;
}

bool dfa_trim(struct builder *b, struct dfa *d)
{
    uint32_t *lo = arena_array(&b->arena, d->n_states, sizeof(*lo));

    if (lo == NULL || !distances(b, d, lo)) {
        return no_memory(b);
    }
    for (size_t i = 0; i < (size_t)d->n_states * d->n_classes; i++) {
        if (d->next[i] != DFA_DEAD && lo[d->next[i]] == GRAMMAR_INF) {
            d->next[i] = DFA_DEAD;
        }
    }
    return lo[0] != GRAMMAR_INF;
}

/* hi [n_states]: greatest number of characters to an end; INF: there is a loop on the way. */
static bool longest(struct builder *b, const struct dfa *d, uint32_t *hi)
{
    uint32_t *left = arena_array(&b->arena, d->n_states, sizeof(*left));
    uint32_t *queue = arena_array(&b->arena, d->n_states, sizeof(*queue)), n = 0;
    struct reverse r;

    if (left == NULL || queue == NULL || !reverse_make(b, d, &r)) {
        return no_memory(b);
    }
    for (uint32_t s = 0; s < d->n_states; s++) {
        hi[s] = GRAMMAR_INF;
        for (uint32_t c = 0; c < d->n_classes; c++) {
            left[s] += d->next[(size_t)s * d->n_classes + c] != DFA_DEAD;
        }
        if (left[s] == 0) {
            hi[s] = 0;
            queue[n++] = s;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = r.first[queue[i]]; k < r.first[queue[i] + 1]; k++) {
            if (--left[r.from[k]] == 0) { /* the last to be settled is the longest */
                hi[r.from[k]] = hi[queue[i]] + 1;
                queue[n++] = r.from[k];
            }
        }
    }
    reverse_free(&r);
    return true;
}

struct stretch {
    uint32_t lo, hi;
};

static int by_low(const void *pa, const void *pb)
{
    const struct stretch *a = pa, *b = pb;

    return (a->lo > b->lo) - (a->lo < b->lo);
}

static uint32_t plus_one(uint32_t n)
{
    return n == GRAMMAR_INF ? n : n + 1;
}

/* Every length between lo and hi of s is one more than a length of a successor, or 0 at an end.
 * When that holds for all states, all these lengths exist: by induction on the length. */
static bool state_is_dense(const struct dfa *d, uint32_t s, const uint32_t *lo, const uint32_t *hi,
                           struct stretch *some)
{
    uint32_t n = 0, top;

    if (d->accept[s]) {
        some[n++] = (struct stretch){0, 0};
    }
    for (uint32_t c = 0; c < d->n_classes; c++) {
        uint32_t t = d->next[(size_t)s * d->n_classes + c];

        if (t != DFA_DEAD) {
            some[n++] = (struct stretch){plus_one(lo[t]), plus_one(hi[t])};
        }
    }
    qsort(some, n, sizeof(*some), by_low);
    top = n > 0 ? some[0].hi : 0;
    for (uint32_t i = 1; i < n; i++) {
        if (some[i].lo > plus_one(top)) {
            return false;
        }
        top = some[i].hi > top ? some[i].hi : top;
    }
    return n > 0 && some[0].lo == lo[s] && top == hi[s];
}

bool dfa_lengths(struct builder *b, const struct dfa *d, uint32_t *lo, uint32_t *hi)
{
    struct stretch *some = arena_array(&b->arena, d->n_classes + 1, sizeof(*some));

    if (some == NULL || !distances(b, d, lo) || !longest(b, d, hi)) {
        return no_memory(b);
    }
    for (uint32_t s = 0; s < d->n_states; s++) {
        if (lo[s] != GRAMMAR_INF && !state_is_dense(d, s, lo, hi, some)) {
            return false;
        }
    }
    return true;
}

struct dfa *dfa_unroll(struct builder *b, const struct dfa *d, uint32_t min, uint32_t max)
{
    uint32_t top = max == GRAMMAR_INF ? min : max, ignored; /* counts past top are like top */
    uint64_t all = (uint64_t)d->n_states * (top + 1ull);
    struct numbering m = {0};
    struct dfa *out = NULL;
    bool ok;

    if (all > PRODUCT_STATES_MAX) {
        err_set(b->err, ERR_LIMIT, "these lengths beside this pattern need too many states");
        return NULL;
    }
    m.of = mem_try(all, sizeof(*m.of));
    ok = m.of != NULL && number_of(b, &m, 0, &ignored);
    out = ok ? dfa_alloc(b, (uint32_t)u64_min(all, GRAMMAR_STATES_MAX), d->n_classes) : NULL;
    ok = out != NULL;
    for (uint32_t s = 0; ok && s < m.n; s++) {
        uint32_t from = m.cells[s] / (top + 1), count = m.cells[s] % (top + 1);

        out->accept[s] = d->accept[from] && count >= min;
        ok = builder_spend(b, d->n_classes + 2);
        if (max != GRAMMAR_INF && count == max) {
            continue;
        }
        for (uint32_t c = 0; ok && c < d->n_classes; c++) {
            uint32_t t = d->next[(size_t)from * d->n_classes + c];

            ok = t == DFA_DEAD || number_of(b, &m, t * (top + 1) + (count < top ? count + 1 : top),
                                            &out->next[(size_t)s * d->n_classes + c]);
        }
    }
    if (ok) {
        out->n_states = m.n;
        out->n_ranges = d->n_ranges;
        out->range_lo = d->range_lo;
        out->range_class = d->range_class;
    } else {
        (void)no_memory(b);
    }
    mem_free(m.of);
    mem_free(m.cells);
    return ok ? out : NULL;
}

/* ---- nodes ---- */

/* An automaton on its way into the builder; with a counter when min .. max says more than it. */
struct placing {
    const struct dfa *d;
    uint32_t min, max;
    bool counted;
    uint32_t *lo, *hi; /* [n_states] when counted */
    uint32_t *node;    /* [n_states]; 0: not reached */
    uint32_t span, close;
    enum char_mode mode;
    bool dear; /* as in struct grammar_node */
};

static bool placing_span(struct builder *b, struct placing *p)
{
    struct grammar_span s = {p->min, p->min, p->max};

    if (p->min == 0 && p->max == GRAMMAR_INF) {
        return true;
    }
    for (uint32_t i = 0; i < p->d->n_states; i++) {
        uint32_t low = p->lo[i] == GRAMMAR_INF || p->hi[i] >= p->min ? 0 : p->min - p->hi[i];

        s.low_least = low > 0 && low < s.low_least ? low : s.low_least;
        if (p->max != GRAMMAR_INF && p->lo[i] <= p->max && p->max - p->lo[i] < s.high_least) {
            s.high_least = p->max - p->lo[i];
        }
    }
    /* Nodes in the middle of a character look one ahead. */
    s.low_least -= s.low_least > 0;
    s.high_least -= s.high_least > 0 && s.high_least != GRAMMAR_INF;
    p->span = span_new(b, 1, 1);
    if (p->span == 0) {
        return false;
    }
    b->spans[p->span] = s;
    return true;
}

static uint32_t placing_node(struct builder *b, const struct placing *p, uint32_t s, bool first)
{
    uint32_t node = node_new(b), low, high;

    if (node == 0) {
        return 0;
    }
    b->nodes[node].n.span = p->span;
    b->nodes[node].n.dear = p->dear;
    if (p->mode == CHARS_RAW && p->d->accept[s]) {
        b->nodes[node].n.final = true;
        b->nodes[node].n.final_min = p->counted ? p->min : 0;
    }
    if (!p->counted || first) {
        return node;
    }
    b->nodes[node].n.op = GRAMMAR_OP_INC;
    low = p->hi[s] >= p->min ? 0 : p->min - p->hi[s];
    high = p->max == GRAMMAR_INF ? p->max : p->lo[s] <= p->max ? p->max - p->lo[s] : 0;
    if (p->max != GRAMMAR_INF && p->lo[s] > p->max) {
        low = 1; /* never */
    }
    return guard_add(b, node, low, high, NEED_NONE, 0) ? node : 0;
}

/* Edges of state s, at `node`. */
static bool placing_edges(struct builder *b, const struct placing *p, uint32_t s, uint32_t node)
{
    const struct dfa *d = p->d;
    struct char_range *r = arena_array(&b->arena, d->n_ranges + 1, sizeof(*r));
    uint32_t n = 0;

    if (r == NULL) {
        return no_memory(b);
    }
    for (uint32_t i = 0; i < d->n_ranges; i++) {
        uint32_t c = d->range_class[i];
        uint32_t to = c < d->n_classes ? d->next[(size_t)s * d->n_classes + c] : DFA_DEAD;
        uint32_t hi = i + 1 < d->n_ranges ? d->range_lo[i + 1] - 1 : CODE_POINT_MAX;

        if (to == DFA_DEAD) {
            continue;
        }
        if (n > 0 && r[n - 1].target == p->node[to] && r[n - 1].hi + 1 == d->range_lo[i]) {
            r[n - 1].hi = hi;
        } else {
            r[n++] = (struct char_range){d->range_lo[i], hi, p->node[to]};
        }
    }
    return chars_add(b, node, r, n, p->mode) &&
           (p->mode == CHARS_RAW || !d->accept[s] || edge_add(b, node, '"', '"', p->close));
}

static bool placing_reach(struct builder *b, struct placing *p)
{
    const struct dfa *d = p->d;
    uint32_t *queue = arena_array(&b->arena, d->n_states, sizeof(*queue)), n = 0;

    p->node = arena_array(&b->arena, d->n_states, sizeof(*p->node));
    if (queue == NULL || p->node == NULL) {
        return no_memory(b);
    }
    queue[n++] = 0;
    p->node[0] = placing_node(b, p, 0, false);
    for (uint32_t i = 0; i < n && p->node[queue[i]] != 0; i++) {
        for (uint32_t c = 0; c < d->n_classes; c++) {
            uint32_t t = d->next[(size_t)queue[i] * d->n_classes + c];

            if (t != DFA_DEAD && p->node[t] == 0) {
                p->node[t] = placing_node(b, p, t, false);
                if (p->node[t] == 0) {
                    return false;
                }
                queue[n++] = t;
            }
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (p->node[queue[i]] == 0 || !placing_edges(b, p, queue[i], p->node[queue[i]])) {
            return false;
        }
    }
    return true;
}

static bool placing_run(struct builder *b, struct placing *p, uint32_t *start)
{
    if (p->counted && !placing_span(b, p)) {
        return false;
    }
    if (p->mode != CHARS_RAW) {
        p->close = node_final(b);
        if (p->close == 0 ||
            (p->counted && !guard_add(b, p->close, p->min, p->max, NEED_NONE, 0))) {
            return false;
        }
        b->nodes[p->close].n.span = p->span;
    }
    if (!placing_reach(b, p)) {
        return false;
    }
    *start = p->node[0];
    if (p->counted) { /* the first state is entered without a character */
        *start = placing_node(b, p, 0, true);
        return *start != 0 && placing_edges(b, p, 0, *start);
    }
    return true;
}

#define DEAR_STATES 4u   /* fewer end a walk soon */
#define DEAR_LETTERS 13u /* of one case: half of the alphabet */
#define DEAR_WIDE 1000u  /* characters past ASCII */

/* How many states at which no walk ends soon or is cut short this one stands for. */
static uint32_t state_dear(const struct dfa *d, uint32_t s, bool bounded)
{
    uint32_t away[2] = {0}, back[2] = {0}, wide = 0; /* letters of one case */

    for (uint32_t i = 0; i < d->n_ranges; i++) {
        uint32_t c = d->range_class[i], lo = d->range_lo[i];
        uint32_t end = i + 1 < d->n_ranges ? d->range_lo[i + 1] : CODE_POINT_MAX + 1;
        uint32_t to = c < d->n_classes ? d->next[(size_t)s * d->n_classes + c] : DFA_DEAD;

        for (; to != DFA_DEAD && lo < end && lo < 0x80; lo++) {
            if ((lo >= 'A' && lo <= 'Z') || (lo >= 'a' && lo <= 'z')) {
                (to == s ? back : away)[lo <= 'Z'] += 1;
            }
        }
        wide += to != DFA_DEAD && to != s ? end - lo : 0;
    }
    for (int k = 0; bounded && k < 2; k++) { /* near the bound a loop's letters are walked too */
        if (back[k] >= DEAR_LETTERS && back[k] < 26) {
            return DEAR_STATES;
        }
    }
    return away[0] >= DEAR_LETTERS || away[1] >= DEAR_LETTERS || wide >= DEAR_WIDE;
}

static bool dfa_dear(const struct dfa *d, bool bounded)
{
    uint32_t n = 0;

    for (uint32_t s = 0; s < d->n_states && n < DEAR_STATES; s++) {
        n += state_dear(d, s, bounded);
    }
    return n >= DEAR_STATES;
}

bool dfa_nodes(struct builder *b, struct dfa *d, uint32_t min, uint32_t max, enum char_mode mode,
               uint32_t *start)
{
    struct placing p = {.d = d, .mode = mode};

    *start = 0;
    min = min > d->len_min ? min : d->len_min;
    max = max < d->len_max ? max : d->len_max;
    if (!builder_spend(b, (uint64_t)d->n_states * (d->n_classes / 2 + 1))) {
        return false;
    }
    if (min > max || !dfa_trim(b, d)) {
        return b->err->code == ERR_NONE;
    }
    p.lo = arena_array(&b->arena, d->n_states, sizeof(*p.lo));
    p.hi = arena_array(&b->arena, d->n_states, sizeof(*p.hi));
    if (p.lo == NULL || p.hi == NULL) {
        return no_memory(b);
    }
    p.counted = dfa_lengths(b, d, p.lo, p.hi);
    if (b->err->code != ERR_NONE) {
        return false;
    }
    if (p.lo[0] >= min && p.hi[0] <= max) { /* the lengths hold by themselves */
        p.counted = false;
    } else if (p.counted) {
        p.min = min;
        p.max = max;
        if (p.lo[0] > max || p.hi[0] < min) {
            return true;
        }
    } else {
        p.d = d = dfa_unroll(b, d, min, max);
        if (d == NULL || !dfa_trim(b, d)) {
            return b->err->code == ERR_NONE;
        }
    }
    p.dear = mode == CHARS_JSON && dfa_dear(d, p.counted && p.max != GRAMMAR_INF);
    return placing_run(b, &p, start);
}
