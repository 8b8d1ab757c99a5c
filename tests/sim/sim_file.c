/* sim_file.c - a disk in memory that remembers what was synced.
 *
 * A file has its content as the process sees it and, since the last sync, the list of changes.
 * After a loss of power the durable content is the synced one plus a part of those changes: the
 * first few and the beginning of one (as a log-structured disk leaves it), or any sectors of them.
 * A name is durable after rename or dir_sync; unlink is durable after dir_sync. */
#include "sim.h"

#include <errno.h>
#include <stdlib.h>

#define DISK_FILES_MAX 4096
#define PATH_MAX_BYTES 256
#define FILE_BYTES_MAX ((size_t)64 << 20)
#define SECTOR_BYTES 512

enum change_kind { CHANGE_WRITE = 1, CHANGE_SIZE };

struct change {
    enum change_kind kind;
    uint64_t offset; /* SIZE: the new size */
    uint8_t *p;      /* owned */
    size_t n;
};

struct file {
    char path[PATH_MAX_BYTES];
    struct buf now, synced;
    struct change *changes; /* owned, since the last sync */
    size_t n_changes, cap_changes;
    bool named;    /* its name is durable */
    bool unlinked; /* not visible; gone for good once the folder is synced */
    uint64_t unlink_order;
    uint32_t opens;
};

struct sim_disk {
    struct sim *sim;
    struct file *files[DISK_FILES_MAX];
    size_t n;
    uint64_t unlinks; /* ever */
};

struct env_file {
    struct sim_host *host;
    struct file *f;
};

struct sim_disk *sim_disk_new(struct sim *s)
{
    struct sim_disk *d = mem_new(sizeof(*d));

    d->sim = s;
    return d;
}

static void changes_drop(struct file *f)
{
    for (size_t i = 0; i < f->n_changes; i++) {
        mem_free(f->changes[i].p);
    }
    f->n_changes = 0;
}

static void file_free(struct file *f)
{
    changes_drop(f);
    mem_free(f->changes);
    buf_fini(&f->now);
    buf_fini(&f->synced);
    mem_free(f);
}

void sim_disk_free(struct sim_disk *d)
{
    for (size_t i = 0; i < d->n; i++) {
        file_free(d->files[i]);
    }
    mem_free(d);
}

static struct file *find(struct sim_disk *d, const char *path)
{
    for (size_t i = 0; i < d->n; i++) {
        if (!d->files[i]->unlinked && strcmp(d->files[i]->path, path) == 0) {
            return d->files[i];
        }
    }
    return NULL;
}

static struct file *file_new(struct sim_disk *d, const char *path)
{
    struct file *f = mem_new(sizeof(*f));

    CHECK(d->n < DISK_FILES_MAX);
    str_copy(str_c(path), f->path, sizeof(f->path));
    buf_init(&f->now, FILE_BYTES_MAX);
    buf_init(&f->synced, FILE_BYTES_MAX);
    d->files[d->n++] = f;
    return f;
}

static void change_add(struct file *f, struct change c)
{
    if (f->n_changes == f->cap_changes) {
        f->cap_changes = f->cap_changes == 0 ? 8 : f->cap_changes * 2;
        f->changes = mem_resize(f->changes, f->cap_changes * sizeof(*f->changes));
        CHECK(f->changes != NULL);
    }
    f->changes[f->n_changes++] = c;
}

static void set_size(struct buf *b, uint64_t bytes)
{
    CHECK(bytes <= FILE_BYTES_MAX);
    if (bytes < b->len) {
        buf_truncate(b, (size_t)bytes);
    } else if (bytes > b->len) {
        size_t more = (size_t)bytes - b->len;
        uint8_t *p = buf_reserve(b, more);

        CHECK(p != NULL);
        memset(p, 0, more);
        buf_commit(b, more);
    }
}

static void put_bytes(struct buf *b, uint64_t offset, const uint8_t *p, size_t n)
{
    if (n == 0) {
        return;
    }
    if (offset + n > b->len) {
        set_size(b, offset + n);
    }
    memcpy(b->p + b->off + offset, p, n);
}

/* Counts one operation of the process; true: it dies in it. */
static bool dies_here(struct sim_host *h)
{
    if (h->kill_at_file_op == 0 || --h->kill_at_file_op > 0) {
        return false;
    }
    sim_host_kill(h, h->kill_loses_power);
    return true;
}

/* ---- env ---- */

int sim_file_open(struct env *e, const char *path, enum env_open how, struct env_file **out)
{
    struct sim_host *h = sim_host_of(e);
    struct sim_disk *d = h->sim->disk;
    struct file *f = find(d, path);

    if (h->dead) {
        return -EIO;
    }
    if (f == NULL && how == ENV_OPEN_READ) {
        return -ENOENT;
    }
    if (f == NULL) {
        f = file_new(d, path);
    } else if (how == ENV_OPEN_TRUNCATE || how == ENV_OPEN_MAPPED) {
        set_size(&f->now, 0);
        change_add(f, (struct change){.kind = CHANGE_SIZE});
    }
    *out = mem_new(sizeof(**out));
    (*out)->host = h;
    (*out)->f = f;
    f->opens++;
    h->n_files++;
    return 0;
}

