/* sim_h2.c - see sim_h2.h. The session is nghttp2's client; frames may come in any pieces. */
#include "sim_h2.h"

#include "sim_world.h"

#include <errno.h>
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>

#define LINK_READ_BYTES 8192
#define WINDOW_MIN 64 /* of a stream: a small one makes the server wait for each piece */
#define WINDOW_MAX 40000
#define LINK_OUT_MAX (64u << 20)

struct h2_link {
    struct world_sim *w;
    struct sim_host host;
    struct env_sock *sock; /* NULL: not connected */
    nghttp2_session *session;
    struct buf out;
    struct client *users[WORLD_CLIENTS_MAX]; /* by place; NULL: free */
    unsigned lives;                          /* of the gateway when it was made */
    bool going;                              /* GOAWAY came: no new stream */
    char name[16];
};

static void link_pump(struct h2_link *l);

/* ---- what the session says ---- */

static struct client *user_of(struct h2_link *l, int32_t stream)
{
    for (unsigned i = 0; i < WORLD_CLIENTS_MAX; i++) {
        if (l->users[i] != NULL && l->users[i]->h2_stream == stream) {
            return l->users[i];
        }
    }
    return NULL;
}

static void user_drop(struct h2_link *l, struct client *c)
{
    for (unsigned i = 0; i < WORLD_CLIENTS_MAX; i++) {
        if (l->users[i] == c) {
            l->users[i] = NULL;
        }
    }
    c->h2_stream = 0;
}

static int on_header(nghttp2_session *s, const nghttp2_frame *f, const uint8_t *name, size_t name_n,
                     const uint8_t *value, size_t value_n, uint8_t flags, void *user)
{
    struct client *c = user_of(user, f->hd.stream_id);
    uint64_t status;

    (void)s;
    (void)flags;
    if (c == NULL) {
        return 0;
    }
    if (str_eq(str_of(name, name_n), STR(":status"))) {
        c->in.status = str_u64(str_of(value, value_n), &status) ? (unsigned)status : 0;
        buf_c(&c->in.head, "HTTP/2\r\n");
    } else {
        buf_printf(&c->in.head, STR_FMT ": " STR_FMT "\r\n", STR_ARG(str_of(name, name_n)),
                   STR_ARG(str_of(value, value_n)));
    }
    return 0;
}

static int on_data(nghttp2_session *s, uint8_t flags, int32_t stream, const uint8_t *p, size_t n,
                   void *user)
{
    struct h2_link *l = user;
    struct client *c = user_of(l, stream);

    (void)flags;
    (void)nghttp2_session_consume_connection(s, n);
    if (c == NULL) {
        return 0;
    }
    buf_append(&c->in.body, p, n);
    c->ask->got_bytes = true;
    c->h2_unread += n;
    return 0;
}

/* A right end is an END_STREAM of the server after a whole answer: nghttp2 then says NO_ERROR. */
static int on_close(nghttp2_session *s, int32_t stream, uint32_t code, void *user)
{
    struct h2_link *l = user;
    struct client *c = user_of(l, stream);

    (void)s;
    if (c != NULL) {
        user_drop(l, c);
        c->h2_closed = code == NGHTTP2_NO_ERROR         ? H2_ENDED
                       : code == NGHTTP2_REFUSED_STREAM ? H2_REFUSED
                                                        : H2_BROKEN;
        env_timer_disarm(&c->host.env, &c->h2_timer);
        env_timer_arm(&c->host.env, &c->h2_timer, l->w->sim->now_us);
    }
    return 0;
}

static int on_frame(nghttp2_session *s, const nghttp2_frame *f, void *user)
{
    struct h2_link *l = user;

    (void)s;
    if (f->hd.type == NGHTTP2_GOAWAY) {
        l->going = true;
        if (f->goaway.error_code != NGHTTP2_NO_ERROR) {
            sim_fail(l->w->sim, "%s: GOAWAY %u", l->name, f->goaway.error_code);
        }
    }
    return 0;
}

