/* recover.h - after a crash: which requests were open, which attempts have no CLOSE, what is spent.
 *
 * Reads older epochs of a journal folder. An OPEN without DISPATCH is void (a VOID record is
 * written). A DISPATCH without CLOSE is an orphan: the caller asks the worker for its count
 * (/events/{event}), else uses PROGRESS, and writes the CLOSE in the new epoch. */
#ifndef LEDGER_RECOVER_H
#define LEDGER_RECOVER_H

#include "ledger/journal.h"

#define RECOVER_ORPHANS_MAX 65536

struct orphan {
    struct record_stored open, dispatch; /* open.r.type 0 when its OPEN is gone */
    int32_t prompt, cached, output;      /* last PROGRESS; -1: none */
    int32_t output_held;                 /* of OPEN and PROGRESS: no row bills more */
};

struct recovered {
    struct orphan *orphans; /* owned */
    size_t n_orphans, voids;
    uint64_t records;
    int32_t last_epoch; /* highest epoch found; 0: empty folder */
    bool torn;          /* a torn tail was cut off */
};

/* Reads everything older than `epoch`. false with a story on corruption in the middle or too many.
 */
MUST_USE bool recover_read(struct env *env, const char *dir, int32_t epoch, struct recovered *out,
                           struct err *e);
void recover_free(struct recovered *r);
/* Every row of epochs below before_epoch that came after (after_epoch, after_seq), in order: what a
 * snapshot's spent figures lack when its cursor stands there. */
MUST_USE bool recover_rows(struct env *env, const char *dir, int32_t before_epoch,
                           int32_t after_epoch, int64_t after_seq,
                           void (*each)(void *ctx, const struct entry *row), void *ctx,
                           struct err *e);
/* The row of an orphan, once what is known is known. state MEASURED: the worker's count;
 * STREAMED... UNKNOWN: PROGRESS or nothing (then prompt/cached/output as given, possibly 0). No
 * output: nothing is billed. A prompt above its bound: billed at the bound, USAGE_CLAMPED. p NULL:
 * cost 0. An orphan without its OPEN has no tenant (0) and no tokens. */
void recover_entry(const struct orphan *o, int32_t prompt, int32_t cached, int32_t output,
                   enum usage_state state, const struct price *p, struct entry *out);

#endif
