/* chat_chatml.c - the families of <|im_start|>role\ncontent<|im_end|>\n: plain, with a default
 * system message, and Qwen 2.5 with its tools. */
#include "worker/model/chat_shape.h"

static void start(struct chat_writer *w, struct str role)
{
    chat_special(w, "<|im_start|>");
    chat_content(w, role);
}

static void end(struct chat_writer *w)
{
    chat_special(w, "<|im_end|>");
    chat_markup(w, "\n");
}

static void turn(struct chat_writer *w, const struct chat_message *m)
{
    start(w, m->role);
    chat_markup(w, "\n");
    chat_parts(w, m);
    end(w);
}

static void generate(struct chat_writer *w)
{
    w->message = UINT32_MAX;
    chat_special(w, "<|im_start|>");
    chat_markup(w, "assistant\n");
}

/* The system message is a default only where the first message is another. */
bool chat_render_chatml(const struct chat_shape *s, const struct chat_conversation *c,
                        struct chat_writer *w, uint32_t *stable_messages, struct err *e)
{
    (void)stable_messages;
    if (s->system != NULL && c->count > 0 && !chat_is(&c->message[0], "system")) {
        chat_special(w, "<|im_start|>");
        chat_markup(w, "system\n");
        chat_markup(w, s->system);
        end(w);
    }
    for (uint32_t i = 0; i < c->count; i++) {
        w->message = i;
        if (!chat_has_no_calls(&c->message[i], i, e)) {
            return false;
        }
        turn(w, &c->message[i]);
    }
    generate(w);
    return true;
}

static void qwen_tools(const struct chat_conversation *c, struct chat_writer *w)
{
    chat_markup(w, "\n\n# Tools\n\nYou may call one or more functions to assist with the user "
                   "query.\n\nYou are provided with function signatures within <tools></tools> XML "
                   "tags:\n<tools>");
    for (const struct json *t = c->tools->child; t != NULL; t = t->next) {
        chat_markup(w, "\n");
        chat_json(w, t, 0);
    }
    chat_markup(w, "\n</tools>\n\nFor each function call, return a json object with function name "
                   "and arguments within ");
    chat_special(w, "<tool_call>");
    chat_special(w, "</tool_call>");
    chat_markup(w, " XML tags:\n");
    chat_special(w, "<tool_call>");
    chat_markup(w, "\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n");
    chat_special(w, "</tool_call>");
}

static void qwen_calls(struct chat_writer *w, const struct chat_message *m)
{
    start(w, m->role);
    if (!chat_is_empty(m)) {
        chat_markup(w, "\n");
        chat_parts(w, m);
    }
    for (uint32_t i = 0; i < m->n_calls; i++) {
        chat_markup(w, "\n");
        chat_special(w, "<tool_call>");
        chat_markup(w, "\n");
        chat_call(w, &m->calls[i], "arguments");
        chat_markup(w, "\n");
        chat_special(w, "</tool_call>");
    }
    end(w);
}

/* Results that follow one another are one turn of the user. */
static void qwen_result(const struct chat_conversation *c, uint32_t i, struct chat_writer *w)
{
    if (i == 0 || !chat_is(&c->message[i - 1], "tool")) {
        chat_special(w, "<|im_start|>");
        chat_markup(w, "user");
    }
    chat_markup(w, "\n");
    chat_special(w, "<tool_response>");
    chat_markup(w, "\n");
    chat_parts(w, &c->message[i]);
    chat_markup(w, "\n");
    chat_special(w, "</tool_response>");
    if (i + 1 == c->count || !chat_is(&c->message[i + 1], "tool")) {
        end(w);
    }
}

bool chat_render_qwen25(const struct chat_shape *s, const struct chat_conversation *c,
                        struct chat_writer *w, uint32_t *stable_messages, struct err *e)
{
    (void)stable_messages;
    if (c->count == 0) {
        return err_set(e, ERR_INPUT, "messages is empty");
    }
    chat_special(w, "<|im_start|>");
    chat_markup(w, "system\n");
    if (chat_is(&c->message[0], "system")) {
        chat_parts(w, &c->message[0]);
    } else {
        chat_markup(w, s->system);
    }
    if (c->tools != NULL) {
        qwen_tools(c, w);
    }
    end(w);
    for (uint32_t i = 0; i < c->count; i++) {
        const struct chat_message *m = &c->message[i];

        w->message = i;
        if (chat_is(m, "assistant") && m->n_calls > 0) {
            qwen_calls(w, m);
        } else if (chat_is(m, "user") || chat_is(m, "assistant") ||
                   (chat_is(m, "system") && i > 0)) {
            turn(w, m);
        } else if (chat_is(m, "tool")) {
            qwen_result(c, i, w);
        } else if (!chat_is(m, "system")) { /* the template would leave it out */
            return err_set(e, ERR_INPUT,
                           "messages[%u] has a role that the model's chat template does not know",
                           i);
        }
    }
    generate(w);
    return true;
}
