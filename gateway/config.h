/* config.h - every option of gateway.yaml, with its default; configs/gateway.yaml is the manual. */
#ifndef GATEWAY_CONFIG_H
#define GATEWAY_CONFIG_H

#include "base/conf.h"
#include "base/net/http.h"

struct gateway_config {
    struct conf_list listen_tls, listen_clear; /* "127.0.0.1:8443" */
    struct str listen_admin;
    struct str tls_cert, tls_key;
    int64_t gateway_id, loops;
    int log_level; /* 0 debug .. 3 error */
    struct str journal_dir;
    int64_t journal_segment_bytes;
    struct str pg_conninfo;
    struct str secret_file, pepper_file, worker_key_file, admin_key_file;
    /* http */
    int64_t header_bytes_max, header_count_max, streams_max, connections_max, resets_burst,
        resets_per_s, control_burst, control_per_s, write_buffer_max, stream_buffer_high,
        request_window;
    int64_t handshake_us, header_us, body_stall_us, write_stall_us, idle_us, settings_ack_us;
    int64_t drain_us;
    /* requests */
    int64_t body_bytes_max, answer_bytes_max, requests_max, bodies_bytes_max;
    int64_t keepalive_us, head_hold_us;
    /* upstream */
    int64_t connect_us, ttft_us, stall_us, connections_per_worker_max, retries, whohas_bytes;
};

extern const struct conf_option gateway_options[];
extern const size_t gateway_options_count;

/* Loads and checks what the table cannot: listeners given, certificate beside TLS, admin on
 * loopback, paths readable. path NULL: defaults only (for tests). */
MUST_USE bool gateway_config_load(const char *path, struct gateway_config *out, struct arena *a,
                                  struct err *e);
void gateway_http_limits(const struct gateway_config *c, struct http_limits *out);

#endif
