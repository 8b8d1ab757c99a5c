/* pool.h - objects of one size that come and go by the thousand: what was given back is handed out
 * again, so that a request costs no malloc for what every request has. Not thread-safe.
 *
 * Objects come zeroed. At most `keep_max` rest in the pool; under the address sanitizer none does,
 * so that a use after the end is seen. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include "base/base.h"

struct pool_item;

struct pool {
    struct pool_item *kept; /* owned chain */
    uint32_t count;
    uint32_t keep_max;
    size_t bytes; /* of one object */
};

void pool_init(struct pool *p, size_t bytes, uint32_t keep_max);
void pool_fini(struct pool *p);  /* objects that are out must be given back before */
void *pool_take(struct pool *p); /* never NULL: ends the program as mem_new does */
void *pool_try(struct pool *p);  /* NULL: no memory; where a peer decides how many there are */
void pool_give(struct pool *p, void *object); /* NULL does nothing */

#endif
