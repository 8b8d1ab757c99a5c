/* openai_render.c - answers as OpenAI's clients parse them: chunks, whole answers, models.
 *
 * Everything in an answer is ours but the text, the calls and the logprobs: an engine's ids, model
 * path and private members never pass. Keys that strict clients need are there even when null. */
#include "gateway/api/openai.h"

/* ---- what all forms share ---- */

static void render_head(const struct openai_answer *a, const char *chat_object, struct buf *out)
{
    buf_c(out, "{\"id\":");
    json_write_string(out, a->id);
    buf_c(out, ",\"object\":\"");
    buf_c(out, a->endpoint == ENDPOINT_CHAT ? chat_object : "text_completion");
    buf_c(out, "\",\"created\":");
    buf_u64(out, a->created_s);
    buf_c(out, ",\"model\":");
    json_write_string(out, a->model);
    if (a->tier_echo != NULL) {
        buf_c(out, ",\"service_tier\":");
        json_write_string(out, str_c(a->tier_echo));
    }
}

static void render_value_or_null(const struct json *v, struct buf *out)
{
    if (v == NULL) {
        buf_c(out, "null");
    } else {
        json_write(out, v, JSON_ORDER_DOCUMENT);
    }
}

static void render_finish(enum finish f, struct buf *out)
{
    if (f == FINISH_NONE) {
        buf_c(out, "null");
    } else {
        json_write_string(out, str_c(finish_name(f)));
    }
}

