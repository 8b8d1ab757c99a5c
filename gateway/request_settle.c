/* request_settle.c - the bill: the worker's count, the row, its CLOSE on the disk, then the tail.
 */
#include "gateway/request.h"

static void on_receipt(struct receipt *rc, const struct receipt_count *count)
{
    struct request *r = CONTAINER_OF(rc, struct request, receipt);

    if (count != NULL) {
        r->said = (struct usage_count){true, count->prompt, count->cached, count->completion, 0};
    }
    r->receipt_failed = count == NULL;
    /* Nothing was produced, and the worker says so itself: another one may try. */
    if (count == NULL || count->completion > 0 || r->broken || r->outcome == OUTCOME_CLIENT_ABORT) {
        r->after = AFTER_ANSWER;
    } else if (r->outcome != OUTCOME_CLAMPED && request_may_retry(r)) {
        r->after = AFTER_RETRY;
    }
    request_settle(r, r->outcome);
}

/* The stream ended before the worker said its last word: our worker is asked (and stopped), others
 * are billed by what was seen. */
void request_count(struct request *r, enum outcome o)
{
    r->outcome = o;
    request_set_state(r, REQ_SETTLING);
    if (!request_is_ours(r)) {
        request_settle(r, o);
        return;
    }
    r->receipt.done = on_receipt;
    receipt_ask(&r->receipt, r->loop->env, loop_origin(r->loop, r->attempt.worker),
                r->loop->gw->secrets.worker_key, r->attempt.event);
}

static void bill(struct request *r)
{
    const struct worker *w = r->attempt.worker;
    struct usage_bill_input in = {
        .said = r->said,
        .ours = request_is_ours(r),
        .prompt_bound = r->prompt_bound,
        .output_bound = r->out_held,
        .content_events = r->content_events,
        .answer_bytes = r->answer_bytes,
        .prompt_bytes = r->prefix.text_bytes,
        .bytes_per_token =
            (double)atomic_load_explicit(&w->bytes_per_token_milli, memory_order_relaxed) / 1000.0,
        .streamed = r->attempt.stream,
        .produced = r->content_events > 0 || r->finish != FINISH_NONE ||
                    (request_is_ours(r) && r->said.completion > 0) || r->answer_bytes > 0,
    };

    usage_bill(&in, &r->billed, &r->usage_state);
    if (r->receipt_failed) {
        r->usage_state = USAGE_UNKNOWN;
    }
}

static int32_t us32(uint64_t us)
{
    return us > INT32_MAX ? INT32_MAX : (int32_t)us;
}

static void row(struct request *r)
{
    uint64_t now = env_now_us(r->loop->env);
    struct entry *e = &r->close;

    *e = (struct entry){
        .occurred_us = r->begun_wall_us,
        .event = r->attempt.event,
        .request = r->request_id,
        .gateway_id = (int32_t)r->loop->gw->config.gateway_id,
        .tenant_id = r->tenant->tenant_id,
        .project_id = r->key->project_id,
        .key_id = r->key->key_id,
        .user_id = r->key->user_id,
        .worker_id = r->attempt.worker->worker_id,
        .price_id = r->price->price_id,
        .worker_epoch = atomic_load_explicit(&r->attempt.worker->epoch, memory_order_relaxed),
        .attempt = (int16_t)r->attempts,
        .endpoint = (int16_t)r->endpoint,
        .model_id = r->model->model_id,
        .tier_requested = (int16_t)r->api.tier,
        .tier_served = TIER_STANDARD,
        .kind = KIND_USAGE,
        .usage_state = (int16_t)r->usage_state,
        .outcome = (int16_t)r->outcome,
        .finish = (int16_t)(r->broken ? FINISH_ERROR : r->finish),
        .route_reason = (int16_t)r->attempt.reason,
        .tok = r->billed,
        .cached_predicted = (int32_t)r->attempt.predicted_cached,
        .cost_pusd = price_cost(r->price, &r->billed).pusd,
        .list_pusd = price_list_cost(r->price, &r->billed).pusd,
        .hold_nusd = r->hold.held_nusd,
        .queue_us = us32(r->dispatched_us - r->begun_us),
        .ttft_us = r->first_us != 0 ? us32(r->first_us - r->begun_us) : 0,
        .dur_us = us32(now - r->begun_us),
    };
    e->http_status = (int16_t)(r->responded || r->error.status == 0 ? 200 : r->error.status);
}

static void put_close(struct request *r);

static void ring_again(struct env_timer *t)
{
    put_close(CONTAINER_OF(t, struct request, linger));
}

static void put_close(struct request *r)
{
    struct loop *l = r->loop;
    struct record rec = {.type = RECORD_CLOSE, .close = r->close};

    r->ticket = journal_put(l->port, &rec);
    if (r->ticket == 0) {
        r->linger.fire = ring_again;
        env_timer_arm(l->env, &r->linger, env_now_us(l->env) + REQUEST_RING_FULL_US);
        return;
    }
    if (r->after == AFTER_RETRY && request_may_retry(r)) {
        r->after = AFTER_ANSWER;
        request_set_state(r, REQ_QUEUED);
        request_retry(r);
        return;
    }
    list_push_back(&l->settling, &r->settle_node);
}

