/* journal.h - what happened, on disk before the client hears the end of it.
 *
 * Append-only segments of fixed records (JOURNAL_RECORD_BYTES, checksummed XXH3-64, versioned,
 * spare bytes, dense `lsn`), one folder a gateway; a file name holds epoch and first lsn. An epoch
 * is one life of a gateway process. CLOSE records that become rows take a dense gw_seq.
 *   OPEN        at admission, not waited for       DISPATCH  one an attempt, before it is sent
 *   PROGRESS    every 256 tokens or 1 s            CLOSE     the whole row; waited for
 *   VOID        no worker saw it, or no other      CHECKPOINT  spent and held by scope and period
 *               attempt of it comes
 * Loops put records into their own ring (a port); the journal step drains all ports, writes, one
 * fdatasync for the group, then publishes how far each port is durable and rings its doorbell.
 * Segments are preallocated; one spare is always ahead. When no spare can be made (disk full),
 * journal_admits() turns false: admission stops while running streams finish in the reserve.
 * A failed fdatasync is fatal: the step says so and the process must stop (never retry).
 * The step is a function over env: a thread calls it, or the simulator. */
#ifndef LEDGER_JOURNAL_H
#define LEDGER_JOURNAL_H

#include "base/env.h"
#include "base/log.h"
#include "ledger/entry.h"

#define JOURNAL_RECORD_BYTES 384
#define JOURNAL_SEGMENT_BYTES_DEFAULT (16u << 20)
#define JOURNAL_PORT_RECORDS 8192 /* a loop's ring; full means admission waits: 429 */
#define JOURNAL_PORTS_MAX 20      /* 16 loops, control, spare */

enum record_type {
    RECORD_OPEN = 1,
    RECORD_DISPATCH,
    RECORD_PROGRESS,
    RECORD_CLOSE,
    RECORD_VOID,
    RECORD_CHECKPOINT
};

/* What a producer fills in; the journal adds lsn, epoch, gw_seq and checksum. */
struct record {
    enum record_type type;
    union {
        struct { /* also what recovery needs to make a row without a CLOSE */
            struct uuid request;
            uint64_t occurred_us;
            int32_t tenant_id, project_id, key_id, user_id, tagset_id, price_id;
            int16_t endpoint, model_id, tier_requested, tier_served;
            int64_t hold_nusd;
            int32_t prompt_bound, output_bound;
        } open;
        struct {
            struct uuid request, event;
            uint64_t at_us;
            int16_t attempt, route_reason;
            int32_t worker_id;
            uint64_t worker_epoch; /* as last seen; 0 unknown */
            int32_t cached_predicted;
            struct str worker_url; /* at most 127 bytes; recovery asks there */
        } dispatch;
        struct {
            struct uuid event;
            uint64_t at_us;
            int32_t prompt, cached, output;
            int32_t output_held; /* what the hold covers by now: OPEN's bound and all extends */
        } progress;
        struct entry close;
        struct {
            struct uuid request;
            struct uuid
                event; /* an attempt that never reached its worker; zero: the whole request */
        } voided;
        struct {                          /* one scope and period */
            int32_t scope_kind, scope_id; /* 1 tenant, 2 project, 3 key */
            int32_t period;               /* YYYYMM */
            int64_t spent_nusd, held_nusd;
        } checkpoint;
    };
};

/* A record as stored: decoded views for recovery, shipping and tollctl. */
struct record_stored {
    uint64_t lsn;
    int32_t epoch;
    char url[128];   /* backs dispatch.worker_url */
    struct record r; /* CLOSE: gw_seq and gw_epoch filled */
};

struct journal;
struct journal_port;

struct journal_options {
    const char *dir; /* made when absent, 0700 */
    int32_t gateway_id;
    uint64_t segment_bytes; /* 0: default */
};

/* Opens the folder, takes a lock file, starts a new epoch (highest found + 1; at least epoch_min,
 * which Postgres' cursor may demand after a lost disk). NULL with a story. */
