/* test_engine.c - continuous batching against an oracle that knows neither batches nor blocks.
 *
 * The backend is a fake whose KV entry is a hash of the token and of the entry before it, read
 * through the block table, and whose logits are a hash of the last entry: a stale, shared or wrong
 * block changes every token that follows. */
#include "worker/engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define VOCAB 64
#define EOS 3
#define CONTEXT 400
#define REQUESTS_MAX 16
#define STEPS_MAX 20000

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = (a ^ (b + 0x9E3779B97F4A7C15ull)) * 0xBF58476D1CE4E5B9ull;

    z = (z ^ (z >> 29)) * 0x94D049BB133111EBull;
    return z ^ (z >> 32);
}

static uint32_t below(uint64_t *rng, uint32_t n)
{
    *rng = mix(*rng, 1);
    return (uint32_t)(*rng >> 20) % n;
}

struct fake {
    struct backend base;
    uint64_t (*kv)[BLOCK_TOKENS]; /* [blocks] */
    uint32_t blocks, rows_seen_max;
};

static bool fake_kv_init(struct backend *b, uint32_t blocks, struct err *e)
{
    struct fake *f = (struct fake *)b;

    (void)e;
    f->kv = mem_new(blocks * sizeof(*f->kv));
    f->blocks = blocks;
    return true;
}

static void logits_of(uint64_t state, float *logits)
{
    for (uint32_t i = 0; i < VOCAB; i++) {
        logits[i] = (float)(mix(state, i) >> 44) / (float)(1 << 18);
    }
    logits[EOS] -= 2;
}

static void fake_forward(struct backend *b, const struct batch *t, float *logits)
{
    struct fake *f = (struct fake *)b;
    uint32_t next = 0;

    f->rows_seen_max = t->rows > f->rows_seen_max ? t->rows : f->rows_seen_max;
    for (uint32_t s = 0; s < t->sequences; s++) {
        uint32_t first = t->kv_len[s] - t->q_len[s];
        uint64_t state = 0;

        for (uint32_t i = 0; i < t->q_len[s]; i++) {
            uint32_t p = first + i, row = t->q_start[s] + i;

            CHECK(t->table[s][p / 32] < f->blocks);
            state = p > 0 ? f->kv[t->table[s][(p - 1) / 32]][(p - 1) % 32] : 77;
            state = mix(state, (uint64_t)t->ids[row]);
            f->kv[t->table[s][p / 32]][p % 32] = state;
            if (next < t->wanted && t->want[next] == row) {
                logits_of(state, logits + (size_t)next * VOCAB);
                next++;
            }
        }
    }
    CHECK(next == t->wanted);
}

static const struct backend_ops fake_ops = {
    .name = "fake", .kv_init = fake_kv_init, .forward = fake_forward};

struct case_request {
    struct engine_request r;
    int32_t ids[CONTEXT];
    uint64_t chunks[CONTEXT];
    uint32_t chunk_token[CONTEXT];
    int32_t want[CONTEXT], got[CONTEXT];
    uint32_t n_want, n_got, arrives, aborts, cached;
    enum engine_finish want_finish, finish;
    bool started, submitted;
};

struct world {
    struct fake fake;
    struct model model;
    struct engine *g;
    struct case_request q[REQUESTS_MAX];
    uint32_t n, live;
    uint32_t held; /* chunk hashes: stored minus removed */
};

