/* kernels_portable.c - the arithmetic of kernels.h in plain C: explanation and fallback. */
#include "worker/cpu/lanes_portable.h"

#include "worker/cpu/lanes_body.h"
#include "worker/cpu/attend_body.h"

static float scale_at(const uint8_t *scales, unsigned row)
{
    uint16_t h;

    memcpy(&h, scales + 2 * row, sizeof(h));
    return quant_f16(h);
}

static void put(const struct gemm_call *c, uint32_t i, const float acc[KERNEL_LANES])
{
    float *out = c->out + i * c->stride;

    for (unsigned r = 0; r < KERNEL_LANES; r++) {
        out[r] = c->store == GEMM_ADD ? out[r] + acc[r] : acc[r];
    }
}

static int32_t dot4(const uint8_t *block, unsigned row, const int8_t *q)
{
    int32_t dot = 0;

    for (unsigned j = 0; j < 4; j++) {
        const uint8_t *w = block + 64 * j + 4 * row;
        for (unsigned i = 0; i < 4; i++) {
            dot += (w[i] & 15) * q[4 * j + i] + (w[i] >> 4) * q[16 + 4 * j + i];
        }
    }
    return dot;
}

static void portable_gemm4(const struct gemm_call *c)
{
    uint32_t blocks = c->act->columns / KERNEL_BLOCK;

    for (uint32_t t = 0; t < c->count; t++) {
        float acc[KERNEL_LANES] = {0};
        size_t row = c->first + t;
        for (uint32_t b = 0; b < blocks; b++) {
            const uint8_t *block = c->group + (size_t)b * PACK_4_BYTES;
            const int8_t *q = c->act->q + row * c->act->columns + b * KERNEL_BLOCK;
            float d = c->act->d[row * blocks + b], s = c->act->s[row * blocks + b];
            for (unsigned r = 0; r < KERNEL_LANES; r++) {
                float dot = (float)dot4(block, r, q);
                acc[r] = fmaf(dot, scale_at(block + 256, r) * d, acc[r]);
                acc[r] = fmaf(scale_at(block + 288, r), s, acc[r]);
            }
        }
        put(c, t, acc);
    }
}

static int32_t dot8(const uint8_t *block, unsigned row, const int8_t *q)
{
    int32_t dot = 0;

    for (unsigned j = 0; j < 8; j++) {
        const uint8_t *w = block + 64 * j + 4 * row;
        for (unsigned i = 0; i < 4; i++) {
            dot += (w[i] - 128) * q[4 * j + i];
        }
    }
    return dot;
}

static void portable_gemm8(const struct gemm_call *c)
{
    uint32_t blocks = c->act->columns / KERNEL_BLOCK;

    for (uint32_t t = 0; t < c->count; t++) {
        float acc[KERNEL_LANES] = {0};
        size_t row = c->first + t;
        for (uint32_t b = 0; b < blocks; b++) {
            const uint8_t *block = c->group + (size_t)b * PACK_8_BYTES;
            const int8_t *q = c->act->q + row * c->act->columns + b * KERNEL_BLOCK;
            float d = c->act->d[row * blocks + b];
            for (unsigned r = 0; r < KERNEL_LANES; r++) {
                acc[r] = fmaf((float)dot8(block, r, q), scale_at(block + 512, r) * d, acc[r]);
            }
        }
        put(c, t, acc);
    }
}

const struct kernels kernels_portable = {
    .name = "portable C",
    .gemm4 = portable_gemm4,
    .gemm8 = portable_gemm8,
    .norm = level_norm,
    .quantize = level_quantize,
    .silu = level_silu,
    .round_kv = level_round_kv,
    .attend = level_attend,
};
