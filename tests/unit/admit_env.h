/* admit_env.h - an env of two clocks, a list of deferred tasks and a counting "random": what
 * admission asks of one. Each thread of a test has its own. */
#ifndef TESTS_UNIT_ADMIT_ENV_H
#define TESTS_UNIT_ADMIT_ENV_H

#include "base/env.h"

#define ADMIT_ENV_WALL_US 1791000000000000u /* 2026-10-03, 04:00:00 UTC */

struct admit_env {
    struct env env; /* first */
    uint64_t now_us, wall_us;
    uint64_t random; /* state */
    struct list tasks;
};

static inline struct admit_env *admit_env_of(struct env *e)
{
    return CONTAINER_OF(e, struct admit_env, env);
}

static inline uint64_t admit_env_now(struct env *e)
{
    return admit_env_of(e)->now_us;
}

static inline uint64_t admit_env_wall(struct env *e)
{
    return admit_env_of(e)->wall_us;
}

/* splitmix64 */
static inline uint64_t admit_env_next(struct admit_env *a)
{
    uint64_t z = a->random += 0x9e3779b97f4a7c15;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static inline void admit_env_random(struct env *e, void *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        ((uint8_t *)p)[i] = (uint8_t)admit_env_next(admit_env_of(e));
    }
}

static inline void admit_env_defer(struct env *e, struct env_task *t)
{
    if (!t->queued) {
        t->queued = true;
        list_push_back(&admit_env_of(e)->tasks, &t->node);
    }
}

static inline void admit_env_init(struct admit_env *a, uint64_t seed)
{
    static const struct env_ops ops = {
        .now_us = admit_env_now,
        .wall_us = admit_env_wall,
        .random = admit_env_random,
        .defer = admit_env_defer,
    };

    *a = (struct admit_env){
        .env = {&ops}, .now_us = 1000000, .wall_us = ADMIT_ENV_WALL_US, .random = seed};
    list_init(&a->tasks);
}

/* The end of a turn: everything deferred runs. */
static inline void admit_env_turn(struct admit_env *a)
{
    struct list *n;

    while ((n = list_pop_front(&a->tasks)) != NULL) {
        struct env_task *t = CONTAINER_OF(n, struct env_task, node);

        t->queued = false;
        t->run(t);
    }
}

#endif
