/* config_price.c - price versions: published beside what exists, never over it. */
#include "ledger/config_impl.h"

#include <stdio.h>

/* 2,147 USD per 1M tokens. A row's prompt and its output are an int32 of tokens each: their cost at
 * this price fits an int64, so that no request can make the sum overflow. */
#define PRICE_PUSD_MAX ((int64_t)INT32_MAX)

/* USD per 1M tokens: pico-USD per token / 1e6. */
#define PER_MILLION(name, column)                                                                  \
    "'" name "_usd', (p." column " * 0.000001)::numeric(38,6)::text, '" name "_pusd', p." column   \
    ", "
#define PRICE_JSON                                                                                 \
    "json_build_object('price_id', p.price_id, 'model_id', p.model_id, 'model', m.name, 'tier', "  \
    "t.name, 'ctx_band', NULLIF(p.ctx_band, 2147483647), 'valid_from', "                           \
    "p.valid_from, " PER_MILLION("input", "in_pusd") PER_MILLION("cached", "cached_pusd")          \
        PER_MILLION("cache_write_5m", "cw_5m_pusd") PER_MILLION("cache_write_1h", "cw_1h_pusd")    \
            PER_MILLION("output", "out_pusd") PER_MILLION("reasoning", "reasoning_pusd")           \
                PER_MILLION("list_input", "list_in_pusd") PER_MILLION(                             \
                    "list_output", "list_out_pusd") "'sha256', encode(p.sha256, 'hex')"
#define PRICE_FROM " FROM price_version p JOIN model m USING (model_id) JOIN tier t USING (tier) "

struct publication {
    char ids[4 * 12]; /* "{1,2,3,4" */
    size_t n;
    int64_t model_id;
    char valid_from_us[CONFIG_NUMBER_BYTES];
};

/* Half, three quarters more: rounded up, so that the one rounding of money is seen by who
 * publishes. */
static int64_t scaled(int64_t pusd, int percent)
{
    return (pusd * percent + 99) / 100;
}

static struct config_price tier_price(const struct config_price *p, int16_t tier, int percent)
{
    struct config_price out = *p;

    out.tier = tier;
    out.in_pusd = scaled(p->in_pusd, percent);
    out.out_pusd = scaled(p->out_pusd, percent);
    out.cached_pusd = scaled(p->cached_pusd, percent);
    out.cw_5m_pusd = scaled(p->cw_5m_pusd, percent);
    out.cw_1h_pusd = scaled(p->cw_1h_pusd, percent);
    out.reasoning_pusd = scaled(p->reasoning_pusd, percent);
    return out;
}

static int64_t or_default(int64_t v, int64_t fallback)
{
    return v == PRICE_DEFAULT ? fallback : v;
}

static bool price_check(const struct config_price *p, struct err *e)
{
    const int64_t all[] = {p->in_pusd,    p->out_pusd,       p->cached_pusd,  p->cw_5m_pusd,
                           p->cw_1h_pusd, p->reasoning_pusd, p->list_in_pusd, p->list_out_pusd};
    size_t i;

    for (i = 0; i < ARRAY_LEN(all); i++) {
        if (all[i] < 0 || all[i] > PRICE_PUSD_MAX) {
            return err_set(e, ERR_INPUT, "a price is 0 to %lld pico-USD per token",
                           (long long)PRICE_PUSD_MAX);
        }
    }
    if (p->tier < 0 || p->tier > TIER_BATCH || p->ctx_band < 0) {
        return err_set(e, ERR_INPUT, "no such tier or context band");
    }
    if (p->model.n == 0 || p->model.n > 256) {
        return err_set(e, ERR_INPUT, "a model's name has 1 to 256 bytes");
    }
    return true;
}

/* The list price of another tier is the standard one in force, where there is one. */
static bool list_fill(const struct config *c, struct config_price *p, struct err *e)
{
    struct pg_rows *r;

    if (p->list_in_pusd != PRICE_DEFAULT && p->list_out_pusd != PRICE_DEFAULT) {
        return true;
    }
    r = pg_query(c->pg,
                 "SELECT p.in_pusd, p.out_pusd FROM price_version p JOIN model m USING (model_id) "
                 "WHERE m.name = $1 AND p.tier = 1 AND p.valid_from <= now() ORDER BY p.ctx_band "
                 "DESC, p.valid_from DESC LIMIT 1",
                 &p->model, 1, e);
    if (r == NULL) {
        return false;
    }
    if (p->tier > TIER_STANDARD && pg_row_count(r) > 0) {
        p->list_in_pusd = or_default(p->list_in_pusd, pg_i64(r, 0, 0));
        p->list_out_pusd = or_default(p->list_out_pusd, pg_i64(r, 0, 1));
    }
    pg_rows_free(r);
    p->list_in_pusd = or_default(p->list_in_pusd, p->in_pusd);
    p->list_out_pusd = or_default(p->list_out_pusd, p->out_pusd);
    return true;
}

