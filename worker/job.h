/* job.h - one request on the serving loop, and what the serve_*.c files share.
 *
 *   job     BODY -> PREPARING -> WAITING -> RUNNING -> CLOSING -> DONE
 *                   PREPARING -> LEAVING -> DONE          (nobody waits for it any more)
 *   choice  WAITING -> RUNNING -> ANSWERED -> ENDED        (n of them: "n" in the request)
 *           WAITING -> ANSWERED                            (the whole answer was full before)
 *
 * A lane owns a job in PREPARING and LEAVING (serve_submit.c): the loop reads only what it set
 * before. The engine owns a choice's request from submit to its END event, so a job whose client
 * left or whose answer is complete stays in CLOSING until the last of its choices ended, and any
 * event may come for it until then.
 * job_set_state and choice_set_state are the only places that move them. */
#ifndef WORKER_JOB_H
#define WORKER_JOB_H

#include <stdatomic.h>

#include "base/json.h"
#include "base/net/server.h"
#include "worker/engine/detok.h"
#include "worker/engine/grammar_store.h"
#include "worker/engine_thread.h"
#include "worker/kv_events.h"
#include "worker/lane.h"
#include "worker/metrics.h"
#include "worker/prompt.h"
#include "worker/receipts.h"
#include "worker/serve.h"
#include "worker/tool_shape.h"

#define JOB_BODY_BYTES_MAX (32u << 20)
#define JOB_BODIES_BYTES_MAX (256u << 20) /* all bodies that are read or prepared */
#define JOB_ARENA_BYTES_MAX ((size_t)512 << 20)
#define JOB_WAITERS_MAX 4 /* POST /abort answers that wait for one END */
#define JOB_ID_BYTES 40
#define JOB_STOP_IDS_MAX 16 /* stop_token_ids of a request */
#define JOB_CHOICES_MAX 16  /* "n": each is a sequence of the engine */
/* Of a body beside its prompt: tools, schemas, metadata. What is larger than this and the longest
 * prompt in its longest spelling is refused before it is parsed. */
#define JOB_BODY_SLACK_BYTES (2u << 20)
#define JOB_ESCAPE_BYTES 6 /* of one byte of text in JSON: \u0041 */
#define JOB_SEED_SHIFT 11  /* of a drawn seed 53 bits are left */
/* A whole answer as JSON, counted at its longest spelling; the server's own bound of a stream is 40
 * MiB. What would pass it ends with "length". */
#define JOB_ANSWER_BYTES_MAX (32u << 20)
/* A streaming client that does not read: so much unsent for so long, or at once, and it is cut. The
 * engine would go on for it, and its chunks would pile up. */
#define JOB_UNSENT_BYTES (1u << 20)
#define JOB_UNSENT_US 30000000
#define JOB_UNSENT_BYTES_MAX (4u << 20)
#define JOB_LOGPROB_LISTS 4
#define SERVE_LANES 2                      /* short bodies, long ones */
#define SERVE_TEXTS_MAX 32                 /* /tokenize and /detokenize at once */
#define SERVE_LONG_TEXTS_MAX 4             /* of them long: each may keep the lane for seconds */
#define SERVE_SUBSCRIBERS_MAX 64           /* GET /kv_events: one a gateway */
#define SERVE_SUBSCRIBER_BUFFER (8u << 20) /* beyond a snapshot; a slower reader is cut */

/* A refusal: one row of the OpenAI error envelope. */
struct api_error {
    unsigned status;                 /* 0: none */
    const char *type, *code, *param; /* code, param: NULL writes null */
    char message[640];
};

enum job_state {
    JOB_BODY = 1,  /* the request is being read */
    JOB_PREPARING, /* a lane parses and tokenizes it */
    JOB_LEAVING,   /* a lane has it still, but the client left or was answered */
    JOB_WAITING,   /* the engine has it; nothing was scheduled */
    JOB_RUNNING,   /* prefill is scheduled; a stream's head leaves with the first token */
    JOB_CLOSING,   /* the answer is over for the client; END is due */
    JOB_DONE,
    JOB_STATE_COUNT
};

enum job_kind { JOB_CHAT = 1, JOB_COMPLETION, JOB_TOKENIZE, JOB_DETOKENIZE };

/* A token whose text or log-probability is not shown yet. */
struct job_token {
    struct sample_result r;
    uint64_t start; /* byte of the answer's text at which it begins */
};

