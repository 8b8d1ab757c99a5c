/* main.c - tollgate-worker: opens a model and a backend, says what fits, serves until told to stop.
 */
#include "base/net/os.h"
#include "cache/blocks.h"
#include "worker/options.h"
#include "worker/serve.h"

#include <signal.h>
#include <stdio.h>

#define LOG_DRAIN_US 100000

struct worker {
    struct options o;
    struct log *log;
    struct env *env;
    struct model *model;
    struct backend *backend;
    struct serve *serve;
    struct serve_options plan;
    struct env_timer log_timer;
    char key[OPTIONS_KEY_MAX];
    char address[ENV_ADDR_TEXT_MAX];
    bool stopping;
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
               err_set(e, ERR_INPUT, "--chat-format is smollm2, chatml or qwen2, not \"%s\"",
                       w->o.chat_format);
    }
    w->plan.family = chat_family_of_template(w->model->chat_template);
    if (w->plan.family == CHAT_NONE) {
        say(w, LOG_WARN, "chat_unknown",
            "the file's chat template is not known: chat is refused unless --chat-format names "
            "one");
    }
    return true;
}

/* How many blocks the pool has, and what one request may then be. */
static bool plan_memory(struct worker *w, struct err *e)
{
    struct serve_options *p = &w->plan;
    uint64_t block_bytes = w->backend->ops->kv_block_bytes(w->backend);
    uint64_t blocks = w->o.kv_bytes / block_bytes;
    uint64_t len = w->o.max_model_len > 0 ? w->o.max_model_len : w->model->context;

    if (blocks < 1) {
        return err_set(e, ERR_INPUT, "--kv-bytes holds no block: one takes %llu bytes",
                       (unsigned long long)block_bytes);
    }
    if (w->o.max_model_len > w->model->context) {
        return err_set(e, ERR_INPUT, "--max-model-len %llu is beyond the model's context of %u",
                       (unsigned long long)w->o.max_model_len, w->model->context);
    }
    p->kv_blocks = (uint32_t)u64_min(blocks, 1u << 26);
    if (w->o.max_model_len > blocks * BLOCK_TOKENS) {
        return err_set(e, ERR_INPUT, "--kv-bytes holds %llu tokens, fewer than --max-model-len",
                       (unsigned long long)(blocks * BLOCK_TOKENS));
    }
    p->max_model_len = (uint32_t)u64_min(len, (uint64_t)p->kv_blocks * BLOCK_TOKENS);
    p->sequences_max = (uint32_t)w->o.max_num_seqs;
    p->waiting_max = (uint32_t)w->o.max_waiting;
    p->step_tokens = (uint32_t)u64_max(w->o.step_tokens, w->o.max_num_seqs);
    return true;
}

static void say_plan(struct worker *w)
{
    const struct serve_options *p = &w->plan;
    const struct model *m = w->model;
    uint64_t block_bytes = w->backend->ops->kv_block_bytes(w->backend);
    char text[512];

    snprintf(text, sizeof(text),
             "model " STR_FMT ", %.1f MiB of weights a token, context %u; backend %s; KV %u blocks "
             "of 32 tokens (%.1f MiB, %llu tokens); max_model_len %u, %u sequences, %u waiting, "
             "%u tokens a step; chat %s; worker key %s",
             STR_ARG(p->name), (double)m->weight_bytes / 1048576, m->context,
             w->backend->ops->describe(w->backend), p->kv_blocks,
             (double)block_bytes * p->kv_blocks / 1048576,
             (unsigned long long)p->kv_blocks * BLOCK_TOKENS, p->max_model_len, p->sequences_max,
             p->waiting_max, p->step_tokens, chat_family_name(p->family),
             p->worker_key.n > 0 ? "set" : "none");
    say(w, LOG_INFO, "plan", text);
}

static bool open_backend(struct worker *w, struct err *e)
{
    struct backend_options o = {.threads = (unsigned)w->o.threads,
                                .rows_max = (uint32_t)u64_max(w->o.step_tokens, w->o.max_num_seqs)};
    struct str name = str_c(w->o.backend);

    if (str_eq(name, STR("cpu"))) {
        w->backend = backend_cpu_open(w->model, &o, e);
    } else if (str_eq(name, STR("ref"))) {
        w->backend = backend_ref_open(w->model, &o, e);
    } else {
        return err_set(e, ERR_INPUT, "--backend is cpu or ref, not \"%s\"", w->o.backend);
    }
    return w->backend != NULL;
}

static bool listen_and_serve(struct worker *w, struct err *e)
{
    struct env_addr addr;
    struct env_sock *listener;

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
    w->serve = serve_new(w->env, w->log, w->model, w->backend, listener, &w->plan, e);
    return w->serve != NULL;
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
        w->plan.worker_key = str_c(w->key);
    }
    w->model = model_open(w->o.model, e);
    if (w->model == NULL) {
        return false;
    }
    w->plan.name = w->o.served_name != NULL ? str_c(w->o.served_name) : model_name(w->o.model);
    if (!choose_family(w, e) || !open_backend(w, e) || !plan_memory(w, e)) {
        return false;
    }
    say_plan(w);
    return listen_and_serve(w, e);
}

static void run(struct worker *w)
{
    char text[ENV_ADDR_TEXT_MAX + 64];

    w->log_timer.fire = on_log_timer;
    env_timer_arm(w->env, &w->log_timer, env_now_us(w->env) + LOG_DRAIN_US);
    snprintf(text, sizeof(text), "http://%s", w->address);
    say(w, LOG_INFO, "listening", text);
    os_run(w->env);
    env_timer_disarm(w->env, &w->log_timer);
    say(w, LOG_INFO, "stopped", "bye");
}

int main(int argc, char **argv)
{
    static struct worker w;
    struct err e = {0};
    int rc = 1;

    if (!options_parse(&w.o, argc, argv, &e)) {
        fprintf(stderr, "tollgate-worker: %s\n", e.text);
        return 2;
    }
    if (w.o.help) {
        options_help();
        return 0;
    }
    w.env = os_env_new(NULL, &e);
    if (w.env == NULL) {
        fprintf(stderr, "tollgate-worker: %s\n", e.text);
        return 1;
    }
    w.log = log_new(2, w.o.log_level, "tollgate-worker");
    if (start(&w, &e)) {
        run(&w);
        rc = 0;
    } else {
        say(&w, LOG_ERROR, "cannot_start", e.text);
    }
    serve_free(w.serve);
    if (w.backend != NULL) {
        w.backend->ops->close(w.backend);
    }
    model_close(w.model);
    log_free(w.log);
    os_env_free(w.env);
    return rc;
}
