/* test_tokenizer - pre-tokenizers against another regex engine (tests/golden/pretokens.jsonl), the
 * merges against the slow textbook loop, specials, bounds, and files that do not hold together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include "cache/tokenizer.h"
#include "cache/tokenizer_pre.h"
#include "golden.h"

/* Allocations until one fails; below 0: none does. */
static int tries_left = -1;

void *__real_mem_try(size_t count, size_t bytes);
void *__wrap_mem_try(size_t count, size_t bytes);

void *__wrap_mem_try(size_t count, size_t bytes)
{
    return tries_left >= 0 && tries_left-- == 0 ? NULL : __real_mem_try(count, bytes);
}

/* ---- pre-tokenizers ---- */

static void cut_as_golden(const struct json *row, const char *family, unsigned line)
{
    struct str text = golden_str(row, "text");
    enum tokenizer_pre pre;
    size_t at = 0;

    assert_true(tokenizer_pre_named(str_c(family), &pre));
    for (const struct json *v = json_get(row, str_c(family))->child; v != NULL; v = v->next) {
        int64_t want;
        size_t got = pre_next(pre, text, at);

        assert_true(json_i64(v, &want));
        if (got != (size_t)want) {
            fail_msg("line %u, %s, from byte %zu: ends at %zu, not %lld", line, family, at, got,
                     (long long)want);
        }
        at = got;
    }
    assert_int_equal(at, text.n);
}

static void every_family_cuts_where_its_pattern_does(void **state)
{
    static const char *const families[] = {"smollm", "gpt-2",        "llama-bpe",
                                           "qwen2",  "deepseek-llm", "deepseek-coder"};
    struct golden g;
    struct json *row;

    (void)state;
    golden_open(&g, "pretokens.jsonl");
    while ((row = golden_next(&g)) != NULL) {
        for (size_t i = 0; i < ARRAY_LEN(families); i++) {
            cut_as_golden(row, families[i], g.line);
        }
    }
    assert_in_range(g.line, 1200, 10000);
    golden_close(&g);
}

static void an_unknown_pre_tokenizer_is_not_guessed(void **state)
{
    enum tokenizer_pre pre;
    struct err e = {0};

    (void)state;
    assert_false(tokenizer_pre_of(STR("default"), &pre, &e));
    assert_int_equal(e.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "\"default\" is not one of smollm, starcoder, "));
    assert_non_null(strstr(e.text, "qwen2, deepseek-r1-qwen, deepseek-llm, deepseek-coder"));
    assert_false(tokenizer_pre_named(STR("default"), &pre));
    assert_false(tokenizer_pre_named(STR(""), &pre));
    assert_false(tokenizer_pre_named(STR("smollm "), &pre));
}

static void only_llama3_adds_bos_unasked(void **state)
{
    (void)state;
    for (unsigned pre = TOKENIZER_SMOLLM; pre <= TOKENIZER_DEEPSEEK_CODER; pre++) {
        assert_int_equal(tokenizer_pre_adds_bos(pre), pre == TOKENIZER_LLAMA3);
    }
}

/* ---- a small vocabulary ---- */

#define SPECIAL_AT 256

/* 256 bytes, then specials, then what the merges make. */
struct vocabulary {
    struct str tokens[400];
    uint32_t types[400];
    struct str merges[100];
    char text[400][24];
    struct tokenizer_source src;
};

static const char *const specials[] = {"<|end|>", "<|end|>x", "<|e", "<user>", "<|end"};

static unsigned spell(uint8_t b, char *out)
{
    unsigned code = b, next = 0x100;
    bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;

    for (unsigned k = 0; !printable && k < b; k++) {
        next += !((k >= 33 && k <= 126) || (k >= 161 && k <= 172) || k >= 174);
    }
    code = printable ? code : next;
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xC0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3F));
    return 2;
}

static void add_token(struct vocabulary *v, struct str s, uint32_t type)
{
    uint32_t i = v->src.count++;

    assert_true(s.n < sizeof(v->text[0]) && i < ARRAY_LEN(v->tokens));
    memcpy(v->text[i], s.p, s.n);
    v->tokens[i] = str_of(v->text[i], s.n);
    v->types[i] = type;
}

static struct vocabulary *vocabulary_new(const char *const *merges, unsigned n)
{
    struct vocabulary *v = calloc(1, sizeof(*v));

