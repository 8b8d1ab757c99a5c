/* test_openai_parse.c - which bodies are requests, and what every other one is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "gateway/api/openai.h"

#define ARENA_BYTES (64u << 20)
#define HELLO "\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

struct world {
    struct arena arena;
    struct openai_request r;
    struct api_error e;
};

static bool parse(struct world *w, enum endpoint ep, const char *body)
{
    memset(w, 0, sizeof(*w));
    arena_init(&w->arena, ARENA_BYTES);
    return openai_parse(&w->arena, ep, str_c(body), &w->r, &w->e);
}

static void accept(struct world *w, enum endpoint ep, const char *body)
{
    if (!parse(w, ep, body)) {
        fail_msg("%.300s refused: %s", body, w->e.message);
    }
}

static void refuse(enum endpoint ep, const char *body, const char *param, const char *code)
{
    struct world w;

    if (parse(&w, ep, body)) {
        fail_msg("%.300s accepted", body);
    }
    if (w.e.status != 400 || strcmp(w.e.type, "invalid_request_error") != 0 ||
        strcmp(w.e.param, param) != 0 || w.e.message[0] == '\0' ||
        (code == NULL) != (w.e.code == NULL) || (code != NULL && strcmp(code, w.e.code) != 0)) {
        fail_msg("%.300s: %u param '%s' code '%s' (%s)", body, w.e.status, w.e.param,
                 w.e.code != NULL ? w.e.code : "null", w.e.message);
    }
    arena_fini(&w.arena);
}

/* HELLO and one more member. */
static void refuse_member(const char *member, const char *param, const char *code)
{
    char body[2048];

    (void)snprintf(body, sizeof(body), "{" HELLO ",%s}", member);
    refuse(ENDPOINT_CHAT, body, param, code);
}

static void accept_member(struct world *w, const char *member)
{
    char body[2048];

    (void)snprintf(body, sizeof(body), "{" HELLO ",%s}", member);
    accept(w, ENDPOINT_CHAT, body);
}

static void plain_chat_is_read(void **state)
{
    struct world w;

    (void)state;
    accept(&w, ENDPOINT_CHAT, "{" HELLO "}");
    assert_true(str_eq(w.r.model, STR("m")));
    assert_int_equal(w.r.messages, 1);
    assert_int_equal(w.r.text_bytes, 2);
    assert_int_equal(w.r.max_tokens, -1);
    assert_int_equal(w.r.tier, TIER_STANDARD);
    assert_null(w.r.tier_echo);
    assert_false(w.r.stream);
    assert_null(w.r.cache_key.p);
    arena_fini(&w.arena);
}

static void what_is_no_json_object_is_refused(void **state)
{
    static const char *const bad[] = {
        "{", "", "{\"model\":NaN}", "{\"model\":\"a\",\"model\":\"b\"}", "{\"x\":1e400}", "\xFF"};
    char deep[20001];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        refuse(ENDPOINT_CHAT, bad[i], "", "invalid_json");
    }
    memset(deep, '[', sizeof(deep) - 1);
    deep[sizeof(deep) - 1] = '\0';
    refuse(ENDPOINT_CHAT, deep, "", "invalid_json");
    refuse(ENDPOINT_CHAT, "[]", "", NULL);
    refuse(ENDPOINT_CHAT, "3", "", NULL);
    refuse(ENDPOINT_CHAT, "null", "", NULL);
}

static void missing_and_empty_parts_are_named(void **state)
{
    (void)state;
    refuse(ENDPOINT_CHAT, "{}", "model", NULL);
    refuse(ENDPOINT_CHAT, "{\"model\":7}", "model", NULL);
    refuse(ENDPOINT_CHAT, "{\"model\":\"\"}", "model", NULL);
    refuse(ENDPOINT_CHAT, "{\"model\":\"m\"}", "messages", NULL);
    refuse(ENDPOINT_CHAT, "{\"model\":\"m\",\"messages\":[]}", "messages", NULL);
    refuse(ENDPOINT_CHAT, "{\"model\":\"m\",\"messages\":\"hi\"}", "messages", NULL);
    refuse(ENDPOINT_COMPLETIONS, "{\"model\":\"m\"}", "prompt", NULL);
    refuse(ENDPOINT_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"\"}", "prompt", NULL);
}

