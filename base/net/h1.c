/* h1.c - heads of HTTP/1.1, strictly; h1_chunk.c has the bodies.
 *
 * A head is read in two steps. The scan looks at each byte once as it arrives: line ends, controls,
 * bounds; so the cost of a head that drips in is linear. Once the empty line is there, the head is
 * copied and parsed as a whole. Therefore no answer depends on how the bytes were split. */
#include "base/net/h1_impl.h"

/* A leading CRLF that a client sent behind its last body (RFC 9112 section 2.2). */
#define LEADING_CRLF 2
#define METHOD_MAX 32
/* 2^63 - 1 has 19 digits. */
#define LENGTH_DIGITS_MAX 19
/* As the sum that RFC 9113 section 10.5.1 suggests for a field's cost. */
#define FIELD_COST 32

/* ---- the scan ---- */

/* Closes the line that ends before `at`; *done when it was the empty line behind the head. */
static enum h1_result scan_line_end(struct h1_scan *sc, size_t at, const struct h1_limits *lim,
                                    bool *done, struct h1_fault *f)
{
    bool empty = at - sc->line == 2;

    sc->line = at;
    if (!sc->started) {
        if (!empty) {
            sc->started = true;
        } else if (at > LEADING_CRLF) {
            return h1_bad(f, 400, "empty lines before the start line");
        } else {
            return H1_OK;
        }
    }
    if (sc->first == 0) {
        sc->first = at;
    } else if (empty) {
        *done = true;
    } else if (sc->lines++ >= lim->header_count_max) {
        return h1_bad(f, 431, "too many fields");
    }
    return H1_OK;
}

static enum h1_result scan_bounds(const struct h1_scan *sc, const struct h1_limits *lim,
                                  bool request, struct h1_fault *f)
{
    if (sc->first == 0) {
        if (sc->at > H1_LINE_MAX + LEADING_CRLF) {
            return h1_bad(f, request ? 414 : 400, "start line too long");
        }
    } else if (sc->at - sc->first > (size_t)lim->header_bytes_max + 2) {
        return h1_bad(f, 431, "fields too large");
    }
    return H1_OK;
}

/* Looks at new bytes until the head's end. H1_OK: sc->at is the head's length. */
static enum h1_result scan_head(struct h1_scan *sc, struct str in, const struct h1_limits *lim,
                                bool request, struct h1_fault *f)
{
    while (sc->at < in.n) {
        uint8_t c = (uint8_t)in.p[sc->at++];
        bool after_cr = sc->at - sc->line >= 2 && in.p[sc->at - 2] == '\r';
        bool done = false;

        if (after_cr != (c == '\n')) {
            return h1_bad(f, 400, after_cr ? "bare CR" : "bare LF");
        }
        if (c != '\r' && c != '\n' && !h1_is_text(c)) {
            return h1_bad(f, 400, "control character in the head");
        }
        if (c == '\n' && scan_line_end(sc, sc->at, lim, &done, f) == H1_BAD) {
            return H1_BAD;
        }
        if (scan_bounds(sc, lim, request, f) == H1_BAD) {
            return H1_BAD;
        }
        if (done) {
            return H1_OK;
        }
    }
    return H1_MORE;
}

/* ---- fields ---- */

/* Cuts the next CRLF-ended line off *rest. The scan has proved that there is one. */
static struct str next_line(struct str *rest)
{
    const char *end = memchr(rest->p, '\r', rest->n);
    struct str line = str_of(rest->p, (size_t)(end - rest->p));

    *rest = str_of(end + 2, rest->n - line.n - 2);
    return line;
}

static void lower(struct str s)
{
    char *p = (char *)(uintptr_t)s.p; /* our own copy, in the arena */

    for (size_t i = 0; i < s.n; i++) {
        if (p[i] >= 'A' && p[i] <= 'Z') {
            p[i] = (char)(p[i] | 0x20);
        }
    }
}

static enum h1_result parse_field(struct str line, struct http_field *out, struct h1_fault *f)
{
    if (line.p[0] == ' ' || line.p[0] == '\t') {
        return h1_bad(f, 400, "folded field line");
    }
    if (!str_cut(line, ':', &out->name, &out->value)) {
        return h1_bad(f, 400, "field line without a colon");
    }
    if (!h1_is_token(out->name)) {
        return h1_bad(f, 400, "bad field name");
    }
    lower(out->name);
    out->value = str_trim(out->value);
    return H1_OK;
}

