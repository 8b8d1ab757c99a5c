/* test_grammar_store.c - equal sources share a grammar, different ones never do, the store is
 * bounded, and compiling without memory is an error, not the end. */
#include "tests/unit/grammar_world.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/arena.h"
#include "worker/engine/grammar_store.h"

/* ---- memory that fails ---- */

static uint64_t fail_at; /* the how-manieth allocation from now on has no memory; 0: none */

static bool fails(void)
{
    return fail_at > 0 && --fail_at == 0;
}

void *__real_mem_try(size_t count, size_t bytes);
void *__wrap_mem_try(size_t count, size_t bytes);
void *__wrap_mem_try(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_mem_try(count, bytes);
}

void *__real_mem_resize(void *p, size_t bytes);
void *__wrap_mem_resize(void *p, size_t bytes);
void *__wrap_mem_resize(void *p, size_t bytes)
{
    return fails() ? NULL : __real_mem_resize(p, bytes);
}

/* ---- */

struct world {
    struct grammar_vocab *v;
    struct grammar_store *s;
    struct arena arena;
};

static void world_open(struct world *w)
{
    w->v = world_vocab();
    w->s = grammar_store_new(w->v);
    arena_init(&w->arena, 64u << 20);
}

static void world_close(struct world *w)
{
    grammar_store_free(w->s);
    grammar_vocab_free(w->v);
    arena_fini(&w->arena);
}

static struct grammar_source schema_of(struct world *w, const char *text)
{
    struct grammar_source src = {.kind = GRAMMAR_JSON_SCHEMA};
    struct err e;

    err_clear(&e);
    src.schema = json_parse(&w->arena, str_c(text), &json_limits_api, &e);
    assert_non_null(src.schema);
    return src;
}

static struct grammar *take(struct world *w, const struct grammar_source *src)
{
    struct grammar *g;
    struct err e;

    err_clear(&e);
    if (!grammar_store_compile(w->s, src, &g, &e)) {
        fail_msg("%s", e.text);
    }
    return g;
}

static struct grammar *take_schema(struct world *w, const char *text)
{
    struct grammar_source src = schema_of(w, text);

    return take(w, &src);
}

static struct grammar_store_stats stats(const struct world *w)
{
    struct grammar_store_stats s;

    grammar_store_stats(w->s, &s);
    return s;
}

static void equal_sources_share_a_grammar_and_its_masks(void **state)
{
    uint32_t bits[32];
    struct world w;
    struct grammar *a, *b;
    struct grammar_state s;
    struct grammar_cache_stats masks;

    (void)state;
    world_open(&w);
    a = take_schema(&w, "{\"type\":\"string\",\"maxLength\":9}");
    b = take_schema(&w, "{ \"type\" : \"string\",\n \"maxLength\": 9 }"); /* written otherwise */
    assert_ptr_equal(a, b);
    grammar_state_init(a, &s);
    (void)grammar_mask(a, &s, bits);
    grammar_state_init(b, &s);
    (void)grammar_mask(b, &s, bits);
    grammar_cache_stats(a, &masks);
    assert_int_equal(masks.hits, 1);
    assert_int_equal(stats(&w).hits, 1);
    assert_int_equal(stats(&w).misses, 1);
    assert_int_equal(stats(&w).count, 1);
    grammar_release(a);
    grammar_release(b);
    world_close(&w);
}

