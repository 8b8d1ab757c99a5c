/* usage_chunk.c - one event of an engine's stream, made normal. */
#include "gateway/route/usage_impl.h"

static void count_member(const struct json *usage, struct str details, struct str key, int64_t of,
                         int64_t *out)
{
    int64_t n;

    *out = 0;
    /* A part larger than its whole says nothing: it neither costs nor discounts. */
    if (json_i64(json_get(json_get(usage, details), key), &n) && n >= 0 && n <= of) {
        *out = n;
    }
}

void usage_read_count(const struct json *usage, struct usage_count *out)
{
    int64_t prompt, completion;

    *out = (struct usage_count){0};
    if (!json_i64(json_get(usage, STR("prompt_tokens")), &prompt) ||
        !json_i64(json_get(usage, STR("completion_tokens")), &completion) || prompt < 0 ||
        completion < 0) {
        return;
    }
    out->present = true;
    out->prompt = prompt;
    out->completion = completion;
    count_member(usage, STR("prompt_tokens_details"), STR("cached_tokens"), prompt, &out->cached);
    count_member(usage, STR("completion_tokens_details"), STR("reasoning_tokens"), completion,
                 &out->reasoning);
}

bool usage_read_finish(const struct json *reason, enum finish *out)
{
    static const struct {
        struct str said;
        enum finish finish;
    } reasons[] = {
        {{"stop", 4}, FINISH_STOP},
        {{"length", 6}, FINISH_LENGTH},
        {{"tool_calls", 10}, FINISH_TOOL_CALLS},
        {{"function_call", 13}, FINISH_TOOL_CALLS},
        {{"content_filter", 14}, FINISH_CONTENT_FILTER},
        {{"max_tokens", 10}, FINISH_LENGTH},
        {{"model_length", 12}, FINISH_LENGTH},
        {{"limit", 5}, FINISH_LENGTH},
        {{"error", 5}, FINISH_ERROR},
        {{"abort", 5}, FINISH_ERROR},
        {{"aborted", 7}, FINISH_ERROR},
        {{"cancelled", 9}, FINISH_ERROR},
    };

    *out = FINISH_NONE;
    if (!usage_is_text(reason) || reason->text.n == 0) {
        return true;
    }
    *out = FINISH_STOP; /* eos, eos_token, stop_sequence and other names of a natural end */
    for (size_t i = 0; i < ARRAY_LEN(reasons); i++) {
        if (str_eq(reason->text, reasons[i].said)) {
            *out = reasons[i].finish;
        }
    }
    return *out != FINISH_ERROR;
}

struct json *usage_choice(const struct json *root)
{
    struct json *choices = json_get(root, STR("choices")), *choice;
    int64_t index;

    if (choices == NULL || choices->type != JSON_ARRAY) {
        return NULL;
    }
    for (choice = choices->child; choice != NULL; choice = choice->next) {
        if (!json_i64(json_get(choice, STR("index")), &index) || index == 0) {
            return choice;
        }
    }
    return NULL;
}

static const struct json *non_empty_text(const struct json *object, struct str key)
{
    const struct json *v = json_get(object, key);

    return usage_is_text(v) && v->text.n > 0 ? v : NULL;
}

static void read_text(const struct json *v, struct openai_delta *d)
{
    if (usage_is_text(v)) {
        d->text = v->text;
        d->has_text = true;
    }
}

static bool read_delta(struct usage_calls *calls, struct arena *a, const struct json *delta,
                       struct openai_delta *d)
{
    const struct json *role = non_empty_text(delta, STR("role"));
    struct json *tool_calls = json_get(delta, STR("tool_calls"));

    d->role = role != NULL ? STR("assistant") : STR("");
    read_text(json_get(delta, STR("content")), d);
    d->refusal = non_empty_text(delta, STR("refusal"));
    d->reasoning = non_empty_text(delta, STR("reasoning_content"));
    if (d->reasoning == NULL) {
        d->reasoning = non_empty_text(delta, STR("reasoning"));
    }
    if (tool_calls == NULL || tool_calls->type != JSON_ARRAY || tool_calls->count == 0) {
        return true;
    }
    d->tool_calls = tool_calls;
    return usage_repair_deltas(calls, a, tool_calls);
}

/* Tokens whose text is held back (half a character, maybe a stop string) still bring these. */
static bool has_logprobs(const struct json *logprobs)
{
    const struct json *chat = json_get(logprobs, STR("content"));
    const struct json *completions = json_get(logprobs, STR("tokens"));

    return (chat != NULL && chat->count > 0) || (completions != NULL && completions->count > 0);
}

static bool read_choice(struct usage_calls *calls, struct arena *a, enum endpoint ep,
                        const struct json *choice, struct usage_chunk *out)
{
    const struct json *logprobs = json_get(choice, STR("logprobs"));
    struct openai_delta *d = &out->delta;

    if (choice->type != JSON_OBJECT) {
        return false;
    }
    if (logprobs != NULL && logprobs->type == JSON_OBJECT) {
        d->logprobs = logprobs;
    }
    if (ep != ENDPOINT_CHAT) {
        read_text(json_get(choice, STR("text")), d);
    } else if (!read_delta(calls, a, json_get(choice, STR("delta")), d)) {
        return false;
    }
    out->has_content = d->text.n > 0 || d->refusal != NULL || d->reasoning != NULL ||
                       d->tool_calls != NULL || has_logprobs(d->logprobs);
    if (!usage_read_finish(json_get(choice, STR("finish_reason")), &out->finish)) {
        out->finish = FINISH_NONE;
        out->is_error = true;
        api_error_upstream(&out->error);
    }
    if (out->finish == FINISH_STOP && calls->count > 0) {
        out->finish = FINISH_TOOL_CALLS; /* clients run the calls on this reason only */
    }
    return true;
}

bool usage_read_chunk(struct usage_calls *calls, struct arena *a, enum endpoint ep, struct str data,
                      struct usage_chunk *out)
{
    const struct json *root = usage_parse(a, data), *choice;

    *out = (struct usage_chunk){0};
    if (root == NULL || root->type != JSON_OBJECT) {
        return false;
    }
    if (usage_is_error(root)) {
        out->is_error = true;
        usage_read_inband(root, &out->error);
        return true;
    }
    usage_read_count(json_get(root, STR("usage")), &out->usage);
    choice = usage_choice(root);
    return choice == NULL || read_choice(calls, a, ep, choice, out);
}
