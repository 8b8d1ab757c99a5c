/* tenants.h - whom the quota store counts: tenants, and the keys of each. Private to gateway/admit.
 *
 * The table of tenants is fixed and only grows: a look-up takes no lock, a new tenant a short one.
 * A tenant's keys are a small table of its own, under the tenant's lock. Nobody is ever taken out:
 * a tenant that made QUOTA_KEYS_PER_TENANT_MAX keys waits for the next start. */
#ifndef GATEWAY_ADMIT_TENANTS_H
#define GATEWAY_ADMIT_TENANTS_H

#include "gateway/admit/scope.h"

#include <pthread.h>

#define TENANT_SLOTS (QUOTA_TENANTS_MAX * 2) /* half full at most: probes stay short, and end */

struct quota_zone { /* a month in the tenant's time zone, as instants; zeros: UTC months */
    uint64_t from_us, until_us;
};

struct quota_tenant {
    int32_t tenant_id;
    pthread_mutex_t lock; /* over all below */
    struct quota_zone zone;
    int32_t month; /* newest seen; 0: none */
    struct scope own;
    struct scope *keys; /* [key_slots], a power of two; at most half full */
    uint32_t key_slots, n_keys;
};

struct tenants {                                       /* zeroed by its owner before tenants_init */
    _Atomic(struct quota_tenant *) slot[TENANT_SLOTS]; /* never emptied */
    pthread_mutex_t lock;                              /* over adding one */
    uint32_t n_tenants;
};

void tenants_init(struct tenants *q);
void tenants_fini(struct tenants *q);
/* Any thread. NULL: never seen. */
struct quota_tenant *tenants_find(const struct tenants *q, int32_t tenant_id);
/* Any thread. NULL: QUOTA_TENANTS_MAX are known, or no memory. */
struct quota_tenant *tenants_get(struct tenants *q, int32_t tenant_id);
/* Under the tenant's lock; good until the next new key. NULL: never seen. */
struct scope *tenant_key_find(const struct quota_tenant *t, int32_t key_id);
/* Under the tenant's lock. NULL: QUOTA_KEYS_PER_TENANT_MAX are known, or no memory. */
struct scope *tenant_key_get(struct quota_tenant *t, int32_t key_id);

#endif
