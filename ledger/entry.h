/* entry.h - one usage row: every column of usage_event, and the enumerations (append-only numbers,
 * lookup tables of the same name in sql/). The ledger never sees a prompt. */
#ifndef LEDGER_ENTRY_H
#define LEDGER_ENTRY_H

#include "base/uuid.h"
#include "ledger/price.h"

enum endpoint {
    ENDPOINT_CHAT = 1,
    ENDPOINT_COMPLETIONS = 2,
    ENDPOINT_EMBEDDINGS = 3,
    ENDPOINT_MESSAGES = 4,
    ENDPOINT_RESPONSES = 5
};
enum entry_kind {
    KIND_USAGE = 1,
    KIND_CORRECTION,
    KIND_REFUND,
    KIND_VOID,
    KIND_ADJUSTMENT,
    KIND_TRUE_UP
};
enum usage_state {
    USAGE_MEASURED = 1,
    USAGE_STREAMED_COUNT,
    USAGE_ESTIMATED,
    USAGE_CLAMPED,
    USAGE_UNKNOWN
};
enum outcome {
    OUTCOME_DONE = 1,
    OUTCOME_CLIENT_ABORT,
    OUTCOME_WORKER_ERROR,
    OUTCOME_TIMEOUT,
    OUTCOME_CLAMPED,
    OUTCOME_DEADLINE,
    OUTCOME_GATEWAY_RESTART,
    OUTCOME_REFUSED_BY_WORKER
};
enum finish {
    FINISH_NONE = 0,
    FINISH_STOP = 1,
    FINISH_LENGTH,
    FINISH_TOOL_CALLS,
    FINISH_CONTENT_FILTER,
    FINISH_ERROR
};
enum route_reason {
    ROUTE_BEST = 1,
    ROUTE_TIE_FEWER,
    ROUTE_TIE_RENDEZVOUS,
    ROUTE_ONLY_ONE,
    ROUTE_LOAD_ONLY,
    ROUTE_RETRY,
    ROUTE_BATCH
};

const char *outcome_name(enum outcome o);
const char *route_reason_name(enum route_reason r);
const char *usage_state_name(enum usage_state s);
const char *finish_name(enum finish f); /* "stop", "length", ... */

#define TOKENS_NO_PREDICTION (-1)

struct entry {
    uint64_t occurred_us; /* wall, at admission; the partition key: a replay carries the same */
    struct uuid event;    /* of the attempt */
    struct uuid request;  /* event id of attempt 1; names the hold */
    int32_t gateway_id, gw_epoch;
    int64_t gw_seq; /* dense per (gateway, epoch), given by the journal; 0 before */
    int32_t tenant_id, project_id, key_id, user_id, tagset_id;
    int32_t worker_id, price_id;
    uint64_t worker_epoch;
    int64_t worker_seq;
    int16_t attempt, endpoint, model_id, tier_requested, tier_served, kind, usage_state, outcome,
        http_status, finish, route_reason, reason_code;
    struct tokens tok;
    int32_t cached_predicted; /* TOKENS_NO_PREDICTION: none */
    int32_t accepted_draft;
    int64_t cost_pusd, list_pusd, hold_nusd;
    int64_t gpu_us;
    int32_t queue_us, ttft_us, dur_us; /* ttft 0: no byte came */
    bool degraded;
    struct uuid corrects; /* zero: none */
    int64_t batch_id;     /* 0: none */
    int32_t batch_line;
    uint64_t client_idem_hash; /* 0: none */
};

#endif
