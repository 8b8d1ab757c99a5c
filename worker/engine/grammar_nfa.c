/* grammar_nfa.c - a regular expression's tree to a deterministic automaton over characters.
 *
 * Thompson's construction, compiled from the end to the front, then subsets. Nothing backtracks;
 * work and states have bounds, so a hostile expression is refused, never slow. */
#include <stdlib.h>

#include "worker/engine/grammar_regex.h"

#define NFA_NODES_MAX 65536u
#define SUBSET_BUCKETS 4096u

enum nfa_kind { NFA_SET = 1, NFA_SPLIT, NFA_START, NFA_END, NFA_MATCH };

struct nfa_node {
    enum nfa_kind kind;
    uint32_t set;
    uint32_t out, other; /* other: SPLIT */
};

/* A subset: the SET and END nodes in it, ascending. */
struct subset {
    uint32_t *node; /* in the arena */
    uint32_t n;
    uint32_t chain; /* next with the same hash, + 1 */
};

struct nfa {
    struct builder *b;
    struct regex re;
    struct nfa_node *nodes; /* owned; 0 unused */
    uint32_t n, cap, start;
    bool full;
    uint64_t *member; /* owned; [class][words of sets] */
    uint32_t words;
    struct subset *subsets; /* owned; by state */
    uint32_t cap_subsets, cap_next;
    uint32_t *seen; /* owned, as the three below; [n] stamp of the last closure that was there */
    uint32_t stamp;
    uint32_t *list; /* [n] the closure being made */
    uint32_t n_list;
    uint32_t *todo;    /* [2 n] */
    uint32_t *buckets; /* [SUBSET_BUCKETS] hash of subsets, + 1 */
    struct dfa *d;
    uint8_t *accept; /* owned; bit 0: accepts, bit 1: its closure holds the match */
    uint32_t cap_accept;
};

bool regex_set_intern(struct builder *b, struct regex *re, const struct char_set *s, uint32_t *out)
{
    struct regex_set *new;

    for (uint32_t i = 0; i < re->n_sets; i++) {
        if (re->sets[i].n == s->n && memcmp(re->sets[i].r, s->r, s->n * sizeof(s->r[0])) == 0) {
            *out = i;
            return true;
        }
    }
    if (!builder_room(b, &re->sets, &re->cap_sets, re->n_sets, GRAMMAR_REGEX_BYTES_MAX,
                      sizeof(*re->sets), "classes")) {
        return false;
    }
    new = &re->sets[re->n_sets];
    *out = re->n_sets++;
    new->n = s->n;
    new->r = arena_array(&b->arena, s->n + 1, sizeof(s->r[0]));
    if (new->r == NULL) {
        return err_set(b->err, ERR_LIMIT, "the expression needs too much memory");
    }
    memcpy(new->r, s->r, s->n * sizeof(s->r[0]));
    return true;
}

/* ---- tree to NFA ---- */

static uint32_t nfa_node(struct nfa *m, enum nfa_kind kind, uint32_t out, uint32_t other)
{
    if (!builder_room(m->b, &m->nodes, &m->cap, m->n, NFA_NODES_MAX, sizeof(*m->nodes), "states")) {
        return 0;
    }
    m->nodes[m->n] = (struct nfa_node){.kind = kind, .out = out, .other = other};
    return m->n++;
}

static uint32_t emit(struct nfa *m, const struct regex_node *t, uint32_t next);

static uint32_t emit_sequence(struct nfa *m, const struct regex_node *child, uint32_t next)
{
    const struct regex_node **kids;
    uint32_t n = 0;

    for (const struct regex_node *c = child; c != NULL; c = c->next) {
        n++;
    }
    kids = arena_array(&m->b->arena, n + 1, sizeof(*kids)); /* pieces are many only in long texts */
    if (kids == NULL) {
        err_set(m->b->err, ERR_LIMIT, "the expression needs too much memory");
        return 0;
    }
    n = 0;
    for (const struct regex_node *c = child; c != NULL; c = c->next) {
        kids[n++] = c;
    }
    while (n > 0 && next != 0) {
        next = emit(m, kids[--n], next);
    }
    return next;
}

static uint32_t emit_repeat(struct nfa *m, const struct regex_node *t, uint32_t next)
{
    uint32_t at = next;

    if (t->max == GRAMMAR_INF) {
        uint32_t body;

        at = nfa_node(m, NFA_SPLIT, next, 0);
        body = at != 0 ? emit(m, t->child, at) : 0;
        if (body == 0) {
            return 0;
        }
        m->nodes[at].other = body;
    }
    for (uint32_t i = t->min; t->max != GRAMMAR_INF && i < t->max && at != 0; i++) {
        uint32_t body = emit(m, t->child, at);

        at = body != 0 ? nfa_node(m, NFA_SPLIT, next, body) : 0;
    }
    for (uint32_t i = 0; i < t->min && at != 0; i++) {
        at = emit(m, t->child, at);
    }
    return at;
}

