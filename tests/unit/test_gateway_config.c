/* test_gateway_config.c - configs/gateway.yaml is the manual: it names each option of the table
 * with its default and its bounds. And what is refused says which line or option to change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "gateway/config.h"

#define MANUAL SOURCE_DIR "/configs/gateway.yaml"
#define OPTIONS_MAX 256

#define SECRETS                                                                                    \
    "secrets:\n  deployment_file: /s/a\n  pepper_file: /s/b\n  worker_key_file: /s/c\n"            \
    "  admin_key_file: /s/d\n"

struct world {
    struct arena arena;
    struct gateway_config got;
    struct err err;
};

static void world_init(struct world *w)
{
    arena_init(&w->arena, 4u << 20);
    memset(&w->got, 0, sizeof(w->got));
    err_clear(&w->err);
}

/* What the program does with a file of this text. */
static bool load(struct world *w, const char *text)
{
    char path[] = "/tmp/test_gateway_config.XXXXXX";
    int fd = mkstemp(path);
    size_t n = strlen(text);
    bool ok;

    assert_true(fd >= 0);
    assert_true(write(fd, text, n) == (ssize_t)n);
    close(fd);
    world_init(w);
    ok = gateway_config_load(path, &w->got, &w->arena, &w->err);
    unlink(path);
    return ok;
}

static void check_refused(const char *text, const char *story)
{
    struct world w;

    if (load(&w, text)) {
        fail_msg("accepted: %s", text);
    }
    if (strstr(w.err.text, story) == NULL) {
        fail_msg("told \"%s\", not \"%s\"", w.err.text, story);
    }
    arena_fini(&w.arena);
}

static const void *value_of(const struct conf_option *o, const struct gateway_config *c)
{
    return (const char *)c + o->offset;
}

static bool value_equals(const struct conf_option *o, const struct gateway_config *a,
                         const struct gateway_config *b)
{
    const void *x = value_of(o, a), *y = value_of(o, b);

    switch (o->type) {
    case CONF_STRING:
        return str_eq(*(const struct str *)x, *(const struct str *)y);
    case CONF_BOOL:
        return *(const bool *)x == *(const bool *)y;
    case CONF_ENUM:
        return *(const int *)x == *(const int *)y;
    case CONF_LIST:
        return false; /* every list of the table is empty by default */
    default:
        return *(const int64_t *)x == *(const int64_t *)y;
    }
}

static bool value_is_given(const struct conf_option *o, const struct gateway_config *c)
{
    const void *x = value_of(o, c);

    return o->type == CONF_LIST ? ((const struct conf_list *)x)->count > 0
                                : ((const struct str *)x)->n > 0;
}

static void the_manual_loads_as_it_is(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    if (!gateway_config_load(MANUAL, &w.got, &w.arena, &w.err)) {
        fail_msg("%s", w.err.text);
    }
    arena_fini(&w.arena);
}

/* The same table without defaults: what the file does not name is then an error that names it. */
static void the_manual_names_every_option(void **state)
{
    struct conf_option required[OPTIONS_MAX];
    struct world w;

    (void)state;
    assert_true(gateway_options_count <= OPTIONS_MAX);
    for (size_t i = 0; i < gateway_options_count; i++) {
        required[i] = gateway_options[i];
        required[i].default_text = NULL;
    }
    world_init(&w);
    if (!conf_load(MANUAL, required, gateway_options_count, &w.got, &w.arena, &w.err)) {
        fail_msg("%s", w.err.text);
    }
    arena_fini(&w.arena);
}

