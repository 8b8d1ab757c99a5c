/* sim_world.h - the gateway and those it meets: clients, workers, the store; and what must hold.
 *
 * The gateway is the product's own code (loop, control, fleet, quota, journal, shipper) on a
 * simulated host; the others are models of what the contracts say. Each request and each attempt at
 * a worker leaves a record here, and sim_check.c compares them with the rows in the end. */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include "gateway/control.h"
#include "gateway/request.h"
#include "sim.h"
#include "sim_h2.h"
#include "sim_http.h"

#define WORLD_TENANTS 3
#define WORLD_KEYS 6 /* two a tenant */
#define WORLD_WORKERS_MAX 4
#define WORLD_CLIENTS_MAX 8
#define WORLD_LINKS 2
#define WORLD_ASKS_MAX 64
#define WORLD_ATTEMPTS_MAX 4096
#define WORLD_EPOCHS_MAX 64
#define WORLD_DIR "/journal"
#define WORLD_WORKER_KEY "worker-key-of-the-simulator"

struct world_sim;

/* ---- clients ---- */

enum ask_kind { ASK_GOOD = 1, ASK_BAD_KEY, ASK_BAD_JSON, ASK_NO_MODEL, ASK_NOT_PRICED };
enum ask_end {
    ASK_PENDING = 0,
    ASK_FINISH,      /* finish reason and a right end (stream), or a whole 200 */
    ASK_ERROR_EVENT, /* a stream that ended in one */
    ASK_REFUSED,     /* an error envelope */
    ASK_LEFT,        /* the client left by itself */
    ASK_CUT,         /* the connection broke off: only when somebody died */
    ASK_NO_CONNECTION,
};

/* One request, as its client remembers it. */
struct ask {
    uint32_t id;
    unsigned tenant, key;
    enum ask_kind kind;
    bool stream, chat, include_usage;
    int64_t max_tokens; /* -1: not said */
    unsigned filler;    /* bytes of prompt beside its mark */
    /* how the client behaves */
    uint64_t leave_in_us; /* 0: stays */
    size_t leave_after;   /* bytes of body; 0: stays */
    bool half_close, slow;
    /* what came */
    enum ask_end end;
    unsigned status;
    uint32_t tokens;  /* of the worker's text, whole ones */
    uint32_t attempt; /* whose text; index into attempts + 1; 0: none */
    bool got_bytes, got_usage,
        excused; /* excused: a host died or the network killed the connection */
    char finish[24], code[40], request_id[40];
    int64_t usage_prompt, usage_cached, usage_completion;
    uint64_t began_us, ended_us;
};

enum h2_closed { H2_OPEN = 0, H2_ENDED, H2_REFUSED, H2_BROKEN, H2_KILLED };

struct client {
    struct world_sim *w;
    struct sim_host host;
    struct env_sock *sock;
    struct http_in in;
    struct buf out;
    struct env_timer timer, leave_timer, resume_timer;
    struct ask *ask; /* at work; NULL: thinks, or is done */
    unsigned asks_left;
    unsigned gateway_lives; /* when the connection was made */
    bool reading;
    struct h2_link *link; /* borrowed; NULL: HTTP/1.1 on a connection of its own */
    int32_t h2_stream;    /* 0: none */
    size_t h2_unread;     /* bytes that came and were not taken: no window for more */
    enum h2_closed h2_closed;
    struct env_timer h2_timer; /* looks at the stream: taking, leaving, its end */
    struct sim_rng rng;
    char name[16];
};

void client_start(struct world_sim *w, unsigned i, unsigned asks, uint64_t at_us);
bool client_is_done(const struct client *c);
void client_stop(struct client *c);
/* sim_hear.c: the end that the bytes in c->in stand for. whole: they ended rightly. */
enum ask_end hear_stream(struct client *c, bool whole);
enum ask_end hear_whole(struct client *c);

/* ---- workers ---- */

/* One request that reached a worker whole. */
struct sim_attempt {
    uint32_t ask; /* id of the ask; 0: could not be read */
    unsigned worker;
    uint64_t epoch;
    struct uuid event; /* zero at a foreign engine */
    uint64_t number;
    int64_t prompt, cached;
    uint32_t generated; /* tokens computed */
    uint32_t goal;      /* computed when nothing stops it */
    bool rogue;         /* claims or computes more than it may: the bill stays within the hold */
    const char *state;  /* as /events says */
    bool running, forgotten; /* forgotten: its worker restarted since */
    bool finished; /* a finish reason went out: only then may the client hear of a right end */
    bool lost;     /* a kill took its DISPATCH before it was on the disk */
    uint64_t began_us, ended_us;
};

