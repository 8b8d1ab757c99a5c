/* test_engine_random.c - random worlds: arrivals, shared prefixes, groups, classes, deadlines,
 * aborts, grammars, drafts and a tiny pool; every answer equals the request alone.
 *
 * test_engine_random [SEEDS [FIRST]]: 10,000 seeds are the whole test; the default fits a sanitizer
 * build. A failing seed is printed. */
#include "tests/unit/engine_world.h"

#define SEEDS_DEFAULT 1000

static uint64_t seeds = SEEDS_DEFAULT, first_seed = 1, last_seed;

struct sums {
    uint64_t preemptions, cached, drafted, accepted, expired, aborted, stopped_by_grammar;
};

/* Random prompts that share beginnings: one of three streams, cut or forked anywhere. */
static void random_prompt(struct case_request *q, uint64_t *rng, bool loops)
{
    uint32_t stream = below(rng, 3), n = q->r.n_ids;
    uint32_t fork = below(rng, 3) == 0 ? below(rng, n + 1) : n;

    for (uint32_t i = 0; i < n; i++) {
        q->ids[i] = (int32_t)(mix(i < fork ? stream : *rng, i) % (VOCAB - 4)) + 4;
        if (loops && i > 0 && mix(stream, i + 500) % 8 != 0) {
            q->ids[i] = 4 + (q->ids[i - 1] + 1) % 12;
        }
    }
    q->r.salt.lo = below(rng, 4) == 0;
    for (uint32_t t = 6; t < n; t += 7 + below(rng, 9)) {
        uint64_t h = q->r.salt.lo;

        for (uint32_t i = 0; i <= t; i++) {
            h = mix(h, (uint64_t)q->ids[i]);
        }
        q->chunks[q->r.n_chunks] = h;
        q->chunk_token[q->r.n_chunks++] = t;
    }
    q->r.chunks = q->chunks;
    q->r.chunk_token = q->chunk_token;
}

static void random_params(struct case_request *q, uint64_t *rng)
{
    q->r.sample.temperature = below(rng, 2) ? 0.8f : 0;
    q->r.sample.top_k = below(rng, 6) == 0 ? 5 : 0;
    q->r.sample.seed = *rng;
    q->r.sample.choice = below(rng, 4) == 0;
    q->r.sample.presence_penalty = below(rng, 4) == 0 ? 0.7f : 0;
    q->r.sample.repetition_penalty = below(rng, 4) == 0 ? 1.2f : 1;
    q->r.sample.logprobs = below(rng, 4) == 0;
    q->r.sample.top_logprobs = q->r.sample.logprobs ? 2 : 0;
    q->r.ignore_eos = below(rng, 8) == 0;
    q->r.no_speculation = below(rng, 8) == 0;
    q->r.min_tokens = below(rng, 4) == 0 ? 1 + below(rng, 20) : 0;
    q->r.grammar = below(rng, 4) == 0 ? world_grammar(below(rng, GRAMMARS)) : NULL;
    if (below(rng, 4) == 0) {
        q->stop = (int32_t)below(rng, VOCAB);
        q->r.stop_ids = &q->stop;
        q->r.n_stop_ids = 1;
    }
}

static void random_request(struct world *w, uint64_t *rng, uint32_t pool_blocks)
{
    uint32_t room = pool_blocks * BLOCK_TOKENS < CONTEXT ? pool_blocks * BLOCK_TOKENS : CONTEXT;
    uint32_t max = 1 + below(rng, room / 2 < 120 ? room / 2 : 120);
    uint32_t n = below(rng, 4) == 0 ? BLOCK_TOKENS * (1 + below(rng, 3)) + below(rng, 3) - 1
                                    : 1 + below(rng, 150);
    struct case_request *q = add(w, n + max > room ? room - max : n, max);

    random_prompt(q, rng, w->fake.think.loops);
    random_params(q, rng);
    q->r.class = (enum engine_class)(1 + below(rng, 3));
    q->r.deadline_us = below(rng, 2) ? 1000 + below(rng, 40000) : 0;
    q->r.queue_deadline_us = below(rng, 6) == 0 ? 1000 + below(rng, 40000) : 0;
    q->arrives = below(rng, 30);
    q->aborts = below(rng, 5) == 0 ? q->arrives + below(rng, 40) : UINT32_MAX;
    oracle(w, q);
}

/* Some answers of one prompt, with choices of their own; any of them may be aborted. */
static void random_group(struct world *w, uint64_t *rng, uint32_t pool_blocks)
{
    struct case_request *first = &w->q[w->n];
    uint32_t n = 2 + below(rng, 3);

    random_request(w, rng, pool_blocks);
    first->r.group = w->n;
    for (uint32_t i = 1; i < n && w->n < REQUESTS_MAX; i++) {
        struct case_request *q = &w->q[w->n];

        *q = *first;
        q->r.ticket = w->n++;
        q->r.ids = q->ids;
        q->r.chunks = q->chunks;
        q->r.chunk_token = q->chunk_token;
        q->r.stop_ids = &q->stop;
        q->r.sample.choice = i;
        q->aborts = below(rng, 5) == 0 ? q->arrives + below(rng, 40) : UINT32_MAX;
        oracle(w, q);
    }
}

