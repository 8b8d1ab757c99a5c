/* chat.h - chat templates as a table of families: messages to segments of markup and content.
 *
 * A family is chosen by the exact template text, else by the operator's name; an unknown template
 * refuses chat with a sentence that names the override (never a silent guess).
 * A special segment is one control token. Markup and content are plain text, never parsed for
 * control tokens, and tokenized together from one special segment to the next: that is what the
 * template's own text would give, were it not for spellings of control tokens inside content. */
#ifndef WORKER_MODEL_CHAT_H
#define WORKER_MODEL_CHAT_H

#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"

enum chat_family { CHAT_NONE = 0, CHAT_SMOLLM2, CHAT_CHATML, CHAT_QWEN2 };

enum chat_segment_kind {
    CHAT_SPECIAL = 1, /* the exact spelling of one control token */
    CHAT_MARKUP,      /* text that the template adds */
    CHAT_CONTENT,     /* text of the request: content, role, tool calls */
};

struct chat_segment {
    enum chat_segment_kind kind;
    struct str text;  /* constant, or borrowed from the request */
    uint32_t message; /* index of the message; UINT32_MAX for the generation prompt */
};

struct chat_rendering {
    struct chat_segment *segments; /* arena */
    uint32_t count;
    uint32_t stable_messages; /* chunk hashes hold up to the end of this many messages */
};

const char *chat_family_name(enum chat_family f);
MUST_USE bool chat_family_named(struct str name,
                                enum chat_family *out); /* "smollm2", "chatml", "qwen2" */
enum chat_family chat_family_of_template(struct str template_text); /* CHAT_NONE: unknown */
/* messages: a checked array of {role, content (string, null or text parts), tool_calls?}; developer
 * -> system; other roles pass through; each tool call becomes a line name(arguments).
 * Ends with the generation prompt. false with a story: the arena is exhausted. */
MUST_USE bool chat_render(enum chat_family f, struct arena *a, const struct json *messages,
                          struct chat_rendering *out, struct err *e);
/* The control token that ends an assistant turn ("<|im_end|>"). */
struct str chat_end_token(enum chat_family f);

#endif
