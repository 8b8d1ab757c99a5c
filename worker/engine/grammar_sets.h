/* grammar_sets.h - sets of stacks, numbered, and the steps between them, as a walk meets them.
 *
 * Private to grammar_sets.c and grammar_walk.c. Equal sets are one, and where a byte or a class of
 * characters leads from a set is found once: so a step costs a look into a row, however many stacks
 * there are. */
#ifndef WORKER_ENGINE_GRAMMAR_SETS_H
#define WORKER_ENGINE_GRAMMAR_SETS_H

#include "worker/engine/grammar_internal.h"

#define GRAMMAR_SETS_MAX 8192u     /* then only those of the path are kept */
#define GRAMMAR_SET_BUCKETS 16384u /* power of two, over GRAMMAR_SETS_MAX */
#define GRAMMAR_PATH_MAX (GRAMMAR_TOKEN_BYTES_MAX + 1)

/* In rows, beside sets: not known yet; no stack is left; it depends on the character. */
enum { SET_UNKNOWN = 0, SET_DEAD, SET_TORN, SET_FIRST };

struct set {
    uint64_t loop[2]; /* characters that lead some stack back to where it is */
    uint32_t hash;
    uint32_t stacks; /* first in x->stacks */
    uint16_t n;
    uint16_t classes; /* its row in x->classes; 0: none yet */
    uint8_t below;    /* GRAMMAR_BELOW_WIDE: as loop */
    bool loops;       /* any of these */
    enum { CLOSED_UNKNOWN = 0, CLOSED_NO, CLOSED_YES } closed; /* see set_closed */
};

struct class_row {
    uint16_t to[GRAMMAR_CLASSES];
};

struct grammar_scratch {
    struct set *sets; /* owned; [cap_sets] */
    struct grammar_stack *stacks;
    uint16_t *rows; /* [n_alphabet] for each set: where its stretches of bytes lead */
    struct class_row *classes;
    struct grammar_frame *frames;
    uint32_t n_sets, n_stacks, n_classes, n_frames;
    uint32_t cap_sets, cap_stacks, cap_rows, cap_classes, cap_frames;
    uint16_t buckets[GRAMMAR_SET_BUCKETS];
};

struct walk {
    const struct grammar *g;
    struct grammar_scratch *x;
    uint32_t *bits;
    uint32_t state_frames; /* the first ones, of the state itself */
    bool failed;           /* there was no memory: from here on new steps lead nowhere */
    uint32_t depth;        /* path[0 .. depth] lives */
    uint16_t path[GRAMMAR_PATH_MAX];
    uint32_t row[GRAMMAR_PATH_MAX]; /* the path's first cell in x->rows */
};

static inline void path_set(struct walk *w, uint32_t d, uint16_t set)
{
    w->path[d] = set;
    w->row[d] = set * w->g->n_alphabet;
}

/* path[0] is the state's set. The scratch is the walk's until the end. false: no memory, the walk
 * is only to be ended. */
MUST_USE bool grammar_walk_begin(struct walk *w, const struct grammar *g, struct grammar_scratch *x,
                                 const struct grammar_state *s, uint32_t *bits);
void grammar_walk_end(struct walk *w);

/* The set after the step at depth d of the path, when it is not in the row. Sets that are not on
 * the path[0 .. d] may be gone afterwards. SET_DEAD when there is no memory: see failed. */
uint16_t grammar_walk_byte_new(struct walk *w, uint32_t d, uint8_t byte);
/* The same by a class of characters; SET_TORN: it depends on the character. */
uint16_t grammar_walk_class(struct walk *w, uint32_t d, uint8_t class);

static inline uint16_t walk_byte(struct walk *w, uint32_t d, uint8_t byte)
{
    uint16_t to = w->x->rows[w->row[d] + w->g->alphabet[byte]];

    return to != SET_UNKNOWN ? to : grammar_walk_byte_new(w, d, byte);
}

#endif
