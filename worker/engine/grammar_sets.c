/* grammar_sets.c - see grammar_sets.h. */
#include "worker/engine/grammar_sets.h"

#define FRAMES_MAX 16384u
#define ROW_CELLS_MAX (256 * GRAMMAR_SETS_MAX)
#define SET_STACKS_MAX (16 * GRAMMAR_SETS_MAX)
#define KEEP_BYTES_MAX (256u << 10) /* of one array, from walk to walk */
/* The most that one step adds: a class of wide characters takes two bytes. */
#define STEP_SETS 2u
#define STEP_STACKS (STEP_SETS * GRAMMAR_STACKS_MAX)

struct grammar_scratch *grammar_scratch_new(void)
{
    return mem_try(1, sizeof(struct grammar_scratch));
}

void grammar_scratch_free(struct grammar_scratch *x)
{
    if (x == NULL) {
        return;
    }
    mem_free(x->sets);
    mem_free(x->stacks);
    mem_free(x->rows);
    mem_free(x->classes);
    mem_free(x->frames);
    mem_free(x);
}

size_t grammar_scratch_bytes(const struct grammar_scratch *x)
{
    return sizeof(*x) + x->cap_sets * sizeof(*x->sets) + x->cap_stacks * sizeof(*x->stacks) +
           x->cap_rows * sizeof(*x->rows) + x->cap_classes * sizeof(*x->classes) +
           x->cap_frames * sizeof(*x->frames);
}

/* Room for `more` beside the `have`: at most `max` in all, so the memory is bounded by us. false:
 * no memory; the array is as before. */
static bool room(void *array_p, uint32_t *cap, uint32_t have, uint32_t more, uint32_t max,
                 size_t size)
{
    uint32_t want = *cap > 0 ? *cap : 64;
    void *p;

    CHECK(have + more <= max);
    if (have + more <= *cap) {
        return true;
    }
    while (want < have + more) {
        want *= 2;
    }
    memcpy(&p, array_p, sizeof(p)); /* a pointer to whatever the array holds */
    p = mem_resize(p, want * size);
    if (p == NULL) {
        return false;
    }
    memcpy(array_p, &p, sizeof(p));
    *cap = want;
    return true;
}

static void *trim(void *p, uint32_t *cap, size_t size)
{
    if (*cap * size <= KEEP_BYTES_MAX) {
        return p;
    }
    mem_free(p);
    *cap = 0;
    return NULL;
}

/* Row 0 of the classes, of sets that have none yet, knows nothing. */
static bool scratch_empty(struct grammar_scratch *x)
{
    x->n_sets = SET_FIRST;
    x->n_stacks = x->n_frames = 0;
    memset(x->buckets, 0, sizeof(x->buckets));
    if (!room(&x->classes, &x->cap_classes, 0, 1, GRAMMAR_SETS_MAX, sizeof(*x->classes))) {
        return false;
    }
    memset(x->classes, 0, sizeof(*x->classes));
    x->n_classes = 1;
    return true;
}

static void scratch_trim(struct grammar_scratch *x)
{
    x->sets = trim(x->sets, &x->cap_sets, sizeof(*x->sets));
    x->stacks = trim(x->stacks, &x->cap_stacks, sizeof(*x->stacks));
    x->rows = trim(x->rows, &x->cap_rows, sizeof(*x->rows));
    x->classes = trim(x->classes, &x->cap_classes, sizeof(*x->classes));
    x->frames = trim(x->frames, &x->cap_frames, sizeof(*x->frames));
}

/* ---- sets ---- */

static uint32_t stacks_hash(const struct grammar_stack *t, uint32_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u + n;

    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ ((uint64_t)t[i].node << 32 | t[i].count)) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
        h = (h ^ ((uint64_t)t[i].top << 16 | (uint32_t)t[i].space << 8 | t[i].depth)) *
            0xc4ceb9fe1a85ec53u;
        h ^= h >> 29;
    }
    return (uint32_t)h;
}

static bool set_is(const struct grammar_scratch *x, const struct set *s,
                   const struct grammar_stack *t, uint32_t n, uint32_t hash)
{
    if (s->hash != hash || s->n != n) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!grammar_stack_equal(&x->stacks[s->stacks + i], &t[i])) {
            return false;
        }
    }
    return true;
}

