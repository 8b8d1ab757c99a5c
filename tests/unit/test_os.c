/* test_os.c - the real env: order and bounds of timers, tasks, sockets, doorbells, look-ups, files.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/net/os.h"

#define TURNS_MAX 2000
#define TURN_US 50000

static struct env *env_make(struct resolver *r)
{
    struct err e = {.code = ERR_NONE};
    struct env *env = os_env_new(r, &e);

    assert_non_null(env);
    return env;
}

/* Turns the loop until *flag reaches n; fails rather than hangs. */
static void turn_until(struct env *env, const int *flag, int n)
{
    for (int i = 0; i < TURNS_MAX && *flag < n; i++) {
        os_turn(env, TURN_US);
    }
    assert_true(*flag >= n);
}

/* ---- timers ---- */

struct tick {
    struct env_timer timer;
    struct env *env;
    int *fired;
    uint64_t *last_due;
};

static void tick_fire(struct env_timer *t)
{
    struct tick *tick = CONTAINER_OF(t, struct tick, timer);

    assert_false(env_timer_is_armed(t));
    assert_true(env_now_us(tick->env) >= t->due_us);
    assert_true(t->due_us >= *tick->last_due);
    *tick->last_due = t->due_us;
    ++*tick->fired;
}

static void timers_fire_in_order_of_due_time_and_disarmed_ones_do_not(void **state)
{
    enum { N = 500 };
    struct env *env = env_make(NULL);
    struct tick *ticks = calloc(N, sizeof(*ticks));
    uint64_t last_due = 0, now = env_now_us(env);
    int fired = 0;

    (void)state;
    for (int i = 0; i < N; i++) {
        ticks[i] = (struct tick){{tick_fire, 0, 0}, env, &fired, &last_due};
        env_timer_arm(env, &ticks[i].timer, now + (uint64_t)(i * 7919 % 5000));
    }
    for (int i = 0; i < N; i += 2) {
        env_timer_disarm(env, &ticks[i].timer);
    }
    for (int i = 1; i < N; i += 4) { /* moved, earlier or later */
        env_timer_arm(env, &ticks[i].timer, now + (uint64_t)(i * 104729 % 5000));
    }
    turn_until(env, &fired, N / 2);
    os_turn(env, 0);
    assert_int_equal(fired, N / 2);
    free(ticks);
    os_env_free(env);
}

static void rearm_fire(struct env_timer *t)
{
    struct tick *tick = CONTAINER_OF(t, struct tick, timer);

    ++*tick->fired;
    env_timer_arm(tick->env, t, env_now_us(tick->env));
}

static void a_timer_that_rearms_for_now_does_not_hold_the_loop(void **state)
{
    struct env *env = env_make(NULL);
    int fired = 0;
    struct tick tick = {{rearm_fire, 0, 0}, env, &fired, NULL};

    (void)state;
    env_timer_arm(env, &tick.timer, 0);
    os_turn(env, 0);
    assert_int_equal(fired, 1);
    os_turn(env, TURN_US);
    assert_int_equal(fired, 2);
    env_timer_disarm(env, &tick.timer);
    os_env_free(env);
}

static void now_is_constant_within_a_turn(void **state)
{
    struct env *env = env_make(NULL);
    uint64_t before = env_now_us(env);
    struct timespec ms = {0, 2000000};

    (void)state;
    nanosleep(&ms, NULL);
    assert_true(env_now_us(env) == before);
    os_turn(env, 0);
    assert_true(env_now_us(env) >= before + 2000);
    os_env_free(env);
}

/* ---- tasks ---- */

struct job {
    struct env_task task;
    struct env *env;
    int runs, runs_max;
};

static void job_run(struct env_task *t)
{
    struct job *job = CONTAINER_OF(t, struct job, task);

    if (++job->runs < job->runs_max) {
        env_defer(job->env, t);
    }
}

static void deferred_tasks_run_once_before_sleep(void **state)
{
    struct env *env = env_make(NULL);
    struct job a = {.task.run = job_run, .env = env, .runs_max = 1};
    struct job b = a, dropped = a;

    (void)state;
    env_defer(env, &a.task);
    env_defer(env, &a.task);
    env_defer(env, &b.task);
    env_defer(env, &dropped.task);
    env_task_drop(&dropped.task);
    os_turn(env, TURN_US);
    assert_int_equal(a.runs, 1);
    assert_int_equal(b.runs, 1);
    assert_int_equal(dropped.runs, 0);
    os_env_free(env);
}

