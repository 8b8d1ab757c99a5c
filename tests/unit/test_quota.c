/* test_quota.c - invariant 1 (no overshoot) and what each refusal says. Time is turned by hand. */
#include "admit_env.h"
#include "gateway/admit/quota.h"

#include <stdlib.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define NO_LIMITS                                                                                  \
    {                                                                                              \
        QUOTA_NONE, QUOTA_NONE, QUOTA_NONE, QUOTA_NONE, QUOTA_NONE                                 \
    }
#define MONTH 202610 /* of ADMIT_ENV_WALL_US */
#define NEXT_MONTH_US (ADMIT_ENV_WALL_US + 29ull * 86400 * 1000000)

struct bed { /* one tenant, one key, a store */
    struct admit_env env;
    struct quota *q;
    struct snap_tenant t;
    struct snap_key k;
};

struct held { /* one hold and how often it was answered */
    struct quota_hold h;
    unsigned answers;
};

static void on_answer(struct quota_hold *h)
{
    CONTAINER_OF(h, struct held, h)->answers++;
}

static void bed_init(struct bed *b)
{
    admit_env_init(&b->env, 1);
    b->q = quota_new();
    b->t = (struct snap_tenant){.tenant_id = 1, .limits = NO_LIMITS};
    b->k = (struct snap_key){.key_id = 11, .tenant_id = 1, .limits = NO_LIMITS};
}

static void bed_fini(struct bed *b)
{
    assert_int_equal(quota_open_holds(b->q), 0);
    quota_free(b->q);
}

static enum quota_answer reserve(struct bed *b, struct held *h, int64_t in, int64_t out,
                                 int64_t nusd)
{
    unsigned before = h->answers;

    h->h.on_answer = on_answer;
    quota_reserve(b->q, &b->env.env, &h->h, &b->t, &b->k, in, out, nusd);
    assert_int_equal(h->answers, before); /* never inside the call */
    admit_env_turn(&b->env);
    assert_int_equal(h->answers, before + 1);
    return h->h.verdict.answer;
}

static enum quota_answer extend(struct bed *b, struct held *h, int64_t out, int64_t nusd)
{
    unsigned before = h->answers;

    quota_extend(b->q, &b->env.env, &h->h, &b->t, &b->k, out, nusd);
    assert_int_equal(h->answers, before);
    admit_env_turn(&b->env);
    assert_int_equal(h->answers, before + 1);
    return h->h.verdict.answer;
}

static void settle(struct bed *b, struct held *h, int64_t nusd, int64_t in, int64_t out)
{
    quota_settle(b->q, &h->h, nusd, in, out, b->env.now_us);
}

static struct quota_scope_state state_of(struct bed *b, int32_t key_id)
{
    struct quota_scope_state s;

    assert_true(quota_state(b->q, b->t.tenant_id, key_id, &s));
    return s;
}

static struct quota_view view_of(struct bed *b)
{
    struct quota_view v;

    quota_view(b->q, &b->t, &b->k, b->env.now_us, &v);
    return v;
}

static void without_limits_all_is_granted_and_counted(void **state)
{
    struct bed b;
    struct held h = {0};

    (void)state;
    bed_init(&b);
    assert_int_equal(reserve(&b, &h, 1000, 512, 5000), QUOTA_GRANTED);
    assert_int_equal(h.h.period, MONTH);
    assert_int_equal(state_of(&b, 0).held_nusd, 5000);
    assert_int_equal(state_of(&b, 11).held_nusd, 5000);
    assert_int_equal(state_of(&b, 0).concurrent, 1);
    assert_int_equal(quota_open_holds(b.q), 1);
    settle(&b, &h, 1234, 10, 20);
    settle(&b, &h, 1234, 10, 20); /* a second one does nothing */
    quota_void(b.q, &h.h, b.env.now_us);
    assert_int_equal(state_of(&b, 0).spent_nusd, 1234);
    assert_int_equal(state_of(&b, 0).held_nusd, 0);
    assert_int_equal(state_of(&b, 11).spent_nusd, 1234);
    assert_int_equal(state_of(&b, 11).concurrent, 0);
    assert_int_equal(view_of(&b).requests_limit, -1);
    assert_int_equal(view_of(&b).tokens_limit, -1);
    bed_fini(&b);
}

