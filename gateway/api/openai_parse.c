/* openai_parse.c - a body of /v1/chat/completions or /v1/completions to a checked request.
 *
 * Unknown fields pass: strict rejects broke real clients. What is known is checked here once, so
 * that a wrong value is our 400 with its name and not an engine's 500. */
#include "gateway/api/openai_check.h"

#include <math.h>
#include <stdio.h>

#define STOP_MAX 4
#define TOP_LOGPROBS_MAX 20
#define COMPLETION_LOGPROBS_MAX 5
#define COMPLETION_TOKENS_DEFAULT 16 /* of the completions API */

/* ---- one optional field ---- */

static bool wrong_type(struct api_error *e, const char *key, const char *expected)
{
    api_error_invalid(e, key, "Invalid type for '%s': expected %s.", key, expected);
    return false;
}

static bool unsupported(struct api_error *e, const char *key, const char *why)
{
    api_error_set(e, 400, "invalid_request_error", "unsupported_parameter", key,
                  "Unsupported parameter: '%s' %s.", key, why);
    return false;
}

static bool take_bool(const struct json *o, const char *key, bool *out, struct api_error *e)
{
    const struct json *v = json_get(o, str_c(key));

    if (json_is_absent(v)) {
        return true;
    }
    *out = v->type == JSON_TRUE;
    return openai_is_bool(v) || wrong_type(e, key, "a boolean");
}

static bool take_string(const struct json *o, const char *key, struct str *out, struct api_error *e)
{
    const struct json *v = json_get(o, str_c(key));

    if (json_is_absent(v)) {
        return true;
    }
    if (v->type != JSON_STRING) {
        return wrong_type(e, key, "a string");
    }
    *out = v->text;
    return true;
}

static bool take_int(const struct json *o, const char *key, int64_t low, int64_t high, int64_t *out,
                     struct api_error *e)
{
    const struct json *v = json_get(o, str_c(key));

    if (json_is_absent(v)) {
        return true;
    }
    if (!json_i64(v, out)) {
        return wrong_type(e, key, "an integer");
    }
    if (*out < low || (high != INT64_MAX && *out > high)) {
        if (high == INT64_MAX) {
            api_error_invalid(e, key, "Invalid value for '%s': must be at least %lld.", key,
                              (long long)low);
        } else {
            api_error_invalid(e, key, "Invalid value for '%s': must be from %lld to %lld.", key,
                              (long long)low, (long long)high);
        }
        return false;
    }
    return true;
}

/* ---- numbers with a range ---- */

static bool check_numbers(const struct json *root, struct api_error *e)
{
    static const struct {
        const char *key;
        double low, high;
    } ranges[] = {
        {"temperature", 0, 2},       {"top_p", 0, 1}, {"frequency_penalty", -2, 2},
        {"presence_penalty", -2, 2}, {"min_p", 0, 1}, {"repetition_penalty", 0, 100},
        {"top_k", -1, 1e9},
    };

    for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
        const struct json *v = json_get(root, str_c(ranges[i].key));
        double x;

        if (json_is_absent(v)) {
            continue;
        }
        if (!json_f64(v, &x)) {
            return wrong_type(e, ranges[i].key, "a number");
        }
        if (!(x >= ranges[i].low && x <= ranges[i].high)) {
            api_error_invalid(e, ranges[i].key, "Invalid value for '%s': must be from %g to %g.",
                              ranges[i].key, ranges[i].low, ranges[i].high);
            return false;
        }
    }
    return true;
}

static bool check_logit_bias(const struct json *root, struct api_error *e)
{
    const struct json *bias = json_get(root, STR("logit_bias"));

    if (json_is_absent(bias)) {
        return true;
    }
    if (bias->type != JSON_OBJECT) {
        return wrong_type(e, "logit_bias", "an object");
    }
    for (const struct json *v = bias->child; v != NULL; v = v->next) {
        uint64_t token;
        double x;

        if (!str_u64(v->key, &token) || !json_f64(v, &x) || !(x >= -100 && x <= 100)) {
            api_error_invalid(e, "logit_bias",
                              "Invalid 'logit_bias': token ids to numbers from -100 to 100.");
            return false;
        }
    }
    return true;
}

static bool check_logprobs(struct openai_request *r, struct api_error *e)
{
    bool logprobs = false;
    int64_t top = -1;

    if (r->endpoint == ENDPOINT_COMPLETIONS) {
        return take_int(r->root, "logprobs", 0, COMPLETION_LOGPROBS_MAX, &top, e);
    }
    if (!take_bool(r->root, "logprobs", &logprobs, e) ||
        !take_int(r->root, "top_logprobs", 0, TOP_LOGPROBS_MAX, &top, e)) {
        return false;
    }
    if (top > 0 && !logprobs) {
        api_error_invalid(e, "top_logprobs", "'top_logprobs' needs 'logprobs' to be true.");
        return false;
    }
    return true;
}