static struct engine_options random_options(struct world *w, uint64_t *rng)
{
    uint32_t blocks = 3 + below(rng, 20), sequences = 1 + below(rng, 6);
    struct engine_options o = options(blocks, sequences, sequences + below(rng, 60));

    if (below(rng, 4) != 0) {
        with_clock(w, &o, below(rng, 2) ? 200 : 5, 1 + below(rng, 30));
        o.tpot_target_us = below(rng, 2) ? 500 : 0;
        o.aging_us = below(rng, 2) ? 5000 : 0;
    }
    w->fake.think.loops = below(rng, 2);
    if (below(rng, 3) != 0) {
        with_draft(w, &o, 1 + below(rng, 8), below(rng, 9));
        o.draft_blocks = 1 + below(rng, blocks);
    }
    if (below(rng, 2)) {
        o.draft_tokens = o.draft_tokens != 0 ? o.draft_tokens : 1 + below(rng, 8);
        o.prompt_lookup = true;
    }
    o.root.lo = below(rng, 2);
    return o;
}

static void add_up(struct world *w, struct sums *sums)
{
    struct engine_stats s;

    engine_stats(w->g, &s);
    sums->preemptions += s.preemptions;
    sums->cached += s.cached_tokens;
    sums->drafted += s.drafted;
    sums->accepted += s.accepted;
    sums->expired += s.expired;
    for (uint32_t i = 0; i < w->n; i++) {
        const struct case_request *q = &w->q[i];

        sums->aborted += q->finish == ENGINE_ABORTED;
        sums->stopped_by_grammar += q->finish == ENGINE_STOP && q->r.grammar != NULL &&
                                    (q->n_got == 0 || q->got[q->n_got - 1] != EOS);
    }
}

static void one_seed(uint64_t seed, struct sums *sums)
{
    static struct world w;
    uint64_t rng = seed;
    struct engine_options o;
    uint32_t n = 1 + below(&rng, 15);
    bool cut = below(&rng, 50) == 0; /* the engine is freed in the middle of it all */

    world_begin(&w);
    o = random_options(&w, &rng);
    world_open(&w, o);
    while (w.n < n) {
        (below(&rng, 5) == 0 ? random_group : random_request)(&w, &rng, o.kv_blocks);
    }
    for (uint32_t now = 0; now < 80 || w.live > 0; now++) {
        assert_true(now < STEPS_MAX);
        for (uint32_t i = 0; i < w.n; i++) {
            if (w.q[i].arrives == now) {
                submit(&w, &w.q[i]);
            }
            if (w.q[i].aborts == now) {
                engine_abort(w.g, i);
            }
        }
        step(&w);
        w.now_us += 7;
        if (cut && now == 40) {
            break;
        }
    }
    assert_true(w.fake.rows_seen_max <= o.step_tokens);
    assert_true(w.draft.rows_seen_max <= o.step_tokens);
    for (uint32_t i = 0; i < w.n; i++) {
        if (w.q[i].finish != 0 || !cut) {
            check_answer(&w.q[i]);
        }
    }
    add_up(&w, sums);
    world_close(&w);
}

static void every_output_equals_the_request_alone(void **state)
{
    struct sums s = {0};

    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + seeds; seed++) {
        last_seed = seed;
        one_seed(seed, &s);
    }
    print_message("%llu preemptions, %llu cached, %llu drafted, %llu accepted, %llu expired, "
                  "%llu aborted, %llu ended by grammar\n",
                  (unsigned long long)s.preemptions, (unsigned long long)s.cached,
                  (unsigned long long)s.drafted, (unsigned long long)s.accepted,
                  (unsigned long long)s.expired, (unsigned long long)s.aborted,
                  (unsigned long long)s.stopped_by_grammar);
    if (seeds >= 100) { /* each of them happens often enough to matter */
        assert_true(s.preemptions > seeds / 10);
        assert_true(s.cached > 10 * seeds);
        assert_true(s.accepted > 10 * seeds && s.drafted > s.accepted);
        assert_true(s.expired > seeds / 20 && s.aborted > seeds / 10);
        assert_true(s.stopped_by_grammar > seeds / 20);
    }
}

static int tell_seed(void **state)
{
    (void)state;
    print_message("last seed: %llu\n", (unsigned long long)last_seed);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_output_equals_the_request_alone, tell_seed),
    };

    seeds = argc > 1 ? strtoull(argv[1], NULL, 10) : SEEDS_DEFAULT;
    first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
