/* conf_value.c - text to values: numbers with units, names, amounts; the nearest known name. */
#include "base/conf_value.h"

#include "base/money.h"

#define SHOWN_MAX 64        /* bytes of a value in an error text */
#define NEAREST_PATH_MAX 96 /* longer names are compared by their first bytes */

#define SHOWN(s) (int)size_min((s).n, SHOWN_MAX), (s).p

struct unit {
    const char *name;
    int64_t factor;
};

struct units {
    const char *kind; /* "a size in bytes" */
    const char *list; /* for the error text */
    const struct unit *table;
    size_t count;
};

static const struct unit unit_bytes[] = {
    {"B", 1}, {"KiB", 1LL << 10}, {"MiB", 1LL << 20}, {"GiB", 1LL << 30}, {"TiB", 1LL << 40},
};

static const struct unit unit_durations[] = {
    {"us", 1},         {"ms", 1000},           {"s", 1000000},
    {"m", 60000000LL}, {"h", 60 * 60000000LL}, {"d", 24 * 60 * 60000000LL},
};

static const struct units units_bytes = {"a size", "B, KiB, MiB, GiB, TiB", unit_bytes,
                                         ARRAY_LEN(unit_bytes)};
static const struct units units_duration = {"a duration", "us, ms, s, m, h, d", unit_durations,
                                            ARRAY_LEN(unit_durations)};

static void *place(const struct conf_option *o, void *out)
{
    return (char *)out + o->offset;
}

static bool set_i64(const struct conf_option *o, int64_t v, struct str text, void *out,
                    struct err *e)
{
    bool bounded = o->min != 0 || o->max != 0;

    if (v < (bounded ? o->min : 0)) {
        return err_set(e, ERR_INPUT, "'%s': %.*s is less than the least, %lld", o->path,
                       SHOWN(text), (long long)(bounded ? o->min : 0));
    }
    if (bounded && v > o->max) {
        return err_set(e, ERR_INPUT, "'%s': %.*s is more than the most, %lld", o->path, SHOWN(text),
                       (long long)o->max);
    }
    memcpy(place(o, out), &v, sizeof(v));
    return true;
}

static bool set_int(const struct conf_option *o, struct str text, void *out, struct err *e)
{
    int64_t v;

    if (!str_i64(text, &v)) {
        return err_set(e, ERR_INPUT, "'%s': '%.*s' is not a whole number", o->path, SHOWN(text));
    }
    return set_i64(o, v, text, out, e);
}

/* "64KiB": digits, then a unit. Bounds are in the base unit, so errors of set_i64 name it. */
static bool set_with_unit(const struct conf_option *o, const struct units *u, struct str text,
                          void *out, struct err *e)
{
    struct str digits = {text.p, 0}, unit;
    int64_t v;

    while (digits.n < text.n && text.p[digits.n] >= '0' && text.p[digits.n] <= '9') {
        digits.n++;
    }
    unit = str_of(text.p + digits.n, text.n - digits.n);
    if (digits.n == 0) {
        return err_set(e, ERR_INPUT, "'%s': '%.*s' is not %s: write a whole number and one of %s",
                       o->path, SHOWN(text), u->kind, u->list);
    }
    if (str_eq(text, STR("0"))) {
        return set_i64(o, 0, text, out, e);
    }
    if (unit.n == 0) {
        return err_set(e, ERR_INPUT, "'%s': '%.*s' needs a unit, one of %s", o->path, SHOWN(text),
                       u->list);
    }
    for (size_t i = 0; i < u->count; i++) {
        if (!str_eq(unit, str_c(u->table[i].name))) {
            continue;
        }
        if (!str_i64(digits, &v) || __builtin_mul_overflow(v, u->table[i].factor, &v)) {
            return err_set(e, ERR_INPUT, "'%s': '%.*s' is too large", o->path, SHOWN(text));
        }
        return set_i64(o, v, text, out, e);
    }
    return err_set(e, ERR_INPUT, "'%s': '%.*s' has an unknown unit; use one of %s", o->path,
                   SHOWN(text), u->list);
}

static bool set_bool(const struct conf_option *o, struct str text, void *out, struct err *e)
{
    bool v = str_eq(text, STR("true"));

    if (!v && !str_eq(text, STR("false"))) {
        return err_set(e, ERR_INPUT, "'%s': '%.*s' is not true or false", o->path, SHOWN(text));
    }
    memcpy(place(o, out), &v, sizeof(v));
    return true;
}

