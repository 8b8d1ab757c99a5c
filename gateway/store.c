/* store.c - jobs for Postgres, its connection, and where snapshots come from. */
#include "gateway/store.h"

#include "ledger/migrate.h"

#define STORE_SHARED_US                                                                            \
    15000000                  /* a connection of a vanished host ends within 11 s (ship_claim)     \
                               */
#define STORE_LOOK_US 100000  /* NOTIFY is looked for this often */
#define STORE_POLL_US 1000000 /* and the version is polled, should a NOTIFY be lost */
/* The file follows the cursor, so that the journal can be trimmed: the month is summed anew. */
#define STORE_SAVE_US 60000000
#define STORE_BACKOFF_MIN_US 250000
#define STORE_BACKOFF_MAX_US 2000000
#define STORE_PARTITIONS_US 3600000000ULL
#define STORE_PARTITIONS_RETRY_US 60000000
#define STORE_PARTITION_DAYS 8 /* made ahead; no DEFAULT partition exists */

/* One writer, one reader. Never full: at most STORE_JOBS_MAX jobs are anywhere. */
struct job_ring {
    struct store_job *slot[STORE_JOBS_MAX];
    _Atomic uint32_t head, tail; /* written, read; both only grow */
};

struct store {
    struct gateway *gw;
    char path[512]; /* of the snapshot file */
    struct job_ring asked, ended;
    _Atomic(struct snapshot *) fresh; /* for the control loop; one reference */
    atomic_bool up;
    /* control */
    struct env *control;
    struct env_wake *control_wake;
    void (*on_fresh)(void *ctx, struct snapshot *s);
    void *ctx;
    uint32_t n_jobs;
    struct env *own; /* the stepping thread's, with its doorbell; NULL: none */
    struct env_wake *own_wake;
    /* store */
    struct env *env;        /* of the step under way */
    struct pg *pg;          /* owned; NULL while down */
    struct snapshot *known; /* the newest; one reference */
    int32_t newest_epoch;
    bool from_file; /* known is the file's: Postgres is read whole as soon as it answers */
    bool said_down, said_shared;
    bool held;                /* its lock is this connection's */
    uint64_t unheld_since_us; /* 0: held, or never asked */
    bool started;             /* the gateway id is ours: a new connection takes its lock again */
    bool pinged;              /* in this step */
    uint64_t retry_us, backoff_us, look_us, poll_us, save_us, partitions_us;
};

static void ring_put(struct job_ring *r, struct store_job *j)
{
    uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed);

    CHECK(head - atomic_load_explicit(&r->tail, memory_order_acquire) < STORE_JOBS_MAX);
    r->slot[head % STORE_JOBS_MAX] = j;
    atomic_store_explicit(&r->head, head + 1, memory_order_release);
}

/* The next job below `until`, a head that was read; NULL: none. */
static struct store_job *ring_take(struct job_ring *r, uint32_t until)
{
    uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    struct store_job *j;

    if (tail == until) {
        return NULL;
    }
    j = r->slot[tail % STORE_JOBS_MAX];
    atomic_store_explicit(&r->tail, tail + 1, memory_order_release);
    return j;
}

static uint32_t ring_head(struct job_ring *r)
{
    return atomic_load_explicit(&r->head, memory_order_acquire);
}

/* ---- control ---- */

static void take_fresh(struct store *s)
{
    struct snapshot *fresh = atomic_exchange(&s->fresh, NULL);

    if (fresh != NULL) {
        s->on_fresh(s->ctx, fresh);
    }
}

/* The head is read first: a job's own snapshot was there before it, and is taken before its end is
 * told. */
static void rung(void *ctx)
{
    struct store *s = ctx;
    uint32_t until = ring_head(&s->ended);
    struct store_job *j;

    take_fresh(s);
    while ((j = ring_take(&s->ended, until)) != NULL) {
        s->n_jobs--;
        j->done(j);
    }
}

