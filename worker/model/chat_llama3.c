/* chat_llama3.c - Llama 3, and 3.1 to 3.3 with their tools:
 * <|start_header_id|>role<|end_header_id|>\n\ncontent, trimmed<|eot_id|>. */
#include "worker/model/chat_shape.h"

/* The template's own date where it is given no clock: a prompt that changes at midnight would end
 * every cached prefix. */
#define DATES "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"

static void header(struct chat_writer *w, struct str role)
{
    chat_special(w, "<|start_header_id|>");
    chat_content(w, role);
    chat_special(w, "<|end_header_id|>");
    chat_markup(w, "\n\n");
}

static void turn(struct chat_writer *w, struct chat_message *m)
{
    header(w, m->role);
    chat_trim(m);
    chat_parts(w, m);
    chat_special(w, "<|eot_id|>");
}

static void generate(struct chat_writer *w)
{
    w->message = UINT32_MAX;
    header(w, STR("assistant"));
}

bool chat_render_llama3(const struct chat_shape *s, const struct chat_conversation *c,
                        struct chat_writer *w, uint32_t *stable_messages, struct err *e)
{
    (void)s;
    (void)stable_messages;
    for (uint32_t i = 0; i < c->count; i++) {
        w->message = i;
        if (!chat_has_no_calls(&c->message[i], i, e)) {
            return false;
        }
        if (i == 0) {
            chat_special(w, "<|begin_of_text|>");
        }
        turn(w, &c->message[i]);
    }
    generate(w);
    return true;
}

/* The tools stand in the first user's turn. */
static void first_user_turn(const struct chat_conversation *c, struct chat_message *m,
                            struct chat_writer *w)
{
    header(w, STR("user"));
    chat_markup(w, "Given the following functions, please respond with a JSON for a function call "
                   "with its proper arguments that best answers the given prompt.\n\n"
                   "Respond in the format {\"name\": function name, \"parameters\": dictionary of "
                   "argument name and its value}.Do not use variables.\n\n");
    for (const struct json *t = c->tools->child; t != NULL; t = t->next) {
        chat_json(w, t, 4);
        chat_markup(w, "\n\n");
    }
    chat_trim(m);
    chat_parts(w, m);
    chat_special(w, "<|eot_id|>");
}

/* What the message says beside the call is left out, as the template does. */
static bool call_turn(struct chat_writer *w, const struct chat_message *m, struct err *e)
{
    if (m->n_calls != 1) {
        return err_set(e, ERR_INPUT,
                       "messages[%u] has %u tool calls; the model's chat template takes one at a "
                       "time",
                       w->message, m->n_calls);
    }
    header(w, STR("assistant"));
    chat_call(w, &m->calls[0], "parameters");
    chat_special(w, "<|eot_id|>");
    return true;
}

static void system_turn(const struct chat_conversation *c, struct chat_writer *w)
{
    header(w, STR("system"));
    chat_markup(w, c->tools != NULL ? "Environment: ipython\n" DATES : DATES);
    if (chat_is(&c->message[0], "system")) {
        chat_trim(&c->message[0]);
        chat_parts(w, &c->message[0]);
    }
    chat_special(w, "<|eot_id|>");
}

bool chat_render_llama31(const struct chat_shape *s, const struct chat_conversation *c,
                         struct chat_writer *w, uint32_t *stable_messages, struct err *e)
{
    uint32_t first;

    (void)s;
    (void)stable_messages;
    if (c->count == 0) {
        return err_set(e, ERR_INPUT, "messages is empty");
    }
    first = chat_is(&c->message[0], "system") ? 1 : 0;
    if (c->tools != NULL && (first == c->count || !chat_is(&c->message[first], "user"))) {
        return err_set(e, ERR_INPUT,
                       "the model's chat template puts tools into the first message after the "
                       "system message, which must be a user's");
    }
    chat_special(w, "<|begin_of_text|>");
    system_turn(c, w);
    for (uint32_t i = first; i < c->count; i++) {
        struct chat_message *m = &c->message[i];

        w->message = i;
        if (i == first && c->tools != NULL) {
            first_user_turn(c, m, w);
        } else if (m->n_calls > 0) {
            if (!call_turn(w, m, e)) {
                return false;
            }
        } else if (chat_is(m, "tool") || chat_is(m, "ipython")) {
            header(w, STR("ipython"));
            chat_json_text(w, m);
            chat_special(w, "<|eot_id|>");
        } else {
            turn(w, m);
        }
    }
    generate(w);
    return true;
}
