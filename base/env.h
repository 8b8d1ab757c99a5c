/* env.h - the seam: clock, random, sockets, timers, files, names. All that is not pure comes in
 * here.
 *
 * One env belongs to one thread (a loop); only env_wake_signal may be called from another. The real
 * one is base/net/os.h; the simulator (tests/sim) is another, with virtual time and faults.
 * Errors of sockets and files are negative errno values, so that both worlds speak alike. */
#ifndef BASE_ENV_H
#define BASE_ENV_H

#include <sys/types.h>
#include <sys/uio.h>
#include "base/err.h"
#include "base/list.h"
#include "base/str.h"

struct env;
struct env_sock; /* a listening or connected stream socket; owned by whoever opened or accepted it
                  */
struct env_file; /* an open regular file; owned by whoever opened it */
struct env_wake; /* a doorbell that other threads ring */

#define ENV_ADDR_TEXT_MAX 64
struct env_addr {
    uint8_t bytes[28]; /* sockaddr_in or sockaddr_in6, as the system has it; opaque elsewhere */
    uint32_t len;      /* 0: none */
};

enum { ENV_READ = 1, ENV_WRITE = 2 };

/* Fires once at or after due_us (monotonic), on the loop's thread. Embedded in its owner. */
struct env_timer {
    void (*fire)(struct env_timer *);
    uint64_t due_us;
    uint32_t slot; /* private: 0 when not armed */
};

/* Runs once before the loop next sleeps (end of this turn). Deferring a queued task does nothing.
 */
struct env_task {
    void (*run)(struct env_task *);
    struct list node; /* private */
    bool queued;      /* private */
};

/* One look-up. Embedded in its owner, which must not go away before done (or after
 * env_resolve_drop). */
struct env_dns {
    void (*done)(struct env_dns *, const struct env_addr *addr,
                 struct err *e); /* addr NULL: failed */
    void *impl;                  /* private */
};

enum env_open {
    ENV_OPEN_READ = 1,     /* must exist */
    ENV_OPEN_CREATE = 2,   /* read and write, created when absent, 0600 */
    ENV_OPEN_TRUNCATE = 3, /* read and write, emptied or created, 0600 */
    ENV_OPEN_MAPPED = 4 /* as TRUNCATE; within what file_allocate gave, a write is, where the file
                         * system allows it, a copy into the
                         * page cache without a system call: for many small writes that must
                         * outlive the process, not the machine */
};

struct env_ops {
    uint64_t (*now_us)(struct env *);  /* monotonic; constant within one turn */
    uint64_t (*wall_us)(struct env *); /* since 1970, UTC */
    void (*random)(struct env *, void *p, size_t n);
    void (*timer_arm)(struct env *, struct env_timer *);
    void (*timer_disarm)(struct env *, struct env_timer *);
    void (*defer)(struct env *, struct env_task *);
    struct env_sock *(*listen)(struct env *, const struct env_addr *, bool reuse_port,
                               struct err *);
    struct env_sock *(*accept)(struct env *, struct env_sock *listener, struct env_addr *peer);
    struct env_sock *(*connect)(struct env *, const struct env_addr *, struct err *);
    ssize_t (*read)(struct env *, struct env_sock *, void *p, size_t n);
    ssize_t (*writev)(struct env *, struct env_sock *, const struct iovec *v, int count);
    void (*shutdown)(struct env *, struct env_sock *);
    void (*close)(struct env *, struct env_sock *);
    void (*watch)(struct env *, struct env_sock *, unsigned events,
                  void (*ready)(void *ctx, unsigned events), void *ctx);
    bool (*local_addr)(struct env *, struct env_sock *, struct env_addr *out);
    struct env_wake *(*wake_new)(struct env *, void (*rung)(void *ctx), void *ctx);
    void (*wake_free)(struct env *, struct env_wake *);
    void (*wake_signal)(struct env_wake *);
    void (*resolve)(struct env *, struct str host, uint16_t port, struct env_dns *);
    void (*resolve_drop)(struct env *, struct env_dns *);
    int (*file_open)(struct env *, const char *path, enum env_open how, struct env_file **out);
    ssize_t (*file_pread)(struct env *, struct env_file *, void *p, size_t n, uint64_t offset);
    ssize_t (*file_pwrite)(struct env *, struct env_file *, const void *p, size_t n,
                           uint64_t offset);
    int (*file_sync)(struct env *, struct env_file *); /* fdatasync */
    int64_t (*file_size)(struct env *, struct env_file *);
    int (*file_allocate)(struct env *, struct env_file *,
                         uint64_t bytes); /* real blocks, size grows */
    int (*file_truncate)(struct env *, struct env_file *, uint64_t bytes);
    void (*file_close)(struct env *, struct env_file *);
    int (*file_rename)(struct env *, const char *from, const char *to); /* then syncs the folder */
    int (*file_unlink)(struct env *, const char *path);
    int (*dir_make)(struct env *, const char *path); /* 0700; 0 when it exists */
    int (*dir_sync)(struct env *, const char *path);
    /* Calls each for every regular file's name, sorted bytewise. */
    int (*dir_list)(struct env *, const char *path, void (*each)(void *ctx, const char *name),
                    void *ctx);
};

