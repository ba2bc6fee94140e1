-- Largest ratio of current rows to rows at the last VACUUM or ANALYZE. Tables without statistics are omitted.
-- Templates are vacuumed last, so reltuples are current. In a benchlib schema only its tables count.
SELECT max(1 + s.n_mod_since_analyze / nullif(greatest(c.reltuples - s.n_mod_since_analyze, 0), 0)::float8)
FROM pg_stat_user_tables AS s JOIN pg_class AS c ON c.oid = s.relid
WHERE current_schema() ~ '{ours}' IS NOT TRUE OR schemaname = current_schema()
