/* pack.c - see pack.h. */
#include "worker/cpu/pack.h"

#include "worker/model/quant.h"

#include <math.h>

/* One row's 32 columns in the packed arithmetic: value = q d + m. Eight-bit q is biased by 128. */
struct block {
    uint8_t q[KERNEL_BLOCK];
    float d, m;
};

struct packed pack_plan(const struct weight *w)
{
    struct packed p = {.rows = w->rows, .columns = w->columns};
    bool four = w->type == QUANT_Q4_0 || w->type == QUANT_Q4_1 || w->type == QUANT_Q4_K;

    CHECK(w->columns % KERNEL_BLOCK == 0);
    p.form = four ? PACK_4 : PACK_8;
    p.groups = (w->rows + KERNEL_LANES - 1) / KERNEL_LANES;
    p.group_bytes = (size_t)(w->columns / KERNEL_BLOCK) * (four ? PACK_4_BYTES : PACK_8_BYTES);
    return p;
}

static float f16_at(const uint8_t *p)
{
    uint16_t h;

    memcpy(&h, p, sizeof(h));
    return quant_f16(h);
}

static void nibbles(const uint8_t *p, uint8_t q[KERNEL_BLOCK])
{
    for (unsigned i = 0; i < 16; i++) {
        q[i] = p[i] & 15;
        q[16 + i] = p[i] >> 4;
    }
}

static void from_q4_k(const uint8_t *p, unsigned j, struct block *b)
{
    unsigned scale, min;

    quant_q4_k_scale(p, j, &scale, &min);
    b->d = f16_at(p) * (float)scale;
    b->m = -(f16_at(p + 2) * (float)min);
    for (unsigned i = 0; i < KERNEL_BLOCK; i++) {
        uint8_t both = p[16 + 32 * (j / 2) + i];
        b->q[i] = j % 2 == 0 ? both & 15 : both >> 4;
    }
}

static void from_q5_0(const uint8_t *p, struct block *b)
{
    uint32_t high;

    b->d = f16_at(p);
    memcpy(&high, p + 2, sizeof(high));
    nibbles(p + 6, b->q);
    for (unsigned i = 0; i < KERNEL_BLOCK; i++) {
        b->q[i] = (uint8_t)((b->q[i] | (high >> i & 1u) << 4) + 128 - 16);
    }
}

/* Eight bits of 32 floats; the scale is rounded to fp16 first, so that q fits what is stored. */
static void from_float(const float *x, struct block *b)
{
    float top = 0;

    for (unsigned i = 0; i < KERNEL_BLOCK; i++) {
        top = fmaxf(top, fabsf(x[i]));
    }
    b->d = quant_f16(quant_to_f16(top / 127.0f));
    for (unsigned i = 0; i < KERNEL_BLOCK; i++) {
        float v = b->d > 0 ? x[i] / b->d : 0;
        v = v > -127.0f ? v : -127.0f;
        v = v < 127.0f ? v : 127.0f;
        b->q[i] = (uint8_t)(128 + (int)lrintf(v));
    }
}

/* Block `index` of a row. `wide` holds the whole row in float32 for types that need it. */
static void read_block(const struct weight *w, const uint8_t *row, const float *wide,
                       uint32_t index, struct block *b)
{
    const uint8_t *p = row + (size_t)index * quant_block_bytes(w->type);

    b->m = 0;
    switch (w->type) {
    case QUANT_Q4_0:
        b->d = f16_at(p);
        b->m = -8.0f * b->d;
        nibbles(p + 2, b->q);
        break;
    case QUANT_Q4_1:
        b->d = f16_at(p);
        b->m = f16_at(p + 2);
        nibbles(p + 4, b->q);
        break;
    case QUANT_Q4_K:
        from_q4_k(row + (size_t)(index / 8) * quant_block_bytes(w->type), index % 8, b);
        break;
    case QUANT_Q5_0:
        from_q5_0(p, b);
        break;
    case QUANT_Q8_0:
        b->d = f16_at(p);
        for (unsigned i = 0; i < KERNEL_BLOCK; i++) {
            b->q[i] = p[2 + i] ^ 0x80;
        }
        break;
    default:
        from_float(wide + (size_t)index * KERNEL_BLOCK, b);
    }
}

static bool write_f16(uint8_t *to, float v)
{
    uint16_t h = quant_to_f16(v);

    memcpy(to, &h, sizeof(h));
    return isfinite(quant_f16(h));
}

static bool write_block(const struct packed *p, uint8_t *to, unsigned lane, const struct block *b)
{
    uint8_t both[KERNEL_BLOCK / 2];

    if (p->form == PACK_8) {
        for (unsigned i = 0; i < KERNEL_BLOCK; i += 4) {
            memcpy(to + 16 * i + 4 * lane, b->q + i, 4);
        }
        return write_f16(to + 512 + 2 * lane, b->d);
    }
    for (unsigned i = 0; i < sizeof(both); i++) {
        both[i] = (uint8_t)(b->q[i] | b->q[16 + i] << 4);
    }
    for (unsigned i = 0; i < sizeof(both); i += 4) {
        memcpy(to + 16 * i + 4 * lane, both + i, 4);
    }
    return write_f16(to + 256 + 2 * lane, b->d) && write_f16(to + 288 + 2 * lane, b->m);
}

bool pack_groups(const struct weight *w, const struct packed *p, uint8_t *data, uint32_t first,
                 uint32_t end)
{
    uint32_t blocks = w->columns / KERNEL_BLOCK;
    size_t row_bytes =
        (size_t)(w->columns / quant_block_columns(w->type)) * quant_block_bytes(w->type);
    size_t block_bytes = p->group_bytes / blocks;
    bool whole = true, floats = w->type == QUANT_Q6_K || quant_block_columns(w->type) == 1;
    float *wide = floats ? mem_new(w->columns * sizeof(*wide)) : NULL;

    for (uint32_t r = first * KERNEL_LANES; r < end * KERNEL_LANES; r++) {
        uint8_t *group = data + packed_group(p, r / KERNEL_LANES);
        if (floats && r < w->rows) {
            model_row(w, r, wide);
        }
        for (uint32_t i = 0; i < blocks; i++) {
            struct block b = {.d = 0};
            if (r < w->rows) {
                read_block(w, w->data + r * row_bytes, wide, i, &b);
            }
            whole = write_block(p, group + i * block_bytes, r % KERNEL_LANES, &b) && whole;
        }
    }
    mem_free(wide);
    return whole;
}