static void requests_a_minute_refuse_the_fourth_and_say_when(void **state)
{
    struct bed b;
    struct held h[4] = {0};

    (void)state;
    bed_init(&b);
    b.k.limits.requests_per_min = 3;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(reserve(&b, &h[i], 1, 1, 1), QUOTA_GRANTED);
        quota_void(b.q, &h[i].h, b.env.now_us); /* a voided request still counts as one */
        assert_int_equal(view_of(&b).requests_remaining, 2 - i);
    }
    assert_int_equal(reserve(&b, &h[3], 1, 1, 1), QUOTA_RATE);
    assert_int_equal(h[3].h.verdict.dim, QUOTA_REQUESTS);
    assert_int_equal(h[3].h.verdict.scope, QUOTA_SCOPE_KEY);
    assert_int_equal(h[3].h.verdict.limit, 3);
    assert_int_equal(h[3].h.verdict.remaining, 0);
    assert_int_equal(h[3].h.verdict.retry_ms, 20000);
    assert_int_equal(view_of(&b).requests_reset_ms, 60000);
    b.env.now_us += 20000000;
    assert_int_equal(reserve(&b, &h[3], 1, 1, 1), QUOTA_GRANTED);
    settle(&b, &h[3], 0, 0, 0);
    bed_fini(&b);
}

/* The bound of a small prompt is bytes + 64 + 16 a message: far more than its tokens, and it
 * passes. */
static void a_small_first_request_passes_a_small_token_limit(void **state)
{
    struct bed b;
    struct held h = {0}, large = {0};

    (void)state;
    bed_init(&b);
    b.k.limits.input_tokens_per_min = 200;
    assert_int_equal(reserve(&b, &large, 2000 * 5 + 80, 8, 1), QUOTA_TOO_LARGE);
    assert_int_equal(large.h.verdict.dim, QUOTA_INPUT_TOKENS);
    assert_int_equal(large.h.verdict.limit, 200);
    assert_int_equal(large.h.verdict.retry_ms, 0);
    assert_int_equal(reserve(&b, &h, 30 + 64 + 16, 8, 1), QUOTA_GRANTED);
    assert_int_equal(view_of(&b).tokens_remaining, 90);
    quota_trim(b.q, &h.h, 12, 1, b.env.now_us); /* the worker counted */
    assert_int_equal(view_of(&b).tokens_remaining, 188);
    settle(&b, &h, 1, 12, 3);
    assert_int_equal(view_of(&b).tokens_remaining, 188);
    assert_int_equal(reserve(&b, &h, 188, 8, 1), QUOTA_GRANTED);
    assert_int_equal(view_of(&b).tokens_remaining, 0);
    settle(&b, &h, 1, 188, 3);
    bed_fini(&b);
}

static void a_refusal_writes_nothing(void **state)
{
    struct bed b;
    struct held h = {0};
    struct quota_view before, after;

    (void)state;
    bed_init(&b);
    b.t.limits = (struct quota_limits){10, 1000, 1000, 5, 1000000};
    b.k.limits = (struct quota_limits){10, 1000, 100, 5, 1000000};
    before = view_of(&b);
    assert_int_equal(reserve(&b, &h, 10, 101, 10), QUOTA_TOO_LARGE); /* the key's last dimension */
    assert_false(h.h.active);
    after = view_of(&b);
    assert_memory_equal(&before, &after, sizeof(before));
    assert_int_equal(state_of(&b, 0).held_nusd, 0);
    assert_int_equal(state_of(&b, 0).concurrent, 0);
    quota_drop(b.q, &h.h, b.env.now_us);
    settle(&b, &h, 5, 1, 1); /* of nothing: does nothing */
    assert_int_equal(state_of(&b, 0).spent_nusd, 0);
    bed_fini(&b);
}

