/* route.h - algorithm R: which worker gets this prompt. Pure arithmetic over numbers; the caller
 * gathers them from whohas and the workers' load. Constants and reasons: gateway/route/README.md.
 *
 *   work  = q + u + 3 (u - 0.7 u_min)
 *   score = work / rate x (1 + 20 (0.7 n/(mean n + 1) + 0.3 c/(mean c + 2000)))
 * least wins; ties: fewer in flight, then rendezvous on root (replicas must agree). */
#ifndef GATEWAY_ROUTE_ROUTE_H
#define GATEWAY_ROUTE_ROUTE_H

#include "ledger/entry.h"

#define ROUTE_WORKERS_MAX 64
#define ROUTE_RATE_DEFAULT 8000.0 /* tokens/s when nobody has 8 samples */
#define ROUTE_BYTES_PER_TOKEN_DEFAULT 4.0

struct route_candidate {
    unsigned slot;         /* of the worker; also its bit in whohas */
    int32_t worker_id;     /* rendezvous mixes this one, so that restarts agree */
    double match_tokens;   /* of this prompt that it holds */
    double queued_tokens;  /* q: uncached tokens dispatched with no first byte yet */
    double in_flight;      /* n */
    double context_tokens; /* c: prompt tokens of requests in flight */
    double rate;           /* tokens/s learned; 0: too few samples */
    double kv_usage;       /* 0..1; < 0 unknown */
    double waiting;        /* engine's own queue; < 0 unknown */
    bool index_trusted;    /* false: load-only for this one */
};

struct route_choice {
    unsigned index; /* in the candidates */
    enum route_reason reason;
    double predicted_ttft_s; /* (q + u) / rate */
    double predicted_cached; /* match_tokens of the chosen */
};

/* n >= 1 candidates that are healthy, serve the model and were not tried yet. */
void route_pick(const struct route_candidate *c, unsigned n, double prompt_tokens, uint64_t root,
                struct route_choice *out);

/* Learned prefill rate: median of the last 64 samples of >= 256 tokens. */
#define ROUTE_RATE_SAMPLES 64
struct route_rate {
    float sample[ROUTE_RATE_SAMPLES]; /* tokens/s */
    uint32_t count;                   /* ever */
};
void route_rate_add(struct route_rate *r, double tokens, double seconds);
double route_rate_median(const struct route_rate *r); /* 0: fewer than 8 samples */
/* The rate R uses: fleet median when own < 8 samples or lies within [0.6, 1.67] x that median. */
double route_rate_used(double own, double fleet);

#endif
