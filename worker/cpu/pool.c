/* pool.c - see pool.h. A gate is a generation counter: one a helper (a run begins) and one for all
 * (a barrier closes). A waiter that falls asleep says so first, so that whoever advances the
 * counter can skip the system call when nobody sleeps. */
#include "worker/cpu/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 20000u        /* a barrier between equal shares closes well within this */
#define YIELD_NS 100000u      /* then give the core to whoever wants it, but stay awake */
#define PAUSES_PER_LOOK 32u   /* pauses between two looks at the clock */
#define LATE_PERCENT 35u      /* of a window spent waiting, or off the core: too many want them */
#define WINDOW_NS 8000000u    /* what is judged at once: a few decode steps */
#define REST_NS_MIN 60000000u /* narrowed for this long before trying again; doubles up to ... */
#define REST_NS_MAX 4000000000u

struct gate {
    _Alignas(64) _Atomic uint32_t generation;
    _Alignas(64) _Atomic uint32_t sleepers;
};

struct helper {
    struct gate start; /* only helpers within a run's width are called */
    struct pool *pool;
    unsigned id;
    pthread_t thread;
};

struct pool {
    struct gate meet;
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) pool_work *work; /* written before the helpers' gates open */
    void *context;
    unsigned width; /* of the run under way */
    bool stop;
    unsigned threads, next_width; /* below: the caller's alone */
    struct helper *helpers;       /* [threads - 1], and one unused */
    unsigned helpers_alive;
    uint64_t waited_ns; /* by the caller for helpers, in this window */
    uint64_t absent_ns; /* by the caller, off its core: asleep or pushed aside */
    uint64_t window_ns; /* run time in this window */
    uint64_t widen_at_ns, rest_ns;
};

static uint64_t clock_ns(clockid_t which)
{
    struct timespec t;

    clock_gettime(which, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex(_Atomic uint32_t *word, int op, uint32_t value)
{
    syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void gate_sleep(struct gate *g, uint32_t seen)
{
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->generation) == seen) {
        futex(&g->generation, FUTEX_WAIT, seen); /* EAGAIN, EINTR: the loop looks again */
    }
    atomic_fetch_sub(&g->sleepers, 1);
}

/* Waits until the generation is not `seen`; returns the nanoseconds when it took long, else 0. */
static uint64_t gate_wait(struct gate *g, uint32_t seen)
{
    uint64_t begin = 0, now = 0;

    for (;;) {
        for (unsigned i = 0; i < PAUSES_PER_LOOK; i++) {
            if (atomic_load_explicit(&g->generation, memory_order_acquire) != seen) {
                return begin == 0 ? 0 : now_ns() - begin;
            }
            if (begin == 0 || now - begin < SPIN_NS) {
                cpu_pause();
            } else {
                sched_yield();
            }
        }
        now = now_ns();
        begin = begin == 0 ? now : begin;
        if (now - begin > YIELD_NS) {
            gate_sleep(g, seen);
            return now_ns() - begin;
        }
    }
}

static void gate_open(struct gate *g)
{
    atomic_fetch_add(&g->generation, 1);
    if (atomic_load(&g->sleepers) != 0) {
        futex(&g->generation, FUTEX_WAKE, INT32_MAX);
    }
}

void pool_barrier(struct pool *p, unsigned id)
{
    unsigned width = p->width; /* not after arriving: the next run may then set it */

    if (width == 1) {
        return;
    }
    uint32_t seen = atomic_load_explicit(&p->meet.generation, memory_order_relaxed);
    if (atomic_fetch_add(&p->arrived, 1) == width - 1) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        gate_open(&p->meet);
        return;
    }
    uint64_t waited = gate_wait(&p->meet, seen);
    if (id == 0) {
        p->waited_ns += waited;
    }
}

static void *helper_main(void *argument)
{
    struct helper *h = argument;
    struct pool *p = h->pool;

    for (uint32_t seen = 0;; seen++) { /* no call is missed: a run ends only when all have met */
        gate_wait(&h->start, seen);
        if (p->stop) {
            return NULL;
        }
        p->work(p->context, h->id, p->width);
        pool_barrier(p, h->id);
    }
}

static void new_window(struct pool *p)
{
    p->waited_ns = p->absent_ns = p->window_ns = 0;
}

/* Narrows when helpers were late, or the caller itself was pushed off its core while they waited;
 * widens again after a rest, which doubles as long as that fails. */
static void adapt_width(struct pool *p, uint64_t now)
{
    uint64_t late = u64_max(p->waited_ns, p->absent_ns);

    if (p->next_width < p->threads && now >= p->widen_at_ns) {
        p->next_width++;
        new_window(p);
        p->widen_at_ns = now + p->rest_ns;
        return;
    }
    if (p->window_ns < WINDOW_NS) {
        return;
    }
    if (p->next_width > 1 && late * 100 > p->window_ns * LATE_PERCENT) {
        p->next_width--;
        p->widen_at_ns = now + p->rest_ns;
        p->rest_ns = u64_min(p->rest_ns * 2, REST_NS_MAX);
    } else if (p->next_width == p->threads) {
        p->rest_ns = REST_NS_MIN;
    }
    new_window(p);
}

void pool_run(struct pool *p, pool_work *work, void *context)
{
    uint64_t begin = now_ns(), worked = clock_ns(CLOCK_THREAD_CPUTIME_ID);

    p->width = p->next_width;
    p->work = work;
    p->context = context;
    for (unsigned i = 1; i < p->width; i++) {
        gate_open(&p->helpers[i - 1].start);
    }
    work(context, 0, p->width);
    pool_barrier(p, 0);
    uint64_t end = now_ns(), took = end - begin;
    worked = clock_ns(CLOCK_THREAD_CPUTIME_ID) - worked;
    p->window_ns += took;
    p->absent_ns += took > worked ? took - worked : 0;
    adapt_width(p, end);
}

unsigned pool_width(const struct pool *p)
{
    return p->next_width;
}

static void *new_aligned(size_t bytes) /* a multiple of 64, as the structs here are */
{
    void *p = aligned_alloc(64, bytes);

    CHECK(p != NULL);
    memset(p, 0, bytes);
    return p;
}

struct pool *pool_new(unsigned threads, struct err *e)
{
    struct pool *p;

    CHECK(threads >= 1);
    if (threads > POOL_THREADS_MAX) {
        err_set(e, ERR_LIMIT, "%u threads; at most %d are possible", threads, POOL_THREADS_MAX);
        return NULL;
    }
    p = new_aligned(sizeof(*p));
    p->threads = p->next_width = p->width = threads;
    p->rest_ns = REST_NS_MIN;
    p->helpers = new_aligned(threads * sizeof(*p->helpers));
    for (unsigned i = 1; i < threads; i++) {
        struct helper *h = &p->helpers[i - 1];
        h->pool = p;
        h->id = i;
        int failed = pthread_create(&h->thread, NULL, helper_main, h);
        if (failed != 0) {
            err_errno(e, failed, "cannot start compute thread %u of %u", i, threads);
            pool_free(p);
            return NULL;
        }
        p->helpers_alive++;
    }
    return p;
}

void pool_free(struct pool *p)
{
    if (p == NULL) {
        return;
    }
    p->stop = true;
    for (unsigned i = 0; i < p->helpers_alive; i++) {
        gate_open(&p->helpers[i].start);
        pthread_join(p->helpers[i].thread, NULL);
    }
    free(p->helpers);
    free(p);
}
