/* sim_check.c - what must hold: at every turn, at quiet, in the end. The numbers are those of the
 * design's invariants. */
#include "sim_world.h"

#include <stdio.h>

/* A stream is paused above 4 KiB, but one read of its worker's may still come through, grown. */
#define STREAM_BYTES_MAX (80 << 10)
#define STOP_US 2500000 /* latencies, and stalls of the network */

/* ---- invariant 1: no overshoot ---- */

static int64_t limit_nusd(const struct quota_limits *l)
{
    return l->budget_month_pusd / 1000;
}

static void check_budget(struct world_sim *w, int32_t tenant, int32_t key,
                         const struct quota_limits *l, int64_t seed_nusd)
{
    struct quota_scope_state s;
    int64_t most = limit_nusd(l) > seed_nusd ? limit_nusd(l) : seed_nusd;

    if (quota_state(w->gw->quota, tenant, key, &s) && l->budget_month_pusd != QUOTA_NONE && w->up &&
        s.spent_nusd + s.held_nusd > most) {
        sim_fail(w->sim, "tenant %d key %d: spent %lld + held %lld > %lld nano-USD", tenant, key,
                 (long long)s.spent_nusd, (long long)s.held_nusd, (long long)most);
    }
    if (s.held_nusd < 0 || s.concurrent < 0) {
        sim_fail(w->sim, "tenant %d key %d: held %lld, %lld in flight", tenant, key,
                 (long long)s.held_nusd, (long long)s.concurrent);
    }
}

/* ---- invariant 8: what waits for a slow client is bounded ---- */

static void check_buffers(struct world_sim *w)
{
    struct http_server_stats stats;

    http_server_stats(w->gw->loop[0]->server, &stats);
    if (stats.buffered_bytes > stats.streams * STREAM_BYTES_MAX) {
        sim_fail(w->sim, "%llu streams hold %llu bytes", (unsigned long long)stats.streams,
                 (unsigned long long)stats.buffered_bytes);
    }
}

void check_turn(struct world_sim *w)
{
    if (w->gw == NULL || w->gw->loop[0] == NULL) {
        return;
    }
    check_buffers(w);
    for (int32_t i = 0; i < WORLD_TENANTS; i++) {
        check_budget(w, i + 1, 0, &w->tenant_limits[i], w->tenant_seed_nusd[i]);
    }
    for (int32_t i = 0; i < WORLD_KEYS; i++) {
        check_budget(w, 1 + i / 2, 100 + i, &w->key_limits[i], w->key_seed_nusd[i]);
    }
}

static void check_ledger_budget(struct world_sim *w, int32_t tenant, int32_t key,
                                const struct quota_limits *l)
{
    int64_t pusd[2] = {0};
    int32_t first = quota_period(w->sim->wall_us);

    for (size_t i = 0; i < w->store.n; i++) {
        const struct entry *e = &w->store.rows[i];

        if (e->tenant_id == tenant && (key == 0 || e->key_id == key)) {
            pusd[quota_period(e->occurred_us) != first] += e->cost_pusd;
        }
    }
    if (l->budget_month_pusd != QUOTA_NONE &&
        (pusd[0] > l->budget_month_pusd || pusd[1] > l->budget_month_pusd)) {
        sim_fail(w->sim, "tenant %d key %d: the ledger has %lld and %lld pico-USD of %lld a month",
                 tenant, key, (long long)pusd[0], (long long)pusd[1],
                 (long long)l->budget_month_pusd);
    }
}

/* ---- invariant 9: everything that was counted is given back ---- */

static void check_counters(struct world_sim *w)
{
    struct loop *l = w->gw->loop[0];
    struct http_server_stats stats;
    const struct world *world = w->control.world;

    http_server_stats(l->server, &stats);
    if (l->n_requests != 0 || l->body_bytes != 0 || (stats.streams != 0 && !w->drained) ||
        quota_open_holds(w->gw->quota) != 0 || !list_is_empty(&l->settling)) {
        sim_fail(w->sim, "at quiet: %llu requests, %llu body bytes, %llu streams, %lld holds",
                 (unsigned long long)l->n_requests, (unsigned long long)l->body_bytes,
                 (unsigned long long)stats.streams, (long long)quota_open_holds(w->gw->quota));
    }
    for (unsigned i = 0; i < world->n_workers; i++) {
        const struct worker *k = world->worker[i].w;

        if (k->in_flight != 0 || k->queued_tokens != 0 || k->context_tokens != 0) {
            sim_fail(w->sim, "at quiet worker %d has %lld in flight, %lld queued, %lld in context",
                     k->worker_id, (long long)k->in_flight, (long long)k->queued_tokens,
                     (long long)k->context_tokens);
        }
    }
}

