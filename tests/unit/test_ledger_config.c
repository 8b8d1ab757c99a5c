/* test_ledger_config.c - an operator's changes: done whole, audited, answered as JSON. */
#include "ledger_world.h"

#include "base/json.h"
#include "ledger/config.h"
#include "ledger/migrate.h"

#include <stdio.h>
#include <stdlib.h>

static struct world_db db;
static int32_t second_key; /* numbers have gaps: a refused insert takes one */

/* A connection as the gateway's role, an answer buffer, and the parsed answer. */
struct desk {
    struct config c;
    struct buf out;
    struct arena arena;
    struct err e;
};

static void desk_open(struct desk *d)
{
    char conninfo[512];

    memset(d, 0, sizeof(*d));
    world_db_as(&db, "tollgate_gateway", conninfo);
    d->c = (struct config){world_pg(conninfo), STR("ops@example")};
    buf_init(&d->out, 1 << 20);
    arena_init(&d->arena, 1 << 22);
}

static void desk_close(struct desk *d)
{
    pg_close(d->c.pg);
    buf_fini(&d->out);
    arena_fini(&d->arena);
}

/* The answer as a tree; the buffer is empty again. */
static const struct json *answer(struct desk *d, bool ok)
{
    struct str copy;
    const struct json *v;

    if (!ok) {
        fail_msg("%s", d->e.text);
    }
    copy = arena_str(&d->arena, buf_view(&d->out));
    buf_reset(&d->out);
    v = json_parse(&d->arena, copy, &json_limits_api, &d->e);
    if (v == NULL) {
        fail_msg("%s: %.*s", d->e.text, (int)copy.n, copy.p);
    }
    return v;
}

static int64_t number(const struct json *v, const char *key)
{
    int64_t n = INT64_MIN;

    if (!json_i64(json_get(v, str_c(key)), &n)) {
        fail_msg("%s is no integer", key);
    }
    return n;
}

static void assert_text(const struct json *v, const char *key, const char *want)
{
    const struct json *m = json_get(v, str_c(key));

    if (m == NULL || !str_eq(m->text, str_c(want))) {
        fail_msg("%s is %.*s, not %s", key, m != NULL ? (int)m->text.n : 1,
                 m != NULL ? m->text.p : "-", want);
    }
}

/* Nothing was said, nothing was done. */
static void assert_refused(struct desk *d, bool ok, enum err_code code)
{
    assert_false(ok);
    assert_int_equal(d->e.code, code);
    assert_int_equal(d->out.len, 0);
    err_clear(&d->e);
}

static void a_tenant_is_made_once(void **state)
{
    struct desk d;
    const struct json *v;

    (void)state;
    desk_open(&d);
    v = answer(&d, config_tenant_create(&d.c, STR("acme"), STR("Europe/Berlin"), &d.out, &d.e));
    assert_text(v, "name", "acme");
    assert_text(v, "timezone", "Europe/Berlin");
    assert_true(number(v, "tenant_id") > 0);
    assert_refused(&d, config_tenant_create(&d.c, STR("acme"), STR(""), &d.out, &d.e),
                   ERR_CONFLICT);
    assert_refused(&d, config_tenant_create(&d.c, STR("b"), STR("Mars/Base"), &d.out, &d.e),
                   ERR_INPUT);
    assert_refused(&d, config_tenant_create(&d.c, STR(""), STR(""), &d.out, &d.e), ERR_INPUT);
    v = answer(&d, config_tenant_list(&d.c, &d.out, &d.e));
    assert_int_equal(json_get(v, STR("data"))->count, 1);
    v = answer(&d, config_tenant_disable(&d.c, STR("acme"), true, &d.out, &d.e));
    assert_int_equal(json_get(v, STR("disabled"))->type, JSON_TRUE);
    v = answer(&d, config_tenant_disable(&d.c, STR("acme"), false, &d.out, &d.e));
    assert_refused(&d, config_tenant_disable(&d.c, STR("x"), true, &d.out, &d.e), ERR_NOT_FOUND);
    desk_close(&d);
}

static struct config_key key_of(const char *seed)
{
    struct config_key k = {.tenant = STR("acme"), .redacted = STR("tg_ab...yz")};

    hash_sha256(seed, strlen(seed), k.hmac);
    return k;
}

