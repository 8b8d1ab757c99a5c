/* attention.c - the KV pages of a step: who writes them, who reads them, and what is fetched ahead.
 *
 * A unit is some rows of a sequence and the heads that share a KV head. Units are listed before the
 * step and taken from the list's end by a counter, so that the long ones go first. */
#include "worker/cpu/cpu.h"

#include "worker/model/quant.h"

#include <math.h>

static uint8_t *key_page(const struct cpu *c, uint32_t block, uint32_t layer, uint32_t kv_head)
{
    const struct model *m = c->m;
    size_t page = ((size_t)block * m->layers + layer) * 2 * m->kv_heads + kv_head;

    return c->kv + page * c->page_bytes;
}

size_t cpu_value_offset(const struct cpu *c)
{
    return c->m->kv_heads * c->page_bytes;
}

void cpu_ahead_begin(struct cpu *c, uint32_t layer, unsigned id, unsigned width)
{
    bool useful = c->batch->rows <= CPU_AHEAD_ROWS && layer < c->m->layers;

    c->thread[id].ahead = (struct cpu_ahead){
        .layer = layer,
        .unit = id,
        .width = width,
        .left = useful ? CPU_AHEAD_BYTES / 2 / (uint32_t)c->page_bytes : 0,
    };
}

/* The next page of keys that this thread is likely to read, if all threads take units in turns. */
const uint8_t *cpu_ahead_next(const struct cpu *c, struct cpu_ahead *a)
{
    uint32_t heads = c->m->heads / c->m->kv_heads;

    while (a->left > 0 && a->unit < c->units) {
        const struct cpu_unit *u = &c->unit[c->units - 1 - a->unit];
        uint32_t last = c->row_position[c->batch->q_start[u->sequence] + u->row + u->rows - 1];
        if (a->tile <= last / KERNEL_TILE) {
            const uint32_t *table = c->batch->table[u->sequence];
            a->left--;
            return key_page(c, table[a->tile++], a->layer, u->head / heads);
        }
        a->unit += a->width;
        a->tile = 0;
    }
    return NULL;
}

static void add_bias(float *x, const struct weight *bias, uint32_t first, uint32_t n)
{
    if (bias->data == NULL) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        float b;
        memcpy(&b, bias->data + (first + i) * sizeof(b), sizeof(b));
        x[i] += b;
    }
}

static void rotate_pairs(float *x, const float *table, uint32_t half)
{
    for (uint32_t i = 0; i < half; i++) {
        float c = table[2 * i], s = table[2 * i + 1], u = x[2 * i], v = x[2 * i + 1];
        x[2 * i] = u * c - v * s;
        x[2 * i + 1] = u * s + v * c;
    }
}

static void rotate_halves(float *x, const float *table, uint32_t half)
{
    for (uint32_t i = 0; i < half; i++) {
        float c = table[2 * i], s = table[2 * i + 1], u = x[i], v = x[i + half];
        x[i] = u * c - v * s;
        x[i + half] = u * s + v * c;
    }
}

static void rotate(const struct cpu *c, float *x, uint32_t position)
{
    uint32_t half = c->m->head_dim / 2;
    const float *table = c->rope + (size_t)position * half * 2;

    if (c->m->rope == MODEL_ROPE_PAIRS) {
        rotate_pairs(x, table, half);
    } else {
        rotate_halves(x, table, half);
    }
}

/* Where column i of token `slot` lies in a page of keys, and in one of values; see kernels.h. */
static uint32_t key_at(uint32_t i, uint32_t slot)
{
    return (i / 2 * KERNEL_TILE + slot) * 2 + i % 2;
}

static uint32_t value_at(uint32_t i, uint32_t slot, uint32_t dim)
{
    return (slot / 2 * dim + i) * 2 + slot % 2;
}

/* An int8 page ends in scales. */
static void store_key(const struct cpu *c, const float *k, uint8_t *page, uint32_t slot)
{
    uint32_t dim = c->m->head_dim;
    int8_t q[KERNEL_HEAD_DIM_MAX];

    if (c->kv_form == KV_BF16) {
        uint16_t *to = (uint16_t *)(void *)page;
        for (uint32_t i = 0; i < dim; i++) {
            to[key_at(i, slot)] = quant_to_bf16(k[i]);
        }
        return;
    }
    uint16_t scale = quant_to_bf16(c->kernels->round_kv(k, dim, q));
    for (uint32_t i = 0; i < dim; i++) {
        page[key_at(i, slot)] = (uint8_t)q[i];
    }
    memcpy(page + (size_t)KERNEL_TILE * dim + slot * sizeof(scale), &scale, sizeof(scale));
}

