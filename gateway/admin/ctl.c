/* ctl.c - tollctl: the operator's command line over the admin API, and offline on journal files. */
#include "gateway/admin/ctl.h"

#include "base/net/client.h"
#include "base/net/os.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define CTL_WAIT_US 30000000 /* an admin call that takes longer is stuck */
#define CTL_ANSWER_MAX (32u << 20)

static const char help[] =
    "tollctl - tenants, keys, quotas, prices, workers and usage of a Tollgate gateway\n"
    "\n"
    "  tenant create NAME | tenant list\n"
    "  key create --tenant NAME [--project NAME] [--name TEXT]    prints the key, this once\n"
    "  key list [--tenant NAME] | key revoke KEY_ID               revoked everywhere within a "
    "second\n"
    "  quota set --tenant NAME [--key KEY_ID] [--requests-per-min N] [--input-tokens-per-min N]\n"
    "            [--output-tokens-per-min N] [--concurrent N] [--budget-month USD]\n"
    "                                                             'none' lifts a limit\n"
    "  quota show --tenant NAME [--key KEY_ID]\n"
    "  price publish --model M --input USD --cached USD --output USD     per 1M tokens, exact "
    "decimals\n"
    "  price list [--model M]\n"
    "  worker add --url URL --engine tollgate|openai [--model NAME,...]  models are asked of it if "
    "not named\n"
    "  worker drain WORKER | worker remove WORKER | worker list          WORKER: id or URL\n"
    "  usage show --tenant NAME [--from SECONDS] [--until SECONDS]       this month (UTC) by "
    "default\n"
    "  journal verify|show|replay DIR                                    offline\n"
    "  migrate --database CONNINFO [--dir sql]\n"
    "\n"
    "  --json   one JSON object on standard output, for scripts\n"
    "\n"
    "environment: TOLLGATE_ADMIN_URL (http://127.0.0.1:8444), TOLLGATE_ADMIN_KEY\n"
    "exit codes:  0 done   1 refused (the reason is on standard error)   2 usage   3 unreachable\n";

const char *ctl_word(struct ctl *c, int index)
{
    for (int i = 0; i < c->argc; i++) {
        if (strncmp(c->argv[i], "--", 2) == 0) {
            i++; /* its value */
        } else if (index-- == 0) {
            return c->argv[i];
        }
    }
    return NULL;
}

const char *ctl_option(struct ctl *c, const char *name)
{
    for (int i = 0; i + 1 < c->argc; i++) {
        if (strncmp(c->argv[i], "--", 2) == 0 && strcmp(c->argv[i] + 2, name) == 0) {
            const char *value = c->argv[i + 1];

            c->argv[i] = "--"; /* seen */
            return value;
        }
    }
    return NULL;
}

bool ctl_no_more(struct ctl *c, int words)
{
    for (int i = 0; i < c->argc; i++) {
        if (strcmp(c->argv[i], "--") == 0) {
            i++;
        } else if (strncmp(c->argv[i], "--", 2) == 0) {
            fprintf(stderr, "tollctl: unknown option or missing value: %s; see tollctl --help\n",
                    c->argv[i]);
            return false;
        } else if (words-- <= 0) {
            fprintf(stderr, "tollctl: unexpected word: %s; see tollctl --help\n", c->argv[i]);
            return false;
        }
    }
    return true;
}

struct call {
    struct env *env;
    unsigned status;
    struct buf body;
    bool done, failed;
    enum http_fail why;
    struct env_timer timer;
};

static void call_head(void *user, unsigned status, const struct http_fields *f)
{
    (void)f;
    ((struct call *)user)->status = status;
}

static void call_body(void *user, const void *p, size_t n)
{
    buf_append(&((struct call *)user)->body, p, n);
}

static void call_end(void *user)
{
    struct call *k = user;

    k->done = true;
    os_stop(k->env);
}

static void call_fail(void *user, enum http_fail why, bool sent)
{
    struct call *k = user;

    (void)sent;
    k->failed = true;
    k->why = why;
    os_stop(k->env);
}

static void call_late(struct env_timer *t)
{
    struct call *k = CONTAINER_OF(t, struct call, timer);

    k->failed = true;
    os_stop(k->env);
}

