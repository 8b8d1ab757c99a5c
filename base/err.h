/* err.h - a failure with a story: a code and a sentence that says what to change.
 *
 * The caller owns the struct, usually on its stack. The first cause wins: a second err_set is
 * ignored, so that outer layers may add err_prefix but not hide the root. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include "base/base.h"

#define ERR_TEXT_MAX 512 /* a sentence with two paths in it */

enum err_code {
    ERR_NONE = 0,
    ERR_INPUT,       /* the caller's or user's data is wrong: text says what to change */
    ERR_LIMIT,       /* a named bound was reached */
    ERR_IO,          /* the system refused: text has the path and strerror */
    ERR_NO_MEMORY,
    ERR_CORRUPT,     /* stored bytes do not verify */
    ERR_UNAVAILABLE, /* a peer (Postgres, a worker) is not there */
    ERR_CONFLICT,    /* exists already, or changed under us */
    ERR_NOT_FOUND,
    ERR_UNSUPPORTED,
};

struct err {
    enum err_code code;
    char text[ERR_TEXT_MAX];
};

static inline void err_clear(struct err *e)
{
    e->code = ERR_NONE;
    e->text[0] = '\0';
}

/* Sets code and text unless one is set already. Always returns false: `return err_set(...)`. */
bool err_set(struct err *e, enum err_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* As err_set with ": strerror(errno_value)" at the end and ERR_IO. */
bool err_errno(struct err *e, int errno_value, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Puts "text: " before the story. */
void err_prefix(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
