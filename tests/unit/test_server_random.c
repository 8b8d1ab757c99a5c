/* test_server_random.c - seeded peers, applications and sockets that do anything at any time.
 *
 * No answer is checked, only what must hold for all of them: no bad memory access (run under the
 * sanitizers), exactly one on_close a stream, counts that return to zero, bounded buffers. */
#include "net_fake.h"
#include "base/net/server.h"

#include <stdarg.h>
#include <stdio.h>
#include <setjmp.h>
#include <cmocka.h>

#define SEEDS 150
#define STEPS 400
#define PEERS 6
#define STREAMS_MAX 4096

struct dice {
    uint64_t x;
};

/* xorshift64*: the same seed, the same run. */
static uint32_t roll(struct dice *d, uint32_t n)
{
    d->x ^= d->x >> 12;
    d->x ^= d->x << 25;
    d->x ^= d->x >> 27;
    return (uint32_t)((d->x * 0x2545f4914f6cdd1du) >> 33) % n;
}

struct random_world {
    struct dice dice;
    struct fake *fake;
    struct http_server *server;
    struct http_stream *open[STREAMS_MAX];
    uint64_t owed[STREAMS_MAX]; /* credit */
    bool responded[STREAMS_MAX], ended[STREAMS_MAX];
    uint32_t n_open, heads, closes;
    struct env_sock *peers[PEERS];
    uint32_t ids[PEERS]; /* next h2 stream */
    bool h2[PEERS];
};

static uint32_t index_of(struct random_world *w, struct http_stream *s)
{
    for (uint32_t i = 0; i < w->n_open; i++) {
        if (w->open[i] == s) {
            return i;
        }
    }
    fail_msg("a callback for a stream that is not open");
    return 0;
}

/* Something that an application may do with stream i now. */
static void act(struct random_world *w, uint32_t i)
{
    static char bytes[200000];
    struct http_stream *s = w->open[i];
    struct http_field f = {STR("x-field"), STR("value")};

    switch (roll(&w->dice, 10)) {
    case 0:
    case 1:
        if (!w->responded[i]) {
            w->responded[i] = true;
            http_stream_respond(s, 200 + roll(&w->dice, 5), &f, 1,
                                roll(&w->dice, 3) == 0 ? (int64_t)roll(&w->dice, 2000) : -1);
        }
        break;
    case 2:
    case 3:
    case 4:
        if (w->responded[i] && !w->ended[i]) {
            http_stream_write(s, bytes, roll(&w->dice, roll(&w->dice, 20) == 0 ? 200000 : 500));
        }
        break;
    case 5:
        if (w->responded[i]) {
            w->ended[i] = true;
            http_stream_end(s);
        }
        break;
    case 6:
        http_stream_continue(s);
        break;
    case 7:
        if (roll(&w->dice, 5) == 0) {
            w->ended[i] = w->responded[i] = true;
            http_stream_abort(s);
        }
        break;
    case 8:
        if (roll(&w->dice, 10) == 0) {
            http_stream_close_connection(s);
        }
        break;
    default:
        if (w->owed[i] != 0) {
            uint64_t n = 1 + roll(&w->dice, (uint32_t)w->owed[i]);

            w->owed[i] -= n;
            http_stream_credit(s, n);
        }
        break;
    }
}

static void act_any(struct random_world *w)
{
    if (w->n_open != 0) {
        act(w, roll(&w->dice, w->n_open));
    }
}

static void on_head(void *ctx, struct http_stream *s, const struct http_head *head)
{
    struct random_world *w = ctx;

    assert_true(head->path.n > 0 && head->path.p[0] == '/');
    assert_true(w->n_open < STREAMS_MAX);
    w->open[w->n_open] = s;
    w->owed[w->n_open] = 0;
    w->responded[w->n_open] = w->ended[w->n_open] = false;
    w->n_open++;
    w->heads++;
    act(w, w->n_open - 1);
    act_any(w);
}

static void on_body(void *ctx, struct http_stream *s, const void *p, size_t n)
{
    struct random_world *w = ctx;

    (void)p;
    w->owed[index_of(w, s)] += n;
    act_any(w);
}

static void on_event(void *ctx, struct http_stream *s)
{
    struct random_world *w = ctx;

    act(w, index_of(w, s));
    act_any(w);
}

static void on_close(void *ctx, struct http_stream *s, enum http_close why)
{
    struct random_world *w = ctx;
    uint32_t i = index_of(w, s);

    assert_in_range(why, HTTP_CLOSE_DONE, HTTP_CLOSE_SHUTDOWN);
    act_any(w); /* maybe on s itself: it is still there */
    w->n_open--;
    w->open[i] = w->open[w->n_open];
    w->owed[i] = w->owed[w->n_open];
    w->responded[i] = w->responded[w->n_open];
    w->ended[i] = w->ended[w->n_open];
    w->closes++;
}

/* ---- peers ---- */

static void h2_frame(struct env_sock *s, uint8_t type, uint8_t flags, uint32_t id, const void *p,
                     size_t n)
{
    uint8_t head[9] = {
        (uint8_t)(n >> 16),  (uint8_t)(n >> 8),   (uint8_t)n,         type,       flags,
        (uint8_t)(id >> 24), (uint8_t)(id >> 16), (uint8_t)(id >> 8), (uint8_t)id};

    fake_send(s, head, sizeof(head));
    fake_send(s, p, n);
}

