/* usage_error.c - an engine's refusal in our status, code and wording.
 *
 * Engines disagree on everything: where the message is, what the code is, whether the status is
 * in the head or in the text. What a client can act on is kept (400s, overflow, when to come
 * again); what tells about the engine is not. */
#include "gateway/route/usage_impl.h"

#include <stdio.h>

#define ERROR_VALUES_BYTES (256u << 10) /* the tree of an error's text */
#define MESSAGE_READ_MAX 2048           /* bytes of a message that are looked at */
#define RETRY_AFTER_MAX_S 60            /* clients take longer ones for never */

/* What an error body says. Strings are never NULL. */
struct said {
    struct str message, type, param, code;
    const struct json *at; /* the object that says it; NULL: none */
    int64_t status;        /* a number where a code or status is; 0: none */
};

static struct str text_or_empty(const struct json *object, struct str key)
{
    const struct json *v = json_get(object, key);

    return usage_is_text(v) ? v->text : STR("");
}

static void read_said(const struct json *root, struct said *s)
{
    const struct json *error = json_get(root, STR("error"));

    *s = (struct said){STR(""), STR(""), STR(""), STR(""), root, 0};
    if (usage_is_text(error)) {
        s->message = error->text;
        return;
    }
    if (error != NULL && error->type == JSON_OBJECT) {
        s->at = error;
    }
    s->message = text_or_empty(s->at, STR("message"));
    if (s->message.n == 0) {
        s->message = text_or_empty(s->at, STR("detail"));
    }
    s->message.n = size_min(s->message.n, MESSAGE_READ_MAX);
    s->type = text_or_empty(s->at, STR("type"));
    s->param = text_or_empty(s->at, STR("param"));
    s->code = text_or_empty(s->at, STR("code"));
    if (!json_i64(json_get(s->at, STR("code")), &s->status) &&
        !json_i64(json_get(s->at, STR("status")), &s->status) && !str_i64(s->code, &s->status)) {
        s->status = 0;
    }
}

bool usage_is_error(const struct json *root)
{
    const struct json *error = json_get(root, STR("error"));
    struct str object = text_or_empty(root, STR("object"));
    struct str type = text_or_empty(root, STR("type"));

    if (error != NULL &&
        (error->type == JSON_OBJECT || (usage_is_text(error) && error->text.n > 0))) {
        return true;
    }
    return str_eq(object, STR("error")) || str_eq(type, STR("error")) ||
           (json_get(root, STR("choices")) == NULL && json_get(root, STR("detail")) != NULL);
}

/* ---- words in a message ---- */

/* Index past the first occurrence, ASCII case aside; SIZE_MAX: none. */
static size_t find_past(struct str s, struct str needle)
{
    for (size_t i = 0; i + needle.n <= s.n; i++) {
        if (str_ieq(str_of(s.p + i, needle.n), needle)) {
            return i + needle.n;
        }
    }
    return SIZE_MAX;
}

static bool has(struct str s, struct str needle)
{
    return find_past(s, needle) != SIZE_MAX;
}

/* The digits that start at i; false: none, or too many for a count of tokens. */
static bool number_at(struct str s, size_t i, int64_t *out)
{
    size_t n = i;

    while (n < s.n && s.p[n] >= '0' && s.p[n] <= '9') {
        n++;
    }
    return n > i && n - i <= 12 && str_i64(str_of(s.p + i, n - i), out);
}

static bool number_after(struct str s, struct str words, int64_t *out)
{
    size_t i = find_past(s, words);

    return i != SIZE_MAX && number_at(s, i, out);
}

static bool number_before(struct str s, struct str words, int64_t *out)
{
    size_t end = find_past(s, words), i;

    if (end == SIZE_MAX) {
        return false;
    }
    for (i = end - words.n; i > 0 && s.p[i - 1] >= '0' && s.p[i - 1] <= '9'; i--) {
    }
    return number_at(s, i, out);
}

/* ---- overflow ---- */

static bool is_overflow(const struct said *s)
{
    static const struct str words[] = {
        {"maximum context length", 22},  {"maximum model length", 20},
        {"model's context length", 22},  {"available context size", 22},
        {"exceeds the context", 19},     {"exceed context", 14},
        {"context window", 14},          {"context length exceeded", 23},
        {"context_length_exceeded", 23}, {"must be at least 1, got -", 25},
        {"maximum allowed length", 22},  {"prompt is too long", 18},
        {"input is too long", 17},       {"larger than the max context", 27},
        {"max_model_len", 13},
    };

    if (str_eq(s->code, STR("context_length_exceeded")) ||
        str_eq(s->type, STR("exceed_context_size_error"))) {
        return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (has(s->message, words[i])) {
            return true;
        }
    }
    return false;
}

static void overflow(const struct said *s, int64_t context, struct api_error *e)
{
    int64_t limit = context, asked = 0, prompt = 0, output = -1;
    struct str m = s->message;

    if (!json_i64(json_get(s->at, STR("n_ctx")), &limit) &&
        !number_after(m, STR("maximum context length is "), &limit) &&
        !number_after(m, STR("maximum context length of "), &limit) &&
        !number_after(m, STR("maximum model length of "), &limit) &&
        !number_after(m, STR("context length ("), &limit) &&
        !number_after(m, STR("context size ("), &limit)) {
        limit = context;
    }
    (void)number_after(m, STR("you requested "), &asked);
    (void)number_before(m, STR(" in the completion"), &output);
    (void)(json_i64(json_get(s->at, STR("n_prompt_tokens")), &prompt) ||
           number_before(m, STR(" in the messages"), &prompt) ||
           number_before(m, STR(" in the prompt"), &prompt) ||
           number_before(m, STR(" input tokens"), &prompt) ||
           number_after(m, STR("(length "), &prompt) ||
           number_after(m, STR("the input ("), &prompt) ||
           number_after(m, STR("the request ("), &prompt));
    api_error_too_long(e, limit, asked, prompt, output);
}

