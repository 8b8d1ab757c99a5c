/* amx_emulated.c - see amx_emulated.h. Tiles are a thread's own, as registers are. */
#include <immintrin.h>
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "worker/cpu/attend_avx512bf16.h"

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#define _tile_loadconfig(p) emulate_config(p)
#define _tile_release() emulate_release()
#define _tile_zero(t) emulate_zero(t)
#define _tile_loadd(t, p, stride) emulate_load(t, p, stride)
#define _tile_stored(t, p, stride) emulate_store(t, p, stride)
#define _tile_dpbsud(c, a, b) emulate_dpbsud(c, a, b)
#define _tile_dpbf16ps(c, a, b) emulate_dpbf16ps(c, a, b)

static _Thread_local struct {
    uint8_t rows[8];
    uint16_t row_bytes[8];
    uint8_t data[8][16][64];
    int configured;
} tiles;
static atomic_uint faults;

static void must(int fine)
{
    if (!fine) {
        atomic_fetch_add(&faults, 1);
    }
}

static void emulate_config(const void *p)
{
    const uint8_t *c = p;

    tiles.configured = c[0] == 1 && c[1] == 0;
    for (unsigned i = 0; i < 8; i++) {
        memcpy(&tiles.row_bytes[i], c + 16 + 2 * i, 2);
        tiles.rows[i] = c[48 + i];
        must(tiles.rows[i] <= 16 && tiles.row_bytes[i] <= 64);
    }
    memset(tiles.data, 0, sizeof(tiles.data));
}

static void emulate_release(void)
{
    tiles.configured = 0;
}

static void emulate_zero(unsigned t)
{
    must(tiles.configured);
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
    must(tiles.configured);
    for (unsigned r = 0; r < tiles.rows[t]; r++) {
        memcpy((uint8_t *)p + r * stride, tiles.data[t][r], tiles.row_bytes[t]);
    }
}

static void must_fit(unsigned c, unsigned a, unsigned b)
{
    must(tiles.configured && tiles.row_bytes[a] == 4 * tiles.rows[b] &&
         tiles.rows[c] == tiles.rows[a] && tiles.row_bytes[c] == tiles.row_bytes[b] && a != b &&
         b != c && c != a);
}

/* c[m][n] += sum over k and the four bytes: signed a[m][4k + i] * unsigned b[k][4n + i]. */
static void emulate_dpbsud(unsigned c, unsigned a, unsigned b)
{
    must_fit(c, a, b);
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

/* Element 0 or 1 of a pair of bf16 as a float. */
static inline float half_of(uint32_t pair, unsigned which)
{
    uint32_t bits = which == 0 ? pair << 16 : pair & 0xFFFF0000u;
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static __attribute__((noinline)) void multiply_halves(unsigned c, unsigned a, unsigned b)
{
    unsigned pairs = tiles.row_bytes[a] / 4u;
    float left[16][16], right[16][16];

    for (unsigned k = 0; k < pairs; k++) {
        uint32_t w[16];
        memcpy(w, tiles.data[b][k], sizeof(w));
        for (unsigned n = 0; n < 16; n++) {
            left[k][n] = half_of(w[n], 0);
            right[k][n] = half_of(w[n], 1);
        }
    }
    for (unsigned m = 0; m < tiles.rows[c]; m++) {
        float even[16] = {0}, odd[16] = {0}, sum[16];
        uint32_t x[16];
        memcpy(x, tiles.data[a][m], sizeof(x));
        memcpy(sum, tiles.data[c][m], sizeof(sum));
        for (unsigned k = 0; k < pairs; k++) {
            float u = half_of(x[k], 0), v = half_of(x[k], 1);
            for (unsigned n = 0; n < 16; n++) {
                even[n] = fmaf(u, left[k][n], even[n]);
                odd[n] = fmaf(v, right[k][n], odd[n]);
            }
        }
        for (unsigned n = 0; n < 16; n++) {
            sum[n] += even[n] + odd[n];
        }
        memcpy(tiles.data[c][m], sum, sizeof(sum));
    }
}

/* c[m][n] += the sum over even elements + the one over odd elements of a[m] and b[.][n], each a
 * chain of fma over k from zero; denormals are zero, in and out. */
static void emulate_dpbf16ps(unsigned c, unsigned a, unsigned b)
{
    unsigned before = _mm_getcsr();

    must_fit(c, a, b);
    _mm_setcsr(before | _MM_FLUSH_ZERO_ON | 0x40); /* 0x40: denormal operands are zero, too */
    multiply_halves(c, a, b);
    _mm_setcsr(before);
}

/* Attention without AVX512_BF16, which this CPU may lack too: the bits are the same. */
static void attend_in_avx512(const struct attend_call *c)
{
    kernels_avx512.attend(c);
}

#define kernels_amx kernels_amx_emulated
#define avx512bf16_attend attend_in_avx512
#include "worker/cpu/kernels_amx.c"
#undef avx512bf16_attend
#undef kernels_amx

#include "tests/unit/amx_emulated.h"
#include "worker/cpu/cpu.h"

unsigned amx_emulated_faults(void)
{
    return atomic_load(&faults);
}

bool amx_emulated_configured(void)
{
    return tiles.configured != 0;
}

const struct kernels *amx_kernels_to_test(struct err *e)
{
    const struct kernels *k = cpu_level_kernels(BACKEND_LEVEL_AMX, e);

    if (k != NULL && cpu_level_has_fast(k)) {
        printf("policy fast: on the AMX tiles of this CPU\n");
        return k;
    }
    err_clear(e);
    if (cpu_level_kernels(BACKEND_LEVEL_AVX512, e) == NULL) {
        return NULL;
    }
    printf("policy fast: on emulated tiles (no AMX bf16 on this CPU)\n");
    return &kernels_amx_emulated;
}
