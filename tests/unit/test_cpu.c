/* test_cpu.c - the `exact` policy: one set of bits for every level, thread count, chunk, batch and
 * cache hit, with either form of KV; close to the oracle; and each kernel against plain arithmetic.
 */
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
#include "worker/cpu/cpu.h"
#include "worker/model/quant.h"

#define TOKENS 100u
#define ROWS_MAX 256u
#define LEVELS 5u

static const enum backend_level levels[LEVELS] = {BACKEND_LEVEL_PORTABLE, BACKEND_LEVEL_AVX2,
                                                  BACKEND_LEVEL_AVX512, BACKEND_LEVEL_AVX512BF16,
                                                  BACKEND_LEVEL_AMX};

static struct model *open_tiny(const struct tiny_options *o)
{
    char path[64];
    struct err e = {0};

    snprintf(path, sizeof(path), "/tmp/test_cpu.%d.gguf", (int)getpid());
    assert_true(tiny_model_write_as(path, o));
    struct model *m = model_open(path, &e);
    unlink(path);
    if (m == NULL) {
        fail_msg("%s", e.text);
    }
    return m;
}

/* NULL: this CPU lacks the level. */
static struct backend *open_with(const struct model *m, unsigned threads, enum backend_level level,
                                 enum backend_kv_dtype kv)
{
    struct err e = {0};
    struct backend_options o = {
        .threads = threads, .rows_max = ROWS_MAX, .level = level, .kv_dtype = kv};
    struct backend *b = backend_cpu_open(m, &o, &e);

    if (b == NULL) {
        assert_int_equal(e.code, ERR_UNSUPPORTED);
        return NULL;
    }
    assert_true(b->ops->kv_init(b, 8 * DRIVE_BLOCKS_MAX, &e));
    return b;
}

static struct backend *open_cpu(const struct model *m, unsigned threads, enum backend_level level)
{
    return open_with(m, threads, level, BACKEND_KV_BF16);
}

static uint32_t next(uint32_t *x)
{
    *x = *x * 1664525 + 1013904223;
    return *x >> 8;
}

static void fill_ids(int32_t *ids, uint32_t n, uint32_t vocab, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = (int32_t)(next(&seed) % vocab);
    }
}

/* Logits of all rows of one prompt, computed in the plainest way: whole, alone, one thread. */
struct expected {
    struct model *m;
    int32_t ids[TOKENS];
    size_t bytes;
    float *want, *got;
};

static void expect_with(struct expected *x, const struct tiny_options *o, enum backend_kv_dtype kv)
{
    struct drive_seq s;

    x->m = open_tiny(o);
    struct backend *b = open_with(x->m, 1, BACKEND_LEVEL_PORTABLE, kv);
    fill_ids(x->ids, TOKENS, x->m->vocab, 99);
    x->bytes = (size_t)TOKENS * x->m->vocab * sizeof(float);
    x->want = malloc(x->bytes);
    x->got = malloc(2 * x->bytes);
    assert_true(x->want != NULL && x->got != NULL);
    drive_seq_init(&s, 0, 1);
    drive_prompt(b, &s, x->ids, TOKENS, ROWS_MAX, x->m->vocab, DRIVE_ALL, x->want);
    b->ops->close(b);
}

static void expect(struct expected *x, const struct tiny_options *o)
{
    expect_with(x, o, BACKEND_KV_BF16);
}

static void expect_end(struct expected *x)
{
    free(x->want);
    free(x->got);
    model_close(x->m);
}

static const struct tiny_options plain = {
    .seed = 11, .matrix_type = QUANT_Q4_1, .embed_type = QUANT_Q8_0};

static void same_on_every_level_and_thread_count(enum backend_kv_dtype kv)
{
    static const uint32_t types[] = {QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0, QUANT_Q8_0,
                                     QUANT_F16,  QUANT_BF16, QUANT_F32};

    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        struct tiny_options o = {.seed = t,
                                 .matrix_type = types[t],
                                 .embed_type = QUANT_Q8_0,
                                 .qwen2 = t % 2 == 1,
                                 .untied = t % 3 == 1};
        struct expected x;
        expect_with(&x, &o, kv);
        for (unsigned threads = 1; threads <= 4; threads++) {
            for (size_t l = 0; l < LEVELS; l++) {
                struct backend *b = open_with(x.m, threads, levels[l], kv);
                struct drive_seq s;
                if (b == NULL) {
                    continue;
                }
                drive_seq_init(&s, 5, 3);
                memset(x.got, 0, x.bytes);
                drive_prompt(b, &s, x.ids, TOKENS, ROWS_MAX, x.m->vocab, DRIVE_ALL, x.got);
                assert_memory_equal(x.got, x.want, x.bytes);
                b->ops->close(b);
            }
        }
        expect_end(&x);
    }
}

