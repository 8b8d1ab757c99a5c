/* grammar_build.h - putting an automaton together. Private to worker/engine/grammar*.c.
 *
 * Memory: pools that grow up to their bound and an arena, all dropped with the builder. Every
 * function that may fail returns false (or 0 for a node) with the story in b->err. */
#ifndef WORKER_ENGINE_GRAMMAR_BUILD_H
#define WORKER_ENGINE_GRAMMAR_BUILD_H

#include "base/arena.h"
#include "base/map.h"
#include "worker/engine/grammar_internal.h"

#define GRAMMAR_ARENA_BYTES (64u << 20)
#define GRAMMAR_EDGES_MAX (8 * GRAMMAR_STATES_MAX)
#define GRAMMAR_VALUES_MAX 16384 /* places of a schema that a value can stand at */
#define GRAMMAR_TOKEN_EDGES_MAX 256
#define GRAMMAR_NEED_NEVER 1000u /* more frames than there are */

/* Where a guard's `need` comes from: known once all values are. */
enum need_kind {
    NEED_NONE = 0,
    NEED_VALUE, /* one frame and what the value needs */
    NEED_SELF,  /* what a container needs: one frame, and those of all that it must hold */
};

struct build_edge {
    uint32_t target, ret, next; /* next: in b->edges; 0 ends */
    uint8_t lo, hi;
    bool space;
};

struct build_guard {
    uint32_t min, max, need_of, next; /* need_of: a value, or an alternative */
    enum need_kind need;
};

struct build_node {
    struct grammar_node n;
    uint32_t edges, guards; /* lists; newest first */
    uint32_t inlines;       /* list of values that may begin here */
    bool derive;            /* the guard is whatever its targets allow */
    uint8_t derived;        /* 0 not yet, 1 on its way, 2 done */
};

struct build_inline { /* the edges of `value` belong to the node, pushing, back to `ret` */
    uint32_t value, ret, next;
};

/* One way a value may look like: a scalar or a kind of container. */
struct build_alternative {
    uint32_t value;               /* whose */
    uint32_t must, next_of_value; /* list of values that it must hold; next alternative */
    bool container;
};

struct build_must {
    uint32_t value, next;
};

/* The schemas that bind one value at once, sorted by address; none: anything. */
struct conjunction {
    const struct json *schema[GRAMMAR_CONJUNCTS_MAX];
    uint32_t n;
    bool objects_only;
};

struct build_value {
    struct conjunction bound;
    uint32_t alternatives; /* list */
    uint32_t edges;        /* list: its first bytes, targets in the new frame */
    uint32_t need;         /* frames under its own; NEVER: cannot be */
    uint32_t chain;        /* next with the same hash */
};

#define GRAMMAR_VALUE_BUCKETS 1024u

struct char_range {
    uint32_t lo, hi, target; /* no surrogate inside */
};

struct ref_todo { /* a $ref that is not followed yet; in the arena */
    const struct json *ref;
    struct ref_todo *next;
};

struct builder {
    struct err *err;
    struct arena arena;
    const struct json *root;  /* of the schema being read: $ref and places */
    const char *root_place;   /* "#" or the place of a tool's parameters */
    uint32_t work;            /* of GRAMMAR_WORK_MAX */
    struct build_node *nodes; /* [GRAMMAR_STATES_MAX] at most; 0 unused */
    struct build_edge *edges;
    struct build_guard *guards;
    struct build_inline *inlines;
    struct build_alternative *alternatives;
    struct build_must *musts;
    struct build_value *values;
    struct grammar_span *spans;
    struct grammar_token_edge *tokens;
    uint32_t n_nodes, n_edges, n_guards, n_inlines, n_alternatives, n_musts, n_values, n_spans,
        n_tokens;
    uint32_t cap_nodes, cap_edges, cap_guards, cap_inlines, cap_alternatives, cap_musts, cap_values,
        cap_spans, cap_tokens;
    struct map strings; /* by what they allow: 1 + the node of such strings */
    struct map places;  /* schemas inside others by these and their names, where a $ref led */
    struct map refs;    /* what each $ref names, by its address */
    struct ref_todo *refs_todo;
    uint32_t *mids; /* hash of nodes in the middle of a character; open addressing */
    uint32_t cap_mids, n_mids;
    uint32_t number, integer; /* nodes made once; 0: not yet */
    struct full_memo {
        uint32_t target, span, node;
    } full[4]; /* by continuation bytes: the last node of any of these */
    struct wide_memo {
        uint32_t target, span, n;
        struct build_edge leads[56];
    } wide;                 /* lead bytes of the last node that all wide characters led to */
    struct char_range *cut; /* scratch of chars_add */
    uint32_t cap_cut;
    uint32_t value_buckets[GRAMMAR_VALUE_BUCKETS];
};

