/* request.h - one request, from its head to its one end.
 *
 * States: HEADERS, BODY, ADMITTING, QUEUED, DISPATCHED, STREAMING, SETTLING, DONE. One function
 * changes the state over a table of legal edges; one function (request_end) ends a request, with a
 * reason. The HTTP stream and the request die apart: a client may leave while the worker's count is
 * still being learned and the row is still on its way to the disk. */
#ifndef GATEWAY_REQUEST_H
#define GATEWAY_REQUEST_H

#include "base/net/encoding.h"
#include "gateway/api/openai.h"
#include "gateway/gateway.h"
#include "gateway/proxy.h"
#include "gateway/receipt.h"

enum request_state {
    REQ_HEADERS = 1, /* head is here, key is checked */
    REQ_BODY,        /* body is coming */
    REQ_ADMITTING,   /* the quota store was asked */
    REQ_QUEUED,      /* admitted; no worker has it */
    REQ_DISPATCHED,  /* sent to a worker, nothing came back */
    REQ_STREAMING,   /* the worker produces */
    REQ_SETTLING,    /* the count is being learned, or the CLOSE is on its way to the disk */
    REQ_DONE,
    REQ_STATE_COUNT,
};

enum request_end_reason {
    REQ_END_ANSWERED = 1, /* a whole answer, its CLOSE durable */
    REQ_END_REFUSED,      /* an error before any worker had it */
    REQ_END_FAILED,       /* workers were tried; the client got an error */
    REQ_END_CLIENT_GONE,
    REQ_END_CUT, /* a stream that ended in an error event */
};

/* A full ring is tried again this often: neither a row nor a VOID is ever dropped. */
#define REQUEST_RING_FULL_US 2000
/* Each attempt may have one (upstream.retries is 2 at most), and the whole request. */
#define REQUEST_VOIDS_MAX 4

/* One tool call, put together from its deltas. */
struct gathered_call {
    struct buf id, name, arguments;
};

/* A whole answer gathered from our worker's stream. */
struct gathered {
    struct buf text;
    struct gathered_call *call; /* [USAGE_CALLS_MAX], owned; NULL: no call came */
    uint32_t calls;
    size_t call_bytes;
    struct buf logprobs[4]; /* JSON array bodies, by member (see request_answer.c) */
    bool has_logprobs;
};

struct request {
    struct loop *loop;
    struct http_stream *stream; /* NULL once on_close came */
    struct list node;           /* in loop->requests until its memory goes */
    struct list settle_node;    /* in loop->settling while a ticket is awaited */
    enum request_state state;
    /* who */
    struct world *world; /* one reference from the head on */
    const struct snap_tenant *tenant;
    const struct snap_key *key;
    /* what */
    enum endpoint endpoint;
    struct buf body;         /* decoded */
    struct decoder *decoder; /* NULL: identity */
    size_t body_charged;     /* in loop->body_bytes */
    struct arena arena;      /* tree, prefix */
    struct openai_request api;
    struct openai_answer answer;
    char answer_id[48], id_text[UUID_TEXT_BYTES + 1];
    const struct snap_model *model;
    const struct price *price;
    struct prefix prefix;
    struct prefix_key k0;
    uint64_t root;
    /* money */
    struct quota_hold hold;
    int64_t prompt_bound; /* tokens */
    int64_t out_held;     /* output tokens that the hold covers */
    int64_t out_limit;    /* the answer's own limit; INT64_MAX: to the end of the context */
    bool extending, extend_refused, trimmed;
    int64_t extend_tokens; /* asked for in the extend under way */
    enum { ASK_RESERVE = 1, ASK_EXTEND, ASK_EXTEND_WHOLE } asking;
    bool opened;                          /* OPEN is journalled */
    struct uuid voids[REQUEST_VOIDS_MAX]; /* VOIDs that wait for room in the ring, oldest first */
    unsigned n_voids;
    /* where */
    struct uuid request_id;     /* event id of attempt 1 */
    struct attempt attempt;     /* the one at work or the last one */
    struct worker *chosen;      /* by the last routing; the attempt's from dispatch on */
    double prompt_tokens;       /* estimate that routing used */
    uint64_t predicted_ttft_us; /* of the choice; kept for flow control and metrics */
    struct receipt receipt;     /* the worker's own count, being asked for */
    bool receipt_failed;        /* it could not be had: usage is what was seen */
    unsigned attempts;
    uint64_t tried;         /* bits of worker slots */
    struct api_error error; /* what the client is told at the end */
    /* answer */
    bool responded; /* head sent */
    bool role_sent;
    bool paused;     /* upstream is paused: the client drains slowly */
    struct buf out;  /* scratch for rendering */
    struct buf tail; /* finish chunk, usage, [DONE], or the whole answer: after CLOSE is durable */
    struct gathered gathered;
    enum finish finish;
    struct usage_count said;
    int64_t content_events;
    uint64_t answer_bytes;
    bool cut_by_us; /* at the hold: outcome clamped */
    bool broken;    /* the worker failed after content */
    struct tokens billed;
    enum usage_state usage_state;
    enum outcome outcome;
    const struct json *whole; /* a foreign engine's choice, while it is rendered */
    struct entry close;       /* the row, from settle until its CLOSE is in the ring */
    enum { AFTER_ANSWER = 1, AFTER_RETRY } after; /* what follows the CLOSE */
    uint64_t ticket;                              /* CLOSE's, while settling */
    /* times, monotonic us unless wall */
    uint64_t begun_us, begun_wall_us, dispatched_us, first_us, last_progress_us, settle_us;
    int64_t last_progress_tokens;
    struct env_timer timer;    /* keep-alive before the first token */
    struct env_timer linger;   /* retry back-off; or a full ring */
    struct env_task free_task; /* memory goes when the turn is over */
};

