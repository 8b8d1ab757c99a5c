/* chat.h - chat templates as a table of families: messages to segments of markup and content.
 *
 * A family is chosen by the exact template text (by digest), else by the operator's name; an
 * unknown template refuses chat with a sentence that names the override (never a silent guess).
 * A family renders what its template renders, byte for byte, for every request that it does not
 * refuse (tests/golden/chat_families.jsonl, made with jinja2).
 * A special segment is one control token. Markup and content are plain text, never parsed for
 * control tokens, and tokenized together from one special segment to the next: that is what the
 * template's own text would give, were it not for spellings of control tokens inside content.
 * A template that begins with the bos token says so itself, so none is put before a rendering. */
#ifndef WORKER_MODEL_CHAT_H
#define WORKER_MODEL_CHAT_H

#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"

enum chat_family {
    CHAT_NONE = 0,
    CHAT_SMOLLM2,
    CHAT_CHATML,
    CHAT_QWEN2,
    CHAT_QWEN25,
    CHAT_LLAMA3,
    CHAT_LLAMA31, /* 3.1, 3.2 and 3.3 */
    CHAT_MISTRAL_V01,
    CHAT_MISTRAL_V02,
    CHAT_MISTRAL_V1,
    CHAT_MISTRAL_V3,
    CHAT_MISTRAL_NEMO,
    CHAT_MISTRAL_V7,
};

enum chat_segment_kind {
    CHAT_SPECIAL = 1, /* the exact spelling of one control token */
    CHAT_MARKUP,      /* text that the template adds */
    CHAT_CONTENT,     /* text of the request: content, role, tools, tool calls */
};

struct chat_segment {
    enum chat_segment_kind kind;
    struct str text;  /* constant, borrowed from the request, or in the arena */
    uint32_t message; /* index of the message; UINT32_MAX for the generation prompt */
};

struct chat_rendering {
    struct chat_segment *segments; /* arena */
    uint32_t count;
    /* Chunk hashes hold up to the end of this many messages: what was rendered for them stays the
     * same when the conversation grows. All, except where a template puts the system message or
     * the tools before the last user message (mistral-v3, mistral-nemo). */
    uint32_t stable_messages;
};

/* How a family's model writes tool calls into its answer, for whoever parses it:
 *
 *   start [ws] object [ws] end            one call;  object: {name_key: "...", arguments_key: {}}
 *   start [ws] [object, object] [ws] end  `array`
 *
 * Text may precede the first start. An empty start: the turn is a call when it is, as a whole, one
 * such object. An empty end: the calls go to the end of the turn. start and end may be control
 * tokens, whose text shows only in tokenizer_bytes(special = true). */
struct chat_tool_format {
    struct str start, end;
    bool array;
    uint32_t calls_max; /* in one turn; 0: any number, start and end around each */
    struct str name_key;
    struct str arguments_key; /* its value is a JSON object, not a string of JSON */
    /* A call's id in the history must have exactly this many characters, so the ids that clients
     * are given must, too. 0: ids are not rendered and may be anything. */
    uint32_t id_chars;
    /* A control token that may end a turn of calls, beside chat_end_token; empty: none. */
    struct str end_token;
};

const char *chat_family_name(enum chat_family f); /* "none" for CHAT_NONE */
MUST_USE bool chat_family_named(struct str name, enum chat_family *out);
/* All names, for messages: "smollm2, chatml, qwen2, ...". */
const char *chat_family_names(void);
/* CHAT_NONE: unknown. One newline at the end makes no difference (jinja drops it). */
enum chat_family chat_family_of_template(struct str template_text);
/* The control token that ends an assistant turn ("<|im_end|>"). */
struct str chat_end_token(enum chat_family f);
/* NULL: the family's template defines no tools. */
const struct chat_tool_format *chat_tool_format(enum chat_family f);

/* messages: a checked array of {role, content (string, null or text parts), tool_calls?,
 * tool_call_id?}; tools: a checked array of {type, function}, NULL or empty for none. Before the
 * template sees them: developer -> system, function -> tool; null content is empty text; parts are
 * joined; empty tool_calls are none, an old function_call is one; arguments are parsed ("" is {}).
 * Ends with the generation prompt where the template has one.
 * false with a story: ERR_INPUT: the template (or a family without tools, ERR_UNSUPPORTED) refuses
 * such a conversation, and the text says why; ERR_LIMIT: the arena is exhausted. */
MUST_USE bool chat_render_tools(enum chat_family f, struct arena *a, const struct json *messages,
                                const struct json *tools, struct chat_rendering *out,
                                struct err *e);
/* The same without tools. */
MUST_USE bool chat_render(enum chat_family f, struct arena *a, const struct json *messages,
                          struct chat_rendering *out, struct err *e);

#endif
