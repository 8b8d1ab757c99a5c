/* cpu.c - the cpu backend: packed weights, bf16 KV pages, one pool. The pass itself: step.c.
 *
 * Policy `exact`: the bits of every logit are the same for any batch, chunk, cache hit, thread
 * count and level (kernels.h states the order of all sums). Policy `fast`: README.md, "Fast". */
#include "worker/cpu/cpu.h"

#include "worker/model/quant.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PACK_PAD 4096u   /* kernels prefetch past the end of the last group */
#define PEAK_ROUNDS 3u   /* best of: a measurement at start, not a benchmark */
#define PEAK_CALLS 2000u /* kernel calls a thread in the arithmetic round: some milliseconds */

/* Zero pages, in huge pages where the system has them. */
static void *map_bytes(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

    if (p == MAP_FAILED) {
        return NULL;
    }
    madvise(p, bytes, MADV_HUGEPAGE); /* a wish */
    return p;
}

static void check_batch(const struct cpu *c, const struct batch *b)
{
    CHECK(b->rows >= 1 && b->rows <= c->rows_max && b->wanted <= b->rows);
    for (uint32_t i = 0; i < b->rows; i++) {
        CHECK(b->ids[i] >= 0 && (uint32_t)b->ids[i] < c->m->vocab);
    }
    for (uint32_t i = 0; i < b->wanted; i++) {
        CHECK(b->want[i] < b->rows);
    }
    for (uint32_t s = 0; s < b->sequences; s++) {
        CHECK(b->q_len[s] >= 1 && b->q_len[s] <= b->kv_len[s] && b->kv_len[s] <= c->m->context);
        CHECK(b->q_start[s] <= b->rows && b->q_len[s] <= b->rows - b->q_start[s]);
        for (uint32_t i = 0; i * KERNEL_TILE < b->kv_len[s]; i++) {
            CHECK(b->table[s][i] < c->blocks);
        }
    }
}

static void cpu_forward(struct backend *base, const struct batch *b, float *logits)
{
    struct cpu *c = (struct cpu *)base;
    struct cpu_step step = {c, b, logits};

    check_batch(c, b);
    cpu_step_plan(c, b);
    pool_run(c->pool, cpu_step_run, &step);
}

static uint64_t cpu_kv_block_bytes(const struct backend *base)
{
    const struct cpu *c = (const struct cpu *)base;

    return (uint64_t)c->m->layers * 2 * c->m->kv_heads * c->page_bytes;
}

static void drop_kv(struct cpu *c)
{
    if (c->kv != NULL) {
        munmap(c->kv, c->kv_bytes);
    }
    c->kv = NULL;
    c->blocks = 0;
}

static bool cpu_kv_init(struct backend *base, uint32_t blocks, struct err *e)
{
    struct cpu *c = (struct cpu *)base;
    size_t bytes;

    drop_kv(c);
    if (blocks == 0 || __builtin_mul_overflow(blocks, cpu_kv_block_bytes(base), &bytes) ||
        (c->kv = map_bytes(bytes)) == NULL) {
        return err_set(e, ERR_NO_MEMORY, "no memory for %u KV blocks of %llu bytes", blocks,
                       (unsigned long long)cpu_kv_block_bytes(base));
    }
    c->kv_bytes = bytes;
    c->blocks = blocks;
    return true;
}

