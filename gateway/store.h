/* store.h - the one thread that asks Postgres on behalf of the control loop.
 *
 * The control loop answers operators, probes workers and hears their events, so it must never wait.
 * What needs Postgres is a job: put into a bounded queue by the control loop, run on the store's
 * thread, where it may block (every wait has an end: ledger/pg.h), and given back by the control
 * loop's doorbell. Between jobs the store looks for changes of the configuration and hands each new
 * snapshot over in the same way: a snapshot that a job made comes before that job's end.
 *
 * Threads: "control" functions belong to the control loop, "store" functions to whoever steps (a
 * thread; the simulator's only one; main before the thread is there). The step is a function over
 * env. */
#ifndef GATEWAY_STORE_H
#define GATEWAY_STORE_H

#include "gateway/gateway.h"

/* Put and not ended. Half of the admin listener's connections, so that the other half still answers
 * what needs no Postgres; more is refused with 503. */
#define STORE_JOBS_MAX 32

struct store;

enum store_job_state { STORE_JOB_WAITING = 1, STORE_JOB_RUNNING, STORE_JOB_WITHDRAWN };

struct store_job { /* inside its owner, who stays until done */
    /* Store. Leaves a failure in e. True: the configuration changed, and is read anew before the
     * job ends. */
    bool (*run)(struct store_job *j, struct store *s);
    void (*done)(struct store_job *j); /* control; once, also for a job that never ran */
    struct err e;
    atomic_int state; /* private: enum store_job_state */
};

/* Control. Every new snapshot comes to `fresh` on the control loop, with one reference. */
struct store *store_new(struct gateway *gw, struct env *control, const char *snapshot_path,
                        void (*fresh)(void *ctx, struct snapshot *s), void *ctx);
/* Control, when nobody steps any more. Jobs that did not run end with ERR_UNAVAILABLE. */
void store_free(struct store *s);

/* The first snapshot: Postgres, else the file. NULL with a story when there is neither. Store. */
struct snapshot *store_first(struct store *s, struct env *env, struct err *e);
/* An epoch above all that Postgres knew of this gateway id at store_first. */
int32_t store_epoch_min(const struct store *s);
/* The journal is open, so the folder is ours: claims its epoch, writes the snapshot file. false:
 * the epoch is another process's, or the file cannot be written. Without Postgres the shipper
 * claims. Store. */
MUST_USE bool store_journal_opened(struct store *s, struct env *env, struct err *e);

/* The doorbell of the thread that steps. NULL in the simulator. */
void store_set_doorbell(struct store *s, struct env *own, struct env_wake *w);
/* One job, or one look for changes. Returns microseconds until it wants to be called again. Store.
 */
uint64_t store_step(struct store *s, struct env *env);

/* false with a story: STORE_JOBS_MAX are on their way; done does not come. Control. */
MUST_USE bool store_put(struct store *s, struct store_job *j, struct err *e);
/* True: the job has not begun and never will; its done comes all the same. Control. */
bool store_withdraw(struct store_job *j);
bool store_is_up(const struct store *s); /* Postgres answered last; any thread */

/* In a job: a connection that answered just now. NULL with a story. Store. */
struct pg *store_pg(struct store *s, struct err *e);
struct env *store_env(const struct store *s); /* of whoever steps. Store. */

#endif
