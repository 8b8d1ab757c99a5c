/* bench_quota.c - what one reserve costs: one loop alone, then two loops on one tenant. Prints; the
 * bar is 1 us a reserve (design: numbers to reach). */
#include "../unit/admit_env.h"
#include "gateway/admit/quota.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#define ROUNDS 2000000
#define TENANTS 1000

struct run {
    struct quota *q;
    unsigned tenants;
    double reserve_ns, pair_ns;
};

static uint64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void on_answer(struct quota_hold *h)
{
    (void)h;
}

static void *run(void *arg)
{
    struct run *r = arg;
    const struct quota_limits l = {100000000, 50000000000, 50000000000, 1000000,
                                   4000000000000000000};
    struct snap_tenant t = {.limits = l};
    struct snap_key k = {.limits = l};
    struct admit_env env;
    struct quota_hold h = {.on_answer = on_answer};
    uint64_t begun = clock_ns(), reserving = 0;

    admit_env_init(&env, 1);
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t at = i % 16 == 0 ? clock_ns() : 0; /* the clock costs too: every sixteenth */

        t.tenant_id = (int32_t)(i % r->tenants) + 1;
        k.key_id = t.tenant_id + 100000;
        env.now_us += 2;
        quota_reserve(r->q, &env.env, &h, &t, &k, 2000, 512, 1000);
        if (at != 0) {
            reserving += clock_ns() - at;
        }
        CHECK(h.active);
        admit_env_turn(&env);
        quota_settle(r->q, &h, 500, 500, 100, env.now_us);
    }
    r->pair_ns = (double)(clock_ns() - begun) / ROUNDS;
    r->reserve_ns = (double)reserving / (ROUNDS / 16);
    return NULL;
}

static void bench(const char *what, unsigned threads, unsigned tenants)
{
    struct quota *q = quota_new();
    struct run r[8];
    pthread_t id[8];

    for (unsigned i = 0; i < threads; i++) {
        r[i] = (struct run){.q = q, .tenants = tenants};
        CHECK(pthread_create(&id[i], NULL, run, &r[i]) == 0);
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(id[i], NULL);
    }
    printf(
        "%-28s reserve %6.0f ns (two clock reads included)  reserve + answer + settle %6.0f ns\n",
        what, r[0].reserve_ns, r[0].pair_ns);
    CHECK(quota_open_holds(q) == 0);
    quota_free(q);
}

int main(void)
{
    bench("one loop, one tenant", 1, 1);
    bench("one loop, 1,000 tenants", 1, TENANTS);
    bench("two loops, one tenant", 2, 1);
    bench("two loops, 1,000 tenants", 2, TENANTS);
    return 0;
}
