/* test_sample.c - one token from logits: exact sets, exact ties, and a distribution that is right.
 */
#include "worker/engine/sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define VOCAB 1000

struct world {
    float logits[VOCAB];
    uint8_t scratch[SAMPLE_SCRATCH_BYTES(VOCAB)];
};

static const struct sample_params plain = {
    .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 7};

/* A fixed bumpy landscape: all different, likeliest at id 137. */
static void fill(float *logits)
{
    for (int i = 0; i < VOCAB; i++) {
        logits[i] = (float)((i * 7919) % VOCAB) / 100.0f;
    }
    logits[137] = 12;
}

static int32_t one(struct world *w, const struct sample_params *p, const uint16_t *counts,
                   uint64_t position)
{
    struct sample_result r;

    fill(w->logits);
    sample_token(p, w->logits, VOCAB, counts, NULL, position, w->scratch, &r);
    return r.id;
}

static int by_logit(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

static void temperature_zero_takes_the_likeliest_and_the_lowest_id_of_a_tie(void **state)
{
    static struct world w;
    struct sample_params p = plain;
    struct sample_result r;

    (void)state;
    p.temperature = 0;
    assert_int_equal(one(&w, &p, NULL, 0), 137);
    fill(w.logits);
    w.logits[900] = w.logits[90] = 50;
    sample_token(&p, w.logits, VOCAB, NULL, NULL, 0, w.scratch, &r);
    assert_int_equal(r.id, 90);
}

static void a_token_depends_on_seed_and_position_alone(void **state)
{
    static struct world w;
    struct sample_params p = plain, q = plain;
    int same = 0;

    (void)state;
    q.seed = 8;
    for (uint64_t i = 0; i < 50; i++) {
        int32_t a = one(&w, &p, NULL, i);

        assert_int_equal(a, one(&w, &p, NULL, i));
        same += a == one(&w, &q, NULL, i);
    }
    assert_true(same < 40);
}

static void draws_follow_the_distribution(void **state)
{
    struct sample_params p = plain;
    float base[4] = {0, 1, 2, 3}, logits[4];
    uint8_t scratch[SAMPLE_SCRATCH_BYTES(4)];
    double z = 0, chi = 0;
    int hits[4] = {0}, n = 40000;
    struct sample_result r;

    (void)state;
    for (int i = 0; i < n; i++) {
        memcpy(logits, base, sizeof(logits));
        sample_token(&p, logits, 4, NULL, NULL, (uint64_t)i, scratch, &r);
        hits[r.id]++;
    }
    for (int i = 0; i < 4; i++) {
        z += exp(base[i]);
    }
    for (int i = 0; i < 4; i++) {
        double want = n * exp(base[i]) / z;

        chi += (hits[i] - want) * (hits[i] - want) / want;
    }
    assert_true(chi < 16.3); /* 0.1 % of three degrees of freedom */
}

static void truncation_keeps_exactly_the_promised_set(void **state)
{
    static struct world w;
    static float sorted[VOCAB];

    (void)state;
    fill(sorted);
    qsort(sorted, VOCAB, sizeof(float), by_logit);
    for (int round = 0; round < 60; round++) {
        struct sample_params p = plain;
        double z = 0, sum = 0;
        uint32_t allowed = VOCAB;
        bool seen_last = false;

        p.top_k = round % 3 == 0 ? (uint32_t)(1 + round) : 0;
        p.top_p = round % 3 == 1 ? 0.05f + 0.015f * (float)round : 1;
        p.min_p = round % 3 == 2 ? 0.02f * (float)round / 2 : 0;
        p.temperature = 3; /* flat, so that the whole set shows */
        for (int i = 0; i < VOCAB; i++) {
            z += exp((sorted[i] - 12) / 3);
        }
        if (p.top_k > 0) {
            allowed = p.top_k;
        } else if (p.top_p < 1) {
            for (allowed = 0; sum < (double)p.top_p * z; allowed++) {
                sum += exp((sorted[allowed] - 12) / 3);
            }
        } else {
            for (allowed = 0; expf((sorted[allowed] - 12) / 3) >= p.min_p; allowed++) {
                if (allowed + 1 == VOCAB) {
                    break;
                }
            }
        }
        for (uint64_t pos = 0; pos < 400; pos++) {
            int32_t id = one(&w, &p, NULL, pos);

            fill(w.logits);
            assert_true(w.logits[id] >= sorted[allowed - 1]);
            seen_last = seen_last || w.logits[id] == sorted[allowed - 1];
        }
        assert_true(seen_last || allowed > 20);
    }
}

static void penalties_and_bias_move_the_choice(void **state)
{
    static struct world w;
    static uint16_t counts[VOCAB];
    struct sample_params p = plain;
    struct sample_bias ban = {.id = 137, .bias = -100};
    int32_t second;

    (void)state;
    p.temperature = 0;
    p.bias = &ban;
    p.n_bias = 1;
    second = one(&w, &p, NULL, 0);
    assert_int_not_equal(second, 137);
    p.n_bias = 0;
    counts[137] = 2;
    p.frequency_penalty = 1.5f; /* 12 - 3 < 9.99 */
    assert_int_equal(one(&w, &p, counts, 0), second);
    p.frequency_penalty = 0;
    p.presence_penalty = 2;
    assert_int_equal(one(&w, &p, counts, 0), 137); /* 12 - 2 > 9.99 */
    counts[137] = SAMPLE_COUNT_PROMPT;             /* in the prompt only: presence does not look */
    p.presence_penalty = 2;
    p.frequency_penalty = 2;
    assert_int_equal(one(&w, &p, counts, 0), 137);
    p.presence_penalty = p.frequency_penalty = 0;
    p.repetition_penalty = 1.5f; /* 12 / 1.5 < 9.99: repetition does */
    assert_int_equal(one(&w, &p, counts, 0), second);
}

static void logprobs_are_of_the_raw_logits_and_sorted(void **state)
{
    static struct world w;
    static uint16_t counts[VOCAB];
    struct sample_params p = plain;
    struct sample_result r;
    double z = 0;

    (void)state;
    fill(w.logits);
    for (int i = 0; i < VOCAB; i++) {
        z += exp(w.logits[i]);
    }
    counts[137] = 1;
    p.temperature = 0;
    p.presence_penalty = 1;
    p.logprobs = true;
    p.top_logprobs = SAMPLE_TOP_LOGPROBS_MAX;
    sample_token(&p, w.logits, VOCAB, counts, NULL, 0, w.scratch, &r);
    assert_int_equal(r.id, 137);
    assert_true(fabs(r.logprob - (12 - log(z))) < 1e-4);
    assert_int_equal(r.top_count, SAMPLE_TOP_LOGPROBS_MAX);
    assert_int_equal(r.top[0].id, 137);
    for (uint32_t i = 1; i < r.top_count; i++) {
        assert_true(r.top[i].logprob <= r.top[i - 1].logprob);
    }
    fill(w.logits);
    for (uint32_t i = 0; i < r.top_count; i++) {
        assert_true(fabs(r.top[i].logprob - (w.logits[r.top[i].id] - log(z))) < 1e-4);
    }
}

static void broken_logits_never_break_the_draw(void **state)
{
    static struct world w;
    struct sample_params p = plain;
    struct sample_result r;

    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < VOCAB; i++) {
            w.logits[i] = kind == 0 ? NAN : kind == 1 ? -INFINITY : (i % 2 ? NAN : 1.0f);
        }
        p.top_k = kind == 2 ? 5 : 0;
        p.logprobs = true;
        sample_token(&p, w.logits, VOCAB, NULL, NULL, 3, w.scratch, &r);
        assert_in_range(r.id, 0, VOCAB - 1);
        assert_true(kind != 2 || r.id % 2 == 0);
    }
}

