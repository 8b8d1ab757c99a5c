/* bench_run.c - what the bench measures. Drives the backend as the engine does, without the engine:
 * forward passes and the search for the best logit, nothing else. */
#include "worker/bench_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct span {
    double wall, cpu;
};

static double clock_s(clockid_t which)
{
    struct timespec t;

    CHECK(clock_gettime(which, &t) == 0);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct span span_now(void)
{
    return (struct span){clock_s(CLOCK_MONOTONIC), clock_s(CLOCK_PROCESS_CPUTIME_ID)};
}

static void record(struct bench_test *t, struct span from)
{
    struct span now = span_now();

    t->wall[t->count] = now.wall - from.wall;
    t->cpu[t->count] = now.cpu - from.cpu;
    t->count++;
}

/* Rows at positions kv - n .. kv - 1 of a sequence. Scores and values are two multiply-adds a key,
 * head and column; keys and values are read once a row block, counted once a sequence. */
static void count_sequence(struct bench *g, struct bench_test *t, uint32_t n, uint32_t kv)
{
    const struct model *m = g->m;
    double keys = (double)n * (kv - n) + (double)n * (n + 1) / 2;

    t->flop += 4.0 * keys * m->heads * m->head_dim * m->layers;
    t->bytes += (double)g->b->ops->kv_block_bytes(g->b) / BENCH_BLOCK * kv;
}

static void count_forward(struct bench *g, struct bench_test *t, uint32_t rows, uint32_t wanted)
{
    double head = 2.0 * g->m->vocab * g->m->d;

    t->flop += rows * ((double)g->m->flop_per_token - head) + wanted * head;
    t->bytes += (double)g->m->weight_bytes;
}

struct rows {
    uint32_t sequences;
    uint32_t n[BENCH_SEQUENCES_MAX], kv[BENCH_SEQUENCES_MAX]; /* new rows and length after them */
    const uint32_t *table[BENCH_SEQUENCES_MAX];
    const int32_t *ids;
    bool all; /* logits of every row, not of each sequence's last */
};

static void forward(struct bench *g, struct bench_test *t, const struct rows *r)
{
    uint32_t start[BENCH_SEQUENCES_MAX], want[BENCH_LOGITS_MAX];
    struct batch batch = {.ids = r->ids,
                          .sequences = r->sequences,
                          .q_start = start,
                          .q_len = r->n,
                          .kv_len = r->kv,
                          .table = r->table,
                          .want = want};

    for (uint32_t i = 0; i < r->sequences; i++) {
        start[i] = batch.rows;
        for (uint32_t j = 0; j < r->n[i]; j++) {
            if (r->all || j + 1 == r->n[i]) {
                CHECK(batch.wanted < BENCH_LOGITS_MAX);
                want[batch.wanted++] = batch.rows + j;
            }
        }
        batch.rows += r->n[i];
        if (t != NULL) {
            count_sequence(g, t, r->n[i], r->kv[i]);
        }
    }
    if (t != NULL) {
        count_forward(g, t, batch.rows, batch.wanted);
    }
    g->b->ops->forward(g->b, &batch, g->logits);
}

/* The tokens from .. to - 1 of the test's text as chunks, into the blocks of `table`. */
static void prompt(struct bench *g, struct bench_test *t, const uint32_t *table, uint32_t from,
                   uint32_t to)
{
    while (from < to) {
        uint32_t n = to - from < BENCH_ROWS_MAX ? to - from : BENCH_ROWS_MAX;
        struct rows r = {1, {n}, {from + n}, {table}, g->ids + from, false};

        forward(g, t, &r);
        from += n;
    }
}

/* Sixteen maxima side by side, so that the compiler needs no permission to reorder. */
static float best_of(const float *logits, uint32_t n)
{
    float top[16];
    uint32_t i = 16;

    memcpy(top, logits, sizeof(top));
    for (; i + 16 <= n; i += 16) {
        for (uint32_t j = 0; j < 16; j++) {
            top[j] = logits[i + j] > top[j] ? logits[i + j] : top[j];
        }
    }
    for (; i < n; i++) {
        top[0] = logits[i] > top[0] ? logits[i] : top[0];
    }
    for (uint32_t j = 1; j < 16; j++) {
        top[0] = top[j] > top[0] ? top[j] : top[0];
    }
    return top[0];
}

static int32_t best_id(const struct bench *g, uint32_t row)
{
    const float *logits = g->logits + (size_t)row * g->m->vocab;
    float top = best_of(logits, g->m->vocab);
    uint32_t i = 0;

    while (i + 1 < g->m->vocab && logits[i] != top) {
        i++;
    }
    return (int32_t)i;
}

/* Blocks of sequence q; those of the long prompt lie behind all sequences. */
static void fill_table(uint32_t *table, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        table[i] = first + i;
    }
}

