/* test_engine_exact.c - random worlds on the real kernels: with the `exact` policy every answer,
 * its log-probabilities included, equals the request alone, bit for bit, drafts or not.
 *
 * test_engine_exact [RUNS [FIRST]]: 300 runs are the whole test; the default fits a sanitizer
 * build. */
#include "worker/engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "tests/unit/tiny_model.h"

#define RUNS_DEFAULT 20
#define REQUESTS 6
#define PROMPT_MAX 80
#define ANSWER_MAX 30
#define STEPS_MAX 2000

static uint64_t runs = RUNS_DEFAULT, first_run = 1;

struct answer {
    int32_t ids[ANSWER_MAX];
    uint64_t print[ANSWER_MAX]; /* of each whole sample_result */
    uint32_t n;
    enum engine_finish finish;
};

struct case_request {
    struct engine_request r;
    int32_t ids[PROMPT_MAX];
    struct answer alone, among;
    uint32_t arrives, aborts;
};

struct world {
    struct model *target, *draft; /* the draft may be the target */
    struct case_request q[REQUESTS];
    bool alone;
    uint64_t now_us;
    uint64_t drafted, accepted, preemptions;
};

static uint32_t below(uint64_t *rng, uint32_t n)
{
    *rng = *rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*rng >> 33) % n;
}

static struct model *open_tiny(uint64_t seed)
{
    char path[64];
    struct err e = {0};
    struct model *m;

    snprintf(path, sizeof(path), "/tmp/test_engine_exact.%d.gguf", (int)getpid());
    assert_true(tiny_model_write(path, seed));
    m = model_open(path, &e);
    unlink(path);
    assert_non_null(m);
    return m;
}

static struct backend *open_cpu(const struct model *m, unsigned threads, uint32_t rows_max)
{
    struct backend_options o = {.threads = threads, .rows_max = rows_max};
    struct err e = {0};
    struct backend *b = backend_cpu_open(m, &o, &e);

    assert_non_null(b);
    return b;
}

static uint64_t clock_us(void *ctx)
{
    struct world *w = ctx;

    return w->now_us += 50; /* as if computing took a random part of it */
}

static void on_event(void *ctx, const struct engine_event *ev)
{
    struct world *w = ctx;
    struct case_request *q = &w->q[ev->ticket];
    struct answer *a = w->alone ? &q->alone : &q->among;

    if (ev->kind == ENGINE_TOKEN) {
        a->print[a->n] = hash_xxh3(&ev->token, sizeof(ev->token), 1);
        a->ids[a->n++] = ev->token.id;
    } else if (ev->kind == ENGINE_END) {
        a->finish = ev->finish;
    }
}

static void random_request(struct world *w, uint32_t i, uint64_t *rng)
{
    struct case_request *q = &w->q[i];
    uint32_t same = below(rng, PROMPT_MAX), n = 1 + below(rng, PROMPT_MAX);

    if (below(rng, 3) == 0) {
        n = BLOCK_TOKENS * (1 + below(rng, 2)) + below(rng, 3) - 1;
    }
    for (uint32_t t = 0; t < n; t++) { /* the first tokens of all are alike */
        q->ids[t] = (int32_t)(t < same ? 3 + t * 7 % 19 : 3 + below(rng, 280));
    }
    q->r = (struct engine_request){.ticket = i,
                                   .ids = q->ids,
                                   .n_ids = n,
                                   .max_tokens = 1 + below(rng, ANSWER_MAX),
                                   .class = (enum engine_class)(1 + below(rng, 3)),
                                   .ignore_eos = below(rng, 2),
                                   .min_tokens = below(rng, 3) == 0 ? 5 : 0};
    q->r.sample = (struct sample_params){.temperature = below(rng, 2) ? 0 : 1,
                                         .top_p = below(rng, 3) == 0 ? 0.9f : 1,
                                         .presence_penalty = below(rng, 4) == 0 ? 0.5f : 0,
                                         .repetition_penalty = below(rng, 4) == 0 ? 1.2f : 1,
                                         .seed = *rng,
                                         .choice = below(rng, 2),
                                         .logprobs = below(rng, 2),
                                         .top_logprobs = 0};
    q->r.sample.top_logprobs = q->r.sample.logprobs ? 3 : 0;
    q->arrives = below(rng, 20);
    q->aborts = below(rng, 6) == 0 ? q->arrives + below(rng, 20) : UINT32_MAX;
}

