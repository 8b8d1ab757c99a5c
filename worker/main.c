/* main.c - tollgate-worker: opens the port, then a model and a backend beside it, says what fits,
 * serves until told to stop. */
#include "base/hash.h"
#include "base/net/os.h"
#include "cache/blocks.h"
#include "worker/bench.h"
#include "worker/options.h"
#include "worker/serve.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define LOG_DRAIN_US 100000

/* What is opened beside the loop, which answers that it is loading meanwhile. The thread writes all
 * of it and rings; the loop reads it after the ring, or once the thread is joined. */
struct loading {
    pthread_t thread;
    bool started, joined, ok;
    struct env_wake *wake;
    struct err e;
    struct model *model, *draft;
    struct backend *backend, *draft_backend;
};

struct worker {
    struct options o;
    struct log *log;
    struct env *env;
    struct loading load;
    struct serve *serve;
    struct serve_options so;
    struct serve_plan plan;
    enum backend_kv_dtype kv_dtype;
    enum backend_policy policy;
    struct str name; /* made from the file's, when none is given */
    struct env_timer log_timer;
    char key[OPTIONS_KEY_MAX];
    char address[ENV_ADDR_TEXT_MAX];
    bool stopping, failed;
};

static void say(struct worker *w, enum log_level level, const char *event, const char *text)
{
    log_event(w->log, level, env_wall_us(w->env), event, "%s", text);
    log_drain(w->log);
}

static void on_log_timer(struct env_timer *t)
{
    struct worker *w = CONTAINER_OF(t, struct worker, log_timer);

    log_drain(w->log);
    env_timer_arm(w->env, t, env_now_us(w->env) + LOG_DRAIN_US);
}

static void on_drained(void *ctx)
{
    struct worker *w = ctx;

    os_stop(w->env);
}

static void on_signal(void *ctx, int signo)
{
    struct worker *w = ctx;

    if (w->stopping) {
        say(w, LOG_WARN, "stopping_now", "a second signal: answers are cut");
        os_stop(w->env);
        return;
    }
    w->stopping = true;
    say(w, LOG_INFO, "draining",
        signo == SIGTERM ? "SIGTERM: running answers finish" : "SIGINT: running answers finish");
    serve_drain(w->serve, w->o.drain_s * 1000000, on_drained, w);
}

static bool is_upper_or_digit(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* "dir/SmolLM2-135M-Instruct.Q4_1.gguf" is served as "SmolLM2-135M-Instruct": a file's own
 * general.name is seldom what anyone calls the model. */
static struct str model_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    struct str name = str_c(slash != NULL ? slash + 1 : path);
    size_t dot;

    if (str_ends(name, STR(".gguf"))) {
        name.n -= 5;
    }
    for (dot = name.n; dot > 0 && is_upper_or_digit(name.p[dot - 1]); dot--) {
    }
    if (dot > 1 && dot < name.n && name.p[dot - 1] == '.') { /* the quantisation */
        name.n = dot - 1;
    }
    return name;
}

static bool choose_family(struct worker *w, struct err *e)
{
    if (w->o.chat_format != NULL) {
        return chat_family_named(str_c(w->o.chat_format), &w->plan.family) ||
               err_set(e, ERR_INPUT, "--chat-format is one of %s, not \"%s\"", chat_family_names(),
                       w->o.chat_format);
    }
    w->plan.family = chat_family_of_template(w->load.model->chat_template);
    if (w->plan.family == CHAT_NONE) {
        say(w, LOG_WARN, "chat_unknown",
            "the file's chat template is not known: chat is refused unless --chat-format names "
            "one");
    }
    return true;
}

/* The engine's thread reads it, so it is the clock itself and not the loop's of this turn; the same
 * as env_now_us counts in. */
