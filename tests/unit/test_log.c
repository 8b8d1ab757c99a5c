/* test_log.c - the form of a line, a full ring, a descriptor that refuses, and many threads. */
#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define WALL_US 1767323045000006u /* 2026-01-02T03:04:05.000006Z */
#define OUTPUT_MAX (4 << 20)

/* A log into memory: what was written is read back by offset. */
struct sink {
    int fd;
    struct log *log;
    char *text; /* owned, after sink_read */
};

static void sink_open(struct sink *s, enum log_level least)
{
    s->fd = memfd_create("log", MFD_CLOEXEC);
    assert_true(s->fd >= 0);
    s->log = log_new(s->fd, least, "tollgate");
    s->text = malloc(OUTPUT_MAX);
    assert_non_null(s->text);
}

static const char *sink_read(struct sink *s)
{
    ssize_t n;

    log_drain(s->log);
    n = pread(s->fd, s->text, OUTPUT_MAX - 1, 0);
    assert_true(n >= 0);
    s->text[n] = '\0';
    return s->text;
}

static void sink_close(struct sink *s)
{
    log_free(s->log);
    free(s->text);
    close(s->fd);
}

static size_t lines_in(const char *text)
{
    size_t n = 0;

    while ((text = strchr(text, '\n')) != NULL) {
        n++;
        text++;
    }
    return n;
}

static void a_line_is_one_json_object(void **state)
{
    struct sink s;

    (void)state;
    sink_open(&s, LOG_INFO);
    log_event(s.log, LOG_WARN, WALL_US, "worker_down", "worker %d is away", 3);
    assert_string_equal(
        sink_read(&s),
        "{\"time\":\"2026-01-02T03:04:05.000006Z\",\"level\":\"warn\",\"program\":"
        "\"tollgate\",\"event\":\"worker_down\",\"message\":\"worker 3 is away\"}\n");
    sink_close(&s);
}

static void times_are_right_around_leap_days(void **state)
{
    static const struct {
        uint64_t seconds;
        const char *text;
    } cases[] = {
        {0, "1970-01-01T00:00:00.000000Z"},          {951782399, "2000-02-28T23:59:59.000000Z"},
        {951782400, "2000-02-29T00:00:00.000000Z"},  {951868800, "2000-03-01T00:00:00.000000Z"},
        {1735689599, "2024-12-31T23:59:59.000000Z"}, {4107542400, "2100-03-01T00:00:00.000000Z"},
    };
    struct sink s;

    (void)state;
    sink_open(&s, LOG_INFO);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        log_event(s.log, LOG_INFO, cases[i].seconds * 1000000, "tick", "%s", "");
    }
    sink_read(&s);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (strstr(s.text, cases[i].text) == NULL) {
            fail_msg("%s is missing in %s", cases[i].text, s.text);
        }
    }
    sink_close(&s);
}

static void levels_below_the_least_and_no_log_are_silent(void **state)
{
    struct sink s;

    (void)state;
    sink_open(&s, LOG_WARN);
    log_event(s.log, LOG_INFO, WALL_US, "quiet", "nothing");
    log_event(NULL, LOG_ERROR, WALL_US, "quiet", "nothing");
    assert_string_equal(sink_read(&s), "");
    log_event(s.log, LOG_ERROR, WALL_US, "loud", "something");
    assert_non_null(strstr(sink_read(&s), "\"level\":\"error\""));
    sink_close(&s);
}

static void foreign_bytes_cannot_break_the_line(void **state)
{
    struct sink s;

    (void)state;
    sink_open(&s, LOG_INFO);
    log_event(s.log, LOG_INFO, WALL_US, "odd", "%s",
              "q\" b\\ n\n e\x1b d\x7f \xc3\xa9 \xf0\x9f\x98\x80 bad\xff cut\xe2\x82");
    assert_non_null(strstr(sink_read(&s),
                           "\"q\\\" b\\\\ n\\n e\\u001b d\\u007f \xc3\xa9 \xf0\x9f\x98\x80 "
                           "bad\xef\xbf\xbd cut\xef\xbf\xbd\xef\xbf\xbd\"}\n"));
    assert_int_equal(lines_in(s.text), 1);
    sink_close(&s);
}

static void long_lines_are_cut_and_say_so(void **state)
{
    char message[3 * LOG_LINE_MAX];
    struct sink s;

    (void)state;
    sink_open(&s, LOG_INFO);
    for (size_t n = LOG_LINE_MAX - 200; n < LOG_LINE_MAX + 50; n++) {
        const char *fills[] = {"x", "\x01", "\xc3\xa9"};

        for (size_t k = 0; k < ARRAY_LEN(fills); k++) {
            size_t unit = strlen(fills[k]), len = 0;

            while (len + unit <= n) {
                memcpy(message + len, fills[k], unit);
                len += unit;
            }
            message[len] = '\0';
            log_event(s.log, LOG_INFO, WALL_US, "long", "%s", message);
        }
        log_drain(s.log);
    }
    sink_read(&s);
    assert_int_equal(lines_in(s.text), 250 * 3);
    assert_non_null(strstr(s.text, "\",\"cut\":true}\n"));
    for (char *line = s.text, *end; *line != '\0'; line = end + 1) {
        end = strchr(line, '\n');
        assert_true(end - line + 1 <= LOG_LINE_MAX);
        assert_memory_equal(end - 1, "}", 1);
        assert_int_equal(str_utf8_valid(str_of(line, (size_t)(end - line))), end - line);
    }
    sink_close(&s);
}

