/* quota.c - tenants, their locks, and the life of a hold: reserve, extend, trim, settle. The
 * counting itself is scope.c.
 *
 * The table of tenants is fixed and only grows: a look-up takes no lock, a new tenant a short one.
 * A tenant's keys are a small table of its own under the tenant's lock. */
#include "gateway/admit/quota.h"
#include "gateway/admit/tenants.h"
#include "base/money.h"

struct quota {
    struct tenants tenants;
    atomic_llong open_holds;
};

const char *quota_dim_name(enum quota_dim d)
{
    static const char *const name[] = {
        [QUOTA_REQUESTS] = "requests_per_min",
        [QUOTA_INPUT_TOKENS] = "input_tokens_per_min",
        [QUOTA_OUTPUT_TOKENS] = "output_tokens_per_min",
        [QUOTA_CONCURRENT] = "concurrent",
        [QUOTA_BUDGET_MONTH] = "budget_month",
    };

    return (unsigned)d < ARRAY_LEN(name) && name[d] != NULL ? name[d] : "none";
}

const char *quota_scope_name(enum quota_scope s)
{
    static const char *const name[] = {[QUOTA_SCOPE_TENANT] = "tenant",
                                       [QUOTA_SCOPE_PROJECT] = "project",
                                       [QUOTA_SCOPE_KEY] = "key"};

    return (unsigned)s < ARRAY_LEN(name) && name[s] != NULL ? name[s] : "none";
}

struct quota *quota_new(void)
{
    struct quota *q = mem_new(sizeof(*q));

    tenants_init(&q->tenants);
    return q;
}

void quota_free(struct quota *q)
{
    if (q != NULL) {
        tenants_fini(&q->tenants);
        mem_free(q);
    }
}

/* Months since year 0, of a day since 1970 (H. Hinnant, chrono-compatible date algorithms). */
static int32_t month_of(uint64_t wall_us)
{
    uint64_t z = wall_us / 86400000000u + 719468; /* days since 0000-03-01 */
    uint64_t era = z / 146097, doe = z % 146097;
    uint64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    uint64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    uint64_t march = (5 * doy + 2) / 153; /* 0: March */

    return (int32_t)((era * 400 + yoe) * 12 + march + 2);
}

static int32_t period_of_month(int32_t month)
{
    return month / 12 * 100 + month % 12 + 1;
}

static int32_t month_of_period(int32_t period)
{
    return period / 100 * 12 + period % 100 - 1;
}

int32_t quota_period(uint64_t wall_us)
{
    return period_of_month(month_of(wall_us));
}

/* The zone's edges come with the snapshot (Postgres knows zones): its middle is in that month
 * everywhere. An older snapshot's month may be over; the next one follows it. */
static int32_t zone_month(const struct quota_zone *z, uint64_t wall_us)
{
    if (z->until_us <= z->from_us) {
        return month_of(wall_us);
    }
    return month_of(z->from_us + (z->until_us - z->from_us) / 2) + (wall_us >= z->until_us) -
           (wall_us < z->from_us);
}

static struct quota_zone zone_of(const struct snap_tenant *t)
{
    return (struct quota_zone){t->month_from_us, t->month_until_us};
}

int32_t quota_period_of(const struct snap_tenant *t, uint64_t wall_us)
{
    struct quota_zone z = zone_of(t);

    return period_of_month(zone_month(&z, wall_us));
}

/* Only this month and the last are kept: a clock that was set back further counts in the last. */
static int32_t tenant_month(struct quota_tenant *t, int32_t month)
{
    if (t->month < month) {
        t->month = month;
    }
    return month < t->month - 1 ? t->month - 1 : month;
}

/* Into the tenant (key_id 0), the key, or both. Under the tenant's lock. */
static void seed(struct quota_tenant *t, int32_t key_id, bool both, int32_t month, int64_t nusd)
{
    struct scope *s;

    if (month < t->month - 1) {
        return;
    }
    tenant_month(t, month);
    if (key_id == 0 || both) {
        scope_seed(&t->own, month, nusd);
    }
    if (key_id != 0 && (s = tenant_key_get(t, key_id)) != NULL) {
        scope_seed(s, month, nusd);
    }
}

