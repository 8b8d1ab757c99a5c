/* test_grammar_walk.c - masks over a vocabulary of thousands of tokens are what accepting says,
 * whichever way a walk goes: by classes, token by token, by bytes, by a scan, and when its memory
 * is full. */
#include "tests/unit/grammar_world.h"
#include "tests/unit/vocab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/arena.h"

#define TOKENS 6000u
#define TEXT_MAX 260u
#define WALKS 6
#define WALK_STEPS 12

struct words {
    char text[TOKENS][TEXT_MAX];
    uint32_t len[TOKENS], n;
    struct grammar_vocab *v;
};

static uint32_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

static struct str bytes_of(void *ctx, int32_t id)
{
    const struct words *w = ctx;

    return str_of(w->text[id], w->len[id]);
}

static void add(struct words *w, const char *text, size_t n)
{
    assert_true(w->n < TOKENS && n <= TEXT_MAX);
    memcpy(w->text[w->n], text, n);
    w->len[w->n++] = (uint32_t)n;
}

static void index_words(struct words *w)
{
    static const int32_t eos = 0;
    struct err e;

    err_clear(&e);
    w->v = grammar_vocab_new(w->n, bytes_of, w, &eos, 1, &e);
    assert_non_null(w->v);
}

/* EOS, every byte, and words of a few letters: many that share a beginning, with and without
 * capitals, digits, spaces of all kinds, wide characters and halves of them. */
static struct words *words_new(void)
{
    static const char *const parts[] = {
        "a",  "b",  "e",    "z",    "s",  "t",  "A", "E", "Z",  "1",      "9",      "_",    " ",
        ".",  "@",  "-",    ",",    "é",  "日", "я", "😀", "\"", "\\",     "\n",     "/",    "{",
        "a",  "a",  "b",    "s",    "s",  "t",  "u", "n", "o",  "\u00a0", "\xe6",   "\x97", "ing",
        "er", "},", "\": ", "\\u0", "[[", "],", "0", "1", "x",  "\u2028", "\u3000", "e"};
    struct words *w = mem_new(sizeof(*w));
    uint64_t seed = 7;

    add(w, "", 0);
    for (int i = 0; i < 256; i++) {
        char c = (char)i;

        add(w, &c, 1);
    }
    for (int i = 0; i < 400; i++) { /* numbers, and what may follow them */
        char text[TEXT_MAX];

        add(w, text, (size_t)snprintf(text, sizeof(text), "%d%s", i, i % 3 == 0 ? ", " : ""));
    }
    while (w->n < TOKENS) {
        char text[TEXT_MAX];
        size_t n = 0;
        /* Most are plain words, as in a real vocabulary. */
        uint32_t left = 2 + draw(&seed) % 5, tame = draw(&seed) % 4;

        for (; left > 0; left--) {
            size_t at = tame > 0 ? (draw(&seed) % 3 > 0 ? draw(&seed) % 6 : 26 + draw(&seed) % 9)
                                 : draw(&seed) % ARRAY_LEN(parts);

            memcpy(text + n, parts[at], strlen(parts[at]));
            n += strlen(parts[at]);
        }
        if (tame == 1) {
            memmove(text + 1, text, n++);
            text[0] = ' ';
        }
        add(w, text, n);
    }
    index_words(w);
    return w;
}

static void words_free(struct words *w)
{
    grammar_vocab_free(w->v);
    mem_free(w);
}

/* The mask here is right; returns how many may come. */
static uint32_t check(const struct words *w, struct grammar *g, const struct grammar_state *s,
                      uint32_t *bits, const char *what)
{
    uint32_t allowed = grammar_mask(g, s, bits), seen = 0;

    for (uint32_t id = 0; id < w->n; id++) {
        struct grammar_state to;
        bool bit = (bits[id / 32] >> (id % 32) & 1) != 0;

        grammar_state_copy(&to, s);
        if (grammar_accept_token(g, &to, (int32_t)id) != bit) {
            fail_msg("%s: token %u (%.*s) is %s the mask", what, id, (int)w->len[id], w->text[id],
                     bit ? "wrongly in" : "missing in");
        }
        seen += bit;
    }
    assert_int_equal(allowed, seen);
    return allowed;
}

