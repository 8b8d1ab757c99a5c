/* lane.h - a helper thread of the serving loop: does one task after another, in the order in which
 * they came.
 *
 * For work that would hold the loop up (a body to parse, a schema to compile, a prompt to
 * tokenize): streams would wait for it. A task is the loop's until lane_push, the lane's until
 * `done` (called on env's loop) or lane_drop, then the loop's again; `work` runs on the thread and
 * touches nothing but its task and what never changes. Guarded by tests/unit/test_lane.c, also
 * under the thread sanitizer. */
#ifndef WORKER_LANE_H
#define WORKER_LANE_H

#include "base/env.h"

struct lane;

/* Embedded in its owner. */
struct lane_task {
    void (*work)(struct lane_task *t);
    struct list node; /* private */
};

/* tasks_max: how many may wait, the one at hand not counted. niceness: of the thread, 0 to 19 (see
 * nice(2)), so that long work leaves the cores to whoever computes. NULL: no thread could be
 * started. */
struct lane *lane_new(struct env *env, uint32_t tasks_max, int niceness,
                      void (*done)(void *ctx, struct lane_task *t), void *ctx);
/* Waits for the task at hand; those that wait are not done, and `done` is not called any more.
 * NULL is fine. */
void lane_free(struct lane *l);
/* false: tasks_max wait already; the task stays the caller's. */
MUST_USE bool lane_push(struct lane *l, struct lane_task *t);
/* Takes a task back that was not begun. false: it is at hand or done; `done` comes for it. */
MUST_USE bool lane_drop(struct lane *l, struct lane_task *t);

#endif
