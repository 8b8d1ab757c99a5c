/* quant.c - scalar dequantisation of GGUF blocks: the oracle that every kernel is compared with.
 * Layouts: quant.h and ggml-common.h of the format's home (github.com/ggml-org/ggml). */
#include "worker/model/quant.h"

struct layout {
    const char *name;
    uint16_t columns, bytes;
};

static const struct layout *layout_of(uint32_t type)
{
    static const struct layout table[] = {
        [QUANT_F32] = {"F32", 1, 4},       [QUANT_F16] = {"F16", 1, 2},
        [QUANT_Q4_0] = {"Q4_0", 32, 18},   [QUANT_Q4_1] = {"Q4_1", 32, 20},
        [QUANT_Q5_0] = {"Q5_0", 32, 22},   [QUANT_Q8_0] = {"Q8_0", 32, 34},
        [QUANT_Q4_K] = {"Q4_K", 256, 144}, [QUANT_Q6_K] = {"Q6_K", 256, 210},
        [QUANT_BF16] = {"BF16", 1, 2},
    };

    return type < ARRAY_LEN(table) && table[type].name != NULL ? &table[type] : NULL;
}

bool quant_is_known(uint32_t type)
{
    return layout_of(type) != NULL;
}

uint32_t quant_block_columns(uint32_t type)
{
    CHECK(quant_is_known(type));
    return layout_of(type)->columns;
}

uint32_t quant_block_bytes(uint32_t type)
{
    CHECK(quant_is_known(type));
    return layout_of(type)->bytes;
}

const char *quant_name(uint32_t type)
{
    const struct layout *l = layout_of(type);

    return l != NULL ? l->name : "unknown";
}

static float load_f16(const uint8_t *p)
{
    uint16_t h;

    memcpy(&h, p, sizeof(h));
    return quant_f16(h);
}

static void block_q4_0(const uint8_t *p, float *out)
{
    float d = load_f16(p);

    for (unsigned i = 0; i < 16; i++) {
        out[i] = d * (float)((p[2 + i] & 15) - 8);
        out[16 + i] = d * (float)((p[2 + i] >> 4) - 8);
    }
}

static void block_q4_1(const uint8_t *p, float *out)
{
    float d = load_f16(p), m = load_f16(p + 2);

    for (unsigned i = 0; i < 16; i++) {
        out[i] = d * (float)(p[4 + i] & 15) + m;
        out[16 + i] = d * (float)(p[4 + i] >> 4) + m;
    }
}

static void block_q5_0(const uint8_t *p, float *out)
{
    float d = load_f16(p);
    uint32_t high; /* fifth bits: bit i of column i */

    memcpy(&high, p + 2, sizeof(high));
    for (unsigned i = 0; i < 16; i++) {
        int lo = (p[6 + i] & 15) | (int)((high >> i & 1u) << 4);
        int hi = (p[6 + i] >> 4) | (int)((high >> (i + 16) & 1u) << 4);
        out[i] = d * (float)(lo - 16);
        out[16 + i] = d * (float)(hi - 16);
    }
}

static void block_q8_0(const uint8_t *p, float *out)
{
    float d = load_f16(p);

    for (unsigned i = 0; i < 32; i++) {
        out[i] = d * (float)(int8_t)p[2 + i];
    }
}

/* Eight scales and eight minima of 6 bits are packed in the 12 bytes after d and dmin. */
void quant_q4_k_scale(const void *block, unsigned j, unsigned *scale, unsigned *min)
{
    const uint8_t *s = (const uint8_t *)block + 4;

    if (j < 4) {
        *scale = s[j] & 63u;
        *min = s[j + 4] & 63u;
        return;
    }
    *scale = (s[j + 4] & 15u) | (unsigned)(s[j - 4] >> 6) << 4;
    *min = (unsigned)(s[j + 4] >> 4) | (unsigned)(s[j] >> 6) << 4;
}

/* fp16 d, fp16 dmin, 12 bytes of scales, 128 nibble bytes: 64 columns per 32 bytes. */
static void block_q4_k(const uint8_t *p, float *out)
{
    float d = load_f16(p), dmin = load_f16(p + 2);

    for (unsigned j = 0; j < 8; j++) {
        const uint8_t *q = p + 16 + 32 * (j / 2);
        unsigned scale, min;
        quant_q4_k_scale(p, j, &scale, &min);
        float ds = d * (float)scale, ms = dmin * (float)min;
        for (unsigned i = 0; i < 32; i++) {
            unsigned v = j % 2 == 0 ? q[i] & 15u : (unsigned)(q[i] >> 4);
            out[32 * j + i] = ds * (float)v - ms;
        }
    }
}

/* 128 bytes of low nibbles, 64 of high pairs, 16 int8 scales (per 16 columns), fp16 d. */
static void block_q6_k(const uint8_t *p, float *out)
{
    float d = load_f16(p + 208);

    for (unsigned half = 0; half < 2; half++) {
        const uint8_t *low = p + 64 * half, *high = p + 128 + 32 * half;
        const int8_t *scale = (const int8_t *)p + 192 + 8 * half;
        for (unsigned quarter = 0; quarter < 4; quarter++) {
            for (unsigned i = 0; i < 32; i++) {
                unsigned byte = low[(quarter & 1u) * 32 + i];
                unsigned nibble = quarter < 2 ? byte & 15u : byte >> 4;
                int v = (int)(nibble | (high[i] >> (2 * quarter) & 3u) << 4) - 32;
                out[128 * half + 32 * quarter + i] =
                    d * (float)scale[2 * quarter + i / 16] * (float)v;
            }
        }
    }
}

static void row_f16(const uint8_t *p, float *out, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        out[i] = load_f16(p + 2 * i);
    }
}

static void row_bf16(const uint8_t *p, float *out, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, sizeof(h));
        out[i] = quant_bf16(h);
    }
}

void quant_dequantize(uint32_t type, const void *src, float *dst, uint64_t n)
{
    void (*block)(const uint8_t *, float *) = NULL;
    const uint8_t *p = src;

    switch (type) {
    case QUANT_F32:
        memcpy(dst, src, n * sizeof(float));
        return;
    case QUANT_F16:
        row_f16(p, dst, n);
        return;
    case QUANT_BF16:
        row_bf16(p, dst, n);
        return;
    case QUANT_Q4_0:
        block = block_q4_0;
        break;
    case QUANT_Q4_1:
        block = block_q4_1;
        break;
    case QUANT_Q5_0:
        block = block_q5_0;
        break;
    case QUANT_Q8_0:
        block = block_q8_0;
        break;
    case QUANT_Q4_K:
        block = block_q4_k;
        break;
    case QUANT_Q6_K:
        block = block_q6_k;
        break;
    default:
        break;
    }
    CHECK(block != NULL && n % quant_block_columns(type) == 0);
    for (uint64_t i = 0; i < n; i += quant_block_columns(type)) {
        block(p, dst + i);
        p += quant_block_bytes(type);
    }
}