static nghttp2_session *session_new(struct h2_link *l)
{
    nghttp2_session_callbacks *cb;
    nghttp2_option *option;
    nghttp2_session *s;
    nghttp2_settings_entry window = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE,
                                     (uint32_t)sim_range(&l->w->rng, WINDOW_MIN, WINDOW_MAX)};

    CHECK(nghttp2_session_callbacks_new(&cb) == 0 && nghttp2_option_new(&option) == 0);
    nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_close);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame);
    nghttp2_option_set_no_auto_window_update(option, 1);
    CHECK(nghttp2_session_client_new2(&s, cb, l, option) == 0);
    nghttp2_session_callbacks_del(cb);
    nghttp2_option_del(option);
    CHECK(nghttp2_submit_settings(s, NGHTTP2_FLAG_NONE, &window, 1) == 0);
    return s;
}

/* ---- the connection ---- */

/* Every client that waits hears of it. */
static void link_lost(struct h2_link *l, bool by_us)
{
    bool killed = l->sock != NULL && sim_sock_was_killed(l->sock);

    if (l->sock == NULL) {
        return;
    }
    if (by_us) {
        sim_sock_reset(l->sock);
    } else {
        env_close(&l->host.env, l->sock);
    }
    l->sock = NULL;
    nghttp2_session_del(l->session);
    l->session = NULL;
    buf_reset(&l->out);
    for (unsigned i = 0; i < WORLD_CLIENTS_MAX; i++) {
        struct client *c = l->users[i];

        if (c != NULL) {
            user_drop(l, c);
            c->h2_closed = killed || l->lives != l->w->lives || !l->w->up || l->w->drained
                               ? H2_KILLED
                               : H2_BROKEN;
            env_timer_disarm(&c->host.env, &c->h2_timer);
            env_timer_arm(&c->host.env, &c->h2_timer, l->w->sim->now_us);
        }
    }
}

static void link_ready(void *ctx, unsigned events)
{
    struct h2_link *l = ctx;
    uint8_t bytes[LINK_READ_BYTES];
    ssize_t n = -EAGAIN;

    if ((events & ENV_READ) != 0) {
        n = env_read(&l->host.env, l->sock, bytes, sizeof(bytes));
        if (n == 0 || (n < 0 && n != -EAGAIN)) {
            link_lost(l, false);
            return;
        }
    }
    if (n > 0 && nghttp2_session_mem_recv(l->session, bytes, (size_t)n) != n) {
        sim_fail(l->w->sim, "%s: what came is not HTTP/2", l->name);
        link_lost(l, true);
        return;
    }
    link_pump(l);
}

static void link_pump(struct h2_link *l)
{
    const uint8_t *p;
    ssize_t n;

    if (l->sock == NULL) {
        return;
    }
    while ((n = nghttp2_session_mem_send(l->session, &p)) > 0) {
        buf_append(&l->out, p, (size_t)n);
    }
    CHECK(n == 0 && !l->out.failed);
    if (l->out.len > 0) {
        struct iovec v = {l->out.p + l->out.off, l->out.len};

        n = env_writev(&l->host.env, l->sock, &v, 1);
        if (n > 0) {
            buf_consume(&l->out, (size_t)n);
        }
    }
    if (nghttp2_session_want_read(l->session) == 0 && nghttp2_session_want_write(l->session) == 0 &&
        l->out.len == 0) {
        link_lost(l, false); /* after GOAWAY, with no stream left */
        return;
    }
    env_watch(&l->host.env, l->sock, ENV_READ | (l->out.len > 0 ? ENV_WRITE : 0), link_ready, l);
}

