/* test_server_h2_attacks.c - malformed requests, and one case a row of the attack table: floods,
 * bombs, stalls. The connection must be gone within a known number of frames, or the stream alone.
 */
#include "h2_peer.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

/* ---- malformed requests ---- */

struct shape {
    const char *what, *name, *value;
};

static void malformed_requests_never_reach_the_application(void **state)
{
    static const struct shape shapes[] = {
        {"userinfo", ":authority", "user@a"},
        {"fragment", ":path", "/hello#x"},
        {"other host", "host", "b"},
        {"control", "x",
         "a\x01"
         "b"},
        {"line feed", "x", "a\nb"},
        {"upper case", "X", "y"},
        {"connection", "connection", "close"},
        {"te", "transfer-encoding", "chunked"},
        {"space", ":path", "/a b"},
        {"utf-8 path", ":path", "/\xc3\xa9"},
        {"absolute", ":path", "http://a/"},
        {"colon", "x:y", "z"},
        {"length", "content-length", "+5"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        bool pseudo = shapes[i].name[0] == ':';
        struct world *w = h2_world(NULL);
        struct seen seen;
        struct buf b;

        buf_init(&b, 4096);
        field(&b, ":method", "GET");
        field(&b, ":scheme", "http");
        field(&b, ":path", strcmp(shapes[i].name, ":path") == 0 ? shapes[i].value : "/hello");
        field(&b, ":authority", strcmp(shapes[i].name, ":authority") == 0 ? shapes[i].value : "a");
        if (!pseudo) {
            field(&b, shapes[i].name, shapes[i].value);
        }
        block_send(w->peer, &b, 1, END_STREAM);
        get(w->peer, 3, "/hello");
        fake_run(w->fake);
        look(w->peer, &seen);
        if (seen.count[RST_STREAM] != 1 || seen.rst_id != 1 || w->heads != 1) {
            fail_msg("%s: %u resets, %u heads", shapes[i].what, seen.count[RST_STREAM], w->heads);
        }
        assert_string_equal(seen.data, "hello"); /* that stream only */
        world_free(w);
    }
}

static void too_many_or_too_large_fields_get_431(void **state)
{
    static char value[100 + 1];

    (void)state;
    memset(value, 'v', 100);
    for (int large = 0; large < 2; large++) {
        struct world *w = h2_world(NULL);
        struct seen seen;
        struct buf b;

        block_begin(&b, "GET", "/hello");
        for (int i = 0; i < (large ? 0 : 100); i++) {
            field(&b, "cookie", "a=b");
        }
        if (large) { /* 98 x (1 + 100 + 32) stays below; an indexed run does not */
            for (int i = 0; i < 90; i++) {
                field(&b, "x", value);
            }
            frame(w->peer, HEADERS, END_STREAM, 1, buf_view(&b).p, b.len);
            buf_reset(&b);
            for (int i = 0; i < 170; i++) {
                field(&b, "x", value);
            }
            frame(w->peer, CONTINUATION, END_HEADERS, 1, buf_view(&b).p, b.len);
            buf_fini(&b);
        } else {
            block_send(w->peer, &b, 1, END_STREAM);
        }
        get(w->peer, 3, "/hello");
        fake_run(w->fake);
        look(w->peer, &seen);
        assert_int_equal(seen.count[HEADERS], 2);
        assert_int_equal(seen.count[RST_STREAM], 0);
        assert_int_equal(w->heads, 1);
        world_free(w);
    }
}

static void trailers_count_against_the_bounds(void **state)
{
    struct world *w = h2_world(NULL);
    struct seen seen;
    struct buf b;

    (void)state;
    request(w->peer, 1, "POST", "/hold", 0);
    frame(w->peer, DATA, 0, 1, "x", 1);
    buf_init(&b, 4096);
    for (int i = 0; i < 97; i++) {
        field(&b, "x", "y");
    }
    block_send(w->peer, &b, 1, END_STREAM);
    fake_run(w->fake);
    look(w->peer, &seen);
    assert_int_equal(seen.count[RST_STREAM], 1);
    world_expect(w, "head POST /hold;body 1;close 2;");
    world_free(w);
}

/* ---- the attack table ---- */

static void rapid_reset_ends_the_connection(void **state)
{
    struct world *w = h2_world(NULL);
    uint32_t id = 1;

    (void)state;
    for (; id < 2000 && !w->peer->shut; id += 2) {
        get(w->peer, id, "/slow");
        u32_frame(w->peer, RST_STREAM, id, CANCEL);
        fake_run(w->fake);
    }
    assert_in_range(id / 2, 200, 202);
    assert_gone(w, CALM);
    assert_int_equal(w->heads, w->closes);
    world_free(w);
}

static void honest_cancels_do_not(void **state)
{
    struct world *w = h2_world(NULL);
    struct seen seen;

    (void)state;
    for (uint32_t i = 0; i < 1000; i++) {
        get(w->peer, 1 + 4 * i, "/slow");
        u32_frame(w->peer, RST_STREAM, 1 + 4 * i, CANCEL);
        get(w->peer, 3 + 4 * i, "/hello");
        u32_frame(w->peer, WINDOW_UPDATE, 0, 5);
        fake_run(w->fake);
    }
    assert_int_equal(look(w->peer, &seen)->count[GOAWAY], 0);
    world_free(w);
}

/* CVE-2025-8671: the peer's fault makes us reset; its requests must not be free. */
static void made_you_reset_by_window_overflow_ends_the_connection(void **state)
{
    struct world *w = h2_world(NULL);
    uint32_t id = 1;

    (void)state;
    for (; id < 2000 && !w->peer->shut; id += 2) {
        get(w->peer, id, "/slow");
        u32_frame(w->peer, WINDOW_UPDATE, id, 0x7fffffff);
        fake_run(w->fake);
    }
    assert_in_range(id / 2, 200, 203);
    assert_gone(w, CALM);
    world_free(w);
}

static void made_you_reset_by_content_length_ends_the_connection(void **state)
{
    struct world *w = h2_world(NULL);
    uint32_t id = 1;

    (void)state;
    for (; id < 2000 && !w->peer->shut; id += 2) {
        struct buf b;

        block_begin(&b, "POST", "/slow");
        field(&b, "content-length", "1");
        block_send(w->peer, &b, id, 0);
        frame(w->peer, DATA, END_STREAM, id, "xx", 2);
        fake_run(w->fake);
    }
    assert_in_range(id / 2, 200, 203);
    assert_gone(w, CALM);
    world_free(w);
}

static void streams_above_the_bound_without_ack_end_the_connection(void **state)
{
    struct world *w = world_new(NULL, HTTP_H2);
    uint32_t id = 1;

    (void)state;
    fake_send_c(w->peer, PREFACE);
    frame(w->peer, SETTINGS, 0, 0, NULL, 0);
    for (; id < 2000 && !w->peer->shut; id += 2) {
        get(w->peer, id, "/slow");
        fake_run(w->fake);
    }
    assert_in_range(id / 2, 328, 331); /* 128 open, 200 refused */
    assert_int_equal(w->heads, 128);
    assert_gone(w, CALM);
    world_free(w);
}

static void continuation_flood_ends_the_connection(void **state)
{
    struct world *w = h2_world(NULL);
    struct buf b;

    (void)state;
    block_begin(&b, "GET", "/hello");
    frame(w->peer, HEADERS, END_STREAM, 1, buf_view(&b).p, b.len);
    buf_fini(&b);
    for (int i = 0; i < 20 && !w->peer->closed; i++) {
        frame(w->peer, CONTINUATION, 0, 1, "\x00\x01x\x01y", 5);
        fake_run(w->fake);
    }
    assert_true(w->peer->closed);
    assert_int_equal(w->heads, 0);
    world_free(w);
}

/* CVE-2026-49975: one byte a field once it is in the table. */
static void header_bombs_are_reset_and_on_repeat_ended(void **state)
{
    struct world *w = h2_world(NULL);
    uint32_t id = 1;
    struct seen seen;

    (void)state;
    for (; id < 200 && !w->peer->shut; id += 2) {
        struct buf b;

        block_begin(&b, "GET", "/hello");
        buf_append(&b, "\x40\x01x\x01y", 5); /* into the dynamic table, index 62 */
        for (int i = 0; i < 10000; i++) {
            buf_byte(&b, 0x80 | 62);
        }
        block_send(w->peer, &b, id, END_STREAM);
        fake_run(w->fake);
        if (id == 1) {
            look(w->peer, &seen);
            assert_int_equal(seen.count[RST_STREAM], 1);
            assert_int_equal(seen.count[GOAWAY], 0);
        }
    }
    assert_true(id < 30);
    assert_int_equal(w->heads, 0);
    assert_gone(w, CALM);
    world_free(w);
}

struct flood {
    const char *what;
    uint8_t type, flags, n;
    uint32_t id;
};

static void control_floods_of_a_reading_peer_end_the_connection(void **state)
{
    static const struct flood floods[] = {
        {"ping", PING, 0, 8, 0},
        {"settings", SETTINGS, 0, 0, 0},
        {"priority", PRIORITY, 0, 5, 1},
        {"unknown", 0xb, 0, 3, 0},
        {"empty data", DATA, 0, 0, 1},
        {"window update", WINDOW_UPDATE, 0, 4, 1},
        {"priority update", 0x10, 0, 6, 0},
    };
    static const uint8_t payload[8] = {0, 0, 0, 1};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(floods); i++) {
        struct world *w = h2_world(NULL);
        struct seen seen = {0};
        uint32_t sent = 0, goaways = 0;

        request(w->peer, 1, "POST", "/hold", 0);
        for (; sent < 20000 && !w->peer->shut && !w->peer->closed; sent++) {
            static const uint8_t dep[5] = {0, 0, 0, 3, 1};

            frame(w->peer, floods[i].type, floods[i].flags, floods[i].id,
                  floods[i].type == PRIORITY ? dep : payload, floods[i].n);
            if (sent % 100 == 0) {
                fake_run(w->fake);
                goaways += look(w->peer, &seen)->goaway_code == CALM;
            }
        }
        goaways += look(w->peer, &seen)->goaway_code == CALM;
        if (sent < 9900 || sent > 10200 || goaways != 1) {
            fail_msg("%s: %u frames, %u goaways", floods[i].what, sent, goaways);
        }
        assert_int_equal(w->whys[HTTP_CLOSE_LIMIT], 1);
        world_free(w);
    }
}

