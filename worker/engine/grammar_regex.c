/* grammar_regex.c - the text of a regular expression to a tree.
 *
 * Syntax of ECMA-262 with the u flag, as far as it is regular: no look-around, no back references,
 * no word boundaries, no \p. Captures are groups; laziness changes no language. */
#include "worker/engine/grammar_regex.h"

struct parser {
    struct builder *b;
    struct regex *re;
    struct str text; /* what is left */
    size_t total;
    uint32_t depth;
};

static struct regex_node *parse_alternation(struct parser *p);

static void *complain(struct parser *p, enum err_code code, const char *what)
{
    err_set(p->b->err, code, "at byte %zu: %s", p->total - p->text.n, what);
    return NULL;
}

static struct regex_node *tree_new(struct parser *p, enum regex_kind kind)
{
    struct regex_node *n = arena_alloc(&p->b->arena, sizeof(*n));

    if (n == NULL) {
        return complain(p, ERR_LIMIT, "too much memory");
    }
    n->kind = kind;
    return n;
}

static bool peek(const struct parser *p, char c)
{
    return p->text.n > 0 && p->text.p[0] == c;
}

static void skip(struct parser *p, size_t n)
{
    p->text.p += n;
    p->text.n -= n;
}

static bool take(struct parser *p, const char *z)
{
    bool is = str_starts(p->text, str_c(z));

    if (is) {
        skip(p, strlen(z));
    }
    return is;
}

static uint32_t take_char(struct parser *p)
{
    uint32_t cp;
    size_t n = utf8_read(p->text, &cp);

    skip(p, n);
    return cp;
}

/* ---- sets of characters ---- */

static bool set_add(struct parser *p, struct char_set *s, uint32_t lo, uint32_t hi)
{
    if (s->n == SET_RANGES_MAX) {
        (void)complain(p, ERR_LIMIT, "a class with too many ranges");
        return false;
    }
    s->r[s->n++] = (struct set_range){lo, hi};
    return true;
}

/* Sorts, merges, and takes the surrogates out. */
static void set_settle(struct char_set *s)
{
    struct char_set out = {.n = 0};

    for (uint32_t i = 1; i < s->n; i++) {
        for (uint32_t k = i; k > 0 && s->r[k].lo < s->r[k - 1].lo; k--) {
            struct set_range swap = s->r[k];

            s->r[k] = s->r[k - 1];
            s->r[k - 1] = swap;
        }
    }
    for (uint32_t i = 0; i < s->n; i++) {
        struct set_range *last = out.n > 0 ? &out.r[out.n - 1] : NULL;

        if (last != NULL && s->r[i].lo <= last->hi + 1) {
            last->hi = s->r[i].hi > last->hi ? s->r[i].hi : last->hi;
        } else {
            out.r[out.n++] = s->r[i];
        }
    }
    s->n = 0;
    for (uint32_t i = 0; i < out.n; i++) {
        if (out.r[i].lo < 0xd800) {
            s->r[s->n++] =
                (struct set_range){out.r[i].lo, out.r[i].hi < 0xd800 ? out.r[i].hi : 0xd7ff};
        }
        if (out.r[i].hi > 0xdfff) {
            s->r[s->n++] =
                (struct set_range){out.r[i].lo > 0xdfff ? out.r[i].lo : 0xe000, out.r[i].hi};
        }
    }
}

static void set_negate(struct char_set *s)
{
    struct char_set out = {.n = 0};
    uint32_t from = 0;

    set_settle(s);
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->r[i].lo > from) {
            out.r[out.n++] = (struct set_range){from, s->r[i].lo - 1};
        }
        from = s->r[i].hi + 1;
    }
    if (from <= CODE_POINT_MAX) {
        out.r[out.n++] = (struct set_range){from, CODE_POINT_MAX};
    }
    *s = out;
    set_settle(s);
}

