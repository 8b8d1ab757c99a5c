/* serve.h - the worker's HTTP face: OpenAI-shaped chat and completions, and what the gateway asks.
 *
 * One loop; the engine is on its own thread (worker/engine_thread.h), and bodies are prepared on
 * two more (worker/lane.h). The listener is open from serve_new on, so that whoever asks is told
 * (503) while a model is being loaded; serve_load brings the model, and the first forwards are done
 * before anyone is served. Limits: live answers, those being prepared with them, are sequences_max
 * + waiting_max (503 beyond), a body 32 MiB, all bodies that are read or prepared 256 MiB. */
#ifndef WORKER_SERVE_H
#define WORKER_SERVE_H

#include "base/env.h"
#include "base/log.h"
#include "worker/backend.h"
#include "worker/engine/engine.h"
#include "worker/model/chat.h"

#define SERVE_NAMES_MAX 16

struct serve;

struct serve_options {
    const struct str *names; /* [n_names] of the model; borrowed. The first is the one reported */
    uint32_t n_names;
    struct str worker_key; /* empty: none, x-tollgate-* headers are then ignored; borrowed */
    uint64_t queue_us;     /* how long a request may wait unless it says so itself; 0: for ever */
};

/* What is known once the model is there. */
struct serve_plan {
    enum chat_family family; /* CHAT_NONE: chat is refused, completions work */
    uint32_t max_model_len;  /* prompt and answer, tokens; fits context and pool */
    /* kv_blocks, sequences_max, waiting_max and so on; seed and waiting_max are set by serve. */
    struct engine_options engine;
};

/* env, log and what the options point to are borrowed; the listener is taken. */
struct serve *serve_new(struct env *env, struct log *log, struct env_sock *listener,
                        const struct serve_options *o);
/* Once. model and backend are borrowed. ready is called when requests are taken. false with a
 * story. */
MUST_USE bool serve_load(struct serve *s, const struct model *m, struct backend *b,
                         const struct serve_plan *p, void (*ready)(void *ctx), void *ctx,
                         struct err *e);
/* Stops accepting and ends event streams; running answers go on for at most limit_us and are then
 * ended with an error. done is called once, when the last connection is closed or at the limit. */
void serve_drain(struct serve *s, uint64_t limit_us, void (*done)(void *ctx), void *ctx);
void serve_free(struct serve *s); /* NULL is fine */

#endif
