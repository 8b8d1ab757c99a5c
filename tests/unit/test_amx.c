/* test_amx.c - the AMX kernels' logic on CPUs without AMX, over emulated tiles: int8 gives the bits
 * of portable C (on a CPU with AMX test_cpu runs the real ones); policy `fast` is the product of
 * what was rounded to bf16, near the oracle, and the same bits wherever README.md promises them. */
#include "tests/unit/amx_emulated.h"
#include "worker/backend.h"
#include "worker/cpu/cpu.h"
#include "worker/model/quant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/unit/drive.h"
#include "tests/unit/tiny_model.h"

#define COLUMNS 96u
#define BLOCKS (COLUMNS / KERNEL_BLOCK)
#define ROWS 53u
#define STRIDE 20u

static const struct kernels *fast; /* set once by main: the real ones where they are */

static uint32_t next(uint32_t *x)
{
    *x = *x * 1664525 + 1013904223;
    return *x >> 8;
}

/* A group of random bits: any bits are weights; scales are made finite. */
static void fill_group(uint8_t *group, uint32_t blocks, enum pack_form form, uint32_t *seed)
{
    size_t block_bytes = form == PACK_4 ? PACK_4_BYTES : PACK_8_BYTES;
    size_t scales_at = form == PACK_4 ? 256 : 512;

    for (size_t i = 0; i < blocks * block_bytes; i++) {
        bool high = i % block_bytes >= scales_at && i % 2 == 1;
        group[i] = (uint8_t)(high ? 0x20 + next(seed) % 16 : next(seed));
    }
}

static void compare(bool four_bits, uint32_t seed)
{
    static uint8_t group[BLOCKS * PACK_8_BYTES + 4096];
    static int8_t q[ROWS * COLUMNS];
    static float d[ROWS * BLOCKS], s[ROWS * BLOCKS], want[ROWS * STRIDE], got[ROWS * STRIDE];
    static int32_t c[ROWS * BLOCKS];
    struct act act = {.q = q, .d = d, .s = s, .c = c, .columns = COLUMNS};
    float x[COLUMNS];

    fill_group(group, BLOCKS, four_bits ? PACK_4 : PACK_8, &seed);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t i = 0; i < COLUMNS; i++) {
            x[i] = (float)(next(&seed) % 2001) * 0.001f - 1.0f;
        }
        kernels_portable.quantize(x, &act, r, 0, COLUMNS);
    }
    for (uint32_t count = 1; count <= ROWS; count++) {
        for (enum gemm_store store = GEMM_SET; store <= GEMM_ADD; store++) {
            struct gemm_call call = {.group = group,
                                     .act = &act,
                                     .first = ROWS - count,
                                     .count = count,
                                     .out = want,
                                     .stride = STRIDE,
                                     .store = store};
            for (size_t i = 0; i < ARRAY_LEN(want); i++) {
                want[i] = got[i] = (float)i;
            }
            (four_bits ? kernels_portable.gemm4 : kernels_portable.gemm8)(&call);
            call.out = got;
            (four_bits ? kernels_amx_emulated.gemm4 : kernels_amx_emulated.gemm8)(&call);
            assert_memory_equal(got, want, sizeof(want));
        }
    }
    assert_int_equal(amx_emulated_faults(), 0);
    assert_false(amx_emulated_configured()); /* given back: the next thread switch saves nothing */
}

static void tiles_give_the_bits_of_portable_c(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 6; seed++) {
        compare(seed % 2 == 0, seed);
    }
}

/* ---- policy fast: the kernel ---- */

#define FAST_ROWS                                                                                  \
    (3 * KERNEL_LANES + KERNEL_FAST_ROWS_MAX) /* what a call may skip, and its most                \
                                               */
#define FAST_STRIDE 40u
#define FAST_BLOCKS_MAX (2 * KERNEL_PANEL_BLOCKS + 1) /* three panels, the last of one block */

