/* grammar_chars.c - from ranges of characters to edges over bytes: UTF-8, and JSON's escapes.
 *
 * Nodes in the middle of a character are shared wherever the rest leads to the same places. */
#include "worker/engine/grammar_build.h"

#define HEX_RANGES 3
static const uint8_t hex_any[HEX_RANGES][2] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};

/* Edges of one node being collected; at most one for each byte. */
struct edge_list {
    struct build_edge e[256];
    uint32_t n;
};

static void list_add(struct edge_list *l, uint8_t lo, uint8_t hi, uint32_t target)
{
    if (l->n > 0 && l->e[l->n - 1].target == target && l->e[l->n - 1].hi + 1 == lo) {
        l->e[l->n - 1].hi = hi;
        return;
    }
    l->e[l->n++] = (struct build_edge){.lo = lo, .hi = hi, .target = target};
}

/* The first range that ends at or after cp; n: none. */
static uint32_t range_at(const struct char_range *r, uint32_t n, uint32_t cp)
{
    uint32_t lo = 0, hi = n;

    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;

        if (r[mid].hi < cp) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static uint32_t target_at(const struct char_range *r, uint32_t n, uint32_t cp)
{
    uint32_t i = range_at(r, n, cp);

    return i < n && r[i].lo <= cp ? r[i].target : 0;
}

/* The node before `left` continuation bytes, whichever, that lead to `to`. 0: failed. */
static uint32_t utf8_any(struct builder *b, uint32_t left, uint32_t to, uint32_t span)
{
    struct full_memo *m = &b->full[left];
    struct edge_list l;

    l.n = 0;
    if (m->node == 0 || m->target != to || m->span != span) {
        uint32_t rest = left == 1 ? to : utf8_any(b, left - 1, to, span);

        if (rest == 0) {
            return 0;
        }
        list_add(&l, 0x80, 0xbf, rest);
        *m = (struct full_memo){to, span, mid_node(b, l.e, l.n, span)};
    }
    return m->node;
}

/* The node before `left` continuation bytes that spell base .. base + 64^left - 1.
 * *out 0: none of these is in a range. */
static bool utf8_rest(struct builder *b, const struct char_range *r, uint32_t n, uint32_t base,
                      uint32_t left, uint32_t span, uint32_t *out)
{
    uint32_t step = 1u << (6 * (left - 1)), i = range_at(r, n, base);
    struct edge_list l;

    l.n = 0;
    *out = 0;
    if (i == n || r[i].lo > base + 64 * step - 1) {
        return true;
    }
    if (r[i].lo <= base && base + 64 * step - 1 <= r[i].hi) {
        *out = utf8_any(b, left, r[i].target, span);
        return *out != 0;
    }
    if (!builder_spend(b, 180)) {
        return false;
    }
    for (uint32_t k = 0; k < 64; k++) {
        uint32_t at = base + k * step, to = left == 1 ? target_at(r, n, at) : 0;

        if (left > 1 && !utf8_rest(b, r, n, at, left - 1, span, &to)) {
            return false;
        }
        if (to != 0) {
            list_add(&l, (uint8_t)(0x80 + k), (uint8_t)(0x80 + k), to);
        }
    }
    *out = mid_node(b, l.e, l.n, span);
    return *out != 0;
}

/* One length of UTF-8: lead bytes first .. last, each before `left` continuation bytes. */
static bool utf8_leads(struct builder *b, uint32_t node, const struct char_range *r, uint32_t n,
                       uint8_t first, uint8_t last, uint32_t left, struct edge_list *l)
{
    static const struct {
        uint32_t lo, hi;
    } bounds[] = {{0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xffff}, {0x10000, CODE_POINT_MAX}};
    struct char_range *cut = b->cut;
    uint32_t n_cut = 0, mask = 0x3fu >> left;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t lo = r[i].lo > bounds[left].lo ? r[i].lo : bounds[left].lo;
        uint32_t hi = r[i].hi < bounds[left].hi ? r[i].hi : bounds[left].hi;

        if (lo <= hi) {
            cut[n_cut++] = (struct char_range){lo, hi, r[i].target};
        }
    }
    if (n_cut == 0) {
        return true;
    }
    for (uint32_t lead = first; lead <= last; lead++) {
        uint32_t to;

        if (!utf8_rest(b, cut, n_cut, (lead & mask) << (6 * left), left, b->nodes[node].n.span,
                       &to)) {
            return false;
        }
        if (to != 0) {
            list_add(l, (uint8_t)lead, (uint8_t)lead, to);
        }
    }
    return true;
}

static uint32_t hex_node(struct builder *b, uint32_t to, uint32_t span)
{
    struct edge_list l;

    l.n = 0;
    for (int i = 0; i < HEX_RANGES; i++) {
        list_add(&l, hex_any[i][0], hex_any[i][1], to);
    }
    return to != 0 ? mid_node(b, l.e, l.n, span) : 0;
}

