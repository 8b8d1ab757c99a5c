/* openai_check.h - the checks that openai_parse is made of. Private to gateway/api.
 *
 * Each returns false with e set at the first fault. Null counts as absent everywhere. */
#ifndef GATEWAY_API_OPENAI_CHECK_H
#define GATEWAY_API_OPENAI_CHECK_H

#include "gateway/api/openai.h"

#define CHECK_PATH_BYTES 64       /* as api_error.param */
#define CHECK_SCHEMA_DEPTH_MAX 64 /* deeper schemas overflow the stack of some engines */

/* messages and tools of a chat; repairs the tree where engines differ: role developer becomes
 * system, tools of a type that engines don't know are dropped. Adds to text_bytes. */
MUST_USE bool openai_check_messages(struct openai_request *r, const struct json *root,
                                    struct api_error *e);
MUST_USE bool openai_check_tools(struct openai_request *r, const struct json *root,
                                 struct api_error *e);
MUST_USE bool openai_check_depth(const struct json *v, const char *param, struct api_error *e);
/* At least as many bytes as a template makes of v when it shows it as JSON, indented and escaped.
 */
uint64_t openai_shown_bytes(const struct json *v, unsigned depth);

static inline bool openai_is_string(const struct json *v)
{
    return v != NULL && v->type == JSON_STRING;
}

static inline bool openai_is_bool(const struct json *v)
{
    return v->type == JSON_TRUE || v->type == JSON_FALSE;
}

#endif
