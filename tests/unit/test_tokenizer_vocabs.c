/* test_tokenizer_vocabs.c - real vocabularies give the ids that lie beside them: llama.cpp's
 * vocabulary-only files, each with texts (.inp) and ids (.out).
 *
 * Needs the files of llama-cpp-python's source distribution in ~/.cache/tollgate (tests/run golden
 * fetches them; TOLLGATE_CACHE names another place); skips without them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/unit/vocab.h"

#define SEPARATOR STR("\n__ggml_vocab_test__\n")
#define TEXT_MAX 65536
#define CASES_MAX 1000

static struct str read_all(const char *vocab, const char *suffix)
{
    char path[512], *text = malloc(TEXT_MAX);
    size_t n;
    FILE *f;

    assert_true(vocab_path(path, vocab, suffix));
    f = fopen(path, "rb");
    assert_non_null(f);
    n = fread(text, 1, TEXT_MAX, f);
    assert_in_range(n, 1, TEXT_MAX - 1);
    fclose(f);
    return str_of(text, n);
}

/* Takes the next text off `rest`. */
static struct str next_text(struct str *rest)
{
    size_t end = str_find(*rest, SEPARATOR);
    struct str text = str_of(rest->p, end == SIZE_MAX ? rest->n : end);

    *rest = end == SIZE_MAX ? str_of(rest->p, 0)
                            : str_of(rest->p + end + SEPARATOR.n, rest->n - end - SEPARATOR.n);
    return text;
}

static bool ids_are(const struct token *got, int64_t n, struct str line)
{
    struct str word;
    int64_t i = 0, id;

    while (line.n > 0) {
        if (!str_cut(line, ' ', &word, &line)) {
            line.n = 0;
        }
        if (word.n == 0) {
            continue;
        }
        assert_true(str_i64(word, &id));
        if (i >= n || got[i++].id != id) {
            return false;
        }
    }
    return i == n;
}

static unsigned compare(struct tokenizer *t, const char *vocab, unsigned *cases)
{
    static struct token out[TEXT_MAX];
    struct str texts = read_all(vocab, ".inp"), ids = read_all(vocab, ".out");
    struct str rest = texts, lines = ids, line;
    unsigned bad = 0;

    while (rest.n > 0 && *cases < CASES_MAX) {
        struct str text = next_text(&rest);
        int64_t n = tokenizer_encode(t, text, TOKENIZER_PLAIN, out, TEXT_MAX);

        (*cases)++;
        assert_true(str_cut(lines, '\n', &line, &lines));
        if (!ids_are(out, n, line)) {
            print_error("%s, text %u: other ids than " STR_FMT "\n", vocab, *cases, STR_ARG(line));
            bad++;
        }
        if (n > 0) { /* ends follow the text */
            assert_int_equal(out[n - 1].end, text.n);
        }
    }
    assert_int_equal(str_trim(lines).n, 0);
    free((void *)texts.p);
    free((void *)ids.p);
    return bad;
}

static void every_vocabulary_gives_its_golden_ids(void **state)
{
    static const char *const vocabs[] = {"llama-bpe",      "qwen2",     "gpt-2",  "deepseek-llm",
                                         "deepseek-coder", "starcoder", "refact", "command-r"};
    char path[512];
    unsigned bad = 0;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(vocabs); i++) {
        struct vocab v;
        unsigned cases = 0;

        if (!vocab_path(path, vocabs[i], "")) {
            print_message("skipped: no %s (tests/run golden fetches it)\n", path);
            skip();
        }
        vocab_open(&v, path);
        bad += compare(v.t, vocabs[i], &cases);
        assert_in_range(cases, 40, CASES_MAX - 1);
        vocab_close(&v);
    }
    assert_int_equal(bad, 0);
}

static void a_vocabulary_of_another_pattern_is_refused_by_name(void **state)
{
    static const char *const others[] = {"falcon", "qwen35", "mpt"};
    char path[512];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        struct err e = {0};
        enum tokenizer_pre pre;
        struct gguf g;

        if (!vocab_path(path, others[i], "")) {
            print_message("skipped: no %s\n", path);
            skip();
        }
        assert_true(gguf_open(&g, path, &e));
        assert_false(tokenizer_pre_of(gguf_find(&g, "tokenizer.ggml.pre")->v.string, &pre, &e));
        assert_non_null(strstr(e.text, others[i]));
        gguf_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_vocabulary_gives_its_golden_ids),
        cmocka_unit_test(a_vocabulary_of_another_pattern_is_refused_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
