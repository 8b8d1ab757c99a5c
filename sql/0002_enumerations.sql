-- Lookup tables of the numbers in usage_event, as in ledger/entry.h and ledger/price.h.
-- Append-only: a number never changes its meaning and none is used twice.
SET LOCAL ROLE tollgate_owner;

CREATE FUNCTION tollgate_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'insufficient_privilege';
END
$$;
COMMENT ON FUNCTION tollgate_refuse_change() IS 'Trigger: the table may only grow.';

CREATE TABLE tier (tier smallint PRIMARY KEY, name text NOT NULL UNIQUE);
COMMENT ON TABLE tier IS 'Service tiers a client can ask for; a row has the asked and the served one.';
INSERT INTO tier VALUES (1, 'standard'), (2, 'priority'), (3, 'flex'), (4, 'batch');

CREATE TABLE endpoint (endpoint smallint PRIMARY KEY, name text NOT NULL UNIQUE);
INSERT INTO endpoint VALUES (1, 'chat'), (2, 'completions'), (3, 'embeddings'), (4, 'messages'), (5, 'responses');

CREATE TABLE kind (kind smallint PRIMARY KEY, name text NOT NULL UNIQUE);
COMMENT ON TABLE kind IS 'What a row is: metered usage, or one of the ways to amend it.';
INSERT INTO kind VALUES (1, 'usage'), (2, 'correction'), (3, 'refund'), (4, 'void'), (5, 'adjustment'), (6, 'true_up');

CREATE TABLE usage_state (usage_state smallint PRIMARY KEY, name text NOT NULL UNIQUE, note text NOT NULL);
COMMENT ON TABLE usage_state IS 'How the token counts of a row are known. Unknown is not zero.';
INSERT INTO usage_state VALUES
    (1, 'measured', 'the engine counted'),
    (2, 'streamed_count', 'one token a content event'),
    (3, 'estimated', 'bytes divided by 4'),
    (4, 'clamped', 'the engine claimed more than was held; billed at the bound'),
    (5, 'unknown', 'nobody could say; the hold is in suspense');

CREATE TABLE outcome (outcome smallint PRIMARY KEY, name text NOT NULL UNIQUE);
INSERT INTO outcome VALUES (1, 'done'), (2, 'client_abort'), (3, 'worker_error'), (4, 'timeout'),
    (5, 'clamped'), (6, 'deadline'), (7, 'gateway_restart'), (8, 'refused_by_worker');

CREATE TABLE finish_reason (finish_reason smallint PRIMARY KEY, name text NOT NULL UNIQUE);
INSERT INTO finish_reason VALUES (0, 'none'), (1, 'stop'), (2, 'length'), (3, 'tool_calls'),
    (4, 'content_filter'), (5, 'error');

CREATE TABLE route_reason (route_reason smallint PRIMARY KEY, name text NOT NULL UNIQUE);
COMMENT ON TABLE route_reason IS 'Why this worker got the attempt.';
INSERT INTO route_reason VALUES (1, 'best'), (2, 'tie_fewer'), (3, 'tie_rendezvous'), (4, 'only_one'),
    (5, 'load_only'), (6, 'retry'), (7, 'batch');

CREATE TABLE reason_code (reason_code smallint PRIMARY KEY, name text NOT NULL UNIQUE);
COMMENT ON TABLE reason_code IS 'Why a row is not plain usage of its own period.';
INSERT INTO reason_code VALUES (0, 'none'), (1, 'late');

CREATE TABLE engine (engine smallint PRIMARY KEY, name text NOT NULL UNIQUE);
INSERT INTO engine VALUES (1, 'tollgate'), (2, 'openai');

CREATE TABLE scope_kind (scope_kind smallint PRIMARY KEY, name text NOT NULL UNIQUE);
INSERT INTO scope_kind VALUES (1, 'tenant'), (2, 'project'), (3, 'key');

CREATE TABLE quota_dim (dim smallint PRIMARY KEY, name text NOT NULL UNIQUE, unit text NOT NULL);
INSERT INTO quota_dim VALUES
    (1, 'requests_per_min', 'requests'), (2, 'input_tokens_per_min', 'tokens'),
    (3, 'output_tokens_per_min', 'tokens'), (4, 'concurrent', 'requests'), (5, 'budget_month', 'pico-USD');

GRANT SELECT ON tier, endpoint, kind, usage_state, outcome, finish_reason, route_reason, reason_code,
    engine, scope_kind, quota_dim TO tollgate_gateway, tollgate_reader;
