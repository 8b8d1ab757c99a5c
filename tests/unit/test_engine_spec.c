/* test_engine_spec.c - speculation changes how fast an answer comes, never the answer. */
#include "tests/unit/engine_world.h"

#include "worker/engine/spec.h"

static struct engine_stats stats(struct world *w)
{
    struct engine_stats s;

    engine_stats(w->g, &s);
    return s;
}

/* Six answers of all kinds at one temperature, each as the oracle says. */
static void run_six(struct world *w, float temperature)
{
    for (uint32_t i = 0; i < 6; i++) {
        struct case_request *q = add(w, 31 + i % 3, 60);

        q->ids[0] = (int32_t)(5 + i);
        q->r.sample.temperature = temperature;
        q->r.sample.seed = i;
        q->r.sample.choice = i % 2;
        q->r.sample.frequency_penalty = i == 1 ? 0.5f : 0;
        q->r.sample.repetition_penalty = i == 2 ? 1.3f : 1;
        q->r.sample.logprobs = i == 3;
        q->r.grammar = i >= 4 ? world_grammar(i - 2) : NULL;
        q->r.ignore_eos = i < 4;
        q->r.min_tokens = i == 4 ? 30 : 0;
        oracle(w, q);
        submit(w, q);
    }
    run_dry(w);
    for (uint32_t i = 0; i < 6; i++) {
        check_answer(&w->q[i]);
    }
}

static void drafts_of_the_target_itself_all_come_true(void **state)
{
    (void)state;
    for (int hot = 0; hot < 2; hot++) {
        static struct world w;
        struct engine_options o = options(60, 6, 128);
        struct engine_stats s;

        world_begin(&w);
        with_draft(&w, &o, 4, 0);
        world_open(&w, o);
        run_six(&w, hot ? 1 : 0);
        s = stats(&w);
        assert_int_equal(s.accepted, s.drafted);
        assert_true(s.drafted > s.decode_tokens / 2);
        assert_true(s.steps < 40); /* not 60 and some */
        world_close(&w);
    }
}

static void drafts_at_random_hardly_come_true_and_are_given_up(void **state)
{
    static struct world w;
    struct engine_options o = options(60, 6, 128);
    struct engine_stats s;

    (void)state;
    world_begin(&w);
    with_draft(&w, &o, 4, 8);
    world_open(&w, o);
    for (uint32_t i = 0; i < 6; i++) {
        struct case_request *q = add(&w, 20 + i, 300);

        q->r.ignore_eos = true;
        q->r.sample.temperature = i % 2 ? 1.0f : 0;
        oracle(&w, q);
        submit(&w, q);
    }
    run_dry(&w);
    for (uint32_t i = 0; i < 6; i++) {
        check_answer(&w.q[i]);
    }
    s = stats(&w);
    assert_true(s.drafted > 0 && s.accepted * 10 < s.drafted);
    assert_true(s.drafted < s.decode_tokens / 4);
    world_close(&w);
}

static void looking_back_finds_what_repeats(void **state)
{
    static struct world w;
    struct engine_options o = options(60, 6, 128);
    struct engine_stats s;

    (void)state;
    world_begin(&w);
    w.fake.think.loops = true;
    o.draft_tokens = 5;
    o.prompt_lookup = true;
    world_open(&w, o);
    for (uint32_t i = 0; i < 4; i++) {
        struct case_request *q = add(&w, 20 + i, 250);

        q->r.ignore_eos = true;
        q->r.sample.temperature = 0.5f;
        q->r.sample.seed = i;
        oracle(&w, q);
        submit(&w, q);
    }
    run_dry(&w);
    for (uint32_t i = 0; i < 4; i++) {
        check_answer(&w.q[i]);
    }
    s = stats(&w);
    assert_true(s.accepted * 2 > s.drafted && s.accepted > s.decode_tokens / 3);
    world_close(&w);
}

static void lookup_takes_the_longest_then_the_newest_match(void **state)
{
    static const struct {
        int32_t ids[12];
        uint32_t n, most, found;
        int32_t out[4];
    } cases[] = {
        {{1, 2, 3, 4}, 4, 4, 0, {0}},
        {{1}, 1, 4, 0, {0}},
        {{7, 8, 7, 9, 7}, 5, 2, 2, {9, 7}},                    /* one token: the newest */
        {{1, 7, 5, 2, 7, 6, 1, 7}, 8, 3, 3, {5, 2, 7}},        /* two beat a newer one */
        {{1, 2, 3, 9, 0, 2, 3, 8, 1, 2, 3}, 11, 2, 2, {9, 0}}, /* three beat a newer two */
        {{5, 6, 5, 6}, 4, 4, 4, {5, 6, 5, 6}},                 /* goes round */
        {{4, 4, 4, 4}, 4, 3, 3, {4, 4, 4}},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int32_t out[4] = {0};

        assert_int_equal(spec_lookup(cases[i].ids, cases[i].n, cases[i].most, out), cases[i].found);
        assert_memory_equal(out, cases[i].out, cases[i].found * sizeof(*out));
    }
}

