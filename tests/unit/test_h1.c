/* test_h1.c - what a strict HTTP/1.1 parser takes and refuses; every case whole and byte by byte.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/net/h1.h"

static const struct h1_limits limits = {32768, 100};

#define GET "GET / HTTP/1.1\r\n"
#define POST "POST /v1 HTTP/1.1\r\nHost: a\r\n"
#define HOST "Host: a\r\n"

struct refusal {
    const char *name;
    struct str in;
    unsigned status;
};

#define CASE(name, status, text)                                                                   \
    {                                                                                              \
        name, STR(text), status                                                                    \
    }

static const struct refusal bad_requests[] = {
    /* smuggling: two opinions about where the body ends */
    CASE("length and chunked", 400, POST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"),
    CASE("chunked and length", 400, POST "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n"),
    CASE("two equal lengths", 400, POST "Content-Length: 3\r\nContent-Length: 3\r\n\r\n"),
    CASE("two different lengths", 400, POST "Content-Length: 3\r\ncontent-length: 4\r\n\r\n"),
    CASE("list of lengths", 400, POST "Content-Length: 3, 3\r\n\r\n"),
    CASE("length with plus", 400, POST "Content-Length: +3\r\n\r\n"),
    CASE("negative length", 400, POST "Content-Length: -3\r\n\r\n"),
    CASE("hex length", 400, POST "Content-Length: 0x3\r\n\r\n"),
    CASE("empty length", 400, POST "Content-Length: \r\n\r\n"),
    CASE("length with inner space", 400, POST "Content-Length: 1 0\r\n\r\n"),
    CASE("length of 2^63", 400, POST "Content-Length: 9223372036854775808\r\n\r\n"),
    CASE("length of 20 digits", 400, POST "Content-Length: 00000000000000000001\r\n\r\n"),
    CASE("length with obs-text", 400, POST "Content-Length: \xb2\r\n\r\n"),
    CASE("chunked twice in one field", 400, POST "Transfer-Encoding: chunked, chunked\r\n\r\n"),
    CASE("chunked in two fields", 400,
         POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"),
    CASE("identity coding", 400, POST "Transfer-Encoding: identity\r\n\r\n"),
    CASE("empty coding", 400, POST "Transfer-Encoding:\r\n\r\n"),
    CASE("xchunked", 400, POST "Transfer-Encoding: xchunked\r\n\r\n"),
    CASE("quoted chunked", 400, POST "Transfer-Encoding: \"chunked\"\r\n\r\n"),
    CASE("chunked, then identity", 400, POST "Transfer-Encoding: chunked, identity\r\n\r\n"),
    CASE("chunked with parameter", 400, POST "Transfer-Encoding: chunked;q=1\r\n\r\n"),
    CASE("gzip before chunked", 501, POST "Transfer-Encoding: gzip, chunked\r\n\r\n"),
    CASE("coding in HTTP/1.0", 400,
         "POST / HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"),
    CASE("space before colon", 400, POST "Content-Length : 3\r\n\r\n"),
    CASE("tab before colon", 400, POST "Transfer-Encoding\t: chunked\r\n\r\n"),
    CASE("space folded line", 400, POST "X: a\r\n b\r\n\r\n"),
    CASE("tab folded line", 400, POST "X: a\r\n\tb\r\n\r\n"),
    CASE("fold of the first field", 400, GET " Host: a\r\n\r\n"),
    CASE("bare LF ends the request line", 400, "GET / HTTP/1.1\n" HOST "\r\n"),
    CASE("bare LF ends a field", 400, GET "Host: a\n\r\n"),
    CASE("bare LF ends the head", 400, GET HOST "\n"),
    CASE("bare CR ends a field", 400, GET "Host: a\rX: b\r\n\r\n"),
    CASE("bare CR hides a field (CVE-2023-30589)", 400,
         GET HOST "X:\rTransfer-Encoding: chunked\r\n\r\n"),
    CASE("two CR", 400, GET HOST "X: a\r\r\n\r\n"),
    CASE("CR in the target", 400, "GET /\rX HTTP/1.1\r\n" HOST "\r\n"),
    CASE("NUL in a value", 400, GET HOST "X: a\0b\r\n\r\n"),
    CASE("NUL in a name", 400, GET HOST "X\0: a\r\n\r\n"),
    CASE("NUL in the target", 400, "GET /\0 HTTP/1.1\r\n" HOST "\r\n"),
    CASE("DEL in a value", 400, GET HOST "X: \x7f\r\n\r\n"),
    CASE("vertical tab in a value", 400, GET HOST "X: \x0b\r\n\r\n"),
    CASE("vertical tab hides chunked", 400,
         POST "Transfer-Encoding: \x0b"
              "chunked\r\n\r\n"),
    /* fields */
    CASE("empty name", 400, GET HOST ": a\r\n\r\n"),
    CASE("no colon", 400, GET HOST "X\r\n\r\n"),
    CASE("space in a name", 400, GET HOST "X Y: a\r\n\r\n"),
    CASE("obs-text in a name", 400, GET HOST "X\xff: a\r\n\r\n"),
    CASE("slash in a name", 400, GET HOST "X/Y: a\r\n\r\n"),
    CASE("unknown expectation", 417, POST "Expect: 200-maybe\r\nContent-Length: 1\r\n\r\n"),
    /* host */
    CASE("no host", 400, GET "\r\n"),
    CASE("two hosts", 400, GET HOST HOST "\r\n"),
    CASE("empty host", 400, GET "Host:\r\n\r\n"),
    CASE("host with user", 400, GET "Host: u@a\r\n\r\n"),
    CASE("host with path", 400, GET "Host: a/b\r\n\r\n"),
    CASE("host with space", 400, GET "Host: a b\r\n\r\n"),
    CASE("host list", 400, GET "Host: a, b\r\n\r\n"),
    CASE("host with bad port", 400, GET "Host: a:8x\r\n\r\n"),
    CASE("host with huge port", 400, GET "Host: a:123456\r\n\r\n"),
    CASE("host with open bracket", 400, GET "Host: [::1\r\n\r\n"),
    CASE("host differs from the target", 400, "GET http://b/ HTTP/1.1\r\n" HOST "\r\n"),
    /* request line */
    CASE("two spaces", 400, "GET  / HTTP/1.1\r\n" HOST "\r\n"),
    CASE("space in the target", 400, "GET /a b HTTP/1.1\r\n" HOST "\r\n"),
    CASE("tab for space", 400, "GET\t/\tHTTP/1.1\r\n" HOST "\r\n"),
    CASE("space behind the version", 400, "GET / HTTP/1.1 \r\n" HOST "\r\n"),
    CASE("HTTP/0.9", 400, "GET /\r\n\r\n"),
    CASE("lower-case version", 400, "GET / http/1.1\r\n" HOST "\r\n"),
    CASE("HTTP/2.0", 505, "GET / HTTP/2.0\r\n" HOST "\r\n"),
    CASE("the h2 preface", 505, "PRI * HTTP/2.0\r\n\r\n"),
    CASE("HTTP/1.2", 505, "GET / HTTP/1.2\r\n" HOST "\r\n"),
    CASE("HTTP/1.10", 400, "GET / HTTP/1.10\r\n" HOST "\r\n"),
    CASE("empty method", 400, " / HTTP/1.1\r\n" HOST "\r\n"),
    CASE("bad method", 400, "G(T / HTTP/1.1\r\n" HOST "\r\n"),
    CASE("endless method", 400, "AAAAAAAAAABBBBBBBBBBCCCCCCCCCCDDD / HTTP/1.1\r\n" HOST "\r\n"),
    CASE("empty target", 400, "GET  HTTP/1.1\r\n" HOST "\r\n"),
    CASE("relative target", 400, "GET a HTTP/1.1\r\n" HOST "\r\n"),
    CASE("fragment", 400, "GET /#a HTTP/1.1\r\n" HOST "\r\n"),
    CASE("obs-text in the target", 400, "GET /\xc3\xa4 HTTP/1.1\r\n" HOST "\r\n"),
    CASE("authority form", 400, "CONNECT a:443 HTTP/1.1\r\n" HOST "\r\n"),
    CASE("asterisk form", 400, "OPTIONS * HTTP/1.1\r\n" HOST "\r\n"),
    CASE("ftp target", 400, "GET ftp://a/ HTTP/1.1\r\n" HOST "\r\n"),
    CASE("target with user", 400, "GET http://u@a/ HTTP/1.0\r\n\r\n"),
    CASE("target without host", 400, "GET http:///x HTTP/1.1\r\n" HOST "\r\n"),
    CASE("two leading empty lines", 400, "\r\n\r\n" GET HOST "\r\n"),
    CASE("a leading LF", 400, "\n" GET HOST "\r\n"),
    CASE("a TLS hello", 400, "\x16\x03\x01\x02\x00\x01\x00"),
};

static void request_is(const char *name, struct str in, size_t step, enum h1_result wanted,
                       unsigned status)
{
    struct h1_scan scan = {0};
    struct h1_request r;
    struct h1_fault f = {0};
    struct arena a;
    enum h1_result got = H1_MORE;

    arena_init(&a, 1 << 18);
    for (size_t n = size_min(step, in.n); got == H1_MORE; n = size_min(n + step, in.n)) {
        got = h1_parse_request(&scan, str_of(in.p, n), &limits, &a, &r, &f);
        if (n == in.n) {
            break;
        }
    }
    if (got != wanted || (got == H1_BAD && f.status != status)) {
        fail_msg("%s, steps of %zu: result %d status %u (%s)", name, step, got, f.status, f.reason);
    }
    arena_fini(&a);
}

static void requests_that_could_mean_two_things_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad_requests); i++) {
        const struct refusal *c = &bad_requests[i];

        request_is(c->name, c->in, c->in.n, H1_BAD, c->status);
        request_is(c->name, c->in, 1, H1_BAD, c->status);
    }
}

