/* openai_message.c - what a chat's prompt is made of: messages, their parts, tools. Shapes only:
 * what the words mean is the engine's. */
#include "gateway/api/openai_check.h"

#include <stdio.h>

/* A template's own words about tools (how to call one) come on top of their JSON. */
#define TOOLS_PREAMBLE_BYTES 512

/* ---- how much of the prompt it can become ---- */

/* Non-ASCII as \uXXXX is 6 bytes for at least 2; quotes, controls and HTML's own are 6 for 1. */
static uint64_t shown_string_bytes(struct str s)
{
    uint64_t n = s.n + 2;

    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = (uint8_t)s.p[i];

        if (c >= 0x80) {
            n += 2;
        } else if (c < 0x20 || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' ||
                   c == '\'') {
            n += 5;
        }
    }
    return n;
}

/* Recursion is bounded by the parser's depth limit. */
uint64_t openai_shown_bytes(const struct json *v, unsigned depth)
{
    uint64_t n = 5u + 4u * depth; /* bracket or comma, colon, line end, indent */

    if (v->key.n > 0) {
        n += shown_string_bytes(v->key);
    }
    if (v->type == JSON_STRING) {
        return n + shown_string_bytes(v->text);
    }
    n += v->type == JSON_NUMBER ? v->text.n : 5;
    for (const struct json *c = v->child; c != NULL; c = c->next) {
        n += openai_shown_bytes(c, depth + 1);
    }
    return n;
}

static unsigned depth_of(const struct json *v)
{
    unsigned deepest = 0;

    for (const struct json *c = v->child; c != NULL; c = c->next) {
        unsigned d = depth_of(c);

        deepest = d > deepest ? d : deepest;
    }
    return deepest + 1;
}

bool openai_check_depth(const struct json *v, const char *param, struct api_error *e)
{
    if (v != NULL && depth_of(v) > CHECK_SCHEMA_DEPTH_MAX) {
        api_error_invalid(e, param, "'%s' is nested deeper than %d levels.", param,
                          CHECK_SCHEMA_DEPTH_MAX);
        return false;
    }
    return true;
}

/* ---- messages ---- */

/* Where in the request a check is: errors name it. */
struct place {
    struct openai_request *r;
    struct api_error *e;
    unsigned message;
    bool changed; /* a message no longer is what its source says */
};

static bool fault(const struct place *at, const char *below, const char *what)
{
    char path[CHECK_PATH_BYTES];

    (void)snprintf(path, sizeof(path), "messages[%u]%s", at->message, below);
    api_error_invalid(at->e, path, "Invalid '%s': %s.", path, what);
    return false;
}

static bool fault_at(const struct place *at, const char *list, unsigned i, const char *below,
                     const char *what)
{
    char path[CHECK_PATH_BYTES];

    (void)snprintf(path, sizeof(path), ".%s[%u]%s", list, i, below);
    return fault(at, path, what);
}

/* The gateway and its engines fetch nothing from the network for a client. */
static bool check_image(const struct place *at, const struct json *part, unsigned i)
{
    const struct json *image = json_get(part, STR("image_url"));
    const struct json *url = openai_is_string(image) ? image : json_get(image, STR("url"));

    if (!openai_is_string(url)) {
        return fault_at(at, "content", i, ".image_url", "an object with a url is expected");
    }
    if (!str_starts(url->text, STR("data:"))) {
        return fault_at(at, "content", i, ".image_url.url", "only data: URLs are accepted");
    }
    return true;
}

static bool check_part(const struct place *at, const struct json *part, unsigned i)
{
    const struct json *type = json_get(part, STR("type"));

    if (part->type != JSON_OBJECT || !openai_is_string(type)) {
        return fault_at(at, "content", i, "", "an object with a type is expected");
    }
    if (str_eq(type->text, STR("text"))) {
        const struct json *text = json_get(part, STR("text"));

        if (!openai_is_string(text)) {
            return fault_at(at, "content", i, ".text", "a string is expected");
        }
        at->r->text_bytes += text->text.n;
        return true;
    }
    at->r->images++;
    if (str_eq(type->text, STR("image_url"))) { /* its tokens follow its size, not its bytes */
        return check_image(at, part, i);
    }
    at->r->text_bytes += openai_shown_bytes(part, 0);
    return true;
}

