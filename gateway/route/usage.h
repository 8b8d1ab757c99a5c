/* usage.h - what an engine said, made normal: chunks, whole answers, usage, errors in their many
 * dialects, repaired in one place. Pure.
 *
 * Repairs: usage missing, in every chunk, doubled, malformed, impossible (cached > prompt,
 * negative, beyond the bound); in-band errors inside a 200; finish_reason "" or missing; text inside
 * the finish chunk (split off); role in every chunk; overflow in four wordings; -Infinity is not
 * JSON and so an error; bytes that are not UTF-8 become U+FFFD. */
#ifndef GATEWAY_ROUTE_USAGE_H
#define GATEWAY_ROUTE_USAGE_H

#include "gateway/api/openai.h"

struct usage_count {
    bool present;      /* said by the engine and possible */
    int64_t prompt, cached, completion, reasoning;
};

struct usage_chunk {
    struct openai_delta delta;
    bool has_content;      /* text, tool call, reasoning, refusal: something the client gets */
    enum finish finish;    /* FINISH_NONE: not the end */
    struct usage_count usage;
    bool is_error;
    struct api_error error;
};

/* One SSE data line of an engine ("[DONE]" is the caller's). The arena holds the tree: reset it after
 * use. false: not a chunk at all (bad JSON, not an object): the stream is broken. */
MUST_USE bool usage_read_chunk(struct arena *a, enum endpoint ep, struct str data, struct usage_chunk *out);

struct usage_whole {
    const struct json *choice; /* choices[0] */
    enum finish finish;
    struct usage_count usage;
    uint64_t text_bytes;
};
/* A 200 body. false: e says (in-band error, no choices, no reason, cut short: 502). */
MUST_USE bool usage_read_whole(struct arena *a, enum endpoint ep, struct str body, struct usage_whole *out, struct api_error *e);
/* A non-200 answer of an engine: our status, code and wording. context: 0 unknown. 400s keep their
 * message (engine paths stripped), overflow becomes context_length_exceeded, 429/503 keep a
 * Retry-After of 1..60 s, everything else is a 502 without the engine's text. */
void usage_read_error(unsigned status, struct str retry_after, struct str body, int64_t context, struct api_error *e);

/* The bill of one attempt. */
struct usage_bill_input {
    struct usage_count said;      /* last usage of the engine */
    bool ours;                    /* our worker: its count is the truth */
    int64_t prompt_bound, output_bound;  /* what was reserved; the bill stays within */
    int64_t content_events;       /* streamed pieces with content */
    uint64_t answer_bytes;        /* text bytes of a whole answer or of the stream */
    uint64_t prompt_bytes;
    double bytes_per_token;       /* learned; 0: 4 */
    bool streamed;
    bool produced;                /* any content at all: else it costs nothing */
};
void usage_bill(const struct usage_bill_input *in, struct tokens *out, enum usage_state *state);

#endif