struct acceptance {
    const char *name;
    struct str in;
    enum h1_framing framing;
    int64_t length;
    bool keep_alive;
    const char *path, *query, *host;
};

#define OK(name, text, framing, length, keep, path, query, host)                                   \
    {                                                                                              \
        name, STR(text), framing, length, keep, path, query, host                                  \
    }

static const struct acceptance good_requests[] = {
    OK("plain", GET HOST "\r\n", H1_NO_BODY, -1, true, "/", "", "a"),
    OK("one leading empty line", "\r\n" GET HOST "\r\n", H1_NO_BODY, -1, true, "/", "", "a"),
    OK("bytes behind the head", GET HOST "\r\nGET", H1_NO_BODY, -1, true, "/", "", "a"),
    OK("length", POST "Content-Length: 12\r\n\r\n", H1_LENGTH, 12, true, "/v1", "", "a"),
    OK("length of zero", POST "Content-Length:0\r\n\r\n", H1_LENGTH, 0, true, "/v1", "", "a"),
    OK("length with blanks around", POST "Content-Length: \t 7 \t\r\n\r\n", H1_LENGTH, 7, true,
       "/v1", "", "a"),
    OK("length of 2^63 - 1", POST "Content-Length: 9223372036854775807\r\n\r\n", H1_LENGTH,
       INT64_MAX, true, "/v1", "", "a"),
    OK("chunked", POST "Transfer-Encoding: chunked\r\n\r\n", H1_CHUNKED, -1, true, "/v1", "", "a"),
    OK("CHUNKED", POST "TRANSFER-ENCODING: CHUNKED\r\n\r\n", H1_CHUNKED, -1, true, "/v1", "", "a"),
    OK("connection close", GET HOST "Connection: close\r\n\r\n", H1_NO_BODY, -1, false, "/", "",
       "a"),
    OK("close in a list", GET HOST "Connection: x , CLOSE\r\n\r\n", H1_NO_BODY, -1, false, "/", "",
       "a"),
    OK("close in a second field", GET HOST "Connection: x\r\nConnection: close\r\n\r\n", H1_NO_BODY,
       -1, false, "/", "", "a"),
    OK("keep-alive", GET HOST "Connection: keep-alive\r\n\r\n", H1_NO_BODY, -1, true, "/", "", "a"),
    OK("HTTP/1.0", "GET / HTTP/1.0\r\n\r\n", H1_NO_BODY, -1, false, "/", "", ""),
    OK("query", "GET /a/b?c=d?e HTTP/1.1\r\n" HOST "\r\n", H1_NO_BODY, -1, true, "/a/b", "c=d?e",
       "a"),
    OK("empty query", "GET /a? HTTP/1.1\r\n" HOST "\r\n", H1_NO_BODY, -1, true, "/a", "", "a"),
    OK("escapes stay", "GET /%2e%2E/%00 HTTP/1.1\r\n" HOST "\r\n", H1_NO_BODY, -1, true,
       "/%2e%2E/%00", "", "a"),
    OK("absolute target", "GET http://A/x?y HTTP/1.1\r\n" HOST "\r\n", H1_NO_BODY, -1, true, "/x",
       "y", "a"),
    OK("host with port", GET "Host: api.example:8443\r\n\r\n", H1_NO_BODY, -1, true, "/", "",
       "api.example:8443"),
    OK("IPv6 host", GET "Host: [::1]:80\r\n\r\n", H1_NO_BODY, -1, true, "/", "", "[::1]:80"),
    OK("unknown method", "BREW /pot HTTP/1.1\r\n" HOST "\r\n", H1_NO_BODY, -1, true, "/pot", "",
       "a"),
    OK("value with obs-text and tab", GET HOST "X: \xc3\xa4\tb\r\n\r\n", H1_NO_BODY, -1, true, "/",
       "", "a"),
    OK("empty value", GET HOST "X:\r\n\r\n", H1_NO_BODY, -1, true, "/", "", "a"),
    OK("te is not transfer-encoding", POST "TE: chunked\r\nContent-Length: 1\r\n\r\n", H1_LENGTH, 1,
       true, "/v1", "", "a"),
};

