/* spec.c - how many drafts, from where, and what became of them. */
#include "worker/engine/spec.h"

#define GAIN_MIN 0.15         /* a draft that comes true less often is not worth a row */
#define ACCEPT_NEWEST 0.0625f /* weight of the newest draft in a sequence's mean */
#define ACCEPT_LOOKUP 0.5f    /* before anything was measured */
#define ACCEPT_MODEL 0.7f
#define TRY_ACCEPT 0.9 /* what a try may hope for */
#define REST_STEPS 16  /* between two tries of a sequence that was turned down */

/* What a step is so far: rows, and tokens that it is expected to give. */
struct load {
    const struct cost *cost;
    double rows, tokens;
};

static bool options_are_good(const struct engine_options *o, const struct model *target,
                             struct err *e)
{
    const struct model *m = o->draft_model;

    if (o->draft_tokens > ENGINE_DRAFT_TOKENS_MAX) {
        err_set(e, ERR_INPUT, "at most %u tokens are drafted a step, not %u",
                (unsigned)ENGINE_DRAFT_TOKENS_MAX, o->draft_tokens);
        return false;
    }
    if (m == NULL) {
        return true;
    }
    if (o->draft_backend == NULL || o->draft_blocks == 0) {
        err_set(e, ERR_INPUT, "a draft model needs a backend and KV blocks of its own");
        return false;
    }
    if (m->vocab != target->vocab) {
        err_set(e, ERR_INPUT, "the draft model has %u tokens, the model %u", m->vocab,
                target->vocab);
        return false;
    }
    return o->draft_backend->ops->kv_init(o->draft_backend, o->draft_blocks, e);
}

static void take_memory(struct spec *p, uint32_t draft_blocks)
{
    uint32_t n = p->sequences_max;

    p->where = mem_new((p->model != NULL ? n : 1) * sizeof(*p->where));
    if (p->model == NULL) {
        return;
    }
    spec_pool_init(&p->pool, draft_blocks);
    p->jobs = mem_new(n * sizeof(*p->jobs));
    p->ids = mem_new(p->rows_max * sizeof(*p->ids));
    p->q_start = mem_new(n * sizeof(*p->q_start));
    p->q_len = mem_new(n * sizeof(*p->q_len));
    p->kv_len = mem_new(n * sizeof(*p->kv_len));
    p->want = mem_new(n * sizeof(*p->want));
    p->table = mem_new(n * sizeof(*p->table));
    p->job_of = mem_new(n * sizeof(*p->job_of));
}

struct spec *spec_new(const struct engine_options *o, const struct model *target, struct err *e)
{
    struct spec *p;

    if (o->draft_tokens == 0 || (!o->prompt_lookup && o->draft_model == NULL) ||
        !options_are_good(o, target, e)) {
        return NULL;
    }
    p = mem_new(sizeof(*p));
    p->draft_tokens = o->draft_tokens;
    p->rows_max = o->step_tokens;
    p->sequences_max = o->sequences_max;
    p->lookup = o->prompt_lookup;
    p->model = o->draft_model;
    p->backend = o->draft_backend;
    p->clock_us = o->clock_us;
    p->clock_ctx = o->clock_ctx;
    take_memory(p, o->draft_blocks);
    return p;
}

void spec_free(struct spec *p)
{
    if (p == NULL) {
        return;
    }
    if (p->model != NULL) {
        spec_pool_fini(&p->pool);
    }
    mem_free(p->where);
    mem_free(p->jobs);
    mem_free(p->ids);
    mem_free(p->q_start);
    mem_free(p->q_len);
    mem_free(p->kv_len);
    mem_free(p->want);
    mem_free(p->table);
    mem_free(p->job_of);
    mem_free(p);
}

void spec_begin(struct seq *s)
{
    s->spec.accept[SEQ_LOOKUP] = ACCEPT_LOOKUP;
    s->spec.accept[SEQ_MODEL] = ACCEPT_MODEL;
    s->spec.rest = REST_STEPS;
}

/* Each draft pays while the tokens that it is expected to bring come cheaper than those of the step
 * so far: gain / cost of a row > tokens / cost of the step. Without a measure of cost, while it
 * comes true often enough. */
static uint32_t worth(const struct load *l, double accept, double draft_us, uint32_t most)
{
    double gain = accept, rows = l->rows, tokens = l->tokens;
    uint32_t n = 0;

    while (n < most && gain >= GAIN_MIN) {
        if (cost_is_known(l->cost) &&
            gain * cost_us(l->cost, rows) <= (l->cost->b + draft_us) * tokens) {
            break;
        }
        n++;
        rows += 1;
        tokens += gain;
        gain *= accept;
    }
    return n;
}

/* Tokens that n drafts are expected to bring: a + a^2 + ... + a^n. */
static double expected(double accept, uint32_t n)
{
    double sum = 0;

    for (; n > 0; n--) {
        sum = (sum + 1) * accept;
    }
    return sum;
}

/* Cuts what the grammar refuses, and what follows an end. */
static uint32_t possible(struct spec *p, const struct pick *pick, const struct seq *s, uint32_t n)
{
    const struct engine_request *r = s->request;

    if (s->grammar != NULL) {
        grammar_state_copy(p->where, s->grammar);
    }
    for (uint32_t i = 0; i < n; i++) {
        int32_t id = s->ids[s->n_tokens + i];

        if (s->grammar != NULL && !grammar_accept_token(r->grammar, p->where, id)) {
            return i;
        }
        if (pick_ends(pick, r, id)) {
            return i + 1;
        }
    }
    return n;
}

