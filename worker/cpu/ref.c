/* ref.c - the oracle: a Llama-family forward pass in float32 on dequantised weights, one thread.
 *
 * Written to be read and believed, not to be fast: each matrix row is dequantised once a step and
 * multiplied with all rows of the batch. Every sum runs in one order that depends on neither the
 * batch nor its split, so this backend too equals itself bit for bit however work is cut.
 * KV pages [block][layer][2][kv_heads][32][head_dim], float32. */
#include "worker/backend.h"

#include "worker/model/quant.h"

#include <math.h>
#include <stdio.h>

#define BLOCK_TOKENS 32u
#define LANES 16u
#define ROWS_AT_ONCE 16u /* of a matrix, dequantised and then multiplied with every token */

struct ref {
    struct backend base;   /* first */
    const struct model *m; /* borrowed */
    uint32_t rows_max, blocks;
    uint32_t q_size, kv_size; /* heads * head_dim, kv_heads * head_dim */
    float *kv;
    float *rope;      /* [context][head_dim/2][2] */
    float *x, *h;     /* [rows_max][d] */
    float *q, *att;   /* [rows_max][q_size] */
    float *k, *v;     /* [rows_max][kv_size] */
    float *gate, *up; /* [rows_max][ff] */
    float *wide;      /* [ROWS_AT_ONCE][widest matrix] dequantised rows */
    float *score;     /* [context] */
    char text[64];
};

typedef float four
    __attribute__((vector_size(16))); /* plain C's way to say: four sums side by side */

static four load_four(const float *p)
{
    four v;

    memcpy(&v, p, sizeof(v));
    return v;
}

/* Sixteen running sums, then a fixed tree. Columns past the last sixteen go to the first lanes. */
static float dot(const float *a, const float *b, uint32_t n)
{
    four s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    float acc[LANES];
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        s0 += load_four(a + i) * load_four(b + i);
        s1 += load_four(a + i + 4) * load_four(b + i + 4);
        s2 += load_four(a + i + 8) * load_four(b + i + 8);
        s3 += load_four(a + i + 12) * load_four(b + i + 12);
    }
    memcpy(acc, &s0, sizeof(s0));
    memcpy(acc + 4, &s1, sizeof(s1));
    memcpy(acc + 8, &s2, sizeof(s2));
    memcpy(acc + 12, &s3, sizeof(s3));
    for (uint32_t j = 0; i + j < n; j++) {
        acc[j] += a[i + j] * b[i + j];
    }
    for (uint32_t half = LANES / 2; half > 0; half /= 2) {
        for (uint32_t j = 0; j < half; j++) {
            acc[j] += acc[j + half];
        }
    }
    return acc[0];
}

static float bias_at(const struct weight *bias, uint32_t i)
{
    float b = 0;

    if (bias != NULL && bias->data != NULL) {
        memcpy(&b, bias->data + i * sizeof(b), sizeof(b));
    }
    return b;
}

/* out[t][rows] = W in[t] (+ bias) for t < n; in has rows of w->columns, out of w->rows. */
static void multiply(struct ref *r, const struct weight *w, const struct weight *bias,
                     const float *in, uint32_t n, float *out)
{
    for (uint32_t first = 0; first < w->rows; first += ROWS_AT_ONCE) {
        uint32_t count = w->rows - first < ROWS_AT_ONCE ? w->rows - first : ROWS_AT_ONCE;
        for (uint32_t i = 0; i < count; i++) {
            model_row(w, first + i, r->wide + (uint64_t)i * w->columns);
        }
        for (uint32_t t = 0; t < n; t++) {
            float *to = out + (uint64_t)t * w->rows + first;
            for (uint32_t i = 0; i < count; i++) {
                to[i] = dot(r->wide + (uint64_t)i * w->columns, in + (uint64_t)t * w->columns,
                            w->columns) +
                        bias_at(bias, first + i);
            }
        }
    }
}

