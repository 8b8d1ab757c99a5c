/* fuzz_grammar.c - any schema or expression, then any bytes as drawn from its masks.
 *
 * Input: a kind byte, the source up to the first NUL, then choices. What is compiled must go on: no
 * mask is empty before the end, what it allows is accepted and what it does not allow is refused,
 * and what ends parses. */
#include <stdlib.h>

#include "worker/engine/grammar.h"

#define ARENA_BYTES (64u << 20)
#define PIECES 14
#define WORDS (PIECES * PIECES * PIECES)
/* EOS, every byte, and words of three pieces: most plain, some that cross JSON's tokens. */
#define TOKENS (257 + WORDS)
#define WORD_BYTES 16
#define STEPS_MAX 40
#define CHECKED 60 /* tokens of each mask */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct tokens {
    uint8_t text[TOKENS][WORD_BYTES];
    uint8_t len[TOKENS];
};

static void tokens_make(struct tokens *t)
{
    static const char *const pieces[PIECES] = {"a", "b",  "z",   "A", "E",      "1",      " ",
                                               "_", "\"", "\":", "}", "\u00e9", "\u3000", "\\u0"};

    for (uint32_t i = 1; i <= 256; i++) {
        t->text[i][0] = (uint8_t)(i - 1);
        t->len[i] = 1;
    }
    for (uint32_t i = 0; i < WORDS; i++) {
        uint32_t parts[3] = {i % PIECES, i / PIECES % PIECES, i / PIECES / PIECES};

        for (int k = 0; k < 3; k++) {
            const char *piece = pieces[parts[k]];
            uint8_t *n = &t->len[257 + i];

            memcpy(t->text[257 + i] + *n, piece, strlen(piece));
            *n = (uint8_t)(*n + strlen(piece));
        }
    }
}

static struct str token_bytes(void *ctx, int32_t id)
{
    const struct tokens *t = ctx;

    return str_of(t->text[id], t->len[id]);
}

static void check_end(struct str text, bool json)
{
    struct arena arena;
    struct err e;

    CHECK(str_utf8_valid(text) == text.n);
    err_clear(&e);
    arena_init(&arena, ARENA_BYTES);
    if (json && json_parse(&arena, text, &json_limits_api, &e) == NULL) {
        /* Keys that are not declared may repeat: the one thing that our parser refuses. */
        CHECK(strstr(e.text, "duplicate") != NULL || strstr(e.text, "twice") != NULL);
    }
    arena_fini(&arena);
}

static void walk(struct grammar *g, struct tokens *tokens, const uint8_t *choices, size_t n,
                 bool json)
{
    uint32_t bits[GRAMMAR_MASK_WORDS(TOKENS)];
    struct grammar_state s;
    struct buf text;

    buf_init(&text, 1 << 20);
    grammar_state_init(g, &s);
    for (size_t i = 0; i < n && i < STEPS_MAX && !s.ended; i++) {
        uint32_t allowed = grammar_mask(g, &s, bits), at, id = 0;
        struct grammar_state copy;

        CHECK(allowed > 0);
        at = choices[i] * 31u % allowed;
        for (uint32_t k = 0; k < TOKENS; k++) {
            if ((bits[k / 32] >> (k % 32) & 1) != 0 && at-- == 0) {
                id = k;
            }
        }
        for (uint32_t k = 0; k < CHECKED; k++) {
            at = (choices[i] * 7u + k * 211u) % TOKENS;
            grammar_state_copy(&copy, &s);
            CHECK(grammar_accept_token(g, &copy, (int32_t)at) == (bits[at / 32] >> (at % 32) & 1));
        }
        CHECK(grammar_accept_token(g, &s, (int32_t)id));
        buf_str(&text, token_bytes(tokens, (int32_t)id));
    }
    if (s.ended) {
        check_end(buf_view(&text), json);
    }
    buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int32_t eos = 0;
    static struct tokens tokens;
    static struct grammar_vocab *v; /* made once */
    const uint8_t *nul;
    struct grammar_source src = {0};
    struct grammar *g;
    struct arena arena;
    struct err e;
    size_t n;

    if (size < 2) {
        return 0;
    }
    nul = memchr(data + 1, 0, size - 1);
    n = nul != NULL ? (size_t)(nul - data - 1) : size - 1;
    err_clear(&e);
    arena_init(&arena, ARENA_BYTES);
    src.kind = data[0] % 2 == 0 ? GRAMMAR_JSON_SCHEMA : GRAMMAR_REGEX;
    src.regex = str_of(data + 1, n);
    src.schema = json_parse(&arena, src.regex, &json_limits_api, &e);
    err_clear(&e);
    if (v == NULL) {
        tokens_make(&tokens);
        v = grammar_vocab_new(TOKENS, token_bytes, &tokens, &eos, 1, &e);
        CHECK(v != NULL);
    }
    if (grammar_compile(&src, v, &g, &e)) {
        walk(g, &tokens, data + 1 + n, size - 1 - n, src.kind == GRAMMAR_JSON_SCHEMA);
        grammar_release(g);
    } else {
        CHECK(e.code != ERR_NONE && (e.text[0] == '#' || e.text[0] == '.'));
    }
    arena_fini(&arena);
    return 0;
}
