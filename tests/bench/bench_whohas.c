/* bench_whohas - how long "who holds this prompt?" takes: 64 workers, an index full of chunks.
 *
 *   bench_whohas [chunks, default 1000000] [decisions, default 20000]
 *
 * Prompts share heads (system text) and part later, as conversations do. Prints per decision p50
 * and p99 in microseconds by prompt length, cold caches of the CPU included: every decision asks
 * for another prompt. The bar: p99 <= 5 us at 1 M chunks, <= 10 us at 10 M. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "base/hash.h"
#include "cache/whohas.h"

#define CHAIN_MAX 512
#define HEADS 200
#define HEAD_CHUNKS 12 /* 3 KB of system text */

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void make_prompt(struct prefix *p, uint64_t id, uint32_t chunks)
{
    for (uint32_t i = 0; i < chunks; i++) {
        uint64_t name[2] = {i < HEAD_CHUNKS ? id % HEADS : HEADS + id, i};

        p->seq[i] = hash_xxh3(name, sizeof(name), 1);
        p->end[i] = (i + 1) * 256;
    }
    p->count = chunks;
}

static uint32_t length_of(uint64_t id)
{
    static const uint32_t chunks[] = {8, 16, 32, 64, 128, 256, CHAIN_MAX};

    return chunks[id % 7];
}

static void measure(struct whohas *w, struct prefix *p, uint64_t prompts, uint64_t decisions,
                    uint32_t chunks)
{
    uint64_t *ns = mem_new(decisions * sizeof(*ns)), matched = 0, n = 0;

    for (uint64_t d = 0; n < decisions; d++) {
        uint64_t out[WHOHAS_WORKERS_MAX] = {0};
        uint64_t id = hash_xxh3(&d, sizeof(d), 3) % prompts, t;

        if (chunks != 0 && length_of(id) != chunks) {
            continue;
        }
        make_prompt(p, id, length_of(id));
        t = now_ns();
        whohas_match(w, p, UINT64_MAX, 1, out);
        ns[n++] = now_ns() - t;
        for (unsigned i = 0; i < WHOHAS_WORKERS_MAX; i++) {
            matched += out[i] > 256 * HEAD_CHUNKS;
        }
    }
    qsort(ns, decisions, sizeof(*ns), by_value);
    printf("%3u chunks: p50 %6.2f us   p99 %6.2f us   (%.2f workers hold more than a head)\n",
           chunks, (double)ns[decisions / 2] / 1000, (double)ns[decisions * 99 / 100] / 1000,
           (double)matched / (double)decisions);
    mem_free(ns);
}

int main(int argc, char **argv)
{
    uint64_t chunks = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
    uint64_t decisions = argc > 2 ? strtoull(argv[2], NULL, 10) : 20000, id = 0, t;
    struct prefix p = {.seq = mem_new(CHAIN_MAX * 8), .end = mem_new(CHAIN_MAX * 8)};
    struct whohas *w = whohas_new(chunks * 60);
    struct whohas_stats s = {0};

    CHECK(w != NULL);
    t = now_ns();
    for (; s.entries < chunks * 99 / 100; id++) {
        make_prompt(&p, id, length_of(id));
        whohas_dispatched(w, &p, (unsigned)(id % WHOHAS_WORKERS_MAX), 1);
        whohas_stats(w, &s);
    }
    printf("%llu entries of %llu, %llu MB, filled in %.0f ms\n", (unsigned long long)s.entries,
           (unsigned long long)s.capacity, (unsigned long long)s.bytes >> 20,
           (double)(now_ns() - t) / 1e6);
    printf("0 stands for all lengths\n");
    measure(w, &p, id, decisions, 0);
    for (uint32_t n = 8; n <= CHAIN_MAX; n *= 2) {
        measure(w, &p, id, decisions / 5 + 1, n);
    }
    whohas_free(w);
    mem_free(p.seq);
    mem_free(p.end);
    return 0;
}
