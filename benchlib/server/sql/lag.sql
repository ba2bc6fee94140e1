-- Lag of replicas: bytes behind the primary's written WAL, and the server's own replay_lag. A replica that is not
-- connected has a row of nulls. replay_lag_s is null when idle and does not grow if replay stops; the bytes do.
-- Source: PostgreSQL documentation, "pg_stat_replication".
SELECT extract(epoch FROM clock_timestamp())::float8 AS at_s, replica, pid, state, sync_state,
    pg_wal_lsn_diff(pg_current_wal_lsn(), write_lsn)::int8 AS write_lag_bytes,
    pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::int8 AS replay_lag_bytes,
    extract(epoch FROM replay_lag)::float8 AS replay_lag_s
FROM unnest(%s::text[]) AS replica LEFT JOIN pg_stat_replication ON application_name = replica
ORDER BY replica
