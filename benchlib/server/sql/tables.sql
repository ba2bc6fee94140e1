-- How often autovacuum has been at work on the load's tables; a schema of our own is beside the tables of others.
SELECT jsonb_build_object('autovacuums', coalesce(sum(autovacuum_count + autoanalyze_count), 0)) FROM pg_stat_user_tables
WHERE current_schema() ~ '{ours}' IS NOT TRUE OR schemaname = current_schema()
