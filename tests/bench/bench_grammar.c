/* bench_grammar.c - what constrained decoding costs: compiling, and one mask a step, caches cold.
 *
 *   bench_grammar [-c CASE] [MODEL.gguf]
 *
 * Decodes fixed documents and seeded random walks under each case of bench_grammar_cases.h, over
 * the vocabulary of a GGUF file (without one: that of Qwen2, 151,936 tokens, where tests/run golden
 * has fetched it), and over one of 152,064 tokens made up. Each document and each walk starts with
 * a grammar just compiled, so first visits count in every percentile. Times are of the thread, so
 * that others on the machine count little. No figure decides anything. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/arena.h"
#include "tests/bench/bench_grammar_cases.h"
#include "tests/unit/vocab.h"
#include "worker/engine/grammar.h"

#define BIG 152064u
#define STEPS_MAX 400000u
#define ROUNDS 5
#define WALKS 20
#define WALK_STEPS 60
#define GOAL_US 1000.0

struct words {
    struct str *bytes;
    uint32_t n;
    struct grammar_vocab *trie;
};

struct times {
    double us[STEPS_MAX];
    uint32_t n;
};

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static uint32_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

static struct str bytes_of(void *ctx, int32_t id)
{
    return ((struct words *)ctx)->bytes[id];
}

static void words_index(struct words *v)
{
    struct err e;
    int32_t eos = 0;

    err_clear(&e);
    v->trie = grammar_vocab_new(v->n, bytes_of, v, &eos, 1, &e);
    if (v->trie == NULL) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
}

static void words_real(struct words *v, const struct vocab *real)
{
    v->n = tokenizer_count(real->t);
    v->bytes = mem_new(v->n * sizeof(*v->bytes));
    for (uint32_t i = 0; i < v->n; i++) {
        v->bytes[i] = i == 0 ? STR("") : tokenizer_bytes(real->t, (int32_t)i, false);
    }
    words_index(v);
}

/* Pairs of earlier ones until there are BIG: a pattern that allows most characters but not all has
 * to look at far more of these than of real ones. `from` NULL: from bytes and a few words. */
static void words_made(struct words *v, const struct words *from)
{
    static const char *const few[] = {"the", " of", " and", "ing", "tion", "\",", "\": ", "{\"",
                                      "]}",  "12",  "é",    " \n", "er",   "re",  "_id",  ".py"};
    uint32_t have = 0;
    uint64_t seed = 1;

    v->bytes = mem_new(BIG * sizeof(*v->bytes));
    v->n = BIG;
    v->bytes[have++] = STR("");
    for (uint32_t i = 0; i < 256 && from == NULL; i++) {
        char *one = mem_new(1);

        *one = (char)i;
        v->bytes[have++] = str_of(one, 1);
    }
    for (uint32_t i = 0; i < ARRAY_LEN(few) && from == NULL; i++) {
        v->bytes[have++] = str_c(few[i]);
    }
    for (uint32_t i = 1; from != NULL && i < from->n && i < BIG / 3; i++) {
        v->bytes[have++] = from->bytes[i];
    }
    while (have < BIG) {
        struct str a = v->bytes[draw(&seed) % have], b = v->bytes[draw(&seed) % have];
        char *pair;

        if (a.n + b.n > 16 || a.n == 0 || b.n == 0) {
            continue;
        }
        pair = mem_new(a.n + b.n);
        memcpy(pair, a.p, a.n);
        memcpy(pair + a.n, b.p, b.n);
        v->bytes[have++] = str_of(pair, a.n + b.n);
    }
    words_index(v);
}

static const char *source_text(const char *source)
{
    static const char *const words[] = {"alpha", "beta", "gamma", "delta", "eps",
                                        "zeta",  "eta",  "theta", "iota",  "kappa"};
    static char text[32768];
    int n;

    if (strcmp(source, "ENUM") != 0) {
        return source;
    }
    n = snprintf(text, sizeof(text), "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[");
    for (int i = 0; i < 1000; i++) {
        n += snprintf(text + n, sizeof(text) - (size_t)n, "%s\"%s-%d\"", i > 0 ? "," : "",
                      words[i % 10], i / 10);
    }
    (void)snprintf(text + n, sizeof(text) - (size_t)n,
                   "]}},\"required\":[\"a\"],\"additionalProperties\":false}");
    return text;
}

static struct grammar *compile(const struct bench_case *c, const struct grammar_vocab *v,
                               double *us)
{
    struct arena arena;
    struct err e;
    struct grammar *g;
    struct grammar_source src = {.kind = GRAMMAR_JSON_OBJECT};
    double from;

    err_clear(&e);
    arena_init(&arena, 16u << 20);
    if (c->regex) {
        src.kind = GRAMMAR_REGEX;
        src.regex = str_c(c->source);
    } else if (c->source != NULL) {
        src.kind = GRAMMAR_JSON_SCHEMA;
        src.schema = json_parse(&arena, str_c(source_text(c->source)), &json_limits_api, &e);
    }
    from = now_us();
    if (!grammar_compile(&src, v, &g, &e)) {
        fprintf(stderr, "%s: %s\n", c->name, e.text);
        exit(1);
    }
    *us = now_us() - from;
    arena_fini(&arena);
    return g;
}

static int32_t longest(const struct words *v, const uint32_t *bits, struct str rest)
{
    int32_t best = -1;

    for (uint32_t i = 0; i < v->n; i++) {
        if ((bits[i / 32] >> (i % 32) & 1) != 0 && v->bytes[i].n > 0 &&
            str_starts(rest, v->bytes[i]) && (best < 0 || v->bytes[i].n > v->bytes[best].n)) {
            best = (int32_t)i;
        }
    }
    return best;
}

