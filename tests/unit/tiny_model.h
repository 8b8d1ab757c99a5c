/* tiny_model.h - a random Llama-family model of a few hundred kilobytes, written as a GGUF file.
 *
 * d 64, 2 layers, 4 heads on 2 KV heads of 16, ff 128; byte-level BPE of 3 control tokens
 * (<|endoftext|> 0, <|im_start|> 1, <|im_end|> 2), 256 byte tokens and 30 merges; bos 1, eos 2;
 * the SmolLM2 chat template. The same seed and options give the same bytes. */
#ifndef TESTS_UNIT_TINY_MODEL_H
#define TESTS_UNIT_TINY_MODEL_H

#include "base/buf.h"

#define TINY_MODEL_BYTES_MAX (4u << 20)

struct tiny_options {
    uint64_t seed;
    uint32_t
        matrix_type; /* enum quant_type of the layer matrices: Q4_0 Q4_1 Q5_0 Q8_0 F16 BF16 F32 */
    uint32_t embed_type; /* Q8_0 or F32, as above */
    bool qwen2;          /* architecture qwen2: biases on q, k, v; rotary halves */
    bool untied;         /* has an output.weight */
    bool markers;        /* more control tokens: [TOOL_CALLS] 3, <tool_call> 4, </tool_call> 5,
                            <|eot_id|> 6, <|eom_id|> 7; bytes and merges move up by five */
    bool long_tokens;    /* five more merges: runs of 'a' up to 32 */
    uint32_t context;    /* tokens; 0: 2048 */
};

/* Appends the file's bytes; b must have room for TINY_MODEL_BYTES_MAX. */
void tiny_model_build(struct buf *b, const struct tiny_options *o);
/* Q4_1 matrices, Q8_0 embedding, llama. false: the file could not be written. */
MUST_USE bool tiny_model_write(const char *path, uint64_t seed);
MUST_USE bool tiny_model_write_as(const char *path, const struct tiny_options *o);

#endif
