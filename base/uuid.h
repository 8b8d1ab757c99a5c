/* uuid.h - UUIDv7 (RFC 9562): 48 bits of milliseconds, then random. Identity of events and requests. */
#ifndef BASE_UUID_H
#define BASE_UUID_H

#include "base/str.h"

#define UUID_TEXT_BYTES 36

struct uuid {
    uint8_t b[16];
};

/* random16: 16 random bytes of the caller's env. */
struct uuid uuid_v7(uint64_t wall_ms, const uint8_t random16[16]);
void uuid_text(struct uuid u, char out[UUID_TEXT_BYTES + 1]);
MUST_USE bool uuid_parse(struct str s, struct uuid *out);

static inline bool uuid_eq(struct uuid a, struct uuid b)
{
    return memcmp(a.b, b.b, sizeof(a.b)) == 0;
}

static inline bool uuid_is_zero(struct uuid u)
{
    static const struct uuid zero = {{0}};
    return uuid_eq(u, zero);
}

#endif
