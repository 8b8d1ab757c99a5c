/* bench_worker.c - speed of the cpu backend on a real model, one test a call, one JSON line out.
 *
 *   bench_worker MODEL THREADS tg|b8|pp512|kv4k [REPEATS]
 *
 * tg: 64 decode steps of one sequence behind 128 tokens. b8: 32 steps of eight such sequences.
 * pp512: one prompt of 512 tokens. kv4k: milliseconds to the first token of 4,128 tokens, cold, and
 * with 4,096 of them held. */
#include "tests/unit/drive.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define REPEATS_MAX 50u
#define ROWS_MAX 512u
#define BEHIND 128u
#define LONG_TOKENS 4128u
#define LONG_HELD 4096u
#define BLOCKS ((LONG_TOKENS + DRIVE_BLOCK - 1) / DRIVE_BLOCK)
#define SEQUENCES 8u

struct bench {
    struct model *m;
    struct backend *b;
    float *logits; /* [SEQUENCES][vocab] */
    int32_t ids[LONG_TOKENS];
};

struct result {
    double wall[REPEATS_MAX], cpu[REPEATS_MAX]; /* tokens a second, or ms */
};

static double clock_s(clockid_t which)
{
    struct timespec t;

    CHECK(clock_gettime(which, &t) == 0);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct span {
    double wall, cpu;
};

static struct span span_now(void)
{
    return (struct span){clock_s(CLOCK_MONOTONIC), clock_s(CLOCK_PROCESS_CPUTIME_ID)};
}

static struct span span_since(struct span from)
{
    struct span now = span_now();

    return (struct span){now.wall - from.wall, now.cpu - from.cpu};
}

/* One forward of n[i] ids for each sequence; logits of each one's last row. Tables are the
 * caller's, because a long prompt has more blocks than drive.h's sequences. */
static void forward(struct bench *t, uint32_t count, const uint32_t *const *table,
                    const int32_t *ids, const uint32_t *n, const uint32_t *kv)
{
    uint32_t start[SEQUENCES], want[SEQUENCES], rows = 0;

    for (uint32_t i = 0; i < count; i++) {
        start[i] = rows;
        rows += n[i];
        want[i] = rows - 1;
    }
    struct batch batch = {
        .rows = rows,
        .sequences = count,
        .ids = ids,
        .q_start = start,
        .q_len = n,
        .kv_len = kv,
        .table = table,
        .want = want,
        .wanted = count,
    };
    t->b->ops->forward(t->b, &batch, t->logits);
}

/* Tokens [from, to) of the test's text, into blocks first, first + 1, ... */
static void prompt(struct bench *t, uint32_t first, uint32_t from, uint32_t to)
{
    uint32_t table[BLOCKS];
    const uint32_t *tables[] = {table};

    for (uint32_t i = 0; i < BLOCKS; i++) {
        table[i] = first + i;
    }
    while (from < to) {
        uint32_t n = to - from < ROWS_MAX ? to - from : ROWS_MAX, kv = from + n;

        forward(t, 1, tables, t->ids + from, &n, &kv);
        from = kv;
    }
}

static void decode(struct bench *t, uint32_t count, uint32_t steps, uint32_t r, struct result *out)
{
    uint32_t blocks = (BEHIND + steps + DRIVE_BLOCK) / DRIVE_BLOCK;
    uint32_t table[SEQUENCES][BLOCKS], n[SEQUENCES], kv[SEQUENCES];
    const uint32_t *tables[SEQUENCES];
    int32_t ids[SEQUENCES];

    for (uint32_t q = 0; q < count; q++) {
        prompt(t, q * blocks, 0, BEHIND);
        for (uint32_t i = 0; i < blocks; i++) {
            table[q][i] = q * blocks + i;
        }
        tables[q] = table[q];
        ids[q] = t->ids[BEHIND + q];
        n[q] = 1;
        kv[q] = BEHIND;
    }
    struct span began = span_now();
    for (uint32_t s = 0; s < steps; s++) {
        for (uint32_t q = 0; q < count; q++) {
            kv[q]++;
        }
        forward(t, count, tables, ids, n, kv);
        for (uint32_t q = 0; q < count; q++) {
            ids[q] = drive_argmax(t->logits + (size_t)q * t->m->vocab, t->m->vocab);
        }
    }
    struct span took = span_since(began);
    out->wall[r] = count * steps / took.wall;
    out->cpu[r] = count * steps / took.cpu;
}

static void print_list(const char *name, const double *v, uint32_t n)
{
    printf("\"%s\":[", name);
    for (uint32_t i = 0; i < n; i++) {
        printf("%s%.3f", i > 0 ? "," : "", v[i]);
    }
    printf("]");
}

static void run(struct bench *t, const char *test, uint32_t repeats)
{
    static struct result got, cold;

    prompt(t, 0, 0, 64); /* warm: pages, weights, pool */
    for (uint32_t r = 0; r < repeats; r++) {
        struct span began = span_now(), took;

        if (strcmp(test, "tg") == 0) {
            decode(t, 1, 64, r, &got);
        } else if (strcmp(test, "b8") == 0) {
            decode(t, SEQUENCES, 32, r, &got);
        } else if (strcmp(test, "pp512") == 0) {
            prompt(t, 0, 0, 512);
            took = span_since(began);
            got.wall[r] = 512 / took.wall;
            got.cpu[r] = 512 / took.cpu;
        } else {
            prompt(t, 0, 0, LONG_TOKENS);
            took = span_since(began);
            cold.wall[r] = took.wall * 1e3;
            began = span_now();
            prompt(t, 0, LONG_HELD, LONG_TOKENS);
            took = span_since(began);
            got.wall[r] = took.wall * 1e3;
            got.cpu[r] = took.cpu * 1e3;
        }
    }
    print_list("all", got.wall, repeats);
    printf(",");
    print_list("cpu", got.cpu, repeats);
    printf(",");
    print_list("cold", cold.wall, strcmp(test, "kv4k") == 0 ? repeats : 0);
}

int main(int argc, char **argv)
{
    static struct bench t;
    struct err e = {0};
    struct backend_options o = {.rows_max = ROWS_MAX, .level = BACKEND_LEVEL_BEST};
    struct backend_peaks peaks;
    uint32_t repeats = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 3;

    if (argc < 4 || repeats < 1 || repeats > REPEATS_MAX) {
        fprintf(stderr, "usage: bench_worker MODEL THREADS tg|b8|pp512|kv4k [REPEATS]\n");
        return 2;
    }
    o.threads = (unsigned)strtoul(argv[2], NULL, 10);
    t.m = model_open(argv[1], &e);
    t.b = t.m != NULL ? backend_cpu_open(t.m, &o, &e) : NULL;
    if (t.b == NULL || !t.b->ops->kv_init(t.b, BLOCKS + SEQUENCES, &e)) {
        fprintf(stderr, "bench_worker: %s\n", e.text);
        return 1;
    }
    t.logits = mem_new(SEQUENCES * (size_t)t.m->vocab * sizeof(*t.logits));
    for (uint32_t i = 0; i < LONG_TOKENS; i++) {
        t.ids[i] = (int32_t)(1000 + i * 7919 % 20000);
    }
    printf("{\"test\":\"%s\",\"threads\":%u,", argv[3], o.threads);
    run(&t, argv[3], repeats);
    peaks = t.b->ops->peaks(t.b);
    printf(",\"what\":\"%s\",\"read_gbs\":%.2f,\"gflops\":%.1f,\"weight_mb\":%.1f}\n",
           t.b->ops->describe(t.b), peaks.read_gbs, peaks.gflops, (double)t.m->weight_bytes / 1e6);
    mem_free(t.logits);
    t.b->ops->close(t.b);
    model_close(t.m);
    return 0;
}
