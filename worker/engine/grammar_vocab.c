/* grammar_vocab.c - the vocabulary as tries over the bytes and over the classes of its tokens.
 *
 * Owns the bytes. Knows nothing of automata but which characters they often treat alike. */
#include <stdlib.h>

#include "worker/engine/grammar_internal.h"

#define TOKENS_MAX (1u << 24)
#define VOCAB_BYTES_MAX (256u << 20)

struct sort_key {
    struct str path;  /* bytes, or classes */
    struct str bytes; /* decides between equal paths */
    int32_t id;
};

static int by_path(const void *pa, const void *pb)
{
    const struct sort_key *a = pa, *b = pb;
    int c = str_cmp(a->path, b->path);

    c = c != 0 ? c : str_cmp(a->bytes, b->bytes);
    return c != 0 ? c : (a->id > b->id) - (a->id < b->id);
}

/* Whether white space past ASCII is at the front. Of text that is no UTF-8: anything. */
static bool is_wide_space(struct str s)
{
    uint32_t cp = s.n >= 2 ? (s.p[0] & 0x1fu) << 6 | (s.p[1] & 0x3fu) : 0;

    if (s.n >= 3 && ((uint8_t)s.p[0] & 0xf0) == 0xe0) {
        cp = (s.p[0] & 0xfu) << 12 | (s.p[1] & 0x3fu) << 6 | (s.p[2] & 0x3fu);
    }
    for (size_t i = 0; i < GRAMMAR_WIDE_SPACES; i++) {
        if (cp >= grammar_wide_spaces[i][0] && cp <= grammar_wide_spaces[i][1]) {
            return (uint8_t)s.p[0] >= 0x80 && (uint8_t)s.p[0] < 0xf0;
        }
    }
    return false;
}

/* The classes of a token's characters, n of them; 0: it is not of WHOLE. */
static size_t classes_of(struct str s, char classes[GRAMMAR_WHOLE_CHARS_MAX])
{
    size_t n = 0;

    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = (uint8_t)s.p[i];

        if ((c & 0xc0) == 0x80) {
            continue;
        }
        if (c < 0x20 || c == '"' || c == '\\' || n == GRAMMAR_WHOLE_CHARS_MAX ||
            is_wide_space(str_of(s.p + i, s.n - i))) {
            return 0;
        }
        classes[n++] = (char)grammar_class(c);
    }
    return str_utf8_valid(s) == s.n ? n : 0;
}

/* Notes a node's own step below its parent. past: what a byte past ASCII is part of. */
static void below_add(struct grammar_trie *t, uint32_t parent, uint32_t child, bool classes,
                      uint8_t past)
{
    const struct grammar_trie_node *c = &t->nodes[child];
    struct grammar_trie_node *p = &t->nodes[parent];
    bool character = classes || past == GRAMMAR_BELOW_TORN || (c->byte & 0xc0) != 0x80;
    uint8_t last = classes ? grammar_class_last(c->byte) : c->byte;
    uint8_t chars = (uint8_t)(c->chars + character); /* a token has at most 256 */

    p->below |= c->below | (c->byte >= 0x80 ? past : 0);
    p->chars = chars > p->chars ? chars : p->chars;
    for (int k = 0; k < 2; k++) {
        t->below[parent][k] |= t->below[child][k];
    }
    for (uint32_t b = c->byte; b <= last && b < 0x80; b++) {
        t->below[parent][b / 64] |= 1ull << (b % 64);
    }
}

/* Closes the open nodes deeper than `depth`; what is below them is also below their parents. */
static void trie_close(struct grammar_trie *t, const uint32_t *open, size_t from, size_t depth,
                       bool classes, uint8_t past)
{
    while (from > depth) {
        uint32_t node = open[--from];

        t->nodes[node].end = t->n;
        if (from > 0) {
            below_add(t, open[from - 1], node, classes, past);
        }
    }
}

static bool trie_room(struct grammar_trie *t, const struct sort_key *keys, uint32_t n)
{
    size_t total = 0, common = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct str s = keys[i].path, last = i > 0 ? keys[i - 1].path : (struct str){"", 0};

        for (common = 0; common < size_min(s.n, last.n) && s.p[common] == last.p[common];) {
            common++;
        }
        total += s.n - common;
    }
    t->nodes = mem_try(total + 1, sizeof(*t->nodes));
    t->below = mem_try(total + 1, sizeof(*t->below));
    t->order = mem_try((size_t)n + 1, sizeof(*t->order));
    return t->nodes != NULL && t->below != NULL && t->order != NULL;
}

