/* journal_record.c - records to bytes and back.
 *
 * The disk structs are the format: fixed width, naturally aligned, sizes asserted. A new field goes
 * into the spare bytes at a body's end (zero in old records); a changed meaning takes a new
 * version. */
#include "ledger/journal_disk.h"

#include "base/hash.h"

#define RECORD_MAGIC 0x524a4754u /* "TGJR" */
#define RECORD_VERSION 1
#define RECORD_SEED 0x746f6c6c67617465u
#define BODY_OFFSET 40
#define BODY_BYTES 336
#define CHECKSUM_OFFSET 376

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is written by memcpy");

struct disk_header {
    uint32_t magic;
    uint16_t version, type;
    uint64_t lsn, group_lsn;
    int64_t gw_seq;
    int32_t epoch;
    uint32_t spare;
};
_Static_assert(sizeof(struct disk_header) == BODY_OFFSET, "header");
_Static_assert(BODY_OFFSET + BODY_BYTES == CHECKSUM_OFFSET, "body");
_Static_assert(CHECKSUM_OFFSET + 8 == JOURNAL_RECORD_BYTES, "checksum");

struct disk_open {
    uint8_t request[16];
    uint64_t occurred_us;
    int64_t hold_nusd;
    int32_t tenant_id, project_id, key_id, user_id, tagset_id, price_id;
    int32_t prompt_bound, output_bound;
    int16_t endpoint, model_id, tier_requested, tier_served;
};
_Static_assert(sizeof(struct disk_open) == 72, "open");

struct disk_dispatch {
    uint8_t request[16], event[16];
    uint64_t at_us, worker_epoch;
    int32_t worker_id, cached_predicted;
    int16_t attempt, route_reason;
    uint16_t url_bytes;
    char url[128];
    uint8_t spare[2];
};
_Static_assert(sizeof(struct disk_dispatch) == 192, "dispatch");

struct disk_progress {
    uint8_t event[16];
    uint64_t at_us;
    int32_t prompt, cached, output, output_held; /* held: 0 in records of before it was there */
};
_Static_assert(sizeof(struct disk_progress) == 40, "progress");

struct disk_close {
    uint8_t event[16], request[16], corrects[16];
    uint64_t occurred_us, worker_epoch, client_idem_hash;
    int64_t worker_seq, cost_pusd, list_pusd, hold_nusd, gpu_us, batch_id;
    int32_t gateway_id, tenant_id, project_id, key_id, user_id, tagset_id, worker_id, price_id;
    int32_t in_uncached, in_cached, cw_5m, cw_1h, out, reasoning;
    int32_t cached_predicted, accepted_draft, queue_us, ttft_us, dur_us, batch_line;
    int16_t attempt, endpoint, model_id, tier_requested, tier_served, kind, usage_state, outcome,
        http_status, finish, route_reason, reason_code;
    uint8_t degraded, spare[7];
};
_Static_assert(sizeof(struct disk_close) == 232, "close");
_Static_assert(sizeof(struct disk_close) <= BODY_BYTES, "close fits");

struct disk_void {
    uint8_t request[16], event[16]; /* event was spare once: zero in old records, and then it means
                                     * the whole request, as it did */
};
_Static_assert(sizeof(struct disk_void) == 32, "void");

struct disk_checkpoint {
    int32_t scope_kind, scope_id, period, spare;
    int64_t spent_nusd, held_nusd;
};
_Static_assert(sizeof(struct disk_checkpoint) == 32, "checkpoint");

static void open_encode(const struct record *r, uint8_t *body)
{
    struct disk_open d = {
        .occurred_us = r->open.occurred_us,
        .hold_nusd = r->open.hold_nusd,
        .tenant_id = r->open.tenant_id,
        .project_id = r->open.project_id,
        .key_id = r->open.key_id,
        .user_id = r->open.user_id,
        .tagset_id = r->open.tagset_id,
        .price_id = r->open.price_id,
        .prompt_bound = r->open.prompt_bound,
        .output_bound = r->open.output_bound,
        .endpoint = r->open.endpoint,
        .model_id = r->open.model_id,
        .tier_requested = r->open.tier_requested,
        .tier_served = r->open.tier_served,
    };

    memcpy(d.request, r->open.request.b, 16);
    memcpy(body, &d, sizeof(d));
}

