/* serve_tools.c - from the text of an answer to content and calls of tools.
 *
 * AUTO: text up to a start marker is content. From there on text is held until the value and its
 * end marker are whole: then it is one or more calls, or else content as it stands, markers
 * included, so nothing that the model wrote is lost. White space around calls is dropped.
 * FORCED: the grammar allows only the literals of tool_shape.h with a name and arguments between
 * them, so a call is told as it comes. */
#include "worker/job.h"

#define CALL_ID_BYTES 32
#define CALL_ID_RANDOM 24 /* characters after "call_" when the family asks for no length */
#define CALLS_MAX 128     /* of one answer; what comes after is content */
#define CALL_OVERHEAD 256 /* bytes of JSON around one call's name and arguments */
#define ESCAPE_MAX 6      /* bytes of JSON for one byte of text */
#define SPACE_MAX 256     /* bytes of white space around a call that are held; more is content */
static const struct json_limits value_limits = {.depth_max = 64, .values_max = 100000};

void tools_init(struct choice *c, size_t text_max)
{
    buf_init(&c->tool.held, text_max);
    buf_init(&c->tool.told, text_max * ESCAPE_MAX + (size_t)CALLS_MAX * CALL_OVERHEAD);
    c->tool.step = c->job->tool_mode == TOOLS_FORCED ? TOOL_BEFORE : TOOL_TEXT;
}

void tools_fini(struct choice *c)
{
    buf_fini(&c->tool.held);
    buf_fini(&c->tool.told);
}

static const struct tool_shape *shape_of(const struct choice *c)
{
    return &c->job->serve->shape;
}

