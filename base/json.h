/* json.h - strict JSON (RFC 8259): one pass into a tree that lives in an arena, and a writer.
 *
 * Refused with a story and an offset: malformed or truncated text, duplicate keys in any object,
 * depth past the limit, invalid UTF-8, raw control characters in strings (NUL too), numbers that
 * are not JSON (NaN, Infinity, 01, 1.), overflow a double or pass 512 bytes. Accepted: one BOM at
 * the start, \u0000, lone surrogate escapes (become U+FFFD). Iterative: depth costs no stack.
 * Numbers keep their text, so int64 seeds survive re-serialisation. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"

enum json_type {
    JSON_NULL = 1,
    JSON_FALSE,
    JSON_TRUE,
    JSON_NUMBER, /* text holds the literal */
    JSON_STRING, /* text holds the unescaped bytes, valid UTF-8, maybe with NUL inside */
    JSON_ARRAY,
    JSON_OBJECT,
};

struct json {
    enum json_type type;
    struct str text; /* number literal or string bytes; borrowed from the arena or the input. Of an
                      * array or object: its source, or {NULL, 0} when it holds a lone surrogate
                      * (so that the source says something else than the tree) or was changed */
    struct str key;  /* member name when the parent is an object */
    struct json *child; /* first element or member; NULL when empty */
    struct json *next;  /* next sibling, in document order */
    uint32_t count;     /* children */
};

struct json_limits {
    uint32_t depth_max;  /* containers inside one another; 128 for API bodies */
    uint32_t values_max; /* values in the document: bounds memory; 1,000,000 for API bodies */
};

extern const struct json_limits json_limits_api; /* {128, 1000000} */

/* The input must outlive the tree (escape-free strings point into it). NULL with a story otherwise.
 */
struct json *json_parse(struct arena *a, struct str text, const struct json_limits *lim,
                        struct err *e);

struct json *json_get(const struct json *object,
                      struct str key); /* NULL: absent or not an object */
/* The same for several keys in one walk: out[i] is the member keys[i], or NULL. At most 32. */
void json_pick(const struct json *object, const struct str *keys, struct json **out, size_t n);
/* Absent, or null, counts as absent. */
bool json_is_absent(const struct json *v);
MUST_USE bool json_i64(const struct json *v,
                       int64_t *out); /* integer literals (1.0 and 1e2 too) in range */
MUST_USE bool json_f64(const struct json *v, double *out);

/* Re-serialises canonically: no spaces, shortest escapes, members in document order, or sorted
 * bytewise by key at every level. No memory for the walk fails the buffer too. */
enum json_order { JSON_ORDER_DOCUMENT = 1, JSON_ORDER_SORTED };
void json_write(struct buf *b, const struct json *v, enum json_order order);
void json_write_string(struct buf *b,
                       struct str s); /* quotes and escapes; bad UTF-8 becomes U+FFFD */

/* A writer that keeps track of commas. Depth is bounded by JW_DEPTH_MAX (CHECKed: our own output).
 */
#define JW_DEPTH_MAX 32
struct json_writer {
    struct buf *out; /* borrowed */
    unsigned depth;
    bool comma[JW_DEPTH_MAX];
    bool after_key;
};
void jw_init(struct json_writer *w, struct buf *out);
void jw_object(struct json_writer *w);
void jw_end_object(struct json_writer *w);
void jw_array(struct json_writer *w);
void jw_end_array(struct json_writer *w);
void jw_key(struct json_writer *w, struct str key);
void jw_str(struct json_writer *w, struct str v);
void jw_c(struct json_writer *w, const char *z); /* NULL writes null */
void jw_i64(struct json_writer *w, int64_t v);
void jw_u64(struct json_writer *w, uint64_t v);
void jw_f64(struct json_writer *w,
            double v); /* 17 significant digits at most; not finite -> null */
void jw_bool(struct json_writer *w, bool v);
void jw_null(struct json_writer *w);
void jw_value(struct json_writer *w, const struct json *v); /* a parsed subtree, document order */
/* The same value in its sender's own spelling: an array or object is copied from its source. The
 * parser was strict, so both spellings have one reading. */
void jw_source(struct json_writer *w, const struct json *v);
void jw_raw(struct json_writer *w, struct str json); /* already JSON */
/* key and value in one call */
void jw_kstr(struct json_writer *w, const char *key, struct str v);
void jw_kc(struct json_writer *w, const char *key, const char *z);
void jw_ki64(struct json_writer *w, const char *key, int64_t v);
void jw_ku64(struct json_writer *w, const char *key, uint64_t v);
void jw_kbool(struct json_writer *w, const char *key, bool v);
void jw_knull(struct json_writer *w, const char *key);

#endif
