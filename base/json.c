/* json.c - the parser: one loop over a state, a chain of open containers, nodes in the arena.
 *
 * Knows JSON and nothing of who sent it. Escape-free strings and numbers point into the input;
 * only strings with escapes are copied. Work and memory are linear in the text (n log n for an
 * object whose keys were chosen to collide, see json_keys_end). */
#include "base/json.h"

#include "base/json_keys.h"
#include "base/json_text.h"

#define KEY_SHOWN_MAX 48 /* bytes of a key in an error text */

const struct json_limits json_limits_api = {128, 1000000};

enum state {
    WANT_VALUE = 1,
    WANT_VALUE_OR_END, /* just after '[' */
    WANT_KEY,
    WANT_KEY_OR_END, /* just after '{' */
    WANT_COMMA_OR_END,
    WANT_NOTHING, /* the document is complete: only space may follow */
};

#define TEXT_ROOM_BYTES 4000 /* strings with escapes are decoded into pieces of so much */

/* One open container. Frames are kept for reuse: there are never more than the deepest nesting. */
struct frame {
    struct json *node;
    struct json *last;     /* newest child */
    const uint8_t *source; /* its opening bracket */
    uint32_t repairs;      /* of the parser, when it opened */
    struct frame *up, *down;
    struct json_keys keys;
};

struct parser {
    const uint8_t *begin, *at, *end;
    struct arena *arena;
    const struct json_limits *limits;
    struct err *err;
    struct json *root;
    struct json *member;   /* a member whose key was read and whose value was not */
    struct frame *top;     /* innermost open container; NULL: none */
    struct frame *first;   /* outermost frame ever made; NULL: none */
    char *room, *room_end; /* arena: where the next string with escapes is decoded to */
    uint32_t depth, values;
    uint32_t repairs; /* strings whose lone surrogates were replaced */
    enum state state;
};

/* ---- errors: what, and at which byte ---- */

static bool fail(struct parser *p, const uint8_t *at, const char *what)
{
    return err_set(p->err, ERR_INPUT, "%s at byte %zu", what, (size_t)(at - p->begin));
}

static bool fail_limit(struct parser *p, const char *what, uint64_t limit)
{
    return err_set(p->err, ERR_LIMIT, "more than %llu %s at byte %zu", (unsigned long long)limit,
                   what, (size_t)(p->at - p->begin));
}

static bool fail_memory(struct parser *p)
{
    return err_set(p->err, ERR_NO_MEMORY, "no memory left for the JSON value at byte %zu",
                   (size_t)(p->at - p->begin));
}

static bool fail_expected(struct parser *p, const char *expected)
{
    size_t offset = (size_t)(p->at - p->begin);

    if (p->at == p->end) {
        return err_set(p->err, ERR_INPUT, "the text ends at byte %zu where %s is expected", offset,
                       expected);
    }
    if (*p->at > 0x20 && *p->at < 0x7F) {
        return err_set(p->err, ERR_INPUT, "expected %s at byte %zu, found '%c'", expected, offset,
                       *p->at);
    }
    return err_set(p->err, ERR_INPUT, "expected %s at byte %zu, found byte 0x%02x", expected,
                   offset, *p->at);
}

static bool fail_duplicate(struct parser *p, struct str key, const char *where, const uint8_t *at)
{
    char shown[KEY_SHOWN_MAX + 1];
    size_t n = size_min(key.n, KEY_SHOWN_MAX);

    for (size_t i = 0; i < n; i++) {
        shown[i] = key.p[i] >= 0x20 && key.p[i] < 0x7F ? key.p[i] : '?';
    }
    shown[n] = '\0';
    return err_set(p->err, ERR_INPUT, "duplicate key \"%s\"%s at byte %zu", shown, where,
                   (size_t)(at - p->begin));
}

/* ---- strings ---- */

