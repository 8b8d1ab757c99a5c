/* client_conn.c - one connection of the client: connects, sends a request, reads its answer.
 *
 * Callbacks run only from the loop's three entries (ready, timer, work), and each looks whether the
 * call still lives after every one of them, since the application may cancel it there. */
#include "base/net/client_impl.h"

#include <errno.h>

#define IN_MAX (CLIENT_HEAD_BYTES_MAX + H1_LINE_MAX + 2 * CLIENT_READ_BYTES)
/* Plaintext is encrypted in slices, and only while the socket takes records. */
#define TLS_SLICE 16384
#define CIPHER_HIGH 65536
#define CIPHER_MAX (1u << 20)
#define WRITES_PER_TURN 16

static const struct h1_limits answer_limits = {CLIENT_HEAD_BYTES_MAX, CLIENT_HEAD_FIELDS_MAX};

static struct env *conn_env(const struct client_conn *c)
{
    return c->origin->client->env;
}

static void conn_set_state(struct client_conn *c, enum conn_state to)
{
    static const bool legal[CONN_CLOSED + 1][CONN_CLOSED + 1] = {
        [CONN_CONNECTING] = {[CONN_HANDSHAKE] = true, [CONN_BUSY] = true, [CONN_CLOSED] = true},
        [CONN_HANDSHAKE] = {[CONN_BUSY] = true, [CONN_CLOSED] = true},
        [CONN_BUSY] = {[CONN_IDLE] = true, [CONN_CLOSED] = true},
        [CONN_IDLE] = {[CONN_BUSY] = true, [CONN_CLOSED] = true},
    };

    CHECK(legal[c->state][to]);
    c->state = to;
}

/* ---- timers ---- */

/* Starts a phase: expires limit_us after the last progress; 0: never. An armed timer that is due
 * earlier stays: it finds on firing that it came too soon, which is cheaper than moving it. */
static void conn_limit(struct client_conn *c, uint64_t limit_us)
{
    struct env *env = conn_env(c);

    c->last_us = env_now_us(env);
    c->limit_us = limit_us;
    if (limit_us == 0) {
        env_timer_disarm(env, &c->timer);
    } else if (!env_timer_is_armed(&c->timer) || c->timer.due_us > c->last_us + limit_us) {
        env_timer_arm(env, &c->timer, c->last_us + limit_us);
    }
}

static void conn_progress(struct client_conn *c)
{
    c->last_us = env_now_us(conn_env(c));
}

static void conn_timer_fire(struct env_timer *t)
{
    struct client_conn *c = CONTAINER_OF(t, struct client_conn, timer);
    uint64_t due_us = c->last_us + c->limit_us;

    if (due_us > env_now_us(conn_env(c))) {
        env_timer_arm(conn_env(c), &c->timer, due_us);
    } else if (c->state == CONN_IDLE) {
        conn_close(c);
    } else {
        call_fail(c->call, HTTP_FAIL_TIMEOUT);
    }
}

/* The limit that fits where the call stands. */
static void conn_limit_by_phase(struct client_conn *c)
{
    const struct http_origin_options *o = &c->origin->options;
    const struct http_call *call = c->call;

    if (call->paused) {
        conn_limit(c, 0);
    } else if (call->state == CALL_BODY) {
        conn_limit(c, o->body_idle_us);
    } else if (call_unsent(call) != 0 || c->cipher.len != 0) {
        conn_limit(c, CLIENT_SEND_STALL_US);
    } else {
        conn_limit(c, o->head_us);
    }
}

/* ---- failures ---- */

/* What the loss of the connection means for the call. */
static enum http_fail conn_loss(const struct client_conn *c)
{
    if (c->state == CONN_CONNECTING || c->state == CONN_HANDSHAKE) {
        return HTTP_FAIL_CONNECT;
    }
    if (c->call->state == CALL_BODY) {
        return HTTP_FAIL_BODY;
    }
    if (call_unsent(c->call) != 0 || c->cipher.len != 0 || (c->reused && !c->answered)) {
        return HTTP_FAIL_SEND;
    }
    return HTTP_FAIL_HEAD;
}

/* ---- writing ---- */

static void conn_ready(void *ctx, unsigned events);

static bool conn_wants_write(const struct client_conn *c)
{
    return !c->broken && (c->state == CONN_CONNECTING || c->cipher.len != 0 ||
                          (c->state == CONN_BUSY && call_unsent(c->call) != 0));
}

