-- What it cost: one immutable row per attempt that reached a worker, and the 15-minute sums.
SET LOCAL ROLE tollgate_owner;

CREATE TABLE usage_event (
    occurred_at      timestamptz NOT NULL,
    recorded_at      timestamptz NOT NULL DEFAULT now(),
    event_id         uuid NOT NULL,
    request_id       uuid NOT NULL,
    corrects_event_id uuid,
    gw_seq           bigint NOT NULL CHECK (gw_seq > 0),
    worker_epoch     bigint NOT NULL,
    worker_seq       bigint NOT NULL,
    cost_pusd        bigint NOT NULL,
    list_pusd        bigint NOT NULL,
    hold_nusd        bigint,
    gpu_us           bigint NOT NULL,
    batch_id         bigint,
    client_idem_hash bigint,
    gateway_id       integer NOT NULL,
    gw_epoch         integer NOT NULL CHECK (gw_epoch > 0),
    period           integer NOT NULL CHECK (period BETWEEN 197001 AND 999912),
    tenant_id        integer NOT NULL,
    project_id       integer NOT NULL,
    key_id           integer NOT NULL,
    user_id          integer NOT NULL,
    tagset_id        integer NOT NULL,
    worker_id        integer NOT NULL,
    price_id         integer NOT NULL,
    tok_in_uncached  integer NOT NULL,
    tok_in_cached    integer NOT NULL,
    tok_cw_5m        integer NOT NULL,
    tok_cw_1h        integer NOT NULL,
    tok_out          integer NOT NULL,
    tok_reasoning    integer NOT NULL,
    tok_in_cached_predicted integer,
    tok_accepted_draft integer NOT NULL,
    queue_us         integer NOT NULL,
    ttft_us          integer,
    dur_us           integer NOT NULL,
    batch_line       integer,
    attempt          smallint NOT NULL,
    endpoint         smallint NOT NULL,
    model_id         smallint NOT NULL,
    tier_requested   smallint NOT NULL,
    tier_served      smallint NOT NULL,
    kind             smallint NOT NULL,
    usage_state      smallint NOT NULL,
    outcome          smallint NOT NULL,
    http_status      smallint NOT NULL,
    finish_reason    smallint NOT NULL,
    route_reason     smallint NOT NULL,
    reason_code      smallint NOT NULL,
    degraded         boolean NOT NULL,
    PRIMARY KEY (occurred_at, event_id),
    CONSTRAINT usage_is_not_negative CHECK (kind <> 1 OR (tok_in_uncached >= 0 AND tok_in_cached >= 0
        AND tok_cw_5m >= 0 AND tok_cw_1h >= 0 AND tok_out >= 0 AND tok_reasoning >= 0
        AND cost_pusd >= 0 AND list_pusd >= 0))
) PARTITION BY RANGE (occurred_at);
-- No DEFAULT partition: once rows sit in it the real one cannot be made. A missing partition makes the
-- COPY fail, the journal keeps the rows, and the shipper asks for the partition.
CREATE INDEX usage_event_tenant ON usage_event (tenant_id, occurred_at);
CREATE INDEX usage_event_recorded ON usage_event USING brin (recorded_at);

