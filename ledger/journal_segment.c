/* journal_segment.c - the names of segments in a folder, and reading them. */
#include "ledger/journal_disk.h"

#include <errno.h>
#include <stdio.h>

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
