/* pick.c - from a sequence and its logits to one token. */
#include "worker/engine/pick.h"

void pick_init(struct pick *p, uint32_t vocab, int32_t eos)
{
    p->vocab = vocab;
    p->eos = eos;
    p->counts = mem_new(vocab * sizeof(*p->counts));
    p->mask = mem_new(GRAMMAR_MASK_WORDS(vocab) * sizeof(*p->mask));
    p->scratch = mem_new(SAMPLE_SCRATCH_BYTES(vocab));
}

void pick_fini(struct pick *p)
{
    mem_free(p->counts);
    mem_free(p->mask);
    mem_free(p->scratch);
}

/* Made afresh for each token: a few thousand increments beside a whole forward. */
static void count(struct pick *p, const struct seq *s, uint32_t n_known)
{
    for (uint32_t i = 0; i < n_known; i++) {
        uint16_t *c = &p->counts[s->ids[i]];

        if (i < s->n_prompt) {
            *c = SAMPLE_COUNT_PROMPT;
        } else if ((*c & ~SAMPLE_COUNT_PROMPT) < SAMPLE_COUNT_PROMPT - 1) {
            (*c)++;
        }
    }
}

static void uncount(struct pick *p, const struct seq *s, uint32_t n_known)
{
    for (uint32_t i = 0; i < n_known; i++) {
        p->counts[s->ids[i]] = 0;
    }
}

static void forbid(struct pick *p, int32_t id)
{
    if (id >= 0 && (uint32_t)id < p->vocab) {
        p->mask[id / 32] &= ~(1u << id % 32);
    }
}

static bool allows_some(const struct pick *p)
{
    for (size_t i = 0; i < GRAMMAR_MASK_WORDS(p->vocab); i++) {
        if (p->mask[i] != 0) {
            return true;
        }
    }
    return false;
}

/* Takes the ends off a mask: those of the text, and when it is too early those asked for. */
static void forbid_ends(struct pick *p, const struct engine_request *r, bool early)
{
    uint32_t n = 0;
    const int32_t *ends = r->grammar != NULL ? grammar_ends(r->grammar, &n) : NULL;

    forbid(p, p->eos);
    for (uint32_t i = 0; i < n; i++) {
        forbid(p, ends[i]);
    }
    for (uint32_t i = 0; i < r->n_stop_ids && early; i++) {
        forbid(p, r->stop_ids[i]);
    }
}

/* The mask of what may come; NULL: every token. */
static const uint32_t *mask(struct pick *p, const struct seq *s, uint32_t n_known,
                            const struct grammar_state *where)
{
    const struct engine_request *r = s->request;
    bool early = n_known - s->n_prompt < r->min_tokens;

    if (where == NULL && !early) {
        return NULL;
    }
    if (where != NULL) {
        /* A model may have more rows of logits than its tokenizer has tokens. */
        memset(p->mask, 0, GRAMMAR_MASK_WORDS(p->vocab) * sizeof(*p->mask));
        grammar_mask(r->grammar, where, p->mask);
    } else {
        memset(p->mask, 0xFF, GRAMMAR_MASK_WORDS(p->vocab) * sizeof(*p->mask));
    }
    if (early || r->ignore_eos) {
        forbid_ends(p, r, early);
        if (where != NULL && !allows_some(p)) { /* where only an end may come, it comes */
            grammar_mask(r->grammar, where, p->mask);
        }
    }
    return p->mask;
}

bool pick_token(struct pick *p, const struct seq *s, uint32_t n_known,
                const struct grammar_state *where, float *logits, struct sample_result *out)
{
    const struct sample_params *sp = &s->request->sample;
    const uint32_t *allowed = mask(p, s, n_known, where);
    bool counted = sample_has_penalty(sp);

    if (counted) {
        count(p, s, n_known);
    }
    sample_token(sp, logits, p->vocab, counted ? p->counts : NULL, allowed, n_known - s->n_prompt,
                 p->scratch, out);
    if (counted) {
        uncount(p, s, n_known);
    }
    return out->id >= 0;
}

bool pick_ends(const struct pick *p, const struct engine_request *r, int32_t id)
{
    if (id == p->eos && !r->ignore_eos) {
        return true;
    }
    for (uint32_t i = 0; i < r->n_stop_ids; i++) {
        if (r->stop_ids[i] == id) {
            return true;
        }
    }
    return false;
}
