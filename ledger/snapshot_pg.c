/* snapshot_pg.c - a snapshot out of Postgres, in one REPEATABLE READ transaction: the spent figures
 * and the cursor that says how far they reach are of the same instant. */
#include "ledger/snapshot_impl.h"

#include <stdio.h>

struct loader {
    struct pg *p;
    struct snapshot *s;
    struct str now_us; /* text parameter */
    struct str gateway;
    struct err *e;
};

/* The rows of a query and an array for them in the arena. */
static struct pg_rows *rows_get(struct loader *l, const char *sql, const struct str *params, int n,
                                size_t item_bytes, void **items, uint32_t *count)
{
    struct pg_rows *r = pg_query(l->p, sql, params, n, l->e);

    if (r == NULL) {
        return NULL;
    }
    *count = (uint32_t)pg_row_count(r);
    *items = arena_array(&l->s->arena, (size_t)*count + 1, item_bytes);
    if (*items == NULL) {
        (void)err_set(l->e, ERR_LIMIT, "the configuration exceeds %zu MiB",
                      SNAPSHOT_BYTES_MAX >> 20);
        *count = 0;
        pg_rows_free(r);
        return NULL;
    }
    return r;
}

static struct str text(struct loader *l, const struct pg_rows *r, int row, int column)
{
    struct str s = arena_str(&l->s->arena, pg_value(r, row, column));

    if (s.p == NULL) {
        (void)err_set(l->e, ERR_LIMIT, "the configuration exceeds %zu MiB",
                      SNAPSHOT_BYTES_MAX >> 20);
        return STR("");
    }
    return s;
}

static bool flag(const struct pg_rows *r, int row, int column)
{
    return str_eq(pg_value(r, row, column), STR("t"));
}

static int64_t limit_at(const struct pg_rows *r, int row, int column)
{
    return pg_value(r, row, column).p == NULL ? QUOTA_NONE : pg_i64(r, row, column);
}

static struct quota_limits limits_at(const struct pg_rows *r, int row, int column)
{
    return (struct quota_limits){
        .requests_per_min = limit_at(r, row, column),
        .input_tokens_per_min = limit_at(r, row, column + 1),
        .output_tokens_per_min = limit_at(r, row, column + 2),
        .concurrent = limit_at(r, row, column + 3),
        .budget_month_pusd = limit_at(r, row, column + 4),
    };
}

#define LIMITS_OF(kind)                                                                            \
    "(SELECT scope_id, max(limit_value) FILTER (WHERE dim = 1) AS d1, max(limit_value) FILTER "    \
    "(WHERE dim = 2) AS d2, max(limit_value) FILTER (WHERE dim = 3) AS d3, max(limit_value) "      \
    "FILTER (WHERE dim = 4) AS d4, max(limit_value) FILTER (WHERE dim = 5) AS d5 FROM quota "      \
    "WHERE scope_kind = " kind " GROUP BY scope_id)"
/* Each tenant's month at $1 (microseconds), in its own zone. */
#define MONTHS                                                                                     \
    "(SELECT tenant_id, date_trunc('month', now_at AT TIME ZONE timezone) AT TIME ZONE timezone "  \
    "AS f, (date_trunc('month', now_at AT TIME ZONE timezone) + interval '1 month') AT TIME ZONE " \
    "timezone AS u FROM tenant, (SELECT timestamptz 'epoch' + $1::bigint * interval '1 "           \
    "microsecond' AS now_at) c)"
#define MICROS(x) "(extract(epoch FROM " x ") * 1000000)::bigint"

