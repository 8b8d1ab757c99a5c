/* journal.c - the writer: rings in, one group of records and one sync out.
 *
 * Owns the open segment, the spare and the numbers (lsn, gw_seq). A loop puts an encoded record
 * into its port, a ring with one producer and one consumer; journal_step seals what it finds,
 * writes it with one pwrite, syncs, and only then moves `durable`. Knows nothing of Postgres.
 *
 * Threads: put by the port's producer; step, close and the file by one writer; the atomics by any.
 */
#include "ledger/journal_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <unistd.h>

/* 786 KiB a sync: past this a larger group gains nothing and only delays the first waiter. */
#define GROUP_RECORDS_MAX 2048
#define SPARE_RETRY_US 100000  /* how soon a full disk is tried again */
#define CLOSE_STEPS_MAX 100000 /* ports are bounded, so this many groups empty them */

/* The two ends live on lines of their own: producer and writer do not share what they write. */
struct journal_port {
    struct journal *j;
    struct env *producer;
    struct env_wake *wake; /* NULL: nobody is told */
    uint8_t *slots;        /* [JOURNAL_PORT_RECORDS][JOURNAL_RECORD_BYTES], owned */
    uint8_t pad0[64];
    _Atomic uint64_t head; /* tickets given; producer writes */
    uint8_t pad1[56];
    _Atomic uint64_t tail; /* tickets copied out of the ring; writer writes */
    _Atomic uint64_t durable;
    uint64_t taken;          /* writer only: tickets in the group at hand */
    uint64_t written;        /* writer only: tickets in segments */
    struct env_file *shadow; /* the ring on disk; NULL: could not be made */
    uint8_t pad2[24];
    uint64_t shadowed; /* producer only: tickets in it */
};

struct journal {
    struct env *env; /* of journal_open; journal_close uses it again */
    struct log *log;
    char dir[JOURNAL_PATH_MAX];
    int32_t gateway_id, epoch;
    int lock_fd;
    uint64_t segment_records;
    struct journal_port *ports[JOURNAL_PORTS_MAX];
    _Atomic uint32_t n_ports;
    uint32_t turn; /* the port that is drained first next time */

    /* The writer's. */
    struct env_file *file, *spare; /* spare NULL: none could be made */
    uint64_t file_records;
    uint64_t next_lsn;
    int64_t next_seq;
    uint64_t spare_retry_us;
    uint8_t *group; /* [GROUP_RECORDS_MAX][JOURNAL_RECORD_BYTES] */
    size_t group_n; /* sealed, maybe not written yet */
    int64_t group_rows;
    bool disk_full_said;

    struct env *writer;
    struct env_wake *doorbell;
    atomic_bool rung, admits, failed;
    atomic_bool awaited; /* a CLOSE was put since the last step: somebody waits for the sync */
    _Atomic uint64_t durable_lsn;
    _Atomic uint64_t n_records, n_groups, n_bytes, syncs_us, rows, folder_bytes;
    _Atomic uint64_t keep; /* watermark of the snapshot file, see watermark_pack */
    struct trim *trim;     /* of the one thread that calls journal_trim */
};

/* ---- opening ---- */

/* env has no locks, and a folder that exists only in a simulated world cannot be shared by two
 * processes: there the real folder is missing and no lock is needed. */
