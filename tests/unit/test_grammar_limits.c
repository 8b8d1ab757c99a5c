/* test_grammar_limits.c - the bounds of grammar.h are reached, and say so.
 * Not reached: GRAMMAR_FRAMES_MAX (frames are shared; the most ambiguous case here holds 90). */
#include "tests/unit/grammar_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define TEXT_MAX (4u << 20)

static const char *text_of(struct buf *b)
{
    buf_byte(b, 0);
    assert_false(b->failed);
    return (const char *)b->p;
}

static void expect_limit(const struct grammar_vocab *v, struct buf *schema, const char *story)
{
    struct err e;

    world_refused(v, text_of(schema), &e);
    if (e.code != ERR_LIMIT || strstr(e.text, story) == NULL || e.text[0] == '\0' ||
        (e.text[0] != '#' && e.text[0] != '.')) {
        fail_msg("%d %s, not: %s", e.code, e.text, story);
    }
    buf_reset(schema);
}

static void expect_taken(const struct grammar_vocab *v, struct buf *schema)
{
    grammar_release(world_schema(v, text_of(schema)));
    buf_reset(schema);
}

static void repeat(struct buf *b, const char *z, int n)
{
    for (int i = 0; i < n; i++) {
        buf_c(b, z);
    }
}

static void a_schema_has_at_most_64_kib(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct buf b;

    (void)state;
    buf_init(&b, TEXT_MAX);
    for (int more = 0; more < 2; more++) {
        buf_c(&b, "{\"title\":\"");
        repeat(&b, "x", GRAMMAR_SCHEMA_BYTES_MAX - 12 + more);
        buf_c(&b, "\"}");
        more == 0 ? expect_taken(v, &b) : expect_limit(v, &b, "more than 65536 bytes");
    }
    buf_fini(&b);
    grammar_vocab_free(v);
}

static void schemas_nest_64_deep(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct buf b;

    (void)state;
    buf_init(&b, TEXT_MAX);
    for (int more = 0; more < 2; more++) {
        repeat(&b, "{\"items\":", GRAMMAR_DEPTH_MAX - 1 + more);
        buf_c(&b, "{}");
        repeat(&b, "}", GRAMMAR_DEPTH_MAX - 1 + more);
        more == 0 ? expect_taken(v, &b) : expect_limit(v, &b, "nested deeper than 64");
    }
    buf_fini(&b);
    grammar_vocab_free(v);
}

static void an_answer_nests_64_deep_and_never_runs_into_the_wall(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct grammar_source src = {.kind = GRAMMAR_JSON_OBJECT};
    struct grammar_state s;
    struct grammar *g;
    struct err e;

    (void)state;
    err_clear(&e);
    assert_true(grammar_compile(&src, v, &g, &e));
    grammar_state_init(g, &s);
    assert_true(grammar_accept_bytes(g, &s, STR("{\"a\":")));
    for (int i = 1; i < GRAMMAR_DEPTH_MAX; i++) {
        assert_true(grammar_accept_bytes(g, &s, STR("[")));
    }
    assert_false(grammar_accept_bytes(g, &s, STR("[")));
    assert_false(grammar_accept_bytes(g, &s, STR("{")));
    assert_true(grammar_accept_bytes(g, &s, STR("1")));
    for (int i = 1; i < GRAMMAR_DEPTH_MAX; i++) {
        assert_true(grammar_accept_bytes(g, &s, STR("]")));
    }
    assert_true(grammar_accept_bytes(g, &s, STR("}")));
    assert_true(grammar_finished(g, &s));
    grammar_release(g);
    /* A key whose value would not fit is not begun: here each level needs two. */
    g = world_schema(v, "{\"type\":\"object\",\"properties\":{\"next\":{\"type\":\"array\","
                        "\"minItems\":1,\"items\":{\"$ref\":\"#\"}},"
                        "\"nest\":{\"type\":\"null\"}},\"additionalProperties\":false}");
    grammar_state_init(g, &s);
    for (int i = 1; i < GRAMMAR_DEPTH_MAX / 2; i++) {
        assert_true(grammar_accept_bytes(g, &s, STR("{\"next\":[")));
    }
    assert_true(grammar_accept_bytes(g, &s, STR("{\"ne")));
    assert_false(grammar_accept_bytes(g, &s, STR("x")));
    assert_true(grammar_accept_bytes(g, &s, STR("st\":null}")));
    grammar_release(g);
    grammar_vocab_free(v);
}

