/* tenants.c - the two tables behind the quota store: tenants by id, keys by id. */
#include "gateway/admit/tenants.h"

#define KEY_SLOTS_MIN 8

void tenants_init(struct tenants *q)
{
    CHECK(pthread_mutex_init(&q->lock, NULL) == 0);
}

void tenants_fini(struct tenants *q)
{
    for (uint32_t i = 0; i < TENANT_SLOTS; i++) {
        struct quota_tenant *t = atomic_load_explicit(&q->slot[i], memory_order_relaxed);

        if (t != NULL) {
            pthread_mutex_destroy(&t->lock);
            mem_free(t->keys);
            mem_free(t);
        }
    }
    pthread_mutex_destroy(&q->lock);
}

/* Ids are dense numbers of Postgres: a multiplication spreads them well enough. */
static uint32_t slot_of(int32_t id, uint32_t slots)
{
    return (uint32_t)(((uint64_t)(uint32_t)id * 0x9e3779b97f4a7c15) >> 32) & (slots - 1);
}

/* The slot that holds the tenant, or the free one where it belongs. */
static _Atomic(struct quota_tenant *) *tenant_slot(const struct tenants *q, int32_t tenant_id,
                                                   struct quota_tenant **found)
{
    uint32_t i = slot_of(tenant_id, TENANT_SLOTS);

    for (;; i = (i + 1) & (TENANT_SLOTS - 1)) { /* ends: at least half of the slots are free */
        *found = atomic_load_explicit(&q->slot[i], memory_order_acquire);
        if (*found == NULL || (*found)->tenant_id == tenant_id) {
            return (_Atomic(struct quota_tenant *) *)&q->slot[i];
        }
    }
}

struct quota_tenant *tenants_find(const struct tenants *q, int32_t tenant_id)
{
    struct quota_tenant *t;

    tenant_slot(q, tenant_id, &t);
    return t;
}

struct quota_tenant *tenants_get(struct tenants *q, int32_t tenant_id)
{
    struct quota_tenant *t = tenants_find(q, tenant_id);
    _Atomic(struct quota_tenant *) *slot;

    if (t != NULL) {
        return t;
    }
    pthread_mutex_lock(&q->lock);
    slot = tenant_slot(q, tenant_id, &t);
    if (t == NULL && q->n_tenants < QUOTA_TENANTS_MAX && (t = mem_try(1, sizeof(*t))) != NULL) {
        t->tenant_id = tenant_id;
        CHECK(pthread_mutex_init(&t->lock, NULL) == 0);
        q->n_tenants++;
        atomic_store_explicit(slot, t, memory_order_release);
    }
    pthread_mutex_unlock(&q->lock);
    return t;
}

static struct scope *key_slot(struct scope *keys, uint32_t slots, int32_t key_id)
{
    uint32_t i = slot_of(key_id, slots);

    while (keys[i].key_id != 0 && keys[i].key_id != key_id) {
        i = (i + 1) & (slots - 1);
    }
    return &keys[i];
}

struct scope *tenant_key_find(const struct quota_tenant *t, int32_t key_id)
{
    struct scope *s = t->keys == NULL ? NULL : key_slot(t->keys, t->key_slots, key_id);

    return s == NULL || s->key_id == 0 ? NULL : s;
}

static bool keys_grow(struct quota_tenant *t)
{
    uint32_t slots = t->key_slots == 0 ? KEY_SLOTS_MIN : t->key_slots * 2;
    struct scope *keys = mem_try(slots, sizeof(*keys));

    if (keys == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < t->key_slots; i++) {
        if (t->keys[i].key_id != 0) {
            *key_slot(keys, slots, t->keys[i].key_id) = t->keys[i];
        }
    }
    mem_free(t->keys);
    t->keys = keys;
    t->key_slots = slots;
    return true;
}

struct scope *tenant_key_get(struct quota_tenant *t, int32_t key_id)
{
    struct scope *s = tenant_key_find(t, key_id);

    CHECK(key_id != 0);
    if (s != NULL) {
        return s;
    }
    if (t->n_keys == QUOTA_KEYS_PER_TENANT_MAX ||
        ((t->n_keys + 1) * 2 > t->key_slots && !keys_grow(t))) {
        return NULL;
    }
    s = key_slot(t->keys, t->key_slots, key_id);
    s->key_id = key_id;
    t->n_keys++;
    return s;
}
