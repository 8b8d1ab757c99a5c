/* test_attend.c - attention of each level: the same bits, close to double precision, and blind to
 * what lies past a query's position. */
#include "worker/cpu/cpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "worker/model/quant.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include "worker/cpu/attend_avx512bf16.h"
#endif

#define BLOCKS 4u
#define ROWS_MAX 17u
#define HEADS_MAX 9u
#define DIM_MAX 256u

static const enum backend_level levels[] = {BACKEND_LEVEL_AVX2, BACKEND_LEVEL_AVX512,
                                            BACKEND_LEVEL_AVX512BF16, BACKEND_LEVEL_AMX};

struct shape {
    enum kv_form form;
    uint32_t dim, heads, rows, first;
};

struct fixture {
    struct shape s;
    uint32_t table[BLOCKS];
    float key[BLOCKS * KERNEL_TILE][DIM_MAX], value[BLOCKS * KERNEL_TILE][DIM_MAX]; /* as stored */
    float q[ROWS_MAX][HEADS_MAX * DIM_MAX];
    _Alignas(64) uint8_t kv[BLOCKS * 2 * (2 * KERNEL_TILE * DIM_MAX)];
    _Alignas(64) float scratch[4 * KERNEL_TILE * DIM_MAX + ROWS_MAX * HEADS_MAX * 4 * DIM_MAX];
};

static uint32_t next(uint64_t *x)
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*x >> 33);
}

static float uniform(uint64_t *x) /* -1 .. 1 */
{
    return (float)next(x) / (float)(1u << 30) - 1.0f;
}

static uint8_t *page_of(struct fixture *f, uint32_t token, bool is_value)
{
    size_t bytes = kernel_page_bytes(f->s.form, f->s.dim);

    return f->kv + ((size_t)f->table[token / KERNEL_TILE] * 2 + is_value) * bytes;
}

/* Column i of a token, as kernels.h lays it out. */
static size_t place(uint32_t token, uint32_t i, bool is_value, uint32_t dim)
{
    uint32_t slot = token % KERNEL_TILE;

    return is_value ? ((size_t)slot / 2 * dim + i) * 2 + slot % 2
                    : ((size_t)i / 2 * KERNEL_TILE + slot) * 2 + i % 2;
}

static void store(struct fixture *f, uint32_t token, bool is_value, const float *x, float *stored)
{
    uint8_t *page = page_of(f, token, is_value);
    uint16_t scale = quant_to_bf16(1.0f / 64);

    for (uint32_t i = 0; i < f->s.dim; i++) {
        size_t at = place(token, i, is_value, f->s.dim);
        if (f->s.form == KV_BF16) {
            uint16_t h = quant_to_bf16(x[i]);
            memcpy(page + 2 * at, &h, sizeof(h));
            stored[i] = quant_bf16(h);
        } else {
            int8_t n = (int8_t)lrintf(x[i] * 63);
            page[at] = (uint8_t)n;
            stored[i] = (float)n * quant_bf16(scale);
        }
    }
    if (f->s.form == KV_INT8) {
        memcpy(page + KERNEL_TILE * f->s.dim + 2 * (token % KERNEL_TILE), &scale, sizeof(scale));
    }
}

/* Values of which some are too small for a normal float, times each other and alone. */
static float some_value(uint64_t *x, bool tiny)
{
    float v = uniform(x);

    return !tiny ? v : next(x) % 3 == 0 ? v * 1e-39f : v * 1e-20f;
}

static void fill(struct fixture *f, struct shape s, uint64_t seed, bool tiny)
{
    float x[DIM_MAX];

    f->s = s;
    memset(f->kv, 0xFF, sizeof(f->kv)); /* bf16: not a number; so are the int8 scales */
    for (uint32_t b = 0; b < BLOCKS; b++) {
        f->table[b] = (b + 1) % BLOCKS;
    }
    for (uint32_t token = 0; token < s.first + s.rows; token++) {
        for (unsigned is_value = 0; is_value < 2; is_value++) {
            for (uint32_t i = 0; i < s.dim; i++) {
                x[i] = some_value(&seed, tiny);
            }
            store(f, token, is_value, x, is_value ? f->value[token] : f->key[token]);
        }
    }
    for (uint32_t row = 0; row < s.rows; row++) {
        for (uint32_t i = 0; i < s.heads * s.dim; i++) {
            f->q[row][i] = 4 * some_value(&seed, tiny && next(&seed) % 2 == 0);
        }
    }
}

static void attend(struct fixture *f, const struct kernels *k, uint32_t row, uint32_t rows,
                   float out[][HEADS_MAX * DIM_MAX])
{
    size_t page = kernel_page_bytes(f->s.form, f->s.dim);
    struct attend_call call = {
        .kv = f->kv,
        .form = f->s.form,
        .block_stride = 2 * page,
        .value_offset = page,
        .after = row % 2 == 0 ? f->kv : NULL,
        .table = f->table,
        .first_position = f->s.first + row,
        .rows = rows,
        .heads = f->s.heads,
        .head_dim = f->s.dim,
        .scale = 1.0f / sqrtf((float)f->s.dim),
        .q = &out[0][0],
        .stride = HEADS_MAX * DIM_MAX,
        .scratch = f->scratch,
    };

    assert_true(kernel_attend_scratch(rows * f->s.heads, f->s.dim) * sizeof(float) <=
                sizeof(f->scratch));
    memcpy(out, f->q[row], rows * sizeof(f->q[0]));
    k->attend(&call);
}

