/* test_server_h1.c - the server's HTTP/1.1 side over an env without sockets. */
#include "server_world.h"

#include <stdarg.h>
#include <stdio.h>
#include <setjmp.h>
#include <cmocka.h>

#define SECOND 1000000u
#define HELLO "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello"

static void get_is_answered_and_kept_alive(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1_H2);

    (void)state;
    fake_send_c(w->peer, "GET /hello?a=1 HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    assert_string_equal(fake_text(w->peer), HELLO);
    world_expect(w, "head GET /hello;close 1;");
    fake_send_c(w->peer, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    assert_string_equal(fake_text(w->peer), HELLO);
    assert_false(w->peer->closed);
    world_free(w);
}

static void answer_does_not_depend_on_how_bytes_are_split(void **state)
{
    const char *text =
        "POST /whole HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        "5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\n\r\nGET /hello HTTP/1.1\r\nHost: a\r\n\r\n";

    (void)state;
    for (uint32_t step = 1; step <= 7; step++) {
        struct world *w = world_new(NULL, HTTP_H1_H2);

        w->fake->max_read = step;
        fake_send_c(w->peer, text);
        fake_run(w->fake);
        assert_string_equal(fake_text(w->peer), "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
                                                "content-length: 5\r\n\r\ngot 8" HELLO);
        world_free(w);
    }
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);

    (void)state;
    fake_send_c(w->peer,
                "GET /slow HTTP/1.1\r\nHost: a\r\n\r\nGET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    world_expect(w, "head GET /slow;");
    http_stream_respond(w->last, 200, NULL, 0, 4);
    http_stream_write(w->last, "slow", 4);
    http_stream_end(w->last);
    fake_run(w->fake);
    assert_string_equal(fake_text(w->peer),
                        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nslow" HELLO);
    world_expect(w, "close 1;head GET /hello;close 1;");
    world_free(w);
}

/* More of them than the connection reads ahead: it stops reading, answers, and goes on. */
static void a_deep_pipeline_is_answered_to_its_end(void **state)
{
    enum { REQUESTS = 3000 };
    static const char one[] = "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n";
    struct world *w = world_new(NULL, HTTP_H1);
    const char *at;
    int answers = 0;

    (void)state;
    for (int i = 0; i < REQUESTS; i++) {
        fake_send_c(w->peer, one);
    }
    fake_run(w->fake);
    for (at = fake_text(w->peer); (at = strstr(at, "HTTP/1.1 200")) != NULL; at++) {
        answers++;
    }
    assert_int_equal(answers, REQUESTS);
    assert_false(w->peer->closed || w->peer->shut);
    world_free(w);
}

static void stream_of_unknown_length_is_chunked(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);

    (void)state;
    fake_send_c(w->peer, "GET /sse HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    http_stream_respond(w->last, 200, NULL, 0, -1);
    http_stream_write(w->last, "one", 3);
    http_stream_write(w->last, "two", 3);
    fake_run(w->fake);
    assert_string_equal(fake_text(w->peer),
                        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nonetwo\r\n");
    http_stream_write(w->last, "!", 1);
    http_stream_end(w->last);
    fake_run(w->fake);
    assert_string_equal(fake_text(w->peer), "1\r\n!\r\n0\r\n\r\n");
    assert_false(w->peer->closed || w->peer->shut);
    world_free(w);
}

/* What an attacker would hide behind the first request must never be answered. */
static void smuggling_shapes_get_400_and_the_end(void **state)
{
    static const char *shapes[] = {
        "POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: "
        "chunked\r\n\r\n",
        "POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n",
        "POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\n",
        "POST /whole HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHost: a\r\nX: 1\r\n folded\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHost: a\r\nX: 1\rTransfer-Encoding: chunked\r\n\r\n",
        "GET /hello HTTP/1.1\nHost: a\n\n",
        "GET /hello HTTP/1.1\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct world *w = world_new(NULL, HTTP_H1_H2);
        const char *text;

        fake_send_c(w->peer, shapes[i]);
        fake_send_c(w->peer, "0\r\n\r\nGET /hello HTTP/1.1\r\nHost: smuggled\r\n\r\n");
        fake_run(w->fake);
        text = fake_text(w->peer);
        assert_memory_equal(text, "HTTP/1.1 400 ", 13);
        assert_non_null(strstr(text, "\r\nconnection: close\r\n"));
        assert_null(strstr(text + 1, "HTTP/1.1"));
        assert_true(w->peer->shut);
        assert_int_equal(w->heads, 0);
        assert_int_equal(world_stats(w).protocol_errors, 1);
        fake_advance(w->fake, 4 * SECOND);
        assert_true(w->peer->closed);
        world_free(w);
    }
}

static void bad_chunk_in_a_body_ends_the_request_with_400(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);

    (void)state;
    fake_send_c(w->peer,
                "POST /whole HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n");
    fake_run(w->fake);
    assert_memory_equal(fake_text(w->peer), "HTTP/1.1 400 ", 13);
    world_expect(w, "head POST /whole;close 2;");
    assert_true(w->peer->shut);
    world_free(w);
}

static void error_of_the_application_keeps_the_connection(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);

    (void)state;
    fake_send_c(w->peer,
                "GET /deny HTTP/1.1\r\nHost: a\r\n\r\nGET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    assert_string_equal(fake_text(w->peer),
                        "HTTP/1.1 401 Unauthorized\r\ncontent-type: text/plain\r\n"
                        "content-length: 2\r\n\r\nno" HELLO);
    world_free(w);
}

static void continue_is_said_once_and_only_when_asked(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);
    const char *text;

    (void)state;
    w->expect_early = true;
    fake_send_c(w->peer, "POST /whole HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
                         "Content-Length: 2\r\n\r\n");
    fake_run(w->fake);
    assert_string_equal(fake_text(w->peer), "HTTP/1.1 100 Continue\r\n\r\n");
    fake_send_c(w->peer, "ok");
    fake_run(w->fake);
    text = fake_text(w->peer);
    assert_non_null(strstr(text, "200 OK"));
    assert_null(strstr(text, "100 Continue"));
    fake_send_c(w->peer, "POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok");
    fake_run(w->fake);
    assert_null(strstr(fake_text(w->peer), "100 Continue"));
    world_free(w);
}

