/* os_file.c - regular files and folders of the real env. Every answer is 0, a count, or -errno. */
#include "base/net/os_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <sys/stat.h>
#include <unistd.h>

/* A journal folder holds thousands of segments at most; a larger folder is somebody else's. */
#define DIR_NAMES_MAX (1u << 20)
#define FILE_PATH_MAX 4096

struct env_file {
    int fd;
    bool mapped;  /* opened as ENV_OPEN_MAPPED */
    uint8_t *map; /* [map_bytes] shared mapping; NULL: none (yet) */
    size_t map_bytes;
};

static int open_retry(const char *path, int flags)
{
    int fd;

    do {
        fd = open(path, flags | O_CLOEXEC, 0600);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

int os_file_open(struct env *e, const char *path, enum env_open how, struct env_file **out)
{
    static const int flags[] = {
        [ENV_OPEN_READ] = O_RDONLY,
        [ENV_OPEN_CREATE] = O_RDWR | O_CREAT,
        [ENV_OPEN_TRUNCATE] = O_RDWR | O_CREAT | O_TRUNC,
        [ENV_OPEN_MAPPED] = O_RDWR | O_CREAT | O_TRUNC,
    };
    struct stat st;
    int fd = open_retry(path, flags[how]);

    (void)e;
    if (fd < 0) {
        return -errno;
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return -EINVAL;
    }
    *out = mem_new(sizeof(**out));
    (*out)->fd = fd;
    (*out)->mapped = how == ENV_OPEN_MAPPED;
    return 0;
}

/* Reads until n bytes or the end of the file. */
ssize_t os_file_pread(struct env *e, struct env_file *f, void *p, size_t n, uint64_t offset)
{
    size_t done = 0;

    (void)e;
    while (done < n) {
        ssize_t got = pread(f->fd, (char *)p + done, n - done, (off_t)(offset + done));

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return -errno;
        }
        if (got == 0) {
            break;
        }
        done += (size_t)got;
    }
    return (ssize_t)done;
}

/* Writes all of it, or says why not; then part of it may be in the file. */
ssize_t os_file_pwrite(struct env *e, struct env_file *f, const void *p, size_t n, uint64_t offset)
{
    size_t done = 0;

    (void)e;
    if (f->map != NULL && offset <= f->map_bytes && n <= f->map_bytes - offset) {
        memcpy(f->map + offset, p, n);
        return (ssize_t)n;
    }
    while (done < n) {
        ssize_t put = pwrite(f->fd, (const char *)p + done, n - done, (off_t)(offset + done));

        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0) {
            return -errno;
        }
        if (put == 0) {
            return -EIO;
        }
        done += (size_t)put;
    }
    return (ssize_t)done;
}

int os_file_sync(struct env *e, struct env_file *f)
{
    (void)e;
    return fdatasync(f->fd) == 0 ? 0 : -errno;
}

int64_t os_file_size(struct env *e, struct env_file *f)
{
    struct stat st;

    (void)e;
    return fstat(f->fd, &st) == 0 ? (int64_t)st.st_size : -errno;
}

/* Where allocated blocks are written in place, so that a store into the mapping cannot meet a full
 * disk, which would be a signal instead of an answer. Copy-on-write and network file systems are
 * not among them: there the file is written as any file is. */
static bool writes_in_place(int fd)
{
    struct statfs s;

    return fstatfs(fd, &s) == 0 &&
           (s.f_type == EXT4_SUPER_MAGIC || s.f_type == XFS_SUPER_MAGIC || s.f_type == TMPFS_MAGIC);
}

static void map_file(struct env_file *f, uint64_t bytes)
{
    void *p;

    if (!f->mapped || f->map != NULL || bytes > SIZE_MAX || !writes_in_place(f->fd)) {
        return;
    }
    p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, 0);
    if (p != MAP_FAILED) {
        f->map = p;
        f->map_bytes = (size_t)bytes;
    }
}

int os_file_allocate(struct env *e, struct env_file *f, uint64_t bytes)
{
    int failed;

    (void)e;
    if (bytes == 0) {
        return 0;
    }
    do {
        failed = posix_fallocate(f->fd, 0, (off_t)bytes);
    } while (failed == EINTR);
    if (failed == 0) {
        map_file(f, bytes);
    }
    return -failed;
}

