/* level.c - which kernels this CPU can run. */
#include "worker/cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const names[] = {
    [BACKEND_LEVEL_BEST] = "best",
    [BACKEND_LEVEL_PORTABLE] = "portable",
    [BACKEND_LEVEL_AVX2] = "avx2",
    [BACKEND_LEVEL_AVX512] = "avx512",
};

bool backend_level_named(struct str name, enum backend_level *out)
{
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (str_eq(name, str_c(names[i]))) {
            *out = (enum backend_level)i;
            return true;
        }
    }
    return false;
}

const char *backend_level_name(enum backend_level level)
{
    CHECK((size_t)level < ARRAY_LEN(names));
    return names[level];
}

#if defined(__x86_64__)
/* Half-precision loads; the compilers' probe does not agree on the feature's name. Its registers
 * are AVX's, which the AVX2 probe asks for. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

/* NULL: not on this CPU. The compiler's probe also asks whether the system saves the registers. */
static const struct kernels *available(enum backend_level level)
{
#if defined(__x86_64__)
    if (level == BACKEND_LEVEL_AVX512) {
        bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512vnni");
        return has ? &kernels_avx512 : NULL;
    }
    if (level == BACKEND_LEVEL_AVX2) {
        bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
        return has ? &kernels_avx2 : NULL;
    }
#endif
    return level == BACKEND_LEVEL_PORTABLE ? &kernels_portable : NULL;
}

const struct kernels *cpu_level_kernels(enum backend_level level, struct err *e)
{
    const struct kernels *k = NULL;

    if (level != BACKEND_LEVEL_BEST) {
        k = available(level);
        if (k == NULL) {
            err_set(e, ERR_UNSUPPORTED, "this CPU cannot run level \"%s\"",
                    backend_level_name(level));
        }
        return k;
    }
    for (int l = BACKEND_LEVEL_AVX512; k == NULL; l--) {
        k = available((enum backend_level)l);
    }
    return k;
}