static void h2_step(struct random_world *w, uint32_t i)
{
    static const uint8_t get[] = {0x82, 0x86, 0x84, 0x41, 1, 'a'};  /* GET / http a */
    static const uint8_t post[] = {0x83, 0x86, 0x84, 0x41, 1, 'a'}; /* POST */
    static const char zeros[20000];
    struct env_sock *s = w->peers[i];
    uint32_t some = w->ids[i] > 1 ? 1 + 2 * roll(&w->dice, w->ids[i] / 2) : 1;
    uint8_t v[8] = {0, 0, (uint8_t)roll(&w->dice, 256), (uint8_t)roll(&w->dice, 256)};

    switch (roll(&w->dice, 12)) {
    case 0:
    case 1:
        h2_frame(s, 1, 5, w->ids[i], get, sizeof(get));
        w->ids[i] += 2;
        break;
    case 2:
    case 3:
        h2_frame(s, 1, 4, w->ids[i], post, sizeof(post));
        w->ids[i] += 2;
        break;
    case 4:
    case 5:
        h2_frame(s, 0, roll(&w->dice, 4) == 0, some, zeros, roll(&w->dice, 16384));
        break;
    case 6:
        h2_frame(s, 3, 0, some, v, 4);
        break;
    case 7:
    case 8:
        h2_frame(s, 8, 0, roll(&w->dice, 2) == 0 ? 0 : some, v, 4);
        break;
    case 9:
        h2_frame(s, 6, 0, 0, v, 8);
        break;
    case 10:
        h2_frame(s, 4, 1, 0, v, 0);
        break;
    default:
        if (roll(&w->dice, 30) == 0) { /* anything */
            h2_frame(s, (uint8_t)roll(&w->dice, 12), (uint8_t)roll(&w->dice, 64), some, zeros,
                     roll(&w->dice, 40));
        }
        break;
    }
}

static void h1_step(struct random_world *w, uint32_t i)
{
    static const char *const pieces[] = {
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789",
        "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n",
        "abc",
        "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n",
        "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a\r\n\r\n",
    };
    const char *piece = pieces[roll(&w->dice, ARRAY_LEN(pieces))];
    size_t n = strlen(piece);

    fake_send(w->peers[i], piece, roll(&w->dice, 12) == 0 ? roll(&w->dice, (uint32_t)n) : n);
}

static void peer_step(struct random_world *w)
{
    uint32_t i = roll(&w->dice, PEERS);
    struct env_sock *s = w->peers[i];

    if (s == NULL || s->closed) {
        if (w->fake->n_socks == FAKE_SOCKS) {
            return;
        }
        w->peers[i] = s = fake_connect(w->fake);
        w->ids[i] = 1;
        w->h2[i] = roll(&w->dice, 3) != 0;
        if (w->h2[i]) {
            fake_send_c(s, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
            h2_frame(s, 4, 0, 0, "", 0);
        }
        return;
    }
    switch (roll(&w->dice, 40)) {
    case 0:
        s->peer_shut = true;
        break;
    case 1:
        s->tx_room = roll(&w->dice, 30000);
        break;
    case 2:
        s->tx_room = SIZE_MAX;
        break;
    default:
        if (w->h2[i]) {
            h2_step(w, i);
        } else {
            h1_step(w, i);
        }
        break;
    }
}

static void check_bounds(const struct random_world *w)
{
    struct http_server_stats stats;

    http_server_stats(w->server, &stats);
    assert_true(stats.streams >= w->n_open);
    assert_int_equal(w->heads, w->closes + w->n_open);
    assert_true(stats.connections <= FAKE_SOCKS);
}

static void run_seed(uint64_t seed)
{
    struct random_world *w = mem_new(sizeof(*w));
    struct http_app app = {w, on_head, on_body, on_event, on_event, on_close};
    struct http_limits lim = http_limits_default;
    struct http_server_stats stats;

    w->dice.x = seed * 0x9e3779b97f4a7c15u + 1;
    w->fake = fake_new();
    lim.streams_max = 20;
    lim.write_buffer_max = 10000 + roll(&w->dice, 100000);
    lim.stream_buffer_high = 1000;
    lim.stream_buffer_max = 150000;
    w->server = http_server_new(&w->fake->env, NULL, &app, &lim);
    http_server_listen(w->server, fake_listener(w->fake), NULL, HTTP_H1_H2);
    for (int step = 0; step < STEPS; step++) {
        peer_step(w);
        if (roll(&w->dice, 3) == 0) {
            w->fake->max_read = roll(&w->dice, 4) == 0 ? 1 + roll(&w->dice, 50) : 0;
            fake_run(w->fake);
        }
        for (uint32_t n = roll(&w->dice, 4); n != 0; n--) {
            act_any(w);
        }
        if (roll(&w->dice, 50) == 0) {
            fake_advance(w->fake, roll(&w->dice, 40000000));
        }
        check_bounds(w);
    }
    if (seed % 3 == 0) { /* either everything comes to rest, or the server is freed in the middle */
        do {             /* pipelined requests may follow */
            for (uint32_t i = 0; i < w->n_open; i++) {
                w->ended[i] = w->responded[i] = true;
                http_stream_abort(w->open[i]);
            }
            fake_advance(w->fake, 4000000000u);
        } while (w->n_open != 0);
        http_server_stats(w->server, &stats);
        assert_int_equal(stats.connections, 0);
        assert_int_equal(stats.streams, 0);
        assert_int_equal(stats.buffered_bytes, 0);
    }
    http_server_free(w->server);
    assert_int_equal(w->heads, w->closes);
    fake_free(w->fake);
    mem_free(w);
}

static void any_peer_and_any_application_keep_the_invariants(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        run_seed(seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_peer_and_any_application_keep_the_invariants),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
