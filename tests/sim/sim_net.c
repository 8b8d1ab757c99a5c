/* sim_net.c - stream sockets between hosts: bytes in order, late, in any pieces, until one end
 * goes.
 *
 * A socket's `rx` holds what its peer sent: rx[0 .. arrived) may be read, the rest is on its way.
 * Readiness is level-triggered: while a watched event holds, its callback comes again. */
#include "sim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>

#define READY_US 40 /* at most, until a watched event is told */
#define STALL_US 500000
#define RX_MIN 512 /* receive window: small ones make writers wait */
#define RX_MAX 131072
#define RX_HARD_MAX (RX_MAX * 2)
#define LATENCY_MIN_US 20
#define LATENCY_MAX_US 3000
#define BACKLOG_MAX 4096
#define SILENT_DEATH_US 2000000 /* a machine without power answers nothing for so long */
#define UNANSWERED_US 20000000  /* of a connect that nobody answers */
#define TELL_MAX 10000          /* callbacks of lost sockets */

enum sock_state {
    SOCK_LISTENER = 1,
    SOCK_CONNECTING, /* the other side has not answered */
    SOCK_OPEN,
    SOCK_LOST, /* refused or reset: every call says so */
};

struct env_sock {
    struct sim_host *host;
    struct list node;    /* host.socks, or a listener's backlog before it is accepted */
    struct list on_list; /* sim.listeners */
    struct list backlog;
    uint32_t n_backlog, id;
    enum sock_state state;
    int lost_errno;
    struct env_addr addr;  /* own, of a listener; where to, of a connect */
    struct env_sock *peer; /* NULL: gone */
    struct buf rx;
    size_t arrived, window;
    uint64_t latency_us;
    bool fin_sent;    /* the peer's last byte is in rx */
    bool fin_arrived; /* and has arrived */
    bool shut;        /* we said our last byte */
    bool killed;      /* by the network, not by an end */
    unsigned events;
    void (*ready)(void *ctx, unsigned events);
    void *ctx;
    struct env_timer ready_timer, arrive_timer, life_timer; /* life: connect, reset on its way */
};

struct env_addr sim_addr(unsigned host, uint16_t port)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct env_addr a = {.len = sizeof(in)};

    in.sin_addr.s_addr = htonl(host == 0 ? 0x7f000001 : 0x0a000000 + host);
    memcpy(a.bytes, &in, sizeof(in));
    return a;
}

static bool addr_eq(const struct env_addr *a, const struct env_addr *b)
{
    return a->len == b->len && memcmp(a->bytes, b->bytes, a->len) == 0;
}

/* ---- readiness ---- */

static unsigned readiness(const struct env_sock *s)
{
    unsigned events = 0;

    switch (s->state) {
    case SOCK_LISTENER:
        return list_is_empty(&s->backlog) ? 0 : ENV_READ;
    case SOCK_CONNECTING:
        return 0;
    case SOCK_LOST:
        return ENV_READ | ENV_WRITE;
    case SOCK_OPEN:
        if (s->arrived > 0 || s->fin_arrived) {
            events |= ENV_READ;
        }
        if (s->peer == NULL || s->peer->rx.len < s->peer->window) {
            events |= ENV_WRITE;
        }
        return events;
    }
    return 0;
}

static void poke(struct env_sock *s)
{
    struct sim *sim = s->host->sim;

    if ((readiness(s) & s->events) != 0 && !env_timer_is_armed(&s->ready_timer)) {
        sim_arm(sim, s->host, &s->ready_timer, sim->now_us + sim_below(&sim->net, READY_US));
    }
}

static void ready_fire(struct env_timer *t)
{
    struct env_sock *s = CONTAINER_OF(t, struct env_sock, ready_timer);
    struct sim *sim = s->host->sim;
    unsigned events = readiness(s) & s->events;

    if (events == 0) {
        return;
    }
    /* Level-triggered: armed first, since the callback may close the socket (which disarms). */
    sim_arm(sim, s->host, &s->ready_timer, sim->now_us + 1 + sim_below(&sim->net, READY_US));
    s->ready(s->ctx, events);
}

/* ---- loss ---- */