static void a_full_ring_drops_counts_and_tells(void **state)
{
    struct sink s;

    (void)state;
    sink_open(&s, LOG_INFO);
    for (int i = 0; i < LOG_RING_LINES + 7; i++) {
        log_event(s.log, LOG_INFO, WALL_US, "flood", "line %d", i);
    }
    assert_int_equal(log_dropped(s.log), 7);
    assert_int_equal(lines_in(sink_read(&s)), LOG_RING_LINES);
    assert_null(strstr(s.text, "\"dropped\""));
    log_event(s.log, LOG_INFO, WALL_US, "after", "one");
    log_event(s.log, LOG_INFO, WALL_US, "after", "two");
    sink_read(&s);
    assert_non_null(strstr(s.text, "\"dropped\":7,\"message\":\"one\"}\n"));
    assert_non_null(strstr(s.text, "\"after\",\"message\":\"two\"}\n"));
    assert_int_equal(log_dropped(s.log), 7);
    sink_close(&s);
}

static void the_ring_goes_round_many_times_in_order(void **state)
{
    struct sink s;
    char *at;

    (void)state;
    sink_open(&s, LOG_INFO);
    for (int i = 0; i < 5 * LOG_RING_LINES; i++) {
        log_event(s.log, LOG_INFO, WALL_US, "turn", "#%d.", i);
        if (i % 100 == 0) {
            log_drain(s.log);
        }
    }
    at = (char *)sink_read(&s);
    for (int i = 0; i < 5 * LOG_RING_LINES; i++) {
        char expected[32];

        snprintf(expected, sizeof(expected), "#%d.", i);
        at = strchr(at, '#');
        assert_non_null(at);
        assert_memory_equal(at, expected, strlen(expected));
        at++;
    }
    assert_int_equal(log_dropped(s.log), 0);
    sink_close(&s);
}

/* A pipe takes lines in odd pieces and then refuses; nothing is lost or torn. */
static void a_slow_descriptor_keeps_lines_whole(void **state)
{
    enum { LINES = 900 };
    int fds[2];
    struct log *l;
    char *text = malloc(OUTPUT_MAX);
    size_t len = 0;
    ssize_t n;

    (void)state;
    assert_non_null(text);
    assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    assert_true(fcntl(fds[1], F_SETPIPE_SZ, 4096) >= 4096);
    l = log_new(fds[1], LOG_INFO, "tollgate");
    for (int i = 0; i < LINES; i++) {
        log_event(l, LOG_INFO, WALL_US, "slow", "%0*d", 1 + i % 700, i);
    }
    do {
        log_drain(l);
        n = read(fds[0], text + len, 1000);
        len += n > 0 ? (size_t)n : 0;
    } while (n > 0);
    text[len] = '\0';
    assert_int_equal(lines_in(text), LINES);
    for (char *line = text, *end; *line != '\0'; line = end + 1) {
        end = strchr(line, '\n');
        assert_memory_equal(line, "{\"time\":\"2026", 13);
        assert_memory_equal(end - 2, "\"}", 2);
    }
    assert_int_equal(log_dropped(l), 0);
    log_free(l);
    close(fds[0]);
    close(fds[1]);
    free(text);
}

static void a_dead_descriptor_only_costs_counted_lines(void **state)
{
    struct log *l = log_new(-1, LOG_INFO, "tollgate");

    (void)state;
    for (int i = 0; i < 2 * LOG_RING_LINES; i++) {
        log_event(l, LOG_INFO, WALL_US, "void", "line %d", i);
        log_drain(l);
    }
    assert_int_equal(log_dropped(l), LOG_RING_LINES);
    log_free(l);
}

#define WRITERS 4
#define LINES_EACH 3000

struct writer {
    struct log *log;
    int id;
};

static void *write_lines(void *arg)
{
    struct writer *w = arg;

    for (int i = 0; i < LINES_EACH; i++) {
        log_event(w->log, LOG_INFO, WALL_US, "race", "w%d:%d", w->id, i);
        if (i % 50 == 0) {
            log_drain(w->log); /* two drainers at a time: the try-lock lets one pass */
        }
    }
    return NULL;
}

static void lines_of_many_threads_are_whole_and_written_or_counted(void **state)
{
    struct writer writers[WRITERS];
    pthread_t threads[WRITERS];
    int last[WRITERS] = {-1, -1, -1, -1};
    struct sink s;
    size_t lines;

    (void)state;
    sink_open(&s, LOG_INFO);
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){s.log, i};
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, &writers[i]), 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    lines = lines_in(sink_read(&s));
    assert_int_equal(lines + log_dropped(s.log), WRITERS * LINES_EACH);
    for (char *line = s.text, *end; *line != '\0'; line = end + 1) {
        const char *message;
        int id, i;

        end = strchr(line, '\n');
        *end = '\0';
        message = strstr(line, "\"message\":\"w");
        assert_non_null(message);
        assert_int_equal(sscanf(message, "\"message\":\"w%d:%d\"}", &id, &i), 2);
        assert_true(i > last[id]); /* the order of one writer holds */
        last[id] = i;
    }
    sink_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_one_json_object),
        cmocka_unit_test(times_are_right_around_leap_days),
        cmocka_unit_test(levels_below_the_least_and_no_log_are_silent),
        cmocka_unit_test(foreign_bytes_cannot_break_the_line),
        cmocka_unit_test(long_lines_are_cut_and_say_so),
        cmocka_unit_test(a_full_ring_drops_counts_and_tells),
        cmocka_unit_test(the_ring_goes_round_many_times_in_order),
        cmocka_unit_test(a_slow_descriptor_keeps_lines_whole),
        cmocka_unit_test(a_dead_descriptor_only_costs_counted_lines),
        cmocka_unit_test(lines_of_many_threads_are_whole_and_written_or_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
