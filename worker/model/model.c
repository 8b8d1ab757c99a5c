/* model.c - binds the keys and tensors of a GGUF file to a Llama-family graph, checking each shape.
 */
#include "worker/model/model.h"

#include "base/hash.h"
#include "worker/model/quant.h"

#include <math.h>
#include <stdio.h>

/* Bounds that keep every product of two of them within 64 bits and every size within reason. */
#define D_MAX (1u << 16)
#define FF_MAX (1u << 20)
#define HEADS_MAX 1024u
#define HEAD_DIM_MAX 256u
#define CONTEXT_MAX (1u << 20)
#define NAME_MAX_BYTES 96

struct binder {
    struct model *m;
    struct str arch; /* "llama" or "qwen2" */
    struct err *e;
};

static void key_name(const struct binder *b, const char *suffix, char out[NAME_MAX_BYTES])
{
    snprintf(out, NAME_MAX_BYTES, STR_FMT ".%s", STR_ARG(b->arch), suffix);
}

static bool hyper(const struct binder *b, const char *suffix, uint32_t max, uint32_t *out)
{
    char name[NAME_MAX_BYTES];

    key_name(b, suffix, name);
    if (!gguf_u32(&b->m->file, name, out, b->e)) {
        return false;
    }
    if (*out == 0 || *out > max) {
        return err_set(b->e, ERR_INPUT, "key %s: %u; 1 to %u is possible", name, *out, max);
    }
    return true;
}

/* As hyper, but *out keeps its value when the key is absent. */
static bool hyper_or(const struct binder *b, const char *suffix, uint32_t max, uint32_t *out)
{
    char name[NAME_MAX_BYTES];

    key_name(b, suffix, name);
    return gguf_find(&b->m->file, name) == NULL || hyper(b, suffix, max, out);
}

static bool fraction_or(const struct binder *b, const char *suffix, float *out)
{
    char name[NAME_MAX_BYTES];

    key_name(b, suffix, name);
    if (gguf_find(&b->m->file, name) == NULL) {
        return true;
    }
    if (!gguf_f32(&b->m->file, name, out, b->e)) {
        return false;
    }
    return *out > 0 || err_set(b->e, ERR_INPUT, "key %s: not above zero", name);
}

static bool bind_arch(struct binder *b)
{
    if (!gguf_str(&b->m->file, "general.architecture", &b->arch, b->e)) {
        return false;
    }
    if (str_eq(b->arch, STR("llama"))) {
        b->m->rope = MODEL_ROPE_PAIRS;
        return true;
    }
    if (str_eq(b->arch, STR("qwen2"))) {
        b->m->rope = MODEL_ROPE_HALVES;
        return true;
    }
    return err_set(b->e, ERR_UNSUPPORTED, "architecture \"" STR_FMT "\"; llama and qwen2 are known",
                   (int)size_min(b->arch.n, 64), b->arch.p);
}

/* Position scaling other than rope_freqs would give wrong text, silently. */
static bool refuse_scaling(const struct binder *b)
{
    char name[NAME_MAX_BYTES];
    struct str kind;

    key_name(b, "rope.scaling.type", name);
    if (gguf_find(&b->m->file, name) == NULL) {
        return true;
    }
    if (!gguf_str(&b->m->file, name, &kind, b->e)) {
        return false;
    }
    return str_eq(kind, STR("none")) ||
           err_set(b->e, ERR_UNSUPPORTED, "key %s: \"" STR_FMT "\" is not known here", name,
                   (int)size_min(kind.n, 64), kind.p);
}

