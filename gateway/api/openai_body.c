/* openai_body.c - the request as an engine gets it: written from the checked tree. Lists and
 * objects that we did not change are copied in the client's own spelling: the parser refused
 * duplicate keys, bad UTF-8 and whatever else an engine could read in another way.
 *
 * Our worker gets an allow-list. Another engine gets what the client sent, also what we don't know,
 * but three kinds of fields: those we write ourselves, those that end at the gateway, and those
 * with which a client could act on the engine instead of asking it for an answer. */
#include "gateway/api/openai.h"

#define NAME(literal)                                                                              \
    {                                                                                              \
        literal, sizeof(literal) - 1                                                               \
    } /* measured once, not a request */

static bool is_one_of(struct str key, const struct str *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (str_eq(key, names[i])) {
            return true;
        }
    }
    return false;
}

/* Written below from what was checked, or checked to be the default. */
static const struct str written_here[] = {
    NAME("model"),  NAME("max_tokens"),     NAME("max_completion_tokens"),
    NAME("stream"), NAME("stream_options"), NAME("prompt"),
    NAME("n"),      NAME("best_of"),        NAME("echo"),
    NAME("suffix"),
};

/* For the ledger, the router or a hosted service. */
static const struct str ends_here[] = {
    NAME("store"),
    NAME("metadata"),
    NAME("user"),
    NAME("service_tier"),
    NAME("prompt_cache_key"),
    NAME("prompt_cache_retention"),
    NAME("prompt_cache_options"),
    NAME("safety_identifier"),
    NAME("prediction"),
    NAME("verbosity"),
    NAME("modalities"),
};

/* vLLM, SGLang and llama.cpp take these from anyone: they lengthen the prompt or the answer past
 * what was reserved, reach other tenants' cache or adapters, jump the queue, run given code, or
 * ask for the engine's insides. */
static const struct str engine_private[] = {
    /* length past the hold */
    NAME("n_predict"),
    NAME("max_new_tokens"),
    NAME("min_tokens"),
    NAME("n_keep"),
    NAME("n_discard"),
    NAME("documents"),
    NAME("chat_template"),
    NAME("prompt_embeds"),
    NAME("truncate_prompt_tokens"),
    NAME("add_special_tokens"),
    NAME("input_ids"),
    NAME("n_probs"),
    NAME("t_max_predict_ms"),
    NAME("use_beam_search"),
    NAME("length_penalty"),
    /* tenants, queue and placement */
    NAME("priority"),
    NAME("cache_salt"),
    NAME("extra_key"),
    NAME("request_id"),
    NAME("rid"),
    NAME("id_slot"),
    NAME("slot_id"),
    NAME("cache_prompt"),
    NAME("lora"),
    NAME("lora_path"),
    NAME("adapter_id"),
    NAME("session_params"),
    NAME("kv_transfer_params"),
    NAME("bootstrap_host"),
    NAME("bootstrap_port"),
    NAME("bootstrap_room"),
    NAME("data_parallel_rank"),
    NAME("vllm_xargs"),
    /* code and insides */
    NAME("logits_processors"),
    NAME("custom_logit_processor"),
    NAME("custom_params"),
    NAME("return_hidden_states"),
    NAME("return_token_ids"),
    NAME("return_tokens_as_token_ids"),
    NAME("return_meta_info"),
    NAME("timings_per_token"),
    NAME("return_progress"),
    NAME("response_fields"),
    NAME("samplers"),
    NAME("grammar_lazy"),
    NAME("grammar_triggers"),
};

/* What our worker knows. */
static const struct str worker_known[] = {
    NAME("messages"),
    NAME("tools"),
    NAME("tool_choice"),
    NAME("parallel_tool_calls"),
    NAME("temperature"),
    NAME("top_p"),
    NAME("top_k"),
    NAME("min_p"),
    NAME("frequency_penalty"),
    NAME("presence_penalty"),
    NAME("repetition_penalty"),
    NAME("logit_bias"),
    NAME("logprobs"),
    NAME("top_logprobs"),
    NAME("stop"),
    NAME("seed"),
    NAME("response_format"),
    NAME("reasoning_effort"),
    NAME("chat_template_kwargs"),
    NAME("ignore_eos"),
    NAME("min_tokens"), /* it stays below max_tokens there */
};

static bool goes_out(const struct openai_request *r, enum engine_kind kind, const struct json *m)
{
    static const struct str with_tools[] = {NAME("tools"), NAME("tool_choice"),
                                            NAME("parallel_tool_calls")};
    static const struct str of_chat[] = {NAME("messages"), NAME("tools")};
    const struct json *tools = json_get(r->root, STR("tools"));

    if (m->type == JSON_NULL || is_one_of(m->key, written_here, ARRAY_LEN(written_here))) {
        return false;
    }
    if (r->endpoint == ENDPOINT_COMPLETIONS && is_one_of(m->key, of_chat, ARRAY_LEN(of_chat))) {
        return false; /* text that nobody counted */
    }
    /* An empty list of tools is none, and without tools some engines refuse the other two. */
    if (is_one_of(m->key, with_tools, ARRAY_LEN(with_tools)) &&
        (json_is_absent(tools) || tools->count == 0)) {
        return false;
    }
    if (kind == ENGINE_TOLLGATE) {
        return is_one_of(m->key, worker_known, ARRAY_LEN(worker_known));
    }
    return !is_one_of(m->key, ends_here, ARRAY_LEN(ends_here)) &&
           !is_one_of(m->key, engine_private, ARRAY_LEN(engine_private));
}

void openai_engine_body(const struct openai_request *r, enum engine_kind kind,
                        struct str engine_model, int64_t max_tokens, struct buf *out)
{
    bool stream = r->stream || kind == ENGINE_TOLLGATE;
    struct json_writer w;

    jw_init(&w, out);
    jw_object(&w);
    jw_kstr(&w, "model", engine_model);
    if (r->endpoint == ENDPOINT_COMPLETIONS) {
        jw_kstr(&w, "prompt", r->prompt);
    }
    for (const struct json *m = r->root->child; m != NULL; m = m->next) {
        if (goes_out(r, kind, m)) {
            jw_key(&w, m->key);
            jw_source(&w, m);
        }
    }
    if (max_tokens >= 0) {
        jw_ki64(&w, "max_tokens", max_tokens);
    }
    jw_kbool(&w, "stream", stream);
    if (stream) {
        jw_key(&w, STR("stream_options"));
        jw_object(&w);
        jw_kbool(&w, "include_usage", true);
        jw_end_object(&w);
    }
    jw_end_object(&w);
}
