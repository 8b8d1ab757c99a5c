/* kernels_amx.c - the matrix kernels of kernels.h with AMX tiles; the rest is AVX-512's.
 *
 * Policy `exact`, int8:
 * A tile product over K = 32 columns is the same int32 sum as everywhere: 16 activation rows by 16
 * weight rows. A block of packed weights is a B tile as it lies (eight-bit) or once its nibbles are
 * apart. What follows each block, and its order, is that of kernels_avx512.c. Rows past the last
 * sixteen, and few rows, go to the AVX-512 kernels: the bits are the same.
 *
 * Policy `fast`, bf16: a block of packed weights (16 rows, 32 columns) is widened to one B tile,
 * its columns in pairs, and meets all rows of the call. All eight tiles work: 2 of activations by 2
 * of weights give 4 of sums, so that each load feeds two products. A panel of columns that fits L1
 * is widened at once; between panels the sums rest in memory, as float32, which changes no bit. */
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
        if (at == 0 && c->ahead != NULL) {
            gemm_fetch(c, b, blocks);
        }
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

#define BF16_TILE 512u        /* elements of an A tile: 16 rows, 32 columns */
#define BF16_TILE_BYTES 1024u /* of every tile here */
#define SUM_TILE 256u         /* elements of a C tile: 16 rows, 16 lanes */
#define PANEL_BYTES (KERNEL_PANEL_BLOCKS * BF16_TILE_BYTES) /* of one group */

_Static_assert(2 * PANEL_BYTES + KERNEL_FAST_ROWS_MAX / TILE_ROWS * 2 * SUM_TILE * sizeof(float) ==
                   KERNEL_FAST_SCRATCH,
               "the scratch holds two groups' panels and the sums");

/* Every tile is 16 rows of 64 bytes: 0..3 sums, 4 and 5 activations, 6 and 7 weights. */
static const struct tile_config fast_config = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

/* Rounds the floats' bits to bf16 in the upper halves: nearest, ties away from zero. */
LANE_FN __m512i to_bf16(__m512 x)
{
    return _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
}

/* A column of 16 rows and the next one, as the products want them side by side. */
LANE_FN void put_pair(uint8_t *out, __m512 even, __m512 odd)
{
    __m512i low = _mm512_srli_epi32(to_bf16(even), 16), high = to_bf16(odd);

    /* (high & mask) | low */
    _mm512_store_si512(
        out, _mm512_ternarylogic_epi32(high, _mm512_set1_epi32((int)0xFFFF0000u), low, 0xEA));
}

LANE_FN void widen4(const uint8_t *w, uint8_t *tile)
{
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512 d = load_scales(w + 256), m = load_scales(w + 288), x[4];

    for (unsigned j = 0; j < 4; j++) {
        __m512i both = _mm512_loadu_si512(w + 64 * j);
        for (unsigned high = 0; high < 2; high++) {
            for (unsigned i = 0; i < 4; i++) { /* the look-up takes the index's low four bits */
                __m512i q = _mm512_srli_epi32(both, 8 * i + 4 * high);
                x[i] = _mm512_fmadd_ps(_mm512_permutexvar_ps(q, table), d, m);
            }
            put_pair(tile + 64 * (8 * high + 2 * j), x[0], x[1]);
            put_pair(tile + 64 * (8 * high + 2 * j + 1), x[2], x[3]);
        }
    }
}

LANE_FN void widen8(const uint8_t *w, uint8_t *tile)
{
    /* 2^23 + q is a float whose low bits are q: no conversion. */
    const __m512i whole = _mm512_set1_epi32(0x4B000000), low = _mm512_set1_epi32(255);
    const __m512 bias = _mm512_set1_ps(8388608.0f + 128.0f);
    __m512 d = load_scales(w + 512), x[4];

    for (unsigned j = 0; j < 8; j++) {
        __m512i v = _mm512_loadu_si512(w + 64 * j);
        for (unsigned i = 0; i < 4; i++) { /* (byte i & low) | whole */
            __m512i q = _mm512_ternarylogic_epi32(_mm512_srli_epi32(v, 8 * i), low, whole, 0xEA);
            x[i] = _mm512_mul_ps(_mm512_sub_ps(_mm512_castsi512_ps(q), bias), d);
        }
        put_pair(tile + 128 * j, x[0], x[1]);
        put_pair(tile + 128 * j + 64, x[2], x[3]);
    }
}

/* Blocks first .. first + n - 1 of the call's groups. */
static void widen_panel(const struct fast_call *c, uint32_t first, uint32_t n)
{
    size_t bytes = c->form == PACK_4 ? PACK_4_BYTES : PACK_8_BYTES;

    for (unsigned g = 0; g < 2 && c->group[g] != NULL; g++) {
        const uint8_t *w = c->group[g] + first * bytes;
        uint8_t *tile = c->scratch + g * PANEL_BYTES;
        for (uint32_t i = 0; i < n; i++, w += bytes, tile += BF16_TILE_BYTES) {
            if (c->form == PACK_4) {
                widen4(w, tile);
            } else {
                widen8(w, tile);
            }
        }
    }
}

