/* grammar_regex.h - a regular expression as a tree, on its way to an automaton.
 *
 * Private to worker/engine/grammar_regex.c (text to tree) and grammar_nfa.c (tree to automaton). */
#ifndef WORKER_ENGINE_GRAMMAR_REGEX_H
#define WORKER_ENGINE_GRAMMAR_REGEX_H

#include "worker/engine/grammar_build.h"

#define SET_RANGES_MAX 512 /* of one class, before they are merged */

struct set_range {
    uint32_t lo, hi;
};

struct char_set { /* settled: ascending, apart, no surrogates */
    uint32_t n;
    struct set_range r[SET_RANGES_MAX + 2];
};

enum regex_kind {
    REGEX_SET = 1,
    REGEX_SEQUENCE,
    REGEX_ALTERNATION,
    REGEX_REPEAT,
    REGEX_START, /* ^ */
    REGEX_END    /* $ */
};

struct regex_node {
    enum regex_kind kind;
    uint32_t set;             /* SET: index into regex.sets */
    uint32_t min, max;        /* REPEAT; max INF: no end */
    struct regex_node *child; /* first child */
    struct regex_node *next;  /* sibling */
};

struct regex_set { /* in the arena */
    struct set_range *r;
    uint32_t n;
};

struct regex {
    struct regex_set *sets; /* owned; distinct */
    uint32_t n_sets, cap_sets;
};

/* NULL: story, without the pattern's place. */
struct regex_node *regex_parse(struct builder *b, struct regex *re, struct str pattern);
MUST_USE bool regex_set_intern(struct builder *b, struct regex *re, const struct char_set *s,
                               uint32_t *out);

/* Reads one character of valid UTF-8; returns its bytes, >= 1. */
static inline size_t utf8_read(struct str s, uint32_t *cp)
{
    uint8_t c = (uint8_t)s.p[0];
    size_t n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;

    *cp = n == 1 ? c : c & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        *cp = *cp << 6 | ((uint8_t)s.p[i] & 0x3f);
    }
    return n;
}

#endif
