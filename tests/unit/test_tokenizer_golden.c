/* test_tokenizer_golden - the real vocabulary gives, id for id, what two other implementations
 * give.
 *
 * Needs the GGUF file named by TOLLGATE_MODEL_FILE (default: ~/.cache/tollgate); skips without it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <unistd.h>
#include "golden.h"
#include "tests/unit/vocab.h"

#define TEXT_MAX 65536

static int open_model(void **state)
{
    struct vocab *w = calloc(1, sizeof(*w));
    const char *named = getenv("TOLLGATE_MODEL_FILE"), *home = getenv("HOME");
    char path[512];

    snprintf(path, sizeof(path), "%s/.cache/tollgate/SmolLM2-135M-Instruct.Q4_1.gguf",
             home != NULL ? home : "");
    named = named != NULL ? named : path;
    *state = w;
    if (access(named, R_OK) != 0) {
        print_message("skipped: no model file at %s (set TOLLGATE_MODEL_FILE)\n", named);
        return 0;
    }
    vocab_open(w, named);
    return 0;
}

static int close_model(void **state)
{
    vocab_close(*state);
    free(*state);
    return 0;
}

static bool ids_are(const struct token *got, int64_t n, const struct json *want)
{
    const struct json *v = want->child;

    for (int64_t i = 0; i < n; i++, v = v->next) {
        int64_t id;

        if (v == NULL || !json_i64(v, &id) || id != got[i].id) {
            return false;
        }
    }
    return v == NULL;
}

static void print_ids(const char *what, const struct token *got, int64_t n)
{
    print_error("%s:", what);
    for (int64_t i = 0; i < n; i++) {
        print_error(" %d", got[i].id);
    }
    print_error("\n");
}

static bool decodes_to(const struct tokenizer *t, const struct token *got, int64_t n,
                       struct str text)
{
    size_t at = 0;

    for (int64_t i = 0; i < n; i++) {
        struct str b = tokenizer_bytes(t, got[i].id, true);

        if (at + b.n > text.n || memcmp(text.p + at, b.p, b.n) != 0) {
            return false;
        }
        at += b.n;
        if (got[i].end != at) {
            return false; /* ends follow the text exactly */
        }
    }
    return at == text.n;
}

static void every_line(struct tokenizer *t, const char *file, enum tokenizer_special sp)
{
    static struct token out[TEXT_MAX];
    struct golden g;
    struct json *row;
    unsigned bad = 0;

    golden_open(&g, file);
    while ((row = golden_next(&g)) != NULL) {
        struct str text = golden_str(row, "text");
        int64_t n = tokenizer_encode(t, text, sp, out, TEXT_MAX);
        bool lossy = json_get(row, STR("lossy"))->type == JSON_TRUE;

        assert_true(n >= 0);
        if (!ids_are(out, n, json_get(row, STR("ids")))) {
            print_error("%s:%u: other ids\n", file, g.line);
            print_ids("got", out, n);
            bad++;
        } else if (!lossy && !decodes_to(t, out, n, text)) {
            print_error("%s:%u: does not decode to the text\n", file, g.line);
            bad++;
        }
    }
    assert_true(g.line > 300);
    golden_close(&g);
    assert_int_equal(bad, 0);
}

static void plain_text_gives_the_golden_ids(void **state)
{
    struct vocab *w = *state;

    if (w->t == NULL) {
        skip();
    }
    every_line(w->t, "tokenizer.jsonl", TOKENIZER_PLAIN);
}

static void text_with_special_tokens_gives_the_golden_ids(void **state)
{
    struct vocab *w = *state;

    if (w->t == NULL) {
        skip();
    }
    every_line(w->t, "tokenizer_special.jsonl", TOKENIZER_PARSE_SPECIAL);
}

static void where_the_references_differ_either_reading_is_given(void **state)
{
    static struct token out[TEXT_MAX];
    struct vocab *w = *state;
    struct golden g;
    struct json *row;
    unsigned bad = 0;

    if (w->t == NULL) {
        skip();
    }
    golden_open(&g, "tokenizer_disagreements.jsonl");
    while ((row = golden_next(&g)) != NULL) {
        bool special = json_get(row, STR("parse_special"))->type == JSON_TRUE;
        int64_t n =
            tokenizer_encode(w->t, golden_str(row, "text"),
                             special ? TOKENIZER_PARSE_SPECIAL : TOKENIZER_PLAIN, out, TEXT_MAX);

        if (!ids_are(out, n, json_get(row, STR("ids_hf"))) &&
            !ids_are(out, n, json_get(row, STR("ids_llamacpp")))) {
            print_error("line %u: neither reading\n", g.line);
            print_ids("got", out, n);
            bad++;
        }
    }
    golden_close(&g);
    assert_int_equal(bad, 0);
}

/* llama.cpp lets overlong forms and surrogates through and aborts beyond U+10FFFF; a bad byte is
 * U+FFFD here, each by itself, and where the file says so the ids are llama.cpp's. */
static void bad_bytes_are_the_replacement_character(void **state)
{
    static const char *const lenient[] = {"c0af", "c1bf", "eda080", "edb080", "e0808041"};
    static struct token out[TEXT_MAX];
    struct vocab *w = *state;
    struct golden g;
    struct json *row;

    if (w->t == NULL) {
        skip();
    }
    golden_open(&g, "tokenizer_bytes.jsonl");
    while ((row = golden_next(&g)) != NULL) {
        struct str hex = golden_str(row, "hex");
        struct json *want = json_get(row, STR("ids_llamacpp"));
        uint8_t bytes[64];
        bool ours = want->type == JSON_NULL;
        int64_t n;

        assert_true(hex.n <= 128 && str_unhex(hex, bytes, hex.n / 2));
        n = tokenizer_encode(w->t, str_of(bytes, hex.n / 2), TOKENIZER_PLAIN, out, TEXT_MAX);
        for (size_t i = 0; i < ARRAY_LEN(lenient); i++) {
            ours = ours || str_eq(hex, str_c(lenient[i]));
        }
        if (!ours && !ids_are(out, n, want)) {
            print_ids("got", out, n);
            fail_msg("hex " STR_FMT, STR_ARG(hex));
        }
        for (size_t i = 0; ours && i < hex.n / 2; i++) {
            assert_int_equal(out[i].id, bytes[i] < 0x80 ? 49 : 24211);
            assert_int_equal(out[i].end, i + 1);
        }
    }
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_text_gives_the_golden_ids),
        cmocka_unit_test(text_with_special_tokens_gives_the_golden_ids),
        cmocka_unit_test(where_the_references_differ_either_reading_is_given),
        cmocka_unit_test(bad_bytes_are_the_replacement_character),
    };

    return cmocka_run_group_tests(tests, open_model, close_model);
}
