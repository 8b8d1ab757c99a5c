/* serve_stream.c - from engine events to an answer: chunks of a stream, or one object at the end.
 *
 * A stream is: the head with the first token of any choice; of each choice a first chunk, a chunk
 * for each piece of text or of a call that may be shown, a chunk with the finish reason and no
 * text; then the usage chunk if asked for, and [DONE]. It ends in exactly one of that, an error
 * event, or the client gone. */
#include "worker/job.h"

#include <stdio.h>

#define SEED_TEXT_MAX 24
/* Of a whole answer's JSON: what each choice has around its text, what each log-probability has
 * around its token (at most, and at least for the two APIs), and bytes for one byte of a token (its
 * spelling, and a number in "bytes"). */
#define CHOICE_BYTES 1024
#define ENTRY_BYTES 64
#define ENTRY_BYTES_LEAST_CHAT 36
#define ENTRY_BYTES_LEAST 6
#define ENTRY_BYTES_A_BYTE (JOB_ESCAPE_BYTES + 4)

/* What differs between chunks. */
enum chunk_kind { CHUNK_FIRST = 1, CHUNK_TEXT, CHUNK_CALL, CHUNK_FINISH };

/* Of a CHUNK_CALL: the head of a call (id and name), or a piece of its arguments. */
struct call_piece {
    struct str id, name, arguments;
};

static void open_object(struct json_writer *w, const struct job *j, const char *object)
{
    jw_object(w);
    jw_kc(w, "id", j->id);
    jw_kc(w, "object", object);
    jw_ku64(w, "created", j->created_s);
    jw_kstr(w, "model", j->serve->o.names[0]);
}

static void write_usage(struct json_writer *w, const struct job *j)
{
    uint32_t completion = job_completion_tokens(j);

    jw_key(w, STR("usage"));
    jw_object(w);
    jw_ku64(w, "prompt_tokens", j->prompt_tokens);
    jw_ku64(w, "completion_tokens", completion);
    jw_ku64(w, "total_tokens", (uint64_t)j->prompt_tokens + completion);
    jw_key(w, STR("prompt_tokens_details"));
    jw_object(w);
    jw_ku64(w, "cached_tokens", j->cached_tokens);
    jw_end_object(w);
    jw_end_object(w);
}

static const char *finish_name(const struct choice *c)
{
    return c->finish == ENGINE_LENGTH ? "length" : c->tool.calls > 0 ? "tool_calls" : "stop";
}

static void write_call_piece(struct json_writer *w, const struct choice *c,
                             const struct call_piece *p)
{
    jw_key(w, STR("tool_calls"));
    jw_array(w);
    jw_object(w);
    jw_ku64(w, "index", c->tool.calls - 1);
    if (p->id.n > 0) {
        jw_kstr(w, "id", p->id);
        jw_kc(w, "type", "function");
    }
    jw_key(w, STR("function"));
    jw_object(w);
    if (p->id.n > 0) {
        jw_kstr(w, "name", p->name);
    }
    jw_kstr(w, "arguments", p->arguments);
    jw_end_object(w);
    jw_end_object(w);
    jw_end_array(w);
}

static void write_delta(struct json_writer *w, const struct choice *c, enum chunk_kind kind,
                        struct str text, const struct call_piece *call)
{
    jw_key(w, STR("delta"));
    jw_object(w);
    if (kind == CHUNK_FIRST) {
        jw_kc(w, "role", "assistant");
    }
    if (kind == CHUNK_CALL) {
        write_call_piece(w, c, call);
    } else if (kind == CHUNK_FIRST && c->job->tool_mode == TOOLS_FORCED) {
        jw_knull(w, "content");
    } else if (kind != CHUNK_FINISH) {
        jw_kstr(w, "content", text);
    }
    jw_end_object(w);
}

static void write_choice(struct json_writer *w, struct choice *c, enum chunk_kind kind,
                         struct str text, const struct call_piece *call)
{
    jw_object(w);
    jw_ku64(w, "index", c->index);
    if (c->job->kind == JOB_CHAT) {
        write_delta(w, c, kind, text, call);
    } else {
        jw_kstr(w, "text", text);
    }
    jw_key(w, STR("logprobs"));
    if (kind == CHUNK_TEXT || kind == CHUNK_CALL) {
        logprobs_write(w, c, c->detok.stopped);
    } else {
        jw_null(w);
    }
    jw_kc(w, "finish_reason", kind == CHUNK_FINISH ? finish_name(c) : NULL);
    jw_end_object(w);
}

