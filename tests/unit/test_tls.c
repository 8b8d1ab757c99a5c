/* test_tls.c - TLS as a filter, both ends in memory, and under a server. Certificates are made at
 * start. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "server_world.h"
#include "base/net/tls.h"

#define QUEUE_MAX ((size_t)4 << 20)

struct files {
    char dir[64], cert[96], key[96], other[96];
};

/* A self-signed P-256 certificate for `san`. */
static void certificate(const char *cert_path, const char *key_path, const char *san)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, san);
    FILE *f;

    assert_non_null(key);
    assert_non_null(ext);
    X509_set_version(x, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x), 86400);
    X509_set_pubkey(x, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                               (const unsigned char *)"test", -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    X509_add_ext(x, ext, -1);
    assert_true(X509_sign(x, key, EVP_sha256()) > 0);
    f = fopen(cert_path, "w");
    assert_int_equal(PEM_write_X509(f, x), 1);
    fclose(f);
    f = fopen(key_path, "w");
    assert_int_equal(PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL), 1);
    fclose(f);
    assert_int_equal(chmod(key_path, 0600), 0);
    X509_EXTENSION_free(ext);
    X509_free(x);
    EVP_PKEY_free(key);
}

static int files_make(void **state)
{
    struct files *f = calloc(1, sizeof(*f));
    char key[96];

    snprintf(f->dir, sizeof(f->dir), "/tmp/test_tls.XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->cert, sizeof(f->cert), "%s/cert.pem", f->dir);
    snprintf(f->key, sizeof(f->key), "%s/key.pem", f->dir);
    snprintf(f->other, sizeof(f->other), "%s/other.pem", f->dir);
    snprintf(key, sizeof(key), "%s/otherkey.pem", f->dir);
    certificate(f->cert, f->key, "DNS:gateway.test,IP:127.0.0.1");
    certificate(f->other, key, "DNS:gateway.test");
    unlink(key);
    *state = f;
    return 0;
}

static int files_remove(void **state)
{
    struct files *f = *state;

    unlink(f->cert);
    unlink(f->key);
    unlink(f->other);
    rmdir(f->dir);
    free(f);
    return 0;
}

/* Two ends and the bytes between them. */
struct pair {
    struct tls_context *server_context, *client_context;
    struct tls_session *server, *client;
    struct buf to_server, to_client;       /* ciphertext */
    struct buf server_plain, client_plain; /* what came out */
    enum tls_state server_state, client_state;
};

static void pair_init(struct pair *p, const struct files *f, const char *ca, const char *host)
{
    struct err e = {.code = ERR_NONE};

    *p = (struct pair){.server_state = TLS_HANDSHAKE, .client_state = TLS_HANDSHAKE};
    p->server_context = tls_server_context(f->cert, f->key, &e);
    assert_string_equal(e.text, "");
    p->client_context = tls_client_context(ca, &e);
    assert_string_equal(e.text, "");
    p->server = tls_accept(p->server_context);
    p->client = tls_connect(p->client_context, str_c(host));
    assert_non_null(p->server);
    assert_non_null(p->client);
    buf_init(&p->to_server, QUEUE_MAX);
    buf_init(&p->to_client, QUEUE_MAX);
    buf_init(&p->server_plain, QUEUE_MAX);
    buf_init(&p->client_plain, QUEUE_MAX);
}

static void pair_fini(struct pair *p)
{
    tls_session_free(p->server);
    tls_session_free(p->client);
    tls_context_free(p->server_context);
    tls_context_free(p->client_context);
    buf_fini(&p->to_server);
    buf_fini(&p->to_client);
    buf_fini(&p->server_plain);
    buf_fini(&p->client_plain);
}

/* Carries bytes, at most `step` at once, until both queues are empty. */
static void pair_run(struct pair *p, size_t step)
{
    if (p->client_state == TLS_HANDSHAKE) {
        p->client_state = tls_feed(p->client, NULL, 0, &p->client_plain, &p->to_server);
    }
    while (p->to_server.len != 0 || p->to_client.len != 0) {
        size_t n = size_min(step, p->to_server.len);

        if (n != 0) {
            p->server_state =
                tls_feed(p->server, buf_view(&p->to_server).p, n, &p->server_plain, &p->to_client);
            buf_consume(&p->to_server, n);
        }
        n = size_min(step, p->to_client.len);
        if (n != 0) {
            p->client_state =
                tls_feed(p->client, buf_view(&p->to_client).p, n, &p->client_plain, &p->to_server);
            buf_consume(&p->to_client, n);
        }
    }
}

static void bytes_pass_both_ways_in_any_split(void **state)
{
    static const size_t steps[] = {1, 2, 3, 5, 7, 100, 1000, 16384, 1 << 20};
    static char sent[40000];

    for (size_t i = 0; i < sizeof(sent); i++) {
        sent[i] = (char)(i * 31 >> 3);
    }
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        struct pair p;

        pair_init(&p, *state, ((struct files *)*state)->cert, "gateway.test");
        pair_run(&p, steps[i]);
        assert_int_equal(p.server_state, TLS_OPEN);
        assert_int_equal(p.client_state, TLS_OPEN);
        assert_true(tls_write(p.client, sent, sizeof(sent), &p.to_server));
        assert_true(tls_write(p.server, sent, 1000, &p.to_client));
        pair_run(&p, steps[i]);
        assert_int_equal(p.server_plain.len, sizeof(sent));
        assert_memory_equal(buf_view(&p.server_plain).p, sent, sizeof(sent));
        assert_int_equal(p.client_plain.len, 1000);
        pair_fini(&p);
    }
}

