/* chat_mistral.c - the Mistral families: [INST]content[/INST]answer</s>, in the spellings that its
 * templates had over time (v0.1, v0.2, v1, v3, v3-tekken, v7). Turns must alternate. */
#include "worker/model/chat_shape.h"

static void instruction(const struct chat_shape *s, const struct chat_message *system,
                        const struct chat_message *m, struct chat_writer *w)
{
    chat_markup(w, s->lead);
    chat_special(w, "[INST]");
    chat_markup(w, s->space);
    if (system != NULL) {
        chat_parts(w, system);
        chat_markup(w, "\n\n");
    }
    chat_parts(w, m);
    chat_markup(w, s->inst_end);
    chat_special(w, "[/INST]");
}

static void answer(const struct chat_shape *s, struct chat_message *m, struct chat_writer *w)
{
    chat_markup(w, s->assistant);
    if (s->trim_assistant) {
        chat_trim(m);
    }
    chat_parts(w, m);
    chat_special(w, "</s>");
    chat_markup(w, s->turn_end);
}

static bool unknown_role(uint32_t i, struct err *e)
{
    return err_set(e, ERR_INPUT,
                   "messages[%u] has a role that the model's chat template does not take there", i);
}

/* Counts turns: users' at even places. */
static bool alternates(const struct chat_message *m, uint32_t i, uint32_t *turns, struct err *e)
{
    return chat_is(m, "user") == ((*turns)++ % 2 == 0) ||
           err_set(e, ERR_INPUT,
                   "messages[%u]: the model's chat template wants user and assistant to take "
                   "turns, after an optional system message",
                   i);
}

static bool no_system(struct err *e)
{
    return err_set(e, ERR_INPUT, "the model's chat template takes no system message");
}

/* Before the loop: the system message is what stands first. */
static bool split(const struct chat_shape *s, const struct chat_conversation *c,
                  const struct chat_message **system, uint32_t *first, struct err *e)
{
    if (c->count == 0) {
        return err_set(e, ERR_INPUT, "messages is empty");
    }
    *first = chat_is(&c->message[0], "system") ? 1 : 0;
    *system = *first > 0 ? &c->message[0] : NULL;
    if (*first > 0 && s->no_system) {
        return no_system(e);
    }
    return true;
}

bool chat_render_mistral_plain(const struct chat_shape *s, const struct chat_conversation *c,
                               struct chat_writer *w, uint32_t *stable_messages, struct err *e)
{
    const struct chat_message *system = NULL;
    uint32_t first = 0, turns = 0;

    (void)stable_messages;
    if (!split(s, c, &system, &first, e)) {
        return false;
    }
    chat_special(w, "<s>");
    for (uint32_t i = first; i < c->count; i++) {
        struct chat_message *m = &c->message[i];

        /* The system message is in the first turn: its segments come before that turn's text. */
        w->message = i == first ? 0 : i;
        if (!alternates(m, i, &turns, e) || !chat_has_no_calls(m, i, e)) {
            return false;
        }
        if (chat_is(m, "user")) {
            instruction(s, i == first ? system : NULL, m, w);
        } else if (chat_is(m, "assistant")) {
            answer(s, m, w);
        } else {
            return unknown_role(i, e);
        }
    }
    return true;
}

bool chat_render_mistral_v7(const struct chat_shape *s, const struct chat_conversation *c,
                            struct chat_writer *w, uint32_t *stable_messages, struct err *e)
{
    (void)stable_messages;
    chat_special(w, "<s>");
    for (uint32_t i = 0; i < c->count; i++) {
        struct chat_message *m = &c->message[i];

        w->message = i;
        if (!chat_has_no_calls(m, i, e)) {
            return false;
        }
        if (chat_is(m, "user")) {
            instruction(s, NULL, m, w);
        } else if (chat_is(m, "system")) {
            chat_special(w, "[SYSTEM_PROMPT]");
            chat_markup(w, s->space);
            chat_parts(w, m);
            chat_special(w, "[/SYSTEM_PROMPT]");
        } else if (chat_is(m, "assistant")) {
            answer(s, m, w);
        } else {
            return unknown_role(i, e);
        }
    }
    return true;
}

/* ---- v3 and v3-tekken: with tools ---- */

/* Texts stand between quotes as they are, other values as JSON; a member "return" is left out. */
static void tool(struct chat_writer *w, const struct json *function)
{
    bool after = false;

    chat_markup(w, "{\"type\": \"function\", \"function\": {");
    for (const struct json *v = function != NULL ? function->child : NULL; v != NULL; v = v->next) {
        if (str_eq(v->key, STR("return"))) {
            continue;
        }
        chat_markup(w, after ? ", \"" : "\"");
        chat_content(w, v->key);
        if (v->type == JSON_STRING) {
            chat_markup(w, "\": \"");
            chat_content(w, v->text);
            chat_markup(w, "\"");
        } else {
            chat_markup(w, "\": ");
            chat_json(w, v, 0);
        }
        after = true;
    }
    chat_markup(w, "}}");
}

static void available_tools(const struct chat_shape *s, const struct json *tools,
                            struct chat_writer *w)
{
    chat_special(w, "[AVAILABLE_TOOLS]");
    chat_markup(w, s->space);
    chat_markup(w, "[");
    for (const struct json *t = tools->child; t != NULL; t = t->next) {
        tool(w, json_get(t, STR("function")));
        chat_markup(w, t->next != NULL ? ", " : "]");
    }
    chat_special(w, "[/AVAILABLE_TOOLS]");
}