static void cut(struct job *j)
{
    if (j->stream != NULL) { /* no memory: no clean end */
        http_stream_abort(j->stream);
    }
}

static void cut_unread(struct job *j)
{
    j->was_cut = true;
    j->serve->metrics.unread++;
    env_timer_disarm(j->serve->env, &j->unsent);
    http_stream_abort(j->stream); /* the engine hears of it when the stream closes */
}

/* What a stream begins with (echo) is not held against its reader. */
static void watch_unsent(struct job *j)
{
    struct env *env = j->serve->env;
    size_t unsent = http_stream_buffered(j->stream);

    if (j->was_cut) {
        return; /* until the stream's close is heard */
    }
    if (unsent > JOB_UNSENT_BYTES_MAX + j->answer_bytes) {
        cut_unread(j);
    } else if (unsent <= JOB_UNSENT_BYTES + j->answer_bytes) {
        env_timer_disarm(env, &j->unsent);
    } else if (!env_timer_is_armed(&j->unsent)) {
        env_timer_arm(env, &j->unsent, env_now_us(env) + JOB_UNSENT_US);
    }
}

void answer_unread(struct env_timer *t)
{
    struct job *j = CONTAINER_OF(t, struct job, unsent);

    if (http_stream_buffered(j->stream) > JOB_UNSENT_BYTES + j->answer_bytes) {
        cut_unread(j);
    }
}

void answer_drained(struct job *j)
{
    env_timer_disarm(j->serve->env, &j->unsent);
}

static void send_out(struct job *j)
{
    struct buf *out = &j->serve->out;

    buf_c(out, "\n\n");
    if (out->failed) {
        cut(j);
        return;
    }
    http_stream_write(j->stream, buf_view(out).p, out->len);
    watch_unsent(j);
}

static void begin_data(struct job *j, struct json_writer *w)
{
    buf_reset(&j->serve->out);
    buf_c(&j->serve->out, "data: ");
    jw_init(w, &j->serve->out);
}

static void send_chunk(struct choice *c, enum chunk_kind kind, struct str text,
                       const struct call_piece *call)
{
    struct job *j = c->job;
    struct json_writer w;

    begin_data(j, &w);
    open_object(&w, j, j->kind == JOB_CHAT ? "chat.completion.chunk" : "text_completion");
    jw_key(&w, STR("choices"));
    jw_array(&w);
    write_choice(&w, c, kind, text, call);
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
    open_object(&w, j, j->kind == JOB_CHAT ? "chat.completion.chunk" : "text_completion");
    jw_key(&w, STR("choices"));
    jw_array(&w);
    jw_end_array(&w);
    write_usage(&w, j);
    jw_end_object(&w);
    send_out(j);
}

/* With the log-probabilities that came with it. */
void answer_text(struct choice *c)
{
    if (c->text.len > 0) {
        send_chunk(c, CHUNK_TEXT, buf_view(&c->text), NULL);
        buf_reset(&c->text);
    }
}

void answer_call(struct choice *c, struct str id, struct str name, struct str arguments)
{
    struct call_piece p = {.id = id, .name = name, .arguments = arguments};

    send_chunk(c, CHUNK_CALL, STR(""), &p);
}

static void finish_choice(struct choice *c)
{
    answer_text(c);
    if (c->tokens.len > 0) { /* tokens without text, the end token among them */
        send_chunk(c, CHUNK_TEXT, STR(""), NULL);
    }
    send_chunk(c, CHUNK_FINISH, STR(""), NULL);
}

static void end_stream(struct job *j)
{
    if (j->include_usage) {
        send_usage_chunk(j);
    }
    http_stream_write(j->stream, "data: [DONE]\n\n", 14);
    http_stream_end(j->stream);
    env_timer_disarm(j->serve->env, &j->unsent);
}

static void write_message(struct json_writer *w, struct choice *c)
{
    jw_key(w, STR("message"));
    jw_object(w);
    jw_kc(w, "role", "assistant");
    if (c->tool.calls > 0 && c->text.len == 0) {
        jw_knull(w, "content");
    } else {
        jw_kstr(w, "content", buf_view(&c->text));
    }
    jw_knull(w, "refusal");
    if (c->tool.calls > 0) {
        jw_key(w, STR("tool_calls"));
        jw_array(w);
        jw_raw(w, buf_view(&c->tool.told));
        jw_end_array(w);
    }
    jw_end_object(w);
}

