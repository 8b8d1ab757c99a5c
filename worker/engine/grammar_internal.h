/* grammar_internal.h - the automaton as it runs, and the vocabulary's tries.
 *
 * Private to worker/engine/grammar*.c.
 *
 * A node reads bytes along its edges; ranges of one node never overlap, so one stack moves in one
 * way, but for an edge into a fork, which stands for several nodes. An edge may push: the value
 * that begins with this byte runs in a frame of its own with a counter of its own, and goes back to
 * `ret`. A final node may also end its value: the frame is popped and the same byte is tried there.
 * Ranges of a final node and of what may follow it never overlap either (JSON sees to that).
 *
 * Entering a node: op INC adds one to the counter; then one guard must fit, if there are any; then
 * op SET. Guards look ahead: a node is entered only if its value can be ended from there, so that
 * no answer runs into a wall. */
#ifndef WORKER_ENGINE_GRAMMAR_INTERNAL_H
#define WORKER_ENGINE_GRAMMAR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "worker/engine/grammar.h"

#define GRAMMAR_NO_FRAME UINT16_MAX
#define GRAMMAR_INF UINT32_MAX
/* Frames of a value at the depth bound: its containers and one scalar. */
#define GRAMMAR_LEVELS_MAX (GRAMMAR_DEPTH_MAX + 1)

enum grammar_op { GRAMMAR_OP_NONE = 0, GRAMMAR_OP_INC, GRAMMAR_OP_SET };

struct grammar_edge {
    uint32_t target, ret; /* ret 0: no push */
    uint8_t lo, hi;
    bool space; /* stays at the node; only the white space counter moves */
};

/* Fits when min <= counter <= max and `need` more frames fit under the bound. */
struct grammar_guard {
    uint32_t min, max;
    uint32_t need;
};

struct grammar_node {
    uint32_t edges;  /* first in g->edges; of a fork: the targets of these edges */
    uint32_t guards; /* first in g->guards */
    uint32_t n_guards;
    uint32_t set;       /* OP_SET */
    uint32_t final_min; /* final only with a counter of at least this */
    uint32_t span;      /* what the counter means here: index into g->spans */
    uint32_t wide_to;   /* node after any wide character but spaces; 0: that depends on which */
    uint64_t loop[2];   /* ASCII characters, a bit each, that lead back here as they are */
    uint16_t n_edges;
    uint8_t op;
    bool guarded; /* without guards: never entered */
    bool fork, final;
    bool has_token; /* g->tokens has an edge from here */
    bool dear;      /* in a string that counts for GRAMMAR_DEAR_MAX */
};

/* Thresholds of one counter; counters that no token can tell apart share a mask. Span 0: exact. */
struct grammar_span {
    uint32_t low_least, low_most; /* least and greatest lower bound above 0; 0: none */
    uint32_t high_least;          /* least upper bound; INF: none */
};

struct grammar_token_edge {
    uint32_t node;
    int32_t token;
    uint32_t target;
};

struct grammar_cache;

struct grammar {
    atomic_uint refs;
    const struct grammar_vocab *vocab; /* borrowed */
    struct grammar_node *nodes;        /* owned; [n_nodes]; 0 is none, 1 the start */
    struct grammar_edge *edges;        /* owned */
    struct grammar_guard *guards;      /* owned */
    struct grammar_span *spans;        /* owned */
    struct grammar_token_edge *tokens; /* owned; few */
    uint32_t n_nodes, n_edges, n_guards, n_spans, n_tokens;
    uint32_t need_max;           /* greatest finite need of a guard */
    uint32_t n_alphabet;         /* stretches of bytes that no edge tells apart */
    uint8_t alphabet[256];       /* byte to stretch, ascending */
    struct grammar_cache *cache; /* owned */
    uint32_t work;               /* of GRAMMAR_WORK_MAX, that compiling took */
};

#define GRAMMAR_START 1u

/* ---- stacks moving (grammar_automaton.c) ---- */

/* Frames in use while stacks move: those of a state first, then what was pushed since. */
struct grammar_pool {
    struct grammar_frame *frames;
    uint32_t n, cap;
};

/* Moves every stack of in[0..n) over one byte into out[0..GRAMMAR_STACKS_MAX); returns how many.
 * The pool must have room for n more frames. in and out do not overlap. */
uint32_t grammar_step(const struct grammar *g, struct grammar_pool *pool,
                      const struct grammar_stack *in, uint32_t n, uint8_t byte,
                      struct grammar_stack *out);
/* What entering t->node does; false: it may not be entered. */
bool grammar_enter(const struct grammar *g, struct grammar_stack *t);
/* The edge over a byte; NULL: none. */
const struct grammar_edge *grammar_edge_find(const struct grammar *g, uint32_t node, uint8_t byte);
/* Moves over a token that is named as such by the grammar. */
uint32_t grammar_step_token(const struct grammar *g, struct grammar_pool *pool,
                            const struct grammar_stack *in, uint32_t n, int32_t token,
                            struct grammar_stack *out);