static void concurrency_is_busy_until_one_ends(void **state)
{
    struct bed b;
    struct held h[2] = {0};

    (void)state;
    bed_init(&b);
    b.t.limits.concurrent = 1;
    assert_int_equal(reserve(&b, &h[0], 1, 1, 1), QUOTA_GRANTED);
    assert_int_equal(reserve(&b, &h[1], 1, 1, 1), QUOTA_BUSY);
    assert_int_equal(h[1].h.verdict.dim, QUOTA_CONCURRENT);
    assert_int_equal(h[1].h.verdict.scope, QUOTA_SCOPE_TENANT);
    assert_int_equal(h[1].h.verdict.retry_ms, 1000);
    settle(&b, &h[0], 1, 1, 1);
    assert_int_equal(reserve(&b, &h[1], 1, 1, 1), QUOTA_GRANTED);
    settle(&b, &h[1], 1, 1, 1);
    bed_fini(&b);
}

/* Limit 200,000 nano-USD. */
static void a_budget_is_busy_when_held_and_spent_when_spent(void **state)
{
    struct bed b;
    struct held h[3] = {0};

    (void)state;
    bed_init(&b);
    b.k.limits.budget_month_pusd = 200000999; /* the part below a nano-USD is not given out */
    assert_int_equal(reserve(&b, &h[0], 1, 1, 150000), QUOTA_GRANTED);
    assert_int_equal(reserve(&b, &h[1], 1, 1, 60000), QUOTA_BUSY);
    assert_int_equal(h[1].h.verdict.dim, QUOTA_BUDGET_MONTH);
    assert_int_equal(h[1].h.verdict.remaining, 50000000);
    assert_int_equal(h[1].h.verdict.limit, 200000999);
    assert_int_equal(h[1].h.verdict.retry_ms, 1000);
    assert_int_equal(reserve(&b, &h[2], 1, 1, 200001), QUOTA_TOO_LARGE);
    settle(&b, &h[0], 145000, 1, 1);
    assert_int_equal(reserve(&b, &h[1], 1, 1, 60000), QUOTA_BUDGET);
    assert_int_equal(h[1].h.verdict.retry_ms, 0);
    assert_int_equal(reserve(&b, &h[1], 1, 1, 55000), QUOTA_GRANTED);
    settle(&b, &h[1], 55000, 1, 1);
    assert_int_equal(reserve(&b, &h[1], 1, 1, 1), QUOTA_BUDGET);
    assert_int_equal(h[1].h.verdict.remaining, 0);
    assert_int_equal(reserve(&b, &h[1], 1, 1, 0),
                     QUOTA_GRANTED); /* what costs nothing always fits */
    settle(&b, &h[1], 0, 1, 1);
    b.k.limits.budget_month_pusd = 0;
    assert_int_equal(reserve(&b, &h[1], 1, 1, 1), QUOTA_BUDGET);
    bed_fini(&b);
}

/* Several refuse: what waiting cannot help comes first, then the longest wait. */
static void the_most_final_refusal_is_told(void **state)
{
    struct bed b;
    struct held first = {0}, h = {0};

    (void)state;
    bed_init(&b);
    b.t.limits.requests_per_min = 60;
    b.k.limits = (struct quota_limits){1, QUOTA_NONE, QUOTA_NONE, 1, 1000000};
    assert_int_equal(reserve(&b, &first, 1, 1, 900), QUOTA_GRANTED);
    assert_int_equal(reserve(&b, &h, 1, 1, 50), QUOTA_RATE); /* and concurrency is busy */
    assert_int_equal(h.h.verdict.retry_ms, 60000);
    assert_int_equal(reserve(&b, &h, 1, 1, 1001), QUOTA_TOO_LARGE);
    settle(&b, &first, 900, 1, 1);
    assert_int_equal(reserve(&b, &h, 1, 1, 101), QUOTA_BUDGET);
    b.t.limits.requests_per_min = 1; /* its bucket owes one of 60: now one of one */
    b.env.now_us += 30000000;
    assert_int_equal(reserve(&b, &h, 1, 1, 1), QUOTA_RATE);
    assert_int_equal(h.h.verdict.retry_ms, 30000);
    bed_fini(&b);
}

