/* whohas.c - the index: buckets of four entries, each under its own sequence lock.
 *
 *   bucket (128 bytes, two cache lines)
 *   | seq x 4 | by event x 4 | by dispatch x 4 | generation << 32 | tick, x 4 |
 *
 * An entry lives in its home bucket or, when that is full, in one of the WINDOW - 1 after it;
 * `passed` counts how many entries went past a bucket, so a reader seldom looks at a second one and
 * nothing is ever moved. The home bucket's lock is the key's lock: only its holder enters the key.
 * Buckets are locked in ascending order. The order of memory is on the loads and stores themselves
 * (acquire and release cost nothing on x86), which is also what the thread sanitizer can see. */
#include "cache/whohas.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define SLOTS 4
#define WINDOW 16 /* buckets an entry may lie in: at load 0.6 the fourth is hardly ever reached */
#define LOAD_PERCENT 60 /* of all slots */
#define READ_TRIES 128  /* then the reader takes "nobody": a writer was stopped in the middle */
#define LOCK_SPINS 256  /* then a writer gives its time slice away */
#define EVICT_SAMPLE 8  /* buckets drawn; about 20 entries when full */
#define EVICT_ROUNDS 64 /* draws of nothing but empty buckets that one insert may meet */
#define PREFETCH 10     /* chunks ahead: about as many misses as a core has in flight */
#define STRIDE                                                                                     \
    16 /* chunks between probes: 4 KB of text, 1/16 of the look-ups for a long prompt              \
        */
#define TICK_SHIFT 18 /* 0.26 s; 32 bits of it last 35 years */

struct bucket {
    _Atomic uint64_t seq[SLOTS]; /* 0: free */
    _Atomic uint64_t by_event[SLOTS];
    _Atomic uint64_t by_dispatch[SLOTS];
    _Atomic uint64_t meta[SLOTS]; /* generation << 32 | tick of the last dispatch */
};
_Static_assert(sizeof(struct bucket) == 128, "32 bytes an entry");

struct guard {
    _Atomic uint32_t version; /* odd: being written */
    _Atomic uint32_t passed;  /* entries whose home is here or before and that lie behind here */
};

struct whohas {
    void *memory;          /* owned; bucket points into it, aligned to a cache line */
    struct bucket *bucket; /* [homes + WINDOW - 1] */
    struct guard *guard;   /* owned [homes + WINDOW - 1] */
    uint64_t homes, capacity, bytes;
    _Atomic uint64_t entries, evicted, draws;
    _Atomic uint32_t tick;      /* the latest that any caller named */
    _Atomic uint64_t publishes; /* workers whose dispatch entries age */
    /* Generation: resets so far. A worker's bits are void in entries of an earlier generation than
     * that of its last reset; entries catch up whenever they are written. */
    _Atomic uint32_t generation;
    _Atomic uint32_t reset_at[WHOHAS_WORKERS_MAX];
    _Atomic int64_t held[WHOHAS_WORKERS_MAX];
    pthread_mutex_t reset_lock;
};

/* What one slot says, read whole. */
struct entry {
    uint64_t seq, by_event, by_dispatch;
    uint32_t generation, tick;
};

#ifndef LOAD /* tests/unit/test_whohas_torn stops threads in here */
#define LOAD(p) atomic_load_explicit((p), memory_order_acquire)
#endif
#define STORE(p, v) atomic_store_explicit((p), (v), memory_order_release)
#define ADD(p, v) atomic_fetch_add_explicit((p), (v), memory_order_relaxed)

struct whohas *whohas_new(size_t bytes_max)
{
    struct whohas *w = mem_new(sizeof(*w));
    size_t each = sizeof(struct bucket) + sizeof(struct guard);
    size_t buckets = size_max(bytes_max / each, 2 * WINDOW);

