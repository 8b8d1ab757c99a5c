/* quota.h - how many CPUs this process may use. */
#ifndef WORKER_CPU_QUOTA_H
#define WORKER_CPU_QUOTA_H

/* What the control groups under `root` leave of `cpus`, at least 1. `root` stands for
 * /sys/fs/cgroup and `membership` for /proc/self/cgroup. Version 2: the least cpu.max on the way up
 * from the own group, rounded up; version 1: the quota at the mount, as containers see it. */
unsigned quota_limit(unsigned cpus, const char *root, const char *membership);

#endif
