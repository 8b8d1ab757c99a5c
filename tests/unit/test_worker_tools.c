/* test_worker_tools.c - tool calls read out of an answer's text: however it is cut into pieces,
 * what is a call comes as one and what is none comes as content. */
#include "worker/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/net/os.h"
#include "tests/unit/tiny_model.h"

#define TEXT_MAX 65536

struct world {
    struct serve serve;
    struct job job;
    struct choice choice;
    struct model *model;
    char path[64];
};

static void world_open(struct world *w, enum chat_family f, enum tool_mode mode)
{
    struct err e = {0};

    memset(w, 0, sizeof(*w));
    snprintf(w->path, sizeof(w->path), "/tmp/tg-tools-%d.gguf", (int)getpid());
    assert_true(tiny_model_write(w->path, 1));
    w->model = model_open(w->path, &e);
    assert_non_null(w->model);
    w->serve.env = os_env_new(NULL, &e);
    assert_non_null(w->serve.env);
    tool_shape_init(&w->serve.shape, chat_tool_format(f), w->model->tokenizer);
    w->job = (struct job){.serve = &w->serve, .kind = JOB_CHAT, .tool_mode = mode, .n = 1};
    w->choice.job = &w->job;
}

static void world_close(struct world *w)
{
    os_env_free(w->serve.env);
    model_close(w->model);
    remove(w->path);
}

/* Content, and the calls as "name(arguments);". */
struct read {
    char content[4096], calls[4096];
    uint32_t n;
};

static void read_told(struct world *w, struct read *out)
{
    const struct choice *c = &w->choice;
    struct arena a;
    struct err e = {0};
    struct buf all;
    const struct json *list;

    str_copy(buf_view(&c->text), out->content, sizeof(out->content));
    arena_init(&a, 4 << 20);
    buf_init(&all, 1 << 20);
    buf_c(&all, "[");
    buf_str(&all, buf_view(&c->tool.told));
    buf_c(&all, "]");
    list = json_parse(&a, buf_view(&all), &json_limits_api, &e);
    assert_non_null(list);
    assert_int_equal(list->count, c->tool.calls);
    for (const struct json *v = list->child; v != NULL; v = v->next) {
        const struct json *f = json_get(v, STR("function"));
        struct str id = json_get(v, STR("id"))->text, name = json_get(f, STR("name"))->text;
        struct str arguments = json_get(f, STR("arguments"))->text;
        size_t at = strlen(out->calls);
        uint32_t chars = w->serve.shape.format->id_chars;

        assert_true(chars > 0 ? id.n == chars : id.n > 8);
        snprintf(out->calls + at, sizeof(out->calls) - at, STR_FMT "(" STR_FMT ");", STR_ARG(name),
                 STR_ARG(arguments));
    }
    out->n = list->count;
    buf_fini(&all);
    arena_fini(&a);
}

/* Feeds text in pieces of `step` bytes. */
static void feed(struct world *w, struct str text, size_t step, struct read *out)
{
    struct choice *c = &w->choice;
    bool over = false;

    memset(out, 0, sizeof(*out));
    memset(c, 0, sizeof(*c));
    c->job = &w->job;
    buf_init(&c->text, TEXT_MAX);
    tools_init(c, TEXT_MAX);
    for (size_t at = 0; at < text.n && !over; at += step) {
        over = tools_feed(c, str_of(text.p + at, size_min(step, text.n - at)));
    }
    tools_finish(c);
    read_told(w, out);
    buf_fini(&c->text);
    tools_fini(c);
}

struct row {
    const char *text, *content, *calls;
};

static void check_rows(struct world *w, const struct row *rows, size_t n)
{
    static struct read r;

    for (size_t i = 0; i < n; i++) {
        for (size_t step = 1; step <= 40; step += step < 8 ? 1 : 11) {
            feed(w, str_c(rows[i].text), step, &r);
            if (strcmp(r.content, rows[i].content) != 0 || strcmp(r.calls, rows[i].calls) != 0) {
                fail_msg("row %zu in steps of %zu: content \"%s\", calls \"%s\"", i, step,
                         r.content, r.calls);
            }
        }
    }
}

