/* sim_store.c - Postgres as the shipper sees it: a cursor an epoch, rows, transactions that may
 * fail before, or be in although the answer never came. */
#include "sim_world.h"

void store_init(struct store_sim *s, struct world_sim *w)
{
    *s = (struct store_sim){.w = w};
    s->rng.state = sim_rng_next(&w->rng);
}

void store_fini(struct store_sim *s)
{
    mem_free(s->rows);
}

static struct store_epoch *epoch_of(struct store_sim *s, int32_t epoch)
{
    for (unsigned i = 0; i < s->n_epochs; i++) {
        if (s->epochs[i].epoch == epoch) {
            return &s->epochs[i];
        }
    }
    CHECK(s->n_epochs < WORLD_EPOCHS_MAX);
    s->epochs[s->n_epochs] = (struct store_epoch){epoch, 0};
    return &s->epochs[s->n_epochs++];
}

static bool refuses(struct store_sim *s, struct err *e)
{
    return s->down || sim_chance(&s->rng, s->trouble)
               ? !err_set(e, ERR_UNAVAILABLE, "the store is away")
               : false;
}

static bool store_cursor(void *ctx, int32_t gateway_id, int32_t epoch, int64_t *last_seq,
                         struct err *e)
{
    struct store_sim *s = ctx;

    (void)gateway_id;
    if (refuses(s, e)) {
        return false;
    }
    *last_seq = epoch_of(s, epoch)->last_seq;
    return true;
}

const struct entry *store_row_of_event(const struct store_sim *s, struct uuid event)
{
    for (size_t i = 0; i < s->n; i++) {
        if (uuid_eq(s->rows[i].event, event)) {
            return &s->rows[i];
        }
    }
    return NULL;
}

static void row_add(struct store_sim *s, const struct entry *row)
{
    if (store_row_of_event(s, row->event) != NULL) {
        sim_fail(s->w->sim, "two rows for one event, the second in epoch %d seq %lld",
                 row->gw_epoch, (long long)row->gw_seq);
    }
    if (s->n == s->cap) {
        s->cap = s->cap == 0 ? 64 : s->cap * 2;
        s->rows = mem_resize(s->rows, s->cap * sizeof(*s->rows));
        CHECK(s->rows != NULL);
    }
    s->rows[s->n++] = *row;
}

static bool store_commit(void *ctx, int32_t gateway_id, int32_t epoch, int64_t last_seq,
                         const struct entry *rows, size_t n, struct err *e)
{
    struct store_sim *s = ctx;
    struct store_epoch *at = epoch_of(s, epoch);

    (void)gateway_id;
    if (refuses(s, e)) {
        return false;
    }
    if (at->last_seq != last_seq) {
        return err_set(e, ERR_CONFLICT, "the cursor stands at %lld, not %lld",
                       (long long)at->last_seq, (long long)last_seq);
    }
    for (size_t i = 0; i < n; i++) {
        if (rows[i].gw_seq != last_seq + 1 + (int64_t)i || rows[i].gw_epoch != epoch) {
            sim_fail(s->w->sim, "epoch %d: row %lld where %lld is due", epoch,
                     (long long)rows[i].gw_seq, (long long)last_seq + 1 + (long long)i);
        }
        row_add(s, &rows[i]);
    }
    at->last_seq += (int64_t)n;
    sim_trace(s->w->sim, "store: epoch %d now at %lld", epoch, (long long)at->last_seq);
    /* The commit is in; its answer may be lost. */
    return sim_chance(&s->rng, s->trouble)
               ? err_set(e, ERR_UNAVAILABLE, "the connection broke during commit")
               : true;
}

static bool store_has(void *ctx, const struct entry *row, bool *in, struct err *e)
{
    struct store_sim *s = ctx;
    const struct entry *mine;

    if (refuses(s, e)) {
        return false;
    }
    mine = store_row_of_event(s, row->event);
    *in = mine != NULL && mine->gw_epoch == row->gw_epoch && mine->gw_seq == row->gw_seq;
    return true;
}

int64_t store_suspense(const struct entry *row)
{
    int64_t rest = row->hold_nusd - money_nusd_ceil(money_of(row->cost_pusd));

    return row->usage_state == USAGE_UNKNOWN && rest > 0 ? rest : 0;
}

struct ship_store store_as_ship_store(struct store_sim *s)
{
    return (struct ship_store){
        .ctx = s, .cursor = store_cursor, .commit = store_commit, .has = store_has};
}