/* The entry of what matches t and then goes on at next; 0: failed. */
static uint32_t emit(struct nfa *m, const struct regex_node *t, uint32_t next)
{
    uint32_t at = 0;

    if (!builder_spend(m->b, 3)) { /* repeats of nothing make no node */
        return 0;
    }
    switch (t->kind) {
    case REGEX_SET:
        at = nfa_node(m, NFA_SET, next, 0);
        if (at != 0) {
            m->nodes[at].set = t->set;
        }
        return at;
    case REGEX_SEQUENCE:
        return emit_sequence(m, t->child, next);
    case REGEX_ALTERNATION:
        for (const struct regex_node *c = t->child; c != NULL; c = c->next) {
            uint32_t one = emit(m, c, next);

            at = one == 0 || at == 0 ? one : nfa_node(m, NFA_SPLIT, at, one);
            if (at == 0) {
                return 0;
            }
        }
        return at;
    case REGEX_REPEAT:
        return emit_repeat(m, t, next);
    case REGEX_START:
        return nfa_node(m, NFA_START, next, 0);
    case REGEX_END:
        return nfa_node(m, NFA_END, next, 0);
    }
    return 0;
}

/* ---- classes of characters that no set tells apart ---- */

static int by_value(const void *pa, const void *pb)
{
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;

    return (a > b) - (a < b);
}

/* Every place where some set begins or ends, and the surrogates; ascending, distinct. */
static uint32_t cuts_make(struct nfa *m, uint32_t **out)
{
    uint32_t n = 3, k = 0, *cut;

    for (uint32_t i = 0; i < m->re.n_sets; i++) {
        n += 2 * m->re.sets[i].n;
    }
    *out = cut = arena_array(&m->b->arena, n, sizeof(*cut));
    if (cut == NULL) {
        err_set(m->b->err, ERR_LIMIT, "the expression needs too much memory");
        return 0;
    }
    n = 0;
    cut[n++] = 0;
    cut[n++] = 0xd800;
    cut[n++] = 0xe000;
    for (uint32_t i = 0; i < m->re.n_sets; i++) {
        for (uint32_t r = 0; r < m->re.sets[i].n; r++) {
            cut[n++] = m->re.sets[i].r[r].lo;
            cut[n++] = m->re.sets[i].r[r].hi + 1;
        }
    }
    qsort(cut, n, sizeof(*cut), by_value);
    for (uint32_t i = 0; i < n; i++) {
        if (cut[i] <= CODE_POINT_MAX && (k == 0 || cut[i] != cut[k - 1])) {
            cut[k++] = cut[i];
        }
    }
    return k;
}

static bool set_has(const struct regex_set *s, uint32_t cp)
{
    uint32_t lo = 0, hi = s->n;

    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;

        if (s->r[mid].hi < cp) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < s->n && s->r[lo].lo <= cp;
}

static bool classes_make(struct nfa *m)
{
    struct dfa *d = m->d;
    uint32_t n = cuts_make(m, &d->range_lo);

    m->words = (m->re.n_sets + 63) / 64 + 1;
    d->range_class = arena_array(&m->b->arena, n + 1, sizeof(*d->range_class));
    m->member = mem_try((size_t)n + 1, m->words * sizeof(uint64_t));
    if (n == 0 || d->range_class == NULL || m->member == NULL ||
        !builder_spend(m->b, (uint64_t)n * m->re.n_sets / 8)) {
        return err_set(m->b->err, ERR_LIMIT, "the expression needs too much memory");
    }
    d->n_ranges = n;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t *row = &m->member[(size_t)d->n_classes * m->words];
        uint32_t at = 0;

        if (d->range_lo[i] == 0xd800) {
            d->range_class[i] = UINT32_MAX;
            continue;
        }
        memset(row, 0, m->words * sizeof(*row));
        for (uint32_t s = 0; s < m->re.n_sets; s++) {
            row[s / 64] |= (uint64_t)set_has(&m->re.sets[s], d->range_lo[i]) << (s % 64);
        }
        while (memcmp(&m->member[(size_t)at * m->words], row, m->words * sizeof(*row)) != 0) {
            at++;
        }
        d->range_class[i] = at;
        d->n_classes += at == d->n_classes;
        if (!builder_spend(m->b, at)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        d->range_class[i] = d->range_class[i] == UINT32_MAX ? d->n_classes : d->range_class[i];
    }
    return true;
}