static void store_value(const struct cpu *c, const float *v, uint8_t *page, uint32_t slot)
{
    uint32_t dim = c->m->head_dim;
    int8_t q[KERNEL_HEAD_DIM_MAX];

    if (c->kv_form == KV_BF16) {
        uint16_t *to = (uint16_t *)(void *)page;
        for (uint32_t i = 0; i < dim; i++) {
            to[value_at(i, slot, dim)] = quant_to_bf16(v[i]);
        }
        return;
    }
    uint16_t scale = quant_to_bf16(c->kernels->round_kv(v, dim, q));
    for (uint32_t i = 0; i < dim; i++) {
        page[value_at(i, slot, dim)] = (uint8_t)q[i];
    }
    memcpy(page + (size_t)KERNEL_TILE * dim + slot * sizeof(scale), &scale, sizeof(scale));
}

/* Of a row: key heads 0 .. kv_heads - 1, then the value heads. */
static void store_head(struct cpu *c, const struct batch *b, uint32_t layer, uint32_t row,
                       uint32_t head)
{
    const struct model_layer *l = &c->m->layer[layer];
    uint32_t dim = c->m->head_dim, kv_heads = c->m->kv_heads, position = c->row_position[row];
    float *x = c->qkv + (size_t)row * c->qkv_size + c->q_size + (size_t)head * dim;
    uint32_t block = b->table[c->row_sequence[row]][position / KERNEL_TILE];
    bool is_key = head < kv_heads;
    uint32_t of_page = is_key ? head : head - kv_heads;
    uint8_t *page = key_page(c, block, layer, of_page) + (is_key ? 0 : cpu_value_offset(c));

    add_bias(x, is_key ? &l->k_bias : &l->v_bias, of_page * dim, dim);
    if (is_key) {
        rotate(c, x, position);
        store_key(c, x, page, position % KERNEL_TILE);
    } else {
        store_value(c, x, page, position % KERNEL_TILE);
    }
}

void cpu_store_kv(struct cpu *c, const struct batch *b, uint32_t layer, struct cpu_range mine,
                  unsigned id, unsigned width)
{
    uint32_t heads = 2 * c->m->kv_heads;

    if (b->rows >= CPU_ROWS_SPREAD) {
        pool_barrier(c->pool, id);
        struct cpu_range r = cpu_share((uint64_t)b->rows * heads, id, width);
        for (uint32_t i = r.begin; i < r.end; i++) {
            store_head(c, b, layer, i / heads, i % heads);
        }
        return;
    }
    uint32_t q = c->layer[layer].q.groups, per_head = c->m->head_dim / KERNEL_LANES;
    uint32_t first = mine.begin > q ? (mine.begin - q) / per_head : 0;
    uint32_t end = mine.end > q ? (mine.end - q) / per_head : 0;
    for (uint32_t row = 0; row < b->rows; row++) {
        for (uint32_t head = first; head < end; head++) {
            store_head(c, b, layer, row, head);
        }
    }
}

static void prepare_query(struct cpu *c, uint32_t layer, uint32_t row, uint32_t head)
{
    uint32_t dim = c->m->head_dim;
    float *q = c->qkv + (size_t)row * c->qkv_size + (size_t)head * dim;

    add_bias(q, &c->m->layer[layer].q_bias, head * dim, dim);
    rotate(c, q, c->row_position[row]);
}

static const uint8_t *first_page(const struct cpu *c, const struct batch *b, uint32_t layer,
                                 const struct cpu_unit *u)
{
    return key_page(c, b->table[u->sequence][0], layer, u->head / (c->m->heads / c->m->kv_heads));
}

