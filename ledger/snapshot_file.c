/* snapshot_file.c - a snapshot beside the journal, for a start without Postgres.
 *
 *   "TGSNAP03"  xxh3-64 of the rest  |  head  tenants  keys  models  workers  prices
 *
 * Little-endian, counts before arrays, strings as u32 length and bytes. Written to a second name,
 * synced, renamed. It holds HMACs of keys: 0600, as env makes files. */
#include "ledger/snapshot_impl.h"

#include <stdio.h>

#define FILE_MAGIC "TGSNAP03"
#define FILE_HEAD_BYTES 16
#define FILE_SEED 0x736e6170u
#define FILE_PATH_MAX 1024

/* ---- writing ---- */

static void put(struct buf *b, const void *p, size_t n)
{
    buf_append(b, p, n);
}

static void put_i64(struct buf *b, int64_t v)
{
    put(b, &v, sizeof(v));
}

static void put_i32(struct buf *b, int32_t v)
{
    put(b, &v, sizeof(v));
}

static void put_str(struct buf *b, struct str s)
{
    put_i32(b, (int32_t)s.n);
    put(b, s.p, s.n);
}

static void put_limits(struct buf *b, const struct quota_limits *l)
{
    put_i64(b, l->requests_per_min);
    put_i64(b, l->input_tokens_per_min);
    put_i64(b, l->output_tokens_per_min);
    put_i64(b, l->concurrent);
    put_i64(b, l->budget_month_pusd);
}

static void put_tenant(struct buf *b, const struct snap_tenant *t)
{
    put_i32(b, t->tenant_id);
    put_str(b, t->name);
    put_str(b, t->scope_salt);
    put_str(b, t->timezone);
    put_i32(b, t->disabled);
    put_limits(b, &t->limits);
    put_i64(b, t->spent_nusd);
    put_i64(b, t->suspense_nusd);
    put_i64(b, (int64_t)t->month_from_us);
    put_i64(b, (int64_t)t->month_until_us);
}

static void put_key(struct buf *b, const struct snap_key *k)
{
    put_i32(b, k->key_id);
    put_i32(b, k->tenant_id);
    put_i32(b, k->project_id);
    put_i32(b, k->user_id);
    put(b, k->hmac, SHA256_BYTES);
    put_i32(b, k->revoked);
    put_limits(b, &k->limits);
    put_i64(b, k->spent_nusd);
    put_i64(b, k->suspense_nusd);
    put_str(b, k->name);
    put_str(b, k->redacted);
}

static void put_worker(struct buf *b, const struct snap_worker *w)
{
    uint32_t i;

    put_i32(b, w->worker_id);
    put_str(b, w->url);
    put_i32(b, w->engine);
    put_i32(b, w->draining);
    put_i32(b, w->removed);
    put_i32(b, (int32_t)w->n_models);
    for (i = 0; i < w->n_models; i++) {
        put_i32(b, w->models[i]);
    }
}

static void put_price(struct buf *b, const struct price *p)
{
    put_i32(b, p->price_id);
    put_i32(b, p->model_id);
    put_i32(b, p->tier);
    put_i32(b, p->ctx_band);
    put_i64(b, p->in_pusd);
    put_i64(b, p->cached_pusd);
    put_i64(b, p->cw_5m_pusd);
    put_i64(b, p->cw_1h_pusd);
    put_i64(b, p->out_pusd);
    put_i64(b, p->reasoning_pusd);
    put_i64(b, p->list_in_pusd);
    put_i64(b, p->list_out_pusd);
    put_i64(b, (int64_t)p->valid_from_us);
}

static void put_all(struct buf *b, const struct snapshot *s)
{
    uint32_t i;

    put_i64(b, (int64_t)s->version);
    put_i64(b, (int64_t)s->made_wall_us);
    put_i32(b, s->spent_period);
    put_i32(b, s->spent_gateway);
    put_i32(b, s->spent_epoch);
    put_i64(b, s->spent_seq);
    put_i32(b, (int32_t)s->n_tenants);
    for (i = 0; i < s->n_tenants; i++) {
        put_tenant(b, &s->tenants[i]);
    }
    put_i32(b, (int32_t)s->n_keys);
    for (i = 0; i < s->n_keys; i++) {
        put_key(b, &s->keys[i]);
    }
    put_i32(b, (int32_t)s->n_models);
    for (i = 0; i < s->n_models; i++) {
        put_i32(b, s->models[i].model_id);
        put_str(b, s->models[i].name);
        put_i32(b, s->models[i].context);
        put_i32(b, s->models[i].output_max);
        put_i64(b, (int64_t)s->models[i].created_s);
    }
    put_i32(b, (int32_t)s->n_workers);
    for (i = 0; i < s->n_workers; i++) {
        put_worker(b, &s->workers[i]);
    }
    put_i32(b, (int32_t)s->n_prices);
    for (i = 0; i < s->n_prices; i++) {
        put_price(b, &s->prices[i]);
    }
}

