/* chat.c - the template families and their one shape: <|im_start|>role\ncontent<|im_end|>\n.
 *
 * Content is borrowed, never copied, and never parsed. No Jinja: a template is recognised whole. */
#include "worker/model/chat.h"

#define MESSAGE_SEGMENTS 7 /* start, role, \n, call separator, end, \n and one to spare */
#define CALL_SEGMENTS 5    /* name ( arguments ) \n */
#define EXTRA_SEGMENTS 16  /* default system message and generation prompt */

/* Text before the first turn is `system` when the first message is not a system message. */
struct family {
    const char *name;
    const char *system; /* NULL: none is inserted */
    const char *template_text;
};

#define CHATML_LOOP                                                                                \
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"       \
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
#define CHATML_DEFAULT(text)                                                                       \
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"         \
    "{{ '<|im_start|>system\n" text "<|im_end|>\n' }}{% endif %}" CHATML_LOOP

#define SMOLLM2_SYSTEM "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
#define QWEN2_SYSTEM "You are a helpful assistant."

static const struct family families[] = {
    [CHAT_SMOLLM2] = {"smollm2", SMOLLM2_SYSTEM, CHATML_DEFAULT(SMOLLM2_SYSTEM)},
    [CHAT_CHATML] = {"chatml", NULL, "{% for message in messages %}" CHATML_LOOP},
    [CHAT_QWEN2] = {"qwen2", QWEN2_SYSTEM, CHATML_DEFAULT(QWEN2_SYSTEM)},
};

const char *chat_family_name(enum chat_family f)
{
    return f == CHAT_NONE ? "none" : families[f].name;
}

bool chat_family_named(struct str name, enum chat_family *out)
{
    for (size_t i = CHAT_SMOLLM2; i < ARRAY_LEN(families); i++) {
        if (str_eq(name, str_c(families[i].name))) {
            *out = (enum chat_family)i;
            return true;
        }
    }
    return false;
}

enum chat_family chat_family_of_template(struct str template_text)
{
    for (size_t i = CHAT_SMOLLM2; i < ARRAY_LEN(families); i++) {
        if (str_eq(template_text, str_c(families[i].template_text))) {
            return (enum chat_family)i;
        }
    }
    return CHAT_NONE;
}

struct str chat_end_token(enum chat_family f)
{
    CHECK(f != CHAT_NONE);
    return STR("<|im_end|>");
}

static void put(struct chat_rendering *r, enum chat_segment_kind kind, struct str text,
                uint32_t message)
{
    if (text.n > 0) {
        r->segments[r->count++] =
            (struct chat_segment){.kind = kind, .text = text, .message = message};
    }
}

static void put_start(struct chat_rendering *r, struct str role, uint32_t message)
{
    put(r, CHAT_SPECIAL, STR("<|im_start|>"), message);
    put(r, CHAT_CONTENT, role, message);
    put(r, CHAT_MARKUP, STR("\n"), message);
}

static void put_end(struct chat_rendering *r, uint32_t message)
{
    put(r, CHAT_SPECIAL, STR("<|im_end|>"), message);
    put(r, CHAT_MARKUP, STR("\n"), message);
}

static struct str text_of(const struct json *v)
{
    return v != NULL && v->type == JSON_STRING ? v->text : STR("");
}

static struct str role_of(const struct json *message)
{
    struct str role = text_of(json_get(message, STR("role")));

    return str_eq(role, STR("developer")) ? STR("system") : role;
}

static void put_call(struct chat_rendering *r, const struct json *function, uint32_t message)
{
    put(r, CHAT_CONTENT, text_of(json_get(function, STR("name"))), message);
    put(r, CHAT_MARKUP, STR("("), message);
    put(r, CHAT_CONTENT, text_of(json_get(function, STR("arguments"))), message);
    put(r, CHAT_MARKUP, STR(")"), message);
}

/* The calls of an assistant's turn, after its text: a line each. */
static void put_calls(struct chat_rendering *r, const struct json *m, uint32_t message)
{
    const struct json *calls = json_get(m, STR("tool_calls"));
    const struct json *legacy = json_get(m, STR("function_call"));
    bool after_text = r->segments[r->count - 1].kind == CHAT_CONTENT;

    for (const struct json *c = json_is_absent(calls) ? NULL : calls->child; c != NULL;
         c = c->next) {
        put(r, CHAT_MARKUP, after_text ? STR("\n") : STR(""), message);
        put_call(r, json_get(c, STR("function")), message);
        after_text = true;
    }
    if (!json_is_absent(legacy)) {
        put(r, CHAT_MARKUP, after_text ? STR("\n") : STR(""), message);
        put_call(r, legacy, message);
    }
}

static void put_content(struct chat_rendering *r, const struct json *content, uint32_t message)
{
    if (json_is_absent(content)) {
        return;
    }
    if (content->type == JSON_STRING) {
        put(r, CHAT_CONTENT, content->text, message);
        return;
    }
    for (const struct json *part = content->child; part != NULL; part = part->next) {
        put(r, CHAT_CONTENT,
            part->type == JSON_STRING ? part->text : text_of(json_get(part, STR("text"))), message);
    }
}

static size_t segments_at_most(const struct json *messages)
{
    size_t n = EXTRA_SEGMENTS;

    for (const struct json *m = messages->child; m != NULL; m = m->next) {
        const struct json *content = json_get(m, STR("content"));
        const struct json *calls = json_get(m, STR("tool_calls"));

        n += MESSAGE_SEGMENTS + CALL_SEGMENTS + (content != NULL ? content->count : 0);
        n += CALL_SEGMENTS * (size_t)(calls != NULL ? calls->count : 0);
    }
    return n;
}

bool chat_render(enum chat_family f, struct arena *a, const struct json *messages,
                 struct chat_rendering *out, struct err *e)
{
    uint32_t index = 0;

    CHECK(f != CHAT_NONE);
    memset(out, 0, sizeof(*out));
    out->segments = arena_array(a, segments_at_most(messages), sizeof(*out->segments));
    if (out->segments == NULL) {
        return err_set(e, ERR_LIMIT, "the conversation has too many parts");
    }
    if (families[f].system != NULL && messages->child != NULL &&
        !str_eq(role_of(messages->child), STR("system"))) {
        put_start(out, STR("system"), 0);
        put(out, CHAT_MARKUP, str_c(families[f].system), 0);
        put_end(out, 0);
    }
    for (const struct json *m = messages->child; m != NULL; m = m->next, index++) {
        put_start(out, role_of(m), index);
        put_content(out, json_get(m, STR("content")), index);
        put_calls(out, m, index);
        put_end(out, index);
    }
    put_start(out, STR("assistant"), UINT32_MAX);
    /* No family here re-renders an earlier turn when the conversation grows. */
    out->stable_messages = index;
    return true;
}
