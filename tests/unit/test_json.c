/* test_json.c - what the parser takes, what it refuses, and that writing and reading agree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/json.h"

#define ARENA_BYTES (256u << 20)

/* mem_resize fails once this many calls went well; below zero it never fails (--wrap). */
static int resizes_left = -1;

void *__real_mem_resize(void *p, size_t bytes);
void *__wrap_mem_resize(void *p, size_t bytes);

void *__wrap_mem_resize(void *p, size_t bytes)
{
    if (resizes_left == 0) {
        return NULL;
    }
    resizes_left -= resizes_left > 0;
    return __real_mem_resize(p, bytes);
}

struct world {
    struct arena arena;
    struct buf out;
    struct err err;
    char *copy; /* the text in a block of its own size, so that the sanitizer sees reads past it */
};

static void world_init(struct world *w)
{
    arena_init(&w->arena, ARENA_BYTES);
    buf_init(&w->out, 64u << 20);
    err_clear(&w->err);
    w->copy = NULL;
}

static void world_fini(struct world *w)
{
    arena_fini(&w->arena);
    buf_fini(&w->out);
    free(w->copy);
}

static struct json *parse(struct world *w, struct str text, const struct json_limits *lim)
{
    w->copy = malloc(text.n + (text.n == 0));
    assert_non_null(w->copy);
    memcpy(w->copy, text.p, text.n);
    return json_parse(&w->arena, str_of(w->copy, text.n), lim, &w->err);
}

/* Parses and writes again; fails with the texts it saw. */
static void check_rewrite(struct str in, struct str want, enum json_order order)
{
    struct world w;
    struct json *v;

    world_init(&w);
    v = parse(&w, in, &json_limits_api);
    if (v == NULL) {
        fail_msg("'" STR_FMT "' refused: %s", STR_ARG(in), w.err.text);
    }
    json_write(&w.out, v, order);
    assert_false(w.out.failed);
    if (!str_eq(buf_view(&w.out), want)) {
        fail_msg("'" STR_FMT "' became '" STR_FMT "'", STR_ARG(in), STR_ARG(buf_view(&w.out)));
    }
    world_fini(&w);
}

/* Refused, with this text in the story. */
static void check_refused(struct str in, const char *story)
{
    struct world w;

    world_init(&w);
    if (parse(&w, in, &json_limits_api) != NULL) {
        fail_msg("'" STR_FMT "' accepted", STR_ARG(in));
    }
    if (w.err.code == ERR_NONE || strstr(w.err.text, story) == NULL) {
        fail_msg("'" STR_FMT "' refused with '%s', not '%s'", STR_ARG(in), w.err.text, story);
    }
    world_fini(&w);
}

#define SEED_MAX "9223372036854775807"

