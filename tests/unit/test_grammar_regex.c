/* test_grammar_regex.c - regular expressions: what they match, what is refused, nothing that runs
 * away. */
#include "tests/unit/grammar_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* The whole text matches; yes and no: texts apart by a newline. */
static const struct {
    const char *regex, *yes, *no;
} cases[] = {
    {"abc", "abc", "ab\nabcd\nxabc"},
    {"a|bc|", "a\nbc\n", "b\nabc"},
    {"(?:ab)+c?", "ab\nababc", "c\nabcab"},
    {"[a-c]{2,3}", "ab\nabc", "a\nabcc\nad"},
    {"[^a-c]*", "xyz\n\né日", "a\nxb"},
    {"a{3}", "aaa", "aa\naaaa"},
    {"a{0000000000000003}", "aaa", "aa\na{0000000000000003}"},
    {"a{2,}b", "aab\naaaaaab", "ab"},
    {"(a{1,2}b){2}", "abab\naabab", "ab\naaabab"},
    {"a{,2}|x{y}", "a{,2}\nx{y}", "aa\nx"},
    {"\\d{3}-\\w+\\s?", "123-a_Z9\n123-a ", "12-a\n123-"},
    {"[\\d-]+[\\]^]", "1-2]\n-^", "a]\n1"},
    {"\\x41\\u0042\\u{43}\\u{1F600}\\ud83d\\ude00", "ABC\U0001f600\U0001f600", "ABC"},
    {"[\\ud83d\\ude00-\\u{1f603}é]", "\U0001f601\né", "\U0001f604\n\xf0\x9f"},
    {"^a$", "a", "aa"},
    {"a^b|c$", "c", "ab\nacb"},
    {".", "a\né\n日\n\U0001f600", "\r\nab\n\xc3"},
    {"[^]", "a\n\x7f", "ab"},
    {"(?<year>[0-9]{4})(?:-(0[1-9]|1[0-2]))?", "2024\n2024-12", "2024-13\n202"},
    {"a*?b+?", "b\naab", "a"},
    {"\\.\\*\\+\\?\\(\\)\\[\\]\\{\\}\\|\\^\\$\\/\\-", ".*+?()[]{}|^$/-", "x"},
    {"\\cJ|\\t", "\t", "J"},
    {"\\S+\\D\\W", "ab!", "ab1\na b!"},
};

static const char *next_line(const char *at, char *line, size_t cap)
{
    const char *end = strchr(at, '\n');

    str_copy(str_of(at, end != NULL ? (size_t)(end - at) : strlen(at)), line, cap);
    return end != NULL ? end + 1 : NULL;
}

static void the_whole_answer_matches(void **state)
{
    struct grammar_vocab *v = world_vocab();
    char line[128];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct grammar *g = world_regex(v, cases[i].regex);

        for (const char *at = cases[i].yes; at != NULL;) {
            at = next_line(at, line, sizeof(line));
            if (!world_takes(g, line)) {
                fail_msg("%s: not taken: %s", cases[i].regex, line);
            }
            world_check_masks(g, line);
        }
        for (const char *at = cases[i].no; at != NULL;) {
            at = next_line(at, line, sizeof(line));
            if (world_takes(g, line)) {
                fail_msg("%s: taken: %s", cases[i].regex, line);
            }
        }
        grammar_release(g);
    }
    grammar_vocab_free(v);
}

