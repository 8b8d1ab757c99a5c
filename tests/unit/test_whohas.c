/* test_whohas - the index against a naive model, its promises one by one, and readers beside
 * writers (run it under the thread sanitizer too: -DTOLLGATE_SANITIZE=thread). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "base/hash.h"
#include "cache/whohas.h"

#define SECOND 1000000ULL
#define START (1000 * SECOND)
#define CHAIN_MAX 200
#define ALL UINT64_MAX

/* A chain of `count` chunks: seq i of family f. Chains of one family share their beginning up to
 * `fork`, after which `tail` tells them apart. */
struct chain {
    struct prefix p;
    uint64_t seq[CHAIN_MAX], end[CHAIN_MAX];
};

static void make_chain(struct chain *c, uint64_t family, uint32_t fork, uint64_t tail,
                       uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t name[3] = {family, i, i >= fork ? tail : 0};

        c->seq[i] = hash_xxh3(name, sizeof(name), 5);
        c->end[i] = (i + 1) * 256;
    }
    c->p = (struct prefix){.seq = c->seq, .end = c->end, .count = count};
}

static uint64_t held_by(const struct whohas *w, const struct chain *c, unsigned worker,
                        uint64_t now_us)
{
    uint64_t out[WHOHAS_WORKERS_MAX];

    out[worker] = 77;
    whohas_match(w, &c->p, 1ULL << worker, now_us, out);
    return out[worker] / 256;
}

static void a_dispatch_is_found_up_to_where_the_texts_part(void **state)
{
    struct whohas *w = whohas_new(1 << 20);
    uint64_t out[WHOHAS_WORKERS_MAX];
    struct chain sent, other, longer;

    (void)state;
    make_chain(&sent, 1, 10, 1, 20);
    make_chain(&other, 1, 10, 2, 20);
    make_chain(&longer, 1, 10, 1, 30);
    whohas_dispatched(w, &sent.p, 3, START);
    whohas_dispatched(w, &other.p, 63, START);
    memset(out, 0xAA, sizeof(out));
    whohas_match(w, &longer.p, 1ULL << 3 | 1ULL << 63 | 1ULL << 5, START, out);
    assert_int_equal(out[3], 20 * 256);
    assert_int_equal(out[63], 10 * 256);
    assert_int_equal(out[5], 0);
    assert_true(out[4] == 0xAAAAAAAAAAAAAAAA); /* not asked for */
    whohas_free(w);
}

static void a_hole_in_the_events_does_not_end_a_prefix(void **state)
{
    struct whohas *w = whohas_new(1 << 20);
    struct chain c;

    (void)state;
    make_chain(&c, 1, 0, 1, CHAIN_MAX);
    whohas_reset_worker(w, 7, true);
    for (uint32_t depth = 1; depth <= CHAIN_MAX; depth++) {
        whohas_stored(w, 7, c.seq + depth - 1, 1);
        assert_int_equal(held_by(w, &c, 7, START), depth);
    }
    for (uint32_t hole = 0; hole + 1 < CHAIN_MAX; hole++) {
        uint32_t deepest = (uint32_t)size_min(hole + 7, CHAIN_MAX);

        whohas_removed(w, 7, c.seq + hole, 1);
        whohas_removed(w, 7, c.seq + deepest, CHAIN_MAX - deepest);
        assert_int_equal(held_by(w, &c, 7, START), deepest);
        whohas_stored(w, 7, c.seq + hole, 1);
        whohas_stored(w, 7, c.seq + deepest, CHAIN_MAX - deepest);
    }
    whohas_removed(w, 7, c.seq, CHAIN_MAX);
    assert_int_equal(held_by(w, &c, 7, START), 0);
    whohas_free(w);
}

static void every_worker_gets_its_own_depth(void **state)
{
    struct whohas *w = whohas_new(1 << 20);
    struct chain sent, cold;

    (void)state;
    make_chain(&sent, 1, 0, 1, CHAIN_MAX);
    make_chain(&cold, 2, 0, 1, CHAIN_MAX);
    for (unsigned worker = 0; worker < WHOHAS_WORKERS_MAX; worker++) {
        sent.p.count = 3 * worker;
        whohas_dispatched(w, &sent.p, worker, START);
    }
    sent.p.count = CHAIN_MAX;
    for (unsigned worker = 0; worker < WHOHAS_WORKERS_MAX; worker++) {
        assert_int_equal(held_by(w, &sent, worker, START), 3 * worker);
        assert_int_equal(held_by(w, &cold, worker, START), 0);
    }
    whohas_free(w);
}