static void logits_have_the_same_bits_on_every_level_and_thread_count(void **state)
{
    (void)state;
    same_on_every_level_and_thread_count(BACKEND_KV_BF16);
    same_on_every_level_and_thread_count(BACKEND_KV_INT8);
}

static void same_in_chunks(enum backend_kv_dtype kv)
{
    static const uint32_t chunks[] = {1, 2, 3, 5, 7, 12, 31, 32, 33, 64, 99};
    struct expected x;

    expect_with(&x, &plain, kv);
    struct backend *b = open_with(x.m, 2, BACKEND_LEVEL_BEST, kv);
    for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
        struct drive_seq s;
        drive_seq_init(&s, (uint32_t)i, 7);
        memset(x.got, 0, x.bytes);
        drive_prompt(b, &s, x.ids, TOKENS, chunks[i], x.m->vocab, DRIVE_ALL, x.got);
        assert_memory_equal(x.got, x.want, x.bytes);
    }
    b->ops->close(b);
    expect_end(&x);
}

static void chunks_of_any_size_give_the_same_bits(void **state)
{
    (void)state;
    same_in_chunks(BACKEND_KV_BF16);
    same_in_chunks(BACKEND_KV_INT8);
}

/* Prefill of one prompt, decode of others, in one forward: as the scheduler mixes them. */
static void same_beside_others(enum backend_kv_dtype kv)
{
    struct expected x;
    struct drive_seq s[10], *seq[10];
    const int32_t *ids[10];
    uint32_t n[10], at = 40;

    expect_with(&x, &plain, kv);
    struct backend *b = open_with(x.m, 2, BACKEND_LEVEL_BEST, kv);
    size_t row = x.m->vocab * sizeof(float);
    for (uint32_t count = 1; count <= 10; count++) {
        for (uint32_t i = 0; i < count; i++) { /* each holds the first `at - i` tokens already */
            drive_seq_init(&s[i], i, 10);
            drive_prompt(b, &s[i], x.ids, at - i, ROWS_MAX, x.m->vocab, DRIVE_LAST, x.got);
            seq[i] = &s[i];
            ids[i] = x.ids + at - i;
            n[i] = i == 1 ? 60 : 1;
        }
        drive_step(b, seq, ids, n, count, DRIVE_ALL, x.got);
        const char *got = (const char *)x.got;
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t j = 0; j < n[i]; j++, got += row) {
                assert_memory_equal(got, (const char *)x.want + (at - i + j) * row, row);
            }
        }
    }
    b->ops->close(b);
    expect_end(&x);
}

static void rows_beside_others_give_the_same_bits(void **state)
{
    (void)state;
    same_beside_others(BACKEND_KV_BF16);
    same_beside_others(BACKEND_KV_INT8);
}

static void same_with_cached_prefix(enum backend_kv_dtype kv)
{
    struct expected x;
    struct drive_seq first, second;

    expect_with(&x, &plain, kv);
    struct backend *b = open_with(x.m, 2, BACKEND_LEVEL_BEST, kv);
    size_t row = x.m->vocab * sizeof(float);
    drive_seq_init(&first, 0, 2);
    drive_prompt(b, &first, x.ids, TOKENS, ROWS_MAX, x.m->vocab, DRIVE_ALL, x.got);
    for (uint32_t cached = 32; cached <= 96; cached += 32) {
        drive_seq_init(&second, 1, 2);
        second.table[0] = first.table[0];
        for (uint32_t i = 1; i * 32 < cached; i++) {
            b->ops->kv_copy(b, second.table[i], first.table[i]);
        }
        second.len = cached;
        drive_prompt(b, &second, x.ids + cached, TOKENS - cached, ROWS_MAX, x.m->vocab, DRIVE_ALL,
                     x.got);
        assert_memory_equal(x.got, (const char *)x.want + cached * row, (TOKENS - cached) * row);
    }
    b->ops->close(b);
    expect_end(&x);
}

