/* quota.c - see quota.h. More threads than the quota pays for would only wait for each other. */
#include "worker/cpu/quota.h"

#include "worker/backend.h"
#include "worker/cpu/pool.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PATH_BYTES 1024u
#define LINE_BYTES 512u

/* First line of a file, without its end; false: there is none. */
static bool read_line(const char *path, char line[LINE_BYTES])
{
    FILE *f = fopen(path, "re");
    bool got = f != NULL && fgets(line, LINE_BYTES, f) != NULL;

    if (f != NULL) {
        fclose(f);
    }
    if (got) {
        line[strcspn(line, "\n")] = '\0';
    }
    return got;
}

static unsigned whole_cpus(double quota, double period, unsigned cpus)
{
    if (quota <= 0 || period <= 0 || quota >= period * cpus) {
        return cpus;
    }
    unsigned n = (unsigned)(quota / period);

    n += (double)n * period < quota ? 1 : 0;
    return n == 0 ? 1 : n;
}

/* "QUOTA PERIOD", or "max PERIOD". */
static unsigned limit_of_group(const char *group, unsigned cpus)
{
    char path[PATH_BYTES], line[LINE_BYTES], *end;

    snprintf(path, sizeof(path), "%s/cpu.max", group);
    if (!read_line(path, line)) {
        return cpus;
    }
    double quota = strtod(line, &end);
    return end == line ? cpus : whole_cpus(quota, strtod(end, NULL), cpus);
}

static unsigned limit_of_version_1(unsigned cpus, const char *root)
{
    char path[PATH_BYTES], quota[LINE_BYTES], period[LINE_BYTES];

    snprintf(path, sizeof(path), "%s/cpu/cpu.cfs_quota_us", root);
    if (!read_line(path, quota)) {
        return cpus;
    }
    snprintf(path, sizeof(path), "%s/cpu/cpu.cfs_period_us", root);
    return read_line(path, period) ? whole_cpus(strtod(quota, NULL), strtod(period, NULL), cpus)
                                   : cpus;
}

/* Calls `look` for the own group and each above it (version 2), the mount at last. */
static void each_group(const char *root, const char *membership,
                       void (*look)(const char *group, void *ctx), void *ctx)
{
    char line[LINE_BYTES], group[PATH_BYTES];
    size_t top = strlen(root);

    if (!read_line(membership, line) || strncmp(line, "0::/", 4) != 0) {
        look(root, ctx);
        return;
    }
    snprintf(group, sizeof(group), "%s%s", root, line + 3);
    for (;;) { /* each turn cuts a component off */
        look(group, ctx);
        char *slash = strrchr(group, '/');
        if (slash == NULL || (size_t)(slash - group) < top) {
            return;
        }
        *slash = '\0';
    }
}

static void look_at_cpus(const char *group, void *ctx)
{
    unsigned *cpus = ctx;

    *cpus = limit_of_group(group, *cpus);
}

unsigned quota_limit(unsigned cpus, const char *root, const char *membership)
{
    cpus = limit_of_version_1(cpus, root);
    each_group(root, membership, look_at_cpus, &cpus);
    return cpus;
}

/* A number of bytes; "max" is none. */
static void look_at_memory(const char *group, void *ctx)
{
    static const char *const names[] = {"memory.max", "memory/memory.limit_in_bytes"};
    char path[PATH_BYTES], line[LINE_BYTES], *end;
    uint64_t *bytes = ctx;

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", group, names[i]);
        if (read_line(path, line)) {
            unsigned long long limit = strtoull(line, &end, 10);
            *bytes = end != line && limit < *bytes ? limit : *bytes;
        }
    }
}

uint64_t quota_memory(uint64_t bytes, const char *root, const char *membership)
{
    each_group(root, membership, look_at_memory, &bytes);
    return bytes;
}

uint64_t backend_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    uint64_t bytes = pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : UINT64_MAX;

    return quota_memory(bytes, "/sys/fs/cgroup", "/proc/self/cgroup");
}

unsigned backend_default_threads(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

    n = n < 1 ? 1 : n > POOL_THREADS_MAX ? POOL_THREADS_MAX : n;
    return quota_limit((unsigned)n, "/sys/fs/cgroup", "/proc/self/cgroup");
}
