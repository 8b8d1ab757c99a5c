-- Limits, and who changed what.
SET LOCAL ROLE tollgate_owner;

CREATE TABLE quota (
    scope_kind  smallint NOT NULL REFERENCES scope_kind,
    scope_id    integer NOT NULL,
    dim         smallint NOT NULL REFERENCES quota_dim,
    limit_value bigint NOT NULL CHECK (limit_value >= 0),
    version     integer NOT NULL DEFAULT 1,
    changed_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope_kind, scope_id, dim)
);
COMMENT ON TABLE quota IS 'One limit of one tenant, project or key; no row: no limit';
COMMENT ON COLUMN quota.limit_value IS 'in the unit of quota_dim; a budget in pico-USD';

CREATE TABLE quota_audit (
    quota_audit_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL DEFAULT now(),
    who            text NOT NULL,
    scope_kind     smallint NOT NULL,
    scope_id       integer NOT NULL,
    dim            smallint NOT NULL,
    before_value   bigint,
    after_value    bigint
);
COMMENT ON COLUMN quota_audit.before_value IS 'NULL: there was no limit';
COMMENT ON COLUMN quota_audit.after_value IS 'NULL: lifted';

CREATE FUNCTION tollgate_quota_audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = public, pg_temp AS $$
DECLARE
    k quota := COALESCE(NEW, OLD);
BEGIN
    INSERT INTO quota_audit (who, scope_kind, scope_id, dim, before_value, after_value)
    VALUES (COALESCE(NULLIF(current_setting('tollgate.who', true), ''), session_user),
            k.scope_kind, k.scope_id, k.dim,
            CASE WHEN TG_OP <> 'INSERT' THEN OLD.limit_value END,
            CASE WHEN TG_OP <> 'DELETE' THEN NEW.limit_value END);
    RETURN NULL;
END
$$;
CREATE TRIGGER quota_audited AFTER INSERT OR UPDATE OR DELETE ON quota
    FOR EACH ROW EXECUTE FUNCTION tollgate_quota_audit();

CREATE TABLE admin_audit (
    admin_audit_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL DEFAULT now(),
    who            text NOT NULL,
    what           text NOT NULL,
    target         text NOT NULL,
    before         jsonb,
    after          jsonb
);
COMMENT ON TABLE admin_audit IS 'Every change by an operator, in the transaction of the change';
COMMENT ON COLUMN admin_audit.what IS 'the operation, e.g. key.revoke';

CREATE TRIGGER quota_audit_append_only BEFORE UPDATE OR DELETE ON quota_audit
    FOR EACH ROW EXECUTE FUNCTION tollgate_refuse_change();
CREATE TRIGGER quota_audit_no_truncate BEFORE TRUNCATE ON quota_audit
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate_refuse_change();
CREATE TRIGGER admin_audit_append_only BEFORE UPDATE OR DELETE ON admin_audit
    FOR EACH ROW EXECUTE FUNCTION tollgate_refuse_change();
CREATE TRIGGER admin_audit_no_truncate BEFORE TRUNCATE ON admin_audit
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate_refuse_change();

GRANT SELECT, INSERT, UPDATE, DELETE ON quota TO tollgate_gateway;
GRANT SELECT, INSERT ON admin_audit TO tollgate_gateway;
GRANT SELECT ON quota_audit TO tollgate_gateway;
GRANT SELECT ON quota, quota_audit, admin_audit TO tollgate_reader;
