/* conn.h - private to the server: connections, streams and the seam between them and h1 and h2.
 *
 *   env_sock <-> [TLS] <-> conn (conn.c) <-> protocol (h1_conn.c or h2.c) <-> http_stream
 * (stream.c)
 *
 * Events of a turn (socket, timer, a call of the application) only feed input and leave marks; the
 * connection's deferred task then does all that sends, calls back about drains and closes, or frees
 * (conn_turn). So nothing dies under a caller's feet and each session is flushed once a turn. */
#ifndef BASE_NET_CONN_H
#define BASE_NET_CONN_H

#include "base/buf.h"
#include "base/net/server.h"
#include "base/pool.h"

#define CONN_READ_BYTES 16384  /* of one read: a TLS record */
#define CONN_READS_PER_TURN 4  /* then other connections have their turn */
#define CONN_STAGE_BYTES 16384 /* plaintext gathered before it is encrypted and sent */
#define CONN_LINGER_US 3000000 /* we wait so long for the peer to close after our last byte */
#define CONN_LINGER_BYTES ((uint64_t)64 << 20) /* and discard so much: twice the largest body */
#define CONN_PROGRESS_BYTES                                                                        \
    1024 /* fewer in a stall period are no progress (slow read, slow post) */
#define STREAM_ARENA_BYTES ((size_t)256 << 10)
#define STREAM_KEEP_BYTES 1024 /* capacity that an empty stream buffer may keep */

struct conn;
struct protocol;
struct h2_shared;

/* A token bucket in micro-tokens; time is an argument. */
struct bucket {
    uint64_t level; /* tokens left, in millionths */
    uint64_t at_us; /* when level was right */
    uint32_t burst, per_s;
};
void bucket_init(struct bucket *b, uint32_t burst, uint32_t per_s, uint64_t now_us);
MUST_USE bool bucket_take(struct bucket *b, uint32_t tokens, uint64_t now_us); /* false: empty */
void bucket_refund(struct bucket *b, uint32_t tokens);

struct listener {
    struct list node; /* http_server.listeners */
    struct http_server *server;
    struct env_sock *sock;   /* owned; NULL once drained */
    struct tls_context *tls; /* borrowed, may be NULL */
    enum http_protocols allowed;
    bool watching;
};

struct http_server {
    struct env *env;
    struct log *log; /* borrowed, may be NULL */
    struct http_app app;
    struct http_limits limits;
    struct list listeners;
    struct list conns;
    struct h2_shared *h2;          /* owned: what all sessions share */
    struct pool streams;           /* http_stream */
    struct buf plain;              /* scratch: decrypted bytes of the read at hand */
    struct buf stage;              /* scratch: plaintext of the flush at hand */
    struct buf wire;               /* scratch: ciphertext of the flush at hand */
    struct env_timer accept_timer; /* tries again after descriptors ran out */
    struct env_timer drain_timer;  /* the second GOAWAY */
    struct env_task task;          /* after a close: resume accepting, say drained */
    bool draining;
    void (*drained)(void *ctx);
    void *drained_ctx;
    struct http_server_stats stats;
};

/* Asks the task to look again: after a connection ended. */
void server_conn_gone(struct http_server *s);

/* ---- streams ---- */

enum stream_state {
    STREAM_HEAD = 1, /* no answer yet */
    STREAM_ANSWER,   /* head given, body being written */
    STREAM_ENDED,    /* all given by the application, not all on its way */
    STREAM_SENT,     /* all in the connection's out queue; on_close when the socket has it */
    STREAM_CUT,      /* over early; on_close with `why` in this turn */
    STREAM_STATE_COUNT
};

struct http_stream {
    struct list node;      /* conn.streams, then conn.over */
    struct list drain;     /* conn.drained while on_drain is due */
    struct conn *conn;     /* borrowed: outlives its streams */
    void *user;            /* the application's */
    struct http_head head; /* slices in head_memory (h2) or the arena (h1) */
    struct arena arena;
    void *head_memory;      /* owned, may be NULL */
    struct buf out;         /* answer body not yet taken by the protocol */
    struct env_timer timer; /* body and write stalls */
    enum stream_state state;
    enum http_close why;
    int32_t id;            /* h2 */
    uint32_t header_count; /* of head and trailers, against the limit */
    uint32_t header_bytes;
    uint64_t uncredited;    /* body bytes that the application holds */
    uint64_t body_since_us; /* last progress of a body that is due */
    uint64_t body_progress;
    uint64_t write_since_us; /* last progress of an answer that waits */
    uint64_t write_progress;
    uint64_t sent_at;    /* STREAM_SENT: the value of conn.written that frees it */
    int64_t length_left; /* of the announced length; -1: none announced */
    unsigned status;     /* 0 until respond */
    bool no_body;        /* HEAD, 204, 304: what is written is dropped */
    bool body_ended;     /* the request is whole */
    bool continue_sent;
    bool above_high;    /* on_drain is owed once it falls */
    bool close_after;   /* h1: the connection ends with this answer */
    bool wire_open;     /* the protocol still knows the stream */
    bool reset_is_ours; /* h2: the reset that ends it is not the peer's fault */
};