static bool tenants_load(struct loader *l)
{
    static const char sql[] =
        "SELECT t.tenant_id, t.name, t.scope_salt, t.timezone, t.disabled, q.d1, q.d2, q.d3, q.d4, "
        "q.d5, COALESCE(s.spent, 0), " MICROS("m.f") ", " MICROS(
            "m.u") ", COALESCE(h.held, 0) FROM tenant t JOIN " MONTHS " m USING (tenant_id) "
                   "LEFT JOIN " LIMITS_OF(
                       "1") " q ON q.scope_id = t.tenant_id "
                            "LEFT JOIN LATERAL (SELECT sum(budget_nusd)::bigint AS spent FROM "
                            "usage_15m u "
                            "WHERE u.tenant_id = t.tenant_id AND u.bucket >= m.f AND u.bucket < "
                            "m.u) s "
                            "ON true LEFT JOIN LATERAL (SELECT sum(hold_nusd)::bigint AS held FROM "
                            "hold_suspense h WHERE h.tenant_id = t.tenant_id AND cleared_at IS "
                            "NULL AND "
                            "h.since >= m.f AND h.since < m.u) h ON true ORDER BY t.tenant_id";
    void *items;
    struct pg_rows *r =
        rows_get(l, sql, &l->now_us, 1, sizeof(struct snap_tenant), &items, &l->s->n_tenants);
    int i;

    if (r == NULL) {
        return false;
    }
    l->s->tenants = items;
    for (i = 0; i < (int)l->s->n_tenants; i++) {
        l->s->tenants[i] = (struct snap_tenant){
            .tenant_id = (int32_t)pg_i64(r, i, 0),
            .name = text(l, r, i, 1),
            .scope_salt = text(l, r, i, 2),
            .timezone = text(l, r, i, 3),
            .disabled = flag(r, i, 4),
            .limits = limits_at(r, i, 5),
            .spent_nusd = pg_i64(r, i, 10),
            .month_from_us = (uint64_t)pg_i64(r, i, 11),
            .month_until_us = (uint64_t)pg_i64(r, i, 12),
            .suspense_nusd = pg_i64(r, i, 13),
        };
    }
    pg_rows_free(r);
    return true;
}

static bool keys_load(struct loader *l)
{
    static const char sql[] =
        "SELECT k.key_id, k.tenant_id, k.project_id, COALESCE(k.user_id, 0), encode(k.hmac, "
        "'hex'), k.revoked_at IS NOT NULL, k.name, k.redacted, q.d1, q.d2, q.d3, q.d4, q.d5, "
        "COALESCE(s.spent, 0), COALESCE(h.held, 0) FROM api_key k LEFT JOIN " LIMITS_OF(
            "3") " q ON q.scope_id = k.key_id LEFT JOIN (SELECT u.key_id, "
                 "sum(u.budget_nusd)::bigint AS spent FROM usage_15m u JOIN " MONTHS
                 " m ON m.tenant_id = u.tenant_id AND u.bucket >= m.f AND u.bucket < m.u "
                 "GROUP BY u.key_id) s ON s.key_id = k.key_id LEFT JOIN (SELECT h.key_id, "
                 "sum(h.hold_nusd)::bigint AS held FROM hold_suspense h JOIN " MONTHS
                 " m ON m.tenant_id = h.tenant_id AND h.since >= m.f AND h.since < m.u WHERE "
                 "h.cleared_at IS NULL GROUP BY h.key_id) h ON h.key_id = k.key_id ORDER BY "
                 "k.hmac";
    void *items;
    struct pg_rows *r =
        rows_get(l, sql, &l->now_us, 1, sizeof(struct snap_key), &items, &l->s->n_keys);
    struct snap_key *k;
    int i;

    if (r == NULL) {
        return false;
    }
    l->s->keys = items;
    for (i = 0; i < (int)l->s->n_keys; i++) {
        k = &l->s->keys[i];
        *k = (struct snap_key){
            .key_id = (int32_t)pg_i64(r, i, 0),
            .tenant_id = (int32_t)pg_i64(r, i, 1),
            .project_id = (int32_t)pg_i64(r, i, 2),
            .user_id = (int32_t)pg_i64(r, i, 3),
            .revoked = flag(r, i, 5),
            .name = text(l, r, i, 6),
            .redacted = text(l, r, i, 7),
            .limits = limits_at(r, i, 8),
            .spent_nusd = pg_i64(r, i, 13),
            .suspense_nusd = pg_i64(r, i, 14),
        };
        CHECK(str_unhex(pg_value(r, i, 4), k->hmac, SHA256_BYTES));
    }
    pg_rows_free(r);
    return true;
}

