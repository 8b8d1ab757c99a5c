/* test_buf.c - content, bounds, and what a failed write leaves behind. */
#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

static bool memory_refused;

void *__real_mem_resize(void *p, size_t bytes);
void *__wrap_mem_resize(void *p, size_t bytes);
void *__wrap_mem_resize(void *p, size_t bytes)
{
    return memory_refused ? NULL : __real_mem_resize(p, bytes);
}

static void assert_content(const struct buf *b, const char *expected)
{
    struct str s = buf_view(b);

    if (!str_eq(s, str_c(expected))) {
        fail_msg("'" STR_FMT "', expected '%s'", STR_ARG(s), expected);
    }
}

static void writers_append_in_order(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 1000);
    assert_content(&b, "");
    buf_append(&b, "ab", 2);
    buf_append(&b, NULL, 0);
    buf_str(&b, STR("-"));
    buf_c(&b, "c");
    buf_byte(&b, '!');
    buf_u64(&b, 0);
    buf_byte(&b, ' ');
    buf_u64(&b, UINT64_MAX);
    buf_byte(&b, ' ');
    buf_i64(&b, INT64_MIN);
    buf_i64(&b, 7);
    assert_content(&b, "ab-c!0 18446744073709551615 -92233720368547758087");
    assert_false(b.failed);
    buf_fini(&b);
}

static void printf_grows_to_any_length_below_max(void **state)
{
    struct buf b;
    char expected[600];

    (void)state;
    buf_init(&b, 500);
    for (int width = 0; width < 200; width++) { /* crosses each edge of the free room */
        buf_reset(&b);
        buf_c(&b, "x");
        buf_printf(&b, "%*d|%s", width, 7, "end");
        snprintf(expected, sizeof(expected), "x%*d|%s", width, 7, "end");
        assert_content(&b, expected);
    }
    buf_fini(&b);
}

static void content_reaches_max_exactly_and_not_one_byte_more(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 5);
    buf_c(&b, "12345");
    assert_false(b.failed);
    buf_byte(&b, '6');
    assert_true(b.failed);
    assert_content(&b, "12345");
    buf_fini(&b);
}

static void each_writer_fails_whole_past_max(void **state)
{
    volatile size_t huge = SIZE_MAX; /* the compiler must not see it */
    (void)state;
    for (int writer = 0; writer < 7; writer++) {
        struct buf b;

        buf_init(&b, 4);
        buf_c(&b, "12");
        switch (writer) {
        case 0:
            buf_append(&b, "abc", 3);
            break;
        case 1:
            buf_u64(&b, 123);
            break;
        case 2:
            buf_i64(&b, -12);
            break;
        case 3:
            buf_printf(&b, "%d", 123);
            break;
        case 4:
            assert_null(buf_reserve(&b, 3));
            break;
        case 5:
            buf_append(&b, "", huge);
            break;
        default:
            buf_printf(&b, "%0300d", 123);
            break;
        }
        assert_true(b.failed);
        assert_content(&b, "12");
        buf_fini(&b);
    }
}

static void failure_sticks_until_reset(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 4);
    buf_c(&b, "12");
    buf_c(&b, "345");
    buf_byte(&b, 'x'); /* would fit, but something before it is missing */
    buf_printf(&b, "y");
    assert_null(buf_reserve(&b, 1));
    assert_null(buf_reserve(&b, 0));
    assert_content(&b, "12");
    buf_consume(&b, 2);
    assert_true(b.failed);
    buf_reset(&b);
    buf_c(&b, "1234");
    assert_false(b.failed);
    assert_content(&b, "1234");
    buf_fini(&b);
}

static void no_memory_fails_the_write_and_keeps_the_content(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 10000);
    memory_refused = true;
    buf_byte(&b, 'x');
    assert_true(b.failed);
    assert_content(&b, "");
    memory_refused = false;
    buf_reset(&b);
    buf_c(&b, "kept");
    memory_refused = true;
    buf_printf(&b, "%05000d", 1);
    assert_true(b.failed);
    assert_content(&b, "kept");
    memory_refused = false;
    buf_fini(&b);
}

static void reserve_and_commit_take_what_was_written(void **state)
{
    struct buf b;
    uint8_t *p;

    (void)state;
    buf_init(&b, 100);
    assert_non_null(buf_reserve(&b, 0));
    p = buf_reserve(&b, 100);
    assert_non_null(p);
    memset(p, 'z', 100);
    buf_commit(&b, 3);
    assert_content(&b, "zzz");
    buf_truncate(&b, 1);
    assert_content(&b, "z");
    buf_fini(&b);
}

static void a_stream_through_the_buffer_keeps_order_and_memory_bounded(void **state)
{
    enum { MAX = 1000 };
    uint32_t in = 0, out = 0, random = 1;
    struct buf b;

    (void)state;
    buf_init(&b, MAX);
    for (int step = 0; step < 20000; step++) {
        size_t n;

        random = random * 1664525 + 1013904223;
        n = size_min(random >> 24, MAX - b.len);
        for (size_t i = 0; i < n; i++) {
            buf_byte(&b, (uint8_t)in++);
        }
        n = size_min(random >> 16 & 127, b.len);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal((uint8_t)buf_view(&b).p[i], (uint8_t)out);
            out++;
        }
        buf_consume(&b, n);
        assert_true(b.cap <= MAX + MAX / 4 + 64);
        assert_true(b.off + b.len <= b.cap);
    }
    assert_false(b.failed);
    assert_int_equal(in - out, b.len);
    buf_fini(&b);
}

static void release_gives_memory_back_and_the_buffer_lives_on(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 10);
    buf_c(&b, "abc");
    buf_release(&b);
    assert_null(b.p);
    assert_int_equal(b.cap, 0);
    assert_content(&b, "");
    buf_c(&b, "0123456789");
    assert_content(&b, "0123456789");
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writers_append_in_order),
        cmocka_unit_test(printf_grows_to_any_length_below_max),
        cmocka_unit_test(content_reaches_max_exactly_and_not_one_byte_more),
        cmocka_unit_test(each_writer_fails_whole_past_max),
        cmocka_unit_test(failure_sticks_until_reset),
        cmocka_unit_test(no_memory_fails_the_write_and_keeps_the_content),
        cmocka_unit_test(reserve_and_commit_take_what_was_written),
        cmocka_unit_test(a_stream_through_the_buffer_keeps_order_and_memory_bounded),
        cmocka_unit_test(release_gives_memory_back_and_the_buffer_lives_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
