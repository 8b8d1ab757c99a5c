/* grammar_probe.c - the grammar on a pipe, for oracles in other languages: a JSON object a line in,
 * one a line out.
 *
 *   {"op":"model","path":P}                    the vocabulary of a GGUF file
 *   {"op":"vocab","hex":[...],"eos":[ids]}     one of bytes; "" is a control token
 *   {"op":"tokens"}                            -> {"hex":[...]}
 *   {"op":"compile","kind":K,"schema":S,"regex":R}  -> {"states":n} or {"error":text,"code":n}
 *   {"op":"text","text":T,"greedy":bool}       T byte by byte, or by the longest tokens
 *                                              -> {"taken":bytes,"accepting":b,"finished":b}
 *   {"op":"mask","text":T}                     -> {"allowed":[ids]}
 *   {"op":"walk","seed":n,"calm":n,"max":n}    tokens drawn from the masks -> {"text","ended"}
 *
 * A walk checks on its way that masks and grammar_accept_token agree. */
#include <stdio.h>
#include <stdlib.h>

#include "worker/engine/grammar.h"
#include "worker/model/model.h"

#define LINE_MAX_BYTES (16u << 20)
#define ARENA_BYTES (512u << 20)

struct probe {
    struct model *model;
    struct str *bytes; /* [n]; in memory of its own */
    uint32_t n;
    int32_t eos[GRAMMAR_EOS_MAX];
    uint32_t n_eos;
    struct grammar_vocab *vocab;
    struct grammar *grammar;
    uint32_t *bits;
    uint32_t longest;
    struct json_writer w;
    struct buf out;
};

static struct str probe_bytes(void *ctx, int32_t id)
{
    return ((struct probe *)ctx)->bytes[id];
}

static void vocab_ready(struct probe *p)
{
    struct err e;

    err_clear(&e);
    p->vocab = grammar_vocab_new(p->n, probe_bytes, p, p->eos, p->n_eos, &e);
    CHECK(p->vocab != NULL);
    p->bits = mem_new(GRAMMAR_MASK_WORDS(p->n) * sizeof(*p->bits));
    for (uint32_t i = 0; i < p->n; i++) {
        p->longest = p->bytes[i].n > p->longest ? (uint32_t)p->bytes[i].n : p->longest;
    }
}

static void vocab_drop(struct probe *p)
{
    grammar_release(p->grammar);
    grammar_vocab_free(p->vocab);
    mem_free(p->bits);
    for (uint32_t i = 0; i < p->n && p->model == NULL; i++) {
        mem_free((char *)p->bytes[i].p);
    }
    mem_free(p->bytes);
    model_close(p->model);
    p->model = NULL;
    p->grammar = NULL;
    p->vocab = NULL;
    p->bits = NULL;
    p->bytes = NULL;
    p->n = p->n_eos = p->longest = 0;
}

static void op_model(struct probe *p, const struct json *in)
{
    char path[4096];
    struct err e;

    vocab_drop(p);
    err_clear(&e);
    p->model = model_open(str_copy(json_get(in, STR("path"))->text, path, sizeof(path)), &e);
    if (p->model == NULL) {
        jw_kc(&p->w, "error", e.text);
        return;
    }
    p->n = tokenizer_count(p->model->tokenizer);
    p->bytes = mem_new(p->n * sizeof(*p->bytes));
    for (uint32_t i = 0; i < p->n; i++) {
        p->bytes[i] = tokenizer_bytes(p->model->tokenizer, (int32_t)i, false);
    }
    p->eos[p->n_eos++] = p->model->eos;
    vocab_ready(p);
    jw_ku64(&p->w, "tokens", p->n);
}

static void op_vocab(struct probe *p, const struct json *in)
{
    const struct json *hex = json_get(in, STR("hex")), *eos = json_get(in, STR("eos"));
    uint32_t i = 0;

    vocab_drop(p);
    p->n = hex->count;
    p->bytes = mem_new(p->n * sizeof(*p->bytes));
    for (const struct json *h = hex->child; h != NULL; h = h->next, i++) {
        char *bytes = mem_new(h->text.n / 2 + 1);

        CHECK(str_unhex(h->text, bytes, h->text.n / 2));
        p->bytes[i] = str_of(bytes, h->text.n / 2);
    }
    for (const struct json *e = eos->child; e != NULL; e = e->next) {
        int64_t id;

        CHECK(json_i64(e, &id) && p->n_eos < GRAMMAR_EOS_MAX);
        p->eos[p->n_eos++] = (int32_t)id;
    }
    vocab_ready(p);
    jw_ku64(&p->w, "tokens", p->n);
}

