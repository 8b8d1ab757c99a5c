/* journal_shadow.c - what loops have put and the writer has not written yet, where SIGKILL cannot
 * take it.
 *
 * A port's ring is memory: a kill between a DISPATCH and the group's write would leave an attempt
 * at a worker that no record names. So a port has a file beside the segments, as large as its ring:
 *
 *   folder/  port-0000000003-02.ring      epoch, port
 *   slot 0: {magic, tickets written into segments, their check}    slot 1 + ticket % N: the record
 *
 * Producer: before a DISPATCH's request goes out, one write of all it put since the last one, where
 * the file system allows it into the file's mapping (no sync: the page cache outlives the process;
 * a loss of power is covered as far as the group's sync). Writer: after each group's write, the
 * header. Recovery: a DISPATCH in a ring that no segment has is an orphan like any other. The files
 * of a life go once its orphans' rows are durable. */
#include "ledger/journal_disk.h"

#include "base/map.h"

#include <stdio.h>

#define SHADOW_MAGIC 0x7261646e69676e52ULL
#define SHADOW_NAME_BYTES 23 /* "port-0000000003-02.ring" */
#define SHADOW_EVENTS_MAX (JOURNAL_PORT_RECORDS * JOURNAL_PORTS_MAX)
#define SHADOW_READ_RECORDS 256

struct shadow_header {
    uint64_t magic, written, check;
};

static bool shadow_path(char out[JOURNAL_PATH_MAX], const char *dir, int32_t epoch, unsigned port)
{
    char name[SHADOW_NAME_BYTES + 1];

    snprintf(name, sizeof(name), "port-%010d-%02u.ring", epoch, port % 100);
    return journal_path(out, dir, name);
}

struct env_file *shadow_open(struct env *env, const char *dir, int32_t epoch, unsigned port)
{
    char path[JOURNAL_PATH_MAX];
    struct env_file *f = NULL;

    if (!shadow_path(path, dir, epoch, port) ||
        env->ops->file_open(env, path, ENV_OPEN_MAPPED, &f) < 0) {
        return NULL;
    }
    /* Without room it is written as it grows, and says so when it cannot. */
    (void)env->ops->file_allocate(env, f,
                                  (1 + (uint64_t)JOURNAL_PORT_RECORDS) * JOURNAL_RECORD_BYTES);
    return f;
}

void shadow_remove(struct env *env, const char *dir, int32_t epoch, unsigned port)
{
    char path[JOURNAL_PATH_MAX];

    if (shadow_path(path, dir, epoch, port)) {
        (void)env->ops->file_unlink(env, path);
    }
}

static bool write_all(struct env *env, struct env_file *f, const uint8_t *p, size_t n, uint64_t at)
{
    while (n > 0) {
        ssize_t got = env->ops->file_pwrite(env, f, p, n, at);

        if (got <= 0) {
            return false;
        }
        p += got;
        n -= (size_t)got;
        at += (uint64_t)got;
    }
    return true;
}

/* slots: the ring. Tickets from..to (exclusive), at most a ring full; at the wrap in two pieces. */
bool shadow_write(struct env *env, struct env_file *f, const uint8_t *slots, uint64_t from,
                  uint64_t to)
{
    while (from < to) {
        uint64_t slot = from % JOURNAL_PORT_RECORDS;
        uint64_t n = u64_min(to - from, JOURNAL_PORT_RECORDS - slot);

        if (!write_all(env, f, slots + slot * JOURNAL_RECORD_BYTES, n * JOURNAL_RECORD_BYTES,
                       (1 + slot) * JOURNAL_RECORD_BYTES)) {
            return false;
        }
        from += n;
    }
    return true;
}

void shadow_mark(struct env *env, struct env_file *f, uint64_t written)
{
    struct shadow_header h = {SHADOW_MAGIC, written, written ^ SHADOW_MAGIC};

    (void)write_all(env, f, (const uint8_t *)&h, sizeof(h), 0);
}

/* ---- recovery ---- */

struct shadow_entry {
    struct record_stored open,
        dispatch; /* open.r.type 0: not in a ring (then it is in a segment) */
    bool known;   /* a segment has it, or it was voided */
};

struct shadows {
    struct env *env;
    const char *dir;
    int32_t epoch; /* rings of lives before this one */
    struct map by_event, by_request;
    struct shadow_entry **entry; /* [cap] of owned ones */
    size_t n, cap;
    struct record_stored *ring; /* [JOURNAL_PORT_RECORDS], scratch of one file */
    uint64_t *from_lsn;         /* [JOURNAL_PORT_RECORDS], group_lsn of each */
    struct segment_list segments;
    int32_t last_life; /* highest epoch of a ring */
    bool failed;
};

static struct str key_of(const struct uuid *u)
{
    return str_of(u->b, sizeof(u->b));
}