void builder_init(struct builder *b, struct err *e);
void builder_fini(struct builder *b);
/* Grows one pool: `have` elements are in use, one more is wanted. */
MUST_USE bool builder_room(struct builder *b, void *pool_p, uint32_t *cap, uint32_t have,
                           uint32_t max, size_t size, const char *what);

/* Takes from GRAMMAR_WORK_MAX; false: too complex. */
MUST_USE bool builder_spend(struct builder *b, uint64_t work);
uint32_t node_new(struct builder *b); /* 0: failed */
uint32_t node_final(struct builder *b);
MUST_USE bool edge_add(struct builder *b, uint32_t from, uint8_t lo, uint8_t hi, uint32_t target);
MUST_USE bool space_add(struct builder *b, uint32_t node); /* white space stays here */
MUST_USE bool inline_add(struct builder *b, uint32_t node, uint32_t value, uint32_t ret);
MUST_USE bool guard_add(struct builder *b, uint32_t node, uint32_t min, uint32_t max,
                        enum need_kind kind, uint32_t need_of);
/* A span with one pair of bounds; 0 and INF: none. Returns 0 on failure and for no bounds. */
uint32_t span_new(struct builder *b, uint32_t low, uint32_t high);
/* ASCII text from `from` to `to`; a node for each byte but the last. */
MUST_USE bool literal_add(struct builder *b, uint32_t from, struct str text, uint32_t to);
uint32_t value_new(struct builder *b); /* 0: failed */
MUST_USE bool token_add(struct builder *b, uint32_t node, int32_t token, uint32_t target);
/* A node without op whose guard follows from its targets, shared with an equal one. */
uint32_t mid_node(struct builder *b, const struct build_edge *edges, uint32_t n, uint32_t span);
/* What every value needs; then values[].need is known. */
MUST_USE bool needs_settle(struct builder *b);
/* Makes an automaton of it. NULL: story. */
struct grammar *builder_finish(struct builder *b, const struct grammar_vocab *v);

/* ---- characters (grammar_chars.c) ---- */

#define CODE_POINT_MAX 0x10ffffu

enum char_mode {
    CHARS_RAW = 1,  /* UTF-8 */
    CHARS_JSON,     /* inside a JSON string, each character in its shortest form */
    CHARS_JSON_FREE /* ... or as any escape: one target only */
};

/* Edges of `node` for sorted, disjoint ranges: characters lead to their targets through nodes in
 * the middle of a character. Also sets wide_to. */
MUST_USE bool chars_add(struct builder *b, uint32_t node, const struct char_range *r, uint32_t n,
                        enum char_mode mode);

/* ---- regular expressions (grammar_regex.c) and automata over characters (grammar_dfa.c) ---- */

#define DFA_DEAD UINT32_MAX

/* Deterministic, over classes of code points. State 0 starts. */
struct dfa {
    uint32_t n_states, n_classes, n_ranges;
    uint32_t *range_lo;    /* [n_ranges] ascending from 0: where a stretch of one class begins */
    uint32_t *range_class; /* [n_ranges]; n_classes: in no class (surrogates, nothing allowed) */
    uint32_t *next;        /* [n_states][n_classes]; DFA_DEAD */
    bool *accept;          /* [n_states] */
    uint32_t len_min, len_max; /* a bound of the length that goes with it ({n,m} of one class) */
};

/* full: the whole text matches; otherwise somewhere in it (ECMA-262's search). NULL: story. */
struct dfa *regex_compile(struct builder *b, struct str pattern, bool full);
struct dfa *dfa_intersect(struct builder *b, const struct dfa *x, const struct dfa *y);
/* Removes what leads nowhere. false: nothing is left (no story). */
MUST_USE bool dfa_trim(struct builder *b, struct dfa *d);
/* lo, hi [n_states]: least and greatest number of characters from a state to an end. true: every
 * number between them can be had, so that a counter and these two decide. */
