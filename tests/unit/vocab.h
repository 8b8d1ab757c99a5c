/* vocab.h - a tokenizer from a GGUF file, whatever else the file holds. For tests only. */
#ifndef TESTS_UNIT_VOCAB_H
#define TESTS_UNIT_VOCAB_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "cache/tokenizer.h"
#include "worker/model/gguf.h"

struct vocab {
    struct gguf file;
    struct tokenizer *t;
    uint32_t *types; /* owned */
};

#define VOCAB_DIST "llama-cpp-python-0.3.36" /* fetched by tests/run golden */

/* Where a vocabulary-only file of llama.cpp lies, or what lies beside it; false: it is not there.
 */
static inline bool vocab_path(char path[512], const char *vocab, const char *suffix)
{
    const char *cache = getenv("TOLLGATE_CACHE"), *home = getenv("HOME");

    if (cache != NULL) {
        snprintf(path, 512, "%s/" VOCAB_DIST "/ggml-vocab-%s.gguf%s", cache, vocab, suffix);
    } else {
        snprintf(path, 512, "%s/.cache/tollgate/" VOCAB_DIST "/ggml-vocab-%s.gguf%s",
                 home != NULL ? home : "", vocab, suffix);
    }
    return access(path, R_OK) == 0;
}

/* Ends the test program when the file does not hold together. */
static inline void vocab_open(struct vocab *v, const char *path)
{
    const struct gguf_key *tokens, *types, *merges, *pre;
    struct tokenizer_source src = {.bos = -1, .eos = -1};
    struct err e = {0};

    memset(v, 0, sizeof(*v));
    if (!gguf_open(&v->file, path, &e)) {
        fprintf(stderr, "%s: %s\n", path, e.text);
    }
    CHECK(e.code == ERR_NONE);
    tokens = gguf_find(&v->file, "tokenizer.ggml.tokens");
    types = gguf_find(&v->file, "tokenizer.ggml.token_type");
    merges = gguf_find(&v->file, "tokenizer.ggml.merges");
    pre = gguf_find(&v->file, "tokenizer.ggml.pre");
    CHECK(tokens != NULL && types != NULL && merges != NULL && pre != NULL);
    src.count = (uint32_t)tokens->v.array.count;
    src.tokens = tokens->v.array.strings;
    v->types = calloc(src.count, sizeof(uint32_t));
    CHECK(v->types != NULL && types->v.array.count == src.count);
    memcpy(v->types, types->v.array.data, src.count * sizeof(uint32_t));
    src.types = v->types;
    src.merge_count = (uint32_t)merges->v.array.count;
    src.merges = merges->v.array.strings;
    if (tokenizer_pre_of(pre->v.string, &src.pre, &e)) {
        v->t = tokenizer_new(&src, &e);
    }
    if (v->t == NULL) {
        fprintf(stderr, "%s: %s\n", path, e.text);
    }
    CHECK(v->t != NULL);
}

static inline void vocab_close(struct vocab *v)
{
    tokenizer_free(v->t);
    free(v->types);
    if (v->file.map != NULL) {
        gguf_close(&v->file);
    }
}

#endif
