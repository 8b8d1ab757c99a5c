/* test_serve_submit.c - requests that are prepared beside the loop: who leaves, is aborted, drained
 * or torn down while one waits for its lane, is at hand, or is done and not told yet. Sockets and
 * clock are the test's; lanes and engine are real threads. Also under the thread sanitizer. */
#include "net_fake.h"
#include "worker/job.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/tiny_model.h"

#define KEY "a-worker-key-of-some-length"
#define EVENT "01890000-0000-7000-8000-000000000001"
#define BELLS 4 /* the engine's and two lanes' */
#define HOST " HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " KEY "\r\n"
#define EVENT_FIELD "X-Tollgate-Event: " EVENT "\r\n"
#define ASKED "{\"model\":\"tiny\",\"prompt\":\"ab\",\"max_tokens\":2,\"ignore_eos\":true}"

/* A doorbell that the test answers when it wants to. */
struct env_wake {
    struct world *w;
    void (*rung)(void *ctx);
    void *ctx;
    bool told; /* under lock */
    bool hold; /* under lock: the thread that rings stays until it is false */
};

/* Where a request is when something happens to it. */
enum stage { WAITS, AT_HAND, IS_DONE, STAGES };

struct world {
    struct env_ops ops; /* the fake's, with randomness and doorbells */
    struct fake *fake;
    struct serve *serve;
    struct model *model;
    struct backend backend;
    struct env_sock *peer; /* of the request that matters */
    pthread_mutex_t lock;
    pthread_cond_t bell;
    struct env_wake *wake[BELLS];
    void (*work)(struct lane_task *t); /* what the request at hand does once the gate is open */
    bool inside, open;                 /* under lock: the gate */
    bool ready, drained;
};

static struct world *world_of(struct env *e)
{
    return CONTAINER_OF(e->ops, struct world, ops);
}

static void fake_random(struct env *e, void *p, size_t n)
{
    (void)e;
    memset(p, 0x5A, n);
}

static struct env_wake *wake_new(struct env *e, void (*rung)(void *ctx), void *ctx)
{
    struct world *w = world_of(e);
    struct env_wake *k = mem_new(sizeof(*k));
    size_t i = 0;

    *k = (struct env_wake){.w = w, .rung = rung, .ctx = ctx};
    pthread_mutex_lock(&w->lock);
    while (w->wake[i] != NULL) {
        assert_true(++i < BELLS);
    }
    w->wake[i] = k;
    pthread_mutex_unlock(&w->lock);
    return k;
}

static void wake_free(struct env *e, struct env_wake *k)
{
    struct world *w = world_of(e);

    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < BELLS; i++) {
        if (w->wake[i] == k) {
            w->wake[i] = NULL;
        }
    }
    pthread_mutex_unlock(&w->lock);
    mem_free(k);
}