static void norm(const struct ref *r, const struct weight *w, const float *in, float *out)
{
    uint32_t d = r->m->d;
    float scale = 1.0f / sqrtf(dot(in, in, d) / (float)d + r->m->norm_eps);

    for (uint32_t i = 0; i < d; i++) {
        float g;
        memcpy(&g, w->data + i * sizeof(g), sizeof(g));
        out[i] = in[i] * scale * g;
    }
}

static void rotate(const struct ref *r, float *head, uint32_t position)
{
    uint32_t half = r->m->head_dim / 2;
    const float *table = r->rope + (uint64_t)position * half * 2;

    for (uint32_t i = 0; i < half; i++) {
        float *a = r->m->rope == MODEL_ROPE_PAIRS ? head + 2 * i : head + i;
        float *b = r->m->rope == MODEL_ROPE_PAIRS ? head + 2 * i + 1 : head + i + half;
        float c = table[2 * i], s = table[2 * i + 1], u = *a, v = *b;
        *a = u * c - v * s;
        *b = u * s + v * c;
    }
}

static float *kv_at(const struct ref *r, uint32_t block, uint32_t layer, uint32_t is_v,
                    uint32_t head, uint32_t slot)
{
    const struct model *m = r->m;
    uint64_t page = (uint64_t)block * m->layers + layer;

    return r->kv + (((page * 2 + is_v) * m->kv_heads + head) * BLOCK_TOKENS + slot) * m->head_dim;
}

static uint32_t position_of(const struct batch *b, uint32_t s, uint32_t i)
{
    return b->kv_len[s] - b->q_len[s] + i;
}

static void store_kv(struct ref *r, const struct batch *b, uint32_t layer)
{
    const struct model *m = r->m;

    for (uint32_t s = 0; s < b->sequences; s++) {
        for (uint32_t i = 0; i < b->q_len[s]; i++) {
            uint32_t pos = position_of(b, s, i);
            uint64_t row = b->q_start[s] + i;
            uint32_t block = b->table[s][pos / BLOCK_TOKENS];
            for (uint32_t h = 0; h < m->heads; h++) {
                rotate(r, r->q + row * r->q_size + h * m->head_dim, pos);
            }
            for (uint32_t h = 0; h < m->kv_heads; h++) {
                float *k = r->k + row * r->kv_size + h * m->head_dim;
                float *v = r->v + row * r->kv_size + h * m->head_dim;
                rotate(r, k, pos);
                memcpy(kv_at(r, block, layer, 0, h, pos % BLOCK_TOKENS), k,
                       m->head_dim * sizeof(*k));
                memcpy(kv_at(r, block, layer, 1, h, pos % BLOCK_TOKENS), v,
                       m->head_dim * sizeof(*v));
            }
        }
    }
}

/* One query head against keys 0 .. count-1. */
static void attend(struct ref *r, const uint32_t *table, uint32_t layer, uint32_t kv_head,
                   uint32_t count, const float *q, float *out)
{
    uint32_t dim = r->m->head_dim;
    float scale = 1.0f / sqrtf((float)dim), top = -INFINITY, sum = 0;

    for (uint32_t t = 0; t < count; t++) {
        const float *k = kv_at(r, table[t / BLOCK_TOKENS], layer, 0, kv_head, t % BLOCK_TOKENS);
        r->score[t] = dot(q, k, dim) * scale;
        top = fmaxf(top, r->score[t]);
    }
    memset(out, 0, dim * sizeof(*out));
    for (uint32_t t = 0; t < count; t++) {
        const float *v = kv_at(r, table[t / BLOCK_TOKENS], layer, 1, kv_head, t % BLOCK_TOKENS);
        float p = expf(r->score[t] - top);
        sum += p;
        for (uint32_t i = 0; i < dim; i++) {
            out[i] += p * v[i];
        }
    }
    for (uint32_t i = 0; i < dim; i++) {
        out[i] /= sum;
    }
}