/* rest: the field lines and the empty line. */
static enum h1_result parse_fields(struct str rest, uint32_t lines, const struct h1_limits *lim,
                                   struct arena *a, struct http_fields *out, struct h1_fault *f)
{
    size_t cost = 0;

    out->n = 0;
    out->v = arena_array(a, size_max(lines, 1), sizeof(*out->v));
    if (out->v == NULL) {
        return h1_bad(f, 431, "no memory left for the head");
    }
    for (uint32_t i = 0; i < lines; i++) {
        struct http_field *field = &out->v[i];

        if (parse_field(next_line(&rest), field, f) == H1_BAD) {
            return H1_BAD;
        }
        cost += field->name.n + field->value.n + FIELD_COST;
        out->n++;
    }
    if (cost > lim->header_bytes_max) {
        return h1_bad(f, 431, "fields too large");
    }
    return H1_OK;
}

/* Content-Length: one field, digits only. Lists of equal values are legal to merge (RFC 9112
 * section 6.3) but no honest client sends them. */
static enum h1_result parse_length(const struct http_fields *fields, int64_t *out,
                                   struct h1_fault *f)
{
    struct str value = http_field(fields, STR("content-length"));
    uint32_t n = http_field_count(fields, STR("content-length"));
    uint64_t length;

    *out = -1;
    if (n == 0) {
        return H1_OK;
    }
    if (n > 1) {
        return h1_bad(f, 400, "more than one content-length");
    }
    for (size_t i = 0; i < value.n; i++) {
        if (value.p[i] < '0' || value.p[i] > '9') {
            return h1_bad(f, 400, "bad content-length");
        }
    }
    if (value.n > LENGTH_DIGITS_MAX || !str_u64(value, &length) || length > INT64_MAX) {
        return h1_bad(f, 400, "bad content-length");
    }
    *out = (int64_t)length;
    return H1_OK;
}

/* Transfer-Encoding: absent, or exactly one `chunked`, and then no Content-Length. */
static enum h1_result parse_coding(const struct http_fields *fields, unsigned minor, bool *chunked,
                                   struct h1_fault *f)
{
    struct str value = http_field(fields, STR("transfer-encoding"));
    uint32_t n = http_field_count(fields, STR("transfer-encoding"));

    *chunked = n != 0;
    if (n == 0) {
        return H1_OK;
    }
    if (http_field_count(fields, STR("content-length")) != 0) {
        return h1_bad(f, 400, "content-length beside transfer-encoding");
    }
    if (minor == 0) {
        return h1_bad(f, 400, "transfer-encoding in HTTP/1.0");
    }
    if (n > 1) {
        return h1_bad(f, 400, "more than one transfer-encoding");
    }
    if (str_ieq(value, STR("chunked"))) {
        return H1_OK;
    }
    /* Without a final chunked the body's end is unknown; with one, we lack the coding before it. */
    lower(value);
    if (str_ends(value, STR("chunked")) && str_find(value, STR("chunked")) == value.n - 7 &&
        value.n > 7 && (value.p[value.n - 8] == ',' || value.p[value.n - 8] == ' ')) {
        return h1_bad(f, 501, "transfer-encoding other than chunked");
    }
    return h1_bad(f, 400, "bad transfer-encoding");
}

static bool connection_says(const struct http_fields *fields, struct str word)
{
    for (uint32_t i = 0; i < fields->n; i++) {
        struct str rest = fields->v[i].value, token;
        bool more = str_eq(fields->v[i].name, STR("connection"));

        while (more) {
            more = str_cut(rest, ',', &token, &rest);
            if (str_ieq(str_trim(token), word)) {
                return true;
            }
        }
    }
    return false;
}

/* ---- requests ---- */

/* uri-host [":" port]: no userinfo, no path, no spaces. */
static bool is_host(struct str s)
{
    size_t i = 0;

    if (s.n != 0 && s.p[0] == '[') {
        for (i = 1; i < s.n && s.p[i] != ']'; i++) {
            if (strchr("0123456789abcdefABCDEF:.", s.p[i]) == NULL) {
                return false;
            }
        }
        if (i >= s.n || i < 3) {
            return false;
        }
        i++;
    } else {
        while (i < s.n && s.p[i] != ':') {
            uint8_t c = (uint8_t)s.p[i];

            /* unreserved, pct-encoded and sub-delims of RFC 3986, less what no host name has */
            if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  c == '-' || c == '.' || c == '_' || c == '~' || c == '%')) {
                return false;
            }
            i++;
        }
        if (i == 0) {
            return false;
        }
    }
    if (i == s.n) {
        return true;
    }
    if (s.p[i] != ':' || s.n - i - 1 > 5) {
        return false;
    }
    for (i++; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9') {
            return false;
        }
    }
    return true;
}

