/* sample.h - from logits to one token. Pure: randomness is keyed by (seed, choice, position), so a
 * token depends on neither batch, nor chunking, nor what ran before. */
#ifndef WORKER_ENGINE_SAMPLE_H
#define WORKER_ENGINE_SAMPLE_H

#include "base/base.h"

#define SAMPLE_TOP_LOGPROBS_MAX 20
#define SAMPLE_SCRATCH_BYTES(vocab) ((size_t)(vocab)*12)
#define SAMPLE_COUNT_PROMPT 0x8000u /* flag in counts[]: the token is in the prompt */

struct sample_bias {
    int32_t id; /* < vocab: checked at the door */
    float bias;
};

struct sample_params {
    float temperature; /* 0: argmax (lowest id wins a tie) */
    float top_p;       /* 1: off */
    uint32_t top_k;    /* 0: off */
    float min_p;       /* 0: off */
    float presence_penalty, frequency_penalty, repetition_penalty; /* 0, 0, 1: off */
    const struct sample_bias *bias; /* [n_bias], borrowed; added after the penalties */
    uint32_t n_bias;
    uint64_t seed;
    uint32_t choice; /* of n answers to one prompt: noise is keyed by (seed, choice, position) */
    uint32_t top_logprobs; /* alternatives wanted, <= SAMPLE_TOP_LOGPROBS_MAX */
    bool logprobs;
};

struct sample_logprob {
    int32_t id;
    float logprob; /* raw log-softmax of the logits */
};

struct sample_result {
    int32_t id;
    float logprob;
    struct sample_logprob top[SAMPLE_TOP_LOGPROBS_MAX]; /* descending */
    uint32_t top_count;
};

/* True when sample_token needs counts. */
bool sample_has_penalty(const struct sample_params *p);
/* logits [vocab] are changed in place (penalties, bias). counts [vocab]: how often a token is in
 * the answer so far (presence and frequency), with SAMPLE_COUNT_PROMPT when it is in the prompt too
 * (repetition looks at both); may be NULL when no penalty is on. position: of the new token in the
 * answer. scratch: SAMPLE_SCRATCH_BYTES(vocab), owned by the caller. NaN logits count as -infinity.
 * Order: penalties, bias, temperature, min_p, top_k, top_p. Ties go to the lower id.
 * allowed: bit id % 32 of word id / 32, as grammar_mask writes it; NULL: every token. Others are
 * -infinity before all else and never come, whatever the logits are; id is -1 when none is allowed.
 * Log-probabilities stay those of the raw logits. */
void sample_token(const struct sample_params *p, float *logits, uint32_t vocab,
                  const uint16_t *counts, const uint32_t *allowed, uint64_t position, void *scratch,
                  struct sample_result *out);

#endif
