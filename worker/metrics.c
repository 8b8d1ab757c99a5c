/* metrics.c - one table of single values, four histograms. */
#include "worker/metrics.h"

#include "base/json.h"
#include "worker/model/model.h"

struct row {
    const char *name, *kind, *help;
    double value;
};

static void put_label(struct buf *out, struct str model)
{
    buf_c(out, "{model_name=");
    json_write_string(out, model); /* its escapes are a superset of what the text format knows */
}

static void put_row(struct buf *out, const struct row *r, struct str model)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s", r->name, r->help, r->name, r->kind, r->name);
    put_label(out, model);
    buf_printf(out, "} %.17g\n", r->value);
}

static void put_hist(struct buf *out, const char *name, const char *help, const struct hist *h,
                     struct str model)
{
    static const uint64_t le_us[] = {1000,     2500,     5000,     10000,    25000,   50000,
                                     100000,   250000,   500000,   1000000,  2500000, 5000000,
                                     10000000, 30000000, 60000000, 120000000};

    buf_printf(out, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name);
    for (size_t i = 0; i < ARRAY_LEN(le_us); i++) {
        buf_printf(out, "%s_bucket", name);
        put_label(out, model);
        buf_printf(out, ",le=\"%g\"} %llu\n", (double)le_us[i] / 1e6,
                   (unsigned long long)hist_le(h, le_us[i]));
    }
    buf_printf(out, "%s_bucket", name);
    put_label(out, model);
    buf_printf(out, ",le=\"+Inf\"} %llu\n%s_sum", (unsigned long long)hist_count(h), name);
    put_label(out, model);
    buf_printf(out, "} %.6f\n%s_count", (double)hist_sum_us(h) / 1e6, name);
    put_label(out, model);
    buf_printf(out, "} %llu\n", (unsigned long long)hist_count(h));
}

static void put_finished(struct buf *out, const struct metrics *m, struct str model)
{
    const struct {
        const char *reason;
        uint64_t n;
    } all[] = {
        {"stop", m->finished_stop}, {"length", m->finished_length}, {"abort", m->finished_abort}};

    buf_c(out, "# HELP vllm:request_success_total Requests that ended, by reason.\n"
               "# TYPE vllm:request_success_total counter\n");
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        buf_c(out, "vllm:request_success_total");
        put_label(out, model);
        buf_printf(out, ",finished_reason=\"%s\"} %llu\n", all[i].reason,
                   (unsigned long long)all[i].n);
    }
}

void metrics_write(struct buf *out, const struct metrics *m, const struct metrics_state *s)
{
    const struct engine_stats *g = &s->engine;
    double rows = (double)(g->prefill_tokens + g->decode_tokens);
    const struct row table[] = {
        {"vllm:num_requests_running", "gauge", "Sequences in the batch.", g->running},
        {"vllm:num_requests_waiting", "gauge", "Requests that wait for room.", g->waiting},
        {"vllm:kv_cache_usage_perc", "gauge", "Share of KV blocks in use by requests, 0 to 1.",
         (double)g->blocks.referenced / (double)g->blocks.total},
        /* The name before vLLM 0.9, for scrapers that know no other. */
        {"vllm:gpu_cache_usage_perc", "gauge", "Share of KV blocks in use by requests, 0 to 1.",
         (double)g->blocks.referenced / (double)g->blocks.total},
        {"vllm:prompt_tokens_total", "counter", "Prompt tokens of started requests.",
         (double)m->prompt_tokens},
        {"vllm:generation_tokens_total", "counter", "Tokens generated.", (double)g->decode_tokens},
        {"vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up.",
         (double)m->queries},
        {"vllm:prefix_cache_hits_total", "counter", "Prompt tokens found cached.", (double)m->hits},
        {"vllm:num_preemptions_total", "counter", "Sequences that lost their blocks.",
         (double)g->preemptions},
        {"vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens drafted.",
         (double)g->drafted},
        {"vllm:spec_decode_num_accepted_tokens_total", "counter",
         "Drafted tokens that were the target's own.", (double)g->accepted},
        {"tollgate_worker_prefill_tokens_total", "counter", "Rows of prefill computed.",
         (double)g->prefill_tokens},
        {"tollgate_worker_decode_tokens_total", "counter", "Tokens sampled.",
         (double)g->decode_tokens},
        {"tollgate_worker_billed_tokens_total", "counter", "Answer tokens reported to clients.",
         (double)m->generation_tokens},
        {"tollgate_worker_billed_prompt_tokens_total", "counter",
         "Prompt tokens reported to clients, once a request.", (double)m->prompt_tokens},
        {"tollgate_worker_billed_cached_tokens_total", "counter",
         "Cached prompt tokens reported to clients.", (double)m->cached_tokens},
        {"tollgate_worker_steps_total", "counter", "Engine steps.", (double)g->steps},
        {"tollgate_worker_weight_bytes_total", "counter", "Weight bytes read, one pass a step.",
         (double)g->steps * (double)s->weights->weight_bytes},
        {"tollgate_worker_flops_total", "counter", "Multiply-adds of all matrices, times two.",
         rows * (double)s->weights->flop_per_token},
        {"tollgate_worker_kv_blocks", "gauge", "KV blocks of the pool.", g->blocks.total},
        {"tollgate_worker_kv_blocks_free", "gauge", "KV blocks that hold nothing.", g->blocks.free},
        {"tollgate_worker_kv_blocks_referenced", "gauge", "KV blocks that requests hold.",
         (double)g->blocks.total - g->blocks.free - g->blocks.cached_idle},
        {"tollgate_worker_kv_blocks_cached", "gauge", "KV blocks kept for hits, not in use.",
         g->blocks.cached_idle},
        {"tollgate_worker_chunks_held", "gauge", "Chunk hashes told on /kv_events.",
         (double)s->chunks_held},
        {"tollgate_worker_kv_subscribers", "gauge", "Readers of /kv_events.", s->subscribers},
        {"tollgate_worker_kv_snapshots_total", "counter", "Snapshots sent on /kv_events.",
         (double)m->kv_resyncs},
        {"tollgate_worker_body_bytes", "gauge",
         "Bodies of requests that are being read or prepared.", (double)s->body_bytes},
        {"tollgate_worker_refused_total", "counter", "Requests refused because all is full.",
         (double)m->refused},
        {"tollgate_worker_preparing", "gauge", "Requests that are being parsed and tokenized.",
         s->preparing},
        {"tollgate_worker_unread_total", "counter",
         "Streams cut because their client did not read them.", (double)m->unread},
        {"tollgate_worker_expired_total", "counter", "Answers that waited past their deadline.",
         (double)m->expired},
    };

    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        put_row(out, &table[i], s->model);
    }
    put_finished(out, m, s->model);
    put_hist(out, "vllm:time_to_first_token_seconds", "From the request read to its first token.",
             &m->ttft, s->model);
    put_hist(out, "vllm:time_per_output_token_seconds", "Between two tokens of one answer.",
             &m->tpot, s->model);
    put_hist(out, "vllm:inter_token_latency_seconds", "Between two tokens of one answer.", &m->tpot,
             s->model);
    put_hist(out, "vllm:request_queue_time_seconds", "From the request read to its prefill.",
             &m->queue, s->model);
    put_hist(out, "vllm:e2e_request_latency_seconds", "From the request read to its last token.",
             &m->e2e, s->model);
}
