/* openai_body.c - the request as an engine gets it: re-serialised from the checked tree.
 *
 * Our worker gets an allow-list. Another engine gets what the client sent, also what we don't know,
 * but three kinds of fields: those we write ourselves, those that end at the gateway, and those
 * with which a client could act on the engine instead of asking it for an answer. */
#include "gateway/api/openai.h"

static bool is_one_of(struct str key, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (str_eq(key, str_c(names[i]))) {
            return true;
        }
    }
    return false;
}

/* Written below from what was checked, or checked to be the default. */
static const char *const written_here[] = {
    "model",  "max_tokens",     "max_completion_tokens",
    "stream", "stream_options", "prompt",
    "n",      "best_of",        "echo",
    "suffix",
};

/* For the ledger, the router or a hosted service. */
static const char *const ends_here[] = {
    "store",
    "metadata",
    "user",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "safety_identifier",
    "prediction",
    "verbosity",
    "modalities",
};

/* vLLM, SGLang and llama.cpp take these from anyone: they lengthen the prompt or the answer past
 * what was reserved, reach other tenants' cache or adapters, jump the queue, run given code, or
 * ask for the engine's insides. */
static const char *const engine_private[] = {
    /* length past the hold */
    "n_predict",
    "max_new_tokens",
    "min_tokens",
    "n_keep",
    "n_discard",
    "documents",
    "chat_template",
    "prompt_embeds",
    "truncate_prompt_tokens",
    "add_special_tokens",
    "input_ids",
    "n_probs",
    "t_max_predict_ms",
    "use_beam_search",
    "length_penalty",
    /* tenants, queue and placement */
    "priority",
    "cache_salt",
    "extra_key",
    "request_id",
    "rid",
    "id_slot",
    "slot_id",
    "cache_prompt",
    "lora",
    "lora_path",
    "adapter_id",
    "session_params",
    "kv_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "data_parallel_rank",
    "vllm_xargs",
    /* code and insides */
    "logits_processors",
    "custom_logit_processor",
    "custom_params",
    "return_hidden_states",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "return_meta_info",
    "timings_per_token",
    "return_progress",
    "response_fields",
    "samplers",
    "grammar_lazy",
    "grammar_triggers",
};

/* What our worker knows. */
static const char *const worker_known[] = {
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "stop",
    "seed",
    "response_format",
    "reasoning_effort",
    "chat_template_kwargs",
    "ignore_eos",
};

static bool goes_out(const struct openai_request *r, enum engine_kind kind, const struct json *m)
{
    static const char *const with_tools[] = {"tools", "tool_choice", "parallel_tool_calls"};
    static const char *const of_chat[] = {"messages", "tools"};
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
            jw_value(&w, m);
        }
    }
    jw_ki64(&w, "max_tokens", max_tokens);
    jw_kbool(&w, "stream", stream);
    if (stream) {
        jw_key(&w, STR("stream_options"));
        jw_object(&w);
        jw_kbool(&w, "include_usage", true);
        jw_end_object(&w);
    }
    jw_end_object(&w);
}
