/* engine_world.c - the hash model, its oracle, and the checks after each step. */
#include "tests/unit/engine_world.h"

#include "base/hash.h"

uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = (a ^ (b + 0x9E3779B97F4A7C15ull)) * 0xBF58476D1CE4E5B9ull;

    z = (z ^ (z >> 29)) * 0x94D049BB133111EBull;
    return z ^ (z >> 32);
}

uint32_t below(uint64_t *rng, uint32_t n)
{
    *rng = mix(*rng, 1);
    return (uint32_t)(*rng >> 20) % n;
}

static bool fake_kv_init(struct backend *b, uint32_t blocks, struct err *e)
{
    struct fake *f = (struct fake *)b;

    (void)e;
    f->kv = mem_new(blocks * sizeof(*f->kv));
    f->blocks = blocks;
    return true;
}

static const struct entry nothing = {.hash = 77};

static struct entry next_entry(struct entry before, int32_t id)
{
    return (struct entry){.hash = mix(before.hash, (uint64_t)id), .id = id};
}

static void logits_of(const struct fake_model *m, struct entry at, float *logits)
{
    uint64_t state = at.hash;

    if (mix(state, 900) % 8 < m->astray) {
        state = mix(state, m->other);
    }
    for (uint32_t i = 0; i < VOCAB; i++) {
        logits[i] = (float)(mix(state, i) >> 44) / (float)(1 << 18);
    }
    logits[EOS] -= 2;
    if (m->loops && mix(state, 800) % 16 != 0) {
        logits[4 + (at.id + 1) % 12] += 12;
    }
}

static void fake_forward(struct backend *b, const struct batch *t, float *logits)
{
    struct fake *f = (struct fake *)b;
    uint32_t next = 0;

    f->rows_seen_max = t->rows > f->rows_seen_max ? t->rows : f->rows_seen_max;
    if (f->clock != NULL) {
        *f->clock += f->us + t->rows * f->us_row;
    }
    for (uint32_t s = 0; s < t->sequences; s++) {
        uint32_t first = t->kv_len[s] - t->q_len[s];

        for (uint32_t i = 0; i < t->q_len[s]; i++) {
            uint32_t p = first + i, row = t->q_start[s] + i;
            struct entry at = p > 0 ? f->kv[t->table[s][(p - 1) / 32]][(p - 1) % 32] : nothing;

            CHECK(t->table[s][p / 32] < f->blocks);
            at = next_entry(at, t->ids[row]);
            f->kv[t->table[s][p / 32]][p % 32] = at;
            if (next < t->wanted && t->want[next] == row) {
                logits_of(&f->think, at, logits + (size_t)next * VOCAB);
                next++;
            }
        }
    }
    CHECK(next == t->wanted);
}

static const struct backend_ops fake_ops = {
    .name = "fake", .kv_init = fake_kv_init, .forward = fake_forward};

/* Letters, digits, then what JSON needs. */
static struct str bytes_of(void *ctx, int32_t id)
{
    static const char text[] = "abcdefghijklmnopqrstuvwxyz0123456789{}[]\":, -.+eEtrufalsn\\/_()";

    (void)ctx;
    return id < 4 ? (struct str){0} : (struct str){text + id - 4, 1};
}

static struct grammar_vocab *world_vocab(void)
{
    static struct grammar_vocab *vocab;
    struct err e = {0};
    int32_t eos = EOS;

    if (vocab == NULL) {
        vocab = grammar_vocab_new(VOCAB, bytes_of, NULL, &eos, 1, &e);
        assert_non_null(vocab);
    }
    return vocab;
}

struct grammar *world_regex(const char *regex)
{
    struct grammar_source src = {.kind = GRAMMAR_REGEX, .regex = str_c(regex)};
    struct grammar *made;
    struct err e = {0};

    assert_true(grammar_compile(&src, world_vocab(), &made, &e));
    return made;
}

struct grammar *world_grammar(uint32_t i)
{
    static struct grammar *made[GRAMMARS];
    static const char *const regex[GRAMMARS - 1] = {"[a-f]{3,20}(xy|z[0-9]+)", "(ab|cd)*e",
                                                    "[a-z0-9]*"};
    struct grammar_source src = {.kind = GRAMMAR_JSON_OBJECT};
    struct err e = {0};

    if (made[i] == NULL && i < GRAMMARS - 1) {
        made[i] = world_regex(regex[i]);
    } else if (made[i] == NULL) {
        assert_true(grammar_compile(&src, world_vocab(), &made[i], &e));
    }
    return made[i];
}

/* The mask as the contract words it; false: nothing may come. */
static bool oracle_mask(const struct case_request *q, const struct grammar_state *at,
                        uint32_t mask[VOCAB / 32])
{
    memset(mask, 0xFF, VOCAB / 8);
    if (q->r.grammar != NULL) {
        grammar_mask(q->r.grammar, at, mask);
    }
    bool early = q->n_want < q->r.min_tokens;

    if (early || (q->r.grammar != NULL && q->r.ignore_eos)) {
        mask[0] &= ~(1u << EOS);
    }
    for (uint32_t i = 0; i < q->r.n_stop_ids && early; i++) {
        mask[q->r.stop_ids[i] / 32] &= ~(1u << q->r.stop_ids[i] % 32);
    }
    if (q->r.grammar != NULL && (mask[0] | mask[1]) == 0) { /* only an end may come */
        grammar_mask(q->r.grammar, at, mask);
    }
    return (mask[0] | mask[1]) != 0;
}

static bool oracle_ends(const struct case_request *q, int32_t id)
{
    return (id == EOS && !q->r.ignore_eos) || (q->r.n_stop_ids > 0 && id == q->r.stop_ids[0]);
}

