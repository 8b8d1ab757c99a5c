/* list.h - intrusive doubly linked list. The head is a node; an empty list points to itself. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include "base/base.h"

struct list {
    struct list *prev, *next;
};

static inline void list_init(struct list *l)
{
    l->prev = l->next = l;
}

static inline bool list_is_empty(const struct list *l)
{
    return l->next == l;
}

static inline void list_push_back(struct list *head, struct list *n)
{
    n->prev = head->prev;
    n->next = head;
    head->prev->next = n;
    head->prev = n;
}

static inline void list_push_front(struct list *head, struct list *n)
{
    list_push_back(head->next, n);
}

/* Takes n out of its list; n is then an empty list of its own, so a second call does nothing. */
static inline void list_remove(struct list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}

static inline struct list *list_pop_front(struct list *head)
{
    struct list *n = head->next;

    if (n == head) {
        return NULL;
    }
    list_remove(n);
    return n;
}

#define LIST_EACH(it, head) for (struct list *it = (head)->next; it != (head); it = it->next)
#define LIST_EACH_SAFE(it, tmp, head)                                                              \
    for (struct list *it = (head)->next, *tmp = it->next; it != (head); it = tmp, tmp = it->next)

#endif
