/* ctl.h - inside tollctl: one command's arguments, its call, how its answer is shown. */
#ifndef GATEWAY_ADMIN_CTL_H
#define GATEWAY_ADMIN_CTL_H

#include "base/buf.h"
#include "base/json.h"

enum ctl_exit { CTL_DONE = 0, CTL_REFUSED = 1, CTL_USAGE = 2, CTL_UNREACHABLE = 3 };

#define CTL_ARGS_MAX 64

struct ctl {
    int argc; /* words after the options that are known everywhere */
    char **argv;
    bool json; /* --json anywhere */
    struct arena arena;
};

/* Value of --name, or NULL. Marks it as seen; ctl_no_more tells what nobody asked for. */
const char *ctl_option(struct ctl *c, const char *name);
const char *ctl_word(struct ctl *c, int index);      /* positional, or NULL */
MUST_USE bool ctl_no_more(struct ctl *c, int words); /* prints what is unknown */

/* One call to the admin API. body NULL: GET. Prints the failure; returns the exit code. */
int ctl_call(struct ctl *c, const char *method, const char *path, const struct buf *body,
             struct json **answer);
/* Text of others for a terminal: control characters and those that reorder text come out as \u00xx.
 */
void ctl_plain(struct buf *out, struct str text);
/* ctl_table.c: an object or a {"data":[...]} list for people. */
void ctl_show(const struct json *answer, const char *const *columns);
/* ctl_journal.c: offline. */
int ctl_journal(struct ctl *c);
int ctl_migrate(struct ctl *c);

#endif
