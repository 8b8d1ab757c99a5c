/* tokenizer.c - byte-level BPE: a vocabulary, the tokens that stand for themselves, and encode.
 *
 * Bytes are spelled in the file as printable characters (GPT-2's byte-to-unicode table); here every
 * token is bytes. A byte that has no token is dropped before merging, silently, as the references
 * do. Knows no template and no chunk. */
#include "cache/tokenizer.h"

#include <stdlib.h>
#include "base/hash.h"
#include "cache/tokenizer_bpe.h"
#include "cache/tokenizer_pre.h"

#define TOKENIZER_TOKENS_MAX 4000000 /* as many as a GGUF array may hold */
#define TOKENIZER_SPECIAL_BYTES                                                                    \
    256                         /* a special token's spelling; bounds the search at each byte      \
                                 */
#define WHOLE_SPELLING_MAX 1024 /* no vocabulary has a longer normal token */
#define BYTE_SPELLING_MAX 0x144 /* characters 0x100..0x143 spell the 68 unprintable bytes */

struct tokenizer {
    struct str *spelling; /* owned array [count], strings borrowed from the file */
    uint8_t *type;        /* owned [count] */
    uint32_t count;
    char *blob;        /* owned: every token's bytes, one after another */
    uint32_t *blob_at; /* owned [count + 1] */
    uint32_t *find;    /* owned: open addressing, id + 1; at most half full */
    uint32_t find_mask;
    int32_t byte_id[256]; /* -1: no token for this byte */
    uint32_t *special;    /* owned [specials]: control and user ids, sorted by spelling */
    uint32_t specials;
    uint32_t special_first[257]; /* special[] index range by first byte */
    struct bpe bpe;
    enum tokenizer_pre pre;
    uint64_t digest;
};

/* Character -> byte of GPT-2's table: printable bytes are themselves, the rest are 0x100 + n in
 * ascending order. -1: spells no byte. */
static void byte_spelling(int16_t byte_of[BYTE_SPELLING_MAX])
{
    uint32_t next = 0x100;

    for (uint32_t i = 0; i < BYTE_SPELLING_MAX; i++) {
        byte_of[i] = -1;
    }
    for (uint32_t b = 0; b < 256; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        byte_of[printable ? b : next++] = (int16_t)b;
    }
    CHECK(next == BYTE_SPELLING_MAX);
}

/* Writes the bytes that a normal token spells; false when a character spells none (then the token
 * is its own text, as some files have them). */
static bool spelled_bytes(const int16_t *byte_of, struct str s, char *out, size_t *n)
{
    size_t used = 0;

    for (size_t at = 0; at < s.n;) {
        struct pre_char c = pre_peek(s, at);

        if (c.bad || c.code >= BYTE_SPELLING_MAX || byte_of[c.code] < 0) {
            return false;
        }
        out[used++] = (char)byte_of[c.code];
        at += c.bytes;
    }
    *n = used;
    return true;
}

/* "<0x0A>" -> one byte. */
static bool byte_token(struct str s, char *out)
{
    return s.n == 6 && memcmp(s.p, "<0x", 3) == 0 && s.p[5] == '>' &&
           str_unhex(str_of(s.p + 3, 2), out, 1);
}

static uint32_t find_slot(const struct tokenizer *t, struct str s)
{
    uint32_t i = (uint32_t)hash_xxh3(s.p, s.n, 0) & t->find_mask;

    while (t->find[i] != 0 && !str_eq(t->spelling[t->find[i] - 1], s)) {
        i = (i + 1) & t->find_mask;
    }
    return i;
}

int32_t tokenizer_find(const struct tokenizer *t, struct str exact)
{
    return (int32_t)t->find[find_slot(t, exact)] - 1;
}

