/* snapshot.h - the configuration that admission reads: tenants, projects, keys (HMACs), quotas,
 * models, workers, prices, month-to-date spent; immutable, made by one source, swapped whole.
 *
 * Sources sit behind one interface: Postgres (snapshot_from_pg), a checksummed file beside the
 * journal (written after each change, read when Postgres is away at start). All memory is one
 * arena; threads share it by reference count. */
#ifndef LEDGER_SNAPSHOT_H
#define LEDGER_SNAPSHOT_H

#include "base/arena.h"
#include "base/env.h"
#include "base/hash.h"
#include "ledger/price.h"
#include "ledger/pg.h"

#include <stdatomic.h>

#define QUOTA_NONE (-1)

struct quota_limits { /* QUOTA_NONE: no limit */
    int64_t requests_per_min, input_tokens_per_min, output_tokens_per_min, concurrent;
    int64_t budget_month_pusd;
};

struct snap_tenant {
    int32_t tenant_id;
    struct str name;
    struct str scope_salt; /* 32 random bytes as hex: cache scope */
    struct str timezone;   /* "UTC" by default: of the budget month */
    bool disabled;
    struct quota_limits limits;
    int64_t spent_nusd;    /* of its month, from Postgres at the watermark */
    int64_t suspense_nusd; /* of that month: held by requests whose cost nobody knows yet; counts */
    uint64_t month_from_us, month_until_us; /* that month in its timezone, as instants */
};

struct snap_key {
    int32_t key_id, tenant_id, project_id, user_id;
    uint8_t hmac[SHA256_BYTES];
    bool revoked;
    struct quota_limits limits;
    int64_t spent_nusd, suspense_nusd; /* as of its tenant */
    struct str name, redacted;         /* "tg_ab...wxyz": never the key */
};

struct snap_model {
    int16_t model_id;
    struct str name;
    int32_t context;    /* 0 unknown */
    int32_t output_max; /* 0 none */
    uint64_t created_s;
};

enum engine_kind { ENGINE_TOLLGATE = 1, ENGINE_OPENAI = 2 };

struct snap_worker {
    int32_t worker_id;
    struct str url;
    int16_t engine; /* enum engine_kind */
    bool draining, removed;
    const int16_t *models; /* [n_models] model_id */
    uint32_t n_models;
};

struct snapshot {
    struct arena arena;
    atomic_uint refs;
    uint64_t version; /* config_version of Postgres */
    uint64_t made_wall_us;
    int32_t spent_period;               /* YYYYMM (UTC) when the figures were summed */
    int32_t spent_gateway, spent_epoch; /* spent holds rows of this gateway up to here: */
    int64_t spent_seq;
    struct snap_tenant *tenants;
    uint32_t n_tenants; /* by tenant_id, ascending */
    struct snap_key *keys;
    uint32_t n_keys; /* by hmac, ascending: binary search */
    struct snap_model *models;
    uint32_t n_models; /* by name, ascending */
    struct snap_worker *workers;
    uint32_t n_workers; /* by worker_id, ascending */
    struct price *prices;
    uint32_t n_prices; /* by model_id, tier, ctx_band, valid_from */
};

const struct snap_tenant *snapshot_tenant(const struct snapshot *s, int32_t tenant_id);
const struct snap_key *snapshot_key(const struct snapshot *s, const uint8_t hmac[SHA256_BYTES]);
const struct snap_model *snapshot_model(const struct snapshot *s, struct str name);
const struct snap_model *snapshot_model_id(const struct snapshot *s, int16_t model_id);
const struct snap_worker *snapshot_worker(const struct snapshot *s, int32_t worker_id);
/* The newest version in force at wall_us for (model, tier, prompt bound); NULL: not priced. */
const struct price *snapshot_price(const struct snapshot *s, int16_t model_id, enum tier t,
                                   int64_t prompt_tokens, uint64_t wall_us);

/* Any version that ever was, by its number (rows and OPEN records name it); NULL: unknown. */
const struct price *snapshot_price_id(const struct snapshot *s, int32_t price_id);

struct snapshot *snapshot_ref(struct snapshot *s);
void snapshot_unref(struct snapshot *s); /* the last one frees */

/* One read-only transaction. NULL with a story. gateway_id: whose cursor spent_* names.
 * known: an older snapshot of the same gateway whose spent figures, months and watermark are taken
 * over (borrowed for the call); tenants and keys that it lacks are summed as of now, so that a file
 * of it may count rows after the watermark of these twice, and none never. NULL: all are summed,
 * which reads the month's rollup. */
struct snapshot *snapshot_from_pg(struct pg *p, int32_t gateway_id, uint64_t wall_us,
                                  const struct snapshot *known, struct err *e);
uint64_t snapshot_pg_version(struct pg *p, struct err *e); /* 0: failed */
MUST_USE bool snapshot_save(const struct snapshot *s, struct env *env, const char *path,
                            struct err *e);
struct snapshot *snapshot_load(struct env *env, const char *path, struct err *e);

#endif
