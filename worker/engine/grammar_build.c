/* grammar_build.c - nodes, edges and guards while an automaton grows; what they become at the end.
 */
#include <stdlib.h>

#include "worker/engine/grammar_build.h"

#define MIDS_FIRST 256u /* power of two */

void builder_init(struct builder *b, struct err *e)
{
    memset(b, 0, sizeof(*b));
    b->err = e;
    b->root_place = "#";
    arena_init(&b->arena, GRAMMAR_ARENA_BYTES);
    map_init(&b->strings, (uintptr_t)b, GRAMMAR_STATES_MAX);
    map_init(&b->places, (uintptr_t)b, GRAMMAR_SCHEMA_BYTES_MAX);
    map_init(&b->refs, (uintptr_t)b, GRAMMAR_SCHEMA_BYTES_MAX);
}

void builder_fini(struct builder *b)
{
    mem_free(b->nodes);
    mem_free(b->edges);
    mem_free(b->guards);
    mem_free(b->inlines);
    mem_free(b->alternatives);
    mem_free(b->musts);
    mem_free(b->values);
    mem_free(b->spans);
    mem_free(b->tokens);
    map_fini(&b->strings);
    map_fini(&b->places);
    map_fini(&b->refs);
    mem_free(b->mids);
    mem_free(b->cut);
    arena_fini(&b->arena);
}

bool builder_room(struct builder *b, void *pool_p, uint32_t *cap, uint32_t have, uint32_t max,
                  size_t size, const char *what)
{
    void *pool;
    uint32_t want;

    if (have < *cap) {
        return true;
    }
    if (have >= max) {
        return err_set(b->err, ERR_LIMIT, "the grammar needs more than %u %s", max, what);
    }
    want = *cap == 0 ? 64 : *cap * 2;
    while (want <= have) { /* a scratch array may need many at once */
        want *= 2;
    }
    want = want < max ? want : max;
    memcpy(&pool, pool_p, sizeof(pool)); /* a pointer to whatever the pool holds */
    pool = mem_resize(pool, want * size);
    if (pool == NULL) {
        return err_set(b->err, ERR_NO_MEMORY, "no memory for a grammar");
    }
    memcpy(pool_p, &pool, sizeof(pool));
    *cap = want;
    return true;
}

bool builder_spend(struct builder *b, uint64_t work)
{
    if (work > GRAMMAR_WORK_MAX - b->work) {
        b->work = GRAMMAR_WORK_MAX;
        return err_set(b->err, ERR_LIMIT, "too complex to compile");
    }
    b->work += (uint32_t)work;
    return true;
}

