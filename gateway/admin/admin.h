/* admin.h - inside gateway/admin: one call of an operator, and the table of what there is.
 *
 * A call begins and ends on the control loop. What needs Postgres runs on the store's thread
 * (store.h) meanwhile: until its job is done, nobody else touches the call.
 * The listener is loopback only and has its own key. Every route stands in admin_routes with who
 * may call it; a test walks the table and finds none without an entry. */
#ifndef GATEWAY_ADMIN_ADMIN_H
#define GATEWAY_ADMIN_ADMIN_H

#include "base/json.h"
#include "gateway/api/error.h"
#include "gateway/control.h"
#include "ledger/config.h"

#define ADMIN_BODY_BYTES_MAX (256u << 10)
#define ADMIN_ANSWER_BYTES_MAX (16u << 20)

/* An operator waits this long for Postgres, then hears so. Above what a statement may take
 * (ledger/pg.h): a job that ends by itself tells more. */
#define ADMIN_STORE_US 15000000

enum admin_role { ADMIN_OPEN = 1, ADMIN_KEY }; /* open: nothing of a tenant in it */

enum admin_where {
    ADMIN_HERE = 1, /* on the control loop: must not block */
    ADMIN_STORE,    /* on the store's thread */
    ADMIN_LATER     /* on the control loop, which only starts something; a job may end it */
};

struct admin_call {
    struct control *c;
    struct http_stream *stream; /* NULL: the operator left */
    const struct admin_route *route;
    struct buf body, out;
    struct arena arena;
    const struct json *in; /* body, an object; NULL for GET */
    struct str query;
    /* worker add: models are being asked for */
    struct http_origin *origin;
    struct http_call *probe;
    struct buf probed;
    unsigned probe_status;
    bool probe_ours;
    struct env_timer probe_late; /* the whole probe, however busily its answer goes on */
    struct env_dns dns;
    bool resolving;
    struct str models[CONFIG_WORKER_MODELS_MAX]; /* what it then serves */
    size_t n_models;
    /* the way to the store and back */
    bool waiting;        /* the end comes by itself, also when the operator left */
    struct store *store; /* while the job runs */
    struct store_job job;
    struct env_timer late; /* ADMIN_STORE_US */
    struct env_task end_task;
};

struct admin_route {
    enum http_method method;
    const char *path;
    enum admin_role role;
    /* Appends the answer to out; false with a story. ADMIN_LATER: admin_answer or admin_to_store
     * comes later. */
    bool (*run)(struct admin_call *a, struct buf *out, struct err *e);
    enum admin_where where;
    bool changes; /* the configuration changed: loops get a new world before the operator hears */
};
extern const struct admin_route admin_routes[];
extern const size_t admin_routes_count;

/* The one end of a call that ran. */
void admin_answer(struct admin_call *a, const struct buf *out, const struct err *e);
/* Runs it on the store's thread, into a->out and the job's e; the answer follows. */
void admin_to_store(struct admin_call *a, bool (*run)(struct store_job *j, struct store *s));
/* A string member of the body; {NULL,0} when absent. */
struct str admin_text(const struct admin_call *a, const char *name);
struct str admin_query(struct admin_call *a, const char *name); /* decoded; {NULL,0} when absent */
/* In a job: Postgres, or why there is none. */
MUST_USE bool admin_config(struct admin_call *a, struct config *out, struct err *e);
/* admin_workers.c */
bool admin_worker_add(struct admin_call *a, struct buf *out, struct err *e);
bool admin_worker_list(struct admin_call *a, struct buf *out, struct err *e);
void admin_worker_add_drop(struct admin_call *a);

#endif
