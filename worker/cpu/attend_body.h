/* attend_body.h - attention over the stored KV (bf16 or int8), written once over sixteen lanes and
 * included by each level's file after lanes_body.h.
 *
 * Products are of bf16 with bf16, two a lane: keys lie as pairs of columns, values as pairs of
 * tokens, and the query (scaled, to base 2) and the weights are rounded. Where the CPU multiplies
 * such pairs at once that halves the work; everywhere the sums are the same.
 *
 * A call owns up to a few dozen queries (heads of consecutive rows that share a KV head). Four of
 * them at a time walk a tile of 32 keys: eight independent sums of scores, then sixteen of values,
 * enough to hide the latency of the products. Integers are widened as integers, once a tile when
 * more than four queries read it, and their scales go to the scores and weights of a key, not to
 * its columns. What a query computes depends on its own row and the keys up to its position alone,
 * never on the others beside it. */
#ifndef WORKER_CPU_ATTEND_BODY_H
#define WORKER_CPU_ATTEND_BODY_H

#define ATTEND_QUERIES 4u /* at a time */
#define ATTEND_VECTORS 4u /* vectors of 16 value columns at a time */
#define ATTEND_LINE 64u   /* bytes of a cache line: what one prefetch brings */
#define LOG2_E 1.44269504f

/* How a tile is read; constant in every function below once it is inlined. */
enum attend_from { FROM_BF16 = 1, FROM_INT8 };

struct attend_state {
    const struct attend_call *call;
    uint16_t *wide; /* room for two tiles of integers in bf16, used in turns */
    uint16_t *q;    /* [queries][head_dim, in whole 32] */
    float *acc;     /* [queries][head_dim] */
    float *sum;     /* [queries][16] lane sums of weights */
    float *top;     /* [queries][16] the running maximum, in every lane */
};

struct attend_page {
    const uint8_t *stored;
    const uint16_t *key, *value; /* in bf16, unless integers are read on the way */
    const uint8_t *next; /* the page after it: fetched on the way, for no hardware crosses pages */
    uint32_t base;       /* position of its first token */
};

/* Queries of one step through a tile. */
struct attend_group {
    struct attend_page page;
    bool fetch;                    /* the next page, on the way */
    uint32_t n, first;             /* queries, and the index of the first one */
    uint32_t keys[ATTEND_QUERIES]; /* keys of the tile that the query sees, 1 .. 32 */
    uint32_t common;               /* that all of them see */
    lanes score[ATTEND_QUERIES][2];
    lanes fix[ATTEND_QUERIES]; /* correction of what was summed before */
    bool higher;               /* some correction is not 1 */
    uint16_t weight[ATTEND_QUERIES][KERNEL_TILE];
};

LANE_FN size_t attend_at(const struct attend_call *c, uint32_t query)
{
    return (size_t)(query / c->heads) * c->stride + (size_t)(query % c->heads) * c->head_dim;
}

LANE_FN uint32_t attend_q_size(const struct attend_call *c)
{
    return (c->head_dim + KERNEL_BLOCK - 1) / KERNEL_BLOCK * KERNEL_BLOCK;
}

LANE_FN pairs attend_key(const struct attend_group *g, const enum attend_from from, uint32_t at)
{
    return from == FROM_BF16 ? pairs_load(g->page.key + at)
                             : pairs_i8((const int8_t *)g->page.stored + at);
}

LANE_FN pairs attend_value(const struct attend_state *s, const struct attend_group *g,
                           const enum attend_from from, uint32_t at)
{
    const uint8_t *stored = g->page.stored + s->call->value_offset;

    return from == FROM_BF16 ? pairs_load(g->page.value + at)
                             : pairs_i8((const int8_t *)stored + at);
}

/* Of the 32 tokens of an int8 page. */
LANE_FN lanes attend_scale(const struct attend_state *s, const uint8_t *page, uint32_t at)
{
    size_t n = (size_t)KERNEL_TILE * s->call->head_dim;

    return lanes_bf16((const uint16_t *)(const void *)(page + n) + at);
}

/* Fetches what row `row` (of n columns) of the next page begins; a line once. */
LANE_FN void attend_fetch(const struct attend_state *s, const uint8_t *next, uint32_t row,
                          uint32_t n)
{
    uint32_t bytes = s->call->form == KV_INT8 ? n : 2 * n;

    for (uint32_t i = 0; row * bytes % ATTEND_LINE == 0 && i < bytes; i += ATTEND_LINE) {
        __builtin_prefetch(next + row * bytes + i);
    }
}