static void calls_of_qwen_are_read_and_the_rest_is_content(void **state)
{
    static const struct row rows[] = {
        {"Just text.", "Just text.", ""},
        {"", "", ""},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "",
         "f({\"a\": 1});"},
        {"Let me see.\n<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>\n",
         "Let me see.", "f({});"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": "
         "\"g\", "
         "\"arguments\": {\"x\": \"</tool_call> \\\"}\"}}</tool_call>",
         "", "f({});g({\"x\": \"</tool_call> \\\"}\"});"},
        {"<tool_call>\n{\"name\": \"f\"}\n</tool_call> and then", " and then", "f({});"},
        /* the value is whole, the marker was not written */
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}", "", "f({});"},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool", "", "f({});"},
        /* none of these is a call; none is lost */
        {"a <tool_cal", "a <tool_cal", ""},
        {"a <b> <<tool_call", "a <b> <<tool_call", ""},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": ",
         "<tool_call>\n{\"name\": \"f\", "
         "\"arguments\": {\"a\": ",
         ""},
        {"x <tool_call>{\"nome\": 1}</tool_call> y", "x <tool_call>{\"nome\": 1}</tool_call> y",
         ""},
        {"<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
         "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>", ""},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {a}}</tool_call>",
         "<tool_call>{\"name\": \"f\", \"arguments\": {a}}</tool_call>", ""},
        {"<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>", ""},
        {"<tool_call>{\"name\": \"f\"} what</tool_call>",
         "<tool_call>{\"name\": \"f\"} what</tool_call>", ""},
        {"trailing space \n", "trailing space \n", ""},
        /* what is no call does not take the next one with it */
        {"<tool_call>{\"name\": \"f\"}<tool_call>{\"name\": \"g\"}</tool_call>",
         "<tool_call>{\"name\": \"f\"}", "g({});"},
        {"<tool_call><tool_call>{\"name\": \"g\"}</tool_call>", "<tool_call>", "g({});"},
        {"<tool_call>{\"nome\": 1}</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call> x",
         "<tool_call>{\"nome\": 1}</tool_call> x", "g({});"},
        {"<tool_call>{}<tool_call>{}<tool_call>", "<tool_call>{}<tool_call>{}<tool_call>", ""},
    };
    static struct world w;

    (void)state;
    world_open(&w, CHAT_QWEN25, TOOLS_AUTO);
    check_rows(&w, rows, ARRAY_LEN(rows));
    world_close(&w);
}

static void a_turn_of_llama_is_a_call_as_a_whole_or_not_at_all(void **state)
{
    static const struct row rows[] = {
        {"{\"name\": \"f\", \"parameters\": {\"a\": [1, {}]}}", "", "f({\"a\": [1, {}]});"},
        {"\n {\"name\": \"f\", \"parameters\": {}} \n", "", "f({});"},
        {"{\"name\": \"f\", \"parameters\": {}} is it",
         "{\"name\": \"f\", \"parameters\": {}} is it", ""},
        {"{\"answer\": 42}", "{\"answer\": 42}", ""},
        {"It is {\"name\": \"f\", \"parameters\": {}}",
         "It is {\"name\": \"f\", \"parameters\": {}}", ""},
        {"{\"name\": \"f\"", "{\"name\": \"f\"", ""},
        {"  hello", "  hello", ""},
    };
    static struct world w;

    (void)state;
    world_open(&w, CHAT_LLAMA31, TOOLS_AUTO);
    check_rows(&w, rows, ARRAY_LEN(rows));
    world_close(&w);
}

static void a_list_of_mistral_is_many_calls(void **state)
{
    static const struct row rows[] = {
        {"[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", "
         "\"arguments\": {}}]",
         "", "f({\"a\": 1});g({});"},
        {"[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}, \"id\": \"123456789\"}]", "",
         "f({});"},
        {"[TOOL_CALLS][{\"name\": \"f\"}, 5]", "[TOOL_CALLS][{\"name\": \"f\"}, 5]", ""},
        {"[TOOL_CALLS][]", "[TOOL_CALLS][]", ""},
        {"[TOOL_CALLS]{}", "[TOOL_CALLS]{}", ""},
        {"[TOOL", "[TOOL", ""},
    };
    static struct world w;

    (void)state;
    world_open(&w, CHAT_MISTRAL_NEMO, TOOLS_AUTO);
    check_rows(&w, rows, ARRAY_LEN(rows));
    world_close(&w);
}