static int file_write(struct env *env, const char *path, const struct buf *b)
{
    struct str all = buf_view(b);
    struct env_file *f;
    ssize_t n;
    int rc = env->ops->file_open(env, path, ENV_OPEN_TRUNCATE, &f);

    if (rc < 0) {
        return rc;
    }
    n = env->ops->file_pwrite(env, f, all.p, all.n, 0);
    rc = n == (ssize_t)all.n ? env->ops->file_sync(env, f) : n < 0 ? (int)n : -5 /* EIO */;
    env->ops->file_close(env, f);
    return rc;
}

bool snapshot_save(const struct snapshot *s, struct env *env, const char *path, struct err *e)
{
    char fresh[FILE_PATH_MAX];
    struct buf b;
    uint64_t sum = 0;
    int rc = -12; /* ENOMEM, when the buffer fails */

    if (snprintf(fresh, sizeof(fresh), "%s.new", path) >= (int)sizeof(fresh)) {
        return err_set(e, ERR_LIMIT, "the snapshot's path is too long: %s", path);
    }
    buf_init(&b, SNAPSHOT_BYTES_MAX);
    buf_c(&b, FILE_MAGIC);
    put(&b, &sum, sizeof(sum));
    put_all(&b, s);
    if (!b.failed) {
        sum = hash_xxh3(b.p + b.off + FILE_HEAD_BYTES, b.len - FILE_HEAD_BYTES, FILE_SEED);
        memcpy(b.p + b.off + 8, &sum, sizeof(sum));
        rc = file_write(env, fresh, &b);
    }
    buf_fini(&b);
    if (rc == 0) {
        rc = env->ops->file_rename(env, fresh, path);
    }
    return rc == 0 || err_errno(e, -rc, "cannot write the snapshot %s", path);
}

/* ---- reading: the checksum vouches for the bytes, the cursor never leaves them all the same ----
 */

struct cursor {
    const uint8_t *p;
    size_t left;
    bool bad;
    struct arena *arena;
};

static void take(struct cursor *c, void *out, size_t n)
{
    if (c->bad || c->left < n) {
        c->bad = true;
        memset(out, 0, n);
        return;
    }
    memcpy(out, c->p, n);
    c->p += n;
    c->left -= n;
}

static int64_t take_i64(struct cursor *c)
{
    int64_t v;

    take(c, &v, sizeof(v));
    return v;
}

static int32_t take_i32(struct cursor *c)
{
    int32_t v;

    take(c, &v, sizeof(v));
    return v;
}

static struct str take_str(struct cursor *c)
{
    int32_t n = take_i32(c);
    struct str s;

    if (c->bad || n < 0 || (size_t)n > c->left) {
        c->bad = true;
        return STR("");
    }
    s = arena_str(c->arena, str_of(c->p, (size_t)n));
    c->bad = s.p == NULL;
    c->p += n;
    c->left -= (size_t)n;
    return c->bad ? STR("") : s;
}

static struct quota_limits take_limits(struct cursor *c)
{
    struct quota_limits l;

    l.requests_per_min = take_i64(c);
    l.input_tokens_per_min = take_i64(c);
    l.output_tokens_per_min = take_i64(c);
    l.concurrent = take_i64(c);
    l.budget_month_pusd = take_i64(c);
    return l;
}

/* Each item is at least 8 bytes in the file, so a count beyond left / 8 is a lie. */
static void *take_array(struct cursor *c, size_t item_bytes, uint32_t *n)
{
    int32_t count = take_i32(c);
    void *p;

    *n = 0;
    if (c->bad || count < 0 || (size_t)count > c->left / 8) {
        c->bad = true;
        return NULL;
    }
    p = arena_array(c->arena, (size_t)count + 1, item_bytes);
    c->bad = p == NULL;
    *n = c->bad ? 0 : (uint32_t)count;
    return p;
}

static void take_tenant(struct cursor *c, struct snap_tenant *t)
{
    t->tenant_id = take_i32(c);
    t->name = take_str(c);
    t->scope_salt = take_str(c);
    t->timezone = take_str(c);
    t->disabled = take_i32(c) != 0;
    t->limits = take_limits(c);
    t->spent_nusd = take_i64(c);
    t->suspense_nusd = take_i64(c);
    t->month_from_us = (uint64_t)take_i64(c);
    t->month_until_us = (uint64_t)take_i64(c);
}

static void take_key(struct cursor *c, struct snap_key *k)
{
    k->key_id = take_i32(c);
    k->tenant_id = take_i32(c);
    k->project_id = take_i32(c);
    k->user_id = take_i32(c);
    take(c, k->hmac, SHA256_BYTES);
    k->revoked = take_i32(c) != 0;
    k->limits = take_limits(c);
    k->spent_nusd = take_i64(c);
    k->suspense_nusd = take_i64(c);
    k->name = take_str(c);
    k->redacted = take_str(c);
}

