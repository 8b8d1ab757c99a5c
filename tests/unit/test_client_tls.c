/* test_client_tls.c - the client over TLS, against a TLS session driven by hand on the same loop.
 *
 * The certificate is made anew by the openssl command; without it the tests are skipped. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/net/client.h"
#include "base/net/os.h"

#define TURNS_MAX 3000
#define TURN_US 20000

struct certs {
    char folder[64], cert[96], key[96];
};

struct world {
    struct env *env;
    struct env_sock *listener, *sock;
    struct env_addr at;
    struct tls_context *server_context, *client_context;
    struct tls_session *tls; /* of the accepted connection */
    struct buf got, cipher;
    struct http_client *client;
    struct http_origin *origin;
    bool ended;
    int accepted;
};

struct story {
    int heads, ends, fails;
    enum http_fail why;
    bool sent;
    struct buf body;
};

static void flush(struct world *w)
{
    while (w->cipher.len != 0) {
        struct iovec v = {w->cipher.p + w->cipher.off, w->cipher.len};
        ssize_t n = env_writev(w->env, w->sock, &v, 1);

        assert_true(n > 0);
        buf_consume(&w->cipher, (size_t)n);
    }
}

static void server_ready(void *ctx, unsigned events)
{
    struct world *w = ctx;
    char bytes[16384];
    ssize_t n = env_read(w->env, w->sock, bytes, sizeof(bytes));

    (void)events;
    if (n > 0) {
        enum tls_state state = tls_feed(w->tls, bytes, (size_t)n, &w->got, &w->cipher);

        flush(w);
        w->ended = w->ended || state == TLS_CLOSED || state == TLS_FAILED;
    } else if (n != -EAGAIN) {
        w->ended = true;
        env_watch(w->env, w->sock, 0, server_ready, w);
    }
}

static void server_accept(void *ctx, unsigned events)
{
    struct world *w = ctx;
    struct env_sock *s = env_accept(w->env, w->listener, NULL);

    (void)events;
    if (s != NULL) {
        assert_null(w->sock);
        w->sock = s;
        w->accepted++;
        w->tls = tls_accept(w->server_context);
        assert_non_null(w->tls);
        env_watch(w->env, s, ENV_READ, server_ready, w);
    }
}

static int certs_make(void **state)
{
    static struct certs c;
    char command[512];

    snprintf(c.folder, sizeof(c.folder), "/tmp/tollgate-test-tls-XXXXXX");
    if (mkdtemp(c.folder) == NULL) {
        return -1;
    }
    snprintf(c.cert, sizeof(c.cert), "%s/cert.pem", c.folder);
    snprintf(c.key, sizeof(c.key), "%s/key.pem", c.folder);
    snprintf(command, sizeof(command),
             "umask 077; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
             "-days 2 -subj /CN=worker "
             "-addext subjectAltName=DNS:worker.test -keyout %s -out %s >/dev/null 2>&1",
             c.key, c.cert);
    if (system(command) != 0) {
        print_message("no openssl command: skipped\n");
        return -1;
    }
    *state = &c;
    return 0;
}

static int certs_drop(void **state)
{
    struct certs *c = *state;

    unlink(c->cert);
    unlink(c->key);
    return rmdir(c->folder);
}

static void world_make(struct world *w, const struct certs *c, struct str host)
{
    struct err e = {.code = ERR_NONE};
    struct http_origin_options o = {.host = host};

    memset(w, 0, sizeof(*w));
    w->env = os_env_new(NULL, &e);
    buf_init(&w->got, 1 << 24);
    buf_init(&w->cipher, 1 << 24);
    w->server_context = tls_server_context(c->cert, c->key, &e);
    w->client_context = tls_client_context(c->cert, &e);
    if (w->server_context == NULL || w->client_context == NULL) {
        fail_msg("%s", e.text);
    }
    assert_true(os_addr_parse(STR("127.0.0.1:0"), &w->at, &e));
    w->listener = env_listen(w->env, &w->at, false, &e);
    assert_non_null(w->listener);
    assert_true(w->env->ops->local_addr(w->env, w->listener, &w->at));
    env_watch(w->env, w->listener, ENV_READ, server_accept, w);
    o.addr = w->at;
    o.tls = w->client_context;
    w->client = http_client_new(w->env);
    w->origin = http_origin_new(w->client, &o);
}

static void server_hang_up(struct world *w)
{
    if (w->sock != NULL) {
        env_close(w->env, w->sock);
        tls_session_free(w->tls);
        w->sock = NULL;
        w->tls = NULL;
    }
}

static void world_drop(struct world *w)
{
    http_client_free(w->client);
    server_hang_up(w);
    env_close(w->env, w->listener);
    tls_context_free(w->server_context);
    tls_context_free(w->client_context);
    buf_fini(&w->got);
    buf_fini(&w->cipher);
    os_env_free(w->env);
}

#define WAIT(w, cond)                                                                              \
    do {                                                                                           \
        for (int turns = 0; turns < TURNS_MAX && !(cond); turns++) {                               \
            os_turn((w)->env, TURN_US);                                                            \
        }                                                                                          \
        assert_true(cond);                                                                         \
    } while (0)

static void say(struct world *w, struct str s)
{
    assert_true(tls_write(w->tls, s.p, s.n, &w->cipher));
    flush(w);
}

static void on_head(void *user, unsigned status, const struct http_fields *fields)
{
    (void)status;
    (void)fields;
    ((struct story *)user)->heads++;
}

static void on_body(void *user, const void *p, size_t n)
{
    buf_append(&((struct story *)user)->body, p, n);
}

static void on_end(void *user)
{
    ((struct story *)user)->ends++;
}

