/* config_impl.h - the transaction, the audit and the JSON that every operator's change shares. */
#ifndef LEDGER_CONFIG_IMPL_H
#define LEDGER_CONFIG_IMPL_H

#include "ledger/config.h"

#define CONFIG_NUMBER_BYTES 24
/* $1: a name. An insert that finds it there takes no number: model_id is a smallint. */
#define CONFIG_MODEL_MAKE                                                                          \
    "INSERT INTO model (name) SELECT $1::text WHERE NOT EXISTS (SELECT FROM model WHERE name = "   \
    "$1) ON CONFLICT DO NOTHING"

/* BEGIN, with the operator's name for the triggers. */
MUST_USE bool config_begin(const struct config *c, struct err *e);
/* COMMIT, or ROLLBACK when ok is false. Returns whether the change is in. */
MUST_USE bool config_end(const struct config *c, bool ok, struct err *e);
/* A line of admin_audit. before, after: JSON text or {NULL,0}. */
MUST_USE bool config_audit(const struct config *c, const char *what, struct str target,
                           struct str before, struct str after, struct err *e);
/* Appends the first column of the one row that sql gives; ERR_NOT_FOUND when there is none. */
MUST_USE bool config_json(const struct config *c, const char *sql, const struct str *params, int n,
                          struct buf *out, struct err *e);
/* An integer out of one row; 0 rows: *out = 0. */
MUST_USE bool config_number(const struct config *c, const char *sql, const struct str *params,
                            int n, int64_t *out, struct err *e);
MUST_USE bool config_tenant_id(const struct config *c, struct str name, int64_t *out,
                               struct err *e);
/* A number as a text parameter; buffer of CONFIG_NUMBER_BYTES. */
struct str config_text(int64_t v, char *buffer);
/* A failed insert of something that exists gets a story that names it. */
bool config_exists_story(const struct config *c, const char *what, struct str name, struct err *e);

#endif