struct worker_conn;
struct worker_sim {
    struct world_sim *w;
    struct sim_host host;
    unsigned index;
    enum engine_kind engine;
    int32_t worker_id;
    struct env_addr addr;
    char url[64], name[16];
    struct env_sock *listener; /* NULL: down */
    struct list conns;
    uint64_t epoch, token_us, prefill_us;
    unsigned trouble;      /* permille of requests that go wrong */
    struct uuid tombs[64]; /* events that were aborted before they came */
    unsigned n_tombs;
    uint64_t kv_seq;
    bool sick;               /* /health answers 503 */
    bool draining, unlisted; /* as the configuration has it */
    struct sim_rng rng;
};

void worker_start(struct world_sim *w, unsigned i);
void worker_up(struct worker_sim *k);
void worker_down(struct worker_sim *k); /* the process dies: resets, and forgets its events */
void worker_stop(struct worker_sim *k);
/* Text of token i of an attempt. */
int worker_token(const struct world_sim *w, uint32_t attempt, uint32_t i, char out[64]);

/* ---- the store ---- */

struct store_epoch {
    int32_t epoch;
    int64_t last_seq;
};

struct store_sim {
    struct world_sim *w;
    struct entry *rows; /* owned */
    size_t n, cap;
    struct store_epoch epochs[WORLD_EPOCHS_MAX];
    unsigned n_epochs;
    bool down;
    unsigned
        trouble; /* permille of calls that fail; half of the commits then are in all the same */
    struct sim_rng rng;
};

void store_init(struct store_sim *s, struct world_sim *w);
void store_fini(struct store_sim *s);
struct ship_store store_as_ship_store(struct store_sim *s);
/* What a row holds beside its cost: of one whose cost nobody knows. Nano-USD. */
int64_t store_suspense(const struct entry *row);
const struct entry *store_row_of_event(const struct store_sim *s, struct uuid event);

/* ---- the world ---- */

struct plan { /* what this seed's run is like */
    unsigned clients, workers;
    uint64_t trouble_until_us; /* faults and killings end here */
    unsigned kills, worker_kills, store_outages, disk_fulls, reloads;
    bool drain;
    bool gentle; /* nothing keeps a restarted gateway from asking its workers */
    uint32_t segment_records;
};

struct world_options {
    bool verbose;
    bool fsync_fails;    /* fdatasync may fail: the gateway must stop at once */
    bool stale_snapshot; /* a gateway that restarts without the store has an old file only */
};

struct window { /* what a kill took with it: attempts whose DISPATCH was not on the disk */
    uint32_t attempts, tokens;
};

struct world_sim {
    struct sim *sim;
    struct sim_rng rng;
    struct world_options options;
    struct plan plan;
    struct log *log;
    /* the gateway; NULLs while it is down */
    struct sim_host gateway_host;
    struct gateway *gw;
    struct control control;
    struct recovered recovered;
    bool up, recovering, drained, quiet;
    unsigned lives;
    struct env_timer journal_timer, ship_timer, restart_timer, operator_timer;
    uint64_t died_us;
    /* the others */
    struct client clients[WORLD_CLIENTS_MAX];
    struct h2_link *links[WORLD_LINKS];
    struct worker_sim workers[WORLD_WORKERS_MAX];
    struct store_sim store;
    char keys[WORLD_KEYS][64];
    uint8_t key_hmac[WORLD_KEYS][SHA256_BYTES];
    struct quota_limits tenant_limits[WORLD_TENANTS], key_limits[WORLD_KEYS];
    int64_t tenant_seed_nusd[WORLD_TENANTS], key_seed_nusd[WORLD_KEYS]; /* spent when it came up */
    /* the records */
    struct ask asks[WORLD_ASKS_MAX];
    uint32_t n_asks;
    struct sim_attempt attempts[WORLD_ATTEMPTS_MAX];
    uint32_t n_attempts;
    struct window window;
};

struct world_sim *world_new(uint64_t seed, const struct world_options *o, struct log *log);
void world_free(struct world_sim *w);
/* Runs it to quiet; then everything is checked. */
void world_run(struct world_sim *w);

/* sim_gateway.c: the gateway's process. */
bool gateway_start(struct world_sim *w);
void gateway_kill(struct world_sim *w, bool power);
void gateway_bury(struct world_sim *w);   /* frees what a dead one left behind */
void gateway_stop(struct world_sim *w);   /* an orderly end */
void gateway_reload(struct world_sim *w); /* a changed configuration */
bool gateway_is_idle(const struct world_sim *w);
struct snapshot *gateway_snapshot(struct world_sim *w);

/* sim_check.c */
void check_turn(struct world_sim *w); /* what must hold at any time */
void check_idle(struct world_sim *w); /* at quiet, gateway still up */
void check_end(struct world_sim *w);  /* after its orderly end */

#endif
