/* test_grammar.c - what schemas let through, masks beside accepting, states that are copied, tools.
 */
#include "tests/unit/grammar_world.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* yes and no: texts apart by a newline. */
static const struct {
    const char *schema, *yes, *no;
} cases[] = {
    {"true", "1\n\"a\"\nnull\n[]\n{\"a\":[{}]}\n-0.5e-10",
     "nul\n01\n+1\n.5\n1.\n'a'\n[1,]\n{\"a\"}"},
    {"{\"type\":\"string\"}", "\"\"\n\"a\\n\\u00e9\\ud83d\\ude00/\\/é日\"",
     "\"\\ud83d\"\n\"\\udc00\"\n\"\\x\"\n\"\x01\"\n\"\xc0\x80\"\n\"\xed\xa0\x80\"\n\"\xf4\x90\x80"
     "\x80\"\n\""},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     "\"ab\"\n\"abc\"\n\"éé\"\n\"\\n\\n\\n\"\n\"\\ud83d\\ude00x\"\n\"日本語\"",
     "\"a\"\n\"abcd\"\n\"é\"\n\"\""},
    {"{\"type\":\"integer\"}", "0\n-7\n1234567890123456789012345", "1.0\n1e3\n00\n-\n\"1\""},
    {"{\"type\":\"number\"}", "0\n-7\n1.50\n1e3\n-0.1E+09\n1e199", "1e\n1e200\n1.e3\n--1\n0x1"},
    {"{\"type\":\"integer\",\"minimum\":-5,\"exclusiveMaximum\":12}", "-5\n0\n9\n11",
     "-6\n12\n-0\n99"},
    {"{\"type\":\"number\",\"minimum\":0.5,\"maximum\":2}", "0.5\n0.50\n1\n1.99\n2.0",
     "0.49\n2.01\n3\n0\n-1"},
    {"{\"type\":[\"null\",\"boolean\"]}", "null\ntrue\nfalse", "0\n\"\""},
    {"{\"enum\":[\"a\",\"ab\",1,12,null,{\"k\":[1]}]}", "\"a\"\n\"ab\"\n1\n12\nnull\n{\"k\":[1]}",
     "\"b\"\n2\n{}\n{\"k\": [1]}"},
    {"{\"type\":\"string\",\"enum\":[\"a\",1,null,\"bcd\"],\"maxLength\":2}", "\"a\"",
     "1\nnull\n\"bcd\""},
    {"{\"const\":1.50}", "1.50", "1.5\n1"},
    {"{\"type\":\"integer\",\"enum\":[1,2,30,4.0],\"minimum\":2}", "2\n30\n4.0", "1\n3"},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
     "[1]\n[1,2,3]\n[ 1 , 2 ]\n[\n  1,\n  2\n]", "[]\n[1,2,3,4]\n[1,]\n[\"a\"]"},
    {"{\"type\":\"array\",\"maxItems\":0}", "[]\n[ ]", "[1]"},
    {"{\"type\":\"array\",\"items\":false}", "[]", "[1]\n[null]"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"null\"},"
     "\"ab\":{\"type\":\"boolean\"}},\"required\":[\"b\"],\"additionalProperties\":false}",
     "{\"b\":null}\n{\"a\":1,\"b\":null}\n{\"b\":null,\"ab\":true}\n{ \"a\" : 1 , \"b\" : null , "
     "\"ab\" : false }",
     "{}\n{\"a\":1}\n{\"b\":null,\"a\":1}\n{\"a\":1,\"ab\":true}\n{\"b\":null,\"c\":1}\n{\"b\":"
     "null,}\n{\"b\":null,\"b\":null}"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":{"
     "\"type\":\"string\"}}",
     "{}\n{\"a\":1}\n{\"a\":1,\"b\":\"x\"}\n{\"b\":\"x\",\"c\":\"y\"}\n{\"ab\":\"x\"}\n{\"\":"
     "\"x\"}",
     "{\"a\":\"x\"}\n{\"b\":1}\n{\"b\":\"x\",\"a\":1}\n{\"\\u0061\":\"x\"}"},
    {"{\"type\":\"object\",\"required\":[\"k\"]}", "{\"k\":1}\n{\"k\":{},\"x\":2}",
     "{}\n{\"x\":2}"},
    {"{\"type\":\"object\",\"properties\":{\"q\\\"\\\\\\n\":{}},\"additionalProperties\":false}",
     "{}\n{\"q\\\"\\\\\\n\":0}", "{\"q\":0}"},
    {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}", "\"a\"\n5", "null\n1.5"},
    {"{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"x\"},\"v\":{\"type\":"
     "\"integer\"}},"
     "\"required\":[\"t\",\"v\"],\"additionalProperties\":false},{\"type\":\"object\","
     "\"properties\":{\"t\":{\"const\":\"y\"},"
     "\"w\":{\"type\":\"null\"}},\"required\":[\"t\",\"w\"],\"additionalProperties\":false}]}",
     "{\"t\":\"x\",\"v\":1}\n{\"t\":\"y\",\"w\":null}",
     "{\"t\":\"x\",\"w\":null}\n{\"t\":\"y\",\"v\":1}\n{\"t\":\"z\"}"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
     "\"integer\"}},\"additionalProperties\":false,"
     "\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
     "{\"a\":1}\n{\"b\":1}\n{\"a\":1,\"b\":2}", "{}\n{\"c\":1}"},
    {"{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"n\":{"
     "\"$ref\":\"#/$defs/n\"}},"
     "\"required\":[\"v\"],\"additionalProperties\":false}},\"$ref\":\"#/$defs/n\"}",
     "{\"v\":1}\n{\"v\":1,\"n\":{\"v\":2,\"n\":{\"v\":3}}}",
     "{\"n\":{\"v\":1}}\n{\"v\":1,\"n\":{}}"},
    {"{\"definitions\":{\"s\":{\"type\":\"string\"}},\"type\":\"array\",\"items\":{\"$ref\":\"#/"
     "definitions/s\",\"maxLength\":1}}",
     "[]\n[\"a\",\"\"]", "[\"ab\"]"},
    {"{\"$defs\":{\"a/b~c %\\u00e9\":{\"type\":\"null\"}},\"$ref\":"
     "\"#/$defs/a~1b~0c%20%25%C3%a9\"}",
     "null", "1"},
    {"{\"$defs\":{\"x\":{\"type\":\"null\"},\"x/y\":{\"type\":\"integer\"}},"
     "\"$ref\":\"#/%24defs/x~1y\"}",
     "1", "null"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"null\"},{"
     "\"items\":{\"type\":\"integer\"},\"type\":\"array\"}]},\"b\":{\"$ref\":"
     "\"#/properties/a/anyOf/1/items\"}},\"additionalProperties\":{\"$ref\":"
     "\"#/properties/a\"}}",
     "{\"a\":[1],\"b\":2,\"c\":null}", "{\"b\":null}\n{\"c\":2}"},
    /* No spelling of a declared name passes as another key, where it would bring another value. */
    {"{\"properties\":{\"a/\":{\"type\":\"null\"},\"\\u00e9\":{\"type\":\"null\"},"
     "\"\\n\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":\"integer\"},"
     "\"type\":\"object\"}",
     "{\"a/\":null,\"\u00e9\":null,\"\\n\":null,\"a\":1}\n{\"x\":1,\"x\":2}",
     "{\"a/\":1}\n{\"a\\/\":1}\n{\"\\u0061/\":1}\n{\"\u00e9\":1}\n{\"\\u00e9\":1}\n"
     "{\"\\u00E9\":1}\n{\"\\n\":1}\n{\"\\u000a\":1}\n{\"x\":1,\"a/\":1}"},
    {"{\"type\":\"string\",\"pattern\":\"^[a-c]+$\",\"maxLength\":2}", "\"a\"\n\"cb\"",
     "\"\"\n\"abc\"\n\"d\""},
    {"{\"type\":\"string\",\"pattern\":\"^(aaa)*$\",\"minLength\":4,\"maxLength\":7}", "\"aaaaaa\"",
     "\"aaa\"\n\"aaaaaaa\"\n\"aaaaaaaaa\""},
    {"{\"type\":\"string\",\"pattern\":\"b\"}", "\"b\"\n\"abc\"\n\"\\\"b\\\\\"", "\"\"\n\"acd\""},
    {"{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-29\"\n\"1900-12-31\"\n\"2000-02-29\"",
     "\"2023-02-29\"\n\"1900-02-29\"\n\"2024-13-01\"\n\"0000-01-01\"\n\"2024-04-31\""},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     "\"2024-02-29T23:59:59Z\"\n\"2024-01-01T00:00:00.125+05:30\"",
     "\"2024-01-01\"\n\"2024-01-01T24:00:00Z\"\n\"2024-01-01T00:00:00\""},
    {"{\"type\":\"string\",\"format\":\"uuid\"}", "\"01234567-89ab-cdef-0123-456789abcdEF\"",
     "\"0123456789abcdef0123456789abcdef\"\n\"g1234567-89ab-cdef-0123-456789abcdEF\""},
};

