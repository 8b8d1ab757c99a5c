/* serve_prompt.c - the prompt's ids, the room it leaves, and the request that the engine gets. */
#include "worker/job.h"

static bool too_long(const struct job *j, uint64_t prompt, bool at_least, struct api_error *x)
{
    uint64_t answer = j->max_tokens;

    return api_refuse(x, 400, "context_length_exceeded",
                      j->kind == JOB_CHAT ? "messages" : "prompt",
                      "This model's maximum context length is %u tokens. However, you requested "
                      "%s%llu tokens (%s%llu in the %s, %llu in the completion). Please reduce the "
                      "length of the %s.",
                      j->serve->plan.max_model_len, at_least ? "at least " : "",
                      (unsigned long long)(prompt + answer), at_least ? "at least " : "",
                      (unsigned long long)prompt, j->kind == JOB_CHAT ? "messages" : "prompt",
                      (unsigned long long)answer, j->kind == JOB_CHAT ? "messages" : "prompt");
}

bool prompt_bytes_fit(const struct job *j, uint64_t bytes, struct api_error *x)
{
    uint64_t least = bytes / j->serve->token_bytes_max;

    return least < j->serve->plan.max_model_len || too_long(j, least, true, x);
}

static uint64_t text_bytes(const struct json *v)
{
    uint64_t sum = 0;

    if (v == NULL || v->type == JSON_STRING) {
        return v != NULL ? v->text.n : 0;
    }
    for (const struct json *p = v->child; p != NULL; p = p->next) {
        sum += p->type == JSON_STRING ? p->text.n : text_bytes(json_get(p, STR("text")));
    }
    return sum;
}

/* What of a message becomes text: its content, and the arguments of its calls. */
static uint64_t message_bytes(const struct json *m)
{
    const struct json *calls = json_get(m, STR("tool_calls"));
    uint64_t sum = text_bytes(json_get(m, STR("content")));

    for (const struct json *c = calls != NULL ? calls->child : NULL; c != NULL; c = c->next) {
        const struct json *a = json_get(json_get(c, STR("function")), STR("arguments"));

        sum += a != NULL ? a->text.n : 0;
    }
    return sum;
}

/* param: what a refusal of the conversation itself is about. */
bool prompt_story(const struct err *e, const char *param, struct api_error *x)
{
    switch (e->code) {
    case ERR_INPUT:
        return api_refuse(x, 400, NULL, param, "%s.", e->text);
    case ERR_UNSUPPORTED:
        return api_refuse(x, 400, "unsupported_parameter", param, "%s.", e->text);
    case ERR_LIMIT:
        return api_refuse(x, 400, NULL, NULL, "%s.", e->text);
    default:
        return api_refuse(x, 503, NULL, NULL, "%s.", e->text);
    }
}

bool prompt_ids_of_chat(struct job *j, uint32_t ids_max, struct api_error *x)
{
    const struct json *messages = job_field(j, "messages");
    struct serve *s = j->serve;
    uint64_t bytes = j->tools != NULL ? j->tools->text.n : 0;
    struct err e = {0};

    if (s->plan.family == CHAT_NONE) {
        return api_refuse(x, 400, "unsupported_parameter", "model",
                          "The model's chat template is not one that this worker knows, so it "
                          "serves /v1/completions only. Its operator can start it with "
                          "--chat-format %s.",
                          chat_family_names());
    }
    for (const struct json *m = messages->child; m != NULL; m = m->next) {
        bytes += message_bytes(m);
    }
    if (messages->count >= s->plan.max_model_len) { /* each is a token at least */
        return too_long(j, messages->count, true, x);
    }
    return prompt_bytes_fit(j, bytes, x) &&
           (prompt_chat_tools(&j->prompt, s->model->tokenizer, s->plan.family, &j->arena, j->root,
                              j->tools, j->has_key ? &j->key : NULL, ids_max, &e) ||
            prompt_story(&e, "messages", x));
}

/* Beside the model's own end: the family's end of a turn, and the one of an answer of calls. What
 * ends an answer for the grammar has to end it for the engine, also where there is no chat. */
