/* grammar_walk.c - all tokens at once: an automaton's stacks moved over the vocabulary's tries.
 *
 * First the trie of classes, some forty times smaller than that of bytes; what below one class
 * depends on the very character is walked by bytes. A subtree whose characters all keep a stack
 * where it is, is allowed without a walk; where characters lead back or nowhere, they tell of each
 * token without one. */
#include "worker/engine/grammar_sets.h"

/* ---- skipping ---- */

/* How many characters may follow that each lead from `loop` to itself. */
static uint32_t loop_chars(const struct grammar *g, const struct grammar_node *loop,
                           const struct grammar_stack *t)
{
    const struct grammar_guard *guard = &g->guards[loop->guards];

    if (!loop->guarded) {
        return GRAMMAR_INF;
    }
    if (loop->n_guards != 1 || t->depth + guard->need > GRAMMAR_LEVELS_MAX) {
        return 0;
    }
    if (loop->op == GRAMMAR_OP_NONE) {
        return t->count >= guard->min && t->count <= guard->max ? GRAMMAR_INF : 0;
    }
    if (loop->op != GRAMMAR_OP_INC || t->count + 1 < guard->min || t->count >= guard->max) {
        return 0;
    }
    return guard->max == GRAMMAR_INF ? guard->max : guard->max - t->count;
}

static bool stacks_keep_all(const struct walk *w, const struct set *s,
                            const struct grammar_trie_node *node, const uint64_t below[2])
{
    for (uint32_t i = 0; i < s->n; i++) {
        const struct grammar_stack *t = &w->x->stacks[s->stacks + i];
        const struct grammar_node *n = &w->g->nodes[t->node];

        if ((below[0] & ~n->loop[0]) == 0 && (below[1] & ~n->loop[1]) == 0 &&
            (node->below == 0 || (node->below == GRAMMAR_BELOW_WIDE && n->wide_to == t->node)) &&
            loop_chars(w->g, n, t) >= node->chars) {
            return true;
        }
    }
    return false;
}

/* Whatever is below the trie's node keeps one of the set's stacks where it is. */
static inline bool all_below(const struct walk *w, uint16_t set, const struct grammar_trie *trie,
                             uint32_t at)
{
    const struct grammar_trie_node *node = &trie->nodes[at];
    const struct set *s = &w->x->sets[set];
    const uint64_t *below = trie->below[at];

    return s->loops && node->chars > 0 &&
           ((below[0] & ~s->loop[0]) | (below[1] & ~s->loop[1]) | (node->below & ~s->below)) == 0 &&
           stacks_keep_all(w, s, node, below);
}

/* A character of WHOLE leads this stack back to where it is, or nowhere. */
static bool stack_closed(const struct grammar *g, const struct grammar_stack *t)
{
    const struct grammar_node *n = &g->nodes[t->node];

    if (n->n_edges == 0 || n->fork || (n->final && t->top != GRAMMAR_NO_FRAME)) {
        return false;
    }
    for (uint32_t i = 0; i < n->n_edges; i++) {
        const struct grammar_edge *e = &g->edges[n->edges + i];
        bool quote = e->lo == e->hi && (e->lo == '"' || e->lo == '\\');
        bool back = e->target == t->node && e->ret == 0 && !e->space;

        if (e->hi >= 0x20 && !quote && !back && (e->lo < 0x80 || n->wide_to != t->node)) {
            return false;
        }
    }
    return true;
}

/* All stacks are such: then a token passes when some stack is led back by all its characters. */
static bool set_closed(struct walk *w, uint16_t set)
{
    struct set *s = &w->x->sets[set];

    if (s->closed == CLOSED_UNKNOWN) {
        s->closed = s->loops ? CLOSED_YES : CLOSED_NO;
        for (uint32_t i = 0; i < s->n && s->closed == CLOSED_YES; i++) {
            s->closed = stack_closed(w->g, &w->x->stacks[s->stacks + i]) ? CLOSED_YES : CLOSED_NO;
        }
    }
    return s->closed == CLOSED_YES;
}

/* ---- walks ---- */

static void bit_set(uint32_t *bits, int32_t id)
{
    bits[id / 32] |= 1u << (id % 32);
}

static void bit_to(uint32_t *bits, int32_t id, bool value)
{
    uint32_t *word = &bits[id / 32];

    *word = (*word & ~(1u << (id % 32))) | (uint32_t)value << (id % 32);
}

static void bits_set(uint32_t *bits, const struct grammar_trie *t, uint32_t first, uint32_t end)
{
    for (uint32_t k = first; k < end; k++) {
        bit_set(bits, t->order[k]);
    }
}

static void bits_clear(uint32_t *bits, const struct grammar_trie *t, uint32_t first, uint32_t end)
{
    for (uint32_t k = first; k < end; k++) {
        bits[t->order[k] / 32] &= ~(1u << (t->order[k] % 32));
    }
}

