/* pool.h - a fixed crew of threads that computes one step together.
 *
 * The caller is number 0; the others are created once and wait. Waiting is pause for about 20 us,
 * then sched_yield, then a futex: a pure spin collapses when another process wants the core
 * (llama.cpp#29258). When the caller spends too much of its runs waiting for helpers that the
 * system took off their cores, or off its own, the crew narrows by one for a while and is then
 * tried again, ever more seldom; results must not depend on its width.
 */
#ifndef WORKER_CPU_POOL_H
#define WORKER_CPU_POOL_H

#include "base/err.h"

#define POOL_THREADS_MAX 256

struct pool;

/* work(context, id, width): id 0 .. width - 1. */
typedef void pool_work(void *context, unsigned id, unsigned width);

/* threads >= 1, the caller included. NULL with a story. */
struct pool *pool_new(unsigned threads, struct err *e);
void pool_free(struct pool *p); /* joins the helpers; NULL is fine */
/* Returns when all have returned. One caller at a time. */
void pool_run(struct pool *p, pool_work *work, void *context);
/* Inside work: returns when all `width` have called it; what each wrote before, all see after. */
void pool_barrier(struct pool *p, unsigned id);
unsigned pool_width(const struct pool *p); /* threads that the next run uses */

#endif
