/* engine.c - three verbs a step: plan, forward, take the results.
 *
 * A block enters the index only after the forward that filled it, so nobody can hit KV that is not
 * written; a sequence that ended or was preempted before never publishes. */
#include "worker/engine/engine.h"

#include "worker/engine/sched.h"

struct engine {
    const struct model *model; /* borrowed */
    struct backend *backend;   /* borrowed */
    struct engine_options o;
    struct blocks *blocks; /* owned */
    struct sched sched;
    struct list ended; /* SEQ_ENDED, END event due */
    uint64_t arrivals;
    uint32_t aborts; /* live sequences with abort set, at most */
    struct engine_stats totals;
    /* The batch of the step at hand. */
    int32_t *ids;                              /* [step_tokens] */
    uint32_t *q_start, *q_len, *kv_len, *want; /* [sequences_max] */
    const uint32_t **table;                    /* [sequences_max] */
    float *logits;                             /* [sequences_max][vocab] */
    uint16_t *counts;                          /* [vocab]; all zero between two sequences */
    void *scratch;                             /* of sample_token */
};

/* What the emit callback of one step needs. */
struct step {
    struct engine *g;
    void (*emit)(void *ctx, const struct engine_event *);
    void *ctx;
};

struct engine *engine_new(const struct model *m, struct backend *b, const struct engine_options *o,
                          struct blocks_events chunk_events, struct err *e)
{
    struct engine *g;

    if (o->kv_blocks == 0 || o->sequences_max == 0 || o->waiting_max == 0 ||
        o->step_tokens < o->sequences_max) {
        err_set(e, ERR_INPUT,
                "the engine needs KV blocks, sequences and a waiting room of at least one, and a "
                "step of at least as many tokens (%u) as sequences (%u)",
                o->step_tokens, o->sequences_max);
        return NULL;
    }
    if (!b->ops->kv_init(b, o->kv_blocks, e)) {
        return NULL;
    }
    g = mem_new(sizeof(*g));
    g->model = m;
    g->backend = b;
    g->o = *o;
    g->blocks = blocks_new(o->kv_blocks, o->seed, chunk_events);
    sched_init(&g->sched, g->blocks, o->sequences_max, o->step_tokens);
    list_init(&g->ended);
    g->ids = mem_new(o->step_tokens * sizeof(*g->ids));
    g->q_start = mem_new(o->sequences_max * sizeof(*g->q_start));
    g->q_len = mem_new(o->sequences_max * sizeof(*g->q_len));
    g->kv_len = mem_new(o->sequences_max * sizeof(*g->kv_len));
    g->want = mem_new(o->sequences_max * sizeof(*g->want));
    g->table = mem_new(o->sequences_max * sizeof(*g->table));
    g->logits = mem_new((size_t)o->sequences_max * m->vocab * sizeof(*g->logits));
    g->counts = mem_new(m->vocab * sizeof(*g->counts));
    g->scratch = mem_new(SAMPLE_SCRATCH_BYTES(m->vocab));
    return g;
}

static void end_all(struct engine *g, struct list *head)
{
    while (!list_is_empty(head)) {
        struct seq *s = seq_of(head->next);

        if (s->state != SEQ_ENDED) {
            sched_end(&g->sched, s, ENGINE_ABORTED);
        }
        seq_free(s);
    }
}

void engine_free(struct engine *g)
{
    if (g == NULL) {
        return;
    }
    end_all(g, &g->sched.running);
    for (int i = 0; i < SCHED_CLASSES; i++) {
        end_all(g, &g->sched.waiting[i]);
    }
    end_all(g, &g->ended);
    sched_fini(&g->sched);
    blocks_free(g->blocks);
    mem_free(g->ids);
    mem_free(g->q_start);
    mem_free(g->q_len);
    mem_free(g->kv_len);
    mem_free(g->want);
    mem_free(g->table);
    mem_free(g->logits);
    mem_free(g->counts);
    mem_free(g->scratch);
    mem_free(g);
}

/* The newest token of an answer needs no KV, hence the - 1. */
static bool can_ever_fit(const struct engine *g, const struct engine_request *r)
{
    uint64_t all = (uint64_t)r->n_ids + r->max_tokens;

    if (r->n_ids == 0 || r->max_tokens == 0 || all > g->model->context) {
        return false;
    }
    return (all - 1 + BLOCK_TOKENS - 1) / BLOCK_TOKENS <= g->o.kv_blocks;
}

bool engine_submit(struct engine *g, struct engine_request *r)
{
    struct seq *s;
    bool fits = can_ever_fit(g, r);
    struct engine_request none = {.n_ids = 0, .max_tokens = 0};

    CHECK(r->class >= ENGINE_INTERACTIVE && r->class <= ENGINE_BATCH);
    if (g->sched.n_waiting >= g->o.waiting_max) {
        return false;
    }
    s = seq_new(fits ? r : &none, ++g->arrivals);
    if (s == NULL) {
        return false;
    }
    s->request = r;
    r->private_seq = s;
    if (!fits) {
        seq_set_state(s, SEQ_ENDED);
        s->finish = ENGINE_REFUSED;
        list_push_back(&g->ended, &s->node);
        return true;
    }
    sched_add(&g->sched, s);
    return true;
}

static bool mark_abort(struct list *head, uint64_t ticket)
{
    LIST_EACH(it, head)
    {
        struct seq *s = seq_of(it);

        if (s->request->ticket == ticket) {
            s->abort = true;
            return true;
        }
    }
    return false;
}

