/* ship.c - follows the journal and hands its rows, in order, to a store.
 *
 * One epoch at a time, the oldest first, so that a cursor of an epoch says that all before it are
 * in. A batch is rows last_seq+1 .. last_seq+n of one epoch. Whatever goes wrong with a commit, the
 * cursor is read again before anything is sent again: it says whether the batch is in.
 *
 * One thread steps; stats are atomics. */
#include "ledger/ship_impl.h"

#include <stdatomic.h>

/* Idle: a look at an atomic of the journal. Rows are in Postgres within 250 ms of their CLOSE, and
 * a longer pause makes larger transactions. */
#define SHIP_POLL_US 100000 /* a transaction costs some 250 us beside its rows */
#define SHIP_OFFLINE_POLL_US 200000
#define SHIP_BACKOFF_MIN_US 100000
#define SHIP_BACKOFF_MAX_US 2000000
#define SHIP_READ_MAX 50000 /* records a step: PROGRESS and the like among few rows */
/* Younger rows are in a partition that nobody has exported and dropped yet. */
#define SHIP_DOUBT_US (7u * 86400u * 1000000ull)

struct ship {
    struct env *env;
    struct log *log;
    struct journal *j; /* NULL: offline */
    char dir[1024];
    int32_t gateway_id;
    struct ship_store store;
    struct ship_pg *pg; /* owned; NULL with a foreign store */
    struct journal_reader *reader;

    struct entry *rows; /* [SHIP_ROWS_MAX] of `epoch`, last_seq+1 .. last_seq+n */
    size_t n;
    int32_t epoch; /* 0: none read yet */
    int64_t last_seq;
    bool cursor_known;
    bool doubt;        /* the next row that the cursor leaves out may not be the store's */
    struct entry next; /* a row that was read and not taken yet, when has_next */
    bool has_next;
    int32_t seen_epoch; /* of the last record read: rows of older ones are all read */
    uint64_t seen_lsn;
    uint64_t backoff_us;
    enum err_code down_code; /* the failure that was told last; ERR_NONE: it works */
    bool corrupt_said;

    atomic_bool caught_up, up;
    _Atomic uint64_t rows_done, transactions, failures, last_ok_us;
    _Atomic uint64_t sent_seq; /* rows of the journal's own epoch that are in Postgres */
    _Atomic uint64_t older;    /* rows of older epochs at hand */
};

struct ship *ship_new(struct env *env, struct log *log, struct journal *j,
                      const struct ship_options *o, const struct ship_store *store)
{
    struct ship *s = mem_new(sizeof(*s));

    s->env = env;
    s->log = log;
    s->j = j;
    (void)str_copy(str_c(o->dir), s->dir, sizeof(s->dir));
    s->gateway_id = o->gateway_id;
    s->rows = mem_new(SHIP_ROWS_MAX * sizeof(*s->rows));
    s->backoff_us = SHIP_BACKOFF_MIN_US;
    if (store != NULL) {
        s->store = *store;
    } else {
        s->pg = ship_pg_new(o->conninfo, log, env);
        s->store = ship_pg_store(s->pg);
    }
    return s;
}

void ship_free(struct ship *s)
{
    if (s == NULL) {
        return;
    }
    journal_reader_close(s->reader);
    ship_pg_free(s->pg);
    mem_free(s->rows);
    mem_free(s);
}

/* Reading begins anew at an epoch's first record: the cursor is not where we thought. */
static void position_reset(struct ship *s, int32_t epoch)
{
    journal_reader_seek(s->reader, epoch, 0);
    s->n = 0;
    s->has_next = false;
    s->epoch = 0;
    s->seen_epoch = 0; /* what was read before says nothing about what is in */
    s->cursor_known = false;
}

/* What ship_stats counts from, at any moment and on any thread. Rows of older epochs are on top of
 * this one's, and are sent first. */
static void behind_update(struct ship *s)
{
    bool own = s->j != NULL && s->epoch == journal_epoch(s->j);

    atomic_store(&s->sent_seq, own ? (uint64_t)s->last_seq : 0);
    atomic_store(&s->older, own ? 0 : s->n);
}

/* Counted against what is durable now: a row is behind from its sync on, not from the next step. */
static uint64_t behind(const struct ship *s)
{
    struct journal_stats js = {0};
    uint64_t sent = atomic_load(&s->sent_seq);

    if (s->j == NULL) {
        return 0;
    }
    journal_stats(s->j, &js);
    return js.rows - u64_min(js.rows, sent) + atomic_load(&s->older);
}

