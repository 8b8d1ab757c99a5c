/* request_recipe.c - see the header. A recipe is read byte by byte, zeros after its end: a field, a
 * choice of what stands there, what that needs, and so on. */
#include "tests/fuzz/request_recipe.h"

#include "base/json.h"

#define FIELDS_MAX 8 /* of one body, beside the given ones */
#define CHILDREN 4
#define DEPTH_MAX 6
#define TEXT_BYTES 32

struct recipe {
    struct str rest;
    struct buf *out;
};

#define CALL                                                                                       \
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"abcdefghi\",\"type\":"     \
    "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}}]}"
#define FUNCTION(rest) "{\"type\":\"function\",\"function\":{\"name\":" rest "}}"
#define SCHEMA                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":-3},\"b\":{"     \
    "\"enum\":[\"x\",1,null]}},\"required\":[\"a\"],\"additionalProperties\":false}"

/* Values, each with what is right for it most of the time. */
static const char *const models[] = {"\"tiny\"", "\"other/name\"", "\"none\"", "\"\\u00e9\"", NULL};
static const char *const prompts[] = {"\"hello\"",
                                      "[1,2,3]",
                                      "[[5,6]]",
                                      "[\"one\"]",
                                      "\"\"",
                                      "[1,999999]",
                                      "[\"a\",\"b\"]",
                                      "\"<|im_end|> aaaaaaaaa\"",
                                      "[]",
                                      "[1,\"a\"]",
                                      NULL};
static const char *const messages[] = {
    "[{\"role\":\"user\",\"content\":\"hi\"}]",
    "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\","
    "\"text\":\"a\"},\"b\"]},{\"role\":\"assistant\",\"content\":\"c\"},{\"role\":\"user\","
    "\"content\":\"\\ud83d\\ude42\"}]",
    "[{\"role\":\"user\",\"content\":\"hi\"}," CALL
    ",{\"role\":\"tool\",\"tool_call_id\":\"abcdefghi\",\"content\":\"2\"}]",
    "[{\"role\":\"assistant\",\"content\":\"\",\"function_call\":{\"name\":\"f\",\"arguments\":"
    "\"\"}},{\"role\":\"function\",\"name\":\"f\",\"content\":null}]",
    "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]",
    "[{\"role\":\"user\"}]",
    "[]",
    NULL};
static const char *const numbers[] = {"1",
                                      "0",
                                      "-1",
                                      "2",
                                      "0.5",
                                      "1e2",
                                      "16",
                                      "17",
                                      "1.5",
                                      "-2",
                                      "100",
                                      "255",
                                      "300",
                                      "1e9",
                                      "1e99",
                                      "-0",
                                      "1023",
                                      "65536",
                                      "0.001",
                                      "2147483648",
                                      "9223372036854775807",
                                      "-9223372036854775809",
                                      NULL};
static const char *const bools[] = {"true", "false", NULL};
static const char *const stops[] = {"\"x\"", "[\"\",\"ab\",\"\\n\"]", "[]", "[\"\\u0000\"]", NULL};
static const char *const id_lists[] = {"[2]", "[0,298,5]", "[]", "[-1]", "[400]", NULL};
static const char *const biases[] = {
    "{\"0\":1,\"298\":-100}", "{}", "{\"01\":100,\"1\":-1}", "{\"400\":1}", "{\"2\":101}", NULL};
static const char *const formats[] = {
    "{\"type\":\"text\"}",
    "{\"type\":\"json_object\"}",
    "{\"type\":\"regex\",\"regex\":\"(a|b){1,3}\"}",
    "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":" SCHEMA "}}",
    "{\"type\":\"json_schema\",\"schema\":true}",
    NULL};
static const char *const schemas[] = {SCHEMA,
                                      "\"{\\\"type\\\":\\\"null\\\"}\"",
                                      "true",
                                      "false",
                                      "{\"type\":\"string\",\"pattern\":\"^a+$\"}",
                                      NULL};
static const char *const regexes[] = {"\"[a-f]+\"", "\"\"",          "\"a{2,}\"",
                                      "\"(\"",      "\"\\u00e9|x\"", NULL};
static const char *const structured[] = {"{\"regex\":\"a|b\"}", "{\"json\":" SCHEMA "}",
                                         "{\"json\":null}", "{\"choice\":[]}", NULL};
static const char *const tools[] = {
    "[" FUNCTION("\"f\",\"parameters\":" SCHEMA) "]",
    "[" FUNCTION("\"f\"") "," FUNCTION("\"g\",\"description\":\"d\",\"parameters\":null") "]",
    "[]",
    "[" FUNCTION("\"f\"") "," FUNCTION("\"f\"") "]",
    "[" FUNCTION("\"a b\"") "]",
    "[{\"type\":\"x\"}]",
    NULL};
static const char *const choices[] = {"\"auto\"",        "\"required\"",          "\"none\"",
                                      FUNCTION("\"f\""), FUNCTION("\"\\u00e9\""), NULL};
static const char *const options[] = {"{\"include_usage\":true}", "{}", NULL};

