/* grammar_vocab.c - the vocabulary as three tries over the bytes of its tokens.
 *
 * Owns the bytes. Knows nothing of automata but which classes of characters they often allow whole.
 */
#include <stdlib.h>

#include "worker/engine/grammar_internal.h"

#define TOKENS_MAX (1u << 24)
#define VOCAB_BYTES_MAX (256u << 20)

struct sort_key {
    struct str bytes;
    int32_t id;
};

static int by_bytes(const void *pa, const void *pb)
{
    const struct sort_key *a = pa, *b = pb;
    int c = str_cmp(a->bytes, b->bytes);

    return c != 0 ? c : (a->id > b->id) - (a->id < b->id);
}

static bool is_word(uint8_t c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

/* The slice of a token, and its length in characters when that is not REST. */
static enum grammar_slice slice_of(struct str s, uint32_t *chars)
{
    bool word = true;

    *chars = 0;
    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = (uint8_t)s.p[i];

        if (c < 0x20 || c == '"' || c == '\\') {
            return GRAMMAR_SLICE_REST;
        }
        word = word && is_word(c);
        *chars += (c & 0xc0) != 0x80;
    }
    if (str_utf8_valid(s) != s.n || *chars > GRAMMAR_SLICE_CHARS_MAX) {
        return GRAMMAR_SLICE_REST;
    }
    return word ? GRAMMAR_SLICE_WORD : GRAMMAR_SLICE_PLAIN;
}

/* Closes the open nodes deeper than `depth`; what is below them is also below their parents. */
static void trie_close(struct grammar_trie *t, const uint32_t *open, size_t from, size_t depth,
                       uint64_t wide)
{
    while (from > depth) {
        struct grammar_trie_node *node = &t->nodes[open[--from]];

        node->end = t->n;
        if (from > 0) {
            t->nodes[open[from - 1]].below |= node->below | grammar_class(node->byte, wide);
        }
    }
}

/* keys: sorted, each of 1 .. GRAMMAR_TOKEN_BYTES_MAX bytes. */
static bool trie_build(struct grammar_trie *t, const struct sort_key *keys, uint32_t n,
                       uint64_t wide)
{
    uint32_t open[GRAMMAR_TOKEN_BYTES_MAX]; /* the path of the last key */
    size_t depth = 0, total = 0;
    struct str last = {"", 0};

    for (uint32_t i = 0; i < n; i++) {
        total += keys[i].bytes.n;
    }
    t->nodes = mem_try(total + 1, sizeof(*t->nodes));
    t->order = mem_try((size_t)n + 1, sizeof(*t->order));
    if (t->nodes == NULL || t->order == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct str s = keys[i].bytes;
        size_t common = 0;

        while (common < size_min(s.n, last.n) && s.p[common] == last.p[common]) {
            common++;
        }
        trie_close(t, open, depth, common, wide);
        for (depth = common; depth < s.n; depth++) {
            open[depth] = t->n;
            t->nodes[t->n++] = (struct grammar_trie_node){
                .first = i, .byte = (uint8_t)s.p[depth], .depth = (uint8_t)depth};
        }
        t->order[i] = keys[i].id;
        last = s;
    }
    trie_close(t, open, depth, 0, wide);
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

static bool slices_build(struct grammar_vocab *v, struct sort_key *keys[GRAMMAR_SLICES])
{
    uint32_t n[GRAMMAR_SLICES] = {0};

    for (uint32_t i = 0; i < v->count; i++) {
        struct str s = grammar_vocab_bytes(v, (int32_t)i);
        uint32_t chars;
        enum grammar_slice at = slice_of(s, &chars);

        if (s.n == 0 || s.n > GRAMMAR_TOKEN_BYTES_MAX || grammar_vocab_is_eos(v, (int32_t)i)) {
            continue;
        }
        count_token(v, s);
        keys[at][n[at]++] = (struct sort_key){s, (int32_t)i};
        for (; at != GRAMMAR_SLICE_REST && chars <= GRAMMAR_SLICE_CHARS_MAX; chars++) {
            v->masks[at][(size_t)chars * v->words + i / 32] |= 1u << (i % 32);
        }
    }
    for (int k = 0; k < GRAMMAR_SLICES; k++) {
        qsort(keys[k], n[k], sizeof(*keys[k]), by_bytes);
        v->tries[k].chars_max =
            k == GRAMMAR_SLICE_REST ? v->token_bytes_max : GRAMMAR_SLICE_CHARS_MAX;
        if (!trie_build(&v->tries[k], keys[k], n[k],
                        k == GRAMMAR_SLICE_REST ? GRAMMAR_CLASS_TORN : GRAMMAR_CLASS_WIDE)) {
            return false;
        }
    }
    return true;
}

static bool vocab_fill(struct grammar_vocab *v)
{
    struct sort_key *keys[GRAMMAR_SLICES] = {0};
    bool ok = true;

    v->words = (uint32_t)GRAMMAR_MASK_WORDS(v->count);
    for (int k = 0; k < 2; k++) {
        v->masks[k] = mem_try((GRAMMAR_SLICE_CHARS_MAX + 1) * (size_t)v->words, sizeof(uint32_t));
        ok = ok && v->masks[k] != NULL;
    }
    for (int k = 0; k < GRAMMAR_SLICES; k++) {
        keys[k] = mem_try(v->count + 1, sizeof(*keys[k]));
        ok = ok && keys[k] != NULL;
    }
    ok = ok && slices_build(v, keys);
    for (int k = 0; k < GRAMMAR_SLICES; k++) {
        mem_free(keys[k]);
    }
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
    for (int k = 0; k < GRAMMAR_SLICES; k++) {
        mem_free(v->tries[k].nodes);
        mem_free(v->tries[k].order);
    }
    mem_free(v->masks[0]);
    mem_free(v->masks[1]);
    mem_free(v->bytes);
    mem_free(v->begin);
    mem_free(v);
}
