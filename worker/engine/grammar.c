/* grammar.c - from a source to a grammar: the start, tool formats, and the end of its life. */
#include <stdio.h>

#include "worker/engine/grammar_build.h"

/* ---- JSON ---- */

/* Nothing that can be: the innermost schema that must hold and cannot. */
static const struct json *unsatisfiable(const struct builder *b, uint32_t value)
{
    const struct json *at = NULL;

    for (int depth = 0; depth <= GRAMMAR_DEPTH_MAX; depth++) {
        const struct build_value *v = &b->values[value];
        uint32_t must = v->alternatives != 0 ? b->alternatives[v->alternatives].must : 0;

        at = v->bound.n > 0 ? v->bound.schema[0] : at;
        while (must != 0 && b->values[b->musts[must].value].need < GRAMMAR_NEED_NEVER) {
            must = b->musts[must].next;
        }
        if (must == 0) {
            break;
        }
        value = b->musts[must].value;
    }
    return at;
}

/* Reads a schema, and builds the value that it bounds. NULL schema: any object. 0: failed. */
static uint32_t schema_value(struct builder *b, const struct json *schema, bool objects_only,
                             uint32_t *built)
{
    struct conjunction c = {.objects_only = objects_only || schema == NULL};
    uint32_t value;

    b->root = schema;
    if (schema != NULL && (!schema_check(b) || !conjunction_add(b, &c, schema))) {
        return 0;
    }
    value = value_intern(b, &c);
    return value != 0 && values_build(b, built) ? value : 0;
}

static bool value_possible(struct builder *b, uint32_t value)
{
    if (b->values[value].need < GRAMMAR_NEED_NEVER) {
        return true;
    }
    return schema_err(b, ERR_INPUT, unsatisfiable(b, value),
                      "no value satisfies this, and one has to be there (within %d levels)",
                      GRAMMAR_DEPTH_MAX);
}

static bool json_start(struct builder *b, const struct json *schema)
{
    uint32_t built = 0, value = schema_value(b, schema, false, &built), end = node_final(b);

    if (value == 0 || end == 0) {
        return false;
    }
    return needs_settle(b) && value_possible(b, value) && space_add(b, GRAMMAR_START) &&
           inline_add(b, GRAMMAR_START, value, end);
}

/* ---- regular expressions ---- */

static bool regex_start(struct builder *b, struct str pattern)
{
    struct dfa *d = regex_compile(b, pattern, true);
    struct grammar_node *start;
    uint32_t node;

    if (d == NULL || !dfa_nodes(b, d, 0, GRAMMAR_INF, CHARS_RAW, &node)) {
        return false;
    }
    if (node == 0) {
        return err_set(b->err, ERR_INPUT, "%s: the expression matches nothing", b->root_place);
    }
    start = &b->nodes[GRAMMAR_START].n;
    *start = b->nodes[node].n;
    b->nodes[GRAMMAR_START].edges = b->nodes[node].edges;
    return true;
}

/* ---- tools ---- */

static bool piece_token(struct builder *b, uint32_t *at, int32_t token)
{
    uint32_t next;

    for (uint32_t k = 0; k < b->n_tokens; k++) {
        if (b->tokens[k].node == *at && b->tokens[k].token == token) {
            *at = b->tokens[k].target;
            return true;
        }
    }
    next = node_new(b);
    if (next == 0 || !token_add(b, *at, token, next)) {
        return false;
    }
    b->nodes[next].derive = true;
    *at = next;
    return true;
}

static bool piece_text(struct builder *b, uint32_t *at, struct str text)
{
    for (size_t k = 0; k < text.n; k++) {
        uint8_t byte = (uint8_t)text.p[k];
        uint32_t e = b->nodes[*at].edges, next;

        while (e != 0 && b->edges[e].lo != byte) {
            e = b->edges[e].next;
        }
        next = e != 0 ? b->edges[e].target : node_new(b);
        if (next == 0 || (e == 0 && !edge_add(b, *at, byte, byte, next))) {
            return false;
        }
        b->nodes[next].derive = true;
        *at = next;
    }
    return true;
}

/* A sequence of bytes and named tokens from *at on, sharing what is equal; *at moves to its end. */
static bool pieces_add(struct builder *b, uint32_t *at, const struct grammar_literal *l)
{
    if (l->n > GRAMMAR_PIECES_MAX) {
        return err_set(b->err, ERR_LIMIT, "tool format: more than %d pieces in a literal",
                       GRAMMAR_PIECES_MAX);
    }
    for (uint32_t i = 0; i < l->n; i++) {
        const struct grammar_piece *p = &l->pieces[i];

        if (p->text.n > 0 ? !piece_text(b, at, p->text) : !piece_token(b, at, p->token)) {
            return false;
        }
    }
    return true;
}