/* Takes over head_memory. The head has been filled by the caller. NULL: no memory. */
struct http_stream *stream_new(struct conn *c);
/* Says on_head; the stream may be cut or answered when it returns. */
void stream_begin(struct http_stream *s);
void stream_body(struct http_stream *s, const void *p, size_t n);
void stream_body_end(struct http_stream *s);
/* n bytes of the answer were taken: buffer, counts, on_drain. */
void stream_took(struct http_stream *s, size_t n);
/* Everything is in the out queue (protocols call it once the last frame or byte is written). */
void stream_sent(struct http_stream *s);
/* Ends it early. Safe at any time, also twice; the protocol is told unless it already let go. */
void stream_cut(struct http_stream *s, enum http_close why);
/* Fields of an answer that only we write (framing), or that would break it (CR, LF, NUL): dropped.
 */
bool stream_field_is_ours(struct http_stream *s, const struct http_field *f);
/* on_close, and the memory goes. */
void stream_free(struct http_stream *s);

/* ---- connections ---- */

enum conn_state {
    CONN_HANDSHAKE = 1, /* TLS, or waiting to see whether the h2 preface comes */
    CONN_OPEN,          /* a protocol has it */
    CONN_CLOSING,       /* out queue drains, then we shut our side; input is dropped */
    CONN_LINGER,        /* our side is shut; input is dropped until the peer closes */
    CONN_STATE_COUNT
};

enum conn_due { /* deadlines; one env timer serves them all */
                DUE_HANDSHAKE,
                DUE_HEADER,
                DUE_IDLE,
                DUE_WRITE,
                DUE_SETTINGS,
                DUE_REFUSE, /* h2: uploads that were answered early are reset */
                DUE_LINGER,
                DUE_COUNT
};

struct conn {
    struct list node; /* http_server.conns */
    struct http_server *server;
    struct env_sock *sock;           /* owned */
    struct tls_session *tls;         /* owned, may be NULL */
    const struct protocol *protocol; /* NULL until known */
    void *impl;                      /* owned by the protocol */
    struct list streams;             /* open */
    struct list over;                /* SENT or CUT, on_close due */
    struct list drained;             /* on_drain due */
    struct buf in;                   /* plaintext that the protocol could not take yet */
    struct buf out;                  /* bytes that the socket did not take yet */
    struct env_task task;
    struct env_timer timer;
    uint64_t due_us[DUE_COUNT]; /* 0: none */
    uint64_t queued;            /* bytes ever given to out */
    uint64_t written;           /* bytes ever taken by the socket */
    uint64_t write_mark;        /* value of written at the last progress */
    uint64_t lingered;
    enum conn_state state;
    enum http_close ending; /* 0, or why its streams end when the task runs */
    enum http_protocols allowed;
    struct env_addr peer;
    unsigned watched;
    uint32_t n_streams; /* in `streams` */
    uint32_t n_over;    /* in `over`; reading rests at streams_max */
    bool abrupt;        /* ending: no flush, no lingering */
    bool cut;           /* an answer broke off: no close_notify, which would make it look whole */
    bool eof;           /* peer closed its side */
    bool secure;
};

/* What h1 and h2 do for a connection. None of these frees the connection or calls on_close. */
struct protocol {
    bool (*open)(struct conn *c); /* false: no memory */
    /* Takes what it can of p; the rest comes again. Ends the connection by conn_end. */
    size_t (*input)(struct conn *c, const uint8_t *p, size_t n);
    bool (*wants_input)(const struct conn *c);
    /* Moves answers into the out queue while it has room. */
    void (*flush)(struct conn *c);
    void (*respond)(struct http_stream *s, const struct http_field *fields, size_t n,
                    int64_t length);
    void (*go_on)(struct http_stream *s); /* 100 Continue */
    void (*wrote)(struct http_stream *s); /* bytes or the end are there */
    void (*credit)(struct http_stream *s, size_t n);
    void (*cut)(struct http_stream *s);       /* the wire's side of stream_cut */
    void (*forget)(struct http_stream *s);    /* its memory goes while the wire still knows it */
    void (*drain)(struct conn *c, bool last); /* GOAWAY, then GOAWAY(last) */
    void (*expired)(struct conn *c, enum conn_due which);
    void (*close)(struct conn *c); /* frees impl */
};
extern const struct protocol h1_server_protocol, h2_server_protocol;

struct h2_shared *h2_shared_new(void);
void h2_shared_free(struct h2_shared *s);

void conn_accepted(struct listener *l, struct env_sock *sock, const struct env_addr *peer);
/* Runs conn_turn before the loop sleeps. */
void conn_mark(struct conn *c);
/* Plaintext for the peer, gathered in the server's stage, encrypted and sent at CONN_STAGE_BYTES or
 * by conn_stage_end. Only between two of those, within one protocol call. */
void conn_stage(struct conn *c, const void *p, size_t n);
void conn_stage_end(struct conn *c);
bool conn_has_room(const struct conn *c); /* the out queue is below its bound */
/* Ends it in this turn: flushes and lingers, unless abrupt. The first reason wins. */
void conn_end(struct conn *c, enum http_close why);
void conn_end_abruptly(struct conn *c, enum http_close why);
/* The only place that frees: on_close for every stream, then socket and memory. */
void conn_free(struct conn *c, enum http_close why);
void conn_due_set(struct conn *c, enum conn_due which, uint64_t at_us);
void conn_due_clear(struct conn *c, enum conn_due which);
void conn_log(struct conn *c, enum log_level level, const char *event, const char *text);

static inline uint64_t conn_now(const struct conn *c)
{
    return env_now_us(c->server->env);
}

#endif
