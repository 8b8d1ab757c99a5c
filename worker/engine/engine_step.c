/* engine_step.c - three verbs a step: plan, forward, take the results.
 *
 * A block enters the index only after the forward that filled it, and with drafts only once its
 * tokens are the answer's: nobody can hit KV that is not written or not true. */
#include "worker/engine/engine_internal.h"

/* What the emit callback of one step needs. */
struct step {
    struct engine *g;
    void (*emit)(void *ctx, const struct engine_event *);
    void *ctx;
    uint32_t rows; /* of its forward */
};

static void emit_started(void *ctx, struct seq *s)
{
    struct step *t = ctx;
    struct engine_event ev = {.kind = ENGINE_STARTED, .ticket = s->request->ticket};

    if (s->started) {
        return; /* back from a preemption: told before */
    }
    s->started = true;
    sched_group_begun(&t->g->sched, s->request->group);
    s->cached_tokens = s->computed;
    t->g->totals.cached_tokens += s->cached_tokens;
    ev.prompt_tokens = s->n_prompt;
    ev.cached_tokens = s->cached_tokens;
    t->emit(t->ctx, &ev);
}

static void emit_ends(struct step *t)
{
    while (!list_is_empty(&t->g->ended)) {
        struct seq *s = seq_of(t->g->ended.next);
        struct engine_event ev = {
            .kind = ENGINE_END,
            .ticket = s->request->ticket,
            .prompt_tokens = s->n_prompt,
            .cached_tokens = s->cached_tokens,
            .completion_tokens = seq_answered(s),
            .finish = s->finish,
        };

        s->request->private_seq = NULL;
        map_del(&t->g->by_ticket, engine_ticket(&s->request->ticket));
        seq_free(s); /* before the event: its receiver frees the request */
        t->emit(t->ctx, &ev);
    }
}

static void end_seq(struct engine *g, struct seq *s, enum engine_finish why)
{
    sched_end(&g->sched, s, why);
    list_push_back(&g->ended, &s->node);
}

static void on_expired(void *ctx, struct seq *s)
{
    struct engine *g = ctx;

    g->totals.expired++;
    end_seq(g, s, ENGINE_EXPIRED);
}

static void end_aborted_in(struct engine *g, struct list *head)
{
    LIST_EACH_SAFE(it, tmp, head)
    {
        if (seq_of(it)->abort) {
            end_seq(g, seq_of(it), ENGINE_ABORTED);
        }
    }
}

static void end_aborted(struct engine *g)
{
    if (g->aborts == 0) {
        return;
    }
    end_aborted_in(g, &g->sched.running);
    for (int i = 0; i < SCHED_RANKS; i++) {
        end_aborted_in(g, &g->sched.waiting[i]);
    }
    g->aborts = 0;
}

/* Rows for prefill: all that is left, or so many that the decodes beside them keep their pace. What
 * drafting took since the step began counts too. */
static uint32_t prefill_rows(const struct engine *g, uint32_t taken)
{
    uint32_t left = g->o.step_tokens - taken, rows;
    uint64_t target_us = g->o.tpot_target_us, spent_us;

    if (taken == 0 || target_us == 0) {
        return left;
    }
    spent_us = engine_now(g) - g->sched.now_us;
    rows = cost_rows(&g->cost, target_us > spent_us ? target_us - spent_us : 0);
    rows = rows > taken ? rows - taken : 0;
    rows = rows > SCHED_PREFILL_ROWS_MIN ? rows : SCHED_PREFILL_ROWS_MIN;
    return rows < left ? rows : left;
}

/* Drafts leave prefill its least. */
static uint32_t draft_rows(const struct engine *g)
{
    uint32_t left = g->o.step_tokens - g->sched.n_share;
    uint32_t kept = sched_has_prefill(&g->sched) ? SCHED_PREFILL_ROWS_MIN : 0;

    return left > kept ? left - kept : 0;
}

static void plan(struct step *t)
{
    struct engine *g = t->g;
    uint32_t taken;

    sched_plan_decodes(&g->sched);
    taken = g->sched.n_share;
    if (g->spec != NULL && taken > 0) {
        spec_plan(g->spec, &g->pick, &g->sched, &g->cost, draft_rows(g), g->logits);
        for (uint32_t i = 0; i < g->sched.n_share; i++) {
            taken += g->sched.share[i].drafts;
        }
    }
    sched_plan_prefill(&g->sched, prefill_rows(g, taken), emit_started, t);
}

/* Lays the shares out as rows and computes them. A share that reaches its newest token wants the
 * logits of that and of its drafts; rows come in this order. */