#define SCAN_MIN 48u /* tokens; fewer are walked */

/* Tells of every token at or below a node of WHOLE whether it passes, by its characters alone. The
 * stacks of `set` are where the node leads. false: that cannot be told. */
static bool scan(struct walk *w, const struct grammar_trie *trie,
                 const struct grammar_trie_node *node, uint16_t set)
{
    const struct grammar_vocab *v = w->g->vocab;
    const struct set *s = &w->x->sets[set];
    uint32_t end = trie->nodes[node->end].first;
    struct str path = grammar_vocab_bytes(v, trie->order[node->first]);
    uint64_t out[GRAMMAR_STACKS_MAX][2]; /* characters that end a stack */

    if (end - node->first < SCAN_MIN || !set_closed(w, set)) {
        return false;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        const struct grammar_stack *t = &w->x->stacks[s->stacks + i];
        const struct grammar_node *n = &w->g->nodes[t->node];
        bool wide = n->wide_to == t->node;

        if (loop_chars(w->g, n, t) < node->chars || (node->byte >= 0x80 && !wide)) {
            return false;
        }
        for (uint32_t k = 0; k <= node->depth; k++) {
            uint8_t c = (uint8_t)path.p[k];

            if (c < 0x80 ? (n->loop[c / 64] >> (c % 64) & 1) == 0 : !wide) {
                return false; /* it may come again, where it leads nowhere */
            }
        }
        /* Bit 0 of whole_chars is any wide character; no token of WHOLE has U+0000. */
        out[i][0] = ~((n->loop[0] & ~1ull) | wide);
        out[i][1] = ~n->loop[1];
    }
    for (uint32_t k = node->first; k < end; k++) {
        const uint64_t *has = v->whole_chars[k];
        bool pass = false;

        for (uint32_t i = 0; i < s->n && !pass; i++) {
            pass = ((has[0] & out[i][0]) | (has[1] & out[i][1])) == 0;
        }
        bit_to(w->bits, trie->order[k], pass);
    }
    return true;
}

/* Tokens run .. done may come, those from there to `next` may not. */
static void run_note(struct walk *w, const struct grammar_trie *trie, uint32_t run, uint32_t done,
                     uint32_t next, bool whole)
{
    if (whole) {
        bits_clear(w->bits, trie, done, next);
    } else {
        bits_set(w->bits, trie, run, done);
    }
}

/* The first node after what `node`, reached with the set `to`, tells of: its subtree when that is
 * allowed or scanned whole. */
static inline uint32_t walk_below(struct walk *w, const struct grammar_trie *trie, uint32_t at,
                                  uint16_t to, bool *scanned)
{
    const struct grammar_trie_node *node = &trie->nodes[at];

    if (all_below(w, to, trie, at)) {
        return node->end;
    }
    *scanned = trie == &w->g->vocab->tries[GRAMMAR_TRIE_WHOLE] && scan(w, trie, node, to);
    return *scanned ? node->end : at + 1;
}

/* The nodes first .. end of a trie over bytes; these are whole subtrees from the top. The bits of
 * their tokens are all clear, or all set when `whole`. Tokens run .. done are allowed one after the
 * other and not yet noted. */
static void walk_bytes(struct walk *w, const struct grammar_trie *trie, uint32_t first,
                       uint32_t end, bool whole)
{
    const struct grammar_trie_node *nodes = trie->nodes;
    uint32_t run = nodes[first].first, done = run;

    for (uint32_t i = first; i < end;) {
        const struct grammar_trie_node node = nodes[i];
        uint16_t to = walk_byte(w, node.depth, node.byte);
        bool scanned = false;

        if (to == SET_DEAD) {
            i = node.end;
            continue;
        }
        path_set(w, node.depth + 1u, to);
        i++;
        if (w->x->sets[to].loops && i < node.end) {
            i = walk_below(w, trie, i - 1, to, &scanned);
        }
        if (node.first > done || scanned) {
            run_note(w, trie, run, done, node.first, whole);
            run = scanned ? nodes[i].first : node.first;
        }
        done = nodes[i].first;
    }
    run_note(w, trie, run, done, nodes[end].first, whole);
}

/* Tokens order[first .. end) of the trie of classes, by their bytes. */
static void walk_tokens(struct walk *w, const struct grammar_trie *trie, uint32_t first,
                        uint32_t end)
{
    struct str last = {"", 0};
    size_t alive = 0; /* bytes of `last` that were taken */

    for (uint32_t k = first; k < end; k++) {
        struct str s = grammar_vocab_bytes(w->g->vocab, trie->order[k]);
        size_t at = 0, most = size_min(s.n, last.n);
        uint16_t to = SET_FIRST;

        while (at < most && s.p[at] == last.p[at]) {
            at++;
        }
        if (at > alive) {
            continue; /* dies where the last one did */
        }
        for (; at < s.n; at++) {
            to = walk_byte(w, (uint32_t)at, (uint8_t)s.p[at]);
            if (to == SET_DEAD) {
                break;
            }
            path_set(w, (uint32_t)at + 1, to);
        }
        alive = at;
        last = s;
        if (at == s.n) {
            bit_set(w->bits, trie->order[k]);
        }
    }
}

