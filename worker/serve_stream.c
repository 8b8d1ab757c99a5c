/* serve_stream.c - from engine events to an answer: chunks of a stream, or one object at the end.
 *
 * A stream is: head and a first chunk with the first token, a chunk for each piece of text that may
 * be shown, a chunk with the finish reason and no text, the usage chunk if asked for, [DONE]. It
 * ends in exactly one of that, an error event, or the client gone. */
#include "worker/job.h"

static void open_object(struct json_writer *w, const struct job *j, const char *object)
{
    jw_object(w);
    jw_kc(w, "id", j->id);
    jw_kc(w, "object", object);
    jw_ku64(w, "created", j->created_s);
    jw_kstr(w, "model", j->serve->o.name);
}

static void write_usage(struct json_writer *w, const struct job *j)
{
    jw_key(w, STR("usage"));
    jw_object(w);
    jw_ku64(w, "prompt_tokens", j->prompt_tokens);
    jw_ku64(w, "completion_tokens", j->completion_tokens);
    jw_ku64(w, "total_tokens", (uint64_t)j->prompt_tokens + j->completion_tokens);
    jw_key(w, STR("prompt_tokens_details"));
    jw_object(w);
    jw_ku64(w, "cached_tokens", j->cached_tokens);
    jw_end_object(w);
    jw_end_object(w);
}

/* What differs between chunks. */
enum chunk_kind { CHUNK_FIRST = 1, CHUNK_TEXT, CHUNK_FINISH };

static const char *finish_name(enum engine_finish why)
{
    return why == ENGINE_LENGTH ? "length" : "stop";
}

static void write_choice(struct json_writer *w, struct job *j, enum chunk_kind kind,
                         enum engine_finish why, struct str text)
{
    bool stopped = j->detok.stopped;

    jw_object(w);
    jw_ku64(w, "index", 0);
    if (!j->chat) {
        jw_kstr(w, "text", text);
    } else {
        jw_key(w, STR("delta"));
        jw_object(w);
        if (kind == CHUNK_FIRST) {
            jw_kc(w, "role", "assistant");
        }
        if (kind != CHUNK_FINISH) {
            jw_kstr(w, "content", text);
        }
        jw_end_object(w);
    }
    jw_key(w, STR("logprobs"));
    if (kind == CHUNK_TEXT) {
        logprobs_write(w, j, stopped);
    } else {
        jw_null(w);
    }
    jw_kc(w, "finish_reason", kind == CHUNK_FINISH ? finish_name(why) : NULL);
    jw_end_object(w);
}

static void send_out(struct job *j)
{
    struct buf *out = &j->serve->out;

    buf_c(out, "\n\n");
    if (out->failed) { /* no memory: cut, which is no clean end */
        http_stream_abort(j->stream);
        return;
    }
    http_stream_write(j->stream, buf_view(out).p, out->len);
}

static void begin_data(struct job *j, struct json_writer *w)
{
    buf_reset(&j->serve->out);
    buf_c(&j->serve->out, "data: ");
    jw_init(w, &j->serve->out);
}

static void send_chunk(struct job *j, enum chunk_kind kind, enum engine_finish why, struct str text)
{
    struct json_writer w;

    begin_data(j, &w);
    open_object(&w, j, j->chat ? "chat.completion.chunk" : "text_completion");
    jw_key(&w, STR("choices"));
    jw_array(&w);
    write_choice(&w, j, kind, why, text);
    jw_end_array(&w);
    if (j->usage_each) {
        write_usage(&w, j);
    } else if (j->include_usage) {
        jw_knull(&w, "usage");
    }
    jw_end_object(&w);
    send_out(j);
}

static void send_usage_chunk(struct job *j)
{
    struct json_writer w;

    begin_data(j, &w);
    open_object(&w, j, j->chat ? "chat.completion.chunk" : "text_completion");
    jw_key(&w, STR("choices"));
    jw_array(&w);
    jw_end_array(&w);
    write_usage(&w, j);
    jw_end_object(&w);
    send_out(j);
}

/* Text that may be shown and was not sent: a chunk, with the log-probabilities that came with it.
 */
static void send_text(struct job *j)
{
    if (j->text.len > 0) {
        send_chunk(j, CHUNK_TEXT, ENGINE_STOP, buf_view(&j->text));
        buf_reset(&j->text);
    }
}