static void make_id(struct choice *c, char out[CALL_ID_BYTES])
{
    static const char alphabet[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    uint32_t chars = shape_of(c)->format->id_chars;
    uint8_t random[CALL_ID_BYTES];
    size_t at = 0, n = chars > 0 ? chars : CALL_ID_RANDOM;

    CHECK(n + 6 <= CALL_ID_BYTES);
    env_random(c->job->serve->env, random, sizeof(random));
    if (chars == 0) {
        memcpy(out, "call_", 5);
        at = 5;
    }
    for (size_t i = 0; i < n; i++) {
        out[at++] = alphabet[random[i] % (sizeof(alphabet) - 1)];
    }
    out[at] = '\0';
}

/* The inside of a JSON string. */
static void put_escaped(struct buf *b, struct str s)
{
    size_t start = b->len;

    json_write_string(b, s);
    if (!b->failed) { /* its quotes go: the first by moving, the last by cutting */
        uint8_t *p = b->p + b->off + start;

        memmove(p, p + 1, b->len - start - 1);
        buf_truncate(b, b->len - 2);
    }
}

static void open_call(struct choice *c, struct str name)
{
    struct buf *b = &c->tool.told;
    char id[CALL_ID_BYTES];

    make_id(c, id);
    c->tool.is_open = true;
    c->tool.calls++;
    if (c->job->streamed) {
        answer_text(c);
        answer_call(c, str_c(id), name, STR(""));
        return;
    }
    buf_printf(b, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":",
               c->tool.calls > 1 ? "," : "", id);
    json_write_string(b, name);
    buf_c(b, ",\"arguments\":\"");
}

static void add_arguments(struct choice *c, struct str text)
{
    if (text.n == 0) {
        return;
    }
    if (c->job->streamed) {
        answer_call(c, STR(""), STR(""), text);
    } else {
        put_escaped(&c->tool.told, text);
    }
}

static void close_call(struct choice *c)
{
    c->tool.is_open = false;
    if (!c->job->streamed) {
        buf_c(&c->tool.told, "\"}}");
    }
}

static void forget_scan(struct tool_text *t)
{
    t->at = t->depth = 0;
    t->in_string = t->escaped = false;
}

/* Goes on over an object or array from t->at. The index just after it, or 0: not there yet. Says
 * nothing about what is inside, but no quote or bracket in a string misleads it. */
static size_t scan_value(struct tool_text *t)
{
    struct str s = buf_view(&t->held);

    for (; t->at < s.n; t->at++) {
        char ch = s.p[t->at];

        if (t->in_string) {
            t->in_string = t->escaped || ch != '"';
            t->escaped = !t->escaped && ch == '\\';
        } else if (ch == '"') {
            t->in_string = true;
        } else if (ch == '{' || ch == '[') {
            t->depth++;
        } else if (ch == '}' || ch == ']') {
            t->depth -= t->depth > 0 ? 1 : 0;
            if (t->depth == 0) {
                return ++t->at;
            }
        }
    }
    return 0;
}

static bool is_space(char ch)
{
    return ch == ' ' || ch == '\n' || ch == '\t' || ch == '\r';
}

/* Index of the first byte from `at` on that is no white space; s.n when there is none. */
static size_t past_space(struct str s, size_t at)
{
    while (at < s.n && is_space(s.p[at])) {
        at++;
    }
    return at;
}

static void tell_text(struct choice *c, size_t n)
{
    buf_append(&c->text, buf_view(&c->tool.held).p, n);
    buf_consume(&c->tool.held, n);
}

/* What was scanned becomes content; a call may begin right after it. true: go on. */
static bool give_up(struct choice *c)
{
    bool whole = shape_of(c)->format->start.n == 0; /* the turn is no call, so all is content */

    tell_text(c, whole ? c->tool.held.len : c->tool.at);
    forget_scan(&c->tool);
    c->tool.step = whole ? TOOL_PLAIN : TOOL_TEXT;
    return true;
}

/* Length of the longest end of s that begins `what` without being it. */
static size_t begun(struct str s, struct str what)
{
    size_t n = size_min(s.n, what.n > 0 ? what.n - 1 : 0);

    while (n > 0 && memcmp(s.p + s.n - n, what.p, n) != 0) {
        n--;
    }
    return n;
}

/* Content up to a start marker. White space before a possible one waits. true: go on. */
static bool step_text(struct choice *c)
{
    struct tool_text *t = &c->tool;
    struct str start = shape_of(c)->format->start, s = buf_view(&t->held);
    size_t first = past_space(s, 0), at, keep, least;

    if (start.n == 0) {
        if (first == s.n && first <= SPACE_MAX) {
            return false;
        }
        t->step =
            first <= SPACE_MAX && s.p[first] == '{' && t->calls == 0 ? TOOL_VALUE : TOOL_PLAIN;
        t->at = t->step == TOOL_VALUE ? first : 0;
        return true;
    }
    at = str_find(s, start);
    keep = at != SIZE_MAX ? at : s.n - begun(s, start);
    least = keep > SPACE_MAX ? keep - SPACE_MAX : 0;
    while (keep > least && is_space(s.p[keep - 1])) {
        keep--;
    }
    tell_text(c, keep);
    if (at == SIZE_MAX) {
        return false;
    }
    /* The white space before the marker stays in front of it, for the case that it is no call. */
    t->at = at - keep + start.n;
    if (t->calls >= CALLS_MAX) {
        return give_up(c);
    }
    t->step = TOOL_VALUE;
    return true;
}

static bool step_value(struct choice *c)
{
    struct tool_text *t = &c->tool;
    struct str s = buf_view(&t->held);

    if (t->depth == 0) {
        t->at = past_space(s, t->at);
        if (t->at == s.n) {
            return false;
        }
        if (s.p[t->at] != (shape_of(c)->format->array ? '[' : '{')) {
            return give_up(c);
        }
    }
    if (scan_value(t) == 0) {
        return false;
    }
    t->step = TOOL_END;
    return true;
}

/* One object of a call: its name and the source of its arguments. */
static bool read_call(const struct chat_tool_format *f, const struct json *v, struct str *name,
                      struct str *arguments)
{
    const struct json *n = json_get(v, f->name_key), *a = json_get(v, f->arguments_key);

    if (v->type != JSON_OBJECT || n == NULL || n->type != JSON_STRING || n->text.n == 0 ||
        (!json_is_absent(a) && (a->type != JSON_OBJECT || a->text.p == NULL))) {
        return false;
    }
    *name = n->text;
    *arguments = json_is_absent(a) ? STR("{}") : a->text;
    return true;
}

/* The value of an array or of one object, whole or not at all. */
static bool tell_calls(struct choice *c, struct str value)
{
    const struct chat_tool_format *f = shape_of(c)->format;
    struct arena a;
    struct err e = {0};
    struct str name, arguments;
    const struct json *root, *first;
    bool ok;

    arena_init(&a, JOB_ARENA_BYTES_MAX);
    root = json_parse(&a, value, &value_limits, &e);
    first = root != NULL && f->array ? root->child : root;
    ok = first != NULL && (!f->array || root->count <= CALLS_MAX);
    for (const struct json *v = first; ok && v != NULL; v = f->array ? v->next : NULL) {
        ok = read_call(f, v, &name, &arguments);
    }
    for (const struct json *v = first; ok && v != NULL; v = f->array ? v->next : NULL) {
        if (!read_call(f, v, &name, &arguments) || (c->job->one_call && c->tool.calls > 0)) {
            break;
        }
        open_call(c, name);
        add_arguments(c, arguments);
        close_call(c);
    }
    arena_fini(&a);
    return ok;
}

/* After a value: its end marker, if the family has one. final: nothing more comes. */
static bool step_end(struct choice *c, bool final)
{
    struct tool_text *t = &c->tool;
    const struct chat_tool_format *f = shape_of(c)->format;
    struct str s = buf_view(&t->held), end = f->end, rest;
    size_t at = past_space(s, t->at), from = past_space(s, 0);

    if (at - t->at > SPACE_MAX) {
        return give_up(c);
    }
    rest = str_of(s.p + at, s.n - at);
    if (f->start.n == 0) { /* the turn is a call as a whole or not at all */
        if (rest.n > 0) {
            return give_up(c);
        }
        if (!final) {
            return false;
        }
    } else {
        from += f->start.n;
    }
    if (rest.n < end.n && memcmp(rest.p, end.p, rest.n) == 0) {
        if (!final) {
            return false;
        }
        end.n = rest.n; /* the value is whole, only the marker was not written out */
    } else if (!str_starts(rest, end)) {
        return give_up(c);
    }
    if (!tell_calls(c, str_of(s.p + from, t->at - from))) {
        return give_up(c);
    }
    buf_consume(&t->held, at + end.n);
    forget_scan(t);
    t->step = TOOL_TEXT;
    return true;
}

static bool step_plain(struct choice *c)
{
    tell_text(c, c->tool.held.len);
    return false;
}

static void scan_auto(struct choice *c, bool final)
{
    bool more = true;

    while (more && c->tool.held.len > 0 && !(c->job->one_call && c->tool.calls > 0)) {
        switch (c->tool.step) {
        case TOOL_TEXT:
            more = step_text(c);
            break;
        case TOOL_VALUE:
            more = step_value(c);
            break;
        case TOOL_END:
            more = step_end(c, final);
            break;
        default:
            more = step_plain(c);
        }
    }
}

/* The length of the literal before a name that is at the front, 0: not all there. The grammar
 * makes it the one of the two that fits. */
static size_t before_name(const struct choice *c, struct str s)
{
    const struct tool_shape *shape = shape_of(c);
    struct str lead =
        tool_shape_text(shape, c->tool.calls == 0 ? TOOL_PART_BEGIN : TOOL_PART_SEPARATOR);
    size_t n = lead.n + tool_shape_text(shape, TOOL_PART_BEFORE).n;

    return s.n >= n ? n : 0;
}

/* The quote that ends a name which begins at 0; SIZE_MAX: not there yet. */
static size_t name_end(struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '\\') {
            i++;
        } else if (s.p[i] == '"') {
            return i;
        }
    }
    return SIZE_MAX;
}

