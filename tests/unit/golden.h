/* golden.h - reads a JSON-lines file of tests/golden, line by line. For tests only. */
#ifndef TESTS_UNIT_GOLDEN_H
#define TESTS_UNIT_GOLDEN_H

#include <stdio.h>
#include <stdlib.h>
#include "base/json.h"

struct golden {
    char *text; /* owned */
    struct str rest;
    struct arena arena; /* of the current line */
    unsigned line;
};

static inline void golden_open(struct golden *g, const char *name)
{
    char path[512];
    FILE *f;
    long n;

    snprintf(path, sizeof(path), "%s/golden/%s", TESTS_DIR, name);
    f = fopen(path, "rb");
    CHECK(f != NULL && fseek(f, 0, SEEK_END) == 0);
    n = ftell(f);
    rewind(f);
    g->text = malloc((size_t)n + 1);
    CHECK(g->text != NULL && fread(g->text, 1, (size_t)n, f) == (size_t)n);
    fclose(f);
    g->rest = str_of(g->text, (size_t)n);
    g->line = 0;
    arena_init(&g->arena, 16 << 20);
}

static inline struct json *golden_next(struct golden *g) /* NULL: no more lines */
{
    struct str line;
    struct err e = {0};
    struct json *v;

    if (g->rest.n == 0) {
        return NULL;
    }
    if (!str_cut(g->rest, '\n', &line, &g->rest)) {
        g->rest = str_of("", 0);
    }
    g->line++;
    arena_fini(&g->arena);
    arena_init(&g->arena, 16 << 20);
    v = json_parse(&g->arena, line, &json_limits_api, &e);
    if (v == NULL) {
        fprintf(stderr, "golden line %u: %s\n", g->line, e.text);
    }
    CHECK(v != NULL);
    return v;
}

static inline struct str golden_str(const struct json *row, const char *key)
{
    struct json *v = json_get(row, str_c(key));

    CHECK(v != NULL && v->type == JSON_STRING);
    return v->text;
}

static inline void golden_close(struct golden *g)
{
    arena_fini(&g->arena);
    free(g->text);
}

#endif
