/* lanes_avx2.h - the sixteen lanes of lanes_portable.h in two AVX2 registers, bit for bit. */
#ifndef WORKER_CPU_LANES_AVX2_H
#define WORKER_CPU_LANES_AVX2_H

#include "worker/cpu/kernels.h"

#if defined(__AVX2__) /* only kernels_avx2.c is compiled for it; elsewhere this is empty */

#include <immintrin.h>

#define LANE_FN static inline __attribute__((always_inline, unused))

typedef struct {
    __m256 a, b;
} lanes;

LANE_FN lanes lanes_load(const float *p)
{
    return (lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
LANE_FN void lanes_store(float *p, lanes x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
LANE_FN lanes lanes_set(float v)
{
    return (lanes){_mm256_set1_ps(v), _mm256_set1_ps(v)};
}
LANE_FN lanes lanes_add(lanes x, lanes y)
{
    return (lanes){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
LANE_FN lanes lanes_sub(lanes x, lanes y)
{
    return (lanes){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
LANE_FN lanes lanes_mul(lanes x, lanes y)
{
    return (lanes){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
LANE_FN lanes lanes_div(lanes x, lanes y)
{
    return (lanes){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
LANE_FN lanes lanes_fma(lanes x, lanes y, lanes z)
{
    return (lanes){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
LANE_FN lanes lanes_max(lanes x, lanes y)
{
    return (lanes){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
LANE_FN lanes lanes_min(lanes x, lanes y)
{
    return (lanes){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
LANE_FN bool lanes_any_above(lanes x, lanes y)
{
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ),
                                           _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ))) != 0;
}
LANE_FN lanes lanes_abs(lanes x)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (lanes){_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
LANE_FN lanes lanes_bf16(const uint16_t *p)
{
    __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8)));
    return (lanes){_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
                   _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
}
LANE_FN lanes lanes_first(unsigned n, lanes x, lanes y)
{
    __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), count = _mm256_set1_epi32((int)n);
    __m256i a = _mm256_cmpgt_epi32(count, at);
    __m256i b = _mm256_cmpgt_epi32(count, _mm256_add_epi32(at, _mm256_set1_epi32(8)));
    return (lanes){_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(a)),
                   _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(b))};
}
LANE_FN lanes lanes_shift(lanes x, lanes biased)
{
    __m256i a = _mm256_slli_epi32(_mm256_castps_si256(biased.a), 23);
    __m256i b = _mm256_slli_epi32(_mm256_castps_si256(biased.b), 23);
    return (lanes){_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.a), a)),
                   _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.b), b))};
}
LANE_FN lanes lanes_power(lanes x)
{
    __m256i one = _mm256_set1_epi32(0x3F800000);
    __m256i a = _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(x.a), 23), one);
    __m256i b = _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(x.b), 23), one);
    return (lanes){_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)};
}
LANE_FN void lanes_store_i8(int8_t *p, lanes x)
{
    __m256i w = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    w = _mm256_permute4x64_epi64(w, 0xD8); /* packs works within halves */
    __m128i b = _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    _mm_storeu_si128((__m128i *)p, b);
}
LANE_FN float lanes_sum(lanes x)
{
    __m256 a = _mm256_add_ps(x.a, x.b);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
LANE_FN float lanes_top(lanes x)
{
    __m256 a = _mm256_max_ps(x.a, x.b);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

typedef struct {
    __m256i a, b; /* as stored; the products take them apart */
} pairs;

LANE_FN pairs pairs_load(const uint16_t *p)
{
    return (pairs){_mm256_loadu_si256((const __m256i *)p),
                   _mm256_loadu_si256((const __m256i *)(p + 16))};
}
LANE_FN __m256i bf16_of_i8(__m128i x) /* 16 whole numbers: all are exact in bf16 */
{
    __m256i a = _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)));
    __m256i b = _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))));
    a = _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
    return _mm256_permute4x64_epi64(a, 0xD8); /* packs works within halves */
}
LANE_FN pairs pairs_i8(const int8_t *p)
{
    return (pairs){bf16_of_i8(_mm_loadu_si128((const __m128i *)p)),
                   bf16_of_i8(_mm_loadu_si128((const __m128i *)(p + 16)))};
}
LANE_FN pairs pairs_set(const uint16_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof(v));
    return (pairs){_mm256_set1_epi32(v), _mm256_set1_epi32(v)};
}
LANE_FN pairs pairs_even(pairs x)
{
    __m256i even = _mm256_set1_epi32(0xFFFF);
    return (pairs){_mm256_and_si256(x.a, even), _mm256_and_si256(x.b, even)};
}
LANE_FN void pairs_store(uint16_t *p, pairs x)
{
    _mm256_storeu_si256((__m256i *)p, x.a);
    _mm256_storeu_si256((__m256i *)(p + 16), x.b);
}
LANE_FN __m256 dot_half(__m256i x, __m256i y, __m256 acc)
{
    __m256i odd = _mm256_set1_epi32((int)0xFFFF0000);
    acc = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(x, odd)),
                          _mm256_castsi256_ps(_mm256_and_si256(y, odd)), acc);
    return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
                           _mm256_castsi256_ps(_mm256_slli_epi32(y, 16)), acc);
}
LANE_FN lanes pairs_dot(pairs x, pairs y, lanes acc)
{
    return (lanes){dot_half(x.a, y.a, acc.a), dot_half(x.b, y.b, acc.b)};
}
LANE_FN __m256i round_half(__m256 x)
{
    __m256i u = _mm256_castps_si256(x);
    __m256i tie = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    u = _mm256_add_epi32(u, _mm256_add_epi32(tie, _mm256_set1_epi32(0x7FFF)));
    return _mm256_srli_epi32(u, 16);
}
LANE_FN void pairs_round(uint16_t *p, lanes x, lanes y)
{
    __m256i a = _mm256_packus_epi32(round_half(x.a), round_half(x.b));
    __m256i b = _mm256_packus_epi32(round_half(y.a), round_half(y.b));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(a, 0xD8));
    _mm256_storeu_si256((__m256i *)(p + 16), _mm256_permute4x64_epi64(b, 0xD8));
}
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