/* keys: any order, paths of 1 .. GRAMMAR_TOKEN_BYTES_MAX bytes. */
static bool trie_build(struct grammar_trie *t, struct sort_key *keys, uint32_t n, bool classes,
                       uint8_t past)
{
    uint32_t open[GRAMMAR_TOKEN_BYTES_MAX]; /* the path of the last key */
    size_t depth = 0;
    struct str last = {"", 0};

    qsort(keys, n, sizeof(*keys), by_path);
    if (!trie_room(t, keys, n)) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct str s = keys[i].path;
        size_t common = 0;

        while (common < size_min(s.n, last.n) && s.p[common] == last.p[common]) {
            common++;
        }
        trie_close(t, open, depth, common, classes, past);
        for (depth = common; depth < s.n; depth++) {
            open[depth] = t->n;
            t->nodes[t->n++] = (struct grammar_trie_node){
                .first = i, .byte = (uint8_t)s.p[depth], .depth = (uint8_t)depth};
        }
        t->order[i] = keys[i].id;
        last = s;
    }
    trie_close(t, open, depth, 0, classes, past);
    t->nodes[t->n].first = n;
    return true;
}

static void count_token(struct grammar_vocab *v, struct str s)
{
    uint32_t closers = 0, openers = 0;

    for (size_t i = 0; i < s.n; i++) {
        closers += s.p[i] == '}' || s.p[i] == ']';
        openers += s.p[i] == '{' || s.p[i] == '[';
    }
    v->closers_max = closers > v->closers_max ? closers : v->closers_max;
    v->openers_max = openers > v->openers_max ? openers : v->openers_max;
    v->token_bytes_max = s.n > v->token_bytes_max ? (uint32_t)s.n : v->token_bytes_max;
}

/* Tokens on their way into the tries. */
struct sorting {
    struct sort_key *keys[GRAMMAR_TRIES]; /* [count] */
    uint32_t n[GRAMMAR_TRIES];
    char *classes; /* of all tokens of WHOLE */
    size_t n_classes;
};

static void token_sort(struct grammar_vocab *v, struct sorting *to, int32_t id)
{
    struct str s = grammar_vocab_bytes(v, id);
    char *classes = to->classes + to->n_classes;
    size_t n = classes_of(s, classes);

    if (n == 0) {
        to->keys[GRAMMAR_TRIE_REST][to->n[GRAMMAR_TRIE_REST]++] = (struct sort_key){s, s, id};
        return;
    }
    to->n_classes += n;
    to->keys[GRAMMAR_TRIE_WHOLE][to->n[GRAMMAR_TRIE_WHOLE]++] = (struct sort_key){s, s, id};
    to->keys[GRAMMAR_TRIE_CLASSES][to->n[GRAMMAR_TRIE_CLASSES]++] =
        (struct sort_key){str_of(classes, n), s, id};
    v->whole[id / 32] |= 1u << (id % 32);
}

static bool tries_build(struct grammar_vocab *v, struct sorting *by)
{
    for (uint32_t i = 0; i < v->count; i++) {
        struct str s = grammar_vocab_bytes(v, (int32_t)i);

        if (s.n > 0 && s.n <= GRAMMAR_TOKEN_BYTES_MAX && !grammar_vocab_is_eos(v, (int32_t)i)) {
            count_token(v, s);
            token_sort(v, by, (int32_t)i);
        }
    }
    for (int k = 0; k < GRAMMAR_TRIES; k++) {
        if (!trie_build(&v->tries[k], by->keys[k], by->n[k], k == GRAMMAR_TRIE_CLASSES,
                        k == GRAMMAR_TRIE_REST ? GRAMMAR_BELOW_TORN : GRAMMAR_BELOW_WIDE)) {
            return false;
        }
    }
    return true;
}

