/* options.h - the command line of tollgate-worker: one table, parsed and printed from it. */
#ifndef WORKER_OPTIONS_H
#define WORKER_OPTIONS_H

#include "base/err.h"
#include "base/log.h"

#define OPTIONS_KEY_MAX 256

struct options {
    const char *model, *listen, *backend, *key_file, *served_name,
        *chat_format; /* NULL: not given */
    uint64_t threads, max_model_len, kv_bytes, max_num_seqs, max_waiting, step_tokens, drain_s;
    enum log_level log_level;
    bool help;
};

/* Defaults first. false with a story (exit 2). */
MUST_USE bool options_parse(struct options *o, int argc, char **argv, struct err *e);
void options_help(void); /* to standard output */
/* The one line of a file that only its owner may read; false with a story. */
MUST_USE bool options_read_key(const char *path, char out[OPTIONS_KEY_MAX], struct err *e);

#endif