static uint32_t characters(struct str s)
{
    uint32_t n = 0;

    for (size_t i = 0; i < s.n; i++) {
        n += (s.p[i] & 0xC0) != 0x80;
    }
    return n;
}

static bool check_id(struct str id, uint32_t i, struct err *e)
{
    return characters(id) == CHAT_MISTRAL_ID_CHARS ||
           err_set(e, ERR_INPUT,
                   "messages[%u]: the model's chat template wants ids of tool calls to be %d "
                   "letters and digits",
                   i, CHAT_MISTRAL_ID_CHARS);
}

/* The call's function as it came, but its arguments as JSON instead of as a text of JSON. */
static bool call(struct chat_writer *w, const struct chat_call *c, struct err *e)
{
    if (!check_id(c->id, w->message, e)) {
        return false;
    }
    chat_markup(w, "{");
    for (const struct json *v = c->function->child; v != NULL; v = v->next) {
        chat_markup(w, "\"");
        chat_json_key(w, v->key);
        chat_markup(w, "\": ");
        if (str_eq(v->key, STR("arguments"))) {
            chat_arguments(w, c);
        } else {
            chat_json(w, v, 0);
        }
        chat_markup(w, ", ");
    }
    chat_markup(w, "\"id\": \"");
    chat_content(w, c->id);
    chat_markup(w, "\"}");
    return true;
}

static bool calls(const struct chat_shape *s, const struct chat_message *m, struct chat_writer *w,
                  struct err *e)
{
    chat_special(w, "[TOOL_CALLS]");
    chat_markup(w, s->space);
    chat_markup(w, "[");
    for (uint32_t i = 0; i < m->n_calls; i++) {
        chat_markup(w, i > 0 ? ", " : "");
        if (!call(w, &m->calls[i], e)) {
            return false;
        }
    }
    chat_markup(w, "]");
    chat_special(w, "</s>");
    return true;
}

static bool result(const struct chat_shape *s, const struct chat_message *m, struct chat_writer *w,
                   struct err *e)
{
    chat_special(w, "[TOOL_RESULTS]");
    chat_markup(w, s->space);
    chat_markup(w, "{\"content\": ");
    chat_parts(w, m);
    chat_markup(w, ", \"call_id\": \"");
    chat_content(w, m->call_id);
    chat_markup(w, "\"}");
    chat_special(w, "[/TOOL_RESULTS]");
    return check_id(m->call_id, w->message, e);
}

/* Users' messages that say the same are one to the template, so each of them gets the tools. */
static bool same_message(const struct chat_message *a, const struct chat_message *b)
{
    struct str x = {0}, y = {0};
    uint32_t i = 0, k = 0;

    for (;;) {
        size_t n;

        while (x.n == 0 && i < a->n_parts) {
            x = a->parts[i++];
        }
        while (y.n == 0 && k < b->n_parts) {
            y = b->parts[k++];
        }
        if (x.n == 0 || y.n == 0) {
            return x.n == y.n && str_eq(a->name, b->name) && str_eq(a->call_id, b->call_id);
        }
        n = x.n < y.n ? x.n : y.n;
        if (memcmp(x.p, y.p, n) != 0) {
            return false;
        }
        x = str_of(x.p + n, x.n - n);
        y = str_of(y.p + n, y.n - n);
    }
}

static const struct chat_message *last_user(const struct chat_conversation *c)
{
    for (uint32_t i = c->count; i > 0; i--) {
        if (chat_is(&c->message[i - 1], "user")) {
            return &c->message[i - 1];
        }
    }
    return NULL;
}

/* First what the template checks of the whole, so that a refusal names the message at fault. */
static bool check_turns(const struct chat_conversation *c, uint32_t first, struct err *e)
{
    uint32_t turns = 0;

    for (uint32_t i = first; i < c->count; i++) {
        const struct chat_message *m = &c->message[i];

        if (chat_is(m, "user") ? m->n_calls > 0 : !chat_is(m, "assistant") && !chat_is(m, "tool")) {
            return unknown_role(i, e);
        }
        if (!chat_is(m, "tool") && m->n_calls == 0 && !alternates(m, i, &turns, e)) {
            return false;
        }
    }
    return true;
}

/* The tools stand before the last user's message and the system message in it when it is last of
 * all: what was rendered for it changes when the conversation goes on. So does an earlier message
 * when a later one repeats it while tools are offered; that costs time, see cache/README.md. */
bool chat_render_mistral_tools(const struct chat_shape *s, const struct chat_conversation *c,
                               struct chat_writer *w, uint32_t *stable_messages, struct err *e)
{
    const struct chat_message *system = NULL, *last = last_user(c);
    uint32_t first = 0;

    if (!split(s, c, &system, &first, e) || !check_turns(c, first, e)) {
        return false;
    }
    chat_special(w, "<s>");
    for (uint32_t i = first; i < c->count; i++) {
        struct chat_message *m = &c->message[i];

        w->message = i;
        if (chat_is(m, "user")) {
            bool with_tools = c->tools != NULL && same_message(m, last);
            bool with_system = system != NULL && i + 1 == c->count;

            if (with_tools) {
                available_tools(s, c->tools, w);
            }
            if ((with_tools || with_system) && *stable_messages > i) {
                *stable_messages = i;
            }
            instruction(s, with_system ? system : NULL, m, w);
        } else if (m->n_calls > 0 ? !calls(s, m, w, e)
                                  : chat_is(m, "tool") && !result(s, m, w, e)) {
            return false;
        } else if (m->n_calls == 0 && chat_is(m, "assistant")) {
            answer(s, m, w);
        }
    }
    return true;
}
