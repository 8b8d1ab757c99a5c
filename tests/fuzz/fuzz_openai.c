/* fuzz_openai.c - bodies of clients and answers of engines: whatever comes, what we send on is
 * strict JSON, and a bill stays within what was reserved.
 *
 * The first byte chooses: a request (chat, completions), a stream (events apart by blank lines), a
 * whole answer, an error body. */
#include "gateway/route/usage.h"
#include "ledger/price.h"

#define ARENA_BYTES (64u << 20)
#define OUT_BYTES (64u << 20)
#define PROMPT_BOUND 1000
#define OUTPUT_BOUND 50

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must_be_json(struct str text)
{
    struct arena a;
    struct err e;

    err_clear(&e);
    arena_init(&a, ARENA_BYTES);
    CHECK(json_parse(&a, text, &(struct json_limits){200, 2000000}, &e) != NULL);
    arena_fini(&a);
}

static void must_be_event(const struct buf *out)
{
    struct str s = buf_view(out);

    CHECK(!out->failed && str_starts(s, STR("data: ")) && str_ends(s, STR("\n\n")));
    must_be_json(str_of(s.p + 6, s.n - 8));
    CHECK(str_find(str_of(s.p, s.n - 2), STR("\n")) == SIZE_MAX);
}

static void must_be_error(const struct api_error *e, struct buf *out)
{
    CHECK(e->status >= 400 && e->status < 600 && e->message[0] != '\0' && e->type != NULL);
    buf_reset(out);
    openai_render_error_event(e, out);
    must_be_event(out);
}

static void request(enum endpoint ep, struct str body, struct buf *out)
{
    struct openai_request r;
    struct api_error e = {0};
    struct arena a;

    arena_init(&a, ARENA_BYTES);
    if (openai_parse(&a, ep, body, &r, &e)) {
        for (int kind = ENGINE_TOLLGATE; kind <= ENGINE_OPENAI; kind++) {
            buf_reset(out);
            openai_engine_body(&r, (enum engine_kind)kind, STR("weights"), 7, out);
            CHECK(!out->failed);
            must_be_json(buf_view(out));
        }
    } else {
        must_be_error(&e, out);
    }
    arena_fini(&a);
}

static void must_be_bill(const struct usage_count *said, bool ours, int64_t events)
{
    struct usage_bill_input in = {.said = *said,
                                  .ours = ours,
                                  .prompt_bound = PROMPT_BOUND,
                                  .output_bound = OUTPUT_BOUND,
                                  .content_events = events,
                                  .answer_bytes = 5,
                                  .prompt_bytes = 100,
                                  .streamed = true,
                                  .produced = true};
    enum usage_state state;
    struct tokens t;

    usage_bill(&in, &t, &state);
    CHECK(t.in_uncached >= 0 && t.in_cached >= 0 && t.out >= 0 && t.reasoning >= 0);
    CHECK(t.in_uncached + t.in_cached <= PROMPT_BOUND && t.out + t.reasoning <= OUTPUT_BOUND);
}

static void stream(struct str all, struct buf *out)
{
    struct openai_answer answer = {ENDPOINT_CHAT, STR("chatcmpl-1"), 17, STR("public"), true, NULL};
    struct usage_calls calls;
    struct usage_chunk c;
    int64_t events = 0;

    usage_calls_init(&calls, (struct uuid){{0}});
    while (all.n > 0) {
        size_t n = str_find(all, STR("\n\n"));
        struct str one = n == SIZE_MAX ? all : str_of(all.p, n);
        struct arena a;

        all = n == SIZE_MAX ? STR("") : str_of(all.p + n + 2, all.n - n - 2);
        arena_init(&a, ARENA_BYTES);
        if (usage_read_chunk(&calls, &a, ENDPOINT_CHAT, one, &c)) {
            events += c.has_content;
            must_be_bill(&c.usage, events % 2 == 0, events);
            buf_reset(out);
            openai_render_chunk(&answer, &c.delta, c.finish, out);
            must_be_event(out);
            if (c.is_error) {
                must_be_error(&c.error, out);
            }
        }
        CHECK(calls.count <= USAGE_CALLS_MAX);
        arena_fini(&a);
    }
}

static void whole(enum endpoint ep, struct str body, struct buf *out)
{
    struct openai_answer answer = {ep, STR("x-1"), 17, STR("public"), true, "flex"};
    struct openai_usage u = {1, 0, 1, 0};
    struct usage_calls calls;
    struct usage_whole w;
    struct api_error e;
    struct arena a;

    usage_calls_init(&calls, (struct uuid){{0}});
    arena_init(&a, ARENA_BYTES);
    if (usage_read_whole(&calls, &a, ep, body, &w, &e)) {
        CHECK(w.finish != FINISH_NONE && w.choice != NULL);
        must_be_bill(&w.usage, false, 1);
        buf_reset(out);
        openai_render_whole(&answer, w.choice, w.finish, &u, out);
        CHECK(!out->failed);
        must_be_json(buf_view(out));
    } else {
        must_be_error(&e, out);
    }
    arena_fini(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const unsigned statuses[] = {400, 413, 422, 429, 500, 503};
    struct api_error e;
    struct str text;
    struct buf out;

    if (size == 0) {
        return 0;
    }
    text = str_of(data + 1, size - 1);
    buf_init(&out, OUT_BYTES);
    switch (data[0] % 6) {
    case 0:
        request(ENDPOINT_CHAT, text, &out);
        break;
    case 1:
        request(ENDPOINT_COMPLETIONS, text, &out);
        break;
    case 2:
        stream(text, &out);
        break;
    case 3:
        whole(ENDPOINT_CHAT, text, &out);
        break;
    case 4:
        whole(ENDPOINT_COMPLETIONS, text, &out);
        break;
    default:
        usage_read_error(statuses[data[0] / 6 % ARRAY_LEN(statuses)], STR("7"), text, 4096, &e);
        must_be_error(&e, &out);
        break;
    }
    buf_fini(&out);
    return 0;
}
