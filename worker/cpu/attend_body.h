/* attend_body.h - attention over the stored bf16 KV, written once over sixteen lanes and included
 * by each level's file after lanes_body.h.
 *
 * A call owns up to a few dozen queries (heads of consecutive rows that share a KV head). Four of
 * them at a time walk a tile of 32 keys: eight independent sums of scores, then sixteen of values,
 * enough to hide the latency of fma. A tile that more than four queries read is widened to float32
 * first (prefill); else it is widened in registers on the way (decode: a third less time). What a
 * query computes depends on its own row and the keys up to its position alone, never on the others
 * beside it. */
#ifndef WORKER_CPU_ATTEND_BODY_H
#define WORKER_CPU_ATTEND_BODY_H

#define ATTEND_QUERIES 4u /* at a time */
#define ATTEND_VECTORS 4u /* vectors of 16 value columns at a time */

struct attend_state {
    const struct attend_call *call;
    const uint16_t *page; /* the tile as stored: keys [head_dim][32] */
    const uint16_t *next; /* the page after it: fetched on the way, for no hardware crosses pages */
    float *key;           /* the same in float32, when wide */
    float *value;         /* [32][head_dim] */
    float *acc;           /* [queries][head_dim] */
    float *sum;           /* [queries][16] lane sums of weights */
    float *top;           /* [queries][16] the running maximum, in every lane */
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

LANE_FN lanes attend_key(const struct attend_state *s, const bool wide, uint32_t at)
{
    return wide ? lanes_load(s->key + at) : lanes_bf16(s->page + at);
}

LANE_FN lanes attend_value(const struct attend_state *s, const bool wide, uint32_t at)
{
    return wide ? lanes_load(s->value + at) : lanes_bf16(s->page + s->call->value_offset + at);
}

LANE_FN void attend_scores(const struct attend_state *s, const struct attend_group *g,
                           const bool wide, const unsigned n, lanes score[][2])
{
    const struct attend_call *c = s->call;
    const float *q[ATTEND_QUERIES];

    for (unsigned i = 0; i < n; i++) {
        q[i] = c->q + attend_at(c, g->first + i);
        score[i][0] = score[i][1] = lanes_set(0);
    }
    for (uint32_t column = 0; column < c->head_dim; column++) {
        lanes k0 = attend_key(s, wide, column * KERNEL_TILE);
        lanes k1 = attend_key(s, wide, column * KERNEL_TILE + KERNEL_LANES);
        if (!wide) {
            __builtin_prefetch(s->next + column * KERNEL_TILE);
        }
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

    for (unsigned i = 0; i < n; i++) {
        float *top = s->top + (size_t)(g->first + i) * KERNEL_LANES;
        float *sum = s->sum + (size_t)(g->first + i) * KERNEL_LANES;
        unsigned keys = g->keys[i], upper = keys > KERNEL_LANES ? keys - KERNEL_LANES : 0;
        lanes a = lanes_first(keys, lanes_mul(score[i][0], scale), none);
        lanes b = lanes_first(upper, lanes_mul(score[i][1], scale), none);
        lanes before = lanes_load(top);
        lanes now = lanes_max(before, lanes_set(lanes_top(lanes_max(a, b))));
        a = lanes_first(keys, lanes_exp(lanes_sub(a, now)), zero);
        b = lanes_first(upper, lanes_exp(lanes_sub(b, now)), zero);
        g->fix[i] = lanes_exp(lanes_sub(before, now));
        lanes_store(sum, lanes_add(lanes_fma(lanes_load(sum), g->fix[i], a), b));
        lanes_store(top, now);
        lanes_store(g->weight[i], a);
        lanes_store(g->weight[i] + KERNEL_LANES, b);
    }
}

/* Value columns at .. at + 16 m of n queries. Keys that all see go together, the rest one by one:
 * a key past a query's position is not even multiplied by zero, for it may be no number. */
LANE_FN void attend_values(const struct attend_state *s, const struct attend_group *g,
                           const bool wide, const unsigned n, uint32_t at, const unsigned m)
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
        if (!wide) {
            __builtin_prefetch(s->next + s->call->value_offset + key * dim + at);
            __builtin_prefetch(s->next + s->call->value_offset + key * dim + at + 32);
        }
        for (unsigned j = 0; j < m; j++) {
            lanes v = attend_value(s, wide, key * dim + at + j * KERNEL_LANES);
            for (unsigned i = 0; i < n; i++) {
                acc[i][j] = lanes_fma(lanes_set(g->weight[i][key]), v, acc[i][j]);
            }
        }
    }
    for (unsigned i = 0; i < n; i++) {
        for (uint32_t key = common; key < g->keys[i]; key++) {
            for (unsigned j = 0; j < m; j++) {
                lanes v = attend_value(s, wide, key * dim + at + j * KERNEL_LANES);
                acc[i][j] = lanes_fma(lanes_set(g->weight[i][key]), v, acc[i][j]);
            }
        }
        for (unsigned j = 0; j < m; j++) {
            lanes_store(s->acc + (size_t)(g->first + i) * dim + at + j * KERNEL_LANES, acc[i][j]);
        }
    }
}

LANE_FN void attend_step(const struct attend_state *s, struct attend_group *g, const bool wide,
                         const unsigned n)
{
    lanes score[ATTEND_QUERIES][2];
    uint32_t at = 0, dim = s->call->head_dim;

    attend_scores(s, g, wide, n, score);
    attend_weights(s, g, n, score);
    for (; at + ATTEND_VECTORS * KERNEL_LANES <= dim; at += ATTEND_VECTORS * KERNEL_LANES) {
        attend_values(s, g, wide, n, at, ATTEND_VECTORS);
    }
    for (; at < dim; at += KERNEL_LANES) {
        attend_values(s, g, wide, n, at, 1);
    }
}

static void attend_widen(const uint16_t *from, float *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += KERNEL_LANES) {
        lanes_store(to + i, lanes_bf16(from + i));
    }
}

/* All queries that see keys of the tile that begins at position `base`. */
LANE_FN void attend_tile(const struct attend_state *s, const bool wide, uint32_t base)
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
            attend_step(s, &g, wide, 1);
            break;
        case 2:
            attend_step(s, &g, wide, 2);
            break;
        case 3:
            attend_step(s, &g, wide, 3);
            break;
        default:
            attend_step(s, &g, wide, ATTEND_QUERIES);
        }
    }
}

static void attend_wide_tile(const struct attend_state *s, uint32_t base)
{
    uint32_t n = KERNEL_TILE * s->call->head_dim;

    attend_widen(s->page, s->key, n);
    attend_widen(s->page + s->call->value_offset, s->value, n);
    attend_tile(s, true, base);
}

static void attend_stored_tile(const struct attend_state *s, uint32_t base)
{
    attend_tile(s, false, base);
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
        uint32_t after = base + KERNEL_TILE < keys ? base + KERNEL_TILE : base;
        s.page = c->kv + c->table[base / KERNEL_TILE] * c->block_stride;
        s.next = c->kv + c->table[after / KERNEL_TILE] * c->block_stride;
        if (queries > ATTEND_QUERIES) {
            attend_wide_tile(&s, base);
        } else {
            attend_stored_tile(&s, base);
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
