/* client_impl.h - what client.c (origins, calls, the pool) and client_conn.c (one connection's
 * bytes) share; nobody else includes it. */
#ifndef BASE_NET_CLIENT_IMPL_H
#define BASE_NET_CLIENT_IMPL_H

#include "base/net/client.h"
#include "base/net/h1.h"
#include "base/pool.h"

/* One read. Two of them at most a turn, so that one fast peer does not starve the loop. */
#define CLIENT_READ_BYTES 32768
#define CLIENT_READS_PER_TURN 2
#define CLIENT_HEAD_BYTES_MAX 65536 /* of an answer's fields */
#define CLIENT_HEAD_FIELDS_MAX 256
#define CLIENT_CALLS_KEPT 512      /* at rest in the pool */
#define CLIENT_INFORMATIONAL_MAX 8 /* 1xx before an answer */
#define CLIENT_WAITING_MAX 1024    /* calls of an origin without a connection */
#define CLIENT_SEND_STALL_US                                                                       \
    30000000 /* a peer that takes no byte of a request for so long is lost */

struct client_conn;

/* Objects that end rest here until the loop is out of our frames, then the reaper frees them. */
struct client_corpse {
    struct list node;
    void (*bury)(struct client_corpse *);
};

struct http_client {
    struct env *env; /* borrowed */
    struct list origins;
    struct list dead; /* client_corpse */
    struct env_task reaper;
    struct pool calls;  /* http_call */
    struct arena heads; /* the answer's head in progress; never kept between turns */
    uint8_t scratch[CLIENT_READ_BYTES]; /* the read in progress; never kept between turns */
};

struct http_origin {
    struct client_corpse corpse;
    struct list node; /* client.origins */
    struct http_client *client;
    struct http_origin_options options; /* host is owned */
    struct list idle;                   /* client_conn, most recently used first */
    struct list busy;                   /* client_conn: connecting or carrying a call */
    struct list waiting;                /* http_call without a connection, oldest first */
    struct list failing;                /* http_call that failed at once: told by a task */
    uint32_t n_conns, n_idle, n_waiting;
    bool closing;
};

enum call_state {
    CALL_WAITING = 1, /* no connection yet */
    CALL_ASKED,       /* has a connection: request going out, answer's head awaited */
    CALL_BODY,        /* head told, body coming */
    CALL_ENDED,       /* told, failed or cancelled: no callback any more */
};

struct http_call {
    struct client_corpse corpse;
    struct list node; /* origin.waiting or origin.failing */
    struct http_origin *origin;
    struct client_conn *conn; /* NULL: waiting */
    enum call_state state;
    enum http_method method;
    struct http_call_events ev;
    void *user;
    struct buf request; /* owned: the head, what the socket (or TLS) has not yet taken of it */
    struct buf body;    /* owned: the body likewise, after the head */
    bool sent;          /* any byte of it left us */
    bool paused;
    enum http_fail failed; /* while on origin.failing */
    struct env_task failing;
    struct env_timer wait; /* bounds the time without a connection */
    struct h1_scan scan;
    struct h1_response head;
    struct h1_chunked chunks;
    uint64_t body_left; /* H1_LENGTH */
    uint32_t informational;
};

enum conn_state {
    CONN_CONNECTING = 1, /* no byte taken by the socket yet */
    CONN_HANDSHAKE,      /* TLS */
    CONN_BUSY,           /* carries a call */
    CONN_IDLE,           /* kept alive */
    CONN_CLOSED,         /* on client.dead */
};

struct client_conn {
    struct client_corpse corpse;
    struct list node; /* origin.idle or origin.busy */
    struct http_origin *origin;
    struct http_call *call;  /* NULL: idle */
    struct env_sock *sock;   /* owned */
    struct tls_session *tls; /* owned; NULL: clear */
    enum conn_state state;
    bool reused;            /* this call is not its first */
    bool answered;          /* a byte of this call's answer came */
    bool broken;            /* a write failed: only what is left to read counts */
    struct buf in;          /* owned: bytes read, not yet used (a partial head, a pause) */
    struct buf cipher;      /* owned: TLS records to send */
    struct env_task work;   /* what may call back, out of the caller's frames */
    struct env_timer timer; /* due lazily: last_us + limit_us decides */
    uint64_t last_us, limit_us;
};

/* Bytes of the request that wait to be taken. */
static inline size_t call_unsent(const struct http_call *call)
{
    return call->request.len + call->body.len;
}

/* client.c */
void client_bury(struct http_client *c, struct client_corpse *corpse,
                 void (*bury)(struct client_corpse *));
/* Ends a call whose answer came whole; reuse: its connection may carry another. */
void call_end(struct http_call *call, bool reuse);
void call_fail(struct http_call *call, enum http_fail why);
/* Gives connections to waiting calls while there are both. */
void origin_serve(struct http_origin *o);

/* client_conn.c */
struct client_conn *conn_open(struct http_origin *o, struct err *e); /* NULL: cannot even try */
/* Takes the call. No callback runs inside. */
void conn_carry(struct client_conn *c, struct http_call *call);
/* An idle connection that its peer has closed or written to: not for reuse. */
bool conn_is_stale(struct client_conn *c);
void conn_keep(struct client_conn *c); /* idle from now */
void conn_close(struct client_conn *c);
void conn_pause(struct client_conn *c);
void conn_resume(struct client_conn *c);

#endif