COMMENT ON TABLE usage_event IS 'The ledger. One row per attempt that reached a worker, plus corrections. Append-only';
COMMENT ON COLUMN usage_event.occurred_at IS 'admission, from the journal; the partition key, equal in every replay';
COMMENT ON COLUMN usage_event.recorded_at IS 'when the row got here; exports are incremental by it';
COMMENT ON COLUMN usage_event.event_id IS 'UUIDv7 of the attempt, sent to the worker';
COMMENT ON COLUMN usage_event.request_id IS 'event_id of attempt 1: groups attempts, names the hold';
COMMENT ON COLUMN usage_event.gw_seq IS 'dense per (gateway_id, gw_epoch): a gap is a lost row';
COMMENT ON COLUMN usage_event.gw_epoch IS 'one life of the gateway process';
COMMENT ON COLUMN usage_event.period IS 'YYYYMM (UTC) of booking; a row that came after its month was closed is booked in the next open one';
COMMENT ON COLUMN usage_event.tok_in_uncached IS 'prompt tokens computed; the six tok_ classes are disjoint';
COMMENT ON COLUMN usage_event.tok_in_cached IS 'prompt tokens read from the prefix cache';
COMMENT ON COLUMN usage_event.tok_out IS 'visible output tokens, reasoning excluded';
COMMENT ON COLUMN usage_event.tok_in_cached_predicted IS 'what the router expected in the cache; NULL: no prediction';
COMMENT ON COLUMN usage_event.tok_accepted_draft IS 'output tokens that came from speculation; informational';
COMMENT ON COLUMN usage_event.cost_pusd IS 'pico-USD (1e-12 USD): sum of tokens x price, never rounded';
COMMENT ON COLUMN usage_event.list_pusd IS 'the same tokens at list price: list - cost is what was saved';
COMMENT ON COLUMN usage_event.hold_nusd IS 'nano-USD that were reserved; the cost never exceeds it';
COMMENT ON COLUMN usage_event.gpu_us IS 'busy time of the worker attributed to the attempt';
COMMENT ON COLUMN usage_event.ttft_us IS 'time to first token; NULL: no byte came';
COMMENT ON COLUMN usage_event.tier_served IS 'the tier that is billed';
COMMENT ON COLUMN usage_event.usage_state IS 'how the counts are known';
COMMENT ON COLUMN usage_event.degraded IS 'admitted while the shared quota store was away';

CREATE TRIGGER usage_event_append_only BEFORE UPDATE OR DELETE ON usage_event
    FOR EACH ROW EXECUTE FUNCTION tollgate_refuse_change();
CREATE TRIGGER usage_event_no_truncate BEFORE TRUNCATE ON usage_event
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate_refuse_change();

CREATE FUNCTION tollgate_make_partitions(first_day date, last_day date) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    d date;
    part text;
    made integer := 0;
BEGIN
    IF last_day - first_day NOT BETWEEN 0 AND 400 THEN
        RAISE EXCEPTION 'tollgate_make_partitions: % to % is not 1 to 401 days', first_day, last_day
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('tollgate_make_partitions'));
    FOR i IN 0 .. last_day - first_day LOOP
        d := first_day + i;
        part := 'usage_event_' || to_char(d, 'YYYYMMDD');
        IF to_regclass('public.' || part) IS NULL THEN
            EXECUTE format('CREATE TABLE public.%I PARTITION OF public.usage_event FOR VALUES FROM (%L) TO (%L)',
                part, to_char(d, 'YYYY-MM-DD') || ' 00:00:00+00', to_char(d + 1, 'YYYY-MM-DD') || ' 00:00:00+00');
            EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON public.%I FOR EACH STATEMENT '
                'EXECUTE FUNCTION public.tollgate_refuse_change()', part || '_no_truncate', part);
            EXECUTE format('GRANT SELECT ON public.%I TO tollgate_gateway, tollgate_reader', part);
            made := made + 1;
        END IF;
    END LOOP;
    RETURN made;
END
$$;
COMMENT ON FUNCTION tollgate_make_partitions(date, date) IS 'Makes the missing day partitions (UTC days, both ends included); returns how many';
REVOKE ALL ON FUNCTION tollgate_make_partitions(date, date) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tollgate_make_partitions(date, date) TO tollgate_gateway;

