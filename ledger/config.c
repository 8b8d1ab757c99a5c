/* config.c - what every operator's change shares; tenants; the usage sums. */
#include "ledger/config_impl.h"

#include <stdio.h>

bool config_begin(const struct config *c, struct err *e)
{
    const struct str params[] = {c->who.n > 0 ? c->who : STR("operator")};

    pg_rollback(c->pg);
    return pg_exec(c->pg, "BEGIN", NULL, 0, e) &&
           pg_exec(c->pg, "SELECT set_config('tollgate.who', $1, true)", params, 1, e);
}

bool config_end(const struct config *c, bool ok, struct err *e)
{
    if (ok && pg_exec(c->pg, "COMMIT", NULL, 0, e)) {
        return true;
    }
    pg_rollback(c->pg);
    return false;
}

bool config_audit(const struct config *c, const char *what, struct str target, struct str before,
                  struct str after, struct err *e)
{
    const struct str params[] = {str_c(what), target, before, after};

    return pg_exec(c->pg,
                   "INSERT INTO admin_audit (who, what, target, before, after) VALUES "
                   "(current_setting('tollgate.who'), $1, $2, $3::jsonb, $4::jsonb)",
                   params, 4, e);
}

bool config_json(const struct config *c, const char *sql, const struct str *params, int n,
                 struct buf *out, struct err *e)
{
    struct pg_rows *r = pg_query(c->pg, sql, params, n, e);
    bool ok;

    if (r == NULL) {
        return false;
    }
    ok = pg_row_count(r) == 1 || err_set(e, ERR_NOT_FOUND, "there is no such thing");
    if (ok) {
        buf_str(out, pg_value(r, 0, 0));
        ok = !out->failed || err_set(e, ERR_LIMIT, "the answer is larger than %zu bytes", out->max);
    }
    pg_rows_free(r);
    return ok;
}

bool config_number(const struct config *c, const char *sql, const struct str *params, int n,
                   int64_t *out, struct err *e)
{
    struct pg_rows *r = pg_query(c->pg, sql, params, n, e);

    if (r == NULL) {
        return false;
    }
    *out = pg_row_count(r) > 0 ? pg_i64(r, 0, 0) : 0;
    pg_rows_free(r);
    return true;
}

struct str config_text(int64_t v, char *buffer)
{
    (void)snprintf(buffer, CONFIG_NUMBER_BYTES, "%lld", (long long)v);
    return str_c(buffer);
}

bool config_exists_story(const struct config *c, const char *what, struct str name, struct err *e)
{
    if (e->code == ERR_CONFLICT && strcmp(pg_sqlstate(c->pg), "23505") == 0) {
        err_clear(e);
        return err_set(e, ERR_CONFLICT, "%s " STR_FMT " exists already", what, STR_ARG(name));
    }
    return false;
}

bool config_tenant_id(const struct config *c, struct str name, int64_t *out, struct err *e)
{
    if (!config_number(c, "SELECT tenant_id FROM tenant WHERE name = $1", &name, 1, out, e)) {
        return false;
    }
    return *out != 0 ||
           err_set(e, ERR_NOT_FOUND, "there is no tenant named " STR_FMT, STR_ARG(name));
}

/* ---- tenants ---- */

#define TENANT_JSON                                                                                \
    "json_build_object('tenant_id', tenant_id, 'name', name, 'timezone', timezone, 'disabled', "   \
    "disabled, 'created_at', created_at)"

bool config_tenant_create(const struct config *c, struct str name, struct str timezone,
                          struct buf *out, struct err *e)
{
    const struct str params[] = {name, timezone.n > 0 ? timezone : STR("UTC")};
    size_t before = out->len;
    bool ok;

    if (name.n == 0 || name.n > 128) {
        return err_set(e, ERR_INPUT, "a tenant's name has 1 to 128 bytes");
    }
    if (!config_begin(c, e)) {
        return false;
    }
    ok =
        config_json(c, "INSERT INTO tenant (name, timezone) VALUES ($1, $2) RETURNING " TENANT_JSON,
                    params, 2, out, e);
    if (!ok) {
        (void)config_exists_story(c, "tenant", name, e);
    }
    ok = ok && config_audit(c, "tenant.create", name, str_of(NULL, 0),
                            str_of((const char *)out->p + out->off + before, out->len - before), e);
    ok = config_end(c, ok, e);
    if (!ok) {
        buf_truncate(out, before);
    }
    return ok;
}

