/* step.c - one forward pass over the batch, by all threads of the pool together.
 *
 * A layer in five barriers for up to CPU_ROWS_OWN rows; one more before each norm's readers for
 * more rows, and one between projection and KV write from CPU_ROWS_SPREAD rows on:
 *
 * - norm, quantise: of few rows each thread makes its own copy, else rows are split (barrier);
 * - q, k, v: groups of 16 rows are split; whoever has a key or value head adds its bias, rotates
 *   and writes it, but many rows are split anew (barrier before); barrier;
 * - attention: units are taken by a counter; bias and RoPE of q, then quantise; barrier;
 * - output + residual: groups are split; barrier;
 * - norm, quantise: as above; gate, up, SiLU, quantise: by 32 columns; barrier;
 * - down + residual: groups are split; barrier.
 *
 * Who computes what is free: no sum crosses a thread's share. */
#include "worker/cpu/cpu.h"

#include "worker/model/quant.h"

#include <math.h>

_Static_assert(CPU_ROWS_AT_ONCE <= KERNEL_FAST_ROWS_MAX && KERNEL_FAST_ROWS > CPU_ROWS_OWN,
               "rows in bf16 fit one call, and are never a thread's own");

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
        .ahead_gap = cpu_value_offset(c),
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
static void groups(const struct cpu *c, const struct packed *p, struct cpu_range g,
                   const struct act *a, uint32_t rows, float *out, size_t stride,
                   enum gemm_store store, unsigned id)
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
                      store, cpu_ahead_next(c, &c->thread[id].ahead));
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
    struct cpu_range r = few ? (struct cpu_range){0, rows} : cpu_share(rows, id, width);

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
static struct cpu_range project_qkv(struct cpu *c, const struct cpu_layer *l, const struct act *a,
                                    uint32_t rows, unsigned id, unsigned width)
{
    const struct packed *const p[] = {&l->q, &l->k, &l->v};
    struct cpu_range all = cpu_share(l->q.groups + l->k.groups + l->v.groups, id, width);
    uint32_t base = 0;

    all.begin = whole_heads(c, l, all.begin);
    all.end = whole_heads(c, l, all.end);
    for (size_t i = 0; i < ARRAY_LEN(p); i++) {
        uint32_t begin = all.begin > base ? all.begin - base : 0;
        uint32_t end = all.end > base ? all.end - base : 0;
        struct cpu_range g = {begin, end < p[i]->groups ? end : p[i]->groups};
        groups(c, p[i], g, a, rows, c->qkv + (size_t)base * KERNEL_LANES, c->qkv_size, GEMM_SET,
               id);
        base += p[i]->groups;
    }
    return all;
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
                      KERNEL_BLOCK, GEMM_SET, cpu_ahead_next(c, &t->ahead));
            cpu_group(c, &l->up, group, a, first, count, t->up + half * KERNEL_LANES, KERNEL_BLOCK,
                      GEMM_SET, cpu_ahead_next(c, &t->ahead));
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
    struct cpu_range mine = project_qkv(c, l, a, b->rows, id, width);
    cpu_store_kv(c, b, index, mine, id, width);
    pool_barrier(c->pool, id);
    c->thread[id].ahead.left = 0;
    cpu_attention(c, b, index, id, width);
    groups(c, &l->o, cpu_share(l->o.groups, id, width), &c->act_q, b->rows, c->x, c->m->d, GEMM_ADD,
           id);
    pool_barrier(c->pool, id);
    a = norm_rows(c, norm + c->m->d, NULL, b->rows, &c->act_d, id, width);
    cpu_ahead_begin(c, index + 1, id, width);
    struct cpu_range columns = cpu_share(c->m->ff / KERNEL_BLOCK, id, width);
    for (uint32_t i = columns.begin; i < columns.end; i++) {
        feed_columns(c, l, a, i * KERNEL_BLOCK, b->rows, &c->thread[id]);
    }
    pool_barrier(c->pool, id);
    groups(c, &l->down, cpu_share(l->down.groups, id, width), &c->act_ff, b->rows, c->x, c->m->d,
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

    groups(c, &c->head, cpu_share(whole, id, width), a, b->wanted, s->logits, c->m->vocab, GEMM_SET,
           id);
    if (whole < c->head.groups && id == width - 1) {
        head_tail(c, a, s, id);
    }
}

void cpu_step_run(void *step, unsigned id, unsigned width)
{
    const struct cpu_step *s = step;
    struct cpu *c = s->c;
    struct cpu_range r = cpu_share(s->b->rows, id, width);

    for (uint32_t i = r.begin; i < r.end; i++) {
        model_row(&c->m->embed, (uint32_t)s->b->ids[i], c->x + (size_t)i * c->m->d);
    }
    cpu_ahead_begin(c, 0, id, width);
    pool_barrier(c->pool, id);
    for (uint32_t l = 0; l < c->m->layers; l++) {
        layer_forward(c, s->b, l, id, width);
    }
    if (s->b->wanted > 0) {
        head_forward(c, s, id, width);
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
    c->batch = b;
    for (uint32_t s = 0; s < b->sequences; s++) {
        for (uint32_t i = 0; i < b->q_len[s]; i++) {
            c->row_position[b->q_start[s] + i] = b->kv_len[s] - b->q_len[s] + i;
            c->row_sequence[b->q_start[s] + i] = s;
        }
    }
    choose_forms(c, b);
    cpu_attention_plan(c, b, pool_width(c->pool));
}