static void walk(const struct words *w, struct grammar *g, uint64_t seed, const char *what)
{
    static uint32_t bits[GRAMMAR_MASK_WORDS(TOKENS)];
    struct grammar_state s;

    grammar_state_init(g, &s);
    for (int step = 0; step < WALK_STEPS && !s.ended; step++) {
        uint32_t id = draw(&seed) % w->n;

        assert_true(check(w, g, &s, bits, what) > 0);
        while ((bits[id / 32] >> (id % 32) & 1) == 0) {
            id = (id + 1) % w->n;
        }
        assert_true(grammar_accept_token(g, &s, (int32_t)id));
    }
}

#define TEXT(rest) "{\"type\":\"string\"" rest "}"
#define PATTERN(p) TEXT(",\"pattern\":\"" p "\"")

static const char *const schemas[] = {
    TEXT(""),
    TEXT(",\"maxLength\":3"),
    TEXT(",\"minLength\":9,\"maxLength\":20"),
    PATTERN("^[^@ ]+@[^@ ]+[.][a-z]{2,10}$"),
    PATTERN("^[^eE]+$"),
    PATTERN("^[^e]*E[^E]*$"),
    PATTERN("^[a-y .]+$"),
    PATTERN("^[a-z]{1,4}$"),
    PATTERN("^[A-Z][a-y]*( [A-Z][a-y]*)*$"),
    PATTERN("^([^@#][^#$])+$"),
    PATTERN("^(\\\\w{2,5}[ ,]){2,12}$"),
    PATTERN("^.{3,9}$"),
    PATTERN("^[\\\\u0400-\\\\u04ff ]+$"),
    PATTERN("^[^\\\\s]+\\\\s[a-t]+$"),
    PATTERN("^([a-y][b-z]){2,9}$"),
    PATTERN("z"),
    "{\"anyOf\":[" PATTERN("^([^@a][^#e]){4,20}$") "," PATTERN("^([^@b][^#z]){3,20}$") "," PATTERN(
        "^[^s]+$") "," PATTERN("^[^t]+$") "]}",
    "{\"anyOf\":[" PATTERN("^[^s]+$") "," PATTERN("^[^t]{0,7}$") "]}",
    "{\"properties\":{\"abe\":{},\"ab\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":"
    "\"string\"}}",
    "{\"enum\":[\"a\",\"ab\",\"abs\",\"as\",\"bats\",\"é\",\"日\",10,101]}",
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}",
    "true",
};

static const char *const expressions[] = {
    "[^eE]+",
    ".{1,40}\\n[a-s]+",
    "[^,\\n\"]*(,[^,\\n\"]*)*\\n",
    "[a-tA-S_]+",
    "(a|b|[^\\x00-~])+",
    "[\\s\\S]*z",
    "\\s+\\S{2,}",
    "[^\\u3000]+",
    /* loops over U+0000 and no wide character */
    "[a-m ][\\x00-\\x7f]*",
    "(yes|no|[a-m])[\\x00-\\x7f]*",
    "[\\x00-pr-\\x7f]+",
};

static void masks_are_what_accepting_says(void **state)
{
    struct words *w = words_new();

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(schemas) + ARRAY_LEN(expressions); i++) {
        bool schema = i < ARRAY_LEN(schemas);
        const char *source = schema ? schemas[i] : expressions[i - ARRAY_LEN(schemas)];
        struct grammar *g = schema ? world_schema(w->v, source) : world_regex(w->v, source);

        for (uint32_t k = 0; k < WALKS; k++) {
            walk(w, g, i * 100 + k, source);
        }
        if (schema && (strstr(source, "pattern") != NULL || strstr(source, "items") != NULL)) {
            static uint32_t bits[GRAMMAR_MASK_WORDS(TOKENS)];
            struct grammar_state s;

            grammar_state_init(g, &s);
            assert_true(grammar_accept_bytes(
                g, &s, strstr(source, "items") != NULL ? STR("[1, ") : STR("\"")));
            (void)check(w, g, &s, bits, source);
        }
        grammar_release(g);
    }
    words_free(w);
}

/* ---- drawn expressions ---- */

#define DRAWN 100 /* each as an expression, as a pattern and as one of several */
#define DRAWN_STEPS 3
#define DRAWN_BYTES 700u

static const char *const atoms[] = {"[\\x00-pr-\\x7f]",
                                    "[\\x00-\\x7f]",
                                    "[^\\u0000-\\u007f]",
                                    "[^q]",
                                    "[a-p]",
                                    "[^\\u00e9]",
                                    "[^\\s]",
                                    "\\s",
                                    "\\S",
                                    ".",
                                    "[A-Za-z]",
                                    "[\\u0080-\\uffff]",
                                    "[^a]",
                                    "[b-z]",
                                    "\\w",
                                    "\\W",
                                    "\\d",
                                    "[^\\x00-\\x1f]",
                                    "[\\x00b-z]",
                                    "[\\s\\S]",
                                    "[^\\u3000]",
                                    "a",
                                    "[\\x00\\u65e5]"};
