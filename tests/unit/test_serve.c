/* test_serve.c - the worker's streams over an env without sockets: who does not read is cut, at the
 * bound and not before; news of the engine that was on its way when the answer was over harms
 * nothing. There is no engine here: what it would say is said by the test. */
#include "net_fake.h"
#include "worker/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/tiny_model.h"

#define KEY "a-worker-key-of-some-length"
#define SECOND 1000000u
#define HASHES 4096
#define ROUNDS_MAX 400

struct world {
    struct fake *fake;
    struct env_ops ops; /* the fake's, with randomness */
    struct serve *serve;
};

static void fake_random(struct env *e, void *p, size_t n)
{
    (void)e;
    memset(p, 0x5A, n);
}

static void world_open(struct world *w)
{
    static const struct str names[] = {STR("tiny")};
    struct serve_options o = {.names = names, .n_names = 1, .worker_key = STR(KEY)};

    memset(w, 0, sizeof(*w));
    w->fake = fake_new();
    w->ops = *w->fake->env.ops;
    w->ops.random = fake_random;
    w->fake->env.ops = &w->ops;
    w->serve = serve_new(&w->fake->env, NULL, fake_listener(w->fake), &o);
    w->serve->state = SERVE_READY; /* there is no model to wait for */
    w->serve->token_bytes_max = 8;
    control_kv_start(w->serve);
}

static void world_close(struct world *w)
{
    serve_free(w->serve);
    fake_free(w->fake);
}

static struct env_sock *ask(struct world *w, const char *request)
{
    struct env_sock *s = fake_connect(w->fake);

    fake_run(w->fake);
    fake_send_c(s, request);
    fake_run(w->fake);
    return s;
}

static struct env_sock *follow(struct world *w)
{
    return ask(w, "GET /kv_events HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " KEY "\r\n\r\n");
}

/* A set of hashes comes, or goes, and is told. */
static void change(struct world *w, uint64_t first, uint32_t n, bool held)
{
    for (uint32_t i = 0; i < n; i++) {
        kv_events_change(w->serve->kv, first + i, held);
    }
    control_kv_changed(w->serve);
    fake_advance(w->fake, KV_EVENTS_COALESCE_US);
}

static void a_slow_reader_of_the_events_is_cut_and_the_others_go_on(void **state)
{
    struct world w;
    struct env_sock *slow, *quick;
    size_t most = 0;
    uint32_t round = 0;

    (void)state;
    world_open(&w);
    slow = follow(&w);
    quick = follow(&w);
    assert_non_null(w.serve->subscriber[0]);
    assert_non_null(w.serve->subscriber[1]);
    slow->tx_room = 0;
    while (w.serve->subscriber[0] != NULL && ++round < ROUNDS_MAX) {
        change(&w, 1, HASHES, true);
        change(&w, 1, HASHES, false); /* nothing is held: the bound is the plain one */
        if (w.serve->subscriber[0] != NULL) {
            most = size_max(most, http_stream_buffered(w.serve->subscriber[0]));
        }
        assert_true(buf_view(&quick->tx).n > 0);
        buf_reset(&quick->tx);
    }
    assert_true(round < ROUNDS_MAX);
    assert_true(most <= SERVE_SUBSCRIBER_BUFFER);
    assert_true(most > SERVE_SUBSCRIBER_BUFFER / 2); /* and not long before it */
    fake_advance(w.fake, http_limits_default.write_stall_us);
    assert_true(slow->closed);
    assert_non_null(w.serve->subscriber[1]);
    change(&w, 7, 1, true);
    assert_non_null(strstr(fake_text(quick), "\"stored\":[\"0000000000000007\"]"));
    world_close(&w);
}

/* A large set is one snapshot, far beyond the bound of a reader that is in step. */
static void a_reader_that_just_came_may_have_its_snapshot(void **state)
{
    struct world w;
    struct env_sock *s;
    uint32_t n = 2 * (SERVE_SUBSCRIBER_BUFFER / KV_EVENTS_HASH_BYTES);

    (void)state;
    world_open(&w);
    change(&w, 1, n, true);
    s = fake_connect(w.fake);
    fake_run(w.fake);
    s->tx_room = 0;
    fake_send_c(s, "GET /kv_events HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " KEY "\r\n\r\n");
    fake_run(w.fake);
    assert_non_null(w.serve->subscriber[0]);
    assert_true(http_stream_buffered(w.serve->subscriber[0]) > SERVE_SUBSCRIBER_BUFFER);
    change(&w, n + 1, 1, true);
    assert_non_null(w.serve->subscriber[0]);
    assert_int_equal(w.serve->metrics.kv_resyncs, 1);
    world_close(&w);
}