/* What of WHOLE the classes do not decide: stretches of the trie's order under one top node. */
#define TORN_MAX 256u
#define TORN_SHARE 8u /* a smaller part is walked token by token */
struct torn {
    struct {
        uint32_t first, end;
    } part[TORN_MAX];
    uint32_t n, tokens, most;
    bool all; /* more than that */
};

static void torn_add(struct torn *t, uint32_t first, uint32_t end)
{
    t->tokens += end - first;
    t->all = t->all || t->n == TORN_MAX || t->tokens > t->most;
    if (!t->all) {
        t->part[t->n].first = first;
        t->part[t->n++].end = end;
    }
}

/* Subtree by subtree of WHOLE whose first byte is of this class. */
static void walk_class_bytes(struct walk *w, uint8_t class, bool whole)
{
    const struct grammar_trie *trie = &w->g->vocab->tries[GRAMMAR_TRIE_WHOLE];

    const uint32_t *top = w->g->vocab->whole_top;
    uint32_t last = class == GRAMMAR_CLASS_WIDE ? 255 : grammar_class_last(class);

    walk_bytes(w, trie, top[class], top[last + 1], whole);
}

static void walk_torn(struct walk *w, const struct torn *t, uint32_t top, bool whole)
{
    const struct grammar_trie *trie = &w->g->vocab->tries[GRAMMAR_TRIE_CLASSES];
    const struct grammar_trie_node *node = &trie->nodes[top];

    if (t->all) {
        if (whole) { /* as if nothing had been walked */
            bits_set(w->bits, trie, node->first, trie->nodes[node->end].first);
        }
        walk_class_bytes(w, node->byte, whole);
        return;
    }
    for (uint32_t i = 0; i < t->n; i++) {
        walk_tokens(w, trie, t->part[i].first, t->part[i].end);
    }
}

/* One subtree from the top. The bits of its tokens are all clear, or all set when `whole`. */
static void walk_classes(struct walk *w, uint32_t top, bool whole)
{
    const struct grammar_trie *trie = &w->g->vocab->tries[GRAMMAR_TRIE_CLASSES];
    uint32_t end = trie->nodes[top].end, done = trie->nodes[top].first;
    struct torn torn;

    torn.n = torn.tokens = 0;
    torn.most = (trie->nodes[end].first - done) / TORN_SHARE;
    torn.all = false;
    for (uint32_t i = top; i < end && !torn.all;) {
        const struct grammar_trie_node *node = &trie->nodes[i];
        uint32_t d = node->depth;
        uint16_t to = grammar_walk_class(w, d, node->byte);

        if (to == SET_DEAD || to == SET_TORN) {
            i = node->end;
            if (to == SET_TORN) {
                torn_add(&torn, node->first, trie->nodes[i].first);
            }
            continue;
        }
        path_set(w, d + 1, to);
        i = all_below(w, to, trie, i) ? node->end : i + 1;
        if (whole) {
            bits_clear(w->bits, trie, done, node->first);
        } else {
            bits_set(w->bits, trie, node->first, trie->nodes[i].first);
        }
        done = trie->nodes[i].first;
    }
    if (whole && !torn.all) {
        bits_clear(w->bits, trie, done, trie->nodes[end].first);
    }
    if (torn.n > 0 || torn.all) {
        walk_torn(w, &torn, top, whole);
    }
}

static void walk_whole(struct walk *w)
{
    const struct grammar_vocab *v = w->g->vocab;
    const struct grammar_trie *trie = &v->tries[GRAMMAR_TRIE_CLASSES];
    const struct set *s = &w->x->sets[w->path[0]];
    bool whole = false;

    for (uint32_t i = 0; i < s->n; i++) { /* in a text: most of it may well come */
        whole |= w->g->nodes[w->x->stacks[s->stacks + i].node].wide_to != 0;
    }

    if (whole) {
        memcpy(w->bits, v->whole, v->words * sizeof(*w->bits));
    }
    for (uint32_t i = 0; i < trie->n; i = trie->nodes[i].end) {
        walk_classes(w, i, whole);
    }
}

bool grammar_walk(const struct grammar *g, struct grammar_scratch *x, const struct grammar_state *s,
                  uint32_t *bits)
{
    const struct grammar_trie *rest = &g->vocab->tries[GRAMMAR_TRIE_REST];
    struct walk w;

    if (grammar_walk_begin(&w, g, x, s, bits)) {
        walk_whole(&w);
        walk_bytes(&w, rest, 0, rest->n, false);
    }
    grammar_walk_end(&w);
    return !w.failed;
}
