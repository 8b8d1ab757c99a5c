/* step.c - one forward pass over the batch, by all threads of the pool together.
 *
 * A layer in five barriers for up to CPU_ROWS_OWN rows; one more before each norm's readers for
 * more rows, and one between projection and KV write from CPU_ROWS_SPREAD rows on:
 *   norm, quantise         of few rows each thread makes its own copy; else rows split | barrier
 *   q, k, v                groups of 16 rows split; whoever has a key or value head adds its bias,
 *                          rotates and writes it, but many rows are split anew (| barrier) |
 * barrier attention              units taken by a counter: bias and RoPE of q, quantise      |
 * barrier output + residual      groups split                                                |
 * barrier norm, quantise         as above gate, up, SiLU, quantise   by 32 columns | barrier down +
 * residual        groups split                                                | barrier Who
 * computes what is free: no sum crosses a thread's share. */
#include "worker/cpu/cpu.h"

#include "worker/model/quant.h"

#include <math.h>

_Static_assert(CPU_ROWS_AT_ONCE <= KERNEL_FAST_ROWS_MAX && KERNEL_FAST_ROWS > CPU_ROWS_OWN,
               "rows in bf16 fit one call, and are never a thread's own");

struct range {
    uint32_t begin, end;
};

static struct range share(uint64_t n, unsigned id, unsigned width)
{
    return (struct range){(uint32_t)(n * id / width), (uint32_t)(n * (id + 1) / width)};
}

static uint8_t *key_page(const struct cpu *c, uint32_t block, uint32_t layer, uint32_t kv_head)
{
    const struct model *m = c->m;
    size_t page = ((size_t)block * m->layers + layer) * 2 * m->kv_heads + kv_head;

    return c->kv + page * c->page_bytes;
}

static size_t value_offset(const struct cpu *c)
{
    return c->m->kv_heads * c->page_bytes;
}

static void ahead_begin(struct cpu *c, uint32_t layer, unsigned id, unsigned width)
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
static const uint8_t *ahead_next(const struct cpu *c, struct cpu_ahead *a)
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

void cpu_group(const struct cpu *c, const struct packed *p, uint32_t group, const struct act *a,
               uint32_t first, uint32_t count, float *out, size_t stride, enum gemm_store store,
               const uint8_t *ahead)
{
    struct gemm_call call = {
        .group = p->data + packed_group(p, group),
        .act = a,
        .first = first,
        .count = count,
        .out = out,
        .stride = stride,
        .store = store,
        .ahead = ahead,
        .ahead_gap = value_offset(c),
        .ahead_lines = c->page_bytes / 64,
    };

    (p->form == PACK_4 ? c->kernels->gemm4 : c->kernels->gemm8)(&call);
}

void cpu_groups_fast(const struct cpu *c, const struct packed *p, uint32_t group, uint32_t groups,
                     const struct act *a, uint32_t first, uint32_t count, float *out, size_t stride,
                     enum gemm_store store, uint8_t *scratch)
{
    struct fast_call call = {
        .group = {p->data + packed_group(p, group),
                  groups > 1 ? p->data + packed_group(p, group + 1) : NULL},
        .form = p->form,
        .act = a,
        .first = first,
        .count = count,
        .out = out,
        .stride = stride,
        .store = store,
        .scratch = scratch,
    };

    c->kernels->gemm_fast(&call);
}

/* Groups g.begin .. g.end - 1 of p for all rows; column 0 of the matrix lies at out. */
static void groups(const struct cpu *c, const struct packed *p, struct range g, const struct act *a,
                   uint32_t rows, float *out, size_t stride, enum gemm_store store, unsigned id)
{
    for (uint32_t first = 0; first < rows; first += CPU_ROWS_AT_ONCE) {
        uint32_t count = rows - first < CPU_ROWS_AT_ONCE ? rows - first : CPU_ROWS_AT_ONCE;
        for (uint32_t i = g.begin; a->form == ACT_BF16 && i < g.end; i += 2) {
            cpu_groups_fast(c, p, i, g.end - i, a, first, count,
                            out + first * stride + i * KERNEL_LANES, stride, store,
                            c->thread[id].fast);
        }
        for (uint32_t i = g.begin; a->form == ACT_INT8 && i < g.end; i++) {
            cpu_group(c, p, i, a, first, count, out + first * stride + i * KERNEL_LANES, stride,
                      store, ahead_next(c, &c->thread[id].ahead));
        }
    }
}

/* The normalised, quantised rows (which[i], or all) as this thread shall read them: in `all`, or
 * when they are few in its own. */
static const struct act *norm_rows(struct cpu *c, const float *weight, const uint32_t *which,
                                   uint32_t rows, struct act *all, unsigned id, unsigned width)
{
    struct cpu_thread *t = &c->thread[id];
    uint32_t d = c->m->d;
    bool few = rows <= CPU_ROWS_OWN;
    struct act *a = few ? &t->own : all;
    struct range r = few ? (struct range){0, rows} : share(rows, id, width);

    for (uint32_t i = r.begin; i < r.end; i++) {
        const float *x = c->x + (size_t)(which != NULL ? which[i] : i) * d;
        c->kernels->norm(x, weight, d, c->m->norm_eps, t->row);
        c->kernels->quantize(t->row, a, i, 0, d);
    }
    if (!few) {
        pool_barrier(c->pool, id);
    }
    return a;
}

