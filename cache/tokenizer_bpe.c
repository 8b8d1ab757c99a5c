/* tokenizer_bpe.c - merges a pre-token's symbols. Short ones by scanning for the best pair, long
 * ones by a heap of (rank, position) over a linked list: same order, same result. */
#include "cache/tokenizer_bpe.h"

#include "base/hash.h"

/* Up to here a scan of the ranks beats the heap; 3 of 4 words have fewer than 10 bytes. */
#define BPE_SCAN_MAX 48
#define BPE_END UINT32_MAX

bool bpe_init(struct bpe *m, uint32_t merges)
{
    size_t cap = 16;

    while (cap < (size_t)merges * 2) {
        cap *= 2;
    }
    m->slots = mem_try(cap, sizeof(*m->slots));
    if (m->slots == NULL) {
        return false;
    }
    m->mask = (uint32_t)(cap - 1);
    for (size_t i = 0; i < cap; i++) {
        m->slots[i].rank = BPE_NO_RANK;
    }
    return true;
}

void bpe_fini(struct bpe *m)
{
    mem_free(m->slots);
    m->slots = NULL;
}

/* The pair's slot, or the free one where it would go. */
static struct bpe_merge *slot_of(const struct bpe *m, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    /* Fibonacci hashing with both halves folded in: ids are small and dense. */
    uint64_t h = (key ^ key >> 29) * 0x9E3779B97F4A7C15ULL;
    uint32_t i = (uint32_t)(h >> 32) & m->mask;

    while (m->slots[i].rank != BPE_NO_RANK &&
           (m->slots[i].left != left || m->slots[i].right != right)) {
        i = (i + 1) & m->mask;
    }
    return &m->slots[i];
}

void bpe_add(struct bpe *m, int32_t left, int32_t right, uint32_t rank, int32_t merged)
{
    struct bpe_merge *s = slot_of(m, left, right);

    if (s->rank == BPE_NO_RANK) {
        *s = (struct bpe_merge){left, right, rank, merged};
    }
}

static size_t merge_by_scan(const struct bpe *m, struct token *t, size_t n)
{
    struct {
        uint32_t rank; /* of the pair (i, i + 1) */
        int32_t merged;
    } pair[BPE_SCAN_MAX];

    for (size_t i = 0; i + 1 < n; i++) {
        const struct bpe_merge *s = slot_of(m, t[i].id, t[i + 1].id);
        pair[i].rank = s->rank;
        pair[i].merged = s->merged;
    }
    while (n > 1) {
        size_t best = 0;

        for (size_t i = 1; i + 1 < n; i++) {
            best = pair[i].rank < pair[best].rank ? i : best;
        }
        if (pair[best].rank == BPE_NO_RANK) {
            break;
        }
        t[best].id = pair[best].merged;
        t[best].end = t[best + 1].end;
        memmove(&t[best + 1], &t[best + 2], (n - best - 2) * sizeof(*t));
        memmove(&pair[best], &pair[best + 1], (n - best - 2) * sizeof(pair[0]));
        n--;
        for (size_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct bpe_merge *s = slot_of(m, t[i].id, t[i + 1].id);
            pair[i].rank = s->rank;
            pair[i].merged = s->merged;
        }
    }
    return n;
}

struct bpe_symbol {
    int32_t id;
    uint32_t end;
    uint32_t prev, next; /* BPE_END at the ends */
    uint32_t rank;       /* of the pair (this, next); BPE_NO_RANK: none, or this was merged away */
    int32_t merged;
};

/* A min-heap of rank << 32 | position. An entry is stale unless its symbol still has that rank. */
static void heap_push(uint64_t *heap, size_t *count, uint64_t v)
{
    size_t i = (*count)++;

    while (i > 0 && heap[(i - 1) / 2] > v) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = v;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count)
{
    uint64_t top = heap[0], v = heap[--*count];
    size_t i = 0, n = *count;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= n) {
            break;
        }
        if (child + 1 < n && heap[child + 1] < heap[child]) {
            child++;
        }
        if (heap[child] >= v) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = v;
    return top;
}

static void pair_up(const struct bpe *m, struct bpe_symbol *sym, uint32_t i, uint64_t *heap,
                    size_t *count)
{
    const struct bpe_merge *s;

    sym[i].rank = BPE_NO_RANK;
    if (sym[i].next == BPE_END) {
        return;
    }
    s = slot_of(m, sym[i].id, sym[sym[i].next].id);
    sym[i].rank = s->rank;
    sym[i].merged = s->merged;
    if (s->rank != BPE_NO_RANK) {
        heap_push(heap, count, (uint64_t)s->rank << 32 | i);
    }
}

static size_t merge_by_heap(const struct bpe *m, struct token *t, size_t n, struct bpe_symbol *sym,
                            uint64_t *heap)
{
    size_t count = 0, left = 0;

    for (uint32_t i = 0; i < n; i++) {
        sym[i] = (struct bpe_symbol){.id = t[i].id, .end = t[i].end};
        sym[i].prev = i == 0 ? BPE_END : i - 1;
        sym[i].next = i + 1 == n ? BPE_END : i + 1;
    }
    for (uint32_t i = 0; i < n; i++) {
        pair_up(m, sym, i, heap, &count);
    }
    while (count > 0) {
        uint64_t top = heap_pop(heap, &count);
        uint32_t i = (uint32_t)top, gone;

        if (sym[i].rank != top >> 32) {
            continue;
        }
        gone = sym[i].next;
        sym[i].id = sym[i].merged;
        sym[i].end = sym[gone].end;
        sym[i].next = sym[gone].next;
        sym[gone].rank = BPE_NO_RANK;
        if (sym[i].next != BPE_END) {
            sym[sym[i].next].prev = i;
        }
        pair_up(m, sym, i, heap, &count);
        if (sym[i].prev != BPE_END) {
            pair_up(m, sym, sym[i].prev, heap, &count);
        }
    }
    for (uint32_t i = 0; i != BPE_END; i = sym[i].next) {
        t[left++] = (struct token){.id = sym[i].id, .end = sym[i].end};
    }
    return left;
}

void bpe_scratch_fini(struct bpe_scratch *s)
{
    mem_free(s->symbols);
    mem_free(s->heap);
    *s = (struct bpe_scratch){0};
}

static bool scratch_grow(struct bpe_scratch *s, size_t n)
{
    if (n <= s->cap) {
        return true;
    }
    bpe_scratch_fini(s);
    s->symbols = mem_try(n, sizeof(*s->symbols));
    /* n - 1 pairs at first; each of at most n - 1 merges takes one entry and puts two. */
    s->heap = mem_try(n * 2, sizeof(*s->heap));
    if (s->symbols == NULL || s->heap == NULL) {
        bpe_scratch_fini(s);
        return false;
    }
    s->cap = n;
    return true;
}

int64_t bpe_merge(const struct bpe *m, struct token *t, size_t n, struct bpe_scratch *s)
{
    if (n < 2) {
        return (int64_t)n;
    }
    if (n <= BPE_SCAN_MAX) {
        return (int64_t)merge_by_scan(m, t, n);
    }
    if (!scratch_grow(s, n)) {
        return -1;
    }
    return (int64_t)merge_by_heap(m, t, n, s->symbols, s->heap);
}