void oracle(struct world *w, struct case_request *q)
{
    struct entry at = nothing;
    uint16_t counts[VOCAB] = {0};
    float logits[VOCAB];
    uint32_t mask[VOCAB / 32];
    static struct grammar_state where;
    uint8_t scratch[SAMPLE_SCRATCH_BYTES(VOCAB)] __attribute__((aligned(16)));
    struct sample_result r;

    for (uint32_t i = 0; i < q->r.n_ids; i++) {
        at = next_entry(at, q->ids[i]);
        counts[q->ids[i]] = SAMPLE_COUNT_PROMPT;
    }
    if (q->r.grammar != NULL) {
        grammar_state_init(q->r.grammar, &where);
    }
    q->want_finish = ENGINE_STOP;
    for (q->n_want = 0; oracle_mask(q, &where, mask);) {
        logits_of(&w->fake.think, at, logits);
        sample_token(&q->r.sample, logits, VOCAB, counts, mask, q->n_want, scratch, &r);
        q->want_print[q->n_want] = hash_xxh3(&r, sizeof(r), 1);
        q->want[q->n_want++] = r.id;
        if (oracle_ends(q, r.id) ||
            (q->r.grammar != NULL && (!grammar_accept_token(q->r.grammar, &where, r.id) ||
                                      grammar_finished(q->r.grammar, &where)))) {
            break;
        }
        if (q->n_want == q->r.max_tokens) {
            q->want_finish = ENGINE_LENGTH;
            break;
        }
        at = next_entry(at, r.id);
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
        q->start = w->starts++;
        q->cached = ev->cached_tokens;
    } else if (ev->kind == ENGINE_TOKEN) {
        assert_true(q->started);
        q->token_us[q->n_got] = w->now_us;
        q->got_print[q->n_got] = hash_xxh3(&ev->token, sizeof(ev->token), 1);
        q->got[q->n_got++] = ev->token.id;
        assert_int_equal(ev->completion_tokens, q->n_got);
        assert_int_equal(ev->prompt_tokens, q->r.n_ids);
        if (q->n_got == w->abort_at) {
            engine_abort(w->g, ev->ticket);
        }
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

struct engine_options options(uint32_t blocks, uint32_t sequences, uint32_t step_tokens)
{
    return (struct engine_options){.kv_blocks = blocks,
                                   .sequences_max = sequences,
                                   .waiting_max = REQUESTS_MAX,
                                   .step_tokens = step_tokens,
                                   .seed = 9};
}

static uint64_t world_clock(void *ctx)
{
    return ((struct world *)ctx)->now_us;
}

void with_clock(struct world *w, struct engine_options *o, uint64_t us, uint64_t us_row)
{
    o->clock_us = world_clock;
    o->clock_ctx = w;
    w->fake.clock = w->draft.clock = &w->now_us;
    w->fake.us = us;
    w->fake.us_row = us_row;
    w->draft.us = us / 8;
    w->draft.us_row = us_row / 8;
}

void with_draft(struct world *w, struct engine_options *o, uint32_t tokens, uint32_t astray)
{
    o->draft_tokens = tokens;
    o->draft_model = &w->model;
    o->draft_backend = &w->draft.base;
    o->draft_blocks = o->kv_blocks;
    w->draft.think = w->fake.think;
    w->draft.think.astray = astray;
    w->draft.think.other = 12345;
}

void world_begin(struct world *w)
{
    memset(w, 0, sizeof(*w));
    w->fake.base.ops = w->draft.base.ops = &fake_ops;
    w->model.vocab = VOCAB;
    w->model.context = CONTEXT;
    w->model.eos = EOS;
    w->now_us = 1000;
}

void world_open(struct world *w, struct engine_options o)
{
    struct err e = {0};
    struct blocks_events ev = {.stored = chunk_stored, .removed = chunk_removed, .ctx = w};

    w->g = engine_new(&w->model, &w->fake.base, &o, ev, &e);
    if (w->g == NULL) {
        print_message("%s\n", e.text);
    }
    assert_non_null(w->g);
}

void world_start(struct world *w, uint32_t blocks, uint32_t sequences, uint32_t step)
{
    world_begin(w);
    world_open(w, options(blocks, sequences, step));
}

void world_close(struct world *w)
{
    engine_free(w->g);
    mem_free(w->fake.kv);
    mem_free(w->draft.kv);
}

struct case_request *add(struct world *w, uint32_t n_ids, uint32_t max_tokens)
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

void submit(struct world *w, struct case_request *q)
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
    assert_true(s.accepted <= s.drafted);
}

bool step(struct world *w)
{
    bool more = engine_step(w->g, on_event, w);

    check_pool(w);
    return more;
}

void run_dry(struct world *w)
{
    for (int i = 0; w->live > 0; i++) {
        assert_true(i < STEPS_MAX);
        step(w);
    }
    assert_false(step(w));
}

void check_answer(const struct case_request *q)
{
    bool aborted = q->finish == ENGINE_ABORTED, expired = q->finish == ENGINE_EXPIRED;

    assert_true(q->finish == q->want_finish || (aborted && q->aborts != UINT32_MAX) ||
                (expired && q->r.queue_deadline_us != 0 && !q->started));
    assert_true(aborted || expired ? q->n_got <= q->n_want : q->n_got == q->n_want);
    assert_memory_equal(q->got, q->want, q->n_got * sizeof(q->got[0]));
    assert_memory_equal(q->got_print, q->want_print, q->n_got * sizeof(q->got_print[0]));
}