static void tasks_that_defer_themselves_for_ever_let_the_loop_turn(void **state)
{
    struct env *env = env_make(NULL);
    struct job a = {.task.run = job_run, .env = env, .runs_max = 1000000};

    (void)state;
    os_turn(env, TURN_US);
    env_defer(env, &a.task);
    os_turn(env, TURN_US);
    assert_true(a.runs >= 2 && a.runs < 1000);
    env_task_drop(&a.task);
    os_env_free(env);
}

/* ---- sockets ---- */

struct pair {
    struct env *env;
    struct env_sock *listener, *near, *far;
    struct env_addr at;
    int accepts, readable, writable;
};

static void pair_accept(void *ctx, unsigned events)
{
    struct pair *p = ctx;
    struct env_addr peer;
    struct env_sock *s = env_accept(p->env, p->listener, &peer);

    (void)events;
    p->accepts++;
    if (s != NULL) {
        assert_null(p->far);
        assert_true(os_addr_is_loopback(&peer));
        p->far = s;
    }
}

static void pair_listen(struct pair *p, struct env *env)
{
    struct err e = {.code = ERR_NONE};

    *p = (struct pair){.env = env};
    assert_true(os_addr_parse(STR("127.0.0.1:0"), &p->at, &e));
    p->listener = env_listen(env, &p->at, false, &e);
    assert_non_null(p->listener);
    assert_true(env->ops->local_addr(env, p->listener, &p->at));
    env_watch(env, p->listener, ENV_READ, pair_accept, p);
}

static void pair_open(struct pair *p, struct env *env)
{
    struct err e = {.code = ERR_NONE};

    pair_listen(p, env);
    p->near = env_connect(env, &p->at, &e);
    assert_non_null(p->near);
    turn_until(env, &p->accepts, 1);
    assert_non_null(p->far);
}

static void pair_close(struct pair *p)
{
    struct env_sock *all[] = {p->listener, p->near, p->far};

    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        if (all[i] != NULL) {
            env_close(p->env, all[i]);
        }
    }
    os_env_free(p->env);
}

static void pair_count(void *ctx, unsigned events)
{
    struct pair *p = ctx;

    p->readable += (events & ENV_READ) != 0;
    p->writable += (events & ENV_WRITE) != 0;
}

static ssize_t put(struct env *env, struct env_sock *s, const char *z)
{
    struct iovec v = {(void *)(uintptr_t)z, strlen(z)};

    return env_writev(env, s, &v, 1);
}

static void watching_is_level_triggered_and_stops_when_asked(void **state)
{
    struct pair p;
    char bytes[8];

    (void)state;
    pair_open(&p, env_make(NULL));
    assert_int_equal(env_read(p.env, p.far, bytes, sizeof(bytes)), -EAGAIN);
    env_watch(p.env, p.far, ENV_READ, pair_count, &p);
    assert_int_equal(put(p.env, p.near, "abc"), 3);
    turn_until(p.env, &p.readable, 1);
    os_turn(p.env, 0);
    assert_int_equal(p.readable, 2);
    assert_int_equal(p.writable, 0);
    env_watch(p.env, p.far, 0, pair_count, &p);
    os_turn(p.env, 0);
    assert_int_equal(p.readable, 2);
    env_watch(p.env, p.far, ENV_READ | ENV_WRITE, pair_count, &p);
    os_turn(p.env, 0);
    assert_int_equal(p.readable, 3);
    assert_int_equal(p.writable, 1);
    assert_int_equal(env_read(p.env, p.far, bytes, sizeof(bytes)), 3);
    pair_close(&p);
}

static void an_unwatched_socket_does_not_spin_on_hang_up(void **state)
{
    struct pair p;
    struct timespec start, end;

    (void)state;
    pair_open(&p, env_make(NULL));
    env_watch(p.env, p.far, ENV_READ, pair_count, &p);
    env_watch(p.env, p.far, 0, pair_count, &p);
    env_close(p.env, p.near);
    p.near = NULL;
    os_turn(p.env, 0);
    clock_gettime(CLOCK_MONOTONIC, &start);
    os_turn(p.env, 20000);
    clock_gettime(CLOCK_MONOTONIC, &end);
    assert_int_equal(p.readable, 0);
    assert_true((end.tv_sec - start.tv_sec) * 1000000000 + end.tv_nsec - start.tv_nsec >= 19000000);
    pair_close(&p);
}

