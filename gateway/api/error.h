/* error.h - what a client is told when it does not get an answer: one envelope, one place.
 *
 * {"error":{"message","type","param","code"}} always with its four keys; headers retry-after,
 * retry-after-ms, x-should-retry as reference says. A message says what to change and never shows
 * another tenant's data, an engine's internals or a key. */
#ifndef GATEWAY_API_ERROR_H
#define GATEWAY_API_ERROR_H

#include "base/buf.h"
#include "base/net/http.h"

#define API_ERROR_TEXT_MAX 480

struct api_error {
    unsigned status;   /* HTTP; 0: no error */
    const char *type;  /* static: "invalid_request_error", "server_error", "requests", ... */
    const char *code;  /* static or NULL: "model_not_found", "context_length_exceeded", ... */
    char param[64];    /* empty: null */
    uint32_t retry_ms; /* > 0: retry-after (rounded up, >= 1 s) and retry-after-ms */
    bool no_retry;     /* x-should-retry: false */
    char message[API_ERROR_TEXT_MAX];
};

void api_error_set(struct api_error *e, unsigned status, const char *type, const char *code,
                   const char *param, const char *fmt, ...) PRINTF_LIKE(6, 7);
/* The usual ones, worded once. */
void api_error_invalid(struct api_error *e, const char *param, const char *fmt, ...)
    PRINTF_LIKE(3, 4);                                            /* 400 */
void api_error_bad_key(struct api_error *e);                      /* 401 invalid_api_key */
void api_error_no_model(struct api_error *e, struct str model);   /* 404 model_not_found */
void api_error_not_priced(struct api_error *e, struct str model); /* 403 model_not_priced */
void api_error_too_long(struct api_error *e, int64_t context, int64_t asked, int64_t prompt,
                        int64_t output);      /* 400 */
void api_error_upstream(struct api_error *e); /* 502 server_error, code upstream_error */
void api_error_unavailable(struct api_error *e, uint32_t retry_ms, const char *why); /* 503 */

/* The JSON body (also what an SSE error event carries after "data: "). */
void api_error_body(const struct api_error *e, struct buf *out);
/* Fields to send beside content-type; returns how many (<= 4). text backs their values. */
struct api_error_text {
    char retry_after[16], retry_after_ms[16];
};
size_t api_error_fields(const struct api_error *e, struct api_error_text *text,
                        struct http_field out[4]);

#endif