/* ---- subsets ---- */

static void closure_begin(struct nfa *m)
{
    m->stamp++;
    m->n_list = 0;
}

/* Adds what can be reached from `from` without a character; true: the match is among it. */
static bool closure_add(struct nfa *m, uint32_t from, bool at_start, bool at_end)
{
    uint32_t n = 0;
    bool match = false;

    m->todo[n++] = from;
    while (n > 0) {
        uint32_t at = m->todo[--n];
        const struct nfa_node *node = &m->nodes[at];

        if (m->seen[at] == m->stamp) {
            continue;
        }
        m->seen[at] = m->stamp;
        m->b->work += m->b->work < GRAMMAR_WORK_MAX - 3 ? 3 : 0;
        switch (node->kind) {
        case NFA_SET:
            m->list[m->n_list++] = at;
            break;
        case NFA_SPLIT:
            m->todo[n++] = node->out;
            m->todo[n++] = node->other;
            break;
        case NFA_START:
            if (at_start) {
                m->todo[n++] = node->out;
            }
            break;
        case NFA_END:
            m->list[m->n_list++] = at;
            if (at_end) {
                m->todo[n++] = node->out;
            }
            break;
        case NFA_MATCH:
            match = true;
            break;
        }
    }
    return match;
}

static bool row_new(struct nfa *m, uint32_t *out)
{
    struct dfa *d = m->d;
    uint32_t s = d->n_states;

    if (!builder_room(m->b, &m->subsets, &m->cap_subsets, s, GRAMMAR_STATES_MAX,
                      sizeof(*m->subsets), "states") ||
        !builder_room(m->b, &m->accept, &m->cap_accept, s, GRAMMAR_STATES_MAX, sizeof(*m->accept),
                      "states")) {
        return false;
    }
    d->n_states++;
    *out = s;
    return true;
}

/* The state of the closure in m->list; match: it is over, whatever follows (search) or right here
 * (full). initial: the first state, which is like no other. */
static bool state_of(struct nfa *m, bool match, bool initial, uint32_t *out)
{
    uint64_t h = match ? 0x51ed27 : 0x9e3779;
    struct subset *s;
    uint32_t n;

    if (match && !m->full) {
        m->n_list = 0; /* matched for good: one state for all of these */
    }
    n = m->n_list;
    qsort(m->list, n, sizeof(*m->list), by_value);
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ m->list[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 31;
    }
    h %= SUBSET_BUCKETS;
    for (uint32_t at = initial ? 0 : m->buckets[h]; at != 0; at = m->subsets[at - 1].chain) {
        s = &m->subsets[at - 1];
        if (s->n == n && (n == 0 || memcmp(s->node, m->list, n * sizeof(*s->node)) == 0) &&
            m->accept[at - 1] >> 1 == match) {
            *out = at - 1;
            return true;
        }
    }
    if (!row_new(m, out)) {
        return false;
    }
    s = &m->subsets[*out];
    *s = (struct subset){.n = n, .node = arena_array(&m->b->arena, n + 1, sizeof(*s->node))};
    if (s->node == NULL) {
        return err_set(m->b->err, ERR_LIMIT, "the expression needs too much memory");
    }
    memcpy(s->node, m->list, n * sizeof(*s->node));
    if (!initial) {
        s->chain = m->buckets[h];
        m->buckets[h] = *out + 1;
    }
    m->accept[*out] = (uint8_t)(match << 1 | match);
    closure_begin(m);
    for (uint32_t i = 0; i < n && !match; i++) {
        if (m->nodes[s->node[i]].kind == NFA_END && closure_add(m, s->node[i], initial, true)) {
            m->accept[*out] |= 1;
        }
    }
    return true;
}

/* Where class c leads from state s. */
static bool move(struct nfa *m, uint32_t s, uint32_t c, uint32_t *to)
{
    const struct subset *from = &m->subsets[s];
    const uint64_t *member = &m->member[(size_t)c * m->words];
    bool match = false, over = m->accept[s] >> 1 && !m->full;

    closure_begin(m);
    for (uint32_t i = 0; i < from->n; i++) {
        const struct nfa_node *n = &m->nodes[from->node[i]];

        if (n->kind == NFA_SET && (member[n->set / 64] >> (n->set % 64) & 1) != 0) {
            match = closure_add(m, n->out, false, false) || match;
        }
    }
    if (!m->full) {
        match = over || closure_add(m, m->start, false, false) || match;
    }
    if (!builder_spend(m->b, from->n / 2 + 3)) {
        return false;
    }
    *to = DFA_DEAD;
    return (m->n_list == 0 && !match) || state_of(m, match, false, to);
}

