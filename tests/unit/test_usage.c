/* test_usage.c - the dialects of engines, each made normal, and the bill that follows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "gateway/route/usage.h"

#define ARENA_BYTES (16u << 20)

static const struct uuid event = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};

struct world {
    struct arena arena;
    struct usage_calls calls;
    struct usage_chunk c;
};

static void world_init(struct world *w)
{
    arena_init(&w->arena, ARENA_BYTES);
    usage_calls_init(&w->calls, event);
}

static void read_ok(struct world *w, const char *data)
{
    if (!usage_read_chunk(&w->calls, &w->arena, ENDPOINT_CHAT, str_c(data), &w->c)) {
        fail_msg("%s: not a chunk", data);
    }
}

/* One chunk with this choice. */
static void read_choice(struct world *w, const char *choice)
{
    char data[2048];

    (void)snprintf(data, sizeof(data), "{\"choices\":[{\"index\":0,%s}]}", choice);
    read_ok(w, data);
}

static void check_text(struct str got, const char *want)
{
    if (!str_eq(got, str_c(want))) {
        fail_msg("'" STR_FMT "', not '%s'", STR_ARG(got), want);
    }
}

/* ---- chunks ---- */

static void role_text_and_finish_are_read(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    read_choice(&w, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null");
    check_text(w.c.delta.role, "assistant");
    assert_true(w.c.delta.has_text);
    assert_false(w.c.has_content);
    assert_int_equal(w.c.finish, FINISH_NONE);
    read_choice(&w, "\"delta\":{\"content\":\" two\"}");
    check_text(w.c.delta.text, " two");
    assert_true(w.c.has_content);
    read_choice(&w, "\"delta\":{},\"finish_reason\":\"length\"");
    assert_false(w.c.has_content);
    assert_int_equal(w.c.finish, FINISH_LENGTH);
    assert_false(w.c.usage.present);
    arena_fini(&w.arena);
}

static void empty_reason_is_none_and_text_comes_beside_the_finish(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    read_choice(&w, "\"delta\":{\"content\":\"one\"},\"finish_reason\":\"\"");
    assert_int_equal(w.c.finish, FINISH_NONE);
    read_choice(&w, "\"delta\":{\"content\":\" five\"},\"finish_reason\":\"stop\"");
    check_text(w.c.delta.text, " five");
    assert_true(w.c.has_content);
    assert_int_equal(w.c.finish, FINISH_STOP);
    arena_fini(&w.arena);
}

static void reasons_of_all_engines(void **state)
{
    static const struct {
        const char *said;
        enum finish finish;
        bool error;
    } cases[] = {
        {"\"stop\"", FINISH_STOP, false},
        {"\"eos_token\"", FINISH_STOP, false},
        {"\"length\"", FINISH_LENGTH, false},
        {"\"tool_calls\"", FINISH_TOOL_CALLS, false},
        {"\"content_filter\"", FINISH_CONTENT_FILTER, false},
        {"null", FINISH_NONE, false},
        {"\"abort\"", FINISH_NONE, true},
        {"\"error\"", FINISH_NONE, true},
    };
    char choice[128];
    struct world w;

    (void)state;
    world_init(&w);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        (void)snprintf(choice, sizeof(choice), "\"delta\":{},\"finish_reason\":%s", cases[i].said);
        read_choice(&w, choice);
        assert_int_equal(w.c.finish, cases[i].finish);
        assert_int_equal(w.c.is_error, cases[i].error);
    }
    arena_fini(&w.arena);
}

static void what_is_no_chunk_is_told_apart(void **state)
{
    static const char *const bad[] = {
        "", "{", "[]", "7", "null", "{\"a\":1,\"a\":2}", "{\"choices\":[7]}", "\xFF\xFE"};
    struct world w;

    (void)state;
    world_init(&w);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (usage_read_chunk(&w.calls, &w.arena, ENDPOINT_CHAT, str_c(bad[i]), &w.c)) {
            fail_msg("'%s' is a chunk", bad[i]);
        }
    }
    read_ok(&w, "{}");
    read_ok(&w, "{\"choices\":null}");
    assert_false(w.c.has_content || w.c.is_error || w.c.usage.present);
    arena_fini(&w.arena);
}