static const char *const loops[] = {"[\\x00-\\x7f]*", "[\\x00-pr-\\x7f]+", "[^\\u0080-\\uffff]*",
                                    "[\\x00a-z\\u0100-\\u9fff]*"};
static const char *const repeats[] = {"", "", "+", "*", "*", "{2,5}", "{1,40}", "?"};

static void draw_expression(uint64_t *seed, struct buf *out)
{
    uint32_t parts = 1 + draw(seed) % 4, loop = draw(seed) % 3;

    buf_reset(out);
    for (uint32_t k = 0; k < parts; k++) {
        bool group = draw(seed) % 4 == 0;

        buf_c(out, group ? "(" : "");
        buf_c(out, atoms[draw(seed) % ARRAY_LEN(atoms)]);
        buf_c(out, repeats[draw(seed) % ARRAY_LEN(repeats)]);
        if (group) {
            buf_c(out, draw(seed) % 2 != 0 ? "|" : "");
            buf_c(out, atoms[draw(seed) % ARRAY_LEN(atoms)]);
            buf_c(out, ")");
            buf_c(out, repeats[draw(seed) % ARRAY_LEN(repeats)]);
        }
    }
    if (loop > 0) { /* the tail of most tokens, then */
        buf_c(out, "[a-m ]");
        buf_c(out, loops[draw(seed) % ARRAY_LEN(loops)]);
    }
}

static void drawn_pattern(struct str expression, bool several, uint64_t *seed, struct buf *out)
{
    buf_reset(out);
    buf_c(out, several ? "{\"anyOf\":[" : "");
    buf_c(out, "{\"type\":\"string\",\"pattern\":\"^");
    for (size_t i = 0; i < expression.n; i++) {
        buf_c(out, expression.p[i] == '\\' ? "\\" : "");
        buf_byte(out, (uint8_t)expression.p[i]);
    }
    buf_c(out, draw(seed) % 3 != 0 ? "$\"}" : "$\",\"maxLength\":30}");
    buf_c(out, several ? "," PATTERN("^[^t]{0,7}$") "," PATTERN("^([a-y][^e])+$") "]}" : "");
    buf_byte(out, 0);
}

/* A mask is what one byte after the other says of each token. */
static void drawn_check(const struct words *w, const struct grammar_source *src, uint64_t seed,
                        const char *what)
{
    static uint32_t bits[GRAMMAR_MASK_WORDS(TOKENS)];
    struct grammar_state s;
    struct grammar *g;
    struct err e;

    err_clear(&e);
    if (!grammar_compile(src, w->v, &g, &e)) {
        assert_true(e.code == ERR_LIMIT || e.code == ERR_INPUT);
        return;
    }
    grammar_state_init(g, &s);
    if (src->kind == GRAMMAR_JSON_SCHEMA) {
        assert_true(grammar_accept_bytes(g, &s, STR("\"")));
    }
    for (int step = 0; step < DRAWN_STEPS && !s.ended; step++) {
        uint32_t id = draw(&seed) % w->n;

        assert_true(check(w, g, &s, bits, what) > 0);
        while ((bits[id / 32] >> (id % 32) & 1) == 0) {
            id = (id + 1) % w->n;
        }
        assert_true(grammar_accept_token(g, &s, (int32_t)id));
    }
    grammar_release(g);
}

static void masks_of_drawn_expressions_too(void **state)
{
    struct words *w = words_new();
    uint64_t seed = 11;
    struct buf regex, schema;

    (void)state;
    buf_init(&regex, DRAWN_BYTES);
    buf_init(&schema, 4 * DRAWN_BYTES);
    for (int i = 0; i < DRAWN; i++) {
        struct grammar_source src = {.kind = GRAMMAR_REGEX};
        struct arena arena;
        struct err e;

        draw_expression(&seed, &regex);
        assert_false(regex.failed);
        src.regex = buf_view(&regex);
        drawn_pattern(src.regex, i % 2 == 1, &seed, &schema);
        assert_false(schema.failed);
        buf_byte(&regex, 0);
        drawn_check(w, &src, seed, (const char *)regex.p);
        err_clear(&e);
        arena_init(&arena, 1u << 20);
        src.kind = GRAMMAR_JSON_SCHEMA;
        src.schema = json_parse(&arena, str_c((const char *)schema.p), &json_limits_api, &e);
        assert_non_null(src.schema);
        drawn_check(w, &src, seed, (const char *)schema.p);
        arena_fini(&arena);
    }
    buf_fini(&regex);
    buf_fini(&schema);
    words_free(w);
}

