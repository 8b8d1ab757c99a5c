/* gcra.c - see gcra.h. */
#include "gateway/admit/gcra.h"

/* What is owed at now_us. A lowered limit cuts the debt to one minute of the new one, so that
 * nobody waits longer than a minute for what an older rule allowed. A clock a little behind drains
 * nothing. */
static int64_t debt_at(const struct gcra *g, int64_t limit, uint64_t now_us)
{
    uint64_t elapsed = now_us > g->at_us ? now_us - g->at_us : 0;
    int64_t capacity = limit * GCRA_MINUTE_US;
    int64_t debt = g->debt_units < capacity ? g->debt_units : capacity;
    int64_t drained;

    if (elapsed >= GCRA_MINUTE_US) {
        return 0;
    }
    drained = (int64_t)elapsed * limit;
    return debt > drained ? debt - drained : 0;
}

static int64_t room_at(const struct gcra *g, int64_t limit, uint64_t now_us)
{
    CHECK(limit >= 0 && limit <= GCRA_LIMIT_MAX);
    return limit * GCRA_MINUTE_US - debt_at(g, limit, now_us);
}

uint64_t gcra_wait_us(const struct gcra *g, int64_t limit, int64_t cost, uint64_t now_us)
{
    int64_t room = room_at(g, limit, now_us), missing;

    CHECK(cost >= 0 && cost <= limit);
    missing = cost * GCRA_MINUTE_US - room;
    return missing <= 0 ? 0 : (uint64_t)((missing - 1) / limit + 1);
}

void gcra_take(struct gcra *g, int64_t limit, int64_t cost, uint64_t now_us)
{
    int64_t debt = debt_at(g, limit, now_us);

    CHECK(cost * GCRA_MINUTE_US <= room_at(g, limit, now_us));
    g->debt_units = debt + cost * GCRA_MINUTE_US;
    g->at_us = u64_max(g->at_us, now_us);
}

/* Without draining first: max(0, max(0, debt - drained) - back) is max(0, debt - back - drained).
 */
void gcra_return(struct gcra *g, int64_t tokens)
{
    CHECK(tokens >= 0 && tokens <= GCRA_LIMIT_MAX);
    g->debt_units -= tokens * GCRA_MINUTE_US;
    if (g->debt_units < 0) {
        g->debt_units = 0;
    }
}

int64_t gcra_remaining(const struct gcra *g, int64_t limit, uint64_t now_us)
{
    return room_at(g, limit, now_us) / GCRA_MINUTE_US;
}

uint64_t gcra_full_us(const struct gcra *g, int64_t limit, uint64_t now_us)
{
    int64_t debt = debt_at(g, limit, now_us);

    return debt == 0 ? 0 : (uint64_t)((debt - 1) / limit + 1);
}
