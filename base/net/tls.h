/* tls.h - the one door to OpenSSL's TLS: a context for a listener or a client, a session as a
 * filter over two byte queues (no sockets in here).
 *
 * TLS 1.2 and 1.3, AEAD + ECDHE only, no renegotiation, no compression, no 0-RTT; ALPN h2 then
 * http/1.1; SSL_MODE_RELEASE_BUFFERS. One context a loop (OpenSSL 3.0's locks). */
#ifndef BASE_NET_TLS_H
#define BASE_NET_TLS_H

#include "base/buf.h"
#include "base/err.h"

struct tls_context;
struct tls_session;

/* Certificate chain and key, PEM files; the key must not be readable by others. NULL with a story.
 */
struct tls_context *tls_server_context(const char *cert_path, const char *key_path, struct err *e);
/* Verifies the peer against ca_path (PEM; NULL: the system's store). */
struct tls_context *tls_client_context(const char *ca_path, struct err *e);
/* Sessions keep what they need: a context may be freed, or replaced by one with a newer
 * certificate, while they live. */
void tls_context_free(struct tls_context *c);

struct tls_session *tls_accept(struct tls_context *c);
/* host: a name or address, for SNI and the name check; a ":port" behind it is ignored. Offers
 * http/1.1 alone. NULL: no memory, or no host to check. */
struct tls_session *tls_connect(struct tls_context *c, struct str host);
/* What ALPN may choose, before the first tls_feed. Default: both for a server, h1 for a client. */
void tls_set_protocols(struct tls_session *s, bool h1, bool h2);
void tls_session_free(struct tls_session *s);

enum tls_state { TLS_HANDSHAKE = 1, TLS_OPEN, TLS_CLOSED, TLS_FAILED };
/* A client's first call has n 0: it appends the hello.
 * Feeds ciphertext from the socket; plaintext is appended to *plain (its bound stops the read: the
 * rest stays inside and comes with the next call, n may be 0). Ciphertext to send is appended to
 * *cipher. */
enum tls_state tls_feed(struct tls_session *s, const void *p, size_t n, struct buf *plain,
                        struct buf *cipher);
/* Encrypts all of p into *cipher. */
MUST_USE bool tls_write(struct tls_session *s, const void *p, size_t n, struct buf *cipher);
void tls_shutdown(struct tls_session *s, struct buf *cipher); /* close_notify */
bool tls_is_h2(const struct tls_session *s);                  /* what ALPN chose */
const char *tls_failure(const struct tls_session *s);         /* after TLS_FAILED, for the log */

#endif