static void guesses_age_only_where_events_follow(void **state)
{
    struct whohas *w = whohas_new(1 << 20);
    struct chain c;

    (void)state;
    make_chain(&c, 1, 0, 1, 9);
    whohas_reset_worker(w, 1, true);
    whohas_dispatched(w, &c.p, 1, START);
    whohas_dispatched(w, &c.p, 2, START);
    assert_int_equal(held_by(w, &c, 1, START + 4 * SECOND), 9);
    assert_int_equal(held_by(w, &c, 1, START + 6 * SECOND), 0);
    assert_int_equal(held_by(w, &c, 2, START + 9000 * SECOND), 9);
    /* Another worker's dispatch makes an expired guess no younger. */
    whohas_dispatched(w, &c.p, 2, START + 20 * SECOND);
    assert_int_equal(held_by(w, &c, 1, START + 20 * SECOND), 0);
    whohas_dispatched(w, &c.p, 1, START + 30 * SECOND);
    whohas_stored(w, 1, c.seq, 5);
    assert_int_equal(held_by(w, &c, 1, START + 40 * SECOND), 5);
    whohas_free(w);
}

static void what_an_event_confirmed_goes_with_its_event(void **state)
{
    struct whohas *w = whohas_new(1 << 20);
    struct whohas_stats s;
    struct chain c;

    (void)state;
    make_chain(&c, 1, 0, 1, 9);
    whohas_reset_worker(w, 1, true);
    whohas_dispatched(w, &c.p, 1, START);
    whohas_stored(w, 1, c.seq, 9);
    whohas_stored(w, 1, c.seq, 9); /* said twice: counted once */
    whohas_dispatched(w, &c.p, 1, START);
    whohas_stats(w, &s);
    assert_int_equal(s.held[1], 9);
    assert_int_equal(s.entries, 9);
    whohas_removed(w, 1, c.seq, 9);
    whohas_removed(w, 1, c.seq, 9);
    whohas_stats(w, &s);
    assert_int_equal(s.held[1], 0);
    assert_int_equal(s.entries, 0);
    assert_int_equal(held_by(w, &c, 1, START), 0);
    whohas_free(w);
}

static void a_reset_forgets_one_worker_and_no_other(void **state)
{
    struct whohas *w = whohas_new(1 << 20);
    struct whohas_stats s;
    struct chain c;

    (void)state;
    make_chain(&c, 1, 0, 1, 9);
    whohas_stored(w, 1, c.seq, 9);
    whohas_stored(w, 2, c.seq, 9);
    whohas_dispatched(w, &c.p, 3, START);
    whohas_reset_worker(w, 1, true);
    assert_int_equal(held_by(w, &c, 1, START), 0);
    assert_int_equal(held_by(w, &c, 2, START), 9);
    whohas_stored(w, 1, c.seq, 4); /* the new life's snapshot */
    assert_int_equal(held_by(w, &c, 1, START), 4);
    whohas_reset_worker(w, 3, false);
    whohas_reset_worker(w, 2, false);
    assert_int_equal(held_by(w, &c, 3, START), 0);
    assert_int_equal(held_by(w, &c, 2, START), 0);
    assert_int_equal(held_by(w, &c, 1, START), 4);
    whohas_stats(w, &s);
    assert_int_equal(s.held[1], 4);
    assert_int_equal(s.held[2], 0);
    whohas_free(w);
}

static void the_index_never_passes_its_bounds_and_keeps_what_is_fresh(void **state)
{
    size_t bytes = 64 * 1024;
    struct whohas *w = whohas_new(bytes);
    struct whohas_stats s;
    struct chain c;
    unsigned fresh = 0, n = 400;

    (void)state;
    for (unsigned i = 0; i < n; i++) { /* ten times what fits; a dispatch a second */
        make_chain(&c, i, 0, 1, 30);
        whohas_dispatched(w, &c.p, i % 64, START + i * SECOND);
        whohas_stats(w, &s);
        assert_true(s.entries <= s.capacity && s.bytes <= bytes);
    }
    whohas_check(w);
    assert_true(s.entries > s.capacity * 9 / 10);
    assert_int_equal(s.evicted, n * 30 - s.entries);
    for (unsigned i = n - 10; i < n; i++) {
        make_chain(&c, i, 0, 1, 30);
        fresh += held_by(w, &c, i % 64, START + n * SECOND) == 30;
    }
    assert_int_equal(fresh, 10);
    whohas_free(w);
}

