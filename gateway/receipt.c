/* receipt.c - asks a worker what one attempt came to. */
#include "gateway/receipt.h"

#include "base/hash.h"
#include "base/json.h"

#include <stdio.h>

#define RECEIPT_BODY_MAX 4096
#define RECEIPT_ARENA_MAX (64u << 10)
#define RECEIPT_AGAIN_US 100000 /* after our own want of a descriptor, or when it is not known */

static void ask_again(struct env_timer *t);

static void receipt_end(struct receipt *r, const struct receipt_count *count)
{
    env_timer_disarm(r->env, &r->timer);
    buf_fini(&r->body);
    r->call = NULL;
    r->asking = false;
    r->done(r, count);
}

static void on_head(void *user, unsigned status, const struct http_fields *fields)
{
    (void)fields;
    ((struct receipt *)user)->status = status;
}

static void on_body(void *user, const void *p, size_t n)
{
    buf_append(&((struct receipt *)user)->body, p, n);
}

static bool read_count(struct arena *a, const struct receipt *r, struct receipt_count *out)
{
    struct err e = {.code = ERR_NONE};
    const struct json *root = r->status == 200 && !r->body.failed
                                  ? json_parse(a, buf_view(&r->body), &json_limits_api, &e)
                                  : NULL;

    return root != NULL && json_i64(json_get(root, STR("prompt")), &out->prompt) &&
           json_i64(json_get(root, STR("cached")), &out->cached) &&
           json_i64(json_get(root, STR("completion")), &out->completion) && out->prompt >= 0 &&
           out->cached >= 0 && out->cached <= out->prompt && out->completion >= 0;
}

/* false: that would be past until_us. */
static bool ask_later(struct receipt *r, uint64_t until_us)
{
    uint64_t at = env_now_us(r->env) + RECEIPT_AGAIN_US;

    if (at >= until_us) {
        return false;
    }
    buf_reset(&r->body);
    r->timer.fire = ask_again;
    env_timer_arm(r->env, &r->timer, at);
    return true;
}

static void on_end(void *user)
{
    struct receipt *r = user;
    struct receipt_count count = {0};
    struct arena a;
    bool known;

    r->call = NULL;
    if (r->status == 404 && ask_later(r, r->until_us - RECEIPT_US + RECEIPT_UNKNOWN_US)) {
        return;
    }
    arena_init(&a, RECEIPT_ARENA_MAX);
    known = read_count(&a, r, &count);
    arena_fini(&a);
    receipt_end(r, known ? &count : NULL);
}

/* Our own want of a descriptor is no answer: asked again until the time is up. */
static void on_fail(void *user, enum http_fail why, bool sent)
{
    struct receipt *r = user;

    (void)sent;
    r->call = NULL;
    if (why != HTTP_FAIL_LOCAL || !ask_later(r, r->until_us)) {
        receipt_end(r, NULL);
    }
}

static void too_late(struct env_timer *t)
{
    struct receipt *r = CONTAINER_OF(t, struct receipt, timer);

    http_call_cancel(r->call);
    receipt_end(r, NULL);
}

static void ask(struct receipt *r)
{
    static const struct http_call_events events = {on_head, on_body, on_end, on_fail};
    char auth[512], target[16 + UUID_TEXT_BYTES], text[UUID_TEXT_BYTES + 1];
    struct http_field f;
    struct http_call_request req;

    r->status = 0;
    uuid_text(r->event, text);
    snprintf(target, sizeof(target), "/abort/%s", text);
    snprintf(auth, sizeof(auth), "Bearer " STR_FMT, STR_ARG(r->worker_key));
    f = (struct http_field){STR("authorization"), str_c(auth)};
    req = (struct http_call_request){
        .method = HTTP_POST, .target = str_c(target), .fields = &f, .n_fields = 1};
    r->timer.fire = too_late;
    env_timer_arm(r->env, &r->timer, r->until_us);
    r->call = http_call_start(r->origin, &req, &events, r);
    hash_wipe(auth, sizeof(auth));
}

static void ask_again(struct env_timer *t)
{
    ask(CONTAINER_OF(t, struct receipt, timer));
}

void receipt_ask(struct receipt *r, struct env *env, struct http_origin *origin,
                 struct str worker_key, struct uuid event)
{
    r->env = env;
    r->asking = true;
    r->origin = origin;
    r->worker_key = worker_key;
    r->event = event;
    r->until_us = env_now_us(env) + RECEIPT_US;
    buf_init(&r->body, RECEIPT_BODY_MAX);
    ask(r);
}

void receipt_drop(struct receipt *r)
{
    if (!r->asking) {
        return;
    }
    env_timer_disarm(r->env, &r->timer);
    if (r->call != NULL) {
        http_call_cancel(r->call);
    }
    buf_fini(&r->body);
    r->call = NULL;
    r->asking = false;
}