static void an_automaton_has_at_most_65536_states(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct buf b;

    (void)state;
    buf_init(&b, TEXT_MAX);
    buf_c(&b, "{\"properties\":{");
    for (int i = 0; i < 1500; i++) { /* each has a string of its own, and all the other types */
        buf_printf(&b, "%s\"p%d\":{\"maxLength\":%d}", i > 0 ? "," : "", i, i);
    }
    buf_c(&b, "}}");
    expect_limit(v, &b, "needs more than 65536 states");
    buf_fini(&b);
    grammar_vocab_free(v);
}

static void work_is_bounded(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct buf b;
    struct err e;

    (void)state;
    buf_init(&b, TEXT_MAX);
    buf_c(&b, "{\"properties\":{\"x\":{\"pattern\":\"(a|b)*a(a|b){30}$\"}}}");
    expect_limit(v, &b, "#/properties/x/pattern: too complex to compile");
    buf_c(&b, "{\"type\":\"string\",\"pattern\":\"^(?:a|bb){1,60}$\",\"minLength\":9000,"
              "\"maxLength\":9001}");
    world_refused(v, text_of(&b), &e); /* nothing matches that is so long */
    assert_int_equal(e.code, ERR_INPUT);
    buf_reset(&b);
    buf_c(&b, "{\"pattern\":\"^(?:aaa|bb)*$\",\"minLength\":900000}");
    expect_limit(v, &b, "too many states");
    buf_fini(&b);
    grammar_vocab_free(v);
}

/* ---- work ---- */

/* Schemas that grow with n in every way that names and places are looked up by. */
static void grow_defs(struct buf *b, int n)
{
    buf_c(b, "{\"$ref\":\"#/$defs/k0\",\"$defs\":{");
    for (int i = 0; i < n; i++) {
        buf_printf(b, "\"%d\":{},", i);
    }
    for (int i = 0; i < 10; i++) {
        buf_printf(b, "\"k%d\":{\"anyOf\":[{\"$ref\":\"#/$defs/k%d\"},{\"$ref\":", i, i + 1);
        buf_printf(b, "\"#/$defs/k%d\"}]},", i + 1);
    }
    buf_c(b, "\"k10\":{\"type\":\"null\"}}}");
}

static void grow_refs(struct buf *b, int n)
{
    buf_c(b, "{\"$defs\":{\"x\":{}");
    for (int i = 0; i < n; i++) {
        buf_printf(b, ",\"%d\":{\"$ref\":\"#/$defs/%d\"}", i, n - 1);
    }
    buf_c(b, "}}");
}

static void grow_branches(struct buf *b, int n)
{
    buf_c(b, "{\"$defs\":{\"x\":{\"anyOf\":[true");
    for (int i = 0; i < n; i++) {
        buf_c(b, ",true");
    }
    buf_c(b, "]},\"y\":{}");
    for (int i = 0; i < n; i++) {
        buf_printf(b, ",\"%d\":{\"$ref\":\"#/$defs/x/anyOf/%d\"}", i, n - i);
    }
    buf_c(b, "}}");
}

static void grow_names(struct buf *b, int n)
{
    buf_c(b, "{\"additionalProperties\":false,\"properties\":{\"x\":true");
    for (int i = n; i > 0; i--) { /* each with a first character of its own, the last one first */
        buf_printf(b, ",\"%c%c%c\":{\"type\":\"null\"}", 0xe4 + i / 4096, 0x80 + i / 64 % 64,
                   0x80 + i % 64);
    }
    buf_c(b, "}}");
}