static bool check_stop(const struct json *root, struct api_error *e)
{
    const struct json *stop = json_get(root, STR("stop"));
    bool sound = true;

    if (json_is_absent(stop)) {
        return true;
    }
    if (stop->type == JSON_ARRAY) {
        sound = stop->count <= STOP_MAX;
        for (const struct json *v = stop->child; v != NULL && sound; v = v->next) {
            sound = v->type == JSON_STRING && v->text.n > 0;
        }
    } else {
        sound = stop->type == JSON_STRING && stop->text.n > 0;
    }
    if (!sound) {
        api_error_invalid(e, "stop", "Invalid 'stop': a string or up to %d strings, none empty.",
                          STOP_MAX);
    }
    return sound;
}

/* ---- one field, one rule ---- */

static bool read_stream(struct openai_request *r, struct api_error *e)
{
    const struct json *options = json_get(r->root, STR("stream_options"));

    if (!take_bool(r->root, "stream", &r->stream, e)) {
        return false;
    }
    if (json_is_absent(options)) {
        return true;
    }
    if (options->type != JSON_OBJECT) {
        return wrong_type(e, "stream_options", "an object");
    }
    return take_bool(options, "include_usage", &r->include_usage, e);
}

static bool read_max_tokens(struct openai_request *r, struct api_error *e)
{
    int64_t old = -1, asked = -1;

    if (!take_int(r->root, "max_tokens", 1, INT64_MAX, &old, e) ||
        !take_int(r->root, "max_completion_tokens", 1, INT64_MAX, &asked, e)) {
        return false;
    }
    if (old < 0 && r->endpoint == ENDPOINT_COMPLETIONS) {
        old = COMPLETION_TOKENS_DEFAULT;
    }
    r->max_tokens = asked > 0 ? asked : old;
    return true;
}

static bool read_tier(struct openai_request *r, struct api_error *e)
{
    static const struct {
        struct str name;
        enum tier tier;
        const char *echo;
    } tiers[] = {
        {{"auto", 4}, TIER_STANDARD, "default"},  {{"default", 7}, TIER_STANDARD, "default"},
        {{"scale", 5}, TIER_STANDARD, "default"}, {{"fast", 4}, TIER_STANDARD, "default"},
        {{"flex", 4}, TIER_FLEX, "flex"},         {{"priority", 8}, TIER_PRIORITY, "priority"},
    };
    struct str asked = {NULL, 0};

    r->tier = TIER_STANDARD;
    r->tier_echo = NULL;
    if (!take_string(r->root, "service_tier", &asked, e)) {
        return false;
    }
    if (asked.p == NULL) {
        return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(tiers); i++) {
        if (str_eq(asked, tiers[i].name)) {
            r->tier = tiers[i].tier;
            r->tier_echo = tiers[i].echo;
            return true;
        }
    }
    api_error_invalid(e, "service_tier",
                      "Invalid 'service_tier': expected auto, default, flex or priority.");
    return false;
}

static bool check_response_format(const struct json *root, struct api_error *e)
{
    const struct json *format = json_get(root, STR("response_format"));
    const struct json *type = json_get(format, STR("type"));
    const struct json *schema = json_get(format, STR("json_schema"));

    if (json_is_absent(format)) {
        return true;
    }
    if (!openai_is_string(type) ||
        !(str_eq(type->text, STR("text")) || str_eq(type->text, STR("json_object")) ||
          str_eq(type->text, STR("json_schema")) || str_eq(type->text, STR("regex")))) {
        api_error_invalid(
            e, "response_format",
            "Invalid 'response_format.type': text, json_object, json_schema or regex.");
        return false;
    }
    if (str_eq(type->text, STR("regex")) && !openai_is_string(json_get(format, STR("regex")))) {
        api_error_invalid(e, "response_format", "Invalid 'response_format.regex': a string.");
        return false;
    }
    if (str_eq(type->text, STR("json_schema")) &&
        (!openai_is_string(json_get(schema, STR("name"))) ||
         json_is_absent(json_get(schema, STR("schema"))) ||
         json_get(schema, STR("schema"))->type != JSON_OBJECT)) {
        api_error_invalid(e, "response_format",
                          "Invalid 'response_format.json_schema': a name and a schema object.");
        return false;
    }
    return openai_check_depth(format, "response_format", e);
}

/* Fields that would change what the answer means and that no engine here serves. */
static bool check_unsupported(const struct openai_request *r, struct api_error *e)
{
    static const char *const refused[] = {"functions", "function_call", "audio",
                                          "web_search_options", "moderation"};
    const struct json *modalities = json_get(r->root, STR("modalities"));
    int64_t n = 1, best_of = 1;

    if (!take_int(r->root, "n", 1, 128, &n, e) ||
        !take_int(r->root, "best_of", 1, 20, &best_of, e)) {
        return false;
    }
    if (n != 1 || best_of != 1) {
        return unsupported(e, n != 1 ? "n" : "best_of", "other than 1 is not served");
    }
    for (size_t i = 0; i < ARRAY_LEN(refused) && r->endpoint == ENDPOINT_CHAT; i++) {
        if (!json_is_absent(json_get(r->root, str_c(refused[i])))) {
            return unsupported(e, refused[i], "is not served");
        }
    }
    if (!json_is_absent(modalities)) {
        for (const struct json *m = modalities->child; m != NULL; m = m->next) {
            if (!openai_is_string(m) || !str_eq(m->text, STR("text"))) {
                return unsupported(e, "modalities", "other than text are not served");
            }
        }
    }
    return true;
}