/* A node with one byte range, or a second one for the other case. */
static uint32_t byte_node(struct builder *b, uint8_t lo, uint8_t hi, bool both_cases, uint32_t to,
                          uint32_t span)
{
    struct edge_list l;

    l.n = 0;
    if (both_cases) {
        list_add(&l, lo - ('a' - 'A'), hi - ('a' - 'A'), to);
    }
    list_add(&l, lo, hi, to);
    return to != 0 ? mid_node(b, l.e, l.n, span) : 0;
}

/* After \u: four hex digits that are no lone surrogate, or a pair of surrogates. */
static uint32_t unicode_free(struct builder *b, uint32_t to, uint32_t span)
{
    uint32_t last2 = hex_node(b, hex_node(b, to, span), span);
    uint32_t last3 = hex_node(b, last2, span);
    uint32_t low = byte_node(b, 'c', 'f', true, last2, span);
    uint32_t pair = byte_node(
        b, '\\', '\\', false,
        byte_node(b, 'u', 'u', false, byte_node(b, 'd', 'd', true, low, span), span), span);
    uint32_t high2 = hex_node(b, hex_node(b, pair, span), span), after_d;
    struct edge_list d, l;

    d.n = 0;
    l.n = 0;
    if (last3 == 0 || high2 == 0) {
        return 0;
    }
    list_add(&d, '0', '7', last2);
    list_add(&d, '8', '9', high2);
    list_add(&d, 'A', 'B', high2);
    list_add(&d, 'a', 'b', high2);
    after_d = mid_node(b, d.e, d.n, span);
    list_add(&l, '0', '9', last3);
    list_add(&l, 'A', 'C', last3);
    list_add(&l, 'D', 'D', after_d);
    list_add(&l, 'E', 'F', last3);
    list_add(&l, 'a', 'c', last3);
    list_add(&l, 'd', 'd', after_d);
    list_add(&l, 'e', 'f', last3);
    return after_d != 0 ? mid_node(b, l.e, l.n, span) : 0;
}

/* The letter of a control character's short escape; 0: it has none. */
static uint8_t short_escape(uint32_t cp)
{
    static const uint8_t letters[] = {[8] = 'b', [9] = 't', [10] = 'n', [12] = 'f', [13] = 'r'};

    return cp < ARRAY_LEN(letters) ? letters[cp] : 0;
}

/* After \u: the control characters that have no short escape. */
static bool unicode_controls(struct builder *b, const struct char_range *r, uint32_t n,
                             uint32_t span, uint32_t *out)
{
    struct edge_list second;

    second.n = 0;
    *out = 0;
    for (uint32_t high = 0; high < 2; high++) {
        struct edge_list l;

        l.n = 0;
        for (uint32_t low = 0; low < 16; low++) {
            uint32_t cp = high * 16 + low, to = target_at(r, n, cp);
            uint8_t digit = (uint8_t) "0123456789abcdef"[low];

            if (to != 0 && short_escape(cp) == 0) {
                list_add(&l, digit, digit, to);
            }
        }
        if (l.n > 0) {
            uint32_t node = mid_node(b, l.e, l.n, span);

            if (node == 0) {
                return false;
            }
            list_add(&second, (uint8_t)('0' + high), (uint8_t)('0' + high), node);
        }
    }
    if (second.n == 0) {
        return true;
    }
    *out = mid_node(b, second.e, second.n, span);
    *out = *out != 0 ? byte_node(b, '0', '0', false, *out, span) : 0;
    *out = *out != 0 ? byte_node(b, '0', '0', false, *out, span) : 0;
    return *out != 0;
}

/* The node after a backslash; *out 0: no character needs one. */
static bool escapes(struct builder *b, const struct char_range *r, uint32_t n, enum char_mode mode,
                    uint32_t span, uint32_t *out)
{
    static const uint8_t order[][2] = {{'"', '"'}, {'/', '/'}, {'\\', '\\'}, {'b', 8},
                                       {'f', 12},  {'n', 10},  {'r', 13},    {'t', 9}};
    struct edge_list l;
    uint32_t hex;

    l.n = 0;
    *out = 0;
    if (r[0].lo >= 0x20 && target_at(r, n, '"') == 0 && target_at(r, n, '\\') == 0) {
        return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        uint32_t to = target_at(r, n, order[i][1]);

        if (to != 0 && (order[i][0] != '/' || mode == CHARS_JSON_FREE)) {
            list_add(&l, order[i][0], order[i][0], to);
        }
    }
    if (mode == CHARS_JSON_FREE) {
        hex = unicode_free(b, r[0].target, span);
        if (hex == 0) {
            return false;
        }
    } else if (!unicode_controls(b, r, n, span, &hex)) {
        return false;
    }
    if (hex != 0) {
        list_add(&l, 'u', 'u', hex);
    }
    *out = l.n > 0 ? mid_node(b, l.e, l.n, span) : 0;
    return l.n == 0 || *out != 0;
}

