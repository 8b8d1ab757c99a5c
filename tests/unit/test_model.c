/* test_model.c - binding of keys and tensors; misshapen and hostile models are refused with a
 * story. */
#include "worker/model/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/unit/tiny_model.h"
#include "worker/backend.h"
#include "worker/model/quant.h"

static void temp_name(char path[64])
{
    snprintf(path, 64, "/tmp/test_model.%d.gguf", (int)getpid());
}

static struct model *open_bytes(const void *p, size_t n, struct err *e)
{
    char path[64];

    temp_name(path);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
    err_clear(e);
    struct model *m = model_open(path, e);
    unlink(path);
    return m;
}

static void build(struct buf *b, bool qwen2)
{
    struct tiny_options o = {
        .seed = 5, .matrix_type = QUANT_Q4_1, .embed_type = QUANT_Q8_0, .qwen2 = qwen2};

    buf_init(b, TINY_MODEL_BYTES_MAX);
    tiny_model_build(b, &o);
}

/* The only occurrence of `from`, replaced by as many bytes. */
static void patch(struct buf *b, const void *from, const void *to, size_t n)
{
    uint8_t *p = (uint8_t *)(uintptr_t)buf_view(b).p, *at = memmem(p, b->len, from, n);

    assert_non_null(at);
    memcpy(at, to, n);
}

/* The value of a 32-bit key. */
static void set_key(struct buf *b, const char *name, uint32_t v)
{
    uint8_t *p = (uint8_t *)(uintptr_t)buf_view(b).p, *at = memmem(p, b->len, name, strlen(name));

    assert_non_null(at);
    memcpy(at + strlen(name) + 4, &v, sizeof(v));
}

static void refuse(struct buf *b, const char *reason) /* ends b */
{
    struct err e;
    struct model *m = open_bytes(buf_view(b).p, b->len, &e);

    if (m != NULL) {
        fail_msg("accepted, but should say: %s", reason);
    }
    if (strstr(e.text, reason) == NULL) {
        fail_msg("says \"%s\", not \"%s\"", e.text, reason);
    }
    buf_fini(b);
}

static void tiny_model_has_its_numbers(void **state)
{
    struct buf b;
    struct err e;

    (void)state;
    build(&b, false);
    struct model *m = open_bytes(buf_view(&b).p, b.len, &e);
    assert_non_null(m);
    assert_true(str_eq(m->name, STR("tiny")));
    assert_int_equal(m->layers, 2);
    assert_int_equal(m->d, 64);
    assert_int_equal(m->ff, 128);
    assert_int_equal(m->heads, 4);
    assert_int_equal(m->kv_heads, 2);
    assert_int_equal(m->head_dim, 16);
    assert_int_equal(m->vocab, 289);
    assert_int_equal(m->context, 2048);
    assert_int_equal(m->bos, 1);
    assert_int_equal(m->eos, 2);
    assert_int_equal(m->rope, MODEL_ROPE_PAIRS);
    assert_null(m->layer[0].q_bias.data);
    assert_ptr_equal(m->head.data, m->embed.data);
    assert_true(m->chat_template.n > 100);
    /* per layer: q 64x64, k and v 32x64, o 64x64, gate, up and down 128x64 */
    uint64_t layer = 64 * 64 * 2 + 2 * 32 * 64 + 3 * 128 * 64;
    assert_int_equal(m->flop_per_token, 2 * (2 * layer + 289 * 64));
    assert_int_equal(m->weight_bytes, 2 * layer / 32 * 20 + 289 * 64 / 32 * 34);
    model_close(m);
    buf_fini(&b);
}

static void qwen2_has_biases_and_rotates_halves(void **state)
{
    struct buf b;
    struct err e;

    (void)state;
    build(&b, true);
    struct model *m = open_bytes(buf_view(&b).p, b.len, &e);
    if (m == NULL) {
        fail_msg("%s", e.text);
    }
    assert_int_equal(m->rope, MODEL_ROPE_HALVES);
    assert_int_equal(m->layer[1].k_bias.columns, 32);
    assert_non_null(m->layer[1].v_bias.data);
    model_close(m);
    buf_fini(&b);
}

