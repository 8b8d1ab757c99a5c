/* grammar_check.c - is this a schema that we enforce? One walk, before anything is built; then
 * every $ref is followed, once.
 *
 * Also says where in the schema something stands: places are searched only when there is an error.
 */
#include <stdarg.h>
#include <stdio.h>

#include "worker/engine/grammar_build.h"

#define PLACE_BYTES_MAX 224 /* longer places keep their end */

/* ---- places ---- */

static bool place_find(const struct json *at, const struct json *v, struct buf *out)
{
    size_t had = out->len;
    uint32_t i = 0;

    if (at == v) {
        return true;
    }
    for (const struct json *c = at->child; c != NULL; c = c->next, i++) {
        buf_byte(out, '/');
        if (at->type == JSON_ARRAY) {
            buf_u64(out, i);
        }
        for (size_t k = 0; at->type == JSON_OBJECT && k < c->key.n; k++) {
            uint8_t byte = (uint8_t)c->key.p[k];

            if (byte == '~' || byte == '/') {
                buf_c(out, byte == '~' ? "~0" : "~1");
            } else {
                buf_byte(out, byte < 0x20 ? '?' : byte);
            }
        }
        if (place_find(c, v, out)) {
            return true;
        }
        buf_truncate(out, had);
    }
    return false;
}

/* `#/a/b` of a value inside b->root. */
static void place_write(const struct builder *b, const struct json *v, char *out, size_t cap)
{
    struct buf place;
    struct str s;

    buf_init(&place, GRAMMAR_SCHEMA_BYTES_MAX + 4096);
    buf_c(&place, b->root_place);
    if (b->root != NULL && v != NULL) {
        (void)place_find(b->root, v, &place);
    }
    s = buf_view(&place);
    if (s.n > PLACE_BYTES_MAX) {
        size_t cut = s.n - PLACE_BYTES_MAX;

        while (cut < s.n && ((uint8_t)s.p[cut] & 0xc0) == 0x80) {
            cut++;
        }
        (void)snprintf(out, cap, "...%.*s", (int)(s.n - cut), s.p + cut);
    } else {
        str_copy(s, out, cap);
    }
    buf_fini(&place);
}

bool schema_err(struct builder *b, enum err_code code, const struct json *at, const char *fmt, ...)
{
    char place[PLACE_BYTES_MAX + 8], text[256];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    place_write(b, at, place, sizeof(place));
    return err_set(b->err, code, "%s: %s", place, text);
}

bool schema_err_place(struct builder *b, const struct json *at)
{
    char place[PLACE_BYTES_MAX + 8];

    if (b->err->text[0] != '#' && b->err->text[0] != '.') {
        place_write(b, at, place, sizeof(place));
        err_prefix(b->err, "%s", place);
    }
    return false;
}

/* ---- references ---- */

