/* test_gguf.c - a good file is read back; every kind of hostile file is refused with its reason.
 *
 * Each parse works on a heap copy of exactly the file's bytes, so that the address sanitizer sees a
 * read past the end. */
#include "worker/model/gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "worker/model/quant.h"

#define FILE_BYTES_MAX (1u << 20)

static void u32(struct buf *b, uint32_t v)
{
    buf_append(b, &v, sizeof(v));
}

static void u64(struct buf *b, uint64_t v)
{
    buf_append(b, &v, sizeof(v));
}

static void text(struct buf *b, const char *z)
{
    u64(b, strlen(z));
    buf_c(b, z);
}

static void header(struct buf *b, uint64_t tensors, uint64_t keys)
{
    buf_init(b, FILE_BYTES_MAX);
    buf_c(b, "GGUF");
    u32(b, 3);
    u64(b, tensors);
    u64(b, keys);
}

static void key(struct buf *b, const char *name, enum gguf_type type)
{
    text(b, name);
    u32(b, type);
}

static void tensor(struct buf *b, const char *name, uint64_t columns, uint64_t rows, uint32_t type,
                   uint64_t offset)
{
    text(b, name);
    u32(b, 2);
    u64(b, columns);
    u64(b, rows);
    u32(b, type);
    u64(b, offset);
}

static void data(struct buf *b, uint32_t alignment, size_t n)
{
    while (b->len % alignment != 0) {
        buf_byte(b, 0);
    }
    for (size_t i = 0; i < n; i++) {
        buf_byte(b, (uint8_t)i);
    }
}

/* Parses the first n bytes of b. */
static bool parse(struct gguf *g, const struct buf *b, size_t n, uint8_t **copy, struct err *e)
{
    err_clear(e);
    *copy = malloc(n == 0 ? 1 : n);
    assert_non_null(*copy);
    memcpy(*copy, buf_view(b).p, n);
    return gguf_parse(g, *copy, n, e);
}

/* Ends b. */
static void refuse(struct buf *b, const char *reason)
{
    struct gguf g;
    struct err e;
    uint8_t *copy;

    assert_false(b->failed);
    if (parse(&g, b, b->len, &copy, &e)) {
        fail_msg("accepted, but should say: %s", reason);
    }
    if (strstr(e.text, reason) == NULL) {
        fail_msg("says \"%s\", not \"%s\"", e.text, reason);
    }
    free(copy);
    buf_fini(b);
}

static void build_good(struct buf *b)
{
    header(b, 2, 8);
    key(b, "count", GGUF_U32);
    u32(b, 7);
    key(b, "minus", GGUF_I8);
    buf_byte(b, 0xFE);
    key(b, "half", GGUF_F32);
    u32(b, 0x3F000000);
    key(b, "yes", GGUF_BOOL);
    buf_byte(b, 1);
    key(b, "name", GGUF_STRING);
    text(b, "tiny");
    key(b, "words", GGUF_ARRAY);
    u32(b, GGUF_STRING);
    u64(b, 2);
    text(b, "a");
    text(b, "");
    key(b, "numbers", GGUF_ARRAY);
    u32(b, GGUF_I32);
    u64(b, 2);
    u32(b, 5);
    u32(b, 6);
    key(b, "wide", GGUF_U64);
    u64(b, 1ull << 40);
    tensor(b, "w", 32, 2, QUANT_Q8_0, 0);
    tensor(b, "again", 4, 4, QUANT_F32, 0); /* overlapping is allowed */
    data(b, 32, 68);
}

