/* grammar_schema.c - which values a schema allows: $ref and anyOf resolved, one value after
 * another.
 *
 * A value is bound by a set of schemas at once (a $ref beside other keywords, anyOf beside
 * properties). The set is taken apart into alternatives without $ref and anyOf; each of these gives
 * one alternative per JSON type; their first bytes decide, and a fork follows where they do not. */
#include <stdlib.h>

#include "worker/engine/grammar_build.h"

enum type_bit {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8, /* those that are no integers */
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ALL = 127
};

bool conjunction_add(struct builder *b, struct conjunction *c, const struct json *schema)
{
    uint32_t i = 0;

    if (schema->type == JSON_TRUE || (schema->type == JSON_OBJECT && schema->child == NULL)) {
        return true; /* binds nothing */
    }
    while (i < c->n && (uintptr_t)c->schema[i] < (uintptr_t)schema) {
        i++;
    }
    if (i < c->n && c->schema[i] == schema) {
        return true;
    }
    if (c->n == GRAMMAR_CONJUNCTS_MAX) {
        return schema_err(b, ERR_LIMIT, schema, "more than %d schemas bind one value",
                          GRAMMAR_CONJUNCTS_MAX);
    }
    memmove(&c->schema[i + 1], &c->schema[i], (c->n - i) * sizeof(c->schema[0]));
    c->schema[i] = schema;
    c->n++;
    return true;
}

bool conjunction_spend(struct builder *b, const struct conjunction *c)
{
    uint64_t work = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        const struct json *type = json_get(c->schema[i], STR("type"));

        work += 16 + 3 * (uint64_t)c->schema[i]->count;
        work += type != NULL ? type->count : 0;
    }
    return builder_spend(b, work);
}

static bool conjunction_equal(const struct conjunction *x, const struct conjunction *y)
{
    return x->n == y->n && x->objects_only == y->objects_only &&
           (x->n == 0 || memcmp(x->schema, y->schema, x->n * sizeof(x->schema[0])) == 0);
}