struct fast_data {
    uint32_t blocks, columns;
    enum pack_form form;
    uint8_t group[2][FAST_BLOCKS_MAX * PACK_8_BYTES + 4096];
    float x[FAST_ROWS][FAST_BLOCKS_MAX * KERNEL_BLOCK];
    _Alignas(64) uint8_t scratch[KERNEL_FAST_SCRATCH];
    float want[FAST_ROWS * FAST_STRIDE], got[FAST_ROWS * FAST_STRIDE];
    struct act act;
};

/* Nearest, ties away from zero: what the kernels write. */
static float bf16_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return quant_bf16((uint16_t)((u + 0x8000u) >> 16));
}

/* One weight of a packed group, read as kernels.h describes it. */
static float weight_at(const struct fast_data *f, unsigned g, uint32_t lane, uint32_t column)
{
    uint32_t at = column % KERNEL_BLOCK;
    const uint8_t *w =
        f->group[g] + column / KERNEL_BLOCK * (f->form == PACK_4 ? PACK_4_BYTES : PACK_8_BYTES);
    uint16_t d, m;

    if (f->form == PACK_8) {
        memcpy(&d, w + 512 + 2 * lane, 2);
        return (float)(w[64 * (at / 4) + 4 * lane + at % 4] - 128) * quant_f16(d);
    }
    memcpy(&d, w + 256 + 2 * lane, 2);
    memcpy(&m, w + 288 + 2 * lane, 2);
    uint8_t both = w[64 * (at % 16 / 4) + 4 * lane + at % 4];
    return fmaf((float)(at < 16 ? both & 15 : both >> 4), quant_f16(d), quant_f16(m));
}

static struct fast_data *fast_data(uint32_t blocks, enum pack_form form, uint32_t seed)
{
    struct fast_data *f = aligned_alloc(64, (sizeof(*f) + 63) / 64 * 64);

    assert_non_null(f);
    memset(f, 0xFF, sizeof(*f)); /* NaN wherever nothing is written */
    f->blocks = blocks;
    f->columns = blocks * KERNEL_BLOCK;
    f->form = form;
    size_t bytes = (size_t)FAST_ROWS * f->columns * sizeof(uint16_t);
    f->act =
        (struct act){.columns = f->columns, .form = ACT_BF16, .tiles = aligned_alloc(64, bytes)};
    assert_non_null(f->act.tiles);
    memset(f->act.tiles, 0xFF, bytes);
    fill_group(f->group[0], blocks, form, &seed);
    fill_group(f->group[1], blocks, form, &seed);
    for (uint32_t r = 0; r < FAST_ROWS - 5; r++) { /* the last tile is not full */
        for (uint32_t i = 0; i < f->columns; i++) {
            f->x[r][i] = (float)(next(&seed) % 20001) * 0.0001f - 1.0f;
        }
        uint32_t cut = r % blocks * KERNEL_BLOCK; /* in two pieces, as attention does */
        fast->quantize(f->x[r], &f->act, r, 0, cut);
        fast->quantize(f->x[r] + cut, &f->act, r, cut, f->columns - cut);
    }
    return f;
}

static void fast_free(struct fast_data *f)
{
    free(f->act.tiles);
    free(f);
}

static void run_fast(struct fast_data *f, uint32_t first, uint32_t count, unsigned groups,
                     enum gemm_store store, float *out)
{
    struct fast_call call = {
        .group = {f->group[0], groups > 1 ? f->group[1] : NULL},
        .form = f->form,
        .act = &f->act,
        .first = first,
        .count = count,
        .out = out,
        .stride = FAST_STRIDE,
        .store = store,
        .scratch = f->scratch,
    };

    fast->gemm_fast(&call);
}

/* Against double precision: of the rounded operands, where only float32 sums err (2^-24 an
 * addition); and of the true ones, where each operand also errs by up to 2^-8 of itself. */
