/* seq.h - one sequence inside the engine: its tokens, its blocks, and where it stands.
 *
 * Private to worker/engine. A state names the list that holds the sequence; seq_set_state is the
 * only place that changes it.
 *
 *   tokens   0 .. n_prompt .. n_tokens        known ids (prompt, then answer)
 *   KV       0 .. computed                    positions whose KV is in table[]; computed < n_tokens
 *   index    0 .. published * BLOCK_TOKENS    blocks that others may hit */
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

struct seq {
    struct list node; /* in waiting[class], running or ended, by state */
    enum seq_state state;
    struct engine_request *request; /* borrowed until END */
    uint64_t order;                 /* arrival: lower is older; kept over preemption */
    int32_t *ids;                   /* owned; [n_prompt + max_tokens] */
    uint32_t n_prompt, n_tokens, computed;
    uint32_t *table; /* owned; [blocks_max] block ids */
    uint32_t n_table, blocks_max;
    uint32_t published;        /* leading blocks already handed to blocks_publish */
    uint32_t chunk_next;       /* first of request->chunks beyond the published blocks */
    uint32_t cached_tokens;    /* of the first admission: what the caller is told */
    bool started;              /* STARTED was emitted */
    bool abort;                /* asked for; acted on at the start of the next step */
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

/* True when a goes before b: by class, then by arrival. */
static inline bool seq_before(const struct seq *a, const struct seq *b)
{
    return a->request->class < b->request->class ||
           (a->request->class == b->request->class && a->order < b->order);
}

/* Makes room in table[] for `tokens` positions; false: the pool is empty (what was taken stays). */
MUST_USE bool seq_grow(struct seq *s, struct blocks *b, uint32_t tokens);
/* Pins the cached prefix and takes blocks for every known token; false leaves it without any.
 * Beyond that `spare` blocks must stay available, so that those who run need not be preempted. */
MUST_USE bool seq_take_prompt(struct seq *s, struct blocks *b, uint32_t spare);
/* Gives every block back, tail first, and forgets what was computed. */
void seq_release(struct seq *s, struct blocks *b);
/* After the step that computed them: full blocks enter the index, with their chunk hashes. */
void seq_publish(struct seq *s, struct blocks *b);

#endif
