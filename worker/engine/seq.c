/* seq.c - a sequence's tokens and blocks. Knows the block table; never the backend. */
#include "worker/engine/seq.h"

/* What only a request that can run needs. */
static bool take_memory(struct seq *s, const struct engine_request *r)
{
    s->ids = mem_try((size_t)r->n_ids + r->max_tokens, sizeof(*s->ids));
    s->table = mem_try(s->blocks_max, sizeof(*s->table));
    if (s->ids == NULL || s->table == NULL) {
        return false;
    }
    memcpy(s->ids, r->ids, (size_t)r->n_ids * sizeof(*s->ids));
    if (r->grammar != NULL) {
        s->grammar = mem_try(1, sizeof(*s->grammar));
        if (s->grammar == NULL) {
            return false;
        }
        grammar_state_init(r->grammar, s->grammar);
    }
    return true;
}

struct seq *seq_new(struct engine_request *r, uint64_t order)
{
    struct seq *s = mem_try(1, sizeof(*s));

    if (s == NULL) {
        return NULL;
    }
    list_init(&s->node);
    list_init(&s->siblings);
    s->state = SEQ_WAITING;
    s->request = r;
    s->order = order;
    s->rank = (uint32_t)r->class;
    s->deadline_us = r->deadline_us != 0 ? r->deadline_us : UINT64_MAX;
    s->n_prompt = s->n_tokens = r->n_ids;
    s->blocks_max = seq_blocks(r->n_ids + r->max_tokens);
    if (r->n_ids > 0 && !take_memory(s, r)) { /* none: refused, it only carries its END */
        seq_free(s);
        return NULL;
    }
    return s;
}

void seq_free(struct seq *s)
{
    CHECK(s->n_table == 0 && s->spec.n_table == 0 && list_is_empty(&s->siblings));
    list_remove(&s->node);
    mem_free(s->ids);
    mem_free(s->table);
    mem_free(s->grammar);
    mem_free(s->spec.table);
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
    uint32_t need = seq_blocks(tokens);

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

void seq_trim(struct seq *s, struct blocks *b)
{
    while (s->n_table > seq_blocks(s->n_tokens)) {
        blocks_release(b, s->table[--s->n_table]);
    }
}

uint32_t seq_lacks(struct seq *s, struct blocks *b, uint32_t spare)
{
    uint32_t hit = blocks_match(b, s->request->salt, s->ids, s->n_tokens, s->table);
    uint32_t need = seq_blocks(s->n_tokens) - hit + spare, have = blocks_available(b);

    CHECK(s->n_table == 0);
    s->n_table = hit;
    seq_release(s, b);
    return need > have ? need - have : 0;
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
    uint32_t need = seq_blocks(s->n_tokens);
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