static void alpn_prefers_h2_and_defaults_to_h1(void **state)
{
    struct pair p;

    pair_init(&p, *state, ((struct files *)*state)->cert, "gateway.test");
    pair_run(&p, 1000);
    assert_false(tls_is_h2(p.server) || tls_is_h2(p.client));
    pair_fini(&p);
    pair_init(&p, *state, ((struct files *)*state)->cert, "gateway.test");
    tls_set_protocols(p.client, true, true);
    pair_run(&p, 1000);
    assert_true(tls_is_h2(p.server) && tls_is_h2(p.client));
    pair_fini(&p);
    pair_init(&p, *state, ((struct files *)*state)->cert, "gateway.test");
    tls_set_protocols(p.client, true, true);
    tls_set_protocols(p.server, true, false);
    pair_run(&p, 1000);
    assert_int_equal(p.server_state, TLS_OPEN);
    assert_false(tls_is_h2(p.server) || tls_is_h2(p.client));
    pair_fini(&p);
}

static void no_common_protocol_fails(void **state)
{
    struct pair p;

    pair_init(&p, *state, ((struct files *)*state)->cert, "gateway.test");
    tls_set_protocols(p.client, false, true);
    tls_set_protocols(p.server, true, false);
    pair_run(&p, 1000);
    assert_int_equal(p.server_state, TLS_FAILED);
    assert_int_equal(p.client_state, TLS_FAILED);
    assert_true(strlen(tls_failure(p.server)) > 0);
    pair_fini(&p);
}

struct name_case {
    const char *host;
    bool good;
};

static void server_names_are_checked(void **state)
{
    static const struct name_case cases[] = {
        {"gateway.test", true},      {"gateway.test:8443", true},
        {"127.0.0.1:80", true},      {"127.0.0.1", true},
        {"other.test", false},       {"127.0.0.2", false},
        {"[::1]:443", false},        {"::1", false},
        {"sub.gateway.test", false},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct pair p;

        pair_init(&p, *state, ((struct files *)*state)->cert, cases[i].host);
        pair_run(&p, 1000);
        assert_int_equal(p.client_state, cases[i].good ? TLS_OPEN : TLS_FAILED);
        pair_fini(&p);
    }
}

