/* lanes_portable.h - sixteen float lanes in plain C; also what lanes_avx2.h and lanes_avx512.h
 * mean. */
#ifndef WORKER_CPU_LANES_PORTABLE_H
#define WORKER_CPU_LANES_PORTABLE_H

#include "worker/cpu/kernels.h"
#include "worker/model/quant.h"

#include <math.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LANE_FN                                                                                    \
    static __attribute__((unused)) /* inlined and checked it takes minutes to compile              \
                                    */
#else
#define LANE_FN static inline __attribute__((always_inline, unused))
#endif

typedef struct {
    float f[16];
} lanes;

#define LANES_MAP(expression)                                                                      \
    lanes r;                                                                                       \
    for (unsigned i = 0; i < 16; i++) {                                                            \
        r.f[i] = (expression);                                                                     \
    }                                                                                              \
    return r

LANE_FN lanes lanes_load(const float *p)
{
    LANES_MAP(p[i]);
}
LANE_FN void lanes_store(float *p, lanes a)
{
    memcpy(p, a.f, sizeof(a.f));
}
LANE_FN lanes lanes_set(float v)
{
    LANES_MAP(v);
}
LANE_FN lanes lanes_add(lanes a, lanes b)
{
    LANES_MAP(a.f[i] + b.f[i]);
}
LANE_FN lanes lanes_sub(lanes a, lanes b)
{
    LANES_MAP(a.f[i] - b.f[i]);
}
LANE_FN lanes lanes_mul(lanes a, lanes b)
{
    LANES_MAP(a.f[i] * b.f[i]);
}
LANE_FN lanes lanes_div(lanes a, lanes b)
{
    LANES_MAP(a.f[i] / b.f[i]);
}
LANE_FN lanes lanes_fma(lanes a, lanes b, lanes c) /* a * b + c, rounded once */
{
    LANES_MAP(fmaf(a.f[i], b.f[i], c.f[i]));
}
LANE_FN lanes lanes_max(lanes a, lanes b) /* b when either is not a number */
{
    LANES_MAP(a.f[i] > b.f[i] ? a.f[i] : b.f[i]);
}
LANE_FN lanes lanes_min(lanes a, lanes b)
{
    LANES_MAP(a.f[i] < b.f[i] ? a.f[i] : b.f[i]);
}
LANE_FN bool lanes_any_above(lanes a, lanes b) /* some lane of a above b's */
{
    bool any = false;
    for (unsigned i = 0; i < 16; i++) {
        any = any || a.f[i] > b.f[i];
    }
    return any;
}
LANE_FN lanes lanes_abs(lanes a)
{
    LANES_MAP(fabsf(a.f[i]));
}
LANE_FN lanes lanes_bf16(const uint16_t *p)
{
    LANES_MAP(quant_bf16(p[i]));
}
/* Lanes below n from a, the others from b. */
LANE_FN lanes lanes_first(unsigned n, lanes a, lanes b)
{
    LANES_MAP(i < n ? a.f[i] : b.f[i]);
}
/* a * 2^n for normal a and results, where biased holds n + 1.5 * 2^23: n is added to the exponent.
 */
LANE_FN lanes lanes_shift(lanes a, lanes biased)
{
    lanes r;
    for (unsigned i = 0; i < 16; i++) {
        uint32_t u, n;
        memcpy(&u, &a.f[i], sizeof(u));
        memcpy(&n, &biased.f[i], sizeof(n));
        u += n << 23;
        memcpy(&r.f[i], &u, sizeof(u));
    }
    return r;
}
/* 2^n for lanes that hold n + 1.5 * 2^23: the low bits of such a float are the integer. */
LANE_FN lanes lanes_power(lanes a)
{
    lanes r;
    for (unsigned i = 0; i < 16; i++) {
        uint32_t u;
        memcpy(&u, &a.f[i], sizeof(u));
        u = (u << 23) + 0x3F800000u;
        memcpy(&r.f[i], &u, sizeof(u));
    }
    return r;
}
LANE_FN void lanes_store_i8(int8_t *p, lanes a) /* whole numbers of -127 .. 127 */
{
    for (unsigned i = 0; i < 16; i++) {
        p[i] = (int8_t)a.f[i];
    }
}
LANE_FN float lanes_sum(lanes a) /* lane i with i + 8, then + 4, + 2, + 1 */
{
    for (unsigned half = 8; half > 0; half /= 2) {
        for (unsigned i = 0; i < half; i++) {
            a.f[i] += a.f[i + half];
        }
    }
    return a.f[0];
}
LANE_FN float lanes_top(lanes a)
{
    for (unsigned half = 8; half > 0; half /= 2) {
        for (unsigned i = 0; i < half; i++) {
            a.f[i] = a.f[i] > a.f[i + half] ? a.f[i] : a.f[i + half];
        }
    }
    return a.f[0];
}

/* Two bf16 a lane. */
typedef struct {
    float even[16], odd[16];
} pairs;

LANE_FN pairs pairs_load(const uint16_t *p)
{
    pairs r;
    for (unsigned i = 0; i < 16; i++) {
        r.even[i] = quant_bf16(p[2 * i]);
        r.odd[i] = quant_bf16(p[2 * i + 1]);
    }
    return r;
}
LANE_FN pairs pairs_i8(const int8_t *p)
{
    pairs r;
    for (unsigned i = 0; i < 16; i++) {
        r.even[i] = (float)p[2 * i];
        r.odd[i] = (float)p[2 * i + 1];
    }
    return r;
}
LANE_FN pairs pairs_set(const uint16_t *p) /* the same two in every lane */
{
    pairs r;
    for (unsigned i = 0; i < 16; i++) {
        r.even[i] = quant_bf16(p[0]);
        r.odd[i] = quant_bf16(p[1]);
    }
    return r;
}
LANE_FN pairs pairs_even(pairs a) /* the odd ones zero, whatever they were */
{
    memset(a.odd, 0, sizeof(a.odd));
    return a;
}
LANE_FN void pairs_store(uint16_t *p, pairs a)
{
    for (unsigned i = 0; i < 16; i++) {
        p[2 * i] = quant_to_bf16(a.even[i]);
        p[2 * i + 1] = quant_to_bf16(a.odd[i]);
    }
}
/* acc + the two products, the odd one first, rounded twice. */
LANE_FN lanes pairs_dot(pairs a, pairs b, lanes acc)
{
    LANES_MAP(fmaf(a.even[i], b.even[i], fmaf(a.odd[i], b.odd[i], acc.f[i])));
}
/* The 32 values of a and then b as bf16, to nearest even. */
LANE_FN void pairs_round(uint16_t *p, lanes a, lanes b)
{
    for (unsigned i = 0; i < 16; i++) {
        p[i] = quant_to_bf16(a.f[i]);
        p[16 + i] = quant_to_bf16(b.f[i]);
    }
}

/* Denormal operands and results count as zero until lanes_denormals_on, as the instruction for
 * pairs has it. */
#if defined(__SSE__)
#include <xmmintrin.h>
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
#else /* this level is the only one there */
LANE_FN unsigned lanes_denormals_off(void)
{
    return 0;
}
LANE_FN void lanes_denormals_on(unsigned before)
{
    (void)before;
}
#endif

#endif
