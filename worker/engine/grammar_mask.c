/* grammar_mask.c - which tokens may come next: the walk over the tries, and the masks kept.
 *
 * A mask is kept under what a token can see of a state: the nodes and counters of as many frames as
 * one token can close, counters only as far as one token can reach a bound of theirs. */
#include <stdlib.h>

#include "worker/engine/grammar_internal.h"

#define CACHE_BUCKETS 1024u /* power of two */
#define CACHE_MASKS_MAX 8192u
#define KEY_STACK_WORDS (4 + 2 * (GRAMMAR_LEVELS_MAX + 1))
#define KEY_WORDS_MAX (GRAMMAR_STACKS_MAX * KEY_STACK_WORDS)

/* One mask, as ids when these are fewer words than the bits. */
struct cache_entry {
    struct cache_entry *chain; /* same bucket */
    struct cache_entry *newer; /* order of making */
    uint64_t hash;
    uint32_t key_words, data_words;
    uint32_t allowed;
    bool ids;
    uint32_t words[]; /* key, then data */
};

/* The moves of one node that a walk meets again and again, by byte. */
#define ROWS 1024u    /* power of two; 1 MB a grammar that walks long */
#define ROW_VISITS 6u /* then a row is made */
#define ROW_DEAD 0u   /* no way on */
#define ROW_SLOW                                                                                   \
    1u /* pops, pushes, forks, white space, ends: grammar_step knows (1: no target)                \
        */
#define ROW_ENTER (1u << 31) /* the target has an op or guards */

struct row {
    uint32_t node;
    uint32_t visits; /* the row is made at ROW_VISITS */
    uint32_t to[256];
};

struct grammar_cache {
    pthread_mutex_t lock; /* over all below */
    struct row *rows;     /* [ROWS], direct-mapped by node; NULL until a walk */
    struct cache_entry *buckets[CACHE_BUCKETS];
    struct cache_entry *oldest, *newest;
    struct grammar_cache_stats stats;
};

struct grammar_cache *grammar_cache_new(void)
{
    struct grammar_cache *c = mem_new(sizeof(*c));

    CHECK(pthread_mutex_init(&c->lock, NULL) == 0);
    return c;
}

void grammar_cache_free(struct grammar_cache *c)
{
    while (c->oldest != NULL) {
        struct cache_entry *next = c->oldest->newer;

        mem_free(c->oldest);
        c->oldest = next;
    }
    pthread_mutex_destroy(&c->lock);
    mem_free(c->rows);
    mem_free(c);
}

static size_t entry_bytes(const struct cache_entry *e)
{
    return sizeof(*e) + ((size_t)e->key_words + e->data_words) * sizeof(uint32_t);
}

/* ---- the key ---- */

/* A counter as far as one token can tell: INF and INF - 1 stand for "between bounds". */
static uint32_t count_seen(const struct grammar *g, uint32_t node, uint32_t count)
{
    const struct grammar_span *s = &g->spans[g->nodes[node].span];
    uint64_t reach = (uint64_t)count + g->vocab->token_bytes_max;

    if (g->nodes[node].span == 0 || (s->high_least != GRAMMAR_INF && reach > s->high_least)) {
        return count;
    }
    if (count >= s->low_most) {
        return GRAMMAR_INF;
    }
    return reach < s->low_least ? GRAMMAR_INF - 1 : count;
}

static uint32_t key_make(const struct grammar *g, const struct grammar_state *s, uint32_t *key)
{
    /* A token closes a scalar and then one container with each of its brackets. */
    uint32_t frames_seen = g->vocab->closers_max + 2, n = 0;

    for (uint32_t i = 0; i < s->n_stacks; i++) {
        const struct grammar_stack *t = &s->stacks[i];
        uint32_t *head = &key[n], seen = 0;
        bool deep = t->depth + g->vocab->openers_max + 1 + g->need_max > GRAMMAR_LEVELS_MAX;

        key[n++] = t->node;
        key[n++] = count_seen(g, t->node, t->count);
        key[n++] = t->space | (deep ? (uint32_t)t->depth << 8 : 0);
        for (uint16_t at = t->top; at != GRAMMAR_NO_FRAME && seen < frames_seen; seen++) {
            const struct grammar_frame *f = &s->frames[at];

            key[n++] = f->node;
            key[n++] = count_seen(g, f->node, f->count);
            at = f->parent;
        }
        head[2] |= seen << 16;
    }
    return n;
}

