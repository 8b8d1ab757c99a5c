/* ship_impl.h - the Postgres store behind ship.c. */
#ifndef LEDGER_SHIP_IMPL_H
#define LEDGER_SHIP_IMPL_H

#include "ledger/ship.h"

struct ship_pg; /* a connection that is opened when needed and dropped when broken */

struct ship_pg *ship_pg_new(struct str conninfo, struct log *log, struct env *env);
void ship_pg_free(struct ship_pg *s);
struct ship_store ship_pg_store(struct ship_pg *s);

#endif