static void early_answer_lingers_while_the_upload_comes(void **state)
{
    static char mib[1 << 20];
    struct world *w = world_new(NULL, HTTP_H1);
    const char *text;

    (void)state;
    fake_send_c(w->peer, "POST /deny HTTP/1.1\r\nHost: a\r\nContent-Length: 8388608\r\n\r\n");
    fake_run(w->fake);
    text = fake_text(w->peer);
    assert_non_null(strstr(text, "401"));
    assert_non_null(strstr(text, "connection: close"));
    assert_true(w->peer->shut);
    for (int i = 0; i < 8; i++) {
        fake_send(w->peer, mib, sizeof(mib));
        fake_run(w->fake);
        assert_false(w->peer->closed);
        assert_int_equal(w->peer->rx.len, 0); /* read on, so that the client gets to our answer */
    }
    w->peer->peer_shut = true;
    fake_run(w->fake);
    assert_true(w->peer->closed);
    world_expect(w, "head POST /deny;close 1;");
    world_free(w);
}

static void body_that_is_not_credited_stops_the_reading(void **state)
{
    static char mib[1 << 20];
    struct world *w = world_new(NULL, HTTP_H1);
    uint64_t window = http_limits_default.request_window;

    (void)state;
    w->hoard = true;
    fake_send_c(w->peer, "POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\n");
    fake_send(w->peer, mib, sizeof(mib));
    fake_run(w->fake);
    assert_int_equal(w->body_bytes, window);
    assert_true(w->peer->rx.len > sizeof(mib) - 2 * window);
    fake_advance(w->fake, 100 * SECOND); /* nothing is due while we hold it back */
    assert_int_equal(w->closes, 0);
    w->hoard = false;
    http_stream_credit(w->last, window);
    fake_run(w->fake);
    assert_int_equal(w->body_bytes, sizeof(mib));
    assert_non_null(strstr(fake_text(w->peer), "got 1048576"));
    world_free(w);
}

