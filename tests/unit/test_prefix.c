/* test_prefix - the chain is what an independent implementation says (tests/golden), and what its
 * users rely on: text that grows keeps its chunks, memory is bounded, piece sizes do not matter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include "base/hash.h"
#include "cache/prefix.h"
#include "golden.h"

static const struct prefix_key test_key = {0x0123456789ABCDEF, 0xFEDCBA9876543210};

static void assert_hex(const char *name, const char *what, uint64_t got, struct str want)
{
    char text[17];

    snprintf(text, sizeof(text), "%016llx", (unsigned long long)got);
    if (!str_eq(str_c(text), want)) {
        fail_msg("%s: %s is %s, not " STR_FMT, name, what, text, STR_ARG(want));
    }
}

static int64_t number(const struct json *v)
{
    int64_t n;

    assert_true(json_i64(v, &n));
    return n;
}

static struct str prompt_of(const struct json *row, char **made)
{
    struct json *repeat = json_get(row, STR("prompt_repeat"));
    size_t n;

    if (repeat == NULL) {
        return golden_str(row, "prompt");
    }
    n = (size_t)number(repeat->child->next);
    *made = malloc(repeat->child->text.n * n);
    for (size_t i = 0; i < n; i++) {
        memcpy(*made + i * repeat->child->text.n, repeat->child->text.p, repeat->child->text.n);
    }
    return str_of(*made, repeat->child->text.n * n);
}

static void check_vector(const struct json *row, struct prefix_key k, const struct prefix *p)
{
    char name[128];
    const struct json *v;
    uint32_t i = 0;

    str_copy(golden_str(row, "name"), name, sizeof(name));
    assert_int_equal(p->bytes, number(json_get(row, STR("bytes"))));
    assert_int_equal(p->text_bytes, number(json_get(row, STR("text_bytes"))));
    assert_int_equal(p->messages, number(json_get(row, STR("messages"))));
    assert_int_equal(p->count, number(json_get(row, STR("count"))));
    for (v = json_get(row, STR("chunks"))->child; v != NULL; v = v->next) {
        int64_t at = number(v->child);

        assert_int_equal(p->end[at], number(v->child->next));
        assert_hex(name, "a link", p->seq[at], v->child->next->next->text);
    }
    for (v = json_get(row, STR("spans"))->child; v != NULL; v = v->next, i++) {
        assert_in_range(i, 0, p->spans - 1);
        assert_int_equal(p->span[i].start, number(v->child));
        assert_int_equal(p->span[i].text.n, number(v->child->next));
        assert_int_equal(p->span[i].message, number(v->child->next->next));
    }
    assert_int_equal(p->spans, i);
    assert_hex(name, "head", p->head, golden_str(row, "head"));
    assert_hex(name, "root", p->root, golden_str(row, "root"));
    assert_hex(name, "root of a key", prefix_root_of_key(k, p->head, STR("session-1")),
               golden_str(row, "root_of_key"));
}

static void every_golden_vector_holds(void **state)
{
    struct golden g;
    struct json *row;

    (void)state;
    golden_open(&g, "prefix_vectors.jsonl");
    while ((row = golden_next(&g)) != NULL) {
        struct prefix_key k =
            prefix_key_derive(golden_str(row, "secret"), golden_str(row, "salt"),
                              golden_str(row, "model"), golden_str(row, "adapter"));
        struct json *request = json_get(row, STR("request"));
        char hex[33], *made = NULL;
        struct prefix p;

        prefix_key_text(k, hex);
        assert_true(str_eq(str_c(hex), golden_str(row, "key")));
        assert_true(request != NULL ? prefix_chat(&g.arena, k, request, &p)
                                    : prefix_completion(&g.arena, k, prompt_of(row, &made), &p));
        check_vector(row, k, &p);
        free(made);
    }
    assert_in_range(g.line, 20, 1000);
    golden_close(&g);
}

static void a_key_survives_its_text_and_bad_text_is_refused(void **state)
{
    struct prefix_key k;
    char hex[33];

    (void)state;
    prefix_key_text(test_key, hex);
    assert_true(prefix_key_parse(str_c(hex), &k));
    assert_true(k.lo == test_key.lo && k.hi == test_key.hi);
    assert_false(prefix_key_parse(STR(""), &k));
    assert_false(prefix_key_parse(str_of(hex, 31), &k));
    assert_false(prefix_key_parse(STR("zz23456789abcdef0123456789abcdef"), &k));
}

static struct json *chat(struct arena *a, const char *text)
{
    struct err e = {0};
    struct json *v = json_parse(a, str_c(text), &json_limits_api, &e);

    assert_non_null(v);
    return v;
}

static void how_a_text_is_cut_into_parts_does_not_matter(void **state)
{
    static const char *const same[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"%s%s\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"%s\"},"
        "{\"type\":\"text\",\"text\":\"%s\"}]}],\"tools\":[]}",
        "{\"tools\":null,\"messages\":[{\"content\":[\"%s\",\"%s\"],\"role\":\"user\"}]}",
    };
    char left[701], right[901], body[2048];
    uint64_t last = 0, root = 0;

    (void)state;
    memset(left, 'a', 700);
    memset(right, 'b', 900);
    left[700] = right[900] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(same); i++) {
        struct arena a;
        struct prefix p;

        arena_init(&a, 1 << 20);
        snprintf(body, sizeof(body), same[i], left, right);
        assert_true(prefix_chat(&a, test_key, chat(&a, body), &p));
        assert_int_equal(p.count, 6);
        assert_true(i == 0 || (p.seq[5] == last && p.root == root));
        last = p.seq[5];
        root = p.root;
        arena_fini(&a);
    }
}

static void a_later_turn_keeps_the_earlier_chunks(void **state)
{
    struct arena a;
    char *text = malloc(600 * 1024);
    struct prefix before, after;

    (void)state;
    arena_init(&a, 8 << 20);
    for (size_t i = 0; i < 600 * 1024; i++) {
        text[i] = (char)('a' + (i * 7 + i / 251) % 26);
    }
    assert_true(prefix_completion(&a, test_key, str_of(text, 400 * 1024), &before));
    assert_true(prefix_completion(&a, test_key, str_of(text, 600 * 1024), &after));
    assert_true(after.count > before.count && before.count > 1024);
    assert_memory_equal(before.seq, after.seq, before.count * sizeof(uint64_t));
    assert_memory_equal(before.end, after.end, before.count * sizeof(uint64_t));
    text[300] ^= 1; /* one bit early on: every later link differs */
    assert_true(prefix_completion(&a, test_key, str_of(text, 600 * 1024), &after));
    assert_true(after.seq[0] == before.seq[0]);
    for (uint32_t i = 1; i < before.count; i++) {
        assert_true(after.seq[i] != before.seq[i]);
    }
    arena_fini(&a);
    free(text);
}

