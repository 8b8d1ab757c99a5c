/* main.c - the gateway's program: arguments, start in order, threads, stop in order. */
#include "gateway/control.h"
#include "gateway/request.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SECRET_BYTES_MAX 400 /* "Bearer " and it fit where headers are built */
#define MAIN_SHIP_SLICE_US 200000
#define MAIN_JOURNAL_IDLE_US 100000
#define MAIN_FILES_MIN 48u
#define MAIN_FILES_PER_LOOP 8u
#define MAIN_JOURNAL_GATHER_US 3000 /* what many clients at once add to each other anyway */
#define MAIN_JOURNAL_GATHER_OPEN 4
#define MAIN_DRAIN_GRACE_US 5000000 /* beyond drain_timeout: rows to disk and Postgres */

static const char help[] =
    "tollgate - a multi-tenant gateway for language-model inference\n"
    "\n"
    "usage: tollgate --config FILE       run in the foreground\n"
    "       tollgate check FILE          read a configuration, say what is wrong, exit 0 or 2\n"
    "       tollgate --help | --version\n"
    "\n"
    "FILE is YAML; configs/gateway.yaml shows every option with its default, unit and reason.\n"
    "Tenants call the public listeners (HTTPS with HTTP/2 and HTTP/1.1; clear text on loopback);\n"
    "operators use tollctl, which talks to listen.admin with the admin key.\n"
    "\n"
    "signals: SIGTERM, SIGINT  drain: refuse new work, finish streams up to drain_timeout, "
    "settle,\n"
    "                          ship what is durable, exit 0 (a second one stops at once)\n"
    "exit:    0 stopped cleanly   1 a failure at run time   2 usage or configuration\n"
    "logs:    JSON lines on standard error; `listening` says each bound address\n";

struct main_state {
    struct gateway gw;
    struct control control;
    struct env *env; /* the control loop's, on the main thread */
    struct recovered recovered;
    pthread_t journal_thread, ship_thread, store_thread;
    struct env *journal_env, *ship_env, *store_env;
    atomic_bool journal_stop, ship_stop, store_stop, failed;
    atomic_uint loops_left;
    struct env_wake *main_wake, *journal_wake, *store_wake;
    struct env_timer stop_timer;
    int signals;
};

static bool read_secrets(struct gateway *gw, struct err *e)
{
    const struct gateway_config *c = &gw->config;
    const struct {
        struct str path;
        struct str *out;
        const char *option;
    } files[] = {
        {c->secret_file, &gw->secrets.deployment, "secrets.deployment_file"},
        {c->pepper_file, &gw->secrets.pepper, "secrets.pepper_file"},
        {c->worker_key_file, &gw->secrets.worker_key, "secrets.worker_key_file"},
        {c->admin_key_file, &gw->secrets.admin_key, "secrets.admin_key_file"},
    };
    char path[1024];

    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        if (!conf_secret(str_copy(files[i].path, path, sizeof(path)), &gw->arena, files[i].out,
                         e)) {
            err_prefix(e, "%s", files[i].option);
            return false;
        }
        if (files[i].out->n > SECRET_BYTES_MAX) {
            return err_set(e, ERR_INPUT, "%s: at most %d bytes", files[i].option, SECRET_BYTES_MAX);
        }
    }
    return true;
}

/* Told apart by `top -H`. */
static void thread_name(const char *name)
{
    (void)pthread_setname_np(pthread_self(), name);
}

/* A sync costs some 40 us of CPU whatever it carries, and the writer would make one for every
 * record that it finds. So it lets records gather: those that nobody waits for, and CLOSEs too
 * while several requests are open. A lone request's CLOSE never waits here. */
static void journal_gather(struct main_state *m)
{
    uint64_t until = env_now_us(m->journal_env) + MAIN_JOURNAL_GATHER_US, now;

    while ((now = env_now_us(m->journal_env)) < until && !atomic_load(&m->journal_stop)) {
        uint64_t open = 0;

        for (unsigned i = 0; i < m->gw.n_loops; i++) {
            open += atomic_load_explicit(&m->gw.loop[i]->live, memory_order_relaxed);
        }
        if (journal_is_awaited(m->gw.journal) && open < MAIN_JOURNAL_GATHER_OPEN) {
            return;
        }
        os_turn(m->journal_env, until - now); /* the first CLOSE rings */
    }
}

