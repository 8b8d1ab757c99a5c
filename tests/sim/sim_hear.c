/* sim_hear.c - what a client makes of the bytes that came: text, usage, one right end.
 *
 * Says at once what can be seen from here alone: text that is not that of one attempt for this very
 * request, events after the end, two ends. */
#include "sim_world.h"

/* Whole tokens at the start of text that are those of `attempt`, in order; *rest: what is left. */
static uint32_t match_tokens(const struct world_sim *w, uint32_t attempt, struct str text,
                             struct str *rest)
{
    uint32_t n = 0;
    char token[64];

    for (;;) {
        int len = worker_token(w, attempt, n, token);

        if (!str_starts(text, str_of(token, (size_t)len))) {
            *rest = text;
            return n;
        }
        text = str_of(text.p + len, text.n - (size_t)len);
        n++;
    }
}

/* The text must be a prefix of what one attempt for this very ask produced. */
static void check_text(struct client *c, struct str text)
{
    struct world_sim *w = c->w;
    struct ask *a = c->ask;
    struct str rest = text, head, tail;
    uint64_t attempt;

    if (text.n == 0) {
        return;
    }
    /* "[ask.attempt.token]" */
    if (text.p[0] != '[' || !str_cut(str_of(text.p + 1, text.n - 1), '.', &head, &tail) ||
        !str_cut(tail, '.', &head, &rest) || !str_u64(head, &attempt) || attempt >= w->n_attempts) {
        sim_fail(w->sim, "ask %u: text that no worker made: " STR_FMT, a->id,
                 (int)size_min(text.n, 60), text.p);
        return;
    }
    a->attempt = (uint32_t)attempt + 1;
    a->tokens = match_tokens(w, (uint32_t)attempt, text, &rest);
    if (rest.n > 0) {
        sim_fail(w->sim, "ask %u: after %u tokens of attempt %u comes " STR_FMT, a->id, a->tokens,
                 (unsigned)attempt, (int)size_min(rest.n, 60), rest.p);
    }
    if (w->attempts[attempt].ask != a->id) {
        sim_fail(w->sim, "ask %u got text made for ask %u", a->id, w->attempts[attempt].ask);
    }
    if (a->tokens > w->attempts[attempt].generated) {
        sim_fail(w->sim, "ask %u: %u tokens of %u generated", a->id, a->tokens,
                 w->attempts[attempt].generated);
    }
}

static void take_usage(struct ask *a, const struct json *usage)
{
    if (usage == NULL || usage->type != JSON_OBJECT) {
        return;
    }
    a->got_usage =
        json_i64(json_get(usage, STR("prompt_tokens")), &a->usage_prompt) &&
        json_i64(json_get(usage, STR("completion_tokens")), &a->usage_completion) &&
        json_i64(json_get(json_get(usage, STR("prompt_tokens_details")), STR("cached_tokens")),
                 &a->usage_cached);
}

static void take_error(struct ask *a, const struct json *error)
{
    const struct json *code = json_get(error, STR("code"));

    str_copy(code != NULL && code->type == JSON_STRING ? code->text : STR("?"), a->code,
             sizeof(a->code));
}

static const struct json *choice_of(const struct json *root)
{
    const struct json *choices = json_get(root, STR("choices"));

    return choices != NULL && choices->type == JSON_ARRAY ? choices->child : NULL;
}

static void add_text(const struct json *v, struct buf *text)
{
    if (v != NULL && v->type == JSON_STRING) {
        buf_str(text, v->text);
    }
}

struct heard { /* of a stream, event by event */
    struct buf text;
    unsigned finishes, dones, errors, after_end;
};