static void assert_str(const char *name, struct str got, const char *wanted)
{
    if (!str_eq(got, str_c(wanted))) {
        fail_msg("%s: got \"" STR_FMT "\", wanted \"%s\"", name, STR_ARG(got), wanted);
    }
}

/* Writes all that a parse says, so that two parses can be compared. */
static void request_print(struct buf *b, const struct h1_request *r)
{
    buf_printf(b, "%u %d %d %lld %d %zu|", r->minor, r->framing, r->keep_alive,
               (long long)r->head.content_length, r->head.expect_continue, r->bytes);
    buf_printf(b, STR_FMT "|" STR_FMT "|" STR_FMT "|" STR_FMT "|", STR_ARG(r->head.method_text),
               STR_ARG(r->head.path), STR_ARG(r->head.query), STR_ARG(r->head.host));
    for (uint32_t i = 0; i < r->head.fields.n; i++) {
        buf_printf(b, STR_FMT "=" STR_FMT ";", STR_ARG(r->head.fields.v[i].name),
                   STR_ARG(r->head.fields.v[i].value));
    }
}

static void request_accept(const struct acceptance *c, size_t step, struct buf *print)
{
    struct h1_scan scan = {0};
    struct h1_request r;
    struct h1_fault f = {0};
    struct arena a;
    enum h1_result got = H1_MORE;

    arena_init(&a, 1 << 18);
    for (size_t n = size_min(step, c->in.n); n <= c->in.n && got == H1_MORE; n += step) {
        got = h1_parse_request(&scan, str_of(c->in.p, n), &limits, &a, &r, &f);
    }
    if (got != H1_OK) {
        fail_msg("%s, steps of %zu: result %d (%s)", c->name, step, got, f.reason);
    }
    if (r.framing != c->framing || r.head.content_length != c->length ||
        r.keep_alive != c->keep_alive) {
        fail_msg("%s: framing %d length %lld keep_alive %d", c->name, r.framing,
                 (long long)r.head.content_length, r.keep_alive);
    }
    assert_str(c->name, r.head.path, c->path);
    assert_str(c->name, r.head.query, c->query);
    assert_str(c->name, r.head.host, c->host);
    request_print(print, &r);
    arena_fini(&a);
}

