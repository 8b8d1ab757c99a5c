/* config.h - an operator's changes in Postgres: tenants, keys, quotas, prices, workers, usage.
 *
 * Each change is one transaction with its line in admin_audit; triggers bump config_version and
 * NOTIFY. Answers are JSON, one object, appended to `out` (nothing is appended on failure). Lists
 * are
 * {"data":[...]}. Money is a decimal string in USD (`..._usd`, 12 decimals; prices in USD per 1M
 * tokens) beside an integer in pico-USD (`..._pusd`). Times are ISO 8601 in UTC.
 * Failures: ERR_NOT_FOUND (the text names what), ERR_CONFLICT (exists), ERR_INPUT, ERR_UNAVAILABLE.
 * No key ever comes here: only its HMAC and its redacted form. Threads: the connection's owner. */
#ifndef LEDGER_CONFIG_H
#define LEDGER_CONFIG_H

#include "ledger/snapshot.h"

/* One operator at one connection. `who` goes into the audit. */
struct config {
    struct pg *pg;  /* borrowed; a role that may write: tollgate_gateway or tollgate_owner */
    struct str who; /* borrowed */
};

/* {"tenant_id","name","timezone","disabled","created_at"}; timezone {NULL,0}: UTC. */
MUST_USE bool config_tenant_create(const struct config *c, struct str name, struct str timezone,
                                   struct buf *out, struct err *e);
MUST_USE bool config_tenant_list(const struct config *c, struct buf *out, struct err *e);
MUST_USE bool config_tenant_disable(const struct config *c, struct str name, bool disabled,
                                    struct buf *out, struct err *e);

struct config_key {
    struct str tenant;   /* name; must exist */
    struct str project;  /* name; made when absent; {NULL,0}: "default" */
    struct str user;     /* name; made when absent; {NULL,0}: none */
    struct str name;     /* may be empty */
    struct str redacted; /* at most 32 bytes */
    uint8_t hmac[SHA256_BYTES];
};
struct config_key_ids {
    int32_t key_id, tenant_id, project_id, user_id; /* user 0: none */
};
MUST_USE bool config_key_create(const struct config *c, const struct config_key *k,
                                struct config_key_ids *out, struct err *e);
/* {"data":[{"key_id","tenant_id","tenant","project_id","project","name","redacted","revoked",
 * "created_at"}]}; tenant {NULL,0}: of all. */
MUST_USE bool config_key_list(const struct config *c, struct str tenant, struct buf *out,
                              struct err *e);
/* {"key_id","tenant","redacted","revoked":true}. A second revoke is fine. */
MUST_USE bool config_key_revoke(const struct config *c, int32_t key_id, struct buf *out,
                                struct err *e);

#define QUOTA_KEEP (-2) /* in config_quota_set: this dimension as it is; QUOTA_NONE lifts it */

/* Of the key when key_id is not 0 (tenant then {NULL,0} or its owner), else of the tenant. Answers
 * as config_quota_show does. */
MUST_USE bool config_quota_set(const struct config *c, struct str tenant, int32_t key_id,
                               const struct quota_limits *limits, struct buf *out, struct err *e);
/* {"tenant","tenant_id","key_id"(null for a tenant),"requests_per_min","input_tokens_per_min",
 * "output_tokens_per_min","concurrent","budget_month_usd","budget_month_pusd" (null: no limit),
 * "spent_month_usd","spent_month_nusd"} */
MUST_USE bool config_quota_show(const struct config *c, struct str tenant, int32_t key_id,
                                struct buf *out, struct err *e);

#define PRICE_DEFAULT (-1)
struct config_price {
    struct str model; /* made when absent */
    int16_t
        tier; /* enum tier; 0: all four, flex and batch at half, priority at 1.75 (rounded up) */
    int32_t ctx_band;                    /* 0: all prompts */
    int64_t in_pusd, out_pusd;           /* per token */
    int64_t cached_pusd;                 /* PRICE_DEFAULT: in_pusd */
    int64_t cw_5m_pusd, cw_1h_pusd;      /* PRICE_DEFAULT: in_pusd */
    int64_t reasoning_pusd;              /* PRICE_DEFAULT: out_pusd */
    int64_t list_in_pusd, list_out_pusd; /* PRICE_DEFAULT: the standard tier's in force, else own */
    uint64_t valid_from_us;              /* 0: now */
};
/* {"model","model_id","data":[price...]}; a price is
 * {"price_id","model_id","model","tier","ctx_band" (null:
 * all),"valid_from","input_usd","cached_usd","cache_write_5m_usd","cache_write_1h_usd",
 * "output_usd","reasoning_usd" and the same with _pusd,"list_input_pusd","list_output_pusd",
 * "sha256"}. A version that exists for the same instant is ERR_CONFLICT. */
MUST_USE bool config_price_publish(const struct config *c, const struct config_price *p,
                                   struct buf *out, struct err *e);
/* {"data":[price... ,"in_force"]}; model {NULL,0}: of all. */
MUST_USE bool config_price_list(const struct config *c, struct str model, struct buf *out,
                                struct err *e);
/* context, output_max: -1 keeps. {"model_id","model","context","output_max"} */
MUST_USE bool config_model_set(const struct config *c, struct str model, int32_t context,
                               int32_t output_max, struct buf *out, struct err *e);

#define CONFIG_WORKER_MODELS_MAX 256
/* Adds, or updates the worker of that URL: engine and models become these, draining and removed
 * end.
 * {"worker_id","url","engine","draining","removed","models":[...],"added_at"} */
MUST_USE bool config_worker_add(const struct config *c, struct str url, enum engine_kind engine,
                                const struct str *models, size_t n_models, struct buf *out,
                                struct err *e);
/* which: a worker_id in decimal, or a URL. */
MUST_USE bool config_worker_drain(const struct config *c, struct str which, bool draining,
                                  struct buf *out, struct err *e);
MUST_USE bool config_worker_remove(const struct config *c, struct str which, struct buf *out,
                                   struct err *e);
MUST_USE bool config_worker_list(const struct config *c, struct buf *out, struct err *e);

/* Sums of usage_15m over [from_s, until_s) (0, 0: this month, UTC) by model and tier, with a total:
 * {"tenant","tenant_id","from","until","total":{...},"data":[{"model_id","model","tier",...}]},
 * each with "requests" and the six "tok_..." sums, "cost_pusd","cost_usd","list_pusd","list_usd".
 * tenant {NULL,0}: of all. */
MUST_USE bool config_usage_show(const struct config *c, struct str tenant, uint64_t from_s,
                                uint64_t until_s, struct buf *out, struct err *e);

#endif