/* Splits "http://host/path" (RFC 9112 section 3.2.2); false: not in that form. */
static bool target_absolute(struct str target, struct str *host, struct str *path)
{
    struct str scheme, rest;
    size_t slash = 0;

    if (!str_cut(target, ':', &scheme, &rest) || !str_starts(rest, STR("//")) ||
        (!str_ieq(scheme, STR("http")) && !str_ieq(scheme, STR("https")))) {
        return false;
    }
    rest = str_of(rest.p + 2, rest.n - 2);
    while (slash < rest.n && rest.p[slash] != '/' && rest.p[slash] != '?') {
        slash++;
    }
    *host = str_of(rest.p, slash);
    *path = str_of(rest.p + slash, rest.n - slash);
    /* "http://host" without its slash is legal, and sent by nobody. */
    return is_host(*host) && path->n != 0 && path->p[0] == '/';
}

static enum h1_result parse_target(struct str target, struct http_head *head, struct h1_fault *f)
{
    struct str path = target;

    for (size_t i = 0; i < target.n; i++) {
        uint8_t c = (uint8_t)target.p[i];

        if (c <= 0x20 || c >= 0x7f || c == '#') {
            return h1_bad(f, 400, "bad character in the target");
        }
    }
    if (target.n == 0 || (target.p[0] != '/' && !target_absolute(target, &head->host, &path))) {
        return h1_bad(f, 400, "target is neither a path nor an absolute URI");
    }
    str_cut(path, '?', &head->path, &head->query);
    return H1_OK;
}

static enum h1_result parse_version(struct str version, unsigned *minor, struct h1_fault *f)
{
    if (version.n != 8 || !str_starts(version, STR("HTTP/")) || version.p[6] != '.' ||
        version.p[5] < '0' || version.p[5] > '9' || version.p[7] < '0' || version.p[7] > '9') {
        return h1_bad(f, 400, "bad version");
    }
    if (version.p[5] != '1' || version.p[7] > '1') {
        return h1_bad(f, 505, "neither HTTP/1.1 nor HTTP/1.0");
    }
    *minor = (unsigned)(version.p[7] - '0');
    return H1_OK;
}

static enum h1_result parse_request_line(struct str line, struct h1_request *r, struct h1_fault *f)
{
    struct str method, target, version, rest;

    if (line.n > H1_LINE_MAX) {
        return h1_bad(f, 414, "request line too long");
    }
    if (!str_cut(line, ' ', &method, &rest) || !str_cut(rest, ' ', &target, &version)) {
        return h1_bad(f, 400, "request line needs method, target and version");
    }
    if (!h1_is_token(method) || method.n > METHOD_MAX) {
        return h1_bad(f, 400, "bad method");
    }
    r->head.method_text = method;
    r->head.method = http_method_named(method);
    if (parse_version(version, &r->minor, f) == H1_BAD) {
        return H1_BAD;
    }
    return parse_target(target, &r->head, f);
}

static enum h1_result parse_host(struct h1_request *r, struct h1_fault *f)
{
    uint32_t n = http_field_count(&r->head.fields, STR("host"));
    struct str host = http_field(&r->head.fields, STR("host"));

    if (n > 1) {
        return h1_bad(f, 400, "more than one host");
    }
    if (n == 0) {
        return r->minor == 0 ? H1_OK : h1_bad(f, 400, "no host");
    }
    if (!is_host(host)) {
        return h1_bad(f, 400, "bad host");
    }
    if (r->head.host.n != 0 && !str_ieq(r->head.host, host)) {
        return h1_bad(f, 400, "host differs from the target's");
    }
    r->head.host = host;
    return H1_OK;
}

static enum h1_result parse_request_framing(struct h1_request *r, struct h1_fault *f)
{
    struct str expect = http_field(&r->head.fields, STR("expect"));
    bool chunked;

