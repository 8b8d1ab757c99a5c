/* test_quota_threads.c - several loops at one quota store. Meant for the thread sanitizer too. */
#include "admit_env.h"
#include "gateway/admit/quota.h"

#include <pthread.h>
#include <stdlib.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define NO_LIMITS                                                                                  \
    {                                                                                              \
        QUOTA_NONE, QUOTA_NONE, QUOTA_NONE, QUOTA_NONE, QUOTA_NONE                                 \
    }

struct held { /* one hold and how often it was answered */
    struct quota_hold h;
    unsigned answers;
};

static void on_answer(struct quota_hold *h)
{
    CONTAINER_OF(h, struct held, h)->answers++;
}

static int64_t limit_nusd(const struct quota_limits *l)
{
    return l->budget_month_pusd < 0 ? INT64_MAX : l->budget_month_pusd / 1000;
}

#define THREADS 4
#define THREAD_STEPS 20000
#define THREAD_TENANTS 3
#define THREAD_KEYS 2
#define THREAD_HOLDS 6

struct shared {
    struct quota *q;
    struct snap_tenant t[THREAD_TENANTS];
    struct snap_key k[THREAD_TENANTS][THREAD_KEYS];
    atomic_llong spent[THREAD_TENANTS][THREAD_KEYS];
    atomic_llong granted, used_in[THREAD_TENANTS], requests[THREAD_TENANTS], overshoots;
};

struct thread {
    struct shared *s;
    struct admit_env env;
    struct held h[THREAD_HOLDS];
    int tenant[THREAD_HOLDS], key[THREAD_HOLDS];
    pthread_t id;
};

static void thread_watch(struct shared *s, int t)
{
    struct quota_scope_state st;

    if (quota_state(s->q, s->t[t].tenant_id, 0, &st) &&
        (st.spent_nusd + st.held_nusd > limit_nusd(&s->t[t].limits) || st.held_nusd < 0 ||
         st.concurrent > s->t[t].limits.concurrent)) {
        atomic_fetch_add(&s->overshoots, 1);
    }
}

static void thread_end(struct thread *x, int i, uint64_t how)
{
    struct shared *s = x->s;
    struct held *h = &x->h[i];
    int64_t nusd = how % 3 == 0 ? h->h.held_nusd : h->h.held_nusd / 2, in = h->h.in_tokens / 2;

    if (how % 5 == 4) {
        quota_drop(s->q, &h->h, x->env.now_us);
        return;
    }
    quota_settle(s->q, &h->h, nusd, in, 1, x->env.now_us);
    atomic_fetch_add(&s->spent[x->tenant[i]][x->key[i]], nusd);
    atomic_fetch_add(&s->used_in[x->tenant[i]], in);
}

static void *thread_run(void *arg)
{
    struct thread *x = arg;
    struct shared *s = x->s;

    for (int step = 0; step < THREAD_STEPS; step++) {
        uint64_t r = admit_env_next(&x->env);
        int i = (int)(r % THREAD_HOLDS), t = (int)((r >> 8) % THREAD_TENANTS),
            k = (int)((r >> 16) % THREAD_KEYS);
        struct held *h = &x->h[i];

        if (!h->h.active) {
            x->tenant[i] = t;
            x->key[i] = k;
            h->h.on_answer = on_answer;
            quota_reserve(s->q, &x->env.env, &h->h, &s->t[t], &s->k[t][k], (int64_t)(r >> 40) % 50,
                          5, (int64_t)(r >> 30) % 400);
            if (h->h.active) {
                atomic_fetch_add(&s->granted, 1);
                atomic_fetch_add(&s->requests[t], 1);
            }
        } else if (r % 7 == 0) {
            quota_extend(s->q, &x->env.env, &h->h, &s->t[x->tenant[i]],
                         &s->k[x->tenant[i]][x->key[i]], 1, 20);
        } else if (r % 7 == 1) {
            quota_trim(s->q, &h->h, h->h.in_tokens / 2, h->h.held_nusd / 2 + 1, x->env.now_us);
        } else {
            thread_end(x, i, r >> 24);
        }
        admit_env_turn(&x->env);
        thread_watch(s, t);
    }
    for (int i = 0; i < THREAD_HOLDS; i++) {
        quota_drop(s->q, &x->h[i].h, x->env.now_us);
    }
    return NULL;
}

