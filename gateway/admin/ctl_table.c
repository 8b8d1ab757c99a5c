/* ctl_table.c - answers for people: columns as wide as their widest cell. */
#include "gateway/admin/ctl.h"

#include <stdio.h>

#define TABLE_COLUMNS_MAX 16
#define TABLE_CELL_MAX 80

/* One character of sound UTF-8; the bytes it takes. */
static size_t char_of(struct str s, uint32_t *out)
{
    uint8_t first = (uint8_t)s.p[0];
    size_t n = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;

    n = size_min(n, s.n);
    *out = n == 1 ? first : first & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        *out = *out << 6 | ((uint8_t)s.p[i] & 0x3fu);
    }
    return n;
}

static bool moves_a_terminal(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x061c || c == 0x200e || c == 0x200f ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

void ctl_plain(struct buf *out, struct str text)
{
    uint32_t c;
    size_t n;

    for (; text.n > 0; text = str_of(text.p + n, text.n - n)) {
        n = char_of(text, &c);
        if (moves_a_terminal(c)) {
            buf_printf(out, "\\u%04x", c);
        } else {
            buf_append(out, text.p, n);
        }
    }
}

static void cell(const struct json *v, char out[TABLE_CELL_MAX])
{
    struct buf b;

    buf_init(&b, 4096);
    if (v == NULL || v->type == JSON_NULL) {
        buf_c(&b, "-");
    } else if (v->type == JSON_STRING || v->type == JSON_NUMBER) {
        ctl_plain(&b, v->text);
    } else if (v->type == JSON_ARRAY) {
        for (const struct json *x = v->child; x != NULL; x = x->next) {
            ctl_plain(&b, x->text);
            buf_c(&b, x->next != NULL ? "," : "");
        }
    } else {
        buf_c(&b, v->type == JSON_TRUE ? "yes" : v->type == JSON_FALSE ? "no" : "{}");
    }
    str_copy(buf_view(&b), out, TABLE_CELL_MAX);
    buf_fini(&b);
}

static void table(const struct json *list, const char *const *columns)
{
    size_t width[TABLE_COLUMNS_MAX], n = 0;
    char text[TABLE_CELL_MAX];

    for (; columns[n] != NULL && n < TABLE_COLUMNS_MAX; n++) {
        width[n] = strlen(columns[n]);
    }
    for (const struct json *row = list->child; row != NULL; row = row->next) {
        for (size_t i = 0; i < n; i++) {
            cell(json_get(row, str_c(columns[i])), text);
            width[i] = size_max(width[i], strlen(text));
        }
    }
    for (size_t i = 0; i < n; i++) {
        printf("%-*s%s", (int)width[i], columns[i], i + 1 < n ? "  " : "\n");
    }
    for (const struct json *row = list->child; row != NULL; row = row->next) {
        for (size_t i = 0; i < n; i++) {
            cell(json_get(row, str_c(columns[i])), text);
            printf("%-*s%s", (int)width[i], text, i + 1 < n ? "  " : "\n");
        }
    }
    if (list->child == NULL) {
        puts("(none)");
    }
}

static void object(const struct json *o)
{
    char text[TABLE_CELL_MAX];

    for (const struct json *v = o->child; v != NULL; v = v->next) {
        if (v->type == JSON_OBJECT) {
            printf(STR_FMT ":\n", STR_ARG(v->key));
            object(v);
            continue;
        }
        if (v->type == JSON_ARRAY && v->child != NULL && v->child->type == JSON_OBJECT) {
            continue; /* shown as a table */
        }
        cell(v, text);
        printf("  %-24.*s %s\n", STR_ARG(v->key), text);
    }
}

void ctl_show(const struct json *answer, const char *const *columns)
{
    const struct json *data = json_get(answer, STR("data"));

    if (data == NULL || answer->count > 1) {
        object(answer);
    }
    if (data != NULL && columns != NULL) {
        table(data, columns);
    }
}