static void json_accepts_what_rfc_8259_allows(void **state)
{
    static const struct {
        struct str in, want;
    } cases[] = {
        {STR("null"), STR("null")},
        {STR(" \t\r\n true \n"), STR("true")},
        {STR("false"), STR("false")},
        {STR("\"\""), STR("\"\"")},
        {STR("[]"), STR("[]")},
        {STR("{ }"), STR("{}")},
        {STR("[ 1 , -0 ,0.5e-3,1E+2,-12.25 ]"), STR("[1,-0,0.5e-3,1E+2,-12.25]")},
        {STR("{\"a\":{\"b\":[{},[]]},\"c\":null}"), STR("{\"a\":{\"b\":[{},[]]},\"c\":null}")},
        {STR("{\"seed\":" SEED_MAX "}"), STR("{\"seed\":" SEED_MAX "}")},
        {STR("[1e-400,1e308,-1.7976931348623157e308]"),
         STR("[1e-400,1e308,-1.7976931348623157e308]")},
        {STR("\xEF\xBB\xBF{}"), STR("{}")},
        {STR("{\"\":1}"), STR("{\"\":1}")},
        {STR("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\""), STR("\"\\\"\\\\/\\b\\f\\n\\r\\t\"")},
        {STR("\"\\u0041\\u00e9\\u20AC\\ud83d\\uDE00\""),
         STR("\"A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"")},
        {STR("\"a\\u0000b\\u001f\\u007f\""), STR("\"a\\u0000b\\u001f\x7F\"")},
        {STR("\"\xC2\x80 \xDF\xBF \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xF0\x90\x80\x80 "
             "\xF4\x8F\xBF\xBF\""),
         STR("\"\xC2\x80 \xDF\xBF \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xF0\x90\x80\x80 "
             "\xF4\x8F\xBF\xBF\"")},
        {STR("{\"b\":1,\"a\":{\"z\":0,\"y\":0}}"), STR("{\"b\":1,\"a\":{\"z\":0,\"y\":0}}")},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        check_rewrite(cases[i].in, cases[i].want, JSON_ORDER_DOCUMENT);
    }
}

static void json_lone_surrogates_become_replacement_characters(void **state)
{
    (void)state;
    check_rewrite(STR("\"\\ud800\""), STR("\"\xEF\xBF\xBD\""), JSON_ORDER_DOCUMENT);
    check_rewrite(STR("\"\\udc00x\""), STR("\"\xEF\xBF\xBDx\""), JSON_ORDER_DOCUMENT);
    check_rewrite(STR("\"\\ud800\\n\""), STR("\"\xEF\xBF\xBD\\n\""), JSON_ORDER_DOCUMENT);
    check_rewrite(STR("\"\\ud800\\u0041\""),
                  STR("\"\xEF\xBF\xBD"
                      "A\""),
                  JSON_ORDER_DOCUMENT);
    check_rewrite(STR("\"\\ud83d\\ud83d\\ude00\""), STR("\"\xEF\xBF\xBD\xF0\x9F\x98\x80\""),
                  JSON_ORDER_DOCUMENT);
}

static void json_refuses_and_says_what_and_where(void **state)
{
    static const struct {
        struct str in;
        const char *story;
    } cases[] = {
        {STR(""), "the text ends at byte 0 where a value is expected"},
        {STR("  "), "the text ends at byte 2 where a value"},
        {STR("nul"), "the text ends inside the word that starts at byte 0"},
        {STR("nulL"), "unknown word (only true, false and null are known) at byte 0"},
        {STR("True"), "expected a value at byte 0, found 'T'"},
        {STR("NaN"), "expected a value at byte 0, found 'N'"},
        {STR("[Infinity]"), "expected a value at byte 1, found 'I'"},
        {STR("[-Infinity]"), "malformed number at byte 2"},
        {STR("1e400"), "number too large for a double at byte 0"},
        {STR("[1,-1e309]"), "number too large for a double at byte 3"},
        {STR("01"), "malformed number at byte 0"},
        {STR("-"), "the text ends inside the number that starts at byte 0"},
        {STR("[+1]"), "expected a value at byte 1, found '+'"},
        {STR("[.5]"), "expected a value at byte 1, found '.'"},
        {STR("[1.]"), "malformed number at byte 3"},
        {STR("[1e]"), "malformed number at byte 3"},
        {STR("[1e+]"), "malformed number at byte 4"},
        {STR("0x10"), "expected the end of the text at byte 1, found 'x'"},
        {STR("[1 2]"), "expected ',' or ']' at byte 3, found '2'"},
        {STR("[1,]"), "expected a value at byte 3, found ']'"},
        {STR("[,1]"), "expected a value at byte 1, found ','"},
        {STR("{\"a\":1,}"), "expected a key at byte 7, found '}'"},
        {STR("{\"a\" 1}"), "expected ':' at byte 5, found '1'"},
        {STR("{a:1}"), "expected a key or '}' at byte 1, found 'a'"},
        {STR("{\"a\":1]"), "expected ',' or '}' at byte 6, found ']'"},
        {STR("[1}"), "expected ',' or ']' at byte 2, found '}'"},
        {STR("{} {}"), "expected the end of the text at byte 3, found '{'"},
        {STR("[1]\0"), "expected the end of the text at byte 3, found byte 0x00"},
        {STR("// x\n1"), "expected a value at byte 0, found '/'"},
        {STR("'a'"), "expected a value at byte 0"},
        {STR("\xEF\xBB\xBF\xEF\xBB\xBF{}"), "expected a value at byte 3, found byte 0xef"},
        {STR("\xEF\xBB"), "expected a value at byte 0, found byte 0xef"},
        {STR("[1\xC2\xA0]"), "at byte 2, found byte 0xc2"},
        {STR("\"a\nb\""), "raw control character in a string (escape it) at byte 2"},
        {STR("\"\\n\t\""), "raw control character in a string (escape it) at byte 3"},
        {STR("\"a\0b\""), "raw control character in a string (escape it) at byte 2"},
        {STR("[\"abc"), "the text ends inside the string that starts at byte 1"},
        {STR("[\"abc\\"), "the text ends inside the string that starts at byte 1"},
        {STR("[\"abc\\\""), "the text ends inside the string that starts at byte 1"},
        {STR("\"\\x41\""), "unknown escape in a string at byte 1"},
        {STR("\"\\u12\""), "unknown escape in a string at byte 1"},
        {STR("\"\\u12g4\""), "unknown escape in a string at byte 1"},
        {STR("\"\\U0041\""), "unknown escape in a string at byte 1"},
        {STR("\"ab\x80\""), "invalid UTF-8 in a string at byte 3"},
        {STR("\"\xC0\x80\""), "invalid UTF-8 in a string at byte 1"},
        {STR("\"\xE0\x80\x80\""), "invalid UTF-8 in a string at byte 1"},
        {STR("\"\xED\xA0\x80\""), "invalid UTF-8 in a string at byte 1"},
        {STR("\"\xF0\x80\x80\x80\""), "invalid UTF-8 in a string at byte 1"},
        {STR("\"\xF4\x90\x80\x80\""), "invalid UTF-8 in a string at byte 1"},
        {STR("\"\xF5\x80\x80\x80\""), "invalid UTF-8 in a string at byte 1"},
        {STR("\"\xE2\x82\""), "invalid UTF-8 in a string at byte 1"},
        {STR("\"\\n\xE2\x82\""), "invalid UTF-8 in a string at byte 3"},
        {STR("{\"\xFF\":1}"), "invalid UTF-8 in a string at byte 2"},
        {STR("{\"model\":1,\"x\":2,\"model\":3}"), "duplicate key \"model\" at byte 17"},
        {STR("{\"a\":{\"b\":1,\"\\u0062\":2}}"), "duplicate key \"b\" at byte 12"},
        {STR("[{\"\":1,\"\":2}]"), "duplicate key \"\" at byte 7"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        check_refused(cases[i].in, cases[i].story);
    }
}

/* Specials at every offset inside a word of eight, so that no lane is blind. */
static void json_string_scan_sees_every_byte_position(void **state)
{
    char text[64];

    (void)state;
    for (size_t n = 1; n < 40; n++) {
        for (size_t at = 1; at <= n; at++) {
            memset(text, 'x', sizeof(text));
            text[0] = text[n + 1] = '"';
            check_rewrite(str_of(text, n + 2), str_of(text, n + 2), JSON_ORDER_DOCUMENT);
            text[at] = 0x1F;
            check_refused(str_of(text, n + 2), "raw control");
            text[at] = (char)0xBF;
            check_refused(str_of(text, n + 2), "invalid UTF-8");
            text[at] = '"';
            if (at < n) {
                check_refused(str_of(text, n + 2), "expected the end of the text");
            }
        }
    }
}

static void json_depth_is_bounded_and_costs_no_stack(void **state)
{
    struct json_limits deep = {10000, 1000000};
    struct world w;
    char text[20002];
    struct json *v;

    (void)state;
    memset(text, '[', 10001);
    memset(text + 10001, ']', 10001);
    check_refused(str_of(text + 10001 - 10000, 20000),
                  "more than 128 levels of nesting at byte 128");
    check_refused(str_of(text, 10001), "more than 128 levels of nesting at byte 128");
    check_rewrite(str_of(text + 10001 - 128, 256), str_of(text + 10001 - 128, 256),
                  JSON_ORDER_DOCUMENT);
    world_init(&w);
    v = parse(&w, str_of(text + 1, 20000), &deep);
    assert_non_null(v);
    json_write(&w.out, v, JSON_ORDER_SORTED);
    assert_int_equal(w.out.len, 20000);
    world_fini(&w);
    world_init(&w);
    assert_null(parse(&w, str_of(text, 20002), &deep));
    assert_int_equal(w.err.code, ERR_LIMIT);
    world_fini(&w);
}

static void json_values_numbers_and_memory_are_bounded(void **state)
{
    struct json_limits few = {8, 4};
    char number[600];
    struct world w;

    (void)state;
    world_init(&w);
    assert_null(parse(&w, STR("[1,2,3,4]"), &few));
    assert_int_equal(w.err.code, ERR_LIMIT);
    assert_non_null(strstr(w.err.text, "more than 4 JSON values at byte 7"));
    world_fini(&w);

    memset(number, '0', sizeof(number));
    number[0] = '1';
    number[1] = '.';
    check_rewrite(str_of(number, 512), str_of(number, 512), JSON_ORDER_DOCUMENT);
    check_refused(str_of(number, 513), "more than 512 bytes in a number");
    memset(number, '9', sizeof(number));
    check_rewrite(str_of(number, 308), str_of(number, 308), JSON_ORDER_DOCUMENT);
    check_refused(str_of(number, 309), "number too large for a double");

    arena_init(&w.arena, 256);
    err_clear(&w.err);
    assert_null(json_parse(&w.arena, STR("[1,2,3,4,5,6,7,8]"), &json_limits_api, &w.err));
    assert_int_equal(w.err.code, ERR_NO_MEMORY);
    arena_fini(&w.arena);
}

/* An object of n distinct keys, then maybe the key `again` once more. */
static void write_object(struct buf *b, size_t n, size_t again)
{
    buf_byte(b, '{');
    for (size_t i = 0; i < n; i++) {
        buf_printf(b, "%s\"key%zu\":%zu", i == 0 ? "" : ",", i, i);
    }
    if (again < n) {
        buf_printf(b, ",\"k\\u0065y%zu\":0", again);
    }
    buf_byte(b, '}');
}

static void json_refuses_duplicate_keys_in_objects_of_any_size(void **state)
{
    static const size_t sizes[] = {1, 7, 8, 9, 16, 17, 33, 1000, 20000};
    struct buf b;

    (void)state;
    buf_init(&b, 1u << 22);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        size_t n = sizes[i];

        buf_reset(&b);
        write_object(&b, n, SIZE_MAX);
        check_rewrite(buf_view(&b), buf_view(&b), JSON_ORDER_DOCUMENT);
        for (size_t again = 0; again < n; again += size_max(n / 3, 1)) {
            buf_reset(&b);
            write_object(&b, n, again);
            check_refused(buf_view(&b), "duplicate key \"key");
        }
    }
    buf_fini(&b);
}

/* Objects at one depth share a table: what one knew must not leak into the next. */
static void json_sibling_objects_may_repeat_keys(void **state)
{
    static const size_t sizes[] = {20, 9, 500, 3, 40};
    struct buf b;

    (void)state;
    buf_init(&b, 1u << 20);
    buf_byte(&b, '[');
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        if (i > 0) {
            buf_byte(&b, ',');
        }
        write_object(&b, sizes[i], SIZE_MAX);
    }
    buf_byte(&b, ']');
    check_rewrite(buf_view(&b), buf_view(&b), JSON_ORDER_DOCUMENT);
    buf_fini(&b);
}

/* Keys that fall into one place of the table (its hash has no secret) still cost little, and a
 * duplicate among them is still found. */
static void json_survives_keys_chosen_to_collide(void **state)
{
    enum { KEYS = 300 };
    char keys[KEYS][16];
    struct buf b;
    size_t found = 0;

    (void)state;
    for (unsigned i = 0; found < KEYS; i++) {
        int n = snprintf(keys[found], sizeof(keys[0]), "k%u", i);

        found += (hash_xxh3(keys[found], (size_t)n, 0) & 4095) == 0;
    }
    buf_init(&b, 1u << 20);
    for (size_t copies = 0; copies < 2; copies++) {
        buf_reset(&b);
        buf_byte(&b, '{');
        for (size_t i = 0; i < KEYS; i++) {
            buf_printf(&b, "\"%s\":0,", keys[i]);
        }
        buf_printf(&b, "\"%s\":0}", copies == 0 ? "other" : keys[KEYS - 1]);
        if (copies == 0) {
            check_rewrite(buf_view(&b), buf_view(&b), JSON_ORDER_DOCUMENT);
        } else {
            check_refused(buf_view(&b), "in the object that ends at byte");
        }
    }
    buf_fini(&b);
}

/* ---- properties ---- */

static uint64_t random_next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static void random_string(struct buf *b, uint64_t *seed)
{
    static const char *const pieces[] = {"a",        "hello ",       "\\n",
                                         "\\\"",     "\\\\",         "\\u0000",
                                         "\xC3\xA9", "\xE6\xBC\xA2", "\xF0\x9F\x98\x80",
                                         "/",        "\\t",          "0123456789abcdef"};
    uint64_t n = random_next(seed) % 7;

    buf_byte(b, '"');
    for (uint64_t i = 0; i < n; i++) {
        buf_c(b, pieces[random_next(seed) % ARRAY_LEN(pieces)]);
    }
    buf_byte(b, '"');
}

static void random_number(struct buf *b, uint64_t *seed)
{
    int64_t whole = (int64_t)random_next(seed) >> random_next(seed) % 64;

    buf_i64(b, whole);
    if (random_next(seed) % 4 == 0) {
        buf_printf(b, ".%03u", (unsigned)(random_next(seed) % 1000));
    }
    if (random_next(seed) % 4 == 0) {
        buf_printf(b, "e%d", (int)(random_next(seed) % 41) - 20);
    }
}

/* A canonical document: writing its tree must give the same bytes. Keys start with their index. */
static void random_value(struct buf *b, uint64_t *seed, int depth)
{
    static const char *const words[] = {"null", "true", "false"};
    uint64_t kind = random_next(seed) % (depth > 0 ? 8 : 5), n = random_next(seed) % 12;

    if (kind < 2) {
        random_string(b, seed);
    } else if (kind < 4) {
        random_number(b, seed);
    } else if (kind == 4) {
        buf_c(b, words[random_next(seed) % 3]);
    } else {
        buf_byte(b, kind == 5 ? '[' : '{');
        for (uint64_t i = 0; i < n; i++) {
            if (i > 0) {
                buf_byte(b, ',');
            }
            if (kind != 5) {
                buf_printf(b, "\"%c\xC3\xA9\":", (char)('a' + i));
            }
            random_value(b, seed, depth - 1);
        }
        buf_byte(b, kind == 5 ? ']' : '}');
    }
}

static void json_random_documents_come_back_equal(void **state)
{
    uint64_t seed = 0x9E3779B97F4A7C15;
    struct buf b;

    (void)state;
    buf_init(&b, 1u << 24);
    for (int i = 0; i < 2000; i++) {
        buf_reset(&b);
        random_value(&b, &seed, 5);
        assert_false(b.failed);
        check_rewrite(buf_view(&b), buf_view(&b), JSON_ORDER_DOCUMENT);
        check_rewrite(buf_view(&b), buf_view(&b), JSON_ORDER_SORTED); /* keys were born sorted */
    }
    buf_fini(&b);
}

/* Every prefix of a container or string is incomplete, and said to be. */
static void json_refuses_every_prefix_of_a_document(void **state)
{
    uint64_t seed = 42;
    struct buf b;

    (void)state;
    buf_init(&b, 1u << 20);
    for (int i = 0; i < 60; i++) {
        buf_reset(&b);
        buf_byte(&b, '[');
        random_value(&b, &seed, 2);
        buf_byte(&b, ']');
        for (size_t n = 0; n < size_min(b.len, 2000); n++) {
            check_refused(str_of(buf_view(&b).p, n), "byte");
        }
        check_rewrite(buf_view(&b), buf_view(&b), JSON_ORDER_DOCUMENT);
    }
    buf_fini(&b);
}

/* What a damaged document still parses to must be a fixed point of write and parse. */
static void json_mutations_never_crash_and_stay_canonical(void **state)
{
    static const char bytes[] = "{}[]\",:\\u0eE+-.1 \n\x00\x80\xC3\xED\xA0\xF4\xFF";
    uint64_t seed = 7;
    struct buf b, once;

    (void)state;
    buf_init(&b, 1u << 20);
    buf_init(&once, 1u << 20);
    for (int i = 0; i < 4000; i++) {
        struct world w;
        struct json *v;

        buf_reset(&b);
        random_value(&b, &seed, 2);
        for (uint64_t k = 0; k <= random_next(&seed) % 3; k++) {
            size_t at = random_next(&seed) % b.len;

            b.p[b.off + at] = (uint8_t)bytes[random_next(&seed) % sizeof(bytes)];
        }
        world_init(&w);
        v = parse(&w, buf_view(&b), &json_limits_api);
        assert_true((v != NULL) == (w.err.code == ERR_NONE));
        if (v != NULL) {
            json_write(&w.out, v, JSON_ORDER_SORTED);
            buf_reset(&once);
            buf_str(&once, buf_view(&w.out));
            check_rewrite(buf_view(&once), buf_view(&once), JSON_ORDER_SORTED);
        }
        world_fini(&w);
    }
    buf_fini(&b);
    buf_fini(&once);
}

/* The source of each container, parsed alone, is the same value as the tree says. */
static void check_sources(const struct json *v, size_t *seen)
{
    if (v->text.p != NULL && (v->type == JSON_ARRAY || v->type == JSON_OBJECT)) {
        struct buf want;

        buf_init(&want, 1u << 20);
        json_write(&want, v, JSON_ORDER_DOCUMENT);
        check_rewrite(v->text, buf_view(&want), JSON_ORDER_DOCUMENT);
        buf_fini(&want);
        ++*seen;
    }
    for (const struct json *c = v->child; c != NULL; c = c->next) {
        check_sources(c, seen);
    }
}

static void json_containers_know_their_source(void **state)
{
    uint64_t seed = 11;
    size_t seen = 0;
    struct buf b;

    (void)state;
    buf_init(&b, 1u << 20);
    for (int i = 0; i < 400; i++) {
        struct world w;
        const struct json *v;

        buf_reset(&b);
        random_value(&b, &seed, 3);
        world_init(&w);
        v = parse(&w, buf_view(&b), &json_limits_api);
        assert_non_null(v);
        check_sources(v, &seen);
        world_fini(&w);
    }
    assert_true(seen > 400);
    buf_fini(&b);
}

static void json_a_repaired_container_has_no_source(void **state)
{
    struct world w;
    const struct json *v;

    (void)state;
    world_init(&w);
    v = parse(&w, STR("{\"a\":[1, {\"b\":\"\\ud800\"}],\"c\":[\"\\ud83d\\ude00\"],\"\\udc00\":[]}"),
              &json_limits_api);
    assert_non_null(v);
    assert_null(v->text.p);
    assert_null(json_get(v, STR("a"))->text.p);
    assert_null(json_get(v, STR("a"))->child->next->text.p);
    assert_true(str_eq(json_get(v, STR("c"))->text, STR("[\"\\ud83d\\ude00\"]")));
    assert_true(str_eq(v->child->next->next->text, STR("[]")));
    world_fini(&w);
}

/* ---- reading the tree ---- */

static void json_numbers_read_as_integers_when_they_are(void **state)
{
    static const struct {
        const char *text;
        bool ok;
        int64_t want;
    } cases[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"0.000e9", true, 0},
        {"1.0", true, 1},
        {"1e2", true, 100},
        {"12.50E1", true, 125},
        {"1200e-2", true, 12},
        {"0.001e3", true, 1},
        {"-7", true, -7},
        {SEED_MAX, true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"18446744073709551616", false, 0},
        {"9.223372036854775807e18", true, INT64_MAX},
        {"92233720368547758070e-1", true, INT64_MAX},
        {"1e18", true, 1000000000000000000},
        {"1e19", false, 0},
        {"1e300", false, 0},
        {"0.5", false, 0},
        {"1e-1", false, 0},
        {"1e-99999999999", false, 0},
        {"100000000000000000000e-19", true, 10},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct world w;
        struct json *v;
        int64_t got = -1;
        bool ok;

        world_init(&w);
        v = parse(&w, str_c(cases[i].text), &json_limits_api);
        assert_non_null(v);
        ok = json_i64(v, &got);
        if (ok != cases[i].ok || (ok && got != cases[i].want)) {
            fail_msg("%s gave %d, %lld", cases[i].text, ok, (long long)got);
        }
        world_fini(&w);
    }
}

