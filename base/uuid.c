/* uuid.c - builds, prints and reads RFC 9562 identifiers; time and random come from the caller. */
#include "base/uuid.h"

struct uuid uuid_v7(uint64_t wall_ms, const uint8_t random16[16])
{
    struct uuid u;

    memcpy(u.b, random16, sizeof(u.b));
    for (int i = 0; i < 6; i++) {
        u.b[i] = (uint8_t)(wall_ms >> (40 - 8 * i)); /* big-endian: byte order is time order */
    }
    u.b[6] = (uint8_t)(0x70 | (u.b[6] & 0x0f)); /* version 7 */
    u.b[8] = (uint8_t)(0x80 | (u.b[8] & 0x3f)); /* variant 10 */
    return u;
}

/* 8-4-4-4-12: true for the byte that a dash precedes. */
static bool dash_before(size_t byte)
{
    return byte == 4 || byte == 6 || byte == 8 || byte == 10;
}

void uuid_text(struct uuid u, char out[UUID_TEXT_BYTES + 1])
{
    for (size_t i = 0; i < sizeof(u.b); i++) {
        if (dash_before(i)) {
            *out++ = '-';
        }
        str_hex(&u.b[i], 1, out);
        out += 2;
    }
}

bool uuid_parse(struct str s, struct uuid *out)
{
    struct uuid u;
    const char *p = s.p;

    if (s.n != UUID_TEXT_BYTES) {
        return false;
    }
    for (size_t i = 0; i < sizeof(u.b); i++) {
        if (dash_before(i) && *p++ != '-') {
            return false;
        }
        if (!str_unhex(str_of(p, 2), &u.b[i], 1)) {
            return false;
        }
        p += 2;
    }
    *out = u;
    return true;
}