static void op_tokens(struct probe *p)
{
    jw_key(&p->w, STR("hex"));
    jw_array(&p->w);
    for (uint32_t i = 0; i < p->n; i++) {
        char *hex = mem_new(2 * p->bytes[i].n + 1);

        str_hex(p->bytes[i].p, p->bytes[i].n, hex);
        jw_c(&p->w, hex);
        mem_free(hex);
    }
    jw_end_array(&p->w);
    jw_ki64(&p->w, "eos", p->eos[0]);
}

static void op_compile(struct probe *p, const struct json *in)
{
    struct grammar_source src = {.schema = json_get(in, STR("schema"))};
    struct str kind = json_get(in, STR("kind"))->text;
    struct err e;

    err_clear(&e);
    grammar_release(p->grammar);
    p->grammar = NULL;
    src.kind = str_eq(kind, STR("schema"))  ? GRAMMAR_JSON_SCHEMA
               : str_eq(kind, STR("regex")) ? GRAMMAR_REGEX
                                            : GRAMMAR_JSON_OBJECT;
    if (src.kind == GRAMMAR_REGEX) {
        src.regex = json_get(in, STR("regex"))->text;
    }
    if (!grammar_compile(&src, p->vocab, &p->grammar, &e)) {
        jw_kc(&p->w, "error", e.text);
        jw_ki64(&p->w, "code", e.code);
        return;
    }
    jw_ku64(&p->w, "states", grammar_states(p->grammar));
}

/* The longest token that is a prefix of s and allowed; -1: none. */
static int32_t longest_allowed(struct probe *p, struct str s)
{
    int32_t best = -1;

    for (uint32_t i = 0; i < p->n; i++) {
        if ((p->bits[i / 32] >> (i % 32) & 1) != 0 && p->bytes[i].n > 0 &&
            str_starts(s, p->bytes[i]) && (best < 0 || p->bytes[i].n > p->bytes[best].n)) {
            best = (int32_t)i;
        }
    }
    return best;
}

static size_t take_text(struct probe *p, struct grammar_state *s, struct str text, bool greedy)
{
    size_t taken = 0;

    while (taken < text.n) {
        struct str rest = str_of(text.p + taken, text.n - taken);
        int32_t id;

        if (!greedy) {
            if (!grammar_accept_bytes(p->grammar, s, str_of(rest.p, 1))) {
                break;
            }
            taken++;
            continue;
        }
        (void)grammar_mask(p->grammar, s, p->bits);
        id = longest_allowed(p, rest);
        if (id < 0 || !grammar_accept_token(p->grammar, s, id)) {
            break;
        }
        taken += p->bytes[id].n;
    }
    return taken;
}

static void op_text(struct probe *p, const struct json *in)
{
    struct grammar_state s;
    const struct json *greedy = json_get(in, STR("greedy"));

    grammar_state_init(p->grammar, &s);
    jw_ku64(&p->w, "taken",
            take_text(p, &s, json_get(in, STR("text"))->text,
                      greedy != NULL && greedy->type == JSON_TRUE));
    jw_kbool(&p->w, "accepting", grammar_accepting(p->grammar, &s));
    jw_kbool(&p->w, "finished", grammar_finished(p->grammar, &s));
}

static void op_mask(struct probe *p, const struct json *in)
{
    struct grammar_state s;
    struct str text = json_get(in, STR("text"))->text;

    grammar_state_init(p->grammar, &s);
    if (take_text(p, &s, text, false) < text.n) {
        jw_kc(&p->w, "error", "the text is not allowed");
        return;
    }
    (void)grammar_mask(p->grammar, &s, p->bits);
    jw_key(&p->w, STR("allowed"));
    jw_array(&p->w);
    for (uint32_t i = 0; i < p->n; i++) {
        if ((p->bits[i / 32] >> (i % 32) & 1) != 0) {
            jw_i64(&p->w, i);
        }
    }
    jw_end_array(&p->w);
}

static uint64_t draw(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed * 0x2545f4914f6cdd1du >> 16;
}

static bool is_allowed(const struct probe *p, uint32_t id)
{
    return (p->bits[id / 32] >> (id % 32) & 1) != 0;
}

