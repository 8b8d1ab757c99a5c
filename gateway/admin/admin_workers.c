/* admin_workers.c - workers: adding one (its models are asked of it when not named), listing them
 * as the fleet sees them. */
#include "gateway/admin/admin.h"

#include <stdio.h>

#define ADD_TIMEOUT_US 5000000

void admin_worker_add_drop(struct admin_call *a)
{
    env_timer_disarm(a->c->env, &a->probe_late);
    if (a->resolving) {
        a->c->env->ops->resolve_drop(a->c->env, &a->dns);
        a->resolving = false;
    }
    if (a->probe != NULL) {
        http_call_cancel(a->probe);
        a->probe = NULL;
    }
    if (a->origin != NULL) {
        http_origin_close(a->origin);
        a->origin = NULL;
    }
}

static enum engine_kind engine_of(const struct admin_call *a)
{
    struct str s = admin_text(a, "engine");

    return str_eq(s, STR("tollgate")) ? ENGINE_TOLLGATE
           : str_eq(s, STR("openai")) ? ENGINE_OPENAI
                                      : (enum engine_kind)0;
}

static struct str url_of(const struct admin_call *a)
{
    struct str s = admin_text(a, "url");

    while (s.n > 0 && s.p[s.n - 1] == '/') {
        s.n--;
    }
    return s;
}

static bool add_on_store(struct store_job *j, struct store *s)
{
    struct admin_call *a = CONTAINER_OF(j, struct admin_call, job);
    struct config c;

    a->store = s;
    return admin_config(a, &c, &j->e) &&
           config_worker_add(&c, url_of(a), engine_of(a), a->models, a->n_models, &a->out, &j->e);
}

/* Its models are known. */
static void add_now(struct admin_call *a)
{
    struct err e = {.code = ERR_NONE};

    admin_worker_add_drop(a);
    if (a->n_models == 0) {
        err_set(&e, ERR_INPUT, "the worker lists no models; name them with --model");
        admin_answer(a, &a->out, &e);
        return;
    }
    admin_to_store(a, add_on_store);
}

static void add_failed(struct admin_call *a, const char *why)
{
    struct err e = {.code = ERR_NONE};

    err_set(&e, ERR_INPUT, STR_FMT " does not look like a worker: %s", STR_ARG(url_of(a)), why);
    admin_answer(a, &a->out, &e);
}

static void probe_head(void *user, unsigned status, const struct http_fields *f)
{
    struct admin_call *a = user;

    a->probe_status = status;
    a->probe_ours = http_field(f, STR("x-tollgate-worker-epoch")).p != NULL;
}

static void probe_body(void *user, const void *p, size_t n)
{
    buf_append(&((struct admin_call *)user)->probed, p, n);
}

static void probe_end(void *user)
{
    struct admin_call *a = user;
    struct err e = {.code = ERR_NONE};
    const struct json *root, *data;

    a->probe = NULL;
    if (a->probe_status == 401 && engine_of(a) == ENGINE_TOLLGATE) {
        add_failed(a, "it has another worker key than secrets.worker_key_file");
        return;
    }
    if (a->probe_status != 200) {
        add_failed(a, "GET /v1/models does not answer 200");
        return;
    }
    if (engine_of(a) == ENGINE_TOLLGATE && !a->probe_ours) {
        add_failed(a, "it is not a tollgate-worker; use --engine openai for other engines");
        return;
    }
    root = json_parse(&a->arena, buf_view(&a->probed), &json_limits_api, &e);
    data = root != NULL ? json_get(root, STR("data")) : NULL;
    if (data == NULL || data->type != JSON_ARRAY) {
        add_failed(a, "GET /v1/models is no list of models");
        return;
    }
    for (const struct json *m = data->child; m != NULL; m = m->next) {
        const struct json *id = json_get(m, STR("id"));

        if (a->n_models == CONFIG_WORKER_MODELS_MAX) {
            add_failed(a, "it lists more models than a worker may have; name them with --model");
            return;
        }
        if (id != NULL && id->type == JSON_STRING && id->text.n > 0) {
            a->models[a->n_models++] = id->text;
        }
    }
    add_now(a);
}