static bool models_load(struct loader *l)
{
    static const char sql[] =
        "SELECT model_id, name, context, output_max, extract(epoch FROM created_at)::bigint "
        "FROM model ORDER BY name COLLATE \"C\"";
    void *items;
    struct pg_rows *r =
        rows_get(l, sql, NULL, 0, sizeof(struct snap_model), &items, &l->s->n_models);
    int i;

    if (r == NULL) {
        return false;
    }
    l->s->models = items;
    for (i = 0; i < (int)l->s->n_models; i++) {
        l->s->models[i] = (struct snap_model){
            .model_id = (int16_t)pg_i64(r, i, 0),
            .name = text(l, r, i, 1),
            .context = (int32_t)pg_i64(r, i, 2),
            .output_max = (int32_t)pg_i64(r, i, 3),
            .created_s = (uint64_t)pg_i64(r, i, 4),
        };
    }
    pg_rows_free(r);
    return true;
}

/* "3,1,7" into numbers. */
static bool model_ids(struct loader *l, struct str list, struct snap_worker *w)
{
    int16_t *ids = arena_array(&l->s->arena, list.n / 2 + 1, sizeof(*ids));
    struct str head;
    int64_t id;

    if (ids == NULL) {
        return err_set(l->e, ERR_LIMIT, "the configuration exceeds %zu MiB",
                       SNAPSHOT_BYTES_MAX >> 20);
    }
    while (list.n > 0) {
        (void)str_cut(list, ',', &head, &list);
        CHECK(str_i64(head, &id));
        ids[w->n_models++] = (int16_t)id;
    }
    w->models = ids;
    return true;
}

static bool workers_load(struct loader *l)
{
    static const char sql[] =
        "SELECT w.worker_id, w.url, w.engine, w.draining, w.removed, COALESCE((SELECT "
        "string_agg(m.model_id::text, ',' ORDER BY m.model_id) FROM worker_model m WHERE "
        "m.worker_id = w.worker_id), '') FROM worker w ORDER BY w.worker_id";
    void *items;
    struct pg_rows *r =
        rows_get(l, sql, NULL, 0, sizeof(struct snap_worker), &items, &l->s->n_workers);
    bool ok = true;
    int i;

    if (r == NULL) {
        return false;
    }
    l->s->workers = items;
    for (i = 0; ok && i < (int)l->s->n_workers; i++) {
        l->s->workers[i] = (struct snap_worker){
            .worker_id = (int32_t)pg_i64(r, i, 0),
            .url = text(l, r, i, 1),
            .engine = (int16_t)pg_i64(r, i, 2),
            .draining = flag(r, i, 3),
            .removed = flag(r, i, 4),
        };
        ok = model_ids(l, pg_value(r, i, 5), &l->s->workers[i]);
    }
    pg_rows_free(r);
    return ok;
}

