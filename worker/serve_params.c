/* serve_params.c - the fields of a request body: ranges, shapes, and a refusal that names the
 * field.
 *
 * Unknown fields are accepted: strict refusals broke real clients. A field that would change the
 * answer and cannot be honoured is refused, never ignored. null counts as absent. */
#include "worker/job.h"

#include <stdarg.h>
#include <stdio.h>

#define COMPLETION_MAX_TOKENS 16 /* OpenAI's default */
#define COMPLETION_LOGPROBS_MAX 5
#define BIAS_MAX 1024 /* entries of logit_bias */

bool api_refuse(struct api_error *x, unsigned status, const char *code, const char *param,
                const char *fmt, ...)
{
    va_list ap;

    x->status = status;
    x->type = status >= 500 ? "server_error" : "invalid_request_error";
    x->code = code;
    x->param = param;
    va_start(ap, fmt);
    vsnprintf(x->message, sizeof(x->message), fmt, ap);
    va_end(ap);
    return false;
}

static bool bad(struct api_error *x, const char *param, const char *what)
{
    return api_refuse(x, 400, NULL, param, "'%s' %s.", param, what);
}

static bool unsupported(struct api_error *x, const char *param, const char *what)
{
    return api_refuse(x, 400, "unsupported_parameter", param, "'%s' %s.", param, what);
}

static const struct json *field(const struct job *j, const char *name)
{
    const struct json *v = json_get(j->root, str_c(name));

    return json_is_absent(v) ? NULL : v;
}

static bool get_bool(const struct job *j, const char *name, bool *out, struct api_error *x)
{
    const struct json *v = field(j, name);

    if (v != NULL && v->type != JSON_TRUE && v->type != JSON_FALSE) {
        return bad(x, name, "must be true or false");
    }
    *out = v != NULL ? v->type == JSON_TRUE : *out;
    return true;
}

static bool get_int(const struct job *j, const char *name, int64_t least, int64_t most,
                    int64_t *out, struct api_error *x)
{
    const struct json *v = field(j, name);

    if (v == NULL) {
        return true;
    }
    if (v->type != JSON_NUMBER || !json_i64(v, out)) {
        return bad(x, name, "must be an integer");
    }
    if (*out < least || *out > most) {
        return api_refuse(x, 400, NULL, name, "'%s' is %lld, but must be from %lld to %lld.", name,
                          (long long)*out, (long long)least, (long long)most);
    }
    return true;
}

static bool get_float(const struct job *j, const char *name, double least, double most, float *out,
                      struct api_error *x)
{
    const struct json *v = field(j, name);
    double d;

    if (v == NULL) {
        return true;
    }
    if (v->type != JSON_NUMBER || !json_f64(v, &d)) {
        return bad(x, name, "must be a number");
    }
    if (!(d >= least && d <= most)) {
        return api_refuse(x, 400, NULL, name, "'%s' is %g, but must be from %g to %g.", name, d,
                          least, most);
    }
    *out = (float)d;
    return true;
}

