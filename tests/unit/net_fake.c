/* net_fake.c - the env of net_fake.h. */
#include "net_fake.h"

#include <errno.h>
#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#define FAKE_BYTES_MAX ((size_t)256 << 20)
#define FAKE_ROUNDS_MAX 1000000 /* a server that never comes to rest is a bug */

static struct fake *fake_of(struct env *e)
{
    return CONTAINER_OF(e, struct fake, env);
}

static uint64_t fake_now(struct env *e)
{
    return fake_of(e)->now_us;
}

static uint64_t fake_wall(struct env *e)
{
    return fake_of(e)->now_us + 1700000000000000u;
}

static void fake_timer_arm(struct env *e, struct env_timer *t)
{
    struct fake *f = fake_of(e);

    for (uint32_t i = 1; i < FAKE_TIMERS; i++) {
        if (f->timers[i] == NULL) {
            f->timers[i] = t;
            t->slot = i;
            return;
        }
    }
    fail_msg("more than %d timers", FAKE_TIMERS);
}

static void fake_timer_disarm(struct env *e, struct env_timer *t)
{
    fake_of(e)->timers[t->slot] = NULL;
    t->slot = 0;
}

static void fake_defer(struct env *e, struct env_task *t)
{
    if (!t->queued) {
        t->queued = true;
        list_push_back(&fake_of(e)->tasks, &t->node);
    }
}

static struct env_sock *sock_new(struct fake *f)
{
    struct env_sock *s = mem_new(sizeof(*s));

    assert_true(f->n_socks < FAKE_SOCKS);
    buf_init(&s->rx, FAKE_BYTES_MAX);
    buf_init(&s->tx, FAKE_BYTES_MAX);
    s->tx_room = SIZE_MAX;
    f->socks[f->n_socks++] = s;
    return s;
}

static struct env_sock *fake_accept(struct env *e, struct env_sock *l, struct env_addr *peer)
{
    struct fake *f = fake_of(e);

    (void)l;
    *peer = (struct env_addr){0};
    f->accepts++;
    for (uint32_t i = 1; i < f->n_socks && !f->accept_fails; i++) {
        if (!f->socks[i]->taken) {
            f->socks[i]->taken = true;
            return f->socks[i];
        }
    }
    return NULL;
}

static ssize_t fake_read(struct env *e, struct env_sock *s, void *p, size_t n)
{
    struct fake *f = fake_of(e);

    assert_false(s->closed);
    n = size_min(n, s->rx.len);
    n = f->max_read != 0 ? size_min(n, f->max_read) : n;
    if (n == 0) {
        return s->peer_shut ? 0 : -EAGAIN;
    }
    memcpy(p, buf_view(&s->rx).p, n);
    buf_consume(&s->rx, n);
    return (ssize_t)n;
}

static ssize_t fake_writev(struct env *e, struct env_sock *s, const struct iovec *v, int count)
{
    size_t put = 0;

    (void)e;
    assert_false(s->closed || s->shut);
    for (int i = 0; i < count; i++) {
        size_t n = size_min(v[i].iov_len, s->tx_room);

        buf_append(&s->tx, v[i].iov_base, n);
        s->tx_room -= n;
        put += n;
    }
    if (put == 0 && s->tx_opens) {
        s->tx_room = SIZE_MAX;
    }
    return put != 0 ? (ssize_t)put : -EAGAIN;
}

static void fake_shutdown(struct env *e, struct env_sock *s)
{
    (void)e;
    s->shut = true;
}

static void fake_close(struct env *e, struct env_sock *s)
{
    (void)e;
    assert_false(s->closed);
    s->closed = true;
    s->events = 0;
}

static void fake_watch(struct env *e, struct env_sock *s, unsigned events,
                       void (*ready)(void *ctx, unsigned events), void *ctx)
{
    (void)e;
    assert_false(s->closed);
    s->events = events;
    s->ready = ready;
    s->ctx = ctx;
}