/* One more element at the end of a pool; index 0 stays unused, so that 0 can mean none. */
#define POOL_ADD(b, name, max, what)                                                               \
    (builder_room(b, &(b)->name, &(b)->cap_##name, (b)->n_##name + ((b)->n_##name == 0), max,      \
                  sizeof(*(b)->name), what)                                                        \
         ? ((b)->n_##name += (b)->n_##name == 0, memset(&(b)->name[0], 0, sizeof(*(b)->name)),     \
            memset(&(b)->name[(b)->n_##name], 0, sizeof(*(b)->name)), (b)->n_##name++)             \
         : 0)

uint32_t node_new(struct builder *b)
{
    if (!builder_spend(b, 14)) {
        return 0;
    }
    return POOL_ADD(b, nodes, GRAMMAR_STATES_MAX, "states");
}

uint32_t node_final(struct builder *b)
{
    uint32_t n = node_new(b);

    if (n != 0) {
        b->nodes[n].n.final = true;
    }
    return n;
}

static bool edge_put(struct builder *b, uint32_t *list, struct build_edge e)
{
    uint32_t at = POOL_ADD(b, edges, GRAMMAR_EDGES_MAX, "edges");

    if (at == 0) {
        return false;
    }
    b->edges[at] = e;
    b->edges[at].next = *list;
    *list = at;
    return true;
}

bool edge_add(struct builder *b, uint32_t from, uint8_t lo, uint8_t hi, uint32_t target)
{
    return edge_put(b, &b->nodes[from].edges,
                    (struct build_edge){.lo = lo, .hi = hi, .target = target});
}

bool space_add(struct builder *b, uint32_t node)
{
    static const uint8_t spaces[] = {' ', '\n', '\t', '\r'};

    for (size_t i = 0; i < ARRAY_LEN(spaces); i++) {
        struct build_edge e = {.lo = spaces[i], .hi = spaces[i], .target = node, .space = true};

        if (!edge_put(b, &b->nodes[node].edges, e)) {
            return false;
        }
    }
    return true;
}

bool inline_add(struct builder *b, uint32_t node, uint32_t value, uint32_t ret)
{
    uint32_t at = POOL_ADD(b, inlines, GRAMMAR_EDGES_MAX, "values");

    if (at == 0) {
        return false;
    }
    b->inlines[at] = (struct build_inline){value, ret, b->nodes[node].inlines};
    b->nodes[node].inlines = at;
    return true;
}

bool guard_add(struct builder *b, uint32_t node, uint32_t min, uint32_t max, enum need_kind kind,
               uint32_t need_of)
{
    uint32_t at = POOL_ADD(b, guards, GRAMMAR_EDGES_MAX, "guards");

    if (at == 0) {
        return false;
    }
    b->guards[at] = (struct build_guard){min, max, need_of, b->nodes[node].guards, kind};
    b->nodes[node].guards = at;
    b->nodes[node].n.guarded = true;
    return true;
}

uint32_t span_new(struct builder *b, uint32_t low, uint32_t high)
{
    uint32_t at;

    if (low == 0 && high == GRAMMAR_INF) {
        return 0;
    }
    at = POOL_ADD(b, spans, GRAMMAR_STATES_MAX, "counters");
    if (at != 0) {
        b->spans[at] = (struct grammar_span){low, low, high};
    }
    return at;
}

bool literal_add(struct builder *b, uint32_t from, struct str text, uint32_t to)
{
    for (size_t i = 0; i < text.n; i++) {
        uint32_t next = i + 1 == text.n ? to : node_new(b);

        if (next == 0 || !edge_add(b, from, (uint8_t)text.p[i], (uint8_t)text.p[i], next)) {
            return false;
        }
        from = next;
    }
    return true;
}

bool value_edge(struct builder *b, uint32_t value, uint8_t lo, uint8_t hi, uint32_t target)
{
    return target != 0 && edge_put(b, &b->values[value].edges,
                                   (struct build_edge){.lo = lo, .hi = hi, .target = target});
}

bool value_edges_of(struct builder *b, uint32_t value, uint32_t node)
{
    for (uint32_t at = b->nodes[node].edges; at != 0; at = b->edges[at].next) {
        if (!value_edge(b, value, b->edges[at].lo, b->edges[at].hi, b->edges[at].target)) {
            return false;
        }
    }
    return true;
}

uint32_t alternative_new(struct builder *b, uint32_t value, bool container)
{
    uint32_t at = POOL_ADD(b, alternatives, GRAMMAR_EDGES_MAX, "alternatives");

    if (at != 0) {
        b->alternatives[at] = (struct build_alternative){
            .value = value, .container = container, .next_of_value = b->values[value].alternatives};
        b->values[value].alternatives = at;
    }
    return at;
}

bool must_add(struct builder *b, uint32_t alternative, uint32_t value)
{
    uint32_t at = POOL_ADD(b, musts, GRAMMAR_EDGES_MAX, "values");

    if (at == 0) {
        return false;
    }
    b->musts[at] = (struct build_must){value, b->alternatives[alternative].must};
    b->alternatives[alternative].must = at;
    return true;
}

uint32_t value_new(struct builder *b)
{
    return POOL_ADD(b, values, GRAMMAR_VALUES_MAX, "values");
}

bool token_add(struct builder *b, uint32_t node, int32_t token, uint32_t target)
{
    uint32_t have = b->n_tokens;

    if (!builder_room(b, &b->tokens, &b->cap_tokens, have, GRAMMAR_TOKEN_EDGES_MAX,
                      sizeof(*b->tokens), "named tokens")) {
        return false;
    }
    b->tokens[b->n_tokens++] = (struct grammar_token_edge){node, token, target};
    b->nodes[node].n.has_token = true;
    return true;
}

/* ---- nodes in the middle of a character ---- */

static bool mid_equal(const struct builder *b, uint32_t node, const struct build_edge *edges,
                      uint32_t n, uint32_t span)
{
    uint32_t at = b->nodes[node].edges;

    if (b->nodes[node].n.span != span) {
        return false;
    }
    for (uint32_t i = n; i-- > 0; at = b->edges[at].next) {
        if (at == 0 || b->edges[at].lo != edges[i].lo || b->edges[at].hi != edges[i].hi ||
            b->edges[at].target != edges[i].target) {
            return false;
        }
    }
    return at == 0;
}

static uint64_t mid_hash(const struct build_edge *edges, uint32_t n, uint32_t span)
{
    uint64_t h = 0x9e3779b97f4a7c15u + span;

    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ ((uint64_t)edges[i].target << 16 | (uint64_t)edges[i].lo << 8 | edges[i].hi)) *
            0xff51afd7ed558ccdu;
        h ^= h >> 29;
    }
    return h ^ h >> 32;
}

static uint64_t mid_rehash(const struct builder *b, uint32_t node)
{
    struct build_edge edges[256];
    uint32_t n = 0;

    for (uint32_t at = b->nodes[node].edges; at != 0; at = b->edges[at].next) {
        n++;
    }
    for (uint32_t at = b->nodes[node].edges, i = n; at != 0; at = b->edges[at].next) {
        edges[--i] = b->edges[at];
    }
    return mid_hash(edges, n, b->nodes[node].n.span);
}

static bool mids_grow(struct builder *b)
{
    uint32_t cap = b->cap_mids == 0 ? MIDS_FIRST : b->cap_mids * 2;
    uint32_t *mids = mem_try(cap, sizeof(*mids));

    if (mids == NULL) {
        return err_set(b->err, ERR_NO_MEMORY, "no memory for a grammar");
    }
    for (uint32_t i = 0; i < b->cap_mids; i++) {
        if (b->mids[i] != 0) {
            uint64_t h = mid_rehash(b, b->mids[i]);

            while (mids[h % cap] != 0) {
                h++;
            }
            mids[h % cap] = b->mids[i];
        }
    }
    mem_free(b->mids);
    b->mids = mids;
    b->cap_mids = cap;
    return true;
}

uint32_t mid_node(struct builder *b, const struct build_edge *edges, uint32_t n, uint32_t span)
{
    uint64_t h = mid_hash(edges, n, span);
    uint32_t node;

    if (2 * b->n_mids >= b->cap_mids && !mids_grow(b)) {
        return 0;
    }
    for (; b->mids[h % b->cap_mids] != 0; h++) {
        if (mid_equal(b, b->mids[h % b->cap_mids], edges, n, span)) {
            return b->mids[h % b->cap_mids];
        }
    }
    node = node_new(b);
    if (node == 0) {
        return 0;
    }
    b->nodes[node].derive = true;
    b->nodes[node].n.span = span;
    for (uint32_t i = 0; i < n; i++) {
        if (!edge_add(b, node, edges[i].lo, edges[i].hi, edges[i].target)) {
            return 0;
        }
    }
    b->mids[h % b->cap_mids] = node;
    b->n_mids++;
    return node;
}