static void attention(struct ref *r, const struct batch *b, uint32_t layer)
{
    const struct model *m = r->m;
    uint32_t group = m->heads / m->kv_heads;

    for (uint32_t s = 0; s < b->sequences; s++) {
        for (uint32_t i = 0; i < b->q_len[s]; i++) {
            uint64_t at = (uint64_t)(b->q_start[s] + i) * r->q_size;
            for (uint32_t h = 0; h < m->heads; h++) {
                attend(r, b->table[s], layer, h / group, position_of(b, s, i) + 1,
                       r->q + at + h * m->head_dim, r->att + at + h * m->head_dim);
            }
        }
    }
}

static void norm_rows(struct ref *r, const struct weight *w, uint32_t n)
{
    for (uint32_t t = 0; t < n; t++) {
        norm(r, w, r->x + (uint64_t)t * r->m->d, r->h + (uint64_t)t * r->m->d);
    }
}

static void add_rows(struct ref *r, uint32_t n)
{
    for (uint64_t i = 0; i < (uint64_t)n * r->m->d; i++) {
        r->x[i] += r->h[i];
    }
}

static void layer_forward(struct ref *r, const struct batch *b, uint32_t index)
{
    const struct model_layer *l = &r->m->layer[index];

    norm_rows(r, &l->attn_norm, b->rows);
    multiply(r, &l->q, &l->q_bias, r->h, b->rows, r->q);
    multiply(r, &l->k, &l->k_bias, r->h, b->rows, r->k);
    multiply(r, &l->v, &l->v_bias, r->h, b->rows, r->v);
    store_kv(r, b, index);
    attention(r, b, index);
    multiply(r, &l->o, NULL, r->att, b->rows, r->h);
    add_rows(r, b->rows);
    norm_rows(r, &l->ffn_norm, b->rows);
    multiply(r, &l->gate, NULL, r->h, b->rows, r->gate);
    multiply(r, &l->up, NULL, r->h, b->rows, r->up);
    for (uint64_t i = 0; i < (uint64_t)b->rows * r->m->ff; i++) {
        float g = r->gate[i];
        r->gate[i] = g / (1.0f + expf(-g)) * r->up[i];
    }
    multiply(r, &l->down, NULL, r->gate, b->rows, r->h);
    add_rows(r, b->rows);
}

static void check_batch(const struct ref *r, const struct batch *b)
{
    CHECK(b->rows >= 1 && b->rows <= r->rows_max);
    for (uint32_t s = 0; s < b->sequences; s++) {
        CHECK(b->q_len[s] >= 1 && b->q_len[s] <= b->kv_len[s] && b->kv_len[s] <= r->m->context);
        CHECK(b->q_start[s] <= b->rows && b->q_len[s] <= b->rows - b->q_start[s]);
        for (uint32_t i = 0; i * BLOCK_TOKENS < b->kv_len[s]; i++) {
            CHECK(b->table[s][i] < r->blocks);
        }
    }
}

static void ref_forward(struct backend *base, const struct batch *b, float *logits)
{
    struct ref *r = (struct ref *)base;
    uint32_t d = r->m->d;

    check_batch(r, b);
    for (uint32_t t = 0; t < b->rows; t++) {
        CHECK(b->ids[t] >= 0 && (uint32_t)b->ids[t] < r->m->vocab);
        model_row(&r->m->embed, (uint32_t)b->ids[t], r->x + (uint64_t)t * d);
    }
    for (uint32_t l = 0; l < r->m->layers; l++) {
        layer_forward(r, b, l);
    }
    for (uint32_t i = 0; i < b->wanted; i++) {
        CHECK(b->want[i] < b->rows);
        norm(r, &r->m->out_norm, r->x + (uint64_t)b->want[i] * d, r->h + (uint64_t)i * d);
    }
    if (b->wanted > 0) {
        multiply(r, &r->m->head, NULL, r->h, b->wanted, logits);
    }
}