static void conn_watch(struct client_conn *c)
{
    bool paused = c->state == CONN_BUSY && c->call->paused;
    unsigned events = 0;

    if (c->state != CONN_CONNECTING && !paused) {
        events |= ENV_READ;
    }
    if (conn_wants_write(c)) {
        events |= ENV_WRITE;
    }
    env_watch(conn_env(c), c->sock, events, conn_ready, c);
}

/* Moves request bytes into TLS while the socket keeps up. */
static void conn_encrypt(struct client_conn *c)
{
    while (c->state == CONN_BUSY && call_unsent(c->call) != 0 && c->cipher.len < CIPHER_HIGH &&
           !c->broken) {
        struct buf *from = c->call->request.len != 0 ? &c->call->request : &c->call->body;
        struct str all = buf_view(from);
        size_t n = size_min(all.n, TLS_SLICE);

        if (!tls_write(c->tls, all.p, n, &c->cipher)) {
            c->broken = true;
        }
        buf_consume(from, n);
    }
}

/* n bytes were taken: connected, and the request has begun to leave if there is no handshake. */
static void conn_took(struct client_conn *c, size_t n)
{
    struct buf *first = c->tls != NULL ? &c->cipher : &c->call->request;
    size_t head = size_min(n, first->len);

    buf_consume(first, head);
    if (n > head) {
        buf_consume(&c->call->body, n - head);
    }
    conn_progress(c);
    if (c->state == CONN_CONNECTING) {
        conn_set_state(c, c->tls != NULL ? CONN_HANDSHAKE : CONN_BUSY);
    }
    if (c->state == CONN_BUSY) {
        c->call->sent = true;
    }
}

/* What the socket gets next, in at most two pieces; 0: nothing. */
static int conn_pieces(struct client_conn *c, struct iovec v[2])
{
    struct buf *from[] = {c->tls != NULL ? &c->cipher : &c->call->request,
                          c->tls != NULL ? NULL : &c->call->body};
    int n = 0;

    for (size_t i = 0; i < ARRAY_LEN(from); i++) {
        if (from[i] != NULL && from[i]->len != 0) {
            v[n++] = (struct iovec){from[i]->p + from[i]->off, from[i]->len};
        }
    }
    return n;
}

/* Writes what there is. No callback runs: a failure is left to `work`, which reads what the peer
 * may have said before it left (an early 413, say). */
static void conn_write(struct client_conn *c)
{
    bool whole_before = c->state == CONN_BUSY && call_unsent(c->call) == 0 && c->cipher.len == 0;

    if (c->tls == NULL && c->call == NULL) {
        return; /* a late event of a connection that went idle */
    }
    for (int i = 0; i < WRITES_PER_TURN && !c->broken; i++) {
        struct iovec v[2];
        ssize_t n;
        int pieces;

        if (c->tls != NULL && c->call != NULL) {
            conn_encrypt(c);
        }
        pieces = conn_pieces(c, v);
        if (pieces == 0) {
            break;
        }
        n = env_writev(conn_env(c), c->sock, v, pieces);
        if (n == -EAGAIN) {
            break;
        }
        if (n < 0) {
            c->broken = true;
        } else {
            conn_took(c, (size_t)n);
        }
    }
    if (c->broken) {
        env_defer(conn_env(c), &c->work);
    } else if (c->state == CONN_BUSY && !whole_before) {
        if (call_unsent(c->call) == 0) {
            buf_release(&c->call->request);
            buf_release(&c->call->body);
        }
        conn_limit_by_phase(c);
    }
    conn_watch(c);
}

/* ---- the answer ---- */

static bool call_is_live(const struct client_conn *c)
{
    return c->state == CONN_BUSY && c->call != NULL;
}

/* Whether the connection is clean behind an answer of which `unread` bytes more were read. */
static bool conn_may_serve_again(const struct client_conn *c, size_t unread)
{
    return c->call->head.keep_alive && unread == 0 && !c->broken && call_unsent(c->call) == 0 &&
           c->cipher.len == 0;
}

/* Reads one head from the front of `in`. Returns the bytes it took; 0: not whole, or the call
 * ended. */