/* The draws of a seed before choices were: answers of old seeds stay what they were. */
static void choice_zero_draws_as_the_bare_seed(void **state)
{
    static struct world w;
    static const int32_t want[8] = {297, 137, 186, 252, 298, 62, 581, 322};
    struct sample_params p = plain;

    (void)state;
    for (uint64_t i = 0; i < 8; i++) {
        assert_int_equal(one(&w, &p, NULL, i), want[i]);
    }
}

static void choices_of_a_seed_draw_apart(void **state)
{
    static struct world w;
    struct sample_params p = plain, q = plain;
    int same = 0;

    (void)state;
    for (uint32_t choice = 1; choice < 8; choice++) {
        p.choice = choice;
        q.choice = choice - 1;
        for (uint64_t i = 0; i < 50; i++) {
            same += one(&w, &p, NULL, i) == one(&w, &q, NULL, i);
        }
    }
    assert_true(same < 7 * 50 / 4);
}

static void only_allowed_tokens_come_whatever_the_logits_are(void **state)
{
    static struct world w;
    uint32_t allowed[(VOCAB + 31) / 32] = {0};
    struct sample_bias push = {.id = 137, .bias = 100};
    struct sample_params p = plain;
    struct sample_result r;

    (void)state;
    allowed[300 / 32] = 1u << 300 % 32 | 1u << 301 % 32;
    p.bias = &push;
    p.n_bias = 1;
    for (int kind = 0; kind < 8; kind++) {
        fill(w.logits);
        for (int i = 0; i < VOCAB && kind >= 2; i++) {
            w.logits[i] = kind < 4 ? NAN : kind < 6 ? -INFINITY : INFINITY;
        }
        p.temperature = kind % 2 ? 1.0f : 0;
        p.logprobs = kind > 4;
        sample_token(&p, w.logits, VOCAB, NULL, allowed, (uint64_t)kind, w.scratch, &r);
        assert_in_range(r.id, 300, 301);
    }
}

