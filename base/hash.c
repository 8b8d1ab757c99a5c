/* hash.c - xxHash, OpenSSL's SHA-256, and a small CRC.
 *
 * SHA-256 uses the low-level calls: the EVP ones look an algorithm up under a lock and allocate
 * on every digest, which costs more than hashing a key does, and these cannot fail. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "base/hash.h"

#include <openssl/crypto.h> /* CRYPTO_memcmp, OPENSSL_cleanse */
#include <openssl/sha.h>
#include <xxhash.h>

#define HMAC_BLOCK_BYTES 64

_Static_assert(SHA256_BYTES == SHA256_DIGEST_LENGTH, "one digest size");

struct hash_sha256_stream {
    SHA256_CTX ctx;
};

uint64_t hash_xxh3(const void *p, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(p, n, seed);
}

struct hash128 hash_xxh3_128(const void *p, size_t n, uint64_t seed)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(p, n, seed);

    return (struct hash128){.lo = h.low64, .hi = h.high64};
}

void hash_sha256(const void *p, size_t n, uint8_t out[SHA256_BYTES])
{
    SHA256_CTX ctx;

    SHA256_Init(&ctx);
    SHA256_Update(&ctx, p, n);
    SHA256_Final(out, &ctx); /* wipes ctx */
}

/* RFC 2104: H(key ^ opad, H(key ^ ipad, data)); a key longer than a block is its digest. */
void hash_hmac_sha256(struct str key, struct str data, uint8_t out[SHA256_BYTES])
{
    uint8_t pad[HMAC_BLOCK_BYTES] = {0};
    SHA256_CTX ctx;

    if (key.n > sizeof(pad)) {
        hash_sha256(key.p, key.n, pad);
    } else if (key.n != 0) {
        memcpy(pad, key.p, key.n);
    }
    for (size_t i = 0; i < sizeof(pad); i++) {
        pad[i] ^= 0x36;
    }
    SHA256_Init(&ctx);
    SHA256_Update(&ctx, pad, sizeof(pad));
    SHA256_Update(&ctx, data.p, data.n);
    SHA256_Final(out, &ctx);
    for (size_t i = 0; i < sizeof(pad); i++) {
        pad[i] ^= 0x36 ^ 0x5c;
    }
    SHA256_Init(&ctx);
    SHA256_Update(&ctx, pad, sizeof(pad));
    SHA256_Update(&ctx, out, SHA256_BYTES);
    SHA256_Final(out, &ctx);
    hash_wipe(pad, sizeof(pad));
}

/* Half a byte a step: keys are short, and sixteen words need no table built at start. */
uint32_t hash_crc32(const void *p, size_t n)
{
    static const uint32_t half[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
        0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
        0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
    };
    const uint8_t *bytes = p;
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        crc = crc >> 4 ^ half[crc & 15];
        crc = crc >> 4 ^ half[crc & 15];
    }
    return ~crc;
}

bool hash_equal(const void *a, const void *b, size_t n)
{
    return n == 0 || CRYPTO_memcmp(a, b, n) == 0;
}

void hash_wipe(void *p, size_t n)
{
    OPENSSL_cleanse(p, n);
}

struct hash_sha256_stream *hash_sha256_begin(void)
{
    struct hash_sha256_stream *s = mem_new(sizeof(*s));

    SHA256_Init(&s->ctx);
    return s;
}

void hash_sha256_add(struct hash_sha256_stream *s, const void *p, size_t n)
{
    SHA256_Update(&s->ctx, p, n);
}

void hash_sha256_end(struct hash_sha256_stream *s, uint8_t out[SHA256_BYTES])
{
    SHA256_Final(out, &s->ctx);
    mem_free(s);
}
