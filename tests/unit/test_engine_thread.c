/* test_engine_thread.c - the engine on its own thread: what a late serving loop finds, commands
 * from beside a running step, and an end at any moment. Also under the thread sanitizer. */
#include "worker/engine_thread.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/net/os.h"

#define VOCAB 8
#define CONTEXT 4096
#define LIVE 4
#define NEWS_AT_ONCE 4096 /* what the ring holds: answers here are longer in all */

static bool fake_kv_init(struct backend *b, uint32_t blocks, struct err *e)
{
    (void)b;
    (void)blocks;
    (void)e;
    return true;
}

static void fake_forward(struct backend *b, const struct batch *t, float *logits)
{
    (void)b;
    memset(logits, 0, (size_t)t->wanted * VOCAB * sizeof(*logits));
}

static const struct backend_ops fake_ops = {
    .name = "fake", .kv_init = fake_kv_init, .forward = fake_forward};

/* One request as the serving loop knows it. */
struct place {
    struct engine_request r;
    int32_t ids[40];
    uint32_t answered;
    bool started, ended;
    enum engine_finish finish;
};

struct world {
    struct backend backend;
    struct model model;
    struct env *env;
    struct engine_thread *t;
    struct place place[LIVE];
    uint32_t live;
};

static void on_wake(void *ctx)
{
    (void)ctx; /* the loop of the test looks by itself */
}

static void world_open(struct world *w)
{
    struct engine_options o = {
        .kv_blocks = 600, .sequences_max = LIVE, .waiting_max = 1, .step_tokens = 16};
    struct err e = {0};

    memset(w, 0, sizeof(*w));
    w->backend.ops = &fake_ops;
    w->model = (struct model){.vocab = VOCAB, .context = CONTEXT, .eos = -1};
    w->env = os_env_new(NULL, &e);
    assert_non_null(w->env);
    w->t = engine_thread_new(&w->model, &w->backend, &o, LIVE, w->env, on_wake, w, &e);
    assert_non_null(w->t);
}

static void world_close(struct world *w)
{
    engine_thread_free(w->t);
    os_env_free(w->env);
}

static void submit(struct world *w, uint32_t at, uint64_t ticket, uint32_t max_tokens)
{
    struct place *p = &w->place[at];

    *p = (struct place){.r = {.ticket = ticket << 16 | at,
                              .ids = p->ids,
                              .n_ids = ARRAY_LEN(p->ids),
                              .max_tokens = max_tokens,
                              .class = ENGINE_STANDARD,
                              .sample = {.top_p = 1, .repetition_penalty = 1}}};
    w->live++;
    engine_thread_submit(w->t, &p->r);
}

static void take(struct world *w, const struct engine_event *ev)
{
    struct place *p = &w->place[ev->ticket & 0xFFFF];

    assert_true(p->r.ticket == ev->ticket && !p->ended); /* nothing comes after END */
    switch (ev->kind) {
    case ENGINE_STARTED:
        assert_false(p->started);
        p->started = true;
        break;
    case ENGINE_TOKEN:
        assert_true(p->started);
        assert_int_equal(ev->completion_tokens, ++p->answered);
        break;
    case ENGINE_END:
        assert_int_equal(ev->completion_tokens, p->answered);
        p->ended = true;
        p->finish = ev->finish;
        w->live--;
        break;
    }
}

/* All that is there now. */
static void look(struct world *w)
{
    struct engine_news n;

    while (engine_thread_next(w->t, &n)) {
        if (n.kind == ENGINE_NEWS_EVENT) {
            take(w, &n.u.event);
        }
    }
    engine_thread_drained(w->t);
    sched_yield();
}

static uint64_t steps(struct world *w)
{
    struct engine_stats s;

    engine_thread_stats(w->t, &s);
    return s.steps;
}

/* The loop is late: the engine goes on until the ring is full, and no further. */
static void fill_ring(struct world *w)
{
    uint64_t before;

    for (uint32_t i = 0; i < LIVE; i++) {
        submit(w, i, 1, 3000);
    }
    while (steps(w) < NEWS_AT_ONCE / LIVE - 50) {
        sched_yield();
    }
    do {
        before = steps(w);
        for (int i = 0; i < 1000; i++) {
            sched_yield();
        }
    } while (steps(w) != before);
    assert_in_range(before, 1, NEWS_AT_ONCE + 50); /* each step tells at least one thing */
}

static void a_late_loop_misses_nothing(void **state)
{
    struct world w;

    (void)state;
    world_open(&w);
    fill_ring(&w);
    while (w.live > 0) {
        look(&w);
    }
    for (uint32_t i = 0; i < LIVE; i++) {
        assert_int_equal(w.place[i].answered, 3000);
        assert_int_equal(w.place[i].finish, ENGINE_LENGTH);
    }
    world_close(&w);
}

static void the_end_comes_while_the_ring_is_full(void **state)
{
    struct world w;

    (void)state;
    world_open(&w);
    fill_ring(&w);
    world_close(&w); /* returns */
}

static void an_abort_ends_each_once_wherever_it_is(void **state)
{
    struct world w;
    uint64_t rng = 1;

    (void)state;
    world_open(&w);
    for (uint64_t ticket = 1; ticket <= 2000; ticket++) {
        for (uint32_t i = 0; i < LIVE; i++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            if (w.place[i].ended || ticket == 1) {
                submit(&w, i, ticket, 1 + (uint32_t)(rng >> 33) % 8);
                if ((rng >> 50) % 2 == 0) {
                    engine_thread_abort(w.t, w.place[i].r.ticket);
                }
            }
        }
        look(&w);
    }
    while (w.live > 0) {
        look(&w);
    }
    for (uint32_t i = 0; i < LIVE; i++) {
        assert_in_range(w.place[i].answered, 0, w.place[i].r.max_tokens);
        assert_true(w.place[i].finish == ENGINE_ABORTED || w.place[i].finish == ENGINE_LENGTH);
    }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_loop_misses_nothing),
        cmocka_unit_test(the_end_comes_while_the_ring_is_full),
        cmocka_unit_test(an_abort_ends_each_once_wherever_it_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
