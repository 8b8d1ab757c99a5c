/* usage_text.c - engines' JSON, read with patience: what is nearly JSON is repaired first. */
#include "gateway/route/usage_impl.h"

#define REPAIR_GROWTH 3 /* one bad byte becomes the three of U+FFFD */

struct repair {
    const char *in;
    size_t n, i;
    char *out;
    size_t len;
    bool in_string, changed;
};

static void put(struct repair *r, const char *bytes, size_t n)
{
    memcpy(r->out + r->len, bytes, n);
    r->len += n;
}

static void copy(struct repair *r, size_t n)
{
    n = size_min(n, r->n - r->i);
    put(r, r->in + r->i, n);
    r->i += n;
}

/* At a byte above 0x7F: a whole character, or U+FFFD for what has begun one. */
static void repair_character(struct repair *r)
{
    uint8_t lead = (uint8_t)r->in[r->i];
    size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;

    if (need <= r->n - r->i && str_utf8_valid(str_of(r->in + r->i, need)) == need) {
        copy(r, need);
        return;
    }
    put(r, "\xEF\xBF\xBD", 3);
    r->changed = true;
    r->i++;
    for (size_t k = 1; k < need && r->i < r->n && ((uint8_t)r->in[r->i] & 0xC0) == 0x80; k++) {
        r->i++;
    }
}

/* Outside strings: the words that C and Python print for what JSON lacks. */
static bool repair_word(struct repair *r)
{
    static const struct {
        struct str word, instead;
    } words[] = {
        {{"-Infinity", 9}, {"-9999.0", 7}},
        {{"Infinity", 8}, {"null", 4}},
        {{"-NaN", 4}, {"null", 4}},
        {{"NaN", 3}, {"null", 4}},
    };

    for (size_t k = 0; k < ARRAY_LEN(words); k++) {
        if (str_starts(str_of(r->in + r->i, r->n - r->i), words[k].word)) {
            put(r, words[k].instead.p, words[k].instead.n);
            r->i += words[k].word.n;
            r->changed = true;
            return true;
        }
    }
    return false;
}

static void repair_step(struct repair *r)
{
    char c = r->in[r->i];

    if ((uint8_t)c >= 0x80) {
        repair_character(r);
    } else if (r->in_string && c == '\\' && r->i + 1 < r->n && (uint8_t)r->in[r->i + 1] < 0x80) {
        copy(r, 2);
    } else if (c == '"') {
        r->in_string = !r->in_string;
        copy(r, 1);
    } else if (r->in_string || (c != 'N' && c != 'I' && c != '-') || !repair_word(r)) {
        copy(r, 1);
    }
}

static bool repair(struct arena *a, struct str text, struct str *out)
{
    struct repair r = {.in = text.p, .n = text.n};

    if (text.n == 0) {
        return false;
    }
    r.out = arena_array(a, text.n, REPAIR_GROWTH);
    if (r.out == NULL) {
        return false;
    }
    while (r.i < r.n) {
        repair_step(&r);
    }
    CHECK(r.len <= text.n * REPAIR_GROWTH);
    *out = str_of(r.out, r.len);
    return r.changed;
}

struct json *usage_parse(struct arena *a, struct str text)
{
    struct json *root;
    struct str fixed;
    struct err e;

    err_clear(&e);
    root = json_parse(a, text, &json_limits_api, &e);
    if (root != NULL || e.code != ERR_INPUT || !repair(a, text, &fixed)) {
        return root;
    }
    err_clear(&e);
    return json_parse(a, fixed, &json_limits_api, &e);
}

struct json *usage_node(struct arena *a, struct json *parent, enum json_type type, struct str key,
                        struct str text)
{
    struct json *v = arena_alloc(a, sizeof(*v));
    struct json **link;

    if (v == NULL) {
        return NULL;
    }
    *v = (struct json){.type = type, .key = key, .text = text};
    if (parent != NULL) {
        for (link = &parent->child; *link != NULL; link = &(*link)->next) {
        }
        *link = v;
        parent->count++;
    }
    return v;
}
