-- Number of the load's sessions by wait event, with parallel workers, without benchlib's connections and background load.
-- Source: PostgreSQL documentation, "pg_stat_activity" (these columns: versions 10 to 18).
SELECT wait_event_type, wait_event, count(*) FROM pg_catalog.pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND application_name NOT IN ('benchlib', '{beside}')
  -- in a database in use, others have sessions too
  AND (application_name = '{load}' OR current_setting('default_transaction_read_only') = 'off')
  AND backend_type IN ('client backend', 'parallel worker') AND state IS NOT NULL
GROUP BY 1, 2
