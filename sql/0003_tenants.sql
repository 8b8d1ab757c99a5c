-- Who may call: tenants, their projects, users and keys.
SET LOCAL ROLE tollgate_owner;

CREATE TABLE tenant (
    tenant_id  integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 128),
    scope_salt text NOT NULL DEFAULT replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '')
               CHECK (scope_salt ~ '^[0-9a-f]{64}$'),
    timezone   text NOT NULL DEFAULT 'UTC' CHECK (timestamptz '2000-01-01 00:00Z' AT TIME ZONE timezone IS NOT NULL),
    disabled   boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tenant IS 'Who pays.';
COMMENT ON COLUMN tenant.scope_salt IS '32 bytes as hex: with the deployment secret it makes the key of the tenant''s prefix cache, so tenants share no cached prefix';
COMMENT ON COLUMN tenant.timezone IS 'IANA name: the zone of its budget months';
COMMENT ON COLUMN tenant.disabled IS 'every key is refused';

CREATE TABLE project (
    project_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id  integer NOT NULL REFERENCES tenant,
    name       text NOT NULL CHECK (length(name) BETWEEN 1 AND 128),
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, name)
);

CREATE TABLE app_user (
    user_id    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id  integer NOT NULL REFERENCES tenant,
    name       text NOT NULL CHECK (length(name) BETWEEN 1 AND 128),
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, name)
);
COMMENT ON TABLE app_user IS 'A person or program of a tenant that a key is bound to; 0 in a row means none';

CREATE TABLE api_key (
    key_id     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id  integer NOT NULL REFERENCES tenant,
    project_id integer NOT NULL REFERENCES project,
    user_id    integer REFERENCES app_user,
    name       text NOT NULL DEFAULT '' CHECK (length(name) <= 128),
    redacted   text NOT NULL CHECK (length(redacted) <= 32),
    hmac       bytea NOT NULL UNIQUE CHECK (length(hmac) = 32),
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz
);
CREATE INDEX api_key_tenant ON api_key (tenant_id);
COMMENT ON COLUMN api_key.redacted IS 'first and last characters, for lists; the key itself is nowhere';
COMMENT ON COLUMN api_key.hmac IS 'HMAC-SHA-256 of the key under the pepper; tollgate_reader may not read it';
COMMENT ON COLUMN api_key.revoked_at IS 'NULL: valid. A revoked key stays, for the rows that name it';

CREATE TABLE tagset (
    tagset_id  integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tags       jsonb NOT NULL UNIQUE CHECK (jsonb_typeof(tags) = 'object'),
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tagset IS 'Tags as a dictionary: a row names the set by number; 0 means none';

GRANT SELECT, INSERT, UPDATE ON tenant, project, app_user, api_key TO tollgate_gateway;
GRANT SELECT, INSERT ON tagset TO tollgate_gateway;
GRANT SELECT ON tenant, project, app_user, tagset TO tollgate_reader;
GRANT SELECT (key_id, tenant_id, project_id, user_id, name, redacted, created_at, revoked_at)
    ON api_key TO tollgate_reader;
