/* tiny_model.c - writes the random model of tiny_model.h. See there. */
#include "tests/unit/tiny_model.h"

#include "worker/model/quant.h"

#include <stdio.h>

#define D 64u
#define FF 128u
#define LAYERS 2u
#define HEADS 4u
#define KV_HEADS 2u
#define HEAD_DIM 16u
#define CONTEXT 2048u
#define ALIGNMENT 32u
#define TENSORS_MAX 64u

/* The first three always, the others with `markers`. */
static const char *const control_tokens[] = {
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "[TOOL_CALLS]",
    "<tool_call>",   "</tool_call>", "<|eot_id|>", "<|eom_id|>",
};
#define CONTROLS_PLAIN 3u

/* With `long_tokens`: a run of one letter is one pre-token that merges deeply. */
static const char *const long_merges[] = {
    "a a", "aa aa", "aaaa aaaa", "aaaaaaaa aaaaaaaa", "aaaaaaaaaaaaaaaa aaaaaaaaaaaaaaaa",
};

/* In the spelling of the GPT-2 byte alphabet: "\304\240" is a space. */
static const char *const merges[] = {
    "\304\240 t",   "\304\240 a", "i n",        "h e", "r e",        "o n",
    "\304\240t he", "e r",        "\304\240 s", "a t", "\304\240 w", "o u",
    "\304\240 c",   "n d",        "i s",        "o r", "e n",        "\304\240 b",
    "in g",         "\304\240 f", "e s",        "l l", "\304\240 o", "\304\240a nd",
    "u s",          "s er",       "us er",      "a s", "as s",       "t h",
};

static uint32_t controls(const struct tiny_options *o)
{
    return o->markers ? ARRAY_LEN(control_tokens) : CONTROLS_PLAIN;
}

static uint32_t n_merges(const struct tiny_options *o)
{
    return ARRAY_LEN(merges) + (o->long_tokens ? ARRAY_LEN(long_merges) : 0);
}

static const char *merge_at(uint32_t i)
{
    return i < ARRAY_LEN(merges) ? merges[i] : long_merges[i - ARRAY_LEN(merges)];
}

static uint32_t vocabulary(const struct tiny_options *o)
{
    return controls(o) + 256 + n_merges(o);
}

