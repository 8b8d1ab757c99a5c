/* kv_events.c - a set of hashes with two bits each (held now, told), and a ring of lines.
 *
 * An event is the difference between the bits of the hashes touched since the last one. */
#include "worker/kv_events.h"

#include "base/json.h"

#define SET_FIRST 1024
#define SET_MAX ((size_t)1 << 28) /* far beyond blocks x hashes a block of any pool here */
#define LINE_BYTES_MAX ((size_t)256 << 10)

enum { SLOT_USED = 1, SLOT_HELD = 2, SLOT_TOLD = 4, SLOT_TOUCHED = 8 };

struct slot {
    uint64_t hash;
    uint64_t bits; /* 0: empty */
};

struct line {
    uint64_t seq;
    char *text; /* owned */
    size_t n;
};

struct kv_events {
    char publisher[64], epoch[64];
    uint64_t seq;      /* of the last event */
    struct slot *slot; /* owned; [cap], linear probing, load <= 1/2 */
    size_t cap, used, told;
    uint64_t *touched; /* owned; [touched_cap] each hash once */
    size_t touched_n, touched_cap;
    struct line kept[KV_EVENTS_KEPT]; /* event seq lies at seq % KV_EVENTS_KEPT */
    struct buf out;
};

struct kv_events *kv_events_new(struct str publisher, struct str epoch)
{
    struct kv_events *k = mem_new(sizeof(*k));

    str_copy(publisher, k->publisher, sizeof(k->publisher));
    str_copy(epoch, k->epoch, sizeof(k->epoch));
    k->cap = SET_FIRST;
    k->slot = mem_new(k->cap * sizeof(*k->slot));
    buf_init(&k->out, LINE_BYTES_MAX);
    return k;
}

void kv_events_free(struct kv_events *k)
{
    if (k == NULL) {
        return;
    }
    for (size_t i = 0; i < KV_EVENTS_KEPT; i++) {
        mem_free(k->kept[i].text);
    }
    buf_fini(&k->out);
    mem_free(k->touched);
    mem_free(k->slot);
    mem_free(k);
}

uint64_t kv_events_seq(const struct kv_events *k)
{
    return k->seq;
}

size_t kv_events_count(const struct kv_events *k)
{
    return k->told;
}

bool kv_events_is_due(const struct kv_events *k)
{
    return k->touched_n > 0;
}

/* The hashes are XXH3 under a secret seed: their own bits place them well enough. */
static size_t home(const struct kv_events *k, uint64_t hash)
{
    return (size_t)(hash ^ hash >> 32) & (k->cap - 1);
}

/* The slot of a hash, or the empty one where it would go. */
static struct slot *find(struct kv_events *k, uint64_t hash)
{
    size_t i = home(k, hash);

    while (k->slot[i].bits != 0 && k->slot[i].hash != hash) {
        i = (i + 1) & (k->cap - 1);
    }
    return &k->slot[i];
}

static void grow(struct kv_events *k)
{
    struct slot *old = k->slot;
    size_t old_cap = k->cap;

    CHECK(old_cap * 2 <= SET_MAX);
    k->cap = old_cap * 2;
    k->slot = mem_new(k->cap * sizeof(*k->slot));
    for (size_t i = 0; i < old_cap; i++) {
        if (old[i].bits != 0) {
            *find(k, old[i].hash) = old[i];
        }
    }
    mem_free(old);
}

/* Linear probing without tombstones: what follows moves up into the hole. */
static void erase(struct kv_events *k, struct slot *s)
{
    size_t hole = (size_t)(s - k->slot), mask = k->cap - 1;

    for (size_t i = (hole + 1) & mask; k->slot[i].bits != 0; i = (i + 1) & mask) {
        size_t h = home(k, k->slot[i].hash);

        if (((i - h) & mask) >= ((i - hole) & mask)) {
            k->slot[hole] = k->slot[i];
            hole = i;
        }
    }
    k->slot[hole].bits = 0;
    k->used--;
}

static void touch(struct kv_events *k, struct slot *s)
{
    if ((s->bits & SLOT_TOUCHED) != 0) {
        return;
    }
    if (k->touched_n == k->touched_cap) {
        size_t cap = k->touched_cap > 0 ? k->touched_cap * 2 : 256;
        uint64_t *bigger = mem_resize(k->touched, cap * sizeof(*bigger));

        CHECK(bigger != NULL); /* at most the set itself */
        k->touched = bigger;
        k->touched_cap = cap;
    }
    k->touched[k->touched_n++] = s->hash;
    s->bits |= SLOT_TOUCHED;
}

void kv_events_change(struct kv_events *k, uint64_t hash, bool held)
{
    struct slot *s;

    if (k->used * 2 >= k->cap) {
        grow(k);
    }
    s = find(k, hash);
    if (s->bits == 0) {
        s->hash = hash;
        s->bits = SLOT_USED;
        k->used++;
    }
    s->bits = held ? s->bits | SLOT_HELD : s->bits & ~(uint64_t)SLOT_HELD;
    touch(k, s);
}

