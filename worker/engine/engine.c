/* engine.c - the engine's life: requests in, aborts, counts. The step is in engine_step.c. */
#include "worker/engine/engine_internal.h"

static bool options_are_good(const struct engine_options *o, struct err *e)
{
    if (o->kv_blocks == 0 || o->sequences_max == 0 || o->waiting_max == 0 ||
        o->step_tokens < o->sequences_max) {
        err_set(e, ERR_INPUT,
                "the engine needs KV blocks, sequences and a waiting room of at least one, and a "
                "step of at least as many tokens (%u) as sequences (%u)",
                o->step_tokens, o->sequences_max);
        return false;
    }
    return true;
}

static void take_memory(struct engine *g)
{
    uint32_t n = g->o.sequences_max;

    g->wanted_max = n;
    if (g->spec != NULL) {
        uint64_t drafts = (uint64_t)n * g->o.draft_tokens;

        g->wanted_max += drafts < SPEC_ROWS_MAX ? (uint32_t)drafts : SPEC_ROWS_MAX;
    }
    g->ids = mem_new(g->o.step_tokens * sizeof(*g->ids));
    g->q_start = mem_new(n * sizeof(*g->q_start));
    g->q_len = mem_new(n * sizeof(*g->q_len));
    g->kv_len = mem_new(n * sizeof(*g->kv_len));
    g->table = mem_new(n * sizeof(*g->table));
    g->want = mem_new(g->wanted_max * sizeof(*g->want));
    g->logits = mem_new((size_t)g->wanted_max * g->model->vocab * sizeof(*g->logits));
    pick_init(&g->pick, g->model->vocab, g->model->eos);
}

struct engine *engine_new(const struct model *m, struct backend *b, const struct engine_options *o,
                          struct blocks_events chunk_events, struct err *e)
{
    struct err refused = {0};
    struct engine *g;
    struct spec *spec;

    if (!options_are_good(o, e) || !b->ops->kv_init(b, o->kv_blocks, e)) {
        return NULL;
    }
    spec = spec_new(o, m, &refused);
    if (refused.code != ERR_NONE) {
        *e = refused;
        return NULL;
    }
    g = mem_new(sizeof(*g));
    g->model = m;
    g->backend = b;
    g->o = *o;
    g->spec = spec;
    g->blocks = blocks_new(o->kv_blocks, o->seed, o->root, chunk_events);
    sched_init(&g->sched, g->blocks, spec != NULL && spec->model != NULL ? &spec->pool : NULL, o);
    list_init(&g->ended);
    map_init(&g->by_ticket, o->seed, (size_t)o->sequences_max + o->waiting_max);
    take_memory(g);
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
    for (int i = 0; i < SCHED_RANKS; i++) {
        end_all(g, &g->sched.waiting[i]);
    }
    end_all(g, &g->ended);
    sched_fini(&g->sched);
    map_fini(&g->by_ticket);
    blocks_free(g->blocks);
    mem_free(g->ids);
    mem_free(g->q_start);
    mem_free(g->q_len);
    mem_free(g->kv_len);
    mem_free(g->want);
    mem_free(g->table);
    mem_free(g->logits);
    pick_fini(&g->pick);
    spec_free(g->spec);
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
    if (!map_put(&g->by_ticket, engine_ticket(&r->ticket), s)) {
        r->private_seq = NULL;
        seq_free(s);
        return false;
    }
    spec_begin(s);
    g->sched.now_us = engine_now(g);
    sched_add(&g->sched, s);
    return true;
}

/* Not a walk over those who wait: when a gateway goes, all that it sent are aborted at once. */
void engine_abort(struct engine *g, uint64_t ticket)
{
    struct seq *s = map_get(&g->by_ticket, engine_ticket(&ticket));

    if (s != NULL && s->state != SEQ_ENDED) {
        s->abort = true;
        g->aborts++;
    }
}

void engine_stats(const struct engine *g, struct engine_stats *out)
{
    *out = g->totals;
    out->running = g->sched.n_running;
    out->waiting = g->sched.n_waiting;
    out->blocks = blocks_count(g->blocks);
    out->preemptions = g->sched.preemptions;
    if (g->spec != NULL) {
        out->drafted = g->spec->drafted;
        out->accepted = g->spec->accepted;
    }
}

const struct blocks *engine_blocks(const struct engine *g)
{
    return g->blocks;
}