static void take_worker(struct cursor *c, struct snap_worker *w)
{
    int16_t *ids;
    int32_t n;
    int32_t i;

    w->worker_id = take_i32(c);
    w->url = take_str(c);
    w->engine = (int16_t)take_i32(c);
    w->draining = take_i32(c) != 0;
    w->removed = take_i32(c) != 0;
    n = take_i32(c);
    if (c->bad || n < 0 || (size_t)n > c->left / 4) {
        c->bad = true;
        return;
    }
    ids = arena_array(c->arena, (size_t)n + 1, sizeof(*ids));
    c->bad = ids == NULL;
    for (i = 0; !c->bad && i < n; i++) {
        ids[i] = (int16_t)take_i32(c);
    }
    w->models = ids;
    w->n_models = c->bad ? 0 : (uint32_t)n;
}

static void take_price(struct cursor *c, struct price *p)
{
    p->price_id = take_i32(c);
    p->model_id = (int16_t)take_i32(c);
    p->tier = (int16_t)take_i32(c);
    p->ctx_band = take_i32(c);
    p->in_pusd = take_i64(c);
    p->cached_pusd = take_i64(c);
    p->cw_5m_pusd = take_i64(c);
    p->cw_1h_pusd = take_i64(c);
    p->out_pusd = take_i64(c);
    p->reasoning_pusd = take_i64(c);
    p->list_in_pusd = take_i64(c);
    p->list_out_pusd = take_i64(c);
    p->valid_from_us = (uint64_t)take_i64(c);
}

static void take_all(struct cursor *c, struct snapshot *s)
{
    uint32_t i;

    s->version = (uint64_t)take_i64(c);
    s->made_wall_us = (uint64_t)take_i64(c);
    s->spent_period = take_i32(c);
    s->spent_gateway = take_i32(c);
    s->spent_epoch = take_i32(c);
    s->spent_seq = take_i64(c);
    s->tenants = take_array(c, sizeof(*s->tenants), &s->n_tenants);
    for (i = 0; i < s->n_tenants; i++) {
        take_tenant(c, &s->tenants[i]);
    }
    s->keys = take_array(c, sizeof(*s->keys), &s->n_keys);
    for (i = 0; i < s->n_keys; i++) {
        take_key(c, &s->keys[i]);
    }
    s->models = take_array(c, sizeof(*s->models), &s->n_models);
    for (i = 0; i < s->n_models; i++) {
        s->models[i].model_id = (int16_t)take_i32(c);
        s->models[i].name = take_str(c);
        s->models[i].context = take_i32(c);
        s->models[i].output_max = take_i32(c);
        s->models[i].created_s = (uint64_t)take_i64(c);
    }
    s->workers = take_array(c, sizeof(*s->workers), &s->n_workers);
    for (i = 0; i < s->n_workers; i++) {
        take_worker(c, &s->workers[i]);
    }
    s->prices = take_array(c, sizeof(*s->prices), &s->n_prices);
    for (i = 0; i < s->n_prices; i++) {
        take_price(c, &s->prices[i]);
    }
    c->bad = c->bad || c->left != 0;
}

static bool file_read(struct env *env, const char *path, struct buf *b, struct err *e)
{
    struct env_file *f;
    int64_t size;
    uint8_t *to;
    ssize_t n = -1;
    int rc = env->ops->file_open(env, path, ENV_OPEN_READ, &f);

    if (rc < 0) {
        return err_errno(e, -rc, "cannot open the snapshot %s", path);
    }
    size = env->ops->file_size(env, f);
    to = size > 0 ? buf_reserve(b, (size_t)size) : NULL;
    if (to != NULL) {
        n = env->ops->file_pread(env, f, to, (size_t)size, 0);
    }
    env->ops->file_close(env, f);
    if (n != size) {
        return err_set(e, ERR_IO, "cannot read the snapshot %s", path);
    }
    buf_commit(b, (size_t)size);
    return true;
}

struct snapshot *snapshot_load(struct env *env, const char *path, struct err *e)
{
    struct snapshot *s = NULL;
    struct buf b;
    struct str all;
    struct cursor c;
    uint64_t sum;

    buf_init(&b, SNAPSHOT_BYTES_MAX);
    if (!file_read(env, path, &b, e)) {
        goto out;
    }
    all = buf_view(&b);
    if (all.n < FILE_HEAD_BYTES || memcmp(all.p, FILE_MAGIC, 8) != 0) {
        (void)err_set(e, ERR_CORRUPT, "%s is no snapshot of this version", path);
        goto out;
    }
    memcpy(&sum, all.p + 8, sizeof(sum));
    if (sum != hash_xxh3(all.p + FILE_HEAD_BYTES, all.n - FILE_HEAD_BYTES, FILE_SEED)) {
        (void)err_set(e, ERR_CORRUPT, "the snapshot %s is damaged", path);
        goto out;
    }
    s = snapshot_new();
    c = (struct cursor){.p = (const uint8_t *)all.p + FILE_HEAD_BYTES,
                        .left = all.n - FILE_HEAD_BYTES,
                        .arena = &s->arena};
    take_all(&c, s);
    if (c.bad) {
        (void)err_set(e, ERR_CORRUPT, "the snapshot %s is damaged", path);
        snapshot_unref(s);
        s = NULL;
    }
out:
    buf_fini(&b);
    return s;
}