    CHECK(buckets < UINT32_MAX);
    w->memory = mem_try(buckets + 1, sizeof(struct bucket));
    w->guard = mem_try(buckets, sizeof(struct guard));
    if (w->memory == NULL || w->guard == NULL) {
        mem_free(w->memory);
        mem_free(w->guard);
        mem_free(w);
        return NULL;
    }
    w->bucket = (struct bucket *)(((uintptr_t)w->memory + 63) & ~(uintptr_t)63);
    w->homes = buckets - (WINDOW - 1);
    w->capacity = w->homes * SLOTS * LOAD_PERCENT / 100;
    w->bytes = buckets * each;
    CHECK(pthread_mutex_init(&w->reset_lock, NULL) == 0);
    return w;
}

void whohas_free(struct whohas *w)
{
    if (w == NULL) {
        return;
    }
    pthread_mutex_destroy(&w->reset_lock);
    mem_free(w->memory);
    mem_free(w->guard);
    mem_free(w);
}

/* seq is a uniform hash: its high half picks the bucket. */
static uint64_t home_of(const struct whohas *w, uint64_t seq)
{
    return (seq >> 32) * w->homes >> 32;
}

static uint32_t tick_of(uint64_t now_us)
{
    return (uint32_t)(now_us >> TICK_SHIFT);
}

static struct entry slot_read(struct bucket *b, unsigned s)
{
    uint64_t meta = LOAD(&b->meta[s]);

    return (struct entry){LOAD(&b->seq[s]), LOAD(&b->by_event[s]), LOAD(&b->by_dispatch[s]),
                          (uint32_t)(meta >> 32), (uint32_t)meta};
}

static void slot_write(struct bucket *b, unsigned s, struct entry e)
{
    STORE(&b->seq[s], e.seq);
    STORE(&b->by_event[s], e.by_event);
    STORE(&b->by_dispatch[s], e.by_dispatch);
    STORE(&b->meta[s], (uint64_t)e.generation << 32 | e.tick);
}

static void lock(struct whohas *w, uint64_t i)
{
    for (unsigned spins = 1;; spins++) {
        uint32_t v = atomic_load_explicit(&w->guard[i].version, memory_order_relaxed);

        if ((v & 1) == 0 &&
            atomic_compare_exchange_weak_explicit(&w->guard[i].version, &v, v + 1,
                                                  memory_order_acquire, memory_order_relaxed)) {
            return;
        }
        if (spins % LOCK_SPINS == 0) {
            sched_yield();
        }
    }
}

static void unlock(struct whohas *w, uint64_t i)
{
    STORE(&w->guard[i].version, w->guard[i].version + 1);
}

/* Ticks since the last dispatch; 0 when another thread's clock is ahead of ours. */
static uint32_t age_of(const struct entry *e, uint32_t now_tick)
{
    int32_t age = (int32_t)(now_tick - e->tick);

    return age > 0 ? (uint32_t)age : 0;
}

/* Takes away the bits of e that mean nothing any more. */
static void drop_void_bits(const struct whohas *w, struct entry *e, uint32_t generation,
                           uint32_t now_tick)
{
    if (e->generation != generation) {
        for (uint64_t left = e->by_event | e->by_dispatch; left != 0; left &= left - 1) {
            unsigned worker = (unsigned)__builtin_ctzll(left);

            if (LOAD(&w->reset_at[worker]) > e->generation) {
                e->by_event &= ~(1ULL << worker);
                e->by_dispatch &= ~(1ULL << worker);
            }
        }
        e->generation = generation;
    }
    if (age_of(e, now_tick) > WHOHAS_DISPATCH_TTL_US >> TICK_SHIFT) {
        e->by_dispatch &= ~atomic_load_explicit(&w->publishes, memory_order_relaxed);
    }
}

/* ---- reading ---- */

/* false: seq is not in this bucket. */
static bool bucket_read(const struct whohas *w, uint64_t i, uint64_t seq, struct entry *out)
{
    struct bucket *b = &w->bucket[i];

    for (unsigned tries = 0; tries < READ_TRIES; tries++) {
        uint32_t v = LOAD(&w->guard[i].version);
        bool found = false;

        if ((v & 1) != 0) {
            continue;
        }
        for (unsigned s = 0; s < SLOTS && !found; s++) {
            if (LOAD(&b->seq[s]) == seq) {
                *out = slot_read(b, s);
                found = true;
            }
        }
        if (atomic_load_explicit(&w->guard[i].version, memory_order_relaxed) == v) {
            return found;
        }
    }
    return false;
}

