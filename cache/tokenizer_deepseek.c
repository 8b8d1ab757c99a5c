/* tokenizer_deepseek.c - the two DeepSeek pre-tokenizers. Each is a list of patterns, the next one
 * cutting what the ones before it left:
 *
 *   deepseek-llm     [\r\n]   \s?[letters]+   \s?[signs]+   \s+$   [cjk]+   \p{N}+
 *   deepseek-coder   [\r\n]   \s?\p{L}+       \s?\p{P}+            [cjk]+   \p{N}
 *
 * A piece ends where any of the patterns cuts. All but \s+$ are decided by the characters on both
 * sides and the one after; \s+$ by the end of the white space, which is looked for once a run. So
 * one walk with a window of three does it. `letters` (Latin, Greek, Cyrillic ..., none of the
 * scripts without case) and `signs` overlap: signs include the ASCII letters. */
#include <stdlib.h>
#include <utf8proc.h>
#include "cache/tokenizer_pre.h"

enum trait {
    TRAIT_END = 1 << 0,
    TRAIT_LINE = 1 << 1,
    TRAIT_SPACE = 1 << 2,
    TRAIT_WORD = 1 << 3, /* letters, \p{L} */
    TRAIT_SIGN = 1 << 4, /* signs, \p{P} */
    TRAIT_CJK = 1 << 5,
    TRAIT_NUMBER = 1 << 6,
};

struct range {
    uint32_t first, last;
};

static const struct range letters[] = {
    {0x41, 0x5A},       {0x61, 0x7A},       {0xB5, 0xB5},       {0xC0, 0xD6},
    {0xD8, 0xF6},       {0xF8, 0x1BA},      {0x1BC, 0x1BF},     {0x1C4, 0x293},
    {0x295, 0x2AF},     {0x370, 0x373},     {0x376, 0x376},     {0x377, 0x377},
    {0x37B, 0x37D},     {0x37F, 0x37F},     {0x386, 0x386},     {0x388, 0x38A},
    {0x38C, 0x38C},     {0x38E, 0x3A1},     {0x3A3, 0x3F5},     {0x3F7, 0x481},
    {0x48A, 0x52F},     {0x531, 0x556},     {0x10A0, 0x10C5},   {0x13A0, 0x13F5},
    {0x13F8, 0x13FD},   {0x1C90, 0x1CBA},   {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},
    {0x1D6B, 0x1D77},   {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},   {0x1F18, 0x1F1D},
    {0x1F20, 0x1F45},   {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},
    {0x1F5B, 0x1F5B},   {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},
    {0x1FB6, 0x1FBC},   {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},
    {0x1FD0, 0x1FD3},   {0x1FD6, 0x1FDB},   {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},
    {0x1FF6, 0x1FFC},   {0x2102, 0x2102},   {0x2107, 0x2107},   {0x210A, 0x2113},
    {0x2115, 0x2115},   {0x2119, 0x211D},   {0x2124, 0x2124},   {0x2126, 0x2126},
    {0x2128, 0x2128},   {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},
    {0x213C, 0x213F},   {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2183},
    {0x2184, 0x2184},   {0x2C00, 0x2C7B},   {0x2C7E, 0x2CE4},   {0x2CEB, 0x2CEE},
    {0x2CF2, 0x2CF2},   {0x2CF3, 0x2CF3},   {0xA640, 0xA66D},   {0xA680, 0xA69B},
    {0xA722, 0xA76F},   {0xA771, 0xA787},   {0xA78B, 0xA78E},   {0xAB70, 0xABBF},
    {0xFB00, 0xFB06},   {0xFB13, 0xFB17},   {0xFF21, 0xFF3A},   {0xFF41, 0xFF5A},
    {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB}, {0x10C80, 0x10CB2},
    {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
};

static int by_range(const void *key, const void *element)
{
    uint32_t c = *(const uint32_t *)key;
    const struct range *r = element;

    return c < r->first ? -1 : c > r->last;
}

static bool is_letter(uint32_t c)
{
    return bsearch(&c, letters, ARRAY_LEN(letters), sizeof(letters[0]), by_range) != NULL;
}

static bool is_sign(uint32_t c)
{
    return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x7E) || (c >= 0x2018 && c <= 0x201F) ||
           (c >= 0x3000 && c <= 0x3002) || (c >= 0xFF01 && c <= 0xFF0F) ||
           (c >= 0xFF1A && c <= 0xFF5E);
}