/* Leaves a final node: pops one frame. false: it may not end here, or nothing is left to pop. */
bool grammar_pop(const struct grammar *g, const struct grammar_pool *pool, struct grammar_stack *t);
bool grammar_stack_equal(const struct grammar_stack *a, const struct grammar_stack *b);

/* ---- vocabulary (grammar_vocab.c) ---- */

/* White space past ASCII: what `.` and `\s` tell apart from other wide characters. */
#define GRAMMAR_WIDE_SPACES 8
static const uint16_t grammar_wide_spaces[GRAMMAR_WIDE_SPACES][2] = {
    {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
    {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};

/* WHOLE: tokens of whole characters without control characters, ", \ or wide spaces. They stand in
 * a trie over their bytes and in one over their classes, where all words of five small letters are
 * one place. REST: all others, over their bytes. */
enum grammar_trie_kind {
    GRAMMAR_TRIE_CLASSES = 0,
    GRAMMAR_TRIE_WHOLE,
    GRAMMAR_TRIE_REST,
    GRAMMAR_TRIES
};
#define GRAMMAR_WHOLE_CHARS_MAX 32 /* a longer token is in REST */

/* The class of a character of WHOLE, named by one of its bytes: small letters, capitals, digits,
 * all that is past ASCII; every other one is alone. */
#define GRAMMAR_CLASS_WIDE 0x80u
#define GRAMMAR_CLASSES 0x81u
static inline uint8_t grammar_class(uint8_t byte)
{
    if (byte >= 0x80) {
        return GRAMMAR_CLASS_WIDE;
    }
    if ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z') {
        return (byte & 0x20) | 'A';
    }
    return byte >= '0' && byte <= '9' ? '0' : byte;
}

/* The bytes of a class, from its name to this one. */
static inline uint8_t grammar_class_last(uint8_t class)
{
    return class == 'a' || class == 'A' ? class + 25 : class == '0' ? '9' : class;
}

#define GRAMMAR_BELOW_WIDE 1u /* whole characters past ASCII */
#define GRAMMAR_BELOW_TORN 2u /* bytes of characters that may be cut */

/* One node of a trie in preorder: its children follow, `end` is the first node that is not below.
 * Its own tokens are order[first .. first of the next node), those at or below it
 * order[first .. first of `end`). Small, for a walk reads many. */
struct grammar_trie_node {
    uint32_t end, first;
    uint8_t byte;  /* or class */
    uint8_t depth; /* bytes on the path less one: 0 at the top */
    uint8_t chars; /* no token has more characters below this node */
    uint8_t below; /* GRAMMAR_BELOW_* */
};

struct grammar_trie {
    struct grammar_trie_node *nodes; /* owned; [n + 1], the last one ends all */
    uint64_t (*below)[2];            /* owned; [n] the ASCII characters below a node, a bit each */
    int32_t *order;                  /* owned; token ids */
    uint32_t n;
};

struct grammar_vocab {
    uint32_t count, words;
    uint32_t *begin; /* owned; [count + 1] offsets into bytes */
    char *bytes;     /* owned */
    int32_t eos[GRAMMAR_EOS_MAX];
    uint32_t n_eos;
    uint32_t token_bytes_max;          /* longest token */
    uint32_t closers_max, openers_max; /* most of } and ], of { and [ in one token */
    struct grammar_trie tries[GRAMMAR_TRIES];
    uint32_t *whole; /* owned; [words] the tokens of WHOLE */
    /* In the order of WHOLE: the characters of a token, as in `below`; bit 0 for wide ones. */
    uint64_t (*whole_chars)[2];  /* owned */
    uint32_t whole_top[256 + 1]; /* by first byte: its node in WHOLE, or the next one */
};

static inline struct str grammar_vocab_bytes(const struct grammar_vocab *v, int32_t id)
{
    return str_of(v->bytes + v->begin[id], v->begin[id + 1] - v->begin[id]);
}

bool grammar_vocab_is_eos(const struct grammar_vocab *v, int32_t id);

/* ---- the walk (grammar_walk.c) ---- */

/* Memory of walks that the next one uses again. */
struct grammar_scratch;
struct grammar_scratch *grammar_scratch_new(void);    /* NULL: no memory */
void grammar_scratch_free(struct grammar_scratch *x); /* NULL is fine */
size_t grammar_scratch_bytes(const struct grammar_scratch *x);
/* Sets the bit of every token of the tries that may come. bits: [words], zero before. false: no
 * memory, and the bits mean nothing. */
MUST_USE bool grammar_walk(const struct grammar *g, struct grammar_scratch *x,
                           const struct grammar_state *s, uint32_t *bits);

/* ---- mask cache (grammar_mask.c) ---- */

struct grammar_cache *grammar_cache_new(void); /* NULL: no memory */
size_t grammar_cache_bytes(const struct grammar_cache *c);
void grammar_cache_free(struct grammar_cache *c);

#endif
