/* make_tiny_model.c - writes the tiny model to the path given, for tests that drive a real worker.
 */
#include <stdio.h>

#include "tests/unit/tiny_model.h"

int main(int argc, char **argv)
{
    if (argc != 2 || !tiny_model_write(argv[1], 1)) {
        fprintf(stderr, "usage: make_tiny_model FILE (which must be writable)\n");
        return 1;
    }
    return 0;
}
