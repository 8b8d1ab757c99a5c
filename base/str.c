/* str.c - comparing, cutting and reading borrowed bytes. Never allocates. */
#include "base/str.h"

static unsigned char ascii_lower(char c)
{
    unsigned char u = (unsigned char)c;

    return u >= 'A' && u <= 'Z' ? (unsigned char)(u + ('a' - 'A')) : u;
}

bool str_ieq(struct str a, struct str b)
{
    if (a.n != b.n) {
        return false;
    }
    for (size_t i = 0; i < a.n; i++) {
        if (ascii_lower(a.p[i]) != ascii_lower(b.p[i])) {
            return false;
        }
    }
    return true;
}

bool str_starts(struct str s, struct str prefix)
{
    return s.n >= prefix.n && str_eq(str_of(s.p, prefix.n), prefix);
}

bool str_ends(struct str s, struct str suffix)
{
    return s.n >= suffix.n &&
           (suffix.n == 0 || str_eq(str_of(s.p + s.n - suffix.n, suffix.n), suffix));
}

int str_cmp(struct str a, struct str b)
{
    size_t n = size_min(a.n, b.n);
    int order = n != 0 ? memcmp(a.p, b.p, n) : 0;

    if (order != 0) {
        return order;
    }
    return (a.n > b.n) - (a.n < b.n);
}

size_t str_find(struct str s, struct str needle)
{
    const char *at;

    if (needle.n == 0) {
        return 0;
    }
    if (s.n < needle.n) {
        return SIZE_MAX;
    }
    at = memmem(s.p, s.n, needle.p, needle.n);
    return at != NULL ? (size_t)(at - s.p) : SIZE_MAX;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

struct str str_trim(struct str s)
{
    while (s.n > 0 && is_blank(s.p[0])) {
        s.p++;
        s.n--;
    }
    while (s.n > 0 && is_blank(s.p[s.n - 1])) {
        s.n--;
    }
    return s;
}

bool str_cut(struct str s, char sep, struct str *head, struct str *rest)
{
    const char *at = s.n != 0 ? memchr(s.p, sep, s.n) : NULL;

    if (at == NULL) {
        *head = s;
        *rest = s.n != 0 ? str_of(s.p + s.n, 0) : s;
        return false;
    }
    *head = str_of(s.p, (size_t)(at - s.p));
    *rest = str_of(at + 1, s.n - head->n - 1);
    return true;
}

struct str str_of_u64(uint64_t v, char to[STR_U64_BYTES])
{
    size_t n = 1, at;

    for (uint64_t rest = v; rest >= 10; rest /= 10) {
        n++;
    }
    to[n] = '\0';
    for (at = n; at-- > 0; v /= 10) {
        to[at] = (char)('0' + v % 10);
    }
    return str_of(to, n);
}

bool str_u64(struct str s, uint64_t *out)
{
    uint64_t v = 0;

    if (s.n == 0) {
        return false;
    }
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9' || __builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(s.p[i] - '0'), &v)) {
            return false;
        }
    }
    *out = v;
    return true;
}

bool str_i64(struct str s, int64_t *out)
{
    bool negative = s.n > 0 && s.p[0] == '-';
    uint64_t magnitude;

    if (negative) {
        s = str_of(s.p + 1, s.n - 1);
    }
    if (!str_u64(s, &magnitude) || magnitude > (uint64_t)INT64_MAX + (negative ? 1 : 0)) {
        return false;
    }
    *out = (int64_t)(negative ? 0 - magnitude : magnitude);
    return true;
}

void str_hex(const void *p, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *bytes = p;

    for (size_t i = 0; i < n; i++) {
        *out++ = digits[bytes[i] >> 4];
        *out++ = digits[bytes[i] & 15];
    }
    *out = '\0';
}

/* -1: not a hex digit. */
static int hex_value(char c)
{
    unsigned char u = ascii_lower(c);

    if (u >= '0' && u <= '9') {
        return u - '0';
    }
    return u >= 'a' && u <= 'f' ? u - 'a' + 10 : -1;
}

bool str_unhex(struct str s, void *out, size_t n)
{
    uint8_t *bytes = out;

    if (s.n % 2 != 0 || s.n / 2 != n) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        int high = hex_value(s.p[2 * i]), low = hex_value(s.p[2 * i + 1]);

        if (high < 0 || low < 0) {
            return false;
        }
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

char *str_copy(struct str s, char *out, size_t cap)
{
    size_t n;

    CHECK(cap > 0);
    n = size_min(s.n, cap - 1);
    if (n != 0) {
        memcpy(out, s.p, n);
    }
    out[n] = '\0';
    return out;
}

/* Bytes of the well-formed sequence at p (RFC 3629, section 4, table of UTF8-octets), 0 if none.
 * Only the second byte has a range of its own: it rules out overlong forms (E0, F0), surrogates
 * (ED) and what lies past U+10FFFF (F4). */
static size_t utf8_sequence(const uint8_t *p, size_t left)
{
    uint8_t least = 0x80, most = 0xbf;
    size_t n;

    if (p[0] < 0x80) {
        return 1;
    }
    if (p[0] < 0xc2 || p[0] > 0xf4) {
        return 0;
    }
    n = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (left < n) {
        return 0;
    }
    switch (p[0]) {
    case 0xe0:
        least = 0xa0;
        break;
    case 0xed:
        most = 0x9f;
        break;
    case 0xf0:
        least = 0x90;
        break;
    case 0xf4:
        most = 0x8f;
        break;
    default:
        break;
    }
    if (p[1] < least || p[1] > most) {
        return 0;
    }
    for (size_t i = 2; i < n; i++) {
        if (p[i] < 0x80 || p[i] > 0xbf) {
            return 0;
        }
    }
    return n;
}

size_t str_utf8_valid(struct str s)
{
    const uint8_t *p = (const uint8_t *)s.p;
    size_t i = 0;

    while (i < s.n) {
        uint64_t eight;
        size_t n;

        /* Prompts are mostly ASCII: eight bytes a step where no high bit is set. */
        while (s.n - i >= sizeof(eight)) {
            memcpy(&eight, p + i, sizeof(eight));
            if ((eight & 0x8080808080808080u) != 0) {
                break;
            }
            i += sizeof(eight);
        }
        if (i == s.n) {
            break;
        }
        n = utf8_sequence(p + i, s.n - i);
        if (n == 0) {
            break;
        }
        i += n;
    }
    return i;
}