static void ping_flood_of_a_peer_that_does_not_read_is_bounded(void **state)
{
    static const uint8_t opaque[8];
    struct http_limits lim = http_limits_default;
    struct world *w;

    (void)state;
    lim.control_burst = lim.control_per_s = 1000000;
    w = h2_world(&lim);
    w->peer->tx_room = 100;
    for (int i = 0; i < 100000; i++) {
        frame(w->peer, PING, 0, 0, opaque, sizeof(opaque));
    }
    fake_run(w->fake);
    if (!w->peer->closed) { /* reading has stopped instead, and the write stall ends it */
        assert_true(w->peer->rx.len != 0);
        fake_advance(w->fake, 61 * SECOND);
    }
    assert_true(w->peer->closed);
    world_free(w);
}

static void settings_never_acknowledged_time_out(void **state)
{
    struct world *w = world_new(NULL, HTTP_H2);

    (void)state;
    fake_send_c(w->peer, PREFACE);
    frame(w->peer, SETTINGS, 0, 0, NULL, 0);
    get(w->peer, 1, "/slow");
    fake_advance(w->fake, 9 * SECOND);
    assert_false(w->peer->shut);
    fake_advance(w->fake, 2 * SECOND);
    assert_int_equal(w->whys[HTTP_CLOSE_LIMIT], 1);
    assert_gone(w, SETTINGS_TIMEOUT);
    world_free(w);
}