static void write_whole(struct json_writer *w, struct choice *c)
{
    jw_object(w);
    jw_ku64(w, "index", c->index);
    if (c->job->kind == JOB_CHAT) {
        write_message(w, c);
    } else {
        jw_kstr(w, "text", buf_view(&c->text));
    }
    jw_key(w, STR("logprobs"));
    logprobs_write(w, c, c->detok.stopped);
    jw_kc(w, "finish_reason", finish_name(c));
    jw_end_object(w);
}

/* Decimal, as the "seed" that would give this answer again. */
static struct http_field seed_field(const struct job *j, char text[SEED_TEXT_MAX])
{
    snprintf(text, SEED_TEXT_MAX, "%lld", (long long)j->request.sample.seed);
    return (struct http_field){STR("x-tollgate-seed"), str_c(text)};
}

static void end_whole(struct job *j)
{
    struct buf *out = &j->serve->out;
    struct json_writer w;
    char seed[SEED_TEXT_MAX];
    bool failed = false;

    buf_reset(out);
    jw_init(&w, out);
    open_object(&w, j, j->kind == JOB_CHAT ? "chat.completion" : "text_completion");
    jw_key(&w, STR("choices"));
    jw_array(&w);
    for (uint32_t i = 0; i < j->n; i++) {
        failed = failed || j->choice[i].text.failed; /* its calls with it */
        write_whole(&w, &j->choice[i]);
    }
    jw_end_array(&w);
    write_usage(&w, j);
    jw_end_object(&w);
    if (out->failed || failed) {
        cut(j);
        return;
    }
    const struct http_field fields[] = {
        {STR("content-type"), STR("application/json")},
        {STR("x-tollgate-worker-epoch"), str_c(j->serve->epoch)},
        seed_field(j, seed),
    };

    http_stream_respond(j->stream, 200, fields, ARRAY_LEN(fields), (int64_t)out->len);
    http_stream_write(j->stream, buf_view(out).p, out->len);
    http_stream_end(j->stream);
}

/* The head waits for the first token: until then a refusal still has its status, and the first byte
 * on the wire means that prefill is done. */
static void open_stream(struct job *j)
{
    char seed[SEED_TEXT_MAX];
    const struct http_field fields[] = {
        {STR("content-type"), STR("text/event-stream; charset=utf-8")},
        {STR("cache-control"), STR("no-cache")},
        {STR("x-accel-buffering"), STR("no")},
        {STR("x-tollgate-worker-epoch"), str_c(j->serve->epoch)},
        seed_field(j, seed),
    };

    j->head_sent = true;
    http_stream_respond(j->stream, 200, fields, ARRAY_LEN(fields), -1);
}

static void open_choice(struct choice *c)
{
    struct job *j = c->job;

    c->opened = true;
    if (!j->streamed) {
        buf_str(&c->text, j->echo_text);
        return;
    }
    if (!j->head_sent) {
        open_stream(j);
    }
    if (j->kind == JOB_CHAT || j->echo) {
        send_chunk(c, CHUNK_FIRST, j->echo_text, NULL);
    }
}

static uint64_t json_bytes(struct str s)
{
    uint64_t n = s.n;

    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = (uint8_t)s.p[i];

        n += c < 0x20 ? JOB_ESCAPE_BYTES - 1 : c == '"' || c == '\\';
    }
    return n;
}

bool answer_fits(struct job *j, struct api_error *x)
{
    const struct sample_params *p = &j->request.sample;
    uint64_t token = j->kind == JOB_CHAT ? ENTRY_BYTES_LEAST_CHAT * (1ull + p->top_logprobs)
                                         : ENTRY_BYTES_LEAST * (1ull + p->top_logprobs);
    uint32_t tokens = j->max_tokens > 0 ? j->request.max_tokens : 0; /* as many as there is room */
    uint64_t least = p->logprobs ? (uint64_t)j->n * tokens * token : 0;

    j->answer_bytes = j->n * (json_bytes(j->echo_text) + CHOICE_BYTES);
    if (j->answer_bytes > JOB_ANSWER_BYTES_MAX) {
        return api_refuse(x, 400, NULL, "echo",
                          "'echo' would repeat %zu bytes of prompt in %u answers: more than the %u "
                          "bytes that an answer may have.",
                          j->echo_text.n, j->n, JOB_ANSWER_BYTES_MAX);
    }
    if (!j->streamed && least > JOB_ANSWER_BYTES_MAX) {
        return api_refuse(x, 400, NULL, j->kind == JOB_CHAT ? "top_logprobs" : "logprobs",
                          "%u answers of %u tokens with %u alternatives each have at least %llu "
                          "bytes as JSON, more than the %u that a whole answer may have. Ask for "
                          "less, or stream it.",
                          j->n, tokens, p->top_logprobs, (unsigned long long)least,
                          JOB_ANSWER_BYTES_MAX);
    }
    return true;
}

