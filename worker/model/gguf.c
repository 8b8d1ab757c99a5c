/* gguf.c - the GGUF reader. Every step goes through a cursor that knows how many bytes are left;
 * what the file claims is compared with that before anything is allocated or read.
 * Format: github.com/ggml-org/ggml, docs/gguf.md. */
#include "worker/model/gguf.h"

#include "base/hash.h"
#include "worker/model/quant.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_BYTES_MAX 65535 /* the format's own bound on key names */
#define ALIGNMENT_DEFAULT 32u
#define ALIGNMENT_MAX (1u << 20)     /* larger ones only waste address space */
#define ARENA_BYTES_MAX (512u << 20) /* 2 bytes a file byte at most: see read_strings */

struct cursor {
    const uint8_t *p;
    uint64_t left;
};

static bool take(struct cursor *c, uint64_t n, const uint8_t **out)
{
    if (n > c->left) {
        return false;
    }
    *out = c->p;
    c->p += n;
    c->left -= n;
    return true;
}

static bool take_u32(struct cursor *c, uint32_t *out)
{
    const uint8_t *p;

    if (!take(c, sizeof(*out), &p)) {
        return false;
    }
    memcpy(out, p, sizeof(*out));
    return true;
}

static bool take_u64(struct cursor *c, uint64_t *out)
{
    const uint8_t *p;

    if (!take(c, sizeof(*out), &p)) {
        return false;
    }
    memcpy(out, p, sizeof(*out));
    return true;
}

static bool take_string(struct cursor *c, struct str *out)
{
    uint64_t n;
    const uint8_t *p;

    if (!take_u64(c, &n) || !take(c, n, &p)) {
        return false;
    }
    *out = str_of(p, n);
    return true;
}

static bool cut_short(struct err *e, const char *where)
{
    return err_set(e, ERR_INPUT, "the file ends inside %s", where);
}

/* Bytes of one scalar; 0 for strings, arrays and unknown types. */
static uint32_t scalar_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
        [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
        [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
    };

    return type < ARRAY_LEN(bytes) ? bytes[type] : 0;
}

static void read_scalar(struct gguf_key *k, const uint8_t *p)
{
    uint64_t raw = 0;
    float f;

    memcpy(&raw, p, scalar_bytes(k->type)); /* little-endian hosts only */
    switch (k->type) {
    case GGUF_I8:
        k->v.i64 = (int8_t)raw;
        break;
    case GGUF_I16:
        k->v.i64 = (int16_t)raw;
        break;
    case GGUF_I32:
        k->v.i64 = (int32_t)raw;
        break;
    case GGUF_F32:
        memcpy(&f, &raw, sizeof(f));
        k->v.f64 = (double)f;
        break;
    case GGUF_F64:
        memcpy(&k->v.f64, &raw, sizeof(k->v.f64));
        break;
    default:
        k->v.u64 = raw;
    }
}

/* Each string takes at least 8 bytes of the file, so the count is bounded by what is left. */
static bool read_strings(struct gguf *g, struct cursor *c, struct gguf_array *a, struct err *e)
{
    if (a->count > c->left / sizeof(uint64_t)) {
        return cut_short(e, "an array of strings");
    }
    struct str *strings = arena_array(&g->arena, a->count, sizeof(*strings));
    if (strings == NULL) {
        return err_set(e, ERR_NO_MEMORY, "no memory for %llu strings",
                       (unsigned long long)a->count);
    }
    for (uint64_t i = 0; i < a->count; i++) {
        if (!take_string(c, &strings[i])) {
            return cut_short(e, "an array of strings");
        }
    }
    a->strings = strings;
    return true;
}

static bool read_array(struct gguf *g, struct cursor *c, struct gguf_key *k, struct err *e)
{
    struct gguf_array *a = &k->v.array;
    uint32_t type;
    const uint8_t *p;

    memset(a, 0, sizeof(*a));
    if (!take_u32(c, &type) || !take_u64(c, &a->count)) {
        return cut_short(e, "the head of an array");
    }
    if (a->count > GGUF_ARRAY_MAX) {
        return err_set(e, ERR_LIMIT, "an array of %llu entries; at most %u are read",
                       (unsigned long long)a->count, GGUF_ARRAY_MAX);
    }
    a->type = (enum gguf_type)type;
    if (type == GGUF_STRING) {
        return read_strings(g, c, a, e);
    }
    if (scalar_bytes(type) == 0) {
        return err_set(e, ERR_INPUT, "an array of type %u, which is neither a number nor a string",
                       type);
    }
    if (!take(c, a->count * scalar_bytes(type), &p)) {
        return cut_short(e, "an array of numbers");
    }
    a->data = p;
    return true;
}