/* ---- a message without insides ---- */

static bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

/* A path, an address, a file of code or weights, a pointer. */
static bool word_is_inside(struct str w)
{
    static const struct str marks[] = {
        {"://", 3},   {".py", 3},
        {".gguf", 5}, {".safetensors", 12},
        {"\\", 1},    {"site-packages", 13},
        {"0x", 2},    {"localhost", 9},
        {".cu:", 4},  {".cpp", 4},
    };
    size_t slashes = 0, dots = 0, i = 0;
    bool numeric = true;

    for (size_t k = 0; k < ARRAY_LEN(marks); k++) {
        if (has(w, marks[k])) {
            return true;
        }
    }
    while (i < w.n && !is_alnum(w.p[i]) && w.p[i] != '/') {
        i++;
    }
    if (i + 1 < w.n && w.p[i] == '/' && is_alnum(w.p[i + 1])) {
        return true;
    }
    for (; i < w.n; i++) {
        slashes += w.p[i] == '/';
        dots += w.p[i] == '.';
        numeric = numeric && !((w.p[i] | 32) >= 'a' && (w.p[i] | 32) <= 'z');
    }
    return slashes >= 2 || (numeric && dots >= 3);
}

/* Words of m, one space between, the insides as "[...]"; cut at cap. */
static void without_insides(struct str m, char *out, size_t cap)
{
    size_t n = 0, i = 0;

    while (i < m.n) {
        size_t from;
        struct str w;

        while (i < m.n && (uint8_t)m.p[i] <= ' ') {
            i++;
        }
        from = i;
        while (i < m.n && (uint8_t)m.p[i] > ' ') {
            i++;
        }
        w = str_of(m.p + from, i - from);
        w = word_is_inside(w) ? STR("[...]") : w;
        if (w.n == 0 || n + w.n + 2 > cap) {
            break;
        }
        if (n > 0) {
            out[n++] = ' ';
        }
        memcpy(out + n, w.p, w.n);
        n += w.n;
    }
    out[n] = '\0';
}

/* A parameter's name, not a value that slipped in. */
static bool is_field_name(struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (!is_alnum(s.p[i]) && s.p[i] != '_' && s.p[i] != '.' && s.p[i] != '[' && s.p[i] != ']') {
            return false;
        }
    }
    return s.n > 0 && s.n < sizeof(((struct api_error *)NULL)->param);
}

static void invalid_request(const struct said *s, struct api_error *e)
{
    char message[API_ERROR_TEXT_MAX], param[sizeof(e->param)];
    bool trace = has(s->message, STR("traceback"));

    without_insides(trace ? STR("") : s->message, message, sizeof(message));
    str_copy(is_field_name(s->param) ? s->param : STR(""), param, sizeof(param));
    api_error_invalid(e, param, "%s",
                      message[0] != '\0' ? message : "The model cannot serve this request.");
}

/* ---- the verdict ---- */

static uint32_t retry_ms_of(struct str retry_after)
{
    uint64_t seconds;

    if (!str_u64(str_trim(retry_after), &seconds) || seconds == 0) {
        seconds = 1; /* absent, a date, or nonsense */
    }
    return (uint32_t)u64_min(seconds, RETRY_AFTER_MAX_S) * 1000;
}

static void judge(int64_t status, struct str retry_after, const struct said *s, int64_t context,
                  struct api_error *e)
{
    bool about_request = status == 400 || status == 413 || status == 422;

    if (about_request && is_overflow(s)) {
        overflow(s, context, e);
    } else if (status == 413) {
        api_error_set(e, 413, "invalid_request_error", "request_too_large", NULL,
                      "The request is too large for the model.");
    } else if (about_request) {
        invalid_request(s, e);
    } else if (status == 429) {
        api_error_set(e, 429, "requests", "rate_limit_exceeded", NULL,
                      "The model is handling too many requests. Please try again later.");
        e->retry_ms = retry_ms_of(retry_after);
    } else if (status == 503 || status == 529) {
        api_error_unavailable(e, retry_ms_of(retry_after),
                              "The model is not available right now. Please try again later.");
    } else {
        api_error_upstream(e); /* 401, 403 and 404 too: how we call an engine is our fault */
    }
}

void usage_read_inband(const struct json *root, struct api_error *e)
{
    struct said s;

    read_said(root, &s);
    if (s.status < 400 || s.status > 599) {
        s.status = 500;
        if (is_overflow(&s) || has(s.type, STR("badrequest")) ||
            has(s.type, STR("invalid_request"))) {
            s.status = 400;
        } else if (has(s.type, STR("rate_limit"))) {
            s.status = 429;
        }
    }
    judge(s.status, STR(""), &s, 0, e);
}

void usage_read_error(unsigned status, struct str retry_after, struct str body, int64_t context,
                      struct api_error *e)
{
    struct said s = {STR(""), STR(""), STR(""), STR(""), NULL, 0};
    const struct json *root;
    struct arena a;

    arena_init(&a, ERROR_VALUES_BYTES + 8 * size_min(body.n, ERROR_VALUES_BYTES));
    root = usage_parse(&a, body);
    if (root != NULL && root->type == JSON_OBJECT) {
        read_said(root, &s);
    }
    judge(status, retry_after, &s, context, e);
    arena_fini(&a);
}
