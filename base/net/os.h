/* os.h - the real env: one epoll loop, a timer heap, deferred tasks, eventfd doorbells, files.
 *
 * One os_env a thread. os_run is the loop read aloud: wait, ready sockets, due timers, deferred
 * tasks, until os_stop. Resolve goes to a shared resolver thread (base/net/resolve.h). */
#ifndef BASE_NET_OS_H
#define BASE_NET_OS_H

#include "base/env.h"

struct resolver; /* one thread of getaddrinfo for the whole process */

struct resolver *resolver_new(struct err *e);
void resolver_free(struct resolver *r); /* after every os_env that names it */

/* First of all in a program: descriptors 0 to 2 that came closed are /dev/null from now on, else a
 * socket would take their numbers and the log would go there; and a reader of the log or of a
 * socket that is gone is an error of that write, not the end (SIGPIPE). */
void os_process_init(void);

/* NULL with a story. r may be NULL: names are then refused, numeric addresses still work. */
struct env *os_env_new(struct resolver *r, struct err *e);
void os_env_free(struct env *e); /* sockets and timers must be closed before */
void os_run(struct env *e);      /* until os_stop */
/* One turn: waits at most max_wait_us (0: polls), then runs what is ready. For step-function
 * threads. */
void os_turn(struct env *e, uint64_t max_wait_us);
void os_stop(struct env *e); /* from a callback of this loop; other threads ring a doorbell */

/* "127.0.0.1:8443", "[::1]:80"; a port of 0 lets the system choose. Numeric only. */
MUST_USE bool os_addr_parse(struct str s, struct env_addr *out, struct err *e);
void os_addr_text(const struct env_addr *a, char out[ENV_ADDR_TEXT_MAX]);
bool os_addr_is_loopback(const struct env_addr *a);
/* SIGTERM/SIGINT become calls on this loop (signalfd); blocks them in the calling thread: call
 * before other threads start. */
MUST_USE bool os_on_signals(struct env *e, void (*got)(void *ctx, int signo), void *ctx,
                            struct err *err);

#endif
