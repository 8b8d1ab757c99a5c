/* config_quota.c - limits of a tenant or a key: set, lifted, shown beside what is spent. */
#include "ledger/config_impl.h"

#include <stdio.h>

enum { SCOPE_TENANT = 1, SCOPE_KEY = 3 }; /* sql: scope_kind */

struct scope {
    int kind;
    int64_t id, tenant_id;
};

static bool scope_find(const struct config *c, struct str tenant, int32_t key_id, struct scope *out,
                       struct err *e)
{
    char text[CONFIG_NUMBER_BYTES];
    const struct str params[] = {config_text(key_id, text)};
    int64_t owner = 0;
    int64_t named = 0;

    if (key_id == 0) {
        *out = (struct scope){.kind = SCOPE_TENANT};
        if (!config_tenant_id(c, tenant, &out->id, e)) {
            return false;
        }
        out->tenant_id = out->id;
        return true;
    }
    if (!config_number(c, "SELECT tenant_id FROM api_key WHERE key_id = $1::int", params, 1, &owner,
                       e)) {
        return false;
    }
    if (owner == 0) {
        return err_set(e, ERR_NOT_FOUND, "there is no key with id %d", key_id);
    }
    if (tenant.n > 0 && (!config_tenant_id(c, tenant, &named, e) || named != owner)) {
        return err_set(e, ERR_NOT_FOUND, "tenant " STR_FMT " has no key with id %d",
                       STR_ARG(tenant), key_id);
    }
    *out = (struct scope){.kind = SCOPE_KEY, .id = key_id, .tenant_id = owner};
    return true;
}

static bool scope_show(const struct config *c, const struct scope *s, struct buf *out,
                       struct err *e)
{
    static const char sql[] =
        "WITH q AS (SELECT max(limit_value) FILTER (WHERE dim = 1) AS d1, max(limit_value) FILTER "
        "(WHERE dim = 2) AS d2, max(limit_value) FILTER (WHERE dim = 3) AS d3, max(limit_value) "
        "FILTER (WHERE dim = 4) AS d4, max(limit_value) FILTER (WHERE dim = 5) AS d5 FROM quota "
        "WHERE scope_kind = $1::smallint AND scope_id = $2::int), s AS (SELECT "
        "COALESCE(sum(u.budget_nusd), 0) AS spent FROM tenant t JOIN usage_15m u USING "
        "(tenant_id) WHERE t.tenant_id = $3::int AND ($1::smallint = 1 OR u.key_id = $2::int) AND "
        "u.bucket >= date_trunc('month', now() AT TIME ZONE t.timezone) AT TIME ZONE t.timezone) "
        "SELECT json_build_object('tenant', t.name, 'tenant_id', t.tenant_id, 'key_id', CASE WHEN "
        "$1::smallint = 3 THEN $2::int END, 'requests_per_min', q.d1, 'input_tokens_per_min', "
        "q.d2, 'output_tokens_per_min', q.d3, 'concurrent', q.d4, 'budget_month_usd', (q.d5 * "
        "0.000000000001)::numeric(38,12)::text, 'budget_month_pusd', q.d5, 'spent_month_usd', "
        "(s.spent * 0.000000001)::numeric(38,12)::text, 'spent_month_nusd', s.spent) FROM tenant "
        "t, q, s WHERE t.tenant_id = $3::int";
    char numbers[3][CONFIG_NUMBER_BYTES];
    const struct str params[] = {config_text(s->kind, numbers[0]), config_text(s->id, numbers[1]),
                                 config_text(s->tenant_id, numbers[2])};

    return config_json(c, sql, params, 3, out, e);
}

static bool dim_set(const struct config *c, const struct scope *s, int dim, int64_t limit,
                    struct err *e)
{
    char numbers[4][CONFIG_NUMBER_BYTES];
    const struct str params[] = {config_text(s->kind, numbers[0]), config_text(s->id, numbers[1]),
                                 config_text(dim, numbers[2]), config_text(limit, numbers[3])};

    if (limit == QUOTA_KEEP) {
        return true;
    }
    if (limit == QUOTA_NONE) {
        return pg_exec(c->pg,
                       "DELETE FROM quota WHERE scope_kind = $1::smallint AND scope_id = $2::int "
                       "AND dim = $3::smallint",
                       params, 3, e);
    }
    if (limit < 0) {
        return err_set(e, ERR_INPUT, "a limit is 0 or more, or none");
    }
    return pg_exec(c->pg,
                   "INSERT INTO quota (scope_kind, scope_id, dim, limit_value) VALUES "
                   "($1::smallint, $2::int, $3::smallint, $4::bigint) ON CONFLICT (scope_kind, "
                   "scope_id, dim) DO UPDATE SET limit_value = EXCLUDED.limit_value, version = "
                   "quota.version + 1, changed_at = now()",
                   params, 4, e);
}

static bool dims_set(const struct config *c, const struct scope *s, const struct quota_limits *l,
                     struct err *e)
{
    return dim_set(c, s, 1, l->requests_per_min, e) &&
           dim_set(c, s, 2, l->input_tokens_per_min, e) &&
           dim_set(c, s, 3, l->output_tokens_per_min, e) && dim_set(c, s, 4, l->concurrent, e) &&
           dim_set(c, s, 5, l->budget_month_pusd, e);
}

bool config_quota_set(const struct config *c, struct str tenant, int32_t key_id,
                      const struct quota_limits *limits, struct buf *out, struct err *e)
{
    struct scope s;
    struct buf before;
    struct buf after;
    char target[48];
    bool ok;

    buf_init(&before, 4096);
    buf_init(&after, 4096);
    if (!config_begin(c, e)) {
        return false;
    }
    ok = scope_find(c, tenant, key_id, &s, e) && scope_show(c, &s, &before, e) &&
         dims_set(c, &s, limits, e) && scope_show(c, &s, &after, e);
    if (ok) {
        (void)snprintf(target, sizeof(target), "%s %lld", s.kind == SCOPE_KEY ? "key" : "tenant",
                       (long long)s.id);
        ok = config_audit(c, "quota.set", str_c(target), buf_view(&before), buf_view(&after), e);
    }
    ok = config_end(c, ok, e);
    if (ok) {
        buf_str(out, buf_view(&after));
    }
    buf_fini(&before);
    buf_fini(&after);
    return ok;
}

bool config_quota_show(const struct config *c, struct str tenant, int32_t key_id, struct buf *out,
                       struct err *e)
{
    struct scope s;

    return scope_find(c, tenant, key_id, &s, e) && scope_show(c, &s, out, e);
}