static struct str tool_name_json(struct builder *b, struct str name)
{
    struct buf text;
    struct str s;

    buf_init(&text, 6 * name.n + 8);
    json_write_string(&text, name);
    s = buf_view(&text);
    s = text.failed ? (struct str){NULL, 0} : arena_str(&b->arena, str_of(s.p + 1, s.n - 2));
    buf_fini(&text);
    return s;
}

struct tools {
    const struct grammar_source *src;
    uint32_t *value; /* in the arena */
    uint32_t names;  /* node before a name */
    uint32_t called; /* node after the arguments: one call more */
};

static bool tool_place(struct builder *b, uint32_t i)
{
    char *place = arena_alloc(&b->arena, 48);

    if (place == NULL) {
        return err_set(b->err, ERR_LIMIT, "the grammar needs too much memory");
    }
    (void)snprintf(place, 48, "#/tools/%u/function/parameters", i);
    b->root_place = place;
    return true;
}

static bool tools_values(struct builder *b, struct tools *t)
{
    uint32_t built = 0;

    for (uint32_t i = 0; i < t->src->n_tools; i++) {
        if (!tool_place(b, i)) {
            return false;
        }
        t->value[i] = schema_value(b, t->src->tools[i].parameters, true, &built);
        if (t->value[i] == 0) {
            return false;
        }
    }
    if (!needs_settle(b)) {
        return false;
    }
    for (uint32_t i = 0; i < t->src->n_tools; i++) {
        b->root = t->src->tools[i].parameters;
        if (!tool_place(b, i) || !value_possible(b, t->value[i])) {
            return false;
        }
    }
    b->root_place = "#/tools";
    return true;
}

/* NAME between -> arguments, for each tool. */
static bool tools_names(struct builder *b, struct tools *t)
{
    for (uint32_t i = 0; i < t->src->n_tools; i++) {
        struct str name = tool_name_json(b, t->src->tools[i].name);
        uint32_t at = t->names;

        if (name.n == 0) {
            return err_set(b->err, ERR_INPUT, "#/tools/%u/function/name: a tool needs a name", i);
        }
        if (!piece_text(b, &at, name) || !pieces_add(b, &at, &t->src->format->between)) {
            return false;
        }
        if (b->nodes[at].inlines != 0 || b->nodes[at].edges != 0 || b->nodes[at].n.has_token) {
            return err_set(b->err, ERR_INPUT,
                           "#/tools/%u/function/name: the name comes twice, or begins another", i);
        }
        if (!inline_add(b, at, t->value[i], t->called)) {
            return false;
        }
    }
    return true;
}

/* `again`, a node without edges, goes on as `names` does. */
static bool tools_repeat(struct builder *b, uint32_t again, uint32_t names)
{
    if (b->nodes[again].edges != 0 || b->nodes[again].n.has_token) {
        return err_set(b->err, ERR_INPUT, "tool format: the end goes on after the next call began");
    }
    b->nodes[again].edges = b->nodes[names].edges;
    for (uint32_t i = 0, n = b->n_tokens; i < n; i++) {
        if (b->tokens[i].node == names &&
            !token_add(b, again, b->tokens[i].token, b->tokens[i].target)) {
            return false;
        }
    }
    return true;
}

/* after the arguments: the next call while there may be more, or the end once there are enough. */
static bool tools_after(struct builder *b, const struct grammar_tool_format *f, struct tools *t)
{
    uint32_t after = t->called, again, end;

    b->nodes[t->called].n.op = GRAMMAR_OP_INC;
    if (!pieces_add(b, &after, &f->after)) {
        return false;
    }
    again = end = after;
    if (!pieces_add(b, &end, &f->end)) {
        return false;
    }
    if (f->calls_max > 1) {
        if (!pieces_add(b, &again, &f->separator) || !pieces_add(b, &again, &f->before)) {
            return false;
        }
        if (again == after || again == end) {
            return err_set(b->err, ERR_INPUT, "tool format: another call looks like the end");
        }
        b->nodes[again].derive = false;
        if (!tools_repeat(b, again, t->names) ||
            !guard_add(b, again, 0, f->calls_max - 1, NEED_NONE, 0)) {
            return false;
        }
    }
    b->nodes[end].n.final = true;
    b->nodes[end].n.final_min = f->calls_min;
    if (end == after) {
        return true;
    }
    b->nodes[end].derive = false;
    return (b->nodes[end].edges == 0 || guard_add(b, end, 0, f->calls_max - 1, NEED_NONE, 0)) &&
           guard_add(b, end, f->calls_min, GRAMMAR_INF, NEED_NONE, 0);
}

