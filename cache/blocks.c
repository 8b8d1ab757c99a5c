/* blocks.c - the KV block table: one array of blocks, a hash index over the published ones, a heap
 * of the idle leaves (coldest first), and a count of holders for each chunk hash. */
#include "cache/blocks.h"

#include "cache/chunkset.h"

#define BLOCKS_TOTAL_MAX (1u << 26) /* 2 G tokens: indexes stay far from BLOCK_NONE */

enum block_state {
    BLOCK_FREE = 0, /* on the free list */
    BLOCK_PRIVATE,  /* referenced, not in the index: being filled, or a copy of a published one */
    BLOCK_SHARED,   /* referenced and in the index */
    BLOCK_IDLE,     /* in the index, refs 0 */
    BLOCK_STATES,
};

struct block {
    enum block_state state;
    uint32_t refs;
    uint32_t next;     /* free list, or the bucket's chain when published; BLOCK_NONE: last */
    uint32_t parent;   /* published: the block before it, published as well; BLOCK_NONE: first */
    uint32_t children; /* published blocks whose parent this is */
    uint32_t twin;     /* private: the published equal, which it keeps referenced; or BLOCK_NONE */
    uint32_t heap_at;  /* place in heap[]; BLOCK_NONE: not an idle leaf */
    uint32_t n_chunks;
    uint64_t stamp; /* when refs last fell to 0: coldest is least */
    struct hash128 hash;
    struct prefix_key salt;
    int32_t ids[BLOCK_TOKENS];
    uint64_t chunk[BLOCK_CHUNKS_MAX];
};

struct blocks {
    struct block *block; /* owned [total] */
    uint32_t total;
    uint32_t count[BLOCK_STATES];
    uint32_t free;    /* head of the free list */
    uint32_t *bucket; /* owned [bucket_mask + 1]: heads of chains */
    uint32_t bucket_mask;
    uint32_t *heap; /* owned [total]: idle leaves, a min-heap by stamp */
    uint32_t heap_n;
    struct chunkset chunks;
    struct blocks_events events;
    struct hash128 root; /* the parent of every first block */
    uint64_t seed, clock, hits, lookups;
};

struct blocks *blocks_new(uint32_t total, uint64_t seed, struct hash128 root,
                          struct blocks_events events)
{
    struct blocks *b = mem_new(sizeof(*b));
    uint32_t buckets = 16;

    CHECK(total > 0 && total <= BLOCKS_TOTAL_MAX);
    while (buckets < total) {
        buckets *= 2;
    }
    b->block = mem_new((size_t)total * sizeof(*b->block));
    b->heap = mem_new((size_t)total * sizeof(*b->heap));
    b->bucket = mem_new((size_t)buckets * sizeof(*b->bucket));
    chunkset_init(&b->chunks, (size_t)total * BLOCK_CHUNKS_MAX, seed);
    memset(b->bucket, 0xFF, (size_t)buckets * sizeof(*b->bucket));
    b->bucket_mask = buckets - 1;
    b->total = total;
    b->count[BLOCK_FREE] = total;
    b->seed = seed;
    b->root = root;
    b->events = events;
    for (uint32_t i = 0; i < total; i++) {
        b->block[i].next = i + 1 < total ? i + 1 : BLOCK_NONE;
        b->block[i].parent = b->block[i].twin = b->block[i].heap_at = BLOCK_NONE;
    }
    return b;
}

void blocks_free(struct blocks *b)
{
    if (b == NULL) {
        return;
    }
    chunkset_fini(&b->chunks);
    mem_free(b->bucket);
    mem_free(b->heap);
    mem_free(b->block);
    mem_free(b);
}

/* The only line that changes a block's state; the counts follow it. */
static void set_state(struct blocks *b, uint32_t i, enum block_state to)
{
    static const bool legal[BLOCK_STATES][BLOCK_STATES] = {
        [BLOCK_FREE] = {[BLOCK_PRIVATE] = true},
        [BLOCK_PRIVATE] = {[BLOCK_SHARED] = true, [BLOCK_FREE] = true},
        [BLOCK_SHARED] = {[BLOCK_IDLE] = true},
        [BLOCK_IDLE] = {[BLOCK_SHARED] = true, [BLOCK_FREE] = true},
    };
    enum block_state from = b->block[i].state;

    CHECK(legal[from][to]);
    b->count[from]--;
    b->count[to]++;
    b->block[i].state = to;
}

