/* test_client.c - the HTTP/1.1 client against a scripted socket server on the same loop. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/net/client.h"
#include "base/net/os.h"

#define TURNS_MAX 5000
#define TURN_US 20000
#define PEERS_MAX 8
#define OK2 "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"

/* One accepted connection: all that came, and its socket to answer by hand. */
struct peer {
    struct world *world;
    struct env_sock *sock;
    struct buf got;
    bool ended; /* the client closed or reset */
};

struct world {
    struct env *env;
    struct env_sock *listener;
    struct env_addr at;
    struct peer peers[PEERS_MAX];
    int n_peers;
    struct http_client *client;
    struct http_origin *origin;
};

/* One call's story. */
struct story {
    struct http_call *call;
    struct world *world;
    int heads, ends, fails;
    unsigned status;
    enum http_fail why;
    bool sent;
    struct buf body;
    char type[32];
    bool pause_on_head, pause_on_body, cancel_on_head, cancel_on_body;
    struct story *then; /* started inside on_end */
};

static void peer_ready(void *ctx, unsigned events)
{
    struct peer *p = ctx;
    char bytes[65536];
    ssize_t n = env_read(p->world->env, p->sock, bytes, sizeof(bytes));

    (void)events;
    if (n > 0) {
        buf_append(&p->got, bytes, (size_t)n);
    } else if (n != -EAGAIN) {
        p->ended = true;
        env_watch(p->world->env, p->sock, 0, peer_ready, p);
    }
}

static void world_accept(void *ctx, unsigned events)
{
    struct world *w = ctx;
    struct env_sock *s = env_accept(w->env, w->listener, NULL);
    struct peer *p = &w->peers[w->n_peers];

    (void)events;
    if (s == NULL) {
        return;
    }
    assert_true(w->n_peers < PEERS_MAX);
    w->n_peers++;
    *p = (struct peer){.world = w, .sock = s};
    buf_init(&p->got, 1 << 26);
    env_watch(w->env, s, ENV_READ, peer_ready, p);
}

/* options: what a test wants different; the address is ours. */
static void world_make(struct world *w, struct http_origin_options o)
{
    struct err e = {.code = ERR_NONE};

    memset(w, 0, sizeof(*w));
    w->env = os_env_new(NULL, &e);
    assert_non_null(w->env);
    assert_true(os_addr_parse(STR("127.0.0.1:0"), &w->at, &e));
    w->listener = env_listen(w->env, &w->at, false, &e);
    assert_non_null(w->listener);
    assert_true(w->env->ops->local_addr(w->env, w->listener, &w->at));
    env_watch(w->env, w->listener, ENV_READ, world_accept, w);
    w->client = http_client_new(w->env);
    o.addr = w->at;
    o.host = STR("worker:9001");
    w->origin = http_origin_new(w->client, &o);
}

static void peer_close(struct peer *p)
{
    if (p->sock != NULL) {
        env_close(p->world->env, p->sock);
        p->sock = NULL;
    }
}

static void world_drop(struct world *w)
{
    http_client_free(w->client);
    for (int i = 0; i < w->n_peers; i++) {
        peer_close(&w->peers[i]);
        buf_fini(&w->peers[i].got);
    }
    if (w->listener != NULL) {
        env_close(w->env, w->listener);
    }
    os_env_free(w->env);
}

/* Turns the loop until cond holds; fails rather than hangs. */
#define WAIT(w, cond)                                                                              \
    do {                                                                                           \
        for (int turns = 0; turns < TURNS_MAX && !(cond); turns++) {                               \
            os_turn((w)->env, TURN_US);                                                            \
        }                                                                                          \
        assert_true(cond);                                                                         \
    } while (0)

static void turns(struct world *w, int n)
{
    for (int i = 0; i < n; i++) {
        os_turn(w->env, 1000);
    }
}

static void say_bytes(struct peer *p, struct str s)
{
    struct iovec v = {(void *)(uintptr_t)s.p, s.n};

    assert_int_equal(env_writev(p->world->env, p->sock, &v, 1), (ssize_t)s.n);
}