static void only_the_first_choice_is_the_clients(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    read_ok(&w, "{\"choices\":[{\"index\":1,\"delta\":{\"content\":\"b\"}}]}");
    assert_false(w.c.has_content);
    read_ok(&w, "{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}");
    check_text(w.c.delta.text, "a");
    arena_fini(&w.arena);
}

static void reasoning_refusal_and_logprobs_are_content(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    read_choice(&w, "\"delta\":{\"reasoning\":\"hm\"}");
    check_text(w.c.delta.reasoning->text, "hm");
    assert_true(w.c.has_content);
    read_choice(&w, "\"delta\":{\"reasoning_content\":\"\",\"refusal\":null}");
    assert_false(w.c.has_content);
    read_choice(&w, "\"delta\":{\"content\":\"\"},\"logprobs\":{\"content\":[{\"token\":\"a\"}]}");
    assert_true(w.c.has_content);
    read_choice(&w, "\"delta\":{\"content\":\"\"},\"logprobs\":{\"content\":[]}");
    assert_false(w.c.has_content);
    arena_fini(&w.arena);
}

static void completions_have_text_in_the_choice(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    assert_true(usage_read_chunk(
        &w.calls, &w.arena, ENDPOINT_COMPLETIONS,
        STR("{\"choices\":[{\"index\":0,\"text\":\"x\",\"finish_reason\":null}]}"), &w.c));
    check_text(w.c.delta.text, "x");
    arena_fini(&w.arena);
}

/* ---- bytes ---- */

static void bytes_that_are_not_utf8_become_replacement_characters(void **state)
{
    static const char *const cases[][2] = {
        {"ab\xFF"
         "cd",
         "ab\xEF\xBF\xBD"
         "cd"},
        {"\xF0\x9F\x98", "\xEF\xBF\xBD"},
        {"\xE4\xBD\xE5\xA5\xBD", "\xEF\xBF\xBD\xE5\xA5\xBD"},
        {"\xED\xA0\xBD"
         "x",
         "\xEF\xBF\xBDx"},
        {"\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\\\"\xFF", "\"\xEF\xBF\xBD"},
        {"NaN -Infinity \xC3", "NaN -Infinity \xEF\xBF\xBD"},
    };
    char choice[128];
    struct world w;

    (void)state;
    world_init(&w);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        (void)snprintf(choice, sizeof(choice), "\"delta\":{\"content\":\"%s\"}", cases[i][0]);
        read_choice(&w, choice);
        check_text(w.c.delta.text, cases[i][1]);
    }
    arena_fini(&w.arena);
}

static void numbers_that_json_lacks_become_finite_or_null(void **state)
{
    struct world w;
    struct buf b;

    (void)state;
    world_init(&w);
    buf_init(&b, 1024);
    read_choice(
        &w,
        "\"delta\":{\"content\":\"one\"},\"logprobs\":{\"content\":[-0.5,-Infinity,NaN,Infinity]}");
    json_write(&b, w.c.delta.logprobs, JSON_ORDER_DOCUMENT);
    check_text(buf_view(&b), "{\"content\":[-0.5,-9999.0,null,null]}");
    buf_fini(&b);
    arena_fini(&w.arena);
}

static void an_event_of_a_hundred_kilobytes_is_read(void **state)
{
    static char data[100200];
    struct world w;

    (void)state;
    world_init(&w);
    memcpy(data, "{\"choices\":[{\"delta\":{\"content\":\"", 33);
    memset(data + 33, 'x', 100000);
    memcpy(data + 100033, "\"}}]}", 6);
    read_ok(&w, data);
    assert_int_equal(w.c.delta.text.n, 100000);
    arena_fini(&w.arena);
}

/* ---- usage ---- */

