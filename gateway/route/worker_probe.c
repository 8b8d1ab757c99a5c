/* worker_probe.c - is a worker up (GET /ready of ours, /health of others), how busy does it say it is (GET /metrics). */
#include "gateway/route/fleet.h"

#include <stdlib.h>

#define PROBE_EVERY_US 500000
#define PROBE_FAILURES_DOWN 2 /* in a row; one lost probe is not a death */
#define PROBE_TIMEOUT_US 2000000
#define GAUGE_EVERY_US 250000

static void probe_result(struct fleet_worker *fw, bool up)
{
    int was = atomic_load(&fw->w.health);

    fw->failures = up ? 0 : fw->failures + 1;
    if (up) {
        atomic_store(&fw->w.health, WORKER_UP);
    } else if (fw->failures >= PROBE_FAILURES_DOWN || was == WORKER_UNKNOWN) {
        atomic_store(&fw->w.health, WORKER_DOWN);
    }
    if (was != atomic_load(&fw->w.health)) {
        log_event(fw->fleet->log, up ? LOG_INFO : LOG_WARN, env_wall_us(fw->fleet->env),
                  up ? "worker_up" : "worker_down", "worker %d %s", fw->w.worker_id, fw->w.url);
    }
}

static void probe_head(void *user, unsigned status, const struct http_fields *f)
{
    (void)f;
    ((struct fleet_worker *)user)->probe_status = status;
}

static void ignore_body(void *user, const void *p, size_t n)
{
    (void)user;
    (void)p;
    (void)n;
}

static void probe_end(void *user)
{
    struct fleet_worker *fw = user;

    fw->probe = NULL;
    /* An engine without /health that answers 404 is alive all the same. */
    probe_result(fw, fw->probe_status == 200 ||
                         (fw->w.engine != ENGINE_TOLLGATE && fw->probe_status < 500));
}

static void probe_fail(void *user, enum http_fail why, bool sent)
{
    struct fleet_worker *fw = user;

    (void)sent;
    fw->probe = NULL;
    if (why != HTTP_FAIL_LOCAL) { /* else nothing was learned of it */
        probe_result(fw, false);
    }
}

static void probe_fire(struct env_timer *t)
{
    static const struct http_call_events events = {probe_head, ignore_body, probe_end, probe_fail};
    /* Ours is alive before it has its model, and while it drains. */
    static const struct http_call_request ours = {.method = HTTP_GET, .target = STR("/ready")};
    static const struct http_call_request other = {.method = HTTP_GET, .target = STR("/health")};
    struct fleet_worker *fw = CONTAINER_OF(t, struct fleet_worker, probe_timer);
    uint64_t now = env_now_us(fw->fleet->env);

    env_timer_arm(fw->fleet->env, t, now + (fw->probe == NULL ? PROBE_EVERY_US : PROBE_TIMEOUT_US));
    if (fw->probe != NULL) { /* the last one hangs */
        http_call_cancel(fw->probe);
        fw->probe = NULL;
        probe_result(fw, false);
        return;
    }
    fw->probe = http_call_start(fw->origin, fw->w.engine == ENGINE_TOLLGATE ? &ours : &other,
                                &events, fw);
}

/* The value of the first line whose name ends in `name` (labels in between are skipped). */
static double gauge_of(struct str text, struct str name)
{
    struct str line, rest = text;

    while (rest.n > 0) {
        size_t cut;
        char number[64];

        if (!str_cut(rest, '\n', &line, &rest)) {
            rest.n = 0;
        }
        if (line.n == 0 || line.p[0] == '#') {
            continue;
        }
        cut = str_find(line, name);
        if (cut == SIZE_MAX) {
            continue;
        }
        for (cut = line.n; cut > 0 && line.p[cut - 1] != ' '; cut--) {
        }
        str_copy(str_of(line.p + cut, line.n - cut), number, sizeof(number));
        return strtod(number, NULL);
    }
    return -1;
}

static void gauge_head(void *user, unsigned status, const struct http_fields *f)
{
    struct fleet_worker *fw = user;

    (void)f;
    fw->gauge_status = status;
    buf_reset(&fw->gauge_body);
}

static void gauge_body(void *user, const void *p, size_t n)
{
    buf_append(&((struct fleet_worker *)user)->gauge_body, p, n);
}

static void gauge_end(void *user)
{
    struct fleet_worker *fw = user;
    struct str text = buf_view(&fw->gauge_body);
    double kv, waiting, running;

    fw->gauge = NULL;
    if (fw->gauge_status != 200) {
        return;
    }
    kv = gauge_of(text, STR("kv_cache_usage_perc"));
    waiting = gauge_of(text, STR("num_requests_waiting"));
    running = gauge_of(text, STR("num_requests_running"));
    atomic_store(&fw->w.kv_permille, kv < 0 || kv > 1 ? -1 : (int)(kv * 1000.0));
    atomic_store(&fw->w.waiting, waiting < 0 || waiting > 1e6 ? -1 : (int)waiting);
    atomic_store(&fw->w.running, running < 0 || running > 1e6 ? 0 : (int)running);
}

static void gauge_fail(void *user, enum http_fail why, bool sent)
{
    struct fleet_worker *fw = user;

    (void)why;
    (void)sent;
    fw->gauge = NULL;
    atomic_store(&fw->w.kv_permille, -1);
    atomic_store(&fw->w.waiting, -1);
}

static void gauge_fire(struct env_timer *t)
{
    static const struct http_call_events events = {gauge_head, gauge_body, gauge_end, gauge_fail};
    static const struct http_call_request req = {.method = HTTP_GET, .target = STR("/metrics")};
    struct fleet_worker *fw = CONTAINER_OF(t, struct fleet_worker, gauge_timer);

    env_timer_arm(fw->fleet->env, t, env_now_us(fw->fleet->env) + GAUGE_EVERY_US);
    if (fw->gauge != NULL || atomic_load(&fw->w.health) != WORKER_UP) {
        return;
    }
    fw->gauge = http_call_start(fw->origin, &req, &events, fw);
}

void fleet_probe_start(struct fleet_worker *fw)
{
    uint64_t now = env_now_us(fw->fleet->env);

    fw->probe_timer.fire = probe_fire;
    env_timer_arm(fw->fleet->env, &fw->probe_timer, now);
    if (fw->w.engine == ENGINE_TOLLGATE) {
        fw->gauge_timer.fire = gauge_fire;
        env_timer_arm(fw->fleet->env, &fw->gauge_timer, now + GAUGE_EVERY_US);
    }
}

void fleet_probe_stop(struct fleet_worker *fw)
{
    env_timer_disarm(fw->fleet->env, &fw->probe_timer);
    env_timer_disarm(fw->fleet->env, &fw->gauge_timer);
    if (fw->probe != NULL) {
        http_call_cancel(fw->probe);
        fw->probe = NULL;
    }
    if (fw->gauge != NULL) {
        http_call_cancel(fw->gauge);
        fw->gauge = NULL;
    }
}
