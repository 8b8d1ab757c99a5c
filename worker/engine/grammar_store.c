/* grammar_store.c - see grammar_store.h. A few dozen entries: they are looked through. */
#include "worker/engine/grammar_store.h"

#include "base/hash.h"

#include <pthread.h>

/* Of a key: schemas are at most GRAMMAR_SCHEMA_BYTES_MAX, names and formats little beside them. A
 * source past it is compiled, refused most likely, and not kept. */
#define KEY_BYTES_MAX (2 * GRAMMAR_SCHEMA_BYTES_MAX)

struct entry {
    struct grammar *grammar; /* owned reference */
    char *key;               /* owned */
    size_t key_n;
    uint64_t digest, used;
};

struct grammar_store {
    const struct grammar_vocab *vocab;
    pthread_mutex_t lock; /* over all below; not held while a grammar is compiled */
    struct entry entry[GRAMMAR_STORE_COUNT_MAX]; /* [count] in no order */
    uint32_t count;
    uint64_t clock; /* of uses */
    uint64_t hits, misses, evictions;
};

struct grammar_store *grammar_store_new(const struct grammar_vocab *v)
{
    struct grammar_store *s = mem_new(sizeof(*s));

    s->vocab = v;
    CHECK(pthread_mutex_init(&s->lock, NULL) == 0);
    return s;
}

static void entry_drop(struct grammar_store *s, uint32_t at)
{
    grammar_release(s->entry[at].grammar);
    mem_free(s->entry[at].key);
    s->entry[at] = s->entry[--s->count];
}

void grammar_store_free(struct grammar_store *s)
{
    if (s == NULL) {
        return;
    }
    while (s->count > 0) {
        entry_drop(s, s->count - 1);
    }
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

/* ---- the key ---- */

/* With its length before it, so that no two lists of texts look alike. */
static void key_text(struct buf *key, struct str text)
{
    buf_printf(key, "%zu:", text.n);
    buf_str(key, text);
}

static void key_literal(struct buf *key, const struct grammar_literal *l)
{
    buf_printf(key, "%u[", l->n);
    for (uint32_t i = 0; i < l->n; i++) {
        key_text(key, l->pieces[i].text);
        if (l->pieces[i].text.n == 0) {
            buf_printf(key, "#%d", l->pieces[i].token);
        }
    }
}

static void key_tools(struct buf *key, const struct grammar_source *src)
{
    const struct grammar_tool_format *f = src->format;
    const struct grammar_literal *parts[] = {&f->begin, &f->before,    &f->between,
                                             &f->after, &f->separator, &f->end};

    buf_printf(key, "%u-%u ", f->calls_min, f->calls_max);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        key_literal(key, parts[i]);
    }
    for (uint32_t i = 0; i < src->n_tools; i++) {
        key_text(key, src->tools[i].name);
        if (src->tools[i].parameters != NULL) {
            json_write(key, src->tools[i].parameters, JSON_ORDER_DOCUMENT);
        }
        buf_byte(key, '\n'); /* not in compact JSON */
    }
}

/* key->failed: there is none. */
static void key_make(struct buf *key, const struct grammar_source *src)
{
    buf_init(key, KEY_BYTES_MAX);
    buf_printf(key, "%d ", (int)src->kind);
    if (src->kind == GRAMMAR_JSON_SCHEMA && src->schema != NULL) {
        json_write(key, src->schema, JSON_ORDER_DOCUMENT);
    } else if (src->kind == GRAMMAR_REGEX) {
        buf_str(key, src->regex);
    } else if (src->kind == GRAMMAR_TOOLS) {
        key_tools(key, src);
    }
}

/* ---- the store ---- */

static struct entry *entry_find(struct grammar_store *s, struct str key, uint64_t digest)
{
    for (uint32_t i = 0; i < s->count; i++) {
        struct entry *e = &s->entry[i];

        if (e->digest == digest && str_eq(str_of(e->key, e->key_n), key)) {
            return e;
        }
    }
    return NULL;
}