static void say(struct peer *p, const char *z)
{
    say_bytes(p, str_c(z));
}

static void on_head(void *user, unsigned status, const struct http_fields *fields)
{
    struct story *s = user;

    s->heads++;
    s->status = status;
    str_copy(http_field(fields, STR("content-type")), s->type, sizeof(s->type));
    if (s->pause_on_head) {
        http_call_pause(s->call);
    }
    if (s->cancel_on_head) {
        http_call_cancel(s->call);
    }
}

static void on_body(void *user, const void *p, size_t n)
{
    struct story *s = user;

    assert_int_equal(s->ends + s->fails, 0);
    assert_true(n > 0);
    buf_append(&s->body, p, n);
    if (s->pause_on_body) {
        http_call_pause(s->call);
    }
    if (s->cancel_on_body) {
        http_call_cancel(s->call);
    }
}

static void story_start(struct story *s, struct world *w, enum http_method method, struct str body);

static void on_end(void *user)
{
    struct story *s = user;

    s->ends++;
    if (s->then != NULL) {
        story_start(s->then, s->world, HTTP_GET, STR(""));
    }
}

static void on_fail(void *user, enum http_fail why, bool sent)
{
    struct story *s = user;

    s->fails++;
    s->why = why;
    s->sent = sent;
}

static const struct http_call_events events = {on_head, on_body, on_end, on_fail};

/* Bodies of odd length are handed over, the others copied: both ways are the same on the wire. */
static void story_start(struct story *s, struct world *w, enum http_method method, struct str body)
{
    static const struct http_field fields[] = {{{"accept", 6}, {"*/*", 3}}};
    struct http_call_request r = {
        .method = method, .target = STR("/v1/x?y=1"), .fields = fields, .n_fields = 1};
    int before = s->heads + s->ends + s->fails;
    struct buf taken;

    buf_init(&taken, 1 << 26);
    if (body.n % 2 == 1) {
        buf_str(&taken, body);
        r.taken = &taken;
    } else {
        r.body = body;
    }
    s->world = w;
    buf_init(&s->body, 1 << 26);
    s->call = http_call_start(w->origin, &r, &events, s);
    assert_int_equal(s->heads + s->ends + s->fails, before); /* no callback inside start */
    assert_int_equal(taken.len, 0);
    buf_fini(&taken);
}

static void story_drop(struct story *s)
{
    buf_fini(&s->body);
}

static void assert_body(const struct story *s, const char *wanted)
{
    if (!str_eq(buf_view(&s->body), str_c(wanted))) {
        fail_msg("body \"" STR_FMT "\", wanted \"%s\"", STR_ARG(buf_view(&s->body)), wanted);
    }
}

/* A GET that has reached the n-th peer whole. */
static struct peer *get_at_peer(struct story *s, struct world *w, int n)
{
    story_start(s, w, HTTP_GET, STR(""));
    WAIT(w, w->n_peers > n && str_ends(buf_view(&w->peers[n].got), STR("\r\n\r\n")));
    return &w->peers[n];
}

static void a_request_goes_out_as_written_and_its_answer_comes_back(void **state)
{
    struct world w;
    struct story s = {0};

    (void)state;
    world_make(&w, (struct http_origin_options){0});
    story_start(&s, &w, HTTP_POST, STR("{\"a\":1}"));
    WAIT(&w, w.n_peers == 1 && str_ends(buf_view(&w.peers[0].got), STR("{\"a\":1}")));
    assert_true(str_eq(buf_view(&w.peers[0].got),
                       STR("POST /v1/x?y=1 HTTP/1.1\r\nhost: worker:9001\r\naccept: */*\r\n"
                           "content-length: 7\r\n\r\n{\"a\":1}")));
    say(&w.peers[0], "HTTP/1.1 201 Made\r\nContent-Type: text/x\r\nContent-Length: 2\r\n\r\nhi");
    WAIT(&w, s.ends == 1);
    assert_int_equal(s.status, 201);
    assert_string_equal(s.type, "text/x");
    assert_body(&s, "hi");
    assert_int_equal(http_origin_connections(w.origin), 1);
    story_drop(&s);
    world_drop(&w);
}