static void message_shapes(void **state)
{
    static const struct {
        const char *message, *param;
    } bad[] = {
        {"7", "messages[0]"},
        {"{\"role\":\"king\",\"content\":\"x\"}", "messages[0].role"},
        {"{\"content\":\"x\"}", "messages[0].role"},
        {"{\"role\":\"user\"}", "messages[0].content"},
        {"{\"role\":\"user\",\"content\":null}", "messages[0].content"},
        {"{\"role\":\"user\",\"content\":7}", "messages[0].content"},
        {"{\"role\":\"user\",\"content\":[\"x\"]}", "messages[0].content[0]"},
        {"{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}", "messages[0].content[0].text"},
        {"{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":"
         "\"http://10.0.0.1/\"}}]}",
         "messages[0].content[0].image_url.url"},
        {"{\"role\":\"tool\",\"content\":\"x\"}", "messages[0].tool_call_id"},
        {"{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\","
         "\"arguments\":{}}}]}",
         "messages[0].tool_calls[0].function.arguments"},
        {"{\"role\":\"assistant\",\"tool_calls\":{}}", "messages[0].tool_calls"},
        {"{\"role\":\"user\",\"content\":\"x\",\"name\":7}", "messages[0].name"},
    };
    char body[1024];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        (void)snprintf(body, sizeof(body), "{\"model\":\"m\",\"messages\":[%s]}", bad[i].message);
        refuse(ENDPOINT_CHAT, body, bad[i].param, NULL);
    }
}

static void turns_of_real_agents_are_accepted(void **state)
{
    struct world w;

    (void)state;
    accept(
        &w, ENDPOINT_CHAT,
        "{\"model\":\"m\",\"messages\":[{\"role\":\"developer\",\"content\":\"brief\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a \\ud83d b\"},"
        "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,AA==\"}}]},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"4\"},"
        "{\"role\":\"assistant\",\"content\":\"\"},{\"role\":\"assistant\"}],"
        "\"store\":false,\"metadata\":{\"a\":\"b\"},\"prompt_cache_key\":\"k1\","
        "\"prompt_cache_retention\":\"24h\",\"safety_identifier\":\"u1\",\"service_tier\":\"auto\","
        "\"user\":null,\"logit_bias\":null,\"stop\":null,\"tools\":null,"
        "\"brand_new_field\":{\"x\":[1]},\"seed\":9223372036854775807}");
    assert_int_equal(w.r.messages, 6);
    assert_int_equal(w.r.images, 1);
    assert_true(str_eq(w.r.cache_key, STR("k1")));
    assert_string_equal(w.r.tier_echo, "default");
    assert_true(str_eq(json_get(json_get(w.r.root, STR("messages"))->child, STR("role"))->text,
                       STR("system")));
    arena_fini(&w.arena);
}

static void an_image_counts_as_one_and_not_by_its_bytes(void **state)
{
    struct world w;

    (void)state;
    accept(&w, ENDPOINT_CHAT,
           "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
           "\"text\":\"hi\"},{\"type\":\"image_url\",\"image_url\":{\"url\":"
           "\"data:image/png;base64,AAAAAAAAAAAAAAAA\"}}]}]}");
    assert_int_equal(w.r.images, 1);
    assert_int_equal(w.r.text_bytes, 2);
    arena_fini(&w.arena);
}