static bool fail_in_string(struct parser *p, const uint8_t *at)
{
    if (at >= p->end) {
        return fail(p, p->at, "the text ends inside the string that starts");
    }
    if (*at < 0x20) {
        return fail(p, at, "raw control character in a string (escape it)");
    }
    return fail(p, at, "invalid UTF-8 in a string");
}

static bool fail_decode(struct parser *p, const uint8_t *at)
{
    if (json_find_close(p->at + 1, p->end) == NULL) {
        return fail_in_string(p, p->end);
    }
    if (at < p->end && *at == '\\') {
        return fail(p, at, "unknown escape in a string");
    }
    return fail_in_string(p, at);
}

/* Room for a string whose source begins at s and whose decoding has just run out of it. */
static bool text_room(struct parser *p, const uint8_t *s)
{
    const uint8_t *close = json_find_close(s, p->end);
    size_t need;

    if (close == NULL) {
        return fail_in_string(p, p->end);
    }
    need = (size_t)(close - s) + 4; /* the last character may want a whole step */
    need = need > TEXT_ROOM_BYTES / 4 ? need : TEXT_ROOM_BYTES;
    p->room = arena_alloc_dirty(p->arena, need);
    p->room_end = p->room != NULL ? p->room + need : NULL;
    return p->room != NULL || fail_memory(p);
}

/* The string has escapes: what it says goes to the arena, in one pass. */
static bool read_escaped(struct parser *p, struct str *out)
{
    for (;;) {
        struct json_decoder d = {p->at + 1, p->end, p->room, p->room_end, false};
        enum json_decoded got = p->room != NULL ? json_decode(&d) : JSON_DECODE_FULL;

        switch (got) {
        case JSON_DECODED:
            *out = str_of(p->room, (size_t)(d.to - p->room));
            p->room = d.to;
            p->repairs += d.repaired;
            p->at = d.at + 1;
            return true;
        case JSON_DECODE_BAD:
            return fail_decode(p, d.at);
        case JSON_DECODE_FULL: /* once a string: then all of it fits */
            if (!text_room(p, p->at + 1)) {
                return false;
            }
        }
    }
}

/* p->at stands on the opening quote. */
static bool read_string(struct parser *p, struct str *out)
{
    const uint8_t *s = p->at + 1, *stop = json_skip_plain(s, p->end);

    if (stop < p->end && *stop == '"') {
        *out = str_of(s, (size_t)(stop - s));
        p->at = stop + 1;
        return true;
    }
    if (stop < p->end && *stop == '\\') {
        return read_escaped(p, out);
    }
    return fail_in_string(p, stop);
}

/* ---- numbers ---- */

static bool read_number(struct parser *p, struct str *out)
{
    struct json_number n = json_number_span(p->at, p->end);
    double ignored;

    if (!n.ok) {
        if (n.at == p->end) {
            return fail(p, p->at, "the text ends inside the number that starts");
        }
        return fail(p, n.at, "malformed number");
    }
    *out = str_of(p->at, (size_t)(n.at - p->at));
    if (out->n > JSON_NUMBER_BYTES_MAX) {
        return fail_limit(p, "bytes in a number", JSON_NUMBER_BYTES_MAX);
    }
    /* Without an exponent, up to 308 bytes can't overflow: most numbers skip strtod. */
    if ((n.exponent || out->n > 308) && !json_text_f64(*out, &ignored)) {
        return fail(p, p->at, "number too large for a double");
    }
    p->at = n.at;
    return true;
}

/* ---- the tree ---- */

/* A new node, linked as the newest child of the top frame or as the root. */
static struct json *node_add(struct parser *p)
{
    struct json *v;

    if (p->values >= p->limits->values_max) {
        (void)fail_limit(p, "JSON values", p->limits->values_max);
        return NULL;
    }
    v = arena_alloc(p->arena, sizeof(*v));
    if (v == NULL) {
        (void)fail_memory(p);
        return NULL;
    }
    p->values++;
    if (p->top == NULL) {
        p->root = v;
        return v;
    }
    if (p->top->last == NULL) {
        p->top->node->child = v;
    } else {
        p->top->last->next = v;
    }
    p->top->last = v;
    p->top->node->count++;
    return v;
}

