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

/* What a message quotes may be cut inside a character: the piece of it goes. */
static void keep_characters(char *text)
{
    size_t n = strlen(text), good;

    while ((good = str_utf8_valid(str_of(text, n))) < n) {
        text += good;
        n -= good;
        memmove(text, text + 1, n--);
    }
}

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
    keep_characters(x->message);
    return false;
}

bool api_bad(struct api_error *x, const char *param, const char *what)
{
    return api_refuse(x, 400, NULL, param, "'%s' %s.", param, what);
}

bool api_unsupported(struct api_error *x, const char *param, const char *what)
{
    return api_refuse(x, 400, "unsupported_parameter", param, "'%s' %s.", param, what);
}

/* All that is read of a body's own members. A body may have a million others, so one walk finds
 * them, not one for each. */
static const struct str fields[] = {
    STR("model"),
    STR("messages"),
    STR("prompt"),
    STR("stream"),
    STR("stream_options"),
    STR("max_tokens"),
    STR("max_completion_tokens"),
    STR("n"),
    STR("best_of"),
    STR("temperature"),
    STR("top_p"),
    STR("min_p"),
    STR("top_k"),
    STR("presence_penalty"),
    STR("frequency_penalty"),
    STR("repetition_penalty"),
    STR("seed"),
    STR("ignore_eos"),
    STR("stop"),
    STR("stop_token_ids"),
    STR("min_tokens"),
    STR("logit_bias"),
    STR("logprobs"),
    STR("top_logprobs"),
    STR("echo"),
    STR("suffix"),
    STR("speculate"),
    STR("response_format"),
    STR("structured_outputs"),
    STR("guided_json"),
    STR("guided_regex"),
    STR("guided_choice"),
    STR("guided_grammar"),
    STR("guided_decoding_backend"),
    STR("guided_whitespace_pattern"),
    STR("structural_tag"),
    STR("tools"),
    STR("tool_choice"),
    STR("parallel_tool_calls"),
    STR("functions"),
    STR("tokens"),
    STR("add_special_tokens"),
    STR("return_token_strs"),
};

_Static_assert(ARRAY_LEN(fields) <= JOB_FIELDS_MAX, "struct job has a place for each");

static size_t field_index(struct str name)
{
    size_t i = 0;

    while (i < ARRAY_LEN(fields) && !str_eq(fields[i], name)) {
        i++;
    }
    return i;
}

void params_pick(struct job *j)
{
    for (struct json *m = j->root->child; m != NULL; m = m->next) {
        size_t i = field_index(m->key);

        if (i < ARRAY_LEN(fields)) {
            j->field[i] = m;
        }
    }
}

const struct json *job_field(const struct job *j, const char *name)
{
    size_t i = field_index(str_c(name));
    /* A name that the table lacks costs a walk, no more. */
    const struct json *v = i < ARRAY_LEN(fields) ? j->field[i] : json_get(j->root, str_c(name));

    return json_is_absent(v) ? NULL : v;
}

bool job_bool(const struct job *j, const char *name, bool *out, struct api_error *x)
{
    const struct json *v = job_field(j, name);

    if (v != NULL && v->type != JSON_TRUE && v->type != JSON_FALSE) {
        return api_bad(x, name, "must be true or false");
    }
    *out = v != NULL ? v->type == JSON_TRUE : *out;
    return true;
}