static void an_extend_takes_more_or_leaves_the_hold_as_it_was(void **state)
{
    struct bed b;
    struct held h = {0};

    (void)state;
    bed_init(&b);
    b.t.limits.output_tokens_per_min = 1200;
    b.k.limits.budget_month_pusd = 1200000;
    assert_int_equal(reserve(&b, &h, 10, 512, 500), QUOTA_GRANTED);
    assert_int_equal(extend(&b, &h, 512, 500), QUOTA_GRANTED);
    assert_int_equal(h.h.out_tokens, 1024);
    assert_int_equal(h.h.held_nusd, 1000);
    assert_int_equal(extend(&b, &h, 512, 100), QUOTA_RATE);
    assert_int_equal(extend(&b, &h, 10, 500), QUOTA_BUSY); /* its own hold is in the way */
    assert_int_equal(h.h.out_tokens, 1024);
    assert_int_equal(h.h.held_nusd, 1000);
    assert_int_equal(state_of(&b, 11).held_nusd, 1000);
    assert_int_equal(state_of(&b, 11).concurrent, 1);
    settle(&b, &h, 1000, 10, 1000);
    assert_int_equal(state_of(&b, 11).held_nusd, 0);
    assert_int_equal(view_of(&b).tokens_remaining, 200);
    bed_fini(&b);
}

static void a_drop_before_the_answer_voids_the_hold(void **state)
{
    struct bed b;
    struct held h = {.h.on_answer = on_answer};

    (void)state;
    bed_init(&b);
    b.k.limits.input_tokens_per_min = 100;
    quota_reserve(b.q, &b.env.env, &h.h, &b.t, &b.k, 60, 1, 77);
    quota_drop(b.q, &h.h, b.env.now_us);
    admit_env_turn(&b.env);
    assert_int_equal(h.answers, 0);
    assert_int_equal(state_of(&b, 0).held_nusd, 0);
    assert_int_equal(view_of(&b).tokens_remaining, 100);
    assert_int_equal(reserve(&b, &h, 60, 1, 77), QUOTA_GRANTED);
    quota_extend(b.q, &b.env.env, &h.h, &b.t, &b.k, 5, 5);
    quota_drop(b.q, &h.h, b.env.now_us);
    quota_drop(b.q, &h.h, b.env.now_us);
    admit_env_turn(&b.env);
    assert_int_equal(h.answers, 1);
    assert_int_equal(state_of(&b, 11).held_nusd, 0);
    bed_fini(&b);
}

static void trim_never_raises(void **state)
{
    struct bed b;
    struct held h = {0};

    (void)state;
    bed_init(&b);
    assert_int_equal(reserve(&b, &h, 100, 10, 1000), QUOTA_GRANTED);
    quota_trim(b.q, &h.h, 500, 5000, b.env.now_us);
    assert_int_equal(h.h.held_nusd, 1000);
    assert_int_equal(h.h.in_tokens, 100);
    quota_trim(b.q, &h.h, 20, 300, b.env.now_us);
    assert_int_equal(state_of(&b, 0).held_nusd, 300);
    assert_int_equal(state_of(&b, 0).spent_nusd, 0);
    settle(&b, &h, 300, 20, 10);
    quota_trim(b.q, &h.h, 0, 0, b.env.now_us);
    assert_int_equal(state_of(&b, 0).spent_nusd, 300);
    bed_fini(&b);
}

static void what_was_spent_before_counts(void **state)
{
    struct bed b;
    struct held h = {0};
    struct entry row = {
        .tenant_id = 1, .key_id = 11, .occurred_us = ADMIT_ENV_WALL_US, .cost_pusd = 5001};

    (void)state;
    bed_init(&b);
    b.k.limits.budget_month_pusd = 1000000; /* 1,000 nano-USD; set after it was spent */
    quota_seed(b.q, 1, 0, MONTH, 5000);
    quota_seed(b.q, 1, 11, MONTH, 900);
    quota_seed_row(b.q, &row); /* 5.001 nano-USD count as 6 */
    assert_int_equal(state_of(&b, 0).spent_nusd, 5006);
    assert_int_equal(state_of(&b, 11).spent_nusd, 906);
    assert_int_equal(reserve(&b, &h, 1, 1, 95), QUOTA_BUDGET);
    assert_int_equal(reserve(&b, &h, 1, 1, 94), QUOTA_GRANTED);
    settle(&b, &h, 94, 1, 1);
    quota_seed(b.q, 1, 11, 202606, 1); /* long gone: nothing to count it in */
    assert_int_equal(state_of(&b, 11).spent_nusd, 1000);
    bed_fini(&b);
}