/* The whole request by itself: no block, no batch, no cache. */
static void oracle(struct case_request *q)
{
    uint64_t state = 77;
    uint16_t counts[VOCAB] = {0};
    float logits[VOCAB];
    uint8_t scratch[SAMPLE_SCRATCH_BYTES(VOCAB)] __attribute__((aligned(16)));
    struct sample_result r;

    for (uint32_t i = 0; i < q->r.n_ids; i++) {
        state = mix(state, (uint64_t)q->ids[i]);
        counts[q->ids[i]] = SAMPLE_COUNT_PROMPT;
    }
    q->want_finish = ENGINE_LENGTH;
    for (q->n_want = 0; q->n_want < q->r.max_tokens;) {
        logits_of(state, logits);
        sample_token(&q->r.sample, logits, VOCAB, counts, q->n_want, scratch, &r);
        q->want[q->n_want++] = r.id;
        if (r.id == EOS) {
            q->want_finish = ENGINE_STOP;
            break;
        }
        state = mix(state, (uint64_t)r.id);
        counts[r.id]++;
    }
}

static void on_event(void *ctx, const struct engine_event *ev)
{
    struct world *w = ctx;
    struct case_request *q = &w->q[ev->ticket];

    assert_int_equal(q->finish, 0);
    if (ev->kind == ENGINE_STARTED) {
        assert_false(q->started);
        assert_true(ev->cached_tokens < ev->prompt_tokens);
        q->started = true;
        q->cached = ev->cached_tokens;
    } else if (ev->kind == ENGINE_TOKEN) {
        assert_true(q->started);
        q->got[q->n_got++] = ev->token.id;
        assert_int_equal(ev->completion_tokens, q->n_got);
        assert_int_equal(ev->prompt_tokens, q->r.n_ids);
    } else {
        assert_int_equal(ev->completion_tokens, q->n_got);
        q->finish = ev->finish;
        w->live--;
    }
}

static void chunk_stored(void *ctx, uint64_t chunk)
{
    (void)chunk;
    ((struct world *)ctx)->held++;
}

static void chunk_removed(void *ctx, uint64_t chunk)
{
    struct world *w = ctx;

    (void)chunk;
    assert_true(w->held > 0);
    w->held--;
}

static struct engine_options options(uint32_t blocks, uint32_t sequences, uint32_t step)
{
    return (struct engine_options){.kv_blocks = blocks,
                                   .sequences_max = sequences,
                                   .waiting_max = REQUESTS_MAX,
                                   .step_tokens = step,
                                   .seed = 9};
}

static void world_open(struct world *w, struct engine_options o)
{
    struct err e = {0};
    struct blocks_events ev = {.stored = chunk_stored, .removed = chunk_removed, .ctx = w};

    memset(w, 0, sizeof(*w));
    w->fake.base.ops = &fake_ops;
    w->model.vocab = VOCAB;
    w->model.context = CONTEXT;
    w->model.eos = EOS;
    w->g = engine_new(&w->model, &w->fake.base, &o, ev, &e);
    assert_non_null(w->g);
}

static void world_close(struct world *w)
{
    engine_free(w->g);
    mem_free(w->fake.kv);
}

static struct case_request *add(struct world *w, uint32_t n_ids, uint32_t max_tokens)
{
    struct case_request *q = &w->q[w->n];

    q->r = (struct engine_request){.ticket = w->n++,
                                   .ids = q->ids,
                                   .n_ids = n_ids,
                                   .max_tokens = max_tokens,
                                   .class = ENGINE_STANDARD};
    q->r.sample = (struct sample_params){.top_p = 1, .repetition_penalty = 1};
    for (uint32_t i = 0; i < n_ids; i++) {
        q->ids[i] = (int32_t)(4 + i % 50);
    }
    q->aborts = UINT32_MAX;
    return q;
}

static void submit(struct world *w, struct case_request *q)
{
    assert_true(engine_submit(w->g, &q->r));
    q->submitted = true;
    w->live++;
}

static void check_pool(struct world *w)
{
    struct engine_stats s;

    engine_stats(w->g, &s);
    blocks_check(engine_blocks(w->g));
    assert_int_equal(s.blocks.free + s.blocks.referenced + s.blocks.cached_idle, s.blocks.total);
    assert_true(s.running + s.waiting > 0 || s.blocks.referenced == 0);
}

static bool step(struct world *w)
{
    bool more = engine_step(w->g, on_event, w);

    check_pool(w);
    return more;
}