void quota_seed(struct quota *q, int32_t tenant_id, int32_t key_id, int32_t period,
                int64_t spent_nusd)
{
    struct quota_tenant *qt = tenants_get(&q->tenants, tenant_id);

    CHECK(period >= 197001 && period % 100 >= 1 && period % 100 <= 12);
    if (qt == NULL) {
        return; /* its requests are refused with QUOTA_FULL too */
    }
    pthread_mutex_lock(&qt->lock);
    seed(qt, key_id, false, month_of_period(period), spent_nusd);
    pthread_mutex_unlock(&qt->lock);
}

void quota_seed_zone(struct quota *q, const struct snap_tenant *t)
{
    struct quota_tenant *qt = tenants_get(&q->tenants, t->tenant_id);

    if (qt != NULL) {
        pthread_mutex_lock(&qt->lock);
        qt->zone = zone_of(t);
        pthread_mutex_unlock(&qt->lock);
    }
}

void quota_seed_charge(struct quota *q, int32_t tenant_id, int32_t key_id, uint64_t occurred_us,
                       int64_t nusd)
{
    struct quota_tenant *qt = tenants_get(&q->tenants, tenant_id);

    if (qt == NULL) {
        return;
    }
    pthread_mutex_lock(&qt->lock);
    seed(qt, key_id, true, zone_month(&qt->zone, occurred_us), nusd);
    pthread_mutex_unlock(&qt->lock);
}

/* What nobody can say goes on counting as it was held: Postgres has it as suspense. */
void quota_seed_row(struct quota *q, const struct entry *row)
{
    int64_t nusd = money_nusd_ceil(money_of(row->cost_pusd));

    if (row->usage_state == USAGE_UNKNOWN && row->hold_nusd > nusd) {
        nusd = row->hold_nusd;
    }
    quota_seed_charge(q, row->tenant_id, row->key_id, row->occurred_us, nusd);
}

int64_t quota_output_max(const struct snap_tenant *t, const struct snap_key *k)
{
    const struct quota_limits *l[] = {&t->limits, &k->limits};
    int64_t least = INT64_MAX;

    for (size_t i = 0; i < ARRAY_LEN(l); i++) {
        int64_t v = scope_rate_limit(l[i], RATE_OUTPUT);

        if (v != QUOTA_NONE && v < least) {
            least = v;
        }
    }
    return least;
}

static void answer_run(struct env_task *task)
{
    struct quota_hold *h = CONTAINER_OF(task, struct quota_hold, task);

    h->on_answer(h);
}

static void answer_later(struct env *env, struct quota_hold *h)
{
    h->task.run = answer_run;
    env_defer(env, &h->task);
}

/* Both scopes or none. Under the tenant's lock. */
static void hold_take(struct quota_tenant *qt, struct scope *key, struct quota_hold *h,
                      const struct snap_tenant *t, const struct snap_key *k,
                      const struct scope_ask *a)
{
    h->verdict = (struct quota_verdict){.answer = QUOTA_GRANTED};
    scope_judge(&qt->own, QUOTA_SCOPE_TENANT, &t->limits, a, &h->verdict);
    scope_judge(key, QUOTA_SCOPE_KEY, &k->limits, a, &h->verdict);
    if (h->verdict.answer != QUOTA_GRANTED) {
        return;
    }
    h->verdict = (struct quota_verdict){.answer = QUOTA_GRANTED};
    scope_take(&qt->own, &t->limits, a, h->taken[0]);
    scope_take(key, &k->limits, a, h->taken[1]);
    h->held_nusd += a->nusd;
    h->in_tokens += a->cost[RATE_INPUT];
    h->out_tokens += a->cost[RATE_OUTPUT];
}