static void cached_prefix_gives_the_same_bits(void **state)
{
    (void)state;
    same_with_cached_prefix(BACKEND_KV_BF16);
    same_with_cached_prefix(BACKEND_KV_INT8);
}

/* What a block held before must not matter, not even values that are no number. */
static void same_over_stale_bytes(enum backend_kv_dtype kv)
{
    struct expected x;

    expect_with(&x, &plain, kv);
    for (size_t l = 0; l < LEVELS; l++) {
        struct backend *b = open_with(x.m, 2, levels[l], kv);
        struct drive_seq s;
        if (b == NULL) {
            continue;
        }
        struct cpu *c = (struct cpu *)b;
        memset(c->kv, 0xFF, c->kv_bytes); /* NaN as bf16, and as scales */
        drive_seq_init(&s, 0, 1);
        drive_prompt(b, &s, x.ids, TOKENS, 33, x.m->vocab, DRIVE_ALL, x.got);
        assert_memory_equal(x.got, x.want, x.bytes);
        b->ops->close(b);
    }
    expect_end(&x);
}

static void stale_bytes_in_blocks_do_not_matter(void **state)
{
    (void)state;
    same_over_stale_bytes(BACKEND_KV_BF16);
    same_over_stale_bytes(BACKEND_KV_INT8);
}

static void only_wanted_rows_are_written(void **state)
{
    struct expected x;
    struct drive_seq s;

    (void)state;
    expect(&x, &plain);
    struct backend *b = open_cpu(x.m, 2, BACKEND_LEVEL_BEST);
    size_t row = x.m->vocab * sizeof(float);
    memset(x.got, 0x5A, x.bytes);
    drive_seq_init(&s, 0, 1);
    drive_prompt(b, &s, x.ids, TOKENS, ROWS_MAX, x.m->vocab, DRIVE_LAST, x.got);
    assert_memory_equal(x.got, (const char *)x.want + (TOKENS - 1) * row, row);
    for (size_t i = row; i < 2 * row; i++) {
        assert_int_equal(((const uint8_t *)x.got)[i], 0x5A);
    }
    b->ops->close(b);
    expect_end(&x);
}

static double distance_from_oracle(const struct tiny_options *o, enum backend_kv_dtype kv)
{
    struct expected x;
    struct err e = {0};
    struct drive_seq s;
    double diff = 0, power = 0;

    expect_with(&x, o, kv);
    struct backend_options ro = {.threads = 1, .rows_max = ROWS_MAX};
    struct backend *b = backend_ref_open(x.m, &ro, &e);
    assert_true(b != NULL && b->ops->kv_init(b, DRIVE_BLOCKS_MAX, &e));
    drive_seq_init(&s, 0, 1);
    drive_prompt(b, &s, x.ids, TOKENS, ROWS_MAX, x.m->vocab, DRIVE_ALL, x.got);
    for (size_t i = 0; i < x.bytes / sizeof(float); i++) {
        double d = (double)x.got[i] - (double)x.want[i];
        diff += d * d;
        power += (double)x.got[i] * (double)x.got[i];
    }
    b->ops->close(b);
    expect_end(&x);
    return sqrt(diff / power);
}

/* Eight-bit activations and rounded KV: near the oracle, for every weight type. */
static void logits_stay_near_those_of_the_oracle(void **state)
{
    static const uint32_t types[] = {QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0, QUANT_Q8_0,
                                     QUANT_F16,  QUANT_BF16, QUANT_F32};

    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        struct tiny_options o = {.seed = 40 + t,
                                 .matrix_type = types[t],
                                 .embed_type = QUANT_Q8_0,
                                 .qwen2 = t % 2 == 0,
                                 .untied = t % 2 == 0};
        double bf16 = distance_from_oracle(&o, BACKEND_KV_BF16);
        double int8 = distance_from_oracle(&o, BACKEND_KV_INT8);
        if (!(bf16 < 0.05 && int8 < 0.05)) {
            fail_msg("%s: relative difference %.4f, with int8 KV %.4f", quant_name(types[t]), bf16,
                     int8);
        }
    }
}

static const struct kernels *kernels_of(enum backend_level level)
{
    struct err e = {0};

    return cpu_level_kernels(level, &e);
}

#define GEMM_COLUMNS 96u
#define GEMM_BLOCKS (GEMM_COLUMNS / 32)
#define GEMM_ROWS 27u

