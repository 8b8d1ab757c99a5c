/* conf.c - the one door to libyaml: its events against the table of options.
 *
 * No recursion: each open map appends its key to one dotted path. Only what the table
 * names can be opened, so paths, depth and memory are bounded by the table and the file's size. */
#include "base/conf.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#include "base/buf.h"
#include "base/conf_value.h"
#include "base/hash.h"

#define FILE_BYTES_MAX (1024 * 1024)
#define SECRET_BYTES_MAX 4096
#define DEPTH_MAX 8
#define PATH_BYTES_MAX 256 /* a dotted path, far longer than any option's */

struct reader {
    yaml_parser_t yaml;
    yaml_event_t event; /* live between next and done */
    bool has_event;
    struct str text;
    const char *source;
    const struct conf_option *options;
    size_t count;
    void *out;
    struct arena *arena;
    struct err *err;
    bool *seen;           /* arena; [count] */
    struct str *sections; /* arena; [sections_max] full paths of the maps opened so far */
    size_t sections_count, sections_max;
    char path[PATH_BYTES_MAX]; /* of the key in hand */
    size_t path_len;
    size_t marks[DEPTH_MAX]; /* path_len of each open map */
    size_t depth;
    bool done;
};

/* ---- errors ---- */

static bool fail_at(struct reader *r, yaml_mark_t mark)
{
    err_prefix(r->err, "%s:%zu:%zu", r->source, mark.line + 1, mark.column + 1);
    return false;
}

static bool fail(struct reader *r, const char *what)
{
    (void)err_set(r->err, ERR_INPUT, "%s", what);
    return fail_at(r, r->event.start_mark);
}

static bool fail_path(struct reader *r, const char *what)
{
    (void)err_set(r->err, ERR_INPUT, "'%.*s' %s", (int)r->path_len, r->path, what);
    return fail_at(r, r->event.start_mark);
}

/* Line and column of a byte, for libyaml's reader, which decodes ahead of its mark. */
static yaml_mark_t mark_at(const struct reader *r, size_t offset)
{
    yaml_mark_t mark = {offset, 0, 0};

    for (size_t i = 0; i < size_min(offset, r->text.n); i++) {
        bool newline = r->text.p[i] == '\n', continues = (r->text.p[i] & 0xC0) == 0x80;

        mark.line += newline;
        mark.column = newline ? 0 : mark.column + !continues;
    }
    return mark;
}

static bool fail_yaml(struct reader *r)
{
    if (r->yaml.error == YAML_MEMORY_ERROR) {
        return err_set(r->err, ERR_NO_MEMORY, "%s: no memory left to read it", r->source);
    }
    (void)err_set(r->err, ERR_INPUT, "%s", r->yaml.problem != NULL ? r->yaml.problem : "not YAML");
    if (r->yaml.error == YAML_READER_ERROR) {
        return fail_at(r, mark_at(r, r->yaml.problem_offset));
    }
    return fail_at(r, r->yaml.problem_mark);
}

/* ---- events ---- */

static bool is_plain_yaml(struct reader *r)
{
    const yaml_event_t *v = &r->event;

    switch (v->type) {
    case YAML_ALIAS_EVENT:
        return fail(r, "aliases are not allowed: write the value out");
    case YAML_SCALAR_EVENT:
        if (v->data.scalar.anchor != NULL || v->data.scalar.tag != NULL) {
            return fail(r, "anchors and tags are not allowed");
        }
        if (memchr(v->data.scalar.value, 0, v->data.scalar.length) != NULL) {
            return fail(r, "a NUL character is not allowed");
        }
        return true;
    case YAML_SEQUENCE_START_EVENT:
        if (v->data.sequence_start.anchor != NULL || v->data.sequence_start.tag != NULL) {
            return fail(r, "anchors and tags are not allowed");
        }
        return true;
    case YAML_MAPPING_START_EVENT:
        if (v->data.mapping_start.anchor != NULL || v->data.mapping_start.tag != NULL) {
            return fail(r, "anchors and tags are not allowed");
        }
        return true;
    case YAML_DOCUMENT_START_EVENT:
        if (v->data.document_start.version_directive != NULL ||
            v->data.document_start.tag_directives.start !=
                v->data.document_start.tag_directives.end) {
            return fail(r, "directives are not allowed");
        }
        return true;
    default:
        return true;
    }
}