static void *journal_main(void *arg)
{
    struct main_state *m = arg;

    thread_name("tg-journal");
    while (!atomic_load(&m->journal_stop)) {
        journal_gather(m);
        while (journal_step(m->gw.journal, m->journal_env)) {
            journal_gather(m);
        }
        if (journal_is_failed(m->gw.journal)) {
            /* fsync must not be retried: what the kernel dropped cannot be known. */
            log_event(m->gw.log, LOG_ERROR, env_wall_us(m->journal_env), "journal_failed",
                      "the journal cannot be synced; stopping at once");
            log_drain(m->gw.log);
            _exit(1);
        }
        os_turn(m->journal_env, MAIN_JOURNAL_IDLE_US);
    }
    while (journal_step(m->gw.journal, m->journal_env)) {
    }
    return NULL;
}

static void *ship_main(void *arg)
{
    struct main_state *m = arg;

    thread_name("tg-ship");
    while (!atomic_load(&m->ship_stop)) {
        uint64_t until = env_now_us(m->ship_env) + ship_step(m->gw.ship, m->ship_env);

        do { /* its back-off is kept, a stop is heard */
            uint64_t now = env_now_us(m->ship_env);

            os_turn(m->ship_env, now < until ? u64_min(until - now, MAIN_SHIP_SLICE_US) : 0);
        } while (!atomic_load(&m->ship_stop) && env_now_us(m->ship_env) < until);
    }
    return NULL;
}

static void *store_main(void *arg)
{
    struct main_state *m = arg;

    thread_name("tg-store");
    while (!atomic_load(&m->store_stop)) {
        os_turn(m->store_env, store_step(m->control.store, m->store_env));
    }
    return NULL;
}

static void *loop_main(void *arg)
{
    struct loop *l = arg;
    char name[16];

    (void)snprintf(name, sizeof(name), "tg-loop-%u", l->index);
    thread_name(name);
    os_run(l->env);
    return NULL;
}

static void doorbell(void *ctx)
{
    (void)ctx; /* its only use is to end a wait */
}

/* Loops share a port, and would share it with another gateway without a word: half of its clients
 * would come here. A listener that does not share finds the other one. */
static bool port_is_free(struct loop *l, const struct env_addr *a, struct err *e)
{
    struct env_sock *s = env_listen(l->env, a, false, e);

    if (s != NULL) {
        env_close(l->env, s);
    }
    return s != NULL;
}

static bool listen_list(struct loop *l, const struct conf_list *list, struct tls_context *tls,
                        struct err *e)
{
    for (size_t i = 0; i < list->count; i++) {
        struct env_addr a;
        struct env_sock *s;
        char text[ENV_ADDR_TEXT_MAX];

        if (!os_addr_parse(list->items[i], &a, e)) {
            return false;
        }
        s = l->index > 0 || port_is_free(l, &a, e) ? env_listen(l->env, &a, l->gw->n_loops > 1, e)
                                                   : NULL;
        if (s == NULL) {
            err_prefix(e, "listen on " STR_FMT, STR_ARG(list->items[i]));
            return false;
        }
        if (l->env->ops->local_addr(l->env, s, &a)) {
            os_addr_text(&a, text);
            log_event(l->gw->log, LOG_INFO, env_wall_us(l->env), "listening", "%s %s loop %u",
                      tls != NULL ? "https" : "http", text, l->index);
        }
        http_server_listen(l->server, s, tls, HTTP_H1_H2);
    }
    return true;
}

/* Everything a loop needs before its thread starts. */
static bool make_loop(struct main_state *m, unsigned i, struct err *e)
{
    struct env *env = os_env_new(m->gw.resolver, e);
    char cert[1024], key[1024];

    if (env == NULL) {
        return false;
    }
    m->gw.loop[i] = loop_new(&m->gw, i, env, m->control.world, e);
    if (m->gw.loop[i] == NULL) {
        return false;
    }
    if (m->gw.config.listen_tls.count > 0) {
        m->gw.loop[i]->tls =
            tls_server_context(str_copy(m->gw.config.tls_cert, cert, sizeof(cert)),
                               str_copy(m->gw.config.tls_key, key, sizeof(key)), e);
        if (m->gw.loop[i]->tls == NULL) {
            return false;
        }
    }
    return true;
}