/* One set more, of n stacks, has room. false: no memory, the walk has failed. */
static bool set_room(struct walk *w, uint32_t n)
{
    struct grammar_scratch *x = w->x;
    uint32_t row = w->g->n_alphabet;
    bool ok;

    ok = room(&x->sets, &x->cap_sets, x->n_sets, 1, GRAMMAR_SETS_MAX, sizeof(*x->sets)) &&
         room(&x->stacks, &x->cap_stacks, x->n_stacks, n, SET_STACKS_MAX, sizeof(*x->stacks)) &&
         room(&x->rows, &x->cap_rows, x->n_sets * row, row, ROW_CELLS_MAX, sizeof(*x->rows));
    w->failed = w->failed || !ok;
    return ok;
}

/* The number of the set of these stacks; SET_DEAD: no memory. */
static uint16_t set_of(struct walk *w, const struct grammar_stack *t, uint32_t n)
{
    struct grammar_scratch *x = w->x;
    uint32_t hash = stacks_hash(t, n), at = hash % GRAMMAR_SET_BUCKETS;
    uint32_t row = w->g->n_alphabet;
    struct set s = {.hash = hash, .stacks = x->n_stacks, .n = (uint16_t)n};

    for (; x->buckets[at] != 0; at = (at + 1) % GRAMMAR_SET_BUCKETS) {
        if (set_is(x, &x->sets[x->buckets[at]], t, n, hash)) {
            return x->buckets[at];
        }
    }
    if (!set_room(w, n)) {
        return SET_DEAD;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct grammar_node *node = &w->g->nodes[t[i].node];

        s.loop[0] |= node->loop[0];
        s.loop[1] |= node->loop[1];
        s.below |= node->wide_to == t[i].node ? GRAMMAR_BELOW_WIDE : 0;
    }
    s.loops = (s.loop[0] | s.loop[1] | s.below) != 0;
    memcpy(x->stacks + x->n_stacks, t, n * sizeof(*t));
    x->n_stacks += n;
    memset(x->rows + x->n_sets * row, 0, row * sizeof(*x->rows));
    x->buckets[at] = (uint16_t)x->n_sets;
    x->sets[x->n_sets] = s;
    return (uint16_t)x->n_sets++;
}

static uint16_t *row_of(struct walk *w, uint16_t set)
{
    return w->x->rows + set * w->g->n_alphabet;
}

/* NULL: no memory, the walk has failed. */
static uint16_t *classes_of(struct walk *w, uint16_t set)
{
    struct grammar_scratch *x = w->x;

    if (x->sets[set].classes == 0) {
        if (!room(&x->classes, &x->cap_classes, x->n_classes, 1, GRAMMAR_SETS_MAX,
                  sizeof(*x->classes))) {
            w->failed = true;
            return NULL;
        }
        memset(&x->classes[x->n_classes], 0, sizeof(*x->classes));
        x->sets[set].classes = (uint16_t)x->n_classes++;
    }
    return x->classes[x->sets[set].classes].to;
}

/* The frame that is like f, added when there is none: there is room. */
static uint16_t frame_of(struct walk *w, uint32_t from, struct grammar_frame f)
{
    struct grammar_scratch *x = w->x;

    for (uint32_t i = from; i < x->n_frames; i++) {
        const struct grammar_frame *o = &x->frames[i];

        if (o->node == f.node && o->count == f.count && o->parent == f.parent) {
            return (uint16_t)i;
        }
    }
    CHECK(x->n_frames < x->cap_frames);
    x->frames[x->n_frames] = f;
    return (uint16_t)x->n_frames++;
}

/* The chain of `old` under top, again; the state's own frames are where they were. */
static uint16_t chain_of(struct walk *w, const struct grammar_frame *old, uint16_t top)
{
    uint16_t chain[GRAMMAR_LEVELS_MAX + 1];
    uint32_t n = 0;

    for (; top != GRAMMAR_NO_FRAME && top >= w->state_frames; top = old[top].parent) {
        CHECK(n < ARRAY_LEN(chain));
        chain[n++] = top;
    }
    while (n > 0) {
        struct grammar_frame f = old[chain[--n]];

        f.parent = top;
        top = frame_of(w, w->state_frames, f);
    }
    return top;
}

/* Empties a scratch whose arrays of sets, stacks and frames are new: there is room for all of the
 * path and its frames. false: no memory, and it is as before. */