static void cpu_kv_copy(struct backend *base, uint32_t dst, uint32_t src)
{
    struct cpu *c = (struct cpu *)base;
    size_t n = cpu_kv_block_bytes(base);

    CHECK(dst < c->blocks && src < c->blocks && dst != src);
    memcpy(c->kv + dst * n, c->kv + src * n, n);
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct peak_work {
    struct cpu *c;
    _Atomic uint64_t sink; /* keeps the reads alive */
};

static void read_all(void *context, unsigned id, unsigned width)
{
    struct peak_work *w = context;
    size_t lines = w->c->packed_bytes / 64;
    const uint64_t *p = (const uint64_t *)(const void *)w->c->packed;
    uint64_t a = 0, b = 0, c = 0, d = 0;

    for (size_t i = lines * id / width; i < lines * (id + 1) / width; i++) {
        a ^= p[8 * i] ^ p[8 * i + 4];
        b ^= p[8 * i + 1] ^ p[8 * i + 5];
        c ^= p[8 * i + 2] ^ p[8 * i + 6];
        d ^= p[8 * i + 3] ^ p[8 * i + 7];
    }
    atomic_fetch_add(&w->sink, a + b + c + d);
}

static uint32_t peak_rows(const struct cpu *c)
{
    uint32_t most = c->fast ? KERNEL_FAST_ROWS_MAX : 12;

    return c->rows_max < most ? c->rows_max : most;
}

/* One group (`fast`: two) against some rows, again and again: all operands stay near. */
static void multiply_all(void *context, unsigned id, unsigned width)
{
    struct peak_work *w = context;
    struct cpu *c = w->c;
    struct cpu_thread *t = &c->thread[id];
    const struct packed *p = &c->layer[0].gate;
    uint32_t rows = peak_rows(c);

    (void)width;
    for (uint32_t i = 0; i < PEAK_CALLS; i++) {
        if (c->fast) {
            cpu_groups_fast(c, p, 0, 2, &c->act_d, 0, rows, t->gate, KERNEL_BLOCK, GEMM_SET,
                            t->fast);
        } else {
            cpu_group(c, p, 0, &c->act_d, 0, rows, t->gate, KERNEL_LANES, GEMM_SET, NULL);
        }
    }
}

static struct backend_peaks cpu_peaks(struct backend *base)
{
    struct cpu *c = (struct cpu *)base;
    struct peak_work w = {.c = c};
    struct backend_peaks best = {0, 0};
    double flop = 2.0 * (c->fast ? 2 : 1) * KERNEL_LANES * c->m->d * peak_rows(c) * PEAK_CALLS;

    for (unsigned i = 0; i < PEAK_ROUNDS; i++) {
        double begin = seconds();
        pool_run(c->pool, read_all, &w);
        double rate = (double)c->packed_bytes / (seconds() - begin) * 1e-9;
        best.read_gbs = rate > best.read_gbs ? rate : best.read_gbs;
        begin = seconds();
        unsigned width = pool_width(c->pool);
        pool_run(c->pool, multiply_all, &w);
        rate = flop * width / (seconds() - begin) * 1e-9;
        best.gflops = rate > best.gflops ? rate : best.gflops;
    }
    return best;
}

static const char *cpu_describe(const struct backend *base)
{
    return ((const struct cpu *)base)->text;
}

static void *line_alloc(size_t count, size_t bytes)
{
    size_t n;

    if (__builtin_mul_overflow(count, bytes, &n) || n > SIZE_MAX - 64) {
        return NULL;
    }
    void *p = aligned_alloc(64, (n + 63) / 64 * 64 + 64);
    if (p != NULL) {
        memset(p, 0, n);
    }
    return p;
}

/* In policy `fast` rows may also be wanted in bf16: in whole tiles. */
static bool act_new(struct act *a, uint32_t rows, uint32_t columns, bool fast)
{
    size_t blocks = columns / KERNEL_BLOCK;

    a->columns = columns;
    a->q = line_alloc(rows, columns);
    a->d = line_alloc(rows, blocks * sizeof(float));
    a->s = line_alloc(rows, blocks * sizeof(float));
    a->c = line_alloc(rows, blocks * sizeof(int32_t));
    if (fast) {
        a->tiles = line_alloc((rows + KERNEL_LANES - 1) / KERNEL_LANES * KERNEL_LANES,
                              columns * sizeof(*a->tiles));
    }
    return a->q != NULL && a->d != NULL && a->s != NULL && a->c != NULL &&
           (!fast || a->tiles != NULL);
}

static void act_free(struct act *a)
{
    free(a->q);
    free(a->d);
    free(a->s);
    free(a->c);
    free(a->tiles);
}

static void cpu_close(struct backend *base)
{
    struct cpu *c = (struct cpu *)base;

    pool_free(c->pool);
    for (unsigned i = 0; c->thread != NULL && i < c->threads; i++) {
        struct cpu_thread *t = &c->thread[i];
        act_free(&t->own);
        free(t->row);
        free(t->gate);
        free(t->up);
        free(t->tail);
        free(t->attend);
        free(t->fast);
    }
    free(c->thread);
    act_free(&c->act_d);
    act_free(&c->act_q);
    act_free(&c->act_ff);
    drop_kv(c);
    if (c->packed != NULL) {
        munmap(c->packed, c->packed_bytes);
    }
    void *const owned[] = {c->layer,        c->norms,        c->rope, c->x,        c->qkv,
                           c->row_position, c->row_sequence, c->unit, c->next_unit};
    for (size_t i = 0; i < ARRAY_LEN(owned); i++) {
        free(owned[i]);
    }
    mem_free(c);
}

static bool thread_new(const struct cpu *c, struct cpu_thread *t)
{
    const struct model *m = c->m;
    uint32_t group = m->heads / m->kv_heads;
    uint32_t queries = group > CPU_ATTEND_QUERIES ? group : CPU_ATTEND_QUERIES;

    t->row = line_alloc(m->d, sizeof(float));
    t->gate = line_alloc(CPU_ROWS_AT_ONCE * KERNEL_BLOCK, sizeof(float));
    t->up = line_alloc(CPU_ROWS_AT_ONCE * KERNEL_BLOCK, sizeof(float));
    t->tail = line_alloc(CPU_ROWS_AT_ONCE * KERNEL_LANES, sizeof(float));
    t->attend = line_alloc(kernel_attend_scratch(queries, m->head_dim), sizeof(float));
    t->fast = c->fast ? line_alloc(1, KERNEL_FAST_SCRATCH) : NULL;
    return act_new(&t->own, CPU_ROWS_OWN, m->d, false) && t->row != NULL && t->gate != NULL &&
           t->up != NULL && t->tail != NULL && t->attend != NULL && (!c->fast || t->fast != NULL);
}

static bool allocate(struct cpu *c)
{
    const struct model *m = c->m;

    c->layer = line_alloc(m->layers, sizeof(*c->layer));
    c->norms = line_alloc(2 * m->layers + 1, m->d * sizeof(float));
    c->rope = line_alloc(m->context, m->head_dim * sizeof(float));
    c->x = line_alloc(c->rows_max, m->d * sizeof(float));
    c->qkv = line_alloc(c->rows_max, c->qkv_size * sizeof(float));
    c->row_position = line_alloc(c->rows_max, sizeof(uint32_t));
    c->row_sequence = line_alloc(c->rows_max, sizeof(uint32_t));
    c->unit = line_alloc(c->rows_max, m->heads * sizeof(*c->unit));
    c->next_unit = line_alloc(m->layers, sizeof(*c->next_unit));
    c->thread = line_alloc(c->threads, sizeof(*c->thread));
    if (c->layer == NULL || c->norms == NULL || c->rope == NULL || c->x == NULL || c->qkv == NULL ||
        c->row_position == NULL || c->row_sequence == NULL || c->unit == NULL ||
        c->next_unit == NULL || c->thread == NULL ||
        !act_new(&c->act_d, c->rows_max, m->d, c->fast) ||
        !act_new(&c->act_q, c->rows_max, c->q_size, c->fast) ||
        !act_new(&c->act_ff, c->rows_max, m->ff, c->fast)) {
        return false;
    }
    for (unsigned i = 0; i < c->threads; i++) {
        if (!thread_new(c, &c->thread[i])) {
            return false;
        }
    }
    return true;
}

static void copy_norms(struct cpu *c)
{
    const struct model *m = c->m;
    size_t bytes = m->d * sizeof(float);

    for (uint32_t l = 0; l < m->layers; l++) {
        memcpy(c->norms + (size_t)2 * l * m->d, m->layer[l].attn_norm.data, bytes);
        memcpy(c->norms + (size_t)(2 * l + 1) * m->d, m->layer[l].ffn_norm.data, bytes);
    }
    memcpy(c->norms + (size_t)2 * m->layers * m->d, m->out_norm.data, bytes);
}

struct pack_item {
    const struct weight *from;
    struct packed *to;
};

struct pack_work {
    const struct pack_item *items;
    uint32_t count;
    _Atomic bool failed;
};

static void pack_share(void *context, unsigned id, unsigned width)
{
    struct pack_work *w = context;

    for (uint32_t i = 0; i < w->count; i++) {
        const struct pack_item *item = &w->items[i];
        uint32_t begin = (uint32_t)((uint64_t)item->to->groups * id / width);
        uint32_t end = (uint32_t)((uint64_t)item->to->groups * (id + 1) / width);
        if (!pack_groups(item->from, item->to, (uint8_t *)(uintptr_t)item->to->data, begin, end)) {
            atomic_store(&w->failed, true);
        }
    }
}

static uint32_t list_matrices(struct cpu *c, struct pack_item *items)
{
    uint32_t n = 0;

    for (uint32_t l = 0; l < c->m->layers; l++) {
        const struct model_layer *from = &c->m->layer[l];
        struct cpu_layer *to = &c->layer[l];
        items[n++] = (struct pack_item){&from->q, &to->q};
        items[n++] = (struct pack_item){&from->k, &to->k};
        items[n++] = (struct pack_item){&from->v, &to->v};
        items[n++] = (struct pack_item){&from->o, &to->o};
        items[n++] = (struct pack_item){&from->gate, &to->gate};
        items[n++] = (struct pack_item){&from->up, &to->up};
        items[n++] = (struct pack_item){&from->down, &to->down};
    }
    items[n++] = (struct pack_item){&c->m->head, &c->head};
    return n;
}

/* Gate and up, which lie side by side, are read a group in turns (step.c): one stream of memory
 * is fetched faster than two. */
static void interleave(struct packed *gate, struct packed *up)
{
    if (gate->form == up->form && gate->groups == up->groups) {
        gate->gap = up->gap = gate->group_bytes;
        up->data = gate->data + gate->gap;
    }
}

static bool pack_all(struct cpu *c, struct err *e)
{
    struct pack_item *items = mem_new((7 * c->m->layers + 1) * sizeof(*items));
    struct pack_work work = {.items = items, .count = list_matrices(c, items)};
    size_t at = 0;
    bool ok = false;

    for (uint32_t i = 0; i < work.count; i++) {
        *items[i].to = pack_plan(items[i].from);
        at += pack_bytes(items[i].to);
    }
    c->packed = map_bytes(at + PACK_PAD);
    if (c->packed == NULL) {
        err_set(e, ERR_NO_MEMORY, "no memory for %zu bytes of packed weights", at);
        goto out;
    }
    c->packed_bytes = at + PACK_PAD;
    at = 0;
    for (uint32_t i = 0; i < work.count; i++) {
        items[i].to->data = c->packed + at;
        at += pack_bytes(items[i].to);
    }
    for (uint32_t l = 0; l < c->m->layers; l++) {
        interleave(&c->layer[l].gate, &c->layer[l].up);
    }
    pool_run(c->pool, pack_share, &work);
    ok = !work.failed || err_set(e, ERR_UNSUPPORTED, "a block scale does not fit 16 bits");
out:
    mem_free(items);
    return ok;
}

/* The file's tensors are packed now: their pages may go. What is read again (rows of the embedding)
 * comes back from the page cache. Without it a model would be resident twice. */
static void drop_file_pages(const struct model *m)
{
    long page = sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)m->file.map + m->file.data_offset;
    uintptr_t end = (uintptr_t)m->file.map + m->file.map_bytes;

    if (!m->file.mapped || page <= 0) {
        return;
    }
    begin = (begin + (uintptr_t)page - 1) / (uintptr_t)page * (uintptr_t)page;
    if (begin < end) {
        madvise((void *)begin, end - begin, MADV_DONTNEED); /* a wish */
    }
}

