/* options.c - the table of options, its parser, and the help that is printed from it. */
#include "worker/options.h"

#include "worker/backend.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_BYTES_MIN 16
#define THREADS_MAX 256

enum option_kind {
    OPTION_TEXT = 1,
    OPTION_NAMES, /* into served_name; may be given again */
    OPTION_COUNT,
    OPTION_BYTES,
    OPTION_LEVEL,
    OPTION_DRAFTS, /* off, lookup or a number, into draft_tokens */
    OPTION_FLAG
};

struct option {
    const char *name, *value; /* value: as help names it */
    enum option_kind kind;
    size_t offset; /* in struct options */
    uint64_t least, most;
    const char *help;
};

#define AT(field) offsetof(struct options, field)

static const struct option table[] = {
    {"--model", "FILE", OPTION_TEXT, AT(model), 0, 0,
     "GGUF file to serve: Llama family (SmolLM2, Llama 3, Qwen2). Required."},
    {"--listen", "ADDR:PORT", OPTION_TEXT, AT(listen), 0, 0,
     "where to listen; port 0 lets the system choose. Default 127.0.0.1:9001."},
    {"--backend", "NAME", OPTION_TEXT, AT(backend), 0, 0,
     "what computes: cpu (default), or ref, the slow oracle."},
    {"--threads", "N", OPTION_COUNT, AT(threads), 1, THREADS_MAX,
     "threads that compute. Default: one a core that this process may use (affinity, cgroup)."},
    {"--max-model-len", "N", OPTION_COUNT, AT(max_model_len), 2, 1u << 24,
     "tokens of prompt and answer together. Default: the model's context, or what the KV pool "
     "holds."},
    {"--kv-bytes", "SIZE", OPTION_BYTES, AT(kv_bytes), 1u << 16, 1ull << 46,
     "memory for the KV cache, with K, M or G. Default 512M."},
    {"--max-num-seqs", "N", OPTION_COUNT, AT(max_num_seqs), 1, 4096,
     "requests in the batch at once. Default 16."},
    {"--max-waiting", "N", OPTION_COUNT, AT(max_waiting), 1, 60000,
     "requests that may wait; more are answered 503. Default 256."},
    {"--step-tokens", "N", OPTION_COUNT, AT(step_tokens), 1, 65536,
     "tokens computed in one step, decodes first. Default 256."},
    {"--worker-key-file", "FILE", OPTION_TEXT, AT(key_file), 0, 0,
     "key shared with the gateway, in a file with mode 0600. With it every request needs it, and "
     "x-tollgate-* headers are honoured; without it they are ignored."},
    {"--served-name", "NAME[,NAME]", OPTION_NAMES, AT(served_name), 0, 0,
     "model names of the API, also by giving the option again: all are accepted, the first is "
     "reported. Default: the file's name without its quantisation and .gguf."},
    {"--chat-format", "NAME", OPTION_TEXT, AT(chat_format), 0, 0,
     "template family when the file's template is not known: smollm2, chatml, qwen2, qwen2.5, "
     "llama3, llama3.1, mistral-v3, mistral-nemo and others (a wrong name lists all)."},
    {"--queue-seconds", "N", OPTION_COUNT, AT(queue_s), 0, 86400,
     "longest wait before a request is started; then it is answered 503. A request's own "
     "x-tollgate-deadline-ms may only shorten it. Default 0: no bound."},
    {"--tpot-target-ms", "N", OPTION_COUNT, AT(tpot_ms), 0, 60000,
     "time between two tokens that prefill leaves to running answers; 0: none. Default 50."},
    {"--aging-seconds", "N", OPTION_COUNT, AT(aging_s), 0, 86400,
     "who waited so long counts as one class better; 0: never. Default 10."},
    {"--speculate", "off|lookup|N", OPTION_DRAFTS, AT(draft_tokens), 1, OPTIONS_DRAFT_TOKENS_MAX,
     "draft tokens from earlier text (and --draft-model) and verify them in one step; N: most of a "
     "step, lookup: 4. The answers are the same. Default off, lookup with a draft model."},
    {"--draft-model", "FILE", OPTION_TEXT, AT(draft_model), 0, 0,
     "small GGUF model with the same vocabulary and merges that drafts tokens. Its KV cache comes "
     "out of "
     "--kv-bytes too, as many tokens as the model's."},
    {"--kv-dtype", "NAME", OPTION_TEXT, AT(kv_dtype), 0, 0,
     "bf16 (default), or int8: twice the tokens in the same memory, less exact."},
    {"--policy", "NAME", OPTION_TEXT, AT(policy), 0, 0,
     "exact (default): the same bits alone and in any batch; or fast: AMX in bf16 for steps of "
     "many "
     "rows; on a CPU without it fast is exact, and the log's plan says so."},
    {"--drain-seconds", "N", OPTION_COUNT, AT(drain_s), 0, 3600,
     "how long running answers may go on after SIGTERM. Default 30."},
    {"--log-level", "LEVEL", OPTION_LEVEL, AT(log_level), 0, 0,
     "debug, info (default), warn or error."},
    {"--help", "", OPTION_FLAG, AT(help), 0, 0, "this page."},
};

