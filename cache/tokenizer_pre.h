/* tokenizer_pre.h - where a text falls apart before BPE: the pre-tokenizers, by hand.
 *
 * Private to cache/tokenizer*.c. Each is one published pattern (DeepSeek's: a list of them)
 * written as a scanner that looks at most one run ahead, so the time is linear whatever the text (a
 * backtracking regex is not). The patterns stand above their scanners. */
#ifndef CACHE_TOKENIZER_PRE_H
#define CACHE_TOKENIZER_PRE_H

#include "cache/tokenizer.h"

enum pre_class { PRE_END = 0, PRE_LETTER, PRE_NUMBER, PRE_SPACE, PRE_OTHER };

/* One character of the text. A byte that is no part of well-formed UTF-8 is one U+FFFD by itself.
 */
struct pre_char {
    uint32_t code;
    uint32_t bytes; /* 0 at the end of the text */
    enum pre_class class;
    bool bad; /* read as U+FFFD: its bytes are EF BF BD, not the ones in the text */
};

struct pre_char pre_peek(struct str text, size_t at);
/* End of the pre-token that starts at `at` < text.n; always > at. */
size_t pre_next(enum tokenizer_pre pre, struct str text, size_t at);
/* The two DeepSeek families of it. */
size_t pre_next_deepseek(enum tokenizer_pre pre, struct str text, size_t at);

#endif