struct shape {
    const char *name;
    enum http_method method;
    struct str answer;
    bool close; /* the peer closes behind it */
    const char *body;
    bool ends;
    enum http_fail why;
    uint32_t kept; /* connections afterwards */
};

static const struct shape shapes[] = {
    {"length", HTTP_GET, {OK2 "ab", sizeof(OK2 "ab") - 1}, false, "ab", true, 0, 1},
#define SHAPE(name, method, text, close, body, ends, why, kept)                                    \
    {                                                                                              \
        name, method, STR(text), close, body, ends, why, kept                                      \
    }
    SHAPE("length 0", HTTP_GET, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false, "", true, 0,
          1),
    SHAPE("chunked", HTTP_GET,
          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x\r\nc\r\n0\r\nT: "
          "u\r\n\r\n",
          false, "abc", true, 0, 1),
    SHAPE("until close", HTTP_GET, "HTTP/1.1 200 OK\r\n\r\nabc", true, "abc", true, 0, 0),
    SHAPE("connection: close", HTTP_GET,
          "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na", false, "a", true, 0,
          0),
    SHAPE("HEAD", HTTP_HEAD, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", false, "", true, 0, 1),
    SHAPE("204", HTTP_GET, "HTTP/1.1 204 None\r\n\r\n", false, "", true, 0, 1),
    SHAPE("1xx before", HTTP_GET,
          "HTTP/1.1 100 C\r\n\r\nHTTP/1.1 103 E\r\nLink: x\r\n\r\n" OK2 "ab", false, "ab", true, 0,
          1),
    SHAPE("unread bytes behind", HTTP_GET, OK2 "abHTTP/1.1 200 OK\r\n", false, "ab", true, 0, 0),
    SHAPE("bytes behind HEAD", HTTP_HEAD, OK2 "ab", false, "", true, 0, 0),
    SHAPE("cut head", HTTP_GET, "HTTP/1.1 200 OK\r\nContent-", true, "", false, HTTP_FAIL_HEAD, 0),
    SHAPE("no answer", HTTP_GET, "", true, "", false, HTTP_FAIL_HEAD, 0),
    SHAPE("cut length", HTTP_GET, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", true, "abc",
          false, HTTP_FAIL_BODY, 0),
    SHAPE("cut chunk", HTTP_GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
          true, "abc", false, HTTP_FAIL_BODY, 0),
    SHAPE("no last chunk", HTTP_GET,
          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", true, "abc", false,
          HTTP_FAIL_BODY, 0),
    SHAPE("last chunk without its end", HTTP_GET,
          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n", true, "abc",
          false, HTTP_FAIL_BODY, 0),
    SHAPE("bad chunk", HTTP_GET,
          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nzz\r\n", false, "a",
          false, HTTP_FAIL_PROTOCOL, 0),
    SHAPE("length and chunked", HTTP_GET,
          "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", false, "",
          false, HTTP_FAIL_PROTOCOL, 0),
    SHAPE("bare LF", HTTP_GET, "HTTP/1.1 200 OK\nContent-Length: 0\n\n", false, "", false,
          HTTP_FAIL_PROTOCOL, 0),
    SHAPE("101", HTTP_GET, "HTTP/1.1 101 Up\r\n\r\n", false, "", false, HTTP_FAIL_PROTOCOL, 0),
    SHAPE("not HTTP", HTTP_GET, "SSH-2.0-x\r\n\r\n", false, "", false, HTTP_FAIL_PROTOCOL, 0),
    SHAPE("nine 1xx", HTTP_GET,
          "HTTP/1.1 100 C\r\n\r\nHTTP/1.1 100 C\r\n\r\nHTTP/1.1 100 C\r\n\r\nHTTP/1.1 100 C\r\n\r\n"
          "HTTP/1.1 100 C\r\n\r\nHTTP/1.1 100 C\r\n\r\nHTTP/1.1 100 C\r\n\r\nHTTP/1.1 100 C\r\n\r\n"
          "HTTP/1.1 100 C\r\n\r\n" OK2 "ab",
          false, "", false, HTTP_FAIL_PROTOCOL, 0),
};

static void shape_runs(const struct shape *c, bool slowly)
{
    struct world w;
    struct story s = {0};
    struct peer *p;

    world_make(&w, (struct http_origin_options){0});
    story_start(&s, &w, c->method, STR(""));
    WAIT(&w, w.n_peers == 1 && w.peers[0].got.len > 0);
    p = &w.peers[0];
    for (size_t i = 0; slowly && i < c->answer.n; i++) {
        struct iovec v = {(void *)(uintptr_t)(c->answer.p + i), 1};

        if (env_writev(w.env, p->sock, &v, 1) < 0) {
            break; /* refused already */
        }
        os_turn(w.env, 0);
    }
    if (!slowly && c->answer.n != 0) {
        say_bytes(p, c->answer);
    }
    if (c->close) {
        turns(&w, 2);
        peer_close(p);
    }
    WAIT(&w, s.ends + s.fails == 1);
    turns(&w, 3);
    if (s.ends != c->ends || (!c->ends && (s.why != c->why || !s.sent))) {
        fail_msg("%s: ended %d, failed %d with %d, sent %d", c->name, s.ends, s.fails, s.why,
                 s.sent);
    }
    if (!slowly || c->kept == 1) {
        assert_int_equal(http_origin_connections(w.origin), c->kept);
    }
    assert_body(&s, c->body);
    story_drop(&s);
    world_drop(&w);
}

static void answers_of_every_shape_end_or_fail_as_they_should(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        shape_runs(&shapes[i], false);
        shape_runs(&shapes[i], true);
    }
}

