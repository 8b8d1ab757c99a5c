/* worker_events.c - GET /kv_events of one of our workers, kept open; its lines feed whohas.
 *
 * A reconnect asks to resume at epoch:seq; when the first line is a snapshot, or a sequence number
 * is missing, what was known of the worker is dropped first. Events that stay away for
 * EVENTS_GRACE_US leave the worker to dispatch entries. */
#include "gateway/route/fleet.h"

#include <inttypes.h>
#include <stdio.h>

#define EVENTS_RETRY_US 500000
#define EVENTS_GRACE_US 5000000
#define EVENTS_SILENCE_US 5000000 /* heartbeats come every second */
#define EVENTS_ARENA_BYTES (64u << 20)
#define EVENTS_BATCH 4096

static void unsync(struct fleet_worker *fw)
{
    if (fw->synced || atomic_load(&fw->w.publishes)) {
        whohas_reset_worker(fw->fleet->index, fw->w.slot, false);
    }
    fw->synced = false;
    fw->epoch[0] = '\0';
    atomic_store(&fw->w.publishes, false);
}

static void events_again(struct fleet_worker *fw, uint64_t in_us)
{
    if (fw->events != NULL) {
        http_call_cancel(fw->events);
        fw->events = NULL;
    }
    env_timer_arm(fw->fleet->env, &fw->event_timer, env_now_us(fw->fleet->env) + in_us);
}

static bool parse_hash(struct str s, uint64_t *out)
{
    uint64_t v = 0;

    if (s.n != 16) {
        return false;
    }
    for (size_t i = 0; i < 16; i++) {
        char c = s.p[i];
        unsigned d = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                     : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                                            : 16;

        if (d > 15) {
            return false;
        }
        v = v << 4 | d;
    }
    *out = v;
    return true;
}

static void feed(struct fleet_worker *fw, const struct json *list, bool stored)
{
    uint64_t batch[EVENTS_BATCH];
    size_t n = 0;

    if (list == NULL || list->type != JSON_ARRAY) {
        return;
    }
    for (const struct json *v = list->child; v != NULL; v = v->next) {
        if (v->type == JSON_STRING && parse_hash(v->text, &batch[n])) {
            n++;
        }
        if (n == EVENTS_BATCH || (v->next == NULL && n > 0)) {
            if (stored) {
                whohas_stored(fw->fleet->index, fw->w.slot, batch, n);
            } else {
                whohas_removed(fw->fleet->index, fw->w.slot, batch, n);
            }
            n = 0;
        }
    }
}

static void take_snapshot(struct fleet_worker *fw, const struct json *root, const struct json *list)
{
    const struct json *epoch = json_get(root, STR("epoch"));

    if (!fw->synced) {
        whohas_reset_worker(fw->fleet->index, fw->w.slot, true);
        atomic_store(&fw->w.off_permille, 0); /* in step again: trusted again */
        atomic_store(&fw->w.publishes, true);
        fw->synced = true;
    }
    if (epoch != NULL && (epoch->type == JSON_STRING || epoch->type == JSON_NUMBER)) {
        str_copy(epoch->text, fw->epoch, sizeof(fw->epoch));
    }
    feed(fw, list, true);
}

/* false: out of step; the connection starts over. */
static bool take_line(struct fleet_worker *fw, const struct json *root)
{
    const struct json *snapshot = json_get(root, STR("snapshot"));
    int64_t seq;

    if (!json_i64(json_get(root, STR("seq")), &seq) || seq < 0) {
        return json_get(root, STR("heartbeat")) != NULL;
    }
    if (snapshot != NULL) {
        if (fw->fresh) {
            fw->synced = false; /* a resume was refused, or a first connection */
        }
        fw->fresh = false;
        take_snapshot(fw, root, snapshot);
        fw->seq = (uint64_t)seq;
        return true;
    }
    if (fw->fresh && !fw->synced) {
        return false;
    }
    fw->fresh = false;
    if (json_get(root, STR("stored")) == NULL && json_get(root, STR("removed")) == NULL) {
        return true; /* heartbeat with the current number */
    }
    if ((uint64_t)seq != fw->seq + 1) {
        return (uint64_t)seq <= fw->seq; /* a repeat is harmless, a gap is not */
    }
    fw->seq = (uint64_t)seq;
    feed(fw, json_get(root, STR("removed")), false);
    feed(fw, json_get(root, STR("stored")), true);
    atomic_store(&fw->w.publishes, true);
    return true;
}