static void on_fail(void *user, enum http_fail why, bool sent)
{
    struct story *s = user;

    s->fails++;
    s->why = why;
    s->sent = sent;
}

static struct http_call *start(struct world *w, struct story *s, struct str body)
{
    static const struct http_call_events events = {on_head, on_body, on_end, on_fail};
    struct http_call_request r = {.method = HTTP_POST, .target = STR("/x")};
    struct http_call *call;
    struct buf taken;

    buf_init(&taken, 1 << 26);
    buf_str(&taken, body);
    r.taken = &taken;
    *s = (struct story){0};
    buf_init(&s->body, 1 << 24);
    call = http_call_start(w->origin, &r, &events, s);
    buf_fini(&taken);
    return call;
}

static bool asked(const struct world *w, const char *end)
{
    return str_ends(buf_view(&w->got), str_c(end));
}

static void calls_and_reuse_work_over_tls(void **state)
{
    struct world w;
    struct story a, b;

    world_make(&w, *state, STR("worker.test:443"));
    start(&w, &a, STR("first"));
    WAIT(&w, asked(&w, "first"));
    say(&w, STR("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"));
    WAIT(&w, a.ends == 1);
    assert_true(str_eq(buf_view(&a.body), STR("ab")));
    start(&w, &b, STR("second"));
    WAIT(&w, asked(&w, "second"));
    say(&w, STR("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\ncd"));
    WAIT(&w, b.ends == 1);
    assert_true(str_eq(buf_view(&b.body), STR("cd")));
    assert_int_equal(w.accepted, 1);
    buf_fini(&a.body);
    buf_fini(&b.body);
    world_drop(&w);
}

static void large_bodies_pass_both_ways_with_pauses(void **state)
{
    enum { N = 3 << 20 };
    char *big = malloc(N);
    struct world w;
    struct story s;
    struct http_call *call;

    memset(big, 'z', N);
    world_make(&w, *state, STR("worker.test:443"));
    call = start(&w, &s, str_of(big, N));
    WAIT(&w, w.got.len > N && str_ends(buf_view(&w.got), str_of(big, N)));
    say(&w, STR("HTTP/1.1 200 OK\r\nContent-Length: 600000\r\n\r\n"));
    assert_true(tls_write(w.tls, big, 600000, &w.cipher));
    for (int i = 0; i < TURNS_MAX && s.ends == 0; i++) {
        struct iovec v = {w.cipher.p + w.cipher.off, w.cipher.len};
        ssize_t n = w.cipher.len != 0 ? env_writev(w.env, w.sock, &v, 1) : 0;

        buf_consume(&w.cipher, n > 0 ? (size_t)n : 0);
        if (s.ends == 0 && i % 3 == 0) {
            http_call_pause(call);
        }
        os_turn(w.env, 1000);
        if (s.ends == 0) {
            http_call_resume(call);
        }
        os_turn(w.env, 1000);
    }
    assert_int_equal(s.ends, 1);
    assert_int_equal(s.body.len, 600000);
    free(big);
    buf_fini(&s.body);
    world_drop(&w);
}

static void another_name_in_the_certificate_fails_as_connect_with_nothing_sent(void **state)
{
    struct world w;
    struct story s;

    world_make(&w, *state, STR("other.test:443"));
    start(&w, &s, STR("secret"));
    WAIT(&w, s.fails == 1);
    assert_int_equal(s.why, HTTP_FAIL_CONNECT);
    assert_false(s.sent);
    assert_int_equal(w.got.len, 0);
    buf_fini(&s.body);
    world_drop(&w);
}

static void a_close_delimited_answer_without_close_notify_is_cut(void **state)
{
    struct world w;
    struct story cut, whole;

    world_make(&w, *state, STR("worker.test:443"));
    start(&w, &cut, STR("q"));
    WAIT(&w, asked(&w, "q"));
    say(&w, STR("HTTP/1.1 200 OK\r\n\r\nabc"));
    WAIT(&w, cut.body.len == 3);
    server_hang_up(&w);
    WAIT(&w, cut.fails == 1);
    assert_int_equal(cut.why, HTTP_FAIL_BODY);
    buf_reset(&w.got);
    start(&w, &whole, STR("q"));
    WAIT(&w, asked(&w, "q"));
    say(&w, STR("HTTP/1.1 200 OK\r\n\r\nabc"));
    tls_shutdown(w.tls, &w.cipher);
    flush(&w);
    WAIT(&w, whole.ends == 1);
    buf_fini(&cut.body);
    buf_fini(&whole.body);
    world_drop(&w);
}

static void a_peer_that_does_not_speak_tls_fails_as_connect(void **state)
{
    struct world w;
    struct story s;
    struct iovec v = {(void *)(uintptr_t) "HTTP/1.1 400 Bad\r\n\r\n", 20};

    world_make(&w, *state, STR("worker.test:443"));
    start(&w, &s, STR("q"));
    WAIT(&w, w.accepted == 1);
    assert_int_equal(env_writev(w.env, w.sock, &v, 1), 20);
    WAIT(&w, s.fails == 1);
    assert_int_equal(s.why, HTTP_FAIL_CONNECT);
    assert_false(s.sent);
    buf_fini(&s.body);
    world_drop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_and_reuse_work_over_tls),
        cmocka_unit_test(large_bodies_pass_both_ways_with_pauses),
        cmocka_unit_test(another_name_in_the_certificate_fails_as_connect_with_nothing_sent),
        cmocka_unit_test(a_close_delimited_answer_without_close_notify_is_cut),
        cmocka_unit_test(a_peer_that_does_not_speak_tls_fails_as_connect),
    };

    if (system("openssl version >/dev/null 2>&1") != 0) {
        printf("skipped: no openssl command\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, certs_make, certs_drop);
}
