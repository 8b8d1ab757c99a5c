-- A number that grows with every change of what gateways keep in memory. They poll it, and NOTIFY tells
-- them sooner.
SET LOCAL ROLE tollgate_owner;

CREATE TABLE config_version (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    version    bigint NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO config_version (version) VALUES (1);
COMMENT ON TABLE config_version IS 'One row. Its lock makes operators'' changes one after the other';

CREATE FUNCTION tollgate_config_bump() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = public, pg_temp AS $$
DECLARE
    v bigint;
BEGIN
    UPDATE config_version SET version = version + 1, changed_at = now() RETURNING version INTO v;
    PERFORM pg_notify('tollgate_config', v::text);
    RETURN NULL;
END
$$;

DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['tenant', 'project', 'app_user', 'api_key', 'model', 'worker', 'worker_model',
                             'price_version', 'quota'] LOOP
        EXECUTE format('CREATE TRIGGER %I AFTER INSERT OR UPDATE OR DELETE ON %I FOR EACH STATEMENT '
            'EXECUTE FUNCTION tollgate_config_bump()', t || '_config', t);
    END LOOP;
END
$$;

GRANT SELECT ON config_version TO tollgate_gateway, tollgate_reader;
