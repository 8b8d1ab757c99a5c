/* json_keys.h - the keys of one open object, so that the parser can refuse duplicates. */
#ifndef BASE_JSON_KEYS_H
#define BASE_JSON_KEYS_H

#include "base/json.h"

struct json_slot;

/* Zeroed at first; kept for the next object at the same depth. Memory is the arena's: at most a
 * few slots a member, over the whole document. */
struct json_keys {
    struct json_slot *slots;
    size_t allocated;       /* slots there is room for */
    size_t cap;             /* slots in use: a power of two, 0 while comparing one by one */
    uint64_t probes;        /* work so far */
    bool flooded;           /* given up: the keys are sorted when the object ends */
    struct json_slot *next; /* where the key that was just checked goes */
    uint64_t next_hash;
};

enum json_keys_answer { JSON_KEYS_NEW = 1, JSON_KEYS_DUPLICATE, JSON_KEYS_NO_MEMORY };

void json_keys_begin(struct json_keys *k);
/* Before a member with this key joins the object. NEW may turn out wrong at the end (flooded). */
enum json_keys_answer json_keys_check(struct json_keys *k, struct arena *a,
                                      const struct json *object, struct str key);
/* After the member whose key was just checked joined. */
void json_keys_added(struct json_keys *k, struct json *member);
/* When the object is complete; *key is set on DUPLICATE. */
enum json_keys_answer json_keys_end(struct json_keys *k, struct arena *a, const struct json *object,
                                    struct str *key);

#endif
