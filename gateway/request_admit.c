/* request_admit.c - from a whole body to an admitted request: parse, bound, reserve, OPEN. */
#include "gateway/request.h"

#define ADMIT_PROMPT_EXTRA 64 /* tokens: the template's head (contracts, admission) */
#define ADMIT_PER_MESSAGE 16
#define ADMIT_PER_IMAGE 2048
#define ADMIT_FIRST_OUTPUT 512
#define ADMIT_OUTPUT_MAX                                                                           \
    (1 << 24) /* no context has this room: keeps tokens x price in an int64                        \
               */

static void quota_error(const struct request *r, struct api_error *e)
{
    const struct quota_verdict *v = &r->hold.verdict;
    const char *dim = quota_dim_name(v->dim), *scope = quota_scope_name(v->scope);

    switch (v->answer) {
    case QUOTA_RATE:
    case QUOTA_BUSY:
        api_error_set(e, 429,
                      v->dim == QUOTA_INPUT_TOKENS || v->dim == QUOTA_OUTPUT_TOKENS ? "tokens"
                                                                                    : "requests",
                      "rate_limit_exceeded", dim,
                      "Rate limit reached for %s on this %s: limit %lld, remaining %lld. Please "
                      "try again in %u.%03us.",
                      dim, scope, (long long)v->limit, (long long)v->remaining, v->retry_ms / 1000,
                      v->retry_ms % 1000);
        e->retry_ms = v->retry_ms > 0 ? v->retry_ms : 1000;
        return;
    case QUOTA_BUDGET:
        api_error_set(
            e, 429, "insufficient_quota", "insufficient_quota", dim,
            "What is left of this %s's budget for the month does not cover this request. It "
            "begins anew with the next month, or ask for a higher one.",
            scope);
        e->no_retry = true;
        return;
    case QUOTA_TOO_LARGE:
        api_error_set(e, 400, "invalid_request_error", "request_too_large_for_limit", dim,
                      "This request alone needs more than the %s limit of this %s (%lld) allows; "
                      "waiting cannot help. Send a shorter prompt or ask for fewer tokens.",
                      dim, scope, (long long)v->limit);
        return;
    default:
        api_error_unavailable(e, 1000, "The quota store is full.");
        return;
    }
}

static bool journal_open_record(struct request *r)
{
    struct record rec = {.type = RECORD_OPEN};

    rec.open.request = r->request_id;
    rec.open.occurred_us = r->begun_wall_us;
    rec.open.tenant_id = r->tenant->tenant_id;
    rec.open.project_id = r->key->project_id;
    rec.open.key_id = r->key->key_id;
    rec.open.user_id = r->key->user_id;
    rec.open.price_id = r->price->price_id;
    rec.open.endpoint = (int16_t)r->endpoint;
    rec.open.model_id = r->model->model_id;
    rec.open.tier_requested = (int16_t)r->api.tier;
    rec.open.tier_served = TIER_STANDARD;
    rec.open.hold_nusd = r->hold.held_nusd;
    rec.open.prompt_bound = (int32_t)r->prompt_bound;
    rec.open.output_bound = (int32_t)r->out_held;
    return journal_put(r->loop->port, &rec) != 0;
}

/* The cache's key of this tenant and model. A request may hold a world before the loop's. */
static struct prefix_key k0_of(const struct request *r)
{
    struct loop *l = r->loop;
    int64_t tenant = r->tenant->tenant_id;
    int16_t model = r->model->model_id;
    struct k0_entry *e = &l->k0[((uint64_t)tenant * 31 + (uint64_t)model) & (LOOP_K0_ENTRIES - 1)];
    struct prefix_key k;

    if (r->world == l->world && e->set && e->tenant_id == tenant && e->model_id == model) {
        return e->k0;
    }
    k = prefix_key_derive(l->gw->secrets.deployment, r->tenant->scope_salt, r->model->name,
                          (struct str){"", 0});
    if (r->world == l->world) {
        *e = (struct k0_entry){tenant, model, true, k};
    }
    return k;
}

static bool prefix_of(struct request *r)
{
    r->k0 = k0_of(r);
    if (r->endpoint == ENDPOINT_CHAT) {
        if (!prefix_chat(&r->arena, r->k0, r->api.root, &r->prefix)) {
            return false;
        }
    } else if (!prefix_completion(&r->arena, r->k0, r->api.prompt, &r->prefix)) {
        return false;
    }
    r->root = r->api.cache_key.p != NULL
                  ? prefix_root_of_key(r->k0, r->prefix.head, r->api.cache_key)
                  : r->prefix.root;
    return true;
}

static void on_reserved(struct request *r)
{
    struct api_error e = {0};

    if (r->hold.verdict.answer != QUOTA_GRANTED) {
        atomic_fetch_add_explicit(&r->loop->metrics.refused_quota, 1, memory_order_relaxed);
        quota_error(r, &e);
        request_fail(r, &e);
        return;
    }
    if (!prefix_of(r) || !journal_open_record(r)) {
        api_error_unavailable(&e, 1000, "The gateway is at its limit of waiting journal records.");
        request_fail(r, &e);
        return;
    }
    r->opened = true;
    request_set_state(r, REQ_QUEUED);
    request_route(r);
}

