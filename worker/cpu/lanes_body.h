/* lanes_body.h - the float kernels, written once over sixteen lanes and included by each level's
 * file after its lanes_*.h. No operation here may be contracted or reordered: see kernels.h. */
#ifndef WORKER_CPU_LANES_BODY_H
#define WORKER_CPU_LANES_BODY_H

#include <math.h>

#define LEVEL_FN static __attribute__((unused)) /* attend_avx512bf16.c wants attention alone */
#define ROUND_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to a whole number, ties to even */
#define SCORE_NONE -1e30f       /* below every score; its exp is clamped, its weight set to zero */

/* e^x for x clamped to [-86, 86]; about 1 ulp. x = n ln 2 + r; polynomial of Cephes' expf. */
LANE_FN lanes lanes_exp(lanes x)
{
    static const float c[] = {1.3981999507e-3f,
                              8.3334519073e-3f,
                              4.1665795894e-2f,
                              1.6666665459e-1f,
                              5.0000001201e-1f,
                              1.0f,
                              1.0f};
    x = lanes_min(lanes_max(x, lanes_set(-86.0f)), lanes_set(86.0f));
    lanes biased = lanes_add(lanes_mul(x, lanes_set(1.44269504f)), lanes_set(ROUND_MAGIC));
    lanes n = lanes_sub(biased, lanes_set(ROUND_MAGIC));
    lanes r = lanes_fma(n, lanes_set(-0.693359375f), x);
    r = lanes_fma(n, lanes_set(2.12194440e-4f), r);
    lanes p = lanes_set(1.9875691500e-4f);
    for (unsigned i = 0; i < ARRAY_LEN(c); i++) {
        p = lanes_fma(p, r, lanes_set(c[i]));
    }
    return lanes_mul(p, lanes_power(biased));
}

/* 2^x for x <= 0, clamped to -125, and 1 for 0; within 3e-6 of it, for what is rounded to bf16
 * next. x = n + r; polynomial of least relative error on [-1/2, 1/2] that is 1 at 0. */
LANE_FN lanes lanes_exp2(lanes x)
{
    static const float c[] = {5.590642549e-2f, 2.402409866e-1f, 6.931241933e-1f, 1.0f};

    x = lanes_max(x, lanes_set(-125.0f));
    lanes biased = lanes_add(x, lanes_set(ROUND_MAGIC));
    lanes r = lanes_sub(x, lanes_sub(biased, lanes_set(ROUND_MAGIC)));
    lanes p = lanes_set(9.582851241e-3f);
    for (unsigned i = 0; i < ARRAY_LEN(c); i++) {
        p = lanes_fma(p, r, lanes_set(c[i]));
    }
    return lanes_shift(p, biased);
}

LEVEL_FN void level_norm(const float *x, const float *weight, uint32_t columns, float eps,
                         float *out)
{
    lanes sum = lanes_set(0);

    for (uint32_t i = 0; i < columns; i += KERNEL_LANES) {
        lanes v = lanes_load(x + i);
        sum = lanes_fma(v, v, sum);
    }
    lanes scale = lanes_set(1.0f / sqrtf(lanes_sum(sum) / (float)columns + eps));
    for (uint32_t i = 0; i < columns; i += KERNEL_LANES) {
        lanes v = lanes_mul(lanes_load(x + i), scale);
        lanes_store(out + i, lanes_mul(v, lanes_load(weight + i)));
    }
}

LANE_FN lanes round_to_i8(lanes v, lanes inverse)
{
    v = lanes_mul(v, inverse);
    v = lanes_min(lanes_max(v, lanes_set(-127.0f)), lanes_set(127.0f));
    return lanes_sub(lanes_add(v, lanes_set(ROUND_MAGIC)), lanes_set(ROUND_MAGIC));
}

LEVEL_FN void level_quantize(const float *x, struct act *a, uint32_t row, uint32_t first,
                             uint32_t count)
{
    size_t block = (size_t)row * (a->columns / KERNEL_BLOCK) + first / KERNEL_BLOCK;
    int8_t *q = a->q + (size_t)row * a->columns + first;

    for (uint32_t i = 0; i < count; i += KERNEL_BLOCK, block++) {
        lanes u = lanes_load(x + i), v = lanes_load(x + i + KERNEL_LANES);
        float top = lanes_top(lanes_max(lanes_abs(u), lanes_abs(v)));
        lanes inverse = lanes_set(top > 0 ? 127.0f / top : 0);
        u = round_to_i8(u, inverse);
        v = round_to_i8(v, inverse);
        lanes_store_i8(q + i, u);
        lanes_store_i8(q + i + KERNEL_LANES, v);
        float sum = lanes_sum(lanes_add(u, v)); /* exact: whole numbers below 2^13 */
        a->d[block] = top / 127.0f;
        a->s[block] = a->d[block] * sum;
        a->c[block] = -128 * (int32_t)sum;
    }
}

LEVEL_FN float level_round_kv(const float *x, uint32_t n, int8_t *q)
{
    lanes top = lanes_set(0);

    for (uint32_t i = 0; i < n; i += KERNEL_LANES) {
        top = lanes_max(lanes_abs(lanes_load(x + i)), top);
    }
    float scale = lanes_top(top) / 127.0f;
    uint32_t bits;
    memcpy(&bits, &scale, sizeof(bits));
    bits = (bits + 0x7FFFu + (bits >> 16 & 1u)) & 0xFFFF0000u; /* what bf16 keeps of it */
    memcpy(&scale, &bits, sizeof(scale));
    lanes inverse = lanes_set(scale > 0 ? 1.0f / scale : 0);
    for (uint32_t i = 0; i < n; i += KERNEL_LANES) {
        lanes_store_i8(q + i, round_to_i8(lanes_load(x + i), inverse));
    }
    return scale;
}

LEVEL_FN void level_silu(float *gate, const float *up, uint32_t n)
{
    lanes one = lanes_set(1.0f), zero = lanes_set(0);

    for (uint32_t i = 0; i < n; i += KERNEL_LANES) {
        lanes g = lanes_load(gate + i);
        lanes s = lanes_div(g, lanes_add(one, lanes_exp(lanes_sub(zero, g))));
        lanes_store(gate + i, lanes_mul(s, lanes_load(up + i)));
    }
}

#endif
