/* journal_reader.c - records in order, across segments and epochs, live or offline.
 *
 * A place is (epoch, lsn). The reader holds at most one segment open and a block of slots; what it
 * cannot read it judges: the end, a crash's torn tail, or damage. */
#include "ledger/journal_disk.h"

#include <errno.h>

#define BLOCK_SLOTS 64 /* 24 KiB a read */

struct journal_reader {
    struct env *env;
    char dir[JOURNAL_PATH_MAX];
    struct segment_list list;
    int32_t epoch; /* the place: next record to return */
    uint64_t lsn;
    int32_t
        torn_epoch; /* a torn tail was told of here, the newest epoch's; next time it is the end */
    uint64_t torn_lsn;
    bool free_start; /* a seek: the first record found may lie beyond the place */
    struct segment_name seg;
    struct env_file *file; /* NULL: none open */
    uint64_t file_bytes;
    uint8_t *block; /* [BLOCK_SLOTS][JOURNAL_RECORD_BYTES] */
    uint64_t block_slot;
    size_t block_n;
    bool bounded;
    int32_t bound_epoch;
    uint64_t bound_lsn;
};

struct journal_reader *journal_reader_open(struct env *env, const char *dir, struct err *e)
{
    struct journal_reader *r = mem_new(sizeof(*r));

    r->env = env;
    r->block = mem_new((size_t)BLOCK_SLOTS * JOURNAL_RECORD_BYTES);
    if (strlen(dir) >= sizeof(r->dir) - 64) {
        (void)err_set(e, ERR_LIMIT, "the journal folder's name is too long: %s", dir);
        journal_reader_close(r);
        return NULL;
    }
    (void)str_copy(str_c(dir), r->dir, sizeof(r->dir));
    journal_reader_seek(r, 0, 0);
    if (!segment_list_read(&r->list, env, r->dir, e)) {
        journal_reader_close(r);
        return NULL;
    }
    return r;
}

static void file_drop(struct journal_reader *r)
{
    if (r->file != NULL) {
        r->env->ops->file_close(r->env, r->file);
        r->file = NULL;
    }
    r->block_n = 0;
}

void journal_reader_close(struct journal_reader *r)
{
    if (r == NULL) {
        return;
    }
    file_drop(r);
    segment_list_free(&r->list);
    mem_free(r->block);
    mem_free(r);
}

void journal_reader_seek(struct journal_reader *r, int32_t epoch, uint64_t lsn)
{
    file_drop(r);
    r->epoch = epoch;
    r->lsn = lsn;
    r->free_start = true;
}

void journal_reader_bound(struct journal_reader *r, int32_t epoch, uint64_t durable_lsn)
{
    r->bounded = true;
    r->bound_epoch = epoch;
    r->bound_lsn = durable_lsn;
}

static bool is_past_bound(const struct journal_reader *r)
{
    return r->bounded &&
           (r->epoch > r->bound_epoch || (r->epoch == r->bound_epoch && r->lsn > r->bound_lsn));
}

static bool segment_open(struct journal_reader *r, struct segment_name s, struct err *e)
{
    char path[JOURNAL_PATH_MAX];
    int64_t bytes;
    int rc;

    file_drop(r);
    CHECK(segment_path(path, r->dir, s));
    rc = r->env->ops->file_open(r->env, path, ENV_OPEN_READ, &r->file);
    if (rc < 0) {
        r->file = NULL;
        return err_errno(e, -rc, "cannot open %s", path);
    }
    bytes = r->env->ops->file_size(r->env, r->file);
    if (bytes < 0) {
        return err_errno(e, (int)-bytes, "cannot read the size of %s", path);
    }
    r->seg = s;
    r->file_bytes = (uint64_t)bytes;
    return true;
}