    v->src = (struct tokenizer_source){.tokens = v->tokens,
                                       .types = v->types,
                                       .merges = v->merges,
                                       .pre = TOKENIZER_GPT2,
                                       .bos = -1,
                                       .eos = -1};
    for (unsigned b = 0; b < 256; b++) {
        char s[2];

        add_token(v, str_of(s, spell((uint8_t)b, s)), TOKEN_NORMAL);
    }
    for (size_t i = 0; i < ARRAY_LEN(specials); i++) {
        add_token(v, str_c(specials[i]), specials[i][1] == 'u' ? TOKEN_USER : TOKEN_CONTROL);
    }
    for (unsigned i = 0; i < n; i++) {
        const char *space = strchr(merges[i], ' ');
        char joined[24];

        snprintf(joined, sizeof(joined), "%.*s%s", (int)(space - merges[i]), merges[i], space + 1);
        v->merges[v->src.merge_count++] = str_c(merges[i]);
        add_token(v, str_c(joined), TOKEN_NORMAL);
    }
    return v;
}

static struct tokenizer *tokenizer_of(const struct vocabulary *v)
{
    struct err e = {0};
    struct tokenizer *t = tokenizer_new(&v->src, &e);

    if (t == NULL) {
        fail_msg("%s", e.text);
    }
    return t;
}

static const char *const merges[] = {"aa b",      "cc c", "a a",  "aa aa", "b a",
                                     "a b",       "ba b", "Ġ a",  "Ġa a",  "ab aa",
                                     "aaaa aaaa", "c c",  "a ab", "aab c", "ccc ccc"};

/* The textbook: again and again the lowest-ranked pair, the leftmost of equals. */
static unsigned merge_slowly(const struct vocabulary *v, int32_t *id, unsigned n)
{
    for (;;) {
        unsigned best = v->src.merge_count, at = 0;

        for (unsigned i = 0; i + 1 < n; i++) {
            char pair[64];

            snprintf(pair, sizeof(pair), STR_FMT " " STR_FMT, STR_ARG(v->tokens[id[i]]),
                     STR_ARG(v->tokens[id[i + 1]]));
            for (unsigned m = 0; m < best; m++) {
                if (str_eq(v->merges[m], str_c(pair))) {
                    best = m;
                    at = i;
                }
            }
        }
        if (best == v->src.merge_count) {
            return n;
        }
        id[at] = SPECIAL_AT + (int32_t)ARRAY_LEN(specials) + (int32_t)best;
        memmove(id + at + 1, id + at + 2, (n - at - 2) * sizeof(*id));
        n--;
    }
}

static void merges_equal_the_textbook_for_short_and_long_words(void **state)
{
    struct vocabulary *v = vocabulary_new(merges, ARRAY_LEN(merges));
    struct tokenizer *t = tokenizer_of(v);
    uint64_t random = 3;

    (void)state;
    for (unsigned n = 1; n < 240; n++) {
        struct token out[256];
        int32_t want[256];
        char text[256];
        unsigned left;

        for (unsigned i = 0; i < n; i++) {
            random = random * 6364136223846793005ULL + 1442695040888963407ULL;
            text[i] = "aaabbccc"[(random >> 33) % 8];
            want[i] = (uint8_t)text[i];
        }
        left = merge_slowly(v, want, n);
        assert_int_equal(tokenizer_encode(t, str_of(text, n), TOKENIZER_PLAIN, out, 256), left);
        for (unsigned i = 0, at = 0; i < left; i++) {
            assert_int_equal(out[i].id, want[i]);
            at += (unsigned)tokenizer_bytes(t, want[i], false).n;
            assert_int_equal(out[i].end, at);
            assert_int_equal(out[i].boundary, i + 1 == left);
        }
    }
    tokenizer_free(t);
    free(v);
}

/* ---- specials ---- */

struct piece {
    int32_t id; /* below 256: that byte */
    uint32_t end;
};

static void assert_pieces(const struct tokenizer *t, const char *text, enum tokenizer_special sp,
                          const struct piece *want, unsigned n)
{
    struct token out[64];

    assert_int_equal(tokenizer_encode(t, str_c(text), sp, out, 64), n);
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(out[i].id, want[i].id);
        assert_int_equal(out[i].end, want[i].end);
    }
}

static void the_longest_special_token_is_taken(void **state)
{
    enum { END = SPECIAL_AT, END_X, E, USER, OPEN_END };
    struct vocabulary *v = vocabulary_new(merges, 0);
    struct tokenizer *t = tokenizer_of(v);

    (void)state;
    assert_pieces(t, "<|end|>", TOKENIZER_PARSE_SPECIAL, (struct piece[]){{END, 7}}, 1);
    assert_pieces(t, "<|end|>x", TOKENIZER_PARSE_SPECIAL, (struct piece[]){{END_X, 8}}, 1);
    assert_pieces(t, "<|end|", TOKENIZER_PARSE_SPECIAL, (struct piece[]){{OPEN_END, 5}, {'|', 6}},
                  2);
    assert_pieces(t, "<|en", TOKENIZER_PARSE_SPECIAL, (struct piece[]){{E, 3}, {'n', 4}}, 2);
    assert_pieces(t, "<<user>>", TOKENIZER_PARSE_SPECIAL,
                  (struct piece[]){{'<', 1}, {USER, 7}, {'>', 8}}, 3);
    assert_pieces(t, "<|", TOKENIZER_PARSE_SPECIAL, (struct piece[]){{'<', 1}, {'|', 2}}, 2);
    tokenizer_free(t);
    free(v);
}

