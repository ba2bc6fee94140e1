-- Terminates the sessions of a load; no row if all have ended.
SELECT pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND application_name = '{name}'