static bool set_enum(const struct conf_option *o, struct str text, void *out, struct err *e)
{
    char known[256] = "";
    size_t n = 0;

    for (int i = 0; o->names[i] != NULL; i++) {
        struct str name = str_c(o->names[i]);

        if (str_eq(text, name)) {
            memcpy(place(o, out), &i, sizeof(i));
            return true;
        }
        if (n + name.n + 3 < sizeof(known)) {
            memcpy(known + n, n == 0 ? "" : ", ", n == 0 ? 0 : 2);
            n += n == 0 ? 0 : 2;
            memcpy(known + n, name.p, name.n);
            n += name.n;
        }
    }
    known[n] = '\0';
    return err_set(e, ERR_INPUT, "'%s': '%.*s' is not one of: %s", o->path, SHOWN(text), known);
}

static bool set_string(const struct conf_option *o, struct str text, void *out, struct arena *a,
                       struct err *e)
{
    struct str copy = arena_str(a, text);

    if (copy.p == NULL) {
        return err_set(e, ERR_NO_MEMORY, "'%s': no memory left for its value", o->path);
    }
    memcpy(place(o, out), &copy, sizeof(copy));
    return true;
}

static bool set_usd(const struct conf_option *o, struct str text, void *out, struct err *e)
{
    struct money m;

    if (!money_parse_usd(text, &m, e)) {
        err_prefix(e, "'%s'", o->path);
        return false;
    }
    return set_i64(o, m.pusd, text, out, e);
}

bool conf_value_set(const struct conf_option *o, struct str text, void *out, struct arena *a,
                    struct err *e)
{
    switch (o->type) {
    case CONF_STRING:
        return set_string(o, text, out, a, e);
    case CONF_BOOL:
        return set_bool(o, text, out, e);
    case CONF_INT:
        return set_int(o, text, out, e);
    case CONF_BYTES:
        return set_with_unit(o, &units_bytes, text, out, e);
    case CONF_DURATION:
        return set_with_unit(o, &units_duration, text, out, e);
    case CONF_ENUM:
        return set_enum(o, text, out, e);
    case CONF_USD_PUSD:
        return set_usd(o, text, out, e);
    case CONF_LIST:
        break;
    }
    return err_set(e, ERR_INPUT, "'%s' needs a list: [a, b]", o->path);
}

bool conf_value_list(const struct conf_option *o, const struct str *items, size_t count, void *out,
                     struct arena *a, struct err *e)
{
    struct conf_list list = {NULL, count};

    if (count > 0) {
        list.items = arena_array(a, count, sizeof(*items));
        if (list.items == NULL) {
            return err_set(e, ERR_NO_MEMORY, "'%s': no memory left for its value", o->path);
        }
        memcpy(list.items, items, count * sizeof(*items));
    }
    memcpy(place(o, out), &list, sizeof(list));
    return true;
}

bool conf_value_default(const struct conf_option *o, void *out, struct arena *a, struct err *e)
{
    struct str items[16], rest = str_c(o->default_text);
    size_t count = 0;
    bool more = rest.n > 0;

    if (o->type != CONF_LIST) {
        return conf_value_set(o, rest, out, a, e);
    }
    while (more && count < ARRAY_LEN(items)) {
        more = str_cut(rest, ',', &items[count], &rest);
        items[count] = str_trim(items[count]);
        count++;
    }
    CHECK(!more); /* our own table: sixteen defaults are plenty */
    return conf_value_list(o, items, count, out, a, e);
}

/* Levenshtein distance of the first NEAREST_PATH_MAX bytes: one row, the old diagonal in hand. */
static size_t distance(struct str a, struct str b)
{
    size_t row[NEAREST_PATH_MAX + 1];
    size_t an = size_min(a.n, NEAREST_PATH_MAX), bn = size_min(b.n, NEAREST_PATH_MAX);

    for (size_t j = 0; j <= bn; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= an; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= bn; j++) {
            size_t replaced = diagonal + (a.p[i - 1] != b.p[j - 1]);

            diagonal = row[j];
            row[j] = size_min(replaced, size_min(row[j], row[j - 1]) + 1);
        }
    }
    return row[bn];
}

struct str conf_nearest(struct str path, const struct conf_option *options, size_t count)
{
    struct str best = {NULL, 0};
    size_t least = SIZE_MAX;

    for (size_t i = 0; i < count; i++) {
        const char *dot = options[i].path;

        /* Each section on the way counts too: "htpp:" should find "http", not a far option. */
        do {
            struct str candidate;
            size_t d;

            dot = strchr(dot + 1, '.');
            candidate = dot == NULL ? str_c(options[i].path)
                                    : str_of(options[i].path, (size_t)(dot - options[i].path));
            d = distance(path, candidate);
            if (d < least) {
                least = d;
                best = candidate;
            }
        } while (dot != NULL);
    }
    return best;
}
