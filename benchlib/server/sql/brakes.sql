-- The load of a server in use: connections, active sessions without benchlib's, and the largest replay lag in seconds.
-- Source: PostgreSQL documentation, "pg_stat_activity", "pg_stat_replication", "Recovery Information Functions".
SELECT count(*) AS connections,
       count(*) FILTER (WHERE state = 'active' AND application_name NOT LIKE 'benchlib%') AS active,
       greatest((SELECT max(extract(epoch FROM replay_lag)) FROM pg_stat_replication),
                CASE WHEN pg_is_in_recovery() AND pg_last_wal_receive_lsn() <> pg_last_wal_replay_lsn()
                     THEN extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) END, 0)::float8 AS lag_s,
       current_setting('max_connections')::int AS most
FROM pg_stat_activity WHERE datid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend'
