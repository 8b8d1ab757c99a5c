/* attend_body.h - attention over the stored KV (bf16 or int8), written once over sixteen lanes and
 * included by each level's file after lanes_body.h.
 *
 * A call owns up to a few dozen queries (heads of consecutive rows that share a KV head). Four of
 * them at a time walk a tile of 32 keys: eight independent sums of scores, then sixteen of values,
 * enough to hide the latency of fma. A tile that more than four queries read is widened to float32
 * first (prefill); else it is widened in registers on the way (decode: a third less time). Integers
 * are widened as integers: their scales go to the scores and weights of a key, not to its columns.
 * What a query computes depends on its own row and the keys up to its position alone, never on the
 * others beside it. */
#ifndef WORKER_CPU_ATTEND_BODY_H
#define WORKER_CPU_ATTEND_BODY_H

#define ATTEND_QUERIES 4u /* at a time */
#define ATTEND_VECTORS 4u /* vectors of 16 value columns at a time */
#define ATTEND_LINE 64u   /* bytes of a cache line: what one prefetch brings */

/* How a tile is read; constant in every function below once it is inlined. */
enum attend_from { FROM_WIDE = 1, FROM_BF16, FROM_INT8 };

struct attend_state {
    const struct attend_call *call;
    const uint8_t *page; /* the tile as stored: keys [head_dim][32] */
    const uint8_t *next; /* the page after it: fetched on the way, for no hardware crosses pages */
    float *key;          /* the same in float32, when wide */
    float *value;        /* [32][head_dim] */
    float *acc;          /* [queries][head_dim] */
    float *sum;          /* [queries][16] lane sums of weights */
    float *top;          /* [queries][16] the running maximum, in every lane */
};

/* Queries of one step through a tile. */
struct attend_group {
    uint32_t first;                /* index of the first query */
    uint32_t keys[ATTEND_QUERIES]; /* keys of the tile that the query sees, 1 .. 32 */
    lanes fix[ATTEND_QUERIES];     /* correction of what was summed before */
    float weight[ATTEND_QUERIES][KERNEL_TILE];
};

LANE_FN size_t attend_at(const struct attend_call *c, uint32_t query)
{
    return (size_t)(query / c->heads) * c->stride + (size_t)(query % c->heads) * c->head_dim;
}

LANE_FN lanes attend_stored(const uint8_t *page, const enum attend_from from, uint32_t at)
{
    return from == FROM_INT8 ? lanes_i8((const int8_t *)page + at)
                             : lanes_bf16((const uint16_t *)(const void *)page + at);
}

LANE_FN lanes attend_key(const struct attend_state *s, const enum attend_from from, uint32_t at)
{
    return from == FROM_WIDE ? lanes_load(s->key + at) : attend_stored(s->page, from, at);
}

LANE_FN lanes attend_value(const struct attend_state *s, const enum attend_from from, uint32_t at)
{
    return from == FROM_WIDE ? lanes_load(s->value + at)
                             : attend_stored(s->page + s->call->value_offset, from, at);
}

/* Of the 32 tokens of an int8 page. */
LANE_FN lanes attend_scale(const struct attend_state *s, const uint8_t *page, uint32_t at)
{
    size_t n = (size_t)KERNEL_TILE * s->call->head_dim;

    return lanes_bf16((const uint16_t *)(const void *)(page + n) + at);
}

/* Fetches what row `row` (of n columns) of the next page begins; a line once. */
LANE_FN void attend_fetch(const uint8_t *next, const enum attend_from from, uint32_t row,
                          uint32_t n)
{
    uint32_t bytes = row * n * (from == FROM_INT8 ? 1 : 2);

    for (uint32_t i = 0; from != FROM_WIDE && i < n * (from == FROM_INT8 ? 1u : 2u);
         i += ATTEND_LINE) {
        if (bytes % ATTEND_LINE == 0) {
            __builtin_prefetch(next + bytes + i);
        }
    }
}

LANE_FN void attend_scores(const struct attend_state *s, const struct attend_group *g,
                           const enum attend_from from, const unsigned n, lanes score[][2])
{
    const struct attend_call *c = s->call;
    const float *q[ATTEND_QUERIES];

    for (unsigned i = 0; i < n; i++) {
        q[i] = c->q + attend_at(c, g->first + i);
        score[i][0] = score[i][1] = lanes_set(0);
    }
    for (uint32_t column = 0; column < c->head_dim; column++) {
        lanes k0 = attend_key(s, from, column * KERNEL_TILE);
        lanes k1 = attend_key(s, from, column * KERNEL_TILE + KERNEL_LANES);
        attend_fetch(s->next, from, column, KERNEL_TILE);
        for (unsigned i = 0; i < n; i++) {
            lanes v = lanes_set(q[i][column]);
            score[i][0] = lanes_fma(k0, v, score[i][0]);
            score[i][1] = lanes_fma(k1, v, score[i][1]);
        }
    }
}