/* One of the allowed; when calm: the end, else a token that ends something, else the first. */
static int32_t pick(struct probe *p, uint32_t allowed, bool calm, uint64_t *seed)
{
    uint32_t at = (uint32_t)(draw(seed) % allowed);
    static const char *const enders = "}]\"";

    if (calm && is_allowed(p, (uint32_t)p->eos[0])) {
        return p->eos[0];
    }
    for (const char *c = enders; calm && *c != '\0'; c++) {
        for (uint32_t i = 0; i < p->n; i++) {
            if (is_allowed(p, i) && p->bytes[i].n == 1 && p->bytes[i].p[0] == *c) {
                return (int32_t)i;
            }
        }
    }
    for (uint32_t i = 0; i < p->n; i++) {
        if (is_allowed(p, i) && at-- == 0) {
            return (int32_t)i;
        }
    }
    return -1;
}

/* Every token of the mask is accepted, a few others are not. */
static void check_mask(struct probe *p, const struct grammar_state *s, uint32_t allowed,
                       uint64_t *seed)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n; i++) {
        n += is_allowed(p, i);
    }
    CHECK(n == allowed);
    for (int k = 0; k < 24; k++) {
        uint32_t id = (uint32_t)(draw(seed) % p->n);
        struct grammar_state copy;

        grammar_state_copy(&copy, s);
        CHECK(grammar_accept_token(p->grammar, &copy, (int32_t)id) == is_allowed(p, id));
    }
}

static void op_walk(struct probe *p, const struct json *in)
{
    struct grammar_state s;
    int64_t seed_in, calm, max;
    uint64_t seed;
    struct buf text;
    bool ended = false;

    CHECK(json_i64(json_get(in, STR("seed")), &seed_in) &&
          json_i64(json_get(in, STR("calm")), &calm) && json_i64(json_get(in, STR("max")), &max));
    seed = (uint64_t)seed_in * 0x9e3779b97f4a7c15u + 1;
    buf_init(&text, LINE_MAX_BYTES);
    grammar_state_init(p->grammar, &s);
    for (int64_t i = 0; i < max && !ended; i++) {
        uint32_t allowed = grammar_mask(p->grammar, &s, p->bits);
        int32_t id;

        check_mask(p, &s, allowed, &seed);
        CHECK(allowed > 0);
        id = pick(p, allowed, i >= calm, &seed);
        CHECK(grammar_accept_token(p->grammar, &s, id));
        ended = s.ended;
        buf_str(&text, p->bytes[id]);
    }
    /* A walk that was cut may end within a character. */
    jw_kstr(&p->w, "text", str_of(buf_view(&text).p, str_utf8_valid(buf_view(&text))));
    jw_kbool(&p->w, "whole", str_utf8_valid(buf_view(&text)) == text.len);
    jw_kbool(&p->w, "ended", ended);
    buf_fini(&text);
}

static void probe_line(struct probe *p, struct str line)
{
    struct arena arena;
    struct err e;
    struct json *in;
    struct str op;

    err_clear(&e);
    arena_init(&arena, ARENA_BYTES);
    in = json_parse(&arena, line, &json_limits_api, &e);
    buf_reset(&p->out);
    jw_init(&p->w, &p->out);
    jw_object(&p->w);
    if (in == NULL) {
        jw_kc(&p->w, "error", e.text);
    } else {
        op = json_get(in, STR("op"))->text;
        if (str_eq(op, STR("model"))) {
            op_model(p, in);
        } else if (str_eq(op, STR("vocab"))) {
            op_vocab(p, in);
        } else if (str_eq(op, STR("tokens"))) {
            op_tokens(p);
        } else if (str_eq(op, STR("compile"))) {
            op_compile(p, in);
        } else if (str_eq(op, STR("text"))) {
            op_text(p, in);
        } else if (str_eq(op, STR("mask"))) {
            op_mask(p, in);
        } else if (str_eq(op, STR("walk"))) {
            op_walk(p, in);
        }
    }
    jw_end_object(&p->w);
    CHECK(!p->out.failed);
    printf("%.*s\n", STR_ARG(buf_view(&p->out)));
    fflush(stdout);
    arena_fini(&arena);
}

int main(void)
{
    struct probe p = {0};
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    buf_init(&p.out, 2 * LINE_MAX_BYTES);
    while ((n = getline(&line, &cap, stdin)) > 0) {
        probe_line(&p, str_of(line, (size_t)n));
    }
    free(line);
    buf_fini(&p.out);
    vocab_drop(&p);
    return 0;
}
