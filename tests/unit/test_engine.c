/* test_engine.c - continuous batching: one behaviour a test, on the hash model of engine_world.h.
 */
#include "tests/unit/engine_world.h"

static void a_hit_is_capped_below_the_whole_prompt(void **state)
{
    static const uint32_t lengths[] = {31, 32, 33, 63, 64, 65};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        static struct world w;

        world_start(&w, 16, 4, 64);
        for (int k = 0; k < 2; k++) {
            struct case_request *q = add(&w, lengths[i], 5);

            oracle(&w, q);
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
    world_start(&w, 16, 4, 64);
    submit(&w, add(&w, 100, 2));
    run_dry(&w);
    struct case_request *q = add(&w, 100, 2);
    q->r.salt.hi = 1;
    submit(&w, q);
    run_dry(&w);
    assert_int_equal(q->cached, 0);
    world_close(&w);
}

static void another_root_names_its_blocks_otherwise(void **state)
{
    struct hash128 first[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        static struct world w;
        struct engine_options o = options(16, 4, 64);

        o.root.hi = i;
        world_begin(&w);
        world_open(&w, o);
        submit(&w, add(&w, 100, 2));
        run_dry(&w);
        first[i] = blocks_hash(engine_blocks(w.g), 0);
        assert_true(first[i].lo != 0);
        world_close(&w);
    }
    assert_memory_not_equal(&first[0], &first[1], sizeof(first[0]));
}

static void abort_works_in_every_state(void **state)
{
    (void)state;
    /* At step k: 0 waiting, 1 and 2 prefilling (120 tokens in chunks of 40), 3 and later decoding.
     */
    for (uint32_t k = 0; k < 8; k++) {
        static struct world w;

        world_start(&w, 16, 2, 40);
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

static void abort_from_an_event_stops_before_the_next_token(void **state)
{
    static struct world w;
    struct case_request *q;

    (void)state;
    world_start(&w, 16, 2, 40);
    q = add(&w, 10, 50);
    q->r.ignore_eos = true;
    w.abort_at = 3;
    submit(&w, q);
    for (int i = 0; i < 10; i++) {
        step(&w);
    }
    assert_int_equal(q->n_got, 3);
    assert_int_equal(q->finish, ENGINE_ABORTED);
    world_close(&w);
}

#define MANY 2048

struct many {
    struct engine_request r[MANY];
    int32_t ids[8];
    uint32_t ends[MANY], aborted;
};

static void count_ends(void *ctx, const struct engine_event *ev)
{
    struct many *m = ctx;

    if (ev->kind == ENGINE_END) {
        m->ends[ev->ticket - 1]++;
        m->aborted += ev->finish == ENGINE_ABORTED;
    }
}

static void aborts_of_many_that_wait_end_each_of_them_once(void **state)
{
    struct many *m = calloc(1, sizeof(*m));
    struct engine_options o = options(60, 4, 64);
    static struct world w;

    (void)state;
    o.waiting_max = MANY;
    world_begin(&w);
    world_open(&w, o);
    for (uint32_t i = 0; i < MANY; i++) {
        m->r[i] = (struct engine_request){.ticket = i + 1,
                                          .ids = m->ids,
                                          .n_ids = ARRAY_LEN(m->ids),
                                          .max_tokens = 2,
                                          .class = ENGINE_STANDARD,
                                          .ignore_eos = true,
                                          .sample = {.top_p = 1, .repetition_penalty = 1}};
        assert_true(engine_submit(w.g, &m->r[i]));
    }
    engine_abort(w.g, MANY + 1); /* nobody's */
    for (uint32_t i = 0; i < MANY; i += 2) {
        engine_abort(w.g, i + 1);
        engine_abort(w.g, i + 1);
    }
    engine_step(w.g, count_ends, m);
    assert_int_equal(m->aborted, MANY / 2);
    engine_abort(w.g, 1); /* ended */
    while (engine_step(w.g, count_ends, m)) {
    }
    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(m->ends[i], 1);
    }
    assert_int_equal(m->aborted, MANY / 2);
    world_close(&w);
    free(m);
}

static void a_full_waiting_room_refuses_and_what_cannot_fit_ends_refused(void **state)
{
    static struct world w;
    struct engine_options o = options(4, 1, 8);

    (void)state;
    o.waiting_max = 2;
    world_begin(&w);
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
    world_start(&w, 32, 4, 20);
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
    world_start(&w, 60, 2, 16);
    for (int i = 0; i < 2; i++) {
        batch[i] = add(&w, 40, 100);
        batch[i]->r.class = ENGINE_BATCH;
        batch[i]->r.ignore_eos = true;
        oracle(&w, batch[i]);
        submit(&w, batch[i]);
    }
    while (batch[1]->n_got < 5) {
        step(&w);
    }
    online = add(&w, 20, 30);
    oracle(&w, online);
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
    world_start(&w, 16, 2, 64);
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
    world_start(&w, 16, 2, 64);
    q = add(&w, 40, 20);
    oracle(&w, q);
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

/* One decode of 300 tokens runs; a prompt of 350 comes; rows of the largest step from then on. */
static uint32_t rows_beside_a_decode(struct world *w, struct engine_options o)
{
    struct case_request *q;

    world_open(w, o);
    q = add(w, 5, 300);
    q->r.ignore_eos = true;
    submit(w, q);
    while (q->n_got < 20) {
        step(w);
    }
    w->fake.rows_seen_max = 0;
    q = add(w, 350, 1);
    submit(w, q);
    for (int i = 0; q->finish == 0; i++) {
        assert_true(i < 40); /* it gets on by 16 rows a step at least */
        step(w);
    }
    world_close(w);
    return w->fake.rows_seen_max;
}

static void chunks_leave_decodes_their_pace(void **state)
{
    static struct world w;
    struct engine_options o;
    uint32_t rows;

    (void)state;
    world_begin(&w);
    o = options(40, 4, 256);
    with_clock(&w, &o, 1000, 10);
    o.tpot_target_us = 2000; /* 100 rows */
    rows = rows_beside_a_decode(&w, o);
    assert_in_range(rows, 90, 100);
    o.tpot_target_us = 1; /* out of reach: the floor */
    world_begin(&w);
    with_clock(&w, &o, 1000, 10);
    assert_int_equal(rows_beside_a_decode(&w, o), 17);
    o.tpot_target_us = 0;
    world_begin(&w);
    with_clock(&w, &o, 1000, 10);
    assert_int_equal(rows_beside_a_decode(&w, o), 256);
}

static void without_decodes_a_prompt_gets_the_whole_step(void **state)
{
    static struct world w;
    struct engine_options o = options(40, 4, 128);

    (void)state;
    world_begin(&w);
    with_clock(&w, &o, 1000, 10);
    o.tpot_target_us = 1;
    world_open(&w, o);
    for (int i = 0; i < 2; i++) {
        submit(&w, add(&w, 200, 1));
    }
    run_dry(&w);
    assert_int_equal(w.fake.rows_seen_max, 128);
    world_close(&w);
}

static void who_waits_is_served_by_class_then_deadline_then_arrival(void **state)
{
    static struct world w;
    static const struct {
        enum engine_class class;
        uint64_t deadline_us;
        uint32_t start;
    } cases[] = {{ENGINE_BATCH, 10, 6},        {ENGINE_STANDARD, 0, 4}, {ENGINE_STANDARD, 9000, 3},
                 {ENGINE_STANDARD, 8000, 2},   {ENGINE_STANDARD, 0, 5}, {ENGINE_INTERACTIVE, 0, 1},
                 {ENGINE_INTERACTIVE, 9999, 0}};

    (void)state;
    world_start(&w, 40, 1, 128);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct case_request *q = add(&w, 10, 3);

        q->r.class = cases[i].class;
        q->r.deadline_us = cases[i].deadline_us;
        submit(&w, q);
    }
    run_dry(&w);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(w.q[i].start, cases[i].start);
    }
    world_close(&w);
}

static void who_waited_long_counts_as_a_class_better(void **state)
{
    (void)state;
    for (int aging = 0; aging < 2; aging++) {
        static struct world w;
        struct engine_options o = options(40, 1, 128);

        world_begin(&w);
        with_clock(&w, &o, 100, 1);
        o.aging_us = aging ? 1000 : 0;
        world_open(&w, o);
        add(&w, 10, 18)->r.ignore_eos = true;
        submit(&w, &w.q[0]);
        step(&w);
        add(&w, 10, 3)->r.class = ENGINE_BATCH;
        submit(&w, &w.q[1]);
        for (int i = 0; i < 12; i++) { /* of 100 us and more */
            step(&w);
        }
        submit(&w, add(&w, 10, 3)); /* standard, as the first one is by now */
        run_dry(&w);
        assert_int_equal(w.q[1].start, aging ? 1 : 2);
        world_close(&w);
    }
}

static void the_youngest_of_the_lowest_class_is_preempted(void **state)
{
    static struct world w;
    static const enum engine_class classes[] = {ENGINE_STANDARD, ENGINE_BATCH, ENGINE_BATCH};
    struct engine_stats s = {0};
    uint32_t before[3] = {0};

    (void)state;
    world_start(&w, 8, 4, 128); /* two blocks each; at 65 tokens each wants one more */
    for (int i = 0; i < 3; i++) {
        struct case_request *q = add(&w, i == 2 ? 34 : 33, 60);

        q->ids[0] = 4 + i; /* no block in common */
        q->r.class = classes[i];
        q->r.ignore_eos = true;
        oracle(&w, q);
        submit(&w, q);
    }
    for (int steps = 0; s.preemptions == 0; steps++) {
        assert_true(steps < 50);
        for (int i = 0; i < 3; i++) {
            before[i] = w.q[i].n_got;
        }
        step(&w);
        engine_stats(w.g, &s);
    }
    assert_int_equal(w.q[2].n_got, before[2]); /* it had its block, and made way for its elder */
    assert_int_equal(w.q[0].n_got, before[0] + 1);
    assert_int_equal(w.q[1].n_got, before[1] + 1);
    run_dry(&w);
    for (int i = 0; i < 3; i++) {
        check_answer(&w.q[i]);
    }
    world_close(&w);
}

static void a_lower_class_never_takes_blocks_of_a_better_one(void **state)
{
    static struct world w;
    uint32_t steps = 0;

    (void)state;
    world_start(&w, 4, 2, 64);
    add(&w, 40, 50)->r.class =
        ENGINE_BATCH; /* the older one, and the first to want a third block */
    add(&w, 33, 50)->r.ids[0] = 50;
    for (int i = 0; i < 2; i++) {
        w.q[i].r.ignore_eos = true;
        submit(&w, &w.q[i]);
    }
    while (w.q[1].finish == 0) {
        step(&w);
        steps++;
    }
    assert_true(steps <= 50 + 2); /* never paused */
    run_dry(&w);
    world_close(&w);
}

static void the_oldest_of_the_best_class_gets_on_whatever_comes(void **state)
{
    static struct world w;
    struct case_request *old;
    uint32_t before;

    (void)state;
    world_start(&w, 6, 3, 64);
    old = add(&w, 40, 100);
    old->r.ignore_eos = true;
    submit(&w, old);
    step(&w);
    for (int i = 0; old->finish == 0; i++) {
        if (i % 8 == 0 && w.n < REQUESTS_MAX) {
            struct case_request *q = add(&w, 50, 60);

            q->ids[0] = 5 + i % 40;
            q->r.deadline_us = 1; /* more urgent than the old one, which has no deadline */
            submit(&w, q);
        }
        before = old->n_got;
        step(&w);
        assert_int_equal(old->n_got, before + 1);
    }
    run_dry(&w);
    world_close(&w);
}

static void the_oldest_prompt_gets_on_beside_urgent_ones(void **state)
{
    static struct world w;
    struct case_request *old;

    (void)state;
    world_start(&w, 60, 4, 40);
    old = add(&w, 350, 1);
    submit(&w, old);
    step(&w);
    for (int i = 0; old->finish == 0; i++) {
        assert_true(i <= 350 / 16 + 1);
        if (w.n < REQUESTS_MAX) {
            struct case_request *q = add(&w, 40, 1);

            q->ids[0] = 5 + i;
            q->r.deadline_us = 1;
            submit(&w, q);
        }
        step(&w);
    }
    run_dry(&w);
    world_close(&w);
}

static void a_batch_request_makes_way_for_blocks_too(void **state)
{
    static struct world w;
    struct case_request *online;
    uint32_t steps = 0;

    (void)state;
    world_start(&w, 12, 8, 64);
    for (int i = 0; i < 3; i++) { /* of 4 blocks each */
        struct case_request *q = add(&w, 90, 30);

        q->r.class = ENGINE_BATCH;
        q->ids[0] = 5 + i;
        q->r.ignore_eos = true;
        oracle(&w, q);
        submit(&w, q);
    }
    while (w.q[0].n_got < 3) {
        step(&w);
    }
    online = add(&w, 200, 5);
    oracle(&w, online);
    submit(&w, online);
    while (!online->started) {
        step(&w);
        assert_true(++steps <= 2);
    }
    run_dry(&w);
    for (uint32_t i = 0; i < w.n; i++) {
        check_answer(&w.q[i]);
    }
    world_close(&w);
}

static void who_is_not_started_in_time_expires(void **state)
{
    static struct world w;
    struct engine_options o = options(5, 1, 64);
    struct engine_stats s;

    (void)state;
    world_begin(&w);
    with_clock(&w, &o, 100, 1);
    world_open(&w, o);
    for (int i = 0; i < 3; i++) {
        struct case_request *q = add(&w, 10, 60);

        q->r.ignore_eos = true;
        q->r.queue_deadline_us = i == 2 ? 0 : w.now_us + 2000; /* the first starts at once */
        submit(&w, q);
    }
    run_dry(&w);
    assert_int_equal(w.q[0].finish, ENGINE_LENGTH);
    assert_int_equal(w.q[1].finish, ENGINE_EXPIRED);
    assert_false(w.q[1].started);
    assert_int_equal(w.q[1].n_got, 0);
    assert_int_equal(w.q[2].finish, ENGINE_LENGTH);
    engine_stats(w.g, &s);
    assert_int_equal(s.expired, 1);
    world_close(&w);
}

/* Its client hears an answer already: the others may take as long as they have to. */
static void one_of_a_group_that_started_keeps_the_others_from_expiring(void **state)
{
    static struct world w;
    struct engine_options o = options(9, 1, 64);

    (void)state;
    for (uint32_t n_ids = 10; n_ids <= 70; n_ids += 60) { /* without a block to share, and with */
        world_begin(&w);
        with_clock(&w, &o, 100, 1);
        world_open(&w, o);
        for (int i = 0; i < 3; i++) {
            struct case_request *q = add(&w, n_ids, 60);

            q->r.ignore_eos = true;
            q->r.group = 5;
            q->r.sample.choice = (uint32_t)i;
            q->r.queue_deadline_us = w.now_us + 2000;
            submit(&w, q);
        }
        run_dry(&w);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(w.q[i].finish, ENGINE_LENGTH);
        }
        world_close(&w);
    }
}