static void a_new_month_begins_with_nothing_spent(void **state)
{
    struct bed b;
    struct held old = {0}, h = {0};

    (void)state;
    bed_init(&b);
    b.t.limits.budget_month_pusd = 1000000;
    assert_int_equal(reserve(&b, &old, 1, 1, 800), QUOTA_GRANTED);
    b.env.wall_us = NEXT_MONTH_US;
    assert_int_equal(reserve(&b, &h, 1, 1, 1000), QUOTA_GRANTED);
    assert_int_equal(h.h.period, 202611);
    assert_int_equal(state_of(&b, 0).period, 202611);
    assert_int_equal(state_of(&b, 0).held_nusd, 1000);
    /* The old hold lives on in its own month, which has 200 left. */
    assert_int_equal(extend(&b, &old, 1, 201), QUOTA_BUSY);
    assert_int_equal(extend(&b, &old, 1, 200), QUOTA_GRANTED);
    settle(&b, &old, 1000, 1, 2);
    assert_int_equal(state_of(&b, 0).spent_nusd, 0);
    settle(&b, &h, 10, 1, 1);
    assert_int_equal(state_of(&b, 0).spent_nusd, 10);
    /* A loop whose clock is a little behind still sees what the old month spent. */
    b.env.wall_us = ADMIT_ENV_WALL_US;
    assert_int_equal(reserve(&b, &h, 1, 1, 1), QUOTA_BUDGET);
    bed_fini(&b);
}

static void a_hold_older_than_last_month_ends_without_a_trace(void **state)
{
    struct bed b;
    struct held old = {0}, h = {0};

    (void)state;
    bed_init(&b);
    assert_int_equal(reserve(&b, &old, 1, 1, 800), QUOTA_GRANTED);
    b.env.wall_us =
        NEXT_MONTH_US + 61ull * 86400 * 1000000; /* January: December's neighbour took the place */
    assert_int_equal(reserve(&b, &h, 1, 1, 5), QUOTA_GRANTED);
    assert_int_equal(h.h.period, 202701);
    assert_int_equal(extend(&b, &old, 1, 1), QUOTA_BUDGET);
    settle(&b, &old, 800, 1, 1);
    assert_int_equal(state_of(&b, 0).spent_nusd, 0);
    assert_int_equal(state_of(&b, 0).concurrent, 1);
    settle(&b, &h, 5, 1, 1);
    assert_int_equal(state_of(&b, 0).spent_nusd, 5);
    bed_fini(&b);
}

static void months_are_utc_months(void **state)
{
    static const struct {
        uint64_t s;
        int32_t period;
    } cases[] = {
        {0, 197001},          {2678399, 197001},    {2678400, 197002},    {951782400, 200002},
        {951868799, 200002},  {951868800, 200003},  {1709251199, 202402}, {1709251200, 202403},
        {1735689599, 202412}, {1735689600, 202501}, {4107542399, 210002}, {4107542400, 210003},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(quota_period(cases[i].s * 1000000), cases[i].period);
    }
}

static void a_limit_change_is_seen_by_the_next_request(void **state)
{
    struct bed b;
    struct held h[3] = {0};

    (void)state;
    bed_init(&b);
    assert_int_equal(reserve(&b, &h[0], 500, 1, 500), QUOTA_GRANTED);
    b.t.limits.input_tokens_per_min =
        100; /* the first took none of this bucket, so it returns none */
    b.t.limits.budget_month_pusd = 400000;
    assert_int_equal(reserve(&b, &h[1], 100, 1, 1), QUOTA_BUSY); /* 500 held of 400 */
    assert_true(h[1].h.verdict.remaining == 0);
    settle(&b, &h[0], 10, 1, 1);
    assert_int_equal(reserve(&b, &h[1], 100, 1, 1), QUOTA_GRANTED);
    assert_int_equal(view_of(&b).tokens_remaining, 0);
    assert_int_equal(reserve(&b, &h[2], 1, 1, 1), QUOTA_RATE);
    settle(&b, &h[1], 1, 40, 1);
    assert_int_equal(view_of(&b).tokens_remaining, 60);
    bed_fini(&b);
}

