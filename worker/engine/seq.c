/* seq.c - a sequence's tokens and blocks. Knows the block table; never the backend. */
#include "worker/engine/seq.h"

struct seq *seq_new(struct engine_request *r, uint64_t order)
{
    struct seq *s = mem_try(1, sizeof(*s));

    if (s == NULL) {
        return NULL;
    }
    list_init(&s->node);
    s->state = SEQ_WAITING;
    s->request = r;
    s->order = order;
    s->n_prompt = s->n_tokens = r->n_ids;
    s->blocks_max = (r->n_ids + r->max_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    if (r->n_ids == 0) {
        return s; /* refused: it only carries its END */
    }
    s->ids = mem_try((size_t)r->n_ids + r->max_tokens, sizeof(*s->ids));
    s->table = mem_try(s->blocks_max, sizeof(*s->table));
    if (s->ids == NULL || s->table == NULL) {
        seq_free(s);
        return NULL;
    }
    memcpy(s->ids, r->ids, (size_t)r->n_ids * sizeof(*s->ids));
    return s;
}

void seq_free(struct seq *s)
{
    CHECK(s->n_table == 0);
    list_remove(&s->node);
    mem_free(s->ids);
    mem_free(s->table);
    mem_free(s);
}

void seq_set_state(struct seq *s, enum seq_state to)
{
    static const bool legal[SEQ_STATE_COUNT][SEQ_STATE_COUNT] = {
        /* Straight to decode: a preempted one whose prefix is still cached but for one token. */
        [SEQ_WAITING] = {[SEQ_PREFILL] = true, [SEQ_DECODE] = true, [SEQ_ENDED] = true},
        [SEQ_PREFILL] = {[SEQ_DECODE] = true, [SEQ_WAITING] = true, [SEQ_ENDED] = true},
        [SEQ_DECODE] = {[SEQ_WAITING] = true, [SEQ_ENDED] = true},
    };

    CHECK(legal[s->state][to]);
    CHECK(to == SEQ_PREFILL || to == SEQ_DECODE || s->n_table == 0);
    s->state = to;
}

bool seq_grow(struct seq *s, struct blocks *b, uint32_t tokens)
{
    uint32_t need = (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;

    CHECK(need <= s->blocks_max);
    while (s->n_table < need) {
        uint32_t block = blocks_take(b);

        if (block == BLOCK_NONE) {
            return false;
        }
        s->table[s->n_table++] = block;
    }
    return true;
}

/* Chunks of the prompt that end in block k: advances chunk_next past them. */
static const uint64_t *chunks_of_block(struct seq *s, uint32_t k, uint32_t *n)
{
    const struct engine_request *r = s->request;
    const uint64_t *first = r->chunks + s->chunk_next;

    *n = 0;
    while (s->chunk_next < r->n_chunks && r->chunk_token[s->chunk_next] < (k + 1) * BLOCK_TOKENS) {
        s->chunk_next++;
        (*n)++;
    }
    *n = *n < BLOCK_CHUNKS_MAX ? *n : BLOCK_CHUNKS_MAX;
    return first;
}

/* A hit block may lack chunks: an answer's blocks are published without any, and the next turn
 * brings that answer as prompt text. Publishing an equal copy binds them to the cached block; the
 * copy is a spare block of this very admission, never written, and goes straight back. */
static void bind_hits(struct seq *s, struct blocks *b, uint32_t hit)
{
    for (uint32_t k = 0; k < hit; k++) {
        uint32_t n, copy;
        const uint64_t *chunks = chunks_of_block(s, k, &n);

        if (n == 0) {
            continue;
        }
        copy = blocks_take(b);
        CHECK(copy != BLOCK_NONE); /* at least one block is still to be taken for the prompt */
        blocks_publish(b, s->request->salt, copy, k > 0 ? s->table[k - 1] : BLOCK_NONE,
                       s->ids + (size_t)k * BLOCK_TOKENS, chunks, n);
        blocks_release(b, copy);
    }
}

bool seq_take_prompt(struct seq *s, struct blocks *b, uint32_t spare)
{
    uint32_t need = (s->n_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    uint32_t hit;

    CHECK(s->n_table == 0 && s->computed == 0);
    hit = blocks_match(b, s->request->salt, s->ids, s->n_tokens, s->table);
    CHECK(hit < need);
    s->n_table = hit;
    if (blocks_available(b) < need - hit + spare) {
        seq_release(s, b);
        return false;
    }
    bind_hits(s, b, hit);
    CHECK(seq_grow(s, b, s->n_tokens));
    s->computed = hit * BLOCK_TOKENS;
    s->published = hit;
    return true;
}

void seq_release(struct seq *s, struct blocks *b)
{
    while (s->n_table > 0) {
        blocks_release(b, s->table[--s->n_table]);
    }
    s->computed = 0;
    s->published = 0;
    s->chunk_next = 0;
}

void seq_publish(struct seq *s, struct blocks *b)
{
    while ((s->published + 1) * BLOCK_TOKENS <= s->computed) {
        uint32_t k = s->published++, n;
        const uint64_t *chunks = chunks_of_block(s, k, &n);

        blocks_publish(b, s->request->salt, s->table[k], k > 0 ? s->table[k - 1] : BLOCK_NONE,
                       s->ids + (size_t)k * BLOCK_TOKENS, chunks, n);
    }
}