static void loop_is_drained(struct loop *l)
{
    struct main_state *m = CONTAINER_OF(l->gw, struct main_state, gw);

    os_stop(l->env);
    atomic_fetch_sub(&m->loops_left, 1);
    env_wake_signal(m->env, m->main_wake);
}

static bool start_loops(struct main_state *m, struct err *e)
{
    atomic_store(&m->loops_left, m->gw.n_loops);
    for (unsigned i = 0; i < m->gw.n_loops; i++) {
        struct loop *l = m->gw.loop[i];

        l->drained = loop_is_drained;
        if (!listen_list(l, &m->gw.config.listen_tls, l->tls, e) ||
            !listen_list(l, &m->gw.config.listen_clear, NULL, e)) {
            return false;
        }
        if (pthread_create(&l->thread, NULL, loop_main, l) != 0) {
            return err_set(e, ERR_IO, "loop %u: no thread", i);
        }
    }
    atomic_store(&m->gw.ready, true);
    return true;
}

static void recovered_now(struct control *c)
{
    struct main_state *m = CONTAINER_OF(c, struct main_state, control);
    struct err e = {.code = ERR_NONE};

    recover_free(&m->recovered);
    if (!start_loops(m, &e) || !admin_listen(c, &e)) {
        log_event(m->gw.log, LOG_ERROR, env_wall_us(m->env), "start_failed", "%s", e.text);
        atomic_store(&m->failed, true);
        os_stop(m->env);
        return;
    }
    log_event(m->gw.log, LOG_INFO, env_wall_us(m->env), "ready",
              "gateway %lld epoch %d serves with %u loops", (long long)m->gw.config.gateway_id,
              journal_epoch(m->gw.journal), m->gw.n_loops);
    log_drain(m->gw.log);
}

static void stop_now(struct env_timer *t)
{
    struct main_state *m = CONTAINER_OF(t, struct main_state, stop_timer);

    log_event(m->gw.log, LOG_WARN, env_wall_us(m->env), "drain_timeout",
              "some connections did not drain in time");
    os_stop(m->env);
}

static void on_signal(void *ctx, int signo)
{
    struct main_state *m = ctx;

    (void)signo;
    if (++m->signals > 1 || !atomic_load(&m->gw.ready)) {
        os_stop(m->env);
        return;
    }
    log_event(m->gw.log, LOG_INFO, env_wall_us(m->env), "draining",
              "no new work; streams have %lld s", (long long)m->gw.config.drain_us / 1000000);
    atomic_store(&m->gw.draining, true);
    for (unsigned i = 0; i < m->gw.n_loops; i++) {
        atomic_store(&m->gw.loop[i]->stop_asked, true);
        env_wake_signal(m->gw.loop[i]->env, m->gw.loop[i]->wake);
    }
    m->stop_timer.fire = stop_now;
    env_timer_arm(m->env, &m->stop_timer,
                  env_now_us(m->env) + (uint64_t)m->gw.config.drain_us + MAIN_DRAIN_GRACE_US);
}

static void main_rung(void *ctx)
{
    struct main_state *m = ctx;

    if (atomic_load(&m->loops_left) == 0) {
        os_stop(m->env);
    }
}

static bool open_files(struct main_state *m, struct err *e)
{
    char dir[1024];
    struct journal_options jo = {.dir = str_copy(m->gw.config.journal_dir, dir, sizeof(dir)),
                                 .gateway_id = (int32_t)m->gw.config.gateway_id,
                                 .segment_bytes = (uint64_t)m->gw.config.journal_segment_bytes};
    struct ship_options so = {.conninfo = m->gw.config.pg_conninfo,
                              .dir = dir,
                              .gateway_id = (int32_t)m->gw.config.gateway_id};

    /* After a lost disk Postgres' cursor still knows the last epoch: numbers are never used twice.
     */
    m->gw.journal = journal_open(m->env, m->gw.log, &jo, store_epoch_min(m->control.store), e);
    if (m->gw.journal == NULL || !store_journal_opened(m->control.store, m->env, e) ||
        !recover_read(m->env, dir, journal_epoch(m->gw.journal), &m->recovered, e)) {
        return false;
    }
    m->ship_env = os_env_new(NULL, e);
    m->journal_env = os_env_new(NULL, e);
    m->store_env = os_env_new(NULL, e);
    if (m->ship_env == NULL || m->journal_env == NULL || m->store_env == NULL) {
        return false;
    }
    m->gw.ship = ship_new(m->ship_env, m->gw.log, m->gw.journal, &so, NULL);
    m->journal_wake = m->journal_env->ops->wake_new(m->journal_env, doorbell, NULL);
    journal_set_doorbell(m->gw.journal, m->journal_env, m->journal_wake);
    m->store_wake = m->store_env->ops->wake_new(m->store_env, doorbell, NULL);
    store_set_doorbell(m->control.store, m->store_env, m->store_wake);
    m->control.port = journal_port_new(m->gw.journal, m->env, doorbell, NULL);
    return m->gw.ship != NULL && m->control.port != NULL && control_seed(&m->control, dir, e);
}

