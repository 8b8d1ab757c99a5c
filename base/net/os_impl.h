/* os_impl.h - what the files of the real env share (os.c, os_sock.c, os_file.c); nobody else
 * includes it. */
#ifndef BASE_NET_OS_IMPL_H
#define BASE_NET_OS_IMPL_H

#include "base/net/os.h"
#include "base/net/resolve.h"

/* What an epoll entry points to. Rests on os_env.dead until the turn ends once closed, so that an
 * event already fetched never meets freed memory. */
struct os_source {
    void (*ready)(struct os_source *s, uint32_t epoll_events); /* NULL: closed */
    int fd;
    bool registered;  /* with epoll */
    struct list node; /* os_env.dead or os_env.starved */
};

struct env_sock {
    struct os_source source; /* first */
    unsigned events;         /* ENV_READ | ENV_WRITE asked for */
    bool starved;            /* a listener that waits for descriptors: not with epoll */
    void (*ready)(void *ctx, unsigned events);
    void *ctx;
};

struct env_wake {
    struct os_source source; /* first */
    void (*rung)(void *ctx);
    void *ctx;
};

#define OS_RANDOM_STOCK 512

struct os_env {
    struct env env; /* first */
    int epoll_fd;
    bool stopped;
    uint64_t now_us;         /* as of the start of this turn */
    struct env_timer **heap; /* owned; [1 .. timers], a binary heap by due_us; slot = index */
    uint32_t timers;
    uint32_t heap_cap;
    uint8_t random[OS_RANDOM_STOCK]; /* from the kernel; [0 .. random_left) is unused */
    size_t random_left;
    struct list tasks;
    struct list dead;    /* sources to free when the turn ends */
    struct list starved; /* listeners that found no descriptor */
    struct env_timer starved_timer;
    struct resolver *resolver; /* borrowed; NULL: numeric addresses only */
    struct resolve_inbox inbox;
    struct list answered; /* look-ups that needed no thread */
    struct env_task answered_task;
    struct os_source signals; /* fd -1: not asked for */
    void (*got_signal)(void *ctx, int signo);
    void *signal_ctx;
};

static inline struct os_env *os_of(struct env *e)
{
    return (struct os_env *)(void *)e;
}

/* os.c */
MUST_USE bool os_source_register(struct os_env *o, struct os_source *s, uint32_t epoll_events);
void os_source_unregister(struct os_env *o, struct os_source *s);
void os_source_close(struct os_env *o, struct os_source *s);

/* os_sock.c */
struct env_sock *os_sock_listen(struct env *e, const struct env_addr *a, bool reuse_port,
                                struct err *err);
struct env_sock *os_sock_accept(struct env *e, struct env_sock *listener, struct env_addr *peer);
struct env_sock *os_sock_connect(struct env *e, const struct env_addr *a, struct err *err);
ssize_t os_sock_read(struct env *e, struct env_sock *s, void *p, size_t n);
ssize_t os_sock_writev(struct env *e, struct env_sock *s, const struct iovec *v, int count);
void os_sock_shutdown(struct env *e, struct env_sock *s);
void os_sock_close(struct env *e, struct env_sock *s);
void os_sock_watch(struct env *e, struct env_sock *s, unsigned events,
                   void (*ready)(void *ctx, unsigned events), void *ctx);
bool os_sock_local_addr(struct env *e, struct env_sock *s, struct env_addr *out);
void os_sock_starved_fire(struct env_timer *t);
/* Numeric host (brackets allowed) and port. */
bool os_addr_numeric(struct str host, uint16_t port, struct env_addr *out);

/* os_file.c */
int os_file_open(struct env *e, const char *path, enum env_open how, struct env_file **out);
ssize_t os_file_pread(struct env *e, struct env_file *f, void *p, size_t n, uint64_t offset);
ssize_t os_file_pwrite(struct env *e, struct env_file *f, const void *p, size_t n, uint64_t offset);
int os_file_sync(struct env *e, struct env_file *f);
int64_t os_file_size(struct env *e, struct env_file *f);
int os_file_allocate(struct env *e, struct env_file *f, uint64_t bytes);
int os_file_truncate(struct env *e, struct env_file *f, uint64_t bytes);
void os_file_close(struct env *e, struct env_file *f);
int os_file_rename(struct env *e, const char *from, const char *to);
int os_file_unlink(struct env *e, const char *path);
int os_dir_make(struct env *e, const char *path);
int os_dir_sync(struct env *e, const char *path);
int os_dir_list(struct env *e, const char *path, void (*each)(void *ctx, const char *name),
                void *ctx);

#endif
