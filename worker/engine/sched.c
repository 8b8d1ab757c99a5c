/* sched.c - the plan of one step. No clock, no backend: blocks and lists only. */
#include "worker/engine/sched.h"

void sched_init(struct sched *c, struct blocks *b, uint32_t sequences_max, uint32_t step_tokens)
{
    memset(c, 0, sizeof(*c));
    c->blocks = b;
    c->sequences_max = sequences_max;
    c->step_tokens = step_tokens;
    for (int i = 0; i < SCHED_CLASSES; i++) {
        list_init(&c->waiting[i]);
    }
    list_init(&c->running);
    c->share = mem_new(sequences_max * sizeof(*c->share));
}

void sched_fini(struct sched *c)
{
    CHECK(c->n_waiting == 0 && c->n_running == 0);
    mem_free(c->share);
}

/* Keeps a list in order; a newcomer is nearly always the last. */
static void insert_in_order(struct list *head, struct seq *s)
{
    struct list *at = head->prev;

    while (at != head && seq_before(s, seq_of(at))) {
        at = at->prev;
    }
    list_push_front(at, &s->node);
}

void sched_add(struct sched *c, struct seq *s)
{
    CHECK(s->state == SEQ_WAITING);
    insert_in_order(&c->waiting[s->request->class], s);
    c->n_waiting++;
}

static void leave_list(struct sched *c, struct seq *s)
{
    list_remove(&s->node);
    if (s->state == SEQ_WAITING) {
        c->n_waiting--;
    } else {
        c->n_running--;
    }
}

void sched_end(struct sched *c, struct seq *s, enum engine_finish why)
{
    leave_list(c, s);
    seq_release(s, c->blocks);
    seq_set_state(s, SEQ_ENDED);
    s->finish = why;
}

static void preempt(struct sched *c, struct seq *s)
{
    leave_list(c, s);
    seq_release(s, c->blocks);
    seq_set_state(s, SEQ_WAITING);
    sched_add(c, s);
    c->preemptions++;
}

/* Batch requests promise no latency: when every place is taken, the last of them makes way for one
 * that waits with a client behind it. Before the plan, for who has rows keeps its blocks. */
static void make_way(struct sched *c)
{
    struct seq *last;

    if (c->n_running < c->sequences_max || (list_is_empty(&c->waiting[ENGINE_INTERACTIVE]) &&
                                            list_is_empty(&c->waiting[ENGINE_STANDARD]))) {
        return;
    }
    last = seq_of(c->running.prev);
    if (last->request->class == ENGINE_BATCH) {
        preempt(c, last);
    }
}

static void give_rows(struct sched *c, struct seq *s, uint32_t rows)
{
    c->share[c->n_share++] = (struct sched_share){.seq = s, .rows = rows};
}

/* A block for the newest token, at the cost of the last in order. false: that was s itself. */
static bool grow_or_preempt(struct sched *c, struct seq *s)
{
    while (!seq_grow(s, c->blocks, s->n_tokens)) {
        struct seq *last = seq_of(c->running.prev);

        preempt(c, last);
        if (last == s) {
            return false;
        }
    }
    return true;
}

static void plan_decodes(struct sched *c, uint32_t *budget)
{
    struct list *it = c->running.next;

    while (it != &c->running) {
        struct seq *s = seq_of(it);

        if (s->state == SEQ_DECODE) {
            if (!grow_or_preempt(c, s)) {
                return; /* it was the last */
            }
            give_rows(c, s, 1);
            (*budget)--;
        }
        it = it->next; /* read now: those behind may have been preempted */
    }
}

static void plan_prefill(struct sched *c, struct seq *s, uint32_t *budget)
{
    uint32_t left = s->n_tokens - s->computed;
    uint32_t rows = left < *budget ? left : *budget;

    if (rows > 0) {
        give_rows(c, s, rows);
        *budget -= rows;
    }
}

/* The whole known text must fit at once: a chunk admitted without room for the rest would only be
 * preempted again. One block a running sequence stays spare for the same reason. */
static bool admit(struct sched *c, struct seq *s)
{
    if (!seq_take_prompt(s, c->blocks, c->n_running)) {
        return false;
    }
    leave_list(c, s);
    seq_set_state(s, s->n_tokens - s->computed > 1 ? SEQ_PREFILL : SEQ_DECODE);
    insert_in_order(&c->running, s);
    c->n_running++;
    return true;
}

void sched_plan(struct sched *c, void (*admitted)(void *ctx, struct seq *s), void *ctx)
{
    uint32_t budget = c->step_tokens;

    c->n_share = 0;
    make_way(c);
    plan_decodes(c, &budget);
    LIST_EACH(it, &c->running)
    {
        if (seq_of(it)->state == SEQ_PREFILL) {
            plan_prefill(c, seq_of(it), &budget);
        }
    }
    for (int class = ENGINE_INTERACTIVE; class < SCHED_CLASSES; class ++) {
        while (!list_is_empty(&c->waiting[class])) {
            struct seq *s = seq_of(c->waiting[class].next);

            /* One that does not fit stops those behind it too: they would overtake it for ever. */
            if (budget == 0 || c->n_running == c->sequences_max || !admit(c, s)) {
                return;
            }
            admitted(ctx, s);
            plan_prefill(c, s, &budget);
        }
    }
}
