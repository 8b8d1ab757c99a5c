/* grammar_automaton.c - stacks moving over bytes, and the state of one answer.
 *
 * Frames of all stacks form a tree that shares what is equal; a push adds one frame, a pop drops
 * none: what is dead goes when a token is complete (state_store). */
#include "worker/engine/grammar_internal.h"

const struct grammar_edge *grammar_edge_find(const struct grammar *g, uint32_t node, uint8_t byte)
{
    const struct grammar_node *n = &g->nodes[node];
    const struct grammar_edge *e = g->edges + n->edges;

    for (uint32_t i = 0; i < n->n_edges && e[i].lo <= byte; i++) {
        if (byte <= e[i].hi) {
            return e + i;
        }
    }
    return NULL;
}

static bool guards_fit(const struct grammar *g, const struct grammar_node *n,
                       const struct grammar_stack *t)
{
    const struct grammar_guard *guards = g->guards + n->guards;

    for (uint32_t i = 0; i < n->n_guards; i++) {
        if (guards[i].min <= t->count && t->count <= guards[i].max &&
            t->depth + guards[i].need <= GRAMMAR_LEVELS_MAX) {
            return true;
        }
    }
    return !n->guarded;
}

bool grammar_enter(const struct grammar *g, struct grammar_stack *t)
{
    const struct grammar_node *n = &g->nodes[t->node];

    t->count += n->op == GRAMMAR_OP_INC;
    if (!guards_fit(g, n, t)) {
        return false;
    }
    if (n->op == GRAMMAR_OP_SET) {
        t->count = n->set;
    }
    return true;
}

static bool is_final(const struct grammar_node *n, const struct grammar_stack *t)
{
    return n->final && t->count >= n->final_min;
}

bool grammar_pop(const struct grammar *g, const struct grammar_pool *pool, struct grammar_stack *t)
{
    const struct grammar_frame *f;

    if (t->top == GRAMMAR_NO_FRAME || !is_final(&g->nodes[t->node], t)) {
        return false;
    }
    f = &pool->frames[t->top];
    t->node = f->node;
    t->count = f->count;
    t->top = f->parent;
    t->depth--;
    return grammar_enter(g, t);
}

bool grammar_stack_equal(const struct grammar_stack *a, const struct grammar_stack *b)
{
    return a->node == b->node && a->count == b->count && a->top == b->top && a->space == b->space &&
           a->depth == b->depth;
}

/* Adds t after entering `node`; ended values are left at once, so that equal stacks look equal. */
static void arrive(const struct grammar *g, struct grammar_pool *pool, struct grammar_stack t,
                   uint32_t node, struct grammar_stack *out, uint32_t *n)
{
    uint32_t dear = 0;

    t.node = node;
    if (!grammar_enter(g, &t)) {
        return;
    }
    while (g->nodes[t.node].n_edges == 0 && !g->nodes[t.node].has_token &&
           t.top != GRAMMAR_NO_FRAME) {
        if (!grammar_pop(g, pool, &t)) {
            return;
        }
    }
    for (uint32_t i = 0; i < *n; i++) {
        if (out[i].node == t.node && grammar_stack_equal(&out[i], &t)) {
            return;
        }
    }
    for (uint32_t i = 0; i < *n && g->nodes[t.node].dear; i++) {
        dear += g->nodes[out[i].node].dear;
    }
    /* Stacks enter strings at the same byte, so they meet here whatever brought them. */
    if (*n < GRAMMAR_STACKS_MAX && (!g->nodes[t.node].dear || dear < GRAMMAR_DEAR_MAX)) {
        out[(*n)++] = t;
    }
}

static void arrive_all(const struct grammar *g, struct grammar_pool *pool, struct grammar_stack t,
                       uint32_t node, struct grammar_stack *out, uint32_t *n)
{
    const struct grammar_node *to = &g->nodes[node];

    if (!to->fork) {
        arrive(g, pool, t, node, out, n);
        return;
    }
    for (uint32_t i = 0; i < to->n_edges; i++) {
        arrive(g, pool, t, g->edges[to->edges + i].target, out, n);
    }
}

