/* control_seed.c - budgets know what was spent before this life, and by tenants that come later. */
#include "gateway/control.h"

static void seed_tenant(struct quota *q, const struct snap_tenant *t)
{
    quota_seed_zone(q, t);
    quota_seed(q, t->tenant_id, 0, quota_period_of(t, t->month_from_us),
               t->spent_nusd + t->suspense_nusd);
}

static void seed_key(struct quota *q, const struct snapshot *s, const struct snap_key *k)
{
    const struct snap_tenant *t = snapshot_tenant(s, k->tenant_id);

    if (t != NULL) {
        quota_seed(q, k->tenant_id, k->key_id, quota_period_of(t, t->month_from_us),
                   k->spent_nusd + k->suspense_nusd);
    }
}

static void seed_row(void *ctx, const struct entry *row)
{
    quota_seed_row(ctx, row);
}

bool control_seed(struct control *c, const char *journal_dir, struct err *e)
{
    const struct snapshot *s = c->world->snap;
    struct quota *q = c->gw->quota;

    for (uint32_t i = 0; i < s->n_tenants; i++) {
        seed_tenant(q, &s->tenants[i]);
    }
    for (uint32_t i = 0; i < s->n_keys; i++) {
        seed_key(q, s, &s->keys[i]);
    }
    return recover_rows(c->env, journal_dir, journal_epoch(c->gw->journal), s->spent_epoch,
                        s->spent_seq, seed_row, q, e);
}

/* Made since, or unknown to the file that this life began with: others may have spent for them
 * already. What an older life's rows counted for them meanwhile counts twice, never less. */
void control_seed_new(struct control *c, const struct snapshot *before, const struct snapshot *now)
{
    struct quota *q = c->gw->quota;

    for (uint32_t i = 0; i < now->n_tenants; i++) {
        if (snapshot_tenant(before, now->tenants[i].tenant_id) == NULL) {
            seed_tenant(q, &now->tenants[i]);
        }
    }
    for (uint32_t i = 0; i < now->n_keys; i++) {
        if (snapshot_key(before, now->keys[i].hmac) == NULL) {
            seed_key(q, now, &now->keys[i]);
        }
    }
}