static uint64_t monotonic_us(void *ctx)
{
    struct timespec t;

    (void)ctx;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static const char *kv_name(const struct worker *w)
{
    return strcmp(w->o.backend, "ref") == 0 ? "float32" : backend_kv_dtype_name(w->kv_dtype);
}

/* What KV bytes depend on beside tokens: another dtype, policy or model never shares a block. */
static struct hash128 root_of(const struct worker *w)
{
    char text[128];
    int n = snprintf(text, sizeof(text), "%s|%s|%s|%016llx", w->o.backend, kv_name(w),
                     backend_policy_name(w->policy), (unsigned long long)w->load.model->digest);

    return hash_xxh3_128(text, (size_t)n, 0);
}

static void plan_engine(struct worker *w, uint32_t blocks)
{
    struct engine_options *g = &w->plan.engine;

    *g = (struct engine_options){
        .kv_blocks = blocks,
        .sequences_max = (uint32_t)w->o.max_num_seqs,
        .waiting_max = (uint32_t)w->o.max_waiting,
        .step_tokens = (uint32_t)u64_max(w->o.step_tokens, w->o.max_num_seqs),
        .root = root_of(w),
        .clock_us = monotonic_us,
        .tpot_target_us = w->o.tpot_ms * 1000,
        .aging_us = w->o.aging_s * 1000000,
        .draft_tokens = (uint32_t)w->o.draft_tokens,
        .prompt_lookup = w->o.draft_tokens > 0,
        .draft_model = w->load.draft,
        .draft_backend = w->load.draft_backend,
        .draft_blocks = w->load.draft != NULL ? blocks : 0,
    };
}

/* How many blocks the pool has, and what one request may then be. */
static bool plan_memory(struct worker *w, struct err *e)
{
    const struct model *m = w->load.model;
    uint64_t block_bytes = w->load.backend->ops->kv_block_bytes(w->load.backend);
    uint64_t draft_bytes = w->load.draft_backend != NULL
                               ? w->load.draft_backend->ops->kv_block_bytes(w->load.draft_backend)
                               : 0;
    uint64_t blocks = w->o.kv_bytes / (block_bytes + draft_bytes);
    uint64_t len = w->o.max_model_len > 0 ? w->o.max_model_len : m->context;

    if (blocks < 1) {
        return err_set(e, ERR_INPUT, "--kv-bytes holds no block: one takes %llu bytes",
                       (unsigned long long)(block_bytes + draft_bytes));
    }
    if (w->o.max_model_len > m->context) {
        return err_set(e, ERR_INPUT, "--max-model-len %llu is beyond the model's context of %u",
                       (unsigned long long)w->o.max_model_len, m->context);
    }
    if (w->o.kv_bytes > backend_memory()) {
        return err_set(e, ERR_INPUT,
                       "--kv-bytes %llu is more than this process may have: %llu bytes",
                       (unsigned long long)w->o.kv_bytes, (unsigned long long)backend_memory());
    }
    blocks = u64_min(blocks, 1u << 26);
    if (w->o.max_model_len > blocks * BLOCK_TOKENS) {
        uint64_t need = (w->o.max_model_len + BLOCK_TOKENS - 1) / BLOCK_TOKENS;

        return err_set(e, ERR_INPUT,
                       "--kv-bytes %llu holds %llu blocks = %llu tokens, not one sequence of "
                       "--max-model-len %llu: that takes %llu blocks = %llu bytes",
                       (unsigned long long)w->o.kv_bytes, (unsigned long long)blocks,
                       (unsigned long long)(blocks * BLOCK_TOKENS),
                       (unsigned long long)w->o.max_model_len, (unsigned long long)need,
                       (unsigned long long)(need * (block_bytes + draft_bytes)));
    }
    w->plan.max_model_len = (uint32_t)u64_min(len, blocks * BLOCK_TOKENS);
    plan_engine(w, (uint32_t)blocks);
    return true;
}

/* "3 sequences of 8192 tokens, 12 of 2048, ..." */
static void fits_text(const struct serve_plan *p, char *out, size_t n)
{
    uint64_t tokens = (uint64_t)p->engine.kv_blocks * BLOCK_TOKENS;
    size_t at = 0;

    for (uint64_t len = p->max_model_len, i = 0; i < 3 && len >= BLOCK_TOKENS; len /= 4, i++) {
        at += (size_t)snprintf(out + at, n - at, "%s%llu of %llu", i > 0 ? ", " : "",
                               (unsigned long long)(tokens / len), (unsigned long long)len);
    }
    if (at == 0) {
        snprintf(out, n, "1 of %u", p->max_model_len);
    }
}

static void say_plan(struct worker *w)
{
    const struct serve_plan *p = &w->plan;
    const struct model *m = w->load.model;
    struct backend *b = w->load.backend;
    uint64_t block_bytes = b->ops->kv_block_bytes(b);
    char text[768], fits[128], drafts[64] = "off";

    fits_text(p, fits, sizeof(fits));
    if (p->engine.draft_tokens > 0) {
        snprintf(drafts, sizeof(drafts), "up to %u tokens by lookup%s", p->engine.draft_tokens,
                 p->engine.draft_model != NULL ? " and a draft model" : "");
    }
    snprintf(text, sizeof(text),
             "model " STR_FMT " (digest %016llx), %.1f MiB of weights a token, context %u; backend "
             "%s, policy %s; KV %s, %u blocks of 32 tokens (%.1f MiB, %llu tokens: sequences %s); "
             "max_model_len %u, %u sequences, %u waiting, %u tokens a step, speculation %s; chat "
             "%s; worker key %s",
             STR_ARG(w->so.names[0]), (unsigned long long)m->digest,
             (double)m->weight_bytes / 1048576, m->context, b->ops->describe(b),
             backend_policy_name(w->policy), kv_name(w), p->engine.kv_blocks,
             (double)block_bytes * p->engine.kv_blocks / 1048576,
             (unsigned long long)p->engine.kv_blocks * BLOCK_TOKENS, fits, p->max_model_len,
             p->engine.sequences_max, p->engine.waiting_max, p->engine.step_tokens, drafts,
             chat_family_name(p->family), w->so.worker_key.n > 0 ? "set" : "none");
    say(w, LOG_INFO, "plan", text);
    if (p->max_model_len < m->context && w->o.max_model_len == 0) {
        snprintf(text, sizeof(text),
                 "a request may have %u tokens, not the model's %u: --kv-bytes holds no more",
                 p->max_model_len, m->context);
        say(w, LOG_WARN, "kv_small", text);
    }
}

static struct backend *open_backend(const struct worker *w, const struct model *m, struct err *e)
{
    struct backend_options o = {
        .threads = (unsigned)w->o.threads, .kv_dtype = w->kv_dtype, .policy = w->policy};

    /* A step may verify drafts: rows of all running sequences beside the chunk. */
    o.rows_max = (uint32_t)u64_max(w->o.step_tokens, w->o.max_num_seqs * (w->o.draft_tokens + 1));
    return strcmp(w->o.backend, "ref") == 0 ? backend_ref_open(m, &o, e)
                                            : backend_cpu_open(m, &o, e);
}

/* A drafted token is an id of the target, so both must read and write the same tokens. */
static bool same_tokens(const struct model *a, const struct model *b, struct err *e)
{
    uint32_t n = tokenizer_count(a->tokenizer), other = tokenizer_count(b->tokenizer);

    if (n != other) {
        return err_set(e, ERR_INPUT,
                       "--draft-model has %u tokens, the model %u: not one vocabulary", other, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct str x = tokenizer_bytes(a->tokenizer, (int32_t)i, true);
        struct str y = tokenizer_bytes(b->tokenizer, (int32_t)i, true);

        if (!str_eq(x, y)) {
            return err_set(e, ERR_INPUT,
                           "--draft-model has another vocabulary: token %u of %u is \"" STR_FMT
                           "\" there and \"" STR_FMT "\" in the model",
                           i, n, (int)size_min(y.n, 32), y.p, (int)size_min(x.n, 32), x.p);
        }
    }
    if (tokenizer_digest(a->tokenizer) != tokenizer_digest(b->tokenizer)) {
        return err_set(e, ERR_INPUT,
                       "--draft-model has the model's %u tokens, but other merges or kinds of "
                       "tokens (digests %016llx and %016llx)",
                       n, (unsigned long long)tokenizer_digest(b->tokenizer),
                       (unsigned long long)tokenizer_digest(a->tokenizer));
    }
    return true;
}

static bool load(struct worker *w)
{
    struct loading *l = &w->load;

    l->model = model_open(w->o.model, &l->e);
    if (l->model == NULL) {
        return false;
    }
    if (w->o.draft_model != NULL) {
        l->draft = model_open(w->o.draft_model, &l->e);
        if (l->draft == NULL) {
            err_prefix(&l->e, "--draft-model");
            return false;
        }
        if (!same_tokens(l->model, l->draft, &l->e)) {
            return false;
        }
        l->draft_backend = open_backend(w, l->draft, &l->e);
        if (l->draft_backend == NULL) {
            return false;
        }
    }
    l->backend = open_backend(w, l->model, &l->e);
    return l->backend != NULL;
}

static void *run_load(void *arg)
{
    struct worker *w = arg;

    w->load.ok = load(w);
    env_wake_signal(w->env, w->load.wake);
    return NULL;
}

static void join_load(struct worker *w)
{
    if (w->load.started && !w->load.joined) {
        pthread_join(w->load.thread, NULL);
        w->load.joined = true;
    }
}

static void on_ready(void *ctx)
{
    struct worker *w = ctx;
    char text[ENV_ADDR_TEXT_MAX + 64];

    snprintf(text, sizeof(text), "http://%s", w->address);
    say(w, LOG_INFO, "listening", text);
}

static void on_loaded(void *ctx)
{
    struct worker *w = ctx;
    struct err *e = &w->load.e;

    join_load(w);
    if (w->stopping) {
        return;
    }
    if (w->load.ok && choose_family(w, e) && plan_memory(w, e)) {
        say_plan(w);
        if (serve_load(w->serve, w->load.model, w->load.backend, &w->plan, on_ready, w, e)) {
            return;
        }
    }
    w->failed = true;
    say(w, LOG_ERROR, "cannot_start", e->text);
    os_stop(w->env);
}

/* What can be wrong before anything is opened. */
static bool check_options(struct worker *w, struct err *e)
{
    struct options *o = &w->o;

    if (strcmp(o->backend, "cpu") != 0 && strcmp(o->backend, "ref") != 0) {
        return err_set(e, ERR_INPUT, "--backend is cpu or ref, not \"%s\"", o->backend);
    }
    if (o->kv_dtype != NULL && !backend_kv_dtype_named(str_c(o->kv_dtype), &w->kv_dtype)) {
        return err_set(e, ERR_INPUT, "--kv-dtype is bf16 or int8, not \"%s\"", o->kv_dtype);
    }
    if (o->policy != NULL && !backend_policy_named(str_c(o->policy), &w->policy)) {
        return err_set(e, ERR_INPUT, "--policy is exact or fast, not \"%s\"", o->policy);
    }
    if (strcmp(o->backend, "ref") == 0 && (o->kv_dtype != NULL || o->policy != NULL)) {
        return err_set(e, ERR_UNSUPPORTED,
                       "--backend ref keeps float32 and one order of sums: it takes neither "
                       "--kv-dtype nor --policy");
    }
    if (o->draft_tokens == OPTIONS_DRAFTS_UNSET) {
        o->draft_tokens = o->draft_model != NULL ? OPTIONS_DRAFT_TOKENS : 0;
    }
    if (o->draft_model != NULL && o->draft_tokens == 0) {
        return err_set(e, ERR_INPUT, "--draft-model is of no use with --speculate off");
    }
    return true;
}

static bool listen_and_load(struct worker *w, struct err *e)
{
    struct env_addr addr;
    struct env_sock *listener;
    char text[ENV_ADDR_TEXT_MAX + 64];

    if (!os_addr_parse(str_c(w->o.listen), &addr, e)) {
        return false;
    }
    listener = env_listen(w->env, &addr, false, e);
    if (listener == NULL) {
        return false;
    }
    if (w->env->ops->local_addr(w->env, listener, &addr)) {
        os_addr_text(&addr, w->address);
    }
    w->serve = serve_new(w->env, w->log, listener, &w->so);
    snprintf(text, sizeof(text), "http://%s, not ready yet", w->address);
    say(w, LOG_INFO, "loading", text);
    w->load.wake = w->env->ops->wake_new(w->env, on_loaded, w);
    w->load.started = pthread_create(&w->load.thread, NULL, run_load, w) == 0;
    return w->load.started || err_set(e, ERR_NO_MEMORY, "no thread could be started");
}

static bool start(struct worker *w, struct err *e)
{
    /* Blocked here, before any other thread starts and inherits the mask. */
    if (!os_on_signals(w->env, on_signal, w, e)) {
        return false;
    }
    if (w->o.key_file != NULL) {
        if (!options_read_key(w->o.key_file, w->key, e)) {
            return false;
        }
        w->so.worker_key = str_c(w->key);
    }
    w->name = model_name(w->o.model);
    w->so.names = w->o.served_names > 0 ? w->o.served_name : &w->name;
    w->so.n_names = w->o.served_names > 0 ? w->o.served_names : 1;
    w->so.queue_us = w->o.queue_s * 1000000;
    return listen_and_load(w, e);
}

static void run(struct worker *w)
{
    w->log_timer.fire = on_log_timer;
    env_timer_arm(w->env, &w->log_timer, env_now_us(w->env) + LOG_DRAIN_US);
    os_run(w->env);
    env_timer_disarm(w->env, &w->log_timer);
    if (!w->failed) {
        say(w, LOG_INFO, "stopped", "bye");
    }
}

static void close_backend(struct backend *b)
{
    if (b != NULL) {
        b->ops->close(b);
    }
}

/* rc: for the case that a model is still being opened: that may take minutes and cannot be called
 * off, and there is nothing to give back that the end of the process does not. */
static void worker_fini(struct worker *w, int rc)
{
    if (w->load.started && !w->load.joined) {
        _exit(rc);
    }
    if (w->load.wake != NULL) {
        w->env->ops->wake_free(w->env, w->load.wake);
    }
    serve_free(w->serve);
    close_backend(w->load.backend);
    close_backend(w->load.draft_backend);
    model_close(w->load.model);
    model_close(w->load.draft);
    log_free(w->log);
    os_env_free(w->env);
}

int main(int argc, char **argv)
{
    static struct worker w;
    struct err e = {0};
    int rc = 1;

    os_process_init();
    if (argc > 1 && strcmp(argv[1], "bench") == 0) {
        return bench_main(argc - 1, argv + 1);
    }
    if (!options_parse(&w.o, argc, argv, &e)) {
        fprintf(stderr, "tollgate-worker: %s\n", e.text);
        return 2;
    }
    if (w.o.help) {
        options_help();
        return 0;
    }
    if (!check_options(&w, &e)) {
        fprintf(stderr, "tollgate-worker: %s\n", e.text);
        return 2;
    }
    w.env = os_env_new(NULL, &e);
    if (w.env == NULL) {
        fprintf(stderr, "tollgate-worker: %s\n", e.text);
        return 1;
    }
    w.log = log_new(2, w.o.log_level, "tollgate-worker");
    if (start(&w, &e)) {
        run(&w);
        rc = w.failed ? 1 : 0;
    } else {
        say(&w, LOG_ERROR, "cannot_start", e.text);
    }
    worker_fini(&w, rc);
    return rc;
}
