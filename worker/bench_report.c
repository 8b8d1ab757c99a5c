/* bench_report.c - medians, shares of the roofs, what speculation would pay: as text or JSON. */
#include "worker/bench_internal.h"

#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(const double *v, uint32_t n)
{
    double sorted[BENCH_REPEATS_MAX];

    memcpy(sorted, v, n * sizeof(*v));
    qsort(sorted, n, sizeof(*sorted), by_value);
    return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static double mfu(const struct bench *g, const struct bench_test *t)
{
    return t->flop / median(t->wall, t->count) * 1e-9 / g->peaks.gflops;
}

static double mbu(const struct bench *g, const struct bench_test *t)
{
    return t->bytes / median(t->wall, t->count) * 1e-9 / g->peaks.read_gbs;
}

static const struct bench_test *find_test(const struct bench *g, enum bench_kind kind, uint32_t n)
{
    for (uint32_t i = 0; i < g->tests; i++) {
        if (g->test[i].kind == kind && g->test[i].n == n) {
            return &g->test[i];
        }
    }
    return NULL;
}

static void print_summary(const struct bench *g)
{
    const struct bench_test *one = find_test(g, BENCH_DECODE, BENCH_BEHIND);

    for (uint32_t i = 0; i < g->tests; i++) {
        const struct bench_test *t = &g->test[i];
        double wall = median(t->wall, t->count);

        if (t->kind == BENCH_LONG) {
            double cold = median(t->cold, t->count);
            printf("first token of %u: cold %.0f ms, %u of them held %.1f ms = %.1f %%\n",
                   BENCH_LONG_TOKENS, cold * 1e3, BENCH_LONG_HELD, wall * 1e3, wall / cold * 100);
        } else if (t->kind == BENCH_LOAD) {
            printf("load to first token, file cached: %.3f s\n", wall);
        } else if (t->kind == BENCH_VERIFY && one != NULL) {
            double step = wall / BENCH_STEPS_BATCH,
                   alone = median(one->wall, one->count) / BENCH_STEPS_ALONE;
            printf("%u rows of one sequence cost %.2f x one row: %.2f x the tokens at a copy share "
                   "of 0.8, %.2f x when all are right\n",
                   t->n, step / alone, (1 + 0.8 * (t->n - 1)) * alone / step, t->n * alone / step);
        }
    }
}

void bench_print_text(const struct bench *g)
{
    const struct model *m = g->m;

    printf("%s\n", g->b->ops->describe(g->b));
    printf(
        "roofs measured here: read %.1f GB/s, matrix kernel %.0f GFLOP/s; ridge %.1f FLOP/byte\n",
        g->peaks.read_gbs, g->peaks.gflops, g->peaks.gflops / g->peaks.read_gbs);
    printf("model: %.1f MFLOP and %.1f MB of weights a decoded token = %.2f FLOP/byte; KV %.1f KiB "
           "a token\n\n",
           (double)m->flop_per_token * 1e-6, (double)m->weight_bytes * 1e-6,
           (double)m->flop_per_token / (double)m->weight_bytes,
           (double)g->b->ops->kv_block_bytes(g->b) / BENCH_BLOCK / 1024);
    printf("%-8s %18s %14s %10s %8s %8s %6s %6s\n", "test", "tokens/s", "per CPU-second",
           "FLOP/byte", "GFLOP/s", "GB/s", "MFU", "MBU");
    for (uint32_t i = 0; i < g->tests; i++) {
        const struct bench_test *t = &g->test[i];
        double wall = median(t->wall, t->count);

        if (bench_is_latency(t)) {
            continue;
        }
        printf("%-8s %18.1f %14.1f %10.1f %8.1f %8.1f %5.0f%% %5.0f%%\n", t->name, t->tokens / wall,
               t->tokens / median(t->cpu, t->count), t->flop / t->bytes, t->flop / wall * 1e-9,
               t->bytes / wall * 1e-9, 100 * mfu(g, t), 100 * mbu(g, t));
    }
    printf("\n");
    print_summary(g);
}

/* Latencies as milliseconds, the others as tokens a second. */
static void print_list(const char *name, const struct bench_test *t, const double *seconds)
{
    printf("\"%s\":[", name);
    for (uint32_t i = 0; i < t->count; i++) {
        printf("%s%.3f", i > 0 ? "," : "",
               bench_is_latency(t) ? seconds[i] * 1e3 : t->tokens / seconds[i]);
    }
    printf("]");
}

void bench_print_json(const struct bench *g)
{
    printf(
        "{\"what\":\"%s\",\"threads\":%u,\"read_gbs\":%.2f,\"gflops\":%.1f,\"weight_bytes\":%llu,"
        "\"flop_per_token\":%llu,\"kv_bytes_per_token\":%llu,\"tests\":[",
        g->b->ops->describe(g->b), g->options.threads, g->peaks.read_gbs, g->peaks.gflops,
        (unsigned long long)g->m->weight_bytes, (unsigned long long)g->m->flop_per_token,
        (unsigned long long)(g->b->ops->kv_block_bytes(g->b) / BENCH_BLOCK));
    for (uint32_t i = 0; i < g->tests; i++) {
        const struct bench_test *t = &g->test[i];

        printf("%s{\"name\":\"%s\",\"unit\":\"%s\",", i > 0 ? "," : "", t->name,
               bench_is_latency(t) ? "ms" : "tokens/s");
        print_list("wall", t, t->wall);
        printf(",");
        print_list("cpu", t, t->cpu);
        if (t->kind == BENCH_LONG) {
            printf(",");
            print_list("cold", t, t->cold);
        }
        printf(",\"flop\":%.0f,\"bytes\":%.0f,\"intensity\":%.2f,\"mfu\":%.3f,\"mbu\":%.3f}",
               t->flop, t->bytes, t->flop / t->bytes, mfu(g, t), mbu(g, t));
    }
    printf("]}\n");
}