static void check_products(struct fast_data *f)
{
    uint32_t rows = FAST_ROWS - 5 - 32;

    rows = rows > KERNEL_FAST_ROWS_MAX ? KERNEL_FAST_ROWS_MAX : rows;
    run_fast(f, 32, rows, 2, GEMM_SET, f->got);
    for (uint32_t r = 0; r < rows; r++) {
        const float *x = f->x[32 + r];
        for (uint32_t lane = 0; lane < 32; lane++) {
            double rounded = 0, exact = 0, size = 0, got = (double)f->got[r * FAST_STRIDE + lane];
            for (uint32_t i = 0; i < f->columns; i++) {
                float w = weight_at(f, lane / 16, lane % 16, i);
                rounded += (double)bf16_of(w) * (double)bf16_of(x[i]);
                exact += (double)w * (double)x[i];
                size += fabs((double)w * (double)x[i]);
            }
            double sums = 1.01 * size * f->columns * ldexp(1, -24);
            double operands = size * (ldexp(1, -7) + ldexp(1, -16));
            if (!(fabs(got - rounded) <= sums && fabs(got - exact) <= sums + operands)) {
                fail_msg("%u blocks, row %u, lane %u: %.9g for %.9g (unrounded %.9g)", f->blocks, r,
                         lane, got, rounded, exact);
            }
        }
    }
}

static const uint32_t block_counts[] = {1, 2, KERNEL_PANEL_BLOCKS, KERNEL_PANEL_BLOCKS + 1,
                                        FAST_BLOCKS_MAX};

static void fast_is_the_product_of_operands_rounded_to_bf16(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(block_counts); i++) {
        for (enum pack_form form = PACK_4; form <= PACK_8; form++) {
            struct fast_data *f = fast_data(block_counts[i], form, 3 + (uint32_t)i);
            check_products(f);
            fast_free(f);
        }
    }
}

/* Rows first .. first + count - 1 of the whole in f->want. */
static void check_cut(struct fast_data *f, uint32_t first, uint32_t count, unsigned groups)
{
    for (size_t i = 0; i < ARRAY_LEN(f->got); i++) {
        f->got[i] = -1;
    }
    run_fast(f, first, count, groups, GEMM_SET, f->got);
    for (uint32_t r = 0; r <= count; r++) {
        const float *got = f->got + r * FAST_STRIDE;
        for (uint32_t lane = 0; lane < FAST_STRIDE; lane++) {
            bool inside = r < count && lane < groups * KERNEL_LANES;
            assert_true(got[lane] == (inside ? f->want[(first + r) * FAST_STRIDE + lane] : -1.0f));
        }
    }
}

static void fast_rows_have_the_same_bits_beside_any_others_and_no_byte_more_is_written(void **state)
{
    static const uint32_t counts[] = {1, 15, 16, 17, 31, 32, 33, 48, 49, 100, 127, 128};

    (void)state;
    for (uint32_t seed = 1; seed <= 4; seed++) {
        struct fast_data *f = fast_data(block_counts[seed], seed % 2 ? PACK_4 : PACK_8, seed);
        uint32_t rest = FAST_ROWS - 5 - KERNEL_FAST_ROWS_MAX;
        run_fast(f, 0, KERNEL_FAST_ROWS_MAX, 2, GEMM_SET, f->want);
        run_fast(f, KERNEL_FAST_ROWS_MAX, rest, 2, GEMM_SET,
                 f->want + KERNEL_FAST_ROWS_MAX * FAST_STRIDE);
        for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
            for (uint32_t first = 0; first <= 32; first += 16) {
                check_cut(f, first, counts[i], 1);
                check_cut(f, first, counts[i], 2);
            }
        }
        run_fast(f, 16, 40, 2, GEMM_SET, f->got);
        run_fast(f, 16, 40, 2, GEMM_ADD, f->got);
        for (uint32_t r = 0; r < 40; r++) {
            for (uint32_t lane = 0; lane < 32; lane++) {
                float once = f->want[(16 + r) * FAST_STRIDE + lane];
                assert_true(f->got[r * FAST_STRIDE + lane] == once + once);
            }
        }
        run_fast(f, FAST_ROWS - KERNEL_LANES, KERNEL_LANES, 2, GEMM_SET, f->got);
        fast_free(f); /* that was the last tile: the address sanitizer saw nothing read past it */
    }
    assert_int_equal(amx_emulated_faults(), 0);
    assert_false(amx_emulated_configured());
}

