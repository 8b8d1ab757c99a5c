/* test_openai_body.c - what an engine is sent: what was checked, and nothing that acts on it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

#include "gateway/api/openai.h"

#define HELLO "\"model\":\"public\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static void check(enum endpoint ep, enum engine_kind kind, const char *body, const char *want)
{
    struct openai_request r;
    struct api_error e;
    struct arena a;
    struct buf b;

    arena_init(&a, 1u << 20);
    buf_init(&b, 1u << 20);
    if (!openai_parse(&a, ep, str_c(body), &r, &e)) {
        fail_msg("%s refused: %s", body, e.message);
    }
    openai_engine_body(&r, kind, STR("weights"), 7, &b);
    if (b.failed || !str_eq(buf_view(&b), str_c(want))) {
        fail_msg("'%s' became '" STR_FMT "', not '%s'", body, STR_ARG(buf_view(&b)), want);
    }
    buf_fini(&b);
    arena_fini(&a);
}

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static void model_and_length_are_ours(void **state)
{
    (void)state;
    check(ENDPOINT_CHAT, ENGINE_OPENAI,
          "{" HELLO ",\"max_tokens\":900,\"max_completion_tokens\":800}",
          "{\"model\":\"weights\"," MESSAGES ",\"max_tokens\":7,\"stream\":false}");
}

static void streams_always_ask_for_usage(void **state)
{
    (void)state;
    check(ENDPOINT_CHAT, ENGINE_OPENAI,
          "{" HELLO ",\"stream\":true,\"stream_options\":{\"include_usage\":false}}",
          "{\"model\":\"weights\"," MESSAGES ",\"max_tokens\":7,\"stream\":true,"
          "\"stream_options\":{\"include_usage\":true}}");
}

static void our_worker_is_asked_for_a_stream(void **state)
{
    (void)state;
    check(ENDPOINT_CHAT, ENGINE_TOLLGATE, "{" HELLO "}",
          "{\"model\":\"weights\"," MESSAGES ",\"max_tokens\":7,\"stream\":true,"
          "\"stream_options\":{\"include_usage\":true}}");
}

static void unknown_fields_reach_other_engines_only(void **state)
{
    (void)state;
    check(ENDPOINT_CHAT, ENGINE_OPENAI,
          "{\"brand_new\":{\"x\":[1]}," HELLO ",\"seed\":9223372036854775807}",
          "{\"model\":\"weights\",\"brand_new\":{\"x\":[1]}," MESSAGES
          ",\"seed\":9223372036854775807,\"max_tokens\":7,\"stream\":false}");
    check(ENDPOINT_CHAT, ENGINE_TOLLGATE,
          "{\"brand_new\":{\"x\":[1]}," HELLO ",\"seed\":9223372036854775807}",
          "{\"model\":\"weights\"," MESSAGES
          ",\"seed\":9223372036854775807,\"max_tokens\":7,\"stream\":true,"
          "\"stream_options\":{\"include_usage\":true}}");
}

static void what_is_the_gateways_ends_here(void **state)
{
    (void)state;
    check(ENDPOINT_CHAT, ENGINE_OPENAI,
          "{" HELLO ",\"store\":true,\"metadata\":{\"a\":\"b\"},\"user\":\"u\",\"service_tier\":"
          "\"flex\",\"prompt_cache_key\":\"k\",\"prompt_cache_retention\":\"24h\","
          "\"prompt_cache_options\":{},\"safety_identifier\":\"s\",\"temperature\":null,\"n\":1}",
          "{\"model\":\"weights\"," MESSAGES ",\"max_tokens\":7,\"stream\":false}");
}

static void fields_that_act_on_an_engine_never_pass(void **state)
{
    static const char *const private[] = {
        "n_predict",     "priority",          "cache_salt", "lora_path",
        "chat_template", "logits_processors", "documents",  "custom_logit_processor",
        "min_tokens",    "kv_transfer_params"};
    char body[256];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(private); i++) {
        (void)snprintf(body, sizeof(body), "{" HELLO ",\"%s\":1}", private[i]);
        check(ENDPOINT_CHAT, ENGINE_OPENAI, body,
              "{\"model\":\"weights\"," MESSAGES ",\"max_tokens\":7,\"stream\":false}");
    }
}

static void no_tools_means_no_word_about_tools(void **state)
{
    static const char *const tools[] = {"\"tools\":[]", "\"tools\":null",
                                        "\"tools\":[{\"type\":\"web_search\"}]"};
    char body[256];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(tools); i++) {
        (void)snprintf(body, sizeof(body),
                       "{" HELLO ",%s,\"tool_choice\":\"auto\",\"parallel_tool_calls\":true}",
                       tools[i]);
        check(ENDPOINT_CHAT, ENGINE_OPENAI, body,
              "{\"model\":\"weights\"," MESSAGES ",\"max_tokens\":7,\"stream\":false}");
    }
}

static void developer_is_system_for_engines(void **state)
{
    (void)state;
    check(ENDPOINT_CHAT, ENGINE_OPENAI,
          "{\"model\":\"m\",\"messages\":[{\"role\":\"developer\",\"content\":\"x\"}]}",
          "{\"model\":\"weights\",\"messages\":[{\"role\":\"system\",\"content\":\"x\"}],"
          "\"max_tokens\":7,\"stream\":false}");
}

static void lists_keep_their_spelling_unless_a_message_was_changed(void **state)
{
    (void)state;
    check(ENDPOINT_CHAT, ENGINE_OPENAI,
          "{\"model\":\"m\",\"messages\": [ {\"role\":\"user\", \"content\":\"\\u0041\"} ] }",
          "{\"model\":\"weights\",\"messages\":[ {\"role\":\"user\", \"content\":\"\\u0041\"} ],"
          "\"max_tokens\":7,\"stream\":false}");
    check(ENDPOINT_CHAT, ENGINE_OPENAI,
          "{\"model\":\"m\",\"messages\":[ {\"role\":\"developer\",\"content\":\"x\"},"
          "{\"role\":\"user\", \"content\":\"\\u0041\"}]}",
          "{\"model\":\"weights\",\"messages\":[{\"role\":\"system\",\"content\":\"x\"},"
          "{\"role\":\"user\",\"content\":\"A\"}],\"max_tokens\":7,\"stream\":false}");
}

static void text_passes_code_point_by_code_point(void **state)
{
    (void)state;
    check(ENDPOINT_CHAT, ENGINE_OPENAI,
          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"cafe\\u0301 caf\xC3\xA9 "
          "\\ud83d\\ude00 \xE2\x80\xA8 a\\r\\nb\\t\\u0000 \\ud83d!\"}]}",
          "{\"model\":\"weights\",\"messages\":[{\"role\":\"user\",\"content\":\"cafe\xCC\x81 "
          "caf\xC3\xA9 "
          "\xF0\x9F\x98\x80 \xE2\x80\xA8 a\\r\\nb\\t\\u0000 \xEF\xBF\xBD!\"}],"
          "\"max_tokens\":7,\"stream\":false}");
}

static void completions_send_one_string(void **state)
{
    (void)state;
    check(ENDPOINT_COMPLETIONS, ENGINE_OPENAI,
          "{\"model\":\"m\",\"prompt\":[\"One\"],\"echo\":false,\"best_of\":1,\"suffix\":null,"
          "\"messages\":[{\"role\":\"user\",\"content\":\"uncounted\"}]}",
          "{\"model\":\"weights\",\"prompt\":\"One\",\"max_tokens\":7,\"stream\":false}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_and_length_are_ours),
        cmocka_unit_test(streams_always_ask_for_usage),
        cmocka_unit_test(our_worker_is_asked_for_a_stream),
        cmocka_unit_test(unknown_fields_reach_other_engines_only),
        cmocka_unit_test(what_is_the_gateways_ends_here),
        cmocka_unit_test(fields_that_act_on_an_engine_never_pass),
        cmocka_unit_test(no_tools_means_no_word_about_tools),
        cmocka_unit_test(developer_is_system_for_engines),
        cmocka_unit_test(lists_keep_their_spelling_unless_a_message_was_changed),
        cmocka_unit_test(text_passes_code_point_by_code_point),
        cmocka_unit_test(completions_send_one_string),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
