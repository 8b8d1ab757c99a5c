/* json_write.c - JSON out: a tree re-serialised canonically, and a writer that minds the commas.
 *
 * Bounds and failures are the buffer's: a write that does not fit sets buf.failed. */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json_text.h"
#include "base/json_utf8.h"

/* ---- strings ---- */

/* Bytes that stand for themselves: 0. Otherwise the letter after the backslash, 'u' for \u00XX,
 * or 'x' for the first byte of a UTF-8 sequence. */
static const char escapes[256] = {
    [0x00 ... 0x07] = 'u', ['\b'] = 'b',  ['\t'] = 't',          ['\n'] = 'n',
    [0x0B] = 'u',          ['\f'] = 'f',  ['\r'] = 'r',          [0x0E ... 0x1F] = 'u',
    ['"'] = '"',           ['\\'] = '\\', [0x80 ... 0xFF] = 'x',
};

/* The byte or bad sequence at p, which is not plain. Returns how many bytes that was. */
static size_t write_escape(struct buf *b, const uint8_t *p, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    char text[6] = {'\\', escapes[p[0]], '0', '0', hex[p[0] >> 4], hex[p[0] & 15]};

    if (escapes[p[0]] == 'x') {
        buf_c(b, "\xEF\xBF\xBD");
        return (size_t)-json_utf8_at(p, n);
    }
    buf_append(b, text, escapes[p[0]] == 'u' ? 6 : 2);
    return 1;
}

void json_write_string(struct buf *b, struct str s)
{
    const uint8_t *p = (const uint8_t *)s.p;
    size_t i = 0;

    buf_byte(b, '"');
    while (i < s.n) {
        size_t plain = (size_t)(json_skip_plain(p + i, p + s.n) - (p + i));

        buf_append(b, p + i, plain);
        i += plain;
        if (i < s.n) {
            i += write_escape(b, p + i, s.n - i);
        }
    }
    buf_byte(b, '"');
}

/* ---- trees ---- */

/* One container being written. */
struct level {
    const struct json *container;
    const struct json *next; /* document order: the child to write next */
    size_t sorted_from;      /* sorted order: members left are sorted[sorted_from ..] */
    bool begun;              /* a child was written: the next needs a comma */
};

/* The heap holds the walk, so a deep tree costs no stack. Bounded by the tree, which the limits of
 * its parser bounded. */
struct walk {
    struct buf *out;      /* borrowed */
    struct level *levels; /* owned: open containers, innermost last */
    size_t depth, levels_cap;
    const struct json **sorted; /* owned: members left of open objects, each in falling order */
    size_t sorted_len, sorted_cap;
    enum json_order order;
};

/* Room for `count` items of `size`, or false without memory. */
static bool walk_room(void **array, size_t *cap, size_t count, size_t size)
{
    size_t want = size_max(size_max(count, *cap * 2), 32);
    void *grown;

    if (count <= *cap) {
        return true;
    }
    grown = mem_resize(*array, want * size);
    if (grown == NULL) {
        return false;
    }
    *array = grown;
    *cap = want;
    return true;
}

static int falling_order(const void *a, const void *b)
{
    const struct json *const *x = a, *const *y = b;

    return str_cmp((*y)->key, (*x)->key);
}

static bool walk_sort(struct walk *w, const struct json *object)
{
    void *array = (void *)w->sorted;
    size_t from = w->sorted_len;

    if (!walk_room(&array, &w->sorted_cap, from + object->count, sizeof(*w->sorted))) {
        return false;
    }
    w->sorted = array;
    for (const struct json *m = object->child; m != NULL; m = m->next) {
        CHECK(w->sorted_len < w->sorted_cap);
        w->sorted[w->sorted_len++] = m;
    }
    if (object->count > 1) {
        qsort(w->sorted + from, object->count, sizeof(*w->sorted), falling_order);
    }
    return true;
}

static bool walk_open(struct walk *w, const struct json *v)
{
    struct level level = {.container = v, .next = v->child, .sorted_from = w->sorted_len};
    void *array = w->levels;

    if (!walk_room(&array, &w->levels_cap, w->depth + 1, sizeof(*w->levels))) {
        return false;
    }
    w->levels = array;
    w->levels[w->depth++] = level;
    buf_byte(w->out, v->type == JSON_OBJECT ? '{' : '[');
    return v->type != JSON_OBJECT || w->order != JSON_ORDER_SORTED || walk_sort(w, v);
}

/* The next child of the innermost container; NULL: all are written. */
static const struct json *walk_next(struct walk *w)
{
    struct level *l = &w->levels[w->depth - 1];
    const struct json *v = l->next;

    if (l->container->type == JSON_OBJECT && w->order == JSON_ORDER_SORTED) {
        return w->sorted_len > l->sorted_from ? w->sorted[--w->sorted_len] : NULL;
    }
    if (v != NULL) {
        l->next = v->next;
    }
    return v;
}