static void different_sources_never_do(void **state)
{
    static const struct grammar_piece begin = {.text = STR("<")}, end = {.text = STR(">")},
                                      other = {.token = WORLD_CALL};
    struct grammar_tool_format f[4] = {{.before = {&begin, 1},
                                        .between = {&end, 1},
                                        .after = {&end, 1},
                                        .calls_min = 1,
                                        .calls_max = 1}};
    struct grammar_tool ab[] = {{STR("a"), NULL}, {STR("b"), NULL}}, b[] = {{STR("b"), NULL}};
    struct grammar_source src[16];
    struct grammar *g[16];
    struct world w;
    uint32_t n = 0;

    (void)state;
    world_open(&w);
    for (int i = 1; i < 4; i++) {
        f[i] = f[0];
    }
    f[1].calls_max = 2;
    f[1].separator = (struct grammar_literal){&begin, 1};
    f[2].between = (struct grammar_literal){&begin, 1};
    f[3].before = (struct grammar_literal){&other, 1};
    src[n++] = (struct grammar_source){.kind = GRAMMAR_JSON_OBJECT};
    src[n++] = schema_of(&w, "{}");
    src[n++] = schema_of(&w, "true");
    src[n++] = (struct grammar_source){.kind = GRAMMAR_REGEX, .regex = STR("{}")};
    src[n++] = (struct grammar_source){.kind = GRAMMAR_REGEX, .regex = STR("true")};
    src[n++] = schema_of(&w, "{\"properties\":{\"a\":{},\"b\":{}}}");
    src[n++] = schema_of(&w, "{\"properties\":{\"b\":{},\"a\":{}}}"); /* members in their order */
    for (int i = 0; i < 4; i++) {
        src[n++] = (struct grammar_source){
            .kind = GRAMMAR_TOOLS, .tools = ab, .n_tools = 2, .format = &f[i]};
    }
    src[n++] =
        (struct grammar_source){.kind = GRAMMAR_TOOLS, .tools = b, .n_tools = 1, .format = &f[0]};
    for (uint32_t i = 0; i < n; i++) {
        g[i] = take(&w, &src[i]);
        for (uint32_t k = 0; k < i; k++) {
            assert_ptr_not_equal(g[i], g[k]);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        struct grammar *again = take(&w, &src[i]);

        assert_ptr_equal(again, g[i]);
        grammar_release(again);
        grammar_release(g[i]);
    }
    assert_int_equal(stats(&w).hits, n);
    assert_int_equal(stats(&w).count, n);
    world_close(&w);
}

static void the_least_recently_used_goes_and_whoever_holds_it_keeps_it(void **state)
{
    struct world w;
    struct grammar *first, *second, *g;
    char text[64];

    (void)state;
    world_open(&w);
    first = take_schema(&w, "{\"maxLength\":0}");
    second = take_schema(&w, "{\"maxLength\":1}");
    for (int i = 2; i < GRAMMAR_STORE_COUNT_MAX + 1; i++) {
        g = take_schema(&w, "{\"maxLength\":0}"); /* used again and again: stays */
        assert_ptr_equal(g, first);
        grammar_release(g);
        (void)snprintf(text, sizeof(text), "{\"maxLength\":%d}", i);
        grammar_release(take_schema(&w, text));
    }
    assert_int_equal(stats(&w).count, GRAMMAR_STORE_COUNT_MAX);
    assert_int_equal(stats(&w).evictions, 1);
    assert_true(world_takes(second, "\"x\"")); /* dropped, not gone */
    g = take_schema(&w, "{\"maxLength\":1}");
    assert_ptr_not_equal(g, second);
    grammar_release(g);
    grammar_release(second);
    grammar_release(first);
    world_close(&w);
}

static void what_it_holds_is_bounded_in_bytes(void **state)
{
    struct world w;
    struct buf b;
    uint32_t made = 0;

    (void)state;
    world_open(&w);
    buf_init(&b, 1u << 20);
    for (; stats(&w).evictions == 0; made++) {
        assert_true(made < GRAMMAR_STORE_COUNT_MAX - 4);
        buf_reset(&b);
        buf_c(&b, "{\"properties\":{"); /* a great many states */
        for (uint32_t i = 0; i < 700; i++) {
            buf_printf(&b, "%s\"p%u\":{\"maxLength\":%u}", i > 0 ? "," : "", i, i + 1000 * made);
        }
        buf_c(&b, "}}");
        buf_byte(&b, 0);
        grammar_release(take_schema(&w, (const char *)b.p));
        assert_true(stats(&w).bytes <= GRAMMAR_STORE_BYTES_MAX);
    }
    assert_true(stats(&w).count < GRAMMAR_STORE_COUNT_MAX);
    buf_fini(&b);
    world_close(&w);
}

#define GROWN_TOKENS 100000u

static struct str grown_bytes(void *ctx, int32_t id)
{
    (void)ctx;
    return id == 0 ? STR("") : id % 30 == 1 ? STR("a") : STR("b"); /* kept as bits, not as ids */
}

/* Grammars that are only used again and again grow by their masks: the bound holds all the same. */
static void what_grows_by_its_masks_makes_others_go(void **state)
{
    static const int32_t eos = 0;
    struct grammar_source src = {.kind = GRAMMAR_REGEX};
    uint32_t *bits = mem_new(GRAMMAR_MASK_WORDS(GROWN_TOKENS) * sizeof(*bits)), n = 0;
    struct grammar *g = NULL;
    struct world w;
    struct err e;
    char text[32];

    (void)state;
    err_clear(&e);
    w.v = grammar_vocab_new(GROWN_TOKENS, grown_bytes, NULL, &eos, 1, &e);
    assert_non_null(w.v);
    w.s = grammar_store_new(w.v);
    arena_init(&w.arena, 1u << 20);
    for (; n < 20; n++) { /* all are there before any of them grows */
        (void)snprintf(text, sizeof(text), "(a(a)){%u}", 330 + n);
        src.regex = str_c(text);
        grammar_release(take(&w, &src));
    }
    assert_int_equal(stats(&w).evictions, 0);
    for (uint32_t i = 0; i < n; i++) {
        struct grammar_state s;

        (void)snprintf(text, sizeof(text), "(a(a)){%u}", 330 + i);
        src.regex = str_c(text);
        grammar_release(g);
        g = take(&w, &src); /* a hit, or once more when it had to go */
        assert_true(stats(&w).bytes <= GRAMMAR_STORE_BYTES_MAX);
        grammar_state_init(g, &s);
        for (int k = 0; k < 330; k++) {
            assert_true(grammar_mask(g, &s, bits) > 0);
            assert_true(grammar_accept_token(g, &s, 1));
        }
    }
    assert_true(stats(&w).evictions > 0 && stats(&w).hits > 10);
    grammar_release(g);
    mem_free(bits);
    world_close(&w);
}

static void what_is_refused_is_not_kept(void **state)
{
    struct world w;
    struct grammar_source src;
    struct grammar *g;
    struct err e;

    (void)state;
    world_open(&w);
    src = schema_of(&w, "{\"not\":{}}");
    for (int i = 0; i < 2; i++) {
        err_clear(&e);
        assert_false(grammar_store_compile(w.s, &src, &g, &e));
        assert_int_equal(e.code, ERR_UNSUPPORTED);
    }
    assert_int_equal(stats(&w).count, 0);
    assert_int_equal(stats(&w).misses, 2);
    world_close(&w);
}

/* Every allocation of a compile fails once. */
static void without_memory_a_compile_is_refused(void **state)
{
    struct world w;
    struct grammar_source src;
    uint64_t at = 1, refused = 0;

    (void)state;
    world_open(&w);
    src = schema_of(&w, "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
                        "\"string\",\"pattern\":\"^[a-z]{2,9}@\"},\"n\":{\"minimum\":3}}},"
                        "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"format\":\"date\"},"
                        "{\"enum\":[\"a\",1]}]}}]}");
    for (; at < 10000; at++) {
        struct grammar *g = NULL;
        struct err e;
        bool ok;

        err_clear(&e);
        fail_at = at;
        ok = grammar_store_compile(w.s, &src, &g, &e);
        if (fail_at > 0) {
            fail_at = 0;
            assert_true(ok);
            grammar_release(g);
            break;
        }
        if (ok) { /* what failed was not needed: to keep it, or to shrink */
            grammar_release(g);
            grammar_store_free(w.s);
            w.s = grammar_store_new(w.v);
            continue;
        }
        refused++;
        assert_true(e.code == ERR_NO_MEMORY || e.code == ERR_LIMIT);
        assert_null(g);
    }
    assert_true(at < 10000 && refused > 20);
    world_close(&w);
}

/* Every allocation of a mask fails once: it says that nothing may come, or it is whole. */
static void a_mask_without_memory_ends_its_answer_only(void **state)
{
    static const char *const prefixes[] = {"", "{\"a\":\"", "{\"n\":", "[", "[[1,"};
    struct world w;
    uint64_t failed = 0;

    (void)state;
    world_open(&w);
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++) {
        uint64_t at = 1;
        bool whole = false;

        for (; at < 1000 && !whole; at++) {
            struct grammar *g =
                take_schema(&w, "{\"anyOf\":[{\"type\":\"array\"},{\"properties\":{\"a\":{"
                                "\"type\":\"string\",\"pattern\":\"^[^@a]{2,9}$\"}}}]}");
            uint32_t bits[32], again[32], allowed;
            struct grammar_state s;

            grammar_state_init(g, &s);
            assert_true(prefixes[i][0] == 0 || grammar_accept_bytes(g, &s, str_c(prefixes[i])));
            memset(bits, 0xff, sizeof(bits));
            fail_at = at;
            allowed = grammar_mask(g, &s, bits);
            whole = fail_at > 0;
            fail_at = 0;
            failed += allowed == 0;
            for (size_t k = 0; k < GRAMMAR_MASK_WORDS(world_count()) && allowed == 0; k++) {
                assert_int_equal(bits[k], 0);
            }
            memset(again, 0, sizeof(again));
            assert_true(grammar_mask(g, &s, again) > 0); /* with memory it is there */
            if (allowed > 0) {
                assert_memory_equal(bits, again,
                                    GRAMMAR_MASK_WORDS(world_count()) * sizeof(bits[0]));
            }
            grammar_release(g);
            grammar_store_free(w.s); /* neither masks nor scratch are there the next time */
            w.s = grammar_store_new(w.v);
        }
        assert_true(at > 4 && whole);
    }
    assert_true(failed > 10);
    world_close(&w);
}

