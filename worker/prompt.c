/* prompt.c - lays the segments of a rendering out as one flat text, tokenizes it run by run, and
 * finds for each chunk the token that ends it.
 *
 *   flat     <|im_start|> u s e r \n c o n t e n t <|im_end|> \n ...
 *   runs                  '-----------------------'            '--   one call of the tokenizer each
 *   tokens   end of each as an offset in flat; settled[i] = tokens up to the last boundary <= i */
#include "worker/prompt.h"

/* Text is tokenized a piece at a time, so that the work ends soon after ids_max tokens. */
#define PROMPT_PLAIN_BYTES_MAX (64u << 20) /* of one turn with its calls as text */
#define PIECE_BYTES (16u << 10)
/* More than a pre-token and the search for a control token (256 bytes) look beyond the white space
 * that follows them. */
#define PIECE_MARGIN 512

struct layout {
    const struct tokenizer *tokenizer;
    struct buf run;    /* plain text since the last special token */
    uint64_t flat;     /* length of the flat text so far, the run included */
    int32_t *ids;      /* [cap], as are the next two; moved into the prompt at the end */
    uint32_t *end;     /* flat offset just after the token */
    uint32_t *settled; /* count of leading tokens up to and with the last boundary at or before i */
    uint32_t n, cap;
    struct token *scratch; /* [scratch_cap] */
    uint32_t scratch_cap;
    uint32_t ids_max;
    bool cut; /* more than ids_max tokens: what is left of the text is not looked at */
    struct err *e;
};

void prompt_fini(struct prompt *p)
{
    mem_free(p->ids);
    mem_free(p->chunks);
    mem_free(p->chunk_token);
    memset(p, 0, sizeof(*p));
}

static void layout_init(struct layout *l, const struct tokenizer *t, uint32_t ids_max,
                        struct err *e)
{
    memset(l, 0, sizeof(*l));
    l->tokenizer = t;
    l->ids_max = ids_max;
    l->e = e;
    buf_init(&l->run, PROMPT_BYTES_MAX);
}

static void layout_fini(struct layout *l)
{
    buf_fini(&l->run);
    mem_free(l->ids);
    mem_free(l->end);
    mem_free(l->settled);
    mem_free(l->scratch);
}

static bool no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "there is no memory for a prompt of this length");
}

static bool grow_array(uint32_t **p, size_t cap)
{
    uint32_t *bigger = mem_resize(*p, cap * sizeof(**p));

    *p = bigger != NULL ? bigger : *p;
    return bigger != NULL;
}

static bool reserve(struct layout *l, size_t more)
{
    size_t cap = l->n + more;
    int32_t *ids;

    if (cap <= l->cap) {
        return true;
    }
    cap += cap / 2;
    ids = mem_resize(l->ids, cap * sizeof(*ids));
    if (ids == NULL) {
        return no_memory(l->e);
    }
    l->ids = ids;
    if (!grow_array(&l->end, cap) || !grow_array(&l->settled, cap)) {
        return no_memory(l->e);
    }
    l->cap = (uint32_t)cap;
    return true;
}

static void add_token(struct layout *l, int32_t id, uint64_t end, bool boundary)
{
    uint32_t before = l->n > 0 ? l->settled[l->n - 1] : 0;

    l->ids[l->n] = id;
    l->end[l->n] = (uint32_t)end;
    l->settled[l->n] = boundary ? l->n + 1 : before;
    l->n++;
}

/* text into l->scratch: count of tokens, -1 with a story. */
static int64_t encode_piece(struct layout *l, struct str text, enum tokenizer_special special)
{
    uint32_t need = (uint32_t)text.n + 1;
    int64_t n;

    if (need > l->scratch_cap) {
        mem_free(l->scratch);
        l->scratch_cap = 0;
        l->scratch = mem_try(need, sizeof(*l->scratch));
        if (l->scratch == NULL) {
            no_memory(l->e);
            return -1;
        }
        l->scratch_cap = need;
    }
    n = tokenizer_encode(l->tokenizer, text, special, l->scratch, l->scratch_cap);
    if (n < 0) {
        no_memory(l->e);
    }
    return n;
}

/* The first `bytes` of text, or a little less: whole characters. */
static struct str cut_piece(struct str text, size_t bytes)
{
    if (bytes >= text.n) {
        return text;
    }
    while (bytes > 1 && ((uint8_t)text.p[bytes] & 0xC0) == 0x80) {
        bytes--;
    }
    return str_of(text.p, bytes);
}