static void good_file_is_read_back(void **state)
{
    struct buf b;
    struct gguf g;
    struct err e;
    uint8_t *copy;
    uint32_t count;
    float half;
    struct str name;

    (void)state;
    build_good(&b);
    assert_true(parse(&g, &b, b.len, &copy, &e));
    assert_true(gguf_u32(&g, "count", &count, &e) && count == 7);
    assert_true(gguf_f32(&g, "half", &half, &e) && half == 0.5f);
    assert_true(gguf_str(&g, "name", &name, &e) && str_eq(name, STR("tiny")));
    assert_int_equal(gguf_find(&g, "minus")->v.i64, -2);
    assert_int_equal(gguf_find(&g, "wide")->v.u64, 1ull << 40);
    assert_int_equal(gguf_find(&g, "words")->v.array.count, 2);
    assert_true(str_eq(gguf_find(&g, "words")->v.array.strings[0], STR("a")));
    assert_int_equal(((const uint8_t *)gguf_find(&g, "numbers")->v.array.data)[4], 6);
    const struct gguf_tensor *w = gguf_tensor(&g, "w");
    assert_int_equal(w->bytes, 68);
    assert_int_equal(w->dims[0], 32);
    assert_int_equal(w->dims[1], 2);
    assert_int_equal(w->data[67], 67);
    assert_ptr_equal(gguf_tensor(&g, "again")->data, w->data);
    assert_null(gguf_tensor(&g, "none"));
    gguf_close(&g);
    free(copy);
    buf_fini(&b);
}

static void file_cut_at_any_byte_is_refused(void **state)
{
    struct buf b;

    (void)state;
    build_good(&b);
    for (size_t n = 0; n < b.len; n++) {
        struct gguf g;
        struct err e;
        uint8_t *copy;
        if (parse(&g, &b, n, &copy, &e)) {
            fail_msg("%zu of %zu bytes were accepted", n, b.len);
        }
        assert_true(e.code != ERR_NONE && e.text[0] != '\0');
        free(copy);
    }
    buf_fini(&b);
}

/* Any single byte changed: read or refused, never a crash. */
static void file_with_any_byte_changed_does_not_crash(void **state)
{
    struct buf b;

    (void)state;
    build_good(&b);
    for (size_t at = 0; at < b.len; at++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            struct gguf g;
            struct err e;
            uint8_t *copy, *p = (uint8_t *)(uintptr_t)buf_view(&b).p;
            p[at] ^= (uint8_t)(1u << bit);
            if (parse(&g, &b, b.len, &copy, &e)) {
                for (uint32_t i = 0; i < g.n_tensors; i++) {
                    assert_true(g.tensors[i].data + g.tensors[i].bytes <= copy + b.len);
                }
                gguf_close(&g);
            }
            free(copy);
            p[at] ^= (uint8_t)(1u << bit);
        }
    }
    buf_fini(&b);
}

static void wrong_magic_and_versions_are_refused(void **state)
{
    struct buf b;

    (void)state;
    header(&b, 0, 0);
    ((char *)(uintptr_t)buf_view(&b).p)[0] = 'g';
    refuse(&b, "not a GGUF file");
    for (uint32_t version = 0; version < 6; version++) {
        if (version == 2 || version == 3) {
            continue;
        }
        header(&b, 0, 0);
        memcpy((char *)(uintptr_t)buf_view(&b).p + 4, &version, sizeof(version));
        refuse(&b, "versions 2 and 3");
    }
}

static void counts_past_the_limits_are_refused(void **state)
{
    struct buf b;

    (void)state;
    header(&b, UINT64_MAX, 0);
    refuse(&b, "tensors and");
    header(&b, 0, GGUF_KEYS_MAX + 1);
    refuse(&b, "at most");
    header(&b, GGUF_TENSORS_MAX, GGUF_KEYS_MAX); /* allowed, but not there */
    refuse(&b, "ends inside the name of a key");
}