CREATE TABLE usage_15m (
    bucket          timestamptz NOT NULL CHECK (extract(epoch FROM bucket)::bigint % 900 = 0),
    gateway_id      integer NOT NULL,
    tenant_id       integer NOT NULL,
    project_id      integer NOT NULL,
    key_id          integer NOT NULL,
    user_id         integer NOT NULL,
    tagset_id       integer NOT NULL,
    period          integer NOT NULL,
    model_id        smallint NOT NULL,
    tier_served     smallint NOT NULL,
    kind            smallint NOT NULL,
    n               bigint NOT NULL,
    tok_in_uncached bigint NOT NULL,
    tok_in_cached   bigint NOT NULL,
    tok_cw_5m       bigint NOT NULL,
    tok_cw_1h       bigint NOT NULL,
    tok_out         bigint NOT NULL,
    tok_reasoning   bigint NOT NULL,
    cost_pusd       numeric(38,0) NOT NULL,
    list_pusd       numeric(38,0) NOT NULL,
    budget_nusd     bigint NOT NULL,
    gpu_us          bigint NOT NULL,
    cost            numeric(38,0) GENERATED ALWAYS AS (cost_pusd) STORED,
    PRIMARY KEY (bucket, gateway_id, tenant_id, project_id, key_id, user_id, tagset_id, period, model_id,
        tier_served, kind)
);
CREATE INDEX usage_15m_tenant ON usage_15m (tenant_id, bucket);
COMMENT ON TABLE usage_15m IS 'Sums of usage_event by 15 minutes (UTC grain: exact in every time zone), written in the transaction of the rows. gateway_id in the key: gateways share no row, so they never wait for each other';
COMMENT ON COLUMN usage_15m.bucket IS 'start of the 15 minutes of occurred_at';
COMMENT ON COLUMN usage_15m.n IS 'rows';
COMMENT ON COLUMN usage_15m.cost_pusd IS 'pico-USD; numeric, so that no sum overflows';
COMMENT ON COLUMN usage_15m.budget_nusd IS 'sum of each row''s cost in nano-USD rounded up: the integer that a quota store''s spent must equal';
COMMENT ON COLUMN usage_15m.cost IS 'cost_pusd under its short name';

CREATE TABLE ingest_cursor (
    gateway_id integer NOT NULL,
    gw_epoch   integer NOT NULL,
    last_seq   bigint NOT NULL CHECK (last_seq >= 0),
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (gateway_id, gw_epoch)
);
COMMENT ON TABLE ingest_cursor IS 'How far each gateway epoch is here; moved in the transaction of the rows, so a commit whose answer was lost is found out by reading it. Exactly once, and last_seq = count of rows';

CREATE TABLE billing_period (
    period    integer NOT NULL CHECK (period BETWEEN 197001 AND 999912),
    tenant_id integer REFERENCES tenant,
    state     text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'provisional', 'closed')),
    closed_at timestamptz,
    closed_by text,
    row_count bigint,
    sum_pusd  numeric(38,0),
    sha256    bytea CHECK (length(sha256) = 32)
);
CREATE UNIQUE INDEX billing_period_key ON billing_period (period, COALESCE(tenant_id, 0));
COMMENT ON TABLE billing_period IS 'A month that finance closes. No row: open. Who closes takes LOCK TABLE ingest_cursor IN SHARE MODE first, so that no shipper is between its look and its commit';
COMMENT ON COLUMN billing_period.period IS 'YYYYMM';
COMMENT ON COLUMN billing_period.tenant_id IS 'NULL: all tenants';
COMMENT ON COLUMN billing_period.sha256 IS 'of the closed rows; a closed period must hash to it for ever';

CREATE TABLE hold_suspense (
    request_id uuid PRIMARY KEY,
    tenant_id  integer NOT NULL,
    project_id integer NOT NULL,
    key_id     integer NOT NULL,
    gateway_id integer NOT NULL,
    gw_epoch   integer NOT NULL,
    hold_nusd  bigint NOT NULL CHECK (hold_nusd >= 0),
    since      timestamptz NOT NULL,
    reason     text NOT NULL DEFAULT '',
    cleared_at timestamptz
);
CREATE INDEX hold_suspense_open ON hold_suspense (tenant_id, since) WHERE cleared_at IS NULL;
COMMENT ON COLUMN hold_suspense.hold_nusd IS 'nano-USD held beyond what the row was billed';
COMMENT ON COLUMN hold_suspense.since IS 'occurred_at of the request: the month in which it counts';
COMMENT ON TABLE hold_suspense IS 'Holds whose request ended and nobody knows at what cost (rows with usage_state unknown; written with them): they still count until evidence clears them';

GRANT SELECT, INSERT ON usage_event TO tollgate_gateway;
GRANT SELECT, INSERT, UPDATE ON usage_15m, ingest_cursor, hold_suspense TO tollgate_gateway;
GRANT SELECT ON billing_period TO tollgate_gateway;
GRANT SELECT ON usage_event, usage_15m, ingest_cursor, billing_period, hold_suspense TO tollgate_reader;
