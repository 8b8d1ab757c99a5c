/* kernels_avx512.c - the arithmetic of kernels.h for AVX-512 with VNNI.
 *
 * vpdpbusd multiplies unsigned weights with signed activations: four-bit weights are unsigned as
 * they are, eight-bit ones carry 128 too much, which starting from c = -128 * sum takes back. The
 * weights of a block are unpacked once for a tile of up to 12 activation rows; each row's products
 * go through one chain of eight vpdpbusd, and the chains of the tile overlap. */
#include "worker/cpu/attend_avx512bf16.h"
#include "worker/cpu/lanes_avx512.h"

#include "worker/cpu/lanes_body.h"
#include "worker/cpu/attend_body.h"

#define PREFETCH 4096 /* bytes ahead in the weight stream, past what the hardware does */
#define TILE_MAX 12u

LANE_FN __m512 load_scales(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

LANE_FN void put(const struct gemm_call *c, uint32_t i, __m512 acc)
{
    float *out = c->out + i * c->stride;

    if (c->store == GEMM_ADD) {
        acc = _mm512_add_ps(_mm512_loadu_ps(out), acc);
    }
    _mm512_storeu_ps(out, acc);
}

LANE_FN __m512i four(const int8_t *q, unsigned j) /* columns 4j .. 4j+3 in every lane */
{
    int32_t v;

    memcpy(&v, q + 4 * j, sizeof(v));
    return _mm512_set1_epi32(v);
}

LANE_FN __m512i dot_block(const __m512i w[8], const int8_t *q, __m512i dot)
{
    for (unsigned j = 0; j < 8; j++) {
        dot = _mm512_dpbusd_epi32(dot, w[j], four(q, j));
    }
    return dot;
}

/* Rows at .. at + n of the call; n is constant after inlining. */
LANE_FN void tile4(const struct gemm_call *c, uint32_t at, const unsigned n)
{
    const struct act *a = c->act;
    uint32_t blocks = a->columns / KERNEL_BLOCK;
    size_t row = c->first + at;
    const uint8_t *w = c->group;
    const __m512i low = _mm512_set1_epi8(15);
    __m512 acc[TILE_MAX];

    for (unsigned t = 0; t < n; t++) {
        acc[t] = _mm512_setzero_ps();
    }
    for (uint32_t b = 0; b < blocks; b++, w += PACK_4_BYTES) {
        if (at == 0 && c->ahead != NULL) {
            gemm_fetch(c, b, blocks);
        }
        __m512i v[8];
        for (unsigned j = 0; j < 4; j++) {
            _mm_prefetch((const char *)w + PREFETCH + 64 * j, _MM_HINT_T0);
            __m512i both = _mm512_loadu_si512(w + 64 * j);
            v[j] = _mm512_and_si512(both, low);
            v[4 + j] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        }
        _mm_prefetch((const char *)w + PREFETCH + 256, _MM_HINT_T0);
        __m512 d = load_scales(w + 256), m = load_scales(w + 288);
        for (unsigned t = 0; t < n; t++) {
            size_t at_block = (row + t) * blocks + b;
            __m512i dot = dot_block(v, a->q + at_block * KERNEL_BLOCK, _mm512_setzero_si512());
            __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(a->d[at_block]));
            acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, acc[t]);
            acc[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(a->s[at_block]), acc[t]);
        }
    }
    for (unsigned t = 0; t < n; t++) {
        put(c, at + t, acc[t]);
    }
}

LANE_FN void tile8(const struct gemm_call *c, uint32_t at, const unsigned n)
{
    const struct act *a = c->act;
    uint32_t blocks = a->columns / KERNEL_BLOCK;
    size_t row = c->first + at;
    const uint8_t *w = c->group;
    __m512 acc[TILE_MAX];

    for (unsigned t = 0; t < n; t++) {
        acc[t] = _mm512_setzero_ps();
    }
    for (uint32_t b = 0; b < blocks; b++, w += PACK_8_BYTES) {
        if (at == 0 && c->ahead != NULL) {
            gemm_fetch(c, b, blocks);
        }
        __m512i v[8];
        for (unsigned j = 0; j < 8; j++) {
            _mm_prefetch((const char *)w + PREFETCH + 64 * j, _MM_HINT_T0);
            v[j] = _mm512_loadu_si512(w + 64 * j);
        }
        __m512 d = load_scales(w + 512);
        for (unsigned t = 0; t < n; t++) {
            size_t at_block = (row + t) * blocks + b;
            __m512i dot =
                dot_block(v, a->q + at_block * KERNEL_BLOCK, _mm512_set1_epi32(a->c[at_block]));
            __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(a->d[at_block]));
            acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, acc[t]);
        }
    }
    for (unsigned t = 0; t < n; t++) {
        put(c, at + t, acc[t]);
    }
}

/* Splits the rows into tiles of constant size. */
#define LEVEL_GEMM(name, tile)                                                                     \
    static void name(const struct gemm_call *c)                                                    \
    {                                                                                              \
        uint32_t at = 0;                                                                           \
        for (; c->count - at >= 12 && c->count - at != 16; at += 12) {                             \
            tile(c, at, 12);                                                                       \
        }                                                                                          \
        for (; c->count - at >= 8; at += 8) {                                                      \
            tile(c, at, 8);                                                                        \
        }                                                                                          \
        switch (c->count - at) {                                                                   \
        case 7:                                                                                    \
            tile(c, at, 7);                                                                        \
            break;                                                                                 \
        case 6:                                                                                    \
            tile(c, at, 6);                                                                        \
            break;                                                                                 \
        case 5:                                                                                    \
            tile(c, at, 5);                                                                        \
            break;                                                                                 \
        case 4:                                                                                    \
            tile(c, at, 4);                                                                        \
            break;                                                                                 \
        case 3:                                                                                    \
            tile(c, at, 3);                                                                        \
            break;                                                                                 \
        case 2:                                                                                    \
            tile(c, at, 2);                                                                        \
            break;                                                                                 \
        case 1:                                                                                    \
            tile(c, at, 1);                                                                        \
            break;                                                                                 \
        default:                                                                                   \
            break;                                                                                 \
        }                                                                                          \
    }

LEVEL_GEMM(avx512_gemm4, tile4)
LEVEL_GEMM(avx512_gemm8, tile8)

#define LEVEL_KERNELS(table, text, attention)                                                      \
    const struct kernels table = {                                                                 \
        .name = text,                                                                              \
        .gemm4 = avx512_gemm4,                                                                     \
        .gemm8 = avx512_gemm8,                                                                     \
        .norm = level_norm,                                                                        \
        .quantize = level_quantize,                                                                \
        .silu = level_silu,                                                                        \
        .round_kv = level_round_kv,                                                                \
        .attend = attention,                                                                       \
    }

LEVEL_KERNELS(kernels_avx512, "AVX-512 VNNI", level_attend);
LEVEL_KERNELS(kernels_avx512bf16, "AVX-512 VNNI BF16", avx512bf16_attend);
