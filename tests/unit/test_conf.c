/* test_conf.c - the subset of YAML we take, units, and errors that say what to change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/conf.h"

struct settings {
    struct str name;
    bool verbose;
    int64_t workers, body_bytes_max, idle_us, price_pusd;
    int mode;
    struct conf_list peers, tags;
    int64_t deep;
};

static const char *const modes[] = {"open", "share", "closed", NULL};

static const struct conf_option options[] = {
    {.path = "name", .type = CONF_STRING, .offset = offsetof(struct settings, name)},
    {"verbose", CONF_BOOL, offsetof(struct settings, verbose), "false", 0, 0, NULL},
    {"http.workers", CONF_INT, offsetof(struct settings, workers), "4", 1, 16, NULL},
    {"http.body_bytes_max", CONF_BYTES, offsetof(struct settings, body_bytes_max), "32MiB", 0, 0,
     NULL},
    {"http.idle", CONF_DURATION, offsetof(struct settings, idle_us), "10s", 0, 3600000000LL, NULL},
    {"budget.price", CONF_USD_PUSD, offsetof(struct settings, price_pusd), "0.5", 0, 0, NULL},
    {"budget.mode", CONF_ENUM, offsetof(struct settings, mode), "closed", 0, 0, modes},
    {"peers", CONF_LIST, offsetof(struct settings, peers), "", 0, 0, NULL},
    {"tags", CONF_LIST, offsetof(struct settings, tags), "a, b", 0, 0, NULL},
    {"d.e.f.g.h", CONF_INT, offsetof(struct settings, deep), "0", 0, 0, NULL},
};

struct world {
    struct arena arena;
    struct settings got;
    struct err err;
};

static bool load(struct world *w, struct str text)
{
    arena_init(&w->arena, 1u << 20);
    memset(&w->got, 0, sizeof(w->got));
    err_clear(&w->err);
    return conf_parse(text, "x.yaml", options, ARRAY_LEN(options), &w->got, &w->arena, &w->err);
}

static void check_refused(struct str text, const char *story)
{
    struct world w;

    if (load(&w, text)) {
        fail_msg("accepted: " STR_FMT, STR_ARG(text));
    }
    if (w.err.code == ERR_NONE || strncmp(w.err.text, story, strlen(story)) != 0) {
        fail_msg("got '%s', not '%s'", w.err.text, story);
    }
    arena_fini(&w.arena);
}

static void conf_defaults_hold_for_what_the_file_does_not_say(void **state)
{
    struct world w;

    (void)state;
    assert_true(load(&w, STR("# nothing but a name\nname: n\nhttp:\n#  workers: 9\n")));
    assert_true(str_eq(w.got.name, STR("n")));
    assert_false(w.got.verbose);
    assert_int_equal(w.got.workers, 4);
    assert_int_equal(w.got.body_bytes_max, 32 << 20);
    assert_int_equal(w.got.idle_us, 10000000);
    assert_int_equal(w.got.price_pusd, 500000000000);
    assert_int_equal(w.got.mode, 2);
    assert_int_equal(w.got.peers.count, 0);
    assert_int_equal(w.got.tags.count, 2);
    assert_true(str_eq(w.got.tags.items[1], STR("b")));
    arena_fini(&w.arena);
}

static void conf_reads_every_type(void **state)
{
    struct world w;

    (void)state;
    if (!load(&w, STR("name: \"a b: # \\u00e9\"\nverbose: true\nhttp:\n  workers: 16\n"
                      "  body_bytes_max: 64KiB\n  idle: '250ms'\nbudget: {price: 0.000000000001, "
                      "mode: share}\n"
                      "peers:\n  - http://a:1\n  - \"\"\ntags: []\nd: {e: {f: {g: {h: 7}}}}\n"))) {
        fail_msg("%s", w.err.text);
    }
    assert_true(str_eq(w.got.name, STR("a b: # \xC3\xA9")));
    assert_true(w.got.verbose);
    assert_int_equal(w.got.workers, 16);
    assert_int_equal(w.got.body_bytes_max, 65536);
    assert_int_equal(w.got.idle_us, 250000);
    assert_int_equal(w.got.price_pusd, 1);
    assert_int_equal(w.got.mode, 1);
    assert_int_equal(w.got.peers.count, 2);
    assert_true(str_eq(w.got.peers.items[0], STR("http://a:1")));
    assert_int_equal(w.got.peers.items[1].n, 0);
    assert_int_equal(w.got.tags.count, 0);
    assert_int_equal(w.got.deep, 7);
    arena_fini(&w.arena);
}

static void conf_units_are_part_of_the_value(void **state)
{
    static const struct {
        const char *line;
        int64_t bytes, us; /* -1: the default */
    } cases[] = {
        {"body_bytes_max: 512B", 512, -1},
        {"body_bytes_max: 1GiB", 1LL << 30, -1},
        {"body_bytes_max: 2TiB", 2LL << 40, -1},
        {"body_bytes_max: 0", 0, -1},
        {"idle: 7us", -1, 7},
        {"idle: 5m", -1, 300000000},
        {"idle: 1h", -1, 3600000000},
        {"idle: 0", -1, 0},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[128];
        struct world w;

        (void)snprintf(text, sizeof(text), "name: n\nhttp:\n  %s\n", cases[i].line);
        if (!load(&w, str_c(text))) {
            fail_msg("%s: %s", cases[i].line, w.err.text);
        }
        assert_int_equal(w.got.body_bytes_max, cases[i].bytes < 0 ? 32 << 20 : cases[i].bytes);
        assert_int_equal(w.got.idle_us, cases[i].us < 0 ? 10000000 : cases[i].us);
        arena_fini(&w.arena);
    }
}

