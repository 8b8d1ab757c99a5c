/* quota.c - see quota.h. More threads than the quota pays for would only wait for each other. */
#include "worker/cpu/quota.h"

#include "worker/backend.h"
#include "worker/cpu/pool.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

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

unsigned quota_limit(unsigned cpus, const char *root, const char *membership)
{
    char line[LINE_BYTES], group[PATH_BYTES];
    size_t top = strlen(root);

    cpus = limit_of_version_1(cpus, root);
    if (!read_line(membership, line) || strncmp(line, "0::/", 4) != 0) {
        return limit_of_group(root, cpus);
    }
    snprintf(group, sizeof(group), "%s%s", root, line + 3);
    for (;;) { /* each turn cuts a component off */
        cpus = limit_of_group(group, cpus);
        char *slash = strrchr(group, '/');
        if (slash == NULL || (size_t)(slash - group) < top) {
            return cpus;
        }
        *slash = '\0';
    }
}

unsigned backend_default_threads(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

    n = n < 1 ? 1 : n > POOL_THREADS_MAX ? POOL_THREADS_MAX : n;
    return quota_limit((unsigned)n, "/sys/fs/cgroup", "/proc/self/cgroup");
}