static void forward(struct step *t)
{
    struct engine *g = t->g;
    struct batch b = {.ids = g->ids,
                      .q_start = g->q_start,
                      .q_len = g->q_len,
                      .kv_len = g->kv_len,
                      .table = g->table,
                      .want = g->want};

    for (uint32_t i = 0; i < g->sched.n_share; i++) {
        const struct sched_share *h = &g->sched.share[i];
        const struct seq *s = h->seq;

        g->q_start[i] = b.rows;
        g->q_len[i] = h->rows;
        g->kv_len[i] = s->computed + h->rows;
        g->table[i] = s->table;
        memcpy(g->ids + b.rows, s->ids + s->computed, h->rows * sizeof(*g->ids));
        b.rows += h->rows;
        for (uint32_t k = h->drafts + 1; g->kv_len[i] >= s->n_tokens && k > 0; k--) {
            g->want[b.wanted++] = b.rows - k;
        }
    }
    CHECK(b.rows <= g->o.step_tokens && b.wanted <= g->wanted_max);
    b.sequences = g->sched.n_share;
    g->backend->ops->forward(g->backend, &b, g->logits);
    g->totals.steps++;
    t->rows = b.rows;
}

/* The grammar takes the newest token. false: nothing can follow it but an end. */
static bool grammar_goes_on(struct seq *s)
{
    const struct grammar *gr = s->request->grammar;

    return s->grammar == NULL || (grammar_accept_token(gr, s->grammar, s->ids[s->n_tokens - 1]) &&
                                  !grammar_finished(gr, s->grammar));
}

/* One token from a row of logits. false: the answer has ended, or is to be aborted. */
static bool take_token(struct step *t, struct seq *s, float *logits)
{
    struct engine *g = t->g;
    struct engine_event ev = {.kind = ENGINE_TOKEN, .ticket = s->request->ticket};

    if (!pick_token(&g->pick, s, s->n_tokens, s->grammar, logits, &ev.token)) {
        end_seq(g, s, ENGINE_STOP); /* the grammar has nowhere to go */
        return false;
    }
    if (s->n_tokens == s->n_prompt) {
        sched_prompt_computed(s);
    }
    s->ids[s->n_tokens++] = ev.token.id;
    if (s->state == SEQ_PREFILL) {
        seq_set_state(s, SEQ_DECODE);
    }
    g->totals.decode_tokens++;
    ev.prompt_tokens = s->n_prompt;
    ev.cached_tokens = s->cached_tokens;
    ev.completion_tokens = seq_answered(s);
    t->emit(t->ctx, &ev);
    if (pick_ends(&g->pick, s->request, ev.token.id) || !grammar_goes_on(s)) {
        end_seq(g, s, ENGINE_STOP);
        return false;
    }
    if (seq_answered(s) >= s->request->max_tokens) {
        end_seq(g, s, ENGINE_LENGTH);
        return false;
    }
    return !s->abort;
}

/* The newest token's row, then one for each draft that is the token just drawn. */
static void take_tokens(struct step *t, struct seq *s, float *logits, uint32_t drafts)
{
    struct engine *g = t->g;
    uint32_t matched = 0;
    bool goes_on = true, missed = false;

    for (uint32_t i = 0; i <= drafts && goes_on && !missed; i++) {
        int32_t draft = i < drafts ? s->ids[s->n_tokens] : -1;
        uint32_t known = s->n_tokens;

        s->computed = known;
        seq_publish(s, g->blocks);
        goes_on = take_token(t, s, logits + (size_t)i * g->model->vocab);
        if (i < drafts && s->n_tokens > known) {
            missed = s->ids[known] != draft;
            matched += !missed;
        }
    }
    if (g->spec != NULL) {
        spec_verified(g->spec, s, matched, missed);
    }
    if (drafts > 0 && s->state == SEQ_DECODE) {
        seq_trim(s, g->blocks);
    }
}

static void take_results(struct step *t)
{
    struct engine *g = t->g;
    float *logits = g->logits;

    for (uint32_t i = 0; i < g->sched.n_share; i++) {
        const struct sched_share *h = &g->sched.share[i];
        struct seq *s = h->seq;

        if (s->state == SEQ_PREFILL) {
            g->totals.prefill_tokens += h->rows;
        }
        if (g->kv_len[i] >= s->n_tokens) {
            take_tokens(t, s, logits, h->drafts);
            logits += (size_t)(h->drafts + 1) * g->model->vocab;
        } else {
            s->computed = g->kv_len[i];
            seq_publish(s, g->blocks);
        }
    }
}

bool engine_step(struct engine *g, void (*emit)(void *ctx, const struct engine_event *), void *ctx)
{
    struct step t = {.g = g, .emit = emit, .ctx = ctx};

    end_aborted(g);
    if (g->sched.n_running + g->sched.n_waiting > 0) {
        sched_tick(&g->sched, engine_now(g), on_expired, g);
        plan(&t);
    }
    if (g->sched.n_running > 0) { /* each step gives at least one of them a row */
        uint64_t began_us = engine_now(g);

        forward(&t);
        take_results(&t);
        if (g->o.clock_us != NULL) {
            cost_learn(&g->cost, t.rows, engine_now(g) - began_us);
        }
    }
    emit_ends(&t);
    return g->sched.n_running + g->sched.n_waiting > 0;
}