ssize_t sim_file_pread(struct env *e, struct env_file *ef, void *p, size_t n, uint64_t offset)
{
    const struct buf *b = &ef->f->now;

    if (sim_host_of(e)->dead) {
        return -EIO;
    }
    if (offset >= b->len) {
        return 0;
    }
    n = size_min(n, b->len - (size_t)offset);
    memcpy(p, b->p + b->off + offset, n);
    return (ssize_t)n;
}

ssize_t sim_file_pwrite(struct env *e, struct env_file *ef, const void *p, size_t n,
                        uint64_t offset)
{
    struct sim_host *h = sim_host_of(e);
    struct sim *s = h->sim;
    struct change c = {.kind = CHANGE_WRITE, .offset = offset};

    if (h->dead) {
        return -EIO;
    }
    if (sim_chance(&s->file, s->faults.file_full)) {
        sim_trace(s, "disk full");
        return -ENOSPC;
    }
    /* Only the journal may meet one: the rest relies on the real env, which writes all or fails. */
    if (n > 1 && str_ends(str_c(ef->f->path), STR(".journal")) &&
        sim_chance(&s->file, s->faults.file_short)) {
        n = (size_t)sim_range(&s->file, 1, n);
    }
    put_bytes(&ef->f->now, offset, p, n);
    c.p = mem_new(n + 1);
    c.n = n;
    memcpy(c.p, p, n);
    change_add(ef->f, c);
    sim_trace(s, "pwrite %s %zu at %llu", ef->f->path, n, (unsigned long long)offset);
    return dies_here(h) ? -EIO : (ssize_t)n;
}

static void make_durable(struct file *f)
{
    for (size_t i = 0; i < f->n_changes; i++) {
        const struct change *c = &f->changes[i];

        if (c->kind == CHANGE_SIZE) {
            set_size(&f->synced, c->offset);
        } else {
            put_bytes(&f->synced, c->offset, c->p, c->n);
        }
    }
    changes_drop(f);
}

int sim_file_sync(struct env *e, struct env_file *ef)
{
    struct sim_host *h = sim_host_of(e);
    struct sim *s = h->sim;

    if (h->dead || dies_here(h)) {
        return -EIO;
    }
    if (sim_chance(&s->file, s->faults.file_sync)) {
        sim_trace(s, "fdatasync fails");
        changes_drop(ef->f); /* the kernel forgot them and says so once */
        return -EIO;
    }
    make_durable(ef->f);
    return 0;
}

int64_t sim_file_size(struct env *e, struct env_file *ef)
{
    return sim_host_of(e)->dead ? -EIO : (int64_t)ef->f->now.len;
}

static int resize(struct env *e, struct env_file *ef, uint64_t bytes)
{
    if (sim_host_of(e)->dead) {
        return -EIO;
    }
    set_size(&ef->f->now, bytes);
    change_add(ef->f, (struct change){.kind = CHANGE_SIZE, .offset = bytes});
    return dies_here(sim_host_of(e)) ? -EIO : 0;
}

int sim_file_allocate(struct env *e, struct env_file *ef, uint64_t bytes)
{
    struct sim *s = sim_host_of(e)->sim;

    if (sim_chance(&s->file, s->faults.file_full * 20)) {
        sim_trace(s, "disk full: no segment");
        return -ENOSPC;
    }
    return bytes > ef->f->now.len ? resize(e, ef, bytes) : 0;
}

int sim_file_truncate(struct env *e, struct env_file *ef, uint64_t bytes)
{
    return resize(e, ef, bytes);
}

void sim_file_close(struct env *e, struct env_file *ef)
{
    (void)e;
    if (ef != NULL) {
        ef->host->n_files--;
        ef->f->opens--;
        mem_free(ef);
    }
}

/* Files that are unlinked, not open and whose folder was synced are gone. */
static void sweep(struct sim_disk *d)
{
    size_t kept = 0;

    for (size_t i = 0; i < d->n; i++) {
        if (d->files[i]->unlinked && d->files[i]->opens == 0 && !d->files[i]->named) {
            file_free(d->files[i]);
        } else {
            d->files[kept++] = d->files[i];
        }
    }
    d->n = kept;
}

int sim_dir_sync(struct env *e, const char *path)
{
    struct sim_disk *d = sim_host_of(e)->sim->disk;

    (void)path;
    if (sim_host_of(e)->dead) {
        return -EIO;
    }
    for (size_t i = 0; i < d->n; i++) {
        d->files[i]->named = !d->files[i]->unlinked;
    }
    sweep(d);
    return 0;
}