static bool name_parse(const char *name, int32_t *epoch)
{
    struct str s = str_c(name), digits;
    uint64_t v;

    if (s.n != SHADOW_NAME_BYTES || !str_starts(s, STR("port-")) || !str_ends(s, STR(".ring"))) {
        return false;
    }
    digits = str_of(s.p + 5, 10);
    if (!str_u64(digits, &v) || v > INT32_MAX) {
        return false;
    }
    *epoch = (int32_t)v;
    return true;
}

/* The OPEN of a DISPATCH: a slot before it in the same ring. */
static void open_find(struct shadows *s, size_t n, struct shadow_entry *e)
{
    for (size_t i = 0; i < n; i++) {
        const struct record_stored *r = &s->ring[i];

        if (r->r.type == RECORD_OPEN &&
            uuid_eq(r->r.open.request, e->dispatch.r.dispatch.request)) {
            e->open = *r;
            return;
        }
    }
}

static struct shadow_entry *entry_new(struct shadows *s)
{
    struct shadow_entry **more;
    size_t cap = s->cap == 0 ? 64 : s->cap * 2;

    if (s->n == SHADOW_EVENTS_MAX) {
        return NULL;
    }
    if (s->n == s->cap) {
        more = mem_resize(s->entry, cap * sizeof(struct shadow_entry *));
        if (more == NULL) {
            return NULL;
        }
        s->entry = more;
        s->cap = cap;
    }
    s->entry[s->n] = mem_try(1, sizeof(struct shadow_entry));
    return s->entry[s->n];
}

static void entry_add(struct shadows *s, size_t n, const struct record_stored *dispatch)
{
    struct shadow_entry *e = entry_new(s);

    if (e == NULL) {
        s->failed = true;
        return;
    }
    s->n++;
    e->dispatch = *dispatch;
    open_find(s, n, e);
    if (!map_put(&s->by_event, key_of(&e->dispatch.r.dispatch.event), e) ||
        !map_put(&s->by_request, key_of(&e->dispatch.r.dispatch.request), e)) {
        s->failed = true;
    }
}

static size_t ring_read(struct shadows *s, struct env_file *f, int32_t epoch)
{
    uint8_t *piece = mem_new((size_t)SHADOW_READ_RECORDS * JOURNAL_RECORD_BYTES);
    uint64_t at = JOURNAL_RECORD_BYTES;
    size_t n = 0;
    ssize_t got;

    while ((got = s->env->ops->file_pread(s->env, f, piece,
                                          (size_t)SHADOW_READ_RECORDS * JOURNAL_RECORD_BYTES,
                                          at)) >= JOURNAL_RECORD_BYTES) {
        for (size_t i = 0; i < (size_t)got / JOURNAL_RECORD_BYTES && n < JOURNAL_PORT_RECORDS;
             i++) {
            struct record_stored *r = &s->ring[n];

            if (record_decode(piece + i * JOURNAL_RECORD_BYTES, r) && r->epoch == epoch) {
                s->from_lsn[n] = record_group_lsn(piece + i * JOURNAL_RECORD_BYTES);
                n++;
            }
        }
        at += (uint64_t)got / JOURNAL_RECORD_BYTES * JOURNAL_RECORD_BYTES;
    }
    mem_free(piece);
    return n;
}

/* Would a record that was put when from_lsn was not yet durable still be found in a segment? The
 * last segment of the last life is never trimmed: without any, nothing of it was ever written. */
static bool absence_counts(const struct shadows *s, int32_t epoch, uint64_t from_lsn)
{
    for (size_t i = 0; i < s->segments.n; i++) {
        if (s->segments.v[i].epoch == epoch) {
            return s->segments.v[i].first_lsn <= from_lsn;
        }
    }
    return epoch == s->last_life && from_lsn == 1;
}