/* Calls of tools in an answer: from text to deltas (serve_tools.c).
 * AUTO: the model may call. What looks like a call is held until it is whole; if it is none, it is
 * content. FORCED: the grammar lets nothing but calls through, so they are told as they come. */
enum tool_mode { TOOLS_OFF = 0, TOOLS_AUTO, TOOLS_FORCED };
enum tool_step {
    TOOL_TEXT = 0, /* content; a start marker may come */
    TOOL_PLAIN,    /* content to the end: no call can come any more */
    TOOL_VALUE,    /* AUTO: inside the JSON of a call */
    TOOL_END,      /* AUTO: the end marker is due */
    TOOL_BEFORE,   /* FORCED: the literal before a name */
    TOOL_NAME,
    TOOL_ARGUMENTS,
    TOOL_AFTER, /* FORCED: the literal after the arguments, then perhaps a separator */
};

struct tool_text {
    enum tool_step step;
    struct buf held; /* text that is neither told as content nor as a call */
    struct buf told; /* whole answers: calls as JSON, with commas between them */
    uint32_t calls;
    bool is_open; /* a call whose arguments are not complete */
    /* Where the scan of a JSON value in `held` stands. */
    size_t at, depth;
    bool in_string, escaped;
};

enum choice_state {
    CHOICE_WAITING = 1,
    CHOICE_RUNNING,
    CHOICE_ANSWERED, /* its text is final; tokens computed beside it are nobody's */
    CHOICE_ENDED,    /* the engine's END came */
    CHOICE_STATE_COUNT
};

/* One of the n answers. */
struct choice {
    struct job *job;
    enum choice_state state;
    uint32_t index;
    uint64_t ticket; /* generation << 16 | place in serve.by_ticket */
    struct engine_request request;
    struct detok detok;
    struct buf text;   /* content shown so far (whole answers), or since the last chunk */
    struct buf tokens; /* struct job_token[]: for logprobs, not rendered yet */
    struct buf logprobs[JOB_LOGPROB_LISTS]; /* rendered, not sent yet; see serve_logprobs.c */
    uint64_t shown_bytes;                   /* of answer text */
    uint64_t raw_bytes;                     /* of all tokens */
    uint64_t shown_chars; /* before the tokens not rendered yet: completions' text_offset */
    struct tool_text tool;
    uint32_t completion_tokens;
    enum engine_finish finish; /* ANSWERED: as the client was told; ENDED: as the engine said */
    bool opened, abort_sent;
    uint64_t first_token_us, last_token_us;
};

/* The fields of a body that are read (serve_params.c has their names). */
#define JOB_FIELDS_MAX 64