struct gemm_data {
    struct weight w;
    uint8_t raw[16 * GEMM_BLOCKS * 34];
    uint8_t group[GEMM_BLOCKS * PACK_8_BYTES + 4096];
    struct packed packed;
    int8_t q[GEMM_ROWS * GEMM_COLUMNS];
    float d[GEMM_ROWS * GEMM_BLOCKS], s[GEMM_ROWS * GEMM_BLOCKS];
    int32_t c[GEMM_ROWS * GEMM_BLOCKS];
    struct act act;
};

/* Random blocks, or the extremes: weights and activations at both ends of their range. */
static struct gemm_data *gemm_data(uint32_t type, bool extreme, uint32_t seed)
{
    struct gemm_data *g = calloc(1, sizeof(*g));
    uint32_t block = quant_block_bytes(type), head = block == 34 ? 2 : 4;
    float x[GEMM_COLUMNS];

    assert_non_null(g);
    for (uint32_t i = 0; i < 16 * GEMM_BLOCKS; i++) {
        uint8_t *p = g->raw + (size_t)i * block;
        uint16_t scales[2] = {quant_to_f16(0.001f * (float)(next(&seed) % 100)),
                              quant_to_f16(-0.05f)};
        memcpy(p, scales, head);
        for (uint32_t j = head; j < block; j++) {
            p[j] = (uint8_t)(extreme ? (next(&seed) & 1 ? 0x80 : 0xFF) : next(&seed));
        }
    }
    g->w = (struct weight){g->raw, type, 16, GEMM_COLUMNS};
    g->packed = pack_plan(&g->w);
    assert_true(pack_groups(&g->w, &g->packed, g->group, 0, 1));
    g->packed.data = g->group;
    g->act = (struct act){.q = g->q, .d = g->d, .s = g->s, .c = g->c, .columns = GEMM_COLUMNS};
    for (uint32_t r = 0; r < GEMM_ROWS; r++) {
        for (uint32_t i = 0; i < GEMM_COLUMNS; i++) {
            x[i] = extreme ? (next(&seed) & 1 ? 1.0f : -1.0f)
                           : (float)(next(&seed) % 2001) * 0.001f - 1.0f;
        }
        kernels_portable.quantize(x, &g->act, r, 0, GEMM_COLUMNS);
    }
    return g;
}

static void gemm(const struct kernels *k, const struct gemm_data *g, uint32_t first, uint32_t count,
                 enum gemm_store store, float *out)
{
    struct gemm_call call = {.group = g->group,
                             .act = &g->act,
                             .first = first,
                             .count = count,
                             .out = out,
                             .stride = 20,
                             .store = store};

    (g->packed.form == PACK_4 ? k->gemm4 : k->gemm8)(&call);
}

/* What the packed form and the int8 activations stand for, in double precision. */
static double exact_product(const struct gemm_data *g, uint32_t row, uint32_t lane)
{
    float w[GEMM_COLUMNS];
    double sum = 0;

    model_row(&g->w, lane, w);
    for (uint32_t i = 0; i < GEMM_COLUMNS; i++) {
        double a = (double)g->q[row * GEMM_COLUMNS + i] * (double)g->d[row * GEMM_BLOCKS + i / 32];
        sum += (double)w[i] * a;
    }
    return sum;
}

static void gemm_is_the_product_and_equal_on_every_level(void **state)
{
    static const uint32_t types[] = {QUANT_Q4_1, QUANT_Q8_0};
    static float want[GEMM_ROWS * 20], got[GEMM_ROWS * 20];

    (void)state;
    for (unsigned k = 0; k < 4; k++) {
        struct gemm_data *g = gemm_data(types[k & 1], k >= 2, 7 + k);
        gemm(&kernels_portable, g, 0, GEMM_ROWS, GEMM_SET, want);
        for (uint32_t r = 0; r < GEMM_ROWS; r++) {
            for (uint32_t i = 0; i < 16; i++) {
                assert_true(fabs((double)want[r * 20 + i] - exact_product(g, r, i)) < 2e-4);
            }
        }
        for (size_t l = 0; l < LEVELS; l++) {
            const struct kernels *level = kernels_of(levels[l]);
            for (uint32_t count = 1; level != NULL && count <= GEMM_ROWS; count++) {
                uint32_t first = GEMM_ROWS - count;
                gemm(level, g, first, count, GEMM_SET, got);
                for (uint32_t r = 0; r < count; r++) {
                    assert_memory_equal(got + r * 20, want + (first + r) * 20, 64);
                }
                gemm(level, g, first, count, GEMM_ADD, got);
                assert_true(got[3] == want[first * 20 + 3] + want[first * 20 + 3]);
            }
        }
        free(g);
    }
}

