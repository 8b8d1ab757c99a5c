/* test_blocks - the block table against a naive model of it, op by op, with hashes cut to two bits
 * so that nearly every look-up meets another block's hash; and its named promises one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include "base/hash.h"
#include "cache/blocks.h"
#include "cache/chunkset.h"

struct hash128 __real_hash_xxh3_128(const void *p, size_t n, uint64_t seed);
struct hash128 __wrap_hash_xxh3_128(const void *p, size_t n, uint64_t seed);

static uint64_t hash_bits = UINT64_MAX; /* the test's own knob; ~0: whole hashes */

struct hash128 __wrap_hash_xxh3_128(const void *p, size_t n, uint64_t seed)
{
    struct hash128 h = __real_hash_xxh3_128(p, n, seed);

    return (struct hash128){h.lo & hash_bits, h.hi & hash_bits};
}

static const struct prefix_key salts[2] = {{1, 2}, {1, 3}};

/* Chunk hashes that the events say are held. */
struct held {
    uint64_t chunk[512];
    unsigned n;
};

static void on_stored(void *ctx, uint64_t chunk)
{
    struct held *h = ctx;

    for (unsigned i = 0; i < h->n; i++) {
        assert_true(h->chunk[i] != chunk); /* stored once */
    }
    assert_true(h->n < ARRAY_LEN(h->chunk));
    h->chunk[h->n++] = chunk;
}

static void on_removed(void *ctx, uint64_t chunk)
{
    struct held *h = ctx;

    for (unsigned i = 0; i < h->n; i++) {
        if (h->chunk[i] == chunk) {
            h->chunk[i] = h->chunk[--h->n];
            return;
        }
    }
    fail_msg("chunk %llu removed but never stored", (unsigned long long)chunk);
}

static struct blocks *table_of(uint32_t total, struct held *h)
{
    return blocks_new(total, 99, (struct hash128){0},
                      (struct blocks_events){on_stored, on_removed, h});
}

static void fill_ids(int32_t *ids, const uint8_t *kinds, unsigned blocks)
{
    for (unsigned i = 0; i < blocks * BLOCK_TOKENS; i++) {
        ids[i] = kinds[i / BLOCK_TOKENS] * 1000 + (int32_t)(i % BLOCK_TOKENS);
    }
}

/* ---- the model ---- */

#define TOTAL 12
#define DEPTH_MAX 6
#define SEQS 4
#define CHUNKS 40

/* A published block: what leads to it, token kind by token kind. */
struct entry {
    bool live;
    unsigned salt, depth; /* depth 1: first block */
    uint8_t kind[DEPTH_MAX];
    uint32_t block;
    unsigned refs;
    uint64_t stamp;
    bool chunk[CHUNKS];
};

enum place { UNPUBLISHED, OWN, COPY };

struct seq {
    bool live;
    unsigned salt, blocks, full, published;
    uint8_t kind[DEPTH_MAX];
    uint32_t block[DEPTH_MAX + 1];
    enum place place[DEPTH_MAX + 1];
    struct entry *entry[DEPTH_MAX + 1];
};

struct model {
    struct entry entry[TOTAL];
    struct seq seq[SEQS];
    unsigned private;
    uint64_t clock;
    uint64_t random;
};

static unsigned pick(struct model *m, unsigned n)
{
    m->random = m->random * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)(m->random >> 33) % n;
}

static struct entry *model_find(struct model *m, unsigned salt, const uint8_t *kind, unsigned depth)
{
    for (unsigned i = 0; i < TOTAL; i++) {
        struct entry *e = &m->entry[i];

        if (e->live && e->salt == salt && e->depth == depth && memcmp(e->kind, kind, depth) == 0) {
            return e;
        }
    }
    return NULL;
}

static unsigned model_cached(const struct model *m)
{
    unsigned n = 0;

    for (unsigned i = 0; i < TOTAL; i++) {
        n += m->entry[i].live;
    }
    return n;
}

static bool model_leaf(const struct model *m, const struct entry *e)
{
    for (unsigned i = 0; i < TOTAL; i++) {
        const struct entry *k = &m->entry[i];

        if (k->live && k->salt == e->salt && k->depth == e->depth + 1 &&
            memcmp(k->kind, e->kind, e->depth) == 0) {
            return false;
        }
    }
    return true;
}

/* The coldest idle leaf. */
static struct entry *model_victim(struct model *m)
{
    struct entry *best = NULL;