static void timed_mask(struct grammar *g, const struct grammar_state *s, uint32_t *bits,
                       struct times *t)
{
    double from = now_us();

    (void)grammar_mask(g, s, bits);
    if (t->n < STEPS_MAX) {
        t->us[t->n++] = now_us() - from;
    }
}

static void decode(const struct words *v, struct grammar *g, const char *document, struct times *t,
                   uint32_t *bits)
{
    struct grammar_state s;
    struct str rest = str_c(document);

    grammar_state_init(g, &s);
    while (rest.n > 0) {
        int32_t id;

        timed_mask(g, &s, bits, t);
        id = longest(v, bits, rest);
        if (id < 0 || !grammar_accept_token(g, &s, id)) {
            fprintf(stderr, "the document is not allowed from here: %.*s\n", STR_ARG(rest));
            exit(1);
        }
        rest.p += v->bytes[id].n;
        rest.n -= v->bytes[id].n;
    }
    timed_mask(g, &s, bits, t);
}

/* Any token that may come, until the end. */
static void stroll(const struct words *v, struct grammar *g, uint64_t seed, struct times *t,
                   uint32_t *bits)
{
    struct grammar_state s;

    grammar_state_init(g, &s);
    for (int step = 0; step < WALK_STEPS && !s.ended; step++) {
        uint32_t id = draw(&seed) % v->n;

        timed_mask(g, &s, bits, t);
        while ((bits[id / 32] >> (id % 32) & 1) == 0) {
            id = id + 1 < v->n ? id + 1 : 0;
        }
        if (!grammar_accept_token(g, &s, (int32_t)id)) {
            fprintf(stderr, "a token of the mask is not accepted\n");
            exit(1);
        }
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double percentile(struct times *t, double p)
{
    qsort(t->us, t->n, sizeof(t->us[0]), by_value);
    return t->n == 0 ? 0 : t->us[(uint32_t)(p * (t->n - 1))];
}

static void add(struct times *all, const struct times *t)
{
    for (uint32_t i = 0; i < t->n && all->n < STEPS_MAX; i++) {
        all->us[all->n++] = t->us[i];
    }
}

/* true: cold masks keep to the goal at p99. */
static bool run_case(const struct words *v, const struct bench_case *c, uint32_t *bits,
                     struct times *all)
{
    static struct times cold, warm, walks;
    struct grammar *g;
    uint32_t states = 0;
    double us = 0;

    cold.n = warm.n = walks.n = 0;
    for (int round = 0; round < ROUNDS; round++) {
        g = compile(c, v->trie, &us);
        states = grammar_states(g);
        decode(v, g, c->document, &cold, bits);
        decode(v, g, c->document, &warm, bits);
        grammar_release(g);
    }
    for (uint32_t i = 0; i < WALKS; i++) {
        double ignored;

        g = compile(c, v->trie, &ignored);
        stroll(v, g, i + 1, &walks, bits);
        grammar_release(g);
    }
    add(all, &cold);
    add(all, &walks);
    printf("%-18s %8.0f %6u | %7.1f %7.0f %7.0f | %7.1f %7.0f %7.0f | %6.1f %6.1f%s\n", c->name, us,
           states, percentile(&cold, 0.5), percentile(&cold, 0.99), percentile(&cold, 1),
           percentile(&walks, 0.5), percentile(&walks, 0.99), percentile(&walks, 1),
           percentile(&warm, 0.5), percentile(&warm, 0.99),
           percentile(&cold, 0.99) > GOAL_US || percentile(&walks, 0.99) > GOAL_US ? "  *" : "");
    return percentile(&cold, 0.99) <= GOAL_US && percentile(&walks, 0.99) <= GOAL_US;
}

static void run(const char *what, const struct words *v, const char *only)
{
    static struct times all;
    uint32_t *bits = mem_new(GRAMMAR_MASK_WORDS(v->n) * sizeof(*bits)), over = 0;

    all.n = 0;
    printf("\n%s, %u tokens; masks in us\n%-18s %8s %6s | %23s | %23s | %13s\n", what, v->n, "",
           "compile", "states", "document, cold", "random walks, cold", "again");
    printf("%-18s %8s %6s | %7s %7s %7s | %7s %7s %7s | %6s %6s\n", "", "us", "", "p50", "p99",
           "max", "p50", "p99", "max", "p50", "p99");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (only == NULL || strcmp(only, cases[i].name) == 0) {
            over += !run_case(v, &cases[i], bits, &all);
        }
    }
    printf("all cold masks: p50 %.1f us, p99 %.1f us, max %.1f us over %u; p99 above %.0f us in %u "
           "cases (*)\n",
           percentile(&all, 0.5), percentile(&all, 0.99), percentile(&all, 1), all.n, GOAL_US,
           over);
    mem_free(bits);
}

int main(int argc, char **argv)
{
    const char *only = argc > 2 && strcmp(argv[1], "-c") == 0 ? argv[2] : NULL;
    struct words words = {0}, made = {0};
    struct vocab real;
    char path[512];

    argv += only != NULL ? 2 : 0;
    argc -= only != NULL ? 2 : 0;
    if (argc > 1) {
        str_copy(str_c(argv[1]), path, sizeof(path));
    }
    if (argc > 1 || vocab_path(path, "qwen2", "")) {
        vocab_open(&real, path);
        words_real(&words, &real);
        run(path, &words, only);
        words_made(&made, &words);
        run("made up of pairs from it", &made, only);
    }
    words_made(&made, NULL);
    run("made up of any bytes (harder than a real one)", &made, only);
    return 0;
}