void request_settle(struct request *r, enum outcome o)
{
    if (r->state != REQ_SETTLING) {
        request_set_state(r, REQ_SETTLING);
    }
    r->outcome = o;
    if (r->after == 0) {
        r->after = AFTER_ANSWER;
    }
    bill(r);
    if (tokens_prompt(&r->billed) + tokens_output(&r->billed) > 0) {
        r->after = AFTER_ANSWER; /* one hold pays for one attempt */
    }
    if (r->after == AFTER_ANSWER) {
        request_answer_tail(r); /* a whole answer borrows from the attempt: it ends after */
    }
    row(r);
    proxy_cancel(&r->attempt);
    r->settle_us = env_now_us(r->loop->env);
    put_close(r);
}

static void learn(struct request *r)
{
    struct loop_metrics *m = &r->loop->metrics;

    if (r->said.present && request_is_ours(r) && r->billed.out > 0) {
        worker_learn(r->attempt.worker, r->prefix.bytes, r->said.prompt, r->said.cached,
                     r->attempt.predicted_cached);
    }
    atomic_fetch_add_explicit(&m->tokens_in, (uint64_t)tokens_prompt(&r->billed),
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&m->tokens_cached, (uint64_t)r->billed.in_cached,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&m->tokens_out, (uint64_t)tokens_output(&r->billed),
                              memory_order_relaxed);
    hist_add(&m->durable_wait, env_now_us(r->loop->env) - r->settle_us);
    if (r->first_us != 0 && tokens_output(&r->billed) > 1) {
        hist_add(&m->tpot,
                 (r->settle_us - r->first_us) / (uint64_t)(tokens_output(&r->billed) - 1));
    }
}

bool request_voids_put(struct request *r)
{
    while (r->n_voids > 0) {
        struct record rec = {.type = RECORD_VOID};

        rec.voided.request = r->request_id;
        rec.voided.event = r->voids[0];
        if (journal_put(r->loop->port, &rec) == 0) {
            return false;
        }
        r->n_voids--;
        memmove(r->voids, r->voids + 1, r->n_voids * sizeof(r->voids[0]));
    }
    return true;
}

/* Must not be lost: after a restart the attempt would be an orphan, and its hold a suspense. */
static void put_void(struct request *r, struct uuid event)
{
    CHECK(r->n_voids < REQUEST_VOIDS_MAX);
    r->voids[r->n_voids++] = event;
    (void)request_voids_put(r); /* else when the request is gone, or with its next VOID */
}

/* No other attempt comes: without it the journal would wait for one. */
static void put_over(struct request *r)
{
    static const struct uuid whole = {{0}};

    if (r->opened) {
        put_void(r, whole);
    }
}

/* The CLOSE is on the disk: money first, then the client hears the end. */
static void finish(struct request *r)
{
    enum request_end_reason why = REQ_END_ANSWERED;
    bool answered = r->finish != FINISH_NONE && !r->broken;

    quota_settle(r->loop->gw->quota, &r->hold, money_nusd_ceil(money_of(r->close.cost_pusd)),
                 tokens_prompt(&r->billed), tokens_output(&r->billed), env_now_us(r->loop->env));
    learn(r);
    if (r->outcome == OUTCOME_WORKER_ERROR || r->outcome == OUTCOME_TIMEOUT ||
        r->outcome == OUTCOME_REFUSED_BY_WORKER) {
        put_over(r);
    }
    if (r->stream == NULL) {
        why = REQ_END_CLIENT_GONE;
    } else if (answered) {
        request_answer_send(r);
    } else {
        why = r->responded ? REQ_END_CUT : REQ_END_FAILED;
        if (r->error.status == 0) {
            api_error_upstream(&r->error);
        }
        request_answer_error(r, &r->error);
    }
    request_end(r, why);
}

void request_durable(struct loop *l, uint64_t ticket)
{
    while (!list_is_empty(&l->settling)) {
        struct request *r = CONTAINER_OF(l->settling.next, struct request, settle_node);

        if (r->ticket > ticket) {
            return;
        }
        list_remove(&r->settle_node);
        finish(r);
    }
}

void request_void_attempt(struct request *r)
{
    put_void(r, r->attempt.event);
}

void request_fail(struct request *r, const struct api_error *e)
{
    put_over(r);
    request_answer_error(r, e);
    request_end(r, r->attempts > 0 ? REQ_END_FAILED : REQ_END_REFUSED);
}

void request_client_gone(struct request *r)
{
    switch (r->state) {
    case REQ_DISPATCHED:
    case REQ_STREAMING:
        proxy_cancel(&r->attempt);
        request_count(r, OUTCOME_CLIENT_ABORT);
        return;
    case REQ_SETTLING:
        return; /* the row is on its way; it ends there */
    default:
        put_over(r);
        request_end(r, REQ_END_CLIENT_GONE);
        return;
    }
}
