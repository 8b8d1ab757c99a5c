/* test_api_error.c - the envelope, its fields and the wordings that clients match. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/json.h"
#include "gateway/api/error.h"

static void check_body(const struct api_error *e, const char *want)
{
    struct buf b;

    buf_init(&b, 4096);
    api_error_body(e, &b);
    if (!str_eq(buf_view(&b), str_c(want))) {
        fail_msg("'" STR_FMT "', not '%s'", STR_ARG(buf_view(&b)), want);
    }
    buf_fini(&b);
}

static void envelope_always_has_its_four_keys(void **state)
{
    struct api_error e;

    (void)state;
    api_error_invalid(&e, "messages", "No \"%s\".", "messages");
    assert_int_equal(e.status, 400);
    check_body(&e, "{\"error\":{\"message\":\"No \\\"messages\\\".\",\"type\":"
                   "\"invalid_request_error\",\"param\":\"messages\",\"code\":null}}");
    api_error_set(&e, 429, "requests", "rate_limit_exceeded", NULL, "slow");
    check_body(&e, "{\"error\":{\"message\":\"slow\",\"type\":\"requests\",\"param\":null,\"code\":"
                   "\"rate_limit_exceeded\"}}");
}

static void usual_errors_have_status_and_code(void **state)
{
    struct api_error e;

    (void)state;
    api_error_bad_key(&e);
    assert_int_equal(e.status, 401);
    assert_string_equal(e.code, "invalid_api_key");
    api_error_no_model(&e, STR("no/such"));
    assert_int_equal(e.status, 404);
    assert_string_equal(e.code, "model_not_found");
    assert_string_equal(e.param, "model");
    assert_non_null(strstr(e.message, "'no/such'"));
    api_error_not_priced(&e, STR("m"));
    assert_int_equal(e.status, 403);
    assert_string_equal(e.code, "model_not_priced");
    api_error_upstream(&e);
    assert_int_equal(e.status, 502);
    assert_string_equal(e.type, "server_error");
    assert_string_equal(e.code, "upstream_error");
}

static void overflow_says_maximum_context_length_whatever_is_known(void **state)
{
    static const int64_t known[][4] = {
        {4096, 9001, 8993, 8}, {4096, 0, 8993, 8}, {4096, 9001, 0, -1},
        {4096, 0, 0, -1},      {0, 0, 0, 0},
    };
    struct api_error e;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        api_error_too_long(&e, known[i][0], known[i][1], known[i][2], known[i][3]);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.code, "context_length_exceeded");
        assert_non_null(strstr(e.message, "maximum context length"));
    }
    api_error_too_long(&e, 4096, 9001, 8993, 8);
    assert_string_equal(
        e.message, "This model's maximum context length is 4096 tokens. However, you requested "
                   "9001 tokens (8993 in the messages, 8 in the completion). Please reduce the "
                   "length of the messages or completion.");
}

static void long_text_is_cut_between_characters(void **state)
{
    char model[1000];
    struct api_error e;

    (void)state;
    for (size_t i = 0; i + 3 <= sizeof(model) - 1; i += 3) {
        memcpy(model + i, "\xE4\xBD\xA0", 3);
    }
    model[999] = '\0';
    api_error_invalid(&e, NULL, "x%s", model);
    assert_true(strlen(e.message) > API_ERROR_TEXT_MAX - 5);
    assert_int_equal(str_utf8_valid(str_c(e.message)), strlen(e.message));
    api_error_no_model(&e, str_c(model));
    assert_true(strlen(e.message) < 250);
}

static void arguments_may_come_from_the_error_itself(void **state)
{
    struct api_error e;

    (void)state;
    api_error_invalid(&e, "a", "first");
    api_error_invalid(&e, e.param, "again: %s", e.message);
    assert_string_equal(e.message, "again: first");
    assert_string_equal(e.param, "a");
}

static void retry_after_is_whole_seconds_rounded_up(void **state)
{
    static const struct {
        uint32_t ms;
        const char *seconds;
    } cases[] = {{1, "1"}, {1000, "1"}, {1001, "2"}, {7000, "7"}, {UINT32_MAX, "4294968"}};
    struct api_error_text text;
    struct http_field f[4];
    struct api_error e;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        api_error_unavailable(&e, cases[i].ms, "busy");
        assert_int_equal(e.status, 503);
        assert_int_equal(api_error_fields(&e, &text, f), 2);
        assert_true(str_eq(f[0].name, STR("retry-after")));
        assert_true(str_eq(f[0].value, str_c(cases[i].seconds)));
        assert_true(str_eq(f[1].name, STR("retry-after-ms")));
    }
}

static void final_refusals_tell_clients_not_to_retry(void **state)
{
    struct api_error_text text;
    struct http_field f[4];
    struct api_error e;

    (void)state;
    api_error_set(&e, 429, "insufficient_quota", "insufficient_quota", NULL, "spent");
    assert_int_equal(api_error_fields(&e, &text, f), 0);
    e.no_retry = true;
    assert_int_equal(api_error_fields(&e, &text, f), 1);
    assert_true(str_eq(f[0].name, STR("x-should-retry")) && str_eq(f[0].value, STR("false")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(envelope_always_has_its_four_keys),
        cmocka_unit_test(usual_errors_have_status_and_code),
        cmocka_unit_test(overflow_says_maximum_context_length_whatever_is_known),
        cmocka_unit_test(long_text_is_cut_between_characters),
        cmocka_unit_test(arguments_may_come_from_the_error_itself),
        cmocka_unit_test(retry_after_is_whole_seconds_rounded_up),
        cmocka_unit_test(final_refusals_tell_clients_not_to_retry),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
