/* test_server_h2.c - the server's HTTP/2 side against hand-made frames: what it serves, and one case
 * a row of the attack table (floods, bombs, stalls). No HTTP/2 library on this side. */
#include "server_world.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#define SECOND 1000000u
#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

enum { DATA = 0, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4 };
enum { NO_ERROR = 0, PROTOCOL_ERROR = 1, INTERNAL_ERROR = 2, SETTINGS_TIMEOUT = 4, CANCEL = 8, CALM = 11 };

static void frame(struct env_sock *s, uint8_t type, uint8_t flags, uint32_t id, const void *p, size_t n)
{
    uint8_t head[9] = {(uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n, type, flags,
                       (uint8_t)(id >> 24), (uint8_t)(id >> 16), (uint8_t)(id >> 8), (uint8_t)id};

    fake_send(s, head, sizeof(head));
    if (n != 0) {
        fake_send(s, p, n);
    }
}

static void u32_frame(struct env_sock *s, uint8_t type, uint32_t id, uint32_t v)
{
    uint8_t p[4] = {(uint8_t)(v >> 24), (uint8_t)(v >> 16), (uint8_t)(v >> 8), (uint8_t)v};

    frame(s, type, 0, id, p, sizeof(p));
}

/* A literal field without indexing or Huffman; strings under 127 bytes. */
static void field(struct buf *b, const char *name, const char *value)
{
    buf_byte(b, 0x00);
    buf_byte(b, (uint8_t)strlen(name));
    buf_c(b, name);
    buf_byte(b, (uint8_t)strlen(value));
    buf_c(b, value);
}

static void block_begin(struct buf *b, const char *method, const char *path)
{
    buf_init(b, 1 << 20);
    field(b, ":method", method);
    field(b, ":scheme", "http");
    field(b, ":path", path);
    field(b, ":authority", "a");
}

static void block_send(struct env_sock *s, struct buf *b, uint32_t id, uint8_t flags)
{
    frame(s, HEADERS, flags | END_HEADERS, id, buf_view(b).p, b->len);
    buf_fini(b);
}

static void request(struct env_sock *s, uint32_t id, const char *method, const char *path, uint8_t flags)
{
    struct buf b;

    block_begin(&b, method, path);
    block_send(s, &b, id, flags);
}

static void get(struct env_sock *s, uint32_t id, const char *path)
{
    request(s, id, "GET", path, END_STREAM);
}

/* What the server wrote, frame by frame. */
struct seen {
    uint32_t count[16];
    uint32_t goaway_code; /* of the last one */
    uint32_t goaway_last;
    uint32_t rst_code, rst_id;
    uint32_t data_bytes, ends;
    char data[4096]; /* DATA payloads, joined */
};

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static struct seen *look(struct env_sock *s, struct seen *out)
{
    *out = (struct seen){.goaway_code = UINT32_MAX, .rst_code = UINT32_MAX};
    while (s->tx.len >= 9) {
        const uint8_t *p = (const uint8_t *)buf_view(&s->tx).p;
        size_t n = (size_t)p[0] << 16 | (size_t)p[1] << 8 | p[2];

        if (s->tx.len < 9 + n) {
            break;
        }
        out->count[p[3] & 15]++;
        out->ends += p[3] <= HEADERS && (p[4] & END_STREAM) != 0;
        if (p[3] == DATA) {
            size_t keep = size_min(n, sizeof(out->data) - 1 - strlen(out->data));

            memcpy(out->data + strlen(out->data), p + 9, keep);
            out->data_bytes += (uint32_t)n;
        } else if (p[3] == RST_STREAM) {
            out->rst_id = be32(p + 5);
            out->rst_code = be32(p + 9);
        } else if (p[3] == GOAWAY) {
            out->goaway_last = be32(p + 9);
            out->goaway_code = be32(p + 13);
        }
        buf_consume(&s->tx, 9 + n);
    }
    return out;
}

/* A connection past its greetings. */
static struct world *h2_world(const struct http_limits *lim)
{
    struct world *w = world_new(lim, HTTP_H1_H2);
    struct seen seen;

    fake_send_c(w->peer, PREFACE);
    frame(w->peer, SETTINGS, 0, 0, NULL, 0);
    frame(w->peer, SETTINGS, ACK, 0, NULL, 0);
    fake_run(w->fake);
    look(w->peer, &seen);
    assert_int_equal(seen.count[SETTINGS], 2);
    return w;
}

static void assert_gone(struct world *w, uint32_t code)
{
    struct seen seen;

    look(w->peer, &seen);
    assert_int_equal(seen.count[GOAWAY], 1);
    assert_int_equal(seen.goaway_code, code);
    assert_true(w->peer->shut || w->peer->closed);
    fake_advance(w->fake, 4 * SECOND);
    assert_true(w->peer->closed);
}

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

/* ---- malformed requests ---- */

struct shape {
    const char *what, *name, *value;
};

static void malformed_requests_never_reach_the_application(void **state)
{
    static const struct shape shapes[] = {
        {"userinfo", ":authority", "user@a"}, {"fragment", ":path", "/hello#x"},
        {"other host", "host", "b"},          {"control", "x", "a\x01" "b"},
        {"line feed", "x", "a\nb"},           {"upper case", "X", "y"},
        {"connection", "connection", "close"}, {"te", "transfer-encoding", "chunked"},
        {"space", ":path", "/a b"},           {"utf-8 path", ":path", "/\xc3\xa9"},
        {"absolute", ":path", "http://a/"},   {"colon", "x:y", "z"},
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
        {"ping", PING, 0, 8, 0},          {"settings", SETTINGS, 0, 0, 0},
        {"priority", PRIORITY, 0, 5, 1},  {"unknown", 0xb, 0, 3, 0},
        {"empty data", DATA, 0, 0, 1},    {"window update", WINDOW_UPDATE, 0, 4, 1},
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
        cmocka_unit_test(drain_says_goaway_twice_and_lets_streams_end),
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