static void unknown_authority_is_refused(void **state)
{
    struct pair p;

    pair_init(&p, *state, ((struct files *)*state)->other, "gateway.test");
    pair_run(&p, 1000);
    assert_int_equal(p.client_state, TLS_FAILED);
    assert_non_null(strstr(tls_failure(p.client), "self-signed"));
    assert_false(tls_write(p.client, "x", 1, &p.to_server));
    pair_fini(&p);
}

static void connecting_needs_a_name(void **state)
{
    struct err e = {.code = ERR_NONE};
    struct tls_context *c = tls_client_context(((struct files *)*state)->cert, &e);

    assert_null(tls_connect(c, STR("")));
    assert_null(tls_connect(c, STR(":443")));
    tls_context_free(c);
}

/* A foreign client, to offer what ours never would. */
static enum tls_state foreign_handshake(const struct files *f, int version, const char *ciphers)
{
    struct err e = {.code = ERR_NONE};
    struct tls_context *c = tls_server_context(f->cert, f->key, &e);
    struct tls_session *s = tls_accept(c);
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl;
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    enum tls_state answer = TLS_HANDSHAKE;
    struct buf plain, cipher;
    char bytes[16384];

    SSL_CTX_set_security_level(ctx, 0);
    assert_int_equal(SSL_CTX_set_max_proto_version(ctx, version), 1);
    assert_int_equal(SSL_CTX_set_min_proto_version(ctx, TLS1_VERSION), 1);
    assert_int_equal(SSL_CTX_set_cipher_list(ctx, ciphers), 1);
    ssl = SSL_new(ctx);
    SSL_set_bio(ssl, in, out);
    SSL_set_connect_state(ssl);
    buf_init(&plain, QUEUE_MAX);
    buf_init(&cipher, QUEUE_MAX);
    for (int round = 0; round < 10; round++) {
        int n;

        (void)SSL_do_handshake(ssl);
        n = BIO_read(out, bytes, sizeof(bytes));
        if (n > 0) {
            answer = tls_feed(s, bytes, (size_t)n, &plain, &cipher);
            BIO_write(in, buf_view(&cipher).p, (int)cipher.len);
            buf_reset(&cipher);
        }
    }
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    tls_session_free(s);
    tls_context_free(c);
    buf_fini(&plain);
    buf_fini(&cipher);
    return answer;
}

static void old_versions_and_ciphers_are_refused(void **state)
{
    const struct files *f = *state;

    assert_int_equal(foreign_handshake(f, TLS1_3_VERSION, "ALL:@SECLEVEL=0"), TLS_OPEN);
    assert_int_equal(foreign_handshake(f, TLS1_2_VERSION, "ECDHE-ECDSA-AES128-GCM-SHA256"),
                     TLS_OPEN);
    assert_int_equal(foreign_handshake(f, TLS1_2_VERSION, "ECDHE-ECDSA-AES128-SHA"), TLS_FAILED);
    assert_int_equal(foreign_handshake(f, TLS1_2_VERSION, "DHE-RSA-AES128-GCM-SHA256"), TLS_FAILED);
    assert_int_equal(foreign_handshake(f, TLS1_1_VERSION, "ALL:@SECLEVEL=0"), TLS_FAILED);
    assert_int_equal(foreign_handshake(f, TLS1_VERSION, "ALL:@SECLEVEL=0"), TLS_FAILED);
}

static void full_plain_queue_keeps_the_rest_inside(void **state)
{
    static char sent[30000];
    struct buf small;
    struct pair p;
    size_t got = 0;

    pair_init(&p, *state, ((struct files *)*state)->cert, "gateway.test");
    pair_run(&p, 1000);
    assert_true(tls_write(p.client, sent, sizeof(sent), &p.to_server));
    buf_init(&small, 1000);
    assert_int_equal(
        tls_feed(p.server, buf_view(&p.to_server).p, p.to_server.len, &small, &p.to_client),
        TLS_OPEN);
    while (small.len != 0) {
        assert_true(small.len <= 1000 && !small.failed);
        got += small.len;
        buf_reset(&small);
        assert_int_equal(tls_feed(p.server, NULL, 0, &small, &p.to_client), TLS_OPEN);
    }
    assert_int_equal(got, sizeof(sent));
    buf_fini(&small);
    pair_fini(&p);
}