static void grow_strings(struct buf *b, int n)
{
    buf_c(b, "{\"additionalProperties\":false,\"properties\":{\"x\":true");
    for (int i = 0; i < n; i++) {
        buf_printf(b, ",\"%d\":{\"type\":\"string\",\"maxLength\":%d}", i, i + 1);
    }
    buf_c(b, "}}");
}

static void grow_types(struct buf *b, int n)
{
    buf_c(b, "{\"type\":[\"null\"");
    for (int i = 0; i < n; i++) {
        buf_c(b, ",\"null\"");
    }
    buf_c(b, "],\"enum\":[null");
    for (int i = 0; i < n; i++) {
        buf_c(b, ",null");
    }
    buf_c(b, "]}");
}

static uint32_t work_of(const struct grammar_vocab *v, void (*grow)(struct buf *b, int n), int n)
{
    struct grammar *g;
    struct buf b;
    uint32_t work;

    buf_init(&b, TEXT_MAX);
    grow(&b, n);
    g = world_schema(v, text_of(&b));
    work = grammar_work(g);
    grammar_release(g);
    buf_fini(&b);
    return work;
}

static void work_grows_as_the_schema_does(void **state)
{
    static const struct {
        const char *name;
        void (*grow)(struct buf *b, int n);
        int n;
    } kinds[] = {{"defs", grow_defs, 5000},         {"refs", grow_refs, 2000},
                 {"branches", grow_branches, 1400}, {"names", grow_names, 1600},
                 {"strings", grow_strings, 700},    {"types", grow_types, 4000}};
    struct grammar_vocab *v = world_vocab();

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        uint32_t half = work_of(v, kinds[i].grow, kinds[i].n / 2);
        uint32_t whole = work_of(v, kinds[i].grow, kinds[i].n);

        if (whole <= half + (uint32_t)kinds[i].n / 2 || whole > 2 * half + half / 4) {
            fail_msg("%s: %u steps, then %u", kinds[i].name, half, whole);
        }
    }
    grammar_vocab_free(v);
}

/* Each of these is small; what their lists are multiplied to is not. */
static void what_is_multiplied_is_counted(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct buf b;

    (void)state;
    buf_init(&b, TEXT_MAX);
    buf_c(&b, "{\"$defs\":{\"a\":{\"enum\":[0.5");
    repeat(&b, ",0.25", 1500);
    buf_c(&b, "]}},\"$ref\":\"#/$defs/a\",\"enum\":[7");
    repeat(&b, ",77", 1500);
    buf_c(&b, "]}");
    expect_limit(v, &b, "too complex to compile");
    buf_c(&b, "{\"required\":[\"a\"");
    repeat(&b, ",\"a\"", 10000);
    buf_c(&b, "],\"anyOf\":[{}");
    repeat(&b, ",{\"minItems\":0}", 200);
    buf_c(&b, "]}");
    expect_limit(v, &b, "too complex to compile");
    buf_c(&b, "{\"enum\":[\"xx\"");
    repeat(&b, ",\"xx\"", 9000);
    buf_c(&b, "],\"anyOf\":[{}");
    repeat(&b, ",{\"minItems\":0}", 200);
    buf_c(&b, "]}");
    expect_limit(v, &b, "too complex to compile");
    buf_c(&b, "{\"$defs\":{\"u\":{\"anyOf\":[{\"type\":\"integer\"}");
    repeat(&b, ",{\"type\":\"integer\"}", 255);
    buf_c(&b, "]}},\"properties\":{\"x\":{}");
    for (int i = 0; i < 1500; i++) {
        buf_printf(&b, ",\"p%d\":{\"$ref\":\"#/$defs/u\"}", i);
    }
    buf_c(&b, "}}");
    expect_limit(v, &b, "too complex to compile");
    buf_fini(&b);
    grammar_vocab_free(v);
}

