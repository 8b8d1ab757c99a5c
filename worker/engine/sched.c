/* sched.c - the plan of one step. Time is an argument; no backend: blocks and lists only. */
#include "worker/engine/sched.h"

void sched_init(struct sched *c, struct blocks *b, struct spec_pool *drafts,
                const struct engine_options *o)
{
    memset(c, 0, sizeof(*c));
    c->blocks = b;
    c->drafts = drafts;
    c->sequences_max = o->sequences_max;
    c->aging_us = o->aging_us;
    c->due_us = UINT64_MAX;
    for (int i = 0; i < SCHED_RANKS; i++) {
        list_init(&c->waiting[i]);
    }
    list_init(&c->running);
    c->share = mem_new(o->sequences_max * sizeof(*c->share));
}

void sched_fini(struct sched *c)
{
    CHECK(c->n_waiting == 0 && c->n_running == 0 && c->group_last == NULL);
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

/* When something is due for one that waits: its queue deadline or its aging. */
static uint64_t due_of(const struct sched *c, const struct seq *s)
{
    uint64_t due = UINT64_MAX;

    if (!s->started && s->request->queue_deadline_us != 0) {
        due = s->request->queue_deadline_us;
    }
    if (c->aging_us != 0 && !s->aged && s->waiting_since_us + c->aging_us < due) {
        due = s->waiting_since_us + c->aging_us;
    }
    return due;
}

static void wait_in_line(struct sched *c, struct seq *s)
{
    uint64_t due;

    CHECK(s->state == SEQ_WAITING);
    s->waiting_since_us = c->now_us;
    insert_in_order(&c->waiting[s->rank], s);
    c->n_waiting++;
    due = due_of(c, s);
    c->due_us = due < c->due_us ? due : c->due_us;
}

/* A prompt within one block has nothing that a sibling could hit. */
static void join_group(struct sched *c, struct seq *s)
{
    struct seq *last = c->group_last;

    if (s->request->group == 0 || s->n_prompt <= BLOCK_TOKENS) {
        return;
    }
    if (last != NULL && last->request->group == s->request->group) {
        list_push_front(&last->siblings, &s->siblings);
        s->held = seq_answered(last) == 0 && last->computed < last->n_prompt;
    }
    c->group_last = s;
}

void sched_group_begun(struct sched *c, uint64_t group)
{
    for (int rank = ENGINE_INTERACTIVE; group != 0 && rank < SCHED_RANKS; rank++) {
        LIST_EACH(it, &c->waiting[rank])
        {
            struct seq *s = seq_of(it);

            s->begun = s->begun || s->request->group == group;
        }
    }
}

void sched_prompt_computed(struct seq *s)
{
    LIST_EACH(it, &s->siblings)
    {
        CONTAINER_OF(it, struct seq, siblings)->held = false;
    }
}

/* The ring's order is arrival. Each that is held comes after one that is not and whose prompt is
 * not computed yet: when that leaves, the next one takes its place. */
static void leave_group(struct sched *c, struct seq *s)
{
    struct list *next = s->siblings.next, *prev = s->siblings.prev;
    bool alone = list_is_empty(&s->siblings);

    if (c->group_last == s) {
        c->group_last = alone ? NULL : CONTAINER_OF(prev, struct seq, siblings);
    }
    if (!alone && !s->held) {
        CONTAINER_OF(next, struct seq, siblings)->held = false;
    }
    list_remove(&s->siblings);
}

void sched_add(struct sched *c, struct seq *s)
{
    join_group(c, s);
    wait_in_line(c, s);
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

static void give_back(struct sched *c, struct seq *s)
{
    seq_release(s, c->blocks);
    if (c->drafts != NULL) {
        spec_pool_drop(c->drafts, s);
    }
}

void sched_end(struct sched *c, struct seq *s, enum engine_finish why)
{
    leave_list(c, s);
    leave_group(c, s);
    give_back(c, s);
    seq_set_state(s, SEQ_ENDED);
    s->finish = why;
}

static void preempt(struct sched *c, struct seq *s)
{
    leave_list(c, s);
    give_back(c, s);
    seq_set_state(s, SEQ_WAITING);
    wait_in_line(c, s);
    c->preemptions++;
}

/* One class better; who is in the best one already gets the past as its deadline. */
static void age(struct sched *c, struct seq *s)
{
    s->aged = true;
    if (s->rank > ENGINE_INTERACTIVE) {
        s->rank--;
    } else if (s->deadline_us > c->now_us) {
        s->deadline_us = c->now_us;
    }
    list_remove(&s->node);
    insert_in_order(&c->waiting[s->rank], s);
}

/* One that came after the first of its group had begun. */
static bool group_runs(const struct sched *c, uint64_t group)
{
    LIST_EACH(it, &c->running)
    {
        if (group != 0 && seq_of(it)->request->group == group) {
            return true;
        }
    }
    return false;
}

static bool is_overdue(const struct sched *c, const struct seq *s)
{
    uint64_t due = s->request->queue_deadline_us;

    /* Of a group whose first has begun the others go on: its client hears an answer. */
    return due != 0 && due <= c->now_us && !s->started && !s->held && !s->begun &&
           !group_runs(c, s->request->group);
}

void sched_tick(struct sched *c, uint64_t now_us, void (*expired)(void *ctx, struct seq *s),
                void *ctx)
{
    c->now_us = now_us;
    if (now_us < c->due_us) {
        return;
    }
    c->due_us = UINT64_MAX;
    for (int rank = ENGINE_INTERACTIVE; rank < SCHED_RANKS; rank++) {
        LIST_EACH_SAFE(it, tmp, &c->waiting[rank])
        {
            struct seq *s = seq_of(it);
            uint64_t due;

            if (is_overdue(c, s)) {
                expired(ctx, s);
                continue;
            }
            if (c->aging_us != 0 && !s->aged && s->waiting_since_us + c->aging_us <= now_us) {
                age(c, s);
            }
            due = due_of(c, s);
            c->due_us = due < c->due_us ? due : c->due_us;
        }
    }
}

/* The youngest of the lowest rank among those that run, of rank `best` or lower; or NULL. */
static struct seq *victim(const struct sched *c, uint32_t best)
{
    struct seq *worst = NULL;

    LIST_EACH(it, &c->running)
    {
        struct seq *s = seq_of(it);

        if (s->rank >= best && (worst == NULL || s->rank > worst->rank ||
                                (s->rank == worst->rank && s->order > worst->order))) {
            worst = s;
        }
    }
    return worst;
}

/* The next to be admitted, of rank `most` or better: siblings of a prompt that is being computed
 * are passed over. */
static struct seq *next_in_line(const struct sched *c, uint32_t most)
{
    for (uint32_t rank = ENGINE_INTERACTIVE; rank <= most; rank++) {
        LIST_EACH(it, &c->waiting[rank])
        {
            if (!seq_of(it)->held) {
                return seq_of(it);
            }
        }
    }
    return NULL;
}

/* Upper bound: some of these may be shared. */
static uint32_t blocks_of_batch(const struct sched *c)
{
    uint32_t n = 0;

    LIST_EACH(it, &c->running)
    {
        n += seq_of(it)->rank == ENGINE_BATCH ? seq_of(it)->n_table : 0;
    }
    return n;
}

/* Batch requests promise no latency: they make way for one that waits with a client behind it, for
 * a place and for blocks. Before the plan, for who has rows keeps its blocks; so one newcomer a
 * step. */
static void make_way(struct sched *c)
{
    struct seq *last = victim(c, ENGINE_BATCH), *s;
    uint32_t lacks;

    if (last == NULL) {
        return;
    }
    s = next_in_line(c, ENGINE_STANDARD);
    if (s == NULL) {
        return;
    }
    lacks = seq_lacks(s, c->blocks, c->n_running);
    if (lacks > blocks_of_batch(c)) {
        return; /* would not help */
    }
    while (last != NULL && (lacks > 0 || c->n_running == c->sequences_max)) {
        preempt(c, last);
        lacks = seq_lacks(s, c->blocks, c->n_running);
        last = victim(c, ENGINE_BATCH);
    }
}

static void give_rows(struct sched *c, struct seq *s, uint32_t rows)
{
    c->share[c->n_share++] = (struct sched_share){.seq = s, .rows = rows};
}

/* A block for the newest token, at the cost of the victim. false: that was s itself. */
static bool grow_or_preempt(struct sched *c, struct seq *s)
{
    while (!seq_grow(s, c->blocks, s->n_tokens)) {
        struct seq *last = victim(c, s->rank);

        CHECK(last != NULL); /* s at least */
        preempt(c, last);
        if (last == s) {
            return false;
        }
    }
    return true;
}

/* Before anyone has rows, for who has rows keeps its blocks. */
static void grow_decodes(struct sched *c)
{
    struct list *it = c->running.next;

    while (it != &c->running) {
        struct seq *s = seq_of(it);

        if (s->state != SEQ_DECODE || grow_or_preempt(c, s)) {
            it = it->next; /* read now: those behind may have been preempted */
        } else {
            it = c->running.next; /* s is gone: again, those that have their block take none */
        }
    }
}

void sched_plan_decodes(struct sched *c)
{
    c->n_share = 0;
    make_way(c);
    grow_decodes(c);
    LIST_EACH(it, &c->running)
    {
        if (seq_of(it)->state == SEQ_DECODE) {
            give_rows(c, seq_of(it), 1);
        }
    }
}

bool sched_has_prefill(const struct sched *c)
{
    return c->n_waiting > 0 || c->n_running > c->n_share;
}

static void plan_chunk(struct sched *c, struct seq *s, uint32_t *rows)
{
    uint32_t left = s->n_tokens - s->computed;
    uint32_t n = left < *rows ? left : *rows;

    if (n > 0) {
        give_rows(c, s, n);
        *rows -= n;
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

/* Newcomers have what those that run leave, so however urgent they are, a prompt once begun is
 * computed. */
void sched_plan_prefill(struct sched *c, uint32_t rows, void (*admitted)(void *ctx, struct seq *s),
                        void *ctx)
{
    LIST_EACH(it, &c->running)
    {
        if (seq_of(it)->state == SEQ_PREFILL) {
            plan_chunk(c, seq_of(it), &rows);
        }
    }
    while (rows > 0 && c->n_running < c->sequences_max) {
        struct seq *s = next_in_line(c, ENGINE_BATCH);

        /* One that does not fit stops those behind it too: they would overtake it for ever. */
        if (s == NULL || !admit(c, s)) {
            return;
        }
        admitted(ctx, s);
        plan_chunk(c, s, &rows);
    }
}