static void group_of(struct world *w, uint32_t n, uint32_t n_ids)
{
    for (uint32_t i = 0; i < n; i++) {
        struct case_request *q = add(w, n_ids, 10);

        q->r.group = 7;
        q->r.sample.temperature = 1;
        q->r.sample.choice = i;
        oracle(w, q);
        submit(w, q);
    }
}

static void siblings_wait_for_the_first_and_hit_its_blocks(void **state)
{
    static struct world w;
    struct case_request *other;

    (void)state;
    world_start(&w, 40, 8, 48);
    group_of(&w, 4, 100);
    other = add(&w, 20, 3); /* behind them, and not held up */
    other->ids[0] = 60;
    submit(&w, other);
    run_dry(&w);
    assert_int_equal(w.q[0].cached, 0);
    for (int i = 1; i < 4; i++) {
        assert_int_equal(w.q[i].cached, 96);
        check_answer(&w.q[i]);
    }
    assert_memory_not_equal(w.q[0].got, w.q[1].got, 8 * sizeof(int32_t)); /* draws of their own */
    assert_int_equal(other->start, 1);
    world_close(&w);
}

static void siblings_are_not_stranded_when_the_first_leaves(void **state)
{
    (void)state;
    /* At step k the first is waiting, prefilling (three steps), decoding, ended. */
    for (uint32_t k = 0; k < 18; k++) {
        static struct world w;

        world_start(&w, 40, 8, 40);
        group_of(&w, 3, 100);
        for (uint32_t i = 0; i < k; i++) {
            step(&w);
        }
        w.q[0].aborts = w.q[1].aborts = 0;
        engine_abort(w.g, 0);
        if (k % 2 == 0) {
            engine_abort(w.g, 1);
        }
        run_dry(&w);
        for (uint32_t i = 0; i < 3; i++) {
            check_answer(&w.q[i]);
        }
        world_close(&w);
    }
}

