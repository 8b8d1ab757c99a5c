/* os_sock.c - stream sockets and addresses of the real env: non-blocking, close-on-exec, NODELAY.
 */
#include "base/net/os_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define LISTEN_BACKLOG 4096
/* Peers that left while they waited; a few may stand before one that is there. */
#define ACCEPT_TRIES_MAX 16
/* How long a listener rests when there is no descriptor: level-triggered epoll would spin. */
#define STARVED_RETRY_US 100000

static void sock_ready(struct os_source *source, uint32_t got)
{
    struct env_sock *s = CONTAINER_OF(source, struct env_sock, source);
    unsigned events = 0;

    /* An error or a hang-up wakes whichever direction is asked for: its next call says which. */
    if ((got & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
        events |= s->events & ENV_READ;
    }
    if ((got & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) {
        events |= s->events & ENV_WRITE;
    }
    if (events != 0) {
        s->ready(s->ctx, events);
    }
}

static struct env_sock *sock_new(int fd)
{
    struct env_sock *s = mem_new(sizeof(*s));

    s->source.fd = fd;
    s->source.ready = sock_ready;
    list_init(&s->source.node);
    return s;
}

static int sock_family(const struct env_addr *a)
{
    sa_family_t family = AF_UNSPEC;

    if (a->len >= sizeof(family)) {
        memcpy(&family, a->bytes, sizeof(family));
    }
    return family;
}

static void sock_option(int fd, int level, int name)
{
    int on = 1;

    setsockopt(fd, level, name, &on, sizeof(on));
}

/* The kernel wants an aligned sockaddr; env_addr holds plain bytes. */
static socklen_t sock_address(const struct env_addr *a, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof(*out));
    memcpy(out, a->bytes, size_min(a->len, sizeof(a->bytes)));
    return (socklen_t)a->len;
}

struct env_sock *os_sock_listen(struct env *e, const struct env_addr *a, bool reuse_port,
                                struct err *err)
{
    char text[ENV_ADDR_TEXT_MAX];
    struct sockaddr_storage addr;
    socklen_t len = sock_address(a, &addr);
    int fd = socket(sock_family(a), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    (void)e;
    os_addr_text(a, text);
    if (fd < 0) {
        err_errno(err, errno, "cannot listen on %s", text);
        return NULL;
    }
    sock_option(fd, SOL_SOCKET, SO_REUSEADDR);
    if (reuse_port) {
        sock_option(fd, SOL_SOCKET, SO_REUSEPORT);
    }
    if (sock_family(a) == AF_INET6) {
        sock_option(fd, IPPROTO_IPV6, IPV6_V6ONLY);
    }
    if (bind(fd, (struct sockaddr *)&addr, len) != 0 || listen(fd, LISTEN_BACKLOG) != 0) {
        err_errno(err, errno, "cannot listen on %s", text);
        close(fd);
        return NULL;
    }
    return sock_new(fd);
}

/* Takes a listener off epoll until descriptors may be free again. */
static void sock_starve(struct os_env *o, struct env_sock *listener)
{
    listener->starved = true;
    os_source_unregister(o, &listener->source);
    list_push_back(&o->starved, &listener->source.node);
    if (!env_timer_is_armed(&o->starved_timer)) {
        env_timer_arm(&o->env, &o->starved_timer, o->now_us + STARVED_RETRY_US);
    }
}

static void sock_unstarve(struct env_sock *s)
{
    if (s->starved) {
        s->starved = false;
        list_remove(&s->source.node);
    }
}

void os_sock_starved_fire(struct env_timer *t)
{
    struct os_env *o = CONTAINER_OF(t, struct os_env, starved_timer);
    struct list *n;

    while ((n = list_pop_front(&o->starved)) != NULL) {
        struct env_sock *s = CONTAINER_OF(n, struct env_sock, source.node);

        s->starved = false;
        os_sock_watch(&o->env, s, s->events, s->ready, s->ctx);
    }
}

struct env_sock *os_sock_accept(struct env *e, struct env_sock *listener, struct env_addr *peer)
{
    for (int i = 0; i < ACCEPT_TRIES_MAX && !listener->starved; i++) {
        struct sockaddr_storage addr;
        socklen_t len = sizeof(addr);
        int fd = accept4(listener->source.fd, (struct sockaddr *)&addr, &len,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            if (peer != NULL) {
                peer->len = (uint32_t)size_min(len, sizeof(peer->bytes));
                memcpy(peer->bytes, &addr, peer->len);
            }
            sock_option(fd, IPPROTO_TCP, TCP_NODELAY);
            return sock_new(fd);
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            sock_starve(os_of(e), listener);
        } else if (errno == EAGAIN) {
            return NULL;
        }
    }
    return NULL;
}

/* Wants of this process and host say nothing of the peer: a code of their own (base/env.h). */
static void connect_story(struct err *err, int cause, int family, const char *peer)
{
    /* No port left, and with IPv6 also: no such address on this host, which is the peer's matter.
     */
    bool no_port = (cause == EADDRNOTAVAIL || cause == EAGAIN) && family == AF_INET;
    bool ours =
        cause == EMFILE || cause == ENFILE || cause == ENOBUFS || cause == ENOMEM || no_port;

    if (ours) {
        err_set(err, ERR_LIMIT, "cannot connect to %s: %s", peer, strerror(cause));
    } else {
        err_errno(err, cause, "cannot connect to %s", peer);
    }
}

struct env_sock *os_sock_connect(struct env *e, const struct env_addr *a, struct err *err)
{
    char text[ENV_ADDR_TEXT_MAX];
    struct sockaddr_storage addr;
    socklen_t len = sock_address(a, &addr);
    int fd = socket(sock_family(a), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    (void)e;
    os_addr_text(a, text);
    if (fd < 0) {
        connect_story(err, errno, sock_family(a), text);
        return NULL;
    }
    sock_option(fd, IPPROTO_TCP, TCP_NODELAY);
    if (connect(fd, (struct sockaddr *)&addr, len) != 0 && errno != EINPROGRESS && errno != EINTR) {
        connect_story(err, errno, sock_family(a), text);
        close(fd);
        return NULL;
    }
    return sock_new(fd);
}

ssize_t os_sock_read(struct env *e, struct env_sock *s, void *p, size_t n)
{
    ssize_t got;

    (void)e;
    do {
        got = recv(s->source.fd, p, n, 0);
    } while (got < 0 && errno == EINTR);
    return got >= 0 ? got : -errno;
}

ssize_t os_sock_writev(struct env *e, struct env_sock *s, const struct iovec *v, int count)
{
    struct msghdr m = {.msg_iov = (struct iovec *)(uintptr_t)v};
    ssize_t put;

    (void)e;
    m.msg_iovlen = count < IOV_MAX ? (size_t)count : IOV_MAX;
    do {
        put = sendmsg(s->source.fd, &m, MSG_NOSIGNAL);
    } while (put < 0 && errno == EINTR);
    return put >= 0 ? put : -errno;
}

void os_sock_shutdown(struct env *e, struct env_sock *s)
{
    (void)e;
    shutdown(s->source.fd, SHUT_WR);
}

void os_sock_close(struct env *e, struct env_sock *s)
{
    if (s != NULL) {
        sock_unstarve(s);
        s->events = 0;
        os_source_close(os_of(e), &s->source);
    }
}

void os_sock_watch(struct env *e, struct env_sock *s, unsigned events,
                   void (*ready)(void *ctx, unsigned events), void *ctx)
{
    uint32_t wanted = 0;

    s->ready = ready;
    s->ctx = ctx;
    if (events == s->events && (s->source.registered || events == 0 || s->starved)) {
        return;
    }
    s->events = events;
    wanted |= (events & ENV_READ) != 0 ? (uint32_t)EPOLLIN : 0;
    wanted |= (events & ENV_WRITE) != 0 ? (uint32_t)EPOLLOUT : 0;
    if (events == 0 || s->starved) {
        /* epoll reports errors and hang-ups of whatever it holds: hearing nothing means leaving. */
        os_source_unregister(os_of(e), &s->source);
        return;
    }
    CHECK(os_source_register(os_of(e), &s->source, wanted));
}

bool os_sock_local_addr(struct env *e, struct env_sock *s, struct env_addr *out)
{
    struct sockaddr_storage addr;
    socklen_t len = sizeof(addr);

    (void)e;
    if (getsockname(s->source.fd, (struct sockaddr *)&addr, &len) != 0 ||
        len > sizeof(out->bytes)) {
        return false;
    }
    memcpy(out->bytes, &addr, len);
    out->len = len;
    return true;
}

bool os_addr_numeric(struct str host, uint16_t port, struct env_addr *out)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    char text[INET6_ADDRSTRLEN];

    if (host.n >= 2 && host.p[0] == '[' && host.p[host.n - 1] == ']') {
        host = str_of(host.p + 1, host.n - 2);
    }
    if (host.n >= sizeof(text) || memchr(host.p, '\0', host.n) != NULL) {
        return false;
    }
    str_copy(host, text, sizeof(text));
    memset(out, 0, sizeof(*out));
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
        memcpy(out->bytes, &v4, sizeof(v4));
        out->len = sizeof(v4);
        return true;
    }
    if (inet_pton(AF_INET6, text, &v6.sin6_addr) == 1) {
        memcpy(out->bytes, &v6, sizeof(v6));
        out->len = sizeof(v6);
        return true;
    }
    return false;
}

bool os_addr_parse(struct str s, struct env_addr *out, struct err *e)
{
    size_t colon = s.n;
    struct str host;
    uint64_t port;

    while (colon > 0 && s.p[colon - 1] != ':') {
        colon--;
    }
    if (colon == 0) {
        return err_set(e, ERR_INPUT, "address \"" STR_FMT "\" has no port; write host:port",
                       STR_ARG(s));
    }
    host = str_of(s.p, colon - 1);
    if (!str_u64(str_of(s.p + colon, s.n - colon), &port) || port > UINT16_MAX) {
        return err_set(e, ERR_INPUT, "address \"" STR_FMT "\": the port must be 0 to 65535",
                       STR_ARG(s));
    }
    /* A bare IPv6 address is ambiguous about its last group. */
    if ((memchr(host.p, ':', host.n) != NULL && host.p[0] != '[') ||
        !os_addr_numeric(host, (uint16_t)port, out)) {
        return err_set(e, ERR_INPUT,
                       "address \"" STR_FMT "\": the host must be numeric, like 127.0.0.1 or [::1]",
                       STR_ARG(s));
    }
    return true;
}

void os_addr_text(const struct env_addr *a, char out[ENV_ADDR_TEXT_MAX])
{
    char host[INET6_ADDRSTRLEN] = "?";
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    if (sock_family(a) == AF_INET && a->len >= sizeof(v4)) {
        memcpy(&v4, a->bytes, sizeof(v4));
        inet_ntop(AF_INET, &v4.sin_addr, host, sizeof(host));
        snprintf(out, ENV_ADDR_TEXT_MAX, "%s:%u", host, ntohs(v4.sin_port));
    } else if (sock_family(a) == AF_INET6 && a->len >= sizeof(v6)) {
        memcpy(&v6, a->bytes, sizeof(v6));
        inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof(host));
        snprintf(out, ENV_ADDR_TEXT_MAX, "[%s]:%u", host, ntohs(v6.sin6_port));
    } else {
        snprintf(out, ENV_ADDR_TEXT_MAX, "(none)");
    }
}

bool os_addr_is_loopback(const struct env_addr *a)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    if (sock_family(a) == AF_INET && a->len >= sizeof(v4)) {
        memcpy(&v4, a->bytes, sizeof(v4));
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    }
    if (sock_family(a) == AF_INET6 && a->len >= sizeof(v6)) {
        memcpy(&v6, a->bytes, sizeof(v6));
        return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) ||
               (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) && v6.sin6_addr.s6_addr[12] == 127);
    }
    return false;
}