static bool prices_load(struct loader *l)
{
    static const char sql[] =
        "SELECT price_id, model_id, tier, ctx_band, in_pusd, cached_pusd, cw_5m_pusd, cw_1h_pusd, "
        "out_pusd, reasoning_pusd, list_in_pusd, list_out_pusd, " MICROS(
            "valid_from") " FROM price_version ORDER BY model_id, tier, ctx_band, valid_from";
    void *items;
    struct pg_rows *r = rows_get(l, sql, NULL, 0, sizeof(struct price), &items, &l->s->n_prices);
    int i;

    if (r == NULL) {
        return false;
    }
    l->s->prices = items;
    for (i = 0; i < (int)l->s->n_prices; i++) {
        l->s->prices[i] = (struct price){
            .price_id = (int32_t)pg_i64(r, i, 0),
            .model_id = (int16_t)pg_i64(r, i, 1),
            .tier = (int16_t)pg_i64(r, i, 2),
            .ctx_band = (int32_t)pg_i64(r, i, 3),
            .in_pusd = pg_i64(r, i, 4),
            .cached_pusd = pg_i64(r, i, 5),
            .cw_5m_pusd = pg_i64(r, i, 6),
            .cw_1h_pusd = pg_i64(r, i, 7),
            .out_pusd = pg_i64(r, i, 8),
            .reasoning_pusd = pg_i64(r, i, 9),
            .list_in_pusd = pg_i64(r, i, 10),
            .list_out_pusd = pg_i64(r, i, 11),
            .valid_from_us = (uint64_t)pg_i64(r, i, 12),
        };
    }
    pg_rows_free(r);
    return true;
}

static bool mark_load(struct loader *l, int32_t gateway_id, uint64_t wall_us)
{
    static const char sql[] =
        "SELECT v.version, c.gw_epoch, c.last_seq, to_char((timestamptz 'epoch' + $1::bigint * "
        "interval '1 microsecond') AT TIME ZONE 'UTC', 'YYYYMM') FROM config_version v LEFT JOIN "
        "(SELECT gw_epoch, last_seq FROM ingest_cursor WHERE gateway_id = $2::int ORDER BY "
        "gw_epoch DESC LIMIT 1) c ON true";
    const struct str params[] = {l->now_us, l->gateway};
    struct pg_rows *r = pg_query(l->p, sql, params, 2, l->e);

    if (r == NULL) {
        return false;
    }
    if (pg_row_count(r) != 1) {
        pg_rows_free(r);
        return err_set(l->e, ERR_CORRUPT, "config_version has no row: is the database migrated?");
    }
    l->s->version = (uint64_t)pg_i64(r, 0, 0);
    l->s->made_wall_us = wall_us;
    l->s->spent_gateway = gateway_id;
    l->s->spent_epoch = (int32_t)pg_i64(r, 0, 1);
    l->s->spent_seq = pg_i64(r, 0, 2);
    l->s->spent_period = (int32_t)pg_i64(r, 0, 3);
    pg_rows_free(r);
    return true;
}

struct snapshot *snapshot_from_pg(struct pg *p, int32_t gateway_id, uint64_t wall_us, struct err *e)
{
    char now[24];
    char gateway[16];
    struct loader l = {.p = p, .s = snapshot_new(), .e = e};
    bool ok;

    (void)snprintf(now, sizeof(now), "%llu", (unsigned long long)wall_us);
    (void)snprintf(gateway, sizeof(gateway), "%d", gateway_id);
    l.now_us = str_c(now);
    l.gateway = str_c(gateway);
    ok = pg_exec(p, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", NULL, 0, e) &&
         mark_load(&l, gateway_id, wall_us) && tenants_load(&l) && keys_load(&l) &&
         models_load(&l) && workers_load(&l) && prices_load(&l) &&
         pg_exec(p, "COMMIT", NULL, 0, e) && e->code == ERR_NONE;
    if (!ok) {
        err_prefix(e, "cannot load the configuration");
        pg_rollback(p);
        snapshot_unref(l.s);
        return NULL;
    }
    return l.s;
}

uint64_t snapshot_pg_version(struct pg *p, struct err *e)
{
    struct pg_rows *r = pg_query(p, "SELECT version FROM config_version", NULL, 0, e);
    uint64_t v = 0;

    if (r != NULL && pg_row_count(r) == 1) {
        v = (uint64_t)pg_i64(r, 0, 0);
    }
    pg_rows_free(r);
    return v;
}
