/* test_receipt.c - what a worker says of an attempt, over real sockets: a count, "not known" (yet),
 * nonsense, nothing. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/net/os.h"
#include "gateway/receipt.h"

#define TURNS_MAX 5000
#define TURN_US 20000
#define SOCKETS_MAX 16
#define COUNT "{\"state\":\"aborted\",\"prompt\":12,\"cached\":8,\"completion\":5}"

struct world {
    struct env *env;
    struct env_sock *listener, *sock[SOCKETS_MAX];
    unsigned sockets;
    const char *const *answers; /* statuses and bodies in turn; the last pair for all that follow */
    unsigned asked;
    struct buf got;
    struct http_client *client;
    struct http_origin *origin;
    struct receipt receipt;
    bool done, known;
    struct receipt_count count;
};

static struct world world;

static void answer(struct world *w, struct env_sock *s)
{
    const char *const *a = w->answers;
    struct buf out;

    for (unsigned i = 0; i < w->asked && a[2] != NULL; i++) {
        a += 2;
    }
    w->asked++;
    buf_init(&out, 4096);
    buf_printf(&out, "HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n%s", a[0], strlen(a[1]), a[1]);
    struct iovec v = {out.p, out.len};
    assert_int_equal(env_writev(w->env, s, &v, 1), (ssize_t)out.len);
    buf_fini(&out);
}

/* Requests have no body: each ends in an empty line. */
static void on_ready(void *ctx, unsigned events)
{
    struct env_sock *s = ctx;
    char bytes[4096];
    ssize_t n = env_read(world.env, s, bytes, sizeof(bytes));

    (void)events;
    if (n <= 0) {
        if (n != -EAGAIN) {
            env_watch(world.env, s, 0, on_ready, s);
        }
        return;
    }
    buf_append(&world.got, bytes, (size_t)n);
    if (str_ends(buf_view(&world.got), STR("\r\n\r\n")) && world.answers != NULL) {
        answer(&world, s);
    }
}

static void on_accept(void *ctx, unsigned events)
{
    struct env_sock *s = env_accept(world.env, world.listener, NULL);

    (void)ctx;
    (void)events;
    if (s != NULL) {
        assert_true(world.sockets < SOCKETS_MAX);
        world.sock[world.sockets++] = s;
        env_watch(world.env, s, ENV_READ, on_ready, s);
    }
}

static void on_receipt(struct receipt *r, const struct receipt_count *count)
{
    (void)r;
    assert_false(world.done); /* once */
    world.done = true;
    world.known = count != NULL;
    if (count != NULL) {
        world.count = *count;
    }
}

static void open_world(const char *const *answers)
{
    struct err e = {.code = ERR_NONE};
    struct http_origin_options o = {.host = STR("worker:9001"), .connections_max = 1};

    world = (struct world){.answers = answers};
    world.env = os_env_new(NULL, &e);
    assert_non_null(world.env);
    assert_true(os_addr_parse(STR("127.0.0.1:0"), &o.addr, &e));
    world.listener = env_listen(world.env, &o.addr, false, &e);
    assert_non_null(world.listener);
    assert_true(world.env->ops->local_addr(world.env, world.listener, &o.addr));
    env_watch(world.env, world.listener, ENV_READ, on_accept, NULL);
    buf_init(&world.got, 1 << 20);
    world.client = http_client_new(world.env);
    world.origin = http_origin_new(world.client, &o);
    world.receipt.done = on_receipt;
    receipt_ask(&world.receipt, world.env, world.origin, STR("k"), (struct uuid){{7}});
}

static void close_world(void)
{
    receipt_drop(&world.receipt);
    http_client_free(world.client);
    for (unsigned i = 0; i < world.sockets; i++) {
        env_close(world.env, world.sock[i]);
    }
    env_close(world.env, world.listener);
    buf_fini(&world.got);
    os_env_free(world.env);
}

static void wait_for_it(void)
{
    for (int turns = 0; turns < TURNS_MAX && !world.done; turns++) {
        os_turn(world.env, TURN_US);
    }
    assert_true(world.done);
}

static void a_count_is_told(void **state)
{
    static const char *const answers[] = {"200 OK", COUNT, NULL};

    (void)state;
    open_world(answers);
    wait_for_it();
    assert_true(world.known);
    assert_int_equal(world.count.prompt, 12);
    assert_int_equal(world.count.cached, 8);
    assert_int_equal(world.count.completion, 5);
    assert_true(str_starts(buf_view(&world.got), STR("POST /abort/07000000-")));
    assert_true(str_find(buf_view(&world.got), STR("Bearer k")) != SIZE_MAX);
    close_world();
}

static void what_is_not_known_yet_is_asked_again(void **state)
{
    static const char *const answers[] = {
        "404 Not Found", "{\"error\":{}}", "404 Not Found", "{}", "200 OK", COUNT, NULL};

    (void)state;
    open_world(answers);
    wait_for_it();
    assert_true(world.known);
    assert_int_equal(world.asked, 3);
    assert_int_equal(world.count.completion, 5);
    close_world();
}

static void what_stays_unknown_is_given_up_soon(void **state)
{
    static const char *const answers[] = {"404 Not Found", "{}", NULL};

    (void)state;
    open_world(answers);
    uint64_t began = env_now_us(world.env);
    wait_for_it();
    assert_false(world.known);
    assert_true(world.asked >= 2);
    assert_true(env_now_us(world.env) - began < RECEIPT_US); /* before silence would be */
    close_world();
}

static void nonsense_is_no_count(void **state)
{
    static const char *const nonsense[] = {
        "{\"prompt\":12,\"cached\":13,\"completion\":5}",
        "{\"prompt\":-1,\"cached\":-1,\"completion\":5}",
        "{\"prompt\":1,\"cached\":0}",
        "{\"prompt\":1,",
        "[]",
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(nonsense); i++) {
        const char *const answers[] = {"200 OK", nonsense[i], NULL};
        open_world(answers);
        wait_for_it();
        assert_false(world.known);
        assert_int_equal(world.asked, 1);
        close_world();
    }
}

static void an_error_is_not_asked_again(void **state)
{
    static const char *const answers[] = {"500 Internal Server Error", COUNT, NULL};

    (void)state;
    open_world(answers);
    wait_for_it();
    assert_false(world.known);
    assert_int_equal(world.asked, 1);
    close_world();
}

static void a_dropped_question_has_no_answer(void **state)
{
    static const char *const answers[] = {"404 Not Found", "{}", NULL};

    (void)state;
    open_world(NULL); /* at hand */
    receipt_drop(&world.receipt);
    receipt_drop(&world.receipt);
    close_world();
    open_world(answers); /* between two */
    for (int turns = 0; turns < TURNS_MAX && world.asked == 0; turns++) {
        os_turn(world.env, TURN_US);
    }
    os_turn(world.env, 1000);
    receipt_drop(&world.receipt);
    assert_false(world.done);
    close_world();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_count_is_told),
        cmocka_unit_test(what_is_not_known_yet_is_asked_again),
        cmocka_unit_test(what_stays_unknown_is_given_up_soon),
        cmocka_unit_test(nonsense_is_no_count),
        cmocka_unit_test(an_error_is_not_asked_again),
        cmocka_unit_test(a_dropped_question_has_no_answer),
    };

    return cmocka_run_group_tests_name("receipt", tests, NULL, NULL);
}