static void content_never_becomes_a_special_token(void **state)
{
    struct vocabulary *v = vocabulary_new(merges, 0);
    struct tokenizer *t = tokenizer_of(v);
    struct token out[64];
    struct str text = STR("a<|end|>x<user>");

    (void)state;
    assert_int_equal(tokenizer_encode(t, text, TOKENIZER_PLAIN, out, 64), text.n);
    for (size_t i = 0; i < text.n; i++) {
        assert_int_equal(out[i].id, text.p[i]);
    }
    tokenizer_free(t);
    free(v);
}

static void control_tokens_are_silent_unless_asked_for(void **state)
{
    struct vocabulary *v = vocabulary_new(merges, 0);
    struct tokenizer *t = tokenizer_of(v);

    (void)state;
    assert_int_equal(tokenizer_bytes(t, SPECIAL_AT, false).n, 0);
    assert_true(str_eq(tokenizer_bytes(t, SPECIAL_AT, true), STR("<|end|>")));
    assert_true(str_eq(tokenizer_bytes(t, SPECIAL_AT + 3, false), STR("<user>")));
    assert_true(str_eq(tokenizer_bytes(t, 0xE9, false), STR("\xE9")));
    assert_true(tokenizer_is_control(t, SPECIAL_AT));
    assert_false(tokenizer_is_control(t, SPECIAL_AT + 3));
    assert_false(tokenizer_is_control(t, -1));
    assert_false(tokenizer_is_control(t, (int32_t)tokenizer_count(t)));
    assert_int_equal(tokenizer_find(t, STR("<|end|>x")), SPECIAL_AT + 1);
    assert_int_equal(tokenizer_find(t, STR("Ġ")), ' ');
    assert_int_equal(tokenizer_find(t, STR(" ")), -1);
    assert_int_equal(tokenizer_find(t, STR("")), -1);
    tokenizer_free(t);
    free(v);
}

/* ---- bounds and odd files ---- */

static void too_little_room_is_refused(void **state)
{
    struct vocabulary *v = vocabulary_new(merges, ARRAY_LEN(merges));
    struct tokenizer *t = tokenizer_of(v);
    struct token out[64];

    (void)state;
    assert_int_equal(tokenizer_encode(t, STR("aaaa x <|e"), TOKENIZER_PLAIN, out, 10), 7);
    for (uint32_t cap = 0; cap < 7; cap++) {
        assert_int_equal(tokenizer_encode(t, STR("xyz x <|e"), TOKENIZER_PARSE_SPECIAL, out, cap),
                         cap < 7 ? -1 : 7);
    }
    assert_int_equal(tokenizer_encode(t, STR(""), TOKENIZER_PLAIN, NULL, 0), 0);
    tokenizer_free(t);
    free(v);
}

static void a_byte_without_a_token_is_dropped_and_ends_still_follow_the_text(void **state)
{
    struct vocabulary *v = vocabulary_new(merges, ARRAY_LEN(merges));
    struct tokenizer *t;
    struct token out[8];

    (void)state;
    v->tokens[4] = STR("no byte's spelling");
    v->tokens['!'] = STR("nor this");
    t = tokenizer_of(v);
    assert_int_equal(tokenizer_encode(t, STR("\x04"), TOKENIZER_PLAIN, out, 8), 0);
    assert_int_equal(tokenizer_encode(t, STR("?!?!"), TOKENIZER_PLAIN, out, 8), 2);
    assert_int_equal(out[0].end, 1);
    assert_int_equal(out[1].end, 4);
    tokenizer_free(t);
    free(v);
}

static void llama3_takes_a_whole_word_that_is_a_token(void **state)
{
    struct vocabulary *v = vocabulary_new(merges, ARRAY_LEN(merges));
    struct token out[8];
    int32_t word = (int32_t)v->src.count;

    (void)state;
    add_token(v, STR("bcb"), TOKEN_NORMAL); /* no merge makes it */
    for (unsigned pre = TOKENIZER_GPT2; pre <= TOKENIZER_LLAMA3; pre++) {
        struct tokenizer *t;

        v->src.pre = pre;
        t = tokenizer_of(v);
        assert_int_equal(tokenizer_encode(t, STR("bcb"), TOKENIZER_PLAIN, out, 8),
                         pre == TOKENIZER_LLAMA3 ? 1 : 3);
        assert_int_equal(out[0].id == word, pre == TOKENIZER_LLAMA3);
        assert_int_equal(out[0].end, pre == TOKENIZER_LLAMA3 ? 3 : 1);
        tokenizer_free(t);
    }
    free(v);
}

