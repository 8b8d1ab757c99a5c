/* metrics.c - Prometheus text (0.0.4): loops' counters summed, workers, quota, journal, shipper.
 * No label of a tenant: cardinality stays bounded, and the ledger has the detail. */
#include "gateway/control.h"

#include <inttypes.h>

static const uint64_t edges_us[] = {1000,    2500,    5000,     10000,    25000,
                                    50000,   100000,  250000,   500000,   1000000,
                                    2500000, 5000000, 10000000, 30000000, 60000000};

static void counter(struct buf *b, const char *name, const char *help, uint64_t v)
{
    buf_printf(b, "# HELP %s %s\n# TYPE %s counter\n%s %" PRIu64 "\n", name, help, name, name, v);
}

static void gauge(struct buf *b, const char *name, const char *help, int64_t v)
{
    buf_printf(b, "# HELP %s %s\n# TYPE %s gauge\n%s %" PRId64 "\n", name, help, name, name, v);
}

static uint64_t sum(const struct gateway *gw, size_t offset)
{
    uint64_t total = 0;

    for (unsigned i = 0; i < gw->n_loops; i++) {
        if (gw->loop[i] != NULL) {
            total += atomic_load_explicit(
                (_Atomic uint64_t *)(void *)((char *)&gw->loop[i]->metrics + offset),
                memory_order_relaxed);
        }
    }
    return total;
}

static void histogram(struct buf *b, const struct gateway *gw, const char *name, const char *help,
                      size_t offset)
{
    uint64_t count = 0, total_us = 0;

    buf_printf(b, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name);
    for (size_t k = 0; k < ARRAY_LEN(edges_us); k++) {
        uint64_t le = 0;

        for (unsigned i = 0; i < gw->n_loops; i++) {
            if (gw->loop[i] != NULL) {
                le += hist_le(
                    (const struct hist *)(const void *)((const char *)&gw->loop[i]->metrics +
                                                        offset),
                    edges_us[k]);
            }
        }
        buf_printf(b, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, (double)edges_us[k] / 1e6, le);
    }
    for (unsigned i = 0; i < gw->n_loops; i++) {
        if (gw->loop[i] != NULL) {
            const struct hist *h =
                (const struct hist *)(const void *)((const char *)&gw->loop[i]->metrics + offset);

            count += hist_count(h);
            total_us += hist_sum_us(h);
        }
    }
    buf_printf(b, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %.6f\n%s_count %" PRIu64 "\n", name,
               count, name, (double)total_us / 1e6, name, count);
}

static void loops(struct gateway *gw, struct buf *b)
{
    static const struct {
        const char *name, *help;
        size_t offset;
    } counters[] = {
        {"tollgate_requests_total", "inference requests whose key was good",
         offsetof(struct loop_metrics, requests)},
        {"tollgate_refused_auth_total", "requests without a good key",
         offsetof(struct loop_metrics, refused_auth)},
        {"tollgate_refused_quota_total", "requests over a limit",
         offsetof(struct loop_metrics, refused_quota)},
        {"tollgate_refused_input_total", "requests that were malformed",
         offsetof(struct loop_metrics, refused_input)},
        {"tollgate_no_worker_total", "requests that found no worker",
         offsetof(struct loop_metrics, no_worker)},
        {"tollgate_retries_total", "attempts at another worker",
         offsetof(struct loop_metrics, retries)},
        {"tollgate_cut_total", "streams cut by their worker", offsetof(struct loop_metrics, cut)},
        {"tollgate_client_aborts_total", "requests whose client left",
         offsetof(struct loop_metrics, client_aborts)},
        {"tollgate_streams_total", "streamed answers begun",
         offsetof(struct loop_metrics, streams)},
        {"tollgate_tokens_in_total", "prompt tokens billed",
         offsetof(struct loop_metrics, tokens_in)},
        {"tollgate_tokens_cached_total", "prompt tokens that were cached",
         offsetof(struct loop_metrics, tokens_cached)},
        {"tollgate_tokens_out_total", "output tokens billed",
         offsetof(struct loop_metrics, tokens_out)},
        {"tollgate_clamped_total", "answers ended at their hold",
         offsetof(struct loop_metrics, clamped)},
    };
    int64_t live = 0;

    for (size_t i = 0; i < ARRAY_LEN(counters); i++) {
        counter(b, counters[i].name, counters[i].help, sum(gw, counters[i].offset));
    }
    for (unsigned i = 0; i < gw->n_loops; i++) {
        live += gw->loop[i] != NULL ? (int64_t)atomic_load(&gw->loop[i]->live) : 0;
    }
    gauge(b, "tollgate_requests_live", "requests open now", live);
    gauge(b, "tollgate_holds_open", "quota holds open now", quota_open_holds(gw->quota));
    histogram(b, gw, "tollgate_ttft_seconds", "time to the first token",
              offsetof(struct loop_metrics, ttft));
    histogram(b, gw, "tollgate_tpot_seconds", "time per output token after the first",
              offsetof(struct loop_metrics, tpot));
    histogram(b, gw, "tollgate_request_seconds", "from the head to the end",
              offsetof(struct loop_metrics, total));
    histogram(b, gw, "tollgate_durable_wait_seconds", "from the last token to a durable CLOSE",
              offsetof(struct loop_metrics, durable_wait));
}