/* A message's members, looked up in one walk. */
enum field { ROLE, CONTENT, CALLS, NAME, CALL_ID, REASONING, FIELDS };
struct fields {
    struct json *of[FIELDS];
};

static struct fields fields_of(const struct json *message)
{
    static const struct str keys[FIELDS] = {
        [ROLE] = {"role", 4},
        [CONTENT] = {"content", 7},
        [CALLS] = {"tool_calls", 10},
        [NAME] = {"name", 4},
        [CALL_ID] = {"tool_call_id", 12},
        [REASONING] = {"reasoning_content", 17},
    };
    struct fields f;

    json_pick(message, keys, f.of, FIELDS);
    return f;
}

static bool check_content(const struct place *at, const struct json *content, bool may_lack)
{
    unsigned i = 0;

    if (json_is_absent(content)) {
        return may_lack || fault(at, ".content", "a string or a list of parts is expected");
    }
    if (content->type == JSON_STRING) {
        at->r->text_bytes += content->text.n;
        return true;
    }
    if (content->type != JSON_ARRAY) {
        return fault(at, ".content", "a string or a list of parts is expected");
    }
    for (const struct json *part = content->child; part != NULL; part = part->next) {
        if (!check_part(at, part, i++)) {
            return false;
        }
    }
    return true;
}

static bool check_call(const struct place *at, const struct json *call, unsigned i)
{
    const struct json *function = json_get(call, STR("function"));
    const struct json *name = json_get(function, STR("name"));
    const struct json *arguments = json_get(function, STR("arguments"));

    if (call->type != JSON_OBJECT) {
        return fault_at(at, "tool_calls", i, "", "an object is expected");
    }
    if (function == NULL) { /* of a custom tool: the engine's business */
        at->r->text_bytes += openai_shown_bytes(call, 0);
        return true;
    }
    if (!openai_is_string(name)) {
        return fault_at(at, "tool_calls", i, ".function.name", "a string is expected");
    }
    if (!json_is_absent(arguments) && arguments->type != JSON_STRING) {
        return fault_at(at, "tool_calls", i, ".function.arguments", "a string is expected");
    }
    at->r->text_bytes += openai_shown_bytes(call, 0);
    return true;
}

static bool check_calls(const struct place *at, const struct json *calls)
{
    unsigned i = 0;

    if (json_is_absent(calls)) {
        return true;
    }
    if (calls->type != JSON_ARRAY) {
        return fault(at, ".tool_calls", "a list is expected");
    }
    for (const struct json *c = calls->child; c != NULL; c = c->next) {
        if (!check_call(at, c, i++)) {
            return false;
        }
    }
    return true;
}

/* A string that templates may show; absent is fine. */
static bool check_label(const struct place *at, const struct json *v, const char *below)
{
    if (json_is_absent(v)) {
        return true;
    }
    if (v->type != JSON_STRING) {
        return fault(at, below, "a string is expected");
    }
    at->r->text_bytes += v->text.n;
    return true;
}

static bool check_tool_message(const struct place *at, const struct fields *f)
{
    if (!openai_is_string(f->of[CALL_ID])) {
        return fault(at, ".tool_call_id", "a string is expected in a message of role tool");
    }
    return check_content(at, f->of[CONTENT], false);
}

static bool check_message(struct place *at, struct json *message)
{
    struct fields f = fields_of(message);
    struct json *role = f.of[ROLE];
    struct str name = openai_is_string(role) ? role->text : STR("");
    bool sound;

    if (message->type != JSON_OBJECT) {
        return fault(at, "", "an object is expected");
    }
    if (str_eq(name, STR("developer"))) { /* few engines know it, some drop it silently */
        role->text = STR("system");
        message->text = (struct str){NULL, 0}; /* its source says something else now */
        at->changed = true;
        sound = check_content(at, f.of[CONTENT], false);
    } else if (str_eq(name, STR("system")) || str_eq(name, STR("user"))) {
        sound = check_content(at, f.of[CONTENT], false);
    } else if (str_eq(name, STR("assistant"))) {
        sound = check_content(at, f.of[CONTENT], true) && check_calls(at, f.of[CALLS]);
    } else if (str_eq(name, STR("tool"))) {
        sound = check_tool_message(at, &f);
    } else if (str_eq(name, STR("function"))) {
        sound = check_content(at, f.of[CONTENT], true);
    } else {
        return fault(at, ".role", "expected system, developer, user, assistant, tool or function");
    }
    return sound && check_label(at, f.of[NAME], ".name") &&
           check_label(at, f.of[CALL_ID], ".tool_call_id") &&
           check_label(at, f.of[REASONING], ".reasoning_content");
}