static bool bind_hyper(struct binder *b)
{
    struct model *m = b->m;

    if (!hyper(b, "block_count", MODEL_LAYERS_MAX, &m->layers) ||
        !hyper(b, "embedding_length", D_MAX, &m->d) ||
        !hyper(b, "feed_forward_length", FF_MAX, &m->ff) ||
        !hyper(b, "attention.head_count", HEADS_MAX, &m->heads) ||
        !hyper(b, "context_length", CONTEXT_MAX, &m->context)) {
        return false;
    }
    m->kv_heads = m->heads;
    m->head_dim = m->d / m->heads;
    m->norm_eps = 1e-5f;
    m->rope_base = 10000.0f;
    if (!hyper_or(b, "attention.head_count_kv", m->heads, &m->kv_heads) ||
        !hyper_or(b, "attention.key_length", HEAD_DIM_MAX, &m->head_dim) ||
        !fraction_or(b, "attention.layer_norm_rms_epsilon", &m->norm_eps) ||
        !fraction_or(b, "rope.freq_base", &m->rope_base) || !refuse_scaling(b)) {
        return false;
    }
    uint32_t value_dim = m->head_dim, rope_dim = m->head_dim, experts = 0;
    if (!hyper_or(b, "attention.value_length", HEAD_DIM_MAX, &value_dim) ||
        !hyper_or(b, "rope.dimension_count", HEAD_DIM_MAX, &rope_dim)) {
        return false;
    }
    char name[NAME_MAX_BYTES];
    key_name(b, "expert_count", name);
    if (gguf_find(&m->file, name) != NULL && !gguf_u32(&m->file, name, &experts, b->e)) {
        return false;
    }
    if (experts != 0) {
        return err_set(b->e, ERR_UNSUPPORTED, "mixture of %u experts", experts);
    }
    if (m->heads % m->kv_heads != 0 || m->head_dim == 0 || m->head_dim > HEAD_DIM_MAX ||
        m->head_dim % 2 != 0 || value_dim != m->head_dim || rope_dim != m->head_dim) {
        return err_set(b->e, ERR_UNSUPPORTED,
                       "%u heads on %u KV heads of %u (values %u, rotated %u): heads must share "
                       "evenly, with one even size of at most %u",
                       m->heads, m->kv_heads, m->head_dim, value_dim, rope_dim, HEAD_DIM_MAX);
    }
    return true;
}

static bool bind_weight(struct binder *b, struct weight *w, const char *name, uint64_t rows,
                        uint64_t columns)
{
    const struct gguf_tensor *t = gguf_tensor(&b->m->file, name);

    if (t == NULL) {
        return err_set(b->e, ERR_INPUT, "tensor %s: missing", name);
    }
    if (t->dims[0] != columns || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1) {
        return err_set(b->e, ERR_INPUT,
                       "tensor %s: %llu x %llu x %llu x %llu, but %llu x %llu is needed", name,
                       (unsigned long long)t->dims[0], (unsigned long long)t->dims[1],
                       (unsigned long long)t->dims[2], (unsigned long long)t->dims[3],
                       (unsigned long long)columns, (unsigned long long)rows);
    }
    *w = (struct weight){t->data, t->type, (uint32_t)rows, (uint32_t)columns};
    return true;
}

static bool bind_vector(struct binder *b, struct weight *w, const char *name, uint64_t columns)
{
    if (!bind_weight(b, w, name, 1, columns)) {
        return false;
    }
    return w->type == QUANT_F32 ||
           err_set(b->e, ERR_UNSUPPORTED, "tensor %s: %s; norms and biases are read as F32", name,
                   quant_name(w->type));
}

static bool bind_layer(struct binder *b, uint32_t index)
{
    struct model *m = b->m;
    struct model_layer *l = &m->layer[index];
    uint64_t q = (uint64_t)m->heads * m->head_dim, kv = (uint64_t)m->kv_heads * m->head_dim;
    const struct {
        const char *name;
        struct weight *w;
        uint64_t rows; /* 0: a vector; 1 is never a matrix's */
        uint64_t columns;
        bool optional;
    } table[] = {
        {"attn_norm.weight", &l->attn_norm, 0, m->d, false},
        {"ffn_norm.weight", &l->ffn_norm, 0, m->d, false},
        {"attn_q.weight", &l->q, q, m->d, false},
        {"attn_k.weight", &l->k, kv, m->d, false},
        {"attn_v.weight", &l->v, kv, m->d, false},
        {"attn_output.weight", &l->o, m->d, q, false},
        {"ffn_gate.weight", &l->gate, m->ff, m->d, false},
        {"ffn_up.weight", &l->up, m->ff, m->d, false},
        {"ffn_down.weight", &l->down, m->d, m->ff, false},
        {"attn_q.bias", &l->q_bias, 0, q, true},
        {"attn_k.bias", &l->k_bias, 0, kv, true},
        {"attn_v.bias", &l->v_bias, 0, kv, true},
    };

    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        char name[NAME_MAX_BYTES];
        snprintf(name, sizeof(name), "blk.%u.%s", index, table[i].name);
        if (table[i].optional && gguf_tensor(&m->file, name) == NULL) {
            continue;
        }
        if (!(table[i].rows == 0
                  ? bind_vector(b, table[i].w, name, table[i].columns)
                  : bind_weight(b, table[i].w, name, table[i].rows, table[i].columns))) {
            return false;
        }
        if (table[i].rows != 0) {
            m->weight_bytes += (uint64_t)table[i].w->rows * table[i].w->columns /
                               quant_block_columns(table[i].w->type) *
                               quant_block_bytes(table[i].w->type);
            m->flop_per_token += 2 * (uint64_t)table[i].w->rows * table[i].w->columns;
        }
    }
    return true;
}

