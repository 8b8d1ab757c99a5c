/* sim_env.c - virtual time: the event heap, turns, and what a host's env does besides I/O. */
#include "sim.h"

#include "base/net/os.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define HEAP_MAX (1u << 20)
#define TASKS_PER_TURN_MAX 1000000 /* tasks that make tasks without end are a livelock */
#define TIMER_JITTER_US 1000       /* epoll_wait counts milliseconds, rounded up */
#define LATE_US 500
#define WAKE_US 50
#define LOOKUP_US 3000

uint64_t sim_rng_next(struct sim_rng *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

/* ---- trace and verdict ---- */

void sim_trace(struct sim *s, const char *fmt, ...)
{
    char line[512];
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    for (int i = 0; i < n && i < (int)sizeof(line) - 1; i++) { /* FNV-1a */
        s->trace = (s->trace ^ (uint8_t)line[i]) * 0x100000001b3;
    }
    s->trace = (s->trace ^ s->now_us) * 0x100000001b3;
    if (s->verbose) {
        printf("%10.6f %s\n", (double)s->now_us / 1e6, line);
    }
}

void sim_fail(struct sim *s, const char *fmt, ...)
{
    char line[sizeof(s->failure)];
    va_list args;

    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    sim_trace(s, "VIOLATION %s", line);
    if (!s->failed) {
        memcpy(s->failure, line, sizeof(line));
    }
    s->failed = true;
}

/* ---- the heap ---- */

static bool is_before(const struct sim_due *a, const struct sim_due *b)
{
    return a->due_us != b->due_us ? a->due_us < b->due_us : a->order < b->order;
}

static void heap_put(struct sim *s, uint32_t at, struct sim_due d)
{
    s->heap[at] = d;
    d.timer->slot = at;
}

static void heap_up(struct sim *s, uint32_t at)
{
    struct sim_due d = s->heap[at];

    while (at > 1 && is_before(&d, &s->heap[at / 2])) {
        heap_put(s, at, s->heap[at / 2]);
        at /= 2;
    }
    heap_put(s, at, d);
}

static void heap_down(struct sim *s, uint32_t at)
{
    struct sim_due d = s->heap[at];

    for (;;) {
        uint32_t child = at * 2;

        if (child < s->n_due && is_before(&s->heap[child + 1], &s->heap[child])) {
            child++;
        }
        if (child > s->n_due || !is_before(&s->heap[child], &d)) {
            break;
        }
        heap_put(s, at, s->heap[child]);
        at = child;
    }
    heap_put(s, at, d);
}

void sim_arm(struct sim *s, struct sim_host *h, struct env_timer *t, uint64_t due_us)
{
    CHECK(t->slot == 0 && s->n_due < HEAP_MAX);
    if (s->n_due + 2 > s->cap_due) {
        s->cap_due = s->cap_due == 0 ? 1024 : s->cap_due * 2;
        s->heap = mem_resize(s->heap, s->cap_due * sizeof(*s->heap));
        CHECK(s->heap != NULL);
    }
    s->n_due++;
    s->heap[s->n_due] = (struct sim_due){due_us, s->order++, t, h};
    if (h != NULL) {
        h->n_timers++;
    }
    heap_up(s, s->n_due);
}

void sim_disarm(struct sim *s, struct env_timer *t)
{
    uint32_t at = t->slot;

    CHECK(at > 0 && at <= s->n_due && s->heap[at].timer == t);
    if (s->heap[at].host != NULL) {
        s->heap[at].host->n_timers--;
    }
    t->slot = 0;
    if (at != s->n_due) {
        s->heap[at] = s->heap[s->n_due];
        s->heap[at].timer->slot = at;
        s->n_due--;
        heap_up(s, at);
        heap_down(s, s->heap[at].timer->slot);
    } else {
        s->n_due--;
    }
}

/* ---- turns ---- */

void sim_host_run_tasks(struct sim_host *h)
{
    struct list *n;
    int left = TASKS_PER_TURN_MAX;

    while ((n = list_pop_front(&h->tasks)) != NULL) {
        struct env_task *t = CONTAINER_OF(n, struct env_task, node);

        CHECK(left-- > 0);
        t->queued = false;
        t->run(t);
    }
}

static bool is_armed(const struct sim *s, const struct env_timer *t)
{
    for (uint32_t i = 1; i <= s->n_due; i++) {
        if (s->heap[i].timer == t) {
            return true;
        }
    }
    return false;
}

void sim_host_fire_timers(struct sim_host *h)
{
    struct sim *s = h->sim;
    struct env_timer **timers = mem_new((h->n_timers + 1) * sizeof(struct env_timer *));
    uint32_t n = 0;

    CHECK(h->dead);
    for (uint32_t i = 1; i <= s->n_due; i++) {
        if (s->heap[i].host == h) {
            timers[n++] = s->heap[i].timer;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (is_armed(s, timers[i])) { /* else an earlier one took it away, maybe with its memory */
            sim_disarm(s, timers[i]);
            timers[i]->fire(timers[i]);
        }
    }
    mem_free(timers);
    sim_host_run_tasks(h);
}

bool sim_turn(struct sim *s)
{
    if (s->n_due == 0) {
        return false;
    }
    s->turns++;
    if (s->heap[1].due_us > s->now_us) {
        s->now_us = s->heap[1].due_us;
    }
    if (sim_chance(&s->turn, s->faults.late)) {
        s->now_us += sim_below(&s->turn, LATE_US);
    }
    while (s->n_due > 0 && s->heap[1].due_us <= s->now_us) {
        struct env_timer *t = s->heap[1].timer;

        sim_disarm(s, t);
        t->fire(t);
    }
    LIST_EACH(it, &s->hosts)
    {
        sim_host_run_tasks(CONTAINER_OF(it, struct sim_host, node));
    }
    return true;
}

/* ---- env: time, chance, tasks ---- */

static uint64_t sim_now_us(struct env *e)
{
    return sim_host_of(e)->sim->now_us;
}

static uint64_t sim_wall_us(struct env *e)
{
    return sim_host_of(e)->sim->wall_us + sim_host_of(e)->sim->now_us;
}

static void sim_random(struct env *e, void *p, size_t n)
{
    struct sim_host *h = sim_host_of(e);
    uint8_t *to = p;

    for (size_t i = 0; i < n; i++) {
        to[i] = (uint8_t)(sim_rng_next(&h->random) >> 32);
    }
}

static void sim_timer_arm(struct env *e, struct env_timer *t)
{
    struct sim_host *h = sim_host_of(e);
    uint64_t due_us = u64_max(t->due_us, h->sim->now_us);

    if (h->jitter) {
        due_us += sim_below(&h->sim->turn, TIMER_JITTER_US);
    }
    sim_arm(h->sim, h, t, due_us);
}

static void sim_timer_disarm(struct env *e, struct env_timer *t)
{
    sim_disarm(sim_host_of(e)->sim, t);
}

static void sim_defer(struct env *e, struct env_task *t)
{
    if (!t->queued) {
        t->queued = true;
        list_push_back(&sim_host_of(e)->tasks, &t->node);
    }
}

/* ---- env: doorbells and names ---- */

struct env_wake {
    struct sim_host *host;
    struct env_timer timer;
    void (*rung)(void *ctx);
    void *ctx;
};

static void wake_fire(struct env_timer *t)
{
    struct env_wake *w = CONTAINER_OF(t, struct env_wake, timer);

    w->rung(w->ctx);
}

static struct env_wake *sim_wake_new(struct env *e, void (*rung)(void *ctx), void *ctx)
{
    struct env_wake *w = mem_new(sizeof(*w));

    w->host = sim_host_of(e);
    w->rung = rung;
    w->ctx = ctx;
    w->timer.fire = wake_fire;
    w->host->n_wakes++;
    return w;
}

static void sim_wake_free(struct env *e, struct env_wake *w)
{
    if (w != NULL) {
        env_timer_disarm(e, &w->timer);
        w->host->n_wakes--;
        mem_free(w);
    }
}

static void sim_wake_signal(struct env_wake *w)
{
    struct sim *s = w->host->sim;

    if (!env_timer_is_armed(&w->timer) && !w->host->dead) {
        sim_arm(s, w->host, &w->timer, s->now_us + sim_below(&s->turn, WAKE_US));
    }
}

struct lookup {
    struct sim_host *host;
    struct env_timer timer;
    struct env_dns *dns;
    struct env_addr addr;
    bool ok;
};

static void lookup_fire(struct env_timer *t)
{
    struct lookup *l = CONTAINER_OF(t, struct lookup, timer);
    struct env_dns *dns = l->dns;
    struct env_addr addr = l->addr;
    struct err e = {.code = ERR_NONE};
    bool ok = l->ok;

    l->host->n_lookups--;
    mem_free(l);
    dns->impl = NULL;
    if (!ok) {
        err_set(&e, ERR_UNAVAILABLE, "no such name");
    }
    dns->done(dns, ok ? &addr : NULL, &e);
}

static void sim_resolve(struct env *e, struct str host, uint16_t port, struct env_dns *dns)
{
    struct lookup *l = mem_new(sizeof(*l));
    struct err ignored = {.code = ERR_NONE};
    char text[ENV_ADDR_TEXT_MAX];
    int n = snprintf(text, sizeof(text), STR_FMT ":%u", STR_ARG(host), port);

    l->host = sim_host_of(e);
    l->host->n_lookups++;
    l->dns = dns;
    l->ok = n > 0 && os_addr_parse(str_of(text, (size_t)n), &l->addr, &ignored);
    l->timer.fire = lookup_fire;
    dns->impl = l;
    sim_arm(l->host->sim, l->host, &l->timer,
            l->host->sim->now_us + sim_below(&l->host->sim->turn, LOOKUP_US));
}

static void sim_resolve_drop(struct env *e, struct env_dns *dns)
{
    struct lookup *l = dns->impl;

    if (l != NULL) {
        env_timer_disarm(e, &l->timer);
        l->host->n_lookups--;
        mem_free(l);
        dns->impl = NULL;
    }
}

const struct env_ops sim_ops = {
    .now_us = sim_now_us,
    .wall_us = sim_wall_us,
    .random = sim_random,
    .timer_arm = sim_timer_arm,
    .timer_disarm = sim_timer_disarm,
    .defer = sim_defer,
    .listen = sim_listen,
    .accept = sim_accept,
    .connect = sim_connect,
    .read = sim_read,
    .writev = sim_writev,
    .shutdown = sim_shutdown,
    .close = sim_close,
    .watch = sim_watch,
    .local_addr = sim_local_addr,
    .wake_new = sim_wake_new,
    .wake_free = sim_wake_free,
    .wake_signal = sim_wake_signal,
    .resolve = sim_resolve,
    .resolve_drop = sim_resolve_drop,
    .file_open = sim_file_open,
    .file_pread = sim_file_pread,
    .file_pwrite = sim_file_pwrite,
    .file_sync = sim_file_sync,
    .file_size = sim_file_size,
    .file_allocate = sim_file_allocate,
    .file_truncate = sim_file_truncate,
    .file_close = sim_file_close,
    .file_rename = sim_file_rename,
    .file_unlink = sim_file_unlink,
    .dir_make = sim_dir_make,
    .dir_sync = sim_dir_sync,
    .dir_list = sim_dir_list,
};

/* ---- life ---- */

struct sim *sim_new(uint64_t seed, bool verbose)
{
    struct sim *s = mem_new(sizeof(*s));
    struct sim_rng root = {seed};

    s->seed = seed;
    s->verbose = verbose;
    s->now_us = 1000000;
    s->wall_us = SIM_WALL_US;
    s->trace = 0xcbf29ce484222325;
    s->net.state = sim_rng_next(&root);
    s->file.state = sim_rng_next(&root);
    s->turn.state = sim_rng_next(&root);
    list_init(&s->hosts);
    list_init(&s->listeners);
    s->disk = sim_disk_new(s);
    return s;
}

void sim_free(struct sim *s)
{
    sim_disk_free(s->disk);
    mem_free(s->heap);
    mem_free(s);
}

void sim_host_init(struct sim *s, struct sim_host *h, const char *name)
{
    *h = (struct sim_host){.env = {&sim_ops}, .sim = s, .name = name};
    h->random.state = sim_rng_next(&s->turn);
    list_init(&h->tasks);
    list_init(&h->socks);
    list_push_back(&s->hosts, &h->node);
}

void sim_host_fini(struct sim_host *h)
{
    CHECK(list_is_empty(&h->tasks));
    list_remove(&h->node);
}

void sim_host_kill(struct sim_host *h, bool power)
{
    CHECK(!h->dead);
    sim_trace(h->sim, "kill %s%s", h->name, power ? " (power lost)" : "");
    h->dead = true;
    h->kill_at_file_op = 0;
    sim_net_kill_host(h, power);
    sim_disk_crash(h->sim->disk, power);
}

void sim_host_revive(struct sim_host *h)
{
    CHECK(h->dead && list_is_empty(&h->tasks));
    sim_trace(h->sim, "revive %s", h->name);
    h->dead = false;
}
