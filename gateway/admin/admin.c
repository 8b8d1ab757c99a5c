/* admin.c - the admin listener: who may call what, and the calls that are one transaction. */
#include "gateway/admin/admin.h"

#include "gateway/admit/auth.h"

#include <stdio.h>

/* pico-USD per token: the largest body's bound times this stays far below 2^63. */
#define ADMIN_PRICE_MAX 10000000000LL
#define ADMIN_LIMIT_MAX 1000000000000LL
/* The last second of the year 9999, where timestamps of people end. */
#define ADMIN_SECONDS_MAX 253402300799ULL

static bool open_health(struct admin_call *a, struct buf *out, struct err *e)
{
    (void)e;
    buf_printf(out, "{\"status\":\"ok\",\"postgres\":%s,\"ready\":%s}",
               store_is_up(a->c->store) ? "true" : "false",
               atomic_load(&a->c->gw->ready) ? "true" : "false");
    return true;
}

static bool open_metrics(struct admin_call *a, struct buf *out, struct err *e)
{
    (void)e;
    metrics_render(a->c->gw, out);
    return true;
}

bool admin_config(struct admin_call *a, struct config *out, struct err *e)
{
    out->pg = store_pg(a->store, e);
    out->who = STR("admin");
    return out->pg != NULL;
}

struct str admin_text(const struct admin_call *a, const char *name)
{
    const struct json *v = a->in != NULL ? json_get(a->in, str_c(name)) : NULL;

    return v != NULL && v->type == JSON_STRING ? v->text : (struct str){NULL, 0};
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static struct str url_decode(struct arena *ar, struct str s)
{
    char *p = arena_alloc(ar, s.n + 1);
    size_t n = 0;

    for (size_t i = 0; p != NULL && i < s.n; i++) {
        int hi, lo;

        if (s.p[i] == '%' && i + 2 < s.n && (hi = hex_digit(s.p[i + 1])) >= 0 &&
            (lo = hex_digit(s.p[i + 2])) >= 0) {
            p[n++] = (char)(hi * 16 + lo);
            i += 2;
        } else {
            p[n++] = s.p[i] == '+' ? ' ' : s.p[i];
        }
    }
    return str_of(p, n);
}

struct str admin_query(struct admin_call *a, const char *name)
{
    struct str rest = a->query, pair, key, value;

