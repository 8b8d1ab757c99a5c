/* tool_shape.c - see the header. White space is as the templates of the families write it. */
#include "worker/tool_shape.h"

static void add(struct tool_literal *l, struct str text, int32_t token)
{
    struct grammar_piece *p = &l->piece[l->pieces];

    if (text.n == 0) {
        return;
    }
    CHECK(l->n + text.n < sizeof(l->text) && l->pieces < TOOL_PART_PIECES);
    memcpy(l->text + l->n, text.p, text.n);
    if (token >= 0) {
        p->token = token;
        l->pieces++;
    } else if (l->pieces > 0 && p[-1].text.n > 0) {
        p[-1].text.n += text.n; /* text after text is one piece */
    } else {
        p->text = str_of(l->text + l->n, text.n);
        l->pieces++;
    }
    l->n += text.n;
}

static void add_marker(struct tool_literal *l, const struct tokenizer *t, struct str text,
                       int32_t id)
{
    add(l, text, id >= 0 && tokenizer_is_control(t, id) ? id : -1);
}

void tool_shape_init(struct tool_shape *s, const struct chat_tool_format *f,
                     const struct tokenizer *t)
{
    struct tool_literal *p = s->part;

    memset(s, 0, sizeof(*s));
    s->format = f;
    s->start_id = s->end_id = -1;
    if (f == NULL) {
        return;
    }
    s->start_id = f->start.n > 0 ? tokenizer_find(t, f->start) : -1;
    s->end_id = f->end.n > 0 ? tokenizer_find(t, f->end) : -1;
    add_marker(f->array ? &p[TOOL_PART_BEGIN] : &p[TOOL_PART_BEFORE], t, f->start, s->start_id);
    add(&p[TOOL_PART_BEGIN], f->array ? STR("[") : STR(""), -1);
    add(&p[TOOL_PART_BEFORE], f->start.n > 0 && !f->array ? STR("\n") : STR(""), -1);
    add(&p[TOOL_PART_BEFORE], STR("{\""), -1);
    add(&p[TOOL_PART_BEFORE], f->name_key, -1);
    add(&p[TOOL_PART_BEFORE], STR("\": \""), -1);
    add(&p[TOOL_PART_BETWEEN], STR("\", \""), -1);
    add(&p[TOOL_PART_BETWEEN], f->arguments_key, -1);
    add(&p[TOOL_PART_BETWEEN], STR("\": "), -1);
    add(&p[TOOL_PART_AFTER], STR("}"), -1);
    if (f->array) {
        add(&p[TOOL_PART_SEPARATOR], STR(", "), -1);
        add(&p[TOOL_PART_END], STR("]"), -1);
        add_marker(&p[TOOL_PART_END], t, f->end, s->end_id);
        return;
    }
    add(&p[TOOL_PART_SEPARATOR], STR("\n"), -1);
    if (f->end.n > 0) {
        add(&p[TOOL_PART_AFTER], STR("\n"), -1);
        add_marker(&p[TOOL_PART_AFTER], t, f->end, s->end_id);
    }
}

struct str tool_shape_text(const struct tool_shape *s, enum tool_part part)
{
    return str_of(s->part[part].text, s->part[part].n);
}

static struct grammar_literal literal(const struct tool_shape *s, enum tool_part part)
{
    return (struct grammar_literal){.pieces = s->part[part].piece, .n = s->part[part].pieces};
}

void tool_shape_grammar(const struct tool_shape *s, uint32_t calls_max,
                        struct grammar_tool_format *out)
{
    *out = (struct grammar_tool_format){.begin = literal(s, TOOL_PART_BEGIN),
                                        .before = literal(s, TOOL_PART_BEFORE),
                                        .between = literal(s, TOOL_PART_BETWEEN),
                                        .after = literal(s, TOOL_PART_AFTER),
                                        .separator = literal(s, TOOL_PART_SEPARATOR),
                                        .end = literal(s, TOOL_PART_END),
                                        .calls_min = 1,
                                        .calls_max = calls_max};
}