static size_t answer_head(struct client_conn *c, struct str in)
{
    struct http_call *call = c->call;
    struct h1_fault fault;
    struct arena *arena = &c->origin->client->heads;
    enum h1_result got;

    got = h1_parse_response(&call->scan, in, &answer_limits, call->method, arena, &call->head,
                            &fault);
    if (got == H1_OK && call->head.status < 200) {
        memset(&call->scan, 0, sizeof(call->scan));
        got = ++call->informational > CLIENT_INFORMATIONAL_MAX ? H1_BAD : H1_OK;
    } else if (got == H1_OK) {
        call->state = CALL_BODY;
        call->body_left = call->head.content_length > 0 ? (uint64_t)call->head.content_length : 0;
        h1_chunked_init(&call->chunks, &answer_limits);
        conn_limit_by_phase(c);
        call->ev.on_head(call->user, call->head.status, &call->head.fields);
    }
    if (got == H1_BAD) {
        call_fail(call, HTTP_FAIL_PROTOCOL);
    }
    arena_reset(arena);
    return got == H1_OK ? call->head.bytes : 0; /* the call's memory rests until the turn ends */
}

static void answer_bytes(struct client_conn *c, struct str data)
{
    if (data.n != 0) {
        c->call->ev.on_body(c->call->user, data.p, data.n);
    }
}

static size_t answer_chunks(struct client_conn *c, struct str in)
{
    struct http_call *call = c->call;
    struct h1_fault fault;
    struct str data;
    size_t used;
    enum h1_result got = h1_chunked_next(&call->chunks, in, &used, &data, &fault);

    if (got == H1_BAD) {
        call_fail(call, HTTP_FAIL_PROTOCOL);
    } else if (got == H1_OK) {
        call_end(call, conn_may_serve_again(c, in.n - used));
    } else {
        answer_bytes(c, data);
    }
    return used;
}

static size_t answer_length(struct client_conn *c, struct str in)
{
    struct http_call *call = c->call;
    struct str data = str_of(in.p, (size_t)u64_min(call->body_left, in.n));

    call->body_left -= data.n;
    answer_bytes(c, data);
    if (call_is_live(c) && call->body_left == 0 && !call->paused) {
        call_end(call, conn_may_serve_again(c, in.n - data.n));
    }
    return data.n;
}

/* One step over the front of `in`. Returns the bytes used; *again: more can be done with the rest.
 */
static size_t answer_step(struct client_conn *c, struct str in, bool *again)
{
    size_t used;

    if (c->call->state == CALL_ASKED) {
        used = in.n != 0 ? answer_head(c, in) : 0;
        *again = used != 0;
        return used;
    }
    switch (c->call->head.framing) {
    case H1_NO_BODY:
        call_end(c->call, conn_may_serve_again(c, in.n));
        return 0;
    case H1_LENGTH:
        used = answer_length(c, in);
        break;
    case H1_CHUNKED:
        used = in.n != 0 ? answer_chunks(c, in) : 0;
        break;
    case H1_CLOSE:
        used = in.n;
        answer_bytes(c, in);
        break;
    default:
        CHECK(false && "an answer without framing");
        used = 0;
    }
    *again = used != 0;
    return used;
}

/* Uses what can be used of `in`; returns how much. Stops when the call ends or pauses. */
static size_t conn_digest(struct client_conn *c, struct str in)
{
    size_t done = 0;
    bool again = true;

    c->answered = c->answered || in.n != 0;
    while (again && call_is_live(c) && !c->call->paused) {
        again = false;
        done += answer_step(c, str_of(in.p + done, in.n - done), &again);
    }
    return done;
}

/* Works off c->in. */
static void conn_digest_kept(struct client_conn *c)
{
    size_t used = conn_digest(c, buf_view(&c->in));

    if (c->state == CONN_CLOSED) {
        return; /* its memory rests, its buffers are empty */
    }
    buf_consume(&c->in, used);
    if (c->in.len == 0) {
        buf_release(&c->in);
    }
}

/* Clear bytes: used straight from the read buffer; only a rest is copied. */
static void conn_input(struct client_conn *c, const uint8_t *p, size_t n)
{
    size_t used = 0;

    if (c->in.len == 0) {
        used = conn_digest(c, str_of(p, n));
        if (c->state == CONN_CLOSED || used == n) {
            return;
        }
        buf_append(&c->in, p + used, n - used);
    } else {
        buf_append(&c->in, p, n);
        conn_digest_kept(c);
    }
    if (c->state != CONN_CLOSED && c->in.failed && c->call != NULL) {
        call_fail(c->call, HTTP_FAIL_PROTOCOL);
    }
}