static bool container_open(struct parser *p, struct json *v)
{
    struct frame *f = p->top == NULL ? p->first : p->top->down;

    if (p->depth >= p->limits->depth_max) {
        return fail_limit(p, "levels of nesting", p->limits->depth_max);
    }
    if (f == NULL) {
        f = arena_alloc(p->arena, sizeof(*f));
        if (f == NULL) {
            return fail_memory(p);
        }
        f->up = p->top;
        if (p->top == NULL) {
            p->first = f;
        } else {
            p->top->down = f;
        }
    }
    f->node = v;
    f->last = NULL;
    f->source = p->at;
    f->repairs = p->repairs;
    json_keys_begin(&f->keys);
    p->top = f;
    p->depth++;
    p->state = v->type == JSON_OBJECT ? WANT_KEY_OR_END : WANT_VALUE_OR_END;
    p->at++;
    return true;
}

static bool container_close(struct parser *p)
{
    struct str key;

    switch (json_keys_end(&p->top->keys, p->arena, p->top->node, &key)) {
    case JSON_KEYS_NEW:
        break;
    case JSON_KEYS_DUPLICATE:
        return fail_duplicate(p, key, " in the object that ends", p->at);
    case JSON_KEYS_NO_MEMORY:
        return fail_memory(p);
    }
    p->at++;
    if (p->top->repairs == p->repairs) {
        p->top->node->text = str_of(p->top->source, (size_t)(p->at - p->top->source));
    }
    p->top = p->top->up;
    p->depth--;
    p->state = p->top == NULL ? WANT_NOTHING : WANT_COMMA_OR_END;
    return true;
}

/* ---- the grammar ---- */

static bool read_literal(struct parser *p, struct json *v, struct str word, enum json_type type)
{
    size_t n = size_min(word.n, (size_t)(p->end - p->at));

    if (memcmp(p->at, word.p, n) != 0) {
        return fail(p, p->at, "unknown word (only true, false and null are known)");
    }
    if (n < word.n) {
        return fail(p, p->at, "the text ends inside the word that starts");
    }
    v->type = type;
    p->at += n;
    return true;
}

static bool read_scalar(struct parser *p, struct json *v)
{
    switch (*p->at) {
    case '"':
        v->type = JSON_STRING;
        return read_string(p, &v->text);
    case 't':
        return read_literal(p, v, STR("true"), JSON_TRUE);
    case 'f':
        return read_literal(p, v, STR("false"), JSON_FALSE);
    case 'n':
        return read_literal(p, v, STR("null"), JSON_NULL);
    default:
        if (*p->at != '-' && (*p->at < '0' || *p->at > '9')) {
            return fail_expected(p, "a value");
        }
        v->type = JSON_NUMBER;
        return read_number(p, &v->text);
    }
}

static bool read_value(struct parser *p)
{
    struct json *v = p->member != NULL ? p->member : node_add(p);

    if (v == NULL) {
        return false;
    }
    p->member = NULL;
    if (*p->at == '{' || *p->at == '[') {
        v->type = *p->at == '{' ? JSON_OBJECT : JSON_ARRAY;
        return container_open(p, v);
    }
    p->state = p->top == NULL ? WANT_NOTHING : WANT_COMMA_OR_END;
    return read_scalar(p, v);
}

static const uint8_t *skip_space(const uint8_t *s, const uint8_t *end)
{
    while (s < end && (*s == ' ' || *s == '\n' || *s == '\r' || *s == '\t')) {
        s++;
    }
    return s;
}

