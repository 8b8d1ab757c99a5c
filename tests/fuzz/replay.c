/* replay.c - drives a fuzz target without libFuzzer: its corpus, then seeded mutations of it.
 *
 *   fuzz_json CORPUS [RUNS [SEED]]   RUNS mutated inputs (default 0: only the corpus)
 *
 * So every test run feeds the parsers some thousand new inputs under the sanitizers; the search for
 * new ones, by coverage, is the preset `fuzz` (clang). What a run did is decided by its arguments:
 * before each input its number is noted, and a crash prints it with the seed. */
#include "base/base.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES_MAX 256u
#define FILE_BYTES_MAX (1u << 20)
#define EDITS_MAX 8u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct corpus {
    uint8_t *data[FILES_MAX];
    size_t size[FILES_MAX];
    size_t n;
};

static uint32_t next(uint64_t *x)
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*x >> 33);
}

static bool read_file(struct corpus *c, const char *folder, const char *name)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return false;
    }
    uint8_t *data = malloc(FILE_BYTES_MAX);
    CHECK(data != NULL);
    c->size[c->n] = fread(data, 1, FILE_BYTES_MAX, f);
    c->data[c->n++] = data;
    fclose(f);
    return true;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static bool read_corpus(struct corpus *c, const char *folder)
{
    struct dirent **list;
    int n = scandir(folder, &list, NULL, by_name);
    bool ok = n > 0;

    for (int i = 0; i < n; i++) {
        if (list[i]->d_name[0] != '.' && c->n < FILES_MAX) {
            ok = read_file(c, folder, list[i]->d_name) && ok;
        }
        free(list[i]);
    }
    if (n >= 0) {
        free(list);
    }
    return ok && c->n > 0;
}

/* One small change of data[size], which has room for FILE_BYTES_MAX; the new size. */
static size_t edit(const struct corpus *c, uint64_t *x, uint8_t *data, size_t size)
{
    static const uint8_t edges[] = {0, 1, 0x7F, 0x80, 0xFF, '"', '\\', '{', '}', '[', ']', '\n'};
    size_t at = size > 0 ? next(x) % size : 0, n = 1 + next(x) % 16, other = next(x) % c->n;

    switch (next(x) % 6) {
    case 0: /* a byte */
        if (size > 0) {
            data[at] = next(x) % 2 == 0 ? (uint8_t)next(x) : edges[next(x) % sizeof(edges)];
        }
        return size;
    case 1: /* cut off */
        return at;
    case 2: /* some bytes less */
        n = n < size - at ? n : size - at;
        memmove(data + at, data + at + n, size - at - n);
        return size - n;
    case 3: /* some bytes twice */
        n = n < size - at ? n : size - at;
        if (size + n > FILE_BYTES_MAX) {
            return size;
        }
        memmove(data + at + n, data + at, size - at);
        return size + n;
    case 4: /* a piece of another input over it */
        n = n < size - at ? n : size - at;
        n = n < c->size[other] ? n : c->size[other];
        memcpy(data + at, c->data[other] + next(x) % (c->size[other] - n + 1), n);
        return size;
    default: /* the tail of another input */
        n = c->size[other] < FILE_BYTES_MAX - at ? c->size[other] : FILE_BYTES_MAX - at;
        memcpy(data + at, c->data[other] + c->size[other] - n, n);
        return at + n;
    }
}

/* The input's number is all that a handler of SIGABRT may need; sanitizers abort, too. */
static char note[128];

static void tell(int signal_number)
{
    ssize_t ignored = write(STDERR_FILENO, note, strlen(note));

    (void)ignored;
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void one(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size > 0 ? size : 1); /* so that a read past its end is seen */

    CHECK(exact != NULL);
    memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static void mutate(const struct corpus *c, unsigned long runs, uint64_t seed)
{
    uint8_t *data = malloc(FILE_BYTES_MAX);

    CHECK(data != NULL);
    for (unsigned long run = 0; run < runs; run++) {
        uint64_t x = seed * 1000003u + run;
        size_t from = next(&x) % c->n, size = c->size[from];
        snprintf(note, sizeof(note), "\ninput %lu of seed %llu\n", run, (unsigned long long)seed);
        memcpy(data, c->data[from], size);
        for (uint32_t edits = 1 + next(&x) % EDITS_MAX; edits > 0; edits--) {
            size = edit(c, &x, data, size);
        }
        one(data, size);
    }
    free(data);
}

int main(int argc, char **argv)
{
    static struct corpus c;
    unsigned long runs = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;

    if (argc < 2 || !read_corpus(&c, argv[1])) {
        fprintf(stderr, "usage: %s CORPUS [RUNS [SEED]]\n", argv[0]);
        return 2;
    }
    signal(SIGABRT, tell);
    signal(SIGSEGV, tell);
    for (size_t i = 0; i < c.n; i++) {
        snprintf(note, sizeof(note), "\nfile %zu of the corpus, by name\n", i);
        one(c.data[i], c.size[i]);
    }
    mutate(&c, runs, seed);
    printf("%zu inputs of the corpus and %lu mutations\n", c.n, runs);
    for (size_t i = 0; i < c.n; i++) {
        free(c.data[i]);
    }
    return 0;
}