    for (unsigned i = 0; i < TOTAL; i++) {
        struct entry *e = &m->entry[i];

        if (e->live && e->refs == 0 && model_leaf(m, e) &&
            (best == NULL || e->stamp < best->stamp)) {
            best = e;
        }
    }
    return best;
}

static bool model_take(struct model *m)
{
    if (m->private + model_cached(m) == TOTAL) {
        struct entry *e = model_victim(m);

        if (e == NULL) {
            return false;
        }
        e->live = false;
    }
    m->private ++;
    return true;
}

static void model_unref(struct model *m, struct entry *e)
{
    if (--e->refs == 0) {
        e->stamp = ++m->clock;
    }
}

static void seq_release(struct model *m, struct blocks *b, struct seq *s)
{
    while (s->blocks > 0) {
        unsigned i = --s->blocks;

        blocks_release(b, s->block[i]);
        m->private -= s->place[i] != OWN;
        if (s->place[i] != UNPUBLISHED) {
            model_unref(m, s->entry[i]);
        }
    }
    s->live = false;
}

static void seq_start(struct model *m, struct blocks *b, struct seq *s)
{
    int32_t ids[(DEPTH_MAX + 1) * BLOCK_TOKENS] = {0};
    unsigned depth = 1 + pick(m, DEPTH_MAX), hit = 0, n_ids;

    *s = (struct seq){.live = true, .salt = pick(m, 2), .full = depth};
    for (unsigned i = 0; i < depth; i++) {
        s->kind[i] = (uint8_t)(pick(m, 4) == 0 ? 2 : 1);
    }
    fill_ids(ids, s->kind, depth);
    n_ids = depth * BLOCK_TOKENS + pick(m, 3) - 1;
    s->full = n_ids / BLOCK_TOKENS;
    s->blocks = blocks_match(b, salts[s->salt], ids, n_ids, s->block);
    while (hit < (n_ids - 1) / BLOCK_TOKENS &&
           (s->entry[hit] = model_find(m, s->salt, s->kind, hit + 1)) != NULL) {
        assert_int_equal(s->block[hit], s->entry[hit]->block);
        s->entry[hit]->refs++;
        s->place[hit++] = OWN;
    }
    assert_int_equal(s->blocks, hit);
    s->published = hit;
    while (s->blocks < (n_ids + BLOCK_TOKENS - 1) / BLOCK_TOKENS) {
        uint32_t got = blocks_take(b);

        assert_int_equal(got != BLOCK_NONE, model_take(m));
        if (got == BLOCK_NONE) {
            seq_release(m, b, s);
            return;
        }
        s->place[s->blocks] = UNPUBLISHED;
        s->block[s->blocks++] = got;
    }
}

static void seq_publish(struct model *m, struct blocks *b, struct seq *s)
{
    int32_t ids[DEPTH_MAX * BLOCK_TOKENS];
    unsigned i = s->published;
    uint64_t chunks[2] = {s->salt * 20 + i * 3 + s->kind[i], s->salt * 20 + pick(m, 20)};
    struct entry *e = model_find(m, s->salt, s->kind, i + 1);

    fill_ids(ids, s->kind, s->full);
    blocks_publish(b, salts[s->salt], s->block[i], i > 0 ? s->block[i - 1] : BLOCK_NONE,
                   ids + i * BLOCK_TOKENS, chunks, 2);
    s->place[i] = e != NULL ? COPY : OWN;
    for (unsigned k = 0; e == NULL; k++) {
        if (!m->entry[k].live) {
            e = &m->entry[k];
            *e =
                (struct entry){.live = true, .salt = s->salt, .depth = i + 1, .block = s->block[i]};
            memcpy(e->kind, s->kind, sizeof(e->kind));
            m->private --;
        }
    }
    e->refs++;
    s->entry[i] = e;
    for (unsigned c = 0, n = 0; c < 2; c++) {
        for (unsigned k = n = 0; k < CHUNKS; k++) {
            n += e->chunk[k];
        }
        e->chunk[chunks[c]] = e->chunk[chunks[c]] || n < BLOCK_CHUNKS_MAX;
    }
    s->published++;
}

static void model_clear(struct model *m)
{
    struct entry *e;

    while ((e = model_victim(m)) != NULL) {
        e->live = false;
    }
}

static void count_chunk(void *ctx, uint64_t chunk)
{
    (void)chunk;
    ++*(unsigned *)ctx;
}

