/* config.c - the option table of gateway.yaml and the checks that a table cannot make. */
#include "gateway/config.h"

#include "base/net/os.h"

#include <stddef.h>

#define OPT(path_, type_, field_, default_, min_, max_)                                            \
    {                                                                                              \
        .path = path_, .type = type_, .offset = offsetof(struct gateway_config, field_),           \
        .default_text = default_, .min = min_, .max = max_                                         \
    }

#define MIB (1LL << 20)
#define GIB (1LL << 30)
#define SECOND 1000000LL
#define HOUR (3600 * SECOND)

static const char *const log_levels[] = {"debug", "info", "warn", "error", NULL};

const struct conf_option gateway_options[] = {
    OPT("listen.tls", CONF_LIST, listen_tls, "", 0, 0),
    OPT("listen.clear", CONF_LIST, listen_clear, "", 0, 0),
    OPT("listen.admin", CONF_STRING, listen_admin, "127.0.0.1:8444", 0, 0),
    OPT("tls.certificate", CONF_STRING, tls_cert, "", 0, 0),
    OPT("tls.key", CONF_STRING, tls_key, "", 0, 0),
    OPT("gateway_id", CONF_INT, gateway_id, "1", 1, 32767),
    OPT("loops", CONF_INT, loops, "0", 0, 16),
    {.path = "log_level",
     .type = CONF_ENUM,
     .offset = offsetof(struct gateway_config, log_level),
     .default_text = "info",
     .names = log_levels},
    OPT("journal.dir", CONF_STRING, journal_dir, "journal", 0, 0),
    OPT("journal.segment_bytes", CONF_BYTES, journal_segment_bytes, "16MiB", 1 * MIB, 1 * GIB),
    OPT("postgres.conninfo", CONF_STRING, pg_conninfo, "", 0, 0),
    OPT("secrets.deployment_file", CONF_STRING, secret_file, "", 0, 0),
    OPT("secrets.pepper_file", CONF_STRING, pepper_file, "", 0, 0),
    OPT("secrets.worker_key_file", CONF_STRING, worker_key_file, "", 0, 0),
    OPT("secrets.admin_key_file", CONF_STRING, admin_key_file, "", 0, 0),
    OPT("http.header_bytes_max", CONF_BYTES, header_bytes_max, "32KiB", 4096, 64 * 1024),
    OPT("http.header_count_max", CONF_INT, header_count_max, "100", 16, 1000),
    OPT("http.streams_max", CONF_INT, streams_max, "128", 1, 10000),
    OPT("http.connections_max", CONF_INT, connections_max, "8192", 1, 1000000),
    OPT("http.resets_burst", CONF_INT, resets_burst, "200", 10, 100000),
    OPT("http.resets_per_s", CONF_INT, resets_per_s, "20", 1, 10000),
    OPT("http.control_burst", CONF_INT, control_burst, "10000", 100, 1000000),
    OPT("http.control_per_s", CONF_INT, control_per_s, "2000", 10, 1000000),
    OPT("http.write_buffer_max", CONF_BYTES, write_buffer_max, "256KiB", 64 * 1024, 64 * MIB),
    OPT("http.stream_buffer_high", CONF_BYTES, stream_buffer_high, "64KiB", 4096, 16 * MIB),
    OPT("http.request_window", CONF_BYTES, request_window, "64KiB", 65535, 16 * MIB),
    OPT("http.handshake_timeout", CONF_DURATION, handshake_us, "10s", SECOND, HOUR),
    OPT("http.header_timeout", CONF_DURATION, header_us, "10s", SECOND, HOUR),
    OPT("http.body_stall_timeout", CONF_DURATION, body_stall_us, "30s", SECOND, HOUR),
    OPT("http.write_stall_timeout", CONF_DURATION, write_stall_us, "60s", SECOND, HOUR),
    OPT("http.idle_timeout", CONF_DURATION, idle_us, "180s", SECOND, 24 * HOUR),
    OPT("http.settings_ack_timeout", CONF_DURATION, settings_ack_us, "10s", SECOND, HOUR),
    OPT("drain_timeout", CONF_DURATION, drain_us, "30s", 0, HOUR),
    OPT("requests.body_bytes_max", CONF_BYTES, body_bytes_max, "32MiB", 1024, 256 * MIB),
    OPT("requests.answer_bytes_max", CONF_BYTES, answer_bytes_max, "32MiB", 1024, 256 * MIB),
    OPT("requests.open_max", CONF_INT, requests_max, "16384", 1, 1000000),
    OPT("requests.bodies_bytes_max", CONF_BYTES, bodies_bytes_max, "1GiB", 1 * MIB, 64 * GIB),
    OPT("requests.keepalive_interval", CONF_DURATION, keepalive_us, "15s", SECOND, HOUR),
    OPT("requests.head_hold", CONF_DURATION, head_hold_us, "10s", SECOND, HOUR),
    OPT("upstream.connect_timeout", CONF_DURATION, connect_us, "2s", 10000, HOUR),
    OPT("upstream.first_byte_timeout", CONF_DURATION, ttft_us, "600s", SECOND, 24 * HOUR),
    OPT("upstream.stall_timeout", CONF_DURATION, stall_us, "300s", SECOND, 24 * HOUR),
    OPT("upstream.connections_per_worker_max", CONF_INT, connections_per_worker_max, "1024", 1,
        65535),
    OPT("upstream.retries", CONF_INT, retries, "2", 0, 2),
    OPT("upstream.whohas_bytes", CONF_BYTES, whohas_bytes, "64MiB", 1 * MIB, 64 * GIB),
};
const size_t gateway_options_count = ARRAY_LEN(gateway_options);

