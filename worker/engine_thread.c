/* engine_thread.c - commands in, steps, news out. One mutex: under it the stats of the last step
 * and the bell that wakes a resting engine. */
#include "worker/engine_thread.h"

#include "worker/ring.h"

#include <pthread.h>

#define NEWS_MAX 4096      /* events of 60 steps of 64 sequences: the loop is never that late */
#define COMMANDS_A_PLACE 3 /* see the header */

struct command {
    struct engine_request *submit; /* NULL: abort */
    uint64_t ticket;
};

struct engine_thread {
    struct engine *engine; /* owned; the thread's once it runs */
    struct env *env;       /* borrowed; only env_wake_signal from the thread */
    struct env_wake *wake;
    struct ring commands, news;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t bell;
    bool rung, stop;           /* under lock */
    struct engine_stats stats; /* under lock */
    bool told;                 /* the thread's: news since the last wake */
};

static void ring_bell(struct engine_thread *t, bool stop)
{
    pthread_mutex_lock(&t->lock);
    t->rung = true;
    t->stop = t->stop || stop;
    pthread_cond_signal(&t->bell);
    pthread_mutex_unlock(&t->lock);
}

/* false: time to stop. */
static bool rest(struct engine_thread *t)
{
    bool go_on;

    pthread_mutex_lock(&t->lock);
    while (!t->rung) {
        pthread_cond_wait(&t->bell, &t->lock);
    }
    t->rung = false;
    go_on = !t->stop;
    pthread_mutex_unlock(&t->lock);
    return go_on;
}

static bool is_stopped(struct engine_thread *t)
{
    bool stop;

    pthread_mutex_lock(&t->lock);
    stop = t->stop;
    pthread_mutex_unlock(&t->lock);
    return stop;
}

static void tell(struct engine_thread *t, const struct engine_news *n)
{
    while (!ring_push(&t->news, n)) {
        env_wake_signal(t->env, t->wake);
        if (!rest(t)) {
            ring_bell(t, true); /* keeps the bell rung for whoever rests next */
            return;
        }
    }
    t->told = true;
}

static void on_event(void *ctx, const struct engine_event *ev)
{
    struct engine_news n = {.kind = ENGINE_NEWS_EVENT, .u.event = *ev};

    tell(ctx, &n);
}

static void on_stored(void *ctx, uint64_t chunk)
{
    struct engine_news n = {.kind = ENGINE_NEWS_STORED, .u.chunk = chunk};

    tell(ctx, &n);
}

static void on_removed(void *ctx, uint64_t chunk)
{
    struct engine_news n = {.kind = ENGINE_NEWS_REMOVED, .u.chunk = chunk};

    tell(ctx, &n);
}

static void take_commands(struct engine_thread *t)
{
    struct command c;

    while (ring_pop(&t->commands, &c)) {
        if (c.submit == NULL) {
            engine_abort(t->engine, c.ticket);
        } else if (!engine_submit(t->engine, c.submit)) { /* no memory for its tokens */
            on_event(t, &(struct engine_event){
                            .kind = ENGINE_END, .ticket = c.ticket, .finish = ENGINE_REFUSED});
        }
    }
}

static void *run(void *arg)
{
    struct engine_thread *t = arg;
    bool more = false;

    while (!is_stopped(t)) {
        take_commands(t);
        more = engine_step(t->engine, on_event, t);
        pthread_mutex_lock(&t->lock);
        engine_stats(t->engine, &t->stats);
        pthread_mutex_unlock(&t->lock);
        if (t->told) {
            t->told = false;
            env_wake_signal(t->env, t->wake);
        }
        /* A bell that tell() heard may have been for a command, so look before resting. */
        if (!more && ring_is_empty(&t->commands) && !rest(t)) {
            break;
        }
    }
    return NULL;
}

struct engine_thread *engine_thread_new(const struct model *m, struct backend *b,
                                        const struct engine_options *o, uint32_t live_max,
                                        struct env *env, void (*rung)(void *ctx), void *ctx,
                                        struct err *e)
{
    struct engine_thread *t = mem_new(sizeof(*t));
    struct engine_options options = *o;
    struct blocks_events chunks = {.stored = on_stored, .removed = on_removed, .ctx = t};
    int rc;

    options.waiting_max = live_max;
    t->env = env;
    t->engine = engine_new(m, b, &options, chunks, e);
    if (t->engine == NULL) {
        mem_free(t);
        return NULL;
    }
    engine_stats(t->engine, &t->stats);
    ring_init(&t->commands, sizeof(struct command), (size_t)live_max * COMMANDS_A_PLACE);
    ring_init(&t->news, sizeof(struct engine_news), NEWS_MAX);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->bell, NULL);
    t->wake = env->ops->wake_new(env, rung, ctx);
    rc = pthread_create(&t->thread, NULL, run, t);
    CHECK(rc == 0); /* at start, before anything is served */
    return t;
}

void engine_thread_free(struct engine_thread *t)
{
    if (t == NULL) {
        return;
    }
    ring_bell(t, true);
    pthread_join(t->thread, NULL);
    t->env->ops->wake_free(t->env, t->wake);
    engine_free(t->engine);
    ring_fini(&t->commands);
    ring_fini(&t->news);
    pthread_cond_destroy(&t->bell);
    pthread_mutex_destroy(&t->lock);
    mem_free(t);
}

static void command(struct engine_thread *t, struct command c)
{
    bool ok = ring_push(&t->commands, &c);

    CHECK(ok); /* three a place: see the header */
    ring_bell(t, false);
}

void engine_thread_submit(struct engine_thread *t, struct engine_request *r)
{
    command(t, (struct command){.submit = r, .ticket = r->ticket});
}

void engine_thread_abort(struct engine_thread *t, uint64_t ticket)
{
    command(t, (struct command){.ticket = ticket});
}

bool engine_thread_next(struct engine_thread *t, struct engine_news *out)
{
    return ring_pop(&t->news, out);
}

void engine_thread_drained(struct engine_thread *t)
{
    ring_bell(t, false);
}

void engine_thread_stats(struct engine_thread *t, struct engine_stats *out)
{
    pthread_mutex_lock(&t->lock);
    *out = t->stats;
    pthread_mutex_unlock(&t->lock);
}
