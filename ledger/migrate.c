/* migrate.c - sql/NNNN_name.sql in order, once each, unchanged for ever. */
#include "ledger/migrate.h"

#include "base/hash.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define MIGRATIONS_MAX 1000
#define MIGRATION_BYTES_MAX (4u << 20)
#define MIGRATION_NAME_MAX 64
#define MIGRATE_LOCK "5512370" /* any number that nothing else in the database uses */

struct migrations {
    char names[MIGRATIONS_MAX][MIGRATION_NAME_MAX]; /* sorted */
    int n;
};

static bool is_migration(const char *name)
{
    size_t n = strlen(name);

    return n > 9 && n < MIGRATION_NAME_MAX && strspn(name, "0123456789") == 4 && name[4] == '_' &&
           strcmp(name + n - 4, ".sql") == 0;
}

static int name_cmp(const void *a, const void *b)
{
    return strcmp(a, b);
}

static bool migrations_find(struct migrations *m, const char *dir, struct err *e)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    int i;

    if (d == NULL) {
        return err_errno(e, errno, "cannot read the migrations in %s", dir);
    }
    while ((f = readdir(d)) != NULL) {
        if (!is_migration(f->d_name)) {
            continue;
        }
        if (m->n == MIGRATIONS_MAX) {
            closedir(d);
            return err_set(e, ERR_LIMIT, "%s holds more than %d migrations", dir, MIGRATIONS_MAX);
        }
        (void)str_copy(str_c(f->d_name), m->names[m->n++], MIGRATION_NAME_MAX);
    }
    closedir(d);
    if (m->n == 0) {
        return err_set(e, ERR_NOT_FOUND, "no NNNN_name.sql in %s", dir);
    }
    qsort(m->names, (size_t)m->n, MIGRATION_NAME_MAX, name_cmp);
    for (i = 1; i < m->n; i++) {
        if (strncmp(m->names[i - 1], m->names[i], 4) == 0) {
            return err_set(e, ERR_INPUT, "two migrations have one number: %s and %s",
                           m->names[i - 1], m->names[i]);
        }
    }
    return true;
}

static bool file_read(const char *dir, const char *name, struct buf *out, struct err *e)
{
    char path[4096];
    FILE *f;
    uint8_t *to;
    size_t n;

    if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path)) {
        return err_set(e, ERR_LIMIT, "the folder's name is too long: %s", dir);
    }
    f = fopen(path, "rbe");
    if (f == NULL) {
        return err_errno(e, errno, "cannot read %s", path);
    }
    to = buf_reserve(out, MIGRATION_BYTES_MAX);
    CHECK(to != NULL);
    n = fread(to, 1, MIGRATION_BYTES_MAX, f);
    fclose(f);
    if (n == MIGRATION_BYTES_MAX) {
        return err_set(e, ERR_LIMIT, "%s is larger than 4 MiB", path);
    }
    buf_commit(out, n);
    return true;
}

/* 1 there and equal, 0 not there, -1 a story. */
static int migration_present(struct pg *p, const char *name, struct str sum, struct err *e)
{
    const struct str params[] = {str_c(name)};
    struct pg_rows *r =
        pg_query(p, "SELECT sha256 FROM schema_migration WHERE name = $1", params, 1, e);
    int answer = 0;

    if (r == NULL) {
        return -1;
    }
    if (pg_row_count(r) > 0) {
        answer = 1;
        if (!str_eq(pg_value(r, 0, 0), sum)) {
            (void)err_set(e, ERR_CONFLICT,
                          "%s was applied with other content: a migration never changes; write a "
                          "new one",
                          name);
            answer = -1;
        }
    }
    pg_rows_free(r);
    return answer;
}

static bool migration_apply(struct pg *p, const char *name, struct str sql, struct str sum,
                            struct err *e)
{
    const struct str params[] = {str_c(name), sum};
    bool ok =
        pg_script(p, STR("BEGIN; SET LOCAL statement_timeout = 0"), e) && pg_script(p, sql, e) &&
        pg_exec(p, "INSERT INTO schema_migration (name, sha256) VALUES ($1, $2)", params, 2, e) &&
        pg_exec(p, "COMMIT", NULL, 0, e);

    if (!ok) {
        err_prefix(e, "%s", name);
        pg_rollback(p);
    }
    return ok;
}

static bool migration_one(struct pg *p, const char *dir, const char *name, struct buf *text,
                          struct migrate_report *out,
                          void (*each)(void *ctx, const char *name, bool applied), void *ctx,
                          struct err *e)
{
    uint8_t digest[SHA256_BYTES];
    char sum[2 * SHA256_BYTES + 1];
    int present;

    buf_reset(text);
    if (!file_read(dir, name, text, e)) {
        return false;
    }
    hash_sha256(buf_view(text).p, buf_view(text).n, digest);
    str_hex(digest, sizeof(digest), sum);
    present = migration_present(p, name, str_c(sum), e);
    if (present < 0) {
        return false;
    }
    if (each != NULL) {
        each(ctx, name, present == 0);
    }
    if (present == 0 && !migration_apply(p, name, buf_view(text), str_c(sum), e)) {
        return false;
    }
    out->present += present;
    out->applied += 1 - present;
    (void)str_copy(str_c(name), out->last, sizeof(out->last));
    return true;
}

bool migrate_run(struct pg *p, const char *dir, struct migrate_report *out,
                 void (*each)(void *ctx, const char *name, bool applied), void *ctx, struct err *e)
{
    struct migrations *m = mem_new(sizeof(*m));
    struct buf text;
    struct err ignored = {0};
    bool locked = false;
    bool ok;
    int i;

    *out = (struct migrate_report){0};
    buf_init(&text, MIGRATION_BYTES_MAX);
    ok = migrations_find(m, dir, e);
    if (ok) {
        ok = locked = pg_exec(p, "SELECT pg_advisory_lock(" MIGRATE_LOCK ")", NULL, 0, e);
    }
    ok = ok && pg_exec(p,
                       "CREATE TABLE IF NOT EXISTS public.schema_migration (name text PRIMARY KEY, "
                       "sha256 text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())",
                       NULL, 0, e);
    for (i = 0; ok && i < m->n; i++) {
        ok = migration_one(p, dir, m->names[i], &text, out, each, ctx, e);
    }
    if (locked && !pg_exec(p, "SELECT pg_advisory_unlock(" MIGRATE_LOCK ")", NULL, 0, &ignored)) {
        /* The lock goes with the connection. */
    }
    buf_fini(&text);
    mem_free(m);
    return ok;
}

/* Yesterday too: a request admitted before midnight may be the first to ship after it. */
bool migrate_partitions(struct pg *p, int days, struct err *e)
{
    char text[16];
    struct str params[1];

    (void)snprintf(text, sizeof(text), "%d", days);
    params[0] = str_c(text);
    return pg_exec(p,
                   "SELECT public.tollgate_make_partitions((now() AT TIME ZONE 'UTC')::date - 1, "
                   "(now() AT TIME ZONE 'UTC')::date + $1::int)",
                   params, 1, e);
}