static void ring_take(struct shadows *s, struct env_file *f, int32_t epoch)
{
    struct shadow_header h = {0};
    size_t n;

    if (s->env->ops->file_pread(s->env, f, &h, sizeof(h), 0) != sizeof(h) ||
        h.magic != SHADOW_MAGIC || h.check != (h.written ^ SHADOW_MAGIC)) {
        h.written = 0; /* never marked: nothing of it is known to be in a segment */
    }
    n = ring_read(s, f, epoch);
    for (size_t i = 0; i < n; i++) {
        if (s->ring[i].r.type == RECORD_DISPATCH && s->ring[i].lsn > h.written &&
            absence_counts(s, epoch, s->from_lsn[i])) {
            entry_add(s, n, &s->ring[i]);
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (s->ring[i].r.type == RECORD_VOID && !uuid_is_zero(s->ring[i].r.voided.event)) {
            shadow_known(s, s->ring[i].r.voided.event);
        }
    }
}

static void each_read(void *ctx, const char *name)
{
    struct shadows *s = ctx;
    char path[JOURNAL_PATH_MAX];
    struct env_file *f;
    int32_t epoch;

    if (!name_parse(name, &epoch) || epoch >= s->epoch || !journal_path(path, s->dir, name) ||
        s->env->ops->file_open(s->env, path, ENV_OPEN_READ, &f) < 0) {
        return;
    }
    if (s->ring == NULL) { /* most starts find no ring */
        s->ring = mem_try(JOURNAL_PORT_RECORDS, sizeof(*s->ring));
        s->from_lsn = mem_try(JOURNAL_PORT_RECORDS, sizeof(*s->from_lsn));
    }
    if (s->ring != NULL && s->from_lsn != NULL) {
        ring_take(s, f, epoch);
    } else {
        s->failed = true;
    }
    s->env->ops->file_close(s->env, f);
}

static void each_life(void *ctx, const char *name)
{
    struct shadows *s = ctx;
    int32_t epoch;

    if (name_parse(name, &epoch) && epoch < s->epoch && epoch > s->last_life) {
        s->last_life = epoch;
    }
}

struct shadows *shadows_read(struct env *env, const char *dir, int32_t epoch, struct err *e)
{
    struct shadows *s = mem_new(sizeof(*s));

    s->env = env;
    s->dir = dir;
    s->epoch = epoch;
    map_init(&s->by_event, env_random_u64(env), SHADOW_EVENTS_MAX);
    map_init(&s->by_request, env_random_u64(env), SHADOW_EVENTS_MAX);
    if (!segment_list_read(&s->segments, env, dir, e)) {
        shadows_free(s);
        return NULL;
    }
    (void)env->ops->dir_list(env, dir, each_life, s);
    (void)env->ops->dir_list(env, dir, each_read, s);
    if (s->failed) {
        (void)err_set(e, ERR_LIMIT, "no memory for, or more than %d, attempts in the rings of %s",
                      SHADOW_EVENTS_MAX, dir);
        shadows_free(s);
        return NULL;
    }
    return s;
}

void shadows_free(struct shadows *s)
{
    map_fini(&s->by_event);
    map_fini(&s->by_request);
    for (size_t i = 0; i < s->n; i++) {
        mem_free(s->entry[i]);
    }
    mem_free(s->entry);
    mem_free(s->ring);
    mem_free(s->from_lsn);
    segment_list_free(&s->segments);
    mem_free(s);
}

void shadow_known(struct shadows *s, struct uuid event)
{
    struct shadow_entry *e = map_get(&s->by_event, key_of(&event));

    if (e != NULL) {
        e->known = true;
    }
}

void shadow_open_seen(struct shadows *s, const struct record_stored *open)
{
    struct shadow_entry *e = map_get(&s->by_request, key_of(&open->r.open.request));

    if (e != NULL && e->open.r.type == 0) {
        e->open = *open;
    }
}

bool shadows_next(const struct shadows *s, size_t *it, const struct record_stored **open,
                  const struct record_stored **dispatch)
{
    while (*it < s->n) {
        const struct shadow_entry *e = s->entry[(*it)++];

        if (!e->known) {
            *open = e->open.r.type == RECORD_OPEN ? &e->open : NULL;
            *dispatch = &e->dispatch;
            return true;
        }
    }
    return false;
}

/* ---- the end of a life's rings ---- */

struct left {
    int32_t epoch;
    bool any;
};

static void each_left(void *ctx, const char *name)
{
    struct left *l = ctx;
    int32_t epoch;

    l->any = l->any || (name_parse(name, &epoch) && epoch <= l->epoch);
}

bool shadows_are_gone(struct env *env, const char *dir, int32_t epoch)
{
    struct left l = {.epoch = epoch};

    return env->ops->dir_list(env, dir, each_left, &l) == 0 && !l.any &&
           env->ops->dir_sync(env, dir) == 0;
}

#define FORGET_MAX 64    /* files a round */
#define FORGET_ROUNDS 64 /* more than lives could have left */

struct forget {
    int32_t epoch;
    size_t n;
    char name[FORGET_MAX][SHADOW_NAME_BYTES + 1];
};

static void each_forget(void *ctx, const char *name)
{
    struct forget *f = ctx;
    int32_t epoch;

    if (name_parse(name, &epoch) && epoch < f->epoch && f->n < FORGET_MAX) {
        str_copy(str_c(name), f->name[f->n++], sizeof(f->name[0]));
    }
}

void journal_forget_rings(struct env *env, const char *dir, int32_t epoch)
{
    char path[JOURNAL_PATH_MAX];

    for (int round = 0; round < FORGET_ROUNDS; round++) {
        struct forget f = {.epoch = epoch};

        (void)env->ops->dir_list(env, dir, each_forget, &f);
        for (size_t i = 0; i < f.n; i++) {
            if (journal_path(path, dir, f.name[i])) {
                (void)env->ops->file_unlink(env, path);
            }
        }
        if (f.n < FORGET_MAX) {
            return;
        }
    }
}
