/* spec_pool.c - a stack of free block numbers. */
#include "worker/engine/spec_pool.h"

void spec_pool_init(struct spec_pool *p, uint32_t total)
{
    p->free = mem_new((size_t)total * sizeof(*p->free));
    p->total = p->n_free = total;
    for (uint32_t i = 0; i < total; i++) {
        p->free[i] = total - 1 - i;
    }
}

void spec_pool_fini(struct spec_pool *p)
{
    CHECK(p->n_free == p->total);
    mem_free(p->free);
}

bool spec_pool_grow(struct spec_pool *p, struct seq *s, uint32_t tokens)
{
    uint32_t need = seq_blocks(tokens);

    CHECK(need <= s->blocks_max);
    if (s->spec.table == NULL) {
        s->spec.table = mem_try(s->blocks_max, sizeof(*s->spec.table));
        if (s->spec.table == NULL) {
            return false;
        }
    }
    if (need > s->spec.n_table && need - s->spec.n_table > p->n_free) {
        return false;
    }
    while (s->spec.n_table < need) {
        s->spec.table[s->spec.n_table++] = p->free[--p->n_free];
    }
    return true;
}

void spec_pool_drop(struct spec_pool *p, struct seq *s)
{
    while (s->spec.n_table > 0) {
        p->free[p->n_free++] = s->spec.table[--s->spec.n_table];
    }
    s->spec.computed = 0;
}
