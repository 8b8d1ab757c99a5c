/* test_quant.c - dequantisation against another implementation's values
 * (golden/quant_vectors.jsonl). */
#include "worker/model/quant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "tests/unit/golden.h"

#define COLUMNS_MAX 256

static void blocks_become_the_values_of_the_reference(void **state)
{
    static uint8_t block[COLUMNS_MAX * 4];
    static float want[COLUMNS_MAX], got[COLUMNS_MAX];
    struct golden g;
    unsigned lines = 0;

    (void)state;
    golden_open(&g, "quant_vectors.jsonl");
    for (struct json *row = golden_next(&g); row != NULL; row = golden_next(&g), lines++) {
        struct str hex = golden_str(row, "block"), floats = golden_str(row, "float32");
        int64_t type;
        assert_true(json_i64(json_get(row, STR("type")), &type));
        size_t columns = floats.n / 8;
        assert_true(columns <= COLUMNS_MAX && str_unhex(hex, block, hex.n / 2));
        assert_true(str_unhex(floats, want, columns * sizeof(float)));
        assert_true(str_eq(golden_str(row, "name"), str_c(quant_name((uint32_t)type))));
        quant_dequantize((uint32_t)type, block, got, columns);
        for (size_t i = 0; i < columns; i++) {
            float slack = 1e-6f * (want[i] < 0 ? -want[i] : want[i]); /* one rounding */
            if (!(got[i] - want[i] <= slack && want[i] - got[i] <= slack)) {
                fail_msg("line %u, column %zu: %.9g, not %.9g", g.line, i, (double)got[i],
                         (double)want[i]);
            }
        }
    }
    assert_int_equal(lines, 27);
    golden_close(&g);
}

static void block_sizes_are_those_of_the_format(void **state)
{
    static const struct {
        uint32_t type, columns, bytes;
    } table[] = {{QUANT_F32, 1, 4},    {QUANT_F16, 1, 2},      {QUANT_BF16, 1, 2},
                 {QUANT_Q4_0, 32, 18}, {QUANT_Q4_1, 32, 20},   {QUANT_Q5_0, 32, 22},
                 {QUANT_Q8_0, 32, 34}, {QUANT_Q4_K, 256, 144}, {QUANT_Q6_K, 256, 210}};
    unsigned known = 0;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        assert_int_equal(quant_block_columns(table[i].type), table[i].columns);
        assert_int_equal(quant_block_bytes(table[i].type), table[i].bytes);
    }
    for (uint32_t type = 0; type < 256; type++) {
        known += quant_is_known(type);
    }
    assert_int_equal(known, ARRAY_LEN(table));
    assert_false(quant_is_known(UINT32_MAX));
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    assert_int_equal(quant_to_bf16(1.0f), 0x3F80);
    assert_int_equal(quant_to_bf16(1.0f + 0x1p-8f), 0x3F80);     /* tie: down to even */
    assert_int_equal(quant_to_bf16(1.0f + 3 * 0x1p-8f), 0x3F82); /* tie: up to even */
    assert_int_equal(quant_to_bf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3F81);
    assert_int_equal(quant_to_bf16(-2.5f), 0xC020);
    assert_true(quant_bf16(0x3F82) == 1.0f + 0x1p-6f);
}

static void f16_survives_the_way_there_and_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        if ((h & 0x7C00) != 0x7C00 || (h & 0x3FF) == 0) { /* not the NaNs */
            assert_int_equal(quant_to_f16(quant_f16((uint16_t)h)), h);
        }
    }
}

static void f16_rounds_to_nearest_even(void **state)
{
    static const struct {
        float f;
        uint16_t h;
    } table[] = {
        {1.0f, 0x3C00},
        {-2.0f, 0xC000},
        {65504.0f, 0x7BFF},
        {65519.9f, 0x7BFF},
        {65520.0f, 0x7C00},
        {-1e9f, 0xFC00},
        {1 + 0x1p-11f, 0x3C00},
        {1 + 3 * 0x1p-11f, 0x3C02},
        {1 + 0x1.01p-11f, 0x3C01},
        {0x1p-14f, 0x0400},
        {0x1p-24f, 0x0001},
        {0x1p-25f, 0x0000},
        {0x1.8p-24f, 0x0002},
        {0x1.01p-25f, 0x0001},
        {0x1.ffcp-15f, 0x0400},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (quant_to_f16(table[i].f) != table[i].h) {
            fail_msg("%a becomes %04x, not %04x", (double)table[i].f, quant_to_f16(table[i].f),
                     table[i].h);
        }
    }
    assert_true(quant_f16(0x7C00) > 3e38f);
    assert_true(quant_f16(0x7E00) != quant_f16(0x7E00));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_become_the_values_of_the_reference),
        cmocka_unit_test(block_sizes_are_those_of_the_format),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(f16_survives_the_way_there_and_back),
        cmocka_unit_test(f16_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