static void close_notify_is_heard(void **state)
{
    struct pair p;

    pair_init(&p, *state, ((struct files *)*state)->cert, "gateway.test");
    pair_run(&p, 1000);
    assert_true(tls_write(p.server, "bye", 3, &p.to_client));
    tls_shutdown(p.server, &p.to_client);
    pair_run(&p, 1000);
    assert_int_equal(p.client_state, TLS_CLOSED);
    assert_int_equal(p.client_plain.len, 3);
    pair_fini(&p);
}

static void garbage_and_changed_records_fail(void **state)
{
    struct pair p;

    pair_init(&p, *state, ((struct files *)*state)->cert, "gateway.test");
    assert_int_equal(
        tls_feed(p.server, "GET / HTTP/1.1\r\n\r\n", 18, &p.server_plain, &p.to_client),
        TLS_FAILED);
    assert_true(strlen(tls_failure(p.server)) > 0);
    pair_fini(&p);
    pair_init(&p, *state, ((struct files *)*state)->cert, "gateway.test");
    pair_run(&p, 1000);
    assert_true(tls_write(p.client, "hello", 5, &p.to_server));
    p.to_server.p[p.to_server.off + p.to_server.len - 1] ^= 1;
    pair_run(&p, 1000);
    assert_int_equal(p.server_state, TLS_FAILED);
    assert_int_equal(p.server_plain.len, 0);
    pair_fini(&p);
}

/* A client of the server world, over its fake socket. */
static void world_pump(struct world *w, struct tls_session *client, struct buf *plain,
                       struct buf *out)
{
    for (int round = 0; round < 20; round++) {
        (void)tls_feed(client, buf_view(&w->peer->tx).p, w->peer->tx.len, plain, out);
        buf_reset(&w->peer->tx);
        fake_send(w->peer, buf_view(out).p, out->len);
        buf_reset(out);
        fake_run(w->fake);
    }
}

