/* lane.c - two lists under one mutex: what waits, and what is done and not told yet. */
#include "worker/lane.h"

#include <pthread.h>
#include <unistd.h>

struct lane {
    struct env *env; /* borrowed; only env_wake_signal from the thread */
    struct env_wake *wake;
    void (*done)(void *ctx, struct lane_task *t);
    void *ctx;
    uint32_t tasks_max;
    int niceness;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t bell;
    /* under lock */
    struct list waiting, finished;
    uint32_t n_waiting;
    bool stop;
};

static struct lane_task *task_of(struct list *n)
{
    return CONTAINER_OF(n, struct lane_task, node);
}

/* NULL: time to stop. */
static struct lane_task *next_task(struct lane *l)
{
    struct list *n = NULL;

    pthread_mutex_lock(&l->lock);
    while (!l->stop && list_is_empty(&l->waiting)) {
        pthread_cond_wait(&l->bell, &l->lock);
    }
    if (!l->stop) {
        n = list_pop_front(&l->waiting);
        l->n_waiting--;
    }
    pthread_mutex_unlock(&l->lock);
    return n != NULL ? task_of(n) : NULL;
}

static void *run(void *arg)
{
    struct lane *l = arg;
    struct lane_task *t;

    if (l->niceness > 0 && nice(l->niceness) == -1) { /* of this thread alone, on Linux */
        l->niceness = 0;                              /* it works all the same */
    }
    while ((t = next_task(l)) != NULL) {
        t->work(t);
        pthread_mutex_lock(&l->lock);
        list_push_back(&l->finished, &t->node);
        pthread_mutex_unlock(&l->lock);
        env_wake_signal(l->env, l->wake);
    }
    return NULL;
}

/* One at a time: `done` may push, drop, or end what else is finished. */
static void on_wake(void *ctx)
{
    struct lane *l = ctx;
    struct list *n;

    for (;;) {
        pthread_mutex_lock(&l->lock);
        n = list_pop_front(&l->finished);
        pthread_mutex_unlock(&l->lock);
        if (n == NULL) {
            return;
        }
        l->done(l->ctx, task_of(n));
    }
}

struct lane *lane_new(struct env *env, uint32_t tasks_max, int niceness,
                      void (*done)(void *ctx, struct lane_task *t), void *ctx)
{
    struct lane *l = mem_new(sizeof(*l));

    l->env = env;
    l->done = done;
    l->ctx = ctx;
    l->tasks_max = tasks_max;
    l->niceness = niceness;
    list_init(&l->waiting);
    list_init(&l->finished);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->bell, NULL);
    l->wake = env->ops->wake_new(env, on_wake, l);
    if (pthread_create(&l->thread, NULL, run, l) == 0) {
        return l;
    }
    env->ops->wake_free(env, l->wake);
    pthread_cond_destroy(&l->bell);
    pthread_mutex_destroy(&l->lock);
    mem_free(l);
    return NULL;
}

void lane_free(struct lane *l)
{
    if (l == NULL) {
        return;
    }
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_signal(&l->bell);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    l->env->ops->wake_free(l->env, l->wake);
    pthread_cond_destroy(&l->bell);
    pthread_mutex_destroy(&l->lock);
    mem_free(l);
}

bool lane_push(struct lane *l, struct lane_task *t)
{
    bool ok;

    pthread_mutex_lock(&l->lock);
    ok = l->n_waiting < l->tasks_max;
    if (ok) {
        list_push_back(&l->waiting, &t->node);
        l->n_waiting++;
        pthread_cond_signal(&l->bell);
    }
    pthread_mutex_unlock(&l->lock);
    return ok;
}

bool lane_drop(struct lane *l, struct lane_task *t)
{
    bool found = false;

    pthread_mutex_lock(&l->lock);
    LIST_EACH(it, &l->waiting)
    {
        if (it == &t->node) {
            found = true;
            break;
        }
    }
    if (found) {
        list_remove(&t->node);
        l->n_waiting--;
    }
    pthread_mutex_unlock(&l->lock);
    return found;
}
