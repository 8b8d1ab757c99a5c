/* sim_worker_impl.h - one connection of a worker, as sim_worker.c (sockets, endpoints) and
 * sim_generate.c (answers token by token) share it. */
#ifndef TESTS_SIM_WORKER_IMPL_H
#define TESTS_SIM_WORKER_IMPL_H

#include "sim_world.h"

enum fate {
    FATE_WELL = 1,
    FATE_503,
    FATE_429,
    FATE_400,
    FATE_500,
    FATE_CUT_EARLY, /* closes before a head */
    FATE_CUT,       /* closes in mid-stream */
    FATE_RESET,
    FATE_HANG,        /* says nothing more */
    FATE_ERROR_EARLY, /* an error inside the 200 */
    FATE_ERROR_LATE,
    FATE_GARBAGE,   /* an event that is not JSON */
    FATE_NO_FINISH, /* a clean end without a reason */
    FATE_NO_DONE,   /* a reason, then the end without [DONE] */
};

struct worker_conn {
    struct list node;
    struct worker_sim *k;
    struct env_sock *sock;
    struct http_in in;
    struct buf out;
    struct env_timer timer;
    uint32_t attempt; /* + 1; 0: none */
    enum fate fate;
    uint32_t fate_at; /* tokens */
    bool stream, chat, usage_each, kv, closing, sent_role, finish_with_text;
};

static inline uint64_t worker_now(const struct worker_sim *k)
{
    return k->w->sim->now_us;
}

/* ---- sim_worker.c ---- */
void worker_conn_free(struct worker_conn *c, bool reset); /* the one end of a connection */
void worker_conn_watch(struct worker_conn *c);
void worker_conn_digest(struct worker_conn *c); /* what whole requests have come */
void worker_answer(struct worker_conn *c, unsigned status, const char *type, const char *extra,
                   struct str body);
void worker_answer_json(struct worker_conn *c, unsigned status, const char *extra,
                        const char *body);
void worker_chunk(struct worker_conn *c, struct str data);

/* ---- sim_generate.c ---- */
void attempt_end(struct worker_conn *c,
                 const char *state);                 /* no token more; a second call does nothing */
void take_request(struct worker_conn *c, bool chat); /* a generation request, whole */

#endif