static void lose(struct env_sock *s, int why, bool drop_arrived)
{
    if (s->state == SOCK_LOST) {
        return;
    }
    sim_trace(s->host->sim, "%s #%u lost (%d)", s->host->name, s->id, why);
    s->state = SOCK_LOST;
    s->lost_errno = why;
    buf_truncate(&s->rx, drop_arrived ? 0 : s->arrived);
    s->arrived = s->rx.len;
    env_timer_disarm(&s->host->env, &s->arrive_timer);
    poke(s);
}

static void reset_fire(struct env_timer *t)
{
    struct env_sock *s = CONTAINER_OF(t, struct env_sock, life_timer);

    lose(s, ECONNRESET, sim_chance(&s->host->sim->net, 500));
}

/* A reset travels to s; nothing comes after it. */
static void reset_send(struct env_sock *s, uint64_t in_us)
{
    struct sim *sim = s->host->sim;

    if (s->state == SOCK_LOST) {
        return;
    }
    env_timer_disarm(&s->host->env, &s->life_timer);
    s->life_timer.fire = reset_fire;
    sim_arm(sim, s->host, &s->life_timer, sim->now_us + in_us);
}

/* ---- arrival ---- */

static void arrive_arm(struct env_sock *s)
{
    struct sim *sim = s->host->sim;
    uint64_t in_us = s->latency_us;

    if (env_timer_is_armed(&s->arrive_timer) || s->state != SOCK_OPEN ||
        (s->arrived == s->rx.len && (!s->fin_sent || s->fin_arrived))) {
        return;
    }
    if (sim_chance(&sim->net, sim->faults.stall)) {
        in_us += sim_below(&sim->net, STALL_US);
    }
    sim_arm(sim, s->host, &s->arrive_timer, sim->now_us + in_us);
}

static void arrive_fire(struct env_timer *t)
{
    struct env_sock *s = CONTAINER_OF(t, struct env_sock, arrive_timer);
    struct sim *sim = s->host->sim;
    size_t coming = s->rx.len - s->arrived;

    if (sim_chance(&sim->net, sim->faults.reset) && s->peer != NULL) {
        sim_trace(sim, "network kills #%u", s->id);
        s->killed = s->peer->killed = true;
        reset_send(s->peer, s->latency_us);
        lose(s, ECONNRESET, true);
        return;
    }
    if (coming > 1 && sim_chance(&sim->net, sim->faults.split)) {
        coming = (size_t)sim_range(&sim->net, 1, coming);
    }
    s->arrived += coming;
    s->fin_arrived = s->fin_sent && s->arrived == s->rx.len;
    arrive_arm(s);
    poke(s);
}

/* ---- life ---- */

static struct env_sock *sock_new(struct sim_host *h, enum sock_state state)
{
    struct sim *sim = h->sim;
    struct env_sock *s = mem_new(sizeof(*s));

    s->host = h;
    s->id = ++sim->next_sock;
    s->state = state;
    s->window =
        (size_t)sim_range(&sim->net, RX_MIN, sim_chance(&sim->net, 500) ? RX_MIN * 8 : RX_MAX);
    s->latency_us = sim_range(&sim->net, LATENCY_MIN_US, LATENCY_MAX_US);
    buf_init(&s->rx, RX_HARD_MAX);
    list_init(&s->node);
    list_init(&s->on_list);
    list_init(&s->backlog);
    s->ready_timer.fire = ready_fire;
    s->arrive_timer.fire = arrive_fire;
    list_push_back(&h->socks, &s->node);
    return s;
}

struct env_sock *sim_listen(struct env *e, const struct env_addr *a, bool reuse_port,
                            struct err *err)
{
    struct sim_host *h = sim_host_of(e);
    struct env_sock *s;

    (void)reuse_port;
    if (h->dead) {
        err_set(err, ERR_IO, "the host is dead");
        return NULL;
    }
    s = sock_new(h, SOCK_LISTENER);
    s->addr = *a;
    list_push_back(&h->sim->listeners, &s->on_list);
    return s;
}

static struct env_sock *listener_at(struct sim *sim, const struct env_addr *a)
{
    LIST_EACH(it, &sim->listeners)
    {
        struct env_sock *l = CONTAINER_OF(it, struct env_sock, on_list);

        if (addr_eq(&l->addr, a)) {
            return l;
        }
    }
    return NULL;
}

