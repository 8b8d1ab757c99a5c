/* chat_read.c - messages of a request as templates see them: roles by one name each, content as
 * text, calls with their arguments parsed. What a template would not notice is made equal here, so
 * that the families need not. */
#include "worker/model/chat_shape.h"

static struct str text_of(const struct json *v)
{
    return v != NULL && v->type == JSON_STRING ? v->text : STR("");
}

bool chat_is(const struct chat_message *m, const char *role)
{
    return str_eq(m->role, str_c(role));
}

bool chat_is_empty(const struct chat_message *m)
{
    for (uint32_t i = 0; i < m->n_parts; i++) {
        if (m->parts[i].n > 0) {
            return false;
        }
    }
    return true;
}

bool chat_has_no_calls(const struct chat_message *m, uint32_t i, struct err *e)
{
    return m->n_calls == 0 ||
           err_set(e, ERR_UNSUPPORTED,
                   "messages[%u] has tool calls, which the model's chat template does not know", i);
}

/* Length of the white space character at p, 0 when it is none: what Python's str.isspace takes. */
static size_t space_at(const uint8_t *p, size_t n)
{
    if ((p[0] >= 0x09 && p[0] <= 0x0D) || (p[0] >= 0x1C && p[0] <= 0x20)) {
        return 1;
    }
    if (n >= 2 && p[0] == 0xC2 && (p[1] == 0x85 || p[1] == 0xA0)) {
        return 2;
    }
    if (n >= 3 && p[0] >= 0xE1 && p[0] <= 0xE3) {
        uint32_t c = (uint32_t)(p[0] & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);

        return c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
                       c == 0x202F || c == 0x205F || c == 0x3000
                   ? 3
                   : 0;
    }
    return 0;
}

/* Length of the white space character that ends s, 0 when none does. */
static size_t space_before_end(struct str s)
{
    for (size_t n = 1; n <= 3 && n <= s.n; n++) {
        if (space_at((const uint8_t *)s.p + s.n - n, n) == n) {
            return n;
        }
    }
    return 0;
}

void chat_trim(struct chat_message *m)
{
    uint32_t first = 0, last = m->n_parts;
    size_t n;

    for (; first < m->n_parts; first++) {
        struct str *s = &m->parts[first];

        while (s->n > 0 && (n = space_at((const uint8_t *)s->p, s->n)) > 0) {
            *s = str_of(s->p + n, s->n - n);
        }
        if (s->n > 0) {
            break;
        }
    }
    for (; last > first; last--) {
        struct str *s = &m->parts[last - 1];

        while (s->n > 0 && (n = space_before_end(*s)) > 0) {
            s->n -= n;
        }
        if (s->n > 0) {
            break;
        }
    }
}

static bool exhausted(struct err *e)
{
    return err_set(e, ERR_LIMIT, "the conversation has too many parts");
}

static bool read_content(struct arena *a, const struct json *content, struct chat_message *out,
                         struct err *e)
{
    if (json_is_absent(content)) {
        return true;
    }
    out->parts = arena_array(a, (size_t)content->count + 1, sizeof(*out->parts));
    if (out->parts == NULL) {
        return exhausted(e);
    }
    if (content->type == JSON_STRING) {
        out->parts[out->n_parts++] = content->text;
        return true;
    }
    for (const struct json *part = content->child; part != NULL; part = part->next) {
        out->parts[out->n_parts++] =
            part->type == JSON_STRING ? part->text : text_of(json_get(part, STR("text")));
    }
    return true;
}

static bool read_call(struct arena *a, const struct json *call, const struct json *function,
                      uint32_t message, struct chat_call *out, struct err *e)
{
    struct str arguments = str_trim(text_of(json_get(function, STR("arguments"))));
    struct err why = {0};

    out->function = function;
    out->name = text_of(json_get(function, STR("name")));
    out->id = text_of(json_get(call, STR("id")));
    if (out->name.n == 0) {
        return err_set(e, ERR_INPUT, "messages[%u] calls a function that has no name", message);
    }
    out->arguments = json_parse(a, arguments.n > 0 ? arguments : STR("{}"), &json_limits_api, &why);
    if (out->arguments == NULL || out->arguments->type != JSON_OBJECT) {
        return err_set(e, ERR_INPUT,
                       "messages[%u]: the arguments of \"" STR_FMT "\" are no JSON "
                       "object",
                       message, (int)(out->name.n < 64 ? out->name.n : 64), out->name.p);
    }
    return true;
}

/* tool_calls, else the function_call of before they existed. */
static bool read_calls(struct arena *a, const struct json *m, uint32_t message,
                       struct chat_message *out, struct err *e)
{
    const struct json *calls = json_get(m, STR("tool_calls"));
    const struct json *legacy = json_get(m, STR("function_call"));
    uint32_t n = json_is_absent(calls) ? 0 : calls->count;

    if (n == 0 && json_is_absent(legacy)) {
        return true;
    }
    out->calls = arena_array(a, n > 0 ? n : 1, sizeof(*out->calls));
    if (out->calls == NULL) {
        return exhausted(e);
    }
    if (n == 0) {
        out->n_calls = 1;
        return read_call(a, NULL, legacy, message, &out->calls[0], e);
    }
    for (const struct json *c = calls->child; c != NULL; c = c->next) {
        if (!read_call(a, c, json_get(c, STR("function")), message, &out->calls[out->n_calls++],
                       e)) {
            return false;
        }
    }
    return true;
}

bool chat_read(struct arena *a, const struct json *messages, const struct json *tools,
               struct chat_conversation *out, struct err *e)
{
    memset(out, 0, sizeof(*out));
    out->tools = json_is_absent(tools) || tools->count == 0 ? NULL : tools;
    out->message = arena_array(a, (size_t)messages->count + 1, sizeof(*out->message));
    if (out->message == NULL) {
        return exhausted(e);
    }
    for (const struct json *m = messages->child; m != NULL; m = m->next) {
        struct chat_message *to = &out->message[out->count];

        to->role = text_of(json_get(m, STR("role")));
        if (chat_is(to, "developer")) {
            to->role = STR("system");
        } else if (chat_is(to, "function")) {
            to->role = STR("tool");
        }
        to->name = text_of(json_get(m, STR("name")));
        to->call_id = text_of(json_get(m, STR("tool_call_id")));
        if (!read_content(a, json_get(m, STR("content")), to, e) ||
            !read_calls(a, m, out->count, to, e)) {
            return false;
        }
        out->count++;
    }
    return true;
}