static void a_kept_connection_carries_the_next_call(void **state)
{
    struct world w;
    struct story a = {0}, b = {0};

    (void)state;
    world_make(&w, (struct http_origin_options){0});
    a.then = &b; /* also from inside on_end */
    say(get_at_peer(&a, &w, 0), OK2 "ab");
    WAIT(&w, a.ends == 1);
    buf_reset(&w.peers[0].got);
    WAIT(&w, w.peers[0].got.len != 0);
    say(&w.peers[0], OK2 "cd");
    WAIT(&w, b.ends == 1);
    assert_body(&b, "cd");
    assert_int_equal(w.n_peers, 1);
    story_drop(&a);
    story_drop(&b);
    world_drop(&w);
}

static void the_most_recently_used_connection_is_reused_first(void **state)
{
    struct world w;
    struct story a = {0}, b = {0}, c = {0};

    (void)state;
    world_make(&w, (struct http_origin_options){0});
    get_at_peer(&a, &w, 0);
    get_at_peer(&b, &w, 1);
    say(&w.peers[1], OK2 "bb");
    WAIT(&w, b.ends == 1);
    say(&w.peers[0], OK2 "aa");
    WAIT(&w, a.ends == 1);
    buf_reset(&w.peers[0].got);
    get_at_peer(&c, &w, 0);
    assert_int_equal(w.n_peers, 2);
    story_drop(&a);
    story_drop(&b);
    story_drop(&c);
    world_drop(&w);
}

static void a_connection_closed_while_idle_is_not_reused(void **state)
{
    struct world w;
    struct story a = {0}, b = {0};

    (void)state;
    world_make(&w, (struct http_origin_options){0});
    say(get_at_peer(&a, &w, 0), OK2 "ab");
    WAIT(&w, a.ends == 1);
    peer_close(&w.peers[0]); /* not seen by a turn: the probe finds it */
    say(get_at_peer(&b, &w, 1), OK2 "cd");
    WAIT(&w, b.ends == 1);
    assert_int_equal(http_origin_connections(w.origin), 1);
    story_drop(&a);
    story_drop(&b);
    world_drop(&w);
}

static void idle_bytes_that_nobody_asked_for_end_the_connection(void **state)
{
    struct world w;
    struct story a = {0};

    (void)state;
    world_make(&w, (struct http_origin_options){0});
    say(get_at_peer(&a, &w, 0), OK2 "ab");
    WAIT(&w, a.ends == 1);
    say(&w.peers[0], "HTTP/1.1 200 OK\r\n\r\n");
    WAIT(&w, http_origin_connections(w.origin) == 0);
    story_drop(&a);
    world_drop(&w);
}