static void evicted_chunks_leave_the_counts(void **state)
{
    struct whohas *w = whohas_new(16 * 1024);
    struct whohas_stats s;
    struct chain c;
    uint64_t sum = 0;

    (void)state;
    for (unsigned i = 0; i < 300; i++) {
        make_chain(&c, i, 0, 1, 20);
        whohas_stored(w, i % 3, c.seq, 20);
    }
    whohas_stats(w, &s);
    for (unsigned i = 0; i < 3; i++) {
        sum += s.held[i];
    }
    assert_int_equal(sum, s.entries);
    whohas_free(w);
}

/* ---- the model: a list of (chunk, worker) facts ---- */

#define FAMILIES 3
#define TAILS 3
#define WORKERS 5

struct fact {
    bool by_event, by_dispatch;
    uint64_t at_us;
};

struct model {
    struct fact fact[FAMILIES][TAILS + 1][CHAIN_MAX][WORKERS];
    bool publishes[WORKERS];
    uint64_t random, exact;
};

static unsigned pick(uint64_t *random, unsigned n)
{
    *random = *random * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)(*random >> 33) % n;
}

/* The facts of chunk i; the shared beginning is tail 0. */
static struct fact *facts(struct model *m, unsigned family, unsigned tail, unsigned i)
{
    return m->fact[family][i >= 40 ? tail : 0][i];
}

static bool model_holds(const struct model *m, const struct fact *f, unsigned worker,
                        uint64_t now_us)
{
    return f[worker].by_event ||
           (f[worker].by_dispatch && (!m->publishes[worker] || now_us == f[worker].at_us));
}

static void model_reset(struct model *m, unsigned worker, bool publishes)
{
    for (unsigned f = 0; f < FAMILIES * (TAILS + 1) * CHAIN_MAX; f++) {
        (&m->fact[0][0][0][0])[f * WORKERS + worker] = (struct fact){0};
    }
    m->publishes[worker] = publishes;
}

/* One random change to both. Time moves in steps of 6 s, so that a guess is new or expired. */
static void change(struct model *m, struct whohas *w, struct chain *c, unsigned family,
                   unsigned tail, uint64_t now_us)
{
    unsigned worker = pick(&m->random, WORKERS), what = pick(&m->random, 100);
    unsigned from = pick(&m->random, 3) == 0 ? 0 : pick(&m->random, c->p.count);
    unsigned n = pick(&m->random, 2) == 0 ? 1 : c->p.count - from;

    if (what < 3) {
        bool publishes = pick(&m->random, 2) == 0;

        whohas_reset_worker(w, worker, publishes);
        model_reset(m, worker, publishes);
    } else if (what < 40) {
        whohas_dispatched(w, &c->p, worker, now_us);
        for (unsigned i = 0; i < c->p.count; i++) {
            struct fact *f = &facts(m, family, tail, i)[worker];

            f->by_dispatch = !f->by_event;
            f->at_us = now_us;
        }
    } else {
        (what < 75 ? whohas_stored : whohas_removed)(w, worker, c->seq + from, n);
        for (unsigned i = from; i < from + n; i++) {
            struct fact *f = &facts(m, family, tail, i)[worker];

            f->by_dispatch = f->by_dispatch && what >= 75;
            f->by_event = what < 75;
        }
    }
}

/* The answer is a chunk that the worker holds, and the deepest one unless more than one of 32 in a
 * row is missing before it. */
static void compare(struct model *m, unsigned count, unsigned family, unsigned tail,
                    unsigned worker, uint64_t now_us, unsigned got)
{
    unsigned deepest = 0, missing = 0, most = 0;
    bool holds[CHAIN_MAX];

    for (unsigned i = 0; i < count; i++) {
        holds[i] = model_holds(m, facts(m, family, tail, i), worker, now_us);
        deepest = holds[i] ? i + 1 : deepest;
    }
    for (unsigned i = 0; i < deepest; i++) {
        missing += !holds[i];
        missing -= i >= 32 && !holds[i - 32];
        most = missing > most ? missing : most;
    }
    if (got > deepest || (got > 0 && !holds[got - 1]) || (most <= 1 && got != deepest)) {
        fail_msg("worker %u: %u chunks, deepest %u, at most %u missing", worker, got, deepest,
                 most);
    }
    m->exact += most <= 1 && deepest > 0;
}

