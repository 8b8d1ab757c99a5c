-- Views for finance and dashboards: money as numeric USD (exact), tokens as integers, grain and unit in
-- the comments. Built on the rollup where that is enough. The reconciliation view has one line for each
-- check; every number in it is zero or there is something to explain.
SET LOCAL ROLE tollgate_owner;

CREATE SCHEMA IF NOT EXISTS finance;
COMMENT ON SCHEMA finance IS 'Read-only views over the ledger; USD = pico-USD / 1e12, never rounded';

CREATE FUNCTION finance.usd(pusd numeric) RETURNS numeric LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (pusd * 0.000000000001)::numeric(38,12);

CREATE VIEW finance.dim_tenants AS
    SELECT tenant_id, name AS tenant, timezone, disabled, created_at FROM public.tenant;

CREATE VIEW finance.dim_models AS
    SELECT model_id, name AS model, context, output_max, created_at FROM public.model;

CREATE VIEW finance.dim_price_versions AS
    SELECT p.price_id, m.name AS model, t.name AS tier, NULLIF(p.ctx_band, 2147483647) AS ctx_band, p.valid_from,
           (p.in_pusd * 0.000001)::numeric(20,6) AS input_usd_per_1m,
           (p.cached_pusd * 0.000001)::numeric(20,6) AS cached_usd_per_1m,
           (p.out_pusd * 0.000001)::numeric(20,6) AS output_usd_per_1m,
           encode(p.sha256, 'hex') AS sha256
    FROM public.price_version p JOIN public.model m USING (model_id) JOIN public.tier t USING (tier);

CREATE VIEW finance.fct_usage_15m AS
    SELECT u.bucket, u.period, n.name AS tenant, p.name AS project, u.key_id, k.redacted AS key, m.name AS model,
           t.name AS tier, d.name AS kind, g.tags, u.n AS requests, u.tok_in_uncached, u.tok_in_cached,
           u.tok_cw_5m, u.tok_cw_1h, u.tok_out, u.tok_reasoning, finance.usd(u.cost_pusd) AS cost_usd,
           finance.usd(u.list_pusd) AS list_usd, finance.usd(u.list_pusd - u.cost_pusd) AS saved_usd, u.gpu_us
    FROM public.usage_15m u
    LEFT JOIN public.tenant n USING (tenant_id) LEFT JOIN public.project p USING (project_id)
    LEFT JOIN public.api_key k USING (key_id) LEFT JOIN public.model m USING (model_id)
    LEFT JOIN public.tier t ON t.tier = u.tier_served LEFT JOIN public.kind d ON d.kind = u.kind
    LEFT JOIN public.tagset g ON g.tagset_id = u.tagset_id;
COMMENT ON VIEW finance.fct_usage_15m IS 'Grain: 15 minutes (UTC) x gateway x tenant x project x key x user x tags x month x model x tier x kind';
COMMENT ON COLUMN finance.fct_usage_15m.requests IS 'attempts that reached a worker';
COMMENT ON COLUMN finance.fct_usage_15m.list_usd IS 'the same tokens in the standard tier without cache discount';

CREATE VIEW finance.mart_chargeback_monthly AS
    SELECT period, tenant, project, model, tier, sum(requests) AS requests,
           sum(tok_in_uncached + tok_in_cached + tok_cw_5m + tok_cw_1h) AS input_tokens,
           sum(tok_in_cached) AS cached_tokens, sum(tok_out + tok_reasoning) AS output_tokens,
           sum(cost_usd) AS cost_usd, sum(list_usd) AS list_usd
    FROM finance.fct_usage_15m GROUP BY 1, 2, 3, 4, 5;
COMMENT ON VIEW finance.mart_chargeback_monthly IS 'Grain: month of booking x tenant x project x model x tier. The invoice line rounds, nothing before it';

CREATE VIEW finance.mart_savings_daily AS
    SELECT (bucket AT TIME ZONE 'UTC')::date AS day, tenant, model, tier, sum(list_usd) AS list_usd,
           sum(cost_usd) AS cost_usd, sum(saved_usd) AS saved_usd, sum(tok_in_cached) AS cached_tokens
    FROM finance.fct_usage_15m GROUP BY 1, 2, 3, 4;

CREATE VIEW finance.mart_reconciliation AS
    SELECT 'rows missing in a gateway epoch' AS line, COALESCE(sum(c.last_seq - COALESCE(r.n, 0)), 0)::numeric AS difference
    FROM public.ingest_cursor c LEFT JOIN (SELECT gateway_id, gw_epoch, count(*) AS n FROM public.usage_event
        WHERE gateway_id > 0 GROUP BY 1, 2) r USING (gateway_id, gw_epoch)
    UNION ALL
    SELECT 'rollup n - rows', (SELECT COALESCE(sum(n), 0) FROM public.usage_15m) - (SELECT count(*) FROM public.usage_event)
    UNION ALL
    SELECT 'rollup cost - rows cost (pico-USD)', (SELECT COALESCE(sum(cost_pusd), 0) FROM public.usage_15m)
        - (SELECT COALESCE(sum(cost_pusd), 0) FROM public.usage_event)
    UNION ALL
    SELECT 'tokens x price - cost (pico-USD), usage', COALESCE(sum(u.tok_in_uncached::numeric * p.in_pusd
        + u.tok_in_cached::numeric * p.cached_pusd + u.tok_cw_5m::numeric * p.cw_5m_pusd
        + u.tok_cw_1h::numeric * p.cw_1h_pusd + u.tok_out::numeric * p.out_pusd
        + u.tok_reasoning::numeric * p.reasoning_pusd - u.cost_pusd), 0)
    FROM public.usage_event u JOIN public.price_version p USING (price_id) WHERE u.kind = 1
    UNION ALL
    SELECT 'usage rows that cost without a price version', count(*)::numeric FROM public.usage_event u
    WHERE u.kind = 1 AND u.cost_pusd <> 0 AND NOT EXISTS (SELECT FROM public.price_version p WHERE p.price_id = u.price_id)
    UNION ALL
    SELECT 'rows billed above their hold', count(*)::numeric FROM public.usage_event
    WHERE kind = 1 AND hold_nusd IS NOT NULL AND (cost_pusd + 999) / 1000 > hold_nusd
    UNION ALL
    SELECT 'holds in suspense (nano-USD)', COALESCE(sum(hold_nusd), 0)::numeric FROM public.hold_suspense WHERE cleared_at IS NULL;
COMMENT ON VIEW finance.mart_reconciliation IS 'The proof: every difference is 0, or it has rows to show. Read it on the primary';

GRANT USAGE ON SCHEMA finance TO tollgate_reader, tollgate_gateway;
GRANT SELECT ON ALL TABLES IN SCHEMA finance TO tollgate_reader, tollgate_gateway;
GRANT EXECUTE ON FUNCTION finance.usd(numeric) TO tollgate_reader, tollgate_gateway;