static void set_stop_ids(struct job *j)
{
    const struct serve *s = j->serve;
    const struct tokenizer *t = s->model->tokenizer;
    const struct chat_tool_format *f = s->shape.format;
    struct engine_request *r = &j->request;
    struct str end[2] = {{0}};

    if (r->ignore_eos || s->plan.family == CHAT_NONE) {
        return;
    }
    if (j->kind == JOB_CHAT || j->grammar != NULL) {
        end[0] = chat_end_token(s->plan.family);
    }
    if (j->tools != NULL || (j->grammar != NULL && f != NULL)) {
        end[1] = f->end_token;
    }
    r->stop_ids = j->stop_ids;
    for (size_t i = 0; i < ARRAY_LEN(end); i++) {
        int32_t id = end[i].n > 0 ? tokenizer_find(t, end[i]) : -1;

        if (id >= 0) {
            j->stop_ids[r->n_stop_ids++] = id;
        }
    }
}

static bool build_ids(struct job *j, const struct json *list, struct api_error *x)
{
    uint32_t vocab = j->serve->model->vocab;

    if (list->count >= j->serve->plan.max_model_len) {
        return too_long(j, list->count, false, x);
    }
    j->prompt.ids = mem_try(list->count, sizeof(*j->prompt.ids));
    if (j->prompt.ids == NULL) {
        return api_refuse(x, 503, NULL, NULL, "There is no memory for this request now.");
    }
    for (const struct json *v = list->child; v != NULL; v = v->next) {
        int64_t id;

        if (v->type != JSON_NUMBER || !json_i64(v, &id) || id < 0 || id >= (int64_t)vocab) {
            return api_refuse(x, 400, NULL, "prompt",
                              "'prompt' has an element that is no token id below %u.", vocab);
        }
        j->prompt.ids[j->prompt.n_ids++] = (int32_t)id;
    }
    return true;
}

static bool build_completion(struct job *j, struct api_error *x)
{
    const struct json *v = job_field(j, "prompt");
    const struct model *m = j->serve->model;
    struct err e = {0};

    if (v != NULL && v->type == JSON_ARRAY && v->count == 1 && v->child->type != JSON_NUMBER) {
        v = v->child; /* a list of one prompt */
    }
    if (v != NULL && v->type == JSON_ARRAY && v->count > 0) {
        if (v->child->type != JSON_NUMBER) {
            return api_refuse(x, 400, "unsupported_parameter", "prompt",
                              "'prompt' may hold one prompt a request.");
        }
        if (j->echo) {
            return api_refuse(x, 400, "unsupported_parameter", "echo",
                              "'echo' needs a prompt of text.");
        }
        return build_ids(j, v, x);
    }
    if (v == NULL || v->type != JSON_STRING || v->text.n == 0) {
        return api_refuse(x, 400, NULL, "prompt",
                          "'prompt' is required: a text or an array of token ids, not empty.");
    }
    j->echo_text = j->echo ? v->text : STR("");
    if (!prompt_bytes_fit(j, v->text.n, x)) {
        return false;
    }
    return prompt_text(&j->prompt, m->tokenizer, &j->arena, v->text, m->add_bos ? m->bos : -1,
                       j->has_key ? &j->key : NULL, j->serve->plan.max_model_len, &e) ||
           prompt_story(&e, "prompt", x);
}

/* What the prompt leaves has to hold what must come. */
static bool check_min_tokens(const struct engine_request *r, struct api_error *x)
{
    return r->min_tokens <= r->max_tokens ||
           api_refuse(x, 400, NULL, "min_tokens",
                      "'min_tokens' is %u, but the prompt of %u tokens leaves room for %u.",
                      r->min_tokens, r->n_ids, r->max_tokens);
}

bool prompt_build(struct job *j, struct api_error *x)
{
    struct engine_request *r = &j->request;
    uint32_t most = j->serve->plan.max_model_len, room;

    if (!(j->kind == JOB_CHAT ? prompt_ids_of_chat(j, most, x) : build_completion(j, x))) {
        return false;
    }
    if (j->prompt.n_ids >= most) {
        return too_long(j, j->prompt.n_ids, j->prompt.cut, x);
    }
    set_stop_ids(j);
    room = most - j->prompt.n_ids;
    r->ids = j->prompt.ids;
    r->n_ids = j->prompt.n_ids;
    r->max_tokens = j->max_tokens == 0 || j->max_tokens > room ? room : j->max_tokens;
    r->chunks = j->prompt.chunks;
    r->chunk_token = j->prompt.chunk_token;
    r->n_chunks = j->prompt.n_chunks;
    r->event = j->event;
    j->prompt_tokens = r->n_ids;
    return check_min_tokens(r, x);
}
