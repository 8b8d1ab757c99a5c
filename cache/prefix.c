/* prefix.c - emits the canonical text of a parsed request, piece by piece, and hashes it into the
 * chunk chain on the way. The text itself is never kept: one chunk at most is copied. */
#include "cache/prefix.h"

#include "base/buf.h"
#include "base/hash.h"

#include <endian.h>

#define TOOLS_BYTES_MAX (64u << 20) /* sorted JSON of a 32 MiB body is never longer than this */
#define KEY_PARTS_BYTES_MAX (1u << 20)
#define FIRST_CHUNKS 64 /* arrays start for a 16 KiB prompt and double */
#define FIRST_SPANS 16

#define SEP_START 0xFF /* before a role, "tools", "call" */
#define SEP_TEXT 0xFE  /* before a text */
#define SEP_PROMPT 0xFD

static void put_le32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, sizeof(v));
}

static void put_le64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof(v));
}

static uint64_t get_le64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof(v));
    return le64toh(v);
}

struct prefix_key prefix_key_derive(struct str secret, struct str scope_salt, struct str model,
                                    struct str adapter)
{
    const struct str parts[] = {scope_salt, model, adapter, STR("256")};
    uint8_t mac[SHA256_BYTES], length[4];
    struct prefix_key k;
    struct buf b;

    buf_init(&b, KEY_PARTS_BYTES_MAX);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        put_le32(length, (uint32_t)parts[i].n);
        buf_append(&b, length, sizeof(length));
        buf_str(&b, parts[i]);
    }
    CHECK(!b.failed); /* names are bounded at their door */
    hash_hmac_sha256(secret, buf_view(&b), mac);
    buf_fini(&b);
    k = (struct prefix_key){.lo = get_le64(mac), .hi = get_le64(mac + 8)};
    hash_wipe(mac, sizeof(mac));
    return k;
}

void prefix_key_text(struct prefix_key k, char out[33])
{
    uint8_t bytes[16];

    put_le64(bytes, k.lo);
    put_le64(bytes + 8, k.hi);
    str_hex(bytes, sizeof(bytes), out);
}

bool prefix_key_parse(struct str hex, struct prefix_key *out)
{
    uint8_t bytes[16];

    if (!str_unhex(hex, bytes, sizeof(bytes))) {
        return false;
    }
    *out = (struct prefix_key){.lo = get_le64(bytes), .hi = get_le64(bytes + 8)};
    return true;
}

static uint64_t link_up(uint64_t before, uint64_t local)
{
    uint8_t pair[16];

    put_le64(pair, before);
    put_le64(pair + 8, local);
    return hash_xxh3(pair, sizeof(pair), 0);
}

/* One walk over a request. */
struct emitter {
    struct arena *arena;
    struct prefix_key key;
    struct prefix *out;
    uint32_t cap, span_cap;
    uint64_t last;    /* the chain so far: K0.hi before the first chunk */
    uint8_t *pending; /* [chunk_bytes] the chunk being filled; arena */
    uint32_t chunk_bytes, pending_n;
    uint8_t first_user[PREFIX_ROOT_BYTES];
    uint32_t first_user_n;
    bool in_first_user; /* emit copies into first_user */
    bool failed;        /* arena exhausted; sticky */
};

/* A copy of an array in twice the room; NULL and failed when the arena is exhausted. */
static void *array_double(struct emitter *m, const void *old, uint32_t count, uint32_t cap,
                          size_t size)
{
    void *bigger = arena_alloc_dirty(m->arena, cap * size);

    if (bigger == NULL) {
        m->failed = true;
        return NULL;
    }
    if (count > 0) {
        memcpy(bigger, old, count * size);
    }
    return bigger;
}

/* At each further PREFIX_CHUNKS_PER_SIZE chunks the size doubles, by position alone. */
static void size_chunk(struct emitter *m)
{
    uint32_t bytes = PREFIX_CHUNK_BYTES << (m->out->count / PREFIX_CHUNKS_PER_SIZE);

    if (bytes == m->chunk_bytes) {
        return;
    }
    m->pending = arena_alloc_dirty(m->arena, bytes);
    m->failed = m->failed || m->pending == NULL;
    m->chunk_bytes = bytes;
}

