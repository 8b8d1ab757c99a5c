/* snapshot_impl.h - what the makers of snapshots share. */
#ifndef LEDGER_SNAPSHOT_IMPL_H
#define LEDGER_SNAPSHOT_IMPL_H

#include "ledger/snapshot.h"

#define SNAPSHOT_BYTES_MAX                                                                         \
    ((size_t)512 << 20) /* some million keys: far past one gateway's tenants */

/* Empty, one reference, its arena ready. */
struct snapshot *snapshot_new(void);

#endif