static void compare(struct model *m, struct blocks *b, const struct held *h)
{
    struct blocks_count c = blocks_count(b);
    unsigned idle = 0, chunks = 0, each = 0;

    blocks_check(b);
    for (unsigned i = 0; i < TOTAL; i++) {
        idle += m->entry[i].live && m->entry[i].refs == 0;
    }
    assert_int_equal(c.cached_idle, idle);
    assert_int_equal(c.referenced, m->private + model_cached(m) - idle);
    assert_int_equal(c.free + c.referenced + c.cached_idle, TOTAL);
    assert_int_equal(blocks_available(b), c.free + idle);
    for (unsigned k = 0; k < CHUNKS; k++) {
        bool want = false, got = false;

        for (unsigned i = 0; i < TOTAL; i++) {
            want = want || (m->entry[i].live && m->entry[i].chunk[k]);
        }
        for (unsigned i = 0; i < h->n; i++) {
            got = got || h->chunk[i] == k;
        }
        assert_int_equal(got, want);
        chunks += want;
    }
    blocks_each_chunk(b, count_chunk, &each);
    assert_int_equal(each, chunks);
    assert_int_equal(h->n, chunks);
}

static void walk(uint64_t seed, unsigned ops)
{
    struct held h = {0};
    struct model m = {.random = seed};
    struct blocks *b = table_of(TOTAL, &h);

    for (unsigned op = 0; op < ops; op++) {
        struct seq *s = &m.seq[pick(&m, SEQS)];
        unsigned what = pick(&m, 100);

        if (!s->live) {
            seq_start(&m, b, s);
        } else if (what < 70 && s->published < s->full) {
            seq_publish(&m, b, s);
        } else if (what < 98) {
            seq_release(&m, b, s);
        } else {
            blocks_clear(b);
            model_clear(&m);
        }
        compare(&m, b, &h);
    }
    for (unsigned i = 0; i < SEQS; i++) {
        seq_release(&m, b, &m.seq[i]);
    }
    compare(&m, b, &h);
    assert_int_equal(blocks_count(b).referenced, 0);
    blocks_free(b);
}

static void any_history_equals_the_naive_model(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        walk(seed, 3000);
    }
}

static void any_history_equals_the_naive_model_when_hashes_collide(void **state)
{
    (void)state;
    hash_bits = 1;
    for (uint64_t seed = 11; seed <= 16; seed++) {
        walk(seed, 3000);
    }
    hash_bits = 0;
    walk(21, 3000);
    hash_bits = UINT64_MAX;
}

/* ---- named promises ---- */

/* Takes, publishes and releases `n` blocks of these kinds. */
static void cache(struct blocks *b, unsigned salt, const uint8_t *kinds, unsigned n)
{
    int32_t ids[8 * BLOCK_TOKENS];
    uint32_t block[8];
    unsigned have;

    fill_ids(ids, kinds, n);
    have = blocks_match(b, salts[salt], ids, n * BLOCK_TOKENS + 1, block);
    for (unsigned i = have; i < n; i++) {
        uint64_t chunk = salt * 1000 + i * 10 + kinds[i];

        block[i] = blocks_take(b);
        assert_true(block[i] != BLOCK_NONE);
        blocks_publish(b, salts[salt], block[i], i > 0 ? block[i - 1] : BLOCK_NONE,
                       ids + i * BLOCK_TOKENS, &chunk, 1);
    }
    while (n > 0) {
        blocks_release(b, block[--n]);
    }
}

/* Blocks that a prompt of n_ids tokens of these kinds finds; releases them. */
static unsigned cached(struct blocks *b, unsigned salt, const uint8_t *kinds, unsigned n_ids)
{
    int32_t ids[9 * BLOCK_TOKENS] = {0};
    uint32_t block[9];
    unsigned n, hit;

    fill_ids(ids, kinds, n_ids / BLOCK_TOKENS);
    hit = n = blocks_match(b, salts[salt], ids, n_ids, block);
    while (n > 0) {
        blocks_release(b, block[--n]);
    }
    return hit;
}

static void at_least_one_token_stays_uncached(void **state)
{
    static const uint8_t kinds[] = {1, 1, 1, 1};
    static const struct {
        unsigned n_ids, hit;
    } cases[] = {{0, 0},  {1, 0},  {31, 0}, {32, 0}, {33, 1}, {63, 1},
                 {64, 1}, {65, 2}, {95, 2}, {96, 2}, {97, 3}, {128, 3}};
    struct held h = {0};
    struct blocks *b = table_of(8, &h);

    (void)state;
    cache(b, 0, kinds, 3);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(cached(b, 0, kinds, cases[i].n_ids), cases[i].hit);
    }
    blocks_free(b);
}