/* Linear: at most sequences_max + waiting_max, and an abort is rare beside a step. */
void engine_abort(struct engine *g, uint64_t ticket)
{
    bool found = mark_abort(&g->sched.running, ticket);

    for (int i = 0; i < SCHED_CLASSES && !found; i++) {
        found = mark_abort(&g->sched.waiting[i], ticket);
    }
    g->aborts += found ? 1 : 0;
}

static void emit_started(void *ctx, struct seq *s)
{
    struct step *t = ctx;
    struct engine_event ev = {.kind = ENGINE_STARTED, .ticket = s->request->ticket};

    if (s->started) {
        return; /* back from a preemption: told before */
    }
    s->started = true;
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
        seq_free(s); /* before the event: its receiver frees the request */
        t->emit(t->ctx, &ev);
    }
}

static void end_seq(struct engine *g, struct seq *s, enum engine_finish why)
{
    sched_end(&g->sched, s, why);
    list_push_back(&g->ended, &s->node);
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
    for (int i = 0; i < SCHED_CLASSES; i++) {
        end_aborted_in(g, &g->sched.waiting[i]);
    }
    g->aborts = 0;
}

/* Lays the shares out as rows and computes them. Logits rows come in the order of wanting shares.
 */
static void forward(struct engine *g)
{
    struct batch b = {.ids = g->ids,
                      .q_start = g->q_start,
                      .q_len = g->q_len,
                      .kv_len = g->kv_len,
                      .table = g->table,
                      .want = g->want};

    for (uint32_t i = 0; i < g->sched.n_share; i++) {
        const struct seq *s = g->sched.share[i].seq;
        uint32_t rows = g->sched.share[i].rows;

        g->q_start[i] = b.rows;
        g->q_len[i] = rows;
        g->kv_len[i] = s->computed + rows;
        g->table[i] = s->table;
        memcpy(g->ids + b.rows, s->ids + s->computed, rows * sizeof(*g->ids));
        b.rows += rows;
        if (s->computed + rows == s->n_tokens) {
            g->want[b.wanted++] = b.rows - 1;
        }
    }
    b.sequences = g->sched.n_share;
    g->backend->ops->forward(g->backend, &b, g->logits);
    g->totals.steps++;
}

/* The counts are made afresh for each token: a few thousand increments beside a whole forward. */
static void sample(struct engine *g, const struct seq *s, float *logits, struct sample_result *out)
{
    const struct sample_params *p = &s->request->sample;
    bool counted = sample_has_penalty(p);

    for (uint32_t i = 0; counted && i < s->n_tokens; i++) {
        uint16_t *c = &g->counts[s->ids[i]];

        if (i < s->n_prompt) {
            *c = SAMPLE_COUNT_PROMPT;
        } else if ((*c & ~SAMPLE_COUNT_PROMPT) < SAMPLE_COUNT_PROMPT - 1) {
            (*c)++;
        }
    }
    sample_token(p, logits, g->model->vocab, counted ? g->counts : NULL, seq_answered(s),
                 g->scratch, out);
    for (uint32_t i = 0; counted && i < s->n_tokens; i++) {
        g->counts[s->ids[i]] = 0;
    }
}

static bool ends_answer(const struct engine *g, const struct engine_request *r, int32_t id)
{
    if (id == g->model->eos && !r->ignore_eos) {
        return true;
    }
    for (uint32_t i = 0; i < r->n_stop_ids; i++) {
        if (r->stop_ids[i] == id) {
            return true;
        }
    }
    return false;
}

static void take_token(struct step *t, struct seq *s, float *logits)
{
    struct engine *g = t->g;
    struct engine_event ev = {.kind = ENGINE_TOKEN, .ticket = s->request->ticket};

    sample(g, s, logits, &ev.token);
    s->ids[s->n_tokens++] = ev.token.id;
    if (s->state == SEQ_PREFILL) {
        seq_set_state(s, SEQ_DECODE);
    }
    g->totals.decode_tokens++;
    ev.prompt_tokens = s->n_prompt;
    ev.cached_tokens = s->cached_tokens;
    ev.completion_tokens = seq_answered(s);
    t->emit(t->ctx, &ev);
    if (ends_answer(g, s->request, ev.token.id)) {
        end_seq(g, s, ENGINE_STOP);
    } else if (seq_answered(s) >= s->request->max_tokens) {
        end_seq(g, s, ENGINE_LENGTH);
    }
}

static void take_results(struct step *t)
{
    struct engine *g = t->g;
    float *logits = g->logits;

    for (uint32_t i = 0; i < g->sched.n_share; i++) {
        struct seq *s = g->sched.share[i].seq;
        bool wanted = g->kv_len[i] == s->n_tokens;

        s->computed = g->kv_len[i];
        seq_publish(s, g->blocks);
        if (s->state == SEQ_PREFILL) {
            g->totals.prefill_tokens += g->q_len[i];
        }
        if (wanted) {
            take_token(t, s, logits);
            logits += g->model->vocab;
        }
    }
}

bool engine_step(struct engine *g, void (*emit)(void *ctx, const struct engine_event *), void *ctx)
{
    struct step t = {.g = g, .emit = emit, .ctx = ctx};

    end_aborted(g);
    if (g->sched.n_running + g->sched.n_waiting > 0) {
        sched_plan(&g->sched, emit_started, &t);
        if (g->sched.n_share > 0) {
            forward(g);
            take_results(&t);
        }
    }
    emit_ends(&t);
    return g->sched.n_running + g->sched.n_waiting > 0;
}

void engine_stats(const struct engine *g, struct engine_stats *out)
{
    *out = g->totals;
    out->running = g->sched.n_running;
    out->waiting = g->sched.n_waiting;
    out->blocks = blocks_count(g->blocks);
    out->preemptions = g->sched.preemptions;
}

const struct blocks *engine_blocks(const struct engine *g)
{
    return g->blocks;
}