static bool exchange(struct call *k, const char *method, const char *path, const struct buf *body,
                     const char *key, const struct env_addr *addr, struct str host)
{
    static const struct http_call_events events = {call_head, call_body, call_end, call_fail};
    struct http_client *client = http_client_new(k->env);
    struct http_origin_options o = {
        .addr = *addr, .host = host, .connections_max = 1, .connect_us = 3000000};
    char auth[1024];
    struct http_field f[2] = {{STR("authorization"), {NULL, 0}},
                              {STR("content-type"), STR("application/json")}};
    struct http_call_request r = {.method = strcmp(method, "GET") == 0 ? HTTP_GET : HTTP_POST,
                                  .target = str_c(path),
                                  .fields = f,
                                  .n_fields = body != NULL ? 2 : 1};

    snprintf(auth, sizeof(auth), "Bearer %s", key);
    f[0].value = str_c(auth);
    r.body = body != NULL ? buf_view(body) : (struct str){"", 0};
    k->timer.fire = call_late;
    env_timer_arm(k->env, &k->timer, env_now_us(k->env) + CTL_WAIT_US);
    (void)http_call_start(http_origin_new(client, &o), &r, &events, k);
    os_run(k->env);
    env_timer_disarm(k->env, &k->timer);
    http_client_free(client);
    return k->done;
}

static int judge(struct ctl *c, struct call *k, struct json **answer)
{
    struct err e = {.code = ERR_NONE};
    struct str copy = arena_str(&c->arena, buf_view(&k->body));
    struct json *root = json_parse(&c->arena, copy, &json_limits_api, &e);
    const struct json *message;

    if (k->status == 200 && root != NULL) {
        *answer = root;
        return CTL_DONE;
    }
    message = root != NULL ? json_get(json_get(root, STR("error")), STR("message")) : NULL;
    if (message != NULL) {
        struct buf plain;

        buf_init(&plain, CTL_ANSWER_MAX);
        ctl_plain(&plain, message->text);
        fprintf(stderr, "tollctl: " STR_FMT "\n", STR_ARG(buf_view(&plain)));
        buf_fini(&plain);
    } else {
        fprintf(stderr,
                "tollctl: the gateway answered %u without a message; is TOLLGATE_ADMIN_URL its "
                "admin listener?\n",
                k->status);
    }
    return CTL_REFUSED;
}

int ctl_call(struct ctl *c, const char *method, const char *path, const struct buf *body,
             struct json **answer)
{
    const char *url = getenv("TOLLGATE_ADMIN_URL"), *key = getenv("TOLLGATE_ADMIN_KEY");
    struct err e = {.code = ERR_NONE};
    struct env_addr addr;
    struct str host = str_c(url != NULL ? url : "http://127.0.0.1:8444");
    struct call k = {0};
    int rc;

    if (key == NULL || key[0] == '\0') {
        fputs("tollctl: set TOLLGATE_ADMIN_KEY (the content of the gateway's "
              "secrets.admin_key_file)\n",
              stderr);
        return CTL_USAGE;
    }
    if (!str_starts(host, STR("http://"))) {
        fputs("tollctl: TOLLGATE_ADMIN_URL must be http://ADDRESS:PORT of the gateway's "
              "listen.admin\n",
              stderr);
        return CTL_USAGE;
    }
    host = str_of(host.p + 7, host.n - 7);
    while (host.n > 0 && host.p[host.n - 1] == '/') {
        host.n--;
    }
    if (!os_addr_parse(host, &addr, &e)) {
        fprintf(stderr, "tollctl: TOLLGATE_ADMIN_URL: %s\n", e.text);
        return CTL_USAGE;
    }
    k.env = os_env_new(NULL, &e);
    if (k.env == NULL) {
        fprintf(stderr, "tollctl: %s\n", e.text);
        return CTL_UNREACHABLE;
    }
    buf_init(&k.body, CTL_ANSWER_MAX);
    if (!exchange(&k, method, path, body, key, &addr, host)) {
        fprintf(stderr,
                "tollctl: no answer from " STR_FMT
                "; is the gateway running? (TOLLGATE_ADMIN_URL)\n",
                STR_ARG(host));
        rc = CTL_UNREACHABLE;
    } else {
        rc = judge(c, &k, answer);
    }
    buf_fini(&k.body);
    os_env_free(k.env);
    return rc;
}

/* Options that become members of the body. */
enum arg_kind { ARG_TEXT = 1, ARG_NUMBER, ARG_LIMIT, ARG_LIST };
struct arg {
    const char *option, *member;
    enum arg_kind kind;
    bool needed;
};

