/* prompt.h - from a parsed request to token ids, and from its prefix chunks to the tokens that end
 * them.
 *
 * Pure: the tokenizer is immutable, everything else is an argument. A chunk of the canonical text
 * (cache/prefix.h) is bound to the last token before the last pre-token boundary that lies before
 * the chunk's end; a chunk whose end no such token precedes is left out. What follows such a
 * boundary cannot change the tokens before it, so whoever shares the chunk shares the token.
 * Guarded by tests/unit/test_chat.c. */
#ifndef WORKER_PROMPT_H
#define WORKER_PROMPT_H

#include "cache/prefix.h"
#include "cache/tokenizer.h"
#include "worker/model/chat.h"

#define PROMPT_BYTES_MAX (64u << 20) /* rendered text; a body is at most half of it */

struct prompt {
    int32_t *ids;          /* owned; [n_ids] */
    uint64_t *chunks;      /* owned; [n_chunks] chain hashes, in order */
    uint32_t *chunk_token; /* owned; [n_chunks] index into ids, never decreasing */
    uint32_t n_ids, n_chunks;
    bool cut; /* more than ids_max: the text is longer than its ids, and there are no chunks */
};

void prompt_fini(struct prompt *p); /* all zero is fine */
/* root: a checked chat request. key NULL: no chunks. false with a story: ERR_LIMIT, ERR_NO_MEMORY.
 */
MUST_USE bool prompt_chat(struct prompt *p, const struct tokenizer *t, enum chat_family f,
                          struct arena *a, const struct json *root, const struct prefix_key *key,
                          struct err *e);
/* The same with tools in the prompt: a checked array, or NULL. Of a prompt of more than ids_max
 * tokens no more than that and a piece are computed: n_ids is more than ids_max, and p->cut says
 * that it may be less than all. */
MUST_USE bool prompt_chat_tools(struct prompt *p, const struct tokenizer *t, enum chat_family f,
                                struct arena *a, const struct json *root, const struct json *tools,
                                const struct prefix_key *key, uint32_t ids_max, struct err *e);
/* text is parsed for special tokens; bos -1: none is put before it. */
MUST_USE bool prompt_text(struct prompt *p, const struct tokenizer *t, struct arena *a,
                          struct str text, int32_t bos, const struct prefix_key *key,
                          uint32_t ids_max, struct err *e);

#endif