static void a_key_makes_its_project_and_is_revoked(void **state)
{
    struct desk d;
    struct config_key k = key_of("1");
    struct config_key_ids a;
    struct config_key_ids b;
    const struct json *v;

    (void)state;
    desk_open(&d);
    assert_true(config_key_create(&d.c, &k, &a, &d.e));
    assert_true(a.key_id > 0 && a.project_id > 0 && a.user_id == 0);
    assert_false(config_key_create(&d.c, &k, &b, &d.e)); /* the same HMAC */
    assert_int_equal(d.e.code, ERR_CONFLICT);
    err_clear(&d.e);
    k = key_of("2");
    k.project = STR("default");
    k.user = STR("jo");
    assert_true(config_key_create(&d.c, &k, &b, &d.e));
    assert_int_equal(b.project_id, a.project_id);
    assert_true(b.user_id > 0);
    second_key = b.key_id;
    k = key_of("3");
    k.project = STR("other");
    assert_true(config_key_create(&d.c, &k, &b, &d.e));
    assert_true(b.project_id != a.project_id);
    k.tenant = STR("nobody");
    assert_false(config_key_create(&d.c, &k, &b, &d.e));
    assert_int_equal(d.e.code, ERR_NOT_FOUND);
    err_clear(&d.e);
    v = answer(&d, config_key_revoke(&d.c, a.key_id, &d.out, &d.e));
    assert_int_equal(json_get(v, STR("revoked"))->type, JSON_TRUE);
    v = answer(&d, config_key_revoke(&d.c, a.key_id, &d.out, &d.e));
    assert_refused(&d, config_key_revoke(&d.c, 99999, &d.out, &d.e), ERR_NOT_FOUND);
    v = answer(&d, config_key_list(&d.c, STR("acme"), &d.out, &d.e));
    assert_int_equal(json_get(v, STR("data"))->count, 3);
    assert_text(json_get(v, STR("data"))->child, "redacted", "tg_ab...yz");
    assert_refused(&d, config_key_list(&d.c, STR("nobody"), &d.out, &d.e), ERR_NOT_FOUND);
    desk_close(&d);
}

static void a_limit_is_set_kept_and_lifted(void **state)
{
    struct quota_limits l = {3, QUOTA_KEEP, QUOTA_KEEP, 1, 200000000};
    struct desk d;
    const struct json *v;

    (void)state;
    desk_open(&d);
    v = answer(&d, config_quota_set(&d.c, STR("acme"), 0, &l, &d.out, &d.e));
    assert_int_equal(number(v, "requests_per_min"), 3);
    assert_int_equal(number(v, "budget_month_pusd"), 200000000);
    assert_text(v, "budget_month_usd", "0.000200000000");
    assert_int_equal(json_get(v, STR("key_id"))->type, JSON_NULL);
    assert_int_equal(json_get(v, STR("input_tokens_per_min"))->type, JSON_NULL);
    l = (struct quota_limits){QUOTA_NONE, 200, QUOTA_KEEP, QUOTA_KEEP, QUOTA_KEEP};
    v = answer(&d, config_quota_set(&d.c, STR("acme"), 0, &l, &d.out, &d.e));
    assert_int_equal(json_get(v, STR("requests_per_min"))->type, JSON_NULL);
    assert_int_equal(number(v, "input_tokens_per_min"), 200);
    assert_int_equal(number(v, "concurrent"), 1);
    v = answer(&d, config_quota_show(&d.c, STR("acme"), second_key, &d.out, &d.e));
    assert_int_equal(number(v, "key_id"), second_key);
    assert_int_equal(json_get(v, STR("concurrent"))->type, JSON_NULL);
    l.output_tokens_per_min = -7;
    assert_refused(&d, config_quota_set(&d.c, STR("acme"), 0, &l, &d.out, &d.e), ERR_INPUT);
    v = answer(&d, config_quota_show(&d.c, STR("acme"), 0, &d.out, &d.e));
    assert_int_equal(number(v, "input_tokens_per_min"), 200); /* the refused change left nothing */
    assert_refused(&d, config_quota_show(&d.c, STR("acme"), 777, &d.out, &d.e), ERR_NOT_FOUND);
    assert_int_equal(world_number(d.c.pg, "SELECT count(*) FROM quota_audit WHERE who = "
                                          "'ops@example'"),
                     5);
    desk_close(&d);
}

static const struct json *price_at(const struct json *v, int i)
{
    const struct json *p = json_get(v, STR("data"))->child;

    while (i-- > 0) {
        p = p->next;
    }
    return p;
}

