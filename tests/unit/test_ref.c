/* test_ref.c - the oracle equals a naive double-precision pass, and itself however work is cut.
 * Its numbers on a real model: tests/golden/golden_engine.c. */
#include "worker/backend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/unit/drive.h"
#include "tests/unit/tiny_model.h"
#include "worker/model/quant.h"

#define TOKENS 70u
#define ROWS_MAX 128u
#define WIDEST 256u /* any vector of the tiny model but the logits */

static struct model *open_tiny(const struct tiny_options *o)
{
    char path[64];
    struct err e = {0};

    snprintf(path, sizeof(path), "/tmp/test_ref.%d.gguf", (int)getpid());
    assert_true(tiny_model_write_as(path, o));
    struct model *m = model_open(path, &e);
    unlink(path);
    assert_non_null(m);
    return m;
}

static struct backend *open_ref(const struct model *m)
{
    struct err e = {0};
    struct backend_options o = {.threads = 1, .rows_max = ROWS_MAX};
    struct backend *b = backend_ref_open(m, &o, &e);

    assert_true(b != NULL && b->ops->kv_init(b, 4 * DRIVE_BLOCKS_MAX, &e));
    return b;
}

static void fill_ids(int32_t *ids, uint32_t n, uint32_t vocab)
{
    uint32_t x = 12345;

    for (uint32_t i = 0; i < n; i++) {
        x = x * 1664525 + 1013904223;
        ids[i] = (int32_t)((x >> 8) % vocab);
    }
}

/* The naive pass: one token at a time, double precision, whole history in two arrays. */
struct naive {
    const struct model *m;
    double k[2][TOKENS][32], v[2][TOKENS][32];
};

static void naive_multiply(const struct weight *w, const struct weight *bias, const double *x,
                           double *y)
{
    float row[WIDEST], b = 0;

    for (uint32_t i = 0; i < w->rows; i++) {
        model_row(w, i, row);
        if (bias != NULL && bias->data != NULL) {
            memcpy(&b, bias->data + 4 * i, sizeof(b));
        }
        y[i] = (double)b;
        for (uint32_t j = 0; j < w->columns; j++) {
            y[i] += (double)row[j] * x[j];
        }
    }
}

static void naive_norm(const struct model *m, const struct weight *w, const double *x, double *y)
{
    double sum = 0;
    float g[WIDEST];

    model_row(w, 0, g);
    for (uint32_t i = 0; i < m->d; i++) {
        sum += x[i] * x[i];
    }
    for (uint32_t i = 0; i < m->d; i++) {
        y[i] = x[i] / sqrt(sum / m->d + (double)m->norm_eps) * (double)g[i];
    }
}

static void naive_rotate(const struct model *m, double *x, uint32_t heads, uint32_t position)
{
    uint32_t half = m->head_dim / 2;

    for (uint32_t h = 0; h < heads; h++, x += m->head_dim) {
        for (uint32_t i = 0; i < half; i++) {
            double a = position * pow((double)m->rope_base, -(double)i / half);
            uint32_t p = m->rope == MODEL_ROPE_PAIRS ? 2 * i : i;
            uint32_t q = m->rope == MODEL_ROPE_PAIRS ? 2 * i + 1 : i + half;
            double u = x[p], v = x[q];
            x[p] = u * cos(a) - v * sin(a);
            x[q] = u * sin(a) + v * cos(a);
        }
    }
}

static void naive_attend(const struct naive *n, uint32_t layer, uint32_t position, const double *q,
                         double *out)
{
    const struct model *m = n->m;

    for (uint32_t h = 0; h < m->heads; h++) {
        uint32_t at = h / (m->heads / m->kv_heads) * m->head_dim;
        double score[TOKENS], sum = 0;
        double *o = out + h * m->head_dim;
        for (uint32_t t = 0; t <= position; t++) {
            score[t] = 0;
            for (uint32_t i = 0; i < m->head_dim; i++) {
                score[t] += q[h * m->head_dim + i] * n->k[layer][t][at + i];
            }
            score[t] = exp(score[t] / sqrt(m->head_dim));
            sum += score[t];
        }
        for (uint32_t i = 0; i < m->head_dim; i++) {
            o[i] = 0;
            for (uint32_t t = 0; t <= position; t++) {
                o[i] += score[t] / sum * n->v[layer][t][at + i];
            }
        }
    }
}

