/* auth.h - keys: `tg_` + 27 base62 digits of 160 random bits + 6 base62 digits of their CRC-32.
 *
 * Stored and compared as HMAC-SHA-256(pepper, key) only. The checksum refuses typos before any
 * look-up. A key never reaches a log: there is only its redacted form. */
#ifndef GATEWAY_ADMIT_AUTH_H
#define GATEWAY_ADMIT_AUTH_H

#include "base/net/http.h"
#include "ledger/snapshot.h"

#define AUTH_KEY_BYTES 36 /* "tg_" + 27 + 6 */

struct auth_key {
    char text[AUTH_KEY_BYTES + 1]; /* wipe after showing it once */
    char redacted[16];             /* "tg_abc...wxyz" */
    uint8_t hmac[SHA256_BYTES];
};
/* The checksum covers "tg_" and the 27 digits. */
void auth_mint(struct env *env, struct str pepper, struct auth_key *out);
bool auth_is_well_formed(struct str key);

enum auth_answer { AUTH_OK = 1, AUTH_MISSING, AUTH_BAD, AUTH_REVOKED, AUTH_DISABLED };
/* The key comes as `authorization: Bearer KEY` (scheme case-insensitive), `x-api-key` or `api-key`.
 */
struct str auth_key_of(const struct http_fields *f);
/* *out: the key when AUTH_OK, else NULL. A key that is not well-formed is refused before any
 * hashing. What to do: MISSING, BAD, REVOKED: 401; DISABLED (the tenant): 403. */
enum auth_answer auth_check(const struct snapshot *s, struct str pepper, struct str key,
                            const struct snap_key **out);

#endif
