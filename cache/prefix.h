/* prefix.h - what a prompt's prefix is: canonical text, cut into chunks, hashed into a chain.
 *
 * One definition for gateway and worker (both walk the same parsed request through prefix_chat or
 * prefix_completion). Pure: no tokenizer, no template. See cache/README.md; the format:
 *   tools (their JSON, keys sorted) as 0xFF "tools" 0xFE json, first, when there are any
 *   each message: 0xFF role 0xFE text; parts in order; a non-text part by the SHA-256 of
 *     its JSON with sorted keys (32 bytes);
 *   each tool call: 0xFF "call" 0xFE name 0xFE arguments; a tool_call_id is not part of it
 *   completions: 0xFF 0xFD prompt
 * role "developer" is canonically "system". 0xFD..0xFF cannot occur in UTF-8, and there are no
 * length prefixes, so text that grows at its end keeps its prefix.
 * Chunks: 256 bytes; after each further 512 chunks the size doubles, by position alone. The partial
 * last chunk is not entered. local = XXH3-64(chunk, seed K0.lo); seq_0 = XXH3-64(K0.hi || local_0),
 * seq_i = XXH3-64(seq_{i-1} || local_i), both little-endian u64, 16 bytes, seed 0.
 * head = the same link over the text up to the first message that is not system, its unfinished
 * chunk as it is; root = XXH3-64(head || XXH3-64(first 1 KiB of the first user text, seed K0.lo)).
 */
#ifndef CACHE_PREFIX_H
#define CACHE_PREFIX_H

#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"

#define PREFIX_CHUNK_BYTES 256
#define PREFIX_CHUNKS_PER_SIZE 512
#define PREFIX_CHUNKS_MAX 4608 /* a 32 MiB body needs about 4,100 */
#define PREFIX_ROOT_BYTES 1024 /* of the first user message, in `root` */

struct prefix_key { /* K0; secret: salts KV and seeds the chain, never logged */
    uint64_t lo, hi;
};

/* First 16 bytes of HMAC-SHA-256(secret, salt || model || adapter || "256"), each part preceded by
 * its u32 little-endian length. Computed once per (scope, model) and kept. */
struct prefix_key prefix_key_derive(struct str secret, struct str scope_salt, struct str model,
                                    struct str adapter);
void prefix_key_text(struct prefix_key k,
                     char out[33]); /* 32 hex, lo then hi, little-endian bytes */
MUST_USE bool prefix_key_parse(struct str hex, struct prefix_key *out);

/* A piece of content, or of a tool call, inside the canonical text, for whoever must map chunk ends
 * to tokens. */
struct prefix_span {
    uint64_t start;   /* offset of text in the canonical text */
    struct str text;  /* borrowed from the request */
    uint32_t message; /* index in messages; 0 for completions */
};

struct prefix {
    uint64_t *seq; /* [count] chain hashes; arena */
    uint64_t *end; /* [count] end offset of each chunk in the canonical text; arena */
    uint32_t count;
    uint64_t bytes;      /* length of the canonical text */
    uint64_t text_bytes; /* bytes that the admission bound counts: all text, tools, tool calls, the
                          * JSON of non-text parts, roles that are no usual ones */
    uint32_t messages;   /* 0 for completions */
    uint64_t head;       /* under K0, of tools + system text */
    uint64_t root;       /* head plus the first 1 KiB of the first user message or of the prompt */
    struct prefix_span *span; /* [spans]; arena */
    uint32_t spans;
};

/* root: a checked chat request ({messages:[...], tools?}). false: arena exhausted, nothing usable.
 */
MUST_USE bool prefix_chat(struct arena *a, struct prefix_key k, const struct json *root,
                          struct prefix *out);
MUST_USE bool prefix_completion(struct arena *a, struct prefix_key k, struct str prompt,
                                struct prefix *out);
/* An affinity key of the client (prompt_cache_key, session header) in place of the computed root.
 */
uint64_t prefix_root_of_key(struct prefix_key k, uint64_t head, struct str client_key);

#endif