bool openai_check_messages(struct openai_request *r, const struct json *root, struct api_error *e)
{
    struct json *messages = json_get(root, STR("messages"));
    struct place at = {.r = r, .e = e};

    if (json_is_absent(messages)) {
        api_error_invalid(e, "messages", "Missing required parameter: 'messages'.");
        return false;
    }
    if (messages->type != JSON_ARRAY || messages->count == 0) {
        api_error_invalid(e, "messages",
                          "Invalid 'messages': a list of at least one message is expected.");
        return false;
    }
    for (struct json *m = messages->child; m != NULL; m = m->next) {
        if (!check_message(&at, m)) {
            return false;
        }
        at.message++;
    }
    if (at.changed) {
        messages->text = (struct str){NULL, 0};
    }
    r->messages = messages->count;
    return true;
}

/* ---- tools ---- */

static bool check_tool(const struct json *tool, unsigned i, struct api_error *e)
{
    const struct json *function = json_get(tool, STR("function"));
    const struct json *name = json_get(function, STR("name"));
    const struct json *parameters = json_get(function, STR("parameters"));
    char path[CHECK_PATH_BYTES];

    if (!openai_is_string(name) || name->text.n == 0) {
        (void)snprintf(path, sizeof(path), "tools[%u].function.name", i);
        api_error_invalid(e, path, "Invalid '%s': a name is expected.", path);
        return false;
    }
    (void)snprintf(path, sizeof(path), "tools[%u].function.parameters", i);
    if (!json_is_absent(parameters) && parameters->type != JSON_OBJECT) {
        api_error_invalid(e, path, "Invalid '%s': a JSON schema object is expected.", path);
        return false;
    }
    return openai_check_depth(parameters, path, e);
}

static bool check_tool_choice(const struct json *root, const struct json *tools,
                              struct api_error *e)
{
    const struct json *choice = json_get(root, STR("tool_choice"));
    bool sound = json_is_absent(choice) || choice->type == JSON_OBJECT;

    if (!sound && choice->type == JSON_STRING) {
        sound = str_eq(choice->text, STR("none")) || str_eq(choice->text, STR("auto")) ||
                (str_eq(choice->text, STR("required")) && !json_is_absent(tools));
    }
    if (!sound) {
        api_error_invalid(e, "tool_choice",
                          "Invalid 'tool_choice': expected none, auto, required "
                          "(with tools) or an object that names a tool.");
    }
    return sound;
}

bool openai_check_tools(struct openai_request *r, const struct json *root, struct api_error *e)
{
    struct json *tools = json_get(root, STR("tools"));
    struct json **link;
    unsigned i = 0;

    if (!check_tool_choice(root, tools, e)) {
        return false;
    }
    if (json_is_absent(tools)) {
        return true;
    }
    if (tools->type != JSON_ARRAY) {
        api_error_invalid(e, "tools", "Invalid 'tools': a list is expected.");
        return false;
    }
    for (link = &tools->child; *link != NULL; i++) {
        const struct json *type = json_get(*link, STR("type"));

        if (!openai_is_string(type)) {
            api_error_invalid(e, "tools", "Invalid 'tools[%u]': a tool has a type.", i);
            return false;
        }
        if (!str_eq(type->text, STR("function"))) {
            *link = (*link)->next; /* hosted kinds: refusing them would stop whole agents */
            tools->count--;
            tools->text = (struct str){NULL, 0};
            continue;
        }
        if (!check_tool(*link, i, e)) {
            return false;
        }
        link = &(*link)->next;
    }
    if (tools->count > 0) {
        r->text_bytes += openai_shown_bytes(tools, 0) + TOOLS_PREAMBLE_BYTES;
    }
    return true;
}