static void heap_set(struct blocks *b, uint32_t at, uint32_t i)
{
    b->heap[at] = i;
    b->block[i].heap_at = at;
}

/* Puts block i where it belongs, starting from the hole at `at`. */
static void heap_settle(struct blocks *b, uint32_t at, uint32_t i)
{
    uint64_t stamp = b->block[i].stamp;

    while (at > 0 && b->block[b->heap[(at - 1) / 2]].stamp > stamp) {
        heap_set(b, at, b->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child >= b->heap_n) {
            break;
        }
        if (child + 1 < b->heap_n &&
            b->block[b->heap[child + 1]].stamp < b->block[b->heap[child]].stamp) {
            child++;
        }
        if (b->block[b->heap[child]].stamp >= stamp) {
            break;
        }
        heap_set(b, at, b->heap[child]);
        at = child;
    }
    heap_set(b, at, i);
}

/* Brings the heap in line: a block is in it iff it is idle and a leaf. */
static void heap_sync(struct blocks *b, uint32_t i)
{
    struct block *k = &b->block[i];
    bool want = k->state == BLOCK_IDLE && k->children == 0;

    if (want == (k->heap_at != BLOCK_NONE)) {
        return;
    }
    if (want) {
        heap_settle(b, b->heap_n++, i);
    } else {
        uint32_t at = k->heap_at, last = b->heap[--b->heap_n];

        k->heap_at = BLOCK_NONE;
        if (last != i) {
            heap_settle(b, at, last);
        }
    }
}

static void ref(struct blocks *b, uint32_t i)
{
    if (b->block[i].refs++ == 0) {
        set_state(b, i, BLOCK_SHARED);
        heap_sync(b, i);
    }
}

/* What a block's hash covers, laid out for hashing. */
struct hashed {
    struct hash128 parent; /* the root for the first block */
    struct prefix_key salt;
    int32_t ids[BLOCK_TOKENS];
};
_Static_assert(sizeof(struct hashed) == 32 + 4 * BLOCK_TOKENS, "no padding is hashed");

static struct hash128 hash_block(const struct blocks *b, uint32_t parent, struct prefix_key salt,
                                 const int32_t ids[BLOCK_TOKENS])
{
    struct hashed h = {.parent = b->root, .salt = salt};

    if (parent != BLOCK_NONE) {
        h.parent = b->block[parent].hash;
    }
    memcpy(h.ids, ids, sizeof(h.ids));
    return hash_xxh3_128(&h, sizeof(h), b->seed);
}

/* The published block with these very tokens, parent and salt; the hash only says where to look. A
 * parent's index is proof of all that precedes: it cannot be reused while it has children. */
static uint32_t find(const struct blocks *b, struct hash128 hash, uint32_t parent,
                     struct prefix_key salt, const int32_t ids[BLOCK_TOKENS])
{
    uint32_t i = b->bucket[hash.lo & b->bucket_mask];

    for (; i != BLOCK_NONE; i = b->block[i].next) {
        const struct block *k = &b->block[i];

        if (k->hash.lo == hash.lo && k->hash.hi == hash.hi && k->parent == parent &&
            k->salt.lo == salt.lo && k->salt.hi == salt.hi &&
            memcmp(k->ids, ids, sizeof(k->ids)) == 0) {
            break;
        }
    }
    return i;
}

uint32_t blocks_match(struct blocks *b, struct prefix_key salt, const int32_t *ids, uint32_t n_ids,
                      uint32_t *table)
{
    uint32_t most = n_ids > 0 ? (n_ids - 1) / BLOCK_TOKENS : 0, n = 0, parent = BLOCK_NONE;

    while (n < most) {
        const int32_t *part = ids + (size_t)n * BLOCK_TOKENS;
        uint32_t i = find(b, hash_block(b, parent, salt, part), parent, salt, part);

        if (i == BLOCK_NONE) {
            break;
        }
        ref(b, i);
        table[n++] = parent = i;
    }
    b->lookups += most;
    b->hits += n;
    return n;
}

static void unlink_from_bucket(struct blocks *b, uint32_t i)
{
    uint32_t *at = &b->bucket[b->block[i].hash.lo & b->bucket_mask];

    while (*at != i) {
        CHECK(*at != BLOCK_NONE);
        at = &b->block[*at].next;
    }
    *at = b->block[i].next;
}