static bool get_int(const struct job *j, const char *name, int64_t least, int64_t most,
                    int64_t *out, struct api_error *x)
{
    const struct json *v = job_field(j, name);

    if (v == NULL) {
        return true;
    }
    if (v->type != JSON_NUMBER || !json_i64(v, out)) {
        return api_bad(x, name, "must be an integer");
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
    const struct json *v = job_field(j, name);
    double d;

    if (v == NULL) {
        return true;
    }
    if (v->type != JSON_NUMBER || !json_f64(v, &d)) {
        return api_bad(x, name, "must be a number");
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
    p->seed = (uint64_t)seed;
    j->draw_seed = job_field(j, "seed") == NULL; /* where randomness is: on the loop */
    return job_bool(j, "ignore_eos", &j->request.ignore_eos, x);
}

static bool parse_bias(struct job *j, struct api_error *x)
{
    const struct json *v = job_field(j, "logit_bias");
    struct sample_bias *bias;
    uint32_t n = 0;

    if (v == NULL) {
        return true;
    }
    if (v->type != JSON_OBJECT || v->count > BIAS_MAX) {
        return api_bad(x, "logit_bias", "must be an object of at most 1024 token ids");
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
            return api_bad(x, "logit_bias", "must have values from -100 to 100");
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

    if (!job_bool(j, "logprobs", &p->logprobs, x) ||
        !get_int(j, "top_logprobs", 0, SAMPLE_TOP_LOGPROBS_MAX, &top, x)) {
        return false;
    }
    if (top > 0 && !p->logprobs) {
        return api_bad(x, "top_logprobs", "needs 'logprobs' to be true");
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
    j->request.sample.logprobs = job_field(j, "logprobs") != NULL;
    j->request.sample.top_logprobs = (uint32_t)top;
    return true;
}

static bool add_stop(struct job *j, const struct json *v, struct api_error *x)
{
    if (v->type != JSON_STRING) {
        return api_bad(x, "stop", "must be a string or an array of strings");
    }
    if (v->text.n > DETOK_STOP_BYTES_MAX || j->n_stops == DETOK_STOPS_MAX) {
        return api_bad(x, "stop", "may have at most 16 strings of at most 1024 bytes");
    }
    if (v->text.n > 0) { /* an empty string would stop before anything is said */
        j->stops[j->n_stops++] = v->text;
    }
    return true;
}

static bool parse_stop(struct job *j, struct api_error *x)
{
    const struct json *v = job_field(j, "stop");

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
    const char *name = j->kind == JOB_CHAT && job_field(j, "max_completion_tokens") != NULL
                           ? "max_completion_tokens"
                           : "max_tokens";
    const struct json *v = job_field(j, name);
    int64_t n = 0;
    double d;

    if (v == NULL) {
        j->max_tokens = j->kind == JOB_CHAT ? 0 : COMPLETION_MAX_TOKENS;
        return true;
    }
    if (v->type != JSON_NUMBER || !json_f64(v, &d)) {
        return api_bad(x, name, "must be an integer");
    }
    if (d > (double)INT32_MAX) { /* clamped to the room that is left, whatever it is */
        n = INT32_MAX;
    } else if (!json_i64(v, &n)) {
        return api_bad(x, name, "must be an integer");
    }
    if (n < 1) {
        return api_bad(x, name, "must be at least 1");
    }
    j->max_tokens = (uint32_t)n;
    return true;
}

static bool parse_stream(struct job *j, struct api_error *x)
{
    const struct json *v = job_field(j, "stream_options");

    if (!job_bool(j, "stream", &j->streamed, x)) {
        return false;
    }
    if (v != NULL && v->type != JSON_OBJECT) {
        return api_bad(x, "stream_options", "must be an object");
    }
    v = v != NULL ? json_get(v, STR("include_usage")) : NULL;
    j->include_usage = v != NULL && v->type == JSON_TRUE;
    return true;
}

bool params_model(const struct job *j, struct api_error *x)
{
    const struct json *v = job_field(j, "model");

    if (v == NULL || v->type != JSON_STRING || v->text.n == 0) {
        return api_bad(x, "model", "is required and must be a string");
    }
    for (uint32_t i = 0; i < j->serve->o.n_names; i++) {
        if (str_eq(v->text, j->serve->o.names[i])) {
            return true;
        }
    }
    return api_refuse(x, 404, "model_not_found", "model",
                      "The model `" STR_FMT "` does not exist here; this worker serves `" STR_FMT
                      "`.",
                      (int)size_min(v->text.n, 128), v->text.p, STR_ARG(j->serve->o.names[0]));
}

static bool check_parts(const struct json *content, struct api_error *x)
{
    for (const struct json *p = content->child; p != NULL; p = p->next) {
        const struct json *type = json_get(p, STR("type")), *text = json_get(p, STR("text"));

        if (p->type == JSON_STRING) {
            continue;
        }
        if (p->type != JSON_OBJECT || type == NULL || type->type != JSON_STRING) {
            return api_bad(x, "messages", "has a content part without a type");
        }
        if (!str_eq(type->text, STR("text"))) {
            return api_unsupported(x, "messages", "has a content part that is not text");
        }
        if (text == NULL || text->type != JSON_STRING) {
            return api_bad(x, "messages", "has a text part without text");
        }
    }
    return true;
}

static bool check_message(const struct json *m, struct api_error *x)
{
    const struct json *role, *content, *calls;
    bool has_call;

    if (m->type != JSON_OBJECT) {
        return api_bad(x, "messages", "must be an array of objects");
    }
    role = json_get(m, STR("role"));
    content = json_get(m, STR("content"));
    calls = json_get(m, STR("tool_calls"));
    if (role == NULL || role->type != JSON_STRING || role->text.n == 0 || role->text.n > 64) {
        return api_bad(x, "messages", "has a message without a role");
    }
    if (!json_is_absent(calls) && calls->type != JSON_ARRAY) {
        return api_bad(x, "messages", "has tool_calls that are no array");
    }
    has_call = !json_is_absent(calls) || !json_is_absent(json_get(m, STR("function_call")));
    if (json_is_absent(content)) {
        return has_call || str_eq(role->text, STR("assistant")) ||
               api_bad(x, "messages", "has a message without content");
    }
    if (content->type == JSON_ARRAY) {
        return check_parts(content, x);
    }
    return content->type == JSON_STRING ||
           api_bad(x, "messages", "has content that is neither a string nor an array of parts");
}

bool params_messages(const struct job *j, struct api_error *x)
{
    const struct json *messages = job_field(j, "messages");

    if (messages == NULL || messages->type != JSON_ARRAY || messages->count == 0) {
        return api_bad(x, "messages", "must be an array of at least one message");
    }
    for (const struct json *m = messages->child; m != NULL; m = m->next) {
        if (!check_message(m, x)) {
            return false;
        }
    }
    return true;
}

static bool parse_n(struct job *j, struct api_error *x)
{
    int64_t n = 1, best = 0;

    if (!get_int(j, "n", 1, JOB_CHOICES_MAX, &n, x)) {
        return false;
    }
    j->n = (uint32_t)n;
    best = n;
    if (j->kind == JOB_COMPLETION && !get_int(j, "best_of", 1, 128, &best, x)) {
        return false;
    }
    return best == n || api_unsupported(x, "best_of", "other than 'n' is not supported");
}

/* stop_token_ids, as vLLM has them: they end the answer, and show in it unless they are control
 * tokens. */
static bool parse_stop_ids(struct job *j, struct api_error *x)
{
    const struct json *list = job_field(j, "stop_token_ids");

    if (list == NULL) {
        return true;
    }
    if (list->type != JSON_ARRAY || list->count > JOB_STOP_IDS_MAX) {
        return api_refuse(x, 400, NULL, "stop_token_ids",
                          "'stop_token_ids' must be a list of at most %d token ids.",
                          JOB_STOP_IDS_MAX);
    }
    for (const struct json *v = list->child; v != NULL; v = v->next) {
        int64_t id;

        if (!json_i64(v, &id) || id < 0 || id >= (int64_t)j->serve->model->vocab) {
            return api_refuse(x, 400, NULL, "stop_token_ids",
                              "'stop_token_ids' must be token ids from 0 to %u.",
                              j->serve->model->vocab - 1);
        }
        j->stop_ids[j->request.n_stop_ids++] = (int32_t)id;
    }
    j->request.stop_ids = j->stop_ids;
    return true;
}

/* min_tokens beyond what the answer may have cannot be kept. */
static bool parse_min_tokens(struct job *j, struct api_error *x)
{
    int64_t n = 0;

    if (!get_int(j, "min_tokens", 0, INT32_MAX, &n, x)) {
        return false;
    }
    if (j->max_tokens > 0 && n > (int64_t)j->max_tokens) {
        return api_refuse(x, 400, NULL, "min_tokens",
                          "'min_tokens' is %lld, but the answer may have %u tokens at most.",
                          (long long)n, j->max_tokens);
    }
    j->request.min_tokens = (uint32_t)n;
    return true;
}

static bool parse_completion(struct job *j, struct api_error *x)
{
    const struct json *suffix = job_field(j, "suffix");

    if (!parse_completion_logprobs(j, x) || !job_bool(j, "echo", &j->echo, x)) {
        return false;
    }
    if (suffix != NULL && (suffix->type != JSON_STRING || suffix->text.n > 0)) {
        return api_unsupported(x, "suffix", "is not supported");
    }
    if (j->echo && j->request.sample.logprobs) {
        return api_unsupported(x, "echo", "together with 'logprobs' is not supported");
    }
    return true;
}

bool params_parse(struct job *j, struct api_error *x)
{
    bool speculate = true;

    if (!params_model(j, x) || !parse_stream(j, x) || !parse_max_tokens(j, x) || !parse_n(j, x) ||
        !parse_sampling(j, x) || !parse_stop_ids(j, x) || !parse_min_tokens(j, x) ||
        !parse_bias(j, x) || !parse_stop(j, x) || !job_bool(j, "speculate", &speculate, x)) {
        return false;
    }
    j->request.no_speculation = !speculate;
    return (j->kind == JOB_CHAT ? params_messages(j, x) && parse_chat_logprobs(j, x)
                                : parse_completion(j, x)) &&
           format_parse(j, x);
}