void options_help(void)
{
    puts("tollgate-worker - serves one model over HTTP, for a Tollgate gateway or on its own\n\n"
         "usage: tollgate-worker --model FILE [options]\n"
         "       tollgate-worker bench --help\n");
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        printf("  %s%s%s\n      %s\n", table[i].name, table[i].value[0] != '\0' ? " " : "",
               table[i].value, table[i].help);
    }
    puts("\nAPI: POST /v1/chat/completions, POST /v1/completions, POST /tokenize, POST "
         "/detokenize,\n"
         "GET /v1/models, GET /health (the process answers), GET /ready (503 while loading or\n"
         "draining), GET /metrics (Prometheus). With a worker key also GET /kv_events, GET\n"
         "/events/ID and POST /abort/ID.\n\n"
         "Log lines are JSON on standard error; the events \"loading\" (the port is open) and\n"
         "\"listening\" (requests are served) have the bound address.\n"
         "SIGTERM or SIGINT: no new connections, running answers finish, exit 0.\n"
         "Exit codes: 0 done, 1 could not start (the last log line says why), 2 usage.");
}

static bool parse_bytes(struct str s, uint64_t *out)
{
    static const char units[] = "KMGT";
    const char *unit = s.n > 0 ? strchr(units, s.p[s.n - 1]) : NULL;
    unsigned shift = unit != NULL && *unit != '\0' ? 10 * (unsigned)(unit - units + 1) : 0;

    s.n -= shift > 0 ? 1 : 0;
    if (!str_u64(s, out) || *out > UINT64_MAX >> shift) {
        return false;
    }
    *out <<= shift;
    return true;
}

static bool parse_level(struct str s, enum log_level *out)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (str_eq(s, str_c(names[i]))) {
            *out = (enum log_level)(LOG_DEBUG + (int)i);
            return true;
        }
    }
    return false;
}

static bool add_names(struct options *o, struct str list, struct err *e)
{
    if (list.n == 0) {
        return err_set(e, ERR_INPUT, "--served-name needs a value");
    }
    while (list.n > 0) {
        struct str name;

        if (!str_cut(list, ',', &name, &list)) {
            list = STR("");
        }
        if (name.n == 0 || o->served_names == OPTIONS_NAMES_MAX) {
            return err_set(e, ERR_INPUT, "--served-name takes 1 to %d names, none of them empty",
                           OPTIONS_NAMES_MAX);
        }
        o->served_name[o->served_names++] = name;
    }
    return true;
}

static bool parse_drafts(const char *value, uint64_t *out)
{
    if (strcmp(value, "off") == 0) {
        *out = 0;
        return true;
    }
    if (strcmp(value, "lookup") == 0) {
        *out = OPTIONS_DRAFT_TOKENS;
        return true;
    }
    return str_u64(str_c(value), out) && *out >= 1;
}

