/* os.c - the loop of the real env: epoll, timer heap, deferred tasks, doorbells, signals, look-ups.
 *
 * os_turn is the loop read aloud. Everything a callback may free (sockets, doorbells) rests on
 * `dead` until the turn ends. */
#include "base/net/os_impl.h"

#include <fcntl.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#define EVENTS_PER_TURN 256
/* Tasks that defer tasks: after so many rounds the sockets get a turn before the rest. */
#define TASK_ROUNDS_MAX 64
/* A stream arms about three timers; this is a bug's bound, not a load's. */
#define TIMERS_MAX (1u << 22)
#define WAIT_MS_MAX 60000

static uint64_t clock_us(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static uint64_t os_now_us(struct env *e)
{
    return os_of(e)->now_us;
}

static uint64_t os_wall_us(struct env *e)
{
    (void)e;
    return clock_us(CLOCK_REALTIME);
}

static void kernel_random(void *p, size_t n)
{
    size_t done = 0;

    while (done < n) {
        ssize_t got = getrandom((char *)p + done, n - done, 0);

        CHECK(got > 0 || errno == EINTR);
        done += got > 0 ? (size_t)got : 0;
    }
}

/* Small amounts come from a stock, so that a request needs no system call. */
static void os_random(struct env *e, void *p, size_t n)
{
    struct os_env *o = os_of(e);

    if (n > sizeof(o->random)) {
        kernel_random(p, n);
        return;
    }
    if (n > o->random_left) {
        kernel_random(o->random, sizeof(o->random));
        o->random_left = sizeof(o->random);
    }
    o->random_left -= n;
    memcpy(p, o->random + o->random_left, n);
    memset(o->random + o->random_left, 0, n); /* nobody reads it again, a core file neither */
}

/* Timers: heap[1] is due first; a timer's slot is its index, 0 means not armed. */

static void heap_put(struct os_env *o, uint32_t slot, struct env_timer *t)
{
    o->heap[slot] = t;
    t->slot = slot;
}

static void heap_up(struct os_env *o, uint32_t slot, struct env_timer *t)
{
    while (slot > 1 && o->heap[slot / 2]->due_us > t->due_us) {
        heap_put(o, slot, o->heap[slot / 2]);
        slot /= 2;
    }
    heap_put(o, slot, t);
}

static void heap_down(struct os_env *o, uint32_t slot, struct env_timer *t)
{
    for (;;) {
        uint32_t child = 2 * slot;

        if (child < o->timers && o->heap[child + 1]->due_us < o->heap[child]->due_us) {
            child++;
        }
        if (child > o->timers || o->heap[child]->due_us >= t->due_us) {
            break;
        }
        heap_put(o, slot, o->heap[child]);
        slot = child;
    }
    heap_put(o, slot, t);
}

static void os_timer_arm(struct env *e, struct env_timer *t)
{
    struct os_env *o = os_of(e);

    CHECK(t->slot == 0 && o->timers < TIMERS_MAX);
    if (o->timers + 1 >= o->heap_cap) {
        uint32_t cap = o->heap_cap == 0 ? 64 : 2 * o->heap_cap;

        o->heap = mem_resize(o->heap, cap * sizeof(struct env_timer *));
        CHECK(o->heap != NULL);
        o->heap_cap = cap;
    }
    o->timers++;
    heap_up(o, o->timers, t);
}

static void os_timer_disarm(struct env *e, struct env_timer *t)
{
    struct os_env *o = os_of(e);
    uint32_t slot = t->slot;
    struct env_timer *last;

    if (slot == 0) {
        return;
    }
    CHECK(slot <= o->timers && o->heap[slot] == t);
    last = o->heap[o->timers--];
    t->slot = 0;
    if (last == t) {
        return;
    }
    if (slot > 1 && o->heap[slot / 2]->due_us > last->due_us) {
        heap_up(o, slot, last);
    } else {
        heap_down(o, slot, last);
    }
}

/* A timer that arms itself again for now fires at most as often as there were timers. */
static void os_fire_timers(struct os_env *o)
{
    uint32_t left = o->timers;

    while (left-- > 0 && o->timers > 0 && o->heap[1]->due_us <= o->now_us) {
        struct env_timer *t = o->heap[1];

        os_timer_disarm(&o->env, t);
        t->fire(t);
    }
}

static void os_defer(struct env *e, struct env_task *t)
{
    if (!t->queued) {
        t->queued = true;
        list_push_back(&os_of(e)->tasks, &t->node);
    }
}

/* Runs what is queued at the start of the round; what these defer is the next round's. */
static void os_run_task_round(struct os_env *o)
{
    struct list round, *n;

    list_init(&round);
    while ((n = list_pop_front(&o->tasks)) != NULL) {
        list_push_back(&round, n);
    }
    while ((n = list_pop_front(&round)) != NULL) {
        struct env_task *t = CONTAINER_OF(n, struct env_task, node);

        t->queued = false;
        t->run(t);
    }
}

bool os_source_register(struct os_env *o, struct os_source *s, uint32_t epoll_events)
{
    struct epoll_event ev = {.events = epoll_events, .data.ptr = s};
    int op = s->registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;

    if (epoll_ctl(o->epoll_fd, op, s->fd, &ev) != 0) {
        return false;
    }
    s->registered = true;
    return true;
}

void os_source_unregister(struct os_env *o, struct os_source *s)
{
    if (s->registered) {
        epoll_ctl(o->epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
        s->registered = false;
    }
}

void os_source_close(struct os_env *o, struct os_source *s)
{
    CHECK(s->fd >= 0);
    os_source_unregister(o, s);
    close(s->fd);
    s->fd = -1;
    s->ready = NULL;
    list_push_back(&o->dead, &s->node);
}

static void os_free_dead(struct os_env *o)
{
    struct list *n;

    while ((n = list_pop_front(&o->dead)) != NULL) {
        mem_free(CONTAINER_OF(n, struct os_source, node)); /* first member of what it lives in */
    }
}
_Static_assert(offsetof(struct env_sock, source) == 0 && offsetof(struct env_wake, source) == 0,
               "a source is freed as what it lives in");

static void wake_ready(struct os_source *source, uint32_t got)
{
    struct env_wake *w = CONTAINER_OF(source, struct env_wake, source);
    uint64_t rings;

    (void)got;
    if (read(source->fd, &rings, sizeof(rings)) == (ssize_t)sizeof(rings)) {
        w->rung(w->ctx);
    }
}

static struct env_wake *os_wake_new(struct env *e, void (*rung)(void *ctx), void *ctx)
{
    struct env_wake *w = mem_new(sizeof(*w));

    w->rung = rung;
    w->ctx = ctx;
    w->source.ready = wake_ready;
    list_init(&w->source.node);
    w->source.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    CHECK(w->source.fd >= 0);
    CHECK(os_source_register(os_of(e), &w->source, EPOLLIN));
    return w;
}

static void os_wake_free(struct env *e, struct env_wake *w)
{
    if (w != NULL) {
        os_source_close(os_of(e), &w->source);
    }
}

/* Any thread, and signal handlers: write(2) only, errno kept. A full counter is rung already. */
static void os_wake_signal(struct env_wake *w)
{
    static const uint64_t one = 1;
    int kept = errno;
    ssize_t ignored = write(w->source.fd, &one, sizeof(one));

    (void)ignored;
    errno = kept;
}

/* Tells the asker on its own loop and ends the job. */
static void resolve_finish(struct resolve_job *job)
{
    struct env_dns *dns = job->dns;
    struct err e = {.code = ERR_NONE};

    if (dns != NULL) {
        dns->impl = NULL;
        if (job->addr.len != 0) {
            dns->done(dns, &job->addr, &e);
        } else {
            err_set(&e, ERR_UNAVAILABLE, "cannot resolve \"%s\": %s", job->host,
                    gai_strerror(job->failure));
            dns->done(dns, NULL, &e);
        }
    }
    mem_free(job);
}

static void resolve_rung(void *ctx)
{
    struct os_env *o = ctx;
    struct resolve_job *job;

    while ((job = resolver_take(o->resolver, &o->inbox)) != NULL) {
        resolve_finish(job);
    }
}

static void resolve_answered(struct env_task *t)
{
    struct os_env *o = CONTAINER_OF(t, struct os_env, answered_task);
    struct list *n;

    while ((n = list_pop_front(&o->answered)) != NULL) {
        resolve_finish(CONTAINER_OF(n, struct resolve_job, node));
    }
}

static void os_resolve(struct env *e, struct str host, uint16_t port, struct env_dns *dns)
{
    struct os_env *o = os_of(e);
    struct resolve_job *job = mem_new(sizeof(*job));

    job->dns = dns;
    job->port = port;
    job->inbox = &o->inbox;
    list_init(&job->node);
    dns->impl = job;
    str_copy(host, job->host, sizeof(job->host));
    job->failure = EAI_NONAME;
    if (!os_addr_numeric(host, port, &job->addr) && o->resolver != NULL && host.n != 0 &&
        host.n <= RESOLVE_HOST_MAX && memchr(host.p, '\0', host.n) == NULL) {
        if (resolver_submit(o->resolver, job)) {
            return;
        }
        job->failure = EAI_AGAIN;
    }
    list_push_back(&o->answered, &job->node);
    os_defer(e, &o->answered_task);
}

/* The job runs to its end and then finds nobody to tell. */
static void os_resolve_drop(struct env *e, struct env_dns *dns)
{
    struct resolve_job *job = dns->impl;

    (void)e;
    if (job != NULL) {
        job->dns = NULL;
        dns->impl = NULL;
    }
}

static const struct env_ops os_ops = {
    .now_us = os_now_us,
    .wall_us = os_wall_us,
    .random = os_random,
    .timer_arm = os_timer_arm,
    .timer_disarm = os_timer_disarm,
    .defer = os_defer,
    .listen = os_sock_listen,
    .accept = os_sock_accept,
    .connect = os_sock_connect,
    .read = os_sock_read,
    .writev = os_sock_writev,
    .shutdown = os_sock_shutdown,
    .close = os_sock_close,
    .watch = os_sock_watch,
    .local_addr = os_sock_local_addr,
    .wake_new = os_wake_new,
    .wake_free = os_wake_free,
    .wake_signal = os_wake_signal,
    .resolve = os_resolve,
    .resolve_drop = os_resolve_drop,
    .file_open = os_file_open,
    .file_pread = os_file_pread,
    .file_pwrite = os_file_pwrite,
    .file_sync = os_file_sync,
    .file_size = os_file_size,
    .file_allocate = os_file_allocate,
    .file_truncate = os_file_truncate,
    .file_close = os_file_close,
    .file_rename = os_file_rename,
    .file_unlink = os_file_unlink,
    .dir_make = os_dir_make,
    .dir_sync = os_dir_sync,
    .dir_list = os_dir_list,
};

void os_process_init(void)
{
    int fd;

    do {
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    } while (fd >= 0 && fd <= STDERR_FILENO); /* at most three times */
    for (int i = 0; i <= STDERR_FILENO; i++) {
        int flags = fcntl(i, F_GETFD);
        if (flags >= 0) { /* these are for children too */
            (void)fcntl(i, F_SETFD, flags & ~FD_CLOEXEC);
        }
    }
    if (fd > STDERR_FILENO) {
        close(fd);
    }
    (void)signal(SIGPIPE, SIG_IGN);
}

struct env *os_env_new(struct resolver *r, struct err *e)
{
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct os_env *o;

    if (epoll_fd < 0) {
        err_errno(e, errno, "cannot make an event loop");
        return NULL;
    }
    o = mem_new(sizeof(*o));
    o->env.ops = &os_ops;
    o->epoll_fd = epoll_fd;
    o->now_us = clock_us(CLOCK_MONOTONIC);
    list_init(&o->tasks);
    list_init(&o->dead);
    list_init(&o->starved);
    list_init(&o->answered);
    list_init(&o->inbox.ready);
    o->starved_timer.fire = os_sock_starved_fire;
    o->answered_task.run = resolve_answered;
    o->signals.fd = -1;
    o->resolver = r;
    if (r != NULL) {
        o->inbox.env = &o->env;
        o->inbox.bell = os_wake_new(&o->env, resolve_rung, o);
    }
    return &o->env;
}

void os_env_free(struct env *e)
{
    struct os_env *o;
    struct list *n;

    if (e == NULL) {
        return;
    }
    o = os_of(e);
    if (o->resolver != NULL) {
        resolver_forget(o->resolver, &o->inbox);
        os_wake_free(e, o->inbox.bell);
    }
    while ((n = list_pop_front(&o->answered)) != NULL) {
        mem_free(CONTAINER_OF(n, struct resolve_job, node));
    }
    if (o->signals.fd >= 0) {
        close(o->signals.fd);
    }
    os_free_dead(o);
    close(o->epoll_fd);
    mem_free(o->heap);
    mem_free(o);
}

/* Milliseconds to sleep: until the next timer, rounded up so that it is due on waking. */
static int os_wait_ms(struct os_env *o, uint64_t max_wait_us)
{
    uint64_t wait_us = max_wait_us;

    if (!list_is_empty(&o->tasks)) {
        return 0;
    }
    if (o->timers > 0 && wait_us > 0) {
        uint64_t now_us = clock_us(CLOCK_MONOTONIC);
        uint64_t due_us = o->heap[1]->due_us;

        wait_us = u64_min(wait_us, due_us > now_us ? due_us - now_us : 0);
    }
    return (int)(u64_min(wait_us, (uint64_t)WAIT_MS_MAX * 1000) + 999) / 1000;
}

void os_turn(struct env *e, uint64_t max_wait_us)
{
    struct os_env *o = os_of(e);
    struct epoll_event events[EVENTS_PER_TURN];
    int n = epoll_wait(o->epoll_fd, events, EVENTS_PER_TURN, os_wait_ms(o, max_wait_us));

    o->now_us = clock_us(CLOCK_MONOTONIC);
    for (int i = 0; i < n; i++) {
        struct os_source *s = events[i].data.ptr;

        if (s->ready != NULL && s->registered) {
            s->ready(s, events[i].events);
        }
    }
    os_fire_timers(o);
    for (int round = 0; round < TASK_ROUNDS_MAX && !list_is_empty(&o->tasks); round++) {
        os_run_task_round(o);
    }
    os_free_dead(o);
}

void os_run(struct env *e)
{
    struct os_env *o = os_of(e);

    o->stopped = false;
    while (!o->stopped) {
        os_turn(e, (uint64_t)WAIT_MS_MAX * 1000);
    }
}

void os_stop(struct env *e)
{
    os_of(e)->stopped = true;
}

static void signals_ready(struct os_source *s, uint32_t got)
{
    struct os_env *o = CONTAINER_OF(s, struct os_env, signals);
    struct signalfd_siginfo info;

    (void)got;
    while (read(s->fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        o->got_signal(o->signal_ctx, (int)info.ssi_signo);
    }
}

bool os_on_signals(struct env *e, void (*got)(void *ctx, int signo), void *ctx, struct err *err)
{
    struct os_env *o = os_of(e);
    sigset_t set;
    int failed;

    CHECK(o->signals.fd < 0);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    failed = pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (failed != 0) {
        return err_errno(err, failed, "cannot block signals");
    }
    o->signals.fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (o->signals.fd < 0) {
        return err_errno(err, errno, "cannot listen to signals");
    }
    o->got_signal = got;
    o->signal_ctx = ctx;
    o->signals.ready = signals_ready;
    if (!os_source_register(o, &o->signals, EPOLLIN)) {
        return err_errno(err, errno, "cannot listen to signals");
    }
    return true;
}