static void a_value_has_at_most_256_alternatives(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct buf b;

    (void)state;
    buf_init(&b, TEXT_MAX);
    for (int more = 0; more < 2; more++) {
        buf_c(&b, "{\"anyOf\":[");
        for (int i = 0; i < GRAMMAR_ALTERNATIVES_MAX + more; i++) {
            buf_printf(&b, "%s{\"const\":%d}", i > 0 ? "," : "", i);
        }
        buf_c(&b, "]}");
        more == 0 ? expect_taken(v, &b) : expect_limit(v, &b, "more than 256 alternatives");
    }
    buf_fini(&b);
    grammar_vocab_free(v);
}

static void at_most_32_alternatives_begin_alike(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct buf b;

    (void)state;
    buf_init(&b, TEXT_MAX);
    for (int more = 0; more < 2; more++) {
        buf_c(&b, "{\"properties\":{\"u\":{\"anyOf\":[");
        for (int i = 0; i < GRAMMAR_STACKS_MAX + more; i++) {
            buf_printf(&b,
                       "%s{\"type\":\"object\",\"properties\":{\"p%d\":{}},\"required\":[\"p%d\"]}",
                       i > 0 ? "," : "", i, i);
        }
        buf_c(&b, "]}}}");
        more == 0 ? expect_taken(v, &b)
                  : expect_limit(v, &b, "#/properties/u: more than 32 alternatives begin alike");
    }
    buf_fini(&b);
    grammar_vocab_free(v);
}

/* Patterns that allow most text: each is walked over the vocabulary by itself. */
static void at_most_6_dear_patterns_live_at_once(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct grammar_state s;
    struct grammar *g;
    struct buf b;

    (void)state;
    buf_init(&b, TEXT_MAX);
    for (int kind = 0; kind < 5; kind++) {
        static const char *const patterns[] = {"^([^@%c][^#%c]){20}$", "^[^%c%c]{0,9}$",
                                               "^[^%c%c]*$", "^[%c%c]{2}-[0-9a-f]{8}$",
                                               "^[^@ ]+@%c%c[.]nu$"};
        bool dear = kind < 2;

        for (int more = 0; more < 2; more++) {
            int n = (dear ? GRAMMAR_DEAR_MAX : GRAMMAR_STACKS_MAX - 6) + (dear ? more : 0);

            buf_c(&b, "{\"properties\":{\"u\":{\"anyOf\":[");
            for (int i = 0; i < n; i++) {
                buf_c(&b, i > 0 ? ",{\"type\":\"string\",\"pattern\":\""
                                : "{\"type\":\"string\",\"pattern\":\"");
                for (const char *at = patterns[kind]; *at != '\0'; at++) {
                    if (*at == '%') {
                        buf_byte(&b, (uint8_t)('A' + i));
                        at++;
                    } else {
                        buf_byte(&b, (uint8_t)*at);
                    }
                }
                buf_c(&b, "\"}");
            }
            buf_c(&b, "]}}}");
            dear &&more == 1 ? expect_limit(v, &b, "#/properties/u: more than 6 alternatives")
                             : expect_taken(v, &b);
        }
    }
    /* Twice four behind one key: the last two are dropped, and the mask says what is accepted. */
    for (int i = 0; i < 8; i++) {
        buf_printf(&b, "%s{\"type\":\"string\",\"pattern\":\"^([^@%c][^#%c]){9}$\"}%s",
                   i == 0   ? "{\"anyOf\":[{\"properties\":{\"a\":{\"anyOf\":["
                   : i == 4 ? "{\"required\":[\"a\"],\"properties\":{\"a\":{\"anyOf\":["
                            : "",
                   'A' + i, 'A' + i,
                   i == 7   ? "]}},\"type\":\"object\"}]}"
                   : i == 3 ? "]}},\"type\":\"object\"},"
                            : ",");
    }
    g = world_schema(v, text_of(&b));
    grammar_state_init(g, &s);
    assert_true(grammar_accept_bytes(g, &s, STR("{\"a\":\"")));
    assert_int_equal(s.n_stacks, GRAMMAR_DEAR_MAX);
    world_check_masks(g, "{\"a\":\"xABCGHabcdefghijkl\",\"b\":1}");
    grammar_release(g);
    buf_fini(&b);
    grammar_vocab_free(v);
}

