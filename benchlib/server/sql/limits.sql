-- The connection limit that leaves the fewest free; the database's limit counts if the load runs in it.
-- benchlib's own sessions are omitted: ended ones may still be listed
WITH others AS (SELECT * FROM pg_stat_activity WHERE pid <> pg_backend_pid()
                AND NOT (usename = current_user AND application_name = 'benchlib'))
SELECT *, most - reserved - in_use AS free FROM (
    SELECT 'max_connections' AS name, current_setting('max_connections')::int AS most,
           current_setting('superuser_reserved_connections')::int
             + coalesce(current_setting('reserved_connections', true), '0')::int AS reserved,
           -- backend_type of other roles may be hidden; every client session has a database
           (SELECT count(*)::int FROM others
            WHERE datid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend') AS in_use
    UNION ALL SELECT 'the role''s limit', rolconnlimit, 0, (SELECT count(*)::int FROM others WHERE usename = rolname)
    FROM pg_roles WHERE rolname = current_user AND rolconnlimit >= 0
    UNION ALL SELECT 'the database''s limit', datconnlimit, 0, (SELECT count(*)::int FROM others AS o WHERE o.datname = d.datname)
    FROM pg_database AS d WHERE datname = current_database() AND datconnlimit >= 0 AND %s
) AS limits ORDER BY free LIMIT 1
