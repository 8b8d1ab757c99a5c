/* resolve.h - names to addresses: one thread of getaddrinfo for the whole process, a bounded queue.
 *
 * Jobs belong to the loop that made them; the thread touches a job only between resolver_submit and
 * its arrival in the inbox. Nothing here runs a callback: the loop takes what is ready. */
#ifndef BASE_NET_RESOLVE_H
#define BASE_NET_RESOLVE_H

#include "base/env.h"

/* Names waiting, over all loops. A gateway resolves worker addresses only (dozens), so a longer
 * queue would mean that DNS is stuck, and a refusal says so at once. */
#define RESOLVE_QUEUE_MAX 256
#define RESOLVE_HOST_MAX 255 /* bytes of a name, RFC 1035 */

struct resolver;

/* Where answers of one loop arrive. Guarded by the resolver's lock. */
struct resolve_inbox {
    struct list ready;
    struct env *env;       /* borrowed: the loop to ring */
    struct env_wake *bell; /* owned by the loop */
};

struct resolve_job {
    struct list node;            /* queue of the resolver, or ready of the inbox */
    struct resolve_inbox *inbox; /* NULL: its loop is gone; the thread frees the job */
    struct env_dns *dns;         /* borrowed; NULL: dropped. Only the loop's thread touches it */
    struct env_addr addr;        /* answer; len 0: failed */
    int failure;                 /* EAI_ code */
    uint16_t port;
    char host[RESOLVE_HOST_MAX + 1];
};

/* false: the queue is full. */
MUST_USE bool resolver_submit(struct resolver *r, struct resolve_job *job);
/* The next answered job, now the caller's to free; NULL: none. */
struct resolve_job *resolver_take(struct resolver *r, struct resolve_inbox *inbox);
/* Frees every job of an inbox that goes away. */
void resolver_forget(struct resolver *r, struct resolve_inbox *inbox);

#endif