/* What a token adds to a whole answer, at most. */
static uint64_t token_bytes(const struct choice *c, const struct sample_result *r, struct str bytes)
{
    const struct tokenizer *t = c->job->serve->model->tokenizer;
    uint64_t n = (uint64_t)bytes.n * JOB_ESCAPE_BYTES;

    if (!c->request.sample.logprobs) {
        return n;
    }
    n += ENTRY_BYTES + (uint64_t)tokenizer_bytes(t, r->id, true).n * ENTRY_BYTES_A_BYTE;
    for (uint32_t k = 0; k < r->top_count; k++) {
        n += ENTRY_BYTES + (uint64_t)tokenizer_bytes(t, r->top[k].id, true).n * ENTRY_BYTES_A_BYTE;
    }
    return n;
}

/* A whole answer that can grow no more: each of its choices was cut by a length, those that wait
 * too. The engine may have begun one before it hears of that. */
static void end_full(struct job *j)
{
    for (uint32_t i = 0; i < j->n; i++) {
        struct choice *c = &j->choice[i];

        if (c->state == CHOICE_WAITING || c->state == CHOICE_RUNNING) {
            answer_end(c, ENGINE_LENGTH);
            choice_abort(c);
        }
    }
}

/* A marker of calls may be a control token: it is text for whoever reads the calls. */
static struct str bytes_of(const struct choice *c, int32_t id)
{
    const struct serve *s = c->job->serve;
    bool marker = c->job->tool_mode != TOOLS_OFF && id >= 0 &&
                  (id == s->shape.start_id || id == s->shape.end_id);

    return tokenizer_bytes(s->model->tokenizer, id, marker);
}

/* Feeds what may be shown to the reader of calls. true: the answer is over by itself. */
static bool take_text(struct choice *c, struct str bytes, bool last)
{
    struct buf shown;
    bool over;

    buf_init(&shown, c->text.max);
    over = !last && detok_feed(&c->detok, bytes, &shown);
    if (last) {
        detok_finish(&c->detok, &shown);
    }
    c->shown_bytes += shown.len;
    over = tools_feed(c, buf_view(&shown)) || over;
    c->text.failed = c->text.failed || shown.failed;
    buf_fini(&shown);
    return over;
}

void answer_token(struct choice *c, const struct engine_event *ev)
{
    struct job *j = c->job;
    struct str bytes = bytes_of(c, ev->token.id);
    struct job_token t = {.r = ev->token, .start = c->raw_bytes};
    bool over;

    if (!c->opened) {
        open_choice(c);
    }
    if (j->request.sample.logprobs) {
        buf_append(&c->tokens, &t, sizeof(t));
    }
    c->raw_bytes += bytes.n;
    over = take_text(c, bytes, false);
    if (c->text.failed || c->tokens.failed) { /* no memory: their bounds follow max_tokens */
        cut(j);
        return;
    }
    if (over) {
        answer_end(c, ENGINE_STOP);
        choice_abort(c);
    } else if (j->streamed) {
        answer_text(c);
    } else {
        logprobs_settle(c);
        j->answer_bytes += token_bytes(c, &ev->token, bytes);
        if (j->answer_bytes > JOB_ANSWER_BYTES_MAX) {
            end_full(j);
        }
    }
}

void answer_end(struct choice *c, enum engine_finish why)
{
    struct job *j = c->job;

    if (!c->opened) { /* it ended without a token */
        open_choice(c);
    }
    take_text(c, STR(""), true);
    tools_finish(c);
    c->finish = why;
    if (j->streamed) {
        finish_choice(c);
    }
    choice_set_state(c, CHOICE_ANSWERED);
    if (--j->unanswered > 0) {
        return;
    }
    if (j->streamed) {
        end_stream(j);
    } else {
        end_whole(j);
    }
    job_note_answered(j);
    job_set_state(j, JOB_CLOSING);
}

void answer_fail(struct job *j, const struct api_error *x)
{
    struct json_writer w;

    if (j->stream != NULL && j->head_sent) {
        begin_data(j, &w);
        api_write_error(&w, x);
        send_out(j);
        http_stream_end(j->stream);
        env_timer_disarm(j->serve->env, &j->unsent);
    } else if (j->stream != NULL) {
        api_send_error(j->serve, j->stream, x);
    }
    job_set_state(j, JOB_CLOSING);
}