static uint64_t key_hash(const uint32_t *key, uint32_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u + n;

    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ key[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return h;
}

/* ---- the walk ---- */

struct walk {
    const struct grammar *g;
    struct row *rows;
    uint32_t *bits;
    struct grammar_pool pool;
    /* by depth: the stacks before the byte at that depth, and the frames then in use */
    struct grammar_stack (*stacks)[GRAMMAR_STACKS_MAX];
    uint32_t n[GRAMMAR_TOKEN_BYTES_MAX + 1], frames[GRAMMAR_TOKEN_BYTES_MAX + 1];
};

static void bit_set(uint32_t *bits, int32_t id)
{
    bits[id / 32] |= 1u << (id % 32);
}

static uint32_t row_entry(const struct grammar *g, uint32_t node, uint8_t byte)
{
    const struct grammar_edge *e = grammar_edge_find(g, node, byte);
    const struct grammar_node *to;

    if (e == NULL) {
        return g->nodes[node].final ? ROW_SLOW : ROW_DEAD;
    }
    to = &g->nodes[e->target];
    if (e->ret != 0 || e->space || to->fork || to->n_edges == 0) {
        return ROW_SLOW;
    }
    return e->target | (to->guarded || to->op != GRAMMAR_OP_NONE ? ROW_ENTER : 0);
}

/* The row of a node, once it is met often; NULL: not yet. */
static const struct row *row_of(struct walk *w, uint32_t node)
{
    struct row *r = &w->rows[node % ROWS];

    if (r->node == node && r->visits > ROW_VISITS) {
        return r;
    }
    if (r->node != node) {
        r->node = node;
        r->visits = 0;
    }
    if (++r->visits <= ROW_VISITS) {
        return NULL;
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        r->to[byte] = row_entry(w->g, node, (uint8_t)byte);
    }
    return r;
}

/* grammar_step by rows; false: some stack has to take the slow way. */
static bool walk_fast(struct walk *w, uint32_t d, uint8_t byte, uint32_t *out)
{
    *out = 0;
    for (uint32_t i = 0; i < w->n[d]; i++) {
        struct grammar_stack t = w->stacks[d][i];
        const struct row *r = row_of(w, t.node);
        uint32_t to = r != NULL ? r->to[byte] : ROW_SLOW;

        if (to == ROW_SLOW) {
            return false;
        }
        t.node = to & ~ROW_ENTER;
        t.space = 0;
        if (to == ROW_DEAD || ((to & ROW_ENTER) != 0 && !grammar_enter(w->g, &t))) {
            continue;
        }
        w->stacks[d + 1][(*out)++] = t;
    }
    return true;
}

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

/* Whatever is below the trie's node keeps one of the stacks where it is. */
static bool all_below(const struct walk *w, const struct grammar_trie *trie,
                      const struct grammar_trie_node *node)
{
    uint32_t d = node->depth + 1u;

    for (uint32_t i = 0; node->below != 0 && i < w->n[d]; i++) {
        const struct grammar_node *at = &w->g->nodes[w->stacks[d][i].node];

        if ((node->below & ~at->loop) == 0 &&
            loop_chars(w->g, at, &w->stacks[d][i]) >= trie->chars_max) {
            return true;
        }
    }
    return false;
}

static void walk_trie(struct walk *w, const struct grammar_trie *trie)
{
    for (uint32_t i = 0; i < trie->n;) {
        const struct grammar_trie_node *node = &trie->nodes[i];
        uint32_t d = node->depth, n, last;

        w->pool.n = w->frames[d];
        if (!walk_fast(w, d, node->byte, &n)) {
            n = grammar_step(w->g, &w->pool, w->stacks[d], w->n[d], node->byte, w->stacks[d + 1]);
        }
        if (n == 0) {
            i = node->end;
            continue;
        }
        w->n[d + 1] = n;
        w->frames[d + 1] = w->pool.n;
        i = all_below(w, trie, node) ? node->end : i + 1;
        last = trie->nodes[i].first;
        for (uint32_t k = node->first; k < last; k++) {
            bit_set(w->bits, trie->order[k]);
        }
    }
}

/* How many characters of the slice's class may follow this stack in any order; 0 when that depends
 * on the characters. */
static uint32_t slice_chars(const struct grammar *g, const struct grammar_stack *t, int slice)
{
    const struct grammar_node *from = &g->nodes[t->node];
    uint32_t to = slice == GRAMMAR_SLICE_WORD ? from->word_to : from->plain_to;
    const struct grammar_node *loop = &g->nodes[to];

    if (to == 0 || (slice == GRAMMAR_SLICE_WORD ? loop->word_to : loop->plain_to) != to) {
        return 0;
    }
    return (uint32_t)u64_min(loop_chars(g, loop, t), GRAMMAR_SLICE_CHARS_MAX);
}

/* Allows tokens of a slice by its masks; true: there is nothing left to walk. */
static bool slice_whole(const struct walk *w, const struct grammar_state *s, int slice)
{
    const struct grammar_vocab *v = w->g->vocab;
    uint32_t most = 0;

    for (uint32_t i = 0; i < s->n_stacks; i++) {
        uint32_t chars = slice_chars(w->g, &s->stacks[i], slice);

        most = chars > most ? chars : most;
    }
    for (uint32_t i = 0; most > 0 && i < v->words; i++) {
        w->bits[i] |= v->masks[slice][(size_t)most * v->words + i];
    }
    return most == GRAMMAR_SLICE_CHARS_MAX || (most > 0 && s->n_stacks == 1);
}

static void named_tokens(const struct grammar *g, const struct grammar_state *s, uint32_t *bits)
{
    struct grammar_pool pool = {(struct grammar_frame *)s->frames, s->n_frames, s->n_frames};
    struct grammar_stack out[GRAMMAR_STACKS_MAX];

    for (uint32_t i = 0; i < g->n_tokens; i++) {
        if (grammar_step_token(g, &pool, s->stacks, s->n_stacks, g->tokens[i].token, out) > 0) {
            bit_set(bits, g->tokens[i].token);
        }
    }
}

static void mask_compute(const struct grammar *g, struct row *rows, const struct grammar_state *s,
                         uint32_t *bits)
{
    const struct grammar_vocab *v = g->vocab;
    struct walk *w = mem_new(sizeof(*w));
    uint32_t frames = s->n_frames + v->token_bytes_max * GRAMMAR_STACKS_MAX;

    *w = (struct walk){.g = g, .rows = rows, .bits = bits};
    w->stacks = mem_new((v->token_bytes_max + 2) * sizeof(*w->stacks));
    w->pool =
        (struct grammar_pool){mem_new((frames + 1) * sizeof(struct grammar_frame)), 0, frames};
    memcpy(w->pool.frames, s->frames, s->n_frames * sizeof(s->frames[0]));
    memcpy(w->stacks[0], s->stacks, s->n_stacks * sizeof(s->stacks[0]));
    w->n[0] = s->n_stacks;
    w->frames[0] = s->n_frames;
    memset(bits, 0, v->words * sizeof(*bits));
    for (int k = 0; k < GRAMMAR_SLICES; k++) {
        if (k == GRAMMAR_SLICE_REST || !slice_whole(w, s, k)) {
            walk_trie(w, &v->tries[k]);
        }
    }
    for (uint32_t i = 0; i < v->n_eos && grammar_accepting(g, s); i++) {
        bit_set(bits, v->eos[i]);
    }
    named_tokens(g, s, bits);
    mem_free(w->pool.frames);
    mem_free(w->stacks);
    mem_free(w);
}

/* ---- the cache ---- */

static void cache_drop_oldest(struct grammar_cache *c)
{
    struct cache_entry *e = c->oldest, **at = &c->buckets[e->hash % CACHE_BUCKETS];

    while (*at != e) {
        at = &(*at)->chain;
    }
    *at = e->chain;
    c->oldest = e->newer;
    c->newest = c->oldest == NULL ? NULL : c->newest;
    c->stats.bytes -= entry_bytes(e);
    c->stats.masks--;
    c->stats.evictions++;
    mem_free(e);
}

static void cache_put(struct grammar_cache *c, struct cache_entry *e)
{
    struct cache_entry **bucket = &c->buckets[e->hash % CACHE_BUCKETS];

    while (c->oldest != NULL && (c->stats.bytes + entry_bytes(e) > GRAMMAR_CACHE_BYTES_MAX ||
                                 c->stats.masks == CACHE_MASKS_MAX)) {
        cache_drop_oldest(c);
    }
    if (entry_bytes(e) > GRAMMAR_CACHE_BYTES_MAX) {
        mem_free(e);
        return;
    }
    e->chain = *bucket;
    *bucket = e;
    *(c->newest != NULL ? &c->newest->newer : &c->oldest) = e;
    c->newest = e;
    c->stats.bytes += entry_bytes(e);
    c->stats.masks++;
}

static struct cache_entry *entry_new(const uint32_t *key, uint32_t key_words, uint64_t hash,
                                     const uint32_t *bits, uint32_t words)
{
    struct cache_entry *e;
    uint32_t allowed = 0, data, n = 0;

    for (uint32_t i = 0; i < words; i++) {
        allowed += (uint32_t)__builtin_popcount(bits[i]);
    }
    data = allowed < words ? allowed : words;
    e = mem_new(sizeof(*e) + ((size_t)key_words + data) * sizeof(uint32_t));
    e->hash = hash;
    e->key_words = key_words;
    e->data_words = data;
    e->allowed = allowed;
    e->ids = allowed < words;
    memcpy(e->words, key, key_words * sizeof(*key));
    if (!e->ids) {
        memcpy(e->words + key_words, bits, words * sizeof(*bits));
        return e;
    }
    for (uint32_t i = 0; i < words; i++) {
        for (uint32_t left = bits[i]; left != 0; left &= left - 1) {
            e->words[key_words + n++] = i * 32 + (uint32_t)__builtin_ctz(left);
        }
    }
    return e;
}

static void entry_read(const struct cache_entry *e, uint32_t *bits, uint32_t words)
{
    const uint32_t *data = e->words + e->key_words;

    if (!e->ids) {
        memcpy(bits, data, words * sizeof(*bits));
        return;
    }
    memset(bits, 0, words * sizeof(*bits));
    for (uint32_t i = 0; i < e->data_words; i++) {
        bit_set(bits, (int32_t)data[i]);
    }
}

static struct cache_entry *cache_get(struct grammar_cache *c, const uint32_t *key, uint32_t n,
                                     uint64_t hash)
{
    struct cache_entry *e = c->buckets[hash % CACHE_BUCKETS];

    while (e != NULL &&
           (e->hash != hash || e->key_words != n || memcmp(e->words, key, n * sizeof(*key)) != 0)) {
        e = e->chain;
    }
    return e;
}

uint32_t grammar_mask(struct grammar *g, const struct grammar_state *s, uint32_t *bits)
{
    struct grammar_cache *c = g->cache;
    uint32_t key[KEY_WORDS_MAX], n, allowed;
    struct cache_entry *e;
    uint64_t hash;

    if (s->ended) {
        memset(bits, 0, g->vocab->words * sizeof(*bits));
        return 0;
    }
    n = key_make(g, s, key);
    hash = key_hash(key, n);
    pthread_mutex_lock(&c->lock);
    e = cache_get(c, key, n, hash);
    if (e != NULL) {
        c->stats.hits++;
        allowed = e->allowed;
        entry_read(e, bits, g->vocab->words);
    } else {
        c->stats.misses++;
        c->rows = c->rows != NULL ? c->rows : mem_new(ROWS * sizeof(*c->rows));
        mask_compute(g, c->rows, s, bits);
        e = entry_new(key, n, hash, bits, g->vocab->words);
        allowed = e->allowed;
        cache_put(c, e);
    }
    pthread_mutex_unlock(&c->lock);
    return allowed;
}

void grammar_cache_stats(struct grammar *g, struct grammar_cache_stats *out)
{
    pthread_mutex_lock(&g->cache->lock);
    *out = g->cache->stats;
    pthread_mutex_unlock(&g->cache->lock);
}
