/* ship_rollup.c - sums a batch by (15 minutes, tenant, project, key, user, tags, month, model,
 * tier, kind) in memory and adds them to usage_15m in one statement. */
#include "ledger/ship_batch.h"

#include "base/hash.h"
#include "ledger/ship.h"

#include <stdio.h>

#define BUCKET_US (900u * 1000000u)
#define GROUP_SLOTS 16384 /* a power of two, more than 3 x SHIP_ROWS_MAX */
_Static_assert(GROUP_SLOTS > 3 * SHIP_ROWS_MAX, "open addressing stays short");
#define ARRAY_BYTES_MAX ((size_t)SHIP_ROWS_MAX * 44)

/* Compared and hashed as bytes: no padding. */
struct group_key {
    uint64_t bucket_us;
    int32_t tenant_id, project_id, key_id, user_id, tagset_id, period;
    int16_t model_id, tier_served, kind, spare;
};
_Static_assert(sizeof(struct group_key) == 40, "no padding");

struct group {
    struct group_key key;
    int64_t n, tok[6], budget_nusd, gpu_us;
    __int128 cost_pusd, list_pusd;
};

struct rollup {
    struct group *groups; /* [n] */
    size_t n;
    uint16_t *slots; /* [GROUP_SLOTS], index + 1 */
};

static struct group *group_get(struct rollup *r, const struct group_key *k)
{
    size_t i = hash_xxh3(k, sizeof(*k), 0) & (GROUP_SLOTS - 1);

    while (r->slots[i] != 0) {
        struct group *g = &r->groups[r->slots[i] - 1];

        if (memcmp(&g->key, k, sizeof(*k)) == 0) {
            return g;
        }
        i = (i + 1) & (GROUP_SLOTS - 1);
    }
    r->groups[r->n] = (struct group){.key = *k};
    r->n++;
    r->slots[i] = (uint16_t)r->n;
    return &r->groups[r->n - 1];
}

static void group_add(struct rollup *r, const struct booked *b)
{
    const struct entry *c = b->row;
    struct group_key k = {
        .bucket_us = c->occurred_us - c->occurred_us % BUCKET_US,
        .tenant_id = c->tenant_id,
        .project_id = c->project_id,
        .key_id = c->key_id,
        .user_id = c->user_id,
        .tagset_id = c->tagset_id,
        .period = b->period,
        .model_id = c->model_id,
        .tier_served = c->tier_served,
        .kind = b->kind,
    };
    struct group *g = group_get(r, &k);

    g->n++;
    g->tok[0] += c->tok.in_uncached;
    g->tok[1] += c->tok.in_cached;
    g->tok[2] += c->tok.cw_5m;
    g->tok[3] += c->tok.cw_1h;
    g->tok[4] += c->tok.out;
    g->tok[5] += c->tok.reasoning;
    g->cost_pusd += c->cost_pusd;
    g->list_pusd += c->list_pusd;
    g->budget_nusd += money_nusd_ceil(money_of(c->cost_pusd));
    g->gpu_us += c->gpu_us;
}

/* The columns, in the order of the statement's parameters. */
enum column {
    COL_BUCKET,
    COL_TENANT,
    COL_PROJECT,
    COL_KEY,
    COL_USER,
    COL_TAGSET,
    COL_PERIOD,
    COL_MODEL,
    COL_TIER,
    COL_KIND,
    COL_N,
    COL_TOK0,
    COL_BUDGET = COL_TOK0 + 6,
    COL_GPU,
    COL_COST,
    COL_LIST,
    COLUMNS
};

static int64_t group_value(const struct group *g, int column)
{
    switch (column) {
    case COL_BUCKET:
        return (int64_t)(g->key.bucket_us / 1000000);
    case COL_TENANT:
        return g->key.tenant_id;
    case COL_PROJECT:
        return g->key.project_id;
    case COL_KEY:
        return g->key.key_id;
    case COL_USER:
        return g->key.user_id;
    case COL_TAGSET:
        return g->key.tagset_id;
    case COL_PERIOD:
        return g->key.period;
    case COL_MODEL:
        return g->key.model_id;
    case COL_TIER:
        return g->key.tier_served;
    case COL_KIND:
        return g->key.kind;
    case COL_N:
        return g->n;
    case COL_BUDGET:
        return g->budget_nusd;
    case COL_GPU:
        return g->gpu_us;
    default:
        return g->tok[column - COL_TOK0];
    }
}

/* 5000 rows of int64 exceed an int64, never two halves of 18 digits. */
static void put_i128(struct buf *b, __int128 v)
{
    static const int64_t half = 1000000000000000000LL;

    if (v < 0) {
        buf_byte(b, '-');
        v = -v;
    }
    if (v >= half) {
        buf_printf(b, "%lld%018lld", (long long)(v / half), (long long)(v % half));
    } else {
        buf_i64(b, (int64_t)v);
    }
}