    while (rest.n > 0) {
        if (!str_cut(rest, '&', &pair, &rest)) {
            rest.n = 0;
        }
        if (str_cut(pair, '=', &key, &value) && str_eq(key, str_c(name)) && value.n > 0) {
            return url_decode(&a->arena, value);
        }
    }
    return (struct str){NULL, 0};
}

static bool need_text(const struct admin_call *a, const char *name, struct str *out, struct err *e)
{
    *out = admin_text(a, name);
    return (out->p != NULL && out->n > 0) ||
           err_set(e, ERR_INPUT, "'%s' is needed, a string", name);
}

/* Absent or null: {NULL, 0}. Another type would be taken for absent, and a default for what was
 * meant.
 */
static bool opt_text(const struct admin_call *a, const char *name, struct str *out, struct err *e)
{
    const struct json *v = json_get(a->in, str_c(name));

    *out = admin_text(a, name);
    return json_is_absent(v) || v->type == JSON_STRING ||
           err_set(e, ERR_INPUT, "'%s' must be a string", name);
}

static bool query_i32(struct admin_call *a, const char *name, int32_t *out, struct err *e)
{
    struct str s = admin_query(a, name);
    int64_t v = 0;

    if (s.p != NULL && (!str_i64(s, &v) || v < 1 || v > INT32_MAX)) {
        return err_set(e, ERR_INPUT, "'%s' must be a number of an id", name);
    }
    *out = (int32_t)v;
    return true;
}

static bool body_i32(const struct admin_call *a, const char *name, int32_t *out, struct err *e)
{
    const struct json *v = json_get(a->in, str_c(name));
    int64_t n = 0;

    if (!json_is_absent(v) && (!json_i64(v, &n) || n < 1 || n > INT32_MAX)) {
        return err_set(e, ERR_INPUT, "'%s' must be the number of an id", name);
    }
    *out = (int32_t)n;
    return true;
}

static bool tenant_create(struct admin_call *a, struct buf *out, struct err *e)
{
    struct config c;
    struct str name, zone;

    return need_text(a, "name", &name, e) && opt_text(a, "timezone", &zone, e) &&
           admin_config(a, &c, e) && config_tenant_create(&c, name, zone, out, e);
}

static bool tenant_list(struct admin_call *a, struct buf *out, struct err *e)
{
    struct config c;

    return admin_config(a, &c, e) && config_tenant_list(&c, out, e);
}

static bool key_create(struct admin_call *a, struct buf *out, struct err *e)
{
    struct config c;
    struct config_key k = {0};
    struct config_key_ids ids;
    struct auth_key key;
    struct json_writer w;

    if (!need_text(a, "tenant", &k.tenant, e) || !opt_text(a, "project", &k.project, e) ||
        !opt_text(a, "user", &k.user, e) || !opt_text(a, "name", &k.name, e) ||
        !admin_config(a, &c, e)) {
        return false;
    }
    auth_mint(store_env(a->store), a->c->gw->secrets.pepper, &key);
    k.redacted = str_c(key.redacted);
    memcpy(k.hmac, key.hmac, sizeof(k.hmac));
    if (!config_key_create(&c, &k, &ids, e)) {
        hash_wipe(&key, sizeof(key));
        return false;
    }
    jw_init(&w, out);
    jw_object(&w);
    jw_ki64(&w, "key_id", ids.key_id);
    jw_kstr(&w, "key", str_c(key.text));
    jw_ki64(&w, "tenant_id", ids.tenant_id);
    jw_kstr(&w, "tenant", k.tenant);
    jw_ki64(&w, "project_id", ids.project_id);
    jw_end_object(&w);
    hash_wipe(&key, sizeof(key));
    return true;
}

static bool key_list(struct admin_call *a, struct buf *out, struct err *e)
{
    struct config c;

    return admin_config(a, &c, e) && config_key_list(&c, admin_query(a, "tenant"), out, e);
}

static bool key_revoke(struct admin_call *a, struct buf *out, struct err *e)
{
    struct config c;
    int32_t id = 0;

    if (!body_i32(a, "key_id", &id, e)) {
        return false;
    }
    if (id == 0) {
        return err_set(e, ERR_INPUT, "'key_id' is needed");
    }
    return admin_config(a, &c, e) && config_key_revoke(&c, id, out, e);
}

/* A count, null or "none" to lift, absent to keep. */
static bool limit(const struct admin_call *a, const char *name, int64_t *out, struct err *e)
{
    const struct json *v = json_get(a->in, str_c(name));

    *out = QUOTA_KEEP;
    if (v == NULL) {
        return true;
    }
    if (v->type == JSON_NULL || (v->type == JSON_STRING && str_eq(v->text, STR("none")))) {
        *out = QUOTA_NONE;
        return true;
    }
    if (!json_i64(v, out) || *out < 0 || *out > ADMIN_LIMIT_MAX) {
        return err_set(e, ERR_INPUT, "'%s' must be a whole number from 0 to %lld, or none", name,
                       ADMIN_LIMIT_MAX);
    }
    return true;
}

static bool budget(const struct admin_call *a, int64_t *out, struct err *e)
{
    const struct json *v = json_get(a->in, STR("budget_month_usd"));
    struct money m;

    if (v == NULL || v->type == JSON_NULL ||
        (v->type == JSON_STRING && str_eq(v->text, STR("none")))) {
        *out = v == NULL ? QUOTA_KEEP : QUOTA_NONE;
        return true;
    }
    if (v->type != JSON_STRING || !money_parse_usd(v->text, &m, e)) {
        err_prefix(e, "budget_month_usd");
        return err_set(e, ERR_INPUT,
                       "'budget_month_usd' must be a decimal USD amount as a string, or none");
    }
    *out = m.pusd;
    return true;
}

static bool quota_set_call(struct admin_call *a, struct buf *out, struct err *e)
{
    struct config c;
    struct quota_limits l;
    struct str tenant;
    int32_t key_id = 0;

    if (!body_i32(a, "key_id", &key_id, e) || !opt_text(a, "tenant", &tenant, e) ||
        !limit(a, "requests_per_min", &l.requests_per_min, e) ||
        !limit(a, "input_tokens_per_min", &l.input_tokens_per_min, e) ||
        !limit(a, "output_tokens_per_min", &l.output_tokens_per_min, e) ||
        !limit(a, "concurrent", &l.concurrent, e) || !budget(a, &l.budget_month_pusd, e)) {
        return false;
    }
    if (tenant.n == 0 && key_id == 0) {
        return err_set(e, ERR_INPUT, "'tenant' or 'key_id' is needed");
    }
    return admin_config(a, &c, e) && config_quota_set(&c, tenant, key_id, &l, out, e);
}

static bool quota_show(struct admin_call *a, struct buf *out, struct err *e)
{
    struct config c;
    int32_t key_id = 0;

    return query_i32(a, "key_id", &key_id, e) && admin_config(a, &c, e) &&
           config_quota_show(&c, admin_query(a, "tenant"), key_id, out, e);
}

static bool price_of(const struct admin_call *a, const char *name, bool needed, int64_t *out,
                     struct err *e)
{
    struct str s = admin_text(a, name);