static void open_decode(const uint8_t *body, struct record *r)
{
    struct disk_open d;

    memcpy(&d, body, sizeof(d));
    memcpy(r->open.request.b, d.request, 16);
    r->open.occurred_us = d.occurred_us;
    r->open.hold_nusd = d.hold_nusd;
    r->open.tenant_id = d.tenant_id;
    r->open.project_id = d.project_id;
    r->open.key_id = d.key_id;
    r->open.user_id = d.user_id;
    r->open.tagset_id = d.tagset_id;
    r->open.price_id = d.price_id;
    r->open.prompt_bound = d.prompt_bound;
    r->open.output_bound = d.output_bound;
    r->open.endpoint = d.endpoint;
    r->open.model_id = d.model_id;
    r->open.tier_requested = d.tier_requested;
    r->open.tier_served = d.tier_served;
}

static void dispatch_encode(const struct record *r, uint8_t *body)
{
    struct disk_dispatch d = {
        .at_us = r->dispatch.at_us,
        .worker_epoch = r->dispatch.worker_epoch,
        .worker_id = r->dispatch.worker_id,
        .cached_predicted = r->dispatch.cached_predicted,
        .attempt = r->dispatch.attempt,
        .route_reason = r->dispatch.route_reason,
    };

    CHECK(r->dispatch.worker_url.n < sizeof(d.url));
    d.url_bytes = (uint16_t)r->dispatch.worker_url.n;
    if (d.url_bytes > 0) {
        memcpy(d.url, r->dispatch.worker_url.p, d.url_bytes);
    }
    memcpy(d.request, r->dispatch.request.b, 16);
    memcpy(d.event, r->dispatch.event.b, 16);
    memcpy(body, &d, sizeof(d));
}

static bool dispatch_decode(const uint8_t *body, struct record_stored *out)
{
    struct disk_dispatch d;
    struct record *r = &out->r;

    memcpy(&d, body, sizeof(d));
    if (d.url_bytes >= sizeof(out->url)) {
        return false;
    }
    memcpy(r->dispatch.request.b, d.request, 16);
    memcpy(r->dispatch.event.b, d.event, 16);
    r->dispatch.at_us = d.at_us;
    r->dispatch.worker_epoch = d.worker_epoch;
    r->dispatch.worker_id = d.worker_id;
    r->dispatch.cached_predicted = d.cached_predicted;
    r->dispatch.attempt = d.attempt;
    r->dispatch.route_reason = d.route_reason;
    memcpy(out->url, d.url, d.url_bytes);
    out->url[d.url_bytes] = '\0';
    r->dispatch.worker_url = str_of(out->url, d.url_bytes);
    return true;
}

static void progress_encode(const struct record *r, uint8_t *body)
{
    struct disk_progress d = {
        .at_us = r->progress.at_us,
        .prompt = r->progress.prompt,
        .cached = r->progress.cached,
        .output = r->progress.output,
        .output_held = r->progress.output_held,
    };

    memcpy(d.event, r->progress.event.b, 16);
    memcpy(body, &d, sizeof(d));
}

static void progress_decode(const uint8_t *body, struct record *r)
{
    struct disk_progress d;

    memcpy(&d, body, sizeof(d));
    memcpy(r->progress.event.b, d.event, 16);
    r->progress.at_us = d.at_us;
    r->progress.prompt = d.prompt;
    r->progress.cached = d.cached;
    r->progress.output = d.output;
    r->progress.output_held = d.output_held;
}

static void close_encode(const struct record *r, int32_t gateway_id, uint8_t *body)
{
    const struct entry *c = &r->close;
    struct disk_close d = {
        .occurred_us = c->occurred_us,
        .worker_epoch = c->worker_epoch,
        .client_idem_hash = c->client_idem_hash,
        .worker_seq = c->worker_seq,
        .cost_pusd = c->cost_pusd,
        .list_pusd = c->list_pusd,
        .hold_nusd = c->hold_nusd,
        .gpu_us = c->gpu_us,
        .batch_id = c->batch_id,
        .gateway_id = gateway_id,
        .tenant_id = c->tenant_id,
        .project_id = c->project_id,
        .key_id = c->key_id,
        .user_id = c->user_id,
        .tagset_id = c->tagset_id,
        .worker_id = c->worker_id,
        .price_id = c->price_id,
        .in_uncached = c->tok.in_uncached,
        .in_cached = c->tok.in_cached,
        .cw_5m = c->tok.cw_5m,
        .cw_1h = c->tok.cw_1h,
        .out = c->tok.out,
        .reasoning = c->tok.reasoning,
        .cached_predicted = c->cached_predicted,
        .accepted_draft = c->accepted_draft,
        .queue_us = c->queue_us,
        .ttft_us = c->ttft_us,
        .dur_us = c->dur_us,
        .batch_line = c->batch_line,
        .attempt = c->attempt,
        .endpoint = c->endpoint,
        .model_id = c->model_id,
        .tier_requested = c->tier_requested,
        .tier_served = c->tier_served,
        .kind = c->kind,
        .usage_state = c->usage_state,
        .outcome = c->outcome,
        .http_status = c->http_status,
        .finish = c->finish,
        .route_reason = c->route_reason,
        .reason_code = c->reason_code,
        .degraded = c->degraded,
    };

    memcpy(d.event, c->event.b, 16);
    memcpy(d.request, c->request.b, 16);
    memcpy(d.corrects, c->corrects.b, 16);
    memcpy(body, &d, sizeof(d));
}

