/* pick.h - the next token of a sequence from its logits: counts for the penalties, the mask of what
 * may come (grammar, min_tokens), then one draw keyed by (seed, choice, position).
 *
 * Target and draft pick with the same call, so that a draft with the target's logits draws the
 * target's token. Private to worker/engine. Allocates nothing a token. */
#ifndef WORKER_ENGINE_PICK_H
#define WORKER_ENGINE_PICK_H

#include "worker/engine/seq.h"

struct pick {
    uint32_t vocab;
    int32_t eos;
    uint16_t *counts; /* owned; [vocab]; all zero between two picks */
    uint32_t *mask;   /* owned; [GRAMMAR_MASK_WORDS(vocab)] */
    void *scratch;    /* owned; of sample_token */
};

void pick_init(struct pick *p, uint32_t vocab, int32_t eos);
void pick_fini(struct pick *p);
/* The token at position n_known of s, whose ids [0, n_known) are given; where: the state of its
 * grammar there, NULL without one. Logits [vocab] are changed. false: no token may come. */
MUST_USE bool pick_token(struct pick *p, const struct seq *s, uint32_t n_known,
                         const struct grammar_state *where, float *logits,
                         struct sample_result *out);
/* True when the answer ends with this token: EOS or a stop id. */
bool pick_ends(const struct pick *p, const struct engine_request *r, int32_t id);

#endif
