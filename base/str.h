/* str.h - borrowed slices of bytes. Never owned, never NUL-terminated by promise. */
#ifndef BASE_STR_H
#define BASE_STR_H

#include "base/base.h"

struct str {
    const char *p; /* borrowed until whoever made it says */
    size_t n;      /* bytes */
};

#define STR(literal) ((struct str){"" literal, sizeof(literal) - 1})
#define STR_FMT "%.*s"
#define STR_ARG(s) (int)(s).n, (s).p

static inline struct str str_of(const void *p, size_t n)
{
    return (struct str){(const char *)p, n};
}

static inline struct str str_c(const char *z)
{
    return (struct str){z, z != NULL ? strlen(z) : 0};
}

/* n bytes at p and q are the same; n is 4 to 16: two words that may overlap, no call. */
static inline bool str_words_eq(const char *p, const char *q, size_t n)
{
    uint64_t a = 0, b = 0, c = 0, d = 0;
    size_t word = n >= 8 ? 8 : 4;

    if (word == 8) {
        memcpy(&a, p, 8);
        memcpy(&b, q, 8);
        memcpy(&c, p + n - 8, 8);
        memcpy(&d, q + n - 8, 8);
    } else {
        memcpy(&a, p, 4);
        memcpy(&b, q, 4);
        memcpy(&c, p + n - 4, 4);
        memcpy(&d, q + n - 4, 4);
    }
    return ((a ^ b) | (c ^ d)) == 0;
}

/* Names of fields and of JSON members are compared all day: short ones without a call. */
static inline bool str_eq(struct str a, struct str b)
{
    if (a.n != b.n) {
        return false;
    }
    if (a.n >= 4 && a.n <= 16) {
        return str_words_eq(a.p, b.p, a.n);
    }
    return a.n == 0 || (a.p[0] == b.p[0] && memcmp(a.p, b.p, a.n) == 0);
}

bool str_ieq(struct str a, struct str b); /* ASCII case-insensitive */
bool str_starts(struct str s, struct str prefix);
bool str_ends(struct str s, struct str suffix);
int str_cmp(struct str a, struct str b); /* bytewise, shorter first on a tie */
/* Index of the first occurrence, or SIZE_MAX. */
size_t str_find(struct str s, struct str needle);
struct str str_trim(struct str s); /* spaces and tabs off both ends */
/* Cuts at the first `sep`: *head before it, rest after it. false: no sep, *head is all of s. */
bool str_cut(struct str s, char sep, struct str *head, struct str *rest);
/* v in decimal, with a NUL after it, in `to`: what a request needs a dozen times, without printf.
 */
#define STR_U64_BYTES 21
struct str str_of_u64(uint64_t v, char to[STR_U64_BYTES]);
/* Whole slice as a decimal integer; false on empty, sign (u64), junk or overflow. */
MUST_USE bool str_u64(struct str s, uint64_t *out);
MUST_USE bool str_i64(struct str s, int64_t *out);
/* Lower-case hex; out needs 2 * n + 1 bytes and is NUL-terminated. */
void str_hex(const void *p, size_t n, char *out);
/* Exactly 2 * n hex digits into n bytes; false otherwise. */
MUST_USE bool str_unhex(struct str s, void *out, size_t n);
/* Copies into a NUL-terminated C array, cutting at cap - 1. Returns out. */
char *str_copy(struct str s, char *out, size_t cap);
/* Length of the well-formed UTF-8 prefix of s (RFC 3629: no surrogates, no overlong forms). */
size_t str_utf8_valid(struct str s);

#endif