static bool bind_tensors(struct binder *b)
{
    struct model *m = b->m;

    m->layer = arena_array(&m->file.arena, m->layers, sizeof(*m->layer));
    if (m->layer == NULL) {
        return err_set(b->e, ERR_NO_MEMORY, "no memory for %u layers", m->layers);
    }
    if (!bind_weight(b, &m->embed, "token_embd.weight", m->vocab, m->d) ||
        !bind_vector(b, &m->out_norm, "output_norm.weight", m->d)) {
        return false;
    }
    m->head = m->embed;
    if (gguf_tensor(&m->file, "output.weight") != NULL &&
        !bind_weight(b, &m->head, "output.weight", m->vocab, m->d)) {
        return false;
    }
    if (gguf_tensor(&m->file, "rope_freqs.weight") != NULL &&
        !bind_vector(b, &m->rope_factors, "rope_freqs.weight", m->head_dim / 2)) {
        return false;
    }
    for (uint32_t i = 0; i < m->layers; i++) {
        if (!bind_layer(b, i)) {
            return false;
        }
    }
    m->weight_bytes += (uint64_t)m->vocab * m->d / quant_block_columns(m->head.type) *
                       quant_block_bytes(m->head.type);
    m->flop_per_token += 2 * (uint64_t)m->vocab * m->d;
    return true;
}

static const struct gguf_array *string_array(const struct binder *b, const char *name)
{
    const struct gguf_key *k = gguf_find(&b->m->file, name);

    if (k == NULL || k->type != GGUF_ARRAY || k->v.array.type != GGUF_STRING) {
        err_set(b->e, ERR_INPUT, "key %s: %s", name,
                k == NULL ? "missing" : "not an array of strings");
        return NULL;
    }
    return &k->v.array;
}

static bool bind_pre(const struct binder *b, enum tokenizer_pre *out)
{
    struct str name;

    return gguf_str(&b->m->file, "tokenizer.ggml.pre", &name, b->e) &&
           tokenizer_pre_of(name, out, b->e);
}

/* Types of all tokens; normal when the file names none. */
static const uint32_t *token_types(const struct binder *b, uint64_t count)
{
    static const char name[] = "tokenizer.ggml.token_type";
    const struct gguf_key *k = gguf_find(&b->m->file, name);
    uint32_t *types = arena_array(&b->m->file.arena, count, sizeof(*types));

    if (types == NULL) {
        err_set(b->e, ERR_NO_MEMORY, "no memory for %llu tokens", (unsigned long long)count);
        return NULL;
    }
    if (k == NULL) {
        for (uint64_t i = 0; i < count; i++) {
            types[i] = TOKEN_NORMAL;
        }
        return types;
    }
    if (k->type != GGUF_ARRAY || k->v.array.count != count ||
        (k->v.array.type != GGUF_I32 && k->v.array.type != GGUF_U32)) {
        err_set(b->e, ERR_INPUT, "key %s: not one 32-bit number a token", name);
        return NULL;
    }
    memcpy(types, k->v.array.data, count * sizeof(*types));
    return types;
}

static bool special_id(const struct binder *b, const char *name, int32_t *out)
{
    uint32_t id;

    *out = -1;
    if (gguf_find(&b->m->file, name) == NULL) {
        return true;
    }
    if (!gguf_u32(&b->m->file, name, &id, b->e)) {
        return false;
    }
    if (id >= b->m->vocab) {
        return err_set(b->e, ERR_INPUT, "key %s: %u, but there are %u tokens", name, id,
                       b->m->vocab);
    }
    *out = (int32_t)id;
    return true;
}