static void workers(struct gateway *gw, struct buf *b)
{
    const struct world *w = gw->control->world;
    static const char *const names[] = {"tollgate_worker_up",
                                        "tollgate_worker_in_flight",
                                        "tollgate_worker_queued_tokens",
                                        "tollgate_worker_requests_total",
                                        "tollgate_worker_errors_total",
                                        "tollgate_worker_cached_tokens_total",
                                        "tollgate_worker_prompt_tokens_total",
                                        "tollgate_worker_prediction_error_tokens_total",
                                        "tollgate_worker_kv_events"};

    for (size_t k = 0; k < ARRAY_LEN(names); k++) {
        buf_printf(b, "# TYPE %s %s\n", names[k], k < 3 || k == 8 ? "gauge" : "counter");
        for (unsigned i = 0; w != NULL && i < w->n_workers; i++) {
            const struct worker *x = w->worker[i].w;
            int64_t v[] = {atomic_load(&x->health) == WORKER_UP,
                           atomic_load(&x->in_flight),
                           atomic_load(&x->queued_tokens),
                           (int64_t)atomic_load(&x->requests),
                           (int64_t)atomic_load(&x->errors),
                           (int64_t)atomic_load(&x->cached_actual),
                           (int64_t)atomic_load(&x->prompt_tokens),
                           (int64_t)atomic_load(&x->prediction_error),
                           atomic_load(&x->publishes)};

            buf_printf(b, "%s{worker=\"%d\"} %" PRId64 "\n", names[k], x->worker_id, v[k]);
        }
    }
}

static void ledger(struct gateway *gw, struct buf *b)
{
    struct journal_stats j;
    struct ship_stats s;
    struct whohas_stats *w = mem_new(sizeof(*w));

    journal_stats(gw->journal, &j);
    ship_stats(gw->ship, &s);
    whohas_stats(gw->index, w);
    counter(b, "tollgate_journal_records_total", "records written", j.records);
    counter(b, "tollgate_journal_groups_total", "groups synced", j.groups);
    counter(b, "tollgate_journal_rows_total", "rows closed in this epoch", j.rows);
    gauge(b, "tollgate_journal_admits", "1 while new requests are admitted",
          journal_admits(gw->journal));
    counter(b, "tollgate_ship_rows_total", "rows committed to Postgres", s.rows);
    counter(b, "tollgate_ship_failures_total", "transactions that failed", s.failures);
    gauge(b, "tollgate_ship_behind_rows", "durable rows not yet in Postgres",
          (int64_t)s.behind_rows);
    gauge(b, "tollgate_postgres_up", "1 while the shipper reaches Postgres", s.up);
    gauge(b, "tollgate_whohas_entries", "chunks known", (int64_t)w->entries);
    gauge(b, "tollgate_whohas_bytes", "memory of the index", (int64_t)w->bytes);
    counter(b, "tollgate_whohas_evicted_total", "chunks evicted", w->evicted);
    counter(b, "tollgate_log_dropped_total", "log lines dropped", log_dropped(gw->log));
    mem_free(w);
}

void metrics_render(struct gateway *gw, struct buf *out)
{
    loops(gw, out);
    workers(gw, out);
    ledger(gw, out);
}