static const char *next_line(const char *at, char *line, size_t cap)
{
    const char *end = strchr(at, '\n');
    size_t n = end != NULL ? (size_t)(end - at) : strlen(at);

    /* A newline before white space belongs to the text. */
    while (end != NULL && (end[1] == ' ' || end[1] == ']')) {
        end = strchr(end + 1, '\n');
        n = end != NULL ? (size_t)(end - at) : strlen(at);
    }
    str_copy(str_of(at, n), line, cap);
    return end != NULL ? end + 1 : NULL;
}

static void schemas_take_what_validates_and_nothing_else(void **state)
{
    struct grammar_vocab *v = world_vocab();
    char line[256];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct grammar *g = world_schema(v, cases[i].schema);

        for (const char *at = cases[i].yes; at != NULL;) {
            at = next_line(at, line, sizeof(line));
            if (!world_takes(g, line)) {
                fail_msg("%s: not taken: %s", cases[i].schema, line);
            }
        }
        for (const char *at = cases[i].no; at != NULL;) {
            at = next_line(at, line, sizeof(line));
            if (world_takes(g, line)) {
                fail_msg("%s: taken: %s", cases[i].schema, line);
            }
        }
        grammar_release(g);
    }
    grammar_vocab_free(v);
}

static void masks_allow_exactly_what_is_accepted(void **state)
{
    struct grammar_vocab *v = world_vocab();
    char line[256];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct grammar *g = world_schema(v, cases[i].schema);

        for (const char *at = cases[i].yes; at != NULL;) {
            at = next_line(at, line, sizeof(line));
            world_check_masks(g, line);
            world_check_masks(g, line); /* and from the cache */
        }
        grammar_release(g);
    }
    grammar_vocab_free(v);
}