static void requests_are_read_the_same_whole_and_byte_by_byte(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(good_requests); i++) {
        struct buf whole, bytes;

        buf_init(&whole, 1 << 16);
        buf_init(&bytes, 1 << 16);
        request_accept(&good_requests[i], good_requests[i].in.n, &whole);
        request_accept(&good_requests[i], 1, &bytes);
        assert_true(str_eq(buf_view(&whole), buf_view(&bytes)));
        buf_fini(&whole);
        buf_fini(&bytes);
    }
}

static void field_names_are_lowered_and_values_trimmed(void **state)
{
    struct str in = STR(GET "HOST: a\r\nX-Mixed-Case: \t Value \t\r\n\r\n");
    struct h1_scan scan = {0};
    struct h1_request r;
    struct h1_fault f;
    struct arena a;

    (void)state;
    arena_init(&a, 1 << 16);
    assert_int_equal(h1_parse_request(&scan, in, &limits, &a, &r, &f), H1_OK);
    assert_str("value", http_field(&r.head.fields, STR("x-mixed-case")), "Value");
    assert_int_equal(r.head.fields.n, 2);
    arena_fini(&a);
}

static void expect_continue_is_seen_only_with_a_body(void **state)
{
    struct str with = STR(POST "Expect: 100-Continue\r\nContent-Length: 1\r\n\r\n");
    struct str without = STR(GET HOST "Expect: 100-continue\r\n\r\n");
    struct h1_scan scan = {0};
    struct h1_request r;
    struct h1_fault f;
    struct arena a;

    (void)state;
    arena_init(&a, 1 << 16);
    assert_int_equal(h1_parse_request(&scan, with, &limits, &a, &r, &f), H1_OK);
    assert_true(r.head.expect_continue);
    memset(&scan, 0, sizeof(scan));
    assert_int_equal(h1_parse_request(&scan, without, &limits, &a, &r, &f), H1_OK);
    assert_false(r.head.expect_continue);
    arena_fini(&a);
}

