/* control.h - the control loop: where the world comes from (Postgres, or the file beside the
 * journal), the fleet's probes and events, the admin listener, recovery of the last life's orphans.
 *
 * Blocking Postgres calls happen here and in the shipper only, never on a request's loop. */
#ifndef GATEWAY_CONTROL_H
#define GATEWAY_CONTROL_H

#include "gateway/gateway.h"
#include "ledger/recover.h"

struct control {
    struct gateway *gw;
    struct env *env;
    struct http_client *client;
    struct fleet *fleet;
    struct http_server *admin; /* owned; NULL until listening */
    struct pg *pg;             /* owned; NULL while down */
    struct world *world;       /* the newest; one reference */
    struct journal_port *port; /* for CLOSEs of orphans */
    struct env_timer tick;
    uint64_t pg_retry_us; /* not before; monotonic */
    uint64_t pg_backoff_us;
    uint64_t poll_us;       /* when the version is next asked for */
    uint64_t save_us;             /* when the snapshot file is next written for its watermark */
    bool forget_rings;            /* of older lives, once this ticket is durable: */
    uint64_t forget_ticket;       /* the last orphan's CLOSE */
    uint64_t partitions_us; /* when day partitions are next made */
    bool pg_said_down;
    bool from_file; /* the world came from the file: Postgres was away at start */
    char snapshot_path[512];
};

/* First world: Postgres, else the file. false with a story when there is neither. */
MUST_USE bool control_start(struct control *c, struct gateway *gw, struct env *env, struct err *e);
void control_free(struct control *c);
/* Connects if need be. NULL with a story: commands that need Postgres then fail with it. */
struct pg *control_pg(struct control *c, struct err *e);
/* Reads the configuration anew and hands it to every loop. After an admin change, and on a tick. */
MUST_USE bool control_reload(struct control *c, struct err *e);
/* Asks workers for the counts of the last life's attempts, writes their CLOSEs; then calls done. */
void control_recover(struct control *c, struct recovered *rec, void (*done)(struct control *));

/* gateway/admin/admin.c */
MUST_USE bool admin_listen(struct control *c, struct err *e);
/* gateway/admin/metrics.c: Prometheus text. */
void metrics_render(struct gateway *gw, struct buf *out);

#endif