/* Each schema is refused, with this at the start of the story. */
static const struct {
    const char *schema, *story;
} refused[] = {
    {"5", "#: a schema is an object or a boolean"},
    {"{\"type\":\"nonsense\",\"properties\":5}", "#/type: must be the name of a JSON type"},
    {"{\"type\":[]}", "#/type: "},
    {"{\"properties\":5}", "#/properties: must be an object of schemas"},
    {"{\"properties\":{\"a\":{\"oneOf\":[{}]}}}",
     "#/properties/a/oneOf: this keyword is not enforced here"},
    {"{\"properties\":{\"a/b~\":{\"not\":{}}}}", "#/properties/a~1b~0/not: "},
    {"{\"multipleOf\":2}", "#/multipleOf: "},
    {"{\"format\":\"email\"}", "#/format: this format is not enforced"},
    {"{\"items\":[{}]}", "#/items: a schema is an object or a boolean"},
    {"{\"required\":[1]}", "#/required/0: must be a name"},
    {"{\"minLength\":-1}", "#/minLength: must be an integer"},
    {"{\"minimum\":\"1\"}", "#/minimum: must be a number"},
    {"{\"exclusiveMinimum\":true}", "#/exclusiveMinimum: must be a number"},
    {"{\"enum\":[]}", "#/enum: must be an array with at least one value"},
    {"{\"anyOf\":[]}", "#/anyOf: must be an array with at least one schema"},
    {"{\"$ref\":\"#/$defs/x\"}", "#/$ref: names nothing"},
    {"{\"$ref\":\"http://example.com\"}", "#/$ref: names nothing"},
    {"{\"$defs\":{\"a~b\":{}},\"$ref\":\"#/$defs/a~b\"}", "#/$ref: names nothing"},
    {"{\"$defs\":{\"a\":{}},\"$ref\":\"#/$defs/a/\"}", "#/$ref: names nothing"},
    {"{\"$defs\":{\"a\":{}},\"$ref\":\"#/$defs\"}", "#/$ref: names nothing"},
    {"{\"$defs\":{\"a\":{\"const\":{\"b\":{}}}},\"$ref\":\"#/$defs/a/const/b\"}",
     "#/$ref: names nothing"},
    {"{\"properties\":{\"a\":{\"$ref\":\"#/properties/a\"}}}", "#/properties/a: refers to itself"},
    {"{\"$ref\":\"#\"}", "#: refers to itself"},
    {"{\"$defs\":{\"a\":{\"anyOf\":[{\"$ref\":\"#/$defs/a\"},{}]}},\"$ref\":\"#/$defs/a\"}",
     "#/$defs/a: refers to itself"},
    {"{\"pattern\":\"(\"}", "#/pattern: at byte 1: "},
    {"{\"pattern\":\"a(?=b)\"}", "#/pattern: at byte 2: look-around"},
    {"{\"minItems\":3,\"maxItems\":2}", "#/minItems: is more than maxItems"},
    {"{\"minLength\":3,\"maxLength\":2}", "#/minLength: is more than maxLength"},
    {"{\"minimum\":3,\"maximum\":2}", "#/minimum: leaves nothing below maximum"},
    {"{\"exclusiveMinimum\":2,\"maximum\":2}", "#/exclusiveMinimum: leaves nothing below maximum"},
    {"false", "#: no value satisfies this"},
    {"{\"type\":\"object\",\"properties\":{\"a\":false},\"required\":[\"a\"]}",
     "#/properties/a: no value satisfies this"},
    {"{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}",
     "#/additionalProperties: no value satisfies this"},
    {"{\"type\":\"array\",\"items\":false,\"minItems\":1}", "#/items: no value satisfies this"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
     "#/properties/a: no value satisfies this"},
    {"{\"type\":\"string\",\"enum\":[1,2]}", "#: no value satisfies this"},
    {"{\"type\":\"string\",\"pattern\":\"^a$\",\"minLength\":2}", "#: no value satisfies this"},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":1,\"exclusiveMaximum\":2}",
     "#: no value satisfies this"},
    {"{\"type\":\"object\",\"properties\":{},\"enum\":[{\"a\":1}]}",
     "#/enum/0: an object or array among literals"},
};