static void nothing_allowed_is_told_by_no_token(void **state)
{
    static struct world w;
    uint32_t allowed[(VOCAB + 31) / 32] = {0};
    struct sample_params p = plain;
    struct sample_result r;

    (void)state;
    for (int hot = 0; hot < 2; hot++) {
        fill(w.logits);
        p.temperature = (float)hot;
        p.logprobs = true;
        sample_token(&p, w.logits, VOCAB, NULL, allowed, 0, w.scratch, &r);
        assert_int_equal(r.id, -1);
    }
}

static void logprobs_do_not_see_the_mask(void **state)
{
    static struct world w;
    uint32_t allowed[(VOCAB + 31) / 32] = {0};
    struct sample_params p = plain;
    struct sample_result r;
    double z = 0;
    float of_500;

    (void)state;
    fill(w.logits);
    of_500 = w.logits[500];
    for (int i = 0; i < VOCAB; i++) {
        z += exp(w.logits[i]);
    }
    allowed[500 / 32] = 1u << 500 % 32;
    p.logprobs = true;
    p.top_logprobs = 1;
    sample_token(&p, w.logits, VOCAB, NULL, allowed, 0, w.scratch, &r);
    assert_int_equal(r.id, 500);
    assert_true(fabs(r.logprob - (of_500 - log(z))) < 1e-4);
    assert_int_equal(r.top[0].id, 137);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(temperature_zero_takes_the_likeliest_and_the_lowest_id_of_a_tie),
        cmocka_unit_test(a_token_depends_on_seed_and_position_alone),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(truncation_keeps_exactly_the_promised_set),
        cmocka_unit_test(penalties_and_bias_move_the_choice),
        cmocka_unit_test(logprobs_are_of_the_raw_logits_and_sorted),
        cmocka_unit_test(broken_logits_never_break_the_draw),
        cmocka_unit_test(choice_zero_draws_as_the_bare_seed),
        cmocka_unit_test(choices_of_a_seed_draw_apart),
        cmocka_unit_test(only_allowed_tokens_come_whatever_the_logits_are),
        cmocka_unit_test(nothing_allowed_is_told_by_no_token),
        cmocka_unit_test(logprobs_do_not_see_the_mask),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