static bool parse_sampling(struct job *j, struct api_error *x)
{
    struct sample_params *p = &j->request.sample;
    int64_t seed = 0, top_k = 0;

    *p = (struct sample_params){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    if (!get_float(j, "temperature", 0, 2, &p->temperature, x) ||
        !get_float(j, "top_p", 0, 1, &p->top_p, x) || !get_float(j, "min_p", 0, 1, &p->min_p, x) ||
        !get_float(j, "presence_penalty", -2, 2, &p->presence_penalty, x) ||
        !get_float(j, "frequency_penalty", -2, 2, &p->frequency_penalty, x) ||
        !get_float(j, "repetition_penalty", 0.01, 2, &p->repetition_penalty, x) ||
        !get_int(j, "top_k", -1, INT32_MAX, &top_k, x) ||
        !get_int(j, "seed", INT64_MIN, INT64_MAX, &seed, x)) {
        return false;
    }
    p->top_k = top_k > 0 ? (uint32_t)top_k : 0;
    p->seed = field(j, "seed") != NULL ? (uint64_t)seed : env_random_u64(j->serve->env);
    return get_bool(j, "ignore_eos", &j->request.ignore_eos, x);
}

static bool parse_bias(struct job *j, struct api_error *x)
{
    const struct json *v = field(j, "logit_bias");
    struct sample_bias *bias;
    uint32_t n = 0;

    if (v == NULL) {
        return true;
    }
    if (v->type != JSON_OBJECT || v->count > BIAS_MAX) {
        return bad(x, "logit_bias", "must be an object of at most 1024 token ids");
    }
    bias = arena_array(&j->arena, v->count + 1, sizeof(*bias));
    if (bias == NULL) {
        return api_refuse(x, 503, NULL, NULL, "There is no memory for this request now.");
    }
    for (const struct json *b = v->child; b != NULL; b = b->next) {
        uint64_t id;
        double d;

        if (!str_u64(b->key, &id) || id >= j->serve->model->vocab) {
            return api_refuse(x, 400, NULL, "logit_bias",
                              "'logit_bias' has the key \"" STR_FMT
                              "\", which is no token id below %u.",
                              (int)size_min(b->key.n, 32), b->key.p, j->serve->model->vocab);
        }
        if (b->type != JSON_NUMBER || !json_f64(b, &d) || d < -100 || d > 100) {
            return bad(x, "logit_bias", "must have values from -100 to 100");
        }
        bias[n++] = (struct sample_bias){.id = (int32_t)id, .bias = (float)d};
    }
    j->request.sample.bias = bias;
    j->request.sample.n_bias = n;
    return true;
}

static bool parse_chat_logprobs(struct job *j, struct api_error *x)
{
    struct sample_params *p = &j->request.sample;
    int64_t top = 0;

    if (!get_bool(j, "logprobs", &p->logprobs, x) ||
        !get_int(j, "top_logprobs", 0, SAMPLE_TOP_LOGPROBS_MAX, &top, x)) {
        return false;
    }
    if (top > 0 && !p->logprobs) {
        return bad(x, "top_logprobs", "needs 'logprobs' to be true");
    }
    p->top_logprobs = (uint32_t)top;
    return true;
}

static bool parse_completion_logprobs(struct job *j, struct api_error *x)
{
    int64_t top = 0;

    if (!get_int(j, "logprobs", 0, COMPLETION_LOGPROBS_MAX, &top, x)) {
        return false;
    }
    j->request.sample.logprobs = field(j, "logprobs") != NULL;
    j->request.sample.top_logprobs = (uint32_t)top;
    return true;
}

static bool add_stop(struct job *j, const struct json *v, struct api_error *x)
{
    if (v->type != JSON_STRING) {
        return bad(x, "stop", "must be a string or an array of strings");
    }
    if (v->text.n > DETOK_STOP_BYTES_MAX || j->n_stops == DETOK_STOPS_MAX) {
        return bad(x, "stop", "may have at most 16 strings of at most 1024 bytes");
    }
    if (v->text.n > 0) { /* an empty string would stop before anything is said */
        j->stops[j->n_stops++] = v->text;
    }
    return true;
}

static bool parse_stop(struct job *j, struct api_error *x)
{
    const struct json *v = field(j, "stop");

    if (v == NULL) {
        return true;
    }
    if (v->type != JSON_ARRAY) {
        return add_stop(j, v, x);
    }
    for (const struct json *s = v->child; s != NULL; s = s->next) {
        if (!add_stop(j, s, x)) {
            return false;
        }
    }
    return true;
}

/* max_completion_tokens wins over its older name. */
static bool parse_max_tokens(struct job *j, struct api_error *x)
{
    const char *name = j->chat && field(j, "max_completion_tokens") != NULL
                           ? "max_completion_tokens"
                           : "max_tokens";
    const struct json *v = field(j, name);
    int64_t n = 0;
    double d;

    if (v == NULL) {
        j->max_tokens = j->chat ? 0 : COMPLETION_MAX_TOKENS;
        return true;
    }
    if (v->type != JSON_NUMBER || !json_f64(v, &d)) {
        return bad(x, name, "must be an integer");
    }
    if (d > (double)INT32_MAX) { /* clamped to the room that is left, whatever it is */
        n = INT32_MAX;
    } else if (!json_i64(v, &n)) {
        return bad(x, name, "must be an integer");
    }
    if (n < 1) {
        return bad(x, name, "must be at least 1");
    }
    j->max_tokens = (uint32_t)n;
    return true;
}

static bool parse_stream(struct job *j, struct api_error *x)
{
    const struct json *v = field(j, "stream_options");

    if (!get_bool(j, "stream", &j->streamed, x)) {
        return false;
    }
    if (v != NULL && v->type != JSON_OBJECT) {
        return bad(x, "stream_options", "must be an object");
    }
    v = v != NULL ? json_get(v, STR("include_usage")) : NULL;
    j->include_usage = v != NULL && v->type == JSON_TRUE;
    return true;
}

static bool parse_model(struct job *j, struct api_error *x)
{
    const struct json *v = field(j, "model");

    if (v == NULL || v->type != JSON_STRING || v->text.n == 0) {
        return bad(x, "model", "is required and must be a string");
    }
    if (!str_eq(v->text, j->serve->o.name)) {
        return api_refuse(x, 404, "model_not_found", "model",
                          "The model `" STR_FMT
                          "` does not exist here; this worker serves `" STR_FMT "`.",
                          (int)size_min(v->text.n, 128), v->text.p, STR_ARG(j->serve->o.name));
    }
    return true;
}

static bool parse_format(struct job *j, struct api_error *x)
{
    const struct json *v = field(j, "response_format");
    const struct json *type = v != NULL ? json_get(v, STR("type")) : NULL;

    if (v == NULL ||
        (type != NULL && type->type == JSON_STRING && str_eq(type->text, STR("text")))) {
        return true;
    }
    return unsupported(x, "response_format", "other than {\"type\": \"text\"} is not supported");
}

static bool is_tool_result(const struct json *m)
{
    const struct json *role = json_get(m, STR("role"));

    return role != NULL && role->type == JSON_STRING &&
           (str_eq(role->text, STR("tool")) || str_eq(role->text, STR("function")));
}

/* The model cannot be offered tools. A conversation that already holds a tool's result asks for an
 * answer in words, so there, and with tool_choice "none", the definitions are accepted unread. */
static bool parse_tools(struct job *j, struct api_error *x)
{
    const struct json *tools = field(j, "tools"), *choice = field(j, "tool_choice");
    const struct json *functions = field(j, "functions");

    if (functions != NULL && functions->count > 0) {
        return unsupported(x, "functions", "is not supported");
    }
    if (tools == NULL || (tools->type == JSON_ARRAY && tools->count == 0)) {
        return true;
    }
    if (choice != NULL && choice->type == JSON_STRING && str_eq(choice->text, STR("none"))) {
        return true;
    }
    if (choice == NULL || (choice->type == JSON_STRING && str_eq(choice->text, STR("auto")))) {
        const struct json *messages = field(j, "messages");

        for (const struct json *m = messages != NULL ? messages->child : NULL; m != NULL;
             m = m->next) {
            if (is_tool_result(m)) {
                return true;
            }
        }
    }
    return unsupported(x, "tools", "is not supported by this model; send tool_choice \"none\"");
}

static bool check_parts(const struct json *content, struct api_error *x)
{
    for (const struct json *p = content->child; p != NULL; p = p->next) {
        const struct json *type = json_get(p, STR("type")), *text = json_get(p, STR("text"));

        if (p->type == JSON_STRING) {
            continue;
        }
        if (p->type != JSON_OBJECT || type == NULL || type->type != JSON_STRING) {
            return bad(x, "messages", "has a content part without a type");
        }
        if (!str_eq(type->text, STR("text"))) {
            return unsupported(x, "messages", "has a content part that is not text");
        }
        if (text == NULL || text->type != JSON_STRING) {
            return bad(x, "messages", "has a text part without text");
        }
    }
    return true;
}

static bool check_message(const struct json *m, struct api_error *x)
{
    const struct json *role, *content, *calls;
    bool has_call;

    if (m->type != JSON_OBJECT) {
        return bad(x, "messages", "must be an array of objects");
    }
    role = json_get(m, STR("role"));
    content = json_get(m, STR("content"));
    calls = json_get(m, STR("tool_calls"));
    if (role == NULL || role->type != JSON_STRING || role->text.n == 0 || role->text.n > 64) {
        return bad(x, "messages", "has a message without a role");
    }
    if (!json_is_absent(calls) && calls->type != JSON_ARRAY) {
        return bad(x, "messages", "has tool_calls that are no array");
    }
    has_call = !json_is_absent(calls) || !json_is_absent(json_get(m, STR("function_call")));
    if (json_is_absent(content)) {
        return has_call || str_eq(role->text, STR("assistant")) ||
               bad(x, "messages", "has a message without content");
    }
    if (content->type == JSON_ARRAY) {
        return check_parts(content, x);
    }
    return content->type == JSON_STRING ||
           bad(x, "messages", "has content that is neither a string nor an array of parts");
}

static bool parse_messages(struct job *j, struct api_error *x)
{
    const struct json *messages = field(j, "messages");

    if (messages == NULL || messages->type != JSON_ARRAY || messages->count == 0) {
        return bad(x, "messages", "must be an array of at least one message");
    }
    for (const struct json *m = messages->child; m != NULL; m = m->next) {
        if (!check_message(m, x)) {
            return false;
        }
    }
    return true;
}

static bool parse_count(struct job *j, const char *name, struct api_error *x)
{
    int64_t n = 1;

    if (!get_int(j, name, 1, 128, &n, x)) {
        return false;
    }
    return n == 1 || unsupported(x, name, "other than 1 is not supported");
}

static bool parse_chat(struct job *j, struct api_error *x)
{
    return parse_messages(j, x) && parse_chat_logprobs(j, x) && parse_tools(j, x) &&
           parse_format(j, x);
}

static bool parse_completion(struct job *j, struct api_error *x)
{
    const struct json *suffix = field(j, "suffix");

    if (!parse_completion_logprobs(j, x) || !parse_count(j, "best_of", x) ||
        !get_bool(j, "echo", &j->echo, x)) {
        return false;
    }
    if (suffix != NULL && (suffix->type != JSON_STRING || suffix->text.n > 0)) {
        return unsupported(x, "suffix", "is not supported");
    }
    if (j->echo && j->request.sample.logprobs) {
        return unsupported(x, "echo", "together with 'logprobs' is not supported");
    }
    return true;
}

bool params_parse(struct job *j, struct api_error *x)
{
    if (j->root->type != JSON_OBJECT) {
        return api_refuse(x, 400, "invalid_json", NULL, "The body must be a JSON object.");
    }
    return parse_model(j, x) && parse_stream(j, x) && parse_max_tokens(j, x) &&
           parse_count(j, "n", x) && parse_sampling(j, x) && parse_bias(j, x) && parse_stop(j, x) &&
           (j->chat ? parse_chat(j, x) : parse_completion(j, x));
}