static void run_dry(struct world *w)
{
    for (int i = 0; w->live > 0; i++) {
        assert_true(i < STEPS_MAX);
        step(w);
    }
    assert_false(step(w));
}

/* Random prompts that share beginnings: one of three streams, cut or forked anywhere. */
static void random_request(struct world *w, uint64_t *rng, uint32_t pool_blocks)
{
    uint32_t room = pool_blocks * BLOCK_TOKENS < CONTEXT ? pool_blocks * BLOCK_TOKENS : CONTEXT;
    uint32_t max = 1 + below(rng, room / 2 < 120 ? room / 2 : 120);
    uint32_t n = below(rng, 4) == 0 ? BLOCK_TOKENS * (1 + below(rng, 3)) + below(rng, 3) - 1
                                    : 1 + below(rng, 150);
    struct case_request *q;
    uint32_t stream = below(rng, 3), fork;

    n = n + max > room ? room - max : n;
    q = add(w, n, max);
    fork = below(rng, 3) == 0 ? below(rng, n + 1) : n;
    for (uint32_t i = 0; i < n; i++) {
        q->ids[i] = (int32_t)(mix(i < fork ? stream : *rng, i) % (VOCAB - 4)) + 4;
    }
    q->r.salt.lo = below(rng, 4) == 0;
    q->r.class = (enum engine_class)(1 + below(rng, 3));
    q->r.sample.temperature = below(rng, 2) ? 0.8f : 0;
    q->r.sample.seed = *rng;
    q->r.sample.presence_penalty = below(rng, 4) == 0 ? 0.7f : 0;
    q->r.sample.repetition_penalty = below(rng, 4) == 0 ? 1.2f : 1;
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
    q->arrives = below(rng, 30);
    q->aborts = below(rng, 5) == 0 ? q->arrives + below(rng, 40) : UINT32_MAX;
    oracle(q);
}

static void check_answer(const struct case_request *q)
{
    bool whole = q->finish != ENGINE_ABORTED;

    assert_true(q->finish == q->want_finish || (!whole && q->aborts != UINT32_MAX));
    assert_true(whole ? q->n_got == q->n_want : q->n_got <= q->n_want);
    assert_memory_equal(q->got, q->want, q->n_got * sizeof(q->got[0]));
}

static void one_seed(uint64_t seed, uint64_t *preemptions, uint64_t *cached)
{
    static struct world w;
    uint64_t rng = seed;
    uint32_t blocks = 3 + below(&rng, 20), sequences = 1 + below(&rng, 6);
    struct engine_options o = options(blocks, sequences, sequences + below(&rng, 60));
    struct engine_stats s;
    uint32_t n = 1 + below(&rng, REQUESTS_MAX - 1);

    world_open(&w, o);
    while (w.n < n) {
        random_request(&w, &rng, blocks);
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
    }
    assert_true(w.fake.rows_seen_max <= o.step_tokens);
    for (uint32_t i = 0; i < w.n; i++) {
        check_answer(&w.q[i]);
    }
    engine_stats(w.g, &s);
    assert_int_equal(s.blocks.referenced, 0);
    *preemptions += s.preemptions;
    *cached += s.cached_tokens;
    world_close(&w);
}

static void every_output_equals_the_request_alone(void **state)
{
    uint64_t preemptions = 0, cached = 0;
    const char *n = getenv("ENGINE_SEEDS");
    uint64_t seeds = n != NULL ? strtoull(n, NULL, 10) : 3000;

    (void)state;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        one_seed(seed, &preemptions, &cached);
    }
    print_message("%llu preemptions, %llu cached tokens\n", (unsigned long long)preemptions,
                  (unsigned long long)cached);
    assert_true(preemptions > seeds / 10); /* the pool is tiny enough to matter */
    assert_true(cached > 10 * seeds);
}