static void shared_init(struct shared *s)
{
    *s = (struct shared){.q = quota_new()};
    for (int t = 0; t < THREAD_TENANTS; t++) {
        s->t[t] = (struct snap_tenant){.tenant_id = t + 1,
                                       .limits = {20000, 100000, QUOTA_NONE, 10, 400000000}};
        for (int k = 0; k < THREAD_KEYS; k++) {
            s->k[t][k] =
                (struct snap_key){.key_id = t * 10 + k + 1,
                                  .tenant_id = t + 1,
                                  .limits = {QUOTA_NONE, QUOTA_NONE, QUOTA_NONE, 7, 250000000}};
        }
    }
}

/* Four loops at once over the same tenants; clocks stand still, so the rates are exact counts too.
 */
static void threads_never_overshoot_and_leave_nothing(void **state)
{
    struct shared s;
    struct thread *x = calloc(THREADS, sizeof(*x));
    struct quota_scope_state st;

    (void)state;
    shared_init(&s);
    for (int i = 0; i < THREADS; i++) {
        x[i].s = &s;
        admit_env_init(&x[i].env, (uint64_t)i + 1);
        assert_int_equal(pthread_create(&x[i].id, NULL, thread_run, &x[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(x[i].id, NULL), 0);
    }
    assert_int_equal(s.overshoots, 0);
    assert_true(s.granted > 100);
    assert_int_equal(quota_open_holds(s.q), 0);
    for (int t = 0; t < THREAD_TENANTS; t++) {
        struct quota_view v;
        int64_t spent = 0;

        for (int k = 0; k < THREAD_KEYS; k++) {
            assert_true(quota_state(s.q, t + 1, s.k[t][k].key_id, &st));
            assert_int_equal(st.spent_nusd, s.spent[t][k]);
            assert_int_equal(st.held_nusd, 0);
            assert_int_equal(st.concurrent, 0);
            spent += st.spent_nusd;
        }
        assert_true(quota_state(s.q, t + 1, 0, &st));
        assert_int_equal(st.spent_nusd, spent);
        assert_int_equal(st.held_nusd, 0);
        assert_int_equal(st.concurrent, 0);
        quota_view(s.q, &s.t[t], &s.k[t][0], x[0].env.now_us, &v);
        assert_int_equal(v.requests_remaining, 20000 - s.requests[t]);
        assert_int_equal(v.tokens_remaining, 100000 - s.used_in[t]);
    }
    quota_free(s.q);
    free(x);
}

/* Many threads meet new tenants and keys at the same moment: each exists once. */
static void *thread_meet(void *arg)
{
    struct thread *x = arg;
    struct snap_tenant t = {.limits = NO_LIMITS};
    struct snap_key k = {.limits = NO_LIMITS};

    for (int i = 0; i < 2000; i++) {
        t.tenant_id = i / 20 + 1;
        k.key_id = i % 20 + 1;
        x->h[0].h.on_answer = on_answer;
        quota_reserve(x->s->q, &x->env.env, &x->h[0].h, &t, &k, 1, 1, 10);
        admit_env_turn(&x->env);
        quota_settle(x->s->q, &x->h[0].h, 10, 1, 1, x->env.now_us);
    }
    return NULL;
}

static void threads_meet_new_tenants_once(void **state)
{
    struct shared s = {.q = quota_new()};
    struct thread *x = calloc(THREADS, sizeof(*x));
    struct quota_scope_state st;

    (void)state;
    for (int i = 0; i < THREADS; i++) {
        x[i].s = &s;
        admit_env_init(&x[i].env, (uint64_t)i + 1);
        assert_int_equal(pthread_create(&x[i].id, NULL, thread_meet, &x[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(x[i].id, NULL), 0);
    }
    for (int i = 0; i < 2000; i++) {
        assert_true(quota_state(s.q, i / 20 + 1, i % 20 + 1, &st));
        assert_int_equal(st.spent_nusd, THREADS * 10);
    }
    quota_free(s.q);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_never_overshoot_and_leave_nothing),
        cmocka_unit_test(threads_meet_new_tenants_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
