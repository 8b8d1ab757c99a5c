/* attend_avx512bf16.c - attention with vdpbf16ps, and the proof that it rounds as kernels.h says.
 */
#include "worker/cpu/attend_avx512bf16.h"

#include "worker/cpu/lanes_avx512.h"

#include "worker/cpu/lanes_body.h"
#include "worker/cpu/attend_body.h"

#define PROOF_ROUNDS 1024u

void avx512bf16_attend(const struct attend_call *c)
{
    level_attend(c);
}

static uint32_t next_random(uint64_t *x)
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*x >> 32);
}

static float wide(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

/* A float near 2^exponent, of either sign; now and then a denormal. */
static uint32_t some_float(uint64_t *x, uint32_t exponent)
{
    uint32_t r = next_random(x), e = r % 13 == 0 ? 0 : exponent - 3 + r % 7;

    return (next_random(x) & 0x807FFFFFu) | e << 23;
}

/* One product near 1, or, small, near the least normal float. */
static bool same_as_two_fma(uint64_t *x, bool small)
{
    uint32_t factor = small ? 64 : 127, sum = small ? 4 : 127;
    _Alignas(64) uint16_t a[32], b[32];
    _Alignas(64) float acc[16], got[16];
    bool same = true;

    for (unsigned i = 0; i < 32; i++) {
        a[i] = (uint16_t)(some_float(x, factor) >> 16);
        b[i] = (uint16_t)(some_float(x, factor) >> 16);
    }
    for (unsigned i = 0; i < 16; i++) {
        uint32_t u = some_float(x, sum);
        memcpy(&acc[i], &u, sizeof(u));
        if (i % 4 == 0) { /* what is left when the odd product cancels */
            acc[i] = -wide(a[2 * i + 1]) * wide(b[2 * i + 1]);
        }
    }
    lanes_store(got, pairs_dot(pairs_load(a), pairs_load(b), lanes_load(acc)));
    for (unsigned i = 0; i < 16; i++) {
        float want = fmaf(wide(a[2 * i + 1]), wide(b[2 * i + 1]), acc[i]);
        want = fmaf(wide(a[2 * i]), wide(b[2 * i]), want);
        same = same && memcmp(&want, &got[i], sizeof(want)) == 0;
    }
    return same;
}

bool avx512bf16_is_exact(void)
{
    unsigned before = lanes_denormals_off();
    uint64_t x = 1;
    bool same = true;

    for (unsigned i = 0; i < PROOF_ROUNDS; i++) {
        same = same_as_two_fma(&x, i % 2 == 1) && same;
    }
    lanes_denormals_on(before);
    return same;
}
