/* tls.c - OpenSSL as a filter between two byte queues. Owns contexts and sessions; knows no
 * sockets.
 *
 * One BIO of our own serves both directions: reads come from the slice being fed (then from what an
 * earlier feed left inside), writes go straight into the caller's cipher queue. So a quiet session
 * holds no buffers of ours, and with SSL_MODE_RELEASE_BUFFERS none of OpenSSL's either. */
#include "base/net/tls.h"

#include <errno.h>
#include <sys/stat.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

/* Ciphertext kept back while the caller's plain queue is full: four of its largest reads. */
#define TLS_LEFT_MAX ((size_t)256 << 10)
#define TLS_RECORD_MAX 16384
#define TLS_FAILURE_MAX 160
#define TLS_HOST_MAX 256

/* ECDHE + AEAD; the TLS 1.3 suites are all of that kind already. */
#define TLS_CIPHERS "ECDHE+AESGCM:ECDHE+CHACHA20"
#define TLS_GROUPS "X25519:P-256:P-384"

struct tls_context {
    SSL_CTX *ssl;      /* owned */
    BIO_METHOD *queue; /* owned: the BIO over our two queues */
    uint32_t refs;     /* the owner and each session; one thread, so no atomics */
    bool server;
};

struct tls_session {
    SSL *ssl;                    /* owned, with its BIO */
    struct tls_context *context; /* a reference: the BIO needs its method */
    enum tls_state state;
    const uint8_t *in; /* borrowed for the length of one tls_feed */
    size_t in_n;
    struct buf left;    /* owned: fed, but not read yet */
    struct buf *cipher; /* borrowed for the length of one call */
    unsigned char alpn[12];
    unsigned alpn_n; /* the ALPN list we offer or choose from, in order */
    char failure[TLS_FAILURE_MAX];
};

static int queue_read(BIO *bio, char *p, size_t n, size_t *got)
{
    struct tls_session *s = BIO_get_data(bio);
    size_t take;

    BIO_clear_retry_flags(bio);
    if (s->left.len != 0) {
        take = size_min(n, s->left.len);
        memcpy(p, buf_view(&s->left).p, take);
        buf_consume(&s->left, take);
    } else if (s->in_n != 0) {
        take = size_min(n, s->in_n);
        memcpy(p, s->in, take);
        s->in += take;
        s->in_n -= take;
    } else {
        BIO_set_retry_read(bio);
        return 0;
    }
    *got = take;
    return 1;
}

static int queue_write(BIO *bio, const char *p, size_t n, size_t *taken)
{
    struct tls_session *s = BIO_get_data(bio);

    BIO_clear_retry_flags(bio);
    if (s->cipher == NULL) {
        return 0;
    }
    buf_append(s->cipher, p, n);
    *taken = n;
    return s->cipher->failed ? 0 : 1;
}

static long queue_ctrl(BIO *bio, int cmd, long num, void *ptr)
{
    (void)bio;
    (void)num;
    (void)ptr;
    return cmd == BIO_CTRL_FLUSH ? 1 : 0;
}

static BIO_METHOD *queue_method(void)
{
    BIO_METHOD *m = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "byte queues");

    if (m != NULL && BIO_meth_set_read_ex(m, queue_read) == 1 &&
        BIO_meth_set_write_ex(m, queue_write) == 1 && BIO_meth_set_ctrl(m, queue_ctrl) == 1) {
        return m;
    }
    BIO_meth_free(m);
    return NULL;
}

/* The oldest OpenSSL error of this thread as text; the queue is then empty. */
static void error_text(char *out, size_t cap)
{
    unsigned long code = ERR_get_error();
    const char *reason = code != 0 ? ERR_reason_error_string(code) : NULL;

    str_copy(str_c(reason != NULL ? reason : "unknown reason"), out, cap);
    ERR_clear_error();
}

static bool fail(struct err *e, enum err_code code, const char *what, const char *path)
{
    char reason[TLS_FAILURE_MAX];

    error_text(reason, sizeof(reason));
    return err_set(e, code, "%s %s: %s", what, path, reason);
}

/* Our list is in order of preference; the client's order does not matter. No overlap is fatal
 * (RFC 7301 section 3.2), no ALPN at all means http/1.1. */
