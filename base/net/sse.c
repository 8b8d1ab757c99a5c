/* sse.c - lines out of bytes, events out of lines (WHATWG HTML, section 9.2.6). */
#include "base/net/sse.h"

/* "event: " and the like beside the data of one line. */
#define LINE_EXTRA 64

void sse_init(struct sse_reader *r, size_t event_bytes_max)
{
    *r = (struct sse_reader){.cr = false};
    buf_init(&r->line, event_bytes_max + LINE_EXTRA);
    buf_init(&r->data, event_bytes_max);
}

void sse_fini(struct sse_reader *r)
{
    buf_fini(&r->line);
    buf_fini(&r->data);
}

/* The empty line: hands the event out and starts the next. An event without data is none. */
static bool sse_dispatch(struct sse_reader *r,
                         bool (*each)(void *ctx, const char *event, struct str data), void *ctx)
{
    bool go_on = !r->data_seen || each(ctx, r->event, buf_view(&r->data));

    buf_reset(&r->data);
    r->event[0] = '\0';
    r->data_seen = false;
    return go_on;
}

/* false: the event passed its bound. */
static bool sse_field(struct sse_reader *r, struct str line)
{
    struct str name, value;

    str_cut(line, ':', &name, &value);
    if (value.n != 0 && value.p[0] == ' ') {
        value = str_of(value.p + 1, value.n - 1);
    }
    if (str_eq(name, STR("data"))) {
        if (r->data_seen) {
            buf_byte(&r->data, '\n');
        }
        buf_str(&r->data, value);
        r->data_seen = true;
        return !r->data.failed;
    }
    if (str_eq(name, STR("event"))) {
        str_copy(value, r->event, sizeof(r->event));
    }
    return true; /* comments have an empty name; id, retry and unknown fields are ignored */
}

/* Bytes before the first CR or LF; s.n when there is none. */
static size_t line_length(struct str s)
{
    const char *lf = s.n != 0 ? memchr(s.p, '\n', s.n) : NULL;
    size_t n = lf != NULL ? (size_t)(lf - s.p) : s.n;
    const char *cr = n != 0 ? memchr(s.p, '\r', n) : NULL;

    return cr != NULL ? (size_t)(cr - s.p) : n;
}

bool sse_feed(struct sse_reader *r, const void *p, size_t n,
              bool (*each)(void *ctx, const char *event, struct str data), void *ctx)
{
    struct str in = str_of(p, n);

    while (in.n != 0) {
        struct str line;
        bool ok;

        if (r->cr && in.p[0] == '\n') { /* the second half of a CRLF */
            in = str_of(in.p + 1, in.n - 1);
            r->cr = false;
            continue;
        }
        r->cr = false;
        line = str_of(in.p, line_length(in));
        if (line.n > r->line.max - r->line.len) {
            return false; /* the same answer, however the line was split */
        }
        if (line.n == in.n || r->line.len != 0) { /* a line that comes in pieces is gathered */
            buf_str(&r->line, line);
            if (r->line.failed) {
                return false;
            }
        }
        if (line.n == in.n) {
            return true;
        }
        r->cr = in.p[line.n] == '\r';
        in = str_of(in.p + line.n + 1, in.n - line.n - 1);
        line = r->line.len != 0 ? buf_view(&r->line) : line;
        ok = line.n == 0 ? sse_dispatch(r, each, ctx) : sse_field(r, line);
        buf_reset(&r->line);
        if (!ok) {
            return false;
        }
    }
    return true;
}

bool sse_is_clean(const struct sse_reader *r)
{
    return r->line.len == 0 && !r->data_seen && r->event[0] == '\0';
}