/* A job whose answer the test tells: one choice that streams, or two that are whole. */
static struct job *open_answer(struct world *w, struct env_sock **peer, bool streamed)
{
    struct job *j;

    *peer = ask(w, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " KEY
                   "\r\nContent-Length: 2\r\n\r\n");
    assert_false(list_is_empty(&w->serve->jobs));
    j = CONTAINER_OF(w->serve->jobs.next, struct job, node);
    j->kind = JOB_CHAT;
    j->streamed = streamed;
    j->n = streamed ? 1 : 2;
    j->request.max_tokens = 1u << 20;
    job_set_state(j, JOB_PREPARING);
    job_set_state(j, JOB_WAITING);
    job_set_state(j, JOB_RUNNING);
    assert_true(job_choices(j));
    for (uint32_t i = 0; i < j->n; i++) {
        choice_set_state(&j->choice[i], CHOICE_RUNNING);
        j->choice[i].abort_sent = true; /* there is no engine to tell */
    }
    fake_send_c(*peer, "{}");
    if (streamed) {
        http_stream_respond(j->stream, 200, NULL, 0, -1);
    }
    fake_run(w->fake);
    return j;
}

static void say(struct world *w, struct job *j, size_t bytes)
{
    static const char text[4096] = {[0 ... 4095] = 'x'};

    for (size_t n = 0; n < bytes; n += sizeof(text)) {
        buf_append(&j->choice[0].text, text, sizeof(text));
        answer_text(&j->choice[0]);
    }
    fake_run(w->fake);
}

static void a_client_that_does_not_read_is_cut_after_its_time(void **state)
{
    struct world w;
    struct env_sock *peer;
    struct job *j;

    (void)state;
    world_open(&w);
    j = open_answer(&w, &peer, true);
    peer->tx_room = 0;
    say(&w, j, JOB_UNSENT_BYTES + (1u << 20));
    fake_advance(w.fake, JOB_UNSENT_US - SECOND);
    assert_non_null(j->stream);
    fake_advance(w.fake, SECOND);
    assert_null(j->stream);
    assert_int_equal(j->state, JOB_CLOSING); /* the engine was told */
    assert_int_equal(w.serve->metrics.unread, 1);
    world_close(&w);
}

static void a_client_that_reads_late_is_not_cut(void **state)
{
    struct world w;
    struct env_sock *peer;
    struct job *j;

    (void)state;
    world_open(&w);
    j = open_answer(&w, &peer, true);
    for (uint32_t i = 0; i < 3; i++) {
        peer->tx_room = 0;
        say(&w, j, JOB_UNSENT_BYTES + (1u << 20));
        fake_advance(w.fake, JOB_UNSENT_US - SECOND);
        peer->tx_room = SIZE_MAX;
        fake_run(w.fake);
        buf_reset(&peer->tx);
    }
    fake_advance(w.fake, 3 * JOB_UNSENT_US);
    assert_non_null(j->stream);
    assert_int_equal(w.serve->metrics.unread, 0);
    world_close(&w);
}

static void a_client_that_is_far_behind_is_cut_at_once(void **state)
{
    struct world w;
    struct env_sock *peer;
    struct job *j;

    (void)state;
    world_open(&w);
    j = open_answer(&w, &peer, true);
    peer->tx_room = 0;
    say(&w, j, JOB_UNSENT_BYTES_MAX - (1u << 20));
    assert_non_null(j->stream);
    say(&w, j, 2u << 20);
    assert_null(j->stream);
    assert_int_equal(w.serve->metrics.unread, 1); /* once, though more was said */
    world_close(&w);
}

static void open_model(struct world *w)
{
    struct err e = {0};
    char path[64];

    snprintf(path, sizeof(path), "/tmp/tg-serve-%d.gguf", (int)getpid());
    assert_true(tiny_model_write(path, 1));
    w->serve->model = model_open(path, &e);
    assert_non_null(w->serve->model);
    remove(path);
}

static void close_model(struct world *w)
{
    struct model *m = (struct model *)w->serve->model;

    world_close(w);
    model_close(m);
}