static void on_quota(struct quota_hold *h)
{
    struct request *r = CONTAINER_OF(h, struct request, hold);
    bool granted = h->verdict.answer == QUOTA_GRANTED;

    if (r->asking == ASK_RESERVE) {
        on_reserved(r);
        return;
    }
    r->extending = false;
    if (granted) {
        r->out_held += r->extend_tokens;
        r->last_progress_us = 0; /* the next chunk's PROGRESS says so, long before it is used */
    } else {
        r->extend_refused = true;
    }
    if (r->asking == ASK_EXTEND_WHOLE) {
        request_dispatch(r);
    } else if (!r->paused) {
        proxy_resume(&r->attempt);
    }
}

/* Asks for `tokens` more output; on_quota takes the answer before this turn ends. Until then the
 * worker's bytes rest: a burst must not run past a hold that is about to grow. */
void request_extend(struct request *r, int64_t tokens, bool whole)
{
    const struct loop *l = r->loop;

    r->asking = whole ? ASK_EXTEND_WHOLE : ASK_EXTEND;
    r->extending = true;
    r->extend_tokens = tokens;
    proxy_pause(&r->attempt);
    quota_extend(l->gw->quota, l->env, &r->hold, r->tenant, r->key, tokens,
                 money_nusd_ceil(price_bound(r->price, 0, tokens)));
}

static bool find_model(struct request *r, struct api_error *e)
{
    const struct snapshot *snap = r->world->snap;

    r->model = snapshot_model(snap, r->api.model);
    if (r->model == NULL || !world_serves(r->world, r->model->model_id)) {
        api_error_no_model(e, r->api.model);
        return false;
    }
    r->price =
        snapshot_price(snap, r->model->model_id, TIER_STANDARD, r->prompt_bound, r->begun_wall_us);
    if (r->price == NULL) {
        log_event(r->loop->gw->log, LOG_WARN, r->begun_wall_us, "model_not_priced",
                  "model " STR_FMT " has no price: refused. tollctl price publish",
                  STR_ARG(r->model->name));
        api_error_not_priced(e, r->api.model);
        return false;
    }
    return true;
}

static struct str answer_id(struct request *r)
{
    struct str kind = r->endpoint == ENDPOINT_CHAT ? STR("chatcmpl-") : STR("cmpl-");

    memcpy(r->answer_id, kind.p, kind.n);
    memcpy(r->answer_id + kind.n, r->id_text, sizeof(r->id_text));
    return str_of(r->answer_id, kind.n + sizeof(r->id_text) - 1);
}

void request_admit(struct request *r)
{
    struct loop *l = r->loop;
    struct api_error e = {0};
    int64_t bound_out;

    if (!openai_parse(&r->arena, r->endpoint, buf_view(&r->body), &r->api, &e)) {
        atomic_fetch_add_explicit(&l->metrics.refused_input, 1, memory_order_relaxed);
        request_fail(r, &e);
        return;
    }
    r->prompt_bound = (int64_t)r->api.text_bytes + ADMIT_PROMPT_EXTRA +
                      ADMIT_PER_MESSAGE * (int64_t)r->api.messages +
                      ADMIT_PER_IMAGE * (int64_t)r->api.images;
    if (!find_model(r, &e)) {
        request_fail(r, &e);
        return;
    }
    r->out_limit = INT64_MAX;
    if (r->api.max_tokens >= 0) {
        r->out_limit = r->api.max_tokens < ADMIT_OUTPUT_MAX ? r->api.max_tokens : ADMIT_OUTPUT_MAX;
    }
    if (r->model->output_max > 0 && r->out_limit > r->model->output_max) {
        r->out_limit = r->model->output_max;
    }
    bound_out = r->out_limit < ADMIT_FIRST_OUTPUT ? r->out_limit : ADMIT_FIRST_OUTPUT;
    if (r->model->context > 0 && bound_out > r->model->context) {
        bound_out = r->model->context;
    }
    if (r->api.max_tokens <
        0) { /* nobody asked for more than the tightest output rate lets through */
        int64_t most = quota_output_max(r->tenant, r->key);

        bound_out = bound_out < most ? bound_out : most;
    }
    r->out_held = bound_out;
    r->answer = (struct openai_answer){
        r->endpoint,    answer_id(r),         r->begun_wall_us / 1000000,
        r->model->name, r->api.include_usage, r->api.tier_echo,
    };
    request_set_state(r, REQ_ADMITTING);
    r->hold.on_answer = on_quota;
    r->asking = ASK_RESERVE;
    quota_reserve(l->gw->quota, l->env, &r->hold, r->tenant, r->key, r->prompt_bound, bound_out,
                  money_nusd_ceil(price_bound(r->price, r->prompt_bound, bound_out)));
}
