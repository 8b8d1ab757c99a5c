/* lanes_avx512.h - the sixteen lanes of lanes_portable.h in one AVX-512 register, bit for bit. */
#ifndef WORKER_CPU_LANES_AVX512_H
#define WORKER_CPU_LANES_AVX512_H

#include "worker/cpu/kernels.h"

#if defined(__AVX512F__) /* only kernels_avx512.c is compiled for it; elsewhere this is empty */

#include <immintrin.h>

#define LANE_FN static inline __attribute__((always_inline, unused))

typedef __m512 lanes;

LANE_FN lanes lanes_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
LANE_FN void lanes_store(float *p, lanes x)
{
    _mm512_storeu_ps(p, x);
}
LANE_FN lanes lanes_set(float v)
{
    return _mm512_set1_ps(v);
}
LANE_FN lanes lanes_add(lanes x, lanes y)
{
    return _mm512_add_ps(x, y);
}
LANE_FN lanes lanes_sub(lanes x, lanes y)
{
    return _mm512_sub_ps(x, y);
}
LANE_FN lanes lanes_mul(lanes x, lanes y)
{
    return _mm512_mul_ps(x, y);
}
LANE_FN lanes lanes_div(lanes x, lanes y)
{
    return _mm512_div_ps(x, y);
}
LANE_FN lanes lanes_fma(lanes x, lanes y, lanes z)
{
    return _mm512_fmadd_ps(x, y, z);
}
LANE_FN lanes lanes_max(lanes x, lanes y)
{
    return _mm512_max_ps(x, y);
}
LANE_FN lanes lanes_min(lanes x, lanes y)
{
    return _mm512_min_ps(x, y);
}
LANE_FN bool lanes_any_above(lanes x, lanes y)
{
    return _mm512_cmp_ps_mask(x, y, _CMP_GT_OQ) != 0;
}
LANE_FN lanes lanes_abs(lanes x)
{
    return _mm512_abs_ps(x);
}
LANE_FN lanes lanes_bf16(const uint16_t *p)
{
    __m512i v = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
}
LANE_FN lanes lanes_first(unsigned n, lanes x, lanes y)
{
    return _mm512_mask_mov_ps(y, (__mmask16)(n >= 16 ? 0xFFFFu : (1u << n) - 1u), x);
}
LANE_FN lanes lanes_shift(lanes x, lanes biased)
{
    __m512i n = _mm512_slli_epi32(_mm512_castps_si512(biased), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), n));
}
LANE_FN lanes lanes_power(lanes x)
{
    __m512i v = _mm512_slli_epi32(_mm512_castps_si512(x), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(v, _mm512_set1_epi32(0x3F800000)));
}
LANE_FN void lanes_store_i8(int8_t *p, lanes x)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}
LANE_FN __m256 lanes_fold(lanes x, __m256 *upper)
{
    *upper = _mm512_extractf32x8_ps(x, 1);
    return _mm512_castps512_ps256(x);
}
LANE_FN float lanes_sum(lanes x)
{
    __m256 upper, lower = lanes_fold(x, &upper), a = _mm256_add_ps(lower, upper);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
LANE_FN float lanes_top(lanes x)
{
    __m256 upper, lower = lanes_fold(x, &upper), a = _mm256_max_ps(lower, upper);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

typedef __m512i pairs;

LANE_FN pairs pairs_load(const uint16_t *p)
{
    return _mm512_loadu_si512(p);
}
LANE_FN __m256i bf16_of_i8(__m128i x) /* 16 whole numbers: all are exact in bf16 */
{
    __m512i v = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16));
}
LANE_FN pairs pairs_i8(const int8_t *p)
{
    __m256i a = bf16_of_i8(_mm_loadu_si128((const __m128i *)p));
    __m256i b = bf16_of_i8(_mm_loadu_si128((const __m128i *)(p + 16)));
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}
LANE_FN pairs pairs_set(const uint16_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof(v));
    return _mm512_set1_epi32(v);
}
LANE_FN pairs pairs_even(pairs x)
{
    return _mm512_and_si512(x, _mm512_set1_epi32(0xFFFF));
}
LANE_FN void pairs_store(uint16_t *p, pairs x)
{
    _mm512_storeu_si512(p, x);
}
#if defined(__AVX512BF16__)
LANE_FN lanes pairs_dot(pairs x, pairs y, lanes acc)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)y);
}
LANE_FN void pairs_round(uint16_t *p, lanes x, lanes y)
{
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(y, x));
}
#else
LANE_FN lanes pairs_dot(pairs x, pairs y, lanes acc)
{
    __m512i odd = _mm512_set1_epi32((int)0xFFFF0000);
    acc = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, odd)),
                          _mm512_castsi512_ps(_mm512_and_si512(y, odd)), acc);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                           _mm512_castsi512_ps(_mm512_slli_epi32(y, 16)), acc);
}
LANE_FN __m256i round_half(__m512 x)
{
    __m512i u = _mm512_castps_si512(x);
    __m512i tie = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(u, _mm512_add_epi32(tie, _mm512_set1_epi32(0x7FFF)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16));
}
LANE_FN void pairs_round(uint16_t *p, lanes x, lanes y)
{
    _mm256_storeu_si256((__m256i *)p, round_half(x));
    _mm256_storeu_si256((__m256i *)(p + 16), round_half(y));
}
#endif
LANE_FN unsigned lanes_denormals_off(void)
{
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040u);
    return before;
}
LANE_FN void lanes_denormals_on(unsigned before)
{
    _mm_setcsr(before);
}

#endif
#endif