/* An option whose default is empty shows an example instead. */
static void the_manual_shows_the_defaults(void **state)
{
    struct world manual, plain;

    (void)state;
    world_init(&manual);
    world_init(&plain);
    assert_true(conf_load(MANUAL, gateway_options, gateway_options_count, &manual.got,
                          &manual.arena, &manual.err));
    assert_true(gateway_config_load(NULL, &plain.got, &plain.arena, &plain.err));
    for (size_t i = 0; i < gateway_options_count; i++) {
        const struct conf_option *o = &gateway_options[i];
        bool empty = o->default_text[0] == '\0';

        if (empty && !value_is_given(o, &manual.got)) {
            fail_msg("%s: the manual shows no example", o->path);
        }
        if (!empty && !value_equals(o, &manual.got, &plain.got)) {
            fail_msg("%s: the manual does not show its default, %s", o->path, o->default_text);
        }
    }
    arena_fini(&manual.arena);
    arena_fini(&plain.arena);
}

static struct str read_manual(struct buf *b)
{
    FILE *f = fopen(MANUAL, "r");
    char line[4096];
    size_t n;

    assert_non_null(f);
    buf_init(b, 1u << 20);
    while ((n = fread(line, 1, sizeof(line), f)) > 0) {
        buf_append(b, line, n);
    }
    fclose(f);
    assert_false(b->failed);
    return buf_view(b);
}

/* "1ms..2s" behind an option: what the table says, in the file's own words. */
static void check_bound(const struct conf_option *o, struct str text, int64_t want)
{
    struct conf_option one = *o;
    struct gateway_config got = {0};
    struct arena a;
    struct err e = {.code = ERR_NONE};
    char yaml[128];
    int64_t v;

    one.path = "v";
    snprintf(yaml, sizeof(yaml), "v: " STR_FMT, STR_ARG(text));
    arena_init(&a, 1u << 20);
    if (!conf_parse(str_c(yaml), o->path, &one, 1, &got, &a, &e)) {
        fail_msg("%s: the manual's bound: %s", o->path, e.text);
    }
    memcpy(&v, value_of(o, &got), sizeof(v));
    if (v != want) {
        fail_msg("%s: the manual says %s, the table %lld", o->path, yaml + 3, (long long)want);
    }
    arena_fini(&a);
}

/* The option of a line "  name: value", section remembered from "name:"; NULL: no option here. */
static const struct conf_option *option_of_line(struct str line, char section[64])
{
    struct str name, value, full;
    bool inside = line.n > 0 && line.p[0] == ' ';
    char path[160];

    if (!str_cut(str_trim(line), ':', &name, &value) || name.n == 0 || name.p[0] == '#') {
        return NULL;
    }
    if (!inside) {
        str_copy(name, section, 64);
        section = "";
    }
    snprintf(path, sizeof(path), "%s%s" STR_FMT, section, inside ? "." : "", STR_ARG(name));
    full = str_c(path);
    for (size_t i = 0; i < gateway_options_count; i++) {
        if (str_eq(full, str_c(gateway_options[i].path))) {
            return &gateway_options[i];
        }
    }
    return NULL;
}

/* What stands behind "# " on the line, cut at "..". */
static bool bounds_of_line(struct str line, struct str *least, struct str *most)
{
    struct str before, after;

    if (!str_cut(line, '#', &before, &after) || !str_cut(str_trim(after), '.', least, most) ||
        most->n == 0) {
        return false;
    }
    *most = str_of(most->p + 1, most->n - 1);
    return true;
}

static void the_manual_shows_the_bounds(void **state)
{
    struct buf text;
    struct str rest = read_manual(&text), line, least, most;
    char section[64] = "";
    size_t bounded = 0, seen = 0;

    (void)state;
    while (rest.n > 0) {
        const struct conf_option *o;

        if (!str_cut(rest, '\n', &line, &rest)) {
            line = rest;
            rest.n = 0;
        }
        o = option_of_line(line, section);
        if (o == NULL || (o->min == 0 && o->max == 0)) {
            continue;
        }
        if (!bounds_of_line(line, &least, &most)) {
            fail_msg("%s: no bounds behind it in the manual", o->path);
        }
        check_bound(o, least, o->min);
        check_bound(o, most, o->max);
        seen++;
    }
    for (size_t i = 0; i < gateway_options_count; i++) {
        bounded += gateway_options[i].min != 0 || gateway_options[i].max != 0;
    }
    assert_int_equal(seen, bounded);
    buf_fini(&text);
}

