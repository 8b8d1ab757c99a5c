/* test_auth.c - keys: minted well, refused before any hash when malformed, found by their HMAC
 * only. */
#include "admit_env.h"
#include "gateway/admit/auth.h"

#include <stdlib.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define PEPPER STR("a pepper of the tests")
#define KEYS 300

static unsigned hashed; /* how often a key was hashed, by the wrapped call */

void __real_hash_hmac_sha256(struct str key, struct str data, uint8_t out[SHA256_BYTES]);
void __wrap_hash_hmac_sha256(struct str key, struct str data, uint8_t out[SHA256_BYTES]);

void __wrap_hash_hmac_sha256(struct str key, struct str data, uint8_t out[SHA256_BYTES])
{
    hashed++;
    __real_hash_hmac_sha256(key, data, out);
}

static int by_hmac(const void *a, const void *b)
{
    return memcmp(((const struct snap_key *)a)->hmac, ((const struct snap_key *)b)->hmac,
                  SHA256_BYTES);
}

/* Two tenants (1, and 2 that is disabled); KEYS keys of tenant 1 but the last two: one of tenant 2,
 * one revoked. */
struct world {
    struct auth_key minted[KEYS];
    struct snap_key keys[KEYS];
    struct snap_tenant tenants[2];
    struct snapshot snap;
};

static struct world *world_new(void)
{
    struct world *w = calloc(1, sizeof(*w));
    struct admit_env env;

    admit_env_init(&env, 1);
    for (int i = 0; i < KEYS; i++) {
        auth_mint(&env.env, PEPPER, &w->minted[i]);
        w->keys[i].key_id = i + 1;
        w->keys[i].tenant_id = i == KEYS - 2 ? 2 : 1;
        w->keys[i].revoked = i == KEYS - 1;
        memcpy(w->keys[i].hmac, w->minted[i].hmac, SHA256_BYTES);
    }
    qsort(w->keys, KEYS, sizeof(w->keys[0]), by_hmac);
    w->tenants[0].tenant_id = 1;
    w->tenants[1].tenant_id = 2;
    w->tenants[1].disabled = true;
    w->snap =
        (struct snapshot){.tenants = w->tenants, .n_tenants = 2, .keys = w->keys, .n_keys = KEYS};
    return w;
}

static enum auth_answer check(const struct world *w, struct str key)
{
    const struct snap_key *found;

    return auth_check(&w->snap, PEPPER, key, &found);
}

static void every_minted_key_is_found_and_is_its_own(void **state)
{
    struct world *w = world_new();

    (void)state;
    for (int i = 0; i < KEYS; i++) {
        struct str text = str_c(w->minted[i].text);
        const struct snap_key *found = (const void *)w;
        enum auth_answer a = auth_check(&w->snap, PEPPER, text, &found);

        assert_int_equal(text.n, AUTH_KEY_BYTES);
        assert_true(auth_is_well_formed(text));
        if (i < KEYS - 2) {
            assert_int_equal(a, AUTH_OK);
            assert_int_equal(found->key_id, i + 1);
        } else {
            assert_int_equal(a, i == KEYS - 2 ? AUTH_DISABLED : AUTH_REVOKED);
            assert_null(found);
        }
    }
    free(w);
}

static void a_wrong_pepper_opens_nothing(void **state)
{
    struct world *w = world_new();
    const struct snap_key *found;

    (void)state;
    assert_int_equal(auth_check(&w->snap, STR("another pepper"), str_c(w->minted[0].text), &found),
                     AUTH_BAD);
    assert_null(found);
    free(w);
}

