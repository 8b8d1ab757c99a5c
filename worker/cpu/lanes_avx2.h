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
LANE_FN lanes lanes_i8(const int8_t *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    return (lanes){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)),
                   _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)))};
}
LANE_FN lanes lanes_first(unsigned n, lanes x, lanes y)
{
    __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), count = _mm256_set1_epi32((int)n);
    __m256i a = _mm256_cmpgt_epi32(count, at);
    __m256i b = _mm256_cmpgt_epi32(count, _mm256_add_epi32(at, _mm256_set1_epi32(8)));
    return (lanes){_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(a)),
                   _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(b))};
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

#endif
#endif