uint32_t grammar_step(const struct grammar *g, struct grammar_pool *pool,
                      const struct grammar_stack *in, uint32_t n, uint8_t byte,
                      struct grammar_stack *out)
{
    uint32_t n_out = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct grammar_stack t = in[i];
        const struct grammar_edge *e;

        while ((e = grammar_edge_find(g, t.node, byte)) == NULL && grammar_pop(g, pool, &t)) {
        }
        if (e == NULL || (e->space && t.space == GRAMMAR_SPACE_MAX)) {
            continue;
        }
        if (e->space) {
            t.space++;
            if (n_out < GRAMMAR_STACKS_MAX) {
                out[n_out++] = t;
            }
            continue;
        }
        t.space = 0;
        if (e->ret != 0) {
            CHECK(pool->n < pool->cap);
            pool->frames[pool->n] = (struct grammar_frame){e->ret, t.count, t.top};
            t.top = (uint16_t)pool->n++;
            t.count = 0;
            t.depth++;
        }
        arrive_all(g, pool, t, e->target, out, &n_out);
    }
    return n_out;
}

uint32_t grammar_step_token(const struct grammar *g, struct grammar_pool *pool,
                            const struct grammar_stack *in, uint32_t n, int32_t token,
                            struct grammar_stack *out)
{
    uint32_t n_out = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct grammar_stack t = in[i];

        do {
            for (uint32_t k = 0; g->nodes[t.node].has_token && k < g->n_tokens; k++) {
                if (g->tokens[k].node == t.node && g->tokens[k].token == token) {
                    t.space = 0;
                    arrive_all(g, pool, t, g->tokens[k].target, out, &n_out);
                }
            }
        } while (grammar_pop(g, pool, &t));
    }
    return n_out;
}

void grammar_state_init(const struct grammar *g, struct grammar_state *s)
{
    (void)g;
    s->n_stacks = 1;
    s->n_frames = 0;
    s->ended = false;
    s->stacks[0] = (struct grammar_stack){.node = GRAMMAR_START, .top = GRAMMAR_NO_FRAME};
}

void grammar_state_copy(struct grammar_state *to, const struct grammar_state *from)
{
    to->n_stacks = from->n_stacks;
    to->n_frames = from->n_frames;
    to->ended = from->ended;
    memcpy(to->stacks, from->stacks, from->n_stacks * sizeof(to->stacks[0]));
    memcpy(to->frames, from->frames, from->n_frames * sizeof(to->frames[0]));
}

#define ACCEPT_FRAMES (2 * GRAMMAR_FRAMES_MAX)

/* One token on its way: stacks over a pool of their own. */
struct accept {
    struct grammar_stack stacks[2][GRAMMAR_STACKS_MAX];
    uint32_t n, side;
    struct grammar_pool pool;
    struct grammar_frame frames[ACCEPT_FRAMES];
};

/* The index of an equal frame in to[0..*n), added when there is none; NO_FRAME: no room. */
static uint16_t frame_intern(struct grammar_frame *to, uint32_t *n, struct grammar_frame f)
{
    for (uint32_t i = 0; i < *n; i++) {
        if (to[i].node == f.node && to[i].count == f.count && to[i].parent == f.parent) {
            return (uint16_t)i;
        }
    }
    if (*n == GRAMMAR_FRAMES_MAX) {
        return GRAMMAR_NO_FRAME;
    }
    to[*n] = f;
    return (uint16_t)(*n)++;
}

/* Copies the frames under `top` to the state, bottom first. false: no room. */
static bool frames_store(struct grammar_state *s, const struct grammar_frame *from, uint16_t top,
                         uint16_t *out)
{
    uint16_t chain[GRAMMAR_LEVELS_MAX + 1];
    uint32_t n = 0;

    *out = GRAMMAR_NO_FRAME;
    for (; top != GRAMMAR_NO_FRAME; top = from[top].parent) {
        CHECK(n < ARRAY_LEN(chain));
        chain[n++] = top;
    }
    while (n > 0) {
        struct grammar_frame f = from[chain[--n]];

        f.parent = *out;
        *out = frame_intern(s->frames, &s->n_frames, f);
        if (*out == GRAMMAR_NO_FRAME) {
            return false;
        }
    }
    return true;
}

