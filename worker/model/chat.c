/* chat.c - the table of template families: names, template texts by digest, renderers, tool
 * formats. No Jinja: a template is recognised whole or not at all. */
#include "worker/model/chat.h"

#include "base/hash.h"
#include "worker/model/chat_shape.h"

/* Calls of Qwen 2.5 (after Hermes), Llama 3.1 and Mistral. */
static const struct chat_tool_format qwen25_tools = {
    .start = {"<tool_call>", 11},
    .end = {"</tool_call>", 12},
    .name_key = {"name", 4},
    .arguments_key = {"arguments", 9},
};
static const struct chat_tool_format llama31_tools = {
    .calls_max = 1,
    .name_key = {"name", 4},
    .arguments_key = {"parameters", 10},
    .end_token = {"<|eom_id|>", 10},
};
static const struct chat_tool_format mistral_tools = {
    .start = {"[TOOL_CALLS]", 12},
    .array = true,
    .name_key = {"name", 4},
    .arguments_key = {"arguments", 9},
    .id_chars = CHAT_MISTRAL_ID_CHARS,
};

struct family {
    const char *name;
    const char *end_token;
    chat_renderer *render;
    const struct chat_tool_format *tools; /* NULL: none */
    struct chat_shape shape;
};

static const struct family families[] = {
    [CHAT_SMOLLM2] = {"smollm2",
                      "<|im_end|>",
                      chat_render_chatml,
                      NULL,
                      {.system = "You are a helpful AI assistant named SmolLM, trained by Hugging "
                                 "Face"}},
    [CHAT_CHATML] = {"chatml", "<|im_end|>", chat_render_chatml, NULL, {0}},
    [CHAT_QWEN2] = {"qwen2",
                    "<|im_end|>",
                    chat_render_chatml,
                    NULL,
                    {.system = "You are a helpful assistant."}},
    [CHAT_QWEN25] = {"qwen2.5",
                     "<|im_end|>",
                     chat_render_qwen25,
                     &qwen25_tools,
                     {.system = "You are Qwen, created by Alibaba Cloud. You are a helpful "
                                "assistant."}},
    [CHAT_LLAMA3] = {"llama3", "<|eot_id|>", chat_render_llama3, NULL, {0}},
    [CHAT_LLAMA31] = {"llama3.1", "<|eot_id|>", chat_render_llama31, &llama31_tools, {0}},
    [CHAT_MISTRAL_V01] = {"mistral-v0.1",
                          "</s>",
                          chat_render_mistral_plain,
                          NULL,
                          {.lead = "",
                           .space = " ",
                           .inst_end = " ",
                           .assistant = "",
                           .turn_end = " ",
                           .no_system = true}},
    [CHAT_MISTRAL_V02] = {"mistral-v0.2",
                          "</s>",
                          chat_render_mistral_plain,
                          NULL,
                          {.lead = "",
                           .space = " ",
                           .inst_end = " ",
                           .assistant = "",
                           .turn_end = "",
                           .no_system = true}},
    [CHAT_MISTRAL_V1] =
        {"mistral-v1",
         "</s>",
         chat_render_mistral_plain,
         NULL,
         {.lead = " ", .space = " ", .inst_end = " ", .assistant = " ", .turn_end = ""}},
    [CHAT_MISTRAL_V3] = {"mistral-v3",
                         "</s>",
                         chat_render_mistral_tools,
                         &mistral_tools,
                         {.lead = "",
                          .space = " ",
                          .inst_end = "",
                          .assistant = " ",
                          .turn_end = "",
                          .trim_assistant = true}},
    [CHAT_MISTRAL_NEMO] =
        {"mistral-nemo",
         "</s>",
         chat_render_mistral_tools,
         &mistral_tools,
         {.lead = "", .space = "", .inst_end = "", .assistant = "", .turn_end = ""}},
    [CHAT_MISTRAL_V7] =
        {"mistral-v7",
         "</s>",
         chat_render_mistral_v7,
         NULL,
         {.lead = "", .space = " ", .inst_end = "", .assistant = " ", .turn_end = ""}},
};

/* SHA-256 of template texts, without a newline at the end. Where a text has '\n' in quotes, files
 * hold it as a newline or as the two characters; both are listed. Made by
 * tests/golden/make_chat_families.py, which has the texts. */
static const struct {
    const char *sha256;
    enum chat_family family;
} known[] = {
#include "worker/model/chat_known.inc"
};

const char *chat_family_name(enum chat_family f)
{
    return f == CHAT_NONE ? "none" : families[f].name;
}

const char *chat_family_names(void)
{
    return "smollm2, chatml, qwen2, qwen2.5, llama3, llama3.1, mistral-v0.1, mistral-v0.2, "
           "mistral-v1, mistral-v3, mistral-nemo, mistral-v7";
}

bool chat_family_named(struct str name, enum chat_family *out)
{
    for (size_t i = CHAT_SMOLLM2; i < ARRAY_LEN(families); i++) {
        if (str_eq(name, str_c(families[i].name))) {
            *out = (enum chat_family)i;
            return true;
        }
    }
    return false;
}

enum chat_family chat_family_of_template(struct str template_text)
{
    uint8_t digest[SHA256_BYTES];
    char hex[2 * SHA256_BYTES + 1];

    if (str_ends(template_text, STR("\n"))) {
        template_text.n--;
    }
    hash_sha256(template_text.p, template_text.n, digest);
    str_hex(digest, sizeof(digest), hex);
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strcmp(known[i].sha256, hex) == 0) {
            return known[i].family;
        }
    }
    return CHAT_NONE;
}

struct str chat_end_token(enum chat_family f)
{
    CHECK(f != CHAT_NONE);
    return str_c(families[f].end_token);
}

const struct chat_tool_format *chat_tool_format(enum chat_family f)
{
    CHECK(f != CHAT_NONE);
    return families[f].tools;
}

bool chat_render_tools(enum chat_family f, struct arena *a, const struct json *messages,
                       const struct json *tools, struct chat_rendering *out, struct err *e)
{
    struct chat_writer w = {.arena = a};
    struct chat_conversation c;

    CHECK(f != CHAT_NONE);
    memset(out, 0, sizeof(*out));
    if (!chat_read(a, messages, tools, &c, e)) {
        return false;
    }
    if (c.tools != NULL && families[f].tools == NULL) {
        return err_set(e, ERR_UNSUPPORTED, "the model's chat template (%s) defines no tools",
                       families[f].name);
    }
    out->stable_messages = c.count;
    if (!families[f].render(&families[f].shape, &c, &w, &out->stable_messages, e)) {
        return false;
    }
    out->segments = w.segments;
    out->count = w.count;
    return !w.failed || err_set(e, ERR_LIMIT, "the conversation has too many parts");
}

bool chat_render(enum chat_family f, struct arena *a, const struct json *messages,
                 struct chat_rendering *out, struct err *e)
{
    return chat_render_tools(f, a, messages, NULL, out, e);
}