static void a_hit_needs_equal_tokens_parent_and_salt(void **state)
{
    static const uint8_t kinds[] = {1, 2, 1}, other[] = {2, 2, 1}, tail[] = {1, 2, 2};
    struct held h = {0};
    struct blocks *b = table_of(8, &h);

    (void)state;
    hash_bits = 0; /* all hashes are equal: only the comparison tells them apart */
    cache(b, 0, kinds, 3);
    assert_int_equal(cached(b, 0, kinds, 97), 3);
    assert_int_equal(cached(b, 0, tail, 97), 2);
    assert_int_equal(cached(b, 0, other, 97), 0);
    assert_int_equal(cached(b, 1, kinds, 97), 0);
    cache(b, 0, other, 2); /* its second block has the tokens of the other's second */
    assert_int_equal(cached(b, 0, other, 97), 2);
    assert_int_equal(cached(b, 0, kinds, 97), 3);
    blocks_check(b);
    hash_bits = UINT64_MAX;
    blocks_free(b);
}

static void a_pinned_block_is_never_evicted(void **state)
{
    static const uint8_t kinds[] = {1, 1, 1};
    int32_t ids[3 * BLOCK_TOKENS];
    uint32_t pinned[3];
    struct held h = {0};
    struct blocks *b = table_of(4, &h);

    (void)state;
    cache(b, 0, kinds, 3);
    fill_ids(ids, kinds, 3);
    assert_int_equal(blocks_match(b, salts[0], ids, 2 * BLOCK_TOKENS + 1, pinned), 2);
    assert_int_equal(blocks_available(b), 2);
    assert_true(blocks_take(b) != BLOCK_NONE); /* the free one */
    assert_true(blocks_take(b) != BLOCK_NONE); /* the idle leaf */
    assert_int_equal(blocks_take(b), BLOCK_NONE);
    assert_int_equal(blocks_count(b).referenced, 4);
    blocks_release(b, pinned[1]);
    assert_int_equal(blocks_take(b), pinned[1]);
    blocks_check(b);
    blocks_free(b);
}

static void the_coldest_leaf_goes_first_and_parents_last(void **state)
{
    static const uint8_t old[] = {1, 1}, young[] = {1, 2}, alone[] = {3};
    struct held h = {0};
    struct blocks *b = table_of(4, &h);

    (void)state;
    cache(b, 0, old, 2);
    cache(b, 0, alone, 1);
    cache(b, 0, young, 2); /* shares the first block with old, and makes it young */
    assert_int_equal(blocks_count(b).cached_idle, 4);
    (void)blocks_take(b);
    assert_int_equal(cached(b, 0, old, 65), 1);
    assert_int_equal(cached(b, 0, alone, 33), 1); /* and is the youngest now */
    (void)blocks_take(b);
    assert_int_equal(cached(b, 0, young, 65), 1);
    blocks_check(b);
    blocks_free(b);
}

static void an_unpublished_block_is_never_found(void **state)
{
    static const uint8_t kinds[] = {1};
    struct held h = {0};
    struct blocks *b = table_of(2, &h);
    uint32_t mine = blocks_take(b);

    (void)state;
    assert_int_equal(cached(b, 0, kinds, 33), 0);
    blocks_release(b, mine); /* its step was given up */
    assert_int_equal(blocks_count(b).free, 2);
    assert_int_equal(cached(b, 0, kinds, 33), 0);
    assert_int_equal(h.n, 0);
    blocks_free(b);
}

static void a_block_behind_an_equal_copy_is_found_through_the_first(void **state)
{
    static const uint8_t kinds[] = {1, 2};
    int32_t ids[2 * BLOCK_TOKENS];
    struct held h = {0};
    struct blocks *b = table_of(3, &h);
    uint32_t first = blocks_take(b), copy = blocks_take(b), behind = blocks_take(b);

    (void)state;
    fill_ids(ids, kinds, 2);
    blocks_publish(b, salts[0], first, BLOCK_NONE, ids, NULL, 0);
    blocks_publish(b, salts[0], copy, BLOCK_NONE, ids, NULL, 0);
    blocks_release(b, first);
    blocks_publish(b, salts[0], behind, copy, ids + BLOCK_TOKENS, NULL, 0);
    blocks_check(b);
    assert_int_equal(blocks_available(b), 0); /* the copy keeps its equal */
    assert_int_equal(cached(b, 0, kinds, 65), 2);
    blocks_release(b, behind);
    blocks_release(b, copy);
    blocks_check(b);
    assert_int_equal(blocks_count(b).free, 1);
    assert_int_equal(cached(b, 0, kinds, 65), 2);
    blocks_free(b);
}

