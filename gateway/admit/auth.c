/* auth.c - minting keys, reading them from a request's fields, finding them by their HMAC.
 *
 * A key's text lives in the request's fields and, once, in what minted it. Nothing here prints one.
 */
#include "gateway/admit/auth.h"

#define KEY_PREFIX_BYTES 3
#define KEY_RANDOM_BYTES 20                            /* 160 bits */
#define KEY_DIGITS 27                                  /* 62^27 > 2^160 */
#define KEY_CHECK_DIGITS 6                             /* 62^6 > 2^32 */
#define KEY_BODY_BYTES (KEY_PREFIX_BYTES + KEY_DIGITS) /* what the checksum covers */
#define HMAC_INDEX_BYTES 16 /* searched by; the rest is compared in constant time */

_Static_assert(KEY_BODY_BYTES + KEY_CHECK_DIGITS == AUTH_KEY_BYTES, "length of a key");

static const char prefix[] = "tg_";
static const char base62[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/* Divides the big-endian number by 62; returns the remainder. */
static unsigned divide_62(uint8_t number[KEY_RANDOM_BYTES])
{
    unsigned rest = 0;

    for (size_t i = 0; i < KEY_RANDOM_BYTES; i++) {
        unsigned v = rest << 8 | number[i];

        number[i] = (uint8_t)(v / 62);
        rest = v % 62;
    }
    return rest;
}

static void check_digits(const char *body, char out[KEY_CHECK_DIGITS])
{
    uint32_t crc = hash_crc32(body, KEY_BODY_BYTES);

    for (size_t i = KEY_CHECK_DIGITS; i-- > 0; crc /= 62) {
        out[i] = base62[crc % 62];
    }
}

static void redact(const char *key, char out[16])
{
    memcpy(out, key, KEY_PREFIX_BYTES + 3);
    memcpy(out + KEY_PREFIX_BYTES + 3, "...", 3);
    memcpy(out + KEY_PREFIX_BYTES + 6, key + AUTH_KEY_BYTES - 4, 4);
    out[KEY_PREFIX_BYTES + 10] = '\0';
}

void auth_mint(struct env *env, struct str pepper, struct auth_key *out)
{
    uint8_t number[KEY_RANDOM_BYTES];

    memset(out, 0, sizeof(*out));
    env_random(env, number, sizeof(number));
    memcpy(out->text, prefix, KEY_PREFIX_BYTES);
    for (size_t i = KEY_BODY_BYTES; i-- > KEY_PREFIX_BYTES;) {
        out->text[i] = base62[divide_62(number)];
    }
    hash_wipe(number, sizeof(number));
    check_digits(out->text, out->text + KEY_BODY_BYTES);
    redact(out->text, out->redacted);
    hash_hmac_sha256(pepper, str_of(out->text, AUTH_KEY_BYTES), out->hmac);
}

static bool is_base62(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

bool auth_is_well_formed(struct str key)
{
    char check[KEY_CHECK_DIGITS];

    if (key.n != AUTH_KEY_BYTES || memcmp(key.p, prefix, KEY_PREFIX_BYTES) != 0) {
        return false;
    }
    for (size_t i = KEY_PREFIX_BYTES; i < KEY_BODY_BYTES; i++) {
        if (!is_base62(key.p[i])) {
            return false;
        }
    }
    check_digits(key.p, check);
    return hash_equal(check, key.p + KEY_BODY_BYTES, KEY_CHECK_DIGITS);
}

/* The credentials of "Bearer KEY"; empty: another scheme. */
static struct str bearer(struct str value)
{
    struct str scheme, rest;

    if (!str_cut(value, ' ', &scheme, &rest) || !str_ieq(scheme, STR("bearer"))) {
        return (struct str){NULL, 0};
    }
    return str_trim(rest);
}

struct str auth_key_of(const struct http_fields *f)
{
    struct str key = bearer(http_field(f, STR("authorization")));

    if (key.n == 0) {
        key = str_trim(http_field(f, STR("x-api-key")));
    }
    if (key.n == 0) {
        key = str_trim(http_field(f, STR("api-key")));
    }
    return key;
}

/* First key whose HMAC is not less than `hmac` in its first bytes. That search may be timed: it
 * tells an attacker bits of HMACs that he cannot aim at without the pepper. */
static uint32_t lower_bound(const struct snapshot *s, const uint8_t hmac[SHA256_BYTES])
{
    uint32_t lo = 0, hi = s->n_keys;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (memcmp(s->keys[mid].hmac, hmac, HMAC_INDEX_BYTES) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static const struct snap_key *find(const struct snapshot *s, const uint8_t hmac[SHA256_BYTES])
{
    for (uint32_t i = lower_bound(s, hmac);
         i < s->n_keys && memcmp(s->keys[i].hmac, hmac, HMAC_INDEX_BYTES) == 0; i++) {
        if (hash_equal(s->keys[i].hmac, hmac, SHA256_BYTES)) {
            return &s->keys[i];
        }
    }
    return NULL;
}

enum auth_answer auth_check(const struct snapshot *s, struct str pepper, struct str key,
                            const struct snap_key **out)
{
    uint8_t hmac[SHA256_BYTES];
    const struct snap_key *found;
    const struct snap_tenant *tenant;

    *out = NULL;
    if (key.n == 0) {
        return AUTH_MISSING;
    }
    if (!auth_is_well_formed(key)) {
        return AUTH_BAD;
    }
    hash_hmac_sha256(pepper, key, hmac);
    found = find(s, hmac);
    hash_wipe(hmac, sizeof(hmac));
    tenant = found == NULL ? NULL : snapshot_tenant(s, found->tenant_id);
    if (tenant == NULL) {
        return AUTH_BAD;
    }
    if (found->revoked) {
        return AUTH_REVOKED;
    }
    if (tenant->disabled) {
        return AUTH_DISABLED;
    }
    *out = found;
    return AUTH_OK;
}