/* Tokens that open and count arrays, so that no two places of the trie are alike: more sets of
 * stacks and more frames than a walk keeps. */
static void a_walk_that_runs_full_goes_on(void **state)
{
    static uint32_t bits[GRAMMAR_MASK_WORDS(TOKENS)];
    struct words *w = mem_new(sizeof(*w));
    struct grammar *g;
    struct grammar_state s;

    (void)state;
    add(w, "", 0);
    for (int deep = 1; deep <= 4; deep++) {
        for (int before = 0; before <= 110; before++) {
            char text[TEXT_MAX];
            size_t n = 0;

            memset(text, '[', (size_t)deep);
            n += (size_t)deep;
            for (int i = 0; i < before; i++) {
                memcpy(text + n, "1,", 2);
                n += 2;
            }
            text[n++] = '[';
            while (n + 10 <= GRAMMAR_TOKEN_BYTES_MAX) {
                memcpy(text + n, "1,", 2);
                n += 2;
            }
            text[n++] = '1';
            for (int i = before % (deep + 4); i > 0; i--) {
                text[n++] = ']'; /* some close more than is open */
            }
            if (before % 7 == 3) {
                text[n - 1] = 'x'; /* must not pass */
            }
            add(w, text, n);
        }
    }
    index_words(w);
    g = world_schema(w->v, "{\"type\":\"array\",\"maxItems\":120,\"items\":{\"anyOf\":[{\"type\":"
                           "\"integer\"},{\"$ref\":\"#\"}]}}");
    grammar_state_init(g, &s);
    assert_true(check(w, g, &s, bits, "arrays") > 200);
    grammar_release(g);
    words_free(w);
}

/* ---- a real vocabulary ---- */

static struct str real_bytes(void *ctx, int32_t id)
{
    return id == 0 ? STR("") : tokenizer_bytes(ctx, id, false);
}

#define REAL_STEP 61u /* of this many tokens one is compared */

static void real_check(struct grammar *g, const struct grammar_state *s, uint32_t *bits, uint32_t n,
                       const char *what)
{
    (void)grammar_mask(g, s, bits);
    for (uint32_t id = s->n_frames % REAL_STEP; id < n; id += REAL_STEP) {
        struct grammar_state to;

        grammar_state_copy(&to, s);
        if (grammar_accept_token(g, &to, (int32_t)id) != (bits[id / 32] >> (id % 32) & 1)) {
            fail_msg("%s: token %u", what, id);
        }
    }
}

static void masks_over_a_real_vocabulary_too(void **state)
{
    static const int32_t eos = 0;
    struct grammar_vocab *v;
    struct vocab real;
    struct err e;
    char path[512];
    uint32_t *bits, n;

    (void)state;
    if (!vocab_path(path, "qwen2", "")) {
        print_message("%s is not there\n", path);
        skip();
    }
    err_clear(&e);
    vocab_open(&real, path);
    n = tokenizer_count(real.t);
    v = grammar_vocab_new(n, real_bytes, real.t, &eos, 1, &e);
    assert_non_null(v);
    bits = mem_new(GRAMMAR_MASK_WORDS(n) * sizeof(*bits));
    for (size_t i = 0; i < ARRAY_LEN(schemas); i++) {
        struct grammar *g = world_schema(v, schemas[i]);
        uint64_t seed = i;
        struct grammar_state s;

        grammar_state_init(g, &s);
        for (int step = 0; step < WALK_STEPS && !s.ended; step++) {
            uint32_t id = draw(&seed) % n;

            real_check(g, &s, bits, n, schemas[i]);
            while ((bits[id / 32] >> (id % 32) & 1) == 0) {
                id = (id + 1) % n;
            }
            assert_true(grammar_accept_token(g, &s, (int32_t)id));
        }
        grammar_release(g);
    }
    mem_free(bits);
    grammar_vocab_free(v);
    vocab_close(&real);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_are_what_accepting_says),
        cmocka_unit_test(masks_of_drawn_expressions_too),
        cmocka_unit_test(masks_over_a_real_vocabulary_too),
        cmocka_unit_test(a_walk_that_runs_full_goes_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