    *out = PRICE_DEFAULT;
    if (s.p == NULL) {
        return !needed || err_set(e, ERR_INPUT,
                                  "'%s' is needed: USD per 1M tokens, a decimal as a string", name);
    }
    if (!money_parse_price(s, out, e)) {
        err_prefix(e, "%s", name);
        return false;
    }
    return *out <= ADMIN_PRICE_MAX ||
           err_set(e, ERR_INPUT, "'%s': at most 10000 USD per 1M tokens", name);
}

static bool price_publish(struct admin_call *a, struct buf *out, struct err *e)
{
    struct config c;
    struct config_price p = {.list_in_pusd = PRICE_DEFAULT, .list_out_pusd = PRICE_DEFAULT};

    return need_text(a, "model", &p.model, e) && price_of(a, "input_usd", true, &p.in_pusd, e) &&
           price_of(a, "output_usd", true, &p.out_pusd, e) &&
           price_of(a, "cached_usd", false, &p.cached_pusd, e) &&
           price_of(a, "cache_write_5m_usd", false, &p.cw_5m_pusd, e) &&
           price_of(a, "cache_write_1h_usd", false, &p.cw_1h_pusd, e) &&
           price_of(a, "reasoning_usd", false, &p.reasoning_pusd, e) && admin_config(a, &c, e) &&
           config_price_publish(&c, &p, out, e);
}

static bool price_list(struct admin_call *a, struct buf *out, struct err *e)
{
    struct config c;

    return admin_config(a, &c, e) && config_price_list(&c, admin_query(a, "model"), out, e);
}

static bool worker_drain(struct admin_call *a, struct buf *out, struct err *e)
{
    struct config c;
    struct str which;
    const struct json *on = json_get(a->in, STR("draining"));

    return need_text(a, "worker", &which, e) && admin_config(a, &c, e) &&
           config_worker_drain(&c, which, on == NULL || on->type != JSON_FALSE, out, e);
}

static bool worker_remove(struct admin_call *a, struct buf *out, struct err *e)
{
    struct config c;
    struct str which;

    return need_text(a, "worker", &which, e) && admin_config(a, &c, e) &&
           config_worker_remove(&c, which, out, e);
}

static bool usage_show(struct admin_call *a, struct buf *out, struct err *e)
{
    struct config c;
    struct str from = admin_query(a, "from"), until = admin_query(a, "until");
    uint64_t f = 0, u = 0;

    if ((from.p != NULL && !str_u64(from, &f)) || (until.p != NULL && !str_u64(until, &u)) ||
        f > ADMIN_SECONDS_MAX || u > ADMIN_SECONDS_MAX) {
        return err_set(e, ERR_INPUT, "'from' and 'until' are seconds since 1970, at most %llu",
                       ADMIN_SECONDS_MAX);
    }
    return admin_config(a, &c, e) && config_usage_show(&c, admin_query(a, "tenant"), f, u, out, e);
}

const struct admin_route admin_routes[] = {
    {HTTP_GET, "/health", ADMIN_OPEN, open_health, ADMIN_HERE, false},
    {HTTP_GET, "/metrics", ADMIN_OPEN, open_metrics, ADMIN_HERE, false},
    {HTTP_POST, "/admin/tenants", ADMIN_KEY, tenant_create, ADMIN_STORE, true},
    {HTTP_GET, "/admin/tenants", ADMIN_KEY, tenant_list, ADMIN_STORE, false},
    {HTTP_POST, "/admin/keys", ADMIN_KEY, key_create, ADMIN_STORE, true},
    {HTTP_GET, "/admin/keys", ADMIN_KEY, key_list, ADMIN_STORE, false},
    {HTTP_POST, "/admin/keys/revoke", ADMIN_KEY, key_revoke, ADMIN_STORE, true},
    {HTTP_POST, "/admin/quotas", ADMIN_KEY, quota_set_call, ADMIN_STORE, true},
    {HTTP_GET, "/admin/quotas", ADMIN_KEY, quota_show, ADMIN_STORE, false},
    {HTTP_POST, "/admin/prices", ADMIN_KEY, price_publish, ADMIN_STORE, true},
    {HTTP_GET, "/admin/prices", ADMIN_KEY, price_list, ADMIN_STORE, false},
    {HTTP_POST, "/admin/workers", ADMIN_KEY, admin_worker_add, ADMIN_LATER, true},
    {HTTP_GET, "/admin/workers", ADMIN_KEY, admin_worker_list, ADMIN_HERE, false},
    {HTTP_POST, "/admin/workers/drain", ADMIN_KEY, worker_drain, ADMIN_STORE, true},
    {HTTP_POST, "/admin/workers/remove", ADMIN_KEY, worker_remove, ADMIN_STORE, true},
    {HTTP_GET, "/admin/usage", ADMIN_KEY, usage_show, ADMIN_STORE, false},
};
const size_t admin_routes_count = ARRAY_LEN(admin_routes);

static void send_json(struct http_stream *s, unsigned status, struct str type, struct str body)
{
    struct http_field f = {STR("content-type"), type};

    http_stream_respond(s, status, &f, 1, (int64_t)body.n);
    http_stream_write(s, body.p, body.n);
    http_stream_end(s);
}

static void send_error(struct http_stream *s, const struct err *e)
{
    static const struct {
        enum err_code code;
        unsigned status;
        const char *name;
    } table[] = {
        {ERR_INPUT, 400, "invalid_request"},   {ERR_LIMIT, 400, "limit"},
        {ERR_CONFLICT, 409, "conflict"},       {ERR_NOT_FOUND, 404, "not_found"},
        {ERR_UNAVAILABLE, 503, "unavailable"}, {ERR_UNSUPPORTED, 400, "unsupported"},
    };
    struct api_error ae = {0};
    struct buf b;
    unsigned status = 500;
    const char *name = "internal";

    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (table[i].code == e->code) {
            status = table[i].status;
            name = table[i].name;
        }
    }
    api_error_set(&ae, status, "admin_error", name, NULL, "%s", e->text);
    buf_init(&b, 64 << 10);
    api_error_body(&ae, &b);
    send_json(s, status, STR("application/json"), buf_view(&b));
    buf_fini(&b);
}

