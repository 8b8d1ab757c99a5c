/* journal_segment.c - the names of segments in a folder, reading them, settling old ones. */
#include "ledger/journal_disk.h"

#include <errno.h>
#include <stdio.h>

/* Finding the end of an old segment backwards, a block of slots at a time. */
#define TAIL_SLOTS 64
#define SEGMENT_NAME_BYTES 39 /* 10 digits, '-', 20 digits, ".journal" */

bool journal_path(char out[JOURNAL_PATH_MAX], const char *dir, const char *name)
{
    int n = snprintf(out, JOURNAL_PATH_MAX, "%s/%s", dir, name);

    return n > 0 && n < JOURNAL_PATH_MAX;
}

bool segment_path(char out[JOURNAL_PATH_MAX], const char *dir, struct segment_name s)
{
    int n = snprintf(out, JOURNAL_PATH_MAX, "%s/%010d-%020llu.journal", dir, s.epoch,
                     (unsigned long long)s.first_lsn);

    return n > 0 && n < JOURNAL_PATH_MAX;
}

static bool segment_name_parse(const char *name, struct segment_name *out)
{
    uint64_t epoch;
    uint64_t lsn;

    if (strlen(name) != SEGMENT_NAME_BYTES || name[10] != '-' ||
        strcmp(name + 31, ".journal") != 0 || !str_u64(str_of(name, 10), &epoch) ||
        !str_u64(str_of(name + 11, 20), &lsn) || epoch == 0 || epoch > INT32_MAX || lsn == 0) {
        return false;
    }
    *out = (struct segment_name){(int32_t)epoch, lsn};
    return true;
}

/* dir_list sorts bytewise, and the fixed width makes that the order of (epoch, lsn). */
static void segment_list_each(void *ctx, const char *name)
{
    struct segment_list *l = ctx;
    struct segment_name s;
    size_t cap;
    struct segment_name *v;

    if (!segment_name_parse(name, &s)) {
        return;
    }
    if (l->n == l->cap) {
        cap = l->cap == 0 ? 16 : l->cap * 2;
        v = cap > JOURNAL_SEGMENTS_MAX ? NULL : mem_resize(l->v, cap * sizeof(*v));
        if (v == NULL) {
            l->overflow = true;
            return;
        }
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = s;
}

bool segment_list_read(struct segment_list *l, struct env *env, const char *dir, struct err *e)
{
    int rc;

    l->n = 0;
    l->overflow = false;
    rc = env->ops->dir_list(env, dir, segment_list_each, l);
    if (rc < 0) {
        return err_errno(e, -rc, "cannot list the journal folder %s", dir);
    }
    if (l->overflow) {
        return err_set(e, ERR_LIMIT, "%s holds more than %d segments; ship or move the old ones",
                       dir, JOURNAL_SEGMENTS_MAX);
    }
    return true;
}

void segment_list_free(struct segment_list *l)
{
    mem_free(l->v);
    *l = (struct segment_list){0};
}

bool segment_read(struct env *env, struct env_file *f, void *p, size_t n, uint64_t offset)
{
    size_t done = 0;
    ssize_t got;

    while (done < n) {
        got = env->ops->file_pread(env, f, (uint8_t *)p + done, n - done, offset + done);
        if (got == -EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        done += (size_t)got;
    }
    return true;
}

/* Length in bytes up to the last slot that is not zero. */
static bool segment_used(struct env *env, struct env_file *f, uint64_t size, uint64_t *used)
{
    static const size_t block = (size_t)TAIL_SLOTS * JOURNAL_RECORD_BYTES;
    uint8_t *p = mem_new(block);
    uint64_t end = size;
    size_t n;
    bool ok = true;

    while (ok && end > 0) {
        n = (size_t)u64_min(end, block);
        ok = segment_read(env, f, p, n, end - n);
        while (ok && n > 0 && p[n - 1] == 0) {
            n--;
            end--;
        }
        if (n > 0) {
            break;
        }
    }
    mem_free(p);
    /* A record's own last bytes may be zero: keep its whole slot. */
    end = (end + JOURNAL_RECORD_BYTES - 1) / JOURNAL_RECORD_BYTES * JOURNAL_RECORD_BYTES;
    *used = u64_min(end, size);
    return ok;
}

/* The same bytes once more: after a sync that failed, the kernel may hold pages as clean that never
 * reached the disk, and only a write makes the next sync write them. */
static int segment_rewrite(struct env *env, struct env_file *f, uint64_t bytes)
{
    static const size_t block = (size_t)TAIL_SLOTS * JOURNAL_RECORD_BYTES;
    uint8_t *p = mem_new(block);
    uint64_t at = 0;
    ssize_t put = 0;

    while (at < bytes && (put >= 0 || put == -EINTR)) {
        size_t n = (size_t)u64_min(block, bytes - at);

        put = segment_read(env, f, p, n, at) ? env->ops->file_pwrite(env, f, p, n, at) : -EIO;
        put = put == 0 ? -EIO : put;
        at += put > 0 ? (uint64_t)put : 0;
    }
    mem_free(p);
    return at == bytes ? 0 : (int)put;
}

/* An old epoch's last segment: what a killed process left in the page cache becomes durable before
 * anyone acts on it, and the preallocated rest goes back to the disk. */
static bool segment_settle(struct env *env, const char *dir, struct segment_name s, struct err *e)
{
    char path[JOURNAL_PATH_MAX];
    struct env_file *f = NULL;
    uint64_t used = 0;
    int64_t size;
    int rc;

    if (!segment_path(path, dir, s)) {
        return err_set(e, ERR_LIMIT, "the journal folder's name is too long: %s", dir);
    }
    rc = env->ops->file_open(env, path, ENV_OPEN_CREATE, &f);
    if (rc < 0) {
        return err_errno(e, -rc, "cannot open %s", path);
    }
    size = env->ops->file_size(env, f);
    if (size < 0 || !segment_used(env, f, (uint64_t)size, &used)) {
        env->ops->file_close(env, f);
        return err_set(e, ERR_IO, "cannot read %s", path);
    }
    rc = used < (uint64_t)size ? env->ops->file_truncate(env, f, used) : 0;
    if (rc == 0) {
        rc = segment_rewrite(env, f, used);
    }
    if (rc == 0) {
        rc = env->ops->file_sync(env, f);
    }
    env->ops->file_close(env, f);
    if (rc == 0 && used == 0) {
        rc = env->ops->file_unlink(env, path);
    }
    return rc == 0 || err_errno(e, -rc, "cannot settle %s", path);
}

bool segments_settle(struct env *env, const char *dir, int32_t *last, struct err *e)
{
    struct segment_list l = {0};
    bool ok = segment_list_read(&l, env, dir, e);
    size_t i;

    *last = 0;
    for (i = 0; ok && i < l.n; i++) {
        *last = l.v[i].epoch;
        if (i + 1 == l.n || l.v[i + 1].epoch != l.v[i].epoch) {
            ok = segment_settle(env, dir, l.v[i], e);
        }
    }
    segment_list_free(&l);
    return ok;
}
