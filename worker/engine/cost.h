/* cost.h - what a step takes: a + b * rows, learned from the steps themselves.
 *
 * Least squares over the recent past. While all steps look alike the slope stays what it was;
 * before any slope was seen, a row is taken to cost as much as a whole step did, so that the first
 * chunks beside decodes are small. A slope that is wrong corrects itself with the next chunk. Pure.
 * Guarded by tests/unit/test_cost.c. */
#ifndef WORKER_ENGINE_COST_H
#define WORKER_ENGINE_COST_H

#include "base/base.h"

struct cost {
    double n, x, y, xx, xy; /* decayed sums: steps, rows, microseconds */
    double a, b;            /* microseconds a step, a row; both >= 0 */
    bool sloped;            /* b was measured */
};

void cost_learn(struct cost *c, uint32_t rows, uint64_t us);
static inline bool cost_is_known(const struct cost *c)
{
    return c->n > 0;
}
static inline double cost_us(const struct cost *c, double rows)
{
    return c->a + c->b * rows;
}
/* Most rows of a step that takes no longer than target_us; UINT32_MAX: nothing is known. */
uint32_t cost_rows(const struct cost *c, uint64_t target_us);

#endif
