/* h1_impl.h - what h1.c and h1_chunk.c share: classes of bytes, the way to refuse. */
#ifndef BASE_NET_H1_IMPL_H
#define BASE_NET_H1_IMPL_H

#include "base/net/h1.h"

static inline enum h1_result h1_bad(struct h1_fault *f, unsigned status, const char *reason)
{
    f->status = status;
    f->reason = reason;
    return H1_BAD;
}

/* tchar of RFC 9110 section 5.6.2. */
static inline bool h1_is_tchar(uint8_t c)
{
    static const bool token[256] = {
        ['!'] = true,         ['#'] = true,         ['$'] = true, ['%'] = true,
        ['&'] = true,         ['\''] = true,        ['*'] = true, ['+'] = true,
        ['-'] = true,         ['.'] = true,         ['^'] = true, ['_'] = true,
        ['`'] = true,         ['|'] = true,         ['~'] = true, ['0' ... '9'] = true,
        ['a' ... 'z'] = true, ['A' ... 'Z'] = true,
    };

    return token[c];
}

static inline bool h1_is_token(struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (!h1_is_tchar((uint8_t)s.p[i])) {
            return false;
        }
    }
    return s.n != 0;
}

/* What may stand inside a field value or reason phrase: visible, space, tab, obs-text. */
static inline bool h1_is_text(uint8_t c)
{
    return c == '\t' || (c >= 0x20 && c != 0x7f);
}

#endif