static void end_of_stream_reads_as_zero_and_a_reset_as_an_error(void **state)
{
    struct pair p;
    char byte;

    (void)state;
    pair_open(&p, env_make(NULL));
    env_shutdown_write(p.env, p.near);
    env_watch(p.env, p.far, ENV_READ, pair_count, &p);
    turn_until(p.env, &p.readable, 1);
    assert_int_equal(env_read(p.env, p.far, &byte, 1), 0);
    assert_int_equal(put(p.env, p.far, "x"), 1); /* unread when near closes: a reset */
    env_watch(p.env, p.near, ENV_READ, pair_count, &p);
    env_watch(p.env, p.far, 0, pair_count, &p);
    p.readable = 0;
    turn_until(p.env, &p.readable, 1);
    env_close(p.env, p.near);
    p.near = NULL;
    assert_int_equal(put(p.env, p.far, "y"), -EPIPE);
    pair_close(&p);
}

static void a_refused_connect_is_told_by_the_first_write(void **state)
{
    struct pair p;
    struct err e = {.code = ERR_NONE};

    (void)state;
    pair_listen(&p, env_make(NULL));
    env_close(p.env, p.listener);
    p.listener = NULL;
    p.near = env_connect(p.env, &p.at, &e);
    assert_non_null(p.near);
    env_watch(p.env, p.near, ENV_WRITE, pair_count, &p);
    turn_until(p.env, &p.writable, 1);
    assert_int_equal(put(p.env, p.near, "x"), -ECONNREFUSED);
    pair_close(&p);
}

static void listening_twice_fails_with_the_address_in_the_story(void **state)
{
    struct pair p;
    struct err e = {.code = ERR_NONE};
    char text[ENV_ADDR_TEXT_MAX];

    (void)state;
    pair_listen(&p, env_make(NULL));
    os_addr_text(&p.at, text);
    assert_null(env_listen(p.env, &p.at, false, &e));
    assert_int_equal(e.code, ERR_IO);
    assert_non_null(strstr(e.text, text));
    pair_close(&p);
}

/* Both sides are ready in one turn; whoever is told first closes the other. */
static void close_the_other(void *ctx, unsigned events)
{
    struct pair *p = ctx;

    (void)events;
    p->readable++;
    env_close(p->env, p->near);
    env_close(p->env, p->far);
    p->near = p->far = NULL;
}

static void a_socket_closed_in_a_turn_hears_nothing_more_of_it(void **state)
{
    struct pair p;

    (void)state;
    pair_open(&p, env_make(NULL));
    put(p.env, p.near, "a");
    put(p.env, p.far, "b");
    env_watch(p.env, p.near, ENV_READ, close_the_other, &p);
    env_watch(p.env, p.far, ENV_READ, close_the_other, &p);
    turn_until(p.env, &p.readable, 1);
    os_turn(p.env, 0);
    assert_int_equal(p.readable, 1);
    pair_close(&p);
}

/* Sets the limit to what is open, so that accept finds no descriptor. */
static void descriptors_used_up(struct rlimit *before)
{
    struct rlimit low;
    int next = dup(0);

    assert_true(next >= 0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, before), 0);
    low = (struct rlimit){(rlim_t)next, before->rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
}

static void accept_without_descriptors_rests_and_then_goes_on(void **state)
{
    struct pair p;
    struct err e = {.code = ERR_NONE};
    struct rlimit before;

    (void)state;
    pair_listen(&p, env_make(NULL));
    p.near = env_connect(p.env, &p.at, &e);
    assert_non_null(p.near);
    descriptors_used_up(&before);
    for (int i = 0; i < 50; i++) {
        os_turn(p.env, 100);
    }
    assert_null(p.far);
    assert_int_equal(p.accepts, 1); /* not 50: the loop does not spin on it */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    turn_until(p.env, &p.accepts, 2);
    assert_non_null(p.far);
    pair_close(&p);
}

/* ---- doorbells and signals ---- */

static void count_ring(void *ctx)
{
    ++*(int *)ctx;
}

struct ringer {
    struct env *env;
    struct env_wake *bell;
};

static void *ring(void *arg)
{
    struct ringer *r = arg;

    for (int i = 0; i < 1000; i++) {
        env_wake_signal(r->env, r->bell);
    }
    return NULL;
}

