/* make_tiny_model.c - writes the tiny model to the path given, for tests that drive a real worker.
 */
#include <stdio.h>

#include "tests/unit/tiny_model.h"
#include "worker/model/quant.h"

#define LONG_CONTEXT (256u << 10)

int main(int argc, char **argv)
{
    struct tiny_options o = {.seed = 1, .matrix_type = QUANT_Q4_1, .embed_type = QUANT_Q8_0};

    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "markers") == 0) {
            o.markers = true;
        } else if (strcmp(argv[i], "long") == 0) {
            o.long_tokens = true;
            o.context = LONG_CONTEXT;
        } else {
            argc = 0;
        }
    }
    if (argc < 2 || !tiny_model_write_as(argv[1], &o)) {
        fprintf(stderr, "usage: make_tiny_model FILE [markers] [long] (FILE must be writable)\n");
        return 1;
    }
    return 0;
}
