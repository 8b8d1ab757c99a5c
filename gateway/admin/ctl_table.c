/* ctl_table.c - answers for people: columns as wide as their widest cell. */
#include "gateway/admin/ctl.h"

#include <stdio.h>

#define TABLE_COLUMNS_MAX 16
#define TABLE_CELL_MAX 80

static void cell(const struct json *v, char out[TABLE_CELL_MAX])
{
    struct buf b;

    buf_init(&b, 4096);
    if (v == NULL || v->type == JSON_NULL) {
        buf_c(&b, "-");
    } else if (v->type == JSON_STRING || v->type == JSON_NUMBER) {
        buf_str(&b, v->text);
    } else if (v->type == JSON_ARRAY) {
        for (const struct json *x = v->child; x != NULL; x = x->next) {
            buf_str(&b, x->text);
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