static void a_kept_connection_lost_before_any_answer_fails_as_send(void **state)
{
    struct world w;
    struct story a = {0}, b = {0};

    (void)state;
    world_make(&w, (struct http_origin_options){0});
    say(get_at_peer(&a, &w, 0), OK2 "ab");
    WAIT(&w, a.ends == 1);
    buf_reset(&w.peers[0].got);
    get_at_peer(&b, &w, 0);
    peer_close(&w.peers[0]);
    WAIT(&w, b.fails == 1);
    assert_int_equal(b.why, HTTP_FAIL_SEND);
    assert_true(b.sent);
    story_drop(&a);
    story_drop(&b);
    world_drop(&w);
}

static void a_refused_connection_fails_as_connect_with_nothing_sent(void **state)
{
    struct world w;
    struct story s = {0};

    (void)state;
    world_make(&w, (struct http_origin_options){0});
    env_close(w.env, w.listener);
    w.listener = NULL;
    story_start(&s, &w, HTTP_POST, STR("x"));
    WAIT(&w, s.fails == 1);
    assert_int_equal(s.why, HTTP_FAIL_CONNECT);
    assert_false(s.sent);
    assert_int_equal(http_origin_connections(w.origin), 0);
    story_drop(&s);
    world_drop(&w);
}

/* 32 MiB of 'x', more than socket buffers hold. */
#define BIG_BYTES ((size_t)32 << 20)
static struct str big_body(void)
{
    char *p = malloc(BIG_BYTES);

    memset(p, 'x', BIG_BYTES);
    return str_of(p, BIG_BYTES);
}

static void a_large_body_arrives_whole(void **state)
{
    struct world w;
    struct story s = {0};
    struct str body = big_body();
    size_t head_bytes;

    (void)state;
    world_make(&w, (struct http_origin_options){0});
    story_start(&s, &w, HTTP_POST, body);
    WAIT(&w, w.n_peers == 1 && w.peers[0].got.len > 1000);
    head_bytes = str_find(buf_view(&w.peers[0].got), STR("\r\n\r\n")) + 4;
    WAIT(&w, w.peers[0].got.len == head_bytes + BIG_BYTES);
    assert_true(str_ends(buf_view(&w.peers[0].got), body));
    say(&w.peers[0], OK2 "ok");
    WAIT(&w, s.ends == 1);
    assert_int_equal(http_origin_connections(w.origin), 1);
    free((char *)(uintptr_t)body.p);
    story_drop(&s);
    world_drop(&w);
}

static void a_connection_lost_while_sending_fails_as_send(void **state)
{
    struct world w;
    struct story s = {0};
    struct str body = big_body();

    (void)state;
    world_make(&w, (struct http_origin_options){0});
    story_start(&s, &w, HTTP_POST, body);
    WAIT(&w, w.n_peers == 1 && w.peers[0].got.len > 100);
    peer_close(&w.peers[0]);
    WAIT(&w, s.fails == 1);
    assert_int_equal(s.why, HTTP_FAIL_SEND);
    assert_true(s.sent);
    free((char *)(uintptr_t)body.p);
    story_drop(&s);
    world_drop(&w);
}

static void an_early_answer_is_told_and_its_connection_not_kept(void **state)
{
    struct world w;
    struct story s = {0};
    struct str body = big_body();

    (void)state;
    world_make(&w, (struct http_origin_options){0});
    story_start(&s, &w, HTTP_POST, body);
    WAIT(&w, w.n_peers == 1 && w.peers[0].got.len > 100);
    env_watch(w.env, w.peers[0].sock, 0, peer_ready, &w.peers[0]);
    say(&w.peers[0], "HTTP/1.1 413 Large\r\nContent-Length: 2\r\n\r\nno");
    WAIT(&w, s.ends == 1);
    assert_int_equal(s.status, 413);
    assert_int_equal(http_origin_connections(w.origin), 0);
    free((char *)(uintptr_t)body.p);
    story_drop(&s);
    world_drop(&w);
}