static const char chat_template[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    "Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}";

/* GGUF value types used here. */
enum { T_U32 = 4, T_I32 = 5, T_F32 = 6, T_BOOL = 7, T_STRING = 8, T_ARRAY = 9 };

struct tensor_plan {
    char name[64];
    uint32_t rows, columns, type; /* rows 0: one dimension */
    float gain;                   /* standard deviation of an output for unit inputs */
};

struct plan {
    struct tensor_plan t[TENSORS_MAX];
    uint32_t n;
};

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static float next_unit(uint64_t *state) /* [0, 1) */
{
    return (float)(next_random(state) >> 40) * 0x1p-24f;
}

static void put_u32(struct buf *b, uint32_t v)
{
    buf_append(b, &v, sizeof(v));
}

static void put_u64(struct buf *b, uint64_t v)
{
    buf_append(b, &v, sizeof(v));
}

static void put_f32(struct buf *b, float v)
{
    buf_append(b, &v, sizeof(v));
}

static void put_f16(struct buf *b, float v)
{
    uint16_t h = quant_to_f16(v);
    buf_append(b, &h, sizeof(h));
}

static void put_string(struct buf *b, const char *z)
{
    put_u64(b, strlen(z));
    buf_c(b, z);
}

/* "<arch>.name" when the name starts with a dot. */
static void put_key(struct buf *b, const struct tiny_options *o, const char *name, uint32_t type)
{
    char full[96];

    snprintf(full, sizeof(full), "%s%s", name[0] != '.' ? "" : o->qwen2 ? "qwen2" : "llama", name);
    put_string(b, full);
    put_u32(b, type);
}

static void put_key_u32(struct buf *b, const struct tiny_options *o, const char *name, uint32_t v)
{
    put_key(b, o, name, T_U32);
    put_u32(b, v);
}

static void put_key_string(struct buf *b, const struct tiny_options *o, const char *name,
                           const char *v)
{
    put_key(b, o, name, T_STRING);
    put_string(b, v);
}

/* The GPT-2 byte alphabet: printable Latin-1 stands for itself, the others move up to U+0100. */
static void byte_token(unsigned byte, char out[3])
{
    unsigned code = byte;

    if (!((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174)) {
        code = byte <= 32 ? 256 + byte : byte <= 160 ? 256 + 33 + (byte - 127) : 323;
    }
    if (code < 0x80) {
        out[0] = (char)code;
        out[1] = '\0';
        return;
    }
    out[0] = (char)(0xC0 | (code >> 6));
    out[1] = (char)(0x80 | (code & 0x3F));
    out[2] = '\0';
}

static void put_vocabulary(struct buf *b, const struct tiny_options *o)
{
    put_key(b, o, "tokenizer.ggml.tokens", T_ARRAY);
    put_u32(b, T_STRING);
    put_u64(b, vocabulary(o));
    for (size_t i = 0; i < controls(o); i++) {
        put_string(b, control_tokens[i]);
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        char spelled[3];
        byte_token(byte, spelled);
        put_string(b, spelled);
    }
    for (uint32_t i = 0; i < n_merges(o); i++) {
        const char *merge = merge_at(i), *space = strchr(merge, ' ');
        char joined[64];
        snprintf(joined, sizeof(joined), "%.*s%s", (int)(space - merge), merge, space + 1);
        put_string(b, joined);
    }
    put_key(b, o, "tokenizer.ggml.token_type", T_ARRAY);
    put_u32(b, T_I32);
    put_u64(b, vocabulary(o));
    for (size_t i = 0; i < vocabulary(o); i++) {
        put_u32(b, i < controls(o) ? 3 : 1);
    }
    put_key(b, o, "tokenizer.ggml.merges", T_ARRAY);
    put_u32(b, T_STRING);
    put_u64(b, n_merges(o));
    for (uint32_t i = 0; i < n_merges(o); i++) {
        put_string(b, merge_at(i));
    }
}

#define KEYS 18u

static void put_metadata(struct buf *b, const struct tiny_options *o)
{
    put_key_string(b, o, "general.architecture", o->qwen2 ? "qwen2" : "llama");
    put_key_string(b, o, "general.name", "tiny");
    put_key_u32(b, o, ".block_count", LAYERS);
    put_key_u32(b, o, ".context_length", o->context > 0 ? o->context : CONTEXT);
    put_key_u32(b, o, ".embedding_length", D);
    put_key_u32(b, o, ".feed_forward_length", FF);
    put_key_u32(b, o, ".attention.head_count", HEADS);
    put_key_u32(b, o, ".attention.head_count_kv", KV_HEADS);
    put_key(b, o, ".attention.layer_norm_rms_epsilon", T_F32);
    put_f32(b, 1e-5f);
    put_key(b, o, ".rope.freq_base", T_F32);
    put_f32(b, 10000.0f);
    put_key_string(b, o, "tokenizer.ggml.model", "gpt2");
    put_key_string(b, o, "tokenizer.ggml.pre", o->qwen2 ? "qwen2" : "smollm");
    put_vocabulary(b, o);
    put_key_u32(b, o, "tokenizer.ggml.bos_token_id", 1);
    put_key_u32(b, o, "tokenizer.ggml.eos_token_id", 2);
    put_key_string(b, o, "tokenizer.chat_template", chat_template);
}

static void plan_add(struct plan *p, const char *name, uint32_t rows, uint32_t columns,
                     uint32_t type, float gain)
{
    struct tensor_plan *t = &p->t[p->n++];

    CHECK(p->n <= TENSORS_MAX);
    snprintf(t->name, sizeof(t->name), "%s", name);
    t->rows = rows;
    t->columns = columns;
    t->type = type;
    t->gain = gain;
}

static void plan_layer(struct plan *p, const struct tiny_options *o, uint32_t layer)
{
    /* Large outputs of attention and feed-forward drown the token's own embedding, so that greedy
     * text does not repeat one token for ever. */
    const struct {
        const char *name;
        uint32_t rows, columns;
        float gain;
        bool bias;
    } table[] = {
        {"attn_norm.weight", 0, D, 0, false},
        {"attn_q.weight", HEADS * HEAD_DIM, D, 1.5f, false},
        {"attn_k.weight", KV_HEADS * HEAD_DIM, D, 1.5f, false},
        {"attn_v.weight", KV_HEADS * HEAD_DIM, D, 1.0f, false},
        {"attn_q.bias", 0, HEADS * HEAD_DIM, 0, true},
        {"attn_k.bias", 0, KV_HEADS * HEAD_DIM, 0, true},
        {"attn_v.bias", 0, KV_HEADS * HEAD_DIM, 0, true},
        {"attn_output.weight", D, HEADS * HEAD_DIM, 2.5f, false},
        {"ffn_norm.weight", 0, D, 0, false},
        {"ffn_gate.weight", FF, D, 1.0f, false},
        {"ffn_up.weight", FF, D, 1.0f, false},
        {"ffn_down.weight", D, FF, 4.0f, false},
    };

    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        char name[64];
        if (table[i].bias && !o->qwen2) {
            continue;
        }
        snprintf(name, sizeof(name), "blk.%u.%s", layer, table[i].name);
        plan_add(p, name, table[i].rows, table[i].columns,
                 table[i].rows == 0 ? (uint32_t)QUANT_F32 : o->matrix_type, table[i].gain);
    }
}

static void plan_fill(struct plan *p, const struct tiny_options *o)
{
    p->n = 0;
    plan_add(p, "token_embd.weight", vocabulary(o), D, o->embed_type, 8.0f);
    for (uint32_t l = 0; l < LAYERS; l++) {
        plan_layer(p, o, l);
    }
    plan_add(p, "output_norm.weight", 0, D, QUANT_F32, 0);
    if (o->untied) {
        plan_add(p, "output.weight", vocabulary(o), D, o->matrix_type, 4.0f);
    }
}

static uint64_t tensor_bytes(const struct tensor_plan *t)
{
    uint64_t n = (uint64_t)(t->rows == 0 ? 1 : t->rows) * t->columns;
    return n / quant_block_columns(t->type) * quant_block_bytes(t->type);
}

static void put_random_bytes(struct buf *b, uint64_t *state, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = next_random(state);
        buf_append(b, &v, n - i < 8 ? n - i : 8);
    }
}