/* Fields of the gateway's own: nothing about them is a reason to refuse, but their type. */
static bool read_labels(struct openai_request *r, struct api_error *e)
{
    const struct json *cache_key = json_get(r->root, STR("prompt_cache_key"));
    const struct json *metadata = json_get(r->root, STR("metadata"));
    struct str ignored;
    int64_t seed;

    if (openai_is_string(cache_key) && cache_key->text.n > 0) {
        r->cache_key = cache_key->text;
    }
    if (!json_is_absent(metadata) && metadata->type != JSON_OBJECT) {
        return wrong_type(e, "metadata", "an object");
    }
    return take_string(r->root, "user", &r->user, e) &&
           take_string(r->root, "safety_identifier", &ignored, e) &&
           take_int(r->root, "seed", INT64_MIN, INT64_MAX, &seed, e);
}

/* ---- the prompt ---- */

static bool read_prompt(struct openai_request *r, struct api_error *e)
{
    const struct json *prompt = json_get(r->root, STR("prompt"));
    const struct json *suffix = json_get(r->root, STR("suffix"));
    bool echo = false;

    if (json_is_absent(prompt)) {
        api_error_invalid(e, "prompt", "Missing required parameter: 'prompt'.");
        return false;
    }
    if (prompt->type == JSON_ARRAY && prompt->count == 1) {
        prompt = prompt->child;
    }
    if (prompt->type == JSON_ARRAY || prompt->type == JSON_NUMBER) {
        return unsupported(e, "prompt", "as token ids or as several prompts is not served");
    }
    if (prompt->type != JSON_STRING || prompt->text.n == 0) {
        api_error_invalid(e, "prompt", "Invalid 'prompt': a string that is not empty.");
        return false;
    }
    if (!take_bool(r->root, "echo", &echo, e)) {
        return false;
    }
    if (echo) {
        return unsupported(e, "echo", "is not served");
    }
    if (!json_is_absent(suffix) && !(suffix->type == JSON_STRING && suffix->text.n == 0)) {
        return unsupported(e, "suffix", "is not served");
    }
    r->prompt = prompt->text;
    r->text_bytes = prompt->text.n;
    return true;
}

static bool read_chat(struct openai_request *r, struct api_error *e)
{
    const struct json *kwargs = json_get(r->root, STR("chat_template_kwargs"));
    bool parallel;

    if (!json_is_absent(kwargs)) { /* a template may print what it is given */
        r->text_bytes += openai_shown_bytes(kwargs, 0);
    }
    return openai_check_messages(r, r->root, e) && openai_check_tools(r, r->root, e) &&
           take_bool(r->root, "parallel_tool_calls", &parallel, e) &&
           check_response_format(r->root, e);
}

static bool read_model(struct openai_request *r, struct api_error *e)
{
    const struct json *model = json_get(r->root, STR("model"));

    if (json_is_absent(model)) {
        api_error_invalid(e, "model", "Missing required parameter: 'model'.");
        return false;
    }
    if (model->type != JSON_STRING || model->text.n == 0) {
        return wrong_type(e, "model", "the name of a model");
    }
    r->model = model->text;
    return true;
}

static bool read_root(struct arena *a, struct str body, struct openai_request *out,
                      struct api_error *e)
{
    struct err story;

    err_clear(&story);
    out->root = json_parse(a, body, &json_limits_api, &story);
    if (out->root == NULL && story.code == ERR_NO_MEMORY) {
        api_error_set(e, 413, "invalid_request_error", "request_too_large", NULL,
                      "The request's body is too large to be read.");
        return false;
    }
    if (out->root == NULL) {
        api_error_set(e, 400, "invalid_request_error", "invalid_json", NULL,
                      "The body of the request is not valid JSON: %.300s.", story.text);
        return false;
    }
    if (out->root->type != JSON_OBJECT) {
        api_error_invalid(e, NULL, "The body of the request is not a JSON object.");
        return false;
    }
    return true;
}

bool openai_parse(struct arena *a, enum endpoint ep, struct str body, struct openai_request *out,
                  struct api_error *e)
{
    CHECK(ep == ENDPOINT_CHAT || ep == ENDPOINT_COMPLETIONS);
    *out = (struct openai_request){.endpoint = ep, .max_tokens = -1, .tier = TIER_STANDARD};
    return read_root(a, body, out, e) && read_model(out, e) &&
           (ep == ENDPOINT_CHAT ? read_chat(out, e) : read_prompt(out, e)) && read_stream(out, e) &&
           read_max_tokens(out, e) && read_tier(out, e) && check_numbers(out->root, e) &&
           check_logprobs(out, e) && check_stop(out->root, e) && check_logit_bias(out->root, e) &&
           check_unsupported(out, e) && read_labels(out, e);
}
