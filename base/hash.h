/* hash.h - the one door to xxHash and to OpenSSL's digests. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include "base/str.h"

#define SHA256_BYTES 32

struct hash128 {
    uint64_t lo, hi;
};

uint64_t hash_xxh3(const void *p, size_t n, uint64_t seed);
struct hash128 hash_xxh3_128(const void *p, size_t n, uint64_t seed);
void hash_sha256(const void *p, size_t n, uint8_t out[SHA256_BYTES]);
void hash_hmac_sha256(struct str key, struct str data, uint8_t out[SHA256_BYTES]);
/* CRC-32 (IEEE, as in zip), for the checksum of keys. */
uint32_t hash_crc32(const void *p, size_t n);
/* Constant time; lengths are public. */
bool hash_equal(const void *a, const void *b, size_t n);
void hash_wipe(void *p, size_t n); /* not optimised away */

/* SHA-256 of a stream (files checked by digest). Opaque, owned by the caller; end with _end. */
struct hash_sha256_stream;
struct hash_sha256_stream *hash_sha256_begin(void);
void hash_sha256_add(struct hash_sha256_stream *, const void *p, size_t n);
void hash_sha256_end(struct hash_sha256_stream *, uint8_t out[SHA256_BYTES]); /* frees */

#endif