static bool is_punctuation(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return true;
    default:
        return false;
    }
}

/* The pattern's own ranges, wider than the name. */
static bool is_cjk(uint32_t c)
{
    return (c >= 0x800 && c <= 0x9FA5) || (c >= 0xAC00 && c <= 0xD7FF);
}

/* Traits of the character at *at, which moves past it; *at is text.n at the end. */
static unsigned traits(enum tokenizer_pre pre, struct str text, size_t *at)
{
    struct pre_char c = pre_peek(text, *at);
    unsigned t = 0;

    *at += c.bytes;
    if (c.class == PRE_END) {
        return TRAIT_END;
    }
    if (c.code == '\r' || c.code == '\n') {
        return TRAIT_LINE;
    }
    if (pre == TOKENIZER_DEEPSEEK_LLM) {
        t = (is_letter(c.code) ? TRAIT_WORD : 0) | (is_sign(c.code) ? TRAIT_SIGN : 0);
    } else {
        t = (c.class == PRE_LETTER ? TRAIT_WORD : 0) |
            (c.class == PRE_OTHER && is_punctuation(c.code) ? TRAIT_SIGN : 0);
    }
    return t | (c.class == PRE_SPACE ? TRAIT_SPACE : 0) | (is_cjk(c.code) ? TRAIT_CJK : 0) |
           (c.class == PRE_NUMBER ? TRAIT_NUMBER : 0);
}

/* \s?[trait]+ cuts between x and y; z follows. A space that has the trait itself is one of it. */
static bool cuts_run(unsigned trait, unsigned x, unsigned y, unsigned z)
{
    if (x & trait) {
        return !(y & trait);
    }
    if (y & trait) {
        return !(x & TRAIT_SPACE);
    }
    return (y & TRAIT_SPACE) && (z & trait);
}

/* The patterns before \s+$. */
static bool cuts_word(unsigned x, unsigned y, unsigned z)
{
    return ((x | y) & TRAIT_LINE) || cuts_run(TRAIT_WORD, x, y, z) || cuts_run(TRAIT_SIGN, x, y, z);
}

/* \s+$ : white space from y, which ends at `at`, to where the earlier patterns cut. */
static bool is_trailing(struct str text, unsigned y, size_t at)
{
    unsigned z = traits(TOKENIZER_DEEPSEEK_LLM, text, &at);

    for (;;) {
        unsigned after = traits(TOKENIZER_DEEPSEEK_LLM, text, &at);

        if ((z & TRAIT_END) || cuts_word(y, z, after)) {
            return true;
        }
        if (!(z & TRAIT_SPACE)) {
            return false;
        }
        y = z;
        z = after;
    }
}

size_t pre_next_deepseek(enum tokenizer_pre pre, struct str text, size_t at)
{
    size_t after = at, next;
    unsigned x, y, z;

    x = traits(pre, text, &after);
    at = after;
    y = traits(pre, text, &after);
    while (!(y & TRAIT_END)) {
        next = after;
        z = traits(pre, text, &next);
        if (cuts_word(x, y, z) || ((x ^ y) & TRAIT_CJK) || ((x ^ y) & TRAIT_NUMBER)) {
            break;
        }
        if (pre == TOKENIZER_DEEPSEEK_CODER
                ? (x & y & TRAIT_NUMBER) != 0
                : (y & ~x & TRAIT_SPACE) && is_trailing(text, y, after)) {
            break;
        }
        at = after;
        after = next;
        x = y;
        y = z;
    }
    return at;
}
