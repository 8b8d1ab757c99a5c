/* engine_thread.h - the engine on a thread of its own, between two bounded rings.
 *
 * The serving loop sends requests and aborts; the engine sends events and changes of the set of
 * chunk hashes, in the order in which they happened. The command ring cannot overflow: the caller
 * bounds the live requests, and each is one submit and at most one abort, beside the abort of the
 * one that ended on its own before (taken, as it came, before the submit). When the event ring is
 * full the engine waits: the serving loop always drains it. */
#ifndef WORKER_ENGINE_THREAD_H
#define WORKER_ENGINE_THREAD_H

#include "base/env.h"
#include "worker/engine/engine.h"

struct engine_thread;

enum engine_news_kind { ENGINE_NEWS_EVENT = 1, ENGINE_NEWS_STORED, ENGINE_NEWS_REMOVED };

struct engine_news {
    enum engine_news_kind kind;
    union {
        struct engine_event event;
        uint64_t chunk; /* STORED, REMOVED */
    } u;
};

/* Makes the engine (options.waiting_max is raised to live_max: the caller refuses first) and starts
 * the thread. rung is called on env's loop after news came. NULL with a story. */
struct engine_thread *engine_thread_new(const struct model *m, struct backend *b,
                                        const struct engine_options *o, uint32_t live_max,
                                        struct env *env, void (*rung)(void *ctx), void *ctx,
                                        struct err *e);
/* Stops after the step at hand; live requests get no END. */
void engine_thread_free(struct engine_thread *t);
void engine_thread_submit(struct engine_thread *t, struct engine_request *r);
void engine_thread_abort(struct engine_thread *t, uint64_t ticket); /* once a request */
/* false: nothing now. Call engine_thread_drained after the last one. */
MUST_USE bool engine_thread_next(struct engine_thread *t, struct engine_news *out);
void engine_thread_drained(struct engine_thread *t);
void engine_thread_stats(struct engine_thread *t,
                         struct engine_stats *out); /* after the last step */

#endif
