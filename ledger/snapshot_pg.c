/* snapshot_pg.c - a snapshot out of Postgres, in one REPEATABLE READ transaction: the spent figures
 * and the cursor that says how far they reach are of the same instant.
 *
 * Summing a month of every tenant is the dear part. A snapshot that is made after another one takes
 * its figures over, with their watermark, and sums only whom the other one did not know. */
#include "ledger/snapshot_impl.h"

#include <stdio.h>

struct loader {
    struct pg *p;
    struct snapshot *s;
    const struct snapshot *known;     /* whose figures are taken over; NULL: none */
    bool *tenant_is_new, *key_is_new; /* [n_tenants], [n_keys]: to be summed; owned */
    struct str now_us;                /* text parameter */
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

/* The figures stay true for the same tenant in the same month of the same zone. */
static bool tenant_take_over(const struct snapshot *known, struct snap_tenant *t)
{
    const struct snap_tenant *old = known != NULL ? snapshot_tenant(known, t->tenant_id) : NULL;

    if (old == NULL || old->month_from_us != t->month_from_us ||
        old->month_until_us != t->month_until_us) {
        return false;
    }
    t->spent_nusd = old->spent_nusd;
    t->suspense_nusd = old->suspense_nusd;
    return true;
}

static bool tenants_load(struct loader *l)
{
    static const char sql[] =
        "SELECT t.tenant_id, t.name, t.scope_salt, t.timezone, t.disabled, q.d1, q.d2, q.d3, q.d4, "
        "q.d5, " MICROS("m.f") ", " MICROS(
            "m.u") " FROM tenant t JOIN " MONTHS
                   " m USING (tenant_id) LEFT JOIN " LIMITS_OF(
                       "1") " q ON q.scope_id = t.tenant_id ORDER BY t.tenant_id";
    void *items;
    struct pg_rows *r =
        rows_get(l, sql, &l->now_us, 1, sizeof(struct snap_tenant), &items, &l->s->n_tenants);
    int i;

    if (r == NULL) {
        return false;
    }
    l->s->tenants = items;
    l->tenant_is_new = mem_new(l->s->n_tenants + 1);
    for (i = 0; i < (int)l->s->n_tenants; i++) {
        l->s->tenants[i] = (struct snap_tenant){
            .tenant_id = (int32_t)pg_i64(r, i, 0),
            .name = text(l, r, i, 1),
            .scope_salt = text(l, r, i, 2),
            .timezone = text(l, r, i, 3),
            .disabled = flag(r, i, 4),
            .limits = limits_at(r, i, 5),
            .month_from_us = (uint64_t)pg_i64(r, i, 10),
            .month_until_us = (uint64_t)pg_i64(r, i, 11),
        };
        l->tenant_is_new[i] = !tenant_take_over(l->known, &l->s->tenants[i]);
    }
    pg_rows_free(r);
    return true;
}

static bool is_new_tenant(const struct loader *l, int32_t tenant_id)
{
    const struct snap_tenant *t = snapshot_tenant(l->s, tenant_id);

    return t == NULL || l->tenant_is_new[t - l->s->tenants];
}

static bool key_take_over(const struct loader *l, struct snap_key *k)
{
    const struct snap_key *old =
        is_new_tenant(l, k->tenant_id) ? NULL : snapshot_key(l->known, k->hmac);

    if (old == NULL || old->key_id != k->key_id) {
        return false;
    }
    k->spent_nusd = old->spent_nusd;
    k->suspense_nusd = old->suspense_nusd;
    return true;
}

static bool keys_load(struct loader *l)
{
    static const char sql[] =
        "SELECT k.key_id, k.tenant_id, k.project_id, COALESCE(k.user_id, 0), encode(k.hmac, "
        "'hex'), k.revoked_at IS NOT NULL, k.name, k.redacted, q.d1, q.d2, q.d3, q.d4, q.d5 FROM "
        "api_key k LEFT JOIN " LIMITS_OF("3") " q ON q.scope_id = k.key_id ORDER BY k.hmac";
    void *items;
    struct pg_rows *r = rows_get(l, sql, NULL, 0, sizeof(struct snap_key), &items, &l->s->n_keys);
    struct snap_key *k;
    int i;

    if (r == NULL) {
        return false;
    }
    l->s->keys = items;
    l->key_is_new = mem_new(l->s->n_keys + 1);
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
        };
        CHECK(str_unhex(pg_value(r, i, 4), k->hmac, SHA256_BYTES));
        l->key_is_new[i] = !key_take_over(l, k);
    }
    pg_rows_free(r);
    return true;
}

/* ---- spent ---- */

/* Tenants that are new or have new keys, as an array parameter. Returns how many. */
static size_t tenants_to_sum(const struct loader *l, struct buf *out)
{
    bool *wanted = mem_new(l->s->n_tenants + 1);
    size_t n = 0;

    memcpy(wanted, l->tenant_is_new, l->s->n_tenants);
    for (uint32_t i = 0; i < l->s->n_keys; i++) {
        const struct snap_tenant *t = snapshot_tenant(l->s, l->s->keys[i].tenant_id);

        if (l->key_is_new[i] && t != NULL) {
            wanted[t - l->s->tenants] = true;
        }
    }
    buf_init(out, (size_t)l->s->n_tenants * 12 + 3);
    for (uint32_t i = 0; i < l->s->n_tenants; i++) {
        if (wanted[i]) {
            buf_printf(out, "%s%d", n++ == 0 ? "{" : ",", l->s->tenants[i].tenant_id);
        }
    }
    buf_c(out, n == 0 ? "{}" : "}");
    mem_free(wanted);
    return n;
}