static void close_decode(const uint8_t *body, struct entry *c)
{
    struct disk_close d;

    memcpy(&d, body, sizeof(d));
    memcpy(c->event.b, d.event, 16);
    memcpy(c->request.b, d.request, 16);
    memcpy(c->corrects.b, d.corrects, 16);
    c->occurred_us = d.occurred_us;
    c->worker_epoch = d.worker_epoch;
    c->client_idem_hash = d.client_idem_hash;
    c->worker_seq = d.worker_seq;
    c->cost_pusd = d.cost_pusd;
    c->list_pusd = d.list_pusd;
    c->hold_nusd = d.hold_nusd;
    c->gpu_us = d.gpu_us;
    c->batch_id = d.batch_id;
    c->gateway_id = d.gateway_id;
    c->tenant_id = d.tenant_id;
    c->project_id = d.project_id;
    c->key_id = d.key_id;
    c->user_id = d.user_id;
    c->tagset_id = d.tagset_id;
    c->worker_id = d.worker_id;
    c->price_id = d.price_id;
    c->tok = (struct tokens){d.in_uncached, d.in_cached, d.cw_5m, d.cw_1h, d.out, d.reasoning};
    c->cached_predicted = d.cached_predicted;
    c->accepted_draft = d.accepted_draft;
    c->queue_us = d.queue_us;
    c->ttft_us = d.ttft_us;
    c->dur_us = d.dur_us;
    c->batch_line = d.batch_line;
    c->attempt = d.attempt;
    c->endpoint = d.endpoint;
    c->model_id = d.model_id;
    c->tier_requested = d.tier_requested;
    c->tier_served = d.tier_served;
    c->kind = d.kind;
    c->usage_state = d.usage_state;
    c->outcome = d.outcome;
    c->http_status = d.http_status;
    c->finish = d.finish;
    c->route_reason = d.route_reason;
    c->reason_code = d.reason_code;
    c->degraded = d.degraded != 0;
}

static void void_encode(const struct record *r, uint8_t *body)
{
    struct disk_void d;

    memcpy(d.request, r->voided.request.b, 16);
    memcpy(d.event, r->voided.event.b, 16);
    memcpy(body, &d, sizeof(d));
}

static void void_decode(const uint8_t *body, struct record *r)
{
    struct disk_void d;

    memcpy(&d, body, sizeof(d));
    memcpy(r->voided.request.b, d.request, 16);
    memcpy(r->voided.event.b, d.event, 16);
}

static void checkpoint_encode(const struct record *r, uint8_t *body)
{
    struct disk_checkpoint d = {
        .scope_kind = r->checkpoint.scope_kind,
        .scope_id = r->checkpoint.scope_id,
        .period = r->checkpoint.period,
        .spent_nusd = r->checkpoint.spent_nusd,
        .held_nusd = r->checkpoint.held_nusd,
    };

    memcpy(body, &d, sizeof(d));
}

static void checkpoint_decode(const uint8_t *body, struct record *r)
{
    struct disk_checkpoint d;

    memcpy(&d, body, sizeof(d));
    r->checkpoint.scope_kind = d.scope_kind;
    r->checkpoint.scope_id = d.scope_id;
    r->checkpoint.period = d.period;
    r->checkpoint.spent_nusd = d.spent_nusd;
    r->checkpoint.held_nusd = d.held_nusd;
}

/* A negative class on a usage row would be refused by Postgres and block every row behind it, so it
 * is stopped here, where its maker is on the stack. */