LANE_FN void attend_scores(const struct attend_state *s, struct attend_group *g,
                           const enum attend_from from, const unsigned n)
{
    uint32_t row = attend_q_size(s->call);
    const uint16_t *q = s->q + (size_t)g->first * row;
    lanes score[ATTEND_QUERIES][2];

    for (unsigned i = 0; i < n; i++) {
        score[i][0] = score[i][1] = lanes_set(0);
    }
    for (uint32_t column = 0; column < s->call->head_dim; column += 2) {
        pairs k0 = attend_key(g, from, column * KERNEL_TILE);
        pairs k1 = attend_key(g, from, column * KERNEL_TILE + 2 * KERNEL_LANES);
        if (g->fetch) {
            attend_fetch(s, g->page.next, column / 2, 2 * KERNEL_TILE);
        }
        for (unsigned i = 0; i < n; i++) {
            pairs v = pairs_set(q + i * row + column);
            score[i][0] = pairs_dot(k0, v, score[i][0]);
            score[i][1] = pairs_dot(k1, v, score[i][1]);
        }
    }
    for (unsigned i = 0; i < n; i++) {
        g->score[i][0] = score[i][0];
        g->score[i][1] = score[i][1];
    }
}

/* The weights of 32 keys, given the scores of query i of the group. */
LANE_FN void attend_weigh(const struct attend_state *s, struct attend_group *g, const unsigned i)
{
    float *top = s->top + (size_t)(g->first + i) * KERNEL_LANES;
    float *sum = s->sum + (size_t)(g->first + i) * KERNEL_LANES;
    unsigned keys = g->keys[i], upper = keys > KERNEL_LANES ? keys - KERNEL_LANES : 0;
    const uint8_t *page = g->page.stored, *values = page + s->call->value_offset;
    const bool integers = s->call->form == KV_INT8, all = keys == KERNEL_TILE;
    lanes none = lanes_set(SCORE_NONE), zero = lanes_set(0);
    lanes a = g->score[i][0], b = g->score[i][1];

    if (integers) {
        a = lanes_mul(a, attend_scale(s, page, 0));
        b = lanes_mul(b, attend_scale(s, page, KERNEL_LANES));
    }
    if (!all) {
        a = lanes_first(keys, a, none);
        b = lanes_first(upper, b, none);
    }
    lanes before = lanes_load(top);
    lanes highest = lanes_max(a, b), now = before;
    g->fix[i] = lanes_set(1.0f);
    if (lanes_any_above(highest, before)) { /* seldom, after the first tiles */
        now = lanes_set(lanes_top(highest));
        g->fix[i] = lanes_exp2(lanes_sub(before, now));
        g->higher = true;
        lanes_store(top, now);
    }
    a = lanes_exp2(lanes_sub(a, now));
    b = lanes_exp2(lanes_sub(b, now));
    if (!all) {
        a = lanes_first(keys, a, zero);
        b = lanes_first(upper, b, zero);
    }
    lanes_store(sum, lanes_add(lanes_fma(lanes_load(sum), g->fix[i], a), b));
    if (integers) {
        a = lanes_mul(a, attend_scale(s, values, 0));
        b = lanes_mul(b, attend_scale(s, values, KERNEL_LANES));
        if (!all) { /* a stale scale may be no number */
            a = lanes_first(keys, a, zero);
            b = lanes_first(upper, b, zero);
        }
    }
    pairs_round(g->weight[i], a, b);
}

/* Value columns at .. at + 16 m of query i and the keys from pair `pair` on, which not all of its
 * group see. A key past the query's position is read as zero, for it may be no number. */
LANE_FN void attend_own_values(const struct attend_state *s, const struct attend_group *g,
                               const enum attend_from from, uint32_t i, uint32_t pair, uint32_t at,
                               const unsigned m)
{
    uint32_t dim = s->call->head_dim;
    float *to = s->acc + (size_t)(g->first + i) * dim + at;

    for (; 2 * pair < g->keys[i]; pair++) {
        pairs w = pairs_set(g->weight[i] + 2 * pair);
        for (unsigned j = 0; j < m; j++, to += KERNEL_LANES) {
            pairs v = attend_value(s, g, from, 2 * (pair * dim + at + j * KERNEL_LANES));
            v = 2 * pair + 1 < g->keys[i] ? v : pairs_even(v);
            lanes_store(to, pairs_dot(v, w, lanes_load(to)));
        }
        to -= m * KERNEL_LANES;
    }
}

