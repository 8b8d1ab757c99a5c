/* grammar_mask.c - which tokens may come next: masks, and those that are kept.
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
    bool used;        /* since it came or was last passed over */
    uint32_t words[]; /* key, then data */
};

struct grammar_cache {
    pthread_mutex_t lock;            /* over all below */
    struct grammar_scratch *scratch; /* owned; NULL until a walk */
    struct cache_entry *buckets[CACHE_BUCKETS];
    struct cache_entry *oldest, *newest;
    struct grammar_cache_stats stats;
    atomic_size_t held; /* masks and scratch; read without the lock, for a walk holds it long */
};

struct grammar_cache *grammar_cache_new(void)
{
    struct grammar_cache *c = mem_try(1, sizeof(*c));

    if (c != NULL) {
        CHECK(pthread_mutex_init(&c->lock, NULL) == 0);
        atomic_init(&c->held, sizeof(*c));
    }
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
    grammar_scratch_free(c->scratch);
    mem_free(c);
}

size_t grammar_cache_bytes(const struct grammar_cache *c)
{
    return atomic_load_explicit(&c->held, memory_order_relaxed);
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

/* ---- one mask ---- */

static void bit_set(uint32_t *bits, int32_t id)
{
    bits[id / 32] |= 1u << (id % 32);
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

/* *allowed: how many are set. false: no memory; none is set. */
static bool mask_compute(const struct grammar *g, struct grammar_scratch *x,
                         const struct grammar_state *s, uint32_t *bits, uint32_t *allowed)
{
    const struct grammar_vocab *v = g->vocab;

    *allowed = 0;
    memset(bits, 0, v->words * sizeof(*bits));
    if (!grammar_walk(g, x, s, bits)) {
        memset(bits, 0, v->words * sizeof(*bits));
        return false;
    }
    for (uint32_t i = 0; i < v->n_eos && grammar_accepting(g, s); i++) {
        bit_set(bits, v->eos[i]);
    }
    named_tokens(g, s, bits);
    for (uint32_t i = 0; i < v->words; i++) {
        *allowed += (uint32_t)__builtin_popcount(bits[i]);
    }
    return true;
}

/* ---- the cache ---- */

/* Those that were used since they were last looked at go to the end of the order instead. */
static void cache_pass_over(struct grammar_cache *c)
{
    for (uint32_t i = 0; i < c->stats.masks && c->oldest->used && c->oldest != c->newest; i++) {
        struct cache_entry *e = c->oldest;

        e->used = false;
        c->oldest = e->newer;
        e->newer = NULL;
        c->newest->newer = e;
        c->newest = e;
    }
}

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
        cache_pass_over(c);
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

/* NULL: no memory; then it is not kept. */
static struct cache_entry *entry_new(const uint32_t *key, uint32_t key_words, uint64_t hash,
                                     const uint32_t *bits, uint32_t words, uint32_t allowed)
{
    struct cache_entry *e;
    uint32_t data = allowed < words ? allowed : words, n = 0;

    e = mem_try(1, sizeof(*e) + ((size_t)key_words + data) * sizeof(uint32_t));
    if (e == NULL) {
        return NULL;
    }
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

/* A mask that is not kept, and its entry if there is memory for one. The lock is held. */
static uint32_t mask_make(struct grammar *g, const struct grammar_state *s, const uint32_t *key,
                          uint32_t key_words, uint64_t hash, uint32_t *bits)
{
    struct grammar_cache *c = g->cache;
    struct cache_entry *e;
    uint32_t allowed;

    c->scratch = c->scratch != NULL ? c->scratch : grammar_scratch_new();
    if (c->scratch == NULL) {
        memset(bits, 0, g->vocab->words * sizeof(*bits));
        return 0;
    }
    if (mask_compute(g, c->scratch, s, bits, &allowed)) {
        e = entry_new(key, key_words, hash, bits, g->vocab->words, allowed);
        if (e != NULL) {
            cache_put(c, e);
        }
    }
    atomic_store_explicit(&c->held, sizeof(*c) + c->stats.bytes + grammar_scratch_bytes(c->scratch),
                          memory_order_relaxed);
    return allowed;
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
        e->used = true;
        allowed = e->allowed;
        entry_read(e, bits, g->vocab->words);
    } else {
        c->stats.misses++;
        allowed = mask_make(g, s, key, n, hash, bits);
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
