/* request_recipe.h - from any bytes to a body that is JSON, with the fields that the worker reads.
 *
 * A changed byte of a body is nearly always no JSON any more; a changed byte of a recipe is another
 * field or another value. */
#ifndef TESTS_FUZZ_REQUEST_RECIPE_H
#define TESTS_FUZZ_REQUEST_RECIPE_H

#include "base/buf.h"

/* Every recipe gives a body, the empty one, too: the model and something to answer. */
void request_recipe_body(struct buf *out, struct str recipe);

#endif