struct store *store_new(struct gateway *gw, struct env *control, const char *snapshot_path,
                        void (*fresh)(void *ctx, struct snapshot *s), void *ctx)
{
    struct store *s = mem_new(sizeof(*s));

    s->gw = gw;
    (void)str_copy(str_c(snapshot_path), s->path, sizeof(s->path));
    s->control = control;
    s->on_fresh = fresh;
    s->ctx = ctx;
    s->control_wake = control->ops->wake_new(control, rung, s);
    CHECK(s->control_wake != NULL);
    return s;
}

void store_free(struct store *s)
{
    struct store_job *j;
    struct snapshot *fresh;

    if (s == NULL) {
        return;
    }
    while ((j = ring_take(&s->asked, ring_head(&s->asked))) != NULL) {
        err_set(&j->e, ERR_UNAVAILABLE, "the gateway is stopping: nothing was done");
        ring_put(&s->ended, j);
    }
    fresh = atomic_exchange(&s->fresh, NULL);
    snapshot_unref(fresh); /* nobody serves with it any more */
    rung(s);
    s->control->ops->wake_free(s->control, s->control_wake);
    pg_close(s->pg);
    snapshot_unref(s->known);
    mem_free(s);
}

void store_set_doorbell(struct store *s, struct env *own, struct env_wake *w)
{
    s->own = own;
    s->own_wake = w;
}

bool store_put(struct store *s, struct store_job *j, struct err *e)
{
    if (s->n_jobs == STORE_JOBS_MAX) {
        return err_set(e, ERR_UNAVAILABLE,
                       "%d calls wait for Postgres already: nothing was done, try again later",
                       STORE_JOBS_MAX);
    }
    s->n_jobs++;
    j->e = (struct err){.code = ERR_NONE};
    atomic_store(&j->state, STORE_JOB_WAITING);
    ring_put(&s->asked, j);
    if (s->own_wake != NULL) {
        env_wake_signal(s->own, s->own_wake);
    }
    return true;
}

bool store_withdraw(struct store_job *j)
{
    int waiting = STORE_JOB_WAITING;

    return atomic_compare_exchange_strong(&j->state, &waiting, STORE_JOB_WITHDRAWN);
}

bool store_is_up(const struct store *s)
{
    return atomic_load(&s->up);
}

/* ---- store: the connection ---- */

static void say(struct store *s, enum log_level level, const char *event, const char *text)
{
    log_event(s->gw->log, level, env_wall_us(s->env), event, "%s", text);
}

static void lost(struct store *s, const struct err *e)
{
    pg_close(s->pg);
    s->pg = NULL;
    atomic_store(&s->up, false);
    if (!s->said_down) {
        say(s, LOG_WARN, "postgres_down", e->text);
        s->said_down = true;
    }
    s->backoff_us = s->backoff_us == 0 ? STORE_BACKOFF_MIN_US
                                       : u64_min(s->backoff_us * 2, STORE_BACKOFF_MAX_US);
    s->retry_us = env_now_us(s->env) + s->backoff_us;
}

/* Started without Postgres, or while the connection was away another process may have come. What
 * runs is not stopped for it: the shipper books no row over another one's. The lock may also be
 * with our last connection still, whose end the server has not seen: it is asked for again at each
 * look, and the other process told of only when that can't be the reason any more. */
static bool hold(struct store *s, struct err *e)
{
    uint64_t now = env_now_us(s->env);

    if (!s->started) {
        return true; /* store_journal_opened claims, and waits for it */
    }
    if (!ship_hold(s->pg, (int32_t)s->gw->config.gateway_id, &s->held, e)) {
        return false;
    }
    if (s->held) {
        s->said_shared = false;
        s->unheld_since_us = 0;
        return true;
    }
    if (s->unheld_since_us == 0) {
        s->unheld_since_us = now;
    }
    if (now - s->unheld_since_us >= STORE_SHARED_US && !s->said_shared) {
        s->said_shared = true;
        say(s, LOG_ERROR, "gateway_id_shared",
            "another gateway runs with this gateway_id: budgets and rows of both are at risk. Give "
            "each gateway a gateway_id and a journal.dir of its own");
    }
    return true;
}

