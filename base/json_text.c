/* json_text.c - the bytes of JSON strings and numbers: how far they go and what they mean. */
#include "base/json_text.h"

#include <endian.h>
#include <math.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/json_utf8.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* ---- strings ---- */

#define WORD_OF(byte) (0x0101010101010101ULL * (byte))

/* Eight bytes at once: the high bit of each byte that needs a look. Borrows only run upwards, so
 * the lowest flagged byte is exact ("haszero", Bit Twiddling Hacks). */
static inline uint64_t word_quotes(uint64_t w)
{
    uint64_t quote = w ^ WORD_OF('"'), back = w ^ WORD_OF('\\');

    return ((quote - WORD_OF(1)) & ~quote) | ((back - WORD_OF(1)) & ~back);
}

static inline uint64_t word_controls(uint64_t w)
{
    return (w - WORD_OF(0x20)) & ~w;
}

static inline uint64_t word_at(const uint8_t *s)
{
    uint64_t w;

    memcpy(&w, s, sizeof(w));
    return le64toh(w);
}

/* Past the blocks without a quote or backslash; not quotes_only: without any byte that is no
 * printable ASCII either. */
static inline const uint8_t *skip_blocks(const uint8_t *s, const uint8_t *end, bool quotes_only)
{
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), back = _mm_set1_epi8('\\');

    for (; end - s >= 16; s += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)s);
        __m128i stop = _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, back));

        if (!quotes_only) { /* signed: bytes of 0x80 and more are less than a space too */
            stop = _mm_or_si128(stop, _mm_cmplt_epi8(v, _mm_set1_epi8(0x20)));
        }
        if (_mm_movemask_epi8(stop) != 0) {
            return s + __builtin_ctz((unsigned)_mm_movemask_epi8(stop));
        }
    }
#else
    (void)end;
    (void)quotes_only;
#endif
    return s;
}

const uint8_t *json_skip_plain(const uint8_t *s, const uint8_t *end)
{
    s = skip_blocks(s, end, false);
    if (s < end && (*s == '"' || *s == '\\' || *s < 0x20)) {
        return s;
    }
    while (s < end) {
        if (end - s >= 8) {
            uint64_t w = word_at(s);
            uint64_t stop = (w | word_quotes(w) | word_controls(w)) & WORD_OF(0x80);

            if (stop == 0) {
                s += 8;
                continue;
            }
            s += __builtin_ctzll(stop) / 8;
        }
        if (*s < 0x80) {
            if (*s == '"' || *s == '\\' || *s < 0x20) {
                return s;
            }
            s++;
            continue;
        }
        while (s < end && *s >= 0x80) {
            int n = json_utf8_at(s, (size_t)(end - s));

            if (n < 0) {
                return s;
            }
            s += n;
        }
    }
    return s;
}

const uint8_t *json_find_close(const uint8_t *s, const uint8_t *end)
{
    while (s < end) {
        s = skip_blocks(s, end, true);
        if (s == end) {
            break;
        }
        if (*s == '\\') {
            s += end - s > 1 ? 2 : 1;
            continue;
        }
        if (end - s >= 8) {
            uint64_t stop = word_quotes(word_at(s)) & WORD_OF(0x80);

            if (stop == 0) {
                s += 8;
                continue;
            }
            s += __builtin_ctzll(stop) / 8;
        }
        if (*s == '"') {
            return s;
        }
        s += *s == '\\' && end - s > 1 ? 2 : 1;
    }
    return NULL;
}

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four digits of \uXXXX, or -1. */
static int32_t hex4(const uint8_t *s, const uint8_t *end)
{
    int32_t v = 0;

    if (end - s < 4) {
        return -1;
    }
    for (int i = 0; i < 4; i++) {
        int d = hex_digit(s[i]);

        if (d < 0) {
            return -1;
        }
        v = v * 16 + d;
    }
    return v;
}

