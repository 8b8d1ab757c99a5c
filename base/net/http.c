/* http.c - field look-up, method names, default limits: plain data that h1, h2 and client share. */
#include "base/net/http.h"

#define KIB 1024u
#define SECOND_US 1000000u

struct str http_field(const struct http_fields *f, struct str name)
{
    for (uint32_t i = 0; i < f->n; i++) {
        if (str_eq(f->v[i].name, name)) {
            return f->v[i].value;
        }
    }
    return (struct str){NULL, 0};
}

uint32_t http_field_count(const struct http_fields *f, struct str name)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->n; i++) {
        n += str_eq(f->v[i].name, name);
    }
    return n;
}

static const struct str method_names[] = {
    [HTTP_GET] = {"GET", 3},     [HTTP_HEAD] = {"HEAD", 4},     [HTTP_POST] = {"POST", 4},
    [HTTP_PUT] = {"PUT", 3},     [HTTP_DELETE] = {"DELETE", 6}, [HTTP_OPTIONS] = {"OPTIONS", 7},
    [HTTP_PATCH] = {"PATCH", 5}, [HTTP_OTHER] = {"OTHER", 5},
};

struct str http_method_name(enum http_method m)
{
    CHECK(m >= HTTP_GET && m <= HTTP_OTHER);
    return method_names[m];
}

enum http_method http_method_named(struct str name)
{
    for (int m = HTTP_GET; m < HTTP_OTHER; m++) {
        if (str_eq(method_names[m], name)) {
            return (enum http_method)m;
        }
    }
    return HTTP_OTHER;
}

const struct http_limits http_limits_default = {
    .header_bytes_max = 32 * KIB,
    .header_count_max = 100,
    .streams_max = 128,
    .connections_max = 10000,
    .resets_burst = 200,
    .resets_per_s = 20,
    .control_burst = 10000,
    .control_per_s = 2000,
    .write_buffer_max = 256 * KIB,
    .stream_buffer_high = 64 * KIB,
    .stream_buffer_max = 40 * KIB * KIB,
    .request_window = 64 * KIB,
    .handshake_us = 10 * SECOND_US,
    .header_us = 10 * SECOND_US,
    .body_stall_us = 30 * SECOND_US,
    .write_stall_us = 60 * SECOND_US,
    .idle_us = 180 * SECOND_US,
    .settings_ack_us = 10 * SECOND_US,
};
