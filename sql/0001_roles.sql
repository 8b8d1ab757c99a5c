-- Roles. They belong to the cluster, not to the database, so each is made only when it is missing;
-- whoever may not make roles finds them made by who set the cluster up.
DO $$
DECLARE
    r text;
BEGIN
    FOREACH r IN ARRAY ARRAY['tollgate_owner', 'tollgate_gateway', 'tollgate_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I LOGIN', r);
                EXECUTE format('ALTER ROLE %I SET search_path = public', r);
                IF r = 'tollgate_reader' THEN
                    -- A finance query that runs away must not take the ledger with it.
                    ALTER ROLE tollgate_reader SET statement_timeout = '60s';
                    ALTER ROLE tollgate_reader SET work_mem = '32MB';
                END IF;
            EXCEPTION WHEN duplicate_object OR unique_violation OR internal_error THEN
                -- Another database of this cluster is being migrated and made it first.
                NULL;
            END;
        END IF;
    END LOOP;
    IF current_user <> 'tollgate_owner' THEN
        IF NOT pg_has_role(current_user, 'tollgate_owner', 'MEMBER') THEN
            EXECUTE format('GRANT tollgate_owner TO %I', current_user);
        END IF;
        EXECUTE format('GRANT CREATE, CONNECT, TEMPORARY ON DATABASE %I TO tollgate_owner', current_database());
        GRANT CREATE, USAGE ON SCHEMA public TO tollgate_owner;
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO tollgate_gateway, tollgate_reader', current_database());
        ALTER TABLE schema_migration OWNER TO tollgate_owner;
    END IF;
END
$$;

GRANT USAGE ON SCHEMA public TO tollgate_gateway, tollgate_reader;
GRANT SELECT ON schema_migration TO tollgate_gateway, tollgate_reader;