/* Taken before its scope had a limit: nothing of it is in the bucket, so nothing goes back. */
static void tokens_that_no_bucket_gave_do_not_return_to_one(void **state)
{
    struct bed b;
    struct held h[2] = {0};

    (void)state;
    bed_init(&b);
    assert_int_equal(reserve(&b, &h[0], 500, 1, 1), QUOTA_GRANTED);
    b.t.limits.input_tokens_per_min = 100;
    assert_int_equal(reserve(&b, &h[1], 100, 1, 1), QUOTA_GRANTED);
    quota_trim(b.q, &h[0].h, 300, 1, b.env.now_us);
    settle(&b, &h[0], 1, 10, 1);
    assert_int_equal(view_of(&b).tokens_remaining, 0);
    settle(&b, &h[1], 1, 100, 1);
    bed_fini(&b);
}

static void the_view_tells_the_tightest(void **state)
{
    struct bed b;
    struct held h = {0};

    (void)state;
    bed_init(&b);
    b.t.limits = (struct quota_limits){100, 1000, 900, QUOTA_NONE, QUOTA_NONE};
    b.k.limits = (struct quota_limits){50, 5000, QUOTA_NONE, QUOTA_NONE, QUOTA_NONE};
    assert_int_equal(view_of(&b).requests_limit, 50);
    assert_int_equal(view_of(&b).tokens_limit, 900);
    assert_int_equal(view_of(&b).tokens_reset_ms, 0);
    assert_int_equal(reserve(&b, &h, 500, 100, 1), QUOTA_GRANTED);
    assert_int_equal(view_of(&b).requests_remaining, 49);
    assert_int_equal(view_of(&b).tokens_limit, 1000);
    assert_int_equal(view_of(&b).tokens_remaining, 500);
    assert_int_equal(view_of(&b).tokens_reset_ms, 30000);
    settle(&b, &h, 0, 500, 100);
    assert_int_equal(quota_output_max(&b.t, &b.k), 900);
    b.t.limits.output_tokens_per_min = QUOTA_NONE;
    assert_true(quota_output_max(&b.t, &b.k) == INT64_MAX);
    bed_fini(&b);
}

/* Bound reached: one tenant more, one key more. */
static void tables_refuse_beyond_their_bounds(void **state)
{
    struct bed b;
    struct held h = {0};
    struct quota_scope_state s;

    (void)state;
    bed_init(&b);
    for (int32_t i = 1; i <= QUOTA_KEYS_PER_TENANT_MAX; i++) {
        b.k.key_id = i;
        assert_int_equal(reserve(&b, &h, 1, 1, i), QUOTA_GRANTED);
        settle(&b, &h, i, 1, 1);
    }
    b.k.key_id++;
    assert_int_equal(reserve(&b, &h, 1, 1, 1), QUOTA_FULL);
    for (int32_t i = 1; i <= QUOTA_KEYS_PER_TENANT_MAX; i++) {
        assert_true(quota_state(b.q, 1, i, &s) && s.spent_nusd == i);
    }
    b.k.key_id = 1;
    for (int32_t i = 2; i <= QUOTA_TENANTS_MAX; i++) {
        quota_seed(b.q, i * 7, 0, MONTH, i);
    }
    b.t.tenant_id = 3;
    assert_int_equal(reserve(&b, &h, 1, 1, 1), QUOTA_FULL);
    assert_false(quota_state(b.q, 3, 0, &s));
    for (int32_t i = 2; i <= QUOTA_TENANTS_MAX; i++) {
        assert_true(quota_state(b.q, i * 7, 0, &s) && s.spent_nusd == i);
    }
    bed_fini(&b);
}