/* Value columns at .. at + 16 m of n queries: pairs of keys that all see together, then the rest.
 */
LANE_FN void attend_values(const struct attend_state *s, const struct attend_group *g,
                           const enum attend_from from, const unsigned n, uint32_t at,
                           const unsigned m)
{
    uint32_t dim = s->call->head_dim, common = g->common / 2;
    float *to = s->acc + (size_t)g->first * dim + at;
    lanes acc[ATTEND_QUERIES][ATTEND_VECTORS];

    for (unsigned i = 0; i < n; i++) {
        for (unsigned j = 0; j < m; j++) {
            acc[i][j] = lanes_load(to + i * dim + j * KERNEL_LANES);
        }
    }
    if (g->higher) {
        for (unsigned i = 0; i < n; i++) {
            for (unsigned j = 0; j < m; j++) {
                acc[i][j] = lanes_mul(acc[i][j], g->fix[i]);
            }
        }
    }
    for (uint32_t pair = 0; pair < common; pair++) {
        if (g->fetch && at == 0) {
            attend_fetch(s, g->page.next + s->call->value_offset, pair, 2 * dim);
        }
        for (unsigned j = 0; j < m; j++) {
            pairs v = attend_value(s, g, from, 2 * (pair * dim + at + j * KERNEL_LANES));
            for (unsigned i = 0; i < n; i++) {
                acc[i][j] = pairs_dot(v, pairs_set(g->weight[i] + 2 * pair), acc[i][j]);
            }
        }
    }
    for (unsigned i = 0; i < n; i++) {
        for (unsigned j = 0; j < m; j++) {
            lanes_store(to + i * dim + j * KERNEL_LANES, acc[i][j]);
        }
    }
    for (unsigned i = 0; g->common < KERNEL_TILE && i < n; i++) {
        attend_own_values(s, g, from, i, common, at, m);
    }
}

LANE_FN void attend_weights_and_values(const struct attend_state *s, struct attend_group *g,
                                       const enum attend_from from, const unsigned n)
{
    uint32_t at = 0, dim = s->call->head_dim;

    for (unsigned i = 0; i < n; i++) {
        attend_weigh(s, g, i);
    }
    for (; at + ATTEND_VECTORS * KERNEL_LANES <= dim; at += ATTEND_VECTORS * KERNEL_LANES) {
        attend_values(s, g, from, n, at, ATTEND_VECTORS);
    }
    for (; at < dim; at += KERNEL_LANES) {
        attend_values(s, g, from, n, at, 1);
    }
}

/* f(s, g, from, n) with a constant n. */
#define ATTEND_EACH_N(f, from)                                                                     \
    switch (g->n) {                                                                                \
    case 1:                                                                                        \
        f(s, g, from, 1);                                                                          \
        break;                                                                                     \
    case 2:                                                                                        \
        f(s, g, from, 2);                                                                          \
        break;                                                                                     \
    case 3:                                                                                        \
        f(s, g, from, 3);                                                                          \
        break;                                                                                     \
    default:                                                                                       \
        f(s, g, from, ATTEND_QUERIES);                                                             \
    }

static void attend_begin(const struct attend_state *s, struct attend_group *g)
{
    if (g->page.key != NULL) {
        ATTEND_EACH_N(attend_scores, FROM_BF16)
    } else {
        ATTEND_EACH_N(attend_scores, FROM_INT8)
    }
}

static void attend_end(const struct attend_state *s, struct attend_group *g)
{
    if (g->page.key != NULL) {
        ATTEND_EACH_N(attend_weights_and_values, FROM_BF16)
    } else {
        ATTEND_EACH_N(attend_weights_and_values, FROM_INT8)
    }
}

/* The queries from `first` on, and which keys of the page each sees: later rows see more. */
static void attend_see(const struct attend_call *c, struct attend_group *g, uint32_t first)
{
    uint32_t left = c->rows * c->heads - first;

    g->n = left < ATTEND_QUERIES ? left : ATTEND_QUERIES;
    g->first = first;
    g->higher = false;
    for (uint32_t i = 0; i < g->n; i++) {
        uint32_t sees = c->first_position + (first + i) / c->heads + 1 - g->page.base;
        g->keys[i] = sees < KERNEL_TILE ? sees : KERNEL_TILE;
    }
    g->common = g->keys[0];
}

static void attend_widen(const uint8_t *page, uint16_t *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 2 * KERNEL_LANES) {
        pairs_store(to + i, pairs_i8((const int8_t *)page + i));
    }
}

