/* grammar_finish.c - from a builder's lists to the automaton's arrays.
 *
 * First what every value needs (the fewest frames in which it can be ended), then every guard, then
 * the edges. */
#include <stdlib.h>

#include "worker/engine/grammar_build.h"

static uint32_t alternative_need(const struct builder *b, uint32_t at)
{
    const struct build_alternative *a = &b->alternatives[at];
    uint32_t need = a->container ? 1 : 0;

    for (uint32_t m = a->must; m != 0; m = b->musts[m].next) {
        uint32_t child = b->values[b->musts[m].value].need + 1;

        need = child > need ? child : need;
    }
    return need < GRAMMAR_LEVELS_MAX ? need : GRAMMAR_NEED_NEVER;
}

/* From "nothing can be" down to the least fixed point: it is reached by shortest values first. */
bool needs_settle(struct builder *b)
{
    uint64_t looks = (uint64_t)b->n_values + b->n_alternatives + b->n_musts;
    bool changed = true;

    for (uint32_t v = 1; v < b->n_values; v++) {
        b->values[v].need = GRAMMAR_NEED_NEVER;
    }
    for (uint32_t round = 0; changed && round <= GRAMMAR_LEVELS_MAX + 1; round++) {
        changed = false;
        if (!builder_spend(b, looks / 2)) {
            return false;
        }
        for (uint32_t v = b->n_values; v-- > 1;) { /* what others need comes after them, mostly */
            for (uint32_t a = b->values[v].alternatives; a != 0;
                 a = b->alternatives[a].next_of_value) {
                uint32_t need = alternative_need(b, a);

                if (need < b->values[v].need) {
                    b->values[v].need = need;
                    changed = true;
                }
            }
        }
    }
    return true;
}

/* The arrays being filled. */
struct finish {
    struct builder *b;
    struct grammar *g;
    uint32_t cap_guards, cap_edges;
    struct grammar_guard *some; /* of one node, before they are merged */
    uint32_t n_some, cap_some;
    uint32_t *stack; /* nodes whose guards wait for their targets' */
    uint32_t n_stack, cap_stack;
};

static bool some_add(struct finish *f, struct grammar_guard guard)
{
    if (guard.need >= GRAMMAR_NEED_NEVER || guard.min > guard.max) {
        return true;
    }
    if (!builder_room(f->b, &f->some, &f->cap_some, f->n_some, GRAMMAR_EDGES_MAX, sizeof(*f->some),
                      "guards")) {
        return false;
    }
    f->some[f->n_some++] = guard;
    return true;
}

static int by_need_and_min(const void *pa, const void *pb)
{
    const struct grammar_guard *a = pa, *b = pb;

    if (a->need != b->need) {
        return a->need < b->need ? -1 : 1;
    }
    return (a->min > b->min) - (a->min < b->min);
}

/* Stores the collected guards as those of `node`, overlapping ones of one need as one. */
static bool some_store(struct finish *f, uint32_t node)
{
    struct grammar_node *n = &f->b->nodes[node].n;
    struct grammar *g = f->g;

    if (!builder_spend(f->b, 2 * (uint64_t)f->n_some)) {
        return false;
    }
    if (f->n_some > 1) {
        qsort(f->some, f->n_some, sizeof(*f->some), by_need_and_min);
    }
    n->guards = g->n_guards;
    n->guarded = true;
    for (uint32_t i = 0; i < f->n_some; i++) {
        struct grammar_guard *last = g->n_guards > n->guards ? &g->guards[g->n_guards - 1] : NULL;

        if (last != NULL && last->need == f->some[i].need &&
            (last->max == GRAMMAR_INF || f->some[i].min <= last->max + 1)) {
            last->max = last->max > f->some[i].max ? last->max : f->some[i].max;
            continue;
        }
        if (!builder_room(f->b, &g->guards, &f->cap_guards, g->n_guards, GRAMMAR_EDGES_MAX,
                          sizeof(*g->guards), "guards")) {
            return false;
        }
        g->guards[g->n_guards++] = f->some[i];
        g->need_max = f->some[i].need > g->need_max ? f->some[i].need : g->need_max;
    }
    n->n_guards = g->n_guards - n->guards;
    if (n->n_guards == 1 && g->guards[n->guards].min == 0 &&
        g->guards[n->guards].max == GRAMMAR_INF && g->guards[n->guards].need == 0) {
        n->guarded = false;
        n->n_guards = 0;
    }
    return true;
}

static bool guards_resolve(struct finish *f, uint32_t node)
{
    const struct builder *b = f->b;

    f->n_some = 0;
    for (uint32_t at = b->nodes[node].guards; at != 0; at = b->guards[at].next) {
        const struct build_guard *from = &b->guards[at];
        uint32_t need = 0;

        if (from->need == NEED_VALUE) {
            need = b->values[from->need_of].need + 1;
        } else if (from->need == NEED_SELF) {
            need = alternative_need(b, from->need_of);
        }
        if (!some_add(f, (struct grammar_guard){from->min, from->max, need})) {
            return false;
        }
    }
    f->b->nodes[node].derived = 2;
    return some_store(f, node);
}

