/* options.h - the command line of tollgate-worker: one table, parsed and printed from it. */
#ifndef WORKER_OPTIONS_H
#define WORKER_OPTIONS_H

#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

#define OPTIONS_KEY_MAX 256

#define OPTIONS_NAMES_MAX 16
#define OPTIONS_DRAFT_TOKENS 4 /* when --speculate names no number */
#define OPTIONS_DRAFT_TOKENS_MAX 16
#define OPTIONS_DRAFTS_UNSET UINT64_MAX

struct options {
    const char *model, *listen, *backend, *key_file, *chat_format, *draft_model, *kv_dtype,
        *policy;                               /* NULL: not given */
    struct str served_name[OPTIONS_NAMES_MAX]; /* in the order given */
    uint32_t served_names;
    uint64_t threads, max_model_len, kv_bytes, max_num_seqs, max_waiting, step_tokens, drain_s;
    uint64_t queue_s, tpot_ms, aging_s; /* 0: no bound, no target, never */
    uint64_t draft_tokens;              /* a step and sequence; 0: off; OPTIONS_DRAFTS_UNSET */
    enum log_level log_level;
    bool help;
};

/* Defaults first. false with a story (exit 2). */
MUST_USE bool options_parse(struct options *o, int argc, char **argv, struct err *e);
void options_help(void); /* to standard output */
/* The one line of a file that only its owner may read; false with a story. */
MUST_USE bool options_read_key(const char *path, char out[OPTIONS_KEY_MAX], struct err *e);

#endif