static void a_paused_call_reads_nothing_until_resumed(void **state)
{
    struct world w;
    struct story s = {.pause_on_body = true};
    struct peer *p;

    (void)state;
    world_make(&w, (struct http_origin_options){.body_idle_us = 20000});
    p = get_at_peer(&s, &w, 0);
    say(p, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n");
    WAIT(&w, s.body.len == 1);
    say(p, "1\r\nc\r\n0\r\n\r\n");
    turns(&w, 80); /* past the idle timer, which rests */
    assert_body(&s, "a");
    assert_int_equal(s.fails, 0);
    http_call_resume(s.call);
    assert_body(&s, "a"); /* not inside resume */
    WAIT(&w, s.body.len == 2);
    http_call_resume(s.call);
    WAIT(&w, s.body.len == 3);
    turns(&w, 3);
    assert_int_equal(s.ends, 0); /* paused in its last byte */
    http_call_resume(s.call);
    WAIT(&w, s.ends == 1);
    assert_int_equal(http_origin_connections(w.origin), 1);
    story_drop(&s);
    world_drop(&w);
}

static void a_call_paused_in_its_head_gets_body_and_end_after_resume(void **state)
{
    struct world w;
    struct story s = {.pause_on_head = true}, empty = {.pause_on_head = true};

    (void)state;
    world_make(&w, (struct http_origin_options){0});
    say(get_at_peer(&s, &w, 0), OK2 "ab");
    WAIT(&w, s.heads == 1);
    turns(&w, 3);
    assert_int_equal(s.body.len + (size_t)s.ends, 0);
    http_call_resume(s.call);
    WAIT(&w, s.ends == 1);
    assert_body(&s, "ab");
    buf_reset(&w.peers[0].got);
    say(get_at_peer(&empty, &w, 0), "HTTP/1.1 204 None\r\n\r\n");
    WAIT(&w, empty.heads == 1);
    http_call_resume(empty.call);
    WAIT(&w, empty.ends == 1);
    story_drop(&s);
    story_drop(&empty);
    world_drop(&w);
}

static void a_cancelled_call_closes_its_connection_and_is_silent(void **state)
{
    struct world w;
    struct story asked = {0}, in_head = {.cancel_on_head = true},
                 in_body = {.cancel_on_body = true};

    (void)state;
    world_make(&w, (struct http_origin_options){0});
    get_at_peer(&asked, &w, 0);
    http_call_cancel(asked.call);
    WAIT(&w, w.peers[0].ended);
    say(get_at_peer(&in_head, &w, 1), OK2 "ab");
    WAIT(&w, w.peers[1].ended);
    say(get_at_peer(&in_body, &w, 2), OK2 "a");
    WAIT(&w, w.peers[2].ended);
    assert_int_equal(asked.heads + asked.ends + asked.fails, 0);
    assert_int_equal(in_head.body.len + (size_t)(in_head.ends + in_head.fails), 0);
    assert_int_equal(in_body.ends + in_body.fails, 0);
    assert_int_equal(http_origin_connections(w.origin), 0);
    story_drop(&asked);
    story_drop(&in_head);
    story_drop(&in_body);
    world_drop(&w);
}

static void each_timer_ends_its_phase(void **state)
{
    struct world w;
    struct story head = {0}, body = {0};

    (void)state;
    world_make(&w, (struct http_origin_options){
                       .head_us = 200000, .body_idle_us = 200000, .keep_us = 200000});
    get_at_peer(&head, &w, 0);
    WAIT(&w, head.fails == 1);
    assert_int_equal(head.why, HTTP_FAIL_TIMEOUT);
    assert_true(head.sent);
    say(get_at_peer(&body, &w, 1), "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab");
    WAIT(&w, body.fails == 1);
    assert_int_equal(body.why, HTTP_FAIL_TIMEOUT);
    assert_body(&body, "ab");
    story_drop(&body);
    memset(&body, 0, sizeof(body));
    say(get_at_peer(&body, &w, 2), OK2 "ab");
    WAIT(&w, body.ends == 1);
    assert_int_equal(http_origin_connections(w.origin), 1);
    WAIT(&w, http_origin_connections(w.origin) == 0); /* its idle life is over */
    story_drop(&head);
    story_drop(&body);
    world_drop(&w);
}

static void body_bytes_push_the_idle_timer(void **state)
{
    struct world w;
    struct story s = {0};
    struct peer *p;
    uint64_t start;

    (void)state;
    world_make(&w, (struct http_origin_options){.body_idle_us = 100000});
    p = get_at_peer(&s, &w, 0);
    say(p, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n");
    WAIT(&w, s.heads == 1);
    start = env_now_us(w.env);
    for (int i = 0; i < 10; i++) {
        uint64_t until = env_now_us(w.env) + 30000;

        say(p, "x");
        WAIT(&w, env_now_us(w.env) >= until);
    }
    assert_true(env_now_us(w.env) - start >= 300000);
    assert_int_equal(s.fails, 0);
    WAIT(&w, s.fails == 1);
    assert_int_equal(s.why, HTTP_FAIL_TIMEOUT);
    story_drop(&s);
    world_drop(&w);
}

static void calls_past_the_connections_wait_their_turn(void **state)
{
    struct world w;
    struct story a = {0}, b = {0}, dropped = {0};

    (void)state;
    world_make(&w, (struct http_origin_options){.connections_max = 1});
    get_at_peer(&a, &w, 0);
    story_start(&dropped, &w, HTTP_GET, STR(""));
    story_start(&b, &w, HTTP_GET, STR(""));
    turns(&w, 3);
    assert_int_equal(w.n_peers, 1);
    http_call_cancel(dropped.call);
    buf_reset(&w.peers[0].got);
    say(&w.peers[0], OK2 "aa");
    WAIT(&w, a.ends == 1 && w.peers[0].got.len != 0);
    say(&w.peers[0], OK2 "bb");
    WAIT(&w, b.ends == 1);
    assert_body(&b, "bb");
    assert_int_equal(w.n_peers, 1);
    story_drop(&a);
    story_drop(&b);
    story_drop(&dropped);
    world_drop(&w);
}

static void a_call_that_waits_too_long_or_in_too_long_a_queue_fails_as_busy(void **state)
{
    enum { N = 1025 };
    struct world w;
    struct story a = {0};
    struct story *waiting = calloc(N, sizeof(*waiting));

    (void)state;
    world_make(&w, (struct http_origin_options){.connections_max = 1, .connect_us = 1000000});
    get_at_peer(&a, &w, 0);
    for (int i = 0; i < N; i++) {
        story_start(&waiting[i], &w, HTTP_GET, STR(""));
    }
    WAIT(&w, waiting[N - 1].fails == 1); /* at once */
    assert_int_equal(waiting[0].fails, 0);
    WAIT(&w, waiting[0].fails == 1 && waiting[N - 2].fails == 1);
    assert_int_equal(waiting[0].why, HTTP_FAIL_BUSY);
    assert_int_equal(waiting[N - 1].why, HTTP_FAIL_BUSY);
    assert_false(waiting[0].sent);
    for (int i = 0; i < N; i++) {
        story_drop(&waiting[i]);
    }
    free(waiting);
    story_drop(&a);
    world_drop(&w);
}

static void idle_connections_past_their_bound_are_closed(void **state)
{
    struct world w;
    struct story a = {0}, b = {0};

    (void)state;
    world_make(&w, (struct http_origin_options){.idle_max = 1});
    get_at_peer(&a, &w, 0);
    get_at_peer(&b, &w, 1);
    say(&w.peers[0], OK2 "aa");
    say(&w.peers[1], OK2 "bb");
    WAIT(&w, a.ends == 1 && b.ends == 1);
    assert_int_equal(http_origin_connections(w.origin), 1);
    story_drop(&a);
    story_drop(&b);
    world_drop(&w);
}

static void a_head_past_its_bound_is_refused(void **state)
{
    struct world w;
    struct story s = {0};
    struct buf head;
    struct peer *p;

    (void)state;
    world_make(&w, (struct http_origin_options){0});
    p = get_at_peer(&s, &w, 0);
    buf_init(&head, 1 << 20);
    buf_c(&head, "HTTP/1.1 200 OK\r\nX: ");
    while (head.len < 70000) {
        buf_c(&head, "yyyyyyyyyy");
    }
    say_bytes(p, buf_view(&head));
    WAIT(&w, s.fails == 1);
    assert_int_equal(s.why, HTTP_FAIL_PROTOCOL);
    buf_fini(&head);
    story_drop(&s);
    world_drop(&w);
}

static void fields_that_would_split_the_request_are_refused(void **state)
{
    static const struct http_field bad[] = {
        {{"a", 1}, {"b\r\nc: d", 7}}, {{"a\n", 2}, {"b", 1}}, {{"a:b", 3}, {"b", 1}},
        {{"", 0}, {"b", 1}},          {{"a b", 3}, {"c", 1}},
    };
    struct world w;

    (void)state;
    world_make(&w, (struct http_origin_options){0});
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct http_call_request r = {
            .method = HTTP_GET, .target = STR("/"), .fields = &bad[i], .n_fields = 1};
        struct story s = {0};

        s.call = http_call_start(w.origin, &r, &events, &s);
        WAIT(&w, s.fails == 1);
        assert_int_equal(s.why, HTTP_FAIL_PROTOCOL);
        assert_false(s.sent);
    }
    assert_int_equal(w.n_peers, 0);
    world_drop(&w);
}

static void closing_an_origin_silences_all_its_calls(void **state)
{
    struct world w;
    struct story a = {0}, b = {0}, c = {0};

    (void)state;
    world_make(&w, (struct http_origin_options){.connections_max = 2});
    get_at_peer(&a, &w, 0);
    get_at_peer(&b, &w, 1);
    say(&w.peers[1], OK2 "bb");
    WAIT(&w, b.ends == 1);
    story_start(&c, &w, HTTP_GET, STR(""));
    http_origin_close(w.origin);
    WAIT(&w, w.peers[0].ended && w.peers[1].ended);
    assert_int_equal(a.ends + a.fails + c.ends + c.fails, 0);
    story_drop(&a);
    story_drop(&b);
    story_drop(&c);
    world_drop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_goes_out_as_written_and_its_answer_comes_back),
        cmocka_unit_test(answers_of_every_shape_end_or_fail_as_they_should),
        cmocka_unit_test(a_kept_connection_carries_the_next_call),
        cmocka_unit_test(the_most_recently_used_connection_is_reused_first),
        cmocka_unit_test(a_connection_closed_while_idle_is_not_reused),
        cmocka_unit_test(idle_bytes_that_nobody_asked_for_end_the_connection),
        cmocka_unit_test(a_kept_connection_lost_before_any_answer_fails_as_send),
        cmocka_unit_test(a_refused_connection_fails_as_connect_with_nothing_sent),
        cmocka_unit_test(a_large_body_arrives_whole),
        cmocka_unit_test(a_connection_lost_while_sending_fails_as_send),
        cmocka_unit_test(an_early_answer_is_told_and_its_connection_not_kept),
        cmocka_unit_test(a_paused_call_reads_nothing_until_resumed),
        cmocka_unit_test(a_call_paused_in_its_head_gets_body_and_end_after_resume),
        cmocka_unit_test(a_cancelled_call_closes_its_connection_and_is_silent),
        cmocka_unit_test(each_timer_ends_its_phase),
        cmocka_unit_test(body_bytes_push_the_idle_timer),
        cmocka_unit_test(calls_past_the_connections_wait_their_turn),
        cmocka_unit_test(a_call_that_waits_too_long_or_in_too_long_a_queue_fails_as_busy),
        cmocka_unit_test(idle_connections_past_their_bound_are_closed),
        cmocka_unit_test(a_head_past_its_bound_is_refused),
        cmocka_unit_test(fields_that_would_split_the_request_are_refused),
        cmocka_unit_test(closing_an_origin_silences_all_its_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
