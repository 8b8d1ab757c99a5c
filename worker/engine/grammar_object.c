/* grammar_object.c - objects and arrays of a schema.
 *
 * An object's counter is the first property that may still come: keys share one tree of characters,
 * and a key's end is entered only from counters that allow it. So properties keep the schema's
 * order, optional ones may be left out, and no states are spent on which ones were. An array's
 * counter is its number of items. */
#include <stdlib.h>

#include "worker/engine/grammar_regex.h"

/* A declared property, or one that is only required. */
struct property {
    struct str name;
    struct conjunction bound;
    uint32_t value;
    uint32_t said; /* bit i: the i-th schema has it among its properties */
    bool required;
};
_Static_assert(GRAMMAR_CONJUNCTS_MAX <= 32, "a bit each");

/* The tree of the names, by characters. In the arena. */
struct key_node {
    uint32_t cp, node;
    int32_t property; /* whose name ends here; -1 */
    uint32_t n_children;
    struct key_node *child, *last, *sibling; /* ascending by cp; last: child */
};

struct object {
    struct property *properties; /* in the arena */
    uint32_t n, cap;
    struct map by_name;     /* owned; 1 + index */
    uint32_t last_required; /* 1 + its index; 0: none */
    uint32_t additional;    /* value; 0: none allowed */
    uint32_t alternative;
    struct key_node *keys;
    /* nodes: after `{`, a value, a comma, an opening quote; inside any other key; at the end */
    uint32_t open, after, comma, key, other, close;
    struct char_range *ranges; /* scratch */
};

static bool no_memory(struct builder *b)
{
    return err_set(b->err, ERR_LIMIT, "the grammar needs too much memory");
}

/* ---- what the schemas say ---- */

/* The place of a name among the properties, new when it is not there yet. */
static bool property_find(struct builder *b, struct object *o, struct str name, uint32_t *out)
{
    uintptr_t at = (uintptr_t)map_get(&o->by_name, name); /* 1 + index */
    struct property *grown;

    *out = at != 0 ? (uint32_t)at - 1 : o->n;
    if (at != 0) {
        return true;
    }
    if (o->n == o->cap) {
        grown = arena_array(&b->arena, 2 * (size_t)o->cap + 8, sizeof(*grown));
        if (grown == NULL) {
            return no_memory(b);
        }
        if (o->n > 0) {
            memcpy(grown, o->properties, o->n * sizeof(*grown));
        }
        o->properties = grown;
        o->cap = 2 * o->cap + 8;
    }
    o->properties[o->n] = (struct property){.name = name};
    return map_put(&o->by_name, name, (void *)(uintptr_t)++o->n) || no_memory(b);
}

/* Both are a look into a table, a few of these for each name. */
#define NAME_WORK 8u

/* `properties` and `required` of one schema of the conjunction, the i-th. */
static bool names_read(struct builder *b, struct object *o, const struct json *schema, uint32_t i)
{
    const struct json *all = json_get(schema, STR("properties"));
    const struct json *required = json_get(schema, STR("required"));
    uint64_t names = (all != NULL ? all->count : 0) + (required != NULL ? required->count : 0);
    uint32_t at;

    if (!builder_spend(b, NAME_WORK * names)) {
        return false;
    }
    for (const struct json *p = all != NULL ? all->child : NULL; p != NULL; p = p->next) {
        if (!property_find(b, o, p->key, &at) || !conjunction_add(b, &o->properties[at].bound, p)) {
            return false;
        }
        o->properties[at].said |= 1u << i;
    }
    for (const struct json *p = required != NULL ? required->child : NULL; p != NULL; p = p->next) {
        if (!property_find(b, o, p->text, &at)) {
            return false;
        }
        o->properties[at].required = true;
    }
    return true;
}

/* All that binds the property: its own schemas, and `additionalProperties` of those without one.
 * more: [n] of each schema; NULL: it has none. */
static bool property_settle(struct builder *b, struct property *p, const struct json *const *more,
                            uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if ((p->said >> i & 1) == 0 && more[i] != NULL && !conjunction_add(b, &p->bound, more[i])) {
            return false;
        }
    }
    p->value = value_intern(b, &p->bound);
    return p->value != 0;
}

