/* chat_shape.h - what the template families share: a conversation as templates see it, and the
 * writer of segments.
 *
 * Private to worker/model/chat*.c. Everything lives in the arena of the request or is borrowed
 * from it. */
#ifndef WORKER_MODEL_CHAT_SHAPE_H
#define WORKER_MODEL_CHAT_SHAPE_H

#include "worker/model/chat.h"

#define CHAT_MISTRAL_ID_CHARS 9
#define CHAT_JSON_BYTES_MAX (64u << 20) /* one tool or call; a body is at most half of it */

struct chat_call {
    const struct json *function;  /* {name, arguments, ...} as it came */
    const struct json *arguments; /* parsed: an object */
    struct str name, id;
};

struct chat_message {
    struct str role, name;
    struct str *parts; /* [n_parts] text, borrowed; what the message says is all of them, joined */
    uint32_t n_parts;
    struct chat_call *calls; /* [n_calls] */
    uint32_t n_calls;
    struct str call_id; /* which call this message answers */
};

struct chat_conversation {
    struct chat_message *message; /* [count] */
    uint32_t count;
    const struct json *tools; /* NULL: none */
};

/* false with a story: ERR_INPUT, ERR_LIMIT. */
MUST_USE bool chat_read(struct arena *a, const struct json *messages, const struct json *tools,
                        struct chat_conversation *out, struct err *e);
bool chat_is(const struct chat_message *m, const char *role);
bool chat_is_empty(const struct chat_message *m);
/* Message i of a family whose template knows no calls. */
MUST_USE bool chat_has_no_calls(const struct chat_message *m, uint32_t i, struct err *e);
/* Takes white space off both ends, as Python's str.strip does. */
void chat_trim(struct chat_message *m);

/* Collects segments; a failure is sticky and seen at the end. */
struct chat_writer {
    struct arena *arena;
    struct chat_segment *segments; /* arena; [cap] */
    uint32_t count, cap;
    uint32_t message; /* index that the next segments get */
    bool failed;
};

void chat_special(struct chat_writer *w, const char *token);
void chat_markup(struct chat_writer *w, const char *text);
void chat_content(struct chat_writer *w, struct str text);
void chat_parts(struct chat_writer *w, const struct chat_message *m);
/* JSON as Python's json.dumps(ensure_ascii=False) writes it; indent 0: on one line. */
void chat_json(struct chat_writer *w, const struct json *v, unsigned indent);
void chat_json_key(struct chat_writer *w, struct str key); /* without the quotes */
/* The parts, joined, as one JSON string. */
void chat_json_text(struct chat_writer *w, const struct chat_message *m);
/* The arguments; the client's own bytes when they are written like that. */
void chat_arguments(struct chat_writer *w, const struct chat_call *c);

/* {"name": "...", "<arguments_key>": {...}} */
void chat_call(struct chat_writer *w, const struct chat_call *c, const char *arguments_key);

void chat_json_write(struct buf *b, const struct json *v, unsigned indent);
void chat_json_write_string(struct buf *b, struct str s); /* without the quotes */

/* One template family: what the table in chat.c holds of it. */
struct chat_shape {
    const char *system;    /* chatml: the system message where there is none; NULL: nothing */
    const char *space;     /* mistral: after a marker */
    const char *lead;      /* mistral: before [INST] */
    const char *assistant; /* mistral: before an answer */
    const char *turn_end;  /* mistral: after an answer's </s> */
    const char *inst_end;  /* mistral: between a user's text and [/INST] */
    bool no_system;        /* mistral: system messages are refused */
    bool trim_assistant;   /* mistral */
};

/* Each writes one conversation; false with a story: what the template refuses. */
typedef bool chat_renderer(const struct chat_shape *s, const struct chat_conversation *c,
                           struct chat_writer *w, uint32_t *stable_messages, struct err *e);
chat_renderer chat_render_chatml, chat_render_qwen25, chat_render_llama3, chat_render_llama31,
    chat_render_mistral_plain, chat_render_mistral_tools, chat_render_mistral_v7;

#endif