static bool read_value(struct gguf *g, struct cursor *c, struct gguf_key *k, struct err *e)
{
    const uint8_t *p;

    if (k->type == GGUF_STRING) {
        return take_string(c, &k->v.string) || cut_short(e, "a string");
    }
    if (k->type == GGUF_ARRAY) {
        return read_array(g, c, k, e);
    }
    if (scalar_bytes(k->type) == 0) {
        return err_set(e, ERR_INPUT, "value type %u is unknown", (unsigned)k->type);
    }
    if (!take(c, scalar_bytes(k->type), &p)) {
        return cut_short(e, "a number");
    }
    if (k->type == GGUF_BOOL && *p > 1) {
        return err_set(e, ERR_INPUT, "a boolean of %u", *p);
    }
    read_scalar(k, p);
    return true;
}

static bool read_name(struct cursor *c, struct str *name, const char *what, struct err *e)
{
    if (!take_string(c, name)) {
        return cut_short(e, what);
    }
    if (name->n == 0 || name->n > NAME_BYTES_MAX) {
        return err_set(e, ERR_INPUT, "%s of %zu bytes", what, name->n);
    }
    return true;
}

static bool read_keys(struct gguf *g, struct cursor *c, struct err *e)
{
    for (uint32_t i = 0; i < g->n_keys; i++) {
        struct gguf_key *k = &g->keys[i];
        uint32_t type;
        if (!read_name(c, &k->name, "the name of a key", e)) {
            return false;
        }
        if (!take_u32(c, &type)) {
            return cut_short(e, "the type of a key");
        }
        k->type = (enum gguf_type)type;
        if (!read_value(g, c, k, e)) {
            err_prefix(e, "key " STR_FMT, (int)size_min(k->name.n, 64), k->name.p);
            return false;
        }
    }
    return true;
}

/* Sets dims and bytes; refuses zero, overflow and rows that are no whole number of blocks. */
static bool read_shape(struct cursor *c, struct gguf_tensor *t, struct err *e)
{
    uint64_t elements = 1;

    if (!take_u32(c, &t->n_dims)) {
        return cut_short(e, "a tensor's shape");
    }
    if (t->n_dims == 0 || t->n_dims > GGUF_DIMS_MAX) {
        return err_set(e, ERR_INPUT, "%u dimensions; 1 to %d are read", t->n_dims, GGUF_DIMS_MAX);
    }
    for (uint32_t i = 0; i < GGUF_DIMS_MAX; i++) {
        t->dims[i] = 1;
        if (i < t->n_dims && !take_u64(c, &t->dims[i])) {
            return cut_short(e, "a tensor's shape");
        }
        if (t->dims[i] == 0 || __builtin_mul_overflow(elements, t->dims[i], &elements)) {
            return err_set(e, ERR_INPUT, "a dimension of zero, or more elements than 64 bits hold");
        }
    }
    if (!take_u32(c, &t->type)) {
        return cut_short(e, "a tensor's type");
    }
    if (!quant_is_known(t->type)) {
        return err_set(e, ERR_UNSUPPORTED, "type %u is not one that is read here", t->type);
    }
    if (t->dims[0] % quant_block_columns(t->type) != 0) {
        return err_set(e, ERR_INPUT, "%llu columns are no multiple of the %u of a %s block",
                       (unsigned long long)t->dims[0], quant_block_columns(t->type),
                       quant_name(t->type));
    }
    if (__builtin_mul_overflow(elements / quant_block_columns(t->type),
                               (uint64_t)quant_block_bytes(t->type), &t->bytes)) {
        return err_set(e, ERR_INPUT, "more bytes than 64 bits hold");
    }
    return true;
}

/* Offsets count from the data section, whose start is not known yet: kept in `offset`. */
static bool read_tensor(struct cursor *c, struct gguf_tensor *t, uint64_t *offset, struct err *e)
{
    if (!read_name(c, &t->name, "the name of a tensor", e)) {
        return false;
    }
    bool ok = read_shape(c, t, e);
    if (ok && !take_u64(c, offset)) {
        ok = cut_short(e, "a tensor's offset");
    }
    if (!ok) {
        err_prefix(e, "tensor " STR_FMT, (int)size_min(t->name.n, 64), t->name.p);
    }
    return ok;
}

static bool read_alignment(const struct gguf *g, uint32_t *alignment, struct err *e)
{
    *alignment = ALIGNMENT_DEFAULT;
    if (gguf_find(g, "general.alignment") == NULL) {
        return true;
    }
    if (!gguf_u32(g, "general.alignment", alignment, e)) {
        return false;
    }
    if (*alignment < 8 || *alignment > ALIGNMENT_MAX || (*alignment & (*alignment - 1)) != 0) {
        return err_set(e, ERR_INPUT, "general.alignment of %u is no power of two from 8 to %u",
                       *alignment, ALIGNMENT_MAX);
    }
    return true;
}

