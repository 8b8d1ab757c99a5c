/* test_err.c - the first cause of a failure survives. */
#include "base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>

static void the_first_cause_wins(void **state)
{
    struct err e = {.code = ERR_NONE};

    (void)state;
    assert_false(err_set(&e, ERR_INPUT, "line %d", 7));
    assert_false(err_set(&e, ERR_IO, "later"));
    assert_false(err_errno(&e, ENOENT, "later still"));
    assert_int_equal(e.code, ERR_INPUT);
    assert_string_equal(e.text, "line 7");
}

static void errno_story_names_the_reason(void **state)
{
    struct err e = {.code = ERR_NONE};

    (void)state;
    err_errno(&e, ENOENT, "open %s", "a.yaml");
    assert_int_equal(e.code, ERR_IO);
    assert_string_equal(e.text, "open a.yaml: No such file or directory");
}

static void prefix_goes_before_the_story_and_never_makes_one(void **state)
{
    struct err e = {.code = ERR_NONE};

    (void)state;
    err_prefix(&e, "reading %d", 1);
    assert_int_equal(e.code, ERR_NONE);
    assert_string_equal(e.text, "");
    err_set(&e, ERR_LIMIT, "too long");
    err_prefix(&e, "reading %d", 2);
    assert_int_equal(e.code, ERR_LIMIT);
    assert_string_equal(e.text, "reading 2: too long");
    err_clear(&e);
    assert_int_equal(e.code, ERR_NONE);
}

static void long_stories_are_cut_not_overrun(void **state)
{
    struct err e = {.code = ERR_NONE};
    char path[2 * ERR_TEXT_MAX];

    (void)state;
    memset(path, 'x', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    err_errno(&e, EIO, "%s", path);
    assert_int_equal(strlen(e.text), ERR_TEXT_MAX - 1);
    err_prefix(&e, "%s", "outer");
    assert_int_equal(strlen(e.text), ERR_TEXT_MAX - 1);
    assert_memory_equal(e.text, "outer: xxx", 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_cause_wins),
        cmocka_unit_test(errno_story_names_the_reason),
        cmocka_unit_test(prefix_goes_before_the_story_and_never_makes_one),
        cmocka_unit_test(long_stories_are_cut_not_overrun),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
