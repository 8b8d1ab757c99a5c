/* fuzz_json.c - any bytes: the parser must not misbehave, and what it takes must be canonical.
 *
 * Whatever parses is written, parsed and written again: both texts must be equal, in both orders.
 */
#include <stdlib.h>

#include "base/json.h"

#define ARENA_BYTES (64u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void rewrite(struct str text, enum json_order order, struct buf *out, bool must)
{
    struct arena arena;
    struct json *v;
    struct err err;

    err_clear(&err);
    arena_init(&arena, ARENA_BYTES);
    v = json_parse(&arena, text, &json_limits_api, &err);
    CHECK((v != NULL) == (err.code == ERR_NONE));
    CHECK(v != NULL || !must);
    if (v != NULL) {
        int64_t i;
        double f;

        bool is_whole = json_i64(v, &i), is_number = json_f64(v, &f);
        CHECK(!is_whole || is_number);
        json_write(out, v, order);
        CHECK(!out->failed);
    }
    arena_fini(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf once, twice;

    buf_init(&once, 6 * size + 64);
    buf_init(&twice, 6 * size + 64);
    for (int order = JSON_ORDER_DOCUMENT; order <= JSON_ORDER_SORTED; order++) {
        buf_reset(&once);
        buf_reset(&twice);
        rewrite(str_of(data, size), order, &once, false);
        if (once.len > 0) {
            rewrite(buf_view(&once), order, &twice, true);
            CHECK(str_eq(buf_view(&once), buf_view(&twice)));
        }
    }
    /* As a string of our own: whatever the bytes, the result is JSON. */
    buf_reset(&once);
    json_write_string(&once, str_of(data, size));
    buf_reset(&twice);
    rewrite(buf_view(&once), JSON_ORDER_DOCUMENT, &twice, true);
    CHECK(str_eq(buf_view(&once), buf_view(&twice)));
    buf_fini(&once);
    buf_fini(&twice);
    return 0;
}