/* A head that repeats `piece` until it is `bytes` long, then ends. */
static void head_of(struct buf *b, const char *start, const char *piece, size_t bytes,
                    const char *end)
{
    buf_init(b, 1 << 20);
    buf_c(b, start);
    while (b->len < bytes) {
        buf_c(b, piece);
    }
    buf_c(b, end);
}

static void heads_past_each_bound_are_refused(void **state)
{
    struct buf line, bytes, count, at_count;

    (void)state;
    head_of(&line, "GET /", "a", H1_LINE_MAX + 1, " HTTP/1.1\r\n" HOST "\r\n");
    request_is("line", buf_view(&line), line.len, H1_BAD, 414);
    request_is("line", buf_view(&line), 1, H1_BAD, 414);
    head_of(&bytes, GET HOST "X: ", "b", limits.header_bytes_max + 100, "\r\n\r\n");
    request_is("bytes", buf_view(&bytes), bytes.len, H1_BAD, 431);
    request_is("bytes", buf_view(&bytes), 1, H1_BAD, 431);
    head_of(&count, GET HOST, "a:b\r\n", strlen(GET HOST) + 5 * limits.header_count_max, "\r\n");
    request_is("count", buf_view(&count), count.len, H1_BAD, 431);
    request_is("count", buf_view(&count), 1, H1_BAD, 431);
    head_of(&at_count, GET HOST, "a:b\r\n", strlen(GET HOST) + 5 * (limits.header_count_max - 1),
            "\r\n");
    request_is("at the count", buf_view(&at_count), 1, H1_OK, 0);
    buf_fini(&line);
    buf_fini(&bytes);
    buf_fini(&count);
    buf_fini(&at_count);
}

static void a_head_that_never_ends_is_refused_before_its_end(void **state)
{
    struct buf b;

    (void)state;
    head_of(&b, GET HOST "X: ", "b", 2 * limits.header_bytes_max, "");
    request_is("no end", buf_view(&b), 1000, H1_BAD, 431);
    buf_fini(&b);
}

static void a_full_arena_is_a_431(void **state)
{
    struct h1_scan scan = {0};
    struct h1_request r;
    struct h1_fault f;
    struct arena a;

    (void)state;
    arena_init(&a, 48);
    assert_int_equal(h1_parse_request(&scan, STR(GET HOST "\r\n"), &limits, &a, &r, &f), H1_BAD);
    assert_int_equal(f.status, 431);
    arena_fini(&a);
}

/* ---- answers ---- */

struct answer {
    const char *name;
    struct str in;
    enum http_method asked;
    enum h1_result result;
    unsigned status;
    enum h1_framing framing;
    int64_t length;
    bool keep_alive;
};

#define R200 "HTTP/1.1 200 OK\r\n"
#define NO(name, text)                                                                             \
    {                                                                                              \
        name, STR(text), HTTP_GET, H1_BAD, 0, 0, 0, false                                          \
    }
#define YES(name, asked, text, status, framing, length, keep)                                      \
    {                                                                                              \
        name, STR(text), asked, H1_OK, status, framing, length, keep                               \
    }