/* Every level doubles the ways in which the text can be meant. */
static void deeper_ambiguity_drops_alternatives_and_stays_valid(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct grammar *g =
        world_schema(v, "{\"$defs\":{\"t\":{\"anyOf\":[{\"type\":\"array\",\"items\":{\"$ref\":\"#/"
                        "$defs/t\"},\"maxItems\":3},"
                        "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
                        "t\"},\"minItems\":0,\"maxItems\":2},{\"type\":\"null\"}]}},"
                        "\"$ref\":\"#/$defs/t\"}");
    struct grammar_state s;

    (void)state;
    grammar_state_init(g, &s);
    for (int i = 0; i < GRAMMAR_DEPTH_MAX; i++) {
        assert_true(grammar_accept_bytes(g, &s, STR("[")));
        assert_true(s.n_stacks <= GRAMMAR_STACKS_MAX && s.n_frames <= GRAMMAR_FRAMES_MAX);
    }
    assert_int_equal(s.n_stacks, GRAMMAR_STACKS_MAX);
    assert_true(grammar_accept_bytes(g, &s, STR("null,null,null]"))); /* the first is the widest */
    for (int i = 1; i < GRAMMAR_DEPTH_MAX; i++) {
        assert_true(grammar_accept_bytes(g, &s, STR("]")));
    }
    assert_true(grammar_finished(g, &s));
    grammar_release(g);
    g = world_schema(v, "{\"anyOf\":[{\"items\":{\"type\":\"integer\"}},{\"items\":{\"type\":"
                        "\"string\"}}],\"type\":\"array\"}");
    assert_false(world_takes(g, "[1,\"a\"]"));
    assert_true(world_takes(g, "[1,2]") && world_takes(g, "[\"a\",\"b\"]"));
    grammar_release(g);
    grammar_vocab_free(v);
}

static void one_value_is_bound_by_at_most_16_schemas(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct buf b;

    (void)state;
    buf_init(&b, TEXT_MAX);
    for (int more = 0; more < 2; more++) {
        int n = GRAMMAR_CONJUNCTS_MAX + more;

        buf_c(&b, "{\"$defs\":{");
        for (int i = 0; i < n; i++) {
            buf_printf(&b, "\"d%d\":{\"minimum\":%d", i, i);
            buf_printf(&b, i + 1 < n ? ",\"$ref\":\"#/$defs/d%d\"}," : "}", i + 1);
        }
        buf_c(&b, "},\"$ref\":\"#/$defs/d0\"}");
        more == 0 ? expect_taken(v, &b)
                  : expect_limit(v, &b, "more than 16 schemas bind one value");
    }
    buf_fini(&b);
    grammar_vocab_free(v);
}

static void white_space_ends_after_40_bytes(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct grammar *g = world_schema(v, "{\"type\":\"array\"}");
    struct grammar_state s;

    (void)state;
    for (int round = 0; round < 2; round++) {
        grammar_state_init(g, &s);
        assert_true(round == 0 || grammar_accept_bytes(g, &s, STR("[ 1")));
        for (int i = 0; i < GRAMMAR_SPACE_MAX; i++) {
            assert_true(grammar_accept_bytes(g, &s, i % 2 == 0 ? STR(" ") : STR("\n")));
        }
        assert_false(grammar_accept_bytes(g, &s, STR(" ")));
        assert_true(grammar_accept_bytes(g, &s, round == 0 ? STR("[") : STR("]")));
    }
    grammar_release(g);
    grammar_vocab_free(v);
}

