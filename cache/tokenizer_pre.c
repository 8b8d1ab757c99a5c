/* tokenizer_pre.c - hand-written scanners for the pre-tokenizer patterns, and their names. Owns no
 * state; knows characters and their Unicode categories, never tokens. utf8proc is used here and in
 * tokenizer_deepseek.c. */
#include "cache/tokenizer_pre.h"

#include <stdio.h>
#include <utf8proc.h>

static bool is_continuation(uint8_t c)
{
    return (c & 0xC0) == 0x80;
}

/* Length of the well-formed character (RFC 3629) at p, 0 if there is none; *code is set with it. */
static uint32_t decode(const uint8_t *p, size_t n, uint32_t *code)
{
    uint8_t c = p[0];

    if (c < 0x80) {
        *code = c;
        return 1;
    }
    if (c >= 0xC2 && c <= 0xDF && n >= 2 && is_continuation(p[1])) {
        *code = (uint32_t)(c & 0x1F) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if ((c & 0xF0) == 0xE0 && n >= 3 && is_continuation(p[1]) && is_continuation(p[2])) {
        *code = (uint32_t)(c & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        /* No overlong forms, no surrogates. */
        return *code >= 0x800 && (*code < 0xD800 || *code > 0xDFFF) ? 3 : 0;
    }
    if (c >= 0xF0 && c <= 0xF4 && n >= 4 && is_continuation(p[1]) && is_continuation(p[2]) &&
        is_continuation(p[3])) {
        *code = (uint32_t)(c & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 |
                (p[3] & 0x3Fu);
        return *code >= 0x10000 && *code <= 0x10FFFF ? 4 : 0;
    }
    return 0;
}

/* The White_Space property beyond ASCII: what \s means in the patterns' engines. */
static bool is_wide_space(uint32_t c)
{
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static enum pre_class class_of(uint32_t c)
{
    if (c < 0x80) {
        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') {
            return PRE_LETTER;
        }
        if (c >= '0' && c <= '9') {
            return PRE_NUMBER;
        }
        return c == ' ' || (c >= 9 && c <= 13) ? PRE_SPACE : PRE_OTHER;
    }
    if (is_wide_space(c)) {
        return PRE_SPACE;
    }
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return PRE_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return PRE_NUMBER;
    default:
        return PRE_OTHER;
    }
}

struct pre_char pre_peek(struct str text, size_t at)
{
    struct pre_char c = {0};

    if (at >= text.n) {
        return c;
    }
    c.bytes = decode((const uint8_t *)text.p + at, text.n - at, &c.code);
    if (c.bytes == 0) {
        c.bytes = 1;
        c.code = 0xFFFD;
        c.bad = true;
    }
    c.class = class_of(c.code);
    return c;
}

static size_t run_end(struct str text, size_t at, enum pre_class class)
{
    for (;;) {
        struct pre_char c = pre_peek(text, at);

        if (c.class != class) {
            return at;
        }
        at += c.bytes;
    }
}

static char lower_if(char c, bool fold)
{
    return fold && c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

/* 's 't 're 've 'm 'll 'd at `at`: its end, or `at` when there is none. */
static size_t contraction_end(struct str text, size_t at, bool any_case)
{
    char a, b;

    if (text.p[at] != '\'' || text.n - at < 2) {
        return at;
    }
    a = lower_if(text.p[at + 1], any_case);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') {
        return at + 2;
    }
    if (text.n - at < 3) {
        return at;
    }
    b = lower_if(text.p[at + 2], any_case);
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) {
        return at + 3;
    }
    return at;
}

/* A run of white space that starts at `at`. */
struct space_run {
    size_t end;         /* just after the run */
    size_t last;        /* where its last character starts */
    size_t newline_end; /* just after its last \r or \n; 0: none */
    enum pre_class after;
};

static struct space_run space_run(struct str text, size_t at)
{
    struct space_run r = {.end = at, .last = at};

    for (;;) {
        struct pre_char c = pre_peek(text, r.end);

        if (c.class != PRE_SPACE) {
            r.after = c.class;
            return r;
        }
        r.last = r.end;
        r.end += c.bytes;
        if (c.code == '\r' || c.code == '\n') {
            r.newline_end = r.end;
        }
    }
}

/* \s+(?!\S)|\s+ : all of a run at the end of the text, else all but its last character, which may
 * lead the next word; a lone one stands by itself. `cut`: the text is as good as over at a number.
 */
static size_t space_end(struct space_run r, size_t at, bool cut_at_number)
{
    if (r.after == PRE_END || (cut_at_number && r.after == PRE_NUMBER) || r.last == at) {
        return r.end;
    }
    return r.last;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * digits_alone (smollm): each \p{N} is first cut out as a piece of its own, so no space joins it.
 */
static size_t gpt2_next(struct str text, size_t at, bool digits_alone)
{
    struct pre_char c = pre_peek(text, at);
    size_t end = contraction_end(text, at, false);
    size_t word = at;

    if (end > at) {
        return end;
    }
    if (digits_alone && c.class == PRE_NUMBER) {
        return at + c.bytes;
    }
    if (c.code == ' ') {
        struct pre_char next = pre_peek(text, at + 1);

        if (next.class == PRE_LETTER || next.class == PRE_OTHER ||
            (next.class == PRE_NUMBER && !digits_alone)) {
            word = at + 1;
            c = next;
        }
    }
    if (c.class != PRE_SPACE) {
        return run_end(text, word, c.class);
    }
    return space_end(space_run(text, at), at, digits_alone);
}

/* \p{N}{1,3} or, digits_max 1, \p{N}. */
static size_t digits_end(struct str text, size_t at, unsigned digits_max)
{
    for (unsigned i = 0; i < digits_max; i++) {
        struct pre_char c = pre_peek(text, at);

        if (c.class != PRE_NUMBER) {
            break;
        }
        at += c.bytes;
    }
    return at;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
 * |\s*[\r\n]+|\s+(?!\S)|\s+          (qwen2: \p{N} alone) */
static size_t llama3_next(struct str text, size_t at, unsigned digits_max)
{
    struct pre_char c = pre_peek(text, at);
    struct pre_char next = pre_peek(text, at + c.bytes);
    size_t end = contraction_end(text, at, true);
    struct space_run run;

    if (end > at) {
        return end;
    }
    if (c.class == PRE_NUMBER) {
        return digits_end(text, at, digits_max);
    }
    if (c.class == PRE_LETTER || (next.class == PRE_LETTER && c.code != '\r' && c.code != '\n')) {
        return run_end(text, at + c.bytes, PRE_LETTER);
    }
    if (c.class == PRE_OTHER || (c.code == ' ' && next.class == PRE_OTHER)) {
        end = run_end(text, at + c.bytes, PRE_OTHER);
        while (end < text.n && (text.p[end] == '\r' || text.p[end] == '\n')) {
            end++;
        }
        return end;
    }
    run = space_run(text, at);
    return run.newline_end != 0 ? run.newline_end : space_end(run, at, false);
}

size_t pre_next(enum tokenizer_pre pre, struct str text, size_t at)
{
    CHECK(at < text.n);
    switch (pre) {
    case TOKENIZER_SMOLLM:
        return gpt2_next(text, at, true);
    case TOKENIZER_GPT2:
        return gpt2_next(text, at, false);
    case TOKENIZER_LLAMA3:
        return llama3_next(text, at, 3);
    case TOKENIZER_DEEPSEEK_LLM:
    case TOKENIZER_DEEPSEEK_CODER:
        return pre_next_deepseek(pre, text, at);
    case TOKENIZER_QWEN2:
        break;
    }
    CHECK(pre == TOKENIZER_QWEN2);
    return llama3_next(text, at, 1);
}

/* The names that mean exactly these patterns; another family's pattern is never guessed. */
static const struct {
    const char *name;
    enum tokenizer_pre pre;
} known[] = {
    {"smollm", TOKENIZER_SMOLLM},
    {"starcoder", TOKENIZER_SMOLLM},
    {"refact", TOKENIZER_SMOLLM},
    {"command-r", TOKENIZER_SMOLLM},
    {"gpt-2", TOKENIZER_GPT2},
    {"gpt2", TOKENIZER_GPT2},
    {"llama-bpe", TOKENIZER_LLAMA3},
    {"llama3", TOKENIZER_LLAMA3},
    {"llama-v3", TOKENIZER_LLAMA3},
    {"qwen2", TOKENIZER_QWEN2},
    {"deepseek-r1-qwen", TOKENIZER_QWEN2},
    {"deepseek-llm", TOKENIZER_DEEPSEEK_LLM},
    {"deepseek-coder", TOKENIZER_DEEPSEEK_CODER},
};

bool tokenizer_pre_named(struct str name, enum tokenizer_pre *out)
{
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (str_eq(name, str_c(known[i].name))) {
            *out = known[i].pre;
            return true;
        }
    }
    return false;
}

bool tokenizer_pre_of(struct str name, enum tokenizer_pre *out, struct err *e)
{
    char names[256];
    size_t n = 0;

    if (tokenizer_pre_named(name, out)) {
        return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", i > 0 ? ", " : "",
                              known[i].name);
        CHECK(n < sizeof(names));
    }
    return err_set(e, ERR_UNSUPPORTED, "pre-tokenizer \"" STR_FMT "\" is not one of %s",
                   (int)(name.n < 64 ? name.n : 64), name.p, names);
}

bool tokenizer_pre_adds_bos(enum tokenizer_pre pre)
{
    return pre == TOKENIZER_LLAMA3;
}