int os_file_truncate(struct env *e, struct env_file *f, uint64_t bytes)
{
    (void)e;
    CHECK(f->map == NULL); /* a write past the new end would kill the process */
    return ftruncate(f->fd, (off_t)bytes) == 0 ? 0 : -errno;
}

void os_file_close(struct env *e, struct env_file *f)
{
    (void)e;
    if (f != NULL) {
        if (f->map != NULL) {
            (void)munmap(f->map, f->map_bytes);
        }
        close(f->fd);
        mem_free(f);
    }
}

int os_dir_sync(struct env *e, const char *path)
{
    int fd = open_retry(path, O_RDONLY | O_DIRECTORY);
    int answer = 0;

    (void)e;
    if (fd < 0) {
        return -errno;
    }
    if (fsync(fd) != 0) {
        answer = -errno;
    }
    close(fd);
    return answer;
}

/* Makes a change of names in path's folder durable. */
static int sync_folder_of(struct env *e, const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[FILE_PATH_MAX];
    size_t n;

    if (slash == NULL) {
        return os_dir_sync(e, ".");
    }
    n = size_max((size_t)(slash - path), 1); /* "/x" lives in "/" */
    if (n >= sizeof(folder)) {
        return -ENAMETOOLONG;
    }
    memcpy(folder, path, n);
    folder[n] = '\0';
    return os_dir_sync(e, folder);
}

int os_file_rename(struct env *e, const char *from, const char *to)
{
    if (rename(from, to) != 0) {
        return -errno;
    }
    return sync_folder_of(e, to);
}

int os_file_unlink(struct env *e, const char *path)
{
    (void)e;
    return unlink(path) == 0 ? 0 : -errno;
}

int os_dir_make(struct env *e, const char *path)
{
    struct stat st;

    if (mkdir(path, 0700) == 0) {
        /* Else a power cut may take the folder and all that is in it. */
        return sync_folder_of(e, path);
    }
    if (errno == EEXIST && stat(path, &st) == 0) {
        return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
    }
    return -errno;
}

struct names {
    char **v; /* owned, each owned */
    size_t n, cap;
};

static void names_free(struct names *names)
{
    for (size_t i = 0; i < names->n; i++) {
        mem_free(names->v[i]);
    }
    mem_free(names->v);
}

static int names_add(struct names *names, const char *name)
{
    size_t bytes = strlen(name) + 1;
    char *copy;

    if (names->n == names->cap) {
        size_t cap = size_max(2 * names->cap, 64);
        char **v = names->n < DIR_NAMES_MAX ? mem_resize(names->v, cap * sizeof(*v)) : NULL;

        if (v == NULL) {
            return -EOVERFLOW;
        }
        names->v = v;
        names->cap = cap;
    }
    copy = mem_try(1, bytes);
    if (copy == NULL) {
        return -ENOMEM;
    }
    memcpy(copy, name, bytes);
    names->v[names->n++] = copy;
    return 0;
}

static int name_cmp(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool entry_is_regular(int folder_fd, const struct dirent *d)
{
    struct stat st;

    if (d->d_type != DT_UNKNOWN) {
        return d->d_type == DT_REG;
    }
    return fstatat(folder_fd, d->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
}

static int names_read(struct names *names, DIR *folder)
{
    for (;;) {
        struct dirent *d;
        int failed;

        errno = 0;
        d = readdir(folder);
        if (d == NULL) {
            return -errno;
        }
        if (entry_is_regular(dirfd(folder), d)) {
            failed = names_add(names, d->d_name);
            if (failed != 0) {
                return failed;
            }
        }
    }
}

int os_dir_list(struct env *e, const char *path, void (*each)(void *ctx, const char *name),
                void *ctx)
{
    struct names names = {0};
    DIR *folder = opendir(path);
    int answer;

    (void)e;
    if (folder == NULL) {
        return -errno;
    }
    answer = names_read(&names, folder);
    closedir(folder);
    if (answer == 0) {
        if (names.n > 1) {
            qsort(names.v, names.n, sizeof(*names.v), name_cmp);
        }
        for (size_t i = 0; i < names.n; i++) {
            each(ctx, names.v[i]);
        }
    }
    names_free(&names);
    return answer;
}