static bool step_name(struct choice *c)
{
    struct tool_text *t = &c->tool;
    struct str s = buf_view(&t->held);
    size_t n = name_end(s), after;

    after = n + tool_shape_text(shape_of(c), TOOL_PART_BETWEEN).n;
    if (n == SIZE_MAX || s.n < after) {
        return false;
    }
    open_call(c, str_of(s.p, n)); /* names are letters, digits and '_-.': nothing is escaped */
    buf_consume(&t->held, after);
    forget_scan(t);
    t->step = TOOL_ARGUMENTS;
    return true;
}

static bool step_arguments(struct choice *c)
{
    struct tool_text *t = &c->tool;
    size_t whole = scan_value(t), n = whole > 0 ? whole : t->held.len;

    add_arguments(c, str_of(buf_view(&t->held).p, n));
    buf_consume(&t->held, n);
    t->at = 0;
    if (whole > 0) {
        close_call(c);
        t->step = TOOL_AFTER;
    }
    return whole > 0;
}

static void scan_forced(struct choice *c)
{
    struct tool_text *t = &c->tool;
    bool more = true;
    size_t n;

    while (more && t->held.len > 0) {
        switch (t->step) {
        case TOOL_BEFORE:
            n = before_name(c, buf_view(&t->held));
            buf_consume(&t->held, n);
            t->step = n > 0 ? TOOL_NAME : TOOL_BEFORE;
            more = n > 0;
            break;
        case TOOL_NAME:
            more = step_name(c);
            break;
        case TOOL_ARGUMENTS:
            more = step_arguments(c);
            break;
        default:
            n = tool_shape_text(shape_of(c), TOOL_PART_AFTER).n;
            more = t->held.len >= n;
            buf_consume(&t->held, more ? n : 0);
            t->step = more ? TOOL_BEFORE : TOOL_AFTER;
        }
    }
}