static void usage_counts_only_when_possible(void **state)
{
    static const struct {
        const char *usage;
        struct usage_count want;
    } cases[] = {
        {"{\"prompt_tokens\":11,\"completion_tokens\":5,\"total_tokens\":16,"
         "\"prompt_tokens_details\":{\"cached_tokens\":0}}",
         {true, 11, 0, 5, 0}},
        {"{\"prompt_tokens\":1000,\"completion_tokens\":5,\"prompt_tokens_details\":"
         "{\"cached_tokens\":900},\"completion_tokens_details\":{\"reasoning_tokens\":2}}",
         {true, 1000, 900, 5, 2}},
        {"{\"prompt_tokens\":1000,\"completion_tokens\":5,\"prompt_tokens_details\":"
         "{\"cached_tokens\":2500}}",
         {true, 1000, 0, 5, 0}},
        {"{\"prompt_tokens\":11.0,\"completion_tokens\":5,\"prompt_tokens_details\":null}",
         {true, 11, 0, 5, 0}},
        {"{\"prompt_tokens\":11,\"completion_tokens\":1000000}", {true, 11, 0, 1000000, 0}},
        {"{\"prompt_tokens\":-5,\"completion_tokens\":-1,\"total_tokens\":-6}", {0}},
        {"{\"prompt_tokens\":11.0,\"completion_tokens\":\"5\",\"total_tokens\":null}", {0}},
        {"{\"prompt_tokens\":11.5,\"completion_tokens\":5}", {0}},
        {"{\"prompt_tokens\":99999999999999999999,\"completion_tokens\":5}", {0}},
        {"{}", {0}},
        {"null", {0}},
        {"7", {0}},
    };
    char data[512];
    struct world w;

    (void)state;
    world_init(&w);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct usage_count *u = &w.c.usage, *x = &cases[i].want;

        (void)snprintf(data, sizeof(data), "{\"id\":\"a\",\"usage\":%s}", cases[i].usage);
        read_ok(&w, data);
        if (u->present != x->present || u->prompt != x->prompt || u->cached != x->cached ||
            u->completion != x->completion || u->reasoning != x->reasoning) {
            fail_msg("%s: %d %lld %lld %lld %lld", cases[i].usage, u->present, (long long)u->prompt,
                     (long long)u->cached, (long long)u->completion, (long long)u->reasoning);
        }
    }
    read_choice(&w, "\"delta\":{\"content\":\"a\"}},{\"index\":1");
    assert_false(w.c.usage.present);
    read_ok(&w, "{\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}");
    assert_true(w.c.usage.present);
    arena_fini(&w.arena);
}

/* ---- tool calls ---- */

/* Feeds deltas of tool_calls and compares what the client would get for each. */
static void check_calls(const char *const *deltas, const char *const *want, size_t n)
{
    char choice[512];
    struct world w;
    struct buf b;

    world_init(&w);
    buf_init(&b, 4096);
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(choice, sizeof(choice), "\"delta\":{\"tool_calls\":%s}", deltas[i]);
        read_choice(&w, choice);
        assert_true(w.c.has_content);
        buf_reset(&b);
        json_write(&b, w.c.delta.tool_calls, JSON_ORDER_DOCUMENT);
        check_text(buf_view(&b), want[i]);
    }
    read_choice(&w, "\"delta\":{},\"finish_reason\":\"stop\"");
    assert_int_equal(w.c.finish, FINISH_TOOL_CALLS);
    read_choice(&w, "\"delta\":{},\"finish_reason\":\"length\"");
    assert_int_equal(w.c.finish, FINISH_LENGTH);
    buf_fini(&b);
    arena_fini(&w.arena);
}

#define FIRST(index, id, args)                                                                     \
    "[{\"index\":" index ",\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"f\","  \
    "\"arguments\":\"" args "\"}}]"
#define MORE(index, args) "[{\"index\":" index ",\"function\":{\"arguments\":\"" args "\"}}]"

static void sound_calls_pass_as_they_are(void **state)
{
    static const char *const deltas[] = {FIRST("0", "a", ""), MORE("0", "{"), MORE("0", "}"),
                                         FIRST("1", "b", "{}"), MORE("0", " ")};

    (void)state;
    check_calls(deltas, deltas, ARRAY_LEN(deltas));
}

