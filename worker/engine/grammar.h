/* grammar.h - what an answer may be, enforced token by token (JSON, JSON schema, regex, tool
 * calls).
 *
 * A source is compiled into a byte-level pushdown automaton (worker/engine/README.md); a state is
 * where one answer stands in it; a mask says which tokens may come next. From every state that
 * grammar_accept_token leaves behind the end can be reached, byte by byte. Guarantees: what is
 * accepted up to EOS parses, is valid UTF-8 and validates; EOS only where it may end.
 *
 * Threads: a vocabulary and a grammar may be shared (the mask cache inside locks itself); a state
 * belongs to one sequence. Pure: no clock, no randomness, no files. */
#ifndef WORKER_ENGINE_GRAMMAR_H
#define WORKER_ENGINE_GRAMMAR_H

#include "base/err.h"
#include "base/json.h"

/* A bound of the input is refused at compile with ERR_LIMIT. */
#define GRAMMAR_SCHEMA_BYTES_MAX 65536 /* of the schema, written compactly; all tools together */
#define GRAMMAR_DEPTH_MAX 64           /* subschemas inside one another; containers in an answer */
#define GRAMMAR_STATES_MAX 65536       /* of the automaton: some 8 MB with their edges */
#define GRAMMAR_WORK_MAX 3000000       /* small steps of compiling: under 50 ms of one core */
#define GRAMMAR_REGEX_BYTES_MAX 8192   /* of one regular expression */
#define GRAMMAR_REPEAT_MAX 10000       /* n and m in {n,m} */
#define GRAMMAR_ALTERNATIVES_MAX 256   /* of one value, once anyOf is multiplied out */
#define GRAMMAR_CONJUNCTS_MAX 16 /* schemas that bind one value at once ($ref beside others) */
#define GRAMMAR_TOOLS_MAX 128
#define GRAMMAR_PIECES_MAX 16 /* of one literal of a tool format */
/* Stacks that live at once: alternatives which look alike so far. More that begin alike are refused
 * at compile; deeper ambiguity drops the later ones, so that less is allowed but never too much. */
#define GRAMMAR_STACKS_MAX 32
/* Of these, strings whose pattern lets most text through by ever new states: what a walk knows of
 * one place of the vocabulary helps little at the next. 6 of them take 3 ms a mask at 152k tokens,
 * 8 take 7. Bounded in the same way. */
#define GRAMMAR_DEAR_MAX 6
#define GRAMMAR_FRAMES_MAX 512      /* of all stacks of one state, shared where they are equal */
#define GRAMMAR_SPACE_MAX 40        /* white space bytes in a row between two tokens of JSON */
#define GRAMMAR_DIGITS_MAX 64       /* of a number, before and after the point: no overflow */
#define GRAMMAR_TOKEN_BYTES_MAX 256 /* a longer token is never allowed */
#define GRAMMAR_EOS_MAX 16
#define GRAMMAR_CACHE_BYTES_MAX                                                                    \
    (4u << 20) /* masks kept per grammar; the oldest unused goes first */

/* The vocabulary as a trie. Made once a model; immutable. */
struct grammar_vocab;
/* bytes_of: what the token adds to the text, borrowed during the call; empty: a control token,
 * allowed only where a tool format names it. eos: [n_eos], end tokens. NULL: story. */
struct grammar_vocab *grammar_vocab_new(uint32_t n, struct str (*bytes_of)(void *ctx, int32_t id),
                                        void *ctx, const int32_t *eos, uint32_t n_eos,
                                        struct err *e);
void grammar_vocab_free(struct grammar_vocab *v); /* after every grammar made with it */
uint32_t grammar_vocab_count(const struct grammar_vocab *v);
#define GRAMMAR_MASK_WORDS(vocab) (((size_t)(vocab) + 31) / 32)

enum grammar_kind {
    GRAMMAR_JSON_OBJECT = 1, /* any object */
    GRAMMAR_JSON_SCHEMA,
    GRAMMAR_REGEX, /* the whole answer matches */
    GRAMMAR_TOOLS, /* one or more tool calls and nothing else */
};

/* A stretch of a tool format: text, or one token (text is empty then). */
struct grammar_piece {
    struct str text;
    int32_t token; /* read only when text is empty */
};

struct grammar_literal {
    const struct grammar_piece *pieces; /* [n] */
    uint32_t n;
};