/* Out of memory in any of the buffers fails the answer as it does in that of the content. */
static void note_failure(struct choice *c)
{
    c->text.failed = c->text.failed || c->tool.held.failed || c->tool.told.failed;
}

bool tools_feed(struct choice *c, struct str text)
{
    struct job *j = c->job;

    if (j->tool_mode == TOOLS_OFF) {
        buf_str(&c->text, text);
        return false;
    }
    buf_str(&c->tool.held, text);
    if (j->tool_mode == TOOLS_FORCED) {
        scan_forced(c);
        note_failure(c);
        return false;
    }
    scan_auto(c, false);
    note_failure(c);
    return j->one_call && c->tool.calls > 0;
}

/* A forced call that ended before its name was whole is no call: what there is of it is content,
 * unless a call was told. */
static void finish_forced(struct choice *c)
{
    struct tool_text *t = &c->tool;

    if (t->calls > 0) {
        return;
    }
    if (t->step == TOOL_NAME) { /* the literal before the name was taken off */
        buf_str(&c->text, tool_shape_text(shape_of(c), TOOL_PART_BEGIN));
        buf_str(&c->text, tool_shape_text(shape_of(c), TOOL_PART_BEFORE));
    }
    tell_text(c, t->held.len);
}

void tools_finish(struct choice *c)
{
    struct tool_text *t = &c->tool;

    if (c->job->tool_mode == TOOLS_AUTO) {
        scan_auto(c, true);
        if (t->held.len > 0 && (t->calls == 0 || past_space(buf_view(&t->held), 0) < t->held.len) &&
            !(c->job->one_call && t->calls > 0)) {
            tell_text(c, t->held.len);
        }
    } else if (c->job->tool_mode == TOOLS_FORCED) {
        finish_forced(c);
    }
    if (t->is_open) { /* cut inside its arguments */
        close_call(c);
    }
    note_failure(c);
}