static bool lock_take(struct journal *j, struct err *e)
{
    char path[JOURNAL_PATH_MAX];

    j->lock_fd = -1;
    if (!journal_path(path, j->dir, "lock")) {
        return err_set(e, ERR_LIMIT, "the journal folder's name is too long: %s", j->dir);
    }
    j->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (j->lock_fd < 0) {
        return errno == ENOENT || err_errno(e, errno, "cannot open %s", path);
    }
    if (flock(j->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        return errno == EWOULDBLOCK
                   ? err_set(e, ERR_CONFLICT,
                             "another gateway holds the journal %s: give each its own folder",
                             j->dir)
                   : err_errno(e, errno, "cannot lock %s", path);
    }
    return true;
}

static int spare_make(struct journal *j, struct env *env)
{
    char path[JOURNAL_PATH_MAX];
    struct env_file *f = NULL;
    int rc;

    CHECK(journal_path(path, j->dir, JOURNAL_SPARE_NAME));
    rc = env->ops->file_open(env, path, ENV_OPEN_TRUNCATE, &f);
    if (rc < 0) {
        return rc;
    }
    rc = env->ops->file_allocate(env, f, j->segment_records * JOURNAL_RECORD_BYTES);
    if (rc == 0) {
        rc = env->ops->file_sync(env, f);
    }
    if (rc < 0) {
        env->ops->file_close(env, f);
        (void)env->ops->file_unlink(env, path);
        return rc;
    }
    j->spare = f;
    return 0;
}

/* The spare becomes the segment that begins with next_lsn. */
static int segment_next(struct journal *j, struct env *env)
{
    char from[JOURNAL_PATH_MAX];
    char to[JOURNAL_PATH_MAX];
    int rc;

    CHECK(j->spare != NULL);
    CHECK(journal_path(from, j->dir, JOURNAL_SPARE_NAME));
    CHECK(segment_path(to, j->dir, (struct segment_name){j->epoch, j->next_lsn}));
    rc = env->ops->file_rename(env, from, to);
    if (rc < 0) {
        return rc;
    }
    if (j->file != NULL) {
        env->ops->file_close(env, j->file);
    }
    j->file = j->spare;
    j->file_records = 0;
    j->spare = NULL;
    return 0;
}

static struct journal *journal_new(struct env *env, struct log *log,
                                   const struct journal_options *o)
{
    struct journal *j = mem_new(sizeof(*j));

    j->env = env;
    j->log = log;
    (void)str_copy(str_c(o->dir), j->dir, sizeof(j->dir));
    j->gateway_id = o->gateway_id;
    j->lock_fd = -1;
    j->segment_records =
        u64_max((o->segment_bytes != 0 ? o->segment_bytes : JOURNAL_SEGMENT_BYTES_DEFAULT) /
                    JOURNAL_RECORD_BYTES,
                1);
    j->group = mem_new((size_t)GROUP_RECORDS_MAX * JOURNAL_RECORD_BYTES);
    j->next_lsn = 1;
    j->next_seq = 1;
    atomic_init(&j->admits, true);
    return j;
}

static void journal_free(struct journal *j)
{
    uint32_t i;
    struct journal_port *p;

    trim_free(j->trim);
    for (i = 0; i < j->n_ports; i++) {
        p = j->ports[i];
        if (p->wake != NULL) {
            p->producer->ops->wake_free(p->producer, p->wake);
        }
        if (p->shadow != NULL) {
            j->env->ops->file_close(j->env, p->shadow);
            if (p->written == atomic_load(&p->head)) { /* nothing is left in the ring */
                shadow_remove(j->env, j->dir, j->epoch, i);
            }
        }
        mem_free(p->slots);
        mem_free(p);
    }
    if (j->file != NULL) {
        j->env->ops->file_close(j->env, j->file);
    }
    if (j->spare != NULL) {
        j->env->ops->file_close(j->env, j->spare);
    }
    if (j->lock_fd >= 0) {
        (void)close(j->lock_fd);
    }
    mem_free(j->group);
    mem_free(j);
}

struct journal *journal_open(struct env *env, struct log *log, const struct journal_options *o,
                             int32_t epoch_min, struct err *e)
{
    struct journal *j = journal_new(env, log, o);
    int32_t last;
    int rc = env->ops->dir_make(env, o->dir);

    if (rc < 0) {
        (void)err_errno(e, -rc, "cannot make the journal folder %s", o->dir);
        goto fail;
    }
    if (!lock_take(j, e) || !segments_settle(env, j->dir, &last, e)) {
        goto fail;
    }
    CHECK(last < INT32_MAX);
    j->epoch = last + 1 > epoch_min ? last + 1 : epoch_min;
    j->epoch = j->epoch > 1 ? j->epoch : 1;
    rc = spare_make(j, env);
    if (rc == 0) {
        rc = segment_next(j, env);
    }
    if (rc < 0) {
        (void)err_errno(e, -rc, "cannot make a journal segment of %llu bytes in %s",
                        (unsigned long long)(j->segment_records * JOURNAL_RECORD_BYTES), o->dir);
        goto fail;
    }
    log_event(log, LOG_INFO, env_wall_us(env), "journal_open", "journal %s, epoch %d", o->dir,
              j->epoch);
    return j;
fail:
    journal_free(j);
    return NULL;
}

int32_t journal_epoch(const struct journal *j)
{
    return j->epoch;
}

/* ---- ports ---- */

struct journal_port *journal_port_new(struct journal *j, struct env *producer,
                                      void (*rung)(void *ctx), void *ctx)
{
    struct journal_port *p = mem_new(sizeof(*p));
    uint32_t n = atomic_load(&j->n_ports);

    CHECK(n < JOURNAL_PORTS_MAX);
    p->j = j;
    p->producer = producer;
    p->slots = mem_new((size_t)JOURNAL_PORT_RECORDS * JOURNAL_RECORD_BYTES);
    if (rung != NULL) {
        p->wake = producer->ops->wake_new(producer, rung, ctx);
    }
    p->shadow = shadow_open(producer, j->dir, j->epoch, n);
    if (p->shadow == NULL) {
        log_event(j->log, LOG_WARN, env_wall_us(producer), "journal_ring",
                  "no ring file in %s: a kill may lose an attempt's record", j->dir);
    }
    j->ports[n] = p;
    atomic_store(&j->n_ports, n + 1);
    return p;
}

/* What a worker is about to see is in a file before it sees it. Slots from `from` on are the
 * producer's alone to change, so they may be read while the writer copies them. */
static void port_shadow(struct journal_port *p, uint64_t to)
{
    uint64_t from = p->shadowed;

    if (to - from > JOURNAL_PORT_RECORDS) {
        from = to - JOURNAL_PORT_RECORDS;
    }
    if (shadow_write(p->producer, p->shadow, p->slots, from, to)) {
        p->shadowed = to; /* else the next DISPATCH tries these again: a disk may be full */
    }
}

uint64_t journal_put(struct journal_port *p, const struct record *r)
{
    struct journal *j = p->j;
    uint64_t head = atomic_load_explicit(&p->head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&p->tail, memory_order_acquire);
    uint8_t *slot;
    bool ring;

    if (head - tail >= JOURNAL_PORT_RECORDS) {
        return 0;
    }
    slot = p->slots + (head % JOURNAL_PORT_RECORDS) * JOURNAL_RECORD_BYTES;
    record_encode_body(r, j->gateway_id, slot);
    if (p->shadow != NULL) {
        record_seal(slot, head + 1, journal_durable_lsn(j) + 1, j->epoch,
                    0); /* the writer seals its copy anew */
    }
    atomic_store_explicit(&p->head, head + 1, memory_order_release);
    if (r->type == RECORD_DISPATCH && p->shadow != NULL) {
        port_shadow(p, head + 1);
    }
    /* Many puts are one ring, and one more when the first of them is waited for: the writer clears
     * both before it looks at the heads. */
    ring = r->type == RECORD_CLOSE && !atomic_exchange(&j->awaited, true);
    if ((!atomic_exchange(&j->rung, true) || ring) && j->doorbell != NULL) {
        env_wake_signal(j->writer, j->doorbell);
    }
    return head + 1;
}

uint64_t journal_durable(const struct journal_port *p)
{
    return atomic_load_explicit(&p->durable, memory_order_acquire);
}

bool journal_is_awaited(const struct journal *j)
{
    return atomic_load_explicit(&j->awaited, memory_order_relaxed);
}

bool journal_admits(const struct journal *j)
{
    return atomic_load(&j->admits) && !atomic_load(&j->failed);
}

bool journal_is_failed(const struct journal *j)
{
    return atomic_load(&j->failed);
}

void journal_set_doorbell(struct journal *j, struct env *writer, struct env_wake *w)
{
    j->writer = writer;
    j->doorbell = w;
}

uint64_t journal_durable_lsn(const struct journal *j)
{
    return atomic_load_explicit(&j->durable_lsn, memory_order_acquire);
}

/* ---- the step ---- */

/* After a failed sync the kernel may have dropped the pages and marked them clean: a retry would
 * say yes to bytes that are gone. So there is none. */
static void journal_fail(struct journal *j, struct env *env, int rc, const char *what)
{
    atomic_store(&j->failed, true);
    log_event(j->log, LOG_ERROR, env_wall_us(env), "journal_failed",
              "cannot %s the journal in %s (%s): the process must stop", what, j->dir,
              strerror(-rc));
}

static bool is_disk_full(int rc)
{
    return rc == -ENOSPC || rc == -EDQUOT;
}

/* One spare ahead. Without one admission stops; what runs ends in the segment at hand. */
static bool spare_keep(struct journal *j, struct env *env)
{
    int rc;

    if (j->spare != NULL || env_now_us(env) < j->spare_retry_us) {
        return false;
    }
    rc = spare_make(j, env);
    if (rc < 0) {
        j->spare_retry_us = env_now_us(env) + SPARE_RETRY_US;
        atomic_store(&j->admits, false);
        if (!j->disk_full_said) {
            j->disk_full_said = true;
            log_event(j->log, LOG_ERROR, env_wall_us(env), "journal_no_space",
                      "no spare segment in %s (%s): admission stops until there is space", j->dir,
                      strerror(-rc));
        }
        return false;
    }
    if (j->disk_full_said) {
        j->disk_full_said = false;
        log_event(j->log, LOG_INFO, env_wall_us(env), "journal_space",
                  "a spare segment again in %s: admission goes on", j->dir);
    }
    atomic_store(&j->admits, true);
    return true;
}

static void port_drain(struct journal *j, struct journal_port *p, size_t room)
{
    uint64_t tail = atomic_load_explicit(&p->tail, memory_order_relaxed);
    uint64_t head = atomic_load_explicit(&p->head, memory_order_acquire);
    uint8_t *to;

    while (tail != head && j->group_n < room) {
        to = j->group + j->group_n * JOURNAL_RECORD_BYTES;
        memcpy(to, p->slots + (tail % JOURNAL_PORT_RECORDS) * JOURNAL_RECORD_BYTES,
               JOURNAL_RECORD_BYTES);
        record_seal(to, j->next_lsn + j->group_n, j->next_lsn, j->epoch,
                    record_is_close(to) ? j->next_seq + j->group_rows : 0);
        j->group_rows += record_is_close(to) ? 1 : 0;
        j->group_n++;
        p->taken++;
        tail++;
    }
    atomic_store_explicit(&p->tail, tail, memory_order_release);
}

/* A group ends where its segment ends; the first port rotates, so that none waits for ever. */
static void group_gather(struct journal *j)
{
    uint32_t n = atomic_load(&j->n_ports);
    size_t room = (size_t)u64_min(GROUP_RECORDS_MAX, j->segment_records - j->file_records);
    uint32_t i;

    for (i = 0; i < n && j->group_n < room; i++) {
        port_drain(j, j->ports[(j->turn + i) % n], room);
    }
    j->turn = n > 0 ? (j->turn + 1) % n : 0;
}

/* 1 written; 0 the disk is full, try again; negative errno otherwise. A rewrite of the same bytes
 * at the same place is safe as long as no sync has failed. */
static int group_write(struct journal *j, struct env *env)
{
    size_t bytes = j->group_n * JOURNAL_RECORD_BYTES;
    uint64_t at = j->file_records * JOURNAL_RECORD_BYTES;
    size_t done = 0;
    ssize_t n;

    while (done < bytes) {
        n = env->ops->file_pwrite(env, j->file, j->group + done, bytes - done, at + done);
        if (n == -EINTR) {
            continue;
        }
        if (n <= 0) {
            return n == 0 || is_disk_full((int)n) ? 0 : (int)n;
        }
        done += (size_t)n;
    }
    return 1;
}

static void group_publish(struct journal *j)
{
    uint32_t n = atomic_load(&j->n_ports);
    uint32_t i;
    struct journal_port *p;

    j->file_records += j->group_n;
    j->next_lsn += j->group_n;
    j->next_seq += j->group_rows;
    atomic_fetch_add(&j->n_records, j->group_n);
    atomic_fetch_add(&j->n_bytes, j->group_n * JOURNAL_RECORD_BYTES);
    atomic_fetch_add(&j->n_groups, 1);
    atomic_store(&j->rows, (uint64_t)(j->next_seq - 1));
    atomic_store_explicit(&j->durable_lsn, j->next_lsn - 1, memory_order_release);
    atomic_store(&j->admits, j->spare != NULL || !j->disk_full_said);
    j->group_n = 0;
    j->group_rows = 0;
    for (i = 0; i < n; i++) {
        p = j->ports[i];
        if (p->taken == 0) {
            continue;
        }
        atomic_fetch_add_explicit(&p->durable, p->taken, memory_order_release);
        p->taken = 0;
        if (p->wake != NULL) {
            env_wake_signal(p->producer, p->wake);
        }
    }
}

/* true: there is a segment with room. */
static bool segment_ready(struct journal *j, struct env *env)
{
    int rc;

    if (j->group_n > 0 || j->file_records < j->segment_records) {
        return true;
    }
    if (j->spare == NULL) {
        return false;
    }
    rc = segment_next(j, env);
    if (rc < 0 && !is_disk_full(rc)) {
        journal_fail(j, env, rc, "rename a segment of");
    }
    return rc == 0;
}

/* The group is in its segment: what a ring holds of it is no longer needed after a kill. */
static void rings_mark(struct journal *j, struct env *env)
{
    uint32_t n = atomic_load(&j->n_ports);

    for (uint32_t i = 0; i < n; i++) {
        struct journal_port *p = j->ports[i];

        if (p->taken == 0) {
            continue;
        }
        p->written += p->taken;
        if (p->shadow != NULL) {
            shadow_mark(env, p->shadow, p->written);
        }
    }
}

bool journal_step(struct journal *j, struct env *env)
{
    uint64_t began;
    uint64_t ended;
    bool made;
    int rc;

    if (atomic_load(&j->failed)) {
        return false;
    }
    (void)atomic_exchange(&j->rung, false);
    (void)atomic_exchange(&j->awaited, false);
    made = spare_keep(j, env);
    if (!segment_ready(j, env)) {
        return made;
    }
    if (j->group_n == 0) {
        group_gather(j);
    }
    if (j->group_n == 0) {
        return made;
    }
    rc = group_write(j, env);
    if (rc <= 0) {
        if (rc < 0) {
            journal_fail(j, env, rc, "write");
        }
        atomic_store(&j->admits, false);
        return false;
    }
    rings_mark(j, env);
    began = env_wall_us(env);
    rc = env->ops->file_sync(env, j->file);
    if (rc < 0) {
        journal_fail(j, env, rc, "sync");
        return false;
    }
    ended = env_wall_us(env);
    atomic_fetch_add(&j->syncs_us, ended - u64_min(began, ended)); /* the wall may step back */
    group_publish(j);
    return true;
}

void journal_stats(const struct journal *j, struct journal_stats *out)
{
    *out = (struct journal_stats){
        .records = atomic_load(&j->n_records),
        .groups = atomic_load(&j->n_groups),
        .bytes = atomic_load(&j->n_bytes),
        .syncs_us_total = atomic_load(&j->syncs_us),
        .rows = atomic_load(&j->rows),
        .unshipped_bytes = atomic_load(&j->folder_bytes),
    };
}

/* ---- the end ---- */

/* The empty rest of the segment goes back to the disk; a reader sees the same records. */
static void tail_cut(struct journal *j)
{
    struct env *env = j->env;

    if (env->ops->file_truncate(env, j->file, j->file_records * JOURNAL_RECORD_BYTES) == 0) {
        (void)env->ops->file_sync(env, j->file);
    }
}

void journal_close(struct journal *j)
{
    int i;

    if (j == NULL) {
        return;
    }
    for (i = 0; i < CLOSE_STEPS_MAX && journal_step(j, j->env); i++) {
    }
    if (!atomic_load(&j->failed) && j->group_n == 0) {
        tail_cut(j);
    }
    journal_free(j);
}

/* ---- for journal_trim.c ---- */

#define WATERMARK_SEQ_BITS 40 /* a trillion rows in one life of a gateway */

static uint64_t watermark_pack(int32_t epoch, int64_t seq)
{
    CHECK(epoch >= 0 && epoch < 1 << (63 - WATERMARK_SEQ_BITS) && seq >= 0 &&
          seq < 1LL << WATERMARK_SEQ_BITS);
    return (uint64_t)epoch << WATERMARK_SEQ_BITS | (uint64_t)seq;
}

void journal_keep_after(struct journal *j, int32_t epoch, int64_t seq)
{
    atomic_store(&j->keep, watermark_pack(epoch, seq) + 1); /* 0: nobody asked */
}

void journal_trim_limit(const struct journal *j, int32_t *epoch, int64_t *seq)
{
    uint64_t keep = atomic_load(&j->keep);

    /* A full disk comes first: what is shipped goes, or nothing could ever be admitted again. */
    if (keep != 0 && journal_admits(j) && keep - 1 < watermark_pack(*epoch, *seq)) {
        *epoch = (int32_t)((keep - 1) >> WATERMARK_SEQ_BITS);
        *seq = (int64_t)((keep - 1) & ((1ULL << WATERMARK_SEQ_BITS) - 1));
    }
}

struct trim *journal_trim_state(struct journal *j)
{
    return j->trim;
}

void journal_trim_state_set(struct journal *j, struct trim *t)
{
    j->trim = t;
}

const char *journal_dir(const struct journal *j)
{
    return j->dir;
}

struct log *journal_log(const struct journal *j)
{
    return j->log;
}

void journal_folder_segments_set(struct journal *j, size_t n)
{
    atomic_store(&j->folder_bytes, n * j->segment_records * JOURNAL_RECORD_BYTES);
}