/* Its attempt is (was) with a worker of ours: exact counts, events, receipts. */
static inline bool request_is_ours(const struct request *r)
{
    return r->attempt.worker != NULL && r->attempt.worker->engine == ENGINE_TOLLGATE;
}

/* The http_app of a public listener. ctx is the loop. */
void request_app(struct loop *l, struct http_app *out);
/* Called by the loop when the journal advanced. */
void request_durable(struct loop *l, uint64_t ticket);
/* The loop drains and its time is up: streams end with an error event. */
void request_cut_all(struct loop *l);

/* Requests of a loop that is being freed: their memory only (the process ends). */
void request_drop_all(struct loop *l);

/* Inside gateway/: the parts of one request, split by subject. */
void request_set_state(struct request *r, enum request_state to);
void request_end(struct request *r,
                 enum request_end_reason why); /* frees r at the end of the turn */
void request_body_release(struct request *r);
/* No worker will be asked (again): the body and what was made of it go; sizes and flags stay. */
void request_forget_prompt(struct request *r);
void request_client_gone(struct request *r);
/* No worker has it (any more): the client hears e, holds are voided, the request ends. */
void request_fail(struct request *r, const struct api_error *e);
/* request_admit.c */
void request_admit(struct request *r);
void request_extend(struct request *r, int64_t tokens, bool whole);
/* request_route.c */
void request_route(struct request *r);    /* QUEUED: chooses, then dispatches */
void request_dispatch(struct request *r); /* QUEUED -> DISPATCHED, to r->chosen */
bool request_may_retry(const struct request *r);
void request_retry(struct request *r);
/* request_stream.c */
extern const struct proxy_events request_proxy_events;
void request_waits(struct env_timer *t); /* the client waits: head, then keep-alives */
/* request_answer.c */
void request_answer_begin(struct request *r); /* 200 and the head of a stream */
void request_answer_chunk(struct request *r, const struct usage_chunk *c);
void request_gather_chunk(struct request *r, const struct usage_chunk *c);
void request_gathered_calls_free(struct gathered *g);
void request_answer_tail(
    struct request *r); /* finish, usage, [DONE], or the whole answer, into tail */
void request_answer_send(struct request *r); /* the tail goes out, the stream ends */
void request_answer_error(struct request *r,
                          const struct api_error *e); /* envelope, or error event */
/* request_settle.c */
void request_count(struct request *r,
                   enum outcome o); /* asks the worker for its count, then settles */
void request_settle(struct request *r, enum outcome o); /* -> SETTLING: bill, tail, CLOSE */
void request_void_attempt(struct request *r);           /* the worker never saw it */
/* false: some VOIDs still wait for room in the ring. */
bool request_voids_put(struct request *r);
/* loop.c */
void loop_request_gone(struct loop *l);

#endif
