/* json_text.h - the bytes of JSON strings and numbers, for the parser only. Pure: no memory, no
 * errors but "here it stops being JSON". */
#ifndef BASE_JSON_TEXT_H
#define BASE_JSON_TEXT_H

#include "base/str.h"

/* Doubles need at most 17 digits to be told apart; 512 leaves room for any printer, and is small
 * enough to copy to the stack for strtod. */
#define JSON_NUMBER_BYTES_MAX 512

/* Past bytes that stand for themselves, UTF-8 checked: to a quote, backslash, control character,
 * the first byte of a bad sequence, or the end. */
const uint8_t *json_skip_plain(const uint8_t *s, const uint8_t *end);
/* The quote that closes the string in which s stands, or NULL. Looks at nothing else. */
const uint8_t *json_find_close(const uint8_t *s, const uint8_t *end);

enum json_decoded {
    JSON_DECODED = 1, /* at stands on the closing quote */
    JSON_DECODE_FULL, /* no room left at `to` */
    JSON_DECODE_BAD,  /* at: the end, a bad escape, a control character, or bad UTF-8 */
};
struct json_decoder {
    const uint8_t *at, *end; /* in: inside a string */
    char *to, *to_end;       /* out: what the string says, never more bytes than its source */
    bool repaired;           /* set when a lone surrogate became U+FFFD */
};
/* One pass from `at` to the closing quote. */
enum json_decoded json_decode(struct json_decoder *d);

/* Where a number ends, or (not ok) where it stops being one. */
struct json_number {
    const uint8_t *at;
    bool ok, exponent;
};
struct json_number json_number_span(const uint8_t *s, const uint8_t *end);
/* false: too long, or past the range of a double. */
MUST_USE bool json_text_f64(struct str text, double *out);

#endif
