/* test_tokenizer_steps.c - a megabyte of anything takes steps in proportion to its length: basic
 * blocks of cache/tokenizer*.c, counted by the compiler's own hook (-fsanitize-coverage=trace-pc),
 * so that the answer does not depend on the machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include "cache/tokenizer.h"

#define LONG (1u << 20)
#define SHORT (LONG / 16)
#define TOKENS_MAX 400

#define STEPS_MAX (400ull * LONG) /* 228 a byte were seen */

static uint64_t steps;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    if (++steps > STEPS_MAX) { /* what is not linear would not end today */
        fprintf(stderr, "over %llu steps for a text of a megabyte\n", STEPS_MAX);
        _Exit(1);
    }
}

struct vocabulary {
    struct str tokens[TOKENS_MAX];
    uint32_t types[TOKENS_MAX];
    char spelling[256][2];
    struct tokenizer_source src;
};

static void add(struct vocabulary *v, struct str s, uint32_t type)
{
    v->tokens[v->src.count] = s;
    v->types[v->src.count++] = type;
}

/* All bytes, two specials, and merges that make letters, spaces and bytes of UTF-8 grow long. */
static void vocabulary_init(struct vocabulary *v)
{
    static const struct str merges[] = {
        {"a a", 3}, {"aa aa", 5}, {"Ġ Ġ", 5}, {"ĠĠ ĠĠ", 9}, {"a b", 3}, {"ab ab", 5}, {"Ì ģ", 5},
    };
    static const char *const merged[] = {"aa", "aaaa", "ĠĠ", "ĠĠĠĠ", "ab", "abab", "Ìģ"};
    unsigned next = 0x100;

    for (unsigned b = 0; b < 256; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        unsigned code = printable ? b : next++;

        v->spelling[b][0] = (char)(code < 0x80 ? code : 0xC0 | code >> 6);
        v->spelling[b][1] = (char)(0x80 | (code & 0x3F));
        add(v, str_of(v->spelling[b], code < 0x80 ? 1 : 2), TOKEN_NORMAL);
    }
    add(v, STR("<|end|>"), TOKEN_CONTROL);
    add(v, STR("<|"), TOKEN_USER);
    for (size_t i = 0; i < ARRAY_LEN(merged); i++) {
        add(v, str_c(merged[i]), TOKEN_NORMAL);
    }
    v->src.tokens = v->tokens;
    v->src.types = v->types;
    v->src.merges = merges;
    v->src.merge_count = ARRAY_LEN(merges);
    v->src.bos = v->src.eos = -1;
}

static const char *const units[] = {
    "a",
    " ",
    "\n",
    "1",
    "'",
    "'s",
    ".",
    "<",
    "<|",
    "<|end",
    "ab",
    "a ",
    " .",
    "£ ",
    "\xff",
    "\r\n ",
    "\xCC\x81" /* a combining mark */,
    "\xE3\x80\x80" /* an ideographic space */,
    "\xE5\xAD\x97" /* a Chinese character */,
    "\xC3\xA9",
    "\xEF\xBC\x91" /* a wide digit */,
    "\xF0\x9F\x99\x82",
    "a\xCC\x81",
    " \xE3\x80\x80",
    "\xE3\x80\x80\xC2\xA3",
};

/* One of each scanner; gpt-2 and qwen2 are smollm and llama3 with another rule for digits. */
static const unsigned families[] = {TOKENIZER_SMOLLM, TOKENIZER_LLAMA3, TOKENIZER_DEEPSEEK_LLM,
                                    TOKENIZER_DEEPSEEK_CODER};

static uint64_t steps_of(const struct tokenizer *t, char *text, size_t n, const char *unit,
                         struct token *out)
{
    size_t size = strlen(unit);
    int64_t got;

    for (size_t i = 0; i < n; i++) {
        text[i] = unit[i % size];
    }
    steps = 0;
    got = tokenizer_encode(t, str_of(text, n), TOKENIZER_PARSE_SPECIAL, out, (uint32_t)(3 * n));
    assert_in_range(got, 1, 3 * n);
    assert_int_equal(out[got - 1].end, n);
    return steps;
}

/* Sixteen times the text: sixteen times the steps, and for one word a heap that is 20 levels deep
 * instead of 16. A quadratic step anywhere would make it 256. */
static void a_megabyte_of_anything_takes_linear_steps(void **state)
{
    struct vocabulary *v = calloc(1, sizeof(*v));
    struct token *out = malloc(3 * (size_t)LONG * sizeof(*out));
    char *text = malloc(LONG);
    double worst = 0;

    (void)state;
    vocabulary_init(v);
    for (size_t k = 0; k < ARRAY_LEN(families); k++) {
        unsigned pre = families[k];
        struct err e = {0};
        struct tokenizer *t;

        v->src.pre = pre;
        t = tokenizer_new(&v->src, &e);
        assert_non_null(t);
        for (size_t u = 0; u < ARRAY_LEN(units); u++) {
            uint64_t few = steps_of(t, text, SHORT, units[u], out);
            uint64_t many = steps_of(t, text, LONG, units[u], out);

            if (many > 21 * few || many < 8 * few) {
                fail_msg("family %u, \"%s\": %llu steps for 64 KiB, %llu for 1 MiB", pre, units[u],
                         (unsigned long long)few, (unsigned long long)many);
            }
            worst = (double)many / LONG > worst ? (double)many / LONG : worst;
        }
        tokenizer_free(t);
    }
    print_message("at most %.0f steps a byte\n", worst);
    free(out);
    free(text);
    free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_megabyte_of_anything_takes_linear_steps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
