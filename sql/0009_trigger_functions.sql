-- Trigger functions that run with their owner's rights are the owner's alone: with EXECUTE, which PUBLIC
-- has by default, anyone may hang them on a temporary table and so write the audit or bump the version.
-- A table's own triggers need no such right of who changes it.
SET LOCAL ROLE tollgate_owner;

REVOKE ALL ON FUNCTION tollgate_quota_audit(), tollgate_config_bump() FROM PUBLIC;