static void check_scope_idle(struct world_sim *w, int32_t tenant, int32_t key)
{
    struct quota_scope_state s;
    int64_t nusd = 0;

    if (!quota_state(w->gw->quota, tenant, key, &s)) {
        return;
    }
    for (size_t i = 0; i < w->store.n; i++) {
        const struct entry *e = &w->store.rows[i];

        if (quota_period(e->occurred_us) != s.period || e->tenant_id != tenant ||
            (key != 0 && e->key_id != key)) {
            continue;
        }
        nusd += money_nusd_ceil(money_of(e->cost_pusd));
        if (e->gw_epoch < journal_epoch(w->gw->journal) || e->outcome == OUTCOME_GATEWAY_RESTART) {
            nusd += store_suspense(e);
        }
    }
    if (s.held_nusd != 0 || s.concurrent != 0) {
        sim_fail(w->sim, "at quiet tenant %d key %d holds %lld and has %lld in flight", tenant, key,
                 (long long)s.held_nusd, (long long)s.concurrent);
    }
    /* Never less than the ledger and its suspense, but for the rounding of rows that were read as
     * one sum. */
    if (s.spent_nusd + (int64_t)w->store.n < nusd) {
        sim_fail(w->sim, "tenant %d key %d: the quota store says %lld nano-USD, the ledger %lld",
                 tenant, key, (long long)s.spent_nusd, (long long)nusd);
    }
}

/* ---- invariants 4 and 5: each stream has one end, what was left is stopped ---- */

static void check_ask(struct world_sim *w, const struct ask *a)
{
    switch (a->end) {
    case ASK_PENDING:
        sim_fail(w->sim, "ask %u has no end", a->id);
        return;
    case ASK_FINISH:
        if (a->kind != ASK_GOOD) {
            sim_fail(w->sim, "ask %u of kind %d was answered", a->id, a->kind);
        }
        if ((a->include_usage || !a->stream) && !a->got_usage) {
            sim_fail(w->sim, "ask %u: no usage", a->id);
        }
        return;
    case ASK_REFUSED:
        if ((a->kind == ASK_BAD_KEY && a->status != 401) ||
            (a->kind == ASK_BAD_JSON && a->status != 400) ||
            (a->kind == ASK_NO_MODEL && a->status != 404) ||
            (a->kind == ASK_NOT_PRICED && a->status != 403 && a->status != 404)) {
            /* A gateway at its limits refuses before it looks. */
            if (a->status != 503 && a->status != 429) {
                sim_fail(w->sim, "ask %u of kind %d got %u", a->id, a->kind, a->status);
            }
        }
        return;
    case ASK_CUT:
        if (!a->excused) {
            sim_fail(w->sim, "ask %u: its connection broke off and nobody had died", a->id);
        }
        return;
    case ASK_NO_CONNECTION:
    case ASK_ERROR_EVENT:
    case ASK_LEFT:
        return;
    }
}

/* ---- invariant 2: each attempt that reached a worker has one row; between received and generated
 * ---- */

static const struct ask *ask_of(const struct world_sim *w, uint32_t attempt)
{
    for (uint32_t i = 0; i < w->n_asks; i++) {
        if (w->asks[i].attempt == attempt + 1) {
            return &w->asks[i];
        }
    }
    return NULL;
}

static void check_usage(struct world_sim *w, const struct ask *a, const struct entry *row)
{
    if (a->got_usage &&
        (a->usage_completion != tokens_output(&row->tok) ||
         a->usage_prompt != tokens_prompt(&row->tok) || a->usage_cached != row->tok.in_cached)) {
        sim_fail(w->sim, "ask %u was told %lld/%lld/%lld tokens, its row says %d/%d/%d", a->id,
                 (long long)a->usage_prompt, (long long)a->usage_cached,
                 (long long)a->usage_completion, tokens_prompt(&row->tok), row->tok.in_cached,
                 tokens_output(&row->tok));
    }
}

/* A client that leaves frees its worker. (A gateway that was killed has other things to do first.)
 */