static void put_free(struct blocks *b, uint32_t i)
{
    set_state(b, i, BLOCK_FREE);
    b->block[i].next = b->free;
    b->free = i;
}

/* Out of the index, hash cleared, events told, then free: in that order. i is an idle leaf. */
static void evict(struct blocks *b, uint32_t i)
{
    struct block *k = &b->block[i];
    uint32_t parent = k->parent, n_chunks = k->n_chunks;

    CHECK(k->state == BLOCK_IDLE && k->children == 0 && k->refs == 0);
    unlink_from_bucket(b, i);
    k->hash = (struct hash128){0};
    k->salt = (struct prefix_key){0};
    k->parent = BLOCK_NONE;
    k->n_chunks = 0;
    for (uint32_t c = 0; c < n_chunks; c++) {
        if (chunkset_drop(&b->chunks, k->chunk[c]) && b->events.removed != NULL) {
            b->events.removed(b->events.ctx, k->chunk[c]);
        }
    }
    put_free(b, i);
    heap_sync(b, i);
    if (parent != BLOCK_NONE) {
        b->block[parent].children--;
        heap_sync(b, parent);
    }
}

uint32_t blocks_take(struct blocks *b)
{
    uint32_t i;

    if (b->free == BLOCK_NONE && b->heap_n > 0) {
        evict(b, b->heap[0]);
    }
    i = b->free;
    if (i == BLOCK_NONE) {
        return BLOCK_NONE;
    }
    b->free = b->block[i].next;
    b->block[i].next = BLOCK_NONE;
    b->block[i].refs = 1;
    set_state(b, i, BLOCK_PRIVATE);
    return i;
}

static bool carries(const struct block *k, uint64_t chunk)
{
    for (uint32_t c = 0; c < k->n_chunks; c++) {
        if (k->chunk[c] == chunk) {
            return true;
        }
    }
    return false;
}

/* Binds chunk hashes that the block does not carry yet, up to its bound; the rest stay unheld. */
static void bind_chunks(struct blocks *b, uint32_t i, const uint64_t *chunks, uint32_t n)
{
    struct block *k = &b->block[i];

    for (uint32_t c = 0; c < n && k->n_chunks < BLOCK_CHUNKS_MAX; c++) {
        if (carries(k, chunks[c])) {
            continue;
        }
        k->chunk[k->n_chunks++] = chunks[c];
        if (chunkset_add(&b->chunks, chunks[c]) && b->events.stored != NULL) {
            b->events.stored(b->events.ctx, chunks[c]);
        }
    }
}

void blocks_publish(struct blocks *b, struct prefix_key salt, uint32_t block, uint32_t parent,
                    const int32_t ids[BLOCK_TOKENS], const uint64_t *chunks, uint32_t n_chunks)
{
    struct block *k = &b->block[block];
    struct hash128 hash;
    uint32_t equal;

    CHECK(block < b->total && k->state == BLOCK_PRIVATE && k->twin == BLOCK_NONE);
    if (parent != BLOCK_NONE) {
        CHECK(parent < b->total && b->block[parent].refs > 0);
        if (b->block[parent].state == BLOCK_PRIVATE) {
            parent = b->block[parent].twin;
            if (parent == BLOCK_NONE) {
                return; /* its parent was never entered: nothing could find it */
            }
        }
    }
    hash = hash_block(b, parent, salt, ids);
    equal = find(b, hash, parent, salt, ids);
    if (equal != BLOCK_NONE) {
        /* The copy keeps its equal referenced, so that what is chained behind the copy has a
         * parent that stays, and an idle block never has a referenced child. */
        ref(b, equal);
        k->twin = equal;
        bind_chunks(b, equal, chunks, n_chunks);
        return;
    }
    k->hash = hash;
    k->salt = salt;
    k->parent = parent;
    memcpy(k->ids, ids, sizeof(k->ids));
    k->next = b->bucket[hash.lo & b->bucket_mask];
    b->bucket[hash.lo & b->bucket_mask] = block;
    set_state(b, block, BLOCK_SHARED);
    if (parent != BLOCK_NONE) {
        b->block[parent].children++;
        heap_sync(b, parent);
    }
    bind_chunks(b, block, chunks, n_chunks);
}