static const struct answer answers[] = {
    YES("length", HTTP_GET, R200 "Content-Length: 5\r\n\r\n", 200, H1_LENGTH, 5, true),
    YES("chunked", HTTP_GET, R200 "Transfer-Encoding: chunked\r\n\r\n", 200, H1_CHUNKED, -1, true),
    YES("until close", HTTP_GET, R200 "\r\n", 200, H1_CLOSE, -1, false),
    YES("close", HTTP_GET, R200 "Connection: close\r\nContent-Length: 1\r\n\r\n", 200, H1_LENGTH, 1,
        false),
    YES("HEAD", HTTP_HEAD, R200 "Content-Length: 5\r\n\r\n", 200, H1_NO_BODY, 5, true),
    YES("HEAD of chunked", HTTP_HEAD, R200 "Transfer-Encoding: chunked\r\n\r\n", 200, H1_NO_BODY,
        -1, true),
    YES("204", HTTP_GET, "HTTP/1.1 204 No Content\r\n\r\n", 204, H1_NO_BODY, -1, true),
    YES("304 with a length", HTTP_GET, "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
        304, H1_NO_BODY, 9, true),
    YES("100", HTTP_POST, "HTTP/1.1 100 Continue\r\n\r\n", 100, H1_NO_BODY, -1, true),
    YES("no reason", HTTP_GET, "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", 200, H1_LENGTH, 0,
        true),
    YES("no space", HTTP_GET, "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, H1_LENGTH, 0, true),
    YES("HTTP/1.0", HTTP_GET, "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", 200, H1_LENGTH, 3,
        false),
    NO("length and chunked", R200 "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
    NO("two lengths", R200 "Content-Length: 5\r\nContent-Length: 5\r\n\r\n"),
    NO("length list", R200 "Content-Length: 5,5\r\n\r\n"),
    NO("gzip coding", R200 "Transfer-Encoding: gzip\r\n\r\n"),
    NO("gzip, chunked", R200 "Transfer-Encoding: gzip, chunked\r\n\r\n"),
    NO("chunked in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
    NO("fold", R200 "X: a\r\n b\r\n\r\n"),
    NO("bare LF", "HTTP/1.1 200 OK\nContent-Length: 0\n\n"),
    NO("bare CR", R200 "X: a\rb\r\n\r\n"),
    NO("NUL", R200 "X: \0\r\n\r\n"),
    NO("space before colon", R200 "Content-Length : 5\r\n\r\n"),
    NO("101", "HTTP/1.1 101 Switching Protocols\r\n\r\n"),
    NO("099", "HTTP/1.1 099 X\r\n\r\n"),
    NO("600", "HTTP/1.1 600 X\r\n\r\n"),
    NO("2x0", "HTTP/1.1 2x0 X\r\n\r\n"),
    NO("2000", "HTTP/1.1 2000 X\r\n\r\n"),
    NO("HTTP/2", "HTTP/2.0 200 OK\r\n\r\n"),
    NO("ICY", "ICY 200 OK\r\n\r\n"),
    NO("leading empty line", "\r\n" R200 "\r\n"),
};

static void answer_is(const struct answer *c, size_t step)
{
    struct h1_scan scan = {0};
    struct h1_response r = {0};
    struct h1_fault f = {0};
    struct arena a;
    enum h1_result got = H1_MORE;

    arena_init(&a, 1 << 18);
    for (size_t n = size_min(step, c->in.n); n <= c->in.n && got == H1_MORE; n += step) {
        got = h1_parse_response(&scan, str_of(c->in.p, n), &limits, c->asked, &a, &r, &f);
    }
    if (got != c->result) {
        fail_msg("%s, steps of %zu: result %d (%s)", c->name, step, got, f.reason);
    }
    if (got == H1_OK &&
        (r.status != c->status || r.framing != c->framing || r.content_length != c->length ||
         r.keep_alive != c->keep_alive || r.bytes != c->in.n)) {
        fail_msg("%s: status %u framing %d length %lld keep %d bytes %zu", c->name, r.status,
                 r.framing, (long long)r.content_length, r.keep_alive, r.bytes);
    }
    arena_fini(&a);
}

static void answers_are_taken_or_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        answer_is(&answers[i], answers[i].in.n);
        answer_is(&answers[i], 1);
    }
}

/* ---- chunks ---- */

struct chunks {
    const char *name;
    struct str in;
    enum h1_result result;
    const char *data; /* what was decoded, also before a fault */
    size_t rest;      /* bytes behind the body */
};

#define CHUNKS(name, result, text, data, rest)                                                     \
    {                                                                                              \
        name, STR(text), result, data, rest                                                        \
    }

static const struct chunks bodies[] = {
    CHUNKS("one", H1_OK, "3\r\nabc\r\n0\r\n\r\n", "abc", 0),
    CHUNKS("two", H1_OK, "1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", "abc", 0),
    CHUNKS("none", H1_OK, "0\r\n\r\n", "", 0),
    CHUNKS("hex of both cases", H1_OK, "a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n",
           "01234567890123456789", 0),
    CHUNKS("zeros in front", H1_OK, "003\r\nabc\r\n000\r\n\r\n", "abc", 0),
    CHUNKS("data that looks like framing", H1_OK, "5\r\n0\r\n\r\n\r\n0\r\n\r\n", "0\r\n\r\n", 0),
    CHUNKS("extension", H1_OK, "3;a=b\r\nabc\r\n0;c=\"d\"\r\n\r\n", "abc", 0),
    CHUNKS("trailers", H1_OK, "3\r\nabc\r\n0\r\nX: y\r\nZ:\r\n\r\n", "abc", 0),
    CHUNKS("the next message stays", H1_OK, "1\r\na\r\n0\r\n\r\nGET", "a", 3),
    CHUNKS("not whole", H1_MORE, "3\r\nabc\r\n0\r\n", "abc", 0),
    CHUNKS("no size", H1_BAD, "\r\nabc\r\n", "", 0),
    CHUNKS("no size before an extension", H1_BAD, ";a\r\n", "", 0),
    CHUNKS("negative", H1_BAD, "-1\r\n", "", 0),
    CHUNKS("plus", H1_BAD, "+1\r\n", "", 0),
    CHUNKS("0x", H1_BAD, "0x1\r\na\r\n", "", 0),
    CHUNKS("space in front", H1_BAD, " 1\r\na\r\n", "", 0),
    CHUNKS("space behind", H1_BAD, "1 \r\na\r\n", "", 0),
    CHUNKS("tab before extension", H1_BAD, "1\t;a\r\na\r\n", "", 0),
    CHUNKS("underscore", H1_BAD, "1_0\r\n", "", 0),
    CHUNKS("not hex", H1_BAD, "g\r\n", "", 0),
    CHUNKS("overflow", H1_BAD, "10000000000000001\r\na\r\n", "", 0),
    CHUNKS("2^60", H1_BAD, "1000000000000000\r\n", "", 0),
    CHUNKS("many zeros", H1_BAD, "0000000000000001\r\n", "", 0),
    CHUNKS("LF behind the size", H1_BAD, "1\na\r\n", "", 0),
    CHUNKS("CR behind the size", H1_BAD, "1\ra\r\n", "", 0),
    CHUNKS("LF in an extension", H1_BAD, "1;a\nb\r\na\r\n", "", 0),
    CHUNKS("CR in an extension", H1_BAD, "1;a\rb\r\na\r\n", "", 0),
    CHUNKS("NUL in an extension", H1_BAD, "1;\0\r\na\r\n", "", 0),
    CHUNKS("LF behind the data", H1_BAD, "1\r\na\n", "a", 0),
    CHUNKS("longer than its size", H1_BAD, "1\r\nab\r\n", "a", 0),
    CHUNKS("shorter than its size", H1_BAD, "5\r\nab\r\n0\r\n\r\n", "ab\r\n0", 0),
    CHUNKS("LF ends the trailers", H1_BAD, "0\r\n\n", "", 0),
    CHUNKS("trailer without colon", H1_BAD, "0\r\nX\r\n\r\n", "", 0),
    CHUNKS("folded trailer", H1_BAD, "0\r\nX: a\r\n b\r\n\r\n", "", 0),
    CHUNKS("space before a trailer's colon", H1_BAD, "0\r\nX : a\r\n\r\n", "", 0),
    CHUNKS("NUL in a trailer", H1_BAD, "0\r\nX: \0\r\n\r\n", "", 0),
    CHUNKS("length in the trailers", H1_BAD, "0\r\nContent-Length: 5\r\n\r\n", "", 0),
    CHUNKS("coding in the trailers", H1_BAD, "0\r\ntransfer-encoding: chunked\r\n\r\n", "", 0),
    CHUNKS("host in the trailers", H1_BAD, "0\r\nHOST: b\r\n\r\n", "", 0),
};

/* Decodes in steps; *rest: bytes not taken. */
static enum h1_result chunks_decode(struct str in, size_t step, struct buf *data, size_t *rest)
{
    struct h1_chunked d;
    struct h1_fault f = {0};
    size_t at = 0, used;
    struct str piece;
    enum h1_result got = H1_MORE;

    h1_chunked_init(&d, &limits);
    while (at < in.n && got == H1_MORE) {
        got = h1_chunked_next(&d, str_of(in.p + at, size_min(step, in.n - at)), &used, &piece, &f);
        buf_str(data, piece);
        at += used;
    }
    *rest = in.n - at;
    if (got == H1_BAD) {
        assert_true(f.status >= 400);
    }
    return got;
}

static void chunks_are(const struct chunks *c, size_t step)
{
    struct buf data;
    size_t rest;
    enum h1_result got;

    buf_init(&data, 1 << 16);
    got = chunks_decode(c->in, step, &data, &rest);
    if (got != c->result || (got == H1_OK && rest != c->rest)) {
        fail_msg("%s, steps of %zu: result %d, %zu bytes left", c->name, step, got, rest);
    }
    assert_str(c->name, buf_view(&data), c->data);
    buf_fini(&data);
}

static void chunked_bodies_are_taken_or_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        for (size_t step = 1; step < 6; step++) {
            chunks_are(&bodies[i], step);
        }
        chunks_are(&bodies[i], bodies[i].in.n);
    }
}