/* The state in its one form: only living frames, equal ones once, no stack twice. */
static void state_store(struct grammar_state *s, const struct grammar_frame *frames,
                        const struct grammar_stack *stacks, uint32_t n)
{
    s->n_stacks = 0;
    s->n_frames = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct grammar_stack t = stacks[i];
        bool twice = false;

        /* A stack without room is one alternative less, as past GRAMMAR_STACKS_MAX. */
        if (!frames_store(s, frames, t.top, &t.top)) {
            continue;
        }
        for (uint32_t k = 0; k < s->n_stacks; k++) {
            twice = twice || grammar_stack_equal(&s->stacks[k], &t);
        }
        if (!twice) {
            s->stacks[s->n_stacks++] = t;
        }
    }
}

static void accept_load(struct accept *a, const struct grammar_state *s)
{
    a->side = 0;
    a->n = s->n_stacks;
    memcpy(a->stacks[0], s->stacks, s->n_stacks * sizeof(s->stacks[0]));
    a->pool = (struct grammar_pool){a->frames, s->n_frames, ACCEPT_FRAMES};
    memcpy(a->frames, s->frames, s->n_frames * sizeof(s->frames[0]));
}

static bool accept_run(const struct grammar *g, struct accept *a, struct str bytes,
                       struct grammar_state *scratch)
{
    for (size_t i = 0; i < bytes.n && a->n > 0; i++) {
        if (a->pool.n + a->n > a->pool.cap) {
            state_store(scratch, a->frames, a->stacks[a->side], a->n);
            accept_load(a, scratch);
        }
        a->n = grammar_step(g, &a->pool, a->stacks[a->side], a->n, (uint8_t)bytes.p[i],
                            a->stacks[1 - a->side]);
        a->side = 1 - a->side;
    }
    return a->n > 0;
}

bool grammar_accept_bytes(const struct grammar *g, struct grammar_state *s, struct str bytes)
{
    struct accept a;
    struct grammar_state scratch;

    if (s->ended) {
        return false;
    }
    accept_load(&a, s);
    if (!accept_run(g, &a, bytes, &scratch)) {
        return false;
    }
    state_store(s, a.frames, a.stacks[a.side], a.n);
    return true;
}

/* A token named by the grammar; its spelling, if it has one, is another way to go on. */
static bool accept_named(const struct grammar *g, struct grammar_state *s, int32_t id)
{
    struct accept a;
    uint32_t n;

    accept_load(&a, s);
    n = grammar_step_token(g, &a.pool, a.stacks[0], a.n, id, a.stacks[1]);
    if (n == 0) {
        return false;
    }
    state_store(s, a.frames, a.stacks[1], n);
    return true;
}

bool grammar_accept_token(const struct grammar *g, struct grammar_state *s, int32_t id)
{
    struct str bytes;

    if (s->ended || id < 0 || (uint32_t)id >= g->vocab->count) {
        return false;
    }
    if (accept_named(g, s, id)) {
        return true;
    }
    if (grammar_vocab_is_eos(g->vocab, id)) {
        s->ended = grammar_accepting(g, s);
        return s->ended;
    }
    bytes = grammar_vocab_bytes(g->vocab, id);
    return bytes.n > 0 && bytes.n <= GRAMMAR_TOKEN_BYTES_MAX && grammar_accept_bytes(g, s, bytes);
}

bool grammar_accepting(const struct grammar *g, const struct grammar_state *s)
{
    struct grammar_pool pool = {(struct grammar_frame *)s->frames, s->n_frames, s->n_frames};

    for (uint32_t i = 0; i < s->n_stacks && !s->ended; i++) {
        struct grammar_stack t = s->stacks[i];

        while (grammar_pop(g, &pool, &t)) {
        }
        if (t.top == GRAMMAR_NO_FRAME && is_final(&g->nodes[t.node], &t)) {
            return true;
        }
    }
    return false;
}

bool grammar_finished(const struct grammar *g, const struct grammar_state *s)
{
    if (s->ended) {
        return true;
    }
    for (uint32_t i = 0; i < s->n_stacks; i++) {
        const struct grammar_node *n = &g->nodes[s->stacks[i].node];

        if (s->stacks[i].top != GRAMMAR_NO_FRAME || n->n_edges > 0 || n->has_token) {
            return false;
        }
    }
    return grammar_accepting(g, s);
}