static void naive_token(struct naive *n, int32_t id, uint32_t position, double *logits)
{
    const struct model *m = n->m;
    float row[WIDEST];
    double x[WIDEST], h[WIDEST], q[WIDEST], o[WIDEST], up[WIDEST];

    model_row(&m->embed, (uint32_t)id, row);
    for (uint32_t i = 0; i < m->d; i++) {
        x[i] = (double)row[i];
    }
    for (uint32_t l = 0; l < m->layers; l++) {
        const struct model_layer *w = &m->layer[l];
        naive_norm(m, &w->attn_norm, x, h);
        naive_multiply(&w->q, &w->q_bias, h, q);
        naive_multiply(&w->k, &w->k_bias, h, n->k[l][position]);
        naive_multiply(&w->v, &w->v_bias, h, n->v[l][position]);
        naive_rotate(m, q, m->heads, position);
        naive_rotate(m, n->k[l][position], m->kv_heads, position);
        naive_attend(n, l, position, q, o);
        naive_multiply(&w->o, NULL, o, h);
        for (uint32_t i = 0; i < m->d; i++) {
            x[i] += h[i];
        }
        naive_norm(m, &w->ffn_norm, x, h);
        naive_multiply(&w->gate, NULL, h, q);
        naive_multiply(&w->up, NULL, h, up);
        for (uint32_t i = 0; i < m->ff; i++) {
            q[i] = q[i] / (1 + exp(-q[i])) * up[i];
        }
        naive_multiply(&w->down, NULL, q, h);
        for (uint32_t i = 0; i < m->d; i++) {
            x[i] += h[i];
        }
    }
    naive_norm(m, &m->out_norm, x, h);
    naive_multiply(&m->head, NULL, h, logits);
}

static void compare_with_naive(const struct tiny_options *o)
{
    struct model *m = open_tiny(o);
    struct backend *b = open_ref(m);
    struct naive *n = calloc(1, sizeof(*n));
    int32_t ids[TOKENS];
    float *got = calloc((size_t)TOKENS * m->vocab, sizeof(*got));
    double *want = calloc(m->vocab, sizeof(*want));
    struct drive_seq s;

    assert_true(n != NULL && got != NULL && want != NULL);
    n->m = m;
    fill_ids(ids, TOKENS, m->vocab);
    drive_seq_init(&s, 3, 2);
    drive_prompt(b, &s, ids, TOKENS, ROWS_MAX, m->vocab, DRIVE_ALL, got);
    for (uint32_t t = 0; t < TOKENS; t++) {
        naive_token(n, ids[t], t, want);
        for (uint32_t i = 0; i < m->vocab; i++) {
            double d = fabs(want[i] - (double)got[(size_t)t * m->vocab + i]);
            if (!(d < 1e-3)) { /* logits of up to 30; float32 keeps 2e-6 of them an operation */
                fail_msg("token %u, logit %u: %.6f, not %.6f", t, i,
                         (double)got[(size_t)t * m->vocab + i], want[i]);
            }
        }
    }
    free(n);
    free(got);
    free(want);
    b->ops->close(b);
    model_close(m);
}

static void ref_equals_a_naive_pass_in_double_precision(void **state)
{
    static const struct tiny_options table[] = {
        {.seed = 1, .matrix_type = QUANT_Q4_1, .embed_type = QUANT_Q8_0},
        {.seed = 2, .matrix_type = QUANT_F32, .embed_type = QUANT_F32, .untied = true},
        {.seed = 3, .matrix_type = QUANT_Q5_0, .embed_type = QUANT_Q8_0, .qwen2 = true},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        compare_with_naive(&table[i]);
    }
}

static void ref_gives_the_same_bits_however_work_is_cut(void **state)
{
    static const uint32_t chunks[] = {1, 7, 31, 32, 33, 64};
    struct tiny_options o = {.seed = 4, .matrix_type = QUANT_Q4_1, .embed_type = QUANT_Q8_0};
    struct model *m = open_tiny(&o);
    struct backend *b = open_ref(m);
    int32_t ids[TOKENS];
    size_t bytes = (size_t)TOKENS * m->vocab * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes);
    struct drive_seq s;

    (void)state;
    assert_true(want != NULL && got != NULL);
    fill_ids(ids, TOKENS, m->vocab);
    drive_seq_init(&s, 0, 1);
    drive_prompt(b, &s, ids, TOKENS, ROWS_MAX, m->vocab, DRIVE_ALL, want);
    for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
        drive_seq_init(&s, 100, 2);
        memset(got, 0, bytes);
        drive_prompt(b, &s, ids, TOKENS, chunks[i], m->vocab, DRIVE_ALL, got);
        assert_memory_equal(got, want, bytes);
    }
    free(want);
    free(got);
    b->ops->close(b);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ref_equals_a_naive_pass_in_double_precision),
        cmocka_unit_test(ref_gives_the_same_bits_however_work_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
