/* chat_write.c - the list of segments that a family writes; grows in the request's arena. */
#include "worker/model/chat_shape.h"

#define SEGMENTS_FIRST 64

static void put(struct chat_writer *w, enum chat_segment_kind kind, struct str text)
{
    if (w->failed || text.n == 0) {
        return;
    }
    if (w->count == w->cap) {
        uint32_t cap = w->cap > 0 ? w->cap * 2 : SEGMENTS_FIRST;
        struct chat_segment *more = arena_array(w->arena, cap, sizeof(*more));

        if (more == NULL) {
            w->failed = true;
            return;
        }
        if (w->count > 0) {
            memcpy(more, w->segments, w->count * sizeof(*more));
        }
        w->segments = more;
        w->cap = cap;
    }
    w->segments[w->count++] =
        (struct chat_segment){.kind = kind, .text = text, .message = w->message};
}

void chat_special(struct chat_writer *w, const char *token)
{
    put(w, CHAT_SPECIAL, str_c(token));
}

void chat_markup(struct chat_writer *w, const char *text)
{
    put(w, CHAT_MARKUP, str_c(text));
}

void chat_content(struct chat_writer *w, struct str text)
{
    put(w, CHAT_CONTENT, text);
}

void chat_parts(struct chat_writer *w, const struct chat_message *m)
{
    for (uint32_t i = 0; i < m->n_parts; i++) {
        put(w, CHAT_CONTENT, m->parts[i]);
    }
}

/* Moves what was written into the arena. */
static struct str kept(struct chat_writer *w, struct buf *b)
{
    struct str s = {0};

    if (b->failed) {
        w->failed = true;
    } else {
        s = arena_str(w->arena, buf_view(b));
        w->failed = w->failed || s.p == NULL;
    }
    buf_fini(b);
    return s;
}

void chat_json(struct chat_writer *w, const struct json *v, unsigned indent)
{
    struct buf b;

    buf_init(&b, CHAT_JSON_BYTES_MAX);
    chat_json_write(&b, v, indent);
    chat_content(w, kept(w, &b));
}

void chat_json_key(struct chat_writer *w, struct str key)
{
    struct buf b;

    buf_init(&b, CHAT_JSON_BYTES_MAX);
    chat_json_write_string(&b, key);
    chat_content(w, kept(w, &b));
}

void chat_json_text(struct chat_writer *w, const struct chat_message *m)
{
    struct buf b;

    buf_init(&b, CHAT_JSON_BYTES_MAX);
    for (uint32_t i = 0; i < m->n_parts; i++) {
        chat_json_write_string(&b, m->parts[i]);
    }
    chat_markup(w, "\"");
    chat_content(w, kept(w, &b));
    chat_markup(w, "\"");
}

void chat_arguments(struct chat_writer *w, const struct chat_call *c)
{
    const struct json *sent = json_get(c->function, STR("arguments"));
    struct str text;
    struct buf b;

    buf_init(&b, CHAT_JSON_BYTES_MAX);
    chat_json_write(&b, c->arguments, 0);
    text = kept(w, &b);
    /* Chunks are found by the memory of the request. */
    chat_content(w, sent != NULL && str_eq(sent->text, text) ? sent->text : text);
}

void chat_call(struct chat_writer *w, const struct chat_call *c, const char *arguments_key)
{
    chat_markup(w, "{\"name\": \"");
    chat_content(w, c->name);
    chat_markup(w, "\", \"");
    chat_markup(w, arguments_key);
    chat_markup(w, "\": ");
    chat_arguments(w, c);
    chat_markup(w, "}");
}