/* One row: what a tenant's key spent, and has in suspense. */
static void sum_add(struct loader *l, const struct pg_rows *r, int row)
{
    const struct snap_tenant *t = snapshot_tenant(l->s, (int32_t)pg_i64(r, row, 0));
    struct str hex = pg_value(r, row, 1);
    const struct snap_key *k = NULL;
    uint8_t hmac[SHA256_BYTES];

    if (t != NULL && l->tenant_is_new[t - l->s->tenants]) {
        l->s->tenants[t - l->s->tenants].spent_nusd += pg_i64(r, row, 2);
        l->s->tenants[t - l->s->tenants].suspense_nusd += pg_i64(r, row, 3);
    }
    if (hex.p != NULL && str_unhex(hex, hmac, SHA256_BYTES)) {
        k = snapshot_key(l->s, hmac);
    }
    if (k != NULL && l->key_is_new[k - l->s->keys]) {
        l->s->keys[k - l->s->keys].spent_nusd += pg_i64(r, row, 2);
        l->s->keys[k - l->s->keys].suspense_nusd += pg_i64(r, row, 3);
    }
}

#define SUMS(of_usage, of_suspense)                                                                \
    "WITH m AS " MONTHS " SELECT x.tenant_id, encode(k.hmac, 'hex'), sum(x.spent)::bigint, "       \
    "sum(x.held)::bigint FROM (SELECT u.tenant_id, u.key_id, u.budget_nusd AS spent, 0::bigint "   \
    "AS held FROM usage_15m u JOIN m ON m.tenant_id = u.tenant_id AND u.bucket >= m.f AND "        \
    "u.bucket < m.u" of_usage " UNION ALL SELECT h.tenant_id, h.key_id, 0, h.hold_nusd FROM "      \
    "hold_suspense h JOIN m ON m.tenant_id = h.tenant_id AND h.since >= m.f AND h.since < m.u "    \
    "WHERE h.cleared_at IS NULL" of_suspense ") x LEFT JOIN api_key k ON k.key_id = x.key_id "     \
    "GROUP BY x.tenant_id, x.key_id, k.hmac"

/* The month so far of those that are new, each in its own zone; nothing is asked when none is. */
static bool spent_load(struct loader *l)
{
    static const char all[] = SUMS("", "");
    static const char some[] =
        SUMS(" WHERE u.tenant_id = ANY($2::int[])", " AND h.tenant_id = ANY($2::int[])");
    struct buf ids;
    struct pg_rows *r = NULL;
    size_t n = tenants_to_sum(l, &ids);
    struct str params[2];

    if (n > 0) {
        params[0] = l->now_us;
        params[1] = buf_view(&ids);
        r = pg_query(l->p, l->known == NULL ? all : some, params, l->known == NULL ? 1 : 2, l->e);
    }
    buf_fini(&ids);
    if (n == 0 || r == NULL) {
        return n == 0;
    }
    for (int i = 0; i < pg_row_count(r); i++) {
        sum_add(l, r, i);
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

/* Of what is known, or of now. A cursor at 0 is only a claim: rows of older epochs may still be on
 * their way. */
static bool mark_load(struct loader *l, int32_t gateway_id, uint64_t wall_us)
{
    static const char sql[] =
        "SELECT v.version, c.gw_epoch, c.last_seq, to_char((timestamptz 'epoch' + $1::bigint * "
        "interval '1 microsecond') AT TIME ZONE 'UTC', 'YYYYMM') FROM config_version v LEFT JOIN "
        "(SELECT gw_epoch, last_seq FROM ingest_cursor WHERE gateway_id = $2::int AND last_seq > 0 "
        "ORDER BY gw_epoch DESC LIMIT 1) c ON true";
    const struct str params[] = {l->now_us, l->gateway};
    const struct snapshot *k = l->known;
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
    l->s->spent_epoch = k != NULL ? k->spent_epoch : (int32_t)pg_i64(r, 0, 1);
    l->s->spent_seq = k != NULL ? k->spent_seq : pg_i64(r, 0, 2);
    l->s->spent_period = k != NULL ? k->spent_period : (int32_t)pg_i64(r, 0, 3);
    pg_rows_free(r);
    return true;
}

struct snapshot *snapshot_from_pg(struct pg *p, int32_t gateway_id, uint64_t wall_us,
                                  const struct snapshot *known, struct err *e)
{
    char now[24];
    char gateway[16];
    struct loader l = {.p = p, .s = snapshot_new(), .known = known, .e = e};
    bool ok;

    (void)snprintf(now, sizeof(now), "%llu", (unsigned long long)wall_us);
    (void)snprintf(gateway, sizeof(gateway), "%d", gateway_id);
    l.now_us = str_c(now);
    l.gateway = str_c(gateway);
    ok = pg_exec(p, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", NULL, 0, e) &&
         mark_load(&l, gateway_id, wall_us) && tenants_load(&l) && keys_load(&l) &&
         spent_load(&l) && models_load(&l) && workers_load(&l) && prices_load(&l) &&
         pg_exec(p, "COMMIT", NULL, 0, e) && e->code == ERR_NONE;
    mem_free(l.tenant_is_new);
    mem_free(l.key_is_new);
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
