/* quota.h - how many CPUs, and how much memory, this process may use. */
#ifndef WORKER_CPU_QUOTA_H
#define WORKER_CPU_QUOTA_H

#include "base/base.h"

/* What the control groups under `root` leave of `cpus`, at least 1. `root` stands for
 * /sys/fs/cgroup and `membership` for /proc/self/cgroup. Version 2: the least cpu.max on the way up
 * from the own group, rounded up; version 1: the quota at the mount, as containers see it. */
unsigned quota_limit(unsigned cpus, const char *root, const char *membership);
/* What they leave of `bytes` of memory (memory.max of version 2, memory.limit_in_bytes of 1). */
uint64_t quota_memory(uint64_t bytes, const char *root, const char *membership);

#endif