/* ---- policy fast: a whole pass ---- */

#define TOKENS 100u
#define ROWS_MAX 120u       /* used up below; the last tile of rows is not full */
#define NEAR_ORACLE 0.03    /* relative difference of logits; eight bits are allowed 0.05 */
#define KL_MEAN_MAX 1e-2    /* nats a row, against the oracle */
#define KL_LARGEST_MAX 0.15 /* of any row */

static const uint32_t types[] = {QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0, QUANT_Q8_0,
                                 QUANT_F16,  QUANT_BF16, QUANT_F32};

static struct tiny_options options_of(size_t i)
{
    return (struct tiny_options){.seed = 70 + i,
                                 .matrix_type = types[i],
                                 .embed_type = QUANT_Q8_0,
                                 .qwen2 = i % 2 == 1,
                                 .untied = i % 3 == 1};
}

static struct model *open_tiny(const struct tiny_options *o)
{
    char path[64];
    struct err e = {0};

    snprintf(path, sizeof(path), "/tmp/test_amx.%d.gguf", (int)getpid());
    assert_true(tiny_model_write_as(path, o));
    struct model *m = model_open(path, &e);
    unlink(path);
    if (m == NULL) {
        fail_msg("%s", e.text);
    }
    return m;
}

enum side { FAST = 1, EXACT, ORACLE };

static struct backend *open_side(const struct model *m, enum side side, unsigned threads,
                                 enum backend_kv_dtype kv)
{
    struct err e = {0};
    struct backend_options o = {.threads = threads,
                                .rows_max = ROWS_MAX,
                                .kv_dtype = kv,
                                .level = BACKEND_LEVEL_AVX512,
                                .policy =
                                    side == FAST ? BACKEND_POLICY_FAST : BACKEND_POLICY_EXACT};
    struct backend *b = side == ORACLE  ? backend_ref_open(m, &o, &e)
                        : side == EXACT ? backend_cpu_open(m, &o, &e)
                                        : cpu_open_with(m, &o, fast, true, &e);

    if (b == NULL || !b->ops->kv_init(b, 2 * DRIVE_BLOCKS_MAX, &e)) {
        fail_msg("%s", e.text);
    }
    return b;
}

static void fill_ids(int32_t *ids, uint32_t n, uint32_t vocab, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = (int32_t)(next(&seed) % vocab);
    }
}

/* Logits of all rows of one prompt in chunks; free() them. */
static float *logits_of(const struct model *m, enum side side, unsigned threads,
                        enum backend_kv_dtype kv, uint32_t chunk)
{
    struct backend *b = open_side(m, side, threads, kv);
    float *logits = calloc((size_t)TOKENS * m->vocab, sizeof(*logits));
    int32_t ids[TOKENS];
    struct drive_seq s;

    assert_non_null(logits);
    fill_ids(ids, TOKENS, m->vocab, 5);
    drive_seq_init(&s, 1, 2);
    drive_prompt(b, &s, ids, TOKENS, chunk, m->vocab, DRIVE_ALL, logits);
    b->ops->close(b);
    return logits;
}

static double log_sum(const float *x, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        sum += exp((double)x[i]);
    }
    return log(sum);
}

/* KL divergence of the distribution of `x` from that of `truth`, in nats. */
static double divergence(const float *truth, const float *x, uint32_t n)
{
    double a = log_sum(truth, n), b = log_sum(x, n), kl = 0;

    for (uint32_t i = 0; i < n; i++) {
        kl += exp((double)truth[i] - a) * ((double)truth[i] - a - (double)x[i] + b);
    }
    return kl;
}