LANE_FN void attend_weights(const struct attend_state *s, struct attend_group *g, const unsigned n,
                            lanes score[][2])
{
    lanes scale = lanes_set(s->call->scale), none = lanes_set(SCORE_NONE), zero = lanes_set(0);
    const uint8_t *page = s->page, *values = s->page + s->call->value_offset;
    const bool integers = s->call->form == KV_INT8;

    for (unsigned i = 0; i < n; i++) {
        float *top = s->top + (size_t)(g->first + i) * KERNEL_LANES;
        float *sum = s->sum + (size_t)(g->first + i) * KERNEL_LANES;
        unsigned keys = g->keys[i], upper = keys > KERNEL_LANES ? keys - KERNEL_LANES : 0;
        if (integers) {
            score[i][0] = lanes_mul(score[i][0], attend_scale(s, page, 0));
            score[i][1] = lanes_mul(score[i][1], attend_scale(s, page, KERNEL_LANES));
        }
        lanes a = lanes_first(keys, lanes_mul(score[i][0], scale), none);
        lanes b = lanes_first(upper, lanes_mul(score[i][1], scale), none);
        lanes before = lanes_load(top);
        float highest = lanes_top(lanes_max(a, b));
        lanes now = lanes_max(before, lanes_set(highest));
        a = lanes_first(keys, lanes_exp(lanes_sub(a, now)), zero);
        b = lanes_first(upper, lanes_exp(lanes_sub(b, now)), zero);
        g->fix[i] = lanes_set(1.0f); /* what exp gives for 0, which it mostly is */
        if (!(highest <= top[0])) {
            g->fix[i] = lanes_exp(lanes_sub(before, now));
        }
        lanes_store(sum, lanes_add(lanes_fma(lanes_load(sum), g->fix[i], a), b));
        lanes_store(top, now);
        if (integers) {
            a = lanes_mul(a, attend_scale(s, values, 0));
            b = lanes_mul(b, attend_scale(s, values, KERNEL_LANES));
        }
        lanes_store(g->weight[i], a);
        lanes_store(g->weight[i] + KERNEL_LANES, b);
    }
}

/* Value columns at .. at + 16 m of n queries. Keys that all see go together, the rest one by one:
 * a key past a query's position is not even multiplied by zero, for it may be no number. */
LANE_FN void attend_values(const struct attend_state *s, const struct attend_group *g,
                           const enum attend_from from, const unsigned n, uint32_t at,
                           const unsigned m)
{
    uint32_t dim = s->call->head_dim, common = g->keys[0];
    lanes acc[ATTEND_QUERIES][ATTEND_VECTORS];

    for (unsigned i = 0; i < n; i++) {
        common = g->keys[i] < common ? g->keys[i] : common;
        for (unsigned j = 0; j < m; j++) {
            const float *p = s->acc + (size_t)(g->first + i) * dim + at + j * KERNEL_LANES;
            acc[i][j] = lanes_mul(lanes_load(p), g->fix[i]);
        }
    }
    for (uint32_t key = 0; key < common; key++) {
        if (at == 0) {
            attend_fetch(s->next + s->call->value_offset, from, key, dim);
        }
        for (unsigned j = 0; j < m; j++) {
            lanes v = attend_value(s, from, key * dim + at + j * KERNEL_LANES);
            for (unsigned i = 0; i < n; i++) {
                acc[i][j] = lanes_fma(lanes_set(g->weight[i][key]), v, acc[i][j]);
            }
        }
    }
    for (unsigned i = 0; i < n; i++) {
        for (uint32_t key = common; key < g->keys[i]; key++) {
            for (unsigned j = 0; j < m; j++) {
                lanes v = attend_value(s, from, key * dim + at + j * KERNEL_LANES);
                acc[i][j] = lanes_fma(lanes_set(g->weight[i][key]), v, acc[i][j]);
            }
        }
        for (unsigned j = 0; j < m; j++) {
            lanes_store(s->acc + (size_t)(g->first + i) * dim + at + j * KERNEL_LANES, acc[i][j]);
        }
    }
}

