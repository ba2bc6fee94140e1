-- How far replicas are behind. One that is not connected has a row too, of nulls. What a replica has written and
-- replayed is compared with what the primary has written. The time is the server's own: that of the latest WAL that
-- was confirmed, null when idle; one that stands still shows in the bytes alone. Source: documentation, "pg_stat_replication".
SELECT extract(epoch FROM clock_timestamp())::float8 AS at_s, replica, pid, state, sync_state,
    pg_wal_lsn_diff(pg_current_wal_lsn(), write_lsn)::int8 AS write_lag_bytes,
    pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::int8 AS replay_lag_bytes,
    extract(epoch FROM replay_lag)::float8 AS replay_lag_s
FROM unnest(%s::text[]) AS replica LEFT JOIN pg_stat_replication ON application_name = replica
ORDER BY replica