struct env {
    const struct env_ops *ops; /* first member of the real and the simulated env */
};

static inline uint64_t env_now_us(struct env *e)
{
    return e->ops->now_us(e);
}

static inline uint64_t env_wall_us(struct env *e)
{
    return e->ops->wall_us(e);
}

static inline void env_random(struct env *e, void *p, size_t n)
{
    e->ops->random(e, p, n);
}

static inline uint64_t env_random_u64(struct env *e)
{
    uint64_t v;

    e->ops->random(e, &v, sizeof(v));
    return v;
}

/* Arms or re-arms. A timer that is armed must be disarmed before its memory goes. */
static inline void env_timer_arm(struct env *e, struct env_timer *t, uint64_t due_us)
{
    if (t->slot != 0) {
        e->ops->timer_disarm(e, t);
    }
    t->due_us = due_us;
    e->ops->timer_arm(e, t);
}

static inline bool env_timer_is_armed(const struct env_timer *t)
{
    return t->slot != 0;
}

static inline void env_timer_disarm(struct env *e, struct env_timer *t)
{
    if (t->slot != 0) {
        e->ops->timer_disarm(e, t);
    }
}

static inline void env_defer(struct env *e, struct env_task *t)
{
    e->ops->defer(e, t);
}

/* Takes a queued task back; needed before its memory goes. */
static inline void env_task_drop(struct env_task *t)
{
    if (t->queued) {
        list_remove(&t->node);
        t->queued = false;
    }
}

/* NULL with a story (address in use, ...). */
static inline struct env_sock *env_listen(struct env *e, const struct env_addr *a, bool reuse_port,
                                          struct err *err)
{
    return e->ops->listen(e, a, reuse_port, err);
}

/* NULL: nothing waiting, or out of descriptors (the caller tries again later). */
static inline struct env_sock *env_accept(struct env *e, struct env_sock *l, struct env_addr *peer)
{
    return e->ops->accept(e, l, peer);
}

/* Starts a connect; writable means done or failed (the next write or read says). NULL with
 * ERR_LIMIT: no descriptor, port or memory here, which says nothing of the peer. */
static inline struct env_sock *env_connect(struct env *e, const struct env_addr *a, struct err *err)
{
    return e->ops->connect(e, a, err);
}

/* > 0 bytes; 0 end of stream; -EAGAIN nothing now; other negative errno: the connection is lost. */
static inline ssize_t env_read(struct env *e, struct env_sock *s, void *p, size_t n)
{
    return e->ops->read(e, s, p, n);
}

/* >= 0 bytes taken, maybe fewer than given; -EAGAIN; other negative errno: the connection is lost.
 */
static inline ssize_t env_writev(struct env *e, struct env_sock *s, const struct iovec *v,
                                 int count)
{
    return e->ops->writev(e, s, v, count);
}

static inline void env_shutdown_write(struct env *e, struct env_sock *s)
{
    e->ops->shutdown(e, s);
}

/* Closes, drops its watch; no callback comes after. */
static inline void env_close(struct env *e, struct env_sock *s)
{
    e->ops->close(e, s);
}

/* Level-triggered. events 0 keeps the registration but hears nothing (errors included). */
static inline void env_watch(struct env *e, struct env_sock *s, unsigned events,
                             void (*ready)(void *ctx, unsigned events), void *ctx)
{
    e->ops->watch(e, s, events, ready, ctx);
}

/* Safe from any thread and from signal handlers; many rings may be one call. */
static inline void env_wake_signal(struct env *owner, struct env_wake *w)
{
    owner->ops->wake_signal(w);
}

#endif
