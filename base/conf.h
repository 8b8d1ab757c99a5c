/* conf.h - configuration files: a strict subset of YAML, through libyaml's events (the one door).
 *
 * Maps, lists, scalars, comments. Refused with line and column: anchors, aliases, tags, duplicate
 * keys, several documents, depth past 8, files past 1 MiB. Options are one table; a key that is
 * not in the table is an error that names the nearest known one. Units are part of the value:
 *   CONF_BYTES    "64KiB" "32MiB" "512B" "1GiB"      CONF_DURATION "250ms" "10s" "5m" "2h" "0"
 * Sizes: B KiB MiB GiB TiB. Durations: us ms s m h d. A number without its unit is refused (0 alone
 * is fine). A section with nothing in it is fine (all its lines are comments); an option with no
 * value is refused. */
#ifndef BASE_CONF_H
#define BASE_CONF_H

#include "base/arena.h"
#include "base/err.h"

enum conf_type {
    CONF_STRING = 1, /* struct str, lives in the arena */
    CONF_BOOL,       /* bool: true | false */
    CONF_INT,        /* int64_t, min..max */
    CONF_BYTES,      /* int64_t bytes, min..max */
    CONF_DURATION,   /* int64_t microseconds, min..max */
    CONF_ENUM,       /* int, from `names` (NULL-terminated): the index */
    CONF_LIST,       /* struct conf_list of str scalars, arena */
    CONF_USD_PUSD,   /* int64_t pico-USD from a decimal USD amount */
};

struct conf_list {
    struct str *items;
    size_t count;
};

/* One option: dotted path ("http.header_bytes_max"), where it goes, its default as text. */
struct conf_option {
    const char *path;
    enum conf_type type;
    size_t offset;            /* into the caller's struct */
    const char *default_text; /* parsed by the same code; NULL: required; a list: "a, b", "" */
    int64_t min, max;         /* numbers only; 0,0: no bound but >= 0 */
    const char *const *names; /* CONF_ENUM */
};

/* Reads the file (or only the defaults when path is NULL) into *out. `source` names it in errors:
 * "configs/gateway.yaml:12:5: unknown option 'http.hedaer_bytes_max'; did you mean ...". */
MUST_USE bool conf_load(const char *path, const struct conf_option *options, size_t count,
                        void *out, struct arena *a, struct err *e);
MUST_USE bool conf_parse(struct str text, const char *source, const struct conf_option *options,
                         size_t count, void *out, struct arena *a, struct err *e);
/* A secret from a file: refuses a file others can read (mode & 077), empty ones, > 4 KiB, and what is no
 * single line of text. Strips one trailing newline. The result lives in the arena. */
MUST_USE bool conf_secret(const char *path, struct arena *a, struct str *out, struct err *e);

#endif
