/* fuzz_gguf.c - any bytes: refused with a reason, or every tensor lies inside the file. */
#include "worker/model/gguf.h"

#include "worker/model/quant.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned touch(struct str s)
{
    return s.n == 0 ? 0 : (unsigned)(uint8_t)s.p[0] + (uint8_t)s.p[s.n - 1];
}

static unsigned touch_key(const struct gguf_key *k)
{
    unsigned sum = touch(k->name);

    if (k->type == GGUF_STRING) {
        sum += touch(k->v.string);
    }
    if (k->type == GGUF_ARRAY && k->v.array.strings != NULL) {
        for (uint64_t i = 0; i < k->v.array.count; i++) {
            sum += touch(k->v.array.strings[i]);
        }
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf g;
    struct err e;
    unsigned sum = 0;

    err_clear(&e);
    if (!gguf_parse(&g, data, size, &e)) {
        CHECK(e.code != ERR_NONE && e.text[0] != '\0');
        return 0;
    }
    for (uint32_t i = 0; i < g.n_keys; i++) {
        sum += touch_key(&g.keys[i]);
    }
    for (uint32_t i = 0; i < g.n_tensors; i++) {
        const struct gguf_tensor *t = &g.tensors[i];
        float row[256];
        CHECK(t->bytes > 0 && t->data >= data && t->data + t->bytes <= data + size);
        quant_dequantize(t->type, t->data, row, quant_block_columns(t->type));
        sum += t->data[t->bytes - 1];
    }
    __asm__ volatile("" : : "r"(sum)); /* the reads must happen */
    gguf_close(&g);
    return 0;
}