static void connect_fire(struct env_timer *t)
{
    struct env_sock *s = CONTAINER_OF(t, struct env_sock, life_timer);
    struct sim *sim = s->host->sim;
    struct env_sock *l = listener_at(sim, &s->addr), *other;

    if (l == NULL || l->n_backlog >= BACKLOG_MAX || sim_chance(&sim->net, sim->faults.refuse)) {
        lose(s, ECONNREFUSED, true);
        return;
    }
    other = sock_new(l->host, SOCK_OPEN);
    list_remove(&other->node);
    list_push_back(&l->backlog, &other->node);
    l->n_backlog++;
    other->peer = s;
    s->peer = other;
    s->state = SOCK_OPEN;
    sim_trace(sim, "%s #%u connected to %s #%u", s->host->name, s->id, l->host->name, other->id);
    poke(l);
    poke(s);
}

static void unanswered_fire(struct env_timer *t)
{
    lose(CONTAINER_OF(t, struct env_sock, life_timer), ETIMEDOUT, true);
}

struct env_sock *sim_connect(struct env *e, const struct env_addr *a, struct err *err)
{
    struct sim_host *h = sim_host_of(e);
    struct env_sock *s;

    if (h->dead) {
        err_set(err, ERR_IO, "the host is dead");
        return NULL;
    }
    s = sock_new(h, SOCK_CONNECTING);
    s->addr = *a;
    s->life_timer.fire = connect_fire;
    if (sim_chance(&h->sim->net, h->sim->faults.blackhole)) {
        s->life_timer.fire = unanswered_fire;
        sim_arm(h->sim, h, &s->life_timer, h->sim->now_us + UNANSWERED_US);
    } else {
        sim_arm(h->sim, h, &s->life_timer, h->sim->now_us + s->latency_us);
    }
    return s;
}

struct env_sock *sim_accept(struct env *e, struct env_sock *l, struct env_addr *peer)
{
    struct sim *sim = l->host->sim;
    struct env_sock *s;

    (void)e;
    if (l->host->dead || list_is_empty(&l->backlog) || sim_chance(&sim->net, sim->faults.accept)) {
        return NULL;
    }
    s = CONTAINER_OF(list_pop_front(&l->backlog), struct env_sock, node);
    l->n_backlog--;
    list_push_back(&l->host->socks, &s->node);
    if (peer != NULL) {
        *peer = sim_addr(200, (uint16_t)(1024 + s->id % 60000));
    }
    return s;
}

ssize_t sim_read(struct env *e, struct env_sock *s, void *p, size_t n)
{
    struct sim *sim = s->host->sim;

    if (sim_host_of(e)->dead) {
        return -ECONNRESET;
    }
    if (s->state == SOCK_CONNECTING) {
        return -EAGAIN;
    }
    if (s->arrived == 0) {
        return s->state == SOCK_LOST ? -s->lost_errno : s->fin_arrived ? 0 : -EAGAIN;
    }
    if (sim_chance(&sim->net, sim->faults.again)) {
        return -EAGAIN;
    }
    n = size_min(n, s->arrived);
    if (n > 1 && sim_chance(&sim->net, sim->faults.split)) {
        n = (size_t)sim_range(&sim->net, 1, n);
    }
    memcpy(p, buf_view(&s->rx).p, n);
    buf_consume(&s->rx, n);
    s->arrived -= n;
    if (s->peer != NULL) {
        poke(s->peer);
    }
    return (ssize_t)n;
}

ssize_t sim_writev(struct env *e, struct env_sock *s, const struct iovec *v, int count)
{
    struct sim *sim = s->host->sim;
    struct env_sock *to = s->peer;
    size_t total = 0, done = 0;

    if (sim_host_of(e)->dead || s->shut) {
        return -EPIPE;
    }
    if (s->state != SOCK_OPEN) {
        return s->state == SOCK_LOST ? -s->lost_errno : -EAGAIN;
    }
    for (int i = 0; i < count; i++) {
        total += v[i].iov_len;
    }
    if (to == NULL) { /* the peer is gone: the first bytes vanish and a reset comes back */
        reset_send(s, s->latency_us);
        return (ssize_t)total;
    }
    if (total > 0 && to->rx.len >= to->window) {
        return -EAGAIN;
    }
    total = size_min(total, to->window - to->rx.len);
    if (total > 1 && sim_chance(&sim->net, sim->faults.short_write)) {
        total = (size_t)sim_range(&sim->net, 1, total);
    }
    for (int i = 0; i < count && done < total; i++) {
        size_t n = size_min(v[i].iov_len, total - done);

        buf_append(&to->rx, v[i].iov_base, n);
        done += n;
    }
    CHECK(!to->rx.failed);
    arrive_arm(to);
    return (ssize_t)done;
}