static void wake_signal(struct env_wake *k)
{
    struct world *w = k->w;

    pthread_mutex_lock(&w->lock);
    k->told = true;
    pthread_cond_broadcast(&w->bell);
    while (k->hold) {
        pthread_cond_wait(&w->bell, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
}

static bool fake_kv_init(struct backend *b, uint32_t blocks, struct err *e)
{
    (void)b;
    (void)blocks;
    (void)e;
    return true;
}

static void fake_forward(struct backend *b, const struct batch *t, float *logits)
{
    struct world *w = CONTAINER_OF(b, struct world, backend);

    memset(logits, 0, (size_t)t->wanted * w->model->vocab * sizeof(*logits));
}

static const struct backend_ops backend_ops = {
    .name = "fake", .kv_init = fake_kv_init, .forward = fake_forward};

/* ctx: the lane's, or the server for the engine's. */
static struct env_wake *bell_of(struct world *w, const void *ctx)
{
    for (size_t i = 0; i < BELLS; i++) {
        if (w->wake[i] != NULL && w->wake[i]->ctx == ctx) {
            return w->wake[i];
        }
    }
    fail_msg("there is no such bell");
    return NULL;
}

static struct env_wake *lane_bell(struct world *w, bool is_long)
{
    return bell_of(w, w->serve->lane[is_long ? 1 : 0]);
}

/* Sleeps until a thread rings, then hears all that rang: a turn of the loop. */
static void hear(struct world *w)
{
    struct env_wake *rung[BELLS];
    size_t n = 0;

    pthread_mutex_lock(&w->lock);
    while (n == 0) {
        for (size_t i = 0; i < BELLS; i++) {
            if (w->wake[i] != NULL && w->wake[i]->told) {
                w->wake[i]->told = false;
                rung[n++] = w->wake[i];
            }
        }
        if (n == 0) {
            pthread_cond_wait(&w->bell, &w->lock);
        }
    }
    pthread_mutex_unlock(&w->lock);
    for (size_t i = 0; i < n; i++) {
        rung[i]->rung(rung[i]->ctx);
    }
    fake_run(w->fake);
}

static void hear_until_prepared(struct world *w)
{
    while (w->serve->preparing + w->serve->texts > 0) {
        hear(w);
    }
}

static void on_ready(void *ctx)
{
    ((struct world *)ctx)->ready = true;
}

static void on_drained(void *ctx)
{
    ((struct world *)ctx)->drained = true;
}

static void world_open(struct world *w)
{
    static const struct str names[] = {STR("tiny")};
    struct serve_options o = {.names = names, .n_names = 1, .worker_key = STR(KEY)};
    struct serve_plan plan = {
        .max_model_len = 64,
        .engine = {.kv_blocks = 16, .sequences_max = 2, .waiting_max = 2, .step_tokens = 64}};
    struct err e = {0};
    char path[64];

    memset(w, 0, sizeof(*w));
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->bell, NULL);
    w->backend.ops = &backend_ops;
    snprintf(path, sizeof(path), "/tmp/tg-submit-%d.gguf", (int)getpid());
    assert_true(tiny_model_write(path, 1));
    w->model = model_open(path, &e);
    assert_non_null(w->model);
    remove(path);
    w->fake = fake_new();
    w->ops = *w->fake->env.ops;
    w->ops.random = fake_random;
    w->ops.wake_new = wake_new;
    w->ops.wake_free = wake_free;
    w->ops.wake_signal = wake_signal;
    w->fake->env.ops = &w->ops;
    w->serve = serve_new(&w->fake->env, NULL, fake_listener(w->fake), &o);
    assert_true(serve_load(w->serve, w->model, &w->backend, &plan, on_ready, w, &e));
    while (!w->ready) {
        hear(w);
    }
}

static void world_close(struct world *w)
{
    serve_free(w->serve);
    fake_free(w->fake);
    model_close(w->model);
    pthread_cond_destroy(&w->bell);
    pthread_mutex_destroy(&w->lock);
}

static struct env_sock *ask(struct world *w, const char *line, const char *fields, const char *body)
{
    struct env_sock *s = fake_connect(w->fake);
    char head[512];

    snprintf(head, sizeof(head), "%s" HOST "%sContent-Length: %zu\r\n\r\n", line, fields,
             strlen(body));
    fake_run(w->fake);
    fake_send_c(s, head);
    fake_send_c(s, body);
    fake_run(w->fake);
    return s;
}

static struct env_sock *complete(struct world *w, const char *body)
{
    return ask(w, "POST /v1/completions", EVENT_FIELD, body);
}

static struct receipt *receipt(struct world *w)
{
    struct uuid event;

    assert_true(uuid_parse(STR(EVENT), &event));
    return receipts_find(w->serve->receipts, event);
}

static void assert_status(struct env_sock *s, const char *status)
{
    assert_true(str_starts(buf_view(&s->tx), STR("HTTP/1.1 ")));
    assert_memory_equal(buf_view(&s->tx).p + 9, status, 3);
}

static void set_hold(struct world *w, struct env_wake *k, bool hold)
{

    pthread_mutex_lock(&w->lock);
    k->hold = hold;
    pthread_cond_broadcast(&w->bell);
    pthread_mutex_unlock(&w->lock);
}

static void wait_for(struct world *w, const bool *flag)
{
    pthread_mutex_lock(&w->lock);
    while (!*flag) {
        pthread_cond_wait(&w->bell, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
}

static void work_behind_the_gate(struct lane_task *t)
{
    struct world *w = world_of(CONTAINER_OF(t, struct job, task)->serve->env);

    pthread_mutex_lock(&w->lock);
    w->inside = true;
    pthread_cond_broadcast(&w->bell);
    while (!w->open) {
        pthread_cond_wait(&w->bell, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    w->work(t);
}

/* The lane stops after a text that came before, so that the request waits; from there it is let
 * into its work, which stops at a gate. */
static void put(struct world *w, enum stage at)
{
    struct job *j;

    if (at != IS_DONE) {
        set_hold(w, lane_bell(w, false), true);
        ask(w, "POST /tokenize", "", "{\"prompt\":\"a\"}");
        wait_for(w, &lane_bell(w, false)->told);
    }
    w->peer = complete(w, ASKED);
    assert_int_equal(w->serve->preparing, 1);
    assert_int_equal(receipt(w)->state, RECEIPT_QUEUED);
    if (at == AT_HAND) {
        j = CONTAINER_OF(w->serve->jobs.prev, struct job, node);
        w->work = j->task.work;
        j->task.work = work_behind_the_gate;
        set_hold(w, lane_bell(w, false), false);
        wait_for(w, &w->inside);
    } else if (at == IS_DONE) {
        wait_for(w, &lane_bell(w, false)->told);
    }
}

static void *let_go(void *ctx)
{
    struct world *w = ctx;

    pthread_mutex_lock(&w->lock);
    w->open = true;
    for (size_t i = 0; i < BELLS; i++) {
        if (w->wake[i] != NULL) {
            w->wake[i]->hold = false;
        }
    }
    pthread_cond_broadcast(&w->bell);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* The lane gives it back: nothing is left of it but its receipt, and the engine never heard. */
static void expect_nothing_left(struct world *w)
{
    assert_int_equal(receipt(w)->state, RECEIPT_ABORTED); /* before the lane is through */
    assert_int_equal(w->serve->metrics.finished_abort, 1);
    let_go(w);
    hear_until_prepared(w);
    assert_int_equal(receipt(w)->state, RECEIPT_ABORTED);
    assert_int_equal(receipt(w)->prompt + receipt(w)->completion, 0);
    assert_int_equal(w->serve->metrics.finished_abort, 1);
    assert_int_equal(w->serve->generation, 0);
    assert_int_equal(w->serve->live, 0);
    assert_int_equal(w->serve->body_bytes, 0);
    assert_true(list_is_empty(&w->serve->jobs));
}

static void a_client_leaves(void **state)
{
    struct world w;

    (void)state;
    for (enum stage at = WAITS; at < STAGES; at++) {
        world_open(&w);
        put(&w, at);
        w.peer->peer_shut = true;
        fake_run(w.fake);
        expect_nothing_left(&w);
        assert_int_equal(w.peer->tx.len, 0);
        world_close(&w);
    }
}

static void an_event_is_aborted(void **state)
{
    struct world w;
    struct env_sock *other;

    (void)state;
    for (enum stage at = WAITS; at < STAGES; at++) {
        world_open(&w);
        put(&w, at);
        other = ask(&w, "POST /abort/" EVENT, "", "");
        assert_non_null(
            strstr(fake_text(other), "\"state\":\"aborted\",\"ended\":true,\"prompt\":0"));
        assert_status(w.peer, "500");
        expect_nothing_left(&w);
        assert_status(complete(&w, ASKED), "409"); /* and is not done again */
        world_close(&w);
    }
}

static void the_server_drains(void **state)
{
    struct world w;

    (void)state;
    for (enum stage at = WAITS; at < STAGES; at++) {
        world_open(&w);
        put(&w, at);
        serve_drain(w.serve, 1, on_drained, &w);
        fake_advance(w.fake, 1);
        assert_status(w.peer, "503");
        w.peer->peer_shut = true; /* it read that */
        expect_nothing_left(&w);
        fake_advance(w.fake, 1000000);
        assert_true(w.drained);
        world_close(&w);
    }
}

static void the_server_is_freed(void **state)
{
    struct world w;
    pthread_t helper;

    (void)state;
    for (enum stage at = WAITS; at < STAGES; at++) {
        world_open(&w);
        put(&w, at);
        assert_int_equal(pthread_create(&helper, NULL, let_go, &w), 0); /* races with the end */
        serve_free(w.serve);
        w.serve = NULL;
        assert_int_equal(pthread_join(helper, NULL), 0);
        world_close(&w);
    }
}

static void an_event_is_known_from_the_moment_it_came(void **state)
{
    struct world w;
    struct env_sock *s;

    (void)state;
    for (enum stage at = WAITS; at < STAGES; at++) {
        world_open(&w);
        put(&w, at);
        s = ask(&w, "GET /events/" EVENT, "", "");
        assert_non_null(strstr(fake_text(s), "\"state\":\"queued\",\"ended\":false,\"prompt\":0"));
        s = complete(&w, ASKED); /* a second one of its name is refused, and leaves: no matter */
        assert_status(s, "409");
        s->peer_shut = true;
        fake_run(w.fake);
        assert_int_equal(receipt(&w)->state, RECEIPT_QUEUED);
        assert_int_equal(w.serve->preparing, 1);
        let_go(&w);
        while (w.peer->tx.len == 0) {
            hear(&w);
        }
        assert_status(w.peer, "200");
        assert_int_equal(receipt(&w)->state, RECEIPT_LENGTH);
        assert_int_equal(receipt(&w)->completion, 2);
        assert_int_equal(w.serve->metrics.finished_abort, 0);
        world_close(&w);
    }
}

static void an_event_that_is_refused_says_so(void **state)
{
    static const char *const bodies[] = {
        "{", "{\"model\":\"tiny\",\"prompt\":\"a\",\"best_of\":3}",
        "{\"model\":\"tiny\",\"prompt\":\"a\",\"max_tokens\":1,\"n\":5}"};
    struct world w;
    struct env_sock *s;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        world_open(&w);
        s = complete(&w, bodies[i]);
        assert_int_equal(receipt(&w)->state, RECEIPT_QUEUED);
        hear_until_prepared(&w);
        assert_status(s, "400");
        s = ask(&w, "GET /events/" EVENT, "", "");
        assert_non_null(strstr(fake_text(s), "\"state\":\"refused\",\"ended\":true,\"prompt\":0"));
        assert_int_equal(w.serve->body_bytes, 0);
        world_close(&w);
    }
}

/* Long texts have few places, and those that are held up hold nobody else up. */
static void long_texts_are_bounded_and_short_requests_pass_them(void **state)
{
    static char text[JOB_BODY_SLACK_BYTES / 16];
    struct env_sock *first, *s;
    struct world w;

    (void)state;
    memset(text, ' ', sizeof(text) - 1);
    memcpy(text, "{\"prompt\":\"a\"}", 14);
    world_open(&w);
    set_hold(&w, lane_bell(&w, true), true);
    first = ask(&w, "POST /tokenize", "", text);
    wait_for(&w, &lane_bell(&w, true)->told);
    for (uint32_t i = 1; i < SERVE_LONG_TEXTS_MAX; i++) {
        ask(&w, "POST /tokenize", "", text);
    }
    assert_int_equal(w.serve->long_texts, SERVE_LONG_TEXTS_MAX);
    s = ask(&w, "POST /tokenize", "", text);
    assert_status(s, "503");
    assert_non_null(strstr(fake_text(s), "All 4 places for long texts are taken"));
    s = ask(&w, "POST /tokenize", "", "{\"prompt\":\"a\"}");
    w.peer = complete(&w, ASKED);
    while (s->tx.len == 0 || w.peer->tx.len == 0) {
        hear(&w);
    }
    assert_status(s, "200");
    assert_status(w.peer, "200");
    assert_int_equal(w.serve->long_texts, SERVE_LONG_TEXTS_MAX - 1); /* its bell was heard too */
    assert_status(first, "200");
    let_go(&w);
    hear_until_prepared(&w);
    assert_int_equal(w.serve->long_texts, 0);
    assert_int_equal(w.serve->body_bytes, 0);
    world_close(&w);
}

/* The engine's news lies in its ring when they leave. */
static void what_the_engine_said_meanwhile_harms_nothing(void **state)
{
    struct world w;

    (void)state;
    for (int aborted = 0; aborted < 2; aborted++) {
        world_open(&w);
        w.peer = complete(&w, ASKED);
        hear_until_prepared(&w);
        wait_for(&w, &bell_of(&w, w.serve)->told); /* it began, and may be over */
        if (aborted) {
            ask(&w, "POST /abort/" EVENT, "", "");
        } else {
            w.peer->peer_shut = true;
            fake_run(w.fake);
        }
        while (w.serve->live > 0) {
            hear(&w);
        }
        assert_true(list_is_empty(&w.serve->jobs));
        assert_false(receipt_is_live(receipt(&w)));
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_leaves),
        cmocka_unit_test(an_event_is_aborted),
        cmocka_unit_test(the_server_drains),
        cmocka_unit_test(the_server_is_freed),
        cmocka_unit_test(an_event_is_known_from_the_moment_it_came),
        cmocka_unit_test(an_event_that_is_refused_says_so),
        cmocka_unit_test(long_texts_are_bounded_and_short_requests_pass_them),
        cmocka_unit_test(what_the_engine_said_meanwhile_harms_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
