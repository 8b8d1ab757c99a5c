-- What is served and what it costs: models, workers, price versions.
SET LOCAL ROLE tollgate_owner;

CREATE TABLE model (
    model_id   smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 256),
    context    integer NOT NULL DEFAULT 0 CHECK (context >= 0),
    output_max integer NOT NULL DEFAULT 0 CHECK (output_max >= 0),
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON COLUMN model.context IS 'tokens of prompt and output together; 0: unknown';
COMMENT ON COLUMN model.output_max IS 'cap of output tokens; 0: none';

CREATE TABLE worker (
    worker_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    url       text NOT NULL UNIQUE CHECK (length(url) BETWEEN 8 AND 127),
    engine    smallint NOT NULL REFERENCES engine,
    draining  boolean NOT NULL DEFAULT false,
    removed   boolean NOT NULL DEFAULT false,
    added_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON COLUMN worker.url IS 'at most 127 bytes: the journal keeps it with each dispatch';
COMMENT ON COLUMN worker.draining IS 'gets nothing new, ends what it has';
COMMENT ON COLUMN worker.removed IS 'gone; kept, for the rows that name it. Adding the URL again brings it back';

CREATE TABLE worker_model (
    worker_id integer NOT NULL REFERENCES worker,
    model_id  smallint NOT NULL REFERENCES model,
    PRIMARY KEY (worker_id, model_id)
);

CREATE TABLE price_version (
    price_id       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model_id       smallint NOT NULL REFERENCES model,
    tier           smallint NOT NULL REFERENCES tier,
    ctx_band       integer NOT NULL DEFAULT 2147483647 CHECK (ctx_band > 0),
    valid_from     timestamptz NOT NULL DEFAULT now(),
    in_pusd        bigint NOT NULL CHECK (in_pusd >= 0),
    cached_pusd    bigint NOT NULL CHECK (cached_pusd >= 0),
    cw_5m_pusd     bigint NOT NULL CHECK (cw_5m_pusd >= 0),
    cw_1h_pusd     bigint NOT NULL CHECK (cw_1h_pusd >= 0),
    out_pusd       bigint NOT NULL CHECK (out_pusd >= 0),
    reasoning_pusd bigint NOT NULL CHECK (reasoning_pusd >= 0),
    list_in_pusd   bigint NOT NULL CHECK (list_in_pusd >= 0),
    list_out_pusd  bigint NOT NULL CHECK (list_out_pusd >= 0),
    currency       text NOT NULL DEFAULT 'USD' CHECK (currency = 'USD'),
    published_by   text NOT NULL DEFAULT '',
    published_at   timestamptz NOT NULL DEFAULT now(),
    sha256         bytea NOT NULL CHECK (length(sha256) = 32),
    UNIQUE (model_id, tier, ctx_band, valid_from)
);
COMMENT ON TABLE price_version IS 'Immutable. A new price is a new row; a usage row names the one in force when it was admitted';
COMMENT ON COLUMN price_version.ctx_band IS 'for prompts of up to this many tokens; 2147483647: all';
COMMENT ON COLUMN price_version.in_pusd IS 'pico-USD per token (= micro-USD per 1M tokens), uncached input; the other classes likewise';
COMMENT ON COLUMN price_version.list_in_pusd IS 'standard tier without a cache discount, for savings';
COMMENT ON COLUMN price_version.sha256 IS 'of the row''s content as text, made by trigger';

CREATE FUNCTION tollgate_price_seal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.sha256 := sha256(convert_to(concat_ws('|', NEW.model_id, NEW.tier, NEW.ctx_band,
        extract(epoch FROM NEW.valid_from), NEW.in_pusd, NEW.cached_pusd, NEW.cw_5m_pusd, NEW.cw_1h_pusd,
        NEW.out_pusd, NEW.reasoning_pusd, NEW.list_in_pusd, NEW.list_out_pusd, NEW.currency), 'UTF8'));
    RETURN NEW;
END
$$;
CREATE TRIGGER price_version_seal BEFORE INSERT ON price_version
    FOR EACH ROW EXECUTE FUNCTION tollgate_price_seal();
CREATE TRIGGER price_version_immutable BEFORE UPDATE OR DELETE ON price_version
    FOR EACH ROW EXECUTE FUNCTION tollgate_refuse_change();
CREATE TRIGGER price_version_no_truncate BEFORE TRUNCATE ON price_version
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate_refuse_change();

GRANT SELECT, INSERT, UPDATE ON model, worker TO tollgate_gateway;
GRANT SELECT, INSERT, DELETE ON worker_model TO tollgate_gateway;
GRANT SELECT, INSERT ON price_version TO tollgate_gateway;
GRANT SELECT ON model, worker, worker_model, price_version TO tollgate_reader;
