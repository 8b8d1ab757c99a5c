/* usage_calls.c - tool calls made correlatable: every call has its own index and an id, the first
 * delta names it, later ones only add arguments. */
#include "gateway/route/usage_impl.h"

#include "base/hash.h"

#include <stdio.h>

#define ID_EVENT_BYTES 11 /* of the event's end, the random part: ids of two attempts differ */
#define ID_TEXT_BYTES 32
#define ARGUMENTS_BYTES_MAX (1u << 20)

void usage_calls_init(struct usage_calls *c, struct uuid event)
{
    *c = (struct usage_calls){.event = event};
}

/* What one delta says. */
struct said {
    const struct json *function;
    struct str id, name;
    int64_t index; /* -1: none */
    const struct json *arguments;
};

static struct said read_call(const struct json *call)
{
    const struct json *id = json_get(call, STR("id")), *name;
    struct said s = {.function = json_get(call, STR("function")), .index = -1};

    name = json_get(s.function, STR("name"));
    s.id = usage_is_text(id) ? id->text : STR("");
    s.name = usage_is_text(name) ? name->text : STR("");
    s.arguments = json_get(s.function, STR("arguments"));
    if (!json_i64(json_get(call, STR("index")), &s.index) || s.index < 0) {
        s.index = -1;
    }
    return s;
}

static uint64_t text_hash(struct str s)
{
    return s.n == 0 ? 0 : hash_xxh3(s.p, s.n, 0) | 1;
}

/* The call that a delta continues; c->count: it begins one. Newest first: engines that reuse an
 * index mean the call that they are at. An unseen id alone begins none: some engines make up a
 * fresh one for each delta; a new call also says its name. */
static uint32_t find(const struct usage_calls *c, const struct said *s)
{
    uint64_t id = text_hash(s->id);
    uint32_t at = c->count;
    const struct usage_call *known;

    for (uint32_t i = c->count; id != 0 && i-- > 0;) {
        if (c->call[i].id == id) {
            return i;
        }
    }
    for (uint32_t i = c->count; i-- > 0 && at == c->count;) {
        at = s->index < 0 || c->call[i].index == s->index ? i : at;
    }
    if (at == c->count) {
        return at;
    }
    known = &c->call[at];
    if (s->name.n == 0 || known->name == 0) {
        return at;
    }
    if (id != 0) {
        return c->count;
    }
    return s->index < 0 || known->has_arguments ? c->count : at;
}

static bool add(struct arena *a, struct json *parent, const char *key, struct str text)
{
    return usage_node(a, parent, JSON_STRING, str_c(key), text) != NULL;
}

static bool add_index(struct arena *a, struct json *parent, uint32_t index)
{
    char text[12];
    struct str kept;

    (void)snprintf(text, sizeof(text), "%u", index);
    kept = arena_str(a, str_c(text));
    return kept.p != NULL && usage_node(a, parent, JSON_NUMBER, STR("index"), kept) != NULL;
}

static bool add_id(const struct usage_calls *c, struct arena *a, struct json *parent, struct str id,
                   uint32_t index)
{
    char text[ID_TEXT_BYTES] = "call_", hex[2 * ID_EVENT_BYTES + 1];

    if (id.n == 0) {
        str_hex(c->event.b + sizeof(c->event.b) - ID_EVENT_BYTES, ID_EVENT_BYTES, hex);
        (void)snprintf(text, sizeof(text), "call_%s%02x", hex, index & 0xFF);
        id = arena_str(a, str_c(text));
    }
    return id.p != NULL && add(a, parent, "id", id);
}

/* Members that we have no opinion on (a custom tool's) pass. */
static bool add_others(struct arena *a, struct json *parent, const struct json *call)
{
    for (const struct json *m = call->child; m != NULL; m = m->next) {
        struct json *v;

        if (str_eq(m->key, STR("index")) || str_eq(m->key, STR("id")) ||
            str_eq(m->key, STR("type")) || str_eq(m->key, STR("function"))) {
            continue;
        }
        v = usage_node(a, parent, m->type, m->key, m->text);
        if (v == NULL) {
            return false;
        }
        v->child = m->child;
        v->count = m->count;
    }
    return true;
}