static void probe_fail(void *user, enum http_fail why, bool sent)
{
    struct admin_call *a = user;

    (void)sent;
    a->probe = NULL;
    add_failed(a, why == HTTP_FAIL_CONNECT   ? "nothing listens there"
                  : why == HTTP_FAIL_LOCAL   ? "the gateway has no descriptor or port free to ask it"
                  : why == HTTP_FAIL_TIMEOUT ? "it does not answer in time"
                                             : "it does not speak HTTP");
}

static void probe_too_late(struct env_timer *t)
{
    struct admin_call *a = CONTAINER_OF(t, struct admin_call, probe_late);

    add_failed(a,
               a->probed.failed ? "its list of models has no end" : "it does not answer in time");
}

static void probe_start(struct admin_call *a, const struct env_addr *addr, struct str host)
{
    static const struct http_call_events events = {probe_head, probe_body, probe_end, probe_fail};
    char auth[512];
    struct http_field f = {STR("authorization"), {NULL, 0}};
    struct http_call_request req = {.method = HTTP_GET, .target = STR("/v1/models"), .fields = &f};
    struct http_origin_options o = {.addr = *addr,
                                    .host = host,
                                    .connections_max = 1,
                                    .connect_us = 2000000,
                                    .head_us = ADD_TIMEOUT_US,
                                    .body_idle_us = ADD_TIMEOUT_US};

    snprintf(auth, sizeof(auth), "Bearer " STR_FMT, STR_ARG(a->c->gw->secrets.worker_key));
    f.value = str_c(auth);
    req.n_fields = engine_of(a) == ENGINE_TOLLGATE ? 1 : 0; /* never to an engine of another kind */
    a->origin = http_origin_new(a->c->client, &o);
    a->probe = http_call_start(a->origin, &req, &events, a);
    a->probe_late.fire = probe_too_late;
    env_timer_arm(a->c->env, &a->probe_late, env_now_us(a->c->env) + ADD_TIMEOUT_US);
    hash_wipe(auth, sizeof(auth));
}

static void resolved(struct env_dns *d, const struct env_addr *addr, struct err *e)
{
    struct admin_call *a = CONTAINER_OF(d, struct admin_call, dns);
    struct str url = url_of(a);

    (void)e;
    a->resolving = false;
    if (addr == NULL) {
        add_failed(a, "its name does not resolve");
        return;
    }
    probe_start(a, addr, str_of(url.p + 7, url.n - 7));
}

static bool named_models(struct admin_call *a, struct err *e)
{
    const struct json *list = json_get(a->in, STR("models"));

    if (json_is_absent(list)) {
        return true;
    }
    if (list->type != JSON_ARRAY) {
        return err_set(e, ERR_INPUT, "'models' must be a list of names");
    }
    for (const struct json *m = list->child; m != NULL; m = m->next) {
        if (m->type != JSON_STRING || m->text.n == 0 || m->text.n > 200) {
            return err_set(e, ERR_INPUT, "'models' must be a list of names of 1 to 200 bytes");
        }
        if (a->n_models == CONFIG_WORKER_MODELS_MAX) {
            return err_set(e, ERR_LIMIT, "at most %d models a worker", CONFIG_WORKER_MODELS_MAX);
        }
        a->models[a->n_models++] = m->text;
    }
    return true;
}

static bool url_parts(struct str url, struct str *name, uint16_t *port, struct err *e)
{
    struct str host, p;
    uint64_t v = 80;

    if (!str_starts(url, STR("http://")) || url.n > 120) {
        return err_set(e, ERR_INPUT, "'url' must be http://host:port, at most 120 bytes");
    }
    host = str_of(url.p + 7, url.n - 7);
    *name = host;
    for (size_t i = 0; i < host.n; i++) {
        unsigned char ch = (unsigned char)host.p[i];

        if (ch <= ' ' || ch >= 0x7f || strchr("/@?#", ch) != NULL) {
            return err_set(e, ERR_INPUT, "'url' must be http://host:port, without a path");
        }
    }
    if (host.n > 0 && host.p[0] == '[') { /* only a numeric address begins so */
        struct env_addr numeric;

        if (!os_addr_parse(host, &numeric, e)) {
            err_prefix(e, "'url'");
            return false;
        }
    } else if (str_cut(host, ':', name, &p) && (!str_u64(p, &v) || v == 0 || v > 65535)) {
        return err_set(e, ERR_INPUT, "'url': the port must be 1 to 65535");
    }
    if (name->n == 0) {
        return err_set(e, ERR_INPUT, "'url' must be http://host:port");
    }
    *port = (uint16_t)v;
    return true;
}