static bool line_done(struct fleet_worker *fw)
{
    struct arena a;
    struct err e = {.code = ERR_NONE};
    struct json *root;
    bool ok;

    if (fw->line.len == 0) {
        return true;
    }
    arena_init(&a, EVENTS_ARENA_BYTES);
    root = json_parse(&a, buf_view(&fw->line), &json_limits_api, &e);
    ok = root != NULL && root->type == JSON_OBJECT && take_line(fw, root);
    arena_fini(&a);
    buf_reset(&fw->line);
    return ok;
}

static void events_head(void *user, unsigned status, const struct http_fields *f)
{
    struct fleet_worker *fw = user;

    (void)f;
    fw->events_status = status;
    buf_reset(&fw->line);
    fw->fresh = true;
    fw->lost_us = 0;
}

static void out_of_step(struct fleet_worker *fw)
{
    log_event(fw->fleet->log, LOG_INFO, env_wall_us(fw->fleet->env), "kv_events_resync",
              "worker %d %s: a new snapshot is asked for", fw->w.worker_id, fw->w.url);
    unsync(fw);
    events_again(fw, EVENTS_RETRY_US / 10);
}

static void events_body(void *user, const void *p, size_t n)
{
    struct fleet_worker *fw = user;
    const char *c = p;

    if (fw->events_status != 200) {
        return;
    }
    env_timer_arm(fw->fleet->env, &fw->event_timer, env_now_us(fw->fleet->env) + EVENTS_SILENCE_US);
    while (n > 0) {
        const char *nl = memchr(c, '\n', n);
        size_t take = nl != NULL ? (size_t)(nl - c) : n;

        buf_append(&fw->line, c, take);
        if (fw->line.failed) {
            out_of_step(fw);
            return;
        }
        if (nl == NULL) {
            return;
        }
        if (!line_done(fw)) {
            out_of_step(fw);
            return;
        }
        c += take + 1;
        n -= take + 1;
    }
}

static void events_lost(struct fleet_worker *fw)
{
    uint64_t now = env_now_us(fw->fleet->env);

    fw->events = NULL;
    if (fw->lost_us == 0) {
        fw->lost_us = now;
    }
    if (now - fw->lost_us >= EVENTS_GRACE_US) {
        unsync(fw);
    }
    env_timer_arm(fw->fleet->env, &fw->event_timer, now + EVENTS_RETRY_US);
}

static void events_end(void *user)
{
    events_lost(user);
}

static void events_fail(void *user, enum http_fail why, bool sent)
{
    (void)why;
    (void)sent;
    events_lost(user);
}

static void events_fire(struct env_timer *t)
{
    static const struct http_call_events events = {events_head, events_body, events_end,
                                                   events_fail};
    struct fleet_worker *fw = CONTAINER_OF(t, struct fleet_worker, event_timer);
    char auth[512], target[96];
    struct http_field f;
    struct http_call_request req;

    if (fw->events != NULL) { /* silence */
        http_call_cancel(fw->events);
        fw->events = NULL;
    }
    if (fw->synced && fw->epoch[0] != '\0') {
        snprintf(target, sizeof(target), "/kv_events?from=%s:%" PRIu64, fw->epoch, fw->seq);
    } else {
        snprintf(target, sizeof(target), "/kv_events");
    }
    snprintf(auth, sizeof(auth), "Bearer " STR_FMT, STR_ARG(fw->fleet->worker_key));
    f = (struct http_field){STR("authorization"), str_c(auth)};
    req = (struct http_call_request){
        .method = HTTP_GET, .target = str_c(target), .fields = &f, .n_fields = 1};
    env_timer_arm(fw->fleet->env, t, env_now_us(fw->fleet->env) + EVENTS_SILENCE_US);
    fw->events = http_call_start(fw->origin, &req, &events, fw);
    hash_wipe(auth, sizeof(auth));
}

void fleet_events_start(struct fleet_worker *fw)
{
    fw->event_timer.fire = events_fire;
    env_timer_arm(fw->fleet->env, &fw->event_timer, env_now_us(fw->fleet->env));
}

void fleet_events_stop(struct fleet_worker *fw)
{
    env_timer_disarm(fw->fleet->env, &fw->event_timer);
    if (fw->events != NULL) {
        http_call_cancel(fw->events);
        fw->events = NULL;
    }
    unsync(fw);
}