static uint64_t failed(struct ship *s, const struct err *e)
{
    uint64_t wait = s->backoff_us;

    s->backoff_us = u64_min(s->backoff_us * 2, SHIP_BACKOFF_MAX_US);
    s->cursor_known = false;
    atomic_fetch_add(&s->failures, 1);
    atomic_store(&s->up, false);
    atomic_store(&s->caught_up, false);
    behind_update(s);
    if (s->down_code != e->code) { /* another kind of failure is news too */
        s->down_code = e->code;
        log_event(s->log, LOG_WARN, env_wall_us(s->env), "ship_failed",
                  "rows wait in the journal: %s", e->text);
    }
    return wait;
}

static void succeeded(struct ship *s)
{
    s->backoff_us = SHIP_BACKOFF_MIN_US;
    atomic_store(&s->up, true);
    atomic_store(&s->last_ok_us, env_now_us(s->env));
    if (s->down_code != ERR_NONE) {
        s->down_code = ERR_NONE;
        log_event(s->log, LOG_INFO, env_wall_us(s->env), "ship_resumed", "rows go to Postgres");
    }
}

static bool reader_open(struct ship *s, struct err *e)
{
    if (s->reader == NULL) {
        s->reader = journal_reader_open(s->env, s->dir, e);
        if (s->reader != NULL) {
            position_reset(s, 0);
        }
    }
    if (s->reader == NULL) {
        return false;
    }
    if (s->j != NULL) {
        journal_reader_bound(s->reader, journal_epoch(s->j), journal_durable_lsn(s->j));
    }
    return true;
}

/* Of a row that the cursor leaves out. Two processes with one gateway id may have the same epoch;
 * the other's cursor must not swallow our rows. */
static bool row_is_in(struct ship *s, const struct entry *row, struct err *e)
{
    bool in = true;

    if (s->store.has == NULL || s->j == NULL ||
        row->occurred_us + SHIP_DOUBT_US < env_wall_us(s->env)) {
        return true;
    }
    return s->store.has(s->store.ctx, row, &in, e) &&
           (in || err_set(e, ERR_CONFLICT,
                          "row %lld of gateway %d, epoch %d counts as shipped and is not in "
                          "Postgres: another process uses this gateway id",
                          (long long)row->gw_seq, s->gateway_id, row->gw_epoch));
}

/* Where the store stands in the batch's epoch. Rows that are in already leave the batch. */
static bool cursor_read(struct ship *s, struct err *e)
{
    int64_t at = 0;
    size_t in;

    if (s->cursor_known || s->epoch == 0) {
        return true;
    }
    if (!s->store.cursor(s->store.ctx, s->gateway_id, s->epoch, &at, e)) {
        return false;
    }
    if (at < s->last_seq) {
        /* Postgres went back (a restored backup): everything the journal still has goes again. */
        log_event(s->log, LOG_WARN, env_wall_us(s->env), "ship_cursor_back",
                  "epoch %d: Postgres has %lld rows, %lld were sent; sending them again", s->epoch,
                  (long long)at, (long long)s->last_seq);
        position_reset(s, 0);
        s->last_seq = 0;
        return true;
    }
    in = (size_t)u64_min((uint64_t)(at - s->last_seq), s->n);
    if (in > 0 && !row_is_in(s, &s->rows[in - 1], e)) {
        return false;
    }
    s->doubt = in == 0;
    memmove(s->rows, s->rows + in, (s->n - in) * sizeof(*s->rows));
    s->n -= in;
    s->last_seq = at;
    s->cursor_known = true;
    return true;
}

enum fill { FILL_MORE = 1, FILL_BATCH, FILL_END, FILL_FAILED };

/* An epoch begins in an empty batch. */
static void epoch_begin(struct ship *s, int32_t epoch)
{
    CHECK(s->n == 0);
    s->epoch = epoch;
    s->last_seq = 0;
    s->cursor_known = false;
}

static enum fill row_take(struct ship *s, const struct entry *row, struct err *e)
{
    if (s->epoch != row->gw_epoch) {
        if (s->n > 0) {
            s->next = *row;
            s->has_next = true;
            return FILL_BATCH;
        }
        epoch_begin(s, row->gw_epoch);
        if (!cursor_read(s, e)) {
            s->next = *row;
            s->has_next = true;
            s->epoch = 0;
            return FILL_FAILED;
        }
    }
    if (row->gw_seq <= s->last_seq) {
        if (s->doubt && !row_is_in(s, row, e)) {
            s->next = *row;
            s->has_next = true;
            return FILL_FAILED;
        }
        s->doubt = false;
        return FILL_MORE;
    }
    if (row->gw_seq != s->last_seq + (int64_t)s->n + 1) {
        (void)err_set(e, ERR_CORRUPT, "epoch %d: row %lld follows row %lld in the journal %s",
                      row->gw_epoch, (long long)row->gw_seq,
                      (long long)(s->last_seq + (int64_t)s->n), s->dir);
        position_reset(s, row->gw_epoch);
        return FILL_FAILED;
    }
    s->rows[s->n++] = *row;
    return s->n == SHIP_ROWS_MAX ? FILL_BATCH : FILL_MORE;
}