static void event_drop(struct reader *r)
{
    if (r->has_event) {
        yaml_event_delete(&r->event);
        r->has_event = false;
    }
}

/* The next event into r->event, within what we accept of YAML. */
static bool event_next(struct reader *r)
{
    event_drop(r);
    if (yaml_parser_parse(&r->yaml, &r->event) == 0) {
        return fail_yaml(r);
    }
    r->has_event = true;
    return is_plain_yaml(r);
}

static struct str event_text(const struct reader *r)
{
    return str_of(r->event.data.scalar.value, r->event.data.scalar.length);
}

/* Nothing after the colon, or YAML's words for nothing. */
static bool event_is_null(const struct reader *r)
{
    struct str s = event_text(r);

    return r->event.type == YAML_SCALAR_EVENT &&
           r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (s.n == 0 || str_eq(s, STR("~")) || str_eq(s, STR("null")) || str_eq(s, STR("Null")) ||
            str_eq(s, STR("NULL")));
}

/* ---- the table ---- */

/* Index of the option at the path in hand, or SIZE_MAX. */
static size_t option_at_path(const struct reader *r)
{
    for (size_t i = 0; i < r->count; i++) {
        if (str_eq(str_c(r->options[i].path), str_of(r->path, r->path_len))) {
            return i;
        }
    }
    return SIZE_MAX;
}

static bool path_is_section(const struct reader *r)
{
    for (size_t i = 0; i < r->count; i++) {
        struct str path = str_c(r->options[i].path);

        if (path.n > r->path_len && path.p[r->path_len] == '.' &&
            memcmp(path.p, r->path, r->path_len) == 0) {
            return true;
        }
    }
    return false;
}

static bool fail_unknown(struct reader *r)
{
    struct str near = conf_nearest(str_of(r->path, r->path_len), r->options, r->count);

    if (near.p == NULL) {
        return fail_path(r, "is unknown: there are no options");
    }
    (void)err_set(r->err, ERR_INPUT, "unknown option '%.*s'; did you mean '" STR_FMT "'?",
                  (int)size_min(r->path_len, 128), r->path, STR_ARG(near));
    return fail_at(r, r->event.start_mark);
}

/* ---- the walk ---- */

/* The event is a key: puts it behind the path of its map. */
static bool path_enter(struct reader *r)
{
    struct str key = event_text(r);
    size_t from = r->marks[r->depth - 1];

    if (r->event.type != YAML_SCALAR_EVENT) {
        return fail(r, "a key must be a plain word");
    }
    if (key.n == 0 || from + 1 + key.n > PATH_BYTES_MAX) {
        return fail(r, key.n == 0 ? "empty key" : "key too long");
    }
    if (memchr(key.p, '.', key.n) != NULL) {
        return fail(r, "a key must not have a dot in it: write one map inside another");
    }
    if (from > 0) {
        r->path[from++] = '.';
    }
    memcpy(r->path + from, key.p, key.n);
    r->path_len = from + key.n;
    return true;
}

static bool read_list(struct reader *r, const struct conf_option *o)
{
    struct str items[CONF_LIST_ITEMS_MAX];
    size_t count = 0;

    for (;;) {
        if (!event_next(r)) {
            return false;
        }
        if (r->event.type == YAML_SEQUENCE_END_EVENT) {
            return conf_value_list(o, items, count, r->out, r->arena, r->err);
        }
        if (r->event.type != YAML_SCALAR_EVENT || event_is_null(r)) {
            return fail_path(r, "is a list of plain values");
        }
        if (count == CONF_LIST_ITEMS_MAX) {
            return fail_path(r, "has more than 1024 items");
        }
        items[count] = arena_str(r->arena, event_text(r));
        if (items[count++].p == NULL) {
            return err_set(r->err, ERR_NO_MEMORY, "%s: no memory left for '%s'", r->source,
                           o->path);
        }
    }
}

/* The event is the value of option i. */
static bool read_option(struct reader *r, size_t i)
{
    const struct conf_option *o = &r->options[i];

    if (r->event.type == YAML_MAPPING_START_EVENT) {
        return fail_path(r, "is an option, not a section: it needs one value");
    }
    if (r->event.type == YAML_SEQUENCE_START_EVENT) {
        if (o->type != CONF_LIST) {
            return fail_path(r, "is not a list: it needs one value");
        }
        return read_list(r, o);
    }
    if (event_is_null(r)) {
        return fail_path(r, "has no value: write one or remove the line (\"\" is empty text)");
    }
    if (!conf_value_set(o, event_text(r), r->out, r->arena, r->err)) {
        return fail_at(r, r->event.start_mark);
    }
    return true;
}