static const struct {
    const char *regex, *story;
    enum err_code code;
} refused[] = {
    {"(", "#: at byte 1: a group that is not closed", ERR_INPUT},
    {"a)", "#: at byte 1: a ) without its (", ERR_INPUT},
    {"[a", "#: at byte 2: a class that is not closed", ERR_INPUT},
    {"[b-a]", "#: at byte 4: a range out of order", ERR_INPUT},
    {"[a-\\d]", "#: at byte 3: a class is no end of a range", ERR_INPUT},
    {"*a", "#: at byte 0: nothing to repeat", ERR_INPUT},
    {"a**", "#: at byte 2: nothing to repeat", ERR_INPUT},
    {"^*", "#: at byte 2: nothing to repeat", ERR_INPUT},
    {"a{3,2}", "#: at byte 6: numbers out of order", ERR_INPUT},
    {"a\\", "#: at byte 2: a backslash at the end", ERR_INPUT},
    {"\\xg0", "#: at byte 2: hex digits", ERR_INPUT},
    {"\\u12", "#: at byte 2: hex digits", ERR_INPUT},
    {"\\bx", "#: at byte 1: only ", ERR_UNSUPPORTED},
    {"(a)\\1", "#: at byte 4: only ", ERR_UNSUPPORTED},
    {"\\p{L}", "#: at byte 1: only ", ERR_UNSUPPORTED},
    {"a(?!b)", "#: at byte 2: look-around", ERR_UNSUPPORTED},
    {"(?i)a", "#: at byte 1: look-around and flags", ERR_UNSUPPORTED},
    {"\xff", "#: at byte 0: invalid UTF-8", ERR_INPUT},
    {"[]", "#: the expression matches nothing", ERR_INPUT},
    {"a$b", "#: the expression matches nothing", ERR_INPUT},
    {"[\\ud800-\\udfff]", "#: the expression matches nothing", ERR_INPUT},
    {"a{10001}", "#: at byte 8: more than 10000 repeats", ERR_LIMIT},
    {"a{1000000000}", "#: at byte 13: more than 10000 repeats", ERR_LIMIT},
    {"a{4294967297}", "#: at byte 13: more than 10000 repeats", ERR_LIMIT}, /* 2^32 + 1 */
    {"a{2,18446744073709551617}", "#: at byte 25: more than 10000 repeats", ERR_LIMIT},
    {"(a|b)*a(a|b){25}", "#: too complex to compile", ERR_LIMIT},
    {"((a{1,100}){1,100}){1,100}", "#: the grammar needs more than 65536 states", ERR_LIMIT},
    {"((((){10000}){10000}){10000}){10000}", "#: too complex to compile", ERR_LIMIT},
    {"(((((x{100}){100}){100}){100}){100}){100}", "#: the grammar needs more than 65536 states",
     ERR_LIMIT},
};

static void wrong_and_hostile_expressions_are_refused(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct err e;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        world_regex_refused(v, refused[i].regex, &e);
        if (!str_starts(str_c(e.text), str_c(refused[i].story)) || e.code != refused[i].code) {
            fail_msg("%s: %d %s", refused[i].regex, e.code, e.text);
        }
    }
    grammar_vocab_free(v);
}

static void groups_nest_64_deep(void **state)
{
    struct grammar_vocab *v = world_vocab();
    char regex[256];
    struct grammar *g;
    struct err e;

    (void)state;
    for (int depth = GRAMMAR_DEPTH_MAX; depth <= GRAMMAR_DEPTH_MAX + 1; depth++) {
        memset(regex, '(', sizeof(regex));
        regex[depth] = 'a';
        memset(regex + depth + 1, ')', depth);
        regex[2 * depth + 1] = '\0';
        if (depth == GRAMMAR_DEPTH_MAX) {
            g = world_regex(v, regex);
            assert_true(world_takes(g, "a"));
            grammar_release(g);
        } else {
            world_regex_refused(v, regex, &e);
            assert_int_equal(e.code, ERR_LIMIT);
            assert_non_null(strstr(e.text, "groups nested deeper than 64"));
        }
    }
    grammar_vocab_free(v);
}

static void an_expression_has_at_most_8192_bytes(void **state)
{
    struct grammar_vocab *v = world_vocab();
    char *regex = mem_new(GRAMMAR_REGEX_BYTES_MAX + 2);
    struct grammar *g;
    struct err e;

    (void)state;
    memset(regex, 'a', GRAMMAR_REGEX_BYTES_MAX);
    g = world_regex(v, regex);
    assert_true(world_takes(g, regex));
    grammar_release(g);
    regex[GRAMMAR_REGEX_BYTES_MAX] = 'a';
    world_regex_refused(v, regex, &e);
    assert_int_equal(e.code, ERR_LIMIT);
    assert_non_null(strstr(e.text, "more than 8192 bytes"));
    mem_free(regex);
    grammar_vocab_free(v);
}

static void ten_thousand_repeats_of_a_class_cost_no_states(void **state)
{
    struct grammar_vocab *v = world_vocab();
    struct grammar *g = world_regex(v, "[a-zé]{5000,10000}");
    char *text = mem_new(10002);

    (void)state;
    assert_true(grammar_states(g) < 20);
    memset(text, 'a', 10001);
    assert_int_equal(world_taken(g, text), 10000);
    text[10000] = '\0';
    assert_true(world_takes(g, text));
    text[5000] = '\0';
    assert_true(world_takes(g, text));
    text[4999] = '\0';
    assert_false(world_takes(g, text));
    mem_free(text);
    grammar_release(g);
    grammar_vocab_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_whole_answer_matches),
        cmocka_unit_test(wrong_and_hostile_expressions_are_refused),
        cmocka_unit_test(groups_nest_64_deep),
        cmocka_unit_test(an_expression_has_at_most_8192_bytes),
        cmocka_unit_test(ten_thousand_repeats_of_a_class_cost_no_states),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
