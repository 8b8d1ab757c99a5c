/* tokenizer.h - byte-level BPE: text to token ids and back. Linear in the text; no backtracking.
 *
 * Built from the arrays of a GGUF file (borrowed strings: the file stays mapped). The
 * pre-tokenizer is hand-written per family (source: worker reference; golden ids in tests/golden).
 * Invalid UTF-8 in the input is read as U+FFFD. Immutable after _new: any thread may call. */
#ifndef CACHE_TOKENIZER_H
#define CACHE_TOKENIZER_H

#include "base/buf.h"
#include "base/err.h"

enum tokenizer_pre {
    TOKENIZER_SMOLLM = 1, /* StarCoder's too */
    TOKENIZER_GPT2,
    TOKENIZER_LLAMA3,
    TOKENIZER_QWEN2,
    TOKENIZER_DEEPSEEK_LLM,
    TOKENIZER_DEEPSEEK_CODER,
};

enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
};

struct tokenizer_source {
    const struct str *tokens; /* [count] GPT-2 byte-to-unicode spelling for normal tokens */
    const uint32_t *types;    /* [count] enum token_type */
    uint32_t count;
    const struct str *merges; /* [merge_count] "left right" */
    uint32_t merge_count;
    enum tokenizer_pre pre;
    int32_t bos, eos; /* -1: none */
};

struct tokenizer;

/* Names as in tokenizer.ggml.pre; false: not a known one. */
MUST_USE bool tokenizer_pre_named(struct str name, enum tokenizer_pre *out);
/* The same with a story that names it and the known ones: ERR_UNSUPPORTED. */
MUST_USE bool tokenizer_pre_of(struct str name, enum tokenizer_pre *out, struct err *e);
/* Whether bos comes before a text where the file does not say (tokenizer.ggml.add_bos_token). */
bool tokenizer_pre_adds_bos(enum tokenizer_pre pre);
struct tokenizer *tokenizer_new(const struct tokenizer_source *src,
                                struct err *e); /* NULL: story */
void tokenizer_free(struct tokenizer *t);

enum tokenizer_special { TOKENIZER_PLAIN = 1, TOKENIZER_PARSE_SPECIAL };

/* A token and the byte of the text just after it. */
struct token {
    int32_t id;
    uint32_t end;  /* byte offset in the encoded text */
    bool boundary; /* a pre-token or a special token ends here: later tokens depend on nothing
                      before */
};

/* Fills out[0..cap); returns the count, or -1 when cap is too small or memory is short. out is also
 * the work space (a token a byte before merging): cap >= text.n always does for valid UTF-8,
 * 3 * text.n for anything (a bad byte is read as the three of U+FFFD). text is under 4 GiB. */
int64_t tokenizer_encode(const struct tokenizer *t, struct str text, enum tokenizer_special sp,
                         struct token *out, uint32_t cap);
/* Bytes of one token (control tokens: empty unless `special`); borrowed, valid while t lives. */
struct str tokenizer_bytes(const struct tokenizer *t, int32_t id, bool special);
int32_t tokenizer_find(const struct tokenizer *t,
                       struct str exact); /* special or normal spelling; -1 */
uint32_t tokenizer_count(const struct tokenizer *t);
bool tokenizer_is_control(const struct tokenizer *t, int32_t id);
/* Order-independent digest of vocabulary and merges (drafts must match). */
uint64_t tokenizer_digest(const struct tokenizer *t);

#endif
