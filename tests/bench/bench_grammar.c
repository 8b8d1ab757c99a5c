/* bench_grammar.c - what constrained decoding costs: compiling, and one mask a step, caches cold.
 *
 *   bench_grammar [MODEL.gguf]
 *
 * Decodes fixed documents under realistic schemas, over the model's vocabulary and over one of
 * 152,064 tokens made from it (without a model: from words). Each document starts with a grammar
 * just compiled, so first visits count in every percentile. Times are of the thread, so that others
 * on the machine count little. No figure decides anything. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "worker/engine/grammar.h"
#include "worker/model/model.h"

#define BIG 152064u
#define STEPS_MAX 100000u
#define ROUNDS 3

struct vocab {
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

static struct str bytes_of(void *ctx, int32_t id)
{
    return ((struct vocab *)ctx)->bytes[id];
}

static const struct {
    const char *name, *schema, *document;
} cases[] = {
    {"any object", NULL,
     "{\"title\": \"A walk in the park\", \"tags\": [\"dogs\", \"rain\", \"mud\"], \"score\": "
     "4.75, \"nested\": {\"a\": [{\"b\": null}, {\"c\": true}], \"note\": \"She said: "
     "\\\"never mind\\\", and left.\\nThe end.\"}, \"count\": 12}"},
    {"person",
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":1,"
     "\"maxLength\":80},\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"email\":{"
     "\"type\":\"string\",\"pattern\":\"^[^@ ]+@[^@ ]+\\\\.[a-z]{2,10}$\"},\"born\":{\"type\":"
     "\"string\",\"format\":\"date\"},\"hobbies\":{\"type\":\"array\",\"items\":{\"type\":"
     "\"string\"},\"maxItems\":10},\"bio\":{\"type\":\"string\",\"maxLength\":10000}},"
     "\"required\":[\"name\",\"age\",\"email\",\"born\",\"hobbies\",\"bio\"],"
     "\"additionalProperties\":false}",
     "{\n  \"name\": \"Ada Lovelace\",\n  \"age\": 36,\n  \"email\": "
     "\"ada.lovelace@analytical.example\",\n  \"born\": \"1815-12-10\",\n  \"hobbies\": "
     "[\"mathematics\", \"horses\", \"poetry and music\"],\n  \"bio\": \"Ada wrote what is often "
     "called the first program: a method for the Analytical Engine to compute Bernoulli numbers. "
     "She saw that such a machine could act on other things than number.\"\n}"},
    {"extraction",
     "{\"type\":\"object\",\"properties\":{\"invoice_number\":{\"type\":\"string\"},\"date\":{"
     "\"type\":\"string\",\"format\":\"date-time\"},\"currency\":{\"enum\":[\"EUR\",\"USD\","
     "\"GBP\",\"CHF\"]},\"lines\":{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":"
     "\"object\",\"properties\":{\"sku\":{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-[0-9]{4}$\"}"
     ",\"text\":{\"type\":\"string\"},\"quantity\":{\"type\":\"integer\",\"minimum\":1},"
     "\"price\":{\"type\":\"number\",\"minimum\":0}},\"required\":[\"sku\",\"text\","
     "\"quantity\",\"price\"],\"additionalProperties\":false}},\"paid\":{\"type\":\"boolean\"},"
     "\"note\":{\"type\":[\"string\",\"null\"]}},\"required\":[\"invoice_number\",\"date\","
     "\"currency\",\"lines\",\"paid\",\"note\"],\"additionalProperties\":false}",
     "{\"invoice_number\":\"2024/0117-A\",\"date\":\"2024-03-18T09:30:00Z\",\"currency\":\"EUR\","
     "\"lines\":[{\"sku\":\"AB-1234\",\"text\":\"Steel bolts, M8, box of "
     "100\",\"quantity\":3,\"price\":12.5},{\"sku\":\"CD-0042\",\"text\":\"Assorted "
     "washers\",\"quantity\":10,\"price\":0.99},{\"sku\":\"ZZ-9999\",\"text\":\"Shipping and "
     "handling\",\"quantity\":1,\"price\":8}],\"paid\":false,\"note\":null}"},
    {"steps (recursive)",
     "{\"$defs\":{\"step\":{\"type\":\"object\",\"properties\":{\"explanation\":{\"type\":"
     "\"string\"},\"output\":{\"type\":\"string\"},\"substeps\":{\"type\":\"array\",\"items\":{"
     "\"$ref\":\"#/$defs/step\"}}},\"required\":[\"explanation\",\"output\",\"substeps\"],"
     "\"additionalProperties\":false}},\"type\":\"object\",\"properties\":{\"steps\":{\"type\":"
     "\"array\",\"items\":{\"$ref\":\"#/$defs/step\"}},\"final_answer\":{\"type\":\"string\"}},"
     "\"required\":[\"steps\",\"final_answer\"],\"additionalProperties\":false}",
     "{\"steps\":[{\"explanation\":\"Subtract 7 from both sides of the equation to isolate the "
     "term with x.\",\"output\":\"8x = -30\",\"substeps\":[{\"explanation\":\"-23 - 7 = -30, "
     "because both are negative.\",\"output\":\"-30\",\"substeps\":[]}]},{\"explanation\":"
     "\"Divide by 8.\",\"output\":\"x = -30/8 = -15/4\",\"substeps\":[]}],\"final_answer\":\"x = "
     "-15/4\"}"},
    {"union",
     "{\"type\":\"object\",\"properties\":{\"item\":{\"anyOf\":[{\"type\":\"object\","
     "\"properties\":{\"kind\":{\"const\":\"user\"},\"name\":{\"type\":\"string\"},\"age\":{"
     "\"type\":\"number\"}},\"required\":[\"kind\",\"name\",\"age\"],\"additionalProperties\":"
     "false},{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"address\"},\"number\":{"
     "\"type\":\"string\"},\"street\":{\"type\":\"string\"},\"city\":{\"type\":\"string\"}},"
     "\"required\":[\"kind\",\"number\",\"street\",\"city\"],\"additionalProperties\":false},{"
     "\"type\":\"object\",\"properties\":{\"kind\":{\"type\":\"string\"},\"other\":{}},"
     "\"required\":[\"kind\"]}]}},\"required\":[\"item\"],\"additionalProperties\":false}",
     "{\"item\": {\"kind\": \"address\", \"number\": \"12b\", \"street\": \"Rue de l'Église\", "
     "\"city\": \"Liège\"}}"},
};

/* How tokens are made up: as merges go, without white space inside, or any pair. A pattern that
 * allows most characters but not all has to walk far more of the second kind. */