static void row_kernels_are_right_and_equal_on_every_level(void **state)
{
    static float x[128], w[128], want[128], got[128], silu[2][128];
    static int8_t q[2][128];
    static float d[2][4], s[2][4];
    static int32_t c[2][4];
    uint32_t seed = 3;
    double sum = 0;

    (void)state;
    for (uint32_t i = 0; i < 128; i++) {
        x[i] = ((float)(next(&seed) % 4001) - 2000.0f) * (i < 96 ? 0.001f : 0.05f);
        w[i] = 0.5f + (float)(next(&seed) % 1000) * 0.001f;
        sum += (double)x[i] * (double)x[i];
    }
    kernels_portable.norm(x, w, 128, 1e-5f, want);
    for (uint32_t i = 0; i < 128; i++) {
        double exact = (double)x[i] / sqrt(sum / 128 + 1e-5) * (double)w[i];
        assert_true(fabs((double)want[i] - exact) <= 1e-6 * fabs(exact) + 1e-9);
        double up = (double)w[i], swish = (double)x[i] / (1 + exp(-(double)x[i])) * up;
        silu[0][i] = x[i];
        silu[1][i] = (float)swish;
    }
    kernels_portable.silu(silu[0], w, 128);
    for (uint32_t i = 0; i < 128; i++) {
        assert_true(fabsf(silu[0][i] - silu[1][i]) <= 4e-7f * fabsf(silu[1][i]) + 1e-30f);
    }
    struct act a = {.q = q[0], .d = d[0], .s = s[0], .c = c[0], .columns = 128};
    kernels_portable.quantize(x, &a, 0, 0, 128);
    for (uint32_t i = 0; i < 128; i++) {
        assert_true(fabsf(x[i] - (float)q[0][i] * d[0][i / 32]) <= 0.5001f * d[0][i / 32]);
    }
    for (size_t l = 0; l < LEVELS; l++) {
        const struct kernels *level = kernels_of(levels[l]);
        if (level == NULL) {
            continue;
        }
        level->norm(x, w, 128, 1e-5f, got);
        assert_memory_equal(got, want, sizeof(want));
        memcpy(got, x, sizeof(x));
        level->silu(got, w, 128);
        assert_memory_equal(got, silu[0], sizeof(got));
        struct act b = {.q = q[1], .d = d[1], .s = s[1], .c = c[1], .columns = 128};
        level->quantize(x, &b, 0, 0, 64);
        level->quantize(x + 64, &b, 0, 64, 64);
        assert_memory_equal(q[1], q[0], sizeof(q[0]));
        assert_memory_equal(d[1], d[0], sizeof(d[0]));
        assert_memory_equal(s[1], s[0], sizeof(s[0]));
        assert_memory_equal(c[1], c[0], sizeof(c[0]));
    }
}

static void kv_rounding_is_right_and_equal_on_every_level(void **state)
{
    static const float bad[] = {0.0f, INFINITY, NAN, 3e38f, 1e-44f};
    static float x[64];
    static int8_t want[64], got[64];
    uint32_t seed = 5;

    (void)state;
    for (size_t round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < 64; i++) {
            x[i] = ((float)(next(&seed) % 4001) - 2000.0f) * 0.003f;
        }
        x[7] = round < ARRAY_LEN(bad) ? bad[round] : x[7];
        float scale = kernels_portable.round_kv(x, 64, want);
        assert_true(scale != scale || quant_bf16(quant_to_bf16(scale)) == scale);
        for (uint32_t i = 0; i < 64 && round >= ARRAY_LEN(bad); i++) {
            /* half a step, and what rounding the scale down cuts off the largest */
            assert_true(fabsf(x[i] - (float)want[i] * scale) <= 0.76f * scale);
        }
        for (size_t l = 0; l < LEVELS; l++) {
            const struct kernels *level = kernels_of(levels[l]);
            if (level != NULL) {
                float other = level->round_kv(x, 64, got);
                assert_memory_equal(&other, &scale, sizeof(scale));
                assert_memory_equal(got, want, sizeof(want));
            }
        }
    }
}