/* Index of the segment in which the place lies, or of the first after it; n: none. */
static size_t segment_find(const struct journal_reader *r, bool *inside)
{
    size_t i;

    *inside = false;
    for (i = 0; i < r->list.n; i++) {
        if (r->list.v[i].epoch > r->epoch ||
            (r->list.v[i].epoch == r->epoch && r->list.v[i].first_lsn > r->lsn)) {
            break;
        }
    }
    if (i > 0 && r->list.v[i - 1].epoch == r->epoch) {
        *inside = true;
        return i - 1;
    }
    return i;
}

/* Opens where the place is. END when there is nothing yet. */
static enum journal_read place_open(struct journal_reader *r, struct err *e)
{
    bool inside;
    size_t i;

    if (!segment_list_read(&r->list, r->env, r->dir, e)) {
        return JOURNAL_READ_CORRUPT;
    }
    i = segment_find(r, &inside);
    if (i == r->list.n) {
        return JOURNAL_READ_END;
    }
    if (!inside) {
        if (!r->free_start && r->list.v[i].epoch == r->epoch) {
            (void)err_set(e, ERR_CORRUPT, "%s: records %llu to %llu of epoch %d are missing",
                          r->dir, (unsigned long long)r->lsn,
                          (unsigned long long)r->list.v[i].first_lsn - 1, r->epoch);
            return JOURNAL_READ_CORRUPT;
        }
        r->epoch = r->list.v[i].epoch;
        r->lsn = r->list.v[i].first_lsn;
    }
    r->free_start = false;
    return segment_open(r, r->list.v[i], e) ? JOURNAL_READ_RECORD : JOURNAL_READ_CORRUPT;
}

/* The slot's bytes, or NULL past the end of the file. fresh: not from the block at hand. */
static const uint8_t *slot_bytes(struct journal_reader *r, uint64_t slot, bool fresh)
{
    uint64_t slots = r->file_bytes / JOURNAL_RECORD_BYTES;
    size_t n;

    if (slot >= slots) {
        return NULL;
    }
    if (fresh || slot < r->block_slot || slot >= r->block_slot + r->block_n) {
        n = (size_t)u64_min(BLOCK_SLOTS, slots - slot);
        r->block_n = 0;
        if (!segment_read(r->env, r->file, r->block, n * JOURNAL_RECORD_BYTES,
                          slot * JOURNAL_RECORD_BYTES)) {
            return NULL;
        }
        r->block_slot = slot;
        r->block_n = n;
    }
    return r->block + (slot - r->block_slot) * JOURNAL_RECORD_BYTES;
}

static bool slot_decode(struct journal_reader *r, uint64_t slot, bool fresh,
                        struct record_stored *out)
{
    const uint8_t *p = slot_bytes(r, slot, fresh);

    return p != NULL && record_decode(p, out) && out->epoch == r->seg.epoch &&
           out->lsn == r->seg.first_lsn + slot;
}

/* Everything from `slot` on: only zeros, junk of the last group, or proof of damage. */
static enum journal_read tail_judge(struct journal_reader *r, uint64_t slot,
                                    struct record_stored *scratch)
{
    uint64_t slots = r->file_bytes / JOURNAL_RECORD_BYTES;
    enum journal_read verdict =
        r->file_bytes % JOURNAL_RECORD_BYTES != 0 ? JOURNAL_READ_TORN : JOURNAL_READ_END;
    uint64_t i;
    const uint8_t *p;

    for (i = slot; i < slots; i++) {
        p = slot_bytes(r, i, false);
        if (p == NULL || record_is_zero(p)) {
            continue;
        }
        verdict = JOURNAL_READ_TORN;
        if (slot_decode(r, i, false, scratch) && record_group_lsn(p) > r->lsn) {
            return JOURNAL_READ_CORRUPT;
        }
    }
    r->block_n = 0;
    return verdict;
}

/* The segment after the open one in its epoch, and the first of a later epoch; epoch 0: none. */
static bool segments_after(struct journal_reader *r, struct segment_name *same,
                           struct segment_name *later, struct err *e)
{
    size_t i;

