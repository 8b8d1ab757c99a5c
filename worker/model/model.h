/* model.h - a Llama-family model: hyper-parameters and where each weight lies. Immutable.
 *
 * Weights stay in the file's mapping; a backend repacks what it wants at load.
 * Shapes: a weight named W [rows][columns] computes y[rows] = W x[columns]. */
#ifndef WORKER_MODEL_MODEL_H
#define WORKER_MODEL_MODEL_H

#include "cache/tokenizer.h"
#include "worker/model/gguf.h"

#define MODEL_LAYERS_MAX 256

struct weight {
    const uint8_t *data; /* [rows][columns] in blocks of its type */
    uint32_t type;       /* enum quant_type */
    uint32_t rows, columns;
};

/* Which two elements of a head RoPE rotates together, by the angle of frequency i. */
enum model_rope {
    MODEL_ROPE_PAIRS = 1, /* (2i, 2i+1): llama, whose GGUF permutes the rows of q and k for it */
    MODEL_ROPE_HALVES,    /* (i, i + head_dim/2): qwen2 */
};

struct model_layer {
    struct weight attn_norm, ffn_norm;    /* [1][d], F32 */
    struct weight q, k, v, o;             /* [heads*hd][d] [kv*hd][d] [kv*hd][d] [d][heads*hd] */
    struct weight q_bias, k_bias, v_bias; /* Qwen2; data NULL when absent */
    struct weight gate, up, down;         /* [ff][d] [ff][d] [d][ff] */
};

struct model {
    struct gguf file; /* owned */
    struct str name;  /* general.name */
    uint32_t layers, d, ff, heads, kv_heads, head_dim, vocab, context;
    float rope_base, norm_eps;
    enum model_rope rope;
    struct weight
        rope_factors; /* [1][head_dim/2] divisors of the frequencies (Llama 3); data NULL */
    struct weight embed, out_norm, head; /* head == embed when tied */
    struct model_layer *layer;           /* [layers]; arena of file */
    struct tokenizer *tokenizer;         /* owned */
    struct str chat_template;            /* empty when the file has none */
    int32_t bos, eos;                    /* -1: none */
    bool add_bos;                        /* the file asks for bos before every prompt */
    uint64_t digest;         /* XXH3 of header and tensor directory: in cache root hashes */
    uint64_t weight_bytes;   /* read per decoded token */
    uint64_t flop_per_token; /* 2 * multiply-adds of all matrices */
};

/* Owned by the caller; NULL with a story naming what is missing or misshapen. */
struct model *model_open(const char *path, struct err *e);
void model_close(struct model *m); /* NULL is fine */
/* One row of a weight into float32 [columns] (the embedding of a token; the oracle's matrices). */
void model_row(const struct weight *w, uint32_t row, float *out);
/* cos and sin of every position and frequency: out [context][head_dim/2][2], computed in double. */
void model_rope_table(const struct model *m, float *out);

#endif
