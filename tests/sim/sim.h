/* sim.h - a world in one thread: virtual time, an event heap, hosts with envs, a network, a disk.
 *
 * Everything that happens is drawn from one seed, so a run is a function of it: the same seed gives
 * the same trace, and the trace's hash says so. Each host is an `env` (base/env.h); the gateway
 * runs on one, clients and workers on others. Faults are drawn from struct sim_faults, all zero in
 * the quiet phase. Knows sockets and files; never HTTP, never a gateway. */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include "base/buf.h"
#include "base/env.h"

#define SIM_WALL_US 1791000000000000u           /* 2026-10-03, 04:00:00 UTC */
#define SIM_MONTH_BEGIN_US 1790812800000000u    /* 2026-10-01, 00:00:00 UTC */
#define SIM_MONTH_END_US 1793491200000000u      /* 2026-11-01, 00:00:00 UTC */
#define SIM_NEXT_MONTH_END_US 1796083200000000u /* 2026-12-01, 00:00:00 UTC */
#define SIM_PORT_GATEWAY 8080

/* splitmix64: small, fast, any seed is a good one. */
struct sim_rng {
    uint64_t state;
};
uint64_t sim_rng_next(struct sim_rng *r);
/* 0 .. below - 1; below > 0. */
static inline uint64_t sim_below(struct sim_rng *r, uint64_t below)
{
    return sim_rng_next(r) % below;
}
/* least .. most */
static inline uint64_t sim_range(struct sim_rng *r, uint64_t least, uint64_t most)
{
    return least + sim_rng_next(r) % (most - least + 1);
}
/* True `permille` times of a thousand. */
static inline bool sim_chance(struct sim_rng *r, unsigned permille)
{
    return permille > 0 && sim_rng_next(r) % 1000 < permille;
}

/* How often things go wrong, in permille of the operations named. */
struct sim_faults {
    unsigned split;       /* an arrival or a read brings only a part */
    unsigned short_write; /* a socket takes only a part */
    unsigned again;       /* a read says EAGAIN though bytes are there */
    unsigned stall;       /* an arrival is late by up to half a second */
    unsigned reset;       /* an arrival kills the connection instead */
    unsigned refuse;      /* a connect is refused */
    unsigned blackhole;   /* a connect is not answered */
    unsigned accept;      /* accept finds no descriptor */
    unsigned late;        /* a turn begins late, by up to 500 us */
    unsigned file_short;  /* a file write takes only a part */
    unsigned file_full;   /* ENOSPC */
    unsigned file_sync;   /* fdatasync fails: fatal to a gateway, off by default */
};

struct sim_host;
struct sim_disk;

struct sim_due { /* one armed timer */
    uint64_t due_us, order;
    struct env_timer *timer;
    struct sim_host *host; /* NULL: the simulator's own */
};

struct sim {
    uint64_t seed;
    uint64_t now_us;
    uint64_t wall_us; /* at now_us 0 */
    uint64_t order;   /* of arming: equal times fire in it */
    struct sim_due *heap;
    uint32_t n_due, cap_due;
    struct list hosts;
    struct list listeners;
    struct sim_rng net, file, turn; /* apart, so that one part's draws do not move another's */
    struct sim_faults faults;
    uint64_t turns;
    uint32_t next_sock;
    struct sim_disk *disk;
    bool verbose;
    uint64_t trace; /* hash so far */
    bool failed;
    char failure[512]; /* the first one */
};

struct sim_host {
    struct env env; /* first */
    struct sim *sim;
    struct list node; /* sim.hosts */
    const char *name;
    struct sim_rng random; /* what env_random gives */
    struct list tasks;
    struct list socks;
    uint32_t n_timers, n_wakes, n_files, n_lookups; /* live: zero after an orderly end */
    bool jitter; /* its timers fire a little late, as epoll's do */
    bool dead;   /* killed: every call fails until sim_host_revive */
    /* A file operation during which the process dies: counts down; 0: not planned. */
    uint32_t kill_at_file_op;
    bool kill_loses_power;
};