static void add_chunk(struct emitter *m, const void *p)
{
    struct prefix *out = m->out;

    if (out->count == PREFIX_CHUNKS_MAX) {
        return;
    }
    if (out->count == m->cap) {
        uint32_t cap = m->cap * 2;
        uint64_t *seq = array_double(m, out->seq, out->count, cap, sizeof(*seq));
        uint64_t *end = array_double(m, out->end, out->count, cap, sizeof(*end));

        if (m->failed) {
            return;
        }
        out->seq = seq;
        out->end = end;
        m->cap = cap;
    }
    m->last = link_up(m->last, hash_xxh3(p, m->chunk_bytes, m->key.lo));
    out->seq[out->count] = m->last;
    out->end[out->count++] = out->bytes;
    size_chunk(m);
}

static void emit(struct emitter *m, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;

    if (m->in_first_user) {
        size_t room = size_min(n, PREFIX_ROOT_BYTES - m->first_user_n);

        memcpy(m->first_user + m->first_user_n, p, room);
        m->first_user_n += (uint32_t)room;
    }
    while (n > 0 && !m->failed) {
        size_t take = size_min(n, m->chunk_bytes - m->pending_n);

        m->out->bytes += take;
        if (take == m->chunk_bytes) { /* a whole chunk in one piece: hashed where it is */
            add_chunk(m, p);
        } else {
            memcpy(m->pending + m->pending_n, p, take);
            m->pending_n += (uint32_t)take;
            if (m->pending_n == m->chunk_bytes) {
                m->pending_n = 0;
                add_chunk(m, m->pending);
            }
        }
        p += take;
        n -= take;
    }
}

static void emit_byte(struct emitter *m, uint8_t c)
{
    emit(m, &c, 1);
}

/* Text that an engine will read: counted for the bound of the prompt. */
static void emit_text(struct emitter *m, struct str s)
{
    m->out->text_bytes += s.n;
    if (s.n > 0) {
        emit(m, s.p, s.n);
    }
}

static void emit_span(struct emitter *m, struct str s, uint32_t message)
{
    struct prefix *out = m->out;

    if (s.n == 0) {
        return;
    }
    if (out->spans == m->span_cap) {
        uint32_t cap = m->span_cap * 2;
        struct prefix_span *span = array_double(m, out->span, out->spans, cap, sizeof(*span));

        if (span == NULL) {
            return;
        }
        out->span = span;
        m->span_cap = cap;
    }
    out->span[out->spans++] = (struct prefix_span){out->bytes, s, message};
    emit_text(m, s);
}

/* The chain up to here, the unfinished chunk with it: a hash of all text so far. */
static uint64_t hash_so_far(const struct emitter *m)
{
    return link_up(m->last, hash_xxh3(m->pending, m->pending_n, m->key.lo));
}

static bool begin(struct emitter *m, struct arena *a, struct prefix_key k, struct prefix *out)
{
    *out = (struct prefix){0};
    m->arena = a;
    m->key = k;
    m->out = out;
    m->last = k.hi;
    m->chunk_bytes = m->pending_n = m->first_user_n = 0;
    m->in_first_user = m->failed = false;
    m->cap = FIRST_CHUNKS;
    m->span_cap = FIRST_SPANS;
    out->seq = arena_alloc_dirty(a, FIRST_CHUNKS * sizeof(*out->seq));
    out->end = arena_alloc_dirty(a, FIRST_CHUNKS * sizeof(*out->end));
    out->span = arena_alloc_dirty(a, FIRST_SPANS * sizeof(*out->span));
    size_chunk(m);
    return !m->failed && out->seq != NULL && out->end != NULL && out->span != NULL;
}

static bool end(struct emitter *m)
{
    struct str first = str_of(m->first_user, m->first_user_n);

    m->out->root = prefix_root_of_key(m->key, m->out->head, first);
    return !m->failed;
}

static struct str text_of(const struct json *v)
{
    return v != NULL && v->type == JSON_STRING ? v->text : STR("");
}

/* v's JSON with sorted keys, or nothing and failed. The buffer is the caller's to end. */
static struct str sorted_json(struct emitter *m, const struct json *v, struct buf *b)
{
    buf_init(b, TOOLS_BYTES_MAX);
    json_write(b, v, JSON_ORDER_SORTED);
    m->failed = m->failed || b->failed;
    return m->failed ? STR("") : buf_view(b);
}

static void emit_tools(struct emitter *m, const struct json *tools)
{
    struct buf b;

    if (json_is_absent(tools) || tools->count == 0) {
        return;
    }
    emit_byte(m, SEP_START);
    emit(m, "tools", 5);
    emit_byte(m, SEP_TEXT);
    emit_text(m, sorted_json(m, tools, &b));
    buf_fini(&b);
}

