/* backend.h - what computes: the forward-level interface that ref, cpu and (later) cuda implement.
 *
 * One forward call a step; the backend owns fusion, threads, repacked weights and where KV bytes
 * lie. Block identity, hashing and references never reach it.
 * KV: pages [block][layer][2][kv_heads], each [BLOCK_TOKENS][head_dim] (values) or its transpose
 * (keys of cpu), dtype the backend's; an int8 page ends in its BLOCK_TOKENS scales in bf16, and
 * value = int8 * scale. Attention reads the stored (rounded) form, also within its own chunk, and
 * its sums depend on the absolute position alone: alone = batched = chunked = cached, bit for bit.
 * One caller (the engine thread).
 */
#ifndef WORKER_BACKEND_H
#define WORKER_BACKEND_H

#include "base/err.h"
#include "worker/model/model.h"

/* One step's work. Row i is the token ids[i]. Sequence s owns the rows q_start[s] ..
 * q_start[s] + q_len[s) - 1, at consecutive positions that end at kv_len[s] - 1; each row belongs
 * to one sequence. Ids are below the vocabulary and positions below the context (CHECKed). A block
 * that this step writes appears in one table only; blocks read may be shared. */
struct batch {
    uint32_t rows, sequences;
    const int32_t *ids;              /* [rows] */
    const uint32_t *q_start, *q_len; /* [sequences] */
    const uint32_t *kv_len;          /* [sequences], after this step */
    const uint32_t *const *table;    /* [sequences][(kv_len + 31) / 32] block ids */
    const uint32_t *want;            /* [wanted] rows whose logits are asked, ascending */
    uint32_t wanted;
};

struct backend_peaks {
    double read_gbs; /* measured copy-free read bandwidth */
    double gflops;   /* measured multiply-add peak of the kernel class in use */
};

struct backend {
    const struct backend_ops *ops; /* first member of each backend's struct */
};

struct backend_ops {
    const char *name; /* "ref" or "cpu" */
    /* Room for `blocks` KV blocks; false with a story and the bytes it would take. */
    bool (*kv_init)(struct backend *, uint32_t blocks, struct err *e);
    void (*kv_copy)(struct backend *, uint32_t dst_block, uint32_t src_block);
    /* logits [wanted][vocab] float32, written whole. rows <= rows_max given at open. */
    void (*forward)(struct backend *, const struct batch *, float *logits);
    uint64_t (*kv_block_bytes)(const struct backend *);
    struct backend_peaks (*peaks)(struct backend *);
    const char *(*describe)(const struct backend *); /* "cpu: AVX-512 VNNI, 2 threads, bf16 KV" */
    void (*close)(struct backend *);
};

/* Which instructions the cpu backend uses; every level gives the same bits. */
enum backend_level {
    BACKEND_LEVEL_BEST = 0, /* what $TOLLGATE_CPU names, else the widest that this CPU has */
    BACKEND_LEVEL_PORTABLE,
    BACKEND_LEVEL_AVX2,
    BACKEND_LEVEL_AVX512,     /* F, BW, DQ, VL, VNNI */
    BACKEND_LEVEL_AVX512BF16, /* and pairs of bf16 in attention */
    BACKEND_LEVEL_AMX,        /* int8 tiles, for sixteen rows and more; else as AVX-512 */
};

/* How the cpu backend keeps keys and values; ref keeps float32. */
enum backend_kv_dtype {
    BACKEND_KV_BF16 = 0,
    BACKEND_KV_INT8, /* int8 with one bf16 scale a token, head and page: a little over half */
};

/* Whether the order of sums is the same for every batch. Part of what KV bytes depend on. */
enum backend_policy {
    BACKEND_POLICY_EXACT = 0,
    BACKEND_POLICY_FAST, /* AMX in bf16 for steps of many rows; without it `exact`: see describe */
};

struct backend_options {
    unsigned threads;               /* >= 1; ref computes on the caller's alone */
    uint32_t rows_max;              /* rows of one forward */
    enum backend_level level;       /* cpu; a level that this CPU lacks is refused */
    enum backend_kv_dtype kv_dtype; /* cpu */
    enum backend_policy policy;     /* cpu */
};

/* "portable", "avx2", "avx512", "amx", "best". */
MUST_USE bool backend_level_named(struct str name, enum backend_level *out);
const char *backend_level_name(enum backend_level level);
MUST_USE bool backend_kv_dtype_named(struct str name, enum backend_kv_dtype *out); /* bf16, int8 */
const char *backend_kv_dtype_name(enum backend_kv_dtype dtype);
MUST_USE bool backend_policy_named(struct str name, enum backend_policy *out); /* exact, fast */
const char *backend_policy_name(enum backend_policy policy);
/* CPUs that this process may use: its affinity and its control group's quota, rounded up. */
unsigned backend_default_threads(void);
uint64_t
backend_memory(void); /* bytes that it may have: the machine's, its control group's limit */

/* The model is borrowed and outlives the backend. NULL with a story. */
struct backend *backend_ref_open(const struct model *m, const struct backend_options *o,
                                 struct err *e);
struct backend *backend_cpu_open(const struct model *m, const struct backend_options *o,
                                 struct err *e);

#endif
