/* test_bodies.c - bodies through a lane's work: what is refused, with which words, and what the
 * engine would get. Any bytes: tests/fuzz/fuzz_request.c. */
#include "tests/unit/body_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define CONTEXT 64

static struct job *prepare(struct body_world *w, enum job_kind kind, const char *body)
{
    static const struct body_plan plan = {CHAT_QWEN2, CONTEXT};
    struct job *j;

    body_world_open(w, &plan, 1);
    j = body_world_job(&w->serve[0], kind);
    buf_c(&j->body, body);
    submit_prepare(j);
    return j;
}

static void finish(struct body_world *w, struct job *j)
{
    job_free(j);
    body_world_close(w);
}

static void what_a_message_quotes_ends_between_characters(void **state)
{
    struct body_world w;
    struct job *j;
    struct str m;

    (void)state;
    j = prepare(&w, JOB_COMPLETION,
                "{\"model\":\"tiny\",\"prompt\":\"a\",\"logit_bias\":{"
                "\"0123456789012345678901234567890\u00e9\":1}}");
    m = str_c(j->refusal.message);
    assert_int_equal(j->refusal.status, 400);
    assert_int_equal(str_utf8_valid(m), m.n);
    assert_non_null(strstr(j->refusal.message, "7890\", which is no token id"));
    finish(&w, j);
}

static void tokens_that_must_come_have_to_fit_behind_the_prompt(void **state)
{
    struct body_world w;
    struct job *j;

    (void)state;
    j = prepare(&w, JOB_COMPLETION,
                "{\"model\":\"tiny\",\"prompt\":[5,6,7,8],\"max_tokens\":1000,\"min_tokens\":60}");
    assert_int_equal(j->refusal.status, 0);
    assert_int_equal(j->request.max_tokens, CONTEXT - 4);
    finish(&w, j);
    j = prepare(&w, JOB_COMPLETION,
                "{\"model\":\"tiny\",\"prompt\":[5,6,7,8],\"max_tokens\":1000,\"min_tokens\":61}");
    assert_int_equal(j->refusal.status, 400);
    assert_string_equal(j->refusal.param, "min_tokens");
    assert_non_null(strstr(j->refusal.message, "leaves room for 60."));
    finish(&w, j);
}

/* An answer that is asked to be longer than the context is as long as the context lets it be. */
static void a_whole_answer_is_counted_with_the_tokens_that_fit(void **state)
{
    struct body_world w;
    struct job *j;

    (void)state;
    j = prepare(&w, JOB_COMPLETION,
                "{\"model\":\"tiny\",\"prompt\":[5],\"max_tokens\":1000000,\"logprobs\":5,"
                "\"n\":16}");
    assert_int_equal(j->refusal.status, 0);
    assert_int_equal(j->request.max_tokens, CONTEXT - 1);
    finish(&w, j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_message_quotes_ends_between_characters),
        cmocka_unit_test(tokens_that_must_come_have_to_fit_behind_the_prompt),
        cmocka_unit_test(a_whole_answer_is_counted_with_the_tokens_that_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