static uint64_t holders(const struct whohas *w, uint64_t seq, uint32_t generation, uint32_t tick)
{
    uint64_t home = home_of(w, seq);
    struct entry e;

    if (seq == 0) { /* marks free slots; one hash in 2^64 is never entered */
        return 0;
    }
    for (uint64_t i = home; i < home + WINDOW; i++) {
        if (bucket_read(w, i, seq, &e)) {
            drop_void_bits(w, &e, generation, tick);
            return e.by_event | e.by_dispatch;
        }
        if (LOAD(&w->guard[i].passed) == 0) {
            break;
        }
    }
    return 0;
}

static void prefetch(const struct whohas *w, uint64_t seq)
{
    uint64_t i = home_of(w, seq);

    __builtin_prefetch(&w->guard[i]);
    __builtin_prefetch(&w->bucket[i]);
    __builtin_prefetch((const char *)&w->bucket[i] + 64);
}

static void note_tick(struct whohas *w, uint32_t tick)
{
    uint32_t known = atomic_load_explicit(&w->tick, memory_order_relaxed);

    while ((int32_t)(tick - known) > 0 &&
           !atomic_compare_exchange_weak_explicit(&w->tick, &known, tick, memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
}

/* One match: a chain, who is asked about, and what they were found to hold. */
struct match {
    const struct whohas *w;
    const struct prefix *p;
    uint32_t generation, tick;
    uint64_t mask;
    uint64_t *out_bytes;
};

/* Workers of `among` that hold chunk i; they hold all the text before it, so the last call for a
 * worker with the greatest i is its answer. */
static uint64_t ask(const struct match *m, uint32_t i, uint64_t among)
{
    uint64_t found = among & holders(m->w, m->p->seq[i], m->generation, m->tick);

    for (uint64_t left = found; left != 0; left &= left - 1) {
        m->out_bytes[__builtin_ctzll(left)] = m->p->end[i];
    }
    return found;
}

/* Asks for the last chunk of each stride; group[k]: workers whose deepest answer was at stride k
 * (0: none yet). Stops where nobody answers twice. Returns the strides asked for. */
static uint32_t probe(const struct match *m, uint64_t *group)
{
    uint32_t strides = m->p->count / STRIDE, silent = 0, k;
    uint32_t last_of[WHOHAS_WORKERS_MAX] = {0};

    group[0] = m->mask;
    for (k = 1; k <= strides && k <= PREFETCH; k++) {
        prefetch(m->w, m->p->seq[k * STRIDE - 1]);
    }
    for (k = 1; k <= strides && silent < 2; k++) {
        group[k] = ask(m, k * STRIDE - 1, m->mask);
        silent = group[k] == 0 ? silent + 1 : 0;
        for (uint64_t left = group[k]; left != 0; left &= left - 1) {
            unsigned worker = (unsigned)__builtin_ctzll(left);

            group[last_of[worker]] &= ~(1ULL << worker);
            last_of[worker] = k;
        }
        if (k + PREFETCH <= strides) {
            prefetch(m->w, m->p->seq[(k + PREFETCH) * STRIDE - 1]);
        }
    }
    return k;
}

/* Chunk by chunk from a stride's start, until two in a row are nobody's. */
static void refine(const struct match *m, uint32_t from, uint64_t among)
{
    uint32_t to = (uint32_t)size_min(from + 2 * STRIDE, m->p->count), silent = 0;

    for (uint32_t i = from; i < to && i < from + PREFETCH; i++) {
        prefetch(m->w, m->p->seq[i]);
    }
    for (uint32_t i = from; i < to && silent < 2; i++) {
        silent = ask(m, i, among) == 0 ? silent + 1 : 0;
        if (i + PREFETCH < to) {
            prefetch(m->w, m->p->seq[i + PREFETCH]);
        }
    }
}

void whohas_match(const struct whohas *w, const struct prefix *p, uint64_t mask, uint64_t now_us,
                  uint64_t out_bytes[WHOHAS_WORKERS_MAX])
{
    struct match m = {w, p, LOAD(&w->generation), tick_of(now_us), mask, out_bytes};
    uint64_t group[PREFIX_CHUNKS_MAX / STRIDE + 1]; /* set up to where probe went */
    uint32_t asked;

    CHECK(p->count <= PREFIX_CHUNKS_MAX);
    for (uint64_t left = mask; left != 0; left &= left - 1) {
        out_bytes[__builtin_ctzll(left)] = 0;
    }
    asked = probe(&m, group);
    for (uint32_t k = 0; k < asked; k++) {
        if (group[k] != 0) {
            refine(&m, k * STRIDE, group[k]);
        }
    }
}

/* ---- writing ---- */

static void held_add(struct whohas *w, uint64_t workers, int64_t by)
{
    for (; workers != 0; workers &= workers - 1) {
        ADD(&w->held[__builtin_ctzll(workers)], by);
    }
}

/* Empties a slot of the locked bucket i. */
static void slot_clear(struct whohas *w, uint64_t i, unsigned s)
{
    struct entry e = slot_read(&w->bucket[i], s);

    slot_write(&w->bucket[i], s, (struct entry){0});
    for (uint64_t at = home_of(w, e.seq); at < i; at++) {
        atomic_fetch_sub_explicit(&w->guard[at].passed, 1, memory_order_release);
    }
    atomic_fetch_sub_explicit(&w->entries, 1, memory_order_relaxed);
}

/* As slot_clear, of an entry that may still have meant something. */
static void slot_evict(struct whohas *w, uint64_t i, unsigned s)
{
    struct entry e = slot_read(&w->bucket[i], s);

    drop_void_bits(w, &e, LOAD(&w->generation), LOAD(&w->tick));
    held_add(w, e.by_event, -1);
    slot_clear(w, i, s);
    ADD(&w->evicted, 1);
}

/* The slot of seq in bucket i, which is locked; SLOTS: none. seq 0 finds a free one. */
static unsigned slot_find(const struct whohas *w, uint64_t i, uint64_t seq)
{
    unsigned s = 0;

    while (s < SLOTS && LOAD(&w->bucket[i].seq[s]) != seq) {
        s++;
    }
    return s;
}

/* How little it costs to give e up: its age, or more than any age when it means nothing. */
static uint64_t coldness(const struct whohas *w, struct entry e)
{
    uint32_t now = LOAD(&w->tick);

    drop_void_bits(w, &e, LOAD(&w->generation), now);
    return (e.by_event | e.by_dispatch) == 0 ? UINT64_MAX : age_of(&e, now);
}

/* The coldest entry of bucket i and how cold it is; SLOTS: it is empty. */
static unsigned coldest_slot(const struct whohas *w, uint64_t i, uint64_t *cold)
{
    unsigned coldest = SLOTS;

    for (unsigned s = 0; s < SLOTS; s++) {
        struct entry e = slot_read(&w->bucket[i], s);
        uint64_t c = e.seq != 0 ? coldness(w, e) : 0;

        if (e.seq != 0 && (coldest == SLOTS || c > *cold)) {
            coldest = s;
            *cold = c;
        }
    }
    return coldest;
}

/* A bucket for the n-th draw of the index's life: the same history gives the same one. */
static uint64_t draw(const struct whohas *w, uint64_t n)
{
    uint64_t x = n * 0x9E3779B97F4A7C15ULL; /* splitmix64 */

    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ x >> 27) * 0x94D049BB133111EBULL;
    x ^= x >> 31;
    return (x >> 32) * (w->homes + WINDOW - 1) >> 32;
}

/* Gives up the coldest entry of a few buckets drawn at random: an order of all of them would be one
 * more thing that threads share, and of 20 drawn the coldest is among the coldest fifth (99 %). A
 * hand that walks would empty thin stretches, which lose one a visit like the dense ones. */
static void make_room(struct whohas *w)
{
    for (unsigned round = 0; round < EVICT_ROUNDS; round++) {
        uint64_t n = ADD(&w->draws, EVICT_SAMPLE), best = UINT64_MAX, most = 0, cold = 0;
        unsigned s;

        for (uint64_t k = n; k < n + EVICT_SAMPLE; k++) {
            uint64_t i = draw(w, k);

            /* Not locked: which one to try is a hint. */
            if (coldest_slot(w, i, &cold) < SLOTS && (best == UINT64_MAX || cold > most)) {
                best = i;
                most = cold;
            }
        }
        if (best == UINT64_MAX) {
            continue;
        }
        lock(w, best);
        s = coldest_slot(w, best, &cold);
        if (s < SLOTS) {
            slot_evict(w, best, s);
        }
        unlock(w, best);
        if (s < SLOTS) {
            return;
        }
    }
}

/* Where seq is: bucket i, locked, and its slot; false: nowhere. `home` is locked by the caller when
 * it means to enter seq, then it stays so. */
static bool find_locked(struct whohas *w, uint64_t seq, bool home_locked, uint64_t *i, unsigned *s)
{
    uint64_t home = home_of(w, seq);

    for (*i = home; *i < home + WINDOW; (*i)++) {
        if (*i != home || !home_locked) {
            lock(w, *i);
        }
        *s = slot_find(w, *i, seq);
        if (*s < SLOTS) {
            return true;
        }
        if (*i != home || !home_locked) {
            unlock(w, *i);
        }
        if (LOAD(&w->guard[*i].passed) == 0) {
            return false;
        }
    }
    return false;
}

/* A free slot for a key whose home bucket is locked: bucket i, locked. A full window gives up the
 * coldest of its home bucket. */
static void take_slot(struct whohas *w, uint64_t home, uint64_t *i, unsigned *s)
{
    uint64_t cold;

    for (*i = home; *i < home + WINDOW; (*i)++) {
        if (*i != home) {
            lock(w, *i);
        }
        *s = slot_find(w, *i, 0);
        if (*s < SLOTS) {
            for (uint64_t at = home; at < *i; at++) {
                atomic_fetch_add_explicit(&w->guard[at].passed, 1, memory_order_release);
            }
            ADD(&w->entries, 1);
            return;
        }
        if (*i != home) {
            unlock(w, *i);
        }
    }
    *i = home;
    *s = coldest_slot(w, home, &cold);
    slot_evict(w, home, *s);
    ADD(&w->entries, 1);
}

enum source { BY_DISPATCH = 1, BY_EVENT };

static void apply(struct whohas *w, struct entry *e, enum source source, unsigned worker,
                  uint32_t tick)
{
    uint64_t bit = 1ULL << worker;

    if (source == BY_DISPATCH) {
        /* What an event says needs no guess beside it, and goes when an event says so. */
        e->by_dispatch |= (e->by_event & bit) == 0 ? bit : 0;
        e->tick = tick;
        return;
    }
    /* The tick is the age of guesses too: an event makes none of them younger. */
    e->tick = e->by_dispatch == 0 ? tick : e->tick;
    e->by_dispatch &= ~bit;
    held_add(w, bit & ~e->by_event, 1);
    e->by_event |= bit;
}

static void enter(struct whohas *w, uint64_t seq, enum source source, unsigned worker,
                  uint32_t tick)
{
    uint64_t home = home_of(w, seq), i;
    struct entry e;
    unsigned s;

    if (seq == 0) {
        return;
    }
    lock(w, home);
    if (find_locked(w, seq, true, &i, &s)) {
        e = slot_read(&w->bucket[i], s);
        drop_void_bits(w, &e, LOAD(&w->generation), tick);
    } else {
        take_slot(w, home, &i, &s);
        e = (struct entry){.seq = seq, .tick = tick, .generation = LOAD(&w->generation)};
    }
    apply(w, &e, source, worker, tick);
    slot_write(&w->bucket[i], s, e);
    if (i != home) {
        unlock(w, i);
    }
    unlock(w, home);
}

static void enter_all(struct whohas *w, const uint64_t *seq, size_t count, enum source source,
                      unsigned worker, uint32_t tick)
{
    CHECK(worker < WHOHAS_WORKERS_MAX);
    for (size_t i = 0; i < count; i++) {
        if (i + PREFETCH < count) {
            prefetch(w, seq[i + PREFETCH]);
        }
        if (atomic_load_explicit(&w->entries, memory_order_relaxed) >= w->capacity) {
            make_room(w);
        }
        enter(w, seq[i], source, worker, tick);
    }
}

void whohas_dispatched(struct whohas *w, const struct prefix *p, unsigned worker, uint64_t now_us)
{
    note_tick(w, tick_of(now_us));
    enter_all(w, p->seq, p->count, BY_DISPATCH, worker, tick_of(now_us));
}

void whohas_stored(struct whohas *w, unsigned worker, const uint64_t *seq, size_t count)
{
    enter_all(w, seq, count, BY_EVENT, worker, LOAD(&w->tick));
}

void whohas_removed(struct whohas *w, unsigned worker, const uint64_t *seq, size_t count)
{
    uint64_t bit = 1ULL << worker;

    CHECK(worker < WHOHAS_WORKERS_MAX);
    for (size_t k = 0; k < count; k++) {
        struct entry e;
        uint64_t i;
        unsigned s;

        if (seq[k] == 0 || !find_locked(w, seq[k], false, &i, &s)) {
            continue;
        }
        e = slot_read(&w->bucket[i], s);
        drop_void_bits(w, &e, LOAD(&w->generation), LOAD(&w->tick));
        held_add(w, e.by_event & bit, -1);
        e.by_event &= ~bit;
        slot_write(&w->bucket[i], s, e);
        if ((e.by_event | e.by_dispatch) == 0) {
            slot_clear(w, i, s);
        }
        unlock(w, i);
    }
}

void whohas_reset_worker(struct whohas *w, unsigned worker, bool publishes)
{
    uint64_t bit = 1ULL << worker;
    uint32_t next;

    CHECK(worker < WHOHAS_WORKERS_MAX);
    /* One reset at a time: whoever reads a generation must see the reset_at of every earlier one.
     */
    pthread_mutex_lock(&w->reset_lock);
    next = LOAD(&w->generation) + 1;
    STORE(&w->reset_at[worker], next);
    if (publishes) {
        atomic_fetch_or(&w->publishes, bit);
    } else {
        atomic_fetch_and(&w->publishes, ~bit);
    }
    STORE(&w->generation, next);
    STORE(&w->held[worker], 0);
    pthread_mutex_unlock(&w->reset_lock);
}

void whohas_stats(const struct whohas *w, struct whohas_stats *out)
{
    out->entries = LOAD(&w->entries);
    out->capacity = w->capacity;
    out->bytes = w->bytes;
    out->evicted = LOAD(&w->evicted);
    for (unsigned i = 0; i < WHOHAS_WORKERS_MAX; i++) {
        int64_t held = LOAD(&w->held[i]); /* a reset beside an eviction may leave it below 0 */

        out->held[i] = held > 0 ? (uint64_t)held : 0;
    }
}

void whohas_check(const struct whohas *w)
{
    uint64_t buckets = w->homes + WINDOW - 1, entries = 0;
    uint32_t *passed = mem_new(buckets * sizeof(*passed));

    for (uint64_t i = 0; i < buckets; i++) {
        for (unsigned s = 0; s < SLOTS; s++) {
            struct entry e = slot_read(&w->bucket[i], s);
            uint64_t home = home_of(w, e.seq);

            if (e.seq == 0) {
                CHECK((e.by_event | e.by_dispatch) == 0);
                continue;
            }
            entries++;
            CHECK(home <= i && i < home + WINDOW);
            CHECK((e.by_event & e.by_dispatch) == 0);
            CHECK(e.generation <= LOAD(&w->generation));
            for (uint64_t at = home; at < i; at++) {
                passed[at]++;
            }
        }
    }
    CHECK(entries == LOAD(&w->entries));
    for (uint64_t i = 0; i < buckets; i++) {
        CHECK(passed[i] == LOAD(&w->guard[i].passed));
        CHECK((LOAD(&w->guard[i].version) & 1) == 0);
    }
    mem_free(passed);
}
