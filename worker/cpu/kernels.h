/* kernels.h - the arithmetic of the cpu backend, one table of functions a level.
 *
 * Every level gives the same bits. The order of all sums, in all levels:
 *
 * - matrix, per row and token: for blocks of 32 columns ascending, dot = int32 sum of products,
 *   acc = fma(dot, dw * da, acc), then (four-bit form) acc = fma(m, sa, acc); acc from 0;
 * - norm: 16 lanes (lane = column mod 16), fma(x, x, lane) ascending; tree 8, 4, 2, 1;
 * - attention: tiles of 32 keys at absolute positions, ascending. Every product is of bf16 with
 *   bf16, added in pairs: acc = fma(x[2i + 1], y[2i + 1], acc), then fma(x[2i], y[2i], acc),
 *   denormals taken for zero (as vdpbf16ps does). Scores: q * scale * log2(e) rounded to bf16,
 *   pairs of columns ascending. Online softmax to base 2: lane sums fma(l, correction, p), then +
 *   upper 16 keys. Values: p rounded to bf16, pairs of keys ascending. int8 KV: a score is
 *   multiplied with the key's scale, and p with the value's before it is rounded;
 * - exp (SiLU): Cody-Waite reduction and a polynomial of degree 6 in fma; exp2 (attention): one of
 *   degree 4; see lanes_body.h. */
#ifndef WORKER_CPU_KERNELS_H
#define WORKER_CPU_KERNELS_H

#include "base/base.h"

#define KERNEL_LANES 16u
#define KERNEL_BLOCK 32u /* columns that share a scale */
#define KERNEL_TILE 32u  /* keys of one attention tile = tokens of a KV block */
#define KERNEL_HEAD_DIM_MAX 256u

/* Packed weights: groups of 16 rows, each group the blocks of 32 columns ascending.
 * Four bits: 4 x 64 bytes; byte 4r + i of vector j holds column 4j + i of row r in the low nibble
 * and column 16 + 4j + i in the high one; then 16 fp16 scales d, 16 fp16 minima m: value = q d + m.
 * Eight bits: 8 x 64 bytes; byte 4r + i of vector j holds 128 + the int8 of column 4j + i of row r;
 *   then 16 fp16 scales. */
enum pack_form { PACK_4 = 1, PACK_8 };
#define PACK_4_BYTES 320u
#define PACK_8_BYTES 544u

/* Activations in int8 [rows][columns], with per block of 32: scale d, s = d * sum, c = -128 * sum.
 * Or, for gemm_fast alone, in bf16: [rows / 16][columns / 32] tiles of [16][32], whole tiles. */
enum act_form { ACT_INT8 = 0, ACT_BF16 };
struct act {
    int8_t *q;
    float *d, *s; /* [rows][columns / 32] */
    int32_t *c;
    uint32_t columns;
    enum act_form form; /* of this step's rows */
    uint16_t *tiles;    /* NULL: never bf16 */
};

/* Row `row`'s 32 columns of a block, in bf16. */
static inline uint16_t *act_tile_row(const struct act *a, uint32_t row, uint32_t block)
{
    size_t tile = (size_t)(row / KERNEL_LANES) * (a->columns / KERNEL_BLOCK) + block;

    return a->tiles + (tile * KERNEL_LANES + row % KERNEL_LANES) * KERNEL_BLOCK;
}

enum gemm_store { GEMM_SET = 1, GEMM_ADD };

/* One group of 16 rows times the activation rows first .. first + count - 1:
 * out[i * stride + lane] = (or +=) the products, i from 0. */
struct gemm_call {
    const uint8_t *group;
    const struct act *act;
    uint32_t first, count;
    float *out;
    size_t stride;
    enum gemm_store store;
    /* Wanted soon by somebody else: the lines of two pages, fetched on the way. NULL: none. */
    const uint8_t *ahead;
    size_t ahead_gap, ahead_lines; /* from one page to the other, in bytes; lines of 64 of each */
};

/* Of block `block` of `blocks`: its share of what is wanted soon. */
static inline __attribute__((always_inline)) void gemm_fetch(const struct gemm_call *c,
                                                             uint32_t block, uint32_t blocks)
{
    size_t each = (c->ahead_lines + blocks - 1) / blocks, end = (block + 1) * each;

    for (size_t i = block * each; i < (end < c->ahead_lines ? end : c->ahead_lines); i++) {
        __builtin_prefetch(c->ahead + 64 * i, 0, 2);
        __builtin_prefetch(c->ahead + c->ahead_gap + 64 * i, 0, 2);
    }
}

