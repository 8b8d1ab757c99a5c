/* h2_block.c - header fields of one h2 message: counted, kept in one piece, checked, made a head.
 */
#include "base/net/h2_block.h"

/* Past this many times its bounds a block is an attack (CVE-2026-49975), not a long cookie. */
#define BLOCK_BOMB_FACTOR 4
#define FIELD_OVERHEAD 32 /* RFC 9113 section 6.5.2 */

struct record {
    uint32_t name_n, value_n;
};

void h2_block_begin(struct h2_block *b, const struct http_limits *lim, uint32_t count,
                    uint32_t bytes)
{
    buf_fini(&b->records);
    buf_init(&b->records,
             lim->header_bytes_max + (size_t)lim->header_count_max * sizeof(struct record));
    b->count = count;
    b->bytes = bytes;
    b->large = false;
    b->status = 0;
}

void h2_block_end(struct h2_block *b)
{
    buf_fini(&b->records);
}

enum h2_verdict h2_block_add(struct h2_block *b, const struct http_limits *lim, struct str name,
                             struct str value, bool keep)
{
    struct record r = {(uint32_t)name.n, (uint32_t)value.n};
    uint64_t bytes = (uint64_t)b->bytes + name.n + value.n + FIELD_OVERHEAD;

    b->count++;
    b->bytes = (uint32_t)u64_min(bytes, UINT32_MAX);
    if (b->count > BLOCK_BOMB_FACTOR * lim->header_count_max ||
        bytes > (uint64_t)BLOCK_BOMB_FACTOR * lim->header_bytes_max) {
        return H2_BLOCK_BOMB;
    }
    if (b->count > lim->header_count_max || bytes > lim->header_bytes_max) {
        b->large = true;
        h2_block_end(b); /* nothing of it will be used */
        return H2_BLOCK_LARGE;
    }
    if (keep && !b->large) {
        buf_append(&b->records, &r, sizeof(r));
        buf_str(&b->records, name);
        buf_str(&b->records, value);
    }
    return H2_BLOCK_FINE;
}

/* ---- the head ---- */

struct pseudo {
    struct str method, path, authority;
};

/* Copies the records into one piece: fields first, then their bytes. */
static bool head_copy(struct h2_block *b, struct http_stream *s, struct pseudo *pseudo)
{
    struct str in = buf_view(&b->records);
    size_t fields = (size_t)b->count * sizeof(struct http_field);
    struct http_field *v = mem_resize(NULL, fields + in.n);
    char *to = (char *)v + fields;

    if (v == NULL) {
        return false;
    }
    s->head_memory = v;
    s->head.fields.v = v;
    while (in.n != 0) {
        struct record r;
        struct str name, value;

        memcpy(&r, in.p, sizeof(r));
        memcpy(to, in.p + sizeof(r), (size_t)r.name_n + r.value_n);
        name = str_of(to, r.name_n);
        value = str_trim(str_of(to + r.name_n, r.value_n));
        to += (size_t)r.name_n + r.value_n;
        in = str_of(in.p + sizeof(r) + r.name_n + r.value_n,
                    in.n - sizeof(r) - r.name_n - r.value_n);
        if (name.p[0] != ':') {
            v[s->head.fields.n++] = (struct http_field){name, value};
        } else if (str_eq(name, STR(":method"))) {
            pseudo->method = value;
        } else if (str_eq(name, STR(":path"))) {
            pseudo->path = value;
        } else if (str_eq(name, STR(":authority"))) {
            pseudo->authority = value;
        }
    }
    return true;
}

static bool path_is_sound(struct str path)
{
    for (size_t i = 0; i < path.n; i++) {
        unsigned char c = (unsigned char)path.p[i];

        if (c <= ' ' || c >= 0x7f || c == '#') {
            return false;
        }
    }
    return path.n != 0;
}

static bool authority_is_sound(const struct http_head *head, struct str authority)
{
    uint32_t hosts = http_field_count(&head->fields, STR("host"));
    struct str host = http_field(&head->fields, STR("host"));

    if (hosts > 1 || (hosts == 1 && authority.n != 0 && !str_ieq(host, authority))) {
        return false;
    }
    return memchr(head->host.p, '@', head->host.n) == NULL;
}

static bool head_length(struct http_head *head)
{
    struct str text = http_field(&head->fields, STR("content-length"));

    head->content_length = -1;
    if (text.p == NULL) {
        return true;
    }
    return http_field_count(&head->fields, STR("content-length")) == 1 &&
           str_i64(text, &head->content_length) && head->content_length >= 0;
}

static enum h2_verdict refuse(struct h2_block *b, unsigned status)
{
    b->status = status;
    return H2_BLOCK_REFUSED;
}

enum h2_verdict h2_block_head(struct h2_block *b, bool end_stream, struct http_stream *s)
{
    struct http_head *head = &s->head;
    struct pseudo pseudo = {0};
    struct str expect;

    if (b->records.failed || !head_copy(b, s, &pseudo)) {
        return H2_BLOCK_NO_MEMORY;
    }
    head->h2 = true;
    head->body = !end_stream;
    head->method_text = pseudo.method;
    head->method = http_method_named(pseudo.method);
    head->host =
        pseudo.authority.n != 0 ? pseudo.authority : http_field(&head->fields, STR("host"));
    if (str_eq(pseudo.method, STR("CONNECT"))) {
        return refuse(b, 501);
    }
    if (!path_is_sound(pseudo.path) || head->host.n == 0 ||
        !authority_is_sound(head, pseudo.authority) || !head_length(head)) {
        return H2_BLOCK_MALFORMED;
    }
    if (pseudo.path.p[0] != '/') {
        return refuse(b, 400); /* "OPTIONS *" */
    }
    (void)str_cut(pseudo.path, '?', &head->path, &head->query);
    expect = http_field(&head->fields, STR("expect"));
    if (expect.p != NULL && !str_ieq(expect, STR("100-continue"))) {
        return refuse(b, 417);
    }
    head->expect_continue = expect.p != NULL && head->body;
    return H2_BLOCK_FINE;
}
