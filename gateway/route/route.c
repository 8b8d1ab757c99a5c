/* route.c - algorithm R, and the rate it divides by. See route.h for the formula and README.md for
 * its constants.
 *
 * Loads are whole numbers, so their sums are exact in any order, and every other number of a
 * candidate depends on that candidate alone: the choice does not depend on the order of the list.
 */
#include "gateway/route/route.h"
#include "base/hash.h"

#define GATE_KV 0.90
#define GATE_WAITING 5.0
#define AVOIDABLE 3.0         /* recompute that another worker would not do weighs this much more */
#define UNAVOIDABLE_SHARE 0.7 /* of u_min */
#define LOAD_WEIGHT 20.0
#define LOAD_REQUESTS 0.7
#define LOAD_CONTEXT 0.3
#define LOAD_CONTEXT_TOKENS 2000.0 /* beside the mean: a short context is no load */

/* Shorter samples measure the wire and the step, not prefill. */
#define RATE_TOKENS_MIN 256
#define RATE_SAMPLES_MIN 8
/* Within this of the fleet's median a worker is like the others. */
#define RATE_NEAR_LOW 0.6
#define RATE_NEAR_HIGH 1.67

static bool is_gated(const struct route_candidate *c)
{
    return c->kv_usage >= GATE_KV && c->waiting > GATE_WAITING;
}

static double matched(const struct route_candidate *c, double prompt_tokens)
{
    double m = c->index_trusted ? c->match_tokens : 0;

    return !(m > 0) ? 0 : m < prompt_tokens ? m : prompt_tokens;
}

static double uncached(const struct route_candidate *c, double prompt_tokens)
{
    double u = prompt_tokens - matched(c, prompt_tokens);

    return u > 1 ? u : 1;
}

static double rate(const struct route_candidate *c)
{
    return c->rate > 0 ? c->rate : ROUTE_RATE_DEFAULT;
}

/* Highest-random-weight: every replica that sees the same root and ids takes the same worker. */
static uint64_t rendezvous(const struct route_candidate *c, uint64_t root)
{
    return hash_xxh3(&c->worker_id, sizeof(c->worker_id), root);
}

struct field { /* what a score compares with: over the candidates that passed the gate */
    double prompt_tokens, uncached_min, in_flight_mean, context_mean;
};

static double score(const struct route_candidate *c, const struct field *f)
{
    double u = uncached(c, f->prompt_tokens);
    double work = c->queued_tokens + u + AVOIDABLE * (u - UNAVOIDABLE_SHARE * f->uncached_min);
    double load = LOAD_REQUESTS * c->in_flight / (f->in_flight_mean + 1) +
                  LOAD_CONTEXT * c->context_tokens / (f->context_mean + LOAD_CONTEXT_TOKENS);

    return work / rate(c) * (1 + LOAD_WEIGHT * load);
}

/* Is a better than b, whose score is the same? */
static bool wins_tie(const struct route_candidate *a, const struct route_candidate *b,
                     uint64_t root)
{
    uint64_t wa, wb;

    if (a->in_flight != b->in_flight) {
        return a->in_flight < b->in_flight;
    }
    wa = rendezvous(a, root);
    wb = rendezvous(b, root);
    return wa != wb ? wa > wb : a->worker_id < b->worker_id;
}

static enum route_reason reason_of(const struct route_candidate *c, unsigned left,
                                   unsigned best_score, unsigned fewest)
{
    if (left == 1) {
        return ROUTE_ONLY_ONE;
    }
    if (!c->index_trusted) {
        return ROUTE_LOAD_ONLY;
    }
    if (best_score == 1) {
        return ROUTE_BEST;
    }
    return fewest == 1 ? ROUTE_TIE_FEWER : ROUTE_TIE_RENDEZVOUS;
}

