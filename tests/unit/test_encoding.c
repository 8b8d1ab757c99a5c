/* test_encoding.c - gzip and zstd bodies: any split, truncation, rubbish, bombs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/net/encoding.h"

#include <zlib.h>
#include <zstd.h>

static void gzip_pack(struct buf *out, struct str in)
{
    z_stream z = {0};
    size_t room = in.n + in.n / 100 + 1024;
    uint8_t *p;

    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
    p = buf_reserve(out, room);
    assert_non_null(p);
    z.next_in = (Bytef *)(uintptr_t)in.p;
    z.avail_in = (uInt)in.n;
    z.next_out = p;
    z.avail_out = (uInt)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    buf_commit(out, room - z.avail_out);
    deflateEnd(&z);
}

static void zstd_pack(struct buf *out, struct str in)
{
    size_t room = ZSTD_compressBound(in.n), n;
    uint8_t *p = buf_reserve(out, room);

    assert_non_null(p);
    n = ZSTD_compress(p, room, in.p, in.n, 3);
    assert_false(ZSTD_isError(n));
    buf_commit(out, n);
}

static void pack(enum encoding e, struct buf *out, struct str in)
{
    if (e == ENCODING_GZIP) {
        gzip_pack(out, in);
    } else {
        zstd_pack(out, in);
    }
}

/* Decodes in pieces. ERR_NONE: well-formed and whole. */
static enum err_code unpack(enum encoding e, struct str in, size_t piece, struct buf *out)
{
    struct decoder *d = decoder_new(e);
    struct err err = {.code = ERR_NONE};
    bool ok = true;

    assert_non_null(d);
    for (size_t at = 0; ok && at < in.n; at += piece) {
        ok = decoder_feed(d, in.p + at, size_min(piece, in.n - at), out, &err);
    }
    if (ok) {
        ok = decoder_end(d, &err);
    }
    assert_true(ok == (err.code == ERR_NONE));
    decoder_free(d);
    return err.code;
}

static const enum encoding both[] = {ENCODING_GZIP, ENCODING_ZSTD};

/* n bytes that compress about as JSON does. */
static struct str json_like(size_t n)
{
    char *p = malloc(n + 64);
    size_t at = 0;
    unsigned v = 12345;

    while (at < n) {
        v = v * 1103515245 + 12345;
        at += (size_t)snprintf(p + at, 64, "{\"role\":\"user\",\"content\":\"%u\"},", v >> 16);
    }
    return str_of(p, n);
}

static void bodies_come_back_for_any_split(void **state)
{
    static const size_t pieces[] = {1, 7, 4096, SIZE_MAX / 2};
    struct str text = json_like(200000);

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(both); i++) {
        struct buf packed, out;

        buf_init(&packed, 1 << 20);
        buf_init(&out, 1 << 20);
        pack(both[i], &packed, text);
        for (size_t k = 0; k < ARRAY_LEN(pieces); k++) {
            buf_reset(&out);
            assert_int_equal(unpack(both[i], buf_view(&packed), pieces[k], &out), ERR_NONE);
            assert_true(str_eq(buf_view(&out), text));
        }
        buf_fini(&packed);
        buf_fini(&out);
    }
    free((char *)(uintptr_t)text.p);
}

static void members_and_frames_may_follow_one_another(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(both); i++) {
        struct buf packed, out;

        buf_init(&packed, 1 << 16);
        buf_init(&out, 1 << 16);
        pack(both[i], &packed, STR("hello "));
        pack(both[i], &packed, STR(""));
        pack(both[i], &packed, STR("world"));
        assert_int_equal(unpack(both[i], buf_view(&packed), 1, &out), ERR_NONE);
        assert_int_equal(unpack(both[i], buf_view(&packed), packed.len, &out), ERR_NONE);
        assert_true(str_eq(buf_view(&out), STR("hello worldhello world")));
        buf_fini(&packed);
        buf_fini(&out);
    }
}

static void every_truncation_is_told(void **state)
{
    struct str text = json_like(300);

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(both); i++) {
        struct buf packed, out;

        buf_init(&packed, 1 << 16);
        buf_init(&out, 1 << 16);
        pack(both[i], &packed, text);
        for (size_t n = 0; n < packed.len; n++) {
            buf_reset(&out);
            if (unpack(both[i], str_of(packed.p, n), 64, &out) != ERR_INPUT) {
                fail_msg("encoding %d cut at %zu of %zu was taken", both[i], n, packed.len);
            }
        }
        buf_fini(&packed);
        buf_fini(&out);
    }
    free((char *)(uintptr_t)text.p);
}

static void rubbish_and_rubbish_behind_the_end_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(both); i++) {
        struct buf packed, out;

        buf_init(&packed, 1 << 16);
        buf_init(&out, 1 << 16);
        assert_int_equal(unpack(both[i], STR("{\"not\":\"packed\"}"), 100, &out), ERR_INPUT);
        pack(both[i], &packed, STR("hello"));
        buf_c(&packed, "rubbish behind");
        assert_int_equal(unpack(both[i], buf_view(&packed), 1000, &out), ERR_INPUT);
        assert_int_equal(unpack(both[i], buf_view(&packed), 1, &out), ERR_INPUT);
        buf_fini(&packed);
        buf_fini(&out);
    }
}

