/* usage_whole.c - an engine's whole answer: read, checked to be one, its calls repaired. */
#include "gateway/route/usage_impl.h"

#include <stdio.h>

static uint64_t text_bytes(const struct json *object, struct str key)
{
    const struct json *v = json_get(object, key);

    return usage_is_text(v) ? v->text.n : 0;
}

static uint64_t message_bytes(const struct json *message)
{
    const struct json *calls = json_get(message, STR("tool_calls"));
    uint64_t n = text_bytes(message, STR("content")) + text_bytes(message, STR("refusal")) +
                 size_max(text_bytes(message, STR("reasoning_content")),
                          text_bytes(message, STR("reasoning")));

    for (const struct json *c = calls != NULL ? calls->child : NULL; c != NULL; c = c->next) {
        n += text_bytes(json_get(c, STR("function")), STR("name")) +
             text_bytes(json_get(c, STR("function")), STR("arguments"));
    }
    return n;
}

static bool read_message(struct usage_calls *calls, struct arena *a, const struct json *choice,
                         struct usage_whole *out)
{
    const struct json *message = json_get(choice, STR("message"));
    struct json *list = json_get(message, STR("tool_calls"));

    if (message == NULL || message->type != JSON_OBJECT) {
        return false;
    }
    if (list != NULL && list->type == JSON_ARRAY && list->count > 0) {
        if (!usage_repair_whole(calls, a, list)) {
            return false;
        }
        if (out->finish == FINISH_STOP) {
            out->finish = FINISH_TOOL_CALLS;
        }
    }
    out->text_bytes = message_bytes(message);
    return true;
}

static bool read_answer(struct usage_calls *calls, struct arena *a, enum endpoint ep,
                        const struct json *root, struct usage_whole *out)
{
    const struct json *choice = usage_choice(root);

    if (choice == NULL || choice->type != JSON_OBJECT) {
        return false;
    }
    out->choice = choice;
    if (!usage_read_finish(json_get(choice, STR("finish_reason")), &out->finish) ||
        out->finish == FINISH_NONE) {
        return false;
    }
    if (ep == ENDPOINT_CHAT) {
        return read_message(calls, a, choice, out);
    }
    out->text_bytes = text_bytes(choice, STR("text"));
    return usage_is_text(json_get(choice, STR("text")));
}

bool usage_read_whole(struct usage_calls *calls, struct arena *a, enum endpoint ep, struct str body,
                      struct usage_whole *out, struct api_error *e)
{
    const struct json *root = usage_parse(a, body);

    *out = (struct usage_whole){0};
    if (root != NULL && usage_is_error(root)) {
        out->is_error = true;
        usage_read_inband(root, e);
        return false;
    }
    if (root == NULL || !read_answer(calls, a, ep, root, out)) {
        api_error_upstream(e);
        return false;
    }
    usage_read_count(json_get(root, STR("usage")), &out->usage);
    return true;
}

/* Bytes that the string at body[at] stands for, as far as it came; *at moves past it. */
static uint64_t string_bytes(struct str body, size_t *at)
{
    uint64_t n = 0;

    while (*at < body.n && body.p[*at] != '"') {
        bool escape = body.p[*at] == '\\';
        bool code = escape && *at + 1 < body.n && body.p[*at + 1] == 'u';

        *at += code ? 6 : escape ? 2 : 1;
        n += code ? 3 : 1;
    }
    return n;
}

/* Of every string under this key. */
static uint64_t member_bytes(struct str body, struct str key)
{
    uint64_t n = 0;
    size_t at = 0, found;

    while (at < body.n && (found = str_find(str_of(body.p + at, body.n - at), key)) != SIZE_MAX) {
        for (at += found + key.n; at < body.n && (body.p[at] == ':' || body.p[at] == ' '); at++) {
        }
        if (at < body.n && body.p[at] == '"') {
            at++;
            n += string_bytes(body, &at);
        }
    }
    return n;
}

uint64_t usage_part_bytes(enum endpoint ep, struct str body)
{
    if (ep != ENDPOINT_CHAT) {
        return member_bytes(body, STR("\"text\""));
    }
    return member_bytes(body, STR("\"content\"")) +
           member_bytes(body, STR("\"reasoning_content\"")) +
           member_bytes(body, STR("\"arguments\""));
}

/* Whole calls have no index, a delta's must. */
static bool add_indexes(struct arena *a, struct json *calls)
{
    uint32_t at = 0;

    for (struct json *call = calls->child; call != NULL; call = call->next, at++) {
        char text[12];
        struct json *index;

        snprintf(text, sizeof(text), "%u", at);
        index = usage_node(a, NULL, JSON_NUMBER, STR("index"), arena_str(a, str_c(text)));
        if (index == NULL || index->text.p == NULL) {
            return false;
        }
        index->next = call->child;
        call->child = index;
        call->count++;
    }
    return true;
}

bool usage_whole_delta(struct arena *a, enum endpoint ep, const struct usage_whole *w,
                       struct openai_delta *out)
{
    const struct json *message =
        ep == ENDPOINT_CHAT ? json_get(w->choice, STR("message")) : w->choice;
    const struct json *text = json_get(message, ep == ENDPOINT_CHAT ? STR("content") : STR("text"));
    const struct json *refusal = json_get(message, STR("refusal"));
    const struct json *reasoning = json_get(message, STR("reasoning_content"));
    const struct json *logprobs = json_get(w->choice, STR("logprobs"));
    struct json *calls = json_get(message, STR("tool_calls"));

    *out = (struct openai_delta){.role = STR("")};
    if (usage_is_text(text)) {
        out->text = text->text;
        out->has_text = true;
    }
    reasoning = usage_is_text(reasoning) ? reasoning : json_get(message, STR("reasoning"));
    out->refusal = usage_is_text(refusal) ? refusal : NULL;
    out->reasoning = usage_is_text(reasoning) ? reasoning : NULL;
    out->logprobs = logprobs != NULL && logprobs->type == JSON_OBJECT ? logprobs : NULL;
    if (calls != NULL && calls->type == JSON_ARRAY && calls->count > 0) {
        out->tool_calls = calls;
        return add_indexes(a, calls);
    }
    return true;
}