int sim_file_rename(struct env *e, const char *from, const char *to)
{
    struct sim_host *h = sim_host_of(e);
    struct file *f = find(h->sim->disk, from), *old = find(h->sim->disk, to);

    if (h->dead) {
        return -EIO;
    }
    if (f == NULL) {
        return -ENOENT;
    }
    if (old != NULL) {
        old->unlinked = true; /* for good: the folder is synced below */
        old->unlink_order = ++h->sim->disk->unlinks;
    }
    sim_trace(h->sim, "rename %s %s", from, to);
    str_copy(str_c(to), f->path, sizeof(f->path));
    return dies_here(h) ? -EIO : sim_dir_sync(e, to);
}

int sim_file_unlink(struct env *e, const char *path)
{
    struct sim_host *h = sim_host_of(e);
    struct file *f = find(h->sim->disk, path);

    if (h->dead) {
        return -EIO;
    }
    if (f == NULL) {
        return -ENOENT;
    }
    sim_trace(h->sim, "unlink %s", path);
    f->unlinked = true;
    f->unlink_order = ++h->sim->disk->unlinks;
    return 0;
}

int sim_dir_make(struct env *e, const char *path)
{
    (void)path;
    return sim_host_of(e)->dead ? -EIO : 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int sim_dir_list(struct env *e, const char *path, void (*each)(void *ctx, const char *name),
                 void *ctx)
{
    struct sim_disk *d = sim_host_of(e)->sim->disk;
    const char **names;
    size_t n = 0, prefix = strlen(path);

    if (sim_host_of(e)->dead) {
        return -EIO;
    }
    names = mem_new((d->n + 1) * sizeof(*names));
    for (size_t i = 0; i < d->n; i++) {
        const char *p = d->files[i]->path;

        if (!d->files[i]->unlinked && strncmp(p, path, prefix) == 0 && p[prefix] == '/') {
            names[n++] = p + prefix + 1;
        }
    }
    qsort(names, n, sizeof(*names), compare_names);
    for (size_t i = 0; i < n; i++) {
        each(ctx, names[i]);
    }
    mem_free(names);
    return 0;
}

/* ---- the crash ---- */

static void survive_prefix(struct file *f, struct sim_rng *r)
{
    size_t whole = (size_t)sim_below(r, f->n_changes + 1);

    for (size_t i = 0; i < f->n_changes && i <= whole; i++) {
        const struct change *c = &f->changes[i];

        if (c->kind == CHANGE_SIZE) {
            set_size(&f->synced, i < whole ? c->offset : f->synced.len);
        } else {
            put_bytes(&f->synced, c->offset, c->p,
                      i < whole ? c->n : (size_t)sim_below(r, c->n + 1));
        }
    }
}

static void survive_sectors(struct file *f, struct sim_rng *r)
{
    for (size_t i = 0; i < f->n_changes; i++) {
        const struct change *c = &f->changes[i];

        if (c->kind == CHANGE_SIZE) {
            set_size(&f->synced, sim_chance(r, 500) ? c->offset : f->synced.len);
            continue;
        }
        for (size_t at = 0; at < c->n;) {
            size_t n =
                size_min(c->n - at, SECTOR_BYTES - (size_t)((c->offset + at) % SECTOR_BYTES));

            if (sim_chance(r, 500)) {
                put_bytes(&f->synced, c->offset + at, c->p + at, n);
            }
            at += n;
        }
    }
}

void sim_disk_crash(struct sim_disk *d, bool power)
{
    struct sim_rng *r = &d->sim->file;
    /* A file system's own journal keeps the order of removals. */
    uint64_t removed = d->unlinks - sim_below(r, size_min(d->unlinks, 8) + 1);

    for (size_t i = 0; i < d->n; i++) {
        struct file *f = d->files[i];

        if (!power) {
            continue; /* the page cache outlives a process */
        }
        if (sim_chance(r, 600)) {
            survive_prefix(f, r);
        } else {
            survive_sectors(f, r);
        }
        changes_drop(f);
        buf_reset(&f->now);
        buf_append(&f->now, buf_view(&f->synced).p, f->synced.len);
        if (f->unlinked && f->named && f->unlink_order > removed) {
            f->unlinked = find(d, f->path) != NULL; /* its removal had not reached the disk */
        } else if (!f->unlinked && !f->named && sim_chance(r, 500)) {
            f->unlinked = true; /* nor had its name */
        }
        f->named = !f->unlinked;
    }
    for (size_t i = 0; i < d->n; i++) {
        sim_trace(d->sim, "after the crash: %s %zu bytes%s", d->files[i]->path,
                  d->files[i]->now.len, d->files[i]->unlinked ? " (gone)" : "");
    }
}