static enum fill batch_fill(struct ship *s, struct err *e)
{
    struct record_stored rec;
    enum fill f = FILL_MORE;
    int i;

    if (s->has_next) {
        s->has_next = false;
        f = row_take(s, &s->next, e);
    }
    for (i = 0; f == FILL_MORE && i < SHIP_READ_MAX; i++) {
        switch (journal_read(s->reader, &rec, e)) {
        case JOURNAL_READ_END:
            return FILL_END;
        case JOURNAL_READ_TORN:
            continue;
        case JOURNAL_READ_CORRUPT:
            return FILL_FAILED;
        case JOURNAL_READ_RECORD:
            break;
        }
        s->seen_epoch = rec.epoch;
        s->seen_lsn = rec.lsn;
        if (rec.r.type == RECORD_CLOSE) {
            f = row_take(s, &rec.r.close, e);
        }
    }
    return f;
}

static bool batch_commit(struct ship *s, struct err *e)
{
    if (s->n == 0) {
        return true;
    }
    if (!s->cursor_known && !cursor_read(s, e)) {
        return false;
    }
    if (s->n == 0) {
        return true;
    }
    if (!s->store.commit(s->store.ctx, s->gateway_id, s->epoch, s->last_seq, s->rows, s->n, e)) {
        return false;
    }
    s->last_seq += (int64_t)s->n;
    atomic_fetch_add(&s->rows_done, s->n);
    atomic_fetch_add(&s->transactions, 1);
    s->n = 0;
    succeeded(s);
    return true;
}

/* Nothing to send yet, and nobody knows whether it could be sent. */
static bool store_probe(struct ship *s, struct err *e)
{
    int64_t at;

    if (s->j == NULL) {
        return true;
    }
    if (!s->store.cursor(s->store.ctx, s->gateway_id, journal_epoch(s->j), &at, e)) {
        return false;
    }
    succeeded(s);
    return true;
}

/* Segments that end below what is in go away, also while no rows come. */
static void trim(struct ship *s)
{
    if (s->j == NULL || s->n > 0 || s->has_next) {
        return;
    }
    /* All rows of epochs below the last record read are in: the batch is empty. */
    if (s->epoch != 0 && s->seen_epoch == s->epoch) {
        journal_trim(s->j, s->env, s->epoch, s->last_seq);
    } else if (s->seen_epoch != 0) {
        journal_trim(s->j, s->env, s->seen_epoch, 0);
    }
}

uint64_t ship_step(struct ship *s, struct env *env)
{
    struct err e = {0};
    enum fill f;

    (void)env;
    if (!reader_open(s, &e) || !cursor_read(s, &e)) {
        return failed(s, &e);
    }
    f = s->n == SHIP_ROWS_MAX ? FILL_BATCH : batch_fill(s, &e);
    if (f == FILL_FAILED && e.code == ERR_CORRUPT && !s->corrupt_said) {
        s->corrupt_said = true;
        log_event(s->log, LOG_ERROR, env_wall_us(s->env), "ship_corrupt", "%s", e.text);
    }
    if (f == FILL_FAILED && s->n == 0) {
        return failed(s, &e);
    }
    /* What came before damage is good: it goes. */
    err_clear(&e);
    if (!batch_commit(s, &e)) {
        return failed(s, &e);
    }
    if (f == FILL_END && !atomic_load(&s->up) && !store_probe(s, &e)) {
        return failed(s, &e);
    }
    trim(s);
    behind_update(s);
    atomic_store(&s->caught_up, f == FILL_END);
    if (f != FILL_END) {
        return 0;
    }
    return s->j != NULL ? SHIP_POLL_US : SHIP_OFFLINE_POLL_US;
}

bool ship_is_caught_up(const struct ship *s)
{
    return atomic_load(&s->caught_up);
}

void ship_stats(const struct ship *s, struct ship_stats *out)
{
    *out = (struct ship_stats){
        .rows = atomic_load(&s->rows_done),
        .transactions = atomic_load(&s->transactions),
        .failures = atomic_load(&s->failures),
        .behind_rows = behind(s),
        .last_ok_us = atomic_load(&s->last_ok_us),
        .up = atomic_load(&s->up),
    };
}