static void put_column(struct buf *b, const struct rollup *r, int column)
{
    size_t i;

    buf_byte(b, '{');
    for (i = 0; i < r->n; i++) {
        if (i > 0) {
            buf_byte(b, ',');
        }
        if (column == COL_COST) {
            put_i128(b, r->groups[i].cost_pusd);
        } else if (column == COL_LIST) {
            put_i128(b, r->groups[i].list_pusd);
        } else {
            buf_i64(b, group_value(&r->groups[i], column));
        }
    }
    buf_byte(b, '}');
}

static bool rollup_send(struct pg *p, int32_t gateway_id, const struct rollup *r, struct err *e)
{
    /* Sorted by key, so that two writers of one gateway id would lock rows in one order. */
    static const char sql[] =
        "INSERT INTO usage_15m (bucket, gateway_id, tenant_id, project_id, key_id, user_id, "
        "tagset_id, period, model_id, tier_served, kind, n, tok_in_uncached, tok_in_cached, "
        "tok_cw_5m, tok_cw_1h, tok_out, tok_reasoning, budget_nusd, gpu_us, cost_pusd, list_pusd) "
        "SELECT to_timestamp(b), $21::int, t, pr, k, u, ts, pe, m, ti, ki, n, a0, a1, a2, a3, a4, "
        "a5, bu, g, c, l FROM unnest($1::bigint[], $2::int[], $3::int[], $4::int[], $5::int[], "
        "$6::int[], $7::int[], $8::smallint[], $9::smallint[], $10::smallint[], $11::bigint[], "
        "$12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], "
        "$17::bigint[], $18::bigint[], $19::bigint[], $20::numeric[], $22::numeric[]) AS x(b, t, "
        "pr, k, u, ts, pe, m, ti, ki, n, a0, a1, a2, a3, a4, a5, bu, g, c, l) ORDER BY "
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 "
        "ON CONFLICT (bucket, gateway_id, tenant_id, project_id, key_id, user_id, tagset_id, "
        "period, model_id, tier_served, kind) DO UPDATE SET n = usage_15m.n + EXCLUDED.n, "
        "tok_in_uncached = usage_15m.tok_in_uncached + EXCLUDED.tok_in_uncached, "
        "tok_in_cached = usage_15m.tok_in_cached + EXCLUDED.tok_in_cached, "
        "tok_cw_5m = usage_15m.tok_cw_5m + EXCLUDED.tok_cw_5m, "
        "tok_cw_1h = usage_15m.tok_cw_1h + EXCLUDED.tok_cw_1h, "
        "tok_out = usage_15m.tok_out + EXCLUDED.tok_out, "
        "tok_reasoning = usage_15m.tok_reasoning + EXCLUDED.tok_reasoning, "
        "budget_nusd = usage_15m.budget_nusd + EXCLUDED.budget_nusd, "
        "gpu_us = usage_15m.gpu_us + EXCLUDED.gpu_us, "
        "cost_pusd = usage_15m.cost_pusd + EXCLUDED.cost_pusd, "
        "list_pusd = usage_15m.list_pusd + EXCLUDED.list_pusd";
    struct buf arrays[COLUMNS];
    struct str params[COLUMNS + 1];
    char gateway[16];
    bool ok = true;
    int i;

    (void)snprintf(gateway, sizeof(gateway), "%d", gateway_id);
    for (i = 0; i < COLUMNS; i++) {
        buf_init(&arrays[i], ARRAY_BYTES_MAX);
        put_column(&arrays[i], r, i);
        ok = ok && !arrays[i].failed;
    }
    for (i = 0; i < COL_LIST; i++) {
        params[i] = buf_view(&arrays[i]);
    }
    params[COL_LIST] = str_c(gateway);
    params[COL_LIST + 1] = buf_view(&arrays[COL_LIST]);
    ok = ok ? pg_exec(p, sql, params, COLUMNS + 1, e)
            : err_set(e, ERR_NO_MEMORY, "no memory for the sums of a batch");
    for (i = 0; i < COLUMNS; i++) {
        buf_fini(&arrays[i]);
    }
    return ok;
}

bool ship_rollup(struct pg *p, int32_t gateway_id, const struct booked *b, size_t n, struct err *e)
{
    struct rollup r = {0};
    size_t i;
    bool ok;

    CHECK(n <= SHIP_ROWS_MAX);
    r.groups = mem_new((n + 1) * sizeof(*r.groups));
    r.slots = mem_new(GROUP_SLOTS * sizeof(*r.slots));
    for (i = 0; i < n; i++) {
        if (!b[i].skip) {
            group_add(&r, &b[i]);
        }
    }
    ok = r.n == 0 || rollup_send(p, gateway_id, &r, e);
    mem_free(r.slots);
    mem_free(r.groups);
    return ok;
}