static bool set(struct options *o, const struct option *k, const char *value, struct err *e)
{
    char *field = (char *)o + k->offset;
    uint64_t n;
    bool ok;

    if (k->kind == OPTION_TEXT) {
        memcpy(field, &value, sizeof(value));
        return value[0] != '\0' || err_set(e, ERR_INPUT, "%s needs a value", k->name);
    }
    if (k->kind == OPTION_NAMES) {
        return add_names(o, str_c(value), e);
    }
    if (k->kind == OPTION_LEVEL) {
        return parse_level(str_c(value), (enum log_level *)(void *)field) ||
               err_set(e, ERR_INPUT, "--log-level is debug, info, warn or error, not \"%s\"",
                       value);
    }
    if (k->kind == OPTION_DRAFTS) {
        if (!parse_drafts(value, &n) || n > k->most) {
            return err_set(e, ERR_INPUT, "%s is off, lookup or a number from 1 to %llu, not \"%s\"",
                           k->name, (unsigned long long)k->most, value);
        }
        memcpy(field, &n, sizeof(n));
        return true;
    }
    ok = k->kind == OPTION_BYTES ? parse_bytes(str_c(value), &n) : str_u64(str_c(value), &n);
    if (!ok || n < k->least || n > k->most) {
        return err_set(e, ERR_INPUT, "%s must be a number from %llu to %llu, not \"%s\"", k->name,
                       (unsigned long long)k->least, (unsigned long long)k->most, value);
    }
    memcpy(field, &n, sizeof(n));
    return true;
}

static const struct option *find(struct str name)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (str_eq(name, str_c(table[i].name))) {
            return &table[i];
        }
    }
    return NULL;
}

bool options_parse(struct options *o, int argc, char **argv, struct err *e)
{
    *o = (struct options){.listen = "127.0.0.1:9001",
                          .backend = "cpu",
                          .kv_bytes = 512u << 20,
                          .max_num_seqs = 16,
                          .max_waiting = 256,
                          .step_tokens = 256,
                          .drain_s = 30,
                          .tpot_ms = 50,
                          .aging_s = 10,
                          .draft_tokens = OPTIONS_DRAFTS_UNSET,
                          .log_level = LOG_INFO};
    o->threads = u64_min(backend_default_threads(), THREADS_MAX);
    for (int i = 1; i < argc; i++) {
        struct str name = str_c(argv[i]), value;
        bool joined = str_cut(name, '=', &name, &value); /* --name=value or --name value */
        const struct option *k = find(name);

        if (k == NULL) {
            return err_set(e, ERR_INPUT, "there is no option \"%s\"; see --help", argv[i]);
        }
        if (k->kind == OPTION_FLAG) {
            o->help = true;
            continue;
        }
        if (!joined && i + 1 == argc) {
            return err_set(e, ERR_INPUT, "%s needs a value: %s", k->name, k->value);
        }
        if (!set(o, k, joined ? value.p : argv[++i], e)) {
            return false;
        }
    }
    return o->help || o->model != NULL ||
           err_set(e, ERR_INPUT, "--model FILE is required; see --help");
}

bool options_read_key(const char *path, char out[OPTIONS_KEY_MAX], struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    struct str key;
    ssize_t n;

    if (fd < 0) {
        return err_errno(e, errno, "worker key %s", path);
    }
    n = fstat(fd, &st) == 0 ? read(fd, out, OPTIONS_KEY_MAX) : -1;
    close(fd);
    if (n < 0) {
        return err_errno(e, errno, "worker key %s", path);
    }
    if ((st.st_mode & 077) != 0) {
        return err_set(e, ERR_INPUT, "worker key %s can be read by others: chmod 600 it", path);
    }
    key = str_of(out, (size_t)n);
    while (key.n > 0 && (key.p[key.n - 1] == '\n' || key.p[key.n - 1] == '\r')) {
        key.n--;
    }
    if (key.n < KEY_BYTES_MIN || n == OPTIONS_KEY_MAX || memchr(key.p, '\n', key.n) != NULL) {
        return err_set(e, ERR_INPUT, "worker key %s must be one line of %d to %d bytes", path,
                       KEY_BYTES_MIN, OPTIONS_KEY_MAX - 2);
    }
    out[key.n] = '\0';
    return true;
}