static bool connect(struct store *s, struct err *e)
{
    if (s->gw->config.pg_conninfo.n == 0) {
        return err_set(e, ERR_UNAVAILABLE, "postgres.conninfo is not set");
    }
    s->held = false;
    s->pg = pg_open(s->gw->config.pg_conninfo, "tollgate-control", e);
    return s->pg != NULL && pg_exec(s->pg, "LISTEN tollgate_config", NULL, 0, e) && hold(s, e);
}

struct pg *store_pg(struct store *s, struct err *e)
{
    struct err broken = {.code = ERR_NONE};

    if (s->pg != NULL && (pg_is_broken(s->pg) || (!s->pinged && !pg_ping(s->pg, &broken)))) {
        pg_close(s->pg);
        s->pg = NULL;
    }
    if (s->pg == NULL && !connect(s, e)) {
        lost(s, e);
        return NULL;
    }
    s->pinged = true;
    if (s->said_down) {
        say(s, LOG_INFO, "postgres_up", "Postgres answers again");
    }
    s->said_down = false;
    s->backoff_us = 0;
    atomic_store(&s->up, true);
    return s->pg;
}

struct env *store_env(const struct store *s)
{
    return s->env;
}

/* ---- store: snapshots ---- */

static bool save(struct store *s, struct err *e)
{
    if (!snapshot_save(s->known, s->env, s->path, e)) {
        return false;
    }
    journal_keep_after(s->gw->journal, s->known->spent_epoch, s->known->spent_seq);
    return true;
}

/* whole: with every tenant's spent and today's watermark. */
static struct snapshot *load(struct store *s, bool whole, struct err *e)
{
    struct snapshot *made = snapshot_from_pg(s->pg, (int32_t)s->gw->config.gateway_id,
                                             env_wall_us(s->env), whole ? NULL : s->known, e);

    if (made != NULL) {
        snapshot_unref(s->known);
        s->known = made;
        s->from_file = false;
    }
    if (made != NULL && whole) {
        s->save_us = env_now_us(s->env) + STORE_SAVE_US;
    }
    return made;
}

static bool renew(struct store *s, bool whole, struct err *e)
{
    struct err file = {.code = ERR_NONE};

    if (load(s, whole || s->from_file, e) == NULL) {
        return false;
    }
    if (!save(s, &file)) {
        say(s, LOG_WARN, "snapshot_not_saved", file.text);
    }
    snapshot_unref(atomic_exchange(&s->fresh, snapshot_ref(s->known)));
    env_wake_signal(s->control, s->control_wake);
    return true;
}

static void make_partitions(struct store *s)
{
    struct err e = {.code = ERR_NONE};
    uint64_t now = env_now_us(s->env);

    if (now < s->partitions_us) {
        return;
    }
    s->partitions_us = now + STORE_PARTITIONS_US;
    if (!migrate_partitions(s->pg, STORE_PARTITION_DAYS, &e)) {
        s->partitions_us = now + STORE_PARTITIONS_RETRY_US;
        say(s, LOG_ERROR, "partitions_not_made", e.text);
    }
}

static bool follow(struct store *s, struct err *e)
{
    uint64_t version;

    if (s->from_file || env_now_us(s->env) >= s->save_us) {
        return renew(s, true, e);
    }
    version = snapshot_pg_version(s->pg, e);
    if (version == 0) {
        return err_set(e, ERR_CORRUPT, "config_version has no row: is the database migrated?");
    }
    return version == s->known->version || renew(s, false, e);
}

