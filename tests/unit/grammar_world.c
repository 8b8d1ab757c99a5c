/* grammar_world.c - see grammar_world.h. */
#include "tests/unit/grammar_world.h"

#include <stdio.h>

static const char *const pieces[] = {
    "{\"",      "\":",   "\": ",
    "\", \"",   "\",\"", "\"}",
    "\"]",      "}]",    "]}",
    "}}",       "}}}}",  "},{",
    "[[",       "[{",    "[]",
    "{}",       "true",  "tru",
    "e,",       "false", "null",
    " null",    "12",    "0.",
    "-1",       "1e",    ".5",
    "  ",       "\n  ",  "\t",
    "ab",       "abc",   "a b",
    "_x",       "name",  "\"name\"",
    "é",        "日本",  "\xf0\x9f",
    "\x98\x80", "\\n",   "\\u00",
    "\\\"",     "\\\\",  "d83d",
    "ing",      "2024-", "aaaaaaaa",
    "z\"",      "a\",",  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "éé",       "1]",    "5}",
    "00"};

uint32_t world_count(void)
{
    return WORLD_BYTES + 256 + ARRAY_LEN(pieces);
}

struct str world_bytes(int32_t id)
{
    static const uint8_t all[256] = {
#define ROW(n)                                                                                     \
    n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8, n + 9, n + 10, n + 11, n + 12,      \
        n + 13, n + 14, n + 15
        ROW(0),   ROW(16),  ROW(32),  ROW(48),  ROW(64),  ROW(80),  ROW(96),  ROW(112),
        ROW(128), ROW(144), ROW(160), ROW(176), ROW(192), ROW(208), ROW(224), ROW(240)};

    if (id < WORLD_BYTES) {
        return STR("");
    }
    if (id < WORLD_BYTES + 256) {
        return str_of(&all[id - WORLD_BYTES], 1);
    }
    return str_c(pieces[id - WORLD_BYTES - 256]);
}

static struct str bytes_of(void *ctx, int32_t id)
{
    (void)ctx;
    return world_bytes(id);
}

struct grammar_vocab *world_vocab(void)
{
    static const int32_t eos = WORLD_EOS;
    struct err e;
    struct grammar_vocab *v;

    err_clear(&e);
    v = grammar_vocab_new(world_count(), bytes_of, NULL, &eos, 1, &e);
    CHECK(v != NULL);
    return v;
}

static struct grammar *compile(const struct grammar_vocab *v, const char *schema, struct err *e)
{
    const struct json_limits limits = {1000, 1000000};
    struct grammar_source src = {.kind = GRAMMAR_JSON_SCHEMA};
    struct arena arena;
    struct grammar *g;

    err_clear(e);
    arena_init(&arena, 64u << 20);
    src.schema = json_parse(&arena, str_c(schema), &limits, e);
    CHECK(src.schema != NULL);
    if (!grammar_compile(&src, v, &g, e)) {
        g = NULL;
    }
    arena_fini(&arena);
    return g;
}

struct grammar *world_schema(const struct grammar_vocab *v, const char *schema)
{
    struct err e;
    struct grammar *g = compile(v, schema, &e);

    if (g == NULL) {
        fprintf(stderr, "%.200s: %s\n", schema, e.text);
    }
    CHECK(g != NULL);
    return g;
}

void world_refused(const struct grammar_vocab *v, const char *schema, struct err *e)
{
    struct grammar *g = compile(v, schema, e);

    if (g != NULL) {
        fprintf(stderr, "taken: %.200s\n", schema);
    }
    CHECK(g == NULL && e->code != ERR_NONE);
}

static struct grammar *compile_regex(const struct grammar_vocab *v, const char *regex,
                                     struct err *e)
{
    struct grammar_source src = {.kind = GRAMMAR_REGEX, .regex = str_c(regex)};
    struct grammar *g;

    err_clear(e);
    return grammar_compile(&src, v, &g, e) ? g : NULL;
}

struct grammar *world_regex(const struct grammar_vocab *v, const char *regex)
{
    struct err e;
    struct grammar *g = compile_regex(v, regex, &e);

    if (g == NULL) {
        fprintf(stderr, "%.200s: %s\n", regex, e.text);
    }
    CHECK(g != NULL);
    return g;
}

void world_regex_refused(const struct grammar_vocab *v, const char *regex, struct err *e)
{
    struct grammar *g = compile_regex(v, regex, e);

    if (g != NULL) {
        fprintf(stderr, "taken: %.200s\n", regex);
    }
    CHECK(g == NULL && e->code != ERR_NONE);
}

size_t world_taken(const struct grammar *g, const char *text)
{
    struct grammar_state s;
    size_t n = 0;

    grammar_state_init(g, &s);
    while (text[n] != '\0' && grammar_accept_bytes(g, &s, str_of(text + n, 1))) {
        n++;
    }
    return n;
}

bool world_takes(const struct grammar *g, const char *text)
{
    struct grammar_state s;

    grammar_state_init(g, &s);
    for (size_t n = 0; text[n] != '\0'; n++) {
        if (!grammar_accept_bytes(g, &s, str_of(text + n, 1))) {
            return false;
        }
    }
    return grammar_accepting(g, &s);
}

static void check_mask(struct grammar *g, const struct grammar_state *s)
{
    uint32_t bits[32], n = 0, allowed;

    CHECK(GRAMMAR_MASK_WORDS(world_count()) <= ARRAY_LEN(bits));
    allowed = grammar_mask(g, s, bits);
    for (uint32_t id = 0; id < world_count(); id++) {
        struct grammar_state copy;
        bool may = (bits[id / 32] >> (id % 32) & 1) != 0;

        grammar_state_copy(&copy, s);
        if (grammar_accept_token(g, &copy, (int32_t)id) != may) {
            fprintf(stderr, "token %u '%.*s' is %s by the mask\n", id,
                    STR_ARG(world_bytes((int32_t)id)), may ? "allowed" : "not allowed");
            CHECK(false);
        }
        n += may;
    }
    CHECK(n == allowed && allowed > 0);
}

void world_check_masks(struct grammar *g, const char *text)
{
    struct grammar_state s;

    grammar_state_init(g, &s);
    check_mask(g, &s);
    for (size_t n = 0; text[n] != '\0'; n++) {
        if (!grammar_accept_bytes(g, &s, str_of(text + n, 1))) {
            fprintf(stderr, "not taken: %s\n", text + n);
            CHECK(false);
        }
        check_mask(g, &s);
    }
}