static void raise_limits(void)
{
    struct rlimit rl;
    sigset_t stop;

    /* Before the first thread: only the control loop hears of these. */
    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGTERM);
    (void)sigaddset(&stop, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &stop, NULL);

    if (getrlimit(RLIMIT_NOFILE, &rl) == 0 && rl.rlim_cur < rl.rlim_max) {
        rl.rlim_cur = rl.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &rl);
    }
    (void)prctl(PR_SET_DUMPABLE, 0); /* keys must not be in a core file */
}

/* Loops, journal and Postgres need theirs before the first client comes. */
static bool files_suffice(const struct gateway *gw, struct err *e)
{
    rlim_t need = MAIN_FILES_MIN + (rlim_t)MAIN_FILES_PER_LOOP * gw->n_loops;
    struct rlimit rl;

    return getrlimit(RLIMIT_NOFILE, &rl) != 0 || rl.rlim_cur >= need ||
           err_set(e, ERR_LIMIT,
                   "at most %llu open files are allowed here (ulimit -n); %u loops need %llu, and "
                   "each client one more",
                   (unsigned long long)rl.rlim_cur, gw->n_loops, (unsigned long long)need);
}

static bool start(struct main_state *m, struct err *e)
{
    struct gateway *gw = &m->gw;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    gw->started_wall_us = env_wall_us(m->env);
    gw->n_loops = (unsigned)(gw->config.loops > 0 ? gw->config.loops : cores < 1 ? 1 : cores);
    if (gw->n_loops > GATEWAY_LOOPS_MAX) {
        gw->n_loops = GATEWAY_LOOPS_MAX;
    }
    gw->index = whohas_new((size_t)gw->config.whohas_bytes);
    gw->quota = quota_new();
    gw->control = &m->control;
    if (!files_suffice(gw, e) || !read_secrets(gw, e) || !os_on_signals(m->env, on_signal, m, e) ||
        !control_start(&m->control, gw, m->env, e) || !open_files(m, e)) {
        return false;
    }
    m->main_wake = m->env->ops->wake_new(m->env, main_rung, m);
    for (unsigned i = 0; i < gw->n_loops; i++) {
        if (!make_loop(m, i, e)) {
            return false;
        }
    }
    if (pthread_create(&m->journal_thread, NULL, journal_main, m) != 0 ||
        pthread_create(&m->ship_thread, NULL, ship_main, m) != 0 ||
        pthread_create(&m->store_thread, NULL, store_main, m) != 0) {
        return err_set(e, ERR_IO, "no thread for the journal, the shipper or the store");
    }
    control_recover(&m->control, &m->recovered, recovered_now);
    return true;
}

/* Loops, journal, shipper, in this order: each still needs the next. Nobody needs the store. */
static void stop(struct main_state *m)
{
    uint64_t until, wait;

    for (unsigned i = 0; i < m->gw.n_loops; i++) {
        if (m->gw.loop[i]->thread != 0 && atomic_load(&m->loops_left) == 0) {
            pthread_join(m->gw.loop[i]->thread, NULL);
        }
    }
    atomic_store(&m->journal_stop, true);
    pthread_join(m->journal_thread, NULL);
    /* What the shipper last said may be older than the last rows: its steps from here on are not.
     */
    atomic_store(&m->ship_stop, true);
    atomic_store(&m->store_stop, true);
    env_wake_signal(m->store_env, m->store_wake);
    pthread_join(m->ship_thread, NULL);
    pthread_join(m->store_thread, NULL);
    os_turn(m->env, 0); /* the clock of this loop stood still while it joined */
    until = env_now_us(m->env) + MAIN_DRAIN_GRACE_US;
    wait = ship_step(m->gw.ship, m->ship_env);
    while (!ship_is_caught_up(m->gw.ship) && env_now_us(m->env) < until &&
           store_is_up(m->control.store)) {
        os_turn(m->env, u64_min(wait, 200000));
        wait = ship_step(m->gw.ship, m->ship_env);
    }
    log_event(m->gw.log, LOG_INFO, env_wall_us(m->env), "stopped", "every row is %s",
              ship_is_caught_up(m->gw.ship) ? "in Postgres" : "in the journal");
    log_drain(m->gw.log);
}