static void call_free(struct env_task *t)
{
    struct admin_call *a = CONTAINER_OF(t, struct admin_call, end_task);

    buf_fini(&a->body);
    buf_fini(&a->out);
    buf_fini(&a->probed);
    arena_fini(&a->arena);
    mem_free(a);
}

/* Whoever answered: the call itself may go on without its operator. */
static void operator_gone(struct admin_call *a)
{
    if (a->stream != NULL) {
        http_stream_set_user(a->stream, NULL);
        a->stream = NULL;
    }
}

static void call_end(struct admin_call *a)
{
    admin_worker_add_drop(a);
    env_timer_disarm(a->c->env, &a->late);
    operator_gone(a);
    a->end_task.run = call_free;
    env_defer(a->c->env, &a->end_task);
}

void admin_answer(struct admin_call *a, const struct buf *out, const struct err *e)
{
    bool metrics = a->route->run == open_metrics;

    if (a->stream != NULL) {
        if (e->code != ERR_NONE) {
            send_error(a->stream, e);
        } else {
            send_json(a->stream, 200,
                      metrics ? STR("text/plain; version=0.0.4; charset=utf-8")
                              : STR("application/json"),
                      buf_view(out));
        }
    }
    call_end(a);
}

/* ---- the store ---- */

static void job_done(struct store_job *j)
{
    struct admin_call *a = CONTAINER_OF(j, struct admin_call, job);

    a->store = NULL;
    admin_answer(a, &a->out, &j->e);
}

