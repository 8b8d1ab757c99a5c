/* net_fake.h - an env for server tests: sockets are byte queues, the clock moves when told.
 *
 * A connection is one struct env_sock, seen from both ends: what the test sends lands in `rx`, what
 * the server writes in `tx`. fake_run works until nothing is ready; fake_advance turns the clock.
 */
#ifndef TESTS_UNIT_NET_FAKE_H
#define TESTS_UNIT_NET_FAKE_H

#include "base/buf.h"
#include "base/env.h"

#define FAKE_SOCKS 64
#define FAKE_TIMERS 4096

struct env_sock {
    struct buf rx, tx;
    char *text;     /* of fake_text */
    size_t tx_room; /* how much more the socket takes; the peer that does not read */
    bool tx_opens;  /* a refused write is the last: the peer reads right after it */
    bool taken;     /* accepted by the server */
    bool listener;
    bool peer_shut; /* the test closed its side */
    bool shut;      /* the server shut its side */
    bool closed;    /* the server closed it */
    unsigned events;
    void (*ready)(void *ctx, unsigned events);
    void *ctx;
};

struct fake {
    struct env env;
    uint64_t now_us;
    struct list tasks;
    struct env_timer *timers[FAKE_TIMERS];
    struct env_sock *socks[FAKE_SOCKS]; /* [0]: the listener */
    uint32_t n_socks;
    bool accept_fails; /* out of descriptors */
    uint32_t accepts;  /* calls of accept */
    uint32_t max_read; /* bytes of one read at most; 0: all */
};

struct fake *fake_new(void);
void fake_free(struct fake *f); /* asserts that no timer or task is left */
struct env_sock *fake_listener(struct fake *f);
struct env_sock *fake_connect(struct fake *f); /* waits to be accepted */
void fake_send(struct env_sock *s, const void *p, size_t n);
void fake_send_c(struct env_sock *s, const char *z);
void fake_run(struct fake *f);
void fake_advance(struct fake *f, uint64_t us);
/* What the server wrote since the last call, as C text (until the next call on s). */
const char *fake_text(struct env_sock *s);

#endif