static struct attend_page attend_page_at(const struct attend_state *s, uint32_t base)
{
    const struct attend_call *c = s->call;
    uint32_t n = KERNEL_TILE * c->head_dim, at = base / KERNEL_TILE;
    struct attend_page p = {.base = base, .stored = c->kv + c->table[at] * c->block_stride};
    const uint8_t *values = p.stored + c->value_offset;
    uint16_t *wide = s->wide + (size_t)2 * n * (at % 2);

    p.next = c->after != NULL ? c->after : p.stored;
    if (base + KERNEL_TILE < c->first_position + c->rows) {
        p.next = c->kv + c->table[at + 1] * c->block_stride;
    }
    if (c->form == KV_BF16) {
        p.key = (const uint16_t *)(const void *)p.stored;
        p.value = (const uint16_t *)(const void *)values;
    } else if (c->rows * c->heads > ATTEND_QUERIES) {
        attend_widen(p.stored, wide, n);
        attend_widen(values, wide + n, n);
        p.key = wide;
        p.value = wide + n;
    }
    return p;
}

/* Scores of the next group (or page) are summed before the weights of the last are found, a long
 * chain of few operations: so the CPU has work beside it. */
static void attend_pages(const struct attend_state *s)
{
    const struct attend_call *c = s->call;
    struct attend_group group[2];
    unsigned begun = 0;

    for (uint32_t base = 0; base < c->first_position + c->rows; base += KERNEL_TILE) {
        struct attend_page page = attend_page_at(s, base);
        uint32_t row = base > c->first_position ? base - c->first_position : 0; /* sees it first */
        for (uint32_t first = row * c->heads; first < c->rows * c->heads; first += ATTEND_QUERIES) {
            struct attend_group *g = &group[begun % 2];
            g->page = page;
            g->fetch = first == row * c->heads;
            attend_see(c, g, first);
            attend_begin(s, g);
            if (begun > 0) {
                attend_end(s, &group[(begun - 1) % 2]);
            }
            begun++;
        }
    }
    attend_end(s, &group[(begun - 1) % 2]);
}

/* The query in bf16, times the scale of scores and log2(e): weights are powers of two. */
LANE_FN void attend_query(const struct attend_state *s, uint32_t query)
{
    const struct attend_call *c = s->call;
    const float *q = c->q + attend_at(c, query);
    uint16_t *to = s->q + (size_t)query * attend_q_size(c);
    lanes scale = lanes_set(c->scale * LOG2_E);

    for (uint32_t i = 0; i < c->head_dim; i += 2 * KERNEL_LANES) {
        bool whole = i + KERNEL_LANES < c->head_dim;
        lanes a = lanes_mul(lanes_load(q + i), scale);
        lanes b = whole ? lanes_mul(lanes_load(q + i + KERNEL_LANES), scale) : lanes_set(0);
        pairs_round(to + i, a, b);
    }
}

static __attribute__((noinline)) void attend_all(const struct attend_call *c)
{
    uint32_t queries = c->rows * c->heads, dim = c->head_dim;
    struct attend_state s = {.call = c, .wide = (uint16_t *)(void *)c->scratch};

    s.q = s.wide + (size_t)4 * KERNEL_TILE * dim;
    s.acc = c->scratch + (size_t)2 * KERNEL_TILE * dim + (size_t)queries * attend_q_size(c) / 2;
    s.sum = s.acc + (size_t)queries * dim;
    s.top = s.sum + (size_t)queries * KERNEL_LANES;
    memset(s.acc, 0, (size_t)queries * (dim + KERNEL_LANES) * sizeof(float)); /* acc and sum */
    for (uint32_t i = 0; i < queries; i++) {
        attend_query(&s, i);
        lanes_store(s.top + i * KERNEL_LANES, lanes_set(SCORE_NONE));
    }
    attend_pages(&s);
    for (uint32_t i = 0; i < queries; i++) {
        lanes sum = lanes_set(lanes_sum(lanes_load(s.sum + (size_t)i * KERNEL_LANES)));
        for (uint32_t at = 0; at < dim; at += KERNEL_LANES) {
            lanes v = lanes_div(lanes_load(s.acc + (size_t)i * dim + at), sum);
            lanes_store(c->q + attend_at(c, i) + at, v);
        }
    }
}

static void level_attend(const struct attend_call *c)
{
    unsigned before = lanes_denormals_off();

    attend_all(c);
    lanes_denormals_on(before);
}

#endif