/* The operator hears of it; the job, if it runs, still comes to its end. */
static void store_is_late(struct env_timer *t)
{
    struct admin_call *a = CONTAINER_OF(t, struct admin_call, late);
    struct err e = {.code = ERR_NONE};

    if (store_withdraw(&a->job)) {
        err_set(&e, ERR_UNAVAILABLE, "Postgres does not answer: nothing was done");
    } else if (a->route->changes) {
        err_set(&e, ERR_UNAVAILABLE,
                "Postgres does not answer: whether the change was made is not known yet. Look "
                "before you try again");
    } else {
        err_set(&e, ERR_UNAVAILABLE, "Postgres does not answer");
    }
    if (a->stream != NULL) {
        send_error(a->stream, &e);
        operator_gone(a);
    }
}

void admin_to_store(struct admin_call *a, bool (*run)(struct store_job *j, struct store *s))
{
    struct err e = {.code = ERR_NONE};

    a->waiting = true;
    a->job.run = run;
    a->job.done = job_done;
    if (!store_put(a->c->store, &a->job, &e)) {
        admin_answer(a, &a->out, &e);
        return;
    }
    a->late.fire = store_is_late;
    env_timer_arm(a->c->env, &a->late, env_now_us(a->c->env) + ADMIN_STORE_US);
}

static bool run_on_store(struct store_job *j, struct store *s)
{
    struct admin_call *a = CONTAINER_OF(j, struct admin_call, job);

    a->store = s;
    if (!a->route->run(a, &a->out, &j->e)) {
        err_set(&j->e, ERR_IO, "failed");
    }
    return j->e.code == ERR_NONE && a->route->changes;
}

/* ---- the listener ---- */

static bool key_is_right(const struct control *c, const struct http_head *h)
{
    struct str got = auth_key_of(&h->fields), want = c->gw->secrets.admin_key;

    return got.p != NULL && got.n == want.n && hash_equal(got.p, want.p, want.n);
}

static const struct admin_route *route_of(const struct http_head *h, bool *path_known)
{
    *path_known = false;
    for (size_t i = 0; i < admin_routes_count; i++) {
        if (!str_eq(h->path, str_c(admin_routes[i].path))) {
            continue;
        }
        *path_known = true;
        if (admin_routes[i].method == h->method) {
            return &admin_routes[i];
        }
    }
    return NULL;
}

static void run_call(struct admin_call *a)
{
    struct err e = {.code = ERR_NONE};

    if (a->route->method == HTTP_POST) {
        const struct json *root = json_parse(&a->arena, buf_view(&a->body), &json_limits_api, &e);

        if (root != NULL && root->type != JSON_OBJECT) {
            err_set(&e, ERR_INPUT, "the body must be a JSON object");
        }
        a->in = root;
    }
    if (e.code == ERR_NONE && a->route->where == ADMIN_STORE) {
        admin_to_store(a, run_on_store);
        return;
    }
    a->waiting = a->route->where == ADMIN_LATER;
    if (e.code == ERR_NONE && a->route->run(a, &a->out, &e)) {
        if (a->waiting) {
            return; /* its end comes by itself */
        }
    } else {
        err_set(&e, ERR_IO, "failed"); /* the first story stays */
    }
    admin_answer(a, &a->out, &e);
}

