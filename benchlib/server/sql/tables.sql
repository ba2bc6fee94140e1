-- Number of autovacuum runs on the load's tables; in a benchlib schema only its tables count.
SELECT jsonb_build_object('autovacuums', coalesce(sum(autovacuum_count + autoanalyze_count), 0)) FROM pg_stat_user_tables
WHERE current_schema() ~ '{ours}' IS NOT TRUE OR schemaname = current_schema()