static void a_flipped_bit_in_gzip_is_told_by_its_checksum(void **state)
{
    struct buf packed, out;

    (void)state;
    buf_init(&packed, 1 << 16);
    buf_init(&out, 1 << 16);
    gzip_pack(&packed, STR("hello"));
    packed.p[packed.off + packed.len - 6] ^= 1;
    assert_int_equal(unpack(ENCODING_GZIP, buf_view(&packed), 100, &out), ERR_INPUT);
    buf_fini(&packed);
    buf_fini(&out);
}

static void raw_and_zlib_streams_are_not_gzip(void **state)
{
    uint8_t packed[128];
    uLongf n = sizeof(packed);
    struct buf out;

    (void)state;
    buf_init(&out, 1 << 16);
    assert_int_equal(compress(packed, &n, (const Bytef *)"hello", 5), Z_OK);
    assert_int_equal(unpack(ENCODING_GZIP, str_of(packed, n), 100, &out), ERR_INPUT);
    buf_fini(&out);
}

static void the_output_bound_holds_to_the_byte(void **state)
{
    struct str text = json_like(100000);

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(both); i++) {
        struct buf packed, exact, less;

        buf_init(&packed, 1 << 20);
        buf_init(&exact, 100000);
        buf_init(&less, 99999);
        pack(both[i], &packed, text);
        assert_int_equal(unpack(both[i], buf_view(&packed), 1000, &exact), ERR_NONE);
        assert_int_equal(unpack(both[i], buf_view(&packed), 1000, &less), ERR_LIMIT);
        assert_true(less.len <= 99999);
        buf_fini(&packed);
        buf_fini(&exact);
        buf_fini(&less);
    }
    free((char *)(uintptr_t)text.p);
}

/* 32 MiB of zeros, a thousandfold smaller when packed. */
static void a_bomb_ends_at_the_ratio_long_before_the_bound(void **state)
{
    size_t n = (size_t)32 << 20;
    struct str zeros = {calloc(1, n), n};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(both); i++) {
        struct buf packed, out;

        buf_init(&packed, 1 << 26);
        buf_init(&out, (size_t)1 << 26);
        pack(both[i], &packed, zeros);
        assert_true(packed.len < n / 500);
        assert_int_equal(unpack(both[i], buf_view(&packed), 4096, &out), ERR_LIMIT);
        if (out.len > (size_t)8 << 20) {
            fail_msg("encoding %d: %zu bytes before the end", both[i], out.len);
        }
        buf_fini(&packed);
        buf_fini(&out);
    }
    free((char *)(uintptr_t)zeros.p);
}

static void small_bodies_may_compress_well(void **state)
{
    static char zeros[1 << 20];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(both); i++) {
        struct buf packed, out;

        buf_init(&packed, 1 << 21);
        buf_init(&out, 1 << 21);
        pack(both[i], &packed, str_of(zeros, sizeof(zeros)));
        assert_int_equal(unpack(both[i], buf_view(&packed), packed.len, &out), ERR_NONE);
        assert_int_equal(out.len, sizeof(zeros));
        buf_fini(&packed);
        buf_fini(&out);
    }
}

static void a_zstd_window_past_8_mib_is_refused(void **state)
{
    size_t n = (size_t)20 << 20;
    struct str text = json_like(n);
    ZSTD_CCtx *c = ZSTD_createCCtx();
    struct buf packed, out;
    size_t got;

    (void)state;
    buf_init(&packed, 1 << 26);
    buf_init(&out, 1 << 26);
    ZSTD_CCtx_setParameter(c, ZSTD_c_windowLog, 25);
    ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, 0);
    got = ZSTD_compress2(c, buf_reserve(&packed, ZSTD_compressBound(n)), ZSTD_compressBound(n),
                         text.p, n);
    assert_false(ZSTD_isError(got));
    buf_commit(&packed, got);
    assert_int_equal(unpack(ENCODING_ZSTD, buf_view(&packed), 4096, &out), ERR_INPUT);
    ZSTD_freeCCtx(c);
    free((char *)(uintptr_t)text.p);
    buf_fini(&packed);
    buf_fini(&out);
}

static void encodings_are_named_as_http_does(void **state)
{
    (void)state;
    assert_int_equal(encoding_named(STR("")), ENCODING_IDENTITY);
    assert_int_equal(encoding_named(STR("identity")), ENCODING_IDENTITY);
    assert_int_equal(encoding_named(STR("GZIP")), ENCODING_GZIP);
    assert_int_equal(encoding_named(STR("x-gzip")), ENCODING_GZIP);
    assert_int_equal(encoding_named(STR("zstd")), ENCODING_ZSTD);
    assert_int_equal(encoding_named(STR("br")), ENCODING_UNKNOWN);
    assert_int_equal(encoding_named(STR("gzip, gzip")), ENCODING_UNKNOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bodies_come_back_for_any_split),
        cmocka_unit_test(members_and_frames_may_follow_one_another),
        cmocka_unit_test(every_truncation_is_told),
        cmocka_unit_test(rubbish_and_rubbish_behind_the_end_are_refused),
        cmocka_unit_test(a_flipped_bit_in_gzip_is_told_by_its_checksum),
        cmocka_unit_test(raw_and_zlib_streams_are_not_gzip),
        cmocka_unit_test(the_output_bound_holds_to_the_byte),
        cmocka_unit_test(a_bomb_ends_at_the_ratio_long_before_the_bound),
        cmocka_unit_test(small_bodies_may_compress_well),
        cmocka_unit_test(a_zstd_window_past_8_mib_is_refused),
        cmocka_unit_test(encodings_are_named_as_http_does),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