static void conf_refuses_bad_values_and_says_what_is_right(void **state)
{
    static const struct {
        struct str text;
        const char *story;
    } cases[] = {
        {STR("verbose: yes"), "x.yaml:1:10: 'verbose': 'yes' is not true or false"},
        {STR("verbose: True"), "x.yaml:1:10: 'verbose': 'True' is not true or false"},
        {STR("http:\n  workers: many"),
         "x.yaml:2:12: 'http.workers': 'many' is not a whole number"},
        {STR("http:\n  workers: 0"), "x.yaml:2:12: 'http.workers': 0 is less than the least, 1"},
        {STR("http:\n  workers: 17"), "x.yaml:2:12: 'http.workers': 17 is more than the most, 16"},
        {STR("http: {body_bytes_max: 64}"),
         "x.yaml:1:24: 'http.body_bytes_max': '64' needs a unit, one of B, KiB, MiB, GiB, TiB"},
        {STR("http: {body_bytes_max: 64KB}"),
         "x.yaml:1:24: 'http.body_bytes_max': '64KB' has an unknown unit; use one of B, KiB, "},
        {STR("http: {body_bytes_max: -1KiB}"), "x.yaml:1:24: 'http.body_bytes_max': '-1KiB' is not "
                                               "a size: write a whole number and one of B"},
        {STR("http: {body_bytes_max: 9000000000TiB}"),
         "x.yaml:1:24: 'http.body_bytes_max': '9000000000TiB' is too large"},
        {STR("http: {idle: 10}"),
         "x.yaml:1:14: 'http.idle': '10' needs a unit, one of us, ms, s, m, h, d"},
        {STR("http: {idle: 1.5s}"),
         "x.yaml:1:14: 'http.idle': '1.5s' has an unknown unit; use one of us"},
        {STR("http: {idle: 2h}"), "x.yaml:1:14: 'http.idle': 2h is more than the most, 3600000000"},
        {STR("budget: {mode: ajar}"),
         "x.yaml:1:16: 'budget.mode': 'ajar' is not one of: open, share, closed"},
        {STR("budget: {price: cheap}"), "x.yaml:1:17: 'budget.price': "},
        {STR("peers: a"), "x.yaml:1:8: 'peers' needs a list: [a, b]"},
        {STR("peers: [a, [b]]"), "x.yaml:1:12: 'peers' is a list of plain values"},
        {STR("peers: [a, null]"), "x.yaml:1:12: 'peers' is a list of plain values"},
        {STR("name: [a]"), "x.yaml:1:7: 'name' is not a list: it needs one value"},
        {STR("name: {a: b}"), "x.yaml:1:7: 'name' is an option, not a section"},
        {STR("name:"), "x.yaml:1:6: 'name' has no value"},
        {STR("name: ~"), "x.yaml:1:7: 'name' has no value"},
        {STR("http: 5"), "x.yaml:1:7: 'http' is a section: it needs options inside"},
        {STR("verbose: true"), "x.yaml: option 'name' is required"},
        {STR(""), "x.yaml: option 'name' is required"},
        {STR("--- # empty\n"), "x.yaml: option 'name' is required"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        check_refused(cases[i].text, cases[i].story);
    }
}

static void conf_unknown_option_names_the_nearest(void **state)
{
    static const struct {
        struct str text;
        const char *story;
    } cases[] = {
        {STR("http:\n  wrokers: 2"),
         "x.yaml:2:3: unknown option 'http.wrokers'; did you mean 'http.workers'?"},
        {STR("htpp:\n  workers: 2"), "x.yaml:1:1: unknown option 'htpp'; did you mean 'http'?"},
        {STR("nmae: x"), "x.yaml:1:1: unknown option 'nmae'; did you mean 'name'?"},
        {STR("idle: 1s"), "x.yaml:1:1: unknown option 'idle'; did you mean '"},
        {STR("http: {body_max: 1KiB}"),
         "x.yaml:1:8: unknown option 'http.body_max'; did you mean 'http.body_bytes_max'?"},
        {STR("http: {body-bytes-max: 1KiB}"),
         "x.yaml:1:8: unknown option 'http.body-bytes-max'; did you mean 'http.body_bytes_max'?"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        check_refused(cases[i].text, cases[i].story);
    }
}

static void conf_refuses_the_rest_of_yaml(void **state)
{
    static const struct {
        struct str text;
        const char *story;
    } cases[] = {
        {STR("name: &a n"), "x.yaml:1:7: anchors and tags are not allowed"},
        {STR("name: !!str n"), "x.yaml:1:7: anchors and tags are not allowed"},
        {STR("name: ! n"), "x.yaml:1:7: anchors and tags are not allowed"},
        {STR("http: &h {workers: 2}"), "x.yaml:1:7: anchors and tags are not allowed"},
        {STR("tags: !x [a]"), "x.yaml:1:7: anchors and tags are not allowed"},
        {STR("name: *a"), "x.yaml:1:7: aliases are not allowed"},
        {STR("<<: {workers: 2}"), "x.yaml:1:1: unknown option '<<'"},
        {STR("name: a\nname: b"), "x.yaml:2:1: 'name' is there twice"},
        {STR("name: a\nhttp: {workers: 1, workers: 2}"),
         "x.yaml:2:20: 'http.workers' is there twice"},
        {STR("http: {workers: 1}\nhttp: {idle: 1s}"), "x.yaml:2:1: 'http' is there twice"},
        {STR("http.workers: 2"), "x.yaml:1:1: a key must not have a dot in it"},
        {STR("? [a]\n: b"), "x.yaml:1:3: a key must be a plain word"},
        {STR("\"\": b"), "x.yaml:1:1: empty key"},
        {STR("name: a\n---\nname: b"), "x.yaml:2:1: a second document is not allowed"},
        {STR("%YAML 1.1\n---\nname: b"), "x.yaml:1:1: directives are not allowed"},
        {STR("- a\n- b"), "x.yaml:1:1: the file must be a map of options"},
        {STR("just text"), "x.yaml:1:1: the file must be a map of options"},
        {STR("name: \"a\\0b\""), "x.yaml:1:7: a NUL character is not allowed"},
        {STR("name: \"open"), "x.yaml:1:12: found unexpected end of stream"},
        {STR("name: a\n\tverbose: true"), "x.yaml:2:1: found "},
        {STR("# \xC3\xA9\nname: \xC3\xA9\xFF"), "x.yaml:2:8: invalid leading UTF-8 octet"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        check_refused(cases[i].text, cases[i].story);
    }
}

/* Refusals while the table is what bounds the depth: it needs a deep one. */
static void conf_depth_size_and_lists_are_bounded(void **state)
{
    static const struct conf_option deep = {"a.b.c.d.e.f.g.h.i", CONF_INT, 0, "1", 0, 0, NULL};
    struct world w;
    struct buf b;
    int64_t v;

    (void)state;
    arena_init(&w.arena, 1u << 20);
    err_clear(&w.err);
    assert_false(conf_parse(STR("{a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}}"), "x.yaml", &deep,
                            1, &v, &w.arena, &w.err));
    assert_string_equal(w.err.text, "x.yaml:1:33: maps are nested deeper than 8");
    arena_fini(&w.arena);

    buf_init(&b, 2u << 20);
    buf_c(&b, "name: n\ntags:\n");
    for (int i = 0; i < 1024; i++) {
        buf_c(&b, " - t\n");
    }
    assert_true(load(&w, buf_view(&b)));
    assert_int_equal(w.got.tags.count, 1024);
    arena_fini(&w.arena);
    buf_c(&b, " - t\n");
    check_refused(buf_view(&b), "x.yaml:1027:4: 'tags' has more than 1024 items");
    while (b.len <= 1u << 20) {
        buf_c(&b, "# comment\n");
    }
    check_refused(buf_view(&b), "x.yaml: larger than 1 MiB");
    buf_fini(&b);
}

static void conf_memory_is_bounded_by_the_arena(void **state)
{
    static const struct str text = {"name: 0123456789012345678901234567890123456789", 46};
    size_t refused = 0;

    (void)state;
    for (size_t max = 0; max < 2000; max += 16) {
        struct world w = {.err = {.code = ERR_NONE}};

        arena_init(&w.arena, max);
        if (!conf_parse(text, "x.yaml", options, ARRAY_LEN(options), &w.got, &w.arena, &w.err)) {
            assert_int_equal(w.err.code, ERR_NO_MEMORY);
            refused++;
        }
        arena_fini(&w.arena);
    }
    assert_in_range(refused, 1, 124);
}

/* ---- files ---- */

struct file {
    char path[64];
};

static void file_make(struct file *f, struct str text, mode_t mode)
{
    int fd;

    (void)snprintf(f->path, sizeof(f->path), "/tmp/test_conf.XXXXXX");
    fd = mkstemp(f->path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text.p, text.n), (ssize_t)text.n);
    assert_int_equal(fchmod(fd, mode), 0);
    (void)close(fd);
}

static void conf_load_names_the_file(void **state)
{
    static const struct conf_option optional[] = {
        {"http.workers", CONF_INT, offsetof(struct settings, workers), "4", 1, 16, NULL},
    };
    struct world w;
    struct file f;

    (void)state;
    arena_init(&w.arena, 1u << 20);
    err_clear(&w.err);
    file_make(&f, STR("http:\n  workers: 5\n"), 0644);
    assert_true(conf_load(f.path, optional, 1, &w.got, &w.arena, &w.err));
    assert_int_equal(w.got.workers, 5);
    assert_true(conf_load(NULL, optional, 1, &w.got, &w.arena, &w.err));
    assert_int_equal(w.got.workers, 4);
    assert_int_equal(unlink(f.path), 0);
    assert_false(conf_load(f.path, optional, 1, &w.got, &w.arena, &w.err));
    assert_int_equal(w.err.code, ERR_IO);
    assert_non_null(strstr(w.err.text, f.path));
    arena_fini(&w.arena);
}

static void conf_secret_must_be_private_and_small(void **state)
{
    static char large[4098];
    static const struct {
        struct str text;
        mode_t mode;
        const char *story; /* NULL: accepted */
        struct str want;
    } cases[] = {
        {STR("s3cret\n"), 0600, NULL, STR("s3cret")},
        {STR("s3cret"), 0400, NULL, STR("s3cret")},
        {STR("two\n\n"), 0600, "one line of text", STR("")},
        {STR("\n\n"), 0600, "one line of text", STR("")},
        {STR("a\r\n"), 0600, "one line of text", STR("")},
        {STR("a\0b"), 0600, "one line of text", STR("")},
        {STR("caf\xc3\xa9 \xff"), 0600, NULL, STR("caf\xc3\xa9 \xff")},
        {STR("s"), 0640, "(mode 0640); chmod 600 it", STR("")},
        {STR("s"), 0604, "(mode 0604); chmod 600 it", STR("")},
        {STR(""), 0600, "the secret is empty", STR("")},
        {STR("\n"), 0600, "the secret is empty", STR("")},
        {{large, 4096}, 0600, NULL, {large, 4096}},
        {{large, 4097}, 0600, "larger than 4096 bytes", STR("")},
    };

    (void)state;
    memset(large, 'k', sizeof(large));
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct str got = {NULL, 0};
        struct world w;
        struct file f;
        bool ok;

        arena_init(&w.arena, 1u << 16);
        err_clear(&w.err);
        file_make(&f, cases[i].text, cases[i].mode);
        ok = conf_secret(f.path, &w.arena, &got, &w.err);
        (void)unlink(f.path);
        if (ok != (cases[i].story == NULL) || (ok && !str_eq(got, cases[i].want)) ||
            (!ok && strstr(w.err.text, cases[i].story) == NULL)) {
            fail_msg("case %zu: %d '%s'", i, ok, w.err.text);
        }
        arena_fini(&w.arena);
    }
}

static void conf_secret_must_be_a_file(void **state)
{
    char pipe[] = "/tmp/tg-conf-pipe-XXXXXX";
    struct str got;
    struct world w;

    (void)state;
    assert_non_null(mktemp(pipe));
    assert_int_equal(mkfifo(pipe, 0600), 0);
    arena_init(&w.arena, 1u << 16);
    err_clear(&w.err);
    assert_false(conf_secret(pipe, &w.arena, &got, &w.err)); /* and does not wait for a writer */
    assert_non_null(strstr(w.err.text, "regular file"));
    arena_fini(&w.arena);
    (void)unlink(pipe);
    arena_init(&w.arena, 1u << 16);
    err_clear(&w.err);
    assert_false(conf_secret("/dev/null", &w.arena, &got, &w.err));
    assert_non_null(strstr(w.err.text, "regular file"));
    arena_fini(&w.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conf_defaults_hold_for_what_the_file_does_not_say),
        cmocka_unit_test(conf_reads_every_type),
        cmocka_unit_test(conf_units_are_part_of_the_value),
        cmocka_unit_test(conf_refuses_bad_values_and_says_what_is_right),
        cmocka_unit_test(conf_unknown_option_names_the_nearest),
        cmocka_unit_test(conf_refuses_the_rest_of_yaml),
        cmocka_unit_test(conf_depth_size_and_lists_are_bounded),
        cmocka_unit_test(conf_memory_is_bounded_by_the_arena),
        cmocka_unit_test(conf_load_names_the_file),
        cmocka_unit_test(conf_secret_must_be_private_and_small),
        cmocka_unit_test(conf_secret_must_be_a_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