static bool load_tokens(struct tokenizer *t, const struct tokenizer_source *src, struct err *e)
{
    int16_t byte_of[BYTE_SPELLING_MAX];
    uint64_t bytes = 0;

    byte_spelling(byte_of);
    for (uint32_t i = 0; i < t->count; i++) {
        bytes += src->tokens[i].n;
    }
    if (bytes >= UINT32_MAX) {
        return err_set(e, ERR_LIMIT, "tokenizer: the tokens' text is 4 GiB or more");
    }
    t->blob = mem_try(bytes + 1, 1);
    if (t->blob == NULL) {
        return err_set(e, ERR_NO_MEMORY, "tokenizer: no memory for %u tokens", t->count);
    }
    for (uint32_t i = 0; i < t->count; i++) {
        struct str s = src->tokens[i];
        char *out = t->blob + t->blob_at[i];
        size_t n = s.n;
        uint32_t slot = find_slot(t, s);

        if (src->types[i] < TOKEN_NORMAL || src->types[i] > TOKEN_BYTE) {
            return err_set(e, ERR_INPUT, "tokenizer: token %u has the unknown type %u", i,
                           src->types[i]);
        }
        t->spelling[i] = s;
        t->type[i] = (uint8_t)src->types[i];
        if (t->find[slot] == 0) { /* of equal spellings the first one is found */
            t->find[slot] = i + 1;
        }
        if (s.n > 0) {
            memcpy(out, s.p, s.n);
        }
        if (t->type[i] == TOKEN_BYTE && byte_token(s, out)) {
            n = 1;
        } else if (t->type[i] == TOKEN_NORMAL && !spelled_bytes(byte_of, s, out, &n)) {
            n = s.n;
            memcpy(out, s.p, s.n); /* a part may have been overwritten */
        }
        t->blob_at[i + 1] = t->blob_at[i] + (uint32_t)n;
    }
    return true;
}

/* The tokens that single bytes start from. */
static void load_bytes(struct tokenizer *t)
{
    int16_t byte_of[BYTE_SPELLING_MAX];

    byte_spelling(byte_of);
    for (uint32_t c = 0; c < BYTE_SPELLING_MAX; c++) {
        char utf8[2] = {(char)c, 0};
        size_t n = 1;

        if (byte_of[c] < 0) {
            continue;
        }
        if (c >= 0x80) {
            utf8[0] = (char)(0xC0 | c >> 6);
            utf8[1] = (char)(0x80 | (c & 0x3F));
            n = 2;
        }
        t->byte_id[byte_of[c]] = tokenizer_find(t, str_of(utf8, n));
    }
}

static int by_spelling(const void *a, const void *b, void *ctx)
{
    const struct tokenizer *t = ctx;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    int c = str_cmp(t->spelling[x], t->spelling[y]);

    return c != 0 ? c : (x > y) - (x < y);
}

static bool load_specials(struct tokenizer *t, struct err *e)
{
    uint32_t n = 0, at = 0;

    for (uint32_t i = 0; i < t->count; i++) {
        n += t->type[i] == TOKEN_CONTROL || t->type[i] == TOKEN_USER;
    }
    t->special = mem_try((size_t)n + 1, sizeof(*t->special));
    if (t->special == NULL) {
        return err_set(e, ERR_NO_MEMORY, "tokenizer: no memory for %u special tokens", n);
    }
    for (uint32_t i = 0; i < t->count; i++) {
        if (t->type[i] != TOKEN_CONTROL && t->type[i] != TOKEN_USER) {
            continue;
        }
        if (t->spelling[i].n == 0 || t->spelling[i].n > TOKENIZER_SPECIAL_BYTES) {
            return err_set(e, ERR_INPUT, "tokenizer: special token %u is %zu bytes, not 1 to %d", i,
                           t->spelling[i].n, TOKENIZER_SPECIAL_BYTES);
        }
        t->special[t->specials++] = i;
    }
    qsort_r(t->special, t->specials, sizeof(*t->special), by_spelling, t);
    for (uint32_t b = 0; b <= 256; b++) {
        while (at < t->specials && (uint8_t)t->spelling[t->special[at]].p[0] < b) {
            at++;
        }
        t->special_first[b] = at;
    }
    return true;
}

static bool load_merge(struct tokenizer *t, uint32_t rank, struct str merge, struct buf *joined,
                       struct err *e)
{
    struct str left, right;
    int32_t l, r, m;

    /* Neither side contains a space: the byte 20 is spelled U+0120. */
    if (!str_cut(merge, ' ', &left, &right)) {
        return err_set(e, ERR_INPUT, "tokenizer: merge %u has no space in it", rank);
    }
    buf_reset(joined);
    buf_str(joined, left);
    buf_str(joined, right);
    if (joined->failed) {
        return err_set(e, ERR_INPUT, "tokenizer: merge %u is too long", rank);
    }
    l = tokenizer_find(t, left);
    r = tokenizer_find(t, right);
    m = tokenizer_find(t, buf_view(joined));
    if (l < 0 || r < 0 || m < 0) {
        return err_set(e, ERR_INPUT, "tokenizer: merge %u names a token that is not there", rank);
    }
    bpe_add(&t->bpe, l, r, rank, m);
    return true;
}

