/* test_whohas_torn - a reader that is stopped between any two of its loads still sees a whole entry
 * or none. Takes whohas.c in with loads that let the writer go on for a while now and then. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sched.h>
#include <stdlib.h>

static void now_and_then_wait(void);

#define LOAD(p) (now_and_then_wait(), atomic_load_explicit((p), memory_order_acquire))
#include "cache/whohas.c"

#define CHUNKS 256
#define READER_OPS 1500
#define WRITES_AWAITED 40 /* enough to replace most of so small an index */
#define YIELDS_MAX 20000  /* then the writer is held up by us: go on */

static atomic_ulong writes;
static _Thread_local bool reading;
static _Thread_local uint64_t dice;

static void now_and_then_wait(void)
{
    unsigned long from = atomic_load(&writes);

    dice = dice * 6364136223846793005ULL + 1442695040888963407ULL;
    if (!reading || dice >> 60 != 0) { /* one load in 16 */
        return;
    }
    for (unsigned i = 0; i < YIELDS_MAX && atomic_load(&writes) < from + WRITES_AWAITED; i++) {
        sched_yield();
    }
}

struct pair {
    struct whohas *w;
    atomic_bool stop;
    unsigned torn;
    uint64_t found;
};

/* Chunk n is only ever held by worker n % 64. All chunks share few buckets. */
static uint64_t seq_of(uint64_t n)
{
    return (n * 0x9E3779B97F4A7C15ULL) | 1;
}

static void *keep_writing(void *ctx)
{
    struct pair *p = ctx;

    for (uint64_t op = 1; !atomic_load(&p->stop); op++) {
        uint64_t n = op * 2654435761U % CHUNKS, seq = seq_of(n);

        whohas_stored(p->w, (unsigned)(n % 64), &seq, 1);
        atomic_fetch_add(&writes, 1);
    }
    return NULL;
}

static void *keep_reading(void *ctx)
{
    struct pair *p = ctx;

    reading = true;
    for (uint64_t op = 0; op < READER_OPS; op++) {
        uint64_t n = op % CHUNKS, seq = seq_of(n), end = 1, out[WHOHAS_WORKERS_MAX];
        struct prefix chain = {.seq = &seq, .end = &end, .count = 1};

        whohas_match(p->w, &chain, UINT64_MAX, 0, out);
        for (unsigned k = 0; k < WHOHAS_WORKERS_MAX; k++) {
            p->torn += out[k] != 0 && k != n % 64;
        }
        p->found += out[n % 64];
    }
    return NULL;
}

static void a_stopped_reader_never_sees_half_an_entry(void **state)
{
    struct pair p = {.w = whohas_new(1)};
    pthread_t writer, reader;

    (void)state;
    assert_int_equal(pthread_create(&writer, NULL, keep_writing, &p), 0);
    assert_int_equal(pthread_create(&reader, NULL, keep_reading, &p), 0);
    pthread_join(reader, NULL);
    atomic_store(&p.stop, true);
    pthread_join(writer, NULL);
    whohas_check(p.w);
    assert_int_equal(p.torn, 0);
    assert_true(p.found > 0);
    whohas_free(p.w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_reader_never_sees_half_an_entry),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
