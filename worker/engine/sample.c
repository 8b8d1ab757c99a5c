/* sample.c - penalties, truncation and one draw, keyed by (seed, choice, position).
 *
 * No sort: top_k and top_p each find the last token that is kept by quickselect, so the cost is
 * linear in the vocabulary. The draw then walks what is kept in id order, with sums in double, so
 * that it depends on nothing but the logits. */
#include "worker/engine/sample.h"

#include <math.h>

struct entry {    /* of the caller's scratch */
    float weight; /* exp((logit - max) / temperature): 1 for the likeliest */
    int32_t id;
};
_Static_assert(sizeof(struct entry) == 8, "the header promises 8-byte entries");

bool sample_has_penalty(const struct sample_params *p)
{
    return p->presence_penalty != 0 || p->frequency_penalty != 0 || p->repetition_penalty != 1;
}

static bool better(struct entry a, struct entry b)
{
    return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

#define GOLDEN_GAMMA 0x9E3779B97F4A7C15ull

static uint64_t splitmix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

/* A uniform double in [0, 1) that belongs to this choice and position alone. Choice 0 leaves the
 * seed as it is; the others get a seed of their own. */
static double keyed_uniform(uint64_t seed, uint32_t choice, uint64_t position)
{
    uint64_t own = choice == 0 ? seed : splitmix(splitmix(seed + GOLDEN_GAMMA) + choice);
    uint64_t z = splitmix(own + GOLDEN_GAMMA * (position + 1));

    z = splitmix(z + GOLDEN_GAMMA) + GOLDEN_GAMMA;
    return (double)(z >> 11) * 0x1p-53;
}

#define ARGMAX_LANES 16

/* The largest, NaN aside; -infinity when there is none. Lanes, so that it is done by vectors: a
 * plain scan of 49,000 logits costs a sixteenth of a small model's step. */
static float max_of(const float *logits, uint32_t vocab)
{
    float lane[ARGMAX_LANES], max = -INFINITY;
    uint32_t i = 0;

    for (uint32_t k = 0; k < ARGMAX_LANES; k++) {
        lane[k] = -INFINITY;
    }
    for (; i + ARGMAX_LANES <= vocab; i += ARGMAX_LANES) {
        for (uint32_t k = 0; k < ARGMAX_LANES; k++) {
            lane[k] = logits[i + k] > lane[k] ? logits[i + k] : lane[k];
        }
    }
    for (; i < vocab; i++) {
        max = logits[i] > max ? logits[i] : max;
    }
    for (uint32_t k = 0; k < ARGMAX_LANES; k++) {
        max = lane[k] > max ? lane[k] : max;
    }
    return max;
}

/* The first of the largest. */
static int32_t argmax(const float *logits, uint32_t vocab)
{
    float max = max_of(logits, vocab);

    for (uint32_t i = 0; i < vocab; i++) {
        if (logits[i] == max) {
            return (int32_t)i;
        }
    }
    return 0; /* nothing but NaN */
}

static double log_sum_exp(const float *logits, uint32_t vocab, float max)
{
    double sum = 0;

    for (uint32_t i = 0; i < vocab; i++) {
        if (logits[i] > max - 80) { /* the rest is below the last bit of the sum */
            sum += exp((double)(logits[i] - max));
        }
    }
    return (double)max + log(sum);
}

/* The likeliest `wanted` ids by the raw logits, descending. */
static void top_alternatives(const float *logits, uint32_t vocab, uint32_t wanted, double lse,
                             struct sample_result *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < vocab; i++) {
        float l = (float)((double)logits[i] - lse);
        uint32_t at = n;

        if (isnan(l) || (n == wanted && !(l > out->top[n - 1].logprob))) {
            continue;
        }
        if (n < wanted) {
            n++;
        } else {
            at--;
        }
        for (; at > 0 && out->top[at - 1].logprob < l; at--) {
            out->top[at] = out->top[at - 1];
        }
        out->top[at] = (struct sample_logprob){.id = (int32_t)i, .logprob = l};
    }
    out->top_count = n;
}

static void penalize(const struct sample_params *p, float *logits, uint32_t vocab,
                     const uint16_t *counts)
{
    for (uint32_t i = 0; i < vocab; i++) {
        unsigned answered = counts[i] & ~SAMPLE_COUNT_PROMPT;

        if (counts[i] == 0) {
            continue;
        }
        logits[i] =
            logits[i] > 0 ? logits[i] / p->repetition_penalty : logits[i] * p->repetition_penalty;
        if (answered != 0) {
            logits[i] -= p->presence_penalty + p->frequency_penalty * (float)answered;
        }
    }
}

/* Moves the better part of e[lo, hi) before the rest; returns where the rest begins. The pivot ends
 * up at the returned index, so both parts shrink. */
static uint32_t partition(struct entry *e, uint32_t lo, uint32_t hi)
{
    uint32_t mid = lo + (hi - lo) / 2, at = lo;
    struct entry pivot = e[mid], t;

    e[mid] = e[hi - 1];
    e[hi - 1] = pivot;
    for (uint32_t i = lo; i < hi - 1; i++) {
        if (better(e[i], pivot)) {
            t = e[i];
            e[i] = e[at];
            e[at++] = t;
        }
    }
    e[hi - 1] = e[at];
    e[at] = pivot;
    return at;
}

