/* spec_draft.c - drafts from a smaller model: one batched forward a drafted token.
 *
 * The first round also computes what the draft model is behind: the prompt once, later the newest
 * token and the last draft, which nobody has fed yet. */
#include "worker/engine/spec.h"

/* Adds rows of a job's ids from `computed` on to the batch; wants the logits of the last one. */
static void add_rows(struct spec *p, struct batch *b, uint32_t job, uint32_t rows, bool want)
{
    struct seq *s = p->jobs[job].seq;
    uint32_t i = b->sequences++;

    p->job_of[i] = job;
    p->q_start[i] = b->rows;
    p->q_len[i] = rows;
    p->kv_len[i] = s->spec.computed + rows;
    p->table[i] = s->spec.table;
    memcpy(p->ids + b->rows, s->ids + s->spec.computed, rows * sizeof(*p->ids));
    b->rows += rows;
    if (want) {
        p->want[b->wanted++] = b->rows - 1;
    }
}

/* Room for all its drafts, or none of the pool at all: what cannot draft holds no block. */
static bool take_blocks(struct spec *p, const struct spec_job *j)
{
    if (spec_pool_grow(&p->pool, j->seq, j->seq->n_tokens + j->n - 1)) {
        return true;
    }
    spec_pool_drop(&p->pool, j->seq);
    return false;
}

static void first_round(struct spec *p, struct batch *b)
{
    uint32_t left = p->n_jobs * 2 > SPEC_CATCHUP_ROWS ? p->n_jobs * 2 : SPEC_CATCHUP_ROWS;

    left = left < p->rows_max ? left : p->rows_max;
    for (uint32_t i = 0; i < p->n_jobs; i++) {
        struct spec_job *j = &p->jobs[i];
        uint32_t behind = j->seq->n_tokens - j->seq->spec.computed;
        uint32_t rows = behind < left ? behind : left;

        if (rows > 0 && take_blocks(p, j)) {
            behind = j->seq->n_tokens - j->seq->spec.computed; /* a drop forgets */
            rows = behind < left ? behind : left;
            j->running = rows == behind;
            add_rows(p, b, i, rows, j->running);
            left -= rows;
        }
    }
}

static void next_round(struct spec *p, struct batch *b)
{
    for (uint32_t i = 0; i < p->n_jobs; i++) {
        if (p->jobs[i].running) {
            add_rows(p, b, i, 1, true);
        }
    }
}

/* One more draft of a job. */
static void take_draft(struct spec *p, struct pick *pick, uint32_t job, float *logits)
{
    struct spec_job *j = &p->jobs[job];
    struct seq *s = j->seq;
    const struct engine_request *r = s->request;
    struct grammar_state *where = s->grammar != NULL ? &p->where[job] : NULL;
    struct sample_result t;

    if (!pick_token(pick, s, s->n_tokens + s->n_draft, where, logits, &t)) {
        j->running = false;
        return;
    }
    s->ids[s->n_tokens + s->n_draft++] = t.id;
    j->running = s->n_draft < j->n && !pick_ends(pick, r, t.id) &&
                 (where == NULL || (grammar_accept_token(r->grammar, where, t.id) &&
                                    !grammar_finished(r->grammar, where)));
}

static void compute(struct spec *p, struct pick *pick, struct batch *b, float *logits)
{
    uint32_t row = 0;

    p->backend->ops->forward(p->backend, b, logits);
    for (uint32_t i = 0; i < b->sequences; i++) {
        struct spec_job *j = &p->jobs[p->job_of[i]];

        j->seq->spec.computed += p->q_len[i];
        if (j->running) {
            take_draft(p, pick, p->job_of[i], logits + (size_t)row++ * pick->vocab);
        }
    }
}

/* Catching up is paid once, so only steps without it say what a draft costs. */
static void learn(struct spec *p, uint64_t began_us, bool caught_up)
{
    uint32_t tokens = 0;
    double us;

    for (uint32_t i = 0; i < p->n_jobs; i++) {
        tokens += p->jobs[i].seq->n_draft;
    }
    if (p->clock_us == NULL || caught_up || tokens == 0) {
        return;
    }
    us = (double)(p->clock_us(p->clock_ctx) - began_us) / tokens;
    p->draft_us = p->draft_us > 0 ? p->draft_us + (us - p->draft_us) / 16 : us;
}

void spec_draft(struct spec *p, struct pick *pick, float *logits)
{
    uint64_t began_us = p->clock_us != NULL ? p->clock_us(p->clock_ctx) : 0;
    bool caught_up = false;

    for (uint32_t i = 0; i < p->n_jobs; i++) {
        if (p->jobs[i].seq->grammar != NULL) {
            grammar_state_copy(&p->where[i], p->jobs[i].seq->grammar);
        }
    }
    for (uint32_t round = 0; round < ENGINE_DRAFT_TOKENS_MAX; round++) {
        struct batch b = {.ids = p->ids,
                          .q_start = p->q_start,
                          .q_len = p->q_len,
                          .kv_len = p->kv_len,
                          .table = p->table,
                          .want = p->want};

        if (round == 0) {
            first_round(p, &b);
            caught_up = b.rows > 2 * b.sequences;
        } else {
            next_round(p, &b);
        }
        if (b.sequences == 0) {
            break;
        }
        compute(p, pick, &b, logits);
    }
    learn(p, began_us, caught_up);
}