static int hex_digit(char c)
{
    c |= c >= 'A' && c <= 'F' ? 0x20 : 0;
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The next byte of a URI's fragment, its percent escapes read; -1: the end. */
static int fragment_byte(struct str *s)
{
    int value = s->n > 0 ? (uint8_t)s->p[0] : -1, high, low;
    size_t n = s->n > 0;

    if (value == '%' && s->n >= 3) {
        high = hex_digit(s->p[1]);
        low = hex_digit(s->p[2]);
        if (high >= 0 && low >= 0) {
            value = high * 16 + low;
            n = 3;
        }
    }
    s->p += n;
    s->n -= n;
    return value;
}

/* The next `/key` of a pointer, unescaped, into `out`. false: that is not what comes. */
static bool step_read(struct str *pointer, struct buf *out)
{
    struct str after;
    int c;

    buf_reset(out);
    if (fragment_byte(pointer) != '/') {
        return false;
    }
    for (after = *pointer; (c = fragment_byte(&after)) >= 0 && c != '/'; *pointer = after) {
        if (c == '~') {
            c = fragment_byte(&after);
            if (c != '0' && c != '1') {
                return false;
            }
            c = c == '0' ? '~' : '/';
        }
        buf_byte(out, (uint8_t)c);
    }
    return !out->failed;
}

/* A key of b->places: what stands in `all` under `name`; CHILDREN, no kind of child: it is there.
 */
#define PLACE_CHILDREN 'm'
#define PLACE_CHILD 'c'
static struct str place_key(struct arena *a, const struct json *all, char kind, struct str name)
{
    char *key = arena_alloc(a, sizeof(all) + 1 + name.n);

    if (key == NULL) {
        return str_of(NULL, 0);
    }
    memcpy(key, &all, sizeof(all));
    key[sizeof(all)] = kind;
    if (name.n > 0) {
        memcpy(key + sizeof(all) + 1, name.p, name.n);
    }
    return str_of(key, sizeof(all) + 1 + name.n);
}

static bool place_put(struct builder *b, const struct json *all, char kind, struct str name,
                      const struct json *v)
{
    struct str key = place_key(&b->arena, all, kind, name);

    return (key.p != NULL && map_put(&b->places, key, (void *)v)) ||
           err_set(b->err, ERR_LIMIT, "the grammar needs too much memory");
}

/* The child of an object or array of schemas by its name or index. The first time all of them are
 * noted, so that no reference looks through them again. *out NULL: there is none. */
static bool place_child(struct builder *b, const struct json *all, struct str name,
                        const struct json **out)
{
    struct str key = place_key(&b->arena, all, PLACE_CHILDREN, STR(""));
    uint32_t i = 0;

    if (key.p == NULL || map_get(&b->places, key) == NULL) {
        if (!builder_spend(b, 8 * (uint64_t)all->count) ||
            !place_put(b, all, PLACE_CHILDREN, STR(""), all)) {
            return false;
        }
        for (const struct json *c = all->child; c != NULL; c = c->next, i++) {
            char number[12];

            (void)snprintf(number, sizeof(number), "%u", i);
            if (!place_put(b, all, PLACE_CHILD, all->type == JSON_ARRAY ? str_c(number) : c->key,
                           c)) {
                return false;
            }
        }
    }
    key = place_key(&b->arena, all, PLACE_CHILD, name);
    *out = key.p != NULL ? map_get(&b->places, key) : NULL;
    return key.p != NULL || err_set(b->err, ERR_LIMIT, "the grammar needs too much memory");
}

/* The schema inside *at that comes next: only where schemas stand. *at NULL: there is none. */
static bool step_schema(struct builder *b, const struct json **at, struct str *pointer,
                        struct buf *key)
{
    static const char *const maps[] = {"$defs", "definitions", "properties", "anyOf"};
    static const char *const ones[] = {"items", "additionalProperties"};
    const struct json *v = NULL;

    if (!builder_spend(b, 8 + (*at)->count)) {
        return false;
    }
    if ((*at)->type == JSON_OBJECT && step_read(pointer, key)) {
        v = json_get(*at, buf_view(key));
    }
    *at = NULL;
    for (size_t i = 0; v != NULL && i < ARRAY_LEN(ones); i++) {
        *at = str_eq(v->key, str_c(ones[i])) ? v : *at;
    }
    for (size_t i = 0; v != NULL && i < ARRAY_LEN(maps); i++) {
        if (str_eq(v->key, str_c(maps[i])) && step_read(pointer, key)) {
            return place_child(b, v, buf_view(key), at);
        }
    }
    return true;
}

/* What a reference of a checked schema names in b->root; *out NULL: nothing. */
static bool ref_find(struct builder *b, struct str ref, const struct json **out)
{
    const struct json *at = ref.n > 0 && ref.p[0] == '#' ? b->root : NULL;
    struct buf key;
    bool ok = builder_spend(b, ref.n / 4);

    buf_init(&key, GRAMMAR_SCHEMA_BYTES_MAX);
    for (ref = ref.n > 0 ? str_of(ref.p + 1, ref.n - 1) : ref; ok && ref.n > 0 && at != NULL;) {
        ok = step_schema(b, &at, &ref, &key);
    }
    buf_fini(&key);
    *out = at;
    return ok;
}

/* Every reference is followed once; what a value needs of it afterwards is a look. */
static bool refs_settle(struct builder *b)
{
    for (struct ref_todo *r = b->refs_todo; r != NULL; r = r->next) {
        const struct json *target;

        if (!ref_find(b, r->ref->text, &target)) {
            return false;
        }
        if (target == NULL) {
            return schema_err(b, ERR_INPUT, r->ref,
                              "names nothing; # and pointers to schemas inside this one can be "
                              "referred to");
        }
        if (!map_put(&b->refs, str_of((const char *)&r->ref, sizeof(r->ref)), (void *)target)) {
            return err_set(b->err, ERR_LIMIT, "the grammar needs too much memory");
        }
    }
    b->refs_todo = NULL;
    return true;
}

const struct json *schema_ref(const struct builder *b, const struct json *ref)
{
    return map_get(&b->refs, str_of((const char *)&ref, sizeof(ref)));
}

/* ---- keywords ---- */

static bool check_schema(struct builder *b, const struct json *s, uint32_t depth);

static bool wrong(struct builder *b, const struct json *at, const char *what)
{
    return schema_err(b, ERR_INPUT, at, "%s", what);
}

static bool check_map(struct builder *b, const struct json *v, uint32_t depth)
{
    if (v->type != JSON_OBJECT) {
        return wrong(b, v, "must be an object of schemas");
    }
    for (const struct json *c = v->child; c != NULL; c = c->next) {
        if (!check_schema(b, c, depth + 1)) {
            return false;
        }
    }
    return true;
}

static bool check_one(struct builder *b, const struct json *v, uint32_t depth)
{
    return check_schema(b, v, depth + 1);
}

static bool check_any_of(struct builder *b, const struct json *v, uint32_t depth)
{
    if (v->type != JSON_ARRAY || v->count == 0) {
        return wrong(b, v, "must be an array with at least one schema");
    }
    for (const struct json *c = v->child; c != NULL; c = c->next) {
        if (!check_schema(b, c, depth + 1)) {
            return false;
        }
    }
    return true;
}

static bool is_type(const struct json *v)
{
    static const char *const names[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (v->type == JSON_STRING && str_eq(v->text, str_c(names[i]))) {
            return true;
        }
    }
    return false;
}

static bool check_type(struct builder *b, const struct json *v, uint32_t depth)
{
    (void)depth;
    if (v->type == JSON_ARRAY && v->count > 0) {
        for (const struct json *c = v->child; c != NULL; c = c->next) {
            if (!is_type(c)) {
                return wrong(b, c, "must be the name of a JSON type");
            }
        }
        return true;
    }
    return is_type(v) || wrong(b, v, "must be the name of a JSON type, or a list of such");
}

static bool check_names(struct builder *b, const struct json *v, uint32_t depth)
{
    (void)depth;
    if (v->type != JSON_ARRAY) {
        return wrong(b, v, "must be an array of names");
    }
    for (const struct json *c = v->child; c != NULL; c = c->next) {
        if (c->type != JSON_STRING) {
            return wrong(b, c, "must be a name");
        }
    }
    return true;
}

static bool check_enum(struct builder *b, const struct json *v, uint32_t depth)
{
    (void)depth;
    return (v->type == JSON_ARRAY && v->count > 0) ||
           wrong(b, v, "must be an array with at least one value");
}

static bool check_nothing(struct builder *b, const struct json *v, uint32_t depth)
{
    (void)b;
    (void)v;
    (void)depth;
    return true;
}

static bool check_count(struct builder *b, const struct json *v, uint32_t depth)
{
    int64_t n;

    (void)depth;
    return (json_i64(v, &n) && n >= 0) || wrong(b, v, "must be an integer, at least 0");
}

static bool check_bound(struct builder *b, const struct json *v, uint32_t depth)
{
    struct decimal d;

    (void)depth;
    if (v->type != JSON_NUMBER) {
        return wrong(b, v, "must be a number");
    }
    return decimal_parse(v->text, &d) ||
           schema_err(b, ERR_LIMIT, v, "has more than %d digits", GRAMMAR_DIGITS_MAX);
}

static bool check_pattern(struct builder *b, const struct json *v, uint32_t depth)
{
    (void)depth;
    return v->type == JSON_STRING || wrong(b, v, "must be a string");
}

static bool check_format(struct builder *b, const struct json *v, uint32_t depth)
{
    (void)depth;
    if (v->type != JSON_STRING) {
        return wrong(b, v, "must be a string");
    }
    return str_eq(v->text, STR("date-time")) || str_eq(v->text, STR("date")) ||
           str_eq(v->text, STR("uuid")) ||
           schema_err(b, ERR_UNSUPPORTED, v,
                      "this format is not enforced here; date-time, date and uuid are");
}

static bool check_ref(struct builder *b, const struct json *v, uint32_t depth)
{
    struct ref_todo *r;

    (void)depth;
    if (v->type != JSON_STRING) {
        return wrong(b, v, "must be a string");
    }
    r = arena_alloc(&b->arena, sizeof(*r));
    if (r == NULL) {
        return err_set(b->err, ERR_LIMIT, "the grammar needs too much memory");
    }
    *r = (struct ref_todo){v, b->refs_todo};
    b->refs_todo = r;
    return true;
}

static const struct keyword {
    const char *name;
    bool (*check)(struct builder *b, const struct json *v, uint32_t depth);
} keywords[] = {
    {"type", check_type},
    {"properties", check_map},
    {"required", check_names},
    {"additionalProperties", check_one},
    {"enum", check_enum},
    {"const", check_nothing},
    {"items", check_one},
    {"minItems", check_count},
    {"maxItems", check_count},
    {"anyOf", check_any_of},
    {"$ref", check_ref},
    {"$defs", check_map},
    {"definitions", check_map},
    {"pattern", check_pattern},
    {"minLength", check_count},
    {"maxLength", check_count},
    {"format", check_format},
    {"minimum", check_bound},
    {"maximum", check_bound},
    {"exclusiveMinimum", check_bound},
    {"exclusiveMaximum", check_bound},
    {"title", check_nothing},
    {"description", check_nothing},
    {"default", check_nothing},
    {"examples", check_nothing},
    {"$schema", check_nothing},
    {"$id", check_nothing},
    {"strict", check_nothing},
};

uint32_t schema_count(const struct json *schema, const char *keyword, uint32_t absent)
{
    int64_t n;

    if (!json_i64(json_get(schema, str_c(keyword)), &n)) {
        return absent;
    }
    return n >= GRAMMAR_INF ? GRAMMAR_INF - 1 : (uint32_t)n;
}

static bool check_counts(struct builder *b, const struct json *s, const char *min, const char *max)
{
    if (schema_count(s, min, 0) > schema_count(s, max, GRAMMAR_INF)) {
        return schema_err(b, ERR_INPUT, json_get(s, str_c(min)), "is more than %s", max);
    }
    return true;
}

/* A lower and an upper bound that leave nothing between them. */
static bool check_bounds(struct builder *b, const struct json *s)
{
    static const char *const lows[] = {"minimum", "exclusiveMinimum"};
    static const char *const highs[] = {"maximum", "exclusiveMaximum"};

    for (size_t i = 0; i < 2; i++) {
        for (size_t k = 0; k < 2; k++) {
            const struct json *low = json_get(s, str_c(lows[i])), *high;
            struct decimal l, h;
            int c;

            high = json_get(s, str_c(highs[k]));
            if (low == NULL || high == NULL || !decimal_parse(low->text, &l) ||
                !decimal_parse(high->text, &h)) {
                continue;
            }
            c = decimal_cmp(&l, &h);
            if (c > 0 || (c == 0 && (i == 1 || k == 1))) {
                return schema_err(b, ERR_INPUT, low, "leaves nothing below %s", highs[k]);
            }
        }
    }
    return true;
}

static bool check_schema(struct builder *b, const struct json *s, uint32_t depth)
{
    if (s->type == JSON_TRUE || s->type == JSON_FALSE) {
        return true;
    }
    if (s->type != JSON_OBJECT) {
        return wrong(b, s, "a schema is an object or a boolean");
    }
    if (depth > GRAMMAR_DEPTH_MAX) {
        return schema_err(b, ERR_LIMIT, s, "schemas nested deeper than %d", GRAMMAR_DEPTH_MAX);
    }
    if (!builder_spend(b, 4 + 2 * (uint64_t)s->count)) {
        return false;
    }
    for (const struct json *c = s->child; c != NULL; c = c->next) {
        size_t k = 0;

        while (k < ARRAY_LEN(keywords) && !str_eq(c->key, str_c(keywords[k].name))) {
            k++;
        }
        if (k == ARRAY_LEN(keywords)) {
            return schema_err(b, ERR_UNSUPPORTED, c, "this keyword is not enforced here");
        }
        if (!keywords[k].check(b, c, depth)) {
            return false;
        }
    }
    return check_counts(b, s, "minItems", "maxItems") &&
           check_counts(b, s, "minLength", "maxLength") && check_bounds(b, s);
}

bool schema_check(struct builder *b)
{
    b->refs_todo = NULL;
    return check_schema(b, b->root, 1) && refs_settle(b);
}