/* What entering `target` asks of the counter before the step. false: no memory; *open: nothing. */
static bool target_guards(struct finish *f, uint32_t target, bool *open)
{
    const struct grammar_node *t = &f->b->nodes[target].n;
    uint32_t shift = t->op == GRAMMAR_OP_INC;

    *open = *open || !t->guarded;
    for (uint32_t i = 0; i < t->n_guards; i++) {
        struct grammar_guard guard = f->g->guards[t->guards + i];

        if (guard.max < shift) {
            continue;
        }
        guard.min -= guard.min > 0 ? shift : 0;
        guard.max -= guard.max != GRAMMAR_INF ? shift : 0;
        if (!some_add(f, guard)) {
            return false;
        }
    }
    return true;
}

static bool stack_push(struct finish *f, uint32_t node)
{
    if (!builder_room(f->b, &f->stack, &f->cap_stack, f->n_stack, GRAMMAR_EDGES_MAX,
                      sizeof(*f->stack), "states")) {
        return false;
    }
    f->stack[f->n_stack++] = node;
    return true;
}

/* Values, named tokens and the end are ways on that no target's guard speaks for. */
static bool is_open(const struct build_node *n)
{
    return n->inlines != 0 || n->n.final;
}

/* All targets are done: the union of what they ask. */
static bool derive_one(struct finish *f, uint32_t node)
{
    struct builder *b = f->b;
    bool open = is_open(&b->nodes[node]);

    f->n_some = 0;
    for (uint32_t at = b->nodes[node].edges; at != 0 && !open; at = b->edges[at].next) {
        if (!b->edges[at].space && !target_guards(f, b->edges[at].target, &open)) {
            return false;
        }
    }
    for (uint32_t i = 0; b->nodes[node].n.has_token && i < b->n_tokens && !open; i++) {
        if (b->tokens[i].node == node && !target_guards(f, b->tokens[i].target, &open)) {
            return false;
        }
    }
    b->nodes[node].derived = 2;
    if (open) {
        b->nodes[node].n.guarded = false;
        return true;
    }
    return some_store(f, node);
}

static bool wait_for(struct finish *f, uint32_t target)
{
    const struct build_node *t = &f->b->nodes[target];

    return !t->derive || t->derived != 0 || stack_push(f, target);
}

static bool derive(struct finish *f, uint32_t root)
{
    struct builder *b = f->b;

    f->n_stack = 0;
    if (!stack_push(f, root)) {
        return false;
    }
    while (f->n_stack > 0) {
        uint32_t node = f->stack[f->n_stack - 1];

        if (b->nodes[node].derived != 0) {
            f->n_stack--;
            if (b->nodes[node].derived == 1 && !derive_one(f, node)) {
                return false;
            }
            continue;
        }
        b->nodes[node].derived = 1;
        for (uint32_t at = b->nodes[node].edges; at != 0; at = b->edges[at].next) {
            if (!b->edges[at].space && !wait_for(f, b->edges[at].target)) {
                return false;
            }
        }
        for (uint32_t i = 0; b->nodes[node].n.has_token && i < b->n_tokens; i++) {
            if (b->tokens[i].node == node && !wait_for(f, b->tokens[i].target)) {
                return false;
            }
        }
    }
    return true;
}

static bool guards_finish(struct finish *f)
{
    for (uint32_t i = 1; i < f->b->n_nodes; i++) {
        if (f->b->nodes[i].n.guarded && !guards_resolve(f, i)) {
            return false;
        }
    }
    for (uint32_t i = 1; i < f->b->n_nodes; i++) {
        if (f->b->nodes[i].derive && f->b->nodes[i].derived == 0 && !derive(f, i)) {
            return false;
        }
    }
    return true;
}

/* ---- edges ---- */

static bool edge_store(struct finish *f, const struct build_edge *e, uint32_t ret)
{
    struct grammar *g = f->g;

    if (!builder_room(f->b, &g->edges, &f->cap_edges, g->n_edges, GRAMMAR_EDGES_MAX,
                      sizeof(*g->edges), "edges")) {
        return false;
    }
    g->edges[g->n_edges++] = (struct grammar_edge){e->target, ret, e->lo, e->hi, e->space};
    return true;
}

static int by_lo(const void *pa, const void *pb)
{
    const struct grammar_edge *a = pa, *b = pb;

    return (a->lo > b->lo) - (a->lo < b->lo);
}

static void edges_sort(struct grammar *g, uint32_t first)
{
    uint32_t n = g->n_edges - first, out = first;
    struct grammar_edge *e = g->edges;

    if (n > 1) {
        qsort(e + first, n, sizeof(*e), by_lo);
    }
    for (uint32_t i = first + 1; i < first + n; i++) {
        CHECK(e[i].lo > e[out].hi);
        if (e[i].lo == e[out].hi + 1 && e[i].target == e[out].target && e[i].ret == e[out].ret &&
            e[i].space == e[out].space) {
            e[out].hi = e[i].hi;
        } else {
            e[++out] = e[i];
        }
    }
    g->n_edges = n > 0 ? out + 1 : first;
}