static int alpn_select(SSL *ssl, const unsigned char **out, unsigned char *out_n,
                       const unsigned char *in, unsigned in_n, void *arg)
{
    struct tls_session *s = SSL_get_app_data(ssl);
    unsigned char *chosen = NULL;

    (void)arg;
    if (SSL_select_next_proto(&chosen, out_n, s->alpn, s->alpn_n, in, in_n) !=
        OPENSSL_NPN_NEGOTIATED) {
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static struct tls_context *context_new(const SSL_METHOD *method, bool server, struct err *e)
{
    struct tls_context *c = mem_new(sizeof(*c));

    c->server = server;
    c->refs = 1;
    c->queue = queue_method();
    c->ssl = SSL_CTX_new(method);
    if (c->queue == NULL || c->ssl == NULL ||
        SSL_CTX_set_min_proto_version(c->ssl, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_cipher_list(c->ssl, TLS_CIPHERS) != 1 ||
        SSL_CTX_set1_groups_list(c->ssl, TLS_GROUPS) != 1) {
        (void)fail(e, ERR_NO_MEMORY, "cannot set up", "TLS");
        tls_context_free(c);
        return NULL;
    }
    SSL_CTX_set_options(c->ssl, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                    SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(c->ssl, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                 SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    /* Tickets resume without memory of ours; a session cache would grow per client. */
    SSL_CTX_set_session_cache_mode(c->ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_max_early_data(c->ssl, 0);
    return c;
}

static bool key_is_private(const char *path, struct err *e)
{
    struct stat st;

    if (stat(path, &st) != 0) {
        return err_errno(e, errno, "TLS key %s", path);
    }
    if ((st.st_mode & S_IRWXO) != 0) {
        return err_set(e, ERR_INPUT, "TLS key %s is readable by others: chmod 600 it", path);
    }
    return true;
}

struct tls_context *tls_server_context(const char *cert_path, const char *key_path, struct err *e)
{
    struct tls_context *c;
    bool ok;

    ERR_clear_error();
    if (!key_is_private(key_path, e) || (c = context_new(TLS_server_method(), true, e)) == NULL) {
        return NULL;
    }
    (void)SSL_CTX_set_num_tickets(c->ssl, 1);
    SSL_CTX_set_alpn_select_cb(c->ssl, alpn_select, NULL);
    if (SSL_CTX_use_certificate_chain_file(c->ssl, cert_path) != 1) {
        ok = fail(e, ERR_INPUT, "TLS certificate", cert_path);
    } else if (SSL_CTX_use_PrivateKey_file(c->ssl, key_path, SSL_FILETYPE_PEM) != 1 ||
               SSL_CTX_check_private_key(c->ssl) != 1) {
        ok = fail(e, ERR_INPUT, "TLS key", key_path);
    } else {
        return c;
    }
    (void)ok;
    tls_context_free(c);
    return NULL;
}

struct tls_context *tls_client_context(const char *ca_path, struct err *e)
{
    struct tls_context *c = context_new(TLS_client_method(), false, e);
    int loaded;

    if (c == NULL) {
        return NULL;
    }
    ERR_clear_error();
    loaded = ca_path != NULL ? SSL_CTX_load_verify_file(c->ssl, ca_path)
                             : SSL_CTX_set_default_verify_paths(c->ssl);
    if (loaded != 1) {
        (void)fail(e, ERR_INPUT, "TLS certificate authorities", ca_path != NULL ? ca_path : "");
        tls_context_free(c);
        return NULL;
    }
    SSL_CTX_set_verify(c->ssl, SSL_VERIFY_PEER, NULL);
    return c;
}

void tls_context_free(struct tls_context *c)
{
    if (c != NULL && --c->refs == 0) {
        SSL_CTX_free(c->ssl);
        BIO_meth_free(c->queue);
        mem_free(c);
    }
}

void tls_set_protocols(struct tls_session *s, bool h1, bool h2)
{
    static const unsigned char both[] = "\x02h2\x08http/1.1";
    const unsigned char *from = h2 ? both : both + 3;

    CHECK(h1 || h2);
    s->alpn_n = (h2 ? 3 : 0) + (h1 ? 9 : 0);
    memcpy(s->alpn, from, s->alpn_n);
    if (!SSL_is_server(s->ssl)) {
        CHECK(SSL_set_alpn_protos(s->ssl, s->alpn, s->alpn_n) == 0);
    }
}

static struct tls_session *session_new(struct tls_context *c)
{
    struct tls_session *s = mem_try(1, sizeof(*s));
    BIO *bio = NULL;

    if (s == NULL) {
        return NULL;
    }
    s->state = TLS_HANDSHAKE;
    s->context = c;
    c->refs++;
    buf_init(&s->left, TLS_LEFT_MAX);
    s->ssl = SSL_new(c->ssl);
    bio = BIO_new(c->queue);
    if (s->ssl == NULL || bio == NULL) {
        BIO_free(bio);
        tls_session_free(s);
        return NULL;
    }
    BIO_set_data(bio, s);
    BIO_set_init(bio, 1);
    SSL_set_bio(s->ssl, bio, bio); /* one reference serves both */
    SSL_set_app_data(s->ssl, s);
    return s;
}

struct tls_session *tls_accept(struct tls_context *c)
{
    struct tls_session *s;

    CHECK(c->server);
    s = session_new(c);
    if (s != NULL) {
        SSL_set_accept_state(s->ssl);
        tls_set_protocols(s, true, true);
    }
    return s;
}

/* The host of "name:port", "[v6]:port", "name" or "v6", as C text. */
static bool host_only(struct str host, char out[TLS_HOST_MAX])
{
    struct str name = host, rest = {NULL, 0}, tail;

    if (host.n != 0 && host.p[0] == '[') {
        (void)str_cut(str_of(host.p + 1, host.n - 1), ']', &name, &rest);
    } else if (str_cut(host, ':', &name, &rest) && str_cut(rest, ':', &rest, &tail)) {
        name = host; /* two colons: a bare IPv6 address */
    }
    str_copy(name, out, TLS_HOST_MAX);
    return name.n != 0 && name.n < TLS_HOST_MAX;
}

struct tls_session *tls_connect(struct tls_context *c, struct str host)
{
    struct tls_session *s;
    char name[TLS_HOST_MAX];
    bool ok;

    CHECK(!c->server);
    s = session_new(c);
    if (s == NULL) {
        return NULL;
    }
    SSL_set_connect_state(s->ssl);
    tls_set_protocols(s, true, false);
    ok = host_only(host, name);
    if (ok && X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(s->ssl), name) != 1) {
        ok = SSL_set1_host(s->ssl, name) == 1 && SSL_set_tlsext_host_name(s->ssl, name) == 1;
    }
    ERR_clear_error();
    if (!ok) { /* never connect without a name to check */
        tls_session_free(s);
        return NULL;
    }
    return s;
}

void tls_session_free(struct tls_session *s)
{
    if (s != NULL) {
        SSL_free(s->ssl);
        tls_context_free(s->context);
        buf_fini(&s->left);
        mem_free(s);
    }
}

/* Turns a refused SSL_* call into a state: waiting is none, the rest is final. */
static void session_stopped(struct tls_session *s, int ret)
{
    long verified;

    switch (SSL_get_error(s->ssl, ret)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return;
    case SSL_ERROR_ZERO_RETURN:
        s->state = TLS_CLOSED;
        return;
    default:
        break;
    }
    s->state = TLS_FAILED;
    verified = SSL_get_verify_result(s->ssl);
    if (verified != X509_V_OK) {
        str_copy(str_c(X509_verify_cert_error_string(verified)), s->failure, sizeof(s->failure));
        ERR_clear_error();
    } else {
        error_text(s->failure, sizeof(s->failure));
    }
}

/* Decrypts into *plain until the input or its room ends. */
static void session_read(struct tls_session *s, struct buf *plain)
{
    while (s->state == TLS_OPEN && plain->len < plain->max) {
        size_t room = size_min(plain->max - plain->len, TLS_RECORD_MAX), got = 0;
        uint8_t *to;
        int ret;

        /* No memory for a whole record unless there is something to decrypt. */
        if (s->in_n == 0 && s->left.len == 0 && SSL_pending(s->ssl) == 0) {
            return;
        }
        to = buf_reserve(plain, room);
        if (to == NULL) {
            s->state = TLS_FAILED;
            str_copy(STR("no memory"), s->failure, sizeof(s->failure));
            return;
        }
        ret = SSL_read_ex(s->ssl, to, room, &got);
        if (ret != 1) {
            session_stopped(s, ret);
            return;
        }
        buf_commit(plain, got);
    }
}

enum tls_state tls_feed(struct tls_session *s, const void *p, size_t n, struct buf *plain,
                        struct buf *cipher)
{
    if (s->state == TLS_FAILED || s->state == TLS_CLOSED) {
        return s->state;
    }
    ERR_clear_error();
    s->cipher = cipher;
    s->in = p;
    s->in_n = n;
    if (s->state == TLS_HANDSHAKE) {
        int ret = SSL_do_handshake(s->ssl);

        if (ret == 1) {
            s->state = TLS_OPEN;
        } else {
            session_stopped(s, ret);
        }
    }
    session_read(s, plain);
    if (s->in_n != 0) {
        buf_append(&s->left, s->in, s->in_n);
    }
    if (s->left.len == 0) {
        buf_release(&s->left);
    }
    if (s->left.failed && s->state != TLS_CLOSED) {
        s->state = TLS_FAILED;
        str_copy(STR("fed more than the plain queue takes"), s->failure, sizeof(s->failure));
    }
    s->in_n = 0;
    s->cipher = NULL;
    return s->state;
}

bool tls_write(struct tls_session *s, const void *p, size_t n, struct buf *cipher)
{
    const uint8_t *at = p;
    bool ok = s->state == TLS_OPEN;

    ERR_clear_error();
    s->cipher = cipher;
    while (ok && n != 0) {
        size_t put = 0;

        ok = SSL_write_ex(s->ssl, at, size_min(n, TLS_RECORD_MAX), &put) == 1 && put != 0;
        at += put;
        n -= put;
    }
    s->cipher = NULL;
    if (!ok && s->state == TLS_OPEN) {
        s->state = TLS_FAILED;
        error_text(s->failure, sizeof(s->failure));
    }
    return ok;
}

void tls_shutdown(struct tls_session *s, struct buf *cipher)
{
    if (s->state != TLS_OPEN && s->state != TLS_CLOSED) {
        return; /* a shutdown in mid-handshake is an error of its own in OpenSSL */
    }
    s->cipher = cipher;
    (void)SSL_shutdown(s->ssl);
    ERR_clear_error();
    s->cipher = NULL;
}

bool tls_is_h2(const struct tls_session *s)
{
    const unsigned char *name = NULL;
    unsigned n = 0;

    SSL_get0_alpn_selected(s->ssl, &name, &n);
    return n == 2 && memcmp(name, "h2", 2) == 0;
}

const char *tls_failure(const struct tls_session *s)
{
    return s->failure;
}
