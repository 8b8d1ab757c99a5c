/* fuzz_request.c - any bytes as the body of a request to the worker: it is refused with a reason,
 * or what the engine gets is within every bound that its headers state.
 *
 * The first byte says where the body goes: bits 0 and 1 the path (chat, completion, tokenize,
 * detokenize), bits 2 and 3 the model's chat family, bit 6 whether the gateway sent a prefix key,
 * bit 7 whether what follows is the body or a recipe of one (request_recipe.h).
 * So '0' '1' '2' '3' are the four paths of a family without tools, '4'..'7' those of qwen2.5,
 * '8'..';' of llama 3.1, '<'..'?' of mistral v3, and 'p' and on the same with a key. */
#include "tests/fuzz/request_recipe.h"
#include "tests/unit/body_world.h"

#include <stdlib.h>

#define BODY_BYTES_MAX (1u << 20)
#define VOCAB_MAX 4096
#define FAMILIES 4
#define MESSAGE_BYTES_LEAST 16 /* a sentence, not a word */
#define BAN_BIAS (-1e30f)      /* of a start marker, with tool_choice none */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_json(struct str text, struct json **out, struct arena *a)
{
    struct err e = {0};

    *out = json_parse(a, text, &json_limits_api, &e);
    CHECK(*out != NULL && (*out)->type == JSON_OBJECT);
}

/* A sentence in UTF-8 under a status of the client's fault: nothing here is ever short of memory
 * or busy. It has the field that is wrong, or it is about the body as a whole. */
static void check_refusal(const struct api_error *x, bool is_json)
{
    struct str message = str_c(x->message), type = str_c(x->type);
    struct json_writer w;
    struct json *root;
    struct arena a;
    struct buf out;

    CHECK(x->status >= 400 && x->status < 500);
    CHECK(str_eq(type, STR("invalid_request_error")));
    CHECK(message.n >= MESSAGE_BYTES_LEAST && str_utf8_valid(message) == message.n);
    CHECK(str_ends(message, STR(".")) || message.n + 4 >= sizeof(x->message));
    CHECK(x->param != NULL ||
          (!is_json && x->code != NULL && str_eq(str_c(x->code), STR("invalid_json"))));
    arena_init(&a, BODY_BYTES_MAX);
    buf_init(&out, BODY_BYTES_MAX);
    jw_init(&w, &out);
    api_write_error(&w, x);
    check_json(buf_view(&out), &root, &a);
    CHECK(str_eq(json_get(json_get(root, STR("error")), STR("message"))->text, message));
    buf_fini(&out);
    arena_fini(&a);
}

static void check_id(const struct job *j, int64_t id)
{
    CHECK(id >= 0 && id < (int64_t)j->serve->model->vocab);
}

static void check_sampling(const struct job *j)
{
    const struct sample_params *p = &j->request.sample;

    CHECK(p->temperature >= 0 && p->temperature <= 2);
    CHECK(p->top_p >= 0 && p->top_p <= 1 && p->min_p >= 0 && p->min_p <= 1);
    CHECK(p->top_k <= INT32_MAX);
    CHECK(p->presence_penalty >= -2 && p->presence_penalty <= 2);
    CHECK(p->frequency_penalty >= -2 && p->frequency_penalty <= 2);
    CHECK(p->repetition_penalty >= 0.0099f && p->repetition_penalty <= 2);
    CHECK(p->top_logprobs <= SAMPLE_TOP_LOGPROBS_MAX && (p->top_logprobs == 0 || p->logprobs));
    CHECK(p->n_bias <= 1024 + 1); /* and the ban of calls */
    for (uint32_t i = 0; i < p->n_bias; i++) {
        check_id(j, p->bias[i].id);
        CHECK((p->bias[i].bias >= -100 && p->bias[i].bias <= 100) ||
              (p->bias[i].bias == BAN_BIAS && p->bias[i].id == j->serve->shape.start_id));
    }
}

static void check_stops(const struct job *j)
{
    const struct engine_request *r = &j->request;

    CHECK(j->n_stops <= DETOK_STOPS_MAX);
    for (uint32_t i = 0; i < j->n_stops; i++) {
        struct str stop = j->stops[i];

        CHECK(stop.n > 0 && stop.n <= DETOK_STOP_BYTES_MAX);
        CHECK(str_utf8_valid(stop) == stop.n); /* and its memory is still there */
    }
    CHECK(r->n_stop_ids <= ARRAY_LEN(j->stop_ids));
    CHECK(r->n_stop_ids == 0 || r->stop_ids == j->stop_ids);
    for (uint32_t i = 0; i < r->n_stop_ids; i++) {
        check_id(j, r->stop_ids[i]);
    }
}

