/* resolve.c - the resolver thread: waits, takes one job, asks the system, hands it to its inbox. */
#include "base/net/resolve.h"
#include "base/net/os.h"

#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>

struct resolver {
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below, and every inbox */
    pthread_cond_t filled;
    struct list queue;           /* jobs waiting */
    uint32_t queued;             /* length of queue, <= RESOLVE_QUEUE_MAX */
    struct resolve_job *running; /* the job that the thread works on; NULL: idle */
    bool stopping;
};

/* Asks the system. The first address is the one RFC 6724 prefers. Blocks. */
static void resolve_ask(struct resolve_job *job)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    struct addrinfo *found = NULL;
    char port[8];

    snprintf(port, sizeof(port), "%u", job->port);
    job->failure = getaddrinfo(job->host, port, &hints, &found);
    if (job->failure != 0) {
        return;
    }
    if (found->ai_addrlen <= sizeof(job->addr.bytes)) {
        memcpy(job->addr.bytes, found->ai_addr, found->ai_addrlen);
        job->addr.len = found->ai_addrlen;
    } else {
        job->failure = EAI_FAMILY;
    }
    freeaddrinfo(found);
}

/* Called with the lock held; gives it away while the system is asked. */
static void resolver_work(struct resolver *r)
{
    struct resolve_job *job = CONTAINER_OF(list_pop_front(&r->queue), struct resolve_job, node);

    r->queued--;
    r->running = job;
    pthread_mutex_unlock(&r->lock);
    resolve_ask(job);
    pthread_mutex_lock(&r->lock);
    r->running = NULL;
    if (job->inbox == NULL) {
        mem_free(job);
        return;
    }
    list_push_back(&job->inbox->ready, &job->node);
    env_wake_signal(job->inbox->env, job->inbox->bell);
}

static void *resolver_main(void *arg)
{
    struct resolver *r = arg;

    pthread_mutex_lock(&r->lock);
    while (!r->stopping) {
        if (list_is_empty(&r->queue)) {
            pthread_cond_wait(&r->filled, &r->lock);
        } else {
            resolver_work(r);
        }
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

struct resolver *resolver_new(struct err *e)
{
    struct resolver *r = mem_new(sizeof(*r));
    int failed;

    list_init(&r->queue);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->filled, NULL);
    failed = pthread_create(&r->thread, NULL, resolver_main, r);
    if (failed != 0) {
        err_errno(e, failed, "cannot start the resolver thread");
        mem_free(r);
        return NULL;
    }
    return r;
}

void resolver_free(struct resolver *r)
{
    struct list *n;

    if (r == NULL) {
        return;
    }
    pthread_mutex_lock(&r->lock);
    r->stopping = true;
    pthread_cond_signal(&r->filled);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    while ((n = list_pop_front(&r->queue)) != NULL) {
        mem_free(CONTAINER_OF(n, struct resolve_job, node));
    }
    pthread_cond_destroy(&r->filled);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

bool resolver_submit(struct resolver *r, struct resolve_job *job)
{
    bool taken;

    pthread_mutex_lock(&r->lock);
    taken = r->queued < RESOLVE_QUEUE_MAX;
    if (taken) {
        list_push_back(&r->queue, &job->node);
        r->queued++;
        pthread_cond_signal(&r->filled);
    }
    pthread_mutex_unlock(&r->lock);
    return taken;
}

struct resolve_job *resolver_take(struct resolver *r, struct resolve_inbox *inbox)
{
    struct list *n;

    pthread_mutex_lock(&r->lock);
    n = list_pop_front(&inbox->ready);
    pthread_mutex_unlock(&r->lock);
    return n != NULL ? CONTAINER_OF(n, struct resolve_job, node) : NULL;
}

void resolver_forget(struct resolver *r, struct resolve_inbox *inbox)
{
    struct list *n;

    pthread_mutex_lock(&r->lock);
    LIST_EACH_SAFE(it, tmp, &r->queue)
    {
        struct resolve_job *job = CONTAINER_OF(it, struct resolve_job, node);

        if (job->inbox == inbox) {
            list_remove(it);
            r->queued--;
            mem_free(job);
        }
    }
    if (r->running != NULL && r->running->inbox == inbox) {
        r->running->inbox = NULL;
    }
    while ((n = list_pop_front(&inbox->ready)) != NULL) {
        mem_free(CONTAINER_OF(n, struct resolve_job, node));
    }
    pthread_mutex_unlock(&r->lock);
}