static void json_members_are_found_and_types_respected(void **state)
{
    struct world w;
    struct json *v;
    double d = 0;
    int64_t n = 0;

    (void)state;
    world_init(&w);
    v = parse(&w, STR("{\"t\":0.25,\"s\":\"a\\u0000b\",\"n\":null,\"a\":[1,2,3]}"),
              &json_limits_api);
    assert_non_null(v);
    assert_int_equal(v->count, 4);
    assert_true(json_f64(json_get(v, STR("t")), &d));
    assert_true(d == 0.25);
    assert_true(str_eq(json_get(v, STR("s"))->text, STR("a\0b")));
    assert_false(json_i64(json_get(v, STR("s")), &n));
    assert_false(json_f64(NULL, &d));
    assert_true(json_is_absent(json_get(v, STR("n"))));
    assert_true(json_is_absent(json_get(v, STR("missing"))));
    assert_false(json_is_absent(json_get(v, STR("a"))));
    assert_int_equal(json_get(v, STR("a"))->count, 3);
    assert_null(json_get(json_get(v, STR("a")), STR("t")));
    world_fini(&w);
}

/* ---- writing ---- */

static void json_write_sorts_keys_bytewise_at_every_level(void **state)
{
    (void)state;
    check_rewrite(
        STR("{\"b\":[{\"z\":1,\"y\":{\"q\":1,\"p\":2}}],\"ab\":2,\"a\":3,\"\xC3\xA9\":4,\"B\":5}"),
        STR("{\"B\":5,\"a\":3,\"ab\":2,\"b\":[{\"y\":{\"p\":2,\"q\":1},\"z\":1}],\"\xC3\xA9\":4}"),
        JSON_ORDER_SORTED);
}