static void check_stopped(struct world_sim *w, uint32_t i)
{
    const struct sim_attempt *a = &w->attempts[i];
    const struct ask *ask = a->ask > 0 ? &w->asks[a->ask - 1] : NULL;

    if (ask != NULL && ask->end == ASK_LEFT && w->lives == 1 &&
        a->ended_us > ask->ended_us + STOP_US) {
        sim_fail(w->sim, "attempt %u ran on for %llu us after its client had left", i,
                 (unsigned long long)(a->ended_us - ask->ended_us));
    }
}

/* The row that its client's answer stands for. */
static void check_answer(struct world_sim *w, uint32_t i, const struct ask *ask,
                         const struct entry *row)
{
    const struct sim_attempt *a = &w->attempts[i];

    if (row->outcome != OUTCOME_DONE && row->outcome != OUTCOME_CLAMPED) {
        sim_fail(w->sim, "ask %u heard a right end, its row says %s", ask->id,
                 outcome_name((enum outcome)row->outcome));
    }
    if (!a->finished && row->outcome != OUTCOME_CLAMPED) {
        sim_fail(w->sim, "ask %u heard a right end that its worker never said", ask->id);
    }
    if (row->outcome == OUTCOME_DONE && ask->tokens != a->generated) {
        sim_fail(w->sim, "ask %u has %u of %u tokens and a right end", ask->id, ask->tokens,
                 a->generated);
    }
    check_usage(w, ask, row);
}

static void check_payer(struct world_sim *w, uint32_t i, const struct entry *row)
{
    const struct ask *asked = &w->asks[w->attempts[i].ask - 1];

    if (row->tenant_id != (int32_t)asked->tenant + 1 || row->key_id != (int32_t)asked->key + 100 ||
        row->price_id != 51 + (int32_t)asked->id % 2) {
        sim_fail(w->sim, "attempt %u of ask %u: billed to tenant %d key %d price %d", i, asked->id,
                 row->tenant_id, row->key_id, row->price_id);
    }
}

/* Between what the client has and what the worker computed; what the worker counted, when it was
 * asked. */
static void check_bill(struct world_sim *w, uint32_t i, const struct ask *ask,
                       const struct entry *row)
{
    const struct sim_attempt *a = &w->attempts[i];
    uint32_t output = (uint32_t)tokens_output(&row->tok);
    bool blind = row->outcome == OUTCOME_GATEWAY_RESTART && row->usage_state == USAGE_UNKNOWN;

    if (output > a->generated || tokens_prompt(&row->tok) > a->prompt) {
        sim_fail(w->sim, "attempt %u: billed %d + %u tokens, it had %lld + %u", i,
                 tokens_prompt(&row->tok), output, (long long)a->prompt, a->generated);
    }
    if (ask != NULL && !blind && !a->rogue && output < ask->tokens) {
        sim_fail(w->sim, "attempt %u: billed %u output tokens, the client has %u", i, output,
                 ask->tokens);
    }
    if (row->usage_state == USAGE_MEASURED && output != a->generated) {
        sim_fail(w->sim, "attempt %u: measured %u output tokens, it generated %u", i, output,
                 a->generated);
    }
    if (blind && w->plan.gentle && !a->forgotten) {
        sim_fail(w->sim, "attempt %u: its worker knows its %u tokens and was not asked", i,
                 a->generated);
    }
}

static void check_attempt(struct world_sim *w, uint32_t i)
{
    const struct sim_attempt *a = &w->attempts[i];
    const struct ask *ask = ask_of(w, i);
    const struct entry *row = store_row_of_event(&w->store, a->event);

    if (a->running) {
        sim_fail(w->sim, "attempt %u still runs at quiet", i);
    }
    check_stopped(w, i);
    if (w->workers[a->worker].engine != ENGINE_TOLLGATE || a->lost) {
        if (ask != NULL && ask->end == ASK_FINISH && !a->finished &&
            w->workers[a->worker].engine != ENGINE_TOLLGATE && strcmp(ask->finish, "length") != 0) {
            sim_fail(w->sim, "ask %u heard a right end that its engine never said", ask->id);
        }
        return;
    }
    if (row == NULL) {
        sim_fail(w->sim, "attempt %u of ask %u: %u tokens, no row", i, a->ask, a->generated);
        return;
    }
    check_bill(w, i, ask, row);
    check_payer(w, i, row);
    if (ask != NULL && ask->end == ASK_FINISH) {
        check_answer(w, i, ask, row);
    }
}