void sim_shutdown(struct env *e, struct env_sock *s)
{
    (void)e;
    if (s->shut || s->host->dead) {
        return;
    }
    s->shut = true;
    if (s->peer != NULL) {
        s->peer->fin_sent = true;
        arrive_arm(s->peer);
    }
}

/* The peer hears a reset when input was left unread or when asked to, else an end after the rest.
 */
static void sock_end(struct env_sock *s, bool reset)
{
    struct sim *sim = s->host->sim;
    struct env_sock *peer = s->peer;

    env_timer_disarm(&s->host->env, &s->ready_timer);
    env_timer_disarm(&s->host->env, &s->arrive_timer);
    env_timer_disarm(&s->host->env, &s->life_timer);
    list_remove(&s->node);
    list_remove(&s->on_list);
    while (!list_is_empty(&s->backlog)) {
        sock_end(CONTAINER_OF(s->backlog.next, struct env_sock, node), true);
    }
    if (peer != NULL) {
        peer->peer = NULL;
        peer->fin_sent = true;
        if (reset || s->rx.len > 0) {
            buf_truncate(
                &peer->rx,
                size_max(peer->arrived, peer->rx.len - sim_below(&sim->net, peer->rx.len + 1)));
            reset_send(peer, peer->latency_us);
        } else {
            arrive_arm(peer);
        }
        poke(peer);
    }
    buf_fini(&s->rx);
    mem_free(s);
}

void sim_close(struct env *e, struct env_sock *s)
{
    (void)e;
    if (s != NULL) {
        sim_trace(s->host->sim, "%s #%u closed", s->host->name, s->id);
        sock_end(s, false);
    }
}

void sim_sock_reset(struct env_sock *s)
{
    sock_end(s, true);
}

bool sim_sock_was_killed(const struct env_sock *s)
{
    return s->killed;
}

void sim_watch(struct env *e, struct env_sock *s, unsigned events,
               void (*ready)(void *ctx, unsigned events), void *ctx)
{
    (void)e;
    s->events = events;
    s->ready = ready;
    s->ctx = ctx;
    if (!s->host->dead) {
        poke(s);
    }
}

bool sim_local_addr(struct env *e, struct env_sock *s, struct env_addr *out)
{
    (void)e;
    *out = s->addr;
    return true;
}

/* ---- death of a host ---- */

void sim_net_kill_host(struct sim_host *h, bool silent)
{
    struct sim *sim = h->sim;

    LIST_EACH_SAFE(it, tmp, &h->socks)
    {
        struct env_sock *s = CONTAINER_OF(it, struct env_sock, node), *peer = s->peer;

        list_remove(&s->on_list); /* nobody connects any more */
        while (!list_is_empty(&s->backlog)) {
            sock_end(CONTAINER_OF(s->backlog.next, struct env_sock, node), true);
        }
        s->n_backlog = 0;
        if (peer != NULL) {
            peer->peer = NULL;
            s->peer = NULL;
            if (silent) {
                reset_send(peer, sim_below(&sim->net, SILENT_DEATH_US));
            } else if (s->rx.len > 0 || sim_chance(&sim->net, 300)) {
                reset_send(peer, peer->latency_us);
            } else {
                peer->fin_sent = true;
                arrive_arm(peer);
            }
        }
        if (s->state != SOCK_LISTENER) {
            lose(s, ECONNRESET, true);
        }
        env_timer_disarm(&h->env, &s->ready_timer);
        env_timer_disarm(&h->env, &s->arrive_timer);
        env_timer_disarm(&h->env, &s->life_timer);
    }
}

void sim_net_tell_lost(struct sim_host *h)
{
    bool told = true;

    CHECK(h->dead);
    for (int i = 0; i < TELL_MAX && told; i++) {
        told = false;
        LIST_EACH(it, &h->socks)
        {
            struct env_sock *s = CONTAINER_OF(it, struct env_sock, node);

            if (s->state != SOCK_LISTENER && s->events != 0) {
                s->ready(s->ctx, s->events);
                told = true;
                break; /* the list has changed */
            }
        }
        sim_host_run_tasks(h);
    }
}

uint32_t sim_net_count(const struct sim_host *h)
{
    uint32_t n = 0;

    LIST_EACH(it, &h->socks)
    {
        n++;
    }
    return n;
}