static bool load_merges(struct tokenizer *t, const struct tokenizer_source *src, struct err *e)
{
    struct buf joined;
    bool ok = true;

    if (!bpe_init(&t->bpe, src->merge_count)) {
        return err_set(e, ERR_NO_MEMORY, "tokenizer: no memory for %u merges", src->merge_count);
    }
    buf_init(&joined, 64 * 1024);
    for (uint32_t i = 0; ok && i < src->merge_count; i++) {
        ok = load_merge(t, i, src->merges[i], &joined, e);
    }
    buf_fini(&joined);
    return ok;
}

/* A sum, so that it does not matter in which order the parts are visited; each carries its id or
 * rank, so that two vocabularies in another order differ. */
static uint64_t digest(const struct tokenizer_source *src)
{
    uint64_t sum = src->pre;

    for (uint32_t i = 0; i < src->count; i++) {
        sum += hash_xxh3(src->tokens[i].p, src->tokens[i].n, (uint64_t)src->types[i] << 32 | i);
    }
    for (uint32_t i = 0; i < src->merge_count; i++) {
        sum += hash_xxh3(src->merges[i].p, src->merges[i].n, 1ULL << 63 | i);
    }
    return sum;
}

struct tokenizer *tokenizer_new(const struct tokenizer_source *src, struct err *e)
{
    struct tokenizer *t;
    size_t cap = 16;

    if (src->count == 0 || src->count > TOKENIZER_TOKENS_MAX ||
        src->merge_count > TOKENIZER_TOKENS_MAX) {
        err_set(e, ERR_LIMIT, "tokenizer: %u tokens and %u merges; 1 to %d are possible",
                src->count, src->merge_count, TOKENIZER_TOKENS_MAX);
        return NULL;
    }
    while (cap < (size_t)src->count * 2) {
        cap *= 2;
    }
    t = mem_new(sizeof(*t));
    t->count = src->count;
    t->pre = src->pre;
    t->find_mask = (uint32_t)(cap - 1);
    t->find = mem_try(cap, sizeof(*t->find));
    t->spelling = mem_try(t->count, sizeof(*t->spelling));
    t->type = mem_try(t->count, 1);
    t->blob_at = mem_try((size_t)t->count + 1, sizeof(*t->blob_at));
    if (t->find == NULL || t->spelling == NULL || t->type == NULL || t->blob_at == NULL) {
        err_set(e, ERR_NO_MEMORY, "tokenizer: no memory for %u tokens", src->count);
        tokenizer_free(t);
        return NULL;
    }
    if (!load_tokens(t, src, e) || !load_specials(t, e) || !load_merges(t, src, e)) {
        tokenizer_free(t);
        return NULL;
    }
    load_bytes(t);
    t->digest = digest(src);
    return t;
}

void tokenizer_free(struct tokenizer *t)
{
    if (t == NULL) {
        return;
    }
    bpe_fini(&t->bpe);
    mem_free(t->special);
    mem_free(t->blob_at);
    mem_free(t->blob);
    mem_free(t->type);
    mem_free(t->spelling);
    mem_free(t->find);
    mem_free(t);
}

/* Where encode puts its tokens. */
struct sink {
    struct token *out;
    uint64_t cap, n;
    struct bpe_scratch scratch;
};

static bool sink_put(struct sink *s, int32_t id, size_t end)
{
    if (s->n == s->cap) {
        return false;
    }
    s->out[s->n++] = (struct token){.id = id, .end = (uint32_t)end};
    return true;
}

/* The bytes of text[at, end) as tokens; a byte that is no UTF-8 as the three of U+FFFD. */
static bool put_bytes(const struct tokenizer *t, struct str text, size_t at, size_t end,
                      struct sink *s)
{
    static const uint8_t replacement[] = {0xEF, 0xBF, 0xBD};

    while (at < end) {
        struct pre_char c = pre_peek(text, at);
        const uint8_t *p = c.bad ? replacement : (const uint8_t *)text.p + at;
        uint32_t n = c.bad ? 3 : c.bytes;

        at += c.bytes;
        for (uint32_t i = 0; i < n; i++) {
            size_t byte_end = c.bad ? at : at - n + i + 1;

            if (t->byte_id[p[i]] >= 0 && !sink_put(s, t->byte_id[p[i]], byte_end)) {
                return false;
            }
        }
    }
    return true;
}

/* Llama 3 takes a pre-token that is a token as it is, whatever the merges say. */
static int32_t whole_token(const struct tokenizer *t, struct token *first, size_t n)
{
    char spelled[WHOLE_SPELLING_MAX];
    size_t used = 0;

    if (t->pre != TOKENIZER_LLAMA3 || n < 2) {
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        struct str s = t->spelling[first[i].id];

        if (used + s.n > sizeof(spelled)) {
            return -1;
        }
        memcpy(spelled + used, s.p, s.n);
        used += s.n;
    }
    return tokenizer_find(t, str_of(spelled, used));
}

