/* test_amx.c - the AMX kernels' logic on CPUs without AMX: their source is taken in with the tile
 * instructions replaced by plain C that does what the manual says, and gives the bits of portable
 * C. On a CPU that has them test_cpu runs the real ones. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#define _tile_loadconfig(p) emulate_config(p)
#define _tile_release() emulate_release()
#define _tile_zero(t) emulate_zero(t)
#define _tile_loadd(t, p, stride) emulate_load(t, p, stride)
#define _tile_stored(t, p, stride) emulate_store(t, p, stride)
#define _tile_dpbsud(c, a, b) emulate_dpbsud(c, a, b)

static struct {
    uint8_t rows[8];
    uint16_t row_bytes[8];
    uint8_t data[8][16][64];
    int configured, wrong;
} tiles;

static void emulate_config(const void *p)
{
    const uint8_t *c = p;

    tiles.configured = c[0] == 1 && c[1] == 0;
    for (unsigned i = 0; i < 8; i++) {
        memcpy(&tiles.row_bytes[i], c + 16 + 2 * i, 2);
        tiles.rows[i] = c[48 + i];
        tiles.wrong += tiles.rows[i] > 16 || tiles.row_bytes[i] > 64;
    }
}

static void emulate_release(void)
{
    tiles.configured = 0;
}

static void emulate_zero(unsigned t)
{
    tiles.wrong += !tiles.configured;
    memset(tiles.data[t], 0, sizeof(tiles.data[t]));
}

static void emulate_load(unsigned t, const void *p, size_t stride)
{
    emulate_zero(t);
    for (unsigned r = 0; r < tiles.rows[t]; r++) {
        memcpy(tiles.data[t][r], (const uint8_t *)p + r * stride, tiles.row_bytes[t]);
    }
}

static void emulate_store(unsigned t, void *p, size_t stride)
{
    tiles.wrong += !tiles.configured;
    for (unsigned r = 0; r < tiles.rows[t]; r++) {
        memcpy((uint8_t *)p + r * stride, tiles.data[t][r], tiles.row_bytes[t]);
    }
}

/* c[m][n] += sum over k and the four bytes: signed a[m][4k + i] * unsigned b[k][4n + i]. */
static void emulate_dpbsud(unsigned c, unsigned a, unsigned b)
{
    tiles.wrong += !tiles.configured || tiles.row_bytes[a] != 4 * tiles.rows[b] ||
                   tiles.rows[c] != tiles.rows[a] || tiles.row_bytes[c] != tiles.row_bytes[b];
    for (unsigned m = 0; m < tiles.rows[c]; m++) {
        for (unsigned n = 0; n < tiles.row_bytes[c] / 4u; n++) {
            int32_t sum;
            memcpy(&sum, &tiles.data[c][m][4 * n], sizeof(sum));
            for (unsigned k = 0; k < tiles.row_bytes[a]; k++) {
                sum += (int8_t)tiles.data[a][m][k] * (int)tiles.data[b][k / 4][4 * n + k % 4];
            }
            memcpy(&tiles.data[c][m][4 * n], &sum, sizeof(sum));
        }
    }
}

#define kernels_amx kernels_amx_emulated
#include "worker/cpu/kernels_amx.c"
#undef kernels_amx

#include "worker/backend.h"
#include "worker/cpu/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#define COLUMNS 96u
#define BLOCKS (COLUMNS / KERNEL_BLOCK)
#define ROWS 53u
#define STRIDE 20u

static uint32_t next(uint32_t *x)
{
    *x = *x * 1664525 + 1013904223;
    return *x >> 8;
}

/* A group of random bits: any bits are weights; scales are made finite. */
static void fill_group(uint8_t *group, size_t block_bytes, size_t scales_at, uint32_t *seed)
{
    for (size_t i = 0; i < BLOCKS * block_bytes; i++) {
        bool high = i % block_bytes >= scales_at && i % 2 == 1;
        group[i] = (uint8_t)(high ? 0x20 + next(seed) % 16 : next(seed));
    }
}

static void compare(bool four_bits, uint32_t seed)
{
    static uint8_t group[BLOCKS * PACK_8_BYTES + 4096];
    static int8_t q[ROWS * COLUMNS];
    static float d[ROWS * BLOCKS], s[ROWS * BLOCKS], want[ROWS * STRIDE], got[ROWS * STRIDE];
    static int32_t c[ROWS * BLOCKS];
    struct act act = {q, d, s, c, COLUMNS};
    float x[COLUMNS];

    fill_group(group, four_bits ? PACK_4_BYTES : PACK_8_BYTES, four_bits ? 256 : 512, &seed);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t i = 0; i < COLUMNS; i++) {
            x[i] = (float)(next(&seed) % 2001) * 0.001f - 1.0f;
        }
        kernels_portable.quantize(x, &act, r, 0, COLUMNS);
    }
    for (uint32_t count = 1; count <= ROWS; count++) {
        for (enum gemm_store store = GEMM_SET; store <= GEMM_ADD; store++) {
            struct gemm_call call = {group, &act, ROWS - count, count, want, STRIDE, store};
            for (size_t i = 0; i < ARRAY_LEN(want); i++) {
                want[i] = got[i] = (float)i;
            }
            (four_bits ? kernels_portable.gemm4 : kernels_portable.gemm8)(&call);
            call.out = got;
            (four_bits ? kernels_amx_emulated.gemm4 : kernels_amx_emulated.gemm8)(&call);
            assert_memory_equal(got, want, sizeof(want));
        }
    }
    assert_int_equal(tiles.wrong, 0);
    assert_false(tiles.configured); /* given back: the next thread switch saves nothing */
}

static void tiles_give_the_bits_of_portable_c(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 6; seed++) {
        compare(seed % 2 == 0, seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_give_the_bits_of_portable_c),
    };
    struct err e = {0};

    if (cpu_level_kernels(BACKEND_LEVEL_AVX512, &e) == NULL) {
        printf("SKIP: %s\n", e.text);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