enum pairs { PAIRS_LIKE_MERGES = 1, PAIRS_ANY };

/* The model's tokens, and pairs of them until there are n. */
static void vocab_make(struct vocab *v, const struct model *m, uint32_t n, enum pairs pairs)
{
    static const char *const words[] = {"the", " of", " and", "ing", "tion", "\",", "\": ", "{\"",
                                        "]}",  "12",  "é",    " \n", "er",   "re",  "_id",  ".py"};
    struct err e;
    uint32_t have = 0;
    uint64_t seed = 1;
    int32_t eos = 0;

    err_clear(&e);
    v->bytes = mem_new(n * sizeof(*v->bytes));
    v->n = n;
    v->bytes[have++] = str_of("", 0);
    for (uint32_t i = 0; i < 256 && m == NULL; i++) {
        char *one = mem_new(1);

        *one = (char)i;
        v->bytes[have++] = str_of(one, 1);
    }
    for (uint32_t i = 0; i < ARRAY_LEN(words) && m == NULL; i++) {
        v->bytes[have++] = str_c(words[i]);
    }
    for (uint32_t i = 0; m != NULL && i < m->vocab && have < n; i++) {
        v->bytes[have++] = tokenizer_bytes(m->tokenizer, (int32_t)i, false);
    }
    while (have < n) {
        struct str a, b;
        char *pair;

        seed = seed * 6364136223846793005u + 1442695040888963407u;
        a = v->bytes[(seed >> 33) % have];
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        b = v->bytes[(seed >> 33) % have];
        if (a.n + b.n > 16 || a.n == 0 || b.n == 0 ||
            (pairs == PAIRS_LIKE_MERGES && b.p[0] <= ' ')) {
            continue;
        }
        pair = mem_new(a.n + b.n);
        memcpy(pair, a.p, a.n);
        memcpy(pair + a.n, b.p, b.n);
        v->bytes[have++] = str_of(pair, a.n + b.n);
    }
    v->trie = grammar_vocab_new(n, bytes_of, v, &eos, 1, &e);
    if (v->trie == NULL) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
}