static void quantize_takes_zeros_and_things_that_are_no_number(void **state)
{
    static const float bad[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 3e38f, 1e-44f};
    float x[32], d, s;
    int8_t q[32];
    int32_t c;

    (void)state;
    for (size_t l = 0; l < LEVELS; l++) {
        const struct kernels *level = kernels_of(levels[l]);
        for (size_t i = 0; level != NULL && i < ARRAY_LEN(bad); i++) {
            struct act a = {.q = q, .d = &d, .s = &s, .c = &c, .columns = 32};
            for (uint32_t j = 0; j < 32; j++) {
                x[j] = j % 5 == 0 ? bad[i] : 0;
            }
            level->quantize(x, &a, 0, 0, 32);
            for (uint32_t j = 0; j < 32; j++) {
                assert_true(q[j] >= -127 && q[j] <= 127);
            }
        }
    }
}

/* A model full of wrong numbers must not bring the process down. */
static void random_weights_of_any_value_do_not_crash(void **state)
{
    struct buf bytes;
    uint32_t seed = 17;
    char path[64];
    struct err e;

    (void)state;
    snprintf(path, sizeof(path), "/tmp/test_cpu.%d.gguf", (int)getpid());
    for (unsigned round = 0; round < 12; round++) {
        buf_init(&bytes, TINY_MODEL_BYTES_MAX);
        tiny_model_build(&bytes, &plain);
        uint8_t *p = (uint8_t *)(uintptr_t)buf_view(&bytes).p;
        for (unsigned i = 0; i < 200; i++) {
            p[12000 + next(&seed) % (bytes.len - 12000)] = (uint8_t)next(&seed);
        }
        FILE *f = fopen(path, "wb");
        assert_true(f != NULL && fwrite(p, 1, bytes.len, f) == bytes.len && fclose(f) == 0);
        buf_fini(&bytes);
        err_clear(&e);
        struct model *m = model_open(path, &e);
        unlink(path);
        if (m == NULL) {
            continue;
        }
        for (size_t l = 0; l < LEVELS; l++) {
            struct backend *b = open_cpu(m, 1, levels[l]);
            if (b != NULL) {
                float *logits = malloc(m->vocab * sizeof(*logits));
                int32_t ids[40];
                struct drive_seq s;
                assert_non_null(logits);
                fill_ids(ids, 40, m->vocab, seed);
                drive_seq_init(&s, 0, 1);
                drive_prompt(b, &s, ids, 40, 20, m->vocab, DRIVE_LAST, logits);
                free(logits);
                b->ops->close(b);
            }
        }
        model_close(m);
    }
}

static void levels_are_known_by_name(void **state)
{
    enum backend_level level;

    (void)state;
    assert_true(backend_level_named(STR("avx2"), &level) && level == BACKEND_LEVEL_AVX2);
    assert_true(backend_level_named(STR("best"), &level) && level == BACKEND_LEVEL_BEST);
    assert_false(backend_level_named(STR("sse"), &level));
    assert_string_equal(backend_level_name(BACKEND_LEVEL_PORTABLE), "portable");
    enum backend_kv_dtype kv;
    assert_true(backend_kv_dtype_named(STR("int8"), &kv) && kv == BACKEND_KV_INT8);
    assert_false(backend_kv_dtype_named(STR("q4"), &kv));
    assert_non_null(kernels_of(BACKEND_LEVEL_BEST));
    for (size_t l = 0; l < LEVELS; l++) { /* what the tests here left out */
        if (kernels_of(levels[l]) == NULL) {
            print_message("level %s: not on this machine\n", backend_level_name(levels[l]));
        }
    }
}

static void environment_chooses_the_level_and_is_refused_by_name(void **state)
{
    struct model *m = open_tiny(&plain);
    struct backend_options o = {.threads = 1, .rows_max = 1};
    struct err e = {0};

    (void)state;
    assert_int_equal(setenv("TOLLGATE_CPU", "portable", 1), 0);
    struct backend *b = backend_cpu_open(m, &o, &e);
    assert_non_null(b);
    assert_string_equal(b->ops->describe(b), "cpu: portable C, 1 thread, exact, bf16 KV");
    b->ops->close(b);
    assert_int_equal(setenv("TOLLGATE_CPU", "sse9", 1), 0);
    assert_null(backend_cpu_open(m, &o, &e));
    assert_int_equal(e.code, ERR_INPUT);
    assert_non_null(strstr(e.text, "sse9"));
    assert_int_equal(unsetenv("TOLLGATE_CPU"), 0);
    model_close(m);
}

