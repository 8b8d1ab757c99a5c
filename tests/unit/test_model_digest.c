/* test_model_digest.c - the digest of a model tells files apart that differ in weights alone. */
#include "worker/model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/tiny_model.h"

static char path[64];

static uint64_t digest(void)
{
    struct err e = {0};
    struct model *m = model_open(path, &e);
    uint64_t d;

    assert_non_null(m);
    d = m->digest;
    model_close(m);
    return d;
}

/* Flips one bit of the byte at `at`: a second call takes it back. */
static void change_byte(long at)
{
    FILE *f = fopen(path, "r+b");
    int c;

    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    c = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_equal(fputc(c ^ 1, f), c ^ 1);
    assert_int_equal(fclose(f), 0);
}

/* First byte of the first tensor and last byte of the last one, as offsets in the file. */
static void ends(long *first, long *last)
{
    struct gguf g;
    struct err e = {0};

    assert_true(gguf_open(&g, path, &e));
    *first = (long)(g.tensors[0].data - g.map);
    *last =
        (long)(g.tensors[g.n_tensors - 1].data - g.map + (long)g.tensors[g.n_tensors - 1].bytes) -
        1;
    gguf_close(&g);
}

static void the_same_file_has_the_same_digest(void **state)
{
    uint64_t d;

    (void)state;
    assert_true(tiny_model_write(path, 1));
    d = digest();
    assert_true(tiny_model_write(path, 1));
    assert_true(digest() == d);
}

static void other_weights_of_one_shape_have_another(void **state)
{
    uint64_t one, two;

    (void)state;
    assert_true(tiny_model_write(path, 1));
    one = digest();
    assert_true(tiny_model_write(path, 2));
    two = digest();
    assert_true(one != two);
}

static void a_byte_at_either_end_of_a_tensor_counts(void **state)
{
    uint64_t before, changed;
    long first, last;

    (void)state;
    assert_true(tiny_model_write(path, 1));
    before = digest();
    ends(&first, &last);
    change_byte(first);
    changed = digest();
    assert_true(changed != before);
    change_byte(first);
    assert_true(digest() == before);
    change_byte(last);
    assert_true(digest() != before && digest() != changed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_file_has_the_same_digest),
        cmocka_unit_test(other_weights_of_one_shape_have_another),
        cmocka_unit_test(a_byte_at_either_end_of_a_tensor_counts),
    };
    int failed;

    snprintf(path, sizeof(path), "/tmp/tg-digest-%d.gguf", (int)getpid());
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove(path);
    return failed;
}