/* What a walk may skip: see struct grammar_node. */
static void loop_note(const struct grammar *g, struct grammar_node *n, uint32_t node)
{
    for (uint32_t i = 0; i < n->n_edges && !n->fork; i++) {
        const struct grammar_edge *e = &g->edges[n->edges + i];

        for (uint32_t c = e->lo; e->target == node && e->ret == 0 && !e->space && c <= e->hi; c++) {
            if (c < 0x80) {
                n->loop[c / 64] |= 1ull << (c % 64);
            }
        }
    }
}

static bool edges_finish(struct finish *f, uint32_t node)
{
    struct builder *b = f->b;
    struct grammar *g = f->g;
    uint32_t first = g->n_edges;

    for (uint32_t at = b->nodes[node].edges; at != 0; at = b->edges[at].next) {
        if (!edge_store(f, &b->edges[at], b->edges[at].ret)) {
            return false;
        }
    }
    for (uint32_t at = b->nodes[node].inlines; at != 0; at = b->inlines[at].next) {
        const struct build_inline *in = &b->inlines[at];

        for (uint32_t k = b->values[in->value].edges; k != 0; k = b->edges[k].next) {
            if (!builder_spend(b, 2) || !edge_store(f, &b->edges[k], in->ret)) {
                return false;
            }
        }
    }
    if (b->nodes[node].n.fork) { /* the list is newest first: back to the order of the schema */
        for (uint32_t i = first, k = g->n_edges; i + 1 < k; i++) {
            struct grammar_edge swap = g->edges[i];

            g->edges[i] = g->edges[--k];
            g->edges[k] = swap;
        }
    } else {
        edges_sort(g, first);
    }
    b->nodes[node].n.edges = first;
    b->nodes[node].n.n_edges = (uint16_t)(g->n_edges - first);
    loop_note(g, &b->nodes[node].n, node);
    return true;
}

static void alphabet_make(struct grammar *g)
{
    bool cut[257] = {false};

    for (uint32_t i = 0; i < g->n_edges; i++) {
        cut[g->edges[i].lo] = cut[g->edges[i].hi + 1] = true;
    }
    for (uint32_t byte = 1; byte < 256; byte++) {
        g->alphabet[byte] = g->alphabet[byte - 1] + cut[byte];
    }
    g->n_alphabet = g->alphabet[255] + 1u;
}

static bool arrays_finish(struct finish *f)
{
    struct builder *b = f->b;
    struct grammar *g = f->g;

    for (uint32_t i = 1; i < b->n_nodes; i++) {
        if (!edges_finish(f, i)) {
            return false;
        }
    }
    alphabet_make(g);
    g->n_spans = b->n_spans > 0 ? b->n_spans : 1;
    g->nodes = mem_try(b->n_nodes, sizeof(*g->nodes));
    g->spans = mem_try(g->n_spans, sizeof(*g->spans));
    g->tokens = mem_try(b->n_tokens + 1, sizeof(*g->tokens));
    if (g->nodes == NULL || g->spans == NULL || g->tokens == NULL) {
        return err_set(b->err, ERR_NO_MEMORY, "no memory for a grammar");
    }
    g->n_nodes = b->n_nodes;
    for (uint32_t i = 1; i < b->n_nodes; i++) {
        g->nodes[i] = b->nodes[i].n;
    }
    if (b->n_spans > 0) {
        memcpy(g->spans, b->spans, b->n_spans * sizeof(*g->spans));
    }
    g->n_tokens = b->n_tokens;
    if (b->n_tokens > 0) {
        memcpy(g->tokens, b->tokens, b->n_tokens * sizeof(*g->tokens));
    }
    return true;
}

struct grammar *builder_finish(struct builder *b, const struct grammar_vocab *v)
{
    struct finish f = {.b = b, .g = mem_try(1, sizeof(struct grammar))};
    bool ok;

    if (f.g != NULL) {
        atomic_init(&f.g->refs, 1);
        f.g->vocab = v;
        f.g->cache = grammar_cache_new();
    }
    if (f.g == NULL || f.g->cache == NULL) {
        mem_free(f.g);
        (void)err_set(b->err, ERR_NO_MEMORY, "no memory for a grammar");
        return NULL;
    }
    /* Both arrays are there even when they stay empty: others point into them. */
    ok = builder_room(b, &f.g->guards, &f.cap_guards, 0, 1, sizeof(*f.g->guards), "guards") &&
         builder_room(b, &f.g->edges, &f.cap_edges, 0, 1, sizeof(*f.g->edges), "edges") &&
         guards_finish(&f) && arrays_finish(&f);
    mem_free(f.some);
    mem_free(f.stack);
    if (!ok) {
        grammar_release(f.g);
        return NULL;
    }
    return f.g;
}