static void check_prompt(const struct job *j)
{
    const struct engine_request *r = &j->request;

    CHECK(r->n_ids > 0 && r->n_ids == j->prompt_tokens && r->ids == j->prompt.ids);
    CHECK(r->max_tokens > 0 && r->n_ids + r->max_tokens <= j->serve->plan.max_model_len);
    CHECK(j->max_tokens == 0 || r->max_tokens <= j->max_tokens);
    CHECK(r->min_tokens <= r->max_tokens);
    for (uint32_t i = 0; i < r->n_ids; i++) {
        check_id(j, r->ids[i]);
    }
    CHECK(r->n_chunks == 0 || j->has_key);
    for (uint32_t i = 0; i < r->n_chunks; i++) {
        CHECK(r->chunk_token[i] < r->n_ids);
        CHECK(i == 0 || r->chunk_token[i] >= r->chunk_token[i - 1]);
    }
}

/* The first state of an answer lets something through, and only what is allowed. */
static void check_grammar(const struct job *j)
{
    uint32_t bits[GRAMMAR_MASK_WORDS(VOCAB_MAX)], vocab = j->serve->model->vocab, set = 0;
    struct grammar_state *s;

    CHECK(j->request.grammar == j->grammar);
    CHECK(j->tool_mode != TOOLS_FORCED || j->grammar != NULL);
    if (j->grammar == NULL) {
        return;
    }
    s = mem_new(sizeof(*s));
    grammar_state_init(j->grammar, s);
    CHECK(grammar_mask(j->grammar, s, bits) > 0);
    for (uint32_t id = 0; id < vocab; id++) {
        set += bits[id / 32] >> (id % 32) & 1;
    }
    CHECK(set > 0);
    mem_free(s);
}

static void check_request(struct job *j)
{
    CHECK(j->root == NULL && j->body.len == 0 && j->tools == NULL);
    CHECK(j->n >= 1 && j->n <= JOB_CHOICES_MAX);
    CHECK(j->echo || j->echo_text.n == 0);
    CHECK(str_utf8_valid(j->echo_text) == j->echo_text.n);
    check_prompt(j);
    check_sampling(j);
    check_stops(j);
    check_grammar(j);
    CHECK(job_choices(j)); /* as the loop would: job_free takes them back */
}

static void check_tokens(const struct job *j, const struct json *root)
{
    const struct json *tokens = json_get(root, STR("tokens"));
    const struct json *strs = json_get(root, STR("token_strs"));
    int64_t v;

    CHECK(json_i64(json_get(root, STR("count")), &v) && v == (int64_t)tokens->count);
    CHECK(json_is_absent(strs) || strs->count == tokens->count);
    for (const struct json *t = tokens->child; t != NULL; t = t->next) {
        CHECK(json_i64(t, &v));
        check_id(j, v);
    }
}

static void check_text(const struct job *j, enum job_kind kind)
{
    struct json *root;
    struct arena a;

    CHECK(j->root == NULL && j->body.len == 0 && j->prompt.ids == NULL);
    arena_init(&a, (size_t)64 * BODY_BYTES_MAX);
    check_json(buf_view(&j->answer), &root, &a);
    if (kind == JOB_TOKENIZE) {
        check_tokens(j, root);
    } else {
        CHECK(json_get(root, STR("prompt"))->type == JSON_STRING);
    }
    arena_fini(&a);
}

/* Short contexts, so that what is too long is found quickly. */
static void world_open(struct body_world *w)
{
    static const struct body_plan plans[FAMILIES] = {
        {CHAT_SMOLLM2, 128}, {CHAT_QWEN25, 2048}, {CHAT_LLAMA31, 2048}, {CHAT_MISTRAL_V3, 512}};

    body_world_open(w, plans, FAMILIES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct body_world world; /* made once */
    bool is_recipe;
    enum job_kind kind;
    struct str rest;
    struct job *j;

    if (world.model == NULL) {
        world_open(&world);
        CHECK(world.model->vocab <= VOCAB_MAX);
    }
    if (size < 1 || size > BODY_BYTES_MAX) {
        return 0;
    }
    rest = str_of(data + 1, size - 1);
    is_recipe = (data[0] & 0x80) != 0;
    kind = JOB_CHAT + data[0] % 4;
    j = body_world_job(&world.serve[data[0] >> 2 & 3], kind);
    j->has_key = (data[0] & 0x40) != 0;
    if (is_recipe) {
        request_recipe_body(&j->body, rest);
    } else {
        buf_str(&j->body, rest);
    }
    submit_prepare(j);
    if (j->refusal.status != 0) {
        check_refusal(&j->refusal, is_recipe);
        CHECK(j->root == NULL && j->body.len == 0);
    } else if (j->is_text) {
        check_text(j, kind);
    } else {
        check_request(j);
    }
    job_free(j);
    return 0;
}