struct job {
    struct serve *serve;        /* borrowed */
    struct http_stream *stream; /* borrowed; NULL once the client is gone or answered */
    enum job_state state;
    enum job_kind kind;
    struct list node; /* in serve.jobs */
    struct arena arena;
    struct buf body;   /* empty from submit on */
    struct json *root; /* NULL from submit on: a waiting request holds its ids, not its text */
    struct json *field[JOB_FIELDS_MAX]; /* members of root; read by job_field */
    size_t body_counted;                /* in serve.body_bytes */
    uint64_t arrived_us;                /* when the head was there */
    /* of PREPARING */
    struct lane_task task;
    struct lane *lane;        /* borrowed */
    struct api_error refusal; /* why it gets no answer */
    struct buf answer;        /* of a text request */
    atomic_bool gone;         /* LEAVING: the lane need not go on */
    bool is_long;             /* in the lane for long bodies */
    bool is_text;             /* /tokenize, /detokenize: the engine never sees it */
    bool draw_seed;           /* it gave none */
    /* what was asked */
    bool streamed, include_usage, usage_each, trusted, echo;
    struct str echo_text; /* of the prompt; empty unless echo */
    uint32_t max_tokens;  /* 0: not given */
    uint32_t n;           /* choices */
    struct str stops[DETOK_STOPS_MAX];
    uint32_t n_stops;
    struct prefix_key key;
    bool has_key;
    struct uuid event;             /* zero: none; its receipt is there from PREPARING on */
    uint64_t deadline_ms;          /* from the head's arrival; 0: none */
    const struct json *tools;      /* rendered into the prompt; NULL from submit on */
    enum tool_mode tool_mode;      /* how the answer is read */
    bool one_call;                 /* parallel_tool_calls: false */
    struct grammar *grammar;       /* retained; NULL: free text */
    struct engine_request request; /* what all choices share */
    struct prompt prompt;
    int32_t stop_ids[2 + JOB_STOP_IDS_MAX];
    /* the answer */
    char id[JOB_ID_BYTES];
    uint64_t created_s;
    struct choice *choice; /* owned; [n]; NULL before submit */
    uint32_t unanswered, unended;
    uint32_t prompt_tokens, cached_tokens;
    bool started, head_sent, was_cut; /* was_cut: its client does not read */
    uint64_t answer_bytes;            /* of a whole answer so far, at its longest spelling */
    struct env_timer unsent;          /* armed while more than JOB_UNSENT_BYTES are unsent */
    uint64_t submitted_us;            /* when the body was there */
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

/* What a worker passes through; the listener is open in each. */
enum serve_state {
    SERVE_LOADING = 1, /* there is no model yet */
    SERVE_WARMING,     /* the first forwards, so that nobody waits for them */
    SERVE_READY,
    SERVE_DRAINING,
    SERVE_STATE_COUNT
};

#define SERVE_WARM_MAX 4         /* requests at once: a batch */
#define SERVE_WARM_TOKENS_MAX 64 /* of a prompt */

struct serve_warm {
    struct engine_request request[SERVE_WARM_MAX];
    int32_t ids[SERVE_WARM_TOKENS_MAX];
    uint32_t round, left;
    struct engine_stats stats; /* taken off the counters */
};

struct serve {
    struct env *env;
    struct log *log;
    struct serve_options o;
    enum serve_state state;
    /* from serve_load on */
    const struct model *model;
    struct backend *backend;
    struct serve_plan plan;
    struct grammar_vocab *vocab;    /* owned */
    struct grammar_store *grammars; /* owned; over vocab */
    struct tool_shape shape;        /* of the family; nothing is defined without a format */
    size_t token_bytes_max; /* longest token: a prompt of n bytes has at least n / that tokens */
    uint32_t live_max;
    struct engine_thread *engine;
    struct choice **by_ticket; /* [live_max] */
    struct serve_warm warm;
    void (*ready)(void *ctx);
    void *ready_ctx;
    struct http_server *server;
    struct list jobs;
    struct lane *lane[SERVE_LANES]; /* owned */
    uint32_t live;                  /* places taken in by_ticket */
    uint32_t preparing, texts;      /* jobs that a lane has: for the engine, and not */
    uint32_t long_texts;            /* of texts */
    uint64_t generation, groups;
    uint64_t body_bytes;       /* of all jobs in BODY, PREPARING and LEAVING; also in metrics */
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
    void (*drained)(void *ctx);
    void *drained_ctx;
};

/* serve.c */
void serve_set_state(struct serve *s, enum serve_state to);
bool serve_is_trusted(const struct serve *s, const struct http_head *h);

/* serve_submit.c: from a body to the engine. */
MUST_USE bool submit_start(struct serve *s, struct err *e);
void submit_stop(struct serve *s); /* the lanes; before what they use */
void submit_body(struct job *j);   /* the body is whole */
/* What a lane does with it: a refusal, a text answer, or a request that the engine could take. Of
 * the job it needs serve, kind, is_text, body, arena and what the headers said. */
void submit_prepare(struct job *j);
void submit_leave(struct job *j); /* of PREPARING: may free it, if its stream is gone */
/* Of PREPARING, with an answer of the engine's to come; NULL: none. */
struct job *submit_find(struct serve *s, struct uuid event);

/* serve_job.c: states, the engine's news about one choice, the end. */
struct job *job_new(struct serve *s, struct http_stream *st, enum job_kind kind);
void job_set_state(struct job *j, enum job_state to);
void job_free(struct job *j);
/* Body, tree and all that points into it; the lane's while it has the job. */
void job_drop_tree(struct job *j);
/* The same, and its bytes are no longer counted: what is answered holds nothing of its request,
 * however slowly the answer is read. */
void job_forget_body(struct job *j);
MUST_USE bool job_choices(struct job *j); /* allocates them; false: no memory */
void choice_set_state(struct choice *c, enum choice_state to);
void choice_abort(struct choice *c); /* tells the engine, once, unless it ended */
void job_abort(struct job *j);
void job_lost_stream(struct job *j);
uint32_t job_completion_tokens(const struct job *j); /* of all choices */
struct job *serve_live_event(struct serve *s, struct uuid event);
void job_news(struct serve *s, const struct engine_event *ev);
void job_note_answered(struct job *j); /* the receipt of an answer that is complete */

/* serve_params.c: fields of the body. false: *x says why. */
void params_pick(struct job *j); /* finds them all, in one walk */
MUST_USE bool params_parse(struct job *j, struct api_error *x);
MUST_USE bool params_model(const struct job *j, struct api_error *x);
MUST_USE bool params_messages(const struct job *j, struct api_error *x);
bool api_refuse(struct api_error *x, unsigned status, const char *code, const char *param,
                const char *fmt, ...) PRINTF_LIKE(5, 6); /* returns false */
bool api_bad(struct api_error *x, const char *param, const char *what);
bool api_unsupported(struct api_error *x, const char *param, const char *what);
const struct json *job_field(const struct job *j, const char *name); /* NULL: absent or null */
MUST_USE bool job_bool(const struct job *j, const char *name, bool *out, struct api_error *x);
/* serve_format.c: response_format and tools; compiles what constrains the answer. */
MUST_USE bool format_parse(struct job *j, struct api_error *x);
/* serve_prompt.c: prompt, limits, and the engine request. */
MUST_USE bool prompt_build(struct job *j, struct api_error *x);
/* ids_max: of a longer prompt not all ids are computed (j->prompt.cut). */
MUST_USE bool prompt_ids_of_chat(struct job *j, uint32_t ids_max, struct api_error *x);
/* Text so long that no tokenization of it could fit is not tokenized. */
MUST_USE bool prompt_bytes_fit(const struct job *j, uint64_t bytes, struct api_error *x);
MUST_USE bool prompt_story(const struct err *e, const char *param, struct api_error *x);

/* serve_api.c */
void api_head(struct serve *s, struct http_stream *st, const struct http_head *h);
void api_body(struct job *j, const void *p, size_t n);
void api_refuse_job(struct job *j, const struct api_error *x); /* BODY, PREPARING */
void api_send_json(struct serve *s, struct http_stream *st, unsigned status, struct str json);
void api_send_error(struct serve *s, struct http_stream *st, const struct api_error *x);
void api_write_error(struct json_writer *w, const struct api_error *x);
MUST_USE bool api_is_serving(const struct serve *s, struct api_error *x);

/* serve_text.c: POST /tokenize and /detokenize, into j->answer. */
MUST_USE bool text_answer(struct job *j, struct api_error *x);

/* serve_stream.c: the answer, from engine events to bytes. */
/* What the answer repeats of its request (echo, n times) fits into it. */
MUST_USE bool answer_fits(struct job *j, struct api_error *x);
void answer_drained(struct job *j);      /* the client reads */
void answer_unread(struct env_timer *t); /* job.unsent: it did not, for too long */
void answer_token(struct choice *c, const struct engine_event *ev);
void answer_end(struct choice *c, enum engine_finish why);
void answer_fail(struct job *j, const struct api_error *x); /* error status or error event */
/* A piece of a tool call, for a stream: the call's head (id and name), or arguments. */
void answer_call(struct choice *c, struct str id, struct str name, struct str arguments);
void answer_text(struct choice *c); /* for a stream: content that was not sent */

/* serve_tools.c */
void tools_init(struct choice *c, size_t text_max);
void tools_fini(struct choice *c);
/* Text that may be shown, as it comes; content is appended to c->text. true: the answer is over. */
bool tools_feed(struct choice *c, struct str text);
void tools_finish(struct choice *c); /* the answer ended: what is held becomes content or a call */

/* serve_logprobs.c. Renders what c->tokens has of the text shown so far. */
void logprobs_settle(struct choice *c);
/* What was rendered and c->tokens as the value of "logprobs"; all of it is dropped. `stopped`:
 * tokens that begin after the shown text are not shown either. */
void logprobs_write(struct json_writer *w, struct choice *c, bool stopped);

/* serve_control.c: models, health, metrics, events, abort, kv_events. false: no such path. */
MUST_USE bool control_head(struct serve *s, struct http_stream *st, const struct http_head *h);
void control_answer_waiters(struct job *j, enum receipt_state state);
void control_stream_closed(struct serve *s, struct http_stream *st, struct exchange *x);
void control_end_subscribers(struct serve *s);
void control_kv_start(struct serve *s);
void control_kv_changed(struct serve *s); /* arms the flush */

#endif