static void a_missing_index_or_id_is_made(void **state)
{
    static const char *const no_index[] = {
        "[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]",
        "[{\"function\":{\"arguments\":\"{}\"}}]"};
    static const char *const want_index[] = {FIRST("0", "a", ""), MORE("0", "{}")};
    static const char *const no_id[] = {
        "[{\"index\":0,\"function\":{\"name\":\"f\"}},{\"index\":1,\"function\":{\"name\":\"g\","
        "\"arguments\":{\"a\":1}}}]",
        MORE("1", "x")};
    static const char *const want_id[] = {
        "[{\"index\":0,\"id\":\"call_05060708090a0b0c0d0e0f00\",\"type\":\"function\",\"function\":"
        "{\"name\":\"f\",\"arguments\":\"\"}},{\"index\":1,\"id\":\"call_"
        "05060708090a0b0c0d0e0f01\","
        "\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{\\\"a\\\":1}\"}}]",
        MORE("1", "x")};

    (void)state;
    check_calls(no_index, want_index, 2);
    check_calls(no_id, want_id, 2);
}

static void two_calls_under_one_index_are_told_apart(void **state)
{
    static const char *const deltas[] = {FIRST("0", "a", "{}"), FIRST("0", "b", "{"),
                                         MORE("0", "}")};
    static const char *const want[] = {FIRST("0", "a", "{}"), FIRST("1", "b", "{"), MORE("1", "}")};

    (void)state;
    check_calls(deltas, want, ARRAY_LEN(deltas));
}

static void a_name_or_an_id_that_is_repeated_starts_no_call(void **state)
{
    static const char *const deltas[] = {
        FIRST("0", "a", ""), FIRST("0", "a", "{"),
        "[{\"index\":0,\"id\":\"fresh\",\"function\":{\"arguments\":\"}\"}}]"};
    static const char *const want[] = {FIRST("0", "a", ""), MORE("0", "{"), MORE("0", "}")};

    (void)state;
    check_calls(deltas, want, ARRAY_LEN(deltas));
}

static void calls_without_end_are_refused(void **state)
{
    char data[256];
    struct world w;
    unsigned i = 0;

    (void)state;
    world_init(&w);
    for (;; i++) {
        (void)snprintf(data, sizeof(data),
                       "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":%u,\"id\":\"c%u\","
                       "\"function\":{\"name\":\"f\"}}]}}]}",
                       i, i);
        if (!usage_read_chunk(&w.calls, &w.arena, ENDPOINT_CHAT, str_c(data), &w.c)) {
            break;
        }
    }
    assert_int_equal(i, USAGE_CALLS_MAX);
    arena_fini(&w.arena);
}

/* ---- errors inside a 200 ---- */

static void in_band_errors_get_a_status(void **state)
{
    static const struct {
        const char *data, *code;
        unsigned status;
    } cases[] = {
        {"{\"error\":{\"message\":\"no capacity "
         "left\",\"type\":\"InternalServerError\",\"code\":500}}",
         "upstream_error", 502},
        {"{\"object\":\"error\",\"message\":\"This model's maximum context length is 4096 "
         "tokens.\","
         "\"code\":400}",
         "context_length_exceeded", 400},
        {"{\"error\":\"died\"}", "upstream_error", 502},
        {"{\"detail\":\"Not Found\"}", "upstream_error", 502},
        {"{\"error\":{\"message\":\"slow\",\"code\":\"429\"}}", "rate_limit_exceeded", 429},
        {"{\"error\":{\"message\":\"x\",\"code\":503}}", "server_is_overloaded", 503},
        {"{\"error\":{\"message\":\"bad top_k\",\"type\":\"BadRequestError\"}}", NULL, 400},
    };
    struct usage_whole whole;
    struct api_error e;
    struct world w;

    (void)state;
    world_init(&w);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        read_ok(&w, cases[i].data);
        assert_true(w.c.is_error);
        assert_int_equal(w.c.error.status, cases[i].status);
        assert_true((w.c.error.code == NULL) == (cases[i].code == NULL));
        if (cases[i].code != NULL) {
            assert_string_equal(w.c.error.code, cases[i].code);
        }
        assert_false(
            usage_read_whole(&w.calls, &w.arena, ENDPOINT_CHAT, str_c(cases[i].data), &whole, &e));
        assert_int_equal(e.status, cases[i].status);
    }
    read_ok(&w, "{\"error\":null,\"choices\":[]}");
    assert_false(w.c.is_error);
    arena_fini(&w.arena);
}

