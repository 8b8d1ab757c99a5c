/* json_keys.c - no key twice in one object, in linear time: past a few members, a hash table. */
#include "base/json_keys.h"

#include <stdlib.h>

#include "base/hash.h"

/* Up to here keys are compared one by one: cheaper than a table, and nearly all objects. */
#define KEYS_LINEAR_MAX 8
#define KEYS_SLOTS_MIN 32
/* Probes that honest keys never need at half load; past them the table is given up. */
#define KEYS_PROBES(members) (16 * (uint64_t)(members) + 64)

struct json_slot {
    uint64_t hash;
    struct json *member; /* NULL: free */
};

void json_keys_begin(struct json_keys *k)
{
    k->cap = 0;
    k->probes = 0;
    k->flooded = false;
}

/* The member with this key, or NULL with *at on the free slot for it. */
static struct json *keys_find(struct json_keys *k, struct str key, uint64_t hash,
                              struct json_slot **at)
{
    size_t i = (size_t)hash & (k->cap - 1);

    for (;; i = (i + 1) & (k->cap - 1)) {
        *at = &k->slots[i];
        k->probes++;
        if ((*at)->member == NULL) {
            return NULL;
        }
        if ((*at)->hash == hash && str_eq((*at)->member->key, key)) {
            return (*at)->member;
        }
    }
}

static void keys_put(struct json_keys *k, struct json *member)
{
    uint64_t hash = hash_xxh3(member->key.p, member->key.n, 0);
    struct json_slot *at;

    (void)keys_find(k, member->key, hash, &at);
    *at = (struct json_slot){hash, member};
}

/* Makes the table `cap` slots and enters all members anew. */
static bool keys_resize(struct json_keys *k, struct arena *a, const struct json *object, size_t cap)
{
    if (cap > k->allocated) {
        k->slots = arena_array(a, cap, sizeof(*k->slots));
        if (k->slots == NULL) {
            k->allocated = 0;
            return false;
        }
        k->allocated = cap;
    } else {
        memset(k->slots, 0, cap * sizeof(*k->slots));
    }
    k->cap = cap;
    for (struct json *m = object->child; m != NULL; m = m->next) {
        keys_put(k, m);
    }
    return true;
}

enum json_keys_answer json_keys_check(struct json_keys *k, struct arena *a,
                                      const struct json *object, struct str key)
{
    if (object->count < KEYS_LINEAR_MAX) {
        for (const struct json *m = object->child; m != NULL; m = m->next) {
            if (str_eq(m->key, key)) {
                return JSON_KEYS_DUPLICATE;
            }
        }
        return JSON_KEYS_NEW;
    }
    if (k->flooded) {
        return JSON_KEYS_NEW;
    }
    if ((k->cap == 0 || object->count >= k->cap / 2) &&
        !keys_resize(k, a, object, k->cap == 0 ? KEYS_SLOTS_MIN : k->cap * 2)) {
        return JSON_KEYS_NO_MEMORY;
    }
    k->next_hash = hash_xxh3(key.p, key.n, 0);
    if (keys_find(k, key, k->next_hash, &k->next) != NULL) {
        return JSON_KEYS_DUPLICATE;
    }
    k->flooded = k->probes > KEYS_PROBES(object->count);
    return JSON_KEYS_NEW;
}

void json_keys_added(struct json_keys *k, struct json *member)
{
    if (k->cap != 0 && !k->flooded) {
        *k->next = (struct json_slot){k->next_hash, member};
    }
}

static int member_order(const void *a, const void *b)
{
    const struct json *const *x = a, *const *y = b;

    return str_cmp((*x)->key, (*y)->key);
}

/* The hash has no secret (the parser has no randomness to take one from), so keys can be chosen
 * that collide. Such an object is sorted once when it closes: n log n is the worst a client gets.
 */
enum json_keys_answer json_keys_end(struct json_keys *k, struct arena *a, const struct json *object,
                                    struct str *key)
{
    struct json **sorted;
    size_t n = 0;

    if (!k->flooded) {
        return JSON_KEYS_NEW;
    }
    sorted = arena_array(a, object->count, sizeof(struct json *));
    if (sorted == NULL) {
        return JSON_KEYS_NO_MEMORY;
    }
    for (struct json *m = object->child; m != NULL; m = m->next) {
        sorted[n++] = m;
    }
    qsort(sorted, n, sizeof(struct json *), member_order);
    for (size_t i = 1; i < n; i++) {
        if (str_eq(sorted[i - 1]->key, sorted[i]->key)) {
            *key = sorted[i]->key;
            return JSON_KEYS_DUPLICATE;
        }
    }
    return JSON_KEYS_NEW;
}