    *same = (struct segment_name){0};
    *later = (struct segment_name){0};
    if (!segment_list_read(&r->list, r->env, r->dir, e)) {
        return false;
    }
    for (i = 0; i < r->list.n; i++) {
        if (r->list.v[i].epoch == r->seg.epoch && same->epoch == 0 &&
            r->list.v[i].first_lsn > r->seg.first_lsn) {
            *same = r->list.v[i];
        }
        if (r->list.v[i].epoch > r->seg.epoch) {
            *later = r->list.v[i];
            break;
        }
    }
    return true;
}

static enum journal_read corrupt_here(struct journal_reader *r, struct err *e)
{
    char path[JOURNAL_PATH_MAX];

    CHECK(segment_path(path, r->dir, r->seg));
    (void)err_set(e, ERR_CORRUPT, "%s: the record at byte %llu is damaged", path,
                  (unsigned long long)((r->lsn - r->seg.first_lsn) * JOURNAL_RECORD_BYTES));
    return JOURNAL_READ_CORRUPT;
}

/* A live journal may have written the slot, and more, since it was read: that is no damage. */
static enum journal_read corrupt_unless_written(struct journal_reader *r, uint64_t slot,
                                                struct record_stored *scratch, struct err *e)
{
    return slot_decode(r, slot, true, scratch) ? JOURNAL_READ_RECORD : corrupt_here(r, e);
}

/* No record at the place. RECORD here means: look again. */
static enum journal_read end_of_records(struct journal_reader *r, uint64_t slot,
                                        struct record_stored *scratch, struct err *e)
{
    enum journal_read verdict;
    struct segment_name same;
    struct segment_name later;

    if (!segments_after(r, &same, &later, e)) {
        return JOURNAL_READ_CORRUPT;
    }
    if (same.epoch != 0) {
        /* Only a full segment has a successor, which goes on where it ends. */
        if (same.first_lsn != r->lsn) {
            return corrupt_unless_written(r, slot, scratch, e);
        }
        return segment_open(r, same, e) ? JOURNAL_READ_RECORD : JOURNAL_READ_CORRUPT;
    }
    verdict = tail_judge(r, slot, scratch);
    if (verdict == JOURNAL_READ_CORRUPT ||
        (r->bounded && r->epoch == r->bound_epoch && r->lsn <= r->bound_lsn)) {
        return corrupt_unless_written(r, slot, scratch, e);
    }
    if (later.epoch != 0) {
        journal_reader_seek(r, later.epoch, later.first_lsn);
        return verdict == JOURNAL_READ_TORN ? JOURNAL_READ_TORN : JOURNAL_READ_RECORD;
    }
    if (verdict == JOURNAL_READ_TORN && r->torn_epoch == r->epoch && r->torn_lsn == r->lsn) {
        return JOURNAL_READ_END;
    }
    r->torn_epoch = r->epoch;
    r->torn_lsn = r->lsn;
    return verdict;
}

struct segment_name journal_reader_segment(const struct journal_reader *r)
{
    return r->seg;
}

enum journal_read journal_read(struct journal_reader *r, struct record_stored *out, struct err *e)
{
    enum journal_read got;
    uint64_t slot;

    /* Each turn returns, opens a segment, or leaves one for a later one: bounded by their number.
     */
    for (;;) {
        if (is_past_bound(r)) {
            return JOURNAL_READ_END;
        }
        if (r->file == NULL) {
            got = place_open(r, e);
            if (got != JOURNAL_READ_RECORD) {
                return got;
            }
            continue;
        }
        slot = r->lsn - r->seg.first_lsn;
        if (slot_decode(r, slot, false, out) || slot_decode(r, slot, true, out)) {
            r->lsn++;
            return JOURNAL_READ_RECORD;
        }
        got = end_of_records(r, slot, out, e);
        if (got != JOURNAL_READ_RECORD) {
            return got;
        }
    }
}