static void numbers_have_at_most_64_digits_a_side(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct grammar *g = world_schema(v, "{\"type\":\"number\"}");
    struct buf b;

    (void)state;
    buf_init(&b, TEXT_MAX);
    repeat(&b, "7", GRAMMAR_DIGITS_MAX + 1);
    assert_int_equal(world_taken(g, text_of(&b)), GRAMMAR_DIGITS_MAX);
    buf_reset(&b);
    buf_c(&b, "0.");
    repeat(&b, "7", GRAMMAR_DIGITS_MAX + 1);
    assert_int_equal(world_taken(g, text_of(&b)), GRAMMAR_DIGITS_MAX + 2);
    buf_reset(&b);
    buf_c(&b, "{\"minimum\":1");
    repeat(&b, "0", GRAMMAR_DIGITS_MAX);
    buf_c(&b, "}");
    expect_limit(v, &b, "#/minimum: has more than 64 digits");
    buf_fini(&b);
    grammar_release(g);
    grammar_vocab_free(v);
}

static void tools_are_at_most_128(void **state)
{
    static struct grammar_tool list[GRAMMAR_TOOLS_MAX + 1];
    static char names[GRAMMAR_TOOLS_MAX + 1][8];
    struct grammar_piece piece = {.text = STR(" ")}, many[GRAMMAR_PIECES_MAX + 1];
    struct grammar_tool_format f = {.between = {&piece, 1}, .calls_min = 1, .calls_max = 1};
    struct grammar_source src = {.kind = GRAMMAR_TOOLS, .tools = list, .format = &f};
    struct grammar_vocab *v = world_vocab();
    struct grammar *g;
    struct err e;

    (void)state;
    for (int i = 0; i <= GRAMMAR_TOOLS_MAX; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "t%d", i);
        list[i].name = str_c(names[i]);
    }
    src.n_tools = GRAMMAR_TOOLS_MAX;
    err_clear(&e);
    assert_true(grammar_compile(&src, v, &g, &e));
    assert_true(world_takes(g, "t127 {\"a\":1}"));
    grammar_release(g);
    src.n_tools++;
    assert_false(grammar_compile(&src, v, &g, &e));
    assert_int_equal(e.code, ERR_LIMIT);
    assert_string_equal(e.text, "#/tools: 1 to 128 tools, and at least one call");
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        many[i] = piece;
    }
    f.between = (struct grammar_literal){many, GRAMMAR_PIECES_MAX};
    src.n_tools = 1;
    err_clear(&e);
    assert_true(grammar_compile(&src, v, &g, &e));
    grammar_release(g);
    f.between.n++;
    assert_false(grammar_compile(&src, v, &g, &e));
    assert_int_equal(e.code, ERR_LIMIT);
    assert_non_null(strstr(e.text, "more than 16 pieces"));
    grammar_vocab_free(v);
}

/* ---- vocabularies of their own ---- */

struct plain_vocab {
    const char *text;
    size_t n;
};

static struct str same_text(void *ctx, int32_t id)
{
    const struct plain_vocab *p = ctx;

    return id == 0 ? STR("") : str_of(p->text, id == 1 ? 1 : p->n);
}

static void a_token_of_more_than_256_bytes_is_never_allowed(void **state)
{
    char text[GRAMMAR_TOKEN_BYTES_MAX + 1];
    static const int32_t eos = 0;

    (void)state;
    memset(text, 'a', sizeof(text));
    for (size_t n = GRAMMAR_TOKEN_BYTES_MAX; n <= sizeof(text); n++) {
        struct plain_vocab p = {text, n};
        struct grammar_source src = {.kind = GRAMMAR_REGEX, .regex = STR("a*")};
        struct grammar_vocab *v;
        struct grammar_state s;
        struct grammar *g;
        struct err e;
        uint32_t bits[1];

        err_clear(&e);
        v = grammar_vocab_new(3, same_text, &p, &eos, 1, &e);
        assert_non_null(v);
        assert_true(grammar_compile(&src, v, &g, &e));
        grammar_state_init(g, &s);
        assert_int_equal(grammar_mask(g, &s, bits), n == GRAMMAR_TOKEN_BYTES_MAX ? 3 : 2);
        assert_int_equal(grammar_accept_token(g, &s, 2), n == GRAMMAR_TOKEN_BYTES_MAX);
        grammar_release(g);
        grammar_vocab_free(v);
    }
}