static void random_limits(struct admit_env *e, struct quota_limits *l)
{
    *l = (struct quota_limits){
        admit_env_next(e) % 4 == 0 ? QUOTA_NONE : (int64_t)(admit_env_next(e) % 200),
        admit_env_next(e) % 4 == 0 ? QUOTA_NONE : (int64_t)(admit_env_next(e) % 20000),
        admit_env_next(e) % 4 == 0 ? QUOTA_NONE : (int64_t)(admit_env_next(e) % 20000),
        admit_env_next(e) % 4 == 0 ? QUOTA_NONE : (int64_t)(admit_env_next(e) % 12),
        admit_env_next(e) % 4 == 0 ? QUOTA_NONE : (int64_t)(admit_env_next(e) % 20000000),
    };
}

static int64_t limit_nusd(const struct quota_limits *l)
{
    return l->budget_month_pusd < 0 ? INT64_MAX : l->budget_month_pusd / 1000;
}

/* What retry_ms says is true: with nobody else asking, then it is not refused for rate. */
static void a_rate_refusal_told_the_truth(struct bed *b, struct held *h, int64_t in, int64_t out)
{
    struct quota_verdict v = h->h.verdict;

    assert_true(v.retry_ms >= 1 && v.retry_ms <= 60000 && v.remaining >= 0 && v.limit >= 0);
    b->env.now_us += (uint64_t)v.retry_ms * 1000;
    if (reserve(b, h, in, out, 0) != QUOTA_GRANTED) {
        assert_int_not_equal(h->h.verdict.answer, QUOTA_RATE);
    }
    quota_void(b->q, &h->h, b->env.now_us);
}

#define PROPERTY_HOLDS 16

static void random_step(struct bed *b, struct held *h, struct quota_scope_state sum[2])
{
    struct admit_env *e = &b->env;
    int64_t in = (int64_t)(admit_env_next(e) % 3000), out = (int64_t)(admit_env_next(e) % 600);
    int64_t nusd = (int64_t)(admit_env_next(e) % 4000);

    if (!h->h.active) {
        if (reserve(b, h, in, out, nusd) == QUOTA_RATE && admit_env_next(e) % 16 == 0) {
            a_rate_refusal_told_the_truth(b, h, in, out);
        }
        return;
    }
    switch (admit_env_next(e) % 5) {
    case 0:
        extend(b, h, out, nusd);
        return;
    case 1:
        quota_trim(b->q, &h->h, in, nusd, e->now_us);
        return;
    case 2:
        quota_void(b->q, &h->h, e->now_us);
        return;
    case 3:
        quota_drop(b->q, &h->h, e->now_us);
        return;
    default:
        nusd = nusd < h->h.held_nusd ? nusd : h->h.held_nusd;
        sum[0].spent_nusd += nusd;
        sum[1].spent_nusd += nusd;
        settle(b, h, nusd, in, out);
        return;
    }
}

/* Random steps over random limits: never over a limit, held is exactly the sum of the holds, spent
 * the sum of the charges, and all returns to zero. */
static void random_steps_never_overshoot(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct held h[PROPERTY_HOLDS] = {0};
        struct quota_scope_state sum[2] = {0};
        struct bed b;

        bed_init(&b);
        b.env.random = seed * 1000;
        random_limits(&b.env, &b.t.limits);
        random_limits(&b.env, &b.k.limits);
        for (int step = 0; step < 1000; step++) {
            random_step(&b, &h[admit_env_next(&b.env) % PROPERTY_HOLDS], sum);
            b.env.now_us += admit_env_next(&b.env) % 300000;
            for (int scope = 0; scope < 2; scope++) {
                const struct quota_limits *l = scope == 0 ? &b.t.limits : &b.k.limits;
                struct quota_scope_state s = state_of(&b, scope == 0 ? 0 : 11);
                int64_t held = 0, n = 0;

                for (int i = 0; i < PROPERTY_HOLDS; i++) {
                    held += h[i].h.active ? h[i].h.held_nusd : 0;
                    n += h[i].h.active;
                }
                assert_int_equal(s.held_nusd, held);
                assert_int_equal(s.spent_nusd, sum[scope].spent_nusd);
                assert_int_equal(s.concurrent, n);
                assert_true(s.spent_nusd + s.held_nusd <= limit_nusd(l));
                assert_true(l->concurrent < 0 || n <= l->concurrent);
            }
        }
        for (int i = 0; i < PROPERTY_HOLDS; i++) {
            quota_drop(b.q, &h[i].h, b.env.now_us);
        }
        assert_int_equal(state_of(&b, 0).held_nusd, 0);
        assert_int_equal(state_of(&b, 11).concurrent, 0);
        bed_fini(&b);
    }
}