static void zero_window_is_a_write_stall(void **state)
{
    static const uint8_t window_zero[] = {0, 4, 0, 0, 0, 0};
    struct world *w = h2_world(NULL);
    struct seen seen;

    (void)state;
    frame(w->peer, SETTINGS, 0, 0, window_zero, sizeof(window_zero));
    get(w->peer, 1, "/hello");
    fake_advance(w->fake, 59 * SECOND);
    assert_int_equal(w->closes, 0);
    for (int i = 0; i < 2; i++) { /* a byte now and then is no progress */
        fake_advance(w->fake, SECOND);
    }
    world_expect(w, "head GET /hello;close 3;");
    look(w->peer, &seen);
    assert_int_equal(seen.count[RST_STREAM], 1);
    assert_int_equal(seen.count[GOAWAY], 0);
    world_free(w);
}

static void silent_and_idle_connections_end(void **state)
{
    struct world *w = world_new(NULL, HTTP_H1_H2);

    (void)state;
    fake_send_c(w->peer, "PRI * HTTP/2.0\r\n\r\nS"); /* most of a preface */
    fake_advance(w->fake, 11 * SECOND);
    assert_true(w->peer->closed);
    world_free(w);
    w = h2_world(NULL);
    get(w->peer, 1, "/hello");
    fake_advance(w->fake, 179 * SECOND);
    assert_false(w->peer->shut);
    fake_advance(w->fake, 2 * SECOND);
    assert_gone(w, NO_ERROR);
    world_free(w);
}