static void same_seed_gives_the_same_file_and_digest(void **state)
{
    struct buf a, b;
    struct err e;

    (void)state;
    build(&a, false);
    build(&b, false);
    assert_true(str_eq(buf_view(&a), buf_view(&b)));
    struct model *m = open_bytes(buf_view(&a).p, a.len, &e);
    set_key(&b, ".context_length", 1024);
    struct model *other = open_bytes(buf_view(&b).p, b.len, &e);
    assert_true(m != NULL && other != NULL && m->digest != other->digest);
    model_close(m);
    model_close(other);
    buf_fini(&a);
    buf_fini(&b);
}

static void misshapen_models_are_refused(void **state)
{
    struct buf b;

    (void)state;
    build(&b, false);
    patch(&b, "blk.1.ffn_up", "blk.1.ffn_UP", 12);
    refuse(&b, "tensor blk.1.ffn_up.weight: missing");
    build(&b, false);
    patch(&b, "output_norm.weight", "output_NORM.weight", 18);
    refuse(&b, "tensor output_norm.weight: missing");
    build(&b, false);
    patch(&b, "general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama",
          "general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0mamba", 37);
    refuse(&b, "architecture \"mamba\"");
    build(&b, false);
    set_key(&b, ".feed_forward_length", 96);
    refuse(&b, "128 x 1 x 1, but 64 x 96 is needed");
    build(&b, false);
    set_key(&b, ".block_count", 3);
    refuse(&b, "tensor blk.2.attn_norm.weight: missing");
    build(&b, false);
    set_key(&b, ".block_count", 0);
    refuse(&b, "1 to 256 is possible");
    build(&b, false);
    set_key(&b, ".head_count_kv", 3);
    refuse(&b, "heads must share");
    build(&b, false);
    set_key(&b, ".attention.head_count", 0);
    refuse(&b, "head_count: 0");
    build(&b, false);
    set_key(&b, ".embedding_length", UINT32_MAX);
    refuse(&b, "embedding_length");
    build(&b, false);
    set_key(&b, "bos_token_id", 289);
    refuse(&b, "bos_token_id: 289, but there are 289 tokens");
    build(&b, false);
    patch(&b, "smollm", "smallm", 6);
    refuse(&b, "pre-tokenizer \"smallm\"");
    build(&b, false);
    set_key(&b, ".rope.freq_base", 0);
    refuse(&b, "freq_base: not above zero");
}

/* Bytes of the directory flipped at random: opened or refused, and what opens can be closed. */
static void random_damage_does_not_crash(void **state)
{
    struct buf b;
    struct err e;
    uint64_t rng = 88172645463325252u;
    unsigned opened = 0;

    (void)state;
    build(&b, false);
    uint8_t *p = (uint8_t *)(uintptr_t)buf_view(&b).p;
    for (unsigned i = 0; i < 400; i++) {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        size_t at = rng % 11000; /* keys and tensor directory */
        uint8_t before = p[at];
        p[at] ^= (uint8_t)(1u << (rng >> 40 & 7));
        struct model *m = open_bytes(p, b.len, &e);
        opened += m != NULL;
        assert_true(m != NULL || e.text[0] != '\0');
        model_close(m);
        p[at] = before;
    }
    assert_true(opened > 0 && opened < 400);
    buf_fini(&b);
}

static void rope_table_holds_cosines_and_sines(void **state)
{
    struct buf b;
    struct err e;

    (void)state;
    build(&b, false);
    struct model *m = open_bytes(buf_view(&b).p, b.len, &e);
    assert_non_null(m);
    float *table = malloc(m->context * m->head_dim * sizeof(float));
    assert_non_null(table);
    model_rope_table(m, table);
    for (uint32_t position = 0; position < m->context; position += 511) {
        for (uint32_t i = 0; i < 8; i++) {
            double angle = position * pow(10000.0, -(double)i / 8);
            assert_true(fabs((double)table[(position * 8 + i) * 2] - cos(angle)) < 1e-6);
            assert_true(fabs((double)table[(position * 8 + i) * 2 + 1] - sin(angle)) < 1e-6);
        }
    }
    free(table);
    model_close(m);
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_model_has_its_numbers),
        cmocka_unit_test(qwen2_has_biases_and_rotates_halves),
        cmocka_unit_test(same_seed_gives_the_same_file_and_digest),
        cmocka_unit_test(misshapen_models_are_refused),
        cmocka_unit_test(random_damage_does_not_crash),
        cmocka_unit_test(rope_table_holds_cosines_and_sines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