static void numbers_are_held_to_their_ranges(void **state)
{
    static const struct {
        const char *member, *param;
    } bad[] = {
        {"\"temperature\":2.1", "temperature"},
        {"\"temperature\":\"1\"", "temperature"},
        {"\"temperature\":-0.1", "temperature"},
        {"\"top_p\":1.5", "top_p"},
        {"\"presence_penalty\":-3", "presence_penalty"},
        {"\"frequency_penalty\":3", "frequency_penalty"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
        {"\"top_logprobs\":2", "top_logprobs"},
        {"\"logprobs\":3", "logprobs"},
        {"\"max_tokens\":0", "max_tokens"},
        {"\"max_tokens\":-1", "max_tokens"},
        {"\"max_tokens\":\"5\"", "max_tokens"},
        {"\"max_tokens\":1.5", "max_tokens"},
        {"\"max_completion_tokens\":0", "max_completion_tokens"},
        {"\"seed\":9223372036854775808", "seed"},
        {"\"seed\":1.5", "seed"},
        {"\"stream\":1", "stream"},
        {"\"stream_options\":[]", "stream_options"},
        {"\"stream_options\":{\"include_usage\":2}", "include_usage"},
        {"\"user\":5", "user"},
        {"\"n\":0", "n"},
        {"\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]", "stop"},
        {"\"stop\":\"\"", "stop"},
        {"\"stop\":[7]", "stop"},
        {"\"logit_bias\":{\"x\":1}", "logit_bias"},
        {"\"logit_bias\":{\"5\":101}", "logit_bias"},
        {"\"service_tier\":\"gold\"", "service_tier"},
        {"\"response_format\":{\"type\":\"xml\"}", "response_format"},
        {"\"response_format\":{\"type\":\"json_schema\"}", "response_format"},
        {"\"tool_choice\":\"required\"", "tool_choice"},
        {"\"tools\":{}", "tools"},
        {"\"tools\":[7]", "tools"},
        {"\"tools\":[{\"type\":\"function\"}]", "tools[0].function.name"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":7}}]",
         "tools[0].function.parameters"},
        {"\"metadata\":7", "metadata"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        refuse_member(bad[i].member, bad[i].param, NULL);
    }
}

static void edges_of_the_ranges_are_inside(void **state)
{
    static const char *const good[] = {
        "\"temperature\":2,\"top_p\":1.0,\"presence_penalty\":-2,\"frequency_penalty\":2",
        "\"temperature\":0,\"top_p\":0",
        "\"logprobs\":true,\"top_logprobs\":20",
        "\"logprobs\":true",
        "\"logprobs\":false,\"top_logprobs\":0",
        "\"n\":1",
        "\"n\":1.0",
        "\"stop\":[\"a\",\"b\",\"c\",\"d\"]",
        "\"stop\":[]",
        "\"stop\":\"x\"",
        "\"logit_bias\":{\"50256\":-100}",
        "\"tools\":[]",
        "\"tool_choice\":\"auto\"",
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{"
        "}}}",
        "\"stream_options\":{\"include_usage\":true}",
        "\"stream\":true,\"stream_options\":{\"include_obfuscation\":false,"
        "\"continuous_usage_stats\":true}",
        "\"modalities\":[\"text\"]",
        "\"seed\":-9223372036854775808",
        "\"prompt_cache_key\":7",
    };
    struct world w;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        accept_member(&w, good[i]);
        arena_fini(&w.arena);
    }
}

static void what_no_engine_serves_is_named_unsupported(void **state)
{
    static const struct {
        const char *member, *param;
    } bad[] = {
        {"\"n\":2", "n"},
        {"\"functions\":[{\"name\":\"f\"}]", "functions"},
        {"\"function_call\":\"auto\"", "function_call"},
        {"\"audio\":{\"voice\":\"x\"}", "audio"},
        {"\"modalities\":[\"text\",\"audio\"]", "modalities"},
        {"\"web_search_options\":{}", "web_search_options"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        refuse_member(bad[i].member, bad[i].param, "unsupported_parameter");
    }
}

static void max_completion_tokens_wins_and_null_is_absent(void **state)
{
    static const struct {
        const char *member;
        int64_t want;
    } cases[] = {
        {"\"max_tokens\":5", 5},
        {"\"max_tokens\":5,\"max_completion_tokens\":1", 1},
        {"\"max_tokens\":5,\"max_completion_tokens\":null", 5},
        {"\"max_tokens\":null", -1},
        {"\"max_tokens\":1000000000", 1000000000},
    };
    struct world w;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        accept_member(&w, cases[i].member);
        assert_int_equal(w.r.max_tokens, cases[i].want);
        arena_fini(&w.arena);
    }
}

static void tiers_and_their_echo(void **state)
{
    static const struct {
        const char *asked;
        enum tier tier;
        const char *echo;
    } cases[] = {
        {"auto", TIER_STANDARD, "default"},  {"default", TIER_STANDARD, "default"},
        {"scale", TIER_STANDARD, "default"}, {"fast", TIER_STANDARD, "default"},
        {"flex", TIER_FLEX, "flex"},         {"priority", TIER_PRIORITY, "priority"},
    };
    char member[64];
    struct world w;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        (void)snprintf(member, sizeof(member), "\"service_tier\":\"%s\"", cases[i].asked);
        accept_member(&w, member);
        assert_int_equal(w.r.tier, cases[i].tier);
        assert_string_equal(w.r.tier_echo, cases[i].echo);
        arena_fini(&w.arena);
    }
}

static void completions_take_one_prompt(void **state)
{
    static const char *const bad[] = {"[\"a\",\"b\"]", "[1,2]", "[[1]]", "7"};
    char body[128];
    struct world w;

    (void)state;
    accept(&w, ENDPOINT_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"One,\"}");
    assert_true(str_eq(w.r.prompt, STR("One,")));
    assert_int_equal(w.r.text_bytes, 4);
    assert_int_equal(w.r.messages, 0);
    assert_int_equal(w.r.max_tokens, 16);
    arena_fini(&w.arena);
    accept(&w, ENDPOINT_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[\"Two\"],\"logprobs\":5}");
    assert_true(str_eq(w.r.prompt, STR("Two")));
    arena_fini(&w.arena);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        (void)snprintf(body, sizeof(body), "{\"model\":\"m\",\"prompt\":%s}", bad[i]);
        refuse(ENDPOINT_COMPLETIONS, body, "prompt", "unsupported_parameter");
    }
    refuse(ENDPOINT_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"a\",\"logprobs\":6}", "logprobs",
           NULL);
    refuse(ENDPOINT_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"a\",\"echo\":true}", "echo",
           "unsupported_parameter");
    refuse(ENDPOINT_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"a\",\"best_of\":2}", "best_of",
           "unsupported_parameter");
    refuse(ENDPOINT_COMPLETIONS, "{\"model\":\"m\",\"prompt\":\"a\",\"max_tokens\":0}",
           "max_tokens", NULL);
}

static void hosted_tools_are_dropped_and_functions_kept(void **state)
{
    const struct json *tools;
    struct world w;

    (void)state;
    accept_member(&w, "\"tools\":[{\"type\":\"web_search\"},{\"type\":\"function\",\"function\":"
                      "{\"name\":\"f\",\"parameters\":{\"type\":\"object\"},\"strict\":null}},"
                      "{\"type\":\"namespace\",\"name\":\"x\"}]");
    tools = json_get(w.r.root, STR("tools"));
    assert_int_equal(tools->count, 1);
    assert_true(str_eq(json_get(tools->child, STR("type"))->text, STR("function")));
    assert_null(tools->child->next);
    assert_true(w.r.text_bytes > 512);
    arena_fini(&w.arena);
}

static void schemas_deeper_than_engines_stand_are_refused(void **state)
{
    char body[2048] = "{" HELLO ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":"
                      "{\"name\":\"a\",\"schema\":";
    size_t n = strlen(body);

    (void)state;
    for (int i = 0; i < 70; i++) {
        n += (size_t)snprintf(body + n, sizeof(body) - n, "{\"p\":");
    }
    n += (size_t)snprintf(body + n, sizeof(body) - n, "1");
    for (int i = 0; i < 73; i++) {
        n += (size_t)snprintf(body + n, sizeof(body) - n, "}");
    }
    refuse(ENDPOINT_CHAT, body, "response_format", NULL);
}

static void text_that_a_template_prints_as_json_is_counted_escaped(void **state)
{
    struct world w;
    uint64_t plain;

    (void)state;
    accept_member(&w, "\"chat_template_kwargs\":{\"a\":\"xxxxxxxxxx\"}");
    plain = w.r.text_bytes;
    assert_true(plain > 12);
    arena_fini(&w.arena);
    accept_member(&w, "\"chat_template_kwargs\":{\"a\":\"<<<<<<<<<<\"}");
    assert_int_equal(w.r.text_bytes, plain + 50); /* \u003c each */
    arena_fini(&w.arena);
}

static void a_body_beyond_the_arena_is_too_large(void **state)
{
    struct world w = {0};

    (void)state;
    arena_init(&w.arena, 64);
    assert_false(openai_parse(&w.arena, ENDPOINT_CHAT, STR("{" HELLO "}"), &w.r, &w.e));
    assert_int_equal(w.e.status, 413);
    arena_fini(&w.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_chat_is_read),
        cmocka_unit_test(what_is_no_json_object_is_refused),
        cmocka_unit_test(missing_and_empty_parts_are_named),
        cmocka_unit_test(message_shapes),
        cmocka_unit_test(turns_of_real_agents_are_accepted),
        cmocka_unit_test(an_image_counts_as_one_and_not_by_its_bytes),
        cmocka_unit_test(numbers_are_held_to_their_ranges),
        cmocka_unit_test(edges_of_the_ranges_are_inside),
        cmocka_unit_test(what_no_engine_serves_is_named_unsupported),
        cmocka_unit_test(max_completion_tokens_wins_and_null_is_absent),
        cmocka_unit_test(tiers_and_their_echo),
        cmocka_unit_test(completions_take_one_prompt),
        cmocka_unit_test(hosted_tools_are_dropped_and_functions_kept),
        cmocka_unit_test(schemas_deeper_than_engines_stand_are_refused),
        cmocka_unit_test(text_that_a_template_prints_as_json_is_counted_escaped),
        cmocka_unit_test(a_body_beyond_the_arena_is_too_large),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