/* A foreign engine knows no events: rows are counted. */
static void check_foreign(struct world_sim *w)
{
    for (unsigned k = 0; k < w->plan.workers; k++) {
        uint32_t rows = 0, attempts = 0;

        if (w->workers[k].engine == ENGINE_TOLLGATE) {
            continue;
        }
        for (size_t i = 0; i < w->store.n; i++) {
            rows += w->store.rows[i].worker_id == w->workers[k].worker_id;
        }
        for (uint32_t i = 0; i < w->n_attempts; i++) {
            attempts += w->attempts[i].worker == k;
        }
        if (rows < attempts && w->lives == 1) {
            sim_fail(w->sim, "%s saw %u requests, there are %u rows", w->workers[k].name, attempts,
                     rows);
        }
    }
}

static const struct price *price_of(const struct snapshot *s, int32_t id)
{
    return snapshot_price_id(s, id);
}

static void check_row(struct world_sim *w, const struct snapshot *s, const struct entry *e)
{
    const struct price *p = price_of(s, e->price_id);

    if (e->tok.in_uncached < 0 || e->tok.in_cached < 0 || e->tok.out < 0 || e->tok.reasoning < 0) {
        sim_fail(w->sim, "epoch %d seq %lld: a negative count", e->gw_epoch, (long long)e->gw_seq);
    }
    if (p == NULL || price_cost(p, &e->tok).pusd != e->cost_pusd) {
        sim_fail(w->sim, "epoch %d seq %lld: cost %lld is not tokens x price %d", e->gw_epoch,
                 (long long)e->gw_seq, (long long)e->cost_pusd, e->price_id);
    }
    if (e->tenant_id == 0) {
        sim_fail(w->sim, "epoch %d seq %lld: a row without its tenant", e->gw_epoch,
                 (long long)e->gw_seq);
    }
}

/* Rows of the store are those of the journal, once each and without a gap. */
static void check_journal(struct world_sim *w)
{
    struct err e = {.code = ERR_NONE};
    struct journal_reader *r = journal_reader_open(&w->gateway_host.env, WORLD_DIR, &e);
    struct record_stored *rec = mem_new(sizeof(*rec));
    enum journal_read got;

    CHECK(r != NULL);
    while ((got = journal_read(r, rec, &e)) == JOURNAL_READ_RECORD || got == JOURNAL_READ_TORN) {
        if (got == JOURNAL_READ_RECORD && rec->r.type == RECORD_CLOSE &&
            store_row_of_event(&w->store, rec->r.close.event) == NULL) {
            sim_fail(w->sim, "epoch %d seq %lld is in the journal and not in the store", rec->epoch,
                     (long long)rec->r.close.gw_seq);
        }
    }
    if (got == JOURNAL_READ_CORRUPT) {
        sim_fail(w->sim, "the journal is corrupt: %s", e.text);
    }
    journal_reader_close(r);
    mem_free(rec);
}

/* ---- when ---- */

void check_idle(struct world_sim *w)
{
    check_counters(w);
    for (int32_t i = 0; i < WORLD_TENANTS; i++) {
        check_scope_idle(w, i + 1, 0);
    }
    for (int32_t i = 0; i < WORLD_KEYS; i++) {
        check_scope_idle(w, 1 + i / 2, 100 + i);
    }
}

void check_end(struct world_sim *w)
{
    struct snapshot *s = gateway_snapshot(w);

    for (uint32_t i = 0; i < w->n_asks; i++) {
        if (!w->plan.drain || w->asks[i].end != ASK_PENDING) {
            check_ask(w, &w->asks[i]);
        }
    }
    for (uint32_t i = 0; i < w->n_attempts; i++) {
        check_attempt(w, i);
    }
    check_foreign(w);
    for (size_t i = 0; i < w->store.n; i++) {
        check_row(w, s, &w->store.rows[i]);
    }
    for (int32_t i = 0; i < WORLD_TENANTS; i++) {
        check_ledger_budget(w, i + 1, 0, &w->tenant_limits[i]);
    }
    for (int32_t i = 0; i < WORLD_KEYS; i++) {
        check_ledger_budget(w, 1 + i / 2, 100 + i, &w->key_limits[i]);
    }
    check_journal(w);
    snapshot_unref(s);
}