/* Two whole answers with all alternatives, told token by token until they are over. */
static void a_whole_answer_ends_by_length_before_it_is_too_large_to_send(void **state)
{
    struct engine_event ev = {.kind = ENGINE_TOKEN};
    struct world w;
    struct env_sock *peer;
    struct job *j;
    struct str head, length;

    (void)state;
    world_open(&w);
    open_model(&w);
    j = open_answer(&w, &peer, false);
    j->choice[0].request.sample.logprobs = j->request.sample.logprobs = true;
    j->choice[1].request.sample.logprobs = true;
    ev.token.id = 'b' - 'a' + 100;
    ev.token.top_count = SAMPLE_TOP_LOGPROBS_MAX;
    for (uint32_t k = 0; k < SAMPLE_TOP_LOGPROBS_MAX; k++) {
        ev.token.top[k].id = 50 + (int32_t)k;
        ev.token.top[k].logprob = -1.2345678f;
    }
    for (uint32_t n = 0; j->state == JOB_RUNNING; n++) {
        assert_true(n < j->request.max_tokens);
        answer_token(&j->choice[n % 2], &ev);
        fake_run(w.fake);
    }
    assert_int_equal(j->choice[0].finish, ENGINE_LENGTH);
    assert_int_equal(j->choice[1].finish, ENGINE_LENGTH);
    head = buf_view(&peer->tx);
    assert_true(str_starts(head, STR("HTTP/1.1 200")));
    assert_true(str_ends(head, STR("}")));
    assert_true(str_cut(str_of(strstr(head.p, "content-length: ") + 16, 16), '\r', &length, &head));
    assert_in_range(atoi(length.p), JOB_ANSWER_BYTES_MAX / 4, JOB_ANSWER_BYTES_MAX);
    close_model(&w);
}

#define EVENT "01890000-0000-7000-8000-000000000001"

/* Two whole answers that the engine has: the first runs if asked, the second waits. */
static struct job *open_waiting(struct world *w, struct env_sock **peer, bool first_runs)
{
    struct serve *s = w->serve;
    struct receipt *r;
    struct job *j;

    *peer = ask(w, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " KEY
                   "\r\nX-Tollgate-Event: " EVENT "\r\nContent-Length: 2\r\n\r\n");
    j = CONTAINER_OF(s->jobs.next, struct job, node);
    j->n = 2;
    j->request.max_tokens = 16;
    job_set_state(j, JOB_PREPARING);
    job_set_state(j, JOB_WAITING);
    assert_true(job_choices(j));
    r = receipts_add(s->receipts, j->event);
    assert_non_null(r);
    s->live = s->live_max = j->n;
    s->by_ticket = mem_new(j->n * sizeof(*s->by_ticket));
    for (uint32_t i = 0; i < j->n; i++) {
        s->by_ticket[i] = &j->choice[i];
        j->choice[i].ticket = (uint64_t)(i + 1) << 16 | i;
        j->choice[i].abort_sent = true; /* there is no engine to tell */
    }
    r->ticket = j->choice[0].ticket;
    fake_send_c(*peer, "{}");
    fake_run(w->fake);
    if (first_runs) {
        job_news(s, &(struct engine_event){.kind = ENGINE_STARTED, .ticket = r->ticket});
        assert_int_equal(j->state, JOB_RUNNING);
    }
    return j;
}

static void tell(struct world *w, uint32_t i, int kind, enum engine_finish finish)
{
    struct engine_event ev = {.kind = ENGINE_TOKEN,
                              .ticket = (uint64_t)(i + 1) << 16 | i,
                              .completion_tokens = w->serve->by_ticket[i]->completion_tokens + 1,
                              .token = {.id = 'b' - 'a' + 100},
                              .finish = finish};

    ev.kind = kind;
    job_news(w->serve, &ev);
    fake_run(w->fake);
}

/* All that the engine may say of the second choice until it hears that nobody wants it. */
static void tell_late_news(struct world *w, uint32_t tokens)
{
    tell(w, 1, ENGINE_STARTED, 0);
    for (uint32_t i = 0; i < tokens; i++) {
        tell(w, 1, ENGINE_TOKEN, 0);
    }
    tell(w, 1, ENGINE_END, tokens > 1 ? ENGINE_LENGTH : ENGINE_ABORTED);
}