static bool bind_tokenizer(struct binder *b)
{
    struct model *m = b->m;
    const struct gguf_array *tokens = string_array(b, "tokenizer.ggml.tokens");
    const struct gguf_array *merges = string_array(b, "tokenizer.ggml.merges");
    struct str kind;
    struct tokenizer_source src = {0};

    if (!gguf_str(&m->file, "tokenizer.ggml.model", &kind, b->e)) {
        return false;
    }
    if (!str_eq(kind, STR("gpt2"))) {
        return err_set(b->e, ERR_UNSUPPORTED,
                       "tokenizer \"" STR_FMT "\"; gpt2 (byte-level BPE) is known",
                       (int)size_min(kind.n, 64), kind.p);
    }
    if (tokens == NULL || merges == NULL || !bind_pre(b, &src.pre)) {
        return false;
    }
    if (tokens->count == 0) {
        return err_set(b->e, ERR_INPUT, "key tokenizer.ggml.tokens: empty");
    }
    m->vocab = (uint32_t)tokens->count; /* at most GGUF_ARRAY_MAX */
    src.tokens = tokens->strings;
    src.count = m->vocab;
    src.merges = merges->strings;
    src.merge_count = (uint32_t)merges->count;
    src.types = token_types(b, tokens->count);
    if (src.types == NULL || !special_id(b, "tokenizer.ggml.bos_token_id", &m->bos) ||
        !special_id(b, "tokenizer.ggml.eos_token_id", &m->eos)) {
        return false;
    }
    src.bos = m->bos;
    src.eos = m->eos;
    m->add_bos = tokenizer_pre_adds_bos(src.pre) && m->bos >= 0; /* unless the file says */
    m->tokenizer = tokenizer_new(&src, b->e);
    return m->tokenizer != NULL;
}

static bool bind_optional(struct binder *b)
{
    struct model *m = b->m;
    const struct gguf_key *k = gguf_find(&m->file, "tokenizer.ggml.add_bos_token");

    if (k != NULL) {
        m->add_bos = k->type == GGUF_BOOL && k->v.u64 != 0 && m->bos >= 0;
    }
    m->name = STR("unnamed");
    if (gguf_find(&m->file, "general.name") != NULL &&
        !gguf_str(&m->file, "general.name", &m->name, b->e)) {
        return false;
    }
    m->chat_template = STR("");
    return gguf_find(&m->file, "tokenizer.chat_template") == NULL ||
           gguf_str(&m->file, "tokenizer.chat_template", &m->chat_template, b->e);
}

#define DIGEST_SAMPLE_BYTES 256
#define DIGEST_SAMPLES 4 /* of a tensor: both ends and two between */

/* Tells files apart whose headers are equal (two trainings of one shape) without reading them: all
 * of header and directory, and of each tensor a few stretches, its ends among them. */
static uint64_t model_digest(const struct gguf *g)
{
    uint64_t h = hash_xxh3(g->map, g->directory_bytes, g->map_bytes);

    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        uint64_t n = u64_min(t->bytes, DIGEST_SAMPLE_BYTES), room = t->bytes - n;

        for (uint64_t k = 0; k < DIGEST_SAMPLES; k++) {
            h = hash_xxh3(t->data + room / (DIGEST_SAMPLES - 1) * k +
                              (k == DIGEST_SAMPLES - 1 ? room % (DIGEST_SAMPLES - 1) : 0),
                          n, h);
        }
    }
    return h;
}

struct model *model_open(const char *path, struct err *e)
{
    struct model *m = mem_new(sizeof(*m));
    struct binder b = {m, STR(""), e};

    if (!gguf_open(&m->file, path, e)) {
        mem_free(m);
        return NULL;
    }
    if (!bind_arch(&b) || !bind_hyper(&b) || !bind_tokenizer(&b) || !bind_tensors(&b) ||
        !bind_optional(&b)) {
        err_prefix(e, "%s", path);
        model_close(m);
        return NULL;
    }
    m->digest = model_digest(&m->file);
    return m;
}

void model_close(struct model *m)
{
    if (m == NULL) {
        return;
    }
    if (m->tokenizer != NULL) {
        tokenizer_free(m->tokenizer);
    }
    gguf_close(&m->file);
    mem_free(m);
}

void model_row(const struct weight *w, uint32_t row, float *out)
{
    uint64_t bytes =
        (uint64_t)w->columns / quant_block_columns(w->type) * quant_block_bytes(w->type);

    CHECK(row < w->rows);
    quant_dequantize(w->type, w->data + row * bytes, out, w->columns);
}

void model_rope_table(const struct model *m, float *out)
{
    uint32_t half = m->head_dim / 2;

    for (uint32_t i = 0; i < half; i++) {
        double frequency = pow((double)m->rope_base, -2.0 * i / m->head_dim);
        if (m->rope_factors.data != NULL) {
            float factor;
            memcpy(&factor, m->rope_factors.data + i * sizeof(factor), sizeof(factor));
            frequency /= (double)factor;
        }
        for (uint32_t p = 0; p < m->context; p++) {
            float *to = out + ((uint64_t)p * half + i) * 2;
            to[0] = (float)cos(p * frequency);
            to[1] = (float)sin(p * frequency);
        }
    }
}