/* Arguments are a string; some engines send the object itself. */
static bool arguments_text(struct arena *a, const struct json *arguments, struct str *out)
{
    struct buf b;

    if (usage_is_text(arguments)) {
        *out = arguments->text;
        return true;
    }
    if (json_is_absent(arguments)) {
        *out = STR("");
        return true;
    }
    buf_init(&b, ARGUMENTS_BYTES_MAX);
    json_write(&b, arguments, JSON_ORDER_DOCUMENT);
    *out = b.failed ? (struct str){NULL, 0} : arena_str(a, buf_view(&b));
    buf_fini(&b);
    return out->p != NULL;
}

static bool add_function(struct arena *a, struct json *parent, const struct said *s, bool with_name,
                         bool first)
{
    struct json *function;
    struct str text;

    if (json_is_absent(s->function)) {
        return true;
    }
    function = usage_node(a, parent, JSON_OBJECT, STR("function"), STR(""));
    if (function == NULL || !arguments_text(a, s->arguments, &text)) {
        return false;
    }
    if (with_name && !add(a, function, "name", s->name)) {
        return false;
    }
    if (!first && json_is_absent(s->arguments)) {
        return true;
    }
    return add(a, function, "arguments", text);
}

static struct str type_of(const struct json *call)
{
    const struct json *type = json_get(call, STR("type"));

    return usage_is_text(type) && type->text.n > 0 ? type->text : STR("function");
}

static bool says_arguments(const struct said *s)
{
    return !json_is_absent(s->arguments) &&
           !(usage_is_text(s->arguments) && s->arguments->text.n == 0);
}

static bool repair_delta(struct usage_calls *c, struct arena *a, struct json *call)
{
    struct json fresh = {.type = JSON_OBJECT};
    struct said s = read_call(call);
    uint32_t at = find(c, &s);
    bool first = at == c->count, with_name;
    struct usage_call *known;

    if (at == USAGE_CALLS_MAX) {
        return false;
    }
    known = &c->call[at];
    if (first) {
        *known = (struct usage_call){.id = text_hash(s.id), .index = s.index};
        c->count++;
    }
    /* Clients join the names of a call's deltas: a repeated one must not pass, a piece must. */
    with_name = s.name.n > 0 &&
                (known->name == 0 || (!known->has_arguments && known->name != text_hash(s.name)));
    if (!add_index(a, &fresh, at) ||
        (first && (!add_id(c, a, &fresh, s.id, at) || !add(a, &fresh, "type", type_of(call)))) ||
        !add_function(a, &fresh, &s, with_name, first) || !add_others(a, &fresh, call)) {
        return false;
    }
    known->name = known->name != 0 ? known->name : text_hash(s.name);
    known->id = known->id != 0 ? known->id : text_hash(s.id);
    known->has_arguments = known->has_arguments || says_arguments(&s);
    call->child = fresh.child;
    call->count = fresh.count;
    return true;
}

bool usage_repair_deltas(struct usage_calls *c, struct arena *a, struct json *calls)
{
    if (calls->count > USAGE_CALLS_MAX) {
        return false;
    }
    for (struct json *call = calls->child; call != NULL; call = call->next) {
        if (call->type != JSON_OBJECT || !repair_delta(c, a, call)) {
            return false;
        }
    }
    return true;
}

bool usage_repair_whole(struct usage_calls *c, struct arena *a, struct json *calls)
{
    uint32_t at = 0;

    if (calls->count > USAGE_CALLS_MAX) {
        return false;
    }
    for (struct json *call = calls->child; call != NULL; call = call->next, at++) {
        struct json fresh = {.type = JSON_OBJECT};
        struct said s = read_call(call);

        if (call->type != JSON_OBJECT || !add_id(c, a, &fresh, s.id, at) ||
            !add(a, &fresh, "type", type_of(call)) || !add_function(a, &fresh, &s, true, true) ||
            !add_others(a, &fresh, call)) {
            return false;
        }
        call->child = fresh.child;
        call->count = fresh.count;
    }
    c->count = at;
    return true;
}