/* The k-th best (k >= 1) of e[0, n). */
static struct entry select_count(struct entry *e, uint32_t n, uint32_t k)
{
    uint32_t lo = 0, hi = n;

    for (;;) {
        uint32_t at = partition(e, lo, hi);

        if (at == k - 1) {
            return e[at];
        }
        if (at > k - 1) {
            hi = at;
        } else {
            lo = at + 1;
        }
    }
}

/* The last of the shortest best-first prefix whose weight reaches `mass`. */
static struct entry select_mass(struct entry *e, uint32_t n, double mass)
{
    uint32_t lo = 0, hi = n;

    while (hi - lo > 1) {
        uint32_t at = partition(e, lo, hi);
        double before = 0;

        for (uint32_t i = lo; i < at; i++) {
            before += (double)e[i].weight;
        }
        if (before >= mass && at > lo) {
            hi = at;
        } else if (before + (double)e[at].weight >= mass || at + 1 == hi) {
            return e[at];
        } else {
            mass -= before + (double)e[at].weight;
            lo = at + 1;
        }
    }
    return e[lo];
}

static uint32_t keep_from(struct entry *e, uint32_t n, struct entry last)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (!better(last, e[i])) {
            e[kept++] = e[i];
        }
    }
    return kept;
}

static double sum_weights(const struct entry *e, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        sum += (double)e[i].weight;
    }
    return sum;
}

static int32_t draw(const struct sample_params *p, const float *logits, uint32_t vocab,
                    uint64_t position, struct entry *e)
{
    float max = logits[argmax(logits, vocab)], least = p->min_p > 0 ? p->min_p : 0;
    struct entry last = {.weight = -1, .id = 0};
    uint32_t n = 0;
    double target, sum = 0;
    int32_t id = -1;

    for (uint32_t i = 0; i < vocab; i++) {
        float w = expf((logits[i] - max) / p->temperature);

        if (w >= least && w > 0) { /* false for NaN */
            e[n++] = (struct entry){.weight = w, .id = (int32_t)i};
        }
    }
    if (n == 0) {
        return argmax(logits, vocab);
    }
    if (p->top_k > 0 && p->top_k < n) {
        last = select_count(e, n, p->top_k);
        n = keep_from(e, n, last);
    }
    if (p->top_p < 1) {
        last = select_mass(e, n, (double)p->top_p * sum_weights(e, n));
        n = keep_from(e, n, last);
    }
    /* Only the set is kept from the scrambled order; the walk below is by id. */
    target = keyed_uniform(p->seed, p->choice, position) * sum_weights(e, n);
    for (uint32_t i = 0; i < vocab; i++) {
        struct entry c = {.weight = expf((logits[i] - max) / p->temperature), .id = (int32_t)i};

        if (!(c.weight >= least && c.weight > 0) || better(last, c)) {
            continue;
        }
        id = c.id;
        sum += (double)c.weight;
        if (sum > target) {
            break;
        }
    }
    return id;
}

static void forbid(float *logits, uint32_t vocab, const uint32_t *allowed)
{
    for (uint32_t i = 0; i < vocab; i++) {
        if ((allowed[i / 32] >> i % 32 & 1) == 0) {
            logits[i] = -INFINITY; /* NaN too */
        }
    }
}

static bool is_allowed(const uint32_t *allowed, int32_t id)
{
    return (allowed[id / 32] >> id % 32 & 1) != 0;
}

/* What stands in for a draw that broken logits led astray; -1: nothing is allowed. */
static int32_t first_allowed(const uint32_t *allowed, uint32_t vocab)
{
    for (uint32_t i = 0; i < vocab; i++) {
        if (is_allowed(allowed, (int32_t)i)) {
            return (int32_t)i;
        }
    }
    return -1;
}

void sample_token(const struct sample_params *p, float *logits, uint32_t vocab,
                  const uint16_t *counts, const uint32_t *allowed, uint64_t position, void *scratch,
                  struct sample_result *out)
{
    struct entry *entries = scratch;
    float *raw = (float *)(void *)(entries + vocab); /* log-probabilities are of these */
    bool penalties = counts != NULL && sample_has_penalty(p);
    double lse = 0;

    CHECK(vocab > 0 && p->top_logprobs <= SAMPLE_TOP_LOGPROBS_MAX);
    memset(out, 0, sizeof(*out));
    if (p->logprobs) {
        lse = log_sum_exp(logits, vocab, logits[argmax(logits, vocab)]);
        memcpy(raw, logits, (size_t)vocab * sizeof(*raw));
        if (p->top_logprobs > 0) {
            top_alternatives(logits, vocab, p->top_logprobs, lse, out);
        }
    }
    if (allowed != NULL) {
        forbid(logits, vocab, allowed);
    }
    if (penalties) {
        penalize(p, logits, vocab, counts);
    }
    for (uint32_t i = 0; i < p->n_bias; i++) {
        CHECK((uint32_t)p->bias[i].id < vocab);
        logits[p->bias[i].id] += p->bias[i].bias;
    }
    out->id =
        p->temperature > 0 ? draw(p, logits, vocab, position, entries) : argmax(logits, vocab);
    if (allowed != NULL && !is_allowed(allowed, out->id)) {
        out->id = first_allowed(allowed, vocab);
    }
    if (p->logprobs && out->id >= 0) {
        out->logprob = (float)((double)raw[out->id] - lse);
    }
}
