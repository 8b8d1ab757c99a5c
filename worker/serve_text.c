/* serve_text.c - POST /tokenize and /detokenize, in vLLM's shapes. */
#include "worker/job.h"

/* What /tokenize counts at most: others wait for the lane meanwhile. */
#define TOKENIZE_CONTEXTS_MAX 16      /* in times the longest context */
#define TOKENIZE_IDS_MAX (1u << 20)   /* and in tokens, where a context is not longer */
#define TOKENIZE_BYTES_MAX (4u << 20) /* of the prompt's text, or of the messages' JSON */

static uint32_t ids_most(const struct serve *s)
{
    uint64_t context = s->plan.max_model_len;
    uint64_t most = u64_min(context * TOKENIZE_CONTEXTS_MAX, TOKENIZE_IDS_MAX);

    return (uint32_t)u64_max(most, context);
}

static bool bytes_fit(const struct json *v, const char *param, struct api_error *x)
{
    return v->text.n <= TOKENIZE_BYTES_MAX ||
           api_refuse(x, 400, NULL, param, "'%s' has %zu bytes, more than the %u that are counted.",
                      param, v->text.n, TOKENIZE_BYTES_MAX);
}

static bool ids_fit(const struct job *j, const char *param, struct api_error *x)
{
    return j->prompt.n_ids <= ids_most(j->serve) ||
           api_refuse(x, 400, NULL, param,
                      "'%s' has at least %u tokens, more than the %u that are "
                      "counted.",
                      param, j->prompt.n_ids, ids_most(j->serve));
}

static bool answer_is_whole(const struct job *j, const char *param, struct api_error *x)
{
    return !j->answer.failed ||
           api_refuse(x, 400, NULL, param,
                      "The answer to '%s' would be longer than %u bytes. Ask for less at once.",
                      param, JOB_ANSWER_BYTES_MAX);
}

static void write_tokens(struct job *j, bool strings)
{
    const struct serve *s = j->serve;
    struct json_writer w;

    jw_init(&w, &j->answer);
    jw_object(&w);
    jw_ku64(&w, "count", j->prompt.n_ids);
    jw_ku64(&w, "max_model_len", s->plan.max_model_len);
    jw_key(&w, STR("tokens"));
    jw_array(&w);
    for (uint32_t i = 0; i < j->prompt.n_ids; i++) {
        jw_i64(&w, j->prompt.ids[i]);
    }
    jw_end_array(&w);
    jw_key(&w, STR("token_strs"));
    if (strings) {
        jw_array(&w);
        for (uint32_t i = 0; i < j->prompt.n_ids; i++) {
            jw_str(&w, tokenizer_bytes(s->model->tokenizer, j->prompt.ids[i], true));
        }
        jw_end_array(&w);
    } else {
        jw_null(&w);
    }
    jw_end_object(&w);
}

/* As it would be for an answer, but the length of the context is no bound for counting; what no
 * context could hold is refused all the same. */
static bool text_ids(struct job *j, struct api_error *x)
{
    const struct json *prompt = job_field(j, "prompt"), *messages = job_field(j, "messages");
    const struct model *m = j->serve->model;
    bool special = true;
    struct err e = {0};

    if (!job_bool(j, "add_special_tokens", &special, x)) {
        return false;
    }
    if (prompt == NULL && messages != NULL) {
        j->kind = JOB_CHAT;
        j->tools = j->serve->shape.format != NULL ? job_field(j, "tools") : NULL;
        if (j->tools != NULL && j->tools->type != JSON_ARRAY) {
            return api_bad(x, "tools", "must be an array");
        }
        return bytes_fit(messages, "messages", x) && params_messages(j, x) &&
               prompt_ids_of_chat(j, ids_most(j->serve), x) && ids_fit(j, "messages", x);
    }
    if (prompt == NULL || prompt->type != JSON_STRING) {
        return api_bad(x, "prompt", "must be a text, or there must be 'messages'");
    }
    return bytes_fit(prompt, "prompt", x) && prompt_bytes_fit(j, prompt->text.n, x) &&
           (prompt_text(&j->prompt, m->tokenizer, &j->arena, prompt->text,
                        special && m->add_bos ? m->bos : -1, NULL, ids_most(j->serve), &e) ||
            prompt_story(&e, "prompt", x)) &&
           ids_fit(j, "prompt", x);
}

static bool tokenize(struct job *j, struct api_error *x)
{
    bool strings = false;

    if (!job_bool(j, "return_token_strs", &strings, x) || !text_ids(j, x)) {
        return false;
    }
    write_tokens(j, strings);
    return answer_is_whole(j, "prompt", x);
}

static bool detokenize(struct job *j, struct api_error *x)
{
    const struct serve *s = j->serve;
    const struct json *tokens = job_field(j, "tokens");
    struct json_writer w;
    struct buf text;
    bool ok = true;

    if (tokens == NULL || tokens->type != JSON_ARRAY) {
        return api_bad(x, "tokens", "must be an array of token ids");
    }
    if (tokens->count > s->plan.max_model_len) {
        return api_refuse(x, 400, NULL, "tokens", "'tokens' has %u ids, more than the %u that fit.",
                          tokens->count, s->plan.max_model_len);
    }
    buf_init(&text, (size_t)tokens->count * s->token_bytes_max + 1);
    for (const struct json *v = tokens->child; v != NULL && ok; v = v->next) {
        int64_t id;

        ok = v->type == JSON_NUMBER && json_i64(v, &id) && id >= 0 &&
             id < (int64_t)tokenizer_count(s->model->tokenizer);
        if (ok) {
            buf_str(&text, tokenizer_bytes(s->model->tokenizer, (int32_t)id, true));
        }
    }
    if (ok) {
        jw_init(&w, &j->answer);
        jw_object(&w);
        jw_kstr(&w, "prompt", buf_view(&text));
        jw_end_object(&w);
        j->answer.failed = j->answer.failed || text.failed;
    }
    buf_fini(&text);
    return ok ? answer_is_whole(j, "tokens", x)
              : api_refuse(x, 400, NULL, "tokens",
                           "'tokens' has an element that is no token id below %u.",
                           tokenizer_count(s->model->tokenizer));
}

bool text_answer(struct job *j, struct api_error *x)
{
    if (job_field(j, "model") != NULL && !params_model(j, x)) {
        return false;
    }
    return j->kind == JOB_TOKENIZE ? tokenize(j, x) : detokenize(j, x);
}