static const struct env_ops fake_ops = {
    .now_us = fake_now,
    .wall_us = fake_wall,
    .timer_arm = fake_timer_arm,
    .timer_disarm = fake_timer_disarm,
    .defer = fake_defer,
    .accept = fake_accept,
    .read = fake_read,
    .writev = fake_writev,
    .shutdown = fake_shutdown,
    .close = fake_close,
    .watch = fake_watch,
};

struct fake *fake_new(void)
{
    struct fake *f = mem_new(sizeof(*f));

    f->env.ops = &fake_ops;
    f->now_us = 1000000;
    list_init(&f->tasks);
    sock_new(f)->listener = true;
    return f;
}

void fake_free(struct fake *f)
{
    assert_true(list_is_empty(&f->tasks));
    for (uint32_t i = 0; i < FAKE_TIMERS; i++) {
        assert_null(f->timers[i]);
    }
    for (uint32_t i = 0; i < f->n_socks; i++) {
        assert_true(f->socks[i]->closed || !f->socks[i]->taken);
        buf_fini(&f->socks[i]->rx);
        buf_fini(&f->socks[i]->tx);
        mem_free(f->socks[i]->text);
        mem_free(f->socks[i]);
    }
    mem_free(f);
}

struct env_sock *fake_listener(struct fake *f)
{
    return f->socks[0];
}

struct env_sock *fake_connect(struct fake *f)
{
    return sock_new(f);
}

void fake_send(struct env_sock *s, const void *p, size_t n)
{
    buf_append(&s->rx, p, n);
    assert_false(s->rx.failed);
}

void fake_send_c(struct env_sock *s, const char *z)
{
    fake_send(s, z, strlen(z));
}

static bool untaken(const struct fake *f)
{
    for (uint32_t i = 1; i < f->n_socks; i++) {
        if (!f->socks[i]->taken) {
            return true;
        }
    }
    return false;
}

static bool sockets_round(struct fake *f)
{
    bool any = false;

    for (uint32_t i = 0; i < f->n_socks; i++) {
        struct env_sock *s = f->socks[i];
        unsigned events = 0;

        if (s->listener ? untaken(f) : (s->rx.len != 0 || s->peer_shut)) {
            events |= ENV_READ;
        }
        if (!s->listener && s->tx_room != 0) {
            events |= ENV_WRITE;
        }
        events &= s->events;
        if (events != 0) {
            any = true;
            s->ready(s->ctx, events);
        }
    }
    return any;
}

void fake_run(struct fake *f)
{
    bool any = true;

    for (int round = 0; any; round++) {
        struct list *n;

        assert_true(round < FAKE_ROUNDS_MAX);
        any = sockets_round(f);
        while ((n = list_pop_front(&f->tasks)) != NULL) {
            struct env_task *t = CONTAINER_OF(n, struct env_task, node);

            t->queued = false;
            t->run(t);
            any = true;
        }
    }
}

void fake_advance(struct fake *f, uint64_t us)
{
    uint64_t until = f->now_us + us;

    fake_run(f);
    for (;;) {
        struct env_timer *first = NULL;

        for (uint32_t i = 1; i < FAKE_TIMERS; i++) {
            if (f->timers[i] != NULL && (first == NULL || f->timers[i]->due_us < first->due_us)) {
                first = f->timers[i];
            }
        }
        if (first == NULL || first->due_us > until) {
            break;
        }
        f->now_us = size_max(f->now_us, first->due_us);
        fake_timer_disarm(&f->env, first);
        first->fire(first);
        fake_run(f);
    }
    f->now_us = until;
}

const char *fake_text(struct env_sock *s)
{
    struct str v = buf_view(&s->tx);

    mem_free(s->text);
    s->text = mem_new(v.n + 1);
    memcpy(s->text, v.p, v.n);
    buf_reset(&s->tx);
    return s->text;
}