/* The one target of every character from lo to hi but surrogates; 0: there is none such. */
static uint32_t sole_target(const struct char_range *r, uint32_t n, uint32_t lo, uint32_t hi)
{
    uint32_t to = target_at(r, n, lo);

    while (to != 0 && lo <= hi) {
        uint32_t i = range_at(r, n, lo);

        if (i == n || r[i].lo > lo || r[i].target != to) {
            return 0;
        }
        lo = r[i].hi + 1;
        lo = lo == 0xd800 ? 0xe000 : lo;
    }
    return to;
}

/* The one target of every character past ASCII that is no white space; 0: there is none such. */
static uint32_t wide_target(const struct char_range *r, uint32_t n)
{
    uint32_t to = 0, from = 0x80;

    for (size_t i = 0; i <= GRAMMAR_WIDE_SPACES; i++) {
        uint32_t end = i < GRAMMAR_WIDE_SPACES ? grammar_wide_spaces[i][0] : CODE_POINT_MAX + 1;
        uint32_t one = from < end ? sole_target(r, n, from, end - 1) : to;

        if (one == 0 || (to != 0 && one != to)) {
            return 0;
        }
        to = one;
        from = i < GRAMMAR_WIDE_SPACES ? grammar_wide_spaces[i][1] + 1u : from;
    }
    return to;
}

static void ascii_make(const struct char_range *r, uint32_t n, uint32_t *ascii)
{
    memset(ascii, 0, 0x80 * sizeof(*ascii));
    for (uint32_t i = 0; i < n && r[i].lo < 0x80; i++) {
        for (uint32_t cp = r[i].lo; cp <= r[i].hi && cp < 0x80; cp++) {
            ascii[cp] = r[i].target;
        }
    }
}

/* Lead bytes of all characters past ASCII; those that all go to one target are remembered. */
static bool wide_edges(struct builder *b, uint32_t node, const struct char_range *r, uint32_t n,
                       uint32_t wide, struct edge_list *l)
{
    uint32_t span = b->nodes[node].n.span, had = l->n;

    if (r[n - 1].hi < 0x80) {
        return true;
    }
    if (wide != 0 && b->wide.target == wide && b->wide.span == span) {
        memcpy(&l->e[l->n], b->wide.leads, b->wide.n * sizeof(l->e[0]));
        l->n += b->wide.n;
        return true;
    }
    if (!utf8_leads(b, node, r, n, 0xc2, 0xdf, 1, l) ||
        !utf8_leads(b, node, r, n, 0xe0, 0xef, 2, l) ||
        !utf8_leads(b, node, r, n, 0xf0, 0xf4, 3, l)) {
        return false;
    }
    if (wide != 0) {
        CHECK(l->n - had <= ARRAY_LEN(b->wide.leads));
        b->wide.target = wide;
        b->wide.span = span;
        b->wide.n = l->n - had;
        memcpy(b->wide.leads, &l->e[had], b->wide.n * sizeof(l->e[0]));
    }
    return true;
}

bool chars_add(struct builder *b, uint32_t node, const struct char_range *r, uint32_t n,
               enum char_mode mode)
{
    struct edge_list l;
    uint32_t span = b->nodes[node].n.span, ascii[0x80], escape, wide;

    l.n = 0;
    if (n == 0) {
        return true;
    }
    if (!builder_spend(b, 16 + 2 * (uint64_t)n) ||
        !builder_room(b, &b->cut, &b->cap_cut, n, CODE_POINT_MAX, sizeof(*b->cut), "ranges")) {
        return false;
    }
    ascii_make(r, n, ascii);
    for (uint32_t cp = 0; cp < 0x80; cp++) {
        if (ascii[cp] != 0 && (mode == CHARS_RAW || (cp >= 0x20 && cp != '"' && cp != '\\'))) {
            list_add(&l, (uint8_t)cp, (uint8_t)cp, ascii[cp]);
        }
    }
    wide = sole_target(r, n, 0x80, CODE_POINT_MAX);
    if (!wide_edges(b, node, r, n, wide, &l)) {
        return false;
    }
    for (uint32_t i = 0; i < l.n; i++) {
        if (!edge_add(b, node, l.e[i].lo, l.e[i].hi, l.e[i].target)) {
            return false;
        }
    }
    b->nodes[node].n.wide_to = wide != 0 ? wide : wide_target(r, n);
    if (mode == CHARS_RAW) {
        return true;
    }
    return escapes(b, r, n, mode, span, &escape) &&
           (escape == 0 || edge_add(b, node, '\\', '\\', escape));
}
