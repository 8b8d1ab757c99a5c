/* seq.h - one sequence inside the engine: its tokens, its blocks, and where it stands.
 *
 * Private to worker/engine. A state names the list that holds the sequence; seq_set_state is the
 * only place that changes it.
 *
 *   tokens   0 .. n_prompt .. n_tokens        known ids (prompt, then answer)
 *   drafts   n_tokens .. n_tokens + n_draft   guesses of the step at hand, in the same array
 *   KV       0 .. computed                    positions whose KV is in table[]; computed < n_tokens
 *   index    0 .. published * BLOCK_TOKENS    blocks that others may hit; never beyond computed */
#ifndef WORKER_ENGINE_SEQ_H
#define WORKER_ENGINE_SEQ_H

#include "base/list.h"
#include "worker/engine/engine.h"

enum seq_state {
    SEQ_WAITING = 1, /* holds no block: just come, or preempted */
    SEQ_PREFILL,     /* running: more than one known token is not computed */
    SEQ_DECODE,      /* running: exactly the newest token is not computed */
    SEQ_ENDED,       /* holds no block; its END event is due */
    SEQ_STATE_COUNT
};

enum seq_source { /* of drafts */
                  SEQ_LOOKUP = 0,
                  SEQ_MODEL,
                  SEQ_SOURCES,
};

/* What speculation keeps a sequence: see spec.h. */
struct seq_spec {
    float accept[SEQ_SOURCES]; /* share of drafts that came true, newest weigh most */
    uint32_t tried[SEQ_SOURCES];
    uint32_t rest;          /* steps until the next try, once turned down */
    enum seq_source source; /* of the drafts of this step */
    uint32_t *table;        /* owned; blocks of the draft's pool; NULL until first needed */
    uint32_t n_table, computed;
};

struct seq {
    struct list node; /* in waiting[rank], running or ended, by state */
    enum seq_state state;
    struct engine_request *request; /* borrowed until END */
    uint64_t order;                 /* arrival: lower is older; kept over preemption */
    uint32_t rank;                  /* its class, or one better once aged */
    uint64_t deadline_us;           /* UINT64_MAX: none */
    uint64_t waiting_since_us;
    struct list siblings; /* ring of its group, by arrival; alone: an empty list */
    bool begun;           /* one of its group started */
    bool held;            /* waits for the first of its group to have the prompt computed */
    bool aged;
    bool started; /* STARTED was emitted */
    bool abort;   /* asked for; acted on at the start of the next step */
    int32_t *ids; /* owned; [n_prompt + max_tokens] */
    uint32_t n_prompt, n_tokens, computed, n_draft;
    uint32_t *table; /* owned; [blocks_max] block ids */
    uint32_t n_table, blocks_max;
    uint32_t published;            /* leading blocks already handed to blocks_publish */
    uint32_t chunk_next;           /* first of request->chunks beyond the published blocks */
    uint32_t cached_tokens;        /* of the first admission: what the caller is told */
    struct grammar_state *grammar; /* owned; after all known tokens. NULL: free text */
    struct seq_spec spec;
    enum engine_finish finish; /* SEQ_ENDED */
};

/* NULL: no memory. The request's lengths were checked. */
struct seq *seq_new(struct engine_request *r, uint64_t order);
void seq_free(struct seq *s);
void seq_set_state(struct seq *s, enum seq_state to);

static inline struct seq *seq_of(struct list *node)
{
    return CONTAINER_OF(node, struct seq, node);
}

static inline uint32_t seq_answered(const struct seq *s)
{
    return s->n_tokens - s->n_prompt;
}

static inline uint32_t seq_blocks(uint32_t tokens)
{
    return (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
}

/* True when a goes before b: by rank, then deadline, then arrival. */
static inline bool seq_before(const struct seq *a, const struct seq *b)
{
    if (a->rank != b->rank) {
        return a->rank < b->rank;
    }
    if (a->deadline_us != b->deadline_us) {
        return a->deadline_us < b->deadline_us;
    }
    return a->order < b->order;
}

/* Makes room in table[] for `tokens` positions; false: the pool is empty (what was taken stays). */
MUST_USE bool seq_grow(struct seq *s, struct blocks *b, uint32_t tokens);
/* Gives back the blocks behind the newest token, which drafts have taken. */
void seq_trim(struct seq *s, struct blocks *b);
/* How many blocks are lacking for seq_take_prompt. */
uint32_t seq_lacks(struct seq *s, struct blocks *b, uint32_t spare);
/* Pins the cached prefix and takes blocks for every known token; false leaves it without any.
 * Beyond that `spare` blocks must stay available, so that those who run need not be preempted. */
MUST_USE bool seq_take_prompt(struct seq *s, struct blocks *b, uint32_t spare);
/* Gives every block back, tail first, and forgets what was computed. */
void seq_release(struct seq *s, struct blocks *b);
/* After the step that computed them: full blocks enter the index, with their chunk hashes. */
void seq_publish(struct seq *s, struct blocks *b);

#endif