static void server_speaks_what_alpn_chose(void **state)
{
    const struct files *f = *state;

    for (int h2 = 0; h2 < 2; h2++) {
        struct err e = {.code = ERR_NONE};
        struct tls_context *sc = tls_server_context(f->cert, f->key, &e);
        struct tls_context *cc = tls_client_context(f->cert, &e);
        struct tls_session *client = tls_connect(cc, STR("gateway.test"));
        struct world *w = world_new_tls(sc, HTTP_H1_H2);
        struct buf plain, out;

        buf_init(&plain, QUEUE_MAX);
        buf_init(&out, QUEUE_MAX);
        tls_set_protocols(client, true, h2 == 1);
        world_pump(w, client, &plain, &out);
        if (h2 == 0) {
            assert_true(tls_write(client, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n", 32, &out));
            world_pump(w, client, &plain, &out);
            assert_memory_equal(buf_view(&plain).p, "HTTP/1.1 200 OK\r\n", 17);
            world_expect(w, "head GET /hello;close 1;");
        } else {
            assert_true(plain.len >= 9 && plain.p[3] == 4); /* the server's SETTINGS come first */
        }
        tls_shutdown(client, &out);
        world_pump(w, client, &plain, &out);
        assert_true(w->peer->shut);
        w->peer->peer_shut = true;
        fake_advance(w->fake, 4000000);
        assert_true(w->peer->closed);
        world_free(w);
        tls_session_free(client);
        tls_context_free(cc);
        tls_context_free(sc);
        buf_fini(&plain);
        buf_fini(&out);
    }
}

/* Reload: the next handshake sees the new certificate, the open connection stays. */
static void contexts_are_replaced_under_open_connections(void **state)
{
    const struct files *f = *state;
    struct err e = {.code = ERR_NONE};
    struct tls_context *old = tls_server_context(f->cert, f->key, &e);
    struct tls_context *new = tls_server_context(f->cert, f->key, &e);
    struct tls_context *cc = tls_client_context(f->cert, &e);
    struct tls_session *first = tls_connect(cc, STR("gateway.test")), *second;
    struct world *w = world_new_tls(old, HTTP_H1);
    struct env_sock *first_peer = w->peer;
    struct buf plain, out;

    buf_init(&plain, QUEUE_MAX);
    buf_init(&out, QUEUE_MAX);
    world_pump(w, first, &plain, &out);
    http_server_set_tls(w->server, new);
    tls_context_free(old);
    w->peer = world_connect(w);
    second = tls_connect(cc, STR("gateway.test"));
    world_pump(w, second, &plain, &out);
    w->peer = first_peer;
    assert_true(tls_write(first, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n", 32, &out));
    world_pump(w, first, &plain, &out);
    assert_memory_equal(buf_view(&plain).p, "HTTP/1.1 200 OK\r\n", 17);
    world_free(w);
    tls_session_free(first);
    tls_session_free(second);
    tls_context_free(cc);
    tls_context_free(new);
    buf_fini(&plain);
    buf_fini(&out);
}

static void failed_handshake_is_counted_and_ends(void **state)
{
    const struct files *f = *state;
    struct err e = {.code = ERR_NONE};
    struct tls_context *sc = tls_server_context(f->cert, f->key, &e);
    struct world *w = world_new_tls(sc, HTTP_H1_H2);

    fake_send_c(w->peer, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    fake_run(w->fake);
    assert_int_equal(world_stats(w).protocol_errors, 1);
    assert_true(w->peer->shut);
    fake_advance(w->fake, 4000000);
    assert_true(w->peer->closed);
    world_free(w);
    w = world_new_tls(sc, HTTP_H1_H2);
    fake_advance(w->fake, 11000000); /* silent */
    assert_true(w->peer->closed);
    world_free(w);
    tls_context_free(sc);
}

static void bad_files_are_named(void **state)
{
    const struct files *f = *state;
    struct err e = {.code = ERR_NONE};

    assert_null(tls_server_context("/nowhere/cert.pem", f->key, &e));
    assert_non_null(strstr(e.text, "/nowhere/cert.pem"));
    err_clear(&e);
    assert_null(tls_server_context(f->other, f->key, &e)); /* the key of another certificate */
    assert_non_null(strstr(e.text, f->key));
    err_clear(&e);
    assert_int_equal(chmod(f->key, 0604), 0);
    assert_null(tls_server_context(f->cert, f->key, &e));
    assert_non_null(strstr(e.text, "chmod 600"));
    assert_int_equal(chmod(f->key, 0600), 0);
    err_clear(&e);
    assert_null(tls_client_context("/nowhere/ca.pem", &e));
    assert_non_null(strstr(e.text, "/nowhere/ca.pem"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_pass_both_ways_in_any_split),
        cmocka_unit_test(alpn_prefers_h2_and_defaults_to_h1),
        cmocka_unit_test(no_common_protocol_fails),
        cmocka_unit_test(server_names_are_checked),
        cmocka_unit_test(unknown_authority_is_refused),
        cmocka_unit_test(connecting_needs_a_name),
        cmocka_unit_test(old_versions_and_ciphers_are_refused),
        cmocka_unit_test(full_plain_queue_keeps_the_rest_inside),
        cmocka_unit_test(close_notify_is_heard),
        cmocka_unit_test(garbage_and_changed_records_fail),
        cmocka_unit_test(server_speaks_what_alpn_chose),
        cmocka_unit_test(contexts_are_replaced_under_open_connections),
        cmocka_unit_test(failed_handshake_is_counted_and_ends),
        cmocka_unit_test(bad_files_are_named),
    };

    return cmocka_run_group_tests(tests, files_make, files_remove);
}