struct distance {
    double relative, kl_mean, kl_largest;
};

static struct distance distance_of(const float *truth, const float *x, uint32_t vocab)
{
    struct distance d = {0};
    double diff = 0, power = 0;

    for (size_t i = 0; i < (size_t)TOKENS * vocab; i++) {
        diff += ((double)x[i] - (double)truth[i]) * ((double)x[i] - (double)truth[i]);
        power += (double)truth[i] * (double)truth[i];
    }
    for (uint32_t r = 0; r < TOKENS; r++) {
        double kl = divergence(truth + (size_t)r * vocab, x + (size_t)r * vocab, vocab);
        d.kl_mean += kl / TOKENS;
        d.kl_largest = fmax(d.kl_largest, kl);
    }
    d.relative = sqrt(diff / power);
    return d;
}

static void fast_logits_stay_near_those_of_the_oracle(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct tiny_options o = options_of(i);
        struct model *m = open_tiny(&o);
        float *truth = logits_of(m, ORACLE, 1, BACKEND_KV_BF16, ROWS_MAX);
        float *got = logits_of(m, FAST, 2, BACKEND_KV_BF16, ROWS_MAX);
        float *exact = logits_of(m, EXACT, 2, BACKEND_KV_BF16, ROWS_MAX);
        struct distance d = distance_of(truth, got, m->vocab);
        struct distance e = distance_of(truth, exact, m->vocab);
        print_message("%s: from the oracle: fast %.5f, KL %.2e (most %.2e); exact %.5f, KL %.2e\n",
                      quant_name(types[i]), d.relative, d.kl_mean, d.kl_largest, e.relative,
                      e.kl_mean);
        assert_true(d.relative < NEAR_ORACLE && d.kl_mean < KL_MEAN_MAX);
        assert_true(d.kl_largest < KL_LARGEST_MAX);
        assert_true(d.relative < e.relative && d.kl_mean < e.kl_mean); /* finer than eight bits */
        assert_memory_not_equal(got, exact, TOKENS * m->vocab * sizeof(*got)); /* it did run */
        free(truth);
        free(got);
        free(exact);
        model_close(m);
    }
    assert_int_equal(amx_emulated_faults(), 0);
}

/* What README.md promises: the number of threads does not matter, nor which rows share a step. */
static void fast_steps_of_many_rows_have_the_same_bits_however_they_are_cut(void **state)
{
    static const uint32_t chunks[] = {50, 34}; /* of 100: the last has 50 and 32 rows */

    (void)state;
    for (enum backend_kv_dtype kv = BACKEND_KV_BF16; kv <= BACKEND_KV_INT8; kv++) {
        struct tiny_options o = options_of(1);
        struct model *m = open_tiny(&o);
        size_t bytes = (size_t)TOKENS * m->vocab * sizeof(float);
        float *want = logits_of(m, FAST, 1, kv, ROWS_MAX);
        for (unsigned threads = 2; threads <= 4; threads++) {
            float *got = logits_of(m, FAST, threads, kv, ROWS_MAX);
            assert_memory_equal(got, want, bytes);
            free(got);
        }
        for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
            float *got = logits_of(m, FAST, 2, kv, chunks[i]);
            assert_memory_equal(got, want, bytes);
            free(got);
        }
        free(want);
        model_close(m);
    }
}

static void fast_steps_of_few_rows_are_those_of_exact(void **state)
{
    struct tiny_options o = options_of(1);
    struct model *m = open_tiny(&o);
    size_t bytes = (size_t)TOKENS * m->vocab * sizeof(float);
    float *want = logits_of(m, EXACT, 2, BACKEND_KV_BF16, ROWS_MAX);
    float *got = logits_of(m, FAST, 2, BACKEND_KV_BF16, KERNEL_FAST_ROWS - 1);

    (void)state;
    assert_memory_equal(got, want, bytes);
    free(got);
    got = logits_of(m, FAST, 2, BACKEND_KV_BF16, KERNEL_FAST_ROWS);
    assert_memory_not_equal(got, want, bytes);
    free(got);
    free(want);
    model_close(m);
}