static void a_vocabulary_has_at_most_16_ends(void **state)
{
    int32_t eos[GRAMMAR_EOS_MAX + 1] = {0};
    struct plain_vocab p = {"a", 1};
    struct grammar_vocab *v;
    struct err e;

    (void)state;
    err_clear(&e);
    v = grammar_vocab_new(3, same_text, &p, eos, GRAMMAR_EOS_MAX, &e);
    assert_non_null(v);
    grammar_vocab_free(v);
    assert_null(grammar_vocab_new(3, same_text, &p, eos, GRAMMAR_EOS_MAX + 1, &e));
    assert_int_equal(e.code, ERR_LIMIT);
    err_clear(&e);
    assert_null(grammar_vocab_new(0, same_text, &p, eos, 1, &e));
    assert_int_equal(e.code, ERR_LIMIT);
}

static void the_mask_cache_drops_its_oldest(void **state)
{
    enum { TOKENS = 100000, MASKS = 500 };
    static const int32_t eos = 0;
    struct plain_vocab p = {"a", 1};
    struct grammar_source src = {.kind = GRAMMAR_REGEX, .regex = STR("(?:a(?:a)){400}")};
    uint32_t *bits = mem_new(GRAMMAR_MASK_WORDS(TOKENS) * sizeof(*bits));
    struct grammar_cache_stats c;
    struct grammar_vocab *v;
    struct grammar_state s;
    struct grammar *g;
    struct err e;

    (void)state;
    err_clear(&e);
    v = grammar_vocab_new(TOKENS, same_text, &p, &eos, 1, &e);
    assert_non_null(v);
    assert_true(grammar_compile(&src, v, &g, &e));
    grammar_state_init(g, &s);
    for (int i = 0; i < MASKS; i++) {
        assert_int_equal(grammar_mask(g, &s, bits), TOKENS - 1);
        assert_true(grammar_accept_token(g, &s, 1));
        grammar_cache_stats(g, &c);
        assert_true(c.bytes <= GRAMMAR_CACHE_BYTES_MAX);
    }
    assert_true(c.evictions > 0 && c.masks + c.evictions == MASKS);
    assert_int_equal(grammar_mask(g, &s, bits), TOKENS - 1);
    grammar_release(g);
    grammar_vocab_free(v);
    mem_free(bits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_schema_has_at_most_64_kib),
        cmocka_unit_test(schemas_nest_64_deep),
        cmocka_unit_test(an_answer_nests_64_deep_and_never_runs_into_the_wall),
        cmocka_unit_test(an_automaton_has_at_most_65536_states),
        cmocka_unit_test(work_is_bounded),
        cmocka_unit_test(work_grows_as_the_schema_does),
        cmocka_unit_test(what_is_multiplied_is_counted),
        cmocka_unit_test(a_value_has_at_most_256_alternatives),
        cmocka_unit_test(at_most_32_alternatives_begin_alike),
        cmocka_unit_test(at_most_6_dear_patterns_live_at_once),
        cmocka_unit_test(deeper_ambiguity_drops_alternatives_and_stays_valid),
        cmocka_unit_test(one_value_is_bound_by_at_most_16_schemas),
        cmocka_unit_test(white_space_ends_after_40_bytes),
        cmocka_unit_test(numbers_have_at_most_64_digits_a_side),
        cmocka_unit_test(tools_are_at_most_128),
        cmocka_unit_test(a_token_of_more_than_256_bytes_is_never_allowed),
        cmocka_unit_test(a_vocabulary_has_at_most_16_ends),
        cmocka_unit_test(the_mask_cache_drops_its_oldest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