static bool price_insert(const struct config *c, const struct config_price *p,
                         struct publication *pub, struct err *e)
{
    static const char sql[] =
        "INSERT INTO price_version (model_id, tier, ctx_band, valid_from, in_pusd, cached_pusd, "
        "cw_5m_pusd, cw_1h_pusd, out_pusd, reasoning_pusd, list_in_pusd, list_out_pusd, "
        "published_by, sha256) VALUES ($1::smallint, $2::smallint, $3::int, timestamptz 'epoch' + "
        "$4::bigint * interval '1 microsecond', $5::bigint, $6::bigint, $7::bigint, $8::bigint, "
        "$9::bigint, $10::bigint, $11::bigint, $12::bigint, current_setting('tollgate.who'), "
        "sha256('')) RETURNING price_id";
    const int64_t values[] = {p->in_pusd,  p->cached_pusd,    p->cw_5m_pusd,   p->cw_1h_pusd,
                              p->out_pusd, p->reasoning_pusd, p->list_in_pusd, p->list_out_pusd};
    char numbers[3 + ARRAY_LEN(values)][CONFIG_NUMBER_BYTES];
    struct str params[12];
    int64_t id = 0;
    size_t i;

    params[0] = config_text(pub->model_id, numbers[0]);
    params[1] = config_text(p->tier, numbers[1]);
    params[2] = config_text(p->ctx_band == 0 ? INT32_MAX : p->ctx_band, numbers[2]);
    params[3] = str_c(pub->valid_from_us);
    for (i = 0; i < ARRAY_LEN(values); i++) {
        params[4 + i] = config_text(values[i], numbers[3 + i]);
    }
    if (!config_number(c, sql, params, 12, &id, e)) {
        return config_exists_story(c, "a price for this instant of", p->model, e);
    }
    pub->n += (size_t)snprintf(pub->ids + pub->n, sizeof(pub->ids) - pub->n, "%s%lld",
                               pub->n == 0 ? "{" : ",", (long long)id);
    return true;
}

static bool model_make(const struct config *c, const struct config_price *p,
                       struct publication *pub, struct err *e)
{
    int64_t now_us = 0;

    if (!pg_exec(c->pg, CONFIG_MODEL_MAKE, &p->model, 1, e) ||
        !config_number(c, "SELECT model_id FROM model WHERE name = $1", &p->model, 1,
                       &pub->model_id, e) ||
        !config_number(c, "SELECT (extract(epoch FROM now()) * 1000000)::bigint", NULL, 0, &now_us,
                       e)) {
        return false;
    }
    (void)config_text(p->valid_from_us != 0 ? (int64_t)p->valid_from_us : now_us,
                      pub->valid_from_us);
    return true;
}

static bool prices_insert(const struct config *c, const struct config_price *p,
                          struct publication *pub, struct err *e)
{
    struct config_price flex = tier_price(p, TIER_FLEX, 50);
    struct config_price batch = tier_price(p, TIER_BATCH, 50);
    struct config_price priority = tier_price(p, TIER_PRIORITY, 175);
    struct config_price standard = tier_price(p, TIER_STANDARD, 100);

    if (p->tier != 0) {
        return price_insert(c, p, pub, e);
    }
    return price_check(&priority, e) && price_insert(c, &standard, pub, e) &&
           price_insert(c, &priority, pub, e) && price_insert(c, &flex, pub, e) &&
           price_insert(c, &batch, pub, e);
}

bool config_price_publish(const struct config *c, const struct config_price *in, struct buf *out,
                          struct err *e)
{
    struct config_price p = *in;
    struct publication pub = {.n = 0};
    struct str params[2];
    size_t before = out->len;
    bool ok;

    p.cached_pusd = or_default(p.cached_pusd, p.in_pusd);
    p.cw_5m_pusd = or_default(p.cw_5m_pusd, p.in_pusd);
    p.cw_1h_pusd = or_default(p.cw_1h_pusd, p.in_pusd);
    p.reasoning_pusd = or_default(p.reasoning_pusd, p.out_pusd);
    if (!config_begin(c, e)) {
        return false;
    }
    ok = list_fill(c, &p, e) && price_check(&p, e) && model_make(c, &p, &pub, e) &&
         prices_insert(c, &p, &pub, e);
    if (ok) {
        pub.ids[pub.n] = '}';
        params[0] = p.model;
        params[1] = str_of(pub.ids, pub.n + 1);
        ok = config_json(c,
                         "SELECT json_build_object('model', $1::text, 'model_id', (SELECT model_id "
                         "FROM model WHERE name = $1), 'data', json_agg(" PRICE_JSON
                         ") ORDER BY p.tier))" PRICE_FROM "WHERE p.price_id = ANY($2::int[])",
                         params, 2, out, e) &&
             config_audit(c, "price.publish", p.model, str_of(NULL, 0),
                          str_of((const char *)out->p + out->off + before, out->len - before), e);
    }
    ok = config_end(c, ok, e);
    if (!ok) {
        buf_truncate(out, before);
    }
    return ok;
}

bool config_price_list(const struct config *c, struct str model, struct buf *out, struct err *e)
{
    const struct str params[] = {model.p != NULL ? model : STR("")};

    return config_json(
        c,
        "SELECT json_build_object('data', COALESCE(json_agg(" PRICE_JSON
        ", 'in_force', p.valid_from <= now() AND NOT EXISTS (SELECT FROM price_version x WHERE "
        "x.model_id = p.model_id AND x.tier = p.tier AND x.ctx_band = p.ctx_band AND x.valid_from "
        "> p.valid_from AND x.valid_from <= now())) ORDER BY m.name, p.tier, p.ctx_band, "
        "p.valid_from), '[]'))" PRICE_FROM "WHERE $1 = '' OR m.name = $1",
        params, 1, out, e);
}