static void names_are_the_fields_words(void **state)
{
    (void)state;
    assert_string_equal(quota_dim_name(QUOTA_REQUESTS), "requests_per_min");
    assert_string_equal(quota_dim_name(QUOTA_BUDGET_MONTH), "budget_month");
    assert_string_equal(quota_dim_name((enum quota_dim)0), "none");
    assert_string_equal(quota_scope_name(QUOTA_SCOPE_KEY), "key");
    assert_string_equal(quota_scope_name((enum quota_scope)9), "none");
}

/* Auckland's October 2026 begins 11 hours before UTC's, and ends 13 before. */
static void a_budget_month_is_the_tenants_own(void **state)
{
    const uint64_t hour = 3600000000, utc_november = 1793491200000000;
    struct entry row = {.tenant_id = 1, .key_id = 11, .cost_pusd = 1000};
    struct bed b;

    (void)state;
    bed_init(&b);
    b.t.month_from_us = 1790812800000000 - 12 * hour;
    b.t.month_until_us = utc_november - 13 * hour;
    assert_int_equal(quota_period_of(&b.t, b.t.month_from_us), 202610);
    assert_int_equal(quota_period_of(&b.t, b.t.month_from_us - 1), 202609);
    assert_int_equal(quota_period_of(&b.t, b.t.month_until_us - 1), 202610);
    assert_int_equal(quota_period_of(&b.t, b.t.month_until_us), 202611);

    quota_seed_zone(b.q, &b.t);
    row.occurred_us = utc_november - 13 * hour - 1;
    quota_seed_row(b.q, &row);
    assert_int_equal(state_of(&b, 0).period, 202610);
    assert_int_equal(state_of(&b, 0).spent_nusd, 1);
    row.occurred_us = utc_november - 13 * hour; /* November there, October in UTC */
    quota_seed_row(b.q, &row);
    assert_int_equal(state_of(&b, 0).period, 202611);
    assert_int_equal(state_of(&b, 0).spent_nusd, 1);
    bed_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_budget_month_is_the_tenants_own),
        cmocka_unit_test(without_limits_all_is_granted_and_counted),
        cmocka_unit_test(requests_a_minute_refuse_the_fourth_and_say_when),
        cmocka_unit_test(a_small_first_request_passes_a_small_token_limit),
        cmocka_unit_test(a_refusal_writes_nothing),
        cmocka_unit_test(concurrency_is_busy_until_one_ends),
        cmocka_unit_test(a_budget_is_busy_when_held_and_spent_when_spent),
        cmocka_unit_test(the_most_final_refusal_is_told),
        cmocka_unit_test(an_extend_takes_more_or_leaves_the_hold_as_it_was),
        cmocka_unit_test(a_drop_before_the_answer_voids_the_hold),
        cmocka_unit_test(trim_never_raises),
        cmocka_unit_test(what_was_spent_before_counts),
        cmocka_unit_test(a_new_month_begins_with_nothing_spent),
        cmocka_unit_test(a_hold_older_than_last_month_ends_without_a_trace),
        cmocka_unit_test(months_are_utc_months),
        cmocka_unit_test(a_limit_change_is_seen_by_the_next_request),
        cmocka_unit_test(tokens_that_no_bucket_gave_do_not_return_to_one),
        cmocka_unit_test(the_view_tells_the_tightest),
        cmocka_unit_test(tables_refuse_beyond_their_bounds),
        cmocka_unit_test(random_steps_never_overshoot),
        cmocka_unit_test(names_are_the_fields_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
