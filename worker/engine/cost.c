/* cost.c - a line through recent steps. */
#include "worker/engine/cost.h"

#define COST_DECAY 0.97      /* a step weighs half after 23 others */
#define COST_VARIANCE_MIN 1. /* rows squared; below it steps look alike */

void cost_learn(struct cost *c, uint32_t rows, uint64_t us)
{
    double x = rows, y = (double)us, mean_x, mean_y, variance;

    c->n = c->n * COST_DECAY + 1;
    c->x = c->x * COST_DECAY + x;
    c->y = c->y * COST_DECAY + y;
    c->xx = c->xx * COST_DECAY + x * x;
    c->xy = c->xy * COST_DECAY + x * y;
    mean_x = c->x / c->n;
    mean_y = c->y / c->n;
    variance = c->xx / c->n - mean_x * mean_x;
    if (variance > COST_VARIANCE_MIN) {
        c->b = (c->xy / c->n - mean_x * mean_y) / variance;
        c->sloped = true;
    } else if (!c->sloped) {
        c->b = mean_y / mean_x;
    }
    /* Neither part of a cost is below zero. */
    c->b = c->b > 0 ? c->b : 0;
    c->b = c->b < mean_y / mean_x ? c->b : mean_y / mean_x;
    c->a = mean_y - c->b * mean_x;
    c->a = c->a > 0 ? c->a : 0; /* rounding */
}

uint32_t cost_rows(const struct cost *c, uint64_t target_us)
{
    double left = (double)target_us - c->a;

    if (!cost_is_known(c)) {
        return UINT32_MAX;
    }
    if (left <= 0) {
        return 0;
    }
    return left < c->b * 1e9 ? (uint32_t)(left / c->b) : UINT32_MAX;
}