static char *put_utf8(char *out, int32_t c)
{
    if (c < 0x80) {
        *out++ = (char)c;
    } else if (c < 0x800) {
        *out++ = (char)(0xC0 | c >> 6);
        *out++ = (char)(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        *out++ = (char)(0xE0 | c >> 12);
        *out++ = (char)(0x80 | (c >> 6 & 0x3F));
        *out++ = (char)(0x80 | (c & 0x3F));
    } else {
        *out++ = (char)(0xF0 | c >> 18);
        *out++ = (char)(0x80 | (c >> 12 & 0x3F));
        *out++ = (char)(0x80 | (c >> 6 & 0x3F));
        *out++ = (char)(0x80 | (c & 0x3F));
    }
    return out;
}

/* s stands after "\u". A pair of surrogates is one character, a lone one becomes U+FFFD.
 * Returns past what it used, or NULL. Writes no more bytes than it reads. */
static const uint8_t *unescape_u(const uint8_t *s, const uint8_t *end, char **out, bool *repaired)
{
    int32_t c = hex4(s, end), low;

    if (c < 0) {
        return NULL;
    }
    s += 4;
    if (c >= 0xD800 && c <= 0xDFFF) {
        low = c < 0xDC00 && end - s >= 6 && s[0] == '\\' && s[1] == 'u' ? hex4(s + 2, end) : -1;
        if (low >= 0xDC00 && low <= 0xDFFF) {
            c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
            s += 6;
        } else {
            c = 0xFFFD;
            *repaired = true;
        }
    }
    *out = put_utf8(*out, c);
    return s;
}

#define DECODE_STEP 4 /* bytes that one escape or character gives at most */

/* Past plain ASCII, copied to `to` as it goes: sixteen bytes at a time where both sides have them.
 * Returns how many. */
static inline size_t copy_plain(const uint8_t *s, const uint8_t *end, char *to, const char *to_end)
{
    size_t i = 0, n = size_min((size_t)(end - s), (size_t)(to_end - to));

#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), back = _mm_set1_epi8('\\');

    for (; n - i >= 16; i += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(s + i));
        __m128i stop = _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, back));
        unsigned found;

        /* signed: bytes of 0x80 and more are less than a space too */
        stop = _mm_or_si128(stop, _mm_cmplt_epi8(v, _mm_set1_epi8(0x20)));
        found = (unsigned)_mm_movemask_epi8(stop);
        _mm_storeu_si128((__m128i *)(void *)(to + i), v);
        if (found != 0) {
            return i + (unsigned)__builtin_ctz(found);
        }
    }
#endif
    while (i < n && s[i] >= 0x20 && s[i] < 0x80 && s[i] != '"' && s[i] != '\\') {
        to[i] = (char)s[i];
        i++;
    }
    return i;
}

/* s stands on a backslash. Past the escape, or NULL: there is no such escape. */
static inline const uint8_t *unescape(const uint8_t *s, const uint8_t *end, char **to,
                                      bool *repaired)
{
    static const char plain[256] = {['"'] = '"',  ['\\'] = '\\', ['/'] = '/',  ['b'] = '\b',
                                    ['f'] = '\f', ['n'] = '\n',  ['r'] = '\r', ['t'] = '\t'};

    if (end - s < 2) {
        return NULL;
    }
    if (s[1] == 'u') {
        return unescape_u(s + 2, end, to, repaired);
    }
    *(*to)++ = plain[s[1]];
    return plain[s[1]] != '\0' ? s + 2 : NULL;
}

enum json_decoded json_decode(struct json_decoder *d)
{
    const uint8_t *s = d->at, *end = d->end, *next;
    char *to = d->to;
    int n;

    for (;;) {
        size_t plain = copy_plain(s, end, to, d->to_end);

        s += plain;
        to += plain;
        d->at = s;
        d->to = to;
        if (s == end) {
            return JSON_DECODE_BAD;
        }
        if (*s == '"') {
            return JSON_DECODED;
        }
        if (d->to_end - to < DECODE_STEP) {
            return JSON_DECODE_FULL;
        }
        if (*s == '\\') {
            next = unescape(s, end, &to, &d->repaired);
            if (next == NULL) {
                return JSON_DECODE_BAD;
            }
            s = next;
        } else if (*s >= 0x80) {
            n = json_utf8_at(s, (size_t)(end - s));
            if (n < 0) {
                return JSON_DECODE_BAD;
            }
            memcpy(to, s, (size_t)n);
            s += n;
            to += n;
        } else if (*s < 0x20) {
            return JSON_DECODE_BAD;
        }
    }
}