#define THREADS 4
#define TAKES 150 /* of a thread, over more sources than are kept */
#define SOURCES (GRAMMAR_STORE_COUNT_MAX + 20)

static void *take_many(void *ctx)
{
    struct world *w = ctx;
    char text[32];
    uint32_t bits[32];

    for (unsigned i = 0; i < TAKES; i++) {
        struct grammar_source src = {.kind = GRAMMAR_REGEX};
        struct grammar_state s;
        struct grammar *g = NULL;
        struct err e = {0};

        snprintf(text, sizeof(text), "[a-z]{%u}", 1 + i % SOURCES);
        src.regex = str_c(text);
        if (!grammar_store_compile(w->s, &src, &g, &e)) {
            return (void *)1;
        }
        grammar_state_init(g, &s);
        (void)grammar_mask(g, &s, bits);
        grammar_release(g);
    }
    return NULL;
}

static void threads_share_what_they_compile_at_once(void **state)
{
    pthread_t threads[THREADS];
    struct world w;

    (void)state;
    world_open(&w);
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, take_many, &w), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    assert_int_equal(stats(&w).count, GRAMMAR_STORE_COUNT_MAX);
    assert_int_equal(stats(&w).hits + stats(&w).misses, THREADS * TAKES);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_sources_share_a_grammar_and_its_masks),
        cmocka_unit_test(different_sources_never_do),
        cmocka_unit_test(the_least_recently_used_goes_and_whoever_holds_it_keeps_it),
        cmocka_unit_test(what_it_holds_is_bounded_in_bytes),
        cmocka_unit_test(what_is_refused_is_not_kept),
        cmocka_unit_test(without_memory_a_compile_is_refused),
        cmocka_unit_test(a_mask_without_memory_ends_its_answer_only),
        cmocka_unit_test(what_grows_by_its_masks_makes_others_go),
        cmocka_unit_test(threads_share_what_they_compile_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