static void a_price_without_a_tier_is_published_for_all_four(void **state)
{
    struct config_price p = {.model = STR("m1"),
                             .in_pusd = 1000001,
                             .out_pusd = 2000000,
                             .cached_pusd = 100000,
                             .cw_5m_pusd = PRICE_DEFAULT,
                             .cw_1h_pusd = PRICE_DEFAULT,
                             .reasoning_pusd = PRICE_DEFAULT,
                             .list_in_pusd = PRICE_DEFAULT,
                             .list_out_pusd = PRICE_DEFAULT};
    struct desk d;
    const struct json *v;
    const struct json *flex;

    (void)state;
    desk_open(&d);
    v = answer(&d, config_price_publish(&d.c, &p, &d.out, &d.e));
    assert_int_equal(json_get(v, STR("data"))->count, 4);
    assert_text(price_at(v, 0), "tier", "standard");
    assert_int_equal(number(price_at(v, 0), "input_pusd"), 1000001);
    assert_text(price_at(v, 0), "input_usd", "1.000001");
    assert_int_equal(number(price_at(v, 0), "cache_write_5m_pusd"), 1000001);
    assert_int_equal(json_get(price_at(v, 0), STR("ctx_band"))->type, JSON_NULL);
    flex = price_at(v, 2);
    assert_text(flex, "tier", "flex");
    assert_int_equal(number(flex, "input_pusd"), 500001); /* half, rounded up */
    assert_int_equal(number(flex, "output_pusd"), 1000000);
    assert_int_equal(number(flex, "list_output_pusd"), 2000000);
    p.tier = TIER_STANDARD;
    p.valid_from_us = 1893456000000000; /* 2030 */
    v = answer(&d, config_price_publish(&d.c, &p, &d.out, &d.e));
    assert_int_equal(json_get(v, STR("data"))->count, 1);
    assert_refused(&d, config_price_publish(&d.c, &p, &d.out, &d.e), ERR_CONFLICT);
    p.in_pusd = -3;
    p.valid_from_us++;
    assert_refused(&d, config_price_publish(&d.c, &p, &d.out, &d.e), ERR_INPUT);
    p.in_pusd = (int64_t)INT32_MAX + 1; /* a long prompt's cost would leave int64 */
    assert_refused(&d, config_price_publish(&d.c, &p, &d.out, &d.e), ERR_INPUT);
    p.tier = 0;
    p.in_pusd = INT32_MAX; /* and so would priority's, at 1.75 */
    assert_refused(&d, config_price_publish(&d.c, &p, &d.out, &d.e), ERR_INPUT);
    v = answer(&d, config_price_list(&d.c, STR("m1"), &d.out, &d.e));
    assert_int_equal(json_get(v, STR("data"))->count, 5);
    assert_int_equal(json_get(price_at(v, 0), STR("in_force"))->type, JSON_TRUE);
    assert_int_equal(json_get(price_at(v, 1), STR("in_force"))->type, JSON_FALSE);
    v = answer(&d, config_model_set(&d.c, STR("m1"), 8192, -1, &d.out, &d.e));
    assert_int_equal(number(v, "context"), 8192);
    assert_int_equal(number(v, "output_max"), 0);
    assert_refused(&d, config_model_set(&d.c, STR("m?"), 1, 1, &d.out, &d.e), ERR_NOT_FOUND);
    desk_close(&d);
}

static void adding_a_known_worker_updates_it(void **state)
{
    const struct str two[] = {STR("m1"), STR("m2")};
    const struct str one[] = {STR("m3")};
    struct str many[CONFIG_WORKER_MODELS_MAX + 1];
    struct desk d;
    const struct json *v;
    int64_t id;
    char text[24];
    size_t i;

    (void)state;
    desk_open(&d);
    v = answer(&d, config_worker_add(&d.c, STR("http://127.0.0.1:9"), ENGINE_OPENAI, two, 2, &d.out,
                                     &d.e));
    id = number(v, "worker_id");
    assert_text(v, "engine", "openai");
    assert_int_equal(json_get(v, STR("models"))->count, 2);
    (void)snprintf(text, sizeof(text), "%lld", (long long)id);
    v = answer(&d, config_worker_drain(&d.c, str_c(text), true, &d.out, &d.e));
    assert_int_equal(json_get(v, STR("draining"))->type, JSON_TRUE);
    v = answer(&d, config_worker_remove(&d.c, STR("http://127.0.0.1:9"), &d.out, &d.e));
    assert_int_equal(json_get(v, STR("removed"))->type, JSON_TRUE);
    v = answer(&d, config_worker_add(&d.c, STR("http://127.0.0.1:9"), ENGINE_TOLLGATE, one, 1,
                                     &d.out, &d.e));
    assert_int_equal(number(v, "worker_id"), id);
    assert_text(v, "engine", "tollgate");
    assert_int_equal(json_get(v, STR("removed"))->type, JSON_FALSE);
    assert_int_equal(json_get(v, STR("draining"))->type, JSON_FALSE);
    assert_true(str_eq(json_get(v, STR("models"))->child->text, STR("m3")));
    assert_refused(&d, config_worker_drain(&d.c, STR("http://x:12345"), true, &d.out, &d.e),
                   ERR_NOT_FOUND);
    assert_refused(&d, config_worker_add(&d.c, STR("x"), ENGINE_OPENAI, one, 1, &d.out, &d.e),
                   ERR_INPUT);
    for (i = 0; i < ARRAY_LEN(many); i++) {
        many[i] = STR("m1");
    }
    assert_refused(&d,
                   config_worker_add(&d.c, STR("http://y:12345"), ENGINE_OPENAI, many,
                                     ARRAY_LEN(many), &d.out, &d.e),
                   ERR_INPUT);
    v = answer(&d, config_worker_list(&d.c, &d.out, &d.e));
    assert_int_equal(json_get(v, STR("data"))->count, 1);
    /* model_id is a smallint: naming what is there takes no number. */
    assert_int_equal(world_number(d.c.pg, "SELECT max(model_id) - count(*) FROM model"), 0);
    desk_close(&d);
}

