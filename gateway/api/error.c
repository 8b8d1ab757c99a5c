/* error.c - the error envelope and the wording of the usual errors. Pure: knows no request. */
#include "gateway/api/error.h"

#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>

#define MODEL_SHOWN_MAX 128 /* bytes of a client's model name in a message */

static const char invalid_request[] = "invalid_request_error";

/* A cut may fall inside a character: drops its beginning. */
static void cut_to_characters(char *text)
{
    size_t n = strlen(text), valid = str_utf8_valid(str_of(text, n));

    if (n - valid < 4) {
        text[valid] = '\0';
    }
}

/* Built aside: the arguments may point into *e. */
static void set_v(struct api_error *e, unsigned status, const char *type, const char *code,
                  const char *param, const char *fmt, va_list args)
{
    struct api_error fresh = {.status = status, .type = type, .code = code};

    if (param != NULL) {
        str_copy(str_c(param), fresh.param, sizeof(fresh.param));
        cut_to_characters(fresh.param);
    }
    (void)vsnprintf(fresh.message, sizeof(fresh.message), fmt, args);
    cut_to_characters(fresh.message);
    *e = fresh;
}

void api_error_set(struct api_error *e, unsigned status, const char *type, const char *code,
                   const char *param, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    set_v(e, status, type, code, param, fmt, args);
    va_end(args);
}

void api_error_invalid(struct api_error *e, const char *param, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    set_v(e, 400, invalid_request, NULL, param, fmt, args);
    va_end(args);
}

void api_error_bad_key(struct api_error *e)
{
    api_error_set(e, 401, invalid_request, "invalid_api_key", NULL,
                  "Incorrect API key provided. Send a valid key as \"Authorization: Bearer KEY\".");
}

static struct str model_shown(struct str model)
{
    return str_of(model.p != NULL ? model.p : "", size_min(model.n, MODEL_SHOWN_MAX));
}

void api_error_no_model(struct api_error *e, struct str model)
{
    struct str shown = model_shown(model);

    api_error_set(e, 404, invalid_request, "model_not_found", "model",
                  "The model '" STR_FMT "' does not exist or you do not have access to it.",
                  STR_ARG(shown));
}

void api_error_not_priced(struct api_error *e, struct str model)
{
    struct str shown = model_shown(model);

    api_error_set(e, 403, "permission_error", "model_not_priced", "model",
                  "The model '" STR_FMT "' has no price yet, so it cannot be used.",
                  STR_ARG(shown));
}

/* Clients find an overflow by "maximum context length": it is in every form. */
void api_error_too_long(struct api_error *e, int64_t context, int64_t asked, int64_t prompt,
                        int64_t output)
{
    static const char advice[] = "Please reduce the length of the messages or completion.";
    static const char code[] = "context_length_exceeded";
    long long x = context, y = asked, a = prompt, b = output;

    if (context <= 0) {
        api_error_set(e, 400, invalid_request, code, "messages",
                      "Your request exceeds this model's maximum context length. %s", advice);
    } else if (prompt > 0 && output >= 0) {
        api_error_set(e, 400, invalid_request, code, "messages",
                      "This model's maximum context length is %lld tokens. However, you requested "
                      "%lld tokens (%lld in the messages, %lld in the completion). %s",
                      x, asked > 0 ? y : a + b, a, b, advice);
    } else if (asked > 0 || prompt > 0) {
        api_error_set(e, 400, invalid_request, code, "messages",
                      "This model's maximum context length is %lld tokens. However, you requested "
                      "%lld tokens. %s",
                      x, asked > 0 ? y : a, advice);
    } else {
        api_error_set(e, 400, invalid_request, code, "messages",
                      "This model's maximum context length is %lld tokens. However, you requested "
                      "more. %s",
                      x, advice);
    }
}

void api_error_upstream(struct api_error *e)
{
    api_error_set(e, 502, "server_error", "upstream_error", NULL,
                  "The model's worker failed before the answer was complete. Please try again.");
}

void api_error_unavailable(struct api_error *e, uint32_t retry_ms, const char *why)
{
    api_error_set(e, 503, "service_unavailable", "server_is_overloaded", NULL, "%s", why);
    e->retry_ms = retry_ms;
}

void api_error_body(const struct api_error *e, struct buf *out)
{
    struct json_writer w;

    CHECK(e->status != 0);
    jw_init(&w, out);
    jw_object(&w);
    jw_key(&w, STR("error"));
    jw_object(&w);
    jw_kc(&w, "message", e->message);
    jw_kc(&w, "type", e->type);
    jw_kc(&w, "param", e->param[0] != '\0' ? e->param : NULL);
    jw_kc(&w, "code", e->code);
    jw_end_object(&w);
    jw_end_object(&w);
}

size_t api_error_fields(const struct api_error *e, struct api_error_text *text,
                        struct http_field out[4])
{
    size_t n = 0;

    if (e->retry_ms > 0) {
        uint64_t seconds = ((uint64_t)e->retry_ms + 999) / 1000;

        (void)snprintf(text->retry_after, sizeof(text->retry_after), "%llu",
                       (unsigned long long)seconds);
        (void)snprintf(text->retry_after_ms, sizeof(text->retry_after_ms), "%u", e->retry_ms);
        out[n++] = (struct http_field){STR("retry-after"), str_c(text->retry_after)};
        out[n++] = (struct http_field){STR("retry-after-ms"), str_c(text->retry_after_ms)};
    }
    if (e->no_retry) {
        out[n++] = (struct http_field){STR("x-should-retry"), STR("false")};
    }
    return n;
}
