/* test_hash.c - published vectors for each digest. */
#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void assert_digest(const uint8_t digest[SHA256_BYTES], const char *expected)
{
    char text[2 * SHA256_BYTES + 1];

    str_hex(digest, SHA256_BYTES, text);
    assert_string_equal(text, expected);
}

/* FIPS 180-2, appendix B. */
static void sha256_matches_published_vectors(void **state)
{
    uint8_t d[SHA256_BYTES];

    (void)state;
    hash_sha256(NULL, 0, d);
    assert_digest(d, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    hash_sha256("abc", 3, d);
    assert_digest(d, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hash_sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, d);
    assert_digest(d, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void sha256_of_a_stream_equals_the_whole(void **state)
{
    struct hash_sha256_stream *s = hash_sha256_begin();
    uint8_t data[1000], whole[SHA256_BYTES], parts[SHA256_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t)(i * 7);
    }
    hash_sha256(data, sizeof(data), whole);
    hash_sha256_add(s, NULL, 0);
    for (size_t at = 0, n = 1; at < sizeof(data);
         at += n, n = size_min(n + 13, sizeof(data) - at)) {
        hash_sha256_add(s, data + at, n);
    }
    hash_sha256_end(s, parts);
    assert_memory_equal(whole, parts, SHA256_BYTES);
}

/* RFC 4231, cases 1, 2, 6 and 7; and both parts empty. */
static void hmac_matches_rfc_4231(void **state)
{
    uint8_t key[131], d[SHA256_BYTES];

    (void)state;
    memset(key, 0x0b, 20);
    hash_hmac_sha256(str_of(key, 20), STR("Hi There"), d);
    assert_digest(d, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    hash_hmac_sha256(STR("Jefe"), STR("what do ya want for nothing?"), d);
    assert_digest(d, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof(key));
    hash_hmac_sha256(str_of(key, sizeof(key)),
                     STR("Test Using Larger Than Block-Size Key - Hash Key First"), d);
    assert_digest(d, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    hash_hmac_sha256(str_of(key, sizeof(key)),
                     STR("This is a test using a larger than block-size key and a larger than "
                         "block-size data. The key needs to be hashed before being used by the "
                         "HMAC algorithm."),
                     d);
    assert_digest(d, "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
    hash_hmac_sha256(str_c(NULL), str_c(NULL), d);
    assert_digest(d, "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

static void crc32_matches_its_check_value(void **state)
{
    (void)state;
    assert_int_equal(hash_crc32("123456789", 9), 0xcbf43926);
    assert_int_equal(hash_crc32("", 0), 0);
    assert_int_equal(hash_crc32("\xff\xff\xff\xff", 4), 0xffffffff);
}

/* Constants of the xxHash specification: XXH3 of the empty input, seed 0. */
static void xxh3_is_the_published_function_and_seeded(void **state)
{
    struct hash128 h = hash_xxh3_128("", 0, 0);

    (void)state;
    assert_true(hash_xxh3("", 0, 0) == 0x2d06800538d394c2);
    assert_true(hash_xxh3(NULL, 0, 0) == 0x2d06800538d394c2);
    assert_true(h.lo == 0x6001c324468d497f && h.hi == 0x99aa06d3014798d8);
    assert_true(hash_xxh3("abc", 3, 1) != hash_xxh3("abc", 3, 2));
    assert_true(hash_xxh3_128("abc", 3, 1).lo != hash_xxh3_128("abc", 3, 2).lo);
}

static void equal_and_wipe(void **state)
{
    uint8_t secret[4] = {1, 2, 3, 4};

    (void)state;
    assert_true(hash_equal(secret, "\x01\x02\x03\x04", 4));
    assert_false(hash_equal(secret, "\x01\x02\x03\x05", 4));
    assert_true(hash_equal(NULL, NULL, 0));
    hash_wipe(secret, sizeof(secret));
    assert_memory_equal(secret, "\0\0\0\0", 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_matches_published_vectors),
        cmocka_unit_test(sha256_of_a_stream_equals_the_whole),
        cmocka_unit_test(hmac_matches_rfc_4231),
        cmocka_unit_test(crc32_matches_its_check_value),
        cmocka_unit_test(xxh3_is_the_published_function_and_seeded),
        cmocka_unit_test(equal_and_wipe),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