static void end_stream(struct job *j, enum engine_finish why)
{
    send_text(j);
    if (j->tokens.len > 0) { /* tokens without text, the end token among them */
        send_chunk(j, CHUNK_TEXT, why, STR(""));
    }
    send_chunk(j, CHUNK_FINISH, why, STR(""));
    if (j->include_usage) {
        send_usage_chunk(j);
    }
    http_stream_write(j->stream, "data: [DONE]\n\n", 14);
    http_stream_end(j->stream);
}

static void write_message(struct json_writer *w, struct job *j, enum engine_finish why)
{
    jw_object(w);
    jw_ku64(w, "index", 0);
    if (j->chat) {
        jw_key(w, STR("message"));
        jw_object(w);
        jw_kc(w, "role", "assistant");
        jw_kstr(w, "content", buf_view(&j->text));
        jw_knull(w, "refusal");
        jw_end_object(w);
    } else {
        jw_kstr(w, "text", buf_view(&j->text));
    }
    jw_key(w, STR("logprobs"));
    logprobs_write(w, j, j->detok.stopped);
    jw_kc(w, "finish_reason", finish_name(why));
    jw_end_object(w);
}

static void end_whole(struct job *j, enum engine_finish why)
{
    struct buf *out = &j->serve->out;
    struct json_writer w;

    buf_reset(out);
    jw_init(&w, out);
    open_object(&w, j, j->chat ? "chat.completion" : "text_completion");
    jw_key(&w, STR("choices"));
    jw_array(&w);
    write_message(&w, j, why);
    jw_end_array(&w);
    write_usage(&w, j);
    jw_end_object(&w);
    if (out->failed) {
        http_stream_abort(j->stream);
        return;
    }
    api_send_json(j->serve, j->stream, 200, buf_view(out));
}

/* The head waits for the first token: until then a refusal still has its status, and the first byte
 * on the wire means that prefill is done. */
static void open_stream(struct job *j)
{
    const struct http_field fields[] = {
        {STR("content-type"), STR("text/event-stream; charset=utf-8")},
        {STR("cache-control"), STR("no-cache")},
        {STR("x-accel-buffering"), STR("no")},
        {STR("x-tollgate-worker-epoch"), str_c(j->serve->epoch)},
    };

    http_stream_respond(j->stream, 200, fields, ARRAY_LEN(fields), -1);
    if (j->chat || j->echo) {
        send_chunk(j, CHUNK_FIRST, ENGINE_STOP, j->echo_text);
    }
}

void answer_token(struct job *j, const struct engine_event *ev)
{
    struct str bytes = tokenizer_bytes(j->serve->model->tokenizer, ev->token.id, false);
    struct job_token t = {.r = ev->token, .start = j->raw_bytes};
    size_t before;
    bool stop;

    if (ev->completion_tokens == 1 && j->streamed) {
        open_stream(j);
    } else if (ev->completion_tokens == 1) {
        buf_str(&j->text, j->echo_text);
    }
    before = j->text.len;
    if (j->request.sample.logprobs) {
        buf_append(&j->tokens, &t, sizeof(t));
    }
    j->raw_bytes += bytes.n;
    stop = detok_feed(&j->detok, bytes, &j->text);
    j->shown_bytes += j->text.len - before;
    if (j->text.failed || j->tokens.failed) { /* no memory: their bounds follow max_tokens */
        http_stream_abort(j->stream);
        return;
    }
    if (stop) {
        answer_end(j, ENGINE_STOP);
        serve_abort_job(j);
    } else if (j->streamed) {
        send_text(j);
    }
}

void answer_end(struct job *j, enum engine_finish why)
{
    size_t before = j->text.len;

    detok_finish(&j->detok, &j->text);
    j->shown_bytes += j->text.len - before;
    if (j->streamed) {
        end_stream(j, why);
    } else {
        end_whole(j, why);
    }
    job_set_state(j, JOB_CLOSING);
}

void answer_fail(struct job *j, const struct api_error *x)
{
    struct json_writer w;

    if (j->stream != NULL && j->streamed && j->completion_tokens > 0) { /* the head is out */
        begin_data(j, &w);
        api_write_error(&w, x);
        send_out(j);
        http_stream_end(j->stream);
    } else if (j->stream != NULL) {
        api_send_error(j->serve, j->stream, x);
    }
    job_set_state(j, JOB_CLOSING);
}
