/* job.h - one generation request on the serving loop, and what the serve_*.c files share.
 *
 *   BODY -> WAITING -> RUNNING -> CLOSING -> DONE
 *
 * The engine owns job->request from submit to its END event, so a job whose client left or whose
 * answer is complete stays in CLOSING until then. job_set_state is the only place that moves it. */
#ifndef WORKER_JOB_H
#define WORKER_JOB_H

#include "base/json.h"
#include "base/net/server.h"
#include "worker/engine/detok.h"
#include "worker/engine_thread.h"
#include "worker/kv_events.h"
#include "worker/metrics.h"
#include "worker/prompt.h"
#include "worker/receipts.h"
#include "worker/serve.h"

#define JOB_BODY_BYTES_MAX (32u << 20)
#define JOB_BODIES_BYTES_MAX (256u << 20) /* all bodies being read */
#define JOB_ARENA_BYTES_MAX ((size_t)512 << 20)
#define JOB_WAITERS_MAX 4 /* POST /abort answers that wait for one END */
#define JOB_ID_BYTES 40
#define SERVE_SUBSCRIBERS_MAX 64           /* GET /kv_events: one a gateway */
#define SERVE_SUBSCRIBER_BUFFER (8u << 20) /* beyond a snapshot; a slower reader is cut */

/* A refusal: one row of the OpenAI error envelope. */
struct api_error {
    unsigned status;                 /* 0: none */
    const char *type, *code, *param; /* code, param: NULL writes null */
    char message[640];
};

enum job_state {
    JOB_BODY = 1, /* the request is being read */
    JOB_WAITING,  /* the engine has it; nothing was scheduled */
    JOB_RUNNING,  /* prefill is scheduled; a stream's head leaves with the first token */
    JOB_CLOSING,  /* the answer is over for the client; END is due */
    JOB_DONE,
    JOB_STATE_COUNT
};

/* A token whose text or log-probability is not shown yet. */
struct job_token {
    struct sample_result r;
    uint64_t start; /* byte of the answer's text at which it begins */
};

struct job {
    struct serve *serve;        /* borrowed */
    struct http_stream *stream; /* borrowed; NULL once the client is gone or answered */
    enum job_state state;
    struct list node; /* in serve.jobs */
    uint64_t ticket;  /* 0 before submit */
    struct arena arena;
    struct buf body;   /* empty from submit on */
    struct json *root; /* NULL from submit on: a waiting request holds its ids, not its text */
    /* what was asked */
    bool chat, streamed, include_usage, usage_each, trusted, echo;
    struct str echo_text; /* of the prompt; empty unless echo */
    uint32_t max_tokens;  /* 0: not given */
    struct str stops[DETOK_STOPS_MAX];
    uint32_t n_stops;
    struct prefix_key key;
    bool has_key;
    struct uuid event; /* zero: none */
    /* what the engine reads */
    struct engine_request request;
    struct prompt prompt;
    int32_t stop_id;
    /* the answer */
    char id[JOB_ID_BYTES];
    uint64_t created_s;
    struct detok detok;
    struct buf text;      /* shown so far (whole answers), or since the last chunk */
    struct buf tokens;    /* struct job_token[]: for logprobs, not rendered yet */
    uint64_t shown_bytes; /* of answer text */
    uint64_t raw_bytes;   /* of all tokens */
    uint64_t shown_chars; /* before the tokens not rendered yet: completions' text_offset */
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
    bool abort_sent;
    uint64_t submitted_us, first_token_us, last_token_us;
    struct http_stream *waiters[JOB_WAITERS_MAX];
    uint32_t n_waiters;
};

/* What a stream of the server belongs to (http_stream_user). */
enum exchange_kind { EXCHANGE_JOB = 1, EXCHANGE_WAITER, EXCHANGE_SUBSCRIBER };
struct exchange {
    enum exchange_kind kind;
    struct job *job; /* JOB, WAITER */
    uint32_t slot;   /* SUBSCRIBER: its place */
};

struct serve {
    struct env *env;
    struct log *log;
    const struct model *model;
    struct backend *backend;
    struct serve_options o;
    struct http_server *server;
    struct engine_thread *engine;
    struct list jobs;
    struct job **by_ticket; /* [live_max]; ticket = generation << 16 | slot */
    uint32_t live, live_max;
    uint64_t generation;
    uint64_t body_bytes;       /* of all jobs in BODY; also in metrics */
    size_t token_bytes_max;    /* longest token: a prompt of n bytes has at least n / that tokens */
    struct prefix_key own_key; /* random: salts requests that bring no key */
    struct receipts *receipts;
    struct kv_events *kv;
    struct http_stream *subscriber[SERVE_SUBSCRIBERS_MAX];
    struct env_timer kv_flush, kv_heartbeat, drain_limit;
    uint64_t kv_last_us;
    char epoch[24];
    uint64_t started_s; /* wall clock: `created` of the model */
    struct metrics metrics;
    struct buf out; /* one line or body at a time */
    bool draining;
    void (*drained)(void *ctx);
    void *drained_ctx;
};

/* serve.c */
void job_set_state(struct job *j, enum job_state to);
void job_free(struct job *j);
void serve_abort_job(struct job *j); /* tells the engine, once */
struct job *serve_live_event(struct serve *s, struct uuid event);
bool serve_is_trusted(const struct serve *s, const struct http_head *h);

/* serve_params.c: fields of the body. false: *x says why. */
MUST_USE bool params_parse(struct job *j, struct api_error *x);
bool api_refuse(struct api_error *x, unsigned status, const char *code, const char *param,
                const char *fmt, ...) PRINTF_LIKE(5, 6); /* returns false */
/* serve_prompt.c: prompt, limits, and the engine request. */
MUST_USE bool prompt_build(struct job *j, struct api_error *x);

/* serve_api.c */
void api_head(struct serve *s, struct http_stream *st, const struct http_head *h);
void api_body(struct job *j, const void *p, size_t n);
void api_body_end(struct job *j);
void api_send_json(struct serve *s, struct http_stream *st, unsigned status, struct str json);
void api_send_error(struct serve *s, struct http_stream *st, const struct api_error *x);
void api_write_error(struct json_writer *w, const struct api_error *x);

/* serve_stream.c: the answer, from engine events to bytes. */
void answer_token(struct job *j, const struct engine_event *ev);
void answer_end(struct job *j, enum engine_finish why);
void answer_fail(struct job *j, const struct api_error *x); /* error status or error event */

/* serve_logprobs.c: j->tokens as the value of "logprobs"; what is rendered is dropped. `stopped`:
 * tokens that begin after the shown text are not shown either. */
void logprobs_write(struct json_writer *w, struct job *j, bool stopped);

/* serve_control.c: models, health, metrics, events, abort, kv_events. false: no such path. */
MUST_USE bool control_head(struct serve *s, struct http_stream *st, const struct http_head *h);
void control_answer_waiters(struct job *j, enum receipt_state state);
void control_stream_closed(struct serve *s, struct http_stream *st, struct exchange *x);
void control_end_subscribers(struct serve *s);
void control_kv_start(struct serve *s);
void control_kv_changed(struct serve *s); /* arms the flush */

#endif