static void json_write_string_replaces_bad_utf8(void **state)
{
    static const struct {
        struct str in, want;
    } cases[] = {
        {STR("plain"), STR("\"plain\"")},
        {STR("\x01\x1F\x7F"), STR("\"\\u0001\\u001f\x7F\"")},
        {STR("a\xFFz"), STR("\"a\xEF\xBF\xBDz\"")},
        {STR("\xE2\x82"), STR("\"\xEF\xBF\xBD\"")},
        {STR("\xE2\x82z"), STR("\"\xEF\xBF\xBDz\"")},
        {STR("\xED\xA0\x80"), STR("\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"")},
        {STR("\xF0\x9F\x98\x80\xF0\x9F"), STR("\"\xF0\x9F\x98\x80\xEF\xBF\xBD\"")},
    };
    struct buf b;

    (void)state;
    buf_init(&b, 4096);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        buf_reset(&b);
        json_write_string(&b, cases[i].in);
        if (!str_eq(buf_view(&b), cases[i].want)) {
            fail_msg("case %zu wrote " STR_FMT, i, STR_ARG(buf_view(&b)));
        }
    }
    buf_fini(&b);
}

static void json_writer_minds_commas_and_nesting(void **state)
{
    struct json_writer w;
    struct buf b;

    (void)state;
    buf_init(&b, 4096);
    jw_init(&w, &b);
    jw_object(&w);
    jw_kstr(&w, "s", STR("x\n"));
    jw_kc(&w, "none", NULL);
    jw_ki64(&w, "i", INT64_MIN);
    jw_ku64(&w, "u", UINT64_MAX);
    jw_kbool(&w, "b", true);
    jw_knull(&w, "n");
    jw_key(&w, STR("a"));
    jw_array(&w);
    jw_end_array(&w);
    jw_key(&w, STR("l"));
    jw_array(&w);
    jw_object(&w);
    jw_end_object(&w);
    jw_i64(&w, 1);
    jw_raw(&w, STR("{\"r\":1}"));
    jw_bool(&w, false);
    jw_end_array(&w);
    jw_kc(&w, "z", "end");
    jw_end_object(&w);
    assert_int_equal(w.depth, 0);
    assert_string_equal((buf_byte(&b, 0), (const char *)buf_view(&b).p),
                        "{\"s\":\"x\\n\",\"none\":null,\"i\":-9223372036854775808,"
                        "\"u\":18446744073709551615,\"b\":true,\"n\":null,\"a\":[],"
                        "\"l\":[{},1,{\"r\":1},false],\"z\":\"end\"}");
    buf_fini(&b);
}

static void json_writer_prints_doubles_that_read_back(void **state)
{
    static const struct {
        double v;
        const char *want;
    } cases[] = {
        {0.1, "0.1"},
        {1, "1"},
        {-0.0, "-0"},
        {1e300, "1e+300"},
        {1.0 / 3, "0.3333333333333333"},
        {0.1 + 0.2, "0.30000000000000004"},
        {INFINITY, "null"},
        {NAN, "null"},
        {5e-324, "4.94065645841247e-324"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct json_writer w;
        struct buf b;

        buf_init(&b, 64);
        jw_init(&w, &b);
        jw_f64(&w, cases[i].v);
        buf_byte(&b, 0);
        assert_string_equal((const char *)buf_view(&b).p, cases[i].want);
        buf_fini(&b);
    }
}

static void json_write_that_does_not_fit_fails_the_buffer(void **state)
{
    struct world w;
    struct buf small;

    (void)state;
    world_init(&w);
    buf_init(&small, 10);
    json_write(&small, parse(&w, STR("{\"a\":[1,2,3,4,5,6,7,8]}"), &json_limits_api),
               JSON_ORDER_SORTED);
    assert_true(small.failed);
    assert_true(small.len <= 10);
    buf_fini(&small);
    world_fini(&w);
}

/* Parsed with an arena of `max` bytes: complete, or refused for want of memory. */
static bool parses_within(struct str text, size_t max)
{
    struct world w;
    bool ok;

    world_init(&w);
    w.arena.max = max;
    ok = parse(&w, text, &json_limits_api) != NULL;
    if (!ok) {
        assert_int_equal(w.err.code, ERR_NO_MEMORY);
    }
    world_fini(&w);
    return ok;
}

static void json_every_allocation_may_fail(void **state)
{
    struct str text = STR("[{\"a\":\"\\n\",\"b\":{},\"c\":[[1]],\"d\":2,\"e\":3,\"f\":4,\"g\":5,"
                          "\"h\":6,\"i\":7,\"j\":8,\"k\":9,\"l\":10,\"m\":11}]");
    struct world w;
    struct json *v;
    size_t used;

    (void)state;
    world_init(&w);
    assert_non_null(parse(&w, text, &json_limits_api));
    used = w.arena.used;
    world_fini(&w);
    assert_true(parses_within(text, used));
    for (size_t max = 0; max < used; max += 8) {
        assert_false(parses_within(text, max));
    }

    world_init(&w);
    v = parse(&w, text, &json_limits_api);
    for (resizes_left = 0; resizes_left < 16; resizes_left++) {
        int left = resizes_left;
        struct buf b;

        buf_init(&b, 4096);
        json_write(&b, v, JSON_ORDER_SORTED);
        assert_true(b.failed || str_eq(buf_view(&b), text));
        assert_true(left > 0 || b.failed);
        assert_true(left < 15 || !b.failed);
        resizes_left = left;
        buf_fini(&b);
    }
    resizes_left = -1;
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_accepts_what_rfc_8259_allows),
        cmocka_unit_test(json_lone_surrogates_become_replacement_characters),
        cmocka_unit_test(json_refuses_and_says_what_and_where),
        cmocka_unit_test(json_string_scan_sees_every_byte_position),
        cmocka_unit_test(json_depth_is_bounded_and_costs_no_stack),
        cmocka_unit_test(json_values_numbers_and_memory_are_bounded),
        cmocka_unit_test(json_refuses_duplicate_keys_in_objects_of_any_size),
        cmocka_unit_test(json_sibling_objects_may_repeat_keys),
        cmocka_unit_test(json_survives_keys_chosen_to_collide),
        cmocka_unit_test(json_random_documents_come_back_equal),
        cmocka_unit_test(json_refuses_every_prefix_of_a_document),
        cmocka_unit_test(json_mutations_never_crash_and_stay_canonical),
        cmocka_unit_test(json_containers_know_their_source),
        cmocka_unit_test(json_a_repaired_container_has_no_source),
        cmocka_unit_test(json_every_allocation_may_fail),
        cmocka_unit_test(json_numbers_read_as_integers_when_they_are),
        cmocka_unit_test(json_members_are_found_and_types_respected),
        cmocka_unit_test(json_write_sorts_keys_bytewise_at_every_level),
        cmocka_unit_test(json_write_string_replaces_bad_utf8),
        cmocka_unit_test(json_writer_minds_commas_and_nesting),
        cmocka_unit_test(json_writer_prints_doubles_that_read_back),
        cmocka_unit_test(json_write_that_does_not_fit_fails_the_buffer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