static void emit_part(struct emitter *m, const struct json *part, uint32_t message)
{
    struct json *text = json_get(part, STR("text"));
    uint8_t digest[SHA256_BYTES];
    struct str json;
    struct buf b;

    if (part->type == JSON_STRING) {
        emit_span(m, part->text, message);
        return;
    }
    if (str_eq(text_of(json_get(part, STR("type"))), STR("text")) && text != NULL &&
        text->type == JSON_STRING) {
        emit_span(m, text->text, message);
        return;
    }
    json = sorted_json(m, part, &b);
    hash_sha256(json.p, json.n, digest);
    m->out->text_bytes += json.n;
    buf_fini(&b);
    emit(m, digest, sizeof(digest));
}

static void emit_call(struct emitter *m, const struct json *function, uint32_t message)
{
    emit_byte(m, SEP_START);
    emit(m, "call", 4);
    emit_byte(m, SEP_TEXT);
    emit_span(m, text_of(json_get(function, STR("name"))), message);
    emit_byte(m, SEP_TEXT);
    emit_span(m, text_of(json_get(function, STR("arguments"))), message);
}

/* What a message says, looked up in one walk. */
struct message {
    struct json *role, *content, *calls, *call; /* call: before tool_calls existed */
};

static struct message message_of(const struct json *v)
{
    static const struct str keys[] = {
        {"role", 4}, {"content", 7}, {"tool_calls", 10}, {"function_call", 13}};
    struct json *m[ARRAY_LEN(keys)];

    json_pick(v, keys, m, ARRAY_LEN(keys));
    return (struct message){m[0], m[1], m[2], m[3]};
}

static struct str role_of(const struct message *message)
{
    struct str role = text_of(message->role);

    return str_eq(role, STR("developer")) ? STR("system") : role;
}

/* The bound of a prompt allows for these by its constant a message; longer ones count as text. */
static bool role_is_known(struct str role)
{
    static const struct str known[] = {
        {"user", 4}, {"assistant", 9}, {"system", 6}, {"tool", 4}, {"function", 8}};

    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (str_eq(role, known[i])) {
            return true;
        }
    }
    return false;
}

static void emit_message(struct emitter *m, const struct message *message, struct str role,
                         bool first_user)
{
    const struct json *content = message->content, *calls = message->calls;
    uint32_t index = m->out->messages++;

    emit_byte(m, SEP_START);
    emit(m, role.p, role.n);
    m->out->text_bytes += role_is_known(role) ? 0 : role.n;
    emit_byte(m, SEP_TEXT);
    m->in_first_user = first_user;
    if (content != NULL && content->type == JSON_STRING) {
        emit_span(m, content->text, index);
    } else if (content != NULL && content->type == JSON_ARRAY) {
        for (const struct json *part = content->child; part != NULL; part = part->next) {
            emit_part(m, part, index);
        }
    }
    m->in_first_user = false;
    if (calls != NULL && calls->type == JSON_ARRAY) {
        for (const struct json *c = calls->child; c != NULL; c = c->next) {
            emit_call(m, json_get(c, STR("function")), index);
        }
    }
    if (!json_is_absent(message->call)) {
        emit_call(m, message->call, index);
    }
}

bool prefix_chat(struct arena *a, struct prefix_key k, const struct json *root, struct prefix *out)
{
    struct json *messages = json_get(root, STR("messages"));
    struct emitter m;
    bool in_head = true, seen_user = false;

    if (!begin(&m, a, k, out)) {
        return false;
    }
    emit_tools(&m, json_get(root, STR("tools")));
    for (const struct json *v = messages != NULL ? messages->child : NULL; v != NULL; v = v->next) {
        struct message message = message_of(v);
        struct str role = role_of(&message);
        bool user = str_eq(role, STR("user"));

        if (in_head && !str_eq(role, STR("system"))) {
            out->head = hash_so_far(&m);
            in_head = false;
        }
        emit_message(&m, &message, role, user && !seen_user);
        seen_user = seen_user || user;
    }
    if (in_head) {
        out->head = hash_so_far(&m);
    }
    return end(&m);
}

bool prefix_completion(struct arena *a, struct prefix_key k, struct str prompt, struct prefix *out)
{
    struct emitter m;

    if (!begin(&m, a, k, out)) {
        return false;
    }
    out->head = hash_so_far(&m);
    emit_byte(&m, SEP_START);
    emit_byte(&m, SEP_PROMPT);
    m.in_first_user = true;
    emit_span(&m, prompt, 0);
    return end(&m);
}

uint64_t prefix_root_of_key(struct prefix_key k, uint64_t head, struct str client_key)
{
    return link_up(head, hash_xxh3(client_key.p, client_key.n, k.lo));
}