static bool encode_word(const struct tokenizer *t, struct str text, size_t at, size_t end,
                        struct sink *s)
{
    uint64_t first = s->n;
    int64_t left;
    int32_t whole;

    if (!put_bytes(t, text, at, end, s)) {
        return false;
    }
    whole = whole_token(t, s->out + first, s->n - first);
    if (whole >= 0 && t->type[whole] == TOKEN_NORMAL) {
        s->out[first].id = whole;
        s->n = first + 1;
    } else {
        left = bpe_merge(&t->bpe, s->out + first, s->n - first, &s->scratch);
        if (left < 0) {
            return false;
        }
        s->n = first + (uint64_t)left;
    }
    if (s->n > first) {
        s->out[s->n - 1].end = (uint32_t)end;
        s->out[s->n - 1].boundary = true;
    }
    return true;
}

/* First of special[lo, hi) whose n-th byte is c or more; they are equal before it. */
static uint32_t special_bound(const struct tokenizer *t, uint32_t lo, uint32_t hi, size_t n,
                              unsigned c)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if ((uint8_t)t->spelling[t->special[mid]].p[n] < c) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* The longest special token at `at`, or -1. special[] is sorted, so the ones that share the bytes
 * read so far are a range, and one that ends here is its first. */
static int32_t special_at(const struct tokenizer *t, struct str text, size_t at)
{
    unsigned c = (uint8_t)text.p[at];
    uint32_t lo = t->special_first[c], hi = t->special_first[c + 1];
    int32_t best = -1;

    for (size_t n = 1; lo < hi; n++) {
        if (t->spelling[t->special[lo]].n == n) {
            best = (int32_t)t->special[lo];
            while (lo < hi && t->spelling[t->special[lo]].n == n) {
                lo++; /* of equal spellings the lowest id is taken */
            }
        }
        if (at + n >= text.n) {
            break;
        }
        c = (uint8_t)text.p[at + n];
        lo = special_bound(t, lo, hi, n, c);
        hi = special_bound(t, lo, hi, n, c + 1);
    }
    return best;
}

/* text[at, end) holds no special token, and what follows `end` is not looked at. */
static bool encode_plain(const struct tokenizer *t, struct str text, size_t at, size_t end,
                         struct sink *s)
{
    text.n = end;
    while (at < end) {
        size_t next = pre_next(t->pre, text, at);

        if (!encode_word(t, text, at, next, s)) {
            return false;
        }
        at = next;
    }
    return true;
}

static bool encode_special(const struct tokenizer *t, struct str text, struct sink *s)
{
    size_t plain = 0;

    for (size_t at = 0; at < text.n;) {
        int32_t id = special_at(t, text, at);

        if (id < 0) {
            at++;
            continue;
        }
        if (!encode_plain(t, text, plain, at, s)) {
            return false;
        }
        at += t->spelling[id].n;
        plain = at;
        if (!sink_put(s, id, at)) {
            return false;
        }
        s->out[s->n - 1].boundary = true;
    }
    return encode_plain(t, text, plain, text.n, s);
}

int64_t tokenizer_encode(const struct tokenizer *t, struct str text, enum tokenizer_special sp,
                         struct token *out, uint32_t cap)
{
    struct sink s = {.out = out, .cap = cap};
    bool ok;

    CHECK(text.n < UINT32_MAX);
    ok = sp == TOKENIZER_PARSE_SPECIAL ? encode_special(t, text, &s)
                                       : encode_plain(t, text, 0, text.n, &s);
    bpe_scratch_fini(&s.scratch);
    return ok ? (int64_t)s.n : -1;
}

struct str tokenizer_bytes(const struct tokenizer *t, int32_t id, bool special)
{
    CHECK(id >= 0 && (uint32_t)id < t->count);
    if (!special && (t->type[id] == TOKEN_CONTROL || t->type[id] == TOKEN_UNKNOWN)) {
        return str_of(t->blob, 0);
    }
    return str_of(t->blob + t->blob_at[id], t->blob_at[id + 1] - t->blob_at[id]);
}

uint32_t tokenizer_count(const struct tokenizer *t)
{
    return t->count;
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->count && t->type[id] == TOKEN_CONTROL;
}

uint64_t tokenizer_digest(const struct tokenizer *t)
{
    return t->digest;
}