static void wrong_schemas_are_refused_with_their_place(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct err e;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        world_refused(v, refused[i].schema, &e);
        if (!str_starts(str_c(e.text), str_c(refused[i].story))) {
            fail_msg("%s: %s", refused[i].schema, e.text);
        }
    }
    grammar_vocab_free(v);
}

static void annotations_change_nothing(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct grammar *g = world_schema(
        v, "{\"$schema\":\"x\",\"$id\":\"y\",\"title\":\"t\",\"description\":\"d\",\"default\":5,"
           "\"examples\":[1],\"strict\":true,\"type\":\"null\"}");

    (void)state;
    assert_true(world_takes(g, "null"));
    assert_int_equal(world_taken(g, "5"), 0);
    grammar_release(g);
    grammar_vocab_free(v);
}

static void eos_comes_only_where_the_value_may_end(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct grammar *g = world_schema(v, "{\"type\":\"number\"}");
    struct grammar_state s;
    uint32_t bits[32];

    (void)state;
    grammar_state_init(g, &s);
    assert_false(grammar_accept_token(g, &s, WORLD_EOS));
    assert_true(grammar_accept_bytes(g, &s, STR("12")));
    assert_true(grammar_accepting(g, &s));
    assert_false(grammar_finished(g, &s)); /* another digit may follow */
    assert_true(grammar_accept_bytes(g, &s, STR(".")));
    assert_false(grammar_accepting(g, &s));
    assert_false(grammar_accept_token(g, &s, WORLD_EOS));
    assert_true(grammar_accept_bytes(g, &s, STR("5")));
    assert_true(grammar_accept_token(g, &s, WORLD_EOS));
    assert_int_equal(grammar_mask(g, &s, bits), 0);
    assert_false(grammar_accept_token(g, &s, WORLD_EOS));
    assert_false(grammar_accept_bytes(g, &s, STR("5")));
    assert_false(grammar_accepting(g, &s));
    grammar_release(g);
    grammar_vocab_free(v);
}

