/* quant.h - block layouts of GGUF weights and their scalar dequantisation (the oracle).
 *
 * All per 32 columns: Q4_0 18 bytes {fp16 d; 16 nibble bytes, low = 0..15, high = 16..31; value-8},
 * Q4_1 20 {fp16 d, m}, Q5_0 22, Q8_0 34 {fp16 d; 32 int8}; Q4_K 144 and Q6_K 210 per 256. */
#ifndef WORKER_MODEL_QUANT_H
#define WORKER_MODEL_QUANT_H

#include "base/base.h"

enum quant_type { /* numbers of the file format */
                  QUANT_F32 = 0,
                  QUANT_F16 = 1,
                  QUANT_Q4_0 = 2,
                  QUANT_Q4_1 = 3,
                  QUANT_Q5_0 = 6,
                  QUANT_Q8_0 = 8,
                  QUANT_Q4_K = 12,
                  QUANT_Q6_K = 14,
                  QUANT_BF16 = 30,
};

bool quant_is_known(uint32_t type);
uint32_t quant_block_columns(uint32_t type); /* 1, 32 or 256 */
uint32_t quant_block_bytes(uint32_t type);
const char *quant_name(uint32_t type);
/* One row of n columns (a multiple of quant_block_columns) into float32. */
void quant_dequantize(uint32_t type, const void *src, float *dst, uint64_t n);

/* Scale and minimum (6 bits each) of the 32 columns j, 0 .. 7, of a Q4_K block:
 * value = d * scale * q - dmin * min. */
void quant_q4_k_scale(const void *block, unsigned j, unsigned *scale, unsigned *min);

static inline float quant_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

/* IEEE 754 half precision, in integers: not every compiler has the type. */
static inline float quant_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3FF;

    if (exponent == 0) {
        float v = (float)mantissa * 0x1p-24f;
        return sign != 0 ? -v : v;
    }
    exponent = exponent == 31 ? 255 : exponent + 112;
    return quant_of_bits(sign | exponent << 23 | mantissa << 13);
}

static inline uint16_t quant_to_f16(float f) /* round to nearest even; too large: infinity */
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7FFFFFFFu;
    if (u > 0x7F800000u) {
        return sign | 0x7E00;
    }
    if (u >= 0x477FF000u) { /* 65,520 and more */
        return sign | 0x7C00;
    }
    if (u < 0x38800000u) { /* below 2^-14: one half has its last bit at 2^-24 */
        float shifted = quant_of_bits(u) + 0.5f;
        memcpy(&u, &shifted, sizeof(u));
        return (uint16_t)(sign | (u - 0x3F000000u));
    }
    u += 0xFFFu + (u >> 13 & 1u);
    return (uint16_t)(sign | (u - (112u << 23)) >> 13);
}

static inline float quant_bf16(uint16_t h)
{
    return quant_of_bits((uint32_t)h << 16);
}

static inline uint16_t quant_to_bf16(float f) /* round to nearest even */
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

#endif