/* Source and number of the drafts for s, at most `most`; those of prompt lookup are in place. A
 * sequence that was turned down gets a single draft now and then, unless that could hardly pay. */
static uint32_t choose(struct spec *p, const struct pick *pick, struct load *l, struct seq *s,
                       uint32_t most)
{
    struct seq_spec *k = &s->spec;
    const double accept[SEQ_SOURCES] = {(double)k->accept[SEQ_LOOKUP],
                                        (double)k->accept[SEQ_MODEL]};
    uint32_t found = 0, model_most = 0, n[SEQ_SOURCES] = {0}, chosen;

    if (p->lookup && (k->rest == 0 || worth(l, accept[SEQ_LOOKUP], 0, 1) > 0)) {
        found = spec_lookup(s->ids, s->n_tokens, most, s->ids + s->n_tokens);
        found = possible(p, pick, s, found);
        n[SEQ_LOOKUP] = worth(l, accept[SEQ_LOOKUP], 0, found);
    }
    if (p->model != NULL && s->n_tokens + most <= p->model->context) {
        model_most = most;
        n[SEQ_MODEL] = worth(l, accept[SEQ_MODEL], p->draft_us, most);
    }
    k->source =
        expected(accept[SEQ_MODEL], n[SEQ_MODEL]) > expected(accept[SEQ_LOOKUP], n[SEQ_LOOKUP])
            ? SEQ_MODEL
            : SEQ_LOOKUP;
    chosen = n[k->source];
    if (chosen == 0 && k->rest > 0) {
        k->rest--;
    } else if (chosen == 0 && found + model_most > 0) {
        k->rest = REST_STEPS;
        k->source = found > 0 ? SEQ_LOOKUP : SEQ_MODEL;
        chosen = worth(l, TRY_ACCEPT, 0, 1);
    }
    l->rows += chosen;
    l->tokens += expected(accept[k->source], chosen);
    return chosen;
}

/* How many drafts s could use: the last token of an answer needs no KV. */
static uint32_t wanted(const struct spec *p, const struct seq *s, uint32_t rows)
{
    uint32_t left = s->request->max_tokens - seq_answered(s) - 1;
    uint32_t most = p->draft_tokens < rows ? p->draft_tokens : rows;

    if (s->request->no_speculation) {
        return 0;
    }
    return left < most ? left : most;
}

/* Drafts take a block only where nobody needs it soon: never at the cost of a running sequence. */
static void make_room(struct sched *c, struct seq *s)
{
    uint32_t need = s->n_tokens + s->n_draft, have;

    if (need > s->n_table * BLOCK_TOKENS && blocks_available(c->blocks) > c->n_running &&
        seq_grow(s, c->blocks, need)) {
        return;
    }
    have = s->n_table * BLOCK_TOKENS - s->n_tokens;
    s->n_draft = s->n_draft < have ? s->n_draft : have;
}

void spec_plan(struct spec *p, struct pick *pick, struct sched *c, const struct cost *cost,
               uint32_t rows, float *logits)
{
    struct load l = {.cost = cost, .rows = c->n_share, .tokens = c->n_share};

    rows = rows < SPEC_ROWS_MAX ? rows : SPEC_ROWS_MAX;
    p->n_jobs = 0;
    for (uint32_t i = 0; i < c->n_share; i++) {
        struct seq *s = c->share[i].seq;
        uint32_t most = wanted(p, s, rows), n = most > 0 ? choose(p, pick, &l, s, most) : 0;

        rows -= n;
        s->n_draft = 0;
        if (n > 0 && s->spec.source == SEQ_MODEL) {
            p->jobs[p->n_jobs++] = (struct spec_job){.seq = s, .n = n};
        } else {
            s->n_draft = n;
        }
    }
    if (p->n_jobs > 0) {
        spec_draft(p, pick, logits);
    }
    for (uint32_t i = 0; i < c->n_share; i++) {
        struct sched_share *h = &c->share[i];

        make_room(c, h->seq);
        h->drafts = h->seq->n_draft;
        h->rows += h->drafts;
        p->drafted += h->drafts;
    }
}

/* A plain mean of the first drafts, then one in which the newest weighs ACCEPT_NEWEST. */
static void learn(struct seq_spec *k, float came_true)
{
    float weight = 1 / (float)(k->tried[k->source] + 2);

    if (weight > ACCEPT_NEWEST) {
        k->tried[k->source]++;
    } else {
        weight = ACCEPT_NEWEST;
    }
    k->accept[k->source] += (came_true - k->accept[k->source]) * weight;
}

void spec_verified(struct spec *p, struct seq *s, uint32_t matched, bool missed)
{
    p->accepted += matched;
    for (uint32_t i = 0; i < matched; i++) {
        learn(&s->spec, 1);
    }
    if (missed) {
        learn(&s->spec, 0);
    }
    s->n_draft = 0;
    /* The draft's KV behind the newest token is of drafts that did not come true or were cut. */
    if (s->spec.computed > s->n_tokens - 1) {
        s->spec.computed = s->n_tokens - 1;
    }
}