/* Policy `fast`: one group or two neighbours, widened to bf16 (q d + m, rounded to nearest), times
 * activations in bf16; float32 sums over ascending columns. A row's sum does not depend on the rows
 * beside it. */
#define KERNEL_FAST_ROWS 32u       /* steps of fewer rows are computed as in `exact` */
#define KERNEL_FAST_ROWS_MAX 128u  /* of one call */
#define KERNEL_PANEL_BLOCKS 18u    /* widened at once: 36 KiB for two groups, most of an L1 */
#define KERNEL_FAST_SCRATCH 53248u /* bytes: that, and the call's sums */

struct fast_call {
    const uint8_t *group[2]; /* the second NULL: there is one */
    enum pack_form form;
    const struct act *act; /* ACT_BF16 */
    uint32_t first, count; /* first is a multiple of 16 */
    float *out;            /* as gemm_call; the second group's products at out + 16 */
    size_t stride;
    enum gemm_store store;
    uint8_t *scratch; /* KERNEL_FAST_SCRATCH bytes in lines of 64, one caller at a time */
};

/* A page holds keys or values of one block, layer and head: keys [head_dim / 2][32 tokens][2
 * columns], values [16 pairs of tokens][head_dim][2 tokens]. */
enum kv_form {
    KV_BF16 = 1,
    KV_INT8, /* then the page's 32 scales in bf16 */
};

static inline size_t kernel_page_bytes(enum kv_form form, uint32_t head_dim)
{
    size_t n = (size_t)KERNEL_TILE * head_dim;

    return form == KV_BF16 ? 2 * n : n + 2 * KERNEL_TILE;
}

/* Some query heads of consecutive rows of one sequence against the KV head they share. */
struct attend_call {
    const uint8_t *kv; /* key page of block b at kv + b * block_stride */
    enum kv_form form;
    size_t block_stride;     /* in bytes */
    size_t value_offset;     /* from a key page to its value page */
    const uint8_t *after;    /* a key page that is wanted soon after this call; NULL: none */
    const uint32_t *table;   /* block ids of the sequence */
    uint32_t first_position; /* of the first row */
    uint32_t rows, heads;
    uint32_t head_dim;
    float scale;
    float *q; /* row i, head h at q + i * stride + h * head_dim; replaced by the result */
    size_t stride;
    float *scratch; /* kernel_attend_scratch floats, one caller at a time */
};

static inline size_t kernel_attend_scratch(uint32_t queries, uint32_t head_dim)
{
    size_t q = (head_dim + KERNEL_BLOCK - 1) / KERNEL_BLOCK * KERNEL_BLOCK / 2;

    return 2u * KERNEL_TILE * head_dim + queries * (q + head_dim + KERNEL_LANES + KERNEL_LANES);
}

struct kernels {
    const char *name;
    void (*gemm4)(const struct gemm_call *);
    void (*gemm8)(const struct gemm_call *);
    void (*gemm_fast)(const struct fast_call *); /* NULL: the level has nothing for `fast` */
    /* out[columns] = x * rsqrt(mean(x^2) + eps) * weight; columns a multiple of 32. */
    void (*norm)(const float *x, const float *weight, uint32_t columns, float eps, float *out);
    /* Row `row` of a, in a's form (ACT_BF16 only where gemm_fast is): columns first ..
     * first + count - 1 from x[count], multiples of 32. */
    void (*quantize)(const float *x, struct act *a, uint32_t row, uint32_t first, uint32_t count);
    /* gate[n] = gate / (1 + exp(-gate)) * up; n a multiple of 16. */
    void (*silu)(float *gate, const float *up, uint32_t n);
    /* x[n] as integers q and the scale that is returned, which bf16 holds; n a multiple of 16. */
    float (*round_kv)(const float *x, uint32_t n, int8_t *q);
    void (*attend)(const struct attend_call *);
};

extern const struct kernels kernels_portable;
#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avx512, kernels_avx512bf16, kernels_amx;
#endif

#endif