static bool place_tensor(struct gguf *g, struct gguf_tensor *t, uint64_t offset, uint32_t alignment,
                         struct err *e)
{
    uint64_t room = g->map_bytes > g->data_offset ? g->map_bytes - g->data_offset : 0;

    if (offset % alignment != 0) {
        return err_set(e, ERR_INPUT, "tensor " STR_FMT ": offset %llu is not aligned to %u",
                       (int)size_min(t->name.n, 64), t->name.p, (unsigned long long)offset,
                       alignment);
    }
    if (offset > room || t->bytes > room - offset) {
        return err_set(e, ERR_INPUT,
                       "tensor " STR_FMT ": %llu bytes at offset %llu of a data section of %llu",
                       (int)size_min(t->name.n, 64), t->name.p, (unsigned long long)t->bytes,
                       (unsigned long long)offset, (unsigned long long)room);
    }
    t->data = g->map + g->data_offset + offset;
    return true;
}

static bool read_tensors(struct gguf *g, struct cursor *c, struct err *e)
{
    uint32_t alignment;
    bool ok = false;
    uint64_t *offsets = mem_try(g->n_tensors + 1u, sizeof(*offsets));

    if (offsets == NULL) {
        return err_set(e, ERR_NO_MEMORY, "no memory for %u tensors", g->n_tensors);
    }
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        if (!read_tensor(c, &g->tensors[i], &offsets[i], e)) {
            goto out;
        }
    }
    if (!read_alignment(g, &alignment, e)) {
        goto out;
    }
    g->directory_bytes = g->map_bytes - c->left;
    g->data_offset = (g->directory_bytes + alignment - 1) & ~((uint64_t)alignment - 1);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        if (!place_tensor(g, &g->tensors[i], offsets[i], alignment, e)) {
            goto out;
        }
    }
    ok = true;
out:
    mem_free(offsets);
    return ok;
}

/* Names at base + i * stride, each a struct str. Open addressing over at most half a table. */
static bool names_are_unique(const void *base, size_t stride, uint32_t n, const char *what,
                             struct err *e)
{
    uint32_t slots = 16;

    while (slots < 2 * n) {
        slots *= 2;
    }
    uint32_t *table = mem_try(slots, sizeof(*table)); /* index + 1; 0 is free */
    if (table == NULL) {
        return err_set(e, ERR_NO_MEMORY, "no memory for %u names", n);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct str name;
        memcpy(&name, (const uint8_t *)base + i * stride, sizeof(name));
        uint32_t at = (uint32_t)hash_xxh3(name.p, name.n, 0) & (slots - 1);
        for (; table[at] != 0; at = (at + 1) & (slots - 1)) {
            struct str other;
            memcpy(&other, (const uint8_t *)base + (table[at] - 1) * stride, sizeof(other));
            if (str_eq(name, other)) {
                mem_free(table);
                return err_set(e, ERR_INPUT, "%s " STR_FMT " comes twice", what,
                               (int)size_min(name.n, 64), name.p);
            }
        }
        table[at] = i + 1;
    }
    mem_free(table);
    return true;
}

static bool read_header(struct gguf *g, struct cursor *c, struct err *e)
{
    const uint8_t *magic;
    uint64_t tensors, keys;

    if (!take(c, 4, &magic) || memcmp(magic, "GGUF", 4) != 0) {
        return err_set(e, ERR_INPUT, "not a GGUF file (it does not start with \"GGUF\")");
    }
    if (!take_u32(c, &g->version)) {
        return cut_short(e, "the header");
    }
    if (g->version != 2 && g->version != 3) {
        return err_set(e, ERR_UNSUPPORTED,
                       "GGUF version %u; versions 2 and 3 (little-endian) are read", g->version);
    }
    if (!take_u64(c, &tensors) || !take_u64(c, &keys)) {
        return cut_short(e, "the header");
    }
    if (tensors > GGUF_TENSORS_MAX || keys > GGUF_KEYS_MAX) {
        return err_set(e, ERR_LIMIT, "%llu tensors and %llu keys; at most %d and %d are read",
                       (unsigned long long)tensors, (unsigned long long)keys, GGUF_TENSORS_MAX,
                       GGUF_KEYS_MAX);
    }
    g->n_keys = (uint32_t)keys;
    g->n_tensors = (uint32_t)tensors;
    g->keys = arena_array(&g->arena, keys, sizeof(*g->keys));
    g->tensors = arena_array(&g->arena, tensors, sizeof(*g->tensors));
    if ((keys != 0 && g->keys == NULL) || (tensors != 0 && g->tensors == NULL)) {
        return err_set(e, ERR_NO_MEMORY, "no memory for the directory");
    }
    return true;
}

