-- How much larger than VACUUM or ANALYZE last saw it the table is that grew most; one that neither has seen is left out.
-- A template is vacuumed last, so reltuples are those of now. A schema of our own is beside the tables of others.
SELECT max(1 + s.n_mod_since_analyze / nullif(greatest(c.reltuples - s.n_mod_since_analyze, 0), 0)::float8)
FROM pg_stat_user_tables AS s JOIN pg_class AS c ON c.oid = s.relid
WHERE current_schema() ~ '{ours}' IS NOT TRUE OR schemaname = current_schema()
