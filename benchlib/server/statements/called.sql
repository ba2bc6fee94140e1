-- This database's statements in pg_stat_statements, with shares in percent. The time has another name up to version 12.
SELECT query, sum(calls)::float8 AS calls, greatest(1, round(sum(rows) / sum(calls)))::bigint AS rows_per_call, sum(ms) / sum(calls) AS ms,
       (100 * sum(calls) / sum(sum(calls)) OVER ())::float8 AS share_of_calls, 100 * sum(ms) / greatest(sum(sum(ms)) OVER (), 1e-9) AS share_of_time
FROM (
    SELECT s.*, coalesce(to_jsonb(s) ->> 'total_exec_time', to_jsonb(s) ->> 'total_time')::float8 AS ms
    FROM pg_stat_statements AS s
    WHERE s.calls > 0 AND s.query IS NOT NULL AND coalesce((to_jsonb(s) ->> 'toplevel')::boolean, true)
) AS s
JOIN pg_database AS d ON d.oid = s.dbid
WHERE d.datname = current_database()
GROUP BY query
ORDER BY sum(calls) DESC, query