static bool shape_fits(const struct cpu *c, struct err *e)
{
    const struct model *m = c->m;

    if (m->d % KERNEL_BLOCK == 0 && c->q_size % KERNEL_BLOCK == 0 && m->ff % KERNEL_BLOCK == 0 &&
        m->head_dim % KERNEL_LANES == 0 && m->head_dim <= KERNEL_HEAD_DIM_MAX) {
        return true;
    }
    return err_set(e, ERR_UNSUPPORTED,
                   "the cpu backend needs widths (%u, %u, %u) in multiples of 32 and heads (%u) in "
                   "multiples of 16 up to %u; the ref backend has no such needs",
                   m->d, c->q_size, m->ff, m->head_dim, KERNEL_HEAD_DIM_MAX);
}

static void describe(struct cpu *c, const struct backend_options *o)
{
    char policy[64] = "exact";

    if (c->fast) {
        snprintf(policy, sizeof(policy), "fast (AMX bf16 from %u rows on)", KERNEL_FAST_ROWS);
    } else if (o->policy == BACKEND_POLICY_FAST) {
        snprintf(policy, sizeof(policy), "exact (fast equals it: no AMX bf16 in use)");
    }
    snprintf(c->text, sizeof(c->text), "cpu: %s, %u thread%s, %s, %s KV", c->kernels->name,
             o->threads, o->threads == 1 ? "" : "s", policy, backend_kv_dtype_name(o->kv_dtype));
}