/* ---- numbers ---- */

static const uint8_t *skip_digits(const uint8_t *s, const uint8_t *end)
{
    while (s < end && *s >= '0' && *s <= '9') {
        s++;
    }
    return s;
}

struct json_number json_number_span(const uint8_t *s, const uint8_t *end)
{
    const uint8_t *digits;
    bool exponent = false;

    s += s < end && *s == '-';
    digits = s;
    s = skip_digits(s, end);
    if (s == digits || (*digits == '0' && s - digits > 1)) {
        return (struct json_number){digits, false, false};
    }
    if (s < end && *s == '.') {
        digits = s + 1;
        s = skip_digits(digits, end);
        if (s == digits) {
            return (struct json_number){digits, false, false};
        }
    }
    if (s < end && (*s | 0x20) == 'e') {
        exponent = true;
        digits = s + 1;
        digits += digits < end && (*digits == '+' || *digits == '-');
        s = skip_digits(digits, end);
        if (s == digits) {
            return (struct json_number){digits, false, true};
        }
    }
    return (struct json_number){s, true, exponent};
}

/* strtod wants a NUL, which the input does not have. */
bool json_text_f64(struct str text, double *out)
{
    char copy[JSON_NUMBER_BYTES_MAX + 1];

    if (text.n == 0 || text.n > JSON_NUMBER_BYTES_MAX) {
        return false;
    }
    memcpy(copy, text.p, text.n);
    copy[text.n] = '\0';
    *out = strtod(copy, NULL);
    return isfinite(*out);
}

/* The exponent after 'e'; huge ones all read as the same huge number. */
static int32_t exponent_of(const uint8_t *s, const uint8_t *end)
{
    bool negative = s < end && *s == '-';
    int32_t v = 0;

    s += s < end && (*s == '-' || *s == '+');
    for (; s < end && v < 100000; s++) {
        v = v * 10 + (*s - '0');
    }
    return negative ? -v : v;
}

/* Appends one decimal digit; false when the magnitude leaves 63 bits and a sign. */
static bool push_digit(uint64_t *magnitude, int digit)
{
    return !__builtin_mul_overflow(*magnitude, 10, magnitude) &&
           !__builtin_add_overflow(*magnitude, (uint64_t)digit, magnitude) &&
           *magnitude <= (uint64_t)INT64_MAX + 1;
}

bool json_i64(const struct json *v, int64_t *out)
{
    const uint8_t *s, *end;
    uint64_t magnitude = 0;
    int32_t zeros = 0; /* digits 0 seen and not yet known to matter */
    int32_t scale = 0; /* powers of ten after the last digit read */
    bool negative, after_point = false;

    if (v == NULL || v->type != JSON_NUMBER) {
        return false;
    }
    s = (const uint8_t *)v->text.p;
    end = s + v->text.n;
    negative = *s == '-';
    for (s += negative; s < end && (*s | 0x20) != 'e'; s++) {
        if (*s == '.') {
            after_point = true;
            continue;
        }
        scale -= after_point;
        zeros++;
        if (*s != '0') {
            for (zeros--; zeros > 0; zeros--) {
                if (!push_digit(&magnitude, 0)) {
                    return false;
                }
            }
            if (!push_digit(&magnitude, *s - '0')) {
                return false;
            }
        }
    }
    if (magnitude == 0) {
        *out = 0;
        return true;
    }
    scale += zeros + (s < end ? exponent_of(s + 1, end) : 0);
    if (scale < 0) {
        return false;
    }
    for (; scale > 0; scale--) {
        if (!push_digit(&magnitude, 0)) {
            return false;
        }
    }
    if (magnitude > (uint64_t)INT64_MAX + (negative ? 1 : 0)) {
        return false;
    }
    *out = (int64_t)(negative ? 0 - magnitude : magnitude);
    return true;
}

bool json_f64(const struct json *v, double *out)
{
    return v != NULL && v->type == JSON_NUMBER && json_text_f64(v->text, out);
}