/* ---- whole answers ---- */

static bool read_whole(struct world *w, const char *body, struct usage_whole *out,
                       struct api_error *e)
{
    return usage_read_whole(&w->calls, &w->arena, ENDPOINT_CHAT, str_c(body), out, e);
}

static void whole_answers_are_read(void **state)
{
    struct usage_whole whole;
    struct api_error e;
    struct world w;

    (void)state;
    world_init(&w);
    assert_true(read_whole(&w,
                           "{\"choices\":[{\"index\":0,\"message\":{\"content\":\"one two\"},"
                           "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":11,"
                           "\"completion_tokens\":2}}",
                           &whole, &e));
    assert_int_equal(whole.finish, FINISH_STOP);
    assert_int_equal(whole.text_bytes, 7);
    assert_int_equal(whole.usage.completion, 2);
    assert_non_null(whole.choice);
    arena_fini(&w.arena);
}

static void whole_calls_get_ids_and_the_reason_that_clients_act_on(void **state)
{
    struct usage_whole whole;
    struct api_error e;
    struct world w;
    struct buf b;

    (void)state;
    world_init(&w);
    buf_init(&b, 4096);
    assert_true(read_whole(&w,
                           "{\"choices\":[{\"message\":{\"content\":null,\"tool_calls\":[{\"type\":"
                           "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
                           "\"finish_reason\":\"stop\"}]}",
                           &whole, &e));
    assert_int_equal(whole.finish, FINISH_TOOL_CALLS);
    assert_int_equal(whole.text_bytes, 3);
    json_write(&b, json_get(json_get(whole.choice, STR("message")), STR("tool_calls")),
               JSON_ORDER_DOCUMENT);
    check_text(buf_view(&b), "[{\"id\":\"call_05060708090a0b0c0d0e0f00\",\"type\":\"function\","
                             "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]");
    buf_fini(&b);
    arena_fini(&w.arena);
}

static void half_answers_are_a_502(void **state)
{
    static const char *const bad[] = {
        "",
        "{\"id\":\"x\",\"object\":\"chat.compl",
        "[]",
        "{}",
        "{\"choices\":[]}",
        "{\"choices\":[{\"finish_reason\":\"stop\"}]}",
        "{\"choices\":[{\"message\":{\"content\":\"a\"},\"finish_reason\":null}]}",
        "{\"choices\":[{\"message\":{\"content\":\"a\"},\"finish_reason\":\"abort\"}]}",
    };
    struct usage_whole whole;
    struct api_error e;
    struct world w;

    (void)state;
    world_init(&w);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        e.status = 0;
        if (read_whole(&w, bad[i], &whole, &e) || e.status != 502) {
            fail_msg("'%s': status %u", bad[i], e.status);
        }
    }
    arena_fini(&w.arena);
}

/* ---- statuses ---- */

static void overflow_in_any_wording_is_one_error(void **state)
{
    static const struct {
        unsigned status;
        const char *body, *message;
    } cases[] = {
        {400,
         "{\"error\":{\"message\":\"This model's maximum context length is 4096 tokens. However, "
         "you "
         "requested 9001 tokens (8993 in the messages, 8 in the completion). Please reduce.\","
         "\"code\":400}}",
         "9001 tokens (8993 in the messages, 8 in the completion)"},
        {400,
         "{\"object\":\"error\",\"message\":\"The decoder prompt (length 9001) is longer than the "
         "maximum model length of 4096. Make sure that `max_model_len` is no smaller.\"}",
         "you requested 9001 tokens."},
        {400,
         "{\"message\":\"The input (9001 tokens) is longer than the model's context length (4096 "
         "tokens).\"}",
         "you requested 9001 tokens."},
        {400,
         "{\"error\":{\"code\":400,\"message\":\"the request exceeds the available context size, "
         "try "
         "increasing it\",\"type\":\"exceed_context_size_error\",\"n_prompt_tokens\":9001,"
         "\"n_ctx\":4096}}",
         "you requested 9001 tokens."},
        {422, "{\"message\":\"max_tokens must be at least 1, got -186\"}", "requested more."},
        {413, "{\"error\":{\"message\":\"x\",\"code\":\"context_length_exceeded\"}}",
         "requested more."},
    };
    struct api_error e;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        usage_read_error(cases[i].status, STR(""), str_c(cases[i].body), 4096, &e);
        if (e.status != 400 || e.code == NULL || strcmp(e.code, "context_length_exceeded") != 0 ||
            strstr(e.message, "maximum context length is 4096 tokens") == NULL ||
            strstr(e.message, cases[i].message) == NULL) {
            fail_msg("%s: %u %s", cases[i].body, e.status, e.message);
        }
    }
}

