/* migrate.h - numbered SQL files applied in order, each in its own transaction, recorded with its
 * SHA-256 in schema_migration; a changed old file is refused. Under an advisory lock. */
#ifndef LEDGER_MIGRATE_H
#define LEDGER_MIGRATE_H

#include "ledger/pg.h"

struct migrate_report {
    int applied, present;
    char last[64]; /* name of the newest */
};
/* dir holds NNNN_name.sql. each (may be NULL) is told every file before it runs. */
MUST_USE bool migrate_run(struct pg *p, const char *dir, struct migrate_report *out,
                          void (*each)(void *ctx, const char *name, bool applied), void *ctx,
                          struct err *e);
/* Makes day partitions of usage_event for [today, today + days]. */
MUST_USE bool migrate_partitions(struct pg *p, int days, struct err *e);

#endif
