/* journal_trim.c - which segments nobody needs any more.
 *
 * Follows the durable journal once, from its oldest record, and counts for each segment the
 * requests whose OPEN or DISPATCH lies there and that are not over. The oldest segment goes when it
 * has none and its rows are in Postgres; never one behind an older one, so that a CLOSE outlives
 * its DISPATCH and no restart takes a closed attempt for an orphan.
 *
 * One thread calls it (the shipper). */
#include "ledger/journal_disk.h"

#include "base/list.h"
#include "base/map.h"

#define TRIM_SCAN_RECORDS 20000 /* a call: a few milliseconds beside the shipping */
#define TRIM_LIVE_MAX (1u << 20)
/* A failed attempt may be followed by another of the same request, whose recovery needs the OPEN;
 * no request waits longer than this between two attempts. */
#define TRIM_RETRY_LINGER_US (600u * 1000000u)

struct trim_live {
    struct uuid request; /* the map's key */
    uint64_t segment;    /* ordinal of the oldest segment that it needs */
    int32_t epoch;
    bool dispatched;
    uint64_t linger_until_us; /* 0: not lingering */
    struct list linger;
};

struct trim_segment {
    struct segment_name name;
    int64_t last_seq; /* highest gw_seq in it; 0: none */
    uint32_t live;    /* requests that need it */
};

struct trim {
    struct env *env;
    struct journal_reader *reader;
    struct map live;
    struct list lingering;         /* by linger_until_us */
    struct trim_segment *segments; /* [n], owned, oldest first */
    size_t n, cap;
    uint64_t first_ordinal; /* of segments[0] */
    int32_t epoch;          /* of the last record read */
    int32_t ringless_epoch; /* no ring of this life or an older one is left */
    bool stuck;             /* damage or too much alive: nothing is deleted any more */
};

static void live_end(struct trim *t, struct trim_live *l)
{
    if (l->segment >= t->first_ordinal) {
        t->segments[l->segment - t->first_ordinal].live--;
    }
    if (l->linger_until_us != 0) {
        list_remove(&l->linger);
    }
    (void)map_del(&t->live, str_of(l->request.b, sizeof(l->request.b)));
    mem_free(l);
}

void trim_free(struct trim *t)
{
    size_t it = 0;
    struct trim_live *l;

    if (t == NULL) {
        return;
    }
    while ((l = map_next(&t->live, &it, NULL)) != NULL) {
        live_end(t, l);
    }
    map_fini(&t->live);
    journal_reader_close(t->reader);
    mem_free(t->segments);
    mem_free(t);
}

static struct trim *trim_new(struct journal *j, struct env *env)
{
    struct trim *t = mem_new(sizeof(*t));
    struct err e = {0};

    t->env = env;
    map_init(&t->live, env_random_u64(env), TRIM_LIVE_MAX);
    list_init(&t->lingering);
    t->reader = journal_reader_open(env, journal_dir(j), &e);
    if (t->reader == NULL) {
        trim_free(t);
        return NULL;
    }
    return t;
}

static struct trim_segment *segment_push(struct trim *t, struct segment_name name)
{
    struct trim_segment *v;

    if (t->n == t->cap) {
        t->cap = t->cap == 0 ? 16 : t->cap * 2;
        v = mem_resize(t->segments, t->cap * sizeof(*v));
        CHECK(v != NULL && t->cap <= JOURNAL_SEGMENTS_MAX * 2);
        t->segments = v;
    }
    t->segments[t->n] = (struct trim_segment){.name = name};
    return &t->segments[t->n++];
}

static struct trim_segment *segment_of_record(struct trim *t)
{
    struct segment_name name = journal_reader_segment(t->reader);
    struct trim_segment *last = t->n > 0 ? &t->segments[t->n - 1] : NULL;

    if (last == NULL || last->name.epoch != name.epoch || last->name.first_lsn != name.first_lsn) {
        return segment_push(t, name);
    }
    return last;
}

static struct trim_live *live_get(struct trim *t, struct uuid request, int32_t epoch)
{
    struct str key = str_of(request.b, sizeof(request.b));
    struct trim_live *l = map_get(&t->live, key);

    if (l != NULL) {
        return l;
    }
    l = mem_new(sizeof(*l));
    l->request = request;
    l->epoch = epoch;
    l->segment = t->first_ordinal + t->n - 1;
    if (!map_put(&t->live, str_of(l->request.b, sizeof(l->request.b)), l)) {
        mem_free(l);
        t->stuck = true;
        return NULL;
    }
    t->segments[t->n - 1].live++;
    return l;
}

static bool may_be_retried(const struct entry *c)
{
    return c->outcome == OUTCOME_WORKER_ERROR || c->outcome == OUTCOME_TIMEOUT ||
           c->outcome == OUTCOME_REFUSED_BY_WORKER;
}

/* No worker has it now; another attempt may follow. */
static void attempt_over(struct trim *t, struct trim_live *l)
{
    l->dispatched = false;
    if (l->linger_until_us == 0) {
        l->linger_until_us = env_now_us(t->env) + TRIM_RETRY_LINGER_US;
        list_push_back(&t->lingering, &l->linger);
    }
}

