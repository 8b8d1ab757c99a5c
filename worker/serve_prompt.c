/* serve_prompt.c - the prompt's ids, the room it leaves, and the request that the engine gets. */
#include "worker/job.h"

static bool too_long(const struct job *j, uint64_t prompt, bool at_least, struct api_error *x)
{
    uint64_t answer = j->max_tokens;

    return api_refuse(x, 400, "context_length_exceeded", j->chat ? "messages" : "prompt",
                      "This model's maximum context length is %u tokens. However, you requested "
                      "%s%llu tokens (%s%llu in the %s, %llu in the completion). Please reduce the "
                      "length of the %s.",
                      j->serve->o.max_model_len, at_least ? "at least " : "",
                      (unsigned long long)(prompt + answer), at_least ? "at least " : "",
                      (unsigned long long)prompt, j->chat ? "messages" : "prompt",
                      (unsigned long long)answer, j->chat ? "messages" : "prompt");
}

/* Text so long that no tokenization of it could fit is not tokenized. */
static bool check_bytes(const struct job *j, uint64_t bytes, struct api_error *x)
{
    uint64_t least = bytes / j->serve->token_bytes_max;

    return least < j->serve->o.max_model_len || too_long(j, least, true, x);
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

static bool story(const struct err *e, struct api_error *x)
{
    return e->code == ERR_LIMIT ? api_refuse(x, 400, NULL, NULL, "%s.", e->text)
                                : api_refuse(x, 503, NULL, NULL, "%s.", e->text);
}

static bool build_chat(struct job *j, struct api_error *x)
{
    const struct json *messages = json_get(j->root, STR("messages"));
    struct serve *s = j->serve;
    uint64_t bytes = 0;
    struct err e = {0};

    if (s->o.family == CHAT_NONE) {
        return api_refuse(x, 400, "unsupported_parameter", "model",
                          "The model's chat template is not one that this worker knows, so it "
                          "serves /v1/completions only. Its operator can start it with "
                          "--chat-format smollm2, chatml or qwen2.");
    }
    for (const struct json *m = messages->child; m != NULL; m = m->next) {
        bytes += text_bytes(json_get(m, STR("content")));
    }
    if (!check_bytes(j, bytes, x)) {
        return false;
    }
    if (!prompt_chat(&j->prompt, s->model->tokenizer, s->o.family, &j->arena, j->root,
                     j->has_key ? &j->key : NULL, &e)) {
        return story(&e, x);
    }
    j->stop_id = tokenizer_find(s->model->tokenizer, chat_end_token(s->o.family));
    if (j->stop_id >= 0 && !j->request.ignore_eos) {
        j->request.stop_ids = &j->stop_id;
        j->request.n_stop_ids = 1;
    }
    return true;
}

static bool build_ids(struct job *j, const struct json *list, struct api_error *x)
{
    uint32_t vocab = j->serve->model->vocab;

    if (list->count >= j->serve->o.max_model_len) {
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
    const struct json *v = json_get(j->root, STR("prompt"));
    const struct model *m = j->serve->model;
    struct err e = {0};

    if (!json_is_absent(v) && v->type == JSON_ARRAY && v->count == 1 &&
        v->child->type != JSON_NUMBER) {
        v = v->child; /* a list of one prompt */
    }
    if (!json_is_absent(v) && v->type == JSON_ARRAY && v->count > 0) {
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
    if (json_is_absent(v) || v->type != JSON_STRING || v->text.n == 0) {
        return api_refuse(x, 400, NULL, "prompt",
                          "'prompt' is required: a text or an array of token ids, not empty.");
    }
    j->echo_text = j->echo ? v->text : STR("");
    if (!check_bytes(j, v->text.n, x)) {
        return false;
    }
    return prompt_text(&j->prompt, m->tokenizer, &j->arena, v->text, m->add_bos ? m->bos : -1,
                       j->has_key ? &j->key : NULL, &e) ||
           story(&e, x);
}

bool prompt_build(struct job *j, struct api_error *x)
{
    struct engine_request *r = &j->request;
    uint32_t room;

    if (!(j->chat ? build_chat(j, x) : build_completion(j, x))) {
        return false;
    }
    if (j->prompt.n_ids >= j->serve->o.max_model_len) {
        return too_long(j, j->prompt.n_ids, false, x);
    }
    room = j->serve->o.max_model_len - j->prompt.n_ids;
    r->ids = j->prompt.ids;
    r->n_ids = j->prompt.n_ids;
    r->max_tokens = j->max_tokens == 0 || j->max_tokens > room ? room : j->max_tokens;
    r->salt = j->has_key ? j->key : j->serve->own_key;
    r->chunks = j->prompt.chunks;
    r->chunk_token = j->prompt.chunk_token;
    r->n_chunks = j->prompt.n_chunks;
    r->event = j->event;
    j->prompt_tokens = r->n_ids;
    return true;
}
