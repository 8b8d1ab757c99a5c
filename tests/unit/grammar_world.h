/* grammar_world.h - a small vocabulary and short ways to ask a grammar, for its unit tests. */
#ifndef TESTS_UNIT_GRAMMAR_WORLD_H
#define TESTS_UNIT_GRAMMAR_WORLD_H

#include "worker/engine/grammar.h"

#define WORLD_EOS 0
#define WORLD_CALL 1 /* control tokens */
#define WORLD_CALLED 2
#define WORLD_BYTES 3 /* ids 3 .. 258: single bytes */

/* Control tokens, every byte, pieces of JSON that cross its tokens. Free with grammar_vocab_free.
 */
struct grammar_vocab *world_vocab(void);
uint32_t world_count(void);
struct str world_bytes(int32_t id);
/* Dies with the story when the schema is refused. */
struct grammar *world_schema(const struct grammar_vocab *v, const char *schema);
struct grammar *world_regex(const struct grammar_vocab *v, const char *regex);
/* The schema's story; dies when it is taken. */
void world_refused(const struct grammar_vocab *v, const char *schema, struct err *e);
void world_regex_refused(const struct grammar_vocab *v, const char *regex, struct err *e);
/* Takes the text byte by byte; true: all of it, and it may end there. */
bool world_takes(const struct grammar *g, const char *text);
/* How many bytes of it are taken. */
size_t world_taken(const struct grammar *g, const char *text);
/* After each byte of the text: exactly the tokens of the mask are accepted. Dies when not. */
void world_check_masks(struct grammar *g, const char *text);

#endif
