/* test_arena.c - alignment, zeroing, the bound, poison, and memory that is not there. */
#include "base/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

static int allocations_left = -1; /* -1: no limit */

void *__real_mem_resize(void *p, size_t bytes);
void *__wrap_mem_resize(void *p, size_t bytes);
void *__wrap_mem_resize(void *p, size_t bytes)
{
    if (allocations_left == 0) {
        return NULL;
    }
    allocations_left -= allocations_left > 0 ? 1 : 0;
    return __real_mem_resize(p, bytes);
}

static void pieces_are_zeroed_aligned_and_apart(void **state)
{
    struct arena a;
    uint8_t *pieces[600];

    (void)state;
    arena_init(&a, 64 << 20);
    for (size_t i = 0; i < ARRAY_LEN(pieces); i++) { /* sizes on both sides of every block step */
        size_t n = i * 37 + 1;

        pieces[i] = arena_alloc(&a, n);
        assert_non_null(pieces[i]);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        for (size_t k = 0; k < n; k++) {
            assert_int_equal(pieces[i][k], 0);
        }
        memset(pieces[i], (int)(i & 255), n);
    }
    for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
        assert_int_equal(pieces[i][0], i & 255);
        assert_int_equal(pieces[i][i * 37], i & 255);
    }
    arena_fini(&a);
}

static void the_sum_stops_at_the_bound(void **state)
{
    struct arena a;

    (void)state;
    arena_init(&a, 1024);
    assert_non_null(arena_alloc(&a, 1000)); /* 1008 with rounding */
    assert_null(arena_alloc(&a, 17));
    assert_non_null(arena_alloc(&a, 16));
    assert_null(arena_alloc(&a, 1));
    assert_null(arena_alloc(&a, 0));
    assert_int_equal(a.used, 1024);
    arena_fini(&a);
}

static void sizes_that_overflow_are_refused(void **state)
{
    struct arena a;

    (void)state;
    arena_init(&a, 1 << 20);
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_alloc(&a, SIZE_MAX - 15));
    assert_null(arena_array(&a, SIZE_MAX / 2, 3));
    assert_null(arena_array(&a, (size_t)1 << 32, (size_t)1 << 32));
    assert_non_null(arena_array(&a, 10, 10));
    assert_null(arena_str(&a, str_of("", SIZE_MAX)).p);
    arena_fini(&a);
}

static void strings_are_copies_with_a_nul(void **state)
{
    struct arena a;
    struct str s;
    char text[] = "abc";

    (void)state;
    arena_init(&a, 100);
    s = arena_str(&a, str_of(text, 3));
    text[0] = 'x';
    assert_int_equal(s.n, 3);
    assert_string_equal(s.p, "abc");
    s = arena_str(&a, str_c(NULL));
    assert_non_null(s.p);
    assert_int_equal(s.n, 0);
    s = arena_str(
        &a, str_of("0123456789012345678901234567890123456789012345678901234567890123456789", 70));
    assert_null(s.p);
    assert_int_equal(s.n, 0);
    arena_fini(&a);
}

static void a_large_piece_leaves_the_free_room_in_use(void **state)
{
    struct arena a;
    uint8_t *before, *after;

    (void)state;
    arena_init(&a, 16 << 20);
    before = arena_alloc(&a, 16);
    assert_non_null(arena_alloc(&a, 4 << 20));
    after = arena_alloc(&a, 16);
    assert_true(after > before && after < before + 4096);
    arena_fini(&a);
}

static void missing_memory_is_an_answer_and_the_arena_lives_on(void **state)
{
    struct arena a;

    (void)state;
    arena_init(&a, 1 << 20);
    for (int left = 0; left < 3; left++) {
        allocations_left = left;
        while (arena_alloc(&a, 1000) != NULL) {
        }
        assert_null(arena_alloc(&a, 100000));
        allocations_left = -1;
        assert_non_null(arena_alloc(&a, 1000));
        arena_fini(&a);
        assert_int_equal(a.used, 0);
    }
}

static void bytes_past_a_piece_are_poisoned(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    struct arena a;
    char *p, *q;

    arena_init(&a, 1 << 20);
    p = arena_alloc(&a, 16);
    q = arena_alloc(&a, 13);
    assert_false(__asan_address_is_poisoned(p + 15));
    assert_true(__asan_address_is_poisoned(p + 16));
    assert_false(__asan_address_is_poisoned(q + 12));
    assert_true(__asan_address_is_poisoned(q + 13));
    arena_fini(&a);
#else
    skip();
#endif
}

static void a_reset_arena_starts_over_zeroed_with_its_first_block(void **state)
{
    struct arena a;
    uint8_t *first, *again;

    (void)state;
    arena_init(&a, 1 << 20);
    first = arena_alloc(&a, 100);
    memset(first, 0xaa, 100);
    assert_non_null(arena_alloc(&a, 6000)); /* a block of its own size behind it */
    assert_non_null(arena_alloc(&a, 4000)); /* and one more of the ladder */
    arena_reset(&a);
    assert_int_equal(a.used, 0);
    assert_non_null(arena_alloc(&a, 3000));
    arena_reset(&a);
    again = arena_alloc(&a, 100);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(again[i], 0);
    }
    arena_reset(&a);
    allocations_left = 0; /* the kept block needs none */
    assert_ptr_equal(arena_alloc(&a, 50), again);
    allocations_left = -1;
    arena_fini(&a);
    arena_reset(&a);
    assert_null(a.head);
}

static void a_cache_hands_blocks_on_zeroed_and_is_bounded(void **state)
{
    struct arena_cache cache = {0};
    struct arena a, many[300];
    uint8_t *p, *q;

    (void)state;
    arena_init_cached(&a, 1 << 20, &cache);
    p = arena_alloc(&a, 2000);
    memset(p, 0xbb, 2000);
    assert_non_null(arena_alloc(&a, 4000));  /* 8 KiB */
    assert_non_null(arena_alloc(&a, 20000)); /* kept by nobody */
    arena_fini(&a);
    assert_int_equal(cache.count[0], 1);
    assert_int_equal(cache.count[1], 1);
    allocations_left = 0;
    q = arena_alloc(&a, 2000);
    assert_ptr_equal(q, p);
    for (int i = 0; i < 2000; i++) {
        assert_int_equal(q[i], 0);
    }
    assert_non_null(arena_alloc(&a, 4000));
    assert_null(arena_alloc(&a, 9000));
    allocations_left = -1;
    arena_fini(&a);
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        arena_init_cached(&many[i], 1 << 20, &cache);
        assert_non_null(arena_alloc(&many[i], 10));
    }
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        arena_fini(&many[i]);
    }
    assert_int_equal(cache.count[0], 128);
    arena_cache_fini(&cache);
    assert_int_equal(cache.count[0] + cache.count[1], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_zeroed_aligned_and_apart),
        cmocka_unit_test(the_sum_stops_at_the_bound),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(strings_are_copies_with_a_nul),
        cmocka_unit_test(a_large_piece_leaves_the_free_room_in_use),
        cmocka_unit_test(missing_memory_is_an_answer_and_the_arena_lives_on),
        cmocka_unit_test(bytes_past_a_piece_are_poisoned),
        cmocka_unit_test(a_reset_arena_starts_over_zeroed_with_its_first_block),
        cmocka_unit_test(a_cache_hands_blocks_on_zeroed_and_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