static void a_400_keeps_its_message_without_insides(void **state)
{
    static const char *const cases[][2] = {
        {"top_k must be -1 or at least 1", "top_k must be -1 or at least 1"},
        {"bad 'model' in /srv/engine/x, see http://10.0.0.1:8000/docs",
         "bad 'model' in [...] see [...]"},
        {"failed (runner.py:17) at 0x7f3a by 10.0.0.1:80", "failed [...] at [...] by [...]"},
        {"input/output of application/json ... 1.5 is wrong",
         "input/output of application/json ... 1.5 is wrong"},
        {"Traceback (most recent call last): File x", "The model cannot serve this request."},
        {"a\\n\\n  b\\u0000c", "a b c"},
        {"", "The model cannot serve this request."},
    };
    char body[512];
    struct api_error e;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        (void)snprintf(body, sizeof(body), "{\"error\":{\"message\":\"%s\",\"param\":\"top_k\"}}",
                       cases[i][0]);
        usage_read_error(400, STR(""), str_c(body), 0, &e);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.message, cases[i][1]);
        assert_string_equal(e.param, "top_k");
        assert_null(e.code);
    }
    usage_read_error(422, STR(""), STR("{\"message\":\"x\",\"param\":\"my secret text\"}"), 0, &e);
    assert_int_equal(e.status, 400);
    assert_string_equal(e.param, "");
    usage_read_error(400, STR(""), STR("<html>"), 0, &e);
    assert_int_equal(e.status, 400);
}

static void faults_of_the_engine_are_a_502_without_its_text(void **state)
{
    static const unsigned statuses[] = {500, 502, 504, 401, 403, 404, 405, 302, 418};
    struct api_error e;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(statuses); i++) {
        usage_read_error(statuses[i], STR("7"), STR("{\"detail\":\"secret model_runner\"}"), 0, &e);
        assert_int_equal(e.status, 502);
        assert_null(strstr(e.message, "secret"));
        assert_int_equal(e.retry_ms, 0);
    }
    usage_read_error(502, STR(""), STR("<html><h1>502 Bad Gateway</h1></html>"), 0, &e);
    assert_int_equal(e.status, 502);
    assert_null(strchr(e.message, '<'));
}

static void busy_engines_say_when_to_come_again(void **state)
{
    static const struct {
        unsigned status;
        const char *said;
        uint32_t ms;
        unsigned want;
    } cases[] = {
        {429, "7", 7000, 429},
        {429, "", 1000, 429},
        {429, "0", 1000, 429},
        {503, "1", 1000, 503},
        {503, "600", 60000, 503},
        {529, "Wed, 21 Oct 2026 07:28:00 GMT", 1000, 503},
        {429, "99999999999999999999", 1000, 429},
    };
    struct api_error e;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        usage_read_error(cases[i].status, str_c(cases[i].said),
                         STR("{\"error\":{\"message\":\"engine queue is full\"}}"), 0, &e);
        assert_int_equal(e.status, cases[i].want);
        assert_int_equal(e.retry_ms, cases[i].ms);
        assert_null(strstr(e.message, "engine"));
    }
}

/* ---- the bill ---- */

static const struct usage_bill_input five_words = {
    .said = {true, 1000, 900, 5, 2},
    .prompt_bound = 2000,
    .output_bound = 16,
    .content_events = 5,
    .answer_bytes = 23,
    .prompt_bytes = 1210,
    .streamed = true,
    .produced = true,
};

static void check_bill(const struct usage_bill_input *in, struct tokens want,
                       enum usage_state state)
{
    enum usage_state got_state;
    struct tokens got;

