/* control.h - the control loop: the world and how it reaches the loops, the fleet's probes and
 * events, the admin listener, recovery of the last life's orphans.
 *
 * It never blocks: Postgres is asked by the store's thread (store.h), rows are written by the
 * journal's and shipped by the shipper's. */
#ifndef GATEWAY_CONTROL_H
#define GATEWAY_CONTROL_H

#include "gateway/gateway.h"
#include "gateway/store.h"
#include "ledger/recover.h"

struct control {
    struct gateway *gw;
    struct env *env;
    struct http_client *client;
    struct fleet *fleet;
    struct http_server *admin; /* owned; NULL until listening */
    struct store *store;       /* owned */
    struct world *world;       /* the newest; one reference */
    struct journal_port *port; /* for CLOSEs of orphans */
    struct env_timer tick;
    bool forget_rings;      /* of older lives, once this ticket is durable: */
    uint64_t forget_ticket; /* the last orphan's CLOSE */
};

/* First world: Postgres, else the file. false with a story when there is neither. The only call
 * that may wait for Postgres, and it comes before any listener. */
MUST_USE bool control_start(struct control *c, struct gateway *gw, struct env *env, struct err *e);
/* After the store's and the loops' threads have ended. Operators' calls end; run the loop's tasks
 * once more. */
void control_free(struct control *c);

/* control_seed.c: budgets know what was spent before this life. Once, before the first request:
 * what the snapshot says, and the rows of older lives that it had not. */
MUST_USE bool control_seed(struct control *c, const char *journal_dir, struct err *e);
/* Tenants and keys that `now` has and `before` had not. Before any loop hears of `now`. */
void control_seed_new(struct control *c, const struct snapshot *before, const struct snapshot *now);

/* Asks workers for the counts of the last life's attempts, writes their CLOSEs; then calls done. */
void control_recover(struct control *c, struct recovered *rec, void (*done)(struct control *));

/* gateway/admin/admin.c */
MUST_USE bool admin_listen(struct control *c, struct err *e);
/* gateway/admin/metrics.c: Prometheus text. */
void metrics_render(struct gateway *gw, struct buf *out);

#endif
