/* usage_impl.h - what the parts of usage share. Private to gateway/route/usage_*.c. */
#ifndef GATEWAY_ROUTE_USAGE_IMPL_H
#define GATEWAY_ROUTE_USAGE_IMPL_H

#include "gateway/route/usage.h"

/* Parses what an engine sent. Bytes that are not UTF-8 become U+FFFD, -Infinity -9999.0 (as OpenAI
 * clamps logprobs), NaN and Infinity null; a well-formed text is parsed as it is. NULL: not JSON.
 */
struct json *usage_parse(struct arena *a, struct str text);
/* A new node, appended to parent (NULL: alone). NULL: arena exhausted. */
struct json *usage_node(struct arena *a, struct json *parent, enum json_type type, struct str key,
                        struct str text);

/* The count of a "usage" member; present only when it is possible. */
void usage_read_count(const struct json *usage, struct usage_count *out);
/* An engine's finish_reason; false: it says that it failed. Null, absent and "" are FINISH_NONE. */
MUST_USE bool usage_read_finish(const struct json *reason, enum finish *out);
/* The choice that the client gets (index 0 or the first); NULL: none. */
struct json *usage_choice(const struct json *root);

bool usage_is_error(const struct json *root);
/* An error inside a 200: its status is in the text. */
void usage_read_inband(const struct json *root, struct api_error *e);

/* Repairs the calls of a streamed delta or of a whole message in place. false: more calls than
 * USAGE_CALLS_MAX, or arena exhausted. */
MUST_USE bool usage_repair_deltas(struct usage_calls *c, struct arena *a, struct json *calls);
MUST_USE bool usage_repair_whole(struct usage_calls *c, struct arena *a, struct json *calls);

static inline bool usage_is_text(const struct json *v)
{
    return v != NULL && v->type == JSON_STRING;
}

#endif
