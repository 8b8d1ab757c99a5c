/* fuzz_tokenizer.c - any bytes as text: every pre-tokenizer ends, ids decode to the text, ends
 * follow it, nothing past it is read; any bytes as a vocabulary: an answer.
 *
 * The first byte picks: 0..5 a pre-tokenizer over a built-in vocabulary; else the rest is a file of
 * lines: T type spelling | M left right. */
#include <stdlib.h>

#include "cache/tokenizer.h"

#define LINES_MAX 512
#define TEXT_MAX 4096
#define PRES TOKENIZER_DEEPSEEK_CODER

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct vocabulary {
    struct str tokens[LINES_MAX], merges[LINES_MAX];
    uint32_t types[LINES_MAX];
    char spelling[256][2];
    struct tokenizer_source src;
};

static void add(struct vocabulary *v, struct str s, uint32_t type)
{
    v->types[v->src.count] = type;
    v->tokens[v->src.count++] = s;
}

static void add_merge(struct vocabulary *v, struct str merge, struct str joined)
{
    v->merges[v->src.merge_count++] = merge;
    add(v, joined, TOKEN_NORMAL);
}

/* GPT-2's spelling of all bytes, two specials and a few merges. */
static void built_in(struct vocabulary *v)
{
    unsigned next = 0x100;

    for (unsigned b = 0; b < 256; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        unsigned c = printable ? b : next++;

        v->spelling[b][0] = (char)(c < 0x80 ? c : 0xC0 | c >> 6);
        v->spelling[b][1] = (char)(0x80 | (c & 0x3F));
        add(v, str_of(v->spelling[b], c < 0x80 ? 1 : 2), TOKEN_NORMAL);
    }
    add(v, STR("<|a|>"), TOKEN_CONTROL);
    add(v, STR("<|a"), TOKEN_USER);
    add_merge(v, STR("a a"), STR("aa"));
    add_merge(v, STR("aa aa"), STR("aaaa"));
    add_merge(v, STR("Ġ a"), STR("Ġa"));
    add_merge(v, STR("Ġ Ġ"), STR("ĠĠ"));
    add_merge(v, STR("1 2"), STR("12"));
}

/* The text with every bad byte as U+FFFD: what the ids must decode to. */
static size_t repaired(struct str text, char *out)
{
    size_t n = 0;

    while (text.n > 0) {
        size_t good = str_utf8_valid(text);

        memcpy(out + n, text.p, good);
        n += good;
        text = str_of(text.p + good, text.n - good);
        if (text.n > 0) {
            memcpy(out + n, "\xEF\xBF\xBD", 3);
            n += 3;
            text = str_of(text.p + 1, text.n - 1);
        }
    }
    return n;
}

static void encode(const struct tokenizer *t, struct str text, enum tokenizer_special sp)
{
    static struct token out[3 * TEXT_MAX], again[3 * TEXT_MAX];
    static char want[3 * TEXT_MAX];
    size_t n = repaired(text, want), at = 0;
    uint32_t end = 0;
    int64_t count = tokenizer_encode(t, text, sp, out, 3 * TEXT_MAX);

    CHECK(count >= 0);
    for (int64_t i = 0; i < count; i++) {
        struct str b = tokenizer_bytes(t, out[i].id, true);

        CHECK(b.n > 0 && at + b.n <= n && memcmp(want + at, b.p, b.n) == 0);
        CHECK(out[i].end >= end && out[i].end <= text.n);
        at += b.n;
        end = out[i].end;
    }
    CHECK(at == n && end == text.n);
    CHECK(count == 0 || out[count - 1].boundary);
    /* The same text again, from its own memory's end on: nothing is read past it. */
    if (count > 0) {
        char *copy = malloc(text.n);

        memcpy(copy, text.p, text.n);
        CHECK(tokenizer_encode(t, str_of(copy, text.n), sp, again, (uint32_t)(3 * text.n)) ==
              count);
        for (int64_t i = 0; i < count; i++) {
            CHECK(out[i].id == again[i].id && out[i].end == again[i].end);
        }
        free(copy);
    }
}

static void from_lines(struct vocabulary *v, struct str rest)
{
    while (rest.n > 0 && v->src.count < LINES_MAX && v->src.merge_count < LINES_MAX) {
        struct str line;

        if (!str_cut(rest, '\n', &line, &rest)) {
            rest = str_of("", 0);
        }
        if (line.n >= 2 && line.p[0] == 'T') {
            add(v, str_of(line.p + 2, line.n - 2), (uint32_t)(line.p[1] - '0'));
        } else if (line.n >= 1 && line.p[0] == 'M') {
            v->merges[v->src.merge_count++] = str_of(line.p + 1, line.n - 1);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct vocabulary *v;
    struct tokenizer *t;
    struct err e = {0};
    struct str rest;
    bool ours;

    if (size < 1 || size > TEXT_MAX) {
        return 0;
    }
    rest = str_of(data + 1, size - 1);
    ours = data[0] < PRES;
    v = mem_new(sizeof(*v));
    v->src = (struct tokenizer_source){.tokens = v->tokens,
                                       .types = v->types,
                                       .merges = v->merges,
                                       .pre = TOKENIZER_SMOLLM + data[0] % PRES,
                                       .bos = -1,
                                       .eos = -1};
    if (ours) {
        built_in(v);
    } else {
        from_lines(v, rest);
    }
    t = tokenizer_new(&v->src, &e);
    CHECK((t != NULL) == (e.code == ERR_NONE));
    CHECK(t != NULL || !ours);
    if (t != NULL && ours) {
        encode(t, rest, TOKENIZER_PLAIN);
        encode(t, rest, TOKENIZER_PARSE_SPECIAL);
    } else if (t != NULL) {
        static struct token out[3 * TEXT_MAX];

        CHECK(tokenizer_encode(t, rest, TOKENIZER_PARSE_SPECIAL, out, 3 * TEXT_MAX) >= 0);
    }
    tokenizer_free(t);
    mem_free(v);
    return 0;
}