static void put_hash(struct buf *b, uint64_t hash, bool first)
{
    buf_printf(b, "%s\"%016llx\"", first ? "" : ",", (unsigned long long)hash);
}

static void keep(struct kv_events *k, struct str text)
{
    struct line *l = &k->kept[k->seq % KV_EVENTS_KEPT];

    mem_free(l->text);
    l->seq = k->seq;
    l->text = mem_new(text.n);
    l->n = text.n;
    memcpy(l->text, text.p, text.n);
}

/* One list of an event: the touched hashes in [from, to) that are now held, or not, and were not
 * told so. */
static void put_list(struct kv_events *k, size_t from, size_t to, bool held)
{
    bool first = true;

    for (size_t i = from; i < to; i++) {
        struct slot *s = find(k, k->touched[i]);
        bool is_held = (s->bits & SLOT_HELD) != 0, is_told = (s->bits & SLOT_TOLD) != 0;

        if (is_held == held && is_told != held) {
            put_hash(&k->out, s->hash, first);
            first = false;
        }
    }
}

static void settle(struct kv_events *k, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        struct slot *s = find(k, k->touched[i]);
        bool is_held = (s->bits & SLOT_HELD) != 0, was_told = (s->bits & SLOT_TOLD) != 0;

        k->told = k->told + (is_held ? 1 : 0) - (was_told ? 1 : 0);
        if (is_held) {
            s->bits = SLOT_USED | SLOT_HELD | SLOT_TOLD;
        } else {
            erase(k, s);
        }
    }
}

static bool differs(struct kv_events *k, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        uint64_t bits = find(k, k->touched[i])->bits;

        if (((bits & SLOT_HELD) != 0) != ((bits & SLOT_TOLD) != 0)) {
            return true;
        }
    }
    return false;
}

static void flush_part(struct kv_events *k, size_t from, size_t to, kv_line *each, void *ctx)
{
    k->seq++;
    buf_reset(&k->out);
    buf_printf(&k->out, "{\"seq\":%llu,\"stored\":[", (unsigned long long)k->seq);
    put_list(k, from, to, true);
    buf_c(&k->out, "],\"removed\":[");
    put_list(k, from, to, false);
    buf_c(&k->out, "]}\n");
    CHECK(!k->out.failed);
    keep(k, buf_view(&k->out));
    each(ctx, buf_view(&k->out));
}

void kv_events_flush(struct kv_events *k, bool heartbeat, kv_line *each, void *ctx)
{
    uint64_t before = k->seq;
    size_t n = k->touched_n;

    for (size_t from = 0; from < n; from += KV_EVENTS_LINE) {
        size_t to = size_min(from + KV_EVENTS_LINE, n);

        if (differs(k, from, to)) {
            flush_part(k, from, to, each, ctx);
        }
        settle(k, from, to);
    }
    k->touched_n = 0;
    if (heartbeat && k->seq == before) {
        flush_part(k, 0, 0, each, ctx);
    }
}

void kv_events_snapshot(struct kv_events *k, kv_line *each, void *ctx)
{
    size_t pages = k->told > 0 ? (k->told + KV_EVENTS_PAGE - 1) / KV_EVENTS_PAGE : 1, at = 0;

    for (size_t page = 0; page < pages; page++) {
        buf_reset(&k->out);
        buf_c(&k->out, "{\"publisher\":");
        json_write_string(&k->out, str_c(k->publisher));
        buf_c(&k->out, ",\"epoch\":");
        json_write_string(&k->out, str_c(k->epoch));
        buf_printf(&k->out, ",\"seq\":%llu,\"page\":%zu,\"pages\":%zu,\"snapshot\":[",
                   (unsigned long long)k->seq, page, pages);
        for (size_t n = 0; n < KV_EVENTS_PAGE && at < k->cap; at++) {
            if ((k->slot[at].bits & SLOT_TOLD) != 0) {
                put_hash(&k->out, k->slot[at].hash, n++ == 0);
            }
        }
        buf_c(&k->out, "]}\n");
        CHECK(!k->out.failed);
        each(ctx, buf_view(&k->out));
    }
}

bool kv_events_resume(struct kv_events *k, struct str from, kv_line *each, void *ctx)
{
    struct str epoch, text;
    uint64_t seq;

    if (!str_cut(from, ':', &epoch, &text) || !str_eq(epoch, str_c(k->epoch)) ||
        !str_u64(text, &seq) || seq > k->seq || k->seq - seq > KV_EVENTS_KEPT) {
        return false;
    }
    for (uint64_t s = seq + 1; s <= k->seq; s++) {
        const struct line *l = &k->kept[s % KV_EVENTS_KEPT];

        CHECK(l->seq == s);
        each(ctx, str_of(l->text, l->n));
    }
    return true;
}