static bool scratch_renew(struct walk *w)
{
    struct grammar_scratch *x = w->x, new = {.n_sets = 0};
    uint32_t sets = SET_FIRST + w->depth + 1;

    if (!room(&new.sets, &new.cap_sets, 0, sets, GRAMMAR_SETS_MAX, sizeof(*new.sets)) ||
        !room(&new.stacks, &new.cap_stacks, 0, sets * GRAMMAR_STACKS_MAX, SET_STACKS_MAX,
              sizeof(*new.stacks)) ||
        !room(&new.frames, &new.cap_frames, 0, x->n_frames + 1, FRAMES_MAX, sizeof(*new.frames))) {
        mem_free(new.sets);
        mem_free(new.stacks);
        mem_free(new.frames);
        return false;
    }
    x->sets = new.sets;
    x->stacks = new.stacks;
    x->frames = new.frames;
    x->cap_sets = new.cap_sets;
    x->cap_stacks = new.cap_stacks;
    x->cap_frames = new.cap_frames;
    CHECK(scratch_empty(x)); /* a row of classes is there */
    return true;
}

/* Forgets all sets but those of the path. false: no memory, and they are as before. */
static bool walk_shrink(struct walk *w)
{
    struct grammar_scratch *x = w->x;
    struct set *sets = x->sets;
    struct grammar_stack *stacks = x->stacks;
    struct grammar_frame *frames = x->frames;

    if (!scratch_renew(w)) {
        return false;
    }
    memcpy(x->frames, frames, w->state_frames * sizeof(*x->frames));
    x->n_frames = w->state_frames;
    for (uint32_t d = 0; d <= w->depth; d++) {
        const struct set *s = &sets[w->path[d]];
        struct grammar_stack t[GRAMMAR_STACKS_MAX];

        for (uint32_t i = 0; i < s->n; i++) {
            t[i] = stacks[s->stacks + i];
            t[i].top = chain_of(w, frames, t[i].top);
        }
        path_set(w, d, set_of(w, t, s->n));
    }
    mem_free(sets);
    mem_free(stacks);
    mem_free(frames);
    return true;
}

/* One step from any set of the path has room afterwards, but for memory. false: no memory, the walk
 * has failed. */
static bool walk_room(struct walk *w)
{
    struct grammar_scratch *x = w->x;

    if (x->n_sets + STEP_SETS > GRAMMAR_SETS_MAX || x->n_stacks + STEP_STACKS > SET_STACKS_MAX ||
        x->n_frames + STEP_STACKS > FRAMES_MAX) {
        w->failed = w->failed || !walk_shrink(w);
    }
    return !w->failed;
}

/* ---- steps ---- */

/* Frames pushed in this step that are like older ones become these. */
static void frames_share(struct walk *w, struct grammar_stack *t, uint32_t n, uint32_t had)
{
    struct grammar_scratch *x = w->x;
    struct grammar_frame pushed[GRAMMAR_STACKS_MAX];
    uint32_t n_pushed = x->n_frames - had;

    memcpy(pushed, x->frames + had, n_pushed * sizeof(*pushed));
    x->n_frames = had;
    for (uint32_t i = 0; i < n && n_pushed > 0; i++) {
        if (t[i].top != GRAMMAR_NO_FRAME && t[i].top >= had) {
            t[i].top = frame_of(w, w->state_frames, pushed[t[i].top - had]);
        }
    }
}

/* The bytes beside `byte` that lead this stack to the same place: lo .. hi are narrowed to them. */
static void stack_alike(const struct walk *w, struct grammar_stack t, uint8_t byte, uint8_t *lo,
                        uint8_t *hi)
{
    const struct grammar *g = w->g;
    const struct grammar_pool pool = {w->x->frames, w->x->n_frames, w->x->n_frames};

    do {
        const struct grammar_node *n = &g->nodes[t.node];
        const struct grammar_edge *e = g->edges + n->edges, *end = e + n->n_edges;
        uint8_t before = 0;

        while (e < end && e->hi < byte) {
            before = e++->hi + 1;
        }
        if (e < end && e->lo <= byte) {
            *lo = e->lo > *lo ? e->lo : *lo;
            *hi = e->hi < *hi ? e->hi : *hi;
            return;
        }
        *lo = before > *lo ? before : *lo;
        *hi = e < end && e->lo - 1 < *hi ? e->lo - 1 : *hi;
    } while (grammar_pop(g, &pool, &t));
}

