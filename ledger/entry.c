/* entry.c - the names of the numbers in a row, as in sql/'s lookup tables. */
#include "ledger/entry.h"

const char *outcome_name(enum outcome o)
{
    static const char *const names[] = {
        [OUTCOME_DONE] = "done",
        [OUTCOME_CLIENT_ABORT] = "client_abort",
        [OUTCOME_WORKER_ERROR] = "worker_error",
        [OUTCOME_TIMEOUT] = "timeout",
        [OUTCOME_CLAMPED] = "clamped",
        [OUTCOME_DEADLINE] = "deadline",
        [OUTCOME_GATEWAY_RESTART] = "gateway_restart",
        [OUTCOME_REFUSED_BY_WORKER] = "refused_by_worker",
    };

    return (size_t)o < ARRAY_LEN(names) && names[o] != NULL ? names[o] : "?";
}

const char *route_reason_name(enum route_reason r)
{
    static const char *const names[] = {
        [ROUTE_BEST] = "best",
        [ROUTE_TIE_FEWER] = "tie_fewer",
        [ROUTE_TIE_RENDEZVOUS] = "tie_rendezvous",
        [ROUTE_ONLY_ONE] = "only_one",
        [ROUTE_LOAD_ONLY] = "load_only",
        [ROUTE_RETRY] = "retry",
        [ROUTE_BATCH] = "batch",
    };

    return (size_t)r < ARRAY_LEN(names) && names[r] != NULL ? names[r] : "?";
}

const char *usage_state_name(enum usage_state s)
{
    static const char *const names[] = {
        [USAGE_MEASURED] = "measured",   [USAGE_STREAMED_COUNT] = "streamed_count",
        [USAGE_ESTIMATED] = "estimated", [USAGE_CLAMPED] = "clamped",
        [USAGE_UNKNOWN] = "unknown",
    };

    return (size_t)s < ARRAY_LEN(names) && names[s] != NULL ? names[s] : "?";
}

const char *finish_name(enum finish f)
{
    static const char *const names[] = {
        [FINISH_NONE] = "none",
        [FINISH_STOP] = "stop",
        [FINISH_LENGTH] = "length",
        [FINISH_TOOL_CALLS] = "tool_calls",
        [FINISH_CONTENT_FILTER] = "content_filter",
        [FINISH_ERROR] = "error",
    };

    return (size_t)f < ARRAY_LEN(names) && names[f] != NULL ? names[f] : "?";
}