static bool parse(struct gguf *g, struct err *e)
{
    struct cursor c = {g->map, g->map_bytes};

    return read_header(g, &c, e) && read_keys(g, &c, e) &&
           names_are_unique(g->keys, sizeof(*g->keys), g->n_keys, "key", e) &&
           read_tensors(g, &c, e) &&
           names_are_unique(g->tensors, sizeof(*g->tensors), g->n_tensors, "tensor", e);
}

bool gguf_parse(struct gguf *g, const uint8_t *p, uint64_t n, struct err *e)
{
    memset(g, 0, sizeof(*g));
    arena_init(&g->arena, ARENA_BYTES_MAX);
    g->map = p;
    g->map_bytes = n;
    if (!parse(g, e)) {
        gguf_close(g);
        return false;
    }
    return true;
}

static bool map_file(struct gguf *g, const char *path, struct err *e)
{
    struct stat st;
    bool ok = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) {
        return err_errno(e, errno, "%s", path);
    }
    if (fstat(fd, &st) != 0) {
        err_errno(e, errno, "%s", path);
    } else if (!S_ISREG(st.st_mode) || st.st_size == 0) {
        err_set(e, ERR_INPUT, "%s: not a file with bytes in it", path);
    } else {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        ok = map != MAP_FAILED;
        if (ok) {
            g->map = map;
            g->map_bytes = (uint64_t)st.st_size;
            g->mapped = true;
        } else {
            err_errno(e, errno, "%s: mmap", path);
        }
    }
    close(fd);
    return ok;
}

bool gguf_open(struct gguf *g, const char *path, struct err *e)
{
    memset(g, 0, sizeof(*g));
    arena_init(&g->arena, ARENA_BYTES_MAX);
    if (!map_file(g, path, e)) {
        gguf_close(g);
        return false;
    }
    if (!parse(g, e)) {
        err_prefix(e, "%s", path);
        gguf_close(g);
        return false;
    }
    return true;
}

void gguf_close(struct gguf *g)
{
    if (g->mapped) {
        munmap((void *)(uintptr_t)g->map, g->map_bytes);
    }
    arena_fini(&g->arena);
    memset(g, 0, sizeof(*g));
}

const struct gguf_key *gguf_find(const struct gguf *g, const char *name)
{
    struct str wanted = str_c(name);

    for (uint32_t i = 0; i < g->n_keys; i++) {
        if (str_eq(g->keys[i].name, wanted)) {
            return &g->keys[i];
        }
    }
    return NULL;
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
    struct str wanted = str_c(name);

    for (uint32_t i = 0; i < g->n_tensors; i++) {
        if (str_eq(g->tensors[i].name, wanted)) {
            return &g->tensors[i];
        }
    }
    return NULL;
}

static const char *type_name(enum gguf_type type)
{
    switch (type) {
    case GGUF_STRING:
        return "a string";
    case GGUF_ARRAY:
        return "an array";
    case GGUF_BOOL:
        return "a boolean";
    case GGUF_F32:
    case GGUF_F64:
        return "a fraction";
    default:
        return "a count";
    }
}

static const struct gguf_key *find_or_say(const struct gguf *g, const char *name, struct err *e)
{
    const struct gguf_key *k = gguf_find(g, name);

    if (k == NULL) {
        err_set(e, ERR_INPUT, "key %s: missing", name);
    }
    return k;
}

bool gguf_u32(const struct gguf *g, const char *name, uint32_t *out, struct err *e)
{
    const struct gguf_key *k = find_or_say(g, name, e);

    if (k == NULL) {
        return false;
    }
    switch (k->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64:
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64: /* a negative one is far past 32 bits when read as unsigned */
        if (k->v.u64 > UINT32_MAX) {
            return err_set(e, ERR_INPUT, "key %s: out of range", name);
        }
        *out = (uint32_t)k->v.u64;
        return true;
    default:
        return err_set(e, ERR_INPUT, "key %s: is %s, not a count", name, type_name(k->type));
    }
}

bool gguf_f32(const struct gguf *g, const char *name, float *out, struct err *e)
{
    const struct gguf_key *k = find_or_say(g, name, e);

    if (k == NULL) {
        return false;
    }
    if (k->type != GGUF_F32 && k->type != GGUF_F64) {
        return err_set(e, ERR_INPUT, "key %s: is %s, not a fraction", name, type_name(k->type));
    }
    if (!(k->v.f64 >= -3.4e38 && k->v.f64 <= 3.4e38)) {
        return err_set(e, ERR_INPUT, "key %s: not a finite number", name);
    }
    *out = (float)k->v.f64;
    return true;
}

bool gguf_str(const struct gguf *g, const char *name, struct str *out, struct err *e)
{
    const struct gguf_key *k = find_or_say(g, name, e);

    if (k == NULL) {
        return false;
    }
    if (k->type != GGUF_STRING) {
        return err_set(e, ERR_INPUT, "key %s: is %s, not a string", name, type_name(k->type));
    }
    *out = k->v.string;
    return true;
}