static void array_lengths_past_the_file_are_refused(void **state)
{
    static const uint64_t counts[] = {3, GGUF_ARRAY_MAX, GGUF_ARRAY_MAX + 1ull, UINT64_MAX,
                                      UINT64_MAX / 8 + 1};
    struct buf b;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        for (uint32_t type = GGUF_U8; type <= GGUF_F64; type++) {
            header(&b, 0, 1);
            key(&b, "k", GGUF_ARRAY);
            u32(&b, type);
            u64(&b, counts[i]);
            refuse(&b, type == GGUF_ARRAY && counts[i] <= GGUF_ARRAY_MAX
                           ? "neither a number nor a string"
                       : counts[i] > GGUF_ARRAY_MAX ? "at most"
                                                    : "ends inside an array");
        }
    }
    header(&b, 0, 1);
    key(&b, "k", GGUF_STRING);
    u64(&b, UINT64_MAX);
    refuse(&b, "key k: the file ends inside a string");
}

static void names_that_are_empty_long_or_doubled_are_refused(void **state)
{
    struct buf b;
    char *name = malloc(70001);

    (void)state;
    header(&b, 0, 1);
    key(&b, "", GGUF_U8);
    refuse(&b, "of 0 bytes");
    memset(name, 'n', 70000);
    name[70000] = '\0';
    header(&b, 0, 1);
    key(&b, name, GGUF_U8);
    refuse(&b, "of 70000 bytes");
    free(name);
    header(&b, 0, 2);
    for (int i = 0; i < 2; i++) {
        key(&b, "twin", GGUF_U8);
        buf_byte(&b, 1);
    }
    refuse(&b, "key twin comes twice");
    header(&b, 2, 0);
    tensor(&b, "twin", 4, 1, QUANT_F32, 0);
    tensor(&b, "twin", 4, 1, QUANT_F32, 0);
    data(&b, 32, 64);
    refuse(&b, "tensor twin comes twice");
}

static void bad_values_are_refused(void **state)
{
    struct buf b;

    (void)state;
    header(&b, 0, 1);
    key(&b, "k", GGUF_BOOL);
    buf_byte(&b, 2);
    refuse(&b, "a boolean of 2");
    header(&b, 0, 1);
    key(&b, "k", (enum gguf_type)13);
    u64(&b, 0);
    refuse(&b, "value type 13 is unknown");
}

static void shapes_that_make_no_sense_are_refused(void **state)
{
    static const struct {
        uint64_t columns, rows;
        uint32_t type;
        const char *reason;
    } table[] = {
        {0, 1, QUANT_F32, "dimension of zero"},
        {4, 0, QUANT_F32, "dimension of zero"},
        {1ull << 33, 1ull << 33, QUANT_F32, "more elements than 64 bits"},
        {1ull << 62, 2, QUANT_F32, "more bytes than 64 bits"},
        {1ull << 62, 1, QUANT_F32, "more bytes than 64 bits"},
        {33, 1, QUANT_Q4_1, "no multiple of the 32"},
        {128, 1, QUANT_Q4_K, "no multiple of the 256"},
        {32, 1, 9, "type 9 is not one"},
        {32, 1, UINT32_MAX, "is not one that is read"},
        {1ull << 40, 1, QUANT_F32, "of a data section"},
        {17, 1, QUANT_F32, "of a data section"},
    };
    struct buf b;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        header(&b, 1, 0);
        tensor(&b, "t", table[i].columns, table[i].rows, table[i].type, 0);
        data(&b, 32, 64);
        refuse(&b, table[i].reason);
    }
    for (uint32_t dims = 0; dims < 7; dims++) {
        if (dims >= 1 && dims <= GGUF_DIMS_MAX) {
            continue;
        }
        header(&b, 1, 0);
        text(&b, "t");
        u32(&b, dims);
        data(&b, 32, 128);
        refuse(&b, "1 to 4 are read");
    }
}