static bool write_arg(struct ctl *c, const struct arg *a, struct json_writer *w)
{
    const char *v = ctl_option(c, a->option);
    struct str rest, item;
    uint64_t n;

    if (v == NULL) {
        if (a->needed) {
            fprintf(stderr, "tollctl: --%s is needed; see tollctl --help\n", a->option);
        }
        return !a->needed;
    }
    switch (a->kind) {
    case ARG_TEXT:
        jw_kc(w, a->member, v);
        return true;
    case ARG_LIMIT:
        if (strcmp(v, "none") == 0) {
            jw_knull(w, a->member);
            return true;
        }
        /* fall through */
    case ARG_NUMBER:
        if (!str_u64(str_c(v), &n)) {
            fprintf(stderr, "tollctl: --%s must be a whole number%s, not '%s'\n", a->option,
                    a->kind == ARG_LIMIT ? " or none" : "", v);
            return false;
        }
        jw_ku64(w, a->member, n);
        return true;
    case ARG_LIST:
        jw_key(w, str_c(a->member));
        jw_array(w);
        for (rest = str_c(v); rest.n > 0;) {
            if (!str_cut(rest, ',', &item, &rest)) {
                rest.n = 0;
            }
            if (item.n > 0) {
                jw_str(w, str_trim(item));
            }
        }
        jw_end_array(w);
        return true;
    }
    return false;
}

#define ARGS_MAX 8
struct command {
    const char *noun, *verb;
    const char *method, *path;
    const char *word; /* member that the third word becomes; NULL: none */
    bool word_is_number;
    struct arg args[ARGS_MAX]; /* POST: members; GET: query */
    const char *columns[14];
};

static const struct command commands[] = {
    {"tenant",
     "create",
     "POST",
     "/admin/tenants",
     "name",
     false,
     {{"timezone", "timezone", ARG_TEXT, false}},
     {NULL}},
    {"tenant",
     "list",
     "GET",
     "/admin/tenants",
     NULL,
     false,
     {{0}},
     {"tenant_id", "name", "timezone", "disabled", "created_at", NULL}},
    {"key",
     "create",
     "POST",
     "/admin/keys",
     NULL,
     false,
     {{"tenant", "tenant", ARG_TEXT, true},
      {"project", "project", ARG_TEXT, false},
      {"name", "name", ARG_TEXT, false},
      {"user", "user", ARG_TEXT, false}},
     {NULL}},
    {"key",
     "list",
     "GET",
     "/admin/keys",
     NULL,
     false,
     {{"tenant", "tenant", ARG_TEXT, false}},
     {"key_id", "tenant", "project", "name", "redacted", "revoked", "created_at", NULL}},
    {"key", "revoke", "POST", "/admin/keys/revoke", "key_id", true, {{0}}, {NULL}},
    {"quota",
     "set",
     "POST",
     "/admin/quotas",
     NULL,
     false,
     {{"tenant", "tenant", ARG_TEXT, false},
      {"key", "key_id", ARG_NUMBER, false},
      {"requests-per-min", "requests_per_min", ARG_LIMIT, false},
      {"input-tokens-per-min", "input_tokens_per_min", ARG_LIMIT, false},
      {"output-tokens-per-min", "output_tokens_per_min", ARG_LIMIT, false},
      {"concurrent", "concurrent", ARG_LIMIT, false},
      {"budget-month", "budget_month_usd", ARG_TEXT, false}},
     {NULL}},
    {"quota",
     "show",
     "GET",
     "/admin/quotas",
     NULL,
     false,
     {{"tenant", "tenant", ARG_TEXT, false}, {"key", "key_id", ARG_NUMBER, false}},
     {NULL}},
    {"price",
     "publish",
     "POST",
     "/admin/prices",
     NULL,
     false,
     {{"model", "model", ARG_TEXT, true},
      {"input", "input_usd", ARG_TEXT, true},
      {"cached", "cached_usd", ARG_TEXT, false},
      {"output", "output_usd", ARG_TEXT, true},
      {"reasoning", "reasoning_usd", ARG_TEXT, false}},
     {"price_id", "model", "tier", "input_usd", "cached_usd", "output_usd", "valid_from", NULL}},
    {"price",
     "list",
     "GET",
     "/admin/prices",
     NULL,
     false,
     {{"model", "model", ARG_TEXT, false}},
     {"price_id", "model", "tier", "input_usd", "cached_usd", "output_usd", "valid_from",
      "in_force", NULL}},
    {"worker",
     "add",
     "POST",
     "/admin/workers",
     NULL,
     false,
     {{"url", "url", ARG_TEXT, true},
      {"engine", "engine", ARG_TEXT, true},
      {"model", "models", ARG_LIST, false}},
     {NULL}},
    {"worker", "drain", "POST", "/admin/workers/drain", "worker", false, {{0}}, {NULL}},
    {"worker", "remove", "POST", "/admin/workers/remove", "worker", false, {{0}}, {NULL}},
    {"worker",
     "list",
     "GET",
     "/admin/workers",
     NULL,
     false,
     {{0}},
     {"worker_id", "url", "engine", "health", "draining", "in_flight", "waiting", "kv_usage",
      "kv_events", "hit_rate", "prediction_error", "errors", "models", NULL}},
    {"usage",
     "show",
     "GET",
     "/admin/usage",
     NULL,
     false,
     {{"tenant", "tenant", ARG_TEXT, false},
      {"from", "from", ARG_NUMBER, false},
      {"until", "until", ARG_NUMBER, false}},
     {"model", "tier", "requests", "tok_in_uncached", "tok_in_cached", "tok_out", "cost_usd",
      "list_usd", NULL}},
};