/* begin (before NAME between ARGUMENTS after) [separator (before NAME ...)]* end
 * Literals are exact; white space is free only inside ARGUMENTS, an object. NAME is written as
 * inside a JSON string, without quotes. Two formats:
 *   before <tool_call>\n{"name": "   between ", "arguments":   after }\n</tool_call>  separator \n
 *   begin [TOOL_CALLS][   before {"name": "   between ", "arguments":   after }  separator ,  end ]
 */
struct grammar_tool_format {
    struct grammar_literal begin, before, between, after, separator, end;
    uint32_t calls_min, calls_max; /* 1 <= min <= max */
};

struct grammar_tool {
    struct str name;
    const struct json *parameters; /* a schema; NULL: any object */
};

struct grammar_source {
    enum grammar_kind kind;
    const struct json *schema;        /* JSON_SCHEMA: an object or a boolean */
    struct str regex;                 /* REGEX */
    const struct grammar_tool *tools; /* TOOLS: [n_tools] */
    uint32_t n_tools;
    const struct grammar_tool_format *format;
};

/* Compiled; immutable but for its mask cache. */
struct grammar;
/* The source is borrowed during the call, the vocabulary until the last release. false: ERR_INPUT
 * (wrong, unsatisfiable), ERR_UNSUPPORTED (a keyword we do not enforce) or ERR_LIMIT, and the text
 * begins with the place as a JSON pointer: `#/properties/a/oneOf: ...`. */
MUST_USE bool grammar_compile(const struct grammar_source *src, const struct grammar_vocab *v,
                              struct grammar **out, struct err *e);
struct grammar *grammar_retain(struct grammar *g); /* any thread */
void grammar_release(struct grammar *g);           /* any thread; NULL is fine */
uint32_t grammar_states(const struct grammar *g);  /* of the automaton */
uint32_t grammar_work(const struct grammar *g);    /* steps of compiling; GRAMMAR_WORK_MAX */
size_t grammar_bytes(const struct grammar *g);     /* automaton and masks; any thread */

/* One stack's top; the rest is a chain of frames. Private to grammar. */
struct grammar_stack {
    uint32_t node, count; /* where, and the counter of the innermost value */
    uint16_t top;         /* innermost frame */
    uint8_t space;        /* white space bytes just read */
    uint8_t depth;        /* frames */
};
struct grammar_frame {
    uint32_t node, count; /* where to go on, and the counter to go on with */
    uint16_t parent;
};

/* Where one answer stands. Plain memory: no fini; copies cost what is used of it. */
struct grammar_state {
    uint32_t n_stacks, n_frames;
    bool ended; /* EOS was taken */
    struct grammar_stack stacks[GRAMMAR_STACKS_MAX];
    struct grammar_frame frames[GRAMMAR_FRAMES_MAX];
};

void grammar_state_init(const struct grammar *g, struct grammar_state *s);
void grammar_state_copy(struct grammar_state *to, const struct grammar_state *from);
/* false: not allowed, and s is as before. */
MUST_USE bool grammar_accept_token(const struct grammar *g, struct grammar_state *s, int32_t id);
/* As one token with these bytes; for text that was not tokenised here. */
MUST_USE bool grammar_accept_bytes(const struct grammar *g, struct grammar_state *s,
                                   struct str bytes);
bool grammar_accepting(const struct grammar *g, const struct grammar_state *s); /* EOS may come */
/* Only EOS may come, or it was taken. */
bool grammar_finished(const struct grammar *g, const struct grammar_state *s);
const int32_t *grammar_ends(const struct grammar *g, uint32_t *n); /* EOS tokens */
/* bits [GRAMMAR_MASK_WORDS(vocab)]: bit id % 32 of word id / 32 is set when the token may come
 * next. EOS bits only when accepting. Returns how many are set; 0: EOS was taken, the vocabulary
 * lacks a byte that has to come, or there is no memory for the walk over the vocabulary: then no
 * bit is set, nothing is kept of it, and the caller ends this answer alone (as one that has no way
 * on). */
uint32_t grammar_mask(struct grammar *g, const struct grammar_state *s, uint32_t *bits);

struct grammar_cache_stats {
    uint64_t hits, misses, evictions;
    uint32_t masks;
    size_t bytes; /* <= GRAMMAR_CACHE_BYTES_MAX */
};
void grammar_cache_stats(struct grammar *g, struct grammar_cache_stats *out);

#endif
