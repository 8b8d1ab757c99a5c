/* conf_value.h - one option's text to its typed place, for base/conf.c only. Knows no YAML. */
#ifndef BASE_CONF_VALUE_H
#define BASE_CONF_VALUE_H

#include "base/conf.h"

/* 16 KiB of stack while reading; tenants and models live in Postgres, not in lists here. */
#define CONF_LIST_ITEMS_MAX 1024

/* Stores the value of a scalar option (any type but CONF_LIST) at out + option->offset. */
MUST_USE bool conf_value_set(const struct conf_option *o, struct str text, void *out,
                             struct arena *a, struct err *e);
/* Stores option->default_text, for a list too: "" is the empty list, else items with commas. */
MUST_USE bool conf_value_default(const struct conf_option *o, void *out, struct arena *a,
                                 struct err *e);
/* Stores a list; items is copied, the strings are not. */
MUST_USE bool conf_value_list(const struct conf_option *o, const struct str *items, size_t count,
                              void *out, struct arena *a, struct err *e);
/* The option or section whose path is nearest to `path` in edits; {NULL, 0}: there is none. */
struct str conf_nearest(struct str path, const struct conf_option *options, size_t count);

#endif
