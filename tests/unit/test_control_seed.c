/* test_control_seed.c - budgets know what was spent elsewhere, each once, in the tenant's own
 * month.
 */
#include "gateway/control.h"
#include "ledger/snapshot_impl.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define MONTH_FROM_US 1790812800000000u /* October 2026, UTC */
#define MONTH_UNTIL_US 1793491200000000u

static struct snapshot *snapshot_of(const struct snap_tenant *t, uint32_t tenants,
                                    const struct snap_key *k, uint32_t keys)
{
    struct snapshot *s = snapshot_new();

    s->n_tenants = tenants;
    s->tenants = arena_array(&s->arena, tenants + 1, sizeof(*t));
    memcpy(s->tenants, t, tenants * sizeof(*t));
    for (uint32_t i = 0; i < tenants; i++) {
        s->tenants[i].month_from_us = MONTH_FROM_US;
        s->tenants[i].month_until_us = MONTH_UNTIL_US;
    }
    s->n_keys = keys;
    s->keys = arena_array(&s->arena, keys + 1, sizeof(*k));
    memcpy(s->keys, k, keys * sizeof(*k));
    return s;
}

static int64_t spent(struct quota *q, int32_t tenant_id, int32_t key_id)
{
    struct quota_scope_state s;

    return quota_state(q, tenant_id, key_id, &s) ? s.spent_nusd : -1;
}

/* A tenant that others made and spent for while this gateway ran without Postgres, and a key. */
static void who_comes_later_brings_what_was_spent(void **state)
{
    const struct snap_tenant tenants[] = {{.tenant_id = 1, .spent_nusd = 500},
                                          {.tenant_id = 2, .spent_nusd = 70, .suspense_nusd = 5}};
    const struct snap_key keys[] = {
        {.key_id = 11, .tenant_id = 1, .hmac = {1}, .spent_nusd = 400},
        {.key_id = 12, .tenant_id = 1, .hmac = {2}, .spent_nusd = 8},
        {.key_id = 21, .tenant_id = 2, .hmac = {3}, .spent_nusd = 70, .suspense_nusd = 5}};
    struct snapshot *before = snapshot_of(tenants, 1, keys, 1);
    struct snapshot *now = snapshot_of(tenants, 2, keys, 3);
    struct gateway *gw = mem_new(sizeof(*gw));
    struct control c = {.gw = gw};

    (void)state;
    gw->quota = quota_new();
    control_seed_new(&c, before, now);
    assert_int_equal(spent(gw->quota, 2, 0), 75);
    assert_int_equal(spent(gw->quota, 2, 21), 75);
    assert_int_equal(spent(gw->quota, 1, 12), 8);
    assert_int_equal(spent(gw->quota, 1, 0), 0); /* counted by its own requests since the start */
    assert_int_equal(spent(gw->quota, 1, 11), -1);
    control_seed_new(&c, now, now);
    assert_int_equal(spent(gw->quota, 2, 0), 75);
    quota_free(gw->quota);
    mem_free(gw);
    snapshot_unref(before);
    snapshot_unref(now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_comes_later_brings_what_was_spent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