static void take_event(struct client *c, struct str data, struct heard *h)
{
    struct ask *a = c->ask;
    struct arena arena;
    struct err e = {.code = ERR_NONE};
    const struct json *root, *choice, *reason;

    h->after_end += h->dones + h->errors > 0;
    if (str_eq(data, STR("[DONE]"))) {
        h->dones++;
        return;
    }
    arena_init(&arena, 4u << 20);
    root = json_parse(&arena, data, &json_limits_api, &e);
    if (root == NULL) {
        sim_fail(c->w->sim, "ask %u: an event that is not JSON: " STR_FMT, a->id,
                 (int)size_min(data.n, 80), data.p);
    } else if (json_get(root, STR("error")) != NULL) {
        h->errors++;
        take_error(a, json_get(root, STR("error")));
    } else {
        choice = choice_of(root);
        take_usage(a, json_get(root, STR("usage")));
        add_text(json_get(choice, STR("text")), &h->text);
        add_text(json_get(json_get(choice, STR("delta")), STR("content")), &h->text);
        reason = json_get(choice, STR("finish_reason"));
        if (reason != NULL && reason->type == JSON_STRING) {
            h->finishes++;
            str_copy(reason->text, a->finish, sizeof(a->finish));
        }
    }
    arena_fini(&arena);
}

/* Everything that came of a stream, whole or cut. */
static void hear_events(struct client *c, struct heard *h)
{
    struct str rest = buf_view(&c->in.body), line;

    buf_init(&h->text, 8u << 20);
    while (str_cut(rest, '\n', &line, &rest)) {
        if (str_starts(line, STR("data: "))) {
            take_event(c, str_of(line.p + 6, line.n - 6), h);
        } else if (line.n > 0 && line.p[0] != ':') {
            sim_fail(c->w->sim, "ask %u: not a line of a stream: " STR_FMT, c->ask->id,
                     (int)size_min(line.n, 80), line.p);
        }
    }
    check_text(c, buf_view(&h->text));
    buf_fini(&h->text);
}

enum ask_end hear_stream(struct client *c, bool whole)
{
    struct ask *a = c->ask;
    struct heard h = {0};

    hear_events(c, &h);
    if (h.after_end > 0 || h.dones > 1 || h.errors > 1 || h.finishes > 1 ||
        h.dones + h.errors > 1) {
        sim_fail(c->w->sim,
                 "ask %u: a stream with %u finishes, %u [DONE], %u errors, %u events after its end",
                 a->id, h.finishes, h.dones, h.errors, h.after_end);
    }
    if (!whole) {
        return ASK_CUT;
    }
    if (h.dones == 1 && h.finishes == 1) {
        return ASK_FINISH;
    }
    if (h.errors == 1 && h.dones == 0 && h.finishes == 0) {
        return ASK_ERROR_EVENT;
    }
    sim_fail(c->w->sim, "ask %u: a stream that ended with %u finishes, %u [DONE] and %u errors",
             a->id, h.finishes, h.dones, h.errors);
    return ASK_CUT;
}

enum ask_end hear_whole(struct client *c)
{
    struct ask *a = c->ask;
    struct arena arena;
    struct err e = {.code = ERR_NONE};
    const struct json *root, *choice, *text, *reason;

    arena_init(&arena, 16u << 20);
    root = json_parse(&arena, buf_view(&c->in.body), &json_limits_api, &e);
    if (root == NULL) {
        sim_fail(c->w->sim, "ask %u: status %u and a body that is not JSON", a->id, c->in.status);
    } else if (c->in.status != 200) {
        take_error(a, json_get(root, STR("error")));
    } else {
        choice = choice_of(root);
        text = json_get(choice, STR("text"));
        if (text == NULL) {
            text = json_get(json_get(choice, STR("message")), STR("content"));
        }
        reason = json_get(choice, STR("finish_reason"));
        if (text == NULL || text->type != JSON_STRING || reason == NULL ||
            reason->type != JSON_STRING) {
            sim_fail(c->w->sim, "ask %u: a 200 without text or reason", a->id);
        } else {
            str_copy(reason->text, a->finish, sizeof(a->finish));
            check_text(c, text->text);
        }
        take_usage(a, json_get(root, STR("usage")));
    }
    arena_fini(&arena);
    return c->in.status == 200 ? ASK_FINISH : ASK_REFUSED;
}