static uint64_t ref_kv_block_bytes(const struct backend *base)
{
    const struct ref *r = (const struct ref *)base;

    return (uint64_t)r->m->layers * 2 * r->kv_size * BLOCK_TOKENS * sizeof(float);
}

static bool ref_kv_init(struct backend *base, uint32_t blocks, struct err *e)
{
    struct ref *r = (struct ref *)base;

    mem_free(r->kv);
    r->blocks = 0;
    r->kv = mem_try(blocks, ref_kv_block_bytes(base));
    if (r->kv == NULL) {
        return err_set(e, ERR_NO_MEMORY, "no memory for %u KV blocks of %llu bytes", blocks,
                       (unsigned long long)ref_kv_block_bytes(base));
    }
    r->blocks = blocks;
    return true;
}

static void ref_kv_copy(struct backend *base, uint32_t dst, uint32_t src)
{
    struct ref *r = (struct ref *)base;
    uint64_t floats = ref_kv_block_bytes(base) / sizeof(float);

    CHECK(dst < r->blocks && src < r->blocks && dst != src);
    memcpy(r->kv + dst * floats, r->kv + src * floats, floats * sizeof(float));
}

static struct backend_peaks ref_peaks(struct backend *base)
{
    (void)base;
    return (struct backend_peaks){0, 0}; /* an oracle has no roof to be measured against */
}

static const char *ref_describe(const struct backend *base)
{
    return ((const struct ref *)base)->text;
}

static void ref_close(struct backend *base)
{
    struct ref *r = (struct ref *)base;
    float *const owned[] = {r->kv, r->rope, r->x,    r->h,  r->q,    r->att,
                            r->k,  r->v,    r->gate, r->up, r->wide, r->score};

    for (size_t i = 0; i < ARRAY_LEN(owned); i++) {
        mem_free(owned[i]);
    }
    mem_free(r);
}

static bool allocate(struct ref *r)
{
    const struct model *m = r->m;
    size_t widest = size_max(size_max(m->d, m->ff), r->q_size);
    const struct {
        float **p;
        size_t count;
    } table[] = {
        {&r->x, m->d},       {&r->h, m->d},       {&r->q, r->q_size}, {&r->att, r->q_size},
        {&r->k, r->kv_size}, {&r->v, r->kv_size}, {&r->gate, m->ff},  {&r->up, m->ff},
    };

    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        *table[i].p = mem_try(r->rows_max, table[i].count * sizeof(float));
        if (*table[i].p == NULL) {
            return false;
        }
    }
    r->wide = mem_try(widest, ROWS_AT_ONCE * sizeof(float));
    r->score = mem_try(m->context, sizeof(float));
    r->rope = mem_try(m->context, (size_t)m->head_dim * sizeof(float));
    return r->wide != NULL && r->score != NULL && r->rope != NULL;
}

struct backend *backend_ref_open(const struct model *m, const struct backend_options *o,
                                 struct err *e)
{
    static const struct backend_ops ops = {
        .name = "ref",
        .kv_init = ref_kv_init,
        .kv_copy = ref_kv_copy,
        .forward = ref_forward,
        .kv_block_bytes = ref_kv_block_bytes,
        .peaks = ref_peaks,
        .describe = ref_describe,
        .close = ref_close,
    };
    struct ref *r = mem_new(sizeof(*r));

    CHECK(o->rows_max >= 1);
    r->base.ops = &ops;
    r->m = m;
    r->rows_max = o->rows_max;
    r->q_size = m->heads * m->head_dim;
    r->kv_size = m->kv_heads * m->head_dim;
    snprintf(r->text, sizeof(r->text), "ref: float32, 1 thread, float32 KV");
    if (!allocate(r)) {
        err_set(e, ERR_NO_MEMORY, "no memory for %u rows of activations", o->rows_max);
        ref_close(&r->base);
        return NULL;
    }
    model_rope_table(m, r->rope);
    return &r->base;
}