/* \d \w \s and their complements, into s. */
static bool set_named(struct parser *p, struct char_set *s, char name)
{
    static const struct set_range digits[] = {{'0', '9'}};
    static const struct set_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const struct set_range spaces[] = {
        {9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    char lower = (char)(name | 0x20);
    const struct set_range *from = lower == 'd' ? digits : lower == 'w' ? words : spaces;
    size_t n = lower == 'd'   ? ARRAY_LEN(digits)
               : lower == 'w' ? ARRAY_LEN(words)
                              : ARRAY_LEN(spaces);
    struct char_set one = {.n = 0};

    for (size_t i = 0; i < n; i++) {
        one.r[one.n++] = from[i];
    }
    if (name != lower) {
        set_negate(&one);
    }
    for (uint32_t i = 0; i < one.n; i++) {
        if (!set_add(p, s, one.r[i].lo, one.r[i].hi)) {
            return false;
        }
    }
    return true;
}

/* Exactly n hex digits after what was taken; false: they are not there. */
static bool take_hex(struct parser *p, size_t n, uint32_t *out)
{
    *out = 0;
    if (p->text.n < n || n == 0) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        char c = p->text.p[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;

        if (digit < 0) {
            return false;
        }
        *out = *out * 16 + (uint32_t)digit;
    }
    skip(p, n);
    return true;
}

/* After \u. */
static bool take_unicode(struct parser *p, uint32_t *cp)
{
    uint32_t low;
    struct str back;

    if (take(p, "{")) {
        size_t n = 0;

        while (n < p->text.n && n <= 6 && p->text.p[n] != '}') {
            n++;
        }
        return take_hex(p, n, cp) && *cp <= CODE_POINT_MAX && take(p, "}");
    }
    if (!take_hex(p, 4, cp)) {
        return false;
    }
    back = p->text;
    if (*cp >= 0xd800 && *cp <= 0xdbff && take(p, "\\u") && take_hex(p, 4, &low) && low >= 0xdc00 &&
        low <= 0xdfff) {
        *cp = 0x10000 + ((*cp - 0xd800) << 10) + (low - 0xdc00);
    } else {
        p->text = back;
    }
    return true;
}

/* After a backslash: one character. false: story. */
static bool take_escape(struct parser *p, bool in_class, uint32_t *cp)
{
    static const char from[] = "tnvfr0", to[] = "\t\n\v\f\r";
    const char *at;
    char c;

    if (p->text.n == 0) {
        return complain(p, ERR_INPUT, "a backslash at the end") != NULL;
    }
    c = p->text.p[0];
    at = c != '\0' ? strchr(from, c) : NULL;
    if (at != NULL) {
        skip(p, 1);
        *cp = (uint8_t)to[at - from];
        if (c == '0' && p->text.n > 0 && p->text.p[0] >= '0' && p->text.p[0] <= '9') {
            return complain(p, ERR_UNSUPPORTED, "octal escapes are not supported") != NULL;
        }
        return true;
    }
    if (c == 'x' || c == 'u') {
        skip(p, 1);
        return (c == 'x' ? take_hex(p, 2, cp) : take_unicode(p, cp)) ||
               complain(p, ERR_INPUT, "hex digits must follow \\x and \\u") != NULL;
    }
    if (in_class && c == 'b') {
        skip(p, 1);
        *cp = 8;
        return true;
    }
    if (c == 'c' && p->text.n > 1 &&
        ((p->text.p[1] | 0x20) >= 'a' && (p->text.p[1] | 0x20) <= 'z')) {
        *cp = (uint32_t)(p->text.p[1] & 0x1f);
        skip(p, 2);
        return true;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
        return complain(p, ERR_UNSUPPORTED,
                        "only \\d \\w \\s \\D \\W \\S, control, hex and unicode escapes are "
                        "supported (no \\b, \\p or back references)") != NULL;
    }
    *cp = take_char(p);
    return true;
}

static bool is_named(const struct parser *p)
{
    return p->text.n > 1 && p->text.p[0] == '\\' && strchr("dDwWsS", p->text.p[1]) != NULL &&
           p->text.p[1] != '\0';
}

/* One end of a range. */
static bool take_class_char(struct parser *p, uint32_t *cp)
{
    return take(p, "\\") ? take_escape(p, true, cp) : (*cp = take_char(p), true);
}

static struct regex_node *set_node(struct parser *p, struct char_set *s)
{
    struct regex_node *n = tree_new(p, REGEX_SET);
    uint32_t set;

    set_settle(s);
    if (n == NULL || !regex_set_intern(p->b, p->re, s, &set)) {
        return NULL;
    }
    n->set = set;
    return n;
}

/* After [ . */
static struct regex_node *parse_class(struct parser *p)
{
    struct char_set s = {.n = 0};
    bool negate = take(p, "^");

    while (!peek(p, ']')) {
        uint32_t lo, hi;

        if (p->text.n == 0) {
            return complain(p, ERR_INPUT, "a class that is not closed");
        }
        if (is_named(p)) {
            char name = p->text.p[1];

            skip(p, 2);
            if (!set_named(p, &s, name)) {
                return NULL;
            }
            continue;
        }
        if (!take_class_char(p, &lo)) {
            return NULL;
        }
        hi = lo;
        if (peek(p, '-') && p->text.n > 1 && p->text.p[1] != ']') {
            skip(p, 1);
            if (is_named(p)) {
                return complain(p, ERR_INPUT, "a class is no end of a range");
            }
            if (!take_class_char(p, &hi)) {
                return NULL;
            }
        }
        if (hi < lo) {
            return complain(p, ERR_INPUT, "a range out of order");
        }
        if (!set_add(p, &s, lo, hi)) {
            return NULL;
        }
    }
    skip(p, 1);
    if (negate) {
        set_negate(&s);
    }
    return set_node(p, &s);
}

/* After ( . */
static struct regex_node *parse_group(struct parser *p)
{
    struct regex_node *n;

    if (take(p, "?:")) {
    } else if (str_starts(p->text, STR("?<")) && !str_starts(p->text, STR("?<=")) &&
               !str_starts(p->text, STR("?<!"))) {
        while (p->text.n > 0 && !peek(p, '>')) {
            skip(p, 1);
        }
        if (!take(p, ">")) {
            return complain(p, ERR_INPUT, "a group's name that is not closed");
        }
    } else if (peek(p, '?')) {
        return complain(p, ERR_UNSUPPORTED, "look-around and flags are not supported");
    }
    if (++p->depth > GRAMMAR_DEPTH_MAX) {
        return complain(p, ERR_LIMIT, "groups nested deeper than 64");
    }
    n = parse_alternation(p);
    p->depth--;
    if (n != NULL && !take(p, ")")) {
        return complain(p, ERR_INPUT, "a group that is not closed");
    }
    return n;
}

static struct regex_node *parse_atom(struct parser *p)
{
    struct char_set s = {.n = 0};
    uint32_t cp;

    if (take(p, "(")) {
        return parse_group(p);
    }
    if (take(p, "[")) {
        return parse_class(p);
    }
    if (take(p, "^")) {
        return tree_new(p, REGEX_START);
    }
    if (take(p, "$")) {
        return tree_new(p, REGEX_END);
    }
    if (take(p, ".")) {
        static const struct set_range ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

        for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
            s.r[s.n++] = ends[i];
        }
        set_negate(&s);
        return set_node(p, &s);
    }
    if (is_named(p)) {
        char name = p->text.p[1];

        skip(p, 2);
        return set_named(p, &s, name) ? set_node(p, &s) : NULL;
    }
    if (peek(p, '*') || peek(p, '+') || peek(p, '?')) {
        return complain(p, ERR_INPUT, "nothing to repeat");
    }
    if (take(p, "\\")) {
        if (!take_escape(p, false, &cp)) {
            return NULL;
        }
    } else {
        cp = take_char(p);
    }
    return set_add(p, &s, cp, cp) ? set_node(p, &s) : NULL;
}

/* A decimal; all that are too large are one above the most. */
static bool take_count(struct str *s, uint32_t *out)
{
    size_t n = 0;

    *out = 0;
    while (n < s->n && s->p[n] >= '0' && s->p[n] <= '9') {
        *out = *out * 10 + (uint32_t)(s->p[n++] - '0');
        *out = *out > GRAMMAR_REPEAT_MAX ? GRAMMAR_REPEAT_MAX + 1 : *out;
    }
    s->p += n;
    s->n -= n;
    return n > 0;
}

static bool take_byte(struct str *s, char c)
{
    bool is = s->n > 0 && s->p[0] == c;

    s->p += is;
    s->n -= is;
    return is;
}

/* {n} {n,} {n,m}; anything else leaves the brace to be a character. */
static bool take_braces(struct parser *p, uint32_t *min, uint32_t *max)
{
    struct str s = p->text;

    if (!take_byte(&s, '{') || !take_count(&s, min)) {
        return false;
    }
    *max = *min;
    if (take_byte(&s, ',') && !take_count(&s, max)) {
        *max = GRAMMAR_INF;
    }
    if (!take_byte(&s, '}')) {
        return false;
    }
    p->text = s;
    return true;
}

static struct regex_node *parse_repeat(struct parser *p)
{
    struct regex_node *atom = parse_atom(p), *n;
    uint32_t min = 0, max = GRAMMAR_INF;

    if (atom == NULL) {
        return NULL;
    }
    if (take(p, "*")) {
    } else if (take(p, "+")) {
        min = 1;
    } else if (take(p, "?")) {
        max = 1;
    } else if (!take_braces(p, &min, &max)) {
        return atom;
    }
    (void)take(p, "?");
    if (atom->kind == REGEX_START || atom->kind == REGEX_END || peek(p, '*') || peek(p, '+') ||
        peek(p, '?')) {
        return complain(p, ERR_INPUT, "nothing to repeat");
    }
    if (min > max) {
        return complain(p, ERR_INPUT, "numbers out of order in {}");
    }
    if (min > GRAMMAR_REPEAT_MAX || (max != GRAMMAR_INF && max > GRAMMAR_REPEAT_MAX)) {
        return complain(p, ERR_LIMIT, "more than 10000 repeats");
    }
    n = tree_new(p, REGEX_REPEAT);
    if (n != NULL) {
        n->child = atom;
        n->min = min;
        n->max = max;
    }
    return n;
}

static struct regex_node *parse_sequence(struct parser *p)
{
    struct regex_node *n = tree_new(p, REGEX_SEQUENCE), **at = n != NULL ? &n->child : NULL;

    while (n != NULL && p->text.n > 0 && !peek(p, '|') && !peek(p, ')')) {
        *at = parse_repeat(p);
        if (*at == NULL) {
            return NULL;
        }
        at = &(*at)->next;
    }
    return n;
}

static struct regex_node *parse_alternation(struct parser *p)
{
    struct regex_node *n = tree_new(p, REGEX_ALTERNATION), **at = n != NULL ? &n->child : NULL;

    if (n == NULL) {
        return NULL;
    }
    do {
        *at = parse_sequence(p);
        if (*at == NULL) {
            return NULL;
        }
        at = &(*at)->next;
    } while (take(p, "|"));
    return n->child->next == NULL ? n->child : n;
}

struct regex_node *regex_parse(struct builder *b, struct regex *re, struct str pattern)
{
    struct parser p = {.b = b, .re = re, .text = pattern, .total = pattern.n};
    struct regex_node *n;

    if (pattern.n > GRAMMAR_REGEX_BYTES_MAX) {
        return complain(&p, ERR_LIMIT, "a regular expression of more than 8192 bytes");
    }
    if (str_utf8_valid(pattern) != pattern.n) {
        return complain(&p, ERR_INPUT, "invalid UTF-8");
    }
    n = parse_alternation(&p);
    if (n != NULL && p.text.n > 0) {
        return complain(&p, ERR_INPUT, "a ) without its (");
    }
    return n;
}