/* A key and its colon. The member joins the object here, its value follows. */
static bool read_key(struct parser *p)
{
    const uint8_t *at = p->at;
    struct str key;

    if (*p->at != '"') {
        return fail_expected(p, p->state == WANT_KEY_OR_END ? "a key or '}'" : "a key");
    }
    if (!read_string(p, &key)) {
        return false;
    }
    switch (json_keys_check(&p->top->keys, p->arena, p->top->node, key)) {
    case JSON_KEYS_NEW:
        break;
    case JSON_KEYS_DUPLICATE:
        return fail_duplicate(p, key, "", at);
    case JSON_KEYS_NO_MEMORY:
        return fail_memory(p);
    }
    p->member = node_add(p);
    if (p->member == NULL) {
        return false;
    }
    p->member->key = key;
    json_keys_added(&p->top->keys, p->member);
    p->at = skip_space(p->at, p->end);
    if (p->at == p->end || *p->at != ':') {
        return fail_expected(p, "':'");
    }
    p->at++;
    p->state = WANT_VALUE;
    return true;
}

static bool read_comma(struct parser *p)
{
    bool in_object = p->top->node->type == JSON_OBJECT;

    if (*p->at == (in_object ? '}' : ']')) {
        return container_close(p);
    }
    if (*p->at != ',') {
        return fail_expected(p, in_object ? "',' or '}'" : "',' or ']'");
    }
    p->at++;
    p->state = in_object ? WANT_KEY : WANT_VALUE;
    return true;
}

static bool fail_end(struct parser *p)
{
    switch (p->state) {
    case WANT_KEY:
        return fail_expected(p, "a key");
    case WANT_KEY_OR_END:
        return fail_expected(p, "a key or '}'");
    case WANT_COMMA_OR_END:
        return fail_expected(p, p->top->node->type == JSON_OBJECT ? "',' or '}'" : "',' or ']'");
    default:
        return fail_expected(p, "a value");
    }
}

/* One token of the text, at p->at, which is not the end. */
static bool read_token(struct parser *p)
{
    switch (p->state) {
    case WANT_VALUE_OR_END:
        return *p->at == ']' ? container_close(p) : read_value(p);
    case WANT_VALUE:
        return read_value(p);
    case WANT_KEY_OR_END:
        return *p->at == '}' ? container_close(p) : read_key(p);
    case WANT_KEY:
        return read_key(p);
    case WANT_COMMA_OR_END:
        return read_comma(p);
    case WANT_NOTHING:
        break;
    }
    return fail_expected(p, "the end of the text");
}

struct json *json_parse(struct arena *a, struct str text, const struct json_limits *lim,
                        struct err *e)
{
    const uint8_t *begin = (const uint8_t *)(text.n != 0 ? text.p : "");
    struct parser p = {.begin = begin,
                       .at = begin,
                       .end = begin + text.n,
                       .arena = a,
                       .limits = lim,
                       .err = e,
                       .state = WANT_VALUE};

    if (text.n >= 3 && memcmp(begin, "\xEF\xBB\xBF", 3) == 0) {
        p.at += 3;
    }
    for (;;) {
        p.at = skip_space(p.at, p.end);
        if (p.at == p.end) {
            break;
        }
        if (!read_token(&p)) {
            return NULL;
        }
    }
    if (p.state != WANT_NOTHING) {
        (void)fail_end(&p);
        return NULL;
    }
    return p.root;
}

/* ---- reading the tree ---- */

struct json *json_get(const struct json *object, struct str key)
{
    if (object == NULL || object->type != JSON_OBJECT) {
        return NULL;
    }
    for (struct json *m = object->child; m != NULL; m = m->next) {
        if (str_eq(m->key, key)) {
            return m;
        }
    }
    return NULL;
}

void json_pick(const struct json *object, const struct str *keys, struct json **out, size_t n)
{
    CHECK(n <= 32);
    for (size_t i = 0; i < n; i++) {
        out[i] = NULL;
    }
    if (object == NULL || object->type != JSON_OBJECT) {
        return;
    }
    for (struct json *m = object->child; m != NULL; m = m->next) {
        for (size_t i = 0; i < n; i++) {
            if (str_eq(m->key, keys[i])) {
                out[i] = m;
                break;
            }
        }
    }
}

bool json_is_absent(const struct json *v)
{
    return v == NULL || v->type == JSON_NULL;
}
