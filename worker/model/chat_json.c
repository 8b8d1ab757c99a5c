/* chat_json.c - JSON the way templates write it: Python's json.dumps(ensure_ascii=False), with ", "
 * and ": " between things, members in the order of the request, and floats as repr prints them.
 *
 * base/json's writer is for wires: no spaces and the number's own text. */
#include "worker/model/chat_shape.h"

#include <stdio.h>
#include <stdlib.h>

#define DEPTH_MAX 130        /* the API's bodies stay below 128 */
#define FLOAT_DIGITS 17      /* enough for any double */
#define REPR_FIXED_BELOW 16  /* 1e16 is the first that repr writes with an exponent */
#define REPR_FIXED_FROM (-4) /* 1e-05 is the first below */

void chat_json_write_string(struct buf *b, struct str s)
{
    static const char short_of[] = "btn\0fr"; /* of 08 to 0D; 0B has none */
    size_t plain = 0;

    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = (uint8_t)s.p[i];

        if (c >= 0x20 && c != '"' && c != '\\') {
            continue;
        }
        buf_append(b, s.p + plain, i - plain);
        plain = i + 1;
        if (c >= 0x20) {
            buf_byte(b, '\\');
            buf_byte(b, c);
        } else if (c >= 0x08 && c <= 0x0D && c != 0x0B) {
            buf_byte(b, '\\');
            buf_byte(b, (uint8_t)short_of[c - 8]);
        } else {
            buf_printf(b, "\\u%04x", c);
        }
    }
    buf_append(b, s.p + plain, s.n - plain);
}

/* repr of a float: the fewest digits that read back the same. */
static void write_float(struct buf *b, double d)
{
    char text[40], digits[FLOAT_DIGITS + 1] = "0";
    int n = 1, exponent, used = 0;

    do {
        snprintf(text, sizeof(text), "%.*e", n - 1, d);
    } while (strtod(text, NULL) != d && ++n <= FLOAT_DIGITS);
    exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    for (const char *p = text; *p != 'e'; p++) {
        if (*p >= '0' && *p <= '9') {
            digits[used++] = *p;
        }
    }
    if (text[0] == '-') {
        buf_byte(b, '-');
    }
    if (exponent < REPR_FIXED_FROM || exponent >= REPR_FIXED_BELOW) {
        buf_printf(b, "%c%s%.*se%c%02d", digits[0], used > 1 ? "." : "", used - 1, digits + 1,
                   exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) {
        buf_c(b, "0.");
        for (int i = -1; i > exponent; i--) {
            buf_byte(b, '0');
        }
        buf_append(b, digits, (size_t)used);
        return;
    }
    for (int i = 0; i <= exponent; i++) {
        buf_byte(b, i < used ? (uint8_t)digits[i] : '0');
    }
    buf_byte(b, '.');
    if (used <= exponent + 1) {
        buf_byte(b, '0');
    } else {
        buf_append(b, digits + exponent + 1, (size_t)(used - exponent - 1));
    }
}

static void write_number(struct buf *b, const struct json *v)
{
    double d;

    for (size_t i = 0; i < v->text.n; i++) {
        if (strchr(".eE", v->text.p[i]) != NULL) {
            if (json_f64(v, &d)) {
                write_float(b, d);
                return;
            }
            break;
        }
    }
    buf_str(b, str_eq(v->text, STR("-0")) ? STR("0") : v->text);
}

static void write_leaf(struct buf *b, const struct json *v)
{
    switch (v->type) {
    case JSON_NULL:
        buf_c(b, "null");
        break;
    case JSON_FALSE:
        buf_c(b, "false");
        break;
    case JSON_TRUE:
        buf_c(b, "true");
        break;
    case JSON_NUMBER:
        write_number(b, v);
        break;
    case JSON_STRING:
        buf_byte(b, '"');
        chat_json_write_string(b, v->text);
        buf_byte(b, '"');
        break;
    case JSON_ARRAY:
        buf_c(b, "[]");
        break;
    case JSON_OBJECT:
        buf_c(b, "{}");
        break;
    }
}

static void new_line(struct buf *b, unsigned indent, unsigned depth)
{
    if (indent > 0) {
        buf_printf(b, "\n%*s", (int)(indent * depth), "");
    }
}

void chat_json_write(struct buf *b, const struct json *v, unsigned indent)
{
    const struct json *open[DEPTH_MAX];
    unsigned depth = 0;

    for (;;) {
        if (depth > 0 && open[depth - 1]->type == JSON_OBJECT) {
            buf_byte(b, '"');
            chat_json_write_string(b, v->key);
            buf_c(b, "\": ");
        }
        if ((v->type == JSON_ARRAY || v->type == JSON_OBJECT) && v->child != NULL) {
            CHECK(depth < DEPTH_MAX);
            buf_byte(b, v->type == JSON_ARRAY ? '[' : '{');
            open[depth++] = v;
            new_line(b, indent, depth);
            v = v->child;
            continue;
        }
        write_leaf(b, v);
        while (depth > 0 && v->next == NULL) {
            v = open[--depth];
            new_line(b, indent, depth);
            buf_byte(b, v->type == JSON_ARRAY ? ']' : '}');
        }
        if (depth == 0) {
            return;
        }
        v = v->next;
        buf_c(b, indent > 0 ? "," : ", ");
        new_line(b, indent, depth);
    }
}