/* Whether a character that begins at p is surely no white space. */
static bool is_dark(const char *p)
{
    uint8_t c = (uint8_t)p[0];

    if (c < 0x80) {
        return c > ' ' && c < 0x7F;
    }
    return c == 0xE3 ? (uint8_t)p[1] != 0x80 : c >= 0xC3 && c != 0xE1 && c != 0xE2;
}

/* How many of the n tokens of a piece stay the same whatever follows it. A pre-token depends on
 * nothing before it, and on nothing after it but the rest of a run of white space and a few bytes
 * more: so all up to a boundary that a visible character follows, well before the piece's end. */
static int64_t settled_tokens(const struct layout *l, struct str piece, int64_t n)
{
    size_t dark = piece.n > PIECE_MARGIN ? piece.n - PIECE_MARGIN : 0;

    while (dark > 0 && !is_dark(piece.p + dark)) {
        dark--;
    }
    while (n > 0 && (!l->scratch[n - 1].boundary || l->scratch[n - 1].end > dark)) {
        n--;
    }
    return n;
}

/* The tokens are those of the text as a whole. A piece in which nothing is settled (one word) is
 * taken again with more of the text. */
static bool encode(struct layout *l, struct str text, enum tokenizer_special special)
{
    uint64_t start = l->flat - text.n;
    size_t bytes = PIECE_BYTES;

    while (text.n > 0 && l->n <= l->ids_max) {
        struct str piece = cut_piece(text, bytes);
        int64_t n = encode_piece(l, piece, special);
        size_t used = piece.n;

        if (n < 0) {
            return false;
        }
        if (piece.n < text.n) {
            n = settled_tokens(l, piece, n);
            used = n > 0 ? l->scratch[n - 1].end : 0;
        }
        if (!reserve(l, (size_t)n)) {
            return false;
        }
        for (int64_t i = 0; i < n; i++) {
            add_token(l, l->scratch[i].id, start + l->scratch[i].end, l->scratch[i].boundary);
        }
        bytes = used > 0 ? PIECE_BYTES : bytes * 4;
        start += used;
        text = str_of(text.p + used, text.n - used);
    }
    l->cut = l->cut || text.n > 0;
    return true;
}

static bool end_run(struct layout *l)
{
    bool ok = l->run.len == 0 || encode(l, buf_view(&l->run), TOKENIZER_PLAIN);

    buf_reset(&l->run);
    return ok;
}

static bool add_segment(struct layout *l, const struct chat_segment *s)
{
    int32_t id = s->kind == CHAT_SPECIAL ? tokenizer_find(l->tokenizer, s->text) : -1;

    if (l->flat + s->text.n > PROMPT_BYTES_MAX) {
        return err_set(l->e, ERR_LIMIT, "the prompt is longer than %u bytes", PROMPT_BYTES_MAX);
    }
    if (id < 0) { /* a vocabulary without this control token spells it out */
        buf_str(&l->run, s->text);
        l->flat += s->text.n;
        return !l->run.failed || no_memory(l->e);
    }
    if (!end_run(l) || !reserve(l, 1)) {
        return false;
    }
    l->flat += s->text.n;
    add_token(l, id, l->flat, true);
    return true;
}

/* Count of tokens that end at or before flat offset x. */
static uint32_t tokens_before(const struct layout *l, uint64_t x)
{
    uint32_t lo = 0, hi = l->n;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (l->end[mid] <= x) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* Binds chunk i when the text before flat offset x is all it covers. */
static void bind_chunk(struct prompt *p, const struct layout *l, uint64_t hash, uint64_t x)
{
    uint32_t n = tokens_before(l, x);
    uint32_t settled = n > 0 ? l->settled[n - 1] : 0;

    if (settled > 0) {
        p->chunks[p->n_chunks] = hash;
        p->chunk_token[p->n_chunks++] = settled - 1;
    }
}

static bool chunks_alloc(struct prompt *p, uint32_t count, struct err *e)
{
    if (count == 0) {
        return true;
    }
    p->chunks = mem_try(count, sizeof(*p->chunks));
    p->chunk_token = mem_try(count, sizeof(*p->chunk_token));
    return (p->chunks != NULL && p->chunk_token != NULL) || no_memory(e);
}

#define NOWHERE UINT64_MAX

/* Flat offset of each span's text. Both lists are in the order of the request, so one walk finds
 * them all; a span is the same memory as its segment. A span that is not rendered stays NOWHERE. */
static void place_spans(const struct prefix *x, const struct chat_rendering *r,
                        const uint64_t *segment_flat, uint64_t *span_flat)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < x->spans; i++) {
        uint32_t k = at;

        span_flat[i] = NOWHERE;
        while (k < r->count && r->segments[k].message <= x->span[i].message &&
               (r->segments[k].text.p != x->span[i].text.p ||
                r->segments[k].text.n != x->span[i].text.n)) {
            k++;
        }
        if (k < r->count && r->segments[k].message == x->span[i].message) {
            span_flat[i] = segment_flat[k];
            at = k + 1;
        }
    }
}

