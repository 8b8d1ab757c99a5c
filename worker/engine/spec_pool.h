/* spec_pool.h - the KV blocks of the draft model: a free list, no sharing, no cache. What a
 * sequence holds is dropped when it ends or is preempted, and computed again if it drafts again.
 *
 * Private to worker/engine. */
#ifndef WORKER_ENGINE_SPEC_POOL_H
#define WORKER_ENGINE_SPEC_POOL_H

#include "worker/engine/seq.h"

struct spec_pool {
    uint32_t *free; /* owned; [total], the first n_free count */
    uint32_t n_free, total;
};

void spec_pool_init(struct spec_pool *p, uint32_t total);
void spec_pool_fini(struct spec_pool *p); /* every block is back */
/* Room for `tokens` positions. false: not enough is free, and s keeps what it has. */
MUST_USE bool spec_pool_grow(struct spec_pool *p, struct seq *s, uint32_t tokens);
void spec_pool_drop(struct spec_pool *p, struct seq *s);

#endif