/* One block of uniform weights with standard deviation `dev`. */
static void put_block(struct buf *b, uint32_t type, float dev, uint64_t *state)
{
    float vary = dev * (0.5f + next_unit(state));

    switch (type) {
    case QUANT_Q4_0:
        put_f16(b, vary / 4.6f);
        put_random_bytes(b, state, 16);
        break;
    case QUANT_Q4_1:
        put_f16(b, vary / 4.6f);
        put_f16(b, -7.5f * vary / 4.6f);
        put_random_bytes(b, state, 16);
        break;
    case QUANT_Q5_0:
        put_f16(b, vary / 9.2f);
        put_random_bytes(b, state, 20);
        break;
    case QUANT_Q8_0:
        put_f16(b, vary / 73.9f);
        put_random_bytes(b, state, 32);
        break;
    case QUANT_F16:
        put_f16(b, dev * 3.46f * (next_unit(state) - 0.5f));
        break;
    case QUANT_BF16: {
        uint16_t h = quant_to_bf16(dev * 3.46f * (next_unit(state) - 0.5f));
        buf_append(b, &h, sizeof(h));
        break;
    }
    default:
        CHECK(type == QUANT_F32);
        put_f32(b, dev * 3.46f * (next_unit(state) - 0.5f));
    }
}

static void put_tensor(struct buf *b, const struct tensor_plan *t, uint64_t *state)
{
    if (t->rows == 0) { /* norms lie near one, biases near zero */
        float around = strstr(t->name, "bias") != NULL ? 0.0f : 1.0f;
        for (uint32_t i = 0; i < t->columns; i++) {
            put_f32(b, around + 0.4f * (next_unit(state) - 0.5f));
        }
        return;
    }
    float dev = t->gain / __builtin_sqrtf((float)t->columns);
    uint64_t blocks = (uint64_t)t->rows * t->columns / quant_block_columns(t->type);
    for (uint64_t i = 0; i < blocks; i++) {
        put_block(b, t->type, dev, state);
    }
}

static void pad(struct buf *b, size_t start)
{
    while ((b->len - start) % ALIGNMENT != 0) {
        buf_byte(b, 0);
    }
}

void tiny_model_build(struct buf *b, const struct tiny_options *o)
{
    struct plan p;
    size_t start = b->len;
    uint64_t offset = 0, state = o->seed;

    plan_fill(&p, o);
    buf_c(b, "GGUF");
    put_u32(b, 3);
    put_u64(b, p.n);
    put_u64(b, KEYS);
    put_metadata(b, o);
    for (uint32_t i = 0; i < p.n; i++) {
        const struct tensor_plan *t = &p.t[i];
        put_string(b, t->name);
        put_u32(b, t->rows == 0 ? 1 : 2);
        put_u64(b, t->columns);
        if (t->rows != 0) {
            put_u64(b, t->rows);
        }
        put_u32(b, t->type);
        put_u64(b, offset);
        offset += (tensor_bytes(t) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    for (uint32_t i = 0; i < p.n; i++) {
        pad(b, start);
        put_tensor(b, &p.t[i], &state);
    }
    pad(b, start);
    CHECK(!b->failed);
}

bool tiny_model_write_as(const char *path, const struct tiny_options *o)
{
    struct buf b;
    bool ok = false;

    buf_init(&b, TINY_MODEL_BYTES_MAX);
    tiny_model_build(&b, o);
    FILE *f = fopen(path, "wb");
    if (f != NULL) {
        ok = fwrite(buf_view(&b).p, 1, b.len, f) == b.len;
        ok = fclose(f) == 0 && ok;
    }
    buf_fini(&b);
    return ok;
}

bool tiny_model_write(const char *path, uint64_t seed)
{
    struct tiny_options o = {.seed = seed, .matrix_type = QUANT_Q4_1, .embed_type = QUANT_Q8_0};

    return tiny_model_write_as(path, &o);
}