static bool check_addr(struct str s, const char *option, struct env_addr *a, struct err *e)
{
    if (!os_addr_parse(s, a, e)) {
        err_prefix(e, "%s", option);
        return false;
    }
    return true;
}

static bool check_list(const struct conf_list *l, const char *option, bool loopback_only,
                       struct err *e)
{
    struct env_addr a;

    for (size_t i = 0; i < l->count; i++) {
        if (!check_addr(l->items[i], option, &a, e)) {
            return false;
        }
        if (loopback_only && !os_addr_is_loopback(&a)) {
            return err_set(e, ERR_INPUT,
                           "%s: " STR_FMT
                           " is not a loopback address; clear text is only for loopback",
                           option, STR_ARG(l->items[i]));
        }
    }
    return true;
}

static bool config_check(const struct gateway_config *c, struct err *e)
{
    struct env_addr a;

    if (c->listen_tls.count + c->listen_clear.count == 0) {
        return err_set(e, ERR_INPUT,
                       "listen: give at least one address in listen.tls or listen.clear");
    }
    if (!check_list(&c->listen_tls, "listen.tls", false, e) ||
        !check_list(&c->listen_clear, "listen.clear", true, e) ||
        !check_addr(c->listen_admin, "listen.admin", &a, e)) {
        return false;
    }
    if (!os_addr_is_loopback(&a)) {
        return err_set(e, ERR_INPUT,
                       "listen.admin: " STR_FMT
                       " is not a loopback address; put a tunnel in front of it",
                       STR_ARG(c->listen_admin));
    }
    if (c->listen_tls.count > 0 && (c->tls_cert.n == 0 || c->tls_key.n == 0)) {
        return err_set(e, ERR_INPUT,
                       "tls.certificate and tls.key: both are needed with listen.tls");
    }
    if (c->secret_file.n == 0 || c->pepper_file.n == 0 || c->worker_key_file.n == 0 ||
        c->admin_key_file.n == 0) {
        return err_set(e, ERR_INPUT,
                       "secrets: deployment_file, pepper_file, worker_key_file and admin_key_file "
                       "are all needed "
                       "(0600 files)");
    }
    return true;
}

bool gateway_config_load(const char *path, struct gateway_config *out, struct arena *a,
                         struct err *e)
{
    if (!conf_load(path, gateway_options, gateway_options_count, out, a, e)) {
        return false;
    }
    return path == NULL || config_check(out, e);
}

void gateway_http_limits(const struct gateway_config *c, struct http_limits *out)
{
    *out = http_limits_default;
    out->header_bytes_max = (uint32_t)c->header_bytes_max;
    out->header_count_max = (uint32_t)c->header_count_max;
    out->streams_max = (uint32_t)c->streams_max;
    out->connections_max = (uint32_t)c->connections_max;
    out->resets_burst = (uint32_t)c->resets_burst;
    out->resets_per_s = (uint32_t)c->resets_per_s;
    out->control_burst = (uint32_t)c->control_burst;
    out->control_per_s = (uint32_t)c->control_per_s;
    out->write_buffer_max = (uint32_t)c->write_buffer_max;
    out->stream_buffer_high = (uint32_t)c->stream_buffer_high;
    out->request_window = (uint32_t)c->request_window;
    out->handshake_us = (uint64_t)c->handshake_us;
    out->header_us = (uint64_t)c->header_us;
    out->body_stall_us = (uint64_t)c->body_stall_us;
    out->write_stall_us = (uint64_t)c->write_stall_us;
    out->idle_us = (uint64_t)c->idle_us;
    out->settings_ack_us = (uint64_t)c->settings_ack_us;
    /* A whole answer is written at once: the bound of an answer, and room for its head. */
    out->stream_buffer_max = (uint32_t)(c->answer_bytes_max + (8 << 20));
}