static void write_scalar(struct buf *b, const struct json *v)
{
    switch (v->type) {
    case JSON_NULL:
        buf_c(b, "null");
        return;
    case JSON_FALSE:
        buf_c(b, "false");
        return;
    case JSON_TRUE:
        buf_c(b, "true");
        return;
    case JSON_NUMBER:
        buf_str(b, v->text);
        return;
    case JSON_STRING:
        json_write_string(b, v->text);
        return;
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    CHECK(false && "not a scalar");
}

static bool walk_value(struct walk *w, const struct json *v)
{
    if (v->type == JSON_ARRAY || v->type == JSON_OBJECT) {
        return walk_open(w, v);
    }
    write_scalar(w->out, v);
    return true;
}

/* One child or one closing bracket. */
static bool walk_step(struct walk *w)
{
    struct level *l = &w->levels[w->depth - 1];
    const struct json *v = walk_next(w);

    if (v == NULL) {
        buf_byte(w->out, l->container->type == JSON_OBJECT ? '}' : ']');
        w->depth--;
        return true;
    }
    if (l->begun) {
        buf_byte(w->out, ',');
    }
    l->begun = true;
    if (l->container->type == JSON_OBJECT) {
        json_write_string(w->out, v->key);
        buf_byte(w->out, ':');
    }
    return walk_value(w, v);
}

void json_write(struct buf *b, const struct json *v, enum json_order order)
{
    struct walk w = {.out = b, .order = order};
    bool ok = walk_value(&w, v);

    while (ok && w.depth > 0 && !b->failed) {
        ok = walk_step(&w);
    }
    if (!ok) {
        b->failed = true;
    }
    mem_free(w.levels);
    mem_free((void *)w.sorted);
}

/* ---- the writer ---- */

void jw_init(struct json_writer *w, struct buf *out)
{
    *w = (struct json_writer){.out = out};
}

/* Before anything that is a value or a key at this level. */
static void jw_comma(struct json_writer *w)
{
    if (w->after_key) {
        w->after_key = false;
        return;
    }
    if (w->comma[w->depth]) {
        buf_byte(w->out, ',');
    }
    w->comma[w->depth] = true;
}

static void jw_open(struct json_writer *w, uint8_t bracket)
{
    jw_comma(w);
    CHECK(w->depth + 1 < JW_DEPTH_MAX);
    w->comma[++w->depth] = false;
    buf_byte(w->out, bracket);
}

static void jw_close(struct json_writer *w, uint8_t bracket)
{
    CHECK(w->depth > 0 && !w->after_key);
    w->depth--;
    buf_byte(w->out, bracket);
}

void jw_object(struct json_writer *w)
{
    jw_open(w, '{');
}

void jw_end_object(struct json_writer *w)
{
    jw_close(w, '}');
}

void jw_array(struct json_writer *w)
{
    jw_open(w, '[');
}

void jw_end_array(struct json_writer *w)
{
    jw_close(w, ']');
}

void jw_key(struct json_writer *w, struct str key)
{
    CHECK(!w->after_key);
    jw_comma(w);
    json_write_string(w->out, key);
    buf_byte(w->out, ':');
    w->after_key = true;
}

void jw_str(struct json_writer *w, struct str v)
{
    jw_comma(w);
    json_write_string(w->out, v);
}

void jw_c(struct json_writer *w, const char *z)
{
    if (z == NULL) {
        jw_null(w);
        return;
    }
    jw_str(w, str_c(z));
}

void jw_i64(struct json_writer *w, int64_t v)
{
    jw_comma(w);
    buf_i64(w->out, v);
}

void jw_u64(struct json_writer *w, uint64_t v)
{
    jw_comma(w);
    buf_u64(w->out, v);
}

/* The shortest of 15, 16 and 17 digits that reads back as the same double. */
void jw_f64(struct json_writer *w, double v)
{
    char text[40];

    if (!isfinite(v)) {
        jw_null(w);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, v);
        if (memcmp(&(double){strtod(text, NULL)}, &v, sizeof(v)) == 0) {
            break;
        }
    }
    jw_comma(w);
    buf_c(w->out, text);
}

void jw_bool(struct json_writer *w, bool v)
{
    jw_comma(w);
    buf_c(w->out, v ? "true" : "false");
}

void jw_null(struct json_writer *w)
{
    jw_comma(w);
    buf_c(w->out, "null");
}

void jw_value(struct json_writer *w, const struct json *v)
{
    jw_comma(w);
    json_write(w->out, v, JSON_ORDER_DOCUMENT);
}

void jw_source(struct json_writer *w, const struct json *v)
{
    if ((v->type == JSON_ARRAY || v->type == JSON_OBJECT) && v->text.p != NULL) {
        jw_raw(w, v->text);
    } else {
        jw_value(w, v);
    }
}

void jw_raw(struct json_writer *w, struct str json)
{
    jw_comma(w);
    buf_str(w->out, json);
}

void jw_kstr(struct json_writer *w, const char *key, struct str v)
{
    jw_key(w, str_c(key));
    jw_str(w, v);
}

void jw_kc(struct json_writer *w, const char *key, const char *z)
{
    jw_key(w, str_c(key));
    jw_c(w, z);
}

void jw_ki64(struct json_writer *w, const char *key, int64_t v)
{
    jw_key(w, str_c(key));
    jw_i64(w, v);
}

void jw_ku64(struct json_writer *w, const char *key, uint64_t v)
{
    jw_key(w, str_c(key));
    jw_u64(w, v);
}

void jw_kbool(struct json_writer *w, const char *key, bool v)
{
    jw_key(w, str_c(key));
    jw_bool(w, v);
}

void jw_knull(struct json_writer *w, const char *key)
{
    jw_key(w, str_c(key));
    jw_null(w);
}