static struct receipt *receipt(struct world *w)
{
    struct uuid event;

    assert_true(uuid_parse(STR(EVENT), &event));
    return receipts_find(w->serve->receipts, event);
}

static void a_choice_that_waits_may_begin_after_its_answer_was_full(void **state)
{
    struct world w;
    struct env_sock *peer;
    struct job *j;

    (void)state;
    for (uint32_t tokens = 0; tokens < 3; tokens++) {
        world_open(&w);
        open_model(&w);
        j = open_waiting(&w, &peer, true);
        j->answer_bytes = JOB_ANSWER_BYTES_MAX;
        tell(&w, 0, ENGINE_TOKEN, 0);
        assert_int_equal(j->state, JOB_CLOSING);
        assert_int_equal(j->choice[1].state, CHOICE_ANSWERED);
        assert_true(str_starts(buf_view(&peer->tx), STR("HTTP/1.1 200")));
        tell_late_news(&w, tokens);
        assert_int_equal(j->choice[1].completion_tokens, 0); /* nobody's */
        tell(&w, 0, ENGINE_END, ENGINE_ABORTED);
        assert_int_equal(w.serve->live, 0);
        assert_int_equal(w.serve->metrics.finished_length, 1);
        assert_int_equal(receipt(&w)->state, RECEIPT_LENGTH);
        assert_int_equal(receipt(&w)->completion, 1);
        close_model(&w);
    }
}

static void choices_that_wait_may_begin_after_their_client_left(void **state)
{
    struct world w;
    struct env_sock *peer;
    struct job *j;

    (void)state;
    for (uint32_t tokens = 0; tokens < 3; tokens++) {
        world_open(&w);
        open_model(&w);
        j = open_waiting(&w, &peer, false);
        peer->peer_shut = true;
        fake_run(w.fake);
        assert_null(j->stream);
        assert_int_equal(j->state, JOB_CLOSING);
        assert_int_equal(j->choice[1].state, CHOICE_WAITING);
        tell_late_news(&w, tokens);
        tell(&w, 0, ENGINE_END, ENGINE_ABORTED); /* it never began */
        assert_true(list_is_empty(&w.serve->jobs));
        assert_int_equal(w.serve->live, 0);
        assert_int_equal(w.serve->metrics.finished_abort, 1);
        assert_int_equal(receipt(&w)->state, RECEIPT_ABORTED);
        assert_int_equal(receipt(&w)->completion, tokens);
        close_model(&w);
    }
}

static void choices_that_wait_may_begin_after_they_were_aborted(void **state)
{
    struct world w;
    struct env_sock *peer, *other;
    struct job *j;

    (void)state;
    for (uint32_t tokens = 0; tokens < 2; tokens++) {
        world_open(&w);
        open_model(&w);
        j = open_waiting(&w, &peer, false);
        other = ask(&w, "POST /abort/" EVENT " HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " KEY
                        "\r\n\r\n");
        assert_int_equal(j->n_waiters, 1);
        tell(&w, 0, ENGINE_END, ENGINE_ABORTED); /* it never began; the client is told */
        assert_true(str_starts(buf_view(&peer->tx), STR("HTTP/1.1 500")));
        assert_int_equal(j->state, JOB_CLOSING);
        tell_late_news(&w, tokens);
        assert_non_null(strstr(fake_text(other), "\"state\":\"aborted\",\"ended\":true"));
        assert_int_equal(w.serve->live, 0);
        assert_int_equal(w.serve->metrics.finished_abort, 1);
        assert_int_equal(receipt(&w)->completion, tokens);
        close_model(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_reader_of_the_events_is_cut_and_the_others_go_on),
        cmocka_unit_test(a_reader_that_just_came_may_have_its_snapshot),
        cmocka_unit_test(a_client_that_does_not_read_is_cut_after_its_time),
        cmocka_unit_test(a_client_that_reads_late_is_not_cut),
        cmocka_unit_test(a_client_that_is_far_behind_is_cut_at_once),
        cmocka_unit_test(a_whole_answer_ends_by_length_before_it_is_too_large_to_send),
        cmocka_unit_test(a_choice_that_waits_may_begin_after_its_answer_was_full),
        cmocka_unit_test(choices_that_wait_may_begin_after_their_client_left),
        cmocka_unit_test(choices_that_wait_may_begin_after_they_were_aborted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