static void nothing_ends_an_answer_before_min_tokens(void **state)
{
    static struct world w;
    struct case_request *q;
    int32_t stop;

    (void)state;
    world_start(&w, 16, 2, 64);
    for (uint64_t seed = 0; seed < 60; seed++) {
        w.n = w.starts = 0;
        memset(&w.q[0], 0, sizeof(w.q[0]));
        q = add(&w, 10, 20);
        q->r.sample.temperature = 2;
        q->r.sample.seed = seed;
        q->r.min_tokens = 12;
        stop = (int32_t)(4 + seed % 20);
        q->r.stop_ids = &stop;
        q->r.n_stop_ids = 1;
        oracle(&w, q);
        submit(&w, q);
        run_dry(&w);
        check_answer(q);
        assert_true(q->n_got >= 12);
        for (uint32_t i = 0; i < 12; i++) {
            assert_true(q->got[i] != EOS && q->got[i] != stop);
        }
    }
    world_close(&w);
}

static void a_grammar_that_can_only_end_ends_the_answer(void **state)
{
    static const struct {
        const char *regex;
        uint32_t min_tokens, n_got;
        bool ignore_eos;
    } cases[] = {
        {"abc", 0, 3, false}, /* finished: no EOS is waited for */
        {"abc", 9, 3, false}, /* nor may anything else come */
        {"abc", 0, 3, true},
        {"ab@", 0, 2, false}, /* the vocabulary has no @: nothing can come */
        {"@", 0, 0, false},
        {"(ab){2,3}", 5, 6, false}, /* EOS has to wait */
        {"(ab){0,3}", 0, 6, true},  /* or is passed over while anything else may come */
        {"a{0,3}", 9, 4, false},    /* where only EOS may come, it comes */
        {"a{0,3}", 0, 4, true},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        static struct world w;
        struct case_request *q;

        world_start(&w, 16, 2, 64);
        q = add(&w, 40, 20);
        q->r.grammar = world_regex(cases[i].regex);
        q->r.min_tokens = cases[i].min_tokens;
        q->r.ignore_eos = cases[i].ignore_eos;
        submit(&w, q);
        run_dry(&w);
        assert_int_equal(q->finish, ENGINE_STOP);
        assert_int_equal(q->n_got, cases[i].n_got);
        grammar_release(q->r.grammar);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hit_is_capped_below_the_whole_prompt),
        cmocka_unit_test(another_salt_never_hits),
        cmocka_unit_test(another_root_names_its_blocks_otherwise),
        cmocka_unit_test(abort_works_in_every_state),
        cmocka_unit_test(abort_from_an_event_stops_before_the_next_token),
        cmocka_unit_test(aborts_of_many_that_wait_end_each_of_them_once),
        cmocka_unit_test(a_full_waiting_room_refuses_and_what_cannot_fit_ends_refused),
        cmocka_unit_test(decodes_go_on_while_a_long_prompt_is_prefilled),
        cmocka_unit_test(a_batch_request_makes_way_for_an_online_one),
        cmocka_unit_test(the_next_turn_binds_the_answers_chunks),
        cmocka_unit_test(stop_ids_end_the_answer_and_count),
        cmocka_unit_test(chunks_leave_decodes_their_pace),
        cmocka_unit_test(without_decodes_a_prompt_gets_the_whole_step),
        cmocka_unit_test(who_waits_is_served_by_class_then_deadline_then_arrival),
        cmocka_unit_test(who_waited_long_counts_as_a_class_better),
        cmocka_unit_test(the_youngest_of_the_lowest_class_is_preempted),
        cmocka_unit_test(a_lower_class_never_takes_blocks_of_a_better_one),
        cmocka_unit_test(the_oldest_of_the_best_class_gets_on_whatever_comes),
        cmocka_unit_test(the_oldest_prompt_gets_on_beside_urgent_ones),
        cmocka_unit_test(a_batch_request_makes_way_for_blocks_too),
        cmocka_unit_test(who_is_not_started_in_time_expires),
        cmocka_unit_test(one_of_a_group_that_started_keeps_the_others_from_expiring),
        cmocka_unit_test(siblings_wait_for_the_first_and_hit_its_blocks),
        cmocka_unit_test(siblings_are_not_stranded_when_the_first_leaves),
        cmocka_unit_test(nothing_ends_an_answer_before_min_tokens),
        cmocka_unit_test(a_grammar_that_can_only_end_ends_the_answer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