static void one_call_ends_the_answer_where_many_are_not_wanted(void **state)
{
    static struct world w;
    static struct read r;

    (void)state;
    world_open(&w, CHAT_QWEN25, TOOLS_AUTO);
    w.job.one_call = true;
    feed(&w,
         STR("a <tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"g\"}</tool_call>"),
         3, &r);
    assert_string_equal(r.content, "a");
    assert_string_equal(r.calls, "f({});");
    world_close(&w);
}

/* `before`, n spaces, `after`. */
static struct str spaced(struct buf *b, const char *before, size_t n, const char *after)
{
    buf_reset(b);
    buf_c(b, before);
    for (size_t i = 0; i < n; i++) {
        buf_c(b, " ");
    }
    buf_c(b, after);
    return buf_view(b);
}

static bool begins_with_calls(const struct read *r, const char *calls, size_t content)
{
    return strcmp(r->calls, calls) == 0 && strlen(r->content) == content;
}

static void much_white_space_is_content(void **state)
{
    static struct world w;
    static struct read r;
    struct buf b;

    (void)state;
    buf_init(&b, TEXT_MAX);
    world_open(&w, CHAT_QWEN25, TOOLS_AUTO);
    for (size_t step = 1; step <= 1001; step += 100) {
        feed(&w, spaced(&b, "a", 1000, "<tool_call>{\"name\": \"f\"}</tool_call>"), step, &r);
        assert_true(begins_with_calls(&r, "f({});", 1 + 1000 - 256));
        feed(&w, spaced(&b, "<tool_call>{\"name\": \"f\"}", 256, "</tool_call>"), step, &r);
        assert_true(begins_with_calls(&r, "f({});", 0));
        feed(&w, spaced(&b, "<tool_call>{\"name\": \"f\"}", 257, "</tool_call>"), step, &r);
        assert_true(begins_with_calls(&r, "", b.len));
        feed(&w, spaced(&b, "a", 1000, ""), step, &r);
        assert_true(begins_with_calls(&r, "", b.len));
    }
    world_close(&w);
    world_open(&w, CHAT_LLAMA31, TOOLS_AUTO);
    for (size_t step = 1; step <= 1001; step += 100) {
        feed(&w, spaced(&b, "", 256, "{\"name\": \"f\"}"), step, &r);
        assert_true(begins_with_calls(&r, "f({});", 0));
        feed(&w, spaced(&b, "", 257, "{\"name\": \"f\"}"), step, &r);
        assert_true(begins_with_calls(&r, "", b.len));
        feed(&w, spaced(&b, "{\"name\": \"f\"}", 256, ""), step, &r);
        assert_true(begins_with_calls(&r, "f({});", 0));
        feed(&w, spaced(&b, "{\"name\": \"f\"}", 257, ""), step, &r);
        assert_true(begins_with_calls(&r, "", b.len));
    }
    world_close(&w);
    buf_fini(&b);
}

/* So that a token costs the same however many came before it. */
static void little_white_space_is_held(void **state)
{
    static const char *const begins[] = {"a", "<tool_call>{\"name\": \"f\"}"};
    static struct world w;
    struct choice *c = &w.choice;

    (void)state;
    world_open(&w, CHAT_QWEN25, TOOLS_AUTO);
    for (size_t i = 0; i < ARRAY_LEN(begins); i++) {
        memset(c, 0, sizeof(*c));
        c->job = &w.job;
        buf_init(&c->text, TEXT_MAX);
        tools_init(c, TEXT_MAX);
        (void)tools_feed(c, str_c(begins[i]));
        for (int k = 0; k < 5000; k++) {
            (void)tools_feed(c, STR("\n "));
            assert_in_range(c->tool.held.len, 0, 256 + 32);
        }
        buf_fini(&c->text);
        tools_fini(c);
    }
    world_close(&w);
}