static void lookup_looks_back_no_further_than_its_window(void **state)
{
    static int32_t ids[SPEC_WINDOW + 200];
    uint32_t n = SPEC_WINDOW + 200;
    int32_t out[4];

    (void)state;
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = (int32_t)i;
    }
    ids[n - 1] = 10;
    assert_int_equal(spec_lookup(ids, n, 4, out), 0);
    ids[n - 1] = 300;
    assert_int_equal(spec_lookup(ids, n, 4, out), 4);
    assert_int_equal(out[0], 301);
}

static void who_asks_for_none_gets_no_drafts(void **state)
{
    static struct world w;
    struct engine_options o = options(60, 6, 128);
    struct case_request *q;

    (void)state;
    world_begin(&w);
    with_draft(&w, &o, 4, 0);
    world_open(&w, o);
    q = add(&w, 40, 30);
    q->r.no_speculation = true;
    oracle(&w, q);
    submit(&w, q);
    run_dry(&w);
    check_answer(q);
    assert_int_equal(stats(&w).drafted, 0);
    world_close(&w);
}

/* Drafts of one answer of 100 tokens, or of `n` at once, in a world whose forward takes so long. */
static uint64_t drafted(uint32_t n, uint32_t step_tokens, uint64_t us, uint64_t us_row)
{
    static struct world w;
    struct engine_options o = options(60, n, step_tokens);
    uint64_t all;

    world_begin(&w);
    with_draft(&w, &o, 4, 0);
    if (us + us_row > 0) {
        with_clock(&w, &o, us, us_row);
    }
    world_open(&w, o);
    for (uint32_t i = 0; i < n; i++) {
        struct case_request *q = add(&w, 10 + i, 100);

        q->r.ignore_eos = true;
        oracle(&w, q);
        submit(&w, q);
    }
    run_dry(&w);
    for (uint32_t i = 0; i < n; i++) {
        check_answer(&w.q[i]);
    }
    all = stats(&w).drafted;
    world_close(&w);
    return all;
}

static void load_turns_drafts_down(void **state)
{
    (void)state;
    assert_int_equal(drafted(4, 4, 0, 0), 0);   /* the decodes fill the budget */
    assert_true(drafted(4, 64, 0, 0) > 100);    /* nothing is known of cost */
    assert_true(drafted(4, 64, 5000, 1) > 100); /* rows are nearly free */
    assert_true(drafted(4, 64, 1, 1000) < 8);   /* each row costs as much as it brings */
}

static void a_stop_inside_a_drafted_run_ends_the_answer_there(void **state)
{
    static struct world w;
    struct engine_options o = options(60, 1, 64);

    (void)state;
    world_begin(&w);
    with_draft(&w, &o, 8, 0);
    world_open(&w, o);
    for (uint32_t at = 1; at < 12; at++) {
        struct case_request *q;
        int32_t stop;

        w.n = w.starts = 0;
        memset(&w.q[0], 0, sizeof(w.q[0]));
        q = add(&w, 40 + at, 30);
        q->r.ignore_eos = true;
        oracle(&w, q);
        stop = q->want[at];
        q->r.stop_ids = &stop;
        q->r.n_stop_ids = 1;
        oracle(&w, q);
        submit(&w, q);
        run_dry(&w);
        check_answer(q);
        assert_int_equal(q->finish, ENGINE_STOP);
    }
    world_close(&w);
}

static void an_abort_inside_a_drafted_run_stops_before_the_next_token(void **state)
{
    static struct world w;
    struct engine_options o = options(60, 1, 64);

    (void)state;
    world_begin(&w);
    with_draft(&w, &o, 8, 0);
    world_open(&w, o);
    w.abort_at = 4;
    add(&w, 40, 30)->r.ignore_eos = true;
    submit(&w, &w.q[0]);
    run_dry(&w);
    assert_int_equal(w.q[0].finish, ENGINE_ABORTED);
    assert_int_equal(w.q[0].n_got, 4);
    world_close(&w);
}