static void offsets_outside_or_unaligned_are_refused(void **state)
{
    static const struct {
        uint64_t offset;
        const char *reason;
    } table[] = {
        {8, "not aligned to 32"},        {64, "at offset 64 of a data section of 64"},
        {96, "of a data section of 64"}, {UINT64_MAX - 31, "of a data section"},
        {UINT64_MAX, "not aligned"},
    };
    struct buf b;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        header(&b, 1, 0);
        tensor(&b, "t", 16, 1, QUANT_F32, table[i].offset);
        data(&b, 32, 64);
        refuse(&b, table[i].reason);
    }
    header(&b, 1, 0); /* directory only: the data section would begin past the end */
    tensor(&b, "t", 16, 1, QUANT_F32, 0);
    refuse(&b, "of a data section of 0");
}

static void alignments_that_are_no_power_of_two_are_refused(void **state)
{
    static const uint32_t bad[] = {0, 1, 4, 12, 33, 1u << 21, UINT32_MAX};
    struct buf b;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        header(&b, 0, 1);
        key(&b, "general.alignment", GGUF_U32);
        u32(&b, bad[i]);
        data(&b, 32, 32);
        refuse(&b, "general.alignment");
    }
    header(&b, 0, 1);
    key(&b, "general.alignment", GGUF_STRING);
    text(&b, "32");
    refuse(&b, "is a string, not a count");
}

static void typed_lookups_tell_what_is_wrong(void **state)
{
    struct buf b;
    struct gguf g;
    struct err e;
    uint8_t *copy;
    uint32_t count;
    float f;
    struct str s;

    (void)state;
    build_good(&b);
    assert_true(parse(&g, &b, b.len, &copy, &e));
    assert_false(gguf_u32(&g, "none", &count, &e));
    assert_string_equal(e.text, "key none: missing");
    err_clear(&e);
    assert_false(gguf_u32(&g, "name", &count, &e));
    assert_string_equal(e.text, "key name: is a string, not a count");
    err_clear(&e);
    assert_false(gguf_u32(&g, "minus", &count, &e));
    assert_string_equal(e.text, "key minus: out of range");
    err_clear(&e);
    assert_false(gguf_u32(&g, "wide", &count, &e));
    assert_string_equal(e.text, "key wide: out of range");
    err_clear(&e);
    assert_false(gguf_f32(&g, "words", &f, &e));
    assert_string_equal(e.text, "key words: is an array, not a fraction");
    err_clear(&e);
    assert_false(gguf_str(&g, "yes", &s, &e));
    assert_string_equal(e.text, "key yes: is a boolean, not a string");
    gguf_close(&g);
    free(copy);
    buf_fini(&b);
}

static void paths_that_hold_no_file_are_refused(void **state)
{
    char path[] = "/tmp/test_gguf.XXXXXX";
    struct gguf g;
    struct err e;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    err_clear(&e);
    assert_false(gguf_open(&g, path, &e)); /* empty */
    assert_non_null(strstr(e.text, "bytes in it"));
    unlink(path);
    close(fd);
    err_clear(&e);
    assert_false(gguf_open(&g, path, &e));
    assert_non_null(strstr(e.text, "No such file"));
    err_clear(&e);
    assert_false(gguf_open(&g, "/", &e));
    assert_non_null(strstr(e.text, "not a file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_file_is_read_back),
        cmocka_unit_test(file_cut_at_any_byte_is_refused),
        cmocka_unit_test(file_with_any_byte_changed_does_not_crash),
        cmocka_unit_test(wrong_magic_and_versions_are_refused),
        cmocka_unit_test(counts_past_the_limits_are_refused),
        cmocka_unit_test(array_lengths_past_the_file_are_refused),
        cmocka_unit_test(names_that_are_empty_long_or_doubled_are_refused),
        cmocka_unit_test(bad_values_are_refused),
        cmocka_unit_test(shapes_that_make_no_sense_are_refused),
        cmocka_unit_test(offsets_outside_or_unaligned_are_refused),
        cmocka_unit_test(alignments_that_are_no_power_of_two_are_refused),
        cmocka_unit_test(typed_lookups_tell_what_is_wrong),
        cmocka_unit_test(paths_that_hold_no_file_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