static void finished_means_that_only_eos_is_left(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct grammar *g = world_schema(v, "{\"type\":\"object\",\"properties\":{\"a\":{}}}");
    struct grammar_state s;
    uint32_t bits[32];

    (void)state;
    grammar_state_init(g, &s);
    assert_true(grammar_accept_bytes(g, &s, STR("{\"a\":[1]")));
    assert_false(grammar_finished(g, &s));
    assert_true(grammar_accept_bytes(g, &s, STR("}")));
    assert_true(grammar_finished(g, &s));
    assert_int_equal(grammar_mask(g, &s, bits), 1);
    assert_int_equal(bits[0], 1u << WORLD_EOS);
    grammar_release(g);
    grammar_vocab_free(v);
}

static void a_refused_token_changes_nothing_and_copies_go_apart(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct grammar *g = world_schema(
        v, "{\"type\":\"array\",\"items\":{\"enum\":[\"abc\",\"abd\",1]},\"maxItems\":2}");
    struct grammar_state s, draft;

    (void)state;
    grammar_state_init(g, &s);
    assert_true(grammar_accept_bytes(g, &s, STR("[\"ab")));
    assert_false(grammar_accept_bytes(g, &s, STR("c\",x")));
    assert_false(grammar_accept_token(g, &s, WORLD_CALL));
    assert_false(grammar_accept_token(g, &s, -1));
    assert_false(grammar_accept_token(g, &s, (int32_t)world_count()));
    grammar_state_copy(&draft, &s);
    assert_true(grammar_accept_bytes(g, &draft, STR("c\",1]")));
    assert_true(grammar_accepting(g, &draft));
    assert_false(grammar_accepting(g, &s));
    assert_true(grammar_accept_bytes(g, &s, STR("d\"]")));
    assert_true(grammar_accepting(g, &s));
    grammar_release(g);
    grammar_vocab_free(v);
}

static void long_strings_and_arrays_cost_no_states(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct grammar *one = world_schema(v, "{\"type\":\"string\",\"minLength\":1,\"maxLength\":2}");
    struct grammar *many =
        world_schema(v, "{\"type\":\"string\",\"minLength\":9000,\"maxLength\":10000}");
    struct grammar *words =
        world_schema(v, "{\"type\":\"string\",\"pattern\":\"^[a-z ]{3,10000}$\"}");
    struct grammar *items =
        world_schema(v, "{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"maxItems\":1000000}");
    struct grammar_state s;

    (void)state;
    assert_int_equal(grammar_states(one), grammar_states(many));
    assert_true(grammar_states(words) < 20 && grammar_states(items) < 20);
    grammar_state_init(many, &s);
    assert_true(grammar_accept_bytes(many, &s, STR("\"")));
    for (int i = 0; i < 10000; i++) {
        struct grammar_state end;

        grammar_state_copy(&end, &s);
        assert_int_equal(grammar_accept_bytes(many, &end, STR("\"")), i >= 9000);
        assert_true(grammar_accept_bytes(many, &s, STR("é")));
    }
    assert_false(grammar_accept_bytes(many, &s, STR("a")));
    assert_false(grammar_accept_bytes(many, &s, STR("\xc3"))); /* no half of a character either */
    assert_true(grammar_accept_bytes(many, &s, STR("\"")));
    grammar_release(one);
    grammar_release(many);
    grammar_release(words);
    grammar_release(items);
    grammar_vocab_free(v);
}

static void counters_far_from_their_bounds_share_masks(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct grammar *g = world_schema(v, "{\"type\":\"string\",\"maxLength\":5000}");
    struct grammar_cache_stats c;
    struct grammar_state s;
    uint32_t bits[32];

    (void)state;
    grammar_state_init(g, &s);
    assert_true(grammar_accept_bytes(g, &s, STR("\"a")));
    for (int i = 1; i < 4900; i++) {
        (void)grammar_mask(g, &s, bits);
        assert_true(grammar_accept_bytes(g, &s, STR("a")));
    }
    grammar_cache_stats(g, &c);
    assert_int_equal(c.masks, 1);
    assert_int_equal(c.hits, 4898);
    for (int i = 4900; i < 5000; i++) { /* near it each has its own, and is right */
        (void)grammar_mask(g, &s, bits);
        assert_int_equal(bits[(WORLD_BYTES + 'a') / 32] >> ((WORLD_BYTES + 'a') % 32) & 1, 1);
        assert_true(grammar_accept_bytes(g, &s, STR("a")));
    }
    assert_int_equal(grammar_mask(g, &s, bits), 1); /* the quote */
    grammar_release(g);
    grammar_vocab_free(v);
}