static bool tools_start(struct builder *b, const struct grammar_source *src)
{
    const struct grammar_tool_format *f = src->format;
    struct tools t = {.src = src, .names = GRAMMAR_START, .called = node_new(b)};

    if (src->n_tools == 0 || src->n_tools > GRAMMAR_TOOLS_MAX || f->calls_min == 0 ||
        f->calls_min > f->calls_max) {
        return err_set(b->err, ERR_LIMIT, "#/tools: 1 to %d tools, and at least one call",
                       GRAMMAR_TOOLS_MAX);
    }
    t.value = arena_array(&b->arena, src->n_tools, sizeof(*t.value));
    return t.called != 0 && t.value != NULL && tools_values(b, &t) &&
           pieces_add(b, &t.names, &f->begin) && pieces_add(b, &t.names, &f->before) &&
           tools_names(b, &t) && tools_after(b, f, &t);
}

/* ---- the whole ---- */

static bool sizes_fit(struct builder *b, const struct grammar_source *src)
{
    struct buf text;
    bool ok;

    buf_init(&text, GRAMMAR_SCHEMA_BYTES_MAX);
    if (src->schema != NULL && src->kind == GRAMMAR_JSON_SCHEMA) {
        json_write(&text, src->schema, JSON_ORDER_DOCUMENT);
    }
    for (uint32_t i = 0; src->kind == GRAMMAR_TOOLS && i < src->n_tools; i++) {
        if (src->tools[i].parameters != NULL) {
            json_write(&text, src->tools[i].parameters, JSON_ORDER_DOCUMENT);
        }
    }
    ok = !text.failed;
    buf_fini(&text);
    return ok || err_set(b->err, ERR_LIMIT, "#: the schema has more than %d bytes",
                         GRAMMAR_SCHEMA_BYTES_MAX);
}

static bool source_build(struct builder *b, const struct grammar_source *src)
{
    if (node_new(b) != GRAMMAR_START || !sizes_fit(b, src)) {
        return false;
    }
    switch (src->kind) {
    case GRAMMAR_JSON_OBJECT:
        return json_start(b, NULL);
    case GRAMMAR_JSON_SCHEMA:
        return src->schema != NULL ? json_start(b, src->schema)
                                   : err_set(b->err, ERR_INPUT, "#: there is no schema");
    case GRAMMAR_REGEX:
        return regex_start(b, src->regex);
    case GRAMMAR_TOOLS:
        return tools_start(b, src);
    }
    return err_set(b->err, ERR_INPUT, "#: no such kind of grammar");
}

bool grammar_compile(const struct grammar_source *src, const struct grammar_vocab *v,
                     struct grammar **out, struct err *e)
{
    struct builder *b = mem_try(1, sizeof(*b));
    struct err own;

    *out = NULL;
    if (b == NULL) {
        return err_set(e, ERR_NO_MEMORY, "#: no memory for a grammar");
    }
    err_clear(&own);
    builder_init(b, &own);
    *out = source_build(b, src) ? builder_finish(b, v) : NULL;
    if (*out != NULL) {
        (*out)->work = b->work;
    } else {
        CHECK(own.code != ERR_NONE);
        b->root = NULL;
        (void)schema_err_place(b, NULL); /* a bound was reached wherever it was */
    }
    builder_fini(b);
    mem_free(b);
    if (*out == NULL) {
        return err_set(e, own.code, "%s", own.text);
    }
    return true;
}

struct grammar *grammar_retain(struct grammar *g)
{
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    return g;
}

void grammar_release(struct grammar *g)
{
    if (g == NULL || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    grammar_cache_free(g->cache);
    mem_free(g->nodes);
    mem_free(g->edges);
    mem_free(g->guards);
    mem_free(g->spans);
    mem_free(g->tokens);
    mem_free(g);
}

size_t grammar_bytes(const struct grammar *g)
{
    return sizeof(*g) + g->n_nodes * sizeof(*g->nodes) + g->n_edges * sizeof(*g->edges) +
           g->n_guards * sizeof(*g->guards) + g->n_spans * sizeof(*g->spans) +
           g->n_tokens * sizeof(*g->tokens) + grammar_cache_bytes(g->cache);
}

const int32_t *grammar_ends(const struct grammar *g, uint32_t *n)
{
    *n = g->vocab->n_eos;
    return g->vocab->eos;
}

uint32_t grammar_work(const struct grammar *g)
{
    return g->work;
}

uint32_t grammar_states(const struct grammar *g)
{
    return g->n_nodes - 1;
}