/* Where in flat the text of a chunk that ends at `end` ends. Inside a span the next byte is not
 * known to the chunk, so a boundary exactly there is not settled: one byte less. Past a span's end
 * the separator is part of the chunk, and what precedes it is final. */
static uint64_t chunk_end_in_flat(const struct prefix *x, uint32_t span, uint64_t span_flat,
                                  uint64_t end)
{
    uint64_t inside = end - x->span[span].start;

    return inside > x->span[span].text.n ? span_flat + x->span[span].text.n
                                         : span_flat + inside - (span_flat + inside > 0 ? 1 : 0);
}

static void bind_chat(struct prompt *p, const struct layout *l, const struct prefix *x,
                      const uint64_t *span_flat, uint32_t stable_messages)
{
    uint32_t span = 0;

    for (uint32_t i = 0; i < x->count && x->spans > 0; i++) {
        while (span + 1 < x->spans && x->span[span + 1].start <= x->end[i]) {
            span++;
        }
        if (x->span[span].start <= x->end[i] && x->span[span].message < stable_messages &&
            span_flat[span] != NOWHERE) {
            bind_chunk(p, l, x->seq[i], chunk_end_in_flat(x, span, span_flat[span], x->end[i]));
        }
    }
}

static bool chat_chunks(struct prompt *p, const struct layout *l, struct arena *a,
                        const struct json *root, const struct chat_rendering *r,
                        const uint64_t *segment_flat, struct prefix_key key, struct err *e)
{
    struct prefix x;
    uint64_t *span_flat;

    if (!prefix_chat(a, key, root, &x)) {
        return no_memory(e);
    }
    span_flat = arena_array(a, x.spans + 1, sizeof(*span_flat));
    if (span_flat == NULL || !chunks_alloc(p, x.count, e)) {
        return no_memory(e);
    }
    place_spans(&x, r, segment_flat, span_flat);
    bind_chat(p, l, &x, span_flat, r->stable_messages);
    return true;
}

/* The ids move out of the layout. */
static void take_ids(struct prompt *p, struct layout *l)
{
    p->ids = l->ids;
    p->n_ids = l->n;
    p->cut = l->cut;
    l->ids = NULL;
}

static bool lay_segments(struct layout *l, const struct chat_rendering *r, uint64_t *segment_flat)
{
    for (uint32_t i = 0; i < r->count; i++) {
        if (l->n > l->ids_max) {
            l->cut = true;
            return true;
        }
        segment_flat[i] = l->flat;
        if (!add_segment(l, &r->segments[i])) {
            return false;
        }
    }
    return end_run(l);
}

bool prompt_chat(struct prompt *p, const struct tokenizer *t, enum chat_family f, struct arena *a,
                 const struct json *root, const struct prefix_key *key, struct err *e)
{
    return prompt_chat_tools(p, t, f, a, root, NULL, key, UINT32_MAX, e);
}

static void text_append(struct buf *b, const struct json *v)
{
    if (v != NULL && v->type == JSON_STRING) {
        buf_str(b, v->text);
    }
}

static void call_line(struct buf *b, const struct json *function)
{
    if (b->len > 0) {
        buf_byte(b, '\n');
    }
    text_append(b, json_get(function, STR("name")));
    buf_byte(b, '(');
    text_append(b, json_get(function, STR("arguments")));
    buf_byte(b, ')');
}

/* What the turn says, and a line for each of its calls. */
static void plain_text(struct buf *b, const struct json *m)
{
    const struct json *content = json_get(m, STR("content"));
    const struct json *calls = json_get(m, STR("tool_calls"));
    const struct json *call = json_get(m, STR("function_call"));

    text_append(b, content);
    for (const struct json *part = content != NULL ? content->child : NULL; part != NULL;
         part = part->next) {
        text_append(b, part->type == JSON_STRING ? part : json_get(part, STR("text")));
    }
    for (const struct json *c = calls != NULL ? calls->child : NULL; c != NULL; c = c->next) {
        call_line(b, json_get(c, STR("function")));
    }
    if (call != NULL && call->type == JSON_OBJECT) {
        call_line(b, call);
    }
}