static const struct {
    const char *name;
    const char *const *values;
} fields[] = {
    {"model", models},
    {"prompt", prompts},
    {"messages", messages},
    {"max_tokens", numbers},
    {"max_completion_tokens", numbers},
    {"n", numbers},
    {"best_of", numbers},
    {"temperature", numbers},
    {"top_p", numbers},
    {"top_k", numbers},
    {"min_p", numbers},
    {"presence_penalty", numbers},
    {"frequency_penalty", numbers},
    {"repetition_penalty", numbers},
    {"seed", numbers},
    {"min_tokens", numbers},
    {"top_logprobs", numbers},
    {"logprobs", bools},
    {"logprobs", numbers}, /* of completions */
    {"ignore_eos", bools},
    {"echo", bools},
    {"stream", bools},
    {"speculate", bools},
    {"parallel_tool_calls", bools},
    {"add_special_tokens", bools},
    {"return_token_strs", bools},
    {"stop", stops},
    {"stop_token_ids", id_lists},
    {"tokens", id_lists},
    {"logit_bias", biases},
    {"stream_options", options},
    {"response_format", formats},
    {"guided_json", schemas},
    {"guided_regex", regexes},
    {"structured_outputs", structured},
    {"tools", tools},
    {"tool_choice", choices},
    {"suffix", stops},
    {"guided_choice", stops},
    {"functions", tools},
};
#define FIELDS ARRAY_LEN(fields)
_Static_assert(FIELDS <= 64, "a bit each");

/* Names of the members inside: of messages, tools and schemas. */
static const char *const keys[] = {
    "role",       "content",   "type",          "text",     "name",     "arguments", "tool_calls",
    "function",   "id",        "function_call", "schema",   "regex",    "json",      "parameters",
    "properties", "items",     "anyOf",         "required", "enum",     "const",     "pattern",
    "minimum",    "maxLength", "$ref",          "$defs",    "minItems", "strict",    "5",
};
static const char *const words[] = {"user",    "assistant", "tool",     "system",    "object",
                                    "string",  "text",      "function", "regex",     "required",
                                    "integer", "f",         "tiny",     "#/$defs/a", "json_schema"};

static uint8_t take(struct recipe *r)
{
    uint8_t b = r->rest.n > 0 ? (uint8_t)r->rest.p[0] : 0;

    r->rest = r->rest.n > 0 ? str_of(r->rest.p + 1, r->rest.n - 1) : r->rest;
    return b;
}

static void pick(struct recipe *r, const char *const *values)
{
    size_t n = 0;

    while (values[n] != NULL) {
        n++;
    }
    buf_c(r->out, values[take(r) % n]);
}

/* Bytes of the recipe itself. */
static void own_text(struct recipe *r)
{
    size_t n = take(r) % TEXT_BYTES;

    n = size_min(n, r->rest.n);
    json_write_string(r->out, str_of(r->rest.p, n));
    r->rest = str_of(r->rest.p + n, r->rest.n - n);
}

static void any_value(struct recipe *r, unsigned depth);

static void any_members(struct recipe *r, unsigned depth)
{
    uint32_t used = 0;

    buf_c(r->out, "{");
    for (unsigned n = take(r) % (CHILDREN + 1); n > 0; n--) {
        size_t k = take(r) % ARRAY_LEN(keys);

        if ((used >> k & 1) == 0) {
            buf_c(r->out, used != 0 ? "," : "");
            json_write_string(r->out, str_c(keys[k]));
            buf_c(r->out, ":");
            any_value(r, depth + 1);
            used |= 1u << k;
        }
    }
    buf_c(r->out, "}");
}

static void any_elements(struct recipe *r, unsigned depth)
{
    buf_c(r->out, "[");
    for (unsigned n = take(r) % (CHILDREN + 1), i = 0; i < n; i++) {
        buf_c(r->out, i > 0 ? "," : "");
        any_value(r, depth + 1);
    }
    buf_c(r->out, "]");
}

static void any_value(struct recipe *r, unsigned depth)
{
    switch (take(r) % (depth < DEPTH_MAX ? 8 : 5)) {
    case 0:
        buf_c(r->out, "null");
        return;
    case 1:
        pick(r, bools);
        return;
    case 2:
        pick(r, numbers);
        return;
    case 3:
        own_text(r);
        return;
    case 4:
        json_write_string(r->out, str_c(words[take(r) % ARRAY_LEN(words)]));
        return;
    case 5:
        any_elements(r, depth);
        return;
    case 6:
        any_members(r, depth);
        return;
    default: /* another field's value */
        pick(r, fields[take(r) % FIELDS].values);
        return;
    }
}

static bool is_new(const char *name, uint64_t used)
{
    for (size_t i = 0; i < FIELDS; i++) {
        if ((used >> i & 1) != 0 && strcmp(fields[i].name, name) == 0) {
            return false;
        }
    }
    return true;
}

static void member(struct recipe *r, size_t i, uint64_t *used)
{
    uint8_t how;

    if (!is_new(fields[i].name, *used)) {
        return;
    }
    buf_c(r->out, *used != 0 ? "," : "");
    json_write_string(r->out, str_c(fields[i].name));
    buf_c(r->out, ":");
    *used |= 1ull << i;
    how = take(r);
    if (how < 128) {
        buf_c(r->out, fields[i].values[0]); /* what is right */
    } else if (how < 208) {
        pick(r, fields[i].values);
    } else {
        any_value(r, 0);
    }
}

void request_recipe_body(struct buf *out, struct str recipe)
{
    struct recipe r = {.rest = recipe, .out = out};
    uint64_t used = 0;

    buf_c(out, "{");
    for (unsigned n = take(&r) % (FIELDS_MAX + 1); n > 0; n--) {
        member(&r, take(&r) % FIELDS, &used);
    }
    r.rest.n = 0; /* what is not there is as it should be */
    for (size_t i = 0; i < 3; i++) {
        member(&r, i, &used);
    }
    buf_c(out, "}");
}