/* Each request by itself: one chunk, an empty cache, no drafts, one thread. */
static void run_alone(struct world *w)
{
    struct engine_options o = {
        .kv_blocks = 4, .sequences_max = 1, .waiting_max = 1, .step_tokens = PROMPT_MAX};
    struct blocks_events none = {0};
    struct backend *b = open_cpu(w->target, 1, PROMPT_MAX);
    struct err e = {0};

    w->alone = true;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct engine *g = engine_new(w->target, b, &o, none, &e);

        assert_non_null(g);
        assert_true(engine_submit(g, &w->q[i].r));
        while (engine_step(g, on_event, w)) {
        }
        engine_free(g);
    }
    w->alone = false;
    b->ops->close(b);
}

static struct engine_options random_options(struct world *w, uint64_t *rng)
{
    uint32_t sequences = 1 + below(rng, REQUESTS);
    struct engine_options o = {.kv_blocks = 4 + below(rng, 10),
                               .sequences_max = sequences,
                               .waiting_max = REQUESTS,
                               .step_tokens = sequences + below(rng, 100)};

    if (below(rng, 2)) {
        o.clock_us = clock_us;
        o.clock_ctx = w;
        o.tpot_target_us = 100;
        o.aging_us = 2000;
    }
    o.draft_tokens = below(rng, 6);
    o.prompt_lookup = below(rng, 2);
    if (below(rng, 3) != 0) {
        o.draft_model = w->draft;
        o.draft_blocks = 1 + below(rng, 12);
    }
    return o;
}

static void run_among(struct world *w, uint64_t *rng)
{
    struct engine_options o = random_options(w, rng);
    struct blocks_events none = {0};
    struct backend *b = open_cpu(w->target, 1 + below(rng, 2), o.step_tokens), *d = NULL;
    struct err e = {0};
    struct engine *g;
    struct engine_stats s;
    bool more = true;

    if (o.draft_model != NULL) {
        o.draft_backend = d = open_cpu(w->draft, 1, o.step_tokens);
    }
    g = engine_new(w->target, b, &o, none, &e);
    assert_non_null(g);
    for (uint32_t now = 0; now < 60 || more; now++) {
        assert_true(now < STEPS_MAX);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            if (w->q[i].arrives == now) {
                assert_true(engine_submit(g, &w->q[i].r));
            }
            if (w->q[i].aborts == now) {
                engine_abort(g, i);
            }
        }
        more = engine_step(g, on_event, w);
        blocks_check(engine_blocks(g));
    }
    engine_stats(g, &s);
    assert_int_equal(s.blocks.referenced, 0);
    if (w->draft == w->target && !o.prompt_lookup) {
        assert_int_equal(s.accepted, s.drafted);
    }
    w->drafted += s.drafted;
    w->accepted += s.accepted;
    w->preemptions += s.preemptions;
    engine_free(g);
    b->ops->close(b);
    if (d != NULL) {
        d->ops->close(d);
    }
}

static void check(const struct case_request *q)
{
    bool aborted = q->among.finish == ENGINE_ABORTED && q->aborts != UINT32_MAX;

    assert_true(aborted || q->among.finish == q->alone.finish);
    assert_true(aborted ? q->among.n <= q->alone.n : q->among.n == q->alone.n);
    assert_memory_equal(q->among.ids, q->alone.ids, q->among.n * sizeof(q->among.ids[0]));
    assert_memory_equal(q->among.print, q->alone.print, q->among.n * sizeof(q->among.print[0]));
}

static void every_answer_equals_the_request_alone_bit_for_bit(void **state)
{
    static struct world w;
    struct model *target = open_tiny(1), *other = open_tiny(2);

    (void)state;
    w.target = target;
    for (uint64_t run = first_run; run < first_run + runs; run++) {
        uint64_t rng = run * 7919;

        memset(w.q, 0, sizeof(w.q));
        w.draft = run % 2 ? target : other;
        for (uint32_t i = 0; i < REQUESTS; i++) {
            random_request(&w, i, &rng);
        }
        run_alone(&w);
        run_among(&w, &rng);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            check(&w.q[i]);
        }
    }
    print_message("%llu drafted, %llu accepted, %llu preemptions\n", (unsigned long long)w.drafted,
                  (unsigned long long)w.accepted, (unsigned long long)w.preemptions);
    assert_true(runs < 10 || (w.accepted > 10 * runs && w.drafted > w.accepted));
    model_close(target);
    model_close(other);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_answer_equals_the_request_alone_bit_for_bit),
    };

    runs = argc > 1 ? strtoull(argv[1], NULL, 10) : RUNS_DEFAULT;
    first_run = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