/* piece, n times, between start and end, decoded as a body. */
static enum h1_result chunks_repeat(const char *start, const char *piece, size_t n, const char *end)
{
    struct buf in, data;
    size_t rest;
    enum h1_result got;

    buf_init(&in, 1 << 22);
    buf_init(&data, 1 << 22);
    buf_c(&in, start);
    for (size_t i = 0; i < n; i++) {
        buf_c(&in, piece);
    }
    buf_c(&in, end);
    assert_false(in.failed);
    got = chunks_decode(buf_view(&in), in.len, &data, &rest);
    buf_fini(&in);
    buf_fini(&data);
    return got;
}

static void chunk_extensions_and_trailers_are_bounded(void **state)
{
    (void)state;
    assert_int_equal(chunks_repeat("1;", "a", 1000, "\r\na\r\n0\r\n\r\n"), H1_OK);
    assert_int_equal(chunks_repeat("1;", "a", 1100, "\r\na\r\n0\r\n\r\n"), H1_BAD);
    assert_int_equal(chunks_repeat("", "1;xxxx\r\na\r\n", 4000, "0\r\n\r\n"), H1_OK);
    assert_int_equal(chunks_repeat("", "1;xxxx\r\na\r\n", 5000, "0\r\n\r\n"), H1_BAD);
    assert_int_equal(chunks_repeat("0\r\n", "a:b\r\n", 100, "\r\n"), H1_OK);
    assert_int_equal(chunks_repeat("0\r\n", "a:b\r\n", 101, "\r\n"), H1_BAD);
    assert_int_equal(chunks_repeat("0\r\na:", "b", 32000, "\r\n\r\n"), H1_OK);
    assert_int_equal(chunks_repeat("0\r\na:", "b", 33000, "\r\n\r\n"), H1_BAD);
}