void quota_reserve(struct quota *q, struct env *env, struct quota_hold *h,
                   const struct snap_tenant *t, const struct snap_key *k, int64_t in_tokens,
                   int64_t out_tokens, int64_t nusd)
{
    struct quota_tenant *qt = tenants_get(&q->tenants, t->tenant_id);
    struct scope_ask a = {{1, in_tokens, out_tokens}, 1, nusd, 0, env_now_us(env)};
    struct scope *key;

    CHECK(!h->active && !h->task.queued && in_tokens >= 0 && out_tokens >= 0 && nusd >= 0);
    *h = (struct quota_hold){.tenant_id = t->tenant_id,
                             .key_id = k->key_id,
                             .on_answer = h->on_answer,
                             .verdict = {.answer = QUOTA_FULL}};
    if (qt != NULL) {
        pthread_mutex_lock(&qt->lock);
        qt->zone = zone_of(t);
        a.month = tenant_month(qt, zone_month(&qt->zone, env_wall_us(env)));
        if ((key = tenant_key_get(qt, k->key_id)) != NULL) {
            hold_take(qt, key, h, t, k, &a);
        }
        pthread_mutex_unlock(&qt->lock);
    }
    if (h->verdict.answer == QUOTA_GRANTED) {
        h->active = true;
        h->period = period_of_month(a.month);
        atomic_fetch_add_explicit(&q->open_holds, 1, memory_order_relaxed);
    }
    answer_later(env, h);
}

void quota_extend(struct quota *q, struct env *env, struct quota_hold *h,
                  const struct snap_tenant *t, const struct snap_key *k, int64_t out_tokens,
                  int64_t nusd)
{
    struct quota_tenant *qt = tenants_find(&q->tenants, h->tenant_id);
    struct scope_ask a = {{0, 0, out_tokens}, 0, nusd, month_of_period(h->period), env_now_us(env)};
    struct scope *key;

    CHECK(h->active && !h->task.queued && out_tokens >= 0 && nusd >= 0);
    CHECK(qt != NULL && t->tenant_id == h->tenant_id && k->key_id == h->key_id);
    pthread_mutex_lock(&qt->lock);
    key = tenant_key_find(qt, h->key_id);
    CHECK(key != NULL);
    if (a.month < qt->month - 1) { /* its month's counters are gone: nothing is left to count in */
        h->verdict = (struct quota_verdict){
            .answer = QUOTA_BUDGET, .dim = QUOTA_BUDGET_MONTH, .scope = QUOTA_SCOPE_TENANT};
    } else {
        hold_take(qt, key, h, t, k, &a);
    }
    pthread_mutex_unlock(&qt->lock);
    answer_later(env, h);
}

/* Of a hold: `held_nusd` leaves both budgets, `spent_nusd` of it as a charge; unused tokens go
 * back. Under the tenant's lock. */
static void hold_give_back(struct quota_tenant *qt, struct scope *key, struct quota_hold *h,
                           int64_t held_nusd, int64_t spent_nusd, int64_t in_unused,
                           int64_t out_unused)
{
    struct scope *s[] = {&qt->own, key};

    for (size_t i = 0; i < ARRAY_LEN(s); i++) {
        scope_settle(s[i], month_of_period(h->period), held_nusd, spent_nusd);
        scope_return(s[i], RATE_INPUT, in_unused, &h->taken[i][0]);
        scope_return(s[i], RATE_OUTPUT, out_unused, &h->taken[i][1]);
    }
    h->held_nusd -= held_nusd;
    h->in_tokens -= in_unused;
    h->out_tokens -= out_unused;
}

static int64_t excess(int64_t held, int64_t needed)
{
    CHECK(needed >= 0);
    return held > needed ? held - needed : 0;
}

void quota_trim(struct quota *q, struct quota_hold *h, int64_t in_tokens, int64_t nusd,
                uint64_t now_us)
{
    struct quota_tenant *qt = tenants_find(&q->tenants, h->tenant_id);

    (void)now_us;
    if (!h->active) {
        return;
    }
    CHECK(qt != NULL);
    pthread_mutex_lock(&qt->lock);
    hold_give_back(qt, tenant_key_find(qt, h->key_id), h, excess(h->held_nusd, nusd), 0,
                   excess(h->in_tokens, in_tokens), 0);
    pthread_mutex_unlock(&qt->lock);
}