static void assert_refused(const struct tokenizer_source *src, enum err_code code)
{
    struct err e = {0};

    assert_null(tokenizer_new(src, &e));
    assert_int_equal(e.code, code);
    assert_true(strncmp(e.text, "tokenizer: ", 11) == 0);
}

static void a_file_that_does_not_hold_together_is_refused(void **state)
{
    struct vocabulary *v = vocabulary_new(merges, ARRAY_LEN(merges));
    char long_special[300];
    struct tokenizer_source src = v->src;
    struct str kept = v->merges[3];

    (void)state;
    src.count = 0;
    assert_refused(&src, ERR_LIMIT);
    src.count = 4000001;
    assert_refused(&src, ERR_LIMIT);
    v->merges[3] = STR("aaaa");
    assert_refused(&v->src, ERR_INPUT);
    v->merges[3] = STR("x y"); /* nothing is spelled xy */
    assert_refused(&v->src, ERR_INPUT);
    v->merges[3] = kept;
    v->types[7] = 9;
    assert_refused(&v->src, ERR_INPUT);
    v->types[7] = TOKEN_NORMAL;
    memset(long_special, 's', sizeof(long_special));
    v->tokens[SPECIAL_AT] = str_of(long_special, sizeof(long_special));
    assert_refused(&v->src, ERR_INPUT);
    v->tokens[SPECIAL_AT] = STR("");
    assert_refused(&v->src, ERR_INPUT);
    v->tokens[SPECIAL_AT] = STR("<|end|>");
    tokenizer_free(tokenizer_of(v));
    free(v);
}

static void every_allocation_that_fails_is_an_answer(void **state)
{
    struct vocabulary *v = vocabulary_new(merges, ARRAY_LEN(merges));
    struct tokenizer *t = NULL;
    struct token out[200];
    char text[200];
    int refused = 0;

    (void)state;
    for (; t == NULL; refused++) {
        struct err e = {0};

        tries_left = refused;
        t = tokenizer_new(&v->src, &e);
        assert_int_equal(e.code, t == NULL ? ERR_NO_MEMORY : ERR_NONE);
    }
    assert_in_range(refused, 7, 20);
    memset(text, 'a', sizeof(text));
    for (int i = 0; i < 2; i++) { /* a long word needs two arrays */
        tries_left = i;
        assert_int_equal(tokenizer_encode(t, str_of(text, 200), TOKENIZER_PLAIN, out, 200), -1);
    }
    tries_left = -1;
    assert_in_range(tokenizer_encode(t, str_of(text, 200), TOKENIZER_PLAIN, out, 200), 1, 30);
    tokenizer_free(t);
    free(v);
}

static void the_digest_changes_with_anything_that_changes_ids(void **state)
{
    struct vocabulary *v = vocabulary_new(merges, ARRAY_LEN(merges));
    struct tokenizer *t[5];
    struct str kept = v->merges[0];

    (void)state;
    t[0] = tokenizer_of(v);
    t[1] = tokenizer_of(v);
    v->merges[0] = v->merges[1];
    v->merges[1] = kept;
    t[2] = tokenizer_of(v);
    v->types[10] = TOKEN_UNUSED;
    t[3] = tokenizer_of(v);
    v->src.count--;
    v->src.merge_count--;
    t[4] = tokenizer_of(v);
    assert_true(tokenizer_digest(t[0]) == tokenizer_digest(t[1]));
    for (int i = 2; i < 5; i++) {
        assert_true(tokenizer_digest(t[i]) != tokenizer_digest(t[i - 1]));
        assert_true(tokenizer_digest(t[i]) != tokenizer_digest(t[0]));
    }
    for (int i = 0; i < 5; i++) {
        tokenizer_free(t[i]);
    }
    free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_cuts_where_its_pattern_does),
        cmocka_unit_test(an_unknown_pre_tokenizer_is_not_guessed),
        cmocka_unit_test(only_llama3_adds_bos_unasked),
        cmocka_unit_test(merges_equal_the_textbook_for_short_and_long_words),
        cmocka_unit_test(the_longest_special_token_is_taken),
        cmocka_unit_test(content_never_becomes_a_special_token),
        cmocka_unit_test(control_tokens_are_silent_unless_asked_for),
        cmocka_unit_test(too_little_room_is_refused),
        cmocka_unit_test(a_byte_without_a_token_is_dropped_and_ends_still_follow_the_text),
        cmocka_unit_test(llama3_takes_a_whole_word_that_is_a_token),
        cmocka_unit_test(a_file_that_does_not_hold_together_is_refused),
        cmocka_unit_test(every_allocation_that_fails_is_an_answer),
        cmocka_unit_test(the_digest_changes_with_anything_that_changes_ids),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