static void a_doorbell_rung_by_another_thread_wakes_the_loop(void **state)
{
    struct env *env = env_make(NULL);
    int rings = 0;
    struct ringer r = {env, env->ops->wake_new(env, count_ring, &rings)};
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, ring, &r), 0);
    turn_until(env, &rings, 1);
    pthread_join(thread, NULL);
    os_turn(env, 0);
    os_turn(env, 0);
    assert_true(rings <= 1000);
    env->ops->wake_free(env, r.bell);
    os_env_free(env);
}

static void note_signal(void *ctx, int signo)
{
    *(int *)ctx = signo;
}

static void sigterm_becomes_a_call_on_the_loop(void **state)
{
    struct env *env = env_make(NULL);
    struct err e = {.code = ERR_NONE};
    int got = 0;

    (void)state;
    assert_true(os_on_signals(env, note_signal, &got, &e));
    raise(SIGTERM);
    turn_until(env, &got, SIGTERM);
    assert_int_equal(got, SIGTERM);
    os_env_free(env);
}

static void stop_ends_run(void *ctx)
{
    os_stop(ctx);
}

static void run_goes_on_until_stop(void **state)
{
    struct env *env = env_make(NULL);
    struct env_wake *bell = env->ops->wake_new(env, stop_ends_run, env);

    (void)state;
    env_wake_signal(env, bell);
    os_run(env);
    env->ops->wake_free(env, bell);
    os_env_free(env);
}

/* ---- look-ups ---- */

struct asked {
    struct env_dns dns;
    int answers;
    bool found;
    char text[ENV_ADDR_TEXT_MAX];
    struct err e;
};

static void asked_done(struct env_dns *dns, const struct env_addr *addr, struct err *e)
{
    struct asked *a = CONTAINER_OF(dns, struct asked, dns);

    a->answers++;
    a->found = addr != NULL;
    a->e = *e;
    if (addr != NULL) {
        os_addr_text(addr, a->text);
    }
}

static void numeric_hosts_resolve_without_a_resolver_and_names_are_refused(void **state)
{
    struct env *env = env_make(NULL);
    struct asked v4 = {.dns.done = asked_done}, v6 = v4, name = v4;

    (void)state;
    env->ops->resolve(env, STR("10.1.2.3"), 80, &v4.dns);
    env->ops->resolve(env, STR("[::1]"), 81, &v6.dns);
    env->ops->resolve(env, STR("localhost"), 82, &name.dns);
    assert_int_equal(v4.answers, 0); /* never before returning */
    os_turn(env, 0);
    assert_string_equal(v4.text, "10.1.2.3:80");
    assert_string_equal(v6.text, "[::1]:81");
    assert_int_equal(name.answers, 1);
    assert_false(name.found);
    assert_int_equal(name.e.code, ERR_UNAVAILABLE);
    os_env_free(env);
}

static void names_resolve_on_the_thread_and_dropped_ones_stay_silent(void **state)
{
    struct err e = {.code = ERR_NONE};
    struct resolver *r = resolver_new(&e);
    struct env *env = env_make(r);
    struct asked kept = {.dns.done = asked_done}, dropped = kept;

    (void)state;
    env->ops->resolve(env, STR("localhost"), 82, &dropped.dns);
    env->ops->resolve(env, STR("localhost"), 82, &kept.dns);
    env->ops->resolve_drop(env, &dropped.dns);
    turn_until(env, &kept.answers, 1);
    if (!kept.found) {
        fail_msg("localhost: %s", kept.e.text);
    }
    assert_int_equal(dropped.answers, 0);
    os_env_free(env);
    resolver_free(r);
}

static void the_queue_of_names_is_bounded_and_forgotten_with_its_loop(void **state)
{
    enum { N = 300 };
    struct err e = {.code = ERR_NONE};
    struct resolver *r = resolver_new(&e);
    struct env *env = env_make(r);
    struct asked *all = calloc(N, sizeof(*all));
    int refused = 0;

    (void)state;
    for (int i = 0; i < N; i++) {
        all[i].dns.done = asked_done;
        env->ops->resolve(env, STR("localhost"), 1, &all[i].dns);
    }
    os_turn(env, 0);
    for (int i = 0; i < N; i++) {
        refused += all[i].answers == 1 && !all[i].found;
    }
    assert_true(refused <= N - 256);
    os_env_free(env); /* with most of them queued */
    resolver_free(r);
    free(all);
}

