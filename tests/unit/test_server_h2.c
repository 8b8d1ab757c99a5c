/* test_server_h2.c - what the server's HTTP/2 side serves, and how it ends. */
#include "h2_peer.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

/* ---- serving ---- */

static void prior_knowledge_is_recognised_in_any_split(void **state)
{
    (void)state;
    for (uint32_t step = 1; step <= 30; step++) {
        struct world *w = world_new(NULL, HTTP_H1_H2);
        struct seen seen;

        w->fake->max_read = step;
        fake_send_c(w->peer, PREFACE);
        frame(w->peer, SETTINGS, 0, 0, NULL, 0);
        get(w->peer, 1, "/hello");
        fake_run(w->fake);
        look(w->peer, &seen);
        assert_string_equal(seen.data, "hello");
        assert_int_equal(seen.ends, 1);
        world_expect(w, "head GET /hello;close 1;");
        world_free(w);
    }
}

static void protocols_that_are_not_allowed_are_refused(void **state)
{
    struct world *w = world_new(NULL, HTTP_H2);

    (void)state;
    fake_send_c(w->peer, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    assert_true(w->peer->closed);
    world_free(w);
    w = world_new(NULL, HTTP_H1);
    fake_send_c(w->peer, PREFACE);
    fake_run(w->fake);
    assert_memory_equal(fake_text(w->peer), "HTTP/1.1 ", 9);
    assert_true(w->peer->shut);
    world_free(w);
}

static void body_is_echoed_with_flow_control(void **state)
{
    static char kib16[16384];
    struct world *w = h2_world(NULL);
    struct seen seen;
    uint32_t got = 0;

    (void)state;
    request(w->peer, 1, "POST", "/echo", 0);
    for (int i = 0; i < 16; i++) {
        frame(w->peer, DATA, i == 15 ? END_STREAM : 0, 1, kib16, sizeof(kib16));
        fake_run(w->fake);
        look(w->peer, &seen);
        got += seen.data_bytes;
        u32_frame(w->peer, WINDOW_UPDATE, 0, sizeof(kib16));
        u32_frame(w->peer, WINDOW_UPDATE, 1, sizeof(kib16));
    }
    fake_run(w->fake);
    look(w->peer, &seen);
    assert_int_equal(got + seen.data_bytes, 16 * sizeof(kib16));
    assert_int_equal(w->whys[HTTP_CLOSE_DONE], 1);
    world_free(w);
}

static void stalled_stream_does_not_stop_others(void **state)
{
    static char kib64[64 << 10];
    struct world *w = h2_world(NULL);
    struct http_stream *stalled;
    struct seen seen;

    (void)state;
    u32_frame(w->peer, WINDOW_UPDATE, 0, 1 << 20);
    get(w->peer, 1, "/slow");
    fake_run(w->fake);
    stalled = w->last;
    http_stream_respond(stalled, 200, NULL, 0, -1);
    for (int i = 0; i < 4; i++) {
        http_stream_write(stalled, kib64, sizeof(kib64));
    }
    fake_run(w->fake);
    assert_int_equal(look(w->peer, &seen)->data_bytes, 65535); /* its window */
    get(w->peer, 3, "/hello");
    fake_run(w->fake);
    assert_string_equal(look(w->peer, &seen)->data, "hello");
    assert_int_equal(http_stream_buffered(stalled), 4 * sizeof(kib64) - 65535);
    u32_frame(w->peer, WINDOW_UPDATE, 1, 1 << 20);
    fake_run(w->fake);
    assert_int_equal(http_stream_buffered(stalled), 0);
    assert_non_null(strstr(buf_view(&w->diary).p, "drain;"));
    world_free(w);
}

/* An upload that nobody credits holds its own window; the connection's goes on. */
static void uncredited_upload_does_not_stop_others(void **state)
{
    static char kib16[16384];
    struct world *w = h2_world(NULL);
    struct seen seen;

    (void)state;
    w->hoard = true;
    for (uint32_t id = 1; id <= 41; id += 2) { /* 21 x 48 KiB: a connection window */
        request(w->peer, id, "POST", "/hold", 0);
        for (int i = 0; i < 3; i++) {
            frame(w->peer, DATA, 0, id, kib16, sizeof(kib16));
        }
    }
    fake_run(w->fake);
    look(w->peer, &seen);
    assert_true(seen.count[WINDOW_UPDATE] >= 1);
    assert_int_equal(seen.count[GOAWAY] + seen.count[RST_STREAM], 0);
    assert_int_equal(w->body_bytes, 21 * 3 * sizeof(kib16));
    world_free(w);
}

static void one_byte_windows_deliver_everything(void **state)
{
    static const uint8_t window_one[] = {0, 4, 0, 0, 0, 1};
    struct world *w = h2_world(NULL);
    struct seen seen;
    char got[64] = "";

    (void)state;
    frame(w->peer, SETTINGS, 0, 0, window_one, sizeof(window_one));
    get(w->peer, 1, "/hello");
    for (int i = 0; i < 8; i++) {
        fake_run(w->fake);
        strcat(got, look(w->peer, &seen)->data);
        u32_frame(w->peer, WINDOW_UPDATE, 1, 1);
    }
    assert_string_equal(got, "hello");
    world_free(w);
}

static void early_answer_discards_the_upload_then_resets(void **state)
{
    static char kib16[16384];
    struct world *w = h2_world(NULL);
    struct seen seen;

    (void)state;
    request(w->peer, 1, "POST", "/deny", 0);
    fake_run(w->fake);
    world_expect(w, "head POST /deny;close 1;");
    look(w->peer, &seen);
    assert_string_equal(seen.data, "no");
    assert_int_equal(seen.count[RST_STREAM], 0);
    for (int i = 0; i < 64; i++) { /* a whole connection window: it must be credited */
        frame(w->peer, DATA, 0, 1, kib16, sizeof(kib16));
        fake_run(w->fake);
    }
    look(w->peer, &seen);
    assert_true(seen.count[WINDOW_UPDATE] >= 2);
    fake_advance(w->fake, SECOND);
    look(w->peer, &seen);
    assert_int_equal(seen.count[RST_STREAM], 1);
    assert_int_equal(seen.rst_code, NO_ERROR);
    frame(w->peer, DATA, 0, 1, kib16, sizeof(kib16)); /* was under way */
    get(w->peer, 3, "/hello");
    fake_run(w->fake);
    assert_string_equal(look(w->peer, &seen)->data, "hello");
    world_free(w);
}

static void abort_resets_with_internal_error(void **state)
{
    struct world *w = h2_world(NULL);
    struct seen seen;

    (void)state;
    get(w->peer, 1, "/slow");
    fake_run(w->fake);
    http_stream_respond(w->last, 200, NULL, 0, -1);
    http_stream_write(w->last, "part", 4);
    fake_run(w->fake);
    http_stream_abort(w->last);
    http_stream_abort(w->last);
    fake_run(w->fake);
    look(w->peer, &seen);
    assert_int_equal(seen.rst_code, INTERNAL_ERROR);
    world_expect(w, "head GET /slow;close 4;");
    world_free(w);
}

static void our_own_aborts_never_end_the_connection(void **state)
{
    struct world *w = h2_world(NULL);
    struct seen seen;

    (void)state;
    for (uint32_t i = 0; i < 1000; i++) {
        get(w->peer, 1 + 2 * i, "/slow");
        fake_run(w->fake);
        http_stream_abort(w->last);
        fake_run(w->fake);
    }
    assert_int_equal(look(w->peer, &seen)->count[GOAWAY], 0);
    assert_int_equal(w->whys[HTTP_CLOSE_ABORT], 1000);
    world_free(w);
}

static void continue_is_said_once(void **state)
{
    struct world *w = h2_world(NULL);
    struct seen seen;
    struct buf b;

    (void)state;
    w->expect_early = true;
    block_begin(&b, "POST", "/whole");
    field(&b, "expect", "100-continue");
    block_send(w->peer, &b, 1, 0);
    fake_run(w->fake);
    assert_int_equal(look(w->peer, &seen)->count[HEADERS], 1);
    frame(w->peer, DATA, END_STREAM, 1, "ok", 2);
    fake_run(w->fake);
    look(w->peer, &seen);
    assert_int_equal(seen.count[HEADERS], 1);
    assert_string_equal(seen.data, "got 2");
    world_free(w);
}

static void head_has_no_body(void **state)
{
    struct world *w = h2_world(NULL);
    struct seen seen;

    (void)state;
    request(w->peer, 1, "HEAD", "/hello", END_STREAM);
    fake_run(w->fake);
    look(w->peer, &seen);
    assert_int_equal(seen.data_bytes, 0);
    assert_int_equal(seen.ends, 1);
    world_free(w);
}

static void set_flag(void *ctx)
{
    *(bool *)ctx = true;
}

/* The deadline of a block that is refused goes with its stream. */
static void a_malformed_request_does_not_end_its_neighbours(void **state)
{
    struct world *w = h2_world(NULL);
    struct http_stream *slow;
    struct buf b;
    struct seen seen;

    (void)state;
    get(w->peer, 1, "/slow");
    fake_run(w->fake);
    slow = w->last;
    block_begin(&b, "GET", "/hello");
    field(&b, "connection", "close");
    block_send(w->peer, &b, 3, END_STREAM);
    fake_run(w->fake);
    look(w->peer, &seen);
    assert_int_equal(seen.rst_id, 3);
    fake_advance(w->fake, http_limits_default.header_us + SECOND);
    look(w->peer, &seen);
    assert_int_equal(seen.count[GOAWAY], 0);
    http_stream_respond(slow, 200, NULL, 0, 0);
    http_stream_end(slow);
    fake_run(w->fake);
    assert_int_equal(look(w->peer, &seen)->ends, 1);
    assert_int_equal(w->whys[HTTP_CLOSE_DONE], 1);
    world_free(w);
}

static void drain_says_goaway_twice_and_lets_streams_end(void **state)
{
    struct world *w = h2_world(NULL);
    struct http_stream *slow;
    bool drained = false;
    struct seen seen;

    (void)state;
    get(w->peer, 1, "/slow");
    fake_run(w->fake);
    slow = w->last;
    http_server_drain(w->server, set_flag, &drained);
    fake_run(w->fake);
    look(w->peer, &seen);
    assert_int_equal(seen.goaway_last, 0x7fffffff);
    get(w->peer, 3, "/hello"); /* was on its way */
    fake_run(w->fake);
    assert_string_equal(look(w->peer, &seen)->data, "hello");
    fake_advance(w->fake, SECOND);
    look(w->peer, &seen);
    assert_int_equal(seen.goaway_last, 3);
    assert_int_equal(seen.goaway_code, NO_ERROR);
    fake_advance(w->fake, 30 * SECOND);
    assert_false(w->peer->closed || drained);
    http_stream_respond(slow, 200, NULL, 0, 0);
    http_stream_end(slow);
    fake_advance(w->fake, 4 * SECOND);
    assert_true(w->peer->closed && drained);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prior_knowledge_is_recognised_in_any_split),
        cmocka_unit_test(protocols_that_are_not_allowed_are_refused),
        cmocka_unit_test(body_is_echoed_with_flow_control),
        cmocka_unit_test(stalled_stream_does_not_stop_others),
        cmocka_unit_test(uncredited_upload_does_not_stop_others),
        cmocka_unit_test(one_byte_windows_deliver_everything),
        cmocka_unit_test(early_answer_discards_the_upload_then_resets),
        cmocka_unit_test(abort_resets_with_internal_error),
        cmocka_unit_test(our_own_aborts_never_end_the_connection),
        cmocka_unit_test(continue_is_said_once),
        cmocka_unit_test(head_has_no_body),
        cmocka_unit_test(a_malformed_request_does_not_end_its_neighbours),
        cmocka_unit_test(drain_says_goaway_twice_and_lets_streams_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