static void a_text_past_every_bound_stops_at_the_last_chunk(void **state)
{
    size_t n = 70u << 20; /* 4,608 chunks end at 64 MiB */
    struct str text = str_of(calloc(n, 1), n);
    struct arena a;
    struct prefix p;

    (void)state;
    arena_init(&a, 8 << 20);
    assert_true(prefix_completion(&a, test_key, text, &p));
    assert_int_equal(p.count, PREFIX_CHUNKS_MAX);
    assert_int_equal(p.bytes, n + 2);
    assert_true(p.end[PREFIX_CHUNKS_MAX - 1] < n);
    arena_fini(&a);
    free((void *)(uintptr_t)text.p);
}

static void every_short_arena_is_an_answer_and_no_crash(void **state)
{
    struct arena tree;
    struct json *root;
    unsigned refused = 0;
    struct buf b;

    (void)state;
    arena_init(&tree, 4 << 20);
    buf_init(&b, 1 << 20);
    buf_c(&b, "{\"tools\":[{\"z\":1,\"a\":2}],\"messages\":[");
    for (int i = 0; i < 400; i++) {
        buf_printf(&b, "%s{\"role\":\"user\",\"content\":\"%0600d\"}", i > 0 ? "," : "", i);
    }
    buf_c(&b, "]}");
    buf_byte(&b, 0);
    root = chat(&tree, buf_view(&b).p);
    for (size_t max = 0; max < 200 * 1024; max += 509) {
        struct arena a;
        struct prefix p;

        arena_init(&a, max);
        refused += !prefix_chat(&a, test_key, root, &p);
        arena_fini(&a);
    }
    assert_in_range(refused, 20, 200);
    arena_fini(&tree);
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_vector_holds),
        cmocka_unit_test(a_key_survives_its_text_and_bad_text_is_refused),
        cmocka_unit_test(how_a_text_is_cut_into_parts_does_not_matter),
        cmocka_unit_test(a_later_turn_keeps_the_earlier_chunks),
        cmocka_unit_test(a_text_past_every_bound_stops_at_the_last_chunk),
        cmocka_unit_test(every_short_arena_is_an_answer_and_no_crash),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