    if (parse_length(&r->head.fields, &r->head.content_length, f) == H1_BAD ||
        parse_coding(&r->head.fields, r->minor, &chunked, f) == H1_BAD) {
        return H1_BAD;
    }
    r->framing = chunked ? H1_CHUNKED : r->head.content_length >= 0 ? H1_LENGTH : H1_NO_BODY;
    r->head.body = r->framing != H1_NO_BODY;
    r->keep_alive = r->minor == 1 && !connection_says(&r->head.fields, STR("close"));
    if (expect.p != NULL && r->minor == 1) {
        if (!str_ieq(expect, STR("100-continue"))) {
            return h1_bad(f, 417, "unknown expectation");
        }
        r->head.expect_continue = r->head.body;
    }
    return H1_OK;
}

/* Copies the scanned head, so that names can be lowered and slices outlive the input. The leading
 * empty line is left out. */
static bool copy_head(const struct h1_scan *sc, struct str in, struct arena *a, struct str *out)
{
    size_t skip = sc->first > 2 && in.p[0] == '\r' ? LEADING_CRLF : 0;

    *out = arena_str(a, str_of(in.p + skip, sc->at - skip));
    return out->p != NULL;
}

enum h1_result h1_parse_request(struct h1_scan *scan, struct str in, const struct h1_limits *lim,
                                struct arena *a, struct h1_request *out, struct h1_fault *fault)
{
    enum h1_result got = scan_head(scan, in, lim, true, fault);
    struct str rest;

    if (got != H1_OK) {
        return got;
    }
    memset(out, 0, sizeof(*out));
    out->bytes = scan->at;
    if (!copy_head(scan, in, a, &rest)) {
        return h1_bad(fault, 431, "no memory left for the head");
    }
    if (parse_request_line(next_line(&rest), out, fault) == H1_BAD ||
        parse_fields(rest, scan->lines, lim, a, &out->head.fields, fault) == H1_BAD ||
        parse_host(out, fault) == H1_BAD) {
        return H1_BAD;
    }
    return parse_request_framing(out, fault);
}

/* ---- responses ---- */

/* "HTTP/1.1 200 OK"; the reason, and the space before it, may be missing. */
static enum h1_result parse_status_line(struct str line, struct h1_response *r, unsigned *minor,
                                        struct h1_fault *f)
{
    unsigned status = 0;

    if (line.n < 12 || line.p[8] != ' ' || (line.n > 12 && line.p[12] != ' ')) {
        return h1_bad(f, 400, "bad status line");
    }
    if (parse_version(str_of(line.p, 8), minor, f) == H1_BAD) {
        return H1_BAD;
    }
    for (int i = 9; i < 12; i++) {
        if (line.p[i] < '0' || line.p[i] > '9') {
            return h1_bad(f, 400, "bad status");
        }
        status = status * 10 + (unsigned)(line.p[i] - '0');
    }
    if (status < 100 || status > 599 || status == 101) {
        return h1_bad(f, 400, "bad status");
    }
    r->status = status;
    return H1_OK;
}

static enum h1_result parse_response_framing(struct h1_response *r, unsigned minor,
                                             enum http_method asked, struct h1_fault *f)
{
    bool bodiless = asked == HTTP_HEAD || r->status < 200 || r->status == 204 || r->status == 304;
    bool chunked;

    if (parse_length(&r->fields, &r->content_length, f) == H1_BAD ||
        parse_coding(&r->fields, minor, &chunked, f) == H1_BAD) {
        return H1_BAD;
    }
    r->framing = bodiless                 ? H1_NO_BODY
                 : chunked                ? H1_CHUNKED
                 : r->content_length >= 0 ? H1_LENGTH
                                          : H1_CLOSE;
    r->keep_alive =
        minor == 1 && r->framing != H1_CLOSE && !connection_says(&r->fields, STR("close"));
    return H1_OK;
}

enum h1_result h1_parse_response(struct h1_scan *scan, struct str in, const struct h1_limits *lim,
                                 enum http_method asked, struct arena *a, struct h1_response *out,
                                 struct h1_fault *fault)
{
    enum h1_result got;
    struct str rest;
    unsigned minor = 0;

    scan->started = true; /* no empty line may stand before a status line */
    got = scan_head(scan, in, lim, false, fault);
    if (got != H1_OK) {
        return got;
    }
    memset(out, 0, sizeof(*out));
    out->bytes = scan->at;
    if (!copy_head(scan, in, a, &rest)) {
        return h1_bad(fault, 431, "no memory left for the head");
    }
    if (parse_status_line(next_line(&rest), out, &minor, fault) == H1_BAD ||
        parse_fields(rest, scan->lines, lim, a, &out->fields, fault) == H1_BAD) {
        return H1_BAD;
    }
    return parse_response_framing(out, minor, asked, fault);
}
