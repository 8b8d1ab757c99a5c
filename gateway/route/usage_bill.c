/* usage_bill.c - what one attempt is billed for: the engine's count where it can be true, our own
 * where not, never more than was reserved. Money starts after this file. */
#include "gateway/route/usage.h"

#include <math.h>

#define BYTES_PER_TOKEN_DEFAULT 4.0
#define BYTES_PER_TOKEN_MIN 0.25
#define BYTES_PER_TOKEN_MAX 64.0

/* 0 .. max */
static int64_t at_most(int64_t v, int64_t max)
{
    return v < 0 ? 0 : v < max ? v : max;
}

static int64_t bound(int64_t reserved)
{
    return at_most(reserved, INT32_MAX);
}

static int64_t prompt_estimate(const struct usage_bill_input *in)
{
    double per = in->bytes_per_token, tokens;

    if (!isfinite(per) || per < BYTES_PER_TOKEN_MIN || per > BYTES_PER_TOKEN_MAX) {
        per = BYTES_PER_TOKEN_DEFAULT;
    }
    tokens = ceil((double)in->prompt_bytes / per);
    return tokens < 1 ? 1 : tokens > INT32_MAX ? INT32_MAX : (int64_t)tokens;
}

static int64_t output_estimate(const struct usage_bill_input *in)
{
    if (in->streamed) {
        return in->content_events;
    }
    return (int64_t)u64_min(in->answer_bytes / 4 + (in->answer_bytes % 4 != 0), INT32_MAX);
}

/* Our worker's word is the truth. Another's counts when it is not plainly wrong: content without
 * an output token (a count that came before the content), an answer to no prompt. */
static void count(const struct usage_bill_input *in, struct usage_count *c, bool *prompt_said,
                  bool *output_said)
{
    bool content = in->content_events > 0 || in->answer_bytes > 0;

    *c = in->said;
    *prompt_said = in->said.present && (in->ours || in->said.prompt > 0);
    *output_said = in->said.present && (in->ours || in->said.completion > 0 || !content);
    if (!*prompt_said) {
        c->prompt = at_most(prompt_estimate(in), bound(in->prompt_bound));
        c->cached = 0;
    }
    if (!*output_said) {
        c->completion = at_most(output_estimate(in), bound(in->output_bound));
        c->reasoning = 0;
    }
}

void usage_bill(const struct usage_bill_input *in, struct tokens *out, enum usage_state *state)
{
    int64_t prompt_max = bound(in->prompt_bound), output_max = bound(in->output_bound);
    int64_t prompt, completion, uncached, reasoning;
    bool prompt_said, output_said;
    struct usage_count c;

    *out = (struct tokens){0};
    *state = USAGE_MEASURED;
    if (!in->produced) {
        return;
    }
    count(in, &c, &prompt_said, &output_said);
    if (!output_said || !prompt_said) {
        *state = in->streamed ? USAGE_STREAMED_COUNT : USAGE_ESTIMATED;
    }
    if (c.prompt > prompt_max || c.completion > output_max) {
        *state = USAGE_CLAMPED;
    }
    prompt = at_most(c.prompt, prompt_max);
    completion = at_most(c.completion, output_max);
    uncached = c.cached < 0 || c.cached > c.prompt ? c.prompt : c.prompt - c.cached;
    uncached = at_most(uncached, prompt);
    reasoning = c.reasoning < 0 ? 0 : at_most(c.reasoning, completion);
    out->in_uncached = (int32_t)uncached;
    out->in_cached = (int32_t)(prompt - uncached);
    out->out = (int32_t)(completion - reasoning);
    out->reasoning = (int32_t)reasoning;
}