/* The workers that may take it: all, if the gate would leave none. */
static unsigned gate(const struct route_candidate *c, unsigned n, unsigned left[ROUTE_WORKERS_MAX])
{
    unsigned n_left = 0;

    for (unsigned i = 0; i < n; i++) {
        if (!is_gated(&c[i])) {
            left[n_left++] = i;
        }
    }
    if (n_left > 0) {
        return n_left;
    }
    for (unsigned i = 0; i < n; i++) {
        left[i] = i;
    }
    return n;
}

static struct field field_of(const struct route_candidate *c, const unsigned *left, unsigned n_left,
                             double prompt_tokens)
{
    struct field f = {.prompt_tokens = prompt_tokens > 1 ? prompt_tokens : 1};

    for (unsigned i = 0; i < n_left; i++) {
        const struct route_candidate *w = &c[left[i]];
        double u = uncached(w, f.prompt_tokens);

        f.uncached_min = i == 0 || u < f.uncached_min ? u : f.uncached_min;
        f.in_flight_mean += w->in_flight;
        f.context_mean += w->context_tokens;
    }
    f.in_flight_mean /= n_left;
    f.context_mean /= n_left;
    return f;
}

void route_pick(const struct route_candidate *c, unsigned n, double prompt_tokens, uint64_t root,
                struct route_choice *out)
{
    unsigned left[ROUTE_WORKERS_MAX], n_left, best = 0;
    unsigned same_score = 0, same_both = 0; /* candidates that equal the best in score; also in n */
    struct field f;
    double least = 0;

    CHECK(n >= 1 && n <= ROUTE_WORKERS_MAX);
    n_left = gate(c, n, left);
    f = field_of(c, left, n_left, prompt_tokens);
    for (unsigned i = 0; i < n_left; i++) {
        const struct route_candidate *w = &c[left[i]];
        double s = score(w, &f);

        if (i == 0 || s < least) {
            best = left[i];
            least = s;
            same_score = same_both = 1;
        } else if (s == least) {
            same_score++;
            if (w->in_flight < c[best].in_flight) {
                same_both = 1;
            } else if (w->in_flight == c[best].in_flight) {
                same_both++;
            }
            best = wins_tie(w, &c[best], root) ? left[i] : best;
        }
    }
    *out = (struct route_choice){
        .index = best,
        .reason = reason_of(&c[best], n_left, same_score, same_both),
        .predicted_ttft_s =
            (c[best].queued_tokens + uncached(&c[best], f.prompt_tokens)) / rate(&c[best]),
        .predicted_cached = matched(&c[best], f.prompt_tokens),
    };
}

void route_rate_add(struct route_rate *r, double tokens, double seconds)
{
    if (!(tokens >= RATE_TOKENS_MIN) || !(seconds > 0)) {
        return;
    }
    r->sample[r->count % ROUTE_RATE_SAMPLES] = (float)(tokens / seconds);
    /* The counter wraps after 4 thousand million samples: it then restarts full, not empty. */
    r->count = r->count == UINT32_MAX ? ROUTE_RATE_SAMPLES : r->count + 1;
}

double route_rate_median(const struct route_rate *r)
{
    float v[ROUTE_RATE_SAMPLES];
    uint32_t n = r->count < ROUTE_RATE_SAMPLES ? r->count : ROUTE_RATE_SAMPLES;

    if (n < RATE_SAMPLES_MIN) {
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) { /* insertion sort: 64 at most */
        uint32_t j = i;

        for (; j > 0 && v[j - 1] > r->sample[i]; j--) {
            v[j] = v[j - 1];
        }
        v[j] = r->sample[i];
    }
    return n % 2 == 1 ? (double)v[n / 2] : ((double)v[n / 2 - 1] + (double)v[n / 2]) / 2;
}

double route_rate_used(double own, double fleet)
{
    if (!(fleet > 0)) {
        return own > 0 ? own : ROUTE_RATE_DEFAULT;
    }
    if (!(own > 0) || (own >= RATE_NEAR_LOW * fleet && own <= RATE_NEAR_HIGH * fleet)) {
        return fleet;
    }
    return own;
}
