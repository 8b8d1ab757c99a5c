/* snapshot.c - looking things up in a snapshot, and its life by reference count. */
#include "ledger/snapshot_impl.h"

const struct snap_tenant *snapshot_tenant(const struct snapshot *s, int32_t tenant_id)
{
    uint32_t lo = 0;
    uint32_t hi = s->n_tenants;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (s->tenants[mid].tenant_id < tenant_id) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < s->n_tenants && s->tenants[lo].tenant_id == tenant_id ? &s->tenants[lo] : NULL;
}

/* The search tells its caller's timing about HMACs only, never about keys. */
const struct snap_key *snapshot_key(const struct snapshot *s, const uint8_t hmac[SHA256_BYTES])
{
    uint32_t lo = 0;
    uint32_t hi = s->n_keys;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (memcmp(s->keys[mid].hmac, hmac, SHA256_BYTES) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo < s->n_keys && hash_equal(s->keys[lo].hmac, hmac, SHA256_BYTES)) {
        return &s->keys[lo];
    }
    return NULL;
}

const struct snap_model *snapshot_model(const struct snapshot *s, struct str name)
{
    uint32_t lo = 0;
    uint32_t hi = s->n_models;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (str_cmp(s->models[mid].name, name) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < s->n_models && str_eq(s->models[lo].name, name) ? &s->models[lo] : NULL;
}

/* Linear: models are dozens, and the hot path goes by name. */
const struct snap_model *snapshot_model_id(const struct snapshot *s, int16_t model_id)
{
    uint32_t i;

    for (i = 0; i < s->n_models; i++) {
        if (s->models[i].model_id == model_id) {
            return &s->models[i];
        }
    }
    return NULL;
}

const struct snap_worker *snapshot_worker(const struct snapshot *s, int32_t worker_id)
{
    uint32_t lo = 0;
    uint32_t hi = s->n_workers;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (s->workers[mid].worker_id < worker_id) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < s->n_workers && s->workers[lo].worker_id == worker_id ? &s->workers[lo] : NULL;
}

static uint32_t prices_begin(const struct snapshot *s, int16_t model_id, int16_t tier)
{
    uint32_t lo = 0;
    uint32_t hi = s->n_prices;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        const struct price *p = &s->prices[mid];

        if (p->model_id < model_id || (p->model_id == model_id && p->tier < tier)) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* The smallest band that holds the prompt and has a version in force; of that, the newest. */
const struct price *snapshot_price(const struct snapshot *s, int16_t model_id, enum tier t,
                                   int64_t prompt_tokens, uint64_t wall_us)
{
    const struct price *best = NULL;
    const struct price *p;
    uint32_t i;

    for (i = prices_begin(s, model_id, (int16_t)t); i < s->n_prices; i++) {
        p = &s->prices[i];
        if (p->model_id != model_id || p->tier != (int16_t)t ||
            (best != NULL && p->ctx_band != best->ctx_band)) {
            break;
        }
        if (p->valid_from_us <= wall_us &&
            (p->ctx_band == INT32_MAX || p->ctx_band >= prompt_tokens)) {
            best = p;
        }
    }
    return best;
}

const struct price *snapshot_price_id(const struct snapshot *s, int32_t price_id)
{
    uint32_t i;

    for (i = 0; i < s->n_prices; i++) {
        if (s->prices[i].price_id == price_id) {
            return &s->prices[i];
        }
    }
    return NULL;
}

struct snapshot *snapshot_ref(struct snapshot *s)
{
    CHECK(atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed) > 0);
    return s;
}

void snapshot_unref(struct snapshot *s)
{
    if (s != NULL && atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1) {
        arena_fini(&s->arena);
        mem_free(s);
    }
}

struct snapshot *snapshot_new(void)
{
    struct snapshot *s = mem_new(sizeof(*s));

    arena_init(&s->arena, SNAPSHOT_BYTES_MAX);
    atomic_init(&s->refs, 1);
    return s;
}