static void usage_is_the_sum_of_the_rollup(void **state)
{
    struct desk d;
    const struct json *v;
    const struct json *total;

    (void)state;
    desk_open(&d);
    v = answer(&d, config_usage_show(&d.c, STR("acme"), 0, 0, &d.out, &d.e));
    assert_int_equal(number(json_get(v, STR("total")), "requests"), 0);
    assert_true(pg_exec(d.c.pg,
                        "INSERT INTO usage_15m (bucket, gateway_id, tenant_id, project_id, "
                        "key_id, user_id, tagset_id, period, model_id, tier_served, kind, n, "
                        "tok_in_uncached, tok_in_cached, tok_cw_5m, tok_cw_1h, tok_out, "
                        "tok_reasoning, cost_pusd, list_pusd, budget_nusd, gpu_us) SELECT "
                        "date_bin('15 minutes', now(), '2000-01-01Z'), g, t, 1, (SELECT "
                        "min(key_id) FROM api_key WHERE key_id > 1), 0, 0, 202601, "
                        "m, 1, 1, 2, 10, 20, 0, 0, 5, 1, 1500000000001, 3, 1500000001, 0 FROM "
                        "(VALUES (1, 1, 1), (2, 1, 1), (1, 1, 2), (1, 2, 1)) x(g, t, m)",
                        NULL, 0, &d.e));
    v = answer(&d, config_usage_show(&d.c, STR("acme"), 0, 0, &d.out, &d.e));
    total = json_get(v, STR("total"));
    assert_int_equal(number(total, "requests"), 6);
    assert_int_equal(number(total, "tok_in_cached"), 60);
    assert_int_equal(number(total, "cost_pusd"), 4500000000003);
    assert_text(total, "cost_usd", "4.500000000003");
    assert_int_equal(json_get(v, STR("data"))->count, 2);
    v = answer(&d, config_usage_show(&d.c, STR(""), 0, 0, &d.out, &d.e));
    assert_int_equal(number(json_get(v, STR("total")), "requests"), 8);
    v = answer(&d, config_usage_show(&d.c, STR("acme"), 1000000, 2000000, &d.out, &d.e));
    assert_int_equal(number(json_get(v, STR("total")), "requests"), 0);
    v = answer(&d, config_quota_show(&d.c, STR("acme"), second_key, &d.out, &d.e));
    assert_int_equal(number(v, "spent_month_nusd"), 4500000003);
    assert_text(v, "spent_month_usd", "4.500000003000");
    assert_refused(&d, config_usage_show(&d.c, STR("x"), 0, 0, &d.out, &d.e), ERR_NOT_FOUND);
    desk_close(&d);
}

static void every_change_has_its_line_in_the_audit(void **state)
{
    struct desk d;

    (void)state;
    desk_open(&d);
    assert_int_equal(world_number(d.c.pg, "SELECT count(*) FROM admin_audit WHERE who = "
                                          "'ops@example'"),
                     3 + 3 + 2 + 2 + 2 + 1 + 4);
    assert_int_equal(world_number(d.c.pg, "SELECT count(*) FROM admin_audit WHERE what = "
                                          "'quota.set' AND before IS NOT NULL AND after IS NOT "
                                          "NULL"),
                     2);
    assert_int_equal(world_number(d.c.pg,
                                  "SELECT count(*) FROM admin_audit WHERE COALESCE(after::text, "
                                  "'') LIKE '%hmac%'"),
                     0);
    desk_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tenant_is_made_once),
        cmocka_unit_test(a_key_makes_its_project_and_is_revoked),
        cmocka_unit_test(a_limit_is_set_kept_and_lifted),
        cmocka_unit_test(a_price_without_a_tier_is_published_for_all_four),
        cmocka_unit_test(adding_a_known_worker_updates_it),
        cmocka_unit_test(usage_is_the_sum_of_the_rollup),
        cmocka_unit_test(every_change_has_its_line_in_the_audit),
    };
    int failed;

    if (!world_has_pg()) {
        return WORLD_SKIP;
    }
    world_db_make(&db, false);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    world_db_drop(&db);
    return failed;
}