/* Cuts of q, k and v side by side, in groups; behind q only between heads. */
static uint32_t whole_heads(const struct cpu *c, const struct cpu_layer *l, uint32_t group)
{
    uint32_t head = c->m->head_dim / KERNEL_LANES, q = l->q.groups;

    return group <= q ? group : q + (group - q) / head * head;
}

/* This thread's groups of q, k and v; returns them. */
static struct range project_qkv(struct cpu *c, const struct cpu_layer *l, const struct act *a,
                                uint32_t rows, unsigned id, unsigned width)
{
    const struct packed *const p[] = {&l->q, &l->k, &l->v};
    struct range all = share(l->q.groups + l->k.groups + l->v.groups, id, width);
    uint32_t base = 0;

    all.begin = whole_heads(c, l, all.begin);
    all.end = whole_heads(c, l, all.end);
    for (size_t i = 0; i < ARRAY_LEN(p); i++) {
        uint32_t begin = all.begin > base ? all.begin - base : 0;
        uint32_t end = all.end > base ? all.end - base : 0;
        struct range g = {begin, end < p[i]->groups ? end : p[i]->groups};
        groups(c, p[i], g, a, rows, c->qkv + (size_t)base * KERNEL_LANES, c->qkv_size, GEMM_SET,
               id);
        base += p[i]->groups;
    }
    return all;
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
    uint8_t *page = key_page(c, block, layer, of_page) + (is_key ? 0 : value_offset(c));

    add_bias(x, is_key ? &l->k_bias : &l->v_bias, of_page * dim, dim);
    if (is_key) {
        rotate(c, x, position);
        store_key(c, x, page, position % KERNEL_TILE);
    } else {
        store_value(c, x, page, position % KERNEL_TILE);
    }
}