/* One prompt, whose blocks all sequences share, as the prefix cache has it (and the peer's copy of a
 * sequence, which copies no keys); then each goes its own way. */
static void run_decode(struct bench *g, struct bench_test *t, uint32_t count, uint32_t steps)
{
    uint32_t table[BENCH_SEQUENCES_MAX][BENCH_SEQUENCE_BLOCKS];
    int32_t ids[BENCH_SEQUENCES_MAX];
    struct rows r = {.sequences = count, .ids = ids};

    for (uint32_t q = 0; q < count; q++) {
        fill_table(table[q], q * BENCH_SEQUENCE_BLOCKS, BENCH_SEQUENCE_BLOCKS);
        if (q == 0) {
            prompt(g, NULL, table[0], 0, BENCH_BEHIND);
        }
        memcpy(table[q], table[0], BENCH_BEHIND / BENCH_BLOCK * sizeof(table[0][0]));
        r.table[q] = table[q];
        r.n[q] = 1;
        r.kv[q] = BENCH_BEHIND;
        ids[q] = g->ids[BENCH_BEHIND + q];
    }
    struct span began = span_now();
    for (uint32_t s = 0; s < steps; s++) {
        for (uint32_t q = 0; q < count; q++) {
            r.kv[q]++;
        }
        forward(g, t, &r);
        for (uint32_t q = 0; q < count; q++) {
            ids[q] = best_id(g, q);
        }
    }
    record(t, began);
    t->tokens = (double)count * steps;
}

/* n consecutive rows of one sequence, all wanted: a step that checks n - 1 drafted tokens. */
static void run_verify(struct bench *g, struct bench_test *t)
{
    uint32_t table[BENCH_LONG_BLOCKS];
    const uint32_t held = BENCH_BEHIND; /* each step writes the same rows again */

    fill_table(table, 0, BENCH_LONG_BLOCKS);
    prompt(g, NULL, table, 0, held);
    struct span began = span_now();
    for (uint32_t s = 0; s < BENCH_STEPS_BATCH; s++) {
        struct rows r = {1, {t->n}, {held + t->n}, {table}, g->ids + held, true};

        forward(g, t, &r);
        for (uint32_t i = 0; i < t->n; i++) {
            best_id(g, i);
        }
    }
    record(t, began);
    t->tokens = (double)t->n * BENCH_STEPS_BATCH;
}

/* A step of one row behind n tokens. Their values do not matter for speed: only the last block is
 * computed, the others hold what they held. */
static void run_decode_at(struct bench *g, struct bench_test *t)
{
    uint32_t table[BENCH_LONG_BLOCKS];

    if (t->n == BENCH_BEHIND) {
        run_decode(g, t, 1, BENCH_STEPS_ALONE);
        return;
    }
    fill_table(table, 0, BENCH_LONG_BLOCKS);
    prompt(g, NULL, table, t->n - BENCH_BLOCK, t->n);
    struct span began = span_now();
    for (uint32_t s = 0; s < BENCH_STEPS_BATCH; s++) {
        struct rows r = {1, {1}, {t->n + s + 1}, {table}, g->ids + t->n % BENCH_BLOCK + s, false};

        forward(g, t, &r);
        best_id(g, 0);
    }
    record(t, began);
    t->tokens = BENCH_STEPS_BATCH;
}