static void attend_unit(struct cpu *c, const struct batch *b, uint32_t layer,
                        const struct cpu_unit *u, const uint8_t *after, float *scratch)
{
    uint32_t dim = c->m->head_dim, kv_head = u->head / (c->m->heads / c->m->kv_heads);
    uint32_t row = b->q_start[u->sequence] + u->row;
    struct attend_call call = {
        .kv = key_page(c, 0, layer, kv_head),
        .form = c->kv_form,
        .block_stride = (size_t)c->m->layers * 2 * cpu_value_offset(c),
        .value_offset = cpu_value_offset(c),
        .after = after,
        .table = b->table[u->sequence],
        .first_position = c->row_position[row],
        .rows = u->rows,
        .heads = u->heads,
        .head_dim = dim,
        .scale = 1.0f / sqrtf((float)dim),
        .q = c->qkv + (size_t)row * c->qkv_size + (size_t)u->head * dim,
        .stride = c->qkv_size,
        .scratch = scratch,
    };

    for (uint32_t i = 0; i < u->rows * u->heads; i++) {
        prepare_query(c, layer, row + i / u->heads, u->head + i % u->heads);
    }
    c->kernels->attend(&call);
    if (dim % KERNEL_BLOCK == 0) {
        for (uint32_t i = 0; i < u->rows; i++) {
            c->kernels->quantize(call.q + i * call.stride, &c->act_q, row + i, u->head * dim,
                                 u->heads * dim);
        }
    }
}

void cpu_attention(struct cpu *c, const struct batch *b, uint32_t layer, unsigned id,
                   unsigned width)
{
    for (;;) { /* long units lie at the end: they go first */
        uint32_t left = atomic_fetch_sub_explicit(&c->next_unit[layer], 1, memory_order_relaxed);
        if (left == 0 || left > c->units) {
            break;
        }
        const struct cpu_unit *u = &c->unit[left - 1];
        attend_unit(c, b, layer, u, left > width ? first_page(c, b, layer, u - width) : NULL,
                    c->thread[id].attend);
    }
    pool_barrier(c->pool, id);
    if (c->m->head_dim % KERNEL_BLOCK != 0) { /* heads share blocks of 32: only now all are there */
        struct cpu_range r = cpu_share(b->rows, id, width);
        for (uint32_t i = r.begin; i < r.end; i++) {
            c->kernels->quantize(c->qkv + (size_t)i * c->qkv_size, &c->act_q, i, 0, c->q_size);
        }
        pool_barrier(c->pool, id);
    }
}

static void add_unit(struct cpu *c, struct cpu_unit u)
{
    c->unit[c->units++] = u;
}

static void list_units(struct cpu *c, const struct batch *b, uint32_t rows_at_once)
{
    uint32_t group = c->m->heads / c->m->kv_heads;

    c->units = 0;
    for (uint32_t s = 0; s < b->sequences; s++) {
        for (uint32_t row = 0; row < b->q_len[s]; row += rows_at_once) {
            uint32_t left = b->q_len[s] - row;
            uint32_t rows = left < rows_at_once ? left : rows_at_once;
            for (uint32_t h = 0; h < c->m->heads; h += group) {
                add_unit(c, (struct cpu_unit){s, row, rows, h, group});
            }
        }
    }
}

/* Cuts the units that no full round of threads would take into pieces of fewer heads. */
static void split_remainder(struct cpu *c, unsigned width)
{
    uint32_t rest = c->units % width;

    if (rest == 0 || c->units >= 4 * width) {
        return;
    }
    uint32_t pieces = (width + rest - 1) / rest, first = c->units - rest;
    struct cpu_unit cut[POOL_THREADS_MAX];
    memcpy(cut, c->unit + first, rest * sizeof(*cut));
    c->units = first;
    for (uint32_t i = 0; i < rest; i++) {
        uint32_t n = pieces < cut[i].heads ? pieces : cut[i].heads;
        for (uint32_t j = 0; j < n; j++) {
            struct cpu_range h = cpu_share(cut[i].heads, j, n);
            struct cpu_unit u = cut[i];
            u.head += h.begin;
            u.heads = h.end - h.begin;
            add_unit(c, u);
        }
    }
}

/* Of rows at once: few enough that all threads have units. */
void cpu_attention_plan(struct cpu *c, const struct batch *b, unsigned width)
{
    uint32_t rows_at_once = CPU_ATTEND_QUERIES / (c->m->heads / c->m->kv_heads);

    rows_at_once = rows_at_once > CPU_ATTEND_ROWS ? CPU_ATTEND_ROWS : rows_at_once;
    rows_at_once = rows_at_once == 0 ? 1 : rows_at_once;
    list_units(c, b, rows_at_once);
    for (; rows_at_once > 1 && c->units < 4 * width; list_units(c, b, rows_at_once)) {
        rows_at_once /= 2;
    }
    split_remainder(c, width);
    for (uint32_t l = 0; l < c->m->layers; l++) {
        atomic_store_explicit(&c->next_unit[l], c->units, memory_order_relaxed);
    }
}
