/* drive.h - feeds a backend the way the engine does, for tests: sequences with scattered blocks. */
#ifndef TESTS_UNIT_DRIVE_H
#define TESTS_UNIT_DRIVE_H

#include "worker/backend.h"

#define DRIVE_BLOCKS_MAX 64u    /* of a sequence: 2,048 tokens */
#define DRIVE_SEQUENCES_MAX 16u /* of one forward */
#define DRIVE_BLOCK 32u

struct drive_seq {
    uint32_t table[DRIVE_BLOCKS_MAX];
    uint32_t len;
};

/* Blocks first, first + step, ... */
static inline void drive_seq_init(struct drive_seq *s, uint32_t first, uint32_t step)
{
    s->len = 0;
    for (uint32_t i = 0; i < DRIVE_BLOCKS_MAX; i++) {
        s->table[i] = first + i * step;
    }
}

enum drive_want { DRIVE_ALL = 1, DRIVE_LAST };

/* One forward: n[i] ids more for each sequence. logits [rows][vocab], or [count][vocab] of each
 * sequence's last row. At most `rows_max` rows in all. */
static inline void drive_step(struct backend *b, struct drive_seq *const *seq,
                              const int32_t *const *ids, const uint32_t *n, uint32_t count,
                              enum drive_want want_what, float *logits)
{
    uint32_t start[DRIVE_SEQUENCES_MAX], kv[DRIVE_SEQUENCES_MAX], rows = 0, wanted = 0;
    const uint32_t *table[DRIVE_SEQUENCES_MAX];

    CHECK(count <= DRIVE_SEQUENCES_MAX);
    for (uint32_t i = 0; i < count; i++) {
        start[i] = rows;
        rows += n[i];
        seq[i]->len += n[i];
        kv[i] = seq[i]->len;
        table[i] = seq[i]->table;
        CHECK(seq[i]->len <= DRIVE_BLOCKS_MAX * DRIVE_BLOCK);
    }
    int32_t *all = mem_new(rows * sizeof(*all));
    uint32_t *want = mem_new(rows * sizeof(*want));
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < n[i]; j++) {
            all[start[i] + j] = ids[i][j];
            if (want_what == DRIVE_ALL || j + 1 == n[i]) {
                want[wanted++] = start[i] + j;
            }
        }
    }
    struct batch batch = {
        .rows = rows,
        .sequences = count,
        .ids = all,
        .q_start = start,
        .q_len = n,
        .kv_len = kv,
        .table = table,
        .want = want,
        .wanted = wanted,
    };
    b->ops->forward(b, &batch, logits);
    mem_free(all);
    mem_free(want);
}

/* One sequence in chunks of at most `chunk`; logits as drive_step (DRIVE_ALL: of all n rows). */
static inline void drive_prompt(struct backend *b, struct drive_seq *s, const int32_t *ids,
                                uint32_t n, uint32_t chunk, uint32_t vocab, enum drive_want want,
                                float *logits)
{
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t m = n - at < chunk ? n - at : chunk;
        const int32_t *from = ids + at;
        drive_step(b, &s, &from, &m, 1, want,
                   want == DRIVE_ALL ? logits + (size_t)at * vocab : logits);
    }
}

static inline int32_t drive_argmax(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < vocab; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return (int32_t)best;
}

#endif