static void render_usage(const struct openai_usage *u, struct buf *out)
{
    buf_c(out, "{\"prompt_tokens\":");
    buf_i64(out, u->prompt);
    buf_c(out, ",\"completion_tokens\":");
    buf_i64(out, u->completion);
    buf_c(out, ",\"total_tokens\":");
    buf_i64(out, u->prompt + u->completion);
    buf_c(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    buf_i64(out, u->cached);
    buf_c(out, ",\"audio_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":");
    buf_i64(out, u->reasoning);
    buf_c(out, ",\"audio_tokens\":0,\"accepted_prediction_tokens\":0,"
               "\"rejected_prediction_tokens\":0}}");
}

/* ---- streams ---- */

/* A member of a delta: comma, key, colon. */
static void member(struct buf *out, bool *any, const char *key)
{
    buf_c(out, *any ? ",\"" : "\"");
    buf_c(out, key);
    buf_c(out, "\":");
    *any = true;
}

static void render_delta(const struct openai_delta *d, struct buf *out)
{
    bool any = false;

    buf_byte(out, '{');
    if (d->role.n > 0) {
        member(out, &any, "role");
        json_write_string(out, d->role);
    }
    if (d->has_text) {
        member(out, &any, "content");
        json_write_string(out, d->text);
    } else if (d->role.n > 0) { /* the first chunk says content, null beside a call */
        member(out, &any, "content");
        buf_c(out, d->tool_calls != NULL ? "null" : "\"\"");
    }
    if (d->reasoning != NULL) {
        member(out, &any, "reasoning_content");
        json_write(out, d->reasoning, JSON_ORDER_DOCUMENT);
    }
    if (d->refusal != NULL) {
        member(out, &any, "refusal");
        json_write(out, d->refusal, JSON_ORDER_DOCUMENT);
    }
    if (d->tool_calls != NULL) {
        member(out, &any, "tool_calls");
        json_write(out, d->tool_calls, JSON_ORDER_DOCUMENT);
    }
    buf_byte(out, '}');
}

void openai_render_chunk(const struct openai_answer *a, const struct openai_delta *d, enum finish f,
                         struct buf *out)
{
    buf_c(out, "data: ");
    render_head(a, "chat.completion.chunk", out);
    buf_c(out, ",\"choices\":[{\"index\":0,");
    if (a->endpoint == ENDPOINT_CHAT) {
        buf_c(out, "\"delta\":");
        render_delta(d, out);
    } else {
        buf_c(out, "\"text\":");
        json_write_string(out, d->has_text ? d->text : STR(""));
    }
    buf_c(out, ",\"logprobs\":");
    render_value_or_null(d->logprobs, out);
    buf_c(out, ",\"finish_reason\":");
    render_finish(f, out);
    buf_c(out, a->include_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n");
}

void openai_render_usage_chunk(const struct openai_answer *a, const struct openai_usage *u,
                               struct buf *out)
{
    buf_c(out, "data: ");
    render_head(a, "chat.completion.chunk", out);
    buf_c(out, ",\"choices\":[],\"usage\":");
    render_usage(u, out);
    buf_c(out, "}\n\n");
}

void openai_render_done(struct buf *out)
{
    buf_c(out, "data: [DONE]\n\n");
}

void openai_render_error_event(const struct api_error *e, struct buf *out)
{
    buf_c(out, "data: ");
    api_error_body(e, out);
    buf_c(out, "\n\n");
}

/* ---- whole answers ---- */

static const struct json *string_or_null(const struct json *object, struct str key)
{
    const struct json *v = json_get(object, key);

    return v != NULL && v->type == JSON_STRING ? v : NULL;
}

static void render_message(const struct json *message, struct buf *out)
{
    const struct json *content = string_or_null(message, STR("content"));
    const struct json *reasoning = string_or_null(message, STR("reasoning_content"));
    const struct json *calls = json_get(message, STR("tool_calls"));
    bool has_calls = calls != NULL && calls->type == JSON_ARRAY && calls->count > 0;

    if (reasoning == NULL) {
        reasoning = string_or_null(message, STR("reasoning"));
    }
    buf_c(out, "{\"role\":\"assistant\",\"content\":");
    if (content != NULL) {
        json_write_string(out, content->text);
    } else {
        buf_c(out, has_calls ? "null" : "\"\"");
    }
    buf_c(out, ",\"refusal\":");
    render_value_or_null(string_or_null(message, STR("refusal")), out);
    if (reasoning != NULL && reasoning->text.n > 0) {
        buf_c(out, ",\"reasoning_content\":");
        json_write_string(out, reasoning->text);
    }
    if (has_calls) {
        buf_c(out, ",\"tool_calls\":");
        json_write(out, calls, JSON_ORDER_DOCUMENT);
    }
    buf_byte(out, '}');
}

void openai_render_whole(const struct openai_answer *a, const struct json *choice, enum finish f,
                         const struct openai_usage *u, struct buf *out)
{
    const struct json *text = string_or_null(choice, STR("text"));
    const struct json *logprobs = json_get(choice, STR("logprobs"));

    render_head(a, "chat.completion", out);
    buf_c(out, ",\"choices\":[{\"index\":0,");
    if (a->endpoint == ENDPOINT_CHAT) {
        buf_c(out, "\"message\":");
        render_message(json_get(choice, STR("message")), out);
    } else {
        buf_c(out, "\"text\":");
        json_write_string(out, text != NULL ? text->text : STR(""));
    }
    buf_c(out, ",\"logprobs\":");
    render_value_or_null(logprobs != NULL && logprobs->type == JSON_OBJECT ? logprobs : NULL, out);
    buf_c(out, ",\"finish_reason\":");
    render_finish(f, out);
    buf_c(out, "}],\"usage\":");
    render_usage(u, out);
    buf_byte(out, '}');
}

/* ---- models ---- */

void openai_render_model(const struct snap_model *m, struct buf *out)
{
    struct json_writer w;

    jw_init(&w, out);
    jw_object(&w);
    jw_kstr(&w, "id", m->name);
    jw_kc(&w, "object", "model");
    jw_ku64(&w, "created", m->created_s);
    jw_kc(&w, "owned_by", "tollgate");
    jw_end_object(&w);
}

void openai_render_models(const struct snap_model *const *models, size_t n, struct buf *out)
{
    buf_c(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < n; i++) {
        if (i > 0) {
            buf_byte(out, ',');
        }
        openai_render_model(models[i], out);
    }
    buf_c(out, "]}");
}