/* The one end of a hold. */
static void hold_end(struct quota *q, struct quota_hold *h, int64_t nusd, int64_t in_tokens,
                     int64_t out_tokens)
{
    struct quota_tenant *qt = tenants_find(&q->tenants, h->tenant_id);
    struct scope *key;

    CHECK(qt != NULL && nusd >= 0 && nusd <= h->held_nusd);
    pthread_mutex_lock(&qt->lock);
    key = tenant_key_find(qt, h->key_id);
    CHECK(key != NULL && qt->own.concurrent > 0 && key->concurrent > 0);
    hold_give_back(qt, key, h, h->held_nusd, nusd, excess(h->in_tokens, in_tokens),
                   excess(h->out_tokens, out_tokens));
    qt->own.concurrent--;
    key->concurrent--;
    pthread_mutex_unlock(&qt->lock);
    h->active = false;
    atomic_fetch_sub_explicit(&q->open_holds, 1, memory_order_relaxed);
}

void quota_settle(struct quota *q, struct quota_hold *h, int64_t nusd, int64_t in_tokens,
                  int64_t out_tokens, uint64_t now_us)
{
    (void)now_us;
    if (h->active) {
        hold_end(q, h, nusd, in_tokens, out_tokens);
    }
}

void quota_void(struct quota *q, struct quota_hold *h, uint64_t now_us)
{
    quota_settle(q, h, 0, 0, 0, now_us);
}

void quota_drop(struct quota *q, struct quota_hold *h, uint64_t now_us)
{
    env_task_drop(&h->task);
    quota_void(q, h, now_us);
}

/* The scope with the least left is the one that clients must mind. */
static void view_rate(const struct scope *s, enum scope_rate r, const struct quota_limits *l,
                      uint64_t now_us, int64_t v[3])
{
    static const struct gcra untouched;
    const struct gcra *g = s != NULL ? &s->rate[r] : &untouched;
    int64_t limit = scope_rate_limit(l, r), remaining;

    if (limit == QUOTA_NONE) {
        return;
    }
    remaining = gcra_remaining(g, limit, now_us);
    if (v[0] == QUOTA_NONE || remaining < v[1] || (remaining == v[1] && limit < v[0])) {
        v[0] = limit;
        v[1] = remaining;
        v[2] = (int64_t)((gcra_full_us(g, limit, now_us) + 999) / 1000);
    }
}

void quota_view(struct quota *q, const struct snap_tenant *t, const struct snap_key *k,
                uint64_t now_us, struct quota_view *out)
{
    int64_t requests[3] = {QUOTA_NONE, QUOTA_NONE, QUOTA_NONE},
            tokens[3] = {QUOTA_NONE, QUOTA_NONE, QUOTA_NONE};
    struct quota_tenant *qt = tenants_find(&q->tenants, t->tenant_id);
    const struct quota_limits *l[] = {&t->limits, &k->limits};
    const struct scope *s[2] = {NULL, NULL};

    if (qt != NULL) {
        pthread_mutex_lock(&qt->lock);
        s[0] = &qt->own;
        s[1] = tenant_key_find(qt, k->key_id);
    }
    for (size_t i = 0; i < ARRAY_LEN(s); i++) {
        view_rate(s[i], RATE_REQUESTS, l[i], now_us, requests);
        view_rate(s[i], RATE_INPUT, l[i], now_us, tokens);
        view_rate(s[i], RATE_OUTPUT, l[i], now_us, tokens);
    }
    if (qt != NULL) {
        pthread_mutex_unlock(&qt->lock);
    }
    *out =
        (struct quota_view){requests[0], requests[1], requests[2], tokens[0], tokens[1], tokens[2]};
}

bool quota_state(struct quota *q, int32_t tenant_id, int32_t key_id, struct quota_scope_state *out)
{
    struct quota_tenant *t = tenants_find(&q->tenants, tenant_id);
    const struct scope *s;

    *out = (struct quota_scope_state){0};
    if (t == NULL) {
        return false;
    }
    pthread_mutex_lock(&t->lock);
    s = key_id == 0 ? &t->own : tenant_key_find(t, key_id);
    if (s != NULL) {
        struct scope_budget b = scope_budget_of(s, t->month);

        *out = (struct quota_scope_state){period_of_month(t->month), b.spent_nusd, b.held_nusd,
                                          s->concurrent};
    }
    pthread_mutex_unlock(&t->lock);
    return s != NULL;
}

int64_t quota_open_holds(const struct quota *q)
{
    return atomic_load_explicit(&q->open_holds, memory_order_relaxed);
}