static bool message_has_calls(const struct json *m)
{
    const struct json *calls = json_get(m, STR("tool_calls"));

    return (calls != NULL && calls->count > 0) ||
           !json_is_absent(json_get(m, STR("function_call")));
}

/* The same message with its calls as text. NULL: no memory. */
static struct json *plain_message(struct arena *a, const struct json *m)
{
    struct json *v = arena_array(a, 3, sizeof(*v)); /* the message, role, content */
    const struct json *role = json_get(m, STR("role"));
    struct buf b;

    buf_init(&b, PROMPT_PLAIN_BYTES_MAX);
    plain_text(&b, m);
    if (v != NULL && !b.failed && role != NULL) {
        v[0] = (struct json){.type = JSON_OBJECT, .child = &v[1], .count = 2};
        v[1] = *role;
        v[1].next = &v[2];
        v[2] = (struct json){.type = JSON_STRING, .key = STR("content")};
        v[2].text = arena_str(a, buf_view(&b));
    }
    if (b.failed || role == NULL || (v != NULL && v[2].text.p == NULL)) {
        v = NULL;
    }
    buf_fini(&b);
    return v;
}

/* A family whose template knows no calls gets those of the history as text, as a person would write
 * them down: agents replay conversations that another model began. */
static const struct json *plain_messages(enum chat_family f, struct arena *a,
                                         const struct json *messages)
{
    struct json *list = arena_alloc(a, sizeof(*list)), **link;
    bool any = false;

    if (list == NULL || messages == NULL || chat_tool_format(f) != NULL) {
        return messages;
    }
    *list = *messages;
    link = &list->child;
    for (const struct json *m = messages->child; m != NULL; m = m->next) {
        bool calls = message_has_calls(m);
        struct json *copy = calls ? plain_message(a, m) : arena_alloc(a, sizeof(*copy));

        if (copy == NULL) {
            return messages; /* refused as it is */
        }
        if (!calls) {
            *copy = *m;
        }
        any = any || calls;
        copy->next = NULL;
        *link = copy;
        link = &copy->next;
    }
    return any ? list : messages;
}

bool prompt_chat_tools(struct prompt *p, const struct tokenizer *t, enum chat_family f,
                       struct arena *a, const struct json *root, const struct json *tools,
                       const struct prefix_key *key, uint32_t ids_max, struct err *e)
{
    struct chat_rendering r;
    uint64_t *segment_flat;
    struct layout l;
    bool ok = false;

    layout_init(&l, t, ids_max, e);
    memset(p, 0, sizeof(*p));
    if (!chat_render_tools(f, a, plain_messages(f, a, json_get(root, STR("messages"))), tools, &r,
                           e)) {
        goto out;
    }
    segment_flat = arena_array(a, r.count, sizeof(*segment_flat));
    if (segment_flat == NULL) {
        no_memory(e);
        goto out;
    }
    ok = lay_segments(&l, &r, segment_flat) &&
         (key == NULL || l.cut || chat_chunks(p, &l, a, root, &r, segment_flat, *key, e));
    take_ids(p, &l);
out:
    layout_fini(&l);
    if (!ok) {
        prompt_fini(p);
    }
    return ok;
}

bool prompt_text(struct prompt *p, const struct tokenizer *t, struct arena *a, struct str text,
                 int32_t bos, const struct prefix_key *key, uint32_t ids_max, struct err *e)
{
    struct layout l;
    struct prefix x;
    bool ok = false;

    layout_init(&l, t, ids_max, e);
    memset(p, 0, sizeof(*p));
    if (text.n > PROMPT_BYTES_MAX) {
        err_set(e, ERR_LIMIT, "the prompt is longer than %u bytes", PROMPT_BYTES_MAX);
        goto out;
    }
    if (!reserve(&l, 1)) {
        goto out;
    }
    if (bos >= 0) {
        add_token(&l, bos, 0, true);
    }
    l.flat = text.n;
    if (text.n > 0 && !encode(&l, text, TOKENIZER_PARSE_SPECIAL)) {
        goto out;
    }
    ok = true;
    if (key != NULL && !l.cut) {
        ok = prefix_completion(a, *key, text, &x) || no_memory(e);
        ok = ok && chunks_alloc(p, x.count, e);
        for (uint32_t i = 0; ok && i < x.count && x.spans > 0; i++) {
            bind_chunk(p, &l, x.seq[i], chunk_end_in_flat(&x, 0, 0, x.end[i]));
        }
    }
    take_ids(p, &l);
out:
    layout_fini(&l);
    if (!ok) {
        prompt_fini(p);
    }
    return ok;
}
