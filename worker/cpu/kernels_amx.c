/* kernels_amx.c - the matrix kernels of kernels.h with AMX int8 tiles; the rest is AVX-512's.
 *
 * A tile product over K = 32 columns is the same int32 sum as everywhere: 16 activation rows by 16
 * weight rows. A block of packed weights is a B tile as it lies (eight-bit) or once its nibbles are
 * apart. What follows each block, and its order, is that of kernels_avx512.c. Rows past the last
 * sixteen, and few rows, go to the AVX-512 kernels: the bits are the same. */
#include "worker/cpu/attend_avx512bf16.h"
#include "worker/cpu/lanes_avx512.h"

#include "worker/cpu/lanes_body.h"

#define TILE_ROWS 16u
#define ROWS_MIN                                                                                   \
    16u /* fewer: the tile's set-up and the store of its sums cost more than they give */

enum { TILE_C = 0, TILE_A = 1, TILE_B = 2 }; /* numbers: the intrinsics paste them */

/* The 64 bytes of ldtilecfg: rows and bytes a row of each tile. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static const struct tile_config config = {
    .palette = 1,
    .row_bytes = {[TILE_C] = 64, [TILE_A] = KERNEL_BLOCK, [TILE_B] = 64},
    .rows = {[TILE_C] = TILE_ROWS, [TILE_A] = TILE_ROWS, [TILE_B] = KERNEL_BLOCK / 4},
};

LANE_FN __m512 load_scales(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* The intrinsics do not tell the compiler that they read memory. */
LANE_FN void memory_is_read_next(void)
{
    __asm__ volatile("" ::: "memory");
}

/* sums[row][lane] of 16 activation rows at `q`, which lie `columns` apart, and one block. */
LANE_FN void block_sums(const int8_t *q, uint32_t columns, const uint8_t *block, int32_t *sums)
{
    memory_is_read_next();
    _tile_zero(0);
    _tile_loadd(1, q, columns);
    _tile_loadd(2, block, 64);
    _tile_dpbsud(0, 1, 2);
    _tile_stored(0, sums, 64);
}

LANE_FN void split_nibbles(const uint8_t *block, uint8_t *out)
{
    const __m512i low = _mm512_set1_epi8(15);

    for (unsigned j = 0; j < 4; j++) {
        __m512i both = _mm512_loadu_si512(block + 64 * j);
        _mm512_store_si512(out + 64 * j, _mm512_and_si512(both, low));
        _mm512_store_si512(out + 256 + 64 * j, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
    }
}

LANE_FN void put_tile(const struct gemm_call *c, uint32_t at, const __m512 acc[TILE_ROWS])
{
    for (unsigned t = 0; t < TILE_ROWS; t++) {
        float *out = c->out + (at + t) * c->stride;
        __m512 v = c->store == GEMM_ADD ? _mm512_add_ps(_mm512_loadu_ps(out), acc[t]) : acc[t];
        _mm512_storeu_ps(out, v);
    }
}

/* Rows at .. at + 15 of the call. */
LANE_FN void tile_rows(const struct gemm_call *c, uint32_t at, const bool four_bits)
{
    const struct act *a = c->act;
    uint32_t blocks = a->columns / KERNEL_BLOCK;
    size_t row = c->first + at;
    const uint8_t *w = c->group;
    _Alignas(64) int32_t sums[TILE_ROWS * KERNEL_LANES];
    _Alignas(64) uint8_t apart[512];
    __m512 acc[TILE_ROWS];

    for (unsigned t = 0; t < TILE_ROWS; t++) {
        acc[t] = _mm512_setzero_ps();
    }
    for (uint32_t b = 0; b < blocks; b++, w += four_bits ? PACK_4_BYTES : PACK_8_BYTES) {
        if (four_bits) {
            split_nibbles(w, apart);
        }
        block_sums(a->q + row * a->columns + b * KERNEL_BLOCK, a->columns, four_bits ? apart : w,
                   sums);
        __m512 d = load_scales(w + (four_bits ? 256 : 512));
        __m512 m = four_bits ? load_scales(w + 288) : _mm512_setzero_ps();
        for (unsigned t = 0; t < TILE_ROWS; t++) {
            size_t at_block = (row + t) * blocks + b;
            __m512i dot = _mm512_load_si512(sums + t * KERNEL_LANES);
            if (!four_bits) {
                dot = _mm512_add_epi32(dot, _mm512_set1_epi32(a->c[at_block]));
            }
            __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(a->d[at_block]));
            acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, acc[t]);
            if (four_bits) {
                acc[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(a->s[at_block]), acc[t]);
            }
        }
    }
    put_tile(c, at, acc);
}

LANE_FN void amx_gemm(const struct gemm_call *c, const bool four_bits)
{
    struct gemm_call rest = *c;
    uint32_t at = 0;

    if (c->count >= ROWS_MIN) {
        _tile_loadconfig(&config);
        for (; c->count - at >= TILE_ROWS; at += TILE_ROWS) {
            tile_rows(c, at, four_bits);
        }
        _tile_release();
    }
    rest.first += at;
    rest.count -= at;
    rest.out += at * c->stride;
    if (rest.count > 0) {
        (four_bits ? kernels_avx512.gemm4 : kernels_avx512.gemm8)(&rest);
    }
}

static void amx_gemm4(const struct gemm_call *c)
{
    amx_gemm(c, true);
}

static void amx_gemm8(const struct gemm_call *c)
{
    amx_gemm(c, false);
}

const struct kernels kernels_amx = {
    .name = "AMX int8",
    .gemm4 = amx_gemm4,
    .gemm8 = amx_gemm8,
    .norm = level_norm,
    .quantize = level_quantize,
    .silu = level_silu,
    .round_kv = level_round_kv,
    .attend = avx512bf16_attend,
};
