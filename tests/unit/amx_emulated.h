/* amx_emulated.h - the kernels of worker/cpu/kernels_amx.c with their tile instructions replaced by
 * plain C that does what the manual says: they run on any CPU with AVX-512. */
#ifndef TESTS_UNIT_AMX_EMULATED_H
#define TESTS_UNIT_AMX_EMULATED_H

#include "base/err.h"
#include "worker/cpu/kernels.h"

extern const struct kernels kernels_amx_emulated;

/* Instructions that the manual forbids (no configuration, shapes that do not fit): of all threads.
 */
unsigned amx_emulated_faults(void);
/* Whether the calling thread holds tiles. */
bool amx_emulated_configured(void);
/* For tests of policy `fast`: the real kernels where this CPU has them, else the emulated ones;
 * says on stdout which. NULL with a story: not even AVX-512 is here. */
const struct kernels *amx_kernels_to_test(struct err *e);

#endif
