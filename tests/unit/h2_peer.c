/* h2_peer.c - frames of h2_peer.h. */
#include "h2_peer.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

void frame(struct env_sock *s, uint8_t type, uint8_t flags, uint32_t id, const void *p, size_t n)
{
    uint8_t head[9] = {
        (uint8_t)(n >> 16),  (uint8_t)(n >> 8),   (uint8_t)n,         type,       flags,
        (uint8_t)(id >> 24), (uint8_t)(id >> 16), (uint8_t)(id >> 8), (uint8_t)id};

    fake_send(s, head, sizeof(head));
    if (n != 0) {
        fake_send(s, p, n);
    }
}

void u32_frame(struct env_sock *s, uint8_t type, uint32_t id, uint32_t v)
{
    uint8_t p[4] = {(uint8_t)(v >> 24), (uint8_t)(v >> 16), (uint8_t)(v >> 8), (uint8_t)v};

    frame(s, type, 0, id, p, sizeof(p));
}

void field(struct buf *b, const char *name, const char *value)
{
    buf_byte(b, 0x00);
    buf_byte(b, (uint8_t)strlen(name));
    buf_c(b, name);
    buf_byte(b, (uint8_t)strlen(value));
    buf_c(b, value);
}

void block_begin(struct buf *b, const char *method, const char *path)
{
    buf_init(b, 1 << 20);
    field(b, ":method", method);
    field(b, ":scheme", "http");
    field(b, ":path", path);
    field(b, ":authority", "a");
}

void block_send(struct env_sock *s, struct buf *b, uint32_t id, uint8_t flags)
{
    frame(s, HEADERS, flags | END_HEADERS, id, buf_view(b).p, b->len);
    buf_fini(b);
}

void request(struct env_sock *s, uint32_t id, const char *method, const char *path, uint8_t flags)
{
    struct buf b;

    block_begin(&b, method, path);
    block_send(s, &b, id, flags);
}

void get(struct env_sock *s, uint32_t id, const char *path)
{
    request(s, id, "GET", path, END_STREAM);
}

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

struct seen *look(struct env_sock *s, struct seen *out)
{
    *out = (struct seen){.goaway_code = UINT32_MAX, .rst_code = UINT32_MAX};
    while (s->tx.len >= 9) {
        const uint8_t *p = (const uint8_t *)buf_view(&s->tx).p;
        size_t n = (size_t)p[0] << 16 | (size_t)p[1] << 8 | p[2];

        if (s->tx.len < 9 + n) {
            break;
        }
        out->count[p[3] & 15]++;
        out->ends += p[3] <= HEADERS && (p[4] & END_STREAM) != 0;
        if (p[3] == DATA) {
            size_t keep = size_min(n, sizeof(out->data) - 1 - strlen(out->data));

            memcpy(out->data + strlen(out->data), p + 9, keep);
            out->data_bytes += (uint32_t)n;
        } else if (p[3] == RST_STREAM) {
            out->rst_id = be32(p + 5);
            out->rst_code = be32(p + 9);
        } else if (p[3] == GOAWAY) {
            out->goaway_last = be32(p + 9);
            out->goaway_code = be32(p + 13);
        }
        buf_consume(&s->tx, 9 + n);
    }
    return out;
}

struct world *h2_world(const struct http_limits *lim)
{
    struct world *w = world_new(lim, HTTP_H1_H2);
    struct seen seen;

    fake_send_c(w->peer, PREFACE);
    frame(w->peer, SETTINGS, 0, 0, NULL, 0);
    frame(w->peer, SETTINGS, ACK, 0, NULL, 0);
    fake_run(w->fake);
    look(w->peer, &seen);
    assert_int_equal(seen.count[SETTINGS], 2);
    return w;
}

void assert_gone(struct world *w, uint32_t code)
{
    struct seen seen;

    look(w->peer, &seen);
    assert_int_equal(seen.count[GOAWAY], 1);
    assert_int_equal(seen.goaway_code, code);
    assert_true(w->peer->shut || w->peer->closed);
    fake_advance(w->fake, 4 * SECOND);
    assert_true(w->peer->closed);
}