/* ---- reading ---- */

/* The peer will send no more. clean: in order (FIN, close_notify), not an error. */
static void conn_ended(struct client_conn *c, bool clean)
{
    struct http_call *call = c->call;

    if (call == NULL) {
        conn_close(c);
    } else if (clean && call->state == CALL_BODY && call->head.framing == H1_CLOSE &&
               c->in.len == 0) {
        call_end(call, false);
    } else {
        call_fail(call, conn_loss(c));
    }
}

/* Feeds TLS and works off what it gives. false: the connection is over. */
static bool conn_feed_tls(struct client_conn *c, const uint8_t *p, size_t n)
{
    for (;;) {
        size_t before = c->in.len;
        enum tls_state state = tls_feed(c->tls, p, n, &c->in, &c->cipher);
        bool grew = c->in.len > before;

        p = NULL;
        n = 0;
        if (state == TLS_OPEN && c->state == CONN_HANDSHAKE) {
            if (tls_is_h2(c->tls)) {
                call_fail(c->call, HTTP_FAIL_CONNECT);
                return false;
            }
            conn_set_state(c, CONN_BUSY);
            conn_limit_by_phase(c);
        }
        if (c->state == CONN_IDLE) {
            if (grew || state != TLS_OPEN) {
                conn_close(c);
                return false;
            }
            return true;
        }
        conn_digest_kept(c);
        if (c->state == CONN_CLOSED) {
            return false;
        }
        if (state == TLS_FAILED || (state == TLS_CLOSED && !grew)) {
            if (c->call == NULL || !c->call->paused) {
                conn_ended(c, state == TLS_CLOSED);
                return false;
            }
            return true;
        }
        if (!grew || c->call == NULL || c->call->paused) {
            return true;
        }
    }
}

/* Returns false when there is nothing more to do with this connection now. */
static bool conn_read_once(struct client_conn *c)
{
    uint8_t *scratch = c->origin->client->scratch;
    ssize_t n = env_read(conn_env(c), c->sock, scratch, CLIENT_READ_BYTES);

    if (n == -EAGAIN) {
        if (c->broken) {
            conn_ended(c, false);
        }
        return false;
    }
    if (n <= 0) {
        /* Without its close_notify, the end of a TLS stream may be an attacker's cut. */
        conn_ended(c, n == 0 && c->tls == NULL);
        return false;
    }
    if (c->state == CONN_BUSY) {
        conn_progress(c);
    }
    if (c->tls != NULL) {
        return conn_feed_tls(c, scratch, (size_t)n) && n == CLIENT_READ_BYTES;
    }
    if (c->state == CONN_IDLE) {
        conn_close(c); /* bytes that nobody asked for */
        return false;
    }
    conn_input(c, scratch, (size_t)n);
    return n == CLIENT_READ_BYTES;
}

static void conn_read(struct client_conn *c)
{
    for (int i = 0; i < CLIENT_READS_PER_TURN && c->state != CONN_CLOSED; i++) {
        bool paused = c->call != NULL && c->call->paused;

        if (paused || !conn_read_once(c)) {
            break;
        }
    }
    if (c->state != CONN_CLOSED) {
        if (c->broken && c->call != NULL && !c->call->paused) {
            env_defer(conn_env(c), &c->work); /* until what was readable is read */
        } else if (c->cipher.len != 0 ||
                   (c->tls != NULL && c->call != NULL && call_unsent(c->call) != 0)) {
            conn_write(c);
        }
        conn_watch(c);
    }
}

static void conn_ready(void *ctx, unsigned events)
{
    struct client_conn *c = ctx;

    if ((events & ENV_WRITE) != 0) {
        conn_write(c);
        if (c->broken) {
            return; /* `work` goes on */
        }
    }
    if ((events & ENV_READ) != 0) {
        conn_read(c);
    }
}

/* What could not be done in the caller's frame: kept bytes after a pause, the rest of a broken
 * connection. */
static void conn_work(struct env_task *t)
{
    struct client_conn *c = CONTAINER_OF(t, struct client_conn, work);

    if (c->state == CONN_CONNECTING || c->state == CONN_HANDSHAKE) {
        call_fail(c->call, HTTP_FAIL_CONNECT);
        return;
    }
    if (c->tls != NULL) {
        if (!conn_feed_tls(c, NULL, 0)) {
            return;
        }
    } else if (call_is_live(c)) {
        conn_digest_kept(c);
    }
    if (c->state != CONN_CLOSED) {
        if (c->broken) {
            conn_read(c);
        } else {
            conn_watch(c);
        }
    }
}

