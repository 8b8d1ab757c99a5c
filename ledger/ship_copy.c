/* ship_copy.c - rows in Postgres' binary COPY format: field count, then length and big-endian bytes
 * of each field, in the order of COPY_COLUMNS. recorded_at is the server's default: its own now().
 */
#include "ledger/ship_batch.h"

#define COPY_PIECE_BYTES 65536
#define COPY_ROW_BYTES_MAX 768
/* Microseconds from 1970 to 2000, where Postgres' binary timestamps begin. */
#define PG_EPOCH_US 946684800000000LL

static void put_be16(uint8_t **p, uint16_t v)
{
    v = __builtin_bswap16(v);
    memcpy(*p, &v, 2);
    *p += 2;
}

static void put_be32(uint8_t **p, uint32_t v)
{
    v = __builtin_bswap32(v);
    memcpy(*p, &v, 4);
    *p += 4;
}

static void field16(uint8_t **p, int16_t v)
{
    put_be32(p, 2);
    put_be16(p, (uint16_t)v);
}

static void field32(uint8_t **p, int32_t v)
{
    put_be32(p, 4);
    put_be32(p, (uint32_t)v);
}

static void field64(uint8_t **p, int64_t v)
{
    uint64_t be = __builtin_bswap64((uint64_t)v);

    put_be32(p, 8);
    memcpy(*p, &be, 8);
    *p += 8;
}

static void field_null(uint8_t **p)
{
    put_be32(p, UINT32_MAX);
}

static void field_uuid(uint8_t **p, const struct uuid *u)
{
    put_be32(p, sizeof(u->b));
    memcpy(*p, u->b, sizeof(u->b));
    *p += sizeof(u->b);
}

#define COPY_COLUMNS                                                                               \
    "occurred_at, event_id, request_id, corrects_event_id, gw_seq, worker_epoch, worker_seq, "     \
    "cost_pusd, list_pusd, hold_nusd, gpu_us, batch_id, client_idem_hash, gateway_id, gw_epoch, "  \
    "period, tenant_id, project_id, key_id, user_id, tagset_id, worker_id, price_id, "             \
    "tok_in_uncached, tok_in_cached, tok_cw_5m, tok_cw_1h, tok_out, tok_reasoning, "               \
    "tok_in_cached_predicted, tok_accepted_draft, queue_us, ttft_us, dur_us, batch_line, "         \
    "attempt, endpoint, model_id, tier_requested, tier_served, kind, usage_state, outcome, "       \
    "http_status, finish_reason, route_reason, reason_code, degraded"
#define COPY_FIELDS 48

static void put_wide(uint8_t **p, const struct entry *c)
{
    field64(p, (int64_t)c->occurred_us - PG_EPOCH_US);
    field_uuid(p, &c->event);
    field_uuid(p, &c->request);
    if (uuid_is_zero(c->corrects)) {
        field_null(p);
    } else {
        field_uuid(p, &c->corrects);
    }
    field64(p, c->gw_seq);
    field64(p, (int64_t)c->worker_epoch);
    field64(p, c->worker_seq);
    field64(p, c->cost_pusd);
    field64(p, c->list_pusd);
    field64(p, c->hold_nusd);
    field64(p, c->gpu_us);
    if (c->batch_id == 0) {
        field_null(p);
    } else {
        field64(p, c->batch_id);
    }
    if (c->client_idem_hash == 0) {
        field_null(p);
    } else {
        field64(p, (int64_t)c->client_idem_hash);
    }
}

static void put_words(uint8_t **p, const struct entry *c, int32_t period)
{
    field32(p, c->gateway_id);
    field32(p, c->gw_epoch);
    field32(p, period);
    field32(p, c->tenant_id);
    field32(p, c->project_id);
    field32(p, c->key_id);
    field32(p, c->user_id);
    field32(p, c->tagset_id);
    field32(p, c->worker_id);
    field32(p, c->price_id);
    field32(p, c->tok.in_uncached);
    field32(p, c->tok.in_cached);
    field32(p, c->tok.cw_5m);
    field32(p, c->tok.cw_1h);
    field32(p, c->tok.out);
    field32(p, c->tok.reasoning);
    if (c->cached_predicted == TOKENS_NO_PREDICTION) {
        field_null(p);
    } else {
        field32(p, c->cached_predicted);
    }
    field32(p, c->accepted_draft);
    field32(p, c->queue_us);
    if (c->ttft_us == 0) {
        field_null(p);
    } else {
        field32(p, c->ttft_us);
    }
    field32(p, c->dur_us);
    if (c->batch_id == 0) {
        field_null(p);
    } else {
        field32(p, c->batch_line);
    }
}

static void put_row(uint8_t **p, const struct booked *b)
{
    const struct entry *c = b->row;

    put_be16(p, COPY_FIELDS);
    put_wide(p, c);
    put_words(p, c, b->period);
    field16(p, c->attempt);
    field16(p, c->endpoint);
    field16(p, c->model_id);
    field16(p, c->tier_requested);
    field16(p, c->tier_served);
    field16(p, b->kind);
    field16(p, c->usage_state);
    field16(p, c->outcome);
    field16(p, c->http_status);
    field16(p, c->finish);
    field16(p, c->route_reason);
    field16(p, b->reason_code);
    put_be32(p, 1);
    *(*p)++ = c->degraded;
}

bool ship_copy(struct pg *pg, const struct booked *b, size_t n, struct err *e)
{
    static const uint8_t head[19] = "PGCOPY\n\377\r\n"; /* then \0, flags 0, extension 0 */
    uint8_t piece[COPY_PIECE_BYTES];
    uint8_t *p = piece;
    size_t i;

    if (!pg_copy_begin(pg, "COPY usage_event (" COPY_COLUMNS ") FROM STDIN (FORMAT binary)", e)) {
        return false;
    }
    memcpy(p, head, sizeof(head));
    p += sizeof(head);
    for (i = 0; i < n; i++) {
        if (b[i].skip) {
            continue;
        }
        put_row(&p, &b[i]);
        if ((size_t)(p - piece) > sizeof(piece) - COPY_ROW_BYTES_MAX) {
            if (!pg_copy_data(pg, piece, (size_t)(p - piece), e)) {
                return false;
            }
            p = piece;
        }
    }
    put_be16(&p, UINT16_MAX);
    return pg_copy_data(pg, piece, (size_t)(p - piece), e) && pg_copy_end(pg, e);
}
