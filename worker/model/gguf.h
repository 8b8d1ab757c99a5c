/* gguf.h - reads a GGUF (v2, v3) file by mmap. Every count, length, offset and product is checked:
 * a hostile file is refused with the reason and never crashes the process.
 * Strings and tensor data are borrowed from the mapping, which lives until gguf_close. */
#ifndef WORKER_MODEL_GGUF_H
#define WORKER_MODEL_GGUF_H

#include "base/arena.h"
#include "base/err.h"

#define GGUF_KEYS_MAX 4096
#define GGUF_TENSORS_MAX 65536
#define GGUF_DIMS_MAX 4
#define GGUF_ARRAY_MAX                                                                             \
    4000000 /* entries of one array; vocabularies end near 300k, merges near 500k */

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
};

struct gguf_array {
    enum gguf_type type;
    uint64_t count;
    const void *data;          /* scalars: unaligned little-endian, in the mapping */
    const struct str *strings; /* GGUF_STRING: arena */
};

struct gguf_key {
    struct str name;
    enum gguf_type type;
    union {
        uint64_t u64; /* all unsigned and bool */
        int64_t i64;  /* all signed */
        double f64;
        struct str string;
        struct gguf_array array;
    } v;
};

struct gguf_tensor {
    struct str name;
    uint32_t n_dims;
    uint64_t dims[GGUF_DIMS_MAX]; /* dims[0] is the contiguous one (columns) */
    uint32_t type;       /* enum quant_type of worker/model/quant.h; unknown ones refused */
    const uint8_t *data; /* in the mapping, bytes long, aligned as the file says */
    uint64_t bytes;
};

struct gguf {
    struct arena arena;
    const uint8_t *map; /* owned mapping, read-only; borrowed after gguf_parse */
    uint64_t map_bytes;
    bool mapped;              /* map is ours to unmap */
    uint64_t directory_bytes; /* header, keys and tensor directory */
    uint64_t data_offset;     /* where tensor data begins */
    struct gguf_key *keys;
    uint32_t n_keys;
    struct gguf_tensor *tensors;
    uint32_t n_tensors;
    uint32_t version;
};

MUST_USE bool gguf_open(struct gguf *g, const char *path, struct err *e);
/* The same over bytes in memory (tests, fuzzing); borrowed. */
MUST_USE bool gguf_parse(struct gguf *g, const uint8_t *p, uint64_t n, struct err *e);
void gguf_close(struct gguf *g);
const struct gguf_key *gguf_find(const struct gguf *g, const char *name);
const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name);
/* Typed look-ups with a story ("key llama.block_count: missing", "... is a string, not a count").
 */
MUST_USE bool gguf_u32(const struct gguf *g, const char *name, uint32_t *out, struct err *e);
MUST_USE bool gguf_f32(const struct gguf *g, const char *name, float *out, struct err *e);
MUST_USE bool gguf_str(const struct gguf *g, const char *name, struct str *out, struct err *e);

#endif