bool dfa_lengths(struct builder *b, const struct dfa *d, uint32_t *lo, uint32_t *hi);
/* The same with the number of characters between min and max, by counting in the states. */
struct dfa *dfa_unroll(struct builder *b, const struct dfa *d, uint32_t min, uint32_t max);
bool dfa_matches(const struct dfa *d, struct str text); /* text is UTF-8 */
/* Nodes of d with lengths between min and max. In a string it ends at the quote, with a final node;
 * RAW: its accepting nodes are final. *start 0: nothing matches (true), or a failure (false).
 * In RAW mode min must be 0 unless d is a loop over one class. */
MUST_USE bool dfa_nodes(struct builder *b, struct dfa *d, uint32_t min, uint32_t max,
                        enum char_mode mode, uint32_t *start);
uint32_t dfa_class(const struct dfa *d, uint32_t code_point);

/* ---- numbers (grammar_number.c) ---- */

struct decimal { /* sign * 0.d1 d2 d3 ... * 10^point; no digit: zero */
    bool negative;
    char digits[2 * GRAMMAR_DIGITS_MAX + 1]; /* '0'..'9'; first and last are not 0 */
    int32_t n, point;
};

struct number_bounds {
    bool has_min, has_max, exclusive_min, exclusive_max;
    struct decimal min, max;
    bool integer;
};

MUST_USE bool decimal_parse(struct str text, struct decimal *out); /* false: too many digits */
int decimal_cmp(const struct decimal *a, const struct decimal *b);
bool decimal_is_integer(const struct decimal *a);
/* Texts of the numbers within bounds, without exponents. Its language may be empty. */
struct dfa *number_dfa(struct builder *b, const struct number_bounds *n);
/* Nodes of any number: first digits to the node's edges. 0: failed. */
uint32_t number_any(struct builder *b, bool integer);

/* ---- schemas (grammar_check.c, grammar_schema.c) ---- */

/* Refuses what is no schema, unknown keywords and contradictions within one schema. */
MUST_USE bool schema_check(struct builder *b);
/* What the $ref of a checked schema names. */
const struct json *schema_ref(const struct builder *b, const struct json *ref);
/* err_set with the place of `at` inside b->root before the text. */
bool schema_err(struct builder *b, enum err_code code, const struct json *at, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* Puts the place before a story that has none yet. */
bool schema_err_place(struct builder *b, const struct json *at);
/* A count of items or characters, checked before; absent: `absent`. */
uint32_t schema_count(const struct json *schema, const char *keyword, uint32_t absent);

/* Takes for a few looks at all keywords of all schemas of c. */
MUST_USE bool conjunction_spend(struct builder *b, const struct conjunction *c);
/* Adds a schema to those of c. */
MUST_USE bool conjunction_add(struct builder *b, struct conjunction *c, const struct json *schema);
/* The value bound by these schemas; 0: failed. Its nodes are made by values_build. */
uint32_t value_intern(struct builder *b, const struct conjunction *c);
/* Builds every value that is not built yet, and what these need. */
MUST_USE bool values_build(struct builder *b, uint32_t *built);

/* ---- values (grammar_object.c, grammar_string.c) ---- */

/* One alternative of `value`, c: schemas without $ref and anyOf. Adds its first bytes to the value.
 */
MUST_USE bool object_build(struct builder *b, uint32_t value, const struct conjunction *c);
MUST_USE bool array_build(struct builder *b, uint32_t value, const struct conjunction *c);
MUST_USE bool string_build(struct builder *b, uint32_t value, const struct conjunction *c);
MUST_USE bool number_build(struct builder *b, uint32_t value, const struct conjunction *c,
                           bool integer);
/* What the other keywords of one conjunction ask of strings and numbers; zeroed, it is made by the
 * first literal that needs it. */
struct string_test {
    bool made;
    uint32_t min, max;
    struct dfa *d; /* in the arena; NULL: no pattern */
};
struct number_test {
    bool made, bounded;
    struct number_bounds bounds;
};

/* Whether a string or number of an enum is within the other keywords of c. false: story or no. */
bool string_fits(struct builder *b, const struct conjunction *c, struct string_test *t,
                 struct str text);
bool number_fits(const struct conjunction *c, struct number_test *t, struct str text);
MUST_USE bool value_edge(struct builder *b, uint32_t value, uint8_t lo, uint8_t hi,
                         uint32_t target);
/* The edges of `node` become first bytes of the value. */
MUST_USE bool value_edges_of(struct builder *b, uint32_t value, uint32_t node);
/* 0: failed. */
uint32_t alternative_new(struct builder *b, uint32_t value, bool container);
MUST_USE bool must_add(struct builder *b, uint32_t alternative, uint32_t value);

#endif
