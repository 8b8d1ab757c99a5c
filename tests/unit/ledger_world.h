/* ledger_world.h - what the ledger's tests bring: a folder, an env, records, a database of their
 * own. */
#ifndef TESTS_UNIT_LEDGER_WORLD_H
#define TESTS_UNIT_LEDGER_WORLD_H

#include "base/net/os.h"
#include "ledger/journal.h"
#include "ledger/pg.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define WORLD_SKIP 77
#define WORLD_DAY_US 86400000000ULL

/* A fresh folder; removed with all in it by world_remove. */
void world_folder(char out[64]);
void world_remove(const char *dir);
struct env *world_env(void);

struct uuid world_uuid(uint64_t n);
struct record world_open(uint64_t request);
struct record world_dispatch(uint64_t request, uint64_t event);
struct record world_progress(uint64_t event, int32_t output);
/* A priced row of usage; request == event for a first attempt. */
struct record world_close(uint64_t request, uint64_t event);
struct record world_void(uint64_t request);

/* Opens, CHECKs. */
struct journal *world_journal(struct env *env, const char *dir, uint64_t segment_records);
/* Puts and steps until it is durable. */
void world_write(struct journal *j, struct journal_port *p, struct env *env,
                 const struct record *r);

/* A new database in the cluster of TOLLGATE_TEST_PG, migrated from sql/ unless bare; conninfo for
 * its superuser, with `user=` replaced when user is not NULL. */
struct world_db {
    char name[64];
    char admin[512]; /* conninfo of the cluster's superuser and its own database */
    char conninfo[512];
};
bool world_has_pg(void); /* false: says why and the caller returns WORLD_SKIP */
void world_db_make(struct world_db *db, bool bare);
void world_db_drop(struct world_db *db);
void world_db_as(const struct world_db *db, const char *user, char out[512]);
struct pg *world_pg(const char *conninfo);
/* One integer. */
int64_t world_number(struct pg *p, const char *sql);
/* The code of the failure; fails the test when the statement succeeds. */
enum err_code world_refused(struct pg *p, const char *sql);

#endif
