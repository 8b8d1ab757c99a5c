/* sim_http.c - see sim_http.h. */
#include "sim_http.h"

#define HEAD_BYTES_MAX 65536
#define BODY_BYTES_MAX ((size_t)16 << 20)
#define CHUNK_LINE_MAX 64

void http_in_init(struct http_in *in, bool is_answer)
{
    *in = (struct http_in){.at = HTTP_IN_HEAD, .is_answer = is_answer};
    buf_init(&in->raw, BODY_BYTES_MAX);
    buf_init(&in->head, HEAD_BYTES_MAX);
    buf_init(&in->body, BODY_BYTES_MAX);
}

void http_in_fini(struct http_in *in)
{
    buf_fini(&in->raw);
    buf_fini(&in->head);
    buf_fini(&in->body);
}

bool http_in_start(const struct http_in *in, struct str *method, struct str *target)
{
    struct str line, rest;

    return str_cut(buf_view(&in->head), '\r', &line, &rest) && str_cut(line, ' ', method, &rest) &&
           str_cut(rest, ' ', target, &rest);
}

struct str http_in_field(const struct http_in *in, const char *name)
{
    struct str rest = buf_view(&in->head), line, key, value;

    while (str_cut(rest, '\n', &line, &rest)) {
        if (line.n > 0 && line.p[line.n - 1] == '\r') {
            line.n--;
        }
        if (str_cut(line, ':', &key, &value) && str_ieq(key, str_c(name))) {
            return str_trim(value);
        }
    }
    return (struct str){NULL, 0};
}

static void head_done(struct http_in *in)
{
    struct str length = http_in_field(in, "content-length"),
               coding = http_in_field(in, "transfer-encoding");
    struct str line, rest;
    uint64_t status = 0;

    if (in->is_answer) {
        if (!str_cut(buf_view(&in->head), '\r', &line, &rest) ||
            !str_starts(line, STR("HTTP/1.1 ")) || line.n < 12 ||
            !str_u64(str_of(line.p + 9, 3), &status)) {
            in->at = HTTP_IN_BROKEN;
            return;
        }
        in->status = (unsigned)status;
    }
    if (coding.p != NULL && length.p != NULL) {
        in->at = HTTP_IN_BROKEN;
    } else if (coding.p != NULL) {
        in->at = str_ieq(coding, STR("chunked")) ? HTTP_IN_CHUNK_SIZE : HTTP_IN_BROKEN;
    } else if (length.p != NULL) {
        in->at = str_u64(length, &in->left) ? HTTP_IN_LENGTH : HTTP_IN_BROKEN;
    } else if (in->is_answer && in->status / 100 == 1) {
        buf_reset(&in->head);
        in->at = HTTP_IN_HEAD;
    } else {
        in->left = in->is_answer ? UINT64_MAX : 0;
        in->at = HTTP_IN_LENGTH;
    }
}

static bool step_head(struct http_in *in)
{
    size_t end = str_find(buf_view(&in->raw), STR("\r\n\r\n"));

    if (end == SIZE_MAX) {
        return false;
    }
    buf_append(&in->head, buf_view(&in->raw).p, end + 2);
    buf_consume(&in->raw, end + 4);
    head_done(in);
    return true;
}

static bool step_bytes(struct http_in *in, enum http_in_at then)
{
    size_t n = (size_t)u64_min(in->left, in->raw.len);

    buf_append(&in->body, buf_view(&in->raw).p, n);
    buf_consume(&in->raw, n);
    in->left -= n;
    if (in->left == 0) {
        in->at = then;
        return true;
    }
    return false;
}

/* A line up to CRLF, taken off raw; false: not whole yet. */
static bool take_line(struct http_in *in, char out[CHUNK_LINE_MAX])
{
    size_t end = str_find(buf_view(&in->raw), STR("\r\n"));

    if (end == SIZE_MAX) {
        return false;
    }
    if (end >= CHUNK_LINE_MAX) {
        in->at = HTTP_IN_BROKEN;
        return false;
    }
    str_copy(str_of(buf_view(&in->raw).p, end), out, CHUNK_LINE_MAX);
    buf_consume(&in->raw, end + 2);
    return true;
}

static bool step_size(struct http_in *in)
{
    char line[CHUNK_LINE_MAX];

    if (!take_line(in, line)) {
        return false;
    }
    in->left = 0;
    for (const char *c = line; *c != '\0'; c++) {
        int d = *c >= '0' && *c <= '9'   ? *c - '0'
                : *c >= 'a' && *c <= 'f' ? *c - 'a' + 10
                : *c >= 'A' && *c <= 'F' ? *c - 'A' + 10
                                         : -1;

        if (d < 0) {
            in->at = HTTP_IN_BROKEN;
            return false;
        }
        in->left = in->left * 16 + (uint64_t)d;
    }
    in->at = line[0] == '\0' ? HTTP_IN_BROKEN
             : in->left == 0 ? HTTP_IN_TRAILER
                             : HTTP_IN_CHUNK_DATA;
    return true;
}

static bool step_line_end(struct http_in *in, enum http_in_at then)
{
    char line[CHUNK_LINE_MAX];

    if (!take_line(in, line)) {
        return false;
    }
    in->at = line[0] == '\0' ? then : in->at == HTTP_IN_TRAILER ? HTTP_IN_TRAILER : HTTP_IN_BROKEN;
    return true;
}

static bool step(struct http_in *in)
{
    switch (in->at) {
    case HTTP_IN_HEAD:
        return step_head(in);
    case HTTP_IN_LENGTH:
        return step_bytes(in, HTTP_IN_DONE);
    case HTTP_IN_CHUNK_SIZE:
        return step_size(in);
    case HTTP_IN_CHUNK_DATA:
        return step_bytes(in, HTTP_IN_CHUNK_END);
    case HTTP_IN_CHUNK_END:
        return step_line_end(in, HTTP_IN_CHUNK_SIZE);
    case HTTP_IN_TRAILER:
        return step_line_end(in, HTTP_IN_DONE);
    case HTTP_IN_DONE:
    case HTTP_IN_BROKEN:
        return false;
    }
    return false;
}

void http_in_feed(struct http_in *in, const void *p, size_t n)
{
    buf_append(&in->raw, p, n);
    while (step(in)) {
    }
    CHECK(!in->raw.failed && !in->body.failed);
}

void http_in_next(struct http_in *in)
{
    CHECK(in->at == HTTP_IN_DONE);
    buf_reset(&in->head);
    buf_reset(&in->body);
    in->at = HTTP_IN_HEAD;
    in->status = 0;
    http_in_feed(in, NULL, 0);
}