static bool determinise(struct nfa *m)
{
    struct dfa *d = m->d;
    uint32_t *next = NULL, first, cap = 0;
    bool ok, match;

    closure_begin(m);
    match = closure_add(m, m->start, true, false);
    ok = state_of(m, match, true, &first);
    for (uint32_t s = 0; ok && s < d->n_states; s++) {
        for (uint32_t c = 0; ok && c < d->n_classes; c++) {
            size_t at = (size_t)s * d->n_classes + c;

            ok = at < (GRAMMAR_ARENA_BYTES / 8) &&
                 builder_room(m->b, &next, &cap, (uint32_t)at, GRAMMAR_ARENA_BYTES / 8,
                              sizeof(*next), "edges") &&
                 move(m, s, c, &next[at]);
        }
    }
    if (ok) {
        d->next = arena_array(&m->b->arena, (size_t)d->n_states * d->n_classes + 1, sizeof(*next));
        d->accept = arena_array(&m->b->arena, d->n_states, sizeof(*d->accept));
        ok = d->next != NULL && d->accept != NULL;
    }
    if (ok) {
        memcpy(d->next, next, (size_t)d->n_states * d->n_classes * sizeof(*next));
        for (uint32_t s = 0; s < d->n_states; s++) {
            d->accept[s] = m->accept[s] != 0;
        }
    }
    mem_free(next);
    return ok || err_set(m->b->err, ERR_LIMIT, "the expression needs too much memory");
}

/* X{n,m} over one class and nothing else: one state and bounds of the length. */
static const struct regex_node *sole_repeat(const struct regex_node *t, bool full)
{
    const struct regex_node *at;

    if (t->kind != REGEX_SEQUENCE) {
        return NULL;
    }
    at = t->child;
    if (at != NULL && at->kind == REGEX_START) {
        at = at->next;
    } else if (!full) {
        return NULL;
    }
    if (at == NULL || at->kind != REGEX_REPEAT || at->child->kind != REGEX_SET) {
        return NULL;
    }
    t = at;
    at = at->next;
    if (at != NULL && at->kind == REGEX_END) {
        at = at->next;
    } else if (!full) {
        return NULL;
    }
    return at == NULL ? t : NULL;
}

static bool nfa_run(struct nfa *m, const struct regex_node *tree)
{
    struct builder *b = m->b;
    const struct regex_node *sole = sole_repeat(tree, m->full);
    struct regex_node loop;
    uint32_t match;

    m->d->len_max = GRAMMAR_INF;
    if (sole != NULL) {
        m->d->len_min = sole->min;
        m->d->len_max = sole->max;
        loop = *sole;
        loop.min = 0;
        loop.max = GRAMMAR_INF;
        loop.next = NULL;
        tree = &loop;
        m->full = true;
    }
    m->n = 1;
    match = builder_room(b, &m->nodes, &m->cap, 1, NFA_NODES_MAX, sizeof(*m->nodes), "states")
                ? nfa_node(m, NFA_MATCH, 0, 0)
                : 0;
    m->start = match != 0 ? emit(m, tree, match) : 0;
    if (m->start == 0) {
        return false;
    }
    m->seen = mem_try(m->n, sizeof(*m->seen));
    m->list = mem_try(m->n, sizeof(*m->list));
    m->todo = mem_try(3 * (size_t)m->n, sizeof(*m->todo));
    m->buckets = mem_try(SUBSET_BUCKETS, sizeof(*m->buckets));
    if (m->seen == NULL || m->list == NULL || m->todo == NULL || m->buckets == NULL) {
        return err_set(b->err, ERR_LIMIT, "the expression needs too much memory");
    }
    return classes_make(m) && determinise(m);
}

struct dfa *regex_compile(struct builder *b, struct str pattern, bool full)
{
    struct nfa m = {.b = b, .full = full};
    struct regex_node *tree = regex_parse(b, &m.re, pattern);
    bool ok;

    m.d = arena_alloc(&b->arena, sizeof(*m.d));
    ok = tree != NULL && m.d != NULL && nfa_run(&m, tree);
    if (!ok) {
        err_set(b->err, ERR_LIMIT, "the expression needs too much memory");
    }
    mem_free(m.re.sets);
    mem_free(m.nodes);
    mem_free(m.subsets);
    mem_free(m.accept);
    mem_free(m.seen);
    mem_free(m.list);
    mem_free(m.todo);
    mem_free(m.buckets);
    mem_free(m.member);
    return ok ? m.d : NULL;
}
