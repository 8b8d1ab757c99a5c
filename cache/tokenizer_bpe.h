/* tokenizer_bpe.h - the merges of a byte-level BPE: the lowest rank first, then the leftmost.
 *
 * Private to cache/tokenizer*.c. Works on token ids alone. n log n in the length of a pre-token:
 * a megabyte of one letter is one pre-token. */
#ifndef CACHE_TOKENIZER_BPE_H
#define CACHE_TOKENIZER_BPE_H

#include "cache/tokenizer.h"

struct bpe_merge { /* an open-addressing slot; rank BPE_NO_RANK: free */
    int32_t left, right;
    uint32_t rank;
    int32_t merged;
};

struct bpe {
    struct bpe_merge *slots; /* owned; power of two, at most half full */
    uint32_t mask;
};

#define BPE_NO_RANK UINT32_MAX

MUST_USE bool bpe_init(struct bpe *m, uint32_t merges); /* false: no memory */
void bpe_fini(struct bpe *m);
/* Ranks ascend; a pair that is there already keeps its first rank. */
void bpe_add(struct bpe *m, int32_t left, int32_t right, uint32_t rank, int32_t merged);

struct bpe_symbol;

/* Memory of one encode call, grown for its longest pre-token. All zero at first. */
struct bpe_scratch {
    struct bpe_symbol *symbols; /* owned */
    uint64_t *heap;             /* owned */
    size_t cap;
};

void bpe_scratch_fini(struct bpe_scratch *s);
/* Merges t[0..n) in place; returns what is left, or -1 when there is no memory for a long one. */
int64_t bpe_merge(const struct bpe *m, struct token *t, size_t n, struct bpe_scratch *s);

#endif