LANE_FN void attend_step(const struct attend_state *s, struct attend_group *g,
                         const enum attend_from from, const unsigned n)
{
    lanes score[ATTEND_QUERIES][2];
    uint32_t at = 0, dim = s->call->head_dim;

    attend_scores(s, g, from, n, score);
    attend_weights(s, g, n, score);
    for (; at + ATTEND_VECTORS * KERNEL_LANES <= dim; at += ATTEND_VECTORS * KERNEL_LANES) {
        attend_values(s, g, from, n, at, ATTEND_VECTORS);
    }
    for (; at < dim; at += KERNEL_LANES) {
        attend_values(s, g, from, n, at, 1);
    }
}

static void attend_widen(const uint8_t *page, enum kv_form form, float *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += KERNEL_LANES) {
        lanes_store(to + i, attend_stored(page, form == KV_INT8 ? FROM_INT8 : FROM_BF16, i));
    }
}

/* All queries that see keys of the tile that begins at position `base`. */
LANE_FN void attend_tile(const struct attend_state *s, const enum attend_from from, uint32_t base)
{
    const struct attend_call *c = s->call;
    uint32_t queries = c->rows * c->heads;
    uint32_t row = base > c->first_position ? base - c->first_position : 0; /* first that sees it */

    for (uint32_t first = row * c->heads; first < queries; first += ATTEND_QUERIES) {
        struct attend_group g = {.first = first};
        uint32_t n = queries - first < ATTEND_QUERIES ? queries - first : ATTEND_QUERIES;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t limit = c->first_position + (first + i) / c->heads + 1;
            g.keys[i] = limit - base < KERNEL_TILE ? limit - base : KERNEL_TILE;
        }
        switch (n) {
        case 1:
            attend_step(s, &g, from, 1);
            break;
        case 2:
            attend_step(s, &g, from, 2);
            break;
        case 3:
            attend_step(s, &g, from, 3);
            break;
        default:
            attend_step(s, &g, from, ATTEND_QUERIES);
        }
    }
}

/* Three copies of all the above, each for one way to read. */
static void attend_wide_tile(const struct attend_state *s, uint32_t base)
{
    uint32_t n = KERNEL_TILE * s->call->head_dim;

    attend_widen(s->page, s->call->form, s->key, n);
    attend_widen(s->page + s->call->value_offset, s->call->form, s->value, n);
    attend_tile(s, FROM_WIDE, base);
}

static void attend_bf16_tile(const struct attend_state *s, uint32_t base)
{
    attend_tile(s, FROM_BF16, base);
}

static void attend_int8_tile(const struct attend_state *s, uint32_t base)
{
    attend_tile(s, FROM_INT8, base);
}

static void level_attend(const struct attend_call *c)
{
    uint32_t queries = c->rows * c->heads, dim = c->head_dim;
    uint32_t keys = c->first_position + c->rows;
    struct attend_state s = {.call = c, .key = c->scratch};

    s.value = s.key + (size_t)KERNEL_TILE * dim;
    s.acc = s.value + (size_t)KERNEL_TILE * dim;
    s.sum = s.acc + (size_t)queries * dim;
    s.top = s.sum + (size_t)queries * KERNEL_LANES;
    memset(s.acc, 0, (size_t)queries * (dim + KERNEL_LANES) * sizeof(float)); /* acc and sum */
    for (uint32_t i = 0; i < queries; i++) {
        lanes_store(s.top + i * KERNEL_LANES, lanes_set(SCORE_NONE));
    }
    for (uint32_t base = 0; base < keys; base += KERNEL_TILE) {
        uint32_t after = base / KERNEL_TILE + 1;
        s.page = c->kv + c->table[base / KERNEL_TILE] * c->block_stride;
        s.next = c->after != NULL ? c->after : s.page;
        if (after * KERNEL_TILE < keys) {
            s.next = c->kv + c->table[after] * c->block_stride;
        }
        if (queries > ATTEND_QUERIES) {
            attend_wide_tile(&s, base);
        } else if (c->form == KV_INT8) {
            attend_int8_tile(&s, base);
        } else {
            attend_bf16_tile(&s, base);
        }
    }
    for (uint32_t i = 0; i < queries; i++) {
        lanes sum = lanes_set(lanes_sum(lanes_load(s.sum + (size_t)i * KERNEL_LANES)));
        for (uint32_t at = 0; at < dim; at += KERNEL_LANES) {
            lanes v = lanes_div(lanes_load(s.acc + (size_t)i * dim + at), sum);
            lanes_store(c->q + attend_at(c, i) + at, v);
        }
    }
}

#endif
