-- How many sessions of the load wait for what. Of the sessions of others the server shows no state to an ordinary role.
-- Parallel workers are part of the load, our own connections and what runs beside it are not.
-- Source: documentation, "pg_stat_activity" (these columns: 10 to 18).
SELECT wait_event_type, wait_event, count(*) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND application_name NOT IN ('benchlib', '{beside}')
  AND backend_type IN ('client backend', 'parallel worker') AND state IS NOT NULL
GROUP BY 1, 2