    usage_bill(in, &got, &got_state);
    if (memcmp(&got, &want, sizeof(got)) != 0 || got_state != state) {
        fail_msg("in %d + %d, out %d + %d, state %d; not %d + %d, %d + %d, %d", got.in_uncached,
                 got.in_cached, got.out, got.reasoning, got_state, want.in_uncached, want.in_cached,
                 want.out, want.reasoning, state);
    }
}

static struct tokens tokens_of(int32_t uncached, int32_t cached, int32_t out, int32_t reasoning)
{
    return (struct tokens){
        .in_uncached = uncached, .in_cached = cached, .out = out, .reasoning = reasoning};
}

static void classes_of_a_bill_are_disjoint(void **state)
{
    (void)state;
    check_bill(&five_words, tokens_of(100, 900, 3, 2), USAGE_MEASURED);
}

static void an_attempt_without_content_costs_nothing(void **state)
{
    struct usage_bill_input in = five_words;

    (void)state;
    in.produced = false;
    check_bill(&in, tokens_of(0, 0, 0, 0), USAGE_MEASURED);
    in.ours = true;
    check_bill(&in, tokens_of(0, 0, 0, 0), USAGE_MEASURED);
}

static void claims_beyond_the_bounds_are_billed_at_the_bounds(void **state)
{
    struct usage_bill_input in = five_words;

    (void)state;
    in.said.completion = 1000000;
    check_bill(&in, tokens_of(100, 900, 14, 2), USAGE_CLAMPED);
    in.said.completion = INT64_MAX;
    in.said.prompt = INT64_MAX;
    check_bill(&in, tokens_of(2000, 0, 14, 2), USAGE_CLAMPED);
    in = five_words;
    in.prompt_bound = 500;
    check_bill(&in, tokens_of(100, 400, 3, 2), USAGE_CLAMPED);
    in.ours = true;
    check_bill(&in, tokens_of(100, 400, 3, 2), USAGE_CLAMPED);
    in.prompt_bound = in.output_bound = -1;
    check_bill(&in, tokens_of(0, 0, 0, 0), USAGE_CLAMPED);
}

static void without_usage_the_stream_is_counted(void **state)
{
    struct usage_bill_input in = five_words;

    (void)state;
    in.said.present = false;
    check_bill(&in, tokens_of(303, 0, 5, 0), USAGE_STREAMED_COUNT);
    in.bytes_per_token = 10;
    check_bill(&in, tokens_of(121, 0, 5, 0), USAGE_STREAMED_COUNT);
    in.bytes_per_token = 1e-300;
    in.prompt_bytes = 0;
    check_bill(&in, tokens_of(1, 0, 5, 0), USAGE_STREAMED_COUNT);
    in.prompt_bytes = UINT64_MAX;
    in.content_events = 1000;
    check_bill(&in, tokens_of(2000, 0, 16, 0), USAGE_STREAMED_COUNT);
}

static void without_usage_a_whole_answer_is_estimated(void **state)
{
    struct usage_bill_input in = five_words;

    (void)state;
    in.said.present = false;
    in.streamed = false;
    in.content_events = 0;
    check_bill(&in, tokens_of(303, 0, 6, 0), USAGE_ESTIMATED);
    in.answer_bytes = UINT64_MAX;
    check_bill(&in, tokens_of(303, 0, 16, 0), USAGE_ESTIMATED);
}

static void a_count_that_cannot_be_is_replaced(void **state)
{
    struct usage_bill_input in = five_words;

    (void)state;
    in.said = (struct usage_count){true, 11, 0, 0, 0}; /* sent before the content */
    check_bill(&in, tokens_of(11, 0, 5, 0), USAGE_STREAMED_COUNT);
    in.said = (struct usage_count){true, 0, 0, 5, 0};
    check_bill(&in, tokens_of(303, 0, 5, 0), USAGE_STREAMED_COUNT);
    in.said = (struct usage_count){true, 11, 0, 0, 0};
    in.content_events = 0;
    in.answer_bytes = 0; /* ended at once, rightly */
    check_bill(&in, tokens_of(11, 0, 0, 0), USAGE_MEASURED);
    in = five_words;
    in.said.cached = 2500;
    in.said.reasoning = -3;
    check_bill(&in, tokens_of(1000, 0, 5, 0), USAGE_MEASURED);
}