static void look(struct store *s)
{
    struct err e = {.code = ERR_NONE};
    uint64_t now = env_now_us(s->env);
    bool told = s->pg != NULL && pg_notified(s->pg);

    if (now < s->retry_us || (!told && s->pg != NULL && !pg_is_broken(s->pg) && now < s->poll_us)) {
        return;
    }
    s->poll_us = now + STORE_POLL_US;
    if (store_pg(s, &e) == NULL) {
        return;
    }
    make_partitions(s);
    if ((!s->held && !hold(s, &e)) || !follow(s, &e)) {
        lost(s, &e);
    }
}

/* ---- store: start ---- */

struct snapshot *store_first(struct store *s, struct env *env, struct err *e)
{
    struct err file = {.code = ERR_NONE};

    s->env = env;
    if (store_pg(s, e) != NULL &&
        ship_newest_epoch(s->pg, (int32_t)s->gw->config.gateway_id, &s->newest_epoch, e) &&
        load(s, true, e) != NULL) {
        s->pinged = false;
        return snapshot_ref(s->known);
    }
    s->known = snapshot_load(env, s->path, &file);
    if (s->known == NULL) { /* absent, damaged and unreadable ask for different things to be done */
        err_prefix(e, "no configuration: Postgres does not give one, and %s", file.text);
        return NULL;
    }
    if (s->pg != NULL) { /* it answered, with something else than a configuration */
        lost(s, e);
    }
    err_clear(e); /* told, and no failure: a later one must not hide behind it */
    log_event(s->gw->log, LOG_WARN, env_wall_us(env), "started_from_snapshot",
              "Postgres is away: starting from the snapshot file %s, version %llu. Rows wait in "
              "the journal.",
              s->path, (unsigned long long)s->known->version);
    s->from_file = true;
    s->pinged = false;
    return snapshot_ref(s->known);
}

int32_t store_epoch_min(const struct store *s)
{
    int32_t shipped = s->known->spent_epoch;

    return (s->newest_epoch > shipped ? s->newest_epoch : shipped) + 1;
}

bool store_journal_opened(struct store *s, struct env *env, struct err *e)
{
    struct err claim = {.code = ERR_NONE};

    s->env = env;
    s->started = true;
    if (s->from_file) {
        journal_keep_after(s->gw->journal, s->known->spent_epoch, s->known->spent_seq);
        return true;
    }
    if (!ship_claim(s->pg, (int32_t)s->gw->config.gateway_id, journal_epoch(s->gw->journal),
                    &claim)) {
        if (claim.code == ERR_CONFLICT) {
            *e = claim;
            return false;
        }
        lost(s, &claim); /* it went away meanwhile: the shipper claims */
    } else {
        s->held = true;
    }
    return save(s, e);
}

/* ---- store: the step ---- */

static void job_run(struct store *s, struct store_job *j)
{
    struct err reload = {.code = ERR_NONE};
    int waiting = STORE_JOB_WAITING;

    if (atomic_compare_exchange_strong(&j->state, &waiting, STORE_JOB_RUNNING) && j->run(j, s) &&
        store_pg(s, &reload) != NULL && !renew(s, false, &reload)) {
        say(s, LOG_WARN, "reload_failed", reload.text);
    }
    if (s->pg != NULL && pg_is_broken(s->pg)) {
        lost(s, j->e.code != ERR_NONE ? &j->e : &reload);
    }
    ring_put(&s->ended, j);
    env_wake_signal(s->control, s->control_wake);
}

uint64_t store_step(struct store *s, struct env *env)
{
    struct store_job *j = ring_take(&s->asked, ring_head(&s->asked));
    uint64_t now = env_now_us(env);

    s->env = env;
    s->pinged = false;
    if (j != NULL) {
        job_run(s, j);
        return 0;
    }
    if (now >= s->look_us) {
        s->look_us = now + STORE_LOOK_US;
        look(s);
    }
    return STORE_LOOK_US;
}
