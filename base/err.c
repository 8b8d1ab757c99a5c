/* err.c - sets, extends and keeps the first cause of a failure. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>

static void err_format(struct err *e, enum err_code code, const char *fmt, va_list args)
{
    CHECK(code != ERR_NONE);
    e->code = code;
    if (vsnprintf(e->text, sizeof(e->text), fmt, args) < 0) {
        e->text[0] = '\0';
    }
}

/* Adds what fits of z at the end of the text. */
static void err_add(struct err *e, const char *z)
{
    size_t len = strlen(e->text);
    size_t n = size_min(strlen(z), sizeof(e->text) - 1 - len);

    memcpy(e->text + len, z, n);
    e->text[len + n] = '\0';
}

bool err_set(struct err *e, enum err_code code, const char *fmt, ...)
{
    va_list args;

    if (e->code != ERR_NONE) {
        return false;
    }
    va_start(args, fmt);
    err_format(e, code, fmt, args);
    va_end(args);
    return false;
}

bool err_errno(struct err *e, int errno_value, const char *fmt, ...)
{
    char reason[128];
    va_list args;

    if (e->code != ERR_NONE) {
        return false;
    }
    va_start(args, fmt);
    err_format(e, ERR_IO, fmt, args);
    va_end(args);
    err_add(e, ": ");
    err_add(e, strerror_r(errno_value, reason, sizeof(reason)));
    return false;
}

void err_prefix(struct err *e, const char *fmt, ...)
{
    struct err outer = {.code = ERR_NONE};
    va_list args;

    if (e->code == ERR_NONE) {
        return;
    }
    va_start(args, fmt);
    err_format(&outer, e->code, fmt, args);
    va_end(args);
    err_add(&outer, ": ");
    err_add(&outer, e->text);
    *e = outer;
}