static void store_kv(struct cpu *c, const struct batch *b, uint32_t layer, struct range mine,
                     unsigned id, unsigned width)
{
    uint32_t heads = 2 * c->m->kv_heads;

    if (b->rows >= CPU_ROWS_SPREAD) {
        pool_barrier(c->pool, id);
        struct range r = share((uint64_t)b->rows * heads, id, width);
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
        .block_stride = (size_t)c->m->layers * 2 * value_offset(c),
        .value_offset = value_offset(c),
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

static void attention(struct cpu *c, const struct batch *b, uint32_t layer, unsigned id,
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
        struct range r = share(b->rows, id, width);
        for (uint32_t i = r.begin; i < r.end; i++) {
            c->kernels->quantize(c->qkv + (size_t)i * c->qkv_size, &c->act_q, i, 0, c->q_size);
        }
        pool_barrier(c->pool, id);
    }
}

/* 32 columns of the feed-forward's inside: gate and up, SiLU, product, quantised. */
static void feed_columns(struct cpu *c, const struct cpu_layer *l, const struct act *a,
                         uint32_t column, uint32_t rows, struct cpu_thread *t)
{
    for (uint32_t first = 0; first < rows; first += CPU_ROWS_AT_ONCE) {
        uint32_t count = rows - first < CPU_ROWS_AT_ONCE ? rows - first : CPU_ROWS_AT_ONCE;
        if (a->form == ACT_BF16) {
            uint32_t group = column / KERNEL_LANES;
            cpu_groups_fast(c, &l->gate, group, 2, a, first, count, t->gate, KERNEL_BLOCK, GEMM_SET,
                            t->fast);
            cpu_groups_fast(c, &l->up, group, 2, a, first, count, t->up, KERNEL_BLOCK, GEMM_SET,
                            t->fast);
        }
        for (uint32_t half = 0; a->form == ACT_INT8 && half < 2; half++) {
            uint32_t group = column / KERNEL_LANES + half;
            cpu_group(c, &l->gate, group, a, first, count, t->gate + half * KERNEL_LANES,
                      KERNEL_BLOCK, GEMM_SET, ahead_next(c, &t->ahead));
            cpu_group(c, &l->up, group, a, first, count, t->up + half * KERNEL_LANES, KERNEL_BLOCK,
                      GEMM_SET, ahead_next(c, &t->ahead));
        }
        c->kernels->silu(t->gate, t->up, count * KERNEL_BLOCK);
        for (uint32_t i = 0; i < count; i++) {
            c->kernels->quantize(t->gate + i * KERNEL_BLOCK, &c->act_ff, first + i, column,
                                 KERNEL_BLOCK);
        }
    }
}

static void layer_forward(struct cpu *c, const struct batch *b, uint32_t index, unsigned id,
                          unsigned width)
{
    const struct cpu_layer *l = &c->layer[index];
    const float *norm = c->norms + (size_t)2 * index * c->m->d;

    const struct act *a = norm_rows(c, norm, NULL, b->rows, &c->act_d, id, width);
    struct range mine = project_qkv(c, l, a, b->rows, id, width);
    store_kv(c, b, index, mine, id, width);
    pool_barrier(c->pool, id);
    c->thread[id].ahead.left = 0;
    attention(c, b, index, id, width);
    groups(c, &l->o, share(l->o.groups, id, width), &c->act_q, b->rows, c->x, c->m->d, GEMM_ADD,
           id);
    pool_barrier(c->pool, id);
    a = norm_rows(c, norm + c->m->d, NULL, b->rows, &c->act_d, id, width);
    ahead_begin(c, index + 1, id, width);
    struct range columns = share(c->m->ff / KERNEL_BLOCK, id, width);
    for (uint32_t i = columns.begin; i < columns.end; i++) {
        feed_columns(c, l, a, i * KERNEL_BLOCK, b->rows, &c->thread[id]);
    }
    pool_barrier(c->pool, id);
    groups(c, &l->down, share(l->down.groups, id, width), &c->act_ff, b->rows, c->x, c->m->d,
           GEMM_ADD, id);
    pool_barrier(c->pool, id);
}

/* The head's last group when the vocabulary is no multiple of 16: through a buffer of whole lanes.
 */
static void head_tail(struct cpu *c, const struct act *a, const struct cpu_step *s, unsigned id)
{
    uint32_t group = c->head.groups - 1, vocab = c->m->vocab, begin = group * KERNEL_LANES;
    float *tail = c->thread[id].tail;

    for (uint32_t first = 0; first < s->b->wanted; first += CPU_ROWS_AT_ONCE) {
        uint32_t left = s->b->wanted - first;
        uint32_t count = left < CPU_ROWS_AT_ONCE ? left : CPU_ROWS_AT_ONCE;
        if (a->form == ACT_BF16) {
            cpu_groups_fast(c, &c->head, group, 1, a, first, count, tail, KERNEL_LANES, GEMM_SET,
                            c->thread[id].fast);
        } else {
            cpu_group(c, &c->head, group, a, first, count, tail, KERNEL_LANES, GEMM_SET, NULL);
        }
        for (uint32_t i = 0; i < count; i++) {
            memcpy(s->logits + (size_t)(first + i) * vocab + begin, tail + i * KERNEL_LANES,
                   (vocab - begin) * sizeof(float));
        }
    }
}

static void head_forward(struct cpu *c, const struct cpu_step *s, unsigned id, unsigned width)
{
    const struct batch *b = s->b;
    uint32_t whole = c->m->vocab / KERNEL_LANES;
    const float *norm = c->norms + (size_t)2 * c->m->layers * c->m->d;
    const struct act *a = norm_rows(c, norm, b->want, b->wanted, &c->act_head, id, width);

    groups(c, &c->head, share(whole, id, width), a, b->wanted, s->logits, c->m->vocab, GEMM_SET,
           id);
    if (whole < c->head.groups && id == width - 1) {
        head_tail(c, a, s, id);
    }
}

void cpu_step_run(void *step, unsigned id, unsigned width)
{
    const struct cpu_step *s = step;
    struct cpu *c = s->c;
    struct range r = share(s->b->rows, id, width);

    for (uint32_t i = r.begin; i < r.end; i++) {
        model_row(&c->m->embed, (uint32_t)s->b->ids[i], c->x + (size_t)i * c->m->d);
    }
    ahead_begin(c, 0, id, width);
    pool_barrier(c->pool, id);
    for (uint32_t l = 0; l < c->m->layers; l++) {
        layer_forward(c, s->b, l, id, width);
    }
    if (s->b->wanted > 0) {
        head_forward(c, s, id, width);
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
            struct range h = share(cut[i].heads, j, n);
            struct cpu_unit u = cut[i];
            u.head += h.begin;
            u.heads = h.end - h.begin;
            add_unit(c, u);
        }
    }
}

static enum act_form form_of(const struct cpu *c, uint32_t rows)
{
    return c->fast && rows >= KERNEL_FAST_ROWS ? ACT_BF16 : ACT_INT8;
}

/* Which matrix kernels this step takes: the layers' by its rows, the head's by the rows wanted. */
static void choose_forms(struct cpu *c, const struct batch *b)
{
    c->act_d.form = c->act_q.form = c->act_ff.form = form_of(c, b->rows);
    c->act_head = c->act_d;
    c->act_head.form = form_of(c, b->wanted);
}

void cpu_step_plan(struct cpu *c, const struct batch *b)
{
    uint32_t group = c->m->heads / c->m->kv_heads;
    uint32_t rows_at_once = CPU_ATTEND_QUERIES / group;
    unsigned width = pool_width(c->pool);

    c->batch = b;
    for (uint32_t s = 0; s < b->sequences; s++) {
        for (uint32_t i = 0; i < b->q_len[s]; i++) {
            c->row_position[b->q_start[s] + i] = b->kv_len[s] - b->q_len[s] + i;
            c->row_sequence[b->q_start[s] + i] = s;
        }
    }
    choose_forms(c, b);
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