static void a_hit_is_capped_below_the_whole_prompt(void **state)
{
    static const uint32_t lengths[] = {31, 32, 33, 63, 64, 65};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        static struct world w;

        world_open(&w, options(16, 4, 64));
        for (int k = 0; k < 2; k++) {
            struct case_request *q = add(&w, lengths[i], 5);

            oracle(q);
            submit(&w, q);
            run_dry(&w);
            check_answer(q);
        }
        assert_int_equal(w.q[0].cached, 0);
        assert_int_equal(w.q[1].cached, (lengths[i] - 1) / 32 * 32);
        world_close(&w);
    }
}

static void another_salt_never_hits(void **state)
{
    static struct world w;

    (void)state;
    world_open(&w, options(16, 4, 64));
    submit(&w, add(&w, 100, 2));
    run_dry(&w);
    struct case_request *q = add(&w, 100, 2);
    q->r.salt.hi = 1;
    submit(&w, q);
    run_dry(&w);
    assert_int_equal(q->cached, 0);
    world_close(&w);
}

static void abort_works_in_every_state(void **state)
{
    (void)state;
    /* At step k: 0 waiting, 1 and 2 prefilling (120 tokens in chunks of 40), 3 and later decoding.
     */
    for (uint32_t k = 0; k < 8; k++) {
        static struct world w;

        world_open(&w, options(16, 2, 40));
        submit(&w, add(&w, 120, 50));
        for (uint32_t i = 0; i < k; i++) {
            step(&w);
        }
        engine_abort(w.g, 0);
        engine_abort(w.g, 0);  /* twice is as once */
        engine_abort(w.g, 99); /* unknown: nothing */
        step(&w);
        assert_int_equal(w.q[0].finish, ENGINE_ABORTED);
        assert_int_equal(w.q[0].started, k > 0);
        assert_int_equal(w.live, 0);
        assert_false(step(&w));
        world_close(&w);
    }
}

static void abort_on_token(void *ctx, const struct engine_event *ev)
{
    struct world *w = ctx;

    on_event(w, ev);
    if (ev->kind == ENGINE_TOKEN && ev->completion_tokens == 3) {
        engine_abort(w->g, ev->ticket);
    }
}

static void abort_from_an_event_stops_before_the_next_token(void **state)
{
    static struct world w;
    struct case_request *q;

    (void)state;
    world_open(&w, options(16, 2, 40));
    q = add(&w, 10, 50);
    q->r.ignore_eos = true;
    submit(&w, q);
    for (int i = 0; i < 10; i++) {
        engine_step(w.g, abort_on_token, &w);
        check_pool(&w);
    }
    assert_int_equal(q->n_got, 3);
    assert_int_equal(q->finish, ENGINE_ABORTED);
    world_close(&w);
}

static void a_full_waiting_room_refuses_and_what_cannot_fit_ends_refused(void **state)
{
    static struct world w;
    struct engine_options o = options(4, 1, 8);

    (void)state;
    o.waiting_max = 2;
    world_open(&w, o);
    submit(&w, add(&w, 8, 4));
    submit(&w, add(&w, 8, 4));
    assert_false(engine_submit(w.g, &add(&w, 8, 4)->r));
    run_dry(&w);
    submit(&w, add(&w, 100, 30)); /* 129 positions in 4 blocks of 32 */
    submit(&w, add(&w, 390, 11)); /* beyond the context */
    run_dry(&w);
    assert_int_equal(w.q[3].finish, ENGINE_REFUSED);
    assert_int_equal(w.q[4].finish, ENGINE_REFUSED);
    submit(&w, add(&w, 100, 29)); /* 128: just fits */
    run_dry(&w);
    assert_true(w.q[5].finish == ENGINE_LENGTH || w.q[5].finish == ENGINE_STOP);
    world_close(&w);
}