/* ---- life ---- */

/* Name for SNI and certificate: the host without its port and brackets. */
static struct str host_name(struct str host)
{
    struct str name, port;

    if (host.n != 0 && host.p[0] == '[') {
        host = str_of(host.p + 1, host.n - 1);
        str_cut(host, ']', &name, &port);
    } else {
        str_cut(host, ':', &name, &port);
    }
    return name;
}

struct client_conn *conn_open(struct http_origin *o, struct err *e)
{
    struct env_sock *sock = env_connect(o->client->env, &o->options.addr, e);
    struct client_conn *c;

    if (sock == NULL) {
        return NULL;
    }
    c = mem_new(sizeof(*c));
    c->origin = o;
    c->sock = sock;
    c->state = CONN_CONNECTING;
    c->timer.fire = conn_timer_fire;
    c->work.run = conn_work;
    buf_init(&c->in, IN_MAX);
    buf_init(&c->cipher, CIPHER_MAX);
    if (o->options.tls != NULL) {
        c->tls = tls_connect(o->options.tls, host_name(o->options.host));
        c->broken = c->tls == NULL;
    }
    list_init(&c->node);
    list_push_front(&o->busy, &c->node);
    o->n_conns++;
    return c;
}

void conn_carry(struct client_conn *c, struct http_call *call)
{
    struct http_origin *o = c->origin;

    c->call = call;
    call->conn = c;
    call->state = CALL_ASKED;
    c->answered = false;
    if (c->state == CONN_IDLE) {
        o->n_idle--;
        list_remove(&c->node);
        list_push_front(&o->busy, &c->node);
        conn_set_state(c, CONN_BUSY);
        c->reused = true;
        conn_limit_by_phase(c);
        conn_write(c);
        return;
    }
    conn_limit(c, o->options.connect_us);
    if (c->tls != NULL) {
        /* The client speaks first: this makes the hello. */
        c->broken = tls_feed(c->tls, NULL, 0, &c->in, &c->cipher) == TLS_FAILED;
    }
    if (c->broken) {
        env_defer(conn_env(c), &c->work);
    }
    conn_watch(c);
}

bool conn_is_stale(struct client_conn *c)
{
    uint8_t byte[512];
    ssize_t n = env_read(conn_env(c), c->sock, byte, sizeof(byte));

    if (n > 0 && c->tls != NULL) {
        /* Session tickets come late; anything else is not for us. */
        return tls_feed(c->tls, byte, (size_t)n, &c->in, &c->cipher) != TLS_OPEN || c->in.len != 0;
    }
    return n != -EAGAIN;
}

void conn_keep(struct client_conn *c)
{
    struct http_origin *o = c->origin;

    conn_set_state(c, CONN_IDLE);
    list_remove(&c->node);
    list_push_front(&o->idle, &c->node);
    o->n_idle++;
    env_task_drop(&c->work);
    conn_limit(c, o->options.keep_us);
    conn_watch(c);
}

static void conn_bury(struct client_corpse *corpse)
{
    struct client_conn *c = CONTAINER_OF(corpse, struct client_conn, corpse);

    tls_session_free(c->tls);
    buf_fini(&c->in);
    buf_fini(&c->cipher);
    mem_free(c);
}

void conn_close(struct client_conn *c)
{
    struct http_origin *o = c->origin;
    struct env *env = conn_env(c);

    CHECK(c->call == NULL);
    if (c->state == CONN_IDLE) {
        o->n_idle--;
    }
    o->n_conns--;
    conn_set_state(c, CONN_CLOSED);
    list_remove(&c->node);
    env_timer_disarm(env, &c->timer);
    env_task_drop(&c->work);
    env_close(env, c->sock);
    c->sock = NULL;
    client_bury(o->client, &c->corpse, conn_bury);
}

void conn_pause(struct client_conn *c)
{
    if (c->state == CONN_BUSY) {
        conn_limit_by_phase(c);
        conn_watch(c);
    }
}

void conn_resume(struct client_conn *c)
{
    if (c->state == CONN_BUSY) {
        conn_limit_by_phase(c);
        conn_watch(c);
        env_defer(conn_env(c), &c->work);
    }
}
