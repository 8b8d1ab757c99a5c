/* bench_internal.h - what the files of `tollgate-worker bench` share. bench.c: the command line;
 * bench_run.c: what is measured; bench_report.c: tables and JSON. */
#ifndef WORKER_BENCH_INTERNAL_H
#define WORKER_BENCH_INTERNAL_H

#include "worker/backend.h"

#define BENCH_REPEATS_MAX 50u
#define BENCH_TESTS_MAX 32u
#define BENCH_ROWS_MAX 512u
#define BENCH_BEHIND 128u /* tokens before the first decoded one */
#define BENCH_LONG_TOKENS 4128u
#define BENCH_LONG_HELD 4096u
#define BENCH_SEQUENCES_MAX 32u
#define BENCH_STEPS_ALONE 64u
#define BENCH_STEPS_BATCH 32u
#define BENCH_BLOCK 32u
#define BENCH_SEQUENCE_BLOCKS ((BENCH_BEHIND + BENCH_STEPS_ALONE + BENCH_BLOCK) / BENCH_BLOCK)
#define BENCH_LONG_BLOCKS ((BENCH_LONG_TOKENS + BENCH_BLOCK - 1) / BENCH_BLOCK)
#define BENCH_BLOCKS (BENCH_LONG_BLOCKS + BENCH_SEQUENCES_MAX * BENCH_SEQUENCE_BLOCKS)
#define BENCH_LOGITS_MAX BENCH_SEQUENCES_MAX /* rows of logits of one forward */

/* n is rows (BENCH_PREFILL, BENCH_VERIFY), sequences (BENCH_BATCH), tokens held (BENCH_DECODE) or
 * nothing. */
enum bench_kind {
    BENCH_PREFILL = 1,
    BENCH_DECODE,
    BENCH_BATCH,
    BENCH_VERIFY,
    BENCH_LONG,
    BENCH_LOAD
};

struct bench_test {
    char name[16];
    enum bench_kind kind;
    uint32_t n;
    uint32_t count;                                         /* repeats that are in */
    double wall[BENCH_REPEATS_MAX], cpu[BENCH_REPEATS_MAX]; /* seconds */
    double cold[BENCH_REPEATS_MAX]; /* BENCH_LONG: of the prompt without its prefix */
    double tokens, flop, bytes;     /* of one repeat */
};

struct bench {
    const char *path;
    struct backend_options options;
    uint32_t repeats;
    bool json, help;
    struct model *m;
    struct backend *b;
    struct backend_peaks peaks;
    float *logits; /* [BENCH_LOGITS_MAX][vocab] */
    int32_t ids[BENCH_LONG_TOKENS];
    struct bench_test test[BENCH_TESTS_MAX];
    uint32_t tests;
};

static inline bool bench_is_latency(const struct bench_test *t)
{
    return t->kind == BENCH_LONG || t->kind == BENCH_LOAD;
}

/* Model, backend and KV as the options say. false with a story; bench_close in any case. */
MUST_USE bool bench_open(struct bench *g, struct err *e);
void bench_close(struct bench *g);
/* All tests, `repeats` times in turns, after the roofs. */
void bench_measure(struct bench *g);
void bench_print_text(const struct bench *g);
void bench_print_json(const struct bench *g);

#endif