static void decodes_go_on_while_a_long_prompt_is_prefilled(void **state)
{
    static struct world w;

    (void)state;
    world_open(&w, options(32, 4, 20));
    struct case_request *q = add(&w, 5, 30);
    q->r.ignore_eos = true;
    submit(&w, q);
    step(&w);
    submit(&w, add(&w, 300, 1));
    for (int i = 0; i < 10; i++) {
        step(&w);
    }
    assert_int_equal(q->n_got, 11);
    assert_true(w.q[1].started && w.q[1].finish == 0);
    run_dry(&w);
    world_close(&w);
}

static void a_batch_request_makes_way_for_an_online_one(void **state)
{
    static struct world w;
    struct case_request *batch[2], *online;
    unsigned steps = 0;

    (void)state;
    world_open(&w, options(60, 2, 16));
    for (int i = 0; i < 2; i++) {
        batch[i] = add(&w, 40, 100);
        batch[i]->r.class = ENGINE_BATCH;
        batch[i]->r.ignore_eos = true;
        oracle(batch[i]);
        submit(&w, batch[i]);
    }
    while (batch[1]->n_got < 5) {
        step(&w);
    }
    online = add(&w, 20, 30);
    oracle(online);
    submit(&w, online);
    while (!online->started) {
        step(&w);
        assert_true(++steps <= 2);
    }
    run_dry(&w);
    check_answer(online);
    for (int i = 0; i < 2; i++) { /* the same tokens, with a pause in one */
        assert_int_equal(batch[i]->n_got, 100);
        assert_memory_equal(batch[i]->got, batch[i]->want, batch[i]->n_want * sizeof(int32_t));
    }
    world_close(&w);
}

static void the_next_turn_binds_the_answers_chunks(void **state)
{
    static struct world w;
    struct case_request *q;
    static uint64_t chunk[2] = {11, 12};
    static uint32_t at[2] = {20, 70};

    (void)state;
    world_open(&w, options(16, 2, 64));
    q = add(&w, 40, 60);
    q->r.ignore_eos = true;
    q->r.chunks = chunk;
    q->r.chunk_token = at;
    q->r.n_chunks = 1;
    submit(&w, q);
    run_dry(&w);
    assert_int_equal(w.held, 1);
    struct case_request *next = add(&w, 98, 1); /* prompt and 58 tokens of the answer */
    memcpy(next->ids + 40, q->got, 58 * sizeof(int32_t));
    next->r.chunks = chunk;
    next->r.chunk_token = at;
    next->r.n_chunks = 2;
    submit(&w, next);
    run_dry(&w);
    assert_int_equal(next->cached, 96);
    assert_int_equal(w.held, 2);
    world_close(&w);
}

static void stop_ids_end_the_answer_and_count(void **state)
{
    static struct world w;
    struct case_request *q;
    int32_t stop;

    (void)state;
    world_open(&w, options(16, 2, 64));
    q = add(&w, 40, 20);
    oracle(q);
    assert_true(q->n_want > 4);
    stop = q->want[3];
    q->r.stop_ids = &stop;
    q->r.n_stop_ids = 1;
    submit(&w, q);
    run_dry(&w);
    assert_int_equal(q->finish, ENGINE_STOP);
    assert_true(q->n_got <= 4 && q->got[q->n_got - 1] == stop);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hit_is_capped_below_the_whole_prompt),
        cmocka_unit_test(another_salt_never_hits),
        cmocka_unit_test(abort_works_in_every_state),
        cmocka_unit_test(abort_from_an_event_stops_before_the_next_token),
        cmocka_unit_test(a_full_waiting_room_refuses_and_what_cannot_fit_ends_refused),
        cmocka_unit_test(decodes_go_on_while_a_long_prompt_is_prefilled),
        cmocka_unit_test(a_batch_request_makes_way_for_an_online_one),
        cmocka_unit_test(the_next_turn_binds_the_answers_chunks),
        cmocka_unit_test(stop_ids_end_the_answer_and_count),
        cmocka_unit_test(every_output_equals_the_request_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