static void client_that_leaves_closes_the_stream(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);

    (void)state;
    fake_send_c(w->peer, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    w->peer->peer_shut = true;
    fake_run(w->fake);
    world_expect(w, "head GET /slow;close 2;");
    assert_true(w->peer->closed);
    world_free(w);
}

static void abort_closes_without_the_last_chunk(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);

    (void)state;
    fake_send_c(w->peer, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    http_stream_respond(w->last, 200, NULL, 0, -1);
    http_stream_write(w->last, "part", 4);
    fake_run(w->fake);
    http_stream_abort(w->last);
    assert_int_equal(w->closes, 0); /* never inside the call */
    fake_run(w->fake);
    world_expect(w, "head GET /slow;close 4;");
    assert_null(strstr(fake_text(w->peer), "0\r\n\r\n"));
    assert_true(w->peer->shut);
    world_free(w);
}

static void slow_reader_gets_drains_and_bounded_memory(void **state)
{
    static char kib64[64 << 10];
    struct world *w = world_new(NULL, HTTP_H1);
    size_t max = http_limits_default.write_buffer_max;

    (void)state;
    fake_send_c(w->peer, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    w->peer->tx_room = 1000;
    http_stream_respond(w->last, 200, NULL, 0, -1);
    for (int i = 0; i < 8; i++) {
        http_stream_write(w->last, kib64, sizeof(kib64));
        fake_run(w->fake);
    }
    assert_true(http_stream_buffered(w->last) > 8 * sizeof(kib64) - max - 128 * 1024);
    assert_int_equal(world_stats(w).buffered_bytes, http_stream_buffered(w->last));
    world_expect(w, "head GET /slow;");
    w->peer->tx_room = SIZE_MAX;
    fake_run(w->fake);
    world_expect(w, "drain;");
    assert_int_equal(http_stream_buffered(w->last), 0);
    http_stream_end(w->last);
    fake_run(w->fake);
    world_expect(w, "close 1;");
    world_free(w);
}

/* The peer reads between two writes of one turn: what the stream still has must not be forgotten.
 */
static void a_socket_that_opens_within_a_turn_gets_all(void **state)
{
    static char mib[1 << 20];
    struct world *w = world_new(NULL, HTTP_H1);

    (void)state;
    fake_send_c(w->peer, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    w->peer->tx_room = 0;
    w->peer->tx_opens = true;
    http_stream_respond(w->last, 200, NULL, 0, -1);
    http_stream_write(w->last, mib, sizeof(mib));
    http_stream_end(w->last);
    fake_run(w->fake);
    world_expect(w, "head GET /slow;close 1;");
    world_free(w);
}

static void done_is_said_only_when_the_socket_has_all(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);

    (void)state;
    w->peer->tx_room = 20;
    fake_send_c(w->peer, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    world_expect(w, "head GET /hello;");
    w->peer->tx_room = SIZE_MAX;
    fake_run(w->fake);
    world_expect(w, "close 1;");
    world_free(w);
}

static void peer_that_reads_nothing_is_closed(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);

    (void)state;
    w->peer->tx_room = 10;
    fake_send_c(w->peer, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_advance(w->fake, 59 * SECOND);
    assert_false(w->peer->closed);
    fake_advance(w->fake, 2 * SECOND);
    assert_true(w->peer->closed);
    world_expect(w, "head GET /hello;close 3;");
    world_free(w);
}

struct timer_case {
    const char *send;
    uint32_t alive_s, dead_s;
    const char *answer;
};

static void timers_end_the_silent(void **state)
{
    static const struct timer_case cases[] = {
        {"", 9, 11, ""},                           /* nothing at all */
        {"GET /hello HT", 9, 11, "HTTP/1.1 408 "}, /* slowloris */
        {"POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx", 29, 31, "HTTP/1.1 408 "},
        {"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n", 179, 181, "HTTP/1.1 200 "}, /* idle */
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct world *w = world_new(NULL, HTTP_H1_H2);

        fake_send_c(w->peer, cases[i].send);
        fake_advance(w->fake, (uint64_t)cases[i].alive_s * SECOND);
        assert_false(w->peer->shut || w->peer->closed);
        fake_advance(w->fake, (uint64_t)(cases[i].dead_s - cases[i].alive_s) * SECOND);
        assert_true(w->peer->shut || w->peer->closed);
        assert_memory_equal(fake_text(w->peer), cases[i].answer, strlen(cases[i].answer));
        fake_advance(w->fake, 4 * SECOND);
        assert_true(w->peer->closed);
        world_free(w);
    }
}

static void drip_fed_body_is_a_stall(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);

    (void)state;
    fake_send_c(w->peer, "POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    for (int i = 0; i < 31 && w->closes == 0; i++) {
        fake_send_c(w->peer, "x");
        fake_advance(w->fake, SECOND);
    }
    assert_int_equal(w->whys[HTTP_CLOSE_LIMIT], 1);
    world_free(w);
}

static void too_many_fields_get_431(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);

    (void)state;
    fake_send_c(w->peer, "GET /hello HTTP/1.1\r\nHost: a\r\n");
    for (int i = 0; i < 100; i++) {
        fake_send_c(w->peer, "x: y\r\n");
    }
    fake_send_c(w->peer, "\r\n");
    fake_run(w->fake);
    assert_memory_equal(fake_text(w->peer), "HTTP/1.1 431 ", 13);
    world_free(w);
}

