/* attend_avx512bf16.h - what AVX512_BF16 adds to AVX-512 VNNI: attention at twice the rate. */
#ifndef WORKER_CPU_ATTEND_AVX512BF16_H
#define WORKER_CPU_ATTEND_AVX512BF16_H

#include "worker/cpu/kernels.h"

void avx512bf16_attend(const struct attend_call *c);

/* Does vdpbf16ps of this CPU, which has it, give the bits of two fused multiply-adds, the odd
 * product first, to nearest even, denormals taken for zero? So it is documented by Intel and seen
 * on AMD's Zen 4; a CPU that differs is not used for it. Some thousand products, under 1 ms. */
bool avx512bf16_is_exact(void);

#endif
