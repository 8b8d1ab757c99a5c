/* body_world.c - see the header. */
#include "tests/unit/body_world.h"

#include <stdio.h>
#include <unistd.h>

#include "tests/unit/tiny_model.h"
#include "worker/model/quant.h"

static struct str token_bytes(void *ctx, int32_t id)
{
    return tokenizer_bytes(ctx, id, false);
}

static struct model *model_make(void)
{
    struct tiny_options o = {.seed = 1,
                             .matrix_type = QUANT_Q8_0,
                             .embed_type = QUANT_Q8_0,
                             .markers = true,
                             .long_tokens = true};
    char path[64];
    struct err e = {0};
    struct model *m;

    snprintf(path, sizeof(path), "/tmp/tg-bodies-%d.gguf", (int)getpid());
    CHECK(tiny_model_write_as(path, &o));
    m = model_open(path, &e);
    remove(path); /* the mapping holds it */
    CHECK(m != NULL);
    return m;
}

static void serve_make(struct serve *s, const struct model *m, const struct body_plan *p)
{
    static const struct str names[] = {STR("tiny"), STR("other/name")};
    struct tokenizer *t = m->tokenizer;
    int32_t ends[2] = {m->eos, tokenizer_find(t, chat_end_token(p->family))};
    struct err e = {0};

    s->o = (struct serve_options){.names = names, .n_names = ARRAY_LEN(names)};
    s->model = m;
    s->plan = (struct serve_plan){.family = p->family, .max_model_len = p->max_model_len};
    for (uint32_t id = 0; id < tokenizer_count(t); id++) {
        s->token_bytes_max = size_max(s->token_bytes_max, tokenizer_bytes(t, (int32_t)id, true).n);
    }
    tool_shape_init(&s->shape, chat_tool_format(p->family), t);
    s->vocab = grammar_vocab_new(m->vocab, token_bytes, t, ends,
                                 ends[1] >= 0 && ends[1] != ends[0] ? 2 : 1, &e);
    CHECK(s->vocab != NULL);
    s->grammars = grammar_store_new(s->vocab);
    list_init(&s->jobs);
}

void body_world_open(struct body_world *w, const struct body_plan *plans, size_t n)
{
    CHECK(n <= BODY_WORLD_SERVES_MAX);
    memset(w, 0, sizeof(*w));
    w->model = model_make();
    w->n = n;
    for (size_t i = 0; i < n; i++) {
        serve_make(&w->serve[i], w->model, &plans[i]);
    }
}

void body_world_close(struct body_world *w)
{
    for (size_t i = 0; i < w->n; i++) {
        CHECK(list_is_empty(&w->serve[i].jobs));
        grammar_store_free(w->serve[i].grammars);
        grammar_vocab_free(w->serve[i].vocab);
    }
    model_close(w->model);
}

struct job *body_world_job(struct serve *s, enum job_kind kind)
{
    struct job *j = mem_new(sizeof(*j));

    j->serve = s;
    j->kind = kind;
    j->is_text = kind == JOB_TOKENIZE || kind == JOB_DETOKENIZE;
    j->n = 1;
    arena_init(&j->arena, JOB_ARENA_BYTES_MAX);
    buf_init(&j->body, JOB_BODY_BYTES_MAX);
    buf_init(&j->answer, JOB_ANSWER_BYTES_MAX);
    list_push_back(&s->jobs, &j->node);
    return j;
}
