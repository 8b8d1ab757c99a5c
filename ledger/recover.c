/* recover.c - a journal folder read once, from its oldest record: what was running when it ended.
 *
 * Holds only what is not over: an OPEN until its request closes, a DISPATCH until its attempt does.
 * A request is keyed by its own id; its running attempt is remembered in it (there is one at a
 * time), and a second table finds it by the attempt's event for PROGRESS and CLOSE. */
#include "ledger/recover.h"

#include "ledger/journal_disk.h"

#include "base/map.h"

#include <stdlib.h>

/* Requests alive at one instant, over all epochs not yet resolved: far above what 16 loops run. */
#define RECOVER_LIVE_MAX (4u * RECOVER_ORPHANS_MAX)

struct live {
    struct uuid request, event; /* keys of the two tables; event: while dispatched */
    bool dispatched;
    uint32_t attempts; /* dispatched and not voided */
    int32_t epoch;     /* of its newest record */
    struct orphan o;
};

struct recovery {
    struct map by_request, by_event;
    struct shadows *shadows; /* what the segments may lack */
    struct recovered *out;
};

static struct str key_of(const struct uuid *u)
{
    return str_of(u->b, sizeof(u->b));
}

static void attempt_end(struct recovery *v, struct live *l)
{
    if (l->dispatched) {
        (void)map_del(&v->by_event, key_of(&l->event));
        l->dispatched = false;
    }
}

static void live_end(struct recovery *v, struct live *l)
{
    attempt_end(v, l);
    (void)map_del(&v->by_request, key_of(&l->request));
    mem_free(l);
}

static struct live *live_get(struct recovery *v, struct uuid request, struct err *e)
{
    struct live *l = map_get(&v->by_request, key_of(&request));

    if (l != NULL) {
        return l;
    }
    l = mem_try(1, sizeof(*l));
    if (l != NULL) {
        l->request = request;
        if (map_put(&v->by_request, key_of(&l->request), l)) {
            return l;
        }
        mem_free(l);
    }
    (void)err_set(e, ERR_LIMIT, "more than %u requests are open in the journal", RECOVER_LIVE_MAX);
    return NULL;
}

static bool dispatch_see(struct recovery *v, const struct record_stored *s, struct err *e)
{
    struct live *l = live_get(v, s->r.dispatch.request, e);

    if (l == NULL) {
        return false;
    }
    attempt_end(v, l);
    l->epoch = s->epoch;
    l->dispatched = true;
    l->attempts++;
    l->event = s->r.dispatch.event;
    l->o.dispatch = *s;
    l->o.dispatch.r.dispatch.worker_url.p = l->o.dispatch.url;
    l->o.prompt = l->o.cached = l->o.output = -1;
    if (!map_put(&v->by_event, key_of(&l->event), l)) {
        return err_set(e, ERR_LIMIT, "more than %u attempts are open in the journal",
                       RECOVER_LIVE_MAX);
    }
    return true;
}

static void progress_see(struct recovery *v, const struct record_stored *s)
{
    struct live *l = map_get(&v->by_event, key_of(&s->r.progress.event));

    if (l != NULL) {
        l->o.prompt = s->r.progress.prompt;
        l->o.cached = s->r.progress.cached;
        l->o.output = s->r.progress.output;
        l->o.output_held = s->r.progress.output_held;
    }
}

/* A failed attempt keeps its OPEN: another attempt may follow. */
static void close_see(struct recovery *v, const struct entry *c)
{
    struct live *l = map_get(&v->by_event, key_of(&c->event));

    if (l == NULL) {
        l = map_get(&v->by_request, key_of(&c->request));
        if (l == NULL || l->dispatched) {
            return;
        }
    }
    if (c->outcome == OUTCOME_WORKER_ERROR || c->outcome == OUTCOME_TIMEOUT ||
        c->outcome == OUTCOME_REFUSED_BY_WORKER) {
        attempt_end(v, l);
    } else {
        live_end(v, l);
    }
}

/* Of an attempt: its worker never saw it, another may follow. Of a request: nothing follows. */
static void void_see(struct recovery *v, const struct record_stored *s)
{
    struct live *l;

    if (!uuid_is_zero(s->r.voided.event)) {
        l = map_get(&v->by_event, key_of(&s->r.voided.event));
        if (l != NULL) {
            attempt_end(v, l);
            l->attempts--;
        }
        return;
    }
    l = map_get(&v->by_request, key_of(&s->r.voided.request));
    if (l != NULL && !l->dispatched) {
        live_end(v, l);
    }
}

