/* grammar_string.c - strings and numbers of a schema. */
#include <stdio.h>

#include "worker/engine/grammar_regex.h"

#define KEY_BYTES_MAX (2 * GRAMMAR_SCHEMA_BYTES_MAX)

static bool memory_short(struct builder *b)
{
    return err_set(b->err, ERR_LIMIT, "the grammar needs too much memory");
}

/* No year 0000: many a library has none. */
#define YEAR "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
#define LEAP "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"                                \
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define CLOCK "(?:[01][0-9]|2[0-3]):[0-5][0-9]"

static struct str format_pattern(struct str format)
{
    if (str_eq(format, STR("date"))) {
        return STR(DATE);
    }
    if (str_eq(format, STR("date-time"))) {
        return STR(DATE "T" CLOCK ":[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-]" CLOCK ")");
    }
    return STR("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}");
}

/* What the lengths, patterns and formats of c say together. */
struct string_rule {
    uint32_t min, max;
    bool free;      /* no pattern and no format */
    struct buf key; /* owned; the patterns and formats, joined */
};

static void rule_make(struct string_rule *r, const struct conjunction *c)
{
    static const char *const keywords[] = {"pattern", "format"};

    *r = (struct string_rule){.max = GRAMMAR_INF, .free = true};
    buf_init(&r->key, KEY_BYTES_MAX);
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t min = schema_count(c->schema[i], "minLength", 0);
        uint32_t max = schema_count(c->schema[i], "maxLength", GRAMMAR_INF);

        r->min = min > r->min ? min : r->min;
        r->max = max < r->max ? max : r->max;
        for (size_t k = 0; k < 2; k++) {
            const struct json *v = json_get(c->schema[i], str_c(keywords[k]));

            if (v != NULL) {
                r->free = false;
                buf_byte(&r->key, (uint8_t)keywords[k][0]);
                buf_u64(&r->key, v->text.n);
                buf_byte(&r->key, ':');
                buf_str(&r->key, v->text);
            }
        }
    }
}

static bool dfa_and(struct builder *b, struct dfa **all, struct dfa *one)
{
    if (one != NULL) {
        *all = *all == NULL ? one : dfa_intersect(b, *all, one);
    }
    return one != NULL && *all != NULL;
}

/* All patterns and formats of c as one automaton; *out NULL: there are none. */
static bool rule_dfa(struct builder *b, const struct conjunction *c, struct dfa **out)
{
    *out = NULL;
    for (uint32_t i = 0; i < c->n; i++) {
        const struct json *pattern = json_get(c->schema[i], STR("pattern"));
        const struct json *format = json_get(c->schema[i], STR("format"));

        if (pattern != NULL && !dfa_and(b, out, regex_compile(b, pattern->text, false))) {
            return schema_err_place(b, pattern);
        }
        if (format != NULL &&
            !dfa_and(b, out, regex_compile(b, format_pattern(format->text), true))) {
            return schema_err_place(b, format);
        }
    }
    return true;
}

/* Nodes of a string with between min and max characters, any of them. 0: failed. */
static uint32_t free_string(struct builder *b, uint32_t min, uint32_t max)
{
    bool counted = min > 0 || max != GRAMMAR_INF;
    uint32_t start = node_new(b), loop = counted ? node_new(b) : start, close = node_final(b);
    uint32_t span = counted ? span_new(b, min, max) : 0;
    bool ok = start != 0 && loop != 0 && close != 0 && (!counted || span != 0);

    if (ok && counted) {
        /* Nodes in the middle of a character look one ahead. */
        b->spans[span].high_least -= max != GRAMMAR_INF && max > 0;
        b->nodes[start].n.span = b->nodes[loop].n.span = b->nodes[close].n.span = span;
        b->nodes[loop].n.op = GRAMMAR_OP_INC;
        ok =
            guard_add(b, loop, 0, max, NEED_NONE, 0) && guard_add(b, close, min, max, NEED_NONE, 0);
    }
    for (int i = 0; ok && i < (counted ? 2 : 1); i++) {
        uint32_t node = i == 0 ? start : loop;
        struct char_range all[] = {{0, 0xd7ff, loop}, {0xe000, CODE_POINT_MAX, loop}};

        ok = chars_add(b, node, all, 2, CHARS_JSON_FREE) && edge_add(b, node, '"', '"', close);
    }
    return ok ? start : 0;
}

/* The node after the opening quote; *start 0: there is no such string. */
static bool rule_nodes(struct builder *b, const struct conjunction *c, const struct string_rule *r,
                       uint32_t *start)
{
    struct dfa *d = NULL;

    *start = 0;
    if (r->min > r->max) {
        return true;
    }
    if (r->free) {
        *start = free_string(b, r->min, r->max);
        return *start != 0;
    }
    if (!rule_dfa(b, c, &d)) {
        return false;
    }
    return dfa_nodes(b, d, r->min, r->max, CHARS_JSON, start) || schema_err_place(b, c->schema[0]);
}