bool admin_worker_add(struct admin_call *a, struct buf *out, struct err *e)
{
    struct str url = url_of(a), name;
    struct env_addr addr;
    struct err not_numeric = {.code = ERR_NONE};
    uint16_t port = 0;

    (void)out;
    if (engine_of(a) == 0) {
        return err_set(e, ERR_INPUT, "'engine' must be tollgate or openai");
    }
    if (!url_parts(url, &name, &port, e) || !named_models(a, e)) {
        return false;
    }
    if (a->n_models > 0) {
        add_now(a);
        return true;
    }
    if (os_addr_parse(str_of(url.p + 7, url.n - 7), &addr, &not_numeric)) {
        probe_start(a, &addr, str_of(url.p + 7, url.n - 7));
        return true;
    }
    a->resolving = true;
    a->dns.done = resolved;
    a->c->env->ops->resolve(a->c->env, name, port, &a->dns);
    return true;
}

static void write_ratio(struct json_writer *w, const char *key, uint64_t part, uint64_t whole)
{
    char text[32];

    jw_key(w, str_c(key));
    if (whole == 0) {
        jw_null(w);
        return;
    }
    snprintf(text, sizeof(text), "%.4f", (double)part / (double)whole);
    jw_raw(w, str_c(text));
}

static void write_worker(struct json_writer *w, const struct world *world,
                         const struct world_worker *ww)
{
    static const char *const health[] = {"unknown", "up", "down"};
    const struct worker *x = ww->w;
    int kv = atomic_load(&x->kv_permille), waiting = atomic_load(&x->waiting);

    jw_object(w);
    jw_ki64(w, "worker_id", x->worker_id);
    jw_kc(w, "url", x->url);
    jw_kc(w, "engine", x->engine == ENGINE_TOLLGATE ? "tollgate" : "openai");
    jw_key(w, STR("models"));
    jw_array(w);
    for (uint32_t i = 0; i < ww->n_models; i++) {
        const struct snap_model *m = snapshot_model_id(world->snap, ww->models[i]);

        jw_str(w, m != NULL ? m->name : STR("?"));
    }
    jw_end_array(w);
    jw_kc(w, "health", health[atomic_load(&x->health)]);
    jw_kbool(w, "draining", ww->draining);
    jw_ki64(w, "in_flight", atomic_load(&x->in_flight));
    jw_ki64(w, "queued_tokens", atomic_load(&x->queued_tokens));
    jw_ki64(w, "context_tokens", atomic_load(&x->context_tokens));
    jw_key(w, STR("waiting"));
    waiting < 0 ? jw_null(w) : jw_i64(w, waiting);
    write_ratio(w, "kv_usage", (uint64_t)(kv < 0 ? 0 : kv), kv < 0 ? 0 : 1000);
    jw_kbool(w, "kv_events", atomic_load(&x->publishes));
    jw_ku64(w, "requests", atomic_load(&x->requests));
    jw_ku64(w, "errors", atomic_load(&x->errors));
    write_ratio(w, "hit_rate", atomic_load(&x->cached_actual), atomic_load(&x->prompt_tokens));
    write_ratio(w, "prediction_error", atomic_load(&x->prediction_error),
                atomic_load(&x->prompt_tokens));
    jw_ku64(w, "prefill_tokens_per_s", atomic_load(&x->rate_milli) / 1000);
    jw_end_object(w);
}

bool admin_worker_list(struct admin_call *a, struct buf *out, struct err *e)
{
    const struct world *world = a->c->world;
    struct json_writer w;

    (void)e;
    jw_init(&w, out);
    jw_object(&w);
    jw_key(&w, STR("data"));
    jw_array(&w);
    for (unsigned i = 0; i < world->n_workers; i++) {
        write_worker(&w, world, &world->worker[i]);
    }
    jw_end_array(&w);
    jw_end_object(&w);
    return true;
}