static void head_and_204_have_no_body(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);

    (void)state;
    fake_send_c(w->peer, "HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    assert_string_equal(fake_text(w->peer),
                        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\n");
    fake_send_c(w->peer, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    http_stream_respond(w->last, 204, NULL, 0, -1);
    http_stream_write(w->last, "dropped", 7);
    http_stream_end(w->last);
    fake_run(w->fake);
    assert_string_equal(fake_text(w->peer), "HTTP/1.1 204 No Content\r\n\r\n");
    world_free(w);
}

static void answers_own_their_framing(void **state)
{
    struct http_field fields[] = {
        {STR("content-length"), STR("99")}, {STR("transfer-encoding"), STR("gzip")},
        {STR("connection"), STR("x")},      {STR("x-split"), STR("a\r\nset-cookie: b")},
        {STR("x-fine"), STR("yes")},
    };
    struct world *w = world_new(NULL, HTTP_H1);

    (void)state;
    fake_send_c(w->peer, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    http_stream_respond(w->last, 200, fields, ARRAY_LEN(fields), 2);
    http_stream_write(w->last, "ok", 2);
    http_stream_end(w->last);
    fake_run(w->fake);
    assert_string_equal(fake_text(w->peer),
                        "HTTP/1.1 200 OK\r\nx-fine: yes\r\ncontent-length: 2\r\n\r\nok");
    world_free(w);
}

static void answer_longer_or_shorter_than_announced_is_cut(void **state)
{
    (void)state;
    for (int longer = 0; longer < 2; longer++) {
        struct world *w = world_new(NULL, HTTP_H1);

        fake_send_c(w->peer, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
        fake_run(w->fake);
        http_stream_respond(w->last, 200, NULL, 0, 4);
        http_stream_write(w->last, "abcdefgh", longer ? 8 : 3);
        http_stream_end(w->last);
        fake_run(w->fake);
        assert_int_equal(w->whys[HTTP_CLOSE_ABORT], 1);
        assert_true(w->peer->shut);
        world_free(w);
    }
}

static void http10_is_answered_and_closed(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);

    (void)state;
    fake_send_c(w->peer, "GET /sse HTTP/1.0\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    http_stream_respond(w->last, 200, NULL, 0, -1);
    http_stream_write(w->last, "plain", 5);
    http_stream_end(w->last);
    fake_run(w->fake);
    assert_string_equal(fake_text(w->peer), "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nplain");
    assert_true(w->peer->shut);
    world_free(w);
}

static void accepts_stop_at_the_bound_and_resume(void **state)
{
    struct http_limits lim = http_limits_default;
    struct env_sock *second;
    struct world *w;

    (void)state;
    lim.connections_max = 1;
    w = world_new(&lim, HTTP_H1);
    second = world_connect(w);
    assert_false(second->taken);
    assert_int_equal(fake_listener(w->fake)->events, 0);
    w->peer->peer_shut = true;
    fake_run(w->fake);
    assert_true(second->taken);
    fake_send_c(second, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    assert_string_equal(fake_text(second), HELLO);
    world_free(w);
}

static void listener_rests_when_descriptors_run_out(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);
    struct env_sock *second;
    uint32_t before;

    (void)state;
    w->fake->accept_fails = true;
    before = w->fake->accepts;
    second = world_connect(w); /* a spinning server would never come to rest here */
    assert_int_equal(w->fake->accepts, before + 1);
    w->fake->accept_fails = false;
    fake_advance(w->fake, SECOND);
    assert_true(second->taken);
    world_free(w);
}

static void set_flag(void *ctx)
{
    *(bool *)ctx = true;
}

static void drain_lets_answers_end_and_closes(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);
    struct env_sock *idle = world_connect(w);
    bool drained = false;

    (void)state;
    fake_send_c(idle, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    fake_send_c(w->peer, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    http_server_drain(w->server, set_flag, &drained);
    fake_advance(w->fake, 5 * SECOND);
    assert_true(idle->closed && !w->peer->closed && !drained);
    http_stream_respond(w->last, 200, NULL, 0, 0);
    http_stream_end(w->last);
    fake_run(w->fake);
    assert_non_null(strstr(fake_text(w->peer), "connection: close"));
    w->peer->peer_shut = true;
    fake_run(w->fake);
    assert_true(drained);
    world_free(w);
}

static void freeing_the_server_closes_every_stream(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1);
    uint32_t *whys = w->whys;

    (void)state;
    fake_send_c(w->peer, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    http_server_free(w->server);
    w->server = NULL;
    assert_int_equal(whys[HTTP_CLOSE_SHUTDOWN], 1);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(get_is_answered_and_kept_alive),
        cmocka_unit_test(answer_does_not_depend_on_how_bytes_are_split),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(a_deep_pipeline_is_answered_to_its_end),
        cmocka_unit_test(stream_of_unknown_length_is_chunked),
        cmocka_unit_test(smuggling_shapes_get_400_and_the_end),
        cmocka_unit_test(bad_chunk_in_a_body_ends_the_request_with_400),
        cmocka_unit_test(error_of_the_application_keeps_the_connection),
        cmocka_unit_test(continue_is_said_once_and_only_when_asked),
        cmocka_unit_test(early_answer_lingers_while_the_upload_comes),
        cmocka_unit_test(body_that_is_not_credited_stops_the_reading),
        cmocka_unit_test(client_that_leaves_closes_the_stream),
        cmocka_unit_test(abort_closes_without_the_last_chunk),
        cmocka_unit_test(slow_reader_gets_drains_and_bounded_memory),
        cmocka_unit_test(a_socket_that_opens_within_a_turn_gets_all),
        cmocka_unit_test(done_is_said_only_when_the_socket_has_all),
        cmocka_unit_test(peer_that_reads_nothing_is_closed),
        cmocka_unit_test(timers_end_the_silent),
        cmocka_unit_test(drip_fed_body_is_a_stall),
        cmocka_unit_test(too_many_fields_get_431),
        cmocka_unit_test(head_and_204_have_no_body),
        cmocka_unit_test(answers_own_their_framing),
        cmocka_unit_test(answer_longer_or_shorter_than_announced_is_cut),
        cmocka_unit_test(http10_is_answered_and_closed),
        cmocka_unit_test(accepts_stop_at_the_bound_and_resume),
        cmocka_unit_test(listener_rests_when_descriptors_run_out),
        cmocka_unit_test(drain_lets_answers_end_and_closes),
        cmocka_unit_test(freeing_the_server_closes_every_stream),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