bool config_tenant_list(const struct config *c, struct buf *out, struct err *e)
{
    return config_json(c,
                       "SELECT json_build_object('data', COALESCE(json_agg(" TENANT_JSON
                       " ORDER BY tenant_id), '[]')) FROM tenant",
                       NULL, 0, out, e);
}

bool config_tenant_disable(const struct config *c, struct str name, bool disabled, struct buf *out,
                           struct err *e)
{
    const struct str params[] = {name, disabled ? STR("true") : STR("false")};
    size_t before = out->len;
    int64_t id;
    bool ok;

    if (!config_begin(c, e)) {
        return false;
    }
    ok = config_tenant_id(c, name, &id, e) &&
         config_json(c,
                     "UPDATE tenant SET disabled = $2::boolean WHERE name = $1 "
                     "RETURNING " TENANT_JSON,
                     params, 2, out, e) &&
         config_audit(c, disabled ? "tenant.disable" : "tenant.enable", name, str_of(NULL, 0),
                      str_of(NULL, 0), e);
    ok = config_end(c, ok, e);
    if (!ok) {
        buf_truncate(out, before);
    }
    return ok;
}

/* ---- usage ---- */

#define USAGE_SUMS                                                                                 \
    "'requests', COALESCE(sum(n), 0), 'tok_in_uncached', COALESCE(sum(tok_in_uncached), 0), "      \
    "'tok_in_cached', COALESCE(sum(tok_in_cached), 0), 'tok_cw_5m', COALESCE(sum(tok_cw_5m), 0), " \
    "'tok_cw_1h', COALESCE(sum(tok_cw_1h), 0), 'tok_out', COALESCE(sum(tok_out), 0), "             \
    "'tok_reasoning', COALESCE(sum(tok_reasoning), 0), 'cost_pusd', COALESCE(sum(cost_pusd), 0), " \
    "'cost_usd', (COALESCE(sum(cost_pusd), 0) * 0.000000000001)::numeric(38,12)::text, "           \
    "'list_pusd', COALESCE(sum(list_pusd), 0), 'list_usd', (COALESCE(sum(list_pusd), 0) * "        \
    "0.000000000001)::numeric(38,12)::text"
/* $1 from, $2 until (epoch seconds; 0: this month), $3 tenant_id (0: all). */
#define USAGE_ROWS                                                                                 \
    "range AS (SELECT CASE WHEN $1::bigint = 0 THEN date_trunc('month', now() AT TIME ZONE "       \
    "'UTC') AT TIME ZONE 'UTC' ELSE to_timestamp($1::bigint) END AS f, CASE WHEN $2::bigint = 0 "  \
    "THEN (date_trunc('month', now() AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE "      \
    "'UTC' ELSE to_timestamp($2::bigint) END AS u), rows AS (SELECT x.* FROM usage_15m x, range "  \
    "r WHERE x.bucket >= r.f AND x.bucket < r.u AND ($3::int = 0 OR x.tenant_id = $3::int))"

bool config_usage_show(const struct config *c, struct str tenant, uint64_t from_s, uint64_t until_s,
                       struct buf *out, struct err *e)
{
    static const char sql[] =
        "WITH " USAGE_ROWS ", by_model AS (SELECT m.name, r.tier_served, json_build_object("
        "'model_id', r.model_id, 'model', m.name, 'tier', t.name, " USAGE_SUMS
        ") AS j FROM rows r LEFT JOIN model m USING (model_id) LEFT JOIN tier t ON t.tier = "
        "r.tier_served GROUP BY r.model_id, m.name, r.tier_served, t.name) "
        "SELECT json_build_object('tenant', (SELECT name FROM tenant WHERE tenant_id = $3::int), "
        "'tenant_id', NULLIF($3::int, 0), 'from', (SELECT f FROM range), 'until', (SELECT u FROM "
        "range), 'total', (SELECT json_build_object(" USAGE_SUMS
        ") FROM rows), 'data', (SELECT COALESCE(json_agg(j ORDER BY name, tier_served), '[]') "
        "FROM by_model))";
    char from[CONFIG_NUMBER_BYTES];
    char until[CONFIG_NUMBER_BYTES];
    char id_text[CONFIG_NUMBER_BYTES];
    int64_t id = 0;
    struct str params[3];

    if (tenant.n > 0 && !config_tenant_id(c, tenant, &id, e)) {
        return false;
    }
    params[0] = config_text((int64_t)from_s, from);
    params[1] = config_text((int64_t)until_s, until);
    params[2] = config_text(id, id_text);
    return config_json(c, sql, params, 3, out, e);
}
