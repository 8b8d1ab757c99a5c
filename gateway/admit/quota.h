/* quota.h - how much a tenant or key may still spend: the local store (one gateway, no Redis).
 *
 * Owns the holds in flight. Knows tenants, tokens and money; never HTTP, never a prompt. Rates are
 * GCRA with a burst of one minute's limit; budgets are calendar counters {spent, held} of the
 * month in the tenant's time zone, in nano-USD, rounded up per event; the snapshot brings the
 * month's edges as instants. All scopes (tenant, then key) and dimensions are one
 * all-or-nothing step under one short lock per tenant; a refusal writes nothing.
 * A hold belongs to the month it was taken in, also when it ends in the next.
 * Invariant 1 (no overshoot: spent + held <= limit, settled <= held) is guarded by
 * tests/unit/test_quota and tests/sim. Threads: any loop may call anything. Time is an argument.
 *   spent + bound fits but other holds are in the way: QUOTA_BUSY, 429, retry 1 s
 *   spent + bound does not fit: QUOTA_BUDGET, 429 insufficient_quota, never retry
 *   larger than the limit itself: QUOTA_TOO_LARGE, 400 */
#ifndef GATEWAY_ADMIT_QUOTA_H
#define GATEWAY_ADMIT_QUOTA_H

#include "base/env.h"
#include "ledger/entry.h"
#include "ledger/snapshot.h"

#define QUOTA_TENANTS_MAX 65536
#define QUOTA_KEYS_PER_TENANT_MAX 4096

enum quota_answer {
    QUOTA_GRANTED = 1,
    QUOTA_RATE,
    QUOTA_BUSY,
    QUOTA_BUDGET,
    QUOTA_TOO_LARGE,
    QUOTA_FULL
};
enum quota_dim {
    QUOTA_REQUESTS = 1,
    QUOTA_INPUT_TOKENS,
    QUOTA_OUTPUT_TOKENS,
    QUOTA_CONCURRENT,
    QUOTA_BUDGET_MONTH
};
enum quota_scope { QUOTA_SCOPE_TENANT = 1, QUOTA_SCOPE_PROJECT, QUOTA_SCOPE_KEY };

const char *quota_dim_name(enum quota_dim d); /* "requests_per_min", ... */
const char *quota_scope_name(enum quota_scope s);

struct quota_verdict {
    enum quota_answer answer;
    enum quota_dim dim; /* which refused */
    enum quota_scope scope;
    int64_t limit, remaining; /* of that dimension; budgets in pico-USD */
    uint32_t retry_ms;
};

/* What the x-ratelimit headers tell: the tightest scope, -1 where no limit is set. */
struct quota_view {
    int64_t requests_limit, requests_remaining, requests_reset_ms;
    int64_t tokens_limit, tokens_remaining, tokens_reset_ms; /* tightest token dimension */
};

/* One hold. Lives inside its request; never allocated alone. */
struct quota_hold {
    int32_t tenant_id, key_id;
    int32_t period;                /* YYYYMM it was taken in */
    int64_t held_nusd;             /* what both budgets carry for us */
    int64_t in_tokens, out_tokens; /* what it may use */
    int64_t taken[2]
                 [2]; /* private: of those, what left a rate bucket [tenant, key][input, output] */
    bool active;
    struct quota_verdict verdict;           /* of the last reserve or extend */
    void (*on_answer)(struct quota_hold *); /* set by the owner before reserve/extend */
    struct env_task
        task; /* private: the answer comes before the loop sleeps, never inside the call */
};

struct quota;
struct quota *quota_new(void);
void quota_free(struct quota *q);

int32_t quota_period(uint64_t wall_us); /* YYYYMM of the UTC month */
/* YYYYMM of the tenant's own month: the one of its edges, or the one before or after. A tenant
 * without edges has UTC months. */
int32_t quota_period_of(const struct snap_tenant *t, uint64_t wall_us);

/* What one scope had spent before us. Called at start for every scope; adds (so call once each).
 * key_id 0: the tenant itself. period: YYYYMM; CHECKed. */
void quota_seed(struct quota *q, int32_t tenant_id, int32_t key_id, int32_t period,
                int64_t spent_nusd);
/* The edges of its month, for what is seeded by instant before its first request. */
void quota_seed_zone(struct quota *q, const struct snap_tenant *t);
/* What one attempt of an older life cost, or what it held while nobody can say (suspense): adds to
 * the tenant and to the key, in the month of occurred_us. */
void quota_seed_charge(struct quota *q, int32_t tenant_id, int32_t key_id, uint64_t occurred_us,
                       int64_t nusd);
/* The same for a row that Postgres had not when the seeds were read. */
void quota_seed_row(struct quota *q, const struct entry *row);

/* The most output tokens that one hold may ask for (its scopes' tightest output limit); INT64_MAX:
 * no limit. Who did not ask for a number of tokens should not be refused for our first guess. */
int64_t quota_output_max(const struct snap_tenant *t, const struct snap_key *k);

/* Limits come with each call from the caller's snapshot, so a change is seen by the next request.
 */
void quota_reserve(struct quota *q, struct env *env, struct quota_hold *h,
                   const struct snap_tenant *t, const struct snap_key *k, int64_t in_tokens,
                   int64_t out_tokens, int64_t nusd);
/* Takes more output tokens and money. Refused: the verdict says so, the hold stays as it was. */
void quota_extend(struct quota *q, struct env *env, struct quota_hold *h,
                  const struct snap_tenant *t, const struct snap_key *k, int64_t out_tokens,
                  int64_t nusd);
/* Before on_answer comes: the owner goes away. Voids a hold that was granted. */
void quota_drop(struct quota *q, struct quota_hold *h, uint64_t now_us);
/* Gives back what is now known not to be needed. New totals; a larger one than the old changes
 * nothing. */
void quota_trim(struct quota *q, struct quota_hold *h, int64_t in_tokens, int64_t nusd,
                uint64_t now_us);
/* Turns the hold into a charge; nusd <= held_nusd is CHECKed (the caller clamps the bill). Unused
 * tokens go back to the rate buckets (never before now). A second call does nothing. */
void quota_settle(struct quota *q, struct quota_hold *h, int64_t nusd, int64_t in_tokens,
                  int64_t out_tokens, uint64_t now_us);
void quota_void(struct quota *q, struct quota_hold *h,
                uint64_t now_us); /* settle with zero; requests/min stays counted */

void quota_view(struct quota *q, const struct snap_tenant *t, const struct snap_key *k,
                uint64_t now_us, struct quota_view *out);
struct quota_scope_state {
    int32_t period;
    int64_t spent_nusd, held_nusd, concurrent;
};
/* key_id 0: the tenant itself. false: never seen. */
bool quota_state(struct quota *q, int32_t tenant_id, int32_t key_id, struct quota_scope_state *out);
int64_t quota_open_holds(const struct quota *q); /* invariant 9: zero when idle */

#endif
