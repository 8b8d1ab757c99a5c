/* chat_cli.c - what check_chat.py talks to: a JSON document a line on stdin, an answer a line.
 *
 *   {"template": "..."}                                  -> {"family": "qwen2.5"}
 *   {"family", "messages", "tools", "generate": bool}    -> {"text": "..."} or {"refused": "..."}
 */
#include <stdio.h>
#include <stdlib.h>
#include "worker/model/chat.h"

#define ARENA_MAX (64u << 20)
#define LINE_MAX_BYTES (16u << 20)

static void answer(struct arena *a, const struct json *row, struct buf *out)
{
    const struct json *text = json_get(row, STR("template"));
    const struct json *generate = json_get(row, STR("generate"));
    struct json_writer w;
    struct chat_rendering r;
    struct err e = {0};
    enum chat_family f;
    struct buf flat;

    jw_init(&w, out);
    jw_object(&w);
    if (text != NULL) {
        jw_kc(&w, "family", chat_family_name(chat_family_of_template(text->text)));
        jw_end_object(&w);
        return;
    }
    CHECK(chat_family_named(json_get(row, STR("family"))->text, &f));
    if (!chat_render_tools(f, a, json_get(row, STR("messages")), json_get(row, STR("tools")), &r,
                           &e)) {
        jw_kc(&w, "refused", e.text);
        jw_end_object(&w);
        return;
    }
    buf_init(&flat, LINE_MAX_BYTES);
    for (uint32_t i = 0; i < r.count; i++) {
        if (r.segments[i].message != UINT32_MAX || generate->type == JSON_TRUE) {
            buf_str(&flat, r.segments[i].text);
        }
    }
    jw_kstr(&w, "text", buf_view(&flat));
    jw_end_object(&w);
    buf_fini(&flat);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct err e = {0};
        struct arena a;
        struct json *row;
        struct buf out;

        arena_init(&a, ARENA_MAX);
        buf_init(&out, LINE_MAX_BYTES);
        row = json_parse(&a, str_of(line, (size_t)n), &json_limits_api, &e);
        if (row == NULL) {
            fprintf(stderr, "%s\n", e.text);
            return 1;
        }
        answer(&a, row, &out);
        buf_byte(&out, '\n');
        fwrite(buf_view(&out).p, 1, out.len, stdout);
        fflush(stdout);
        buf_fini(&out);
        arena_fini(&a);
    }
    free(line);
    return 0;
}