static void our_workers_word_is_taken(void **state)
{
    struct usage_bill_input in = five_words;

    (void)state;
    in.ours = true;
    in.said = (struct usage_count){true, 7, 0, 0, 0};
    check_bill(&in, tokens_of(7, 0, 0, 0), USAGE_MEASURED);
}

static void of_an_answer_that_broke_off_its_text_is_counted(void **state)
{
    static const struct {
        enum endpoint ep;
        const char *body;
        uint64_t bytes;
    } cases[] = {
        {ENDPOINT_CHAT, "{\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\": \"abcd",
         4},
        {ENDPOINT_CHAT, "{\"choices\":[{\"message\":{\"content\":\"a\\\"b\"},\"fin", 3},
        {ENDPOINT_CHAT, "{\"choices\":[{\"message\":{\"content\":\"\\u4f60\\n\"},\"fin", 4},
        {ENDPOINT_CHAT,
         "{\"choices\":[{\"message\":{\"content\":null,\"tool_calls\":[{\"function\":{"
         "\"arguments\":\"{}\"}},"
         "{\"function\":{\"arguments\":\"12",
         4},
        {ENDPOINT_CHAT, "{\"choices\":[{\"message\":{\"content\":\"ab\\", 3},
        {ENDPOINT_CHAT, "{\"choices\":[{\"message\":{\"content\":null,\"tool", 0},
        {ENDPOINT_CHAT, "{\"choices\":[{\"message\":{\"content\"", 0},
        {ENDPOINT_CHAT, "<html>", 0},
        {ENDPOINT_CHAT, "", 0},
        {ENDPOINT_COMPLETIONS, "{\"choices\":[{\"text\":\"xyz", 3},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(usage_part_bytes(cases[i].ep, str_c(cases[i].body)), cases[i].bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_an_answer_that_broke_off_its_text_is_counted),
        cmocka_unit_test(role_text_and_finish_are_read),
        cmocka_unit_test(empty_reason_is_none_and_text_comes_beside_the_finish),
        cmocka_unit_test(reasons_of_all_engines),
        cmocka_unit_test(what_is_no_chunk_is_told_apart),
        cmocka_unit_test(only_the_first_choice_is_the_clients),
        cmocka_unit_test(reasoning_refusal_and_logprobs_are_content),
        cmocka_unit_test(completions_have_text_in_the_choice),
        cmocka_unit_test(bytes_that_are_not_utf8_become_replacement_characters),
        cmocka_unit_test(numbers_that_json_lacks_become_finite_or_null),
        cmocka_unit_test(an_event_of_a_hundred_kilobytes_is_read),
        cmocka_unit_test(usage_counts_only_when_possible),
        cmocka_unit_test(sound_calls_pass_as_they_are),
        cmocka_unit_test(a_missing_index_or_id_is_made),
        cmocka_unit_test(two_calls_under_one_index_are_told_apart),
        cmocka_unit_test(a_name_or_an_id_that_is_repeated_starts_no_call),
        cmocka_unit_test(calls_without_end_are_refused),
        cmocka_unit_test(in_band_errors_get_a_status),
        cmocka_unit_test(whole_answers_are_read),
        cmocka_unit_test(whole_calls_get_ids_and_the_reason_that_clients_act_on),
        cmocka_unit_test(half_answers_are_a_502),
        cmocka_unit_test(overflow_in_any_wording_is_one_error),
        cmocka_unit_test(a_400_keeps_its_message_without_insides),
        cmocka_unit_test(faults_of_the_engine_are_a_502_without_its_text),
        cmocka_unit_test(busy_engines_say_when_to_come_again),
        cmocka_unit_test(classes_of_a_bill_are_disjoint),
        cmocka_unit_test(an_attempt_without_content_costs_nothing),
        cmocka_unit_test(claims_beyond_the_bounds_are_billed_at_the_bounds),
        cmocka_unit_test(without_usage_the_stream_is_counted),
        cmocka_unit_test(without_usage_a_whole_answer_is_estimated),
        cmocka_unit_test(a_count_that_cannot_be_is_replaced),
        cmocka_unit_test(our_workers_word_is_taken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
