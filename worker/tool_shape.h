/* tool_shape.h - the literal text around the tool calls of a family, made from its format once a
 * model: for the grammar that enforces calls and for the reader that tells them as they come.
 *
 *   begin (before NAME between ARGUMENTS after) [separator (before ...)]* end */
#ifndef WORKER_TOOL_SHAPE_H
#define WORKER_TOOL_SHAPE_H

#include "cache/tokenizer.h"
#include "worker/engine/grammar.h"
#include "worker/model/chat.h"

enum tool_part {
    TOOL_PART_BEGIN,
    TOOL_PART_BEFORE,
    TOOL_PART_BETWEEN,
    TOOL_PART_AFTER,
    TOOL_PART_SEPARATOR,
    TOOL_PART_END,
    TOOL_PARTS
};

#define TOOL_PART_BYTES 128
#define TOOL_PART_PIECES 3

struct tool_literal {
    char text[TOOL_PART_BYTES]; /* control tokens as they are spelled */
    size_t n;
    struct grammar_piece piece[TOOL_PART_PIECES]; /* text of them lies in `text` */
    uint32_t pieces;
};

struct tool_shape {
    const struct chat_tool_format *format; /* NULL: the family defines no tools */
    int32_t start_id, end_id;              /* the markers, when each is one token; -1 */
    struct tool_literal part[TOOL_PARTS];
};

void tool_shape_init(struct tool_shape *s, const struct chat_tool_format *f,
                     const struct tokenizer *t);
struct str tool_shape_text(const struct tool_shape *s, enum tool_part part);
/* For grammar_compile; borrows the shape. */
void tool_shape_grammar(const struct tool_shape *s, uint32_t calls_max,
                        struct grammar_tool_format *out);

#endif
