/* usage.h - what an engine said, made normal: chunks, whole answers, usage, errors in their many
 * dialects, repaired in one place. Pure.
 *
 * Repairs: usage missing, in every chunk, doubled, malformed, impossible (cached > prompt,
 * negative, beyond the bound); in-band errors inside a 200; finish_reason "" or missing; text
 * inside the finish chunk (delivered with the finish: the caller sends the text at once and holds
 * the finish); overflow in four wordings; tool calls without index or id, or two under one index;
 * "stop" after a call; -Infinity (becomes -9999.0), NaN (null); bytes that are not UTF-8 (U+FFFD).
 */
#ifndef GATEWAY_ROUTE_USAGE_H
#define GATEWAY_ROUTE_USAGE_H

#include "gateway/api/openai.h"

struct usage_count {
    bool present; /* said by the engine and possible */
    int64_t prompt, cached, completion, reasoning;
};

struct usage_chunk {
    struct openai_delta delta;
    bool has_content; /* text, tool call, reasoning, refusal, logprobs: something the client gets */
    enum finish finish; /* FINISH_NONE: not the end */
    struct usage_count usage;
    bool is_error;
    struct api_error error;
};

/* The tool calls of one answer, told apart across its chunks: clients correlate deltas by index and
 * answer by id, engines leave out either or give two calls one index. The caller keeps one per
 * attempt and inits it at the attempt's start. */
#define USAGE_CALLS_MAX 64 /* parallel calls of one answer; agents make a few */
struct usage_call {
    uint64_t id;   /* hash of the engine's id; 0: it gave none */
    uint64_t name; /* hash of the function's name; 0: none yet */
    int64_t index; /* the engine's; -1: it gave none */
    bool has_arguments;
};
struct usage_calls {
    struct uuid event; /* ids that the engine left out are made of it */
    uint32_t count;
    struct usage_call call[USAGE_CALLS_MAX];
};
void usage_calls_init(struct usage_calls *c, struct uuid event);

/* One SSE data line of an engine ("[DONE]" is the caller's). The arena holds the tree: reset it
 * after use. data must outlive *out. false: not a chunk at all (bad JSON, not an object): the
 * stream is broken. An engine's reason "error" or "abort" is an error. */
MUST_USE bool usage_read_chunk(struct usage_calls *calls, struct arena *a, enum endpoint ep,
                               struct str data, struct usage_chunk *out);

struct usage_whole {
    const struct json *choice; /* choices[0] */
    enum finish finish;
    struct usage_count usage;
    uint64_t text_bytes;
    bool is_error; /* false was answered, and the engine says itself that it did not do it */
};
/* A 200 body. false: e says (in-band error, no choices, no reason, cut short: 502). */
MUST_USE bool usage_read_whole(struct usage_calls *calls, struct arena *a, enum endpoint ep,
                               struct str body, struct usage_whole *out, struct api_error *e);
/* Of a 200 body that broke off: how many bytes of text, reasoning and calls' arguments came. */
uint64_t usage_part_bytes(enum endpoint ep, struct str body);
/* The same answer as the one piece of a stream: the client asked for one, the engine did not. Once
 * only: the tree gets the indexes of its calls. false: arena exhausted. */
MUST_USE bool usage_whole_delta(struct arena *a, enum endpoint ep, const struct usage_whole *w,
                                struct openai_delta *out);
/* A non-200 answer of an engine: our status, code and wording. context: 0 unknown. 400s keep their
 * message (engine paths stripped), overflow becomes context_length_exceeded, 429/503 keep a
 * Retry-After of 1..60 s, everything else is a 502 without the engine's text. */
void usage_read_error(unsigned status, struct str retry_after, struct str body, int64_t context,
                      struct api_error *e);

/* The bill of one attempt. */
struct usage_bill_input {
    struct usage_count said;            /* last usage of the engine */
    bool ours;                          /* our worker: its count is the truth */
    int64_t prompt_bound, output_bound; /* what was reserved; the bill stays within */
    int64_t content_events;             /* streamed pieces with content */
    uint64_t answer_bytes;              /* text bytes of a whole answer or of the stream */
    uint64_t prompt_bytes;
    double bytes_per_token; /* learned; 0: 4 */
    bool streamed;
    bool produced; /* any content, or a right end without any: else it costs nothing */
};
/* Classes are disjoint. What an engine claims beyond the bounds is cut (the cached part first) and
 * USAGE_CLAMPED; an estimate is kept within them silently. */
void usage_bill(const struct usage_bill_input *in, struct tokens *out, enum usage_state *state);

#endif