static void close_check(const struct entry *c)
{
    if (c->kind == KIND_USAGE) {
        CHECK(c->tok.in_uncached >= 0 && c->tok.in_cached >= 0 && c->tok.cw_5m >= 0);
        CHECK(c->tok.cw_1h >= 0 && c->tok.out >= 0 && c->tok.reasoning >= 0);
        CHECK(c->cost_pusd >= 0 && c->list_pusd >= 0);
    }
    CHECK(c->occurred_us > 0 && c->kind >= KIND_USAGE && c->kind <= KIND_TRUE_UP);
}

void record_encode_body(const struct record *r, int32_t gateway_id, uint8_t *out)
{
    struct disk_header h = {
        .magic = RECORD_MAGIC, .version = RECORD_VERSION, .type = (uint16_t)r->type};
    uint8_t *body = out + BODY_OFFSET;

    memset(out, 0, JOURNAL_RECORD_BYTES);
    memcpy(out, &h, sizeof(h));
    switch (r->type) {
    case RECORD_OPEN:
        open_encode(r, body);
        return;
    case RECORD_DISPATCH:
        dispatch_encode(r, body);
        return;
    case RECORD_PROGRESS:
        progress_encode(r, body);
        return;
    case RECORD_CLOSE:
        close_check(&r->close);
        close_encode(r, gateway_id, body);
        return;
    case RECORD_VOID:
        void_encode(r, body);
        return;
    case RECORD_CHECKPOINT:
        checkpoint_encode(r, body);
        return;
    }
    CHECK(false && "record type");
}

void record_seal(uint8_t *rec, uint64_t lsn, uint64_t group_lsn, int32_t epoch, int64_t gw_seq)
{
    struct disk_header h;
    uint64_t sum;

    memcpy(&h, rec, sizeof(h));
    h.lsn = lsn;
    h.group_lsn = group_lsn;
    h.epoch = epoch;
    h.gw_seq = gw_seq;
    memcpy(rec, &h, sizeof(h));
    sum = hash_xxh3(rec, CHECKSUM_OFFSET, RECORD_SEED);
    memcpy(rec + CHECKSUM_OFFSET, &sum, sizeof(sum));
}

bool record_is_close(const uint8_t *rec)
{
    struct disk_header h;

    memcpy(&h, rec, sizeof(h));
    return h.type == RECORD_CLOSE;
}

bool record_is_zero(const uint8_t *rec)
{
    static const uint8_t zero[JOURNAL_RECORD_BYTES];

    return memcmp(rec, zero, sizeof(zero)) == 0;
}

uint64_t record_group_lsn(const uint8_t *rec)
{
    struct disk_header h;

    memcpy(&h, rec, sizeof(h));
    return h.group_lsn;
}

void record_encode(const struct record *r, uint64_t lsn, int32_t epoch, int64_t gw_seq,
                   uint8_t *out)
{
    record_encode_body(r, r->type == RECORD_CLOSE ? r->close.gateway_id : 0, out);
    record_seal(out, lsn, lsn, epoch, gw_seq);
}

static bool body_decode(const uint8_t *body, struct record_stored *out)
{
    switch (out->r.type) {
    case RECORD_OPEN:
        open_decode(body, &out->r);
        return true;
    case RECORD_DISPATCH:
        return dispatch_decode(body, out);
    case RECORD_PROGRESS:
        progress_decode(body, &out->r);
        return true;
    case RECORD_CLOSE:
        close_decode(body, &out->r.close);
        return true;
    case RECORD_VOID:
        void_decode(body, &out->r);
        return true;
    case RECORD_CHECKPOINT:
        checkpoint_decode(body, &out->r);
        return true;
    }
    return false;
}

bool record_decode(const uint8_t *in, struct record_stored *out)
{
    struct disk_header h;
    uint64_t sum;

    memcpy(&h, in, sizeof(h));
    memcpy(&sum, in + CHECKSUM_OFFSET, sizeof(sum));
    if (h.magic != RECORD_MAGIC || h.version != RECORD_VERSION ||
        sum != hash_xxh3(in, CHECKSUM_OFFSET, RECORD_SEED)) {
        return false;
    }
    memset(out, 0, sizeof(*out));
    out->lsn = h.lsn;
    out->epoch = h.epoch;
    out->r.type = (enum record_type)h.type;
    if (!body_decode(in + BODY_OFFSET, out)) {
        return false;
    }
    if (out->r.type == RECORD_CLOSE) {
        out->r.close.gw_seq = h.gw_seq;
        out->r.close.gw_epoch = h.epoch;
    }
    return true;
}
