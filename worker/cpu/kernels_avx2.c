/* kernels_avx2.c - the arithmetic of kernels.h for AVX2 with FMA and F16C.
 *
 * vpmaddubsw adds pairs of products in 16 bits. Four-bit weights: eight such sums stay below 2^15
 * (16 * 15 * 127 = 30,480). Eight-bit weights are split into magnitude and sign, the sign moved to
 * the activation: a pair stays below 2^15 (2 * 128 * 127 = 32,512), so each pair is widened first.
 * Half a group (8 rows) at a time, for tiles of up to 4 activation rows. */
#include "worker/cpu/lanes_avx2.h"

#include "worker/cpu/lanes_body.h"
#include "worker/cpu/attend_body.h"

#define PREFETCH 2048
#define TILE_MAX 4u

LANE_FN __m256 load_scales(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

LANE_FN void put(const struct gemm_call *c, uint32_t i, unsigned half, __m256 acc)
{
    float *out = c->out + i * c->stride + 8 * half;

    if (c->store == GEMM_ADD) {
        acc = _mm256_add_ps(_mm256_loadu_ps(out), acc);
    }
    _mm256_storeu_ps(out, acc);
}

LANE_FN __m256i four(const int8_t *q, unsigned j) /* columns 4j .. 4j+3 in every lane */
{
    int32_t v;

    memcpy(&v, q + 4 * j, sizeof(v));
    return _mm256_set1_epi32(v);
}

LANE_FN void tile4(const struct gemm_call *c, uint32_t at, unsigned half, const unsigned n)
{
    const struct act *a = c->act;
    uint32_t blocks = a->columns / KERNEL_BLOCK;
    size_t row = c->first + at;
    const uint8_t *w = c->group;
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256 acc[TILE_MAX];

    for (unsigned t = 0; t < n; t++) {
        acc[t] = _mm256_setzero_ps();
    }
    for (uint32_t b = 0; b < blocks; b++, w += PACK_4_BYTES) {
        if (at == 0 && half == 0 && c->ahead != NULL) {
            gemm_fetch(c, b, blocks);
        }
        __m256i v[8];
        for (unsigned j = 0; j < 4; j++) {
            _mm_prefetch((const char *)w + PREFETCH + 64 * j, _MM_HINT_T0);
            __m256i both = _mm256_loadu_si256((const __m256i *)(w + 64 * j + 32 * half));
            v[j] = _mm256_and_si256(both, low);
            v[4 + j] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
        }
        __m256 d = load_scales(w + 256 + 16 * half), m = load_scales(w + 288 + 16 * half);
        for (unsigned t = 0; t < n; t++) {
            size_t at_block = (row + t) * blocks + b;
            const int8_t *q = a->q + at_block * KERNEL_BLOCK;
            __m256i sum = _mm256_maddubs_epi16(v[0], four(q, 0));
            for (unsigned j = 1; j < 8; j++) {
                sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(v[j], four(q, j)));
            }
            __m256 dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(sum, ones));
            acc[t] = _mm256_fmadd_ps(dot, _mm256_mul_ps(d, _mm256_set1_ps(a->d[at_block])), acc[t]);
            acc[t] = _mm256_fmadd_ps(m, _mm256_set1_ps(a->s[at_block]), acc[t]);
        }
    }
    for (unsigned t = 0; t < n; t++) {
        put(c, at + t, half, acc[t]);
    }
}

LANE_FN void tile8(const struct gemm_call *c, uint32_t at, unsigned half, const unsigned n)
{
    const struct act *a = c->act;
    uint32_t blocks = a->columns / KERNEL_BLOCK;
    size_t row = c->first + at;
    const uint8_t *w = c->group;
    const __m256i offset = _mm256_set1_epi8((char)0x80), ones = _mm256_set1_epi16(1);
    __m256 acc[TILE_MAX];

    for (unsigned t = 0; t < n; t++) {
        acc[t] = _mm256_setzero_ps();
    }
    for (uint32_t b = 0; b < blocks; b++, w += PACK_8_BYTES) {
        if (at == 0 && half == 0 && c->ahead != NULL) {
            gemm_fetch(c, b, blocks);
        }
        __m256i v[8];
        for (unsigned j = 0; j < 8; j++) {
            _mm_prefetch((const char *)w + PREFETCH + 64 * j, _MM_HINT_T0);
            v[j] = _mm256_loadu_si256((const __m256i *)(w + 64 * j + 32 * half));
            v[j] = _mm256_xor_si256(v[j], offset);
        }
        __m256 d = load_scales(w + 512 + 16 * half);
        for (unsigned t = 0; t < n; t++) {
            size_t at_block = (row + t) * blocks + b;
            const int8_t *q = a->q + at_block * KERNEL_BLOCK;
            __m256i sum = _mm256_setzero_si256();
            for (unsigned j = 0; j < 8; j++) {
                __m256i signed_q = _mm256_sign_epi8(four(q, j), v[j]);
                __m256i pair = _mm256_maddubs_epi16(_mm256_abs_epi8(v[j]), signed_q);
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pair, ones));
            }
            __m256 scale = _mm256_mul_ps(d, _mm256_set1_ps(a->d[at_block]));
            acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, acc[t]);
        }
    }
    for (unsigned t = 0; t < n; t++) {
        put(c, at + t, half, acc[t]);
    }
}

/* Splits the rows into tiles of constant size, each for both halves of the group. */
#define LEVEL_GEMM(name, tile)                                                                     \
    static void name(const struct gemm_call *c)                                                    \
    {                                                                                              \
        for (unsigned half = 0; half < 2; half++) {                                                \
            uint32_t at = 0;                                                                       \
            for (; c->count - at >= 4; at += 4) {                                                  \
                tile(c, at, half, 4);                                                              \
            }                                                                                      \
            for (; c->count - at >= 2; at += 2) {                                                  \
                tile(c, at, half, 2);                                                              \
            }                                                                                      \
            if (c->count > at) {                                                                   \
                tile(c, at, half, 1);                                                              \
            }                                                                                      \
        }                                                                                          \
    }

LEVEL_GEMM(avx2_gemm4, tile4)
LEVEL_GEMM(avx2_gemm8, tile8)

const struct kernels kernels_avx2 = {
    .name = "AVX2",
    .gemm4 = avx2_gemm4,
    .gemm8 = avx2_gemm8,
    .norm = level_norm,
    .quantize = level_quantize,
    .silu = level_silu,
    .round_kv = level_round_kv,
    .attend = level_attend,
};