static bool record_see(struct recovery *v, const struct record_stored *s, struct err *e)
{
    struct live *l;

    switch (s->r.type) {
    case RECORD_OPEN:
        shadow_open_seen(v->shadows, s);
        l = live_get(v, s->r.open.request, e);
        if (l == NULL) {
            return false;
        }
        l->o.open = *s;
        l->epoch = s->epoch;
        return true;
    case RECORD_DISPATCH:
        shadow_known(v->shadows, s->r.dispatch.event);
        return dispatch_see(v, s, e);
    case RECORD_PROGRESS:
        progress_see(v, s);
        return true;
    case RECORD_CLOSE:
        shadow_known(v->shadows, s->r.close.event);
        close_see(v, &s->r.close);
        return true;
    case RECORD_VOID:
        void_see(v, s);
        return true;
    case RECORD_CHECKPOINT:
        return true;
    }
    return true;
}

/* At an epoch's end its process is gone: an OPEN that is at no worker now never will be. */
static void epoch_end(struct recovery *v, int32_t next)
{
    size_t it = 0;
    struct live *l;

    while ((l = map_next(&v->by_request, &it, NULL)) != NULL) {
        if (l->epoch < next && !l->dispatched) {
            v->out->voids += l->attempts > 0 ? 0 : 1;
            live_end(v, l);
        }
    }
}

static bool journal_scan(struct recovery *v, struct journal_reader *r, int32_t epoch, struct err *e)
{
    struct record_stored s;

    for (;;) {
        switch (journal_read(r, &s, e)) {
        case JOURNAL_READ_END:
            epoch_end(v, epoch);
            return true;
        case JOURNAL_READ_CORRUPT:
            return false;
        case JOURNAL_READ_TORN:
            v->out->torn = true;
            continue;
        case JOURNAL_READ_RECORD:
            break;
        }
        if (s.epoch != v->out->last_epoch) {
            epoch_end(v, s.epoch);
            v->out->last_epoch = s.epoch;
        }
        v->out->records++;
        if (!record_see(v, &s, e)) {
            return false;
        }
    }
}

/* Attempts that were put and not written when the process was killed. */
static bool shadows_take(struct recovery *v, struct err *e)
{
    const struct record_stored *open, *dispatch;
    size_t it = 0;
    struct live *l;

    while (shadows_next(v->shadows, &it, &open, &dispatch)) {
        if (open == NULL) {
            continue; /* a loss of power took half of it: nobody could be billed */
        }
        l = live_get(v, dispatch->r.dispatch.request, e);
        if (l == NULL) {
            return false;
        }
        l->o.open = *open;
        if (!dispatch_see(v, dispatch, e)) {
            return false;
        }
    }
    return true;
}

/* What is left with an attempt at a worker; in the order in which the requests came. */
static bool orphans_take(struct recovery *v, struct err *e)
{
    struct recovered *out = v->out;
    size_t it = 0;
    struct live *l;
    struct orphan *o;

    if (v->by_event.count > RECOVER_ORPHANS_MAX) {
        return err_set(e, ERR_LIMIT, "%zu attempts have no end in the journal; at most %d",
                       v->by_event.count, RECOVER_ORPHANS_MAX);
    }
    out->orphans = mem_try(v->by_event.count + 1, sizeof(*out->orphans));
    if (out->orphans == NULL) {
        return err_set(e, ERR_NO_MEMORY, "no memory for %zu orphans", v->by_event.count);
    }
    while ((l = map_next(&v->by_request, &it, NULL)) != NULL) {
        if (l->dispatched) {
            o = &out->orphans[out->n_orphans++];
            *o = l->o;
            o->dispatch.r.dispatch.worker_url.p = o->dispatch.url;
        }
    }
    return true;
}

bool recover_read(struct env *env, const char *dir, int32_t epoch, struct recovered *out,
                  struct err *e)
{
    struct recovery v = {.out = out};
    struct journal_reader *r = journal_reader_open(env, dir, e);
    size_t it = 0;
    struct live *l;
    bool ok;

    *out = (struct recovered){0};
    if (r == NULL) {
        return false;
    }
    v.shadows = shadows_read(env, dir, epoch, e);
    if (v.shadows == NULL) {
        journal_reader_close(r);
        return false;
    }
    map_init(&v.by_request, env_random_u64(env), RECOVER_LIVE_MAX);
    map_init(&v.by_event, env_random_u64(env), RECOVER_LIVE_MAX);
    journal_reader_bound(r, epoch, 0);
    ok = journal_scan(&v, r, epoch, e) && shadows_take(&v, e) && orphans_take(&v, e);
    while ((l = map_next(&v.by_request, &it, NULL)) != NULL) {
        live_end(&v, l);
    }
    map_fini(&v.by_event);
    map_fini(&v.by_request);
    shadows_free(v.shadows);
    journal_reader_close(r);
    if (!ok) {
        recover_free(out);
    }
    return ok;
}