static bool properties_read(struct builder *b, struct object *o, const struct conjunction *c)
{
    const struct json *more[GRAMMAR_CONJUNCTS_MAX];
    struct property other = {.required = false};

    for (uint32_t i = 0; i < c->n; i++) {
        more[i] = json_get(c->schema[i], STR("additionalProperties"));
        if (!names_read(b, o, c->schema[i], i)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < o->n; i++) {
        struct property *p = &o->properties[i];

        if (!property_settle(b, p, more, c->n) ||
            (p->required && !must_add(b, o->alternative, p->value))) {
            return false;
        }
        o->last_required = p->required ? i + 1 : o->last_required;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        if (more[i] != NULL && more[i]->type == JSON_FALSE) {
            return true;
        }
    }
    if (!property_settle(b, &other, more, c->n)) {
        return false;
    }
    o->additional = other.value;
    return true;
}

/* ---- keys ---- */

static struct key_node *key_new(struct builder *b, uint32_t cp)
{
    struct key_node *k = arena_alloc(&b->arena, sizeof(*k));

    if (k == NULL) {
        (void)no_memory(b);
        return NULL;
    }
    k->cp = cp;
    k->property = -1;
    k->node = node_new(b);
    if (k->node == 0) {
        return NULL;
    }
    b->nodes[k->node].derive = true;
    return k;
}

/* Names come in ascending order, so that only the last child may be the one. */
static bool key_insert(struct builder *b, struct key_node *root, struct str name, int32_t property)
{
    struct key_node *at = root;

    while (name.n > 0) {
        uint32_t cp;
        size_t n = utf8_read(name, &cp);

        if (at->last == NULL || at->last->cp != cp) {
            struct key_node *new = key_new(b, cp);

            if (new == NULL) {
                return false;
            }
            *(at->last != NULL ? &at->last->sibling : &at->child) = new;
            at->last = new;
            at->n_children++;
        }
        at = at->last;
        name.p += n;
        name.n -= n;
    }
    at->property = property;
    return true;
}

/* Adds lo .. hi without surrogates. */
static void range_add(struct char_range *r, uint32_t *n, uint32_t lo, uint32_t hi, uint32_t target)
{
    if (lo < 0xd800 && hi > 0xdfff) {
        range_add(r, n, lo, 0xd7ff, target);
        lo = 0xe000;
    } else if (lo >= 0xd800 && lo <= 0xdfff) {
        lo = 0xe000;
    } else if (hi >= 0xd800 && hi <= 0xdfff) {
        hi = 0xd7ff;
    }
    if (lo <= hi) {
        r[(*n)++] = (struct char_range){lo, hi, target};
    }
}

/* The node after a key's closing quote, and the colon that follows: then the value. */
static uint32_t key_end(struct builder *b, const struct object *o, uint32_t min, uint32_t max,
                        uint32_t value, uint32_t set)
{
    uint32_t end = node_new(b), colon = node_new(b);

    if (end == 0 || colon == 0 || !guard_add(b, end, min, max, NEED_VALUE, value) ||
        !space_add(b, end) || !edge_add(b, end, ':', ':', colon) || !space_add(b, colon) ||
        !inline_add(b, colon, value, o->after)) {
        return 0;
    }
    b->nodes[end].n.op = GRAMMAR_OP_SET;
    b->nodes[end].n.set = set;
    return end;
}

/* Edges of one node of the tree: its children, any other character if that is allowed, the end. */
static bool key_edges(struct builder *b, const struct object *o, const struct key_node *k,
                      uint32_t other_end, const uint32_t *ends)
{
    uint32_t n = 0, from = 0, end = other_end;

    for (const struct key_node *c = k->child; c != NULL; c = c->sibling) {
        if (o->other != 0 && c->cp > from) {
            range_add(o->ranges, &n, from, c->cp - 1, o->other);
        }
        range_add(o->ranges, &n, c->cp, c->cp, c->node);
        from = c->cp + 1;
    }
    if (o->other != 0 && from <= CODE_POINT_MAX) {
        range_add(o->ranges, &n, from, CODE_POINT_MAX, o->other);
    }
    if (k->property >= 0) {
        end = ends[k->property];
    }
    return chars_add(b, k->node, o->ranges, n, CHARS_JSON) &&
           (end == 0 || edge_add(b, k->node, '"', '"', end));
}

/* Walks the tree without recursion: a name may have thousands of characters. */
static bool keys_edges(struct builder *b, const struct object *o, uint32_t other_end,
                       const uint32_t *ends)
{
    struct key_node *todo = o->keys;

    o->keys->sibling = NULL;
    while (todo != NULL) {
        struct key_node *k = todo;

        if (!key_edges(b, o, k, other_end, ends)) {
            return false;
        }
        todo = k->sibling;
        if (k->last != NULL) {
            k->last->sibling = todo;
            todo = k->child;
        }
    }
    return true;
}

/* The guard of a property's end: from counters past the last required one before it. */
static bool ends_make(struct builder *b, struct object *o, uint32_t *ends, uint32_t *other_end)
{
    uint32_t from = 0;

    for (uint32_t i = 0; i < o->n; i++) {
        ends[i] = key_end(b, o, from, i, o->properties[i].value, i + 1);
        if (ends[i] == 0) {
            return false;
        }
        from = o->properties[i].required ? i + 1 : from;
    }
    if (o->additional == 0) {
        return true;
    }
    *other_end = key_end(b, o, o->last_required, GRAMMAR_INF, o->additional, o->n + 1);
    return *other_end != 0;
}

/* Characters of a key that is no declared name. */
static bool other_keys(struct builder *b, struct object *o, uint32_t other_end)
{
    struct char_range all[] = {{0, 0xd7ff, 0}, {0xe000, CODE_POINT_MAX, 0}};

    o->other = node_new(b);
    if (o->other == 0 ||
        !guard_add(b, o->other, o->last_required, GRAMMAR_INF, NEED_VALUE, o->additional)) {
        return false;
    }
    all[0].target = all[1].target = o->other;
    /* Beside declared names each character has one spelling, or an escape could forge a name. */
    return chars_add(b, o->other, all, 2, o->n > 0 ? CHARS_JSON : CHARS_JSON_FREE) &&
           edge_add(b, o->other, '"', '"', other_end);
}

struct name_at {
    struct str name;
    uint32_t property;
};

static int by_name(const void *pa, const void *pb)
{
    const struct name_at *a = pa, *b = pb;

    return str_cmp(a->name, b->name);
}

/* The tree of all names. UTF-8 sorts as its characters do. */
static bool keys_insert(struct builder *b, struct object *o)
{
    struct name_at *names = arena_array(&b->arena, o->n, sizeof(*names));
    uint64_t work = 0;

    if (names == NULL) {
        return no_memory(b);
    }
    for (uint32_t i = 0; i < o->n; i++) {
        names[i] = (struct name_at){o->properties[i].name, i};
        work += NAME_WORK + names[i].name.n / 4;
    }
    if (!builder_spend(b, work)) {
        return false;
    }
    qsort(names, o->n, sizeof(*names), by_name);
    o->keys = key_new(b, 0);
    for (uint32_t i = 0; i < o->n && o->keys != NULL; i++) {
        if (!key_insert(b, o->keys, names[i].name, (int32_t)names[i].property)) {
            return false;
        }
    }
    return o->keys != NULL;
}

static bool keys_build(struct builder *b, struct object *o)
{
    uint32_t *ends = arena_array(&b->arena, o->n + 1, sizeof(*ends)), other_end = 0;

    o->ranges = arena_array(&b->arena, 4 * (size_t)o->n + 8, sizeof(*o->ranges));
    if (ends == NULL || o->ranges == NULL) {
        return no_memory(b);
    }
    if (!ends_make(b, o, ends, &other_end) || (other_end != 0 && !other_keys(b, o, other_end))) {
        return false;
    }
    if (o->n == 0) {
        o->key = o->other;
        return true;
    }
    if (!keys_insert(b, o)) {
        return false;
    }
    o->key = o->keys->node;
    return keys_edges(b, o, other_end, ends);
}

static bool object_nodes(struct builder *b, uint32_t value, struct object *o)
{
    b->nodes[o->comma].derive = true;
    if (o->key != 0 &&
        (!edge_add(b, o->open, '"', '"', o->key) || !edge_add(b, o->after, ',', ',', o->comma) ||
         !edge_add(b, o->comma, '"', '"', o->key))) {
        return false;
    }
    return guard_add(b, o->open, 0, GRAMMAR_INF, NEED_SELF, o->alternative) &&
           guard_add(b, o->close, o->last_required, GRAMMAR_INF, NEED_NONE, 0) &&
           space_add(b, o->open) && space_add(b, o->after) && space_add(b, o->comma) &&
           edge_add(b, o->open, '}', '}', o->close) && edge_add(b, o->after, '}', '}', o->close) &&
           value_edge(b, value, '{', '{', o->open);
}

bool object_build(struct builder *b, uint32_t value, const struct conjunction *c)
{
    struct object o = {.alternative = alternative_new(b, value, true)};
    bool ok;

    o.open = node_new(b);
    o.after = node_new(b);
    o.comma = node_new(b);
    o.close = node_final(b);
    map_init(&o.by_name, (uintptr_t)b, GRAMMAR_SCHEMA_BYTES_MAX);
    ok = o.alternative != 0 && o.open != 0 && o.after != 0 && o.comma != 0 && o.close != 0 &&
         properties_read(b, &o, c) && keys_build(b, &o) && object_nodes(b, value, &o);
    map_fini(&o.by_name);
    return ok;
}

/* ---- arrays ---- */

struct array {
    uint32_t alternative, item, min, max, span;
    uint32_t open, after, comma, close; /* nodes: after `[`, an item, a comma; at the end */
};

static bool array_nodes(struct builder *b, struct array *a)
{
    a->open = node_new(b);
    a->after = node_new(b);
    a->comma = node_new(b);
    a->close = node_final(b);
    a->span = span_new(b, a->min, a->max == GRAMMAR_INF ? a->max : a->max - (a->max > 0));
    if (a->open == 0 || a->after == 0 || a->comma == 0 || a->close == 0 ||
        b->err->code != ERR_NONE) {
        return false;
    }
    b->nodes[a->after].n.op = GRAMMAR_OP_INC;
    b->nodes[a->open].n.span = b->nodes[a->after].n.span = a->span;
    b->nodes[a->comma].n.span = b->nodes[a->close].n.span = a->span;
    return true;
}

static bool array_items(struct builder *b, struct array *a)
{
    if (a->max == 0) {
        return true;
    }
    return inline_add(b, a->open, a->item, a->after) && edge_add(b, a->after, ',', ',', a->comma) &&
           guard_add(b, a->comma, 0, a->max == GRAMMAR_INF ? a->max : a->max - 1, NEED_VALUE,
                     a->item) &&
           space_add(b, a->comma) && inline_add(b, a->comma, a->item, a->after);
}

bool array_build(struct builder *b, uint32_t value, const struct conjunction *c)
{
    struct array a = {.max = GRAMMAR_INF};
    struct conjunction items = {.n = 0};

    for (uint32_t i = 0; i < c->n; i++) {
        const struct json *item = json_get(c->schema[i], STR("items"));
        uint32_t min = schema_count(c->schema[i], "minItems", 0);
        uint32_t max = schema_count(c->schema[i], "maxItems", GRAMMAR_INF);

        a.min = min > a.min ? min : a.min;
        a.max = max < a.max ? max : a.max;
        if (item != NULL && !conjunction_add(b, &items, item)) {
            return false;
        }
    }
    if (a.min > a.max) {
        return true;
    }
    a.item = value_intern(b, &items);
    a.alternative = alternative_new(b, value, true);
    if (a.item == 0 || a.alternative == 0 || !array_nodes(b, &a) ||
        (a.min > 0 && !must_add(b, a.alternative, a.item)) || !array_items(b, &a)) {
        return false;
    }
    return guard_add(b, a.open, 0, GRAMMAR_INF, NEED_SELF, a.alternative) &&
           guard_add(b, a.close, a.min, a.max, NEED_NONE, 0) && space_add(b, a.open) &&
           space_add(b, a.after) && (a.min > 0 || edge_add(b, a.open, ']', ']', a.close)) &&
           edge_add(b, a.after, ']', ']', a.close) && value_edge(b, value, '[', '[', a.open);
}