static bool write_body(struct ctl *c, const struct command *k, struct buf *body)
{
    struct json_writer w;
    const char *word = ctl_word(c, 2);
    uint64_t n = 0;

    jw_init(&w, body);
    jw_object(&w);
    if (k->word != NULL && (word == NULL || (k->word_is_number && !str_u64(str_c(word), &n)))) {
        fprintf(stderr, "tollctl: %s %s needs a %s; see tollctl --help\n", k->noun, k->verb,
                k->word);
        return false;
    }
    if (k->word != NULL && k->word_is_number) {
        jw_ku64(&w, k->word, n);
    } else if (k->word != NULL) {
        jw_kc(&w, k->word, word);
    }
    for (size_t i = 0; i < ARGS_MAX && k->args[i].option != NULL; i++) {
        if (!write_arg(c, &k->args[i], &w)) {
            return false;
        }
    }
    jw_end_object(&w);
    return true;
}

static void write_query(struct ctl *c, const struct command *k, struct buf *path)
{
    char sep = '?';

    for (size_t i = 0; i < ARGS_MAX && k->args[i].option != NULL; i++) {
        const char *v = ctl_option(c, k->args[i].option);

        if (v == NULL) {
            continue;
        }
        buf_byte(path, (uint8_t)sep);
        buf_c(path, k->args[i].member);
        buf_byte(path, '=');
        for (; *v != '\0'; v++) {
            bool plain = (*v >= '0' && *v <= '9') || (*v >= 'a' && *v <= 'z') ||
                         (*v >= 'A' && *v <= 'Z') || *v == '-' || *v == '_' || *v == '.';

            if (plain) {
                buf_byte(path, (uint8_t)*v);
            } else {
                buf_printf(path, "%%%02X", (unsigned char)*v);
            }
        }
        sep = '&';
    }
}

static int run(struct ctl *c, const struct command *k)
{
    struct buf body, path, out;
    struct json *answer = NULL;
    bool post = k->method[0] == 'P';
    int rc = CTL_USAGE;

    buf_init(&body, 64 << 10);
    buf_init(&path, 8 << 10);
    buf_init(&out, CTL_ANSWER_MAX);
    buf_c(&path, k->path);
    if (post ? write_body(c, k, &body) : (write_query(c, k, &path), true)) {
        if (ctl_no_more(c, k->word != NULL ? 3 : 2)) {
            buf_byte(&path, 0);
            rc = ctl_call(c, k->method, (const char *)path.p + path.off, post ? &body : NULL,
                          &answer);
        }
    }
    if (rc == CTL_DONE && c->json) {
        json_write(&out, answer, JSON_ORDER_DOCUMENT);
        printf(STR_FMT "\n", STR_ARG(buf_view(&out)));
    } else if (rc == CTL_DONE) {
        ctl_show(answer, k->columns[0] != NULL ? k->columns : NULL);
    }
    buf_fini(&body);
    buf_fini(&path);
    buf_fini(&out);
    return rc;
}

static int dispatch(struct ctl *c)
{
    const char *noun = ctl_word(c, 0), *verb = ctl_word(c, 1);

    if (noun == NULL) {
        fputs(help, stderr);
        return CTL_USAGE;
    }
    if (strcmp(noun, "journal") == 0) {
        return ctl_journal(c);
    }
    if (strcmp(noun, "migrate") == 0) {
        return ctl_migrate(c);
    }
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(noun, commands[i].noun) == 0 && verb != NULL &&
            strcmp(verb, commands[i].verb) == 0) {
            return run(c, &commands[i]);
        }
    }
    fprintf(stderr, "tollctl: unknown command: %s %s; see tollctl --help\n", noun,
            verb != NULL ? verb : "");
    return CTL_USAGE;
}

int main(int argc, char **argv)
{
    char *words[CTL_ARGS_MAX];
    struct ctl c = {.argv = words};
    int rc;

    (void)signal(SIGPIPE, SIG_IGN);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            c.json = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            return CTL_DONE;
        } else if (c.argc == CTL_ARGS_MAX) {
            fputs("tollctl: too many arguments\n", stderr);
            return CTL_USAGE;
        } else {
            words[c.argc++] = argv[i];
        }
    }
    arena_init(&c.arena, 256u << 20);
    rc = dispatch(&c);
    arena_fini(&c.arena);
    return rc;
}