static void header_block_that_never_ends_times_out(void **state)
{
    struct world *w = h2_world(NULL);

    (void)state;
    frame(w->peer, HEADERS, END_STREAM, 1, "\x82", 1);
    fake_advance(w->fake, 9 * SECOND);
    assert_false(w->peer->shut);
    fake_advance(w->fake, 2 * SECOND);
    assert_gone(w, CALM);
    world_free(w);
}

static void body_that_stops_is_reset_alone(void **state)
{
    struct world *w = h2_world(NULL);
    struct seen seen;

    (void)state;
    request(w->peer, 1, "POST", "/whole", 0);
    frame(w->peer, DATA, 0, 1, "x", 1);
    fake_advance(w->fake, 31 * SECOND);
    world_expect(w, "head POST /whole;body 1;close 3;");
    assert_int_equal(look(w->peer, &seen)->count[GOAWAY], 0);
    world_free(w);
}

static void lost_connection_closes_every_stream_once(void **state)
{
    struct world *w = h2_world(NULL);

    (void)state;
    for (uint32_t id = 1; id < 200; id += 2) {
        get(w->peer, id, "/slow");
    }
    fake_run(w->fake);
    assert_int_equal(w->heads, 100);
    w->peer->peer_shut = true;
    fake_run(w->fake);
    assert_int_equal(w->whys[HTTP_CLOSE_PEER], 100);
    assert_int_equal(world_stats(w).streams, 0);
    world_free(w);
}

/* Answers to a peer whose socket takes nothing: memory is bounded by what reading allows. */
static void answers_that_cannot_leave_stop_the_reading(void **state)
{
    struct world *w = h2_world(NULL);
    uint32_t id = 1;

    (void)state;
    w->peer->tx_room = 0;
    while (id < 40000 && (w->peer->events & ENV_READ) != 0) {
        get(w->peer, id, "/hello");
        id += 2;
        fake_run(w->fake);
    }
    assert_true(id < 40000);
    assert_int_equal(w->peer->events & ENV_READ, 0);
    assert_true(world_stats(w).streams <= 2 * http_limits_default.streams_max);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_requests_never_reach_the_application),
        cmocka_unit_test(too_many_or_too_large_fields_get_431),
        cmocka_unit_test(trailers_count_against_the_bounds),
        cmocka_unit_test(rapid_reset_ends_the_connection),
        cmocka_unit_test(honest_cancels_do_not),
        cmocka_unit_test(made_you_reset_by_window_overflow_ends_the_connection),
        cmocka_unit_test(made_you_reset_by_content_length_ends_the_connection),
        cmocka_unit_test(streams_above_the_bound_without_ack_end_the_connection),
        cmocka_unit_test(continuation_flood_ends_the_connection),
        cmocka_unit_test(header_bombs_are_reset_and_on_repeat_ended),
        cmocka_unit_test(control_floods_of_a_reading_peer_end_the_connection),
        cmocka_unit_test(ping_flood_of_a_peer_that_does_not_read_is_bounded),
        cmocka_unit_test(settings_never_acknowledged_time_out),
        cmocka_unit_test(zero_window_is_a_write_stall),
        cmocka_unit_test(silent_and_idle_connections_end),
        cmocka_unit_test(header_block_that_never_ends_times_out),
        cmocka_unit_test(body_that_stops_is_reset_alone),
        cmocka_unit_test(lost_connection_closes_every_stream_once),
        cmocka_unit_test(answers_that_cannot_leave_stop_the_reading),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