/* ---- tools ---- */

#define PIECES(...)                                                                                \
    {                                                                                              \
        (const struct grammar_piece[]){__VA_ARGS__},                                               \
            sizeof((struct grammar_piece[]){__VA_ARGS__}) / sizeof(struct grammar_piece)           \
    }
#define TEXT(z)                                                                                    \
    {                                                                                              \
        .text = { z, sizeof(z) - 1 }                                                               \
    }
#define TOKEN(id)                                                                                  \
    {                                                                                              \
        .token = id                                                                                \
    }

static struct grammar *tools(const struct grammar_vocab *v, const struct grammar_tool_format *f)
{
    struct arena arena;
    struct err e;
    struct grammar *g;
    struct grammar_tool list[] = {{STR("get"), NULL}, {STR("get_time"), NULL}};
    struct grammar_source src = {.kind = GRAMMAR_TOOLS, .tools = list, .n_tools = 2, .format = f};

    err_clear(&e);
    arena_init(&arena, 1 << 20);
    list[1].parameters = json_parse(&arena,
                                    STR("{\"properties\":{\"zone\":{\"type\":\"string\"}},"
                                        "\"required\":[\"zone\"],\"additionalProperties\":false}"),
                                    &json_limits_api, &e);
    if (!grammar_compile(&src, v, &g, &e)) {
        fail_msg("%s", e.text);
    }
    arena_fini(&arena);
    return g;
}

static void tool_calls_follow_their_format(void **state)
{
    const struct grammar_tool_format f = {.before = PIECES(TEXT("<tool_call>\n{\"name\": \"")),
                                          .between = PIECES(TEXT("\", \"arguments\": ")),
                                          .after = PIECES(TEXT("}\n</tool_call>")),
                                          .separator = PIECES(TEXT("\n")),
                                          .calls_min = 1,
                                          .calls_max = 2};
    struct grammar_vocab *v = world_vocab();
    struct grammar *g = tools(v, &f);
    const char *one = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"x\":1}}\n</tool_call>";
    const char *two =
        "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {\"zone\":\"a\"}}\n</tool_call>\n"
        "<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>";

    (void)state;
    world_check_masks(g, one);
    world_check_masks(g, two);
    assert_true(world_takes(g, one));
    assert_true(world_takes(g, two));
    assert_int_equal(world_taken(g, "<tool_call>\n{\"name\": \"gets"), 25);
    assert_int_equal(world_taken(g, "<tool_call>\n{\"name\": \"get\", \"arguments\": 5"), 41);
    assert_int_equal(world_taken(g, "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}"), 47);
    {
        char three[512];

        (void)snprintf(three, sizeof(three), "%s\n", two);
        assert_int_equal(world_taken(g, three), strlen(two)); /* no third call */
        (void)snprintf(three, sizeof(three), "%s\n", one);
        assert_false(world_takes(g, three)); /* a separator promises a call */
    }
    grammar_release(g);
    grammar_vocab_free(v);
}

static void tool_calls_in_an_array_need_their_least_number(void **state)
{
    const struct grammar_tool_format f = {.begin = PIECES(TOKEN(WORLD_CALL), TEXT("[")),
                                          .before = PIECES(TEXT("{\"name\": \"")),
                                          .between = PIECES(TEXT("\", \"arguments\": ")),
                                          .after = PIECES(TEXT("}")),
                                          .separator = PIECES(TEXT(", ")),
                                          .end = PIECES(TEXT("]"), TOKEN(WORLD_CALLED)),
                                          .calls_min = 2,
                                          .calls_max = 3};
    struct grammar_vocab *v = world_vocab();
    struct grammar *g = tools(v, &f);
    struct str call = STR("{\"name\": \"get\", \"arguments\": {}}");
    struct grammar_state s;
    uint32_t bits[32];

    (void)state;
    grammar_state_init(g, &s);
    assert_false(grammar_accept_bytes(g, &s, STR("[")));
    assert_int_equal(grammar_mask(g, &s, bits), 1);
    assert_int_equal(bits[0], 1u << WORLD_CALL);
    assert_true(grammar_accept_token(g, &s, WORLD_CALL));
    assert_true(grammar_accept_bytes(g, &s, STR("[")));
    assert_true(grammar_accept_bytes(g, &s, call));
    assert_false(grammar_accept_bytes(g, &s, STR("]")));
    for (int i = 0; i < 2; i++) {
        assert_true(grammar_accept_bytes(g, &s, STR(", ")));
        assert_true(grammar_accept_bytes(g, &s, call));
    }
    assert_false(grammar_accept_bytes(g, &s, STR(",")));
    assert_true(grammar_accept_bytes(g, &s, STR("]")));
    assert_false(grammar_accepting(g, &s));
    assert_int_equal(grammar_mask(g, &s, bits), 1);
    assert_true(grammar_accept_token(g, &s, WORLD_CALLED));
    assert_true(grammar_finished(g, &s));
    grammar_release(g);
    grammar_vocab_free(v);
}