struct journal *journal_open(struct env *env, struct log *log, const struct journal_options *o,
                             int32_t epoch_min, struct err *e);
void journal_close(
    struct journal *j); /* drains, syncs; before the producers' envs go; NULL is fine */
int32_t journal_epoch(const struct journal *j);

/* rung is called on the producer's env when durability advanced. Before the first step. */
struct journal_port *journal_port_new(struct journal *j, struct env *producer,
                                      void (*rung)(void *ctx), void *ctx);
/* Producer thread. The ticket (dense from 1), or 0: ring full, nothing written. CHECKs what
 * Postgres would refuse: a negative class or cost of kind usage, a kind or time of 0, a URL past
 * 127 bytes. gateway_id of a CLOSE is the journal's own. */
uint64_t journal_put(struct journal_port *p, const struct record *r);
uint64_t journal_durable(const struct journal_port *p); /* highest durable ticket; any thread */
/* A CLOSE waits for the next step; without one a step may be put off a little. */
bool journal_is_awaited(const struct journal *j);
bool journal_admits(const struct journal *j);    /* any thread */
bool journal_is_failed(const struct journal *j); /* fatal I/O error; any thread */
/* The writer's doorbell: producers ring it when they put (coalesced). NULL in the simulator. */
void journal_set_doorbell(struct journal *j, struct env *writer, struct env_wake *w);

/* One group: drains every port (bounded), writes, syncs, publishes. true: did something. */
bool journal_step(struct journal *j, struct env *env);

struct journal_stats {
    uint64_t records, groups, bytes, syncs_us_total, rows; /* rows: last gw_seq of this epoch */
    uint64_t unshipped_bytes; /* of segments that trim has seen and kept */
};
void journal_stats(const struct journal *j, struct journal_stats *out);
/* Deletes whole segments, oldest first, whose rows are shipped and whose requests are over. Rows up
 * to shipped_seq of `epoch` are in Postgres, and all of older epochs. Always called by one thread
 * (the shipper); follows the journal a bounded piece a call. */
void journal_trim(struct journal *j, struct env *env, int32_t epoch, int64_t shipped_seq);
/* Rings of lives before epoch: to be called once the rows of their orphans are durable. Only then
 * are those lives' segments trimmed. */
void journal_forget_rings(struct env *env, const char *dir, int32_t epoch);
/* Rows after (epoch, seq) stay although they are shipped: a start without Postgres reads a snapshot
 * file of that watermark and must find here what was spent since. Not while the disk is full. Any
 * thread; the last call counts.
 * Never called: trim follows the cursor alone. */
void journal_keep_after(struct journal *j, int32_t epoch, int64_t seq);

/* Reading, also offline: records in order across segments and epochs. */
struct journal_reader;
struct journal_reader *journal_reader_open(struct env *env, const char *dir, struct err *e);
void journal_reader_close(struct journal_reader *r);
void journal_reader_seek(struct journal_reader *r, int32_t epoch, uint64_t lsn); /* next >= this */
enum journal_read {
    JOURNAL_READ_RECORD = 1,
    JOURNAL_READ_END,
    JOURNAL_READ_TORN,
    JOURNAL_READ_CORRUPT
};
/* TORN: the tail of the last segment of an epoch is not a record (normal after a crash: its end).
 * CORRUPT: a bad record with good ones after it; e has file and offset. END may be retried: a
 * reader follows the live journal. Only durable records of a live journal are returned when
 * `durable_lsn` (journal_durable_lsn) bounds it. */
enum journal_read journal_read(struct journal_reader *r, struct record_stored *out, struct err *e);
uint64_t journal_durable_lsn(const struct journal *j);
void journal_reader_bound(struct journal_reader *r, int32_t epoch, uint64_t durable_lsn);

/* Byte form, for tests and the reader. out/in: JOURNAL_RECORD_BYTES. */
void record_encode(const struct record *r, uint64_t lsn, int32_t epoch, int64_t gw_seq,
                   uint8_t *out);
MUST_USE bool record_decode(const uint8_t *in, struct record_stored *out);

#endif