static size_t bytes_held(const struct grammar_store *s)
{
    size_t all = 0;

    for (uint32_t i = 0; i < s->count; i++) {
        all += grammar_bytes(s->entry[i].grammar) + s->entry[i].key_n;
    }
    return all;
}

static void drop_oldest(struct grammar_store *s)
{
    uint32_t oldest = 0;

    for (uint32_t i = 1; i < s->count; i++) {
        oldest = s->entry[i].used < s->entry[oldest].used ? i : oldest;
    }
    entry_drop(s, oldest);
    s->evictions++;
}

/* Keeps a grammar; without memory for its key it is not kept. */
static void entry_put(struct grammar_store *s, struct str key, uint64_t digest, struct grammar *g)
{
    size_t more = grammar_bytes(g) + key.n;
    char *copy = mem_try(key.n, 1);

    if (copy == NULL || more > GRAMMAR_STORE_BYTES_MAX) {
        mem_free(copy);
        return;
    }
    while (s->count > 0 && (s->count == GRAMMAR_STORE_COUNT_MAX ||
                            bytes_held(s) + more > GRAMMAR_STORE_BYTES_MAX)) {
        drop_oldest(s);
    }
    memcpy(copy, key.p, key.n);
    s->entry[s->count++] = (struct entry){.grammar = grammar_retain(g),
                                          .key = copy,
                                          .key_n = key.n,
                                          .digest = digest,
                                          .used = ++s->clock};
}

/* NULL: not there. Else retained for the caller. What is kept grows by its masks while it is only
 * used: others go until the bound holds again. */
static struct grammar *take(struct grammar_store *s, struct str key, uint64_t digest)
{
    struct entry *found = entry_find(s, key, digest);
    struct grammar *g;

    if (found == NULL) {
        return NULL;
    }
    found->used = ++s->clock; /* the newest: the last to go */
    g = grammar_retain(found->grammar);
    while (s->count > 1 && bytes_held(s) > GRAMMAR_STORE_BYTES_MAX) {
        drop_oldest(s); /* may move the entry found */
    }
    return g;
}

static struct grammar *look_up(struct grammar_store *s, struct str key, uint64_t digest)
{
    struct grammar *g;

    pthread_mutex_lock(&s->lock);
    g = take(s, key, digest);
    s->hits += g != NULL;
    s->misses += g == NULL;
    pthread_mutex_unlock(&s->lock);
    return g;
}

/* The grammar to use: g, or the equal one that another thread has put here meanwhile. */
static struct grammar *settle(struct grammar_store *s, struct str key, uint64_t digest,
                              struct grammar *g)
{
    struct grammar *other;

    pthread_mutex_lock(&s->lock);
    other = take(s, key, digest);
    if (other == NULL) {
        entry_put(s, key, digest, g);
    }
    pthread_mutex_unlock(&s->lock);
    if (other != NULL) {
        grammar_release(g);
    }
    return other != NULL ? other : g;
}

bool grammar_store_compile(struct grammar_store *s, const struct grammar_source *src,
                           struct grammar **out, struct err *e)
{
    struct buf key;
    bool ok = true;

    key_make(&key, src);
    if (key.failed) {
        ok = grammar_compile(src, s->vocab, out, e);
    } else {
        uint64_t digest = hash_xxh3(key.p, key.len, 0);

        *out = look_up(s, buf_view(&key), digest);
        if (*out == NULL) {
            ok = grammar_compile(src, s->vocab, out, e);
            if (ok) {
                *out = settle(s, buf_view(&key), digest, *out);
            }
        }
    }
    buf_fini(&key);
    return ok;
}

void grammar_store_stats(struct grammar_store *s, struct grammar_store_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = (struct grammar_store_stats){.hits = s->hits,
                                        .misses = s->misses,
                                        .evictions = s->evictions,
                                        .count = s->count,
                                        .bytes = bytes_held(s)};
    pthread_mutex_unlock(&s->lock);
}