static bool whole_note(struct grammar_vocab *v)
{
    const struct grammar_trie *t = &v->tries[GRAMMAR_TRIE_WHOLE];
    uint32_t n = t->nodes[t->n].first, at = 0;

    for (uint32_t byte = 0; byte <= 256; byte++) {
        while (at < t->n && t->nodes[at].byte < byte) {
            at = t->nodes[at].end;
        }
        v->whole_top[byte] = at;
    }
    v->whole_chars = mem_try((size_t)n + 1, sizeof(*v->whole_chars));
    for (uint32_t i = 0; v->whole_chars != NULL && i < n; i++) {
        struct str s = grammar_vocab_bytes(v, t->order[i]);

        for (size_t k = 0; k < s.n; k++) {
            uint8_t c = (uint8_t)s.p[k] < 0x80 ? (uint8_t)s.p[k] : 0;

            v->whole_chars[i][c / 64] |= 1ull << (c % 64);
        }
    }
    return v->whole_chars != NULL;
}

static bool vocab_fill(struct grammar_vocab *v)
{
    struct sorting by = {0};
    bool ok;

    v->words = (uint32_t)GRAMMAR_MASK_WORDS(v->count);
    v->whole = mem_try(v->words, sizeof(*v->whole));
    by.classes = mem_try((size_t)v->begin[v->count] + GRAMMAR_WHOLE_CHARS_MAX, 1);
    ok = v->whole != NULL && by.classes != NULL;
    for (int k = 0; k < GRAMMAR_TRIES; k++) {
        by.keys[k] = mem_try(v->count + 1, sizeof(*by.keys[k]));
        ok = ok && by.keys[k] != NULL;
    }
    ok = ok && tries_build(v, &by) && whole_note(v);
    for (int k = 0; k < GRAMMAR_TRIES; k++) {
        mem_free(by.keys[k]);
    }
    mem_free(by.classes);
    return ok;
}

static bool vocab_copy_bytes(struct grammar_vocab *v, struct str (*bytes_of)(void *, int32_t),
                             void *ctx)
{
    size_t total = 0;

    v->begin = mem_try(v->count + 1, sizeof(*v->begin));
    for (uint32_t i = 0; i < v->count; i++) {
        total += bytes_of(ctx, (int32_t)i).n;
    }
    v->bytes = total <= VOCAB_BYTES_MAX ? mem_try(total + 1, 1) : NULL;
    if (v->begin == NULL || v->bytes == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < v->count; i++) {
        struct str s = bytes_of(ctx, (int32_t)i);

        if (s.n > 0) {
            memcpy(v->bytes + v->begin[i], s.p, s.n);
        }
        v->begin[i + 1] = v->begin[i] + (uint32_t)s.n;
    }
    return true;
}

struct grammar_vocab *grammar_vocab_new(uint32_t n, struct str (*bytes_of)(void *ctx, int32_t id),
                                        void *ctx, const int32_t *eos, uint32_t n_eos,
                                        struct err *e)
{
    struct grammar_vocab *v;

    if (n == 0 || n > TOKENS_MAX || n_eos > GRAMMAR_EOS_MAX) {
        err_set(e, ERR_LIMIT, "a vocabulary for grammars has 1 to %u tokens and at most %d ends",
                TOKENS_MAX, GRAMMAR_EOS_MAX);
        return NULL;
    }
    v = mem_new(sizeof(*v));
    v->count = n;
    for (uint32_t i = 0; i < n_eos; i++) {
        if (eos[i] >= 0 && (uint32_t)eos[i] < n) {
            v->eos[v->n_eos++] = eos[i];
        }
    }
    if (!vocab_copy_bytes(v, bytes_of, ctx) || !vocab_fill(v)) {
        err_set(e, ERR_NO_MEMORY, "no memory for the vocabulary's trie (%u tokens)", n);
        grammar_vocab_free(v);
        return NULL;
    }
    return v;
}

bool grammar_vocab_is_eos(const struct grammar_vocab *v, int32_t id)
{
    for (uint32_t i = 0; i < v->n_eos; i++) {
        if (v->eos[i] == id) {
            return true;
        }
    }
    return false;
}

uint32_t grammar_vocab_count(const struct grammar_vocab *v)
{
    return v->count;
}

void grammar_vocab_free(struct grammar_vocab *v)
{
    if (v == NULL) {
        return;
    }
    for (int k = 0; k < GRAMMAR_TRIES; k++) {
        mem_free(v->tries[k].nodes);
        mem_free(v->tries[k].below);
        mem_free(v->tries[k].order);
    }
    mem_free(v->whole);
    mem_free(v->whole_chars);
    mem_free(v->bytes);
    mem_free(v->begin);
    mem_free(v);
}