static void a_chunk_head_is_its_size_in_hex(void **state)
{
    char out[H1_CHUNK_HEAD_MAX];

    (void)state;
    assert_int_equal(h1_chunk_head(0, out), 3);
    assert_memory_equal(out, "0\r\n", 3);
    assert_int_equal(h1_chunk_head(0xab12, out), 6);
    assert_memory_equal(out, "ab12\r\n", 6);
    assert_int_equal(h1_chunk_head(SIZE_MAX, out), 18);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_that_could_mean_two_things_are_refused),
        cmocka_unit_test(requests_are_read_the_same_whole_and_byte_by_byte),
        cmocka_unit_test(field_names_are_lowered_and_values_trimmed),
        cmocka_unit_test(expect_continue_is_seen_only_with_a_body),
        cmocka_unit_test(heads_past_each_bound_are_refused),
        cmocka_unit_test(a_head_that_never_ends_is_refused_before_its_end),
        cmocka_unit_test(a_full_arena_is_a_431),
        cmocka_unit_test(answers_are_taken_or_refused),
        cmocka_unit_test(chunked_bodies_are_taken_or_refused),
        cmocka_unit_test(chunk_extensions_and_trailers_are_bounded),
        cmocka_unit_test(a_chunk_head_is_its_size_in_hex),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