static void chunks_past_the_bound_of_a_block_are_not_held(void **state)
{
    uint64_t chunks[BLOCK_CHUNKS_MAX + 5];
    int32_t ids[BLOCK_TOKENS] = {0};
    struct held h = {0};
    struct blocks *b = table_of(1, &h);
    uint32_t block = blocks_take(b);

    (void)state;
    for (unsigned i = 0; i < ARRAY_LEN(chunks); i++) {
        chunks[i] = i / 2 * 2; /* each twice: held once */
    }
    blocks_publish(b, salts[0], block, BLOCK_NONE, ids, chunks, ARRAY_LEN(chunks));
    assert_int_equal(h.n, (ARRAY_LEN(chunks) + 1) / 2);
    for (unsigned i = 0; i < ARRAY_LEN(chunks); i++) {
        chunks[i] = 100 + i;
    }
    blocks_release(b, block);
    assert_int_equal(blocks_take(b), block);
    assert_int_equal(h.n, 0);
    blocks_publish(b, salts[0], block, BLOCK_NONE, ids, chunks, ARRAY_LEN(chunks));
    assert_int_equal(h.n, BLOCK_CHUNKS_MAX);
    blocks_check(b);
    blocks_free(b);
}

static void chunk_counts_survive_any_order_of_adding_and_dropping(void **state)
{
    struct model m = {.random = 5}; /* for its dice */
    unsigned count[24] = {0}, distinct = 0;
    struct chunkset s;

    (void)state;
    chunkset_init(&s, 8, 3); /* 16 slots: runs are long and wrap around the end */
    for (unsigned op = 0; op < 20000; op++) {
        unsigned chunk = pick(&m, ARRAY_LEN(count));

        if (count[chunk] > 0 && pick(&m, 2) == 0) {
            assert_int_equal(chunkset_drop(&s, chunk), --count[chunk] == 0);
            distinct -= count[chunk] == 0;
        } else if (count[chunk] > 0 || distinct < 12) {
            assert_int_equal(chunkset_add(&s, chunk), count[chunk]++ == 0);
            distinct += count[chunk] == 1;
        }
        for (unsigned i = 0; i < ARRAY_LEN(count); i++) {
            assert_int_equal(chunkset_count(&s, i), count[i]);
        }
    }
    chunkset_fini(&s);
}

static void equal_tokens_under_another_root_have_another_hash(void **state)
{
    const struct hash128 roots[3] = {{0, 0}, {1, 0}, {0, 1}};
    struct hash128 first[3], second[3];
    int32_t ids[2 * BLOCK_TOKENS];

    (void)state;
    fill_ids(ids, (const uint8_t[]){1, 2}, 2);
    for (int i = 0; i < 3; i++) {
        struct held h = {.n = 0};
        struct blocks *b =
            blocks_new(4, 99, roots[i], (struct blocks_events){on_stored, on_removed, &h});
        uint32_t a = blocks_take(b), c = blocks_take(b);

        blocks_publish(b, salts[0], a, BLOCK_NONE, ids, NULL, 0);
        blocks_publish(b, salts[0], c, a, ids + BLOCK_TOKENS, NULL, 0);
        first[i] = blocks_hash(b, a);
        second[i] = blocks_hash(b, c);
        blocks_check(b);
        blocks_release(b, c);
        blocks_release(b, a);
        blocks_free(b);
    }
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < i; k++) {
            assert_memory_not_equal(&first[i], &first[k], sizeof(first[0]));
            assert_memory_not_equal(&second[i], &second[k], sizeof(second[0]));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_history_equals_the_naive_model),
        cmocka_unit_test(any_history_equals_the_naive_model_when_hashes_collide),
        cmocka_unit_test(at_least_one_token_stays_uncached),
        cmocka_unit_test(a_hit_needs_equal_tokens_parent_and_salt),
        cmocka_unit_test(a_pinned_block_is_never_evicted),
        cmocka_unit_test(equal_tokens_under_another_root_have_another_hash),
        cmocka_unit_test(the_coldest_leaf_goes_first_and_parents_last),
        cmocka_unit_test(an_unpublished_block_is_never_found),
        cmocka_unit_test(a_block_behind_an_equal_copy_is_found_through_the_first),
        cmocka_unit_test(chunks_past_the_bound_of_a_block_are_not_held),
        cmocka_unit_test(chunk_counts_survive_any_order_of_adding_and_dropping),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
