/* test_kv_mirror.c - a gateway's copy of the set of chunks equals the worker's at a thousand random
 * moments, through restarts of the worker, cut connections, gaps and readings of the whole set. The
 * clock is the test's: a change is told within KV_EVENTS_COALESCE_US, something every
 * KV_EVENTS_HEARTBEAT_US. */
#include "worker/kv_events.h"

#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define HASHES 900
#define MOMENTS 1000
#define COALESCE_BOUND_US 10000

static uint32_t next_random(uint32_t *rng, uint32_t n)
{
    *rng = *rng * 1664525u + 1013904223u;
    return (*rng >> 8) % n;
}

struct mirror {
    bool has[HASHES];
    uint64_t seq, heard_us;
    char epoch[32];
    bool knows, connected, in_snapshot;
    unsigned snapshots, resumes, wrong;
};

struct worker {
    struct kv_events *k;
    char epoch[32];
    unsigned epochs;
    bool held[HASHES];
    uint64_t now_us, flush_us, told_us; /* flush_us 0: no flush is due */
};

struct world {
    struct worker w;
    struct mirror m;
    uint32_t rng;
    unsigned gaps; /* longer than what is kept */
};

static void apply_list(struct mirror *m, const struct json *list, bool held)
{
    for (const struct json *h = list->child; h != NULL; h = h->next) {
        uint64_t v = strtoull(h->text.p, NULL, 16);

        assert_true(h->text.n == 16 && v < HASHES);
        m->wrong += m->has[v] == held; /* a line says only what changes */
        m->has[v] = held;
    }
}

/* What a gateway does with a line: a snapshot replaces all, an event must be the next one. */
static void hear(void *ctx, struct str line)
{
    struct world *x = ctx;
    struct mirror *m = &x->m;
    struct arena a;
    struct err e = {0};
    const struct json *v, *snapshot, *page;
    int64_t seq, n = 0;

    arena_init(&a, 8 << 20);
    v = json_parse(&a, line, &json_limits_api, &e);
    assert_non_null(v);
    assert_true(json_i64(json_get(v, STR("seq")), &seq));
    snapshot = json_get(v, STR("snapshot"));
    if (snapshot != NULL) {
        page = json_get(v, STR("page"));
        assert_true(json_i64(page, &n));
        if (n == 0) {
            memset(m->has, 0, sizeof(m->has));
            m->snapshots++;
        }
        str_copy(json_get(v, STR("epoch"))->text, m->epoch, sizeof(m->epoch));
        apply_list(m, snapshot, true);
    } else {
        assert_int_equal(seq, m->seq + 1);
        apply_list(m, json_get(v, STR("stored")), true);
        apply_list(m, json_get(v, STR("removed")), false);
    }
    m->seq = (uint64_t)seq;
    m->knows = true;
    m->heard_us = x->w.now_us;
    arena_fini(&a);
}

static void tell(void *ctx, struct str line)
{
    struct world *x = ctx;

    x->w.told_us = x->w.now_us;
    if (x->m.connected) {
        hear(ctx, line);
    }
}

static void worker_start(struct worker *w)
{
    snprintf(w->epoch, sizeof(w->epoch), "%u", 1000 + ++w->epochs);
    kv_events_free(w->k);
    w->k = kv_events_new(STR("p"), str_c(w->epoch));
    memset(w->held, 0, sizeof(w->held));
    w->flush_us = 0;
    w->told_us = w->now_us;
}

static void change(struct world *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t h = next_random(&x->rng, HASHES);

        x->w.held[h] = next_random(&x->rng, 3) > 0;
        kv_events_change(x->w.k, h, x->w.held[h]);
    }
    if (kv_events_is_due(x->w.k) && x->w.flush_us == 0) {
        x->w.flush_us = x->w.now_us + KV_EVENTS_COALESCE_US;
    }
}

/* The timers of the worker up to `to`. */
static void pass(struct world *x, uint64_t to)
{
    struct worker *w = &x->w;

    for (;;) {
        uint64_t beat = w->told_us + KV_EVENTS_HEARTBEAT_US;
        bool flush = w->flush_us != 0 && w->flush_us <= beat;
        uint64_t due = flush ? w->flush_us : beat;

        if (due > to) {
            break;
        }
        w->now_us = due;
        kv_events_flush(w->k, !flush, tell, x);
        w->flush_us = 0;
    }
    w->now_us = to;
}

static void connect(struct world *x)
{
    struct mirror *m = &x->m;
    char from[64];

    snprintf(from, sizeof(from), "%s:%llu", m->epoch, (unsigned long long)m->seq);
    m->connected = true;
    if (m->knows && kv_events_resume(x->w.k, str_c(from), hear, x)) {
        m->resumes++;
    } else {
        kv_events_snapshot(x->w.k, hear, x);
    }
}

static void happen(struct world *x)
{
    switch (next_random(&x->rng, 12)) {
    case 0: /* the worker dies and comes back empty */
        worker_start(&x->w);
        x->m.connected = false;
        break;
    case 1:
    case 2: /* cut, perhaps for longer than events are kept */
        x->m.connected = false;
        if (next_random(&x->rng, 16) == 0) {
            uint64_t far = kv_events_seq(x->w.k) + KV_EVENTS_KEPT + 5;

            x->gaps++;
            while (kv_events_seq(x->w.k) < far) {
                change(x, 4);
                pass(x, x->w.now_us + KV_EVENTS_COALESCE_US);
            }
        }
        break;
    case 3: /* a reading of the whole set beside the stream */
        kv_events_snapshot(x->w.k, hear, x);
        break;
    default:
        change(x, 1 + next_random(&x->rng, 300));
    }
}

static void a_mirror_equals_the_set_at_a_thousand_moments(void **state)
{
    static struct world x = {.rng = 77};

    (void)state;
    x.w.now_us = 1;
    worker_start(&x.w);
    for (int i = 0; i < MOMENTS; i++) {
        happen(&x);
        pass(&x, x.w.now_us + next_random(&x.rng, 3) * next_random(&x.rng, 600000));
        if (!x.m.connected) {
            connect(&x);
        }
        pass(&x, x.w.now_us + COALESCE_BOUND_US); /* at the latest then all is told */
        assert_memory_equal(x.m.has, x.w.held, sizeof(x.w.held));
        assert_true(x.w.now_us - x.w.told_us <= KV_EVENTS_HEARTBEAT_US);
        assert_string_equal(x.m.epoch, x.w.epoch);
        assert_int_equal(x.m.seq, kv_events_seq(x.w.k));
    }
    assert_int_equal(x.m.wrong, 0);
    assert_true(x.gaps > 3 && x.w.epochs > 50 && x.m.resumes > 50 && x.m.snapshots > 50);
    kv_events_free(x.w.k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mirror_equals_the_set_at_a_thousand_moments),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
