/* ship_batch.h - a batch as it is booked: its rows by COPY, its 15-minute sums by one upsert. */
#ifndef LEDGER_SHIP_BATCH_H
#define LEDGER_SHIP_BATCH_H

#include "base/log.h"
#include "ledger/entry.h"
#include "ledger/pg.h"

/* One batch row as it is booked: its month and kind may differ from the journal's (late rows). */
struct booked {
    const struct entry *row; /* borrowed */
    int32_t period;          /* YYYYMM */
    int16_t kind, reason_code;
    bool skip; /* is in the table already */
};

/* In the caller's transaction. n at most SHIP_ROWS_MAX. */
MUST_USE bool ship_rollup(struct pg *p, int32_t gateway_id, const struct booked *b, size_t n,
                          struct err *e);

/* COPY into usage_event, what is not to be skipped; in the same transaction. */
MUST_USE bool ship_copy(struct pg *p, const struct booked *b, size_t n, struct err *e);

/* The rows behind ship_keys' two parameters, as u. By primary key: a range of days would scan other
 * gateways' rows too. */
#define SHIP_ROWS_OF_KEYS                                                                          \
    "unnest($1::bigint[], $2::uuid[]) AS d(us, id) JOIN usage_event u ON u.occurred_at = "         \
    "timestamptz 'epoch' + d.us * interval '1 microsecond' AND u.event_id = d.id"
/* Keys of booked rows as two array parameters: microseconds, events. Returns how many; the caller
 * ends both buffers. */
size_t ship_keys(const struct booked *b, size_t n, bool unknown_only, struct buf *at,
                 struct buf *events);
/* After a refusal and its rollback: true when what was in the way is gone and the batch may be
 * tried again. */
MUST_USE bool ship_heal(struct pg *p, struct log *log, uint64_t wall_us, struct booked *b, size_t n,
                        struct err *e);

#endif