static void calls_without_memory_fail_the_answer(void **state)
{
    static struct world w;
    struct choice *c = &w.choice;

    (void)state;
    world_open(&w, CHAT_QWEN25, TOOLS_AUTO);
    for (size_t room = 0; room <= 200; room += 40) {
        memset(c, 0, sizeof(*c));
        c->job = &w.job;
        buf_init(&c->text, TEXT_MAX);
        tools_init(c, TEXT_MAX);
        buf_fini(&c->tool.told);
        buf_init(&c->tool.told, room);
        (void)tools_feed(c, STR("<tool_call>{\"name\": \"f\"}")); /* told when it is finished */
        assert_false(c->text.failed);
        tools_finish(c);
        assert_int_equal(c->text.failed, room < 90); /* a call is some 100 bytes */
        buf_fini(&c->text);
        tools_fini(c);
    }
    world_close(&w);
}

/* What the grammar lets through, in each family's literals. */
static void forced_text(const struct world *w, struct buf *out)
{
    const struct tool_shape *s = &w->serve.shape;

    buf_reset(out);
    buf_str(out, tool_shape_text(s, TOOL_PART_BEGIN));
    for (int i = 0; i < 2; i++) {
        buf_str(out, i > 0 ? tool_shape_text(s, TOOL_PART_SEPARATOR) : STR(""));
        buf_str(out, tool_shape_text(s, TOOL_PART_BEFORE));
        buf_c(out, i > 0 ? "g.h" : "f_1");
        buf_str(out, tool_shape_text(s, TOOL_PART_BETWEEN));
        buf_c(out, i > 0 ? "{}" : "{ \"a\": \"}\\\"{\",\n\"b\": [{}] }");
        buf_str(out, tool_shape_text(s, TOOL_PART_AFTER));
    }
    buf_str(out, tool_shape_text(s, TOOL_PART_END));
}

static size_t first_call_bytes(const struct world *w)
{
    const struct tool_shape *s = &w->serve.shape;

    return tool_shape_text(s, TOOL_PART_BEGIN).n + tool_shape_text(s, TOOL_PART_BEFORE).n +
           strlen("f_1") + tool_shape_text(s, TOOL_PART_BETWEEN).n;
}

static void forced_calls_are_told_as_they_come(void **state)
{
    static const enum chat_family families[] = {CHAT_QWEN25, CHAT_LLAMA31, CHAT_MISTRAL_NEMO};
    static struct world w;
    static struct read r;
    struct buf text;

    (void)state;
    buf_init(&text, TEXT_MAX);
    for (size_t f = 0; f < ARRAY_LEN(families); f++) {
        world_open(&w, families[f], TOOLS_FORCED);
        forced_text(&w, &text);
        for (size_t step = 1; step < 60; step += 3) {
            feed(&w, buf_view(&text), step, &r);
            assert_string_equal(r.content, "");
            assert_string_equal(r.calls, "f_1({ \"a\": \"}\\\"{\",\n\"b\": [{}] });g.h({});");
        }
        /* Cut anywhere: what is there is a list of calls all the same; before there is one it is
         * content, as it stands. */
        for (size_t n = 0; n < text.len; n++) {
            struct str cut = str_of(buf_view(&text).p, n);

            feed(&w, cut, 5, &r);
            assert_true(str_eq(str_c(r.content), r.n > 0 ? STR("") : cut));
            assert_int_equal(r.n > 0, n >= first_call_bytes(&w));
        }
        world_close(&w);
    }
    buf_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_of_qwen_are_read_and_the_rest_is_content),
        cmocka_unit_test(a_turn_of_llama_is_a_call_as_a_whole_or_not_at_all),
        cmocka_unit_test(a_list_of_mistral_is_many_calls),
        cmocka_unit_test(one_call_ends_the_answer_where_many_are_not_wanted),
        cmocka_unit_test(much_white_space_is_content),
        cmocka_unit_test(little_white_space_is_held),
        cmocka_unit_test(calls_without_memory_fail_the_answer),
        cmocka_unit_test(forced_calls_are_told_as_they_come),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