uint32_t value_intern(struct builder *b, const struct conjunction *c)
{
    uint64_t h = c->objects_only;
    uint32_t *bucket, v, looks = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        h = (h ^ (uintptr_t)c->schema[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    bucket = &b->value_buckets[h % GRAMMAR_VALUE_BUCKETS];
    for (v = *bucket; v != 0; v = b->values[v].chain) {
        if (conjunction_equal(&b->values[v].bound, c)) {
            return v;
        }
        looks++;
    }
    if (!builder_spend(b, 1 + looks / 2)) {
        return 0;
    }
    v = value_new(b);
    if (v != 0) {
        b->values[v].bound = *c;
        b->values[v].chain = *bucket;
        *bucket = v;
    }
    return v;
}

/* ---- taking a set of schemas apart ---- */

#define VISITS_MAX 128 /* schemas met on the way to one alternative */

struct visit {
    const struct json *schema;
    int32_t parent; /* who named it; -1 */
};

/* Visits [0, done) are looked at, the others wait. */
struct split {
    struct visit visit[VISITS_MAX];
    uint32_t n, done;
    struct conjunction atoms;
};

struct alternatives { /* without $ref and anyOf */
    struct conjunction *list;
    uint32_t n;
};

static bool visit_add(struct builder *b, struct split *s, const struct json *schema, int32_t parent)
{
    uint32_t looks = 0;

    for (int32_t at = parent; at >= 0; at = s->visit[at].parent, looks++) {
        if (s->visit[at].schema == schema) {
            return schema_err(b, ERR_INPUT, schema, "refers to itself without a step into a value");
        }
    }
    if (s->n == VISITS_MAX) {
        return schema_err(b, ERR_LIMIT, schema, "more than %d schemas bind one value", VISITS_MAX);
    }
    s->visit[s->n++] = (struct visit){schema, parent};
    return builder_spend(b, 1 + looks / 8);
}

static bool alternatives_add(struct builder *b, struct alternatives *out, const struct split *s)
{
    for (uint32_t i = 0; i < out->n; i++) {
        if (conjunction_equal(&out->list[i], &s->atoms)) {
            return true;
        }
    }
    if (out->n == GRAMMAR_ALTERNATIVES_MAX) {
        return schema_err(b, ERR_LIMIT, s->n > 0 ? s->visit[0].schema : NULL,
                          "more than %d alternatives", GRAMMAR_ALTERNATIVES_MAX);
    }
    out->list[out->n++] = s->atoms;
    return true;
}

/* Does the schema itself, beside $ref and anyOf, say anything? */
static bool says_something(const struct json *schema)
{
    static const char *const others[] = {"anyOf",    "$ref",    "$defs",   "definitions",
                                         "title",    "default", "$schema", "description",
                                         "examples", "$id",     "strict"};

    for (const struct json *c = schema->child; c != NULL; c = c->next) {
        size_t k = 0;

        while (k < ARRAY_LEN(others) && !str_eq(c->key, str_c(others[k]))) {
            k++;
        }
        if (k == ARRAY_LEN(others)) {
            return true;
        }
    }
    return false;
}

static bool split_run(struct builder *b, struct split *s, struct alternatives *out);

static bool split_branches(struct builder *b, const struct split *s, int32_t at,
                           const struct json *any_of, struct alternatives *out)
{
    struct split *branch = mem_try(1, sizeof(*branch));
    bool ok = branch != NULL || err_set(b->err, ERR_NO_MEMORY, "no memory for a grammar");

    for (const struct json *c = any_of->child; c != NULL && ok; c = c->next) {
        *branch = *s;
        ok = visit_add(b, branch, c, at) && split_run(b, branch, out);
    }
    mem_free(branch);
    return ok;
}

/* Recursion: at most VISITS_MAX deep, a level an anyOf. */
static bool split_run(struct builder *b, struct split *s, struct alternatives *out)
{
    if (!builder_spend(b, 20)) {
        return false;
    }
    while (s->done < s->n) {
        int32_t at = (int32_t)s->done++;
        const struct json *schema = s->visit[at].schema, *ref, *any_of;

        if (schema->type == JSON_FALSE) {
            return true;
        }
        if (schema->type == JSON_TRUE) {
            continue;
        }
        if (!builder_spend(b, 4 + 2 * (uint64_t)schema->count)) {
            return false;
        }
        if (says_something(schema) && !conjunction_add(b, &s->atoms, schema)) {
            return false;
        }
        ref = json_get(schema, STR("$ref"));
        if (ref != NULL && !visit_add(b, s, schema_ref(b, ref), at)) {
            return false;
        }
        any_of = json_get(schema, STR("anyOf"));
        if (any_of != NULL) {
            return split_branches(b, s, at, any_of, out);
        }
    }
    return alternatives_add(b, out, s);
}

/* ---- literals ---- */

/* The member of an object; what is looked at is taken from the work. NULL: none, or a failure. */
static const struct json *member(struct builder *b, const struct json *object, struct str key)
{
    const struct json *m = object->child;
    uint32_t looks = 0;

    while (m != NULL && !str_eq(m->key, key)) {
        m = m->next;
        looks++;
    }
    return builder_spend(b, looks / 4) ? m : NULL;
}

/* false: they differ, or a failure. */
static bool json_equal(struct builder *b, const struct json *x, const struct json *y)
{
    struct decimal dx, dy;
    const struct json *cy = y->child;
    uint64_t work = x->type == JSON_NUMBER ? 12 : x->text.n == y->text.n ? 1 + x->text.n / 64 : 1;

    if (!builder_spend(b, work) || x->type != y->type || x->count != y->count) {
        return false;
    }
    if (x->type == JSON_NUMBER) {
        return decimal_parse(x->text, &dx) && decimal_parse(y->text, &dy)
                   ? decimal_cmp(&dx, &dy) == 0
                   : str_eq(x->text, y->text);
    }
    if (x->type == JSON_STRING) {
        return str_eq(x->text, y->text);
    }
    for (const struct json *cx = x->child; cx != NULL; cx = cx->next) {
        const struct json *other = x->type == JSON_OBJECT ? member(b, y, cx->key) : cy;

        if (other == NULL || !json_equal(b, cx, other)) {
            return false;
        }
        cy = cy != NULL ? cy->next : NULL;
    }
    return true;
}

static uint32_t type_named(struct str name)
{
    static const struct {
        const char *name;
        uint32_t bits;
    } types[] = {{"null", TYPE_NULL},       {"boolean", TYPE_BOOLEAN},
                 {"integer", TYPE_INTEGER}, {"number", TYPE_INTEGER | TYPE_NUMBER},
                 {"string", TYPE_STRING},   {"array", TYPE_ARRAY},
                 {"object", TYPE_OBJECT}};

    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (str_eq(name, str_c(types[i].name))) {
            return types[i].bits;
        }
    }
    return 0;
}

static uint32_t types_of(const struct conjunction *c)
{
    uint32_t types = c->objects_only ? TYPE_OBJECT : TYPE_ALL;

    for (uint32_t i = 0; i < c->n; i++) {
        const struct json *type = json_get(c->schema[i], STR("type"));
        uint32_t some = 0;

        if (type == NULL) {
            continue;
        }
        if (type->type == JSON_STRING) {
            some = type_named(type->text);
        }
        for (const struct json *t = type->child; t != NULL; t = t->next) {
            some |= type_named(t->text);
        }
        types &= some;
    }
    return types;
}

static uint32_t type_of(const struct json *v)
{
    struct decimal d;

    switch (v->type) {
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_FALSE:
    case JSON_TRUE:
        return TYPE_BOOLEAN;
    case JSON_NUMBER:
        return decimal_parse(v->text, &d) && decimal_is_integer(&d) ? TYPE_INTEGER : TYPE_NUMBER;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_OBJECT:
        return TYPE_OBJECT;
    }
    return 0;
}

static const struct json *literals_of(const struct json *schema, const char *keyword)
{
    return json_get(schema, str_c(keyword));
}

/* Is v, one of those of `from`, among the literals of every other schema of c, too? */
static bool literal_everywhere(struct builder *b, const struct conjunction *c,
                               const struct json *from, const struct json *v)
{
    for (uint32_t i = 0; i < c->n; i++) {
        const struct json *one = literals_of(c->schema[i], "const");
        const struct json *some = literals_of(c->schema[i], "enum");
        bool found = some == NULL || some == from;

        for (const struct json *e = found ? NULL : some->child; e != NULL && !found; e = e->next) {
            found = json_equal(b, e, v);
            if (b->err->code != ERR_NONE) {
                return false;
            }
        }
        if (!found || (one != NULL && !json_equal(b, one, v))) {
            return false;
        }
    }
    return true;
}

/* Containers among literals are not looked into: nothing else may bind their insides. */
static bool literal_alone(struct builder *b, const struct conjunction *c, const struct json *v)
{
    static const char *const objects[] = {"properties", "required", "additionalProperties"};
    static const char *const arrays[] = {"items", "minItems", "maxItems"};
    const char *const *names = v->type == JSON_OBJECT ? objects : arrays;

    for (uint32_t i = 0; i < c->n; i++) {
        for (size_t k = 0; k < 3; k++) {
            if (json_get(c->schema[i], str_c(names[k])) != NULL) {
                return schema_err(b, ERR_UNSUPPORTED, v,
                                  "an object or array among literals cannot stand beside %s",
                                  names[k]);
            }
        }
    }
    return true;
}

/* What one conjunction asks of its literals. */
struct literal_test {
    const struct json *from;
    uint32_t types, work; /* steps of looking at one */
    struct string_test strings;
    struct number_test numbers;
};

/* 1: the literal is within all of c; 0: not; -1: failed. */
static int literal_fits(struct builder *b, const struct conjunction *c, struct literal_test *t,
                        const struct json *v)
{
    bool fits = builder_spend(b, t->work) && (t->types & type_of(v)) != 0 &&
                literal_everywhere(b, c, t->from, v);

    if (fits && (v->type == JSON_OBJECT || v->type == JSON_ARRAY)) {
        fits = literal_alone(b, c, v);
    } else if (fits && v->type == JSON_STRING) {
        fits = string_fits(b, c, &t->strings, v->text);
    } else if (fits && v->type == JSON_NUMBER) {
        fits = number_fits(c, &t->numbers, v->text);
    }
    return b->err->code != ERR_NONE ? -1 : fits;
}

/* Adds a text to the tree of literals at `root`. */
static bool literal_insert(struct builder *b, uint32_t root, struct str text)
{
    uint32_t at = root;
    uint64_t looks = 8 * text.n;

    for (size_t i = 0; i < text.n; i++) {
        uint8_t byte = (uint8_t)text.p[i];
        uint32_t e = b->nodes[at].edges, next;

        while (e != 0 && b->edges[e].lo != byte) {
            e = b->edges[e].next;
            looks++;
        }
        next = e != 0 ? b->edges[e].target : node_new(b);
        if (next == 0 || (e == 0 && !edge_add(b, at, byte, byte, next))) {
            return false;
        }
        at = next;
    }
    b->nodes[at].n.final = true;
    return builder_spend(b, 8 + looks / 4);
}

static bool literal_json(struct builder *b, uint32_t root, const struct json *v)
{
    struct buf text;
    bool ok;

    buf_init(&text, GRAMMAR_SCHEMA_BYTES_MAX);
    json_write(&text, v, JSON_ORDER_DOCUMENT);
    ok = !text.failed ||
         schema_err(b, ERR_LIMIT, v, "a literal of more than %d bytes", GRAMMAR_SCHEMA_BYTES_MAX);
    ok = ok && literal_insert(b, root, buf_view(&text));
    buf_fini(&text);
    return ok;
}

/* The schema of c whose literals are looked at one by one; NULL: c has none. */
static const struct json *literals_first(const struct conjunction *c, bool *one)
{
    for (uint32_t i = 0; i < c->n; i++) {
        const struct json *v = literals_of(c->schema[i], "const");

        *one = v != NULL;
        v = v != NULL ? v : literals_of(c->schema[i], "enum");
        if (v != NULL) {
            return v;
        }
    }
    return NULL;
}

/* ---- one value ---- */

struct building {
    uint32_t value;
    uint32_t literals; /* root of their tree */
    bool has_literal;
};

static bool literals_build(struct builder *b, struct building *at, const struct conjunction *c,
                           const struct json *from, bool one)
{
    struct literal_test t = {.from = from, .types = types_of(c), .work = 10};

    for (uint32_t i = 0; i < c->n; i++) {
        t.work += c->schema[i]->count / 4;
    }
    for (const struct json *v = one ? from : from->child; v != NULL; v = one ? NULL : v->next) {
        int fits = literal_fits(b, c, &t, v);

        if (fits < 0 || (fits > 0 && !literal_json(b, at->literals, v))) {
            return false;
        }
        at->has_literal = at->has_literal || fits > 0;
    }
    return true;
}

static bool types_build(struct builder *b, struct building *at, const struct conjunction *c)
{
    uint32_t types = types_of(c);
    bool ok = true;

    if ((types & TYPE_NULL) != 0) {
        ok = literal_insert(b, at->literals, STR("null"));
    }
    if (ok && (types & TYPE_BOOLEAN) != 0) {
        ok = literal_insert(b, at->literals, STR("true")) &&
             literal_insert(b, at->literals, STR("false"));
    }
    at->has_literal = at->has_literal || (types & (TYPE_NULL | TYPE_BOOLEAN)) != 0;
    if (ok && (types & (TYPE_INTEGER | TYPE_NUMBER)) != 0) {
        ok = number_build(b, at->value, c, (types & TYPE_NUMBER) == 0);
    }
    if (ok && (types & TYPE_STRING) != 0) {
        ok = string_build(b, at->value, c);
    }
    if (ok && (types & TYPE_ARRAY) != 0) {
        ok = array_build(b, at->value, c);
    }
    return ok && ((types & TYPE_OBJECT) == 0 || object_build(b, at->value, c));
}

/* The targets of one first byte, in the order of the schema. */
struct targets {
    uint32_t at[GRAMMAR_STACKS_MAX];
    uint32_t n;
};

/* There is room for one more target. */
static bool targets_room(struct builder *b, uint32_t value, const struct targets *t,
                         uint32_t target)
{
    const struct conjunction *c = &b->values[value].bound;
    const struct json *place = c->n > 0 ? c->schema[0] : NULL;
    uint32_t dear = b->nodes[target].n.dear;

    for (uint32_t i = 0; i < t->n; i++) {
        dear += b->nodes[t->at[i]].n.dear;
    }
    if (b->nodes[target].n.dear && dear > GRAMMAR_DEAR_MAX) {
        return schema_err(b, ERR_LIMIT, place,
                          "more than %d alternatives are strings with patterns that allow most "
                          "text",
                          GRAMMAR_DEAR_MAX);
    }
    return t->n < GRAMMAR_STACKS_MAX ||
           schema_err(b, ERR_LIMIT, place, "more than %d alternatives begin alike",
                      GRAMMAR_STACKS_MAX);
}

static bool targets_of(struct builder *b, uint32_t value, uint32_t list, uint32_t byte,
                       struct targets *t)
{
    uint64_t looks = 0;

    t->n = 0;
    for (uint32_t e = list; e != 0; e = b->edges[e].next) {
        uint32_t i = 0;

        looks++;

        if (byte < b->edges[e].lo || byte > b->edges[e].hi) {
            continue;
        }
        while (i < t->n && t->at[i] != b->edges[e].target) {
            i++;
        }
        looks += i;
        if (i < t->n) {
            continue;
        }
        if (!targets_room(b, value, t, b->edges[e].target)) {
            return false;
        }
        memmove(&t->at[1], &t->at[0], t->n * sizeof(t->at[0])); /* the list is newest first */
        t->at[0] = b->edges[e].target;
        t->n++;
    }
    return builder_spend(b, 1 + looks / 8);
}

static uint32_t fork_new(struct builder *b, const struct targets *t)
{
    uint32_t node = t->n == 1 ? t->at[0] : node_new(b);

    if (node == 0 || t->n == 1) {
        return node;
    }
    b->nodes[node].n.fork = true;
    for (uint32_t i = 0; i < t->n; i++) {
        if (!edge_add(b, node, 0, 0, t->at[i])) {
            return 0;
        }
    }
    return node;
}

/* First bytes that several alternatives share lead to a fork from now on. */
static bool value_close(struct builder *b, uint32_t value)
{
    uint32_t list = b->values[value].edges, first = 0, node;
    bool cut[257] = {[256] = true}; /* bytes that lead elsewhere than the one before */
    struct targets run = {.n = 0}, t;

    b->values[value].edges = 0;
    for (uint32_t e = list; e != 0; e = b->edges[e].next) {
        cut[b->edges[e].lo] = cut[b->edges[e].hi + 1] = true;
    }
    for (uint32_t byte = 0; byte <= 256; byte++) {
        if (!cut[byte]) {
            continue;
        }
        t.n = 0;
        if (byte < 256 && !targets_of(b, value, list, byte, &t)) {
            return false;
        }
        if (t.n == run.n && memcmp(t.at, run.at, t.n * sizeof(t.at[0])) == 0) {
            continue;
        }
        if (run.n > 0) {
            node = fork_new(b, &run);
            if (node == 0 || !value_edge(b, value, (uint8_t)first, (uint8_t)(byte - 1), node)) {
                return false;
            }
        }
        run = t;
        first = byte;
    }
    return true;
}

/* Memory of one value after another. */
struct scratch {
    struct split split;
    struct conjunction list[GRAMMAR_ALTERNATIVES_MAX];
};

static bool value_build(struct builder *b, struct scratch *scratch, uint32_t value)
{
    struct building at = {.value = value, .literals = node_new(b)};
    struct alternatives alternatives = {.list = scratch->list};
    struct split *s = &scratch->split;
    bool ok = at.literals != 0;

    s->n = s->done = 0;
    s->atoms = (struct conjunction){.objects_only = b->values[value].bound.objects_only};
    for (uint32_t i = 0; ok && i < b->values[value].bound.n; i++) {
        ok = visit_add(b, s, b->values[value].bound.schema[i], -1);
    }
    ok = ok && split_run(b, s, &alternatives);
    for (uint32_t i = 0; ok && i < alternatives.n; i++) {
        const struct conjunction *c = &alternatives.list[i];
        bool one = false;
        const struct json *from = literals_first(c, &one);

        ok = conjunction_spend(b, c);
        ok = ok && (from != NULL ? literals_build(b, &at, c, from, one) : types_build(b, &at, c));
    }
    if (ok && at.has_literal) {
        ok = alternative_new(b, value, false) != 0 && value_edges_of(b, value, at.literals);
    }
    return ok && value_close(b, value);
}

bool values_build(struct builder *b, uint32_t *built)
{
    struct scratch *scratch = mem_try(1, sizeof(*scratch));
    bool ok = scratch != NULL || err_set(b->err, ERR_NO_MEMORY, "no memory for a grammar");

    for (; ok && *built < b->n_values; *built += ok) {
        ok = *built == 0 || value_build(b, scratch, *built);
    }
    mem_free(scratch);
    return ok;
}