/* Sections are few (the table's), so a list will do. */
static bool section_once(struct reader *r)
{
    struct str path = str_of(r->path, r->path_len);

    for (size_t i = 0; i < r->sections_count; i++) {
        if (str_eq(r->sections[i], path)) {
            return fail_path(r, "is there twice");
        }
    }
    CHECK(r->sections_count < r->sections_max);
    path = arena_str(r->arena, path);
    if (path.p == NULL) {
        return err_set(r->err, ERR_NO_MEMORY, "%s: no memory left", r->source);
    }
    r->sections[r->sections_count++] = path;
    return true;
}

static bool map_open(struct reader *r)
{
    if (r->depth == DEPTH_MAX) {
        return fail(r, "maps are nested deeper than 8");
    }
    r->marks[r->depth++] = r->path_len;
    return true;
}

/* The event is the value of a section: a map, or nothing (all its lines are comments). */
static bool read_section(struct reader *r)
{
    if (r->event.type == YAML_MAPPING_START_EVENT) {
        return map_open(r);
    }
    if (event_is_null(r)) {
        return true;
    }
    return fail_path(r, "is a section: it needs options inside");
}

/* The event is a key of the innermost map. */
static bool read_key(struct reader *r)
{
    size_t i;

    if (!path_enter(r)) {
        return false;
    }
    i = option_at_path(r);
    if (i == SIZE_MAX) {
        if (!path_is_section(r)) {
            return fail_unknown(r);
        }
        return section_once(r) && event_next(r) && read_section(r);
    }
    if (r->seen[i]) {
        return fail_path(r, "is there twice");
    }
    r->seen[i] = true;
    return event_next(r) && read_option(r, i);
}

static bool read_event(struct reader *r)
{
    switch (r->event.type) {
    case YAML_STREAM_END_EVENT:
        r->done = true;
        return true;
    case YAML_MAPPING_END_EVENT:
        r->depth--;
        return true;
    default:
        return r->depth == 0 || read_key(r);
    }
}

/* The root must be one map; an empty file is fine. */
static bool read_root(struct reader *r)
{
    if (!event_next(r) || !event_next(r)) { /* stream start, document start */
        return false;
    }
    if (r->event.type == YAML_STREAM_END_EVENT) {
        r->done = true;
        return true;
    }
    if (!event_next(r)) {
        return false;
    }
    if (r->event.type != YAML_MAPPING_START_EVENT && !event_is_null(r)) {
        return fail(r, "the file must be a map of options (name: value)");
    }
    return r->event.type != YAML_MAPPING_START_EVENT || map_open(r);
}

static bool read_all(struct reader *r)
{
    if (!read_root(r)) {
        return false;
    }
    while (!r->done) {
        if (!event_next(r)) {
            return false;
        }
        if (r->event.type == YAML_DOCUMENT_START_EVENT) {
            return fail(r, "a second document is not allowed");
        }
        if (!read_event(r)) {
            return false;
        }
    }
    return true;
}

/* ---- the doors ---- */

static bool set_defaults(const char *source, const struct conf_option *options, size_t count,
                         void *out, struct arena *a, struct err *e)
{
    for (size_t i = 0; i < count; i++) {
        if (options[i].default_text != NULL && !conf_value_default(&options[i], out, a, e)) {
            err_prefix(e, "%s: default", source);
            return false;
        }
    }
    return true;
}

static bool check_required(const struct reader *r)
{
    for (size_t i = 0; i < r->count; i++) {
        if (r->options[i].default_text == NULL && !r->seen[i]) {
            return err_set(r->err, ERR_INPUT, "%s: option '%s' is required", r->source,
                           r->options[i].path);
        }
    }
    return true;
}

/* A table of n options has at most this many sections. */
static size_t sections_bound(const struct conf_option *options, size_t count)
{
    size_t n = 0;

    for (size_t i = 0; i < count; i++) {
        for (const char *p = options[i].path; *p != '\0'; p++) {
            n += *p == '.';
        }
    }
    return n;
}

