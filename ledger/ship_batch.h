/* ship_batch.h - a batch as it is booked: its rows by COPY, its 15-minute sums by one upsert. */
#ifndef LEDGER_SHIP_BATCH_H
#define LEDGER_SHIP_BATCH_H

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

#endif