static void on_head(void *ctx, struct http_stream *s, const struct http_head *h)
{
    struct control *c = ctx;
    struct err e = {.code = ERR_NONE};
    struct admin_call *a;
    bool known;
    const struct admin_route *route = route_of(h, &known);

    if ((route == NULL || route->role == ADMIN_KEY) && !key_is_right(c, h)) {
        send_json(s, 401, STR("application/json"),
                  STR("{\"error\":{\"message\":\"The admin key is missing or wrong: set "
                      "TOLLGATE_ADMIN_KEY.\",\"type\":\"admin_error\",\"param\":null,\"code\":"
                      "\"invalid_api_key\"}}"));
        return;
    }
    if (route == NULL) {
        if (known) {
            send_json(s, 405, STR("application/json"),
                      STR("{\"error\":{\"message\":\"This admin route takes another "
                          "method.\",\"type\":\"admin_error\",\"param\":null,\"code\":\"method_not_"
                          "allowed\"}}"));
            return;
        }
        err_set(&e, ERR_NOT_FOUND, "no admin route " STR_FMT, (int)size_min(h->path.n, 200),
                h->path.p);
        send_error(s, &e);
        return;
    }
    if (h->content_length > (int64_t)ADMIN_BODY_BYTES_MAX) {
        err_set(&e, ERR_LIMIT, "the body is larger than %u bytes", ADMIN_BODY_BYTES_MAX);
        send_error(s, &e);
        return;
    }
    a = mem_new(sizeof(*a));
    a->c = c;
    a->stream = s;
    a->route = route;
    buf_init(&a->body, ADMIN_BODY_BYTES_MAX);
    buf_init(&a->out, ADMIN_ANSWER_BYTES_MAX);
    buf_init(&a->probed, 4u << 20);
    arena_init(&a->arena, 16u << 20);
    a->query = arena_str(&a->arena, h->query); /* the head may go before the job ends */
    http_stream_set_user(s, a);
    http_stream_continue(s);
    if (!h->body) {
        run_call(a);
    }
}

static void on_body(void *ctx, struct http_stream *s, const void *p, size_t n)
{
    struct admin_call *a = http_stream_user(s);

    (void)ctx;
    http_stream_credit(s, n);
    if (a != NULL) {
        buf_append(&a->body, p, n);
    }
}

static void on_body_end(void *ctx, struct http_stream *s)
{
    struct admin_call *a = http_stream_user(s);
    struct err e = {.code = ERR_NONE};

    (void)ctx;
    if (a == NULL) {
        return;
    }
    if (a->body.failed) {
        err_set(&e, ERR_LIMIT, "the body is larger than %u bytes", ADMIN_BODY_BYTES_MAX);
        send_error(s, &e);
        call_end(a);
        return;
    }
    run_call(a);
}

static void on_close(void *ctx, struct http_stream *s, enum http_close why)
{
    struct admin_call *a = http_stream_user(s);

    (void)ctx;
    (void)why;
    if (a == NULL) {
        return;
    }
    a->stream = NULL;
    if (!a->waiting) {
        call_end(a);
    } /* else it goes on; its end comes in admin_answer */
}

static void on_drain(void *ctx, struct http_stream *s)
{
    (void)ctx;
    (void)s;
}

bool admin_listen(struct control *c, struct err *e)
{
    struct http_app app = {c, on_head, on_body, on_body_end, on_drain, on_close};
    struct http_limits limits = http_limits_default;
    struct env_addr addr;
    struct env_sock *s;
    char text[ENV_ADDR_TEXT_MAX];

    if (!os_addr_parse(c->gw->config.listen_admin, &addr, e)) {
        return false;
    }
    s = env_listen(c->env, &addr, false, e);
    if (s == NULL) {
        err_prefix(e, "listen.admin");
        return false;
    }
    limits.connections_max = 64;
    c->admin = http_server_new(c->env, c->gw->log, &app, &limits);
    if (c->env->ops->local_addr(c->env, s, &addr)) {
        os_addr_text(&addr, text);
        log_event(c->gw->log, LOG_INFO, env_wall_us(c->env), "listening", "admin %s", text);
    }
    http_server_listen(c->admin, s, NULL, HTTP_H1);
    return true;
}