static void run_prompt(struct bench *g, struct bench_test *t)
{
    uint32_t table[BENCH_LONG_BLOCKS];
    struct span began = span_now();

    fill_table(table, 0, BENCH_LONG_BLOCKS);
    if (t->kind == BENCH_LONG) {
        prompt(g, NULL, table, 0, BENCH_LONG_TOKENS);
        t->cold[t->count] = span_now().wall - began.wall;
        began = span_now();
        prompt(g, t, table, BENCH_LONG_HELD, BENCH_LONG_TOKENS);
        t->tokens = BENCH_LONG_TOKENS - BENCH_LONG_HELD;
    } else {
        prompt(g, t, table, 0, t->n);
        t->tokens = t->n;
    }
    best_id(g, 0);
    record(t, began);
}

bool bench_open(struct bench *g, struct err *e)
{
    g->m = model_open(g->path, e);
    g->b = g->m != NULL ? backend_cpu_open(g->m, &g->options, e) : NULL;
    if (g->b == NULL || !g->b->ops->kv_init(g->b, BENCH_BLOCKS, e)) {
        return false;
    }
    if (g->m->context < BENCH_LONG_TOKENS + BENCH_STEPS_ALONE) {
        return err_set(e, ERR_UNSUPPORTED, "the model's context of %u is too short for this bench",
                       g->m->context);
    }
    return true;
}

void bench_close(struct bench *g)
{
    if (g->b != NULL) {
        g->b->ops->close(g->b);
    }
    model_close(g->m);
    g->b = NULL;
    g->m = NULL;
}

/* Everything anew, the file in the page cache: opened, packed, one token computed. */
static void run_load(struct bench *g, struct bench_test *t)
{
    struct bench fresh = {.path = g->path, .options = g->options, .logits = g->logits};
    struct err e = {0};
    uint32_t table[1] = {0};
    struct rows r = {1, {1}, {1}, {table}, g->ids, false};
    struct span began = span_now();

    if (!bench_open(&fresh, &e)) { /* it did open before */
        fprintf(stderr, "bench: %s\n", e.text);
        exit(1);
    }
    forward(&fresh, t, &r);
    record(t, began);
    t->tokens = 1;
    bench_close(&fresh);
}

static void run_once(struct bench *g, struct bench_test *t)
{
    t->flop = t->bytes = 0;
    switch (t->kind) {
    case BENCH_DECODE:
        run_decode_at(g, t);
        break;
    case BENCH_BATCH:
        run_decode(g, t, t->n, BENCH_STEPS_BATCH);
        break;
    case BENCH_VERIFY:
        run_verify(g, t);
        break;
    case BENCH_LOAD:
        run_load(g, t);
        break;
    case BENCH_PREFILL:
    case BENCH_LONG:
    default:
        run_prompt(g, t);
    }
}

void bench_measure(struct bench *g)
{
    uint32_t table[BENCH_LONG_BLOCKS];

    g->logits = mem_new(BENCH_LOGITS_MAX * (size_t)g->m->vocab * sizeof(*g->logits));
    for (uint32_t i = 0; i < BENCH_LONG_TOKENS; i++) {
        g->ids[i] = (int32_t)((1000 + i * 7919 % 20000) % g->m->vocab);
    }
    fill_table(table, 0, BENCH_LONG_BLOCKS);
    prompt(g, NULL, table, 0, 64); /* warm: pages, weights, pool */
    g->peaks = g->b->ops->peaks(g->b);
    for (uint32_t r = 0; r < g->repeats; r++) { /* tests take turns: a slow minute hits all */
        for (uint32_t i = 0; i < g->tests; i++) {
            run_once(g, &g->test[i]);
        }
    }
}
