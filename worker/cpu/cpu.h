/* cpu.h - what the cpu backend's files share: its state and one step's work list. */
#ifndef WORKER_CPU_CPU_H
#define WORKER_CPU_CPU_H

#include "worker/backend.h"
#include "worker/cpu/kernels.h"
#include "worker/cpu/pack.h"
#include "worker/cpu/pool.h"

#include <stdatomic.h>

#define CPU_ROWS_AT_ONCE 128u /* activation rows of one kernel call: outputs stay in L1/L2 */
#define CPU_ROWS_OWN 4u       /* up to so many rows a thread normalises alone: no barrier for it */
#define CPU_ROWS_SPREAD 32u   /* from so many on writing KV is work that must be shared evenly */
#define CPU_ATTEND_ROWS 16u   /* rows of one attention unit: shares the widening of a tile */
#define CPU_AHEAD_ROWS 32u    /* steps of more rows have no need of it: see cpu_ahead */
#define CPU_AHEAD_BYTES (2u << 20) /* of a layer and thread: L2 and L3 must still hold them */
#define CPU_ATTEND_QUERIES 48u     /* queries of one unit, unless one row alone has more */

struct cpu_layer {
    struct packed q, k, v, o, gate, up, down;
};

/* The pages of KV that a thread's attention is about to read. While few rows are multiplied the
 * memory has time to spare, which attention lacks. */
struct cpu_ahead {
    uint32_t layer, unit, width,
        tile;      /* the next page; `unit` counts from the last, as they are taken */
    uint32_t left; /* pages that may still be fetched */
};

/* What one thread owns while a step runs. */
struct cpu_thread {
    struct cpu_ahead ahead;
    struct act own;   /* [CPU_ROWS_OWN] of d columns */
    float *row;       /* [d] a normalised row */
    float *gate, *up; /* [CPU_ROWS_AT_ONCE][32] */
    float
        *tail; /* [CPU_ROWS_AT_ONCE][16] the head's last group when the vocabulary is no multiple */
    float *attend; /* kernel_attend_scratch */
    uint8_t *fast; /* KERNEL_FAST_SCRATCH; NULL in policy `exact` */
};

/* Heads first .. first + heads - 1 (on one KV head) of `rows` rows of a sequence, from its row
 * `row`. */
struct cpu_unit {
    uint32_t sequence, row, rows, head, heads;
};

struct cpu {
    struct backend base;   /* first */
    const struct model *m; /* borrowed */
    const struct kernels *kernels;
    bool fast; /* the policy, and kernels has something for it */
    struct pool *pool;
    unsigned threads;
    uint32_t rows_max;
    uint32_t q_size, kv_size, qkv_size; /* heads * head_dim, kv_heads * head_dim, q + 2 kv */
    uint8_t *packed;                    /* one mapping of packed_bytes: all matrices */
    size_t packed_bytes;
    struct cpu_layer *layer; /* [layers] */
    struct packed head;
    float *norms; /* [2 layers + 1][d]: attn, ffn of each layer; output */
    float *rope;  /* [context][head_dim/2][2] */
    uint8_t *kv;  /* pages [block][layer][key value][kv_heads] */
    enum kv_form kv_form;
    size_t page_bytes, kv_bytes;
    uint32_t blocks;
    float *x;                        /* [rows_max][d] residual stream */
    float *qkv;                      /* [rows_max][qkv_size]; q becomes the attention's result */
    struct act act_d, act_q, act_ff; /* [rows_max] of d, q_size, ff columns */
    struct act act_head;             /* act_d again, in the form that the head's rows have */
    struct cpu_thread *thread;       /* [threads] */
    uint32_t *row_position, *row_sequence; /* [rows_max] of the step under way */
    struct cpu_unit *unit;                 /* [rows_max * heads] */
    uint32_t units;
    const struct batch *batch;   /* of the step under way */
    _Atomic uint32_t *next_unit; /* [layers] units not taken yet */
    char text[128];
};

struct cpu_range {
    uint32_t begin, end;
};

/* What thread `id` of `width` gets of n. */
static inline struct cpu_range cpu_share(uint64_t n, unsigned id, unsigned width)
{
    return (struct cpu_range){(uint32_t)(n * id / width), (uint32_t)(n * (id + 1) / width)};
}

struct cpu_step {
    struct cpu *c;
    const struct batch *b;
    float *logits;
};

/* attention.c: units of the batch, for `width` threads. */
void cpu_attention_plan(struct cpu *c, const struct batch *b, unsigned width);
/* Writes keys and values of all rows; `mine`: the groups of q, k and v that this thread projected.
 */
void cpu_store_kv(struct cpu *c, const struct batch *b, uint32_t layer, struct cpu_range mine,
                  unsigned id, unsigned width);
/* Replaces q of all rows by what attention gives, also quantised into act_q; ends in a barrier. */
void cpu_attention(struct cpu *c, const struct batch *b, uint32_t layer, unsigned id,
                   unsigned width);
/* What this thread will attend to in `layer`, a page of keys a call; NULL: no more of use. */
void cpu_ahead_begin(struct cpu *c, uint32_t layer, unsigned id, unsigned width);
const uint8_t *cpu_ahead_next(const struct cpu *c, struct cpu_ahead *a);
size_t cpu_value_offset(const struct cpu *c); /* from a page of keys to its page of values */

/* Lists rows and attention units of a batch; before cpu_step_run. */
void cpu_step_plan(struct cpu *c, const struct batch *b);
/* A pool_work: the whole forward pass. */
void cpu_step_run(void *step, unsigned id, unsigned width);
/* One group of 16 rows times `count` activation rows. ahead: a page of keys that is wanted soon, or
 * NULL. */
void cpu_group(const struct cpu *c, const struct packed *p, uint32_t group, const struct act *a,
               uint32_t first, uint32_t count, float *out, size_t stride, enum gemm_store store,
               const uint8_t *ahead);
/* BEST takes what $TOLLGATE_CPU names. NULL with a story when this CPU lacks the level. */
const struct kernels *cpu_level_kernels(enum backend_level level, struct err *e);
/* Whether gemm_fast of these kernels is there and this CPU runs it. */
bool cpu_level_has_fast(const struct kernels *k);
/* backend_cpu_open with kernels already chosen; `fast`: gemm_fast is used. */
struct backend *cpu_open_with(const struct model *m, const struct backend_options *o,
                              const struct kernels *k, bool fast, struct err *e);
/* Policy `fast`: one or two groups from `group` on times `count` rows in bf16. */
void cpu_groups_fast(const struct cpu *c, const struct packed *p, uint32_t group, uint32_t groups,
                     const struct act *a, uint32_t first, uint32_t count, float *out, size_t stride,
                     enum gemm_store store, uint8_t *scratch);

#endif