/* The journal rings its producers' doorbells, so their envs go last. */
static void free_all(struct main_state *m)
{
    struct env *env[GATEWAY_LOOPS_MAX];

    for (unsigned i = 0; i < m->gw.n_loops; i++) {
        env[i] = m->gw.loop[i]->env;
        loop_free(m->gw.loop[i]);
    }
    control_free(&m->control);
    os_turn(m->env, 0); /* operators' calls that ended within it: their memory rests a turn */
    ship_free(m->gw.ship);
    journal_close(m->gw.journal);
    quota_free(m->gw.quota);
    whohas_free(m->gw.index);
    m->env->ops->wake_free(m->env, m->main_wake);
    m->journal_env->ops->wake_free(m->journal_env, m->journal_wake);
    m->store_env->ops->wake_free(m->store_env, m->store_wake);
    for (unsigned i = 0; i < m->gw.n_loops; i++) {
        os_env_free(env[i]);
    }
    os_env_free(m->journal_env);
    os_env_free(m->store_env);
    os_env_free(m->ship_env);
    os_env_free(m->env);
    resolver_free(m->gw.resolver);
    log_free(m->gw.log);
    arena_fini(&m->gw.arena);
}

static int run(const char *path)
{
    static const enum log_level levels[] = {LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR};
    struct main_state *m = mem_new(sizeof(*m));
    struct err e = {.code = ERR_NONE};

    arena_init(&m->gw.arena, 4u << 20);
    if (!gateway_config_load(path, &m->gw.config, &m->gw.arena, &e)) {
        fprintf(stderr, "tollgate: %s\n", e.text);
        arena_fini(&m->gw.arena);
        mem_free(m);
        return 2;
    }
    os_process_init();
    raise_limits();
    m->gw.log = log_new(STDERR_FILENO, levels[m->gw.config.log_level], "tollgate");
    m->gw.resolver = resolver_new(&e);
    m->env = os_env_new(m->gw.resolver, &e);
    if (m->gw.resolver == NULL || m->env == NULL || !start(m, &e)) {
        log_drain(m->gw.log);
        fprintf(stderr, "tollgate: %s\n", e.text);
        _exit(1); /* threads may run already: nothing that they use is taken down under them */
    }
    os_run(m->env);
    if (atomic_load(&m->failed)) {
        log_drain(m->gw.log);
        _exit(1); /* as below */
    }
    stop(m);
    if (atomic_load(&m->loops_left) > 0) {
        _exit(0); /* loops still run: nothing that they use may be taken down under them */
    }
    free_all(m);
    mem_free(m);
    return 0;
}

static int check(const char *path)
{
    struct gateway_config c = {0};
    struct arena a;
    struct err e = {.code = ERR_NONE};
    bool ok;

    arena_init(&a, 4u << 20);
    ok = gateway_config_load(path, &c, &a, &e);
    arena_fini(&a);
    if (!ok) {
        fprintf(stderr, "%s\n", e.text);
        return 2;
    }
    printf("%s: ok\n", path);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"version", no_argument, NULL, 'v'},
                                            {0}};
    const char *config = NULL;
    int o;

    while ((o = getopt_long(argc, argv, "c:h", options, NULL)) != -1) {
        switch (o) {
        case 'c':
            config = optarg;
            break;
        case 'h':
            fputs(help, stdout);
            return 0;
        case 'v':
            puts("tollgate 0.1");
            return 0;
        default:
            fputs("try tollgate --help\n", stderr);
            return 2;
        }
    }
    if (optind + 1 < argc && strcmp(argv[optind], "check") == 0) {
        return check(argv[optind + 1]);
    }
    if (config == NULL || optind < argc) {
        fputs("tollgate: --config FILE is needed; try tollgate --help\n", stderr);
        return 2;
    }
    return run(config);
}
