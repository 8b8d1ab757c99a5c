/* server_world.c - the application of server_world.h. */
#include "server_world.h"

#include <stdarg.h>
#include <stdio.h>
#include <setjmp.h>
#include <cmocka.h>

#define DIARY_MAX ((size_t)16 << 20)

static void answer(struct http_stream *s, unsigned status, const char *text)
{
    struct http_field type = {STR("content-type"), STR("text/plain")};

    http_stream_respond(s, status, &type, 1, (int64_t)strlen(text));
    http_stream_write(s, text, strlen(text));
    http_stream_end(s);
}

static void on_head(void *ctx, struct http_stream *s, const struct http_head *head)
{
    struct world *w = ctx;

    w->heads++;
    w->last = s;
    assert_null(http_stream_user(s));
    http_stream_set_user(s, w);
    buf_printf(&w->diary, "head " STR_FMT " " STR_FMT ";", STR_ARG(head->method_text),
               STR_ARG(head->path));
    if (str_eq(head->path, STR("/hello"))) {
        answer(s, 200, "hello");
    } else if (str_eq(head->path, STR("/deny"))) {
        answer(s, 401, "no");
    } else if (str_eq(head->path, STR("/echo"))) {
        http_stream_respond(s, 200, NULL, 0, -1);
    } else if (str_eq(head->path, STR("/whole")) && w->expect_early) {
        http_stream_continue(s);
        http_stream_continue(s);
    }
}

static void on_body(void *ctx, struct http_stream *s, const void *p, size_t n)
{
    struct world *w = ctx;

    w->body_bytes += n;
    buf_printf(&w->diary, "body %zu;", n);
    if (str_eq(http_stream_head(s)->path, STR("/echo"))) {
        http_stream_write(s, p, n);
    }
    if (!w->hoard) {
        http_stream_credit(s, n);
    }
}

static void on_body_end(void *ctx, struct http_stream *s)
{
    struct world *w = ctx;
    char text[32];

    buf_c(&w->diary, "end;");
    if (str_eq(http_stream_head(s)->path, STR("/echo"))) {
        http_stream_end(s);
    } else if (str_eq(http_stream_head(s)->path, STR("/whole"))) {
        (void)snprintf(text, sizeof(text), "got %llu", (unsigned long long)w->body_bytes);
        answer(s, 200, text);
    }
}

static void on_drain(void *ctx, struct http_stream *s)
{
    struct world *w = ctx;

    (void)s;
    buf_c(&w->diary, "drain;");
}

static void on_close(void *ctx, struct http_stream *s, enum http_close why)
{
    struct world *w = ctx;

    assert_ptr_equal(http_stream_user(s), w); /* a second close would find none */
    http_stream_set_user(s, NULL);
    buf_printf(&w->diary, "close %d;", why);
    w->closes++;
    w->whys[why]++;
    if (w->last == s) {
        w->last = NULL;
    }
}

static struct world *world_make(const struct http_limits *limits, enum http_protocols allowed,
                                struct tls_context *tls)
{
    struct world *w = mem_new(sizeof(*w));
    struct http_app app = {w, on_head, on_body, on_body_end, on_drain, on_close};

    w->fake = fake_new();
    buf_init(&w->diary, DIARY_MAX);
    w->server =
        http_server_new(&w->fake->env, NULL, &app, limits != NULL ? limits : &http_limits_default);
    http_server_listen(w->server, fake_listener(w->fake), tls, allowed);
    w->peer = world_connect(w);
    return w;
}

struct world *world_new(const struct http_limits *limits, enum http_protocols allowed)
{
    return world_make(limits, allowed, NULL);
}

struct world *world_new_tls(struct tls_context *tls, enum http_protocols allowed)
{
    return world_make(NULL, allowed, tls);
}

struct env_sock *world_connect(struct world *w)
{
    struct env_sock *s = fake_connect(w->fake);

    fake_run(w->fake);
    return s;
}

void world_free(struct world *w)
{
    http_server_free(w->server);
    assert_int_equal(w->heads, w->closes);
    fake_free(w->fake);
    buf_fini(&w->diary);
    mem_free(w);
}

struct http_server_stats world_stats(const struct world *w)
{
    struct http_server_stats stats;

    http_server_stats(w->server, &stats);
    return stats;
}

void world_expect(struct world *w, const char *diary)
{
    buf_byte(&w->diary, '\0');
    assert_string_equal(buf_view(&w->diary).p, diary);
    buf_reset(&w->diary);
}