/* A well-formed key of somebody else's deployment. */
static void an_unknown_key_is_bad_and_an_empty_one_is_missing(void **state)
{
    struct world *w = world_new();
    struct snapshot nobody = {0};
    const struct snap_key *found;
    struct auth_key other;
    struct admit_env env;

    (void)state;
    admit_env_init(&env, 999);
    auth_mint(&env.env, PEPPER, &other);
    assert_int_equal(check(w, str_c(other.text)), AUTH_BAD);
    assert_int_equal(check(w, STR("")), AUTH_MISSING);
    assert_int_equal(check(w, str_c(NULL)), AUTH_MISSING);
    assert_int_equal(auth_check(&nobody, PEPPER, str_c(w->minted[0].text), &found), AUTH_BAD);
    free(w);
}

/* Only the last of the index' equal bytes decide: the comparison is over the whole HMAC. */
static void equal_first_bytes_of_an_hmac_are_not_enough(void **state)
{
    struct world *w = world_new();
    struct snap_key twins[3];
    struct snapshot s = {.tenants = w->tenants, .n_tenants = 2, .keys = twins, .n_keys = 3};
    const struct snap_key *found;

    (void)state;
    for (int i = 0; i < 3; i++) {
        twins[i] = (struct snap_key){.key_id = i + 1, .tenant_id = 1};
        memcpy(twins[i].hmac, w->minted[0].hmac, SHA256_BYTES);
    }
    twins[0].hmac[31] ^= 1;
    twins[2].hmac[16] ^= 1;
    assert_int_equal(auth_check(&s, PEPPER, str_c(w->minted[0].text), &found), AUTH_OK);
    assert_int_equal(found->key_id, 2);
    twins[1].hmac[20] ^= 128;
    assert_int_equal(auth_check(&s, PEPPER, str_c(w->minted[0].text), &found), AUTH_BAD);
    free(w);
}

/* Every single byte of a key changed to every other byte, every length: refused, and nothing
 * hashed. */
static void a_malformed_key_is_refused_before_any_hash(void **state)
{
    struct world *w = world_new();
    char text[AUTH_KEY_BYTES + 1];
    struct admit_env env;
    char junk[80];

    (void)state;
    admit_env_init(&env, 5);
    hashed = 0;
    for (size_t at = 0; at < AUTH_KEY_BYTES; at++) {
        for (int c = 0; c < 256; c++) {
            memcpy(text, w->minted[1].text, sizeof(text));
            if (text[at] != (char)c) {
                text[at] = (char)c;
                assert_false(auth_is_well_formed(str_of(text, AUTH_KEY_BYTES)));
                assert_int_equal(check(w, str_of(text, AUTH_KEY_BYTES)), AUTH_BAD);
            }
        }
    }
    for (size_t n = 1; n <= AUTH_KEY_BYTES; n++) {
        assert_true(auth_is_well_formed(str_of(w->minted[1].text, n)) == (n == AUTH_KEY_BYTES));
    }
    assert_false(auth_is_well_formed(str_of(w->minted[1].text, AUTH_KEY_BYTES + 1)));
    for (int i = 0; i < 20000; i++) {
        size_t n = 1 + env_random_u64(&env.env) % (sizeof(junk) - 1);

        env_random(&env.env, junk, n);
        if (i % 2 == 0 && n > 3) {
            memcpy(junk, "tg_", 3);
        }
        assert_int_equal(check(w, str_of(junk, n)), AUTH_BAD);
    }
    assert_int_equal(hashed, 0);
    free(w);
}

/* Neighbours swapped: what people do who copy by hand. The checksum sees it. */
static void swapped_digits_are_a_typo(void **state)
{
    struct world *w = world_new();
    char text[AUTH_KEY_BYTES + 1];

    (void)state;
    for (int k = 0; k < KEYS; k++) {
        for (size_t at = 3; at + 1 < AUTH_KEY_BYTES; at++) {
            memcpy(text, w->minted[k].text, sizeof(text));
            text[at] = w->minted[k].text[at + 1];
            text[at + 1] = w->minted[k].text[at];
            assert_true(auth_is_well_formed(str_of(text, AUTH_KEY_BYTES)) ==
                        (text[at] == text[at + 1]));
        }
    }
    free(w);
}