bool conf_parse(struct str text, const char *source, const struct conf_option *options,
                size_t count, void *out, struct arena *a, struct err *e)
{
    struct reader r = {.text = text,
                       .source = source,
                       .options = options,
                       .count = count,
                       .out = out,
                       .arena = a,
                       .err = e};
    bool ok = false;

    if (text.n > FILE_BYTES_MAX) {
        return err_set(e, ERR_LIMIT, "%s: larger than 1 MiB", source);
    }
    r.sections_max = sections_bound(options, count);
    r.seen = arena_array(a, count + 1, sizeof(*r.seen));
    r.sections = arena_array(a, r.sections_max + 1, sizeof(*r.sections));
    if (r.seen == NULL || r.sections == NULL || yaml_parser_initialize(&r.yaml) == 0) {
        return err_set(e, ERR_NO_MEMORY, "%s: no memory left", source);
    }
    yaml_parser_set_encoding(&r.yaml, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.yaml, (const unsigned char *)text.p, text.n);
    ok = set_defaults(source, options, count, out, a, e) && read_all(&r) && check_required(&r);
    event_drop(&r);
    yaml_parser_delete(&r.yaml);
    return ok;
}

/* Appends a file to b, whose max it must not pass. */
static bool read_file(int fd, const char *path, struct buf *b, struct err *e)
{
    for (;;) {
        size_t room = size_min(b->max - b->len, 65536);
        uint8_t extra, *to = room > 0 ? buf_reserve(b, room) : &extra;
        ssize_t n;

        if (to == NULL) {
            return err_set(e, ERR_NO_MEMORY, "%s: no memory left to read it", path);
        }
        n = read(fd, to, room > 0 ? room : 1);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return err_errno(e, errno, "%s", path);
        }
        if (n == 0) {
            return true;
        }
        if (room == 0) {
            return err_set(e, ERR_LIMIT, "%s: larger than %zu bytes", path, b->max);
        }
        buf_commit(b, (size_t)n);
    }
}

bool conf_load(const char *path, const struct conf_option *options, size_t count, void *out,
               struct arena *a, struct err *e)
{
    struct buf text;
    bool ok = false;
    int fd;

    if (path == NULL) {
        return conf_parse(STR(""), "no configuration file", options, count, out, a, e);
    }
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return err_errno(e, errno, "%s", path);
    }
    buf_init(&text, FILE_BYTES_MAX);
    ok = read_file(fd, path, &text, e) &&
         conf_parse(buf_view(&text), path, options, count, out, a, e);
    buf_fini(&text);
    (void)close(fd);
    return ok;
}

static bool secret_is_private(int fd, const char *path, struct err *e)
{
    struct stat st;

    if (fstat(fd, &st) != 0) {
        return err_errno(e, errno, "%s", path);
    }
    if (!S_ISREG(st.st_mode)) {
        return err_set(e, ERR_INPUT, "%s: a secret must be a regular file", path);
    }
    if ((st.st_mode & 077) != 0) {
        return err_set(e, ERR_INPUT, "%s: others may read this secret (mode %04o); chmod 600 it",
                       path, (unsigned)(st.st_mode & 07777));
    }
    return true;
}

bool conf_secret(const char *path, struct arena *a, struct str *out, struct err *e)
{
    struct buf text;
    struct str s;
    bool ok = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold a start up */

    if (fd < 0) {
        return err_errno(e, errno, "%s", path);
    }
    buf_init(&text, SECRET_BYTES_MAX);
    if (!secret_is_private(fd, path, e) || !read_file(fd, path, &text, e)) {
        goto out;
    }
    s = buf_view(&text);
    s.n -= s.n > 0 && s.p[s.n - 1] == '\n';
    if (s.n == 0) {
        (void)err_set(e, ERR_INPUT, "%s: the secret is empty", path);
        goto out;
    }
    for (size_t i = 0; i < s.n; i++) { /* some travel in headers, where a line end would end them */
        if ((uint8_t)s.p[i] < ' ' || s.p[i] == 0x7f) {
            (void)err_set(e, ERR_INPUT, "%s: a secret is one line of text", path);
            goto out;
        }
    }
    *out = arena_str(a, s);
    ok = out->p != NULL || err_set(e, ERR_NO_MEMORY, "%s: no memory left", path);
out:
    if (text.p != NULL) {
        hash_wipe(text.p, text.cap);
    }
    buf_fini(&text);
    (void)close(fd);
    return ok;
}
