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
LANE_FN lanes lanes_abs(lanes a)
{
    LANES_MAP(fabsf(a.f[i]));
}
LANE_FN lanes lanes_bf16(const uint16_t *p)
{
    LANES_MAP(quant_bf16(p[i]));
}
LANE_FN lanes lanes_i8(const int8_t *p)
{
    LANES_MAP((float)p[i]);
}
/* Lanes below n from a, the others from b. */
LANE_FN lanes lanes_first(unsigned n, lanes a, lanes b)
{
    LANES_MAP(i < n ? a.f[i] : b.f[i]);
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

#endif
