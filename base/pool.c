/* pool.c - a chain of objects at rest; the link lies in the object itself. */
#include "base/pool.h"

struct pool_item {
    struct pool_item *next;
};

#ifdef __SANITIZE_ADDRESS__
#define POOL_KEEPS 0
#else
#define POOL_KEEPS 1
#endif

void pool_init(struct pool *p, size_t bytes, uint32_t keep_max)
{
    CHECK(bytes >= sizeof(struct pool_item));
    *p = (struct pool){.keep_max = POOL_KEEPS ? keep_max : 0, .bytes = bytes};
}

void pool_fini(struct pool *p)
{
    while (p->kept != NULL) {
        struct pool_item *item = p->kept;

        p->kept = item->next;
        mem_free(item);
    }
    p->count = 0;
}

void *pool_take(struct pool *p)
{
    return p->kept != NULL ? pool_try(p) : mem_new(p->bytes);
}

void *pool_try(struct pool *p)
{
    struct pool_item *item = p->kept;

    if (item == NULL) {
        return mem_try(1, p->bytes);
    }
    p->kept = item->next;
    p->count--;
    return memset(item, 0, p->bytes);
}

void pool_give(struct pool *p, void *object)
{
    struct pool_item *item = object;

    if (item == NULL) {
        return;
    }
    if (p->count >= p->keep_max) {
        mem_free(item);
        return;
    }
    item->next = p->kept;
    p->kept = item;
    p->count++;
}
