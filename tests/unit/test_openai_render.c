/* test_openai_render.c - answers byte for byte, as strict clients parse them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "gateway/api/openai.h"

#define HEAD                                                                                       \
    "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":17,\"model\":\"m\","
#define USAGE                                                                                      \
    "{\"prompt_tokens\":11,\"completion_tokens\":5,\"total_tokens\":16,\"prompt_tokens_details\":" \
    "{\"cached_tokens\":3,\"audio_tokens\":0},\"completion_tokens_details\":{\"reasoning_"         \
    "tokens\":"                                                                                    \
    "2,\"audio_tokens\":0,\"accepted_prediction_tokens\":0,\"rejected_prediction_tokens\":0}}"

static const struct openai_usage some_usage = {11, 3, 5, 2};

static struct openai_answer chat_answer(void)
{
    return (struct openai_answer){ENDPOINT_CHAT, STR("chatcmpl-1"), 17, STR("m"), false, NULL};
}

static void check_out(struct buf *b, const char *want)
{
    if (b->failed || !str_eq(buf_view(b), str_c(want))) {
        fail_msg("'" STR_FMT "', not '%s'", STR_ARG(buf_view(b)), want);
    }
    buf_reset(b);
}

static void chunks_of_a_chat(void **state)
{
    struct openai_answer a = chat_answer();
    struct openai_delta role = {.role = STR("assistant")},
                        text = {.text = STR("a\"\n"), .has_text = true};
    struct openai_delta empty = {0};
    struct buf b;

    (void)state;
    buf_init(&b, 4096);
    openai_render_chunk(&a, &role, FINISH_NONE, &b);
    check_out(&b, "data: " HEAD
                  "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":"
                  "\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    openai_render_chunk(&a, &text, FINISH_NONE, &b);
    check_out(&b, "data: " HEAD "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\\\"\\n\"},"
                  "\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    openai_render_chunk(&a, &empty, FINISH_LENGTH, &b);
    check_out(&b, "data: " HEAD "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,"
                  "\"finish_reason\":\"length\"}]}\n\n");
    buf_fini(&b);
}

static void usage_is_null_in_every_chunk_but_its_own(void **state)
{
    struct openai_answer a = chat_answer();
    struct openai_delta empty = {0};
    struct buf b;

    (void)state;
    buf_init(&b, 4096);
    a.include_usage = true;
    a.tier_echo = "flex";
    openai_render_chunk(&a, &empty, FINISH_STOP, &b);
    check_out(&b, "data: " HEAD "\"service_tier\":\"flex\",\"choices\":[{\"index\":0,\"delta\":{},"
                  "\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":null}\n\n");
    openai_render_usage_chunk(&a, &some_usage, &b);
    check_out(&b,
              "data: " HEAD "\"service_tier\":\"flex\",\"choices\":[],\"usage\":" USAGE "}\n\n");
    openai_render_done(&b);
    check_out(&b, "data: [DONE]\n\n");
    buf_fini(&b);
}

static void calls_reasoning_and_logprobs_pass(void **state)
{
    struct openai_answer a = chat_answer();
    struct openai_delta d = {.role = STR("assistant")};
    struct arena arena;
    struct err e;
    struct buf b;

    (void)state;
    err_clear(&e);
    arena_init(&arena, 1u << 20);
    buf_init(&b, 4096);
    d.tool_calls = json_parse(&arena, STR("[{\"index\":0,\"id\":\"c\"}]"), &json_limits_api, &e);
    d.logprobs = json_parse(&arena, STR("{\"content\":[]}"), &json_limits_api, &e);
    d.reasoning = json_parse(&arena, STR("\"hm\""), &json_limits_api, &e);
    d.refusal = json_parse(&arena, STR("\"no\""), &json_limits_api, &e);
    openai_render_chunk(&a, &d, FINISH_NONE, &b);
    check_out(
        &b, "data: " HEAD "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":"
            "null,\"reasoning_content\":\"hm\",\"refusal\":\"no\",\"tool_calls\":[{\"index\":0,"
            "\"id\":\"c\"}]},\"logprobs\":{\"content\":[]},\"finish_reason\":null}]}\n\n");
    buf_fini(&b);
    arena_fini(&arena);
}

static void chunks_of_completions(void **state)
{
    struct openai_answer a = {ENDPOINT_COMPLETIONS, STR("cmpl-1"), 17, STR("m"), false, NULL};
    struct openai_delta d = {.text = STR("x"), .has_text = true};
    struct buf b;

    (void)state;
    buf_init(&b, 4096);
    openai_render_chunk(&a, &d, FINISH_NONE, &b);
    check_out(
        &b,
        "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":17,\"model\":\"m\","
        "\"choices\":[{\"index\":0,\"text\":\"x\",\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    buf_fini(&b);
}

static void whole(enum endpoint ep, const char *choice, enum finish f, const char *want)
{
    struct openai_answer a = {ep, STR("x"), 17, STR("m"), true, NULL};
    struct arena arena;
    struct err e;
    struct json *v;
    struct buf b;

    err_clear(&e);
    arena_init(&arena, 1u << 20);
    buf_init(&b, 4096);
    v = json_parse(&arena, str_c(choice), &json_limits_api, &e);
    assert_non_null(v);
    openai_render_whole(&a, v, f, &some_usage, &b);
    check_out(&b, want);
    buf_fini(&b);
    arena_fini(&arena);
}

static void whole_answers(void **state)
{
    (void)state;
    whole(
        ENDPOINT_CHAT,
        "{\"index\":3,\"message\":{\"role\":\"bot\",\"content\":\"hi\",\"secret\":1},\"stop_"
        "reason\":2}",
        FINISH_STOP,
        "{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":17,\"model\":\"m\",\"choices\":["
        "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"hi\",\"refusal\":null},"
        "\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":" USAGE "}");
    whole(
        ENDPOINT_CHAT,
        "{\"message\":{\"content\":null,\"reasoning\":\"hm\",\"tool_calls\":[{\"id\":\"c\"}]}}",
        FINISH_TOOL_CALLS,
        "{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":17,\"model\":\"m\",\"choices\":["
        "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":null,\"refusal\":null,"
        "\"reasoning_content\":\"hm\",\"tool_calls\":[{\"id\":\"c\"}]},\"logprobs\":null,"
        "\"finish_reason\":\"tool_calls\"}],\"usage\":" USAGE "}");
    whole(
        ENDPOINT_COMPLETIONS, "{\"text\":\"hi\",\"logprobs\":{\"tokens\":[\"hi\"]}}", FINISH_LENGTH,
        "{\"id\":\"x\",\"object\":\"text_completion\",\"created\":17,\"model\":\"m\",\"choices\":["
        "{\"index\":0,\"text\":\"hi\",\"logprobs\":{\"tokens\":[\"hi\"]},\"finish_reason\":"
        "\"length\"}],"
        "\"usage\":" USAGE "}");
}

static void an_error_event_is_the_envelope(void **state)
{
    struct api_error e;
    struct buf b;

    (void)state;
    buf_init(&b, 4096);
    api_error_set(&e, 502, "server_error", "upstream_error", NULL, "x");
    openai_render_error_event(&e, &b);
    check_out(&b, "data: {\"error\":{\"message\":\"x\",\"type\":\"server_error\",\"param\":null,"
                  "\"code\":\"upstream_error\"}}\n\n");
    buf_fini(&b);
}

static void models_are_listed_with_all_members(void **state)
{
    struct snap_model one = {.name = STR("a/b"), .created_s = 1700000000}, two = {.name = STR("c")};
    const struct snap_model *const list[] = {&one, &two};
    struct buf b;

    (void)state;
    buf_init(&b, 4096);
    openai_render_models(list, 2, &b);
    check_out(
        &b,
        "{\"object\":\"list\",\"data\":[{\"id\":\"a/b\",\"object\":\"model\",\"created\":"
        "1700000000,\"owned_by\":\"tollgate\"},{\"id\":\"c\",\"object\":\"model\",\"created\":0,"
        "\"owned_by\":\"tollgate\"}]}");
    openai_render_models(list, 0, &b);
    check_out(&b, "{\"object\":\"list\",\"data\":[]}");
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_of_a_chat),
        cmocka_unit_test(usage_is_null_in_every_chunk_but_its_own),
        cmocka_unit_test(calls_reasoning_and_logprobs_pass),
        cmocka_unit_test(chunks_of_completions),
        cmocka_unit_test(whole_answers),
        cmocka_unit_test(an_error_event_is_the_envelope),
        cmocka_unit_test(models_are_listed_with_all_members),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
