/* level.c - which kernels this CPU can run, and the names of all that can be chosen. */
#include "worker/cpu/attend_avx512bf16.h"
#include "worker/cpu/cpu.h"

#include <stdlib.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const names[] = {
    [BACKEND_LEVEL_BEST] = "best",
    [BACKEND_LEVEL_PORTABLE] = "portable",
    [BACKEND_LEVEL_AVX2] = "avx2",
    [BACKEND_LEVEL_AVX512] = "avx512",
    [BACKEND_LEVEL_AVX512BF16] = "avx512bf16",
    [BACKEND_LEVEL_AMX] = "amx",
};

static const char *const kv_names[] = {[BACKEND_KV_BF16] = "bf16", [BACKEND_KV_INT8] = "int8"};
static const char *const policy_names[] = {
    [BACKEND_POLICY_EXACT] = "exact",
    [BACKEND_POLICY_FAST] = "fast",
};

static bool find_name(struct str name, const char *const *list, size_t n, size_t *out)
{
    for (*out = 0; *out < n; (*out)++) {
        if (str_eq(name, str_c(list[*out]))) {
            return true;
        }
    }
    return false;
}

bool backend_level_named(struct str name, enum backend_level *out)
{
    size_t i;
    bool found = find_name(name, names, ARRAY_LEN(names), &i);

    *out = found ? (enum backend_level)i : *out;
    return found;
}

bool backend_kv_dtype_named(struct str name, enum backend_kv_dtype *out)
{
    size_t i;
    bool found = find_name(name, kv_names, ARRAY_LEN(kv_names), &i);

    *out = found ? (enum backend_kv_dtype)i : *out;
    return found;
}

const char *backend_kv_dtype_name(enum backend_kv_dtype dtype)
{
    CHECK((size_t)dtype < ARRAY_LEN(kv_names));
    return kv_names[dtype];
}

bool backend_policy_named(struct str name, enum backend_policy *out)
{
    size_t i;
    bool found = find_name(name, policy_names, ARRAY_LEN(policy_names), &i);

    *out = found ? (enum backend_policy)i : *out;
    return found;
}

const char *backend_policy_name(enum backend_policy policy)
{
    CHECK((size_t)policy < ARRAY_LEN(policy_names));
    return policy_names[policy];
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

#if defined(__x86_64__)
static bool has_avx512bf16(void)
{
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & 1u << 5) != 0;
}

#define AMX_CPUID_BITS (1u << 24 | 1u << 25) /* leaf 7, edx: tiles, their int8 products */
#define AMX_XCR0_BITS (3u << 17)             /* the system saves tile configuration and data */
#define ARCH_REQ_XCOMP_PERM 0x1023           /* of arch_prctl */
#define XFEATURE_XTILEDATA 18

#define AMX_BF16_CPUID_BIT (1u << 22) /* leaf 7, edx: their bf16 products */

/* Tiles are big, so Linux gives them to a process only when it asks (for all its threads). */
static bool has_amx(void)
{
    unsigned a, b, c, d, low, high;

    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0 ||
        __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & AMX_CPUID_BITS) != AMX_CPUID_BITS) {
        return false;
    }
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & AMX_XCR0_BITS) == AMX_XCR0_BITS &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

bool cpu_level_has_fast(const struct kernels *k)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;

    return k->gemm_fast != NULL && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
           (d & AMX_BF16_CPUID_BIT) != 0;
#else
    return k->gemm_fast != NULL;
#endif
}

/* NULL: not on this CPU. The compiler's probe also asks whether the system saves the registers. */
static const struct kernels *available(enum backend_level level)
{
#if defined(__x86_64__)
    if (level == BACKEND_LEVEL_AMX) {
        return available(BACKEND_LEVEL_AVX512BF16) != NULL && has_amx() ? &kernels_amx : NULL;
    }
    if (level == BACKEND_LEVEL_AVX512BF16) {
        bool has = available(BACKEND_LEVEL_AVX512) != NULL && has_avx512bf16();
        return has && avx512bf16_is_exact() ? &kernels_avx512bf16 : NULL;
    }
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
    const char *wish = getenv("TOLLGATE_CPU");

    if (level == BACKEND_LEVEL_BEST && wish != NULL && wish[0] != '\0' &&
        !backend_level_named(str_c(wish), &level)) {
        err_set(e, ERR_INPUT,
                "TOLLGATE_CPU is portable, avx2, avx512, avx512bf16, amx or best, not \"%s\"",
                wish);
        return NULL;
    }
    if (level != BACKEND_LEVEL_BEST) {
        k = available(level);
        if (k == NULL) {
            err_set(e, ERR_UNSUPPORTED, "this CPU cannot run level \"%s\"%s",
                    backend_level_name(level), wish != NULL ? " (TOLLGATE_CPU)" : "");
        }
        return k;
    }
    for (int l = BACKEND_LEVEL_AMX; k == NULL; l--) {
        k = available((enum backend_level)l);
    }
    return k;
}