static void link_open(struct h2_link *l)
{
    struct env_addr gateway = sim_addr(0, SIM_PORT_GATEWAY);
    struct err e = {.code = ERR_NONE};

    if (l->sock != NULL && l->going) {
        link_lost(l, false);
    }
    if (l->sock != NULL) {
        return;
    }
    l->sock = env_connect(&l->host.env, &gateway, &e);
    CHECK(l->sock != NULL);
    l->lives = l->w->lives;
    l->going = false;
    l->session = session_new(l);
}

/* ---- streams ---- */

static ssize_t give_body(nghttp2_session *s, int32_t stream, uint8_t *p, size_t n, uint32_t *flags,
                         nghttp2_data_source *source, void *user)
{
    struct client *c = source->ptr;

    (void)s;
    (void)stream;
    (void)user;
    n = size_min(n, c->out.len);
    memcpy(p, buf_view(&c->out).p, n);
    buf_consume(&c->out, n);
    if (c->out.len == 0) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    }
    return (ssize_t)n;
}

static nghttp2_nv field(const char *name, struct str value)
{
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value.p, strlen(name),
                        value.n, NGHTTP2_NV_FLAG_NONE};
}

static bool has_users(const struct h2_link *l)
{
    for (unsigned i = 0; i < WORLD_CLIENTS_MAX; i++) {
        if (l->users[i] != NULL) {
            return true;
        }
    }
    return false;
}

bool h2_may_ask(const struct h2_link *l)
{
    return !l->going || !has_users(l);
}

void h2_ask(struct h2_link *l, struct client *c, struct str path, struct str key, struct str body)
{
    char auth[80];
    nghttp2_data_provider give = {.source = {.ptr = c}, .read_callback = give_body};
    unsigned place = 0;

    link_open(l);
    snprintf(auth, sizeof(auth), "Bearer " STR_FMT, STR_ARG(key));
    nghttp2_nv fields[] = {field(":method", STR("POST")),
                           field(":scheme", STR("http")),
                           field(":path", path),
                           field(":authority", STR("gateway")),
                           field("authorization", str_c(auth)),
                           field("content-type", STR("application/json"))};

    while (l->users[place] != NULL) {
        place++;
        CHECK(place < WORLD_CLIENTS_MAX);
    }
    buf_reset(&c->out);
    buf_str(&c->out, body);
    c->h2_stream = nghttp2_submit_request(l->session, NULL, fields, ARRAY_LEN(fields), &give, NULL);
    CHECK(c->h2_stream > 0);
    c->h2_unread = 0;
    c->h2_closed = H2_OPEN;
    l->users[place] = c;
    link_pump(l);
}

void h2_leave(struct h2_link *l, struct client *c)
{
    int32_t stream = c->h2_stream;

    env_timer_disarm(&c->host.env, &c->h2_timer);
    user_drop(l, c);
    buf_reset(&c->out); /* the session may ask once more for its body */
    if (l->sock != NULL && stream > 0) {
        (void)nghttp2_submit_rst_stream(l->session, NGHTTP2_FLAG_NONE, stream, NGHTTP2_CANCEL);
        link_pump(l);
    }
}

void h2_read(struct h2_link *l, struct client *c)
{
    if (l->sock != NULL && c->h2_stream > 0 && c->h2_unread > 0) {
        (void)nghttp2_session_consume_stream(l->session, c->h2_stream, c->h2_unread);
        c->h2_unread = 0;
        link_pump(l);
    }
}

void h2_hang_up(struct h2_link *l, bool reset)
{
    if (!has_users(l)) {
        link_lost(l, reset);
    }
}

/* ---- life ---- */

struct h2_link *h2_link_new(struct world_sim *w, unsigned index)
{
    struct h2_link *l = mem_new(sizeof(*l));

    l->w = w;
    snprintf(l->name, sizeof(l->name), "link%u", index);
    sim_host_init(w->sim, &l->host, l->name);
    buf_init(&l->out, LINK_OUT_MAX);
    return l;
}

void h2_link_free(struct h2_link *l)
{
    link_lost(l, false);
    buf_fini(&l->out);
    sim_host_fini(&l->host);
    mem_free(l);
}