static void addresses_are_parsed_strictly(void **state)
{
    static const char *const bad[] = {
        "",       "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "localhost:1", ":80",
        "::1:80", "[::1]",     "[::1:80",    "1.2.3:80",        "1.2.3.4:x",   "1.2.3.4:-1"};
    struct env_addr a;
    char text[ENV_ADDR_TEXT_MAX];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct err e = {.code = ERR_NONE};

        if (os_addr_parse(str_c(bad[i]), &a, &e)) {
            fail_msg("taken: \"%s\"", bad[i]);
        }
        assert_int_equal(e.code, ERR_INPUT);
    }
    struct err e = {.code = ERR_NONE};
    assert_true(os_addr_parse(STR("[2001:db8::1]:443"), &a, &e));
    os_addr_text(&a, text);
    assert_string_equal(text, "[2001:db8::1]:443");
    assert_false(os_addr_is_loopback(&a));
    assert_true(os_addr_parse(STR("[::1]:0"), &a, &e));
    assert_true(os_addr_is_loopback(&a));
}

/* ---- files ---- */

struct folder {
    char path[64];
    char file[96], other[96];
};

static void folder_make(struct folder *f)
{
    snprintf(f->path, sizeof(f->path), "/tmp/tollgate-test-os-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    snprintf(f->file, sizeof(f->file), "%s/b", f->path);
    snprintf(f->other, sizeof(f->other), "%s/a", f->path);
}

static void folder_drop(struct folder *f)
{
    unlink(f->file);
    unlink(f->other);
    assert_int_equal(rmdir(f->path), 0);
}

static void files_keep_what_is_written_and_say_their_size(void **state)
{
    struct env *env = env_make(NULL);
    const struct env_ops *ops = env->ops;
    struct env_file *f;
    struct folder folder;
    struct stat st;
    char bytes[16];

    (void)state;
    folder_make(&folder);
    assert_int_equal(ops->file_open(env, folder.file, ENV_OPEN_READ, &f), -ENOENT);
    assert_int_equal(ops->file_open(env, folder.file, ENV_OPEN_CREATE, &f), 0);
    assert_int_equal(ops->file_pwrite(env, f, "hello", 5, 3), 5);
    assert_int_equal(ops->file_sync(env, f), 0);
    assert_int_equal(ops->file_size(env, f), 8);
    assert_int_equal(ops->file_pread(env, f, bytes, sizeof(bytes), 4), 4);
    assert_memory_equal(bytes, "ello", 4);
    assert_int_equal(ops->file_allocate(env, f, 8192), 0);
    assert_int_equal(ops->file_size(env, f), 8192);
    assert_int_equal(stat(folder.file, &st), 0);
    assert_true(st.st_blocks * 512 >= 8192);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(ops->file_truncate(env, f, 2), 0);
    assert_int_equal(ops->file_size(env, f), 2);
    ops->file_close(env, f);
    assert_int_equal(ops->file_open(env, folder.file, ENV_OPEN_TRUNCATE, &f), 0);
    assert_int_equal(ops->file_size(env, f), 0);
    ops->file_close(env, f);
    folder_drop(&folder);
    os_env_free(env);
}

/* Mapped or not, as the file system allows: what was written is in the file at once, for everybody. */
static void a_mapped_file_is_written_like_any_other(void **state)
{
    struct env *env = env_make(NULL);
    const struct env_ops *ops = env->ops;
    struct env_file *f, *other;
    struct folder folder;
    char bytes[8];

    (void)state;
    folder_make(&folder);
    assert_int_equal(ops->file_open(env, folder.file, ENV_OPEN_MAPPED, &f), 0);
    assert_int_equal(ops->file_pwrite(env, f, "before", 6, 0), 6); /* nothing is allocated yet */
    assert_int_equal(ops->file_allocate(env, f, 8192), 0);
    assert_int_equal(ops->file_pwrite(env, f, "within", 6, 8186), 6);
    assert_int_equal(ops->file_pwrite(env, f, "beyond", 6, 8190), 6); /* not all in the mapping */
    assert_int_equal(ops->file_pwrite(env, f, "BE", 2, 0), 2);
    assert_int_equal(ops->file_open(env, folder.file, ENV_OPEN_READ, &other), 0);
    assert_int_equal(ops->file_pread(env, other, bytes, 6, 0), 6);
    assert_memory_equal(bytes, "BEfore", 6);
    assert_int_equal(ops->file_pread(env, other, bytes, 8, 8186), 8);
    assert_memory_equal(bytes, "withbeyo", 8);
    ops->file_close(env, other);
    ops->file_close(env, f);
    assert_int_equal(ops->file_open(env, folder.file, ENV_OPEN_MAPPED, &f), 0);
    assert_int_equal(ops->file_size(env, f), 0);
    ops->file_close(env, f);
    folder_drop(&folder);
    os_env_free(env);
}

static void gather_name(void *ctx, const char *name)
{
    buf_c(ctx, name);
    buf_byte(ctx, ' ');
}

static void folders_list_regular_files_sorted_and_renames_replace(void **state)
{
    struct env *env = env_make(NULL);
    const struct env_ops *ops = env->ops;
    struct env_file *f;
    struct folder folder;
    struct buf names;
    char sub[96];

    (void)state;
    folder_make(&folder);
    buf_init(&names, 1024);
    snprintf(sub, sizeof(sub), "%s/A", folder.path);
    assert_int_equal(ops->dir_make(env, sub), 0);
    assert_int_equal(ops->dir_make(env, sub), 0); /* there already is fine */
    assert_int_equal(ops->file_open(env, folder.file, ENV_OPEN_CREATE, &f), 0);
    ops->file_close(env, f);
    assert_int_equal(ops->file_open(env, folder.other, ENV_OPEN_CREATE, &f), 0);
    ops->file_close(env, f);
    assert_int_equal(ops->dir_list(env, folder.path, gather_name, &names), 0);
    assert_true(str_eq(buf_view(&names), STR("a b ")));
    assert_int_equal(ops->file_rename(env, folder.file, folder.other), 0);
    buf_reset(&names);
    assert_int_equal(ops->dir_list(env, folder.path, gather_name, &names), 0);
    assert_true(str_eq(buf_view(&names), STR("a ")));
    assert_int_equal(ops->dir_make(env, folder.other), -ENOTDIR);
    assert_int_equal(ops->file_unlink(env, folder.file), -ENOENT);
    assert_int_equal(ops->dir_list(env, folder.file, gather_name, &names), -ENOENT);
    assert_int_equal(rmdir(sub), 0);
    buf_fini(&names);
    folder_drop(&folder);
    os_env_free(env);
}

static void random_bytes_differ(void **state)
{
    struct env *env = env_make(NULL);

    (void)state;
    assert_true(env_random_u64(env) != env_random_u64(env));
    os_env_free(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timers_fire_in_order_of_due_time_and_disarmed_ones_do_not),
        cmocka_unit_test(a_timer_that_rearms_for_now_does_not_hold_the_loop),
        cmocka_unit_test(now_is_constant_within_a_turn),
        cmocka_unit_test(deferred_tasks_run_once_before_sleep),
        cmocka_unit_test(tasks_that_defer_themselves_for_ever_let_the_loop_turn),
        cmocka_unit_test(watching_is_level_triggered_and_stops_when_asked),
        cmocka_unit_test(an_unwatched_socket_does_not_spin_on_hang_up),
        cmocka_unit_test(end_of_stream_reads_as_zero_and_a_reset_as_an_error),
        cmocka_unit_test(a_refused_connect_is_told_by_the_first_write),
        cmocka_unit_test(listening_twice_fails_with_the_address_in_the_story),
        cmocka_unit_test(a_socket_closed_in_a_turn_hears_nothing_more_of_it),
        cmocka_unit_test(accept_without_descriptors_rests_and_then_goes_on),
        cmocka_unit_test(a_doorbell_rung_by_another_thread_wakes_the_loop),
        cmocka_unit_test(sigterm_becomes_a_call_on_the_loop),
        cmocka_unit_test(run_goes_on_until_stop),
        cmocka_unit_test(numeric_hosts_resolve_without_a_resolver_and_names_are_refused),
        cmocka_unit_test(names_resolve_on_the_thread_and_dropped_ones_stay_silent),
        cmocka_unit_test(the_queue_of_names_is_bounded_and_forgotten_with_its_loop),
        cmocka_unit_test(addresses_are_parsed_strictly),
        cmocka_unit_test(files_keep_what_is_written_and_say_their_size),
        cmocka_unit_test(a_mapped_file_is_written_like_any_other),
        cmocka_unit_test(folders_list_regular_files_sorted_and_renames_replace),
        cmocka_unit_test(random_bytes_differ),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