static void close_see(struct trim *t, const struct entry *c)
{
    struct trim_live *l = map_get(&t->live, str_of(c->request.b, sizeof(c->request.b)));

    if (l == NULL) {
        return;
    }
    if (!may_be_retried(c)) {
        live_end(t, l);
        return;
    }
    attempt_over(t, l);
}

static void record_see(struct trim *t, const struct record_stored *s)
{
    struct trim_live *l;

    switch (s->r.type) {
    case RECORD_OPEN:
        (void)live_get(t, s->r.open.request, s->epoch);
        return;
    case RECORD_DISPATCH:
        l = live_get(t, s->r.dispatch.request, s->epoch);
        if (l == NULL) {
            return;
        }
        l->dispatched = true;
        if (l->linger_until_us != 0) {
            list_remove(&l->linger);
            l->linger_until_us = 0;
        }
        return;
    case RECORD_CLOSE:
        t->segments[t->n - 1].last_seq = s->r.close.gw_seq;
        close_see(t, &s->r.close);
        return;
    case RECORD_VOID:
        l = map_get(&t->live, str_of(s->r.voided.request.b, 16));
        if (l != NULL && uuid_is_zero(s->r.voided.event)) {
            live_end(t, l);
        } else if (l != NULL) {
            attempt_over(t, l); /* its worker never saw it */
        }
        return;
    case RECORD_PROGRESS:
    case RECORD_CHECKPOINT:
        return;
    }
}

/* The process that opened them is gone: what no worker saw is void. */
static void epoch_turn(struct trim *t, int32_t epoch)
{
    size_t it = 0;
    struct trim_live *l;

    while ((l = map_next(&t->live, &it, NULL)) != NULL) {
        if (l->epoch < epoch && !l->dispatched) {
            live_end(t, l);
        }
    }
    t->epoch = epoch;
}

static void trim_scan(struct trim *t, struct journal *j)
{
    struct record_stored s;
    struct err e = {0};
    enum journal_read got;
    int i;

    journal_reader_bound(t->reader, journal_epoch(j), journal_durable_lsn(j));
    for (i = 0; i < TRIM_SCAN_RECORDS && !t->stuck; i++) {
        got = journal_read(t->reader, &s, &e);
        if (got == JOURNAL_READ_END) {
            return;
        }
        if (got == JOURNAL_READ_CORRUPT) {
            t->stuck = true;
            log_event(journal_log(j), LOG_ERROR, env_wall_us(t->env), "journal_trim_stopped",
                      "no segment is deleted any more: %s", e.text);
            return;
        }
        if (got == JOURNAL_READ_TORN) {
            continue;
        }
        if (s.epoch != t->epoch) {
            epoch_turn(t, s.epoch);
        }
        (void)segment_of_record(t);
        record_see(t, &s);
    }
}

static void linger_expire(struct trim *t)
{
    struct trim_live *l;

    while (!list_is_empty(&t->lingering)) {
        l = CONTAINER_OF(t->lingering.next, struct trim_live, linger);
        if (l->linger_until_us > env_now_us(t->env)) {
            return;
        }
        live_end(t, l);
    }
}

/* Older epochs are shipped whole before a newer one begins. */
static bool is_over(const struct trim_segment *s, int32_t epoch, int64_t shipped_seq)
{
    return s->live == 0 &&
           (s->name.epoch < epoch || (s->name.epoch == epoch && s->last_seq <= shipped_seq));
}

/* Asked of the disk once a life: its answer stays true. */
static bool rings_are_gone(struct trim *t, const struct journal *j, int32_t epoch)
{
    if (epoch < journal_epoch(j) && epoch > t->ringless_epoch &&
        shadows_are_gone(t->env, journal_dir(j), epoch)) {
        t->ringless_epoch = epoch;
    }
    return epoch == journal_epoch(j) || epoch <= t->ringless_epoch;
}

void journal_trim(struct journal *j, struct env *env, int32_t epoch, int64_t shipped_seq)
{
    struct trim *t = journal_trim_state(j);
    char path[JOURNAL_PATH_MAX];
    size_t gone = 0;

    if (t == NULL) {
        t = trim_new(j, env);
        if (t == NULL) {
            return;
        }
        journal_trim_state_set(j, t);
    }
    journal_trim_limit(j, &epoch, &shipped_seq);
    trim_scan(t, j);
    linger_expire(t);
    /* The last segment seen is still being read or written. */
    while (!t->stuck && gone + 1 < t->n && is_over(&t->segments[gone], epoch, shipped_seq)) {
        if (!rings_are_gone(t, j, t->segments[gone].name.epoch) ||
            !segment_path(path, journal_dir(j), t->segments[gone].name) ||
            env->ops->file_unlink(env, path) < 0) {
            break;
        }
        gone++;
    }
    if (gone > 0) {
        t->n -= gone;
        t->first_ordinal += gone;
        memmove(t->segments, t->segments + gone, t->n * sizeof(*t->segments));
    }
    journal_folder_segments_set(j, t->n);
}