static uint16_t step_byte(struct walk *w, uint16_t set, uint8_t byte)
{
    struct grammar_scratch *x = w->x;
    const struct grammar_stack *in;
    struct grammar_stack out[GRAMMAR_STACKS_MAX];
    struct grammar_pool pool;
    uint32_t n, had = x->n_frames;
    uint16_t to = row_of(w, set)[w->g->alphabet[byte]], *row;
    uint8_t lo = 0, hi = 255;

    if (to != SET_UNKNOWN) {
        return to;
    }
    if (!room(&x->frames, &x->cap_frames, had, GRAMMAR_STACKS_MAX, FRAMES_MAX,
              sizeof(*x->frames))) {
        w->failed = true;
        return SET_DEAD;
    }
    in = x->stacks + x->sets[set].stacks;
    for (uint32_t i = 0; i < x->sets[set].n; i++) {
        stack_alike(w, in[i], byte, &lo, &hi);
    }
    pool = (struct grammar_pool){x->frames, had, had + GRAMMAR_STACKS_MAX};
    n = grammar_step(w->g, &pool, in, x->sets[set].n, byte, out);
    x->n_frames = pool.n;
    frames_share(w, out, n, had);
    to = n == 0 ? SET_DEAD : set_of(w, out, n);
    row = row_of(w, set);
    for (uint32_t k = w->g->alphabet[lo]; k <= w->g->alphabet[hi]; k++) {
        row[k] = to;
    }
    return to;
}

/* All characters of the class lead this stack to one place. */
static bool stack_is_uniform(const struct walk *w, struct grammar_stack t, uint8_t class)
{
    const struct grammar *g = w->g;
    uint8_t lo = 0, hi = 255;

    if (class != GRAMMAR_CLASS_WIDE) {
        stack_alike(w, t, class, &lo, &hi);
        return lo <= class && hi >= grammar_class_last(class);
    }
    if (g->nodes[t.node].wide_to != 0) {
        return true;
    }
    stack_alike(w, t, 0xff, &lo, &hi); /* no byte of UTF-8: in a gap that has to hold all others */
    return lo <= 0x80;
}

static uint16_t step_class(struct walk *w, uint16_t set, uint8_t class)
{
    const struct set *s = &w->x->sets[set];
    uint16_t to = SET_DEAD, *row;
    bool uniform = true;

    for (uint32_t i = 0; i < s->n && uniform; i++) {
        uniform = stack_is_uniform(w, w->x->stacks[s->stacks + i], class);
    }
    if (!uniform) {
        to = SET_TORN;
    } else if (class == GRAMMAR_CLASS_WIDE) { /* one stands for all: U+00E9 */
        to = step_byte(w, set, 0xc3);
        to = to == SET_DEAD ? to : step_byte(w, to, 0xa9);
    } else {
        to = step_byte(w, set, class);
    }
    row = classes_of(w, set);
    if (row == NULL) {
        return SET_DEAD;
    }
    row[class] = to;
    return to;
}

uint16_t grammar_walk_byte_new(struct walk *w, uint32_t d, uint8_t byte)
{
    w->depth = d;
    return walk_room(w) ? step_byte(w, w->path[d], byte) : SET_DEAD;
}

uint16_t grammar_walk_class(struct walk *w, uint32_t d, uint8_t class)
{
    uint16_t to = w->x->classes[w->x->sets[w->path[d]].classes].to[class];

    if (to != SET_UNKNOWN) {
        return to;
    }
    w->depth = d;
    return walk_room(w) ? step_class(w, w->path[d], class) : SET_DEAD;
}

/* ---- the walk's life ---- */

bool grammar_walk_begin(struct walk *w, const struct grammar *g, struct grammar_scratch *x,
                        const struct grammar_state *s, uint32_t *bits)
{
    w->g = g;
    w->x = x;
    w->bits = bits;
    w->state_frames = s->n_frames;
    w->depth = 0;
    w->failed =
        !scratch_empty(x) ||
        !room(&x->frames, &x->cap_frames, 0, s->n_frames + 1, FRAMES_MAX, sizeof(*x->frames)) ||
        !room(&x->sets, &x->cap_sets, 0, SET_FIRST, GRAMMAR_SETS_MAX, sizeof(*x->sets));
    if (w->failed) {
        return false;
    }
    memcpy(x->frames, s->frames, s->n_frames * sizeof(*x->frames));
    x->n_frames = s->n_frames;
    path_set(w, 0, set_of(w, s->stacks, s->n_stacks));
    return !w->failed;
}

void grammar_walk_end(struct walk *w)
{
    scratch_trim(w->x);
}