static struct grammar *compile(const char *schema, const struct grammar_vocab *v, double *us)
{
    struct arena arena;
    struct err e;
    struct grammar *g;
    struct grammar_source src = {.kind = GRAMMAR_JSON_OBJECT};
    double from;

    err_clear(&e);
    arena_init(&arena, 16u << 20);
    if (schema != NULL) {
        src.kind = GRAMMAR_JSON_SCHEMA;
        src.schema = json_parse(&arena, str_c(schema), &json_limits_api, &e);
    }
    from = now_us();
    if (!grammar_compile(&src, v, &g, &e)) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    *us = now_us() - from;
    arena_fini(&arena);
    return g;
}

static int32_t longest(const struct vocab *v, const uint32_t *bits, struct str rest)
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

static void decode(const struct vocab *v, struct grammar *g, const char *document, struct times *t,
                   uint32_t *bits)
{
    struct grammar_state s;
    struct str rest = str_c(document);

    grammar_state_init(g, &s);
    while (rest.n > 0 && t->n < STEPS_MAX) {
        double from = now_us();
        int32_t id;

        (void)grammar_mask(g, &s, bits);
        t->us[t->n++] = now_us() - from;
        id = longest(v, bits, rest);
        if (id < 0 || !grammar_accept_token(g, &s, id)) {
            fprintf(stderr, "the document is not allowed from here: %.*s\n", STR_ARG(rest));
            exit(1);
        }
        rest.p += v->bytes[id].n;
        rest.n -= v->bytes[id].n;
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

static void run(const struct vocab *v)
{
    static struct times all, cold, warm;
    uint32_t *bits = mem_new(GRAMMAR_MASK_WORDS(v->n) * sizeof(*bits));
    double from = now_us(), us;

    all.n = 0;
    printf("\n%u tokens\n%-20s %10s %8s | %28s | %19s\n%-20s %10s %8s | %9s %9s %9s | %9s %9s\n",
           v->n, "", "compile", "states", "first document: mask us", "again", "schema", "us", "",
           "p50", "p99", "max", "p50", "p99");
    for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
        cold.n = warm.n = 0;
        for (int round = 0; round < ROUNDS; round++) {
            struct grammar *g = compile(cases[c].schema, v->trie, &us);
            uint32_t first = cold.n;

            decode(v, g, cases[c].document, &cold, bits);
            for (uint32_t i = first; i < cold.n; i++) {
                all.us[all.n++] = cold.us[i];
            }
            decode(v, g, cases[c].document, &warm, bits);
            from = us;
            if (round == ROUNDS - 1) {
                printf("%-20s %10.0f %8u | %9.1f %9.1f %9.1f | %9.1f %9.1f\n", cases[c].name, from,
                       grammar_states(g), percentile(&cold, 0.5), percentile(&cold, 0.99),
                       percentile(&cold, 1), percentile(&warm, 0.5), percentile(&warm, 0.99));
            }
            grammar_release(g);
        }
    }
    printf("all first documents: p50 %.1f us, p99 %.1f us, max %.1f us over %u steps\n",
           percentile(&all, 0.5), percentile(&all, 0.99), percentile(&all, 1), all.n);
    mem_free(bits);
}

int main(int argc, char **argv)
{
    struct model *m = NULL;
    struct vocab v = {0};
    struct err e;

    err_clear(&e);
    if (argc > 1) {
        m = model_open(argv[1], &e);
        if (m == NULL) {
            fprintf(stderr, "%s\n", e.text);
            return 1;
        }
        vocab_make(&v, m, m->vocab, PAIRS_LIKE_MERGES);
        run(&v);
    }
    printf("\nmade up as merges go:");
    vocab_make(&v, m, BIG, PAIRS_LIKE_MERGES);
    run(&v);
    printf("\nmade up of any pairs (harder than a real one):");
    vocab_make(&v, m, BIG, PAIRS_ANY);
    run(&v);
    return 0;
}