void blocks_release(struct blocks *b, uint32_t block)
{
    struct block *k = &b->block[block];
    uint32_t twin = k->twin;

    CHECK(block < b->total && k->refs > 0);
    if (--k->refs > 0) {
        return;
    }
    if (k->state == BLOCK_SHARED) {
        k->stamp = ++b->clock;
        set_state(b, block, BLOCK_IDLE);
        heap_sync(b, block);
        return;
    }
    k->twin = BLOCK_NONE;
    put_free(b, block);
    if (twin != BLOCK_NONE) {
        blocks_release(b, twin); /* published, so it has no twin itself */
    }
}

void blocks_clear(struct blocks *b)
{
    while (b->heap_n > 0) {
        evict(b, b->heap[0]);
    }
}

struct blocks_count blocks_count(const struct blocks *b)
{
    return (struct blocks_count){
        .total = b->total,
        .free = b->count[BLOCK_FREE],
        .referenced = b->count[BLOCK_PRIVATE] + b->count[BLOCK_SHARED],
        .cached_idle = b->count[BLOCK_IDLE],
        .hits = b->hits,
        .lookups = b->lookups,
    };
}

uint32_t blocks_available(const struct blocks *b)
{
    return b->count[BLOCK_FREE] + b->count[BLOCK_IDLE];
}

struct hash128 blocks_hash(const struct blocks *b, uint32_t block)
{
    CHECK(block < b->total);
    return b->block[block].hash;
}

void blocks_each_chunk(const struct blocks *b, void (*each)(void *ctx, uint64_t chunk), void *ctx)
{
    chunkset_each(&b->chunks, each, ctx);
}

static void check_block(const struct blocks *b, uint32_t i)
{
    const struct block *k = &b->block[i];
    bool published = k->state == BLOCK_SHARED || k->state == BLOCK_IDLE;

    CHECK((k->refs > 0) == (k->state == BLOCK_PRIVATE || k->state == BLOCK_SHARED));
    CHECK((k->heap_at != BLOCK_NONE) == (k->state == BLOCK_IDLE && k->children == 0));
    CHECK(k->heap_at == BLOCK_NONE || (k->heap_at < b->heap_n && b->heap[k->heap_at] == i));
    CHECK(published || (k->n_chunks == 0 && k->children == 0 && k->parent == BLOCK_NONE));
    CHECK(k->twin == BLOCK_NONE || (k->state == BLOCK_PRIVATE && b->block[k->twin].refs > 0));
    for (uint32_t c = 0; c < k->n_chunks; c++) {
        CHECK(chunkset_count(&b->chunks, k->chunk[c]) > 0);
    }
    if (published) {
        struct hash128 h = hash_block(b, k->parent, k->salt, k->ids);

        CHECK(h.lo == k->hash.lo && h.hi == k->hash.hi);
        CHECK(find(b, k->hash, k->parent, k->salt, k->ids) == i);
        CHECK(k->parent == BLOCK_NONE || b->block[k->parent].children > 0);
    }
}

void blocks_check(const struct blocks *b)
{
    uint32_t seen[BLOCK_STATES] = {0}, free_n = 0;
    uint64_t children = 0, linked = 0, bound = 0;

    for (uint32_t i = 0; i < b->total; i++) {
        check_block(b, i);
        seen[b->block[i].state]++;
        children += b->block[i].children;
        linked += b->block[i].parent != BLOCK_NONE;
        bound += b->block[i].n_chunks;
    }
    CHECK(memcmp(seen, b->count, sizeof(seen)) == 0);
    CHECK(seen[BLOCK_FREE] + seen[BLOCK_PRIVATE] + seen[BLOCK_SHARED] + seen[BLOCK_IDLE] ==
          b->total);
    CHECK(children == linked);
    CHECK(bound == chunkset_sum(&b->chunks));
    for (uint32_t i = b->free; i != BLOCK_NONE; i = b->block[i].next) {
        CHECK(b->block[i].state == BLOCK_FREE && ++free_n <= b->total);
    }
    CHECK(free_n == b->count[BLOCK_FREE]);
    for (uint32_t i = 1; i < b->heap_n; i++) {
        CHECK(b->block[b->heap[(i - 1) / 2]].stamp <= b->block[b->heap[i]].stamp);
    }
}