/* ---- sim_env.c: time, turns, hosts ---- */
struct sim *sim_new(uint64_t seed, bool verbose);
void sim_free(struct sim *s);
/* One turn: the next event, those that are due with it, then deferred tasks. false: nothing left.
 */
bool sim_turn(struct sim *s);
void sim_arm(struct sim *s, struct sim_host *h, struct env_timer *t, uint64_t due_us);
void sim_disarm(struct sim *s, struct env_timer *t);
void sim_host_init(struct sim *s, struct sim_host *h, const char *name);
void sim_host_fini(struct sim_host *h);
void sim_host_run_tasks(struct sim_host *h);
/* The process ends here: sockets close or, with lost power, fall silent; files keep what survives.
 * Its memory is still there for an orderly free. */
void sim_host_kill(struct sim_host *h, bool power);
void sim_host_revive(struct sim_host *h);
/* Fires what a dead host has armed, once each, whatever the time: for what only ends by a timer. */
void sim_host_fire_timers(struct sim_host *h);
/* Adds a line to the trace. */
void sim_trace(struct sim *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Records the first violation; the run goes on to its end. */
void sim_fail(struct sim *s, const char *fmt, ...) PRINTF_LIKE(2, 3);

static inline struct sim_host *sim_host_of(struct env *e)
{
    return (struct sim_host *)(void *)e;
}

/* ---- sim_net.c: sockets ---- */
struct env_addr sim_addr(unsigned host, uint16_t port); /* 10.0.0.host:port */
void sim_sock_reset(struct env_sock *s);                /* closes it with a reset */
/* The network killed it by itself: nobody who looks at it is to blame. */
bool sim_sock_was_killed(const struct env_sock *s);
void sim_net_kill_host(struct sim_host *h, bool silent);
/* Calls every watching socket of a dead host: its owners hear that they are lost. */
void sim_net_tell_lost(struct sim_host *h);
uint32_t sim_net_count(const struct sim_host *h);
extern const struct env_ops sim_ops;

struct env_sock *sim_listen(struct env *, const struct env_addr *, bool reuse_port, struct err *);
struct env_sock *sim_accept(struct env *, struct env_sock *listener, struct env_addr *peer);
struct env_sock *sim_connect(struct env *, const struct env_addr *, struct err *);
ssize_t sim_read(struct env *, struct env_sock *, void *p, size_t n);
ssize_t sim_writev(struct env *, struct env_sock *, const struct iovec *v, int count);
void sim_shutdown(struct env *, struct env_sock *);
void sim_close(struct env *, struct env_sock *);
void sim_watch(struct env *, struct env_sock *, unsigned events,
               void (*ready)(void *ctx, unsigned events), void *ctx);
bool sim_local_addr(struct env *, struct env_sock *, struct env_addr *out);

/* ---- sim_file.c: the disk (of the one host that has files) ---- */
struct sim_disk *sim_disk_new(struct sim *s);
void sim_disk_free(struct sim_disk *d);
/* What of the unsynced survives: all after a mere kill, some after a loss of power. */
void sim_disk_crash(struct sim_disk *d, bool power);

int sim_file_open(struct env *, const char *path, enum env_open how, struct env_file **out);
ssize_t sim_file_pread(struct env *, struct env_file *, void *p, size_t n, uint64_t offset);
ssize_t sim_file_pwrite(struct env *, struct env_file *, const void *p, size_t n, uint64_t offset);
int sim_file_sync(struct env *, struct env_file *);
int64_t sim_file_size(struct env *, struct env_file *);
int sim_file_allocate(struct env *, struct env_file *, uint64_t bytes);
int sim_file_truncate(struct env *, struct env_file *, uint64_t bytes);
void sim_file_close(struct env *, struct env_file *);
int sim_file_rename(struct env *, const char *from, const char *to);
int sim_file_unlink(struct env *, const char *path);
int sim_dir_make(struct env *, const char *path);
int sim_dir_sync(struct env *, const char *path);
int sim_dir_list(struct env *, const char *path, void (*each)(void *ctx, const char *name),
                 void *ctx);

#endif
