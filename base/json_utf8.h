/* json_utf8.h - one UTF-8 sequence at a time, for the JSON parser and writer only. */
#ifndef BASE_JSON_UTF8_H
#define BASE_JSON_UTF8_H

#include "base/base.h"

/* Looks at the sequence that starts at p (n > 0 bytes are there). Well formed (RFC 3629): its
 * length, 1 to 4. Otherwise minus the bytes that one U+FFFD stands for: the longest piece that
 * could have begun a sequence (Unicode, "maximal subpart"), at least 1. */
static inline int json_utf8_at(const uint8_t *p, size_t n)
{
    uint8_t lead = p[0], low = 0x80, high = 0xBF;
    int need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;

    if (lead < 0x80) {
        return 1;
    }
    if (lead < 0xC2 || lead > 0xF4) {
        return -1;
    }
    /* The second byte is where overlong forms, surrogates and values past U+10FFFF show. */
    if (lead == 0xE0) {
        low = 0xA0;
    } else if (lead == 0xED) {
        high = 0x9F;
    } else if (lead == 0xF0) {
        low = 0x90;
    } else if (lead == 0xF4) {
        high = 0x8F;
    }
    for (int i = 1; i < need; i++) {
        if ((size_t)i >= n || p[i] < low || p[i] > high) {
            return -i;
        }
        low = 0x80;
        high = 0xBF;
    }
    return need;
}

#endif