static void a_listener_and_secrets_are_enough(void **state)
{
    struct world w;

    (void)state;
    if (!load(&w, "listen: {clear: [\"127.0.0.1:0\"]}\n" SECRETS)) {
        fail_msg("%s", w.err.text);
    }
    assert_int_equal(w.got.retries, 2);
    assert_int_equal(w.got.header_us, 10000000);
    arena_fini(&w.arena);
}

static void an_unknown_option_is_refused_with_its_line_and_a_guess(void **state)
{
    (void)state;
    check_refused("loops: 1\nhttp:\n  hedaer_bytes_max: 32KiB\n", ":3:3: ");
    check_refused("loops: 1\nhttp:\n  hedaer_bytes_max: 32KiB\n",
                  "'http.hedaer_bytes_max'; did you mean 'http.header_bytes_max'?");
    check_refused("journal:\n  dir: a\n  dir: b\n", ":3:3: ");
}

static void a_value_without_or_with_a_wrong_unit_is_refused_with_its_option(void **state)
{
    (void)state;
    check_refused("http:\n  idle_timeout: 180\n", ":2:17: 'http.idle_timeout'");
    check_refused("http:\n  idle_timeout: 180KiB\n", "'http.idle_timeout'");
    check_refused("requests:\n  body_bytes_max: 32MB\n", ":2:19: 'requests.body_bytes_max'");
    check_refused("upstream:\n  retries: 3\n", ":2:12: 'upstream.retries'");
}

static void addresses_that_would_show_keys_are_refused(void **state)
{
    (void)state;
    check_refused("listen:\n  clear: [\"127.0.0.1:0\"]\n  admin: \"0.0.0.0:8444\"\n" SECRETS,
                  "listen.admin: 0.0.0.0:8444 is not a loopback address");
    check_refused("listen:\n  clear: [\"127.0.0.1:0\", \"10.0.0.1:80\"]\n" SECRETS,
                  "listen.clear: 10.0.0.1:80 is not a loopback address");
    check_refused("listen:\n  tls: [\"localhost\"]\n" SECRETS, "listen.tls");
}

static void what_is_missing_is_named(void **state)
{
    (void)state;
    check_refused(SECRETS, "listen.tls or listen.clear");
    check_refused("listen:\n  tls: [\"0.0.0.0:0\"]\n" SECRETS, "tls.certificate and tls.key");
    check_refused("listen:\n  clear: [\"127.0.0.1:0\"]\n", "admin_key_file");
    check_refused("listen:\n  clear: [\"127.0.0.1:0\"]\nsecrets:\n  pepper_file: /s/b\n",
                  "deployment_file");
}

/* Each bound of the file reaches the server that keeps it. */
static void http_bounds_reach_the_server(void **state)
{
    struct world w;
    struct http_limits l;

    (void)state;
    assert_true(load(&w, "listen: {clear: [\"127.0.0.1:0\"]}\nhttp:\n  streams_max: 7\n"
                         "  header_timeout: 3s\nrequests:\n  answer_bytes_max: 1MiB\n" SECRETS));
    gateway_http_limits(&w.got, &l);
    assert_int_equal(l.streams_max, 7);
    assert_int_equal(l.header_us, 3000000);
    assert_true(l.stream_buffer_max > 1u << 20);
    arena_fini(&w.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_manual_loads_as_it_is),
        cmocka_unit_test(the_manual_names_every_option),
        cmocka_unit_test(the_manual_shows_the_defaults),
        cmocka_unit_test(the_manual_shows_the_bounds),
        cmocka_unit_test(a_listener_and_secrets_are_enough),
        cmocka_unit_test(an_unknown_option_is_refused_with_its_line_and_a_guess),
        cmocka_unit_test(a_value_without_or_with_a_wrong_unit_is_refused_with_its_option),
        cmocka_unit_test(addresses_that_would_show_keys_are_refused),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(http_bounds_reach_the_server),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