static void any_history_equals_the_naive_model(void **state)
{
    struct model *m = calloc(1, sizeof(*m));
    struct whohas *w = whohas_new(1 << 20); /* large enough that nothing is evicted */
    uint64_t out[WHOHAS_WORKERS_MAX], now_us = START;

    (void)state;
    m->random = 42;
    for (unsigned op = 0; op < 30000; op++) {
        unsigned family = pick(&m->random, FAMILIES), tail = 1 + pick(&m->random, TAILS);
        struct chain c;

        make_chain(&c, family, 40, tail, 1 + pick(&m->random, CHAIN_MAX));
        now_us += pick(&m->random, 4) == 0 ? 6 * SECOND : 0;
        change(m, w, &c, family, tail, now_us);
        whohas_match(w, &c.p, ALL, now_us, out);
        for (unsigned worker = 0; worker < WORKERS; worker++) {
            compare(m, c.p.count, family, tail, worker, now_us, (unsigned)(out[worker] / 256));
        }
        assert_int_equal(out[WORKERS], 0);
    }
    assert_true(m->exact > 10000);
    whohas_check(w);
    whohas_free(w);
    free(m);
}

/* ---- threads ---- */

#define THREAD_OPS 4000

struct crowd {
    struct whohas *w;
    atomic_uint wrong, next;
};

/* Family f is only ever sent to worker f % 64: a torn entry would show another one. */
static void write_once(struct crowd *crowd, struct chain *c, unsigned worker, uint64_t *random,
                       unsigned op)
{
    switch (pick(random, 8)) {
    case 0:
        whohas_removed(crowd->w, worker, c->seq, 16);
        break;
    case 1:
        whohas_reset_worker(crowd->w, worker, op % 2 == 0);
        break;
    case 2:
        whohas_stored(crowd->w, worker, c->seq, 16);
        break;
    default:
        whohas_dispatched(crowd->w, &c->p, worker, START + op * 10000);
    }
}

static void *read_and_write(void *ctx)
{
    struct crowd *crowd = ctx;
    unsigned id = atomic_fetch_add(&crowd->next, 1);
    uint64_t random = id + 1, out[WHOHAS_WORKERS_MAX];

    for (unsigned op = 0; op < THREAD_OPS; op++) {
        unsigned family = pick(&random, 200), worker = family % WHOHAS_WORKERS_MAX;
        unsigned reads = id % 2 == 0 ? 1 : 50;
        struct chain c;

        make_chain(&c, family, 0, 1, 16);
        if (id % 2 == 0) {
            write_once(crowd, &c, worker, &random, op);
        }
        for (unsigned r = 0; r < reads; r++) {
            whohas_match(crowd->w, &c.p, ALL, START + op * 10000, out);
            for (unsigned k = 0; k < WHOHAS_WORKERS_MAX; k++) {
                bool possible = k == worker ? out[k] <= 16 * 256 && out[k] % 256 == 0 : out[k] == 0;

                atomic_fetch_add_explicit(&crowd->wrong, !possible, memory_order_relaxed);
            }
        }
    }
    return NULL;
}

static void readers_see_whole_entries_beside_writers(void **state)
{
    struct crowd crowd = {.w = whohas_new(1)}; /* the smallest: entries come and go */
    struct whohas_stats s;
    pthread_t thread[4];

    (void)state;
    for (unsigned i = 0; i < ARRAY_LEN(thread); i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, read_and_write, &crowd), 0);
    }
    for (unsigned i = 0; i < ARRAY_LEN(thread); i++) {
        pthread_join(thread[i], NULL);
    }
    whohas_stats(crowd.w, &s);
    whohas_check(crowd.w);
    assert_int_equal(crowd.wrong, 0);
    assert_true(s.evicted > 0);
    assert_in_range(s.entries, 1, s.capacity + ARRAY_LEN(thread));
    /* All quiet: what remains can be taken out, and then nothing is left over. */
    for (unsigned family = 0; family < 200; family++) {
        struct chain c;

        make_chain(&c, family, 0, 1, 16);
        whohas_stored(crowd.w, family % 64, c.seq, 16);
        whohas_removed(crowd.w, family % 64, c.seq, 16);
        assert_int_equal(held_by(crowd.w, &c, family % 64, START), 0);
    }
    whohas_stats(crowd.w, &s);
    assert_int_equal(s.entries, 0);
    whohas_free(crowd.w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dispatch_is_found_up_to_where_the_texts_part),
        cmocka_unit_test(a_hole_in_the_events_does_not_end_a_prefix),
        cmocka_unit_test(every_worker_gets_its_own_depth),
        cmocka_unit_test(guesses_age_only_where_events_follow),
        cmocka_unit_test(what_an_event_confirmed_goes_with_its_event),
        cmocka_unit_test(a_reset_forgets_one_worker_and_no_other),
        cmocka_unit_test(the_index_never_passes_its_bounds_and_keeps_what_is_fresh),
        cmocka_unit_test(evicted_chunks_leave_the_counts),
        cmocka_unit_test(any_history_equals_the_naive_model),
        cmocka_unit_test(readers_see_whole_entries_beside_writers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