static void the_redacted_form_hides_the_key(void **state)
{
    struct world *w = world_new();

    (void)state;
    for (int k = 0; k < KEYS; k++) {
        struct str r = str_c(w->minted[k].redacted), text = str_c(w->minted[k].text);

        assert_int_equal(r.n, 13);
        assert_true(str_starts(r, STR("tg_")) && str_eq(str_of(r.p + 6, 3), STR("...")));
        assert_memory_equal(r.p, text.p, 6);
        assert_memory_equal(r.p + 9, text.p + AUTH_KEY_BYTES - 4, 4);
        assert_false(auth_is_well_formed(r));
    }
    free(w);
}

/* 160 random bits: all ones is the largest, all zeros the smallest; both have 27 digits. */
static void fill_ones(struct env *e, void *p, size_t n)
{
    (void)e;
    memset(p, 0xff, n);
}

static void fill_zeros(struct env *e, void *p, size_t n)
{
    (void)e;
    memset(p, 0, n);
}

static void the_digits_are_the_number_in_base_62(void **state)
{
    static const struct env_ops ones = {.random = fill_ones}, zeros = {.random = fill_zeros};
    struct env e = {&zeros};
    struct auth_key k;

    (void)state;
    auth_mint(&e, PEPPER, &k);
    assert_memory_equal(k.text, "tg_000000000000000000000000000", 30);
    assert_true(auth_is_well_formed(str_c(k.text)));
    e.ops = &ones;
    auth_mint(&e, PEPPER, &k);
    assert_memory_equal(k.text, "tg_aWgEPTl1tmebfsQzFP4bxwgy80V", 30);
    assert_true(auth_is_well_formed(str_c(k.text)));
}

static void the_key_is_read_from_three_fields(void **state)
{
    static const struct {
        const char *name[2], *value[2], *want;
    } cases[] = {
        {{"authorization"}, {"Bearer abc"}, "abc"},
        {{"authorization"}, {"bEARER   abc "}, "abc"},
        {{"authorization"}, {"Basic abc"}, ""},
        {{"authorization"}, {"Bearer"}, ""},
        {{"authorization"}, {"Bearerabc"}, ""},
        {{"authorization"}, {"abc"}, ""},
        {{"x-api-key"}, {"abc"}, "abc"},
        {{"api-key"}, {"abc"}, "abc"},
        {{"authorization", "x-api-key"}, {"Bearer abc", "def"}, "abc"},
        {{"authorization", "x-api-key"}, {"Basic Zm9v", "def"}, "def"},
        {{"api-key", "x-api-key"}, {"abc", "def"}, "def"},
        {{"cookie"}, {"abc"}, ""},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct http_field v[2];
        struct http_fields f = {v, 0};
        struct str key;

        for (; f.n < 2 && cases[i].name[f.n] != NULL; f.n++) {
            v[f.n] = (struct http_field){str_c(cases[i].name[f.n]), str_c(cases[i].value[f.n])};
        }
        key = auth_key_of(&f);
        if (!str_eq(key, str_c(cases[i].want))) {
            fail_msg("case %zu: '" STR_FMT "', not '%s'", i, STR_ARG(key), cases[i].want);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_minted_key_is_found_and_is_its_own),
        cmocka_unit_test(a_wrong_pepper_opens_nothing),
        cmocka_unit_test(an_unknown_key_is_bad_and_an_empty_one_is_missing),
        cmocka_unit_test(equal_first_bytes_of_an_hmac_are_not_enough),
        cmocka_unit_test(a_malformed_key_is_refused_before_any_hash),
        cmocka_unit_test(swapped_digits_are_a_typo),
        cmocka_unit_test(the_redacted_form_hides_the_key),
        cmocka_unit_test(the_digits_are_the_number_in_base_62),
        cmocka_unit_test(the_key_is_read_from_three_fields),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
