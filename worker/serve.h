/* serve.h - the worker's HTTP face: OpenAI-shaped chat and completions, and what the gateway asks.
 *
 * One loop; the engine is on its own thread (worker/engine_thread.h). Limits: live requests are
 * sequences_max + waiting_max (503 beyond), a body 32 MiB, all bodies being read 256 MiB. */
#ifndef WORKER_SERVE_H
#define WORKER_SERVE_H

#include "base/env.h"
#include "base/log.h"
#include "worker/backend.h"
#include "worker/model/chat.h"

struct serve;

struct serve_options {
    struct str name;         /* served model name; borrowed */
    enum chat_family family; /* CHAT_NONE: chat is refused, completions work */
    struct str worker_key;   /* empty: none, x-tollgate-* headers are then ignored; borrowed */
    uint32_t max_model_len;  /* prompt and answer, tokens; fits context and pool */
    uint32_t kv_blocks, sequences_max, waiting_max, step_tokens;
};

/* model, backend, env and log are borrowed; the listener is taken. NULL with a story. */
struct serve *serve_new(struct env *env, struct log *log, const struct model *m, struct backend *b,
                        struct env_sock *listener, const struct serve_options *o, struct err *e);
/* Stops accepting and ends event streams; running answers go on for at most limit_us and are then
 * ended with an error. done is called once, when the last connection is closed or at the limit. */
void serve_drain(struct serve *s, uint64_t limit_us, void (*done)(void *ctx), void *ctx);
void serve_free(struct serve *s);

#endif