static void rejected_drafts_are_never_in_the_prefix_cache(void **state)
{
    (void)state;
    for (uint32_t n = 2 * BLOCK_TOKENS - 3; n <= 2 * BLOCK_TOKENS + 3; n++) {
        static struct world w;
        struct engine_options o = options(60, 2, 64);
        struct case_request *q, *next;

        world_begin(&w);
        w.fake.think.loops = true;
        with_draft(&w, &o, 8, 3); /* right and wrong, so that runs end anywhere */
        world_open(&w, o);
        q = add(&w, n, 64);
        q->r.ignore_eos = true;
        oracle(&w, q);
        submit(&w, q);
        run_dry(&w);
        check_answer(q);
        next = add(&w, n + 64, 20);
        memcpy(next->ids + n, q->got, 64 * sizeof(int32_t));
        next->ids[n + 63] = 50; /* the last position was never computed */
        oracle(&w, next);
        submit(&w, next);
        run_dry(&w);
        check_answer(next);
        assert_int_equal(next->cached, (n + 63) / BLOCK_TOKENS * BLOCK_TOKENS);
        world_close(&w);
    }
}

static void drafts_leave_no_block_behind(void **state)
{
    static struct world w;
    struct engine_options o = options(60, 1, 64);
    struct case_request *q;

    (void)state;
    world_begin(&w);
    with_draft(&w, &o, 8, 6);
    world_open(&w, o);
    q = add(&w, 20, 200);
    q->r.ignore_eos = true;
    submit(&w, q);
    while (step(&w)) {
        uint32_t tokens = 20 + q->n_got;

        /* For the newest token there may be one, for what was rejected there is none. */
        assert_in_range(stats(&w).blocks.referenced, seq_blocks(tokens - 1), seq_blocks(tokens));
    }
    world_close(&w);
}

static void a_draft_pool_that_is_too_small_only_costs_drafts(void **state)
{
    (void)state;
    for (uint32_t blocks = 1; blocks < 8; blocks++) {
        static struct world w;
        struct engine_options o = options(60, 6, 128);

        world_begin(&w);
        with_draft(&w, &o, 4, 1);
        o.draft_blocks = blocks;
        world_open(&w, o);
        run_six(&w, 1);
        assert_true(blocks < 3 || stats(&w).drafted > 0);
        world_close(&w);
    }
}

static void drafts_of_a_step_are_bounded(void **state)
{
    static struct world w;
    struct engine_options o = options(200, 16, 1000);

    (void)state;
    world_begin(&w);
    with_draft(&w, &o, ENGINE_DRAFT_TOKENS_MAX, 0);
    world_open(&w, o);
    for (uint32_t i = 0; i < 16; i++) {
        struct case_request *q = add(&w, 10 + i, 120);

        q->r.ignore_eos = true;
        oracle(&w, q);
        submit(&w, q);
    }
    while (w.q[15].n_got < 20) {
        step(&w);
    }
    w.fake.rows_seen_max = 0;
    run_dry(&w);
    assert_true(w.fake.rows_seen_max > 50 && w.fake.rows_seen_max <= 16 + SPEC_ROWS_MAX);
    for (uint32_t i = 0; i < 16; i++) {
        check_answer(&w.q[i]);
    }
    world_close(&w);
}

static void options_that_cannot_work_are_refused_with_a_story(void **state)
{
    static struct world w;
    struct blocks_events none = {0};
    struct engine_options good = options(10, 2, 64), o;
    struct model other = {.vocab = VOCAB + 1, .context = CONTEXT};

    (void)state;
    world_begin(&w);
    with_draft(&w, &good, 4, 0);
    for (int i = 0; i < 4; i++) {
        struct err e = {0};

        o = good;
        if (i == 0) {
            o.draft_tokens = ENGINE_DRAFT_TOKENS_MAX + 1;
        } else if (i == 1) {
            o.draft_backend = NULL;
        } else if (i == 2) {
            o.draft_blocks = 0;
        } else {
            o.draft_model = &other;
        }
        assert_null(engine_new(&w.model, &w.fake.base, &o, none, &e));
        assert_int_equal(e.code, ERR_INPUT);
        assert_true(e.text[0] != '\0');
        mem_free(w.fake.kv);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_of_the_target_itself_all_come_true),
        cmocka_unit_test(drafts_at_random_hardly_come_true_and_are_given_up),
        cmocka_unit_test(looking_back_finds_what_repeats),
        cmocka_unit_test(lookup_takes_the_longest_then_the_newest_match),
        cmocka_unit_test(lookup_looks_back_no_further_than_its_window),
        cmocka_unit_test(who_asks_for_none_gets_no_drafts),
        cmocka_unit_test(load_turns_drafts_down),
        cmocka_unit_test(a_stop_inside_a_drafted_run_ends_the_answer_there),
        cmocka_unit_test(an_abort_inside_a_drafted_run_stops_before_the_next_token),
        cmocka_unit_test(rejected_drafts_are_never_in_the_prefix_cache),
        cmocka_unit_test(drafts_leave_no_block_behind),
        cmocka_unit_test(a_draft_pool_that_is_too_small_only_costs_drafts),
        cmocka_unit_test(drafts_of_a_step_are_bounded),
        cmocka_unit_test(options_that_cannot_work_are_refused_with_a_story),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
