/* openai.h - /v1/chat/completions and /v1/completions: parse and check, the engine's body, and the
 * rendering of answers. Pure: bytes and trees in, bytes out. Names neither admit nor route.
 *
 * One pass of JSON; what goes upstream is written from the tree that was checked (an unchanged list
 * or object in its sender's own spelling, which a strict parser has read), so a
 * smuggled duplicate cannot exist. Unknown fields are accepted and passed on to engines of kind
 * openai (an allow-list of known ones goes to ours; it accepts unknown ones too). */
#ifndef GATEWAY_API_OPENAI_H
#define GATEWAY_API_OPENAI_H

#include "base/json.h"
#include "gateway/api/error.h"
#include "ledger/entry.h"
#include "ledger/snapshot.h"

struct openai_request {
    enum endpoint endpoint; /* ENDPOINT_CHAT or ENDPOINT_COMPLETIONS */
    const struct json *root;
    struct str model;  /* as the client wrote it */
    struct str prompt; /* completions, a string (a list of one string counts as it) */
    bool stream, include_usage;
    int64_t max_tokens;    /* what the client asked (max_completion_tokens wins); -1: absent, but
                            * completions have a default of 16 */
    enum tier tier;        /* asked: auto, default, scale, fast -> standard; unknown -> 400 */
    const char *tier_echo; /* service_tier to echo; NULL when the field was absent */
    struct str cache_key;  /* prompt_cache_key or {NULL,0} */
    struct str user;
    uint64_t text_bytes; /* at least the bytes of all text that reaches the prompt: tools, calls and
                          * parts as an engine's template may show their JSON; images aside */
    uint32_t messages;
    uint32_t images; /* non-text parts */
};

/* Checks what is known, as the API's specification has it: messages present, non-empty, roles
 * known, content shapes, ranges of temperature, top_p, penalties, top_logprobs (0..20; completions
 * logprobs 0..5), stop (<= 4), n (only 1 here: else 400 unsupported_parameter), max_tokens >= 1 (0
 * allowed nowhere), seed an int64, stream a boolean, user a string... null counts as absent. false:
 * e is set.
 * The tree under root is repaired where engines differ (role developer becomes system, tools of
 * other types than function are dropped), so prefix and engine body walk one and the same. */
MUST_USE bool openai_parse(struct arena *a, enum endpoint ep, struct str body,
                           struct openai_request *out, struct api_error *e);
/* max_tokens -1: the engine's own limit. The body for the engine: model replaced, stream as asked
 * (always for ENGINE_TOLLGATE: its answers are gathered from a stream), max tokens made explicit
 * (both names folded into max_tokens), usage always asked for in streams. Left out: store,
 * metadata, user, service_tier, prompt_cache_key and its kin, safety_identifier and what else ends
 * at the gateway, and the fields with which a client could act on the engine itself (openai_body.c
 * lists them). */
void openai_engine_body(const struct openai_request *r, enum engine_kind kind,
                        struct str engine_model, int64_t max_tokens, struct buf *out);

/* What every chunk or answer of one request carries. */
struct openai_answer {
    enum endpoint endpoint;
    struct str id; /* "chatcmpl-..." / "cmpl-..." */
    uint64_t created_s;
    struct str model; /* the public name */
    bool include_usage;
    const char *tier_echo;
};
struct openai_usage {
    int64_t prompt, cached, completion, reasoning;
};

/* One normalised piece of an engine's stream. Fields are borrowed from a parsed tree. */
struct openai_delta {
    struct str role; /* chat only; empty: none */
    struct str text; /* content or completions text */
    bool has_text;
    const struct json *refusal, *reasoning, *tool_calls, *logprobs; /* NULL: absent */
};
/* "data: {...}\n\n". finish FINISH_NONE: null. A finish chunk has an empty delta. */
void openai_render_chunk(const struct openai_answer *a, const struct openai_delta *d, enum finish f,
                         struct buf *out);
void openai_render_usage_chunk(const struct openai_answer *a, const struct openai_usage *u,
                               struct buf *out);
void openai_render_done(struct buf *out);
void openai_render_error_event(const struct api_error *e, struct buf *out);
/* The whole answer. message: the engine's choices[0] (message or text and logprobs are taken). */
void openai_render_whole(const struct openai_answer *a, const struct json *choice, enum finish f,
                         const struct openai_usage *u, struct buf *out);
/* /v1/models and /v1/models/{id}: only models with a price and a worker (caller filters). */
void openai_render_models(const struct snap_model *const *models, size_t n, struct buf *out);
void openai_render_model(const struct snap_model *m, struct buf *out);

#endif