#define BESIDE                                                                                     \
    6u /* more rows of logits than a thread would norm alone, fewer than `fast` takes              \
        */

/* Sequences of 20 tokens in one step; logits of all rows, or of each one's last. */
static void step_beside(struct backend *b, const int32_t *ids, enum drive_want want, float *logits)
{
    struct drive_seq s[BESIDE], *seq[BESIDE];
    const int32_t *from[BESIDE];
    uint32_t n[BESIDE];

    for (uint32_t i = 0; i < BESIDE; i++) {
        drive_seq_init(&s[i], i, BESIDE);
        seq[i] = &s[i];
        from[i] = ids + i;
        n[i] = 20;
    }
    drive_step(b, seq, from, n, BESIDE, want, logits);
}

/* Few logits wanted of many rows: the head is exact's, the layers are not. */
static void fast_head_goes_by_the_rows_wanted(void **state)
{
    struct tiny_options o = options_of(1);
    struct model *m = open_tiny(&o);
    struct backend *b = open_side(m, FAST, 2, BACKEND_KV_BF16);
    struct backend *exact = open_side(m, EXACT, 2, BACKEND_KV_BF16);
    float *all = calloc((size_t)20 * BESIDE * m->vocab, sizeof(*all));
    float *last = calloc((size_t)BESIDE * m->vocab, sizeof(*last));
    float *want = calloc((size_t)BESIDE * m->vocab, sizeof(*last));
    size_t row = m->vocab * sizeof(*last);
    int32_t ids[TOKENS];

    (void)state;
    assert_true(all != NULL && last != NULL && want != NULL);
    fill_ids(ids, TOKENS, m->vocab, 5);
    step_beside(b, ids, DRIVE_ALL, all);
    step_beside(b, ids, DRIVE_LAST, last);
    step_beside(exact, ids, DRIVE_LAST, want);
    for (uint32_t i = 0; i < BESIDE; i++) {
        const float *of_all = all + (size_t)(20 * i + 19) * m->vocab;
        const float *x = last + (size_t)i * m->vocab, *y = want + (size_t)i * m->vocab;
        assert_true(divergence(of_all, x, m->vocab) < KL_LARGEST_MAX);
        assert_memory_not_equal(x, of_all, row);
        assert_memory_not_equal(x, y, row);
    }
    b->ops->close(b);
    exact->ops->close(exact);
    free(all);
    free(last);
    free(want);
    model_close(m);
}

static void fast_says_that_it_is(void **state)
{
    struct tiny_options o = options_of(1);
    struct model *m = open_tiny(&o);
    struct backend *b = open_side(m, FAST, 1, BACKEND_KV_BF16);

    (void)state;
    assert_non_null(strstr(b->ops->describe(b), ", fast (AMX bf16 from 32 rows on), bf16 KV"));
    struct backend_peaks p = b->ops->peaks(b);
    assert_true(p.gflops > 0 && p.read_gbs > 0);
    b->ops->close(b);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_give_the_bits_of_portable_c),
        cmocka_unit_test(fast_is_the_product_of_operands_rounded_to_bf16),
        cmocka_unit_test(
            fast_rows_have_the_same_bits_beside_any_others_and_no_byte_more_is_written),
        cmocka_unit_test(fast_logits_stay_near_those_of_the_oracle),
        cmocka_unit_test(fast_steps_of_many_rows_have_the_same_bits_however_they_are_cut),
        cmocka_unit_test(fast_steps_of_few_rows_are_those_of_exact),
        cmocka_unit_test(fast_head_goes_by_the_rows_wanted),
        cmocka_unit_test(fast_says_that_it_is),
    };
    struct err e = {0};

    fast = amx_kernels_to_test(&e);
    if (fast == NULL) {
        printf("SKIP: %s\n", e.text);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