/* Where the fast policy has nothing of its own it says so, and the bits are those of exact. */
static void fast_without_kernels_of_its_own_is_exact_and_says_so(void **state)
{
    struct expected x;
    struct drive_seq s;
    struct err e = {0};
    struct backend_options o = {.threads = 2,
                                .rows_max = ROWS_MAX,
                                .policy = BACKEND_POLICY_FAST,
                                .level = BACKEND_LEVEL_PORTABLE}; /* a level without them */
    enum backend_policy policy;

    (void)state;
    expect(&x, &plain);
    struct backend *b = backend_cpu_open(x.m, &o, &e);
    assert_true(b != NULL && b->ops->kv_init(b, DRIVE_BLOCKS_MAX, &e));
    assert_non_null(strstr(b->ops->describe(b), "exact (fast equals it: no AMX bf16 in use)"));
    drive_seq_init(&s, 0, 1);
    drive_prompt(b, &s, x.ids, TOKENS, ROWS_MAX, x.m->vocab, DRIVE_ALL, x.got);
    assert_memory_equal(x.got, x.want, x.bytes);
    b->ops->close(b);
    expect_end(&x);
    assert_true(backend_policy_named(STR("fast"), &policy) && policy == BACKEND_POLICY_FAST);
    assert_false(backend_policy_named(STR("quick"), &policy));
    assert_string_equal(backend_policy_name(BACKEND_POLICY_EXACT), "exact");
}

static void backend_tells_what_it_is_and_holds(void **state)
{
    struct model *m = open_tiny(&plain);
    struct backend *b = open_cpu(m, 2, BACKEND_LEVEL_PORTABLE);
    struct err e = {0};

    (void)state;
    assert_string_equal(b->ops->describe(b), "cpu: portable C, 2 threads, exact, bf16 KV");
    /* 2 layers, K and V, 2 heads of 16, 32 tokens, 2 bytes */
    assert_int_equal(b->ops->kv_block_bytes(b), 2 * 2 * 2 * 16 * 32 * 2);
    struct backend *small = open_with(m, 1, BACKEND_LEVEL_PORTABLE, BACKEND_KV_INT8);
    assert_string_equal(small->ops->describe(small), "cpu: portable C, 1 thread, exact, int8 KV");
    /* a byte each, and 32 scales of 2 bytes a page */
    assert_int_equal(small->ops->kv_block_bytes(small), 2 * 2 * 2 * (16 * 32 + 64));
    small->ops->close(small);
    struct backend_peaks peaks = b->ops->peaks(b);
    assert_true(peaks.read_gbs > 0 && peaks.gflops > 0);
    assert_false(b->ops->kv_init(b, 0, &e));
    assert_int_equal(e.code, ERR_NO_MEMORY);
    b->ops->close(b);
    model_close(m);
}

int main(void)
{
    unsetenv("TOLLGATE_CPU"); /* BEST means what this machine has */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_have_the_same_bits_on_every_level_and_thread_count),
        cmocka_unit_test(chunks_of_any_size_give_the_same_bits),
        cmocka_unit_test(rows_beside_others_give_the_same_bits),
        cmocka_unit_test(cached_prefix_gives_the_same_bits),
        cmocka_unit_test(stale_bytes_in_blocks_do_not_matter),
        cmocka_unit_test(only_wanted_rows_are_written),
        cmocka_unit_test(logits_stay_near_those_of_the_oracle),
        cmocka_unit_test(gemm_is_the_product_and_equal_on_every_level),
        cmocka_unit_test(row_kernels_are_right_and_equal_on_every_level),
        cmocka_unit_test(kv_rounding_is_right_and_equal_on_every_level),
        cmocka_unit_test(quantize_takes_zeros_and_things_that_are_no_number),
        cmocka_unit_test(random_weights_of_any_value_do_not_crash),
        cmocka_unit_test(levels_are_known_by_name),
        cmocka_unit_test(environment_chooses_the_level_and_is_refused_by_name),
        cmocka_unit_test(fast_without_kernels_of_its_own_is_exact_and_says_so),
        cmocka_unit_test(backend_tells_what_it_is_and_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