/* Adds n blocks to the sums of one or two tiles of rows (tiles of activations `apart` elements
 * apart) by one or two groups; the sums begin at zero unless `onward`. */
LANE_FN void multiply(const uint16_t *a, size_t apart, const uint8_t *b, uint32_t n, float *sums,
                      bool onward, const bool two_rows, const bool two_groups)
{
    memory_is_read_next();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (onward) {
        _tile_loadd(0, sums, 64);
        _tile_loadd(1, sums + SUM_TILE, 64);
        if (two_rows) {
            _tile_loadd(2, sums + 2 * SUM_TILE, 64);
            _tile_loadd(3, sums + 3 * SUM_TILE, 64);
        }
    }
    for (uint32_t i = 0; i < n; i++, a += BF16_TILE, b += BF16_TILE_BYTES) {
        _tile_loadd(6, b, 64);
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (two_rows) {
            _tile_loadd(5, a + apart, 64);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (two_groups) {
            _tile_loadd(7, b + PANEL_BYTES, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_rows && two_groups) {
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + SUM_TILE, 64);
    if (two_rows) {
        _tile_stored(2, sums + 2 * SUM_TILE, 64);
        _tile_stored(3, sums + 3 * SUM_TILE, 64);
    }
}

/* All rows of the call by the panel that begins at block `first`. */
static void multiply_panel(const struct fast_call *c, uint32_t first, uint32_t n, float *sums)
{
    size_t apart = (size_t)(c->act->columns / KERNEL_BLOCK) * BF16_TILE;
    bool two_groups = c->group[1] != NULL;

    for (uint32_t at = 0; at < c->count; at += 2 * TILE_ROWS, sums += 4 * SUM_TILE) {
        const uint16_t *a = act_tile_row(c->act, c->first + at, first);
        bool two_rows = c->count - at > TILE_ROWS;
        if (two_rows && two_groups) {
            multiply(a, apart, c->scratch, n, sums, first > 0, true, true);
        } else if (two_rows) {
            multiply(a, apart, c->scratch, n, sums, first > 0, true, false);
        } else if (two_groups) {
            multiply(a, apart, c->scratch, n, sums, first > 0, false, true);
        } else {
            multiply(a, apart, c->scratch, n, sums, first > 0, false, false);
        }
    }
}

static void amx_gemm_fast(const struct fast_call *c)
{
    float *sums = (float *)(void *)(c->scratch + 2 * PANEL_BYTES);
    uint32_t blocks = c->act->columns / KERNEL_BLOCK;

    _tile_loadconfig(&fast_config);
    for (uint32_t b = 0; b < blocks; b += KERNEL_PANEL_BLOCKS) {
        uint32_t n = blocks - b < KERNEL_PANEL_BLOCKS ? blocks - b : KERNEL_PANEL_BLOCKS;
        widen_panel(c, b, n);
        multiply_panel(c, b, n, sums);
    }
    _tile_release();
    for (uint32_t i = 0; i < c->count; i++) {
        const float *row = sums + i / TILE_ROWS * 2 * SUM_TILE + i % TILE_ROWS * KERNEL_LANES;
        float *out = c->out + i * c->stride;
        for (unsigned g = 0; g < 2 && c->group[g] != NULL; g++) {
            __m512 v = _mm512_load_ps(row + g * SUM_TILE);
            if (c->store == GEMM_ADD) {
                v = _mm512_add_ps(_mm512_loadu_ps(out + g * KERNEL_LANES), v);
            }
            _mm512_storeu_ps(out + g * KERNEL_LANES, v);
        }
    }
}

static void amx_quantize(const float *x, struct act *a, uint32_t row, uint32_t first,
                         uint32_t count)
{
    if (a->form == ACT_INT8) {
        level_quantize(x, a, row, first, count);
        return;
    }
    uint16_t *to = act_tile_row(a, row, first / KERNEL_BLOCK);
    for (uint32_t i = 0; i < count; i += KERNEL_BLOCK, to += BF16_TILE) {
        for (unsigned half = 0; half < KERNEL_BLOCK; half += KERNEL_LANES) {
            __m512i v = _mm512_srli_epi32(to_bf16(_mm512_loadu_ps(x + i + half)), 16);
            _mm256_storeu_si256((__m256i *)(void *)(to + half), _mm512_cvtepi32_epi16(v));
        }
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
    .gemm_fast = amx_gemm_fast,
    .norm = level_norm,
    .quantize = amx_quantize,
    .silu = level_silu,
    .round_kv = level_round_kv,
    .attend = avx512bf16_attend,
};