/* As rule_nodes; equal rules share their nodes. */
static bool rule_shared(struct builder *b, const struct conjunction *c, struct string_rule *r,
                        uint32_t *start)
{
    struct str key;
    uintptr_t made; /* 1 + node */

    buf_printf(&r->key, "%u,%u", r->min, r->max);
    key = buf_view(&r->key);
    if (r->key.failed || !builder_spend(b, 8 + key.n / 8)) {
        return r->key.failed ? memory_short(b) : false;
    }
    made = (uintptr_t)map_get(&b->strings, key);
    if (made != 0) {
        *start = (uint32_t)made - 1;
        return true;
    }
    key = arena_str(&b->arena, key);
    return rule_nodes(b, c, r, start) &&
           ((key.p != NULL && map_put(&b->strings, key, (void *)((uintptr_t)*start + 1))) ||
            memory_short(b));
}

bool string_build(struct builder *b, uint32_t value, const struct conjunction *c)
{
    struct string_rule r;
    uint32_t start;
    bool ok;

    rule_make(&r, c);
    ok = rule_shared(b, c, &r, &start);
    buf_fini(&r.key);
    return ok && (start == 0 ||
                  (alternative_new(b, value, false) != 0 && value_edge(b, value, '"', '"', start)));
}

static uint32_t characters(struct str s)
{
    uint32_t n = 0;

    for (size_t i = 0; i < s.n; i++) {
        n += ((uint8_t)s.p[i] & 0xc0) != 0x80;
    }
    return n;
}

static bool string_test_make(struct builder *b, const struct conjunction *c, struct string_test *t)
{
    struct string_rule r;
    bool ok;

    rule_make(&r, c);
    *t = (struct string_test){.made = true, .min = r.min, .max = r.max};
    ok = r.free || rule_dfa(b, c, &t->d);
    buf_fini(&r.key);
    return ok;
}

bool string_fits(struct builder *b, const struct conjunction *c, struct string_test *t,
                 struct str text)
{
    uint32_t chars = characters(text);

    if (!builder_spend(b, text.n) || (!t->made && !string_test_make(b, c, t))) {
        return false;
    }
    return t->min <= chars && chars <= t->max && (t->d == NULL || dfa_matches(t->d, text));
}

/* ---- numbers ---- */

/* Takes the bound when it leaves less than the one so far. */
static void bound_take(const struct json *v, bool exclusive, bool lower, bool *has,
                       struct decimal *at, bool *at_exclusive)
{
    struct decimal d;
    int c;

    if (v == NULL || !decimal_parse(v->text, &d)) {
        return;
    }
    c = *has ? decimal_cmp(&d, at) : 0;
    c = lower ? c : -c;
    if (!*has || c > 0 || (c == 0 && exclusive)) {
        *has = true;
        *at = d;
        *at_exclusive = exclusive;
    }
}

static bool bounds_make(const struct conjunction *c, struct number_bounds *n)
{
    memset(n, 0, sizeof(*n));
    for (uint32_t i = 0; i < c->n; i++) {
        const struct json *s = c->schema[i];

        bound_take(json_get(s, STR("minimum")), false, true, &n->has_min, &n->min,
                   &n->exclusive_min);
        bound_take(json_get(s, STR("exclusiveMinimum")), true, true, &n->has_min, &n->min,
                   &n->exclusive_min);
        bound_take(json_get(s, STR("maximum")), false, false, &n->has_max, &n->max,
                   &n->exclusive_max);
        bound_take(json_get(s, STR("exclusiveMaximum")), true, false, &n->has_max, &n->max,
                   &n->exclusive_max);
    }
    return n->has_min || n->has_max;
}

bool number_build(struct builder *b, uint32_t value, const struct conjunction *c, bool integer)
{
    uint32_t *memo = integer ? &b->integer : &b->number, start;
    struct number_bounds n;
    struct dfa *d;

    if (bounds_make(c, &n)) {
        n.integer = integer;
        d = number_dfa(b, &n);
        if (d == NULL || !dfa_nodes(b, d, 0, GRAMMAR_INF, CHARS_RAW, &start)) {
            return schema_err_place(b, c->schema[0]);
        }
    } else {
        if (*memo == 0) {
            *memo = number_any(b, integer);
        }
        start = *memo;
        if (start == 0) {
            return false;
        }
    }
    return start == 0 || (alternative_new(b, value, false) != 0 && value_edges_of(b, value, start));
}

bool number_fits(const struct conjunction *c, struct number_test *t, struct str text)
{
    const struct number_bounds *n = &t->bounds;
    struct decimal d;
    int low, high;

    if (!t->made) {
        t->bounded = bounds_make(c, &t->bounds);
        t->made = true;
    }
    if (!t->bounded) {
        return true;
    }
    if (!decimal_parse(text, &d)) {
        return false;
    }
    low = n->has_min ? decimal_cmp(&d, &n->min) : 1;
    high = n->has_max ? decimal_cmp(&d, &n->max) : -1;
    return (low > 0 || (low == 0 && !n->exclusive_min)) &&
           (high < 0 || (high == 0 && !n->exclusive_max));
}