static void a_wrong_tool_is_refused_with_its_place(void **state)
{
    const struct grammar_tool_format f = {.before = PIECES(TEXT("{\"name\": \"")),
                                          .between = PIECES(TEXT("\", \"parameters\": ")),
                                          .after = PIECES(TEXT("}")),
                                          .calls_min = 1,
                                          .calls_max = 1};
    struct json bad = {.type = JSON_NUMBER, .text = STR("5")};
    struct json never = {.type = JSON_FALSE};
    struct grammar_tool same[] = {{STR("a"), NULL}, {STR("a"), NULL}};
    struct grammar_tool wrong[] = {{STR("a"), NULL}, {STR("b"), &bad}};
    struct grammar_tool nothing[] = {{STR("a"), NULL}, {STR("b"), &never}};
    struct grammar_tool *lists[] = {same, wrong, nothing};
    static const char *const stories[] = {
        "#/tools/1/function/name: ", "#/tools/1/function/parameters: a schema is",
        "#/tools/1/function/parameters: no value"};
    struct grammar_vocab *v = world_vocab();

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        struct grammar_source src = {
            .kind = GRAMMAR_TOOLS, .tools = lists[i], .n_tools = 2, .format = &f};
        struct grammar *g;
        struct err e;

        err_clear(&e);
        assert_false(grammar_compile(&src, v, &g, &e));
        if (!str_starts(str_c(e.text), str_c(stories[i]))) {
            fail_msg("%s", e.text);
        }
    }
    grammar_vocab_free(v);
}

/* ---- shared by threads ---- */

static void *decode_often(void *g)
{
    uint32_t bits[32];

    for (int round = 0; round < 40; round++) {
        struct grammar_state s;
        const char *text = "{\"name\":[1,{\"a\":\"xyz\"},null]}";

        grammar_state_init(grammar_retain(g), &s);
        for (; *text != '\0'; text++) {
            (void)grammar_mask(g, &s, bits);
            CHECK(grammar_accept_bytes(g, &s, str_of(text, 1)));
        }
        CHECK(grammar_finished(g, &s));
        grammar_release(g);
    }
    return NULL;
}

static void one_grammar_serves_several_threads(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct grammar_source src = {.kind = GRAMMAR_JSON_OBJECT};
    struct grammar *g;
    pthread_t threads[3];
    struct err e;

    (void)state;
    err_clear(&e);
    assert_true(grammar_compile(&src, v, &g, &e));
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, decode_often, g), 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    grammar_release(g);
    grammar_vocab_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemas_take_what_validates_and_nothing_else),
        cmocka_unit_test(masks_allow_exactly_what_is_accepted),
        cmocka_unit_test(wrong_schemas_are_refused_with_their_place),
        cmocka_unit_test(annotations_change_nothing),
        cmocka_unit_test(eos_comes_only_where_the_value_may_end),
        cmocka_unit_test(finished_means_that_only_eos_is_left),
        cmocka_unit_test(a_refused_token_changes_nothing_and_copies_go_apart),
        cmocka_unit_test(long_strings_and_arrays_cost_no_states),
        cmocka_unit_test(counters_far_from_their_bounds_share_masks),
        cmocka_unit_test(tool_calls_follow_their_format),
        cmocka_unit_test(tool_calls_in_an_array_need_their_least_number),
        cmocka_unit_test(a_wrong_tool_is_refused_with_its_place),
        cmocka_unit_test(one_grammar_serves_several_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