void recover_free(struct recovered *r)
{
    mem_free(r->orphans);
    r->orphans = NULL;
    r->n_orphans = 0;
}

bool recover_rows(struct env *env, const char *dir, int32_t before_epoch, int32_t after_epoch,
                  int64_t after_seq, void (*each)(void *ctx, const struct entry *row), void *ctx,
                  struct err *e)
{
    struct journal_reader *r = journal_reader_open(env, dir, e);
    struct record_stored s;
    enum journal_read got;

    if (r == NULL) {
        return false;
    }
    journal_reader_seek(r, after_epoch, 0);
    journal_reader_bound(r, before_epoch, 0);
    for (;;) {
        got = journal_read(r, &s, e);
        if (got == JOURNAL_READ_END || got == JOURNAL_READ_CORRUPT) {
            break;
        }
        if (got == JOURNAL_READ_RECORD && s.r.type == RECORD_CLOSE &&
            (s.epoch > after_epoch || s.r.close.gw_seq > after_seq)) {
            each(ctx, &s.r.close);
        }
    }
    journal_reader_close(r);
    return got == JOURNAL_READ_END;
}

static int32_t at_least_zero(int32_t v)
{
    return v > 0 ? v : 0;
}

/* What was held for output when the gateway died, as far as the journal knows; never less than what
 * was on its way to the client. A worker goes on until it notices, and its count with it. */
static int32_t output_bound(const struct orphan *o)
{
    int32_t held = o->open.r.open.output_bound;

    held = held > o->output_held ? held : o->output_held;
    return held > o->output ? held : o->output;
}

/* An attempt that gave nothing costs nothing, its prompt included. Prompt and output are billed at
 * their bounds at most: settled <= held. */
static void tokens_of_orphan(const struct orphan *o, int32_t prompt, int32_t cached, int32_t output,
                             struct entry *out)
{
    int32_t bound = o->open.r.open.prompt_bound;

    if (output <= 0) {
        return;
    }
    prompt = at_least_zero(prompt);
    if (bound > 0 && prompt > bound) {
        prompt = bound;
        out->usage_state = USAGE_CLAMPED;
    }
    cached = at_least_zero(cached);
    out->tok.in_cached = cached < prompt ? cached : prompt;
    out->tok.in_uncached = prompt - out->tok.in_cached;
    out->tok.out = output;
    if (output > output_bound(o)) {
        out->tok.out = output_bound(o);
        out->usage_state = USAGE_CLAMPED;
    }
}

void recover_entry(const struct orphan *o, int32_t prompt, int32_t cached, int32_t output,
                   enum usage_state state, const struct price *p, struct entry *out)
{
    bool has_open = o->open.r.type == RECORD_OPEN;

    *out = (struct entry){
        .occurred_us = o->dispatch.r.dispatch.at_us,
        .event = o->dispatch.r.dispatch.event,
        .request = o->dispatch.r.dispatch.request,
        .worker_id = o->dispatch.r.dispatch.worker_id,
        .worker_epoch = o->dispatch.r.dispatch.worker_epoch,
        .attempt = o->dispatch.r.dispatch.attempt,
        .route_reason = o->dispatch.r.dispatch.route_reason,
        .cached_predicted = o->dispatch.r.dispatch.cached_predicted,
        .kind = KIND_USAGE,
        .usage_state = (int16_t)state,
        .outcome = OUTCOME_GATEWAY_RESTART,
        .finish = FINISH_NONE,
    };
    if (has_open) {
        out->occurred_us = o->open.r.open.occurred_us;
        out->tenant_id = o->open.r.open.tenant_id;
        out->project_id = o->open.r.open.project_id;
        out->key_id = o->open.r.open.key_id;
        out->user_id = o->open.r.open.user_id;
        out->tagset_id = o->open.r.open.tagset_id;
        out->price_id = o->open.r.open.price_id;
        out->endpoint = o->open.r.open.endpoint;
        out->model_id = o->open.r.open.model_id;
        out->tier_requested = o->open.r.open.tier_requested;
        out->tier_served = o->open.r.open.tier_served;
        out->hold_nusd = o->open.r.open.hold_nusd;
        tokens_of_orphan(o, prompt, cached, output, out);
    }
    if (p != NULL) {
        out->cost_pusd = price_cost(p, &out->tok).pusd;
        out->list_pusd = price_list_cost(p, &out->tok).pusd;
    }
}