static double plain_column(const struct fixture *f, uint32_t row, uint32_t head, uint32_t column)
{
    const float *q = f->q[row] + (size_t)head * f->s.dim;
    uint32_t keys = f->s.first + row + 1;
    double sum = 0, out = 0;

    for (uint32_t k = 0; k < keys; k++) { /* scores are small: no maximum is needed */
        double score = 0;
        for (uint32_t i = 0; i < f->s.dim; i++) {
            score += (double)q[i] * (double)f->key[k][i];
        }
        double weight = exp(score / sqrt((double)f->s.dim));
        sum += weight;
        out += weight * (double)f->value[k][column];
    }
    return out / sum;
}

/* Rounding the query moves a score by 2^-9 of the sum of its terms' sizes, about 2 here; rounding a
 * weight by 2^-9 of itself; values are below 1. */
#define TOLERANCE (3.0 / 256)

static void close_to_double(struct fixture *f, float got[][HEADS_MAX * DIM_MAX])
{
    for (uint32_t row = 0; row < f->s.rows; row++) {
        for (uint32_t i = 0; i < f->s.heads * f->s.dim; i += 5) {
            double want = plain_column(f, row, i / f->s.dim, i % f->s.dim);
            if (!(fabs((double)got[row][i] - want) <= TOLERANCE)) {
                fail_msg("form %d, dim %u, first %u: row %u column %u gives %g, not %g",
                         (int)f->s.form, f->s.dim, f->s.first, row, i, (double)got[row][i], want);
            }
        }
    }
}

static void same_bits(struct fixture *f, const struct kernels *k, float want[][HEADS_MAX * DIM_MAX])
{
    static float got[ROWS_MAX][HEADS_MAX * DIM_MAX];
    size_t bytes = f->s.heads * f->s.dim * sizeof(float);

    attend(f, k, 0, f->s.rows, got);
    for (uint32_t row = 0; row < f->s.rows; row++) {
        assert_memory_equal(got[row], want[row], bytes);
    }
    for (uint32_t row = 0; row < f->s.rows; row++) { /* each row alone */
        attend(f, k, row, 1, got);
        assert_memory_equal(got[0], want[row], bytes);
    }
}

static void each_level(struct fixture *f, struct shape s, uint64_t seed, bool tiny)
{
    static float want[ROWS_MAX][HEADS_MAX * DIM_MAX];
    struct err e = {0};
    const struct kernels *portable = cpu_level_kernels(BACKEND_LEVEL_PORTABLE, &e);

    fill(f, s, seed, tiny);
    attend(f, portable, 0, s.rows, want);
    if (!tiny) {
        close_to_double(f, want);
    }
    same_bits(f, portable, want);
    for (size_t l = 0; l < ARRAY_LEN(levels); l++) {
        const struct kernels *k = cpu_level_kernels(levels[l], &e);
        if (k != NULL) {
            same_bits(f, k, want);
        }
    }
}

static void every_shape(struct fixture *f, bool tiny)
{
    static const uint32_t dims[] = {16, 48, 64, 256}, firsts[] = {0, 1, 30, 31, 32, 70};
    static const uint32_t rows[] = {1, 2, 5, ROWS_MAX}, groups[] = {1, 2, 3, 4, 9};
    uint64_t seed = 1;

    for (size_t d = 0; d < ARRAY_LEN(dims); d++) {
        for (size_t p = 0; p < ARRAY_LEN(firsts); p++) {
            for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
                uint32_t heads = groups[(d + p + r) % ARRAY_LEN(groups)];
                struct shape s = {KV_BF16, dims[d], heads, rows[r], firsts[p]};
                each_level(f, s, seed++, tiny);
                s.form = KV_INT8;
                each_level(f, s, seed++, tiny);
            }
        }
    }
}

static void levels_agree_and_are_close_to_double_precision(void **state)
{
    every_shape(*state, false);
}

static void levels_agree_on_numbers_below_the_normal_ones(void **state)
{
    every_shape(*state, true);
}

static void pairs_of_bf16_round_as_two_fused_products(void **state)
{
    (void)state;
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    struct err e = {0};

    if (cpu_level_kernels(BACKEND_LEVEL_AVX512, &e) == NULL ||
        __get_cpuid_count(7, 1, &a, &b, &c, &d) == 0 || (a & 1u << 5) == 0) {
        printf("this CPU has no AVX512_BF16: nothing to compare\n");
        skip();
    }
    assert_true(avx512bf16_is_exact()); /* a CPU that rounds otherwise is slower: worth a look */
    assert_non_null(cpu_level_kernels(BACKEND_LEVEL_AVX512BF16, &e));
#endif
}

static int make(void **state)
{
    *state = aligned_alloc(64, (sizeof(struct fixture) + 63) / 64 * 64);
    return *state == NULL;
}

static int unmake(void **state)
{
    free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_agree_and_are_close_to_double_precision),
        cmocka_unit_test(levels_agree_on_numbers_below_the_normal_ones),
        cmocka_unit_test(pairs_of_bf16_round_as_two_fused_products),
    };

    return cmocka_run_group_tests_name("attend", tests, make, unmake);
}
