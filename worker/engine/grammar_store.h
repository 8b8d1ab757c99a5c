/* grammar_store.h - compiled grammars by what they were compiled from, so that equal requests share
 * one automaton and its masks.
 *
 * Keyed by kind, source and, for tools, names and format, as text that is compared in full: a
 * schema is written compactly in the order of the document, for that is the order of an answer's
 * members. The least recently used ones go first; whoever still holds one keeps it. What is refused
 * is not kept. Any thread may compile, two at once, too; of two that compile the same at the same
 * time one is kept. */
#ifndef WORKER_ENGINE_GRAMMAR_STORE_H
#define WORKER_ENGINE_GRAMMAR_STORE_H

#include "worker/engine/grammar.h"

#define GRAMMAR_STORE_COUNT_MAX 64
#define GRAMMAR_STORE_BYTES_MAX                                                                    \
    (64u << 20) /* with masks; looked at when one is compiled or taken */

struct grammar_store;
struct grammar_store *grammar_store_new(const struct grammar_vocab *v); /* borrowed */
void grammar_store_free(struct grammar_store *s);                       /* NULL is fine */

/* As grammar_compile; the grammar is retained for the caller, who releases it. */
MUST_USE bool grammar_store_compile(struct grammar_store *s, const struct grammar_source *src,
                                    struct grammar **out, struct err *e);

struct grammar_store_stats {
    uint64_t hits, misses, evictions;
    uint32_t count; /* <= GRAMMAR_STORE_COUNT_MAX */
    size_t bytes;
};
void grammar_store_stats(struct grammar_store *s, struct grammar_store_stats *out);

#endif