struct backend *backend_cpu_open(const struct model *m, const struct backend_options *o,
                                 struct err *e)
{
    const struct kernels *k = cpu_level_kernels(o->level, e);

    return k == NULL ? NULL
                     : cpu_open_with(m, o, k,
                                     o->policy == BACKEND_POLICY_FAST && cpu_level_has_fast(k), e);
}

struct backend *cpu_open_with(const struct model *m, const struct backend_options *o,
                              const struct kernels *k, bool fast, struct err *e)
{
    static const struct backend_ops ops = {
        .name = "cpu",
        .kv_init = cpu_kv_init,
        .kv_copy = cpu_kv_copy,
        .forward = cpu_forward,
        .kv_block_bytes = cpu_kv_block_bytes,
        .peaks = cpu_peaks,
        .describe = cpu_describe,
        .close = cpu_close,
    };
    struct cpu *c = mem_new(sizeof(*c));

    CHECK(o->rows_max >= 1 && o->threads >= 1);
    c->base.ops = &ops;
    c->m = m;
    c->threads = o->threads;
    c->rows_max = o->rows_max;
    c->q_size = m->heads * m->head_dim;
    c->kv_size = m->kv_heads * m->head_dim;
    c->qkv_size = c->q_size + 2 * c->kv_size;
    c->kv_form = o->kv_dtype == BACKEND_KV_INT8 ? KV_INT8 : KV_BF16;
    c->page_bytes = kernel_page_bytes(c->kv_form, m->head_dim);
    c->kernels = k;
    c->fast = fast;
    if (!shape_fits(c, e) || (c->pool = pool_new(o->threads, e)) == NULL) {
        goto failed;
    }
    if (!allocate(c)) {
        err_set(e, ERR_NO_MEMORY, "no memory for %u rows of activations", o->rows_max);
        goto failed;
    }
    if (!pack_all(c, e)) {
        goto failed;
    }
    copy_norms(c);
    drop_file_pages(m);
    model_rope_table(m, c->rope);
    describe(c, o);
    return &c->base;
failed:
    cpu_close(&c->base);
    return NULL;
}
